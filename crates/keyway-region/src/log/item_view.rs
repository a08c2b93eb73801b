//! An item that a reader has found: where it is, and what its bytes say.
//!
//! Nothing here knows which slot leads to an item. What was read counts only if [`Items::still`] says afterwards that the
//! segment still has the generation in which the item was found.

use crate::atomics::{Acquire, AtomicU32, Relaxed, fence};
use crate::layout::index;
use crate::layout::item::{ALIGNMENT, Header, LIFETIME_OFFSET, Record, flag};
use crate::layout::segment::{Link, SegmentLife, SegmentWords};
use crate::log::Items;
use crate::mapped::Mapped;
use crate::sink::{Sink, Unread};
use crate::verbs::Now;
use std::sync::Arc;

/// How often an operation starts again before it calls the region corrupted. Contention takes a few attempts. Only a word that
/// no version of Keyway writes makes an endless loop, and this bound turns that into an error.
pub(crate) const ATTEMPTS_MAX: usize = 1 << 16;

/// Longest value: the largest item that can be allowed.
const VALUE_LEN_MAX: usize = 1 << 30;

/// An item that a reader has found: valid as long as [`Items::still`] says so.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ItemView {
    pub segment: usize,
    pub life: SegmentLife,
    /// offset in the region
    pub at: usize,
    /// offset in the segment
    pub offset: usize,
    pub header: Header,
}

impl ItemView {
    /// Whether the item is present: neither flushed before this epoch, nor expired. The time is asked only of an item with an expiry.
    #[inline(always)]
    pub fn is_present(&self, epoch: u64, mut now: impl Now) -> bool {
        self.life.is_since(epoch) && (self.header.expiry() == 0 || !self.header.is_expired(now.tick()))
    }
}

/// A large item's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chain {
    pub value_len: usize,
    pub first: Link,
    /// the last link, which also distinguishes this chain from any other
    pub last: Link,
}

impl Chain {
    /// From a body's words.
    #[inline]
    pub fn of([value_len, first, last]: [u64; 3]) -> Option<Self> {
        Some(Self {
            // The upper half is its checksum.
            value_len: Some(index(value_len & 0xFFFF_FFFF)).filter(|len| *len <= VALUE_LEN_MAX)?,
            first: Link(first),
            last: Link(last),
        })
    }
}

impl Items {
    pub(crate) fn new(mapped: &Arc<Mapped>) -> Self {
        Self {
            mapped: Arc::clone(mapped),
        }
    }

    /// The header of an item, or what is now in its place.
    #[inline(always)]
    pub(crate) fn item_header(&self, at: usize) -> Header {
        // PAIRS: dead-mark: the store in `ItemCounts::mark_dead`.
        let word = |at| self.mapped.memory().get::<AtomicU32>(at).load(Acquire);
        Header::of(word(at), || word(at + LIFETIME_OFFSET))
    }

    /// Whether everything read so far at this item's place was the item.
    #[inline(always)]
    pub(crate) fn still(&self, seen: &ItemView) -> bool {
        Self::is_still(self.mapped.words(seen.segment), seen.life)
    }

    /// Whether the segment with these words still has the generation that was read before its bytes.
    #[inline(always)]
    pub(crate) fn is_still(words: &SegmentWords, life: SegmentLife) -> bool {
        // PAIRS: generation: the release fence in `Claims::claim_from_free`: a reader of a new byte sees the new generation.
        fence(Acquire);
        words.generation.load(Relaxed) == life.generation
    }

    /// Whether the item has this key. Meaningless unless [`Self::still`] holds afterwards.
    #[inline(always)]
    pub(crate) fn has_key(&self, seen: &ItemView, key: &[u8]) -> bool {
        seen.header.key_len() == key.len() && self.mapped.memory().equals(seen.at + seen.header.key_offset(), key)
    }

    /// The item's marks ([`flag::MARKS`]; that of a record if somebody computes) and the client's flags. Meaningless unless [`Self::still`] holds afterwards.
    #[inline(always)]
    pub(crate) fn marks_and_flags(mapped: &Mapped, seen: &ItemView) -> (u64, u32) {
        let stale = if Self::is_of_before_gap(mapped, seen) {
            flag::STALE
        } else {
            0
        };
        let marks = seen.header.given() & flag::MARKS | stale;
        let is_held = || mapped.memory().u64_unaligned(seen.at + seen.header.record_offset()) != 0;
        let marks = if marks & flag::RECORD == 0 || is_held() {
            marks
        } else {
            marks & !flag::RECORD
        };
        (marks, Self::flags_of(mapped, seen))
    }

    /// The client's flags. Meaningless unless [`Self::still`] holds afterwards.
    #[inline(always)]
    pub(crate) fn flags_of(mapped: &Mapped, seen: &ItemView) -> u32 {
        if seen.header.has(flag::CLIENT_FLAGS) {
            Self::client_flags(mapped, seen)
        } else {
            0
        }
    }

