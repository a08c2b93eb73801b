//! What has arrived and is not executed yet: the bytes, how many the request at their front needs, and whether the socket has more.
//!
//! Between turns an input without bytes has no buffer. A request that is larger than the worker's buffer gets one of its own only when there
//! is memory for all of it ([`Input::must_pause`]).
//!
//! Never: decodes a request.

use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use mio::event;

use super::Desk;
use super::buffer::Buffer;
use super::desk::Buffers;
use super::secure::Arrived;
use super::stream::Front;
use crate::account::{INPUT_SIZE, PATIENCE};
use crate::shared::Peer;

/// After this many small requests, the server expects no more large ones from a connection.
const SMALL_IN_A_ROW: u8 = 16;

/// See the top of the file.
pub(super) struct Input {
    buffer: Buffer,
    /// it is not decoded before it has this many bytes
    need: usize,
    /// length of the last request that was larger than the worker's buffer, 0 if there was none lately
    large: usize,
    /// requests since that one
    small_since: u8,
    /// length of the large request at the front, when there is memory for it
    reserved: usize,
    /// since when it is not read because memory is short
    paused_since: Option<Instant>,
    /// the socket may hold bytes (readiness is edge-triggered: reported once)
    readable: bool,
    /// the client has closed its side or is closing it: bytes may be left after a short read
    read_closed: bool,
    /// the end of the input has been read
    at_end: bool,
}

impl Input {
    pub(super) fn new() -> Self {
        Self {
            buffer: Buffer::default(),
            need: 1,
            large: 0,
            small_since: 0,
            reserved: 0,
            paused_since: None,
            // A client often sends data right after it connects; a first attempt to read saves a round of the loop.
            readable: true,
            read_closed: false,
            at_end: false,
        }
    }

    /// Continues where another server left it.
    pub(super) fn continuing(bytes: &[u8], read_closed: bool, at_end: bool) -> Self {
        Self {
            buffer: Buffer::copy_of(bytes),
            read_closed,
            at_end,
            ..Self::new()
        }
    }

    /// The bytes that wait.
    pub(super) fn data(&self) -> &[u8] {
        self.buffer.data()
    }

    pub(super) fn consume(&mut self, count: usize) {
        self.buffer.consume(count);
    }

    /// The buffer is borrowed by what looks at a request in it while the connection changes.
    pub(super) fn take_buffer(&mut self) -> Buffer {
        std::mem::take(&mut self.buffer)
    }

    pub(super) fn put_buffer(&mut self, buffer: Buffer) {
        self.buffer = buffer;
    }

    /// How many bytes it must have before it is decoded.
    pub(super) fn need(&self) -> usize {
        self.need
    }

    pub(super) fn set_need(&mut self, need: usize) {
        self.need = need;
    }

    /// How many bytes it should have before a turn reads it itself.
    pub(super) fn least(&self) -> usize {
        match self.buffer.len() {
            0 => self.need.max(self.large),
            _ => self.need,
        }
    }

    /// Records an event of the poll.
    pub(super) fn note(&mut self, event: &event::Event) {
        self.readable |= event.is_readable() || event.is_error() || event.is_read_closed();
        self.read_closed |= event.is_read_closed() || event.is_error();
    }

    pub(super) fn is_readable(&self) -> bool {
        self.readable
    }

    pub(super) fn set_readable(&mut self, readable: bool) {
        self.readable = readable;
    }

    pub(super) fn is_at_end(&self) -> bool {
        self.at_end
    }

    /// Nothing more is read.
    pub(super) fn end(&mut self) {
        self.at_end = true;
    }

    /// Whether the client has closed its side, read to the end or not.
    pub(super) fn is_read_closed(&self) -> bool {
        self.read_closed
    }

    /// Whether it is not read because memory is short, and since when.
    pub(super) fn paused_since(&self) -> Option<Instant> {
        self.paused_since
    }

    /// Borrows the worker's buffer, if it has none.
    pub(super) fn borrow(&mut self, buffers: &mut Buffers) {
        if self.buffer.is_empty() && self.buffer.size() == 0 {
            self.buffer = buffers.lend_input(self.large);
        }
    }

    pub(super) fn give_back(&mut self, buffers: &mut Buffers) {
        buffers.take_back_input(&mut self.buffer);
    }

    /// Memory that it holds, bytes.
    pub(super) fn held(&mut self) -> usize {
        if self.need <= INPUT_SIZE {
            self.reserved = 0;
        }
        self.buffer.size().max(self.reserved)
    }

