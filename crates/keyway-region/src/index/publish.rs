//! Publishing: the compare-and-swaps of slots that make changes visible.
//!
//! The word of an item is swapped only by a thread whose hazard pointer names the item's segment ([`Publisher::hold`]),
//! or that has claimed the segment.

use crate::atomics::{Acquire, AtomicU64, Relaxed, Release};
use crate::changes::Counting;
use crate::index::Index;
use crate::index::Publisher;
use crate::index::Splits;
use crate::index::find::Here;
use crate::index::lookup::{Followed, Place};
use crate::layout::session::OPERATION;
use crate::layout::slot::Slot;
use crate::layout::stats::Counter;
use crate::log::Appender;
use crate::log::{Chain, ItemView, Value};
use crate::mapped::Mapped;
use crate::mapped::Rules;
use crate::threads::Thread;
use crate::watch::Emitter;
use keyway_probes as probes;

/// What an item's word becomes.
#[derive(Clone, Copy)]
enum Next {
    /// a new item's word, which keeps the frequency, because that counts how often the key is wanted
    Item(Slot),
    /// a word that names no item any more
    Gone(Slot),
}

impl Publisher {
    /// Its end of the log.
    #[inline(always)]
    pub fn log(&self) -> &Appender {
        &self.log
    }

    /// How its changes are counted.
    #[inline(always)]
    pub fn counting(&self) -> &Counting {
        &self.counting
    }

    /// Where it emits events for watchers.
    #[inline(always)]
    pub fn emitter(&self) -> &Emitter {
        &self.emitter
    }

    /// The index, as all threads share it.
    #[inline(always)]
    pub fn all(&self) -> &Index {
        &self.index
    }

