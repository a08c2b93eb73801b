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
//! | `serve` | a connection's turn, and what follows from it |
//! | `halting` | what is done when another server takes over |
//! | `mail` | `Mail`: what comes from other threads |
//! | `wait` | `Waiting`: the poll and the ring's completions |
//! | `turns` | `Turns`: which connection gets a turn next |
//! | `upkeep` | `Upkeep`: what is done by the clock |
//! | `driven` | for tests: workers without threads |
//!
//! Never: executes a request (`connection` and `execute` do).

#[cfg(any(test, fuzzing))]
pub(crate) mod driven;
mod halting;
mod mail;
mod serve;
#[cfg(test)]
mod tests;
mod turns;
mod upkeep;
mod wait;

pub(crate) use mail::{Transfer, Transfers};

use keyway_cache::server::ServerSession as _;
use std::io;
use std::sync::{Arc, Once};
use std::time::Duration;

use keyway_uring::Ring;
use mio::net::UdpSocket;
use mio::{Events, Poll, Token};
use nix::libc;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::resource::{Resource, getrlimit};
use nix::unistd::Pid;
use slab::Slab;

use self::mail::{Letter, Mail};
use self::turns::Turns;
use self::upkeep::Upkeep;
use self::wait::Waiting;
use crate::config::EventLoop;
use crate::connection::{Carried, Connection, Desk, Secure, Stream};
use crate::shared::{CloseReason, Lane, Notice, Peer, PeerAddress, Shared};
use crate::takeover::{Halt, Stage};
use crate::udp::UdpSockets;

pub(crate) const WAKE: Token = Token(usize::MAX);
/// Letters of other threads that are handled in a round; most are new connections.
const LETTERS_PER_ROUND: usize = 16;
/// Token of the first UDP socket; the other UDP sockets have the next lower numbers.
const UDP_LAST: usize = usize::MAX - 1;

pub(crate) struct Worker {
    desk: Desk,
    lane: Lane,
    /// this worker's UDP sockets, until it runs
    udp_sockets: Vec<UdpSocket>,
    connections: Slab<Connection>,
    waiting: Waiting,
    turns: Turns,
    upkeep: Upkeep,
    /// the last round served datagrams, and not connections
    is_udps_round: bool,
    mail: Mail,
    /// how the threads halt while another server takes over
    halt: Arc<Halt>,
}

impl Worker {
    pub(crate) fn new(poll: Poll, desk: Desk, udp_sockets: Vec<UdpSocket>, transfers: Arc<Transfers>, halt: Arc<Halt>) -> Self {
        let shared = desk.shared();
        let lane = shared.workers.lane(desk.executor.worker());
        // Busy polling is for small requests.
        let spin = match lane {
            Lane::Long if udp_sockets.is_empty() => Duration::ZERO,
            _ => shared.config.busy_poll,
        };
        Self {
            upkeep: Upkeep::new(&desk),
            mail: Mail::new(desk.executor.worker(), transfers),
            halt,
            desk,
            lane,
            udp_sockets,
            connections: Slab::new(),
            waiting: Waiting::new(poll, spin),
            turns: Turns::default(),
            is_udps_round: false,
        }
    }

    /// Runs until the server stops.
    pub(crate) fn run(mut self) {
        // Drops last: a thread that sees the count reach zero finds the session already gone.
        let _ended = Ended(Arc::clone(self.desk.shared()));
        self.settle();
        let mut events = Events::with_capacity(512);
        let mut udp = self.open_udp();
        while !self.upkeep.is_stopping() || !self.connections.is_empty() || !self.mail.close(&self.desk.shared().workers) {
            if self.halt.is_wanted(Stage::Everyone) {
                self.halt(&mut udp);
            }
            self.round(&mut events, &mut udp);
        }
    }

