//! The page of a report, as a browser shows it: every plot that the report has the data of, nothing that overlaps, sticks out or is
//! asked for elsewhere, wide and narrow, light and dark; and pages that are broken in one thing each, which this must notice.
//!
//! The pictures are left in the folder for tests' files, for people.
//! Guards: P52

use std::path::{Path, PathBuf};

use browser::{Appearance, Browser, Picture};
use keyway_bench::compare::{Comparison, THRESHOLD_PERCENT};
use keyway_bench::html;
use keyway_bench::report::Report;
use serde_json::{Value, json};

const MEASURE: &str = include_str!("page.js");

const LOOKS: [Appearance; 4] = [
    Appearance {
        width: 1280,
        dark: false,
    },
    Appearance { width: 1280, dark: true },
    Appearance { width: 390, dark: false },
    Appearance { width: 390, dark: true },
];

/// What a text in a plot is at least high on the screen, pixels: smaller is not readable.
const TEXT_HEIGHT_MIN: f64 = 10.0;

/// Text that would do something, if it were not escaped.
const HOSTILE: &str = "<script>document.title='x'</script>\"'&<img src=x onerror=alert(1)>";

/// A report's cell, measured three times on each side, and its rows.
struct Cell {
    value: Value,
    rates: Vec<f64>,
    latency_us: f64,
}

/// What the page calls a workload.
fn about(workload: &str) -> &str {
    if workload == "128b-95" { "128 B, 95 % gets" } else { workload }
}

fn cell(workload: &str, door: &str, connections: u32, rates: &[f64], latency_us: f64) -> Cell {
    let side = |(at, rate): (usize, &f64)| {
        let latency = |percent: &f64| {
            json!([
                percent,
                latency_us * (1.0 + f64::from(u32::try_from(at).unwrap())) * (1.0 - percent / 100.5).powf(-0.6)
            ])
        };
        let run = |factor: f64| {
            json!({ "rate": rate * factor, "operations": 1000, "hits": 900, "misses": 0, "unanswered": 0,
                "wrong_values": 0, "errors": 0, "connections_lost": 0 })
        };
        let name = ["Keyway", "memcached"][at];
        let percents = [0.0, 1.0, 10.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.99, 100.0];
        let latencies: Vec<Value> = percents.iter().map(latency).collect();
        let way = match (door, at) {
            ("library", 0) => "in process",
            ("library", _) => "over a Unix socket",
            _ => "over TCP",
        };
        json!({ "name": name, "way": way, "bytes_per_item": 200.0, "items_held": 900, "runs": vec![run(0.9), run(1.0), run(1.15)],
            "latency_us": latencies })
    };
    let value = json!({ "name": format!("{workload}, {door}, {connections} connections"), "about": about(workload), "workload": workload, "operation": "a get of 128 B",
        "door": door, "connections": connections, "pipeline": 1, "multiget": 1, "rate": null,
        "items": 100_000, "memory_limited": false, "memory_mib": 64, "sides": rates.iter().enumerate().map(side).collect::<Vec<_>>() });
    Cell {
        value,
        rates: rates.to_vec(),
        latency_us,
    }
}

impl Cell {
    fn with(mut self, field: &str, value: impl Into<Value>) -> Self {
        let value = value.into();
        self.value["name"] = format!("{}, {field} {value}", self.value["name"].as_str().unwrap()).into();
        self.value[field] = value;
        self
    }

    /// In each run of a side: this many of a kind.
    fn counted(mut self, side: usize, what: &str, count: u32) -> Self {
        for run in self.value["sides"][side]["runs"].as_array_mut().unwrap() {
            run[what] = count.into();
        }
        self
    }

    fn rows(&self) -> Vec<Value> {
        let row = |figure: &str, unit: &str, better: &str, values: &[f64]| {
            let peer = values.get(1);
            json!({ "name": format!("{}: {figure}", self.value["name"].as_str().unwrap()), "cell": self.value["name"], "figure": figure,
                "unit": unit, "digits": 2, "better": better,
                "keyway": values[0], "keyway_low": values[0] * 0.9, "keyway_high": values[0] * 1.15,
                "peer": peer, "peer_low": peer.map(|v| v * 0.8), "peer_high": peer.map(|v| v * 1.1),
                "ratio": peer.map(|v| values[0] / v), "ratio_low": peer.map(|v| values[0] / v * 0.8), "ratio_high": peer.map(|v| values[0] / v * 1.2) })
        };
        let latency = |factor: f64| -> Vec<f64> {
            (1..=self.rates.len())
                .map(|at| self.latency_us * factor * if at == 1 { 1.0 } else { 2.0 })
                .collect()
        };
        vec![
            row(
                "throughput",
                "k/s",
                "higher",
                &self.rates.iter().map(|rate| rate / 1e3).collect::<Vec<_>>(),
            ),
            row("latency, mean", "µs", "lower", &latency(1.0)),
            row("latency, p50", "µs", "lower", &latency(1.5)),
            row("latency, p99", "µs", "lower", &latency(9.0)),
        ]
    }
}

