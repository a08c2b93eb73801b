//! Writing: every change of a key is one compare-and-swap of its slot.
//!
//! [`Session::change`] is the one way in. It finds the key, shows the caller what is there, and publishes what the caller
//! decides, by the steps of `model/region_protocol.py` ("Writers"). The decision is made again whenever somebody else was
//! faster, so it must not have effects of its own.

use crate::aside;
use crate::atomics::{AcqRel, Acquire, Relaxed, SeqCst};
use crate::checksum::{Outcome, Verified, chain_of};
use crate::extent::{Draft, Value, Written};
use crate::hash::{Key, choices, tag};
use crate::layout::bucket::{SLOTS, Table};
use crate::layout::session::OPERATION;
use crate::layout::slot::Slot;
use crate::layout::stats::Counter;
use crate::lookup::{ATTEMPTS_MAX, Chain, Look, Place, Seen, Unread};
use crate::memory::Line;
use crate::mutants::{self, Mutant};
use crate::region::Region;
use crate::session::Session;
use crate::verbs::{Item, WriteError};

/// Bytes of the buffer for built values that a session keeps between operations.
const BUILT_KEPT_MAX: usize = 64 << 10;

/// What is there, shown to a decision.
pub(crate) struct Old<'r> {
    session: &'r Session,
    region: &'r Region,
    key: &'r [u8],
    seen: &'r Seen,
    place: Place,
    now: u32,
}

