//! Processes and threads that end, fork, stop or live in other namespaces. Its enemy: a slot or memory that a death keeps for
//! ever, a living one that is taken for dead, a forked child that touches what is not mapped there.
//!
//! # Safety
//!
//! The only `unsafe` is `fork` and a thread's raw exit: children do no more than use a cache and leave by `_exit`.
//! Guards: P1, P2, P26
#![allow(unsafe_code, reason = "forks and raw exits of threads; contract above")]

use keyway_cache::{Cache, OpenError, Options, Place, ReadError, Session, SessionError, Store, WriteError};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long something may take that takes no time: for hangs only.
const HANGS_AFTER: Duration = Duration::from_secs(30);

/// A region's file in memory, removed at the end.
struct File(PathBuf);

impl File {
    fn new(name: &str) -> Self {
        let path = PathBuf::from(format!("/dev/shm/keyway-death-{}-{name}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        Self(path)
    }

    fn open(&self) -> Cache {
        open(&Place::Path(self.0.clone()))
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn open(place: &Place) -> Cache {
    let options = Options::new().memory(2 << 20).item_size_max(1 << 19);
    Cache::open(place, &options).unwrap()
}

fn value_of(session: &mut Session, key: &[u8]) -> Option<Vec<u8>> {
    session.get(key).unwrap()
}

/// Runs `child` in a forked child; whether it said that all was well. A crash is not well.
fn forked(child: impl FnOnce() -> bool) -> bool {
    // SAFETY: see the top of the file.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            let well = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(false);
            // SAFETY: ends the child without running what belongs to its parent.
            unsafe { nix::libc::_exit(i32::from(!well)) }
        }
        ForkResult::Parent { child } => match waitpid(child, None).unwrap() {
            WaitStatus::Exited(_, status) => status == 0,
            other => panic!("the child ended with {other:?}"),
        },
    }
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < HANGS_AFTER, "{what}: not after {HANGS_AFTER:?}");
        std::thread::yield_now();
    }
}

#[test]
fn a_forked_child_gets_an_error_and_can_open_the_region_again() {
    let file = File::new("fork");
    for place in [Place::Memfd, Place::Path(file.0.clone())] {
        let cache = open(&place);
        let mut session = cache.session().unwrap();
        session.set(b"key", b"the parent's", 0).unwrap();
        let sessions = cache.info().sessions;
        // The child takes its copy away; the parent keeps its own.
        let mut held = Some((cache, session));
        let well = forked(|| {
            let (cache, mut session) = held.take().unwrap();
            let inherited = session.set(b"key", b"never", 0) == Err(WriteError::Detached)
                && session.get(b"key") == Err(ReadError::Detached)
                && session.touch(b"key", 1) == Err(WriteError::Detached)
                && session.walk(0, 10, |_, _| {}).is_none()
                && session.now_unix_s() > 0
                && matches!(cache.session(), Err(SessionError::Forked))
                && cache.info().segments == 0
                && cache.counters().cmd_set == 0
                && !cache.check(|_| {}).is_sound()
                && cache.grow(4 << 20).is_err();
            session.upkeep();
            session.release();
            if place == Place::Memfd {
                drop(session);
                return inherited && matches!(cache.here(), Err(OpenError::Forked));
            }
            let own = cache.here().unwrap().clone();
            let mut mine = own.session().unwrap();
            let seen = value_of(&mut mine, b"key");
            mine.set(b"child", b"was here", 0).unwrap();
            // The parent's are dropped in the child while the child's own are in use.
            drop(session);
            cache.close();
            let still = value_of(&mut mine, b"child");
            inherited && seen.as_deref() == Some(b"the parent's") && still.as_deref() == Some(b"was here")
        });
        let (cache, mut session) = held.unwrap();
        assert!(well, "{place}");
        let child = (place != Place::Memfd).then_some(b"was here".to_vec());
        assert_eq!(value_of(&mut session, b"child"), child);
        assert_eq!(value_of(&mut session, b"key").as_deref(), Some(b"the parent's".as_slice()));
        session.upkeep();
        assert_eq!(cache.info().sessions, sessions, "the child's session is still there");
        assert!(cache.check(|_| {}).is_sound());
    }
}

#[test]
fn a_forked_child_is_kept_out_of_a_sealed_region() {
    let file = File::new("sealed");
    let place = Place::Path(file.0.clone());
    let options = Options::new().sealed(true).memory(4 << 20);
    let cache = Cache::open(&place, &options).unwrap();
    cache
        .with_session(|session, _| session.set(b"key", b"value", 0))
        .unwrap()
        .unwrap();
    assert!(forked(|| {
        let told = cache
            .with_session(|session, _| session.set(b"key", b"never", 0))
            .unwrap_err()
            .to_string();
        matches!(cache.here(), Err(OpenError::KeptOut { .. })) && told.contains("threads instead of forked children")
    }));
    let value = cache.with_session(|session, _| value_of(session, b"key")).unwrap();
    assert_eq!(value.as_deref(), Some(b"value".as_slice()));
}

