//! The metrics: names, descriptions and values.
//!
//! Names that start with `memcached_` are those of prometheus/memcached_exporter, and so are their labels and meanings: a dashboard for a
//! memcached with that exporter shows this server. Names that start with `keyway_` are this server's own. `docs/metrics.md` lists all; a test
//! compares the list with what is written here.
//!
//! One difference: the exporter calls the time since the start a counter. OpenMetrics demands that a counter's name ends in `_total`, so here it
//! is a gauge of the same name.

use std::time::Duration;

use keyway_cache::Counters;
use keyway_cache::server::latency::{BUCKETS, bucket_start_ns};
use keyway_http::{Exposition, Kind};

use super::Snapshot;
use crate::config::{KEYWAY_VERSION, PROTOCOL_VERSION};
use crate::stats::{CHUNK_SIZE, CLASS};
use Kind::{Counter, Gauge, Histogram};

/// States of the region at its place.
const REGION_STATES: [&str; 4] = ["in_place", "removed", "replaced", "unknown"];

/// Writes all metrics.
pub(super) fn write(s: &Snapshot, page: &mut Exposition) {
    server(s, page);
    connections(s, page);
    store(s, page);
    class(s, page);
    doors(s, page);
    latencies(s, page);
    region(s, page);
    memory_of_connections(s, page);
    kernel(s, page);
    http(s, page);
}