    /// Whether there was a gap after which all older items are stale.
    #[inline(always)]
    pub(crate) fn is_any_before_gap(mapped: &Mapped) -> bool {
        mapped.superblock().stale_before.load(Relaxed) != 0
    }

    /// Whether the item was written before a gap after which all older items are stale.
    #[inline(always)]
    pub(crate) fn is_of_before_gap(mapped: &Mapped, seen: &ItemView) -> bool {
        Self::is_opened_before_gap(mapped, seen.segment)
    }

    /// Whether all items in this segment are stale for that reason.
    #[inline(always)]
    pub(super) fn is_opened_before_gap(mapped: &Mapped, segment: usize) -> bool {
        let before = mapped.superblock().stale_before.load(Relaxed);
        before != 0 && mapped.header(segment).sequence.load(Relaxed) < before
    }

    /// What the item has of fetches. Meaningless unless [`Self::still`] holds afterwards.
    pub(crate) fn record(&self, seen: &ItemView) -> Option<Record> {
        let at = seen.at + seen.header.record_offset();
        let word = |at| self.mapped.memory().u64_unaligned(at);
        seen.header.has(flag::RECORD).then(|| Record::of([word(at), word(at + 8)]))
    }

    /// Until when the item is kept, if only for fetches: a tick of the region's clock, the last one for ever.
    pub(crate) fn until(&self, seen: &ItemView) -> u32 {
        match (seen.header.expiry(), self.record(seen)) {
            (0, _) => u32::MAX,
            (expiry, None) => expiry,
            (expiry, Some(record)) => record.kept_until(expiry),
        }
    }

    #[inline]
    pub(crate) fn value_len(&self, seen: &ItemView, checksum_size: usize) -> usize {
        match seen.header.is_large() {
            false => seen.header.value_len().saturating_sub(checksum_size),
            true => self.chain(seen).map_or(0, |chain| chain.value_len),
        }
    }

    /// Bytes that the item takes in the region, a large value's included.
    #[inline(always)]
    pub(crate) fn size(&self, seen: &ItemView) -> usize {
        self.size_in_all(seen, seen.header.size())
    }

    /// Bytes that an item takes in the region, a large value's included; `size` is what its header gives.
    #[inline(always)]
    pub(crate) fn size_in_all(&self, seen: &ItemView, size: usize) -> usize {
        if seen.header.is_large() {
            self.size_with_chain(seen)
        } else {
            size
        }
    }

    #[cold]
    #[inline(never)]
    fn size_with_chain(&self, seen: &ItemView) -> usize {
        seen.header
            .size()
            .saturating_add(self.value_len(seen, self.mapped.checksum_size()))
    }

    #[inline(always)]
    fn client_flags(mapped: &Mapped, seen: &ItemView) -> u32 {
        mapped
            .memory()
            .get::<AtomicU32>(seen.at + seen.header.client_flags_offset())
            .load(Relaxed)
    }

    /// The item's CAS unique: the one that it carries, or else the one that its place gives it.
    pub(crate) fn cas_unique(&self, seen: &ItemView) -> u64 {
        if seen.header.has(flag::CAS) {
            self.mapped.memory().u64_unaligned(seen.at + seen.header.cas_offset())
        } else {
            cas_of(self.mapped.header(seen.segment).sequence.load(Relaxed), seen.offset)
        }
    }

    /// A large item's body.
    pub(crate) fn chain(&self, seen: &ItemView) -> Option<Chain> {
        if !seen.header.is_large() {
            return None;
        }
        let at = seen.at + seen.header.value_offset();
        Chain::of([at, at + 8, at + 16].map(|at| self.mapped.memory().u64_unaligned(at)))
    }

    /// Copies the item's value to the end of `out`.
    pub(crate) fn append_value(&self, seen: &ItemView, out: &mut impl Sink) -> Result<(), Unread> {
        if seen.header.is_large() {
            return self.append_chain(self.chain(seen).ok_or(Unread::Changed)?, out);
        }
        let at = seen.at + seen.header.value_offset();
        out.append_region(self.mapped.memory().window(at, seen.header.value_len()))
    }

    /// The item's value, copied to `out`; `None` if it is longer, or has segments of its own.
    #[inline]
    pub(crate) fn short_value<'o>(&self, seen: &ItemView, out: &'o mut [u8]) -> Option<&'o [u8]> {
        let out = out.get_mut(..seen.header.value_len()).filter(|_| !seen.header.is_large())?;
        self.mapped.memory().read(seen.at + seen.header.value_offset(), out);
        Some(out)
    }
}

/// The CAS unique that an item's place gives it, in a segment with this sequence number.
pub(super) fn cas_of(sequence: u64, offset: usize) -> u64 {
    sequence.wrapping_add((offset / ALIGNMENT) as u64)
}