#[test]
fn a_grandchild_is_no_parent() {
    let file = File::new("grandchild");
    let cache = file.open();
    let mut session = cache.session().unwrap();
    session.set(b"key", b"1", 0).unwrap();
    assert!(forked(|| {
        let own = cache.here().unwrap();
        let mut mine = own.session().unwrap();
        mine.set(b"key", b"2", 0).unwrap();
        let grandchild = forked(|| {
            let of_parent = mine.set(b"key", b"3", 0) == Err(WriteError::Detached);
            let of_grandparent = session.set(b"key", b"3", 0) == Err(WriteError::Detached);
            let again = own.here().unwrap();
            of_parent && of_grandparent && value_of(&mut again.session().unwrap(), b"key").as_deref() == Some(b"2")
        });
        grandchild && mine.set(b"key", b"4", 0).is_ok()
    }));
    assert_eq!(value_of(&mut session, b"key").as_deref(), Some(b"4".as_slice()));
}

#[test]
fn a_thread_that_ends_without_a_word_gives_its_slot_back() {
    let cache = open(&Place::Memfd);
    let mut session = cache.session().unwrap();
    let slots = cache.info().sessions_max;
    // More than there are slots, so that some come back because the next one needs them.
    for round in 0..slots * 2 {
        let cache = cache.clone();
        let thread = std::thread::spawn(move || {
            let mut mine = cache.session().unwrap();
            mine.set(format!("key-{round}").as_bytes(), &[1; 5000], 0).unwrap();
            std::mem::forget(mine);
        });
        thread.join().unwrap();
    }
    until("slots of threads that ended", || {
        session.upkeep();
        cache.info().sessions == 1
    });
    assert_eq!(value_of(&mut session, b"key-0"), Some(vec![1; 5000]));
    assert!(cache.check(|_| {}).is_sound());
}

#[test]
fn a_thread_that_leaves_by_a_raw_exit_gives_its_slot_back() {
    let cache = open(&Place::Memfd);
    let mut session = cache.session().unwrap();
    let theirs = cache.clone();
    std::thread::spawn(move || {
        let mut mine = theirs.session().unwrap();
        mine.set(b"key", b"last words", 0).unwrap();
        // SAFETY: ends this thread alone, with nothing of it unwound; what it holds is leaked.
        unsafe { nix::libc::syscall(nix::libc::SYS_exit, 0) };
    });
    until("the slot of a thread that exited", || {
        session.upkeep();
        cache.info().sessions == 1 && cache.counters().cmd_set == 1
    });
    assert_eq!(value_of(&mut session, b"key").as_deref(), Some(b"last words".as_slice()));
}

#[test]
fn a_session_may_outlive_the_thread_that_made_it() {
    let cache = open(&Place::Memfd);
    let mut session = cache.session().unwrap();
    let make = |cache: Cache| {
        std::thread::spawn(move || {
            let mut made = cache.session().unwrap();
            made.set(b"key", b"made", 0).unwrap();
            made
        })
        .join()
        .unwrap()
    };
    let (mut used, mut idle, dropped) = (make(cache.clone()), make(cache.clone()), make(cache.clone()));
    // In use by a thread that lives: not taken, whichever process made it.
    used.set(b"used", b"1", 0).unwrap();
    until("slots of sessions that no thread uses", || {
        session.upkeep();
        cache.info().sessions == 2
    });
    let recoveries = cache.counters().recoveries;
    used.set(b"used", b"2", 0).unwrap();
    assert_eq!(cache.info().sessions, 2, "a session in use was taken");
    // Given back: it gets another slot, and its user sees no difference.
    idle.set(b"idle", b"3", 0).unwrap();
    assert_eq!(value_of(&mut idle, b"idle").as_deref(), Some(b"3".as_slice()));
    drop(dropped);
    drop((used, idle));
    assert_eq!(cache.info().sessions, 1);
    assert_eq!(cache.counters().recoveries, recoveries);
    assert!(cache.check(|_| {}).is_sound());
}

/// The environment variables by which a test asks its child for a part.
const PART: &str = "KEYWAY_TEST_ROLE";
const PATH: &str = "KEYWAY_TEST_PLACE";

