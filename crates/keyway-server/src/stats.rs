//! The answers to `stats`, with memcached's names, for exporters and `memcached-tool`.
//!
//! Counts are the region's, summed over every process and door since the region was made, minus their values when this server
//! started or executed the last `stats reset`. Keyway has no slab classes. It shows one, [`CLASS`]: its pages are the region's
//! segments, and its chunks are the 8 bytes that items are aligned to. memcached's names that have no meaning here are shown
//! as 0 if tools need them, and left out otherwise.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use keyway_cache::{Cache, Counters, Info, Latencies, Latency};
use keyway_proto::Protocol;
use keyway_proto::reply::{self, stat};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;

use crate::config::{KEYWAY_VERSION, PROTOCOL_VERSION};
use crate::connection::STATES;
use crate::hour::Note;
use crate::shared::{Baseline, Peer, PeerAddress, Shared, Traffic, lock, unix_time};
use crate::{census, file_watch};

/// The number of the one slab class that is shown.
pub(crate) const CLASS: u32 = 1;
/// Items are aligned to this many bytes.
pub(crate) const CHUNK_SIZE: u64 = 8;

/// The counts up to now.
pub(crate) fn baseline(shared: &Shared, cache: &Cache) -> Baseline {
    let arrivals = &shared.arrivals;
    Baseline {
        counters: shared.census.counters(cache),
        traffic: shared.traffic(),
        total_connections: arrivals.total.load(Relaxed),
        rejected: arrivals.rejected.load(Relaxed),
        disabled_count: arrivals.disabled_count.load(Relaxed),
        disabled_us: arrivals.disabled_us.load(Relaxed),
    }
}

/// What was counted since then, without the commands of the readiness probe.
fn counted(shared: &Shared, cache: &Cache) -> Counters {
    let base = lock(&shared.baseline).counters;
    census::since(&shared.census.counters(cache), &base)
}

/// `stats`
pub(crate) fn general(shared: &Shared, cache: &Cache, out: &mut Vec<u8>) {
    let base = *lock(&shared.baseline);
    process(shared, out);
    connections(shared, &base, out);
    let counters = counted(shared, cache);
    commands(&counters, &traffic_since(&base.traffic, &shared.traffic()), shared, out);
    let info = cache.info();
    store(&counters, &info, shared.memory_limit(&info), out);
    stat(out, "keyway_region_state", file_watch::word(shared.at_place.load(Relaxed)));
    last_hour(shared, cache, out);
    out.extend_from_slice(reply::END);
}

/// What was counted in the last hour, or since the start if that was later. `stats reset` does not begin it again.
fn last_hour(shared: &Shared, cache: &Cache, out: &mut Vec<u8>) {
    let then = lock(&shared.hour).first();
    for (name, count) in then.map_or_else(Vec::new, |then| Note::now(shared, cache).since(&then)) {
        stat(out, &format!("keyway_hour_{name}"), count);
    }
}

fn process(shared: &Shared, out: &mut Vec<u8>) {
    stat(out, "pid", std::process::id());
    stat(out, "uptime", shared.uptime_s());
    stat(out, "time", unix_time().as_secs());
    stat(out, "version", PROTOCOL_VERSION);
    stat(out, "keyway_version", KEYWAY_VERSION);
    stat(out, "pointer_size", usize::BITS);
    if let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) {
        let seconds = |time: TimeVal| format!("{}.{:06}", time.tv_sec(), time.tv_usec());
        stat(out, "rusage_user", seconds(usage.user_time()));
        stat(out, "rusage_system", seconds(usage.system_time()));
    }
}

