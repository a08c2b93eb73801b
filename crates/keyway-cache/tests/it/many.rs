//! Many threads, mappings and processes on one region at once. Its enemy: a value that is torn, stale or lost; an index that
//! its own growth or eviction leaves unsound; anything that depends on where the region is mapped.
//! Guards: P3
#![allow(
    clippy::cast_possible_truncation,
    clippy::print_stdout,
    reason = "a test: its numbers are small, its output is for people"
)]

use keyway_cache::{Cache, Delete, Options, Place, Session, Store, StoreMode, Stored};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};

/// A region's file in memory, removed at the end.
struct Region(PathBuf);

impl Region {
    fn new(name: &str) -> Self {
        let path = PathBuf::from(format!("/dev/shm/keyway-test-{}-{name}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        Self(path)
    }

    fn open(&self, memory: u64) -> Cache {
        let options = Options::new().memory(memory).item_size_max(1 << 19);
        Cache::open(&Place::Path(self.0.clone()), &options).unwrap()
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A value that tells its key, its version and its length, and whose every byte can be checked.
fn make(key: u64, version: u64) -> Vec<u8> {
    let len = 24 + (key.wrapping_mul(31).wrapping_add(version.wrapping_mul(17)) % 400) as usize;
    let len = if (key + version).is_multiple_of(199) {
        len + 50_000
    } else {
        len
    };
    let mut value = Vec::with_capacity(len);
    for word in [key, version, len as u64] {
        value.extend_from_slice(&word.to_le_bytes());
    }
    value.resize(len, (key ^ version).to_le_bytes()[0]);
    value
}

fn version_of(key: u64, value: &[u8]) -> u64 {
    let version = u64::from_le_bytes(value[8..16].try_into().unwrap());
    assert_eq!(value, make(key, version), "key {key}: a value that was never written");
    version
}

fn name(key: u64) -> Vec<u8> {
    format!("k{key}").into_bytes()
}

/// Writes `rounds` versions of each of its own keys; after each write its own last version must be what is there.
fn write_own(session: &mut Session, keys: std::ops::Range<u64>, rounds: u64, evicts: bool) {
    let mut out = Vec::new();
    for version in 1..=rounds {
        for key in keys.clone() {
            let value = make(key, version);
            let stored = session
                .store(
                    &name(key),
                    &value,
                    &Store {
                        mode: StoreMode::Set,
                        ..Store::default()
                    },
                )
                .unwrap();
            assert!(matches!(stored, Stored::Stored { .. }));
            out.clear();
            match session.get_append(&name(key), &mut out).unwrap() {
                Some(_) => assert_eq!(version_of(key, &out), version, "key {key}: not what was just written"),
                None => assert!(evicts, "key {key} version {version} is gone"),
            }
            if (key + version).is_multiple_of(7) && version < rounds {
                session.delete(&name(key), &Delete::default()).unwrap();
                assert!(
                    session.get_append(&name(key), &mut out).unwrap().is_none(),
                    "key {key} is back"
                );
            }
        }
    }
}

/// Reads all keys until told to stop: versions of a key never go back.
fn read_all(session: &mut Session, keys: u64, stop: &AtomicBool) -> u64 {
    let mut last = vec![0; keys as usize];
    let mut out = Vec::new();
    let mut reads = 0;
    while !stop.load(Ordering::Relaxed) {
        for key in 0..keys {
            out.clear();
            if session.get_append(&name(key), &mut out).unwrap().is_some() {
                let version = version_of(key, &out);
                assert!(
                    version >= last[key as usize],
                    "key {key}: version {version} after {}",
                    last[key as usize]
                );
                last[key as usize] = version;
                reads += 1;
            }
        }
    }
    reads
}

fn storm(name: &str, memory: u64, keys_each: u64, rounds: u64, evicts: bool) {
    const WRITERS: u64 = 3;
    let file = Region::new(name);
    let keys = WRITERS * keys_each;
    let stop = AtomicBool::new(false);
    // Every thread has a mapping of its own, at an address of its own.
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|w| {
                let cache = file.open(memory);
                scope.spawn(move || {
                    write_own(
                        &mut cache.session().unwrap(),
                        w * keys_each..(w + 1) * keys_each,
                        rounds,
                        evicts,
                    )
                })
            })
            .collect();
        let reader = scope.spawn(|| read_all(&mut file.open(memory).session().unwrap(), keys, &stop));
        let results: Vec<_> = writers.into_iter().map(|w| w.join()).collect();
        stop.store(true, Ordering::Relaxed);
        println!("{} reads", reader.join().unwrap());
        results.into_iter().for_each(|r| r.unwrap());
    });
    let cache = file.open(memory);
    let counters = cache.counters();
    println!("{counters:?}");
    if !evicts {
        let mut session = cache.session().unwrap();
        let mut out = Vec::new();
        for key in 0..keys {
            out.clear();
            session
                .get_append(&self::name(key), &mut out)
                .unwrap()
                .unwrap_or_else(|| panic!("key {key} is gone"));
            assert_eq!(version_of(key, &out), rounds);
        }
    }
    assert_eq!((counters.evictions > 0, counters.corrupt), (evicts, 0));
    let report = cache.check(|_| {});
    assert!(report.is_sound(), "{:#?}", report.problems);
}

#[test]
fn threads_with_room_for_everything() {
    storm("room", 512 << 20, 20_000, 4, false);
}

#[test]
fn threads_that_evict_all_the_time() {
    storm("tight", 4 << 20, 4_000, 8, true);
}

#[test]
fn inserters_of_the_same_keys_agree() {
    let file = Region::new("same");
    for round in 0..300u64 {
        let winners: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4u64)
                .map(|t| {
                    let cache = file.open(8 << 20);
                    scope.spawn(move || {
                        let mut session = cache.session().unwrap();
                        let add = Store {
                            mode: StoreMode::Add,
                            ..Store::default()
                        };
                        (0..40)
                            .filter(|k| {
                                let key = format!("{round}-{k}");
                                matches!(
                                    session.store(key.as_bytes(), &t.to_le_bytes(), &add).unwrap(),
                                    Stored::Stored { .. }
                                )
                            })
                            .count()
                    })
                })
                .collect();
            threads.into_iter().map(|t| t.join().unwrap()).sum()
        });
        assert_eq!(winners, 40, "each key is added by one thread");
    }
    let report = file.open(8 << 20).check(|_| {});
    assert!(report.is_sound(), "{:#?}", report.problems);
}

