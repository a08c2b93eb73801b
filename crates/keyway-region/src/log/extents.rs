//! Extents: parts of an open segment that a thread leases and fills with items.
//!
//! **An extent's tail is release-stored before an item of it is published.** A walker that trusts only what is before the tail
//! finds complete items only, at whatever point the writer dies.

#[cfg(all(test, feature = "observe"))]
mod late;

use crate::atomics::{Acquire, AtomicU64, Relaxed, Release};
use crate::layout::index;
use crate::layout::segment::{
    EXTENT_HEADER_SIZE, ExtentWord, Kind, LeaseWord, LifetimeClass, SegmentLife, State, Stream, TailWord,
};
use crate::layout::session::LEASING;
use crate::log::Extents;
use crate::log::Items;
use crate::log::Supply;
use crate::log::dead::Closed;
use crate::log::item_view::ATTEMPTS_MAX;
use crate::mapped::Rules;
use crate::verbs::WriteError;
use std::cell::Cell;

/// An extent has space for this many items of the present size, but takes at most one in so many parts of a segment. Extents of
/// several writers are side by side, and the rest after each one's last item is lost.
const ITEMS_OF_AN_EXTENT: usize = 8;
const EXTENTS_OF_A_SEGMENT: usize = 4;

/// The rest of a segment is left to other sessions if it is at least one in so many parts of it.
const RESTS_OF_A_SEGMENT: usize = 32;

/// A session fills segments of its own if the region has this many for each thread slot that was ever leased, and if its items
/// have no expiry. Then no rest is lost between the items of several sessions, and no core waits for a header that another one
/// writes. Otherwise all sessions fill the same segments.
const SEGMENTS_OF_A_SESSION: usize = 64;

/// Bytes for which a writer does reclaiming work at a time while the region is full: half a dozen small items.
pub(crate) const PORTION: usize = 512;

/// Sizes of items after which as many bytes are prefetched for the next one: fewer are nearly covered by what is prefetched after any
/// item, and more would not stay in the first-level cache.
const PREFETCHED: core::ops::RangeInclusive<usize> = 512..=8 << 10;

/// A leased extent. Offsets in bytes from the segment's start.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    pub segment: usize,
    pub life: SegmentLife,
    /// of the extent's segment
    sequence: u64,
    /// its items carry their CAS uniques
    carries: bool,
    stream: Stream,
    start: usize,
    pub next: usize,
    /// up to here the work for the space is done: at most [`Self::leased`]
    end: usize,
    leased: usize,
}

/// The extent that a session has leased for a stream, if any. Its fields are separate cells, because a write reads few of them
/// and changes one.
pub(crate) struct Leased {
    segment: Cell<usize>,
    life: Cell<SegmentLife>,
    sequence: Cell<u64>,
    carries: Cell<bool>,
    stream: Cell<Stream>,
    start: Cell<usize>,
    next: Cell<usize>,
    /// 0: there is none
    end: Cell<usize>,
    /// the same, or 0 if the items carry their CAS uniques: for the fast path, which knows none that do
    end_that_gives: Cell<usize>,
    leased: Cell<usize>,
}

impl Leased {
    pub const fn none() -> Self {
        Self {
            segment: Cell::new(0),
            life: Cell::new(SegmentLife::FIRST),
            sequence: Cell::new(0),
            carries: Cell::new(false),
            end_that_gives: Cell::new(0),
            stream: Cell::new(Stream {
                pool: 0,
                class: 0,
                lifetime_class: LifetimeClass::Plain,
            }),
            start: Cell::new(0),
            next: Cell::new(0),
            end: Cell::new(0),
            leased: Cell::new(0),
        }
    }

    fn extent(&self) -> Extent {
        Extent {
            segment: self.segment.get(),
            life: self.life.get(),
            sequence: self.sequence.get(),
            carries: self.carries.get(),
            stream: self.stream.get(),
            start: self.start.get(),
            next: self.next.get(),
            end: self.end.get(),
            leased: self.leased.get(),
        }
    }

    #[inline]
    fn get(&self) -> Option<Extent> {
        (self.end.get() != 0).then(|| self.extent())
    }