fn connections(shared: &Shared, base: &Baseline, out: &mut Vec<u8>) {
    let arrivals = &shared.arrivals;
    let current = shared.connections();
    stat(out, "max_connections", shared.config.connections_max);
    stat(out, "curr_connections", current);
    stat(
        out,
        "total_connections",
        arrivals.total.load(Relaxed) - base.total_connections,
    );
    stat(out, "rejected_connections", arrivals.rejected.load(Relaxed) - base.rejected);
    stat(out, "connection_structures", current);
    stat(
        out,
        "accepting_conns",
        u8::from(!arrivals.paused.load(SeqCst) && !shared.is_stopping()),
    );
    stat(
        out,
        "listen_disabled_num",
        arrivals.disabled_count.load(Relaxed) - base.disabled_count,
    );
    stat(
        out,
        "time_in_listen_disabled_us",
        arrivals.disabled_us.load(Relaxed) - base.disabled_us,
    );
    stat(out, "threads", shared.config.threads);
    let account = &shared.account;
    stat(out, "keyway_connection_memory", account.used());
    stat(out, "keyway_connection_memory_peak", account.peak());
    stat(out, "keyway_connection_memory_limit", account.limit());
    stat(out, "keyway_connection_memory_each_limit", shared.each_held_max());
    stat(out, "keyway_connections_paused", account.paused.load(Relaxed));
    stat(out, "keyway_connections_closed_for_memory", account.closed.load(Relaxed));
}

fn commands(c: &Counters, traffic: &Traffic, shared: &Shared, out: &mut Vec<u8>) {
    for (name, count) in [
        ("cmd_get", c.cmd_get()),
        ("cmd_set", c.cmd_set),
        ("cmd_flush", c.cmd_flush),
        ("cmd_touch", c.cmd_touch()),
        ("cmd_meta", traffic.cmd_meta),
        ("get_hits", c.get_hits),
        ("get_misses", c.get_misses),
        ("get_expired", c.get_expired),
        ("get_flushed", c.get_flushed),
        ("delete_misses", c.delete_misses),
        ("delete_hits", c.delete_hits),
        ("incr_misses", c.incr_misses),
        ("incr_hits", c.incr_hits),
        ("decr_misses", c.decr_misses),
        ("decr_hits", c.decr_hits),
        ("cas_misses", c.cas_misses),
        ("cas_hits", c.cas_hits),
        ("cas_badval", c.cas_badval),
        ("touch_hits", c.touch_hits),
        ("touch_misses", c.touch_misses),
        // The decoder refuses most of them before the region sees them.
        ("store_too_large", c.store_too_large + traffic.too_large),
        ("store_no_memory", c.store_no_memory),
        ("auth_cmds", traffic.auth_cmds),
        ("auth_errors", traffic.auth_errors),
        ("keyway_auth_timeouts", traffic.auth_timeouts),
        ("keyway_auth_delays", traffic.auth_delays),
    ] {
        stat(out, name, count);
    }
    if let Some(certificates) = &shared.certificates {
        stat(out, "ssl_new_sessions", certificates.new_sessions.load(Relaxed));
        stat(out, "ssl_handshake_errors", certificates.handshake_errors.load(Relaxed));
        stat(out, "ssl_proto_errors", certificates.protocol_errors.load(Relaxed));
        stat(out, "time_since_server_cert_refresh", certificates.age_s());
        stat(out, "keyway_certificate_days_left", certificates.days_left());
    }
    if !shared.config.idle_timeout.is_zero() {
        stat(out, "idle_kicks", traffic.idle_kicks);
    }
    if shared.rates.is_some() {
        stat(out, "keyway_rate_pauses", traffic.rate_pauses);
        stat(out, "keyway_udp_over_rate", traffic.udp_over_rate);
    }
    stat(out, "bytes_read", traffic.bytes_read);
    stat(out, "bytes_written", traffic.bytes_written);
    stat(out, "conn_yields", traffic.conn_yields);
    if !shared.udp_addresses.is_empty() {
        stat(out, "keyway_udp_datagrams", traffic.udp_datagrams);
        stat(out, "keyway_udp_refused", traffic.udp_refused);
        stat(out, "keyway_udp_dropped", traffic.udp_dropped);
        stat(out, "keyway_udp_refused_requests", traffic.udp_refused_requests);
    }
    if let Some(post) = &shared.kernel {
        post.stats(out);
    }
    stat(out, "log_worker_dropped", 0);
    stat(out, "log_worker_written", shared.watch.lines());
    stat(out, "log_watcher_skipped", shared.watch.skipped.load(Relaxed));
    stat(out, "log_watcher_sent", shared.watch.sent.load(Relaxed));
    stat(out, "log_watchers", shared.watch.count());
}

