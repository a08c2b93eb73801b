//! What is to be sent: answers, and how much of them is encrypted and sent already.
//!
//! With TLS the bytes at the front are encrypted, and the rest is still plain: [`Secure::seal`](super::Secure::seal) encrypts it before it is
//! sent. So sending does not differ from a plain connection.
//!
//! Never: decides when something is sent.

use std::io;

use super::Desk;
use super::desk::{Buffers, SPARE_SIZE};
use super::link::Link;
use crate::account::UNSENT_MAX;

/// A reply of this length is sent at once, so that its vector is used for the next reply while it is still in the processor's cache.
const SEND_NOW_MIN: usize = 32 * 1024;

/// See the top of the file.
#[derive(Default)]
pub(super) struct Output {
    bytes: Vec<u8>,
    /// bytes at the front that have been sent
    sent: usize,
    /// bytes at the front that are encrypted; without TLS it has no meaning
    sealed: usize,
}

impl Output {
    /// Continues with what another server has not sent.
    pub(super) fn continuing(bytes: &[u8]) -> Self {
        Self {
            bytes: bytes.to_vec(),
            ..Self::default()
        }
    }

    /// Answers are appended here.
    #[inline]
    pub(super) fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Leading bytes that have been sent.
    #[inline]
    pub(super) fn sent(&self) -> usize {
        self.sent
    }

    /// Bytes, sent ones included.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// What has not been sent; a ring may have more.
    pub(super) fn rest(&self) -> &[u8] {
        &self.bytes[self.sent..]
    }

    /// Memory that it holds, bytes.
    pub(super) fn held(&self) -> usize {
        self.bytes.capacity()
    }

    /// Borrows the worker's vector, if it is empty.
    pub(super) fn borrow(&mut self, buffers: &mut Buffers) {
        if self.bytes.is_empty() {
            buffers.lend_output(&mut self.bytes);
        }
    }

    /// Returns it, or keeps what is unsent in a vector that is not much larger.
    pub(super) fn give_back(&mut self, buffers: &mut Buffers) {
        if self.bytes.len() == self.sent {
            self.clear();
            buffers.take_output(std::mem::take(&mut self.bytes));
        }
        self.shed(buffers);
    }

    /// Sends what is unsent, by the ring if there is one. Returns whether a system call here has sent something.
    pub(super) fn send(&mut self, link: &mut Link, desk: &mut Desk) -> io::Result<bool> {
        match link.sends_by_ring() {
            true => self.send_by_ring(link, desk),
            false => self.write(link, desk),
        }
    }

    fn write(&mut self, link: &mut Link, desk: &Desk) -> io::Result<bool> {
        let mut has_sent = false;
        while self.sent < self.bytes.len() {
            match link.write(&self.bytes[self.sent..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    self.sent += count;
                    desk.executor.counters().bytes_written.add(count as u64);
                    has_sent = true;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if self.sent == self.bytes.len() {
            self.clear();
        } else if self.sent > UNSENT_MAX {
            // Removes sent bytes from time to time, so that the buffer does not grow for a client that always lags.
            self.sealed -= self.sent.min(self.sealed);
            self.bytes.drain(..self.sent);
            self.sent = 0;
        }
        Ok(has_sent)
    }

    /// A large reply, and a reply that no other one of the round would be sent with, is first written directly, as far as the socket takes it.
    fn send_by_ring(&mut self, link: &mut Link, desk: &mut Desk) -> io::Result<bool> {
        if self.bytes.is_empty() || link.sending().0 > 0 {
            return Ok(false);
        }
        let is_direct = desk.is_alone || self.bytes.len() >= SEND_NOW_MIN;
        if is_direct {
            self.sent = link.write_at_once(&self.bytes)?;
            desk.executor.counters().bytes_written.add(self.sent as u64);
        }
        if self.sent == self.bytes.len() {
            self.clear();
            return Ok(is_direct);
        }
        // The ring keeps the vector until the client has taken everything.
        self.shed(&mut desk.buffers);
        let Some(ring) = &mut desk.ring else { return Ok(is_direct) };
        let Self { bytes, sent, .. } = std::mem::take(self);
        link.send(ring, bytes, sent)?;
        self.bytes = desk.buffers.spare_output();
        Ok(is_direct)
    }

    /// The ring has sent only the first `sent` of these bytes: the others come before what was added meanwhile.
    pub(super) fn take_back(&mut self, bytes: &[u8], sent: usize) {
        let rest = bytes.get(sent..).unwrap_or_default();
        self.bytes = [rest, self.rest()].concat();
        self.sent = 0;
    }

    /// The bytes that are not encrypted yet: they are removed.
    pub(super) fn take_plain(&mut self) -> Vec<u8> {
        self.bytes.split_off(self.sealed)
    }

    /// Moves the bytes that are not encrypted yet to `plain`, which is empty. Returns how many there were.
    pub(super) fn move_plain(&mut self, plain: &mut Vec<u8>) -> usize {
        if self.sealed == 0 {
            std::mem::swap(&mut self.bytes, plain);
        } else {
            plain.extend_from_slice(&self.bytes[self.sealed..]);
            self.bytes.truncate(self.sealed);
        }
        plain.len()
    }

    /// Whether bytes are not encrypted yet.
    pub(super) fn has_plain(&self) -> bool {
        self.bytes.len() > self.sealed
    }

    /// Has encrypted bytes appended, when all that it holds is encrypted.
    pub(super) fn add_sealed(&mut self, add: impl FnOnce(&mut Vec<u8>)) {
        add(&mut self.bytes);
        self.sealed = self.bytes.len();
    }

    /// Shrinks the vector to what is unsent, if it is much larger.
    fn shed(&mut self, buffers: &mut Buffers) {
        let unsent = self.bytes.len() - self.sent;
        if unsent == 0 || self.bytes.capacity() <= 2 * unsent + SPARE_SIZE {
            return;
        }
        self.sealed -= self.sent.min(self.sealed);
        let rest = self.bytes.split_off(std::mem::take(&mut self.sent));
        let mut room = std::mem::replace(&mut self.bytes, rest);
        room.clear();
        buffers.take_output(room);
    }

    /// All of it is sent.
    fn clear(&mut self) {
        self.bytes.clear();
        (self.sent, self.sealed) = (0, 0);
    }
}