/// With something for every plot.
fn everything() -> Vec<Cell> {
    let mut cells = Vec::new();
    for (connections, rates) in [
        (1, [40e3, 35e3]),
        (4, [110e3, 98e3]),
        (16, [230e3, 200e3]),
        (64, [260e3, 223e3]),
    ] {
        cells.push(cell("128b-95", "tcp", connections, &rates, 20.0));
    }
    cells.push(cell("128b-95", "tcp", 16, &[2.2e6, 1.3e6], 80.0).with("pipeline", 16));
    for (share, latency_us) in [(10, 30.0), (50, 45.0), (90, 300.0), (110, 20_000.0)] {
        let rate = 2000.0 * f64::from(share);
        let paced = cell("128b-95", "tcp", 16, &[rate, rate], latency_us).with("rate", rate);
        cells.push(if share > 100 {
            paced.counted(0, "unanswered", 9)
        } else {
            paced
        });
    }
    for (memory, misses) in [(64, 400), (128, 200), (256, 50)] {
        let limited = cell("etc", "unix", 4, &[300e3, 250e3], 12.0)
            .with("memory_mib", memory)
            .with("memory_limited", true);
        cells.push(limited.counted(0, "misses", misses).counted(1, "misses", misses * 2));
    }
    cells.push(cell("128b-95", "library", 1, &[4e6, 1e5], 0.08));
    cells.push(cell("etc", "library", 2, &[2e6, 1e5], 0.3));
    cells.push(cell(HOSTILE, "library", 1, &[4e6], 0.15));
    cells
}

fn report(cells: &[Cell]) -> Report {
    let value = json!({ "keyway_bench": 1, "version": "0.1.0", "begun_unix_s": 1_800_000_000, "machine": "2 x A Processor, Linux 6.18, load 0.1",
        "command": format!("keyway bench --html page.html {HOSTILE}"), "conditions": "3 measurements of 1s each",
        "measured": [{ "name": "Keyway", "about": "0.1.0, serve --threads 2" }, { "name": "memcached", "about": "1.6.18, -t 2 -m 64" }],
        "rows": cells.iter().flat_map(Cell::rows).collect::<Vec<_>>(), "cells": cells.iter().map(|cell| cell.value.clone()).collect::<Vec<_>>(),
        "notes": [HOSTILE], "failures": [] });
    Report::from_json(&value.to_string()).unwrap()
}

/// The page as the browser shows it: what was measured in it, its picture, and what is wrong with it.
fn look_at(browser: &mut Browser, page: &str, name: &str, look: Appearance) -> (Value, Picture, Vec<String>) {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let file = folder.join(format!("page-{name}.html"));
    std::fs::write(&file, page).unwrap();
    let mut page = browser.open(&file, look);
    let picture = page.picture();
    let found = page.evaluate(MEASURE);
    let mut wrong = page.complaints();
    page.close();
    wrong.extend(complaints(&found, &picture, look));
    let shot = format!("page-{name}-{}-{}.png", look.width, if look.dark { "dark" } else { "light" });
    std::fs::write(folder.join(shot), &picture.png).unwrap();
    (found, picture, wrong)
}

fn complaints(found: &Value, picture: &Picture, look: Appearance) -> Vec<String> {
    let mut wrong = Vec::new();
    for list in ["outside", "overlapping", "notNumbers"] {
        wrong.extend(found[list].as_array().unwrap().iter().map(|what| format!("{list}: {what}")));
    }
    if found["overflow"].as_f64() > Some(0.0) {
        wrong.push(format!("{} pixels wider than the window", found["overflow"]));
    }
    if found["textHeightLeast"].as_f64() < Some(TEXT_HEIGHT_MIN) {
        wrong.push(format!("text of {} pixels", found["textHeightLeast"]));
    }
    if found["scripts"] != 0 {
        wrong.push(format!("{} scripts", found["scripts"]));
    }
    // Text alone, smoothed, has more than that many shades.
    if picture.colours() < 20 {
        wrong.push(format!("a picture of {} colours", picture.colours()));
    }
    let bright = picture.background().iter().all(|part| *part > 127);
    if bright == look.dark {
        wrong.push(format!("the background is {:?}", picture.background()));
    }
    wrong
}

