//! `keyway ping`: asks a running server whether it works, by a set and a get as any client sends them, or by its `/readyz`. For health checks
//! of containers and scripts.

use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use keyway_proto::client::{self, Answer, Heard};
use keyway_proto::reply::UNAUTHENTICATED;
use keyway_proto::{Store, StoreVerb};
use keyway_server::HttpAddress;
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};

use crate::exit::{self, Failure};
use crate::{commands, listen, place};

/// Longest that a server may take to accept a connection, and to send each part of an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Seconds after which the item expires, if it cannot be deleted.
const EXPTIME_S: i32 = 5;
/// How often an item that was just stored may be absent: another client may have flushed everything, or it was evicted.
const TRIES: u32 = 3;
/// Longest answer, bytes: more than any answer to what is sent here.
const ANSWER_MAX: usize = 64 << 10;
const HTTP: &str = "http://";

/// A connection to a server.
pub(crate) trait Wire: Read + Write {}
impl<T: Read + Write> Wire for T {}

/// Asks the server at this place: an address, the path of a Unix socket, or either after `http://`.
pub(crate) fn run(place: Option<&str>) -> Result<(), Failure> {
    let default = format!("127.0.0.1:{}", place::DEFAULT_PORT);
    let place = place.unwrap_or(&default);
    let (text, is_http) = match place.strip_prefix(HTTP) {
        Some(text) => (text.strip_suffix('/').unwrap_or(text), true),
        None => (place, false),
    };
    let mut wire = connect_by(place, text, is_http)?;
    let said = if is_http { ready(&mut *wire) } else { set_and_get(&mut *wire) };
    match said {
        Ok(said) => commands::say(format_args!("{place}: {said}")),
        Err(why) => Err(Failure::new(exit::NO, format_args!("{place}: {why}"))),
    }
}

/// Connects to the server at this address or Unix socket.
pub(crate) fn connect_to(place: &str) -> Result<Box<dyn Wire>, Failure> {
    connect_by(place, place, false)
}

/// The same; `text` is `place` without what says that it is an HTTP port.
fn connect_by(place: &str, text: &str, is_http: bool) -> Result<Box<dyn Wire>, Failure> {
    if text.contains('/') {
        return connected(
            place,
            connect_unix(text),
            UnixStream::set_read_timeout,
            UnixStream::set_write_timeout,
        );
    }
    let why = |why: String| Failure::usage(format_args!("{place}: {why}"));
    let addresses = match is_http {
        true => match listen::parse_http(text).map_err(why)? {
            HttpAddress::Tcp(addresses) => addresses,
            HttpAddress::Unix(_) => Vec::new(),
        },
        false => listen::parse(text, place::DEFAULT_PORT).map_err(why)?,
    };
    connected(
        place,
        connect_tcp(&addresses),
        TcpStream::set_read_timeout,
        TcpStream::set_write_timeout,
    )
}

/// Connects to the first of these addresses that accepts.
fn connect_tcp(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    let mut refused = io::Error::new(io::ErrorKind::InvalidInput, "port 0 is no port");
    for address in addresses {
        match TcpStream::connect_timeout(address, PATIENCE) {
            Ok(stream) => return Ok(stream),
            Err(error) => refused = error,
        }
    }
    Err(refused)
}

/// Connects to a Unix socket, without waiting: the kernel accepts at once, unless the server's queue is full.
fn connect_unix(path: &str) -> io::Result<UnixStream> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    connect(socket.as_raw_fd(), &UnixAddr::new(path)?).map_err(|error| match error {
        Errno::EAGAIN => io::Error::other("its queue of connections is full, and it takes none"),
        error => error.into(),
    })?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// A connection with deadlines.
fn connected<S: Wire + 'static>(
    place: &str,
    stream: io::Result<S>,
    read: fn(&S, Option<Duration>) -> io::Result<()>,
    write: fn(&S, Option<Duration>) -> io::Result<()>,
) -> Result<Box<dyn Wire>, Failure> {
    let stream = stream.and_then(|stream| {
        read(&stream, Some(PATIENCE))?;
        write(&stream, Some(PATIENCE))?;
        Ok(stream)
    });
    match stream {
        Ok(stream) => Ok(Box::new(stream)),
        Err(error) => Err(Failure::new(exit::NO, format_args!("{place}: no server answers: {error}"))),
    }
}

