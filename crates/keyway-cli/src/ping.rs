//! `keyway ping`: asks a running server whether it works, by a set and a get as any client sends them, or by its `/readyz`. For health checks
//! of containers and scripts.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::io::Read;

use keyway_proto::client::{self, Answer};
use keyway_proto::reply::UNAUTHENTICATED;
use keyway_proto::{Store, StoreVerb};
use keyway_server::HttpAddress;

use crate::exit::{self, Failure};
use crate::wire::{self, Access, Client, Wire};
use crate::{commands, listen, place};

/// Seconds after which the item expires, if it cannot be deleted.
const EXPTIME_S: i32 = 5;
/// How often an item that was just stored may be absent: another client may have flushed everything, or it was evicted.
const TRIES: u32 = 3;
/// Longest answer, bytes: more than any answer to what is sent here.
const ANSWER_MAX: usize = 64 << 10;
const HTTP: &str = "http://";

pub(crate) const HELP: &str = "\
Exit codes: 0 the server works; 1 it does not answer, or not as a cache does;
64 wrong command line.

Examples:
  keyway ping
      the server on 127.0.0.1:11211
  keyway ping tls://cache.example --user ann --password-file /etc/keyway/secret
      with TLS and a login
  keyway ping http://127.0.0.1
      by the HTTP port's /readyz";

/// Asks the server at this place: an address, also after `tls://`, the path of a Unix socket, or an address or path after `http://`.
pub(crate) fn run(place: Option<&str>, access: &Access) -> Result<(), Failure> {
    let default = format!("127.0.0.1:{}", place::DEFAULT_PORT);
    let place = place.unwrap_or(&default);
    let said = match place.strip_prefix(HTTP) {
        Some(text) => ready(&mut *connect_http(place, text.strip_suffix('/').unwrap_or(text))?),
        None => set_and_get(&mut Client::connect(place, access)?),
    };
    match said {
        Ok(said) => commands::tell(format_args!("{place}: {said}")),
        Err(why) => Err(Failure::new(exit::NO, format_args!("{place}: {why}"))),
    }
}

/// Connects to an HTTP port.
fn connect_http(place: &str, text: &str) -> Result<Box<dyn Wire>, Failure> {
    match listen::parse_http(text).map_err(|why| Failure::usage(format_args!("{place}: {why}")))? {
        HttpAddress::Unix(socket) => wire::open_socket(place, &socket.path.to_string_lossy()),
        HttpAddress::Tcp(addresses) => Ok(Box::new(wire::open_tcp(place, &addresses)?)),
    }
}

/// Stores an item, reads it and deletes it. Its key is a new one each time.
fn set_and_get(server: &mut Client) -> Result<&'static str, String> {
    // A set would be a login that fails where one is needed.
    let mut request = Vec::new();
    client::get(&mut request, false, [&new_key()[..]]);
    match server.ask(&request, Said::of)? {
        Said::End => {}
        Said::Error(line) if UNAUTHENTICATED.strip_suffix(b"\r\n") == Some(line.as_bytes()) => {
            return Ok(
                "the server answers, and asks for a login: with --user its store is tried, too; so it is with the HTTP port (http://ADDR)",
            );
        }
        other => return Err(format!("it answers a get with {other}")),
    }
    for _ in 0..TRIES {
        let key = new_key();
        let store = Store {
            verb: StoreVerb::Set,
            key: &key,
            flags: 0,
            exptime: EXPTIME_S,
            cas: 0,
            noreply: false,
            value: &key,
        };
        request.clear();
        client::store(&mut request, &store);
        match server.ask(&request, Said::of)? {
            Said::Stored => {}
            other => return Err(format!("it does not store an item: {other}")),
        }
        request.clear();
        client::get(&mut request, false, [&key[..]]);
        let found = server.ask(&request, Said::of)?;
        if matches!(found, Said::Value(_)) {
            match server.receive(Said::of)? {
                Said::End => {}
                other => return Err(format!("after a value it sends {other}")),
            }
        }
        request.clear();
        client::delete(&mut request, &key[..], false);
        let deleted = server.ask(&request, Said::of)?;
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
            (found, deleted) => return Err(format!("it answers a get with {found}, and a delete with {deleted}")),
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

impl Said {
    fn of(answer: Answer<'_>) -> Self {
        match answer {
            Answer::Stored => Self::Stored,
            Answer::Deleted => Self::Deleted,
            Answer::NotFound => Self::NotFound,
            Answer::End => Self::End,
            Answer::Value { value, .. } => Self::Value(value.to_vec()),
            Answer::Line(line) if line.starts_with(b"HTTP/") => Self::Error(format!(
                "{}; it speaks HTTP: write http:// before its address",
                line.escape_ascii()
            )),
            Answer::Error(line) | Answer::Line(line) => Self::Error(line.escape_ascii().to_string()),
            other => Self::Error(format!("{other:?}")),
        }
    }
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stored => f.write_str("STORED"),
            Self::Deleted => f.write_str("DELETED"),
            Self::NotFound => f.write_str("NOT_FOUND"),
            Self::End => f.write_str("END"),
            Self::Value(value) => write!(f, "a value of {} bytes", value.len()),
            Self::Error(line) => f.write_str(line),
        }
    }
}

/// Asks the HTTP port whether the store can be written and read.
fn ready(wire: &mut dyn Wire) -> Result<&'static str, String> {
    wire.write_all(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        .map_err(wire::failed)?;
    let mut answer = Vec::new();
    wire.take(ANSWER_MAX as u64).read_to_end(&mut answer).map_err(wire::failed)?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n").ok_or("it does not speak HTTP")?;
    match head.split_whitespace().nth(1) {
        Some("200") => Ok("ready: an item was stored, read and deleted"),
        _ => Err(body.trim().to_owned()),
    }
}
