//! Long answers: `lru_crawler metadump` and `mgdump`, `stats cachedump`, `stats conns`, `stats sizes`, `stats detail dump`. They are written in
//! bounded steps; each step waits until the client has taken the output of the one before.

use std::io::Write;

use keyway_cache::Item;
use keyway_proto::{DumpFormat, is_plain, reply};

use super::Executor;
use crate::cpu_budget::LOOKED_AT;
use crate::stats::{self, CLASS};

/// Buckets and items examined in one step, so that a dump delays other clients by some tens of microseconds at a time.
const LOOKS_PER_STEP: usize = 256;
/// Longest answer to `stats cachedump`, bytes: one page in memcached.
const CACHEDUMP_MAX: usize = 2 << 20;

/// A dump that a connection has started.
pub(crate) enum Dump {
    /// the keys of all live items
    Items { format: DumpFormat, cursor: u64 },
    /// at most `count` keys, and at most `room` bytes
    Cachedump { cursor: u64, count: usize, room: usize },
    /// connections, from this peer's number on; `None`: from the listening sockets on
    Connections { next: Option<u64> },
    /// request counts by prefix, after this one
    Prefixes { after: Option<Vec<u8>> },
    /// how many live items there are of each size
    Sizes(Sizes),
}

/// `stats sizes`: first counts all items by size, then writes the counts as lines.
pub(crate) struct Sizes {
    /// where the walk continues; `None`: all items are counted
    cursor: Option<u64>,
    /// by size in units of [`SIZE_UNIT`], rounded up; the last count includes all larger sizes
    counts: Vec<u32>,
    /// counts that have been written
    told: usize,
}

/// Sizes are rounded up to a multiple of this many bytes, and counted in a fixed number of classes, as memcached does.
const SIZE_UNIT: usize = 32;
const SIZES: usize = 32 * 1024;

impl Sizes {
    fn step(&mut self, executor: &mut Executor, out: &mut Vec<u8>) -> bool {
        if let Some(cursor) = self.cursor {
            let counts = &mut self.counts;
            self.cursor = executor.items.session.walk(cursor, LOOKS_PER_STEP, |key, item| {
                if let Some(count) = counts.get_mut(item.counted_size(key.len()).div_ceil(SIZE_UNIT).min(SIZES)) {
                    *count = count.saturating_add(1);
                }
            });
            return false;
        }
        for (i, count) in self.counts.iter().enumerate().skip(self.told).take(LOOKS_PER_STEP) {
            if *count > 0 {
                let _ = write!(out, "STAT {} {count}\r\n", i * SIZE_UNIT);
            }
        }
        self.told += LOOKS_PER_STEP;
        let is_all = self.told >= self.counts.len();
        if is_all {
            out.extend_from_slice(reply::END);
        }
        is_all
    }
}

