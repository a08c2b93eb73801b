//! `keyway big`. Enemies: a large item that it does not show, one that it shows twice, and a look that counts as an access.
//! Guards: P46

use keyway_cache::server::ServerCache as _;
use keyway_cache::{Cache, Options, Place};
use serde_json::Value;
use std::process::Command;

use harness::Scratch;

fn big(folder: &Scratch, arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_keyway"))
        .args(["big", "--region"])
        .arg(folder.path().join("region"))
        .args(arguments)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn lines(folder: &Scratch, arguments: &[&str]) -> Vec<Value> {
    let text = big(folder, &[arguments, &["--json"]].concat());
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn the_largest_items_and_the_sums_of_prefixes_are_shown() {
    let folder = Scratch::new();
    let place = Place::at(folder.path().join("region"));
    let cache = Cache::open(&place, &Options::new().memory(64 << 20)).unwrap();
    assert_eq!(lines(&folder, &[]), Vec::<Value>::new());
    let mut session = cache.session().unwrap();
    // Many small ones, five large ones, one larger than a segment.
    for i in 0..20_000 {
        session.set(format!("small:{i}").as_bytes(), b"value", 0).unwrap();
    }
    for i in 1..=5 {
        session
            .set(format!("large:{i}").as_bytes(), &vec![b'v'; 1000 * i], 0)
            .unwrap();
    }
    session.set(b"largest", &vec![b'v'; 900_000], 0).unwrap();
    session.set(b"deleted", &vec![b'v'; 800_000], 0).unwrap();
    session.delete(b"deleted", &keyway_cache::Delete::default()).unwrap();
    let before = cache.counters();

    let found = lines(&folder, &["--top", "4"]);
    let of = |name: &str| found.iter().map(|line| line[name].clone()).collect::<Vec<Value>>();
    assert_eq!(of("key"), ["largest", "large:5", "large:4", "large:3"]);
    assert_eq!(of("value_bytes"), [900_000, 5_000, 4_000, 3_000]);
    assert!(found.iter().all(|line| line["size"].as_u64() > line["value_bytes"].as_u64()));

    let found = lines(&folder, &["--prefix", ":"]);
    let of = |name: &str| found.iter().map(|line| line[name].clone()).collect::<Vec<Value>>();
    assert_eq!(of("prefix"), ["largest", "small", "large"]);
    assert_eq!(of("items"), [1, 20_000, 5]);
    assert_eq!(of("value_bytes"), [900_000, 100_000, 15_000]);

    let text = big(&folder, &["--top", "1"]);
    assert!(text.contains("largest") && !text.contains("large:"), "{text}");
    // Hashes are the same everywhere, and the sizes stay.
    let hash = format!("{:016x}", cache.hash(b"largest"));
    for arguments in [&["--redact"][..], &["--redact", "--prefix", ":"], &["--redact", "--json"]] {
        let text = big(&folder, arguments);
        assert!(
            text.contains(&hash) && !text.contains("larg") && !text.contains("small"),
            "{text}"
        );
    }
    let found = lines(&folder, &["--redact", "--top", "1"]);
    assert_eq!((&found[0]["key"], &found[0]["value_bytes"]), (&Value::Null, &900_000.into()));
    assert_eq!(cache.counters().cmd_get(), before.cmd_get(), "a look is no get");
}
