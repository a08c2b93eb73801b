//! Unrelated programs, one in Python and one in C, that share a cache (`programs/neighbour.py`): without a server, where upkeep
//! must happen by itself, and in namespaces of their own, with a region that a server hands out. Enemy: a region that only one
//! of them made, sees or may write to; memory or slots that stay with the expired, the dead and the killed.
//! Guards: P26

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use harness::{DEADLINE, Kind, Scratch, ServeOptions, Server, Transport, keyway_check, run_to_end, skip, wait_until};
use keyway_cache::{Cache, Counters, Options, Place};
use library::{C, Python, Running, Shared, program};

/// As the programs make it.
const MEMORY: u64 = 8 << 20;

/// A program in one of the two languages.
type Start = fn(&(Python, C)) -> Command;

fn in_python((python, _): &(Python, C)) -> Command {
    let mut command = python.command();
    command.arg(program("neighbour.py"));
    command
}

fn in_c((_, c): &(Python, C)) -> Command {
    c.run("neighbour")
}

/// Each language beside the other.
const PAIRS: [(Start, Start); 2] = [(in_python, in_c), (in_c, in_python)];

/// `None`: said aloud why not.
fn tools(test: &str) -> Option<Arc<(Python, C)>> {
    static TOOLS: Shared<(Python, C)> = Shared::new();
    let tools = TOOLS.get(|| {
        let python = Python::new(Path::new(env!("CARGO_TARGET_TMPDIR")))?;
        let c = C::new()?;
        c.compile("neighbour.c");
        Ok((python, c))
    });
    tools.map_err(|because| skip(test, &because)).ok()
}

/// Runs a program; what it said.
fn run(mut command: Command, place: &Path, arguments: &[&str]) -> String {
    let (status, output) = run_to_end(command.arg(place).args(arguments), DEADLINE);
    assert!(status.success(), "{arguments:?}: {status}\n{output}");
    output.trim_end().to_owned()
}

fn start(mut command: Command, place: &Path, arguments: &[&str]) -> Running {
    command.arg(place).args(arguments).stdin(Stdio::null()).stdout(Stdio::piped());
    Running::start(&mut command)
}

fn counters(path: &Path) -> Counters {
    let options = Options::new();
    Cache::open(&Place::Path(path.to_path_buf()), &options)
        .expect("a region")
        .counters()
}

fn is_sound(path: &Path) {
    let (status, told) = keyway_check(path);
    assert!(status.success(), "{told}");
}

#[test]
fn the_first_program_makes_the_region_and_both_have_it() {
    let Some(tools) = tools("two programs without a server") else {
        return;
    };
    for round in 0..10 {
        let scratch = Scratch::new();
        let path = scratch.join("region");
        let (first, second) = PAIRS[round % 2];
        let mut children = [
            start(first(&tools), &path, &["swap", "left", "right"]),
            start(second(&tools), &path, &["swap", "right", "left"]),
        ];
        for (child, due) in children.iter_mut().zip(["swapped right", "swapped left"]) {
            assert_eq!(child.line(), due);
            assert!(child.end().success());
        }
        let names = std::fs::read_dir(scratch.path())
            .expect("a directory")
            .flatten()
            .map(|entry| entry.file_name());
        assert_eq!(names.collect::<Vec<_>>(), ["region"], "nothing else is left of making it");
        is_sound(&path);
    }
}

#[test]
fn what_expires_makes_room_and_what_lives_is_not_evicted() {
    let Some(tools) = tools("expiry without a server") else {
        return;
    };
    for (one, other) in PAIRS {
        let scratch = Scratch::new();
        let path = scratch.join("region");
        // Two thirds of the memory for a second; then as much again, for ever.
        assert_eq!(
            run(one(&tools), &path, &["fill", "short", "2700", "2000", "1"]),
            "filled 2700"
        );
        assert_eq!(run(other(&tools), &path, &["vanish", "short2699"]), "vanished");
        assert_eq!(
            run(other(&tools), &path, &["fill", "long", "2700", "2000", "0"]),
            "filled 2700"
        );
        assert_eq!(run(one(&tools), &path, &["count", "long", "2700"]), "counted 2700");
        let found = counters(&path);
        assert!(found.evictions == 0 && found.segments_recycled > 0, "{found:?}");
        is_sound(&path);
    }
}

#[test]
fn no_set_is_refused_although_everything_is_full() {
    let Some(tools) = tools("eviction without a server") else {
        return;
    };
    let scratch = Scratch::new();
    let path = scratch.join("region");
    let languages: [(Start, &str); 2] = [(in_python, "python"), (in_c, "c")];
    let mut children =
        languages.map(|(language, prefix)| start(language(&tools), &path, &["fill", prefix, "20000", "2000", "0"]));
    for child in &mut children {
        assert_eq!(child.line(), "filled 20000");
        assert!(child.end().success());
    }
    let evictions = counters(&path).evictions;
    assert!(evictions > 30_000, "80 MB went through 8 MiB, {evictions} evictions");
    is_sound(&path);
}

