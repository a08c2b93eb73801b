//! The ways into the region: the library in the worker's own process, and a server's socket.

use harness::Wire;
use histories::{Answer, Call, Door, Verb, value};
use keyway::{Arithmetic, Counted, Delete, Deleted, Get, Session, Store, StoreMode, Stored, WriteError};
use std::io;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

/// The library door.
pub struct Library {
    /// the thread's session
    pub session: Session,
    /// of the keys' names
    pub round: u32,
    /// for values
    out: Vec<u8>,
}

impl Library {
    /// A session's verbs.
    pub fn new(session: Session, round: u32) -> Self {
        Self {
            session,
            round,
            out: Vec::new(),
        }
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
        })
    }
}

impl Door for Library {
    fn call(&mut self, call: &Call) -> Option<Answer> {
        Some(self.answer(call).unwrap_or_else(|e| match e {
            WriteError::OutOfMemory | WriteError::TooLarge { .. } => Answer::Refused,
            WriteError::Corrupt
            | WriteError::NoMemory { .. }
            | WriteError::KeyLength { .. }
            | WriteError::Detached
            | WriteError::KernelDoor
            | WriteError::Unserved => torn(call, e.to_string().as_bytes()),
        }))
    }
}

fn hit(call: &Call, bytes: &[u8], cas: u64) -> Answer {
    match value::read(call.key, bytes) {
        Some(value) => Answer::Hit { value, cas },
        None => torn(call, bytes),
    }
}

/// What nobody can have written or answered: shown in the workers' log.
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

/// The network door: memcached's text protocol over the Unix socket of whichever server there is.
pub struct Network {
    /// the file that names the server's socket
    address: PathBuf,
    round: u32,
    wire: Option<Wire>,
}

impl Network {
    /// `address` is the file that names the server's socket.
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
                UnixStream::connect(socket).and_then(Wire::from_unix)
            };
            self.wire = connect().ok();
        }
        self.wire.is_some()
    }

    fn answer(wire: &mut Wire, call: &Call, round: u32) -> io::Result<Answer> {
        let key = call.key.name(round);
        let exptime = call.exptime;
        let verb = match call.verb {
            Verb::Get => return Self::retrieve(wire, call, &format!("gets {key}\r\n")),
            Verb::Gat => return Self::retrieve(wire, call, &format!("gats {exptime} {key}\r\n")),
            Verb::Touch => return Self::line(wire, format!("touch {key} {exptime}\r\n").as_bytes(), call),
            Verb::Delete => return Self::line(wire, format!("delete {key}\r\n").as_bytes(), call),
            Verb::Incr => return Self::line(wire, format!("incr {key} {}\r\n", call.argument).as_bytes(), call),
            Verb::Flush => return Self::line(wire, b"flush_all\r\n", call),
            Verb::Set => "set",
            Verb::Add => "add",
            Verb::Replace => "replace",
            Verb::Append => "append",
            Verb::Prepend => "prepend",
            Verb::Cas => "cas",
        };
        let bytes = call.bytes();
        let unique = if call.verb == Verb::Cas {
            format!(" {}", call.compare)
        } else {
            String::new()
        };
        let head = format!("{verb} {key} 0 {exptime} {}{unique}\r\n", bytes.len());
        Self::line(wire, &[head.as_bytes(), &bytes, b"\r\n"].concat(), call)
    }

    fn line(wire: &mut Wire, request: &[u8], call: &Call) -> io::Result<Answer> {
        wire.send(request)?;
        let line = wire.line()?;
        let line = String::from_utf8_lossy(&line);
        Ok(match (&*line, call.verb) {
            ("STORED", _) => Answer::Stored { cas: 0 },
            // memcached's answer also when there is no memory for the longer item (protocol.txt does not tell them apart).
            ("NOT_STORED", Verb::Append | Verb::Prepend) => Answer::NotJoined,
            ("NOT_STORED", _) => Answer::NotStored,
            ("EXISTS", _) => Answer::Exists,
            ("NOT_FOUND", _) => Answer::NotFound,
            ("DELETED", _) => Answer::Deleted,
            ("TOUCHED", _) => Answer::Touched,
            ("OK", Verb::Flush) => Answer::Flushed,
            (number, Verb::Incr) if number.bytes().all(|b| b.is_ascii_digit()) => Answer::Number {
                number: number.parse().map_err(io::Error::other)?,
                cas: 0,
            },
            (error, _) if error.contains("out of memory") || error.contains("too large") => Answer::Refused,
            _ => torn(call, line.as_bytes()),
        })
    }

    fn retrieve(wire: &mut Wire, call: &Call, request: &str) -> io::Result<Answer> {
        wire.send(request.as_bytes())?;
        let head = wire.line()?;
        let head = String::from_utf8_lossy(&head).into_owned();
        if head == "END" {
            return Ok(Answer::Miss);
        }
        let words: Vec<&str> = head.split(' ').collect();
        let ["VALUE", _, _, len, unique] = words[..] else {
            let refused = head.contains("out of memory");
            return Ok(if refused {
                Answer::Refused
            } else {
                torn(call, head.as_bytes())
            });
        };
        let bytes = wire.exactly(len.parse().map_err(io::Error::other)?)?;
        wire.exactly("\r\nEND\r\n".len())?;
        Ok(hit(call, &bytes, unique.parse().map_err(io::Error::other)?))
    }
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
