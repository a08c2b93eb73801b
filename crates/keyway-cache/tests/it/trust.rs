//! Another user of the machine. Its enemy: a file of theirs, or another name of one of ours, that lies where a program looks for its region;
//! and a process that may only read a region and locks its bytes.
//!
//! # Safety
//!
//! The only `unsafe` is `fork`: children do no more than use a cache or a file and leave by `_exit`.
//! Guards: P34
#![allow(unsafe_code, reason = "forks; contract above")]

use harness::Scratch;
use keyway_cache::server::{Removal, remove_unused};
use keyway_cache::{Cache, OpenError, Options, Owners, Place};
use nix::fcntl::{AT_FDCWD, FcntlArg, RenameFlags, fcntl, renameat2};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, Uid, chown, fork, geteuid, seteuid};
use std::fs::{File, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// A user without rights here.
const STRANGER: u32 = 54_321;
/// How long something may take that takes no time: for hangs only.
const HANGS_AFTER: Duration = Duration::from_secs(30);

/// A folder in memory that every user may look into, removed at the end.
struct Folder(Scratch);

impl Folder {
    fn new() -> Self {
        let scratch = Scratch::new();
        std::fs::set_permissions(scratch.path(), Permissions::from_mode(0o755)).unwrap();
        Self(scratch)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

/// Set however the block that it stands in ends.
struct SetAtEnd<'a>(&'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

fn options() -> Options {
    Options::new().memory(2 << 20).item_size_max(1 << 19)
}

fn open(path: &Path) -> Result<Cache, OpenError> {
    Cache::open(&Place::Path(path.into()), &options())
}

fn open_of(path: &Path, owners: Owners) -> Result<Cache, OpenError> {
    let options = options().owners(owners);
    Cache::open(&Place::Path(path.into()), &options)
}

fn set(cache: &Cache, key: &[u8]) {
    cache
        .with_session(|session, _| session.set(key, b"value", 0))
        .unwrap()
        .unwrap();
}

fn has(cache: &Cache, key: &[u8]) -> bool {
    cache
        .with_session(|session, value| session.get_append(key, value).unwrap().is_some())
        .unwrap()
}

/// Whether this test can be other users. Only root can.
fn is_root(what: &str) -> bool {
    if geteuid().is_root() {
        return true;
    }
    let _ = writeln!(std::io::stderr(), "SKIP {what}: only root can be another user");
    assert!(std::env::var_os("KEYWAY_TESTS_REQUIRE_ALL").is_none(), "{what} was skipped");
    false
}

/// A region of another user, that all may write.
fn strangers_region(folder: &Folder, name: &str) -> PathBuf {
    let path = folder.at(name);
    let cache = open(&path).unwrap();
    set(&cache, b"forged");
    cache.close();
    chown(&path, Some(Uid::from_raw(STRANGER)), None).unwrap();
    std::fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
    path
}

#[test]
fn another_users_region_is_used_only_if_that_is_asked_for() {
    if !is_root("a region of another user") {
        return;
    }
    let folder = Folder::new();
    let path = strangers_region(&folder, "theirs");
    let refused = open(&path).err().unwrap();
    assert!(
        matches!(refused, OpenError::AnotherUsers { owner: STRANGER, .. }),
        "{refused:?}"
    );
    let said = refused.to_string();
    assert!(said.contains("user 54321") && said.contains("--any-owner"), "{said}");
    for (owners, may) in [
        (Owners::Only(vec![]), false),
        (Owners::Only(vec![STRANGER + 1]), false),
        (Owners::Any, true),
    ] {
        assert_eq!(
            open_of(&path, owners.clone()).is_ok_and(|c| has(&c, b"forged")),
            may,
            "{owners:?}"
        );
    }
    std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    assert!(open_of(&path, Owners::Only(vec![STRANGER])).is_ok_and(|c| has(&c, b"forged")));
}

#[test]
fn a_file_that_every_user_may_write_is_used_only_if_that_is_meant() {
    let folder = Folder::new();
    let path = folder.at("region");
    open(&path).unwrap().close();
    std::fs::set_permissions(&path, Permissions::from_mode(0o602)).unwrap();
    let refused = open(&path).err().unwrap();
    assert!(matches!(refused, OpenError::WritableByAll { mode: 0o602, .. }), "{refused:?}");
    let meant = options().mode(0o666);
    Cache::open(&Place::Path(path.clone()), &meant).unwrap().close();
    open_of(&path, Owners::Any).unwrap().close();
    // Group members are the owner's choice.
    std::fs::set_permissions(&path, Permissions::from_mode(0o660)).unwrap();
    open(&path).unwrap().close();
}

#[test]
fn a_new_region_has_the_mode_that_was_asked_for_and_is_the_makers_alone_before() {
    let folder = Folder::new();
    let path = folder.at("region");
    let asked = options().memory(256 << 20).mode(0o664);
    // As another process sees it: how often it was the maker's alone, and whether a reader could have had the maker's lock.
    let (early, stolen) = std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let (mut early, begun) = (0, Instant::now());
            while begun.elapsed() < HANGS_AFTER {
                let Ok(file) = File::open(&path) else { continue };
                let mode = file.metadata().unwrap().permissions().mode() & 0o777;
                let has_lock = mode != 0o600 && lock_for_reading(&file, 0, 1);
                let mut magic = [0; 8];
                if file.read_exact_at(&mut magic, 0).is_ok() && &magic == b"KEYWAYR\n" {
                    return (early, false);
                }
                if has_lock {
                    return (early, true);
                }
                early += u32::from(mode == 0o600);
            }
            panic!("no region after {HANGS_AFTER:?}");
        });
        let cache = Cache::open(&Place::Path(path.clone()), &asked).unwrap();
        cache.close();
        watcher.join().unwrap()
    });
    assert!(early > 0, "the creation was never seen: it took no time");
    assert!(
        !stolen,
        "a process that may only read had the maker's lock before there was a region"
    );
    let mode = std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o664, "whatever the umask");
}

