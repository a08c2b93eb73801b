//! Processes whose clocks are wrong, beside one whose are right. Its enemy: one process that makes TTLs, Unix times and delayed flushes wrong for all.
//!
//! A library that is preloaded (`fake_clocks.c`) shifts every clock of the C library, as libfaketime does; a time namespace
//! (`time_namespaces(7)`) shifts the kernel's. No test sets the machine's clock. Another boot is played by changing the boot's identity, and the clock's
//! offset, in the region.
//! Guards: P16
#![allow(clippy::print_stdout, reason = "a test: its output is for people")]

use keyway_cache::server::ServerSession as _;
use keyway_cache::{Cache, Get, Options, Place, Session, Store};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long something may take that comes soon: for hangs only.
const HANGS_AFTER: Duration = Duration::from_secs(30);
const YEAR_S: i64 = 31_557_600;
/// What tells a child of its part, of the region, and by how much its own clock must be off.
const PART: &str = "KEYWAY_TEST_ROLE";
const PATH: &str = "KEYWAY_TEST_PLACE";
const OFF: &str = "KEYWAY_TEST_ARGUMENT";

/// Offsets of words in the superblock (`docs/region.md`).
const CLOCK: u64 = 536;
const BOOT_ID: u64 = 968;
const SEEN: u64 = 984;

/// A region's file in memory, removed at the end.
struct File(PathBuf);

impl File {
    fn new(name: &str) -> Self {
        let path = PathBuf::from(format!("/dev/shm/keyway-clock-{}-{name}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        Self(path)
    }

    fn change_word(&self, at: u64, change: impl Fn(u64) -> u64) {
        let file = std::fs::File::options().read(true).write(true).open(&self.0).unwrap();
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, at).unwrap();
        file.write_all_at(&change(u64::from_le_bytes(bytes)).to_le_bytes(), at)
            .unwrap();
    }

    /// The machine boots again, after it was off for so many seconds.
    fn reboot(&self, off_s: u64) {
        self.change_word(BOOT_ID, |id| id ^ 1);
        // The boot, and what the offset was in it: the boot clock has begun anew.
        self.change_word(CLOCK, |word| word ^ 0xF_ABCD_EF01_2345);
        self.change_word(SEEN, |seen| seen - off_s);
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn open(path: &Path) -> Cache {
    let options = Options::new().memory(2 << 20).item_size_max(1 << 19);
    Cache::open(&Place::Path(path.to_path_buf()), &options).unwrap()
}

fn unix_s() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(now.as_secs()).unwrap()
}

fn set(session: &mut Session, key: &str, exptime: i64) {
    session.set(key.as_bytes(), b"value", exptime).unwrap();
}

/// Seconds left of an item that is there; `None` of it never expires.
fn ttl(session: &mut Session, key: &str) -> Option<Option<u32>> {
    let found = session.get_with(key.as_bytes(), &Get::default(), &mut Vec::new(), |_, _| {});
    found.unwrap().map(|item| item.ttl_s)
}

fn is_gone(session: &mut Session, key: &str) -> bool {
    ttl(session, key).is_none()
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < HANGS_AFTER, "{what}: not after {HANGS_AFTER:?}");
        std::thread::yield_now();
    }
}

/// What both store, each by its own clock: an hour's TTL, the same as a Unix time, and two that are over soon.
fn store_all(session: &mut Session, whose: &str) {
    set(session, &format!("{whose}-ttl"), 3600);
    set(session, &format!("{whose}-unix"), unix_s() + 3600);
    set(session, &format!("{whose}-short"), 1);
    set(session, &format!("{whose}-short-unix"), unix_s() + 1);
    let how = Store {
        exptime: unix_s() - 1,
        ..Store::default()
    };
    session.store(format!("{whose}-over").as_bytes(), b"value", &how).unwrap();
}

/// What both see of what either has stored, whatever their own clocks say.
fn look_at_all(session: &mut Session, whose: &str) {
    for key in ["ttl", "unix"] {
        let left = ttl(session, &format!("{whose}-{key}")).unwrap_or_else(|| panic!("{whose}-{key} is gone"));
        let left = left.expect("it expires");
        assert!((3600 - 60..=3601).contains(&left), "{whose}-{key}: {left} s left");
    }
    assert!(is_gone(session, &format!("{whose}-over")), "{whose}-over");
    for key in ["short", "short-unix"] {
        until(&format!("the end of {whose}-{key}"), || {
            is_gone(session, &format!("{whose}-{key}"))
        });
    }
}

