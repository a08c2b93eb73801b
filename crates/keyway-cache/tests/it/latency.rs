//! How long operations took, as processes of several doors count it. Its enemy: a count that is lost, made twice or taken back, and a call
//! that counts for another door or verb.
//!
//! # Safety
//!
//! The only `unsafe` is `fork`: children do no more than use a cache and leave by `_exit`.
//! Guards: P44
#![allow(unsafe_code, reason = "forks; contract above")]

use harness::Scratch;
use keyway_cache::server::ServerSession as _;
use keyway_cache::{Cache, Door, Gate, Latencies, Options, Place, Verb};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};
use std::path::Path;

fn open(path: &Path, drop_in: bool) -> Cache {
    open_with(path, drop_in, Gate::WherePossible)
}

fn open_with(path: &Path, drop_in: bool, gate: Gate) -> Cache {
    let options = Options::new()
        .memory(2 << 20)
        .item_size_max(1 << 16)
        .drop_in(drop_in)
        .gate(gate);
    Cache::open(&Place::Path(path.to_owned()), &options).unwrap()
}

/// Starts a child that does this, and then ends.
fn forked(child: impl FnOnce()) -> Pid {
    // SAFETY: see the top of the file.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            let well = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).is_ok();
            // SAFETY: ends the child without running what belongs to its parent.
            unsafe { nix::libc::_exit(i32::from(!well)) }
        }
        ForkResult::Parent { child } => child,
    }
}

fn counts(latencies: &Latencies) -> Vec<(Door, Verb, u64)> {
    latencies
        .counted()
        .map(|(door, verb, latency)| (door, verb, latency.count()))
        .collect()
}

#[test]
fn what_processes_and_threads_count_adds_up_where_they_share_lines() {
    const PROCESSES: u64 = 4;
    const THREADS: u64 = 3;
    const EACH: u64 = 1_000_000;
    let folder = Scratch::new();
    let path = folder.join("region");
    let cache = open(&path, false);
    let children: Vec<Pid> = (0..PROCESSES)
        .map(|_| {
            forked(|| {
                let cache = open(&path, false);
                std::thread::scope(|scope| {
                    for _ in 0..THREADS {
                        scope.spawn(|| {
                            let session = cache.session().unwrap();
                            (0..EACH).for_each(|i| session.note_latency(Door::Meta, Verb::Touch, 64 + i % 64));
                        });
                    }
                });
            })
        })
        .collect();
    for child in children {
        assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Exited(child, 0));
    }
    let latencies = cache.latencies();
    let all = PROCESSES * THREADS * EACH;
    assert_eq!(counts(&latencies), [(Door::Meta, Verb::Touch, all)]);
    let latency = latencies.of(Door::Meta, Verb::Touch);
    let sum = PROCESSES * THREADS * (0..EACH).map(|i| 64 + i % 64).sum::<u64>();
    assert_eq!((latency.counts[1] + latency.counts[2], latency.sum_ns), (all, sum));
}

#[test]
fn one_call_in_256_is_measured_by_its_door_and_verb() {
    one_call_in_256_is_measured(Gate::Off);
}

#[test]
fn one_call_in_256_is_measured_behind_a_gate() {
    one_call_in_256_is_measured(Gate::Rehearsed);
}

fn one_call_in_256_is_measured(gate: Gate) {
    const CALLS: u64 = 256 * 400;
    let folder = Scratch::new();
    let path = folder.join("region");
    let cache = open_with(&path, false, gate);
    forked_to_end(|| {
        let cache = open_with(&path, true, gate);
        let mut session = cache.session().unwrap();
        (0..CALLS).for_each(|_| {
            session.set(b"key", b"value", 0).unwrap();
        });
    });
    let mut session = cache.session().unwrap();
    for _ in 0..CALLS {
        session.get(b"key").unwrap();
        session.delete(b"key", &keyway_cache::Delete::default()).unwrap();
        session.set(b"key", b"1", 0).unwrap();
        session.incr(b"key", 1).unwrap();
        session.touch(b"key", 0).unwrap();
    }
    let latencies = cache.latencies();
    let found = counts(&latencies);
    let expected = [
        (Door::Library, Verb::Get),
        (Door::Library, Verb::Set),
        (Door::Library, Verb::Delete),
        (Door::Library, Verb::Arithmetic),
        (Door::Library, Verb::Touch),
        (Door::DropIn, Verb::Set),
    ];
    let doors: Vec<_> = found.iter().map(|(door, verb, _)| (*door, *verb)).collect();
    assert_eq!(doors, expected);
    // Calls are chosen at random: 400 of each verb, with a standard deviation of about 20.
    assert!(found.iter().all(|(_, _, count)| (280..520).contains(count)), "{found:?}");
    // The value shows that the clock and its scale are right to an order of magnitude: no call takes a second, or no time.
    for (door, verb) in expected {
        let median = latencies.of(door, verb).quantile_ns(500).unwrap();
        assert!((64..100_000_000).contains(&median), "{door:?} {verb:?}: {median} ns");
    }
}

