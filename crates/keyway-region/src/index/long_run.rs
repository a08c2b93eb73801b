//! Long values that a session gets one after the other: the next one is prefetched as soon as its place is known, and not only when its
//! header has arrived from memory.
//!
//! A prediction, which costs a short get one comparison: after [`CERTAIN_FROM`] gets in a row that copied long values, the next look-up
//! asks for as many bytes as the last item had. One get of anything else ends the row.
//!
//! Never: reads the region.

use crate::layout::slot::Slot;
use crate::memory::COPIED_AHEAD;
use crate::session::Session;
use std::cell::Cell;

/// Long values in a row after which the next one is expected to be long.
const CERTAIN_FROM: u32 = 4;

/// Bytes of a value from which on it is a long one.
pub(super) const LONG_FROM: usize = *COPIED_AHEAD.start();

/// The last gets of a session, as far as they were of long values.
#[derive(Default)]
pub(crate) struct LongRun {
    /// so many in a row, at most [`CERTAIN_FROM`]
    count: Cell<u32>,
    /// bytes of the last one's item
    size: Cell<usize>,
    /// bytes of the present item that have been asked for
    asked: Cell<usize>,
    /// a look-up has not ended with a long value yet
    is_open: Cell<bool>,
}

impl LongRun {
    /// Whether a look-up has to call [`Session::expect_long`].
    #[inline(always)]
    pub fn has_begun(&self) -> bool {
        self.count.get() != 0
    }
}

impl Session {
    /// A get has found this word, which probably leads to the key's item.
    #[cold]
    #[inline(never)]
    pub(super) fn expect_long(&self, word: Slot) {
        let run = &self.long_run;
        run.asked.set(0);
        if run.is_open.replace(true) {
            // The last get did not copy a long value.
            run.count.set(0);
        } else if run.count.get() >= CERTAIN_FROM {
            let room = self.region.layout.shape.segment_size.saturating_sub(word.offset());
            let size = run.size.get().min(room);
            let at = self.region.segment(word.segment()) + word.offset();
            self.region.memory.prefetch_to_read(at, size);
            run.asked.set(size);
        }
    }

    /// A get is about to copy a long value, of an item of this size at this offset of the region.
    #[inline(never)]
    pub(super) fn note_long(&self, at: usize, size: usize) {
        let run = &self.long_run;
        run.is_open.set(false);
        if !COPIED_AHEAD.contains(&size) {
            run.count.set(0);
            return;
        }
        if run.asked.get() < size {
            self.region.memory.prefetch_to_read(at, size);
        }
        run.size.set(size);
        run.count.set((run.count.get() + 1).min(CERTAIN_FROM));
    }
}
