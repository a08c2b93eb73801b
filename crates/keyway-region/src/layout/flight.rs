//! Flights: who computes a key's value, where callers wait for it, and who computes under a limit.
//!
//! ```text
//! holder: 63..48 0 | 47..16 incarnation of the thread slot | 15..0 thread slot; 0 for nobody; all ones: a client of a server
//! word:   31..1 count of ends | 0 somebody waits
//! ```

use super::segment::Owner;
use crate::atomics::{AtomicU32, AtomicU64};
use crate::memory::Shared;

/// Words on which callers wait. A flight's word follows from its key's hash; flights that share one wake each other.
pub const WORDS: usize = 256;
/// Prefixes whose computations are limited at a time.
pub const ROWS: usize = 14;
/// Computations that one prefix can have at a time: the highest limit.
pub const PLACES: usize = 63;

/// In a word: somebody waits.
pub const WAITED_FOR: u32 = 1;
/// What is added to a word when something ends.
pub const ENDED: u32 = 2;

/// Who computes a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holder(pub u64);

impl Holder {
    /// Nobody.
    pub const NONE: Self = Self(0);
    /// A client of a server, which has won the right to recache (protocol.txt, "Meta Get", the answer W): it is known to no slot.
    pub const CLIENT: Self = Self(u64::MAX);

    /// A thread, by its slot and incarnation.
    pub const fn of(owner: Owner) -> Self {
        Self((owner.incarnation as u64) << 16 | owner.slot as u64)
    }

    /// The thread, if it is one.
    pub fn owner(self) -> Option<Owner> {
        let incarnation = u32::try_from(self.0 >> 16).ok().filter(|incarnation| *incarnation != 0)?;
        Some(Owner {
            slot: u16::try_from(self.0 & 0xFFFF).ok()?,
            incarnation,
        })
    }
}

/// The limit of one prefix.
#[repr(C, align(64))]
pub struct LimitRow {
    /// hash of the prefix; 0: none
    pub prefix: AtomicU64,
    /// who computes: a [`Holder`] each, 0 for none
    pub places: [AtomicU64; PLACES],
}

super::fields!(LimitRow { prefix, places });
/// Bytes of all words and rows.
pub const SIZE: usize = WORDS * size_of::<AtomicU32>() + ROWS * size_of::<LimitRow>();

// SAFETY: `repr(C)`, nothing but atomics.
#[allow(unsafe_code, reason = "the type is nothing but atomics")]
unsafe impl Shared for LimitRow {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_keeps_its_thread() {
        for owner in [(0, 1), (u16::MAX, u32::MAX), (7, 9)].map(|(slot, incarnation)| Owner { slot, incarnation }) {
            assert_eq!(Holder::of(owner).owner(), Some(owner));
        }
        assert_eq!((Holder::NONE.owner(), Holder::CLIENT.owner()), (None, None));
    }
}
