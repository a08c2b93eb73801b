//! Where new items go: extents that a thread leases in an open segment, and the items that it writes there.
//!
//! An item is private until its slot is published. **The extent's tail is release-stored before that**, so a walker that
//! trusts only what lies before the tail meets whole items only, whenever the writer dies.

#[cfg(all(test, feature = "observe"))]
mod late;

use crate::aside::{self, List};
use crate::atomics::{Acquire, AtomicU32, AtomicU64, Relaxed, Release, fence};
use crate::checksum::{Cover, part_checksum};
use crate::decimal;
use crate::evict::PORTION;
use crate::hash::{Key, tag};
use crate::layout::index;
use crate::layout::item::{self, Header, LARGE_BODY_SIZE, flag};
use crate::layout::segment::{
    ADMISSION, CHAIN_HEADER_SIZE, CHAIN_LEN_WORD, EXTENT_HEADER_SIZE, ExtentWord, Kind, LeaseWord, Link, MAIN, SegmentHeader,
    SegmentLife, Standing, State, Stream, TailWord,
};
use crate::layout::session::{FREEING, LEASING, UPKEEP, WRITTEN};
use crate::layout::slot::{OFFSET_BITS, Slot};
use crate::layout::stats::Counter;
use crate::layout::superblock::FREE;
use crate::lookup::{ATTEMPTS_MAX, Chain, Seen, cas_of};
use crate::mutants::{self, Mutant};
use crate::purge::Relocated;
use crate::region::Region;
use crate::session::Session;
use crate::verbs::WriteError;
use std::cell::Cell;

/// Upper bounds of the TTL classes, seconds left; class 0 is everything longer, and never. An expired item waits for the
/// last one of its segment, so for at most four times its own time.
pub(crate) const CLASS_TTL_S: [u32; 7] = [60, 240, 960, 3_840, 15_360, 61_440, 245_760];
/// The same in a region of fewer segments than that: open segments must stay a small part.
pub(crate) const CLASS_TTL_FEW_S: [u32; 1] = [240];
const SEGMENTS_FOR_ALL_CLASSES: usize = 256;
/// Below this many segments everything is in one pool, and of one standing but for what compaction copies.
const SEGMENTS_FOR_POOLS: usize = 64;

/// Room for so many items like the one at hand is leased, at most one in so many parts of a segment: extents of several writers lie side
/// by side, and behind the last item of each the rest is lost.
const ITEMS_OF_AN_EXTENT: usize = 8;
const EXTENTS_OF_A_SEGMENT: usize = 4;

/// A session fills segments of its own if the region has so many for each thread slot that was ever leased, and what it writes has no
/// expiry: then nothing is lost between the items of several, and no core waits for a header that another writes. Otherwise all fill the
/// same ones.
const SEGMENTS_OF_A_SESSION: usize = 64;

/// An item stood for long if meanwhile one in so many of the region's segments was opened. In a simulated region that is half full of items
/// drawn by zipf's law, with anything from a quarter to a sixteenth about as much is copied.
const SETTLED_PART: u64 = 8;
/// It stood briefly if the log went on by less than this since: what a processor's cache holds of it. At most one in so many segments.
const BRIEF_LOG: u64 = 4 << 20;
const BRIEF_PART: u64 = 32;

/// Cache lines of the log that are asked for before the next item needs them.
const WRITE_AHEAD: usize = 4;

/// A leased extent. Offsets in bytes from the segment's start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    segment: usize,
    life: SegmentLife,
    /// of its segment
    sequence: u64,
    stream: Stream,
    start: usize,
    next: usize,
    /// how far it is paid for, in work: at most [`Self::leased`]
    end: usize,
    leased: usize,
}

/// The extent that a session has leased for a stream, if any. Its fields are apart: a write looks at few of them and moves one on.
pub(crate) struct Leased {
    segment: Cell<usize>,
    life: Cell<SegmentLife>,
    sequence: Cell<u64>,
    stream: Cell<Stream>,
    start: Cell<usize>,
    next: Cell<usize>,
    /// 0: there is none
    end: Cell<usize>,
    leased: Cell<usize>,
}

impl Leased {
    pub const fn none() -> Self {
        Self {
            segment: Cell::new(0),
            life: Cell::new(SegmentLife::FIRST),
            sequence: Cell::new(0),
            stream: Cell::new(Stream {
                pool: 0,
                class: 0,
                standing: Standing::Plain,
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
        self.stream.set(extent.stream);
        self.start.set(extent.start);
        self.next.set(extent.next);
        self.end.set(extent.end);
        self.leased.set(extent.leased);
    }

    fn take(&self) -> Option<Extent> {
        let extent = self.get();
        self.end.set(0);
        extent
    }

    /// The room behind its last item, if the extent is of this epoch and that is so many bytes that are paid for.
    #[inline(always)]
    fn room(&self, size: usize, epoch: u64) -> Option<Room<'_>> {
        if self.next.get() + size > self.end.get() || self.life.get().epoch != epoch {
            return None;
        }
        Some(Room {
            segment: self.segment.get(),
            life: self.life.get(),
            sequence: self.sequence.get(),
            start: self.start.get(),
            next: self.next.get(),
            kept: Some(self),
        })
    }

    /// Whether it is this extent that is leased.
    fn is(&self, extent: &Extent) -> bool {
        self.segment.get() == extent.segment && self.start.get() == extent.start && self.end.get() != 0
    }
}

/// Where the next item goes. Offsets in bytes from the segment's start.
#[derive(Clone, Copy)]
struct Room<'s> {
    segment: usize,
    life: SegmentLife,
    sequence: u64,
    /// of its extent
    start: usize,
    next: usize,
    /// who keeps the extent, if it is kept for the items that come behind
    kept: Option<&'s Leased>,
}

/// What an item is to be, apart from its key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Draft<'v> {
    /// [`flag::STALE`], [`flag::WIN_SENT`], [`flag::BINARY_KEY`]
    pub marks: u64,
    pub client_flags: u32,
    /// a CAS unique of its own
    pub cas: Option<u64>,
    /// a tick of the region's clock, 0 for never
    pub expiry: u32,
    pub value: Value<'v>,
}

