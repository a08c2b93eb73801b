//! What `keyway top` shows: two readings of a region, and what happened between them.

use keyway_cache::server::USES;
use keyway_cache::{Hot, HotBy, HotCounts};
use keyway_server::overview::{Order, Reading, View, door_of};
use keyway_server::size_text;
use serde_json::json;

use super::server::Answered;
use crate::numbers::{age, grouped, rate, ratio, time};

/// A look at a region.
pub(super) struct Looked {
    pub(super) region: Reading,
    pub(super) hot: HotCounts,
    /// what the server says, if one is asked
    pub(super) server: Option<Result<Answered, String>>,
}

/// By what keys are hot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kind(pub(super) HotBy);

impl Default for Kind {
    fn default() -> Self {
        Self(HotBy::Gets)
    }
}

impl Kind {
    /// The kind after this one, in the order of keys.
    pub(super) fn next(self) -> Self {
        Self(match self.0 {
            HotBy::Gets => HotBy::Sets,
            HotBy::Sets => HotBy::Bytes,
            HotBy::Bytes => HotBy::Gets,
        })
    }

    fn name(self) -> &'static str {
        match self.0 {
            HotBy::Gets => "GETS",
            HotBy::Sets => "SETS",
            HotBy::Bytes => "BYTES",
        }
    }
}

/// The hottest keys between two looks, each as it is shown.
pub(super) struct Hottest {
    pub(super) by: HotBy,
    pub(super) seconds: f64,
    pub(super) keys: Vec<(String, Hot)>,
}

/// The order after this one, in the order of keys.
pub(super) fn next(order: Order) -> Order {
    match order {
        Order::Rate => Order::Protects,
        Order::Protects => Order::Pid,
        Order::Pid => Order::Command,
        Order::Command => Order::Rate,
    }
}

/// The name of an order.
pub(super) fn name(order: Order) -> &'static str {
    match order {
        Order::Rate => "rate",
        Order::Protects => "protects",
        Order::Pid => "pid",
        Order::Command => "command",
    }
}

/// The lines of a screen, and which of them are headings. `filter`: show only processes, doors and verbs that contain it.
pub(super) fn lines(
    view: &View<'_>,
    looked: &Looked,
    hot: &Hottest,
    place: &str,
    order: Order,
    filter: &str,
) -> (Vec<String>, Vec<usize>) {
    let seen = &looked.region.seen;
    let c = &seen.counters;
    let (hits, misses) = (view.counted(|c| c.get_hits), view.counted(|c| c.get_misses));
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
            rate(view.per_s(view.counted(|c| c.cmd_get()))),
            rate(view.per_s(view.counted(|c| c.cmd_set))),
        ),
        format!(
            "evictions {}/s, of these {}/s never read; oldest item: of the admission pool {}, of the main pool {}",
            rate(view.per_s(view.counted(|c| c.evictions))),
            rate(view.per_s(view.counted(|c| c.evicted_unfetched))),
            age(seen.ages.admission_s),
            age(seen.ages.main_s),
        ),
    ];
    let uses = USES.iter().zip(seen.segments).filter(|(_, count)| *count > 0);
    let uses: Vec<String> = uses.map(|(name, count)| format!("{name} {count}")).collect();
    lines.push(format!("segments: {}", uses.join(", ")));
    match &looked.server {
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
    for row in view.doors() {
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
    let by = Kind(hot.by).name();
    lines.push(format!(
        "{:>17} {:>14} {:>14}  {}",
        format!("{by} PER SECOND"),
        "AT LEAST",
        "AT MOST",
        "HOTTEST KEYS"
    ));
    let per_s = |count: u64| rate(if hot.seconds > 0.0 { number(count) / hot.seconds } else { 0.0 });
    for (key, found) in hot.keys.iter().filter(|(key, _)| is_wanted(&[key])) {
        let [about, least, most] = [found.estimate, found.at_least, found.at_most].map(per_s);
        lines.push(format!("{:>17} {least:>14} {most:>14}  {key}", format!("~{about}")));
    }
    lines.push(String::new());
    headings.push(lines.len());
    lines.push(format!(
        "{:>8} {:<16} {:<8} {:>7} {:>12} {:>7} {:>8} {:>7}",
        "PID", "COMMAND", "DOOR", "THREADS", "PER SECOND", "IN CALL", "PROTECTS", "FENCED"
    ));
    for row in view.processes(order) {
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
pub(super) fn json(view: &View<'_>, looked: &Looked, place: &str, order: Order, hot: serde_json::Value) -> serde_json::Value {
    let mut all = view.json(order);
    all.insert("hot".to_owned(), hot);
    all.insert("place".to_owned(), place.into());
    if let Some(Ok(said)) = &looked.server {
        let server = json!({
            "pid": said.pid, "connections": said.connections, "threads": said.threads, "uptime_s": said.uptime_s,
        });
        all.insert("server".to_owned(), server);
    }
    all.into()
}

#[expect(clippy::cast_precision_loss, reason = "for people: 16 digits are enough")]
fn number(count: u64) -> f64 {
    count as f64
}
