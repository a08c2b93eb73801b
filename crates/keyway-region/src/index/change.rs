//! Changing a key: find it, show the caller what is there, publish what the caller decides.
//!
//! [`Changer::change_fast`] makes the first attempt, compiled into the verb; [`Changer::change`] makes as many as it takes. The
//! steps of an attempt are the same for both, and are those of `model/region_protocol.py` ("Writers"). When another thread was
//! faster, the decision is made again, so it must not have effects of its own.

#[cfg(all(test, feature = "observe"))]
mod late;

use crate::atomics::{AtomicU32, Relaxed};
use crate::flushes::epoch_at_any_time;
use crate::hash::Key;
use crate::heap;
use crate::index::Changer;
use crate::index::find::{Absent, Here, Scan, Tagged};
use crate::index::insert::Insert;
use crate::index::lookup::Place;
use crate::index::old::Old;
use crate::index::slots::Slots;
use crate::layout::item::flag;
use crate::layout::segment::{SegmentHeader, SegmentLife};
use crate::layout::slot::Slot;
use crate::layout::stats::Counter;
use crate::layout::watch::Status;
use crate::log::Items;
use crate::log::{ATTEMPTS_MAX, Chain, Draft, ItemView, Outcome, Purpose, Replaced, Supply, Value, Written};
use crate::mapped::Rules;
use crate::memory::View;
use crate::sink::Unread;
use crate::verbs::{Now, WriteError};

/// Bytes of the buffer for built values that a session keeps between operations.
const BUILT_KEPT_MAX: usize = 64 << 10;

/// What shall become of a key.
pub(crate) enum Decision<'v> {
    /// nothing
    Keep,
    /// remove its item, and also one that is present for fetches only
    Remove,
    /// a new item, independent of the old one: the same in every attempt that decides so
    Put(Draft<'v>),
    /// a new item made from the old one: it inherits the flush epoch
    Replace(Draft<'v>),
    /// the old value could not be read, or there is no memory for the new one
    Unreadable(Unread),
}

/// Decides what becomes of a key. It is called again in every attempt; only the effects of the last call may count.
pub(crate) trait Decide<'v> {
    /// Whether the decision depends on what is there.
    const LOOKS: bool = true;

    /// Whether it sees what is present for fetches only.
    const FETCHES: bool = false;

    /// The decision. `old`: the present item. `built`: an empty buffer in which a new value may be built ([`Value::Built`]).
    fn decide(&mut self, old: Option<&Old<'_>>, built: &mut Vec<u8>) -> Decision<'v>;

    /// The new item, if it is the same whatever is there: it is written while the old one is being fetched, perhaps from memory.
    #[inline(always)]
    fn ahead(&self) -> Option<&Draft<'v>> {
        None
    }
}

