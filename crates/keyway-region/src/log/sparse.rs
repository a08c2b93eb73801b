//! The list of sparse segments: those with many dead bytes. A thread that needs space takes the one with the most.
//!
//! The list is in the region, and shared. If each session had its own list, each would read all segment headers for it, and
//! would find segments that the others are about to take. Everything in the list is a hint. An entry may be lost when two are
//! written concurrently, may be there twice, and may be long out of date: a thread that takes one looks at the segment itself.
//! Segments on no list are found by a survey.

use crate::atomics::{AtomicU32, Relaxed, Release};
use crate::layout::session::ThreadSlot;
use crate::layout::stats::Counter;
use crate::layout::superblock::{SPARSE_FROM, SPARSE_LEVELS, SPARSE_WAYS};
use crate::log::ItemCounts;
use crate::log::Segments;
use crate::log::item_view::ItemView;

/// In large segments small items are counted by samples of this many bytes: a segment has 128 and more. A power of two.
const SAMPLE_SIZE: usize = 1024;
const SAMPLES_OF_A_SEGMENT: usize = 128;

/// Whether a region with such segments counts samples.
pub(crate) const fn counts_samples(segment_size: usize) -> bool {
    segment_size >= SAMPLE_SIZE * SAMPLES_OF_A_SEGMENT
}

/// By what an item's offset is multiplied to draw whether it counts: 0 draws every item.
pub(crate) const fn dead_factor(segment_size: usize) -> u64 {
    /// The fractional part of the golden ratio: multiples of it are spread evenly.
    const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
    if counts_samples(segment_size) { GOLDEN } else { 0 }
}

impl Segments {
    /// Counts bytes that no item uses any more, or that no thread will fill, and lists the segment when they take it to the next level.
    #[inline(never)]
    pub(crate) fn count_dead(&self, segment: usize, bytes: usize) {
        let before = self.mapped.header(segment).dead.fetch_add(bytes as u64, Relaxed);
        let level = self.level_of(before.wrapping_add(bytes as u64));
        if level > self.level_of(before)
            && let Some(level) = level
        {
            self.offer(segment, level);
        }
    }

    /// The level of the list to which a segment belongs. `None`: it has too few dead bytes to be worth compacting.
    pub(crate) fn level(&self, segment: usize) -> Option<usize> {
        self.level_of(self.mapped.header(segment).dead.load(Relaxed))
    }

    #[inline]
    fn level_of(&self, dead: u64) -> Option<usize> {
        let sixteenths = dead >> (self.mapped.layout().shape.segment_size.trailing_zeros() - 4);
        let level = sixteenths.checked_sub(SPARSE_FROM)?;
        Some(usize::try_from(level).unwrap_or(usize::MAX).min(SPARSE_LEVELS - 1))
    }

    /// How much a compaction of the segment is worth, for comparisons: gain divided by cost, times the root of the segment's
    /// age; and that squared. 0: it has too few dead bytes.
    pub(crate) fn worth(&self, segment: usize) -> u64 {
        /// Parts of a segment in which dead and live bytes are counted.
        const PARTS: u64 = 256;
        if self.level(segment).is_none() {
            return 0;
        }
        let shift = self.mapped.layout().shape.segment_size.trailing_zeros() - PARTS.trailing_zeros();
        let dead = (self.mapped.header(segment).dead.load(Relaxed) >> shift).min(PARTS);
        let living = (PARTS - dead).max(1);
        // A corrupted header may hold any value.
        let age = self.age(self.mapped.header(segment)).clamp(1, 1 << 24);
        ((dead * dead * age) << 16) / (living * living)
    }

    /// Lists a segment in which no more extents are leased, if it is sparse.
    pub(crate) fn offer_filled(&self, segment: usize) {
        if self.mapped.has(segment)
            && let Some(level) = self.level(segment)
        {
            self.offer(segment, level);
        }
    }

