//! `stats detail`: requests counted by key prefix, up to the delimiter (`-D`). Off unless asked for, and then under one lock.

use std::collections::HashMap;
use std::io::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use keyway_proto::reply;

use crate::shared::lock;

/// Most prefixes that are counted, as in memcached: keys without structure would fill memory otherwise.
const PREFIXES_MAX: usize = 1 << 16;

/// Counts by prefix.
pub(crate) struct Detail {
    enabled: AtomicBool,
    delimiter: u8,
    prefixes: Mutex<HashMap<Vec<u8>, Counts>>,
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

    pub(crate) fn delimiter(&self) -> char {
        char::from(self.delimiter)
    }

    pub(crate) fn clear(&self) {
        lock(&self.prefixes).clear();
    }

    /// Counts a request for `key`, if it has a prefix.
    pub(crate) fn count(&self, key: &[u8], count: impl FnOnce(&mut Counts)) {
        let Some(len) = key.iter().position(|&byte| byte == self.delimiter) else {
            return;
        };
        let mut prefixes = lock(&self.prefixes);
        if let Some(counts) = prefixes.get_mut(&key[..len]) {
            count(counts);
        } else if prefixes.len() < PREFIXES_MAX {
            count(prefixes.entry(key[..len].to_vec()).or_default());
        }
    }

    /// The answer to `stats detail dump`.
    pub(crate) fn dump(&self, out: &mut Vec<u8>) {
        let mut prefixes: Vec<(Vec<u8>, Counts)> = lock(&self.prefixes).iter().map(|(k, c)| (k.clone(), *c)).collect();
        prefixes.sort_by(|a, b| a.0.cmp(&b.0));
        for (
            prefix,
            Counts {
                gets,
                hits,
                sets,
                deletes,
            },
        ) in prefixes
        {
            out.extend_from_slice(b"PREFIX ");
            out.extend_from_slice(&prefix);
            let _ = write!(out, " get {gets} hit {hits} set {sets} del {deletes}\r\n");
        }
        out.extend_from_slice(reply::END);
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
        let mut out = Vec::new();
        detail.dump(&mut out);
        assert_eq!(
            out,
            b"PREFIX page get 0 hit 0 set 0 del 1\r\nPREFIX user get 1 hit 1 set 1 del 0\r\nEND\r\n"
        );
    }
}
