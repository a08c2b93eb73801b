//! Items as they are written: each in a place of its own, private until a slot that names it is published.

use crate::atomics::{AtomicU32, Relaxed};
use crate::decimal;
use crate::directory::Directory;
use crate::hash::{Key, tag};
use crate::layout::item::{self, Header, LARGE_BODY_SIZE, Record, flag, padded};
use crate::layout::segment::{EXTENT_HEADER_SIZE, SIZE_MAX, SegmentHeader, Stream};
use crate::layout::session::WRITTEN;
use crate::layout::slot::Slot;
use crate::limits::ITEM_SIZES;
use crate::log::Appender;
use crate::log::Claims;
use crate::log::Extents;
use crate::log::Ghosts;
use crate::log::ItemCounts;
use crate::log::Leased;
use crate::log::Segments;
use crate::log::Steps;
use crate::log::Supply;
use crate::log::Uniques;
use crate::log::checksum::Cover;
use crate::log::dead_factor;
use crate::log::extents::Room;
use crate::log::item_view::{Chain, cas_of};
use crate::mapped::Mapped;
use crate::mapped::Rules;
use crate::threads::Thread;
use crate::verbs::{Item, Now, WriteError};
use std::cell::Cell;
use std::sync::Arc;

/// A new item, apart from its key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Draft<'v> {
    /// [`flag::STALE`], [`flag::OPAQUE_KEY`]
    pub marks: u64,
    /// what it has of fetches
    pub record: Option<Record>,
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
        let record = if self.record.is_some() { flag::RECORD } else { 0 };
        self.marks | client_flags | cas | record
    }

    /// Until when it is kept: a tick of the region's clock, 0 for ever.
    #[inline(always)]
    pub fn until(&self) -> u32 {
        match self.record {
            Some(record) => record.kept_until(self.expiry),
            None => self.expiry,
        }
    }

    /// This draft with this CAS unique.
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
    /// the same, as its text: this many bytes of a word, the first in the lowest byte
    Text(u64, usize),
    /// the same, in an item that has this header
    TextInForm(u64, Header),
    /// the segments of the item that it replaces
    Chain(Chain),
}

impl<'v> Value<'v> {
    /// Its bytes, unless it has segments already. `text`: space for a number's.
    #[inline(always)]
    fn bytes<'b>(self, built: &'b [u8], text: &'b mut [u8; decimal::LEN_MAX]) -> Result<&'b [u8], Chain>
    where
        'v: 'b,
    {
        let len;
        match self {
            Value::Bytes(bytes) => return Ok(bytes),
            Value::Built => return Ok(built),
            Value::Number(number, width) => (*text, len) = decimal::text(number, width),
            Value::Text(word, width) => len = short(word, width, text),
            Value::TextInForm(word, header) => len = short(word, header.inline_len(), text),
            Value::Chain(chain) => return Err(chain),
        }
        Ok(text.get(..len).unwrap_or(text))
    }
}

/// Puts the bytes of a word at the beginning of the text, which is of this length.
#[inline(always)]
fn short(word: u64, len: usize, text: &mut [u8; decimal::LEN_MAX]) -> usize {
    if let Some(first) = text.first_chunk_mut() {
        *first = word.to_le_bytes();
    }
    len
}

/// The item that a new one replaces.
#[derive(Clone, Copy)]
pub(crate) struct Replaced<'r> {
    /// of its segment
    pub header: &'r SegmentHeader,
    /// of its segment
    pub sequence: u64,
    /// in the segment
    pub offset: usize,
    /// the CAS unique of the new item is greater than this
    pub unique: u64,
    /// so many uniques after that one are those of no item, because they belong to the other words of the replaced item's place
    pub spare: usize,
}

/// What an item is written for.
#[derive(Clone, Copy)]
pub(crate) struct Purpose<'a, 'k> {
    pub key: &'a Key<'k>,
    /// the flush epoch that it is stamped with
    pub epoch: u64,
    pub now: u32,
    pub replaced: Option<Replaced<'a>>,
    pub rules: Rules<false>,
}

/// An item as it is going to be in its place.
#[derive(Clone, Copy)]
struct Form<'b> {
    header: Header,
    /// the value, or what leads to it
    body: &'b [u8],
    /// of the whole item: [`Header::size`]
    size: usize,
}

/// An item that is written but not published.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Written {
    pub word: Slot,
    pub cas: u64,
    pub value_len: usize,
    /// bytes in the region, a large value's included
    pub size: usize,
}

