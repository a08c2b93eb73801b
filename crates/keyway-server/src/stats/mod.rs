//! Room `stats`: the numbers of a server: who has counted them, since when, and how they are shown.
//!
//! Counts are the region's, summed over every process and door since the region was made, minus their values when this server
//! started or executed the last `stats reset`. Keyway has no slab classes. It shows one, [`CLASS`]: its pages are the region's
//! segments, and its chunks are the 8 bytes that items are aligned to. memcached's names that have no meaning here are shown
//! as 0 if tools need them, and left out otherwise.
//!
//! | file | holds |
//! |---|---|
//! | `mod` | [`Since`]: from when on counts are shown; [`Snapshot`]: all numbers, read once |
//! | `table` | every number: a new one is a row there, and nothing else |
//! | `answers` | the answers to `stats …` |
//! | `settings` | the answer to `stats settings` |
//! | `metrics` | the page `/metrics` |

mod answers;
mod metrics;
mod settings;
mod table;

pub(crate) use answers::{conns, general, items, latency, sizes, slabs};
pub(crate) use settings::settings;
pub(crate) use table::{Traffic, WorkerCounters};

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use keyway_cache::{Ages, Cache, Counters, Info, Latencies, Latency};
use keyway_http::{Exposition, Format};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::{TimeVal, TimeValLike};
use serde_json::{Map, json};

use crate::shared::{Arrivals, EnrolledNumbers, KernelNumbers, Shared, lock, unix_time};
use crate::{census, file_watch};

/// The number of the one slab class that is shown.
pub(crate) const CLASS: u32 = 1;
/// Items are aligned to this many bytes.
const CHUNK_SIZE: u64 = 8;

/// From when on counts are shown: the server's start, or the last `stats reset`.
pub(crate) struct Since {
    base: Mutex<Base>,
    /// how long operations had taken by then
    latencies: Mutex<Latencies>,
}

/// The values of monotone counts at that time.
#[derive(Clone, Copy, Default)]
struct Base {
    counters: Counters,
    traffic: Traffic,
    arrivals: Arrivals,
}

