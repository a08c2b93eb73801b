//! The index grows: linear hashing by splits that any thread can finish.
//!
//! The steps are those of `model/region_protocol.py` ("Split number t"), in their order. Each is idempotent and done by
//! compare-and-swap. So a splitter that stops anywhere blocks no other thread: a thread that meets a frozen slot finishes the split.

#[cfg(all(test, feature = "observe"))]
mod late;

use crate::atomics::{Acquire, Relaxed, Release};
use crate::hash::all_choices;
use crate::index::Splits;
use crate::index::lookup::Index;
use crate::index::lookup::{Followed, Place};
use crate::layout::bucket::{self, SLOTS, Split, Table};
use crate::layout::segment::Kind;
use crate::layout::session::UPKEEP;
use crate::layout::slot::Slot;
use crate::layout::stats::Counter;
use crate::log::ATTEMPTS_MAX;
use crate::log::Supply;
use crate::verbs::KEY_LEN_MAX;

/// The index begins to double when this many of 100 slots are taken. Below it, in a table that grows by splits, no insert was
/// seen to find both of its buckets full (simulated to 2^20 buckets: none up to 0.65, 1 in 10^6 before 0.70, 1 in 20,000 before
/// 0.75; a split halves a bucket at random, so the loads are less even than in a table that never grew).
const GROW_AT_PERCENT: u64 = 65;
/// The index grows until the items that fit into full memory would load it by this many percent, and no further. A lower value
/// wastes bytes on empty slots for which there are no items; a higher one evicts items of full buckets. Simulated in steady state, at any point of a round, with a third bucket for keys whose two are full: all
/// three are full for 0.1 to 0.3 % of the items at 75, 1 % at 80, 2 % at 85.
const FULL_PERCENT: u64 = 75;
/// While items are evicted to make space, the index grows only above this, because their number goes up and down a little.
const GROW_AT_PERCENT_WHEN_FULL: u64 = 80;
/// An insert that finds all three of its buckets full does not grow the index below this percentage of the slots from before the
/// round. In a simulated table no buckets are full then. So these are full of keys with one hash, which growth does not separate.
const GROW_FROM_PERCENT: u64 = 60;
/// Bytes of memory per bucket to which the index grows in advance where nothing is evicted: enough for items of 1.5 KiB.
const MEMORY_PER_BUCKET_AHEAD: u64 = 8192;
/// Buckets at which an insert looks that finds its own full, spread over the index.
const SAMPLE: u64 = 32;
/// They are believed if they have more items than were counted by this part of the slots: three or four standard deviations.
const SAMPLE_DOUBT: u64 = 8;
/// Buckets that each insert splits while the index doubles: the round is done before the load has risen by a hundredth.
const SPLITS_PER_INSERT: usize = 4;
/// Buckets that an insert splits at a time when all of its buckets are full. With half as many, regions of some sizes evict more
/// than one item in 10,000 sets for full buckets before memory is full.
const SPLITS_FOR_ROOM: usize = 512;
/// Where items are evicted, the index takes at most so many of so many segments. The smallest items, of 12 bytes, need 15 bytes of it
/// where it is loaded by 60 percent.
const INDEX_SHARE_MAX: (usize, usize) = (2, 3);

/// The hash of the key of the item that a slot names.
enum KeyHash {
    Of(u64),
    Moved,
    Corrupt,
}

impl Index {
    fn key_hash(&self, place_at: usize, word: Slot) -> KeyHash {
        let seen = match self.look(self.slots.slot(place_at), word) {
            Followed::Got(seen) => seen,
            Followed::Moved => return KeyHash::Moved,
            Followed::Corrupt => return KeyHash::Corrupt,
        };
        let mut bytes = [0; KEY_LEN_MAX];
        let Some(key) = bytes.get_mut(..seen.header.key_len()) else {
            return KeyHash::Corrupt;
        };
        self.mapped.memory().read(seen.at + seen.header.key_offset(), key);
        if self.items.still(&seen) {
            KeyHash::Of(self.mapped.hasher().hash(key))
        } else {
            KeyHash::Moved
        }
    }

