//! `lab reproduce` from outside: every preset without root in a short form, with every row of the paper's table; peers that go wrong; and the
//! generators of the lab beside a server.
//! Guards: P52

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use keyway_bench::caches::Side;
use keyway_bench::plan::{Against, Cell, Door, Plan};
use keyway_bench::run::Operations;
use keyway_bench::servers::{Server, Settings};
use keyway_bench::workloads;
use lab::peak::peak;
use serde_json::Value;

/// Longest that anything here may take; nothing takes nearly as long.
const PATIENCE: Duration = Duration::from_secs(600);

/// Runs a preset with these options, once, and fails instead of waiting forever.
fn reproduce(preset: &str, options: &str, memcached: Option<&str>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lab"));
    command.env("KEYWAY_BIN", harness::keyway_binary());
    command.args(["reproduce", preset, "--repeat", "1", "--json", "-"]);
    command.args(options.split_whitespace());
    if let Some(memcached) = memcached {
        command.env("KEYWAY_MEMCACHED", memcached);
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A pipe holds less than a report.
    let drain = |mut pipe: Box<dyn Read + Send>| {
        std::thread::spawn(move || {
            let mut all = Vec::new();
            pipe.read_to_end(&mut all).map(|_| all)
        })
    };
    let stdout = drain(Box::new(child.stdout.take().unwrap()));
    let stderr = drain(Box::new(child.stderr.take().unwrap()));
    let until = Instant::now() + PATIENCE;
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None if Instant::now() > until => {
                let _ = child.kill();
                panic!("it hangs: {}", String::from_utf8_lossy(&stderr.join().unwrap().unwrap()));
            }
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    let [stdout, stderr] = [stdout, stderr].map(|pipe| pipe.join().unwrap().unwrap());
    Output { status, stdout, stderr }
}

fn told(output: &Output) -> String {
    format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr))
}

fn report(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", told(output)))
}

/// The papers' tables of a run in which nothing went wrong. `None`: memcached is not installed, which is said.
fn tables(preset: &str, options: &str) -> Option<Vec<Value>> {
    run(preset, &format!("{options} --seconds 0.04"))
}

fn run(preset: &str, options: &str) -> Option<Vec<Value>> {
    let output = reproduce(preset, options, None);
    assert_eq!(output.status.code(), Some(0), "{}", told(&output));
    let report = report(&output);
    if report["notes"].to_string().contains("memcached is not installed") {
        harness::skip(preset, "memcached is not installed");
        return None;
    }
    let tables = report["papers"].as_array().unwrap().clone();
    for table in &tables {
        assert_eq!(table["preset"], preset);
    }
    Some(tables)
}

fn titled<'a>(tables: &'a [Value], title: &str) -> &'a Value {
    let mut found = tables.iter().filter(|table| table["title"].as_str().unwrap().contains(title));
    found.next().unwrap_or_else(|| panic!("no table \"{title}\" in {tables:#?}"))
}

/// The row of this name, which must have both sides here and the paper's ratio.
fn compared<'a>(table: &'a Value, name: &str) -> &'a Value {
    let row = both_sides(table, name);
    for figure in ["paper_ratio", "ratio_of_ratios"] {
        assert!(row[figure].as_f64() > Some(0.0), "{figure} of {row:#}");
    }
    row
}

/// The row of this name, which must have both sides here.
fn both_sides<'a>(table: &'a Value, name: &str) -> &'a Value {
    let mut rows = table["rows"].as_array().unwrap().iter();
    let row = rows
        .find(|row| row["name"] == name)
        .unwrap_or_else(|| panic!("no {name} in {table:#}"));
    for figure in ["keyway", "peer", "ratio"] {
        assert!(row[figure].as_f64() > Some(0.0), "{figure} of {row:#}");
    }
    row
}

#[test]
fn latencies_of_the_protected_library() {
    let Some(tables) = tables("hodor-fig5", "--items 200") else {
        return;
    };
    let table = titled(&tables, "mean, client and memcached on one CPU");
    for (name, peer, systems) in [
        ("get 128 B", 13.0, [0.67, 0.64]),
        ("get 5 KB", 13.0, [0.67, 0.64]),
        ("set 128 B", 13.0, [1.2, 1.2]),
        ("set 5 KB", 17.0, [1.5, 1.5]),
        ("delete", 10.0, [0.21, 0.18]),
        ("increment", 54.0, [1.6, 1.5]),
    ] {
        let row = compared(table, &format!("{name}, library"));
        assert_eq!((row["unit"].as_str(), row["paper_peer"].as_f64()), (Some("µs"), Some(peer)));
        assert!(systems.contains(&row["paper_system"].as_f64().unwrap()), "{row:#}");
    }
    assert!(table["differs"].as_array().unwrap().len() >= 4, "{table:#}");
    let places = std::thread::available_parallelism().unwrap().get().min(2);
    assert_eq!(tables.len(), 3 * places, "mean, p50 and p99 for each place of the server");
}

#[test]
fn throughput_of_the_protected_library() {
    let Some(tables) = tables("hodor-fig6-9", "--items 300") else {
        return;
    };
    assert_eq!(tables.len(), 4);
    for title in ["128 B, 95 %", "128 B, 50 %", "5 KB, 95 %", "5 KB, 50 %"] {
        let table = titled(&tables, title);
        assert_eq!(compared(table, "threads: best")["paper_ratio"], 3.0);
        for callers in [1, 2, 4, 8] {
            both_sides(table, &format!("threads: {callers}"));
        }
    }
}

