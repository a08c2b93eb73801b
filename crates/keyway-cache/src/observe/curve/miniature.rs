//! A small copy of the region's eviction, for a sample of the keys: what it misses, a region of another size would miss.
//!
//! It follows `keyway-region`'s `reclaim/evict.rs`, item by item where the region goes by segments: an admission pool of a twentieth, a
//! main pool with second chances from a frequency of two bits, and as many ghosts as items (Waldspurger, Saemundsson, Ahmad, Park:
//! "Cache modeling and optimization using miniature simulations", ATC 2017).

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use keyway_region::layout::trail::{Fate, Footprint};

/// The admission pool's share: one in this many bytes.
const ADMISSION_SHARE: u64 = 20;
/// Highest frequency.
const FREQUENCY_MAX: u8 = 3;
/// Keys are divided into so many groups, from whose differences the error of the sampling follows.
pub(super) const GROUPS: usize = 16;
/// An item takes at least so many bytes, whatever the trail says.
const SIZE_MIN: u32 = 16;

#[derive(Clone, Copy, Debug)]
struct Entry {
    size: u32,
    in_main: bool,
    frequency: u8,
    /// its place in the queue: older ones are void
    since: u32,
    /// second in which it expires
    expires_s: Option<u64>,
}

/// Keys are bits of a hash already.
#[derive(Default)]
pub(super) struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0 << 8 | u64::from(*byte);
        }
    }

    fn write_u64(&mut self, key: u64) {
        // The top bits are those that chose the sample.
        self.0 = key.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(32);
    }
}

type Map<V> = HashMap<u64, V, BuildHasherDefault<AsItIs>>;

/// A queue whose entries are void if their key has a later one.
type Queue = VecDeque<(u64, u32)>;

/// A region of some size, for the keys of the sample.
#[derive(Default)]
pub(super) struct Miniature {
    /// bytes of items that it holds
    pub capacity: u64,
    used: u64,
    in_admission: u64,
    entries: Map<Entry>,
    admission: Queue,
    main: Queue,
    ghosts: Map<u32>,
    ghost_queue: Queue,
    clock: u32,
    /// how many keys one of the sample stands for
    pub weight: u64,
    /// misses of gets, by group of keys, each counted with the weight that it had
    pub misses: [u64; GROUPS],
    /// bytes of items put in, and bytes evicted
    pub inserted: u64,
    pub evicted: u64,
}

/// The second in which an item expires.
fn expires_s(footprint: Footprint, now_s: u64) -> Option<u64> {
    footprint.ttl_s.map(|ttl_s| now_s + u64::from(ttl_s))
}

/// The group of a key.
pub(super) fn group_of(key: u64) -> usize {
    usize::try_from(key % GROUPS as u64).unwrap_or(0)
}

impl Miniature {
    /// A step of the trail, at this second.
    pub fn step(&mut self, key: u64, fate: Fate, now_s: u64) {
        match fate {
            Fate::Gone => self.remove(key),
            Fate::Stored(footprint) => self.put(key, footprint, now_s),
            Fate::Missed => {
                if !self.get(key, now_s) {
                    self.miss(key);
                }
            }
            Fate::Hit(footprint) => {
                if let Some(entry) = self.entries.get_mut(&key) {
                    // As it is in the region, whatever the trail has lost or rounded.
                    entry.expires_s = expires_s(footprint, now_s);
                }
                if !self.get(key, now_s) {
                    self.miss(key);
                    // After a miss, the application would have stored it.
                    self.put(key, footprint, now_s);
                }
            }
        }
    }

    /// Items held.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Bytes of the items held.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// Puts an item into the main pool, as one that was there before.
    pub fn seed(&mut self, key: u64, footprint: Footprint, is_fetched: bool, now_s: u64) {
        self.insert(key, footprint, (true, u8::from(is_fetched)), now_s);
        self.fit();
    }

    /// Keeps the keys of which this is true, half of them, and the same share of the capacity.
    pub fn halve(&mut self, is_kept: impl Fn(u64) -> bool) {
        self.weight *= 2;
        self.capacity /= 2;
        self.inserted /= 2;
        self.evicted /= 2;
        let gone: Vec<u64> = self.entries.keys().filter(|key| !is_kept(**key)).copied().collect();
        gone.into_iter().for_each(|key| self.remove(key));
        self.ghosts.retain(|key, _| is_kept(*key));
        self.tidy();
    }

