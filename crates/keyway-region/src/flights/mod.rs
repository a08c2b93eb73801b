//! Room `flights`: callers that wait for a value which another computes, and limits on how many compute at a time.
//!
//! Holds the words on which they wait, and the limits' rows. Who computes a key's value is in the key's own item
//! ([`crate::layout::item::Record`]), so this room knows no key.
//!
//! - A caller arms its word, looks once more, and only then waits. Whoever ends a flight publishes that first, and then wakes. So
//!   either the look finds the end, or the wake finds the armed word.
//! - A place under a limit belongs to a thread slot in an incarnation: with the slot's end, by death too, it is free.
//! - There are so many words and rows, and no more: a wake may be for another flight, and a prefix without a row has no limit.
//! - A flight that ends wakes all who wait for it: its value is for each. A place that is given back wakes one: it is for one.
//!
//! Never: a lock, or a decision about a value.

use crate::atomics::{AcqRel, Acquire, AtomicU32, Relaxed, SeqCst, fence};
use crate::layout::flight::{ANY, ENDED, Holder, LimitRow, PLACES, ROW_WORDS, ROWS, WAITED_FOR, WORDS};
use crate::layout::index;
use crate::mapped::Mapped;
use crate::threads::Threads;
use core::time::Duration;
use std::sync::Arc;

/// Where callers wait, and the limits.
#[derive(Clone)]
pub struct Flights {
    mapped: Arc<Mapped>,
    threads: Threads,
}

/// A place under a limit. Whoever has it gives it back ([`Flights::leave`]); its thread's end does, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Berth {
    row: usize,
    place: usize,
    holder: Holder,
}

/// The answer to a caller that wants to compute under a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// it has a place
    In(Berth),
    /// as many compute as may
    Full,
    /// all rows are those of other prefixes: there is no limit
    Unlimited,
}

/// What a caller has seen of its word before it looked.
#[derive(Clone, Copy, Debug)]
pub struct Armed {
    number: usize,
    value: u32,
}

impl Flights {
    /// Those of a region.
    pub fn new(mapped: &Arc<Mapped>, threads: &Threads) -> Self {
        Self {
            mapped: Arc::clone(mapped),
            threads: threads.clone(),
        }
    }

    /// A word, and its offset in the region.
    fn word(&self, number: usize) -> (&AtomicU32, usize) {
        let at = self.mapped.layout().flight_word(number);
        (self.mapped.memory().get(at), at)
    }

    /// The rows of the limits.
    fn rows(&self) -> impl Iterator<Item = (usize, &LimitRow)> {
        (0..ROWS).map(|number| (number, self.row_at(number)))
    }

    fn row_at(&self, number: usize) -> &LimitRow {
        self.mapped.memory().get(self.mapped.layout().flight_row(number))
    }

    /// Whether this thread still computes, as far as its slot says.
    pub fn is_held(&self, holder: Holder) -> bool {
        holder.owner().is_some_and(|owner| self.threads.is_held(owner))
    }

    /// To be called before the look after which a caller may wait.
    pub fn arm(&self, hash: u64) -> Armed {
        self.arm_word(word_of(hash))
    }

    /// For a caller that waits for many keys: [`Self::wait`] with it ends when something ends that anybody waits for.
    pub fn arm_any(&self) -> Armed {
        self.arm_word(ANY)
    }

    /// For a caller that waits for a place under the limit of this prefix. `None`: there is no limit any more.
    pub fn arm_place(&self, prefix: u64) -> Option<Armed> {
        Some(self.arm_word(ROW_WORDS + self.row_of(prefix)?))
    }

    fn arm_word(&self, number: usize) -> Armed {
        // SeqCst, with the fence: the look comes after it.
        // PAIRS: flight: the load in `wake`: it sees the armed word, or the look sees what was published before the wake.
        let before = self.word(number).0.fetch_or(WAITED_FOR, SeqCst);
        fence(SeqCst);
        Armed {
            number,
            value: before | WAITED_FOR,
        }
    }

    /// Waits until something ends that has the same word, or this time is over, or for no reason at all.
    pub fn wait(&self, armed: Armed, timeout: Duration) {
        let (_, at) = self.word(armed.number);
        self.mapped.host().wait(at, armed.value, timeout);
    }

    /// Whether something has ended that has the same word.
    pub fn has_ended(&self, armed: Armed) -> bool {
        // PAIRS: flight: the exchange in `end`.
        self.word(armed.number).0.load(SeqCst) != armed.value
    }

    /// Something of this hash has ended, and that is published: whoever waits for it looks again.
    pub fn wake(&self, hash: u64) {
        // PAIRS: flight: the exchange in `arm_word`.
        fence(SeqCst);
        if self.end(word_of(hash)) {
            self.end(ANY);
        }
    }

    /// All flights have ended: whoever waits for any looks again.
    pub fn wake_all(&self) {
        // PAIRS: flight: the exchange in `arm_word`.
        fence(SeqCst);
        // One fence for all words: a flush must not take as long as many of them.
        let ended = (0..WORDS).filter(|word| self.end(*word)).count();
        if ended > 0 {
            self.end(ANY);
        }
    }

    /// Wakes whoever waits for [`Self::arm_any`], though nothing has ended.
    pub fn wake_any(&self) {
        // PAIRS: flight: the exchange in `arm_word`.
        fence(SeqCst);
        self.end(ANY);
    }

