//! A memory limit below the region's size, on a real file. Its enemies: memory that the file keeps, an item that is wrong, a limit that is
//! lost or lifted when another process opens the region.
//! Guards: P11

use keyway_cache::{Cache, Options, Place, Session, Shrinking};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
const SIZE: u64 = 32 * MIB;
/// Items of 900 bytes that fill three quarters of it.
const MANY: u64 = 24_000;

/// A region's file in memory, removed at the end.
struct File(PathBuf);

impl File {
    fn new(name: &str) -> Self {
        let path = PathBuf::from(format!("/dev/shm/keyway-test-{}-limit-{name}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        Self(path)
    }

    fn open(&self, memory: u64, server: bool) -> Cache {
        let options = Options::new().memory(memory).item_size_max(1 << 16).server(server);
        Cache::open(&Place::Path(self.0.clone()), &options).unwrap()
    }

    /// Bytes that the file has in memory.
    fn allocated(&self) -> u64 {
        std::fs::metadata(&self.0).unwrap().blocks() * 512
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn name(key: u64) -> Vec<u8> {
    format!("key-{key}").into_bytes()
}

fn value(key: u64) -> Vec<u8> {
    key.to_le_bytes().into_iter().cycle().take(900).collect()
}

fn fill(session: &mut Session, keys: std::ops::Range<u64>) {
    for key in keys {
        session.set(&name(key), &value(key), 0).unwrap();
    }
}

/// How many of the keys are there, each with its value.
fn there(session: &mut Session, keys: std::ops::Range<u64>) -> u64 {
    let mut out = Vec::new();
    keys.map(|key| {
        out.clear();
        let is_there = session.get_append(&name(key), &mut out).unwrap().is_some();
        assert!(!is_there || out == value(key), "key {key}");
        u64::from(is_there)
    })
    .sum()
}

/// Steps until the region is within its limit, and all memory is given back that can be.
fn shrink(session: &mut Session) {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        match session.shrink() {
            Shrinking::Done => return,
            Shrinking::More => {}
            Shrinking::Waiting => std::thread::park_timeout(Duration::from_millis(20)),
            Shrinking::Refused(error) => panic!("{error}"),
        }
        assert!(Instant::now() < deadline, "the region does not come to its limit");
    }
}

fn assert_sound(cache: &Cache) {
    let report = cache.check(|_| {});
    assert!(report.is_sound(), "{report:?}");
}

#[test]
fn a_lower_limit_gives_the_files_memory_back_and_a_higher_one_takes_it_again() {
    let file = File::new("file");
    let cache = file.open(SIZE, false);
    let mut session = cache.session().unwrap();
    fill(&mut session, 0..MANY);
    let before = file.allocated();
    assert!(before > SIZE - MIB);

    assert_eq!(cache.limit(SIZE / 2).unwrap(), cache.info().limit_bytes);
    let limit = cache.info().limit_bytes;
    assert!(
        limit <= SIZE / 2 && limit > SIZE / 2 - 2 * cache.info().segment_bytes,
        "{limit}"
    );
    assert!(cache.is_shrinking());
    shrink(&mut session);
    assert!(!cache.is_shrinking());
    // What the file has is what the limit says, to the page.
    assert_eq!(file.allocated(), limit, "of {before}");
    let kept = there(&mut session, 0..MANY);
    assert!(
        (8_000..MANY * 3 / 4).contains(&kept),
        "{kept} of {MANY} in half of the memory"
    );
    fill(&mut session, MANY..2 * MANY);
    assert_eq!(file.allocated(), limit, "whatever is written");

    cache.grow(SIZE).unwrap();
    assert_eq!((file.allocated(), cache.info().limit_bytes), (before, before));
    let evictions = cache.counters().evictions;
    fill(&mut session, 2 * MANY..2 * MANY + 8_000);
    assert!(cache.counters().evictions - evictions < 200, "there is room again");
    assert_eq!(there(&mut session, 2 * MANY..2 * MANY + 8_000), 8_000);

    cache.limit(SIZE / 2).unwrap();
    shrink(&mut session);
    cache.grow(2 * SIZE).unwrap();
    assert!(file.allocated() > 2 * SIZE - MIB, "beyond its size at once");
    drop(session);
    assert_sound(&cache);
}

#[test]
fn another_mapping_keeps_the_limit_and_only_a_server_lifts_it_at_its_start() {
    let file = File::new("again");
    let cache = file.open(SIZE, false);
    let other = file.open(SIZE, false);
    let mut session = other.session().unwrap();
    fill(&mut session, 0..MANY);
    let limit = cache.limit(SIZE / 4).unwrap();
    assert_eq!(other.info().limit_bytes, limit);
    shrink(&mut cache.session().unwrap());
    // The other one has it from the region, and writes no more than it may.
    fill(&mut session, MANY..2 * MANY);
    let kept = there(&mut session, 0..2 * MANY);
    assert!((3_000..8_800).contains(&kept), "{kept} items in {limit} bytes");
    assert_eq!(file.allocated(), limit);
    drop(session);
    assert!(!other.close(), "another is attached");
    assert!(cache.close());

    let cache = file.open(SIZE, false);
    assert_eq!((cache.info().limit_bytes, file.allocated()), (limit, limit), "a program");
    assert_eq!(there(&mut cache.session().unwrap(), 0..2 * MANY), kept);
    drop(cache);
    let cache = file.open(SIZE / 8, true);
    assert_eq!(cache.info().limit_bytes, limit, "a server with less");
    drop(cache);
    let cache = file.open(SIZE / 2, true);
    assert!(
        (SIZE / 2 - MIB..=SIZE / 2).contains(&cache.info().limit_bytes),
        "a server with more"
    );
    assert_eq!(there(&mut cache.session().unwrap(), 0..2 * MANY), kept);
    drop(cache);
    let cache = file.open(2 * SIZE, false);
    assert!(
        cache.info().limit_bytes > 2 * SIZE - MIB,
        "a program that asks for more than the region has"
    );
    assert_sound(&cache);
}

#[test]
fn a_limit_that_is_too_low_leaves_what_the_region_needs() {
    let file = File::new("low");
    let cache = file.open(SIZE, false);
    let mut session = cache.session().unwrap();
    fill(&mut session, 0..MANY);
    let limit = cache.limit(1).unwrap();
    assert!((MIB..6 * MIB).contains(&limit), "{limit}");
    shrink(&mut session);
    for key in 0..50 {
        session.set(&name(key), &vec![7; 60 << 10], 0).unwrap();
        assert!(session.get_append(&name(key), &mut Vec::new()).unwrap().is_some());
    }
    assert_eq!(file.allocated(), limit);
    drop(session);
    assert_sound(&cache);
}

#[test]
fn a_copy_of_a_region_that_still_shrinks_has_all_items() {
    let file = File::new("copied");
    let to = File::new("copy");
    let cache = file.open(SIZE, false);
    fill(&mut cache.session().unwrap(), 0..MANY);
    cache.limit(SIZE / 4).unwrap();
    assert_eq!(cache.copy_to(&to.0, false, |_| {}).unwrap().items, MANY);
    let copy = to.open(SIZE / 8, false);
    assert_eq!(there(&mut copy.session().unwrap(), 0..MANY), MANY);
}

#[test]
fn pages_are_not_faulted_in_again_by_a_process_that_asks_for_all() {
    let file = File::new("prefault");
    let cache = file.open(SIZE, false);
    let limit = cache.limit(SIZE / 2).unwrap();
    shrink(&mut cache.session().unwrap());
    let options = Options::new().prefault(true).huge_pages(true);
    let _other = Cache::open(&Place::Path(file.0.clone()), &options).unwrap();
    assert_eq!(file.allocated(), limit);
}
