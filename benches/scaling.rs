//! Two threads on two cores against one: `get`, 95 % `get` with 5 % `set`, and half of each.
//!
//! One round of a workload runs one thread on CPU 0, one on CPU 1, and both at once; rounds of all subjects interleave. The factor is
//! both together over the mean of the two alone. Controls say what the machine itself gives: `arithmetic` shares nothing at
//! all, and `private` gives each thread a region of its own.

use benches::report::{Args, Samples, head, row, say};
use benches::requests::{Popularity, keys};
use benches::workload::{Key, key};
use benches::{gate, machine, used};
use dashmap::DashMap;
use keyway_cache::{Cache, Options, Place, Session, Store};
use std::hint::black_box;
use std::sync::Barrier;
use std::time::{Duration, Instant};

const HELP: &str = "\
scaling: what a second thread on a second core adds

    --seconds S     length of one measurement (1)
    --repeats N     rounds (5)
    --items N       items stored (10000)
    --memory-mib M  size of each region (64; 10^7 items need 3072)
    --skip-private  leave out the control with two regions
    --workload W    only workloads whose names contain this, such as 50/50
    --subject S     only subjects whose names contain this, such as keyway

`KEYWAY_BENCH_LARGE=1` means --items 10000000 --memory-mib 3072 unless they are given.";

const VALUE_LEN: usize = 128;
const CPUS: [usize; 2] = [0, 1];

