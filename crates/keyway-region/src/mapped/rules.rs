//! What a change has to heed in this region, beyond the change itself: read once for an operation.

use crate::layout::slot::{DIRTY_BIT, Slot};
use crate::mapped::Mapped;

/// The rules of a region for one operation. `PLAIN`: cache mode, no checksums, and the session's changes are not counted. Then
/// all of this is known when the program is compiled, and no code for the rest remains.
#[derive(Clone, Copy)]
pub(crate) struct Rules<const PLAIN: bool> {
    is_durable: bool,
    has_checksums: bool,
}

impl Rules<true> {
    /// Of a region without any ([`Mapped::is_plain`](crate::mapped::Mapped::is_plain)).
    pub const PLAIN: Self = Self {
        is_durable: false,
        has_checksums: false,
    };
}

impl Rules<false> {
    /// Of this region.
    pub fn of(mapped: &Mapped) -> Self {
        Self {
            is_durable: mapped.is_durable(),
            has_checksums: mapped.checksum_size() != 0,
        }
    }
}

impl<const PLAIN: bool> Rules<PLAIN> {
    /// These rules as values, for code that works in any region.
    #[inline(always)]
    pub const fn general(self) -> Rules<false> {
        Rules {
            is_durable: self.is_durable(),
            has_checksums: self.has_checksums(),
        }
    }

    /// Whether every acknowledged change survives a power failure.
    #[inline(always)]
    pub const fn is_durable(self) -> bool {
        !PLAIN && self.is_durable
    }

    /// Whether items carry checksums.
    #[inline(always)]
    pub const fn has_checksums(self) -> bool {
        !PLAIN && self.has_checksums
    }

    /// The word with the bit that a change adds until it is persistent: none in cache mode.
    #[inline(always)]
    pub const fn dirty(self, word: Slot) -> Slot {
        Slot(word.0 | if self.is_durable() { DIRTY_BIT } else { 0 })
    }
}