    fn set(&self, extent: Extent) {
        self.segment.set(extent.segment);
        self.life.set(extent.life);
        self.sequence.set(extent.sequence);
        self.carries.set(extent.carries);
        self.stream.set(extent.stream);
        self.start.set(extent.start);
        self.next.set(extent.next);
        self.end_at(extent.end);
        self.leased.set(extent.leased);
    }

    fn take(&self) -> Option<Extent> {
        let extent = self.get();
        self.end_at(0);
        extent
    }

    fn end_at(&self, end: usize) {
        self.end.set(end);
        self.end_that_gives.set(if self.carries.get() { 0 } else { end });
    }

    /// [`Self::room`] whose place gives an item its CAS unique.
    #[inline(always)]
    pub(super) fn room_that_gives(&self, size: usize, epoch: u64) -> Option<Room<'_>> {
        self.room_to(self.end_that_gives.get(), size, epoch)
    }

    /// The space after its last item, if the extent is of this epoch and has this many bytes for which the work is done.
    #[inline(always)]
    pub(super) fn room(&self, size: usize, epoch: u64) -> Option<Room<'_>> {
        self.room_to(self.end.get(), size, epoch)
    }

    #[inline(always)]
    fn room_to(&self, end: usize, size: usize, epoch: u64) -> Option<Room<'_>> {
        if self.next.get() + size > end || self.life.get().epoch != epoch {
            return None;
        }
        Some(Room {
            segment: self.segment.get(),
            life: self.life.get(),
            sequence: self.sequence.get(),
            carries: self.carries.get(),
            start: self.start.get(),
            next: self.next.get(),
            kept: Some(self),
        })
    }

    /// Space in the extent after the reclaiming work for so many bytes was done. `None`: there is no extent of this epoch, or it
    /// is too full.
    fn room_paid(&self, size: usize, bytes: usize, epoch: u64) -> Option<Room<'_>> {
        let (next, leased) = (self.next.get(), self.leased.get());
        if self.end.get() == 0 || self.life.get().epoch != epoch || next + size > leased {
            return None;
        }
        self.end_at(leased.min(next.saturating_add(bytes)));
        self.room(size, epoch)
    }

    /// Whether this is the leased extent.
    fn is(&self, extent: &Extent) -> bool {
        self.segment.get() == extent.segment && self.start.get() == extent.start && self.end.get() != 0
    }
}

impl Room<'_> {
    /// Where the extent's tail is, in bytes from the segment's start: before the extent's items.
    #[inline(always)]
    pub(super) fn tail_offset(&self) -> usize {
        self.start + 8
    }
}

/// Where the next item goes. Offsets in bytes from the segment's start.
#[derive(Clone, Copy)]
pub(super) struct Room<'s> {
    pub segment: usize,
    pub life: SegmentLife,
    pub sequence: u64,
    /// its item carries its CAS unique
    pub carries: bool,
    /// of the extent
    start: usize,
    pub next: usize,
    /// where the extent is kept, if it is kept for the next items
    kept: Option<&'s Leased>,
}

