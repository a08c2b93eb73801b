//! `keyway doctor`. Each thing that is wrong here is made true: a process that is stopped within a call, a limit that is too low, a program
//! that was replaced, a full file system, datagrams that nothing reads. Its enemies: a fault that it does not name, one that is none, and a
//! region that is changed by being looked at.
//! Guards: P47

use harness::{Scratch, wait_for_ready, wait_until};
use keyway_cache::{Cache, Gate, Options, Place};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// Longest that any test waits for anything: only a failing test takes so long.
const PATIENCE: Duration = Duration::from_secs(60);
const PROGRAM: &str = env!("CARGO_BIN_EXE_keyway");

fn open(path: &Path) -> Cache {
    let options = Options::new().memory(2 << 20).gate(Gate::Off);
    Cache::open(&Place::Path(path.to_owned()), &options).unwrap()
}

fn run(region: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(PROGRAM);
    command.args(["doctor", "--region"]).arg(region).args(arguments);
    command.output().unwrap()
}

/// What is found, and whether the exit code says so.
struct Found(Vec<Value>);

impl Found {
    fn new(output: &Output) -> Self {
        let said: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|why| panic!("{why}: {output:?}"));
        let checks = said["checks"].as_array().unwrap().clone();
        let is_wrong = checks.iter().any(|check| check["is"] == "wrong");
        assert_eq!(output.status.code(), Some(is_wrong.into()), "{said}");
        for check in &checks {
            assert_eq!(check["remedy"].is_string(), check["is"] == "wrong", "{check}");
        }
        Self(checks)
    }

    fn of(region: &Path, arguments: &[&str]) -> Self {
        Self::new(&run(region, &[&["--json"], arguments].concat()))
    }

    #[track_caller]
    fn check(&self, name: &str) -> &Value {
        let found = self.0.iter().find(|check| check["check"] == name);
        found.unwrap_or_else(|| panic!("no {name} in {:?}", self.0))
    }

    #[track_caller]
    fn is_ok(&self, names: &[&str]) {
        for name in names {
            assert_eq!(self.check(name)["is"], "ok", "{}", self.check(name));
        }
    }

    #[track_caller]
    fn is_wrong(&self, name: &str, words: &[&str]) {
        let check = self.check(name);
        let text = format!("{} {}", check["what"], check["remedy"]);
        assert!(
            check["is"] == "wrong" && words.iter().all(|word| text.contains(word)),
            "{check}"
        );
    }
}

/// A program that is killed at the end.
struct Running(Child);

impl Running {
    fn signal(&self, name: &str) {
        let status = Command::new("kill").args([name, &self.0.id().to_string()]).status().unwrap();
        assert!(status.success());
    }

    fn is_stopped(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0.id())).unwrap();
        stat.rsplit_once(") ").unwrap().1.starts_with('T')
    }

    fn wait_until_stopped(&self) {
        wait_until("stopped", PATIENCE, || self.is_stopped().then_some(()));
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// A server, started by a shell with this before it.
fn serve(program: &Path, before: &str, folder: &Scratch, more: &[&str]) -> Running {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{before} exec \"$0\" \"$@\"")]).arg(program);
    command.args([
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--memory",
        "2m",
        "--threads",
        "1",
        "--region",
    ]);
    command
        .arg(folder.join("region"))
        .arg("--socket")
        .arg(folder.join("socket"))
        .args(more);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let ready = wait_for_ready(&mut child);
    assert!(ready.contains(" ready"), "{ready}");
    Running(child)
}

#[test]
fn a_region_with_which_all_is_well_is_only_read() {
    let folder = Scratch::new();
    let path = folder.join("region");
    let cache = open(&path);
    cache.session().unwrap().set(b"key", b"value", 0).unwrap();
    let before = std::fs::read(&path).unwrap();
    let found = Found::of(&path, &[]);
    assert_eq!(std::fs::read(&path).unwrap(), before);
    found.is_ok(&[
        "memory",
        "evictions",
        "damage",
        "processes",
        "versions",
        "sessions",
        "open-files",
        "locked",
        "udp",
    ]);
    found.is_ok(&["swap", "huge-pages"]);
    assert!(found.check("connections")["what"].as_str().unwrap().contains("--server"));
    let text = String::from_utf8(run(&path, &[]).stdout).unwrap();
    assert_eq!(
        text.lines().filter(|line| line.starts_with("WRONG")).count(),
        found.0.iter().filter(|check| check["is"] == "wrong").count()
    );
    assert!(
        text.contains("\nok       processes     1 attached process, of which none is stopped within a call\n"),
        "{text}"
    );
    let absent = run(&folder.join("absent"), &[]);
    assert_eq!(absent.status.code(), Some(2), "{absent:?}");
}