    /// Appends bytes that the ring has received.
    pub(super) fn append(&mut self, buffers: &mut Buffers, bytes: &[u8]) {
        self.make_room(buffers, bytes.len());
        self.buffer.append(bytes, self.need);
    }

    /// Reads once, at most `most` bytes.
    pub(super) fn fill(&mut self, buffers: &mut Buffers, socket: &mut impl io::Read, most: usize) -> io::Result<Arrived> {
        self.make_room(buffers, 1);
        self.buffer.fill(socket, self.need, most).map(|(count, filled)| Arrived {
            count,
            filled,
            at_end: count == 0,
        })
    }

    /// Makes room for what TLS decrypts.
    pub(super) fn room(&mut self, buffers: &mut Buffers) -> (&mut Buffer, usize) {
        self.make_room(buffers, 1);
        (&mut self.buffer, self.need)
    }

    /// Records what a read has brought. Returns whether it brought bytes.
    pub(super) fn has_read(&mut self, read: io::Result<Arrived>, is_stopping: bool) -> io::Result<Option<usize>> {
        let count = match read {
            Ok(Arrived {
                count: 0, at_end: true, ..
            }) => {
                self.at_end = true;
                None
            }
            Ok(Arrived { count, filled, at_end }) => {
                self.at_end = at_end;
                // Fewer bytes than fit: the socket is empty, and the next bytes make a new event (epoll(7), question 9).
                self.readable = (filled || self.read_closed) && !is_stopping;
                Some(count)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.readable = false;
                None
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => None,
            Err(error) => return Err(error),
        };
        // A stopping server answers what has arrived and reads no more.
        self.at_end |= is_stopping;
        Ok(count)
    }

    /// Whether a large request, for which no memory is reserved yet, has nothing to be read at the moment. Only a client that goes on gets
    /// memory: one that has begun a value and sends no more would take it from others until it is closed.
    pub(super) fn lacks_bytes(&mut self, front: impl FnOnce() -> io::Result<Front>, is_stopping: bool) -> io::Result<bool> {
        if self.need <= INPUT_SIZE || self.reserved >= self.need {
            return Ok(false);
        }
        match front()? {
            Front::Bytes => return Ok(false),
            Front::Nothing => self.readable = false,
            Front::End => self.at_end = true,
        }
        // A stopping server reads no more.
        self.at_end |= is_stopping;
        self.paused_since = None;
        Ok(true)
    }

    /// Whether it must not be read now, because its request is large and memory is tight. After [`PATIENCE`] a connection without progress ends.
    pub(super) fn must_pause(&mut self, desk: &Desk, peer: &Peer) -> bool {
        if self.need <= INPUT_SIZE || self.reserved >= self.need {
            self.paused_since = None;
            return false;
        }
        let shared = desk.shared();
        if shared.account.has_room(self.need.saturating_sub(self.buffer.size())) {
            self.paused_since = None;
            self.reserved = self.need;
            return false;
        }
        let since = *self.paused_since.get_or_insert_with(|| {
            shared.account.paused.fetch_add(1, Relaxed);
            desk.now
        });
        if desk.now.saturating_duration_since(since) >= PATIENCE {
            shared.relieve();
        }
        // This wait must not count as lack of progress.
        peer.last_request_s.store(desk.uptime_s, Relaxed);
        peer.held_since_s.store(desk.uptime_s, Relaxed);
        true
    }

    /// Memory is reserved for the whole request at the front.
    pub(super) fn is_reserved(&self) -> bool {
        self.reserved > 0
    }

    /// A request of this length was executed. A client that sends one large request is expected to send more.
    #[inline]
    pub(super) fn note_length(&mut self, len: usize) {
        if len > INPUT_SIZE {
            self.large = len;
            self.small_since = 0;
        } else if self.large > 0 {
            self.small_since += 1;
            if self.small_since == SMALL_IN_A_ROW {
                self.large = 0;
            }
        }
    }

    /// Replaces the buffer by a larger one, if `more` bytes or the rest of the request would not fit.
    fn make_room(&mut self, buffers: &mut Buffers, more: usize) {
        let need = self.need.max(self.buffer.len() + more);
        if need <= self.buffer.size() {
            return;
        }
        let larger = (need > INPUT_SIZE)
            .then(|| buffers.large_input(need))
            .flatten()
            .or_else(|| self.buffer.size_wanted(more, self.need).map(Buffer::with_size));
        if let Some(mut larger) = larger {
            larger.append(self.buffer.data(), need);
            buffers.take_input(std::mem::replace(&mut self.buffer, larger));
        }
    }
}
