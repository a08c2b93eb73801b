//! The socket of a connection, and who watches it: the worker's poll, or its ring.
//!
//! | intake | the ring | the socket is read by | next |
//! |---|---|---|---|
//! | `Off` | nothing | turns | `Receiving` when the socket is empty; `Watching` when much is missing, or after a long silence |
//! | `Receiving` | receives what arrives, again and again | the ring | `Ending` when no data is wanted for now, when much is missing, or after a long silence |
//! | `Ending` | is stopping its receive | the ring, until the last event | `Off` |
//! | `Watching` | reports once when data arrives | neither | `Off` |
//!
//! Small requests are executed in the ring's buffers; an unfinished request after them is copied. The turns read a large value directly to
//! the buffer where it is assembled, in steps, as they do without a ring.
//!
//! Never: holds bytes that were received, or that are to be sent, except while the ring sends them.

use std::io::{self, Write};
use std::net::Shutdown;
use std::os::fd::{AsRawFd, RawFd};

use keyway_uring::Ring;
use mio::{Interest, Registry, Token};
use nix::errno::Errno;
use nix::libc::{ECANCELED, ENOBUFS};
use nix::sys::socket::{MsgFlags, send};
use socket2::SockRef;

use super::stream::Stream;

/// A request that lacks this many bytes is read directly: that is worth the two extra requests to the ring.
const DIRECT_MIN: usize = 32 * 1024;
/// While this many bytes wait for their turn, no more are read from the socket.
const WAITING_MAX: usize = 64 * 1024;

/// See the top of the file.
pub(super) struct Link {
    stream: Stream,
    /// the worker's token for the connection
    token: usize,
    /// the ring's work for it, if the worker has a ring
    port: Option<RingPort>,
    /// registered with the poll for writability
    wants_write: bool,
    /// it has been silent for long: the ring only watches its socket, which takes a third of the kernel memory of a receive
    is_parked: bool,
}

/// What a connection wants of its ring's receive.
pub(super) struct Wanted {
    /// it takes more bytes
    pub(super) input: bool,
    /// its turns have not yet found the socket empty
    pub(super) readable: bool,
    /// its turn reads the bytes itself, even few
    pub(super) directly: bool,
    /// bytes at the front of its input that make a request
    pub(super) least: usize,
    /// bytes of its input that wait
    pub(super) waiting: usize,
}

impl Link {
    pub(super) fn new(stream: Stream, token: usize, has_ring: bool) -> Self {
        Self {
            stream,
            token,
            port: has_ring.then(RingPort::default),
            wants_write: false,
            is_parked: false,
        }
    }

    pub(super) fn stream(&self) -> &Stream {
        &self.stream
    }

    pub(super) fn token(&self) -> usize {
        self.token
    }

    /// Has the event loop watch the socket. `is_inherited`: another server, or another worker, may have left it in blocking mode.
    pub(super) fn register(&mut self, registry: &Registry, is_inherited: bool) -> io::Result<()> {
        if self.port.is_some() {
            // The ring waits only for blocking sockets; the server's own reads ask for no waiting.
            return SockRef::from(&self.stream).set_nonblocking(false);
        }
        if is_inherited {
            SockRef::from(&self.stream).set_nonblocking(true)?;
        }
        registry.register(&mut self.stream, Token(self.token), Interest::READABLE)
    }

    /// It is served elsewhere from now on, and not closed here: the poll no longer watches it. Otherwise it would go on reporting its events,
    /// because the socket lives on (epoll(7), question 6).
    pub(super) fn leave(&mut self, registry: &Registry) -> io::Result<()> {
        match self.port {
            Some(_) => Ok(()),
            None => registry.deregister(&mut self.stream),
        }
    }

    /// It is served by another worker from now on, whose token for it is this one.
    pub(super) fn settle_at(&mut self, token: usize, has_ring: bool, registry: &Registry) -> io::Result<()> {
        let had_ring = self.port.is_some();
        self.port = has_ring.then(RingPort::default);
        self.token = token;
        self.is_parked = false;
        self.wants_write = false;
        self.register(registry, had_ring)
    }

    /// Has the poll watch the socket for writability too, or no longer.
    pub(super) fn watch_writability(&mut self, wants_write: bool, registry: &Registry) -> io::Result<()> {
        if wants_write != self.wants_write {
            let interest = if wants_write {
                Interest::READABLE | Interest::WRITABLE
            } else {
                Interest::READABLE
            };
            registry.reregister(&mut self.stream, Token(self.token), interest)?;
            self.wants_write = wants_write;
        }
        Ok(())
    }

    /// Starts or stops the ring's receiving (the table is in `port`). Returns true if the ring reads the socket from now on.
    pub(super) fn update_intake(&mut self, ring: &mut Ring, wanted: &Wanted) -> io::Result<bool> {
        // After a long silence the turn reads the data, as it reads large requests.
        let least = if wanted.directly || self.is_parked {
            usize::MAX
        } else {
            wanted.least
        };
        let missing = least.saturating_sub(wanted.waiting);
        let Some(port) = &mut self.port else { return Ok(false) };
        port.update(ring, self.stream.as_raw_fd(), self.token, wanted, missing)
    }

    /// It has been silent for long, or is not any more.
    pub(super) fn park(&mut self, is_parked: bool) {
        self.is_parked = is_parked;
    }

    /// The ring no longer reads the socket, so a turn may.
    pub(super) fn ended_receiving(&mut self) {
        if let Some(port) = &mut self.port {
            port.intake = Intake::Off;
        }
    }

    /// Whether turns may read the socket: the ring does not.
    pub(super) fn is_for_turns(&self) -> bool {
        self.port.as_ref().is_none_or(|port| port.intake == Intake::Off)
    }