/// Stores an item, reads it and deletes it. Its key is a new one each time.
fn set_and_get(wire: &mut dyn Wire) -> Result<&'static str, String> {
    let mut arrived = Vec::new();
    // A set would be a login that fails where one is needed.
    let mut request = Vec::new();
    client::get(&mut request, false, [&new_key()[..]]);
    match ask(wire, &request, &mut arrived)? {
        Said::End => {}
        Said::Error(line) if UNAUTHENTICATED.strip_suffix(b"\r\n") == Some(line.as_bytes()) => {
            return Ok("the server answers, and wants a login; http:// and the HTTP port's address try its store, too");
        }
        other => return Err(format!("it answers a get with {other:?}")),
    }
    for _ in 0..TRIES {
        let key = new_key();
        request.clear();
        client::store(
            &mut request,
            &Store {
                verb: StoreVerb::Set,
                key: &key,
                flags: 0,
                exptime: EXPTIME_S,
                cas: 0,
                noreply: false,
                value: &key,
            },
        );
        match ask(wire, &request, &mut arrived)? {
            Said::Stored => {}
            other => return Err(format!("it does not store an item: {other:?}")),
        }
        request.clear();
        client::get(&mut request, false, [&key[..]]);
        let found = ask(wire, &request, &mut arrived)?;
        if matches!(found, Said::Value(_)) {
            match ask(wire, b"", &mut arrived)? {
                Said::End => {}
                other => return Err(format!("after a value it sends {other:?}")),
            }
        }
        request.clear();
        client::delete(&mut request, &key[..], false);
        let deleted = ask(wire, &request, &mut arrived)?;
        match (found, deleted) {
            (Said::Value(value), Said::Deleted | Said::NotFound) if value == key => {
                return Ok("an item was stored, read and deleted");
            }
            (Said::Value(value), Said::Deleted | Said::NotFound) => {
                return Err(format!(
                    "an item has another value than the one stored: {}",
                    value.escape_ascii()
                ));
            }
            (Said::End, _) => {}
            (found, deleted) => return Err(format!("it answers a get with {found:?}, and a delete with {deleted:?}")),
        }
    }
    Err(format!(
        "an item that was stored a moment ago is gone, {TRIES} times in a row: the cache is flushed all the time, or has too little memory"
    ))
}

/// A key that no client has.
fn new_key() -> Vec<u8> {
    format!("keyway-ping-{:016x}", RandomState::new().hash_one(0)).into_bytes()
}

/// An answer.
#[derive(Debug)]
enum Said {
    Stored,
    Deleted,
    NotFound,
    End,
    Value(Vec<u8>),
    /// an error, or another answer
    Error(String),
}

/// Sends a request, and returns the next answer. `arrived` holds what has come and is not consumed.
fn ask(wire: &mut dyn Wire, request: &[u8], arrived: &mut Vec<u8>) -> Result<Said, String> {
    wire.write_all(request).map_err(failed)?;
    loop {
        if !arrived.is_empty() {
            match client::hear(arrived) {
                Heard::Answer { consumed, answer } => {
                    let said = match answer {
                        Answer::Stored => Said::Stored,
                        Answer::Deleted => Said::Deleted,
                        Answer::NotFound => Said::NotFound,
                        Answer::End => Said::End,
                        Answer::Value { value, .. } => Said::Value(value.to_vec()),
                        Answer::Error(line) => Said::Error(line.escape_ascii().to_string()),
                        other => Said::Error(format!("{other:?}")),
                    };
                    arrived.drain(..consumed);
                    return Ok(said);
                }
                Heard::Broken(why) => {
                    return Err(format!(
                        "it does not speak memcached's protocol ({why}); an address with TLS is asked by http:// and the HTTP port's address"
                    ));
                }
                Heard::Incomplete { .. } => {}
            }
        }
        more(wire, arrived)?;
    }
}

/// Waits for more bytes.
pub(crate) fn more(wire: &mut dyn Wire, arrived: &mut Vec<u8>) -> Result<(), String> {
    let mut bytes = [0; 4096];
    match wire.read(&mut bytes).map_err(failed)? {
        0 => Err("it closes the connection".to_owned()),
        _ if arrived.len() > ANSWER_MAX => Err("its answer does not end".to_owned()),
        len => {
            arrived.extend_from_slice(&bytes[..len]);
            Ok(())
        }
    }
}

/// The reason of a failure, for people.
pub(crate) fn failed(error: io::Error) -> String {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => format!("no answer in {} s", PATIENCE.as_secs()),
        _ => error.to_string(),
    }
}

/// Asks the HTTP port whether the store can be written and read.
fn ready(wire: &mut dyn Wire) -> Result<&'static str, String> {
    wire.write_all(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        .map_err(failed)?;
    let mut answer = Vec::new();
    wire.take(ANSWER_MAX as u64).read_to_end(&mut answer).map_err(failed)?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n").ok_or("it does not speak HTTP")?;
    match head.split_whitespace().nth(1) {
        Some("200") => Ok("ready: an item was stored, read and deleted"),
        _ => Err(body.trim().to_owned()),
    }
}
