//! Fetches: one computes, the others wait or take what is stale. Its enemy: a value that was read before a delete and is found after it, two
//! that compute at once, one that waits for the dead.
//!
//! # Safety
//!
//! The only `unsafe` is `fork`: children do no more than use a cache and leave by `_exit`.
//! Guards: P53
#![allow(unsafe_code, reason = "forks; contract above")]

use keyway_cache::{
    AtOnce, Begun, Cache, Delete, Deleted, Fetch, FetchError, Options, Place, Session, Token, WaitedFor, WriteError,
};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};
use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

/// How long something may take that takes no time: for hangs only.
const HANGS_AFTER: Duration = Duration::from_secs(30);
/// Longer than a second of the region's clock.
const EXPIRES: Duration = Duration::from_millis(2100);

/// A region's file in memory, removed at the end.
struct File(PathBuf);

impl File {
    fn new(name: &str) -> Self {
        let path = PathBuf::from(format!("/dev/shm/keyway-fetch-{}-{name}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        Self(path)
    }

    fn open(&self) -> Cache {
        Cache::open(&Place::Path(self.0.clone()), &Options::new().memory(4 << 20)).unwrap()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Caches of both kinds: with checksums an item's record is verified, too.
fn caches() -> [Cache; 2] {
    [false, true].map(|checksums| {
        let options = Options::new().memory(4 << 20).checksums(checksums);
        Cache::open(&Place::Memfd, &options).unwrap()
    })
}

fn begin(session: &mut Session, key: &[u8], how: &Fetch<'_>) -> (Begun, Vec<u8>) {
    let mut value = Vec::new();
    (session.fetch_begin(key, how, &mut value).unwrap(), value)
}

fn computes(session: &mut Session, key: &[u8], how: &Fetch<'_>) -> Token {
    match begin(session, key, how) {
        (Begun::Compute(token), _) => token,
        (other, _) => panic!("{other:?}"),
    }
}

/// Nobody waits.
const NOW: Fetch<'_> = Fetch {
    flags: 0,
    ttl: 60,
    negative_ttl: 0,
    stale_while_revalidate: 0,
    stale_if_error: 0,
    early: 0.0,
    wait: Duration::ZERO,
    compute_after_wait: false,
    limit: None,
    has_tasks: true,
    has_looked: false,
};

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < HANGS_AFTER, "{what}: not after {HANGS_AFTER:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A child that does this and then waits to be ended.
fn child(work: impl FnOnce()) -> Pid {
    // SAFETY: see the top of the file.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            nix::unistd::alarm::set(60);
            work();
            loop {
                std::thread::sleep(HANGS_AFTER);
            }
        }
        ForkResult::Parent { child } => child,
    }
}

fn end(child: Pid) {
    kill(child, Signal::SIGKILL).unwrap();
    assert!(matches!(waitpid(child, None).unwrap(), WaitStatus::Signaled(..)));
}

#[test]
fn one_computes_and_all_get_the_value() {
    for cache in caches() {
        let computed = AtomicUsize::new(0);
        let how = Fetch {
            ttl: 60,
            ..Fetch::default()
        };
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let value = cache.fetch(b"key", &how, || {
                        computed.fetch_add(1, SeqCst);
                        std::thread::sleep(Duration::from_millis(100));
                        Ok::<_, Infallible>(Some(b"value".to_vec()))
                    });
                    assert_eq!(value.unwrap().unwrap(), b"value");
                });
            }
        });
        assert_eq!(computed.load(SeqCst), 1);
        assert!(cache.check(|_| {}).is_sound());
    }
}

#[test]
fn what_changes_the_key_voids_the_flight() {
    type Change = fn(&mut Session);
    let changes: [(&str, Change, Option<&[u8]>); 5] = [
        (
            "delete",
            |s| assert_eq!(s.delete(b"key", &Delete::default()), Ok(Deleted::NotFound)),
            None,
        ),
        ("set", |s| assert!(s.set(b"key", b"newer", 0).is_ok()), Some(b"newer")),
        (
            "set and delete",
            |s| {
                s.set(b"key", b"newer", 0).unwrap();
                s.delete(b"key", &Delete::default()).unwrap();
            },
            None,
        ),
        ("flush", |s| s.flush_all(0).unwrap(), None),
        ("nothing", |_| {}, Some(b"computed")),
    ];
    for cache in caches() {
        let (mut session, mut other) = (cache.session().unwrap(), cache.session().unwrap());
        for (name, change, left) in changes {
            session.delete(b"key", &Delete::default()).unwrap();
            let token = computes(&mut session, b"key", &NOW);
            assert_eq!(session.get(b"key").unwrap(), None, "{name}: to others it is absent");
            change(&mut other);
            let is_stored = session.fetch_store(b"key", token, b"computed", &NOW).unwrap();
            assert_eq!(is_stored, name == "nothing", "{name}");
            assert_eq!(session.get(b"key").unwrap().as_deref(), left, "{name}");
        }
    }
}

