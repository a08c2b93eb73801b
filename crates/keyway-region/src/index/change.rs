//! Changing a key: find it, show the caller what is there, publish what the caller decides.
//!
//! [`Session::change`] is the one entry; its steps are those of `model/region_protocol.py` ("Writers"). When another thread was
//! faster, the decision is made again, so it must not have effects of its own.

#[cfg(all(test, feature = "observe"))]
mod late;

use crate::atomics::Relaxed;
use crate::hash::Key;
use crate::heap;
use crate::index::insert::{Absent, Insert, Scan};
use crate::index::lookup::Place;
use crate::layout::segment::SegmentLife;
use crate::layout::slot::Slot;
use crate::layout::stats::Counter;
use crate::log::{ATTEMPTS_MAX, Chain, Draft, Outcome, Replaced, Seen, Value, Verified, Written, chain_of};
use crate::mutants::{self, Mutant};
use crate::region::Region;
use crate::session::Session;
use crate::sink::{Sink, Unread};
use crate::verbs::{Item, WriteError};

/// Bytes of the buffer for built values that a session keeps between operations.
const BUILT_KEPT_MAX: usize = 64 << 10;

/// The present item, shown to a decision.
pub(crate) struct Old<'r> {
    session: &'r Session,
    region: &'r Region,
    key: &'r [u8],
    seen: Seen,
    place: Place,
    now: u32,
}

impl<'r> Old<'r> {
    /// What is known of it, with details.
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

    /// Its expiry: a tick of the region's clock, 0 for never.
    pub fn expiry(&self) -> u32 {
        self.seen.header.expiry()
    }

    /// Copies the value to the end of `out`.
    pub fn append_value(&self, out: &mut impl Sink) -> Result<(), Unread> {
        if self.region.has_checksums() {
            return self.append_copy(out);
        }
        self.region.append_value(&self.seen, out)
    }

    /// The value, copied to `out`. `None` if it is longer, or has segments of its own.
    #[inline]
    pub fn short_value<'o>(&self, out: &'o mut [u8]) -> Option<&'o [u8]> {
        if self.region.has_checksums() {
            // The caller takes it from the verified copy instead, which is as good.
            return None;
        }
        self.region.short_value(&self.seen, out)
    }

    /// The segments that hold the value, if it has its own.
    pub fn chain(&self) -> Option<Chain> {
        if self.region.has_checksums() {
            return chain_of(&self.copy().body.borrow()).filter(|_| self.seen.header.is_large());
        }
        self.region.chain(&self.seen)
    }

    /// The item, copied and verified once. In a region with checksums a decision takes everything of the old item from this copy.
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
    fn append_copy(&self, out: &mut impl Sink) -> Result<(), Unread> {
        let copy = self.copy();
        if let Some(chain) = self.chain() {
            return self.region.append_chain(chain, out);
        }
        let body = copy.body.borrow();
        if copy.outcome.get() == Outcome::NoMemory {
            return Err(Unread::NoMemory);
        }
        out.append_bytes(&body)?;
        match copy.outcome.get() {
            Outcome::Intact => Ok(()),
            _ => Err(Unread::Changed),
        }
    }
}

