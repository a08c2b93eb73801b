//! `lru_crawler metadump` and `mgdump`, and `stats cachedump`: the keys of all live items, in bounded steps.

use std::io::Write;

use keyway::Item;
use keyway_proto::{DumpFormat, is_plain, reply};

use crate::execute::Executor;
use crate::stats::CLASS;

/// Items visited in one step, so that a dump holds up others for some tens of microseconds at a time.
const ITEMS_PER_STEP: usize = 256;
/// Most steps of a `stats cachedump`, which is answered in one turn: a region full of keys that it cannot show is not walked whole.
const CACHEDUMP_STEPS_MAX: usize = 1024;
/// Longest answer to `stats cachedump`, bytes: one page in memcached.
const CACHEDUMP_MAX: usize = 2 << 20;

/// A dump under way on a connection.
pub(crate) struct Dump {
    format: DumpFormat,
    cursor: u64,
}

impl Dump {
    /// A dump of what `lru_crawler`'s argument names: `all`, `hash`, or class numbers with commas between; the line that
    /// refuses it otherwise.
    pub(crate) fn new(format: DumpFormat, what: &[u8]) -> Result<Self, &'static [u8]> {
        let class = CLASS.to_string();
        let names_ours = |ids: &[u8]| ids.split(|&b| b == b',').any(|id| id == class.as_bytes());
        match what {
            b"all" | b"hash" => Ok(Self { format, cursor: 0 }),
            ids if names_ours(ids) => Ok(Self { format, cursor: 0 }),
            _ => Err(b"BADCLASS invalid class id\r\n"),
        }
    }

    /// Appends the next lines; true when that was all.
    pub(crate) fn step(&mut self, executor: &mut Executor, out: &mut Vec<u8>) -> bool {
        let now_s = executor.session.now_unix_s();
        let format = self.format;
        let next = executor.session.walk(self.cursor, ITEMS_PER_STEP, |key, item| match format {
            DumpFormat::Metadump => reply::metadump(out, &facts(key, item, now_s)),
            DumpFormat::Mgdump => reply::mgdump(out, key, item.binary_key || !is_plain(key)),
        });
        match next {
            Some(cursor) => self.cursor = cursor,
            None => out.extend_from_slice(match format {
                DumpFormat::Metadump => reply::END,
                DumpFormat::Mgdump => reply::META_MISS,
            }),
        }
        next.is_none()
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
        size: item.size as u64,
        client_flags: item.flags,
    }
}

fn unix(time_s: i64) -> u64 {
    u64::try_from(time_s).unwrap_or(0)
}

/// `stats cachedump <class> <limit>`: up to `limit` keys (0: as many as the answer holds).
pub(crate) fn cachedump(executor: &mut Executor, class: u32, limit: usize, out: &mut Vec<u8>) {
    let limit = if limit == 0 { usize::MAX } else { limit };
    let end = out.len() + CACHEDUMP_MAX;
    let now_s = executor.session.now_unix_s();
    let mut count = 0;
    let mut cursor = (class == CLASS).then_some(0);
    for _ in 0..CACHEDUMP_STEPS_MAX {
        let Some(from) = cursor.filter(|_| count < limit && out.len() < end) else {
            break;
        };
        cursor = executor.session.walk(from, ITEMS_PER_STEP, |key, item| {
            if count < limit && !item.binary_key && is_plain(key) {
                count += 1;
                let expires_at = item.ttl_s.map_or(0, |ttl_s| unix(now_s + i64::from(ttl_s)));
                out.extend_from_slice(b"ITEM ");
                out.extend_from_slice(key);
                let _ = write!(out, " [{} b; {expires_at} s]\r\n", item.value_len);
            }
        });
    }
    out.extend_from_slice(reply::END);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_to_dump_is_named_as_in_memcached() {
        for what in [&b"all"[..], b"hash", b"1", b"3,1,7"] {
            assert!(Dump::new(DumpFormat::Metadump, what).is_ok(), "{what:?}");
        }
        for what in [&b"2"[..], b"", b"al", b"11,12"] {
            assert_eq!(
                Dump::new(DumpFormat::Mgdump, what).err(),
                Some(&b"BADCLASS invalid class id\r\n"[..]),
                "{what:?}"
            );
        }
    }
}
