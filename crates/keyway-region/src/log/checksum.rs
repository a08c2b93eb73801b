//! Checksums: in a region that was made with them, a reader returns only bytes that a writer stored under this key.
//!
//! Every item ends with a CRC-32C, and every part of a large value has one in its header. They cover what a reader returns and
//! the place that it was written to (segment, generation, flush epoch, offset). So bytes that were copied elsewhere, or that are
//! in a recycled segment, do not match either. A reader first copies to its own memory what it returns, and verifies that copy:
//! a stray write after the copy does no harm. A caller's memory, which may change at any time, is neither: a writer sums its copy of
//! the value, and writes that copy; a reader sums its copy, and gives that copy to the caller. The mark *dead* is not covered, because it comes later; an item that carries it is
//! refused. `docs/security.md` says what remains undetected.

use crate::atomics::Relaxed;
use crate::heap::List;
use crate::layout::item::{CHECKSUM_SIZE, Header, LARGE_BODY_SIZE, Record, flag};
use crate::layout::segment::{CHAIN_LEN_WORD, Link, SegmentLife};
use crate::log::Items;
use crate::log::item_view::{Chain, ItemView};
use crate::memory::{Window, copy_bytes};
use crate::sink::{CHUNK, Nowhere, Sink, Unread};
use crate::verbs::{Item, KEY_LEN_MAX};
use std::cell::{Cell, RefCell};

/// From the start of a large item's body to its checksum, bytes.
const LARGE_CHECKSUM_AT: usize = 4;
/// Bytes of the words that a checksum begins with.
const WORDS_SIZE: usize = 48;

/// What the checksum of an item covers besides its key and body.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cover {
    pub segment: usize,
    pub life: SegmentLife,
    pub offset: usize,
    pub header: Header,
    /// 0 if the item carries none
    pub cas: u64,
    /// 0 if the item carries none
    pub client_flags: u32,
    /// zeros if the item carries none
    pub record: Record,
}

/// A session's copy of the item of the present operation.
#[derive(Default)]
pub(crate) struct Verified {
    pub outcome: Cell<Outcome>,
    pub item: Cell<Item>,
    pub record: Cell<Record>,
    /// the value, or a large item's words
    pub body: RefCell<Vec<u8>>,
}

/// The result of verifying it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// not verified yet
    #[default]
    Unasked,
    Intact,
    Damaged,
    /// this process has no memory for the copy
    NoMemory,
}

impl Cover {
    /// Of an item that is copied unchanged to this place.
    pub fn of_copy(bytes: &[u8], header: Header, (segment, life, offset): (usize, SegmentLife, usize)) -> Self {
        Self {
            segment,
            life,
            offset,
            header,
            cas: if header.has(flag::CAS) {
                word_of(bytes, header.cas_offset())
            } else {
                0
            },
            client_flags: if header.has(flag::CLIENT_FLAGS) {
                let at = header.client_flags_offset();
                u32::from_le_bytes(bytes_of(bytes, at))
            } else {
                0
            },
            record: if header.has(flag::RECORD) {
                let at = header.record_offset();
                Record::of([word_of(bytes, at), word_of(bytes, at + 8)])
            } else {
                Record::default()
            },
        }
    }

    /// The checksum up to the key's end.
    fn begin(&self, key: &[u8]) -> u32 {
        let place = (self.segment as u64) << 32 | self.offset as u64;
        let words = [
            self.life.generation,
            self.life.epoch,
            place,
            self.header.written().0,
            self.cas,
            u64::from(self.client_flags),
        ];
        // One run over both: each run has a fixed cost.
        let mut bytes = [0; WORDS_SIZE + KEY_LEN_MAX];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        let end = WORDS_SIZE + key.len();
        match bytes.get_mut(WORDS_SIZE..end) {
            Some(to) => to.copy_from_slice(key),
            None => return 0,
        }
        let begun = crc32c::crc32c(bytes.get(..end).unwrap_or_default());
        if self.header.has(flag::RECORD) {
            crc32c::crc32c_append(begun, &self.record.to_bytes())
        } else {
            begun
        }
    }