impl<'r> Replaced<'r> {
    /// The item at this offset of a segment with this header, for a new item whose CAS unique is looked at later.
    #[inline(always)]
    pub fn new(header: &'r SegmentHeader, offset: usize) -> Self {
        Self {
            header,
            sequence: header.sequence.load(Relaxed),
            offset,
            unique: 0,
            spare: 0,
        }
    }
}

impl Written {
    /// No item.
    pub const NONE: Self = Self {
        word: Slot::UNSET,
        cas: 0,
        value_len: 0,
        size: 0,
    };
}

impl Appender {
    /// The end of the log of the thread in this slot.
    pub fn new(thread: &Thread, directory: &Arc<Directory>, segments: &Segments, ghosts: &Ghosts, uniques: &Uniques) -> Self {
        let mapped = &segments.mapped;
        let claims = Claims {
            mapped: Arc::clone(mapped),
            thread: thread.clone(),
            threads: segments.threads.clone(),
            directory: Arc::clone(directory),
            items: segments.items.clone(),
            segments: segments.clone(),
            uniques: uniques.clone(),
        };
        Self {
            counts: ItemCounts {
                mapped: Arc::clone(mapped),
                thread: thread.clone(),
                items: segments.items.clone(),
                segments: segments.clone(),
                dead_factor: dead_factor(mapped.layout().shape.segment_size),
            },
            extents: Extents {
                claims,
                leased: [const { Leased::none() }; Stream::MAX],
            },
            ghosts: ghosts.clone(),
            steps: Steps::default(),
            scratch: Cell::default(),
        }
    }

    /// The mapped bytes.
    #[inline(always)]
    pub fn mapped(&self) -> &Mapped {
        &self.extents.claims.mapped
    }

    /// The thread's slot.
    #[inline(always)]
    pub fn thread(&self) -> &Thread {
        &self.extents.claims.thread
    }

    /// Its segments.
    #[inline(always)]
    pub fn claims(&self) -> &Claims {
        &self.extents.claims
    }

    /// Its extents.
    #[inline(always)]
    pub fn extents(&self) -> &Extents {
        &self.extents
    }

    /// The ghosts of evicted keys.
    pub fn ghosts(&self) -> &Ghosts {
        &self.ghosts
    }

    /// What it counts.
    #[inline(always)]
    pub fn counts(&self) -> &ItemCounts {
        &self.counts
    }

    /// Writes an item to a place of its own, with the `built` value if the draft says so. Returns also the segments that belong to
    /// it alone, if it has any.
    pub(crate) fn write(
        &self,
        supply: &dyn Supply,
        purpose: &Purpose<'_, '_>,
        draft: &Draft<'_>,
        built: &[u8],
    ) -> Result<(Written, Option<Chain>), WriteError> {
        let mut text = [0; decimal::LEN_MAX];
        let bytes = match draft.value.bytes(built, &mut text) {
            Ok(bytes) => bytes,
            Err(chain) => return self.write_large(supply, purpose, draft, Body::Chain(chain)),
        };
        let Some(form) = self.planned(purpose.key, draft, bytes, self.claims().mapped.checksum_size()) else {
            return self.write_large(supply, purpose, draft, Body::Bytes(bytes));
        };
        let room = self
            .extents
            .room(supply, form.size, self.stream_for(purpose, draft), purpose.epoch, purpose.now)?;
        if let Some(cas) = self.unique_to_carry(purpose.key.hash, draft, &room, purpose.replaced) {
            self.extents.leave_room(&room);
            return self.write(supply, purpose, &draft.with_cas(cas), built);
        }
        Ok((self.write_item(purpose.key, purpose.rules, draft, form, &room), None))
    }

    /// The CAS unique that a new item must carry, because its place gives it none, or none above that of the item that it replaces.
    fn unique_to_carry(&self, hash: u64, draft: &Draft<'_>, room: &Room<'_>, replaced: Option<Replaced<'_>>) -> Option<u64> {
        if draft.cas.is_some() {
            return None;
        }
        match replaced {
            Some(replaced) if room.carries || cas_of(room.sequence, room.next) <= replaced.unique => {
                Some(self.steps.unique_over(&self.claims().uniques, hash, &replaced))
            }
            None if room.carries => Some(self.claims().uniques.draw_unique()),
            _ => None,
        }
    }

