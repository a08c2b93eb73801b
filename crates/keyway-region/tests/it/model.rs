//! Random verbs against a map, in a region of a few dozen small segments, so that copies, chains, splits, expiry, flushes and gaps come
//! in every mixture. Its enemy: whatever an item is to keep when it is moved or made anew, and does not: value, flags, CAS unique,
//! lifetime, stale mark; and memory that is not free when all is gone.
//! Guards: P14
#![allow(
    clippy::print_stdout,
    clippy::cast_possible_truncation,
    reason = "a test: its numbers are small, its output is for people"
)]

use crate::private;
use harness::Random;
use keyway_region::verbs::{Arithmetic, Counted, Delete, Deleted, Get, Store, StoreMode, Stored, WriteError};
use keyway_region::{Limits, Moment, Process, Region, Session, check};
use private::{Page, UNIX_S};
use std::collections::HashMap;
use std::sync::Arc;

#[derive(Clone, Debug, PartialEq)]
struct Entry {
    value: Vec<u8>,
    flags: u32,
    cas: u64,
    /// seconds on the region's clock; `None`: never
    expiry: Option<u32>,
    stale: bool,
}

struct World {
    region: Arc<Region>,
    process: Process,
    sessions: Vec<Session>,
    evicts: bool,
    map: HashMap<u64, Entry>,
    second: i64,
    /// when a delayed flush begins
    flush_at: Option<u32>,
    _pages: Vec<Page>,
}

const SESSIONS: u64 = 3;

impl World {
    fn new(memory: u64, evicts: bool) -> Self {
        let (pages, region) = private::region(memory);
        let process = region.recovery().attach(0, 1, UNIX_S);
        let mut world = Self {
            region,
            process,
            sessions: Vec::new(),
            evicts,
            map: HashMap::new(),
            second: 1,
            flush_at: None,
            _pages: pages,
        };
        world.open_sessions();
        world
    }

    fn open_sessions(&mut self) {
        self.region.limits().write(&Limits {
            item_size_max: 1 << 18,
            evict: self.evicts,
            ..Limits::default()
        });
        let open = |_| self.region.session(self.process).expect("a slot");
        self.sessions = (0..SESSIONS).map(open).collect();
    }

    fn now(&self) -> u32 {
        self.region.clock().tick(Moment::from_secs(UNIX_S + self.second))
    }

    fn look(&mut self, key: u64, rng: &mut Random) -> Option<Entry> {
        let now = self.now();
        let how = Get {
            value: true,
            details: true,
            ..Get::default()
        };
        let mut value = Vec::new();
        let session = &mut self.sessions[rng.below(SESSIONS) as usize];
        let item = session.get(&name(key), &how, now, &mut value).expect("a good key")?;
        assert_eq!(item.value_len, value.len());
        Some(Entry {
            value,
            flags: item.flags,
            cas: item.cas,
            expiry: item.ttl_s.map(|ttl| now + ttl),
            stale: item.stale,
        })
    }

    /// The key is as the map says; one that was evicted is forgotten.
    fn agree(&mut self, key: u64, rng: &mut Random, what: &str) {
        let now = self.now();
        if self.flush_at.is_some_and(|at| at <= now) {
            self.flush_at = None;
            self.map.clear();
        }
        if self
            .map
            .get(&key)
            .is_some_and(|entry| entry.expiry.is_some_and(|at| at <= now))
        {
            self.map.remove(&key);
        }
        let seen = self.look(key, rng);
        if seen.is_none() && self.evicts {
            self.map.remove(&key);
        }
        assert_eq!(seen.as_ref(), self.map.get(&key), "{what}: key {key}");
    }

    /// What a change has made of the key: the unique is new, the rest is as told.
    fn expect(&mut self, key: u64, changed: Entry, rng: &mut Random) {
        let seen = self.look(key, rng).expect("it was just stored");
        let before = self.map.insert(
            key,
            Entry {
                cas: seen.cas,
                ..changed
            },
        );
        if let Some(before) = before {
            assert!(
                before.cas != seen.cas || before.value == seen.value,
                "another value under the same unique"
            );
        }
        assert_eq!(Some(&seen), self.map.get(&key));
    }

