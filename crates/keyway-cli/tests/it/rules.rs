//! Rules of a region (the largest item, no eviction, no flushes) as the program sets and obeys them: both command lines, a configuration file, a
//! restart, a take-over, `keyway set`. Enemy: a door with a rule of its own.
//! Guards: P40

use harness::Scratch;
use keyway_cache::{Cache, Options, Place};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

const KEYWAY: &str = env!("CARGO_BIN_EXE_keyway");

/// A server, which is killed at the end.
struct Running(Child, u16);

impl Running {
    /// With these arguments. `port`: one that is free, found by the test.
    fn start(arguments: &[&str], port: u16) -> Self {
        let mut child = Command::new(KEYWAY).args(arguments).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        if arguments[0] == "serve" {
            BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
            assert!(line.contains("ready"), "{line}");
        }
        harness::wait_until("it serves", harness::DEADLINE, || {
            TcpStream::connect(("127.0.0.1", port)).ok()
        });
        Self(child, port)
    }

    /// The last line of each answer to these commands.
    fn ask(&self, request: &[u8]) -> Vec<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.1)).unwrap();
        stream.write_all(request).unwrap();
        stream.write_all(b"quit\r\n").unwrap();
        BufReader::new(stream).lines().map(Result::unwrap).collect()
    }

    /// What `stats settings` says of the rules.
    fn rules(&self) -> [String; 3] {
        let rows = self.ask(b"stats settings\r\n");
        ["item_size_max", "evictions", "flush_enabled"].map(|name| {
            let prefix = format!("STAT {name} ");
            rows.iter().find_map(|row| row.strip_prefix(&prefix)).unwrap().to_owned()
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}

/// Whether `keyway set` stores so many bytes, and what it says.
fn set(region: &Path, len: usize) -> (bool, String) {
    let mut child = Command::new(KEYWAY)
        .args(["set", "--region"])
        .arg(region)
        .arg("key")
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    // It may end without reading all.
    let _ = input.write_all(&vec![b'v'; len]);
    drop(input);
    let output = child.wait_with_output().unwrap();
    (output.status.success(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn a_region_keeps_the_rules_with_which_its_last_server_was_started() {
    let folder = Scratch::new();
    let region = folder.join("region");
    let (path, port) = (region.to_str().unwrap(), free_port());
    let listen = format!("127.0.0.1:{port}");
    let common = ["serve", "--listen", &listen, "--region", path, "-m", "16m"];
    let serve = |more: &[&str]| Running::start(&[&common[..], more].concat(), port);

    let server = serve(&["--max-item", "2m", "--no-evict", "--no-flush"]);
    assert_eq!(server.rules(), ["2097152", "off", "no"]);
    assert_eq!(server.ask(b"flush_all\r\n"), ["CLIENT_ERROR flush_all not allowed"]);
    let program = Cache::open(&Place::Path(region.clone()), &Options::new().item_size_max(4096).evict(true)).unwrap();
    let limits = program.limits();
    assert_eq!((limits.item_size_max, limits.evict, limits.flush), (2 << 20, false, false));
    assert_eq!(set(&region, 1_500_000), (true, String::new()));
    let (stored, why) = set(&region, 3_000_000);
    assert!(!stored && why.contains("2097152") && why.contains("-I"), "{why}");
    assert_eq!(server.ask(b"get key\r\n"), ["END"], "the old value is gone");
    drop(server);

    // One that says nothing, and one that says another thing, beside a program that stays.
    let server = serve(&[]);
    assert_eq!(server.rules(), ["2097152", "off", "no"]);
    drop(server);
    let server = serve(&["--evict", "--flush", "-I", "64k"]);
    assert_eq!(server.rules(), ["65536", "on", "yes"]);
    let mut session = program.session().unwrap();
    assert!(session.set(b"key", &[0; 100_000], 0).is_err());
    drop(server);

    // The file of `serve`, and memcached's command line.
    std::fs::write(folder.join("k.toml"), "max-item = \"128k\"\nno-evict = true\n").unwrap();
    let file = folder.join("k.toml");
    let server = serve(&["--config", file.to_str().unwrap()]);
    assert_eq!(server.rules(), ["131072", "off", "yes"]);
    drop(server);
    let port_text = port.to_string();
    let memcached = [
        "memcached",
        "-u",
        "root",
        "-l",
        "127.0.0.1",
        "-p",
        &port_text,
        "-e",
        path,
        "-m",
        "16",
    ];
    let server = Running::start(&[&memcached[..], &["-I", "1m", "-F", "-o", "evict"]].concat(), port);
    assert_eq!(server.rules(), ["1048576", "on", "no"]);
    assert_eq!(program.limits().item_size_max, 1 << 20);
}

/// Two servers of a region: what the second one is started with holds for the clients of the first, who are connected already.
#[test]
fn a_rule_of_a_later_server_holds_for_the_clients_of_the_earlier_one() {
    let folder = Scratch::new();
    let region = folder.join("region");
    let path = region.to_str().unwrap();
    let serve = |port: u16, more: &[&str]| {
        let listen = format!("127.0.0.1:{port}");
        let common = ["serve", "--listen", &listen, "--region", path, "-m", "16m"];
        Running::start(&[&common[..], more].concat(), port)
    };
    let first = serve(free_port(), &[]);
    let mut stream = TcpStream::connect(("127.0.0.1", first.1)).unwrap();
    let mut answers = BufReader::new(stream.try_clone().unwrap()).lines();
    let mut store = |len: usize| {
        stream.write_all(format!("set key 0 0 {len}\r\n").as_bytes()).unwrap();
        stream.write_all(&vec![b'v'; len]).unwrap();
        stream.write_all(b"\r\n").unwrap();
        answers.next().unwrap().unwrap()
    };
    assert_eq!(store(100_000), "STORED");
    assert_eq!(store(1_500_000), "SERVER_ERROR object too large for cache");
    let second = serve(free_port(), &["-I", "2m"]);
    assert_eq!(store(1_500_000), "STORED");
    assert_eq!(first.rules(), second.rules());
    drop(second);
    let third = serve(free_port(), &["-I", "64k", "--no-evict"]);
    assert_eq!(store(100_000), "SERVER_ERROR object too large for cache");
    assert_eq!(first.ask(b"get key\r\n"), ["END"]);
    assert_eq!(first.rules(), third.rules());
}
