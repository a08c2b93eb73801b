//! The library door, one thread: `get`, `set`, `delete` and `incr` on a region, beside a `DashMap` in the same run.
//!
//! Criterion measures. Groups are named for operation, popularity and number of items, so that
//! `cargo bench -p benches --bench library -- 'get/.*/10000'` runs some of them. With 10^4 items everything is in cache;
//! `KEYWAY_BENCH_LARGE=1` adds 10^7 items, which are not (about 8 GB of memory, a minute of loading).
//! `KEYWAY_BENCH_MEMORY_MIB` sets the small region's size (64, the default of `keyway serve`).
//!
//! Every operation's answer is checked: misses are counted inside the loop and must be 0 after it. Gets come first, when nothing
//! has been evicted; sets and counts go round the region many times and may evict, so a count makes anew what it misses.

use benches::machine;
use benches::requests::{Popularity, keys};
use benches::workload::{KEY_LEN, Key, key};
use criterion::{BenchmarkGroup, Criterion, Throughput, measurement::WallTime};
use dashmap::DashMap;
use keyway_cache::{Arithmetic, Cache, Counted, Delete, Deleted, Options, Place, Session, Store, Stored};
use std::hash::{BuildHasher, RandomState};
use std::hint::black_box;
use std::time::{Duration, Instant};

const VALUE_LEN: usize = 128;
const SMALL: u64 = 10_000;
const LARGE: u64 = 10_000_000;
const SEED: u64 = 42;
/// Where this benchmark runs: interrupts and the default of all other programs are on CPU 0.
const CPU: usize = 1;

fn main() {
    if machine::cpus() > CPU {
        machine::pin(&[CPU]).expect("this process may choose its CPU");
    }
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_secs(1))
        .measurement_time(Duration::from_secs(3))
        .sample_size(50)
        .configure_from_args();
    small(&mut criterion);
    if std::env::var_os("KEYWAY_BENCH_LARGE").is_some_and(|v| v == "1") {
        large(&mut criterion);
    }
    criterion.final_summary();
}

/// Everything fits the second-level cache, or nearly.
fn small(criterion: &mut Criterion) {
    let memory_mib = std::env::var("KEYWAY_BENCH_MEMORY_MIB")
        .ok()
        .and_then(|v| v.parse().ok())
        .unwrap_or(64);
    let mut keyway = Keyway::filled(SMALL, memory_mib << 20);
    let dashmap = filled::<RandomState>(SMALL);
    let foldhash = filled::<foldhash::fast::RandomState>(SMALL);
    let orders = Popularity::ALL.map(|popularity| (popularity, keys(SMALL, popularity, 1 << 14, SEED)));
    for (popularity, order) in &orders {
        gets(criterion, SMALL, *popularity, order, &mut keyway, &dashmap, &foldhash);
    }
    for (popularity, order) in &orders {
        overwrites(criterion, SMALL, *popularity, order, &mut keyway, &dashmap, &foldhash);
    }
    let mut group = criterion.benchmark_group(format!("get/miss/{SMALL}"));
    group.bench_function("keyway", |b| keyway.bench_misses(b));
    group.finish();

    let mut group = criterion.benchmark_group(format!("set/fresh/{SMALL}"));
    group.bench_function("keyway", |b| b.iter_custom(|count| keyway.set_and_delete(count).0));
    group.bench_function("dashmap", |b| b.iter_custom(|count| insert_and_remove(&dashmap, count).0));
    group.bench_function("dashmap-foldhash", |b| {
        b.iter_custom(|count| insert_and_remove(&foldhash, count).0)
    });
    group.finish();

    let mut group = criterion.benchmark_group(format!("delete/{SMALL}"));
    group.bench_function("keyway", |b| b.iter_custom(|count| keyway.set_and_delete(count).1));
    group.bench_function("dashmap", |b| b.iter_custom(|count| insert_and_remove(&dashmap, count).1));
    group.bench_function("dashmap-foldhash", |b| {
        b.iter_custom(|count| insert_and_remove(&foldhash, count).1)
    });
    group.finish();

    let order = &orders[0].1;
    let mut group = criterion.benchmark_group(format!("incr/{SMALL}"));
    keyway.store_all(SMALL, b"1000000000");
    group.bench_function("keyway", |b| keyway.bench_incr(b, order));
    group.bench_function("keyway-one-item", |b| keyway.bench_incr(b, &order[..1]));
    group.finish();

    // Last, because nothing of the above is left afterwards: every set finds the region full.
    let mut group = criterion.benchmark_group("set/fresh-evicting");
    let mut fresh = LARGE;
    keyway.fill_until_evicting(&mut fresh);
    group.bench_function("keyway", |b| keyway.bench_fresh(b, &mut fresh));
    group.finish();
}