    fn step(&mut self, rng: &mut Random, keys: u64, longest: u64) {
        let key = rng.below(keys);
        self.agree(key, rng, "before");
        let now = self.now();
        let before = self.map.get(&key).cloned();
        let bytes = name(key);
        let ttl_s = [0u32, 0, 30, 90, 300][rng.below(5) as usize];
        let (exptime, expiry) = (i64::from(ttl_s), (ttl_s != 0).then(|| now + ttl_s));
        let session = rng.below(SESSIONS) as usize;
        let session = &mut self.sessions[session];
        let choice = rng.below(100);
        match choice {
            0..45 => {
                let len = match rng.below(12) {
                    0 => rng.below(longest),
                    1..4 => rng.below(3000),
                    _ => rng.below(200),
                };
                let number = key.is_multiple_of(4);
                let value = if number {
                    rng.below(1 << 30).to_string().into_bytes()
                } else {
                    filled(rng, len)
                };
                let flags = [0, 7, u32::MAX][rng.below(3) as usize];
                let mode = [
                    StoreMode::Set,
                    StoreMode::Set,
                    StoreMode::Set,
                    StoreMode::Add,
                    StoreMode::Replace,
                ][rng.below(5) as usize];
                let how = Store {
                    mode,
                    flags,
                    exptime,
                    ..Store::default()
                };
                let fits = match mode {
                    StoreMode::Add => before.is_none(),
                    StoreMode::Replace => before.is_some(),
                    _ => true,
                };
                match session.store(&bytes, &value, &how, now) {
                    Ok(Stored::Stored { .. }) => {
                        assert!(fits);
                        let stale = false;
                        self.expect(
                            key,
                            Entry {
                                value,
                                flags,
                                cas: 0,
                                expiry,
                                stale,
                            },
                            rng,
                        );
                    }
                    Ok(Stored::NotStored) => assert!(!fits),
                    Err(WriteError::OutOfMemory) => assert!(!self.evicts, "an evicting region refuses nothing"),
                    other => panic!("{other:?}"),
                }
            }
            45..60 => {
                // Numbers stay numbers: digits.
                let more = if key.is_multiple_of(4) {
                    vec![b'0' + rng.below(10) as u8]
                } else {
                    filled(rng, 60)
                };
                let mode = [StoreMode::Append, StoreMode::Prepend][rng.below(2) as usize];
                let how = Store {
                    mode,
                    ..Store::default()
                };
                match (session.store(&bytes, &more, &how, now), before) {
                    (Ok(Stored::Stored { .. }), Some(old)) => {
                        let value = if mode == StoreMode::Append {
                            [old.value.clone(), more].concat()
                        } else {
                            [more, old.value.clone()].concat()
                        };
                        self.expect(
                            key,
                            Entry {
                                value,
                                stale: false,
                                ..old
                            },
                            rng,
                        );
                    }
                    (Ok(Stored::NotStored), None) | (Err(WriteError::OutOfMemory), _) => {}
                    other => panic!("{other:?}"),
                }
            }
            60..70 => {
                let how = Arithmetic {
                    delta: rng.below(1000),
                    ..Arithmetic::default()
                };
                match (session.arithmetic(&bytes, &how, now), before) {
                    (Ok(Counted::Value { value, .. }), Some(old)) => {
                        let text = String::from_utf8_lossy(&old.value).trim().to_owned();
                        assert_eq!(Ok(value), text.parse::<u64>().map(|n| n.wrapping_add(how.delta)));
                        let value = format!("{value:<width$}", width = old.value.len()).into_bytes();
                        self.expect(key, Entry { value, ..old }, rng);
                    }
                    (Ok(Counted::NotFound), None) | (Ok(Counted::NotANumber), Some(_)) | (Err(WriteError::OutOfMemory), _) => {}
                    other => panic!("{other:?}"),
                }
            }
            70..80 => match (session.touch(&bytes, exptime, now), before) {
                (Ok(true), Some(old)) => {
                    self.map.insert(key, Entry { expiry, ..old });
                }
                (Ok(false), None) | (Err(WriteError::OutOfMemory), _) => {}
                other => panic!("{other:?}"),
            },
            80..90 => {
                let deleted = session.delete(&bytes, &Delete::default(), now).expect("a good key");
                assert_eq!(deleted == Deleted::Deleted, before.is_some());
                self.map.remove(&key);
            }
            90..96 => {
                let how = Delete {
                    invalidate: true,
                    ..Delete::default()
                };
                match (session.delete(&bytes, &how, now), before) {
                    (Ok(Deleted::Deleted), Some(old)) => self.expect(key, Entry { stale: true, ..old }, rng),
                    (Ok(Deleted::NotFound), None) | (Err(WriteError::OutOfMemory), _) => {}
                    other => panic!("{other:?}"),
                }
            }
            _ => self.step_rarely(rng),
        }
        self.agree(key, rng, "afterwards");
    }

