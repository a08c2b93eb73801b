//! Dead bytes of a log segment, counted from the segment itself: items that are marked dead, the rest of each extent that no thread fills
//! any more, and cells that no thread can lease.
//!
//! The count in a segment's header is what reclaiming goes by. Each thread adds the items that it marks dead. A thread that ends the use
//! of a rest adds the rest first, or under a hazard pointer. So a death costs the count at most what the dead thread was about to add: its
//! extents are still open, and its hazard pointers say which segments to count again.

use crate::atomics::{Acquire, Relaxed, Release};
use crate::layout::item::{self, flag};
use crate::layout::segment::{EXTENT_HEADER_SIZE, ExtentWord, Kind, LeaseWord, State, TailWord};
use crate::layout::session::LEASING;
use crate::layout::slot::Slot;
use crate::log::Claims;
use crate::log::Segments;

/// An extent that was leased in a segment's present generation. Offsets in bytes from the segment's start.
struct Leasehold {
    start: usize,
    end: usize,
    /// `None`: its header is not written
    header: Option<(ExtentWord, TailWord)>,
}

/// A closed extent. Offsets in bytes from the segment's start.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Closed {
    pub start: usize,
    pub tail: usize,
    pub end: usize,
    word: ExtentWord,
}

impl Leasehold {
    /// Where its items end.
    fn tail(&self) -> usize {
        let tail = self.header.map_or(0, |(_, tail)| tail.tail());
        // A corrupted word may hold any value.
        tail.clamp(self.start + EXTENT_HEADER_SIZE, self.end)
    }
}

impl Segments {
    /// Bytes of a log segment that are dead.
    pub(crate) fn dead_bytes(&self, segment: usize) -> usize {
        let Some(lease) = self.lease_of(segment) else { return 0 };
        let extents = self.leaseholds(segment, lease).map(|extent| {
            let rest = extent.end - extent.tail() - self.open_rest(segment, &extent);
            rest + self.dead_items(segment, &extent)
        });
        self.sealed_rest(lease) + extents.sum::<usize>()
    }

    /// Bytes of a log segment that are for items, or that no item will get: what is not live of it is dead if no thread fills it.
    pub(crate) fn given_to_items(&self, segment: usize) -> usize {
        let Some(lease) = self.lease_of(segment) else { return 0 };
        let extents = self.leaseholds(segment, lease);
        let items = extents.map(|extent| extent.end - extent.start - EXTENT_HEADER_SIZE);
        self.sealed_rest(lease) + items.sum::<usize>()
    }

    /// Bytes of a log segment that threads may still fill.
    pub(crate) fn rest_being_filled(&self, segment: usize) -> usize {
        let Some(lease) = self.lease_of(segment) else { return 0 };
        self.leaseholds(segment, lease)
            .map(|extent| self.open_rest(segment, &extent))
            .sum()
    }

    /// Bytes in which no extent can be leased any more.
    fn sealed_rest(&self, lease: LeaseWord) -> usize {
        let shape = self.mapped.layout().shape;
        let cells = if lease.is_sealed() {
            shape.cells().saturating_sub(lease.cells())
        } else {
            0
        };
        cells * shape.cell_size()
    }

    fn open_rest(&self, segment: usize, extent: &Leasehold) -> usize {
        if self.is_being_filled(segment, extent) {
            extent.end - extent.tail()
        } else {
            0
        }
    }

    fn dead_items(&self, segment: usize, extent: &Leasehold) -> usize {
        let (at, tail) = (self.mapped.segment(segment), extent.tail());
        let (mut offset, mut dead) = (extent.start + EXTENT_HEADER_SIZE, 0);
        while offset + item::SIZE_MIN <= tail
            && let Some(header) = self.items.item_header(at + offset).validate(tail - offset)
        {
            dead += if header.has(flag::DEAD) { header.size() } else { 0 };
            offset += header.size();
        }
        dead
    }

    /// Counts a log segment again, after a death that may have cost it a count. A count never falls: what is dead stays dead as long
    /// as the segment has its generation.
    pub(crate) fn recount_dead(&self, segment: usize) {
        if self.is_log(segment) {
            let dead = self.dead_bytes(segment);
            self.mapped.header(segment).dead.fetch_max(dead as u64, Relaxed);
        }
    }

    /// Counts an item that was written, and that no slot will name.
    #[cold]
    #[inline(never)]
    pub(crate) fn count_unpublished(&self, word: Slot) {
        let (segment, offset) = (word.segment(), word.offset());
        if self.mapped.has(segment)
            && let Some(room) = self.mapped.layout().shape.segment_size.checked_sub(offset)
            && let Some(header) = self.items.item_header(self.mapped.segment(segment) + offset).validate(room)
        {
            self.count_dead(segment, header.size());
        }
    }

    /// The last extent that was leased in the segment, if it is closed: its rest can be handed on. Not if it was handed on to a thread that
    /// has yet to write its header.
    pub(super) fn closed_last(&self, segment: usize, lease: LeaseWord) -> Option<Closed> {
        let first = lease.last_extent()?;
        let last = self
            .leaseholds(segment, lease)
            .find(|extent| extent.start == first * self.mapped.layout().shape.cell_size())?;
        let is_current = |word: &ExtentWord| word.hands() == lease.hands();
        let (word, _) = last.header.filter(|(word, _)| word.is_closed() && is_current(word))?;
        let tail = last.tail();
        Some(Closed {
            start: last.start,
            tail,
            end: last.end,
            word,
        })
    }

