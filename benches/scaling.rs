//! Two threads on two cores against one: `get`, 95 % `get` with 5 % `set`, and half of each.
//!
//! One round of a workload runs one thread on CPU 0, one on CPU 1, and both at once; rounds of all subjects interleave. The factor is
//! both together over the mean of the two alone. A control gives each thread
//! a region of its own.

use benches::{Args, describe, fill, head, keys, popularity, region, row, say, used};
use keyway_bench::machine;
use keyway_bench::medians::Samples;
use keyway_bench::workload::Key;
use keyway_cache::{Cache, Options};
use std::hint::black_box;
use std::sync::Barrier;
use std::time::{Duration, Instant};

const HELP: &str = "\
scaling: what a second thread on a second core adds

    --seconds S     length of one measurement (1)
    --repeats N     rounds (5)
    --items N       items stored (10000)
    --memory-mib M  size of each region (64; 10^7 items need 3072)
    --skip-private  leave out the control with two regions";

const VALUE: [u8; 128] = [b'w'; 128];
const CPUS: [usize; 2] = [0, 1];
/// Operations between two looks at the clock.
const BATCH: usize = 512;

/// Makes the worker that runs on a CPU; it is made on the thread that runs it.
type Subject<'a> = Box<dyn Fn(usize) -> Worker<'a> + Sync + 'a>;
/// Does a batch of operations.
type Worker<'a> = Box<dyn FnMut() + 'a>;

fn main() {
    let args = Args::parse(HELP);
    let length = Duration::from_secs_f64(args.number("--seconds", 1.0));
    let (repeats, items): (usize, u64) = (args.number("--repeats", 5), args.number("--items", 10_000));
    let memory: u64 = args.number::<u64>("--memory-mib", 64) << 20;
    if machine::cpus() < CPUS.len() {
        say("SKIP: two CPUs are needed, and this process may use one");
        return;
    }
    describe();
    say(format!(
        "{items} items, {} MiB a region, {repeats} rounds of {length:?}",
        memory >> 20
    ));
    let filled = || {
        let cache = region(&Options::new().memory(memory).prefault(true));
        drop(fill(&cache, items, &VALUE));
        cache
    };
    let shared = filled();
    let private = (!args.has("--skip-private")).then(|| [filled(), filled()]);
    say(head(&[
        "workload",
        "subject",
        "CPU 0 alone, M/s",
        "CPU 1 alone, M/s",
        "both, M/s",
        "factor",
    ]));
    // With 10^4 items the order itself should fit the second-level cache: 2^15 keys are 512 KiB.
    let count = if items > 1_000_000 { 1 << 20 } else { 1 << 15 };
    for (mix, sets) in [("get", 0), ("95/5", 5), ("50/50", 50)] {
        for uniform in [true, false] {
            let orders = CPUS.map(|cpu| keys(items, uniform, count, cpu as u64));
            let mut subjects: Vec<(&str, Subject<'_>)> =
                vec![("keyway", Box::new(|cpu| cache_worker(&shared, &orders[cpu], sets)))];
            if let Some(private) = &private {
                subjects.push((
                    "keyway, private",
                    Box::new(|cpu| cache_worker(&private[cpu], &orders[cpu], sets)),
                ));
            }
            let before = shared.counters().evictions;
            compare(&format!("{mix}, {}", popularity(uniform)), &subjects, length, repeats);
            let evicted = shared.counters().evictions - before;
            if evicted > 0 {
                say(format!(
                    "({evicted} items were evicted from the shared region, and set again when they were missed)"
                ));
            }
        }
    }
}

fn compare(workload: &str, subjects: &[(&str, Subject<'_>)], length: Duration, repeats: usize) {
    let mut results = vec![<[Samples; 4]>::default(); subjects.len()];
    for _ in 0..repeats {
        for ((_, subject), result) in subjects.iter().zip(&mut results) {
            let [first, second] = CPUS.map(|cpu| rate(subject, &[cpu], length));
            let both = rate(subject, &CPUS, length);
            let figures = [first / 1e6, second / 1e6, both / 1e6, 2.0 * both / (first + second)];
            result.iter_mut().zip(figures).for_each(|(column, value)| column.push(value));
        }
    }
    for ((name, _), result) in subjects.iter().zip(results) {
        let columns = result.map(|samples| samples.show(2));
        say(row(&[&[workload.to_owned(), (*name).to_owned()][..], &columns].concat()));
    }
}

/// Operations a second of all workers together, one pinned to each of `cpus`.
fn rate(subject: &Subject<'_>, cpus: &[usize], length: Duration) -> f64 {
    let barrier = &Barrier::new(cpus.len());
    std::thread::scope(|scope| {
        let run = |&cpu: &usize| {
            scope.spawn(move || {
                machine::pin(&[cpu]).expect("this process may use both CPUs");
                let mut worker = subject(cpu);
                // A tenth of the time warms the caches and the CPU up.
                work(&mut worker, length / 10);
                barrier.wait();
                work(&mut worker, length)
            })
        };
        let threads: Vec<_> = cpus.iter().map(run).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("the worker ends"))
            .sum()
    })
}

/// Operations a second.
#[allow(clippy::cast_precision_loss, reason = "counts are below 2^53")]
fn work(worker: &mut Worker<'_>, length: Duration) -> f64 {
    let (started, mut count) = (Instant::now(), 0);
    loop {
        worker();
        count += BATCH;
        let took = started.elapsed();
        if took >= length {
            return count as f64 / took.as_secs_f64();
        }
    }
}

fn cache_worker<'a>(cache: &'a Cache, order: &'a [Key], set_percent: usize) -> Worker<'a> {
    let mut session = cache.session().expect("a session for each thread");
    let mut out = Vec::with_capacity(2 * VALUE.len());
    let mut next = order.iter().cycle();
    Box::new(move || {
        for (i, key) in next.by_ref().take(BATCH).enumerate() {
            out.clear();
            let is_set = i % 100 < set_percent;
            if !is_set {
                let hit = session.get_append(black_box(key), &mut out).expect("a good key").is_some();
                used(&out);
                if hit {
                    continue;
                }
                // Sets in a region that is written round and round may evict; then it is set again, as a cache's user would.
                assert!(
                    cache.counters().evictions > 0,
                    "a miss of a key that is stored, and nothing was ever evicted"
                );
            }
            session.set(key, &VALUE, 0).expect("a set is not refused");
        }
    })
}
