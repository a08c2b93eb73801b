//! Random verbs against a simple map, on tiny regions so that rare paths (eviction, splits, chains, flushes) are common.
//! Its enemy: a verb that means something else than protocol.txt says, and any structure that an operation leaves unsound.
//! Guards: P14
#![allow(
    clippy::cast_possible_truncation,
    clippy::print_stdout,
    reason = "a test: its numbers are small, its output is for people"
)]

use harness::Random;
use keyway_cache::{
    Arithmetic, Cache, Counted, Delete, Deleted, Gate, Get, Options, Place, Session, Store, StoreMode, Stored, WriteError,
};
use keyway_proto::{Access, Command, Form};
use std::collections::HashMap;

/// How often the model chooses a command, of the sum of all. 0: it is about the server, or asks the session for what another
/// one asks for.
fn weight(command: Command) -> usize {
    match command {
        Command::Set => 5,
        Command::Add
        | Command::Replace
        | Command::Append
        | Command::Prepend
        | Command::Cas
        | Command::Delete
        | Command::Incr
        | Command::Decr
        | Command::Touch
        | Command::Gat
        | Command::FlushAll => 1,
        // Before and after each step the model gets the key, with its CAS unique.
        Command::Gats => 0,
        // A lease belongs to a connection.
        Command::LeaseGet | Command::LeaseSet => 0,
        _ if (command.facts().form, command.facts().access) == (Form::Text, Access::Writes) => {
            panic!("{command:?} changes items: give it a weight, and tell the model what it does")
        }
        // Commands that only read, meta commands, which are the same verbs of the session, and those about the server.
        _ => 0,
    }
}

fn choose(rng: &mut Random) -> Command {
    let sum = Command::ALL.iter().map(|command| weight(*command)).sum();
    let mut left = rng.index(sum);
    let chosen = Command::ALL.iter().find(|command| {
        let weight = weight(**command);
        let is_it = left < weight;
        left = left.saturating_sub(weight);
        is_it
    });
    *chosen.unwrap()
}

#[derive(Clone, Debug, PartialEq)]
struct Entry {
    value: Vec<u8>,
    flags: u32,
    cas: u64,
}

struct Model {
    map: HashMap<Vec<u8>, Entry>,
    /// an absent key may be one that was evicted
    evicts: bool,
}

fn value(rng: &mut Random, longest: usize) -> Vec<u8> {
    let len = match rng.index(10) {
        0 => 0,
        1..=6 => rng.index(100),
        7 | 8 => rng.index(3000),
        _ => rng.index(longest),
    };
    let start = rng.index(256);
    (0..len).map(|i| ((start + i) % 256) as u8).collect()
}

/// The number that a value says to `incr`: its first word, whatever follows a blank (as memcached's strtoull(3) reads it).
fn number_in(value: &[u8]) -> Option<u64> {
    let is_blank = |byte: &u8| b" \t\n\x0b\x0c\r".contains(byte);
    let word = value.split(is_blank).find(|word| !word.is_empty())?;
    let digits = word.strip_prefix(b"+").unwrap_or(word);
    let is_number = digits.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(digits).ok().filter(|_| is_number)?.parse().ok()
}

/// What the session sees of a key, with its CAS unique.
fn look(session: &mut Session, key: &[u8]) -> Option<Entry> {
    let how = Get {
        value: true,
        details: true,
        no_bump: true,
        ..Get::default()
    };
    let mut out = Vec::new();
    let item = session.get_with(key, &how, &mut out, |_, _| {}).unwrap()?;
    assert_eq!(item.value_len, out.len());
    Some(Entry {
        value: out,
        flags: item.flags,
        cas: item.cas,
    })
}

impl Model {
    /// The entry that the key has, after forgetting one that was evicted.
    fn settle(&mut self, session: &mut Session, key: &[u8], what: &str) -> Option<Entry> {
        let seen = look(session, key);
        match (&seen, self.map.get(key)) {
            (None, Some(_)) if self.evicts => {
                self.map.remove(key);
            }
            (seen, known) => assert_eq!(seen.as_ref(), known, "{what}: key {}", key.escape_ascii()),
        }
        seen
    }

