//! Segments as the log uses them: their owners, the free ones, and how one changes hands.
//!
//! A segment belongs to the thread that its state names, or has no owner. Only its owner gives it a new generation, and only
//! after every word that named it was reclaimed (or if it never had one).

use crate::atomics::{AcqRel, AtomicU64, Relaxed, Release, fence};
use crate::layout::segment::{Kind, LeaseWord, LifetimeClass, SegmentHeader, State, Stream};
use crate::layout::stats::Counter;
use crate::layout::superblock::{FREE, SPARSE_WAYS};
use crate::log::Claims;
use crate::log::Items;
use crate::log::Segments;
use crate::log::Uniques;
use crate::log::items::Replaced;
use crate::log::streams::{SEGMENTS_FOR_POOLS, SETTLED_PART};
use crate::mapped::Mapped;
use crate::mapped::number;
use crate::threads::Threads;
use crate::verbs::WriteError;
use std::sync::Arc;

/// Free segments kept in reserve: one in this many of the region's, within bounds.
const RESERVE_SHARE: usize = 320;
const RESERVE_MIN: usize = 3;
const RESERVE_MAX: usize = 8;

/// Where segments come from when none is free, and who does the work that is due for them. The room that reclaims knows the log; the
/// log does not know that room, so a caller brings it along.
pub(crate) trait Supply {
    /// A claimed segment, reclaimed, with a new generation. With `make_room` it reclaims one if necessary; otherwise it takes only
    /// a free one.
    fn take_segment(&self, now: u32, make_room: bool) -> Result<usize, WriteError>;

    /// Does the work that is due for taking this many bytes. Returns for how many it is done: more if the region is not full, and
    /// without a bound if nothing is dead either.
    fn pay(&self, bytes: usize, now: u32) -> usize;
}

impl Segments {
    pub(crate) fn new(mapped: &Arc<Mapped>, threads: &Threads, items: &Items) -> Self {
        Self {
            mapped: Arc::clone(mapped),
            threads: threads.clone(),
            items: items.clone(),
        }
    }

    /// Free segments, approximately.
    pub fn free_segments(&self) -> usize {
        number(&self.mapped.superblock().free)
    }

    /// Cells in which extents can be leased or extended.
    pub(crate) fn cells_left(&self, segment: usize) -> usize {
        let lease = LeaseWord(self.mapped.header(segment).lease.load(Relaxed));
        if lease.is_sealed() {
            0
        } else {
            self.mapped.layout().shape.cells().saturating_sub(lease.cells())
        }
    }

    /// Whether no extent can be leased in the segment any more.
    pub(super) fn is_sealed(&self, segment: usize) -> bool {
        LeaseWord(self.mapped.header(segment).lease.load(Relaxed)).is_sealed()
    }

    /// Whether new extents are leased in this segment now.
    pub(crate) fn is_current(&self, segment: usize) -> bool {
        let name = segment as u64 + 1;
        self.mapped.superblock().open_words().any(|open| open.load(Relaxed) == name)
    }

    /// The word with the open segment of a stream, plus 1: a hint.
    pub(super) fn open_word(&self, stream: Stream) -> Option<&AtomicU64> {
        let sb = self.mapped.superblock();
        match stream.lifetime_class {
            LifetimeClass::Plain => sb.open.get(stream.pool)?.get(stream.class),
            LifetimeClass::LongLived => sb.open_settled.get(stream.pool),
        }
    }

    /// Segments that were opened after this one, as long as segments take CAS uniques.
    #[inline(always)]
    pub(crate) fn age(&self, segment: &SegmentHeader) -> u64 {
        self.age_of(segment.sequence.load(Relaxed))
    }

    /// Segments that were opened after the one with this sequence number, as long as segments take CAS uniques.
    #[inline(always)]
    fn age_of(&self, sequence: u64) -> u64 {
        self.mapped.superblock().sequence.load(Relaxed).wrapping_sub(sequence) >> self.mapped.words_shift()
    }

    /// Whether a live thread may still publish an item of this segment. The lease word must be sealed, otherwise the answer can
    /// become stale.
    pub(crate) fn has_live_extent(&self, segment: usize) -> bool {
        // From before it leases until its extent has a header, a thread has this hazard pointer: what is about to be leased is live.
        self.lease_of(segment)
            .is_some_and(|lease| self.threads.is_leasing(segment) || self.has_open_extent(segment, lease))
    }

    /// The lifetime class expected of an item that replaces this one, in a region of which so many segments may be in use: as long
    /// as that item has lived.
    #[inline(always)]
    pub(super) fn lifetime_class(&self, replaced: &Replaced<'_>, allowed: usize) -> LifetimeClass {
        if self.age_of(replaced.sequence) >= allowed as u64 / SETTLED_PART {
            LifetimeClass::LongLived
        } else {
            LifetimeClass::Plain
        }
    }

    /// Whether there are enough segments for two pools.
    pub(crate) fn has_pools(&self) -> bool {
        self.mapped.allowed() >= SEGMENTS_FOR_POOLS
    }
}

impl Claims {
    /// The segments, as all threads share them.
    pub fn segments(&self) -> &Segments {
        &self.segments
    }

    /// The thread slots.
    pub fn threads(&self) -> &Threads {
        &self.threads
    }

    /// The CAS uniques that the region gives.
    pub fn uniques(&self) -> &Uniques {
        &self.uniques
    }

    pub(crate) fn reserve(&self) -> usize {
        (self.mapped.allowed() / RESERVE_SHARE).clamp(RESERVE_MIN, RESERVE_MAX)
    }

