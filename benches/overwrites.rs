//! A region that is written round and round: what its writers pay for room, by threads and by size of the values.
//!
//! Zipfian sets and gets on a region that has twice the memory that the items need, so nothing need be evicted: all room comes from
//! segments of which much is dead. Prints what the region counted meanwhile, per set.

use benches::report::{Args, head, row, say};
use benches::requests::{Popularity, keys};
use benches::workload::key;
use benches::{gate, machine};
use keyway_cache::{Cache, Options, Place, Store};
use std::sync::Barrier;
use std::time::{Duration, Instant};

const HELP: &str = "\
overwrites: what writers pay for room, in a region of twice the memory that its items need

    --rounds N        how often as much is written as the region has memory, once it is full (4)
    --threads N,...   writers (1,2,4)
    --sizes B,...     bytes of a value (128,5120,102400)
    --mb N            what the items take (100)
    --room X          memory, in times of what the items take (2)
    --set-percent P   sets among the operations (50)
    --uniform         keys are drawn uniformly, not by zipf's law";

struct Plan {
    size: usize,
    threads: usize,
    items: u64,
    memory: u64,
    rounds: u64,
    percent: usize,
    popularity: Popularity,
}

/// What one writer did.
#[derive(Default)]
struct Done {
    operations: u64,
    cpu: Duration,
    sets_ns: Vec<u64>,
}

fn main() {
    let args = Args::parse(HELP);
    let room: u64 = args.number("--room", 2);
    let mb: u64 = args.number("--mb", 100);
    let list = |name, default: &str| -> Vec<usize> {
        let text = args.value(name).unwrap_or(default);
        text.split(',').filter_map(|n| n.parse().ok()).collect()
    };
    say(gate::describe());
    say(head(&[
        "value, B",
        "writers",
        "k/s",
        "CPU an operation, µs",
        "set p50, µs",
        "set p99, µs",
        "relocated a set",
        "purged a set",
        "segments on the spot, %",
        "evicted, %",
        "missed, %",
    ]));
    for size in list("--sizes", "128,5120,102400") {
        for threads in list("--threads", "1,2,4") {
            let items = mb * 1_000_000 / (size as u64 + 40);
            measure(&Plan {
                size,
                threads,
                items,
                memory: mb * 1_000_000 * room,
                rounds: args.number("--rounds", 4),
                percent: args.number("--set-percent", 50),
                popularity: if args.has("--uniform") {
                    Popularity::Uniform
                } else {
                    Popularity::Zipf
                },
            });
        }
    }
}

fn measure(plan: &Plan) {
    let options = Options::new().memory(plan.memory).prefault(true);
    let cache = Cache::open(&Place::Memfd, &options).expect("a region in anonymous memory");
    let mut session = cache.session().expect("the first session");
    let value = vec![b'v'; plan.size];
    for index in 0..plan.items {
        session
            .store(&key(index), &value, &Store::default())
            .expect("a set is not refused");
    }
    drop(session);
    let barrier = Barrier::new(plan.threads + 1);
    let (done, counted, took) = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..plan.threads)
            .map(|thread| {
                let (cache, barrier) = (&cache, &barrier);
                scope.spawn(move || write(plan, cache, thread, barrier))
            })
            .collect();
        barrier.wait();
        let (before, began) = (cache.counters(), Instant::now());
        barrier.wait();
        let done: Vec<Done> = writers.into_iter().map(|w| w.join().expect("the writer ends")).collect();
        (done, cache.counters().since(&before), began.elapsed())
    });
    let operations: u64 = done.iter().map(|d| d.operations).sum();
    let cpu: Duration = done.iter().map(|d| d.cpu).sum();
    let mut sets: Vec<u64> = done.into_iter().flat_map(|d| d.sets_ns).collect();
    sets.sort_unstable();
    let percentile = |p: usize| sets.get(sets.len() * p / 100).copied().unwrap_or(0) as f64 / 1e3;
    let per_set = |n: u64| n as f64 / sets.len().max(1) as f64;
    let share = |n: u64, of: u64| format!("{:.3}", 100.0 * n as f64 / of.max(1) as f64);
    say(row(&[
        plan.size.to_string(),
        plan.threads.to_string(),
        format!("{:.0}", operations as f64 / took.as_secs_f64() / 1e3),
        format!("{:.2}", cpu.as_secs_f64() * 1e6 / operations.max(1) as f64),
        format!("{:.2}", percentile(50)),
        format!("{:.2}", percentile(99)),
        format!("{:.3}", per_set(counted.relocations)),
        format!("{:.3}", per_set(counted.purged)),
        share(counted.reserve_empty, counted.segments_recycled),
        share(counted.evictions, sets.len() as u64),
        share(counted.get_misses, counted.cmd_get()),
    ]));
}

/// Half of the rounds to fill the region and to settle, between the two waits nothing, and then the others.
fn write(plan: &Plan, cache: &Cache, thread: usize, barrier: &Barrier) -> Done {
    let mut session = cache.session().expect("a session for each thread");
    let order = keys(plan.items, plan.popularity, 1 << 20, thread as u64);
    let mut keys = order.iter().cycle();
    let value = vec![b'w'; plan.size];
    let mut out = Vec::with_capacity(2 * plan.size);
    let sets = plan.rounds * plan.memory / (plan.size as u64 * plan.threads as u64);
    let mut run = |sets: u64| {
        let mut done = Done::default();
        let cpu_before = machine::thread_cpu();
        for key in keys.by_ref() {
            if done.sets_ns.len() as u64 == sets {
                break;
            }
            done.operations += 1;
            if done.operations * 37 % 100 < plan.percent as u64 {
                let from = Instant::now();
                session.store(key, &value, &Store::default()).expect("a set is not refused");
                done.sets_ns
                    .push(u64::try_from(from.elapsed().as_nanos()).unwrap_or(u64::MAX));
            } else {
                out.clear();
                std::hint::black_box(session.get_append(key, &mut out).unwrap().is_some());
            }
        }
        done.cpu = machine::thread_cpu().saturating_sub(cpu_before);
        done
    };
    run(sets / 2);
    barrier.wait();
    barrier.wait();
    run(sets)
}
