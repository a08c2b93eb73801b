//! A region that is handed out: enemy, a client that takes what it cannot use, changes its size, or is lost with its parent.
//! Guards: P34

use harness::Scratch;
use keyway_cache::server::ServerCache as _;
use keyway_cache::server::handout::GRANTED;
use keyway_cache::{Cache, LocalError, OpenError, Options, Place};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use std::fs::File;
use std::io::{IoSlice, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixListener;
use std::path::Path;

fn options() -> Options {
    Options::new().memory(4 << 20)
}

/// Hands out descriptors once, as a server does.
fn hand_out(listener: &UnixListener, files: &[File]) {
    let (stream, _) = listener.accept().unwrap();
    let descriptors: Vec<i32> = files.iter().map(AsRawFd::as_raw_fd).collect();
    let parts = [IoSlice::new(GRANTED.as_bytes())];
    let rights = [ControlMessage::ScmRights(&descriptors)];
    sendmsg::<()>(stream.as_raw_fd(), &parts, &rights, MsgFlags::empty(), None).unwrap();
}

/// Opens what another process hands out.
fn opened(folder: &Scratch, options: &Options, files: &[File]) -> Result<Cache, OpenError> {
    let path = folder.join("socket");
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| hand_out(&listener, files));
        Cache::open(&Place::at(&path), options)
    })
}

fn value(cache: &Cache, key: &[u8]) -> Result<Option<Vec<u8>>, LocalError> {
    cache.with_session(|session, _| session.get(key).unwrap())
}

#[test]
fn anonymous_memory_is_shared_by_hand() {
    let folder = Scratch::new();
    let server = Cache::open(&Place::Memfd, &options()).unwrap();
    server
        .with_session(|session, _| session.set(b"key", b"value", 0).unwrap())
        .unwrap();
    let larger = options().memory(64 << 20);
    let client = opened(&folder, &larger, &server.descriptors().unwrap()).unwrap();
    assert_eq!(value(&client, b"key").unwrap().as_deref(), Some(&b"value"[..]));
    assert_eq!(
        client.info().limit_bytes,
        server.info().limit_bytes,
        "a client does not change the size"
    );
    client
        .with_session(|session, _| session.set(b"back", b"again", 0).unwrap())
        .unwrap();
    assert_eq!(value(&server, b"back").unwrap().as_deref(), Some(&b"again"[..]));
    assert_eq!(server.info().sessions, 2);
    client.leave();
    client.close();
    assert_eq!(server.info().sessions, 1);
}

#[test]
fn each_client_is_alive_by_a_lock_of_its_own() {
    let folder = Scratch::new();
    let server = Cache::open(&Place::Memfd, &options()).unwrap();
    let clients: Vec<Cache> = (0..3)
        .map(|_| opened(&folder, &options(), &server.descriptors().unwrap()).unwrap())
        .collect();
    let sessions: Vec<_> = clients.iter().map(|client| client.session().unwrap()).collect();
    // A process that attaches takes back what the dead held: none here is dead.
    drop(opened(&folder, &options(), &server.descriptors().unwrap()).unwrap());
    assert_eq!(server.info().sessions, 3);
    drop(sessions);
    assert_eq!(server.info().sessions, 0);
}

#[test]
fn another_version_is_refused_with_both_named() {
    let folder = Scratch::new();
    let path = folder.join("region");
    Cache::open(&Place::Path(path.clone()), &options()).unwrap().close();
    // The version's place: behind the magic number.
    let mut file = File::options().write(true).open(&path).unwrap();
    file.seek(SeekFrom::Start(8)).unwrap();
    file.write_all(&7_u64.to_le_bytes()).unwrap();
    let open = || File::options().read(true).write(true).open(&path).unwrap();
    let error = opened(&folder, &options(), &[open(), open()]).err().unwrap().to_string();
    assert!(
        error.contains("(format 7, layout ") && error.contains("(format 3, layout "),
        "{error}"
    );
}

#[test]
fn what_is_no_file_is_refused() {
    let folder = Scratch::new();
    let open = || File::open("/dev/null").unwrap();
    let error = opened(&folder, &options(), &[open(), open()]).err().unwrap();
    assert!(matches!(error, OpenError::NotAFile { .. }), "{error}");
}

#[test]
fn a_place_is_a_socket_if_one_is_there() {
    let folder = Scratch::new();
    let path = folder.join("socket");
    assert_eq!(Place::at(&path), Place::Path(path.clone()));
    let _listener = UnixListener::bind(&path).unwrap();
    assert_eq!(Place::at(&path), Place::Socket(path.clone()));
    assert_eq!(Place::at(Path::new("/dev/null")), Place::Path("/dev/null".into()));
}
