//! One thread's gets and sets through the library door beside maps inside the program (`DashMap`, papaya) and beside LMDB, the store in
//! shared memory that people know: all in one process, in turn.
//!
//! Each side copies the value to the caller's memory, and hashes with foldhash where it hashes. A get of LMDB begins and ends a read
//! transaction, because one that stays open does not see what others write; a set is a write transaction, committed without any
//! write to a disk (its file is in /dev/shm, as the region's).

use benches::report::{Args, Samples, head, row, say};
use benches::requests::{Popularity, keys};
use benches::workload::{Key, key};
use benches::{gate, machine, used};
use keyway_cache::{Cache, Get, Item, Options, Place, Session, Target};
use keyway_capi::open::keyway_open;
use keyway_capi::read::keyway_get;
use keyway_capi::types::{keyway, keyway_result};
use std::ffi::{CString, c_void};
use std::hint::black_box;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

const HELP: &str = "\
maps: gets and sets beside DashMap, papaya and LMDB in the same process

    --items N      items in each map (20000; 10000000 need 16 GB)
    --value-len N  bytes of a value (128)
    --uniform      every key alike, and not zipf 0.99
    --keys N       keys of a run (131072)
    --runs N       runs of each side, in turn (15)
    --no-lmdb      without LMDB
    --huge-pages   ask for huge pages for the region
    --only-c       of Keyway only the functions of C: otherwise the process has the region mapped twice, with page tables for each

KEYWAY_GATE=off leaves the gate open, as in most figures of docs/performance.md; with KEYWAY_GATE=on a machine must have one.";

/// Works on all of the keys; returns how many had an item.
type Side<'a> = Box<dyn FnMut(&[Key]) -> usize + 'a>;
type DashMap = dashmap::DashMap<Box<[u8]>, Vec<u8>, foldhash::fast::RandomState>;
type Papaya = papaya::HashMap<Box<[u8]>, Vec<u8>, foldhash::fast::RandomState>;

