//! Counting by every way there is: by the digits of short numbers, by way of the number, and as one change among others.
//! Guards: P14

use keyway_cache::{Arithmetic, Cache, Counted, Get, Number, Options, Place, Session};

const KEY: &[u8] = b"count";

fn session() -> Session {
    Cache::open(&Place::Memfd, &Options::default()).unwrap().session().unwrap()
}

/// What protocol.txt ("Increment/Decrement") makes of a number, and the text that then stands there. What stands behind a blank does not
/// count, as in memcached.
fn rule(text: &str, delta: u64, decrement: bool) -> Option<(u64, String)> {
    let number: u64 = text.split(' ').next()?.parse().ok()?;
    let number = if decrement {
        number.saturating_sub(delta)
    } else {
        number.wrapping_add(delta)
    };
    Some((number, format!("{number:<width$}", width = text.len())))
}

/// The number, by the way that is asked for.
fn count(session: &mut Session, delta: u64, decrement: bool, alone: bool) -> Number {
    let details = Get {
        details: true,
        ..Get::default()
    };
    match (alone, decrement) {
        (true, false) => session.incr(KEY, delta).unwrap(),
        (true, true) => session.decr(KEY, delta).unwrap(),
        (false, _) => {
            let item = session.get_with(KEY, &details, &mut Vec::new(), |_, _| {}).unwrap();
            let how = Arithmetic {
                delta,
                decrement,
                compare_cas: item.map(|item| item.cas),
                ..Arithmetic::default()
            };
            session.arithmetic(KEY, &how).unwrap().into()
        }
    }
}

#[test]
fn every_number_is_counted_as_the_protocol_says() {
    let mut session = session();
    let powers = (0..20).flat_map(|power| [10u64.pow(power) - 1, 10u64.pow(power), 10u64.pow(power) + 1]);
    let numbers: Vec<u64> = powers
        .chain([42, 98_765_432, 2_147_483_648, u64::MAX - 1, u64::MAX])
        .collect();
    let deltas = [0, 1, 5, 9, 10, 99, 12_345_678, 99_999_999, 100_000_000, u64::MAX];
    let texts = numbers.iter().flat_map(|number| {
        let width = number.to_string().len();
        [
            format!("{number}"),
            format!("{number:0>3}"),
            format!("{number:<w$}", w = width + 1),
            format!("{number:<24}"),
        ]
    });
    for text in texts.chain(["".into(), "x".into(), "12a".into(), "1 2".into(), "99999999x".into()]) {
        for delta in deltas {
            for (decrement, alone) in [(false, true), (true, true), (false, false), (true, false)] {
                session.set(KEY, text.as_bytes(), 0).unwrap();
                let counted = count(&mut session, delta, decrement, alone);
                let mut value = Vec::new();
                session.get_append(KEY, &mut value).unwrap().unwrap();
                let what = format!("{text:?}, {delta}, decrement {decrement}, alone {alone}");
                let Some((number, wanted)) = rule(&text, delta, decrement) else {
                    assert_eq!((counted, &value[..]), (Number::NotANumber, text.as_bytes()), "{what}");
                    continue;
                };
                assert_eq!(counted, Number::Is(number), "{what}");
                assert_eq!(String::from_utf8_lossy(&value), wanted, "{what}");
            }
        }
    }
}

#[test]
fn what_is_not_there_is_not_counted() {
    let mut session = session();
    assert_eq!(session.incr(KEY, 1).unwrap(), Number::NotFound);
    assert_eq!(session.decr(KEY, 1).unwrap(), Number::NotFound);
    assert_eq!(session.arithmetic(KEY, &Arithmetic::default()).unwrap(), Counted::NotFound);
    session.set(KEY, b"1", -1).unwrap();
    assert_eq!(session.incr(KEY, 1).unwrap(), Number::NotFound, "expired");
}

#[test]
fn flags_and_expiry_stay() {
    let mut session = session();
    let how = keyway_cache::Store {
        flags: 77,
        exptime: 1000,
        ..keyway_cache::Store::default()
    };
    session.store(KEY, b"8", &how).unwrap();
    for due in [9, 10, 11] {
        assert_eq!(session.incr(KEY, 1).unwrap(), Number::Is(due));
        let item = session.get_append(KEY, &mut Vec::new()).unwrap().unwrap();
        assert_eq!(item.flags, 77);
        assert!(item.ttl_s.is_some_and(|ttl| (990..=1000).contains(&ttl)), "{item:?}");
    }
}
