//! The table of all differences: cases that end otherwise with Keyway than with the real one.
//!
//! docs/testing.md has this table; `KEYWAY_TESTS_RENEW=1 cargo test -p suites` writes it there.

/// Cases of a suite that end otherwise for one reason.
pub struct Row {
    /// the suite that has them
    pub suite: &'static str,
    /// each as the suite names it, and how it ends with Keyway in the words of [`crate::cases`]; before `…` only the beginning of that
    pub cases: &'static [(&'static str, &'static str)],
    /// what the cases require
    pub requires: &'static str,
    /// why Keyway does otherwise
    pub why: &'static str,
    /// where the documents say so, as seen from docs/
    pub link: &'static str,
}

const NO_SLABS: &str = "there is one slab class: the region's segments";
const AS_1645: &str = "as memcached 1.6.45 answers";

/// All rows.
pub const ALL: &[Row] = &[
    Row {
        suite: "memcached",
        cases: &[
            ("t/64bit.t", "fails 3 4 5"),
            ("t/issue_163.t", "fails 4"),
            ("t/issue_22.t", "fails 43 84"),
            ("t/issue_29.t", "fails 2 4"),
            ("t/issue_42.t", "fails 11"),
            ("t/lru-crawler.t", "fails 1 92 …"),
            ("t/lru-maintainer.t", "fails 12 120 …"),
            ("t/slabs-reassign-chunked.t", "fails 1 3 …"),
            ("t/slabs-reassign2.t", "fails 1 2 …"),
            ("t/slabs_reassign.t", "fails 1 …"),
        ],
        requires: "slab classes above 1, their pages and their LRU queues, in `stats slabs` and `stats items`",
        why: NO_SLABS,
        link: "operating.md#monitoring",
    },
    Row {
        suite: "memcached",
        cases: &[("t/dyn-maxbytes.t", "fails 45")],
        requires: "`total_malloced` that grows with the items",
        why: "a region is whole from the start",
        link: "operating.md#monitoring",
    },
    Row {
        suite: "memcached",
        cases: &[("t/lru.t", "fails …")],
        requires: "the number of evictions that slabs make of 64 MiB",
        why: "segments hold more items",
        link: "performance.md#hit-ratio",
    },
    Row {
        suite: "memcached",
        cases: &[("t/watcher.t", "stops after 13 of 30")],
        requires: "an eviction that one `set` causes, in a slab class that is full",
        why: "memory is freed by segments, before it is needed",
        link: "operating.md#watch",
    },
    Row {
        suite: "memcached",
        cases: &[("t/issue_183.t", "fails 5")],
        requires: "that a `set` over a flushed item counts as `reclaimed`",
        why: "an item counts so when its segment is reclaimed",
        link: "operating.md#monitoring",
    },
    Row {
        suite: "memcached",
        cases: &[("t/flush-all.t", "fails 27")],
        requires: "that without CAS (`-C`) a `set` right after a `flush_all` is lost at least once in 50 tries",
        why: "a flush takes only what was stored before it",
        link: "protocol.md#deviations",
    },
    Row {
        suite: "memcached",
        cases: &[("t/ascii-auth.t", "stops after 0 of 9")],
        requires: "a file of users that every user of the machine can read",
        why: "such a file is refused",
        link: "protocol.md#deviations",
    },
    Row {
        suite: "memcached",
        cases: &[
            ("t/binary-extstore.t", "skipped"),
            ("t/chunked-extstore.t", "skipped"),
            ("t/error-extstore.t", "skipped"),
            ("t/extstore-buckets.t", "skipped"),
            ("t/extstore-jbod.t", "skipped"),
            ("t/extstore.t", "skipped"),
        ],
        requires: "external storage",
        why: "this version does not have it",
        link: "operating.md#memcacheds-command-line",
    },
    Row {
        suite: "memcached",
        cases: &[("t/conn-limits.t", "fails 1 3 4")],
        requires: "`-o resp_obj_mem_limit` and `read_buf_mem_limit`",
        why: "`-o connection_memory` bounds the memory of connections",
        link: "operating.md#memcacheds-command-line",
    },
    Row {
        suite: "memcached",
        cases: &[("t/restart.t", "fails 1 …")],
        requires: "the hash table's power, and that a file without its `.meta` is refused",
        why: "a region has no second file",
        link: "operating.md#restart",
    },
    Row {
        suite: "memcached",
        cases: &[("t/stats.t", "fails 1")],
        requires: "that `stats` has 83 lines",
        why: "there are more",
        link: "operating.md#monitoring",
    },
    Row {
        suite: "memcached",
        cases: &[("t/udp.t", "fails 22, stops after 53 of 67")],
        requires: "an answer of 20,000 bytes by UDP",
        why: "answers are cut at 16 KiB",
        link: "protocol.md#udp",
    },
    Row {
        suite: "memcached",
        cases: &[("t/cas.t", "fails 15, stops after 15 of 43"), ("t/metaget.t", "fails 1")],
        requires: "`ERROR` for a command with words missing and for an empty line",
        why: AS_1645,
        link: "protocol.md#differences-from-1618",
    },
    Row {
        suite: "memcached",
        cases: &[("t/issue_3.t", "fails 2 4")],
        requires: "a usage line after `delete <key> <word>`",
        why: AS_1645,
        link: "protocol.md#differences-from-1618",
    },
    Row {
        suite: "memcached",
        cases: &[("t/shutdown.t", "fails 1")],
        requires: "`ERROR` for a `shutdown` that is not enabled",
        why: AS_1645,
        link: "protocol.md#differences-from-1618",
    },
    Row {
        suite: "libmemcached",
        cases: &[
            ("memcached_errors", "failed"),
            ("memcached_regression_gh-php-memcached_0531", "failed"),
            ("bin/memcp", "failed"),
            ("bin/memdump", "failed"),
            ("bin/memflush", "failed"),
            ("bin/memrm", "failed"),
        ],
        requires: "an error as soon as the server was killed or stopped",
        why: "items stay there without the server",
        link: "library.md#programs-that-use-libmemcached",
    },
    Row {
        suite: "libmemcached",
        cases: &[("memcached_ketama_compat", "failed")],
        requires: "the continuum in a private field of a handle before its first operation",
        why: "whose handle it is, the first operation decides",
        link: "library.md#programs-that-use-libmemcached",
    },
    Row {
        suite: "libmemcached",
        cases: &[("bin/memcapable", "failed")],
        requires: "a usage line after `delete <key> <word>`",
        why: AS_1645,
        link: "protocol.md#differences-from-1618",
    },
];
