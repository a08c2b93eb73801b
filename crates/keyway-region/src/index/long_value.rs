//! Prefetching a long value that is about to be copied, and the hints that are marked after the copy.
//!
//! Never: reads the item, or decides anything by what was predicted.

#[cfg(all(test, feature = "observe"))]
mod late;

use crate::index::Finder;
use crate::layout::slot::Slot;
use crate::memory::{CACHE_LINE, COPIED_AHEAD};

/// Bytes of a value from which on it is prefetched.
pub(super) const LONG_FROM: usize = *COPIED_AHEAD.start();
/// Bytes of an item before its value, mostly: a header, and a key of the usual length.
const BEFORE_VALUE: usize = CACHE_LINE;

impl Finder {
    /// Asks for the item of this word, whose value has this length, and for the hints of its bucket.
    ///
    /// A processor gets here by predicted branches, before the item's header has arrived from memory. So what is done here must not wait
    /// for the header: the place follows from the slot's word, and the first lines are as many as the last value had.
    #[inline(never)]
    pub(super) fn ask_long(&self, word: Slot, len: usize, bucket: u64) {
        if !COPIED_AHEAD.contains(&len) {
            return;
        }
        let mapped = self.mapped();
        let at = mapped.segment(word.segment()) + word.offset();
        let last = self.long_len.replace(len);
        let mut asked = 0;
        if last <= len {
            mapped.memory().prefetch_to_read(at, last + BEFORE_VALUE);
            asked = last;
        }
        if let Some(hint) = self.publisher.directory.hint_at(bucket) {
            mapped.memory().prefetch::<1>(hint);
        }
        if asked < len {
            mapped.memory().prefetch_to_read(at + asked, len - asked + BEFORE_VALUE);
        }
    }
}
