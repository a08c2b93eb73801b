//! The memory limit: segments are taken out of use, and their pages go back to the system, while all sessions continue.
//!
//! The superblock says how many segments the limit keeps out of use (`withheld`), and how many of them are out of use already
//! (`withdrawn`). Lowering the limit only stores the first number. The rest is done in bounded steps, by [`Reclaimer::shrink`] and by
//! each session that needs a segment:
//!
//! 1. A free segment is claimed as by a writer, gets its next generation, and is *withdrawn*. If too few are free, segments are
//!    reclaimed as for a writer: the same choice of victims, and live items of more valuable segments stay.
//! 2. When it has been withdrawn for [`GRACE_S`], a session becomes its owner again, and gives its pages back. The state is
//!    persistent before that.
//!
//! Raising the limit goes the other way: the pages are allocated, then the segment is *free*. If they cannot be allocated, it stays
//! withdrawn: **nothing is written to a segment before its pages are allocated**, because a store to a page that a full file system
//! cannot allocate ends the process (SIGBUS).
//!
//! What makes this safe:
//!
//! - A withdrawn segment was free: no slot names it, and no live session may still write to it (`evict.rs`, `empty.rs`).
//! - A thread that still reads an item of an earlier generation reads zeros, and then a newer generation: it starts again. On a
//!   full file system the kernel would have no page for those zeros; the grace period protects threads in the middle of a read from that.
//! - Pages are given back only while the segment has an owner, and its generation moves before it has none again. A thread that
//!   allocates pages leaves a segment with an owner alone. It takes a segment into use by an exchange of the state word that it
//!   read before, which contains the generation.
//! - A thread that dies in step 1 leaves a claimed segment, which recovery frees. In step 2 it leaves a withdrawn segment with a
//!   dead owner, which the next sweep leaves without one. The counts are then recounted, as that of free segments is.

#[cfg(all(test, feature = "observe"))]
mod late;

use crate::atomics::{AcqRel, Relaxed, Release};
use crate::clock::seconds_left;
use crate::layout::index;
use crate::layout::segment::{Kind, State};
use crate::mapped::LOG_MIN;
use crate::reclaim::Reclaimer;
use crate::reclaim::Victims;
use crate::reclaim::empty::Step;
use core::ops::Range;
use std::io;
/// Segments that an idle session may hold, because it has begun an extent in each.
const HELD_BY_A_SESSION: usize = 2;
/// Seconds between the withdrawal of a segment and giving its pages back. A thread in the middle of a read has finished by then,
/// unless it was stopped.
const GRACE_S: u32 = 2;

/// Bytes that one step reclaims, and how many at a time.
const STEP_WORK: usize = 256 << 10;
const STEP_PORTION: usize = 32 << 10;
/// The work, in these bytes, that the withdrawal of a free segment counts as.
const WITHDRAWAL_COST: usize = 1024;
/// Free segments that a session withdraws for each segment that it takes.
const WITHDRAWN_A_SEGMENT: usize = 2;
/// Headers that such a session reads, looking for pages to give back.
const LOOKED_AT_A_SEGMENT: usize = 16;
/// Bytes that one step gives back.
const GIVEN_BACK_A_STEP: usize = 8 << 20;
/// Segments that one step takes into use again, if a thread that grew the region did not finish.
const TAKEN_BACK_A_STEP: usize = 8;

/// The result of a step towards the memory limit.
#[derive(Debug)]
pub enum Shrinking {
    /// the region is within its limit, and there are no pages left to give back
    Done,
    /// there is more to do now
    More,
    /// there is more to do, but not now: segments were withdrawn a moment ago, or other sessions hold what must be reclaimed
    Waiting,
    /// the system did not take pages back: the error, reported once in each process
    Refused(io::Error),
}

impl Victims {
    /// Lowers the limit to this many segments, or as far as the region can still work: it keeps space for items of this size,
    /// and for what cannot be reclaimed (the index). A limit that is already lower stays. Returns how many segments may be in
    /// use now. Nothing is reclaimed yet; see [`crate::Session::shrink`].
    pub fn lower(&self, segments: usize, item_size_max: usize) -> usize {
        self.mapped.catch_up();
        let least = self.allowed_min(item_size_max);
        let allowed = segments.max(least).min(self.mapped.allowed());
        if allowed < self.mapped.allowed() {
            self.mapped.withhold(self.mapped.segments() - allowed);
            // A small region has fewer streams: do not keep an open segment for a stream that gets no more items.
            for word in self.mapped.superblock().open_words() {
                word.store(0, Relaxed);
            }
            // What is left of those segments is for the sweep to finish.
            self.recovery.sweep_lost();
        }
        allowed
    }

