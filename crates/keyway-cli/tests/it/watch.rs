//! `keyway watch` and the server's `watch`, seen from outside: processes with the library, some of which are killed or stopped, and a client of
//! the server change keys at the same time. Every change is printed or counted as lost, and those of each key are printed in the order in
//! which they were published. The numbers of operations are fixed, and no time is asserted.
//! Guards: P45

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};

use harness::{Random, Scratch, wait_for_ready, wait_until};
use keyway_cache::{Cache, Delete, Deleted, Options, Place};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Keys that are only stored and counted up, and keys that are stored and deleted.
const COUNTED: u64 = 6;
const DELETED: u64 = 6;
/// Operations of each process.
const OPERATIONS: u64 = 30_000;
/// How often a process says how many changes it has made.
const SAID_EVERY: u64 = 500;
/// Set in a process that this test starts as a user of the library: seed, region.
const ROLE: &str = "KEYWAY_TEST_ROLE";

/// The next operation: a key, and whether it is the usual one.
fn operation(random: &mut Random) -> (String, bool) {
    let usual = random.below(2) == 0;
    match random.below(2) {
        0 => (format!("counted:{}", random.below(COUNTED)), usual),
        _ => (format!("deleted:{}", random.below(DELETED)), usual),
    }
}

/// Not a test: what a process does that a test below has started.
#[test]
fn a_process_with_the_library() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let (seed, place) = role.split_once(' ').unwrap();
    let cache = Cache::open(&Place::at(place), &Options::new()).unwrap();
    let mut session = cache.session().unwrap();
    let mut random = Random::new(seed.parse().unwrap());
    let mut changes = 0;
    for number in 1..=OPERATIONS {
        let (key, usual) = operation(&mut random);
        changes += match (key.starts_with("counted"), usual) {
            (true, true) => u64::from(session.incr(key.as_bytes(), 1).is_ok()),
            (true, false) | (false, true) => u64::from(session.set(key.as_bytes(), b"7", 0).is_ok()),
            (false, false) => u64::from(session.delete(key.as_bytes(), &Delete::default()).unwrap() == Deleted::Deleted),
        };
        if number % SAID_EVERY == 0 {
            println!("\nchanges {changes}");
            std::io::stdout().flush().unwrap();
        }
    }
    println!("\nall made");
    std::io::stdout().flush().unwrap();
    // Until it is ended: it still has its session then.
    let _ = std::io::stdin().read(&mut [0]);
}

struct World {
    server: Child,
    folder: Scratch,
}

/// A started watcher.
struct Watch {
    child: Child,
    out: BufReader<ChildStdout>,
    _err: BufReader<ChildStderr>,
}

impl World {
    fn new() -> Self {
        let folder = Scratch::new();
        let mut server = Command::new(env!("CARGO_BIN_EXE_keyway"));
        server.args(["serve", "--listen", "127.0.0.1:0", "--memory", "64m", "--threads", "2"]);
        server.arg("--socket").arg(folder.join("socket"));
        server.arg("--region").arg(folder.join("region"));
        let mut server = server.stdout(Stdio::piped()).spawn().unwrap();
        wait_for_ready(&mut server);
        let world = Self { server, folder };
        let mut session = world.cache().session().unwrap();
        for key in 0..COUNTED {
            session.set(format!("counted:{key}").as_bytes(), b"7", 0).unwrap();
        }
        world
    }

    fn cache(&self) -> Cache {
        Cache::open(&Place::at(self.folder.join("region")), &Options::new()).unwrap()
    }

    fn connect(&self) -> BufReader<UnixStream> {
        BufReader::new(UnixStream::connect(self.folder.join("socket")).unwrap())
    }

