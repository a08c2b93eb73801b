//! `keyway exec`: its enemy is a way past the gate that `docs/security.md` says is stopped, and that is not; or one that it says is
//! open, and that is not any more.

use gate::trial::{self, Trial, table};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A region's file that is removed at the end.
struct Region(PathBuf);

impl Region {
    fn new(name: &str) -> Self {
        let path = PathBuf::from(format!("/dev/shm/keyway-exec-{}-{name}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        Self(path)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn run(name: &str, options: &[&str]) -> Trial {
    let keyway = harness::workspace_binary("keyway-cli", "keyway");
    let program = harness::workspace_binary("gate", "gate");
    let region = Region::new(name);
    let library = harness::workspace_library("keyway-capi", "libkeyway_capi.so");
    trial::run(&keyway, &library, &program, &region.0, options).unwrap()
}

#[test]
fn what_the_table_says_is_stopped_is_and_nothing_else() {
    let trial = run("table", &[]);
    if !trial.has_gate() {
        harness::skip(
            "the rows of the table that need the gate",
            "this machine has no protection keys",
        );
    }
    let rows = table();
    let found = trial.differences(&rows);
    assert!(found.is_empty() && rows.len() > 30, "{found:#?}\n{}", trial.said);
    // A table that claims too much, too little, or lacks a row is refused.
    for (way, claim) in [("new-code", "stopped"), ("munmap", "open")] {
        let mut wrong = rows.clone();
        wrong.insert(way.to_owned(), claim.to_owned());
        assert_eq!(trial.differences(&wrong).len(), 1, "{way}");
        wrong.remove(way);
        assert_eq!(trial.differences(&wrong).len(), 1, "{way}");
    }
}

#[test]
fn a_strict_scan_refuses_a_program_with_such_code() {
    // The program has WRPKRU in it, to try it.
    let Trial { outcomes, said } = run("strict", &["--strict-scan"]);
    assert!(outcomes.is_empty(), "{outcomes:?}");
    assert!(
        said.contains("--strict-scan does not allow it") && said.contains("/gate (") && said.contains("not started"),
        "{said}"
    );
}

#[test]
fn what_cannot_be_hardened_is_not_started() {
    let keyway = harness::workspace_binary("keyway-cli", "keyway");
    let refused = |program: &str, because: &str| {
        let output = Command::new(&keyway)
            .args(["exec", "--", program])
            .output()
            .expect("keyway starts");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(because), "{program}: {said}");
    };
    refused("/etc/passwd", "there is no such program");
    refused("no-such-program-anywhere", "there is no such program");
    if Path::new("/usr/bin/su").exists() {
        refused("/usr/bin/su", "setuid");
    }
}