    /// Writes an item that replaces another one: the fast path, in a region without rules. `None`: the value needs segments of
    /// its own, there is no space for it, or its place gives it no CAS unique, or a lower one than the other item's place gives.
    #[inline(always)]
    pub(crate) fn write_over(
        &self,
        supply: &dyn Supply,
        key: &Key<'_>,
        epoch: u64,
        now: &mut impl Now,
        draft: &Draft<'_>,
        replaced: Replaced<'_>,
    ) -> Option<Written> {
        let mut text = [0; decimal::LEN_MAX];
        let word_bytes;
        let form = match draft.value {
            Value::TextInForm(word, header) => {
                // A number of at most eight bytes, with the longest key: it fits into any segment.
                word_bytes = word.to_le_bytes();
                Form {
                    header,
                    body: word_bytes.get(..header.inline_len())?,
                    size: padded(header.end()),
                }
            }
            value => {
                let body = value.bytes(&[], &mut text).ok()?;
                self.planned(key, draft, body, 0)?
            }
        };
        let class = match draft.until() {
            0 => 0,
            until => self.class(until, now.tick()),
        };
        let stream = self.stream(key.hash, Some(&replaced), class);
        let kept = self.extents.leased.get(stream.index())?;
        let room = match kept.room_that_gives(form.size, epoch) {
            Some(room) => room,
            None => self.extents.more_room(supply, form.size, stream, epoch, now.tick())?,
        };
        // One comparison: which of the two decides, a processor would predict badly.
        let by_place = |sequence: u64, offset: usize| u128::from(sequence) << 64 | offset as u128;
        let is_above = by_place(room.sequence, room.next) > by_place(replaced.sequence, replaced.offset);
        if !is_above && draft.cas.is_none() {
            self.extents.leave_room(&room);
            return None;
        }
        Some(self.write_item(key, Rules::PLAIN, draft, form, &room))
    }