fn main() {
    let args = Args::parse(HELP);
    let (items, value_len): (u64, usize) = (args.number("--items", 20_000), args.number("--value-len", 128));
    let (count, runs): (usize, usize) = (args.number("--keys", 1 << 17), args.number("--runs", 15));
    let popularity = if args.has("--uniform") {
        Popularity::Uniform
    } else {
        Popularity::Zipf
    };
    let cpus = machine::allowed_cpus().expect("the kernel says which");
    machine::pin(&cpus[cpus.len() - 1..]).expect("this process may choose its CPU");
    say(gate::describe());
    say(format!(
        "{items} items of 16 + {value_len} bytes, {}; medians of {runs} runs of {count} keys, in turn",
        popularity.name()
    ));
    let order = keys(items, popularity, count, 42);
    let folder = Folder::new();
    let value = vec![b'v'; value_len];

    let region = folder.0.join("region");
    let memory = items * (value_len as u64 + 64) * 5 / 4 + (64 << 20);
    let options = Options::new()
        .memory(memory)
        .prefault(true)
        .huge_pages(args.has("--huge-pages"));
    let cache = Cache::open(&Place::Path(region.clone()), &options).expect("a region in /dev/shm");
    let mut session = cache.session().expect("the first session");
    let (dashmap, papaya) = (DashMap::default(), Papaya::default());
    for key in (0..items).map(key) {
        session.set(&key, &value, 0).expect("a set is not refused");
        dashmap.insert(Box::from(key.as_slice()), value.clone());
        papaya.pin().insert(Box::from(key.as_slice()), value.clone());
    }
    assert_eq!(cache.counters().evictions, 0, "all items fit");
    if args.has("--only-c") {
        drop((session, cache));
        let c = CDoor::open(&region);
        let mut gets: [(&str, Side<'_>); 2] = [
            ("DashMap", dashmap_gets(&dashmap, value_len)),
            ("Keyway, `keyway_get` of C", c.gets(value_len)),
        ];
        return compare("get", &mut gets, &order, runs);
    }
    let c = CDoor::open(&region);
    let lmdb = (!args.has("--no-lmdb")).then(|| Lmdb::filled(&folder.0, items, &value));

    let [mut session_into, mut session_set] = std::array::from_fn(|_| cache.session().expect("another session"));
    let mut gets: Vec<(&str, Side<'_>)> = vec![
        ("DashMap", dashmap_gets(&dashmap, value_len)),
        (
            "papaya",
            gets(value_len, |key, out| {
                papaya
                    .pin()
                    .get(key.as_slice())
                    .map(|found| out.extend_from_slice(found))
                    .is_some()
            }),
        ),
        (
            "Keyway, `get_append`",
            gets(value_len, |key, out| {
                session.get_append(key, out).expect("a good key").is_some()
            }),
        ),
        ("Keyway, `get_into`", into_gets(&mut session_into, value_len)),
        ("Keyway, `keyway_get` of C", c.gets(value_len)),
    ];
    gets.extend(lmdb.as_ref().map(|lmdb| ("LMDB", lmdb.gets(value_len))));
    compare("get", &mut gets, &order, runs);
    drop(gets);

    let mut sets: Vec<(&str, Side<'_>)> = vec![
        (
            "DashMap",
            sets(|key| {
                dashmap.insert(Box::from(key.as_slice()), value.clone());
            }),
        ),
        (
            "papaya",
            sets(|key| {
                papaya.pin().insert(Box::from(key.as_slice()), value.clone());
            }),
        ),
        (
            "Keyway, `set`",
            sets(|key| {
                session_set.set(key, &value, 0).expect("a set is not refused");
            }),
        ),
    ];
    sets.extend(lmdb.as_ref().map(|lmdb| ("LMDB", sets_of(lmdb, &value))));
    compare("set over an item", &mut sets, &order, runs);
}

/// Prints nanoseconds an operation, and how many times the first side's, of each run with the first side's in the same round.
fn compare(verb: &str, sides: &mut [(&str, Side<'_>)], order: &[Key], runs: usize) {
    let mut times: Vec<[Samples; 2]> = sides.iter().map(|_| [Samples::new(), Samples::new()]).collect();
    for _ in 0..runs {
        let mut first = None;
        for ((name, side), [times, ratios]) in sides.iter_mut().zip(&mut times) {
            // Once more than what is timed: the side before has left other items in the caches, or this one's.
            side(order);
            let since = Instant::now();
            let hits = side(black_box(order));
            let ns = since.elapsed().as_secs_f64() * 1e9 / order.len() as f64;
            assert_eq!(hits, order.len(), "{name}: every key has an item");
            times.push(ns);
            ratios.push(ns / *first.get_or_insert(ns));
        }
    }
    say(head(&[verb, "ns", "beside DashMap"]));
    for ((name, _), [times, ratios]) in sides.iter().zip(&times) {
        say(row(&[(*name).to_owned(), times.show(0), ratios.show(2)]));
    }
}

/// Gets each key into the same emptied buffer.
fn gets<'a>(value_len: usize, mut get: impl FnMut(&Key, &mut Vec<u8>) -> bool + 'a) -> Side<'a> {
    let mut out = Vec::with_capacity(2 * value_len);
    Box::new(move |keys| {
        let mut hits = 0;
        for key in keys {
            out.clear();
            hits += usize::from(get(key, &mut out));
            used(&out);
        }
        assert_eq!(out.len(), value_len);
        hits
    })
}

fn dashmap_gets(map: &DashMap, value_len: usize) -> Side<'_> {
    gets(value_len, |key, out| {
        map.get(key.as_slice()).map(|found| out.extend_from_slice(&found)).is_some()
    })
}

/// Memory for one value.
struct Buffer(Vec<MaybeUninit<u8>>);

impl Target for Buffer {
    fn make_room(&mut self, item: &Item) -> bool {
        item.value_len <= self.0.len()
    }

    fn room(&mut self) -> &mut [MaybeUninit<u8>] {
        &mut self.0
    }
}

