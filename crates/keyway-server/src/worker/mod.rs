//! A worker: one event loop on one thread, with its own session, serving the connections that are handed to it.
//!
//! Each round takes the events that the poll reports, then gives one turn to every connection that has something to do. A connection
//! that has more to do than a turn allows goes back to the end of the queue. The poll does not block while a connection is queued.
//!
//! Workers come in pairs, one for each [`Lane`]. A connection begins where turns are long, and goes to the other worker when its turns are
//! short, and back when one of them was long. A connection with short turns waits for the kernel to run its worker, and not for the end of
//! another connection's long turn.
//!
//! With a ring (`--event-loop`), the ring handles the connections' sockets. It also watches the poll, which covers all other sockets.
//! Data that the ring has received gives its connection a turn at once, unless the connection is queued already.
//!
//! | file | holds |
//! |---|---|
//! | `mod` | the round, and the connections from their adoption to their end |
//! | `wait` | the events of the poll and of the ring |
//! | `turns` | which connection gets a turn next |
//! | `moves` | how a connection goes to the worker's partner |
//! | `upkeep` | what is done by the clock |
//! | `halting` | what is done when another server takes over |
//! | `driven` | for tests: workers without threads |
//!
//! Never: executes a request (`connection` and `execute` do).

#[cfg(all(test, feature = "kernel"))]
mod at_rest;
#[cfg(any(test, fuzzing))]
pub(crate) mod driven;
mod halting;
mod moves;
#[cfg(test)]
mod tests;
mod turns;
mod upkeep;
mod wait;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use keyway_uring::{Event, Ring};
use mio::net::UdpSocket;
use mio::{Events, Poll, Token};
use nix::libc;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::resource::{Resource, getrlimit};
use nix::unistd::Pid;
use slab::Slab;

use self::upkeep::TICK;
use crate::buffer::Buffer;
use crate::config::EventLoop;
use crate::connection::{CloseReason, Connection, Desk, INPUT_SIZE, Secure, Stream};
use crate::shared::{Lane, Mailbox, Message, Peer, PeerAddress, Shared};
use crate::takeover::{Carried, Inherited, Stage};
use crate::udp::UdpSockets;

/// Initial capacity of a worker's output vector, bytes.
const OUTPUT_SIZE: usize = 16 * 1024;
pub(crate) const WAKE: Token = Token(usize::MAX);
/// Messages of other threads that are handled in a round; most are new connections.
const MESSAGES_PER_ROUND: usize = 16;
/// Token of the first UDP socket; the other UDP sockets have the next lower numbers.
const UDP_LAST: usize = usize::MAX - 1;
/// After this time without work, a worker releases the space that its session has reserved for its next writes.
const RELEASE_AFTER: Duration = Duration::from_secs(5);

pub(crate) struct Worker {
    poll: Poll,
    desk: Desk,
    lane: Lane,
    /// how long it polls before it sleeps
    spin: Duration,
    /// this worker's UDP sockets, until it runs
    udp_sockets: Vec<UdpSocket>,
    connections: Slab<Connection>,
    /// events of the ring that are not handled yet
    told: Vec<Event>,
    /// the ring watches the poll
    is_poll_watched: bool,
    /// the connections with something to do, each once
    queue: VecDeque<usize>,
    /// the last round served datagrams, and not connections
    is_udps_round: bool,
    /// messages wait in the mailbox, or were taken from it and not handled yet
    has_mail: bool,
    /// connections that want a turn at a given time, with the ids of their peers
    later: BinaryHeap<Reverse<(Instant, usize, u64)>>,
    next_tick: Instant,
    /// some connections may have to be parked soon
    has_unparked: bool,
    /// last time there was work; `None` after the session's reserved space was released
    busy_at: Option<Instant>,
    /// while the server is stopping: when it stops waiting for clients
    deadline: Option<Instant>,
}

