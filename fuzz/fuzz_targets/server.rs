//! A server, end to end: whatever arrives on a connection, on one that has to log in first, or as datagrams, and however it is cut. The
//! server ends no connection later than it should, goes on, and answers others. Who logs in as the user whose password is known is confined
//! to a key prefix: an item of another key is neither read nor changed.
//!
//! The servers' workers run in this thread, so an input takes no switch of threads.
//! Guards: P37, P38

#![no_main]

use keyway_cache::{Cache, Options, Place};
use keyway_server::{Config, Driven, EventLoop};
use libfuzzer_sys::fuzz_target;
use std::cell::RefCell;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::LazyLock;

/// Rounds within which a server does what needs no other thread and no clock, however long the input is.
const ROUNDS_MAX: usize = 100_000;
/// The password of the user who may do everything. No input has it.
const OWNER: &str = "a5e1-owner-4f21-b7c0";
/// The value of the item that nobody else may use.
const OUTSIDE: &[u8] = b"8d02-outside-c91e-773a";
/// A datagram's frame header: its number, which of how many it is, and two bytes for later (protocol.txt, "UDP protocol").
const FRAME: usize = 8;

/// A server, and a connection to it that must stay well.
struct Tried {
    server: Driven,
    well: UnixStream,
}

impl Tried {
    fn start(config: Config) -> Self {
        let options = Options::new().memory(2 << 20).item_size_max(64 << 10);
        let cache = Cache::open(&Place::Memfd, &options).expect("memory");
        let config = Config {
            event_loop: EventLoop::Epoll,
            ..config
        };
        let mut server = Driven::start(config, cache).expect("a server");
        let well = server.connect().expect("a connection");
        Self { server, well }
    }

    /// Sends these bytes, by pieces of this size, and returns what comes, and whether the server has ended the connection.
    fn converse(&mut self, bytes: &[u8], size: usize) -> (Vec<u8>, bool) {
        let mut stream = self.server.connect().expect("a connection");
        let mut answers = Vec::new();
        for piece in bytes.chunks(size.max(1)) {
            let mut sent = 0;
            while sent < piece.len() {
                match stream.write(&piece[sent..]) {
                    Ok(count) => sent += count,
                    Err(error) if error.kind() == ErrorKind::WouldBlock && answers.len() < 64 << 20 => {}
                    // It may have been closed already.
                    Err(_) => break,
                }
                self.server.rounds();
                if read(&mut stream, &mut answers) {
                    return (answers, true);
                }
            }
        }
        let _ = stream.shutdown(Shutdown::Write);
        let rounds = if self.is_open() { ROUNDS_MAX } else { 100 };
        for _ in 0..rounds {
            self.server.rounds();
            if read(&mut stream, &mut answers) {
                return (answers, true);
            }
        }
        assert!(!self.is_open(), "the server keeps a connection that has ended");
        (answers, false)
    }

    /// Whether clients may do everything without a login.
    fn is_open(&self) -> bool {
        !self.server.udp_addresses().is_empty()
    }

    /// Sends a request on the connection that must stay well, and returns the answer, which ends so.
    fn ask(&mut self, request: &str, ends: &[&str]) -> String {
        self.well.write_all(request.as_bytes()).expect("the socket has room");
        let mut answer = Vec::new();
        for _ in 0..ROUNDS_MAX {
            self.server.rounds();
            assert!(
                !read(&mut self.well, &mut answer),
                "the server has closed the connection of another client"
            );
            let answer = String::from_utf8_lossy(&answer);
            if ends.iter().any(|end| answer.ends_with(end)) {
                return answer.into_owned();
            }
        }
        panic!("no answer to {request:?} but {:?}", String::from_utf8_lossy(&answer));
    }

    fn is_well(&mut self) {
        let version = self.ask("version\r\n", &["\r\n"]);
        assert!(version.starts_with("VERSION "), "{version:?}");
    }
}

/// Appends what has arrived; whether the connection is over.
fn read(stream: &mut UnixStream, answers: &mut Vec<u8>) -> bool {
    match stream.read_to_end(answers) {
        Ok(_) => true,
        Err(error) if error.kind() == ErrorKind::WouldBlock => false,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
            true
        }
    }
}

/// A server on which everybody may do everything, by datagrams too, and a client of those.
struct Open {
    tried: Tried,
    datagrams: UdpSocket,
    number: u16,
}

