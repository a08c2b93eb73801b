//! What happens in a region between two readings of it: for `keyway top`, and for the page of the HTTP port.

use std::cmp::Reverse;
use std::time::{Duration, Instant};

use keyway_cache::server::{Attached, CALLS_PER_SAMPLE, Entrance, Seen, ThreadInUse, USES};
use keyway_cache::{Counters, Door, Latency, Verb};
use serde_json::{Map, Value, json};

/// What was seen of a region, and when.
pub struct Reading {
    /// what was seen
    pub seen: Seen,
    at: Instant,
    /// the commands of the processes, in their order
    commands: Vec<String>,
}

impl From<Seen> for Reading {
    fn from(seen: Seen) -> Self {
        Self {
            commands: seen.processes.iter().map(command).collect(),
            seen,
            at: Instant::now(),
        }
    }
}

impl Reading {
    /// Time since the reading.
    pub fn age(&self) -> Duration {
        self.at.elapsed()
    }
}

/// The name of a process's program.
fn command(process: &Attached) -> String {
    let name = std::fs::read(format!("/proc/{}/comm", process.pid)).ok();
    let Some(name) = name.filter(|_| process.is_known_here) else {
        return "?".to_owned();
    };
    // A process chooses its name, byte by byte.
    let name = name.strip_suffix(b"\n").unwrap_or(&name);
    let shown = |byte: &u8| match byte {
        b' '..=b'~' => char::from(*byte),
        _ => '?',
    };
    name.iter().map(shown).collect()
}

/// By what processes are sorted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    #[default]
    /// operations a second, the most first
    Rate,
    /// segments that it protects, the most first
    Protects,
    /// its number
    Pid,
    /// its command
    Command,
}

/// A row of a door and verb.
pub struct DoorRow<'r> {
    /// the door
    pub door: Door,
    /// the verb
    pub verb: Verb,
    /// operations a second between the two readings; `None`: they are one
    pub per_s: Option<f64>,
    /// since the region was made
    pub all: &'r Latency,
    /// between the two readings
    pub between: Latency,
}

/// A row of a process.
pub struct ProcessRow<'r> {
    /// the process
    pub process: &'r Attached,
    /// the name of its program in printable ASCII; `?` if it cannot be asked for
    pub command: &'r str,
    /// operations a second between the two readings; `None`: they are one, or all of its threads came in between
    pub per_s: Option<f64>,
    /// its threads that are in a call that may change items
    pub in_call: usize,
    /// segments that it keeps from being recycled
    pub protects: usize,
    /// its threads that are suspected to be dead
    pub fenced: usize,
}

impl DoorRow<'_> {
    fn json(&self) -> Value {
        json!({
            "door": self.door.name(),
            "verb": self.verb.name(),
            "is_sampled": self.door.is_sampled(),
            "measured": self.all.count(),
            "mean_ns": self.all.sum_ns / self.all.count().max(1),
            "p50_ns": self.all.quantile_ns(500),
            "p99_ns": self.all.quantile_ns(990),
            "p999_ns": self.all.quantile_ns(999),
            "per_second": self.per_s,
        })
    }
}

impl ProcessRow<'_> {
    fn json(&self) -> Value {
        json!({
            "pid": self.process.pid,
            "command": self.command,
            "door": door_of(self.process.entrance),
            "since_unix_s": self.process.since_unix_s,
            "threads": self.process.threads.len(),
            "per_second": self.per_s,
            "in_call": self.in_call,
            "protects": self.protects,
            "fenced": self.fenced,
        })
    }
}

/// Two readings, the later one first.
pub struct View<'r> {
    now: &'r Reading,
    before: &'r Reading,
    elapsed: Duration,
}

impl<'r> View<'r> {
    /// Both readings are of one region.
    pub fn new(now: &'r Reading, before: &'r Reading) -> Self {
        Self {
            now,
            before,
            elapsed: now.at.saturating_duration_since(before.at),
        }
    }

    /// As a rate, a second. `None`: there is only one reading.
    pub fn per_s(&self, count: u64) -> Option<f64> {
        (!self.elapsed.is_zero()).then(|| number(count) / self.elapsed.as_secs_f64())
    }

    /// What was counted between the readings; never less than nothing.
    pub fn counted(&self, of: impl Fn(&Counters) -> u64) -> u64 {
        of(&self.now.seen.counters).saturating_sub(of(&self.before.seen.counters))
    }