    /// Lists a segment; in a full level it replaces another one.
    #[cold]
    pub(crate) fn offer(&self, segment: usize, level: usize) {
        let sb = self.mapped.superblock();
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

    /// Takes a segment off the list, and says its level: the highest level that has any, at least `least`.
    pub(crate) fn take_listed(&self, least: usize) -> Option<(usize, usize)> {
        (least..SPARSE_LEVELS)
            .rev()
            .find_map(|level| Some((self.take_of_level(level)?, level)))
    }

    /// Takes a segment of this level off the list: the one listed last, because its header is most probably in a cache. `None`:
    /// the level is empty.
    pub(super) fn take_of_level(&self, level: usize) -> Option<usize> {
        let sb = self.mapped.superblock();
        let (filled, row) = (sb.sparse_filled.get(level)?, sb.sparse.get(level)?);
        for _ in 0..SPARSE_WAYS {
            let way = filled.load(Relaxed).checked_ilog2()?;
            let entry = row.get(way as usize)?;
            let was = filled.fetch_and(!(1 << way), Relaxed);
            let segment = (entry.load(Relaxed) as usize).wrapping_sub(1);
            if was & 1 << way != 0 && self.mapped.has(segment) {
                return Some(segment);
            }
        }
        None
    }
}

/// Changes of the item count that a session collects before it adds them to the superblock's.
const ITEMS_BATCH: u64 = 64;

impl ItemCounts {
    /// Marks an item dead whose word this thread has taken out of the index, while its hazard pointer or claim of the segment stands: a
    /// reclaim need not look for its word. Its bytes are counted. A segment's count is in a cache line that every writer wants. So in
    /// large segments the place of a small item decides whether it counts as one sample, or not at all: on average each counts as
    /// its bytes. Nothing is collected, so nothing is lost when a session ends. `first`: the item's first word. `size`: what its
    /// header says ([`crate::layout::item::Header::size`]).
    #[inline(always)]
    pub(crate) fn mark_dead(&self, first: &AtomicU32, seen: &ItemView, size: usize) {
        // PAIRS: dead-mark: the loads in `Victims::skip_dead` and `item_header`: a reclaim that sees it dead sees its slot without it.
        first.store(seen.header.dead_word(), Release);
        let drawn = (seen.offset as u64).wrapping_mul(self.dead_factor) >> (u64::BITS - SAMPLE_SIZE.trailing_zeros());
        if drawn < size as u64 {
            self.count_sample(seen.segment, size);
        }
    }

    /// Counts an item that is dead and was drawn.
    #[inline(never)]
    fn count_sample(&self, segment: usize, size: usize) {
        let least = if self.dead_factor == 0 { 0 } else { SAMPLE_SIZE };
        self.segments.count_dead(segment, size.max(least));
    }

    /// An item left the index. `first`: its first word.
    #[inline(always)]
    pub(crate) fn count_removed(&self, first: &AtomicU32, seen: &ItemView) {
        let size = self.count_left(seen);
        self.mark_dead(first, seen, size);
    }

    /// An item left the index, but is not marked dead: its segment is being emptied. Returns what its header says of its size.
    #[inline(always)]
    pub(crate) fn count_left(&self, seen: &ItemView) -> usize {
        let size = seen.header.size();
        let thread = self.thread.slot();
        thread.count(Counter::curr_items, 1u64.wrapping_neg());
        thread.count(Counter::bytes, (self.items.size_in_all(seen, size) as u64).wrapping_neg());
        self.count_items(thread, -1);
        size
    }

    /// Counts one more, or one less, item in the index. `thread`: the session's thread slot, which the caller has at hand.
    #[inline(always)]
    pub(crate) fn count_items(&self, thread: &ThreadSlot, n: i64) {
        // In the thread slot, so that recovery finds it.
        let uncounted = &thread.items;
        let items = uncounted.load(Relaxed).cast_signed().wrapping_add(n);
        if !(1 - ITEMS_BATCH.cast_signed()..ITEMS_BATCH.cast_signed()).contains(&items) {
            uncounted.store(0, Relaxed);
            self.mapped.superblock().items.fetch_add(items.cast_unsigned(), Relaxed);
        } else {
            uncounted.store(items.cast_unsigned(), Relaxed);
        }
    }
}
