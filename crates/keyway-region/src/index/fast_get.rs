//! The fast path of a get: what [`Index::get`] does when both of a key's buckets have one confirmed word with its tag, or none.
//!
//! It is one attempt, which begins with a glance ([`Finder::glance`]). Everything unusual ends it, and [`Index::get`] starts anew: what
//! a glance gives up on, an expired or flushed item, and anything that changed meanwhile.

#[cfg(all(test, feature = "observe"))]
mod late;

use crate::clock::ttl;
use crate::hash::Key;
use crate::index::Finder;
use crate::index::find::Here;
use crate::index::long_value::LONG_FROM;
use crate::index::lookup::Index;
use crate::index::slots::Slots;
use crate::layout::item::padded;
use crate::layout::stats::Counter;
use crate::log::Items;
use crate::memory::View;
use crate::sink::Sink;
use crate::verbs::{Get, Item, Now};

impl Finder {
    /// A get that [`Get::is_plain`], in a region with neither durable mode nor checksums, in which this flush epoch is in force.
    #[inline(always)]
    #[allow(unsafe_code, reason = "places that were compared with the layout; argued at each access")]
    pub(crate) fn find_fast<S: Sink, R>(
        &self,
        (view, epoch): (View<'_>, u64),
        key: &Key<'_>,
        how: &Get,
        mut now: impl Now,
        sink: &mut S,
        hit: impl FnOnce(Item) -> R,
    ) -> Option<Option<R>> {
        debug_assert!(self.mapped().is_plain());
        let Some(tagged) = self.glance(view, key)? else {
            return Some(None);
        };
        if !tagged.led.life.is_since(epoch) {
            return None;
        }
        let header = self.header_of(view, key, &tagged)?;
        if how.at_most.is_some_and(|most| header.value_len() > most) {
            return None;
        }
        // Only an expiry is compared with the time.
        let ttl_s = match header.expiry() {
            0 => None,
            expiry => Some(left(expiry, &mut now)?),
        };
        // SAFETY: `header_of` has found that the whole item is in its segment, which there is; its value has no segments of its own.
        unsafe { self.take_fast(view, (&tagged.here(header), ttl_s), how, now, sink, hit) }.map(Some)
    }

    /// Gives the item to the sink, and marks the hit.
    ///
    /// # Safety
    ///
    /// There is the item's segment; its header says that the item ends in it, and that its value does.
    #[inline(always)]
    #[allow(unsafe_code, reason = "contract above")]
    unsafe fn take_fast<S: Sink, R>(
        &self,
        view: View<'_>,
        (here, ttl_s): (&Here<'_>, Option<u32>),
        how: &Get,
        mut now: impl Now,
        sink: &mut S,
        hit: impl FnOnce(Item) -> R,
    ) -> Option<R> {
        let Here { place, word, seen, .. } = *here;
        let (len, value_at) = (seen.header.inline_len(), seen.at + seen.header.value_offset());
        let start = sink.len();
        let item = Index::plain_facts(self.mapped(), &seen, len, padded(seen.header.end()), ttl_s);
        let is_copied = !(sink.begin(&item) && how.value) || {
            if len >= LONG_FROM {
                self.ask_long(word, len, place.bucket);
            }
            // SAFETY: the value is in the item.
            sink.put_region(unsafe { view.window(value_at, len) }).is_ok()
        };
        // SAFETY: there is the segment.
        let words = unsafe { self.mapped().words_in(view, seen.segment) };
        if !is_copied || !Items::is_still(words, seen.life) {
            sink.truncate(start);
            return None;
        }
        if !how.no_bump {
            Slots::bump(
                (self.mapped(), &self.publisher.directory),
                place,
                word,
                now.recent(self.publisher.clock.seen().0),
            );
        }
        self.thread().count(Counter::get_hits, 1);
        Some(hit(item))
    }
}

/// Seconds that are left of an item with an expiry; `None`: none. A function of its own, so that items without one pay nothing for it.
#[inline(never)]
fn left(expiry: u32, now: &mut impl Now) -> Option<u32> {
    let now = now.tick();
    if expiry <= now { None } else { ttl(expiry, now) }
}
