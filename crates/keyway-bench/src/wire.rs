//! Connections to a memcached-compatible server, and a simple client to prepare and inspect it with.

use crate::datagram::Datagrams;
use crate::plan::Door;
use rustix::net::{self, sockopt};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
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
}

impl Target {
    /// A server's address, as its user gives it, through one of its doors; `None`: not through this one.
    pub fn through(&self, door: Door) -> Option<Self> {
        match (self, door) {
            (Self::Tcp(address), Door::Udp) => Some(Self::Udp(*address)),
            (Self::Tcp(address), Door::Split) => Some(Self::Split(*address)),
            (Self::Tcp(_), Door::Tcp) | (Self::Unix(_), Door::Unix) | (Self::Udp(_), Door::Udp) => Some(self.clone()),
            _ => None,
        }
    }

    /// Whether the server there is on this machine.
    pub fn is_here(&self) -> bool {
        match self {
            Self::Tcp(address) | Self::Udp(address) | Self::Split(address) => address.ip().is_loopback(),
            Self::Unix(_) => true,
        }
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(address) | Self::Udp(address) | Self::Split(address) => address.fmt(f),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

/// A connection to a server: a stream, datagrams, or both, one after the other.
#[derive(Debug)]
pub struct Connection {
    /// over TCP, without Nagle's delay, or over a Unix socket
    stream: Option<OwnedFd>,
    /// one write is one request, and reads give the pieces of its answer; beside a stream, for gets
    datagrams: Option<Datagrams>,
    /// whether the last request was a datagram: what is read is its answer
    asked: bool,
}

impl Connection {
    /// Connects; blocking.
    pub fn open(target: &Target) -> io::Result<Self> {
        let stream = match target {
            Target::Tcp(address) | Target::Split(address) => Some(connect_tcp(address)?),
            Target::Unix(path) => Some(connect_unix(path)?),
            Target::Udp(_) => None,
        };
        let datagrams = match target {
            Target::Udp(address) | Target::Split(address) => Some(Datagrams::open(*address)?),
            Target::Tcp(_) | Target::Unix(_) => None,
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
        let stream = self.stream.as_ref().map(OwnedFd::as_fd);
        stream.into_iter().chain(self.datagrams.as_ref().map(Datagrams::as_fd))
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
        match (&mut self.datagrams, &self.stream) {
            (Some(datagrams), _) if self.asked => datagrams.read(buffer),
            (_, Some(stream)) => Ok(rustix::io::read(stream, buffer)?),
            (_, None) => Err(io::ErrorKind::NotConnected.into()),
        }
    }
}

impl Write for Connection {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match (&mut self.datagrams, &self.stream) {
            (Some(datagrams), stream) if stream.is_none() || bytes.starts_with(b"get ") => {
                self.asked = true;
                datagrams.write(bytes)
            }
            (_, Some(stream)) => {
                self.asked = false;
                Ok(net::send(stream, bytes, net::SendFlags::NOSIGNAL)?)
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
        self.out.extend_from_slice(&set_request(key, value, true));
        if self.out.len() > 64 << 10 { self.send() } else { Ok(()) }
    }

    /// Waits until the server has done everything sent before. An error reply in between is an error here.
    pub fn barrier(&mut self) -> io::Result<()> {
        self.version().map(drop)
    }

    /// The server's version, after it has done everything sent before.
    pub fn version(&mut self) -> io::Result<String> {
        self.out.extend_from_slice(b"version\r\n");
        self.send()?;
        let line = self.line()?;
        match line.strip_prefix("VERSION ") {
            Some(version) => Ok(version.to_owned()),
            None => Err(io::Error::other(format!("the server answered {line:?}"))),
        }
    }

    /// One number of `stats`.
    pub fn stat(&mut self, name: &str) -> io::Result<u64> {
        let number = self.stat_text(name)?.parse();
        number.map_err(|_| io::Error::other(format!("{name} of stats is no number")))
    }

    /// One word of `stats`.
    pub fn stat_text(&mut self, name: &str) -> io::Result<String> {
        self.out.extend_from_slice(b"stats\r\n");
        self.send()?;
        let mut found = None;
        loop {
            let line = self.line()?;
            if line == "END" {
                return found.ok_or_else(|| io::Error::other(format!("stats has nothing called {name}")));
            }
            if let Some((stat, value)) = line.strip_prefix("STAT ").and_then(|l| l.split_once(' '))
                && stat == name
            {
                found = Some(value.to_owned());
            }
        }
    }

    /// How many of these keys are there, and bytes of their keys and values.
    pub fn hits<K: AsRef<[u8]>>(&mut self, keys: &[K]) -> io::Result<(u64, u64)> {
        self.out.extend_from_slice(b"get");
        for key in keys {
            self.out.push(b' ');
            self.out.extend_from_slice(key.as_ref());
        }
        self.out.extend_from_slice(b"\r\n");
        self.send()?;
        let (mut hits, mut bytes) = (0, 0);
        loop {
            let line = self.line()?;
            if line == "END" {
                return Ok((hits, bytes));
            }
            let mut words = line.strip_prefix("VALUE ").unwrap_or_default().split(' ');
            let (key, value_len) = (words.next(), words.nth(1).and_then(|n| n.parse::<usize>().ok()));
            let (Some(key), Some(value_len)) = (key, value_len) else {
                return Err(io::Error::other(format!("the server answered {line:?}")));
            };
            self.skip(value_len + 2)?;
            hits += 1;
            bytes += (key.len() + value_len) as u64;
        }
    }

    fn send(&mut self) -> io::Result<()> {
        self.connection.write_all(&self.out)?;
        self.out.clear();
        Ok(())
    }

    fn fill(&mut self) -> io::Result<()> {
        self.input.drain(..self.at);
        self.at = 0;
        let mut chunk = [0; 16 << 10];
        match self.connection.read(&mut chunk)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            n => {
                self.input.extend_from_slice(&chunk[..n]);
                Ok(())
            }
        }
    }

    fn line(&mut self) -> io::Result<String> {
        let len = loop {
            match self.input[self.at..].windows(2).position(|w| w == b"\r\n") {
                Some(len) => break len,
                None => self.fill()?,
            }
        };
        let line = String::from_utf8_lossy(&self.input[self.at..self.at + len]).into_owned();
        self.at += len + 2;
        Ok(line)
    }

    fn skip(&mut self, count: usize) -> io::Result<()> {
        while self.input.len() - self.at < count {
            self.fill()?;
        }
        self.at += count;
        Ok(())
    }
}

/// A `set` of the classic protocol, flags and exptime 0.
pub fn set_request(key: &[u8], value: &[u8], noreply: bool) -> Vec<u8> {
    let mut request = Vec::with_capacity(key.len() + value.len() + 40);
    request.extend_from_slice(b"set ");
    request.extend_from_slice(key);
    let noreply = if noreply { " noreply" } else { "" };
    request.extend_from_slice(format!(" 0 0 {}{noreply}\r\n", value.len()).as_bytes());
    request.extend_from_slice(value);
    request.extend_from_slice(b"\r\n");
    request
}