    fn step_rarely(&mut self, rng: &mut Random) {
        let now = self.now();
        match rng.below(60) {
            0 => {
                self.sessions[0].flush_all(0, now).expect("epochs are left");
                self.map.clear();
                self.flush_at = None;
            }
            1 => {
                self.sessions[1].flush_all(40, now).expect("epochs are left");
                self.flush_at = Some(now + 40);
            }
            2 => {
                // No process is attached meanwhile.
                self.sessions.clear();
                self.region.mapped().make_stale();
                self.open_sessions();
                self.map.values_mut().for_each(|entry| entry.stale = true);
            }
            3..6 => {
                let one = rng.below(SESSIONS) as usize;
                self.sessions[one].upkeep(now);
            }
            _ => self.second += 1 + rng.below(3).cast_signed(),
        }
    }

    /// All is as the map says, sound, and free when it is flushed.
    fn end(mut self, rng: &mut Random) {
        let mut keys: Vec<u64> = self.map.keys().copied().collect();
        keys.sort_unstable();
        for key in keys {
            self.agree(key, rng, "at the end");
        }
        let now = self.now();
        self.sessions[0].flush_all(0, now).expect("epochs are left");
        self.sessions.truncate(1);
        self.sessions[0].release_extents();
        for _ in 0..40 {
            self.sessions[0].upkeep(now);
        }
        let report = check::check(&self.region, |_| {});
        assert!(report.is_sound(), "{:#?}", report.problems);
        let counts = report.counts;
        let kept = counts.index + counts.hints + counts.ghosts;
        assert_eq!(
            counts.free + counts.withdrawn + kept,
            self.region.mapped().segments(),
            "all is flushed: {counts:?}"
        );
        assert_eq!(counts.free_counted, counts.free as u64);
        assert_eq!(self.region.threads().counters().corrupt, 0);
    }
}

fn name(key: u64) -> Vec<u8> {
    format!("key-{key}").into_bytes()
}

fn filled(rng: &mut Random, len: u64) -> Vec<u8> {
    let start = rng.below(256);
    (0..len).map(|i| ((start + i) % 251) as u8).collect()
}

fn run(seed: u64, memory: u64, keys: u64, longest: u64, steps: u64, evicts: bool) -> u64 {
    println!(
        "seed {seed}: {} KiB, {keys} keys, values to {longest} B, {steps} steps",
        memory >> 10
    );
    let mut rng = Random::new(seed);
    let mut world = World::new(memory, evicts);
    for step in 0..steps {
        world.step(&mut rng, keys, longest);
        if step % 500 == 0 {
            for key in 0..keys {
                world.agree(key, &mut rng, "now and then");
            }
        }
    }
    let counters = world.region.threads().counters();
    println!("{counters:?}");
    world.end(&mut rng);
    counters.relocations
}

#[test]
fn few_keys_in_few_segments() {
    for seed in 1..5 {
        let copied = run(seed, 700 << 10, 60, 20_000, 12_000, false);
        assert!(copied > 0, "nothing was copied");
    }
}

#[test]
fn many_keys_in_few_segments() {
    for seed in 11..13 {
        run(seed, 1 << 20, 1500, 40_000, 20_000, true);
    }
}

#[test]
fn an_index_that_doubles() {
    run(21, 3 << 20, 12_000, 300, 60_000, false);
}

#[test]
fn keys_in_third_buckets_are_found_before_and_after_the_index_doubles() {
    let mut world = World::new(2 << 20, false);
    let mut rng = Random::new(5);
    let now = world.now();
    let seed = world.region.mapped().seed();
    let buckets = world.region.mapped().layout().shape.buckets_initial as u64;
    let place = |key: u64| keyway_region::all_choices(keyway_region::hash(seed, &name(key))).map(|choice| choice % buckets);
    let [a, b, _] = place(0);
    let same: Vec<u64> = (0..)
        .filter(|key| matches!(place(*key), [one, other, _] if [one, other] == [a, b] || [one, other] == [b, a]))
        .take(24)
        .collect();
    let others = 10_000_000..10_012_000;
    for key in same.iter().copied().chain(others) {
        let value = key.to_string();
        let stored = world.sessions[0].store(&name(key), value.as_bytes(), &Store::default(), now);
        assert!(matches!(stored, Ok(Stored::Stored { .. })), "{key}: {stored:?}");
    }
    assert!(world.region.directory().index_buckets() > 2 * buckets);
    for key in same {
        let found = world.look(key, &mut rng).map(|entry| entry.value);
        assert_eq!(found, Some(key.to_string().into_bytes()));
        assert_eq!(
            world.sessions[0].delete(&name(key), &Delete::default(), now),
            Ok(Deleted::Deleted)
        );
        assert_eq!(world.look(key, &mut rng), None, "{key} was there twice");
    }
    let report = check::check(&world.region, |_| {});
    assert!(report.is_sound(), "{:#?}", report.problems);
}
