//! The table of all numbers: each is one row, from which `stats`, `/metrics` and the list in `docs/metrics.md` follow.
//!
//! | column | |
//! |---|---|
//! | who counts | `worker`: each worker by itself, in a field of [`WorkerCounters`]; `region`: the sessions of all processes, in a field of [`Counters`](keyway_cache::Counters); `server`: what the closure reads from the [`Snapshot`](super::Snapshot) |
//! | name in `stats` | `""`: it is not there; `name if condition` |
//! | name in `/metrics` | `""`: it is not there; `name if condition` |
//! | kind, description | of the metric; whether a number is a time or a text is its value's |
//!
//! The order is that of `stats`, which is memcached's. Numbers that are shown with labels are written by `metrics`.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use keyway_http::Kind;

use super::{Row, Value};
use crate::config::{KEYWAY_VERSION, PROTOCOL_VERSION};

/// A counter with one writing thread.
#[derive(Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Only for the thread that owns the counter: a plain load and store, no locked instruction.
    pub(crate) fn add(&self, count: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(count), Relaxed);
    }

    #[cfg(test)]
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// A condition of a row: without one it is always shown.
macro_rules! condition {
    () => {
        |_| true
    };
    ($condition:ident) => {
        |s| s.$condition()
    };
}

/// One row of the table.
macro_rules! row {
    (worker $name:ident, $($rest:tt)*) => { row!(server |s| s.traffic.$name.into(), $($rest)*) };
    (region $name:ident, $($rest:tt)*) => { row!(server |s| s.counters.$name.into(), $($rest)*) };
    (
        server $value:expr,
        $stat:literal $(if $in_stats:ident)?, $metric:literal $(if $in_metrics:ident)?, $kind:ident, $help:literal
    ) => {
        Row {
            stat: $stat,
            is_in_stats: condition!($($in_stats)?),
            metric: $metric,
            is_in_metrics: condition!($($in_metrics)?),
            kind: Kind::$kind,
            help: $help,
            value: $value,
        }
    };
}

