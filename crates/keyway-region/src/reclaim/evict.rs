//! Eviction: which segment is reclaimed next, and which session does the work.
//!
//! The log is kept in two pools (S3-FIFO: Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023, with
//! segments for objects). New items go to the admission pool, about a twentieth of the segments. When one of its segments is
//! reclaimed, items that were hit move to the main pool, and the others leave a ghost; a key that comes back while its ghost is
//! there goes straight to the main pool. The main pool is a queue in which items that were hit since go round once more.
//! Segments in which everything is dead (flushed, expired) go first. Then mostly-dead ones are compacted. So a region whose live
//! items fit never evicts, however often they are rewritten.
//!
//! **No operation pays for a whole segment.** As soon as fewer segments are free than the reserve, each writer does a share of
//! the work in proportion to what it takes ([`Reclaimer::pay`]), so that a free segment is there when an extent is leased. A reclaim
//! proceeds by steps of some items. Between two steps the segment has no owner, and any thread may do the next one. No thread
//! waits for another: a segment that cannot be reclaimed now is skipped.

use crate::atomics::Relaxed;
use crate::changes::Counting;
use crate::clock::seconds_left;
use crate::index::Changer;
use crate::index::Index;
use crate::layout::index;
use crate::layout::segment::Stream;
use crate::layout::segment::{ADMISSION, Kind, MAIN, POOLS, Spare, State};
use crate::layout::stats::Counter;
use crate::layout::superblock::{SPARSE_LEVELS, SPARSE_WAYS};
use crate::log::Appender;
use crate::log::Segments;
use crate::log::{PORTION, Supply};
use crate::mapped::Mapped;
use crate::reclaim::Reclaimer;
use crate::reclaim::Victims;
use crate::reclaim::empty::Step;
use crate::recover::Recovery;
use crate::threads::Thread;
use crate::threads::Threads;
use crate::verbs::WriteError;
use std::cell::Cell;
use std::sync::Arc;
/// Bytes that are reclaimed for each byte taken, at most. A reclaim may free only one segment in this many, because relocations fill
/// the others: see [`crate::reclaim::empty::SPARED_MAX`].
const WORK_MAX: usize = 8;
/// Small portions that a writer pays for together while more segments are free than the reserve: twice their bytes are reclaimed
/// then, which is still at most [`WORK_MAX`] for each byte of a portion.
const PORTIONS_AT_ONCE: usize = WORK_MAX / 2;
/// Headers that one step of a survey reads, and the work that this counts as.
const SURVEY_STEP: usize = 512;
const SURVEY_COST: usize = 512;
/// Surveys of a session while it reclaims as many segments as there are, and the least number of segments that it reclaims
/// between two surveys.
const SURVEYS_A_ROUND: usize = 4;
const SURVEY_AFTER: usize = 64;
/// Headers that a survey reads at most: in a larger region the oldest segment is the oldest of a part.
const SURVEY_MAX: usize = 1 << 16;
/// The least work that a step counts as.
const STEP_COST: usize = 64;
/// Portions to wait after a survey that found nothing to reclaim.
const REST: u32 = 64;
/// Free segments that only relocations take; and where nothing may be evicted, because several sessions that compact fill one each before
/// the first of them has freed any.
const FOR_RELOCATIONS: usize = 1;
const FOR_RELOCATIONS_ONLY: usize = 2;
/// Where nothing may be evicted, segments are compacted from one dead byte in this many on.
const DEAD_SHARE: usize = 16;
/// Segments that one allocation reclaims in vain before it spares nothing.
const PATIENCE: usize = 8;

/// The admission pool's share: one in this many segments of the log.
const ADMISSION_SHARE: usize = 20;
/// Headers that a sweep reads, looking for segments in which everything is dead; and the sweeps of a session for each segment
/// that it fills, while the region is not full. Not more, because the position of the next sweep is in a cache line that every
/// write reads.
const SWEEP: usize = 16;
const SWEEPS_A_SEGMENT: usize = 8;
/// The level of the list from which its segments are reclaimed while the region is not full.
const ALL_BUT_DEAD: usize = SPARSE_LEVELS - 2;
/// Headers that the sweep of one call of [`crate::Session::upkeep`] reads, and the bytes that the call reclaims.
const UPKEEP_SWEEP: usize = 1024;
const UPKEEP_WORK: usize = 256 << 10;

