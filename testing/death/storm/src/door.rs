//! The ways into the region: the library in the worker's own process, and a server's socket.

use harness::Wire;
use histories::{Answer, Call, Door, Verb, value};
use keyway_cache::{
    Arithmetic, Begun, Counted, Delete, Deleted, Fetch, Get, Session, Store, StoreMode, Stored, Token, WriteError,
};
use keyway_proto::{Command, StoreVerb, client};
use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

/// The library door.
pub struct Library {
    /// the thread's session
    pub session: Session,
    /// of the keys' names
    pub round: u32,
    /// for values
    out: Vec<u8>,
    /// what it computes, by the numbers that its calls have given the flights
    tokens: HashMap<u64, Token>,
}

/// How a worker fetches: it never waits.
fn how() -> Fetch<'static> {
    Fetch {
        wait: Duration::ZERO,
        compute_after_wait: false,
        has_tasks: true,
        ..Fetch::default()
    }
}

/// In the numbers of flights of this door, so that none is a server's.
const OF_LIBRARY: u64 = 1 << 63;

impl Library {
    /// A session's verbs.
    pub fn new(session: Session, round: u32) -> Self {
        Self {
            session,
            round,
            out: Vec::new(),
            tokens: HashMap::new(),
        }
    }

    /// A session without a slot begins no flight while there is no server: it would compute for itself alone.
    fn begin(&mut self, call: &Call, key: &[u8]) -> Result<Answer, WriteError> {
        self.out.clear();
        Ok(match self.session.fetch_begin(key, &how(), &mut self.out)? {
            Begun::Hit(item) | Begun::Stale(item) => hit(call, &self.out, item.cas),
            Begun::Nothing => Answer::Miss,
            Begun::Compute(token) if !token.may_store() => Answer::Miss,
            Begun::Compute(token) => {
                let flight = OF_LIBRARY | call.argument;
                self.tokens.insert(flight, token);
                Answer::Claimed { flight }
            }
            Begun::Waited(_) => Answer::InFlight,
        })
    }

    fn answer(&mut self, call: &Call) -> Result<Answer, WriteError> {
        let name = call.key.name(self.round);
        let key = name.as_bytes();
        let exptime = i64::from(call.exptime);
        let session = &mut self.session;
        let plain = Store {
            exptime,
            ..Store::default()
        };
        let mode = |mode| Store { mode, ..plain };
        let compare = |cas| Store {
            compare_cas: Some(cas),
            ..plain
        };
        Ok(match call.verb {
            Verb::Get | Verb::Gat => {
                self.out.clear();
                let how = Get {
                    value: true,
                    details: true,
                    exptime: (call.verb == Verb::Gat).then_some(exptime),
                    ..Get::default()
                };
                match session.get_with(key, &how, &mut self.out, |_, _| {})? {
                    Some(item) => hit(call, &self.out, item.cas),
                    None => Answer::Miss,
                }
            }
            Verb::Touch => match session.touch(key, exptime)? {
                true => Answer::Touched,
                false => Answer::NotFound,
            },
            Verb::Set => stored(session.store(key, &call.bytes(), &plain)?),
            Verb::Add => stored(session.store(key, &call.bytes(), &mode(StoreMode::Add))?),
            Verb::Replace => stored(session.store(key, &call.bytes(), &mode(StoreMode::Replace))?),
            Verb::Append => stored(session.store(key, &call.bytes(), &mode(StoreMode::Append))?),
            Verb::Prepend => stored(session.store(key, &call.bytes(), &mode(StoreMode::Prepend))?),
            Verb::Cas => stored(session.store(key, &call.bytes(), &compare(call.compare))?),
            Verb::Delete => match session.delete(key, &Delete::default())? {
                Deleted::Deleted => Answer::Deleted,
                Deleted::NotFound => Answer::NotFound,
                Deleted::Exists => torn(call, b"exists"),
            },
            Verb::Incr => {
                let how = Arithmetic {
                    delta: call.argument,
                    ..Arithmetic::default()
                };
                match session.arithmetic(key, &how)? {
                    Counted::Value { value, item } => Answer::Number {
                        number: value,
                        cas: item.cas,
                    },
                    Counted::NotFound => Answer::NotFound,
                    Counted::Exists | Counted::NotANumber => torn(call, b"no number"),
                }
            }
            Verb::Flush => {
                session.flush_all(0)?;
                Answer::Flushed
            }
            Verb::FetchBegin => self.begin(call, key)?,
            Verb::FetchStore => match self.tokens.remove(&call.compare) {
                Some(token) => match session.fetch_store(key, token, &call.bytes(), &how())? {
                    true => Answer::Stored { cas: 0 },
                    false => Answer::Void,
                },
                // Of another session, which has ended.
                None => Answer::Void,
            },
        })
    }
}

impl Door for Library {
    fn call(&mut self, call: &Call) -> Option<Answer> {
        match self.answer(call) {
            Ok(answer) => Some(answer),
            Err(WriteError::OutOfMemory | WriteError::TooLarge { .. }) => Some(Answer::Refused),
            // The server that writes for this process may have done it before it was stopped or killed.
            Err(WriteError::Unserved) => None,
            Err(error) => Some(torn(call, error.to_string().as_bytes())),
        }
    }
}

fn hit(call: &Call, bytes: &[u8], cas: u64) -> Answer {
    match value::read(call.key, bytes) {
        Some(value) => Answer::Hit { value, cas },
        None => torn(call, bytes),
    }
}

