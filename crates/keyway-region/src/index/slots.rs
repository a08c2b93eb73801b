//! The slots of the index: each a word that leads to one item, beside which there is a hint.
//!
//! `persist` has what durable mode makes of a slot, `hints` the hints.

use crate::atomics::{Acquire, AtomicU64, Relaxed, Release};
use crate::directory::Directory;
use crate::index::lookup::Place;
use crate::layout::slot::Slot;
use crate::mapped::Mapped;
use std::sync::Arc;

/// The slots of the index, one by one.
#[derive(Clone)]
pub struct Slots {
    pub(super) mapped: Arc<Mapped>,
    pub(super) directory: Arc<Directory>,
}

impl Slots {
    pub(crate) fn new(mapped: &Arc<Mapped>, directory: &Arc<Directory>) -> Self {
        Self {
            mapped: Arc::clone(mapped),
            directory: Arc::clone(directory),
        }
    }

    /// A slot's word, for a change.
    #[inline(always)]
    pub(super) fn slot(&self, at: usize) -> &AtomicU64 {
        self.mapped.word(at)
    }

    /// A slot's current word.
    #[inline]
    pub(crate) fn word_in(&self, place: Place) -> Slot {
        // PAIRS: item: the publish of the word.
        Slot(self.slot(place.at).load(Acquire))
    }

    /// Makes a slot lead to the copy of its item. `false`: the slot has changed.
    pub(crate) fn move_item(&self, place: Place, word: Slot, copy: Slot) -> bool {
        let slot = self.slot(place.at);
        self.mapped.barrier();
        // PUBLISH: the copy. Before it the item is where it was; the old place is reclaimed only after it.
        // PAIRS: item: the loads of slots: a reader that sees the word sees the copy.
        let moved = slot.compare_exchange(word.0, copy.0, Release, Relaxed).is_ok();
        if moved {
            self.mapped.write_back(place.at, 8);
        }
        moved
    }

    /// Gives a slot's item this frequency, if its word is still the same.
    pub(crate) fn set_frequency(&self, place: Place, word: Slot, frequency: u64) {
        let _ = self
            .slot(place.at)
            .compare_exchange(word.0, word.with_frequency(frequency).0, Relaxed, Relaxed);
    }
}