/// Segments in the sample from which the one most worth compacting is taken: the best of this many is nearly as good as the best of all.
const SAMPLE: usize = 32;

/// Segments that a session remembers to have skipped, and for how many reclaimed segments it remembers them.
pub(super) const PASSED: usize = 8;
const FORGET_AFTER: u32 = 64;

/// A segment to be reclaimed, and what is spared if its reclaim has not begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Victim {
    pub segment: usize,
    /// its generation when it was chosen: what is true of one generation is not true of the next
    pub generation: u64,
    pub spare: Spare,
    /// it is the oldest segment of its pool
    pub in_turn: bool,
    /// other sessions know that its reclaim has begun
    pub is_offered: bool,
}

/// What a survey of the segment headers has found so far.
#[derive(Debug, Default)]
pub(super) struct Survey {
    /// headers still to be read; 0: it has not begun
    left: usize,
    /// under reclaim, without an owner
    retired: Option<usize>,
    /// a segment of a dead thread, or an orphan
    lost: Option<usize>,
    /// the segment opened first, by pool
    oldest: [Option<(u64, usize)>; POOLS],
    /// a segment that is still being filled
    current: Option<(u64, usize)>,
    /// the filled log segment with the most dead bytes, and how many
    sparsest: Option<(u64, usize)>,
    lengths: [usize; POOLS],
}

/// What may be given up for a free segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    /// as the eviction policy says
    Policy,
    /// anything, and nothing of it is spared
    Anything,
}

/// Headers that are read to find the oldest segment.
const AGED_MAX: usize = 4096;

/// How long ago the oldest segment of each pool was opened, in seconds (`None`: the pool is empty), and how long the item had not been used
/// that was evicted last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ages {
    /// of new items
    pub admission_s: Option<u32>,
    /// of items that were hit, or came back
    pub main_s: Option<u32>,
    /// since the last access to the item that was evicted last, when it was; 0 if none was
    pub evicted_s: u32,
}

impl Victims {
    pub(crate) fn new(mapped: &Arc<Mapped>, threads: &Threads, segments: &Segments, recovery: &Recovery) -> Self {
        Self {
            mapped: Arc::clone(mapped),
            threads: threads.clone(),
            segments: segments.clone(),
            recovery: recovery.clone(),
        }
    }

    /// The ages of the pools, from a sample of the segments if the region is large.
    pub fn ages(&self, now: u32) -> Ages {
        let mut oldest = [None::<u32>; POOLS];
        for segment in (0..self.mapped.segments()).step_by(self.mapped.segments().div_ceil(AGED_MAX).max(1)) {
            let header = self.mapped.header(segment);
            let state = State(header.state.load(Relaxed));
            if state.kind() == Some(Kind::Open)
                && let Some(oldest) = oldest.get_mut(state.pool())
            {
                let opened = header.opened.load(Relaxed);
                *oldest = Some(oldest.map_or(opened, |first| first.min(opened)));
            }
        }
        let age = |pool: usize| {
            oldest
                .get(pool)
                .copied()
                .flatten()
                .map(|opened| seconds_left(now.max(opened), opened))
        };
        Ages {
            admission_s: age(ADMISSION),
            main_s: age(MAIN),
            // Another process may have written any number.
            evicted_s: u32::try_from(self.mapped.superblock().evicted_idle_s.load(Relaxed)).unwrap_or(u32::MAX),
        }
    }

    /// Whether every item in the segment is flushed or expired. For a large value's segment: whether the value had expired when
    /// it was last written or met.
    fn is_dead(&self, segment: usize, now: u32, epoch: u64) -> bool {
        let header = self.mapped.header(segment);
        let state = State(header.state.load(Relaxed));
        let expires = header.expires.load(Relaxed);
        let is_over = expires != u32::MAX && expires <= now;
        match state.kind() {
            Some(Kind::Open | Kind::Retired) => {
                self.mapped.segment_life(segment).epoch < epoch || is_over && self.is_filled(segment)
            }
            Some(Kind::Large) => is_over && state.owner().is_none(),
            _ => false,
        }
    }

    /// Whether it is a filled log segment without an owner, and no session that fills segments of its own is about to fill it.
    fn is_compactable(&self, segment: usize) -> bool {
        let state = State(self.mapped.header(segment).state.load(Relaxed));
        state.0 == State::of(Kind::Open, state.stream()).0
            && !self.segments.is_current(segment)
            && (self.segments.cells_left(segment) == 0 || !self.segments.has_live_extent(segment))
    }