    fn step(&mut self, session: &mut Session, rng: &mut Random, keys: usize, longest: usize) {
        let key = format!("key-{}", rng.index(keys)).into_bytes();
        let before = self.settle(session, &key, "before");
        let flags = [0, 0, 7, u32::MAX][rng.index(4)];
        let put = |session: &mut Session, mode, compare_cas, value: &[u8]| {
            let result = session.store(
                &key,
                value,
                &Store {
                    mode,
                    flags,
                    compare_cas,
                    ..Store::default()
                },
            );
            if matches!(result, Err(WriteError::TooLarge { .. })) {
                None
            } else {
                Some(result.unwrap())
            }
        };
        let stored = |v: Vec<u8>, f, s| match s {
            Stored::Stored { cas, value_len, .. } => {
                assert_eq!(value_len, v.len());
                Entry { value: v, flags: f, cas }
            }
            other => panic!("not stored: {other:?}"),
        };
        match choose(rng) {
            Command::Set => {
                let v = value(rng, longest);
                if let Some(s) = put(session, StoreMode::Set, None, &v) {
                    self.map.insert(key.clone(), stored(v, flags, s));
                }
            }
            Command::Add => {
                let v = value(rng, longest);
                match (put(session, StoreMode::Add, None, &v), &before) {
                    (None, _) => {}
                    (Some(s), Some(_)) => assert_eq!(s, Stored::NotStored),
                    (Some(s), None) => {
                        self.map.insert(key.clone(), stored(v, flags, s));
                    }
                }
            }
            Command::Replace => {
                let v = value(rng, longest);
                match (put(session, StoreMode::Replace, None, &v), &before) {
                    (None, _) => {}
                    (Some(s), None) => assert_eq!(s, Stored::NotStored),
                    (Some(s), Some(_)) => {
                        self.map.insert(key.clone(), stored(v, flags, s));
                    }
                }
            }
            command @ (Command::Append | Command::Prepend) => {
                let v = value(rng, 200);
                let append = command == Command::Append;
                let mode = if append { StoreMode::Append } else { StoreMode::Prepend };
                match (put(session, mode, None, &v), &before) {
                    (None, _) => {}
                    (Some(s), None) => assert_eq!(s, Stored::NotStored),
                    (Some(s), Some(old)) => {
                        let joined = if append {
                            [old.value.clone(), v].concat()
                        } else {
                            [v, old.value.clone()].concat()
                        };
                        self.map.insert(key.clone(), stored(joined, old.flags, s));
                    }
                }
            }
            Command::Cas => {
                let v = value(rng, longest);
                let right = before.as_ref().map_or(1, |e| e.cas);
                let cas = if rng.index(2) == 0 { right } else { right + 1 };
                match (put(session, StoreMode::Set, Some(cas), &v), &before) {
                    (None, _) => {}
                    (Some(s), None) => assert_eq!(s, Stored::NotFound),
                    (Some(s), Some(_)) if cas != right => assert_eq!(s, Stored::Exists),
                    (Some(s), Some(_)) => {
                        self.map.insert(key.clone(), stored(v, flags, s));
                    }
                }
            }
            Command::Delete => {
                let deleted = session.delete(&key, &Delete::default()).unwrap();
                assert_eq!(
                    deleted,
                    if before.is_some() {
                        Deleted::Deleted
                    } else {
                        Deleted::NotFound
                    }
                );
                self.map.remove(&key);
            }
            command @ (Command::Incr | Command::Decr) => {
                let delta = rng.index(1000) as u64;
                let how = Arithmetic {
                    delta,
                    decrement: command == Command::Decr,
                    vivify: Some((delta, 0)),
                    ..Arithmetic::default()
                };
                match (session.arithmetic(&key, &how).unwrap(), &before) {
                    (Counted::Value { value, item }, None) => {
                        assert_eq!(value, delta);
                        let text = value.to_string().into_bytes();
                        self.map.insert(
                            key.clone(),
                            Entry {
                                value: text,
                                flags: 0,
                                cas: item.cas,
                            },
                        );
                    }
                    (Counted::Value { value, item }, Some(old)) => {
                        let number = number_in(&old.value).unwrap();
                        let expected = match how.decrement {
                            true => number.saturating_sub(delta),
                            false => number.wrapping_add(delta),
                        };
                        assert_eq!(value, expected);
                        let text = format!("{value:<width$}", width = old.value.len()).into_bytes();
                        self.map.insert(
                            key.clone(),
                            Entry {
                                value: text,
                                flags: old.flags,
                                cas: item.cas,
                            },
                        );
                    }
                    (Counted::NotANumber, Some(old)) => {
                        assert_eq!(number_in(&old.value), None, "{:?} is a number", old.value);
                    }
                    (other, before) => panic!("{other:?} for {before:?}"),
                }
            }
            Command::Touch => {
                assert_eq!(session.touch(&key, 1000).unwrap(), before.is_some());
            }
            Command::Gat => {
                let how = Get {
                    value: true,
                    exptime: Some(1000),
                    ..Get::default()
                };
                let mut out = Vec::new();
                let hit = session.get_with(&key, &how, &mut out, |_, _| {}).unwrap();
                assert_eq!(hit.map(|_| &out), before.as_ref().map(|old| &old.value));
            }
            Command::FlushAll => {
                if rng.index(60) == 0 {
                    session.flush_all(0).unwrap();
                    self.map.clear();
                }
            }
            other => panic!("{other:?} has a weight, and the model does not know what it does"),
        }
        self.settle(session, &key, "after");
    }
}

