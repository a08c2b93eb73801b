//! CAS uniques: an item has a greater one than the item that it replaces, whichever session writes it, and no two items have the same.
//!
//! An item's place gives it a unique. Sessions write to segments that were opened at different times, so the unique of its place may
//! be too low. Then the item carries one:
//!
//! - The one that follows the unique of the item that it replaces, if that was given by its place. No item begins at the other words
//!   of that place, so no other item has the numbers of those words.
//! - If that one carried its unique, too, and this session gave it in this way: the next one, as long as there are other words. A
//!   session that alternates with another one on the same keys needs no word that both write, and the other one's next place gives
//!   a greater unique than all of these.
//! - Otherwise one of a sequence number that no segment has.

use crate::atomics::Relaxed;
use crate::layout::item::{ALIGNMENT, flag};
use crate::layout::segment::SegmentHeader;
use crate::layout::slot::OFFSET_BITS;
use crate::log::item_view::{ItemView, cas_of};
use crate::log::items::{Replaced, Written};
use crate::region::Region;
use crate::session::Session;
use std::cell::Cell;

/// Keys for which a session remembers the unique that it gave. Where two sessions set items drawn by a zipfian (0.99), one in a
/// hundred sets needs a unique of a sequence number with 64 of them, and one in eight with 16 found by the unique.
const STEPS: usize = 64;

/// A unique that was given, and how many that follow it no item has.
#[derive(Clone, Copy, Default)]
struct Step {
    unique: u64,
    left: usize,
}

/// The uniques that a session gave last which followed those of replaced items, by the keys' hashes.
pub(crate) struct Steps([Cell<Step>; STEPS]);

impl Default for Steps {
    fn default() -> Self {
        Self([const { Cell::new(Step { unique: 0, left: 0 }) }; STEPS])
    }
}

impl Steps {
    fn of_key(&self, hash: u64) -> Option<&Cell<Step>> {
        self.0.get(crate::layout::index(hash % STEPS as u64))
    }

    /// The unique that follows this one, which this session gave to an item of this key. At most once.
    fn next(&self, hash: u64, unique: u64) -> Option<u64> {
        let step = self.of_key(hash)?.take();
        (step.unique == unique).then(|| self.first(hash, unique, step.left)).flatten()
    }

    /// The unique that follows this one, if no item has the `left` that follow it.
    fn first(&self, hash: u64, unique: u64, left: usize) -> Option<u64> {
        let left = left.checked_sub(1)?;
        let unique = unique.wrapping_add(1);
        self.of_key(hash)?.set(Step { unique, left });
        Some(unique)
    }
}

impl<'r> Replaced<'r> {
    /// An item that the caller holds, in a segment with this header.
    pub(crate) fn held(region: &Region, header: &'r SegmentHeader, seen: &ItemView) -> Self {
        let words = seen.header.size() / ALIGNMENT;
        Self {
            unique: region.unique_to_exceed(seen),
            spare: if seen.header.has(flag::CAS) {
                0
            } else {
                words.saturating_sub(1)
            },
            ..Self::new(header, seen.offset)
        }
    }
}

impl Region {
    /// The value that the CAS unique of an item's successor must exceed. 0 if a client chose the item's unique, and so high that
    /// no place can have given it: such a unique is not exceeded.
    #[inline(never)]
    pub(crate) fn unique_to_exceed(&self, seen: &ItemView) -> u64 {
        let unique = self.cas_unique(seen);
        if unique < cas_of(self.superblock().sequence.load(Relaxed), 0) {
            unique
        } else {
            0
        }
    }

    /// Whether a written item has the CAS unique that its place gives it.
    pub(crate) fn is_unique_of_place(&self, written: &Written) -> bool {
        let sequence = self.header(written.word.segment()).sequence.load(Relaxed);
        written.cas == cas_of(sequence, written.word.offset())
    }

    /// A CAS unique above this one that no other item has. It belongs to a sequence number that no segment has. Once the uniques
    /// of that number are used up, or others have gone beyond them, another number is taken.
    #[cold]
    fn unique_above(&self, old: u64) -> u64 {
        let uniques = &self.superblock().uniques;
        let mut last = uniques.load(Relaxed);
        loop {
            // Another process may have written any number there.
            let mut next = last.wrapping_add(1);
            if next <= old || next.trailing_zeros() >= OFFSET_BITS {
                next = cas_of(self.next_sequence(), ALIGNMENT);
            }
            match uniques.compare_exchange(last, next, Relaxed, Relaxed) {
                Ok(_) => return next,
                Err(now) => last = now,
            }
        }
    }
}

impl Session {
    /// A CAS unique for an item of this key, whose place gives it none above that of the item that it replaces.
    pub(super) fn unique_over(&self, hash: u64, replaced: &Replaced<'_>) -> u64 {
        let next = match replaced.spare {
            0 => self.steps.next(hash, replaced.unique),
            spare => self.steps.first(hash, replaced.unique, spare),
        };
        next.unwrap_or_else(|| self.region.unique_above(replaced.unique))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_uniques_follow_as_no_item_has() {
        let steps = Steps::default();
        assert_eq!(steps.first(7, 100, 3), Some(101));
        assert_eq!(steps.next(7, 101), Some(102));
        assert_eq!(steps.next(7, 102), Some(103));
        assert_eq!(steps.next(7, 103), None);
        assert_eq!(steps.first(7, 100, 0), None);
    }

    #[test]
    fn a_unique_is_followed_once_and_only_where_it_was_given() {
        let steps = Steps::default();
        assert_eq!(steps.next(7, 0), None);
        assert_eq!(steps.first(7, 100, 9), Some(101));
        assert_eq!(steps.next(8, 101), None, "another key");
        assert_eq!(steps.next(7, 101), Some(102));
        assert_eq!(steps.next(7, 101), None);
        assert_eq!(steps.next(7, 102), None, "forgotten at the last question");
        assert_eq!(steps.first(7, 100, 9), Some(101));
        assert_eq!(steps.first(7 + STEPS as u64, 500, 9), Some(501));
        assert_eq!(steps.next(7, 101), None, "another key took the place");
    }
}