    /// Whether its reclaim has begun, and no thread continues it now.
    fn is_begun(&self, segment: usize) -> bool {
        let state = State(self.mapped.header(segment).state.load(Relaxed));
        state.kind() == Some(Kind::Retired) && state.owner().is_none()
    }

    /// Lists a segment whose reclaim has begun, for the next session that needs space. Its copies take space until it is free: sessions that
    /// each begin another one would fill the region with what is there twice.
    pub(super) fn offer_begun(&self, segment: usize) {
        if self.is_begun(segment) {
            self.segments.offer(segment, SPARSE_LEVELS - 1);
        }
    }

    /// Whether no new extent can be leased in this segment.
    fn is_filled(&self, segment: usize) -> bool {
        self.segments.cells_left(segment) == 0 || !self.segments.is_current(segment)
    }
}

impl Supply for Reclaimer {
    fn take_segment(&self, now: u32, make_room: bool) -> Result<usize, WriteError> {
        self.take_or_reclaim(now, make_room)
    }

    fn pay(&self, bytes: usize, now: u32) -> usize {
        self.pay_share(bytes, now)
    }
}

impl Reclaimer {
    pub fn new(victims: &Victims, recovery: &Recovery, index: Changer) -> Self {
        Self {
            victims: victims.clone(),
            recovery: recovery.clone(),
            index,
            victim: Cell::default(),
            survey: Cell::default(),
            next: Cell::default(),
            drawn: Cell::default(),
            rest: Cell::default(),
            unswept: Cell::default(),
            count: Cell::default(),
            looked: Cell::default(),
            unsurveyed: Cell::default(),
            floors: Cell::default(),
            passed: Cell::default(),
            passed_out_of_turn: Cell::default(),
            given_back_next: Cell::default(),
        }
    }

    /// How it changes keys.
    pub fn index(&self) -> &Changer {
        &self.index
    }

    /// Gives up every extent, so that others can use what is left of it, and their segments can be reclaimed. The next write leases new ones.
    pub fn release_extents(&self) {
        self.leave_victim();
        for stream in 0..Stream::MAX {
            self.log().extents().close_extent(stream);
        }
    }

    /// The index, as all threads share it.
    pub(super) fn all(&self) -> &Index {
        self.index.publisher().all()
    }

    /// The mapped bytes.
    pub(super) fn mapped(&self) -> &Mapped {
        self.log().mapped()
    }

    /// The thread's slot.
    pub(super) fn thread(&self) -> &Thread {
        self.log().thread()
    }

    /// Its end of the log.
    pub(super) fn log(&self) -> &Appender {
        self.index.publisher().log()
    }

    pub(super) fn counting(&self) -> &Counting {
        self.index.publisher().counting()
    }

    /// A segment for a session: a free one, or with `make_room` one that is reclaimed for it. The error: none is free, and
    /// nothing can be evicted.
    fn take_or_reclaim(&self, now: u32, make_room: bool) -> Result<usize, WriteError> {
        self.mapped().catch_up();
        if self.mapped().is_shrinking() {
            self.shrink_a_little(now);
        }
        if !make_room {
            return self.log().claims().claim_free().ok_or(WriteError::OutOfMemory);
        }
        self.sweep_lost_among(SURVEY_STEP, now);
        let (mut need, mut recovered) = (Need::Policy, false);
        let for_relocations = if self.all().limits().evicts() {
            FOR_RELOCATIONS
        } else {
            FOR_RELOCATIONS_ONLY
        };
        for attempt in 0..2 * self.mapped().segments() {
            if self.log().claims().free_segments() > for_relocations
                && let Some(segment) = self.log().claims().claim_free()
            {
                return Ok(segment);
            }
            if attempt == 0 {
                self.thread().count(Counter::reserve_empty, 1);
            }
            if attempt >= PATIENCE && self.all().limits().evicts() {
                need = Need::Anything;
            }
            if self.reclaim_one(need, now) {
                continue;
            }
            // Nothing found. But dead threads may hold some segments, and skipped ones may be reclaimable now.
            if !recovered {
                self.recovery.recover();
                self.reclaim_lost(self.mapped().segments(), now);
                recovered = true;
            } else if need == Need::Policy && self.all().limits().evicts() {
                need = Need::Anything;
            } else {
                break;
            }
        }
        if !self.all().limits().evicts() {
            return Err(WriteError::OutOfMemory);
        }
        self.log().claims().claim_free().ok_or(WriteError::OutOfMemory)
    }

