//! Items as they are written: each in a place of its own, private until a slot that names it is published.

use crate::atomics::{AtomicU32, Relaxed};
use crate::decimal;
use crate::hash::{Key, tag};
use crate::layout::item::{self, Header, LARGE_BODY_SIZE, flag};
use crate::layout::segment::{EXTENT_HEADER_SIZE, Stream};
use crate::layout::session::WRITTEN;
use crate::layout::slot::{OFFSET_BITS, Slot};
use crate::log::checksum::Cover;
use crate::log::extents::Room;
use crate::log::seen::{Chain, Seen, cas_of};
use crate::region::Region;
use crate::session::Session;
use crate::verbs::{Item, WriteError};

/// A new item, apart from its key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Draft<'v> {
    /// [`flag::STALE`], [`flag::WIN_SENT`], [`flag::OPAQUE_KEY`]
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

    /// The same draft with this CAS unique.
    fn with_cas(self, cas: u64) -> Self {
        Self { cas: Some(cas), ..self }
    }
}

/// What a large item (its value has segments of its own) leads to.
enum Body<'v> {
    /// the segments of the item that it replaces
    Chain(Chain),
    /// a value for which segments are to be taken
    Bytes(&'v [u8]),
}

/// Where a new item's value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value<'v> {
    Bytes(&'v [u8]),
    /// what the decision has built in the session's buffer
    Built,
    /// a number, in decimal, padded with blanks to this many bytes (at most [`decimal::LEN_MAX`])
    Number(u64, usize),
    /// the segments of the item that it replaces
    Chain(Chain),
}

/// The item that a new one replaces.
#[derive(Clone, Copy)]
pub(crate) struct Replaced {
    pub segment: usize,
    /// the CAS unique of the new item is greater than this
    pub unique: u64,
}

/// An item that is written but not published.
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
    /// The value that the CAS unique of an item's successor must exceed. 0 if a client chose the item's unique, and so high that
    /// no place can have given it: such a unique is not exceeded.
    #[inline(never)]
    pub(crate) fn unique_to_exceed(&self, seen: &Seen) -> u64 {
        let unique = self.cas_unique(seen);
        if unique < cas_of(self.superblock().sequence.load(Relaxed), 0) {
            unique
        } else {
            0
        }
    }

    /// A CAS unique above this one that no other item has. It belongs to a sequence number that no segment has. Once the uniques
    /// of that number are used up, or others have gone beyond them, another number is taken.
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
}

impl Session {
    /// Writes an item of flush epoch `epoch` to a place of its own, with the `built` value if the draft says so.
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

    /// The CAS unique that a new item must carry, because its place gives it none above that of the item that it replaces.
    fn unique_to_carry(&self, draft: &Draft<'_>, room: &Room<'_>, replaced: Option<Replaced>) -> Option<u64> {
        let unique = replaced?.unique;
        (draft.cas.is_none() && cas_of(room.sequence, room.next) <= unique).then(|| self.region.unique_above(unique))
    }

    /// The same with this value, over an item of this segment and offset. `None`: the value needs segments of its own, there is
    /// no space for it, or its place gives it a lower CAS unique than the item's.
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

    /// Size and header of an item with this value. `None`: the value needs segments of its own.
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

    /// The same for a large item.
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
    pub(super) fn write_header(&self, at: usize, header: Header) {
        let memory = &self.region.memory;
        let (word, lifetime) = header.words();
        memory.get::<AtomicU32>(at).store(word, Relaxed);
        if let Some(lifetime) = lifetime {
            memory.get::<AtomicU32>(at + item::LIFETIME_OFFSET).store(lifetime, Relaxed);
        }
    }
}

impl Item {
    /// Its marks, as its header has them.
    #[inline]
    pub(crate) fn marks(&self) -> u64 {
        (if self.stale { flag::STALE } else { 0 })
            | (if self.win_sent { flag::WIN_SENT } else { 0 })
            | (if self.opaque_key { flag::OPAQUE_KEY } else { 0 })
    }

    /// An item of which only the marks are known.
    #[inline]
    pub(crate) fn marked(marks: u64) -> Self {
        Self {
            stale: marks & flag::STALE != 0,
            win_sent: marks & flag::WIN_SENT != 0,
            opaque_key: marks & flag::OPAQUE_KEY != 0,
            ..Self::default()
        }
    }
}
