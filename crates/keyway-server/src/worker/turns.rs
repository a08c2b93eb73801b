//! Which connection gets a turn next, and what follows from the turn's end.
//!
//! A round serves all connections that have something to do, each once, where turns are short. Where they are long, it serves until the
//! work of one long turn is done ([`TURN_WORK`]): then it takes new events and datagrams. A connection whose turn was of the other kind
//! leaves (`moves`).
//!
//! Never: reads the clock, or waits.

use std::cmp::Reverse;

use super::Worker;
use crate::connection::{CloseReason, Verdict};
use crate::cpu_budget::{REQUEST, TURN_WORK};
use crate::shared::Lane;

impl Worker {
    /// A connection has something to do.
    pub(super) fn enqueue(&mut self, token: usize) {
        if let Some(connection) = self.connections.get_mut(token)
            && !connection.queued
            && !connection.is_over
            && !connection.is_leaving
        {
            connection.queued = true;
            self.queue.push_back(token);
        }
    }

    /// Serves connections that wait.
    pub(super) fn serve_queue(&mut self) {
        let mut spent = 0;
        for _ in 0..self.queue.len() {
            let Some(token) = self.queue.pop_front() else { return };
            self.serve(token);
            // A turn has a fixed cost besides its work.
            spent += self.desk.executor.cpu_budget.spent() + REQUEST;
            if self.lane == Lane::Long && spent >= TURN_WORK {
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
        if connection.is_over || connection.is_leaving {
            return;
        }
        connection.queued = false;
        let verdict = connection.turn(&mut self.desk);
        if let Verdict::Close(reason) = verdict {
            return self.close(token, reason);
        }
        connection.is_leaving = connection.may_move() && connection.is_heavy() == (self.lane == Lane::Short);
        if let Err(error) = connection.update_interest(self.poll.registry(), &mut self.desk) {
            log::warn!("{}: cannot watch the connection: {error}", connection.peer.address);
            self.close(token, CloseReason::Error);
        } else if connection.is_leaving {
            self.part_with(token);
        } else if verdict == Verdict::Again {
            self.enqueue(token);
        } else if let Verdict::Later(at) = verdict
            // At most one entry per connection, even if other events give it turns meanwhile.
            && connection.called_at.is_none_or(|called_at| at < called_at)
        {
            connection.called_at = Some(at);
            self.later.push(Reverse((at, token, connection.peer.id)));
        }
    }
}
