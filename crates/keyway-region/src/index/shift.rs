//! Shifting: the item of a slot in a full bucket goes to an empty slot in another bucket of its own, so that a new item finds a slot.
//!
//! The steps are those of `model/region_protocol.py` ("Shift"). A copy of the item is written, so no two shifts look alike. For a
//! moment two slots lead to the copy: one that it leaves and one in which it arrives. Both say so, and a thread that meets one of them
//! ends the shift, or undoes it. A get reads either as the item.
//!
//! The region counts shifts in the word of third buckets. A thread that does not find a key compares the count with what it was
//! before it looked ([`Region::is_quiet`]).

#[cfg(all(test, feature = "observe"))]
mod late;

use crate::atomics::{Acquire, Relaxed, Release};
use crate::hash::{Key, all_choices};
use crate::index::change::Prepared;
use crate::index::lookup::{Buckets, Followed, Place};
use crate::index::split::KeyHash;
use crate::layout::bucket::Table;
use crate::layout::item::flag;
use crate::layout::segment::{EXTENT_HEADER_SIZE, State};
use crate::layout::session::UPKEEP;
use crate::layout::slot::Slot;
use crate::layout::stats::Counter;
use crate::log::{CopyOf, Relocated};
use crate::region::Region;
use crate::session::Session;

impl Region {
    /// Whether no item was shifted since these buckets were looked up. If one was, it may have been missed in both of its buckets.
    #[inline(always)]
    pub(super) fn is_quiet(&self, buckets: &Buckets) -> bool {
        self.thirds() == buckets.thirds
    }

    /// The slots of the other buckets of a key with this hash.
    fn places_elsewhere(&self, hash: u64, table: Table, bucket: u64) -> impl Iterator<Item = Place> {
        all_choices(hash)
            .into_iter()
            .map(move |choice| table.bucket(choice))
            .filter(move |other| *other != bucket)
            .filter_map(|other| self.places(other))
            .flatten()
    }

    /// An empty slot in another of the buckets of a key with this hash.
    fn empty_elsewhere(&self, hash: u64, table: Table, bucket: u64) -> Option<Place> {
        let mut places = self.places_elsewhere(hash, table, bucket);
        places.find(|place| self.word_in(*place).is_empty())
    }

    /// The slot in another bucket of a key with this hash in which exactly this word is.
    pub(crate) fn place_of(&self, hash: u64, word: Slot, bucket: u64) -> Option<Place> {
        let mut places = self.places_elsewhere(hash, self.table(), bucket);
        places.find(|place| self.word_in(*place) == word)
    }
}

impl Session {
    /// All buckets of a key are full: empties one of their slots without evicting anything. `true`: a slot is empty now, or another
    /// thread has changed one. `false`: no item of these buckets can go elsewhere.
    ///
    /// Of the items that can, the one that was written last goes: its copy, which is written at the log's head, is evicted hardly
    /// later than it would have been.
    #[cold]
    #[inline(never)]
    pub(super) fn shift_one(&self, key: &Key<'_>, table: Table, prepared: &mut Prepared, epoch: u64, now: u32) -> bool {
        let region = &*self.region;
        let places = all_choices(key.hash)
            .into_iter()
            .filter_map(|choice| region.places(table.bucket(choice)))
            .flatten();
        let mut youngest: Option<(u64, Place, Slot)> = None;
        for place in places {
            let word = region.word_in(place);
            if word.is_empty() {
                return true;
            }
            if !word.is_item() || word.is_frozen() {
                continue;
            }
            let Followed::Got(seen) = region.look_in(place, word) else {
                continue;
            };
            if !seen.is_present(epoch, now) {
                self.evict_word(place, word, epoch, now);
                return true;
            }
            let sequence = region.header(seen.segment).sequence.load(Relaxed);
            let is_younger = youngest.is_none_or(|(other, ..)| sequence > other);
            let fits = seen.header.with(flag::CAS).size() + EXTENT_HEADER_SIZE <= region.layout.shape.segment_size;
            if is_younger
                && fits
                && let KeyHash::Of(hash) = region.key_hash(place.at, word)
                && region.empty_elsewhere(hash, table, place.bucket).is_some()
            {
                youngest = Some((sequence, place, word));
            }
        }
        let Some((_, place, word)) = youngest else { return false };
        // The copy may close the extent of the prepared item. After that the item must not be published any more.
        self.discard(prepared);
        self.shift(place, word, table, now)
    }

    /// Shifts the item of a slot. `false`: there is no space for a copy.
    fn shift(&self, from: Place, word: Slot, table: Table, now: u32) -> bool {
        let region = &*self.region;
        let slot = region.slot(from.at);
        let Some(word) = self.hold(slot, word) else { return true };
        if word.is_dirty() {
            region.persist_word(from.at, word);
            return true;
        }
        let seen = match region.look(slot, word) {
            Followed::Got(seen) => seen,
            Followed::Moved => return true,
            Followed::Corrupt => return false,
        };
        // The key is read under the intent now, so it is the item's.
        let KeyHash::Of(hash) = region.key_hash(from.at, word) else {
            return true;
        };
        let Some(to) = region.empty_elsewhere(hash, table, from.bucket) else {
            return true;
        };
        let stale = if region.is_of_before_gap(&seen) { flag::STALE } else { 0 };
        let header = seen.header.with(flag::CAS | stale);
        let pool = State(region.header(seen.segment).state.load(Relaxed)).pool();
        let (segment, life, offset) = match self.write_copy(&CopyOf { seen: &seen, header }, (pool, false), seen.life.epoch, now)
        {
            Ok(place) => place,
            Err(Relocated::Changed) => return true,
            Err(_) => return false,
        };
        let copy = Slot::confirmed(word.tag(), life.generation, segment, offset).copy_of(word);
        // The copy must be persistent before any word leads there.
        region.barrier();
        let (leaves, arrives) = self.shift_to(from, word, to, copy, table);
        if leaves {
            self.count(Counter::relocations, 1);
            self.count(Counter::bytes, (header.size() as u64).wrapping_sub(seen.header.size() as u64));
        }
        if !leaves {
            region.count_dead(segment, header.size());
        }
        if arrives {
            // The word of a shift that is undone may not be persistent: its old item is left to the purge.
            self.bury(region.memory.get(seen.at), &seen, seen.header.size());
        }
        self.relent(UPKEEP);
        true
    }

