//! Long values that a session gets one after the other: the next one is prefetched as soon as its place is known, and not only when its
//! header has arrived from memory.
//!
//! A prediction, which costs a short get one comparison: after [`CERTAIN_FROM`] gets in a row that copied long values, the next look-up
//! asks for as many bytes as the last one copied. One get of anything else ends the row.
//!
//! Never: reads the region.

use crate::layout::slot::Slot;
use crate::layout::stats::Counter;
use crate::memory::{CACHE_LINE, COPIED_AHEAD};
use crate::session::Session;
use std::cell::Cell;

/// Bytes of a value from which on it is a long one.
pub(super) const LONG_FROM: usize = *COPIED_AHEAD.start();
/// Long values in a row after which the next one is expected to be long, too: a session with one in ten does not ask in vain.
const CERTAIN_FROM: u32 = 4;
/// Bytes of an item before its value, as far as they are expected: a header, and a key of the usual length.
const BEFORE_VALUE: usize = CACHE_LINE;

/// The last gets of a session, as far as they were of long values.
#[derive(Default)]
pub(crate) struct LongRun {
    /// bytes that the next get is expected to copy; 0: not known
    expected: Cell<usize>,
    /// bytes of the present value that have been asked for
    asked: Cell<usize>,
    /// so many in a row
    count: Cell<u32>,
    /// hits of the session before the last one of them
    hits: Cell<u64>,
}

impl LongRun {
    /// Whether the next get is expected to copy a long value.
    #[inline(always)]
    pub fn expects(&self) -> bool {
        self.expected.get() != 0
    }
}

impl Session {
    /// A get has found this word, which probably leads to the key's item. Asks for the value that is expected. Without a call: that would
    /// take registers from other gets.
    #[inline(always)]
    pub(super) fn ask_expected(&self, word: Slot) {
        let (run, region) = (&self.long_run, &*self.region);
        let len = run.expected.take();
        run.asked.set(len);
        let at = region.segment(word.segment()) + word.offset();
        region.memory.prefetch_to_read(at, len + BEFORE_VALUE);
    }

    /// A get is about to copy a long value, of this many bytes at this offset of the region; its slot is in this bucket.
    #[inline(never)]
    pub(super) fn note_long(&self, at: usize, len: usize, bucket: u64) {
        let (run, region) = (&self.long_run, &*self.region);
        if !COPIED_AHEAD.contains(&len) {
            return;
        }
        let hits = self.count_of(Counter::get_hits);
        let follows = hits == run.hits.replace(hits).wrapping_add(1);
        if run.asked.take() < len || !follows {
            region.memory.prefetch_to_read(at, len);
        }
        if let Some(hint) = region.hint_at(bucket) {
            region.memory.prefetch::<1>(hint);
        }
        run.count.set(if follows { run.count.get().saturating_add(1) } else { 0 });
        if run.count.get() >= CERTAIN_FROM {
            run.expected.set(len);
        }
    }
}
