//! Slots in durable mode: a word's dirty bit says that it may not be persistent yet, and no thread acts on the word before it is.

use crate::atomics::{Relaxed, Release};
use crate::index::lookup::Place;
use crate::index::slots::Slots;
use crate::layout::bucket::{self, Split};
use crate::layout::segment::{Kind, State};
use crate::layout::slot::Slot;

impl Slots {
    /// Makes a slot's word persistent, no matter which thread wrote it, and then clears its dirty bit.
    #[cold]
    #[inline(never)]
    #[cfg_attr(feature = "observe", track_caller)]
    pub(super) fn persist_word(&self, at: usize, word: Slot) {
        if self.mapped.is_read_only() {
            // A region in durable mode is never mapped read-only, so the bit means that shared memory is corrupted.
            return;
        }
        self.mapped.write_back(at, 8);
        self.mapped.barrier();
        // A word with this bit is written once, so the exchange cannot hit a later one. The cleared bit is not written back: if
        // the bit survives, the next thread that finds it writes back once more.
        // PAIRS: settled: the loads of slots: a thread that finds the bit gone comes after the barrier.
        let _ = self.slot(at).compare_exchange(word.0, word.settled().0, Release, Relaxed);
    }

    /// PUBLISH of a removal: the slot's item is gone. `false`: the slot had changed.
    #[cfg_attr(feature = "observe", track_caller)]
    pub(crate) fn vacate(&self, at: usize, word: Slot) -> bool {
        let is_durable = self.mapped.is_durable();
        let gone = if is_durable { word.removed() } else { Slot::EMPTY };
        // PAIRS: changes: the loads of slots: a thread that sees the removal sees what the removing thread had changed before.
        let done = self.slot(at).compare_exchange(word.0, gone.0, Release, Relaxed).is_ok();
        if done && is_durable {
            self.persist_word(at, gone);
        }
        done
    }

    /// Removes a tentative word of any thread: an insert that was not confirmed, or a removal that may not be persistent yet.
    #[cfg_attr(feature = "observe", track_caller)]
    pub(crate) fn abort(&self, place: Place, word: Slot) {
        if word.is_dirty() {
            self.persist_word(place.at, word);
        } else {
            let _ = self.slot(place.at).compare_exchange(word.0, Slot::EMPTY.0, Relaxed, Relaxed);
        }
    }

    /// Removes the tentative word of a dead thread, whose record names this offset. A corrupted record names no slot.
    pub(crate) fn abort_at(&self, at: usize, word: Slot) {
        if self.is_index_slot(at) {
            let _ = self.slot(at).compare_exchange(word.0, Slot::EMPTY.0, Relaxed, Relaxed);
        }
    }

    /// Stores a word into a slot of a region that no other process uses.
    pub(crate) fn repair_word(&self, place: Place, word: Slot) {
        self.slot(place.at).store(word.0, Relaxed);
    }

    /// Whether a slot of the index can be at this offset.
    fn is_index_slot(&self, at: usize) -> bool {
        let start = self.mapped.layout().segments;
        if at < start || !at.is_multiple_of(8) {
            return false;
        }
        let segment = (at - start) / self.mapped.layout().shape.segment_size;
        self.mapped.has(segment) && State(self.mapped.header(segment).state.load(Relaxed)).kind() == Some(Kind::Index)
    }

    /// Before a split advances the table word: makes persistent all that a reader of the new count relies on, whichever thread wrote it.
    pub(super) fn persist_split(&self, split: Split) {
        if !self.mapped.is_durable() {
            return;
        }
        for bucket in [split.source, split.target] {
            if let Some(at) = self.directory.bucket(bucket) {
                self.mapped.write_back(at, bucket::SIZE);
            }
        }
        for (kind, entry) in [
            (Kind::Index, self.directory.bucket_entry(split.target)),
            (Kind::Hints, self.directory.hint_entry(split.target)),
        ] {
            self.mapped.write_back(self.directory.directory_entry_at(kind, entry), 4);
        }
        self.mapped.barrier();
    }
}