#[test]
fn stores_are_measured_as_seldom_while_hot_keys_are_looked_at() {
    [Gate::Off, Gate::Rehearsed]
        .into_iter()
        .for_each(stores_are_measured_as_seldom);
}

fn stores_are_measured_as_seldom(gate: Gate) {
    const STORES: u32 = 400_000;
    let folder = Scratch::new();
    let cache = open_with(&folder.join("region"), false, gate);
    let mut session = cache.session().unwrap();
    // From the second sample on, the session knows that the counters are looked at.
    cache.hot_counts();
    for number in 0..STORES {
        session.set(&number.to_le_bytes()[..2], b"value", 0).unwrap();
    }
    let measured: u64 = counts(&cache.latencies()).iter().map(|(_, _, count)| count).sum();
    // Six deviations of a binomial count.
    let (mean, deviation) = (f64::from(STORES) / 256.0, (f64::from(STORES) / 256.0).sqrt());
    #[allow(clippy::cast_precision_loss, reason = "below 2^53")]
    let difference = (measured as f64 - mean).abs();
    assert!(difference < 6.0 * deviation, "{measured}, and not about {mean}");
}

fn forked_to_end(child: impl FnOnce()) {
    let child = forked(child);
    assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Exited(child, 0));
}

#[test]
fn a_servers_sessions_are_not_sampled() {
    let options = Options::new().memory(2 << 20).item_size_max(1 << 16).server(true);
    let cache = Cache::open(&Place::Memfd, &options).unwrap();
    let mut session = cache.session().unwrap();
    for _ in 0..10_000 {
        session.get(b"key").unwrap();
        session.set(b"key", b"value", 0).unwrap();
    }
    assert_eq!(counts(&cache.latencies()), []);
}

#[test]
fn no_count_goes_back_when_its_process_is_killed() {
    let folder = Scratch::new();
    let path = folder.join("region");
    let cache = open(&path, false);
    let start = |number: usize| {
        forked(|| {
            let cache = open(&path, number.is_multiple_of(2));
            let mut session = cache.session().unwrap();
            loop {
                session.set(b"key", b"1", 0).unwrap();
                session.incr(b"key", 1).unwrap();
                // Often enough to be killed in the middle of it.
                (0..100).for_each(|i| session.note_latency(Door::Text, Verb::Get, i << 10));
            }
        })
    };
    let mut children: Vec<Pid> = (0..3).map(start).collect();
    let mut before = cache.latencies();
    for round in 0..60 {
        let mut grown = 0;
        // Until the present children have counted something, whatever else the machine does.
        while grown < 1000 {
            let now = cache.latencies();
            for door in Door::ALL {
                for verb in Verb::ALL {
                    let (was, is) = (before.of(door, verb), now.of(door, verb));
                    assert!(
                        was.counts.iter().zip(is.counts).all(|(was, is)| *was <= is) && was.sum_ns <= is.sum_ns,
                        "{door:?} {verb:?}: {was:?}, and later {is:?}"
                    );
                }
            }
            grown += now.of(Door::Text, Verb::Get).count() - before.of(Door::Text, Verb::Get).count();
            before = now;
        }
        let victim = round % children.len();
        kill(children[victim], Signal::SIGKILL).unwrap();
        waitpid(children[victim], None).unwrap();
        children[victim] = start(round);
    }
    for child in children {
        kill(child, Signal::SIGKILL).unwrap();
        waitpid(child, None).unwrap();
    }
    assert!(cache.latencies().of(Door::Text, Verb::Get).count() >= 60_000);
}