#[test]
fn a_region_with_another_name_is_not_used() {
    let folder = Folder::new();
    let path = folder.at("region");
    open(&path).unwrap().close();
    std::fs::hard_link(&path, folder.at("another-name")).unwrap();
    for name in ["region", "another-name"] {
        let refused = open(&folder.at(name)).err().unwrap();
        assert!(matches!(refused, OpenError::Linked { names: 2, .. }), "{refused:?}");
    }
    std::fs::remove_file(folder.at("another-name")).unwrap();
    open(&path).unwrap().close();
}

/// The name leads to our region when it is looked at and to a stranger's when it is opened, or the other way round: another user
/// exchanges two names as fast as can be.
#[test]
fn a_name_that_is_exchanged_all_the_time_never_leads_to_a_strangers_region() {
    if !is_root("a race for a name") {
        return;
    }
    let folder = Folder::new();
    let (ours, theirs) = (folder.at("region"), strangers_region(&folder, "theirs"));
    let cache = open(&ours).unwrap();
    set(&cache, b"own");
    cache.close();
    let ends = AtomicBool::new(false);
    let (mut opened, mut refused) = (0, 0);
    std::thread::scope(|scope| {
        let _end = SetAtEnd(&ends);
        scope.spawn(|| {
            while !ends.load(Relaxed) {
                renameat2(AT_FDCWD, &ours, AT_FDCWD, &theirs, RenameFlags::RENAME_EXCHANGE).unwrap();
            }
        });
        let begun = Instant::now();
        while (opened < 100 || refused < 100) && begun.elapsed() < HANGS_AFTER {
            match open(&ours) {
                Ok(cache) => {
                    assert!(
                        has(&cache, b"own") && !has(&cache, b"forged"),
                        "a stranger's region was opened"
                    );
                    cache.leave();
                    opened += 1;
                }
                Err(OpenError::AnotherUsers { .. }) => refused += 1,
                // It led elsewhere by the time at which it was locked, again and again.
                Err(OpenError::Busy { .. }) => {}
                Err(other) => panic!("{other}"),
            }
        }
    });
    assert!(opened > 0 && refused > 0, "{opened} opened, {refused} refused");
}

