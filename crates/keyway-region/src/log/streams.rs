//! Which stream of the log a new item joins: its pool, the class of its time to live, and its lifetime class.
//!
//! Items of a stream share segments, so that items with similar lifetimes die together.

use crate::atomics::Relaxed;
use crate::layout::segment::{ADMISSION, LifetimeClass, MAIN, State, Stream};
use crate::layout::stats::Counter;
use crate::log::Appender;
use crate::log::items::{Draft, Purpose, Replaced};

/// Upper bounds of the TTL classes, seconds left. Class 0 is everything longer, and "never". An expired item waits for the last
/// item of its segment, so for at most four times its own time.
pub(crate) const CLASS_TTL_S: [u32; 7] = [60, 240, 960, 3_840, 15_360, 61_440, 245_760];
/// Upper bounds of the TTL classes in a region with few segments, seconds left: open segments must stay a small part of it.
pub(crate) const CLASS_TTL_FEW_S: [u32; 1] = [240];
const SEGMENTS_FOR_ALL_CLASSES: usize = 256;
/// With fewer segments than this everything is in one pool, and in one lifetime class, except what compaction copies.
pub(super) const SEGMENTS_FOR_POOLS: usize = 64;

/// An item is long-lived (*settled*) if one in this many of the region's segments was opened since it was written. In a
/// simulated region that is half full of items drawn by Zipf's law, all values from a quarter to a sixteenth copy about as much.
pub(super) const SETTLED_PART: u64 = 8;

impl Appender {
    /// The stream of a new item.
    pub(super) fn stream_for(&self, purpose: &Purpose<'_, '_>, draft: &Draft<'_>) -> Stream {
        let class = self.class(draft.until(), purpose.now);
        self.stream(purpose.key.hash, purpose.replaced.as_ref(), class)
    }

    /// The stream of a new item of this TTL class: in the pool of the item that it replaces.
    #[inline(always)]
    pub(super) fn stream(&self, hash: u64, replaced: Option<&Replaced<'_>>, class: usize) -> Stream {
        let allowed = self.claims().mapped.allowed();
        let (pool, lifetime_class) = match replaced {
            _ if allowed < SEGMENTS_FOR_POOLS => (ADMISSION, LifetimeClass::Plain),
            None => (self.pool_of_new(hash), LifetimeClass::Plain),
            Some(replaced) => {
                let lifetime_class = if class == 0 {
                    self.claims().segments.lifetime_class(replaced, allowed)
                } else {
                    LifetimeClass::Plain
                };
                (State(replaced.header.state.load(Relaxed)).pool(), lifetime_class)
            }
        };
        Stream {
            pool,
            class,
            lifetime_class,
        }
    }

    /// The pool for an item of a new key: the main pool if the key was evicted lately.
    #[inline(never)]
    fn pool_of_new(&self, hash: u64) -> usize {
        if self.ghosts.take_ghost(hash) {
            self.claims().thread.count(Counter::ghost_hits, 1);
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
        let bounds: &[u32] = if self.claims().mapped.allowed() < SEGMENTS_FOR_ALL_CLASSES {
            &CLASS_TTL_FEW_S
        } else {
            &CLASS_TTL_S
        };
        bounds.iter().position(|most| ttl <= *most).map_or(0, |i| i + 1)
    }
}
