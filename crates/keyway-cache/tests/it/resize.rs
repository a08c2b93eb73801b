//! More memory for a region that exists. Its enemy: an item that the raise loses, memory that is there and no thread uses, a
//! region that shrinks, or one that is given what it did not ask for.
//! Guards: P10

use keyway_cache::{Cache, GrowError, OpenError, Options, Place, Session};
use std::path::PathBuf;

/// A region's file in memory, removed at the end.
struct Region(PathBuf);

impl Region {
    fn new(name: &str) -> Self {
        let path = PathBuf::from(format!("/dev/shm/keyway-test-{}-raise-{name}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        Self(path)
    }

    fn place(&self) -> Place {
        Place::Path(self.0.clone())
    }

    fn open(&self, memory: u64) -> Cache {
        Cache::open(&self.place(), &options(memory)).unwrap()
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn options(memory: u64) -> Options {
    Options::new().memory(memory).item_size_max(1 << 16)
}

fn name(key: u64) -> Vec<u8> {
    format!("key-{key}").into_bytes()
}

fn fill(session: &mut Session, keys: std::ops::Range<u64>) {
    for key in keys {
        session.set(&name(key), &value(key), 0).unwrap();
    }
}

fn value(key: u64) -> Vec<u8> {
    vec![key.to_le_bytes()[0]; 900]
}

fn assert_there(session: &mut Session, keys: std::ops::Range<u64>) {
    let mut out = Vec::new();
    for key in keys {
        out.clear();
        assert!(
            session.get_append(&name(key), &mut out).unwrap().is_some(),
            "key {key} is gone"
        );
        assert_eq!(out, value(key), "key {key}");
    }
}

/// Items of 900 bytes that 4 MiB hold with ease, and that 32 MiB do.
const SOME: u64 = 3_000;
const MANY: u64 = 26_000;

#[test]
fn a_restart_with_more_memory_keeps_the_items_and_one_with_less_keeps_the_memory() {
    let file = Region::new("restart");
    let cache = file.open(4 << 20);
    let small = cache.info().limit_bytes;
    fill(&mut cache.session().unwrap(), 0..SOME);
    cache.close();

    let cache = file.open(32 << 20);
    let info = cache.info();
    assert!(info.warm && info.limit_bytes > 31 << 20, "{info:?}");
    let mut session = cache.session().unwrap();
    assert_there(&mut session, 0..SOME);
    fill(&mut session, SOME..MANY);
    assert_there(&mut session, 0..MANY);
    assert_eq!(cache.counters().evictions, 0);
    drop(session);
    let report = cache.check(|_| {});
    assert!(report.is_sound(), "{report:?}");
    cache.close();

    let cache = file.open(4 << 20);
    assert_eq!(cache.info().limit_bytes, info.limit_bytes);
    assert!(cache.info().limit_bytes > small);
    assert_there(&mut cache.session().unwrap(), 0..MANY);
    cache.close();

    let only = options(64 << 20).memory(None);
    let cache = Cache::open(&file.place(), &only).unwrap();
    assert_eq!(cache.info().limit_bytes, info.limit_bytes);
}

#[test]
fn what_one_mapping_raises_another_one_uses() {
    let file = Region::new("online");
    let (one, other) = (file.open(4 << 20), file.open(4 << 20));
    let mut here = one.session().unwrap();
    let mut there = other.session().unwrap();
    fill(&mut here, 0..SOME);
    one.grow(32 << 20).unwrap();
    one.grow(16 << 20).unwrap();
    assert!(one.info().limit_bytes > 31 << 20);
    // The other mapping writes, and neither has evicted anything: it found the new segments by itself.
    fill(&mut there, SOME..MANY);
    assert_there(&mut here, 0..MANY);
    assert_there(&mut there, 0..MANY);
    assert_eq!(one.counters().evictions, 0);
    assert_eq!(one.info().limit_bytes, other.info().limit_bytes);
    drop((here, there));
    let report = other.check(|_| {});
    assert!(report.is_sound(), "{report:?}");
}

#[test]
fn a_region_cannot_outgrow_what_its_first_size_allows() {
    let file = Region::new("far");
    let cache = file.open(4 << 20);
    let limit = cache.info().limit_bytes;
    assert!(matches!(cache.grow(8 << 30), Err(GrowError::TooLarge { .. })));
    assert_eq!(cache.info().limit_bytes, limit);
    match Cache::open(&file.place(), &options(8 << 30)).map(drop) {
        Err(error @ OpenError::NotGrown { .. }) => assert!(error.to_string().contains("its maximum"), "{error}"),
        other => panic!("{other:?}"),
    }
}