impl Old<'_> {
    /// What is known of it, details included.
    pub fn item(&self) -> Item {
        if self.region.has_checksums() {
            return self.copy().item.get();
        }
        self.region.facts(self.seen, self.place, true, self.now)
    }

    /// Its marks ([`crate::layout::item::flag::MARKS`]), and the client's flags.
    pub fn marks_and_flags(&self) -> (u64, u32) {
        if self.region.has_checksums() {
            let item = self.item();
            return (item.marks(), item.flags);
        }
        self.region.marks_and_flags(self.seen)
    }

    /// Seconds on the region's clock, 0 for never.
    pub fn expiry(&self) -> u32 {
        self.seen.header.expiry()
    }

    /// Copies the value to the end of `out`.
    pub fn append_value(&self, out: &mut Vec<u8>) -> Result<(), Unread> {
        if self.region.has_checksums() {
            return self.append_copy(out);
        }
        self.region.append_value(self.seen, out)
    }

    /// The value, copied to `out`; `None` if it is longer, or has segments of its own.
    #[inline]
    pub fn short_value<'o>(&self, out: &'o mut [u8]) -> Option<&'o [u8]> {
        if self.region.has_checksums() {
            // Its copy is as good.
            return None;
        }
        self.region.short_value(self.seen, out)
    }

    /// The value as a number, if it is nothing but one to eight decimal digits; and its length, bytes.
    #[inline]
    pub fn short_number(&self) -> Option<(u64, usize)> {
        let (header, len) = (self.seen.header, self.seen.header.value_len());
        if self.region.has_checksums() || len == 0 || len > 8 || header.is_large() {
            return None;
        }
        // Header and key before it are more than eight bytes together with it.
        let word = self
            .region
            .memory
            .u64_unaligned(self.seen.at + header.value_offset() + len - 8);
        Some((digits(word, len)?, len))
    }

    /// The segments that hold the value, when it has its own.
    pub fn chain(&self) -> Option<Chain> {
        if self.region.has_checksums() {
            return chain_of(&self.copy().body.borrow()).filter(|_| self.seen.header.is_large());
        }
        self.region.chain(self.seen)
    }

    /// The item, copied and verified once. Whatever a decision takes from the old item, in a region with checksums it takes from
    /// here.
    #[cold]
    fn copy(&self) -> &Verified {
        let copy = &self.session.verified;
        if copy.outcome.get() == Outcome::Unasked {
            let mut item = self.region.facts(self.seen, self.place, true, self.now);
            let body = &mut copy.body.borrow_mut();
            let mut outcome = match self.region.read_verified(self.seen, self.key, &item, body) {
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
        if copy.outcome.get() == Outcome::NoMemory || !aside::try_reserve(out, body.len()) {
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

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Changed {
    Kept,
    Removed,
    /// there is a new item: [`Prepared::written`]
    Put,
}

/// What the first look of a writer found.
enum Scan {
    /// a confirmed word with our key
    Here(Place, Slot),
    Frozen(Place, Slot),
    /// the key has no confirmed word: where to put one, and who is in the way
    Absent {
        /// as it was all the while
        table: Table,
        tentative: Option<(Place, Slot)>,
        empty: Option<Place>,
        victim: Option<(Place, Slot)>,
    },
    Again,
    Corrupt,
}

impl Session {
    /// Changes a key. `decide` sees what is there (`None`: absent, expired or flushed) and an empty buffer in which it may
    /// build a new value ([`Value::Built`]). What is put in is told in `prepared`, which begins empty.
    pub(crate) fn change<'v, D>(
        &self,
        key: &Key<'_>,
        now: u32,
        prepared: &mut Prepared,
        mut decide: D,
    ) -> Result<Changed, WriteError>
    where
        D: FnMut(Option<&Old<'_>>, &mut Vec<u8>) -> Decision<'v>,
    {
        self.enter()?;
        let built = &mut *self.built.borrow_mut();
        let result = self.change_with(key, now, &mut decide, built, prepared);
        built.clear();
        aside::shrink(built, BUILT_KEPT_MAX);
        self.end_operation();
        self.discard(prepared);
        result
    }

    fn change_with<'v, D>(
        &self,
        key: &Key<'_>,
        now: u32,
        decide: &mut D,
        built: &mut Vec<u8>,
        prepared: &mut Prepared,
    ) -> Result<Changed, WriteError>
    where
        D: FnMut(Option<&Old<'_>>, &mut Vec<u8>) -> Decision<'v>,
    {
        let region = &*self.region;
        for _ in 0..ATTEMPTS_MAX {
            let epoch = region.epoch(now);
            let mut found = None;
            match self.scan(key, &mut found) {
                Scan::Again => {}
                Scan::Corrupt => return Err(WriteError::Corrupt),
                Scan::Frozen(place, word) => self.unfreeze(place, word),
                Scan::Here(place, word) => {
                    let (Some(seen), Some(word)) = (&found, self.hold(place, word)) else {
                        continue;
                    };
                    // The key was read before the intent. All forty bits of the generation are the same behind it, so it is
                    // the same life of the segment, and an item does not change in it.
                    if !region.still(seen) {
                        continue;
                    }
                    let present = seen.word.epoch() >= epoch && !seen.header.is_expired(now);
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
                    if !region.still(seen) {
                        continue;
                    }
                    let (draft, stamp) = match decision {
                        Decision::Keep => return Ok(Changed::Kept),
                        Decision::Unreadable(Unread::NoMemory) => {
                            let len = region.facts(seen, place, false, now).value_len;
                            return Err(WriteError::NoMemory { len });
                        }
                        Decision::Unreadable(Unread::Changed)
                            if word.same_but_frequency(Slot(region.slot(place.at).load(Acquire))) =>
                        {
                            self.remove_damaged(place, word);
                            return Err(WriteError::Corrupt);
                        }
                        Decision::Unreadable(Unread::Changed) => continue,
                        Decision::Remove => {
                            if !present {
                                return Ok(Changed::Kept);
                            }
                            // PUBLISH: the key is gone.
                            if self.take_out(place, word) {
                                self.count_removed(seen);
                                self.free_replaced(seen, None);
                                return Ok(Changed::Removed);
                            }
                            continue;
                        }
                        Decision::Put(draft) if mutants::is(Mutant::StampDown) => (draft, Stamp::Any(epoch)),
                        Decision::Put(draft) => (draft, Stamp::Any(epoch.max(seen.word.epoch()))),
                        Decision::Replace(draft) => (draft, Stamp::Once(seen.word.epoch())),
                    };
                    self.prepare(prepared, key, &draft, built, stamp, now)?;
                    let written = &mut prepared.written;
                    // PUBLISH: the new item. Its extent's tail is out already; recovery leaves whichever word is in the slot.
                    if self.put_over(place, word, written.word) {
                        region.set_hint(place, now, false);
                        self.count(Counter::bytes, (written.size as u64).wrapping_sub(region.size(seen) as u64));
                        self.bury(seen);
                        self.free_replaced(seen, Some(draft.value));
                        self.published(written);
                        return Ok(Changed::Put);
                    }
                }
                Scan::Absent {
                    table,
                    tentative,
                    empty,
                    victim,
                } => {
                    built.clear();
                    let draft = match decide(None, built) {
                        Decision::Put(draft) | Decision::Replace(draft) => draft,
                        Decision::Keep | Decision::Remove | Decision::Unreadable(_) => return Ok(Changed::Kept),
                    };
                    if let Some((place, word)) = tentative
                        && !mutants::is(Mutant::InsertWithoutRescan)
                    {
                        if mutants::is(Mutant::WaitOnTentative) {
                            continue;
                        }
                        // Anybody may abort anybody's tentative entry: its owner may be dead.
                        region.abort(place.at, word);
                        continue;
                    }
                    let (place, over) = match (empty, victim) {
                        (Some(place), _) => (place, Slot::EMPTY),
                        // All of its buckets are full: grow while the index is to; otherwise evict.
                        _ if self.grow_for_room(prepared, now) => continue,
                        (None, Some((place, word))) if word.is_tentative() => {
                            region.abort(place.at, word);
                            continue;
                        }
                        (None, Some((_, _))) if !self.limits.evict => return Err(WriteError::OutOfMemory),
                        // A tentative word over a victim would let it rise again: it goes first, for good.
                        (None, Some((place, word))) if region.is_strict() => {
                            self.evict_word(place, word, epoch, now);
                            continue;
                        }
                        (None, Some((place, word))) => (place, word),
                        (None, None) => continue,
                    };
                    self.prepare(prepared, key, &draft, built, Stamp::Any(epoch), now)?;
                    if self.insert(key, table, place, over, &prepared.written, epoch, now) {
                        self.published(&mut prepared.written);
                        self.grow_a_little(now);
                        return Ok(Changed::Put);
                    }
                }
            }
        }
        Err(WriteError::Corrupt)
    }

    /// Stores the intent for a word's segment and re-reads the slot. The word as it is now, if it names the same item.
    pub(crate) fn hold(&self, place: Place, word: Slot) -> Option<Slot> {
        self.held.set(word);
        self.intend(OPERATION, word.segment());
        let now = Slot(self.region.slot(place.at).load(Acquire));
        (!now.is_frozen() && now.same_but_frequency(word)).then_some(now)
    }

    /// Compare-and-swap of a slot from an item's word, whose frequency may meanwhile have changed, to its successor, who keeps
    /// the frequency: it is the key that is wanted often.
    fn swap(&self, place: Place, mut from: Slot, to: Slot) -> bool {
        let slot = self.region.slot(place.at);
        if mutants::is(Mutant::OverwriteInTwoSteps) && slot.compare_exchange(from.0, Slot::EMPTY.0, AcqRel, Acquire).is_ok() {
            from = Slot::EMPTY;
        }
        loop {
            let to = if to.is_empty() {
                to
            } else {
                to.with_frequency(from.frequency())
            };
            let order = if mutants::is(Mutant::PublishUnordered) {
                Relaxed
            } else {
                AcqRel
            };
            match slot.compare_exchange(from.0, to.0, order, Acquire) {
                Ok(_) => return true,
                Err(now) if !Slot(now).is_frozen() && Slot(now).same_but_frequency(from) => from = Slot(now),
                Err(_) => return false,
            }
        }
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
    #[inline(always)]
    fn put_over(&self, place: Place, from: Slot, to: Slot) -> bool {
        self.counted(from, || {
            if self.region.is_strict() {
                self.swap_and_persist(place, from, self.region.dirty(to))
            } else {
                self.swap(place, from, to)
            }
        })
    }

    /// Takes an item's word out, whose frequency may meanwhile have changed; persistent behind this.
    fn take_out(&self, place: Place, from: Slot) -> bool {
        self.counted(from, || {
            if self.region.is_strict() {
                self.swap_and_persist(place, from, from.removed())
            } else {
                self.swap(place, from, Slot::EMPTY)
            }
        })
    }

    #[cold]
    #[inline(never)]
    fn swap_and_persist(&self, place: Place, from: Slot, to: Slot) -> bool {
        let done = self.swap(place, from, to);
        if done {
            self.region.persist_word(place.at, to);
        }
        done
    }

    /// Evicts the item of a word to make room in its bucket.
    fn evict_word(&self, place: Place, word: Slot, epoch: u32, now: u32) {
        let Some(word) = self.hold(place, word) else { return };
        let seen = match self.region.look(place.at, word) {
            Look::Got(seen) => Some(seen),
            Look::Moved => return,
            Look::Corrupt => None,
        };
        if self.evict_slot(place, word)
            && let Some(seen) = seen
        {
            let present = seen.word.epoch() >= epoch && !seen.header.is_expired(now);
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
    pub(crate) fn drop_corrupt(&self, place: Place, word: Slot) {
        self.count(Counter::corrupt, 1);
        let slot = self.region.slot(place.at);
        self.counted_eviction(word, || slot.compare_exchange(word.0, Slot::EMPTY.0, AcqRel, Relaxed).is_ok());
    }

    /// First look: all slots of both buckets, and only then a verdict. The item goes to `found`: behind a reference, because a
    /// processor waits for the words of a result that is moved as soon as it was made.
    fn scan(&self, key: &Key<'_>, found: &mut Option<Seen>) -> Scan {
        let region = &self.region;
        let table = region.table();
        let Some(buckets) = region.buckets(key.hash, table) else {
            return Scan::Corrupt;
        };
        let wanted = tag(key.hash);
        let mut tentative = None;
        let [first, second] = buckets.pair();
        region.memory.prefetch::<1>(second.1);
        let a = region.memory.line(first.1);
        if let Some(scan) = self.scan_line(&a, first, key, wanted, &mut tentative, found) {
            return scan;
        }
        let b = region.memory.line(second.1);
        if let Some(scan) = self.scan_line(&b, second, key, wanted, &mut tentative, found) {
            return scan;
        }
        for third in buckets.iter().skip(2) {
            let line = region.memory.line(third.1);
            if let Some(scan) = self.scan_line(&line, third, key, wanted, &mut tentative, found) {
                return scan;
            }
        }
        let lines = [a, b];
        // The first empty slot of the bucket that has more of them.
        let [a, b] = [Slot::empties(&a), Slot::empties(&b)];
        let ((bucket, at), free) = if a.count_ones() >= b.count_ones() {
            (first, a)
        } else {
            (second, b)
        };
        if region.table() != table {
            return Scan::Again;
        }
        if free == 0 {
            return self.scan_third(key, table, tentative, buckets.pair(), lines);
        }
        Scan::Absent {
            table,
            tentative,
            empty: Some(Place::new(bucket, at, free.trailing_zeros() as usize)),
            victim: None,
        }
    }

    /// The verdict on a key, if a bucket's line gives one.
    #[inline(always)]
    fn scan_line(
        &self,
        line: &Line,
        (bucket, bucket_at): (u64, usize),
        key: &Key<'_>,
        wanted: u64,
        tentative: &mut Option<(Place, Slot)>,
        found: &mut Option<Seen>,
    ) -> Option<Scan> {
        let region = &self.region;
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
            match region.look(place.at, word) {
                Look::Moved => return Some(Scan::Again),
                Look::Corrupt => {
                    self.drop_corrupt(place, word);
                    return Some(Scan::Again);
                }
                Look::Got(seen) => {
                    let ours = region.has_key(&seen, key.bytes);
                    if ours && !word.is_tentative() {
                        // Whether it was the item is looked at behind the intent.
                        *found = Some(seen);
                        return Some(Scan::Here(place, word));
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
        Scan::Absent {
            table,
            tentative,
            empty,
            victim,
        }
    }

    /// Puts a written item into a slot that is empty, or over a victim's confirmed word.
    #[expect(clippy::too_many_arguments, reason = "all of it is one insert's state")]
    fn insert(&self, key: &Key<'_>, table: Table, place: Place, over: Slot, written: &Written, epoch: u32, now: u32) -> bool {
        let region = &*self.region;
        let slot = region.slot(place.at);
        let mut evicted = None;
        let mut over = over;
        if !over.is_empty() {
            match self.hold(place, over) {
                Some(word) => over = word,
                None => return false,
            }
            match region.look(place.at, over) {
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
            let present = seen.word.epoch() >= epoch && !seen.header.is_expired(now);
            self.count_gone(&seen, place, present, now);
            self.free_replaced(&seen, None);
        }
        // Twins first, then the table word, then the epoch: the model's order.
        let confirmed = (self.rescan(key, table, place) || mutants::is(Mutant::InsertWithoutRescan))
            && region.table() == table
            && region.epoch(now) == epoch
            // PUBLISH: the key is there. Before it nobody sees the entry and anybody may abort it.
            && self.counted(tentative, || {
                slot.compare_exchange(tentative.0, region.dirty(written.word).0, AcqRel, Relaxed).is_ok()
            });
        if !confirmed {
            let _ = slot.compare_exchange(tentative.0, Slot::EMPTY.0, AcqRel, Relaxed);
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
            // PAIRS: SeqCst in `Region::has_thirds`. Not written back in strict mode: the repair behind a power failure says it.
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
                    let seen = match region.look(place.at, word) {
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
                    region.abort(place.at, word);
                    continue 'again;
                }
            }
            return true;
        }
        false
    }

    /// Makes sure that the draft is written: an attempt before may have written the same.
    #[inline]
    fn prepare(
        &self,
        prepared: &mut Prepared,
        key: &Key<'_>,
        draft: &Draft<'_>,
        built: &[u8],
        stamp: Stamp,
        now: u32,
    ) -> Result<(), WriteError> {
        let (epoch, reusable) = match stamp {
            Stamp::Any(epoch) => (epoch, Some(epoch)),
            Stamp::Once(epoch) => (epoch, None),
        };
        if prepared.is_written && reusable.is_some() && prepared.reusable == reusable {
            return Ok(());
        }
        self.discard(prepared);
        self.write(key, draft, built, epoch, now, &mut prepared.written)?;
        (prepared.is_written, prepared.reusable) = (true, reusable);
        // The item, and all that its segment needs to be understood, before any word leads there.
        self.region.barrier();
        Ok(())
    }

    /// A written item that was never published: its place is dead, the segments of its value are free again.
    #[inline]
    pub(crate) fn discard(&self, prepared: &mut Prepared) {
        prepared.is_written = false;
        if prepared.written.chain.is_some() {
            self.discard_chain(prepared);
        }
    }

    #[cold]
    #[inline(never)]
    fn discard_chain(&self, prepared: &mut Prepared) {
        if let Some(chain) = prepared.written.chain.take() {
            self.free_chain(chain.first);
        }
    }

    /// A written item has been published: the segments of its value are its own.
    #[inline]
    fn published(&self, written: &mut Written) {
        if written.chain.is_some() {
            self.published_chain(written);
        }
    }

    #[cold]
    #[inline(never)]
    fn published_chain(&self, written: &mut Written) {
        if let Some(chain) = written.chain.take() {
            self.disown_chain(chain);
        }
    }

    /// Frees the segments of an item that was just replaced, unless the new item has taken them over.
    #[inline]
    fn free_replaced(&self, seen: &Seen, new: Option<Value<'_>>) {
        if seen.header.is_large() {
            self.free_replaced_chain(seen, new);
        }
    }

    #[cold]
    #[inline(never)]
    fn free_replaced_chain(&self, seen: &Seen, new: Option<Value<'_>>) {
        if let Some(chain) = self.region.chain(seen)
            && !matches!(new, Some(Value::Chain(kept)) if kept == chain)
        {
            self.free_chain(chain.first);
        }
    }
}

/// The number that the last `len` characters of these eight say, the first of them in the lowest byte, if all are decimal digits.
#[inline]
fn digits(word: u64, len: usize) -> Option<u64> {
    const ZEROS: u64 = 0x3030_3030_3030_3030;
    const HIGH: u64 = 0xF0F0_F0F0_F0F0_F0F0;
    let others = 64 - 8 * len;
    // What stands before them is made zeros; a shift by all 64 bits does not come up.
    let text = word >> others << others | (ZEROS & ((1 << others) - 1));
    if text & HIGH != ZEROS || text.wrapping_add(0x0606_0606_0606_0606) & HIGH != ZEROS {
        return None;
    }
    // Digits make pairs, pairs fours, fours all of it.
    let pairs = (text - ZEROS).wrapping_mul(10 << 8 | 1) >> 8 & 0x00FF_00FF_00FF_00FF;
    let fours = pairs.wrapping_mul(100 << 16 | 1) >> 16 & 0x0000_FFFF_0000_FFFF;
    Some(fours.wrapping_mul(10_000 << 32 | 1) >> 32)
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
    Any(u32),
    /// of one that is made from the old item
    Once(u32),
}

/// A written item on its way to its publish.
#[derive(Default)]
pub(crate) struct Prepared {
    is_written: bool,
    /// the flush epoch that it was written for, if it is good for another attempt: every attempt of an operation that does
    /// not look at the old item makes the same one
    reusable: Option<u32>,
    pub written: Written,
}

#[cfg(test)]
mod tests {
    use super::digits;

    #[test]
    fn digits_are_read_eight_at_a_time() {
        for len in 1..=8u32 {
            for number in [0, 1, 9, 10, 42, 999, 12_345_678, 90_000_009, 99_999_999] {
                let number = number % 10u64.pow(len);
                let text = format!("{number:0width$}", width = len as usize);
                let mut bytes = [0xFF; 8];
                bytes[8 - len as usize..].copy_from_slice(text.as_bytes());
                assert_eq!(digits(u64::from_le_bytes(bytes), len as usize), Some(number), "{text}");
                for (at, wrong) in (8 - len as usize..8).flat_map(|at| (0..=255).map(move |wrong: u8| (at, wrong))) {
                    let mut bytes = bytes;
                    bytes[at] = wrong;
                    let is_number = digits(u64::from_le_bytes(bytes), len as usize).is_some();
                    assert_eq!(is_number, wrong.is_ascii_digit(), "byte {wrong} at {at}");
                }
            }
        }
    }
}