#[test]
fn a_refresh_is_void_when_the_value_is_deleted_or_stored() {
    for cache in caches() {
        let (mut session, mut other) = (cache.session().unwrap(), cache.session().unwrap());
        let how = Fetch {
            ttl: 1,
            stale_while_revalidate: 60,
            stale_if_error: 60,
            ..NOW
        };
        for (round, changes) in [(0, true), (1, false)] {
            session.delete(b"key", &Delete::default()).unwrap();
            let token = computes(&mut session, b"key", &how);
            assert!(session.fetch_store(b"key", token, b"first", &how).unwrap());
            std::thread::sleep(EXPIRES);
            assert_eq!(session.get(b"key").unwrap(), None, "a get sees nothing after its time");
            let (begun, old) = begin(&mut session, b"key", &how);
            let Begun::Compute(token) = begun else { panic!("{begun:?}") };
            assert_eq!(
                (old.as_slice(), token.old().map(|item| item.value_len)),
                (&b"first"[..], Some(5))
            );
            let (begun, old) = begin(&mut other, b"key", &how);
            assert!(
                matches!(begun, Begun::Stale(_)) && old == b"first",
                "{begun:?}: others get the old value meanwhile"
            );
            if changes {
                assert_eq!(other.delete(b"key", &Delete::default()).unwrap(), Deleted::NotFound);
            }
            assert_eq!(
                session.fetch_store(b"key", token, b"second", &how).unwrap(),
                !changes,
                "round {round}"
            );
            assert_eq!(session.get(b"key").unwrap().is_some(), !changes);
        }
    }
}

#[test]
fn the_dead_are_succeeded_by_one_of_those_who_wait() {
    let file = File::new("dead");
    let cache = file.open();
    let holder = child(|| {
        let cache = cache.here().unwrap();
        let mut session = cache.session().unwrap();
        let token = computes(&mut session, b"key", &NOW);
        session.set(b"ready", b"", 0).unwrap();
        std::mem::forget((token, session));
    });
    let mut session = cache.session().unwrap();
    until("it computes", || session.get(b"ready").unwrap().is_some());
    let (begun, _) = begin(&mut session, b"key", &NOW);
    assert!(matches!(begun, Begun::Waited(WaitedFor::Flight)), "{begun:?}");
    let computed = AtomicUsize::new(0);
    let how = Fetch {
        wait: HANGS_AFTER,
        compute_after_wait: false,
        ttl: 60,
        ..Fetch::default()
    };
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let value = cache.fetch(b"key", &how, || {
                    computed.fetch_add(1, SeqCst);
                    Ok::<_, Infallible>(Some(b"value".to_vec()))
                });
                assert_eq!(value.unwrap().unwrap(), b"value");
            });
        }
        std::thread::sleep(Duration::from_millis(50));
        end(holder);
    });
    assert_eq!(computed.load(SeqCst), 1);
}

#[test]
fn whoever_is_stopped_is_not_dead() {
    let file = File::new("stopped");
    let cache = file.open();
    let holder = child(|| {
        let mut session = cache.here().unwrap().session().unwrap();
        let token = computes(&mut session, b"key", &NOW);
        kill(Pid::this(), Signal::SIGSTOP).unwrap();
        // It has been continued: another has stored since.
        let is_stored = session.fetch_store(b"key", token, b"late", &NOW).unwrap();
        // SAFETY: ends the child without running what belongs to its parent.
        unsafe { nix::libc::_exit(i32::from(is_stored)) }
    });
    assert!(matches!(
        waitpid(holder, Some(WaitPidFlag::WUNTRACED)).unwrap(),
        WaitStatus::Stopped(..)
    ));
    let how = Fetch {
        wait: Duration::from_millis(50),
        compute_after_wait: false,
        ttl: 60,
        ..Fetch::default()
    };
    let refused = cache.fetch(b"key", &how, || Ok::<_, Infallible>(None));
    assert!(matches!(refused, Err(FetchError::InFlight { .. })), "{refused:?}");
    let how = Fetch {
        compute_after_wait: true,
        ..how
    };
    let value = cache.fetch(b"key", &how, || Ok::<_, Infallible>(Some(b"value".to_vec())));
    assert_eq!(value.unwrap().unwrap(), b"value");
    let mut session = cache.session().unwrap();
    assert_eq!(
        session.get(b"key").unwrap().unwrap(),
        b"value",
        "whoever has waited stores in the same flight"
    );
    kill(holder, Signal::SIGCONT).unwrap();
    assert_eq!(
        waitpid(holder, None).unwrap(),
        WaitStatus::Exited(holder, 0),
        "its own store comes too late"
    );
    assert_eq!(session.get(b"key").unwrap().unwrap(), b"value");
}

