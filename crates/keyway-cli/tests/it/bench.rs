//! `keyway bench` from outside: what it says of servers that lie, hang up, die or pause, and that a first picture is taken
//! anywhere.
//!
//! [`Fake`] stands in for servers that go wrong; the others are real ones.
//! Guards: P52

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicI64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use harness::{Kind, ServeOptions, Server, skip, wait_for_ready};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// Longest that anything here may take; nothing takes nearly as long.
const PATIENCE: Duration = Duration::from_secs(120);

fn bench(arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_keyway"));
    command.arg("bench").args(arguments.split_whitespace());
    if !arguments.contains("--items") {
        command.args(["--items", "1000"]);
    }
    command.args(["--repeat", "1", "--json", "-"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Waits for the end, and fails instead of waiting forever.
fn finish(mut child: Child) -> Output {
    let stdout = drain(child.stdout.take().unwrap());
    let stderr = drain(child.stderr.take().unwrap());
    let until = Instant::now() + PATIENCE;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if Instant::now() > until {
            let _ = child.kill();
            panic!("it hangs: {}", String::from_utf8_lossy(&stderr.join().unwrap()));
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let (stdout, stderr) = (stdout.join().unwrap(), stderr.join().unwrap());
    Output { status, stdout, stderr }
}

/// Reads all of it meanwhile: a pipe holds less than a report.
fn drain(mut pipe: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut all = Vec::new();
        pipe.read_to_end(&mut all).unwrap();
        all
    })
}

fn told(output: &Output) -> String {
    format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr))
}

fn report(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", told(output)))
}

/// Exit code 1, and a report whose only run counts what went wrong under `counter`. Gives the failure in words.
fn failed(output: &Output, counter: &str) -> String {
    assert_eq!(output.status.code(), Some(1), "{}", told(output));
    let report = report(output);
    let run = &report["cells"][0]["sides"][0]["runs"][0];
    assert!(run[counter].as_u64() > Some(0), "{counter} in {run:#}");
    let failure = report["failures"][0].as_str().unwrap().to_owned();
    assert!(told(output).contains(&failure), "{}", told(output));
    failure
}

/// What a fake server does wrong once it has answered its quota of gets.
#[derive(Clone, Copy)]
enum Fault {
    None,
    /// flips a bit in the middle of a value
    WrongValue,
    /// answers with another key's value
    OtherValue,
    HangUp,
    Error,
    /// says nothing for [`PAUSE`], once
    Pause,
}

/// As much of memcached as the client speaks to, with a fault.
struct Fake;

impl Fake {
    /// Serves until the test ends; `quota` gets are answered as they should be.
    fn start(fault: Fault, quota: i64) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let items = Arc::new(Mutex::new(HashMap::new()));
        let left = Arc::new(AtomicI64::new(quota));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (items, left) = (Arc::clone(&items), Arc::clone(&left));
                std::thread::spawn(move || Self::serve(stream.unwrap(), fault, &items, &left));
            }
        });
        address
    }

    fn serve(stream: TcpStream, fault: Fault, items: &Mutex<HashMap<String, Vec<u8>>>, left: &AtomicI64) -> Option<()> {
        stream.set_nodelay(true).unwrap();
        let (mut input, mut output) = (BufReader::new(stream.try_clone().unwrap()), stream);
        loop {
            let mut line = String::new();
            input.read_line(&mut line).ok().filter(|&n| n > 0)?;
            let words: Vec<&str> = line.split_whitespace().collect();
            let reply = match words.as_slice() {
                ["set", key, _, _, len, rest @ ..] => {
                    let mut value = vec![0; len.parse::<usize>().unwrap() + 2];
                    input.read_exact(&mut value).ok()?;
                    value.truncate(value.len() - 2);
                    items.lock().unwrap().insert((*key).to_owned(), value);
                    if rest.is_empty() { b"STORED\r\n".to_vec() } else { Vec::new() }
                }
                ["get", key] => {
                    let answered = left.fetch_sub(1, SeqCst);
                    let faulty = answered <= 0;
                    let items = items.lock().unwrap();
                    if answered == 0 && matches!(fault, Fault::Pause) {
                        std::thread::sleep(PAUSE);
                    }
                    let mut value = items.get(*key).cloned().unwrap();
                    match fault {
                        Fault::WrongValue if faulty => {
                            let middle = value.len() / 2;
                            value[middle] ^= 1;
                        }
                        Fault::OtherValue if faulty => value.clone_from(items.iter().find(|(other, _)| other != key).unwrap().1),
                        Fault::HangUp if faulty => return None,
                        _ => {}
                    }
                    if faulty && matches!(fault, Fault::Error) {
                        b"SERVER_ERROR out of memory\r\n".to_vec()
                    } else {
                        let head = format!("VALUE {key} 0 {}\r\n", value.len());
                        [head.as_bytes(), &value, b"\r\nEND\r\n"].concat()
                    }
                }
                ["version"] => b"VERSION fake\r\n".to_vec(),
                ["stats"] => b"END\r\n".to_vec(),
                other => panic!("{other:?}"),
            };
            output.write_all(&reply).ok()?;
        }
    }
}

