//! The page `/metrics`: the table, and the metrics with labels.
//!
//! Names that start with `memcached_` are those of prometheus/memcached_exporter, and so are their labels and meanings: a dashboard for a
//! memcached with that exporter shows this server. Names that start with `keyway_` are this server's own. `docs/metrics.md` lists all; a test
//! compares the list with what is written here.
//!
//! One difference: the exporter calls the time since the start a counter. OpenMetrics demands that a counter's name ends in `_total`, so here it
//! is a gauge of the same name.

use std::collections::BTreeMap;
use std::time::Duration;

use keyway_cache::Counters;
use keyway_cache::server::latency::{BUCKETS, bucket_start_ns};
use keyway_http::Kind::{Counter, Gauge, Histogram};
use keyway_http::{Exposition, Format};

use super::table::{KERNEL, KERNEL_TCP, PROCESS, REQUESTS, STORE};
use super::{CHUNK_SIZE, CLASS, Details, Row, Snapshot};
use crate::config::{KEYWAY_VERSION, PROTOCOL_VERSION};

/// States of the region at its place.
const REGION_STATES: [&str; 4] = ["in_place", "removed", "replaced", "unknown"];

/// Requests that the HTTP port has answered so far, by path and status.
pub(crate) type RequestCounts = BTreeMap<(&'static str, u16), u64>;

impl Snapshot {
    /// The page `/metrics`.
    pub(crate) fn metrics(&self, details: &Details, requests: &RequestCounts, format: Format) -> Vec<u8> {
        let mut page = Exposition::new(format);
        write(self, details, requests, &mut page);
        page.end()
    }
}

/// Writes all metrics.
fn write(s: &Snapshot, details: &Details, requests: &RequestCounts, page: &mut Exposition) {
    write_rows(PROCESS, s, page);
    versions(page);
    write_rows(REQUESTS, s, page);
    commands_by_result(s, page);
    write_rows(STORE, s, page);
    region(s, details, page);
    class(s, details, page);
    doors(s, details, page);
    latencies(details, page);
    holds(s, page);
    kernel(s, page);
    http(requests, page);
}

fn write_rows(rows: &[Row], s: &Snapshot, page: &mut Exposition) {
    for row in rows.iter().filter(|row| !row.metric.is_empty() && (row.is_in_metrics)(s)) {
        if let Some(shown) = (row.value)(s).shown() {
            page.family(row.metric, row.kind, row.help).sample(&[], shown);
        }
    }
}

fn versions(page: &mut Exposition) {
    page.family(
        "memcached_version",
        Gauge,
        "Always 1; the label is the memcached whose protocol is spoken",
    )
    .sample(&[("version", PROTOCOL_VERSION)], 1)
    .family("keyway_version", Gauge, "Always 1; the label is Keyway's own version")
    .sample(&[("version", KEYWAY_VERSION)], 1);
}

/// The status of commands: command, status, count. The exporter counts stores with a CAS unique apart from the other stores.
fn commands(c: &Counters) -> [(&'static str, &'static str, u64); 15] {
    let with_cas = c.cas_hits.saturating_add(c.cas_misses).saturating_add(c.cas_badval);
    [
        ("get", "hit", c.get_hits),
        ("get", "miss", c.get_misses),
        ("set", "hit", c.cmd_set.saturating_sub(with_cas)),
        ("delete", "hit", c.delete_hits),
        ("delete", "miss", c.delete_misses),
        ("incr", "hit", c.incr_hits),
        ("incr", "miss", c.incr_misses),
        ("decr", "hit", c.decr_hits),
        ("decr", "miss", c.decr_misses),
        ("cas", "hit", c.cas_hits),
        ("cas", "miss", c.cas_misses),
        ("cas", "badval", c.cas_badval),
        ("touch", "hit", c.touch_hits),
        ("touch", "miss", c.touch_misses),
        ("flush", "hit", c.cmd_flush),
    ]
}

fn commands_by_result(s: &Snapshot, page: &mut Exposition) {
    page.family(
        "memcached_commands_total",
        Counter,
        "Commands of all doors, per key, by result",
    );
    for (command, status, count) in commands(&s.counters) {
        page.sample(&[("command", command), ("status", status)], count);
    }
}

/// The one slab class that is shown, as in `stats slabs` and `stats items`.
fn class(s: &Snapshot, details: &Details, page: &mut Exposition) {
    let number = CLASS.to_string();
    let slab: &[(&str, &str)] = &[("slab", &number)];
    let chunks_per_page = s.info.segment_bytes / CHUNK_SIZE;
    let chunks = s.pages() * chunks_per_page;
    let free_chunks = s.info.segments_free.min(s.pages()) * chunks_per_page;
    for (name, help, value) in [
        ("memcached_slab_chunk_size_bytes", "Alignment of items", CHUNK_SIZE),
        ("memcached_slab_chunks_per_page", "Such units in a segment", chunks_per_page),
        ("memcached_slab_current_pages", "Segments in use and in reserve", s.pages()),
        ("memcached_slab_current_chunks", "Units in all segments", chunks),
        ("memcached_slab_chunks_used", "Units in segments in use", chunks - free_chunks),
        ("memcached_slab_chunks_free", "Units in free segments", free_chunks),
    ] {
        page.family(name, Gauge, help).sample(slab, value);
    }
    class_commands(s, &number, page);
    // As `stats items`, which is empty without items.
    if s.counters.curr_items > 0 || s.counters.total_items > 0 {
        class_items(s, details, &number, page);
    }
}

fn class_commands(s: &Snapshot, number: &str, page: &mut Exposition) {
    let c = &s.counters;
    page.family(
        "memcached_slab_commands_total",
        Counter,
        "Commands of all doors that found an item, and badval",
    );
    let with_cas = c.cas_hits.saturating_add(c.cas_badval);
    for (command, status, count) in [
        ("get", "hit", c.get_hits),
        ("set", "hit", c.cmd_set.saturating_sub(with_cas)),
        ("delete", "hit", c.delete_hits),
        ("incr", "hit", c.incr_hits),
        ("decr", "hit", c.decr_hits),
        ("cas", "hit", c.cas_hits),
        ("cas", "badval", c.cas_badval),
        ("touch", "hit", c.touch_hits),
    ] {
        page.sample(&[("slab", number), ("command", command), ("status", status)], count);
    }
}

fn class_items(s: &Snapshot, details: &Details, number: &str, page: &mut Exposition) {
    let c = &s.counters;
    let slab: &[(&str, &str)] = &[("slab", number)];
    let admission_s = u64::from(details.ages.admission_s.unwrap_or(0));
    let main_s = details.ages.main_s.map_or(admission_s, u64::from);
    for (name, help, value) in [
        ("memcached_slab_current_items", "Items in the region", c.curr_items),
        ("memcached_slab_cold_items", "The same: there is one queue", c.curr_items),
        (
            "memcached_slab_mem_requested_bytes",
            "Bytes of items, with their headers",
            c.bytes,
        ),
        (
            "memcached_slab_items_age_seconds",
            "No item of the main pool is older",
            main_s,
        ),
        (
            "memcached_slab_hot_age_seconds",
            "No item of the admission pool is older",
            admission_s,
        ),
    ] {
        page.family(name, Gauge, help).sample(slab, value);
    }
    for (name, help, value) in [
        (
            "memcached_slab_items_evicted_total",
            "Items evicted to make room",
            c.evictions,
        ),
        (
            "memcached_slab_items_evicted_unfetched_total",
            "Of these, items that no client had fetched",
            c.evicted_unfetched,
        ),
        (
            "memcached_slab_items_expired_unfetched_total",
            "Items that expired before a client fetched them, counted when their memory is used again",
            c.expired_unfetched,
        ),
        (
            "memcached_slab_items_outofmemory_total",
            "Stores refused because no memory could be freed",
            c.store_no_memory,
        ),
        (
            "memcached_slab_items_reclaimed_total",
            "Expired or flushed items whose memory was used again",
            c.reclaimed,
        ),
    ] {
        page.family(name, Counter, help).sample(slab, value);
    }
    page.family("memcached_slab_lru_hits_total", Counter, "Hits; there is one queue")
        .sample(&[("slab", number), ("lru", "cold")], c.get_hits);
}

fn doors(s: &Snapshot, details: &Details, page: &mut Exposition) {
    page.family(
        "keyway_door_commands_total",
        Counter,
        "Commands since the server's start, per key, by door: network (clients of this server), library (all other sessions of the region), kernel \
         (answers of the BPF program, which the other metrics do not count)",
    );
    for (door, counters) in [("network", &details.network), ("library", &details.library)] {
        for (command, status, count) in commands(counters) {
            page.sample(&[("door", door), ("command", command), ("status", status)], count);
        }
    }
    if let Some(kernel) = &s.kernel {
        page.sample(&[("door", "kernel"), ("command", "get"), ("status", "hit")], kernel.hits());
    }
    page.family(
        "keyway_processes",
        Gauge,
        "Processes attached to the region for writing, this server included",
    )
    .sample(&[], details.processes)
    .family("keyway_processes_max", Gauge, "Process slots of the region")
    .sample(&[], s.info.processes_max);
}

fn region(s: &Snapshot, details: &Details, page: &mut Exposition) {
    let info = &s.info;
    page.family("keyway_region_state", Gauge, "1 for the state that the region's place is in");
    for state in REGION_STATES {
        page.sample(&[("state", state)], u8::from(state == s.region_state));
    }
    page.family(
        "keyway_segments",
        Gauge,
        "Segments by state: used, free, withdrawn (out of use because of the memory limit)",
    );
    let unused = info.segments_free.saturating_add(info.segments_withdrawn);
    for (state, count) in [
        ("used", info.segments.saturating_sub(unused)),
        ("free", info.segments_free),
        ("withdrawn", info.segments_withdrawn),
    ] {
        page.sample(&[("state", state)], count);
    }
    page.family(
        "keyway_oldest_segment_age_seconds",
        Gauge,
        "Time since the oldest segment in use of a pool was opened; none: the pool is empty",
    );
    for (pool, age_s) in [("admission", details.ages.admission_s), ("main", details.ages.main_s)] {
        if let Some(age_s) = age_s {
            page.sample(&[("pool", pool)], age_s);
        }
    }
}

/// Misses that are held, by prefix.
fn holds(s: &Snapshot, page: &mut Exposition) {
    if s.holds.is_empty() {
        return;
    }
    page.family(
        "keyway_held_misses_total",
        Counter,
        "Misses of keys with a prefix of --hold-misses: claimed by the first client, held for it, and held in vain",
    );
    for holds in &s.holds {
        for (what, count) in &holds.counts {
            page.sample(&[("prefix", holds.prefix.as_str()), ("result", what)], count);
        }
    }
}

fn kernel(s: &Snapshot, page: &mut Exposition) {
    let Some(kernel) = &s.kernel else { return };
    page.family(
        "keyway_kernel_packets_total",
        Counter,
        "Packets that the BPF program has seen, by verdict; it has answered hits, and tcp_hits, which are keys",
    );
    for (verdict, count) in &kernel.verdicts {
        page.sample(&[("verdict", verdict)], count);
    }
    write_rows(KERNEL, s, page);
    page.family(
        "keyway_kernel_cpu_seconds_total",
        Counter,
        "CPU time of the BPF programs, most of it in softirq and in no process, by protocol; estimated from one run in 256",
    );
    for (protocol, time) in &kernel.cpu_time {
        page.sample(&[("protocol", protocol)], decimal(*time));
    }
    write_rows(KERNEL_TCP, s, page);
}

fn http(requests: &RequestCounts, page: &mut Exposition) {
    page.family(
        "keyway_http_requests_total",
        Counter,
        "Requests that this port has answered, by path and status",
    );
    for ((path, status), count) in requests {
        page.sample(&[("path", path), ("status", &status.to_string())], count);
    }
}

fn latencies(details: &Details, page: &mut Exposition) {
    page.family(
        "keyway_latency_seconds",
        Histogram,
        "Time of requests of this region's servers, and of one in 256 calls of the library and answers of the kernel door, by door and verb",
    );
    for (door, verb, latency) in details.latencies.counted() {
        let bounds = (1..BUCKETS).map(|bucket| decimal_ns(bucket_start_ns(bucket)));
        let labels = [("door", door.name()), ("verb", verb.name())];
        page.histogram(
            &labels,
            bounds.zip(latency.counts),
            latency.count(),
            decimal_ns(latency.sum_ns),
        );
    }
}

/// Seconds with six decimals.
fn decimal(time: Duration) -> String {
    format!("{}.{:06}", time.as_secs(), time.subsec_micros())
}

/// Seconds with nine decimals.
fn decimal_ns(ns: u64) -> String {
    format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
}

#[cfg(test)]
mod tests {
    use super::super::{EnrolledNumbers, HoldNumbers, KernelNumbers};
    use super::*;
    use keyway_cache::{Door, Verb};
    use keyway_http::Format;
    use std::collections::BTreeSet;
    use std::path::Path;

    /// The page of a server with everything turned on, so that every metric is written.
    fn everything() -> String {
        let (mut snapshot, mut details) = (Snapshot::default(), Details::default());
        snapshot.counters.curr_items = 1;
        snapshot.region_state = "in_place";
        (snapshot.user_time, snapshot.system_time) = (Some(Duration::ZERO), Some(Duration::ZERO));
        snapshot.udp_sockets = Some(1);
        snapshot.holds = vec![HoldNumbers {
            prefix: "user:".into(),
            counts: [("claimed", 1), ("held", 2), ("in_vain", 3)],
        }];
        snapshot.kernel = Some(KernelNumbers {
            verdicts: vec![("hits", 3), ("misses", 4)],
            cpu_time: vec![("udp", Duration::from_micros(5)), ("tcp", Duration::from_micros(6))],
            enrolled: Some(EnrolledNumbers::default()),
            ..KernelNumbers::default()
        });
        details.latencies.of_mut(Door::Text, Verb::Get).unwrap().counts[5] = 1;
        (details.ages.admission_s, details.ages.main_s) = (Some(1), Some(2));
        page(&snapshot, &details, &[(("/metrics", 200), 1)].into(), Format::Text)
    }

    fn page(snapshot: &Snapshot, details: &Details, requests: &RequestCounts, format: Format) -> String {
        String::from_utf8(snapshot.metrics(details, requests, format)).unwrap()
    }

    /// Name, type, labels and description of every metric.
    fn metrics() -> Vec<[String; 4]> {
        let page = everything();
        let mut metrics: Vec<[String; 4]> = Vec::new();
        for line in page.lines() {
            if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|line| line.split_once(' ')) {
                metrics.push([name.to_owned(), String::new(), String::new(), help.to_owned()]);
                continue;
            }
            let metric = metrics.last_mut().unwrap();
            if let Some((_, kind)) = line.strip_prefix("# TYPE ").and_then(|line| line.split_once(' ')) {
                kind.clone_into(&mut metric[1]);
            } else if metric[2].is_empty()
                && let Some((_, labels)) = line.split_once('{')
            {
                let labels = labels.split("\",").filter_map(|label| label.split_once('='));
                metric[2] = labels.map(|(name, _)| format!("`{name}`")).collect::<Vec<_>>().join(", ");
            }
        }
        metrics
    }

    fn file(name: &str) -> String {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        std::fs::read_to_string(root.join(name)).unwrap()
    }

    #[test]
    fn the_list_in_the_documents_is_complete_and_true() {
        let rows: Vec<String> = metrics()
            .iter()
            .map(|[name, kind, labels, help]| format!("| `{name}` | {kind} | {labels} | {help} |"))
            .collect();
        let document = file("docs/metrics.md");
        let written: Vec<&str> = document
            .lines()
            .filter(|line| line.starts_with("| `memcached_") || line.starts_with("| `keyway_"))
            .collect();
        assert_eq!(written, rows, "docs/metrics.md must have these rows:\n{}", rows.join("\n"));
    }

    #[test]
    fn names_are_as_openmetrics_demands() {
        let mut seen = BTreeSet::new();
        for [name, kind, _, help] in metrics() {
            assert!(seen.insert(name.clone()), "{name} is written twice");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{name}");
            assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{name}");
            assert!(help.len() > 5 && !help.ends_with('.'), "{name}: {help}");
        }
    }

    #[test]
    fn the_dashboard_names_only_metrics_that_there_are_and_has_a_row_for_each_door() {
        let dashboard: serde_json::Value = serde_json::from_str(&file("packaging/grafana.json")).unwrap();
        let known: BTreeSet<String> = metrics().into_iter().map(|[name, ..]| name).collect();
        let mut used = BTreeSet::new();
        let mut rows = Vec::new();
        for panel in dashboard["panels"].as_array().unwrap() {
            if panel["type"] == "row" {
                rows.push(panel["title"].as_str().unwrap());
                continue;
            }
            let targets = panel["targets"].as_array().unwrap();
            assert!(!targets.is_empty(), "{}", panel["title"]);
            for target in targets {
                let expression = target["expr"].as_str().unwrap();
                let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
                let named: Vec<&str> = words
                    .filter(|word| word.starts_with("keyway_") || word.starts_with("memcached_"))
                    .collect();
                assert!(!named.is_empty(), "{expression} names no metric");
                for name in named {
                    assert!(known.contains(name), "{expression}: there is no metric {name}");
                    used.insert(name.to_owned());
                }
            }
        }
        for door in ["Network door", "Library door", "Kernel door"] {
            assert!(rows.contains(&door), "no row {door}: {rows:?}");
        }
        assert!(used.len() > 30, "{used:?}");
    }

    #[test]
    fn stores_with_a_cas_unique_are_counted_apart() {
        let mut counters = Counters::default();
        counters.cmd_set = 10;
        (counters.cas_hits, counters.cas_misses, counters.cas_badval) = (1, 2, 3);
        assert!(commands(&counters).contains(&("set", "hit", 4)));
        assert!(commands(&Counters::default()).iter().all(|(.., count)| *count == 0));
    }

    #[test]
    fn what_is_off_is_left_out() {
        let page = page(
            &Snapshot::default(),
            &Details::default(),
            &RequestCounts::new(),
            Format::OpenMetrics,
        );
        for absent in [
            "keyway_kernel_",
            "keyway_udp_",
            "memcached_slab_current_items",
            "door=\"kernel\"",
        ] {
            assert!(!page.contains(absent), "{absent}");
        }
        assert!(page.ends_with("\n# EOF\n"));
    }
}
