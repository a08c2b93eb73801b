//! A caller's memory that changes during a call, or is the call's argument twice. Its enemy: a key that is another one when it is written than
//! when it was hashed, and a value that is verified where its caller can change it. `KEYWAY_TESTS_FULL`: for minutes.
//!
//! # Safety
//!
//! Slices of bytes to which another thread writes are what unsafe code of a program may pass. The library promises to load each byte of a key
//! once, by loads that the compiler does not see into, and to judge nothing by such memory afterwards.
//! Guards: P28
#![allow(
    unsafe_code,
    reason = "a caller that breaks Rust's rules for its own memory; contract above"
)]

use keyway_cache::{Arithmetic, Cache, Delete, Get, Item, Options, Place, Session, Store, StoreMode, Target, WriteError};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};
use std::time::{Duration, Instant};

const LETTERS: u8 = 26;
const LENGTHS: [usize; 6] = [3, 7, 12, 16, 40, 250];
const VALUE_MAX: usize = 3000;

/// Memory that another thread changes.
struct Shared(Vec<AtomicU8>);

impl Shared {
    fn new(len: usize) -> Self {
        Self((0..len).map(|_| AtomicU8::new(b'k')).collect())
    }

    fn bytes(&self, len: usize) -> &[u8] {
        // SAFETY: so many bytes can be read there; the contract above.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), len) }
    }

    /// A key's middle and last byte become the same letter.
    fn name(&self, len: usize, letter: u8) {
        self.0[len - 1].store(letter, Relaxed);
        self.0[len / 2].store(letter, Relaxed);
    }

    fn fill(&self, letter: u8) {
        self.0.iter().for_each(|byte| byte.store(letter, Relaxed));
    }
}

/// A place of memory for a value, which may be where the key is.
struct Over<'m> {
    memory: &'m Shared,
    len: usize,
}

impl Target for Over<'_> {
    fn make_room(&mut self, item: &Item) -> bool {
        self.len = item.value_len;
        self.len <= self.memory.0.len()
    }

    fn room(&mut self) -> &mut [MaybeUninit<u8>] {
        // SAFETY: so many bytes can be written there; the contract above.
        unsafe { std::slice::from_raw_parts_mut(self.memory.0.as_ptr().cast_mut().cast(), self.len) }
    }
}

/// Ends the threads that change memory, also if a test fails.
struct End<'f>(&'f AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

fn seconds() -> Duration {
    match std::env::var_os("KEYWAY_TESTS_FULL") {
        Some(_) => Duration::from_secs(20),
        None => Duration::from_millis(300),
    }
}

fn cache(checksums: bool) -> Cache {
    Cache::open(&Place::Memfd, &Options::new().memory(32 << 20).checksums(checksums)).expect("a region")
}

/// Any verb with these arguments, which may change.
fn call(session: &mut Session, turn: usize, key: &[u8], value: &[u8]) -> Result<(), WriteError> {
    let store = |mode, compare_cas| Store {
        mode,
        compare_cas,
        ..Store::default()
    };
    let touch = Get {
        exptime: Some(1000),
        details: true,
        ..*Get::VALUE
    };
    let mut out = Vec::new();
    match turn % 13 {
        0 => session.set(key, value, 0).map(drop),
        1 => session.store(key, value, &store(StoreMode::Add, None)).map(drop),
        2 => session.store(key, value, &store(StoreMode::Replace, None)).map(drop),
        3 => session.store(key, &value[..8], &store(StoreMode::Append, None)).map(drop),
        4 => session.store(key, &value[..8], &store(StoreMode::Prepend, None)).map(drop),
        5 => {
            let details = Get {
                details: true,
                ..*Get::VALUE
            };
            let cas = session
                .get_with(key, &details, &mut out, |_, _| {})?
                .map_or(1, |item| item.cas);
            session.store(key, value, &store(StoreMode::Set, Some(cas))).map(drop)
        }
        6 => session.get(key).map(drop).map_err(WriteError::from),
        7 => session.get_with(key, &touch, &mut out, |_, _| {}).map(drop),
        8 => session.incr(key, 1).map(drop),
        9 => {
            let how = Arithmetic {
                vivify: Some((5, 0)),
                ..Arithmetic::default()
            };
            session.arithmetic(key, &how).map(drop)
        }
        10 => session.delete(key, &Delete::default()).map(drop),
        11 => session.touch(key, 1000).map(drop),
        _ => {
            session.get_many(&[key, key]).map(drop)?;
            session
                .set_many(&[(key, value), (key, value)], 0)
                .into_iter()
                .try_for_each(|set| set.map(drop))?;
            session
                .delete_many(&[key])
                .into_iter()
                .try_for_each(|deleted| deleted.map(drop))
        }
    }
}

