//! Processes that may only read the region: enemy, one that can write it all the same, one that gets an answer that is not true
//! (any more), or one for which a verb does something else than for a writer.
//!
//! Server and reader are one process here, with two mappings: the server's own user is named in `readers`.
//!
//! # Safety
//!
//! The `unsafe` maps and protects pages that no thread uses, or tries to.
//! Guards: P27, P34
#![allow(unsafe_code, reason = "asks the kernel what it refuses; contract above")]

use harness::DEADLINE;
use keyway_cache::server::ServerCache as _;
use std::num::NonZeroUsize;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use keyway_cache::{
    Arithmetic, Begun, Cache, Counted, Delete, Deleted, Fetch, Gate, GateState, Get, OpenError, Options, Place, Session, Store,
    StoreMode, Stored, Token, WaitedFor, WriteError,
};
use keyway_server::{Allowed, Config, Handle, RegionSocket, Server};
use nix::errno::Errno;
use nix::sys::mman::{MapFlags, ProtFlags, mmap, mprotect};
use nix::unistd::geteuid;

/// How long readers and writers race.
const RACE: Duration = Duration::from_millis(700);

/// A folder of this test's own, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("keyway-readers-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn socket(&self) -> PathBuf {
        self.0.join("region.sock")
    }

    fn region(&self) -> PathBuf {
        self.0.join("region")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

struct Running {
    cache: Cache,
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    /// A server whose own user may only read.
    fn start(folder: &Folder, place: &Place, checksums: bool) -> Self {
        let options = Options::new().checksums(checksums);
        Self::with(folder, place, options)
    }

    fn with(folder: &Folder, place: &Place, options: Options) -> Self {
        let options = options.memory(8 << 20);
        let cache = Cache::open(place, &options).unwrap();
        let readers = Allowed {
            users: vec![geteuid().as_raw()],
            groups: Vec::new(),
        };
        let config = Config {
            tcp: vec!["127.0.0.1:0".parse().unwrap()],
            region_socket: Some(RegionSocket {
                path: folder.socket(),
                readers,
                ..RegionSocket::default()
            }),
            threads: 2,
            ..Config::default()
        };
        let server = Server::start(config, cache.clone()).unwrap();
        Self {
            cache,
            handle: server.handle(),
            thread: Some(std::thread::spawn(move || server.run().unwrap())),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.handle.shutdown();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn reader(folder: &Folder) -> Cache {
    let cache = Cache::open(&Place::Socket(folder.socket()), &Options::default()).unwrap();
    assert!(cache.is_reader());
    cache
}

fn value(session: &mut Session, key: &[u8]) -> Option<Vec<u8>> {
    session.get(key).unwrap()
}

#[test]
fn a_reader_gets_many_keys_in_one_call() {
    let folder = Folder::new("many");
    let server = Running::start(&folder, &Place::Path(folder.region()), false);
    let name = |number: usize| format!("key-{number}");
    let items: Vec<_> = (0..40).map(|number| (name(number), number.to_string())).collect();
    let mut session = server.cache.session().unwrap();
    assert!(session.set_many(&items, 0).iter().all(Result::is_ok));
    let keys: Vec<_> = (0..50).chain(0..3).map(name).collect();
    let due: Vec<_> = (0..50)
        .chain(0..3)
        .map(|number| (number < 40).then(|| number.to_string().into_bytes()))
        .collect();
    assert_eq!(reader(&folder).session().unwrap().get_many(&keys).unwrap(), due);
}

const FETCH: &[u8] = b"row";

/// Waits for another caller's computation, for as long as a test takes.
fn patient() -> Fetch<'static> {
    Fetch {
        wait: Duration::from_secs(60),
        ..Fetch::default()
    }
}

fn computes(session: &mut Session) -> Token {
    match session.fetch_begin(FETCH, &patient(), &mut Vec::new()).unwrap() {
        Begun::Compute(token) => token,
        other => panic!("{other:?}"),
    }
}

/// A reader that fetches in a thread of its own, and for now waits for another caller.
fn waits(cache: &Cache) -> JoinHandle<(Begun, Vec<u8>, Session)> {
    let cache = cache.clone();
    let thread = std::thread::spawn(move || {
        let (mut session, mut value) = (cache.session().unwrap(), Vec::new());
        let begun = session.fetch_begin(FETCH, &patient(), &mut value).unwrap();
        (begun, value, session)
    });
    // A reader that does not wait comes back in that time.
    std::thread::sleep(Duration::from_millis(200));
    assert!(!thread.is_finished());
    thread
}

#[test]
fn a_value_that_readers_fetch_is_computed_once() {
    let folder = Folder::new("fetches");
    let server = Running::start(&folder, &Place::Path(folder.region()), false);
    let mut own = server.cache.session().unwrap();
    let (reader, other) = (reader(&folder), reader(&folder));
    let mut session = reader.session().unwrap();

    // It is stored.
    let token = computes(&mut session);
    let waiting = waits(&other);
    assert!(session.fetch_store(FETCH, token, b"computed", &patient()).unwrap());
    let (begun, found, _) = waiting.join().unwrap();
    assert!(matches!(begun, Begun::Hit(_)) && found == b"computed", "{begun:?}");

    // Its caller ends, and then the store of the next one comes after a delete.
    own.delete(FETCH, &Delete::default()).unwrap();
    let _forgotten = computes(&mut session);
    let waiting = waits(&other);
    drop(session);
    let (begun, _, mut session) = waiting.join().unwrap();
    let Begun::Compute(token) = begun else { panic!("{begun:?}") };
    own.delete(FETCH, &Delete::default()).unwrap();
    assert!(!session.fetch_store(FETCH, token, b"old", &patient()).unwrap());
    assert_eq!(value(&mut own, FETCH), None);

    // It is given up, or too large; and a wait ends.
    for is_too_large in [false, true] {
        let token = computes(&mut session);
        let waiting = waits(&other);
        let soon = Fetch {
            wait: Duration::from_millis(20),
            compute_after_wait: false,
            ..Fetch::default()
        };
        let begun = reader.session().unwrap().fetch_begin(FETCH, &soon, &mut Vec::new());
        assert!(matches!(begun, Ok(Begun::Waited(WaitedFor::Flight))), "{begun:?}");
        if is_too_large {
            let stored = session.fetch_store(FETCH, token, &vec![1; 2 << 20], &patient());
            assert!(matches!(stored, Err(WriteError::TooLarge { .. })), "{stored:?}");
        } else {
            assert!(session.fetch_abandon(FETCH, token).unwrap());
        }
        let (begun, _, mut next) = waiting.join().unwrap();
        let Begun::Compute(token) = begun else { panic!("{begun:?}") };
        assert!(next.fetch_abandon(FETCH, token).unwrap());
    }

    // A program that writes computes; a reader that only waits for it takes nothing over.
    let token = computes(&mut own);
    let waiting = waits(&other);
    assert!(own.fetch_store(FETCH, token, b"its own", &patient()).unwrap());
    assert_eq!(waiting.join().unwrap().1, b"its own");
    own.delete(FETCH, &Delete::default()).unwrap();
    session.fetch_wait(FETCH, Duration::from_secs(60)).unwrap();
    let token = computes(&mut own);
    let remembered = Fetch {
        negative_ttl: 60,
        ..Fetch::default()
    };
    assert!(own.fetch_store_nothing(FETCH, token, &remembered).unwrap());
    let begun = session.fetch_begin(FETCH, &patient(), &mut Vec::new());
    assert!(matches!(begun, Ok(Begun::Nothing)), "{begun:?}");

    // A key that has no lease is computed by each, and not stored.
    let begun = session.fetch_begin(b"two words", &patient(), &mut Vec::new()).unwrap();
    let Begun::Compute(token) = begun else { panic!("{begun:?}") };
    assert!(!session.fetch_store(b"two words", token, b"value", &patient()).unwrap());
}

#[test]
fn the_kernel_refuses_every_way_to_write() {
    let folder = Folder::new("kernel");
    let server = Running::start(&folder, &Place::Path(folder.region()), false);
    let file = server.cache.descriptor_to_read().unwrap();
    assert_eq!(
        file.write_at(b"x", 4096).unwrap_err().raw_os_error(),
        Some(Errno::EBADF as i32)
    );
    assert!(file.set_len(0).is_err());
    let page = NonZeroUsize::new(4096).unwrap();
    // SAFETY: a new mapping at an address of the kernel's choice, which is never touched.
    let map = |prot| unsafe { mmap(None, page, prot, MapFlags::MAP_SHARED, &file, 0) };
    assert_eq!(map(ProtFlags::PROT_READ | ProtFlags::PROT_WRITE).err(), Some(Errno::EACCES));
    let mapping = map(ProtFlags::PROT_READ).unwrap();
    let both = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: no thread uses the page.
    let protected = unsafe { mprotect(mapping, page.get(), both) };
    assert_eq!(protected, Err(Errno::EACCES));
    // What the library maps for a reader is such a mapping.
    let _reader = reader(&folder);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let name = folder.region().display().to_string();
    let mine: Vec<&str> = maps.lines().filter(|line| line.ends_with(&name)).collect();
    let large = |line: &&&str| {
        let (from, to) = line.split(' ').next().unwrap().split_once('-').unwrap();
        let number = |text| u64::from_str_radix(text, 16).unwrap();
        number(to) - number(from) > 8 << 20
    };
    let read_only: Vec<_> = mine.iter().filter(large).filter(|line| line.contains(" r--s ")).collect();
    assert_eq!(read_only.len(), 1, "{mine:#?}");
    let from = read_only[0].split('-').next().unwrap();
    let at = std::ptr::NonNull::new(usize::from_str_radix(from, 16).unwrap() as *mut nix::libc::c_void).unwrap();
    // SAFETY: it is refused; were it not, the page would only become writable.
    assert_eq!(unsafe { mprotect(at, page.get(), both) }, Err(Errno::EACCES));
}

#[test]
fn anonymous_memory_cannot_be_opened_again_by_strangers() {
    let folder = Folder::new("memfd");
    let server = Running::start(&folder, &Place::Memfd, false);
    let file = server.cache.descriptor_to_read().unwrap();
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let reader = reader(&folder);
    let mut session = reader.session().unwrap();
    session.set(b"key", b"value", 0).unwrap();
    assert_eq!(value(&mut session, b"key").unwrap(), b"value");
}

#[test]
fn every_verb_does_what_it_does_for_a_writer() {
    for checksums in [false, true] {
        let folder = Folder::new(if checksums { "verbs-checked" } else { "verbs" });
        let server = Running::start(&folder, &Place::Path(folder.region()), checksums);
        let reader = reader(&folder);
        let mut session = reader.session().unwrap();
        verbs(&mut session);
        let mut own = server.cache.session().unwrap();
        assert_eq!(value(&mut own, b"joined").unwrap(), b"<<middle>>");
        // It has no place in the region, and leaves none.
        assert_eq!(reader.info().sessions, server.cache.info().sessions);
        assert!(reader.grow(1 << 30).is_err() && !reader.close());
    }
}

fn verbs(session: &mut Session) {
    let details = Get {
        value: true,
        details: true,
        ..Get::default()
    };
    let with = |mode| Store {
        mode,
        flags: 9,
        ..Store::default()
    };
    assert_eq!(value(session, b"absent"), None);
    let Stored::Stored { cas, value_len: 3, .. } = session.store(b"key", b"one", &with(StoreMode::Set)).unwrap() else {
        panic!("not stored");
    };
    let mut out = Vec::new();
    let item = session.get_with(b"key", &details, &mut out, |_, _| {}).unwrap().unwrap();
    assert_eq!(
        (out.as_slice(), item.flags, item.cas, item.ttl_s),
        (&b"one"[..], 9, cas, None)
    );
    assert_eq!(
        session.store(b"key", b"two", &with(StoreMode::Add)).unwrap(),
        Stored::NotStored
    );
    assert_eq!(
        session.store(b"none", b"two", &with(StoreMode::Replace)).unwrap(),
        Stored::NotStored
    );
    let compare = |cas| Store {
        compare_cas: Some(cas),
        ..Store::default()
    };
    assert_eq!(session.store(b"key", b"two", &compare(cas + 1)).unwrap(), Stored::Exists);
    assert_eq!(session.store(b"none", b"two", &compare(cas)).unwrap(), Stored::NotFound);
    assert!(matches!(
        session.store(b"key", b"two", &compare(cas)).unwrap(),
        Stored::Stored { .. }
    ));
    session.set(b"joined", b"middle", 0).unwrap();
    for (mode, piece) in [(StoreMode::Append, b">>"), (StoreMode::Prepend, b"<<")] {
        assert!(matches!(
            session.store(b"joined", piece, &with(mode)).unwrap(),
            Stored::Stored { .. }
        ));
    }
    assert_eq!(value(session, b"joined").unwrap(), b"<<middle>>");
    let count = |delta, decrement| Arithmetic {
        delta,
        decrement,
        ..Arithmetic::default()
    };
    assert_eq!(session.arithmetic(b"number", &count(1, false)).unwrap(), Counted::NotFound);
    let vivify = Arithmetic {
        vivify: Some((7, 0)),
        ..count(1, false)
    };
    assert!(matches!(
        session.arithmetic(b"number", &vivify).unwrap(),
        Counted::Value { value: 7, .. }
    ));
    assert!(matches!(
        session.arithmetic(b"number", &count(5, false)).unwrap(),
        Counted::Value { value: 12, .. }
    ));
    assert!(matches!(
        session.arithmetic(b"number", &count(50, true)).unwrap(),
        Counted::Value { value: 0, .. }
    ));
    assert_eq!(session.arithmetic(b"key", &count(1, false)).unwrap(), Counted::NotANumber);
    assert!(session.touch(b"key", 1000).unwrap() && !session.touch(b"none", 1000).unwrap());
    let touch = Get {
        exptime: Some(2000),
        ..details
    };
    out.clear();
    let item = session.get_with(b"key", &touch, &mut out, |_, _| {}).unwrap().unwrap();
    assert_eq!(out, b"two");
    assert!(item.ttl_s.is_some_and(|ttl| ttl > 1900), "{item:?}");
    // Any byte in a key, any in a value, and one that has segments of its own.
    let large: Vec<u8> = (0..200_000u32).map(|n| n.to_le_bytes()[1]).collect();
    for key in [&b"two words"[..], b"\0\r\n\xFF", &[b'k'; 250], &[0xEE; 250], &[b' '; 186]] {
        session.set(key, &large, 0).unwrap();
        assert!(value(session, key).unwrap() == large);
        assert_eq!(session.delete(key, &Delete::default()).unwrap(), Deleted::Deleted);
        assert_eq!(value(session, key), None);
    }
    assert_eq!(session.delete(b"none", &Delete::default()).unwrap(), Deleted::NotFound);
    let huge = session.set(b"huge", &vec![0; 2 << 20], 0);
    assert!(matches!(huge, Err(WriteError::TooLarge { .. })), "{huge:?}");
    for key in [&b""[..], &[b'k'; 251]] {
        assert!(matches!(session.set(key, b"", 0), Err(WriteError::KeyLength { .. })));
        assert!(matches!(
            session.get_with(key, &details, &mut out, |_, _| {}),
            Err(WriteError::KeyLength { .. })
        ));
    }
    let mut keys = 0;
    let mut cursor = Some(0);
    while let Some(at) = cursor {
        cursor = session.walk(at, 100, |_, _| keys += 1);
    }
    assert_eq!(keys, 3, "key, joined, number");
    session.set(b"gone", b"soon", 0).unwrap();
    let before = value(session, b"joined");
    session.flush_all(0).unwrap();
    assert_eq!(value(session, b"gone"), None);
    session.set(b"joined", &before.unwrap(), 0).unwrap();
}

/// Values of which each says its number, in lengths of one segment and of several.
fn numbered(number: u64) -> Vec<u8> {
    let len = if number.is_multiple_of(16) { 8_000 } else { 20 };
    number.to_le_bytes().into_iter().cycle().take(len * 8).collect()
}

#[test]
fn a_reader_sees_what_was_acknowledged_and_nothing_torn_while_memory_is_recycled() {
    let folder = Folder::new("race");
    let server = Running::start(&folder, &Place::Path(folder.region()), false);
    let reader = reader(&folder);
    let (begun, done, over) = (AtomicU64::new(1), AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        // Through the server, from a reader's session: the acknowledgement is the server's.
        scope.spawn(|| {
            let mut session = reader.session().unwrap();
            let mut number = 0;
            while !over.load(SeqCst) {
                number += 1;
                begun.store(number, SeqCst);
                session.set(b"raced", &numbered(number), 0).unwrap();
                done.store(number, SeqCst);
            }
        });
        scope.spawn(|| {
            let mut session = server.cache.session().unwrap();
            let mut other = 0_u64;
            while !over.load(SeqCst) {
                // Segments are purged all the time.
                other += 1;
                session
                    .set(format!("other-{}", other % 20_000).as_bytes(), &[1; 900], 0)
                    .unwrap();
            }
        });
        let mut session = reader.session().unwrap();
        let (began, mut seen, mut last) = (Instant::now(), 0, 0);
        // Longer where memory is recycled slowly.
        let is_recycled = || server.cache.counters().segments_recycled > 100;
        while began.elapsed() < RACE || seen < 1000 || !is_recycled() && began.elapsed() < DEADLINE {
            let least = done.load(SeqCst);
            let found = value(&mut session, b"raced");
            let most = begun.load(SeqCst);
            let Some(found) = found else {
                // Evicted.
                continue;
            };
            let number = u64::from_le_bytes(found[..8].try_into().unwrap());
            assert!(found == numbered(number), "torn: {number}");
            assert!(
                (least.max(last)..=most).contains(&number),
                "{least} to {most}, and {last}: {number}"
            );
            (seen, last) = (seen + 1, number);
        }
        over.store(true, SeqCst);
    });
    assert!(server.cache.counters().segments_recycled > 100);
}

#[test]
fn without_the_server_there_is_reading_and_with_the_next_one_writing() {
    let folder = Folder::new("restart");
    let server = Running::start(&folder, &Place::Path(folder.region()), false);
    let reader = reader(&folder);
    let mut session = reader.session().unwrap();
    session.set(b"key", b"value", 0).unwrap();
    drop(server);
    assert_eq!(value(&mut session, b"key").unwrap(), b"value");
    assert_eq!(session.set(b"key", b"other", 0), Err(WriteError::Unserved));
    assert_eq!(session.delete(b"key", &Delete::default()), Err(WriteError::Unserved));
    let server = Running::start(&folder, &Place::Path(folder.region()), false);
    session.set(b"key", b"again", 0).unwrap();
    assert_eq!(value(&mut session, b"key").unwrap(), b"again");
    // Another region in its place is not written to by a process that reads the old one.
    drop(server);
    std::fs::remove_file(folder.region()).unwrap();
    let _server = Running::start(&folder, &Place::Path(folder.region()), false);
    assert_eq!(session.set(b"key", b"lost", 0), Err(WriteError::Unserved));
    assert_eq!(value(&mut session, b"key").unwrap(), b"again");
}

/// Words that only a durable region has, or that announce work to be done: a process with write access does it when it meets them.
#[test]
fn a_reader_stores_nothing_whatever_the_words_say() {
    let folder = Folder::new("words");
    let server = Running::start(&folder, &Place::Path(folder.region()), false);
    let reader = reader(&folder);
    let mut session = reader.session().unwrap();
    for n in 0..2_000 {
        session.set(format!("key-{n}").as_bytes(), b"value", 0).unwrap();
    }
    let file = std::fs::File::options().read(true).write(true).open(folder.region()).unwrap();
    // The table word, the flush word, the clock (`docs/region.md`): dirty, due, and of yesterday.
    for (at, bits) in [(512, 1 << 63), (520, 1 << 63), (520, 1 << 24), (536, 1)] {
        let mut word = [0; 8];
        file.read_exact_at(&mut word, at).unwrap();
        let scribbled = if at == 536 { bits } else { u64::from_le_bytes(word) | bits };
        file.write_all_at(&scribbled.to_le_bytes(), at).unwrap();
        for n in 0..100 {
            value(&mut session, format!("key-{n}").as_bytes());
        }
        session.walk(0, 100, |_, _| {});
        file.write_all_at(&word, at).unwrap();
    }
    // D in every slot of the first index segment.
    let layout = keyway_layout(&folder.region());
    let mut words = vec![0; 16 << 10];
    file.read_exact_at(&mut words, layout).unwrap();
    let dirty: Vec<u8> = words
        .chunks_exact(8)
        .flat_map(|w| (u64::from_le_bytes(w.try_into().unwrap()) | 1 << 61).to_le_bytes())
        .collect();
    file.write_all_at(&dirty, layout).unwrap();
    let missed = (0..30)
        .filter(|n| value(&mut session, format!("key-{n}").as_bytes()).is_none())
        .count();
    assert!(missed > 0, "no key of these has its slot there");
    file.write_all_at(&words, layout).unwrap();
    assert!(value(&mut session, b"key-1").is_some());
    assert!(reader.check(|_| {}).is_sound());
    drop(server);
}

/// Where the segments of a region begin: behind the superblock, the arrays are as long as its shape says.
fn keyway_layout(region: &Path) -> u64 {
    let cache = Cache::open(&Place::Path(region.to_path_buf()), &Options::default()).unwrap();
    let info = cache.info();
    let len = std::fs::metadata(region).unwrap().len();
    len - info.segments * info.segment_bytes
}

#[test]
fn a_program_that_asks_for_another_region_gets_an_error() {
    let folder = Folder::new("asked");
    let _server = Running::start(&folder, &Place::Path(folder.region()), false);
    let checksums = Options::new().checksums(true);
    let why = Cache::open(&Place::Socket(folder.socket()), &checksums).err().unwrap();
    assert!(matches!(why, OpenError::NotChecksummed { .. }), "{why}");
}

#[test]
fn a_durable_region_is_not_given_to_readers_and_they_get_an_error() {
    let folder = Folder::new("durable");
    let durable = Options::new().durable(true).durable_rehearsed(true);
    let _server = Running::with(&folder, &Place::Path(folder.region()), durable);
    let why = Cache::open(&Place::Socket(folder.socket()), &Options::default())
        .err()
        .unwrap();
    let told = why.to_string();
    assert!(
        matches!(why, OpenError::NotHandedOut { .. }) && told.contains("durable"),
        "{told}"
    );
}

#[test]
fn a_reader_has_no_gate_and_gets_the_reason_and_its_gets_work_with_other_gates() {
    let folder = Folder::new("gate");
    let server = Running::start(&folder, &Place::Path(folder.region()), false);
    let reader = reader(&folder);
    match reader.info().gate {
        GateState::Unavailable(why) => assert!(why.contains("only read"), "{why}"),
        other => panic!("{other}"),
    }
    let off = Options::new().gate(Gate::Off);
    let open = Cache::open(&Place::Socket(folder.socket()), &off).unwrap();
    assert_eq!(open.info().gate, GateState::Off);
    // In the same process others have a gate, where there can be one; a thread uses both, one in the other's callback too.
    let own = Cache::open(&Place::Memfd, &Options::default()).unwrap();
    let mut session = reader.session().unwrap();
    let mut gated = own.session().unwrap();
    server.cache.session().unwrap().set(b"key", b"of the server", 0).unwrap();
    gated.set(b"key", b"of its own", 0).unwrap();
    let how = Get {
        value: true,
        ..Get::default()
    };
    let mut out = Vec::new();
    let mut inner = None;
    let found = gated.get_with(b"key", &how, &mut out, |_, _| inner = value(&mut session, b"key"));
    assert!(found.unwrap().is_some());
    assert_eq!(
        (out.as_slice(), inner.as_deref()),
        (&b"of its own"[..], Some(&b"of the server"[..]))
    );
    session.set(b"key", b"by the reader", 0).unwrap();
    assert_eq!(value(&mut session, b"key").as_deref(), Some(&b"by the reader"[..]));
}
