//! Gets and sets of large values beside the plain copies that they contain, in one process, in turn: `keyway_get` of C beside a
//! `memcpy` from as many places as there are items, and `set` beside writing the same bytes round a ring as long as the region's log.

use benches::report::{Args, Samples, head, row, say};
use benches::requests::{Popularity, keys};
use benches::workload::{Key, key};
use benches::{gate, machine, used};
use keyway_cache::{Cache, Options, Place};
use std::hint::black_box;
use std::time::Instant;

const HELP: &str = "\
copies: gets and sets of large values beside plain copies of as many bytes

    --value-len N  bytes of a value (5120)
    --runs N       runs of each side, in turn (15)
    --only VERB    get or set
    --items N      items of the one get (64 and 20000)
    --huge-pages   ask for huge pages for the region

KEYWAY_GATE=off leaves the gate open, as in most figures of docs/performance.md; with KEYWAY_GATE=on a machine must have one.";

fn main() {
    let args = Args::parse(HELP);
    let (len, runs): (usize, usize) = (args.number("--value-len", 5120), args.number("--runs", 15));
    let cpus = machine::allowed_cpus().expect("the kernel says which");
    machine::pin(&cpus[cpus.len() - 1..]).expect("this process may choose its CPU");
    say(gate::describe());
    say(format!("values of {len} bytes; medians of {runs} runs, in turn"));
    say(head(&["", "items", "Keyway, ns", "plain copy, ns", "ratio"]));
    let does = |verb| args.value("--only").is_none_or(|only| only == verb);
    let one = args.value("--items").map(|_| args.number("--items", 0));
    let huge = args.has("--huge-pages");
    for items in [64, 20_000].into_iter().filter(|_| does("get") && one.is_none()).chain(one) {
        get(items, len, runs, huge);
    }
    if does("set") {
        set(10_000, len, runs, huge);
    }
}

/// Nanoseconds an operation.
fn timed(count: usize, work: impl FnOnce()) -> f64 {
    let since = Instant::now();
    work();
    since.elapsed().as_secs_f64() * 1e9 / count as f64
}

fn compare(what: &str, items: u64, runs: usize, count: usize, keyway: &mut dyn FnMut(), plain: &mut dyn FnMut()) {
    let [mut ours, mut theirs, mut ratios] = [const { Samples::new() }; 3];
    for run in 0..=runs {
        let (a, b) = (timed(count, &mut *keyway), timed(count, &mut *plain));
        // The first round warms up.
        if run > 0 {
            ours.push(a);
            theirs.push(b);
            ratios.push(a / b);
        }
    }
    say(row(&[
        what.to_owned(),
        items.to_string(),
        ours.show(0),
        theirs.show(0),
        ratios.show(2),
    ]));
}

/// The memory for this many items, twice.
fn memory(items: u64, len: usize) -> u64 {
    2 * items * (len as u64 + 64) + (64 << 20)
}

fn filled(items: u64, value: &[u8], huge: bool) -> Cache {
    let options = Options::new()
        .memory(memory(items, value.len()))
        .prefault(true)
        .huge_pages(huge);
    let cache = Cache::open(&Place::Memfd, &options).expect("memory for the items");
    let mut session = cache.session().expect("the first session");
    for key in (0..items).map(key) {
        session.set(&key, value, 0).expect("a set is not refused");
    }
    cache
}

fn get(items: u64, len: usize, runs: usize, huge: bool) {
    let value = vec![b'v'; len];
    let cache = filled(items, &value, huge);
    let mut session = cache.session().expect("a session");
    let order: Vec<(Key, usize)> = keys(items, Popularity::Uniform, 1 << 15, 7)
        .into_iter()
        .zip(benches::requests::indices(items, Popularity::Uniform, 1 << 15, 7))
        .map(|(key, index)| (key, usize::try_from(index).expect("an index in memory")))
        .collect();
    let places = vec![b'v'; usize::try_from(items).expect("items in memory") * len];
    let mut out = Vec::with_capacity(2 * len);
    let mut copy = vec![0; len];
    compare(
        "get",
        items,
        runs,
        order.len(),
        &mut || {
            for (key, _) in &order {
                out.clear();
                assert!(session.get_append(black_box(key), &mut out).expect("a good key").is_some());
                used(&out);
            }
        },
        &mut || {
            for (_, index) in &order {
                copy.copy_from_slice(&places[black_box(index * len)..][..len]);
                used(&copy);
            }
        },
    );
}

fn set(items: u64, len: usize, runs: usize, huge: bool) {
    let value = vec![b'w'; len];
    let cache = filled(items, &value, huge);
    let mut session = cache.session().expect("a session");
    let order = keys(items, Popularity::Uniform, 1 << 14, 7);
    let mut ring = vec![0_u8; usize::try_from(memory(items, len)).expect("a region in memory")];
    let mut at = 0;
    compare(
        "set over an item",
        items,
        runs,
        order.len(),
        &mut || {
            for key in &order {
                session
                    .set(black_box(key), black_box(&value), 0)
                    .expect("a set is not refused");
            }
        },
        &mut || {
            for _ in &order {
                at = if at + len > ring.len() { 0 } else { at };
                ring[at..at + len].copy_from_slice(black_box(&value));
                at += len;
            }
            black_box(ring.as_slice());
        },
    );
}
