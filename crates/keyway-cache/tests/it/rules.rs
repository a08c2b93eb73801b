//! Rules of a region: the largest item, no eviction, no flushes. Their enemy: a door that has a rule of its own, so that one program stores
//! what another one is refused.
//! Guards: P40

use keyway_cache::{Cache, Delete, Options, Place, Session, Store, StoreMode, Stored, WriteError};
use std::path::PathBuf;

/// A place that is removed at the end.
struct At(PathBuf);

impl At {
    fn new(name: &str) -> Self {
        Self(PathBuf::from(format!(
            "/dev/shm/keyway-test-{}-rules-{name}",
            std::process::id()
        )))
    }

    fn open(&self, options: &Options) -> Cache {
        Cache::open(&Place::Path(self.0.clone()), options).expect("a region")
    }
}

impl Drop for At {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn options() -> Options {
    Options::new().memory(8 << 20)
}

fn value(session: &mut Session, key: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    session.get_append(key, &mut out).expect("a good key").map(|_| out)
}

#[test]
fn a_program_that_opens_a_region_has_its_rules() {
    let at = At::new("program");
    let made = at.open(&options().item_size_max(2 << 20).evict(false).flush(false));
    // Whatever it asks for itself.
    for asked in [options(), options().item_size_max(4096).evict(true).flush(true)] {
        let other = at.open(&asked);
        assert_eq!(other.limits(), made.limits());
        let mut session = other.session().expect("a session");
        assert!(session.set(b"k", &vec![b'v'; 1_500_000], 0).is_ok());
        let error = session.set(b"k", &vec![b'v'; 3_000_000], 0).expect_err("too large");
        assert_eq!(
            error,
            WriteError::TooLarge {
                size: 3_000_060,
                limit: 2 << 20
            }
        );
        let text = error.to_string();
        for part in ["3000060 bytes", "2097152", "-I"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert_eq!(session.flush_all(0), Err(WriteError::FlushRefused));
    }
    assert!(made.info().item_size_max == 2 << 20 && !made.info().evict && !made.info().flush);
}

#[test]
fn a_region_that_refuses_eviction_refuses_every_program() {
    let at = At::new("full");
    let _made = at.open(&options().evict(false));
    let other = at.open(&options().evict(true));
    let mut session = other.session().expect("a session");
    session.set(b"first", b"1", 0).expect("room");
    let full = (0..40).find_map(|i| session.set(format!("k{i}").as_bytes(), &vec![b'v'; 500_000], 0).err());
    assert_eq!(full, Some(WriteError::OutOfMemory));
    assert_eq!(value(&mut session, b"first"), Some(b"1".to_vec()));
    assert_eq!(other.counters().evictions, 0);
}

#[test]
fn a_server_that_starts_with_a_rule_sets_it_for_all_at_once() {
    let at = At::new("server");
    let program = at.open(&options());
    let mut session = program.session().expect("a session");
    let large = vec![b'v'; 1_500_000];
    assert!(session.set(b"k", &large, 0).is_err());
    let server = |options: Options| at.open(&options.server(true));
    let first = server(options().item_size_max(2 << 20).evict(false));
    assert!(session.set(b"k", &large, 0).is_ok());
    assert!(!program.limits().evict && program.limits().flush);
    // One that says nothing leaves the rules, while there are others and when it is alone.
    let second = server(options());
    assert_eq!(second.limits(), first.limits());
    drop((first, second, session, program));
    let third = server(options());
    assert_eq!((third.limits().item_size_max, third.limits().evict), (2 << 20, false));
    let fourth = server(options().evict(true).item_size_max(4096));
    assert_eq!((third.limits().item_size_max, third.limits().evict), (4096, true));
    assert!(fourth.limits().flush);
}

#[test]
fn a_server_does_not_set_a_rule_that_the_region_cannot_have() {
    let at = At::new("half");
    let program = at.open(&options());
    let asked = options().memory(64 << 20).item_size_max(16 << 20).server(true);
    assert!(Cache::open(&Place::Path(at.0.clone()), &asked.clone().memory(8 << 20)).is_err());
    assert_eq!(program.limits().item_size_max, 1 << 20);
    let server = Cache::open(&Place::Path(at.0.clone()), &asked).expect("it grows");
    assert_eq!(server.limits().item_size_max, 16 << 20);
}

/// memcached's command line allows items of half the memory. A region says what it has room for, and has it.
#[test]
fn an_item_of_the_largest_size_that_a_region_names_fits_into_it() {
    const PROPERTIES: usize = 59;
    for memory in [2 << 20, 3 << 20, 8 << 20, 20_000_000] {
        let asked = memory / 2;
        let options = Options::new().memory(memory as u64).item_size_max(asked);
        let cache = Cache::open(&Place::Memfd, &options).expect("a region");
        let limit = cache.limits().item_size_max;
        assert!(limit <= asked && limit > memory / 4, "{memory}: {limit}");
        assert_eq!(cache.info().item_size_max, limit);
        let mut session = cache.session().expect("a session");
        let largest = limit - PROPERTIES - 1;
        // The second one needs the room of the first.
        for key in [b"a", b"b"] {
            let stored = session.set(key, &vec![b'v'; largest], 0);
            assert!(stored.is_ok(), "{memory}: {stored:?}");
            assert_eq!(value(&mut session, key).map(|value| value.len()), Some(largest));
        }
        let error = session.set(b"a", &vec![b'v'; largest + 1], 0).expect_err("too large");
        let size = limit + 1;
        assert_eq!(error, WriteError::TooLarge { size, limit });
    }
}

/// What each verb leaves of the old value, if the new one is too large: as memcached 1.6.18.
#[test]
fn a_set_for_which_there_is_no_room_removes_the_old_value() {
    let at = At::new("removed");
    let cache = at.open(&options());
    let mut session = cache.session().expect("a session");
    let large = vec![b'v'; 2_000_000];
    let old = |session: &mut Session| match session.store(b"k", b"old", &Store::default()) {
        Ok(Stored::Stored { cas, .. }) => cas,
        other => panic!("{other:?}"),
    };
    let mode = |mode| Store {
        mode,
        ..Store::default()
    };
    let cas = old(&mut session);
    let set = |session: &mut Session, how: &Store| session.store(b"k", &large, how).expect_err("too large");
    for how in [
        mode(StoreMode::Add),
        mode(StoreMode::Replace),
        mode(StoreMode::Append),
        mode(StoreMode::Prepend),
        Store {
            compare_cas: Some(cas),
            ..Store::default()
        },
        Store {
            compare_cas: Some(1),
            ..Store::default()
        },
    ] {
        assert!(matches!(set(&mut session, &how), WriteError::TooLarge { .. }), "{how:?}");
        assert_eq!(value(&mut session, b"k"), Some(b"old".to_vec()), "{how:?}");
    }
    let deletes = cache.counters().delete_hits;
    for how in [
        mode(StoreMode::Set),
        Store {
            new_cas: Some(77),
            ..Store::default()
        },
        Store {
            opaque_key: true,
            ..Store::default()
        },
    ] {
        old(&mut session);
        set(&mut session, &how);
        assert_eq!(value(&mut session, b"k"), None, "{how:?}");
    }
    old(&mut session);
    assert!(session.set(b"k", &large, 0).is_err());
    assert_eq!(value(&mut session, b"k"), None);
    assert_eq!(
        session.delete(b"k", &Delete::default()).ok(),
        Some(keyway_cache::Deleted::NotFound)
    );
    assert_eq!(cache.counters().delete_hits, deletes, "no delete of a client");
}

#[test]
fn a_set_into_a_full_region_removes_the_old_value() {
    let at = At::new("no-memory");
    let cache = at.open(&options().evict(false));
    let mut session = cache.session().expect("a session");
    for key in ["set", "replace"] {
        session.set(key.as_bytes(), b"old", 0).expect("room");
    }
    let large = vec![b'v'; 500_000];
    let is_full = (0..40).any(|i| session.set(format!("filler-{i}").as_bytes(), &large, 0).is_err());
    assert!(is_full);
    let how = |mode| Store {
        mode,
        ..Store::default()
    };
    assert_eq!(
        session.store(b"replace", &large, &how(StoreMode::Replace)),
        Err(WriteError::OutOfMemory)
    );
    assert_eq!(value(&mut session, b"replace"), Some(b"old".to_vec()));
    assert_eq!(session.set(b"set", &large, 0), Err(WriteError::OutOfMemory));
    assert_eq!(value(&mut session, b"set"), None);
}
