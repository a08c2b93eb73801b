//! Programs that find no slot in the region: enemy, one that fails beside a server that could do it for them; one that is served by
//! something that is no server of its region, or although it may not write the region; one for which a verb does something else.
//!
//! Server and programs are one process here, with a mapping each.
//! Guards: P27

use keyway_cache::server::ServerCache as _;
use std::path::PathBuf;
use std::thread::JoinHandle;

use keyway_cache::{
    Arithmetic, Cache, Counted, Delete, Deleted, Get, Number, OpenError, Options, Place, Session, SessionError, Store, StoreMode,
    Stored, WriteError,
};
use keyway_server::{Config, Handle, RegionSocket, Server};

/// A folder of this test's own in memory, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = PathBuf::from(format!("/dev/shm/keyway-test-{}-slotless-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn region(&self) -> Place {
        Place::Path(self.0.join("region"))
    }

    fn socket(&self) -> Place {
        Place::Socket(self.0.join("socket"))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn options() -> Options {
    Options::new().memory(2 << 20).item_size_max(512 << 10)
}

struct Running {
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    fn start(folder: &Folder) -> Self {
        Self::with(folder, options())
    }

    fn with(folder: &Folder, options: Options) -> Self {
        let of_server = options.server(true);
        let cache = Cache::open(&folder.region(), &of_server).unwrap();
        let config = Config {
            tcp: vec!["127.0.0.1:0".parse().unwrap()],
            region_socket: Some(RegionSocket {
                path: folder.0.join("socket"),
                ..RegionSocket::default()
            }),
            threads: 2,
            ..Config::default()
        };
        let server = Server::start(config, cache).unwrap();
        Self {
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

/// Programs that have taken every process slot that is for programs.
fn all_programs(folder: &Folder) -> Vec<Cache> {
    let mut programs = Vec::new();
    loop {
        match Cache::open(&folder.region(), &options()) {
            Ok(cache) if cache.is_reader() => return programs,
            Ok(cache) => programs.push(cache),
            Err(OpenError::ProcessesFull { .. }) => return programs,
            Err(error) => panic!("{error}"),
        }
    }
}

fn value(session: &mut Session, key: &[u8]) -> Option<Vec<u8>> {
    session.get(key).unwrap()
}

/// Every verb, as another session sees what it does.
fn does_everything(one: &mut Session, other: &mut Session) {
    one.set(b"key", b"value", 0).unwrap();
    assert_eq!(value(one, b"key").as_deref(), Some(&b"value"[..]));
    assert_eq!(value(other, b"key").as_deref(), Some(&b"value"[..]));
    other.set(b"key", b"other", 0).unwrap();
    assert_eq!(value(one, b"key").as_deref(), Some(&b"other"[..]));
    let add = Store {
        mode: StoreMode::Add,
        ..Store::default()
    };
    assert_eq!(one.store(b"key", b"again", &add).unwrap(), Stored::NotStored);
    assert!(one.touch(b"key", 1000).unwrap());
    let mut out = Vec::new();
    let and_touch = Get {
        value: true,
        exptime: Some(2000),
        ..Get::default()
    };
    let item = one
        .get_with(b"key", &and_touch, &mut out, |_, out| out.extend(b"head:"))
        .unwrap()
        .unwrap();
    assert!(out == b"head:other" && item.ttl_s > Some(1900), "{item:?}");
    one.set(b"number", b"41", 0).unwrap();
    assert_eq!(one.incr(b"number", 1).unwrap(), Number::Is(42));
    let count = Arithmetic {
        delta: 2,
        decrement: true,
        ..Arithmetic::default()
    };
    assert!(matches!(
        one.arithmetic(b"number", &count).unwrap(),
        Counted::Value { value: 40, .. }
    ));
    let large = vec![b'l'; 300_000];
    one.set(b"large", &large, 0).unwrap();
    assert_eq!(value(one, b"large").unwrap(), large);
    let mut keys = Vec::new();
    let mut cursor = Some(0);
    while let Some(from) = cursor {
        cursor = one.walk(from, 100, |key, _| keys.push(key.to_vec()));
    }
    keys.sort();
    assert_eq!(keys, [&b"key"[..], b"large", b"number"]);
    assert_eq!(one.delete(b"key", &Delete::default()).unwrap(), Deleted::Deleted);
    assert_eq!(value(other, b"key"), None);
    one.flush_all(0).unwrap();
    assert_eq!(value(other, b"number"), None);
}

#[test]
fn a_process_without_a_slot_is_served() {
    for by_socket in [false, true] {
        let folder = Folder::new(if by_socket { "socket" } else { "path" });
        let running = Running::start(&folder);
        let programs = all_programs(&folder);
        assert_eq!(
            programs.len(),
            13,
            "14 of 16 slots are for programs, and the server has taken one of them"
        );
        let place = if by_socket { folder.socket() } else { folder.region() };
        let late = Cache::open(&place, &options()).unwrap();
        assert!(late.is_reader());
        let mut session = late.session().unwrap();
        does_everything(&mut session, &mut programs[0].session().unwrap());
        // The server is found again after a restart.
        session.set(b"key", b"value", 0).unwrap();
        drop(running);
        assert_eq!(session.set(b"key", b"lost", 0), Err(WriteError::Unserved));
        let add = Store {
            mode: StoreMode::Add,
            ..Store::default()
        };
        let too_large = session.store(b"key", &[0; 1 << 20], &add);
        assert!(
            matches!(too_large, Err(WriteError::TooLarge { .. })),
            "no server is needed to know that"
        );
        assert_eq!(
            value(&mut session, b"key").as_deref(),
            Some(&b"value"[..]),
            "it reads by itself"
        );
        let _again = Running::start(&folder);
        session.set(b"key", b"more", 0).unwrap();
        assert_eq!(value(&mut session, b"key").as_deref(), Some(&b"more"[..]));
    }
}

#[test]
fn without_a_server_a_full_region_says_so() {
    let folder = Folder::new("alone");
    let programs = all_programs(&folder);
    assert_eq!(programs.len(), 14);
    let error = Cache::open(&folder.region(), &options()).err().unwrap();
    assert!(matches!(error, OpenError::ProcessesFull { slots: 14, .. }), "{error}");
    let mut sessions: Vec<Session> = Vec::new();
    let error = loop {
        match programs[0].session() {
            Ok(session) => sessions.push(session),
            Err(error) => break error,
        }
    };
    assert_eq!((sessions.len(), error), (16, SessionError::TableFull { slots: 16 }));
}

#[test]
fn a_thread_without_a_slot_is_served() {
    for by_socket in [false, true] {
        let folder = Folder::new(if by_socket { "threads-socket" } else { "threads" });
        let _running = Running::start(&folder);
        let place = if by_socket { folder.socket() } else { folder.region() };
        let cache = Cache::open(&place, &options()).unwrap();
        assert!(!cache.is_reader());
        // The server has four of the first 16.
        let mut sessions: Vec<Session> = (0..12).map(|_| cache.session().unwrap()).collect();
        assert_eq!(cache.info().sessions, 16);
        let mut late = cache.session().unwrap();
        assert_eq!(cache.info().sessions, 16, "it takes no slot");
        does_everything(&mut late, &mut sessions[0]);
        // Each thread of a program that does not count them.
        std::thread::scope(|scope| {
            for number in 0..10 {
                let cache = &cache;
                scope.spawn(move || {
                    let key = format!("thread-{number}");
                    let stored = cache
                        .with_session(|session, _| session.set(key.as_bytes(), b"value", 0))
                        .unwrap();
                    stored.unwrap();
                    let len = cache
                        .with_session(|session, out| session.get_append(key.as_bytes(), out).unwrap().map(|_| out.len()))
                        .unwrap();
                    assert_eq!(len, Some(5));
                });
            }
        });
        drop(sessions);
        assert_eq!(
            value(&mut cache.session().unwrap(), b"thread-9").as_deref(),
            Some(&b"value"[..])
        );
    }
}

/// The forms of a store, by what they need to know of the present item's CAS unique.
fn forms(cas: u64) -> Vec<(&'static str, Store)> {
    let of = |mode| Store {
        mode,
        ..Store::default()
    };
    let cas_of = |cas| Store {
        compare_cas: Some(cas),
        ..Store::default()
    };
    vec![
        ("set", of(StoreMode::Set)),
        (
            "set with flags",
            Store {
                flags: 7,
                ..Store::default()
            },
        ),
        ("add", of(StoreMode::Add)),
        ("replace", of(StoreMode::Replace)),
        ("append", of(StoreMode::Append)),
        ("prepend", of(StoreMode::Prepend)),
        ("cas", cas_of(cas)),
        ("cas with another unique", cas_of(cas + 12_345)),
    ]
}

/// What comes of each form, for a present item, in order: the kind of error or answer, and what the item is afterwards.
fn failures(
    session: &mut Session,
    who: &str,
    mut before: impl FnMut(),
    value_len: usize,
) -> Vec<(&'static str, String, &'static str)> {
    let key = |number: usize| format!("{who} {number}").into_bytes();
    let mut forms_of = Vec::new();
    for number in 0..forms(0).len() {
        session.set(&key(number), b"old", 0).unwrap();
        let details = Get {
            details: true,
            ..Get::default()
        };
        let item = session
            .get_with(&key(number), &details, &mut Vec::new(), |_, _| ())
            .unwrap()
            .unwrap();
        forms_of.extend(forms(item.cas).into_iter().nth(number));
    }
    before();
    let large = vec![b'l'; value_len];
    let mut came = Vec::new();
    for (number, (name, how)) in forms_of.into_iter().enumerate() {
        let outcome = match session.store(&key(number), &large, &how) {
            Err(WriteError::TooLarge { .. }) => "too large".to_owned(),
            Ok(Stored::Stored { .. }) => "stored".to_owned(),
            outcome => format!("{outcome:?}"),
        };
        let is_now = match value(session, &key(number)).as_deref() {
            None => "absent",
            Some(b"old") => "old",
            Some(_) => "new",
        };
        came.push((name, outcome, is_now));
    }
    came
}

#[test]
fn a_store_that_fails_changes_what_it_changes_with_a_slot() {
    for (name, evicts, value_len) in [
        ("too-large", true, 600_000),
        ("joined", true, 524_200),
        ("no-room", false, 200_000),
    ] {
        let folder = Folder::new(name);
        let options = options().evict(evicts);
        let _running = Running::with(&folder, options.clone());
        let cache = Cache::open(&folder.region(), &options).unwrap();
        let mut sessions: Vec<Session> = (0..12).map(|_| cache.session().unwrap()).collect();
        let mut served = cache.session().unwrap();
        let mut direct = sessions.pop().unwrap();
        let mut filler = sessions.pop().unwrap();
        let mut fill = || {
            let mut number = 0;
            while !evicts && filler.set(format!("fill {number}").as_bytes(), &[b'f'; 3000], 0).is_ok() {
                number += 1;
            }
        };
        let with_slot = failures(&mut direct, "direct", &mut fill, value_len);
        if !evicts {
            served.flush_all(0).unwrap();
        }
        let without = failures(&mut served, "served", &mut fill, value_len);
        assert_eq!(without, with_slot, "{name}");
        let count = |what| without.iter().filter(|(_, _, item)| *item == what).count();
        match name {
            // A set removes what it cannot replace; every other form leaves it.
            "too-large" => assert_eq!((count("absent"), count("old")), (2, 6)),
            "joined" => assert_eq!(count("absent"), 0),
            _ => assert!(count("absent") <= 2 && count("old") >= 4, "{without:?}"),
        }
    }
}

#[test]
fn a_durable_region_is_not_read_without_a_slot() {
    let folder = Folder::new("durable");
    let durable = options().durable(true).durable_rehearsed(true);
    let cache = Cache::open(&folder.region(), &durable).unwrap();
    let server = Server::start(
        Config {
            tcp: vec!["127.0.0.1:0".parse().unwrap()],
            threads: 1,
            ..Config::default()
        },
        cache,
    )
    .unwrap();
    let running = Running {
        handle: server.handle(),
        thread: Some(std::thread::spawn(move || server.run().unwrap())),
    };
    let mut programs = Vec::new();
    let error = loop {
        match Cache::open(&folder.region(), &durable) {
            Ok(cache) => programs.push(cache),
            Err(error) => break error,
        }
        assert!(programs.len() <= 16);
    };
    assert!(matches!(error, OpenError::ProcessesFull { .. }), "{error}");
    drop(running);
}

#[test]
fn who_may_write_the_region_is_read_from_its_mode() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let folder = Folder::new("mode");
    let cache = Cache::open(&folder.region(), &options()).unwrap();
    let path = folder.0.join("region");
    let meta = std::fs::metadata(&path).unwrap();
    let (user, group) = (meta.uid(), meta.gid());
    let may = |mode| {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        [(user, group), (user + 1, group), (user + 1, group + 1), (0, group + 1)]
            .map(|(user, group)| cache.may_write(user, group))
    };
    assert_eq!(may(0o600), [true, false, false, true]);
    assert_eq!(may(0o660), [true, true, false, true]);
    assert_eq!(may(0o606), [true, false, true, true]);
    assert_eq!(may(0o644), [true, false, false, true], "reading is not enough");
}