#[test]
fn a_failure_gives_what_is_stale_or_is_the_callers() {
    for cache in caches() {
        let how = Fetch {
            ttl: 1,
            stale_if_error: 60,
            ..Fetch::default()
        };
        let failing = || Err::<Option<Vec<u8>>, _>("no database");
        let failed = cache.fetch(b"key", &how, failing);
        assert!(matches!(failed, Err(FetchError::Compute("no database"))));
        cache
            .fetch(b"key", &how, || Ok::<_, Infallible>(Some(b"old".to_vec())))
            .unwrap();
        std::thread::sleep(EXPIRES);
        for _ in 0..2 {
            assert_eq!(cache.fetch(b"key", &how, failing).unwrap().unwrap(), b"old");
        }
        let value = cache.fetch(b"key", &how, || Ok::<_, Infallible>(Some(b"new".to_vec())));
        assert_eq!(value.unwrap().unwrap(), b"new", "the next caller computes again");
    }
}

#[test]
fn a_panic_lets_the_next_one_compute() {
    let [cache, _] = caches();
    let how = Fetch {
        wait: HANGS_AFTER,
        ..Fetch::default()
    };
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        cache.fetch(b"key", &how, || -> Result<_, Infallible> { panic!("on purpose") })
    }));
    assert!(panicked.is_err());
    let value = cache.fetch(b"key", &how, || Ok::<_, Infallible>(Some(b"value".to_vec())));
    assert_eq!(value.unwrap().unwrap(), b"value");
}

#[test]
fn nothing_is_remembered_if_asked_for() {
    for cache in caches() {
        let how = Fetch {
            negative_ttl: 1,
            ..Fetch::default()
        };
        let computed = AtomicUsize::new(0);
        let nothing = || {
            computed.fetch_add(1, SeqCst);
            Ok::<_, Infallible>(None)
        };
        for _ in 0..3 {
            assert_eq!(cache.fetch(b"key", &how, nothing).unwrap(), None);
        }
        assert_eq!(computed.load(SeqCst), 1);
        std::thread::sleep(EXPIRES);
        assert_eq!(cache.fetch(b"key", &how, nothing).unwrap(), None);
        let mut session = cache.session().unwrap();
        session.set(b"key", b"there", 0).unwrap();
        assert_eq!(cache.fetch(b"key", &how, nothing).unwrap().unwrap(), b"there");
        session.delete(b"key", &Delete::default()).unwrap();
        assert_eq!(cache.fetch(b"key", &Fetch::default(), nothing).unwrap(), None);
        assert_eq!(
            cache.fetch(b"key", &Fetch::default(), nothing).unwrap(),
            None,
            "not remembered"
        );
        assert_eq!(computed.load(SeqCst), 4);
    }
}

#[test]
fn a_dear_value_is_refreshed_early() {
    for cache in caches() {
        // So eager that it is always due.
        let eager = Fetch {
            ttl: 1000,
            early: 1e12,
            ..NOW
        };
        let mut session = cache.session().unwrap();
        let token = computes(&mut session, b"key", &eager);
        std::thread::sleep(Duration::from_millis(2));
        assert!(session.fetch_store(b"key", token, b"first", &eager).unwrap());
        let token = computes(&mut session, b"key", &eager);
        assert_eq!(session.get(b"key").unwrap().unwrap(), b"first", "it is still fresh");
        let (begun, value) = begin(&mut cache.session().unwrap(), b"key", &eager);
        assert!(
            matches!(begun, Begun::Hit(_)) && value == b"first",
            "{begun:?}: nobody waits for an early refresh"
        );
        assert!(session.fetch_store(b"key", token, b"second", &NOW).unwrap());
        let (begun, value) = begin(&mut session, b"key", &eager);
        assert!(
            matches!(begun, Begun::Hit(_)) && value == b"second",
            "{begun:?}: without its cost it is never due"
        );
    }
}

