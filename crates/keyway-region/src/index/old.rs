//! The present item of a key, as a decision sees it. In a region with checksums a decision takes everything of it from one
//! verified copy.

use crate::decimal::{self, Digits};
use crate::index::Changer;
use crate::index::Index;
use crate::index::find::Here;
use crate::index::lookup::Place;
use crate::layout::item::{Header, Record, flag};
use crate::layout::slot::Slot;
use crate::log::Items;
use crate::log::{Chain, ItemView, Outcome, Verified, chain_of};
use crate::sink::{Sink, Unread};
use crate::verbs::Item;

/// The present item, shown to a decision.
#[derive(Clone, Copy)]
pub(crate) struct Old<'r> {
    verified: &'r Verified,
    index: &'r Index,
    key: &'r [u8],
    seen: ItemView,
    slot: (Place, Slot),
    /// a fast path does not ask for it
    now: Option<u32>,
    has_checksums: bool,
}

impl<'r> Old<'r> {
    /// The item of this key, which the session holds. Without the time [`Self::item`] is not called.
    #[inline(always)]
    pub(super) fn of(changer: &'r Changer, key: &'r [u8], here: &Here<'_>, now: Option<u32>, has_checksums: bool) -> Self {
        Self {
            verified: &changer.verified,
            index: &changer.publisher().index,
            key,
            seen: here.seen,
            slot: (here.place, here.word),
            now,
            has_checksums,
        }
    }

    /// What is known of it, with details.
    pub fn item(&self) -> Item {
        if self.has_checksums {
            return self.copy().item.get();
        }
        self.index.facts(&self.seen, self.slot, true, self.now())
    }

    fn now(&self) -> u32 {
        debug_assert!(self.now.is_some(), "a decision of a fast path asks for details");
        self.now.unwrap_or_default()
    }

    /// Its marks ([`crate::layout::item::flag::MARKS`]), and the client's flags.
    #[inline(always)]
    pub fn marks_and_flags(&self) -> (u64, u32) {
        if self.has_checksums {
            let item = self.item();
            return (item.marks(), item.flags);
        }
        Items::marks_and_flags(&self.index.mapped, &self.seen)
    }

    /// What it has of fetches.
    pub fn record(&self) -> Option<Record> {
        if self.has_checksums {
            return self.seen.header.has(flag::RECORD).then(|| self.copy().record.get());
        }
        self.index.items.record(&self.seen)
    }

    /// Whether all verbs see it at this time, and not only fetches.
    pub fn is_for_all(&self, now: u32) -> bool {
        !self.seen.header.is_expired(now)
    }

    /// Its header, if an item has the same one that differs from it only in the bytes of the value, and is written now.
    #[inline(always)]
    pub fn header_of_same_form(&self) -> Option<Header> {
        let header = self.seen.header;
        // A new item has no CAS unique of its own, and is stale if this one was written before a gap.
        let is_same = !header.has(flag::CAS | flag::DEAD | flag::RECORD) && !Items::is_any_before_gap(&self.index.mapped);
        is_same.then_some(header)
    }

    /// The client's flags of an item with this header.
    #[inline(always)]
    pub fn flags(&self) -> u32 {
        Items::flags_of(&self.index.mapped, &self.seen)
    }

    /// The digits of the number in the value, if it consists of one to eight of them. Only in a region without checksums.
    #[inline(always)]
    #[allow(unsafe_code, reason = "bytes of an item that is in its segment")]
    pub fn digits(&self) -> Option<(Digits, usize)> {
        let (header, len) = (self.seen.header, self.seen.header.inline_len());
        if self.has_checksums || len == 0 || len > decimal::SHORT_MAX {
            return None;
        }
        // The bytes before the value are read with it, and ignored: header and key, and before a short key what precedes the item.
        let end = self.seen.at + header.value_offset() + len;
        // SAFETY: the item ends in its segment (see `Here`), and more than 8 bytes of the region are before the first segment.
        let last = unsafe { self.index.mapped.memory().view().u64_unaligned(end - decimal::SHORT_MAX) };
        Some((Digits::read(last, len)?, len))
    }