#[test]
fn the_killed_leave_neither_slots_nor_memory() {
    let Some(tools) = tools("killed programs without a server") else {
        return;
    };
    let scratch = Scratch::new();
    let path = scratch.join("region");
    // More than there are slots for processes: 16 for 8 MiB.
    for number in 0..40 {
        let mut child = start(PAIRS[number % 2].0(&tools), &path, &["write", &format!("key{number}")]);
        assert_eq!(child.line(), "writing");
        child.kill();
    }
    for (one, other) in PAIRS {
        assert_eq!(run(one(&tools), &path, &["fill", "long", "2700", "2000", "0"]), "filled 2700");
        assert_eq!(run(other(&tools), &path, &["count", "long", "2700"]), "counted 2700");
    }
    let found = counters(&path);
    assert!(found.recoveries >= 40, "{} recoveries", found.recoveries);
    let cache = Cache::open(&Place::Path(path.clone()), &Options::new().memory(MEMORY)).expect("a region");
    assert_eq!(cache.info().sessions, 0);
    drop(cache);
    is_sound(&path);
}

/// A container, as far as a program that shares memory is concerned: another user, mount, pid and network namespace.
const CONTAINER: [&str; 8] = [
    "unshare",
    "--user",
    "--map-root-user",
    "--mount",
    "--pid",
    "--net",
    "--fork",
    "--kill-child",
];

/// The command in a container of its own, which does not see the files of this folder, and cannot reach the network.
fn contained(inner: Command, hidden: &Path) -> Command {
    let mut command = Command::new(CONTAINER[0]);
    let script = "mount -t tmpfs none \"$1\" && test -z \"$(ls -A \"$1\")\" && test $$ -lt 10 && shift && \"$@\"";
    command.args(&CONTAINER[1..]).args(["sh", "-c", script, "sh"]).arg(hidden);
    command.arg(inner.get_program()).args(inner.get_args());
    for (name, value) in inner.get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    command
}

#[test]
fn programs_in_two_containers_write_to_one_region() {
    let test = "programs in two containers";
    let Some(tools) = tools(test) else { return };
    let mut try_out = Command::new(CONTAINER[0]);
    try_out.args(&CONTAINER[1..]).args(["mount", "-t", "tmpfs", "none", "/mnt"]);
    if !try_out.output().is_ok_and(|output| output.status.success()) {
        return skip(test, &format!("`{}` does not work here", CONTAINER.join(" ")));
    }
    let folder = Scratch::new();
    let socket: PathBuf = folder.join("region.sock");
    let server = Server::start(
        Kind::Keyway,
        &ServeOptions {
            keyway_arguments: vec!["--region-socket".into(), socket.display().to_string()],
            ..ServeOptions::default()
        },
    );
    let hidden = server.region().parent().expect("a file is in a directory");
    let sessions = server.stat("keyway_sessions");
    for (first, second) in PAIRS {
        let (left, right) = (contained(first(&tools), hidden), contained(second(&tools), hidden));
        let mut children = [
            start(left, &socket, &["swap", "left", "right"]),
            start(right, &socket, &["swap", "right", "left"]),
        ];
        for (child, due) in children.iter_mut().zip(["swapped right", "swapped left"]) {
            assert_eq!(child.line(), due);
            assert!(child.end().success());
        }
        let mut wire = server.connect(Transport::Tcp);
        for key in ["left", "right"] {
            assert_eq!(
                wire.ask(&format!("mg {key} v")).expect("an answer"),
                "VA ".to_owned() + &key.len().to_string()
            );
            wire.line().expect("the value");
            assert_eq!(wire.ask(&format!("delete {key}")).expect("an answer"), "DELETED");
        }

        // One is killed in the middle of its writes; the other one's container, and the server, go on.
        let recovered = server.stat("keyway_recoveries");
        let mut doomed = start(contained(first(&tools), hidden), &socket, &["write", "doomed"]);
        assert_eq!(doomed.line(), "writing");
        let mut other = start(
            contained(second(&tools), hidden),
            &socket,
            &["fill", "other", "20000", "2000", "0"],
        );
        doomed.kill();
        assert_eq!(other.line(), "filled 20000");
        assert!(other.end().success());
        assert_eq!(
            run(contained(first(&tools), hidden), &socket, &["count", "other", "20000"]),
            "counted 20000"
        );
        wait_until("the server takes back what the killed program held", DEADLINE, || {
            (server.stat("keyway_recoveries") > recovered && server.stat("keyway_sessions") == sessions).then_some(())
        });
    }
}