impl Worker {
    pub(crate) fn new(poll: Poll, desk: Desk, udp_sockets: Vec<UdpSocket>) -> Self {
        let next_tick = Instant::now() + TICK;
        let lane = desk.executor.shared.lane(desk.executor.worker);
        // Busy polling is for small requests.
        let spin = match lane {
            Lane::Long if udp_sockets.is_empty() => Duration::ZERO,
            _ => desk.executor.shared.config.busy_poll,
        };
        Self {
            poll,
            desk,
            lane,
            spin,
            udp_sockets,
            connections: Slab::new(),
            told: Vec::new(),
            is_poll_watched: false,
            queue: VecDeque::new(),
            is_udps_round: false,
            has_mail: false,
            later: BinaryHeap::new(),
            next_tick,
            has_unparked: false,
            busy_at: None,
            deadline: None,
        }
    }

    /// Runs until the server stops.
    pub(crate) fn run(mut self) {
        // Drops last: a thread that sees the count reach zero finds the session already gone.
        let _ended = Ended(Arc::clone(&self.desk.executor.shared));
        self.settle();
        let mut events = Events::with_capacity(512);
        let mut messages = Vec::new();
        let mut udp = self.open_udp();
        while self.deadline.is_none() || !self.connections.is_empty() || !self.mailbox().close() {
            if self.desk.executor.shared.halt.is_wanted(Stage::Everyone) {
                self.halt(&mut messages, &mut udp);
            }
            self.round(&mut events, &mut messages, &mut udp);
        }
    }

    /// Waits for something to do, and does it: at most one turn for each connection. `events` and `messages` are buffers.
    fn round(&mut self, events: &mut Events, messages: &mut Vec<Message>, udp: &mut UdpSockets) {
        let timeout = self.timeout(udp);
        if let Err(error) = self.wait(events, timeout)
            && error.kind() != io::ErrorKind::Interrupted
        {
            log::error!("a worker cannot wait for events: {error}");
            self.desk.executor.shared.stop();
        }
        self.desk.now = Instant::now();
        self.desk.uptime_s = self.desk.executor.shared.uptime_s_at(self.desk.now);
        if let Some(served) = &mut self.desk.executor.served {
            served.turn(self.desk.now);
        }
        if !events.is_empty() || !self.told.is_empty() {
            self.busy_at = Some(self.desk.now);
            self.has_unparked = self.desk.ring.is_some();
        }
        for event in &*events {
            if event.token() == WAKE {
                self.has_mail = true;
            } else if let Some(connection) = self.connections.get_mut(event.token().0) {
                connection.note(event);
                self.enqueue(event.token().0);
            } else {
                udp.note(event);
            }
        }
        self.take_mail(messages);
        if self.deadline.is_none() && self.desk.executor.shared.is_stopping() {
            self.stop();
            udp.close(&mut self.desk, self.poll.registry());
        }
        self.receive();
        self.call_later();
        let (is_queued, is_udp) = (!self.queue.is_empty(), udp.has_work());
        // Both may take a long turn, so they alternate.
        self.is_udps_round = is_udp && (!is_queued || !self.is_udps_round);
        if !self.is_udps_round {
            self.serve_queue();
        }
        if self.desk.executor.shared.account.is_over() {
            self.desk.executor.shared.relieve();
        }
        if self.is_udps_round || !(is_queued && is_udp) {
            udp.turn(&mut self.desk, self.poll.registry());
        }
        if self.busy_at.is_some_and(|at| self.desk.now >= at + RELEASE_AFTER) {
            self.desk.executor.session.release();
            self.busy_at = None;
        }
        if self.desk.now >= self.next_tick || self.deadline.is_some_and(|deadline| self.desk.now >= deadline) {
            self.tick();
        }
    }

    /// Sets the thread's CPU, the memory of its NUMA node, and its ring. If one of them fails, the worker serves without it.
    fn settle(&mut self) {
        let shared = &self.desk.executor.shared;
        let cpus = &shared.config.cpus;
        if !cpus.is_empty() {
            // The same for both workers of a pair.
            let cpu = cpus[self.desk.executor.worker % shared.config.threads % cpus.len()];
            let mut set = CpuSet::new();
            if let Err(error) = set.set(cpu).and_then(|()| sched_setaffinity(Pid::from_raw(0), &set)) {
                log::warn!("worker {}: cannot run on CPU {cpu} only: {error}", self.desk.executor.worker);
            }
        }
        // Allocated here, and not when the server is set up: the kernel takes pages from the node of the thread that first touches them.
        self.desk.input = Buffer::with_size(INPUT_SIZE);
        self.desk.output = Vec::with_capacity(OUTPUT_SIZE);
        if self.desk.executor.shared.event_loop == EventLoop::IoUring {
            match Ring::open() {
                Ok(ring) => self.desk.ring = Some(ring),
                Err(error) => ring_refused(&error),
            }
        }
    }