    /// Length of its key, bytes.
    pub fn key_len(&self) -> usize {
        self.seen.header.key_len()
    }

    /// Its expiry: a tick of the region's clock, 0 for never.
    pub fn expiry(&self) -> u32 {
        self.seen.header.expiry()
    }

    /// Copies the value to the end of `out`.
    pub fn append_value(&self, out: &mut impl Sink) -> Result<(), Unread> {
        if self.has_checksums {
            return self.append_copy(out);
        }
        self.index.items.append_value(&self.seen, out)
    }

    /// The value, copied to `out`. `None` if it is longer, or has segments of its own.
    #[inline]
    pub fn short_value<'o>(&self, out: &'o mut [u8]) -> Option<&'o [u8]> {
        if self.has_checksums {
            // The caller takes it from the verified copy instead, which is as good.
            return None;
        }
        self.index.items.short_value(&self.seen, out)
    }

    /// The number in the value, its length in bytes, and its digits, unless they are more than eight. Only for a value of one to
    /// sixteen decimal digits, or of up to eight with blanks after them, in a region without checksums.
    pub fn number(&self) -> Option<(u64, usize, Option<Digits>)> {
        let (header, len) = (self.seen.header, self.seen.header.value_len());
        let memory = &self.index.mapped.memory();
        // As in `digits`.
        let end = self.seen.at + header.value_offset() + len;
        if self.has_checksums || len == 0 || len > 2 * decimal::SHORT_MAX {
            return None;
        }
        let last = memory.u64_unaligned(end - decimal::SHORT_MAX);
        if len > decimal::SHORT_MAX {
            let first = memory.u64_unaligned(end - 2 * decimal::SHORT_MAX);
            return Some((decimal::read_long(first, last, len)?, len, None));
        }
        let digits = Digits::read(last, len).or_else(|| Digits::read_padded(last, len))?;
        Some((digits.number(), len, Some(digits)))
    }

    /// The segments that hold the value, if it has its own.
    pub fn chain(&self) -> Option<Chain> {
        if self.has_checksums {
            return chain_of(&self.copy().body.borrow()).filter(|_| self.seen.header.is_large());
        }
        self.index.items.chain(&self.seen)
    }

    /// The item, copied and verified once. In a region with checksums a decision takes everything of the old item from this copy.
    #[cold]
    fn copy(&self) -> &'r Verified {
        let copy = self.verified;
        if copy.outcome.get() == Outcome::Unasked {
            let mut item = self.index.facts(&self.seen, self.slot, true, self.now());
            let record = self.index.items.record(&self.seen).unwrap_or_default();
            let body = &mut copy.body.borrow_mut();
            let mut outcome = match self.index.items.read_verified(&self.seen, self.key, (&item, record), body) {
                Ok(()) => Outcome::Intact,
                Err(Unread::Changed) => Outcome::Damaged,
                Err(Unread::NoMemory) => Outcome::NoMemory,
            };
            if self.seen.header.is_large() {
                let chain = chain_of(body);
                item.value_len = chain.map_or(0, |chain| chain.value_len);
                if chain.is_none() && outcome == Outcome::Intact {
                    outcome = Outcome::Damaged;
                }
            }
            copy.item.set(item);
            copy.record.set(record);
            copy.outcome.set(outcome);
        }
        copy
    }

    #[cold]
    fn append_copy(&self, out: &mut impl Sink) -> Result<(), Unread> {
        let copy = self.copy();
        if let Some(chain) = self.chain() {
            return self.index.items.append_chain(chain, out);
        }
        let body = copy.body.borrow();
        if copy.outcome.get() == Outcome::NoMemory {
            return Err(Unread::NoMemory);
        }
        out.append_bytes(&body)?;
        match copy.outcome.get() {
            Outcome::Intact => Ok(()),
            _ => Err(Unread::Changed),
        }
    }
}