    /// Whether a segment is available without touching the reserve.
    pub(crate) fn has_more_than_reserve(&self) -> bool {
        self.free_segments() > self.reserve()
    }

    /// Whether new segments come only from reclaimed ones. Those that reclaiming has freed in advance are not counted as space to grow.
    pub(crate) fn is_full(&self) -> bool {
        self.free_segments() <= 2 * self.reserve() + 2
    }

    /// Segments that are neither free nor out of use, approximately.
    pub(crate) fn used_segments(&self) -> usize {
        self.mapped
            .segments()
            .saturating_sub(self.free_segments() + self.mapped.withdrawn())
    }

    pub(crate) fn free_segments(&self) -> usize {
        self.segments.free_segments()
    }

    /// Takes a free segment. The count of free segments is decremented first: a thread that stops in between withholds one
    /// segment from the others, not more. If it dies there, recovery counts again.
    pub(crate) fn claim_free(&self) -> Option<usize> {
        let segments = self.mapped.segments();
        let sb = self.mapped.superblock();
        let mut free = sb.free.load(Relaxed);
        loop {
            if free == 0 || free > u64::MAX / 2 {
                return None;
            }
            match sb.free.compare_exchange(free, free - 1, Relaxed, Relaxed) {
                Ok(_) => break,
                Err(now) => free = now,
            }
        }
        // Most recently freed first: they are probably in a cache, and memory that was never touched costs more.
        let mut freed = (0..SPARSE_WAYS).map_while(|_| self.segments.take_of_level(FREE));
        if let Some(segment) = freed.find(|segment| self.claim_from_free(*segment)) {
            return Some(segment);
        }
        // Two rounds: the second finds a segment that was freed after the first had passed it.
        let from = usize::try_from(sb.free_hint.load(Relaxed)).unwrap_or(0) % segments;
        for i in 0..2 * segments {
            let segment = (from + i) % segments;
            if self.claim_from_free(segment) {
                sb.free_hint.store(segment as u64 + 1, Relaxed);
                return Some(segment);
            }
        }
        // The count was too high; recount.
        self.mapped.doubt_free();
        None
    }

    /// Claims a free segment that is about to be written.
    fn claim_from_free(&self, segment: usize) -> bool {
        let claimed = self.claim(segment, State::FREE);
        if claimed {
            // The segment was given its generation before it was freed.
            // PAIRS: generation: the acquire fences of readers (`Items::still`): a reader takes no byte that is written after
            // this for one of an earlier generation.
            fence(Release);
        }
        claimed
    }

    /// Makes this thread the segment's owner, if the segment is in this state.
    pub(crate) fn claim(&self, segment: usize, from: State) -> bool {
        let state = &self.mapped.header(segment).state;
        let claimed = from.take(Kind::Claimed, self.thread.owner());
        // PAIRS: owner: the loads of states: a thread that sees the owner sees the owner's lease. And the stores of states: the
        // claimer comes after what the segment's last owner did.
        state.load(Relaxed) == from.0 && state.compare_exchange(from.0, claimed.0, AcqRel, Relaxed).is_ok()
    }

    /// Gives a claimed segment its next generation: every word that ever named it is stale.
    pub(crate) fn bump(&self, segment: usize) {
        let word = &self.mapped.words(segment).generation;
        // No byte of it is written before it is free, and claimed again (`claim_from_free`).
        word.store(word.load(Relaxed).wrapping_add(1), Relaxed);
        self.thread.count(Counter::segments_recycled, 1);
    }

    /// Frees a claimed segment that has a new generation.
    pub(crate) fn free_segment(&self, segment: usize) {
        // PAIRS: owner: the claim by its next owner, which comes after all that was done in it.
        self.mapped.header(segment).state.store(State::FREE.0, Release);
        let sb = self.mapped.superblock();
        sb.free.fetch_add(1, Relaxed);
        self.segments.offer(segment, FREE);
        // While the region is not full, reuse this segment before memory that was never touched.
        if !self.is_full() {
            sb.free_hint.store(segment as u64, Relaxed);
        }
    }
}

impl Claims {
    /// Gives a directory a segment. For ghosts it takes only a free one, because they are no reason to evict.
    pub(crate) fn prepare_segment(&self, supply: &dyn Supply, kind: Kind, entry: usize, now: u32) -> bool {
        let Ok(segment) = supply.take_segment(now, kind != Kind::Ghosts) else {
            return false;
        };
        // Unset slots are zeros. No thread can reach the segment before the directory names it.
        self.mapped
            .memory()
            .zero(self.mapped.segment(segment), self.mapped.layout().shape.segment_size);
        let header = self.mapped.header(segment);
        header.sequence.store(entry as u64, Relaxed);
        let owned = State::owned(kind, self.thread.owner());
        // PAIRS: owner: the load in `Reclaimer::empty_step`: a thread that sees the owner sees the owner's lease, and the entry.
        header.state.store(owned.0, Release);
        let directory = self.directory.directory_entry(kind, entry);
        let name = u32::try_from(segment + 1).unwrap_or(0);
        // PAIRS: directory: the load in `Directory::segment_named`.
        if directory.compare_exchange(0, name, Release, Relaxed).is_ok() {
            let _ = header
                .state
                .compare_exchange(owned.0, State::new(kind, 0).0, Relaxed, Relaxed);
        } else if self.claim(segment, owned) {
            self.bump(segment);
            self.free_segment(segment);
        }
        directory.load(Relaxed) != 0
    }
}
