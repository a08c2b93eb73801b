//! Room `hot`: which keys are hot, by gets, by stores, and by the bytes that gets give out.
//!
//! Holds when a session's next sample is due, the counters in the region, and what a reader makes of them. The way from a hash back to a
//! key is the index's.
//!
//! A session samples its operations after random intervals, so that no order of keys evades it: one in [`ONE_IN`] on average, or one
//! in [`ONE_IN_WATCHED`] while any process looks at the counters and for a minute after. A sample counts for as many operations as it
//! stands for. It is counted by Space-Saving (Metwally, Agrawal, El Abbadi: "Efficient computation of frequent and top-k elements in
//! data streams", ICDT 2005): a key without a counter takes the one with the least weight, with that weight as its error. The keys are
//! divided by their hash into groups of eight counters, and each group is a Space-Saving summary of its part of the samples. So a
//! sample looks at four cache lines, and all sessions of all processes can share the tables.
//!
//! - The samples of a counter's key have at least weight − error since it has the counter, and at most weight in all. Those of a key
//!   without a counter have at most its group's least weight.
//! - That holds after a death between any two stores. Two sessions that give one counter away at the same time may attribute a sample
//!   to the wrong one of the two keys.
//! - A counter's weight only rises, so the difference between two snapshots is what was counted meanwhile.
//!
//! Never: a lock, or a decision of the cache. The counters are only shown.

mod snapshot;

pub use snapshot::{HotRange, HotSnapshot};

use crate::atomics::Relaxed;
use crate::clock::{Clock, seconds_of};
use crate::hash::Hasher;
use crate::layout::hot::{By, HotCounter, HotGroup, HotText, TEXT_WORDS, WAYS, group};
use crate::layout::segment::Owner;
use crate::mapped::Mapped;
use crate::trail::Trail;
use std::cell::Cell;
use std::sync::Arc;

/// One in this many operations is a sample.
pub const ONE_IN: u32 = 256;
/// One in this many while any process looks at the counters.
pub const ONE_IN_WATCHED: u32 = 16;
/// How long the counters are looked at after they were read, seconds.
const WATCHED_S: u64 = 60;

/// Which operations of a session are samples.
pub struct Sampling {
    hot: Hot,
    trail: Trail,
    random: Cell<u64>,
    /// what the next get that is a sample stands for, and the next store
    one_in: [Cell<u32>; 2],
    /// while a trail is kept, and each operation is looked at: those after the present one until the next sample
    ahead: [Cell<u32>; 2],
}

impl Sampling {
    /// For a session in this thread slot and incarnation: they begin at different places.
    pub(crate) fn new(hot: &Hot, trail: &Trail, hasher: &Hasher, owner: Owner) -> Self {
        let begin = hasher.hash(&(u64::from(owner.slot) << 32 | u64::from(owner.incarnation)).to_le_bytes());
        Self {
            hot: hot.clone(),
            trail: trail.clone(),
            random: Cell::new(begin | 1),
            one_in: [const { Cell::new(ONE_IN) }; 2],
            ahead: [const { Cell::new(0) }; 2],
        }
    }

    /// Operations until the next sample, that one included: 1 to 2 × `one_in` − 1, each equally likely.
    fn again(&self, [gets, sets]: [bool; 2], one_in: u32) -> u32 {
        let [of_gets, of_sets] = &self.one_in;
        if gets {
            of_gets.set(one_in);
        }
        if sets {
            of_sets.set(one_in);
        }
        self.below(2 * one_in - 1) + 1
    }

    /// A random number below this.
    fn below(&self, bound: u32) -> u32 {
        // Marsaglia: "Xorshift RNGs", Journal of Statistical Software 8 (14), 2003.
        let mut random = self.random.get();
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        self.random.set(random);
        u32::try_from(((random >> 32) * u64::from(bound)) >> 32).unwrap_or(0)
    }

    /// Gets until the first one of this session that is a sample, that one included; and as many stores.
    pub fn first_sample(&self) -> u32 {
        self.again([true, true], self.hot.hot_one_in())
    }

