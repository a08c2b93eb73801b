//! The hot set: an index, pages of copies, and the words that make copies stale, as the program sees them.
//!
//! The program may read all of it at any time, from any CPU. A copy is written under its sequence number. An index slot is one
//! word; the program does not rely on its tag, but compares the whole key.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, fence};

use crate::copy::{COPY_LEN_MAX, ChangeCounts, HotCopy};

/// Slots of a bucket (`KW_SLOTS`).
const SLOTS: usize = 8;
/// Size of a page, bytes (`KW_PAGE`), and of the unit in which places are counted (`KW_UNIT`).
pub const PAGE_SIZE: usize = 65536;
/// See [`PAGE_SIZE`].
pub const UNIT_SIZE: usize = 64;
const UNITS_IN_PAGE: usize = PAGE_SIZE / UNIT_SIZE;
const WORDS_IN_UNIT: usize = UNIT_SIZE / 8;
/// Stripes of the hash space (`KW_STRIPES`): the top bits of a hash are the stripe's number.
pub const STRIPES: usize = 1 << STRIPE_BITS;
const STRIPE_BITS: u32 = 12;
/// Words of the control block.
pub const CONTROL_WORDS: usize = 8;
/// Indexes of its words.
const LEASE: usize = 0;
const CLOCK: usize = 1;
const SEED: usize = 2;

/// The shared words: in maps of the kernel, or in memory of a test.
#[derive(Clone, Copy, Debug)]
pub struct HotSet<'a> {
    /// eight per bucket; the number of buckets is a power of two
    pub index: &'a [AtomicU64],
    /// whole pages
    pub pages: &'a [AtomicU64],
    /// [`STRIPES`] of them, and one of `flush_all`: changes `{started, finished}`, each half a count, `started` in the low half
    pub stripes: &'a [AtomicU64],
    /// eight
    pub control: &'a [AtomicU64],
}

/// The place of a copy: its page, and its first unit there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// number of the page
    pub page: usize,
    /// number of the first unit
    pub unit: usize,
}

