//! What connections use during a turn and share on a worker: buffers, the ring, the executor.

use std::time::Instant;

use keyway_uring::Ring;

use super::INPUT_SIZE;
use crate::buffer::Buffer;
use crate::execute::Executor;

/// Initial capacity of a vector that the ring sends, bytes.
pub(super) const SPARE_SIZE: usize = 1024;
/// Most memory for empty input buffers for large requests, together, bytes: seven of the largest that are usual.
const LARGE_SUM_MAX: usize = 8 << 20;

/// What a connection uses during its turn.
pub(crate) struct Desk {
    pub(crate) executor: Executor,
    /// an empty buffer of [`INPUT_SIZE`] bytes
    pub(crate) input: Buffer,
    /// empty buffers larger than [`INPUT_SIZE`]
    pub(crate) large: Vec<Buffer>,
    /// an empty vector with capacity
    pub(crate) output: Vec<u8>,
    /// the ring, if the event loop is io_uring, and empty vectors for the next sends
    pub(crate) ring: Option<Ring>,
    pub(crate) spare: Vec<Vec<u8>>,
    /// for connections with TLS: what a socket gave, and an output that is being encrypted
    pub(crate) records: Vec<u8>,
    pub(crate) plain: Vec<u8>,
    /// as far as is known, no other connection has a turn in this round
    pub(crate) is_alone: bool,
    /// requests that were executed before its turn for the connection whose turn is next
    pub(crate) spent: usize,
    /// they are the first part of its turn
    pub(crate) is_begun: bool,
    /// time of this round of the event loop
    pub(crate) now: Instant,
    /// the same in seconds after the server's start
    pub(crate) uptime_s: u32,
}

impl Desk {
    /// An empty vector for a connection's output.
    pub(super) fn spare_output(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_else(|| Vec::with_capacity(SPARE_SIZE))
    }

    /// An empty buffer of at least `size` bytes, if an earlier request has left one. If all those left are too small, one of them is freed, to
    /// make room for a larger one.
    pub(super) fn large_input(&mut self, size: usize) -> Option<Buffer> {
        match self.large.iter().rposition(|buffer| buffer.size() >= size) {
            Some(place) => Some(self.large.swap_remove(place)),
            None => {
                self.large.pop();
                None
            }
        }
    }

    /// Takes back a buffer that a connection no longer needs.
    pub(super) fn take_input(&mut self, mut buffer: Buffer) {
        buffer.clear();
        if buffer.size() == INPUT_SIZE && self.input.size() == 0 {
            self.input = buffer;
        } else if buffer.size() > INPUT_SIZE
            && self.large.iter().map(Buffer::size).sum::<usize>() + buffer.size() <= LARGE_SUM_MAX
        {
            self.large.push(buffer);
        }
    }
}