    /// An item with this value. `None`: the value needs segments of its own.
    #[inline(always)]
    fn planned<'b>(&self, key: &Key<'_>, draft: &Draft<'_>, body: &'b [u8], checksum_size: usize) -> Option<Form<'b>> {
        // What fits into a segment has a length that fits into the header.
        const _: () = assert!(SIZE_MAX <= item::INLINE_VALUE_MAX);
        let mapped = &*self.claims().mapped;
        let (flags, body_len) = (draft.flags(), body.len() + checksum_size);
        let size = item::size(key.bytes.len(), body_len, flags, draft.expiry);
        if size + EXTENT_HEADER_SIZE > mapped.layout().shape.segment_size {
            return None;
        }
        let header = Header::new(key.bytes.len(), body_len, flags, draft.expiry);
        Some(Form { header, body, size })
    }

    /// Writes a large item, whose value has segments of its own.
    #[cold]
    #[inline(never)]
    fn write_large(
        &self,
        supply: &dyn Supply,
        purpose: &Purpose<'_, '_>,
        draft: &Draft<'_>,
        body: Body<'_>,
    ) -> Result<(Written, Option<Chain>), WriteError> {
        let stream = self.stream_for(purpose, draft);
        let (chain, own) = match body {
            Body::Chain(chain) => (chain, None),
            Body::Bytes(bytes) => {
                // Whatever a damaged superblock allows.
                if bytes.len() > *ITEM_SIZES.end() {
                    return Err(WriteError::Corrupt);
                }
                let chain = self
                    .claims()
                    .write_chain(supply, purpose.key, bytes, (stream, draft.until()), purpose.now)?;
                (chain, Some(chain))
            }
        };
        let written = self.write_head(supply, purpose, draft, chain, stream);
        if let (Err(_), Some(chain)) = (&written, own) {
            self.claims().free_chain(chain.first);
        }
        Ok((written?, own))
    }

    /// Writes the item that leads to a value in segments of its own.
    fn write_head(
        &self,
        supply: &dyn Supply,
        purpose: &Purpose<'_, '_>,
        draft: &Draft<'_>,
        chain: Chain,
        stream: Stream,
    ) -> Result<Written, WriteError> {
        let (key, flags) = (purpose.key, draft.flags());
        // The checksum of a large item is in its body.
        let mut body = [0; LARGE_BODY_SIZE];
        let words = [chain.value_len as u64, chain.first.0, chain.last.0];
        for (to, from) in body.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&from.to_le_bytes());
        }
        let size = item::size(key.bytes.len(), LARGE_BODY_SIZE, flags, draft.expiry);
        let room = self.extents.room(supply, size, stream, purpose.epoch, purpose.now)?;
        if let Some(cas) = self.unique_to_carry(purpose.key.hash, draft, &room, purpose.replaced) {
            self.extents.leave_room(&room);
            return self.write_head(supply, purpose, &draft.with_cas(cas), chain, stream);
        }
        let form = Form {
            header: Header::large(key.bytes.len(), flags, draft.expiry),
            body: &body,
            size,
        };
        let written = self.write_item(key, purpose.rules, draft, form, &room);
        Ok(Written {
            value_len: chain.value_len,
            size: size + chain.value_len,
            ..written
        })
    }

    /// Writes an item to its place in the extent.
    #[inline(always)]
    #[allow(unsafe_code, reason = "the parts of an item whose bounds were looked at once")]
    fn write_item<const PLAIN: bool>(
        &self,
        key: &Key<'_>,
        rules: Rules<PLAIN>,
        draft: &Draft<'_>,
        Form { header, body, size }: Form<'_>,
        room: &Room<'_>,
    ) -> Written {
        let mapped = &*self.claims().mapped;
        let offset = room.next;
        let segment_at = mapped.segment(room.segment);
        let at = segment_at + offset;
        debug_assert!(size == header.size() && key.bytes.len() == header.key_len());
        // By its hash the word gets its tag and its bucket: no get and no reclaim would find an item of another key there.
        debug_assert_eq!(mapped.hasher().hash(key.bytes), key.hash, "the key belongs to another slot");
        // Panics, if the item is not in the mapping.
        mapped.memory().window(at, size);
        let view = mapped.memory().view();
        // SAFETY: the whole item is in the mapping. Its header was made for this key, for these fields and for this body, so all of
        // them are in the item. Items begin at multiples of 4, and so do the fields before the key.
        unsafe {
            let (word, lifetime) = header.words();
            view.at::<AtomicU32>(at).store(word, Relaxed);
            if let Some(lifetime) = lifetime {
                view.at::<AtomicU32>(at + item::LIFETIME_OFFSET).store(lifetime, Relaxed);
            }
            if let Some(cas) = draft.cas {
                view.write(at + header.cas_offset(), &cas.to_le_bytes());
            }
            if header.has(flag::CLIENT_FLAGS) {
                let flags = view.at::<AtomicU32>(at + header.client_flags_offset());
                flags.store(draft.client_flags, Relaxed);
            }
            if let Some(record) = draft.record {
                view.write(at + header.record_offset(), &record.to_bytes());
            }
            view.write(at + header.key_offset(), key.bytes);
            if !rules.has_checksums() {
                view.write(at + header.value_offset(), body);
            }
        }
        if rules.has_checksums() {
            let cover = Cover {
                segment: room.segment,
                life: room.life,
                offset,
                header,
                cas: draft.cas.unwrap_or(0),
                client_flags: draft.client_flags,
                record: draft.record.unwrap_or_default(),
            };
            self.claims().items.write_body(&cover, key.bytes, body);
        }
        self.claims().thread.protect_written(WRITTEN, room.segment);
        // SAFETY: the extent's own words are before its items, of which one is in the mapping, and at multiples of 8.
        let tail_word = unsafe { view.at(segment_at + room.tail_offset()) };
        self.extents.commit(room, tail_word, segment_at, size, draft.until(), rules);
        let cas = match draft.cas {
            Some(cas) => cas,
            None => cas_of(room.sequence, offset),
        };
        Written {
            word: Slot::confirmed(tag(key.hash), room.life.generation, room.segment, offset),
            cas,
            value_len: body.len(),
            size,
        }
    }

    #[inline(always)]
    pub(super) fn write_header(&self, at: usize, header: Header) {
        let memory = &self.claims().mapped.memory();
        let (word, lifetime) = header.words();
        memory.get::<AtomicU32>(at).store(word, Relaxed);
        if let Some(lifetime) = lifetime {
            memory.get::<AtomicU32>(at + item::LIFETIME_OFFSET).store(lifetime, Relaxed);
        }
    }
}

impl Item {
    /// Its marks, as its header has them, without that of a record.
    #[inline]
    pub(crate) fn marks(&self) -> u64 {
        (if self.stale { flag::STALE } else { 0 }) | (if self.opaque_key { flag::OPAQUE_KEY } else { 0 })
    }

    /// An item of which only the marks are known.
    #[inline]
    pub(crate) fn marked(marks: u64) -> Self {
        Self {
            stale: marks & flag::STALE != 0,
            win_sent: marks & flag::RECORD != 0,
            opaque_key: marks & flag::OPAQUE_KEY != 0,
            ..Self::default()
        }
    }
}