#[test]
fn so_many_compute_at_a_time_and_no_death_takes_a_place_along() {
    let file = File::new("limit");
    let cache = file.open();
    let limit = Some(AtOnce {
        prefix: b"row:",
        at_most: 2,
    });
    let limited = Fetch { limit, ..NOW };
    let holder = child(|| {
        let mut session = cache.here().unwrap().session().unwrap();
        let tokens = [b"row:1", b"row:2"].map(|key| computes(&mut session, key, &limited));
        session.set(b"ready", b"", 0).unwrap();
        std::mem::forget((tokens, session));
    });
    let mut session = cache.session().unwrap();
    until("they compute", || session.get(b"ready").unwrap().is_some());
    let (begun, _) = begin(&mut session, b"row:3", &limited);
    assert!(matches!(begun, Begun::Waited(WaitedFor::Limit)), "{begun:?}");
    let other = Fetch {
        limit: Some(AtOnce {
            prefix: b"user:",
            at_most: 1,
        }),
        ..NOW
    };
    let token = computes(&mut session, b"user:1", &other);
    let (begun, _) = begin(&mut session, b"user:2", &other);
    assert!(matches!(begun, Begun::Waited(WaitedFor::Limit)), "{begun:?}");
    session.fetch_abandon(b"user:1", token).unwrap();
    let token = computes(&mut session, b"user:2", &other);
    session.fetch_store(b"user:2", token, b"value", &other).unwrap();
    end(holder);
    let waits = Fetch {
        wait: HANGS_AFTER,
        compute_after_wait: false,
        ..limited
    };
    let tokens = [&b"row:3"[..], b"row:4"].map(|key| computes(&mut session, key, &waits));
    let (begun, _) = begin(&mut session, b"row:5", &limited);
    assert!(matches!(begun, Begun::Waited(WaitedFor::Limit)), "{begun:?}");
    for (token, key) in tokens.into_iter().zip([b"row:3", b"row:4"]) {
        assert!(session.fetch_store(key, token, b"value", &limited).unwrap());
    }
    drop(computes(&mut session, b"row:5", &limited));
}

#[test]
fn never_more_than_the_limit_compute() {
    let [cache, _] = caches();
    let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let how = Fetch {
        limit: Some(AtOnce { prefix: b"", at_most: 3 }),
        wait: HANGS_AFTER,
        ..Fetch::default()
    };
    std::thread::scope(|scope| {
        for thread in 0..10u8 {
            let (cache, now, most) = (&cache, &now, &most);
            scope.spawn(move || {
                for round in 0..5u8 {
                    let value = cache.fetch(&[b'k', thread, round], &how, || {
                        most.fetch_max(now.fetch_add(1, SeqCst) + 1, SeqCst);
                        std::thread::sleep(Duration::from_millis(2));
                        now.fetch_sub(1, SeqCst);
                        Ok::<_, Infallible>(Some(vec![round]))
                    });
                    assert_eq!(value.unwrap().unwrap(), [round]);
                }
            });
        }
    });
    assert!((1..=3).contains(&most.load(SeqCst)), "{most:?}");
}

#[test]
fn a_fetch_within_a_computation_waits_for_others_only() {
    let [cache, _] = caches();
    let how = Fetch {
        ttl: 60,
        ..Fetch::default()
    };
    let value = cache.fetch(b"outer", &how, || {
        let inner = cache.fetch(b"inner", &how, || Ok::<_, Infallible>(Some(b"inner".to_vec())));
        let own = cache.fetch(b"outer", &how, || Ok::<_, Infallible>(None));
        assert!(matches!(own, Err(FetchError::Write(WriteError::OwnFlight))), "{own:?}");
        Ok::<_, Infallible>(inner.unwrap())
    });
    assert_eq!(value.unwrap().unwrap(), b"inner");
}

