//! `keyway exec`: its enemy is a way past the gate that `docs/security.md` says is stopped, and that is not; or one that it says is
//! open, and that is not any more.
//! Guards: P33

use gate::trial::{self, Trial, table};
use harness::{DEADLINE, Kind, Scratch, ServeOptions, Server, keyway_binary, run_to_end};
use keyway_cache::{Cache, Options, Place};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A region's file that is removed at the end.
struct Region(PathBuf);

impl Region {
    fn new(name: &str) -> Self {
        let path = PathBuf::from(format!("/dev/shm/keyway-exec-{}-{name}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        // `keyway exec` makes none.
        Cache::open(&Place::at(&path), &Options::new().memory(8 << 20)).expect("a region");
        Self(path)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn run(name: &str, options: &[&str]) -> Trial {
    let region = Region::new(name);
    run_on(&region.0, &region.0, options)
}

fn run_on(place: &Path, file: &Path, options: &[&str]) -> Trial {
    let program = harness::workspace_binary("gate", "gate");
    let folder = Scratch::new();
    trial::run(keyway_binary(), &libkeyway(&folder), &program, (place, file), options).unwrap()
}

fn libkeyway(folder: &Scratch) -> PathBuf {
    let library = harness::workspace_library("keyway-capi", "libkeyway_capi.so");
    harness::link_to_preload(&library, folder)
}

#[test]
fn what_the_table_says_is_stopped_is_and_nothing_else() {
    let trial = run("table", &[]);
    if !trial.has_gate() {
        harness::say("no protection keys here: the rows of the table that need the gate are tried in a guest (cargo xtask vm)");
    }
    let rows = table();
    let found = trial.differences(&rows);
    assert!(found.is_empty() && rows.len() > 30, "{found:#?}\n{}", trial.said);
    assert_children_get_the_error(&trial, "use threads instead of forked children");
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
fn a_region_from_a_server_is_closed_in_the_same_ways() {
    let folder = Scratch::new();
    let socket = folder.join("region.sock");
    let server = Server::start(
        Kind::Keyway,
        &ServeOptions {
            keyway_arguments: vec!["--region-socket".to_owned(), socket.display().to_string()],
            ..ServeOptions::default()
        },
    );
    let trial = run_on(&socket, server.region(), &[]);
    let found = trial.differences(&table());
    assert!(found.is_empty(), "{found:#?}\n{}", trial.said);
    assert_children_get_the_error(&trial, "use threads instead of forked children");
    // What the program's verbs stored is the server's.
    let mut wire = server.connect(harness::Transport::Tcp);
    assert_eq!(wire.ask("mg parent v").expect("an answer"), "VA 5");
}

#[test]
fn a_program_that_is_allowed_more_gives_up_those_rows_and_no_other() {
    let trial = run("jit", &["--allow-jit", "--allow-chmod"]);
    let mut rows = table();
    for way in ["writable-code", "chmod", "chown", "xattr"] {
        rows.insert(way.to_owned(), "open".to_owned());
    }
    let found = trial.differences(&rows);
    assert!(found.is_empty(), "{found:#?}\n{}", trial.said);
}

/// A forked child has been told why it has no cache, and what to do.
fn assert_children_get_the_error(trial: &Trial, what: &str) {
    let told: Vec<_> = trial
        .said
        .lines()
        .filter(|line| line.starts_with("a forked child's "))
        .collect();
    assert!(told.len() == 2 && told.iter().all(|line| line.contains(what)), "{told:#?}");
}

/// `keyway exec` of a program that has, or loads, a copy of the library of its own.
fn exec(region: &Path, library: &Path, program: &Path) -> String {
    let mut command = Command::new(keyway_binary());
    command.args(["exec", "--region"]).arg(region).arg("--library").arg(library);
    command.arg("--").arg(program).arg(region).stdin(Stdio::null());
    run_to_end(&mut command, DEADLINE).1
}

#[test]
fn a_rust_program_hardens_itself_or_gets_the_reason_why_it_has_no_cache() {
    let region = Region::new("own-copy");
    let program = harness::workspace_binary("gate", "own-copy");
    let said = exec(&region.0, &program, &program);
    let state = if said.contains("there is no gate") { "none" } else { "on" };
    assert!(said.contains(&format!("works: Ok(true), gate {state}")), "{said}");
    assert!(said.contains("left in the environment: false"), "{said}");
    // Attached by libkeyway, and the program's own copy is kept out.
    let folder = Scratch::new();
    let said = exec(&region.0, &libkeyway(&folder), &program);
    assert!(
        said.contains("not opened: ") && said.contains("keyway exec --library"),
        "{said}"
    );
    // Without keyway exec it is a program as any other.
    let (_, said) = run_to_end(Command::new(&program).arg(&region.0).stdin(Stdio::null()), DEADLINE);
    assert!(said.contains("works: Ok(true)"), "{said}");
    // What has no cache in it is no library for this.
    let said = exec(&region.0, Path::new("/bin/sh"), &program);
    assert!(said.contains("contains no cache"), "{said}");
}

#[test]
fn a_strict_scan_refuses_a_program_with_such_code() {
    // The program has WRPKRU in it, to try it.
    let Trial { outcomes, said } = run("durable", &["--strict-scan"]);
    assert!(outcomes.is_empty(), "{outcomes:?}");
    assert!(
        said.contains("--strict-scan does not allow it") && said.contains("/gate (") && said.contains("not started"),
        "{said}"
    );
}

#[test]
fn what_is_hardened_cannot_be_hardened_again() {
    let region = Region::new("twice");
    let folder = Scratch::new();
    let (keyway, library) = (keyway_binary(), libkeyway(&folder));
    let mut command = Command::new(keyway);
    for _ in 0..2 {
        command
            .args(["exec", "--region"])
            .arg(&region.0)
            .arg("--library")
            .arg(&library);
        command.arg("--").arg(keyway);
    }
    let (status, said) = run_to_end(command.arg("version"), DEADLINE);
    assert!(
        !status.success() && said.contains("another keyway exec") && said.contains("not started"),
        "{status}\n{said}"
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