    fn places(&self, bucket: u64) -> Option<[Place; SLOTS]> {
        let at = self.directory.bucket(bucket)?;
        Some(core::array::from_fn(|index| Place {
            at: at + index * 8,
            bucket,
            index,
        }))
    }

    /// Items that the index has by the superblock's count, or by a look at some buckets if these have clearly more: sessions add
    /// their items to the count in batches, and those that died did not add the last ones.
    fn items_at_least(&self, table: Table) -> u64 {
        let counted = self
            .mapped
            .superblock()
            .items
            .load(Relaxed)
            .cast_signed()
            .max(0)
            .cast_unsigned();
        let buckets = table.count.min(SAMPLE);
        let taken = (0..buckets)
            .filter_map(|i| self.places(i * table.count / buckets))
            .flatten()
            .filter(|place| !self.slots.word_in(*place).payload_is_empty())
            .count() as u64;
        let sampled = taken * table.count / buckets;
        if sampled > counted + table.count * SLOTS as u64 / SAMPLE_DOUBT {
            sampled
        } else {
            counted
        }
    }

    /// Whether the index may have this bucket, too.
    fn may_have(&self, bucket: u64) -> bool {
        let (share, of) = INDEX_SHARE_MAX;
        let segments = self.directory.bucket_entry(bucket) + self.directory.hint_entry(bucket) + 2;
        bucket < self.directory.buckets_max() && (!self.limits.evicts() || segments * of <= self.mapped.allowed() * share)
    }
}

/// Whether buckets that are full have keys with one hash, which only have their three buckets. Buckets that this round has not split
/// yet are as full as before it.
fn have_one_hash(items: u64, table: Table) -> bool {
    items < table.base * SLOTS as u64 * GROW_FROM_PERCENT / 100
}

