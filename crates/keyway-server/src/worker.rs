//! A worker: one event loop on one thread, with its own session, serving the connections that are handed to it.
//!
//! Each round takes the events that the poll reports, then gives one turn to every connection that has something to do. A connection
//! that has more to do than a turn allows goes back to the end of the queue. The poll does not block while a connection is queued.
//!
//! Connections whose turns took as long as a turn may take wait in a second queue, and so do new connections for their first turn. A
//! round serves from that queue until the work of one long turn is done ([`TURN_WORK`]). So a connection with small requests waits for
//! only one such turn at a time, however many connections have large ones.
//!
//! With a ring (`--event-loop`), the ring handles the connections' sockets. It also watches the poll, which covers all other sockets.
//! Data that the ring has received gives its connection a turn at once, unless the connection is queued already.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use keyway_proto::Limits;
use keyway_uring::{Event, Ring};
use mio::net::UdpSocket;
use mio::{Events, Poll, Token};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use slab::Slab;

use crate::buffer::Buffer;
use crate::config::EventLoop;
use crate::connection::{CloseReason, Connection, Desk, INPUT_SIZE, Secure, Stream, Verdict};
use crate::effort::{REQUEST, TURN_WORK};
use crate::shared::{Message, Peer, PeerAddress, Shared};
use crate::udp::UdpDoors;
use crate::watch::CONNEVENTS;

/// Initial capacity of a worker's output vector, bytes.
const OUTPUT_SIZE: usize = 16 * 1024;
pub(crate) const WAKE: Token = Token(usize::MAX);
/// Token of the first UDP socket; the other UDP sockets have the next lower numbers.
const UDP_LAST: usize = usize::MAX - 1;
/// The ring's token for the poll.
const POLL: usize = 1 << 40;
/// A vector larger than this is not kept for the next send: replies of 100 KB are, so that each does not take fresh pages.
const SPARE_SIZE_MAX: usize = 256 * 1024;
/// Total size of the vectors that are kept for the next sends, bytes at most.
const SPARE_SUM_MAX: usize = 4 << 20;
/// Most vectors kept for the next sends.
const SPARE_COUNT_MAX: usize = 64;
/// After this time without work, a worker releases the space that its session has reserved for its next writes.
const RELEASE_AFTER: Duration = Duration::from_secs(5);
/// After this time without work, a connection is parked: the ring stops receiving for it.
const PARK_AFTER: Duration = Duration::from_secs(5);
/// Most connections that are parked at a time: each needs a cancellation, and other connections wait meanwhile.
const PARKED_AT_ONCE: usize = 256;
/// How often the worker looks for idle connections and does the region's upkeep.
const TICK: Duration = Duration::from_secs(1);