#[test]
fn one_region_at_two_addresses_in_one_process() {
    let file = Region::new("twice");
    let (a, b) = (file.open(2 << 20), file.open(2 << 20));
    let (mut a, mut b) = (a.session().unwrap(), b.session().unwrap());
    let mut out = Vec::new();
    for i in 0..2000u64 {
        let (key, value) = (name(i), make(i, 1));
        a.set(&key, &value, 0).unwrap();
        out.clear();
        b.get_append(&key, &mut out).unwrap().unwrap();
        assert_eq!(out, value);
        assert_eq!(b.delete(&key, &Delete::default()).unwrap(), keyway_cache::Deleted::Deleted);
        assert!(a.get_append(&key, &mut out).unwrap().is_none());
    }
}

/// The environment variable by which the test below asks its child for its part.
const CHILD: &str = "KEYWAY_TEST_ROLE";

#[test]
fn one_region_in_two_processes() {
    if let Ok(path) = std::env::var(CHILD) {
        let cache = Cache::open(&Place::Path(path.into()), &Options::new()).unwrap();
        let mut session = cache.session().unwrap();
        let mut out = Vec::new();
        for key in 0..1000 {
            out.clear();
            session.get_append(&name(key), &mut out).unwrap().unwrap();
            assert_eq!(version_of(key, &out), 1);
            session.set(&name(key), &make(key, 2), 0).unwrap();
        }
        return;
    }
    let file = Region::new("processes");
    let cache = file.open(16 << 20);
    let mut session = cache.session().unwrap();
    for key in 0..1000 {
        session.set(&name(key), &make(key, 1), 0).unwrap();
    }
    let child = harness::own_test(&[], module_path!(), "one_region_in_two_processes")
        .env(CHILD, &file.0)
        .stdout(Stdio::null())
        .status()
        .unwrap();
    assert!(child.success());
    let mut out = Vec::new();
    for key in 0..1000 {
        out.clear();
        session.get_append(&name(key), &mut out).unwrap().unwrap();
        assert_eq!(version_of(key, &out), 2);
    }
}

#[test]
fn a_touch_that_finds_no_room_answers_nothing() {
    let file = Region::new("no-room");
    let options = Options::new().memory(2 << 20).evict(false);
    let cache = Cache::open(&Place::Path(file.0.clone()), &options).unwrap();
    let mut session = cache.session().unwrap();
    let full = (0..100_000).find(|i| session.set(&name(*i), &[7; 300], 0).is_err());
    assert!(full.is_some(), "without eviction a region is full at some time");
    let touch = keyway_cache::Get {
        value: true,
        exptime: Some(1000),
        ..keyway_cache::Get::default()
    };
    let mut out = b"before".to_vec();
    let refused = (0..100_000).find_map(|i| {
        let found = session.get_with(&name(i), &touch, &mut out, |_, out| out.extend_from_slice(b"head"));
        match found {
            Ok(Some(_)) => out.truncate(6),
            Ok(None) => {}
            Err(error) => return Some(error),
        }
        None
    });
    assert!(refused.is_some(), "a touch takes room");
    assert_eq!(out, b"before");
}

#[test]
fn what_fits_is_never_evicted() {
    // A hundredth of the region, rewritten until the log has gone round twenty times.
    let file = Region::new("rewritten");
    let cache = file.open(8 << 20);
    let mut session = cache.session().unwrap();
    let keys = 400u64;
    let mut out = Vec::new();
    for version in 1..=2000 {
        for key in 0..keys {
            session.set(&name(key), &make(key, version), 0).unwrap();
        }
        for key in (0..keys).step_by(37) {
            out.clear();
            session
                .get_append(&name(key), &mut out)
                .unwrap()
                .unwrap_or_else(|| panic!("key {key} is gone in round {version}"));
            assert_eq!(version_of(key, &out), version);
        }
    }
    let counters = cache.counters();
    assert_eq!((counters.evictions, counters.curr_items), (0, keys));
    assert!(counters.segments_recycled > 1000, "{counters:?}");
}