#[test]
fn a_fork_within_a_computation_leaves_it_to_the_parent() {
    let file = File::new("fork");
    let cache = file.open();
    let how = Fetch {
        ttl: 60,
        ..Fetch::default()
    };
    let value = cache.fetch(b"key", &how, || {
        let mut in_child = false;
        // SAFETY: see the top of the file.
        match unsafe { fork() }.unwrap() {
            ForkResult::Child => in_child = true,
            ForkResult::Parent { child } => {
                assert!(
                    matches!(waitpid(child, None).unwrap(), WaitStatus::Exited(_, 7)),
                    "the child computes for itself"
                );
                assert_eq!(cache.session().unwrap().get(b"key").unwrap(), None, "and stores nothing");
            }
        }
        Ok::<_, Infallible>(Some(if in_child {
            b"the child's".to_vec()
        } else {
            b"the parent's".to_vec()
        }))
    });
    if value.as_ref().is_ok_and(|value| value.as_deref() == Some(b"the child's")) {
        // SAFETY: ends the child without running what belongs to its parent.
        unsafe { nix::libc::_exit(7) }
    }
    assert_eq!(value.unwrap().unwrap(), b"the parent's");
    assert_eq!(cache.session().unwrap().get(b"key").unwrap().unwrap(), b"the parent's");
}

#[test]
fn many_keys_are_computed_in_one_call() {
    for cache in caches() {
        let how = Fetch {
            ttl: 60,
            negative_ttl: 60,
            wait: HANGS_AFTER,
            ..Fetch::default()
        };
        let keys: Vec<String> = (0..40).map(|n| format!("key:{n}")).collect();
        cache.session().unwrap().set(b"key:3", b"there", 0).unwrap();
        let computed = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let values = cache.fetch_many(&keys, &how, |missing| {
                        computed.fetch_add(missing.len(), SeqCst);
                        std::thread::sleep(Duration::from_millis(20));
                        Ok::<_, Infallible>(missing.iter().map(|key| (*key != b"key:5").then(|| key.to_vec())).collect())
                    });
                    for (key, value) in keys.iter().zip(values.unwrap()) {
                        match key.as_str() {
                            "key:3" => assert_eq!(value.unwrap(), b"there"),
                            "key:5" => assert_eq!(value, None),
                            key => assert_eq!(value.unwrap(), key.as_bytes()),
                        }
                    }
                });
            }
        });
        assert_eq!(computed.load(SeqCst), 39);
    }
}

#[test]
fn a_flight_and_what_is_stale_survive_pressure_no_worse_than_items() {
    // Of many flights in a small region most are kept; none of those that are lost is more than a miss.
    let cache = Cache::open(&Place::Memfd, &Options::new().memory(4 << 20)).unwrap();
    let mut session = cache.session().unwrap();
    let keys: Vec<String> = (0..2_000).map(|n| format!("key:{n}")).collect();
    let tokens: Vec<Token> = keys.iter().map(|key| computes(&mut session, key.as_bytes(), &NOW)).collect();
    for n in 0..400u32 {
        session.set(format!("other:{n}").as_bytes(), &[1; 1000], 0).unwrap();
    }
    let mut stored = 0;
    for (key, token) in keys.iter().zip(tokens) {
        let key = key.as_bytes();
        assert!(session.fetch_store(key, token, key, &NOW).unwrap(), "{key:?}");
        stored += usize::from(session.get(key).unwrap().is_some_and(|value| value == key));
    }
    assert_eq!(stored, keys.len(), "there was room for all");
    assert!(cache.check(|_| {}).is_sound());
}

#[test]
fn a_value_that_is_marked_as_stale_is_computed_again() {
    for cache in caches() {
        let mut session = cache.session().unwrap();
        session.set(b"key", b"old", 0).unwrap();
        let mark = Delete {
            invalidate: true,
            ..Delete::default()
        };
        assert_eq!(session.delete(b"key", &mark), Ok(Deleted::Deleted));
        assert_eq!(session.get(b"key").unwrap().unwrap(), b"old", "to a get it is there");
        let mut value = b"before ".to_vec();
        let how = Fetch {
            stale_if_error: 60,
            ..NOW
        };
        let begun = session.fetch_begin(b"key", &how, &mut value).unwrap();
        let Begun::Compute(token) = begun else { panic!("{begun:?}") };
        assert_eq!((value.as_slice(), token.old().is_some()), (&b"before old"[..], true));
        assert!(session.fetch_store(b"key", token, b"new", &NOW).unwrap());
        let (begun, value) = begin(&mut session, b"key", &NOW);
        assert!(matches!(begun, Begun::Hit(_)) && value == b"new", "{begun:?}");
    }
}

#[test]
fn the_longest_wait_is_one() {
    let [cache, _] = caches();
    let how = Fetch {
        wait: Duration::MAX,
        ..Fetch::default()
    };
    let value = cache.fetch(b"key", &how, || Ok::<_, Infallible>(Some(b"value".to_vec())));
    assert_eq!(value.unwrap().unwrap(), b"value");
}