/// A part of the table.
macro_rules! rows {
    ($(#[$doc:meta])* $name:ident: $([$($row:tt)*])*) => {
        $(#[$doc])*
        pub(super) static $name: &[Row] = &[$(row!($($row)*)),*];
    };
}

/// The counters of the rows that say `worker`.
macro_rules! worker_counters {
    (($($name:ident: $help:literal)*)) => {
        /// Counters that one worker writes and all threads read.
        #[derive(Default)]
        pub(crate) struct WorkerCounters {
            $(#[doc = $help] pub(crate) $name: Counter,)*
        }

        /// The workers' counters, summed.
        #[derive(Clone, Copy, Debug, Default)]
        pub(crate) struct Traffic {
            $(#[doc = $help] pub(super) $name: u64,)*
        }

        impl Traffic {
            /// What these workers have counted, together.
            pub(crate) fn sum<'a>(workers: impl Iterator<Item = &'a WorkerCounters>) -> Self {
                workers.fold(Self::default(), |sum, worker| Self {
                    $($name: sum.$name + worker.$name.0.load(Relaxed),)*
                })
            }

            /// What was counted since `earlier`.
            pub(super) fn since(&self, earlier: &Self) -> Self {
                Self { $($name: self.$name - earlier.$name,)* }
            }
        }
    };
    (($($done:tt)*) [worker $name:ident, $stat:literal $(if $s:ident)?, $metric:literal $(if $m:ident)?, $kind:ident, $help:literal] $($rest:tt)*) => {
        worker_counters!(($($done)* $name: $help) $($rest)*);
    };
    (($($done:tt)*) [$($other:tt)*] $($rest:tt)*) => { worker_counters!(($($done)*) $($rest)*); };
}

/// A part of the table that has rows of workers.
macro_rules! rows_with_workers {
    ($(#[$doc:meta])* $name:ident: $($rows:tt)*) => {
        rows!($(#[$doc])* $name: $($rows)*);
        worker_counters!(() $($rows)*);
    };
}

impl Traffic {
    /// Bytes read and written.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        (self.bytes_read, self.bytes_written)
    }
}

rows! {
    /// The process and its connections.
    PROCESS:
    [server |_| Value::Number(1), "", "memcached_up", Gauge, "1: the server answers"]
    [server |_| u64::from(std::process::id()).into(), "pid", "", Gauge, ""]
    [server |s| u64::from(s.uptime_s).into(), "uptime", "memcached_uptime_seconds", Gauge, "Time since the server's start"]
    [server |s| s.unix_time.as_secs().into(), "time", "memcached_time_seconds", Gauge, "Unix time of the server's clock"]
    [server |_| Value::Text(PROTOCOL_VERSION), "version", "", Gauge, ""]
    [server |_| Value::Text(KEYWAY_VERSION), "keyway_version", "", Gauge, ""]
    [server |_| u64::from(usize::BITS).into(), "pointer_size", "", Gauge, ""]
    [server |s| s.user_time.map_or(Value::None, Value::Time), "rusage_user", "memcached_process_user_cpu_seconds_total", Counter, "CPU time of the server in user mode"]
    [server |s| s.system_time.map_or(Value::None, Value::Time), "rusage_system", "memcached_process_system_cpu_seconds_total", Counter, "CPU time of the server in the kernel"]
    [server |s| s.connections.max.into(), "max_connections", "memcached_max_connections", Gauge, "Most connections at a time (-c)"]
    [server |s| s.connections.current.into(), "curr_connections", "memcached_current_connections", Gauge, "Open connections; each UDP socket counts as one"]
    [server |s| s.connections.arrivals.total.into(), "total_connections", "memcached_connections_total", Counter, "Connections accepted"]
    [server |s| s.connections.arrivals.rejected.into(), "rejected_connections", "memcached_connections_rejected_total", Counter, "Connections refused because there were too many (-c)"]
    [server |s| s.connections.current.into(), "connection_structures", "", Gauge, ""]
    [server |s| u64::from(s.connections.accepting).into(), "accepting_conns", "memcached_accepting_connections", Gauge, "1: connections are accepted"]
    [server |s| s.connections.arrivals.disabled_count.into(), "listen_disabled_num", "memcached_connections_listener_disabled_total", Counter, "Times that no connection was accepted because there were too many or no descriptor was left"]
    [server |s| s.connections.arrivals.disabled_us.into(), "time_in_listen_disabled_us", "", Counter, ""]
    [server |s| Value::Time(Duration::from_micros(s.connections.arrivals.disabled_us)), "", "keyway_listener_disabled_seconds_total", Counter, "Time during which that was so"]
    [server |s| s.threads.into(), "threads", "keyway_threads", Gauge, "Worker threads"]
    [server |s| s.connections.memory.into(), "keyway_connection_memory", "keyway_connection_memory_bytes", Gauge, "Memory that connections hold for requests and unread answers"]
    [server |s| s.connections.memory_peak.into(), "keyway_connection_memory_peak", "keyway_connection_memory_peak_bytes", Gauge, "Its highest value since the server's start"]
    [server |s| s.connections.memory_limit.into(), "keyway_connection_memory_limit", "keyway_connection_memory_limit_bytes", Gauge, "Its limit (--connection-memory)"]
    [server |s| s.connections.memory_each_limit.into(), "keyway_connection_memory_each_limit", "keyway_connection_memory_each_limit_bytes", Gauge, "Most that one connection can hold"]
    [server |s| s.connections.paused.into(), "keyway_connections_paused", "keyway_connections_paused_total", Counter, "Times that a connection was not read because this memory was short"]
    [server |s| s.connections.closed_for_memory.into(), "keyway_connections_closed_for_memory", "keyway_connections_closed_for_memory_total", Counter, "Connections closed because this memory was short"]
}

rows_with_workers! {
    /// Requests. Commands on items are in `/metrics` by their results.
    REQUESTS:
    [server |s| s.counters.cmd_get().into(), "cmd_get", "", Counter, ""]
    [region cmd_set, "cmd_set", "", Counter, ""]
    [region cmd_flush, "cmd_flush", "", Counter, ""]
    [server |s| s.counters.cmd_touch().into(), "cmd_touch", "", Counter, ""]
    [worker cmd_meta, "cmd_meta", "keyway_meta_commands_total", Counter, "Meta commands of clients of this server"]
    [region get_hits, "get_hits", "", Counter, ""]
    [region get_misses, "get_misses", "", Counter, ""]
    [region get_expired, "get_expired", "keyway_get_expired_total", Counter, "Gets that missed because the item had expired"]
    [region get_flushed, "get_flushed", "keyway_get_flushed_total", Counter, "Gets that missed because of a flush"]
    [region delete_misses, "delete_misses", "", Counter, ""]
    [region delete_hits, "delete_hits", "", Counter, ""]
    [region incr_misses, "incr_misses", "", Counter, ""]
    [region incr_hits, "incr_hits", "", Counter, ""]
    [region decr_misses, "decr_misses", "", Counter, ""]
    [region decr_hits, "decr_hits", "", Counter, ""]
    [region cas_misses, "cas_misses", "", Counter, ""]
    [region cas_hits, "cas_hits", "", Counter, ""]
    [region cas_badval, "cas_badval", "", Counter, ""]
    [region touch_hits, "touch_hits", "", Counter, ""]
    [region touch_misses, "touch_misses", "", Counter, ""]
    // The decoder refuses most of them before the region sees them.
    [server |s| s.counters.store_too_large.saturating_add(s.traffic.too_large).into(), "store_too_large", "memcached_item_too_large_total", Counter, "Stores refused because the item is too large (-I)"]
    [worker too_large, "", "", Counter, "values that the decoder has refused"]
    [region store_no_memory, "store_no_memory", "memcached_item_no_memory_total", Counter, "Stores refused because no memory could be freed"]
    [worker auth_cmds, "auth_cmds", "keyway_auth_commands_total", Counter, "Logins tried"]
    [worker auth_errors, "auth_errors", "keyway_auth_errors_total", Counter, "Logins with a wrong password"]
    [worker auth_timeouts, "keyway_auth_timeouts", "keyway_auth_timeouts_total", Counter, "Connections closed because they did not log in in time"]
    [worker auth_delays, "keyway_auth_delays", "keyway_auth_delays_total", Counter, "Logins that waited because too many logins of their source had failed"]
    [server |s| s.tls(|tls| tls.new_sessions), "ssl_new_sessions", "", Counter, ""]
    [server |s| s.tls(|tls| tls.handshake_errors), "ssl_handshake_errors", "", Counter, ""]
    [server |s| s.tls(|tls| tls.protocol_errors), "ssl_proto_errors", "", Counter, ""]
    [server |s| s.tls(|tls| tls.age_s), "time_since_server_cert_refresh", "", Gauge, ""]
    [server |s| s.tls.map_or(Value::None, |tls| Value::Signed(tls.days_left)), "keyway_certificate_days_left", "", Gauge, ""]
    [worker idle_kicks, "idle_kicks" if has_idle_timeout, "keyway_idle_kicks_total", Counter, "Connections closed because they were idle for too long (--idle-timeout)"]
    [worker rate_pauses, "keyway_rate_pauses" if has_rates, "keyway_rate_pauses_total", Counter, "Times that a connection waited because its source was above its rate (--max-request-rate)"]
    [worker udp_over_rate, "keyway_udp_over_rate" if has_rates, "keyway_udp_over_rate_total" if has_udp, Counter, "Datagrams dropped because their source was above its rate (--max-request-rate)"]
    [worker bytes_read, "bytes_read", "memcached_read_bytes_total", Counter, "Bytes that clients have sent to the server"]
    [worker bytes_written, "bytes_written", "memcached_written_bytes_total", Counter, "Bytes that the server has sent to clients"]
    [worker conn_yields, "conn_yields", "memcached_connections_yielded_total", Counter, "Turns of a connection that ended because other connections wait"]
    [server |s| s.udp_sockets.map_or(Value::None, Value::from), "", "keyway_udp_sockets", Gauge, "UDP sockets"]
    [worker udp_datagrams, "keyway_udp_datagrams" if has_udp, "keyway_udp_datagrams_total" if has_udp, Counter, "Datagrams received in user space"]
    [worker udp_refused, "keyway_udp_refused" if has_udp, "keyway_udp_refused_total" if has_udp, Counter, "Datagrams ignored because of their source (--udp-allow)"]
    [worker udp_dropped, "keyway_udp_dropped" if has_udp, "keyway_udp_dropped_total" if has_udp, Counter, "Datagrams that hold no complete request"]
    [worker udp_refused_requests, "keyway_udp_refused_requests" if has_udp, "keyway_udp_refused_requests_total" if has_udp, Counter, "Requests that UDP does not allow"]
}

rows! {
    /// The kernel door. Packets by verdict come before these, and its CPU time after them.
    KERNEL:
    [server |s| s.kernel(|k| k.copies), "keyway_kernel_copies", "keyway_kernel_copies", Gauge, "Items of which the program has a copy"]
    [server |s| s.kernel(|k| k.copied), "keyway_kernel_copied", "keyway_kernel_copied_total", Counter, "Copies made"]
    [server |s| s.kernel(|k| k.renewed), "keyway_kernel_renewed", "keyway_kernel_renewed_total", Counter, "Copies made again after a change"]
    [server |s| s.kernel(|k| k.mended), "keyway_kernel_mended", "keyway_kernel_mended_total", Counter, "Parts of the hash space that could be served again after their writer died"]
    [server |s| s.kernel(|k| k.interfaces), "keyway_kernel_interfaces", "keyway_kernel_interfaces", Gauge, "Interfaces that the BPF program is on"]
    [server |s| s.kernel(|k| k.reattached), "keyway_kernel_reattached", "keyway_kernel_reattached_total", Counter, "Times that the program was attached again after its filters had vanished from an interface"]
}

rows! {
    /// The kernel door over TCP.
    KERNEL_TCP:
    [server |s| s.enrolled(|e| e.total), "keyway_kernel_tcp_connections", "keyway_kernel_tcp_connections_total", Counter, "TCP connections that the BPF program may have answered since the server's start"]
    [server |s| s.enrolled(|e| e.current), "keyway_kernel_tcp_curr_connections", "keyway_kernel_tcp_connections", Gauge, "Open TCP connections that the BPF program may answer"]
    [server |s| s.enrolled(|e| e.failures), "keyway_kernel_tcp_failures", "keyway_kernel_tcp_failures_total", Counter, "TCP connections that the BPF program could have answered, but the system or a limit refused it"]
}

rows! {
    /// Watchers, items and the region. memcached's numbers that have no meaning here are 0.
    STORE:
    [server |_| Value::Number(0), "log_worker_dropped", "", Counter, ""]
    [server |s| s.watch.lines.into(), "log_worker_written", "", Counter, ""]
    [server |s| s.watch.skipped.into(), "log_watcher_skipped", "", Counter, ""]
    [server |s| s.watch.sent.into(), "log_watcher_sent", "", Counter, ""]
    [server |s| s.watch.watchers.into(), "log_watchers", "", Gauge, ""]
    [server |s| s.memory_limit.into(), "limit_maxbytes", "memcached_limit_bytes", Gauge, "Memory limit of the region"]
    [server |s| u64::from(s.info.index_buckets.checked_ilog2().unwrap_or(0)).into(), "hash_power_level", "", Gauge, ""]
    [server |s| s.info.index_buckets.into(), "", "keyway_index_buckets", Gauge, "Buckets of the index"]
    [server |s| s.info.index_bytes.into(), "hash_bytes", "keyway_index_bytes", Gauge, "Size of the index"]
    [server |_| Value::Number(0), "hash_is_expanding", "", Gauge, ""]
    [server |_| Value::Number(0), "slab_reassign_running", "", Gauge, ""]
    [region segments_recycled, "slabs_moved", "", Counter, ""]
    [server |_| Value::Number(1), "", "memcached_lru_crawler_enabled", Gauge, "Always 1: expired items are reclaimed in the background"]
    [server |_| Value::Number(0), "lru_crawler_running", "", Gauge, ""]
    [server |_| Value::Number(0), "lru_crawler_starts", "", Counter, ""]
    [server |_| Value::Number(0), "lru_maintainer_juggles", "", Counter, ""]
    [server |_| Value::Number(0), "malloc_fails", "", Counter, ""]
    [region bytes, "bytes", "memcached_current_bytes", Gauge, "Bytes of the items in the region, with their headers"]
    [region curr_items, "curr_items", "memcached_current_items", Gauge, "Items in the region"]
    [region total_items, "total_items", "memcached_items_total", Counter, "Items stored"]
    [server |s| s.info.segments_free.into(), "slab_global_page_pool", "", Gauge, ""]
    [region expired_unfetched, "expired_unfetched", "", Counter, ""]
    [region evicted_unfetched, "evicted_unfetched", "keyway_evicted_unfetched_total", Counter, "Items evicted that no client had fetched"]
    [server |_| Value::Number(0), "evicted_active", "", Counter, ""]
    [region evictions, "evictions", "memcached_items_evicted_total", Counter, "Items evicted to make room"]
    [region reclaimed, "reclaimed", "memcached_items_reclaimed_total", Counter, "Expired or flushed items whose memory was used again"]
    [server |_| Value::Number(0), "crawler_reclaimed", "", Counter, ""]
    [server |_| Value::Number(0), "crawler_items_checked", "", Counter, ""]
    [server |_| Value::Number(0), "lrutail_reflocked", "", Counter, ""]
    [server |_| Value::Number(0), "moves_to_cold", "", Counter, ""]
    [region relocations, "moves_to_warm", "memcached_lru_crawler_moves_to_warm_total", Counter, "Live items copied while their segment was emptied"]
    [server |_| Value::Number(0), "moves_within_lru", "", Counter, ""]
    [server |_| Value::Number(0), "direct_reclaims", "memcached_direct_reclaims_total", Counter, "Always 0: see keyway_reserve_empty_total"]
    [server |_| Value::Number(0), "lru_bumps_dropped", "", Counter, ""]
    [server |s| (s.pages() * s.info.segment_bytes).into(), "", "memcached_malloced_bytes", Gauge, "Memory of the segments in use and in reserve"]
    [server |s| Value::Signed(s.info.created_unix_s), "", "keyway_region_created_seconds", Gauge, "Unix time at which the region was made"]
    [server |s| s.info.segment_bytes.into(), "", "keyway_segment_bytes", Gauge, "Size of a segment"]
    // By state in `/metrics`.
    [server |s| s.info.segments.into(), "keyway_segments", "", Gauge, ""]
    [server |s| s.info.segments_free.into(), "keyway_segments_free", "", Gauge, ""]
    [server |s| s.info.segments_withdrawn.into(), "keyway_segments_withdrawn", "", Gauge, ""]
    [server |s| s.info.segments_given_back.into(), "keyway_segments_given_back", "keyway_segments_given_back", Gauge, "Withdrawn segments whose memory the system has back"]
    [region segments_recycled, "keyway_segments_recycled", "keyway_segments_recycled_total", Counter, "Segments emptied and used again"]
    [region relocations, "keyway_relocations", "keyway_relocations_total", Counter, "Live items copied while their segment was emptied"]
    [region purged, "keyway_items_purged", "keyway_items_purged_total", Counter, "Items in segments that were emptied, dead ones included"]
    [region ghost_hits, "keyway_ghost_hits", "keyway_ghost_hits_total", Counter, "Keys stored again soon after they were evicted"]
    [region reserve_empty, "keyway_reserve_empty", "keyway_reserve_empty_total", Counter, "Stores that found no free segment and emptied one themselves"]
    [region splits, "keyway_splits", "keyway_splits_total", Counter, "Buckets split while the index grew"]
    [server |s| s.info.sessions.into(), "keyway_sessions", "keyway_sessions", Gauge, "Threads attached to the region, of all processes"]
    [server |s| s.info.sessions_max.into(), "keyway_sessions_max", "keyway_sessions_max", Gauge, "Thread slots of the region"]
    [server |s| s.info.sessions_of_servers.into(), "keyway_sessions_of_servers", "keyway_sessions_of_servers", Gauge, "Thread slots that are reserved for servers"]
    [region recoveries, "keyway_recoveries", "keyway_recoveries_total", Counter, "Threads that died while attached, and whose slots were recovered"]
    [region fences, "", "keyway_fences_total", Counter, "Sessions stopped because their process seemed dead"]
    [region corrupt, "keyway_corrupt", "keyway_corrupt_total", Counter, "Damaged words or items found; if not 0, run keyway check"]
    [server |s| Value::Text(s.region_state), "keyway_region_state", "", Gauge, ""]
}
