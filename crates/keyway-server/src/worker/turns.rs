//! Which connection gets a turn next, and what follows from the turn's end.
//!
//! Connections whose turns are short wait in the first queue, and each round serves all that waited there when it began. Connections whose
//! turns took as long as a turn may take wait in the second one, and so do new connections for their first turn. A round serves from it
//! until the work of one long turn is done ([`TURN_WORK`]). When the short turns of a round add up to that much work, connections that want
//! another one wait in the second queue too. So a connection with small requests waits for only about two long turns at a time, however many
//! other connections there are, and whatever they have sent.
//!
//! Never: reads the clock, or waits.

use std::cmp::Reverse;
use std::collections::VecDeque;

use super::Worker;
use crate::connection::{CloseReason, Verdict};
use crate::effort::{REQUEST, TURN_WORK};

/// The two queues of connections with something to do, each connection at most once.
#[derive(Default)]
pub(super) struct Queues {
    short: VecDeque<usize>,
    long: VecDeque<usize>,
    /// work done by turns of connections with short turns in this round, estimated nanoseconds
    round_spent: u64,
}

impl Queues {
    pub(super) fn is_empty(&self) -> bool {
        self.short.is_empty() && self.long.is_empty()
    }

    /// Whether connections with long turns wait.
    pub(super) fn has_long(&self) -> bool {
        !self.long.is_empty()
    }

    /// Whether this round has served connections with short turns.
    pub(super) fn has_served_short(&self) -> bool {
        self.round_spent > 0
    }

    pub(super) fn begin_round(&mut self) {
        self.round_spent = 0;
    }

    /// A connection has something to do.
    fn push(&mut self, token: usize, is_heavy: bool) {
        match is_heavy {
            true => self.long.push_back(token),
            false => self.short.push_back(token),
        }
    }

    /// A connection has more to do after its turn. If the short turns of this round have done much work, too many small requests wait: one
    /// more turn now would make the next round long.
    fn push_again(&mut self, token: usize, is_heavy: bool) {
        self.push(token, is_heavy || self.round_spent >= TURN_WORK);
    }
}

impl Worker {
    pub(super) fn enqueue(&mut self, token: usize) {
        if let Some(connection) = self.connections.get_mut(token)
            && !connection.queued
            && !connection.is_over
        {
            connection.queued = true;
            self.queues.push(token, connection.is_heavy());
        }
    }

    /// Serves the connections with short turns that wait.
    pub(super) fn serve_short(&mut self) {
        for _ in 0..self.queues.short.len() {
            if let Some(token) = self.queues.short.pop_front() {
                self.serve(token);
            }
        }
    }

    /// Serves connections with long turns, for about the time of one long turn.
    pub(super) fn serve_long(&mut self) {
        let mut spent = 0;
        for _ in 0..self.queues.long.len() {
            let Some(token) = self.queues.long.pop_front() else { return };
            self.serve(token);
            // A turn has a fixed cost besides its work.
            spent += self.desk.executor.effort.spent() + REQUEST;
            if spent >= TURN_WORK {
                return;
            }
        }
    }

    /// Queues the connections whose time has come.
    pub(super) fn call_later(&mut self) {
        while let Some(Reverse((at, token, peer))) = self.later.peek().copied()
            && at <= self.desk.now
        {
            self.later.pop();
            let connection = self.connections.get_mut(token);
            if let Some(connection) = connection.filter(|connection| connection.peer.id == peer) {
                connection.called_at = None;
                self.enqueue(token);
            }
        }
    }

    /// Gives a connection its turn.
    pub(super) fn serve(&mut self, token: usize) {
        let Some(connection) = self.connections.get_mut(token) else {
            return;
        };
        if connection.is_over {
            return;
        }
        connection.queued = false;
        let is_light = !connection.is_heavy();
        let verdict = connection.turn(&mut self.desk);
        if is_light {
            // A turn has a fixed cost besides its work.
            self.queues.round_spent += self.desk.executor.effort.spent() + REQUEST;
        }
        match verdict {
            Verdict::Close(reason) => self.close(token, reason),
            verdict => {
                if let Err(error) = connection.update_interest(self.poll.registry(), &mut self.desk) {
                    log::warn!("{}: cannot watch the connection: {error}", connection.peer.address);
                    self.close(token, CloseReason::Error);
                } else if verdict == Verdict::Again {
                    connection.queued = true;
                    self.queues.push_again(token, connection.is_heavy());
                } else if let Verdict::Later(at) = verdict
                    // At most one entry per connection, even if other events give it turns meanwhile.
                    && connection.called_at.is_none_or(|called_at| at < called_at)
                {
                    connection.called_at = Some(at);
                    self.later.push(Reverse((at, token, connection.peer.id)));
                }
            }
        }
    }
}
