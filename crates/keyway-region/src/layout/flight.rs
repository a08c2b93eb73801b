//! Flights: who computes a key's value, where callers wait for it, and who computes under a limit.
//!
//! ```text
//! holder: 63..50 0 | 49 the item has no value yet | 48 by a get that won | 47..16 incarnation of the thread slot | 15..0 thread slot;
//!         0 for nobody
//! word:   31..1 count of ends | 0 a caller waits (of a row's word this bit means nothing: each place that is given back wakes a caller)
//! ```

use super::segment::Owner;
use crate::atomics::{AtomicU32, AtomicU64};
use crate::memory::Shared;

/// Words on which callers wait for flights. A flight's word follows from its key's hash; flights that share one wake each other.
pub const WORDS: usize = 255 - ROWS;
/// The first of the words on which callers wait for a place under a limit: each row has one.
pub const ROW_WORDS: usize = WORDS;
/// The last word: a server's thread that waits on it is woken with each flight that was waited for.
pub const ANY: usize = WORDS + ROWS;
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
    const WON: u64 = 1 << 48;
    const EMPTY: u64 = 1 << 49;

    /// A thread, by its slot and incarnation.
    pub const fn of(owner: Owner) -> Self {
        Self((owner.incarnation as u64) << 16 | owner.slot as u64)
    }

    /// This thread, by a get that won the right to recache (protocol.txt, "Meta Get", the answer W).
    pub const fn by_get(self) -> Self {
        Self(self.0 | Self::WON)
    }

    /// Whether it is by such a get. Who stores under its key ends that, and who only changes the value does not.
    pub const fn is_by_get(self) -> bool {
        self.0 & Self::WON != 0
    }

    /// This holder, in an item that has no value yet, but that all verbs see.
    pub const fn of_empty(self) -> Self {
        Self(self.0 | Self::EMPTY)
    }

    /// Whether its item has no value yet.
    pub const fn is_of_empty(self) -> bool {
        self.0 & Self::EMPTY != 0
    }

    /// Whether both are the same flight's, whatever its item has.
    pub const fn is_same(self, other: Self) -> bool {
        (self.0 ^ other.0) & !Self::EMPTY == 0
    }

    /// The thread, if it is one.
    pub fn owner(self) -> Option<Owner> {
        let incarnation = ((self.0 & (Self::WON - 1)) >> 16) as u32;
        if incarnation == 0 {
            return None;
        }
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
/// Bytes of all words.
pub const WORDS_SIZE: usize = (ANY + 1) * size_of::<AtomicU32>();
/// Bytes of all words and rows.
pub const SIZE: usize = WORDS_SIZE + ROWS * size_of::<LimitRow>();

// SAFETY: `repr(C)`, nothing but atomics.
#[allow(unsafe_code, reason = "the type is nothing but atomics")]
unsafe impl Shared for LimitRow {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_keeps_its_thread() {
        for owner in [(0, 1), (u16::MAX, u32::MAX), (7, 9)].map(|(slot, incarnation)| Owner { slot, incarnation }) {
            let holder = Holder::of(owner);
            let all = [holder, holder.by_get(), holder.of_empty(), holder.by_get().of_empty()];
            assert!(all.iter().all(|holder| holder.owner() == Some(owner)));
            assert_eq!(all.map(Holder::is_by_get), [false, true, false, true]);
            assert_eq!(all.map(Holder::is_of_empty), [false, false, true, true]);
            assert!(holder.is_same(holder.of_empty()) && !holder.is_same(holder.by_get()));
        }
        assert_eq!(Holder::NONE.owner(), None);
    }
}
