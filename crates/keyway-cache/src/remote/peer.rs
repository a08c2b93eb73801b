//! The server that executes the writes of a process that may only read, or that has found no free slot in the region. It
//! is reached by memcached's meta commands, over one connection for each thread, a *line* ([`crate::remote::handout`]). The first
//! line is asked for when the region is opened, or when the first session without a slot is made.
//!
//! This is the only place in this crate that knows a wire protocol. A connection that breaks is asked for again at the
//! next write. A command whose answer was lost is not sent again, because the server may have executed it. The server
//! executes nothing that it has not begun when this process has ended, or has closed the connection because the answer did
//! not come in time.
//!
//! A command is complete before the connection is waited for: its key and value are copied, and it was decided that the
//! region's limits allow it. Hits are reported without any wait: over a connection that has room for them, or not at all.

use crate::place::whole_path;
use crate::process::cancel::Uncancelled;
use crate::remote::connection::Connection;
use crate::remote::handout::{self, Wanted};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use keyway_region::Limits;
use keyway_region::verbs::{Arithmetic, Counted, Delete, Deleted, Get, Item, KEY_LEN_MAX, Store, StoreMode, Stored, WriteError};
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// How long a call may take, the connection included.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longest line of an answer, bytes: all flags of a get, and a key.
const LINE_MAX: usize = 4096;
/// Longest value, bytes: the largest item that can be allowed.
const VALUE_LEN_MAX: usize = 1 << 30;

/// Where the server is, and which region it serves.
pub(crate) struct Peer {
    /// its region socket; `None`: the socket that is named after the region
    socket: Option<PathBuf>,
    /// the region's file
    wanted: Wanted,
    /// the first connection, until a thread takes it
    spare: Mutex<Option<Line>>,
}

/// A connection to the server's workers.
struct Line {
    connection: Connection,
    is_granted: bool,
    /// answers to reports of hits that were not read yet
    owed: usize,
}

/// A thread's own connection. A thread that stops in the middle of a command, or leaves it by a jump, therefore delays no
/// other thread.
#[derive(Default)]
pub(crate) struct Client(Option<Line>);

/// The answer to `mn`, which follows a report of hits.
const REPORTED: &str = "MN";

/// The answer to `lease-get`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leased {
    /// there is a value
    Present,
    /// it is remembered that there is no value
    Nothing,
    /// another caller computes, and the wait is over
    Elsewhere,
    /// the caller computes, and stores with this token
    Token(u64),
}

/// The first line of an answer, and the value that followed it.
struct Answer {
    line: String,
    value: Vec<u8>,
}

impl Answer {
    /// The two letters with which it begins.
    fn code(&self) -> &str {
        self.line.split(' ').next().unwrap_or_default()
    }

    /// The text that follows a flag's letter.
    fn flag(&self, flag: char) -> Option<&str> {
        self.line.split(' ').skip(1).find_map(|word| word.strip_prefix(flag))
    }

    fn number<N: std::str::FromStr + Default>(&self, flag: char) -> N {
        self.flag(flag).and_then(|text| text.parse().ok()).unwrap_or_default()
    }

    /// The error for an answer that the verb does not know.
    fn refusal(&self) -> WriteError {
        if self.line.contains("out of memory") {
            WriteError::OutOfMemory
        } else {
            WriteError::Unserved
        }
    }
}

impl Peer {
    /// The server of the region in this file, if there is one and it gives this process a connection: at its socket, or
    /// without one at the region's abstract name.
    pub(crate) fn new(socket: Option<&Path>, file: &File) -> io::Result<Self> {
        let _uncancelled = Uncancelled::new();
        let peer = Self {
            socket: socket.map(whole_path),
            wanted: Wanted::of(file)?,
            spare: Mutex::new(None),
        };
        let deadline = Instant::now() + handout::PATIENCE;
        let mut line = peer.line(deadline)?;
        line.prepare(&peer, deadline)?;
        Ok(Self {
            spare: Mutex::new(Some(line)),
            ..peer
        })
    }

