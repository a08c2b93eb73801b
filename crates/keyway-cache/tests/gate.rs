//! The gate: what runs while a region can be reached. Its enemy: an allocation, a callback or a call of the host while the gate is
//! open; a call that leaves it open; a copy that is not the value. Where the processor has protection keys, also a mapping that
//! can be reached outside a call, by any thread or signal handler.
//!
//! The allocator of this program notes each allocation that comes from inside. Where there are no keys, the gate is a rehearsal.
//! Guards: P32
#![allow(unsafe_code, reason = "a test: an allocator")]

use keyway_cache::{
    Arithmetic, Cache, Delete, Gate, GateState, Get, HotBy, Item, Options, Place, ReadError, Session, Store, StoreMode, Target,
    server, watch,
};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::mem::MaybeUninit;

struct Watching;

thread_local! {
    /// allocations of this thread that came from inside
    static INSIDE: Cell<usize> = const { Cell::new(0) };
}

fn note() {
    if server::gate_is_open() {
        INSIDE.set(INSIDE.get() + 1);
    }
}

// SAFETY: the system's allocator, which is only watched.
unsafe impl GlobalAlloc for Watching {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note();
        // SAFETY: the caller's word.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        note();
        // SAFETY: the caller's word.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note();
        // SAFETY: the caller's word.
        unsafe { System.realloc(block, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Watching = Watching;

/// A cache with a real gate where there can be one, and a rehearsed one elsewhere.
fn open(memory: u64, checksums: bool) -> Cache {
    let options = Options::new().memory(memory).item_size_max(1 << 20).checksums(checksums);
    let cache = Cache::open(&Place::Memfd, &options).unwrap();
    if cache.info().gate == GateState::On {
        return cache;
    }
    let gate = Gate::Rehearsed;
    Cache::open(&Place::Memfd, &options.gate(gate)).unwrap()
}

/// Every verb, with what the callbacks see.
fn every_verb(session: &mut Session, round: usize, len: usize) {
    let key = format!("key-{}", round % 97);
    let key = key.as_bytes();
    let value = vec![round.to_le_bytes()[0]; len];
    let closed = || assert!(!server::gate_is_open(), "a callback runs inside");
    session.set(key, &value, 0).unwrap();
    assert_eq!(session.get_many(&[key, b"absent"]).unwrap(), [Some(value.clone()), None]);
    let mut out = b"before".to_vec();
    assert!(session.get_append(key, &mut out).unwrap().is_some());
    assert_eq!(out.split_at(6), (&b"before"[..], value.as_slice()));
    let all = Get {
        value: true,
        details: true,
        ..Get::default()
    };
    out.clear();
    let head = |item: &keyway_cache::Item, out: &mut Vec<u8>| {
        closed();
        out.extend_from_slice(&item.value_len.to_le_bytes());
    };
    let item = session.get_with(key, &all, &mut out, head).unwrap().unwrap();
    assert_eq!(out.split_at(8), (&len.to_le_bytes()[..], value.as_slice()));
    for (mode, stays) in [(StoreMode::Append, true), (StoreMode::Prepend, true), (StoreMode::Add, false)] {
        let how = Store {
            mode,
            ..Store::default()
        };
        let stored = session.store(key, b"0123456789", &how).unwrap();
        assert_eq!(matches!(stored, keyway_cache::Stored::Stored { .. }), stays);
    }
    let touch = Get {
        exptime: Some(100),
        ..all
    };
    out.clear();
    let touched = session.get_with(key, &touch, &mut out, |_, _| closed()).unwrap().unwrap();
    assert_eq!((touched.value_len, out.len()), (len + 20, len + 20));
    let how = Store {
        compare_cas: Some(item.cas),
        ..Store::default()
    };
    assert_eq!(session.store(key, b"late", &how).unwrap(), keyway_cache::Stored::Exists);
    assert!(session.touch(key, 0).unwrap());
    session.set(b"number", b"41", 0).unwrap();
    let counted = session
        .arithmetic(
            b"number",
            &Arithmetic {
                delta: 1,
                ..Arithmetic::default()
            },
        )
        .unwrap();
    assert!(matches!(counted, keyway_cache::Counted::Value { value: 42, .. }));
    if round.is_multiple_of(3) {
        session.delete(key, &Delete::default()).unwrap();
    }
    if round.is_multiple_of(64) {
        session.walk(0, usize::MAX, |_, _| closed());
        session.upkeep();
        session.release();
        assert!(session.now_unix_s() > 0);
    }
    assert!(session.get(&[b'k'; 251]) == Err(ReadError::KeyLength { len: 251 }) && session.set(b"", b"", 0).is_err());
    closed();
}

#[test]
fn no_verb_allocates_inside_and_none_leaves_the_gate_open() {
    for checksums in [false, true] {
        try_everything(&open(4 << 20, checksums));
    }
}

fn try_everything(cache: &Cache) {
    let mut session = cache.session().unwrap();
    let before = INSIDE.get();
    // Sizes around what is kept, what is a segment, and what is more than one; the region fills and evicts.
    for (round, len) in (0..700).zip([0, 1, 100, 1_000, 9_000, 70_000, 400_000].into_iter().cycle()) {
        every_verb(&mut session, round, len);
    }
    session.flush_all(0).unwrap();
    assert!(session.set(b"too large", &vec![0; 2 << 20], 0).is_err());
    drop(session);
    assert_eq!(cache.info().sessions, 0);
    assert!(cache.counters().named().count() > 10);
    cache
        .with_session(|session, out| session.get_append(b"none", out).unwrap())
        .unwrap();
    assert_eq!(INSIDE.get() - before, 0, "allocations inside");
    assert!(!server::gate_is_open());
    cache.leave();
}

#[test]
fn no_verb_allocates_inside_while_it_is_watched() {
    let cache = open(4 << 20, false);
    let mut session = cache.session().unwrap();
    let mut watcher = cache.watcher(watch::Kind::Eviction.bit()).unwrap();
    let (mut told, mut evicted) = (Vec::new(), 0);
    let before = INSIDE.get();
    for (round, len) in (0..2_000usize).zip([0, 1, 100, 1_000, 9_000, 70_000, 400_000].into_iter().cycle()) {
        every_verb(&mut session, round, len);
        let name = format!("of its own {round}");
        session.set(name.as_bytes(), &[0; 3_000], 0).unwrap();
        let inside = INSIDE.get();
        watcher.poll(&mut told);
        // A watcher's own work is no verb.
        INSIDE.set(inside);
        let is_event = |told: &watch::Delivery| matches!(told, watch::Delivery::Event(_));
        evicted += told.drain(..).filter(is_event).count();
    }
    assert!(evicted > 0, "there are events of evictions");
    assert_eq!(INSIDE.get() - before, 0, "allocations inside");
}

#[test]
fn an_allocation_inside_is_noticed() {
    // What the test above relies on: attaching, which is no verb, does allocate inside.
    let before = INSIDE.get();
    let cache = open(2 << 20, false);
    let seen = INSIDE.get() - before;
    assert!(seen > 0, "{seen}");
    drop(cache);
}

#[test]
fn eight_threads_are_inside_each_for_itself() {
    let cache = open(8 << 20, false);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let cache = &cache;
            scope.spawn(move || {
                let mut session = cache.session().unwrap();
                let key = [b'a' + thread];
                for round in 0..2_000usize {
                    session.set(&key, &round.to_le_bytes(), 0).unwrap();
                    let mut out = Vec::new();
                    assert!(session.get_append(&key, &mut out).unwrap().is_some());
                    assert_eq!(out, round.to_le_bytes());
                    assert!(!server::gate_is_open());
                }
            });
        }
    });
}

