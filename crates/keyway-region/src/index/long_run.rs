//! Prefetching a long value that is about to be copied, and what else the get will wait for.

use crate::layout::slot::Slot;
use crate::memory::{CACHE_LINE, COPIED_AHEAD};
use crate::session::Session;

/// Bytes of a value from which on it is prefetched.
pub(super) const LONG_FROM: usize = *COPIED_AHEAD.start();
/// Bytes of an item before its value, mostly: a header, and a key of the usual length.
const BEFORE_VALUE: usize = CACHE_LINE;

impl Session {
    /// Asks for an item with a value of this length at this offset of the region, and for its bucket's hints.
    ///
    /// A processor gets here by predicted branches, before the item's header has arrived from memory. What it does here need not wait
    /// for the header either: the place is known from the slot, and the first lines are as many as the last value had.
    #[inline(never)]
    pub(super) fn ask_long(&self, word: Slot, len: usize, bucket: u64) {
        if !COPIED_AHEAD.contains(&len) {
            return;
        }
        let region = &*self.region;
        let at = region.segment(word.segment()) + word.offset();
        let last = self.long_len.replace(len);
        let asked = if last <= len { last } else { 0 };
        if last <= len {
            region.memory.prefetch_to_read(at, last + BEFORE_VALUE);
        }
        if let Some(hint) = region.hint_at(bucket) {
            region.memory.prefetch::<1>(hint);
        }
        if asked < len {
            region.memory.prefetch_to_read(at + asked, len - asked + BEFORE_VALUE);
        }
    }
}
