//! The way that most writes take: the key has an item, nobody is in the way, and nothing is as it rarely is.
//!
//! It is one attempt, by the steps of `publish.rs`, compiled into each verb, so that what goes from one step to the next stays in
//! registers and nothing rare is on the way. Where anything is not as usual it is given up (`None`), and the verb begins anew by
//! [`Session::change`]; what may have been written by then is never published, and dead. Not usual are: strict regions and those with
//! checksums, counted changes, frozen, dirty and tentative words, a second word with the same tag, third buckets, large values, an extent
//! without room.

use crate::atomics::Acquire;
use crate::decimal;
use crate::extent::{Draft, Value, Written};
use crate::hash::{Key, choices, tag};
use crate::layout::bucket::{SLOTS, Table};
use crate::layout::slot::Slot;
use crate::lookup::{Look, Place, Seen};
use crate::operations::ttl;
use crate::publish::{Absent, stamp_over};
use crate::session::Session;
use crate::verbs::{Arithmetic, Counted, Item};

/// What a quick look found.
enum Found {
    /// a confirmed word with our key
    Here(Here),
    /// none, in these two buckets
    Absent(Table, [(u64, usize); 2]),
}

/// The key's item, and the word that led there.
#[derive(Clone, Copy)]
struct Here {
    place: Place,
    word: Slot,
    seen: Seen,
}

impl Session {
    /// Puts an item, whatever is there.
    #[inline(always)]
    pub(crate) fn put_quickly(&self, key: &Key<'_>, draft: &Draft<'_>, value: &[u8], now: u32) -> Option<Written> {
        self.quickly(|| self.try_put(key, draft, value, now))
    }

    /// Removes the item of a key. `false`: there is none.
    #[inline(always)]
    pub(crate) fn remove_quickly(&self, key: &Key<'_>, now: u32) -> Option<bool> {
        self.quickly(|| self.try_remove(key, now))
    }

    /// Counts, with nothing compared, and nothing given to the item but its value.
    #[inline(always)]
    pub(crate) fn count_quickly(&self, key: &Key<'_>, how: &Arithmetic, now: u32) -> Option<Counted> {
        self.quickly(|| self.try_count(key, how, now))
    }

    /// One attempt, if the region and the session are as usual.
    #[inline(always)]
    fn quickly<T>(&self, attempt: impl FnOnce() -> Option<T>) -> Option<T> {
        if !(self.region.is_plain() && self.enter_known()) {
            return None;
        }
        let result = attempt();
        self.end_operation();
        result
    }

    #[inline(always)]
    fn try_put(&self, key: &Key<'_>, draft: &Draft<'_>, value: &[u8], now: u32) -> Option<Written> {
        let epoch = self.region.epoch(now);
        match self.look_quickly(key)? {
            Found::Here(here) => {
                let here = self.hold_quickly(here)?;
                let stamp = stamp_over(&here.seen, epoch);
                self.replace_quickly(key, here, draft, value, stamp, now)
            }
            Found::Absent(table, pair) => self.put_new(key, draft, table, pair, epoch, now),
        }
    }

    #[inline(always)]
    fn try_remove(&self, key: &Key<'_>, now: u32) -> Option<bool> {
        let epoch = self.region.epoch(now);
        let Found::Here(here) = self.look_quickly(key)? else {
            return Some(false);
        };
        let Here { place, word, seen } = self.hold_quickly(here)?;
        if !seen.is_present(epoch, now) {
            return Some(false);
        }
        // PUBLISH: the key is gone.
        if !self.swap(place, word, Slot::EMPTY) {
            return None;
        }
        self.count_removed(&seen);
        Some(true)
    }

    #[inline(always)]
    fn try_count(&self, key: &Key<'_>, how: &Arithmetic, now: u32) -> Option<Counted> {
        let region = &*self.region;
        let epoch = region.epoch(now);
        let Found::Here(here) = self.look_quickly(key)? else {
            return None;
        };
        let here = self.hold_quickly(here)?;
        if !here.seen.is_present(epoch, now) {
            return None;
        }
        let (number, width) = self.number(&here.seen)?;
        let value = how.of(number);
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
        let text = match decimal::short(value, width) {
            Some((text, len)) => {
                eight = text.to_le_bytes();
                eight.get(..len)?
            }
            None => {
                let (text, len) = decimal::text(value, width);
                many = text;
                many.get(..len)?
            }
        };
        let written = self.replace_quickly(key, here, &draft, text, here.seen.word.epoch(), now)?;
        Some(Counted::Value {
            value,
            item: Item {
                cas: written.cas,
                value_len: written.value_len,
                size: written.size,
                flags: client_flags,
                ttl_s: ttl(draft.expiry, now),
                ..Item::marked(marks)
            },
        })
    }

    /// Both buckets, whichever the key is in: it is as likely in the one as in the other, and a processor guesses that badly.
    #[inline(always)]
    fn look_quickly(&self, key: &Key<'_>) -> Option<Found> {
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
        let word = Slot(region.slot(place.at).load(Acquire));
        if !word.is_confirmed_with(wanted) {
            return None;
        }
        match region.look(place.at, word) {
            Look::Got(seen) if region.has_key(&seen, key.bytes) => Some(Found::Here(Here { place, word, seen })),
            _ => None,
        }
    }

    /// Stores the intent for the item's segment, and makes sure that the item is still there: from then on it does not change.
    #[inline(always)]
    fn hold_quickly(&self, here: Here) -> Option<Here> {
        let word = self.hold(here.place, here.word)?;
        // The key was read before the intent. All forty bits of the generation are the same behind it, so it is the same life of the
        // segment, which does not end before the intent does.
        (self.region.still(&here.seen) && !here.seen.header.is_large()).then_some(Here { word, ..here })
    }

    #[inline(always)]
    fn replace_quickly(
        &self,
        key: &Key<'_>,
        Here { place, word, seen }: Here,
        draft: &Draft<'_>,
        value: &[u8],
        stamp: u32,
        now: u32,
    ) -> Option<Written> {
        let written = self.write_over(key, draft, value, stamp, seen.segment, now)?;
        // PUBLISH: the new item. Its extent's tail is out already; recovery leaves whichever word is in the slot.
        if !self.swap(place, word, written.word) {
            return None;
        }
        self.count_replaced(place, &seen, &written, now);
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
        epoch: u32,
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

    /// The number that an item's value says, and its length, bytes; if it is nothing but one to sixteen decimal digits, or up to eight with
    /// blanks behind them.
    #[inline(always)]
    fn number(&self, seen: &Seen) -> Option<(u64, usize)> {
        let (header, len) = (seen.header, seen.header.value_len());
        let memory = &self.region.memory;
        // Header and key before it are more than eight bytes together with it.
        let end = seen.at + header.value_offset() + len;
        if len == 0 || len > 2 * decimal::SHORT_MAX {
            return None;
        }
        let last = memory.u64_unaligned(end - decimal::SHORT_MAX);
        let number = if len > decimal::SHORT_MAX {
            decimal::read_long(memory.u64_unaligned(end - 2 * decimal::SHORT_MAX), last, len)
        } else {
            decimal::read_short(last, len).or_else(|| decimal::read_padded(last, len))
        };
        Some((number?, len))
    }
}