fn run(seed: u64, memory: u64, keys: usize, longest: usize, steps: usize, evicts: bool, checksums: bool) {
    println!(
        "seed {seed}: {} MiB, {keys} keys, values to {longest} B, {steps} steps",
        memory >> 20
    );
    let options = Options::new()
        .memory(memory)
        .item_size_max((memory / 4) as usize)
        .checksums(checksums)
        // Where there is no key the same code runs with a gate that is only noted.
        .gate(if seed.is_multiple_of(2) {
            Gate::WherePossible
        } else {
            Gate::Rehearsed
        });
    let cache = Cache::open(&Place::Memfd, &options).unwrap();
    let mut session = cache.session().unwrap();
    let mut rng = Random::new(seed);
    let mut model = Model {
        map: HashMap::new(),
        evicts,
    };
    for step in 0..steps {
        model.step(&mut session, &mut rng, keys, longest);
        if step % 997 == 0 {
            session.upkeep();
        }
    }
    for key in model.map.keys().cloned().collect::<Vec<_>>() {
        model.settle(&mut session, &key, "at the end");
    }
    let mut walked = 0;
    let mut cursor = Some(0);
    while let Some(c) = cursor {
        cursor = session.walk(c, 100, |key, _| {
            assert!(model.map.contains_key(key));
            walked += 1;
        });
    }
    assert_eq!(walked, model.map.len());
    let counters = cache.counters();
    assert_eq!(
        counters.curr_items as usize,
        cache
            .check(|_| {})
            .summary
            .iter()
            .find(|(n, _)| *n == "items")
            .unwrap()
            .1
            .split(' ')
            .next()
            .unwrap()
            .parse::<usize>()
            .unwrap()
    );
    drop(session);
    let report = cache.check(|_| {});
    assert!(report.is_sound(), "seed {seed}: {:#?}", report.problems);
    assert_eq!(counters.corrupt, 0);
    assert_eq!(counters.evictions > 0, evicts, "{counters:?}");
}

#[test]
fn without_eviction() {
    for seed in 1..4 {
        run(seed, 64 << 20, 3000, 20_000, 60_000, false, false);
    }
}

#[test]
fn with_eviction_and_large_values() {
    for seed in 11..14 {
        run(seed, 2 << 20, 2000, 60_000, 40_000, true, false);
    }
}

#[test]
fn with_many_small_items_and_growth() {
    for seed in 21..23 {
        run(seed, 8 << 20, 30_000, 60, 200_000, false, false);
    }
}

#[test]
fn with_checksums() {
    run(31, 2 << 20, 2000, 60_000, 40_000, true, true);
    run(32, 8 << 20, 30_000, 60, 100_000, false, true);
}
