//! All numbers that the port shows, read once: what `stats` shows, and what only the port does.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

use keyway_cache::{Ages, Cache, Counters, Info, Latencies};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::{TimeVal, TimeValLike};

use super::Requests;
use crate::shared::{KernelNumbers, Shared, Traffic, lock, unix_time};
use crate::{census, file_watch, stats};

/// See the top of the file. Counts start at the server's start or at the last `stats reset`, except those of the doors, which start with
/// the server.
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshot {
    pub(crate) uptime_s: u32,
    pub(crate) unix_time: Duration,
    pub(crate) user_time: Duration,
    pub(crate) system_time: Duration,
    pub(crate) threads: usize,
    pub(crate) counters: Counters,
    pub(crate) traffic: Traffic,
    pub(crate) info: Info,
    pub(crate) ages: Ages,
    pub(crate) memory_limit: u64,
    pub(crate) processes: usize,
    pub(crate) region_state: &'static str,
    pub(crate) connections: Connections,
    pub(crate) network: Counters,
    pub(crate) library: Counters,
    pub(crate) latencies: Latencies,
    /// `None`: UDP is off
    pub(crate) udp_sockets: Option<usize>,
    /// `None`: the kernel door is off
    pub(crate) kernel: Option<KernelNumbers>,
    pub(crate) requests: Requests,
}

/// Connections and their memory.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Connections {
    pub(crate) current: usize,
    pub(crate) max: usize,
    pub(crate) total: u64,
    pub(crate) rejected: u64,
    pub(crate) disabled_count: u64,
    pub(crate) disabled_us: u64,
    pub(crate) accepting: bool,
    /// bytes
    pub(crate) memory: usize,
    pub(crate) memory_peak: usize,
    pub(crate) memory_limit: usize,
    pub(crate) memory_each_limit: usize,
    pub(crate) paused: u64,
    pub(crate) closed_for_memory: u64,
}

impl Snapshot {
    /// Reads everything.
    pub(crate) fn take(shared: &Shared, cache: &Cache, requests: &Requests) -> Self {
        let base = *lock(&shared.baseline);
        let info = cache.info();
        let usage = getrusage(UsageWho::RUSAGE_SELF).ok();
        let microseconds = |time: TimeVal| Duration::from_micros(time.num_microseconds().try_into().unwrap_or(0));
        let has_udp = !shared.udp_addresses.is_empty();
        Self {
            uptime_s: shared.uptime_s(),
            unix_time: unix_time(),
            user_time: usage.map_or(Duration::ZERO, |usage| microseconds(usage.user_time())),
            system_time: usage.map_or(Duration::ZERO, |usage| microseconds(usage.system_time())),
            threads: shared.config.threads,
            counters: census::since(&shared.census.counters(cache), &base.counters),
            traffic: stats::traffic_since(&base.traffic, &shared.traffic()),
            memory_limit: shared.memory_limit(&info),
            info,
            ages: cache.ages(),
            processes: cache.processes(),
            region_state: file_watch::word(shared.at_place.load(Relaxed)),
            connections: Connections::take(shared, &base),
            network: shared.census.network(cache),
            library: shared.census.library(cache),
            latencies: stats::latencies(shared, cache),
            udp_sockets: has_udp.then_some(shared.udp_sockets.len()),
            kernel: shared.kernel.as_ref().map(|post| post.numbers()),
            requests: requests.clone(),
        }
    }
}

impl Connections {
    fn take(shared: &Shared, base: &crate::shared::Baseline) -> Self {
        let (arrivals, account) = (&shared.arrivals, &shared.account);
        Self {
            current: shared.connections(),
            max: shared.config.connections_max,
            total: arrivals.total.load(Relaxed).saturating_sub(base.total_connections),
            rejected: arrivals.rejected.load(Relaxed).saturating_sub(base.rejected),
            disabled_count: arrivals.disabled_count.load(Relaxed).saturating_sub(base.disabled_count),
            disabled_us: arrivals.disabled_us.load(Relaxed).saturating_sub(base.disabled_us),
            accepting: !arrivals.paused.load(SeqCst) && !shared.is_stopping(),
            memory: account.used(),
            memory_peak: account.peak(),
            memory_limit: account.limit(),
            memory_each_limit: shared.each_held_max(),
            paused: account.paused.load(Relaxed),
            closed_for_memory: account.closed.load(Relaxed),
        }
    }
}