/// Changes what a description that was opened for reading has locked (`F_OFD_SETLK`); 0 bytes: all that follow.
fn lock_as(kind: i32, file: &File, at: i64, len: i64) -> bool {
    let lock = nix::libc::flock {
        l_type: i16::try_from(kind).unwrap(),
        l_whence: i16::try_from(nix::libc::SEEK_SET).unwrap(),
        l_start: at,
        l_len: len,
        l_pid: 0,
    };
    fcntl(file, FcntlArg::F_OFD_SETLK(&lock)).is_ok()
}

fn lock_for_reading(file: &File, at: i64, len: i64) -> bool {
    lock_as(nix::libc::F_RDLCK, file, at, len)
}

/// Read locks on nearly all bytes of a file that no other process has locked: of process slots one by one, of the far bytes that tell
/// whether a mapping holds locks by large pieces. How many pieces could not be locked.
fn lock_all_for_reading(file: &File) -> usize {
    const SLOTS: (i64, i64) = (1 << 20, 64);
    const FAR: (i64, i64) = (1 << 62, 1 << 50);
    let below = (0..SLOTS.0 / SLOTS.1).map(|i| (i * SLOTS.1, SLOTS.1));
    let above = (0..FAR.0 / FAR.1).map(|i| (SLOTS.0.max(i * FAR.1), FAR.1));
    below
        .chain(above)
        .filter(|(at, len)| !lock_for_reading(file, *at, *len))
        .count()
}

/// Gives them back. Children that were forked meanwhile have the description too, so closing it would not do.
fn unlock_all(file: &File) {
    assert!(lock_as(nix::libc::F_UNLCK, file, 0, 0));
}

/// A child that opens the region and follows orders of one byte each, answering each by one.
struct Neighbour {
    pid: Pid,
    line: UnixStream,
}

impl Neighbour {
    fn start(path: &Path) -> Self {
        let (line, theirs) = UnixStream::pair().unwrap();
        // SAFETY: see the top of the file.
        match unsafe { fork() }.unwrap() {
            ForkResult::Child => {
                drop(line);
                let well = std::panic::catch_unwind(|| live(path, theirs)).is_ok();
                // SAFETY: ends the child without running what belongs to its parent.
                unsafe { nix::libc::_exit(i32::from(!well)) }
            }
            ForkResult::Parent { child } => {
                line.set_read_timeout(Some(HANGS_AFTER)).unwrap();
                let mut neighbour = Self { pid: child, line };
                neighbour.answer();
                neighbour
            }
        }
    }

    fn answer(&mut self) {
        let mut byte = [0];
        self.line.read_exact(&mut byte).unwrap();
    }

    /// Stores a key of its own, after whatever upkeep finds to do.
    fn work(&mut self) {
        self.line.write_all(b"w").unwrap();
        self.answer();
    }

    fn kill(self) {
        kill(self.pid, Signal::SIGKILL).unwrap();
        waitpid(self.pid, None).unwrap();
    }
}

fn live(path: &Path, mut line: UnixStream) {
    let cache = open(path).unwrap();
    let mut session = cache.session().unwrap();
    loop {
        line.write_all(b".").unwrap();
        let mut byte = [0];
        if line.read_exact(&mut byte).is_err() {
            return;
        }
        session.upkeep();
        session
            .set(format!("of {}", std::process::id()).as_bytes(), b"value", 0)
            .unwrap();
    }
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < HANGS_AFTER, "{what}: not after {HANGS_AFTER:?}");
        std::thread::yield_now();
    }
}

