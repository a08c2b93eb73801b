//! The server that executes the writes of a process that may only read, or that has found no free slot in the region. It
//! is reached by memcached's meta commands, over one connection for each thread. The first connection came with the
//! region.
//!
//! This is the only place in this crate that knows a wire protocol. A connection that breaks is asked for again at the
//! next write. A command whose answer was lost is not sent again, because the server may have executed it.

use crate::cancel::Uncancelled;
use crate::descriptor::file_id;
use crate::handout::{self, Handed, Wanted};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use keyway_region::verbs::{Arithmetic, Counted, Delete, Deleted, Get, Item, KEY_LEN_MAX, Store, StoreMode, Stored, WriteError};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longest line of an answer, bytes: all flags of a get, and a key.
const LINE_MAX: u64 = 4096;
/// Longest value, bytes: the largest item that can be allowed.
const VALUE_LEN_MAX: usize = 1 << 30;

/// Where the server is, and which region it serves.
pub(crate) struct Peer {
    way: Way,
    /// the region's file
    wanted: Wanted,
    /// the connection that came with the region, until a thread takes it
    spare: Mutex<Option<UnixStream>>,
}

/// How a connection is asked for.
enum Way {
    /// with the region, at its server's socket
    ToRead(PathBuf),
    /// only a connection: at a server's socket, or at the socket that is named after the region
    Line(Option<PathBuf>),
}

/// A thread's own connection. A thread that stops in the middle of a command, or leaves it by a jump, therefore delays no
/// other thread.
#[derive(Default)]
pub(crate) struct Client(Option<BufReader<UnixStream>>);

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
    /// For a process that was given the region for reading, with a connection.
    pub(crate) fn new(path: &Path, file: &File, line: UnixStream) -> io::Result<Self> {
        Ok(Self {
            way: Way::ToRead(path.to_path_buf()),
            wanted: Wanted::of(file)?,
            spare: Mutex::new(Some(line)),
        })
    }

    /// The server of the region in this file, if there is one and it gives this process a connection: at its socket, or
    /// without one at the region's abstract name.
    pub(crate) fn of_region(socket: Option<&Path>, file: &File) -> io::Result<Self> {
        let wanted = Wanted::of(file)?;
        let line = handout::line(socket, wanted)?;
        Ok(Self {
            way: Way::Line(socket.map(Path::to_path_buf)),
            wanted,
            spare: Mutex::new(Some(line)),
        })
    }

    /// A new connection to the server that serves this region now.
    fn connect(&self) -> io::Result<BufReader<UnixStream>> {
        let spare = self.spare.try_lock().ok().and_then(|mut spare| spare.take());
        if let Some(line) = spare.map(patient).transpose()?.filter(is_open) {
            return Ok(line);
        }
        match &self.way {
            Way::Line(socket) => handout::line(socket.as_deref(), self.wanted).and_then(patient),
            Way::ToRead(path) => match handout::ask(path).map_err(io::Error::other)? {
                Handed::ToRead(file, line) if file_id(&file)? == self.wanted.file => patient(line),
                _ => Err(io::Error::other("another region is served there now")),
            },
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
        limit: usize,
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
                limit,
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

    pub(crate) fn flush_all(&mut self, peer: &Peer, exptime: i64) -> Result<(), WriteError> {
        let answer = self.ask(peer, format!("flush_all {}", on_the_wire(exptime.max(0))).as_bytes(), None)?;
        if answer.line == "OK" { Ok(()) } else { Err(answer.refusal()) }
    }

    /// Reports hits: the server counts one hit for each key.
    pub(crate) fn report_hits(&mut self, peer: &Peer, keys: &[Vec<u8>]) -> Result<(), WriteError> {
        let mut command = Vec::new();
        for key in keys {
            command.extend_from_slice(&begin("mg", key)?);
            command.extend_from_slice(b"\r\n");
        }
        command.extend_from_slice(b"mn\r\n");
        self.with_line(peer, |line| {
            line.get_mut().write_all(&command).map_err(unserved)?;
            while hear(line)?.line != "MN" {}
            Ok(())
        })
    }

    /// Sends one command and reads its answer. If the command has a value, the value follows it.
    fn ask(&mut self, peer: &Peer, command: &[u8], value: Option<&[u8]>) -> Result<Answer, WriteError> {
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
        self.with_line(peer, |line| {
            line.get_mut().write_all(&request).map_err(unserved)?;
            hear(line)
        })
    }

    fn with_line<R>(
        &mut self,
        peer: &Peer,
        work: impl FnOnce(&mut BufReader<UnixStream>) -> Result<R, WriteError>,
    ) -> Result<R, WriteError> {
        let _uncancelled = Uncancelled::new();
        // The connection is taken out of its place meanwhile. One that was left in the middle of an answer is of no use.
        let line = self.0.take().filter(is_open);
        let mut line = line.map_or_else(|| peer.connect(), Ok).map_err(unserved)?;
        let result = work(&mut line)?;
        self.0 = Some(line);
        Ok(result)
    }
}

fn patient(line: UnixStream) -> io::Result<BufReader<UnixStream>> {
    line.set_nonblocking(false)?;
    line.set_read_timeout(Some(PATIENCE))?;
    line.set_write_timeout(Some(PATIENCE))?;
    Ok(BufReader::new(line))
}

/// Whether the server has not closed the connection. If it is open, a look at it finds that nothing has come.
#[allow(clippy::ptr_arg, reason = "what `filter` hands over")]
fn is_open(line: &BufReader<UnixStream>) -> bool {
    use nix::sys::socket::{MsgFlags, recv};
    use std::os::fd::AsRawFd;
    let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
    line.buffer().is_empty() && recv(line.get_ref().as_raw_fd(), &mut [0], flags) == Err(nix::errno::Errno::EAGAIN)
}

fn hear(line: &mut BufReader<UnixStream>) -> Result<Answer, WriteError> {
    let mut text = Vec::new();
    line.by_ref().take(LINE_MAX).read_until(b'\n', &mut text).map_err(unserved)?;
    let text = text.strip_suffix(b"\r\n").ok_or(WriteError::Unserved)?;
    let mut answer = Answer {
        line: String::from_utf8_lossy(text).into_owned(),
        value: Vec::new(),
    };
    if let Some(rest) = answer.line.strip_prefix("VA ") {
        let len = rest.split(' ').next().and_then(|len| len.parse::<usize>().ok());
        let len = len.filter(|len| *len <= VALUE_LEN_MAX).ok_or(WriteError::Unserved)?;
        let no_memory = |_| WriteError::NoMemory { len };
        answer.value.try_reserve_exact(len + 2).map_err(no_memory)?;
        answer.value.resize(len + 2, 0);
        line.read_exact(&mut answer.value).map_err(unserved)?;
        answer.value.truncate(len);
    }
    Ok(answer)
}

fn unserved(_: io::Error) -> WriteError {
    WriteError::Unserved
}

fn begin(verb: &str, key: &[u8]) -> Result<Vec<u8>, WriteError> {
    let (token, marks) = token(key)?;
    Ok([verb.as_bytes(), b" ", &token, marks.as_bytes()].concat())
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