    /// Waits for something to do, and does it: at most one turn for each connection. `events` is a buffer.
    fn round(&mut self, events: &mut Events, udp: &mut UdpSockets) {
        self.wait(events, udp);
        for event in &*events {
            if event.token() == WAKE {
                self.mail.note();
            } else if let Some(connection) = self.connections.get_mut(event.token().0) {
                connection.note(event);
                self.enqueue(event.token().0);
            } else {
                udp.note(event);
            }
        }
        self.take_mail();
        if !self.upkeep.is_stopping() && self.desk.shared().life.is_stopping() {
            self.stop();
            udp.close(&mut self.desk, self.waiting.registry());
        }
        self.handle_completions();
        self.call_later();
        let (is_queued, is_udp) = (self.turns.len() > 0, udp.has_work());
        // Both may take a long turn, so they alternate.
        self.is_udps_round = is_udp && (!is_queued || !self.is_udps_round);
        if !self.is_udps_round {
            self.serve_queue();
        }
        if self.desk.shared().account.is_over() {
            self.desk.shared().relieve();
        }
        if self.is_udps_round || !(is_queued && is_udp) {
            udp.turn(&mut self.desk, self.waiting.registry());
        }
        for (token, reason) in self.upkeep.look(&mut self.desk, &mut self.connections) {
            self.close(token, reason);
        }
    }

    /// Waits for events, and begins a round with them.
    fn wait(&mut self, events: &mut Events, udp: &UdpSockets) {
        let timeout = match self.turns.len() > 0 || udp.has_work() || self.mail.is_waiting() {
            true => Some(Duration::ZERO),
            false => {
                let next = self.upkeep.next().into_iter().chain(self.turns.next_call()).min();
                next.map(|next| next.saturating_duration_since(self.desk.now))
            }
        };
        if let Err(error) = self.waiting.wait(&mut self.desk.ring, events, timeout)
            && error.kind() != io::ErrorKind::Interrupted
        {
            log::error!("a worker cannot wait for events: {error}");
            self.desk.shared().stop();
        }
        self.desk.begin_round();
        if !events.is_empty() || self.waiting.has_completions() {
            self.upkeep.note_work(&self.desk);
        }
    }

    /// Sets the thread's CPU, the memory of its NUMA node, and its ring. If one of them fails, the worker serves without it.
    fn settle(&mut self) {
        let (shared, worker) = (self.desk.shared(), self.desk.executor.worker());
        let cpus = &shared.config.cpus;
        if !cpus.is_empty() {
            // The same for both workers of a pair.
            let cpu = cpus[worker % shared.config.threads % cpus.len()];
            let mut set = CpuSet::new();
            if let Err(error) = set.set(cpu).and_then(|()| sched_setaffinity(Pid::from_raw(0), &set)) {
                log::warn!("worker {worker}: cannot run on CPU {cpu} only: {error}");
            }
        }
        let has_ring = shared.event_loop == EventLoop::IoUring;
        self.desk.settle();
        if has_ring {
            match Ring::open() {
                Ok(ring) => self.desk.ring = Some(ring),
                Err(error) => ring_refused(&error),
            }
        }
    }

    /// This worker's UDP sockets, registered with the poll. If that fails, the server ends: otherwise it would serve TCP only, unnoticed.
    fn open_udp(&mut self) -> UdpSockets {
        let sockets = std::mem::take(&mut self.udp_sockets);
        UdpSockets::open(sockets, &self.desk, self.waiting.registry(), UDP_LAST).unwrap_or_else(|error| {
            log::error!("a worker cannot watch its UDP sockets: {error}");
            self.desk.shared().stop();
            UdpSockets::default()
        })
    }

    /// Handles mail of other threads, at most [`LETTERS_PER_ROUND`]: a thousand new connections at once would hold up the others.
    fn take_mail(&mut self) {
        let most = match self.desk.shared().life.is_stopping() {
            true => usize::MAX,
            false => LETTERS_PER_ROUND,
        };
        for _ in 0..most {
            match self.mail.next(&self.desk.shared().workers) {
                Some(Letter::Transfer(transfer)) => self.take(transfer),
                Some(Letter::Notice(notice)) => self.heed(notice),
                None => return,
            }
        }
    }