pub(crate) struct Worker {
    poll: Poll,
    desk: Desk,
    limits: Limits,
    /// this worker's UDP sockets, until it runs
    udp_sockets: Vec<UdpSocket>,
    connections: Slab<Connection>,
    /// events of the ring that are not handled yet
    told: Vec<Event>,
    /// the ring watches the poll
    is_poll_watched: bool,
    /// the queue: connections with something to do, each once
    line: VecDeque<usize>,
    /// the queue of connections whose turns are long
    heavy_line: VecDeque<usize>,
    /// work done by turns of the first queue in this round, estimated nanoseconds
    round_spent: u64,
    /// the last round served datagrams, and not the connections with long turns
    is_udps_round: bool,
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
        let limits = Limits {
            item_size_max: desk.executor.shared.item_size_max,
            ..Limits::default()
        };
        let next_tick = Instant::now() + TICK;
        Self {
            poll,
            desk,
            limits,
            udp_sockets,
            connections: Slab::new(),
            told: Vec::new(),
            is_poll_watched: false,
            line: VecDeque::new(),
            heavy_line: VecDeque::new(),
            round_spent: 0,
            is_udps_round: false,
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
        while self.deadline.is_none() || !self.connections.is_empty() {
            let timeout = self.timeout(&udp);
            if let Err(error) = self.wait(&mut events, timeout)
                && error.kind() != io::ErrorKind::Interrupted
            {
                log::error!("a worker cannot wait for events: {error}");
                self.desk.executor.shared.stop();
            }
            self.desk.now = Instant::now();
            self.desk.uptime_s = self.desk.executor.shared.uptime_s_at(self.desk.now);
            if !events.is_empty() || !self.told.is_empty() {
                self.busy_at = Some(self.desk.now);
                self.has_unparked = self.desk.ring.is_some();
            }
            for event in &events {
                if event.token() == WAKE {
                    self.desk.executor.shared.doors[self.desk.executor.worker].receive(&mut messages);
                    messages.drain(..).for_each(|message| self.take(message));
                } else if let Some(connection) = self.connections.get_mut(event.token().0) {
                    connection.note(event);
                    self.stand_in_line(event.token().0);
                } else {
                    udp.note(event);
                }
            }
            if self.deadline.is_none() && self.desk.executor.shared.is_stopping() {
                self.stop();
                udp.close(&mut self.desk, self.poll.registry());
            }
            self.round_spent = 0;
            self.hear();
            self.call_later();
            for _ in 0..self.line.len() {
                if let Some(token) = self.line.pop_front() {
                    self.serve(token);
                }
            }
            let (is_heavy, is_udp) = (!self.heavy_line.is_empty(), udp.has_work());
            if is_heavy && self.round_spent > 0 {
                self.send_now();
            }
            // Both may take a long turn, so they alternate.
            self.is_udps_round = is_udp && (!is_heavy || !self.is_udps_round);
            if !self.is_udps_round {
                self.serve_heavy();
            }
            if self.desk.executor.shared.account.is_over() {
                self.desk.executor.shared.relieve();
            }
            if self.is_udps_round || !(is_heavy && is_udp) {
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
    }

    /// Sets the thread's CPU, the memory of its NUMA node, and its ring. If one of them fails, the worker serves without it.
    fn settle(&mut self) {
        let shared = &self.desk.executor.shared;
        let cpus = &shared.config.cpus;
        if !cpus.is_empty() {
            let cpu = cpus[self.desk.executor.worker % cpus.len()];
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
                Err(error) => log::warn!("a worker cannot use io_uring: {error}; it uses epoll"),
            }
        }
    }

    /// Waits for events, at most for `timeout`. If busy polling is configured, it spins before it sleeps.
    fn wait(&mut self, events: &mut Events, timeout: Option<Duration>) -> io::Result<()> {
        let spin = self.desk.executor.shared.config.busy_poll;
        if spin.is_zero() || timeout == Some(Duration::ZERO) {
            return self.wait_once(events, timeout);
        }
        let until = Instant::now() + timeout.map_or(spin, |timeout| timeout.min(spin));
        loop {
            self.wait_once(events, Some(Duration::ZERO))?;
            if !events.is_empty() || !self.told.is_empty() {
                return Ok(());
            }
            let now = Instant::now();
            if now >= until {
                return self.wait_once(events, timeout.map(|timeout| timeout.saturating_sub(spin)));
            }
            std::hint::spin_loop();
        }
    }

    fn wait_once(&mut self, events: &mut Events, timeout: Option<Duration>) -> io::Result<()> {
        let Some(ring) = &mut self.desk.ring else {
            return self.poll.poll(events, timeout);
        };
        events.clear();
        if !self.is_poll_watched {
            // Each new watch checks readiness again, so events that are not taken at once are not lost.
            ring.watch(self.poll.as_raw_fd(), POLL)?;
            self.is_poll_watched = true;
        }
        ring.wait(timeout)?;
        ring.take(&mut self.told);
        if self.told.iter().any(|event| matches!(event, Event::Ready { token: POLL })) {
            self.is_poll_watched = false;
            self.poll.poll(events, Some(Duration::ZERO))?;
        }
        Ok(())
    }

    /// Handles the events of the ring.
    fn hear(&mut self) {
        let mut told = std::mem::take(&mut self.told);
        self.desk.is_alone = told.len() == 1 && self.line.is_empty() && self.heavy_line.is_empty();
        for event in told.drain(..) {
            match event {
                Event::Received { token, piece, last } => {
                    let connection = self.connections.get_mut(token);
                    let has_turn = connection.is_some_and(|connection| {
                        if connection.is_over {
                            connection.ended_receiving_if(last);
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
                        self.stand_in_line(token);
                        self.hold_back(token);
                        self.forget(token);
                    }
                }
                Event::Ended { token, result } => {
                    self.act(token, |connection, _| connection.receive_ended(result).map(|()| true))
                }
                Event::Sent {
                    token,
                    mut bytes,
                    result,
                } => {
                    bytes.clear();
                    self.keep_spare(bytes);
                    self.act(token, |connection, desk| connection.sent(desk, result));
                }
                Event::Ready { token: POLL } => {}
                Event::Ready { token } => self.act(token, |connection, _| {
                    connection.ended_receiving();
                    Ok(true)
                }),
            }
        }
        self.desk.is_alone = false;
        // Kept, so that its capacity is used again.
        self.told = told;
    }

    /// Keeps an empty vector for a later send, within bounds. Of two vectors the larger one is used first.
    fn keep_spare(&mut self, mut bytes: Vec<u8>) {
        let Desk { spare, output, .. } = &mut self.desk;
        if (output.capacity()..=SPARE_SIZE_MAX).contains(&bytes.capacity()) {
            std::mem::swap(output, &mut bytes);
        }
        let is_small = bytes.capacity() <= SPARE_SIZE_MAX && spare.len() < SPARE_COUNT_MAX;
        // Sums at most 64 small numbers, and only if vectors are large.
        let fits = |spare: &[Vec<u8>]| spare.iter().map(Vec::capacity).sum::<usize>() + bytes.capacity() <= SPARE_SUM_MAX;
        if is_small && (bytes.capacity() <= SPARE_SUM_MAX / SPARE_COUNT_MAX || fits(spare)) {
            spare.push(bytes);
        }
    }

    /// Lets a connection handle an event. The connection gets a turn if it wants one, and ends if `act` fails.
    fn act(&mut self, token: usize, act: impl FnOnce(&mut Connection, &mut Desk) -> io::Result<bool>) {
        let Some(connection) = self.connections.get_mut(token) else {
            return;
        };
        let acted = act(connection, &mut self.desk);
        if connection.is_over {
            return self.forget(token);
        }
        match acted {
            Ok(true) => self.stand_in_line(token),
            Ok(false) => {}
            Err(error) => {
                log::debug!("{}: {error}", connection.peer.address);
                self.close(token, CloseReason::Error);
            }
        }
    }

    /// Drops a closed connection that the ring no longer uses.
    fn forget(&mut self, token: usize) {
        if self
            .connections
            .get(token)
            .is_some_and(|connection| connection.is_over && connection.is_let_go())
        {
            self.connections.remove(token);
        }
    }

    /// This worker's UDP sockets, registered with the poll. If that fails, the server ends: otherwise it would serve TCP only, unnoticed.
    fn open_udp(&mut self) -> UdpDoors {
        let sockets = std::mem::take(&mut self.udp_sockets);
        UdpDoors::open(sockets, &self.desk, self.poll.registry(), UDP_LAST).unwrap_or_else(|error| {
            log::error!("a worker cannot watch its UDP sockets: {error}");
            self.desk.executor.shared.stop();
            UdpDoors::default()
        })
    }

    /// How long the poll may block.
    fn timeout(&self, udp: &UdpDoors) -> Option<Duration> {
        if !self.line.is_empty() || !self.heavy_line.is_empty() || udp.has_work() {
            return Some(Duration::ZERO);
        }
        let has_ticks = self.keeps_up() || self.idle_timeout().is_some() || self.has_unparked;
        let next = [
            has_ticks.then_some(self.next_tick),
            self.busy_at.map(|at| at + RELEASE_AFTER),
            self.deadline,
            self.later.peek().map(|Reverse((at, ..))| *at),
        ];
        next.into_iter()
            .flatten()
            .min()
            .map(|next| next.saturating_duration_since(self.desk.now))
    }

    /// Whether this worker does the region's housekeeping; only one does.
    fn keeps_up(&self) -> bool {
        self.desk.executor.worker == 0
    }

    fn idle_timeout(&self) -> Option<Duration> {
        Some(self.desk.executor.shared.config.idle_timeout).filter(|timeout| !timeout.is_zero())
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Adopt(stream, peer) => self.adopt(stream, peer),
            Message::Turn(token) => self.stand_in_line(token),
            Message::End(peer, reason) => {
                for token in self.tokens(|connection| connection.peer.id == peer && !connection.is_over) {
                    self.close(token, reason);
                }
            }
        }
    }

    fn stand_in_line(&mut self, token: usize) {
        if let Some(connection) = self.connections.get_mut(token)
            && !connection.queued
            && !connection.is_over
        {
            connection.queued = true;
            match connection.is_heavy() {
                true => self.heavy_line.push_back(token),
                false => self.line.push_back(token),
            }
        }
    }

    /// Stops the ring from receiving for a connection that has enough data waiting for its turn.
    fn hold_back(&mut self, token: usize) {
        if let Some(connection) = self.connections.get_mut(token)
            && !connection.is_over
            && let Err(error) = connection.update_interest(self.poll.registry(), &mut self.desk)
        {
            log::warn!("{}: cannot watch the connection: {error}", connection.peer.address);
            self.close(token, CloseReason::Error);
        }
    }

    /// Makes the ring send the answers of this round now; otherwise they leave at its end.
    fn send_now(&mut self) {
        if let Some(ring) = &mut self.desk.ring
            && let Err(error) = ring.wait(Some(Duration::ZERO))
        {
            // The wait at the end of the round gets the same error.
            log::debug!("sending before long turns: {error}");
        }
    }

    /// Serves connections with long turns, for about the time of one long turn.
    fn serve_heavy(&mut self) {
        let mut spent = 0;
        for _ in 0..self.heavy_line.len() {
            let Some(token) = self.heavy_line.pop_front() else { return };
            self.serve(token);
            // A turn has a fixed cost besides its work.
            spent += self.desk.executor.effort.spent() + REQUEST;
            if spent >= TURN_WORK {
                return;
            }
        }
    }

    /// Queues the connections whose time has come.
    fn call_later(&mut self) {
        while let Some(Reverse((at, token, peer))) = self.later.peek().copied()
            && at <= self.desk.now
        {
            self.later.pop();
            let connection = self.connections.get_mut(token);
            if let Some(connection) = connection.filter(|connection| connection.peer.id == peer) {
                connection.called_at = None;
                self.stand_in_line(token);
            }
        }
    }

    fn adopt(&mut self, stream: Stream, peer: Arc<Peer>) {
        log::debug!("{} connected", peer.address);
        // The server checked a reader's user and group before.
        let login = self.desk.executor.shared.users.is_some() && !matches!(peer.address, PeerAddress::Reader);
        let token = self.connections.vacant_key();
        let is_secure = matches!(peer.address, PeerAddress::Tcp { is_secure: true, .. });
        let certificates = self.desk.executor.shared.certificates.as_ref().filter(|_| is_secure);
        let secure = match certificates
            .map(|certificates| Secure::new(certificates.config()))
            .transpose()
        {
            Ok(secure) => secure,
            Err(error) => {
                log::warn!("{}: cannot begin TLS: {error}", peer.address);
                self.desk.executor.shared.connection_closed(&peer);
                return;
            }
        };
        let mut connection = Connection::new(
            stream,
            secure,
            Arc::clone(&peer),
            token,
            self.limits.clone(),
            login,
            &self.desk,
        );
        if let Err(error) = connection.register(self.poll.registry()) {
            log::warn!("{}: cannot watch the connection: {error}", peer.address);
            self.desk.executor.shared.connection_closed(&peer);
            return;
        }
        self.tell_connection("conn_new", &peer, None);
        if let Some(deadline) = connection.login_deadline() {
            self.later.push(Reverse((deadline, token, peer.id)));
        }
        self.connections.insert(connection);
        self.stand_in_line(token);
    }

    /// Gives a connection its turn.
    fn serve(&mut self, token: usize) {
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
            self.round_spent += self.desk.executor.effort.spent() + REQUEST;
        }
        match verdict {
            Verdict::Close(reason) => self.close(token, reason),
            verdict => {
                if let Err(error) = connection.update_interest(self.poll.registry(), &mut self.desk) {
                    log::warn!("{}: cannot watch the connection: {error}", connection.peer.address);
                    self.close(token, CloseReason::Error);
                } else if verdict == Verdict::Again && self.round_spent >= TURN_WORK {
                    // Too many small requests wait: one more turn now would make the next round long.
                    connection.queued = true;
                    self.heavy_line.push_back(token);
                } else if verdict == Verdict::Again {
                    self.stand_in_line(token);
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
        self.tell_connection("conn_close", &peer, Some(reason));
    }

    fn tell_connection(&self, what: &str, peer: &Peer, reason: Option<CloseReason>) {
        if !self.desk.executor.shared.watch.wants(CONNEVENTS) {
            return;
        }
        self.desk.executor.tell(CONNEVENTS, |line| {
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
            line.extend_from_slice(text.as_bytes());
        });
    }

    fn tick(&mut self) {
        self.next_tick = self.desk.now + self.idle_timeout().map_or(TICK, |timeout| TICK.min(timeout / 2));
        if self.keeps_up() {
            self.desk.executor.session.upkeep();
        }
        if let Some(limit) = self.idle_timeout().and_then(|timeout| self.desk.now.checked_sub(timeout)) {
            for token in self.tokens(|connection| connection.is_idle_since(limit)) {
                self.desk.executor.counters().idle_kicks.add(1);
                self.close(token, CloseReason::IdleTimeout);
            }
        }
        self.park();
        if self.deadline.is_some_and(|deadline| self.desk.now >= deadline) {
            let late = self.tokens(|connection| !connection.is_over);
            log::warn!("{} connections did not read their replies in time and are closed", late.len());
            late.into_iter().for_each(|token| self.close(token, CloseReason::Shutdown));
        }
    }

    /// Parks connections that have been silent for [`PARK_AFTER`].
    fn park(&mut self) {
        let (Some(ring), Some(limit), true) = (&mut self.desk.ring, self.desk.now.checked_sub(PARK_AFTER), self.has_unparked)
        else {
            return;
        };
        self.has_unparked = false;
        let mut parked = 0;
        for (token, connection) in &mut self.connections {
            if !connection.is_receiving() {
                continue;
            }
            if connection.is_idle_since(limit) && parked < PARKED_AT_ONCE {
                parked += 1;
                if let Err(error) = connection.park(ring) {
                    // The connection continues as before.
                    log::debug!("connection {token} cannot be parked: {error}");
                }
            } else {
                self.has_unparked = true;
            }
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
            self.stand_in_line(token);
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
