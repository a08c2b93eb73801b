//! `keyway trace`: a real region for each reason why a key is not there. Its enemies: a reason that is not the one, a certainty that the
//! region does not have, and a region that is changed by being asked.
//! Guards: P46

use harness::{Scratch, wait_until};
use keyway_cache::{Cache, Delete, Get, Options, Place, Session, Store};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Longest that a test waits: only a failing test takes so long.
const PATIENCE: Duration = Duration::from_secs(60);

struct Region {
    _folder: Scratch,
    path: PathBuf,
    cache: Cache,
    session: Session,
}

impl Region {
    fn new() -> Self {
        let folder = Scratch::new();
        let path = folder.join("region");
        let cache = Cache::open(&Place::Path(path.clone()), &Options::new().memory(2 << 20)).unwrap();
        Self {
            session: cache.session().unwrap(),
            cache,
            path,
            _folder: folder,
        }
    }

    fn set(&mut self, key: &str, value: &[u8]) {
        self.session.set(key.as_bytes(), value, 0).unwrap();
    }

    fn delete(&mut self, key: &str) {
        self.session.delete(key.as_bytes(), &Delete::default()).unwrap();
    }

    #[track_caller]
    fn traced(&self, key: &str) -> Value {
        traced(&self.path, key)
    }

    /// Reason and certainty.
    #[track_caller]
    fn is(&self, key: &str, reason: &str, is_certain: bool) -> Value {
        let said = self.traced(key);
        assert_eq!(
            (&said["reason"], &said["is_certain"]),
            (&reason.into(), &is_certain.into()),
            "{said}"
        );
        said
    }

    /// Fills the memory until items are evicted, and longer.
    fn fill(&mut self, from: usize, count: usize) {
        for number in from..from + count {
            self.set(&format!("fill{number}"), &[7; 200]);
        }
    }
}

#[track_caller]
fn traced(path: &Path, key: &str) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_keyway"));
    let output = command.args(["trace", key, "--json", "--region"]).arg(path).output().unwrap();
    let said: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|why| panic!("{why}: {output:?}"));
    // As of `keyway get`.
    let is_absent = said["reason"] != "present";
    assert_eq!(output.status.code(), Some(is_absent.into()), "{output:?}");
    said
}

#[test]
fn an_item_that_is_there_stays_as_it_is() {
    let mut region = Region::new();
    region.set("key", b"value");
    let said = region.is("key", "present", true);
    assert_eq!(said["items_left"], 1);
    let how = Get {
        details: true,
        no_bump: true,
        ..Get::default()
    };
    let item = region
        .session
        .get_with(b"key", &how, &mut Vec::new(), |_, _| {})
        .unwrap()
        .unwrap();
    assert!(!item.fetched, "asking is no access");
}

#[test]
fn never_set_is_certain_as_long_as_no_memory_was_used_twice() {
    let mut region = Region::new();
    region.set("other", b"value");
    region.is("key", "never_set", true);
    region.set("key", b"value");
    region.is("key", "present", true);
    region.fill(0, 30_000);
    assert!(region.cache.counters().evictions > 0);
    // A key that is not among the fingerprints.
    let absent = (0..1_000).map(|number| format!("absent{number}"));
    let absent = absent
        .into_iter()
        .find(|key| !region.cache.trace(key.as_bytes()).is_ghost)
        .unwrap();
    let said = region.is(&absent, "unknown", false);
    assert!(said["what"].as_str().unwrap().contains("never set, or"), "{said}");
}

#[test]
fn a_deleted_key_is_told_from_one_that_was_never_set() {
    let mut region = Region::new();
    region.set("key", b"one");
    region.set("key", b"a longer value");
    region.delete("key");
    let said = region.is("key", "deleted", true);
    assert_eq!((&said["items_left"], &said["near"]), (&2.into(), &Value::Array(Vec::new())));
    assert!(said["stored_within_s"].is_u64());
    // Stored again, it is there.
    region.set("key", b"three");
    region.is("key", "present", true);
    // When memory was used twice, a newer value may have come and gone.
    region.delete("key");
    let mut region = Region::new();
    region.fill(0, 30_000);
    region.set("key", b"value");
    region.delete("key");
    let said = region.is("key", "deleted", false);
    assert!(said["what"].as_str().unwrap().contains("a newer value replaced it"), "{said}");
}

