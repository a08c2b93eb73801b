//! A raw socket to a server, TCP, Unix or UDP, with a deadline on everything. It knows bytes, lines and the end of the stream, and what
//! `keyway-proto` reads as an answer ([`Wire::receive`]).
//!
//! Over UDP, what is sent at a time is one request datagram, and what arrives is the payloads of the datagrams that answer, in
//! their order. Their frames (memcached's protocol.txt, "UDP protocol") are put on and taken off here.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use keyway_proto::Command;
use keyway_proto::client::{self, Answer, Received};

/// An item that a get brought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetched {
    /// its key
    pub key: String,
    /// client flags
    pub flags: u32,
    /// CAS unique; 0 where it was not asked for
    pub cas: u64,
    /// its value
    pub value: Vec<u8>,
}

/// A connection.
#[derive(Debug)]
pub struct Wire {
    stream: Stream,
    /// what has arrived and is not consumed yet, from `start` on
    inbox: Vec<u8>,
    start: usize,
}

#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    /// and the id of the latest request
    Udp(UdpSocket, u16),
}

impl Wire {
    /// Wraps a TCP connection.
    pub fn from_tcp(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Self::new(Stream::Tcp(stream))
    }

    /// Wraps a connection over a Unix socket.
    pub fn from_unix(stream: UnixStream) -> io::Result<Self> {
        Self::new(Stream::Unix(stream))
    }