impl Draft<'_> {
    /// The flags and marks of its header.
    #[inline(always)]
    fn flags(&self) -> u64 {
        let client_flags = if self.client_flags != 0 { flag::CLIENT_FLAGS } else { 0 };
        let cas = if self.cas.is_some() { flag::CAS } else { 0 };
        self.marks | client_flags | cas
    }

    /// The same, with this CAS unique.
    fn with_cas(self, cas: u64) -> Self {
        Self { cas: Some(cas), ..self }
    }
}

/// What an item leads to whose value has segments of its own.
enum Body<'v> {
    /// those of the item that it replaces
    Chain(Chain),
    /// a value that is to get some
    Bytes(&'v [u8]),
}

/// Where a new item's value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value<'v> {
    Bytes(&'v [u8]),
    /// what the decision has built in its buffer
    Built,
    /// a number, in decimal, padded with blanks to this many bytes (at most [`decimal::LEN_MAX`])
    Number(u64, usize),
    /// the segments of the item that it replaces
    Chain(Chain),
}

/// The item whose place a new one takes.
#[derive(Clone, Copy)]
pub(crate) struct Replaced {
    pub segment: usize,
    /// the new one's CAS unique is greater
    pub unique: u64,
}

/// An item that is copied to the log's head.
pub(crate) struct CopyOf<'s> {
    pub seen: &'s Seen,
    /// of the copy, which has a CAS unique of its own
    pub header: Header,
}

impl CopyOf<'_> {
    /// What is copied as it stands, from the client flags to the value's end: where it begins in the region, and its length, bytes.
    fn kept(&self) -> (usize, usize) {
        let header = self.seen.header;
        let start = header.client_flags_offset();
        (self.seen.at + start, header.value_offset() + header.value_len() - start)
    }
}

/// An item that has been written and not been published.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Written {
    pub word: Slot,
    pub cas: u64,
    pub value_len: usize,
    /// bytes in the region, a large value's included
    pub size: usize,
    /// segments that belong to it alone
    pub chain: Option<Chain>,
}

impl Region {
    /// The open segment of a stream, plus 1: a hint.
    pub(crate) fn open_word(&self, stream: Stream) -> Option<&AtomicU64> {
        let sb = self.superblock();
        match stream.standing {
            Standing::Plain => sb.open.get(stream.pool)?.get(stream.class),
            Standing::Brief => sb.open_brief.get(stream.pool),
            Standing::Settled => sb.open_settled.get(stream.pool),
        }
    }

    /// The number of the segment that is opened next.
    pub(crate) fn next_sequence(&self) -> u64 {
        self.superblock().sequence.fetch_add(1, Relaxed)
    }

    /// What the CAS unique of an item's successor exceeds. A unique that no place can have given was chosen by a client, and is not
    /// to be outdone: 0.
    #[inline(never)]
    pub(crate) fn unique_to_exceed(&self, seen: &Seen) -> u64 {
        let unique = self.cas_unique(seen);
        if unique < cas_of(self.superblock().sequence.load(Relaxed), 0) {
            unique
        } else {
            0
        }
    }

    /// A CAS unique above this one that no other item has: of a sequence number that no segment has, until those are used up or others have
    /// gone beyond them.
    #[cold]
    fn unique_above(&self, old: u64) -> u64 {
        let uniques = &self.superblock().uniques;
        let mut last = uniques.load(Relaxed);
        loop {
            let mut next = last + 1;
            if next <= old || next.trailing_zeros() >= OFFSET_BITS {
                next = cas_of(self.next_sequence(), item::ALIGNMENT);
            }
            match uniques.compare_exchange(last, next, Relaxed, Relaxed) {
                Ok(_) => return next,
                Err(now) => last = now,
            }
        }
    }

    /// Segments that have been opened since this one was.
    #[inline(always)]
    pub(crate) fn age(&self, segment: &SegmentHeader) -> u64 {
        let now = self.superblock().sequence.load(Relaxed);
        now.wrapping_sub(segment.sequence.load(Relaxed))
    }

    /// How long what replaces an item of this segment is expected to stand: as the item has.
    #[inline(always)]
    fn standing(&self, segment: &SegmentHeader) -> Standing {
        let (age, segments) = (self.age(segment), self.allowed() as u64);
        if age >= segments / SETTLED_PART {
            Standing::Settled
        } else if age < (segments / BRIEF_PART).min(BRIEF_LOG >> self.layout.shape.segment_size.trailing_zeros()) {
            Standing::Brief
        } else {
            Standing::Plain
        }
    }

    /// Whether there are segments enough for two pools.
    pub(crate) fn has_pools(&self) -> bool {
        self.allowed() >= SEGMENTS_FOR_POOLS
    }
}