impl Splits<'_> {
    /// After an insert: begins to double the index when it is full enough, and does a share of a doubling that is under way.
    #[inline]
    pub(super) fn grow_a_little(&self, supply: &dyn Supply, now: u32) {
        let table = self.publisher.directory.table();
        let items = self.mapped().superblock().items.load(Relaxed);
        let slots = table.count * SLOTS as u64;
        let suffices = table.is_even() && items < slots * GROW_AT_PERCENT / 100 || self.index_suffices(items, slots);
        if suffices && !self.grows_ahead(table) {
            return;
        }
        // New segments for the index come from the reserve of free segments too.
        supply.pay(SPLITS_PER_INSERT * (bucket::SIZE + SLOTS), now);
        self.grow(supply, SPLITS_PER_INSERT, now);
    }

    /// Whether the index grows before it has the items: a session that evicts nothing gets no segment for it once the log has them.
    #[inline]
    fn grows_ahead(&self, table: Table) -> bool {
        !self.publisher.index.limits.evicts()
            && table.count
                < (self.mapped().allowed() * self.mapped().layout().shape.segment_size) as u64 / MEMORY_PER_BUCKET_AHEAD
            && !self.publisher.log.claims().is_full()
    }

    /// Whether this many slots suffice when memory is full, if future items are like the present ones.
    fn index_suffices(&self, items: u64, slots: u64) -> bool {
        // The count drifts, because dead threads did not report theirs; a negative one means none.
        if items > u64::MAX / 2 {
            return true;
        }
        if self.publisher.log.claims().is_full() {
            return items < slots * GROW_AT_PERCENT_WHEN_FULL / 100;
        }
        let (used, all) = (
            self.publisher.log.claims().used_segments() as u64,
            self.mapped().allowed() as u64,
        );
        items.saturating_mul(all) / used.max(1) <= slots * FULL_PERCENT / 100
    }

    /// An insert found all of its buckets full. `true`: buckets were split, there may be an empty slot now.
    #[cold]
    pub(super) fn grow_for_room(&self, supply: &dyn Supply, now: u32, discard: impl FnOnce()) -> bool {
        let table = self.publisher.directory.table();
        let items = self.publisher.index.items_at_least(table);
        if have_one_hash(items, table)
            || self.publisher.index.limits.evicts() && self.index_suffices(items, table.count * SLOTS as u64)
        {
            return false;
        }
        // A new segment for the index may need an eviction, whose copies may close the extent of the prepared item. After that
        // the item must not be published any more.
        discard();
        self.grow(supply, SPLITS_FOR_ROOM, now)
    }

    /// An item was evicted because all buckets of another key are full. While memory is not, this shall be rare, so the index grows,
    /// even if it would suffice for the items.
    #[cold]
    pub(super) fn grow_after_eviction(&self, supply: &dyn Supply, now: u32, discard: impl FnOnce()) {
        let table = self.publisher.directory.table();
        if !self.publisher.log.claims().is_full() && !have_one_hash(self.publisher.index.items_at_least(table), table) {
            // As in `grow_for_room`.
            discard();
            self.grow(supply, SPLITS_FOR_ROOM, now);
        }
    }

    /// Splits up to `splits` buckets, at most to the end of a round. `false`: the index cannot grow now.
    #[cold]
    pub(crate) fn grow(&self, supply: &dyn Supply, splits: usize, now: u32) -> bool {
        for done in 0..splits {
            let table = self.publisher.directory.table();
            if table.is_even() && done > 0 {
                return true;
            }
            let split = table.next_split(self.publisher.directory.buckets_initial());
            if !self.publisher.index.may_have(split.target) || !self.prepare_bucket(supply, split.target, now) {
                return false;
            }
            self.finish_last_split();
            if self.help_split(split) {
                self.thread().count(Counter::splits, 1);
            }
        }
        true
    }

    /// Makes sure that the directories have the new bucket's segments.
    fn prepare_bucket(&self, supply: &dyn Supply, bucket: u64, now: u32) -> bool {
        (self.publisher.directory.bucket(bucket).is_some()
            || self.publisher.log.claims().prepare_segment(
                supply,
                Kind::Index,
                self.publisher.directory.bucket_entry(bucket),
                now,
            ))
            && (self.publisher.directory.hint(bucket, 0).is_some()
                || self.publisher.log.claims().prepare_segment(
                    supply,
                    Kind::Hints,
                    self.publisher.directory.hint_entry(bucket),
                    now,
                ))
    }

    /// Steps 1 to 4 of a split. Any thread may call it, any number of times, however late. `true`: this call advanced the table word.
    pub(super) fn help_split(&self, split: Split) -> bool {
        let (Some(source), Some(target)) = (
            self.publisher.index.places(split.source),
            self.publisher.index.places(split.target),
        ) else {
            return false;
        };
        // 1. Freeze.
        for place in source {
            if !self.freeze(place, split) {
                return false;
            }
        }
        // 2. Fill the new bucket, slot by slot at the same index.
        for (from, to) in source.into_iter().zip(target) {
            // PAIRS: item: the publish in `Publisher::swap_same` and in `insert`: the copy that follows hands the item on.
            let word = Slot(self.publisher.index.slots.slot(from.at).load(Acquire));
            if !word.is_frozen_by(split.round) {
                return false;
            }
            let mut copy = Slot::EMPTY;
            if word.is_item() {
                match self.publisher.index.key_hash(from.at, word) {
                    KeyHash::Of(hash) if split.moves(all_choices(hash)) => copy = word.thaw(),
                    KeyHash::Of(_) => {}
                    KeyHash::Moved => return false,
                    KeyHash::Corrupt => self.thread().count(Counter::corrupt, 1),
                }
            }
            // PAIRS: item: the loads of slots: a reader that sees the copied word sees the item.
            if self
                .publisher
                .index
                .slots
                .slot(to.at)
                .compare_exchange(Slot::UNSET.0, copy.0, Release, Relaxed)
                .is_ok()
                && let (Some(old), Some(new)) = (
                    self.publisher.directory.hint(from.bucket, from.index),
                    self.publisher.directory.hint(to.bucket, to.index),
                )
            {
                new.store(old.load(Relaxed), Relaxed);
            }
        }
        // 3. PUBLISH: the table word. Before it the old bucket holds the truth (frozen words are read as confirmed ones), after
        // it both do.
        self.publisher.index.slots.persist_split(split);
        let done = self.publisher.directory.advance_table(split.target);
        // 4. Thaw the words that stay, empty the slots of those that moved.
        self.finish(split);
        done
    }

    /// Step 1 for one slot. `false`: the split is over, this thread is late.
    fn freeze(&self, place: Place, split: Split) -> bool {
        for _ in 0..ATTEMPTS_MAX {
            // PAIRS: freeze: the exchange below, in another thread: the table word that is read after this is at least that of its split.
            let word = Slot(self.publisher.index.slots.slot(place.at).load(Acquire));
            if word.is_frozen() {
                if word.is_frozen_by(split.round) {
                    return true;
                }
                if self.publisher.directory.table().count != split.target {
                    return false;
                }
                match Split::of(place.bucket, word.mark(), self.publisher.directory.buckets_initial()) {
                    Some(older) => self.repair(place, word, older),
                    None => {
                        self.publisher.drop_corrupt(place, word);
                    }
                }
                continue;
            }
            if word.is_dirty() {
                // In a frozen word this bit is part of the mark.
                self.publisher.index.slots.persist_word(place.at, word);
                continue;
            }
            // PAIRS: freeze: the loads of slots.
            if self
                .publisher
                .index
                .slots
                .slot(place.at)
                .compare_exchange(word.0, word.freeze(split.round).0, Release, Relaxed)
                .is_ok()
            {
                return true;
            }
        }
        false
    }

    /// Step 4 of the most recent split.
    pub(crate) fn finish_last_split(&self) {
        if let Some(split) = self
            .publisher
            .directory
            .table()
            .last_split(self.publisher.directory.buckets_initial())
        {
            self.finish(split);
        }
    }

    fn finish(&self, split: Split) {
        let Some(places) = self.publisher.index.places(split.source) else {
            return;
        };
        for place in places {
            let word = Slot(self.publisher.index.slots.slot(place.at).load(Relaxed));
            if word.is_frozen_by(split.round) {
                self.repair(place, word, split);
            }
        }
    }

    /// Step 4 for one slot: its split is done.
    fn repair(&self, place: Place, word: Slot, split: Split) {
        let slot = self.publisher.index.slots.slot(place.at);
        if !word.is_item() {
            // PAIRS: split: the loads of slots: a thread that finds the slot emptied sees the split's count of buckets.
            let _ = slot.compare_exchange(word.0, Slot::EMPTY.0, Release, Relaxed);
            return;
        }
        self.thread().protect(UPKEEP, word.segment());
        // PAIRS: item: the publish of the word that is there now, as in `hold`.
        if slot.load(Acquire) == word.0 {
            match self.publisher.index.key_hash(place.at, word) {
                KeyHash::Of(hash) => {
                    let new = if split.moves(all_choices(hash)) {
                        Slot::EMPTY
                    } else {
                        word.thaw()
                    };
                    // PAIRS: split: the loads of slots, as above.
                    let _ = slot.compare_exchange(word.0, new.0, Release, Relaxed);
                }
                KeyHash::Moved => {}
                KeyHash::Corrupt => {
                    self.publisher.drop_corrupt(place, word);
                }
            }
        }
        self.thread().release(UPKEEP);
    }

    /// For a writer that met a frozen slot: finishes the split if it is under way, or this slot if the split is done. The table
    /// word is read after the slot.
    pub(crate) fn unfreeze(&self, place: Place, word: Slot) {
        let count = self.publisher.directory.table().count;
        match Split::of(place.bucket, word.mark(), self.publisher.directory.buckets_initial()) {
            Some(split) if split.target == count => {
                self.help_split(split);
            }
            Some(split) if split.target < count => self.repair(place, word, split),
            _ => {
                // No split that has begun froze this word.
                self.publisher.drop_corrupt(place, word);
            }
        }
    }
}