    /// Takes bytes of a segment back from its count: a thread is about to fill them.
    pub(super) fn uncount_dead(&self, segment: usize, bytes: usize) {
        let counter = &self.mapped.header(segment).dead;
        let mut dead = counter.load(Relaxed);
        // A count that a death has cost some bytes does not fall below zero.
        while let Err(now) = counter.compare_exchange(dead, dead.saturating_sub(bytes as u64), Relaxed, Relaxed) {
            dead = now;
        }
    }

    /// Where the extent that starts there ends.
    pub(super) fn end_of_extent(&self, segment: usize, start: usize) -> usize {
        let cell_size = self.mapped.layout().shape.cell_size();
        let lease = LeaseWord(self.mapped.header(segment).lease.load(Relaxed));
        let mut extents = lease.extents();
        extents
            .find(|(first, _)| first * cell_size == start)
            .map_or(start, |(_, end)| end * cell_size)
    }

    fn is_log(&self, segment: usize) -> bool {
        let kind = || State(self.mapped.header(segment).state.load(Relaxed)).kind();
        self.mapped.has(segment) && matches!(kind(), Some(Kind::Open | Kind::Retired))
    }

    /// The lease word, if cells were leased in this generation.
    pub(super) fn lease_of(&self, segment: usize) -> Option<LeaseWord> {
        // PAIRS: leasing: the exchange in `Extents::lease_in`.
        let lease = LeaseWord(self.mapped.header(segment).lease.load(Acquire));
        lease
            .is_of_generation(self.mapped.segment_life(segment).generation)
            .then_some(lease)
    }

    fn leaseholds(&self, segment: usize, lease: LeaseWord) -> impl Iterator<Item = Leasehold> {
        let shape = self.mapped.layout().shape;
        let generation = self.mapped.segment_life(segment).generation;
        lease
            .extents()
            .map(move |(first, end)| (first * shape.cell_size(), end * shape.cell_size()))
            .filter(move |(_, end)| *end <= shape.segment_size)
            .map(move |(start, end)| {
                let at = self.mapped.segment(segment) + start;
                // PAIRS: extent: the store in `Extents::begin_extent`. PAIRS: dead-extent: the exchange in `close_dead_extents`.
                let word = ExtentWord(self.mapped.word(at).load(Acquire));
                // PAIRS: tail: the store in `Extents::commit`.
                let tail = || TailWord(self.mapped.word(at + 8).load(Acquire));
                Leasehold {
                    start,
                    end,
                    header: (word.generation() == generation).then(|| (word, tail())),
                }
            })
    }

    /// Whether a thread may still put an item into any of the segment's extents.
    pub(super) fn has_open_extent(&self, segment: usize, lease: LeaseWord) -> bool {
        self.leaseholds(segment, lease)
            .any(|extent| self.is_being_filled(segment, &extent))
    }

    /// Whether a thread may still put an item into the extent.
    fn is_being_filled(&self, segment: usize, extent: &Leasehold) -> bool {
        match extent.header {
            Some((word, tail)) => !word.is_closed() && self.threads.is_held(word.owner_with(tail)),
            // Its thread is about to write it, or died before it did.
            None => self.threads.is_leasing(segment),
        }
    }
}

impl Claims {
    /// Closes the extents of dead threads in a log segment: their rests are dead. Several threads may do it concurrently.
    pub(crate) fn close_dead_extents(&self, segment: usize) {
        let mapped = &*self.mapped;
        let Some(lease) = self
            .segments
            .is_log(segment)
            .then(|| self.segments.lease_of(segment))
            .flatten()
        else {
            return;
        };
        let is_of_dead = |extent: &Leasehold| {
            let is_open = extent.header.is_some_and(|(word, _)| !word.is_closed());
            is_open && !self.segments.is_being_filled(segment, extent)
        };
        for extent in self.segments.leaseholds(segment, lease).filter(is_of_dead) {
            let Some((word, _)) = extent.header else { continue };
            // As in `seal`.
            self.thread.protect(LEASING, segment);
            // The word contains the generation, and how often the extent was handed on: it is this extent, in the same hands.
            // PAIRS: dead-extent: the loads of extents' headers: a thread that sees it closed comes after the death.
            let closed =
                mapped
                    .word(mapped.segment(segment) + extent.start)
                    .compare_exchange(word.0, word.close().0, Release, Relaxed);
            if closed.is_ok() {
                self.segments.count_dead(segment, extent.end - extent.tail());
            }
            self.thread.release(LEASING);
        }
        // Cells whose thread died before it wrote their header are in no count, because recovery took it for about to write it.
        if self.segments.leaseholds(segment, lease).any(|extent| extent.header.is_none()) && !self.threads.is_leasing(segment) {
            self.segments.recount_dead(segment);
        }
        self.segments.offer_filled(segment);
    }

    /// Seals a segment, if it still has this generation: no more extents are leased in it, so the cells that are left are dead.
    pub(crate) fn seal(&self, segment: usize, generation: u64) {
        let header = self.mapped.header(segment);
        let is_open = |lease: LeaseWord| !lease.is_sealed() && lease.is_of_generation(generation);
        let mut old = LeaseWord(header.lease.load(Relaxed));
        if !is_open(old) {
            return;
        }
        // If this thread dies before it has counted the rest, recovery counts the segment again.
        self.thread.protect(LEASING, segment);
        while is_open(old) {
            match header.lease.compare_exchange(old.0, old.seal().0, Relaxed, Relaxed) {
                Ok(_) => {
                    self.segments.count_dead(segment, self.segments.sealed_rest(old.seal()));
                    break;
                }
                Err(now) => old = LeaseWord(now),
            }
        }
        self.thread.release(LEASING);
    }
}
