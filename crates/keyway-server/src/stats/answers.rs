//! The answers to `stats`, with memcached's names, for exporters and `memcached-tool`.

use std::io::Write;
use std::sync::atomic::Ordering::Relaxed;

use keyway_cache::Cache;
use keyway_proto::reply::{self, stat};

use super::snapshot::{counted, latencies};
use super::table::{KERNEL, KERNEL_TCP, PROCESS, REQUESTS, STORE};
use super::{CHUNK_SIZE, CLASS, Row, Snapshot, times};
use crate::shared::{Peer, PeerAddress, Shared};

/// `stats`
pub(crate) fn general(shared: &Shared, cache: &Cache, out: &mut Vec<u8>) {
    write(&Snapshot::take(shared, cache), out);
    last_hour(shared, cache, out);
    out.extend_from_slice(reply::END);
}

/// The table, with the lines of the kernel door that are no rows of it.
fn write(snapshot: &Snapshot, out: &mut Vec<u8>) {
    write_rows(PROCESS, snapshot, out);
    write_rows(REQUESTS, snapshot, out);
    if let Some(kernel) = &snapshot.kernel {
        for (word, count) in &kernel.verdicts {
            stat(out, &format!("keyway_kernel_{word}"), count);
        }
        write_rows(KERNEL, snapshot, out);
        for (name, time) in &kernel.cpu_time {
            stat(out, &format!("keyway_kernel_{name}_cpu_us"), time.as_micros());
        }
        write_rows(KERNEL_TCP, snapshot, out);
    }
    write_rows(STORE, snapshot, out);
    for holds in &snapshot.holds {
        for (what, count) in &holds.counts {
            stat(out, &format!("keyway_misses_{what}:{}", holds.prefix), count);
        }
    }
}

fn write_rows(rows: &[Row], snapshot: &Snapshot, out: &mut Vec<u8>) {
    for row in rows.iter().filter(|row| !row.stat.is_empty() && (row.is_in_stats)(snapshot)) {
        if let Some(shown) = (row.value)(snapshot).shown() {
            stat(out, row.stat, shown);
        }
    }
}

/// What was counted in the last hour, or since the start if that was later. `stats reset` does not begin it again.
fn last_hour(shared: &Shared, cache: &Cache, out: &mut Vec<u8>) {
    for (name, count) in shared.last_hour(cache) {
        stat(out, &format!("keyway_hour_{name}"), count);
    }
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
        for (fd, name) in shared.peers.listening() {
            let _ = write!(
                out,
                "STAT {fd}:addr {name}\r\nSTAT {fd}:state conn_listening\r\nSTAT {fd}:secs_since_last_cmd 0\r\n"
            );
        }
        *next = Some(0);
        return false;
    };
    let peers = shared.peers.page(from, CONNECTIONS_PER_STEP);
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
        "STAT {fd}:state {}\r\nSTAT {fd}:secs_since_last_cmd {}\r\n",
        peer.activity(),
        now_s.saturating_sub(last_s)
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn store_lines_name_what_exporters_read() {
        let mut out = Vec::new();
        let mut snapshot = Snapshot::default();
        snapshot.counters.curr_items = 1;
        snapshot.memory_limit = 64 << 20;
        write(&snapshot, &mut out);
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
