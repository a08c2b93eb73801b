//! Fast path for writes: one attempt for the common case; anything unusual falls back to [`Session::change`].
//!
//! Its steps are those of `publish.rs`. It is compiled into each verb, so that values stay in registers from one step to the
//! next, and no code for rare cases is in between. On anything unusual it gives up (`None`), and the verb begins again with
//! [`Session::change`]; an item that it has already written is never published, and is dead. Unusual are: durable mode, regions
//! with checksums, counted changes, frozen, dirty and tentative words, a second word with the same tag, third buckets, large
//! values, an extent without space.

use crate::atomics::{Acquire, AtomicU64};
use crate::decimal::{self, By, Digits};
use crate::hash::{Key, choices, tag};
use crate::index::change::stamp_over;
use crate::index::insert::Absent;
use crate::index::lookup::{Led, Look, Place};
use crate::layout::bucket::{SLOTS, Table};
use crate::layout::item::flag;
use crate::layout::slot::Slot;
use crate::layout::stats::Counter;
use crate::log::{Draft, Seen, Value, Written};
use crate::region::ttl;
use crate::session::Session;
use crate::verbs::Item;

/// The result of a quick look.
enum Found<'r> {
    /// a confirmed word with the key's tag
    Tagged(Tagged<'r>),
    /// no such word in these two buckets
    Absent(Table, [(u64, usize); 2]),
}

/// A word that very probably leads to the key's item.
#[derive(Clone, Copy)]
struct Tagged<'r> {
    place: Place,
    slot: &'r AtomicU64,
    word: Slot,
    led: Led,
}

/// The key's item, and the word that led there.
#[derive(Clone, Copy)]
struct Here<'r> {
    place: Place,
    slot: &'r AtomicU64,
    word: Slot,
    seen: Seen,
}

impl Session {
    /// Puts an item, whatever is there.
    #[inline(always)]
    pub(crate) fn put_quickly(&self, key: &Key<'_>, draft: &Draft<'_>, value: &[u8], now: u32) -> Option<Written> {
        self.begin_quickly()?;
        let written = self.try_put(key, draft, value, now);
        self.end_operation();
        written
    }

    /// Removes the item of a key. `false`: there is none.
    #[inline(always)]
    pub(crate) fn remove_quickly(&self, key: &Key<'_>, now: u32) -> Option<bool> {
        self.begin_quickly()?;
        let removed = self.try_remove(key, now);
        self.end_operation();
        removed
    }

    /// Increments or decrements, without a comparison, and changes nothing of the item but its value. Returns the new value, and
    /// what is known of the item.
    #[inline(always)]
    pub(crate) fn count_quickly(&self, key: &Key<'_>, by: By, now: u32) -> Option<(u64, Item)> {
        self.begin_quickly()?;
        let counted = self.try_count(key, by, now);
        self.end_operation();
        if counted.is_some() {
            self.count(
                if by.decrement {
                    Counter::decr_hits
                } else {
                    Counter::incr_hits
                },
                1,
            );
        }
        counted
    }

    /// Begins an attempt, if nothing is unusual about the region and the session. [`Self::end_operation`] ends it.
    #[inline(always)]
    fn begin_quickly(&self) -> Option<()> {
        (self.region.is_plain() && self.enter_known()).then_some(())
    }

    #[inline(always)]
    fn try_put(&self, key: &Key<'_>, draft: &Draft<'_>, value: &[u8], now: u32) -> Option<Written> {
        let epoch = self.region.epoch(now);
        match self.look_quickly(key)? {
            Found::Tagged(tagged) => {
                let (at, stamp) = ((tagged.led.segment, tagged.led.offset), stamp_over(tagged.led.life, epoch));
                // The new item is written while the old one is being fetched, perhaps from memory.
                let written = self.write_over(key, draft, value, stamp, at, now)?;
                let here = self.hold_quickly(key, tagged)?;
                self.replace_quickly(here, draft, written, now)
            }
            Found::Absent(table, pair) => self.put_new(key, draft, table, pair, epoch, now),
        }
    }

    #[inline(always)]
    fn try_remove(&self, key: &Key<'_>, now: u32) -> Option<bool> {
        let epoch = self.region.epoch(now);
        let Found::Tagged(tagged) = self.look_quickly(key)? else {
            return Some(false);
        };
        let Here { slot, word, seen, .. } = self.hold_quickly(key, tagged)?;
        if !seen.is_present(epoch, now) {
            return Some(false);
        }
        // PUBLISH: the key is gone.
        if !self.swap(slot, word, Slot::EMPTY) {
            return None;
        }
        self.count_removed(&seen);
        Some(true)
    }

    #[inline(always)]
    fn try_count(&self, key: &Key<'_>, by: By, now: u32) -> Option<(u64, Item)> {
        let region = &*self.region;
        let epoch = region.epoch(now);
        let Found::Tagged(tagged) = self.look_quickly(key)? else {
            return None;
        };
        let here = self.hold_quickly(key, tagged)?;
        if !here.seen.is_present(epoch, now) {
            return None;
        }
        let (number, width, digits) = self.number(&here.seen)?;
        let value = by.of(number);
        let (marks, client_flags) = region.marks_and_flags(&here.seen);
        let draft = Draft {
            marks,
            client_flags,
            cas: None,
            expiry: here.seen.header.expiry(),
            value: Value::Number(value, width),
        };
        let (eight, many);
        // A number that fits into the old value's length is padded to it (protocol.txt, "Increment/Decrement").
        let text = match digits.and_then(|digits| by.of_digits(digits)) {
            Some(digits) => {
                let (text, len) = digits.text(width);
                eight = text.to_le_bytes();
                eight.get(..len)?
            }
            None => {
                let (text, len) = decimal::text(value, width);
                many = text;
                many.get(..len)?
            }
        };
        let at = (here.seen.segment, here.seen.offset);
        let written = self.write_over(key, &draft, text, here.seen.life.epoch, at, now)?;
        let written = self.replace_quickly(here, &draft, written, now)?;
        let item = Item {
            cas: written.cas,
            value_len: written.value_len,
            size: written.size,
            flags: client_flags,
            ttl_s: ttl(draft.expiry, now),
            ..Item::marked(marks)
        };
        Some((value, item))
    }

