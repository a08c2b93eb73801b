//! Code of the program that runs within a get. Its enemies: such code that changes the very item, so that the get never ends; and such
//! code that panics, and leaves the session in the middle of its operation.
//! Guards: P26

use keyway_cache::server::ServerSession as _;
use keyway_cache::{Cache, Gate, Get, Item, Options, Place, Session, Target};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Calls of a program's code within one get: a quick attempt, one by all rules, and one with a value that is this process's own.
const CALLS_MAX: usize = 3;
/// Of a region, bytes.
const MEMORY: u64 = 4 << 20;

/// Bytes of values: one that fills several cache lines, and one that has segments of its own, which are freed as soon as it is replaced.
const LENS: [usize; 2] = [320, 40_000];

/// Stores another value of this length, numbered.
fn change(session: &mut Session, number: usize, len: usize) {
    session.set(b"key", &value(number, len), 0).unwrap();
}

fn value(number: usize, len: usize) -> Vec<u8> {
    format!("{number:08}").repeat(len / 8).into_bytes()
}

/// How a region can be opened.
fn regions() -> impl Iterator<Item = Cache> {
    let plain = || Options::new().memory(MEMORY);
    let all = [plain(), plain().checksums(true), plain().gate(Gate::Rehearsed)];
    all.into_iter().map(|options| Cache::open(&Place::Memfd, &options).unwrap())
}

/// Gets of each kind: a quick one, one that asks for details, and one that changes the item.
fn rules() -> [Get; 3] {
    let value = || Get {
        value: true,
        ..Get::default()
    };
    [
        value(),
        Get {
            details: true,
            ..value()
        },
        Get {
            exptime: Some(100),
            ..value()
        },
    ]
}

#[test]
fn a_head_that_changes_its_item_runs_a_few_times() {
    for cache in regions() {
        let (mut session, mut other) = (cache.session().unwrap(), cache.session().unwrap());
        for (how, len) in rules().into_iter().flat_map(|how| LENS.map(|len| (how, len))) {
            // Also those gets that are samples for `keyway hot`.
            for round in 0..300 {
                change(&mut session, 0, len);
                let (mut calls, mut out) = (0, b"before ".to_vec());
                let found = session.get_with(b"key", &how, &mut out, |_, out| {
                    calls += 1;
                    change(&mut other, calls, len);
                    out.extend_from_slice(b"head ");
                });
                assert!(
                    found.unwrap().is_some() && (1..=CALLS_MAX).contains(&calls),
                    "{calls} calls in round {round}"
                );
                let got = out.strip_prefix(b"before head ").unwrap();
                assert!(
                    (0..=calls).any(|number| got == value(number, len)),
                    "a value that was never stored"
                );
            }
        }
        assert!(cache.check(|_| {}).is_sound());
    }
}

/// A program's memory, for which its own code runs.
struct Own<'s> {
    bytes: Vec<MaybeUninit<u8>>,
    other: &'s mut Session,
    len: usize,
    calls: usize,
}

impl Target for Own<'_> {
    fn make_room(&mut self, item: &Item) -> bool {
        self.calls += 1;
        change(self.other, self.calls, self.len);
        self.bytes.resize(item.value_len, MaybeUninit::new(0));
        true
    }

    fn room(&mut self) -> &mut [MaybeUninit<u8>] {
        &mut self.bytes
    }
}

#[test]
fn a_target_that_changes_its_item_is_asked_a_few_times() {
    for cache in regions() {
        let (mut session, mut other) = (cache.session().unwrap(), cache.session().unwrap());
        for round in 0..300 {
            let len = LENS[round % LENS.len()];
            change(&mut session, 0, len);
            let mut target = Own {
                bytes: Vec::new(),
                other: &mut other,
                len,
                calls: 0,
            };
            let how = Get {
                value: true,
                ..Get::default()
            };
            assert!(session.get_into(b"key", &how, &mut target).unwrap());
            assert!((1..=CALLS_MAX).contains(&target.calls), "{} calls", target.calls);
        }
    }
}

/// Where a get puts the value, and whose code runs meanwhile.
#[derive(Clone, Copy)]
enum Goal {
    /// a vector, behind a head
    Vector,
    /// memory that the program's code makes
    Target,
    /// a vector, behind a head, and what is long goes on to a socket from where it is: this is the crate's own code but for the head, so
    /// it runs while the item changes
    Socket,
}

const GOALS: [Goal; 3] = [Goal::Vector, Goal::Target, Goal::Socket];

/// A target whose code panics once it has stored another value.
struct Panics<'s>(&'s mut Session);

impl Target for Panics<'_> {
    fn make_room(&mut self, _: &Item) -> bool {
        change(self.0, 1, LENS[0]);
        panic!("a bug, in the test of a panic");
    }

    fn room(&mut self) -> &mut [MaybeUninit<u8>] {
        &mut []
    }
}

#[test]
fn code_that_panics_leaves_a_session_that_works_and_holds_nothing() {
    let (socket, _other_end) = UnixStream::pair().unwrap();
    for (how, goal) in rules().into_iter().flat_map(|how| GOALS.map(|goal| (how, goal))) {
        // A region for each: a key that was evicted from it before would stay longer.
        for cache in regions() {
            let (mut session, mut other) = (cache.session().unwrap(), cache.session().unwrap());
            change(&mut session, 0, LENS[0]);
            let mut out = b"before ".to_vec();
            let panicked = catch_unwind(AssertUnwindSafe(|| {
                let panics = |_: &Item, out: &mut Vec<u8>| {
                    out.extend_from_slice(b"head ");
                    change(&mut other, 1, LENS[0]);
                    panic!("a bug, in the test of a panic");
                };
                match goal {
                    Goal::Target => session.get_into(b"key", &how, &mut Panics(&mut other)).map(drop),
                    Goal::Vector => session.get_with(b"key", &how, &mut out, panics).map(drop),
                    Goal::Socket => session
                        .get_to(b"key", &how, (socket.as_fd(), b""), &mut out, panics)
                        .map(drop),
                }
            }));
            panicked.expect_err("the program's code panics");
            let quietly = Get {
                value: true,
                no_bump: true,
                ..Get::default()
            };
            let mut got = Vec::new();
            assert!(other.get_with(b"key", &quietly, &mut got, |_, _| {}).unwrap().is_some());
            assert_eq!(got, value(1, LENS[0]), "what the code has stored, and nothing after it");
            // Everything is recycled meanwhile, also the segments in which the session was at work.
            for number in 0..3 * MEMORY / 1000 {
                other.set(&number.to_le_bytes(), &[7; 1000], 0).unwrap();
            }
            assert!(other.get_append(b"key", &mut got).unwrap().is_none(), "its segment is held");
            change(&mut session, 2, LENS[0]);
            got.clear();
            assert!(session.get_with(b"key", &how, &mut got, |_, _| {}).unwrap().is_some());
            assert_eq!(got, value(2, LENS[0]));
            assert!(cache.check(|_| {}).is_sound());
        }
    }
}