    /// As after a flush.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.tidy();
        (self.used, self.in_admission) = (0, 0);
    }

    fn miss(&mut self, key: u64) {
        if let Some(misses) = self.misses.get_mut(group_of(key)) {
            *misses = misses.wrapping_add(self.weight);
        }
    }

    fn get(&mut self, key: u64, now_s: u64) -> bool {
        let Some(entry) = self.entries.get_mut(&key) else {
            return false;
        };
        if entry.expires_s.is_some_and(|expires_s| expires_s <= now_s) {
            self.remove(key);
            return false;
        }
        entry.frequency = (entry.frequency + 1).min(FREQUENCY_MAX);
        true
    }

    fn put(&mut self, key: u64, footprint: Footprint, now_s: u64) {
        let (in_main, frequency) = match self.entries.get(&key) {
            Some(old) => (old.in_main, old.frequency),
            None => (self.ghosts.remove(&key).is_some(), 0),
        };
        self.insert(key, footprint, (in_main, frequency), now_s);
        self.inserted += u64::from(footprint.size);
        self.fit();
    }

    /// In the place of an older one of this key: there may be one even at the beginning, if the index grew while it was walked.
    fn insert(&mut self, key: u64, footprint: Footprint, (in_main, frequency): (bool, u8), now_s: u64) {
        self.remove(key);
        self.clock = self.clock.wrapping_add(1);
        let entry = Entry {
            size: footprint.size.max(SIZE_MIN),
            in_main,
            frequency,
            since: self.clock,
            expires_s: expires_s(footprint, now_s),
        };
        self.used += u64::from(entry.size);
        if in_main {
            self.main.push_back((key, entry.since));
        } else {
            self.in_admission += u64::from(entry.size);
            self.admission.push_back((key, entry.since));
        }
        self.entries.insert(key, entry);
    }

    fn remove(&mut self, key: u64) {
        if let Some(entry) = self.entries.remove(&key) {
            self.used -= u64::from(entry.size);
            if !entry.in_main {
                self.in_admission -= u64::from(entry.size);
            }
        }
    }

    /// Evicts until it has its capacity.
    fn fit(&mut self) {
        while self.used > self.capacity && !self.entries.is_empty() {
            if self.in_admission * ADMISSION_SHARE >= self.used {
                self.reclaim_admission();
            } else {
                self.reclaim_main();
            }
        }
        if self.admission.len() + self.main.len() > 2 * self.entries.len() + 64
            || self.ghost_queue.len() > 2 * self.ghosts.len() + 64
        {
            self.tidy();
        }
    }

    fn reclaim_admission(&mut self) {
        let Some((key, since)) = self.admission.pop_front() else {
            return;
        };
        let Some(entry) = self.entries.get_mut(&key).filter(|entry| entry.since == since) else {
            return;
        };
        if entry.frequency > 0 {
            (entry.in_main, entry.frequency) = (true, 0);
            self.in_admission -= u64::from(entry.size);
            self.main.push_back((key, since));
            return;
        }
        self.evicted += u64::from(entry.size);
        self.remove(key);
        self.ghosts.insert(key, since);
        self.ghost_queue.push_back((key, since));
        while self.ghosts.len() > self.entries.len().max(1) {
            let Some((key, since)) = self.ghost_queue.pop_front() else {
                return;
            };
            if self.ghosts.get(&key) == Some(&since) {
                self.ghosts.remove(&key);
            }
        }
    }

    fn reclaim_main(&mut self) {
        let Some((key, since)) = self.main.pop_front() else { return };
        let Some(entry) = self.entries.get_mut(&key).filter(|entry| entry.since == since) else {
            return;
        };
        if entry.frequency > 0 {
            entry.frequency -= 1;
            self.main.push_back((key, since));
            return;
        }
        self.evicted += u64::from(entry.size);
        self.remove(key);
    }

    /// Drops void entries of the queues.
    fn tidy(&mut self) {
        let entries = &self.entries;
        let is_valid = |(key, since): &(u64, u32)| entries.get(key).is_some_and(|entry| entry.since == *since);
        self.admission.retain(is_valid);
        self.main.retain(is_valid);
        let ghosts = &self.ghosts;
        self.ghost_queue.retain(|(key, since)| ghosts.get(key) == Some(since));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ITEM: Footprint = Footprint { size: 100, ttl_s: None };

    fn holding(items: u64) -> Miniature {
        Miniature {
            capacity: 100 * items,
            weight: 1,
            ..Miniature::default()
        }
    }

    fn misses(cache: &mut Miniature, work: impl FnOnce(&mut Miniature)) -> u64 {
        let before: u64 = cache.misses.iter().sum();
        work(cache);
        cache.misses.iter().sum::<u64>() - before
    }

    /// As an application that sets what it missed in a region that has everything.
    fn ask(cache: &mut Miniature, keys: impl IntoIterator<Item = u64>) {
        keys.into_iter().for_each(|key| cache.step(key, Fate::Hit(ITEM), 0));
    }

    #[test]
    fn what_was_hit_survives_a_scan_and_what_comes_back_stays() {
        let mut cache = holding(100);
        ask(&mut cache, [1, 1]);
        ask(&mut cache, 1000..1500);
        assert_eq!(misses(&mut cache, |cache| ask(cache, [1])), 0);
        assert!(cache.len() <= 100 && cache.used <= cache.capacity);
        // Evicted without a hit, and asked for again soon.
        let evicted = (1000..1500).rev().find(|key| !cache.entries.contains_key(key));
        ask(&mut cache, evicted);
        assert!(evicted.is_some_and(|key| cache.entries[&key].in_main));
    }

    #[test]
    fn an_item_that_is_found_twice_at_the_beginning_counts_once() {
        let mut cache = holding(100);
        for key in 0..500 {
            cache.seed(key, ITEM, false, 0);
            cache.seed(key, ITEM, true, 0);
        }
        assert_eq!((cache.len(), cache.used), (100, cache.capacity));
        ask(&mut cache, 1000..1100);
        assert_eq!((cache.len(), cache.used), (100, cache.capacity));
    }

    #[test]
    fn a_key_that_the_application_does_not_set_is_missed_each_time() {
        let mut cache = holding(100);
        let ask = |cache: &mut Miniature| (0..10).for_each(|_| cache.step(7, Fate::Missed, 0));
        assert_eq!(misses(&mut cache, ask), 10);
        cache.step(7, Fate::Stored(ITEM), 0);
        assert_eq!(misses(&mut cache, ask), 0);
        cache.step(7, Fate::Gone, 0);
        assert_eq!(misses(&mut cache, ask), 10, "deleted");
        assert_eq!((cache.used, cache.in_admission, cache.len()), (0, 0, 0));
    }

    #[test]
    fn items_expire_and_are_flushed() {
        let mut cache = holding(100);
        let short = Footprint { ttl_s: Some(5), ..ITEM };
        cache.step(1, Fate::Stored(short), 10);
        cache.step(2, Fate::Stored(ITEM), 10);
        let ask_at = |now_s| move |cache: &mut Miniature| [1, 2].into_iter().for_each(|key| cache.step(key, Fate::Missed, now_s));
        assert_eq!(misses(&mut cache, ask_at(14)), 0);
        assert_eq!(misses(&mut cache, ask_at(15)), 1);
        cache.step(1, Fate::Stored(short), 20);
        cache.step(1, Fate::Hit(Footprint { ttl_s: Some(60), ..ITEM }), 21);
        assert_eq!(misses(&mut cache, ask_at(80)), 0, "it was touched");
        cache.clear();
        assert_eq!(misses(&mut cache, ask_at(15)), 2);
        assert_eq!((cache.used, cache.in_admission), (0, 0));
    }

    #[test]
    fn half_of_the_keys_stand_for_all() {
        let mut cache = holding(1000);
        ask(&mut cache, (0..3000).chain(0..3000));
        let before: u64 = cache.misses.iter().sum();
        cache.halve(|key| key % 2 == 0);
        assert_eq!((cache.capacity, cache.weight), (50_000, 2));
        assert!((450..=500).contains(&cache.len()), "{}", cache.len());
        assert!(cache.entries.keys().chain(cache.ghosts.keys()).all(|key| key % 2 == 0));
        ask(&mut cache, (10_000..11_000).map(|key| 2 * key));
        assert_eq!(cache.misses.iter().sum::<u64>() - before, 2000);
        assert!(cache.used <= cache.capacity);
    }

    #[test]
    fn rewritten_items_leave_no_queue_that_grows() {
        let mut cache = holding(100);
        for round in 0..10_000 {
            cache.step(round % 10, Fate::Stored(ITEM), 0);
            cache.step(1000 + round % 7, Fate::Gone, 0);
        }
        assert!(cache.admission.len() + cache.main.len() < 200);
        assert_eq!((cache.len(), cache.used, cache.evicted), (10, 1000, 0));
        // Sizes that cannot be: nothing is divided by them, and nothing grows.
        cache.step(1, Fate::Stored(Footprint { size: 0, ttl_s: None }), 0);
        cache.step(
            2,
            Fate::Stored(Footprint {
                size: u32::MAX,
                ttl_s: None,
            }),
            u64::from(u32::MAX),
        );
        assert!(cache.used <= cache.capacity);
    }
}