    /// Counts a sample: a get of the key with this hash, which gave out so many bytes of value. Returns the gets until the next one,
    /// that one included.
    /// While a trail is kept, each get is looked at like a sample: then it returns 1, and only those are counted that are samples.
    pub fn sample_get(&self, hash: u64, key: &[u8], given: usize) -> u32 {
        let [ahead, _] = &self.ahead;
        let next = match ahead.get() {
            0 => self.count_get(hash, key, given),
            left => left,
        };
        self.next_look(ahead, next)
    }

    /// Counts a sample: a store of the key with this hash. Returns the stores until the next one, that one included; 1 while a
    /// trail is kept.
    pub fn sample_set(&self, hash: u64) -> u32 {
        let [_, ahead] = &self.ahead;
        let next = match ahead.get() {
            0 => self.count_set(hash),
            left => left,
        };
        self.next_look(ahead, next)
    }

    /// Whether the store that is looked at is a sample.
    pub fn is_set_sample(&self) -> bool {
        let [_, ahead] = &self.ahead;
        ahead.get() == 0
    }

    /// Whether the get that is looked at is to be measured: one in [`ONE_IN`] is, also while more of them are samples.
    pub fn is_get_timed(&self) -> bool {
        let [one_in, _] = &self.one_in;
        let [ahead, _] = &self.ahead;
        self.is_timed(ahead, one_in)
    }

    /// Whether the store that is looked at is to be measured: one in [`ONE_IN`] is, also while more of them are samples.
    pub fn is_set_timed(&self) -> bool {
        let [_, one_in] = &self.one_in;
        let [_, ahead] = &self.ahead;
        self.is_timed(ahead, one_in)
    }

    fn is_timed(&self, ahead: &Cell<u32>, one_in: &Cell<u32>) -> bool {
        ahead.get() == 0 && self.below(ONE_IN / one_in.get().max(1)) == 0
    }

    /// Operations until the next one that is looked at, if the next sample is `next` operations ahead.
    fn next_look(&self, ahead: &Cell<u32>, next: u32) -> u32 {
        let keeps_trail = self.trail.kept_trail().is_some();
        ahead.set(if keeps_trail { next - 1 } else { 0 });
        if keeps_trail { 1 } else { next }
    }

    fn count_get(&self, hash: u64, key: &[u8], given: usize) -> u32 {
        let [one_in, _] = &self.one_in;
        let weight = one_in.get().into();
        if let Some(way) = self.hot.note_hot(By::Gets, hash, weight) {
            self.hot.note_text(hash, way, key);
        }
        if given > 0 {
            let _ = self.hot.note_hot(By::Bytes, hash, weight.saturating_mul(given as u64));
        }
        self.again([true, false], self.hot.hot_one_in())
    }

    fn count_set(&self, hash: u64) -> u32 {
        let [_, one_in] = &self.one_in;
        let _ = self.hot.note_hot(By::Sets, hash, one_in.get().into());
        self.again([false, true], self.hot.hot_one_in())
    }
}

/// The counters of hot keys.
#[derive(Clone)]
pub struct Hot {
    mapped: Arc<Mapped>,
    clock: Clock,
}

impl Hot {
    pub(crate) fn new(mapped: &Arc<Mapped>, clock: &Clock) -> Self {
        Self {
            mapped: Arc::clone(mapped),
            clock: clock.clone(),
        }
    }

    /// A process that may write looks at the counters at `now`: from now on there are more samples, for a minute.
    pub fn watch_hot(&self, now: u32) {
        let until = seconds_of(now).saturating_add(WATCHED_S);
        let word = &self.mapped.superblock().hot_until;
        if word.load(Relaxed) != until {
            word.store(until, Relaxed);
        }
    }

    /// What a sample stands for from now on.
    fn hot_one_in(&self) -> u32 {
        // The clock is not asked: in a region in use, its last note is about a second old.
        let now = u64::from(self.clock.seen().clock_s());
        let is_watched = self.mapped.superblock().hot_until.load(Relaxed).wrapping_sub(now);
        if (1..=2 * WATCHED_S).contains(&is_watched) {
            ONE_IN_WATCHED
        } else {
            ONE_IN
        }
    }

