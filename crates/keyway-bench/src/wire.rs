//! Connections to a memcached-compatible server, and a simple client to prepare and inspect it with.

use crate::datagram::Datagrams;
use crate::plan::Door;
use keyway_proto::client::{self, Answer, Received};
use keyway_proto::{Command, Store, StoreVerb};
use rustix::net::{self, sockopt};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// How long a server may take to accept a connection, or to answer where nothing is measured.
const PATIENCE: Duration = Duration::from_secs(10);

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// TCP
    Tcp(SocketAddr),
    /// a Unix socket
    Unix(PathBuf),
    /// UDP
    Udp(SocketAddr),
    /// both, at one port: gets over UDP, the rest over TCP
    Split(SocketAddr),
    /// a stream that is made otherwise, such as one with TLS
    Made(Made),
}

/// What a connection sends and receives by.
pub trait Stream: Read + Write + AsFd + Send {}

impl<T: Read + Write + AsFd + Send> Stream for T {}

/// How a stream to one server is made; told apart by its name.
#[derive(Clone)]
pub struct Made {
    name: String,
    open: Arc<dyn Fn() -> io::Result<Box<dyn Stream>> + Send + Sync>,
}

impl Made {
    /// By this, to a server of this name.
    pub fn new(name: String, open: impl Fn() -> io::Result<Box<dyn Stream>> + Send + Sync + 'static) -> Self {
        let open = Arc::new(open);
        Self { name, open }
    }
}

impl PartialEq for Made {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Made {}

impl std::fmt::Debug for Made {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.name.fmt(f)
    }
}

impl Target {
    /// A server's address, as its user gives it, through one of its doors; `None`: not through this one.
    pub fn through(&self, door: Door) -> Option<Self> {
        match (self, door) {
            (Self::Tcp(address), Door::Udp) => Some(Self::Udp(*address)),
            (Self::Tcp(address), Door::Split) => Some(Self::Split(*address)),
            (Self::Tcp(_), Door::KernelTcp) if self.is_here() => Some(self.clone()),
            (Self::Tcp(_), Door::Tcp) | (Self::Unix(_), Door::Unix) | (Self::Udp(_), Door::Udp) => Some(self.clone()),
            _ => None,
        }
    }

    /// Whether the server there is on this machine.
    pub fn is_here(&self) -> bool {
        match self {
            Self::Tcp(address) | Self::Udp(address) | Self::Split(address) => address.ip().is_loopback(),
            Self::Unix(_) | Self::Made(_) => true,
        }
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(address) | Self::Udp(address) | Self::Split(address) => address.fmt(f),
            Self::Unix(path) => path.display().fmt(f),
            Self::Made(made) => made.name.fmt(f),
        }
    }
}

/// A connection to a server: a stream, datagrams, or both, one after the other.
pub struct Connection {
    stream: Option<Box<dyn Stream>>,
    /// one write is one request, and reads give the pieces of its answer; beside a stream, for gets
    datagrams: Option<Datagrams>,
    /// whether the last request was a datagram: what is read is its answer
    asked: bool,
}

impl Connection {
    /// Connects; blocking.
    pub fn open(target: &Target) -> io::Result<Self> {
        let opened: io::Result<Option<Box<dyn Stream>>> = match target {
            Target::Tcp(address) | Target::Split(address) => {
                connect_tcp(address).map(|socket| Some(Box::new(Plain(socket)) as _))
            }
            Target::Unix(path) => connect_unix(path).map(|socket| Some(Box::new(Plain(socket)) as _)),
            Target::Made(made) => (made.open)().map(Some),
            Target::Udp(_) => Ok(None),
        };
        let stream = opened.map_err(|e| io::Error::new(e.kind(), format!("{target}: no server answers: {e}")))?;
        let datagrams = match target {
            Target::Udp(address) | Target::Split(address) => Some(Datagrams::open(*address)?),
            Target::Tcp(_) | Target::Unix(_) | Target::Made(_) => None,
        };
        Ok(Self {
            asked: stream.is_none(),
            stream,
            datagrams,
        })
    }

