//! The library door, one thread: what `maps` leaves out. Gets of absent keys, sets of new ones, with space and while evicting, `delete`
//! and `incr`; sets and deletes beside a `DashMap` in the same run.
//!
//! Criterion measures. Groups are named for the operation, so that `cargo bench -p benches --bench library -- delete` runs some of
//! them. `KEYWAY_BENCH_MEMORY_MIB` sets the region's size (64, the default of `keyway serve`). Every operation's answer is checked.

use benches::report::say;
use benches::requests::{Popularity, keys};
use benches::workload::{Key, key};
use benches::{gate, machine};
use criterion::Criterion;
use dashmap::DashMap;
use keyway_cache::{Arithmetic, Cache, Counted, Delete, Deleted, Options, Place, Session, Store, Stored};
use std::hint::black_box;
use std::time::{Duration, Instant};

const VALUE_LEN: usize = 128;
/// Everything fits the second-level cache, or nearly.
const ITEMS: u64 = 10_000;
/// The keys from this one on have no item.
const ABSENT: u64 = 10_000_000;
const SEED: u64 = 42;
/// Where this benchmark runs: interrupts and the default of all other programs are on CPU 0.
const CPU: usize = 1;

fn main() {
    say(gate::describe());
    if machine::cpus() > CPU {
        machine::pin(&[CPU]).expect("this process may choose its CPU");
    }
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_secs(1))
        .measurement_time(Duration::from_secs(3))
        .sample_size(50)
        .configure_from_args();
    measure(&mut criterion);
    criterion.final_summary();
}

fn measure(criterion: &mut Criterion) {
    let memory_mib = std::env::var("KEYWAY_BENCH_MEMORY_MIB")
        .ok()
        .and_then(|v| v.parse().ok())
        .unwrap_or(64);
    let mut keyway = Keyway::filled(ITEMS, memory_mib << 20);
    let dashmap = filled(ITEMS);
    let mut group = criterion.benchmark_group("get/miss");
    group.bench_function("keyway", |b| keyway.bench_misses(b));
    group.finish();

    let mut group = criterion.benchmark_group("set/fresh");
    group.bench_function("keyway", |b| b.iter_custom(|count| keyway.set_and_delete(count).0));
    group.bench_function("dashmap", |b| b.iter_custom(|count| insert_and_remove(&dashmap, count).0));
    group.finish();

    let mut group = criterion.benchmark_group("delete");
    group.bench_function("keyway", |b| b.iter_custom(|count| keyway.set_and_delete(count).1));
    group.bench_function("dashmap", |b| b.iter_custom(|count| insert_and_remove(&dashmap, count).1));
    group.finish();

    let order = keys(ITEMS, Popularity::Uniform, 1 << 14, SEED);
    let mut group = criterion.benchmark_group("incr");
    keyway.store_all(ITEMS, b"1000000000");
    group.bench_function("keyway", |b| keyway.bench_incr(b, &order));
    group.bench_function("keyway-one-item", |b| keyway.bench_incr(b, &order[..1]));
    group.finish();

    // Last, because nothing of the above is left afterwards: every set finds the region full.
    let mut group = criterion.benchmark_group("set/fresh-evicting");
    let mut fresh = ABSENT;
    keyway.fill_until_evicting(&mut fresh);
    group.bench_function("keyway", |b| keyway.bench_fresh(b, &mut fresh));
    group.finish();
}

/// A region of its own and the one session that uses it.
struct Keyway {
    session: Session,
    cache: Cache,
}

impl Keyway {
    fn filled(items: u64, memory: u64) -> Self {
        let options = Options::new().memory(memory).prefault(true);
        let cache = Cache::open(&Place::Memfd, &options).expect("a region in anonymous memory");
        let session = cache.session().expect("the first session");
        let mut this = Self { session, cache };
        this.store_all(items, &[b'v'; VALUE_LEN]);
        assert_eq!(this.cache.counters().evictions, 0, "all items fit");
        this
    }

    fn store_all(&mut self, items: u64, value: &[u8]) {
        for index in 0..items {
            self.set(&key(index), value);
        }
    }