/// A decision of any kind, for verbs whose slow paths share one copy of the code.
type AnyDecision<'d, 'v> = dyn FnMut(Option<&Old<'_>>, &mut Vec<u8>) -> Decision<'v> + 'd;

impl<'v> Decide<'v> for AnyDecision<'_, 'v> {
    fn decide(&mut self, old: Option<&Old<'_>>, built: &mut Vec<u8>) -> Decision<'v> {
        self(old, built)
    }
}

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
struct Prepared {
    is_written: bool,
    /// the flush epoch that it was written for, if another attempt can use it: an operation that does not look at the old item
    /// makes the same item in every attempt
    reusable: Option<u64>,
    written: Written,
    /// segments that belong to it alone
    chain: Option<Chain>,
}

/// What an item has of the one that it replaces.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stays {
    Nothing,
    /// that it was fetched: memcached overwrites a number with one of the same length
    Fetched,
    /// that, and its header, so its size, too
    Form,
}

/// The flush epoch of an item that replaces another one and is independent of it: never an older epoch.
#[inline(always)]
fn stamp_over(replaced: SegmentLife, epoch: u64) -> u64 {
    epoch.max(replaced.epoch)
}

/// One attempt at a change.
struct Attempt<'a, 'k, N, const PLAIN: bool> {
    /// where segments come from when none is free
    supply: &'a dyn Supply,
    key: &'a Key<'k>,
    /// the flush epoch when the attempt began
    epoch: u64,
    now: N,
    rules: Rules<PLAIN>,
    /// for a value that the decision builds
    built: &'a mut Vec<u8>,
    /// the item that this attempt or an earlier one has written
    prepared: &'a mut Prepared,
}

/// The result of an attempt.
type Attempted = Result<Option<(Changed, Written)>, WriteError>;

/// Try again: another thread was faster, or something had to be done first.
const AGAIN: Attempted = Ok(None);
/// Nothing was to be done.
const KEPT: Attempted = Ok(Some((Changed::Kept, Written::NONE)));

impl Changer {
    /// Changes a key in one attempt, compiled into the verb, so that values stay in registers from one step to the next, and no
    /// code for rare cases is in between. On anything unusual it gives up (`None`), and the verb begins again with
    /// [`Self::change`]; an item that it has already written is never published, and is dead. Unusual are: durable mode, regions
    /// with checksums, counted changes, a delayed flush, all that a glance gives up on, large values, an extent without space, and
    /// every error.
    #[inline(always)]
    pub(crate) fn change_fast<'v>(
        &self,
        supply: &dyn Supply,
        key: Key<'_>,
        now: &mut impl Now,
        mut decide: impl Decide<'v>,
    ) -> Option<(Changed, Written)> {
        let mapped = self.mapped();
        let view = mapped.memory().view();
        let superblock = view.get(0);
        if !mapped.is_plain() || !self.publisher().counting.enter_known(superblock) {
            return None;
        }
        let changed = match epoch_at_any_time(superblock) {
            Some(epoch) => match self.finder.glance(view, &key) {
                Some(Some(tagged)) => self
                    .change_tagged((supply, view), &key, tagged, epoch, now, &mut decide)
                    .ok()
                    .flatten(),
                Some(None) => match decide.decide(None, &mut Vec::new()) {
                    Decision::Put(draft) | Decision::Replace(draft) => self
                        .insert_fast(supply, (key.bytes, key.hash), draft, epoch, now.tick())
                        .map(|written| (Changed::Put, written)),
                    Decision::Keep | Decision::Remove | Decision::Unreadable(_) => Some((Changed::Kept, Written::NONE)),
                },
                None => None,
            },
            None => None,
        };
        self.thread().end_operation();
        changed
    }

    /// The attempt for a key that very probably has an item.
    #[inline(always)]
    #[allow(unsafe_code, reason = "a segment that there is")]
    fn change_tagged<'v>(
        &self,
        (supply, view): (&dyn Supply, View<'_>),
        key: &Key<'_>,
        tagged: Tagged<'_>,
        epoch: u64,
        now: &mut impl Now,
        decide: &mut impl Decide<'v>,
    ) -> Attempted {
        let mut prepared = Prepared::default();
        let mut attempt = Attempt {
            supply,
            key,
            epoch,
            now,
            rules: Rules::PLAIN,
            built: &mut Vec::new(),
            prepared: &mut prepared,
        };
        if let Some(draft) = decide.ahead() {
            let stamp = Stamp::Any(stamp_over(tagged.led.life, epoch));
            // SAFETY: `follow_known`, which alone makes an `ItemAt`, has found that there is the segment.
            let header = unsafe { self.mapped().header_in(view, tagged.led.segment) };
            if !self.prepare_over(&mut attempt, draft, stamp, header, tagged.led.offset) {
                return AGAIN;
            }
        }
        match self.finder.header_of(view, key, &tagged) {
            Some(header) => self.change_here(attempt, tagged.here(header), decide),
            None => self.again(&attempt),
        }
    }

    /// Gives an attempt up. If it is the only one that would publish the item that it has written, that is dead.
    #[inline(always)]
    fn again<N, const PLAIN: bool>(&self, attempt: &Attempt<'_, '_, N, PLAIN>) -> Attempted {
        if PLAIN && attempt.prepared.is_written {
            self.publisher().segments.count_unpublished(attempt.prepared.written.word);
        }
        AGAIN
    }

    /// [`Self::change`] by a closure.
    pub(crate) fn change_by(
        &self,
        supply: &dyn Supply,
        key: &Key<'_>,
        now: u32,
        decide: &mut AnyDecision<'_, '_>,
    ) -> Result<(Changed, Written), WriteError> {
        self.change(supply, key, now, decide)
    }

    /// Changes a key. `decide` sees the present item (`None`: absent, expired or flushed) and an empty buffer in which it may
    /// build a new value ([`Value::Built`]). Returns what was put in, if anything.
    #[inline(never)]
    pub(crate) fn change<'v, D: Decide<'v> + ?Sized>(
        &self,
        supply: &dyn Supply,
        key: &Key<'_>,
        now: u32,
        decide: &mut D,
    ) -> Result<(Changed, Written), WriteError> {
        self.publisher().counting.enter()?;
        self.publisher().emitter.begin_event();
        let built = &mut *self.built.borrow_mut();
        let mut prepared = Prepared::default();
        let rules = Rules::of(self.mapped());
        let result = (0..ATTEMPTS_MAX).find_map(|_| {
            let attempt = Attempt {
                supply,
                key,
                epoch: self.publisher().index.flushes.epoch(now),
                now,
                rules,
                built,
                prepared: &mut prepared,
            };
            self.attempt(attempt, decide).transpose()
        });
        built.clear();
        heap::shrink(built, BUILT_KEPT_MAX);
        self.thread().end_operation();
        self.discard(&mut prepared);
        result.unwrap_or(Err(WriteError::Corrupt))
    }

    fn attempt<'v, D: Decide<'v> + ?Sized>(&self, attempt: Attempt<'_, '_, u32, false>, decide: &mut D) -> Attempted {
        match self.finder.find(attempt.key) {
            Scan::Here(here) => self.change_here(attempt, here, decide),
            Scan::Absent(absent) => {
                attempt.built.clear();
                if self.publisher().emitter.is_watched() {
                    self.publisher().emitter.note_before(Status::NotFound, 0);
                }
                match decide.decide(None, attempt.built) {
                    Decision::Put(draft) | Decision::Replace(draft) => self.put_absent(attempt, &absent, &draft),
                    Decision::Keep | Decision::Remove | Decision::Unreadable(_) => KEPT,
                }
            }
            Scan::Again => AGAIN,
            Scan::Corrupt => Err(WriteError::Corrupt),
            Scan::Frozen(place, word) => {
                self.publisher().splits().unfreeze(place, word);
                AGAIN
            }
        }
    }

    /// The change of a key that has an item: holds the item, decides, and publishes what was decided.
    #[inline(always)]
    #[allow(unsafe_code, reason = "places in the item's segment, which there is; argued at each access")]
    fn change_here<'v, N: Now, const PLAIN: bool, D: Decide<'v> + ?Sized>(
        &self,
        mut attempt: Attempt<'_, '_, N, PLAIN>,
        mut here: Here<'_>,
        decide: &mut D,
    ) -> Attempted {
        let mapped = self.mapped();
        let (epoch, rules) = (attempt.epoch, attempt.rules);
        let seen = here.seen;
        match self.publisher().hold_unfrozen(here.slot, here.word) {
            Some(word) => here.word = word,
            None => return self.again(&attempt),
        }
        let view = mapped.memory().view();
        // SAFETY: there is the item's segment: see `Here`.
        let words = unsafe { mapped.words_in(view, seen.segment) };
        // SAFETY: the item is in its segment, and begins at a multiple of 4.
        let first: &AtomicU32 = unsafe { view.at(seen.at) };
        // The key was read before the hazard pointer. All forty bits of the generation are the same after it, so the segment was not
        // recycled, and an item does not change in it.
        if !Items::is_still(words, seen.life) {
            return self.again(&attempt);
        }
        let present = !D::LOOKS
            || seen.is_present(epoch, &mut attempt.now)
            || D::FETCHES && seen.life.is_since(epoch) && self.publisher().index.items.until(&seen) > attempt.now.tick();
        let asked = if PLAIN { None } else { Some(attempt.now.tick()) };
        let old = Old::of(self, attempt.key.bytes, &here, asked, rules.has_checksums());
        attempt.built.clear();
        if !PLAIN && self.publisher().emitter.is_watched() {
            self.note_before_change(present.then_some(&old), seen.header.is_expired(attempt.now.tick()));
        }
        let mut decision = decide.decide(present.then_some(&old), attempt.built);
        if rules.has_checksums() {
            match self.verified.outcome.take() {
                // The decision used bytes that are not what was written.
                Outcome::Damaged => decision = Decision::Unreadable(Unread::Changed),
                Outcome::NoMemory => decision = Decision::Unreadable(Unread::NoMemory),
                Outcome::Unasked | Outcome::Intact => {}
            }
        }
        if !PLAIN && !Items::is_still(words, seen.life) {
            return AGAIN;
        }
        match decision {
            Decision::Keep => KEPT,
            // The verb meets it again in `change`.
            Decision::Unreadable(_) if PLAIN => AGAIN,
            Decision::Unreadable(unread) => self.meet_unreadable(unread, attempt.key.bytes, &here, attempt.now.tick()),
            Decision::Remove if !present && !seen.header.has(flag::RECORD) => KEPT,
            Decision::Remove => {
                // PUBLISH: the key is gone.
                if !self.publisher().take_out(&here, rules) {
                    return AGAIN;
                }
                self.publisher().log.counts().count_removed(first, &seen);
                if !PLAIN {
                    self.publisher().free_replaced(&seen, None);
                }
                if seen.header.has(flag::RECORD) {
                    return self.end_flight(attempt.key.hash, present);
                }
                Ok(Some((Changed::Removed, Written::NONE)))
            }
            Decision::Put(draft) => self.put_here(attempt, &here, draft, Stamp::Any(stamp_over(seen.life, epoch))),
            Decision::Replace(draft) if PLAIN && !matches!(draft.value, Value::TextInForm(..)) => {
                let now = match draft.expiry {
                    0 => attempt.now.recent(self.publisher().clock.seen().0),
                    _ => attempt.now.tick(),
                };
                self.put_here_aside(attempt.supply, (attempt.key.bytes, attempt.key.hash), epoch, now, here, draft)
            }
            Decision::Replace(draft) => self.put_here(attempt, &here, draft, Stamp::Once(seen.life.epoch)),
        }
    }

    /// Notes, for watchers, what a change has found.
    #[cold]
    #[inline(never)]
    fn note_before_change(&self, old: Option<&Old<'_>>, is_expired: bool) {
        match old {
            Some(old) => self.publisher().emitter.note_before(Status::Found, old.item().value_len),
            None if is_expired => self.publisher().emitter.note_before(Status::Expired, 0),
            None => self.publisher().emitter.note_before(Status::NotFound, 0),
        }
    }

    /// [`Self::put_here`] of an item that replaces the other one, in a region without rules. A function of its own: the rarer values
    /// would cost those of [`Value::TextInForm`] a register here and there.
    #[inline(never)]
    fn put_here_aside(
        &self,
        supply: &dyn Supply,
        (bytes, hash): (&[u8], u64),
        epoch: u64,
        now: u32,
        here: Here<'_>,
        draft: Draft<'_>,
    ) -> Attempted {
        let mut prepared = Prepared::default();
        let attempt = Attempt {
            supply,
            key: &Key { bytes, hash },
            epoch,
            now,
            rules: Rules::PLAIN,
            built: &mut Vec::new(),
            prepared: &mut prepared,
        };
        self.put_here(attempt, &here, draft, Stamp::Once(here.seen.life.epoch))
    }

    /// Puts a new item in the place of the one that is here, and held.
    #[inline(always)]
    #[allow(unsafe_code, reason = "places in the item's segment, which there is; argued at each access")]
    fn put_here<N: Now, const PLAIN: bool>(
        &self,
        mut attempt: Attempt<'_, '_, N, PLAIN>,
        here: &Here<'_>,
        draft: Draft<'_>,
        stamp: Stamp,
    ) -> Attempted {
        let mapped = self.mapped();
        let (Here { place, seen, .. }, rules) = (*here, attempt.rules);
        // SAFETY: there is the item's segment: see `Here`.
        let header = unsafe { mapped.header_in(mapped.memory().view(), seen.segment) };
        if !PLAIN {
            let replaced = Replaced::held(&self.publisher().uniques, header, &seen);
            self.prepare(&mut attempt, &draft, stamp, Some(replaced))?;
        } else if !self.prepare_over(&mut attempt, &draft, stamp, header, seen.offset)
            || !self.exceeds(&attempt.prepared.written, &draft, &seen)
        {
            return self.again(&attempt);
        }
        let written = attempt.prepared.written;
        let stays = self.what_stays(&seen, draft.value, &written);
        let word = match stays {
            Stays::Nothing => written.word,
            Stays::Fetched | Stays::Form => written.word.fetched(),
        };
        // PUBLISH: the new item. Its extent's tail is out already. Recovery leaves the word that it finds in the slot, old or new.
        if !self.publisher().put_over(here, word, rules) {
            return self.again(&attempt);
        }
        let now = attempt.now.recent(self.publisher().clock.seen().0);
        // SAFETY: the item is in its segment, and begins at a multiple of 4.
        let first: &AtomicU32 = unsafe { mapped.memory().view().at(seen.at) };
        self.count_replaced(place, (header, first, &seen), stays, &written, now);
        if !PLAIN {
            self.publisher().free_replaced(&seen, Some(&draft.value));
            self.published(attempt.prepared);
        }
        if seen.header.has(flag::RECORD) {
            self.publisher().flights.wake(attempt.key.hash);
        }
        Ok(Some((Changed::Put, written)))
    }

    /// An item with a record is gone: whoever waits for it looks again.
    fn end_flight(&self, hash: u64, was_present: bool) -> Attempted {
        self.publisher().flights.wake(hash);
        if was_present {
            Ok(Some((Changed::Removed, Written::NONE)))
        } else {
            KEPT
        }
    }

    /// What an item with this value has of the one that it replaces.
    #[inline(always)]
    fn what_stays(&self, seen: &ItemView, value: Value<'_>, written: &Written) -> Stays {
        match value {
            Value::TextInForm(..) => Stays::Form,
            Value::Number(..) | Value::Text(..)
                if written.value_len == self.publisher().index.items.value_len(seen, self.mapped().checksum_size()) =>
            {
                Stays::Fetched
            }
            _ => Stays::Nothing,
        }
    }

    /// Counts that an item has replaced another one, of which there are the segment's header and the first word.
    #[inline(always)]
    fn count_replaced(
        &self,
        place: Place,
        (header, first, seen): (&SegmentHeader, &AtomicU32, &ItemView),
        stays: Stays,
        written: &Written,
        now: u32,
    ) {
        match stays {
            Stays::Nothing => Slots::set_hint((self.mapped(), &self.publisher().directory), place, now),
            Stays::Fetched | Stays::Form => Slots::refresh_hint((self.mapped(), &self.publisher().directory), place, header, now),
        }
        if stays == Stays::Form {
            return self.publisher().log.counts().mark_dead(first, seen, written.size);
        }
        let size = seen.header.size();
        self.thread().count(
            Counter::bytes,
            (written.size as u64).wrapping_sub(self.publisher().index.items.size_in_all(seen, size) as u64),
        );
        self.publisher().log.counts().mark_dead(first, seen, size);
    }

    /// Ends an attempt whose item could not be read.
    #[cold]
    #[inline(never)]
    fn meet_unreadable(&self, unread: Unread, key: &[u8], here: &Here<'_>, now: u32) -> Attempted {
        match unread {
            Unread::NoMemory => Err(WriteError::NoMemory {
                len: self
                    .publisher()
                    .index
                    .facts(&here.seen, (here.place, here.word), false, now)
                    .value_len,
            }),
            Unread::Changed if here.word.same_but_frequency(Slot(here.slot.load(Relaxed))) => {
                self.publisher().remove_damaged(key, here.place, here.word);
                Err(WriteError::Corrupt)
            }
            Unread::Changed => AGAIN,
        }
    }

    /// The attempt for a key that has no item, after a glance.
    #[inline(never)]
    fn insert_fast(
        &self,
        supply: &dyn Supply,
        (bytes, hash): (&[u8], u64),
        draft: Draft<'_>,
        epoch: u64,
        now: u32,
    ) -> Option<Written> {
        let key = &Key { bytes, hash };
        let Scan::Absent(absent) = self.finder.room_for(key, self.finder.table.get(), None) else {
            return None;
        };
        let mut prepared = Prepared::default();
        let attempt = Attempt {
            supply,
            key,
            epoch,
            now,
            rules: Rules::of(self.mapped()),
            built: &mut Vec::new(),
            prepared: &mut prepared,
        };
        let put = self.put_absent(attempt, &absent, &draft).ok().flatten();
        self.discard(&mut prepared);
        put.map(|(_, written)| written)
    }

    /// An attempt to put an item where there is none.
    fn put_absent(&self, mut attempt: Attempt<'_, '_, u32, false>, absent: &Absent, draft: &Draft<'_>) -> Attempted {
        let (key, epoch, now) = (attempt.key, attempt.epoch, attempt.now);
        if let Some((place, word)) = absent.tentative {
            // Any thread may abort a tentative entry of any other: its owner may be dead.
            self.publisher().index.slots.abort(place, word);
            return AGAIN;
        }
        let (place, over) = match (absent.empty, absent.victim) {
            (Some(place), _) => (place, Slot::EMPTY),
            // All buckets of the key are full: grow if the index should grow; otherwise evict.
            _ if self
                .publisher()
                .splits()
                .grow_for_room(attempt.supply, now, || self.discard(attempt.prepared)) =>
            {
                return AGAIN;
            }
            (None, Some((place, word))) if word.is_tentative() => {
                self.publisher().index.slots.abort(place, word);
                return AGAIN;
            }
            (None, Some((_, _))) if !self.publisher().index.limits.evicts() => return Err(WriteError::OutOfMemory),
            // A tentative word over a victim could bring it back to life: so the victim is removed first, persistently.
            (None, Some((place, word))) if attempt.rules.is_durable() => {
                self.publisher().evict_word(place, word, epoch, now);
                self.publisher()
                    .splits()
                    .grow_after_eviction(attempt.supply, now, || self.discard(attempt.prepared));
                return AGAIN;
            }
            (None, Some((place, word))) => (place, word),
            (None, None) => return AGAIN,
        };
        self.prepare(&mut attempt, draft, Stamp::Any(epoch), None)?;
        let written = attempt.prepared.written;
        let insert = Insert {
            key,
            table: absent.table,
            place,
            over,
            epoch,
            now,
        };
        if !self.publisher().insert(&insert, &written, attempt.rules) {
            return AGAIN;
        }
        self.published(attempt.prepared);
        self.publisher().splits().grow_a_little(attempt.supply, now);
        if !over.is_empty() {
            self.publisher()
                .splits()
                .grow_after_eviction(attempt.supply, now, || self.discard(attempt.prepared));
        }
        Ok(Some((Changed::Put, written)))
    }

    /// Makes sure that the draft is written. An earlier attempt may have written the same item.
    fn prepare<N: Now, const PLAIN: bool>(
        &self,
        attempt: &mut Attempt<'_, '_, N, PLAIN>,
        draft: &Draft<'_>,
        stamp: Stamp,
        replaced: Option<Replaced<'_>>,
    ) -> Result<(), WriteError> {
        let prepared = &mut *attempt.prepared;
        let (epoch, reusable) = match stamp {
            Stamp::Any(epoch) => (epoch, Some(epoch)),
            Stamp::Once(epoch) => (epoch, None),
        };
        let is_above = draft.cas.is_some() || replaced.is_none_or(|replaced| prepared.written.cas > replaced.unique);
        if prepared.is_written && reusable.is_some() && prepared.reusable == reusable && is_above {
            return Ok(());
        }
        self.discard(prepared);
        let purpose = Purpose {
            key: attempt.key,
            epoch,
            now: attempt.now.tick(),
            replaced,
            rules: attempt.rules.general(),
        };
        (prepared.written, prepared.chain) = self.publisher().log.write(attempt.supply, &purpose, draft, attempt.built)?;
        // A CAS unique that follows the replaced item's is for this attempt: another session may give it, too, and be faster.
        let reusable = reusable.filter(|_| draft.cas.is_some() || self.publisher().uniques.is_unique_of_place(&prepared.written));
        (prepared.is_written, prepared.reusable) = (true, reusable);
        // The item, and all that its segment needs to be understood, must be persistent before any word leads there.
        self.mapped().barrier();
        Ok(())
    }

    /// Writes the new item, if it is not written yet: fast path for replacing the item at this offset of the segment with this
    /// header, in a region without rules. `false`: fall back to the slow path.
    #[inline(always)]
    fn prepare_over<N: Now, const PLAIN: bool>(
        &self,
        attempt: &mut Attempt<'_, '_, N, PLAIN>,
        draft: &Draft<'_>,
        stamp: Stamp,
        header: &SegmentHeader,
        offset: usize,
    ) -> bool {
        if !attempt.prepared.is_written {
            let (Stamp::Any(epoch) | Stamp::Once(epoch)) = stamp;
            let replaced = Replaced::new(header, offset);
            match self
                .publisher()
                .log
                .write_over(attempt.supply, attempt.key, epoch, &mut attempt.now, draft, replaced)
            {
                Some(written) => attempt.prepared.written = written,
                None => return false,
            }
            attempt.prepared.is_written = true;
        }
        true
    }

    /// Whether the item that was written by [`Self::prepare_over`] has a greater CAS unique than the one that it replaces. Its
    /// place gives it one above what the other's place gives, but the other item may carry a greater one.
    #[inline(always)]
    fn exceeds(&self, written: &Written, draft: &Draft<'_>, seen: &ItemView) -> bool {
        !seen.header.has(flag::CAS) || draft.cas.is_some() || self.exceeds_carried(written.cas, *seen)
    }

    /// By value: a caller that does not get here keeps the item in registers.
    #[cold]
    #[inline(never)]
    fn exceeds_carried(&self, cas: u64, seen: ItemView) -> bool {
        cas > self.publisher().uniques.unique_to_exceed(&seen)
    }

    /// A written item that was never published: its place is dead, and the segments of its value are freed.
    fn discard(&self, prepared: &mut Prepared) {
        if std::mem::take(&mut prepared.is_written) {
            self.publisher().segments.count_unpublished(prepared.written.word);
        }
        if let Some(chain) = prepared.chain.take() {
            self.publisher().log.claims().free_chain(chain.first);
        }
    }

    /// A written item was published: the segments of its value now belong to it.
    fn published(&self, prepared: &mut Prepared) {
        prepared.is_written = false;
        if let Some(chain) = prepared.chain.take() {
            self.publisher().log.claims().disown_chain(chain);
        }
    }
}