/// Every operation misses the caches.
fn large(criterion: &mut Criterion) {
    let orders = Popularity::ALL.map(|popularity| (popularity, keys(LARGE, popularity, 1 << 20, SEED)));
    let mut keyway = Keyway::filled(LARGE, 3 << 30);
    let dashmap = filled::<RandomState>(LARGE);
    let foldhash = filled::<foldhash::fast::RandomState>(LARGE);
    for (popularity, order) in &orders {
        gets(criterion, LARGE, *popularity, order, &mut keyway, &dashmap, &foldhash);
    }
    for (popularity, order) in &orders {
        overwrites(criterion, LARGE, *popularity, order, &mut keyway, &dashmap, &foldhash);
    }
}

fn group_of<'a>(criterion: &'a mut Criterion, verb: &str, popularity: Popularity, items: u64) -> BenchmarkGroup<'a, WallTime> {
    let popularity = match popularity {
        Popularity::Uniform => "uniform",
        Popularity::Zipf => "zipf",
    };
    let mut group = criterion.benchmark_group(format!("{verb}/{popularity}/{items}"));
    group.throughput(Throughput::Elements(1));
    group
}

fn gets<A: BuildHasher + Clone, B: BuildHasher + Clone>(
    criterion: &mut Criterion,
    items: u64,
    popularity: Popularity,
    order: &[Key],
    keyway: &mut Keyway,
    dashmap: &Map<A>,
    foldhash: &Map<B>,
) {
    let mut group = group_of(criterion, "get", popularity, items);
    // What the loop itself costs: taking the next key and copying a value that is always the same.
    group.bench_function("loop", |b| {
        bench_get(b, order, |_, out| {
            out.extend_from_slice(black_box(&[b'v'; VALUE_LEN]));
            true
        });
    });
    group.bench_function("keyway", |b| {
        bench_get(b, order, |key, out| keyway.session.get_append(key, out).unwrap().is_some())
    });
    group.bench_function("dashmap", |b| bench_get(b, order, |key, out| get_and_copy(dashmap, key, out)));
    group.bench_function("dashmap-foldhash", |b| {
        bench_get(b, order, |key, out| get_and_copy(foldhash, key, out))
    });
    group.finish();
}

/// Gets the keys in `order`, over and over, each into the same emptied buffer; all must be there.
fn bench_get(b: &mut criterion::Bencher<'_>, order: &[Key], mut get: impl FnMut(&Key, &mut Vec<u8>) -> bool) {
    let mut out = Vec::with_capacity(2 * VALUE_LEN);
    let mut next = order.iter().cycle();
    let mut misses = 0_u64;
    b.iter(|| {
        out.clear();
        if let Some(key) = next.next() {
            misses += u64::from(!get(black_box(key), &mut out));
        }
        black_box(out.as_slice());
    });
    assert_eq!(
        (misses, out.len()),
        (0, VALUE_LEN),
        "every get hits and copies the whole value"
    );
}

fn overwrites<A: BuildHasher + Clone, B: BuildHasher + Clone>(
    criterion: &mut Criterion,
    items: u64,
    popularity: Popularity,
    order: &[Key],
    keyway: &mut Keyway,
    dashmap: &Map<A>,
    foldhash: &Map<B>,
) {
    let value = [b'w'; VALUE_LEN];
    let mut group = group_of(criterion, "set", popularity, items);
    group.bench_function("keyway", |b| {
        let mut next = order.iter().cycle();
        b.iter(|| next.next().map(|key| keyway.set(black_box(key), black_box(&value))));
    });
    group.bench_function("dashmap", |b| {
        let mut next = order.iter().cycle();
        b.iter(|| {
            next.next()
                .map(|key| dashmap.insert(Box::from(key.as_slice()), value.to_vec()))
        });
    });
    group.bench_function("dashmap-foldhash", |b| {
        let mut next = order.iter().cycle();
        b.iter(|| {
            next.next()
                .map(|key| foldhash.insert(Box::from(key.as_slice()), value.to_vec()))
        });
    });
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

    /// Times of `count` sets of absent keys and of as many deletes of present ones, in batches of [`SMALL`].
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
        let absent: Vec<Key> = (LARGE..LARGE + (1 << 14)).map(key).collect();
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
        while self.cache.counters().evictions < SMALL {
            for _ in 0..SMALL {
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
type Map<S> = DashMap<Box<[u8]>, Vec<u8>, S>;

fn filled<S: BuildHasher + Clone + Default>(items: u64) -> Map<S> {
    let map = Map::with_hasher(S::default());
    for index in 0..items {
        map.insert(Box::from(key(index).as_slice()), vec![b'v'; VALUE_LEN]);
    }
    map
}

fn get_and_copy<S: BuildHasher + Clone>(map: &Map<S>, key: &[u8; KEY_LEN], out: &mut Vec<u8>) -> bool {
    map.get(key.as_slice()).map(|value| out.extend_from_slice(&value)).is_some()
}

/// As [`Keyway::set_and_delete`].
fn insert_and_remove<S: BuildHasher + Clone>(map: &Map<S>, count: u64) -> (Duration, Duration) {
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
    let absent: Vec<Key> = (LARGE..LARGE + SMALL).map(key).collect();
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