    /// A watcher that watches already.
    fn watch(&self, arguments: &[&str]) -> Watch {
        let mut command = Command::new(env!("CARGO_BIN_EXE_keyway"));
        command.arg("watch").args(arguments);
        if arguments.contains(&"--server") {
            command.arg(self.folder.join("socket"));
        } else {
            command.arg("--region").arg(self.folder.join("region"));
        }
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (out, err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let (out, mut err) = (BufReader::new(out), BufReader::new(err));
        let mut line = String::new();
        err.read_line(&mut line).unwrap();
        assert!(line.starts_with("keyway: watching "), "{line}");
        Watch { child, out, _err: err }
    }

    fn process(&self, seed: u64) -> Child {
        let region = self.folder.join("region");
        harness::own_test(&[], module_path!(), "a_process_with_the_library")
            .env(ROLE, format!("{seed} {}", region.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    }

    /// The same operations through the server. Returns how many changes that were.
    fn by_network(&self, seed: u64, operations: u64) -> u64 {
        let mut connection = self.connect();
        let mut random = Random::new(seed);
        let mut changes = 0;
        for _ in 0..operations {
            let (key, usual) = operation(&mut random);
            let request = match (key.starts_with("counted"), usual) {
                (true, true) => format!("incr {key} 1\r\n"),
                (true, false) | (false, true) => format!("set {key} 0 0 1\r\n7\r\n"),
                (false, false) => format!("delete {key}\r\n"),
            };
            connection.get_mut().write_all(request.as_bytes()).unwrap();
            let mut line = String::new();
            connection.read_line(&mut line).unwrap();
            changes += u64::from(line != "NOT_FOUND\r\n");
        }
        changes
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

impl Watch {
    /// All lines up to the one about this key, without that.
    fn until(&mut self, key: &str) -> Vec<String> {
        let end = format!("key={key} ");
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            assert!(self.out.read_line(&mut line).unwrap() > 0, "the watcher has ended");
            if line.contains(&end) {
                return lines;
            }
            lines.push(line.trim_end().to_owned());
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill")
        .args(["-s", name, &child.id().to_string()])
        .status()
        .unwrap();
    assert!(sent.success());
}

/// A word of a line.
fn word<'l>(line: &'l str, name: &str) -> Option<&'l str> {
    line.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
}

/// Printed changes, and lost events.
fn counts(lines: &[String]) -> (u64, u64) {
    let lost = lines
        .iter()
        .filter_map(|line| word(line, "skipped")?.parse::<u64>().ok())
        .sum();
    let printed = lines.iter().filter(|line| word(line, "key").is_some()).count() as u64;
    (printed, lost)
}

/// Each key's changes are printed in the order in which they were published. `is_complete`: what is missing is said before what comes
/// after it, because no process has died.
fn judge_order(lines: &[String], mut is_complete: bool) {
    let mut cas: HashMap<&str, u64> = HashMap::new();
    let mut is_there: HashMap<&str, bool> = HashMap::new();
    for line in lines {
        is_complete &= word(line, "skipped").is_none();
        let Some(key) = word(line, "key") else { continue };
        let own: u64 = word(line, "cas").unwrap().parse().unwrap();
        if key.starts_with("counted") {
            let before = cas.insert(key, own);
            assert!(
                before.is_none_or(|before| before < own),
                "{key}: {before:?} is printed before {own}"
            );
        }
        if word(line, "type") == Some("deleted") {
            let before = is_there.insert(key, false);
            assert!(!is_complete || before != Some(false), "{key} is deleted twice");
        } else {
            is_there.insert(key, true);
        }
    }
}

/// The last number of changes that a process has said, when it has said that these were all, or has ended.
fn said(out: &mut impl BufRead) -> u64 {
    let mut changes = 0;
    for line in out.lines().map_while(Result::ok) {
        if line == "all made" {
            break;
        }
        changes = line
            .strip_prefix("changes ")
            .map_or(changes, |number| number.parse().unwrap());
    }
    changes
}

#[test]
fn every_change_is_printed_or_counted_and_each_keys_are_in_order() {
    for by_server in [false, true] {
        let world = World::new();
        let mut watch = world.watch(if by_server {
            &["mutations", "updates", "deletions", "--server"]
        } else {
            &["mutations", "updates", "deletions"]
        });
        let mut processes: Vec<Child> = (1..=3).map(|seed| world.process(seed)).collect();
        let reader = std::thread::spawn(move || (watch.until("last"), watch));
        let mut changes = world.by_network(4, OPERATIONS);
        for process in &mut processes {
            changes += said(&mut BufReader::new(process.stdout.as_mut().unwrap()));
        }
        world.cache().session().unwrap().set(b"last", b"", 0).unwrap();
        let (lines, mut watch) = reader.join().unwrap();
        // What is lost at the end is said within the same look, or at the next one.
        world.cache().session().unwrap().set(b"very-last", b"", 0).unwrap();
        let more = watch.until("very-last");
        let (printed, lost) = counts(&[lines.clone(), more].concat());
        assert_eq!(printed + lost, changes, "printed {printed}, lost {lost}");
        assert!(printed > 0);
        judge_order(&lines, true);
        for mut process in processes {
            drop(process.stdin.take());
            assert!(process.wait().unwrap().success());
        }
    }
}

#[test]
fn processes_that_are_killed_or_stopped_keep_no_change_from_being_told() {
    let world = World::new();
    let mut watch = world.watch(&["mutations", "updates", "deletions"]);
    let mut processes: Vec<Child> = (1..=4).map(|seed| world.process(seed)).collect();
    let reader = std::thread::spawn(move || watch.until("last"));
    let mut changes = world.by_network(5, OPERATIONS / 10);
    for process in processes.iter_mut().take(2) {
        // In the middle of its changes.
        let mut line = String::new();
        let mut out = BufReader::new(process.stdout.take().unwrap());
        while !line.starts_with("changes") {
            line.clear();
            assert!(out.read_line(&mut line).unwrap() > 0);
        }
        process.kill().unwrap();
        process.wait().unwrap();
        changes += said(&mut std::io::Cursor::new(line.into_bytes()).chain(out));
    }
    signal(&processes[2], "STOP");
    changes += world.by_network(6, OPERATIONS / 10);
    signal(&processes[2], "CONT");
    for process in processes.iter_mut().skip(2) {
        changes += said(&mut BufReader::new(process.stdout.as_mut().unwrap()));
    }
    world.cache().session().unwrap().set(b"last", b"", 0).unwrap();
    let lines = reader.join().unwrap();
    let (printed, lost) = counts(&lines);
    // What the killed ones did after they had reported for the last time is printed, too.
    assert!(printed + lost >= changes, "printed {printed}, lost {lost}, made {changes}");
    judge_order(&lines, false);
    for mut process in processes.into_iter().skip(2) {
        drop(process.stdin.take());
        assert!(process.wait().unwrap().success());
    }
}

#[test]
fn a_watcher_that_does_not_read_holds_up_no_operation_and_is_told_what_it_missed() {
    let world = World::new();
    let mut watch = world.watch(&["mutations"]);
    signal(&watch.child, "STOP");
    let mut session = world.cache().session().unwrap();
    for number in 0..OPERATIONS {
        session.set(format!("key{number}").as_bytes(), b"v", 0).unwrap();
    }
    signal(&watch.child, "CONT");
    session.set(b"last", b"v", 0).unwrap();
    let lines = watch.until("last");
    // On a machine so busy that it was stopped for ten seconds, it was forgotten, and says so.
    let is_gap = lines.iter().any(|line| word(line, "type") == Some("gap"));
    session.set(b"very-last", b"v", 0).unwrap();
    let (printed, lost) = counts(&[lines, watch.until("very-last")].concat());
    assert!(printed + lost == OPERATIONS || is_gap, "printed {printed}, lost {lost}");
    assert!(lost > 0 || is_gap);
    // Its pipe is full now, and it is killed: another one watches on.
    watch.child.kill().unwrap();
    let mut other = world.watch(&["mutations"]);
    session.set(b"last", b"v", 0).unwrap();
    assert_eq!(counts(&other.until("last")), (0, 0));
}

#[test]
fn filters_choose_by_kind_prefix_command_door_and_sample() {
    let world = World::new();
    let mut session = world.cache().session().unwrap();
    let mut connection = world.connect();
    let mut check = |arguments: &[&str], expected: &[&str]| {
        let mut watch = world.watch(arguments);
        let mut ask = |request: &str| {
            connection.get_mut().write_all(request.as_bytes()).unwrap();
            connection.read_line(&mut String::new()).unwrap();
        };
        for end in ["", "end"] {
            session.set(format!("a1{end}").as_bytes(), b"1", 0).unwrap();
            session.incr(format!("a1{end}").as_bytes(), 1).unwrap();
            session.delete(format!("a1{end}").as_bytes(), &Delete::default()).unwrap();
            ask(&format!("set b1{end} 0 0 1\r\n1\r\n"));
            ask(&format!("ms b1{end} 1 T9\r\n2\r\n"));
            ask(&format!("delete b1{end}\r\n"));
        }
        let shown = |line: &String| {
            ["type", "key", "cmd", "door"]
                .map(|name| word(line, name).unwrap_or("-").to_owned())
                .join(" ")
        };
        // Whatever is chosen, the first event of the end is of the same kind as the first event.
        let first = expected[0].split(' ').nth(1).unwrap();
        let lines: Vec<String> = watch.until(&format!("{first}end")).iter().map(shown).collect();
        assert_eq!(lines, expected, "{arguments:?}");
    };
    check(
        &["mutations", "--prefix", "b"],
        &["item_store b1 set text", "item_store b1 set meta"],
    );
    check(&["updates"], &["item_update a1 incr library"]);
    check(
        &["mutations", "deletions", "--door", "meta,library"],
        &[
            "item_store a1 set library",
            "deleted a1 delete library",
            "item_store b1 set meta",
        ],
    );
    check(
        &["all", "--command", "delete", "--server"],
        &[
            "item_get a1 - library",
            "deleted a1 delete library",
            "item_get b1 - text",
            "deleted b1 delete text",
        ],
    );
    // The same keys each time, and all events of each.
    let chosen = |watch: &mut Watch, session: &mut keyway_cache::Session| {
        for round in [b"1", b"2"] {
            for key in 0..60 {
                session.set(format!("s{key}").as_bytes(), round, 0).unwrap();
            }
        }
        session.flush_all(0).unwrap();
        let mut keys = Vec::new();
        loop {
            let mut line = String::new();
            assert!(watch.out.read_line(&mut line).unwrap() > 0);
            if line.contains("type=flush_all") {
                return keys;
            }
            keys.extend(word(line.trim_end(), "key").map(str::to_owned));
        }
    };
    let [once, again] = [(); 2].map(|()| chosen(&mut world.watch(&["mutations", "updates", "--sample", "4"]), &mut session));
    assert_eq!(once, again);
    assert!((8..60).contains(&once.len()), "{}", once.len());
    assert_eq!(once[..once.len() / 2], once[once.len() / 2..]);
}

/// A watcher that a signal ends leaves nothing behind; one that is killed leaves a session that the server has to recover.
#[test]
fn a_watcher_that_is_ended_is_no_crash() {
    let world = World::new();
    let cache = world.cache();
    let recovered = |least: u64| {
        wait_until("the recovery", harness::DEADLINE, || {
            let count = cache.counters().recoveries;
            (count >= least).then_some(count)
        })
    };
    let ended_by = |signal: Signal| {
        let before = cache.info().sessions;
        let mut watch = world.watch(&[]);
        wait_until("it has its session", harness::DEADLINE, || {
            (cache.info().sessions > before).then_some(())
        });
        kill(Pid::from_raw(watch.child.id().cast_signed()), signal).unwrap();
        assert_eq!(watch.child.wait().unwrap().signal(), Some(signal as i32));
    };
    ended_by(Signal::SIGKILL);
    let of_one = recovered(1);
    // SIGINT is ignored where the tests run in the background of a shell.
    ended_by(Signal::SIGTERM);
    ended_by(Signal::SIGKILL);
    assert_eq!(recovered(of_one + 1), 2 * of_one);
}
