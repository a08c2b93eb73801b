//! An item: a key with its value, immutable once published. See `docs/region.md`.
//!
//! ```text
//! header 8 | CAS unique 8, if flagged | client flags 4, if flagged | key | value, or a large item's body | pad to 8
//!
//! header:  63..35 expiry (29) | 34..28 flags (7) | 27..20 key length (8) | 19..0 value length (20)
//! large body (the value length says 24):  value length 8 | first link of the chain 8 | segments in the chain 8
//! ```
//!
//! Expiry is in seconds on the region's clock, 0 for never. A header is bytes from shared memory: [`Header::validate`] first.

use crate::verbs::KEY_LEN_MAX;

/// Item flag bits.
pub mod flag {
    /// 4 bytes of client flags follow
    pub const CLIENT_FLAGS: u64 = 1;
    /// 8 bytes of CAS unique follow: a relocated or touched item, or one whose CAS unique the client chose
    pub const CAS: u64 = 2;
    /// no slot names it any more: the one change that a published item sees, made by whoever took its word out of the index,
    /// under the intent that keeps the segment from being recycled meanwhile
    pub const DEAD: u64 = 4;
    /// the value is in segments of its own
    pub const LARGE: u64 = 8;
    /// marked stale (meta flag X)
    pub const STALE: u64 = 16;
    /// somebody won the right to recache it (meta flag Z)
    pub const WIN_SENT: u64 = 32;
    /// the key came in base64
    pub const BINARY_KEY: u64 = 64;
}

/// Bytes of the header.
pub const HEADER_SIZE: usize = 8;
/// Bytes of a large item's body.
pub const LARGE_BODY_SIZE: usize = 24;
/// Latest expiry that fits, seconds on the region's clock (17 years); later ones are cut to it.
pub const EXPIRY_MAX: u32 = (1 << 29) - 1;
/// Longest value that the header can say, bytes.
pub const INLINE_VALUE_MAX: usize = (1 << 20) - 1;

/// An item's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header(pub u64);

impl Header {
    /// Puts a header together; arguments within their bounds.
    pub fn new(key_len: usize, value_len: usize, flags: u64, expiry: u32) -> Self {
        debug_assert!(
            (1..=KEY_LEN_MAX).contains(&key_len) && value_len <= INLINE_VALUE_MAX && flags < 128 && expiry <= EXPIRY_MAX
        );
        Self(u64::from(expiry) << 35 | flags << 28 | (key_len as u64) << 20 | value_len as u64)
    }

    /// Length of the key, bytes.
    #[inline]
    pub fn key_len(self) -> usize {
        (self.0 >> 20 & 0xFF) as usize
    }

    /// Length of what follows the key, bytes.
    #[inline]
    pub fn value_len(self) -> usize {
        (self.0 & 0xF_FFFF) as usize
    }

    /// The flag bits.
    #[inline]
    pub fn flags(self) -> u64 {
        self.0 >> 28 & 0x7F
    }

    /// Whether a flag is set.
    #[inline]
    pub fn has(self, flag: u64) -> bool {
        self.flags() & flag != 0
    }

    /// The same, of an item that no slot names any more.
    #[inline]
    pub fn dead(self) -> Self {
        Self(self.0 | flag::DEAD << 28)
    }

    /// Seconds on the region's clock, 0 for never.
    #[inline]
    pub fn expiry(self) -> u32 {
        (self.0 >> 35) as u32
    }

    /// Whether the item's time is over.
    #[inline]
    pub fn is_expired(self, now: u32) -> bool {
        let expiry = self.expiry();
        expiry != 0 && expiry <= now
    }

    /// From the item's start to its key, bytes.
    #[inline]
    pub fn key_offset(self) -> usize {
        HEADER_SIZE + optional_size(self.flags())
    }

    /// From the item's start to its value, bytes.
    #[inline]
    pub fn value_offset(self) -> usize {
        self.key_offset() + self.key_len()
    }

    /// From the item's start to its client flags, bytes.
    #[inline]
    pub fn client_flags_offset(self) -> usize {
        HEADER_SIZE + if self.has(flag::CAS) { 8 } else { 0 }
    }

    /// All of the item, padding included, bytes.
    #[inline]
    pub fn size(self) -> usize {
        (self.value_offset() + self.value_len()).next_multiple_of(8)
    }

    /// The header, if it can be one of an item that has `room` bytes.
    #[inline]
    pub fn validate(self, room: usize) -> Option<Self> {
        let key = self.key_len();
        let sane = (1..=KEY_LEN_MAX).contains(&key) && self.size() <= room;
        let large = !self.has(flag::LARGE) || self.value_len() == LARGE_BODY_SIZE;
        (sane && large).then_some(self)
    }
}

/// Bytes of the optional fields that these flags announce.
#[inline]
pub fn optional_size(flags: u64) -> usize {
    super::index(4 * (flags & flag::CLIENT_FLAGS) + 4 * (flags & flag::CAS))
}

const _: () = assert!(flag::CLIENT_FLAGS == 1 && flag::CAS == 2);

/// Bytes of an item with these lengths.
#[inline]
pub fn size(key_len: usize, value_len: usize, flags: u64) -> usize {
    (HEADER_SIZE + optional_size(flags) + key_len + value_len).next_multiple_of(8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_come_back() {
        let h = Header::new(250, 0xF_FFFF, flag::CAS | flag::BINARY_KEY, EXPIRY_MAX);
        assert_eq!(
            (h.key_len(), h.value_len(), h.flags(), h.expiry()),
            (250, 0xF_FFFF, 66, EXPIRY_MAX)
        );
        assert_eq!(h.value_offset(), 8 + 8 + 250);
    }

    #[test]
    fn a_header_that_cannot_be_is_refused() {
        assert!(Header::new(16, 64, 0, 0).validate(88).is_some());
        assert!(Header::new(16, 64, 0, 0).validate(87).is_none());
        assert!(Header(0).validate(1 << 20).is_none(), "no key");
        assert!(Header(251 << 20).validate(1 << 20).is_none(), "key too long");
        assert!(
            Header::new(16, 64, flag::LARGE, 0).validate(1 << 20).is_none(),
            "a large body has one size"
        );
    }
}
