//! Code of the program that runs within a get. Its enemy: such code that changes the very item, so that the get never ends.
//! Guards: P26

use keyway_cache::{Cache, Gate, Get, Item, Options, Place, Session, Target};
use std::mem::MaybeUninit;

/// Calls of a program's code within one get: a quick attempt, one by all rules, and one with a value that is this process's own.
const CALLS_MAX: usize = 3;

/// Stores another value of the same length, numbered, that fills several cache lines.
fn change(session: &mut Session, number: usize) {
    session.set(b"key", &value(number), 0).unwrap();
}

fn value(number: usize) -> Vec<u8> {
    format!("{number:08}").repeat(40).into_bytes()
}

/// How a region can be opened.
fn regions() -> impl Iterator<Item = Cache> {
    let plain = || Options::new().memory(4 << 20);
    let all = [plain(), plain().checksums(true), plain().gate(Gate::Rehearsed)];
    all.into_iter().map(|options| Cache::open(&Place::Memfd, &options).unwrap())
}

#[test]
fn a_head_that_changes_its_item_runs_a_few_times() {
    for cache in regions() {
        let (mut session, mut other) = (cache.session().unwrap(), cache.session().unwrap());
        let rules = [
            Get {
                value: true,
                ..Get::default()
            },
            Get {
                value: true,
                details: true,
                ..Get::default()
            },
            Get {
                value: true,
                exptime: Some(100),
                ..Get::default()
            },
        ];
        for how in rules {
            // Also those gets that are samples for `keyway hot`.
            for round in 0..300 {
                change(&mut session, 0);
                let (mut calls, mut out) = (0, b"before ".to_vec());
                let found = session.get_with(b"key", &how, &mut out, |_, out| {
                    calls += 1;
                    change(&mut other, calls);
                    out.extend_from_slice(b"head ");
                });
                assert!(
                    found.unwrap().is_some() && (1..=CALLS_MAX).contains(&calls),
                    "{calls} calls in round {round}"
                );
                let got = out.strip_prefix(b"before head ").unwrap();
                assert!(
                    (0..=calls).any(|number| got == value(number)),
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
    calls: usize,
}

impl Target for Own<'_> {
    fn make_room(&mut self, item: &Item) -> bool {
        self.calls += 1;
        change(self.other, self.calls);
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
        for _ in 0..300 {
            change(&mut session, 0);
            let mut target = Own {
                bytes: Vec::new(),
                other: &mut other,
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
