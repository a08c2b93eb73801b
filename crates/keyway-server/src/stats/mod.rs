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
//! | `snapshot` | reads them |
//! | `table` | every number: a new one is a row there, and nothing else |
//! | `answers` | the answers to `stats …` |
//! | `settings` | the answer to `stats settings` |
//! | `metrics` | the page `/metrics` |

mod answers;
mod metrics;
mod settings;
mod snapshot;
mod table;

pub(crate) use answers::{conns, general, items, latency, sizes, slabs};
pub(crate) use metrics::RequestCounts;
pub(crate) use settings::settings;
pub(crate) use table::{Traffic, WorkerCounters};

use std::sync::Mutex;
use std::time::Duration;

use keyway_cache::{Ages, Cache, Counters, Info, Latencies, Latency};
use keyway_http::Kind;
use serde_json::{Map, json};

use crate::shared::Arrivals;

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
}

/// A row of the table.
struct Row {
    stat: &'static str,
    is_in_stats: fn(&Snapshot) -> bool,
    metric: &'static str,
    is_in_metrics: fn(&Snapshot) -> bool,
    kind: Kind,
    help: &'static str,
    value: fn(&Snapshot) -> Value,
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

/// What was counted of the misses of a prefix that are held: name and count.
#[derive(Clone, Debug)]
struct HoldNumbers {
    prefix: String,
    counts: [(&'static str, u64); 3],
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
    holds: Vec<HoldNumbers>,
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

/// The kernel door's numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct KernelNumbers {
    /// packets by what the program did with them
    pub(crate) verdicts: Vec<(&'static str, u64)>,
    /// copies held; copies made; copies made again after changes
    pub(crate) copies: u64,
    pub(crate) copied: u64,
    pub(crate) renewed: u64,
    /// stripes of dead writers that the program can serve again
    pub(crate) mended: u64,
    /// interfaces that the program is on; how many times it was attached again
    pub(crate) interfaces: u64,
    pub(crate) reattached: u64,
    /// CPU time of the programs, by protocol, estimated from one run in 256
    pub(crate) cpu_time: Vec<(&'static str, Duration)>,
    /// TCP connections that the program may answer; `None`: it was loaded without TCP
    pub(crate) enrolled: Option<EnrolledNumbers>,
}

/// How many TCP connections the kernel door may answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct EnrolledNumbers {
    /// since the start; now
    pub(crate) total: u64,
    pub(crate) current: u64,
    /// those that could not be enrolled
    pub(crate) failures: u64,
}

impl KernelNumbers {
    /// Answers of the program: datagrams, and keys of requests on TCP.
    pub(crate) fn hits(&self) -> u64 {
        self.hits_by_protocol().iter().sum()
    }

    /// Answers of the program on UDP (datagrams) and on TCP (keys).
    pub(crate) fn hits_by_protocol(&self) -> [u64; 2] {
        ["hits", "tcp_hits"].map(|name| {
            let hits = self.verdicts.iter().find(|(word, _)| *word == name);
            hits.map_or(0, |(_, count)| *count)
        })
    }
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

impl Snapshot {
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
