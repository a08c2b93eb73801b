//! What connections use during a turn and share on a worker: buffers, the ring, the executor.

use std::sync::Arc;
use std::time::Instant;

use keyway_uring::Ring;

use super::buffer::Buffer;
use crate::account::INPUT_SIZE;
use crate::execute::Executor;
use crate::shared::Shared;

/// Initial capacity of a worker's output vector, bytes.
const OUTPUT_SIZE: usize = 16 * 1024;
/// An output buffer larger than this is given back to the allocator after use.
const OUTPUT_KEPT_MAX: usize = 1 << 20;
/// Initial capacity of a vector that the ring sends, bytes.
pub(super) const SPARE_SIZE: usize = 1024;
/// A vector larger than this is not kept for the next send: replies of 100 KB are, so that each does not take fresh pages.
const SPARE_SIZE_MAX: usize = 256 * 1024;
/// Total size of the vectors that are kept for the next sends, bytes at most.
const SPARE_SUM_MAX: usize = 4 << 20;
/// Most vectors kept for the next sends.
const SPARE_COUNT_MAX: usize = 64;
/// Most memory for empty input buffers for large requests, together, bytes: seven of the largest that are usual.
const LARGE_SUM_MAX: usize = 8 << 20;

/// What a connection uses during its turn.
pub(crate) struct Desk {
    pub(crate) executor: Executor,
    pub(super) buffers: Buffers,
    /// the ring, if the event loop is io_uring
    pub(crate) ring: Option<Ring>,
    /// as far as is known, no other connection has a turn in this round
    pub(crate) is_alone: bool,
    /// requests that were executed before its turn for the connection whose turn is next; `None`: its turn has not begun
    pub(super) begun: Option<usize>,
    /// time of this round of the event loop
    pub(crate) now: Instant,
    /// the same in seconds after the server's start
    pub(crate) uptime_s: u32,
}

/// Empty buffers, which turns borrow.
#[derive(Default)]
pub(super) struct Buffers {
    /// of [`INPUT_SIZE`] bytes
    input: Buffer,
    /// larger than [`INPUT_SIZE`]
    large: Vec<Buffer>,
    /// with capacity
    output: Vec<u8>,
    /// for the next sends of the ring
    spare: Vec<Vec<u8>>,
    /// for connections with TLS: what a socket gave, and an output that is being encrypted
    pub(super) records: Vec<u8>,
    pub(super) plain: Vec<u8>,
}

impl Desk {
    pub(crate) fn new(executor: Executor) -> Self {
        Self {
            executor,
            buffers: Buffers::default(),
            ring: None,
            is_alone: false,
            begun: None,
            now: Instant::now(),
            uptime_s: 0,
        }
    }

    /// What the server's threads share.
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        self.executor.shared()
    }

    /// Begins a round of the event loop.
    pub(crate) fn begin_round(&mut self) {
        self.now = Instant::now();
        self.uptime_s = self.shared().uptime_s_at(self.now);
        self.executor.begin_round(self.now);
    }

    /// Allocates the buffers: on the worker's own thread, and not when the server is set up, because the kernel takes pages from the node of
    /// the thread that first touches them.
    pub(crate) fn settle(&mut self) {
        self.buffers.input = Buffer::with_size(INPUT_SIZE);
        self.buffers.output = Vec::with_capacity(OUTPUT_SIZE);
    }

    /// Keeps the vector of a send that has ended.
    pub(crate) fn keep_spare(&mut self, mut bytes: Vec<u8>) {
        bytes.clear();
        self.buffers.keep_spare(bytes);
    }

    /// The next answers go into a vector of this capacity.
    #[cfg(test)]
    pub(crate) fn set_output_capacity(&mut self, capacity: usize) {
        self.buffers.output = Vec::with_capacity(capacity);
    }
}

impl Buffers {
    /// An input buffer for a connection that expects requests of `large` bytes, 0: ordinary ones.
    pub(super) fn lend_input(&mut self, large: usize) -> Buffer {
        match large {
            0 => None,
            size => self.large_input(size),
        }
        .unwrap_or_else(|| std::mem::take(&mut self.input))
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

    /// Takes back the buffer of an input at the end of a turn. The input keeps a copy of what is left in it.
    pub(super) fn take_back_input(&mut self, input: &mut Buffer) {
        if input.is_empty() {
            self.take_input(std::mem::take(input));
        } else if self.input.size() == 0 && input.size() == INPUT_SIZE {
            let rest = Buffer::copy_of(input.data());
            self.take_input(std::mem::replace(input, rest));
        }
        if self.input.size() == 0 {
            self.input = Buffer::with_size(INPUT_SIZE);
        }
    }

    /// Gives an empty output its vector.
    pub(super) fn lend_output(&mut self, output: &mut Vec<u8>) {
        std::mem::swap(output, &mut self.output);
        if output.capacity() == 0 {
            *output = self.spare_output();
        }
    }

    /// Takes an empty vector, if none is here.
    pub(super) fn take_output(&mut self, output: Vec<u8>) {
        if self.output.capacity() == 0 && output.capacity() <= OUTPUT_KEPT_MAX {
            self.output = output;
        }
    }

    /// An empty vector for a connection's output.
    pub(super) fn spare_output(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_else(|| Vec::with_capacity(SPARE_SIZE))
    }

    /// Keeps an empty vector for a later send, within bounds. Of two vectors the larger one is used first.
    fn keep_spare(&mut self, mut bytes: Vec<u8>) {
        let Self { spare, output, .. } = self;
        if (output.capacity()..=SPARE_SIZE_MAX).contains(&bytes.capacity()) {
            std::mem::swap(output, &mut bytes);
        }
        let is_small = bytes.capacity() <= SPARE_SIZE_MAX && spare.len() < SPARE_COUNT_MAX;
        // Sums at most 64 small numbers, and only if vectors are large.
        let fits = |spare: &[Vec<u8>]| spare.iter().map(Vec::capacity).sum::<usize>() + bytes.capacity() <= SPARE_SUM_MAX;
        if is_small && (bytes.capacity() <= SPARE_SUM_MAX / SPARE_COUNT_MAX || fits(spare)) {
            spare.push(bytes);
        }
    }
}
