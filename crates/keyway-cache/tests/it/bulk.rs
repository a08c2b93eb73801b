//! Verbs of many keys in one call. Their enemy: a result that one call for each key would not give, because a key is skipped, counted
//! twice or believed from before; and a hint that reads where it may not.
//! Guards: P14

use keyway_cache::{AHEAD_MAX, Cache, Delete, Deleted, Gate, Options, Place, ReadError, Session, Stored, WriteError};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

fn options() -> Options {
    Options::new().memory(16 << 20).item_size_max(1 << 20)
}

fn name(number: usize) -> Vec<u8> {
    format!("key-{number}").into_bytes()
}

/// A value that no other key has, of this length at least.
fn value(number: usize, len: usize) -> Vec<u8> {
    let mut value = name(number);
    value.push(b'=');
    value.resize(value.len() + len, number.to_le_bytes()[0]);
    value
}

/// Lengths around cache lines and extents, and of values with several segments of their own.
fn len(number: usize) -> usize {
    [0, 40, 128, 700, 5_000, 100_000, 300_000][number % 7]
}

/// Numbers of keys in this many calls: with duplicates, with keys that have no item, and of every length of a call.
fn calls() -> impl Iterator<Item = Vec<usize>> {
    let lens = (0..=2 * AHEAD_MAX + 1).chain([100]);
    lens.map(|len| (0..len).map(|at| at * 13 % 37 + at / 5).collect())
}

fn one_by_one(session: &mut Session, keys: &[Vec<u8>]) -> Vec<Option<Vec<u8>>> {
    keys.iter().map(|key| session.get(key).expect("a good key")).collect()
}

fn agree(options: &Options) {
    let cache = Cache::open(&Place::Memfd, options).unwrap();
    let mut session = cache.session().unwrap();
    let items: Vec<_> = (0..60).filter(|n| n % 4 != 1).map(|n| (name(n), value(n, len(n)))).collect();
    for results in [session.set_many(&items, 0), session.set_many(&items, 600)] {
        assert_eq!(results.len(), items.len());
        for (result, (_, value)) in results.iter().zip(&items) {
            assert!(
                matches!(result, Ok(Stored::Stored { value_len, .. }) if *value_len == value.len()),
                "{result:?}"
            );
        }
    }
    // Expired.
    let expired: Vec<_> = (0..60).step_by(9).map(|n| (name(n), b"over")).collect();
    assert!(session.set_many(&expired, -1).iter().all(Result::is_ok));
    let before = cache.counters();
    let (mut asked, mut hits) = (0, 0);
    for numbers in calls() {
        let keys: Vec<_> = numbers.iter().copied().map(name).collect();
        let due = one_by_one(&mut session, &keys);
        assert_eq!(session.get_many(&keys).unwrap(), due);
        for (number, value) in numbers.iter().zip(&due) {
            let is_there = number % 4 != 1 && number % 9 != 0 && *number < 60;
            assert_eq!(*value, is_there.then(|| self::value(*number, len(*number))));
        }
        let (mut out, mut found) = (b"before".to_vec(), Vec::new());
        session
            .get_many_append(&keys, &mut out, |number, item| {
                found.push((number, item.value_len, item.ttl_s))
            })
            .unwrap();
        let mut rest = out.strip_prefix(b"before").expect("what was in the vector stays");
        let mut in_order = vec![None; keys.len()];
        for (number, len, ttl_s) in found {
            let (value, behind) = rest.split_at(len);
            (in_order[number], rest) = (Some(value.to_vec()), behind);
            assert!(ttl_s.is_some_and(|ttl_s| ttl_s <= 600));
        }
        assert!(in_order == due && rest.is_empty());
        asked += 3 * keys.len() as u64;
        hits += 3 * due.iter().flatten().count() as u64;
    }
    let counted = cache.counters().since(&before);
    assert_eq!((counted.cmd_get(), counted.get_hits), (asked, hits), "a hint is not counted");

    let keys: Vec<_> = (0..60).chain(0..20).map(name).collect();
    let due: Vec<_> = (0..60)
        .map(|n| {
            if n % 4 != 1 && n % 9 != 0 {
                Deleted::Deleted
            } else {
                Deleted::NotFound
            }
        })
        .chain([Deleted::NotFound; 20])
        .map(Ok)
        .collect();
    assert_eq!(session.delete_many(&keys), due);
    assert!(session.get_many(&keys).unwrap().iter().all(Option::is_none));
    drop(session);
    assert!(cache.check(|_| {}).problems.is_empty());
}

