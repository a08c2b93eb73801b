//! What `keyway top` shows: two readings of a region, and what happened between them.

use std::cmp::Reverse;
use std::time::{Duration, Instant};

use keyway_cache::server::{Attached, Entrance, Seen, USES};
use keyway_cache::{Counters, Door, Latency, Verb};
use keyway_server::size_text;
use serde_json::json;

use super::server::Answered;
use crate::numbers::{age, grouped, number, rate, ratio, time};

/// Calls of the library for each that is measured, on average.
const CALLS_PER_SAMPLE: u64 = 256;

/// A reading.
pub(super) struct Reading {
    pub(super) seen: Seen,
    pub(super) at: Instant,
    /// the commands of the processes, in their order
    commands: Vec<String>,
    /// what the server says, if one is asked
    pub(super) server: Option<Result<Answered, String>>,
}

impl Reading {
    pub(super) fn new(seen: Seen, server: Option<Result<Answered, String>>) -> Self {
        Self {
            commands: seen.processes.iter().map(command).collect(),
            seen,
            at: Instant::now(),
            server,
        }
    }
}

/// The name of a process's program.
fn command(process: &Attached) -> String {
    let name = std::fs::read_to_string(format!("/proc/{}/comm", process.pid)).ok();
    let Some(name) = name.filter(|_| process.is_known_here) else {
        return "?".to_owned();
    };
    // A process chooses its name: it does not write to this terminal.
    let shown = |c: char| if c.is_ascii_graphic() || c == ' ' { c } else { '?' };
    name.trim_end_matches('\n').chars().map(shown).collect()
}

/// By what processes are sorted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Order {
    #[default]
    Rate,
    Protects,
    Pid,
    Command,
}

impl Order {
    pub(super) fn next(self) -> Self {
        match self {
            Self::Rate => Self::Protects,
            Self::Protects => Self::Pid,
            Self::Pid => Self::Command,
            Self::Command => Self::Rate,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Rate => "rate",
            Self::Protects => "protects",
            Self::Pid => "pid",
            Self::Command => "command",
        }
    }
}

/// A row of a door and verb.
struct DoorRow<'r> {
    door: Door,
    verb: Verb,
    per_s: f64,
    /// since the region was made
    all: &'r Latency,
    /// between the two readings
    between: Latency,
}

/// A row of a process.
struct ProcessRow<'r> {
    process: &'r Attached,
    command: &'r str,
    per_s: f64,
    in_call: usize,
    protects: usize,
    fenced: usize,
}

/// Two readings, the later one first.
pub(super) struct View<'r> {
    now: &'r Reading,
    before: &'r Reading,
    elapsed: Duration,
}

impl<'r> View<'r> {
    pub(super) fn new(now: &'r Reading, before: &'r Reading) -> Self {
        Self {
            now,
            before,
            elapsed: now.at.saturating_duration_since(before.at),
        }
    }

    fn per_s(&self, count: u64) -> f64 {
        let elapsed_s = self.elapsed.as_secs_f64();
        if elapsed_s > 0.0 { number(count) / elapsed_s } else { 0.0 }
    }

    /// What was counted between the readings; never less than nothing.
    fn counted(&self, of: impl Fn(&Counters) -> u64) -> u64 {
        of(&self.now.seen.counters).saturating_sub(of(&self.before.seen.counters))
    }

