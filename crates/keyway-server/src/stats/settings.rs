//! The answer to `stats settings`, with memcached's names. Settings that have no meaning here have the value that exporters take for off.

use keyway_cache::server::ServerCache as _;
use keyway_cache::{Cache, Info};
use keyway_proto::Protocol;
use keyway_proto::reply::{self, stat};

use super::CHUNK_SIZE;
use crate::config::Config;
use crate::shared::Shared;
use std::sync::atomic::Ordering::Relaxed;

/// `stats settings`
pub(crate) fn settings(shared: &Shared, cache: &Cache, out: &mut Vec<u8>) {
    let info = cache.info();
    addresses(shared, &info, out);
    server(shared, &info, out);
    requests(shared, &info, out);
    memory(shared, &info, out);
    commands(shared, &info, out);
    tls(&shared.config, out);
    region(shared, cache, out);
    out.extend_from_slice(reply::END);
}

fn yes_no(yes: bool) -> &'static str {
    if yes { "yes" } else { "no" }
}

/// Limits, and where clients reach the server.
fn addresses(shared: &Shared, info: &Info, out: &mut Vec<u8>) {
    let config = &shared.config;
    let inter: Vec<String> = config.tcp_and_tls().map(|address| address.ip().to_string()).collect();
    stat(out, "maxbytes", shared.memory.limit(info));
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
}

/// The process.
fn server(shared: &Shared, info: &Info, out: &mut Vec<u8>) {
    let config = &shared.config;
    let socket = config.unix.as_ref();
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
}

/// Requests, and which clients may send them.
fn requests(shared: &Shared, info: &Info, out: &mut Vec<u8>) {
    let config = &shared.config;
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
}

/// Memory and eviction.
fn memory(shared: &Shared, info: &Info, out: &mut Vec<u8>) {
    let config = &shared.config;
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
}

/// Which commands are executed, and how.
fn commands(shared: &Shared, info: &Info, out: &mut Vec<u8>) {
    let config = &shared.config;
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
}

/// TLS.
fn tls(config: &Config, out: &mut Vec<u8>) {
    stat(out, "ssl_enabled", yes_no(config.tls.is_some()));
    let Some(tls) = &config.tls else { return };
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

/// The region, and what client libraries find it by.
fn region(shared: &Shared, cache: &Cache, out: &mut Vec<u8>) {
    let config = &shared.config;
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
}
