//! Writing: every change of a key is one compare-and-swap of its slot.
//!
//! [`Session::change`] is the one way in. It finds the key, shows the caller what is there, and publishes what the caller
//! decides, by the steps of `model/region_protocol.py` ("Writers"). The decision is made again whenever somebody else was
//! faster, so it must not have effects of its own.

#[cfg(all(test, feature = "observe"))]
mod late;

use crate::atomics::{Acquire, AtomicU64, Relaxed, Release, SeqCst};
use crate::hash::{Key, choices, tag};
use crate::heap;
use crate::index::lookup::{Look, Place};
use crate::layout::bucket::{SLOTS, Table};
use crate::layout::segment::SegmentLife;
use crate::layout::session::OPERATION;
use crate::layout::slot::Slot;
use crate::layout::stats::Counter;
use crate::log::{ATTEMPTS_MAX, Chain, Draft, Outcome, Replaced, Seen, Value, Verified, Written, chain_of};
use crate::memory::Line;
use crate::mutants::{self, Mutant};
use crate::region::Region;
use crate::session::Session;
use crate::sink::Unread;
use crate::verbs::{Item, WriteError};

/// Bytes of the buffer for built values that a session keeps between operations.
const BUILT_KEPT_MAX: usize = 64 << 10;

/// What is there, shown to a decision.
pub(crate) struct Old<'r> {
    session: &'r Session,
    region: &'r Region,
    key: &'r [u8],
    seen: Seen,
    place: Place,
    now: u32,
}

impl<'r> Old<'r> {
    /// What is known of it, details included.
    pub fn item(&self) -> Item {
        if self.region.has_checksums() {
            return self.copy().item.get();
        }
        self.region.facts(&self.seen, self.place, true, self.now)
    }

    /// Its marks ([`crate::layout::item::flag::MARKS`]), and the client's flags.
    pub fn marks_and_flags(&self) -> (u64, u32) {
        if self.region.has_checksums() {
            let item = self.item();
            return (item.marks(), item.flags);
        }
        self.region.marks_and_flags(&self.seen)
    }

    /// Length of its key, bytes.
    pub fn key_len(&self) -> usize {
        self.seen.header.key_len()
    }

    /// A tick of the region's clock, 0 for never.
    pub fn expiry(&self) -> u32 {
        self.seen.header.expiry()
    }

    /// Copies the value to the end of `out`.
    pub fn append_value(&self, out: &mut Vec<u8>) -> Result<(), Unread> {
        if self.region.has_checksums() {
            return self.append_copy(out);
        }
        self.region.append_value(&self.seen, out)
    }

    /// The value, copied to `out`; `None` if it is longer, or has segments of its own.
    #[inline]
    pub fn short_value<'o>(&self, out: &'o mut [u8]) -> Option<&'o [u8]> {
        if self.region.has_checksums() {
            // Its copy is as good.
            return None;
        }
        self.region.short_value(&self.seen, out)
    }

    /// The segments that hold the value, when it has its own.
    pub fn chain(&self) -> Option<Chain> {
        if self.region.has_checksums() {
            return chain_of(&self.copy().body.borrow()).filter(|_| self.seen.header.is_large());
        }
        self.region.chain(&self.seen)
    }

    /// The item, copied and verified once. Whatever a decision takes from the old item, in a region with checksums it takes from
    /// here.
    #[cold]
    fn copy(&self) -> &'r Verified {
        let copy = &self.session.verified;
        if copy.outcome.get() == Outcome::Unasked {
            let mut item = self.region.facts(&self.seen, self.place, true, self.now);
            let body = &mut copy.body.borrow_mut();
            let mut outcome = match self.region.read_verified(&self.seen, self.key, &item, body) {
                Ok(()) => Outcome::Intact,
                Err(Unread::Changed) => Outcome::Damaged,
                Err(Unread::NoMemory) => Outcome::NoMemory,
            };
            if self.seen.header.is_large() {
                let chain = chain_of(body);
                item.value_len = chain.map_or(0, |chain| chain.value_len);
                if chain.is_none() && outcome == Outcome::Intact {
                    outcome = Outcome::Damaged;
                }
            }
            copy.item.set(item);
            copy.outcome.set(outcome);
        }
        copy
    }

    #[cold]
    fn append_copy(&self, out: &mut Vec<u8>) -> Result<(), Unread> {
        let copy = self.copy();
        if let Some(chain) = self.chain() {
            return self.region.append_chain(chain, out);
        }
        let body = copy.body.borrow();
        if copy.outcome.get() == Outcome::NoMemory || !heap::try_reserve(out, body.len()) {
            return Err(Unread::NoMemory);
        }
        out.extend_from_slice(&body);
        match copy.outcome.get() {
            Outcome::Intact => Ok(()),
            _ => Err(Unread::Changed),
        }
    }
}

