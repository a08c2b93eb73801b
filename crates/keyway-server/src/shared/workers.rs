//! The workers as the other threads see them: mailboxes, what they have counted, and whether they run.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex};

use super::{Peer, lock};
use crate::connection::{CloseReason, Connection, Inherited, Stream};
use crate::stats::{Traffic, WorkerCounters};

/// A message to a worker, about its connections.
pub(crate) enum Message {
    /// serve this new connection
    Adopt(Stream, Arc<Peer>),
    /// serve this connection of the partner's from now on
    Move(Box<Connection>),
    /// this connection has something to send
    Turn(usize),
    /// end this connection
    End(Arc<Peer>, CloseReason),
    /// serve this connection, which another server has handed over
    Inherit(Box<Inherited>, Arc<Peer>),
    /// answer this round of the watchdog
    Answer(u64),
}

/// Which connections a worker serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// those whose turns are short
    Short,
    /// those whose turns are long, new ones, and datagrams
    Long,
}

/// All workers: the first half of them serves connections with short turns, and each of these has a partner in the other half.
pub(crate) struct Workers {
    mailboxes: Vec<Mailbox>,
    running: AtomicUsize,
    has_panicked: AtomicBool,
}

struct Mailbox {
    inbox: Mutex<Inbox>,
    waker: mio::Waker,
    counters: WorkerCounters,
    /// the last round of the watchdog that the worker has answered
    answered: AtomicU64,
}

#[derive(Default)]
struct Inbox {
    messages: Vec<Message>,
    /// the worker has ended or halted: it takes no connections from its partner
    is_closed: bool,
}

impl Workers {
    /// One for each waker; they come in pairs.
    pub(crate) fn new(wakers: Vec<mio::Waker>) -> Self {
        let mailbox = |waker| Mailbox {
            inbox: Mutex::default(),
            waker,
            counters: WorkerCounters::default(),
            answered: AtomicU64::new(0),
        };
        Self {
            running: AtomicUsize::new(wakers.len()),
            mailboxes: wakers.into_iter().map(mailbox).collect(),
            has_panicked: AtomicBool::new(false),
        }
    }

    /// How many there are, and how many of them have not ended.
    pub(crate) fn running(&self) -> (usize, usize) {
        (self.mailboxes.len(), self.running.load(SeqCst))
    }

    /// A worker has ended.
    pub(crate) fn ended(&self, has_panicked: bool) {
        if has_panicked {
            self.has_panicked.store(true, SeqCst);
        }
        self.running.fetch_sub(1, SeqCst);
    }

    pub(crate) fn have_panicked(&self) -> bool {
        self.has_panicked.load(SeqCst)
    }

    fn pairs(&self) -> usize {
        self.mailboxes.len() / 2
    }

    /// Which connections this worker serves.
    pub(crate) fn lane(&self, worker: usize) -> Lane {
        match worker < self.pairs() {
            true => Lane::Short,
            false => Lane::Long,
        }
    }

    /// The worker that the `number`-th new connection begins at.
    pub(crate) fn worker_for_new(&self, number: usize) -> usize {
        number % self.pairs() + self.pairs()
    }

    /// The counters of this worker.
    #[inline]
    pub(crate) fn counters(&self, worker: usize) -> &WorkerCounters {
        &self.mailboxes[worker].counters
    }

    /// What all have counted.
    pub(crate) fn traffic(&self) -> Traffic {
        Traffic::sum(self.mailboxes.iter().map(|mailbox| &mailbox.counters))
    }

    pub(crate) fn send(&self, worker: usize, message: Message) {
        let mailbox = &self.mailboxes[worker];
        lock(&mailbox.inbox).messages.push(message);
        mailbox.wake();
    }

    /// Asks the worker that serves it to end a connection.
    pub(crate) fn end(&self, peer: &Arc<Peer>, reason: CloseReason) {
        self.send(peer.worker(), Message::End(Arc::clone(peer), reason));
    }

    /// Gives a connection to the partner of the worker that serves it: the worker of the other lane with which it exchanges connections. If
    /// the partner has ended or halted, returns the connection.
    pub(crate) fn give_to_partner(&self, connection: Box<Connection>) -> Result<(), Box<Connection>> {
        let peer = Arc::clone(&connection.peer);
        let partner = (peer.worker() + self.pairs()) % self.mailboxes.len();
        let mailbox = &self.mailboxes[partner];
        let mut inbox = lock(&mailbox.inbox);
        if inbox.is_closed {
            return Err(connection);
        }
        inbox.messages.push(Message::Move(connection));
        // Before the lock is released, so that a message about this connection comes after it.
        peer.moved_to(partner);
        drop(inbox);
        mailbox.wake();
        Ok(())
    }

    /// Swaps this worker's waiting messages with `empty`.
    pub(crate) fn receive(&self, worker: usize, empty: &mut Vec<Message>) {
        std::mem::swap(&mut lock(&self.mailboxes[worker].inbox).messages, empty);
    }

    /// This worker ends or halts, unless messages wait: returns false then.
    pub(crate) fn close(&self, worker: usize) -> bool {
        let mut inbox = lock(&self.mailboxes[worker].inbox);
        inbox.is_closed = inbox.messages.is_empty();
        inbox.is_closed
    }

    /// This worker had halted, and continues.
    pub(crate) fn open(&self, worker: usize) {
        lock(&self.mailboxes[worker].inbox).is_closed = false;
    }

    /// Asks all workers for an answer to this round of the watchdog.
    pub(crate) fn ask(&self, round: u64) {
        (0..self.mailboxes.len()).for_each(|worker| self.send(worker, Message::Answer(round)));
    }

    /// This worker answers.
    pub(crate) fn answer(&self, worker: usize, round: u64) {
        self.mailboxes[worker].answered.store(round, Relaxed);
    }

    /// The workers that have not answered.
    pub(crate) fn silent(&self, round: u64) -> Vec<usize> {
        let workers = (0..).zip(&self.mailboxes);
        let silent = workers.filter(|(_, mailbox)| mailbox.answered.load(Relaxed) < round);
        silent.map(|(worker, _)| worker).collect()
    }

    pub(crate) fn wake(&self) {
        self.mailboxes.iter().for_each(Mailbox::wake);
    }
}

impl Mailbox {
    fn wake(&self) {
        if let Err(error) = self.waker.wake() {
            log::error!("cannot wake a worker: {error}");
        }
    }
}
