//! An item: a key with its value, immutable once published. See `docs/region.md`.
//!
//! ```text
//! header 4 | lifetime 4, if flagged | CAS unique 8, if flagged | client flags 4, if flagged | record 16, if marked | key | value, or a large item's body | pad
//!
//! header:    31..28 flags (4) | 27..20 key length (8) | 19..0 value length (20)
//! lifetime:  31..3 expiry (29) | 2..0 marks (3)
//! record:    holder 8 | kept until 4 | cost 4
//! large body (the value length is all ones):  value length 4 | checksum 4 | first link of the chain 8 | last link of the chain 8
//! ```
//!
//! Both words together are handled as one, [`Header`], whose upper half is 0 without a lifetime. Items are padded to a multiple
//! of 4 bytes. Expiry is a tick of the region's clock, 0 for never. A header consists of bytes from shared memory: call
//! [`Header::validate`] first.
//!
//! An item with a record ([`Record`]) stays after its expiry: absent for every verb but a fetch. One with the expiry
//! [`EXPIRED`] and a record was never there for any other verb: it says that somebody computes the value, or that there is none.
//!
//! In a region with checksums ([`crate::layout::superblock::CHECKSUMS`]) four bytes of checksum follow the value, and count as
//! part of it. A large item's checksum is in its body, and is 0 in other regions.

use crate::verbs::KEY_LEN_MAX;

/// Flags and marks, at their bits in a [`Header`].
pub mod flag {
    /// 4 bytes of client flags follow
    pub const CLIENT_FLAGS: u64 = 1 << 28;
    /// 8 bytes of CAS unique follow: a relocated or touched item, one whose CAS unique the client chose, or one whose place gives it none
    /// that is right
    pub const CAS: u64 = 1 << 29;
    /// no slot names it any more. This is the only change to a published item. It is made by the thread that took its word out
    /// of the index, under the hazard pointer that prevents the segment's recycling meanwhile
    pub const DEAD: u64 = 1 << 30;
    /// a lifetime follows: the item has an expiry, or a mark
    pub const LIFETIME: u64 = 1 << 31;
    /// mark: stale
    pub const STALE: u64 = 1 << 32;
    /// mark: a record follows the client flags
    pub const RECORD: u64 = 1 << 33;
    /// mark: the key is opaque bytes, which a text protocol has to encode
    pub const OPAQUE_KEY: u64 = 1 << 34;
    /// What can be given for an item before it is written.
    pub const GIVEN: u64 = CLIENT_FLAGS | CAS | MARKS;
    /// All marks.
    pub const MARKS: u64 = STALE | RECORD | OPAQUE_KEY;
}

/// Bytes of the header.
pub const HEADER_SIZE: usize = 4;
/// From an item's start to its lifetime, bytes.
pub const LIFETIME_OFFSET: usize = HEADER_SIZE;
/// Bytes of the lifetime.
pub const LIFETIME_SIZE: usize = 4;
/// Items begin at multiples of it.
pub const ALIGNMENT: usize = 4;
/// Smallest item, bytes: header and lifetime can be read from any item, even if it has no lifetime.
pub const SIZE_MIN: usize = 8;
/// Bytes of a large item's body.
pub const LARGE_BODY_SIZE: usize = 24;
/// Bytes of a checksum.
pub const CHECKSUM_SIZE: usize = 4;
/// Bytes of a record.
pub const RECORD_SIZE: usize = 16;
/// An expiry that is in the past, whatever the clock says: that of what has expired from the start.
pub const EXPIRED: u32 = 1;
/// Latest expiry that fits, a tick of the region's clock (80 years, [`crate::Moment`]); later ones are cut to it.
pub const EXPIRY_MAX: u32 = (1 << 29) - 1;
/// Longest value whose length fits into the header, bytes.
pub const INLINE_VALUE_MAX: usize = LARGE - 1;

/// The value length that means: the value has segments of its own.
pub(crate) const LARGE: usize = (1 << 20) - 1;
const EXPIRY_SHIFT: u32 = 35;
const OPTIONAL_SHIFT: u32 = 28;