    /// The checksum.
    fn sum(&self, key: &[u8], body: &[u8]) -> u32 {
        let begun = self.begin(key);
        if !self.header.is_large() {
            return crc32c::crc32c_append(begun, body);
        }
        let mut blank = [0; LARGE_BODY_SIZE];
        for (i, (to, from)) in blank.iter_mut().zip(body).enumerate() {
            let is_own = (LARGE_CHECKSUM_AT..LARGE_CHECKSUM_AT + CHECKSUM_SIZE).contains(&i);
            *to = if is_own { 0 } else { *from };
        }
        crc32c::crc32c_append(begun, &blank)
    }
}

fn as_written(is_so: bool) -> Result<(), Unread> {
    if is_so { Ok(()) } else { Err(Unread::Changed) }
}

/// The checksum of a part of a large value up to its bytes; its header has these words.
pub(super) fn begin_part(link: Link, words: [u64; 4]) -> u32 {
    let mut bytes = [0; WORDS_SIZE];
    for (to, word) in bytes.chunks_exact_mut(8).zip([link.0].into_iter().chain(words)) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    crc32c::crc32c(&bytes)
}

impl Items {
    /// Whether items carry checksums.
    #[inline(always)]
    pub fn has_checksums(&self) -> bool {
        self.mapped.checksum_size() != 0
    }

    /// Writes an item's body and its checksum; the rest of the item is complete.
    #[cold]
    #[inline(never)]
    pub(super) fn write_body(&self, cover: &Cover, key: &[u8], body: &[u8]) {
        let at = self.mapped.segment(cover.segment) + cover.offset + cover.header.value_offset();
        if cover.header.is_large() {
            // It is no caller's.
            self.mapped.memory().write(at, body);
            self.mapped
                .memory()
                .write(at + LARGE_CHECKSUM_AT, &cover.sum(key, body).to_le_bytes());
        } else {
            let sum = self.write_summed(at, body, cover.begin(key));
            self.mapped.memory().write(at + body.len(), &sum.to_le_bytes());
        }
    }

    /// Writes bytes of a caller, who may change them meanwhile, and continues a CRC-32C over what was written.
    pub(super) fn write_summed(&self, at: usize, bytes: &[u8], begun: u32) -> u32 {
        let mut own = [0; CHUNK];
        let chunks = bytes.chunks(CHUNK).zip((at..).step_by(CHUNK));
        chunks.fold(begun, |sum, (chunk, at)| {
            let own = own.get_mut(..chunk.len()).unwrap_or_default();
            copy_bytes(chunk, own);
            self.mapped.memory().write(at, own);
            crc32c::crc32c_append(sum, own)
        })
    }

    /// Writes the checksum of an item that was copied unchanged to this place. `bytes`: the item, in this process's own memory.
    #[cold]
    #[inline(never)]
    pub(super) fn write_checksum_of_copy(&self, cover: &Cover, bytes: &[u8]) {
        if let Some((key, body, _)) = split(bytes, cover.header) {
            let within = if cover.header.is_large() {
                LARGE_CHECKSUM_AT
            } else {
                body.len()
            };
            let at = self.mapped.segment(cover.segment) + cover.offset + cover.header.value_offset() + within;
            self.mapped.memory().write(at, &cover.sum(key, body).to_le_bytes());
        }
    }

    /// Whether a copy of an item is what was written. `copied` is the header in the copy, `seen` has the header as it was in the region.
    #[cold]
    #[inline(never)]
    pub(super) fn is_copy_intact(&self, seen: &ItemView, copied: Header, bytes: &[u8]) -> bool {
        let Some((key, body, sum)) = split(bytes, copied) else {
            return false;
        };
        let mut cover = Cover::of_copy(bytes, copied, (seen.segment, seen.life, seen.offset));
        cover.header = seen.header;
        if !seen.header.has(flag::CAS) {
            cover.cas = 0;
        }
        cover.sum(key, body) == sum
    }

    /// Appends the item's value, if it is wanted, and verifies what is returned: the key that the caller expects, what `item`
    /// says, and the value as `out` gets it.
    #[cold]
    #[inline(never)]
    pub(crate) fn append_verified(
        &self,
        seen: &ItemView,
        key: &[u8],
        item: &Item,
        wants_value: bool,
        out: &mut impl Sink,
    ) -> Result<(), Unread> {
        let header = seen.header;
        if header.is_large() {
            let mut body = List::with_capacity(LARGE_BODY_SIZE);
            let body = body.as_vec();
            self.read_verified(seen, key, (item, self.record(seen).unwrap_or_default()), body)?;
            return match chain_of(body).filter(|chain| chain.value_len == item.value_len) {
                Some(chain) if wants_value => self.append_chain(chain, out),
                Some(_) => Ok(()),
                None => Err(Unread::Changed),
            };
        }
        let record = self.record(seen).unwrap_or_default();
        let (cover, body_len) = self.cover(seen, item, record).ok_or(Unread::Changed)?;
        let begun = cover.begin(key);
        let at = seen.at + header.value_offset();
        let body = self.mapped.memory().window(at, body_len);
        let sum = match wants_value {
            true => out.append_summed(body, begun)?,
            false => Nowhere.append_summed(body, begun)?,
        };
        as_written(sum == self.checksum_at(at + body_len))
    }

