//! `keyway stats` for people and for scripts. Its enemies: a number that is not the region's, a ratio or a rate of other numbers, and
//! another form for the scripts that read it.
//! Guards: P44

use harness::Scratch;
use keyway_cache::server::ServerSession as _;
use keyway_cache::{Cache, Door, Options, Place, Verb};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

fn run(region: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_keyway"));
    let output = command
        .args(["stats", "--region"])
        .arg(region)
        .args(arguments)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The words after a name in a group.
#[track_caller]
fn line<'t>(text: &'t str, group: &str, name: &str) -> Vec<&'t str> {
    let groups = text.split("\n\n").find(|part| part.starts_with(group));
    let group = groups.unwrap_or_else(|| panic!("no {group} in {text}"));
    let found = group
        .lines()
        .skip(1)
        .find_map(|line| line.strip_prefix("  ")?.strip_prefix(name)?.strip_prefix(' '));
    found
        .unwrap_or_else(|| panic!("no {name} in {group}"))
        .split_whitespace()
        .collect()
}

#[test]
fn people_get_groups_with_units_and_ratios() {
    let folder = Scratch::new();
    let path = folder.join("region");
    let cache = Cache::open(&Place::Path(path.clone()), &Options::new().memory(8 << 20)).unwrap();
    let mut session = cache.session().unwrap();
    for number in 0..1_500 {
        session.set(format!("key{number}").as_bytes(), &[7; 100], 0).unwrap();
    }
    for number in 0..4 {
        assert_eq!(
            session.get(format!("key{}", number * 500).as_bytes()).unwrap().is_some(),
            number < 3
        );
    }
    assert!(session.delete(b"absent", &keyway_cache::Delete::default()).is_ok());
    (0..1_000).for_each(|_| session.note_latency(Door::Udp, Verb::Touch, 1_000));
    let before = std::fs::read(&path).unwrap();
    let text = run(&path, &["--grouped", "--interval", "0"]);
    assert_eq!(std::fs::read(&path).unwrap(), before, "it only looks");
    let counters = cache.counters();
    assert!(text.starts_with(&format!("keyway stats  {}\n", path.display())), "{text}");
    let plain = run(&path, &["--plain"]);
    assert_eq!(
        plain.lines().next().unwrap().split_whitespace().skip(1).collect::<Vec<_>>(),
        line(&text, "memory", "limit")
    );
    assert_eq!(line(&text, "memory", "items"), ["1,500"]);
    assert_eq!(
        line(&text, "memory", "an item takes, on average"),
        [&(counters.bytes / 1_500).to_string(), "B"]
    );
    let free = line(&text, "memory", "segments: free").join(" ");
    let info = cache.info();
    let share = |number: u64| f64::from(u32::try_from(number).unwrap());
    let percent = 100.0 * share(info.segments_free) / share(info.segments);
    assert!(free.ends_with(&format!("iB {percent:.1} %")), "{free}");
    assert_eq!(line(&text, "reads", "gets"), ["4"]);
    assert_eq!(line(&text, "reads", "hits"), ["3"]);
    assert_eq!(line(&text, "reads", "hit ratio"), ["75.0", "%"]);
    assert_eq!(line(&text, "writes", "sets"), ["1,500"]);
    assert_eq!(line(&text, "writes", "deletes: no item"), ["1"]);
    assert_eq!(line(&text, "evictions", "evicted"), ["0"]);
    assert_eq!(line(&text, "evictions", "share never read"), ["-"]);
    assert_eq!(line(&text, "processes", "attached"), ["1"]);
    assert_eq!(
        line(&text, "processes", "thread slots taken"),
        ["1", "of", &info.sessions_max.to_string()]
    );
    // Within a bucket of a fifth.
    let shown = line(&text, "latencies", "udp       touch");
    let [measured, p50, unit, ..] = shown[..] else {
        panic!("{text}")
    };
    let about = |unit: &str| (800.0..1_200.0).contains(&(p50.parse::<f64>().unwrap() * if unit == "us" { 1e3 } else { 1.0 }));
    assert!(
        measured == "1,000" && ["ns", "us"].contains(&unit) && about(unit),
        "{shown:?}"
    );
    assert!(!text.contains("PER SECOND"), "{text}");
}

#[test]
fn rates_are_of_the_interval() {
    let folder = Scratch::new();
    let path = folder.join("region");
    let cache = Cache::open(&Place::Path(path.clone()), &Options::new().memory(8 << 20)).unwrap();
    let is_done = AtomicBool::new(false);
    let text = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut session = cache.session().unwrap();
            while !is_done.load(Relaxed) {
                session.set(b"key", b"value", 0).unwrap();
                assert!(session.get(b"key").unwrap().is_some());
            }
        });
        while cache.counters().cmd_set == 0 {
            std::thread::yield_now();
        }
        let text = run(&path, &["--grouped", "--interval", "1"]);
        is_done.store(true, Relaxed);
        text
    });
    let number = |text: &str| text.replace(',', "").parse::<f64>().unwrap();
    for (group, name) in [("reads", "gets"), ("writes", "sets")] {
        let [total, per_second] = line(&text, group, name)[..] else {
            panic!("{text}");
        };
        // The interval is a second and longer.
        assert!(number(per_second) > 0.0 && number(per_second) <= number(total), "{text}");
    }
    assert_eq!(line(&text, "reads", "hit ratio"), ["100.0", "%", "100.0", "%"]);
    assert_eq!(line(&text, "reads", "misses"), ["0", "0.0"]);
}

#[test]
fn scripts_get_a_line_for_each_as_ever() {
    let folder = Scratch::new();
    let path = folder.join("region");
    let cache = Cache::open(&Place::Path(path.clone()), &Options::new().memory(8 << 20)).unwrap();
    cache.session().unwrap().set(b"key", b"value", 0).unwrap();
    let text = run(&path, &[]);
    let names: Vec<&str> = text.lines().map(|line| line[..20].trim_end()).collect();
    assert_eq!(names[..5], ["memory", "segments", "index", "sessions", "gate"]);
    for wanted in [
        "items                1\n",
        "sets                 1\n",
        "evictions            0\n",
    ] {
        assert!(text.contains(wanted), "{text}");
    }
    assert_eq!(run(&path, &["--plain"]).lines().count(), names.len());
    let both = Command::new(env!("CARGO_BIN_EXE_keyway"))
        .args(["stats", "--plain", "--grouped"])
        .output()
        .unwrap();
    assert_eq!(both.status.code(), Some(64));
}