    /// This worker's UDP sockets, registered with the poll. If that fails, the server ends: otherwise it would serve TCP only, unnoticed.
    fn open_udp(&mut self) -> UdpSockets {
        let sockets = std::mem::take(&mut self.udp_sockets);
        UdpSockets::open(sockets, &self.desk, self.poll.registry(), UDP_LAST).unwrap_or_else(|error| {
            log::error!("a worker cannot watch its UDP sockets: {error}");
            self.desk.executor.shared.stop();
            UdpSockets::default()
        })
    }

    /// Handles messages of other threads, at most [`MESSAGES_PER_ROUND`]: a thousand new connections at once would hold up the others.
    fn take_mail(&mut self, messages: &mut Vec<Message>) {
        if messages.is_empty() && std::mem::take(&mut self.has_mail) {
            self.mailbox().receive(messages);
        }
        let most = if self.desk.executor.shared.is_stopping() {
            usize::MAX
        } else {
            MESSAGES_PER_ROUND
        };
        for message in messages.drain(..messages.len().min(most)) {
            self.take(message);
        }
        self.has_mail |= !messages.is_empty();
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Adopt(stream, peer) => self.adopt(stream, peer, None),
            Message::Move(connection) => self.admit(connection),
            Message::Inherit(inherited, peer) => {
                let Inherited { stream, carried, bytes } = *inherited;
                self.adopt(stream, peer, Some((&carried, &bytes)));
            }
            Message::Turn(token) => self.enqueue(token),
            Message::Answer(round) => {
                let shared = &self.desk.executor.shared;
                shared.mailboxes[self.desk.executor.worker].answer(round);
                shared.wake_acceptor();
            }
            Message::End(peer, reason) => {
                for token in self.tokens(|connection| connection.peer.id == peer.id && !connection.is_over) {
                    self.close(token, reason);
                }
                // It may have gone to the partner meanwhile.
                if peer.worker() != self.desk.executor.worker {
                    self.desk.executor.shared.end(&peer, reason);
                }
            }
        }
    }

    fn mailbox(&self) -> &Mailbox {
        &self.desk.executor.shared.mailboxes[self.desk.executor.worker]
    }

    /// Serves a new connection, or one that another server has handed over in this state with these bytes.
    fn adopt(&mut self, stream: Stream, peer: Arc<Peer>, inherited: Option<(&Carried, &[u8])>) {
        log::debug!("{} connected", peer.address);
        // The server checked a reader's user and group before.
        let login = self.desk.executor.shared.users.is_some()
            && !matches!(peer.address, PeerAddress::Reader)
            && !inherited.is_some_and(|(carried, _)| carried.has_logged_in);
        let token = self.connections.vacant_key();
        let is_secure = matches!(peer.address, PeerAddress::Tcp { is_secure: true, .. });
        let certificates = self.desk.executor.shared.certificates.as_ref().filter(|_| is_secure);
        let secure = match certificates
            .map(|certificates| Secure::new(certificates.config()?))
            .transpose()
        {
            Ok(secure) => secure,
            Err(error) => {
                log::warn!("{}: cannot begin TLS: {error}", peer.address);
                self.desk.executor.shared.connection_closed(&peer);
                return;
            }
        };
        let mut connection = Connection::new(stream, secure, Arc::clone(&peer), token, login, &self.desk);
        if let Err(error) = connection.register(self.poll.registry(), inherited.is_some()) {
            log::warn!("{}: cannot watch the connection: {error}", peer.address);
            self.desk.executor.shared.connection_closed(&peer);
            return;
        }
        match inherited {
            None => {
                connection.may_be_enrolled(&self.desk);
                self.send_connection_to_watchers("conn_new", &peer, None);
            }
            Some((carried, bytes)) => {
                let at = connection.inherit(carried, bytes, &self.desk);
                if at > self.desk.now {
                    self.later.push(Reverse((at, token, peer.id)));
                }
            }
        }
        if let Some(deadline) = connection.login_deadline() {
            self.later.push(Reverse((deadline, token, peer.id)));
        }
        self.connections.insert(connection);
        self.enqueue(token);
    }

    fn close(&mut self, token: usize, reason: CloseReason) {
        let Some(connection) = self.connections.get_mut(token).filter(|connection| !connection.is_over) else {
            return;
        };
        let is_let_go = connection.end(&mut self.desk.ring);
        let shared = &self.desk.executor.shared;
        if let Some(watcher) = &connection.watcher {
            shared.watch.remove(watcher);
        }
        log::debug!("{} closed: {}", connection.peer.address, reason.word());
        let peer = Arc::clone(&connection.peer);
        if is_let_go {
            // Dropping the socket also removes it from the poll (epoll(7), question 6).
            self.connections.remove(token);
        }
        self.desk.executor.shared.connection_closed(&peer);
        self.send_connection_to_watchers("conn_close", &peer, Some(reason));
    }

    fn send_connection_to_watchers(&mut self, what: &str, peer: &Peer, reason: Option<CloseReason>) {
        let session = &mut self.desk.executor.session;
        if session.emits_connections() {
            let (ip, port, transport) = match &peer.address {
                PeerAddress::Tcp { remote, .. } => (remote.ip().to_string(), remote.port(), "tcp"),
                PeerAddress::Udp { local, .. } => (local.ip().to_string(), local.port(), "udp"),
                PeerAddress::Unix | PeerAddress::Reader => ("unix".to_owned(), 0, "local"),
            };
            let reason = reason.map(|reason| format!(" reason={}", reason.word())).unwrap_or_default();
            let text = format!(
                "type={what} rip={ip} rport={port} transport={transport}{reason} cfd={}",
                peer.fd
            );
            session.emit_connection(text.as_bytes());
        }
    }

    fn tokens(&self, mut wanted: impl FnMut(&Connection) -> bool) -> Vec<usize> {
        self.connections
            .iter()
            .filter(|(_, connection)| wanted(connection))
            .map(|(token, _)| token)
            .collect()
    }

    /// Begins to stop: every connection gets the answers to what has arrived, then ends.
    fn stop(&mut self) {
        let grace = self.desk.executor.shared.config.shutdown_grace;
        self.deadline = Some(self.desk.now + grace);
        for token in self.tokens(|connection| !connection.is_over) {
            self.connections[token].stop();
            self.enqueue(token);
        }
    }
}