    fn doors(&self) -> Vec<DoorRow<'r>> {
        let row = |(door, verb, all): (Door, Verb, &'r Latency)| {
            let between = all.since(self.before.seen.latencies.of(door, verb));
            let each = if door.is_sampled() { CALLS_PER_SAMPLE } else { 1 };
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

    fn processes(&self, order: Order) -> Vec<ProcessRow<'r>> {
        let earlier = self.before.seen.processes.iter().flat_map(|process| &process.threads);
        let earlier: Vec<_> = earlier.map(|thread| (thread.tenancy, operations(&thread.counters))).collect();
        let row = |(process, command): (&'r Attached, &'r String)| {
            let of_thread = |thread: &keyway_cache::server::Seated| {
                // A thread that came in between has counted since then, but its slot may have counted before.
                let before = earlier.iter().find(|(tenancy, _)| *tenancy == thread.tenancy)?.1;
                Some(operations(&thread.counters).saturating_sub(before))
            };
            ProcessRow {
                process,
                command,
                per_s: self.per_s(process.threads.iter().filter_map(of_thread).sum()),
                in_call: process.threads.iter().filter(|thread| thread.is_writing).count(),
                protects: process.threads.iter().map(|thread| thread.protects).sum(),
                fenced: process.threads.iter().filter(|thread| thread.is_fenced).count(),
            }
        };
        let seen = &self.now.seen.processes;
        let mut rows: Vec<_> = seen.iter().zip(&self.now.commands).map(row).collect();
        match order {
            Order::Rate => rows.sort_by(|a, b| b.per_s.total_cmp(&a.per_s)),
            Order::Protects => rows.sort_by_key(|row| Reverse(row.protects)),
            Order::Pid => rows.sort_by_key(|row| row.process.pid),
            Order::Command => rows.sort_by_key(|row| row.command),
        }
        rows
    }

    /// The lines of a screen, and which of them are headings. `filter`: show only processes, doors and verbs that contain it.
    pub(super) fn lines(&self, place: &str, order: Order, filter: &str) -> (Vec<String>, Vec<usize>) {
        let seen = &self.now.seen;
        let c = &seen.counters;
        let (hits, misses) = (self.counted(|c| c.get_hits), self.counted(|c| c.get_misses));
        let used: u64 = seen.segments.iter().skip(1).sum::<u64>() - seen.segments.last().unwrap_or(&0);
        let all = used + seen.segments.first().unwrap_or(&0);
        let mut lines = vec![
            format!("keyway top  {place}"),
            format!(
                "{} items in {}; memory {}, segments in use {} of {all} of {}",
                grouped(c.curr_items),
                size_text(c.bytes),
                size_text(seen.limit_bytes),
                used,
                size_text(seen.segment_bytes),
            ),
            format!(
                "hit ratio {} now, {} since the region was made; gets {}/s, sets {}/s",
                ratio(hits, misses),
                ratio(c.get_hits, c.get_misses),
                rate(self.per_s(self.counted(|c| c.cmd_get))),
                rate(self.per_s(self.counted(|c| c.cmd_set))),
            ),
            format!(
                "evictions {}/s, of these {}/s never read; oldest item: of the admission pool {}, of the main pool {}",
                rate(self.per_s(self.counted(|c| c.evictions))),
                rate(self.per_s(self.counted(|c| c.evicted_unfetched))),
                age(seen.ages.admission_s),
                age(seen.ages.main_s),
            ),
        ];
        let uses = USES.iter().zip(seen.segments).filter(|(_, count)| *count > 0);
        let uses: Vec<String> = uses.map(|(name, count)| format!("{name} {count}")).collect();
        lines.push(format!("segments: {}", uses.join(", ")));
        match &self.now.server {
            Some(Ok(said)) => lines.push(format!(
                "server {}: {} connections, {} threads, up {}",
                said.pid,
                said.connections,
                said.threads,
                age(u32::try_from(said.uptime_s).ok())
            )),
            Some(Err(why)) => lines.push(format!("server: {why}")),
            None => {}
        }
        lines.push(String::new());
        let mut headings = vec![lines.len()];
        lines.push(format!(
            "{:<9} {:<11} {:>13} {:>10} {:>10} {:>10}",
            "DOOR", "VERB", "PER SECOND", "p50", "p99", "p99.9"
        ));
        let is_wanted = |texts: &[&str]| texts.iter().any(|text| text.to_lowercase().contains(&filter.to_lowercase()));
        for row in self.doors() {
            let (door, verb) = (row.door.name(), row.verb.name());
            if is_wanted(&[door, verb]) {
                let about = if row.door.is_sampled() { "~" } else { "" };
                lines.push(format!(
                    "{door:<9} {verb:<11} {:>13} {:>10} {:>10} {:>10}",
                    format!("{about}{}", rate(row.per_s)),
                    time(row.between.quantile_ns(500)),
                    time(row.between.quantile_ns(990)),
                    time(row.between.quantile_ns(999)),
                ));
            }
        }
        lines.push(String::new());
        headings.push(lines.len());
        lines.push(format!(
            "{:>8} {:<16} {:<8} {:>7} {:>12} {:>7} {:>8} {:>7}",
            "PID", "COMMAND", "DOOR", "THREADS", "PER SECOND", "IN CALL", "PROTECTS", "FENCED"
        ));
        for row in self.processes(order) {
            let (pid, door) = (row.process.pid.to_string(), door_of(row.process.entrance));
            if is_wanted(&[&pid, row.command, door]) {
                lines.push(format!(
                    "{pid:>8} {:<16} {door:<8} {:>7} {:>12} {:>7} {:>8} {:>7}",
                    row.command,
                    row.process.threads.len(),
                    rate(row.per_s),
                    row.in_call,
                    row.protects,
                    row.fenced
                ));
            }
        }
        (lines, headings)
    }

