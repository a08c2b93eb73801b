//! A connection to a server, kept in a program that is not this library's own.
//!
//! No system call here waits: sockets are asked for what they have, and a wait is [`crate::process::wait`]'s, until a deadline. So a
//! caller that gives a deadline that has passed never waits, and can go on with the same connection later. Before each
//! system call the kernel is asked whether the descriptor is still this connection's ([`Kept`]); otherwise the connection is
//! broken, and the descriptor, which is the program's, is left alone.
//!
//! A connection is closed for both ends and for all processes that have inherited it when the process that made it drops it.
//!
//! Never: knows what is said.

use crate::process::descriptor::Kept;
use crate::process::fork::Home;
use crate::process::wait;
use nix::errno::Errno;
use nix::poll::PollFlags;
use nix::sys::socket::{
    AddressFamily, MsgFlags, Shutdown, SockFlag, SockType, SockaddrLike, SockaddrStorage, UnixAddr, bind, connect, getsockopt,
    recv, send, shutdown, socket, sockopt,
};
use std::io::{Error, ErrorKind, Result};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

/// Bytes that are read at once.
const READ_MAX: usize = 256 << 10;
/// How long to wait before a server is asked again that has too many unaccepted connections. The kernel does not report when
/// it has fewer.
const ACCEPTED_LATER: Duration = Duration::from_millis(2);

/// See the top of the file.
pub struct Connection {
    socket: Kept<OwnedFd>,
    home: Home,
    /// bytes that have come and were not taken yet
    received: Vec<u8>,
}

impl Connection {
    /// Connects to a Unix socket in a file.
    ///
    /// # Errors
    ///
    /// Those of connect(2); [`ErrorKind::TimedOut`]: the server has accepted no connection by the deadline.
    pub fn to_file(path: &Path, deadline: Instant) -> Result<Self> {
        Self::new(to_unix(&UnixAddr::new(path)?, false, deadline)?)
    }

    /// Connects by TCP.
    ///
    /// # Errors
    ///
    /// Those of connect(2); [`ErrorKind::TimedOut`]: the server has accepted no connection by the deadline.
    pub fn to_tcp(address: &SocketAddr, deadline: Instant) -> Result<Self> {
        let family = if address.is_ipv4() {
            AddressFamily::Inet
        } else {
            AddressFamily::Inet6
        };
        let socket = open(family)?;
        let address = SockaddrStorage::from(*address);
        connect_by(&socket, &address, deadline)?;
        let (here, there) = (
            nix::sys::socket::getsockname::<SockaddrStorage>(socket.as_raw_fd())?,
            nix::sys::socket::getpeername::<SockaddrStorage>(socket.as_raw_fd())?,
        );
        // The kernel may choose the very port that is asked for as the port to ask from, if no server listens on it.
        if here == there {
            return Err(ErrorKind::ConnectionRefused.into());
        }
        Self::new(socket)
    }

    /// A socket that is connected.
    pub(crate) fn new(socket: OwnedFd) -> Result<Self> {
        Ok(Self {
            socket: Kept::new(socket)?,
            home: Home::new(),
            received: Vec::new(),
        })
    }

