//! Limits of a process that makes or grows a region. Its enemy: a signal, or the out-of-memory killer, where there should be an error
//! with the numbers; memory that is allocated in vain; a limit that has no meaning here and forbids something.
//! Guards: P25

use harness::Scratch;
use keyway_cache::{Cache, GrowError, Limit, OpenError, Options, Place};
use nix::sys::resource::{Resource, setrlimit};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

const MIB: u64 = 1 << 20;

fn options(memory: u64) -> Options {
    Options::new().memory(memory).item_size_max(1 << 16)
}

/// The environment variables by which a test asks its child for a part.
const PART: &str = "KEYWAY_TEST_ROLE";
const FOLDER: &str = "KEYWAY_TEST_PLACE";
const GROUP: &str = "KEYWAY_TEST_ARGUMENT";

/// What a region of this size is refused for; nothing is left of it.
fn refused(folder: &Path, memory: u64) -> Limit {
    let path = folder.join("refused");
    match Cache::open(&Place::Path(path.clone()), &options(memory)) {
        Err(error @ OpenError::OverLimit { .. }) => {
            assert!(!path.exists());
            let text = error.to_string();
            let OpenError::OverLimit { why, .. } = error else {
                panic!("{text}")
            };
            assert!(
                text.contains(&why.to_string()) && text.contains("; ") && text.contains("MiB"),
                "{text}"
            );
            why
        }
        other => panic!("{:?}", other.map(drop)),
    }
}

/// A region of this size, which is then refused more, and goes on as it was.
fn grown(folder: &Path, memory: u64, more: u64) -> Limit {
    let cache = Cache::open(&Place::Path(folder.join("made")), &options(memory)).unwrap();
    let before = cache.info();
    let Err(GrowError::OverLimit { why, .. }) = cache.grow(more) else {
        panic!("{more} bytes were given")
    };
    assert_eq!(cache.info().limit_bytes, before.limit_bytes);
    cache.session().unwrap().set(b"key", b"value", 0).unwrap();
    assert!(cache.check(|_| {}).is_sound());
    why
}

/// The child's side of the tests below.
#[test]
fn part_of_a_child() {
    let (Ok(part), Ok(folder)) = (std::env::var(PART), std::env::var(FOLDER)) else {
        return;
    };
    let folder = Path::new(&folder);
    match part.as_str() {
        "file size" => {
            setrlimit(Resource::RLIMIT_FSIZE, 8 * MIB, 8 * MIB).unwrap();
            let why = refused(folder, 64 * MIB);
            assert!(matches!(why, Limit::FileSize { limit, .. } if limit == 8 * MIB), "{why}");
            let why = grown(folder, 2 * MIB, 32 * MIB);
            assert!(matches!(why, Limit::FileSize { .. }), "{why}");
        }
        "address space" => {
            setrlimit(Resource::RLIMIT_AS, 900 * MIB, 900 * MIB).unwrap();
            let why = refused(folder, 64 * MIB);
            let Limit::AddressSpace { wanted, limit, used } = why else {
                panic!("{why}")
            };
            assert!(
                wanted > 1 << 30 && limit == 900 * MIB && used > 0 && used < limit,
                "{wanted} {limit} {used}"
            );
        }
        "control group" => {
            let procs = Path::new(&std::env::var_os(GROUP).unwrap()).join("cgroup.procs");
            std::fs::write(procs, std::process::id().to_string()).unwrap();
            let why = refused(folder, 64 * MIB);
            assert!(matches!(why, Limit::ControlGroup { limit, .. } if limit == 48 * MIB), "{why}");
            let why = grown(folder, 16 * MIB, 64 * MIB);
            assert!(matches!(why, Limit::ControlGroup { .. }), "{why}");
            // Anonymous memory counts as well.
            let memfd = Cache::open(&Place::Memfd, &options(64 * MIB)).map(drop);
            assert!(matches!(memfd, Err(OpenError::OverLimit { .. })), "{memfd:?}");
        }
        other => panic!("no part is called '{other}'"),
    }
}

fn child(part: &str, folder: &Scratch, group: &Path) -> Child {
    harness::own_test(&[], module_path!(), "part_of_a_child")
        .env(PART, part)
        .env(FOLDER, folder.path())
        .env(GROUP, group)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn is_well(part: &str, group: &Path) {
    let folder = Scratch::new();
    let output = child(part, &folder, group).wait_with_output().unwrap();
    // A signal is no success either.
    assert!(output.status.success(), "{}: {output:?}", output.status);
}

#[test]
fn a_file_that_would_be_too_long_is_an_error_and_no_signal() {
    is_well("file size", Path::new(""));
}

#[test]
fn a_mapping_without_address_space_is_refused_with_the_numbers() {
    is_well("address space", Path::new(""));
}

#[test]
fn a_region_above_the_control_groups_limit_is_refused_with_the_numbers() {
    match Group::new(48 * MIB) {
        Ok(group) => is_well("control group", &group.0),
        Err(why) => {
            let _ = writeln!(std::io::stderr(), "SKIP a control group's limit: {why}");
            assert!(
                std::env::var_os("KEYWAY_TESTS_REQUIRE_ALL").is_none(),
                "a skip is a failure here"
            );
        }
    }
}

/// A control group with a memory limit, removed at the end.
struct Group(PathBuf);

impl Group {
    /// Of version 1 or 2, whichever this machine has, or why there is none.
    fn new(limit: u64) -> Result<Self, String> {
        let mut whys = String::new();
        for (mount, file) in [
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            ("/sys/fs/cgroup", "memory.max"),
        ] {
            let group = Self(Path::new(mount).join(format!("keyway-test-{}", std::process::id())));
            let made = std::fs::create_dir(&group.0).and_then(|()| std::fs::write(group.0.join(file), limit.to_string()));
            match made {
                Ok(()) => return Ok(group),
                Err(why) => whys.push_str(&format!("{mount}: {why}; ")),
            }
        }
        Err(whys)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}
