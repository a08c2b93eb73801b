//! How a connection goes to the worker's partner, and what is done with one that the ring no longer uses.
//!
//! | step | by |
//! |---|---|
//! | its turns are of the partner's lane: it is leaving, and the ring stops receiving for it | the worker, after a turn (`turns`) |
//! | the ring has sent what it was given, and has no more bytes for it | the ring's events |
//! | it leaves the poll and the worker's list, and goes into the partner's mailbox | the worker |
//! | it is registered there, and has a turn | the partner |
//!
//! Between the steps the connection belongs to one of the two, with all that it has received and not yet answered or sent. If the partner
//! has ended or halted, the connection stays.
//!
//! Never: moves a connection for which another thread has promised its worker an event ([`Connection::may_move`]).

use super::Worker;
use crate::connection::{CloseReason, Connection};

impl Worker {
    /// Drops a closed connection that the ring no longer uses, and gives one that is leaving to the partner.
    pub(super) fn part_with(&mut self, token: usize) {
        let Some(connection) = self.connections.get(token).filter(|connection| connection.is_let_go()) else {
            return;
        };
        if connection.is_over {
            self.connections.remove(token);
        } else if connection.is_leaving {
            self.give_away(token);
        }
    }

    fn give_away(&mut self, token: usize) {
        let mut connection = Box::new(self.connections.remove(token));
        if let Err(error) = connection.leave(self.poll.registry()) {
            log::debug!("{}: the poll does not let it go: {error}", connection.peer.address);
        }
        if let Err(connection) = self.desk.executor.shared.give_to_partner(connection) {
            self.admit(connection);
        }
    }

    /// Serves a connection that the partner has served so far.
    pub(super) fn admit(&mut self, mut connection: Box<Connection>) {
        let token = self.connections.vacant_key();
        let settled = connection.settle_at(token, &self.desk, self.poll.registry());
        if self.deadline.is_some() {
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