    /// Sends all of it.
    ///
    /// # Errors
    ///
    /// A broken connection; [`ErrorKind::TimedOut`]: the server has not taken all of it by the deadline. In both cases a part
    /// may have been sent, so the connection is of no use any more.
    pub fn send(&mut self, mut bytes: &[u8], deadline: Instant) -> Result<()> {
        while !bytes.is_empty() {
            let socket = self.socket()?;
            match send(socket.as_raw_fd(), bytes, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL) {
                Ok(sent) => bytes = bytes.get(sent..).unwrap_or_default(),
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => until_ready(socket, PollFlags::POLLOUT, deadline)?,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Reads what has come: one byte at least.
    ///
    /// # Errors
    ///
    /// A broken or closed connection; [`ErrorKind::TimedOut`]: nothing has come by the deadline; no memory.
    pub fn receive(&mut self, deadline: Instant) -> Result<()> {
        let len = self.received.len();
        self.received.try_reserve(1)?;
        let room = (self.received.capacity() - len).min(READ_MAX);
        loop {
            let socket = self.socket()?.as_raw_fd();
            self.received.resize(len + room, 0);
            let got = recv(
                socket,
                self.received.get_mut(len..).unwrap_or_default(),
                MsgFlags::MSG_DONTWAIT,
            );
            self.received.truncate(len + got.unwrap_or(0));
            match got {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(_) => return Ok(()),
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => until_ready(self.socket()?, PollFlags::POLLIN, deadline)?,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The bytes that have come and were not taken yet.
    pub fn received(&mut self) -> &mut Vec<u8> {
        &mut self.received
    }

    /// Whether this process has made it. Otherwise it is its parent's.
    pub fn is_own(&self) -> bool {
        self.home.is_here()
    }

    /// Whether the server has not closed the connection, nor has the program taken the descriptor away. It is asked without a
    /// wait, and reads nothing.
    pub(crate) fn is_open(&self) -> bool {
        let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
        self.socket().is_ok_and(|socket| {
            matches!(
                recv(socket.as_raw_fd(), &mut [0], flags),
                Ok(1..) | Err(Errno::EAGAIN | Errno::EINTR)
            )
        })
    }

    /// The socket, if the descriptor is still its own.
    fn socket(&self) -> Result<BorrowedFd<'_>> {
        let socket = self.socket.get().ok_or_else(|| Error::from(ErrorKind::NotConnected))?;
        Ok(socket.as_fd())
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // A child has inherited it, and its parent goes on.
        if self.home.is_here()
            && let Ok(socket) = self.socket()
        {
            let _ = shutdown(socket.as_raw_fd(), Shutdown::Both);
        }
    }
}

/// A socket that is connected to a Unix socket. `has_name`: it gets a name of the kernel's choice first (unix(7), "autobind").
pub(crate) fn to_unix(address: &UnixAddr, has_name: bool, deadline: Instant) -> Result<OwnedFd> {
    let socket = open(AddressFamily::Unix)?;
    if has_name {
        bind(socket.as_raw_fd(), &UnixAddr::new_unnamed())?;
    }
    connect_by(&socket, address, deadline)?;
    Ok(socket)
}

fn open(family: AddressFamily) -> Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    Ok(socket(family, SockType::Stream, flags, None)?)
}

fn connect_by(socket: &OwnedFd, address: &impl SockaddrLike, deadline: Instant) -> Result<()> {
    loop {
        match connect(socket.as_raw_fd(), address) {
            Ok(()) | Err(Errno::EISCONN) => return Ok(()),
            Err(Errno::EINTR) => {}
            Err(Errno::EINPROGRESS | Errno::EALREADY) => {
                until_ready(socket.as_fd(), PollFlags::POLLOUT, deadline)?;
                return match getsockopt(socket, sockopt::SocketError)? {
                    0 => Ok(()),
                    error => Err(Error::from_raw_os_error(error)),
                };
            }
            // connect(2): the queue of a Unix socket is full.
            Err(Errno::EAGAIN) if Instant::now() < deadline => wait::sleep(ACCEPTED_LATER),
            Err(Errno::EAGAIN) => return Err(ErrorKind::TimedOut.into()),
            Err(error) => return Err(error.into()),
        }
    }
}

pub(crate) fn until_ready(socket: BorrowedFd<'_>, what: PollFlags, deadline: Instant) -> Result<()> {
    if wait::until_ready(socket, what, deadline) {
        Ok(())
    } else {
        Err(ErrorKind::TimedOut.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    fn pair() -> (Connection, UnixStream) {
        let (one, other) = UnixStream::pair().unwrap();
        (Connection::new(one.into()).unwrap(), other)
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(20)
    }

    #[test]
    fn a_number_that_became_the_programs_is_neither_written_nor_read_nor_closed() {
        let (mut connection, _server) = pair();
        let (own, mut other) = UnixStream::pair().unwrap();
        other.write_all(b"the program's").unwrap();
        assert!(connection.is_open());
        connection.socket.overrun(&own);
        drop(own);
        assert!(!connection.is_open());
        assert_eq!(
            connection.send(b"a secret", soon()).unwrap_err().kind(),
            ErrorKind::NotConnected
        );
        assert_eq!(connection.receive(soon()).unwrap_err().kind(), ErrorKind::NotConnected);
        assert!(connection.received().is_empty());
        drop(connection);
        other.set_nonblocking(true).unwrap();
        let left = other.read(&mut [0]).unwrap_err();
        assert_eq!(left.kind(), ErrorKind::WouldBlock, "not even closed");
    }

    #[test]
    fn without_time_nothing_is_waited_for() {
        let (mut connection, mut server) = pair();
        let passed = Instant::now();
        assert_eq!(connection.receive(passed).unwrap_err().kind(), ErrorKind::TimedOut);
        connection.send(b"hello", passed).unwrap();
        let full = vec![b'x'; 16 << 20];
        assert_eq!(connection.send(&full, passed).unwrap_err().kind(), ErrorKind::TimedOut);
        server.write_all(b"answer").unwrap();
        connection.receive(passed).unwrap();
        assert_eq!(connection.received(), b"answer");
    }

    #[test]
    fn a_large_answer_arrives_whole() {
        let (mut connection, mut server) = pair();
        let large: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
        std::thread::scope(|scope| {
            scope.spawn(|| server.write_all(&large).unwrap());
            while connection.received().len() < large.len() {
                connection.receive(soon()).unwrap();
            }
            assert!(*connection.received() == large);
        });
    }

    #[test]
    fn it_is_closed_for_every_copy_of_its_descriptor() {
        let (connection, mut server) = pair();
        let copy = connection.socket().unwrap().try_clone_to_owned().unwrap();
        drop(connection);
        server.set_nonblocking(true).unwrap();
        assert_eq!(server.read(&mut [0]).unwrap(), 0);
        drop(copy);
    }
}
