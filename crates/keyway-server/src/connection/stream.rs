//! The socket of a connection: TCP, or Unix.

use std::io;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use mio::net::{TcpStream, UnixStream};
use mio::{Interest, Registry, Token, event};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, getsockopt, recv, sockopt};

use crate::shared::PeerAddress;

/// A client's socket.
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// What a socket holds for its reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Front {
    Bytes,
    /// nothing yet
    Nothing,
    /// the client sends no more
    End,
}

impl Stream {
    /// The effective user of the process that connected; `None`: it is not on this machine, or the kernel does not say.
    pub(super) fn peer_user(&self) -> Option<u32> {
        match self {
            Self::Tcp(_) => None,
            Self::Unix(stream) => getsockopt(stream, sockopt::PeerCredentials).ok().map(|peer| peer.uid()),
        }
    }

    /// Whether the other end is closed, whatever was sent before that and is not read yet.
    pub(super) fn is_closed_there(&self) -> bool {
        let mut asked = [PollFd::new(self.as_fd(), PollFlags::POLLHUP)];
        matches!(poll(&mut asked, PollTimeout::ZERO), Ok(1..))
    }

    /// Looks at what a read would return, and takes nothing. Never waits, even if the socket is blocking.
    pub(super) fn front(&self) -> io::Result<Front> {
        match recv(self.as_raw_fd(), &mut [0], MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT) {
            Ok(0) => Ok(Front::End),
            // Interrupted: a read tells.
            Ok(_) | Err(Errno::EINTR) => Ok(Front::Bytes),
            Err(Errno::EAGAIN) => Ok(Front::Nothing),
            Err(error) => Err(error.into()),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(buf),
            Self::Unix(stream) => stream.write(buf),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
        }
    }
}

impl AsRawFd for Stream {
    fn as_raw_fd(&self) -> RawFd {
        match self {
            Self::Tcp(stream) => stream.as_raw_fd(),
            Self::Unix(stream) => stream.as_raw_fd(),
        }
    }
}

impl event::Source for Stream {
    fn register(&mut self, registry: &Registry, token: Token, interests: Interest) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.register(registry, token, interests),
            Self::Unix(stream) => stream.register(registry, token, interests),
        }
    }

    fn reregister(&mut self, registry: &Registry, token: Token, interests: Interest) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.reregister(registry, token, interests),
            Self::Unix(stream) => stream.reregister(registry, token, interests),
        }
    }

    fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.deregister(registry),
            Self::Unix(stream) => stream.deregister(registry),
        }
    }
}

/// Reads a socket without waiting, even if the socket is blocking.
pub(super) struct Reader(pub RawFd);

impl Read for Reader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        Ok(recv(self.0, buf, MsgFlags::MSG_DONTWAIT)?)
    }
}

impl std::fmt::Display for PeerAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp {
                remote, is_secure: true, ..
            } => write!(f, "tls:{remote}"),
            Self::Tcp { remote, .. } => write!(f, "tcp:{remote}"),
            Self::Unix | Self::Reader => f.write_str("unix"),
            Self::Udp { remote, local } => write!(f, "udp:{}", remote.unwrap_or(*local)),
        }
    }
}