    fn pay_share(&self, bytes: usize, now: u32) -> usize {
        let (free, reserve) = (self.log().claims().free_segments(), self.log().claims().reserve());
        if free > reserve {
            if self.victim_at_hand().is_none() && self.is_sweep_due(bytes) {
                self.sweep(SWEEP, now);
                // Reuse what is nearly dead before memory that was never touched, which costs more.
                if self.victim.get().is_none() {
                    let segment = self.take_sparse(ALL_BUT_DEAD, now);
                    self.victim.set(segment.map(|segment| self.victim(segment, Spare::All)));
                }
            }
            let Some(victim) = self.victim_at_hand() else {
                return usize::MAX;
            };
            let bytes = if bytes <= PORTION { PORTIONS_AT_ONCE * bytes } else { bytes };
            self.advance(victim, 2 * bytes, now);
            return bytes;
        }
        let rest = self.rest.get();
        if rest > 0 {
            self.rest.set(rest - 1);
            return bytes;
        }
        // The fewer segments are left, the faster. This settles where as many are freed as are taken.
        self.work(bytes.saturating_mul((3 + 2 * (reserve - free)).min(WORK_MAX)), now);
        bytes
    }

    /// Whether enough has been taken since the last sweep for the next one.
    fn is_sweep_due(&self, bytes: usize) -> bool {
        let unswept = self.unswept.get() + bytes;
        let is_due = unswept >= self.mapped().layout().shape.segment_size / SWEEPS_A_SEGMENT;
        self.unswept.set(if is_due { 0 } else { unswept });
        is_due
    }

    /// Reads the next `count` headers; a segment in which everything is dead becomes the victim.
    fn sweep(&self, count: usize, now: u32) {
        let segments = self.mapped().segments();
        let epoch = self.all().flushes().epoch(now);
        let from = index(self.mapped().superblock().sweep.fetch_add(count as u64, Relaxed));
        let dead = (0..count.min(segments))
            .map(|i| from.wrapping_add(i) % segments)
            .find(|segment| self.victims.is_dead(*segment, now, epoch) && !self.is_passed(*segment));
        if let Some(segment) = dead {
            self.victim.set(Some(self.victim(segment, Spare::All)));
        }
    }

    /// Reclaims up to `budget` bytes.
    fn work(&self, budget: usize, now: u32) {
        let mut left = budget;
        while left > 0 {
            let Some(victim) = self.victim_at_hand() else {
                // What the dead left goes before anything that is live.
                if self.sweep_lost_among(SURVEY_STEP, now) {
                    left = left.saturating_sub(SURVEY_COST);
                    continue;
                }
                if !self.is_survey_due()
                    && let Some(segment) = self.take_to_compact(now)
                {
                    self.victim.set(Some(self.victim(segment, Spare::All)));
                    continue;
                }
                left = left.saturating_sub(SURVEY_COST);
                if self.finds_deaths(now) {
                    continue;
                }
                match self.survey(SURVEY_STEP, now) {
                    None => continue,
                    Some(survey) => match self.choose(&survey, Need::Policy, now) {
                        Some(victim) => self.victim.set(Some(victim)),
                        None => {
                            self.forget_passed();
                            self.rest.set(REST);
                            return;
                        }
                    },
                }
                continue;
            };
            left = left.saturating_sub(self.advance(victim, left, now).max(STEP_COST));
            if self.victim.get().is_none() && self.log().claims().free_segments() > self.log().claims().reserve() {
                return;
            }
        }
    }

    /// Reclaims up to `budget` bytes for a segment that is to be taken out of use. `false`: nothing can be reclaimed now.
    pub(crate) fn make_room(&self, budget: usize, now: u32) -> bool {
        self.rest.set(0);
        self.work(budget, now);
        let found_nothing = self.rest.take() > 0;
        !found_nothing || self.all().limits().evicts() && self.reclaim_one(Need::Anything, now)
    }

    /// Whether it is long ago that a survey looked for segments that are on no list.
    fn is_survey_due(&self) -> bool {
        self.unsurveyed.get() >= SURVEY_AFTER.max(self.mapped().segments() / SURVEYS_A_ROUND)
    }