/// What shall become of a key.
pub(crate) enum Decision<'v> {
    /// nothing
    Keep,
    /// remove its item
    Remove,
    /// a new item, independent of the old one
    Put(Draft<'v>),
    /// a new item made from the old one: it inherits the flush epoch
    Replace(Draft<'v>),
    /// the old value could not be read, or there is no memory for the new one
    Unreadable(Unread),
}

/// Decides what becomes of a key. It is called again in every attempt; only the effects of the last call may count.
pub(super) type Decide<'d, 'v> = dyn FnMut(Option<&Old<'_>>, &mut Vec<u8>) -> Decision<'v> + 'd;

/// What became of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Changed {
    Kept,
    Removed,
    /// there is a new item: [`Written`]
    Put,
}

/// The flush epoch that an item is written for.
#[derive(Clone, Copy)]
enum Stamp {
    /// the item is good for any attempt: it does not depend on the old one
    Any(u64),
    /// the item is made from the old one
    Once(u64),
}

/// A written item that is to be published.
#[derive(Clone, Copy, Default)]
pub(super) struct Prepared {
    is_written: bool,
    /// the flush epoch that it was written for, if another attempt can use it: an operation that does not look at the old item
    /// makes the same item in every attempt
    reusable: Option<u64>,
    pub written: Written,
}

/// The flush epoch of an item that replaces another one and is independent of it: never an older epoch.
#[inline(always)]
pub(super) fn stamp_over(replaced: SegmentLife, epoch: u64) -> u64 {
    if mutants::is(Mutant::StampDown) {
        epoch
    } else {
        epoch.max(replaced.epoch)
    }
}

/// One attempt at a change.
struct Attempt<'a, 'k> {
    key: &'a Key<'k>,
    /// the flush epoch when the attempt began
    epoch: u64,
    now: u32,
    /// for a value that the decision builds
    built: &'a mut Vec<u8>,
    /// the item that this attempt or an earlier one has written
    prepared: &'a mut Prepared,
}

/// The result of an attempt. `None`: try again, because another thread was faster, or because something had to be done first.
type Attempted = Result<Option<Changed>, WriteError>;

impl Session {
    /// Changes a key. `decide` sees the present item (`None`: absent, expired or flushed) and an empty buffer in which it may
    /// build a new value ([`Value::Built`]). Returns what was put in, if anything.
    #[inline(never)]
    pub(crate) fn change(&self, key: &Key<'_>, now: u32, decide: &mut Decide<'_, '_>) -> Result<(Changed, Written), WriteError> {
        self.enter()?;
        let built = &mut *self.built.borrow_mut();
        let mut prepared = Prepared::default();
        let result = (0..ATTEMPTS_MAX).find_map(|_| {
            let attempt = Attempt {
                key,
                epoch: self.region.epoch(now),
                now,
                built,
                prepared: &mut prepared,
            };
            self.attempt(attempt, decide).transpose()
        });
        built.clear();
        heap::shrink(built, BUILT_KEPT_MAX);
        self.end_operation();
        self.discard(&mut prepared);
        let changed = result.unwrap_or(Err(WriteError::Corrupt))?;
        Ok((changed, prepared.written))
    }

    fn attempt(&self, attempt: Attempt<'_, '_>, decide: &mut Decide<'_, '_>) -> Attempted {
        match self.scan(attempt.key) {
            Scan::Here(place, word, seen) => self.change_here(attempt, (place, word, seen), decide),
            Scan::Absent(absent) => {
                attempt.built.clear();
                match decide(None, attempt.built) {
                    Decision::Put(draft) | Decision::Replace(draft) => self.put_absent(attempt, &absent, &draft),
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

    /// An attempt for a key that has an item.
    fn change_here(
        &self,
        attempt: Attempt<'_, '_>,
        (place, word, seen): (Place, Slot, Seen),
        decide: &mut Decide<'_, '_>,
    ) -> Attempted {
        let region = &*self.region;
        let (epoch, now) = (attempt.epoch, attempt.now);
        let slot = region.slot(place.at);
        let Some(word) = self.hold(slot, word) else {
            return Ok(None);
        };
        // The key was read before the intent. All forty bits of the generation are the same after it, so the segment was not
        // recycled, and an item does not change in it.
        if !region.still(&seen) {
            return Ok(None);
        }
        let present = seen.is_present(epoch, now);
        let old = Old {
            session: self,
            region,
            key: attempt.key.bytes,
            seen,
            place,
            now,
        };
        attempt.built.clear();
        let mut decision = decide(present.then_some(&old), attempt.built);
        if region.has_checksums() {
            match self.verified.outcome.take() {
                // The decision used bytes that are not what was written.
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
        let written = self.prepare(attempt, &draft, stamp, Some(replaced))?;
        // PUBLISH: the new item. Its extent's tail is out already. Recovery leaves the word that it finds in the slot, old or new.
        if !self.put_over(place, word, written.word) {
            return Ok(None);
        }
        self.count_replaced(place, &seen, draft.value, written, now);
        self.free_replaced(&seen, Some(&draft.value));
        self.published(written);
        Ok(Some(Changed::Put))
    }

    /// Counts that an item with this value has replaced another one.
    #[inline(always)]
    pub(super) fn count_replaced(&self, place: Place, seen: &Seen, value: Value<'_>, written: &Written, now: u32) {
        match value {
            // memcached overwrites the number in place, so the item stays as fetched as it was.
            Value::Number(_, width) if width == written.value_len => self.region.refresh_hint(place, seen, now),
            _ => self.region.set_hint(place, now, false),
        }
        self.count(
            Counter::bytes,
            (written.size as u64).wrapping_sub(self.region.size(seen) as u64),
        );
        self.bury(seen);
    }

    /// Ends an attempt whose item could not be read.
    #[cold]
    #[inline(never)]
    fn meet_unreadable(&self, unread: Unread, seen: Seen, place: Place, word: Slot, now: u32) -> Attempted {
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

    /// Puts an item where there is none, in one attempt. `None`: the attempt failed.
    pub(super) fn put_once(&self, key: &Key<'_>, absent: &Absent, draft: &Draft<'_>, epoch: u64, now: u32) -> Option<Written> {
        let mut prepared = Prepared::default();
        let attempt = Attempt {
            key,
            epoch,
            now,
            built: &mut Vec::new(),
            prepared: &mut prepared,
        };
        let put = self.put_absent(attempt, absent, draft);
        if !matches!(put, Ok(Some(_))) {
            self.discard(&mut prepared);
            return None;
        }
        Some(prepared.written)
    }

    /// An attempt to put an item where there is none.
    fn put_absent(&self, attempt: Attempt<'_, '_>, absent: &Absent, draft: &Draft<'_>) -> Attempted {
        let region = &*self.region;
        let (key, epoch, now) = (attempt.key, attempt.epoch, attempt.now);
        if let Some((place, word)) = absent.tentative
            && !mutants::is(Mutant::InsertWithoutRescan)
        {
            // Any thread may abort a tentative entry of any other: its owner may be dead.
            if !mutants::is(Mutant::WaitOnTentative) {
                region.abort(place, word);
            }
            return Ok(None);
        }
        let (place, over) = match (absent.empty, absent.victim) {
            (Some(place), _) => (place, Slot::EMPTY),
            // All buckets of the key are full: grow if the index should grow; otherwise evict.
            _ if self.grow_for_room(attempt.prepared, now) => return Ok(None),
            (None, Some((place, word))) if word.is_tentative() => {
                region.abort(place, word);
                return Ok(None);
            }
            (None, Some((_, _))) if !self.limits.evict => return Err(WriteError::OutOfMemory),
            // A tentative word over a victim could bring it back to life: so the victim is removed first, persistently.
            (None, Some((place, word))) if region.is_strict() => {
                self.evict_word(place, word, epoch, now);
                return Ok(None);
            }
            (None, Some((place, word))) => (place, word),
            (None, None) => return Ok(None),
        };
        let written = self.prepare(attempt, draft, Stamp::Any(epoch), None)?;
        let insert = Insert {
            key,
            table: absent.table,
            place,
            over,
            epoch,
            now,
        };
        if !self.insert(&insert, written) {
            return Ok(None);
        }
        self.published(written);
        self.grow_a_little(now);
        Ok(Some(Changed::Put))
    }

    /// Makes sure that the draft is written. An earlier attempt may have written the same item.
    fn prepare<'a>(
        &self,
        attempt: Attempt<'a, '_>,
        draft: &Draft<'_>,
        stamp: Stamp,
        replaced: Option<Replaced>,
    ) -> Result<&'a mut Written, WriteError> {
        let prepared = attempt.prepared;
        let (epoch, reusable) = match stamp {
            Stamp::Any(epoch) => (epoch, Some(epoch)),
            Stamp::Once(epoch) => (epoch, None),
        };
        let is_above = draft.cas.is_some() || replaced.is_none_or(|replaced| prepared.written.cas > replaced.unique);
        if prepared.is_written && reusable.is_some() && prepared.reusable == reusable && is_above {
            return Ok(&mut prepared.written);
        }
        self.discard(prepared);
        prepared.written = self.write(attempt.key, draft, attempt.built, epoch, replaced, attempt.now)?;
        (prepared.is_written, prepared.reusable) = (true, reusable);
        // The item, and all that its segment needs to be understood, must be persistent before any word leads there.
        self.region.barrier();
        Ok(&mut prepared.written)
    }

    /// A written item that was never published: its place is dead, and the segments of its value are freed.
    pub(super) fn discard(&self, prepared: &mut Prepared) {
        prepared.is_written = false;
        if let Some(chain) = prepared.written.chain.take() {
            self.free_chain(chain.first);
        }
    }

    /// A written item was published: the segments of its value now belong to it.
    fn published(&self, written: &mut Written) {
        if let Some(chain) = written.chain.take() {
            self.disown_chain(chain);
        }
    }
}
