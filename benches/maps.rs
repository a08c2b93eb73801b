//! One thread's gets, sets, deletes and increments through the library door beside maps inside the program (`DashMap`) and beside
//! LMDB, the store in shared memory that people know: all in one process, in turn.
//!
//! Each side copies the value to the caller's memory, and hashes with foldhash where it hashes. A get of LMDB begins and ends a read
//! transaction, because one that stays open does not see what others write; a set is a write transaction, committed without any
//! write to a disk (its file is in /dev/shm, as the region's).

use benches::{Args, Turn, describe, fill, head, in_turn, keys, ns_each, on_last_cpu, popularity, region, row, say, used, warm};
use keyway_bench::servers::Folder;
use keyway_bench::workload::{Key, key};
use keyway_cache::{Cache, Delete, Deleted, Get, Item, Options, Place, Session, Target};
use keyway_capi::open::keyway_open;
use keyway_capi::read::keyway_get;
use keyway_capi::types::{keyway, keyway_result};
use std::ffi::{CString, c_void};
use std::hint::black_box;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const HELP: &str = "\
maps: gets, sets, deletes and increments beside DashMap and LMDB in the same process

    --items N      items in each map (20000; 10000000 need 16 GB)
    --value-len N  bytes of a value (128)
    --uniform      every key alike, and not zipf 0.99
    --keys N       keys of a run (131072)
    --runs N       runs of each side, in turn (15)
    --no-lmdb      without LMDB
    --huge-pages   ask for huge pages for the region

KEYWAY_GATE=off leaves the gate open, as in most figures of docs/performance.md; with KEYWAY_GATE=on a machine must have one.";

/// The keys from this one on have no item.
const ABSENT: u64 = 1 << 40;
/// New keys of a run: few enough for a cache of the processor.
const NEW: u64 = 10_000;

type Sides<'a> = Vec<(&'a str, Turn<'a>)>;
type DashMap = dashmap::DashMap<Box<[u8]>, Vec<u8>, foldhash::fast::RandomState>;

fn main() {
    let args = Args::parse(HELP);
    let (items, value_len): (u64, usize) = (args.number("--items", 20_000), args.number("--value-len", 128));
    let (count, runs): (usize, usize) = (args.number("--keys", 1 << 17), args.number("--runs", 15));
    on_last_cpu();
    describe();
    let (uniform, value) = (args.has("--uniform"), vec![b'v'; value_len]);
    say(format!(
        "{items} items of 16 + {value_len} bytes, {}; medians of {runs} runs of {count} keys, in turn",
        popularity(uniform)
    ));
    let order = &keys(items, uniform, count, 42);
    let folder = Folder::new(Path::new("/dev/shm"), "maps").expect("a new folder in /dev/shm");
    let path = folder.path().join("region");
    let memory = items * (value_len as u64 + 64) * 5 / 4 + (64 << 20);
    let options = Options::new()
        .memory(memory)
        .prefault(true)
        .huge_pages(args.has("--huge-pages"));
    let cache = Cache::open(&Place::Path(path.clone()), &options).expect("a region in /dev/shm");
    let mut session = fill(&cache, items, &value);
    let dashmap = &DashMap::default();
    for key in (0..items).map(key) {
        dashmap.insert(Box::from(key.as_slice()), value.clone());
    }
    let lmdb = (!args.has("--no-lmdb")).then(|| Lmdb::filled(folder.path(), items, &value));
    let mut into = cache.session().expect("another session");
    let copied = |out: &mut Vec<u8>, found: Option<&[u8]>| found.map(|found| out.extend_from_slice(found)).is_some();
    let of_map = gets(order, value_len, |key, out| {
        copied(out, dashmap.get(key.as_slice()).as_deref().map(Vec::as_slice))
    });
    let append = gets(order, value_len, |key, out| {
        session.get_append(key, out).expect("a good key").is_some()
    });
    let mut sides: Sides<'_> = vec![
        ("DashMap", of_map),
        ("Keyway, `get_append`", append),
        ("Keyway, `get_into`", into_gets(&mut into, order, value_len)),
        ("Keyway, `keyway_get` of C", c_gets(open_c(&path), order, value_len)),
    ];
    if let Some(lmdb) = &lmdb {
        sides.push(("LMDB", gets(order, value_len, |key, out| lmdb.get(key, out))));
    }
    compare("get", runs, sides);

    let (mut session, value) = (cache.session().expect("another session"), value.as_slice());
    let mut set = |key: &Key| session.set(key, value, 0).map(drop).expect("a set is not refused");
    let in_map = |key: &Key| drop(dashmap.insert(Box::from(key.as_slice()), value.to_vec()));
    let mut sides: Sides<'_> = vec![("DashMap", warm(order, in_map)), ("Keyway, `set`", warm(order, &mut set))];
    if let Some(lmdb) = &lmdb {
        sides.push(("LMDB", warm(order, |key| lmdb.set(key, value))));
    }
    compare("set over an item", runs, sides);

    let new: &Vec<Key> = &(ABSENT..ABSENT + NEW).map(key).collect();
    let mut other = cache.session().expect("another session");
    let mut out = Vec::new();
    let miss = warm(new, |key| {
        assert!(other.get_append(key, &mut out).expect("a good key").is_none())
    });
    compare("get of an absent key", runs, vec![("Keyway", miss)]);
    for (timed, verb) in ["set of a new key", "delete"].into_iter().enumerate() {
        let [mut one, mut two] = std::array::from_fn(|_| cache.session().expect("another session"));
        let map = set_and_delete(new, timed, in_map, |key| assert!(dashmap.remove(key.as_slice()).is_some()));
        let set = |key: &Key| one.set(key, value, 0).map(drop).expect("a set is not refused");
        let delete = |key: &Key| assert_eq!(two.delete(key, &Delete::default()), Ok(Deleted::Deleted));
        compare(
            verb,
            runs,
            vec![("DashMap", map), ("Keyway", set_and_delete(new, timed, set, delete))],
        );
    }
    let numbers = region(&Options::new().memory(64 << 20));
    let mut counting = fill(&numbers, NEW, b"1000000000");
    let order = &keys(NEW, true, 1 << 14, 42);
    let incr = warm(order, |key| counting.incr(key, 1).map(drop).expect("there is room"));
    compare("increment", runs, vec![("Keyway", incr)]);
    evicting(value, runs);
}