    /// A connection to the server that serves this region now, which it may not have granted yet.
    fn line(&self, deadline: Instant) -> io::Result<Line> {
        let spare = self.spare.try_lock().ok().and_then(|mut spare| spare.take());
        if let Some(line) = spare.filter(Line::is_open) {
            return Ok(line);
        }
        Ok(Line {
            connection: handout::ask_for_line(self.socket.as_deref(), self.wanted, deadline)?,
            is_granted: false,
            owed: 0,
        })
    }
}

impl Line {
    /// Whether the server has not closed it, and nothing has come that was not asked for.
    fn is_open(&self) -> bool {
        self.connection.is_open()
    }

    /// Reads what has to come before the next answer. After [`ErrorKind::TimedOut`] it can be called again.
    fn prepare(&mut self, peer: &Peer, deadline: Instant) -> io::Result<()> {
        if !self.is_granted {
            handout::granted(&mut self.connection, peer.wanted, deadline)?;
            self.is_granted = true;
        }
        while self.owed > 0 {
            let answer = self.receive(deadline)?;
            self.owed -= usize::from(answer.line == REPORTED);
        }
        Ok(())
    }

    /// Reads an answer. After [`ErrorKind::TimedOut`] it can be called again.
    fn receive(&mut self, deadline: Instant) -> io::Result<Answer> {
        let (line, end) = loop {
            let received = self.connection.received();
            if let Some(end) = received.iter().position(|byte| *byte == b'\n') {
                let text = received.get(..end).and_then(|text| text.strip_suffix(b"\r"));
                break (
                    String::from_utf8_lossy(text.ok_or(ErrorKind::InvalidData)?).into_owned(),
                    end + 1,
                );
            }
            if received.len() >= LINE_MAX {
                return Err(ErrorKind::InvalidData.into());
            }
            self.connection.receive(deadline)?;
        };
        let mut value = Vec::new();
        let words: Vec<&str> = line.split(' ').collect();
        let len = match words.as_slice() {
            ["VA", len, ..] | ["VALUE", _, _, len, ..] | ["LVALUE", _, _, _, len, ..] => len.parse::<usize>().ok(),
            _ => {
                self.connection.received().drain(..end);
                return Ok(Answer { line, value });
            }
        };
        let len = len.filter(|len| *len <= VALUE_LEN_MAX).ok_or(ErrorKind::InvalidData)?;
        let whole = end + len + 2;
        loop {
            let received = self.connection.received();
            if received.len() >= whole {
                let behind = received.split_off(whole);
                value = std::mem::replace(received, behind);
                value.truncate(whole - 2);
                value.drain(..end);
                return Ok(Answer { line, value });
            }
            received.try_reserve_exact(whole - received.len())?;
            self.connection.receive(deadline)?;
        }
    }
}

impl Client {
    /// A get that changes something. `None`: a miss.
    pub(crate) fn get(&mut self, peer: &Peer, key: &[u8], how: &Get) -> Result<Option<(Item, Vec<u8>)>, WriteError> {
        let mut command = begin("mg", key)?;
        command.extend_from_slice(b" c f h l s");
        command.extend_from_slice(if how.value { b" v" } else { b"" });
        command.extend_from_slice(if how.no_bump { b" u" } else { b"" });
        flag(&mut command, 'E', how.new_cas);
        flag(&mut command, 'N', how.vivify.map(on_the_wire));
        let (touch, recache) = (how.exptime.map(on_the_wire), how.recache_s.map(on_the_wire));
        if how.recache_after_touch {
            flag(&mut command, 'T', touch);
        }
        flag(&mut command, 'R', recache);
        if !how.recache_after_touch {
            flag(&mut command, 'T', touch);
        }
        // After the flags that change the item.
        command.extend_from_slice(b" t");
        let answer = self.ask(peer, &command, None)?;
        let win = answer.line.split(' ').any(|word| word == "W");
        let mark = |mark: &str| answer.line.split(' ').any(|word| word == mark);
        match answer.code() {
            "EN" => Ok(None),
            "VA" | "HD" => {
                let item = Item {
                    value_len: answer.number('s'),
                    flags: answer.number('f'),
                    cas: answer.number('c'),
                    ttl_s: answer.flag('t').and_then(|ttl| ttl.parse().ok()),
                    idle_s: answer.number('l'),
                    fetched: answer.flag('h') == Some("1"),
                    stale: mark("X"),
                    win,
                    win_sent: mark("Z"),
                    ..Item::default()
                };
                let value = if how.unless_cas == Some(item.cas) {
                    Vec::new()
                } else {
                    answer.value
                };
                Ok(Some((item, value)))
            }
            _ => Err(answer.refusal()),
        }
    }

