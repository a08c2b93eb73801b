//! The fast path of a get: what [`Region::get`] does when both of a key's buckets have one confirmed word with its tag, or none.
//!
//! It is one attempt, made of the same steps in the same order. Everything unusual ends it, and [`Region::get`] starts anew: two
//! words with the tag, a word that is tentative, frozen or dirty, a third bucket, a delayed flush, an expired or flushed item,
//! another key's item, a value with segments of its own, anything that changed meanwhile, or a word that leads nowhere.

#[cfg(all(test, feature = "observe"))]
mod late;

use crate::atomics::{Acquire, AtomicU64};
use crate::hash::{Key, choices, tag};
use crate::index::lookup::Place;
use crate::layout::bucket::SLOTS;
use crate::layout::slot::Slot;
use crate::log::Seen;
use crate::mutants::{self, Mutant};
use crate::region::{Region, ttl};
use crate::sink::Sink;
use crate::verbs::{Get, Item, Now};

/// What a quick get found.
pub(crate) enum Quick {
    /// the item, which the sink has
    Hit(Item),
    Miss,
    /// not known: the sink is as long as before
    Unusual,
}

impl Region {
    /// A get that [`Get::is_plain`], in a region with neither durable mode nor checksums.
    #[inline(always)]
    #[allow(unsafe_code, reason = "places that were compared with the layout; argued at each access")]
    pub(crate) fn get_quickly<S: Sink>(&self, key: &Key<'_>, how: &Get, now: &mut impl Now, sink: &mut S) -> Quick {
        let Some(epoch) = self.epoch_at_any_time().filter(|_| self.is_plain()) else {
            return Quick::Unusual;
        };
        let view = self.memory.view();
        let table = self.table();
        let [a, b] = choices(key.hash);
        let [a, b] = [table.bucket(a), table.bucket(b)];
        let Some([first, second]) = self.buckets_in(view, [a, b]) else {
            return Quick::Unusual;
        };
        // Both, even if the key is in the first: each is equally likely, and a processor predicts such a branch badly.
        // SAFETY: buckets are 64 bytes that are mapped, at multiples of 64.
        let lines = unsafe { [view.line(first), view.line(second)] };
        let wanted = tag(key.hash);
        let same = Slot::with_tag_in_pair(&lines, wanted);
        if same == 0 {
            // A split may have moved the key between the two loads of the table word.
            return if !self.has_thirds() && self.table() == table {
                Quick::Miss
            } else {
                Quick::Unusual
            };
        }
        if !same.is_power_of_two() {
            return Quick::Unusual;
        }
        let index = same.trailing_zeros() as usize;
        let (bucket, bucket_at) = if index < SLOTS { (a, first) } else { (b, second) };
        let place = Place::new(bucket, bucket_at, index % SLOTS);
        // SAFETY: one of the bucket's words.
        let slot: &AtomicU64 = unsafe { view.at(place.at) };
        // PAIRS: item: the publish in `Session::swap_same` and in `insert`.
        let word = Slot(slot.load(Acquire));
        if !word.is_confirmed_with(wanted) {
            return Quick::Unusual;
        }
        let Some(led) = self.follow(word).filter(|led| led.life.is_since(epoch)) else {
            return Quick::Unusual;
        };
        // The ten bits of generation in a slot wrap: it must still name the segment.
        // PAIRS: item: the publish of the word that is there now, if the segment was recycled.
        if Slot(slot.load(Acquire)) != word {
            return Quick::Unusual;
        }
        let header = self.header_of(&led);
        let room = self.layout.shape.segment_size - led.offset;
        if header.is_large() || header.key_len() != key.bytes.len() || header.size() > room {
            return Quick::Unusual;
        }
        let len = header.value_len();
        // SAFETY: the whole item is in its segment, which there is.
        let bytes = |offset, len| unsafe { view.window(led.at + offset, len) };
        if how.at_most.is_some_and(|most| len > most) || !bytes(header.key_offset(), key.bytes.len()).equals(key.bytes) {
            return Quick::Unusual;
        }
        let seen = Seen {
            segment: led.segment,
            life: led.life,
            at: led.at,
            offset: led.offset,
            header,
        };
        // Only an expiry is compared with the time.
        let mut ttl_s = None;
        if header.expiry() != 0 {
            let at = now.tick();
            if header.is_expired(at) {
                return Quick::Unusual;
            }
            ttl_s = ttl(header.expiry(), at);
        }
        let start = sink.len();
        let item = self.plain_facts(&seen, len, ttl_s);
        let is_copied = !(sink.begin(&item) && how.value) || {
            self.memory.prefetch_to_copy(seen.at + header.value_offset(), len);
            sink.append_region(bytes(header.value_offset(), len)).is_ok()
        };
        // SAFETY: there is the segment.
        let words = unsafe { self.words_in(view, led.segment) };
        if !is_copied || !Self::is_still(words, led.life) && !mutants::is(Mutant::GetWithoutSecondLook) {
            sink.truncate(start);
            return Quick::Unusual;
        }
        if !how.no_bump {
            self.bump(place, word, now.recent(self.seen().0));
        }
        Quick::Hit(item)
    }
}