/// What one of two steps takes: all keys are set, and then deleted.
fn set_and_delete<'a>(
    keys: &'a [Key],
    timed: usize,
    mut set: impl FnMut(&Key) + 'a,
    mut delete: impl FnMut(&Key) + 'a,
) -> Turn<'a> {
    Box::new(move || {
        let set = ns_each(keys.len(), || keys.iter().for_each(&mut set));
        let delete = ns_each(keys.len(), || keys.iter().for_each(&mut delete));
        [set, delete][timed]
    })
}

/// Sets of new keys in a region that is full.
fn evicting(value: &[u8], runs: usize) {
    let cache = region(&Options::new().memory(64 << 20).prefault(true));
    let mut session = cache.session().expect("the first session");
    let mut next = ABSENT;
    let mut set = || {
        session.set(&key(next), value, 0).expect("a set is not refused");
        next += 1;
    };
    while cache.counters().evictions < NEW {
        set();
    }
    let side = move || ns_each(1 << 14, || (0..1 << 14).for_each(|_| set()));
    compare("set of a new key while evicting", runs, vec![("Keyway", Box::new(side))]);
}

/// Prints nanoseconds an operation, and how many times the first side's.
fn compare(verb: &str, runs: usize, mut sides: Sides<'_>) {
    say(head(&[verb, "ns", &format!("beside {}", sides[0].0)]));
    let measured = in_turn(runs, &mut sides);
    for ((name, _), [times, ratios]) in sides.iter().zip(&measured) {
        say(row(&[(*name).to_owned(), times.show(0), ratios.show(2)]));
    }
}

/// Gets each key into the same emptied buffer.
fn gets<'a>(order: &'a [Key], value_len: usize, mut get: impl FnMut(&Key, &mut Vec<u8>) -> bool + 'a) -> Turn<'a> {
    let mut out = Vec::with_capacity(2 * value_len);
    warm(order, move |key| {
        out.clear();
        assert!(get(key, &mut out), "every key has an item");
        used(&out);
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

fn into_gets<'a>(session: &'a mut Session, order: &'a [Key], value_len: usize) -> Turn<'a> {
    let mut buffer = Buffer(vec![MaybeUninit::new(0); value_len]);
    warm(order, move |key| {
        assert!(session.get_into(key, Get::VALUE, &mut buffer).expect("a good key"));
        black_box(buffer.0.as_slice());
    })
}

/// The region, through the functions of C.
#[allow(unsafe_code, reason = "a function of C")]
fn open_c(region: &Path) -> *mut keyway {
    let place = CString::new(region.as_os_str().as_bytes()).expect("a path without zeros");
    // SAFETY: the place is a string of C, and no options are given.
    let cache = unsafe { keyway_open(place.as_ptr(), std::ptr::null()) };
    assert!(!cache.is_null(), "the region is opened");
    cache
}

#[allow(unsafe_code, reason = "a function of C")]
fn c_gets(cache: *mut keyway, order: &[Key], value_len: usize) -> Turn<'_> {
    // By a pointer: no C program gets the function compiled into its own.
    let get = black_box(keyway_get as unsafe extern "C" fn(_, _, _, _, _, _) -> _);
    let mut buffer = vec![0_u8; value_len];
    warm(order, move |key| {
        let to = buffer.as_mut_ptr().cast::<c_void>();
        // SAFETY: key and buffer have the lengths that are given, and the item's properties are not asked for.
        let result = unsafe { get(cache, key.as_ptr().cast(), key.len(), to, value_len, std::ptr::null_mut()) };
        assert!(result == keyway_result::KEYWAY_OK);
        black_box(buffer.as_slice());
    })
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

    fn get(&self, key: &Key, out: &mut Vec<u8>) -> bool {
        let txn = self.env.read_txn().expect("a free slot");
        let found = self.items.get(&txn, key.as_slice()).expect("a sound file");
        found.map(|found| out.extend_from_slice(found)).is_some()
    }

    fn set(&self, key: &Key, value: &[u8]) {
        let mut txn = self.env.write_txn().expect("the only writer");
        self.items.put(&mut txn, key.as_slice(), value).expect("space for it");
        txn.commit().expect("the only writer");
    }
}
