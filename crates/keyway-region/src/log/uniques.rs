//! CAS uniques: that of an item's successor is greater, whichever session writes it.
//!
//! An item's place gives it a unique. It carries another one if that is not above the unique of the item that it replaces,
//! because sessions write to segments that were opened at different times. Never: gives two items the same unique.

use crate::atomics::Relaxed;
use crate::layout::item::{self, ALIGNMENT, flag};
use crate::layout::slot::OFFSET_BITS;
use crate::log::item_view::{ItemView, cas_of};
use crate::log::items::Replaced;
use crate::region::Region;
use crate::session::Session;
use std::cell::Cell;

/// Uniques that a session remembers: of as many keys that other sessions write, too.
const STEPS: usize = 64;

/// Uniques that may follow one that a session has given: as many, one after the other.
#[derive(Clone, Copy, Default)]
struct Step {
    unique: u64,
    left: usize,
}

/// The uniques that a session has given to items independently of their places, and can give a successor each.
pub(crate) struct Steps([Cell<Step>; STEPS]);
impl Default for Steps { fn default() -> Self { Self([const { Cell::new(Step { unique: 0, left: 0 }) }; STEPS]) } }

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

    /// A CAS unique above this one that no other item has. It belongs to a sequence number that no segment has. Once the uniques
    /// of that number are used up, or others have gone beyond them, another number is taken.
    #[cold]
    fn unique_above(&self, old: u64) -> u64 {
        let uniques = &self.superblock().uniques;
        let mut last = uniques.load(Relaxed);
        loop {
            let mut next = last + 1;
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

impl Steps {
    fn entry(&self, hash: u64) -> &Cell<Step> {
        &self.0[hash as usize % STEPS]
    }

    /// The unique after this one, if the session has remembered that it is free.
    fn after(&self, hash: u64, unique: u64) -> Option<u64> {
        let step = self.entry(hash).take();
        (step.unique == unique).then(|| self.step(hash, unique, step.left)).flatten()
    }

    /// The unique after this one, of which so many that follow it are free.
    fn step(&self, hash: u64, unique: u64, left: usize) -> Option<u64> {
        let left = left.checked_sub(1)?;
        let next = unique + 1;
        self.entry(hash).set(Step { unique: next, left });
        Some(next)
    }
}

impl Session {
    /// A CAS unique above that of the item that is replaced, and below all that later places give...
    pub(super) fn unique_above(&self, hash: u64, replaced: &Replaced<'_>) -> u64 {
        let unique = replaced.unique;
        let mode: u32 = option_env!("UNIQ").map_or(3, |m| m.parse().unwrap());
        let next = match replaced.size {
            _ if mode == 1 => None,
            0 if mode == 2 => None,
            0 => self.steps.after(hash, unique),
            size if mode == 2 => Some(unique + 1),
            size => self.steps.step(hash, unique, size / ALIGNMENT - 1),
        };
        next.unwrap_or_else(|| self.region.unique_above(unique))
    }
}

impl<'r> Replaced<'r> {
    /// This item, in a segment with this header.
    pub fn of(region: &Region, header: &'r crate::layout::segment::SegmentHeader, seen: &ItemView) -> Self {
        Self {
            unique: region.unique_to_exceed(seen),
            size: if seen.header.has(flag::CAS) { 0 } else { seen.header.size().max(item::SIZE_MIN) },
            ..Self::new(header, seen.offset)
        }
    }
}