    fn allowed_min(&self, item_size_max: usize) -> usize {
        let is_kept = |segment: &usize| {
            let state = State(self.mapped.header(*segment).state.load(Relaxed));
            matches!(state.kind(), Some(Kind::Index | Kind::Hints | Kind::Ghosts))
        };
        let kept = (0..self.mapped.segments()).filter(is_kept).count();
        // A value takes at most half of the segments.
        let item = 2 * item_size_max.div_ceil(self.mapped.layout().shape.segment_size);
        kept + LOG_MIN + HELD_BY_A_SESSION * self.threads.threads_used() + item
    }
}

impl Reclaimer {
    /// A bounded step towards the memory limit: segments are reclaimed and withdrawn while more than the limit are in use, and
    /// the pages of withdrawn ones go back to the system.
    pub fn shrink(&self, now: u32) -> Shrinking {
        self.mapped().catch_up();
        if !self.mapped().is_shrinking() {
            return Shrinking::Done;
        }
        // A session that cannot count its changes may make none.
        if self.counting().enter().is_err() {
            return Shrinking::Waiting;
        }
        let has_more = self.withdraw(now);
        self.take_back_missed();
        let given_back = self.give_back_among(self.mapped().segments(), GIVEN_BACK_A_STEP, now);
        self.counting().leave();
        match given_back {
            Err(error) => Shrinking::Refused(error),
            Ok(came_to_bound) if came_to_bound || has_more => Shrinking::More,
            Ok(_) if self.mapped().is_shrinking() => Shrinking::Waiting,
            Ok(_) => Shrinking::Done,
        }
    }

    /// The share of a session that is about to take a segment. So the region shrinks as it is written to, even if no thread
    /// calls [`Self::shrink`].
    pub(super) fn shrink_a_little(&self, now: u32) {
        for _ in 0..WITHDRAWN_A_SEGMENT {
            if !self.log().claims().has_more_than_reserve() || !self.withdraw_one(now) {
                break;
            }
        }
        // A caller of `shrink` gets the error.
        let _ = self.give_back_among(LOOKED_AT_A_SEGMENT, self.mapped().layout().shape.segment_size, now);
    }

    /// Withdraws segments. Returns whether there is more to do now.
    fn withdraw(&self, now: u32) -> bool {
        if self.mapped().withdrawn() >= self.mapped().withheld() {
            return false;
        }
        self.release_extents();
        let mut left = STEP_WORK;
        while self.mapped().withdrawn() < self.mapped().withheld() {
            if left == 0 {
                return true;
            }
            let cost = if self.log().claims().has_more_than_reserve() {
                if !self.withdraw_one(now) {
                    return false;
                }
                WITHDRAWAL_COST
            } else {
                if !self.make_room(STEP_PORTION, now) {
                    return false;
                }
                STEP_PORTION
            };
            left = left.saturating_sub(cost);
        }
        false
    }

    /// Takes a free segment out of use, if the limit requires one more. It is counted first: a thread that dies in between
    /// leaves a count that is too high, until recovery counts again.
    fn withdraw_one(&self, now: u32) -> bool {
        let sb = self.mapped().superblock();
        let mut withdrawn = sb.withdrawn.load(Relaxed);
        loop {
            if index(withdrawn) >= self.mapped().withheld() {
                return false;
            }
            match sb.withdrawn.compare_exchange(withdrawn, withdrawn + 1, Relaxed, Relaxed) {
                Ok(_) => break,
                Err(other) => withdrawn = other,
            }
        }
        let Some(segment) = self.log().claims().claim_free() else {
            sb.withdrawn.fetch_sub(1, Relaxed);
            return false;
        };
        self.mapped().header(segment).opened.store(now, Relaxed);
        self.leave_withdrawn(segment, false);
        // If others counted after this thread's count and before this point, one more was withdrawn than the limit says.
        if self.mapped().withdrawn() >= self.mapped().withheld() {
            self.mapped().doubt_free();
        }
        true
    }

    /// Leaves this session's own segment withdrawn, without owner and in its next generation. So a thread that read its state
    /// before, and allocated pages for it, does not take it into use.
    fn leave_withdrawn(&self, segment: usize, pages_given_back: bool) {
        let word = &self.mapped().words(segment).generation;
        let generation = word.load(Relaxed).wrapping_add(1);
        word.store(generation, Relaxed);
        let state = State::withdrawn(generation, pages_given_back);
        // PAIRS: owner: the load in `Mapped::unowned_withdrawn`: this session does not give back what is allocated after it.
        self.mapped().header(segment).state.store(state.0, Release);
    }

