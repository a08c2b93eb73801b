//! What a worker's ring does for one connection: receiving, and sending.
//!
//! | intake | the ring | the socket is read by | next |
//! |---|---|---|---|
//! | `Off` | nothing | turns | `Receiving` when it is empty; `Watching` when what is missing is large, or after a long silence |
//! | `Receiving` | brings what arrives, again and again | the ring | `Ending` when nothing is wanted for now, what is missing is large, or nothing has come for long |
//! | `Ending` | has been told to stop | the ring, to the last event | `Off` |
//! | `Watching` | tells once when something arrives | nobody | `Off` |
//!
//! Small requests are executed in the ring's buffers; what is left behind them is copied. A large value is read by the turns straight to where
//! it is put together, in steps, as without a ring.

use std::io;
use std::os::fd::RawFd;

use keyway_uring::Ring;
use nix::libc::{ECANCELED, ENOBUFS};

/// A request that lacks this many bytes is read directly: they are worth the two requests to the ring that it takes.
const DIRECT_MIN: usize = 32 * 1024;
/// With this many bytes waiting for their turn, no more are taken from the socket.
const WAITING_MAX: usize = 64 * 1024;

#[derive(Default)]
pub(crate) struct Port {
    pub(crate) intake: Intake,
    /// bytes that the ring is sending
    pub(crate) sending: usize,
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
    /// Whether the ring has nothing to do for the connection.
    pub(crate) fn is_idle(&self) -> bool {
        self.intake == Intake::Off && self.sending == 0
    }

    /// Whether a receive that ended with this result says nothing against the socket: it was told to end, or lacked buffers.
    pub(crate) fn may_go_on(result: i32) -> bool {
        result > 0 || [-ECANCELED, -ENOBUFS].contains(&result)
    }

    /// Goes to the state that the connection needs. `readable`: the turns have not yet found the socket empty. `missing` bytes
    /// complete the request at the front of `waiting` bytes. True if the ring reads the socket from now on.
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
                // It ends with an event, as if something had arrived.
                ring.cancel_watch(token)?;
                self.intake = Intake::Ending;
                Ok(false)
            }
            Intake::Receiving | Intake::Ending | Intake::Watching => Ok(false),
        }
    }

    /// Ends what is under way on what arrives.
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