impl Session {
    /// Writes an item of flush epoch `epoch` to a place of its own, with what the decision has `built` if the draft says so.
    pub(crate) fn write(
        &self,
        key: &Key<'_>,
        draft: &Draft<'_>,
        built: &[u8],
        epoch: u64,
        replaced: Option<Replaced>,
        now: u32,
    ) -> Result<Written, WriteError> {
        let (digits, len);
        let bytes = match draft.value {
            Value::Bytes(bytes) => bytes,
            Value::Built => built,
            Value::Number(number, width) => {
                (digits, len) = decimal::text(number, width);
                digits.get(..len).unwrap_or(&digits)
            }
            Value::Chain(chain) => return self.write_large(key, draft, Body::Chain(chain), epoch, replaced, now),
        };
        let Some((size, header)) = self.planned(key, draft, bytes) else {
            return self.write_large(key, draft, Body::Bytes(bytes), epoch, replaced, now);
        };
        let stream = self.stream(key, draft, replaced.map(|replaced| replaced.segment), now);
        let room = self.room(size, stream, epoch, now)?;
        if let Some(cas) = self.unique_to_carry(draft, &room, replaced) {
            self.leave_room(&room);
            return self.write(key, &draft.with_cas(cas), built, epoch, replaced, now);
        }
        Ok(self.write_item(key, draft, header, bytes, &room, size))
    }

    /// The CAS unique that a new item has to carry, because its place gives it none above the one of the item that it replaces.
    fn unique_to_carry(&self, draft: &Draft<'_>, room: &Room<'_>, replaced: Option<Replaced>) -> Option<u64> {
        let unique = replaced?.unique;
        (draft.cas.is_none() && cas_of(room.sequence, room.next) <= unique).then(|| self.region.unique_above(unique))
    }

    /// The same with this value, over an item of this segment and offset. `None`: it needs segments of its own, there is no room for it, or
    /// its place gives it a lower CAS unique than that of the item.
    #[inline(always)]
    pub(crate) fn write_over(
        &self,
        key: &Key<'_>,
        draft: &Draft<'_>,
        bytes: &[u8],
        epoch: u64,
        replaced: (usize, usize),
        now: u32,
    ) -> Option<Written> {
        let (size, header) = self.planned(key, draft, bytes)?;
        let stream = self.stream(key, draft, Some(replaced.0), now);
        let at_hand = self.extents.get(stream.index())?.room(size, epoch);
        let room = match at_hand {
            Some(room) => room,
            None => self.more_room(size, stream, epoch, now)?,
        };
        let (segment, offset) = replaced;
        let sequence = self.region.header(segment).sequence.load(Relaxed);
        if room.sequence <= sequence && (room.sequence < sequence || room.next <= offset) && draft.cas.is_none() {
            self.leave_room(&room);
            return None;
        }
        Some(self.write_item(key, draft, header, bytes, &room, size))
    }

    /// Size and header of an item with this value. `None`: it needs segments of its own.
    #[inline(always)]
    fn planned(&self, key: &Key<'_>, draft: &Draft<'_>, bytes: &[u8]) -> Option<(usize, Header)> {
        let region = &*self.region;
        let (flags, body_len) = (draft.flags(), bytes.len() + region.checksum_size);
        let size = item::size(key.bytes.len(), body_len, flags, draft.expiry);
        let fits = size + EXTENT_HEADER_SIZE <= region.layout.shape.segment_size && bytes.len() <= item::INLINE_VALUE_MAX;
        if !fits {
            return None;
        }
        Some((size, Header::new(key.bytes.len(), body_len, flags, draft.expiry)))
    }

    /// The same of an item whose value has segments of its own.
    #[cold]
    #[inline(never)]
    fn write_large(
        &self,
        key: &Key<'_>,
        draft: &Draft<'_>,
        body: Body<'_>,
        epoch: u64,
        replaced: Option<Replaced>,
        now: u32,
    ) -> Result<Written, WriteError> {
        let stream = self.stream(key, draft, replaced.map(|replaced| replaced.segment), now);
        let (chain, own) = match body {
            Body::Chain(chain) => (chain, false),
            Body::Bytes(bytes) => (self.write_chain(key, bytes, (stream, draft.expiry), now)?, true),
        };
        match self.write_head(key, draft, chain, (stream, epoch), replaced, now) {
            Ok(written) => Ok(Written {
                chain: own.then_some(chain),
                ..written
            }),
            Err(e) => {
                if own {
                    self.free_chain(chain.first);
                }
                Err(e)
            }
        }
    }