impl Open {
    fn start() -> Self {
        let tried = Tried::start(Config {
            udp: vec![SocketAddr::from(([127, 0, 0, 1], 0))],
            track_sizes: true,
            detail_delimiter: Some(b':'),
            ..Config::default()
        });
        let datagrams = UdpSocket::bind(("127.0.0.1", 0)).expect("a socket");
        datagrams.set_nonblocking(true).expect("a socket");
        datagrams.connect(tried.server.udp_addresses()[0]).expect("an address");
        Self {
            tried,
            datagrams,
            number: 0,
        }
    }

    /// Sends a datagram, then a second one that the server must answer.
    fn send_datagram(&mut self, bytes: &[u8]) {
        let _ = self.datagrams.send(bytes);
        self.number = self.number.wrapping_add(1).max(1);
        let mut asked = self.number.to_be_bytes().to_vec();
        asked.extend([0, 0, 0, 1, 0, 0]);
        asked.extend(b"version\r\n");
        self.datagrams.send(&asked).expect("the server's socket");
        let mut answer = [0; 2048];
        for _ in 0..ROUNDS_MAX {
            self.tried.server.rounds();
            while let Ok(len) = self.datagrams.recv(&mut answer) {
                let (frame, said) = answer[..len].split_at(len.min(FRAME));
                // Those to the input may come before it, even with its number.
                if frame.starts_with(&self.number.to_be_bytes()) && said.starts_with(b"VERSION ") {
                    return;
                }
            }
        }
        panic!("no answer to a datagram");
    }
}

/// The users of a server where clients have to log in.
static USERS: LazyLock<PathBuf> = LazyLock::new(|| {
    let users = std::env::temp_dir().join(format!("keyway-fuzz-{}", std::process::id()));
    std::fs::write(&users, format!("owner:{OWNER}\nuser:password:rw:prefix=shop:\n")).expect("a file");
    std::fs::set_permissions(&users, PermissionsExt::from_mode(0o600)).expect("it is ours");
    users
});

/// Such a server. The owner has logged in, and has stored an item.
fn closed() -> Tried {
    let mut closed = Tried::start(Config {
        auth_file: Some(USERS.clone()),
        ..Config::default()
    });
    let login = format!("set login 0 0 {}\r\nowner {OWNER}\r\n", OWNER.len() + 6);
    assert_eq!(closed.ask(&login, &["\r\n"]), "STORED\r\n");
    closed
}

/// Checks that these bytes of a client neither read nor change an item outside a user's prefix. Returns whether the server can serve the next
/// input at once: after a login that failed, later logins are delayed.
fn stay_inside(closed: &mut Tried, bytes: &[u8], size: usize) -> bool {
    let value = String::from_utf8_lossy(OUTSIDE);
    let set = format!("set outside 0 0 {}\r\n{value}\r\n", value.len());
    assert_eq!(closed.ask(&set, &["\r\n"]), "STORED\r\n");
    let (answers, is_over) = closed.converse(bytes, size);
    let is_shown = answers.windows(OUTSIDE.len()).any(|part| part == OUTSIDE);
    assert!(!is_shown, "a user reads an item without its prefix");
    let item = closed.ask("get outside\r\n", &["END\r\n"]);
    let stored = format!("VALUE outside 0 {}\r\n{value}\r\nEND\r\n", value.len());
    assert!(
        item == "END\r\n" || item == stored,
        "a user has changed an item without its prefix: {item:?}"
    );
    closed.is_well();
    is_over
}

thread_local! {
    static OPEN: RefCell<Open> = RefCell::new(Open::start());
    static CLOSED: RefCell<Tried> = RefCell::new(closed());
}

fuzz_target!(|input: &[u8]| {
    let [door, size, bytes @ ..] = input else { return };
    let size = match size {
        0 => bytes.len(),
        size => usize::from(*size),
    };
    match door % 3 {
        0 => OPEN.with_borrow_mut(|open| {
            open.tried.converse(bytes, size);
            open.tried.is_well();
        }),
        1 => CLOSED.with_borrow_mut(|server| {
            if !stay_inside(server, bytes, size) {
                *server = closed();
            }
        }),
        _ => OPEN.with_borrow_mut(|open| open.send_datagram(bytes)),
    }
});