    /// Counts an end, and wakes those who wait for this word. Returns whether it was waited for.
    fn end(&self, number: usize) -> bool {
        let (word, at) = self.word(number);
        // PAIRS: flight: the exchange in `arm_word`.
        let mut value = word.load(SeqCst);
        while value & WAITED_FOR != 0 {
            // PAIRS: flight: the load in `has_ended`, and the exchange in `arm_word`.
            match word.compare_exchange(value, value.wrapping_add(ENDED) & !WAITED_FOR, SeqCst, Relaxed) {
                Ok(_) => {
                    self.mapped.host().wake(at, u32::MAX);
                    return true;
                }
                Err(now) => value = now,
            }
        }
        false
    }

    /// Takes a place among the `limit` of those who compute values of a prefix, which this hash names.
    pub fn enter(&self, prefix: u64, limit: usize, holder: Holder) -> Turn {
        let prefix = prefix.max(1);
        // Another caller may give the row to another prefix meanwhile. That takes turns without end only by a damaged region.
        for _ in 0..ENTRIES_MAX {
            let Some(row) = self.row(prefix) else { return Turn::Unlimited };
            match self.take_place(row, limit, holder) {
                Some(place) if self.prefix_of(row) == prefix => return Turn::In(place),
                Some(place) => self.leave(place),
                None if self.prefix_of(row) == prefix => return Turn::Full,
                None => {}
            }
        }
        Turn::Unlimited
    }

    /// Gives a place back, and wakes one of those who wait for one, who wakes the next when it leaves. Twice does nothing.
    pub fn leave(&self, place: Berth) {
        let word = self.row_at(place.row).places.get(place.place);
        // PAIRS: place: the exchange in `take_place`.
        if word.is_some_and(|word| word.compare_exchange(place.holder.0, Holder::NONE.0, AcqRel, Relaxed).is_ok()) {
            let (word, at) = self.word(ROW_WORDS + place.row);
            // PAIRS: flight: the exchange in `arm_word`: its value is another one then, or the look after it finds the place free.
            word.fetch_add(ENDED, SeqCst);
            self.mapped.host().wake(at, 1);
        }
    }

    /// The row that this prefix has now.
    fn row_of(&self, prefix: u64) -> Option<usize> {
        (0..ROWS).find(|row| self.prefix_of(*row) == prefix.max(1))
    }

    fn prefix_of(&self, row: usize) -> u64 {
        // PAIRS: row: the exchange in `row`.
        self.row_at(row).prefix.load(Acquire)
    }

    /// The row of a prefix: its own, or one that nobody uses.
    fn row(&self, prefix: u64) -> Option<usize> {
        for _ in 0..ENTRIES_MAX {
            // PAIRS: row: the exchange below: of two callers that take rows for one prefix at least one sees the other's.
            let own = |(number, row): (usize, &LimitRow)| (row.prefix.load(SeqCst) == prefix).then_some(number);
            if let Some(own) = self.rows().find_map(own) {
                return Some(own);
            }
            let (number, row) = self.rows().find(|(_, row)| self.is_idle(row))?;
            // PAIRS: row: as above.
            let old = row.prefix.load(SeqCst);
            if row.prefix.compare_exchange(old, prefix, SeqCst, Relaxed).is_err() {
                continue;
            }
            // PAIRS: row: as above.
            let is_twin = |(other, row): (usize, &LimitRow)| other != number && row.prefix.load(SeqCst) == prefix;
            if !self.rows().any(is_twin) {
                return Some(number);
            }
            let _ = row.prefix.compare_exchange(prefix, 0, SeqCst, Relaxed);
        }
        None
    }

    fn is_idle(&self, row: &LimitRow) -> bool {
        // PAIRS: place: as in `take_place`.
        row.places.iter().all(|place| self.is_free(Holder(place.load(Acquire))))
    }

    /// Whether a place with this word is free.
    fn is_free(&self, holder: Holder) -> bool {
        holder.owner().is_none_or(|owner| !self.threads.is_held(owner))
    }

    fn take_place(&self, row: usize, limit: usize, holder: Holder) -> Option<Berth> {
        let places = self.row_at(row).places.iter().take(limit.clamp(1, PLACES));
        for (place, word) in places.enumerate() {
            // PAIRS: place: the exchanges here and in `leave`.
            let old = Holder(word.load(Acquire));
            // PAIRS: place: the exchange in `leave`, or the end of the last holder's session.
            if self.is_free(old) && word.compare_exchange(old.0, holder.0, AcqRel, Relaxed).is_ok() {
                return Some(Berth { row, place, holder });
            }
        }
        None
    }

    /// Those who hold places under the limit of this prefix.
    pub fn holders(&self, prefix: u64) -> impl Iterator<Item = Holder> {
        let places = self.row_of(prefix).into_iter().flat_map(|row| &self.row_at(row).places);
        // PAIRS: place: as in `take_place`.
        let holders = places.map(|place| Holder(place.load(Acquire)));
        holders.filter(|holder| *holder != Holder::NONE)
    }
}

fn word_of(hash: u64) -> usize {
    index(hash >> 32) % WORDS
}

/// How often a row is looked for.
const ENTRIES_MAX: usize = 64;