    fn take(&mut self, transfer: Transfer) {
        match transfer {
            Transfer::New(stream, peer) => self.adopt(stream, peer, None),
            Transfer::Moved(connection) => self.admit(connection),
            Transfer::Inherited(inherited, peer) => {
                let (stream, carried) = inherited.apart();
                self.adopt(stream, peer, Some(&carried));
            }
        }
    }

    fn heed(&mut self, notice: Notice) {
        match notice {
            Notice::Turn(token) => self.enqueue(token),
            Notice::Answer(round) => {
                let shared = self.desk.shared();
                shared.workers.answer(self.number(), round);
                shared.life.wake_acceptor();
            }
            Notice::End(peer, reason) => {
                for token in self.tokens(|connection| connection.peer.id == peer.id && !connection.is_over()) {
                    self.close(token, reason);
                }
                // It may have gone to the partner meanwhile.
                if peer.worker() != self.number() {
                    self.desk.shared().workers.end(&peer, reason);
                }
            }
        }
    }

    fn number(&self) -> usize {
        self.desk.executor.worker()
    }

    /// Serves a new connection, or one that another server has handed over in this state.
    fn adopt(&mut self, stream: Stream, peer: Arc<Peer>, inherited: Option<&Carried>) {
        log::debug!("{} connected", peer.address);
        // The server checked a reader's user and group before.
        let login = self.desk.shared().users.is_some()
            && !matches!(peer.address, PeerAddress::Reader)
            && !inherited.is_some_and(Carried::has_logged_in);
        let token = self.connections.vacant_key();
        let is_secure = matches!(peer.address, PeerAddress::Tcp { is_secure: true, .. });
        let certificates = self.desk.shared().certificates.as_ref().filter(|_| is_secure);
        let secure = match certificates
            .map(|certificates| Secure::new(certificates.config()?))
            .transpose()
        {
            Ok(secure) => secure,
            Err(error) => {
                log::warn!("{}: cannot begin TLS: {error}", peer.address);
                self.desk.shared().connection_closed(&peer);
                return;
            }
        };
        let mut connection = Connection::new(stream, secure, Arc::clone(&peer), token, login, &self.desk);
        if let Err(error) = connection.register(self.waiting.registry(), inherited.is_some()) {
            log::warn!("{}: cannot watch the connection: {error}", peer.address);
            self.desk.shared().connection_closed(&peer);
            return;
        }
        match inherited {
            None => {
                connection.may_be_enrolled(&self.desk);
                self.send_connection_to_watchers("conn_new", &peer, None);
            }
            Some(carried) => {
                let at = connection.inherit(carried, &self.desk);
                if at > self.desk.now {
                    self.turns.call_at(at, token, peer.id);
                }
            }
        }
        if let Some(deadline) = connection.login_deadline() {
            self.turns.call_at(deadline, token, peer.id);
        }
        self.connections.insert(connection);
        self.enqueue(token);
    }

    fn close(&mut self, token: usize, reason: CloseReason) {
        let Some(connection) = self.connections.get_mut(token).filter(|connection| !connection.is_over()) else {
            return;
        };
        let is_let_go = connection.end(&mut self.desk);
        log::debug!("{} closed: {}", connection.peer.address, reason.word());
        let peer = Arc::clone(&connection.peer);
        if is_let_go {
            // Dropping the socket also removes it from the poll (epoll(7), question 6).
            self.connections.remove(token);
        }
        self.desk.shared().connection_closed(&peer);
        self.send_connection_to_watchers("conn_close", &peer, Some(reason));
    }

    fn send_connection_to_watchers(&mut self, what: &str, peer: &Peer, reason: Option<CloseReason>) {
        let session = self.desk.executor.session();
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
        self.upkeep.stop(&self.desk);
        for token in self.tokens(|connection| !connection.is_over()) {
            self.connections[token].stop();
            self.enqueue(token);
        }
    }
}

/// Reports that a worker has ended, normally or by a panic.
struct Ended(Arc<Shared>);

impl Drop for Ended {
    fn drop(&mut self) {
        let has_panicked = std::thread::panicking();
        if has_panicked {
            self.0.stop();
        }
        self.0.workers.ended(has_panicked);
        self.0.life.wake_acceptor();
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