    /// A group of a table.
    fn hot_group(&self, by: By, group: usize) -> &HotGroup {
        self.mapped.memory().get(self.mapped.layout().hot_group(by, group))
    }

    /// Counts a sample. Returns the number of the key's counter in its group.
    fn note_hot(&self, by: By, hash: u64, weight: u64) -> Option<usize> {
        let group = self.hot_group(by, group(hash, self.mapped.layout().hot_groups));
        let [first, others @ ..] = &group.counters;
        let (mut least, mut way, mut weight_of_least) = (first, 0, first.weight.load(Relaxed));
        if first.hash.load(Relaxed) == hash {
            count(first, weight);
            return Some(way);
        }
        for (number, counter) in (1..).zip(others) {
            if counter.hash.load(Relaxed) == hash {
                count(counter, weight);
                return Some(number);
            }
            let weight = counter.weight.load(Relaxed);
            if weight < weight_of_least {
                (least, way, weight_of_least) = (counter, number, weight);
            }
        }
        // In this order, what the words promise is true of the old key until the new one has the counter, and then of that.
        let old = least.hash.load(Relaxed);
        least.error.store(weight_of_least, Relaxed);
        // Otherwise another session was first: this sample is lost, as if it had not been one.
        let is_taken = least.hash.compare_exchange(old, hash, Relaxed, Relaxed).is_ok();
        if is_taken {
            least.spread.store(0, Relaxed);
            count(least, weight);
        }
        is_taken.then_some(way)
    }

    /// Notes the key that has this counter of the gets. Each of its samples does: a text that another session has spoiled is mended by
    /// the next one.
    fn note_text(&self, hash: u64, way: usize, key: &[u8]) {
        let mut bytes = [0; TEXT_WORDS * size_of::<u64>()];
        let [len, text @ ..] = &mut bytes;
        if let (Ok(short), Some(place)) = (u8::try_from(key.len()), text.get_mut(..key.len())) {
            *len = short;
            place.copy_from_slice(key);
        }
        for (word, bytes) in self.hot_text(hash, way).words.iter().zip(bytes.as_chunks().0) {
            let new = u64::from_le_bytes(*bytes);
            // The text that is there already stays in the caches of all sessions.
            if word.load(Relaxed) != new {
                word.store(new, Relaxed);
            }
        }
    }

    /// The text of a counter in this key's group.
    fn hot_text(&self, hash: u64, way: usize) -> &HotText {
        let group = group(hash, self.mapped.layout().hot_groups);
        self.mapped.memory().get(self.mapped.layout().hot_text(group, way))
    }

    /// Appends the key with this hash to `key`, which has space for the longest, if a counter of the gets has its text. Returns whether one
    /// has.
    pub fn hot_name(&self, hash: u64, key: &mut Vec<u8>) -> bool {
        (0..WAYS).any(|way| {
            let mut bytes = [0; TEXT_WORDS * size_of::<u64>()];
            for (place, word) in bytes.as_chunks_mut().0.iter_mut().zip(&self.hot_text(hash, way).words) {
                *place = word.load(Relaxed).to_le_bytes();
            }
            // Other processes may have written anything there, and may write at this moment: what counts is what was read.
            let [len, text @ ..] = &bytes;
            let text = text
                .get(..usize::from(*len))
                .filter(|text| !text.is_empty() && self.mapped.hash(text) == hash);
            key.extend_from_slice(text.unwrap_or_default());
            text.is_some()
        })
    }
}

/// Adds a sample to its key's counter.
fn count(counter: &HotCounter, weight: u64) {
    // Two sessions at the same time may lose one sample's part of it.
    let spread = f64::from_bits(counter.spread.load(Relaxed)) + (weight as f64) * (weight as f64);
    counter.spread.store(spread.to_bits(), Relaxed);
    counter.weight.fetch_add(weight, Relaxed);
}