    /// Whether the ring receives what arrives.
    pub(super) fn is_receiving(&self) -> bool {
        self.port.as_ref().is_some_and(|port| port.intake == Intake::Receiving)
    }

    /// Whether the ring no longer uses it.
    pub(super) fn is_let_go(&self) -> bool {
        self.port.as_ref().is_none_or(RingPort::is_idle)
    }

    /// Whether a receive that ended with this result leaves the socket usable: it was cancelled, or there were no buffers.
    pub(super) fn may_go_on(result: i32) -> bool {
        result > 0 || [-ECANCELED, -ENOBUFS].contains(&result)
    }

    /// Bytes that the ring is sending, and the memory of their vector.
    pub(super) fn sending(&self) -> (usize, usize) {
        self.port.as_ref().map_or((0, 0), |port| (port.sending, port.held))
    }

    /// The ring has given the vector back. Returns how many bytes it was to send; `None`: there is no ring.
    pub(super) fn end_send(&mut self) -> Option<usize> {
        self.port.as_mut().map(RingPort::end_send)
    }

    /// Whether bytes go out by the ring.
    pub(super) fn sends_by_ring(&self) -> bool {
        self.port.is_some()
    }

    /// Writes once, without a ring.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(bytes)
    }

    /// Writes as much as the socket takes, although it may be a blocking one.
    pub(super) fn write_at_once(&self, bytes: &[u8]) -> io::Result<usize> {
        match send(self.fd(), bytes, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL) {
            Ok(count) => Ok(count),
            Err(Errno::EAGAIN | Errno::EINTR) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }

    /// Has the ring send this vector, from `sent` on.
    pub(super) fn send(&mut self, ring: &mut Ring, output: Vec<u8>, sent: usize) -> io::Result<()> {
        let (fd, token) = (self.fd(), self.token);
        match &mut self.port {
            Some(port) => port.send(ring, fd, token, output, sent),
            None => Ok(()),
        }
    }

    /// Cancels what the ring does for it; the last events are still to come.
    pub(super) fn let_go(&mut self, ring: &mut Ring) -> io::Result<()> {
        let Some(port) = &mut self.port else { return Ok(()) };
        port.let_go(ring, self.token)?;
        match port.sending {
            0 => Ok(()),
            _ => ring.cancel_send(self.token),
        }
    }

    /// The connection is over. Returns true if the ring no longer uses it. Otherwise the receive is cancelled and the socket is shut down, so
    /// that pending operations fail.
    pub(super) fn end(&mut self, ring: &mut Option<Ring>) -> bool {
        let (Some(port), Some(ring)) = (&mut self.port, ring) else {
            return true;
        };
        if port.is_idle() {
            return true;
        }
        // The socket is not connected any more, or the ring has no such operation any more: both are the wanted state.
        let _ = SockRef::from(&self.stream).shutdown(Shutdown::Both);
        let _ = port.let_go(ring, self.token);
        false
    }

    pub(super) fn fd(&self) -> RawFd {
        self.stream.as_raw_fd()
    }
}

/// What the ring does for a connection.
#[derive(Default)]
struct RingPort {
    intake: Intake,
    /// bytes that the ring is sending
    sending: usize,
    /// memory of the vector that they are in
    held: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Intake {
    #[default]
    Off,
    Receiving,
    Ending,
    Watching,
}

impl RingPort {
    /// The ring sends this vector, from `sent` on.
    fn send(&mut self, ring: &mut Ring, fd: RawFd, token: usize, output: Vec<u8>, sent: usize) -> io::Result<()> {
        let (rest, held) = (output.len() - sent, output.capacity());
        ring.send(fd, token, output, sent)?;
        // Not before: a connection that is over stays until the ring has told what became of a send, and of one that it refused it tells nothing.
        (self.sending, self.held) = (rest, held);
        Ok(())
    }

    /// The ring has given the vector back. Returns how many bytes it was to send.
    fn end_send(&mut self) -> usize {
        self.held = 0;
        std::mem::take(&mut self.sending)
    }

    /// Whether the ring has nothing to do for the connection.
    fn is_idle(&self) -> bool {
        self.intake == Intake::Off && self.sending == 0
    }

    /// Changes to the state that the connection needs. `missing` bytes complete the request at the front. Returns true if the ring reads the
    /// socket from now on.
    fn update(&mut self, ring: &mut Ring, fd: RawFd, token: usize, wanted: &Wanted, missing: usize) -> io::Result<bool> {
        let is_large = missing >= DIRECT_MIN;
        match self.intake {
            Intake::Off if !wanted.input || wanted.readable => Ok(false),
            Intake::Off if is_large => {
                ring.watch(fd, token)?;
                self.intake = Intake::Watching;
                Ok(true)
            }
            Intake::Off => {
                ring.receive(fd, token)?;
                self.intake = Intake::Receiving;
                Ok(true)
            }
            Intake::Receiving if !wanted.input || is_large || wanted.waiting > WAITING_MAX => {
                ring.cancel_receive(token)?;
                self.intake = Intake::Ending;
                Ok(false)
            }
            Intake::Watching if !wanted.input => {
                // The watch ends with an event, as if data had arrived.
                ring.cancel_watch(token)?;
                self.intake = Intake::Ending;
                Ok(false)
            }
            Intake::Receiving | Intake::Ending | Intake::Watching => Ok(false),
        }
    }

    /// Cancels the ring's receive or watch for this connection.
    fn let_go(&mut self, ring: &mut Ring, token: usize) -> io::Result<()> {
        match std::mem::replace(&mut self.intake, Intake::Ending) {
            Intake::Receiving => ring.cancel_receive(token),
            Intake::Watching => ring.cancel_watch(token),
            before => {
                self.intake = before;
                Ok(())
            }
        }
    }
}