    /// One step of a victim's reclaim. Returns the bytes that it processed.
    fn advance(&self, victim: Victim, budget: usize, now: u32) -> usize {
        let (step, used) = self.empty_step(victim, budget, now);
        match step {
            // The other sessions go on with it before they begin another one.
            Step::More if !victim.is_offered => {
                self.victims.offer_begun(victim.segment);
                self.victim.set(Some(Victim {
                    is_offered: true,
                    ..victim
                }));
            }
            Step::More => {}
            Step::Freed | Step::Spared => {
                self.victim.set(None);
                self.unsurveyed.set(self.unsurveyed.get() + 1);
                self.count.set(self.count.get().wrapping_add(1));
                if self.count.get().is_multiple_of(FORGET_AFTER) {
                    self.forget_passed();
                }
            }
            // The next operation will use another item.
            Step::Passed if self.thread().operates_on(victim.segment) => return budget,
            Step::Passed => {
                self.pass(victim);
                self.victim.set(None);
            }
        }
        used
    }

    /// Reclaims a whole segment. `false`: none can be reclaimed.
    #[cold]
    fn reclaim_one(&self, need: Need, now: u32) -> bool {
        if need == Need::Anything {
            self.victim.set(None);
        }
        for _ in 0..2 * self.mapped().segments() {
            let at_hand = self.victim_at_hand();
            self.victim.set(None);
            let victim = match at_hand {
                Some(victim) => victim,
                None => {
                    self.survey.take();
                    self.finds_deaths(now);
                    self.sweep_lost_among(self.mapped().segments(), now);
                    let survey = (0..).find_map(|_| self.survey(SURVEY_STEP, now));
                    let Some(victim) = survey.and_then(|survey| self.choose(&survey, need, now)) else {
                        self.forget_passed();
                        return false;
                    };
                    victim
                }
            };
            match self.empty_step(victim, usize::MAX, now).0 {
                Step::Freed => return true,
                Step::Spared => {}
                Step::More | Step::Passed => self.pass(victim),
            }
        }
        self.forget_passed();
        false
    }

    /// Looks for dead processes, at most once a second: before anything is evicted. Returns whether there were any.
    fn finds_deaths(&self, now: u32) -> bool {
        self.looked.replace(now) != now && self.recovery.recover() > 0
    }

    /// After a death: looks at up to `count` of the segments that are still to be looked at. Returns whether there were any.
    fn sweep_lost_among(&self, count: usize, now: u32) -> bool {
        let has_lost = self.mapped().superblock().lost.load(Relaxed) > 0;
        if has_lost {
            self.reclaim_lost(count, now);
        }
        has_lost
    }

    /// Reads the next `count` headers. Returns the result once all have been read.
    fn survey(&self, count: usize, now: u32) -> Option<Survey> {
        let segments = self.mapped().segments();
        let mut survey = self.survey.take();
        if survey.left == 0 {
            survey.left = segments.min(SURVEY_MAX);
        }
        let epoch = self.all().flushes().epoch(now);
        let mut segment = self.next.get();
        for _ in 0..count.min(survey.left) {
            segment = if segment + 1 < segments { segment + 1 } else { 0 };
            self.survey_one(&mut survey, segment, now, epoch);
            survey.left -= 1;
        }
        self.next.set(segment);
        if survey.left == 0 {
            self.unsurveyed.set(0);
            return Some(survey);
        }
        self.survey.set(survey);
        None
    }