fn store(c: &Counters, info: &Info, memory_limit: u64, out: &mut Vec<u8>) {
    let hash_power_level = info.index_buckets.checked_ilog2().unwrap_or(0);
    for (name, count) in [
        ("limit_maxbytes", memory_limit),
        ("hash_power_level", hash_power_level.into()),
        ("hash_bytes", info.index_bytes),
        ("hash_is_expanding", 0),
        ("slab_reassign_running", 0),
        ("slabs_moved", c.segments_recycled),
        ("lru_crawler_running", 0),
        ("lru_crawler_starts", 0),
        ("lru_maintainer_juggles", 0),
        ("malloc_fails", 0),
        ("bytes", c.bytes),
        ("curr_items", c.curr_items),
        ("total_items", c.total_items),
        ("slab_global_page_pool", info.segments_free),
        ("expired_unfetched", c.expired_unfetched),
        ("evicted_unfetched", c.evicted_unfetched),
        ("evicted_active", 0),
        ("evictions", c.evictions),
        ("reclaimed", c.reclaimed),
        ("crawler_reclaimed", 0),
        ("crawler_items_checked", 0),
        ("lrutail_reflocked", 0),
        ("moves_to_cold", 0),
        ("moves_to_warm", c.relocations),
        ("moves_within_lru", 0),
        ("direct_reclaims", 0),
        ("lru_bumps_dropped", 0),
        ("keyway_segments", info.segments),
        ("keyway_segments_free", info.segments_free),
        ("keyway_segments_withdrawn", info.segments_withdrawn),
        ("keyway_segments_given_back", info.segments_given_back),
        ("keyway_segments_recycled", c.segments_recycled),
        ("keyway_relocations", c.relocations),
        ("keyway_items_purged", c.purged),
        ("keyway_ghost_hits", c.ghost_hits),
        ("keyway_reserve_empty", c.reserve_empty),
        ("keyway_splits", c.splits),
        ("keyway_sessions", info.sessions),
        ("keyway_sessions_max", info.sessions_max),
        ("keyway_sessions_of_servers", info.sessions_of_servers),
        ("keyway_recoveries", c.recoveries),
        ("keyway_corrupt", c.corrupt),
    ] {
        stat(out, name, count);
    }
}