impl Extents {
    /// Space for this many bytes in an extent of this stream and epoch.
    pub(super) fn room(
        &self,
        supply: &dyn Supply,
        size: usize,
        stream: Stream,
        epoch: u64,
        now: u32,
    ) -> Result<Room<'_>, WriteError> {
        match self.leased.get(stream.index()).and_then(|leased| leased.room(size, epoch)) {
            Some(room) => Ok(room),
            None => self.room_paid(supply, size, stream, epoch, now),
        }
    }

    /// Space for the fast path, if the present extent has none. `None`: there is none, or its place gives no CAS unique.
    #[cold]
    #[inline(never)]
    pub(super) fn more_room(&self, supply: &dyn Supply, size: usize, stream: Stream, epoch: u64, now: u32) -> Option<Room<'_>> {
        let room = self.room_paid(supply, size, stream, epoch, now).ok()?;
        if room.carries {
            self.leave_room(&room);
            return None;
        }
        Some(room)
    }

    /// Gives the space back unused: an extent that is not kept for other items ends.
    #[cold]
    pub(super) fn leave_room(&self, room: &Room<'_>) {
        if room.kept.is_none() {
            self.close(room.segment, room.start, room.life);
        }
    }

    /// The space after the last item of this extent.
    pub(super) fn room_in(&self, extent: Extent) -> Room<'_> {
        Room {
            segment: extent.segment,
            life: extent.life,
            sequence: extent.sequence,
            carries: extent.carries,
            start: extent.start,
            next: extent.next,
            kept: self.leased.get(extent.stream.index()).filter(|leased| leased.is(&extent)),
        }
    }

    /// That space, if the present extent is full, or the work for the rest of it is not done.
    #[cold]
    #[inline(never)]
    fn room_paid(&self, supply: &dyn Supply, size: usize, stream: Stream, epoch: u64, now: u32) -> Result<Room<'_>, WriteError> {
        let portion = size.max(PORTION);
        let bytes = supply.pay(portion, now);
        let kept = self.leased.get(stream.index());
        if let Some(room) = kept.and_then(|leased| leased.room_paid(size, bytes, epoch)) {
            return Ok(room);
        }
        let paid = |mut extent: Extent| {
            extent.end = extent.leased.min(extent.next.saturating_add(bytes));
            extent
        };
        let at_hand = self.extent(stream).filter(|e| e.life.epoch == epoch);
        if let Some(extent) = at_hand.and_then(|e| self.with_room(e, size)) {
            self.keep(paid(extent));
            return Ok(self.room_in(paid(extent)));
        }
        let extent = paid(self.lease(supply, size, stream, epoch, now, true)?);
        Ok(self.room_in(self.keep_better(extent, size)))
    }

    /// Space for a relocated item: in the present extent or in a free segment, without reclaiming work. `None`: neither has any.
    pub(super) fn room_for_copy(&self, supply: &dyn Supply, size: usize, stream: Stream, epoch: u64, now: u32) -> Option<Extent> {
        let at_hand = self.extent(stream).filter(|e| e.life.epoch == epoch);
        if let Some(extent) = at_hand.and_then(|e| self.with_room(e, size)) {
            self.keep(extent);
            return Some(extent);
        }
        let extent = self.lease(supply, size, stream, epoch, now, false).ok()?;
        Some(self.keep_better(extent, size))
    }

    /// The extent, extended if necessary and if no other thread has leased the cells after it.
    fn with_room(&self, extent: Extent, size: usize) -> Option<Extent> {
        if extent.next + size <= extent.leased {
            Some(extent)
        } else {
            self.extend(extent, size)
        }
    }

    /// Keeps the extent that has more space left, so that one large item does not cost the rest of a fresh extent. The new
    /// extent can be extended to the end of its segment; the old one could not.
    fn keep_better(&self, extent: Extent, size: usize) -> Extent {
        // Words that another process has written over may say that more is filled than was leased.
        let left = |e: &Extent| e.leased.saturating_sub(e.next);
        let behind = self.claims.segments.cells_left(extent.segment) * self.claims.mapped.layout().shape.cell_size();
        match self.extent(extent.stream) {
            Some(old) if old.life.epoch == extent.life.epoch && left(&old) > (left(&extent) + behind).saturating_sub(size) => {
                self.leave_open(extent.segment, extent.life.epoch, extent.stream);
            }
            _ => {
                self.close_extent(extent.stream.index());
                self.keep(extent);
            }
        }
        extent
    }

    /// The item is written: PUBLISH of the extent's tail. The item is invisible before it. After it a walker parses the item,
    /// which is dead until a slot names it. `tail_word`: what is at [`Room::tail_offset`].
    #[inline(always)]
    pub(super) fn commit<const PLAIN: bool>(
        &self,
        room: &Room<'_>,
        tail_word: &AtomicU64,
        segment_at: usize,
        size: usize,
        expiry: u32,
        rules: Rules<PLAIN>,
    ) {
        let tail = room.next + size;
        // Prefetches the next item's place; otherwise its write would wait for these lines.
        self.claims.mapped.memory().prefetch_four_to_write(segment_at + tail);
        if PREFETCHED.contains(&size) {
            self.prefetch_more(room, segment_at, size);
        }
        if expiry != 0 {
            let expires = &self.claims.mapped.header(room.segment).expires;
            if expires.load(Relaxed) < expiry {
                expires.fetch_max(expiry, Relaxed);
            }
        }
        // PAIRS: tail: the loads in `Reclaimer::empty_items` and in `check`: everything before the tail is complete.
        tail_word.store(TailWord::new(tail, self.claims.thread.owner().incarnation).0, Release);
        // Persistent before the word that leads to it: the barrier is between this and the publish. Not so the header with the
        // latest expiry, which is a hint: a reclaim because of it looks at each item.
        if rules.is_durable() {
            self.claims.mapped.write_back(segment_at + room.next, size);
        }
        match room.kept {
            Some(leased) => leased.next.set(tail),
            None => self.close(room.segment, room.start, room.life),
        }
    }

    /// Prefetches as many bytes as this item has: the next one of a caller with long values is usually not shorter.
    #[inline(always)]
    fn prefetch_more(&self, room: &Room<'_>, segment_at: usize, size: usize) {
        let tail = room.next + size;
        let leased = room.kept.map_or(0, |leased| leased.leased.get());
        let len = size.min(leased.saturating_sub(tail));
        self.claims.mapped.memory().prefetch_to_write(segment_at + tail, len);
    }

    #[inline]
    fn extent(&self, stream: Stream) -> Option<Extent> {
        self.leased.get(stream.index()).and_then(Leased::get)
    }

    fn keep(&self, extent: Extent) {
        if let Some(cell) = self.leased.get(extent.stream.index()) {
            cell.set(extent);
        }
    }

    /// Closes the extent of the stream with this number.
    pub(crate) fn close_extent(&self, stream: usize) {
        if let Some(extent) = self.leased.get(stream).and_then(Leased::take) {
            self.close(extent.segment, extent.start, extent.life);
            if !self.claims.segments.is_current(extent.segment) {
                self.leave_open(extent.segment, extent.life.epoch, extent.stream);
            }
        }
    }

    /// Closes this session's extents in a segment that is to be reclaimed.
    pub(crate) fn close_extents_in(&self, segment: usize) {
        for stream in 0..Stream::MAX {
            if self
                .leased
                .get(stream)
                .and_then(Leased::get)
                .is_some_and(|e| e.segment == segment)
            {
                self.close_extent(stream);
            }
        }
    }

    /// Closes one of this session's extents: its rest is dead.
    #[inline(never)]
    fn close(&self, segment: usize, start: usize, life: SegmentLife) {
        let at = self.claims.mapped.segment(segment) + start;
        let tail = TailWord(self.claims.mapped.word(at + 8).load(Relaxed)).tail();
        // First counted: if this thread dies before it has closed the extent, recovery counts the segment again.
        self.claims.segments.count_dead(
            segment,
            self.claims.segments.end_of_extent(segment, start).saturating_sub(tail),
        );
        let hands = ExtentWord(self.claims.mapped.word(at).load(Relaxed)).hands();
        let word = ExtentWord::new(life.generation, self.claims.thread.owner().slot)
            .in_hands(hands)
            .close();
        // PAIRS: closed: the load in `Segments::has_live_extent`: a recycler that sees the extent closed sees every publish from
        // it, and the hazard pointer for what is still to be published.
        self.claims.mapped.word(at).store(word.0, Release);
        // A thread that took it off the list when it was counted could not reclaim it yet.
        self.claims.segments.offer_filled(segment);
    }

    /// Cells to lease at a time for items of this size.
    fn comfortable(&self, size: usize) -> usize {
        let shape = self.claims.mapped.layout().shape;
        (size * ITEMS_OF_AN_EXTENT / shape.cell_size()).min(shape.cells() / EXTENTS_OF_A_SEGMENT)
    }

    /// Leases the cells after an extent, if no other thread has.
    fn extend(&self, mut extent: Extent, size: usize) -> Option<Extent> {
        let shape = self.claims.mapped.layout().shape;
        let lease = &self.claims.mapped.header(extent.segment).lease;
        let old = LeaseWord(lease.load(Relaxed));
        let needed = (extent.next + size - extent.leased).div_ceil(shape.cell_size());
        let left = shape.cells().saturating_sub(old.cells());
        if old.is_sealed()
            || !old.is_of_generation(extent.life.generation)
            || old.cells() * shape.cell_size() != extent.leased
            || needed > left
        {
            return None;
        }
        let cells = needed.max(self.comfortable(size)).min(left);
        lease
            .compare_exchange(old.0, old.lease(cells, false).0, Relaxed, Relaxed)
            .ok()?;
        self.claims.mapped.write_back_header(extent.segment);
        self.claims.mapped.fault_in(
            self.claims.mapped.segment(extent.segment) + extent.leased,
            cells * shape.cell_size(),
        );
        extent.leased += cells * shape.cell_size();
        Some(extent)
    }

    /// Leases an extent with space for `size` bytes, in the open segment or in a new one.
    fn lease(
        &self,
        supply: &dyn Supply,
        size: usize,
        stream: Stream,
        epoch: u64,
        now: u32,
        make_room: bool,
    ) -> Result<Extent, WriteError> {
        let shape = self.claims.mapped.layout().shape;
        let needed = (size + EXTENT_HEADER_SIZE).div_ceil(shape.cell_size());
        let cells = needed.max(self.comfortable(size));
        let alone = self.fills_alone(stream);
        for _ in 0..ATTEMPTS_MAX {
            let hint = self.open_hint(stream);
            // The rest of a segment that another session left is only this session's from now on.
            if alone && hint != 0 && !self.replace_hint(stream, hint, 0) {
                continue;
            }
            let open = self.named(hint);
            if let Some(extent) = open.and_then(|segment| self.lease_in(segment, size, cells, epoch, stream)) {
                return Ok(extent);
            }
            if alone {
                if let Some(open) = open {
                    // If it were left open again, it would stay open for ever where all items are as large.
                    self.finish_segment(open);
                }
            } else if self.open_hint(stream) != hint {
                continue;
            }
            let segment = supply.take_segment(now, make_room)?;
            let extent = self.open_segment(segment, cells, epoch, stream, now);
            if !alone {
                self.leave_open(segment, epoch, stream);
            }
            return Ok(extent);
        }
        Err(WriteError::Corrupt)
    }

    /// Whether this session fills segments of its own.
    fn fills_alone(&self, stream: Stream) -> bool {
        stream.class == 0 && self.claims.threads.threads_used() * SEGMENTS_OF_A_SESSION <= self.claims.mapped.allowed()
    }

    /// Leaves the rest of a segment to the next session that leases, if the rest is large enough, and larger than that of the
    /// segment that is open to all.
    fn leave_open(&self, segment: usize, epoch: u64, stream: Stream) {
        let hint = self.open_hint(stream);
        let open = self.named(hint);
        let room_left = |segment| self.room_left_open(segment, epoch, stream);
        let left = room_left(segment);
        let is_better =
            left >= self.claims.mapped.layout().shape.segment_size / RESTS_OF_A_SEGMENT && left > open.map_or(0, room_left);
        let finished = if is_better && self.replace_hint(stream, hint, segment as u64 + 1) {
            open
        } else {
            Some(segment)
        };
        if let Some(finished) = finished {
            self.finish_segment(finished);
        }
    }

    /// Leaves the rest of a log segment that no session fills to the next one that leases. Such a segment is its dead owner's, or was not
    /// left because of a race.
    pub(crate) fn leave_to_others(&self, segment: usize) {
        let mapped = &*self.claims.mapped;
        if !self.claims.segments.is_sealed(segment)
            && !self.claims.segments.is_current(segment)
            && !self.claims.segments.has_live_extent(segment)
        {
            let stream = State(mapped.header(segment).state.load(Relaxed)).stream();
            self.leave_open(segment, mapped.segment_life(segment).epoch, stream);
        }
    }

    /// Ends leasing in this segment: its rest is dead, unless a thread is about to fill it.
    fn finish_segment(&self, segment: usize) {
        let generation = self.claims.mapped.segment_life(segment).generation;
        let state = State(self.claims.mapped.header(segment).state.load(Relaxed));
        if state.kind() != Some(Kind::Open) || state.owner().is_some() {
            return;
        }
        if !self.claims.segments.is_sealed(segment) && !self.claims.segments.has_live_extent(segment) {
            self.claims.seal(segment, generation);
        }
        self.claims.segments.offer_filled(segment);
    }

    /// Stores another segment, plus 1, as the one that is open to all; 0: none.
    fn replace_hint(&self, stream: Stream, old: u64, new: u64) -> bool {
        // PAIRS: open-hint: the load in `open_hint`.
        self.claims
            .segments
            .open_word(stream)
            .is_some_and(|word| word.compare_exchange(old, new, Release, Relaxed).is_ok())
    }

    fn open_hint(&self, stream: Stream) -> u64 {
        // PAIRS: open-hint: the exchange in `replace_hint`: a thread that is led to a segment finds it open.
        self.claims.segments.open_word(stream).map_or(0, |w| w.load(Acquire))
    }

    /// The segment that this word names, if any.
    fn named(&self, hint: u64) -> Option<usize> {
        index(hint).checked_sub(1).filter(|segment| self.claims.mapped.has(*segment))
    }

    /// Bytes of an open segment that the next session can lease: the rest of the last extent, and the cells after it.
    fn room_left_open(&self, segment: usize, epoch: u64, stream: Stream) -> usize {
        let mapped = &*self.claims.mapped;
        let lease = LeaseWord(mapped.header(segment).lease.load(Relaxed));
        let usable = mapped.segment_life(segment).epoch == epoch
            && mapped.header(segment).state.load(Relaxed) == State::of(Kind::Open, stream).0
            && !lease.is_sealed()
            // A new item there would be stale.
            && !Items::is_opened_before_gap(&self.claims.mapped, segment);
        if !usable {
            return 0;
        }
        let closed = self
            .claims
            .segments
            .closed_last(segment, lease)
            .filter(|_| lease.hand_on().is_some());
        let cells = self.claims.segments.cells_left(segment) * mapped.layout().shape.cell_size();
        cells + closed.map_or(0, |closed| closed.end - closed.tail)
    }

    /// Leases an extent in an open segment: the rest of the last one, with cells after it, if no thread fills it any more, or cells of its own.
    fn lease_in(&self, segment: usize, size: usize, cells: usize, epoch: u64, stream: Stream) -> Option<Extent> {
        let shape = self.claims.mapped.layout().shape;
        let header = self.claims.mapped.header(segment);
        for _ in 0..ATTEMPTS_MAX {
            let life = self.claims.mapped.segment_life(segment);
            let old = LeaseWord(header.lease.load(Relaxed));
            // PAIRS: open: the store in `open_segment`: a thread that sees it open sees its words.
            let usable = header.state.load(Acquire) == State::of(Kind::Open, stream).0
                && life.epoch == epoch
                && old.is_of_generation(life.generation)
                && !old.is_sealed();
            if !usable {
                return None;
            }
            let left = shape.cells().saturating_sub(old.cells());
            let handed = self.hand_on(segment, size, cells, old);
            let own = || (cells <= left).then(|| old.lease(cells, true));
            let new = handed.map(|(_, new)| new).or_else(own)?;
            // A recycler that finds the cells before their header is written looks for this hazard pointer. Its fence
            // is before every byte that this thread writes there, as that of `claim_from_free` is for the thread that opened the segment.
            self.claims.thread.protect(LEASING, segment);
            // PAIRS: leasing: the load in `Segments::has_live_extent`: a recycler that sees the lease sees the hazard pointer.
            if header.lease.compare_exchange(old.0, new.0, Release, Relaxed).is_err() {
                self.claims.thread.release(LEASING);
                continue;
            }
            let extent = match handed {
                None => Some(self.start_extent(segment, old.cells(), cells, stream)),
                // The segment may have been recycled since the extent was looked at, until the lease word was the same.
                Some((closed, _)) if self.claims.segments.closed_last(segment, old) != Some(closed) => None,
                Some((closed, new)) => Some(self.take_extent(segment, closed, new, stream)),
            };
            self.claims.thread.release(LEASING);
            let extent = extent?;
            // The thread that opened the segment may not have reached its barrier yet.
            self.claims.mapped.write_back_header(segment);
            self.claims.mapped.write_back_words(segment);
            // After the lease the segment cannot be recycled. It may have been between the checks and the lease.
            if extent.life == life {
                return Some(extent);
            }
            self.close(extent.segment, extent.start, extent.life);
        }
        None
    }

    /// The last extent of a segment with this lease word, if it is closed and has space for `size` bytes, perhaps with cells after it that no
    /// thread has leased; and the lease word after it was handed on.
    fn hand_on(&self, segment: usize, size: usize, cells: usize, lease: LeaseWord) -> Option<(Closed, LeaseWord)> {
        let shape = self.claims.mapped.layout().shape;
        let closed = self.claims.segments.closed_last(segment, lease)?;
        let rest = closed.end - closed.tail;
        let left = shape.cells().saturating_sub(lease.cells());
        let more = (cells * shape.cell_size())
            .saturating_sub(rest)
            .div_ceil(shape.cell_size())
            .min(left);
        let has_space = size <= rest + more * shape.cell_size();
        let handed = lease.hand_on().filter(|_| has_space)?;
        Some((closed, handed.lease(more, false)))
    }

    /// Writes the header of an extent that was just handed on to this session, and whose segment has this lease word.
    fn take_extent(&self, segment: usize, closed: Closed, lease: LeaseWord, stream: Stream) -> Extent {
        let end = lease.cells() * self.claims.mapped.layout().shape.cell_size();
        let at = self.claims.mapped.segment(segment) + closed.start;
        self.claims
            .mapped
            .fault_in(self.claims.mapped.segment(segment) + closed.tail, end - closed.tail);
        // What a thread that died has put in front may not be persistent, and recovery reads an extent's items one after the other.
        self.claims.mapped.write_back(at, closed.tail - closed.start);
        let extent = self.begin_extent(segment, [closed.start, closed.tail, end], lease.hands(), stream);
        self.claims.segments.uncount_dead(segment, closed.end - closed.tail);
        extent
    }

    /// Writes the header of an extent whose cells were just leased.
    fn start_extent(&self, segment: usize, first_cell: usize, cells: usize, stream: Stream) -> Extent {
        let cell_size = self.claims.mapped.layout().shape.cell_size();
        let (start, end) = (first_cell * cell_size, (first_cell + cells) * cell_size);
        self.claims
            .mapped
            .fault_in(self.claims.mapped.segment(segment) + start, end - start);
        self.begin_extent(segment, [start, start + EXTENT_HEADER_SIZE, end], 0, stream)
    }

    /// Writes the header of an extent that is this session's from now on: where it starts, where its items end, and where it ends.
    fn begin_extent(&self, segment: usize, [start, next, end]: [usize; 3], hands: u64, stream: Stream) -> Extent {
        let life = self.claims.mapped.segment_life(segment);
        let at = self.claims.mapped.segment(segment) + start;
        self.claims
            .mapped
            .word(at + 8)
            .store(TailWord::new(next, self.claims.thread.owner().incarnation).0, Relaxed);
        let header = ExtentWord::new(life.generation, self.claims.thread.owner().slot).in_hands(hands);
        // PAIRS: extent: the load in `Segments::has_live_extent`: a thread that sees the header sees its tail, and its owner's lease.
        self.claims.mapped.word(at).store(header.0, Release);
        Extent {
            segment,
            life,
            sequence: self.claims.mapped.header(segment).sequence.load(Relaxed),
            carries: self.claims.mapped.header(segment).carries.load(Relaxed) != 0,
            stream,
            start,
            next,
            end,
            leased: end,
        }
    }

    /// Opens a claimed segment, with a first extent for this thread.
    fn open_segment(&self, segment: usize, cells: usize, epoch: u64, stream: Stream, now: u32) -> Extent {
        let shape = self.claims.mapped.layout().shape;
        let header = self.claims.mapped.header(segment);
        let generation = self.claims.mapped.segment_life(segment).generation;
        // Before the cells are written: they are in no cache, and a locked instruction waits for the stores before it.
        let (sequence, carries) = self.claims.uniques.take_uniques(now);
        header.sequence.store(sequence, Relaxed);
        header.carries.store(carries.into(), Relaxed);
        for cell in 0..shape.cells() {
            self.claims
                .mapped
                .word(self.claims.mapped.segment(segment) + cell * shape.cell_size())
                .store(0, Relaxed);
        }
        header.dead.store(0, Relaxed);
        header.opened.store(now, Relaxed);
        header.expires.store(if stream.class == 0 { u32::MAX } else { 0 }, Relaxed);
        header.lease.store(LeaseWord::new(generation).lease(cells, true).0, Relaxed);
        self.claims.mapped.words(segment).epoch.store(epoch, Relaxed);
        let extent = self.start_extent(segment, 0, cells, stream);
        // PAIRS: open: the load in `lease_in`: a thread that sees it open sees its words.
        header.state.store(State::of(Kind::Open, stream).0, Release);
        self.claims.mapped.write_back_header(segment);
        self.claims.mapped.write_back_words(segment);
        extent
    }
}