    /// Copies the item's body (a large item's: the words that lead to its value) over `body`, and verifies it with the key, with
    /// what `item` says, and with what was read as its record.
    #[cold]
    #[inline(never)]
    pub(crate) fn read_verified(
        &self,
        seen: &ItemView,
        key: &[u8],
        (item, record): (&Item, Record),
        body: &mut Vec<u8>,
    ) -> Result<(), Unread> {
        let (cover, body_len) = self.cover(seen, item, record).ok_or(Unread::Changed)?;
        let at = seen.at + seen.header.value_offset();
        body.clear();
        if !self.mapped.memory().append_to(at, body_len, body) {
            return Err(Unread::NoMemory);
        }
        let sum = if seen.header.is_large() {
            u32::from_le_bytes(bytes_of(body, LARGE_CHECKSUM_AT))
        } else {
            self.checksum_at(at + body_len)
        };
        as_written(cover.sum(key, body) == sum)
    }

    /// What the item's checksum covers, and the length of its body. `None`: no live item has such a header.
    fn cover(&self, seen: &ItemView, item: &Item, record: Record) -> Option<(Cover, usize)> {
        let header = seen.header;
        let body_len = body_len(header)?;
        if header.has(flag::DEAD) {
            return None;
        }
        let cas = match header.has(flag::CAS) {
            true if item.cas == 0 => self.cas_unique(seen),
            true => item.cas,
            false => 0,
        };
        let cover = Cover {
            segment: seen.segment,
            life: seen.life,
            offset: seen.offset,
            header,
            cas,
            client_flags: item.flags,
            record,
        };
        Some((cover, body_len))
    }

    fn checksum_at(&self, at: usize) -> u32 {
        let mut bytes = [0; CHECKSUM_SIZE];
        self.mapped.memory().read(at, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    /// Appends a part of a large value. Returns whether it is as it was written; `next` is the link that was read.
    #[cold]
    #[inline(never)]
    pub(super) fn append_part(
        &self,
        (link, next, last): (Link, Link, Link),
        part: Window<'_>,
        out: &mut impl Sink,
    ) -> Result<bool, Unread> {
        let at = self.mapped.segment(link.segment());
        let [hash, len] = [2, CHAIN_LEN_WORD].map(|i| self.mapped.word(at + i * 8).load(Relaxed));
        let begun = begin_part(link, [next.0, last.0, hash, part.len() as u64]);
        let sum = out.append_summed(part, begun)?;
        Ok(len == part.len() as u64 | u64::from(sum) << 32)
    }
}

/// A large item's body.
pub(crate) fn chain_of(body: &[u8]) -> Option<Chain> {
    (body.len() == LARGE_BODY_SIZE).then(|| Chain::of([0, 8, 16].map(|at| word_of(body, at))))?
}

/// Length of what follows the key, without the checksum after it.
fn body_len(header: Header) -> Option<usize> {
    if header.is_large() {
        Some(LARGE_BODY_SIZE)
    } else {
        header.value_len().checked_sub(CHECKSUM_SIZE)
    }
}

/// Key, body and checksum of an item that was copied unchanged.
fn split(bytes: &[u8], header: Header) -> Option<(&[u8], &[u8], u32)> {
    let at = header.value_offset();
    let end = at + body_len(header)?;
    let body = bytes.get(at..end)?;
    let sum = if header.is_large() {
        bytes_of(body, LARGE_CHECKSUM_AT)
    } else {
        bytes_of(bytes, end)
    };
    Some((bytes.get(header.key_offset()..at)?, body, u32::from_le_bytes(sum)))
}

/// Bytes of a copy; zeros where it has none.
fn bytes_of<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..at + N).and_then(|b| b.try_into().ok()).unwrap_or([0; N])
}

fn word_of(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes_of(bytes, at))
}