/// `stats settings`
pub(crate) fn settings(shared: &Shared, cache: &Cache, out: &mut Vec<u8>) {
    let config = &shared.config;
    let info = cache.info();
    let yes_no = |yes: bool| if yes { "yes" } else { "no" };
    let inter: Vec<String> = config.tcp_and_tls().map(|address| address.ip().to_string()).collect();
    let socket = config.unix.as_ref();
    stat(out, "maxbytes", shared.memory_limit(&info));
    stat(out, "maxconns", config.connections_max);
    stat(
        out,
        "tcpport",
        config.tcp_and_tls().next().map_or(0, |address| address.port()),
    );
    stat(
        out,
        "udpport",
        shared.udp_addresses.first().map_or(0, std::net::SocketAddr::port),
    );
    stat(
        out,
        "inter",
        if inter.is_empty() {
            "NULL".to_owned()
        } else {
            inter.join(",")
        },
    );
    stat(out, "verbosity", shared.verbosity.load(Relaxed));
    stat(out, "oldest", 0);
    stat(out, "evictions", if info.evict { "on" } else { "off" });
    stat(
        out,
        "domain_socket",
        socket.map_or_else(|| "NULL".to_owned(), |s| s.path.display().to_string()),
    );
    stat(out, "umask", format_args!("{:o}", socket.map_or(0o700, |s| s.mode)));
    stat(out, "shutdown_command", yes_no(config.shutdown_enabled));
    stat(out, "growth_factor", "1.00");
    stat(out, "chunk_size", CHUNK_SIZE);
    stat(out, "num_threads", config.threads);
    stat(
        out,
        "num_threads_per_udp",
        if shared.udp_addresses.is_empty() { 0 } else { config.threads },
    );
    stat(out, "stat_key_prefix", char::from(shared.detail.delimiter()));
    stat(out, "detail_enabled", yes_no(shared.detail.is_enabled()));
    stat(out, "reqs_per_event", config.requests_per_turn);
    stat(out, "cas_enabled", yes_no(config.cas_enabled));
    stat(out, "tcp_backlog", config.backlog);
    stat(
        out,
        "binding_protocol",
        match config.protocol {
            Protocol::Auto => "auto-negotiate",
            Protocol::Text => "ascii",
            Protocol::Binary => "binary",
        },
    );
    stat(out, "auth_enabled_sasl", yes_no(shared.has_sasl()));
    // The file of users, if the text protocol has logins.
    let users = config.auth_file.as_ref().filter(|_| config.protocol != Protocol::Binary);
    stat(
        out,
        "auth_enabled_ascii",
        users.map_or_else(|| "no".to_owned(), |path| path.display().to_string()),
    );
    stat(out, "item_size_max", info.item_size_max);
    stat(out, "maxconns_fast", yes_no(config.connections_fast));
    stat(out, "hashpower_init", 0);
    stat(out, "slab_reassign", "no");
    stat(out, "slab_automove", 0);
    stat(out, "slab_automove_ratio", "0.00");
    stat(out, "slab_automove_window", 0);
    stat(out, "slab_automove_freeratio", "0.000");
    stat(out, "slab_chunk_max", info.segment_bytes);
    // Keyway does the work of memcached's crawler: expired items are reclaimed in the background, and dumps are answered. Exporters show
    // the settings below only if they find "yes" here.
    stat(out, "lru_crawler", "yes");
    stat(out, "lru_crawler_sleep", 0);
    stat(out, "lru_crawler_tocrawl", 0);
    stat(out, "lru_maintainer_thread", "no");
    stat(out, "lru_segmented", "no");
    stat(out, "hot_lru_pct", 0);
    stat(out, "warm_lru_pct", 0);
    stat(out, "hot_max_factor", "0.00");
    stat(out, "warm_max_factor", "0.00");
    stat(out, "temp_lru", "no");
    stat(out, "temporary_ttl", 0);
    stat(out, "tail_repair_time", 0);
    stat(out, "flush_enabled", yes_no(info.flush));
    stat(out, "dump_enabled", yes_no(config.dump_enabled));
    stat(out, "watch_enabled", yes_no(config.watch_enabled));
    stat(out, "hash_algorithm", "nh");
    stat(out, "idle_timeout", config.idle_timeout.as_secs());
    stat(out, "watcher_logbuf_size", crate::watch::QUEUE_MAX);
    stat(out, "worker_logbuf_size", crate::watch::QUEUE_MAX);
    // Without a limit of their own: `connection_memory` bounds all memory of connections.
    stat(out, "read_buf_mem_limit", 0);
    stat(out, "track_sizes", yes_no(config.track_sizes));
    stat(out, "inline_ascii_response", "no");
    // Client flags take up to four bytes of an item.
    stat(out, "client_flags_size", size_of::<u32>());
    stat(out, "num_napi_ids", "NULL");
    stat(out, "ssl_enabled", yes_no(config.tls.is_some()));
    if let Some(tls) = &config.tls {
        stat(out, "ssl_chain_cert", tls.certificate.display());
        stat(out, "ssl_key", tls.key.display());
        stat(out, "ssl_verify_mode", tls.client_certificates.mode());
        stat(out, "ssl_keyformat", 1);
        stat(out, "ssl_ciphers", "NULL");
        let authorities = tls.client_ca.as_ref();
        stat(
            out,
            "ssl_ca_cert",
            authorities.map_or_else(|| "NULL".to_owned(), |path| path.display().to_string()),
        );
        stat(out, "ssl_wbuf_size", 16 << 10);
        stat(out, "ssl_session_cache", "yes");
        stat(out, "ssl_kernel_tls", "no");
        stat(out, "ssl_min_version", tls.min_version.name());
    }
    stat(out, "memory_file", &config.region);
    // The region's device and inode, and the socket that hands it out: client libraries find the region by these.
    if let Ok((device, inode)) = cache.identity() {
        stat(out, "keyway_region", format_args!("{device}:{inode}"));
    }
    let handed_out = config.region_socket.as_ref();
    stat(
        out,
        "keyway_region_socket",
        handed_out.map_or_else(|| "NULL".to_owned(), |s| s.path.display().to_string()),
    );
    stat(out, "keyway_event_loop", shared.event_loop.name());
    out.extend_from_slice(reply::END);
}