/// What an item has of fetches: who computes its value, and how long it stays after its expiry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// who computes its next value: see [`super::flight::Holder`]
    pub holder: u64,
    /// tick of the region's clock until which it stays after its expiry, for fetches only; 0: it does not
    pub until: u32,
    /// how long its value took to compute, milliseconds
    pub cost_ms: u32,
}

impl Record {
    /// As an item has it.
    pub fn to_bytes(self) -> [u8; RECORD_SIZE] {
        let [a, b] = [self.holder, u64::from(self.until) | u64::from(self.cost_ms) << 32].map(u64::to_le_bytes);
        let mut bytes = [0; RECORD_SIZE];
        for (to, from) in bytes.iter_mut().zip(a.into_iter().chain(b)) {
            *to = from;
        }
        bytes
    }

    /// From an item's words.
    pub fn of([holder, rest]: [u64; 2]) -> Self {
        Self {
            holder,
            until: (rest & 0xFFFF_FFFF) as u32,
            cost_ms: (rest >> 32) as u32,
        }
    }

    /// Until when an item with this expiry is kept. Ticks of the region's clock, 0 for ever.
    pub fn kept_until(self, expiry: u32) -> u32 {
        if expiry == 0 { 0 } else { expiry.max(self.until) }
    }

    /// This record for an item that has now another expiry: it stays for as long after it. Ticks of the region's clock, 0 for never.
    pub fn moved(self, from: u32, to: u32) -> Self {
        let until = match (self.until, to) {
            (0, _) | (_, 0) => 0,
            (until, to) => to.saturating_add(until.saturating_sub(from)).min(EXPIRY_MAX),
        };
        Self { until, ..self }
    }
}

/// An item's header, with its lifetime if it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header(pub u64);

impl Header {
    /// A header from arguments within their bounds. `flags`: of [`flag::GIVEN`].
    #[inline(always)]
    pub fn new(key_len: usize, value_len: usize, flags: u64, expiry: u32) -> Self {
        debug_assert!((1..=KEY_LEN_MAX).contains(&key_len) && value_len <= LARGE && flags & !flag::GIVEN == 0);
        debug_assert!(expiry <= EXPIRY_MAX);
        let lifetime = lifetime_flag(flags, expiry);
        Self(u64::from(expiry) << EXPIRY_SHIFT | flags | lifetime | (key_len as u64) << 20 | value_len as u64)
    }

    /// The header of a large item, from arguments within their bounds. `flags`: of [`flag::GIVEN`].
    #[inline]
    pub fn large(key_len: usize, flags: u64, expiry: u32) -> Self {
        Self::new(key_len, LARGE, flags, expiry)
    }

    /// This header with these flags added.
    pub fn with(self, flags: u64) -> Self {
        Self::new(
            self.key_len(),
            super::index(self.0) & LARGE,
            self.given() | flags,
            self.expiry(),
        )
    }

    /// Length of the key, bytes.
    #[inline(always)]
    pub const fn key_len(self) -> usize {
        (self.0 >> 20 & 0xFF) as usize
    }

    /// Length of what follows the key, bytes.
    #[inline(always)]
    pub const fn value_len(self) -> usize {
        if self.is_large() {
            LARGE_BODY_SIZE
        } else {
            super::index(self.0) & LARGE
        }
    }

    /// The length of the value that follows the key, or more than any segment has if the value has segments of its own.
    #[inline(always)]
    pub(crate) const fn inline_len(self) -> usize {
        super::index(self.0) & LARGE
    }

    /// From the item's start to the end of a value that follows the key.
    #[inline(always)]
    pub(crate) fn end(self) -> usize {
        self.value_offset() + self.inline_len()
    }

    /// Whether the value has segments of its own.
    #[inline(always)]
    pub const fn is_large(self) -> bool {
        super::index(self.0) & LARGE == LARGE
    }

    /// Whether a flag or a mark is set.
    pub fn has(self, flag: u64) -> bool {
        self.0 & flag != 0
    }

    /// The flags and marks that were given to [`Self::new`].
    pub fn given(self) -> u64 {
        self.0 & flag::GIVEN
    }

    /// The first word of the item once no slot names it any more.
    pub fn dead_word(self) -> u32 {
        low(self.0 | flag::DEAD)
    }