fn into_gets(session: &mut Session, value_len: usize) -> Side<'_> {
    let mut buffer = Buffer(vec![MaybeUninit::new(0); value_len]);
    Box::new(move |keys| {
        let mut hits = 0;
        for key in keys {
            hits += usize::from(session.get_into(key, Get::VALUE, &mut buffer).expect("a good key"));
            black_box(buffer.0.as_slice());
        }
        hits
    })
}

fn sets<'a>(mut set: impl FnMut(&Key) + 'a) -> Side<'a> {
    Box::new(move |keys| {
        keys.iter().for_each(&mut set);
        keys.len()
    })
}

/// The region, through the functions of C.
struct CDoor(*mut keyway);

#[allow(unsafe_code, reason = "functions of C")]
impl CDoor {
    fn open(region: &Path) -> Self {
        let place = CString::new(region.as_os_str().as_bytes()).expect("a path without zeros");
        // SAFETY: the place is a string of C, and no options are given.
        let cache = unsafe { keyway_open(place.as_ptr(), std::ptr::null()) };
        assert!(!cache.is_null(), "the region is opened");
        Self(cache)
    }

    fn gets(&self, value_len: usize) -> Side<'_> {
        // By a pointer: no C program gets the function compiled into its own.
        let get = black_box(keyway_get as unsafe extern "C" fn(_, _, _, _, _, _) -> _);
        let mut buffer = vec![0_u8; value_len];
        Box::new(move |keys| {
            let mut hits = 0;
            for key in keys {
                let to = buffer.as_mut_ptr().cast::<c_void>();
                // SAFETY: key and buffer have the lengths that are given, and the item's properties are not asked for.
                let result = unsafe { get(self.0, key.as_ptr().cast(), key.len(), to, value_len, std::ptr::null_mut()) };
                hits += usize::from(result == keyway_result::KEYWAY_OK);
                black_box(buffer.as_slice());
            }
            hits
        })
    }
}

/// A store in a file of /dev/shm.
struct Lmdb {
    env: heed::Env,
    items: heed::Database<heed::types::Bytes, heed::types::Bytes>,
}

impl Lmdb {
    #[allow(unsafe_code, reason = "heed's way to open a file that others could change")]
    fn filled(folder: &Path, items: u64, value: &[u8]) -> Self {
        let mut options = heed::EnvOpenOptions::new();
        options.map_size(usize::try_from(items).expect("items in memory") * (value.len() + 256) * 2 + (64 << 20));
        // SAFETY: no other process has the file, and nothing is to survive a crash of the machine.
        let env = unsafe {
            options.flags(heed::EnvFlags::NO_SYNC | heed::EnvFlags::WRITE_MAP);
            options.open(folder).expect("a file in /dev/shm")
        };
        let mut txn = env.write_txn().expect("the only writer");
        let database = env.create_database(&mut txn, None).expect("a new database");
        for key in (0..items).map(key) {
            database.put(&mut txn, key.as_slice(), value).expect("space for it");
        }
        txn.commit().expect("the only writer");
        Self { env, items: database }
    }

    fn gets(&self, value_len: usize) -> Side<'_> {
        gets(value_len, |key, out| {
            let txn = self.env.read_txn().expect("a free slot");
            let found = self.items.get(&txn, key.as_slice()).expect("a sound file");
            found.map(|found| out.extend_from_slice(found)).is_some()
        })
    }
}

fn sets_of<'a>(lmdb: &'a Lmdb, value: &'a [u8]) -> Side<'a> {
    sets(|key| {
        let mut txn = lmdb.env.write_txn().expect("the only writer");
        lmdb.items.put(&mut txn, key.as_slice(), value).expect("space for it");
        txn.commit().expect("the only writer");
    })
}

/// A folder of this process in /dev/shm, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let path = PathBuf::from(format!("/dev/shm/keyway-maps-{}", std::process::id()));
        std::fs::create_dir(&path).expect("a new folder in /dev/shm");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