/// Not a test: a process that is nearly always within a call, until it gets a line.
#[test]
fn part_that_is_in_calls() {
    let Some(path) = std::env::var_os("KEYWAY_TEST_PLACE").map(PathBuf::from) else {
        return;
    };
    let cache = open(&path);
    let mut session = cache.session().unwrap();
    let (value, is_done) = (vec![7; 100_000], AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::io::stdin().read_exact(&mut [0]).unwrap();
            is_done.store(true, Relaxed);
        });
        while !is_done.load(Relaxed) {
            session.set(b"key", &value, 0).unwrap();
        }
    });
    std::io::stdout().write_all(b"\ndone\n").unwrap();
    // Until it is killed.
    std::io::stdin().read_exact(&mut [0]).unwrap();
}

#[test]
fn a_process_that_is_stopped_within_a_call_is_named() {
    let folder = Scratch::new();
    let path = folder.join("region");
    let cache = open(&path);
    let mut command = harness::own_test(&[], module_path!(), "part_that_is_in_calls");
    command
        .env("KEYWAY_TEST_PLACE", &path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut process = Running(command.spawn().unwrap());
    wait_until("it works", PATIENCE, || (cache.counters().cmd_set > 0).then_some(()));
    let pid = process.0.id().to_string();
    let found = wait_until("a stop within a call", PATIENCE, || {
        process.signal("-STOP");
        process.wait_until_stopped();
        let found = Found::of(&path, &[]);
        if found.check("processes")["is"] == "wrong" {
            return Some(found);
        }
        process.signal("-CONT");
        None
    });
    found.is_wrong("processes", &[&pid, "stopped within a call", &format!("kill -CONT {pid}")]);
    process.signal("-CONT");
    process.0.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    let mut lines = BufReader::new(process.0.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "done"));
    Found::of(&path, &[]).is_ok(&["processes"]);
    // Stopped between calls it keeps nothing.
    process.signal("-STOP");
    process.wait_until_stopped();
    Found::of(&path, &[]).is_ok(&["processes"]);
}

#[test]
fn limits_that_are_too_low_for_a_server_are_named() {
    let folder = Scratch::new();
    let (path, socket) = (folder.join("region"), folder.join("socket"));
    let server = serve(Path::new(PROGRAM), "ulimit -n 80;", &folder, &["--connections", "4096"]);
    let asked = ["--server", socket.to_str().unwrap()];
    Found::of(&path, &asked).is_wrong("open-files", &["4096 connections", "only 80 files", "ulimit -n 4208"]);
    drop(server);
    let _server = serve(Path::new(PROGRAM), "", &folder, &["--connections", "2"]);
    Found::of(&path, &asked).is_ok(&["open-files", "connections", "kernel-door", "versions", "udp"]);
    // Refused connections are counted.
    let mut open: Vec<UnixStream> = Vec::new();
    let greeting = |stream: &mut UnixStream| {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut answer = [0; 8];
        stream.write_all(b"version\r\n").is_ok() && stream.read_exact(&mut answer).is_ok() && &answer == b"VERSION "
    };
    for wanted in [true, true, false] {
        // The one that has asked may not be closed yet.
        wait_until("a connection", PATIENCE, || {
            let mut stream = UnixStream::connect(&socket).unwrap();
            let is_served = greeting(&mut stream);
            open.push(stream);
            (is_served == wanted).then_some(())
        });
    }
    open.clear();
    let found = wait_until("room for a connection", PATIENCE, || {
        let output = run(&path, &["--json", "--server", socket.to_str().unwrap()]);
        (!output.stdout.is_empty()).then(|| Found::new(&output))
    });
    found.is_wrong("connections", &["were refused", "2 were open", "-c"]);
}

#[test]
fn a_server_whose_program_was_replaced_is_named() {
    let folder = Scratch::new();
    let (program, path) = (folder.join("keyway"), folder.join("region"));
    harness::copy_program(PROGRAM, &program);
    let _server = serve(&program, "", &folder, &[]);
    Found::of(&path, &[]).is_ok(&["versions"]);
    let newer = folder.join("newer");
    std::fs::write(&newer, b"another version").unwrap();
    std::fs::rename(&newer, &program).unwrap();
    Found::of(&path, &[]).is_wrong("versions", &[program.to_str().unwrap(), "--take-over"]);
}

