//! S3-FIFO item by item (Yang, Zhang, Qiu, Yue, Rashmi: "FIFO queues are all you need for cache eviction", SOSP 2023,
//! algorithm 1): what Keyway's segments approximate. It holds a number of items, whatever their sizes.

use crate::Contender;
use crate::trace::Request;
use keyway_bench::workload::mix;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::io;

/// The small queue's share: one in this many items.
const SMALL_SHARE: usize = 10;
/// Highest frequency.
const FREQUENCY_MAX: u8 = 3;

/// What is changed to see whether the comparison notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// the algorithm
    Whole,
    /// every item goes through the small queue without a second chance: a FIFO
    Fifo,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Small,
    Main,
    Ghost,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    place: Place,
    frequency: u8,
    /// when it became a ghost: an older place in the ghost queue is void
    since: u64,
}

/// A cache of items.
pub struct S3Fifo {
    capacity: usize,
    promoted_from: u8,
    variant: Variant,
    entries: HashMap<u64, Entry, BuildHasherDefault<Mixed>>,
    small: VecDeque<u64>,
    main: VecDeque<u64>,
    ghosts: VecDeque<(u64, u64)>,
    time: u64,
}

impl S3Fifo {
    /// Room for so many items. An item goes from the small queue to the main one after `promoted_from` hits.
    pub fn new(capacity: usize, promoted_from: u8, variant: Variant) -> Self {
        Self {
            capacity: capacity.max(SMALL_SHARE),
            promoted_from,
            variant,
            entries: HashMap::default(),
            small: VecDeque::new(),
            main: VecDeque::new(),
            ghosts: VecDeque::new(),
            time: 0,
        }
    }

    /// Asks for a key and puts it in if it is missed. Whether it was there.
    pub fn request(&mut self, id: u64) -> bool {
        self.time += 1;
        let known = self.entries.get_mut(&id);
        if let Some(entry) = known
            && entry.place != Place::Ghost
        {
            entry.frequency = (entry.frequency + 1).min(FREQUENCY_MAX);
            return true;
        }
        let place = match self.entries.remove(&id) {
            Some(_) if self.variant == Variant::Whole => Place::Main,
            _ => Place::Small,
        };
        while self.small.len() + self.main.len() >= self.capacity {
            if self.small.len() >= self.capacity / SMALL_SHARE || self.main.is_empty() {
                self.evict_small();
            } else {
                self.evict_main();
            }
        }
        self.put(id, place);
        false
    }

    fn put(&mut self, id: u64, place: Place) {
        let entry = Entry {
            place,
            frequency: 0,
            since: self.time,
        };
        self.entries.insert(id, entry);
        match place {
            Place::Main => self.main.push_back(id),
            _ => self.small.push_back(id),
        }
    }

    fn evict_small(&mut self) {
        while let Some(id) = self.small.pop_front() {
            let Some(entry) = self.entries.get_mut(&id) else { continue };
            if entry.frequency >= self.promoted_from && self.variant == Variant::Whole {
                *entry = Entry {
                    place: Place::Main,
                    frequency: 0,
                    since: self.time,
                };
                self.main.push_back(id);
                if self.main.len() > self.capacity - self.capacity / SMALL_SHARE {
                    return self.evict_main();
                }
            } else {
                entry.place = Place::Ghost;
                entry.since = self.time;
                self.ghosts.push_back((id, self.time));
                self.forget();
                return;
            }
        }
    }

    fn evict_main(&mut self) {
        while let Some(id) = self.main.pop_front() {
            let Some(entry) = self.entries.get_mut(&id) else { continue };
            if entry.frequency == 0 {
                self.entries.remove(&id);
                return;
            }
            entry.frequency -= 1;
            self.main.push_back(id);
        }
    }

    /// As many ghosts as the main queue has room for items.
    fn forget(&mut self) {
        while self.ghosts.len() > self.capacity - self.capacity / SMALL_SHARE {
            let Some((id, since)) = self.ghosts.pop_front() else { return };
            if self
                .entries
                .get(&id)
                .is_some_and(|e| e.place == Place::Ghost && e.since == since)
            {
                self.entries.remove(&id);
            }
        }
    }
}

impl Contender for S3Fifo {
    fn replay(&mut self, requests: &[Request]) -> io::Result<u64> {
        Ok(requests.iter().map(|r| u64::from(!self.request(r.id))).sum())
    }
}

/// Keys are numbers: their mixture is their hash.
#[derive(Default)]
pub struct Mixed(u64);

impl Hasher for Mixed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = mix(self.0 ^ u64::from(*byte));
        }
    }

    fn write_u64(&mut self, n: u64) {
        self.0 = mix(n);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hit_item_survives_a_scan() {
        let mut cache = S3Fifo::new(100, 1, Variant::Whole);
        assert!(!cache.request(1) && cache.request(1));
        (1000..1500).for_each(|id| assert!(!cache.request(id)));
        assert!(cache.request(1));
        let mut fifo = S3Fifo::new(100, 1, Variant::Fifo);
        assert!(!fifo.request(1) && fifo.request(1));
        (1000..1500).for_each(|id| assert!(!fifo.request(id)));
        assert!(!fifo.request(1));
    }

    #[test]
    fn a_ghost_comes_back_to_the_main_queue() {
        let mut cache = S3Fifo::new(100, 1, Variant::Whole);
        (0..101).for_each(|id| assert!(!cache.request(id)));
        assert!(!cache.request(0), "evicted");
        assert_eq!(cache.entries[&0].place, Place::Main);
        assert!(cache.small.len() + cache.main.len() <= 100);
    }
}