    /// A UDP socket that sends to `address` and hears no other.
    pub fn to_udp(address: SocketAddr) -> io::Result<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        socket.connect(address)?;
        Self::new(Stream::Udp(socket, 0))
    }

    fn new(stream: Stream) -> io::Result<Self> {
        let mut wire = Self {
            stream,
            inbox: Vec::new(),
            start: 0,
        };
        wire.set_timeout(crate::DEADLINE)?;
        Ok(wire)
    }

    /// Sets how long one read or write may take.
    pub fn set_timeout(&mut self, limit: Duration) -> io::Result<()> {
        match &self.stream {
            Stream::Tcp(s) => s
                .set_read_timeout(Some(limit))
                .and_then(|()| s.set_write_timeout(Some(limit))),
            Stream::Unix(s) => s
                .set_read_timeout(Some(limit))
                .and_then(|()| s.set_write_timeout(Some(limit))),
            Stream::Udp(s, _) => s.set_read_timeout(Some(limit)),
        }
    }

    /// A second handle on the same connection, with an inbox of its own: one end of it for writing from another thread.
    pub fn try_clone(&self) -> io::Result<Self> {
        let stream = match &self.stream {
            Stream::Tcp(s) => Stream::Tcp(s.try_clone()?),
            Stream::Unix(s) => Stream::Unix(s.try_clone()?),
            Stream::Udp(s, id) => Stream::Udp(s.try_clone()?, *id),
        };
        Ok(Self {
            stream,
            inbox: Vec::new(),
            start: 0,
        })
    }

    /// Closes one or both directions.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        match &self.stream {
            Stream::Tcp(s) => s.shutdown(how),
            Stream::Unix(s) => s.shutdown(how),
            Stream::Udp(..) => Err(ErrorKind::Unsupported.into()),
        }
    }

    /// Sends everything.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.stream {
            Stream::Tcp(s) => s.write_all(bytes),
            Stream::Unix(s) => s.write_all(bytes),
            Stream::Udp(s, id) => {
                *id = id.wrapping_add(1);
                let [high, low] = id.to_be_bytes();
                s.send(&[&[high, low, 0, 0, 0, 1, 0, 0], bytes].concat()).map(|_| ())
            }
        }
    }

    /// What has arrived and is not consumed yet.
    pub fn pending(&self) -> &[u8] {
        &self.inbox[self.start..]
    }

    /// Forgets the first `len` bytes of what has arrived.
    pub fn consume(&mut self, len: usize) {
        self.start += len;
        if self.start == self.inbox.len() {
            self.inbox.clear();
            self.start = 0;
        }
    }

    /// Waits for more bytes; false at the end of the stream (a reset is an end too).
    pub fn fill(&mut self) -> io::Result<bool> {
        if self.start > 1 << 20 {
            self.inbox.drain(..self.start);
            self.start = 0;
        }
        let mut chunk = [0; 64 << 10];
        let got = match &mut self.stream {
            Stream::Tcp(s) => s.read(&mut chunk),
            Stream::Unix(s) => s.read(&mut chunk),
            Stream::Udp(s, id) => receive_payload(s, *id, &mut chunk),
        };
        match got {
            Ok(0) => Ok(false),
            Ok(len) => {
                self.inbox.extend_from_slice(&chunk[..len]);
                Ok(true)
            }
            Err(e) if matches!(e.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => Ok(false),
            Err(e) if e.kind() == ErrorKind::Interrupted => Ok(true),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                Err(io::Error::new(ErrorKind::TimedOut, "nothing arrived within the deadline"))
            }
            Err(e) => Err(e),
        }
    }

    /// The next line, without its `\r\n`.
    pub fn line(&mut self) -> io::Result<Vec<u8>> {
        let mut searched = 0;
        loop {
            let pending = self.pending();
            if let Some(at) = pending[searched..].windows(2).position(|pair| pair == b"\r\n") {
                let line = pending[..searched + at].to_vec();
                self.consume(line.len() + 2);
                return Ok(line);
            }
            searched = pending.len().saturating_sub(1);
            if !self.fill()? {
                return Err(io::Error::new(ErrorKind::UnexpectedEof, "closed in the middle of a line"));
            }
        }
    }

    /// The next `len` bytes.
    pub fn exactly(&mut self, len: usize) -> io::Result<Vec<u8>> {
        while self.pending().len() < len {
            if !self.fill()? {
                return Err(io::Error::new(ErrorKind::UnexpectedEof, "closed in the middle of a reply"));
            }
        }
        let bytes = self.pending()[..len].to_vec();
        self.consume(len);
        Ok(bytes)
    }

    /// Waits for the next answer of the text protocol, and returns what `take` makes of it. What is no answer is an error of kind
    /// `InvalidData`, and stays where it is.
    pub fn receive<R>(&mut self, take: impl FnOnce(&Answer<'_>) -> R) -> io::Result<R> {
        loop {
            let need = match client::receive(self.pending()) {
                Received::Answer { consumed, answer } => {
                    let taken = take(&answer);
                    self.consume(consumed);
                    return Ok(taken);
                }
                Received::Incomplete { need } => need,
                Received::Broken(why) => {
                    let bytes = printable(self.pending());
                    return Err(io::Error::new(ErrorKind::InvalidData, format!("{why}: {bytes}")));
                }
            };
            while self.pending().len() < need {
                if !self.fill()? {
                    return Err(io::Error::new(ErrorKind::UnexpectedEof, "closed in the middle of an answer"));
                }
            }
        }
    }

    /// Waits for the end of a list of answers; another answer is an error of kind `InvalidData`.
    pub fn receive_end(&mut self) -> io::Result<()> {
        self.receive(|answer| match answer {
            Answer::End => Ok(()),
            other => Err(io::Error::new(ErrorKind::InvalidData, format!("no END: {other:?}"))),
        })?
    }

    /// Gets these keys in one request, with their CAS uniques if asked for: the items that are there, in the order of the keys. An
    /// error line is an error.
    pub fn get(&mut self, with_cas: bool, keys: &[&str]) -> io::Result<Vec<Fetched>> {
        let mut request = Vec::new();
        client::get(&mut request, with_cas, keys.iter().map(|key| key.as_bytes()));
        self.send(&request)?;
        let mut found = Vec::new();
        loop {
            let item = self.receive(|answer| match answer {
                Answer::Value { key, flags, cas, value } if cas.is_some() == with_cas => Ok(Some(Fetched {
                    key: String::from_utf8_lossy(key).into_owned(),
                    flags: *flags,
                    cas: cas.unwrap_or(0),
                    value: value.to_vec(),
                })),
                Answer::End => Ok(None),
                other => Err(io::Error::other(format!("{other:?}"))),
            })??;
            let Some(item) = item else { return Ok(found) };
            if !keys.contains(&item.key.as_str()) {
                return Err(io::Error::other(format!("the answer is about {}", item.key)));
            }
            found.push(item);
        }
    }

    /// The names and values that `stats` tells, of a kind or, with an empty `kind`, in general. An error line is an error.
    pub fn stats(&mut self, kind: &str) -> io::Result<Vec<(String, String)>> {
        let mut request = Vec::new();
        let kind = Some(kind.as_bytes()).filter(|kind| !kind.is_empty());
        client::other(&mut request, Command::Stats, kind);
        self.send(&request)?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let mut all = Vec::new();
        loop {
            let one = self.receive(|answer| match answer {
                Answer::Stat { name, value } => Ok(Some((text(name), text(value)))),
                Answer::End => Ok(None),
                other => Err(io::Error::other(format!("{other:?}"))),
            })??;
            match one {
                Some(one) => all.push(one),
                None => return Ok(all),
            }
        }
    }

    /// Sends a line (the `\r\n` is added) and returns the line that answers it, as text.
    pub fn ask(&mut self, request: &str) -> io::Result<String> {
        self.send(format!("{request}\r\n").as_bytes())?;
        let line = self.line()?;
        Ok(String::from_utf8_lossy(&line).into_owned())
    }
}

