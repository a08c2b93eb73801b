//! Which connection gets a turn next: those that have something to do, in the order in which they got it, and those that want a turn at a
//! given time.
//!
//! Never: reads the clock, or knows a connection.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Instant;

/// See the top of the file. A connection is named by the worker's token for it.
#[derive(Default)]
pub(super) struct Turns {
    /// the connections with something to do, each once
    queue: VecDeque<usize>,
    /// connections that want a turn at a given time, with the ids of their peers
    later: BinaryHeap<Reverse<(Instant, usize, u64)>>,
}

impl Turns {
    /// How many connections have something to do.
    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(super) fn push(&mut self, token: usize) {
        self.queue.push_back(token);
    }

    pub(super) fn pop(&mut self) -> Option<usize> {
        self.queue.pop_front()
    }

    /// The connection of this peer wants a turn at this time.
    pub(super) fn call_at(&mut self, at: Instant, token: usize, peer: u64) {
        self.later.push(Reverse((at, token, peer)));
    }

    /// When the next one wants a turn.
    pub(super) fn next_call(&self) -> Option<Instant> {
        self.later.peek().map(|Reverse((at, ..))| *at)
    }

    /// A connection whose time has come, and the id of its peer: the token may be another connection's by now.
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<(usize, u64)> {
        self.next_call().filter(|at| *at <= now)?;
        self.later.pop().map(|Reverse((_, token, peer))| (token, peer))
    }
}