    /// All numbers, for scripts.
    pub(super) fn json(&self, place: &str, order: Order) -> serde_json::Value {
        let seen = &self.now.seen;
        let counters: serde_json::Map<_, _> = seen
            .counters
            .named()
            .into_iter()
            .map(|(name, count)| (name.to_owned(), count.into()))
            .collect();
        let segments: serde_json::Map<_, _> = USES
            .iter()
            .zip(seen.segments)
            .map(|(name, count)| ((*name).to_owned(), count.into()))
            .collect();
        let doors: Vec<_> = self
            .doors()
            .iter()
            .map(|row| {
                json!({
                    "door": row.door.name(),
                    "verb": row.verb.name(),
                    "is_sampled": row.door.is_sampled(),
                    "measured": row.all.count(),
                    "mean_ns": row.all.sum_ns / row.all.count().max(1),
                    "p50_ns": row.all.quantile_ns(500),
                    "p99_ns": row.all.quantile_ns(990),
                    "p999_ns": row.all.quantile_ns(999),
                    "per_second": row.per_s,
                })
            })
            .collect();
        let processes: Vec<_> = self
            .processes(order)
            .iter()
            .map(|row| {
                json!({
                    "pid": row.process.pid,
                    "command": row.command,
                    "door": door_of(row.process.entrance),
                    "since_unix_s": row.process.since_unix_s,
                    "threads": row.process.threads.len(),
                    "per_second": row.per_s,
                    "in_call": row.in_call,
                    "protects": row.protects,
                    "fenced": row.fenced,
                })
            })
            .collect();
        let mut all = json!({
            "place": place,
            "seconds": self.elapsed.as_secs_f64(),
            "created_unix_s": seen.created_unix_s,
            "limit_bytes": seen.limit_bytes,
            "segment_bytes": seen.segment_bytes,
            "segments": segments,
            "admission_age_s": seen.ages.admission_s,
            "main_age_s": seen.ages.main_s,
            "counters": counters,
            "doors": doors,
            "processes": processes,
        });
        if let Some(Ok(said)) = &self.now.server
            && let Some(all) = all.as_object_mut()
        {
            let server = json!({
                "pid": said.pid, "connections": said.connections, "threads": said.threads, "uptime_s": said.uptime_s,
            });
            all.insert("server".to_owned(), server);
        }
        all
    }
}

/// Operations that a thread has counted.
fn operations(c: &Counters) -> u64 {
    let counts = [
        c.cmd_get,
        c.cmd_set,
        c.cmd_touch,
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

fn door_of(entrance: Entrance) -> &'static str {
    match entrance {
        Entrance::Library => "library",
        Entrance::DropIn => "drop_in",
        Entrance::Server => "server",
    }
}
