//! Which stream of the log a new item joins: its pool, the class of its time to live, and for how long it is expected to stand.
//!
//! Items of a stream share segments, so that what lives about as long dies together.

use crate::atomics::Relaxed;
use crate::hash::Key;
use crate::layout::segment::{ADMISSION, MAIN, SegmentHeader, Standing, State, Stream};
use crate::layout::stats::Counter;
use crate::log::items::Draft;
use crate::region::Region;
use crate::session::Session;

/// Upper bounds of the TTL classes, seconds left; class 0 is everything longer, and never. An expired item waits for the
/// last one of its segment, so for at most four times its own time.
pub(crate) const CLASS_TTL_S: [u32; 7] = [60, 240, 960, 3_840, 15_360, 61_440, 245_760];
/// The same in a region of fewer segments than that: open segments must stay a small part.
pub(crate) const CLASS_TTL_FEW_S: [u32; 1] = [240];
const SEGMENTS_FOR_ALL_CLASSES: usize = 256;
/// Below this many segments everything is in one pool, and of one standing but for what compaction copies.
const SEGMENTS_FOR_POOLS: usize = 64;

/// An item stood for long if meanwhile one in so many of the region's segments was opened. In a simulated region that is half full of items
/// drawn by zipf's law, with anything from a quarter to a sixteenth about as much is copied.
const SETTLED_PART: u64 = 8;
/// It stood briefly if the log went on by less than this since: what a processor's cache holds of it. At most one in so many segments.
const BRIEF_LOG: u64 = 4 << 20;
const BRIEF_PART: u64 = 32;

impl Region {
    /// How long what replaces an item of this segment is expected to stand: as the item has.
    #[inline(always)]
    fn standing(&self, segment: &SegmentHeader) -> Standing {
        let (age, segments) = (self.age(segment), self.allowed() as u64);
        if age >= segments / SETTLED_PART {
            Standing::Settled
        } else if age < (segments / BRIEF_PART).min(BRIEF_LOG >> self.layout.shape.segment_size.trailing_zeros()) {
            Standing::Brief
        } else {
            Standing::Plain
        }
    }

    /// Whether there are segments enough for two pools.
    pub(crate) fn has_pools(&self) -> bool {
        self.allowed() >= SEGMENTS_FOR_POOLS
    }
}

impl Session {
    /// Where a new item goes: to the pool of the one that it replaces.
    #[inline(always)]
    pub(super) fn stream(&self, key: &Key<'_>, draft: &Draft<'_>, replaced: Option<usize>, now: u32) -> Stream {
        let class = self.class(draft.expiry, now);
        let (pool, standing) = match replaced {
            _ if !self.region.has_pools() => (ADMISSION, Standing::Plain),
            None => (self.pool_of_new(key.hash), Standing::Plain),
            Some(segment) => {
                let header = self.region.header(segment);
                let standing = if class == 0 {
                    self.region.standing(header)
                } else {
                    Standing::Plain
                };
                (State(header.state.load(Relaxed)).pool(), standing)
            }
        };
        Stream { pool, class, standing }
    }

    /// The pool of an item of a new key: the main one if it was evicted lately.
    #[inline(never)]
    fn pool_of_new(&self, hash: u64) -> usize {
        if self.region.take_ghost(hash) {
            self.count(Counter::ghost_hits, 1);
            MAIN
        } else {
            ADMISSION
        }
    }

    /// The TTL class of an expiry.
    #[inline(always)]
    pub(super) fn class(&self, expiry: u32, now: u32) -> usize {
        if expiry == 0 {
            0
        } else {
            self.class_of_ttl(expiry.saturating_sub(now))
        }
    }

    #[inline(never)]
    fn class_of_ttl(&self, ttl: u32) -> usize {
        let bounds: &[u32] = if self.region.allowed() < SEGMENTS_FOR_ALL_CLASSES {
            &CLASS_TTL_FEW_S
        } else {
            &CLASS_TTL_S
        };
        bounds.iter().position(|most| ttl <= *most).map_or(0, |i| i + 1)
    }
}
