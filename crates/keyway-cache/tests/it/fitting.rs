//! A region whose items fit, and programs that write them and end as programs do: killed, with their threads, or not at all. It
//! fails where space that one of them has taken stays unused, so that items are evicted which fit. Where four write at once in so small
//! a region, killed or not, about one run in 25 evicts a segment's items (up to 50), because sessions that compact at once leave none
//! free; space that stays unused costs more with each death.
//! Guards: P1, P9

use harness::Random;
use keyway_cache::{Cache, Options, Place, Session};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

const MEMORY: u64 = 4 << 20;
/// Bytes of items in the region: about three quarters of its log, with eight bytes more for each item that was copied.
const LIVE: u64 = MEMORY * 66 / 100;
/// The items of a few segments: what may be evicted while several programs write at once.
const EVICTED_MAX: u64 = 150;
/// Sets of a program that writes without end, after each of which it says so.
const TOLD_AFTER: usize = 40;

const PATH: &str = "KEYWAY_TEST_PLACE";
const PART: &str = "KEYWAY_TEST_ROLE";
/// A seed, a blank, and how many keys there are.
const KEYS: &str = "KEYWAY_TEST_ARGUMENT";

/// A region's file in memory, removed at the end.
struct File(PathBuf);

impl File {
    fn new() -> Self {
        let path = PathBuf::from(format!("/dev/shm/keyway-fitting-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        Self(path)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn open(path: &Path) -> Cache {
    let options = Options::new().memory(MEMORY).item_size_max(1 << 14);
    Cache::open(&Place::Path(path.to_owned()), &options).unwrap()
}

fn len_of(key: u64) -> usize {
    [100, 900, 40][usize::try_from(key % 3).unwrap()]
}

fn set(session: &mut Session, key: u64) {
    let ttl_s = if key.is_multiple_of(5) { 100_000 } else { 0 };
    session
        .set(format!("key-{key}").as_bytes(), &vec![7; len_of(key)], ttl_s)
        .unwrap();
}

/// Not a test of its own: what a child does.
#[test]
fn part_of_a_child() {
    let Ok(part) = std::env::var(PART) else { return };
    let numbers = std::env::var(KEYS).unwrap();
    let (seed, keys) = numbers.split_once(' ').unwrap();
    let (mut random, keys) = (Random::new(seed.parse().unwrap()), keys.parse().unwrap());
    let cache = open(Path::new(&std::env::var(PATH).unwrap()));
    let tell = || std::io::stderr().write_all(b".").unwrap();
    match part.as_str() {
        "one item" => {
            let mut session = cache.session().unwrap();
            set(&mut session, random.below(keys));
            tell();
            std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
        }
        "no end" => {
            let mut session = cache.session().unwrap();
            for n in 1_usize.. {
                set(&mut session, random.below(keys));
                if n.is_multiple_of(TOLD_AFTER) {
                    tell();
                }
            }
        }
        "threads that end" => {
            for _ in 0..60 {
                let (cache, key) = (&cache, random.below(keys));
                std::thread::scope(|scope| {
                    scope.spawn(move || set(&mut cache.session().unwrap(), key));
                });
            }
            tell();
        }
        "rests" => {
            let mut session = cache.session().unwrap();
            for _ in 0..200 {
                set(&mut session, random.below(keys));
                session.release();
            }
            tell();
            std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
        }
        other => panic!("no part '{other}'"),
    }
}

/// Starts the children of one test, each with numbers of its own.
struct Programs<'p> {
    path: &'p Path,
    keys: u64,
    begun: u64,
}

impl Programs<'_> {
    fn begin(&mut self, part: &str) -> Child {
        self.begun += 1;
        harness::own_test(&[], module_path!(), "part_of_a_child")
            .env(PATH, self.path)
            .env(PART, part)
            .env(KEYS, format!("{} {}", self.begun, self.keys))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }
}

/// Waits until the child has said once more that it is so far, and kills it, wherever it is then.
fn kill(mut child: Child) {
    let stderr = child.stderr.as_mut().unwrap();
    let mut told = [0];
    stderr.read_exact(&mut told).unwrap();
    child.kill().unwrap();
    let mut rest = String::new();
    child.stderr.as_mut().unwrap().read_to_string(&mut rest).unwrap();
    child.wait().unwrap();
    assert!(told == *b"." && rest.bytes().all(|byte| byte == b'.'), "{}{rest}", told[0]);
}

#[test]
fn a_region_whose_items_fit_evicts_next_to_none_when_those_who_write_them_are_killed() {
    let file = File::new();
    let cache = open(&file.0);
    let mut keys = 0;
    while cache.counters().bytes < LIVE {
        let mut session = cache.session().unwrap();
        for _ in 0..100 {
            set(&mut session, keys);
            keys += 1;
        }
    }
    let mut programs = Programs {
        path: &file.0,
        keys,
        begun: 0,
    };
    let evicted = || cache.counters().evictions;
    let evicts_few = |who: &str| assert!(evicted() <= EVICTED_MAX, "{who}: {} evicted", evicted());
    let evicts_none = |who: &str, before: u64| assert_eq!(evicted(), before, "{who}");
    // All segments are in use after this.
    let mut writers: Vec<Child> = (0..4).map(|_| programs.begin("no end")).collect();
    for _ in 0..24 {
        kill(writers.remove(0));
        writers.push(programs.begin("no end"));
    }
    evicts_few("several that write without end");
    for _ in 0..40 {
        kill(programs.begin("one item"));
    }
    evicts_few("each that writes one item, beside several");
    writers.into_iter().for_each(kill);
    let before = evicted();
    for _ in 0..20 {
        kill(programs.begin("one item"));
    }
    evicts_none("each that writes one item", before);
    kill(programs.begin("threads that end"));
    kill(programs.begin("rests"));
    evicts_none("threads that end, and one that gives its rests up", before);
    let mut session = cache.session().unwrap();
    let mut absent = 0;
    for key in 0..keys {
        match session.get(format!("key-{key}").as_bytes()).unwrap() {
            Some(value) => assert_eq!(value.len(), len_of(key), "{key}"),
            None => absent += 1,
        }
    }
    assert!(absent <= evicted(), "{absent} are absent, {} were evicted", evicted());
    for _ in 0..8 {
        session.upkeep();
    }
    let report = cache.check(|_| {});
    assert!(report.is_sound(), "{:?}", report.problems);
    // What a killed thread had written, and had not published, is in no count.
    let counts = report.counts;
    assert!(counts.uncounted <= counts.unmarked && counts.reclaimable == 0, "{counts:?}");
}