/// The status of commands: command, status, count. The exporter counts stores with a CAS unique apart from the other stores.
pub(super) fn commands(c: &Counters) -> [(&'static str, &'static str, u64); 15] {
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

fn server(s: &Snapshot, page: &mut Exposition) {
    page.family("memcached_up", Gauge, "1: the server answers")
        .sample(&[], 1)
        .family("memcached_uptime_seconds", Gauge, "Time since the server's start")
        .sample(&[], s.uptime_s)
        .family("memcached_time_seconds", Gauge, "Unix time of the server's clock")
        .sample(&[], s.unix_time.as_secs())
        .family(
            "memcached_version",
            Gauge,
            "Always 1; the label is the memcached whose protocol is spoken",
        )
        .sample(&[("version", PROTOCOL_VERSION)], 1)
        .family("keyway_version", Gauge, "Always 1; the label is Keyway's own version")
        .sample(&[("version", KEYWAY_VERSION)], 1)
        .family("keyway_threads", Gauge, "Worker threads")
        .sample(&[], s.threads)
        .family(
            "memcached_process_user_cpu_seconds_total",
            Counter,
            "CPU time of the server in user mode",
        )
        .sample(&[], decimal(s.user_time))
        .family(
            "memcached_process_system_cpu_seconds_total",
            Counter,
            "CPU time of the server in the kernel",
        )
        .sample(&[], decimal(s.system_time))
        .family(
            "memcached_read_bytes_total",
            Counter,
            "Bytes that clients have sent to the server",
        )
        .sample(&[], s.traffic.bytes_read)
        .family(
            "memcached_written_bytes_total",
            Counter,
            "Bytes that the server has sent to clients",
        )
        .sample(&[], s.traffic.bytes_written);
}

fn connections(s: &Snapshot, page: &mut Exposition) {
    let c = &s.connections;
    page.family(
        "memcached_current_connections",
        Gauge,
        "Open connections; each UDP socket counts as one",
    )
    .sample(&[], c.current)
    .family("memcached_max_connections", Gauge, "Most connections at a time (-c)")
    .sample(&[], c.max)
    .family("memcached_connections_total", Counter, "Connections accepted")
    .sample(&[], c.total)
    .family(
        "memcached_connections_rejected_total",
        Counter,
        "Connections refused because there were too many (-c)",
    )
    .sample(&[], c.rejected)
    .family(
        "memcached_connections_yielded_total",
        Counter,
        "Turns of a connection that ended because other connections wait",
    )
    .sample(&[], s.traffic.conn_yields)
    .family(
        "memcached_connections_listener_disabled_total",
        Counter,
        "Times that no connection was accepted because there were too many or no descriptor was left",
    )
    .sample(&[], c.disabled_count)
    .family(
        "keyway_listener_disabled_seconds_total",
        Counter,
        "Time during which that was so",
    )
    .sample(&[], decimal(Duration::from_micros(c.disabled_us)))
    .family("memcached_accepting_connections", Gauge, "1: connections are accepted")
    .sample(&[], u8::from(c.accepting))
    .family("keyway_auth_commands_total", Counter, "Logins tried")
    .sample(&[], s.traffic.auth_cmds)
    .family("keyway_auth_errors_total", Counter, "Logins with a wrong password")
    .sample(&[], s.traffic.auth_errors)
    .family(
        "keyway_auth_timeouts_total",
        Counter,
        "Connections closed because they did not log in in time",
    )
    .sample(&[], s.traffic.auth_timeouts)
    .family(
        "keyway_auth_delays_total",
        Counter,
        "Logins that waited because too many logins of their source had failed",
    )
    .sample(&[], s.traffic.auth_delays)
    .family(
        "keyway_idle_kicks_total",
        Counter,
        "Connections closed because they were idle for too long (--idle-timeout)",
    )
    .sample(&[], s.traffic.idle_kicks)
    .family(
        "keyway_rate_pauses_total",
        Counter,
        "Times that a connection waited because its source was above its rate (--max-request-rate)",
    )
    .sample(&[], s.traffic.rate_pauses);
    if let Some(sockets) = s.udp_sockets {
        page.family("keyway_udp_sockets", Gauge, "UDP sockets")
            .sample(&[], sockets)
            .family("keyway_udp_datagrams_total", Counter, "Datagrams received in user space")
            .sample(&[], s.traffic.udp_datagrams)
            .family(
                "keyway_udp_refused_total",
                Counter,
                "Datagrams ignored because of their source (--udp-allow)",
            )
            .sample(&[], s.traffic.udp_refused)
            .family("keyway_udp_dropped_total", Counter, "Datagrams that hold no complete request")
            .sample(&[], s.traffic.udp_dropped)
            .family(
                "keyway_udp_refused_requests_total",
                Counter,
                "Requests that UDP does not allow",
            )
            .sample(&[], s.traffic.udp_refused_requests)
            .family(
                "keyway_udp_over_rate_total",
                Counter,
                "Datagrams dropped because their source was above its rate (--max-request-rate)",
            )
            .sample(&[], s.traffic.udp_over_rate);
    }
}

fn store(s: &Snapshot, page: &mut Exposition) {
    let c = &s.counters;
    page.family(
        "memcached_commands_total",
        Counter,
        "Commands of all doors, per key, by result",
    );
    for (command, status, count) in commands(c) {
        page.sample(&[("command", command), ("status", status)], count);
    }
    page.family("memcached_current_items", Gauge, "Items in the region")
        .sample(&[], c.curr_items)
        .family("memcached_current_bytes", Gauge, "Bytes of these items, with their headers")
        .sample(&[], c.bytes)
        .family("memcached_limit_bytes", Gauge, "Memory limit of the region")
        .sample(&[], s.memory_limit)
        .family("memcached_items_total", Counter, "Items stored")
        .sample(&[], c.total_items)
        .family("memcached_items_evicted_total", Counter, "Items evicted to make room")
        .sample(&[], c.evictions)
        .family(
            "memcached_items_reclaimed_total",
            Counter,
            "Expired or flushed items whose memory was used again",
        )
        .sample(&[], c.reclaimed)
        .family(
            "memcached_item_too_large_total",
            Counter,
            "Stores refused because the item is too large (-I)",
        )
        .sample(&[], too_large(s))
        .family(
            "memcached_item_no_memory_total",
            Counter,
            "Stores refused because no memory could be freed",
        )
        .sample(&[], c.store_no_memory)
        .family(
            "memcached_direct_reclaims_total",
            Counter,
            "Always 0: see keyway_reserve_empty_total",
        )
        .sample(&[], 0)
        .family(
            "memcached_lru_crawler_enabled",
            Gauge,
            "Always 1: expired items are reclaimed in the background",
        )
        .sample(&[], 1)
        .family(
            "memcached_lru_crawler_moves_to_warm_total",
            Counter,
            "Live items copied while their segment was emptied",
        )
        .sample(&[], c.relocations)
        .family(
            "memcached_malloced_bytes",
            Gauge,
            "Memory of the segments in use and in reserve",
        )
        .sample(&[], s.pages() * s.info.segment_bytes)
        .family(
            "keyway_get_expired_total",
            Counter,
            "Gets that missed because the item had expired",
        )
        .sample(&[], c.get_expired)
        .family("keyway_get_flushed_total", Counter, "Gets that missed because of a flush")
        .sample(&[], c.get_flushed)
        .family(
            "keyway_meta_commands_total",
            Counter,
            "Meta commands of clients of this server",
        )
        .sample(&[], s.traffic.cmd_meta);
}

/// The one slab class that is shown, as in `stats slabs` and `stats items`.
fn class(s: &Snapshot, page: &mut Exposition) {
    let c = &s.counters;
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
        page.sample(&[("slab", &number), ("command", command), ("status", status)], count);
    }
    if c.curr_items == 0 && c.total_items == 0 {
        // As `stats items`, which is empty then.
        return;
    }
    let admission_s = u64::from(s.ages.admission_s.unwrap_or(0));
    let main_s = s.ages.main_s.map_or(admission_s, u64::from);
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
        .sample(&[("slab", &number), ("lru", "cold")], c.get_hits);
}