    pub(crate) fn store(
        &mut self,
        peer: &Peer,
        key: &[u8],
        value: &[u8],
        how: &Store,
        limits: &Limits,
    ) -> Result<Stored, WriteError> {
        let mode = match how.mode {
            StoreMode::Set => 'S',
            StoreMode::Add => 'E',
            StoreMode::Replace => 'R',
            StoreMode::Append => 'A',
            StoreMode::Prepend => 'P',
        };
        let (flags, exptime) = (how.flags, on_the_wire(how.exptime));
        let (token, marks) = token(key)?;
        if let Some(error) = limits.too_large(key.len(), value.len(), how.flags) {
            if how.replaces_anything() {
                self.delete(peer, key, &Delete::default())?;
            }
            return Err(error);
        }
        let mut command = [b"ms ", token.as_slice()].concat();
        let _ = write!(command, " {}{marks} c s M{mode} F{flags} T{exptime}", value.len());
        command.extend_from_slice(if how.invalidate { b" I" } else { b"" });
        flag(&mut command, 'C', how.compare_cas.map(comparable));
        flag(&mut command, 'E', how.new_cas);
        flag(&mut command, 'N', how.vivify.map(on_the_wire));
        let answer = self.ask(peer, &command, Some(value))?;
        match answer.code() {
            "HD" => Ok(Stored::Stored {
                cas: answer.number('c'),
                value_len: answer.number('s'),
                size: 0,
            }),
            "NS" => Ok(Stored::NotStored),
            "EX" => Ok(Stored::Exists),
            "NF" => Ok(Stored::NotFound),
            _ if answer.line.contains("too large") => Err(WriteError::TooLarge {
                size: value.len(),
                limit: limits.item_size_max,
            }),
            _ => Err(answer.refusal()),
        }
    }

    pub(crate) fn delete(&mut self, peer: &Peer, key: &[u8], how: &Delete) -> Result<Deleted, WriteError> {
        let mut command = begin("md", key)?;
        command.extend_from_slice(if how.invalidate { b" I" } else { b"" });
        command.extend_from_slice(if how.remove_value { b" x" } else { b"" });
        flag(&mut command, 'C', how.compare_cas);
        flag(&mut command, 'E', how.new_cas);
        flag(&mut command, 'T', how.exptime.map(on_the_wire));
        let answer = self.ask(peer, &command, None)?;
        match answer.code() {
            "HD" => Ok(Deleted::Deleted),
            "NF" => Ok(Deleted::NotFound),
            "EX" => Ok(Deleted::Exists),
            _ => Err(answer.refusal()),
        }
    }

    pub(crate) fn arithmetic(&mut self, peer: &Peer, key: &[u8], how: &Arithmetic) -> Result<Counted, WriteError> {
        let mut command = begin("ma", key)?;
        let _ = write!(command, " v c t M{} D{}", if how.decrement { 'D' } else { 'I' }, how.delta);
        flag(&mut command, 'N', how.vivify.map(|(_, exptime)| on_the_wire(exptime)));
        flag(&mut command, 'J', how.vivify.map(|(value, _)| value));
        flag(&mut command, 'T', how.exptime.map(on_the_wire));
        flag(&mut command, 'C', how.compare_cas.map(comparable));
        flag(&mut command, 'E', how.new_cas);
        let answer = self.ask(peer, &command, None)?;
        match answer.code() {
            "VA" => {
                let number = String::from_utf8_lossy(&answer.value);
                let item = Item {
                    value_len: answer.value.len(),
                    cas: answer.number('c'),
                    ttl_s: answer.flag('t').and_then(|ttl| ttl.parse().ok()),
                    ..Item::default()
                };
                let value = number.trim_end().parse().map_err(|_| WriteError::Unserved)?;
                Ok(Counted::Value { value, item })
            }
            "NF" => Ok(Counted::NotFound),
            "EX" => Ok(Counted::Exists),
            _ if answer.line.contains("non-numeric") => Ok(Counted::NotANumber),
            _ => Err(answer.refusal()),
        }
    }

