//! Room: the list of segments of which much is dead, from which whoever needs room takes the one of which most is.
//!
//! The list is in the region, and shared: each session with a list of its own would look at all segment headers for it, and would
//! find what the others are about to take. Everything in it is a hint. An entry may be lost when two are written at once, may be
//! there twice, and may be long out of date: who takes one looks at the segment itself. What is on no list is met by a survey.

use crate::atomics::{AtomicU32, Relaxed, Release};
use crate::layout::stats::Counter;
use crate::layout::superblock::{SPARSE_FROM, SPARSE_LEVELS, SPARSE_WAYS};
use crate::log::seen::Seen;
use crate::region::Region;
use crate::session::Session;

/// Bytes of dead items that a session counts at a time.
const DEAD_PORTION: u64 = 1024;

impl Region {
    /// Counts bytes of items that were replaced or removed, and lists the segment when that takes it to the next level. Two that
    /// count at once lose one of the counts.
    #[inline]
    pub(super) fn count_dead(&self, segment: usize, bytes: u64) {
        let counter = &self.header(segment).dead;
        let before = counter.load(Relaxed);
        let after = before.wrapping_add(bytes);
        counter.store(after, Relaxed);
        let level = self.level_of(after);
        if level > self.level_of(before)
            && let Some(level) = level
        {
            self.offer(segment, level);
        }
    }

    /// At which level of the list a segment belongs; `None`: too little of it is dead for its compaction to be worth the copying.
    pub(crate) fn level(&self, segment: usize) -> Option<usize> {
        self.level_of(self.header(segment).dead.load(Relaxed))
    }

    #[inline]
    fn level_of(&self, dead: u64) -> Option<usize> {
        let sixteenths = dead >> (self.layout.shape.segment_size.trailing_zeros() - 4);
        let level = sixteenths.checked_sub(SPARSE_FROM)?;
        Some(usize::try_from(level).unwrap_or(usize::MAX).min(SPARSE_LEVELS - 1))
    }

    /// What the compaction of a segment is worth, to compare: what it gains by what it costs, times the root of the time that it has
    /// been so; that squared. 0: too little is dead for it.
    pub(crate) fn worth(&self, segment: usize) -> u64 {
        /// Parts of a segment in which dead and living are told apart.
        const PARTS: u64 = 256;
        if self.level(segment).is_none() {
            return 0;
        }
        let shift = self.layout.shape.segment_size.trailing_zeros() - PARTS.trailing_zeros();
        let dead = (self.header(segment).dead.load(Relaxed) >> shift).min(PARTS);
        let living = (PARTS - dead).max(1);
        // A damaged header may say anything.
        let age = self.age(self.header(segment)).clamp(1, 1 << 24);
        ((dead * dead * age) << 16) / (living * living)
    }

    /// Lists a segment in which no more extents are leased, if it is sparse.
    pub(crate) fn offer_filled(&self, segment: usize) {
        if self.has(segment)
            && let Some(level) = self.level(segment)
        {
            self.offer(segment, level);
        }
    }

    /// Lists a segment; in a full level in the place of another.
    #[cold]
    pub(crate) fn offer(&self, segment: usize, level: usize) {
        let sb = self.superblock();
        let (Some(filled), Some(row), Ok(name)) = (sb.sparse_filled.get(level), sb.sparse.get(level), u32::try_from(segment + 1))
        else {
            return;
        };
        let free = (!filled.load(Relaxed)).trailing_zeros() as usize;
        let way = if free < SPARSE_WAYS { free } else { segment % SPARSE_WAYS };
        if let Some(entry) = row.get(way) {
            entry.store(name, Relaxed);
            filled.fetch_or(1 << way, Relaxed);
        }
    }

    /// Takes a segment off the list, one of the highest level that has any, at least of this one; and that level.
    pub(crate) fn take_listed(&self, least: usize) -> Option<(usize, usize)> {
        (least..SPARSE_LEVELS)
            .rev()
            .find_map(|level| Some((self.take_of_level(level)?, level)))
    }

    /// The same of one level; the one listed last is the likeliest to be in a cache.
    pub(super) fn take_of_level(&self, level: usize) -> Option<usize> {
        let sb = self.superblock();
        let (filled, row) = (sb.sparse_filled.get(level)?, sb.sparse.get(level)?);
        for _ in 0..SPARSE_WAYS {
            let way = filled.load(Relaxed).checked_ilog2()?;
            let entry = row.get(way as usize)?;
            let was = filled.fetch_and(!(1 << way), Relaxed);
            let segment = (entry.load(Relaxed) as usize).wrapping_sub(1);
            if was & 1 << way != 0 && self.has(segment) {
                return Some(segment);
            }
        }
        None
    }
}

impl Session {
    /// An item whose word this thread has taken out of the index, under an intent or a claim of its segment that still
    /// stands: a purge need not look for its word. Its bytes are counted; the segment's count is a hint in a line that every
    /// writer wants: small items are counted together, with the segment of the one that makes up a portion, so that of random
    /// segments each gets its share.
    #[inline(always)]
    pub(crate) fn bury(&self, seen: &Seen) {
        // PAIRS: dead-mark: the loads in `Region::skip_dead` and `item_header`: a purge that sees it dead sees its slot without it.
        self.region
            .memory
            .get::<AtomicU32>(seen.at)
            .store(seen.header.dead_word(), Release);
        let dead = self.dead.get() + seen.header.size() as u64;
        if dead < DEAD_PORTION {
            self.dead.set(dead);
            return;
        }
        self.dead.set(0);
        self.region.count_dead(seen.segment, dead);
    }

    /// An item left the index.
    #[inline]
    pub(crate) fn count_removed(&self, seen: &Seen) {
        self.count(Counter::curr_items, 1u64.wrapping_neg());
        self.count(Counter::bytes, (self.region.size(seen) as u64).wrapping_neg());
        self.count_items(-1);
        self.bury(seen);
    }
}