impl Since {
    /// The server starts.
    pub(crate) fn now(cache: &Cache) -> Self {
        Self {
            base: Mutex::new(Base {
                counters: cache.counters(),
                ..Base::default()
            }),
            latencies: Mutex::new(cache.latencies()),
        }
    }

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
fn counted(shared: &Shared, cache: &Cache) -> Counters {
    let base = lock(&shared.since.base).counters;
    census::since(&shared.census.counters(cache), &base)
}

/// How long operations have taken since this server started, or since the last `stats reset`.
fn latencies(shared: &Shared, cache: &Cache) -> Latencies {
    cache.latencies().since(&lock(&shared.since.latencies))
}

/// A number as it is shown.
enum Value {
    Number(u64),
    Signed(i64),
    /// in seconds with six decimals
    Time(Duration),
    Text(&'static str),
    /// it is not shown now
    None,
}

impl From<u64> for Value {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}

impl From<usize> for Value {
    fn from(number: usize) -> Self {
        Self::Number(number as u64)
    }
}

impl Value {
    fn shown(self) -> Option<String> {
        Some(match self {
            Self::Number(number) => number.to_string(),
            Self::Signed(number) => number.to_string(),
            Self::Time(time) => format!("{}.{:06}", time.as_secs(), time.subsec_micros()),
            Self::Text(text) => text.to_owned(),
            Self::None => return None,
        })
    }
}

/// All numbers of the table, read once.
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshot {
    uptime_s: u32,
    unix_time: Duration,
    user_time: Option<Duration>,
    system_time: Option<Duration>,
    threads: usize,
    counters: Counters,
    traffic: Traffic,
    info: Info,
    memory_limit: u64,
    region_state: &'static str,
    connections: Connections,
    watch: Watch,
    tls: Option<TlsNumbers>,
    /// `None`: UDP is off
    udp_sockets: Option<usize>,
    /// `None`: the kernel door is off
    kernel: Option<KernelNumbers>,
    has_idle_timeout: bool,
    has_rates: bool,
}

/// Connections and their memory.
#[derive(Clone, Copy, Debug, Default)]
struct Connections {
    current: usize,
    max: usize,
    arrivals: Arrivals,
    accepting: bool,
    /// bytes
    memory: usize,
    memory_peak: usize,
    memory_limit: usize,
    memory_each_limit: usize,
    paused: u64,
    closed_for_memory: u64,
}

/// Watchers and their lines.
#[derive(Clone, Copy, Debug, Default)]
struct Watch {
    lines: u64,
    skipped: u64,
    sent: u64,
    watchers: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct TlsNumbers {
    new_sessions: u64,
    handshake_errors: u64,
    protocol_errors: u64,
    age_s: u64,
    days_left: i64,
}

/// What the HTTP port shows beside the table.
#[derive(Clone, Debug, Default)]
pub(crate) struct Details {
    ages: Ages,
    processes: usize,
    network: Counters,
    library: Counters,
    latencies: Latencies,
}

/// Requests that the HTTP port has answered so far, by path and status.
pub(crate) type RequestCounts = BTreeMap<(&'static str, u16), u64>;

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
            memory_limit: shared.memory.limit(&info),
            info,
            region_state: file_watch::word(shared.at_place.load(Relaxed)),
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

    /// The page `/metrics`.
    pub(crate) fn metrics(&self, details: &Details, requests: &RequestCounts, format: Format) -> Vec<u8> {
        let mut page = Exposition::new(format);
        metrics::write(self, details, requests, &mut page);
        page.end()
    }

    /// What `/state.json` shows of it.
    pub(crate) fn json(&self, details: &Details) -> Map<String, serde_json::Value> {
        let named = |counters: &Counters| -> Map<_, _> {
            let numbers = counters.named();
            numbers.map(|(name, count)| (name.to_owned(), count.into())).collect()
        };
        let latencies = details.latencies.counted().map(|(door, verb, latency)| {
            let mut row = Map::new();
            row.insert("door".to_owned(), door.name().into());
            row.insert("verb".to_owned(), verb.name().into());
            row.insert("is_sampled".to_owned(), door.is_sampled().into());
            let numbers = times(latency).into_iter();
            row.extend(numbers.map(|(name, number)| (name.to_owned(), number.into())));
            row
        });
        let c = &self.connections;
        let all = json!({
            "uptime_s": self.uptime_s,
            "threads": self.threads,
            "region_state": self.region_state,
            "memory_limit": self.memory_limit,
            "index_bytes": self.info.index_bytes,
            "sessions": self.info.sessions,
            "sessions_max": self.info.sessions_max,
            "counters": named(&self.counters),
            "network": named(&details.network),
            "library": named(&details.library),
            "kernel_hits": self.kernel.as_ref().map(|kernel| kernel.hits()),
            "latencies": latencies.collect::<Vec<_>>(),
            "connections": {
                "current": c.current,
                "max": c.max,
                "total": c.arrivals.total,
                "rejected": c.arrivals.rejected,
                "memory": c.memory,
                "memory_limit": c.memory_limit,
                "closed_for_memory": c.closed_for_memory,
                "udp_sockets": self.udp_sockets,
            },
        });
        match all {
            serde_json::Value::Object(all) => all,
            _ => Map::new(),
        }
    }

    /// Segments in use and in reserve.
    fn pages(&self) -> u64 {
        self.info.segments.saturating_sub(self.info.segments_withdrawn)
    }

    fn has_udp(&self) -> bool {
        self.udp_sockets.is_some()
    }

    fn has_idle_timeout(&self) -> bool {
        self.has_idle_timeout
    }

    fn has_rates(&self) -> bool {
        self.has_rates
    }

    /// A number of TLS, if there is TLS.
    fn tls(&self, number: impl FnOnce(&TlsNumbers) -> u64) -> Value {
        self.tls.as_ref().map_or(Value::None, |tls| Value::Number(number(tls)))
    }

    /// A number of the kernel door, if there is one.
    fn kernel(&self, number: impl FnOnce(&KernelNumbers) -> u64) -> Value {
        self.kernel
            .as_ref()
            .map_or(Value::None, |kernel| Value::Number(number(kernel)))
    }

    /// A number of the kernel door's TCP connections, if it answers TCP.
    fn enrolled(&self, number: impl FnOnce(&EnrolledNumbers) -> u64) -> Value {
        let enrolled = self.kernel.as_ref().and_then(|kernel| kernel.enrolled.as_ref());
        enrolled.map_or(Value::None, |enrolled| Value::Number(number(enrolled)))
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

/// What is shown of the times of a door and verb, of at least one operation: names and numbers.
fn times(latency: &Latency) -> [(&'static str, u64); 6] {
    let count = latency.count();
    let quantile = |of_1000| latency.quantile_ns(of_1000).unwrap_or(0);
    [
        ("measured", count),
        ("mean_ns", latency.sum_ns / count.max(1)),
        ("p50_ns", quantile(500)),
        ("p90_ns", quantile(900)),
        ("p99_ns", quantile(990)),
        ("p999_ns", quantile(999)),
    ]
}