/// `stats items`
pub(crate) fn items(shared: &Shared, cache: &Cache, out: &mut Vec<u8>) {
    let c = counted(shared, cache);
    if c.curr_items > 0 || c.total_items > 0 {
        let ages = cache.ages();
        for (name, count) in [
            ("number", c.curr_items),
            ("number_hot", 0),
            ("number_warm", 0),
            ("number_cold", c.curr_items),
            ("age_hot", ages.admission_s.unwrap_or(0).into()),
            ("age_warm", 0),
            ("age", ages.main_s.or(ages.admission_s).unwrap_or(0).into()),
            ("mem_requested", c.bytes),
            ("evicted", c.evictions),
            ("evicted_nonzero", 0),
            ("evicted_time", ages.evicted_s.into()),
            ("outofmemory", c.store_no_memory),
            ("tailrepairs", 0),
            ("reclaimed", c.reclaimed),
            ("expired_unfetched", c.expired_unfetched),
            ("evicted_unfetched", c.evicted_unfetched),
            ("evicted_active", 0),
            ("crawler_reclaimed", 0),
            ("crawler_items_checked", 0),
            ("lrutail_reflocked", 0),
            ("moves_to_cold", 0),
            ("moves_to_warm", c.relocations),
            ("moves_within_lru", 0),
            ("direct_reclaims", 0),
            ("hits_to_hot", 0),
            ("hits_to_warm", 0),
            ("hits_to_cold", c.get_hits),
            ("hits_to_temp", 0),
        ] {
            let _ = write!(out, "STAT items:{CLASS}:{name} {count}\r\n");
        }
    }
    out.extend_from_slice(reply::END);
}

/// `stats slabs`
pub(crate) fn slabs(shared: &Shared, cache: &Cache, out: &mut Vec<u8>) {
    let c = counted(shared, cache);
    let info = cache.info();
    let chunks_per_page = info.segment_bytes / CHUNK_SIZE;
    let pages = info.segments.saturating_sub(info.segments_withdrawn);
    let chunks = pages * chunks_per_page;
    let free_chunks = info.segments_free.min(pages) * chunks_per_page;
    // Without mem_requested, which `stats items` has: an exporter that finds it in both reports nothing at all.
    for (name, count) in [
        ("chunk_size", CHUNK_SIZE),
        ("chunks_per_page", chunks_per_page),
        ("total_pages", pages),
        ("total_chunks", chunks),
        ("used_chunks", chunks - free_chunks),
        ("free_chunks", free_chunks),
        ("free_chunks_end", 0),
        ("get_hits", c.get_hits),
        ("cmd_set", c.cmd_set),
        ("delete_hits", c.delete_hits),
        ("incr_hits", c.incr_hits),
        ("decr_hits", c.decr_hits),
        ("cas_hits", c.cas_hits),
        ("cas_badval", c.cas_badval),
        ("touch_hits", c.touch_hits),
    ] {
        let _ = write!(out, "STAT {CLASS}:{name} {count}\r\n");
    }
    stat(out, "active_slabs", 1);
    stat(out, "total_malloced", pages * info.segment_bytes);
    out.extend_from_slice(reply::END);
}