fn doors(s: &Snapshot, page: &mut Exposition) {
    page.family(
        "keyway_door_commands_total",
        Counter,
        "Commands since the server's start, per key, by door: network (clients of this server), library (all other sessions of the region), kernel \
         (answers of the BPF program, which the other metrics do not count)",
    );
    for (door, counters) in [("network", &s.network), ("library", &s.library)] {
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
    .sample(&[], s.processes)
    .family("keyway_processes_max", Gauge, "Process slots of the region")
    .sample(&[], s.info.processes_max)
    .family("keyway_sessions", Gauge, "Threads attached to the region, of all processes")
    .sample(&[], s.info.sessions)
    .family("keyway_sessions_max", Gauge, "Thread slots of the region")
    .sample(&[], s.info.sessions_max)
    .family(
        "keyway_sessions_of_servers",
        Gauge,
        "Thread slots that are reserved for servers",
    )
    .sample(&[], s.info.sessions_of_servers)
    .family(
        "keyway_recoveries_total",
        Counter,
        "Threads that died while attached, and whose slots were recovered",
    )
    .sample(&[], s.counters.recoveries)
    .family(
        "keyway_fences_total",
        Counter,
        "Sessions stopped because their process seemed dead",
    )
    .sample(&[], s.counters.fences);
}

fn region(s: &Snapshot, page: &mut Exposition) {
    let (c, info) = (&s.counters, &s.info);
    page.family("keyway_region_state", Gauge, "1 for the state that the region's place is in");
    for state in REGION_STATES {
        page.sample(&[("state", state)], u8::from(state == s.region_state));
    }
    page.family(
        "keyway_region_created_seconds",
        Gauge,
        "Unix time at which the region was made",
    )
    .sample(&[], info.created_unix_s)
    .family("keyway_segment_bytes", Gauge, "Size of a segment")
    .sample(&[], info.segment_bytes);
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
        "keyway_segments_given_back",
        Gauge,
        "Withdrawn segments whose memory the system has back",
    )
    .sample(&[], info.segments_given_back)
    .family("keyway_index_bytes", Gauge, "Size of the index")
    .sample(&[], info.index_bytes)
    .family("keyway_index_buckets", Gauge, "Buckets of the index")
    .sample(&[], info.index_buckets);
    page.family(
        "keyway_oldest_segment_age_seconds",
        Gauge,
        "Time since the oldest segment in use of a pool was opened; none: the pool is empty",
    );
    for (pool, age_s) in [("admission", s.ages.admission_s), ("main", s.ages.main_s)] {
        if let Some(age_s) = age_s {
            page.sample(&[("pool", pool)], age_s);
        }
    }
    for (name, help, value) in [
        (
            "keyway_segments_recycled_total",
            "Segments emptied and used again",
            c.segments_recycled,
        ),
        (
            "keyway_relocations_total",
            "Live items copied while their segment was emptied",
            c.relocations,
        ),
        (
            "keyway_items_purged_total",
            "Items in segments that were emptied, dead ones included",
            c.purged,
        ),
        (
            "keyway_ghost_hits_total",
            "Keys stored again soon after they were evicted",
            c.ghost_hits,
        ),
        (
            "keyway_reserve_empty_total",
            "Stores that found no free segment and emptied one themselves",
            c.reserve_empty,
        ),
        (
            "keyway_evicted_unfetched_total",
            "Items evicted that no client had fetched",
            c.evicted_unfetched,
        ),
        ("keyway_splits_total", "Buckets split while the index grew", c.splits),
        (
            "keyway_corrupt_total",
            "Damaged words or items found; if not 0, run keyway check",
            c.corrupt,
        ),
    ] {
        page.family(name, Counter, help).sample(&[], value);
    }
}