/// Of the style sheet: the sides' colours, light and dark.
fn side_colours(dark: bool) -> [[u8; 3]; 2] {
    if dark {
        [[0x5a, 0xa2, 0xf2], [0xf0, 0x8a, 0x4b]]
    } else {
        [[0x1f, 0x6f, 0xd0], [0xd9, 0x60, 0x1a]]
    }
}

#[allow(clippy::print_stdout, reason = "a test that cannot run says so")]
fn browser() -> Option<Browser> {
    let browser = Browser::start();
    if browser.is_none() {
        assert!(
            std::env::var_os("KEYWAY_TESTS_REQUIRE_ALL").is_none(),
            "no Chromium is installed"
        );
        println!("SKIP: no Chromium is installed");
    }
    browser
}

#[test]
fn every_plot_that_has_its_data_is_there_and_can_be_read() {
    let Some(mut browser) = browser() else { return };
    let new = report(&everything());
    let mut old = new.clone();
    for row in old.rows.iter_mut().filter(|row| row.figure == "throughput").take(3) {
        let sides = &mut row.sides;
        for figure in [&mut sides.ratio, &mut sides.ratio_low, &mut sides.ratio_high] {
            *figure = figure.map(|ratio| ratio * 3.0);
        }
    }
    let changes = Comparison::new(&old, &new, THRESHOLD_PERCENT).unwrap();
    assert_eq!(changes.worse().len(), 3);
    let page = html::page(&new, Some(&changes));
    for look in LOOKS {
        let (found, picture, wrong) = look_at(&mut browser, &page, "everything", look);
        assert!(wrong.is_empty(), "{look:?}: {wrong:#?}");
        let plots = &found["plots"];
        let all =
            |kind: &str| ["charts", "rows", "bars", "spreads", "hollow"].map(|what| plots[kind][what].as_u64().unwrap_or(0));
        let ticks = ["throughput", "load", "hits", "ratios"].map(|kind| plots[kind]["ticksLeast"].as_u64());
        assert!(ticks.iter().all(|ticks| *ticks >= Some(2)), "{plots:#}");
        assert_eq!(
            all("throughput"),
            [2, 6, 12, 12, 0],
            "1 to 64 connections, and 1 and 16 pipelined, of two sides: {plots:#}"
        );
        assert_eq!(
            all("load"),
            [1, 4, 16, 16, 2],
            "p50 and p99 of two sides; Keyway did not keep up at the last rate: {plots:#}"
        );
        assert_eq!(all("hits"), [1, 3, 6, 0, 0], "{plots:#}");
        assert_eq!(
            all("ratios"),
            [2, 24, 24, 24, 0],
            "10 closed loops' throughput and 14 latencies: {plots:#}"
        );
        assert_eq!(found["rows"], 60, "4 of each of 15 cells");
        let text = found["text"].as_str().unwrap();
        for part in [
            HOSTILE,
            "memcached",
            "1.6.18, -t 2 -m 64",
            "0.1.0, serve --threads 2",
            "2 x A Processor",
            "keyway bench --html",
            "worse by more than 10 %",
            "2027-01-15 08:00:00 UTC",
            "In process, Keyway answers a get of 128 B in 0.08 µs; memcached over a Unix socket in 0.16 µs: 2 times as long.",
            "128 B, 95 % gets, in process, 1 thread (a call; memcached over a Unix socket)",
            "128 B, 95 % gets, TCP, 16 connections, 16 pipelined",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(!text.contains("128b-95"), "a command line's word: {text}");
        let opening = text.trim_start_matches("keyway bench").trim_start();
        assert!(
            opening.starts_with("In process, Keyway answers"),
            "the first sentence sums up: {text}"
        );
        for colour in side_colours(look.dark) {
            assert!(
                picture.count(colour) > 500,
                "{look:?}: {} pixels of {colour:?}",
                picture.count(colour)
            );
        }
    }
}

#[test]
fn a_run_without_data_says_so_and_what_failed_comes_first() {
    let Some(mut browser) = browser() else { return };
    let mut empty = report(&[]);
    empty.failures.push("memcached ended".to_owned());
    let page = html::page(&empty, None);
    for look in LOOKS {
        let (found, _, wrong) = look_at(&mut browser, &page, "empty", look);
        assert!(wrong.is_empty(), "{look:?}: {wrong:#?}");
        assert_eq!(found["plots"], json!({}));
        let text = found["text"].as_str().unwrap();
        assert!(text.contains("Nothing was measured"), "{text}");
        assert!(text.find("memcached ended") < text.find("1.6.18"), "{text}");
    }
}

#[test]
fn two_points_are_a_plot_whatever_is_varied() {
    let Some(mut browser) = browser() else { return };
    let mut plots = |field: &str, values: [u64; 2]| {
        let cells = values.map(|value| cell("128b-95", "tcp", 16, &[2e5, 1e5], 20.0).with(field, value));
        let page = html::page(&report(&cells), None);
        let (found, _, wrong) = look_at(&mut browser, &page, &format!("two-{field}"), LOOKS[2]);
        assert!(wrong.is_empty(), "{field}: {wrong:#?}");
        found["plots"].clone()
    };
    let (pipelined, rates) = (plots("pipeline", [1, 16]), plots("rate", [20_000, 40_000]));
    let drawn = |plot: &Value| ["charts", "rows", "bars"].map(|what| plot[what].as_u64().unwrap());
    assert_eq!(drawn(&pipelined["throughput"]), [1, 2, 4]);
    assert_eq!(drawn(&rates["load"]), [1, 2, 8], "p50 and p99 of two sides");
}

#[test]
fn a_plot_needs_two_points_of_what_is_varied() {
    let Some(mut browser) = browser() else { return };
    let one = report(&[cell("128b-95", "tcp", 16, &[2e5, 1e5], 20.0)]);
    let (found, _, wrong) = look_at(&mut browser, &html::page(&one, None), "one", LOOKS[0]);
    assert!(wrong.is_empty(), "{wrong:#?}");
    let kinds: Vec<_> = found["plots"].as_object().unwrap().keys().cloned().collect();
    assert_eq!(kinds, ["ratios"]);
}

#[test]
#[allow(clippy::print_stdout, reason = "what was noticed, for people")]
fn pages_that_are_broken_are_noticed() {
    let Some(mut browser) = browser() else { return };
    let page = html::page(&report(&everything()), None);
    let style = |rules: &str| page.replace("</head>", &format!("<style>{rules}</style></head>"));
    let body = |markup: &str| page.replace("</main>", &format!("{markup}</main>"));
    for (name, broken, words) in [
        ("script", body("<script>1</script>"), "log:"),
        ("image", body("<img src='http://127.0.0.1:9/x.png'>"), "log:"),
        ("font", style("@import url(http://127.0.0.1:9/x.css);"), "log:"),
        ("wide", body("<div style='width:2000px'>x</div>"), "wider than the window"),
        ("axis", style(".bars .axis span { left: 0 !important }"), "overlapping:"),
        ("columns", style(".bars .row > div { position: absolute }"), "overlapping:"),
        ("small", style(".bars { font-size: 4px !important }"), "text of"),
        ("number", page.replacen(" x=\"", " x=\"NaN", 1), "notNumbers:"),
        ("off", page.replacen(" x=\"", " x=\"9000\" data-x=\"", 1), "outside:"),
        ("blank", style("body { visibility: hidden }"), "colours"),
        ("bright", style(":root { --page: #fff !important }"), "background"),
    ] {
        assert_ne!(broken, page, "{name} is not broken");
        let (_, _, wrong) = look_at(
            &mut browser,
            &broken,
            &format!("broken-{name}"),
            Appearance { width: 1280, dark: true },
        );
        assert!(wrong.iter().any(|what| what.contains(words)), "{name}: {wrong:#?}");
        println!("{name}: {}", wrong[0]);
    }
    remove_broken(&PathBuf::from(env!("CARGO_TARGET_TMPDIR")));
}

/// Pictures of broken pages are of no use.
fn remove_broken(folder: &Path) {
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        if entry.file_name().to_string_lossy().starts_with("page-broken-") {
            std::fs::remove_file(entry.path()).unwrap();
        }
    }
}