#[test]
fn durable_mode_beside_pmemcached() {
    let Some(tables) = tables("pmemcached-fig1", "--items 200") else {
        return;
    };
    assert_eq!(tables.len(), 1);
    for (workload, many) in [("A", 0.5), ("B", 0.875), ("C", 0.875), ("F", 0.5)] {
        let one = compared(&tables[0], &format!("YCSB {workload}, 1 thread"));
        assert_eq!(one["paper_ratio"], 0.5, "{one:#}");
        if std::thread::available_parallelism().unwrap().get() > 1 {
            let row = compared(&tables[0], &format!("YCSB {workload}, 2 threads"));
            assert_eq!(row["paper_ratio"], many, "{row:#}");
        }
    }
}

#[test]
fn what_a_restart_leaves() {
    let Some(tables) = tables("pmemcached-restart", "--items 60000") else {
        return;
    };
    let hits = |name: &str, side: &str| {
        let mut rows = titled(&tables, "before and after")["rows"].as_array().unwrap().iter();
        rows.find(|row| row["name"] == name).unwrap()[side].as_f64().unwrap()
    };
    for (end, memcached_is_warm) in [("SIGKILL", false), ("an orderly end", true)] {
        let lost = |side: &str| hits(&format!("hits before {end}"), side) - hits(&format!("hits after {end}"), side);
        assert!(lost("keyway").abs() < 3.0, "{end}: Keyway lost {}", lost("keyway"));
        assert_eq!(
            lost("peer") < 5.0,
            memcached_is_warm,
            "{end}: memcached lost {}",
            lost("peer")
        );
    }
}

/// A program that stands in for memcached.
struct Script(PathBuf);

impl Script {
    fn new(name: &str, line: &str) -> Self {
        let path = std::env::temp_dir().join(format!("keyway-reproduce-{name}-{}", std::process::id()));
        std::fs::write(&path, format!("#!/bin/sh\n{line}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        Self(path)
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn a_peer_that_does_not_start_or_dies_is_an_error() {
    let output = reproduce("hodor-fig5", "--seconds 0.01 --items 200", Some("/bin/false"));
    assert_eq!(output.status.code(), Some(71), "{}", told(&output));
    assert!(told(&output).contains("ended at once"), "{}", told(&output));

    if harness::memcached_binary().is_none() {
        return harness::skip("a memcached that dies", "memcached is not installed");
    }
    let mortal = Script::new("mortal", "(sleep 2; kill -9 $$) & exec memcached \"$@\"");
    let output = reproduce("hodor-fig5", "--seconds 3 --warmup 0.1 --items 200", mortal.0.to_str());
    match output.status.code() {
        Some(1) => assert!(report(&output)["failures"][0].as_str().is_some(), "{}", told(&output)),
        // On a busy machine it may not live until it serves.
        code => assert_eq!(code, Some(71), "{}", told(&output)),
    }
}

#[test]
fn what_cannot_be_reproduced_is_refused() {
    for (options, words) in [
        ("--against 127.0.0.1:1", "none"),
        ("--scale medium", "small and full"),
        ("--client-cpus 4000", "there is no CPU 4000"),
    ] {
        let output = reproduce("hodor-fig5", options, None);
        assert!(told(&output).contains(words), "{options}: {}", told(&output));
        assert_eq!(output.status.code(), Some(64), "{options}");
    }
    let output = reproduce("hodor-fig4", "", None);
    assert!(told(&output).contains("hodor-fig5"), "{}", told(&output));
}

/// A server of Keyway's, one connection to it over TCP, and a plan for both.
fn served() -> (Server, Plan) {
    let server = Server::keyway(harness::keyway_binary(), &Settings::default()).unwrap();
    let cell = Cell::new(workloads::find("get-128b").unwrap(), 1000, Door::Tcp, 1);
    let program = harness::keyway_binary().to_path_buf();
    let mut plan = Plan::new(program, vec![cell], Duration::from_millis(100), 1);
    plan.against = Against::Nothing;
    (server, plan)
}

#[test]
fn the_highest_rate_under_a_limit_is_found_and_none_where_none_keeps_it() {
    let (server, plan) = served();
    let side = Side::of_server("Keyway", &server, Door::Tcp).unwrap();
    let cell = &plan.cells[0];
    let search = |us| peak(&plan, cell, &side, &Operations::new(cell), 0, us).unwrap();
    // No server answers within a nanosecond, and every one within ten minutes.
    assert_eq!(search(0.001).operations, 0);
    assert!(search(6e8).operations > 0);
}

#[test]
fn an_idle_connection_has_a_size() {
    let (server, plan) = served();
    let side = Side::of_server("Keyway", &server, Door::Tcp).unwrap();
    side.prepare(&plan.cells[0], &plan.cells[0].workload.items(1000)).unwrap();
    let bytes = lab::idle::bytes_per_connection(&side, 900).unwrap().unwrap();
    // A connection takes more than a descriptor and less than a buffer; some find memory that was used before.
    assert!(bytes > 20.0 && bytes < 8192.0, "{bytes}");
}