    /// The first word, and the lifetime.
    pub fn words(self) -> (u32, Option<u32>) {
        let lifetime = self.has(flag::LIFETIME).then_some((self.0 >> 32) as u32);
        (low(self.0), lifetime)
    }

    /// From the first word; `lifetime` is called if the item has one.
    #[inline(always)]
    pub fn of(word: u32, lifetime: impl FnOnce() -> u32) -> Self {
        let word = u64::from(word);
        Self(if word & flag::LIFETIME == 0 {
            word
        } else {
            word | u64::from(lifetime()) << 32
        })
    }

    /// The header as it was written: without later changes.
    pub fn written(self) -> Self {
        Self(self.0 & !flag::DEAD)
    }

    /// A tick of the region's clock, 0 for never.
    #[inline]
    pub const fn expiry(self) -> u32 {
        (self.0 >> EXPIRY_SHIFT) as u32
    }

    /// Whether the item has expired.
    #[inline]
    pub fn is_expired(self, now: u32) -> bool {
        let expiry = self.expiry();
        expiry != 0 && expiry <= now
    }

    /// From the item's start to its CAS unique (or to what is there if it has none), bytes.
    #[inline]
    pub const fn cas_offset(self) -> usize {
        HEADER_SIZE + if self.0 & flag::LIFETIME == 0 { 0 } else { LIFETIME_SIZE }
    }

    /// From the item's start to its client flags (or to what is there if it has none), bytes.
    #[inline]
    pub const fn client_flags_offset(self) -> usize {
        self.cas_offset() + if self.0 & flag::CAS == 0 { 0 } else { 8 }
    }

    /// From the item's start to its record (or to its key if it has none), bytes.
    pub const fn record_offset(self) -> usize {
        self.client_flags_offset() + if self.0 & flag::CLIENT_FLAGS == 0 { 0 } else { 4 }
    }

    /// From the item's start to its key, bytes.
    #[inline(always)]
    pub fn key_offset(self) -> usize {
        HEADER_SIZE + optional_size(self.0)
    }

    /// From the item's start to its value, bytes.
    #[inline(always)]
    pub fn value_offset(self) -> usize {
        self.key_offset() + self.key_len()
    }

    /// Length of the whole item, padding included, bytes.
    #[inline(always)]
    pub fn size(self) -> usize {
        padded(self.value_offset() + self.value_len())
    }

    /// The header, if an item with `room` bytes can have it.
    #[inline(always)]
    pub fn validate(self, room: usize) -> Option<Self> {
        let key = self.key_len();
        let sane = (1..=KEY_LEN_MAX).contains(&key) && self.size() <= room;
        sane.then_some(self)
    }
}

/// Bytes of the optional fields, by the flags and marks that announce them.
#[allow(clippy::indexing_slicing, reason = "below the length, at compile time")]
const OPTIONAL_SIZES: [usize; 64] = {
    let mut sizes = [0; 64];
    let mut flags = 0;
    while flags < sizes.len() {
        sizes[flags] = 4 * (flags & 1) + 8 * (flags >> 1 & 1) + LIFETIME_SIZE * (flags >> 3 & 1) + RECORD_SIZE * (flags >> 5 & 1);
        flags += 1;
    }
    sizes
};

/// Bytes of the optional fields that a header announces.
#[inline(always)]
fn optional_size(header: u64) -> usize {
    let flags = super::index(header >> OPTIONAL_SHIFT) % OPTIONAL_SIZES.len();
    OPTIONAL_SIZES.get(flags).copied().unwrap_or_default()
}

const _: () = assert!(flag::CLIENT_FLAGS == 1 << OPTIONAL_SHIFT && flag::CAS == 2 << OPTIONAL_SHIFT);
const _: () = assert!(flag::LIFETIME == 8 << OPTIONAL_SHIFT && flag::RECORD == 32 << OPTIONAL_SHIFT);

#[inline]
fn lifetime_flag(flags: u64, expiry: u32) -> u64 {
    if expiry != 0 || flags & flag::MARKS != 0 {
        flag::LIFETIME
    } else {
        0
    }
}

#[inline]
fn low(header: u64) -> u32 {
    (header & 0xFFFF_FFFF) as u32
}