/// What no writer and no server can have written or answered: shown in the workers' log.
#[allow(clippy::print_stderr, reason = "a worker's standard error is the log")]
fn torn(call: &Call, bytes: &[u8]) -> Answer {
    let shown = harness::printable(&bytes[..bytes.len().min(200)]);
    eprintln!("{call:?} was answered by {} bytes that make no sense: {shown}", bytes.len());
    Answer::Torn
}

fn stored(stored: Stored) -> Answer {
    match stored {
        Stored::Stored { cas, .. } => Answer::Stored { cas },
        Stored::NotStored => Answer::NotStored,
        Stored::Exists => Answer::Exists,
        Stored::NotFound => Answer::NotFound,
    }
}

/// The network door: memcached's text protocol over the Unix socket of whichever server there is, or over TCP.
pub struct Network {
    /// the file that names the server's socket, or has its address
    address: PathBuf,
    round: u32,
    wire: Option<Wire>,
}

impl Network {
    /// `address` is the file that names the server's socket, or has its address.
    pub fn new(address: PathBuf, round: u32) -> Self {
        Self {
            address,
            round,
            wire: None,
        }
    }

    /// Whether there is a server to talk to.
    pub fn is_connected(&mut self) -> bool {
        if self.wire.is_none() {
            let connect = || {
                let socket = std::fs::read_to_string(&self.address)?;
                match socket.parse::<SocketAddr>() {
                    Ok(address) => TcpStream::connect(address).and_then(Wire::from_tcp),
                    Err(_) => UnixStream::connect(socket).and_then(Wire::from_unix),
                }
            };
            self.wire = connect().ok();
        }
        self.wire.is_some()
    }

    /// Whether no call has broken the connection.
    pub fn is_connected_still(&self) -> bool {
        self.wire.is_some()
    }

    fn answer(wire: &mut Wire, call: &Call, round: u32) -> io::Result<Answer> {
        wire.send(&request(call, &call.key.name(round)))?;
        let answer = match wire.receive(|answer| read(call, answer)) {
            // Whole answers that make no sense are a finding; a connection that broke is not.
            Err(error) if error.kind() == io::ErrorKind::InvalidData => torn(call, error.to_string().as_bytes()),
            answer => answer?,
        };
        if matches!(answer, Answer::Hit { .. }) {
            wire.receive_end()?;
        }
        Ok(answer)
    }
}

/// A call as the text protocol writes it.
fn request(call: &Call, key: &str) -> Vec<u8> {
    let (mut out, key, exptime) = (Vec::new(), key.as_bytes(), call.exptime);
    let verb = match call.verb {
        // The answer to `lease-get` is none that memcached knows: a client of the server only stores.
        Verb::Get | Verb::FetchBegin => {
            client::get(&mut out, true, [key]);
            return out;
        }
        Verb::Gat => {
            client::get_and_touch(&mut out, exptime, true, [key]);
            return out;
        }
        Verb::Touch => {
            client::touch(&mut out, key, exptime, false);
            return out;
        }
        Verb::Delete => {
            client::delete(&mut out, key, false);
            return out;
        }
        Verb::Incr => {
            client::arithmetic(&mut out, key, call.argument, false, false);
            return out;
        }
        Verb::Flush => {
            client::other(&mut out, Command::FlushAll, []);
            return out;
        }
        Verb::Set => StoreVerb::Set,
        Verb::Add => StoreVerb::Add,
        Verb::Replace => StoreVerb::Replace,
        Verb::Append => StoreVerb::Append,
        Verb::Prepend => StoreVerb::Prepend,
        Verb::Cas => StoreVerb::Cas,
        Verb::FetchStore => StoreVerb::Lease,
    };
    let store = keyway_proto::Store {
        verb,
        key,
        flags: 0,
        exptime,
        cas: call.compare,
        noreply: false,
        value: &call.bytes(),
    };
    client::store(&mut out, &store);
    out
}

/// What the server's answer to a call says.
fn read(call: &Call, answer: &client::Answer<'_>) -> Answer {
    use client::Answer as Received;
    match (answer, call.verb) {
        (Received::Value { value, cas, .. }, Verb::Get | Verb::Gat | Verb::FetchBegin) => hit(call, value, cas.unwrap_or(0)),
        (Received::End, Verb::Get | Verb::Gat | Verb::FetchBegin) => Answer::Miss,
        (Received::Stored, _) => Answer::Stored { cas: 0 },
        // memcached's answer also when there is no memory for the longer item (protocol.txt does not tell them apart).
        (Received::NotStored, Verb::Append | Verb::Prepend) => Answer::NotJoined,
        (Received::NotStored, Verb::FetchStore) => Answer::Void,
        (Received::NotStored, _) => Answer::NotStored,
        (Received::Exists, _) => Answer::Exists,
        (Received::NotFound, _) => Answer::NotFound,
        (Received::Deleted, _) => Answer::Deleted,
        (Received::Touched, _) => Answer::Touched,
        (Received::Ok, Verb::Flush) => Answer::Flushed,
        (Received::Number(number), Verb::Incr) => Answer::Number { number: *number, cas: 0 },
        (Received::Error(line), _) if is_for_want_of_memory(line) => Answer::Refused,
        (other, _) => torn(call, format!("{other:?}").as_bytes()),
    }
}

fn is_for_want_of_memory(line: &[u8]) -> bool {
    let line = String::from_utf8_lossy(line);
    line.contains("out of memory") || line.contains("too large")
}

impl Door for Network {
    fn call(&mut self, call: &Call) -> Option<Answer> {
        let wire = self.wire.as_mut()?;
        let answer = Self::answer(wire, call, self.round);
        if answer.is_err() {
            self.wire = None;
        }
        answer.ok()
    }
}