fn memory_of_connections(s: &Snapshot, page: &mut Exposition) {
    let c = &s.connections;
    page.family(
        "keyway_connection_memory_bytes",
        Gauge,
        "Memory that connections hold for requests and unread answers",
    )
    .sample(&[], c.memory)
    .family(
        "keyway_connection_memory_peak_bytes",
        Gauge,
        "Its highest value since the server's start",
    )
    .sample(&[], c.memory_peak)
    .family(
        "keyway_connection_memory_limit_bytes",
        Gauge,
        "Its limit (--connection-memory)",
    )
    .sample(&[], c.memory_limit)
    .family(
        "keyway_connection_memory_each_limit_bytes",
        Gauge,
        "Most that one connection can hold",
    )
    .sample(&[], c.memory_each_limit)
    .family(
        "keyway_connections_paused_total",
        Counter,
        "Times that a connection was not read because this memory was short",
    )
    .sample(&[], c.paused)
    .family(
        "keyway_connections_closed_for_memory_total",
        Counter,
        "Connections closed because this memory was short",
    )
    .sample(&[], c.closed_for_memory);
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
    page.family("keyway_kernel_copies", Gauge, "Items of which the program has a copy")
        .sample(&[], kernel.copies)
        .family("keyway_kernel_copied_total", Counter, "Copies made")
        .sample(&[], kernel.copied)
        .family("keyway_kernel_renewed_total", Counter, "Copies made again after a change")
        .sample(&[], kernel.renewed)
        .family(
            "keyway_kernel_mended_total",
            Counter,
            "Parts of the hash space that could be served again after their writer died",
        )
        .sample(&[], kernel.mended)
        .family("keyway_kernel_interfaces", Gauge, "Interfaces that the BPF program is on")
        .sample(&[], kernel.interfaces)
        .family(
            "keyway_kernel_reattached_total",
            Counter,
            "Times that the program was attached again after its filters had vanished from an interface",
        )
        .sample(&[], kernel.reattached)
        .family(
            "keyway_kernel_cpu_seconds_total",
            Counter,
            "CPU time of the BPF programs, most of it in softirq and in no process, by protocol; estimated from one run in 256",
        );
    for (protocol, time) in &kernel.cpu_time {
        page.sample(&[("protocol", protocol)], decimal(*time));
    }
    let Some(enrolled) = &kernel.enrolled else { return };
    page.family(
        "keyway_kernel_tcp_connections_total",
        Counter,
        "TCP connections that the BPF program may have answered since the server's start",
    )
    .sample(&[], enrolled.total)
    .family(
        "keyway_kernel_tcp_connections",
        Gauge,
        "Open TCP connections that the BPF program may answer",
    )
    .sample(&[], enrolled.current)
    .family(
        "keyway_kernel_tcp_failures_total",
        Counter,
        "TCP connections that the BPF program could have answered, but the system or a limit refused it",
    )
    .sample(&[], enrolled.failures);
}

fn http(s: &Snapshot, page: &mut Exposition) {
    page.family(
        "keyway_http_requests_total",
        Counter,
        "Requests that this port has answered, by path and status",
    );
    for ((path, status), count) in &s.requests {
        page.sample(&[("path", path), ("status", &status.to_string())], count);
    }
}

fn latencies(s: &Snapshot, page: &mut Exposition) {
    page.family(
        "keyway_latency_seconds",
        Histogram,
        "Time of requests of this region's servers, and of one in 256 calls of the library and answers of the kernel door, by door and verb",
    );
    for (door, verb, latency) in s.latencies.counted() {
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

/// Stores refused for their size: the decoder refuses most of them before the region sees them.
fn too_large(s: &Snapshot) -> u64 {
    s.counters.store_too_large.saturating_add(s.traffic.too_large)
}

/// Seconds with six decimals.
fn decimal(time: Duration) -> String {
    format!("{}.{:06}", time.as_secs(), time.subsec_micros())
}

/// Seconds with nine decimals.
fn decimal_ns(ns: u64) -> String {
    format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
}

impl Snapshot {
    /// Segments in use and in reserve.
    fn pages(&self) -> u64 {
        self.info.segments.saturating_sub(self.info.segments_withdrawn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::{EnrolledNumbers, KernelNumbers};
    use keyway_cache::{Ages, Door, Latencies, Verb};
    use keyway_http::Format;
    use std::collections::BTreeSet;
    use std::path::Path;

    /// A snapshot of a server with everything turned on, so that every metric is written.
    fn everything() -> Snapshot {
        let (mut counters, mut ages) = (Counters::default(), Ages::default());
        let mut latencies = Latencies::default();
        latencies.of_mut(Door::Text, Verb::Get).unwrap().counts[5] = 1;
        counters.curr_items = 1;
        (ages.admission_s, ages.main_s) = (Some(1), Some(2));
        Snapshot {
            counters,
            ages,
            latencies,
            region_state: "in_place",
            udp_sockets: Some(1),
            kernel: Some(KernelNumbers {
                verdicts: vec![("hits", 3), ("misses", 4)],
                cpu_time: vec![("udp", Duration::from_micros(5)), ("tcp", Duration::from_micros(6))],
                enrolled: Some(EnrolledNumbers::default()),
                ..KernelNumbers::default()
            }),
            requests: [(("/metrics", 200), 1)].into(),
            ..Snapshot::default()
        }
    }

    fn page(snapshot: &Snapshot, format: Format) -> String {
        let mut exposition = Exposition::new(format);
        write(snapshot, &mut exposition);
        String::from_utf8(exposition.end()).unwrap()
    }

    /// Name, type, labels and description of every metric.
    fn metrics() -> Vec<[String; 4]> {
        let page = page(&everything(), Format::Text);
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
        let page = page(&Snapshot::default(), Format::OpenMetrics);
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