    /// Its part in splits.
    #[inline(always)]
    pub fn splits(&self) -> Splits<'_> {
        Splits { publisher: self }
    }

    /// The mapped bytes.
    #[inline(always)]
    pub(super) fn mapped(&self) -> &Mapped {
        self.log.mapped()
    }

    /// The thread's slot.
    #[inline(always)]
    pub(super) fn thread(&self) -> &Thread {
        self.log.thread()
    }

    /// Whether this thread's own operation uses exactly this item. It may evict other items of the segment, if the segment then
    /// stays where it is.
    pub(crate) fn operates_on_item(&self, segment: usize, offset: usize) -> bool {
        self.thread().operates_on(segment) && self.held.get().offset() == offset
    }

    /// Stores the hazard pointer for a word's segment and re-reads its slot. Returns the slot's current word, if it names the same item and
    /// is not frozen.
    pub(crate) fn hold(&self, slot: &AtomicU64, word: Slot) -> Option<Slot> {
        if word.is_frozen() {
            None
        } else {
            self.hold_unfrozen(slot, word)
        }
    }

    /// Stores the hazard pointer for the segment of a word that is not frozen, and re-reads its slot. Returns the slot's current
    /// word, if it names the same item and is not frozen.
    #[inline(always)]
    pub(super) fn hold_unfrozen(&self, slot: &AtomicU64, word: Slot) -> Option<Slot> {
        debug_assert!(!word.is_frozen());
        self.held.set(word);
        self.thread().protect(OPERATION, word.segment());
        // PAIRS: item: the publish of the word that is there now. The fence of `protect` keeps this load after the hazard pointer.
        let now = Slot(slot.load(Acquire));
        now.same_but_frequency(word).then_some(now)
    }

    /// Stores the hazard pointer for a word's segment, and returns the item to which the word leads. `None`: the slot has another
    /// word, or it is frozen, or it leads to no item.
    pub(crate) fn hold_item(&self, place: Place, word: Slot) -> Option<ItemView> {
        let slot = self.index.slots.slot(place.at);
        match self.index.look(slot, self.hold(slot, word)?) {
            Followed::Got(seen) => Some(seen),
            Followed::Moved | Followed::Corrupt => None,
        }
    }

    /// Compare-and-swap of a slot from an item's word to its successor. The frequency may have changed meanwhile.
    #[inline(always)]
    fn swap(&self, slot: &AtomicU64, from: Slot, to: Next) -> bool {
        match self.swap_same(slot, from, to) {
            Ok(()) => true,
            Err(now) => self.swap_again(slot, from, now, to),
        }
    }

    /// Compare-and-swap of a slot whose word has not changed at all, its frequency neither. The error: the slot's current word.
    #[inline(always)]
    fn swap_same(&self, slot: &AtomicU64, from: Slot, to: Next) -> Result<(), Slot> {
        let to = match to {
            Next::Item(word) => word.instead_of(from),
            Next::Gone(word) => word,
        };
        // PAIRS: item: the loads of slots: a reader that sees the word sees the item.
        slot.compare_exchange(from.0, to.0, Release, Relaxed)
            .map(|_| probes::publish(from.0, to.0))
            .map_err(Slot)
    }

    #[cold]
    #[inline(never)]
    fn swap_again(&self, slot: &AtomicU64, mut from: Slot, mut now: Slot, to: Next) -> bool {
        while !now.is_frozen() && now.same_but_frequency(from) {
            from = now;
            match self.swap_same(slot, from, to) {
                Ok(()) => return true,
                Err(other) => now = other,
            }
        }
        false
    }

    /// Takes a corrupted item's word out of the index: a get could only ever miss. What the item says of itself is not trusted
    /// any more; a large value's segments are found without a head.
    ///
    /// The item is read once more, and nothing of that copy is in a caller's memory: what a caller does with its own memory removes no item.
    pub(crate) fn remove_damaged(&self, key: &[u8], place: Place, word: Slot) {
        let has_checksums = self.index.items.has_checksums();
        if has_checksums && !self.index.is_damaged(key, place, word) {
            return;
        }
        self.thread().count(Counter::corrupt, 1);
        if has_checksums && !word.is_frozen() && self.index.slots.vacate(place.at, word) {
            self.thread().count(Counter::curr_items, 1u64.wrapping_neg());
            self.log.counts().count_items(self.thread().slot(), -1);
        }
    }

    /// Replaces an item's word by a new item's, and makes that persistent. The new item itself is persistent already.
    #[inline(always)]
    pub(super) fn put_over<const PLAIN: bool>(&self, here: &Here<'_>, to: Slot, rules: Rules<PLAIN>) -> bool {
        self.swap_and_persist(here, Next::Item(rules.dirty(to)), rules)
    }

    /// Removes an item's word, whose frequency may have changed meanwhile, and makes that persistent.
    #[inline(always)]
    pub(super) fn take_out<const PLAIN: bool>(&self, here: &Here<'_>, rules: Rules<PLAIN>) -> bool {
        let to = if rules.is_durable() {
            here.word.removed()
        } else {
            Slot::EMPTY
        };
        self.swap_and_persist(here, Next::Gone(to), rules)
    }

    #[inline(always)]
    fn swap_and_persist<const PLAIN: bool>(&self, here: &Here<'_>, to: Next, rules: Rules<PLAIN>) -> bool {
        if PLAIN {
            return self.swap(here.slot, here.word, to);
        }
        self.emitter.stamp_change();
        self.counting.counted(here.word, || {
            let done = self.swap(here.slot, here.word, to);
            if done && rules.is_durable() {
                let (Next::Item(word) | Next::Gone(word)) = to;
                self.index.slots.persist_word(here.place.at, word);
            }
            done
        })
    }

    /// Evicts the item of a word to free a slot in its bucket.
    pub(super) fn evict_word(&self, place: Place, word: Slot, epoch: u64, now: u32) {
        let slot = self.index.slots.slot(place.at);
        let Some(word) = self.hold(slot, word) else { return };
        let seen = match self.index.look(slot, word) {
            Followed::Got(seen) => Some(seen),
            Followed::Moved => return,
            Followed::Corrupt => None,
        };
        if self.evict_slot(place, word)
            && let Some(seen) = seen
        {
            let present = seen.is_present(epoch, now);
            self.count_gone(&seen, (place, word), present, now);
            self.free_replaced(&seen, None);
        }
    }

    /// PUBLISH of an eviction, or of a removal for age: the slot's item is gone. `false`: the slot had changed.
    pub(crate) fn evict_slot(&self, place: Place, word: Slot) -> bool {
        self.emitter.stamp_removal();
        let gone = self
            .counting
            .counted_eviction(word, || self.index.slots.vacate(place.at, word));
        if !gone {
            self.emitter.end_removal();
        }
        gone
    }

    /// Removes a word that leads to nothing from the index.
    #[cold]
    pub(super) fn drop_corrupt(&self, place: Place, word: Slot) {
        self.thread().count(Counter::corrupt, 1);
        let slot = self.index.slots.slot(place.at);
        // PAIRS: changes: the loads of slots, as in `Slots::vacate`.
        self.counting.counted_eviction(word, || {
            slot.compare_exchange(word.0, Slot::EMPTY.0, Release, Relaxed).is_ok()
        });
    }

    /// Frees the segments of an item that was just replaced, unless the new item has taken them over.
    pub(super) fn free_replaced(&self, seen: &ItemView, new: Option<&Value<'_>>) {
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
    fn free_replaced_chain(&self, seen: ItemView, kept: Option<Chain>) {
        if let Some(chain) = self.index.items.chain(&seen)
            && kept != Some(chain)
        {
            self.log.claims().free_chain(chain.first);
        }
    }
}
