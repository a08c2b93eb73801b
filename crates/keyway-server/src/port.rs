//! What a worker's ring does for one connection: receiving, and sending.
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

use std::io;
use std::os::fd::RawFd;

use keyway_uring::Ring;
use nix::libc::{ECANCELED, ENOBUFS};

/// A request that lacks this many bytes is read directly: that is worth the two extra requests to the ring.
const DIRECT_MIN: usize = 32 * 1024;
/// While this many bytes wait for their turn, no more are read from the socket.
const WAITING_MAX: usize = 64 * 1024;

#[derive(Default)]
pub(crate) struct Port {
    pub(crate) intake: Intake,
    /// bytes that the ring is sending
    pub(crate) sending: usize,
    /// memory of the vector that they are in
    pub(crate) held: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Intake {
    #[default]
    Off,
    Receiving,
    Ending,
    Watching,
}

impl Port {
    /// The ring has given the vector back. Returns how many bytes it was to send.
    pub(crate) fn end_send(&mut self) -> usize {
        self.held = 0;
        std::mem::take(&mut self.sending)
    }

    /// Whether the ring has nothing to do for the connection.
    pub(crate) fn is_idle(&self) -> bool {
        self.intake == Intake::Off && self.sending == 0
    }

    /// Whether a receive that ended with this result leaves the socket usable: it was cancelled, or there were no buffers.
    pub(crate) fn may_go_on(result: i32) -> bool {
        result > 0 || [-ECANCELED, -ENOBUFS].contains(&result)
    }

    /// Changes to the state that the connection needs. `readable`: the turns have not yet found the socket empty. `missing` bytes
    /// complete the request at the front of `waiting` bytes. Returns true if the ring reads the socket from now on.
    #[allow(clippy::too_many_arguments, reason = "what a connection knows, and where to put it")]
    pub(crate) fn update(
        &mut self,
        ring: &mut Ring,
        fd: RawFd,
        token: usize,
        wanted: bool,
        readable: bool,
        missing: usize,
        waiting: usize,
    ) -> io::Result<bool> {
        let is_large = missing >= DIRECT_MIN;
        match self.intake {
            Intake::Off if !wanted || readable => Ok(false),
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
            Intake::Receiving if !wanted || is_large || waiting > WAITING_MAX => {
                ring.cancel_receive(token)?;
                self.intake = Intake::Ending;
                Ok(false)
            }
            Intake::Watching if !wanted => {
                // The watch ends with an event, as if data had arrived.
                ring.cancel_watch(token)?;
                self.intake = Intake::Ending;
                Ok(false)
            }
            Intake::Receiving | Intake::Ending | Intake::Watching => Ok(false),
        }
    }

    /// Cancels the ring's receive or watch for this connection.
    pub(crate) fn let_go(&mut self, ring: &mut Ring, token: usize) -> io::Result<()> {
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