    /// The words of a shift, when its copy is written. Returns whether the item's word leads to the copy now, and whether the item
    /// has arrived.
    fn shift_to(&self, from: Place, word: Slot, to: Place, copy: Slot, table: Table) -> (bool, bool) {
        let region = &*self.region;
        let (slot, other) = (region.slot(from.at), region.slot(to.at));
        // Put on record before the word is in the slot: recovery aborts it if this thread dies here. A thread that finds the word
        // of the other slot looks for this one, and does not know the copy's frequency.
        let tentative = copy.leaving().thaw().tentative();
        self.pend(to.at, tentative);
        // PAIRS: item: the loads of slots: an inserter that sees the word reads the copy's key.
        if other.compare_exchange(Slot::EMPTY.0, tentative.0, Release, Relaxed).is_err() {
            self.settle();
            return (false, false);
        }
        if let (Some(old), Some(new)) = (region.hint(from.bucket, from.index), region.hint(to.bucket, to.index)) {
            new.store(old.load(Relaxed), Relaxed);
        }
        // PUBLISH: the copy. A thread that finds the word ends the shift, or undoes it.
        // PAIRS: item: the loads of slots: a reader that sees the word sees the copy.
        let leaves = slot.compare_exchange(word.0, copy.leaving().0, Release, Relaxed).is_ok();
        let arrives = leaves
            && region.table() == table
            // PAIRS: item: as above.
            && other.compare_exchange(tentative.0, copy.arriving().0, Release, Relaxed).is_ok();
        if !arrives {
            let _ = other.compare_exchange(tentative.0, Slot::EMPTY.0, Relaxed, Relaxed);
        }
        self.settle();
        if arrives {
            self.end_shift(from, to, copy);
        } else if leaves {
            // PAIRS: item: as above.
            let _ = slot.compare_exchange(copy.leaving().0, copy.0, Release, Relaxed);
        }
        (leaves, arrives)
    }

    /// The item has arrived: its old slot becomes empty, then the new one is like any other. Any thread may do it, however late.
    fn end_shift(&self, from: Place, to: Place, copy: Slot) {
        let region = &*self.region;
        // The new word must be persistent before the old one goes, and this before the new one can be changed.
        region.write_back(to.at, 8);
        region.barrier();
        // PAIRS: shift-arrived: the load in `Region::thirds`: a thread that begins with this count finds the new word.
        region.superblock().thirds.fetch_add(1, Release);
        let (slot, other) = (region.slot(from.at), region.slot(to.at));
        // PAIRS: shift: the loads of slots: a thread that finds the slot emptied sees the count.
        let _ = slot.compare_exchange(copy.leaving().0, Slot::EMPTY.0, Release, Relaxed);
        region.write_back(from.at, 8);
        region.barrier();
        // PAIRS: item: the loads of slots, as in `shift_to`.
        let _ = other.compare_exchange(copy.arriving().0, copy.0, Release, Relaxed);
    }

    /// For a thread that met a word of a shift: ends the shift, or undoes it if the item has not arrived.
    pub(super) fn land(&self, place: Place, word: Slot) {
        let region = &*self.region;
        self.intend(UPKEEP, word.segment());
        // PAIRS: item: the publish of the word that is there now, as in `hold`.
        if Slot(region.slot(place.at).load(Acquire)) == word {
            match region.key_hash(place.at, word) {
                KeyHash::Of(hash) => self.land_key(place, word, hash),
                KeyHash::Moved => {}
                KeyHash::Corrupt => self.drop_corrupt(place, word),
            }
        }
        self.relent(UPKEEP);
    }

    fn land_key(&self, place: Place, word: Slot, hash: u64) {
        let region = &*self.region;
        let copy = word.thaw();
        if word.is_arriving() {
            if let Some(from) = region.place_of(hash, copy.leaving(), place.bucket) {
                return self.end_shift(from, place, copy);
            }
            // The old slot is empty already, but that may not be persistent yet.
            region.write_back_buckets(hash);
            region.barrier();
        } else {
            // From here on the item cannot arrive, unless it has.
            if let Some(to) = region.place_of(hash, copy.tentative(), place.bucket) {
                let _ = region
                    .slot(to.at)
                    .compare_exchange(copy.tentative().0, Slot::EMPTY.0, Relaxed, Relaxed);
            }
            if let Some(to) = region.place_of(hash, copy.arriving(), place.bucket) {
                return self.end_shift(place, to, copy);
            }
        }
        // PAIRS: item: the loads of slots, as in `shift_to`.
        let _ = region.slot(place.at).compare_exchange(word.0, copy.0, Release, Relaxed);
    }
}