/// All keys that the memory may have held.
fn present(session: &mut Session) -> u64 {
    let mut count = 0;
    for len in LENGTHS {
        let mut key = vec![b'k'; len];
        for letters in 0..u16::from(LETTERS) * u16::from(LETTERS) {
            let [a, b] =
                [letters / u16::from(LETTERS), letters % u16::from(LETTERS)].map(|letter| b'A' + letter.to_le_bytes()[0]);
            (key[len / 2], key[len - 1]) = (a, b);
            if let Some(value) = session.get(&key).expect("a get") {
                assert!(value.iter().all(u8::is_ascii_alphanumeric), "{}", value.escape_ascii());
                count += 1;
            }
        }
    }
    count
}

#[test]
fn keys_and_values_that_change_during_a_call_leave_a_sound_region() {
    for checksums in [false, true] {
        let cache = cache(checksums);
        let (key, value, is_over) = (Shared::new(256), Shared::new(VALUE_MAX), AtomicBool::new(false));
        for len in LENGTHS {
            key.fill(b'k');
            value.fill(b'A');
            key.name(len, b'A');
            is_over.store(false, Relaxed);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for letter in (b'A'..b'A' + LETTERS).cycle() {
                        key.name(len, letter);
                        value.0[..64].iter().for_each(|byte| byte.store(letter, Relaxed));
                        if is_over.load(Relaxed) {
                            return;
                        }
                    }
                });
                let _end = End(&is_over);
                let mut session = cache.session().expect("a session");
                let end = Instant::now() + seconds();
                for turn in 0.. {
                    let value = value.bytes(8 + turn * 37 % [60, 60, 60, VALUE_MAX - 8][turn % 4]);
                    call(&mut session, turn, key.bytes(len), value).expect("a call whose arguments change");
                    if turn % 64 == 0 && Instant::now() >= end {
                        break;
                    }
                }
            });
        }
        let report = cache.check(|_| ());
        assert_eq!(report.problems, [""; 0], "checksums {checksums}");
        let mut session = cache.session().expect("a session");
        assert_eq!(present(&mut session), cache.counters().curr_items, "checksums {checksums}");
        assert_eq!(cache.counters().corrupt, 0);
    }
}

#[test]
fn a_get_over_its_own_key_returns_its_value_beside_a_writer() {
    for checksums in [false, true] {
        // Small, and with long values, so that segments are used again while a get copies.
        let options = Options::new().memory(4 << 20).checksums(checksums);
        let cache = Cache::open(&Place::Memfd, &options).expect("a region");
        let (memory, is_over) = (Shared::new(1 << 15), AtomicBool::new(false));
        let name = |number: usize| format!("over-{number:07}");
        // The value begins with another key, which is where the key was after a first attempt.
        let value_of = |number: usize| format!("{}/{}/{}", name((number + 1) % 64), name(number), ".".repeat(number * 300));
        std::thread::scope(|scope| {
            let (ready, is_ready) = std::sync::mpsc::channel();
            let (cache, is_over) = (&cache, &is_over);
            scope.spawn(move || {
                let mut session = cache.session().expect("a session");
                for number in (0..64).cycle() {
                    session
                        .set(name(number).as_bytes(), value_of(number).as_bytes(), 0)
                        .expect("a set");
                    if number == 63 {
                        let _ = ready.send(());
                        if is_over.load(Relaxed) {
                            return;
                        }
                    }
                }
            });
            is_ready.recv().expect("all are stored");
            let _end = End(is_over);
            let mut session = cache.session().expect("a session");
            let end = Instant::now() + seconds();
            for turn in 0.. {
                let number = turn * 29 % 64;
                let details = Get {
                    details: turn % 2 == 0,
                    exptime: (turn % 3 == 0).then_some(0),
                    ..*Get::VALUE
                };
                memory
                    .0
                    .iter()
                    .zip(name(number).bytes())
                    .for_each(|(to, from)| to.store(from, Relaxed));
                let mut over = Over { memory: &memory, len: 0 };
                let found = session.get_into(memory.bytes(12), &details, &mut over);
                let len = over.len;
                if found.expect("a get") {
                    assert_eq!(String::from_utf8_lossy(memory.bytes(len)), value_of(number));
                }
                if turn % 64 == 0 && Instant::now() >= end {
                    break;
                }
            }
        });
        assert_eq!(cache.counters().corrupt, 0);
        assert_eq!(cache.check(|_| ()).problems, [""; 0]);
    }
}

