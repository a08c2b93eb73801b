//! The fast path of a get: what [`Index::get`] does when both of a key's buckets have one confirmed word with its tag, or none.
//!
//! It is one attempt, made of the same steps in the same order. Everything unusual ends it, and [`Index::get`] starts anew: two
//! words with the tag, a word that is tentative, frozen or dirty, a third bucket, an expired or flushed item,
//! another key's item, a value with segments of its own, anything that changed meanwhile, or a word that leads nowhere.

#[cfg(all(test, feature = "observe"))]
mod late;

use crate::atomics::{Acquire, AtomicU64};
use crate::clock::ttl;
use crate::directory::Directory;
use crate::hash::{Key, choices, tag};
use crate::index::Finder;
use crate::index::long_value::LONG_FROM;
use crate::index::lookup::{Index, Place, has_thirds};
use crate::index::slots::Slots;
use crate::layout::bucket::SLOTS;
use crate::layout::item::{LARGE, padded};
use crate::layout::segment::SIZE_MAX;
use crate::layout::slot::Slot;
use crate::layout::stats::Counter;
use crate::log::ItemView;
use crate::log::Items;
use crate::memory::View;
use crate::sink::Sink;
use crate::verbs::{Get, Item, Now};

/// What the fast path of a get found.
pub(crate) enum Fast<R> {
    /// the item, which the sink has
    Hit(R),
    Miss,
    /// not known: the sink is as long as before
    Unusual,
}

/// An item of the key that was asked for, the word that led there, and the seconds that it has left.
type Got = (Place, Slot, ItemView, Option<u32>);

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
    ) -> Fast<R> {
        let mapped = self.mapped();
        debug_assert!(mapped.is_plain());
        let superblock = view.get(0);
        let table = self.publisher.directory.table_kept(superblock, &self.table);
        let [a, b] = choices(key.hash);
        let [a, b] = [table.bucket(a), table.bucket(b)];
        let Some([first, second]) = self.publisher.directory.buckets_at([a, b]) else {
            return Fast::Unusual;
        };
        // Both, even if the key is in the first: each is equally likely, and a processor predicts such a branch badly.
        // SAFETY: buckets are 64 bytes that are mapped, at multiples of 64.
        let lines = unsafe { [view.line(first), view.line(second)] };
        let wanted = tag(key.hash);
        let same = Slot::with_tag_in_pair(&lines, wanted);
        if same == 0 {
            // A split may have moved the key between the two loads of the table word.
            return if !has_thirds(superblock) && Directory::is_table(superblock, table) {
                Fast::Miss
            } else {
                Fast::Unusual
            };
        }
        if !same.is_power_of_two() {
            return Fast::Unusual;
        }
        let index = same.trailing_zeros() as usize;
        let (bucket, bucket_at) = if index < SLOTS { (a, first) } else { (b, second) };
        let place = Place::new(bucket, bucket_at, index % SLOTS);
        // SAFETY: one of the bucket's words.
        let slot: &AtomicU64 = unsafe { view.at(place.at) };
        // PAIRS: item: the publish in `Publisher::swap_same` and in `insert`.
        let word = Slot(slot.load(Acquire));
        if !word.is_confirmed_with(wanted) {
            return Fast::Unusual;
        }
        let Some(led) = Index::follow_known(mapped, view, word).filter(|led| led.life.is_since(epoch)) else {
            return Fast::Unusual;
        };
        // The nine bits of generation in a slot wrap: it must still name the segment.
        // PAIRS: item: the publish of the word that is there now, if the segment was recycled.
        if Slot(slot.load(Acquire)) != word {
            return Fast::Unusual;
        }
        let header = Index::header_of(view, &led);
        let room = mapped.layout().shape.segment_size - led.offset;
        // No segment has room for the length that a value with segments of its own has in its header.
        const _: () = assert!(SIZE_MAX < LARGE);
        if header.key_len() != key.bytes.len() || header.end() > room {
            return Fast::Unusual;
        }
        // SAFETY: the whole item is in its segment, which there is.
        let bytes = unsafe { view.window(led.at + header.key_offset(), key.bytes.len()) };
        if how.at_most.is_some_and(|most| header.value_len() > most) || !bytes.equals(key.bytes) {
            return Fast::Unusual;
        }
        let seen = ItemView {
            segment: led.segment,
            life: led.life,
            at: led.at,
            offset: led.offset,
            header,
        };
        // Only an expiry is compared with the time.
        let ttl_s = match header.expiry() {
            0 => None,
            expiry => match left(expiry, &mut now) {
                None => return Fast::Unusual,
                left => left,
            },
        };
        // SAFETY: the whole item is in its segment, which there is; its value has no segments of its own.
        unsafe { self.take_fast(view, (place, word, seen, ttl_s), how, now, sink, hit) }
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
        (place, word, seen, ttl_s): Got,
        how: &Get,
        mut now: impl Now,
        sink: &mut S,
        hit: impl FnOnce(Item) -> R,
    ) -> Fast<R> {
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
            return Fast::Unusual;
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
        Fast::Hit(hit(item))
    }
}

/// Seconds that are left of an item with an expiry; `None`: none. A function of its own, so that items without one pay nothing for it.
#[inline(never)]
fn left(expiry: u32, now: &mut impl Now) -> Option<u32> {
    let now = now.tick();
    if expiry <= now { None } else { ttl(expiry, now) }
}