    fn survey_one(&self, survey: &mut Survey, segment: usize, now: u32, epoch: u64) {
        let mapped = self.mapped();
        let header = mapped.header(segment);
        let state = State(header.state.load(Relaxed));
        let (Some(kind), pool) = (state.kind(), state.pool()) else {
            return;
        };
        if kind == Kind::Free {
            return;
        }
        if let Some(owner) = state.owner() {
            let stands = owner == self.thread().owner() || self.log().claims().threads().is_held(owner);
            if !stands && !self.is_passed(segment) {
                survey.lost = Some(segment);
            }
            return;
        }
        if !matches!(kind, Kind::Open | Kind::Large | Kind::Retired) {
            return;
        }
        if let Some(length) = survey.lengths.get_mut(pool) {
            *length += 1;
        }
        if self.is_passed(segment) {
            return;
        }
        if kind == Kind::Retired {
            survey.retired = Some(segment);
            return;
        }
        if self.victims.is_dead(segment, now, epoch) {
            self.log().claims().segments().offer(segment, SPARSE_LEVELS - 1);
            return;
        }
        if kind == Kind::Open {
            self.log().extents().leave_to_others(segment);
            self.log().claims().segments().offer_filled(segment);
            let dead = header.dead.load(Relaxed);
            if survey.sparsest.is_none_or(|(most, _)| dead > most) && self.victims.is_compactable(segment) {
                survey.sparsest = Some((dead, segment));
            }
        }
        let sequence = header.sequence.load(Relaxed);
        let floor = self.floors.get().get(pool).copied().unwrap_or(0);
        let Some(oldest) = survey.oldest.get_mut(pool) else { return };
        if sequence <= floor || oldest.is_some_and(|(first, _)| sequence >= first) {
            return;
        }
        if kind == Kind::Open && !self.victims.is_filled(segment) {
            survey.current = survey.current.min(Some((sequence, segment))).or(Some((sequence, segment)));
        } else {
            *oldest = Some((sequence, segment));
        }
    }

    /// The victim among what a survey has found, and the listed sparse segments.
    fn choose(&self, survey: &Survey, need: Need, now: u32) -> Option<Victim> {
        let anything = need == Need::Anything;
        let nothing = |spare| if anything { Spare::Nothing } else { spare };
        let victim = |segment, spare| Some(self.victim(segment, spare));
        // Stopped sessions may hold more such segments than this session remembers to have skipped. Then, if no segment is free,
        // it takes one in turn for once.
        let has_passed_many = self.passed_out_of_turn.get() >= PASSED && self.log().claims().free_segments() == 0;
        if !(self.all().limits().evicts() && has_passed_many)
            && let Some(segment) = survey.retired.or(survey.lost).or_else(|| self.take_to_compact(now))
        {
            return victim(segment, nothing(Spare::All));
        }
        if !self.all().limits().evicts() {
            // Before it refuses, it copies more than a session that may evict would copy for as much space.
            let least = (self.mapped().layout().shape.segment_size / DEAD_SHARE) as u64;
            let worth_it = survey.sparsest.filter(|(dead, _)| *dead >= least);
            return worth_it.and_then(|(_, segment)| victim(segment, Spare::All));
        }
        let [admission, main] = survey.lengths;
        let first = if admission * ADMISSION_SHARE >= admission + main {
            ADMISSION
        } else {
            MAIN
        };
        let oldest = [first, POOLS - 1 - first]
            .into_iter()
            .find_map(|pool| survey.oldest.get(pool).copied().flatten().map(|(_, segment)| (pool, segment)));
        match (oldest, survey.current) {
            (Some((pool, segment)), _) => {
                victim(segment, nothing(self.spared_of(pool))).map(|victim| Victim { in_turn: true, ..victim })
            }
            (None, Some((_, segment))) if anything => victim(segment, Spare::Nothing),
            _ => None,
        }
    }

    /// The segment to compact next, if there is space for its live items: the sparsest listed one, or one of a sample that has
    /// fewer dead bytes but has been so for longer. In an old segment few more items will die, while a young one is about to
    /// lose more of its items (Rosenblum and Ousterhout, "The design and implementation of a log-structured file system", TOCS
    /// 1992: cost and benefit).
    fn take_to_compact(&self, now: u32) -> Option<usize> {
        let listed = self.take_sparse(0, now);
        let goes_first =
            |segment| self.victims.is_begun(segment) || self.log().claims().segments().level(segment) >= Some(ALL_BUT_DEAD);
        if self.log().claims().free_segments() == 0 || listed.is_some_and(goes_first) {
            return listed;
        }
        let worth = listed.map_or(0, |segment| self.log().claims().segments().worth(segment));
        let Some(better) = self.sample(worth) else {
            return listed;
        };
        if let Some(listed) = listed {
            self.log().claims().segments().offer_filled(listed);
        }
        Some(better)
    }

