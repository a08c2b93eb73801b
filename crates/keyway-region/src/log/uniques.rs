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
//! - Otherwise the next one that belongs to no segment.
//!
//! All are numbers of one counter. A segment that is opened takes one for each of its words, so a region that writes small items takes some
//! twenty for each. They stay below 2^53, which is as far as a double counts, for 20 years with ten million changes a second, because
//! a segment takes none as long as the counter is ahead of what it may be at this age: then each new item carries one of its own.

use crate::atomics::Relaxed;
use crate::clock::{START_S, seconds_of};
use crate::layout::item::{ALIGNMENT, flag};
use crate::layout::segment::SegmentHeader;
use crate::log::Items;
use crate::log::item_view::{ItemView, cas_of};
use crate::log::items::{Replaced, Written};
use crate::mapped::Mapped;
use std::cell::Cell;
use std::sync::Arc;

/// Keys for which a session remembers the unique that it gave. Where two sessions set items drawn by a zipfian (0.99), one in a
/// hundred sets needs a unique of a sequence number with 64 of them, and one in eight with 16 found by the unique.
const STEPS: usize = 64;

/// Up to this number segments take uniques at any rate: 140 TB of items.
const UNIQUES_AT_ONCE: u64 = 1 << 45;
/// And beyond it at this rate: 56 MB of items a second. More than one for each of ten million changes a second and one for each segment that
/// is opened for them, so that items that carry theirs never take more than this.
const UNIQUES_PER_S: u64 = 14_000_000;
/// 20 years in seconds.
const LIFE_S: u64 = 20 * 365 * 86_400 + 5 * 86_400;
const _: () = assert!(UNIQUES_AT_ONCE + UNIQUES_PER_S * LIFE_S < 1 << 53 && UNIQUES_PER_S > 10_000_000);
/// Uniques that are left out after a power failure: more than items can have carried since the last segment was opened, whose header is
/// persistent. In between they can only fill the open segments: up to four for each of some thousand threads, with at most 2^16 items each.
pub(crate) const UNIQUES_LOST: u64 = 1 << 32;

/// A unique that was given, and how many that follow it no item has.
#[derive(Clone, Copy, Default)]
struct Given {
    unique: u64,
    left: usize,
}

/// The uniques that a session gave last which followed those of replaced items, by the keys' hashes.
pub(crate) struct Steps([Cell<Given>; STEPS]);

impl Default for Steps {
    fn default() -> Self {
        Self([const { Cell::new(Given { unique: 0, left: 0 }) }; STEPS])
    }
}

impl Steps {
    fn of_key(&self, hash: u64) -> Option<&Cell<Given>> {
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
        self.of_key(hash)?.set(Given { unique, left });
        Some(unique)
    }
}

impl<'r> Replaced<'r> {
    /// An item that the caller holds, in a segment with this header.
    pub(crate) fn held(uniques: &Uniques, header: &'r SegmentHeader, seen: &ItemView) -> Self {
        let words = seen.header.size() / ALIGNMENT;
        Self {
            unique: uniques.unique_to_exceed(seen),
            spare: if seen.header.has(flag::CAS) {
                0
            } else {
                words.saturating_sub(1)
            },
            ..Self::new(header, seen.offset)
        }
    }
}

/// The CAS uniques that the region gives.
#[derive(Clone)]
pub struct Uniques {
    mapped: Arc<Mapped>,
    items: Items,
}

impl Uniques {
    pub(crate) fn new(mapped: &Arc<Mapped>, items: &Items) -> Self {
        Self {
            mapped: Arc::clone(mapped),
            items: items.clone(),
        }
    }

    /// The value that the CAS unique of an item's successor must exceed. 0 if a client chose the item's unique, and so high that
    /// it was not given yet: such a unique is not exceeded.
    #[inline(never)]
    pub(crate) fn unique_to_exceed(&self, seen: &ItemView) -> u64 {
        let unique = self.items.cas_unique(seen);
        if unique < self.mapped.superblock().sequence.load(Relaxed) {
            unique
        } else {
            0
        }
    }

    /// Whether a written item has the CAS unique that its place gives it.
    pub(crate) fn is_unique_of_place(&self, written: &Written) -> bool {
        let sequence = self.mapped.header(written.word.segment()).sequence.load(Relaxed);
        written.cas == cas_of(sequence, written.word.offset())
    }

    /// A CAS unique that no other item has, above all that were given.
    #[cold]
    pub(super) fn draw_unique(&self) -> u64 {
        self.mapped.superblock().sequence.fetch_add(1, Relaxed)
    }

    /// The sequence number of a segment that is opened now, and whether its items must carry their uniques.
    pub(crate) fn take_uniques(&self, now: u32) -> (u64, bool) {
        let next = &self.mapped.superblock().sequence;
        let carries = next.load(Relaxed) > uniques_at(seconds_of(now).saturating_sub(START_S));
        let taken = if carries { 1 } else { self.uniques_of_segment() };
        (next.fetch_add(taken, Relaxed), carries)
    }

    /// Uniques that belong to the words of a segment.
    pub(crate) fn uniques_of_segment(&self) -> u64 {
        1 << self.mapped.words_shift()
    }
}

/// Up to where segments may take uniques in a region of this age.
fn uniques_at(age_s: u64) -> u64 {
    UNIQUES_AT_ONCE.saturating_add(age_s.saturating_mul(UNIQUES_PER_S))
}

impl Steps {
    /// A CAS unique for an item of this key, whose place gives it none above that of the item that it replaces.
    pub(super) fn unique_over(&self, uniques: &Uniques, hash: u64, replaced: &Replaced<'_>) -> u64 {
        let next = match replaced.spare {
            0 => self.next(hash, replaced.unique),
            spare => self.first(hash, replaced.unique, spare),
        };
        next.unwrap_or_else(|| uniques.draw_unique())
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
