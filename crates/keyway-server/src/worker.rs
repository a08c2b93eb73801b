//! A worker: one event loop on one thread, with its own session, serving the connections that are handed to it.
//!
//! Each round takes what the poll reports, then gives every connection that has something to do one turn. A connection that has
//! more to do than a turn allows stands at the end of the line again, and the poll does not block while anybody stands there.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use keyway_proto::Limits;
use mio::net::UdpSocket;
use mio::{Events, Poll, Token};
use slab::Slab;

use crate::connection::{CloseReason, Connection, Desk, Stream, Verdict};
use crate::shared::{Message, Peer, PeerAddress, Shared};
use crate::udp::UdpDoors;
use crate::watch::CONNEVENTS;

pub(crate) const WAKE: Token = Token(usize::MAX);
/// Token of the first UDP socket; those of others follow downwards.
const UDP_LAST: usize = usize::MAX - 1;
/// After so long without anything to do, a worker gives up the room that its session has reserved for its next writes.
const RELEASE_AFTER: Duration = Duration::from_secs(5);
/// How often idle connections are looked for, and the region is kept up.
const TICK: Duration = Duration::from_secs(1);

pub(crate) struct Worker {
    poll: Poll,
    desk: Desk,
    limits: Limits,
    /// this worker's UDP sockets, until it runs
    udp_sockets: Vec<UdpSocket>,
    connections: Slab<Connection>,
    /// connections with something to do, each once
    line: VecDeque<usize>,
    next_tick: Instant,
    /// when there was something to do, and the session's reserve has not been given up since
    busy_at: Option<Instant>,
    /// when the server is stopping: the end of patience
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
            line: VecDeque::new(),
            next_tick,
            busy_at: None,
            deadline: None,
        }
    }

    /// Runs until the server stops.
    pub(crate) fn run(mut self) {
        // Drops last: whoever sees the count reach zero finds the session already gone.
        let _ended = Ended(Arc::clone(&self.desk.executor.shared));
        let mut events = Events::with_capacity(512);
        let mut messages = Vec::new();
        let mut udp = self.open_udp();
        while self.deadline.is_none() || !self.connections.is_empty() {
            if let Err(error) = self.poll.poll(&mut events, self.timeout(&udp))
                && error.kind() != io::ErrorKind::Interrupted
            {
                log::error!("a worker cannot wait for events: {error}");
                self.desk.executor.shared.stop();
            }
            self.desk.now = Instant::now();
            self.desk.uptime_s = self.desk.executor.shared.uptime_s();
            if !events.is_empty() {
                self.busy_at = Some(self.desk.now);
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
            for _ in 0..self.line.len() {
                if let Some(token) = self.line.pop_front() {
                    self.serve(token);
                }
            }
            udp.turn(&mut self.desk, self.poll.registry());
            if self.busy_at.is_some_and(|at| self.desk.now >= at + RELEASE_AFTER) {
                self.desk.executor.session.release();
                self.busy_at = None;
            }
            if self.desk.now >= self.next_tick || self.deadline.is_some_and(|deadline| self.desk.now >= deadline) {
                self.tick();
            }
        }
    }

    /// This worker's UDP sockets, watched. Without them TCP would still be served, but nobody would notice.
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
        if !self.line.is_empty() || udp.has_work() {
            return Some(Duration::ZERO);
        }
        let has_ticks = self.keeps_up() || self.idle_timeout().is_some();
        let next = [
            has_ticks.then_some(self.next_tick),
            self.busy_at.map(|at| at + RELEASE_AFTER),
            self.deadline,
        ];
        next.into_iter()
            .flatten()
            .min()
            .map(|next| next.saturating_duration_since(self.desk.now))
    }

    /// One worker does the region's housekeeping.
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
        }
    }

    fn stand_in_line(&mut self, token: usize) {
        if let Some(connection) = self.connections.get_mut(token)
            && !connection.queued
        {
            connection.queued = true;
            self.line.push_back(token);
        }
    }

    fn adopt(&mut self, stream: Stream, peer: Arc<Peer>) {
        log::debug!("{} connected", peer.address);
        let login = self.desk.executor.shared.users.is_some();
        let token = self.connections.vacant_key();
        let mut connection = Connection::new(stream, Arc::clone(&peer), token, self.limits.clone(), login, self.desk.now);
        if let Err(error) = connection.register(self.poll.registry()) {
            log::warn!("{}: cannot watch the connection: {error}", peer.address);
            self.desk.executor.shared.connection_closed(&peer);
            return;
        }
        self.tell_connection("conn_new", &peer, None);
        self.connections.insert(connection);
        self.stand_in_line(token);
    }

    /// Gives a connection its turn.
    fn serve(&mut self, token: usize) {
        let Some(connection) = self.connections.get_mut(token) else {
            return;
        };
        connection.queued = false;
        match connection.turn(&mut self.desk) {
            Verdict::Close(reason) => self.close(token, reason),
            verdict => {
                if let Err(error) = connection.update_interest(self.poll.registry()) {
                    log::warn!("{}: cannot watch the connection: {error}", connection.peer.address);
                    self.close(token, CloseReason::Error);
                } else if verdict == Verdict::Again {
                    self.stand_in_line(token);
                }
            }
        }
    }

    fn close(&mut self, token: usize, reason: CloseReason) {
        // Dropping the socket takes it out of the poll as well (epoll(7), question 6).
        let Some(connection) = self.connections.try_remove(token) else {
            return;
        };
        let shared = &self.desk.executor.shared;
        if let Some(watcher) = &connection.watcher {
            shared.watch.remove(watcher);
        }
        log::debug!("{} closed: {}", connection.peer.address, reason.word());
        let peer = Arc::clone(&connection.peer);
        drop(connection);
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
                PeerAddress::Unix => ("unix".to_owned(), 0, "local"),
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
        if self.deadline.is_some_and(|deadline| self.desk.now >= deadline) {
            let late = self.tokens(|_| true);
            log::warn!("{} connections did not take their replies in time and are cut", late.len());
            late.into_iter().for_each(|token| self.close(token, CloseReason::Shutdown));
        }
    }

    fn tokens(&self, mut wanted: impl FnMut(&Connection) -> bool) -> Vec<usize> {
        self.connections
            .iter()
            .filter(|(_, connection)| wanted(connection))
            .map(|(token, _)| token)
            .collect()
    }

    /// Starts to stop: every connection gets the answers to what has arrived, then ends.
    fn stop(&mut self) {
        let grace = self.desk.executor.shared.config.shutdown_grace;
        self.deadline = Some(self.desk.now + grace);
        for token in self.tokens(|_| true) {
            self.connections[token].stop();
            self.stand_in_line(token);
        }
    }
}

/// Reports the end of a worker, by whatever way it ends.
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