/// The payload of the next datagram. One that answers nothing that was asked is an error.
fn receive_payload(socket: &UdpSocket, id: u16, chunk: &mut [u8]) -> io::Result<usize> {
    let mut len = socket.recv(chunk)?;
    // memcached sends an empty message "0 of 0" for a key that it does not find.
    while len == 8 && chunk[4..8] == [0; 4] {
        len = socket.recv(chunk)?;
    }
    let [a, b, ..] = *chunk else {
        return Err(ErrorKind::InvalidInput.into());
    };
    let lag = id.wrapping_sub(u16::from_be_bytes([a, b]));
    if len <= 8 || lag > 1 {
        let what = format!(
            "a datagram of {len} bytes that begins {:?}, after request {id}",
            &chunk[..len.min(8)]
        );
        return Err(io::Error::new(ErrorKind::InvalidData, what));
    }
    chunk.copy_within(8..len, 0);
    Ok(len - 8)
}

/// A connection to a server that says fixed bytes, whatever it is asked, and then closes: for showing that a checker catches it.
///
/// # Panics
///
/// When there is no free port.
pub fn liar(reply: &'static [u8]) -> Wire {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap_or_else(|e| panic!("no free port on loopback: {e}"));
    let address = listener
        .local_addr()
        .unwrap_or_else(|e| panic!("a bound socket has an address: {e}"));
    let stream = TcpStream::connect(address).unwrap_or_else(|e| panic!("{address}: {e}"));
    let own = stream.local_addr().unwrap_or_else(|e| panic!("{address}: {e}"));
    std::thread::spawn(move || {
        // Another test may take the port for that of a server which it has just started.
        let ours = |accepted: io::Result<(TcpStream, _)>| accepted.ok().filter(|(_, peer)| *peer == own);
        let Some((mut stream, _)) = std::iter::repeat_with(|| listener.accept()).find_map(ours) else {
            return;
        };
        // the end of the stream must reach the client before a reset does: whatever it asks is read
        let _ = stream.write_all(reply);
        let _ = stream.shutdown(Shutdown::Write);
        let _ = io::copy(&mut stream, &mut io::sink());
    });
    Wire::from_tcp(stream).unwrap_or_else(|e| panic!("{address}: {e}"))
}

/// Bytes for people: printable ASCII as it is, the rest escaped, and only the two ends of what is long.
pub fn printable(bytes: &[u8]) -> String {
    const SHOWN: usize = 150;
    let escape = |part: &[u8]| part.escape_ascii().to_string();
    if bytes.len() <= 2 * SHOWN {
        return escape(bytes);
    }
    let (head, tail) = (&bytes[..SHOWN], &bytes[bytes.len() - SHOWN..]);
    format!("{} […{} bytes…] {}", escape(head), bytes.len() - 2 * SHOWN, escape(tail))
}