#[test]
fn a_server_that_does_not_keep_up_with_datagrams_is_named() {
    let folder = Scratch::new();
    let path = folder.join("region");
    // A port that is free now, at an address that no other test has.
    let pid = std::process::id().to_be_bytes();
    let address = SocketAddr::from(([127, pid[1] | 64, pid[2], pid[3] | 1], 11211));
    let server = serve(Path::new(PROGRAM), "", &folder, &["--udp", &address.to_string()]);
    server.signal("-STOP");
    server.wait_until_stopped();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    // Until more are sent than any buffer holds that the server may have asked for, and while the command looks.
    let looked = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let mut sent = 0;
            while sent < 20_000 || !looked.load(Relaxed) {
                sent += u32::from(socket.send_to(&[0; 1_000], address).is_ok());
            }
        });
        let found = Found::of(&path, &["--seconds", "2"]);
        looked.store(true, Relaxed);
        found.is_wrong("udp", &["were dropped in the last 2 s", "rmem_max"]);
    });
    // What was dropped before the look is over, but of the server's hour.
    let before = Found::of(&path, &[]).check("udp")["what"].to_string();
    assert!(!before.contains("dropped in the last"), "{before}");
    server.signal("-CONT");
    let asked = ["--server", &folder.join("socket").display().to_string()];
    let found = Found::of(&path, &asked);
    found.is_wrong("udp", &["were dropped in the last"]);
    let said = found.check("udp")["what"].as_str().unwrap();
    assert!(!said.starts_with("0 datagrams"), "{said}");
}

/// Stores until one is refused for memory, which items never free.
fn is_refused(cache: &Cache) {
    let mut session = cache.session().unwrap();
    let mut numbers = 0..1_000_000;
    assert!(numbers.any(|number: u32| session.set(format!("key{number}").as_bytes(), &[7; 20_000], 0).is_err()));
}

#[test]
fn what_happened_before_the_hour_that_a_server_knows_is_over() {
    let folder = Scratch::new();
    let (path, socket) = (folder.join("region"), folder.join("socket"));
    let options = Options::new().memory(2 << 20).gate(Gate::Off).evict(false);
    let cache = Cache::open(&Place::Path(path.clone()), &options).unwrap();
    is_refused(&cache);
    let _server = serve(Path::new(PROGRAM), "", &folder, &["--no-evict"]);
    let asked = ["--server", socket.to_str().unwrap()];
    // The server's hour has begun when a second of it is over.
    let found = wait_until("a second", PATIENCE, || {
        let found = Found::of(&path, &asked);
        (found.check("memory")["is"] == "ok").then_some(found)
    });
    let what = found.check("memory")["what"].as_str().unwrap();
    assert!(what.ends_with("and 1 since the region was made"), "{what}");
    is_refused(&cache);
    Found::of(&path, &asked).is_wrong("memory", &["1 refused store in the last"]);
    // The command saw none during its own look.
    Found::of(&path, &[]).is_ok(&["memory"]);
}

#[test]
fn a_long_tail_of_keys_is_nothing_wrong() {
    let folder = Scratch::new();
    let path = folder.join("region");
    let cache = open(&path);
    let mut session = cache.session().unwrap();
    for number in 0..30_000 {
        session.set(format!("key{number}").as_bytes(), &[7; 200], 0).unwrap();
    }
    let evictions = cache.counters().evictions;
    assert!(evictions > 1_000, "{evictions}");
    let found = Found::of(&path, &[]);
    found.is_ok(&["evictions"]);
    let what = found.check("evictions")["what"].as_str().unwrap();
    assert!(
        what.contains(&format!("since the region was made {evictions}, of which")),
        "{what}"
    );
}

/// Not a test: makes a region.
#[test]
fn part_that_makes_a_region() {
    if let Some(path) = std::env::var_os("KEYWAY_TEST_PLACE").map(PathBuf::from) {
        open(&path).close();
    }
}

#[test]
fn a_full_file_system_is_named() {
    let folder = Scratch::new();
    let place = folder.path().to_str().unwrap();
    // The file system is gone with the namespace.
    let script = "mount -t tmpfs -o size=16m keyway-test \"$0\" && KEYWAY_TEST_PLACE=\"$0/region\" \"$1\" --exact \"$3\" \
                  >/dev/null && { head -c 32m /dev/zero >\"$0/more\" 2>/dev/null; \"$2\" doctor --json --region \
                  \"$0/region\"; }";
    let mut command = Command::new("unshare");
    if !nix::unistd::geteuid().is_root() {
        command.arg("--map-root-user");
    }
    command.args(["--mount", "sh", "-c", script, place]);
    let test = harness::test_path(module_path!(), "part_that_makes_a_region");
    let output = command
        .arg(std::env::current_exe().unwrap())
        .arg(PROGRAM)
        .arg(test)
        .output()
        .unwrap();
    Found::new(&output).is_wrong("file-system", &["tmpfs", "of 16 MiB", "--shm-size"]);
}