#[test]
fn many_keys_have_the_results_of_as_many_calls() {
    agree(&options());
    agree(&options().checksums(true));
    agree(&options().gate(Gate::Off));
    agree(&options().gate(Gate::Rehearsed));
}

#[test]
fn a_key_that_is_refused_ends_a_get_and_no_other_set() {
    let cache = Cache::open(&Place::Memfd, &options()).unwrap();
    let mut session = cache.session().unwrap();
    let long = vec![b'k'; 251];
    let items = [
        (b"a".to_vec(), vec![b'1']),
        (Vec::new(), vec![b'2']),
        (long.clone(), vec![b'3']),
        (b"large".to_vec(), vec![b'4'; 2 << 20]),
        (b"b".to_vec(), vec![b'5']),
        (b"a".to_vec(), vec![b'6']),
    ];
    let results = session.set_many(&items, 0);
    assert!(
        matches!(
            results.as_slice(),
            [
                Ok(_),
                Err(WriteError::KeyLength { len: 0 }),
                Err(WriteError::KeyLength { len: 251 }),
                Err(WriteError::TooLarge { .. }),
                Ok(_),
                Ok(_)
            ]
        ),
        "{results:?}"
    );
    assert_eq!(
        session.get_many(&["a", "b", "large"]).unwrap(),
        [Some(b"6".to_vec()), Some(b"5".to_vec()), None]
    );
    let keys = [b"a".to_vec(), long.clone(), b"b".to_vec()];
    assert_eq!(session.get_many(&keys), Err(ReadError::KeyLength { len: 251 }));
    let mut out = b"before".to_vec();
    let refused = session.get_many_append(&keys, &mut out, |_, _| ());
    assert_eq!(
        (refused, out.as_slice()),
        (Err(ReadError::KeyLength { len: 251 }), b"before".as_slice())
    );
    let deleted = session.delete_many(&keys);
    assert_eq!(
        deleted,
        [
            Ok(Deleted::Deleted),
            Err(WriteError::KeyLength { len: 251 }),
            Ok(Deleted::Deleted)
        ]
    );
    // A hint of anything.
    session.prefetch([b"".as_slice(), &long, &vec![0xFF; 1 << 20], b"b"]);
    session.prefetch([]);
}

#[test]
fn while_others_write_each_value_is_one_that_its_key_had() {
    let cache = Cache::open(&Place::Memfd, &options().memory(8 << 20)).unwrap();
    let (is_over, written) = (AtomicBool::new(false), AtomicUsize::new(0));
    let keys: Vec<_> = (0..50).map(name).collect();
    let items: Vec<_> = (0..50).map(|number| (name(number), value(number, 10))).collect();
    cache.session().unwrap().set_many(&items, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut session = cache.session().unwrap();
            for round in 0.. {
                for (number, key) in keys.iter().enumerate() {
                    // The region is small enough that this recycles its segments, and moves the items in it.
                    match (round + number) % 3 {
                        0 => drop(session.delete(key, &Delete::default())),
                        _ => drop(session.set(key, &value(number, (round * 97 + number) % 9_000), 0)),
                    }
                }
                written.store(round, Relaxed);
                if is_over.load(Relaxed) {
                    break;
                }
            }
        });
        let mut session = cache.session().unwrap();
        let mut hits = 0;
        while written.load(Relaxed) < 400 {
            for (number, found) in session.get_many(&keys).unwrap().iter().enumerate() {
                let Some(found) = found else { continue };
                let key = [name(number), b"=".to_vec()].concat();
                let rest = found.strip_prefix(key.as_slice()).expect("a value of this key");
                assert!(rest.iter().all(|byte| *byte == number.to_le_bytes()[0]));
                hits += 1;
            }
        }
        is_over.store(true, Relaxed);
        assert!(hits > 0, "some keys are there");
    });
    assert!(cache.check(|_| {}).problems.is_empty());
}