impl Dump {
    /// A dump of the classes in `lru_crawler`'s argument (`all`, `hash`, or class numbers with commas between); or the line that
    /// refuses the argument.
    pub(super) fn items(format: DumpFormat, what: &[u8]) -> Result<Self, &'static [u8]> {
        let class = CLASS.to_string();
        let names_ours = |ids: &[u8]| ids.split(|&b| b == b',').any(|id| id == class.as_bytes());
        match what {
            b"all" | b"hash" => Ok(Self::Items { format, cursor: 0 }),
            ids if names_ours(ids) => Ok(Self::Items { format, cursor: 0 }),
            _ => Err(b"BADCLASS invalid class id\r\n"),
        }
    }

    /// `stats cachedump <class> <limit>`: up to `limit` keys (0: as many as the answer holds).
    pub(super) fn cachedump(class: u32, limit: usize) -> Self {
        Self::Cachedump {
            cursor: 0,
            count: match (class, limit) {
                (CLASS, 0) => usize::MAX,
                (CLASS, limit) => limit,
                _ => 0,
            },
            room: CACHEDUMP_MAX,
        }
    }

    /// `stats sizes`.
    pub(super) fn sizes() -> Self {
        Self::Sizes(Sizes {
            cursor: Some(0),
            counts: vec![0; SIZES + 1],
            told: 0,
        })
    }

    /// Bytes of memory that it holds between steps.
    pub(crate) fn held(&self) -> usize {
        match self {
            Self::Sizes(sizes) => sizes.counts.capacity() * size_of::<u32>(),
            Self::Prefixes { after } => after.as_ref().map_or(0, Vec::capacity),
            Self::Items { .. } | Self::Cachedump { .. } | Self::Connections { .. } => 0,
        }
    }

    /// Appends the next lines; returns true when that was all.
    pub(crate) fn step(&mut self, executor: &mut Executor, out: &mut Vec<u8>) -> bool {
        executor.cpu_budget.spend(LOOKS_PER_STEP as u64 * LOOKED_AT);
        match self {
            Self::Items { format, cursor } => Self::step_items(*format, cursor, executor, out),
            Self::Cachedump { cursor, count, room } => Self::step_cachedump(cursor, count, room, executor, out),
            Self::Connections { next } => stats::conns(&executor.items.shared, next, out),
            Self::Prefixes { after } => executor.items.shared.detail.dump(after, out),
            Self::Sizes(sizes) => sizes.step(executor, out),
        }
    }

    fn step_items(format: DumpFormat, cursor: &mut u64, executor: &mut Executor, out: &mut Vec<u8>) -> bool {
        let now_s = executor.items.session.now_unix_s();
        let next = executor
            .items
            .session
            .walk(*cursor, LOOKS_PER_STEP, |key, item| match format {
                DumpFormat::Metadump => reply::metadump(out, &facts(key, item, now_s)),
                DumpFormat::Mgdump => reply::mgdump(out, key, item.opaque_key || !is_plain(key)),
            });
        match next {
            Some(next) => *cursor = next,
            None => out.extend_from_slice(match format {
                DumpFormat::Metadump => reply::END,
                DumpFormat::Mgdump => reply::META_MISS,
            }),
        }
        next.is_none()
    }

    fn step_cachedump(cursor: &mut u64, count: &mut usize, room: &mut usize, executor: &mut Executor, out: &mut Vec<u8>) -> bool {
        let now_s = executor.items.session.now_unix_s();
        let before = out.len();
        let next = match *count {
            0 => None,
            _ => executor.items.session.walk(*cursor, LOOKS_PER_STEP, |key, item| {
                if *count > 0 && !item.opaque_key && is_plain(key) {
                    *count -= 1;
                    let expires_at = item.ttl_s.map_or(0, |ttl_s| unix(now_s + i64::from(ttl_s)));
                    out.extend_from_slice(b"ITEM ");
                    out.extend_from_slice(key);
                    let _ = write!(out, " [{} b; {expires_at} s]\r\n", item.value_len);
                }
            }),
        };
        *room = room.saturating_sub(out.len() - before);
        match next.filter(|_| *count > 0 && *room > 0) {
            Some(next) => {
                *cursor = next;
                false
            }
            None => {
                out.extend_from_slice(reply::END);
                true
            }
        }
    }
}

fn facts<'a>(key: &'a [u8], item: &Item, now_s: i64) -> reply::DumpFacts<'a> {
    reply::DumpFacts {
        key,
        expires_at: item.ttl_s.map(|ttl_s| unix(now_s + i64::from(ttl_s))),
        accessed_at: unix(now_s - i64::from(item.idle_s)),
        cas: item.cas,
        fetched: item.fetched,
        class: CLASS,
        size: item.counted_size(key.len()) as u64,
        client_flags: item.flags,
    }
}

fn unix(time_s: i64) -> u64 {
    u64::try_from(time_s).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_to_dump_is_named_as_in_memcached() {
        for what in [&b"all"[..], b"hash", b"1", b"3,1,7"] {
            assert!(Dump::items(DumpFormat::Metadump, what).is_ok(), "{what:?}");
        }
        for what in [&b"2"[..], b"", b"al", b"11,12"] {
            assert_eq!(
                Dump::items(DumpFormat::Mgdump, what).err(),
                Some(&b"BADCLASS invalid class id\r\n"[..]),
                "{what:?}"
            );
        }
    }
}