    /// The right to compute a key that the region has not, unless another caller has it: then the server waits so long for its value.
    /// `None`: no lease can be had for such a key.
    pub(crate) fn lease(&mut self, peer: &Peer, key: &[u8], wait: Duration) -> Result<Option<Leased>, WriteError> {
        let Some(mut command) = plain("lease-get", key)? else {
            return Ok(None);
        };
        let _ = write!(command, " {}", u32::try_from(wait.as_millis()).unwrap_or(u32::MAX));
        let answer = self.ask_within(peer, &command, None, PATIENCE + wait)?;
        let token = answer.line.split(' ').nth(2).and_then(|token| token.parse().ok());
        match (answer.code(), token) {
            ("VALUE", _) => Ok(Some(Leased::Present)),
            // protocol.md, "Keyway's own commands"
            ("LVALUE", Some(0)) => Ok(Some(Leased::Nothing)),
            ("LVALUE", Some(1)) => Ok(Some(Leased::Elsewhere)),
            ("LVALUE", Some(token)) => Ok(Some(Leased::Token(token))),
            _ => Err(answer.refusal()),
        }
    }

    /// Stores with a lease. `false`: it is void.
    pub(crate) fn store_leased(
        &mut self,
        peer: &Peer,
        key: &[u8],
        token: u64,
        value: &[u8],
        (flags, exptime): (u32, i64),
    ) -> Result<bool, WriteError> {
        let Some(mut command) = plain("lease-set", key)? else {
            return Ok(false);
        };
        let _ = write!(command, " {token} {flags} {} {}", on_the_wire(exptime), value.len());
        let answer = self.ask(peer, &command, Some(value))?;
        match answer.line.as_str() {
            "STORED" => Ok(true),
            "NOT_STORED" => Ok(false),
            _ => Err(answer.refusal()),
        }
    }

    pub(crate) fn flush_all(&mut self, peer: &Peer, exptime: i64) -> Result<(), WriteError> {
        let answer = self.ask(peer, format!("flush_all {}", on_the_wire(exptime.max(0))).as_bytes(), None)?;
        if answer.line == "OK" { Ok(()) } else { Err(answer.refusal()) }
    }

    /// Reports hits: the server counts one hit for each key. If that is not possible without a wait, they are not reported.
    pub(crate) fn report_hits(&mut self, peer: &Peer, keys: &[Vec<u8>]) {
        let _uncancelled = Uncancelled::new();
        let mut command = Vec::new();
        for key in keys {
            let Ok(get) = begin("mg", key) else { continue };
            command.extend_from_slice(&get);
            command.extend_from_slice(b" q\r\n");
        }
        command.extend_from_slice(b"mn\r\n");
        let at_once = Instant::now();
        let Ok(mut line) = self.take(peer, at_once) else { return };
        match line.prepare(peer, at_once) {
            // The server has answered all earlier reports, so there is room for this one.
            Ok(()) => {
                if line.connection.send(&command, at_once).is_ok() {
                    line.owed += 1;
                    self.0 = Some(line);
                }
            }
            Err(error) if error.kind() == ErrorKind::TimedOut => self.0 = Some(line),
            // It is broken: the next report, or write, asks for another one.
            Err(_) => {}
        }
    }

    /// Sends one command and reads its answer. If the command has a value, the value follows it.
    fn ask(&mut self, peer: &Peer, command: &[u8], value: Option<&[u8]>) -> Result<Answer, WriteError> {
        self.ask_within(peer, command, value, PATIENCE)
    }

