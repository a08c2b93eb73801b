//! Reads all numbers of a server at once, and begins their count anew.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use keyway_cache::{Cache, Counters, Latencies};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::{TimeVal, TimeValLike};

use super::{Base, Connections, Details, HoldNumbers, Since, Snapshot, TlsNumbers, Watch};
use crate::basics::{lock, unix_time};
use crate::census;
use crate::holds::HeldPrefix;
use crate::shared::Shared;

impl Since {
    /// `stats reset`
    pub(crate) fn reset(&self, shared: &Shared, cache: &Cache) {
        let base = Base {
            counters: shared.census.counters(cache),
            traffic: shared.workers.traffic(),
            arrivals: shared.peers.arrivals(),
        };
        *lock(&self.base) = base;
        *lock(&self.latencies) = cache.latencies();
    }
}

/// What the region has counted since then, without the commands of the readiness probe.
pub(super) fn counted(shared: &Shared, cache: &Cache) -> Counters {
    let base = lock(&shared.since.base).counters;
    census::since(&shared.census.counters(cache), &base)
}

/// How long operations have taken since this server started, or since the last `stats reset`.
pub(super) fn latencies(shared: &Shared, cache: &Cache) -> Latencies {
    cache.latencies().since(&lock(&shared.since.latencies))
}

impl Snapshot {
    /// Reads everything.
    pub(crate) fn take(shared: &Shared, cache: &Cache) -> Self {
        let base = *lock(&shared.since.base);
        let (info, config, hub) = (cache.info(), &shared.config, &shared.watch);
        let usage = getrusage(UsageWho::RUSAGE_SELF).ok();
        let microseconds = |time: TimeVal| Duration::from_micros(time.num_microseconds().try_into().unwrap_or(0));
        Self {
            uptime_s: shared.uptime_s(),
            unix_time: unix_time(),
            user_time: usage.map(|usage| microseconds(usage.user_time())),
            system_time: usage.map(|usage| microseconds(usage.system_time())),
            threads: config.threads,
            counters: census::since(&shared.census.counters(cache), &base.counters),
            traffic: shared.workers.traffic().since(&base.traffic),
            holds: shared.holds.prefixes().iter().map(HoldNumbers::take).collect(),
            memory_limit: shared.memory.limit(&info),
            info,
            region_state: shared.region_file.word(),
            connections: Connections::take(shared, &base),
            watch: Watch {
                lines: hub.lines(),
                skipped: hub.skipped.load(Relaxed),
                sent: hub.sent.load(Relaxed),
                watchers: hub.count(),
            },
            tls: shared.certificates.as_ref().map(|certificates| TlsNumbers {
                new_sessions: certificates.new_sessions.load(Relaxed),
                handshake_errors: certificates.handshake_errors.load(Relaxed),
                protocol_errors: certificates.protocol_errors.load(Relaxed),
                age_s: certificates.age_s(),
                days_left: certificates.days_left(),
            }),
            udp_sockets: (!shared.udp_addresses.is_empty()).then_some(shared.peers.udp_sockets().len()),
            kernel: shared.kernel.as_ref().map(|post| post.numbers()),
            has_idle_timeout: !config.idle_timeout.is_zero(),
            has_rates: shared.rates.is_some(),
        }
    }
}

impl Details {
    /// Reads everything.
    pub(crate) fn take(shared: &Shared, cache: &Cache) -> Self {
        Self {
            ages: cache.ages(),
            processes: cache.processes(),
            network: shared.census.network(cache),
            library: shared.census.library(cache),
            latencies: latencies(shared, cache),
        }
    }
}

impl HoldNumbers {
    fn take(prefix: &HeldPrefix) -> Self {
        Self {
            prefix: prefix.name().to_owned(),
            counts: [
                ("claimed", prefix.claimed.load(Relaxed)),
                ("held", prefix.held.load(Relaxed)),
                ("in_vain", prefix.in_vain.load(Relaxed)),
            ],
        }
    }
}

impl Connections {
    fn take(shared: &Shared, base: &Base) -> Self {
        let (account, arrivals) = (&shared.account, shared.peers.arrivals().since(&base.arrivals));
        Self {
            current: shared.peers.current(),
            max: shared.config.connections_max,
            arrivals,
            accepting: shared.peers.is_accepting() && !shared.life.is_stopping(),
            memory: account.used(),
            memory_peak: account.peak(),
            memory_limit: account.limit(),
            memory_each_limit: shared.each_held_max(),
            paused: account.paused.load(Relaxed),
            closed_for_memory: account.closed.load(Relaxed),
        }
    }
}
