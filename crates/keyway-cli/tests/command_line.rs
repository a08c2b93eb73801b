//! The program from outside: what a shell, an init system and a person see of it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Longest that anything here may take, on a machine that has much else to do.
const PATIENCE: Duration = Duration::from_secs(60);

fn keyway(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_keyway")).args(arguments).output().unwrap()
}

fn code(arguments: &[&str]) -> i32 {
    keyway(arguments).status.code().unwrap()
}

fn stdout(arguments: &[&str]) -> String {
    let output = keyway(arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// A folder of this test's own, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("keyway-cli-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// `keyway serve` on a Unix socket, killed at the end if it still runs.
struct Serving {
    child: Child,
    ready_line: String,
}

impl Serving {
    fn start(folder: &Folder) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_keyway"))
            .args(["serve", "--listen", "127.0.0.1:0", "--memory", "2m", "--threads", "1"])
            .args(["--socket", &folder.path("socket"), "--region", &folder.path("region")])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready_line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut ready_line)
            .unwrap();
        Self { child, ready_line }
    }

    fn signal(&self, name: &str) {
        signal(&self.child.id().to_string(), name);
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn signal(pid: &str, name: &str) {
    assert!(Command::new("kill").args([name, pid]).status().unwrap().success());
}

fn ask(mut stream: impl Read + Write, request: &str, lines: usize) -> String {
    stream.write_all(request.as_bytes()).unwrap();
    let mut reader = BufReader::new(stream);
    let mut reply = String::new();
    for _ in 0..lines {
        reader.read_line(&mut reply).unwrap();
    }
    reply
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn help_and_version_teach() {
    assert!(stdout(&["--help"]).contains("keyway serve --listen 0.0.0.0 --memory 4g"));
    assert!(stdout(&["serve", "--help"]).contains("[default: 64m]"));
    assert!(stdout(&["version"]).starts_with("keyway "));
    assert!(stdout(&["memcached", "-V"]).starts_with("memcached 1.6."));
    assert!(stdout(&["memcached", "-h"]).contains("--conn-limit"));
}

#[test]
fn exit_codes_tell_what_went_wrong() {
    let folder = Folder::new("codes");
    let (absent, junk) = (folder.path("absent"), folder.path("junk"));
    std::fs::write(&junk, "no region".repeat(1000)).unwrap();
    assert_eq!(code(&["nonsense"]), 64);
    assert_eq!(code(&["serve", "--memory", "x"]), 64);
    assert_eq!(code(&["memcached", "-Z"]), 64);
    assert_eq!(code(&["memcached", "--enable-ssl"]), 64);
    assert_eq!(code(&["check", &absent]), 2);
    assert_eq!(code(&["check", &junk]), 2);
    assert_eq!(code(&["get", "k", "--region", &absent]), 2);
    assert_eq!(code(&["serve", "--listen", "127.0.0.1:0", "--region", "memfd"]), 71);
    assert!(!Path::new(&absent).exists(), "looking must not create a region");
    assert_eq!(std::fs::read_to_string(&junk).unwrap(), "no region".repeat(1000));
}

#[test]
fn a_served_region_is_open_to_people_and_outlives_kill_9() {
    let folder = Folder::new("warm");
    let region = folder.path("region");
    let mut first = Serving::start(&folder);
    assert!(
        first.ready_line.contains("ready: unix ") && first.ready_line.contains("2 MiB, empty"),
        "{}",
        first.ready_line
    );
    assert_eq!(
        code(&[
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--socket",
            &folder.path("socket"),
            "--region",
            &region
        ]),
        71
    );

    let stream = UnixStream::connect(folder.path("socket")).unwrap();
    assert_eq!(ask(stream, "set a 5 0 3\r\none\r\n", 1), "STORED\r\n");
    assert_eq!(stdout(&["get", "a", "--region", &region]), "one");
    assert_eq!(stdout(&["set", "b", "two", "--flags", "7", "--region", &region]), "");
    assert_eq!(code(&["get", "c", "--region", &region]), 1);
    let stream = UnixStream::connect(folder.path("socket")).unwrap();
    assert_eq!(ask(stream, "get b\r\n", 3), "VALUE b 7 3\r\ntwo\r\nEND\r\n");

    first.signal("-KILL");
    first.child.wait().unwrap();
    assert!(stdout(&["check", &region]).contains("all invariants hold"));

    let mut second = Serving::start(&folder);
    assert!(second.ready_line.contains("warm: 2 items"), "{}", second.ready_line);
    let mut keys: Vec<String> = stdout(&["keys", "--region", &region]).lines().map(str::to_owned).collect();
    keys.sort();
    assert_eq!(keys, ["a", "b"]);
    assert_eq!(code(&["delete", "a", "--region", &region]), 0);
    assert_eq!(code(&["delete", "a", "--region", &region]), 1);
    assert_eq!(stdout(&["dump", "--region", &region]), "set b 7 0 3 noreply\r\ntwo\r\n");
    assert!(stdout(&["stats", "--region", &region]).contains("items                1"));

    second.signal("-TERM");
    assert_eq!(second.child.wait().unwrap().code(), Some(0));
    assert!(!Path::new(&folder.path("socket")).exists());
    assert!(stdout(&["check", &region]).contains("all invariants hold"));
}

#[test]
fn a_second_signal_ends_a_server_that_waits_for_a_slow_reader() {
    let folder = Folder::new("twice");
    let mut serving = Serving::start(&folder);
    let mut stream = UnixStream::connect(folder.path("socket")).unwrap();
    stream
        .write_all(
            &[
                b"set k 0 0 500000\r\n",
                &[b'v'; 500_000][..],
                b"\r\n",
                &b"get k\r\n".repeat(20),
            ]
            .concat(),
        )
        .unwrap();
    // The first answer is here, so the server is at work on the others, which nobody takes.
    stream.read_exact(&mut [0; 10]).unwrap();
    serving.signal("-TERM");
    until("it does not listen any more", || {
        UnixStream::connect(folder.path("socket")).is_err()
    });
    assert_eq!(serving.child.try_wait().unwrap(), None, "it should wait for its reader");
    serving.signal("-INT");
    assert_eq!(serving.child.wait().unwrap().code(), Some(1));
    // Its region needs no farewell.
    assert!(stdout(&["check", &folder.path("region")]).contains("all invariants hold"));
}

#[test]
fn a_service_manager_is_told_when_the_server_serves() {
    let folder = Folder::new("notify");
    let manager = std::os::unix::net::UnixDatagram::bind(folder.path("manager")).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_keyway"))
        .args([
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--region",
            "memfd",
            "--socket",
            &folder.path("socket"),
        ])
        .env("NOTIFY_SOCKET", folder.path("manager"))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut message = [0; 100];
    // With a timeout, a signal that stops and continues this process ends the call (signal(7)).
    let received = loop {
        match manager.recv(&mut message) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            received => break received,
        }
    };
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(&message[..received.unwrap()], b"READY=1\n");
}

#[test]
fn memcacheds_daemon_mode_returns_when_it_serves() {
    let folder = Folder::new("daemon");
    let (ports, pid_file) = (folder.path("ports"), folder.path("pid"));
    let started = Command::new(env!("CARGO_BIN_EXE_keyway"))
        .args([
            "memcached",
            "-d",
            "-m8",
            "-I1m",
            "-p",
            "-1",
            "-l127.0.0.1",
            "-t1",
            "-P",
            &pid_file,
        ])
        .env("MEMCACHED_PORT_FILENAME", &ports)
        .status()
        .unwrap();
    assert_eq!(started.code(), Some(0));
    // All is there when the first process has ended: nothing to wait for.
    let ports = std::fs::read_to_string(&ports).unwrap();
    let port = ports.trim().strip_prefix("TCP INET: ").unwrap_or_else(|| panic!("{ports}"));
    let stream = TcpStream::connect(("127.0.0.1", port.parse().unwrap())).unwrap();
    assert_eq!(ask(stream, "version\r\n", 1), "VERSION 1.6.45\r\n");
    let pid = std::fs::read_to_string(&pid_file).unwrap();
    signal(pid.trim(), "-TERM");
    until("the daemon is gone", || !Path::new(&pid_file).exists());
}

#[test]
fn a_daemon_that_cannot_start_says_so() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let output = keyway(&["memcached", "-d", "-l", "127.0.0.1", "-p", &port, "-e", "memfd"]);
    assert_eq!(output.status.code(), Some(71));
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("cannot listen on tcp"),
        "{output:?}"
    );
}