/// A place for a number.
struct Digits([MaybeUninit<u8>; 16]);

impl Target for Digits {
    fn make_room(&mut self, item: &Item) -> bool {
        assert!(!server::gate_is_open(), "a callback runs inside");
        item.value_len <= self.0.len()
    }

    fn room(&mut self) -> &mut [MaybeUninit<u8>] {
        assert!(!server::gate_is_open(), "a callback runs inside");
        &mut self.0
    }
}

#[test]
fn hot_keys_are_counted_as_without_a_gate() {
    const ROUNDS: u64 = 10_000;
    let options = Options::new().memory(4 << 20);
    for gate in [Gate::Off, Gate::Rehearsed] {
        let cache = Cache::open(&Place::Memfd, &options.clone().gate(gate)).unwrap();
        let mut session = cache.session().unwrap();
        let begun = cache.hot_counts();
        let add = Store {
            mode: StoreMode::Add,
            ..Store::default()
        };
        let details = Get {
            details: true,
            ..*Get::VALUE
        };
        for _ in 0..ROUNDS {
            let (mut out, mut digits) = (Vec::new(), Digits([MaybeUninit::new(0); 16]));
            session.set(b"key", b"1", 0).unwrap();
            session.store(b"key", b"1", &add).unwrap();
            session.incr(b"key", 1).unwrap();
            session.arithmetic(b"key", &Arithmetic::default()).unwrap();
            assert_eq!(session.get(b"key").unwrap(), Some(b"2".to_vec()));
            session.get_append(b"key", &mut out).unwrap();
            session.get_with(b"key", &details, &mut out, |_, _| ()).unwrap();
            assert_eq!(out, b"22");
            assert!(session.get_into(b"key", Get::VALUE, &mut digits).unwrap());
            // SAFETY: all of them were initialised.
            assert_eq!(unsafe { digits.0[0].assume_init() }, b'2');
        }
        let counts = cache.hot_counts();
        for by in [HotBy::Gets, HotBy::Sets] {
            let hot = cache.hot_keys(&counts, Some(&begun), by, 1);
            let estimate = hot[0].estimate;
            // One in sixteen is counted, at random: a standard deviation of two hundredths.
            let expected = 4 * ROUNDS * 85 / 100..4 * ROUNDS * 115 / 100;
            assert!(expected.contains(&estimate), "{gate:?}, {by:?}: {estimate}");
        }
    }
}

