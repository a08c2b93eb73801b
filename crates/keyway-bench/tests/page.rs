//! The page of a report, as a browser shows it: a bar for each ratio, nothing that overlaps, sticks out or is
//! asked for elsewhere, wide and narrow, light and dark; and pages that are broken in one thing each, which this must notice.
//!
//! The pictures are left in the folder for tests' files, for people.
//! Guards: P52

use std::path::{Path, PathBuf};
use std::time::Duration;

use browser::{Appearance, Browser, Picture};
use keyway_bench::measurement::Measurement;
use keyway_bench::page::page;
use keyway_bench::plan::{Cell, Door, Pace};
use keyway_bench::report::Report;
use keyway_bench::run::{CellResult, Outcome, SideResult};
use keyway_bench::workloads;
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

/// A side that was measured three times.
fn side(name: &'static str, way: &'static str, operations: u64, latency_us: u64) -> SideResult {
    // What the other side does better in a round, this one does worse.
    let percents = if name == "Keyway" { [90, 100, 115] } else { [115, 100, 90] };
    let run = |percent: u64| {
        let operations = operations * percent / 100;
        let mut run = Measurement {
            operations,
            hits: operations,
            elapsed: Duration::from_secs(1),
            ..Measurement::default()
        };
        run.reads.record_n(latency_us * 1000, operations);
        run
    };
    SideResult {
        name,
        way,
        bytes_per_item: Some(200.0),
        items_held: Some(900),
        runs: percents.map(run).to_vec(),
    }
}

/// Beside memcached: twice as fast here, ten times slower there, alone, at a rate, and with a hostile name.
fn everything() -> Outcome {
    let cell = |workload: &str, door, connections| Cell::new(workloads::find(workload).unwrap(), 100_000, door, connections);
    let both = |cell: Cell, keyway, peer| {
        let ways = match cell.door {
            Door::Library => ["in process", "over a Unix socket"],
            _ => ["over TCP", "over TCP"],
        };
        let sides = vec![side("Keyway", ways[0], keyway, 20), side("memcached", ways[1], peer, 40)];
        CellResult { cell, sides }
    };
    let paced = Cell {
        pace: Pace::Rate(20_000.0),
        ..cell("128b-95", Door::Tcp, 16)
    };
    let mut hostile = cell("etc", Door::Library, 2);
    (hostile.workload.name, hostile.workload.about) = (HOSTILE.to_owned(), HOSTILE.to_owned());
    let alone = CellResult {
        cell: hostile,
        sides: vec![side("Keyway", "in process", 40_000, 1)],
    };
    Outcome {
        cells: vec![
            both(cell("128b-95", Door::Library, 1), 40_000, 20_000),
            both(cell("128b-95", Door::Tcp, 16), 2_000, 20_000),
            both(paced, 20_000, 20_000),
            alone,
        ],
        about: vec![
            ("Keyway", "0.1.0, serve --threads 2".to_owned()),
            ("memcached", "1.6.18, -t 2 -m 64".to_owned()),
        ],
        machine: "2 x A Processor, Linux 6.18, load 0.1".to_owned(),
        begun_unix_s: 1_800_000_000,
        notes: vec![HOSTILE.to_owned()],
        failures: Vec::new(),
    }
}

fn page_of(outcome: &Outcome) -> String {
    let command = format!("keyway bench --html page.html {HOSTILE}");
    page(&Report::new(outcome, "3 measurements of 1s each".to_owned(), command))
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
fn every_ratio_has_a_bar_and_every_cell_a_table_that_can_be_read() {
    let Some(mut browser) = browser() else { return };
    let page = page_of(&everything());
    for look in LOOKS {
        let (found, picture, wrong) = look_at(&mut browser, &page, "everything", look);
        assert!(wrong.is_empty(), "{look:?}: {wrong:#?}");
        assert_eq!(
            found["plots"],
            json!({ "throughput": [2, 2], "latency, p99": [3, 0] }),
            "bars, with a spread"
        );
        let text = found["text"].as_str().unwrap();
        for part in [
            HOSTILE,
            "memcached",
            "1.6.18, -t 2 -m 64",
            "0.1.0, serve --threads 2",
            "2 x A Processor",
            "keyway bench --html",
            "2027-01-15 08:00:00 UTC",
            "2.00",
            "(0.08–0.13)",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        let opening = text.trim_start_matches("keyway bench").trim_start();
        let sentence =
            "128 B, 95 % gets: in process, Keyway answers in 20 µs; memcached over a Unix socket in 40 µs: 2 times as long.";
        assert!(opening.starts_with(sentence), "the first sentence sums up: {text}");
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
    let mut empty = everything();
    empty.cells.clear();
    empty.failures.push("memcached ended".to_owned());
    let page = page_of(&empty);
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
#[allow(clippy::print_stdout, reason = "what was noticed, for people")]
fn pages_that_are_broken_are_noticed() {
    let Some(mut browser) = browser() else { return };
    let page = page_of(&everything());
    let style = |rules: &str| page.replace("</head>", &format!("<style>{rules}</style></head>"));
    let body = |markup: &str| page.replace("</main>", &format!("{markup}</main>"));
    for (name, broken, words) in [
        ("script", body("<script>1</script>"), "log:"),
        ("image", body("<img src='http://127.0.0.1:9/x.png'>"), "log:"),
        ("font", style("@import url(http://127.0.0.1:9/x.css);"), "log:"),
        ("wide", body("<div style='width:2000px'>x</div>"), "wider than the window"),
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