    fn set(&mut self, key: &Key, value: &[u8]) {
        let stored = self
            .session
            .store(key, value, &Store::default())
            .expect("a set is not refused");
        assert!(matches!(stored, Stored::Stored { .. }));
    }

    /// Times of `count` sets of absent keys and of as many deletes of present ones, in batches of [`ITEMS`].
    fn set_and_delete(&mut self, count: u64) -> (Duration, Duration) {
        let value = [b'w'; VALUE_LEN];
        in_batches(count, |batch| {
            let started = Instant::now();
            for key in batch {
                self.set(black_box(key), black_box(&value));
            }
            let set = started.elapsed();
            let started = Instant::now();
            for key in batch {
                let deleted = self.session.delete(black_box(key), &Delete::default());
                assert!(matches!(deleted, Ok(Deleted::Deleted)));
            }
            (set, started.elapsed())
        })
    }

    fn bench_misses(&mut self, b: &mut criterion::Bencher<'_>) {
        let absent: Vec<Key> = (ABSENT..ABSENT + (1 << 14)).map(key).collect();
        let mut next = absent.iter().cycle();
        let mut out = Vec::new();
        b.iter(|| {
            next.next()
                .map(|key| self.session.get_append(black_box(key), &mut out).unwrap().is_some())
        });
        assert!(out.is_empty());
    }

    fn bench_incr(&mut self, b: &mut criterion::Bencher<'_>, order: &[Key]) {
        let how = Arithmetic {
            delta: 1,
            ..Arithmetic::default()
        };
        let mut next = order.iter().cycle();
        b.iter(|| {
            let counted = next.next().map(|key| self.session.arithmetic(black_box(key), &how));
            assert!(matches!(counted, Some(Ok(Counted::Value { .. }))));
        });
    }

    fn fill_until_evicting(&mut self, fresh: &mut u64) {
        let value = [b'v'; VALUE_LEN];
        while self.cache.counters().evictions < ITEMS {
            for _ in 0..ITEMS {
                self.set(&key(*fresh), &value);
                *fresh += 1;
            }
        }
    }

    fn bench_fresh(&mut self, b: &mut criterion::Bencher<'_>, fresh: &mut u64) {
        let value = [b'v'; VALUE_LEN];
        b.iter(|| {
            self.set(&key(*fresh), black_box(&value));
            *fresh += 1;
        });
    }
}

/// The peer: what a Rust program uses that wants a shared map in one process.
type Map = DashMap<Box<[u8]>, Vec<u8>, foldhash::fast::RandomState>;

fn filled(items: u64) -> Map {
    let map = Map::default();
    for index in 0..items {
        map.insert(Box::from(key(index).as_slice()), vec![b'v'; VALUE_LEN]);
    }
    map
}

/// As [`Keyway::set_and_delete`].
fn insert_and_remove(map: &Map, count: u64) -> (Duration, Duration) {
    let value = [b'w'; VALUE_LEN];
    in_batches(count, |batch| {
        let started = Instant::now();
        for key in batch {
            map.insert(Box::from(black_box(key).as_slice()), black_box(&value).to_vec());
        }
        let set = started.elapsed();
        let started = Instant::now();
        for key in batch {
            assert!(map.remove(black_box(key).as_slice()).is_some());
        }
        (set, started.elapsed())
    })
}

/// Adds up what `time` says of batches of keys that are not stored otherwise, `count` keys in all.
fn in_batches(count: u64, mut time: impl FnMut(&[Key]) -> (Duration, Duration)) -> (Duration, Duration) {
    let absent: Vec<Key> = (ABSENT..ABSENT + ITEMS).map(key).collect();
    let mut sum = (Duration::ZERO, Duration::ZERO);
    let mut left = usize::try_from(count).expect("a count of operations in memory");
    while left > 0 {
        let batch = &absent[..left.min(absent.len())];
        left -= batch.len();
        let (set, delete) = time(batch);
        sum = (sum.0 + set, sum.1 + delete);
    }
    sum
}