/// A process that attached while a reader had every byte has no lock. Its region is not removed while it lives.
#[test]
fn a_region_whose_user_has_no_lock_is_not_removed() {
    let folder = Folder::new();
    let path = folder.at("region");
    open(&path).unwrap().close();
    let reader = File::open(&path).unwrap();
    lock_all_for_reading(&reader);
    let neighbour = Neighbour::start(&path);
    unlock_all(&reader);
    let meta = reader.metadata().unwrap();
    let removed = || remove_unused(&path, (meta.dev(), meta.ino()), &Owners::AsNamed).unwrap();
    assert!(removed() == Removal::InUse && path.exists());
    neighbour.kill();
    assert!(removed() == Removal::Removed && !path.exists());
}

/// A reader locks all that it can. Processes attach, work, die and are taken back all the same, and no living process is taken for dead.
#[test]
fn a_reader_that_locks_every_byte_keeps_no_process_out_and_none_alive() {
    let folder = Folder::new();
    let path = folder.at("region");
    let cache = open(&path).unwrap();
    let mut own = cache.session().unwrap();
    let mut before = Neighbour::start(&path);
    let doomed = Neighbour::start(&path);

    let reader = File::open(&path).unwrap();
    assert_eq!(
        lock_all_for_reading(&reader),
        6,
        "what three processes have locked: a slot and a witness each"
    );

    let mut after = Neighbour::start(&path);
    let late = open(&path).unwrap();
    let mut session = late.session().unwrap();
    session.set(b"late", b"value", 0).unwrap();
    before.work();
    after.work();
    assert_eq!(cache.processes(), 5, "this one twice, and three children");
    assert_eq!(late.processes(), 5, "as a process without a lock sees it");
    assert_eq!(cache.info().sessions, 5);

    // One that has a lock, and one that has none, die; one of each kind finds out.
    doomed.kill();
    until("the one with a lock is taken back by one without", || {
        session.upkeep();
        cache.info().sessions == 4
    });
    after.kill();
    until("the one without a lock is taken back by one with", || {
        own.upkeep();
        cache.info().sessions == 3
    });
    let mut another = Neighbour::start(&path);
    another.work();
    before.work();
    assert_eq!((cache.processes(), late.processes()), (4, 4));

    assert_eq!(cache.counters().fences, 0, "one that is alive was suspected");

    // The reader goes, and all is as it was.
    unlock_all(&reader);
    let mut next = Neighbour::start(&path);
    next.work();
    another.work();
    assert_eq!((cache.processes(), late.processes()), (5, 5));
    for neighbour in [before, another, next] {
        neighbour.kill();
    }
    drop((own, session));
    cache.leave();
    late.leave();
    late.close();
    cache.close();
    // A restart, while the reader is at it again.
    assert_eq!(lock_all_for_reading(&reader), 0);
    let cache = open(&path).unwrap();
    assert!(cache.info().warm && has(&cache, b"late"));
    assert!(cache.check(|_| {}).is_sound());
}

/// What a stranger's place is worth: nothing is made for it, and nothing of it is looked at.
#[test]
fn with_a_list_of_owners_only_theirs_and_roots_are_used() {
    if !is_root("regions of listed owners") {
        return;
    }
    let folder = Folder::new();
    std::fs::set_permissions(folder.0.path(), Permissions::from_mode(0o777)).unwrap();
    let path = folder.at("of-root");
    let cache = Cache::open(&Place::Path(path.clone()), &options().mode(0o666));
    cache.unwrap().close();
    // SAFETY: see the top of the file.
    let child = match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            let well = seteuid(Uid::from_raw(STRANGER)).is_ok()
                && matches!(open(&path), Err(OpenError::AnotherUsers { owner: 0, .. }))
                && matches!(open_of(&path, Owners::Only(vec![])), Err(OpenError::WritableByAll { .. }))
                && open_of(&path, Owners::Any).is_ok();
            // SAFETY: ends the child without running what belongs to its parent.
            unsafe { nix::libc::_exit(i32::from(!well)) }
        }
        ForkResult::Parent { child } => child,
    };
    let ended = waitpid(child, None).unwrap();
    assert!(
        matches!(ended, nix::sys::wait::WaitStatus::Exited(_, 0)),
        "as another user: {ended:?}"
    );
}