    /// Writes the item that leads to a value in segments of its own.
    fn write_head(
        &self,
        key: &Key<'_>,
        draft: &Draft<'_>,
        chain: Chain,
        (stream, epoch): (Stream, u64),
        replaced: Option<Replaced>,
        now: u32,
    ) -> Result<Written, WriteError> {
        let flags = draft.flags();
        // The checksum of a large item is in its body.
        let mut body = [0; LARGE_BODY_SIZE];
        let words = [chain.value_len as u64, chain.first.0, chain.last.0];
        for (to, from) in body.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&from.to_le_bytes());
        }
        let size = item::size(key.bytes.len(), LARGE_BODY_SIZE, flags, draft.expiry);
        let room = self.room(size, stream, epoch, now)?;
        if let Some(cas) = self.unique_to_carry(draft, &room, replaced) {
            self.leave_room(&room);
            return self.write_head(key, &draft.with_cas(cas), chain, (stream, epoch), replaced, now);
        }
        let header = Header::large(key.bytes.len(), flags, draft.expiry);
        let written = self.write_item(key, draft, header, &body, &room, size);
        Ok(Written {
            value_len: chain.value_len,
            size: size + chain.value_len,
            ..written
        })
    }

    /// Where a new item goes: to the pool of the one that it replaces.
    #[inline(always)]
    fn stream(&self, key: &Key<'_>, draft: &Draft<'_>, replaced: Option<usize>, now: u32) -> Stream {
        let class = self.class(draft.expiry, now);
        let (pool, standing) = match replaced {
            _ if !self.region.has_pools() => (ADMISSION, Standing::Plain),
            None => (self.pool_of_new(key.hash), Standing::Plain),
            Some(segment) => {
                let header = self.region.header(segment);
                let standing = if class == 0 {
                    self.region.standing(header)
                } else {
                    Standing::Plain
                };
                (State(header.state.load(Relaxed)).pool(), standing)
            }
        };
        Stream { pool, class, standing }
    }

    /// Writes an item to its place in the extent.
    #[inline(always)]
    fn write_item(&self, key: &Key<'_>, draft: &Draft<'_>, header: Header, body: &[u8], room: &Room<'_>, size: usize) -> Written {
        let region = &*self.region;
        let memory = &region.memory;
        let offset = room.next;
        let segment_at = region.segment(room.segment);
        let at = segment_at + offset;
        self.write_header(at, header);
        if let Some(cas) = draft.cas {
            memory.write(at + header.cas_offset(), &cas.to_le_bytes());
        }
        if draft.client_flags != 0 {
            memory
                .get::<AtomicU32>(at + header.client_flags_offset())
                .store(draft.client_flags, Relaxed);
        }
        memory.write(at + header.key_offset(), key.bytes);
        memory.write(at + header.value_offset(), body);
        if region.has_checksums() {
            let cover = Cover {
                segment: room.segment,
                life: room.life,
                offset,
                header,
                cas: draft.cas.unwrap_or(0),
                client_flags: draft.client_flags,
            };
            region.write_checksum(&cover, key.bytes, body);
        }
        self.intend_written(WRITTEN, room.segment);
        self.commit(room, segment_at, size, draft.expiry);
        let cas = match draft.cas {
            Some(cas) => cas,
            None => cas_of(room.sequence, offset),
        };
        Written {
            word: Slot::confirmed(tag(key.hash), room.life.generation, room.segment, offset),
            cas,
            value_len: body.len(),
            size,
            chain: None,
        }
    }

    #[inline(always)]
    fn write_header(&self, at: usize, header: Header) {
        let memory = &self.region.memory;
        let (word, lifetime) = header.words();
        memory.get::<AtomicU32>(at).store(word, Relaxed);
        if let Some(lifetime) = lifetime {
            memory.get::<AtomicU32>(at + item::LIFETIME_OFFSET).store(lifetime, Relaxed);
        }
    }

    /// Copies an item as it stands to a place of its own in this pool, for a compaction or for another round; its CAS unique goes
    /// with it. Takes free segments only. Its own segment is claimed by this thread.
    /// The intent for its segment ([`UPKEEP`]) stands afterwards.
    pub(crate) fn write_copy(
        &self,
        copy: &CopyOf<'_>,
        (pool, is_compaction): (usize, bool),
        epoch: u64,
        now: u32,
    ) -> Result<(usize, SegmentLife, usize), Relocated> {
        let verified = if self.region.has_checksums() {
            Some(self.verified_copy(copy)?)
        } else {
            None
        };
        let (expiry, size) = (copy.header.expiry(), copy.header.size());
        let class = self.class(expiry, now);
        let standing = if is_compaction && class == 0 {
            Standing::Settled
        } else {
            Standing::Plain
        };
        let extent = self.room_for_copy(size, Stream { pool, class, standing }, epoch, now);
        if let Some(extent) = &extent {
            let segment_at = self.region.segment(extent.segment);
            match &verified {
                Some(bytes) => self.put_verified(copy.header, bytes, extent),
                None => self.put_copy(copy, segment_at + extent.next),
            }
            self.intend_written(UPKEEP, extent.segment);
            self.commit(&self.room_in(*extent), segment_at, size, expiry);
        }
        if let Some(bytes) = verified {
            self.scratch.set(bytes);
        }
        extent
            .map(|extent| (extent.segment, extent.life, extent.next))
            .ok_or(Relocated::NoRoom)
    }

    /// From one place of the region to the other: lengths are those of the header that was read and validated once, and what the bytes
    /// are is for whoever reads them to judge, there as here.
    fn put_copy(&self, copy: &CopyOf<'_>, at: usize) {
        let memory = &self.region.memory;
        let header = copy.header;
        self.write_header(at, header);
        memory.write(at + header.cas_offset(), &self.region.cas_unique(copy.seen).to_le_bytes());
        let (from, len) = copy.kept();
        memory.copy(from, at + header.client_flags_offset(), len);
    }

    /// The copy in this process's own memory, where nobody changes it between its verification and its new checksum.
    #[cold]
    fn verified_copy(&self, copy: &CopyOf<'_>) -> Result<Vec<u8>, Relocated> {
        let (region, header, seen) = (&*self.region, copy.header, copy.seen);
        let mut bytes = self.scratch.take();
        bytes.clear();
        let (from, len) = copy.kept();
        let has_memory = aside::try_reserve(&mut bytes, header.size() + size_of::<u64>()) && {
            bytes.extend_from_slice(&header.0.to_le_bytes());
            bytes.truncate(header.cas_offset());
            bytes.extend_from_slice(&region.cas_unique(seen).to_le_bytes());
            region.memory.append_to(from, len, &mut bytes)
        };
        if !has_memory {
            self.scratch.set(bytes);
            return Err(Relocated::NoRoom);
        }
        bytes.resize(header.size(), 0);
        if !region.is_copy_intact(seen, header, &bytes) {
            self.scratch.set(bytes);
            self.count(Counter::corrupt, 1);
            return Err(Relocated::Unfit);
        }
        Ok(bytes)
    }

    fn put_verified(&self, header: Header, bytes: &[u8], extent: &Extent) {
        let region = &*self.region;
        region.memory.write(region.segment(extent.segment) + extent.next, bytes);
        let cover = Cover::of_copy(bytes, header, (extent.segment, extent.life, extent.next));
        region.write_checksum_of_copy(&cover, bytes);
    }

    /// The pool of an item of a new key: the main one if it was evicted lately.
    #[inline(never)]
    fn pool_of_new(&self, hash: u64) -> usize {
        if self.region.take_ghost(hash) {
            self.count(Counter::ghost_hits, 1);
            MAIN
        } else {
            ADMISSION
        }
    }

    /// The TTL class of an expiry.
    #[inline(always)]
    fn class(&self, expiry: u32, now: u32) -> usize {
        if expiry == 0 {
            0
        } else {
            self.class_of_ttl(expiry.saturating_sub(now))
        }
    }

    #[inline(never)]
    fn class_of_ttl(&self, ttl: u32) -> usize {
        let bounds: &[u32] = if self.region.allowed() < SEGMENTS_FOR_ALL_CLASSES {
            &CLASS_TTL_FEW_S
        } else {
            &CLASS_TTL_S
        };
        bounds.iter().position(|most| ttl <= *most).map_or(0, |i| i + 1)
    }

    /// Room for so many bytes in an extent of this stream and epoch.
    fn room(&self, size: usize, stream: Stream, epoch: u64, now: u32) -> Result<Room<'_>, WriteError> {
        match self.extents.get(stream.index()).and_then(|leased| leased.room(size, epoch)) {
            Some(room) => Ok(room),
            None => Ok(self.room_in(self.room_paid(size, stream, epoch, now)?)),
        }
    }

    /// The same where the extent at hand has none.
    #[cold]
    #[inline(never)]
    fn more_room(&self, size: usize, stream: Stream, epoch: u64, now: u32) -> Option<Room<'_>> {
        self.room(size, stream, epoch, now).ok()
    }

    /// Nothing is written in this room: an extent that is not kept for other items ends.
    #[cold]
    fn leave_room(&self, room: &Room<'_>) {
        if room.kept.is_none() {
            self.close(room.segment, room.start, room.life);
        }
    }

    /// The room behind the last item of this extent.
    fn room_in(&self, extent: Extent) -> Room<'_> {
        Room {
            segment: extent.segment,
            life: extent.life,
            sequence: extent.sequence,
            start: extent.start,
            next: extent.next,
            kept: self.extents.get(extent.stream.index()).filter(|leased| leased.is(&extent)),
        }
    }

    /// An extent with that room where the one at hand is full or paid for no further.
    #[cold]
    #[inline(never)]
    fn room_paid(&self, size: usize, stream: Stream, epoch: u64, now: u32) -> Result<Extent, WriteError> {
        let portion = size.max(PORTION);
        let pressed = self.pay(portion, now);
        let paid = |mut extent: Extent| {
            extent.end = if pressed {
                extent.leased.min(extent.next + portion)
            } else {
                extent.leased
            };
            extent
        };
        let at_hand = self.extent(stream).filter(|e| e.life.epoch == epoch);
        if let Some(extent) = at_hand.and_then(|e| self.with_room(e, size)) {
            self.keep(paid(extent));
            return Ok(paid(extent));
        }
        Ok(self.keep_better(paid(self.lease(size, stream, epoch, now, true)?), size))
    }

    /// The same for a relocation, which takes free segments only and pays for nothing.
    fn room_for_copy(&self, size: usize, stream: Stream, epoch: u64, now: u32) -> Option<Extent> {
        let at_hand = self.extent(stream).filter(|e| e.life.epoch == epoch);
        if let Some(extent) = at_hand.and_then(|e| self.with_room(e, size)) {
            self.keep(extent);
            return Some(extent);
        }
        let extent = self.lease(size, stream, epoch, now, false).ok()?;
        Some(self.keep_better(extent, size))
    }

    /// The extent, made longer if need be and if nobody else has leased what follows.
    fn with_room(&self, extent: Extent, size: usize) -> Option<Extent> {
        if extent.next + size <= extent.leased {
            Some(extent)
        } else {
            self.extend(extent, size)
        }
    }

    /// Keeps whichever has more room left, so that one large item does not cost the rest of a fresh extent. The new one can be made
    /// longer as far as its segment goes; the old one could not.
    fn keep_better(&self, extent: Extent, size: usize) -> Extent {
        let left = |e: &Extent| e.leased - e.next;
        let behind = self.region.cells_left(extent.segment) * self.region.layout.shape.cell_size();
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

    /// The item is written: PUBLISH of the extent's tail. Invisible before it; behind it a walker parses the item, which
    /// is dead until a slot names it.
    #[inline(always)]
    fn commit(&self, room: &Room<'_>, segment_at: usize, size: usize, expiry: u32) {
        let tail = room.next + size;
        // The next item's place: the publish that follows would otherwise wait for lines that only the next write asks for.
        self.region.memory.prefetch_to_write::<WRITE_AHEAD>(segment_at + tail);
        if expiry != 0 {
            let expires = &self.region.header(room.segment).expires;
            if expires.load(Relaxed) < expiry {
                expires.fetch_max(expiry, Relaxed);
            }
        }
        // PAIRS: tail: the loads in `Session::purge_items` and in `check`: what lies before the tail is whole.
        let told = if mutants::is(Mutant::PublishBeforeTail) {
            room.next
        } else {
            tail
        };
        self.region
            .slot(segment_at + room.start + 8)
            .store(TailWord::new(told, self.owner.incarnation).0, Release);
        // Persistent before the word that leads to it: the barrier stands between this and the publish. Not the header with the
        // latest expiry, which is a hint: what is purged because of it is looked at item by item.
        self.region.write_back(segment_at + room.next, size);
        match room.kept {
            Some(leased) => leased.next.set(tail),
            None => self.close(room.segment, room.start, room.life),
        }
    }

    #[inline]
    fn extent(&self, stream: Stream) -> Option<Extent> {
        self.extents.get(stream.index()).and_then(Leased::get)
    }

    fn keep(&self, extent: Extent) {
        if let Some(cell) = self.extents.get(extent.stream.index()) {
            cell.set(extent);
        }
    }

    /// Closes the extent of the stream with this number.
    pub(crate) fn close_extent(&self, stream: usize) {
        if let Some(extent) = self.extents.get(stream).and_then(Leased::take) {
            self.close(extent.segment, extent.start, extent.life);
            if self.fills_alone(extent.stream) {
                self.leave_open(extent.segment, extent.life.epoch, extent.stream);
            }
        }
    }

    /// Closes this session's extents in a segment that is to be purged.
    pub(crate) fn close_extents_in(&self, segment: usize) {
        for stream in 0..Stream::MAX {
            if self
                .extents
                .get(stream)
                .and_then(Leased::get)
                .is_some_and(|e| e.segment == segment)
            {
                self.close_extent(stream);
            }
        }
    }

    #[inline(never)]
    fn close(&self, segment: usize, start: usize, life: SegmentLife) {
        let at = self.region.segment(segment) + start;
        let word = ExtentWord::new(life.generation, self.owner.slot).close();
        // PAIRS: closed: the load in `Region::has_live_extent`: a recycler that sees it closed sees every publish that it served, and the
        // intent for what is still to be published.
        self.region.slot(at).store(word.0, Release);
    }

    /// Cells that are leased at a time for items of such a size.
    fn comfortable(&self, size: usize) -> usize {
        let shape = self.region.layout.shape;
        (size * ITEMS_OF_AN_EXTENT / shape.cell_size()).min(shape.cells() / EXTENTS_OF_A_SEGMENT)
    }

    /// Leases the cells behind an extent, if nobody else has.
    fn extend(&self, mut extent: Extent, size: usize) -> Option<Extent> {
        let shape = self.region.layout.shape;
        let lease = &self.region.header(extent.segment).lease;
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
        self.region.write_back_header(extent.segment);
        self.region
            .touch(self.region.segment(extent.segment) + extent.leased, cells * shape.cell_size());
        extent.leased += cells * shape.cell_size();
        Some(extent)
    }

    /// Leases an extent with room for `size` bytes, in the open segment or in a new one.
    fn lease(&self, size: usize, stream: Stream, epoch: u64, now: u32, make_room: bool) -> Result<Extent, WriteError> {
        let shape = self.region.layout.shape;
        let needed = (size + EXTENT_HEADER_SIZE).div_ceil(shape.cell_size());
        let cells = needed.max(self.comfortable(size));
        let alone = self.fills_alone(stream);
        for _ in 0..ATTEMPTS_MAX {
            let hint = self.open_hint(stream);
            // What somebody left of a segment is this session's alone from here on.
            if alone && hint != 0 && !self.replace_hint(stream, hint, 0) {
                continue;
            }
            let open = self.named(hint);
            if let Some(extent) = open.and_then(|segment| self.lease_in(segment, cells, epoch, stream)) {
                return Ok(extent);
            }
            if alone {
                if let Some(open) = open {
                    // If it were left open again, it would be for ever where all items are as large.
                    self.finish_segment(open);
                }
            } else if self.open_hint(stream) != hint {
                continue;
            }
            let segment = self.take_segment(now, make_room)?;
            let extent = self.open_segment(segment, cells, epoch, stream, now);
            if !alone {
                self.leave_open(segment, epoch, stream);
            }
            return Ok(extent);
        }
        Err(WriteError::Corrupt)
    }

    /// Whether this session leases in segments that no other session leases in.
    fn fills_alone(&self, stream: Stream) -> bool {
        stream.class == 0 && self.region.threads() * SEGMENTS_OF_A_SESSION <= self.region.allowed()
    }

    /// Leaves the rest of a segment to whoever leases next, if it is worth that and more than is left in the one that is open to all.
    fn leave_open(&self, segment: usize, epoch: u64, stream: Stream) {
        let hint = self.open_hint(stream);
        let open = self.named(hint);
        let cells_left = |segment| self.cells_left_open(segment, epoch, stream);
        let left = cells_left(segment);
        let is_better = left >= self.region.layout.shape.cells() / EXTENTS_OF_A_SEGMENT && left > open.map_or(0, cells_left);
        let finished = if is_better && self.replace_hint(stream, hint, segment as u64 + 1) {
            open
        } else {
            Some(segment)
        };
        if let Some(finished) = finished {
            self.finish_segment(finished);
        }
    }

    /// Nobody leases in this segment any more: what is left of it is as good as dead, unless somebody is about to fill it.
    pub(crate) fn finish_segment(&self, segment: usize) {
        let state = State(self.region.header(segment).state.load(Relaxed));
        if state.kind() != Some(Kind::Open) || state.owner().is_some() {
            return;
        }
        let left = self.region.cells_left(segment);
        if left > 0 && !self.region.has_live_extent(segment) && self.seal(segment) {
            self.region
                .count_dead(segment, (left * self.region.layout.shape.cell_size()) as u64);
        }
        self.region.offer_filled(segment);
    }

    /// Puts another segment, plus 1, into the word of the one that is open to all; 0: none is.
    fn replace_hint(&self, stream: Stream, old: u64, new: u64) -> bool {
        // PAIRS: open-hint: the load in `open_hint`.
        self.region
            .open_word(stream)
            .is_some_and(|word| word.compare_exchange(old, new, Release, Relaxed).is_ok())
    }

    fn open_hint(&self, stream: Stream) -> u64 {
        // PAIRS: open-hint: the exchange in `replace_hint`: a thread that is led to a segment finds it open.
        self.region.open_word(stream).map_or(0, |w| w.load(Acquire))
    }

    /// The segment that such a word names, if it names one.
    fn named(&self, hint: u64) -> Option<usize> {
        index(hint).checked_sub(1).filter(|segment| self.region.has(*segment))
    }

    fn cells_left_open(&self, segment: usize, epoch: u64, stream: Stream) -> usize {
        let usable = self.region.segment_life(segment).epoch == epoch
            && self.region.header(segment).state.load(Relaxed) == State::of(Kind::Open, stream).0;
        if usable { self.region.cells_left(segment) } else { 0 }
    }

    fn lease_in(&self, segment: usize, cells: usize, epoch: u64, stream: Stream) -> Option<Extent> {
        let region = &self.region;
        let shape = region.layout.shape;
        let header = region.header(segment);
        for _ in 0..ATTEMPTS_MAX {
            let life = region.segment_life(segment);
            let old = LeaseWord(header.lease.load(Relaxed));
            // PAIRS: open: the store in `open_segment`: a thread that sees it open sees its words.
            let usable = header.state.load(Acquire) == State::of(Kind::Open, stream).0
                && life.epoch == epoch
                && old.is_of_generation(life.generation)
                && !old.is_sealed()
                && old.cells() + cells <= shape.cells();
            if !usable {
                return None;
            }
            // A recycler that meets the cells before their header is written asks for this intent. Its fence stands before every byte
            // that this thread writes there, as that of `claim_from_free` does for the thread that opened the segment.
            self.intend(LEASING, segment);
            // PAIRS: leasing: the load in `Region::has_live_extent`: a recycler that sees the lease sees the intent.
            if header
                .lease
                .compare_exchange(old.0, old.lease(cells, true).0, Release, Relaxed)
                .is_err()
            {
                self.relent(LEASING);
                continue;
            }
            let extent = self.start_extent(segment, old.cells(), cells, stream);
            self.relent(LEASING);
            // Whoever opened the segment may not have come to its barrier yet.
            region.write_back_header(segment);
            region.write_back_words(segment);
            // From the lease on the segment cannot be recycled; it may have been between the checks and the lease.
            if extent.life == life {
                return Some(extent);
            }
            self.close(extent.segment, extent.start, extent.life);
        }
        None
    }

    /// Writes the header of an extent whose cells have just been leased.
    fn start_extent(&self, segment: usize, first_cell: usize, cells: usize, stream: Stream) -> Extent {
        let region = &self.region;
        let cell_size = region.layout.shape.cell_size();
        let life = region.segment_life(segment);
        let (start, end) = (first_cell * cell_size, (first_cell + cells) * cell_size);
        let at = region.segment(segment) + start;
        let next = start + EXTENT_HEADER_SIZE;
        region.touch(at, end - start);
        region
            .slot(at + 8)
            .store(TailWord::new(next, self.owner.incarnation).0, Relaxed);
        // PAIRS: extent: the load in `Region::has_live_extent`: a thread that sees the header sees its tail, and its owner's lease.
        region
            .slot(at)
            .store(ExtentWord::new(life.generation, self.owner.slot).0, Release);
        Extent {
            segment,
            life,
            sequence: region.header(segment).sequence.load(Relaxed),
            stream,
            start,
            next,
            end,
            leased: end,
        }
    }

    /// Makes a claimed segment an open one, with a first extent for this thread.
    fn open_segment(&self, segment: usize, cells: usize, epoch: u64, stream: Stream, now: u32) -> Extent {
        let region = &self.region;
        let shape = region.layout.shape;
        let header = region.header(segment);
        let generation = region.segment_life(segment).generation;
        // Before the cells: these are in no cache, and a locked instruction waits for the stores before it.
        header.sequence.store(region.next_sequence(), Relaxed);
        for cell in 0..shape.cells() {
            region
                .slot(region.segment(segment) + cell * shape.cell_size())
                .store(0, Relaxed);
        }
        header.dead.store(0, Relaxed);
        header.opened.store(now, Relaxed);
        header.expires.store(if stream.class == 0 { u32::MAX } else { 0 }, Relaxed);
        header.lease.store(LeaseWord::new(generation).lease(cells, true).0, Relaxed);
        region.words(segment).epoch.store(epoch, Relaxed);
        let extent = self.start_extent(segment, 0, cells, stream);
        // PAIRS: open: the load in `lease_in`: a thread that sees it open sees its words.
        header.state.store(State::of(Kind::Open, stream).0, Release);
        region.write_back_header(segment);
        region.write_back_words(segment);
        extent
    }

    /// Puts a value into segments of its own, last part first, so that each part is whole before another names it.
    fn write_chain(&self, key: &Key<'_>, value: &[u8], (stream, expiry): (Stream, u32), now: u32) -> Result<Chain, WriteError> {
        let room = self.region.layout.shape.segment_size - CHAIN_HEADER_SIZE;
        let parts = value.len().div_ceil(room).max(1);
        // Half of the region: beyond that two writers of such values could starve each other for ever.
        if parts > self.region.allowed() / 2 {
            return Err(WriteError::OutOfMemory);
        }
        let (mut next, mut last) = (Link::NONE, Link::NONE);
        for part in value.chunks(room).rev() {
            self.pay(self.region.layout.shape.segment_size, now);
            let segment = match self.take_segment(now, true) {
                Ok(segment) => segment,
                Err(e) => {
                    self.free_chain(next);
                    return Err(e);
                }
            };
            let region = &self.region;
            let generation = region.segment_life(segment).generation;
            let link = Link::new(segment, generation);
            if last == Link::NONE {
                last = link;
            }
            let at = region.segment(segment);
            region.touch(at, CHAIN_HEADER_SIZE + part.len());
            let words = [next.0, last.0, key.hash, part.len() as u64];
            let checksum = if region.has_checksums() {
                u64::from(part_checksum(link, words, part)) << 32
            } else {
                0
            };
            for (i, word) in words.into_iter().enumerate() {
                let checksum = if i == CHAIN_LEN_WORD { checksum } else { 0 };
                region.slot(at + i * 8).store(word | checksum, Relaxed);
            }
            region.memory.write(at + CHAIN_HEADER_SIZE, part);
            region.header(segment).sequence.store(region.next_sequence(), Relaxed);
            let expires = if expiry == 0 { u32::MAX } else { expiry };
            region.header(segment).expires.store(expires, Relaxed);
            let none = State::of(Kind::Large, stream);
            let state = if mutants::is(Mutant::ChainWithoutOwner) {
                none
            } else {
                none.take(Kind::Large, self.owner)
            };
            // PAIRS: large: the load in `Session::purge_step`: a thread that sees it large sees its words.
            region.header(segment).state.store(state.0, Release);
            // Its generation may have been given by somebody who did not come to a barrier.
            region.write_back(at, CHAIN_HEADER_SIZE + part.len());
            region.write_back_words(segment);
            next = link;
        }
        Ok(Chain {
            value_len: value.len(),
            first: next,
            last,
        })
    }

    /// The chain's head is published: its segments are nobody's any more but the head's.
    #[inline(never)]
    pub(crate) fn disown_chain(&self, chain: Chain) {
        self.each_of_chain(chain.first, |session, segment, old| {
            if old.kind() == Some(Kind::Large) && old.owner() == Some(session.owner) {
                let state = &session.region.header(segment).state;
                // PAIRS: chain-owner: the load in `purge_step`: a thread that finds no owner finds the head.
                let _ = state.compare_exchange(old.0, old.leave(Kind::Large).0, Release, Relaxed);
            }
        });
    }

    /// Frees the segments of a chain that no slot leads to any more.
    #[inline(never)]
    pub(crate) fn free_chain(&self, first: Link) {
        let mut claimed = List::new();
        self.each_of_chain(first, |session, segment, state| {
            if state.kind() == Some(Kind::Large) && session.claim(segment, state) {
                claimed.push(segment);
            }
        });
        if claimed.is_empty() {
            return;
        }
        let intended = self.region.intended_by_others(self.owner);
        for segment in claimed.iter() {
            if self.bump_large(*segment, &intended) {
                self.free_segment(*segment);
            }
        }
    }

    /// Bumps a claimed segment of a large value, unless somebody walks a chain through it: then it is left to be reclaimed as a
    /// log without items. `intended`: read after the claim.
    pub(crate) fn bump_large(&self, segment: usize, intended: &[u64]) -> bool {
        let is_free = !intended.contains(&(segment as u64 + 1));
        if is_free {
            self.bump(segment);
        } else {
            let state = &self.region.header(segment).state;
            // PAIRS: retire: the claim by the thread that goes on.
            state.store(State(state.load(Relaxed)).leave(Kind::Retired).0, Release);
        }
        is_free
    }

    /// Calls `each` with every segment of a chain and its state; the next link is read before. Meanwhile an intent names the segment: a
    /// thread that claims it from then on does not bump it. One that claimed it before may: so state and link are read first, and
    /// then the generation. If it is the link's, both were of that life; if the segment was not claimed either, the life does not end
    /// before the intent does, however long this thread sleeps in between.
    fn each_of_chain(&self, first: Link, mut each: impl FnMut(&Self, usize, State)) {
        let region = &self.region;
        let mut link = first;
        let mut walked = 0;
        while walked < region.segments() {
            walked += 1;
            let segment = link.segment();
            if link == Link::NONE || !region.has(segment) {
                break;
            }
            self.intend(FREEING, segment);
            let state = State(region.header(segment).state.load(Relaxed));
            let next = Link(region.slot(region.segment(segment)).load(Relaxed));
            // PAIRS: chain: the fence of the segment's next owner, in `claim_from_free`.
            fence(Acquire);
            if region.words(segment).generation.load(Relaxed) != link.generation() {
                break;
            }
            each(self, segment, state);
            link = next;
        }
        self.relent(FREEING);
    }

    /// Gives a claimed segment its next generation: every word that ever named it is void.
    pub(crate) fn bump(&self, segment: usize) {
        let word = &self.region.words(segment).generation;
        // Nothing is written in it before it is free, and claimed again (`claim_from_free`).
        word.store(word.load(Relaxed).wrapping_add(1), Relaxed);
        self.count(Counter::segments_recycled, 1);
    }

    /// Gives a claimed and bumped segment back to everybody.
    pub(crate) fn free_segment(&self, segment: usize) {
        // PAIRS: owner: the claim by its next owner, which comes after all that was done in it.
        self.region.header(segment).state.store(State::FREE.0, Release);
        let sb = self.region.superblock();
        sb.free.fetch_add(1, Relaxed);
        self.region.offer(segment, FREE);
        // While the region is not full, what was used before goes before memory that nobody has touched.
        if !self.is_full() {
            sb.free_hint.store(segment as u64, Relaxed);
        }
    }
}