/// Bytes of an item that ends after so many, padding included.
#[inline(always)]
pub(crate) fn padded(len: usize) -> usize {
    len.next_multiple_of(ALIGNMENT)
}

/// Bytes of an item with these lengths. `flags`: of [`flag::GIVEN`].
#[inline(always)]
pub fn size(key_len: usize, value_len: usize, flags: u64, expiry: u32) -> usize {
    padded(HEADER_SIZE + optional_size(flags | lifetime_flag(flags, expiry)) + key_len + value_len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_come_back() {
        let h = Header::new(250, INLINE_VALUE_MAX, flag::CAS | flag::OPAQUE_KEY, EXPIRY_MAX);
        assert_eq!(
            (h.key_len(), h.value_len(), h.given(), h.expiry()),
            (250, INLINE_VALUE_MAX, flag::CAS | flag::OPAQUE_KEY, EXPIRY_MAX)
        );
        assert_eq!((h.cas_offset(), h.value_offset()), (8, 4 + 4 + 8 + 250));
        let dead = Header::of(h.dead_word(), || (h.0 >> 32) as u32);
        assert!(!h.has(flag::DEAD) && dead.has(flag::DEAD) && dead.size() == h.size());
        assert_eq!(h.words(), (low(h.0), Some((h.0 >> 32) as u32)));
    }

    #[test]
    fn a_mark_takes_a_lifetime() {
        let h = Header::new(16, 64, flag::CLIENT_FLAGS, 0);
        assert_eq!(
            (h.0 >> 32, h.expiry(), h.given(), h.key_offset()),
            (0, 0, flag::CLIENT_FLAGS, 8)
        );
        let stale = h.with(flag::STALE | flag::CAS);
        assert_eq!((stale.expiry(), stale.key_offset(), stale.key_len()), (0, 20, 16));
        assert!(stale.has(flag::STALE) && !stale.has(flag::RECORD) && stale.has(flag::CLIENT_FLAGS));
    }

    #[test]
    fn a_record_comes_back() {
        let h = Header::new(16, 64, flag::RECORD | flag::CLIENT_FLAGS | flag::CAS, EXPIRED);
        assert_eq!(
            (h.cas_offset(), h.client_flags_offset(), h.record_offset(), h.key_offset()),
            (8, 16, 20, 36)
        );
        assert_eq!(Header::of(h.words().0, || h.words().1.unwrap()).size(), h.size());
        let record = Record {
            holder: u64::MAX - 1,
            until: 77,
            cost_ms: u32::MAX,
        };
        let words = record.to_bytes();
        let word = |at: usize| u64::from_le_bytes(words[at..at + 8].try_into().unwrap());
        assert_eq!(Record::of([word(0), word(8)]), record);
        assert_eq!(
            (
                record.moved(70, 90).until,
                record.moved(70, 0).until,
                Record::default().moved(70, 90).until
            ),
            (97, 0, 0)
        );
    }

    #[test]
    fn sizes_agree() {
        for flags in [0, flag::CLIENT_FLAGS, flag::CAS, flag::STALE, flag::RECORD, flag::GIVEN] {
            for expiry in [0, 1, EXPIRY_MAX] {
                for value in [0, 1, 9, 100_000] {
                    assert_eq!(size(7, value, flags, expiry), Header::new(7, value, flags, expiry).size());
                }
                let large = Header::large(7, flags, expiry);
                assert_eq!(size(7, LARGE_BODY_SIZE, flags, expiry), large.size());
                assert!(large.is_large() && large.with(flag::CAS).is_large());
            }
        }
        assert_eq!((size(1, 0, 0, 0), size(16, 64, 0, 0)), (SIZE_MIN, 84));
    }

    #[test]
    fn a_header_that_cannot_be_is_refused() {
        assert!(Header::new(16, 64, 0, 0).validate(84).is_some());
        assert!(Header::new(16, 64, 0, 0).validate(83).is_none());
        assert!(Header(u64::from(u32::MAX)).validate(1 << 20).is_none(), "key too long");
        assert!(Header(0).validate(1 << 20).is_none(), "no key");
        assert!(Header(251 << 20).validate(1 << 20).is_none(), "key too long");
    }
}
