//! The way that most writes take: the key has an item, nobody is in the way, and nothing is as it rarely is.
//!
//! It is one attempt, by the steps of `publish.rs`, compiled into each verb, so that what goes from one step to the next stays in
//! registers and nothing rare is on the way. Where anything is not as usual it is given up (`None`), and the verb begins anew by
//! [`Session::change`]; what may have been written by then is never published, and dead. Not usual are: strict regions and those with
//! checksums, counted changes, frozen, dirty and tentative words, a second word with the same tag, third buckets, large values, an extent
//! without room.

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

/// What a quick look found.
enum Found<'r> {
    /// a confirmed word with the key's tag
    Tagged(Tagged<'r>),
    /// none, in these two buckets
    Absent(Table, [(u64, usize); 2]),
}

/// A word that leads to the key's item, in all likelihood.
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

    /// Counts, with nothing compared, and nothing given to the item but its value: what that is now, and what is known of the item.
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

    /// Begins an attempt, which [`Self::end_operation`] ends, if the region and the session are as usual.
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
                // The new item is written while the old one, which is in no cache perhaps, is on its way.
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

    /// Both buckets, whichever the key is in: it is as likely in the one as in the other, and a processor guesses that badly.
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

    /// Looks whether it is the key's item, stores the intent for its segment, and makes sure that the item is still there: from then on
    /// it does not change.
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
        // The key was read before the intent. All forty bits of the generation are the same behind it, so it is the same life of the
        // segment, which does not end before the intent does.
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
        // Above the unique that the old item's place gives it: that was looked at before it was written.
        if seen.header.has(flag::CAS) && draft.cas.is_none() && written.cas <= self.region.unique_to_exceed(&seen) {
            return None;
        }
        // PUBLISH: the new item. Its extent's tail is out already; recovery leaves whichever word is in the slot.
        if !self.swap(slot, word, written.word) {
            return None;
        }
        self.count_replaced(place, &seen, draft.value, &written, now);
        Some(written)
    }

    /// Puts an item where none is. An error is met again by the way that this one is given up for.
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

    /// The number that an item's value says, its length, bytes, and its digits, unless they are more than eight; if it is nothing but one to
    /// sixteen decimal digits, or up to eight with blanks behind them.
    #[inline(always)]
    fn number(&self, seen: &Seen) -> Option<(u64, usize, Option<Digits>)> {
        let (header, len) = (seen.header, seen.header.value_len());
        let memory = &self.region.memory;
        // Header and key before it are more than eight bytes together with it.
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
