//! The workers as the other threads see them: mailboxes, what they have counted, and whether they run.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex};

use super::{CloseReason, Peer};
use crate::basics::lock;
use crate::stats::{Traffic, WorkerCounters};

/// A notice to a worker about one of its connections.
pub(crate) enum Notice {
    /// this connection has something to send
    Turn(usize),
    /// end this connection
    End(Arc<Peer>, CloseReason),
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
    notices: Mutex<Vec<Notice>>,
    waker: mio::Waker,
    counters: WorkerCounters,
    /// the last round of the watchdog that the worker has answered
    answered: AtomicU64,
}

impl Workers {
    /// One for each waker; they come in pairs.
    pub(crate) fn new(wakers: Vec<mio::Waker>) -> Self {
        let mailbox = |waker| Mailbox {
            notices: Mutex::default(),
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

    pub(crate) fn send(&self, worker: usize, notice: Notice) {
        let mailbox = &self.mailboxes[worker];
        lock(&mailbox.notices).push(notice);
        mailbox.wake();
    }

    /// Asks the worker that serves it to end a connection.
    pub(crate) fn end(&self, peer: &Arc<Peer>, reason: CloseReason) {
        self.send(peer.worker(), Notice::End(Arc::clone(peer), reason));
    }

    /// The worker of the other lane with which this one exchanges connections.
    pub(crate) fn partner(&self, worker: usize) -> usize {
        (worker + self.pairs()) % self.mailboxes.len()
    }

    /// Moves this worker's waiting notices to `notices`.
    pub(crate) fn receive(&self, worker: usize, notices: &mut VecDeque<Notice>) {
        notices.extend(lock(&self.mailboxes[worker].notices).drain(..));
    }

    /// Whether notices wait for this worker.
    pub(crate) fn has_notices(&self, worker: usize) -> bool {
        !lock(&self.mailboxes[worker].notices).is_empty()
    }

    /// Asks all workers for an answer to this round of the watchdog.
    pub(crate) fn ask(&self, round: u64) {
        (0..self.mailboxes.len()).for_each(|worker| self.send(worker, Notice::Answer(round)));
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

    pub(crate) fn wake(&self, worker: usize) {
        self.mailboxes[worker].wake();
    }

    pub(crate) fn wake_all(&self) {
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