/// A child, its orders and its answers: a word a line.
struct Other(Child, BufReader<std::process::ChildStdout>);

impl Other {
    fn start(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Self(child, out)
    }

    /// `None`: it ended without this word.
    fn says(&mut self, word: &str) -> Option<()> {
        let mut line = String::new();
        loop {
            line.clear();
            if self.1.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            if line.trim_end().ends_with(word) {
                return Some(());
            }
        }
    }

    fn release(&mut self) {
        self.0.stdin.as_mut().unwrap().write_all(b"go on\n").unwrap();
    }

    fn ends(mut self) -> bool {
        self.0.wait().unwrap().success()
    }
}

/// This program in a child, by way of these programs.
fn part(by_way_of: &[&str], part: &str, file: &File, off_s: i64) -> Command {
    let mut command = harness::own_test(by_way_of, module_path!(), "part_of_a_child");
    command.env(PART, part).env(PATH, &file.0).env(OFF, off_s.to_string());
    command
}

#[test]
fn part_of_a_child() {
    let Ok(part) = std::env::var(PART) else { return };
    let path = PathBuf::from(std::env::var(PATH).unwrap());
    let wait = || {
        let mut line = String::new();
        assert_ne!(std::io::stdin().read_line(&mut line).unwrap(), 0, "the parent has failed");
    };
    match part.as_str() {
        "work" => {
            let cache = open(&path);
            let mut session = cache.session().unwrap();
            // `keyway get`, and what a server does all the time.
            is_gone(&mut session, "any");
            session.upkeep();
            store_all(&mut session, "other");
            println!("\nstored");
            wait();
            look_at_all(&mut session, "own");
            look_at_all(&mut session, "other");
            println!("\nseen");
            wait();
            let all = ["own-ttl", "own-unix", "other-ttl", "other-unix"];
            until("a delayed flush", || all.iter().all(|key| is_gone(&mut session, key)));
        }
        "be refused" => {
            let why = Cache::open(&Place::Path(path), &Options::default()).err().unwrap();
            assert!(
                why.to_string().contains("time namespace") && why.to_string().contains("mount /proc"),
                "{why}"
            );
        }
        other => panic!("no part is called '{other}'"),
    }
}

/// By how much the C library's wall clock is off in such a process: the control of these tests.
fn wall_clock_off_s(mut command: Command) -> i64 {
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.trim().parse::<i64>().unwrap() - unix_s()
}

/// An ordinary process beside another one; the region is there before it, or the other one makes it.
fn beside(file: &File, mut start: impl FnMut() -> Command, is_made_by_other: bool) {
    let early = (!is_made_by_other).then(|| open(&file.0));
    let mut other = Other::start(start());
    other.says("stored").expect("it works");
    let cache = early.unwrap_or_else(|| open(&file.0));
    let mut session = cache.session().unwrap();
    store_all(&mut session, "own");
    other.release();
    look_at_all(&mut session, "other");
    look_at_all(&mut session, "own");
    other.says("seen").expect("it sees the same");
    session.flush_all(1).unwrap();
    set(&mut session, "later", 0);
    other.release();
    until("a delayed flush", || {
        ["own-ttl", "other-unix", "later"]
            .iter()
            .all(|key| is_gone(&mut session, key))
    });
    assert!(other.ends());
    // Behind all of it the clock goes on.
    set(&mut session, "last", 1);
    until("the end of the last item", || is_gone(&mut session, "last"));
}

#[test]
fn a_process_whose_c_library_lies_about_the_time_changes_nothing_for_others() {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fake_clocks.c");
    let folder = harness::Scratch::new();
    let library = folder.join("fake_clocks.so");
    let built = Command::new("gcc")
        .args(["-shared", "-fPIC", "-O1", source, "-ldl", "-o"])
        .arg(&library)
        .status();
    if !built.as_ref().is_ok_and(std::process::ExitStatus::success) {
        let _ = writeln!(
            std::io::stderr(),
            "SKIP a preloaded library that lies about the time: gcc: {built:?}"
        );
        return;
    }
    for (off_s, name) in [(YEAR_S, "year"), (-3600, "hour")] {
        for is_made_by_other in [false, true] {
            let file = File::new(&format!("preload-{name}-{is_made_by_other}"));
            let lie = |mut command: Command| {
                command.env("LD_PRELOAD", &library).env("FAKE_CLOCKS_S", off_s.to_string());
                command
            };
            let mut date = Command::new("date");
            date.arg("+%s");
            assert!((wall_clock_off_s(lie(date)) - off_s).abs() < 60, "the control");
            beside(&file, || lie(part(&[], "work", &file, off_s)), is_made_by_other);
        }
    }
}