/// The first get is answered as it should be, and the others are not: each of the two connections asks at once, so there is a second one however busy
/// the machine is.
fn against_fake(fault: Fault, pace: &str) -> Output {
    let address = Fake::start(fault, 1);
    let line = format!("--workload get-128b --door tcp --connections 2 --seconds 0.5 --against none --server {address} {pace}");
    finish(bench(&line).spawn().unwrap())
}

#[test]
fn a_sound_server_has_no_failures() {
    for pace in ["", "--rate 2000"] {
        let output = against_fake(Fault::None, pace);
        assert_eq!(output.status.code(), Some(0), "{}", told(&output));
        assert_eq!(report(&output)["failures"].as_array().map(Vec::len), Some(0));
    }
}

#[test]
fn a_wrong_value_fails_the_run() {
    for fault in [Fault::WrongValue, Fault::OtherValue] {
        for pace in ["", "--rate 2000", "--pipeline 4"] {
            let failure = failed(&against_fake(fault, pace), "wrong_values");
            assert!(failure.contains("never written to it"), "{failure}");
        }
    }
}

#[test]
fn a_lost_connection_and_an_error_fail_the_run() {
    for pace in ["", "--rate 2000"] {
        let failure = failed(&against_fake(Fault::HangUp, pace), "connections_lost");
        assert!(failure.contains("the server closed it"), "{failure}");
        let failure = failed(&against_fake(Fault::Error, pace), "errors");
        assert!(failure.contains("SERVER_ERROR out of memory"), "{failure}");
    }
}

/// `keyway serve`, killed at the end if it still runs.
struct Serving {
    child: Child,
    address: SocketAddr,
}

