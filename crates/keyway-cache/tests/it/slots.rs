//! Process slots and thread slots. Their enemy: programs that have taken all of them when a server starts again, and numbers in the
//! documents that are not so.
//! Guards: P27

use keyway_cache::{Cache, OpenError, Options, Place, Session, SessionError};
use std::path::PathBuf;

/// A region's file in memory, removed at the end.
struct Region(PathBuf);

impl Region {
    fn new(name: &str) -> Self {
        let path = PathBuf::from(format!("/dev/shm/keyway-test-{}-slots-{name}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        Self(path)
    }

    /// Each opening takes a process slot, as if it were another process's.
    fn open(&self, server: bool) -> Result<Cache, OpenError> {
        let options = options(2 << 20).server(server);
        Cache::open(&Place::Path(self.0.clone()), &options)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn options(memory: u64) -> Options {
    Options::new().memory(memory).item_size_max(1024)
}

/// As many sessions as there are for this cache, and why there are no more.
fn all_sessions(cache: &Cache) -> (Vec<Session>, SessionError) {
    let mut sessions = Vec::new();
    loop {
        match cache.session() {
            Ok(session) => sessions.push(session),
            Err(error) => return (sessions, error),
        }
    }
}

#[test]
fn a_server_finds_a_process_slot_when_programs_have_taken_all_of_theirs() {
    let region = Region::new("processes");
    let mut programs: Vec<Cache> = Vec::new();
    let error = loop {
        match region.open(false) {
            Ok(cache) => programs.push(cache),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, OpenError::ProcessesFull { slots: 14, .. }), "{error}");
    assert!(
        error.to_string().contains("keyway serve") && error.to_string().contains("--sessions"),
        "{error}"
    );
    assert_eq!(programs.len(), 14);
    let server = region.open(true).unwrap();
    let successor = region.open(true).unwrap();
    assert_eq!((server.processes(), server.info().processes_max), (16, 16));
    assert!(matches!(region.open(true), Err(OpenError::ProcessesFull { slots: 16, .. })));
    drop(server);
    assert!(region.open(false).is_err(), "what is kept for servers stays theirs");
    assert!(region.open(true).is_ok());
    drop(programs.pop());
    assert!(region.open(false).is_ok());
    drop(successor);
}

#[test]
fn a_server_finds_thread_slots_when_programs_have_taken_all_of_theirs() {
    let region = Region::new("threads");
    let (program, server) = (region.open(false).unwrap(), region.open(true).unwrap());
    let (sessions, error) = all_sessions(&program);
    assert_eq!((sessions.len(), error), (16, SessionError::TableFull { slots: 16 }));
    assert!(
        error.to_string().contains("keyway serve") && error.to_string().contains("--sessions"),
        "{error}"
    );
    let (of_server, error) = all_sessions(&server);
    assert_eq!((of_server.len(), error), (16, SessionError::TableFull { slots: 32 }));
    drop(of_server);
    assert_eq!(program.session().err(), Some(SessionError::TableFull { slots: 16 }));
    assert!(server.session().is_ok());
    drop(sessions);
    assert!(program.session().is_ok());
}

#[test]
fn the_documented_numbers_are_so() {
    let room = |memory: u64, sessions: Option<usize>| {
        let options = options(memory).sessions(sessions);
        let info = Cache::open(&Place::Memfd, &options).unwrap().info();
        (info.processes_max, info.sessions_max, info.sessions_of_servers)
    };
    assert_eq!(room(2 << 20, None), (16, 32, 16));
    assert_eq!(room(64 << 20, None), (128, 128, 16));
    assert_eq!(room(64 << 20, Some(1000)), (1000, 1000, 125));
    assert_eq!(room(64 << 20, Some(32)), (128, 32, 16));
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs");
    let says = |page: &str, words: &str| {
        let page = std::fs::read_to_string(format!("{docs}/{page}")).unwrap();
        page.split_whitespace().collect::<Vec<_>>().join(" ").contains(words)
    };
    assert!(says("library.md", "a region of 64 MiB has 128, 16 of them for servers"));
    let words = "A region of 64 MiB has slots for 128 processes and 128 threads; 16 of each are for servers.";
    assert!(says("operating.md", words));
}

#[test]
fn as_many_threads_as_were_asked_for_have_room() {
    let options = options(2 << 20).sessions(500).server(true);
    let cache = Cache::open(&Place::Memfd, &options).unwrap();
    let (mut sessions, _) = all_sessions(&cache);
    assert_eq!(sessions.len(), 500);
    for (n, session) in sessions.iter_mut().enumerate() {
        session.set(format!("key-{n}").as_bytes(), b"value", 0).unwrap();
        // So many extents at a time have no room here.
        session.release();
    }
    drop(sessions);
    assert_eq!(cache.check(|_| {}).problems, Vec::<String>::new());
}

#[test]
fn room_for_too_few_or_too_many_threads_is_refused_with_the_limits() {
    for (memory, sessions) in [(2 << 20, 31), (2 << 20, 513), (1 << 30, 32769)] {
        let options = options(memory).sessions(sessions);
        let error = Cache::open(&Place::Memfd, &options).err().unwrap();
        assert!(
            matches!(error, OpenError::Sessions { asked, least: 32, .. } if asked == sessions),
            "{error}"
        );
    }
}

#[test]
fn an_address_is_refused_at_every_door_and_not_made_a_file() {
    for memory in [Some(2 << 20), None] {
        for text in ["127.0.0.1:11211", "localhost:11211"] {
            let options = options(2 << 20).memory(memory);
            let error = Cache::open(&Place::at(text), &options).err().unwrap();
            assert!(matches!(error, OpenError::Address { .. }), "{error}");
            assert!(!std::path::Path::new(text).exists());
        }
    }
}
