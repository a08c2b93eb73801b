//! What the page shows besides its charts, as JSON: counts as `stats` has them, times as `stats latency` has them, the region as
//! `keyway top --json` has it, hot keys as `keyway hot --json` has them, and connections by kind.
//!
//! It is read at most once in [`FRESH`], however many browsers ask, and not at all while none does. No answer has a value or a client's
//! address; keys are in it only if the operator has asked for that ([`crate::Config::http_keys`]), and otherwise their hashes.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use keyway_cache::{Cache, Counters};
use serde_json::{Map, Value, json};

use super::Snapshot;
use crate::config::KEYWAY_VERSION;
use crate::hotkeys::{self, HotAsked};
use crate::overview::{Order, Reading, View};
use crate::shared::{Peer, PeerAddress, Shared, lock};
use crate::stats;

/// What was read this long ago, or later, is shown again.
const FRESH: Duration = Duration::from_millis(900);
/// Connections that are looked at while the list of connections is locked.
const PEERS_PER_STEP: usize = 64;
/// A connection with a request in so many seconds is counted as busy.
const BUSY_S: u32 = 10;

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
        let named = |counters: &Counters| -> Map<_, _> {
            let numbers = counters.named().into_iter();
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
            "hot": self.hot.look(cache, |counts, since| asked.json(cache, counts, since)),
            "shows_keys": shows_keys(shared),
        });
        match all {
            Value::Object(all) => all,
            _ => Map::new(),
        }
    }
}

/// `-X` hides keys from clients of the protocol, and so from readers of the page.
fn shows_keys(shared: &Shared) -> bool {
    shared.config.http_keys && shared.config.dump_enabled
}

/// Connections by kind: how many, and how many of them are busy.
fn kinds(shared: &Shared) -> Vec<Value> {
    let mut kinds = [("tcp", 0u64, 0u64), ("tls", 0, 0), ("unix", 0, 0), ("reader", 0, 0)];
    let (mut next, now_s) = (0, shared.uptime_s());
    loop {
        // In steps: a connection that comes or goes waits for this lock.
        let peers: Vec<Arc<Peer>> = lock(&shared.peers)
            .range(next..)
            .take(PEERS_PER_STEP)
            .map(|(_, peer)| Arc::clone(peer))
            .collect();
        let Some(last) = peers.last() else { break };
        next = last.id.saturating_add(1);
        for peer in &peers {
            let kind = match &peer.address {
                PeerAddress::Tcp { is_secure: false, .. } => 0,
                PeerAddress::Tcp { is_secure: true, .. } => 1,
                PeerAddress::Unix => 2,
                PeerAddress::Reader => 3,
                PeerAddress::Udp { .. } => continue,
            };
            if let Some((_, all, busy)) = kinds.get_mut(kind) {
                *all += 1;
                let idle_s = now_s.saturating_sub(peer.last_request_s.load(Relaxed));
                *busy += u64::from(idle_s < BUSY_S);
            }
        }
    }
    let shown = kinds.into_iter().filter(|(_, all, _)| *all > 0);
    shown
        .map(|(kind, all, busy)| json!({ "kind": kind, "connections": all, "busy": busy }))
        .collect()
}