/// The child's side of the tests below: writes until it is killed, or once.
#[test]
fn part_of_a_child() {
    let (Ok(part), Ok(path)) = (std::env::var(PART), std::env::var(PATH)) else {
        return;
    };
    let cache = open(&Place::Path(path.into()));
    let mut session = cache.session().unwrap();
    match part.as_str() {
        "write for ever" => {
            for round in 0u64.. {
                let key = format!("child-{}", round % 100);
                let value = vec![b'c'; 100 + (round % 40_000) as usize];
                session.store(key.as_bytes(), &value, &Store::default()).unwrap();
            }
        }
        "recover" => {
            let before = cache.counters().recoveries;
            until("the death of one in another namespace", || {
                session.upkeep();
                cache.counters().recoveries > before || value_of(&mut session, b"dead").is_none()
            });
            session
                .set(b"recovered", cache.counters().recoveries.to_string().as_bytes(), 0)
                .unwrap();
        }
        other => panic!("no part is called '{other}'"),
    }
}

fn child(program: &[&str], part: &str, file: &File) -> Child {
    let mut command = harness::own_test(program, module_path!(), "part_of_a_child");
    command
        .env(PART, part)
        .env(PATH, &file.0)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.spawn().unwrap()
}

fn signal(child: &Child, signal: Signal) {
    kill(Pid::from_raw(child.id().try_into().unwrap()), signal).unwrap();
}

#[test]
fn a_stopped_process_is_left_alone_and_a_killed_one_is_not() {
    let file = File::new("stopped");
    let cache = file.open();
    let mut session = cache.session().unwrap();
    let mut child = child(&[], "write for ever", &file);
    until("a child at work", || value_of(&mut session, b"child-50").is_some());
    let pid = Pid::from_raw(child.id().try_into().unwrap());
    for _ in 0..20 {
        signal(&child, Signal::SIGSTOP);
        assert!(matches!(
            waitpid(pid, Some(WaitPidFlag::WUNTRACED)).unwrap(),
            WaitStatus::Stopped(..)
        ));
        // Twice round the memory, deletions and upkeep, whatever it is in the middle of.
        for i in 0..400 {
            session
                .set(format!("child-{}", i % 100).as_bytes(), &[b'p'; 10_000], 0)
                .unwrap();
            assert_eq!(
                value_of(&mut session, format!("child-{}", i % 100).as_bytes()),
                Some(vec![b'p'; 10_000])
            );
        }
        session.upkeep();
        assert_eq!(cache.counters().recoveries, 0, "a stopped process was recovered");
        assert_eq!(cache.info().sessions, 2);
        signal(&child, Signal::SIGCONT);
    }
    child.kill().unwrap();
    child.wait().unwrap();
    session.upkeep();
    assert_eq!(cache.counters().recoveries, 1);
    assert_eq!(cache.info().sessions, 1);
    let report = cache.check(|_| {});
    assert!(report.is_sound(), "{:?}", report.problems);
}

/// A program line under which the child has process numbers and mounts of its own, or why there is none.
fn namespaces() -> Result<Vec<&'static str>, String> {
    let line = vec!["unshare", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc"];
    let tried = Command::new(line[0]).args(&line[1..]).arg("true").output();
    match tried {
        Ok(output) if output.status.success() => Ok(line),
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(e) => Err(format!("unshare: {e}")),
    }
}

#[test]
fn deaths_are_seen_across_process_and_mount_namespaces() {
    let program = match namespaces() {
        Ok(program) => program,
        Err(why) => {
            let _ = writeln!(std::io::stderr(), "SKIP deaths across namespaces: {why}");
            assert!(
                std::env::var_os("KEYWAY_TESTS_REQUIRE_ALL").is_none(),
                "a skip is a failure here"
            );
            return;
        }
    };
    let file = File::new("namespaces");
    let cache = file.open();
    let mut session = cache.session().unwrap();
    // Inside lives, whatever its number is here; and is recovered when it is dead.
    let mut inside = child(&program, "write for ever", &file);
    until("a child at work inside", || value_of(&mut session, b"child-50").is_some());
    for _ in 0..10 {
        session.upkeep();
    }
    assert_eq!(
        (cache.counters().recoveries, cache.info().sessions),
        (0, 2),
        "a living one inside was taken"
    );
    inside.kill().unwrap();
    inside.wait().unwrap();
    until("the death of one inside", || {
        session.upkeep();
        cache.counters().recoveries == 1
    });
    assert_eq!(cache.info().sessions, 1);
    // And the other way round: inside sees a death out here.
    session.set(b"dead", b"not yet", 0).unwrap();
    let mut outside = child(&[], "write for ever", &file);
    until("a child at work outside", || cache.info().sessions == 2);
    let mut inside = child(&program, "recover", &file);
    until("one inside that waits", || cache.info().sessions == 3);
    outside.kill().unwrap();
    outside.wait().unwrap();
    assert!(inside.wait().unwrap().success());
    assert_eq!(value_of(&mut session, b"recovered").as_deref(), Some(b"2".as_slice()));
    assert!(cache.check(|_| {}).is_sound());
}
