//! What a worker lends to the turns of its connections: buffers, the ring, its executor.

use std::time::Instant;

use keyway_uring::Ring;

use super::INPUT_SIZE;
use crate::buffer::Buffer;
use crate::execute::Executor;

/// Capacity that a vector for the ring to send starts with, bytes.
pub(super) const SPARE_SIZE: usize = 1024;
/// What the empty input buffers for large requests may take together, bytes.
const LARGE_SUM_MAX: usize = 4 << 20;

/// What a worker lends to a turn.
pub(crate) struct Desk {
    pub(crate) executor: Executor,
    /// an empty buffer of [`INPUT_SIZE`] bytes
    pub(crate) input: Buffer,
    /// empty buffers larger than that
    pub(crate) large: Vec<Buffer>,
    /// an empty vector with capacity
    pub(crate) output: Vec<u8>,
    /// the ring, with the event loop of that name, and empty vectors for the next sends
    pub(crate) ring: Option<Ring>,
    pub(crate) spare: Vec<Vec<u8>>,
    /// nobody else has a turn in this round, as far as is known
    pub(crate) is_alone: bool,
    /// requests that the connection whose turn is next has had executed for it already
    pub(crate) spent: usize,
    /// its turn has begun with them
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

    /// An empty buffer of at least `size` bytes, if one is left of an earlier request. If those that are there are too small for what is
    /// asked now, they make room for larger ones.
    pub(super) fn large_input(&mut self, size: usize) -> Option<Buffer> {
        match self.large.iter().rposition(|buffer| buffer.size() >= size) {
            Some(place) => Some(self.large.swap_remove(place)),
            None => {
                self.large.pop();
                None
            }
        }
    }

    /// Takes a buffer that a connection needs no more.
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
