//! Room `trail`: what operations did to a sample of the keys, for a process that estimates how many misses another size would have.
//!
//! Holds whether the trail is kept, the ring in the region, and the reader of it. What is made of it is not the region's.
//!
//! The sample is spatial: a key is on the trail with all of its operations or with none, by a product of its hash (Waldspurger, Park,
//! Garthwaite, Ahmad: "Efficient MRC construction with SHARDS", FAST 2015). It is kept only while a process reads it, and for some
//! seconds after. A session that keeps it looks at each of its operations as if that were a sample for the hot keys (`hot`), so
//! that one that keeps none has nothing more to ask.
//!
//! - An entry takes the number that follows the last one's. Both of its words have the number's lap, so a reader sees whether they are
//!   those of the entry that it expects.
//! - An entry that a dead thread did not write, and one that was overwritten, is counted as lost.
//!
//! Never: a wait, or a decision of the cache.

use crate::atomics::Relaxed;
use crate::clock::{Clock, seconds_of};
use crate::heap::reserve;
use crate::layout::index;
use crate::layout::trail::{Fate, KEY_BITS, SHIFT_MAX, SPREAD, TrailEntry, TrailHead, TrailWord};
use crate::mapped::Mapped;
use std::sync::Arc;

/// How long the trail is kept after it was asked for, seconds.
const KEPT_S: u64 = 10;
/// Entries that are taken before an unwritten one that a reader has waited for is given up.
const PATIENCE: u64 = 64;

/// The bits of a hash that say whether its key is on the trail, and name it there.
fn mixed(hash: u64) -> u64 {
    (hash ^ hash >> 31).wrapping_mul(SPREAD)
}

/// Whether a key, by its bits in an entry, is among one in 2^shift of the keys.
pub fn is_among(key: u64, shift: u32) -> bool {
    key & ((1 << KEY_BITS) - 1) < 1 << (KEY_BITS - shift.min(SHIFT_MAX))
}

/// A step of the trail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrailStep {
    /// the key, as bits of its hash
    pub key: u64,
    /// what became of it
    pub fate: Fate,
}

/// How far a reader has come.
#[derive(Clone, Copy, Debug, Default)]
pub struct TrailPlace {
    next: u64,
    /// entries that it did not get
    pub lost: u64,
}

/// The ring of what operations did to a sample of the keys, and whether it is kept.
#[derive(Clone)]
pub struct Trail {
    mapped: Arc<Mapped>,
    clock: Clock,
}

impl Trail {
    pub(crate) fn new(mapped: &Arc<Mapped>, clock: &Clock) -> Self {
        Self {
            mapped: Arc::clone(mapped),
            clock: clock.clone(),
        }
    }

    /// Says that the trail of one key in 2^`shift` is to be kept for the next seconds from `now` on. If it is kept already, the share only
    /// gets smaller. Returns the exponent of the share that is kept.
    pub fn keep_trail(&self, shift: u32, now: u32) -> u32 {
        let word = &self.mapped.superblock().trail;
        let old = TrailWord(word.load(Relaxed));
        let shift = match self.kept_trail() {
            Some(kept) => kept.max(shift),
            None => shift,
        };
        let new = TrailWord::new(shift, seconds_of(now).saturating_add(KEPT_S));
        if new != old {
            word.store(new.0, Relaxed);
        }
        new.shift()
    }

    /// The exponent of the share of the keys whose trail is kept. `None`: none is.
    pub fn kept_trail(&self) -> Option<u32> {
        let word = TrailWord(self.mapped.superblock().trail.load(Relaxed));
        if word.0 == 0 {
            return None;
        }
        // The clock is not asked: in a region in use, its last note is about a second old.
        let left = word.until_s().wrapping_sub(u64::from(self.clock.seen().clock_s()));
        (1..=2 * KEPT_S).contains(&left).then(|| word.shift())
    }

    /// The name on the trail of the key with this hash, if one in 2^shift is on it.
    pub fn on_trail(hash: u64, shift: u32) -> Option<u64> {
        let key = mixed(hash) >> (u64::BITS - KEY_BITS);
        is_among(key, shift).then_some(key)
    }

    fn trail_head(&self) -> &TrailHead {
        self.mapped.memory().get(self.mapped.layout().trail)
    }

    fn trail_entry(&self, number: u64) -> (&TrailEntry, u64) {
        let entries = self.mapped.layout().trail_entries as u64;
        let lap = (number / entries + 1) << KEY_BITS;
        (
            self.mapped
                .memory()
                .get(self.mapped.layout().trail_entry(index(number % entries))),
            lap,
        )
    }

    /// A place at the end of the trail.
    pub fn end_of_trail(&self) -> TrailPlace {
        TrailPlace {
            next: self.trail_head().next.load(Relaxed),
            lost: 0,
        }
    }

    /// Appends the steps from a place on, which is then after them.
    pub fn follow_trail(&self, place: &mut TrailPlace, steps: &mut Vec<TrailStep>) {
        let entries = self.mapped.layout().trail_entries as u64;
        let end = self.trail_head().next.load(Relaxed);
        // Other processes may have written anything there: any number only moves the place.
        let ahead = end.wrapping_sub(place.next);
        if ahead > entries {
            place.lost = place.lost.saturating_add(ahead - entries);
            place.next = end.wrapping_sub(entries);
        }
        while place.next != end {
            let (entry, lap) = self.trail_entry(place.next);
            let (key, what) = (entry.key.load(Relaxed), entry.what.load(Relaxed));
            let is_lap = |word: u64| word >> KEY_BITS == lap >> KEY_BITS;
            if is_lap(key) && is_lap(what) {
                reserve(steps, 1);
                steps.push(TrailStep {
                    key: key & ((1 << KEY_BITS) - 1),
                    fate: Fate::of(what),
                });
            } else if end.wrapping_sub(place.next) <= PATIENCE {
                // Its session may be about to write it.
                return;
            } else {
                place.lost = place.lost.saturating_add(1);
            }
            place.next = place.next.wrapping_add(1);
        }
    }

    /// The name of this key on the trail, if the trail is kept and the key is on it.
    pub fn on_kept_trail(&self, hash: u64) -> Option<u64> {
        Self::on_trail(hash, self.kept_trail()?)
    }

    /// Adds to the trail what became of a key that is on it.
    pub fn leave_trail(&self, key: u64, fate: Fate) {
        let (entry, lap) = self.trail_entry(self.trail_head().next.fetch_add(1, Relaxed));
        // A reader that sees the lap in both words, and one word of another entry, has met one that was overwritten by a thread that
        // slept for 65,536 laps.
        entry.key.store(lap | key & ((1 << KEY_BITS) - 1), Relaxed);
        entry.what.store(lap | fate.bits(), Relaxed);
    }
}