    /// Searches both buckets, even if the key is in the first: each is equally likely, and a processor predicts such a branch badly.
    #[inline(always)]
    fn look_quickly(&self, key: &Key<'_>) -> Option<Found<'_>> {
        let region = &*self.region;
        let table = region.table();
        let [a, b] = choices(key.hash);
        let [a, b] = [table.bucket(a), table.bucket(b)];
        let pair @ [(_, first), (_, second)] = [(a, region.bucket(a)?), (b, region.bucket(b)?)];
        let [first, second] = [region.memory.line(first), region.memory.line(second)];
        if Slot::any_frozen(&first) || Slot::any_frozen(&second) {
            return None;
        }
        let wanted = tag(key.hash);
        let same = Slot::with_tag(&first, wanted) | Slot::with_tag(&second, wanted) << SLOTS;
        if same == 0 {
            return (!region.has_thirds() && region.table() == table).then_some(Found::Absent(table, pair));
        }
        if !same.is_power_of_two() {
            return None;
        }
        let index = same.trailing_zeros() as usize;
        let [first, second] = pair;
        let (bucket, at) = if index < SLOTS { first } else { second };
        let place = Place::new(bucket, at, index % SLOTS);
        let slot = region.slot(place.at);
        // PAIRS: item: the publish in `Session::swap_same` and in `insert`.
        let word = Slot(slot.load(Acquire));
        if !word.is_confirmed_with(wanted) {
            return None;
        }
        let led = region.follow(word)?;
        Some(Found::Tagged(Tagged { place, slot, word, led }))
    }

    /// Checks that it is the key's item, stores the intent for its segment, and makes sure that the item is still there. From
    /// then on it does not change.
    #[inline(always)]
    fn hold_quickly<'r>(&self, key: &Key<'_>, Tagged { place, slot, word, led }: Tagged<'r>) -> Option<Here<'r>> {
        let region = &*self.region;
        let Look::Got(seen) = region.look_at(led, slot, word) else {
            return None;
        };
        if !region.has_key(&seen, key.bytes) {
            return None;
        }
        let word = self.hold(slot, word)?;
        // The key was read before the intent. All forty bits of the generation are the same after it, so the segment was not
        // recycled, and it will not be while the intent stands.
        (region.still(&seen) && !seen.header.is_large()).then_some(Here { place, slot, word, seen })
    }

    #[inline(always)]
    fn replace_quickly(
        &self,
        Here { place, slot, word, seen }: Here<'_>,
        draft: &Draft<'_>,
        written: Written,
        now: u32,
    ) -> Option<Written> {
        // The new unique must exceed the one that the old item's place gives it, which was checked before the item was written.
        if seen.header.has(flag::CAS) && draft.cas.is_none() && written.cas <= self.region.unique_to_exceed(&seen) {
            return None;
        }
        // PUBLISH: the new item. Its extent's tail is out already. Recovery leaves the word that it finds in the slot, old or new.
        if !self.swap(slot, word, written.word) {
            return None;
        }
        self.count_replaced(place, &seen, draft.value, &written, now);
        Some(written)
    }

    /// Puts an item where there is none. On an error it gives up: the general code meets the error again.
    #[inline(never)]
    fn put_new(
        &self,
        key: &Key<'_>,
        draft: &Draft<'_>,
        table: Table,
        pair: [(u64, usize); 2],
        epoch: u64,
        now: u32,
    ) -> Option<Written> {
        let lines = pair.map(|(_, at)| self.region.memory.line(at));
        let absent = Absent {
            table,
            tentative: None,
            empty: Some(Place::emptiest(pair, &lines)?),
            victim: None,
        };
        self.put_once(key, &absent, draft, epoch, now)
    }

    /// The number in an item's value, its length in bytes, and its digits, unless they are more than eight. Only for a value of
    /// one to sixteen decimal digits, or of up to eight with blanks after them.
    #[inline(always)]
    fn number(&self, seen: &Seen) -> Option<(u64, usize, Option<Digits>)> {
        let (header, len) = (seen.header, seen.header.value_len());
        let memory = &self.region.memory;
        // The bytes before the value are read with it, and ignored: header and key, and before a short key what precedes the item.
        let end = seen.at + header.value_offset() + len;
        if len == 0 || len > 2 * decimal::SHORT_MAX {
            return None;
        }
        let last = memory.u64_unaligned(end - decimal::SHORT_MAX);
        if len > decimal::SHORT_MAX {
            let first = memory.u64_unaligned(end - 2 * decimal::SHORT_MAX);
            return Some((decimal::read_long(first, last, len)?, len, None));
        }
        let digits = Digits::read(last, len).or_else(|| Digits::read_padded(last, len))?;
        Some((digits.number(), len, Some(digits)))
    }
}