    /// The segment of a sample that is most worth compacting, if it is worth more than `most`.
    fn sample(&self, mut most: u64) -> Option<usize> {
        /// The fractional part of the golden ratio: multiples of it are spread evenly.
        const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
        let mapped = self.mapped();
        let segments = mapped.segments();
        let mut best = None;
        let mut drawn = self.drawn.get();
        for _ in 0..SAMPLE.min(segments) {
            drawn = drawn.wrapping_add(1);
            let point = drawn
                .wrapping_mul(GOLDEN)
                .wrapping_add(u64::from(self.thread().owner().slot) << 48);
            let segment = index(((point >> 32) * segments as u64) >> 32);
            let worth = self.log().claims().segments().worth(segment);
            if worth > most && self.victims.is_compactable(segment) && !self.is_passed(segment) {
                (best, most) = (Some(segment), worth);
            }
        }
        self.drawn.set(drawn);
        best
    }

    /// The segment with the most dead bytes among those listed from this level up, if there is space for its live items.
    fn take_sparse(&self, least: usize, now: u32) -> Option<usize> {
        let epoch = self.all().flushes().epoch(now);
        // Without space for the copies, compaction would evict items that it must keep. If nothing may be evicted, the copies go as far as
        // there is space in segments that are open.
        let has_space = self.log().claims().free_segments() > 0 || !self.all().limits().evicts();
        let least = if has_space { least } else { SPARSE_LEVELS - 1 };
        for _ in 0..SPARSE_LEVELS * SPARSE_WAYS {
            let (segment, level) = self.log().claims().segments().take_listed(least)?;
            if self.is_passed(segment) {
                continue;
            }
            let is_sparse = self.log().claims().segments().level(segment) >= Some(level) && self.victims.is_compactable(segment);
            if is_sparse || self.victims.is_begun(segment) || self.victims.is_dead(segment, now, epoch) {
                return Some(segment);
            }
        }
        None
    }

    /// Leaves the reclaim that this session has begun to others.
    fn leave_victim(&self) {
        if let Some(victim) = self.victim.take() {
            self.victims.offer_begun(victim.segment);
        }
    }

    /// What this session was about to reclaim, if no other session has reclaimed it since.
    fn victim_at_hand(&self) -> Option<Victim> {
        let is_same = |victim: &Victim| self.mapped().segment_life(victim.segment).generation == victim.generation;
        let victim = self.victim.get().filter(is_same);
        self.victim.set(victim);
        victim
    }

    fn victim(&self, segment: usize, spare: Spare) -> Victim {
        Victim {
            segment,
            generation: self.mapped().segment_life(segment).generation,
            spare,
            in_turn: false,
            is_offered: false,
        }
    }

    /// What a reclaim of this pool's segments spares.
    fn spared_of(&self, pool: usize) -> Spare {
        if pool == ADMISSION && self.log().claims().segments().has_pools() {
            Spare::Promoted
        } else {
            Spare::Hit
        }
    }

    /// The victim could not be reclaimed: try others first. If it was in turn, younger segments of its pool may still be
    /// reclaimable; if it was not, older ones may be.
    fn pass(&self, victim: Victim) {
        let header = self.mapped().header(victim.segment);
        let state = State(header.state.load(Relaxed));
        let mut floors = self.floors.get();
        if !victim.in_turn {
            self.passed_out_of_turn.set(self.passed_out_of_turn.get() + 1);
        } else if matches!(state.kind(), Some(Kind::Open | Kind::Large))
            && let Some(floor) = floors.get_mut(state.pool())
        {
            *floor = (*floor).max(header.sequence.load(Relaxed));
            self.floors.set(floors);
        }
        let mut passed = self.passed.get();
        passed.rotate_right(1);
        passed[0] = victim.segment + 1;
        self.passed.set(passed);
    }

    fn is_passed(&self, segment: usize) -> bool {
        self.passed.get().contains(&(segment + 1))
    }

    fn forget_passed(&self) {
        self.passed.take();
        self.passed_out_of_turn.take();
        self.floors.take();
    }

    /// Frees segments in which everything is dead, up to a bounded number of bytes: for a caller that has time.
    pub(crate) fn reclaim_dead(&self, now: u32) {
        // A thread that was using them has had time to finish.
        self.forget_passed();
        let mut left = UPKEEP_WORK;
        while left > 0 {
            if self.victim_at_hand().is_none() {
                self.sweep(UPKEEP_SWEEP, now);
            }
            let Some(victim) = self.victim.get() else { return };
            left = left.saturating_sub(self.advance(victim, left, now).max(STEP_COST));
        }
    }
}