/// Programs that start another one in a time namespace in which the machine booted so many seconds earlier. `Err`: why there is none.
fn in_namespace(boot_s: &str) -> Result<[&str; 7], String> {
    let words = ["unshare", "--time", "--boottime", boot_s, "--monotonic", boot_s, "--"];
    let tried = Command::new(words[0]).args(&words[1..]).arg("true").output();
    match tried {
        Ok(output) if output.status.success() => Ok(words),
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => Err(format!("unshare: {error}")),
    }
}

#[test]
fn a_process_in_another_time_namespace_changes_nothing_for_others() {
    for boot_s in ["31557600", "-300"] {
        let words = match in_namespace(boot_s) {
            Ok(words) => words,
            Err(why) => {
                let _ = writeln!(std::io::stderr(), "SKIP a time namespace ({boot_s} s): {why}");
                continue;
            }
        };
        for is_made_by_other in [false, true] {
            let file = File::new(&format!("namespace-{boot_s}-{is_made_by_other}"));
            beside(&file, || part(&words, "work", &file, 0), is_made_by_other);
        }
    }
}

#[test]
fn without_proc_a_process_of_the_initial_time_namespace_works_and_another_one_is_refused() {
    let hidden = "mount -t tmpfs none /proc && exec \"$0\" \"$@\"";
    let without_proc = ["unshare", "--mount", "sh", "-c", hidden];
    let tried = Command::new("unshare").args(["--mount", "sh", "-c", hidden, "true"]).output();
    if !tried.as_ref().is_ok_and(|output| output.status.success()) {
        let _ = writeln!(std::io::stderr(), "SKIP a process without /proc: {tried:?}");
        return;
    }
    let file = File::new("no-proc");
    beside(&file, || part(&without_proc, "work", &file, 0), false);
    let Ok(words) = in_namespace("31557600") else {
        let _ = writeln!(
            std::io::stderr(),
            "SKIP a process without /proc in a time namespace: none can be made"
        );
        return;
    };
    let both: Vec<&str> = words.into_iter().chain(without_proc).collect();
    let refused = part(&both, "be refused", &file, 0).output().unwrap();
    assert!(refused.status.success(), "{refused:?}");
    let cache = open(&file.0);
    let mut session = cache.session().unwrap();
    set(&mut session, "key", 1000);
    assert!(matches!(ttl(&mut session, "key"), Some(Some(990..=1000))));
}

#[test]
fn what_is_left_of_a_lifetime_goes_on_over_a_boot_by_unix_time() {
    for (off_s, short, long) in [
        (0, Some(1000), Some(5000)),
        (600, Some(400), Some(4400)),
        (1500, None, Some(3500)),
        (9000, None, None),
    ] {
        let file = File::new(&format!("boot-{off_s}"));
        let cache = open(&file.0);
        let mut session = cache.session().unwrap();
        set(&mut session, "short", 1000);
        set(&mut session, "long", 5000);
        set(&mut session, "never", 0);
        set(&mut session, "over", 1);
        until("the end of an item", || is_gone(&mut session, "over"));
        drop(session);
        assert!(cache.close());
        file.reboot(off_s);
        let cache = open(&file.0);
        let mut session = cache.session().unwrap();
        for (key, due) in [("short", short), ("long", long)] {
            let left = ttl(&mut session, key).flatten();
            // As long as this test takes.
            let is_so = match (left, due) {
                (Some(left), Some(due)) => (due - 60..=due).contains(&left),
                (left, due) => left == due,
            };
            assert!(is_so, "{key}, {off_s} s: {left:?}, not {due:?}");
        }
        assert!(is_gone(&mut session, "over"), "what was over stays over");
        assert_eq!(ttl(&mut session, "never"), Some(None));
        set(&mut session, "next", 1);
        until("the end of an item in the next boot", || is_gone(&mut session, "next"));
    }
}

#[test]
fn a_session_sees_the_region_clock_that_another_sees() {
    let file = File::new("same");
    let (one, two) = (open(&file.0), open(&file.0));
    let (mut one, mut two) = (one.session().unwrap(), two.session().unwrap());
    let mut before = one.clock();
    for _ in 0..10_000 {
        let (a, b) = (two.clock(), one.clock());
        assert!(before <= a && a <= b, "it goes back");
        before = b;
    }
    until("the same second", || one.clock_s() == two.clock_s());
    assert!(one.now_unix_s() >= unix_s() - 1);
}
