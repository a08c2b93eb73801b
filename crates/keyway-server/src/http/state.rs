//! What the page shows besides its charts, as JSON: counts as `stats` has them, times as `stats latency` has them, the region as
//! `keyway top --json` has it, hot keys and prefixes as `keyway hot --json` has them, and connections by kind.
//!
//! It is read at most once in [`FRESH`], however many browsers ask, and not at all while none does. No answer has a value or a client's
//! address; keys are in it only if the operator has asked for that ([`crate::Config::http_keys`]), and otherwise their hashes.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use keyway_cache::{Cache, Counters};
use serde_json::{Map, Value, json};

use super::Snapshot;
use crate::config::KEYWAY_VERSION;
use crate::hotkeys::{self, HotAsked};
use crate::overview::{Order, Reading, View};
use crate::shared::{KINDS, Shared};
use crate::stats;

/// What was read this long ago, or later, is shown again.
const FRESH: Duration = Duration::from_millis(900);

/// Prefixes of keys end before this.
const SEPARATOR: &[u8] = b":";

/// See the top of the file.
#[derive(Default)]
pub(super) struct State {
    hot: hotkeys::Earlier,
    before: Option<Reading>,
    now: Option<Reading>,
    shown: Map<String, Value>,
}

impl State {
    /// What there is to show, and when it was read.
    pub(super) fn shown(&mut self, shared: &Shared, cache: &Cache, snapshot: impl Fn() -> Snapshot) -> Map<String, Value> {
        if self.now.as_ref().is_none_or(|now| now.age() >= FRESH) {
            self.before = self.now.take();
            let now = Reading::from(cache.look());
            self.shown = self.read(shared, cache, &now, &snapshot());
            self.now = Some(now);
        }
        self.shown.clone()
    }

    fn read(&self, shared: &Shared, cache: &Cache, now: &Reading, s: &Snapshot) -> Map<String, Value> {
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
        let named = |counters: &Counters| -> Map<_, _> {
            let numbers = counters.named();
            numbers.map(|(name, count)| (name.to_owned(), count.into())).collect()
        };
        let latencies = s.latencies.counted().map(|(door, verb, latency)| {
            let mut row = Map::new();
            row.insert("door".to_owned(), door.name().into());
            row.insert("verb".to_owned(), verb.name().into());
            row.insert("is_sampled".to_owned(), door.is_sampled().into());
            row.extend(
                stats::times(latency)
                    .into_iter()
                    .map(|(name, number)| (name.to_owned(), number.into())),
            );
            row
        });
        let c = &s.connections;
        let all = json!({
            "version": KEYWAY_VERSION,
            "listen": listened(shared),
            "region_place": cache.place().to_string(),
            "pid": std::process::id(),
            "uptime_s": s.uptime_s,
            "threads": s.threads,
            "region_state": s.region_state,
            "memory_limit": s.memory_limit,
            "index_bytes": s.info.index_bytes,
            "sessions": s.info.sessions,
            "sessions_max": s.info.sessions_max,
            "counters": named(&s.counters),
            "network": named(&s.network),
            "library": named(&s.library),
            "kernel_hits": s.kernel.as_ref().map(|kernel| kernel.hits()),
            "latencies": latencies.collect::<Vec<_>>(),
            "connections": {
                "current": c.current,
                "max": c.max,
                "total": c.total,
                "rejected": c.rejected,
                "memory": c.memory,
                "memory_limit": c.memory_limit,
                "closed_for_memory": c.closed_for_memory,
                "udp_sockets": s.udp_sockets,
                "kinds": kinds(shared),
            },
            "region": View::new(now, self.before.as_ref().unwrap_or(now)).json(Order::default()),
            "hot": hot,
            "hot_prefixes": hot_prefixes,
            "shows_keys": shows_keys(shared),
        });
        match all {
            Value::Object(all) => all,
            _ => Map::new(),
        }
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
    let numbers = shared.arrivals.by_kind.iter().map(|number| number.load(Relaxed));
    let kinds = KINDS.iter().zip(numbers).filter(|(_, number)| *number > 0);
    kinds.map(|(kind, number)| ((*kind).to_owned(), number.into())).collect()
}