#[test]
fn an_expired_key_is_told_with_its_time() {
    let mut region = Region::new();
    let how = Store {
        exptime: 1,
        ..Store::default()
    };
    region.session.store(b"key", b"value", &how).unwrap();
    wait_until("it expires", PATIENCE, || {
        region.session.get(b"key").unwrap().is_none().then_some(())
    });
    let said = region.is("key", "expired", true);
    assert!(said["expired_for_s"].is_u64(), "{said}");
}

#[test]
fn a_flushed_key_is_told() {
    let mut region = Region::new();
    region.set("key", b"value");
    region.session.flush_all(0).unwrap();
    region.set("later", b"value");
    region.is("key", "flushed", true);
    region.is("later", "present", true);
    region.is("other", "never_set", true);
}

#[test]
fn evicted_keys_are_told_from_deleted_ones() {
    let mut region = Region::new();
    let mut count = 20_000;
    region.fill(0, count);
    // There are times at which all memory that was emptied is in use again.
    let (gone, kinds, emptied) = loop {
        let is_gone = |number: &usize| region.session.get(format!("fill{number}").as_bytes()).unwrap().is_none();
        let gone: Vec<usize> = (0..count).filter(is_gone).collect();
        assert!(gone.len() > 1_000);
        let mut kinds = std::collections::BTreeMap::<String, usize>::new();
        let mut emptied = None;
        for number in gone.iter().rev() {
            let key = format!("fill{number}");
            let trace = region.cache.trace(key.as_bytes());
            let kind = format!("{:?}", trace.newest.map(|left| left.whereabouts));
            if kind.contains("Emptied") {
                emptied.get_or_insert(key);
            }
            *kinds.entry(kind).or_default() += 1;
        }
        if let Some(emptied) = emptied {
            break (gone, kinds, emptied);
        }
        assert!(count < 21_000, "{kinds:?}");
        region.fill(count, 20);
        count += 20;
    };
    // None of them was deleted. A full bucket may have evicted some.
    let dead = kinds.get("Some(Dead)").copied().unwrap_or(0);
    assert!(dead * 100 < gone.len(), "{kinds:?}");
    let said = region.is(&emptied, "evicted", false);
    assert!(said["what"].as_str().unwrap().contains("evicted for room"), "{said}");
    // Of the earlier ones only a fingerprint is left.
    let ghost = gone.iter().rev().map(|number| format!("fill{number}")).find(|key| {
        let trace = region.cache.trace(key.as_bytes());
        trace.is_ghost && trace.newest.is_none()
    });
    let said = region.is(&ghost.unwrap(), "evicted", false);
    assert!(said["what"].as_str().unwrap().contains("fingerprint"), "{said}");
}

#[test]
fn keys_that_are_nearly_the_same_are_shown() {
    let mut region = Region::new();
    for key in ["User:42", ":1:user:42", "42", "user:43", "superuser:42"] {
        region.set(key, b"value");
    }
    let said = region.is("user:42", "never_set", true);
    let near: Vec<_> = said["near"]
        .as_array()
        .unwrap()
        .iter()
        .map(|near| near["key"].as_str().unwrap())
        .collect();
    assert_eq!(near, ["42", ":1:user:42", "User:42"]);
    let mut command = Command::new(env!("CARGO_BIN_EXE_keyway"));
    let output = command
        .args(["trace", "user:42", "--region"])
        .arg(&region.path)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("user:42: never set\n  it was not stored"), "{text}");
    assert!(text.contains("\n  there is User:42: another case\n"), "{text}");
}
