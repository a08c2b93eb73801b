//! Increments and decrements of items of every form: the value is what memcached's would be, and all else of the item stays.
//! Guards: P14

use crate::private;
use keyway_region::verbs::{Arithmetic, Counted, Get, Item, Number, Store, Stored};
use keyway_region::{Limits, Moment, Region, Session};
use private::{Page, UNIX_S};
use std::sync::Arc;

const KEY: &[u8] = b"counter";

struct World {
    session: Session,
    region: Arc<Region>,
    now: u32,
    /// after those that use it
    pages: Vec<Page>,
}

impl World {
    fn new() -> Self {
        let (pages, region) = private::region(4 << 20);
        let process = region.recovery().attach(0, 1, UNIX_S);
        region.limits().write(&Limits {
            item_size_max: 1 << 18,
            evict: true,
            ..Limits::default()
        });
        let session = region.session(process).expect("a slot");
        let now = region.clock().tick(Moment::from_secs(UNIX_S));
        Self {
            session,
            region,
            now,
            pages,
        }
    }

    fn store(&mut self, value: &str, how: &Store) -> u64 {
        match self.session.store(KEY, value.as_bytes(), how, self.now) {
            Ok(Stored::Stored { cas, .. }) => cas,
            other => panic!("{value:?} as {how:?}: {other:?}"),
        }
    }

    fn get(&mut self) -> (String, Item) {
        let mut value = Vec::new();
        let how = Get {
            value: true,
            details: true,
            ..Get::default()
        };
        let item = self.session.get(KEY, &how, self.now, &mut value).expect("a good key");
        (String::from_utf8(value).expect("a number"), item.expect("it is there"))
    }
}

/// A number as memcached writes it over a value of this length.
fn written(number: u64, width: usize) -> String {
    format!("{number:<width$}")
}

/// Every kind of item that a number can be in.
fn forms() -> Vec<Store> {
    let mut forms = Vec::new();
    for flags in [0, 7] {
        for exptime in [0, 1000] {
            for new_cas in [None, Some(1 << 60)] {
                for opaque_key in [false, true] {
                    forms.push(Store {
                        flags,
                        exptime,
                        new_cas,
                        opaque_key,
                        ..Store::default()
                    });
                }
            }
        }
    }
    forms
}

#[test]
fn the_value_is_memcacheds_and_all_else_stays() {
    let mut world = World::new();
    let numbers = (0..17).flat_map(|power| [10u64.pow(power) - 1, 10u64.pow(power), 4 * 10u64.pow(power)]);
    for number in numbers {
        for (how, padding) in forms().iter().zip([0, 0, 0, 1, 0, 3].into_iter().cycle()) {
            let start = format!("{number}{}", " ".repeat(padding));
            for (delta, decrement) in [(1, false), (9, false), (123_456_789, false), (1, true), (1 << 40, true)] {
                let cas = world.store(&start, how);
                let (_, before) = world.get();
                let value = if decrement {
                    number.saturating_sub(delta)
                } else {
                    number + delta
                };
                let when = format!("{start:?} by {delta}, down: {decrement}, {how:?}");
                let asked = Arithmetic {
                    delta,
                    decrement,
                    ..Arithmetic::default()
                };
                let answer = world.session.arithmetic(KEY, &asked, world.now);
                let Ok(Counted::Value { value: told, item }) = answer else {
                    panic!("{when}: {answer:?}")
                };
                let (text, after) = world.get();
                assert_eq!((told, text.as_str()), (value, written(value, start.len()).as_str()), "{when}");
                assert_eq!(
                    (after.flags, after.ttl_s, after.opaque_key),
                    (before.flags, before.ttl_s, before.opaque_key),
                    "{when}"
                );
                assert_eq!(
                    (item.flags, item.ttl_s, item.cas, item.size),
                    (after.flags, after.ttl_s, after.cas, after.size),
                    "{when}"
                );
                assert_eq!(
                    world.region.threads().counters().bytes,
                    after.size as u64,
                    "the item is the only one: {when}"
                );
                assert!(after.cas > cas || how.new_cas.is_some(), "{when}: {} after {cas}", after.cas);
                assert!(!after.stale && !after.win_sent, "{when}");
            }
        }
    }
}

#[test]
fn a_number_of_before_a_gap_stays_stale() {
    let mut world = World::new();
    world.store("41", &Store::default());
    world.session.release_extents();
    world.region.mapped().make_stale();
    assert!(world.get().1.stale);
    assert_eq!(world.session.incr(KEY, 1, world.now), Ok(Number::Is(42)));
    let (value, item) = world.get();
    assert!(value == "42" && item.stale, "{value:?}, {item:?}");
}

#[test]
fn flags_that_are_announced_are_written_whatever_they_are() {
    let mut world = World::new();
    for scribbled in [0, 1, u32::MAX] {
        let how = Store {
            flags: 0x5555_5555,
            ..Store::default()
        };
        world.store("12345678", &how);
        // The client's flags are at a multiple of 4, and the next item goes after this one, where other bytes are then.
        let mut words: Vec<&mut u64> = private::words(&mut world.pages).collect();
        let is_it = |word: &u64, shift: &u32| (word >> shift) & 0xFFFF_FFFF == u64::from(how.flags);
        let found = |word: &&mut u64| [0, 32].iter().any(|shift| is_it(word, shift));
        let at = words.iter().position(found).expect("the item's flags");
        let shift = [0, 32]
            .into_iter()
            .find(|shift| is_it(words[at], shift))
            .expect("it was found");
        *words[at] = *words[at] & !(0xFFFF_FFFF << shift) | u64::from(scribbled) << shift;
        for word in &mut words[at + 3..at + 40] {
            **word = 0xEEEE_EEEE_EEEE_EEEE;
        }
        assert_eq!(world.session.incr(KEY, 1, world.now), Ok(Number::Is(12_345_679)));
        let (value, item) = world.get();
        assert_eq!((value.as_str(), item.flags), ("12345679", scribbled));
    }
}
