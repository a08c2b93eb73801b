//! Threads on one region under a race detector (ThreadSanitizer): its enemy is payload that nothing orders, a word that publishes
//! without releasing or a reader that does not acquire.
//!
//! Built with the feature `races` payload is moved by plain copies, so the detector reports every copy that no pair of atomics orders behind
//! the write. Nothing is recycled here: what a reader of recycled memory copies is thrown away by design, and is a race to a
//! detector. In the copy of the tree that has
//! faults (`cargo xtask mutants --copy`), it publishes overwrites without release ordering if KEYWAY_MUTANT is the number of the fault
//! `publish-unordered`; that must be reported.
//! Guards: P5
#![allow(clippy::print_stdout, reason = "a test: its output is for people")]

#[path = "it/private/mod.rs"]
mod private;

use harness::Random;
use keyway_region::verbs::{Arithmetic, Delete, Get, Store, StoreMode};
use keyway_region::{Limits, Session, check};
use private::UNIX_S;

const MEMORY: u64 = 96 << 20;
const THREADS: u64 = 4;
const CALLS: u64 = 20_000;
/// Keys, which all threads share.
const KEYS: u64 = 3_000;

fn main() {
    stress(CALLS);
}

fn stress(calls: u64) {
    let (_pages, region) = private::region(MEMORY);
    let process = region.recovery().attach(0, 1, UNIX_S);
    region.limits().write(&Limits {
        item_size_max: 1 << 20,
        evict: true,
        ..Limits::default()
    });
    let threads: Vec<_> = (0..THREADS)
        .map(|thread| {
            let session = region.session(process).expect("a slot");
            let now = region.clock().tick(keyway_region::Moment::from_secs(UNIX_S + 1));
            std::thread::spawn(move || work(session, thread, calls, now))
        })
        .collect();
    for thread in threads {
        thread.join().expect("a thread ends well");
    }
    let report = check::check(&region, |_| {});
    assert!(report.is_sound(), "{:#?}", report.problems);
    let counters = region.threads().counters();
    assert_eq!(
        (counters.segments_recycled, counters.evictions),
        (0, 0),
        "what is recycled is read in vain by design"
    );
    println!("{THREADS} threads, {calls} calls each: {} items", counters.curr_items);
}

/// Random verbs on shared keys. Every value is one byte, many times: a torn one shows.
fn work(mut session: Session, thread: u64, calls: u64, now: u32) {
    let mut rng = Random::new(thread + 1);
    let mut value = Vec::new();
    for _ in 0..calls {
        let number = rng.below(KEYS);
        let key = format!("key-{number:06}");
        let key = key.as_bytes();
        let byte = b'a' + u8::try_from(rng.below(26)).unwrap_or(0);
        let len = usize::try_from(rng.below(600)).unwrap_or(0);
        let is_number = number.is_multiple_of(10);
        match rng.below(20) {
            0..9 => {
                value.clear();
                let how = Get {
                    value: true,
                    details: number.is_multiple_of(2),
                    ..Get::default()
                };
                session.get(key, &how, now, &mut value).expect("a good key");
                let whole = is_number || value.windows(2).all(|pair| pair[0] == pair[1]);
                assert!(whole, "{number}: a value that was never written");
            }
            9 => drop(session.touch(key, 1000, now).expect("room")),
            10 | 11 => drop(session.delete(key, &Delete::default(), now).expect("a good key")),
            12 if is_number => {
                let how = Arithmetic {
                    delta: 7,
                    vivify: Some((1, 0)),
                    ..Arithmetic::default()
                };
                // a value that is no number is refused
                let _ = session.arithmetic(key, &how, now);
            }
            12 | 13 => {
                let how = Store {
                    mode: StoreMode::Add,
                    ..Store::default()
                };
                session.store(key, &vec![byte; len], &how, now).expect("room");
            }
            _ => drop(session.store(key, &vec![byte; len], &Store::default(), now).expect("room")),
        }
    }
}