#[test]
fn what_a_caller_does_with_its_own_memory_removes_no_item() {
    /// Says that there is room, and has none.
    struct Liar;
    impl Target for Liar {
        fn make_room(&mut self, _: &Item) -> bool {
            true
        }
        fn room(&mut self) -> &mut [MaybeUninit<u8>] {
            &mut []
        }
    }
    let cache = cache(true);
    let mut session = cache.session().expect("a session");
    let memory = Shared::new(300_000);
    // A large value has segments of its own.
    for len in [100, 3_000, 300_000] {
        session.set(b"key", &vec![b'v'; len], 0).expect("a set");
        for exptime in [None, Some(0)] {
            let how = Get { exptime, ..*Get::VALUE };
            let _ = session.get_into(b"key", &how, &mut Liar);
        }
        assert_eq!(
            session.get(b"key").expect("a get").map(|value| value.len()),
            Some(len),
            "it is still there"
        );
        // Another thread writes to the memory while the value is copied there.
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Relaxed) {
                    memory.0[..len].iter().step_by(7).for_each(|byte| byte.store(0, Relaxed));
                }
            });
            let _end = End(&is_over);
            let end = Instant::now() + seconds();
            while Instant::now() < end {
                let mut over = Over { memory: &memory, len: 0 };
                assert_eq!(session.get_into(b"key", Get::VALUE, &mut over), Ok(true), "{len} bytes");
            }
        });
    }
    assert_eq!(cache.counters().corrupt, 0);
}

#[test]
fn a_second_attempt_is_for_the_key_of_the_first() {
    /// Has no room in the first attempt, and writes another key over the one that was asked for.
    struct Twice<'m> {
        key: &'m Shared,
        attempts: usize,
        room: [MaybeUninit<u8>; 14],
    }
    impl Target for Twice<'_> {
        fn make_room(&mut self, _: &Item) -> bool {
            self.attempts += 1;
            self.key
                .0
                .iter()
                .zip(b"other")
                .for_each(|(to, from)| to.store(*from, Relaxed));
            true
        }
        fn room(&mut self) -> &mut [MaybeUninit<u8>] {
            if self.attempts == 1 { &mut [] } else { &mut self.room }
        }
    }
    let cache = cache(false);
    let mut session = cache.session().expect("a session");
    for key in ["first", "other"] {
        session
            .set(key.as_bytes(), format!("value of {key}").as_bytes(), 0)
            .expect("a set");
    }
    let key = Shared::new(5);
    key.0.iter().zip(b"first").for_each(|(to, from)| to.store(*from, Relaxed));
    let mut twice = Twice {
        key: &key,
        attempts: 0,
        room: [MaybeUninit::new(0); 14],
    };
    assert_eq!(session.get_into(key.bytes(5), Get::VALUE, &mut twice), Ok(true));
    // SAFETY: it was initialised before.
    assert_eq!(twice.room.map(|byte| unsafe { byte.assume_init() }), *b"value of first");
    assert_eq!(twice.attempts, 2);
}