    /// The doors and verbs with an operation.
    pub fn doors(&self) -> Vec<DoorRow<'r>> {
        let row = |(door, verb, all): (Door, Verb, &'r Latency)| {
            let between = all.since(self.before.seen.latencies.of(door, verb));
            let each = if door.is_sampled() { CALLS_PER_SAMPLE.into() } else { 1 };
            DoorRow {
                door,
                verb,
                per_s: self.per_s(between.count().saturating_mul(each)),
                all,
                between,
            }
        };
        self.now.seen.latencies.counted().map(row).collect()
    }

    /// The processes that are attached, with or without a thread.
    pub fn processes(&self, order: Order) -> Vec<ProcessRow<'r>> {
        let earlier = self.before.seen.processes.iter().flat_map(|process| &process.threads);
        let earlier: Vec<_> = earlier.map(|thread| (thread.tenancy, operations(&thread.counters))).collect();
        let row = |(process, command): (&'r Attached, &'r String)| {
            let of_thread = |thread: &ThreadInUse| {
                // A thread that came in between has counted since then, but its slot may have counted before.
                let before = earlier.iter().find(|(tenancy, _)| *tenancy == thread.tenancy)?.1;
                Some(operations(&thread.counters).saturating_sub(before))
            };
            let known: Vec<u64> = process.threads.iter().filter_map(of_thread).collect();
            let is_new = known.is_empty() && !process.threads.is_empty();
            ProcessRow {
                process,
                command,
                per_s: self.per_s(known.iter().sum()).filter(|_| !is_new),
                in_call: process.threads.iter().filter(|thread| thread.is_writing).count(),
                protects: process.threads.iter().map(|thread| thread.protects).sum(),
                fenced: process.threads.iter().filter(|thread| thread.is_fenced).count(),
            }
        };
        let seen = &self.now.seen.processes;
        let mut rows: Vec<_> = seen.iter().zip(&self.now.commands).map(row).collect();
        match order {
            Order::Rate => rows.sort_by(|a, b| b.per_s.unwrap_or(-1.0).total_cmp(&a.per_s.unwrap_or(-1.0))),
            Order::Protects => rows.sort_by_key(|row| Reverse(row.protects)),
            Order::Pid => rows.sort_by_key(|row| row.process.pid),
            Order::Command => rows.sort_by_key(|row| row.command),
        }
        rows
    }

    /// All numbers, for programs.
    pub fn json(&self, order: Order) -> Map<String, Value> {
        let seen = &self.now.seen;
        let counters: Map<_, _> = seen
            .counters
            .named()
            .map(|(name, count)| (name.to_owned(), count.into()))
            .collect();
        let segments: Map<_, _> = USES
            .iter()
            .zip(seen.segments)
            .map(|(name, count)| ((*name).to_owned(), count.into()))
            .collect();
        let doors: Vec<_> = self.doors().iter().map(DoorRow::json).collect();
        let processes: Vec<_> = self.processes(order).iter().map(ProcessRow::json).collect();
        let all = json!({
            "seconds": self.elapsed.as_secs_f64(),
            "created_unix_s": seen.created_unix_s,
            "limit_bytes": seen.limit_bytes,
            "segment_bytes": seen.segment_bytes,
            "segments": segments,
            "segment_map": self.segment_map(),
            "segments_per_part": seen.segments_per_part,
            "admission_age_s": seen.ages.admission_s,
            "main_age_s": seen.ages.main_s,
            "counters": counters,
            "doors": doors,
            "processes": processes,
        });
        match all {
            Value::Object(all) => all,
            _ => Map::new(),
        }
    }

    /// A digit for each part of the region: the use of most of its segments, as an index into [`USES`].
    fn segment_map(&self) -> String {
        let digit = |use_: &u8| char::from_digit((*use_).into(), 10).unwrap_or('0');
        self.now.seen.segment_map.iter().map(digit).collect()
    }
}

/// Operations that have been counted, by key.
pub(crate) fn operations(c: &Counters) -> u64 {
    let counts = [
        c.cmd_get(),
        c.cmd_set,
        c.cmd_touch(),
        c.cmd_flush,
        c.delete_hits,
        c.delete_misses,
        c.incr_hits,
        c.incr_misses,
        c.decr_hits,
        c.decr_misses,
    ];
    counts.into_iter().fold(0, u64::wrapping_add)
}

/// The door of a process in the output of programs.
pub fn door_of(entrance: Entrance) -> &'static str {
    match entrance {
        Entrance::Library => "library",
        Entrance::DropIn => "drop_in",
        Entrance::Server => "server",
    }
}

#[expect(clippy::cast_precision_loss, reason = "for people: 16 digits are enough")]
fn number(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use keyway_cache::server::ServerCache as _;
    use keyway_cache::{Cache, Options, Place};

    use super::*;

    #[test]
    fn a_rate_that_is_not_known_is_none() {
        let options = Options::new().memory(2 << 20);
        let cache = Cache::open(&Place::Memfd, &options).unwrap();
        let look = || Reading::from(cache.look());
        let rates = |now: &Reading, before: &Reading| {
            let view = View::new(now, before);
            let processes = view.processes(Order::Rate);
            (
                view.per_s(7).is_some(),
                processes.iter().map(|row| row.per_s).collect::<Vec<_>>(),
            )
        };
        let first = look();
        let mut session = cache.session().unwrap();
        let mut work = || {
            for _ in 0..1_000 {
                session.set(b"key", b"value", 0).unwrap();
            }
        };
        work();
        let second = look();
        assert_eq!(rates(&second, &second), (false, vec![None]), "the first look");
        assert_eq!(rates(&second, &first), (true, vec![None]), "a thread that came in between");
        let json = View::new(&second, &first).json(Order::Rate);
        assert_eq!(json["processes"][0]["per_second"], Value::Null);
        work();
        let third = look();
        let (_, rates) = rates(&third, &second);
        assert!(matches!(rates[..], [Some(rate)] if rate > 0.0), "{rates:?}");
    }
}