/// What is shown of the times of a door and verb, of at least one operation: names and numbers.
pub(crate) fn times(latency: &Latency) -> [(&'static str, u64); 6] {
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

/// `stats latency`
pub(crate) fn latency(shared: &Shared, cache: &Cache, out: &mut Vec<u8>) {
    for (door, verb, latency) in latencies(shared, cache).counted() {
        let (door, verb) = (door.name(), verb.name());
        for (name, number) in times(latency) {
            let _ = write!(out, "STAT {door}:{verb}:{name} {number}\r\n");
        }
    }
    out.extend_from_slice(reply::END);
}

/// How long operations have taken since this server started, or since the last `stats reset`.
pub(crate) fn latencies(shared: &Shared, cache: &Cache) -> Latencies {
    cache.latencies().since(&lock(&shared.latencies_before))
}

/// `stats sizes` when it is not enabled.
pub(crate) fn sizes(out: &mut Vec<u8>) {
    stat(out, "sizes_status", "disabled");
    out.extend_from_slice(reply::END);
}

/// Connections listed in one step of `stats conns`.
const CONNECTIONS_PER_STEP: usize = 64;

/// The next lines of `stats conns`: first listening sockets, then connections, from peer `next` on. Returns true when that was all.
pub(crate) fn conns(shared: &Shared, next: &mut Option<u64>, out: &mut Vec<u8>) -> bool {
    let now_s = shared.uptime_s();
    let Some(from) = *next else {
        for (fd, name) in lock(&shared.listening).iter() {
            let _ = write!(
                out,
                "STAT {fd}:addr {name}\r\nSTAT {fd}:state conn_listening\r\nSTAT {fd}:secs_since_last_cmd 0\r\n"
            );
        }
        *next = Some(0);
        return false;
    };
    let peers: Vec<_> = lock(&shared.peers)
        .range(from..)
        .take(CONNECTIONS_PER_STEP)
        .map(|(_, peer)| Arc::clone(peer))
        .collect();
    for peer in &peers {
        conn(shared, peer, now_s, out);
    }
    match peers.last() {
        Some(last) => *next = Some(last.id + 1),
        None => out.extend_from_slice(reply::END),
    }
    peers.is_empty()
}

fn conn(shared: &Shared, peer: &Peer, now_s: u32, out: &mut Vec<u8>) {
    let (fd, last_s) = (peer.fd, peer.last_request_s.load(Relaxed));
    let state = STATES
        .get(usize::from(peer.state.load(Relaxed)))
        .copied()
        .unwrap_or("conn_read");
    let _ = write!(out, "STAT {fd}:addr {}\r\n", peer.address);
    match (&peer.address, &shared.config.unix) {
        (PeerAddress::Tcp { local: Some(local), .. }, _) => {
            let _ = write!(out, "STAT {fd}:listen_addr tcp:{local}\r\n");
        }
        (PeerAddress::Unix, Some(socket)) => {
            let _ = write!(out, "STAT {fd}:listen_addr unix:{}\r\n", socket.path.display());
        }
        _ => {}
    }
    let _ = write!(
        out,
        "STAT {fd}:state {state}\r\nSTAT {fd}:secs_since_last_cmd {}\r\n",
        now_s.saturating_sub(last_s)
    );
}

pub(crate) fn traffic_since(base: &Traffic, now: &Traffic) -> Traffic {
    Traffic {
        bytes_read: now.bytes_read - base.bytes_read,
        bytes_written: now.bytes_written - base.bytes_written,
        conn_yields: now.conn_yields - base.conn_yields,
        auth_cmds: now.auth_cmds - base.auth_cmds,
        auth_errors: now.auth_errors - base.auth_errors,
        auth_timeouts: now.auth_timeouts - base.auth_timeouts,
        auth_delays: now.auth_delays - base.auth_delays,
        idle_kicks: now.idle_kicks - base.idle_kicks,
        rate_pauses: now.rate_pauses - base.rate_pauses,
        udp_over_rate: now.udp_over_rate - base.udp_over_rate,
        cmd_meta: now.cmd_meta - base.cmd_meta,
        too_large: now.too_large - base.too_large,
        udp_datagrams: now.udp_datagrams - base.udp_datagrams,
        udp_refused: now.udp_refused - base.udp_refused,
        udp_dropped: now.udp_dropped - base.udp_dropped,
        udp_refused_requests: now.udp_refused_requests - base.udp_refused_requests,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn store_lines_name_what_exporters_read() {
        let mut out = Vec::new();
        let mut counters = Counters::default();
        counters.curr_items = 1;
        store(&counters, &Info::default(), 64 << 20, &mut out);
        let text = String::from_utf8(out).unwrap();
        for line in [
            "STAT curr_items 1\r\n",
            "STAT limit_maxbytes 67108864\r\n",
            "STAT evictions 0\r\n",
            "STAT direct_reclaims 0\r\n",
        ] {
            assert!(text.contains(line), "{line}");
        }
    }
}
