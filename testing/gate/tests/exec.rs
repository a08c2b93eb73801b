//! `keyway exec`: its enemy is a way past the gate that `docs/security.md` says is stopped, and that is not; or one that it says is
//! open, and that is not any more.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What the program needs the gate for, to be stopped.
const BY_GATE: [&str; 5] = ["stray-read", "stray-write", "other-thread", "pointers", "signal-handler"];
/// What is tried only where there are protection keys.
const ONLY_WITH_KEYS: [&str; 2] = ["own-wrpkru", "forged-sigreturn"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The library as this test was built, beside the program `keyway`.
fn library(keyway: &Path) -> PathBuf {
    let folder = keyway.parent().expect("a folder");
    let profile = folder.file_name().and_then(|name| name.to_str()).unwrap_or("debug");
    let profile = if profile == "debug" { "dev" } else { profile };
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args([
            "build",
            "--quiet",
            "--package",
            "keyway-capi",
            "--lib",
            "--profile",
            profile,
            "--target-dir",
        ])
        .arg(folder.parent().expect("a folder"))
        .current_dir(root())
        .status()
        .expect("cargo");
    assert!(status.success());
    folder.join("libkeyway_capi.so")
}

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

/// What came of each way, and what was said to whoever started the program.
fn run(name: &str, options: &[&str]) -> (BTreeMap<String, bool>, String) {
    let keyway = harness::workspace_binary("keyway-cli", "keyway");
    let program = harness::workspace_binary("gate", "gate");
    let region = Region::new(name);
    let mut child = Command::new(&keyway)
        .args(["exec", "-v", "--library"])
        .arg(library(&keyway))
        .arg("--region")
        .arg(&region.0)
        .args(options)
        .arg("--")
        .arg(program)
        .arg(&region.0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("keyway starts");
    let mut input = child.stdin.take().expect("piped");
    let errors = BufReader::new(child.stderr.take().expect("piped"));
    let teller = std::thread::spawn(move || {
        let mut said = String::new();
        for line in errors.lines().map_while(Result::ok) {
            if let Some((_, at)) = line.split_once("mapped at ") {
                let _ = writeln!(input, "{at}");
            }
            said.push_str(&line);
            said.push('\n');
        }
        said
    });
    let output = BufReader::new(child.stdout.take().expect("piped"));
    let mut outcomes = BTreeMap::new();
    let mut is_whole = false;
    for line in output.lines().map_while(Result::ok) {
        is_whole |= line == "end";
        if let Some((way, outcome)) = line.split_once(' ') {
            outcomes.insert(way.to_owned(), outcome == "stopped");
        }
    }
    let said = teller.join().expect("the reader ends");
    let status = child.wait().expect("it ends");
    assert!(
        status.success() && is_whole || outcomes.is_empty(),
        "{status}: {outcomes:?}\n{said}"
    );
    (outcomes, said)
}

/// The table of `docs/security.md`: ways, and whether they are stopped.
fn table() -> BTreeMap<String, String> {
    let text = std::fs::read_to_string(root().join("docs/security.md")).expect("docs/security.md");
    let (_, table) = text.split_once("| way | test | ").expect("the table of ways");
    let mut rows = BTreeMap::new();
    for row in table.lines().skip(2).take_while(|row| row.starts_with('|')) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        for way in cells[2]
            .split(", ")
            .filter_map(|way| way.strip_prefix('`')?.strip_suffix('`'))
        {
            rows.insert(way.to_owned(), cells[3].to_owned());
        }
    }
    rows
}

/// Where a row and an outcome differ.
fn differences(table: &BTreeMap<String, String>, outcomes: &BTreeMap<String, bool>, has_gate: bool) -> Vec<String> {
    let applies = |way: &str| has_gate || !(BY_GATE.contains(&way) || ONLY_WITH_KEYS.contains(&way));
    let mut differences = Vec::new();
    for (way, said) in table.iter().filter(|(way, _)| applies(way)) {
        let is_right = match outcomes.get(way) {
            Some(stopped) => *stopped == said.starts_with("stopped"),
            None => false,
        };
        if !is_right {
            differences.push(format!("{way}: the table says {said:?}, tried: {:?}", outcomes.get(way)));
        }
    }
    differences.extend(
        outcomes
            .keys()
            .filter(|way| !table.contains_key(*way))
            .map(|way| format!("{way}: not in the table")),
    );
    differences
}

#[test]
fn what_the_table_says_is_stopped_is_and_nothing_else() {
    let (outcomes, said) = run("table", &[]);
    let has_gate = !said.contains("there is no gate");
    if !has_gate {
        harness::skip(
            "the rows of the table that need the gate",
            "this machine has no protection keys",
        );
    }
    let rows = table();
    let found = differences(&rows, &outcomes, has_gate);
    assert!(found.is_empty(), "{found:#?}\n{said}");
    // A table that claims too much, too little, or lacks a row is refused.
    for (way, claim) in [("new-code", "stopped"), ("munmap", "open")] {
        let mut wrong = rows.clone();
        wrong.insert(way.to_owned(), claim.to_owned());
        assert_eq!(differences(&wrong, &outcomes, has_gate).len(), 1, "{way}");
        wrong.remove(way);
        assert_eq!(differences(&wrong, &outcomes, has_gate).len(), 1, "{way}");
    }
}

#[test]
fn a_strict_scan_refuses_a_program_with_such_code() {
    // The program has WRPKRU in it, to try it.
    let (outcomes, said) = run("strict", &["--strict-scan"]);
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