    fn ask_within(&mut self, peer: &Peer, command: &[u8], value: Option<&[u8]>, time: Duration) -> Result<Answer, WriteError> {
        let len = value.map_or(0, <[u8]>::len);
        let mut request = Vec::new();
        let room = command.len() + len + 4;
        request.try_reserve_exact(room).map_err(|_| WriteError::NoMemory { len })?;
        request.extend_from_slice(command);
        request.extend_from_slice(b"\r\n");
        if let Some(value) = value {
            request.extend_from_slice(value);
            request.extend_from_slice(b"\r\n");
        }
        let _uncancelled = Uncancelled::new();
        let deadline = Instant::now() + time;
        let mut line = self.take(peer, deadline).map_err(unserved)?;
        let answer = line.prepare(peer, deadline).and_then(|()| {
            line.connection.send(&request, deadline)?;
            let answer = line.receive(deadline)?;
            if ["VALUE", "LVALUE"].contains(&answer.code()) {
                // The line `END`.
                line.receive(deadline)?;
            }
            Ok(answer)
        });
        let answer = answer.map_err(|error| match error.kind() {
            ErrorKind::OutOfMemory => WriteError::NoMemory { len },
            _ => WriteError::Unserved,
        })?;
        self.0 = Some(line);
        Ok(answer)
    }

    /// The connection, taken out of its place: one that is left in the middle of an answer is of no use.
    fn take(&mut self, peer: &Peer, deadline: Instant) -> io::Result<Line> {
        match self.0.take().filter(Line::is_open) {
            Some(line) => Ok(line),
            None => peer.line(deadline),
        }
    }
}

fn unserved(_: io::Error) -> WriteError {
    WriteError::Unserved
}

fn begin(verb: &str, key: &[u8]) -> Result<Vec<u8>, WriteError> {
    let (token, marks) = token(key)?;
    Ok([verb.as_bytes(), b" ", &token, marks.as_bytes()].concat())
}

/// The beginning of a classic command. `None`: it cannot have such a key.
fn plain(verb: &str, key: &[u8]) -> Result<Option<Vec<u8>>, WriteError> {
    let (token, marks) = token(key)?;
    Ok(marks.is_empty().then(|| [verb.as_bytes(), b" ", &token].concat()))
}

/// An exptime as the protocol has it, with 32 bits. A later time than January 2038 becomes January 2038; a time in the
/// past stays in the past.
fn on_the_wire(exptime: i64) -> i64 {
    exptime.clamp(i32::MIN.into(), i32::MAX.into())
}

/// A CAS unique to compare with. In the protocol 0 may mean that nothing is compared; here it means a unique that no item
/// has.
fn comparable(cas: u64) -> u64 {
    if cas == 0 { u64::MAX } else { cas }
}

fn flag(command: &mut Vec<u8>, flag: char, value: Option<impl std::fmt::Display>) {
    if let Some(value) = value {
        let _ = write!(command, " {flag}{value}");
    }
}

/// The key as it is sent, and the flag that says that it is base64. A key with blanks or control characters is sent so.
fn token(key: &[u8]) -> Result<(Vec<u8>, &'static str), WriteError> {
    let too_long = WriteError::KeyLength { len: key.len() };
    if key.is_empty() || key.len() > KEY_LEN_MAX {
        return Err(too_long);
    }
    if key.iter().all(|byte| *byte > b' ' && *byte != 0x7F) {
        return Ok((key.to_vec(), ""));
    }
    let sent = STANDARD.encode(key).into_bytes();
    // The protocol's limit applies to the bytes that are sent.
    if sent.len() > KEY_LEN_MAX {
        return Err(too_long);
    }
    Ok((sent, " b"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_go_over_the_wire_whatever_is_in_them() {
        assert_eq!(token(b"plain\xEE").unwrap(), (b"plain\xEE".to_vec(), ""));
        assert_eq!(token(b"two words").unwrap(), (b"dHdvIHdvcmRz".to_vec(), " b"));
        assert_eq!(token(b"\n\xFF").unwrap(), (b"Cv8=".to_vec(), " b"));
        assert_eq!(token(b" ").unwrap(), (b"IA==".to_vec(), " b"));
        assert!(token(&[b' '; 186]).is_ok() && token(&[b' '; 187]).is_err());
        assert!(token(b"").is_err() && token(&[b'k'; 251]).is_err());
    }
}
