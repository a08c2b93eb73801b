//! How replies are sent: by the turn itself, or by the ring.

use std::io;
use std::io::Write;
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, send};

use super::desk::SPARE_SIZE;
use super::{Connection, Desk, OUTPUT_KEPT_MAX, Phase, UNSENT_MAX};

/// A reply of this length is sent at once, so that its vector is used for the next reply while it is still in the processor's cache.
const SEND_NOW_MIN: usize = 32 * 1024;

impl Connection {
    /// The ring has sent all that it was given, or failed. Returns true if the connection should have a turn.
    pub(crate) fn sent(&mut self, desk: &Desk, result: i32) -> io::Result<bool> {
        let was_full = self.unsent() > UNSENT_MAX;
        let Some(port) = &mut self.port else { return Ok(false) };
        let sending = port.end_send();
        let count = usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result))?;
        desk.executor.counters().bytes_written.add(count as u64);
        self.last_active = desk.now;
        self.settle();
        if count < sending {
            return Err(io::ErrorKind::WriteZero.into());
        }
        self.look_for_rest();
        // A turn that was not to serve it, because too much was unsent, may have left bytes in a socket that nothing watches now.
        let is_due = was_full || self.readable || self.unsent() > 0 || !self.input.is_empty();
        Ok(is_due || !matches!(self.phase, Phase::Serving))
    }

    pub(super) fn unsent(&self) -> usize {
        self.output.len() - self.sent + self.port.as_ref().map_or(0, |port| port.sending)
    }

    /// Shrinks the output to what is unsent, if it is much larger.
    pub(super) fn shed_output(&mut self, desk: &mut Desk) {
        let unsent = self.output.len() - self.sent;
        if unsent == 0 || self.output.capacity() <= 2 * unsent + SPARE_SIZE {
            return;
        }
        self.drop_output(self.sent);
        let rest = self.output.split_off(std::mem::take(&mut self.sent));
        let mut room = std::mem::replace(&mut self.output, rest);
        room.clear();
        if desk.output.capacity() == 0 && room.capacity() <= OUTPUT_KEPT_MAX {
            desk.output = room;
        }
    }

    /// The output is sent.
    pub(super) fn clear_output(&mut self) {
        self.drop_output(self.output.len());
        self.output.clear();
        self.sent = 0;
    }

    /// The first `count` bytes of the output are being removed.
    fn drop_output(&mut self, count: usize) {
        if let Some(secure) = &mut self.secure {
            secure.removed(count);
        }
    }

    /// Encrypts the output, if the connection has TLS; at the end, tells the client that nothing more comes.
    fn seal(&mut self, desk: &mut Desk) -> io::Result<()> {
        let Some(secure) = &mut self.secure else { return Ok(()) };
        let count = secure.seal(&mut self.output, &mut desk.plain)?;
        desk.executor.cpu_budget.spend_on_bytes(count);
        if matches!(self.phase, Phase::Closing(_)) {
            secure.close(&mut self.output);
        }
        Ok(())
    }

    /// Writes everything unsent once, by the ring if there is one.
    pub(super) fn send(&mut self, desk: &mut Desk) -> io::Result<()> {
        self.seal(desk)?;
        if self.port.is_some() {
            return self.send_by_ring(desk);
        }
        while self.unsent() > 0 {
            match self.stream.write(&self.output[self.sent..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    self.sent += count;
                    desk.executor.counters().bytes_written.add(count as u64);
                    self.last_active = desk.now;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if self.unsent() == 0 {
            self.clear_output();
        } else if self.sent > UNSENT_MAX {
            // Removes sent bytes from time to time, so that the buffer does not grow for a client that always lags.
            self.drop_output(self.sent);
            self.output.drain(..self.sent);
            self.sent = 0;
        }
        Ok(())
    }

    /// The same by the ring. A large reply, and a reply that no other one of the round would be sent with, is first written directly, as far
    /// as the socket takes it.
    pub(super) fn send_by_ring(&mut self, desk: &mut Desk) -> io::Result<()> {
        if self.output.is_empty() || self.port.as_ref().is_none_or(|port| port.sending > 0) {
            return Ok(());
        }
        let fd = self.stream.as_raw_fd();
        if desk.is_alone || self.output.len() >= SEND_NOW_MIN {
            self.sent = match send(fd, &self.output, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL) {
                Ok(count) => count,
                Err(Errno::EAGAIN | Errno::EINTR) => 0,
                Err(error) => return Err(error.into()),
            };
            desk.executor.counters().bytes_written.add(self.sent as u64);
            self.last_active = desk.now;
        }
        if self.sent == self.output.len() {
            self.clear_output();
            return Ok(());
        }
        // The ring keeps the vector until the client has taken everything.
        self.shed_output(desk);
        self.drop_output(self.output.len());
        let (output, sent) = (std::mem::take(&mut self.output), std::mem::take(&mut self.sent));
        let (rest, held) = (output.len() - sent, output.capacity());
        let (Some(port), Some(ring)) = (&mut self.port, &mut desk.ring) else {
            return Ok(());
        };
        ring.send(fd, self.token, output, sent)?;
        // Not before: a connection that is over stays until the ring has told what became of a send, and of one that it refused it tells nothing.
        (port.sending, port.held) = (rest, held);
        self.output = desk.spare_output();
        Ok(())
    }
}