fn main() {
    let args = Args::parse(HELP);
    let large = std::env::var_os("KEYWAY_BENCH_LARGE").is_some_and(|v| v == "1");
    let length = Duration::from_secs_f64(args.number("--seconds", 1.0));
    let repeats: usize = args.number("--repeats", 5);
    let items: u64 = args.number("--items", if large { 10_000_000 } else { 10_000 });
    let memory: u64 = args.number::<u64>("--memory-mib", if large { 3072 } else { 64 }) << 20;
    if machine::cpus() < CPUS.len() {
        say("SKIP: two CPUs are needed, and this process may use one");
        return;
    }
    let is_wanted = |option, name: &str| args.value(option).is_none_or(|part| name.contains(part));
    say(gate::describe());
    say(format!(
        "{items} items, {} MiB a region, {repeats} rounds of {length:?}",
        memory >> 20
    ));

    let shared = filled_cache(items, memory);
    let private = (!args.has("--skip-private")).then(|| [filled_cache(items, memory), filled_cache(items, memory)]);
    let map = filled_map(items);
    say(head(&[
        "workload",
        "subject",
        "CPU 0 alone, M/s",
        "CPU 1 alone, M/s",
        "both, M/s",
        "factor",
    ]));
    for (mix, set_percent) in [("get", 0), ("95/5", 5), ("50/50", 50)] {
        for popularity in Popularity::ALL {
            let workload = format!("{mix}, {}", popularity.name());
            if !is_wanted("--workload", &workload) {
                continue;
            }
            // With 10^4 items the order itself should fit the second-level cache: 2^15 keys are 512 KiB.
            let orders = CPUS.map(|cpu| {
                keys(
                    items,
                    popularity,
                    if items > 1_000_000 { 1 << 20 } else { 1 << 15 },
                    cpu as u64,
                )
            });
            let mut subjects: Vec<(&str, Box<Subject<'_>>)> = Vec::new();
            subjects.push(("keyway", Box::new(|cpu| cache_worker(&shared, &orders[cpu], set_percent))));
            if let Some(private) = &private {
                subjects.push((
                    "keyway, private",
                    Box::new(|cpu| cache_worker(&private[cpu], &orders[cpu], set_percent)),
                ));
            }
            subjects.push(("dashmap", Box::new(|cpu| map_worker(&map, &orders[cpu], set_percent))));
            subjects.push(("arithmetic", Box::new(|_| arithmetic_worker())));
            subjects.retain(|(name, _)| is_wanted("--subject", name));
            let before = shared.counters().evictions;
            compare(&workload, &subjects, length, repeats);
            let evicted = shared.counters().evictions - before;
            if evicted > 0 {
                say(format!(
                    "({evicted} items were evicted from the shared region, and set again when they were missed)"
                ));
            }
        }
    }
}

/// Makes the worker that runs on a CPU; it is made on the thread that runs it.
type Subject<'a> = dyn Fn(usize) -> Worker<'a> + Sync + 'a;
/// Does a batch of operations and says how many.
type Worker<'a> = Box<dyn FnMut() -> u64 + 'a>;

fn compare(workload: &str, subjects: &[(&str, Box<Subject<'_>>)], length: Duration, repeats: usize) {
    let mut results = vec![[const { Vec::new() }; 4]; subjects.len()];
    for _ in 0..repeats {
        for ((_, subject), result) in subjects.iter().zip(&mut results) {
            let [first, second] = CPUS.map(|cpu| rate(subject.as_ref(), &[cpu], length));
            let both = rate(subject.as_ref(), &CPUS, length);
            for (column, value) in result
                .iter_mut()
                .zip([first / 1e6, second / 1e6, both / 1e6, 2.0 * both / (first + second)])
            {
                column.push(value);
            }
        }
    }
    for ((name, _), result) in subjects.iter().zip(results) {
        let columns = result.map(|values: Vec<f64>| values.into_iter().collect::<Samples>().show(2));
        say(row(&[&[workload.to_owned(), (*name).to_owned()][..], &columns].concat()));
    }
}

/// Operations a second of all workers together, one pinned to each of `cpus`.
#[allow(clippy::cast_precision_loss, reason = "counts are below 2^53")]
fn rate(subject: &Subject<'_>, cpus: &[usize], length: Duration) -> f64 {
    let barrier = Barrier::new(cpus.len());
    std::thread::scope(|scope| {
        let run = |cpu: usize| {
            let barrier = &barrier;
            scope.spawn(move || {
                machine::pin(&[cpu]).expect("this process may use both CPUs");
                let mut worker = subject(cpu);
                // A tenth of the time warms the caches and the CPU up.
                work(&mut worker, length / 10);
                barrier.wait();
                work(&mut worker, length)
            })
        };
        let threads: Vec<_> = cpus.iter().map(|&cpu| run(cpu)).collect();
        threads
            .into_iter()
            .map(|t| t.join().expect("the worker ends"))
            .map(|(count, took)| count as f64 / took.as_secs_f64())
            .sum()
    })
}

fn work(worker: &mut Worker<'_>, length: Duration) -> (u64, Duration) {
    let started = Instant::now();
    let mut count = 0;
    loop {
        count += worker();
        let took = started.elapsed();
        if took >= length {
            return (count, took);
        }
    }
}

/// Operations between two looks at the clock.
const BATCH: usize = 512;

fn cache_worker<'a>(cache: &'a Cache, order: &'a [Key], set_percent: usize) -> Worker<'a> {
    let mut session: Session = cache.session().expect("a session for each thread");
    let value = [b'w'; VALUE_LEN];
    let set = move |session: &mut Session, key: &Key| {
        session.store(key, &value, &Store::default()).expect("a set is not refused");
    };
    let mut out = Vec::with_capacity(2 * VALUE_LEN);
    let mut next = order.iter().cycle();
    Box::new(move || {
        for (i, key) in next.by_ref().take(BATCH).enumerate() {
            if i % 100 < set_percent {
                set(&mut session, key);
                continue;
            }
            out.clear();
            let hit = session.get_append(black_box(key), &mut out).unwrap().is_some();
            used(&out);
            if !hit {
                // As a cache's user would; sets in a region that is written round and round may evict.
                assert!(
                    cache.counters().evictions > 0,
                    "a miss of a key that is stored, and nothing was ever evicted"
                );
                set(&mut session, key);
            }
        }
        BATCH as u64
    })
}

type Map = DashMap<Box<[u8]>, Vec<u8>, foldhash::fast::RandomState>;

fn map_worker<'a>(map: &'a Map, order: &'a [Key], set_percent: usize) -> Worker<'a> {
    let value = [b'w'; VALUE_LEN];
    let mut out = Vec::with_capacity(2 * VALUE_LEN);
    let mut next = order.iter().cycle();
    Box::new(move || {
        for (i, key) in next.by_ref().take(BATCH).enumerate() {
            if i % 100 < set_percent {
                map.insert(Box::from(key.as_slice()), value.to_vec());
            } else {
                out.clear();
                let found = map.get(black_box(key).as_slice()).map(|v| out.extend_from_slice(&v));
                assert!(found.is_some(), "nothing is evicted");
                used(&out);
            }
        }
        BATCH as u64
    })
}

fn arithmetic_worker<'a>() -> Worker<'a> {
    let mut state = 1_u64;
    Box::new(move || {
        for _ in 0..BATCH {
            for _ in 0..32 {
                state = benches::workload::mix(black_box(state) | 1);
            }
        }
        BATCH as u64
    })
}

fn filled_cache(items: u64, memory: u64) -> Cache {
    let options = Options::new().memory(memory).prefault(true);
    let cache = Cache::open(&Place::Memfd, &options).expect("a region in anonymous memory");
    let mut session = cache.session().expect("the first session");
    for index in 0..items {
        session
            .store(&key(index), &[b'v'; VALUE_LEN], &Store::default())
            .expect("a set is not refused");
    }
    drop(session);
    assert_eq!(cache.counters().evictions, 0, "all items fit");
    cache
}

fn filled_map(items: u64) -> Map {
    let map = Map::default();
    for index in 0..items {
        map.insert(Box::from(key(index).as_slice()), vec![b'v'; VALUE_LEN]);
    }
    map
}