impl Serving {
    fn start() -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let mut child = Command::new(env!("CARGO_BIN_EXE_keyway"))
            .args(["serve", "--listen", &address.to_string(), "--udp", &address.to_string()])
            .args(["--region", "memfd", "--threads", "1"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        wait_for_ready(&mut child);
        Self { child, address }
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().try_into().unwrap()), signal).unwrap();
    }

    /// A number of `stats`.
    fn stat(&self, name: &str) -> u64 {
        let mut connection = TcpStream::connect(self.address).unwrap();
        connection.write_all(b"stats\r\n").unwrap();
        let mut lines = BufReader::new(connection)
            .lines()
            .map(Result::unwrap)
            .take_while(|line| line != "END");
        let start = format!("STAT {name} ");
        lines.find_map(|line| line.strip_prefix(&start)?.parse().ok()).unwrap()
    }

    /// Waits until it has answered so many gets.
    fn wait_for_gets(&self, count: u64) {
        let until = Instant::now() + PATIENCE;
        loop {
            let gets = self.stat("cmd_get");
            if gets >= count {
                return;
            }
            assert!(Instant::now() < until, "{gets} gets");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_server_that_dies_in_mid_run_ends_it() {
    for way in ["--door tcp", "--door tcp --rate 3000", "--door udp", "--door udp --rate 3000"] {
        let server = Serving::start();
        let line = format!(
            "--workload get-128b --connections 4 --seconds 60 --warmup 0.1 --patience 2 --against none --server {} {way}",
            server.address
        );
        let (child, begun) = (bench(&line).spawn().unwrap(), Instant::now());
        server.wait_for_gets(1000);
        server.signal(Signal::SIGKILL);
        let failure = failed(&finish(child), "connections_lost");
        assert!(failure.contains("connections lost"), "{failure}");
        assert!(
            begun.elapsed() < Duration::from_secs(59),
            "{way}: the run went on without a server"
        );
    }
}

#[test]
fn a_server_that_falls_silent_is_not_waited_for() {
    for way in ["--door tcp", "--door tcp --rate 3000", "--door udp"] {
        let server = Serving::start();
        let line = format!(
            "--workload get-128b --connections 4 --seconds 60 --warmup 0.1 --patience 2 --against none --server {} {way}",
            server.address
        );
        let child = bench(&line).spawn().unwrap();
        server.wait_for_gets(1000);
        server.signal(Signal::SIGSTOP);
        let failure = failed(&finish(child), "connections_lost");
        assert!(failure.contains("no answer for 2s"), "{failure}");
    }
}

/// How long the made-up server pauses, with all its connections.
const PAUSE: Duration = Duration::from_millis(200);

/// A run with one pause of the server in it: the distribution of latencies. The server pauses at a get that is due amid the run.
fn with_pause(pace: &str, gets_before: i64) -> Vec<(f64, f64)> {
    let address = Fake::start(Fault::Pause, gets_before);
    let line = format!(
        "--workload get-128b --door tcp --connections 8 --seconds {PAUSED_S} --warmup 0.5 --against none --server {address} {pace}"
    );
    let output = finish(bench(&line).spawn().unwrap());
    assert_eq!(output.status.code(), Some(0), "{}", told(&output));
    let side = &report(&output)["cells"][0]["sides"][0];
    let pairs = side["latency_us"].as_array().unwrap().iter();
    pairs
        .map(|pair| (pair[0].as_f64().unwrap(), pair[1].as_f64().unwrap()))
        .collect()
}

const PAUSED_S: f64 = 2.0;

fn percentile(distribution: &[(f64, f64)], percent: f64) -> f64 {
    distribution.iter().find(|(p, _)| (*p - percent).abs() < 1e-9).unwrap().1
}

/// In a run of T seconds with a pause of d, every request that is due in the pause waits until its end: the share (d - x) / T waits for more
/// than x, so the percentile 100 p is at least d - (1 - p) T. A client that waits for answers before it sends more does not see that.
#[test]
fn a_pause_shows_in_the_percentiles_of_an_open_loop_as_theory_says() {
    let rate = 2000;
    // Due 1.1 s after the beginning, 0.6 s after that of what counts.
    let open = with_pause(&format!("--rate {rate}"), rate * 11 / 10);
    println!("percentiles, µs: {open:?}");
    for percent in [95.0, 98.0, 99.0, 99.5] {
        let theory_us = (PAUSE.as_secs_f64() - (1.0 - percent / 100.0) * PAUSED_S) * 1e6;
        let measured_us = percentile(&open, percent);
        // The draw of a Poisson process of 4,000. A busy machine only adds to it.
        assert!(
            measured_us > theory_us - 25_000.0,
            "p{percent}: {measured_us} µs, theory {theory_us}"
        );
    }
    // The closed loop is the client that must not pass: of all its requests, eight have waited.
    let closed = with_pause("", 200);
    println!("closed loop: {closed:?}");
    assert!(percentile(&closed, 95.0) < percentile(&open, 95.0), "{closed:?}");
}

#[test]
fn a_first_picture_is_taken_with_memcached_and_without() {
    for name in ["", "memcached"] {
        let mut command = bench("--quick --seconds 0.05");
        if name.is_empty() {
            command.env("KEYWAY_MEMCACHED", "");
        } else if Command::new("memcached").arg("-V").output().is_err() {
            assert!(
                std::env::var_os("KEYWAY_TESTS_REQUIRE_ALL").is_none(),
                "memcached is not installed"
            );
            println!("SKIP: memcached is not installed");
            continue;
        }
        let output = finish(command.spawn().unwrap());
        assert_eq!(output.status.code(), Some(0), "{}", told(&output));
        let report = report(&output);
        for door in ["library, 1 thread", "unix, 16", "tcp, 16", "udp, 16"] {
            let row = report["rows"].as_array().unwrap().iter().find(|row| {
                let name = row["name"].as_str().unwrap();
                name.contains(door) && row["figure"] == "throughput"
            });
            let row = row.unwrap_or_else(|| panic!("{door} in {report:#}"));
            assert!(row["keyway"].as_f64() > Some(0.0), "{row:#}");
            assert_eq!(row["unit"], "k/s");
            assert_eq!(
                row["ratio"].is_number() && row["peer"].is_number(),
                !name.is_empty(),
                "{row:#}"
            );
        }
        let notes = report["notes"].to_string();
        assert_eq!(notes.contains("memcached is not installed"), name.is_empty(), "{notes}");
    }
}

#[test]
fn every_workload_runs_through_every_door_that_has_it() {
    let list = Command::new(env!("CARGO_BIN_EXE_keyway"))
        .args(["bench", "--list"])
        .output()
        .unwrap();
    let list = String::from_utf8(list.stdout).unwrap();
    let names: Vec<&str> = list.lines().map(|line| line.split_once(' ').unwrap().0).collect();
    assert!(names.len() > 20, "{list}");
    for door in ["library", "tcp", "udp"] {
        let names: Vec<&str> = names
            .iter()
            .copied()
            .filter(|name| door != "udp" || *name != "set-100k")
            .collect();
        let line = format!(
            "--workload {} --door {door} --connections 2 --items 2000 --seconds 0.05 --warmup 0.02 --against none",
            names.join(",")
        );
        let output = finish(bench(&line).spawn().unwrap());
        assert_eq!(output.status.code(), Some(0), "{}", told(&output));
        let report = report(&output);
        assert_eq!(report["cells"].as_array().unwrap().len(), names.len());
        for cell in report["cells"].as_array().unwrap() {
            assert!(cell["sides"][0]["runs"][0]["operations"].as_u64() > Some(0), "{cell:#}");
        }
    }
}

#[test]
fn the_kernel_door_is_measured_on_tcp_where_it_is_there() {
    let line = "--workload get-128b --items 100 --connections 2 --seconds 1 --against none --door";
    let server = Server::start(Kind::Keyway, &ServeOptions::default());
    let output = finish(
        bench(&format!("{line} kernel-tcp --server {}", server.address()))
            .spawn()
            .unwrap(),
    );
    assert!(
        told(&output).contains("has no kernel door: start it with --kernel"),
        "{}",
        told(&output)
    );
    drop(server);
    if !nix::unistd::geteuid().is_root() {
        return skip(
            "bench through the kernel door on TCP",
            "this is not root, which may load its programs",
        );
    }
    // A run in which the kernel answers nothing fails.
    let report = run(&format!("{line} tcp,kernel-tcp"));
    for door in ["tcp", "kernel-tcp"] {
        assert!(figure(&report, &format!(", {door}"), "throughput") > 0.0, "{report:#}");
    }
}

fn run(arguments: &str) -> Value {
    let output = finish(bench(arguments).spawn().unwrap());
    assert_eq!(output.status.code(), Some(0), "{}", told(&output));
    report(&output)
}

fn figure(report: &Value, cell: &str, figure: &str) -> f64 {
    let rows = report["rows"].as_array().unwrap().iter();
    let mut found = rows.filter(|row| row["name"].as_str().unwrap().contains(cell) && row["figure"] == figure);
    let row = found.next().unwrap_or_else(|| panic!("no {figure} of {cell} in {report:#}"));
    row["keyway"].as_f64().unwrap()
}

#[test]
fn more_memory_misses_less_and_what_was_missed_is_stored() {
    for door in ["library", "tcp"] {
        let line = format!(
            "--workload ycsb-c --value-size 500 --items 60000 --fill --memory 4m,16m --door {door} --connections 1 --seconds 0.5 --against none"
        );
        let report = run(&line);
        let [small, large] = ["4 MiB", "16 MiB"].map(|memory| figure(&report, memory, "gets that missed"));
        let [few, many] = ["4 MiB", "16 MiB"].map(|memory| figure(&report, memory, "items held"));
        println!("{door}: {small} % missed with {few} items, {large} % with {many}");
        assert!(
            large < small && few < many,
            "{small} % with {few} items, {large} % with {many}"
        );
    }
}

#[test]
fn a_report_is_written_to_the_files_that_are_asked_for() {
    let folder = std::env::temp_dir().join(format!("keyway-bench-files-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let [json, page] = ["report.json", "page.html"].map(|name| folder.join(name));
    let mut command = Command::new(env!("CARGO_BIN_EXE_keyway"));
    command.args(["bench", "--workload", "get-128b", "--door", "library", "--connections", "1"]);
    command.args([
        "--items",
        "1000",
        "--seconds",
        "0.1",
        "--repeat",
        "2",
        "--against",
        "none",
        "--json",
    ]);
    command.arg(&json).arg("--html").arg(&page);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let run = finish(command.spawn().unwrap());
    assert_eq!(run.status.code(), Some(0), "{}", told(&run));
    let shown = String::from_utf8_lossy(&run.stdout);
    assert!(shown.contains("get-128b, library, 1 thread"), "{shown}");
    let text = std::fs::read_to_string(page).unwrap();
    assert!(
        text.contains("gets of 128 B: in process") && text.ends_with("</html>"),
        "{text}"
    );
    let report: Value = serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    assert!(figure(&report, "get-128b, library, 1 thread", "throughput") > 0.0);
    std::fs::remove_dir_all(folder).unwrap();
    let refused = finish(bench("--html /nowhere/page.html").spawn().unwrap());
    assert_eq!(refused.status.code(), Some(71), "{}", told(&refused));
    assert!(
        told(&refused).contains("cannot write /nowhere/page.html"),
        "{}",
        told(&refused)
    );
}

#[test]
fn many_keys_and_large_values_are_verified_too() {
    let line = "--workload get-128b --door unix,udp --connections 3 --multiget 1,16,100 --seconds 0.1 --against none";
    let report = run(line);
    assert_eq!(report["cells"].as_array().map(Vec::len), Some(6));
    assert!(figure(&report, "gets of 100 keys", "throughput") > 0.0);
    let report = run(
        "--workload ycsb-a --value-size 10k,1500000 --items 100 --door library,tcp --connections 2 --seconds 0.2 --against none",
    );
    assert!(figure(&report, "1500000 B, tcp", "throughput") > 0.0);
}

#[test]
fn what_cannot_be_measured_is_refused_with_the_reason() {
    for (line, words, code) in [
        ("--workload ycsb-e --door tcp", "no memcached protocol has", 64),
        ("--door udp --workload set-100k", "cannot be stored with one datagram", 64),
        ("--door library --pipeline 4", "neither pipelining", 64),
        ("--door tcp --server 127.0.0.1:1 --against none", "onnection refused", 71),
        ("--door unix --server 127.0.0.1:1", "no address of this door", 64),
        ("--door tcp --client-cpus 4000", "there is no CPU 4000", 64),
    ] {
        let output = finish(bench(line).spawn().unwrap());
        assert!(told(&output).contains(words), "{line}: {}", told(&output));
        assert_eq!(output.status.code(), Some(code), "{line}");
    }
}