impl HotSet<'_> {
    /// The number of buckets minus 1, as a mask for hashes.
    pub fn bucket_mask(&self) -> usize {
        self.index.len() / SLOTS - 1
    }

    /// The word of the stripe that this hash is in.
    pub fn stripe(&self, hash: u64) -> &AtomicU64 {
        &self.stripes[stripe_of(hash)]
    }

    /// The word of `flush_all`.
    pub fn flush(&self) -> &AtomicU64 {
        &self.stripes[STRIPES]
    }

    /// Sets the seed of the region's hash, before the program may answer.
    pub fn set_seed(&self, seed: u64) {
        // PAIRS: the program's load of the lease, which is renewed after this store.
        self.control[SEED].store(seed, Release);
    }

    /// Lets the program answer until `lease_ns` of CLOCK_MONOTONIC, and gives it the time: the region's clock minus CLOCK_MONOTONIC, ns, modulo 2^64.
    pub fn renew(&self, lease_ns: u64, clock_ns: u64) {
        self.control[CLOCK].store(clock_ns, Relaxed);
        // PAIRS: the program's load of the lease; the time that it then reads is this one or a later one.
        self.control[LEASE].store(lease_ns, Release);
    }

    /// Writes `copy` at `place`, over what was there. Only one thread may write.
    ///
    /// # Panics
    ///
    /// If there is no such place, or the copy would extend beyond its page.
    pub fn write(&self, place: Place, copy: &HotCopy) {
        assert!(
            place.unit <= UNITS_IN_PAGE - COPY_LEN_MAX / UNIT_SIZE,
            "{place:?} is too near its page's end"
        );
        let at = (place.page * UNITS_IN_PAGE + place.unit) * WORDS_IN_UNIT;
        let (words, target) = (copy.words(), &self.pages[at..]);
        let sequence = target[0].load(Relaxed) & 0xFFFF_FFFF;
        let odd = (sequence | 1) & 0xFFFF_FFFF;
        let even = (odd + 1) & 0xFFFF_FFFF;
        target[0].store(odd, Relaxed);
        // PAIRS: kw_read_barrier() before the program's second read of `seq`: a program that has read a word of the new copy sees that
        // the number has changed.
        fence(Release);
        target[1..]
            .iter()
            .zip(&words[1..])
            .for_each(|(target, word)| target.store(*word, Relaxed));
        // PAIRS: kw_read_barrier() after the program's first read of `seq`: a program that sees the new number sees the new copy.
        target[0].store(words[0] | even, Release);
    }

    /// Enters `place` in the index for this hash; returns false if the hash's bucket has no free slot.
    pub fn point(&self, hash: u64, place: Place) -> bool {
        let word = word_of(hash, place);
        let bucket = self.bucket(hash);
        let same_tag = |slot: &&AtomicU64| slot.load(Relaxed) >> 32 == hash >> 32 && slot.load(Relaxed) != 0;
        let slot = bucket
            .iter()
            .find(same_tag)
            .or_else(|| bucket.iter().find(|slot| slot.load(Relaxed) == 0));
        // PAIRS: the program's load of the slot; the copy that it names is written before.
        slot.map(|slot| slot.store(word, Release)).is_some()
    }

    /// The place that the index has for this hash.
    pub fn find(&self, hash: u64) -> Option<Place> {
        let words = self.bucket(hash).iter().map(|slot| slot.load(Relaxed));
        words.filter(|word| word >> 32 == hash >> 32).find_map(place_of)
    }

    /// The places of the copies in this hash's bucket.
    pub fn neighbours(&self, hash: u64) -> impl Iterator<Item = Place> {
        self.bucket(hash).iter().filter_map(|slot| place_of(slot.load(Relaxed)))
    }

    /// Removes the copy at `place`, which is in this hash's bucket, from the index.
    pub fn forget_place(&self, hash: u64, place: Place) {
        for slot in self.bucket(hash) {
            if place_of(slot.load(Relaxed)) == Some(place) {
                slot.store(0, Relaxed);
            }
        }
    }

    /// Empties the index.
    pub fn clear(&self) {
        self.index.iter().for_each(|slot| slot.store(0, Relaxed));
    }

    /// The copy at `place`, as it was written.
    pub fn read(&self, place: Place) -> Option<HotCopy> {
        let at = (place.page * UNITS_IN_PAGE + place.unit) * WORDS_IN_UNIT;
        let word = |number: usize| self.pages.get(at + number).map(|word| word.load(Relaxed));
        let len = HotCopy::words_of(word(3)?, word(4)?)?;
        let words = self.pages.get(at..at + len)?.iter().map(|word| word.load(Relaxed)).collect();
        HotCopy::from_words(words)
    }

    /// The key of the copy at `place`.
    pub fn key(&self, place: Place) -> Option<Vec<u8>> {
        let at = (place.page * UNITS_IN_PAGE + place.unit) * WORDS_IN_UNIT;
        let words = self.pages.get(at..at + COPY_LEN_MAX / 8)?;
        HotCopy::key_of(|number| words.get(number).map_or(0, |word| word.load(Relaxed)))
    }

    /// The change words that the copy at `place` was made with.
    pub fn seen(&self, place: Place) -> ChangeCounts {
        let at = (place.page * UNITS_IN_PAGE + place.unit) * WORDS_IN_UNIT;
        let word = |number: usize| self.pages[at + number].load(Relaxed);
        ChangeCounts {
            stripe: word(1),
            flush: word(2),
        }
    }

    /// Makes the copy at `place` stale for good, whatever its stripe's word becomes: the program gives nothing out under unequal halves.
    pub fn spoil(&self, place: Place) {
        self.pages[(place.page * UNITS_IN_PAGE + place.unit) * WORDS_IN_UNIT + 1].store(1, Relaxed);
    }

    /// Removes this hash's copy from the index.
    pub fn forget(&self, hash: u64) {
        for slot in self.bucket(hash) {
            if slot.load(Relaxed) >> 32 == hash >> 32 {
                slot.store(0, Relaxed);
            }
        }
    }

    /// Whether the program has served the copy at `place` since the last call; clears the mark.
    pub fn take_mark(&self, place: Place) -> bool {
        let word = &self.pages[(place.page * UNITS_IN_PAGE + place.unit) * WORDS_IN_UNIT + 3];
        word.fetch_and(!0xFFFF_FFFF, Acquire) & 0xFFFF_FFFF != 0
    }

    fn bucket(&self, hash: u64) -> &[AtomicU64] {
        let bucket = usize::try_from(hash & 0xFFFF_FFFF).unwrap_or(0) & self.bucket_mask();
        &self.index[bucket * SLOTS..][..SLOTS]
    }
}

/// The number of the stripe that this hash is in.
pub(crate) fn stripe_of(hash: u64) -> usize {
    usize::try_from(hash >> (64 - STRIPE_BITS)).unwrap_or(0)
}

/// The index word for a copy.
fn word_of(hash: u64, place: Place) -> u64 {
    (hash >> 32) << 32 | ((place.page + 1) << 10 | place.unit) as u64
}

/// The place in an index word.
fn place_of(word: u64) -> Option<Place> {
    let low = usize::try_from(word & 0xFFFF_FFFF).unwrap_or(0);
    let page = (low >> 10).checked_sub(1)?;
    Some(Place { page, unit: low & 1023 })
}
