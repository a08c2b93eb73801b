//! A server, end to end: whatever arrives on a connection, on one that has to log in first, or as datagrams, and however it is cut. The
//! server ends no connection later than it should, goes on, and answers others. Who logs in as the user whose password is known is confined
//! to a key prefix: an item of another key is neither read nor changed.
//! Guards: P37, P38

#![no_main]

use keyway_cache::{Cache, Options, Place};
use keyway_server::{Config, EventLoop, Server, UnixSocket};
use libfuzzer_sys::fuzz_target;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

/// Longest that anything may take: for hangs only.
const PATIENCE: Duration = Duration::from_secs(20);
/// The password of the user who may do everything. No input has it.
const OWNER: &str = "a5e1-owner-4f21-b7c0";
/// The value of the item that nobody else may use.
const OUTSIDE: &[u8] = b"8d02-outside-c91e-773a";
/// A datagram's frame header: its number, which of how many it is, and two bytes for later (protocol.txt, "UDP protocol").
const FRAME: usize = 8;

/// The servers that all inputs are for, and a connection to each that must stay well.
struct Servers {
    open: (PathBuf, BufReader<UnixStream>),
    closed: (PathBuf, BufReader<UnixStream>),
    udp: (UdpSocket, u16),
}

impl Servers {
    fn start() -> Self {
        let folder = std::env::temp_dir().join(format!("keyway-fuzz-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let users = folder.join("users");
        std::fs::write(&users, format!("owner:{OWNER}\nuser:password:rw:prefix=shop:\n")).expect("a file");
        std::fs::set_permissions(&users, PermissionsExt::from_mode(0o600)).expect("it is ours");
        let (open, closed) = (folder.join("open"), folder.join("closed"));
        let udp = start(Config {
            udp: vec![SocketAddr::from(([127, 0, 0, 1], 0))],
            track_sizes: true,
            detail_delimiter: Some(b':'),
            ..at(&open)
        });
        start(Config {
            auth_file: Some(users),
            ..at(&closed)
        });
        let datagrams = UdpSocket::bind(("127.0.0.1", 0)).expect("a socket");
        datagrams.set_read_timeout(Some(PATIENCE)).expect("a socket");
        datagrams.connect(udp.expect("it was asked for")).expect("an address");
        let mut well = connect(&closed);
        well.get_ref()
            .write_all(format!("set login 0 0 {}\r\nowner {OWNER}\r\n", OWNER.len() + 6).as_bytes())
            .expect("it reads");
        assert_eq!(line(&mut well), "STORED\r\n");
        Self {
            open: (open.clone(), connect(&open)),
            closed: (closed, well),
            udp: (datagrams, 0),
        }
    }
}

fn at(socket: &Path) -> Config {
    Config {
        unix: Some(UnixSocket {
            path: socket.to_owned(),
            mode: 0o700,
        }),
        threads: 1,
        event_loop: EventLoop::Epoll,
        ..Config::default()
    }
}

/// Where it listens for datagrams, if it does.
fn start(config: Config) -> Option<SocketAddr> {
    let options = Options::new().memory(2 << 20).item_size_max(64 << 10);
    let cache = Cache::open(&Place::Memfd, &options).expect("memory");
    let server = Server::start(config, cache).expect("a server");
    let udp = server.udp_addresses().first().copied();
    std::thread::spawn(move || panic!("the server ended: {:?}", server.run()));
    udp
}

fn connect(socket: &Path) -> BufReader<UnixStream> {
    let stream = UnixStream::connect(socket).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    BufReader::new(stream)
}

fn line(stream: &mut BufReader<UnixStream>) -> String {
    let mut line = String::new();
    stream.read_line(&mut line).expect("an answer in time");
    line
}

/// Sends these bytes, by pieces of this size, and returns what comes until the server ends the connection.
fn converse(socket: &Path, bytes: &[u8], size: usize) -> Vec<u8> {
    let mut stream = connect(socket).into_inner();
    for piece in bytes.chunks(size.max(1)) {
        // It may have been closed already.
        if stream.write_all(piece).is_err() {
            break;
        }
    }
    let _ = stream.shutdown(Shutdown::Write);
    let mut answers = Vec::new();
    if let Err(error) = stream.read_to_end(&mut answers) {
        assert!(
            error.kind() == std::io::ErrorKind::ConnectionReset,
            "the server keeps a connection that has ended: {error}"
        );
    }
    answers
}

/// Stores the item that only the owner may use.
fn store_outside(stream: &mut BufReader<UnixStream>) {
    let value = String::from_utf8_lossy(OUTSIDE);
    let set = format!("set outside 0 0 {}\r\n{value}\r\n", value.len());
    stream.get_ref().write_all(set.as_bytes()).expect("it reads");
    assert_eq!(line(stream), "STORED\r\n");
}

/// It is as it was stored, or evicted.
fn check_outside(stream: &mut BufReader<UnixStream>, answers: &[u8]) {
    let is_shown = answers.windows(OUTSIDE.len()).any(|part| part == OUTSIDE);
    assert!(!is_shown, "a user reads an item without its prefix");
    stream.get_ref().write_all(b"get outside\r\n").expect("it reads");
    if line(stream) != "END\r\n" {
        assert_eq!(
            line(stream).trim_end().as_bytes(),
            OUTSIDE,
            "a user has changed an item without its prefix"
        );
        assert_eq!(line(stream), "END\r\n");
    }
}

fn is_well(stream: &mut BufReader<UnixStream>) {
    stream.get_ref().write_all(b"version\r\n").expect("it reads");
    let version = line(stream);
    assert!(version.starts_with("VERSION "), "{version:?}");
}

/// Sends a datagram, then a second one that the server must answer.
fn send_datagram((socket, number): &mut (UdpSocket, u16), bytes: &[u8]) {
    let _ = socket.send(bytes);
    *number = number.wrapping_add(1).max(1);
    let mut asked = number.to_be_bytes().to_vec();
    asked.extend([0, 0, 0, 1, 0, 0]);
    asked.extend(b"version\r\n");
    socket.send(&asked).expect("it listens");
    let mut answer = [0; 2048];
    loop {
        let len = socket.recv(&mut answer).expect("an answer in time");
        let (frame, said) = answer[..len].split_at(len.min(FRAME));
        // Those to the input may come before it, even with its number.
        if frame.starts_with(&number.to_be_bytes()) && said.starts_with(b"VERSION ") {
            return;
        }
    }
}

fuzz_target!(|input: &[u8]| {
    static SERVERS: OnceLock<Mutex<Servers>> = OnceLock::new();
    let [door, size, bytes @ ..] = input else { return };
    let servers = SERVERS.get_or_init(|| Mutex::new(Servers::start()));
    let mut servers = servers.lock().expect("no input failed");
    let size = match size {
        0 => bytes.len(),
        size => usize::from(*size),
    };
    match door % 3 {
        0 => {
            converse(&servers.open.0, bytes, size);
            is_well(&mut servers.open.1);
        }
        1 => {
            store_outside(&mut servers.closed.1);
            let answers = converse(&servers.closed.0, bytes, size);
            check_outside(&mut servers.closed.1, &answers);
            is_well(&mut servers.closed.1);
        }
        _ => send_datagram(&mut servers.udp, bytes),
    }
});
