//! `keyway copy` that is ended by a signal. Its enemy: a file as large as a region that stays beside the copy's place for ever.
//! Guards: P24

use harness::Scratch;
use keyway_cache::{Cache, Options, Place};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Longest that anything here may take, on a machine that has much else to do.
const PATIENCE: Duration = Duration::from_secs(60);
/// signal(7)
const SIGHUP: i32 = 1;
const SIGINT: i32 = 2;
const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;

/// A folder of this test's own with a region, `from`, whose copy takes a while.
struct Folder(Scratch);

impl Folder {
    fn new() -> Self {
        let scratch = Scratch::new();
        let options = Options::new().memory(32 << 20);
        let cache = Cache::open(&Place::Path(scratch.join("from")), &options).unwrap();
        let mut session = cache.session().unwrap();
        for key in 0..150_000 {
            session.set(format!("key-{key}").as_bytes(), b"value", 0).unwrap();
        }
        drop(session);
        assert!(cache.close());
        Self(scratch)
    }

    /// `first` is what the shell that starts the program does before.
    fn copy(&self, first: &str) -> Child {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("{first} exec \"$@\""), "sh"]);
        if first.is_empty() {
            // Whatever those who started this test ignore (nohup(1)).
            command.args(["env", "--default-signal=HUP,INT,TERM"]);
        }
        command.arg(env!("CARGO_BIN_EXE_keyway"));
        command.arg("copy").args([self.0.join("from"), self.0.join("to")]);
        command.stdout(Stdio::null()).spawn().unwrap()
    }

    /// A copy that is sent a signal in the middle of its work, and how it ended.
    fn interrupted(&self, signal: i32, first: &str) -> Option<i32> {
        let mut copy = self.copy(first);
        let begun = Instant::now();
        while !self.0.names().iter().any(|name| name.ends_with(".copy")) {
            assert!(copy.try_wait().unwrap().is_none(), "the copy was made before it was seen");
            assert!(begun.elapsed() < PATIENCE, "no copy is seen");
            std::thread::yield_now();
        }
        let status = Command::new("kill")
            .args([format!("-{signal}"), copy.id().to_string()])
            .status();
        assert!(status.unwrap().success());
        copy.wait().unwrap().signal()
    }
}

#[test]
fn every_signal_leaves_nothing_of_a_copy() {
    let folder = Folder::new();
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        assert_eq!(folder.interrupted(signal, ""), Some(signal));
        assert_eq!(folder.0.names(), ["from"], "signal {signal}");
    }
    // This one cannot be caught; the next copy to the same place removes what it left.
    assert_eq!(folder.interrupted(SIGKILL, ""), Some(SIGKILL));
    assert_eq!(folder.0.names().len(), 2);
    assert!(folder.copy("").wait().unwrap().success());
    assert_eq!(folder.0.names(), ["from", "to"]);
}

#[test]
fn a_signal_that_is_ignored_stays_so() {
    let folder = Folder::new();
    assert_eq!(folder.interrupted(SIGHUP, "trap '' HUP;"), None);
    assert_eq!(folder.0.names(), ["from", "to"]);
}
