//! Where the index's segments are, as this process has found them.
//!
//! An entry of a directory that names a segment names it for ever, and so is read from shared memory, and checked, only once. What is
//! kept here is private: no other process can write it, so it needs no check where it is used.

use crate::atomics::{Acquire, OwnNumber, Relaxed, Release};

/// Entries that are kept, of the larger directory: 16 million buckets or more. Others are read from shared memory each time.
const ENTRIES_MAX: usize = 4096;

/// The offsets of a directory's segments, by entry; 0: not found yet.
pub(super) struct Known(Box<[OwnNumber]>);

impl Known {
    /// Of a directory that has at most this many entries.
    pub fn new(entries: u64) -> Self {
        let entries = usize::try_from(entries).unwrap_or(usize::MAX).min(ENTRIES_MAX);
        Self((0..entries).map(|_| OwnNumber::new(0)).collect())
    }

    /// The offset of the segment that an entry names, if it is known.
    #[inline(always)]
    pub fn get(&self, entry: usize) -> Option<usize> {
        // PAIRS: directory: the store in `note`, in the thread of this process that has read the directory: what the directory's
        // exchange published is seen after this, too.
        let at = self.0.get(entry)?.load(Acquire);
        (at != 0).then_some(at)
    }

    pub fn note(&self, entry: usize, at: usize) {
        if let Some(known) = self.0.get(entry) {
            // PAIRS: directory: the load in `get`.
            known.store(at, Release);
        }
    }

    /// Forgets all of it.
    pub fn forget(&self) {
        for known in &self.0 {
            known.store(0, Relaxed);
        }
    }
}
