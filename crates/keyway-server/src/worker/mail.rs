//! What other threads have for a worker: connections to serve ([`Transfers`]) and notices about those that it serves
//! ([`Workers`]).
//!
//! Always: a notice about a connection that is on its way comes after the connection. It was sent after the connection was, so the notices
//! are taken first, and handled last.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use crate::basics::lock;
use crate::connection::{Connection, Inherited, Stream};
use crate::shared::{Notice, Peer, Workers};

/// A connection that a worker is to serve.
pub(crate) enum Transfer {
    /// a new one
    New(Stream, Arc<Peer>),
    /// one that another server has handed over
    Inherited(Box<Inherited>, Arc<Peer>),
    /// one of the partner's
    Moved(Box<Connection>),
}

/// The connections that are on their way, by worker.
pub(crate) struct Transfers(Vec<Mutex<Incoming>>);

#[derive(Default)]
struct Incoming {
    transfers: Vec<Transfer>,
    /// the worker has ended or halted: it takes no connections from its partner
    is_closed: bool,
}

impl Transfers {
    pub(crate) fn new(workers: usize) -> Self {
        Self((0..workers).map(|_| Mutex::default()).collect())
    }

    pub(crate) fn send(&self, worker: usize, transfer: Transfer, workers: &Workers) {
        lock(&self.0[worker]).transfers.push(transfer);
        workers.wake(worker);
    }
}

/// A worker's mail.
pub(super) struct Mail {
    worker: usize,
    pub(super) transfers: Arc<Transfers>,
    /// there may be more than what was taken
    has_more: bool,
    /// what was taken and not handled yet
    arrived: VecDeque<Transfer>,
    notices: VecDeque<Notice>,
}

/// One piece of it.
pub(super) enum Letter {
    Transfer(Transfer),
    Notice(Notice),
}

impl Mail {
    pub(super) fn new(worker: usize, transfers: Arc<Transfers>) -> Self {
        Self {
            worker,
            transfers,
            has_more: false,
            arrived: VecDeque::new(),
            notices: VecDeque::new(),
        }
    }

    /// Something has come.
    pub(super) fn note(&mut self) {
        self.has_more = true;
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.has_more || !self.arrived.is_empty() || !self.notices.is_empty()
    }

    /// The next piece.
    pub(super) fn next(&mut self, workers: &Workers) -> Option<Letter> {
        if self.arrived.is_empty() && self.notices.is_empty() && std::mem::take(&mut self.has_more) {
            workers.receive(self.worker, &mut self.notices);
            self.arrived.extend(lock(&self.transfers.0[self.worker]).transfers.drain(..));
        }
        let arrived = self.arrived.pop_front().map(Letter::Transfer);
        arrived.or_else(|| self.notices.pop_front().map(Letter::Notice))
    }

    /// The worker ends or halts, unless mail waits: returns false then.
    pub(super) fn close(&mut self, workers: &Workers) -> bool {
        let mut incoming = lock(&self.transfers.0[self.worker]);
        self.has_more |= !incoming.transfers.is_empty() || workers.has_notices(self.worker);
        incoming.is_closed = !self.is_waiting();
        incoming.is_closed
    }

    /// The worker had halted, and continues.
    pub(super) fn open(&self) {
        lock(&self.transfers.0[self.worker]).is_closed = false;
    }

    /// Gives a connection to the partner of this worker. If that one has ended or halted, returns the connection.
    pub(super) fn give_to_partner(&self, connection: Box<Connection>, workers: &Workers) -> Result<(), Box<Connection>> {
        let partner = workers.partner(self.worker);
        let mut incoming = lock(&self.transfers.0[partner]);
        if incoming.is_closed {
            return Err(connection);
        }
        // Before the lock is released, so that a notice about this connection comes after it.
        connection.peer.moved_to(partner);
        incoming.transfers.push(Transfer::Moved(connection));
        drop(incoming);
        workers.wake(partner);
        Ok(())
    }
}