    /// Whether the request on the way went as a datagram, which may be lost.
    pub fn may_lose(&self) -> bool {
        self.asked
    }

    /// Whether a write is one request, so that the next has to wait for its answer.
    pub fn is_one_at_a_time(&self) -> bool {
        self.datagrams.is_some()
    }

    /// The other socket, where it has two.
    pub fn second(&self) -> Option<BorrowedFd<'_>> {
        let both = self.stream.is_some().then_some(self.datagrams.as_ref());
        both.flatten().map(Datagrams::as_fd)
    }

    /// Reads and writes fail after this long.
    pub fn set_timeout(&self, limit: Duration) -> io::Result<()> {
        for socket in self.sockets() {
            sockopt::set_socket_timeout(socket, sockopt::Timeout::Recv, Some(limit))?;
            sockopt::set_socket_timeout(socket, sockopt::Timeout::Send, Some(limit))?;
        }
        Ok(())
    }

    /// Reads and writes return at once from now on.
    pub fn set_nonblocking(&self) -> io::Result<()> {
        for socket in self.sockets() {
            rustix::io::ioctl_fionbio(socket, true)?;
        }
        Ok(())
    }

    fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let stream = self.stream.as_ref().map(AsFd::as_fd);
        stream.into_iter().chain(self.datagrams.as_ref().map(Datagrams::as_fd))
    }
}

/// A socket over TCP, without Nagle's delay, or a Unix socket.
struct Plain(OwnedFd);

impl Read for Plain {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::io::read(&self.0, buffer)?)
    }
}

impl Write for Plain {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(net::send(&self.0, bytes, net::SendFlags::NOSIGNAL)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Plain {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn connect_tcp(address: &SocketAddr) -> io::Result<OwnedFd> {
    let stream = TcpStream::connect_timeout(address, PATIENCE)?;
    stream.set_nodelay(true)?;
    Ok(stream.into())
}

/// Connects, or gives up where the standard library would wait forever: while a server that stands still has its queue full.
fn connect_unix(path: &Path) -> io::Result<OwnedFd> {
    let socket = net::socket_with(
        net::AddressFamily::UNIX,
        net::SocketType::STREAM,
        net::SocketFlags::CLOEXEC,
        None,
    )?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(PATIENCE))?;
    // With a timeout, a signal that stops and continues this process ends the call (signal(7)).
    let address = net::SocketAddrUnix::new(path)?;
    rustix::io::retry_on_intr(|| net::connect(&socket, &address))?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, None)?;
    Ok(socket)
}

impl Read for Connection {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match (&mut self.datagrams, &mut self.stream) {
            (Some(datagrams), _) if self.asked => datagrams.read(buffer),
            (_, Some(stream)) => stream.read(buffer),
            (_, None) => Err(io::ErrorKind::NotConnected.into()),
        }
    }
}

impl Write for Connection {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match (&mut self.datagrams, &mut self.stream) {
            (Some(datagrams), stream) if stream.is_none() || bytes.starts_with(b"get ") => {
                self.asked = true;
                datagrams.write(bytes)
            }
            (_, Some(stream)) => {
                self.asked = false;
                stream.write(bytes)
            }
            (_, None) => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match (&self.stream, &self.datagrams) {
            (Some(stream), _) => stream.as_fd(),
            (None, Some(datagrams)) => datagrams.as_fd(),
            (None, None) => unreachable!("a connection has a socket"),
        }
    }
}

/// A client for preparing and inspecting: it understands what it reads.
pub struct Admin {
    connection: Connection,
    out: Vec<u8>,
    /// what has been read and, from `at` on, not yet been looked at
    input: Vec<u8>,
    at: usize,
}

impl Admin {
    /// Connects.
    pub fn open(target: &Target) -> io::Result<Self> {
        let connection = Connection::open(target)?;
        connection.set_timeout(PATIENCE)?;
        Ok(Self {
            connection,
            out: Vec::new(),
            input: Vec::new(),
            at: 0,
        })
    }