/// Reports that a worker has ended, normally or by a panic.
struct Ended(Arc<Shared>);

impl Drop for Ended {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.broken.store(true, SeqCst);
            self.0.stop();
        }
        self.0.workers_running.fetch_sub(1, SeqCst);
        self.0.wake_acceptor();
    }
}

/// Says once in a process why a worker cannot use io_uring, which is then so for all.
fn ring_refused(error: &io::Error) {
    static SAID: Once = Once::new();
    let remedy = ring_remedy(error);
    SAID.call_once(|| log::warn!("a worker cannot use io_uring: {error}{remedy}; it uses epoll, and so do others that cannot"));
}

/// What helps against an error of a ring, as an addition to its message, if the limit of locked memory is why.
pub(crate) fn ring_remedy(error: &io::Error) -> String {
    // Until Linux 5.12, and from then on for users without CAP_IPC_LOCK, rings are locked memory (io_uring_setup(2)).
    match (error.raw_os_error(), getrlimit(Resource::RLIMIT_MEMLOCK)) {
        (Some(libc::ENOMEM), Ok((limit, _))) => format!(
            " (this user may lock {} KiB, which all its rings share; raise `ulimit -l`, LimitMEMLOCK= of its unit)",
            limit >> 10
        ),
        _ => String::new(),
    }
}
