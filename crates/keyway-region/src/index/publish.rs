//! Publishing: the compare-and-swaps of slots that make a change true.
//!
//! The word of an item is swapped only by a thread whose intent names the item's segment ([`Session::hold`]), or that has claimed it.

use crate::atomics::{Acquire, AtomicU64, Relaxed, Release};
use crate::index::lookup::{Look, Place};
use crate::layout::session::OPERATION;
use crate::layout::slot::Slot;
use crate::layout::stats::Counter;
use crate::log::{Chain, Seen, Value};
use crate::mutants::{self, Mutant};
use crate::region::Region;
use crate::session::Session;

impl Region {
    /// Leads a slot to the copy of its item. `false`: the slot has changed.
    pub(crate) fn move_item(&self, place: Place, word: Slot, copy: Slot) -> bool {
        let slot = self.slot(place.at);
        let word = if mutants::is(Mutant::RelocateInTwoSteps) {
            let _ = slot.compare_exchange(word.0, Slot::EMPTY.0, Relaxed, Relaxed);
            // So that another thread sees it.
            std::thread::yield_now();
            Slot::EMPTY
        } else {
            word
        };
        self.barrier();
        // PUBLISH: the copy. Before it the item is where it was; the old place is purged only after it.
        let moved = if mutants::is(Mutant::RelocateBlindly) {
            slot.store(copy.0, Relaxed);
            true
        } else {
            // PAIRS: item: the loads of slots: a reader that sees the word sees the copy.
            slot.compare_exchange(word.0, copy.0, Release, Relaxed).is_ok()
        };
        if moved {
            self.write_back(place.at, 8);
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

impl Session {
    /// Stores the intent for a word's segment and re-reads its slot. The word as it is now, if it names the same item.
    #[inline(always)]
    pub(crate) fn hold(&self, slot: &AtomicU64, word: Slot) -> Option<Slot> {
        self.held.set(word);
        self.intend(OPERATION, word.segment());
        // PAIRS: item: the publish of the word that stands there now. That the load is not before the intent is the fence of `intend`.
        let now = Slot(slot.load(Acquire));
        (!now.is_frozen() && now.same_but_frequency(word)).then_some(now)
    }

    /// The same, and the item to which the word leads.
    pub(crate) fn hold_item(&self, place: Place, word: Slot) -> Option<Seen> {
        let slot = self.region.slot(place.at);
        match self.region.look(slot, self.hold(slot, word)?) {
            Look::Got(seen) => Some(seen),
            Look::Moved | Look::Corrupt => None,
        }
    }

    /// Compare-and-swap of a slot from an item's word, whose frequency may meanwhile have changed, to its successor, who keeps
    /// the frequency: it is the key that is wanted often.
    #[inline(always)]
    pub(crate) fn swap(&self, slot: &AtomicU64, mut from: Slot, to: Slot) -> bool {
        if mutants::is(Mutant::OverwriteInTwoSteps) && slot.compare_exchange(from.0, Slot::EMPTY.0, Relaxed, Relaxed).is_ok() {
            from = Slot::EMPTY;
        }
        match self.swap_same(slot, from, to) {
            Ok(()) => true,
            Err(now) => self.swap_again(slot, from, now, to),
        }
    }

    /// The same for a word that is still the same. The error: the word as it is now.
    #[inline(always)]
    fn swap_same(&self, slot: &AtomicU64, from: Slot, to: Slot) -> Result<(), Slot> {
        let to = if to.is_empty() {
            to
        } else {
            to.with_frequency(from.frequency())
        };
        // PAIRS: item: the loads of slots: a reader that sees the word sees the item.
        let publish = if mutants::is(Mutant::PublishUnordered) {
            Relaxed
        } else {
            Release
        };
        slot.compare_exchange(from.0, to.0, publish, Relaxed)
            .map(|_| ())
            .map_err(Slot)
    }

    #[cold]
    #[inline(never)]
    fn swap_again(&self, slot: &AtomicU64, mut from: Slot, mut now: Slot, to: Slot) -> bool {
        while !now.is_frozen() && now.same_but_frequency(from) {
            from = now;
            match self.swap_same(slot, from, to) {
                Ok(()) => return true,
                Err(other) => now = other,
            }
        }
        false
    }

    /// Takes the word of an item that is not as it was written out of the index: a miss is all that it could ever give. What
    /// the item says of itself is not believed any more; a large value's segments are found without a head.
    pub(crate) fn remove_damaged(&self, place: Place, word: Slot) {
        self.count(Counter::corrupt, 1);
        if self.region.has_checksums() && !word.is_frozen() && self.region.vacate(place.at, word) {
            self.count(Counter::curr_items, 1u64.wrapping_neg());
            self.count_items(-1);
        }
    }

    /// Replaces an item's word by a new item's; persistent behind this. The new item already is, in its place.
    pub(super) fn put_over(&self, place: Place, from: Slot, to: Slot) -> bool {
        self.swap_and_persist(place, from, self.region.dirty(to))
    }

    /// Takes an item's word out, whose frequency may meanwhile have changed; persistent behind this.
    pub(super) fn take_out(&self, place: Place, from: Slot) -> bool {
        let to = if self.region.is_strict() {
            from.removed()
        } else {
            Slot::EMPTY
        };
        self.swap_and_persist(place, from, to)
    }

    fn swap_and_persist(&self, place: Place, from: Slot, to: Slot) -> bool {
        self.counted(from, || {
            let done = self.swap(self.region.slot(place.at), from, to);
            if done && self.region.is_strict() {
                self.region.persist_word(place.at, to);
            }
            done
        })
    }

    /// Evicts the item of a word to make room in its bucket.
    pub(super) fn evict_word(&self, place: Place, word: Slot, epoch: u64, now: u32) {
        let slot = self.region.slot(place.at);
        let Some(word) = self.hold(slot, word) else { return };
        let seen = match self.region.look(slot, word) {
            Look::Got(seen) => Some(seen),
            Look::Moved => return,
            Look::Corrupt => None,
        };
        if self.evict_slot(place, word)
            && let Some(seen) = seen
        {
            let present = seen.is_present(epoch, now);
            self.count_gone(&seen, place, present, now);
            self.free_replaced(&seen, None);
        }
    }

    /// PUBLISH of an eviction, or of a removal for age: the slot's item is gone. `false`: the slot had changed.
    pub(crate) fn evict_slot(&self, place: Place, word: Slot) -> bool {
        self.counted_eviction(word, || self.region.vacate(place.at, word))
    }

    /// Takes a word out of the index that leads to nothing.
    #[cold]
    pub(super) fn drop_corrupt(&self, place: Place, word: Slot) {
        self.count(Counter::corrupt, 1);
        let slot = self.region.slot(place.at);
        // PAIRS: changes: the loads of slots, as in `Region::vacate`.
        self.counted_eviction(word, || {
            slot.compare_exchange(word.0, Slot::EMPTY.0, Release, Relaxed).is_ok()
        });
    }

    /// Frees the segments of an item that was just replaced, unless the new item has taken them over.
    pub(super) fn free_replaced(&self, seen: &Seen, new: Option<&Value<'_>>) {
        if seen.header.is_large() {
            let kept = match new {
                Some(Value::Chain(chain)) => Some(*chain),
                _ => None,
            };
            self.free_replaced_chain(*seen, kept);
        }
    }

    #[cold]
    #[inline(never)]
    fn free_replaced_chain(&self, seen: Seen, kept: Option<Chain>) {
        if let Some(chain) = self.region.chain(&seen)
            && kept != Some(chain)
        {
            self.free_chain(chain.first);
        }
    }
}
