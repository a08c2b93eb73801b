//! `stats detail`: requests counted by key prefix, up to the delimiter (`-D`). Off by default; when on, it takes one lock.

use std::collections::BTreeMap;
use std::io::Write;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use keyway_proto::{is_plain, reply};

use crate::basics::lock;

/// Most memory for counted prefixes, bytes: keys without structure would fill memory otherwise.
const PREFIXES_SIZE_MAX: usize = 4 << 20;
/// Approximate memory of a prefix besides its own bytes.
const PREFIX_SIZE: usize = 128;
/// Prefixes in a step of a dump.
const PREFIXES_PER_STEP: usize = 256;

/// Counts by prefix.
pub(crate) struct Detail {
    enabled: AtomicBool,
    delimiter: u8,
    prefixes: Mutex<Prefixes>,
}

#[derive(Default)]
struct Prefixes {
    counts: BTreeMap<Vec<u8>, Counts>,
    /// estimated with [`PREFIX_SIZE`]
    size: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) gets: u64,
    pub(crate) hits: u64,
    pub(crate) sets: u64,
    pub(crate) deletes: u64,
}

impl Detail {
    pub(crate) fn new(delimiter: u8, enabled: bool) -> Self {
        Self {
            enabled: AtomicBool::new(enabled),
            delimiter,
            prefixes: Mutex::default(),
        }
    }

    pub(crate) fn is_enabled(&self) -> bool {
        self.enabled.load(Relaxed)
    }

    pub(crate) fn enable(&self, enabled: bool) {
        self.enabled.store(enabled, Relaxed);
    }

    pub(crate) fn delimiter(&self) -> u8 {
        self.delimiter
    }

    pub(crate) fn clear(&self) {
        let old = std::mem::take(&mut *lock(&self.prefixes));
        if old.counts.len() > PREFIXES_PER_STEP {
            // Freeing tens of thousands of small pieces: done by another thread, so that no client waits. If no thread can start, it is done here.
            let _ = std::thread::Builder::new().spawn(move || drop(old));
        }
    }

    /// Counts a request for `key`, if it has a prefix.
    pub(crate) fn count(&self, key: &[u8], count: impl FnOnce(&mut Counts)) {
        let Some(len) = key.iter().position(|&byte| byte == self.delimiter) else {
            return;
        };
        let mut prefixes = lock(&self.prefixes);
        if let Some(counts) = prefixes.counts.get_mut(&key[..len]) {
            count(counts);
        } else if prefixes.size + PREFIX_SIZE + len <= PREFIXES_SIZE_MAX {
            prefixes.size += PREFIX_SIZE + len;
            count(prefixes.counts.entry(key[..len].to_vec()).or_default());
        }
    }

    /// The next lines of the answer to `stats detail dump`, after prefix `after`, which then becomes the last one written. Returns true when
    /// that was all.
    pub(crate) fn dump(&self, after: &mut Option<Vec<u8>>, out: &mut Vec<u8>) -> bool {
        let prefixes = lock(&self.prefixes);
        let from = after.as_deref().map_or(Unbounded, Excluded);
        let mut last = None;
        for (prefix, counts) in prefixes.counts.range::<[u8], _>((from, Unbounded)).take(PREFIXES_PER_STEP) {
            let Counts {
                gets,
                hits,
                sets,
                deletes,
            } = counts;
            out.extend_from_slice(b"PREFIX ");
            if is_plain(prefix) {
                out.extend_from_slice(prefix);
            } else {
                reply::uri_encode(out, prefix);
            }
            let _ = write!(out, " get {gets} hit {hits} set {sets} del {deletes}\r\n");
            last = Some(prefix);
        }
        match last {
            Some(prefix) => *after = Some(prefix.clone()),
            None => out.extend_from_slice(reply::END),
        }
        last.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_prefix() {
        let detail = Detail::new(b':', true);
        detail.count(b"user:1", |c| c.sets += 1);
        detail.count(b"user:2", |c| {
            c.gets += 1;
            c.hits += 1;
        });
        detail.count(b"plain", |c| c.gets += 1);
        detail.count(b"page:x:y", |c| c.deletes += 1);
        detail.count(b"a\r\nEND\r\n:1", |c| c.gets += 1);
        assert_eq!(
            dumped(&detail),
            b"PREFIX a%0D%0AEND%0D%0A get 1 hit 0 set 0 del 0\r\nPREFIX page get 0 hit 0 set 0 del 1\r\n\
              PREFIX user get 1 hit 1 set 1 del 0\r\nEND\r\n"
        );
        detail.clear();
        assert_eq!(dumped(&detail), b"END\r\n");
    }

    fn dumped(detail: &Detail) -> Vec<u8> {
        let (mut out, mut after) = (Vec::new(), None);
        loop {
            let before = out.len();
            if detail.dump(&mut after, &mut out) {
                return out;
            }
            assert!(out.len() - before <= PREFIXES_PER_STEP * 512, "a step is short");
        }
    }

    #[test]
    fn prefixes_are_bounded_and_told_in_steps() {
        let detail = Detail::new(b':', true);
        (0..100_000u32).for_each(|n| detail.count(format!("{n:0200}:x").as_bytes(), |c| c.gets += 1));
        let told = dumped(&detail);
        let lines = told.split(|&b| b == b'\n').count();
        assert!(
            lines > 10_000 && lines <= PREFIXES_SIZE_MAX / (200 + PREFIX_SIZE) + 2,
            "{lines}"
        );
    }
}