    /// Stores without waiting for an answer; [`Admin::barrier`] waits for all.
    pub fn set(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        let store = Store {
            verb: StoreVerb::Set,
            key,
            flags: 0,
            exptime: 0,
            cas: 0,
            noreply: true,
            value,
        };
        client::store(&mut self.out, &store);
        if self.out.len() > 64 << 10 { self.send() } else { Ok(()) }
    }

    /// Waits until the server has done everything sent before. An error reply in between is an error here.
    pub fn barrier(&mut self) -> io::Result<()> {
        self.version().map(drop)
    }

    /// The server's version, after it has done everything sent before.
    pub fn version(&mut self) -> io::Result<String> {
        client::other(&mut self.out, Command::Version, []);
        self.send()?;
        self.receive(|answer| match answer {
            Answer::Version(version) => Some(String::from_utf8_lossy(version).into_owned()),
            _ => None,
        })
    }

    /// One number of `stats`.
    pub fn stat(&mut self, name: &str) -> io::Result<u64> {
        let number = self.stat_text(name)?.parse();
        number.map_err(|_| io::Error::other(format!("{name} of stats is no number")))
    }

    /// One word of `stats`.
    pub fn stat_text(&mut self, wanted: &str) -> io::Result<String> {
        client::other(&mut self.out, Command::Stats, []);
        self.send()?;
        let mut found = None;
        let mut is_over = false;
        while !is_over {
            is_over = self.receive(|answer| match answer {
                Answer::Stat { name, value } => {
                    if *name == wanted.as_bytes() {
                        found = Some(String::from_utf8_lossy(value).into_owned());
                    }
                    Some(false)
                }
                Answer::End => Some(true),
                _ => None,
            })?;
        }
        found.ok_or_else(|| io::Error::other(format!("stats has nothing called {wanted}")))
    }

    /// How many of these keys are there, and bytes of their keys and values.
    pub fn hits<K: AsRef<[u8]>>(&mut self, keys: &[K]) -> io::Result<(u64, u64)> {
        client::get(&mut self.out, false, keys.iter().map(AsRef::as_ref));
        self.send()?;
        let (mut hits, mut bytes) = (0, 0);
        while let Some(len) = self.receive(|answer| match answer {
            Answer::Value { key, value, .. } => Some(Some(key.len() + value.len())),
            Answer::End => Some(None),
            _ => None,
        })? {
            hits += 1;
            bytes += len as u64;
        }
        Ok((hits, bytes))
    }

    fn send(&mut self) -> io::Result<()> {
        self.connection.write_all(&self.out)?;
        self.out.clear();
        Ok(())
    }

    /// Waits for the next answer, and gives what `take` makes of it; `None` from it: this is no answer to what was asked.
    fn receive<R>(&mut self, take: impl FnOnce(&Answer<'_>) -> Option<R>) -> io::Result<R> {
        loop {
            let need = match client::receive(&self.input[self.at..]) {
                Received::Answer { consumed, answer } => {
                    let taken = take(&answer).ok_or_else(|| unexpected(&self.input[self.at..self.at + consumed]));
                    self.at += consumed;
                    return taken;
                }
                Received::Broken(_) => return Err(unexpected(&self.input[self.at..])),
                Received::Incomplete { need } => need,
            };
            self.input.drain(..self.at);
            self.at = 0;
            let mut chunk = [0; 16 << 10];
            while self.input.len() < need {
                match self.connection.read(&mut chunk)? {
                    0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                    n => self.input.extend_from_slice(&chunk[..n]),
                }
            }
        }
    }
}

/// The server's bytes are no answer to what was asked.
fn unexpected(bytes: &[u8]) -> io::Error {
    const SHOWN: usize = 80;
    let shown = bytes[..bytes.len().min(SHOWN)].escape_ascii();
    io::Error::other(format!("the server answered \"{shown}\""))
}
