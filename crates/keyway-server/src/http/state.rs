//! What the page shows besides its charts, as JSON: counts as `stats` has them, times as `stats latency` has them, the region as
//! `keyway top --json` has it, hot keys and prefixes as `keyway hot --json` has them, and connections by kind.
//!
//! It is read at most once in [`FRESH`], however many browsers ask, and not at all while none does. No answer has a value or a client's
//! address; keys are in it only if the operator has asked for that ([`crate::Config::http_keys`]), and otherwise their hashes.

use keyway_cache::server::ServerCache as _;
use std::time::Duration;

use keyway_cache::Cache;
use serde_json::{Map, Value, json};

use crate::config::KEYWAY_VERSION;
use crate::hotkeys::{self, HotAsked};
use crate::overview::{Order, Reading, View};
use crate::shared::Shared;
use crate::stats::{Details, Snapshot};

/// What was read this long ago, or later, is shown again.
const FRESH: Duration = Duration::from_millis(900);

/// Prefixes of keys end before this.
const SEPARATOR: &[u8] = b":";

/// See the top of the file.
#[derive(Default)]
pub(super) struct PageState {
    hot: hotkeys::Earlier,
    before: Option<Reading>,
    now: Option<Reading>,
    shown: Map<String, Value>,
}

impl PageState {
    /// What there is to show, and when it was read.
    pub(super) fn shown(&mut self, shared: &Shared, cache: &Cache) -> Map<String, Value> {
        if self.now.as_ref().is_none_or(|now| now.age() >= FRESH) {
            self.before = self.now.take();
            let now = Reading::from(cache.look());
            self.shown = self.read(shared, cache, &now);
            self.now = Some(now);
        }
        self.shown.clone()
    }

    fn read(&self, shared: &Shared, cache: &Cache, now: &Reading) -> Map<String, Value> {
        let asked = HotAsked {
            most: hotkeys::LISTED,
            separator: None,
            redacted: !shows_keys(shared),
        };
        let by_prefix = HotAsked {
            separator: Some(SEPARATOR),
            ..asked
        };
        let (hot, hot_prefixes) = self.hot.look(cache, |counts, since| {
            let of = |asked: HotAsked<'_>| asked.json(cache, counts, since);
            (of(asked), of(by_prefix))
        });
        let mut all = Snapshot::take(shared, cache).json(&Details::take(shared, cache));
        if let Some(Value::Object(connections)) = all.get_mut("connections") {
            connections.insert("kinds".to_owned(), kinds(shared).into());
        }
        let rest = json!({
            "version": KEYWAY_VERSION,
            "listen": listened(shared),
            "region_place": cache.place().to_string(),
            "pid": std::process::id(),
            "region": View::new(now, self.before.as_ref().unwrap_or(now)).json(Order::default()),
            "hot": hot,
            "hot_prefixes": hot_prefixes,
            "shows_keys": shows_keys(shared),
        });
        if let Value::Object(rest) = rest {
            all.extend(rest);
        }
        all
    }
}

/// Where clients reach the server: addresses, and the path of its socket.
fn listened(shared: &Shared) -> Vec<String> {
    let config = &shared.config;
    let tcp = config.tcp.iter().map(ToString::to_string);
    let tls = config.tls_tcp.iter().map(|address| format!("tls://{address}"));
    let unix = config.unix.iter().map(|socket| socket.path.display().to_string());
    let udp = config.udp.iter().map(|address| format!("udp {address}"));
    tcp.chain(tls).chain(unix).chain(udp).collect()
}

/// `-X` hides keys from clients of the protocol, and so from readers of the page.
fn shows_keys(shared: &Shared) -> bool {
    shared.config.http_keys && shared.config.dump_enabled
}

/// Connections by kind.
fn kinds(shared: &Shared) -> Map<String, Value> {
    let kinds = shared.peers.kinds();
    kinds.map(|(kind, number)| (kind.to_owned(), number.into())).collect()
}