#[test]
fn it_can_be_switched_off() {
    let options = Options::new().memory(2 << 20).gate(Gate::Off);
    let cache = Cache::open(&Place::Memfd, &options).unwrap();
    assert_eq!(cache.info().gate, GateState::Off);
    cache.session().unwrap().set(b"key", b"value", 0).unwrap();
}

/// A place for a value that says what it can reach.
struct Known([MaybeUninit<u8>; 16]);

impl Target for Known {
    fn reach(&self) -> Option<[&[MaybeUninit<u8>]; 2]> {
        Some([&self.0, &[]])
    }

    fn make_room(&mut self, item: &Item) -> bool {
        assert!(server::gate_is_open(), "the value is copied once more");
        assert!(item.value_len > 0, "a bug, in the test of a panic");
        item.value_len <= self.0.len()
    }

    fn room(&mut self) -> &mut [MaybeUninit<u8>] {
        &mut self.0
    }
}

#[test]
fn a_value_goes_straight_to_a_place_that_says_what_it_can_reach() {
    let cache = open(2 << 20, false);
    let mut session = cache.session().unwrap();
    session.set(b"key", b"0123456789", 0).unwrap();
    let mut place = Known([MaybeUninit::new(0); 16]);
    let before = INSIDE.get();
    // Every way of a get: the quick one, one that is counted, and the general one.
    let details = Get {
        details: true,
        ..*Get::VALUE
    };
    for how in (0..2_000).map(|round| if round % 3 == 0 { &details } else { Get::VALUE }) {
        place.0 = [MaybeUninit::new(0); 16];
        assert!(session.get_into(b"key", how, &mut place).unwrap());
        assert!(!server::gate_is_open());
        // SAFETY: all of them were initialised.
        assert_eq!(place.0.map(|byte| unsafe { byte.assume_init() }), *b"0123456789\0\0\0\0\0\0");
    }
    assert!(!session.get_into(b"absent", Get::VALUE, &mut place).unwrap());
    session.set(b"long", &[b'v'; 17], 0).unwrap();
    assert!(session.get_into(b"long", Get::VALUE, &mut place).unwrap());
    assert!(!server::gate_is_open());
    assert_eq!(INSIDE.get() - before, 0, "allocations inside");
}

#[test]
fn a_panic_inside_leaves_the_gate_open_until_it_is_closed_or_the_next_verb_ends() {
    let cache = open(2 << 20, false);
    let mut session = cache.session().unwrap();
    session.set(b"empty", b"", 0).unwrap();
    for closes in [true, false] {
        let mut place = Known([MaybeUninit::new(0); 16]);
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            session.get_into(b"empty", Get::VALUE, &mut place)
        }));
        assert!(panicked.is_err() && server::gate_is_open());
        if closes {
            server::close_after_panic();
        } else {
            let _ = session.touch(b"empty", 0);
        }
        assert!(!server::gate_is_open());
    }
    assert_eq!(session.get(b"empty").unwrap(), Some(Vec::new()));
}
