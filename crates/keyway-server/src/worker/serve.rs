//! A connection's turn and what follows from it, and what the ring has completed for connections.
//!
//! A round serves all connections that have something to do, each once, where turns are short. Where they are long, it serves until the
//! work of one long turn is done ([`TURN_WORK`]): then it takes new events and datagrams. A connection whose turn was of the other kind
//! goes to the worker's partner:
//!
//! | step | by |
//! |---|---|
//! | its turns are of the partner's lane: it is leaving, and the ring stops receiving for it | the worker, after a turn |
//! | the ring has sent what it was given, and has no more bytes for it | the ring's events |
//! | it leaves the poll and the worker's list, and goes into the partner's mailbox | the worker |
//! | it is registered there, and has a turn | the partner |
//!
//! Between the steps the connection belongs to one of the two, with all that it has received and not yet answered or sent. If the partner
//! has ended or halted, the connection stays.
//!
//! Never: reads the clock, waits, or executes a request.

use std::io;

use keyway_uring::Event;

use super::Worker;
use super::wait::Waiting;
use crate::connection::{Connection, Desk, Verdict};
use crate::cpu_budget::{REQUEST, TURN_WORK};
use crate::shared::{CloseReason, Lane};

impl Worker {
    /// A connection has something to do.
    pub(super) fn enqueue(&mut self, token: usize) {
        if self.connections.get_mut(token).is_some_and(Connection::enqueue) {
            self.turns.push(token);
        }
    }

    /// Serves connections that wait.
    pub(super) fn serve_queue(&mut self) {
        let mut spent = 0;
        for _ in 0..self.turns.len() {
            let Some(token) = self.turns.pop() else { return };
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
        while let Some((token, peer)) = self.turns.pop_due(self.desk.now) {
            let connection = self.connections.get_mut(token);
            if let Some(connection) = connection.filter(|connection| connection.peer.id == peer) {
                connection.called();
                self.enqueue(token);
            }
        }
    }

    /// Gives a connection its turn.
    fn serve(&mut self, token: usize) {
        let Some(connection) = self.connections.get_mut(token) else {
            return;
        };
        let Some(verdict) = connection.turn(&mut self.desk) else {
            return;
        };
        if let Verdict::Close(reason) = verdict {
            return self.close(token, reason);
        }
        let leaves = connection.leaves(self.lane);
        if !watch(connection, &self.waiting, &mut self.desk) {
            return self.close(token, CloseReason::Error);
        }
        if leaves {
            self.part_with(token);
        } else if verdict == Verdict::Again {
            self.enqueue(token);
        } else if let Verdict::Later(at) = verdict
            && connection.call_at(at)
        {
            self.turns.call_at(at, token, connection.peer.id);
        }
    }

    /// Handles what the ring has completed.
    pub(super) fn handle_completions(&mut self) {
        let mut completions = self.waiting.completions();
        self.desk.is_alone = completions.len() == 1 && self.turns.len() == 0;
        for event in completions.drain(..) {
            match event {
                Event::Received { token, piece, last } => {
                    let connection = self.connections.get_mut(token);
                    let has_turn = connection.is_some_and(|connection| {
                        if connection.is_over() {
                            if last {
                                connection.ended_receiving();
                            }
                            return false;
                        }
                        connection.received(&mut self.desk, &piece, last)
                    });
                    if let Some(ring) = &mut self.desk.ring {
                        ring.give_back(piece);
                    }
                    if has_turn {
                        self.serve(token);
                    } else {
                        self.enqueue(token);
                        // Enough data may be waiting for its turn.
                        let connection = self.connections.get_mut(token).filter(|connection| !connection.is_over());
                        if connection.is_some_and(|connection| !watch(connection, &self.waiting, &mut self.desk)) {
                            self.close(token, CloseReason::Error);
                        }
                    }
                    if last {
                        self.part_with(token);
                    }
                }
                Event::Ended { token, result } => {
                    self.act(token, |connection, _| connection.receive_ended(result).map(|()| true))
                }
                Event::Sent { token, bytes, result } => {
                    self.desk.keep_spare(bytes);
                    self.act(token, |connection, desk| connection.sent(desk, result));
                }
                Event::Ready { token } => self.act(token, |connection, _| {
                    connection.ended_receiving();
                    Ok(true)
                }),
            }
        }
        self.desk.is_alone = false;
        self.waiting.keep(completions);
    }

    /// Lets a connection handle an event. The connection gets a turn if it wants one, and ends if `act` fails.
    fn act(&mut self, token: usize, act: impl FnOnce(&mut Connection, &mut Desk) -> io::Result<bool>) {
        let Some(connection) = self.connections.get_mut(token) else {
            return;
        };
        let acted = act(connection, &mut self.desk);
        if connection.is_over() || connection.is_leaving() && acted.is_ok() {
            return self.part_with(token);
        }
        match acted {
            Ok(true) => self.enqueue(token),
            Ok(false) => {}
            Err(error) => {
                log::debug!("{}: {error}", connection.peer.address);
                self.close(token, CloseReason::Error);
            }
        }
    }

    /// Drops a closed connection that the ring no longer uses, and gives one that is leaving to the partner.
    fn part_with(&mut self, token: usize) {
        let Some(connection) = self.connections.get(token).filter(|connection| connection.is_let_go()) else {
            return;
        };
        if connection.is_over() {
            self.connections.remove(token);
        } else if connection.is_leaving() {
            self.give_away(token);
        }
    }

    fn give_away(&mut self, token: usize) {
        let mut connection = Box::new(self.connections.remove(token));
        if let Err(error) = connection.leave(self.waiting.registry()) {
            log::debug!("{}: the poll does not let it go: {error}", connection.peer.address);
        }
        if let Err(connection) = self.mail.give_to_partner(connection, &self.desk.shared().workers) {
            self.admit(connection);
        }
    }

    /// Serves a connection that the partner has served so far.
    pub(super) fn admit(&mut self, mut connection: Box<Connection>) {
        let token = self.connections.vacant_key();
        let settled = connection.settle_at(token, &self.desk, self.waiting.registry());
        if self.upkeep.is_stopping() {
            connection.stop();
        }
        self.connections.insert(*connection);
        match settled {
            Ok(()) => self.enqueue(token),
            Err(error) => {
                log::warn!(
                    "{}: cannot watch the connection: {error}",
                    self.connections[token].peer.address
                );
                self.close(token, CloseReason::Error);
            }
        }
    }
}

/// Has the event loop watch a connection for what it waits for; returns whether that has succeeded.
fn watch(connection: &mut Connection, waiting: &Waiting, desk: &mut Desk) -> bool {
    let watched = connection.update_interest(waiting.registry(), desk);
    if let Err(error) = &watched {
        log::warn!("{}: cannot watch the connection: {error}", connection.peer.address);
    }
    watched.is_ok()
}
