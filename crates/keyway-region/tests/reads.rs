//! What a get does to shared memory. Its enemy: an atomic read-modify-write on the way of every get, which would make readers of one item wait
//! for each other's cache line.
//! Guards: P4

#[path = "it/private/mod.rs"]
mod private;

use keyway_region::observe::{Access, Event, install};
use keyway_region::verbs::{Get, Store};
use private::UNIX_S;
use std::cell::Cell;

/// Gets of each key.
const GETS: usize = 1_000;
/// The frequency of a slot has two bits, and the mark that an item was fetched is one: so often may hits of an item exchange a word.
const HINTS_MAX: usize = 4;

thread_local! {
    static EXCHANGES: Cell<usize> = const { Cell::new(0) };
}

fn observer(event: Event) {
    if event == Event::Before(Access::Exchange) {
        EXCHANGES.set(EXCHANGES.get() + 1);
    }
}

#[test]
fn only_the_hints_of_first_hits_exchange_a_word() {
    let (_pages, region) = private::region(2 << 20);
    let process = region.recovery().attach(0, 1, UNIX_S);
    let mut session = region.session(process).expect("a slot");
    let now = region.clock().tick(keyway_region::Moment::from_secs(UNIX_S));
    for (key, len) in [(b"short", 5), (b"large", 40_000)] {
        session.store(key, &vec![1; len], &Store::default(), now).expect("room");
    }
    let how = Get {
        value: true,
        ..Get::default()
    };
    for (key, is_there, exchanges_max) in [(b"short", true, HINTS_MAX), (b"large", true, HINTS_MAX), (b"other", false, 0)] {
        EXCHANGES.set(0);
        install(Some(observer));
        for _ in 0..GETS {
            let mut value = Vec::new();
            let found = session.get(key, &how, now, &mut value).expect("a good key");
            assert_eq!(found.is_some(), is_there);
        }
        install(None);
        let exchanges = EXCHANGES.get();
        assert!(exchanges <= exchanges_max, "{key:?}: {exchanges} exchanges in {GETS} gets");
    }
}
