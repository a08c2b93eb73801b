//! `keyway memory` on a region that library processes and clients of a server use at the same time, one of which is killed. Keys are
//! equally likely, so what each size misses is known: the keys that it has no room for. No time is asserted.
//! Guards: P13, P46

use keyway_cache::{Cache, Options, Place};
use serde_json::Value;
use std::collections::HashSet;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use harness::{Random, Scratch, wait_for_ready};

/// Keys, five for each that the region holds, and bytes of their values.
const KEYS: u64 = 200_000;
const VALUE_LEN: usize = 64;
/// Keys of a request.
const TOGETHER: usize = 50;
/// Set in a process that this test starts as a user of the library: seed, region.
const ROLE: &str = "KEYWAY_TEST_ROLE";
/// Of the server's region.
const MEMORY: &str = "4m";

fn key(random: &mut Random) -> String {
    format!("user:{:011}", random.next() % KEYS)
}

/// Not a test: what a process does that the test below has started, until it is killed.
#[test]
fn a_process_with_the_library() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let (seed, place) = role.split_once(' ').unwrap();
    let cache = Cache::open(&Place::at(place), &Options::new()).unwrap();
    let mut session = cache.session().unwrap();
    let mut random = Random::new(seed.parse().unwrap());
    let mut found = Vec::new();
    println!("\nworking");
    loop {
        let key = key(&mut random);
        found.clear();
        if session.get_append(key.as_bytes(), &mut found).unwrap().is_none() {
            session.set(key.as_bytes(), &[b'v'; VALUE_LEN], 0).unwrap();
        }
        rest();
    }
}

/// A process that is killed at the end.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn server(folder: &Path) -> Killed {
    let mut server = Command::new(env!("CARGO_BIN_EXE_keyway"))
        .args([
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--memory",
            MEMORY,
            "--threads",
            "2",
            "--socket",
        ])
        .arg(folder.join("socket"))
        .arg("--region")
        .arg(folder.join("region"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    wait_for_ready(&mut server);
    Killed(server)
}

fn library(folder: &Path, seed: u64) -> Killed {
    let mut process = harness::own_test(&[], module_path!(), "a_process_with_the_library")
        .env(ROLE, format!("{seed} {}", folder.join("region").display()))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(|line| line == "working"));
    Killed(process)
}

/// Asks the server for keys, and sets those that it has not.
fn client(folder: &Path, seed: u64, ends: &AtomicBool) {
    let mut connection = BufReader::new(UnixStream::connect(folder.join("socket")).unwrap());
    let mut random = Random::new(seed);
    while !ends.load(Relaxed) {
        let mut missed: HashSet<String> = (0..TOGETHER).map(|_| key(&mut random)).collect();
        let mut request = "get".to_owned();
        missed.iter().for_each(|key| request.extend([" ", key]));
        request.push_str("\r\n");
        connection.get_mut().write_all(request.as_bytes()).unwrap();
        let mut line = String::new();
        while line != "END\r\n" {
            line.clear();
            assert!(connection.read_line(&mut line).unwrap() > 0);
            if let Some(key) = line.strip_prefix("VALUE ").and_then(|rest| rest.split(' ').next()) {
                missed.remove(key);
            }
        }
        let value = "v".repeat(VALUE_LEN);
        let sets: String = missed
            .iter()
            .map(|key| format!("set {key} 0 0 {VALUE_LEN} noreply\r\n{value}\r\n"))
            .collect();
        connection.get_mut().write_all(sets.as_bytes()).unwrap();
        rest();
    }
}

/// The trail of so small a region is short: what comes too fast is lost, and the estimate coarse.
fn rest() {
    std::thread::sleep(Duration::from_micros(500));
}

fn keyway_memory(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_keyway"))
        .args(["memory", "--region"])
        .arg(folder.join("region"))
        .args(arguments)
        .output()
        .unwrap()
}

fn printed(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn what_all_doors_do_is_predicted_for_other_sizes() {
    let folder = Scratch::new();
    let _server = server(folder.path());
    let text = printed(&keyway_memory(folder.path(), &["--seconds", "1"]));
    assert!(
        text.contains("Too little to say more") && !text.contains("MORE MISSES"),
        "no request yet: {text}"
    );

    let ends = Arc::new(AtomicBool::new(false));
    let clients = [1, 2].map(|seed| {
        let (folder, ends) = (folder.path().to_owned(), Arc::clone(&ends));
        std::thread::spawn(move || client(&folder, seed, &ends))
    });
    let _living = library(folder.path(), 3);
    let killed = library(folder.path(), 4);
    // It ends when it knows enough.
    let asked = Command::new(env!("CARGO_BIN_EXE_keyway"))
        .args(["memory", "--json", "--seconds", "500", "--region"])
        .arg(folder.path().join("region"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    drop(killed);
    let output = asked.wait_with_output().unwrap();
    let json: Value = serde_json::from_str(&printed(&output)).unwrap();
    let cache = Cache::open(&Place::at(folder.path().join("region")), &Options::new()).unwrap();
    let held = cache.counters().curr_items as f64;

    assert_eq!(json["enough"], true, "{json}");
    let seen = json["seen"].as_f64().unwrap();
    assert!(
        (0.8..1.2).contains(&seen),
        "some door's operations are not on the trail: {json}"
    );
    let sizes = json["sizes"].as_array().unwrap();
    let parts: Vec<f64> = sizes.iter().map(|size| size["part"].as_f64().unwrap()).collect();
    assert_eq!(parts, [0.5, 1.0, 2.0, 4.0, 8.0], "2 MiB is the smallest region");
    // A small region has a larger share of what is not for items.
    let room = |memory: u64| {
        let info = Cache::open(&Place::Memfd, &Options::new().memory(memory)).unwrap().info();
        (info.segments * info.segment_bytes) as f64
    };
    let own = room(json["memory_bytes"].as_u64().unwrap());
    for size in sizes {
        let of = |name: &str| size[name].as_f64().unwrap();
        let larger = room(size["memory_bytes"].as_u64().unwrap()) / own;
        let due = (1.0 - larger * held / KEYS as f64).max(0.0);
        let is_full = size["state"] != "filling";
        assert!(is_full || of("part") > 2.0, "{json}");
        // One that is not full yet misses more than it will.
        let far = of("miss_ratio") - due;
        assert!(far.abs() < 0.05 || !is_full && far > 0.0, "{held} items, {due}: {size}");
        assert!(of("error") < 0.07, "{json}");
    }
    assert!(sizes.is_sorted_by(|a, b| a["miss_ratio"].as_f64() > b["miss_ratio"].as_f64()));

    let text = printed(&keyway_memory(folder.path(), &["--seconds", "2"]));
    assert!(text.contains("MORE MISSES") && text.contains("1/2"), "{text}");
    assert!(
        text.contains("With half the memory there would be") && text.contains("items were evicted"),
        "{text}"
    );
    ends.store(true, Relaxed);
    clients.into_iter().for_each(|client| client.join().unwrap());
}