    /// Takes segments into use that the limit does not keep out of use: a thread grew the region, and did not finish.
    fn take_back_missed(&self) {
        let withheld = self.mapped().withheld();
        if self.mapped().withdrawn() > withheld {
            // If there is no memory for them, they stay out of use.
            let _ = self.mapped().take_into_use(withheld, TAKEN_BACK_A_STEP);
        }
    }

    /// Looks at the next headers for withdrawn segments whose grace is over, and gives their pages back, up to this many bytes.
    /// Returns whether it reached that many.
    fn give_back_among(&self, headers: usize, bytes: usize, now: u32) -> io::Result<bool> {
        let mapped = self.mapped();
        if mapped.withdrawn() <= mapped.given_back() || !mapped.may_give_back() {
            return Ok(false);
        }
        let (segments, together) = (mapped.segments(), mapped.segments_of_a_page());
        let size = together * mapped.layout().shape.segment_size;
        let mut left = bytes;
        let mut first = self.given_back_next.get();
        for _ in 0..headers.div_ceil(together) {
            // A page that also holds other parts of the file stays.
            if first + together > segments {
                first = 0;
            }
            let group = first..first + together;
            first += together;
            if group.end <= segments && self.are_due(group.clone(), now) && self.give_back(group)? {
                left = left.saturating_sub(size);
            }
            if left == 0 {
                break;
            }
        }
        self.given_back_next.set(first);
        Ok(left == 0)
    }

    /// Whether these segments, which share their pages, are out of use, their grace is over, and some still have their pages.
    fn are_due(&self, segments: Range<usize>, now: u32) -> bool {
        let mut have_pages = false;
        for segment in segments {
            let Some(state) = self.mapped().unowned_withdrawn(segment) else {
                return false;
            };
            let opened = self.mapped().header(segment).opened.load(Relaxed);
            if seconds_left(now, opened) < GRACE_S {
                return false;
            }
            have_pages |= !state.has_no_pages();
        }
        have_pages
    }

    /// Gives the pages of these segments back, if this session can own all of them meanwhile.
    fn give_back(&self, segments: Range<usize>) -> io::Result<bool> {
        let mapped = self.mapped();
        let mut owned = segments.start;
        while owned < segments.end && self.own_withdrawn(owned) {
            mapped.write_back_header(owned);
            owned += 1;
        }
        let has_all = owned == segments.end;
        // A segment that is not known to be withdrawn after a power failure would be taken for a free one.
        mapped.barrier();
        let outcome = if has_all {
            mapped.host().give_back(mapped.pages_of(segments.clone()))
        } else {
            Ok(())
        };
        let given_back = has_all && outcome.is_ok();
        for segment in segments.start..owned {
            self.leave_withdrawn(segment, given_back);
            mapped.superblock().given_back.fetch_add(u64::from(given_back), Relaxed);
        }
        if outcome.is_err() {
            mapped.note_that_pages_stay();
        }
        // As in `withdraw_one`.
        if mapped.given_back() >= mapped.withdrawn() {
            mapped.doubt_free();
        }
        outcome.map(|()| given_back)
    }

    /// Makes this session the owner of a withdrawn segment without owner. Until it is left, its pages do not count as given back.
    fn own_withdrawn(&self, segment: usize) -> bool {
        let Some(state) = self.mapped().unowned_withdrawn(segment) else {
            return false;
        };
        let is_own = self.own(segment, state);
        if is_own && state.has_no_pages() {
            self.mapped().superblock().given_back.fetch_sub(1, Relaxed);
        }
        is_own
    }

    fn own(&self, segment: usize, from: State) -> bool {
        let owned = State::owned(Kind::Withdrawn, self.thread().owner());
        // PAIRS: owner: the load in `Reclaimer::empty_step`: a thread that sees the owner sees its lease.
        self.mapped()
            .header(segment)
            .state
            .compare_exchange(from.0, owned.0, AcqRel, Relaxed)
            .is_ok()
    }

    /// A withdrawn segment whose owner died while it gave the pages back: the segment stays out of use, and its pages are given
    /// back once more.
    pub(super) fn settle_withdrawn(&self, segment: usize, state: State) -> Step {
        if state.owner().is_some() && self.own(segment, state) {
            self.leave_withdrawn(segment, false);
        }
        Step::Passed
    }
}