/// What is to become of a key.
pub(crate) enum Decision<'v> {
    /// nothing
    Keep,
    /// its item goes
    Remove,
    /// a new item, independent of the old one
    Put(Draft<'v>),
    /// a new item made from the old one: it inherits the flush epoch
    Replace(Draft<'v>),
    /// the old value could not be read, or there is no memory for the new one
    Unreadable(Unread),
}

/// Who decides what is to become of a key: it is asked again in every attempt, and its effects are to be those of the last time.
pub(super) type Decide<'d, 'v> = dyn FnMut(Option<&Old<'_>>, &mut Vec<u8>) -> Decision<'v> + 'd;

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Changed {
    Kept,
    Removed,
    /// there is a new item: [`Written`]
    Put,
}

/// What the first look of a writer found.
enum Scan {
    /// a confirmed word with our key
    Here(Place, Slot, Seen),
    Frozen(Place, Slot),
    Absent(Absent),
    Again,
    Corrupt,
}

/// The key has no confirmed word: where to put one, and who is in the way.
pub(crate) struct Absent {
    /// as it was all the while
    pub table: Table,
    pub tentative: Option<(Place, Slot)>,
    pub empty: Option<Place>,
    pub victim: Option<(Place, Slot)>,
}

/// The flush epoch of what replaces an item and owes it nothing: never an older one.
#[inline(always)]
pub(super) fn stamp_over(replaced: SegmentLife, epoch: u64) -> u64 {
    if mutants::is(Mutant::StampDown) {
        epoch
    } else {
        epoch.max(replaced.epoch)
    }
}

/// What an attempt at a change came to. `None`: somebody else was faster, or something had to be done first: it is to be made again.
type Attempt = Result<Option<Changed>, WriteError>;

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
    /// Changes a key. `decide` sees what is there (`None`: absent, expired or flushed) and an empty buffer in which it may
    /// build a new value ([`Value::Built`]). What is put in is told behind it.
    #[inline(never)]
    pub(crate) fn change(&self, key: &Key<'_>, now: u32, decide: &mut Decide<'_, '_>) -> Result<(Changed, Written), WriteError> {
        self.enter()?;
        let built = &mut *self.built.borrow_mut();
        let mut prepared = Prepared::default();
        let mut attempt = || self.attempt(key, now, decide, built, &mut prepared).transpose();
        let result = (0..ATTEMPTS_MAX).find_map(|_| attempt());
        built.clear();
        heap::shrink(built, BUILT_KEPT_MAX);
        self.end_operation();
        self.discard(&mut prepared);
        let changed = result.unwrap_or(Err(WriteError::Corrupt))?;
        Ok((changed, prepared.written))
    }

    fn attempt(
        &self,
        key: &Key<'_>,
        now: u32,
        decide: &mut Decide<'_, '_>,
        built: &mut Vec<u8>,
        prepared: &mut Prepared,
    ) -> Attempt {
        let epoch = self.region.epoch(now);
        match self.scan(key) {
            Scan::Here(place, word, seen) => self.change_here(key, (place, word, seen), decide, built, prepared, epoch, now),
            Scan::Absent(absent) => {
                built.clear();
                match decide(None, built) {
                    Decision::Put(draft) | Decision::Replace(draft) => {
                        self.put_absent(key, &absent, &draft, built, prepared, epoch, now)
                    }
                    Decision::Keep | Decision::Remove | Decision::Unreadable(_) => Ok(Some(Changed::Kept)),
                }
            }
            Scan::Again => Ok(None),
            Scan::Corrupt => Err(WriteError::Corrupt),
            Scan::Frozen(place, word) => {
                self.unfreeze(place, word);
                Ok(None)
            }
        }
    }

    /// An attempt where the key has an item.
    #[expect(clippy::too_many_arguments, reason = "all of it is one attempt's state")]
    fn change_here(
        &self,
        key: &Key<'_>,
        (place, word, seen): (Place, Slot, Seen),
        decide: &mut Decide<'_, '_>,
        built: &mut Vec<u8>,
        prepared: &mut Prepared,
        epoch: u64,
        now: u32,
    ) -> Attempt {
        let region = &*self.region;
        let slot = region.slot(place.at);
        let Some(word) = self.hold(slot, word) else {
            return Ok(None);
        };
        // The key was read before the intent. All forty bits of the generation are the same behind it, so it is
        // the same life of the segment, and an item does not change in it.
        if !region.still(&seen) {
            return Ok(None);
        }
        let present = seen.is_present(epoch, now);
        let old = Old {
            session: self,
            region,
            key: key.bytes,
            seen,
            place,
            now,
        };
        built.clear();
        let mut decision = decide(present.then_some(&old), built);
        if region.has_checksums() {
            match self.verified.outcome.take() {
                // What was taken from it was not there.
                Outcome::Damaged => decision = Decision::Unreadable(Unread::Changed),
                Outcome::NoMemory => decision = Decision::Unreadable(Unread::NoMemory),
                Outcome::Unasked | Outcome::Intact => {}
            }
        }
        if !region.still(&seen) {
            return Ok(None);
        }
        let (draft, stamp) = match decision {
            Decision::Keep => return Ok(Some(Changed::Kept)),
            Decision::Unreadable(unread) => return self.meet_unreadable(unread, seen, place, word, now),
            Decision::Remove if !present => return Ok(Some(Changed::Kept)),
            Decision::Remove => {
                // PUBLISH: the key is gone.
                if !self.take_out(place, word) {
                    return Ok(None);
                }
                self.count_removed(&seen);
                self.free_replaced(&seen, None);
                return Ok(Some(Changed::Removed));
            }
            Decision::Put(draft) => (draft, Stamp::Any(stamp_over(seen.life, epoch))),
            Decision::Replace(draft) => (draft, Stamp::Once(seen.life.epoch)),
        };
        let replaced = Replaced {
            segment: seen.segment,
            unique: region.unique_to_exceed(&seen),
        };
        self.prepare(prepared, key, &draft, built, stamp, Some(replaced), now)?;
        let written = &mut prepared.written;
        // PUBLISH: the new item. Its extent's tail is out already; recovery leaves whichever word is in the slot.
        if !self.put_over(place, word, written.word) {
            return Ok(None);
        }
        self.count_replaced(place, &seen, draft.value, written, now);
        self.free_replaced(&seen, Some(&draft.value));
        self.published(written);
        Ok(Some(Changed::Put))
    }

    /// An item with this value has taken the place of another one.
    #[inline(always)]
    pub(super) fn count_replaced(&self, place: Place, seen: &Seen, value: Value<'_>, written: &Written, now: u32) {
        match value {
            // memcached writes it over the old one, which stays as fetched as it was.
            Value::Number(_, width) if width == written.value_len => self.region.refresh_hint(place, seen, now),
            _ => self.region.set_hint(place, now, false),
        }
        self.count(
            Counter::bytes,
            (written.size as u64).wrapping_sub(self.region.size(seen) as u64),
        );
        self.bury(seen);
    }

    /// An attempt whose item could not be read.
    #[cold]
    #[inline(never)]
    fn meet_unreadable(&self, unread: Unread, seen: Seen, place: Place, word: Slot, now: u32) -> Attempt {
        let region = &*self.region;
        match unread {
            Unread::NoMemory => Err(WriteError::NoMemory {
                len: region.facts(&seen, place, false, now).value_len,
            }),
            Unread::Changed if word.same_but_frequency(Slot(region.slot(place.at).load(Relaxed))) => {
                self.remove_damaged(place, word);
                Err(WriteError::Corrupt)
            }
            Unread::Changed => Ok(None),
        }
    }

    /// Puts an item where there is none, by one attempt. `None`: it came to nothing.
    pub(super) fn put_once(&self, key: &Key<'_>, absent: &Absent, draft: &Draft<'_>, epoch: u64, now: u32) -> Option<Written> {
        let mut prepared = Prepared::default();
        let attempt = self.put_absent(key, absent, draft, &[], &mut prepared, epoch, now);
        if !matches!(attempt, Ok(Some(_))) {
            self.discard(&mut prepared);
            return None;
        }
        Some(prepared.written)
    }

    /// An attempt at putting an item where there is none.
    #[expect(clippy::too_many_arguments, reason = "all of it is one attempt's state")]
    fn put_absent(
        &self,
        key: &Key<'_>,
        absent: &Absent,
        draft: &Draft<'_>,
        built: &[u8],
        prepared: &mut Prepared,
        epoch: u64,
        now: u32,
    ) -> Attempt {
        let region = &*self.region;
        if let Some((place, word)) = absent.tentative
            && !mutants::is(Mutant::InsertWithoutRescan)
        {
            // Anybody may abort anybody's tentative entry: its owner may be dead.
            if !mutants::is(Mutant::WaitOnTentative) {
                region.abort(place, word);
            }
            return Ok(None);
        }
        let (place, over) = match (absent.empty, absent.victim) {
            (Some(place), _) => (place, Slot::EMPTY),
            // All of its buckets are full: grow while the index is to; otherwise evict.
            _ if self.grow_for_room(prepared, now) => return Ok(None),
            (None, Some((place, word))) if word.is_tentative() => {
                region.abort(place, word);
                return Ok(None);
            }
            (None, Some((_, _))) if !self.limits.evict => return Err(WriteError::OutOfMemory),
            // A tentative word over a victim would let it rise again: it goes first, for good.
            (None, Some((place, word))) if region.is_strict() => {
                self.evict_word(place, word, epoch, now);
                return Ok(None);
            }
            (None, Some((place, word))) => (place, word),
            (None, None) => return Ok(None),
        };
        self.prepare(prepared, key, draft, built, Stamp::Any(epoch), None, now)?;
        if !self.insert(key, absent.table, place, over, &prepared.written, epoch, now) {
            return Ok(None);
        }
        self.published(&mut prepared.written);
        self.grow_a_little(now);
        Ok(Some(Changed::Put))
    }

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
    fn put_over(&self, place: Place, from: Slot, to: Slot) -> bool {
        self.swap_and_persist(place, from, self.region.dirty(to))
    }

    /// Takes an item's word out, whose frequency may meanwhile have changed; persistent behind this.
    fn take_out(&self, place: Place, from: Slot) -> bool {
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
    fn evict_word(&self, place: Place, word: Slot, epoch: u64, now: u32) {
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

    /// First look: all slots of both buckets, and only then a verdict.
    fn scan(&self, key: &Key<'_>) -> Scan {
        let region = &*self.region;
        let table = region.table();
        let Some(buckets) = region.buckets(key.hash, table) else {
            return Scan::Corrupt;
        };
        let wanted = tag(key.hash);
        let mut tentative = None;
        let [first, second] = buckets.pair();
        region.memory.prefetch::<1>(second.1);
        let a = region.memory.line(first.1);
        if let Some(scan) = self.scan_line(&a, first, key, wanted, &mut tentative) {
            return scan;
        }
        let b = region.memory.line(second.1);
        if let Some(scan) = self.scan_line(&b, second, key, wanted, &mut tentative) {
            return scan;
        }
        for third in buckets.iter().skip(2) {
            let line = region.memory.line(third.1);
            if let Some(scan) = self.scan_line(&line, third, key, wanted, &mut tentative) {
                return scan;
            }
        }
        let lines = [a, b];
        let empty = Place::emptiest([first, second], &lines);
        if region.table() != table {
            return Scan::Again;
        }
        if empty.is_none() {
            return self.scan_third(key, table, tentative, buckets.pair(), lines);
        }
        Scan::Absent(Absent {
            table,
            tentative,
            empty,
            victim: None,
        })
    }

    /// The verdict on a key, if a bucket's line gives one.
    fn scan_line(
        &self,
        line: &Line,
        (bucket, bucket_at): (u64, usize),
        key: &Key<'_>,
        wanted: u64,
        tentative: &mut Option<(Place, Slot)>,
    ) -> Option<Scan> {
        let region = &*self.region;
        if Slot::any_frozen(line) {
            return Some(scan_frozen(line, bucket, bucket_at));
        }
        let mut same = Slot::with_tag(line, wanted);
        while same != 0 {
            let index = same.trailing_zeros() as usize;
            same &= same - 1;
            let place = Place::new(bucket, bucket_at, index);
            let word = Slot::of(line, index);
            if word.is_empty() {
                continue;
            }
            if word.is_dirty() {
                // What is decided on it, or on its absence, must be persistent first.
                region.persist_word(place.at, word);
                return Some(Scan::Again);
            }
            match region.look(region.slot(place.at), word) {
                Look::Moved => return Some(Scan::Again),
                Look::Corrupt => {
                    self.drop_corrupt(place, word);
                    return Some(Scan::Again);
                }
                Look::Got(seen) => {
                    let ours = region.has_key(&seen, key.bytes);
                    if ours && !word.is_tentative() {
                        // Whether it was the item is looked at behind the intent.
                        return Some(Scan::Here(place, word, seen));
                    }
                    if !region.still(&seen) {
                        return Some(Scan::Again);
                    }
                    if ours {
                        *tentative = Some((place, word));
                    }
                }
            }
        }
        None
    }

    /// Both buckets are full: the first empty slot of the third one, or the word of all three that is worth least.
    #[cold]
    #[inline(never)]
    fn scan_third(
        &self,
        key: &Key<'_>,
        table: Table,
        tentative: Option<(Place, Slot)>,
        pair: [(u64, usize); 2],
        [a, b]: [Line; 2],
    ) -> Scan {
        let Some(third) = self.region.third_bucket(key.hash, table) else {
            return Scan::Corrupt;
        };
        let (bucket, at) = third;
        let line = self.region.memory.line(at);
        if Slot::any_frozen(&line) {
            return scan_frozen(&line, bucket, at);
        }
        let free = Slot::empties(&line);
        let empty = (free != 0).then(|| Place::new(bucket, at, free.trailing_zeros() as usize));
        let victim = match empty {
            Some(_) => None,
            None => least_worth([pair[0], pair[1], third], [&a, &b, &line]),
        };
        Scan::Absent(Absent {
            table,
            tentative,
            empty,
            victim,
        })
    }

    /// Puts a written item into a slot that is empty, or over a victim's confirmed word.
    #[expect(clippy::too_many_arguments, reason = "all of it is one insert's state")]
    pub(crate) fn insert(
        &self,
        key: &Key<'_>,
        table: Table,
        place: Place,
        over: Slot,
        written: &Written,
        epoch: u64,
        now: u32,
    ) -> bool {
        let region = &*self.region;
        let slot = region.slot(place.at);
        let mut evicted = None;
        let mut over = over;
        if !over.is_empty() {
            match self.hold(slot, over) {
                Some(word) => over = word,
                None => return false,
            }
            match region.look(slot, over) {
                Look::Got(seen) => evicted = Some(seen),
                Look::Moved => return false,
                Look::Corrupt => self.count(Counter::corrupt, 1),
            }
        }
        self.announce_third(key, table, place);
        // In the record before the word is in the slot: recovery aborts it if we die here.
        let tentative = written.word.tentative();
        self.pend(place.at, tentative);
        // SeqCst, as the loads of the rescan: of two inserters of one key at least one sees the other's tentative word there.
        // PAIRS: twins: the load in the other inserter's `rescan`.
        let put = || slot.compare_exchange(over.0, tentative.0, SeqCst, Relaxed).is_ok();
        let won = if over.is_empty() {
            put()
        } else {
            self.counted_eviction(over, put)
        };
        if !won {
            self.settle();
            return false;
        }
        if let Some(seen) = evicted {
            let present = seen.is_present(epoch, now);
            self.count_gone(&seen, place, present, now);
            self.free_replaced(&seen, None);
        }
        // Twins first, then the table word, then the epoch: the model's order.
        let confirmed = (self.rescan(key, table, place) || mutants::is(Mutant::InsertWithoutRescan))
            && region.table() == table
            && region.epoch(now) == epoch
            // PUBLISH: the key is there. Before it nobody sees the entry and anybody may abort it.
            && self.counted(tentative, || {
                // PAIRS: item: the loads of slots, as in `swap_same`.
                slot.compare_exchange(tentative.0, region.dirty(written.word).0, Release, Relaxed).is_ok()
            });
        if !confirmed {
            let _ = slot.compare_exchange(tentative.0, Slot::EMPTY.0, Relaxed, Relaxed);
        }
        self.settle();
        if confirmed {
            if region.is_strict() {
                region.persist_word(place.at, region.dirty(written.word));
            }
            region.set_hint(place, now, false);
            self.count(Counter::curr_items, 1);
            self.count(Counter::bytes, written.size as u64);
            self.count_items(1);
        }
        confirmed
    }

    /// Before an entry goes into a key's third bucket: from now on everybody looks there too.
    #[inline]
    fn announce_third(&self, key: &Key<'_>, table: Table, place: Place) {
        let region = &self.region;
        let is_third = || !choices(key.hash).iter().any(|c| table.bucket(*c) == place.bucket);
        if !region.has_thirds() && is_third() && !mutants::is(Mutant::ThirdUnannounced) {
            // PAIRS: third: the load in `Region::has_thirds`. Not written back in strict mode: the repair after a power failure says it.
            region.superblock().thirds.store(1, SeqCst);
        }
    }

    /// Whether nobody else has, or can come to have, an entry for the key while our tentative word stays in `mine`.
    fn rescan(&self, key: &Key<'_>, table: Table, mine: Place) -> bool {
        let region = &self.region;
        let Some(buckets) = region.buckets(key.hash, table) else {
            return false;
        };
        let wanted = tag(key.hash);
        'again: for _ in 0..ATTEMPTS_MAX {
            let mut before_mine = true;
            for (bucket, bucket_at) in buckets.iter() {
                for index in 0..SLOTS {
                    let place = Place::new(bucket, bucket_at, index);
                    if place.at == mine.at {
                        before_mine = false;
                        continue;
                    }
                    // PAIRS: twins: the other inserter's tentative word, in `insert`.
                    let word = Slot(region.slot(place.at).load(SeqCst));
                    if word.is_frozen() || word == Slot::UNSET {
                        return false;
                    }
                    if word.is_empty() || word.tag() != wanted {
                        continue;
                    }
                    if word.is_dirty() {
                        // A twin that was removed must not rise again beside ours: the next look makes sure.
                        return false;
                    }
                    let seen = match region.look(region.slot(place.at), word) {
                        Look::Got(seen) => seen,
                        Look::Moved => continue 'again,
                        Look::Corrupt => continue,
                    };
                    let ours = region.has_key(&seen, key.bytes);
                    if !region.still(&seen) {
                        continue 'again;
                    }
                    if !ours {
                        continue;
                    }
                    if !word.is_tentative() || before_mine {
                        return false;
                    }
                    region.abort(place, word);
                    continue 'again;
                }
            }
            return true;
        }
        false
    }

    /// Makes sure that the draft is written: an attempt before may have written the same.
    #[expect(clippy::too_many_arguments, reason = "what is to be written, and where")]
    fn prepare(
        &self,
        prepared: &mut Prepared,
        key: &Key<'_>,
        draft: &Draft<'_>,
        built: &[u8],
        stamp: Stamp,
        replaced: Option<Replaced>,
        now: u32,
    ) -> Result<(), WriteError> {
        let (epoch, reusable) = match stamp {
            Stamp::Any(epoch) => (epoch, Some(epoch)),
            Stamp::Once(epoch) => (epoch, None),
        };
        let is_above = draft.cas.is_some() || replaced.is_none_or(|replaced| prepared.written.cas > replaced.unique);
        if prepared.is_written && reusable.is_some() && prepared.reusable == reusable && is_above {
            return Ok(());
        }
        self.discard(prepared);
        prepared.written = self.write(key, draft, built, epoch, replaced, now)?;
        (prepared.is_written, prepared.reusable) = (true, reusable);
        // The item, and all that its segment needs to be understood, before any word leads there.
        self.region.barrier();
        Ok(())
    }

    /// A written item that was never published: its place is dead, the segments of its value are free again.
    pub(super) fn discard(&self, prepared: &mut Prepared) {
        prepared.is_written = false;
        if let Some(chain) = prepared.written.chain.take() {
            self.free_chain(chain.first);
        }
    }

    /// A written item has been published: the segments of its value are its own.
    fn published(&self, written: &mut Written) {
        if let Some(chain) = written.chain.take() {
            self.disown_chain(chain);
        }
    }

    /// Frees the segments of an item that was just replaced, unless the new item has taken them over.
    fn free_replaced(&self, seen: &Seen, new: Option<&Value<'_>>) {
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

/// A bucket with a frozen slot: the first of them.
#[cold]
fn scan_frozen(line: &Line, bucket: u64, bucket_at: usize) -> Scan {
    let frozen = line
        .0
        .iter()
        .map(|word| Slot(*word))
        .enumerate()
        .find(|(_, word)| word.is_frozen());
    frozen.map_or(Scan::Again, |(index, word)| {
        Scan::Frozen(Place::new(bucket, bucket_at, index), word)
    })
}

/// Of full buckets the word to make room with: a tentative one, or the one with the lowest frequency.
#[cold]
fn least_worth(buckets: [(u64, usize); 3], lines: [&Line; 3]) -> Option<(Place, Slot)> {
    let worth = |word: Slot| if word.is_tentative() { 0 } else { word.frequency() + 1 };
    buckets
        .into_iter()
        .zip(lines)
        .flat_map(|((bucket, at), line)| (0..SLOTS).map(move |index| (Place::new(bucket, at, index), Slot::of(line, index))))
        .min_by_key(|(_, word)| worth(*word))
}

/// The flush epoch that an item is written for.
#[derive(Clone, Copy)]
enum Stamp {
    /// of an item that is good for any attempt: it does not depend on the old one
    Any(u64),
    /// of one that is made from the old item
    Once(u64),
}

/// A written item on its way to its publish.
#[derive(Clone, Copy, Default)]
pub(super) struct Prepared {
    is_written: bool,
    /// the flush epoch that it was written for, if it is good for another attempt: every attempt of an operation that does
    /// not look at the old item makes the same one
    reusable: Option<u64>,
    pub written: Written,
}
