//! The UDP sockets of one worker: the datagrams that have arrived on each, and the answers that wait to be sent.
//!
//! A turn receives a batch of datagrams with one system call, executes the requests in each, and sends all answers with another
//! one. Each datagram is handled separately: nothing of it is kept for the next one, so one client's unfinished request cannot take in
//! another client's bytes. A datagram from a source that is not allowed is neither executed nor answered, because any client can write
//! any source address into a datagram, and an answer is longer than its request.
//!
//! The answer to a datagram is one message (protocol.txt, "UDP protocol"), whatever number of requests or keys it asked for. The answer is
//! bounded in bytes (`Config::udp_answer_max`), in requests (`REQUESTS_MAX`) and in work, because the sender's address may be forged. For
//! the same reason no request over UDP changes the server or lists its clients (`is_for_udp`).

mod batch;
mod datagram;

use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use keyway_proto::frame::Framed;
use mio::event::Event;
use mio::net::UdpSocket;
use mio::{Interest, Registry, Token};
use nix::errno::Errno;
use nix::sys::socket::SockaddrStorage;

use self::batch::{BATCH, Inbox, Outbox, UNSENT_PAUSE};
use self::datagram::{execute_all, is_error_line};
use crate::connection::Desk;
use crate::cpu_budget::TURN_WORK;
use crate::shared::{Peer, PeerAddress};
use crate::source::Network;

/// Batches of one socket that are still answered when the server stops.
const BATCHES_AT_END: usize = 8;

/// All UDP sockets of a worker.
#[derive(Default)]
pub(crate) struct UdpSockets {
    sockets: Vec<Datagrams>,
    allowed: Vec<Network>,
}

struct Datagrams {
    socket: UdpSocket,
    token: Token,
    /// the client, set for each datagram
    peer: Peer,
    /// the socket, as `stats conns` shows it
    shown: Arc<Peer>,
    inbox: Inbox,
    outbox: Outbox,
    /// datagrams may wait in the socket or in `inbox` (readiness is edge-triggered: reported once)
    ready: bool,
    /// the socket takes no more datagrams for the moment; nothing is received meanwhile
    blocked: bool,
    /// registered for writability, because answers are unsent
    wants_write: bool,
}

impl UdpSockets {
    /// Registers the sockets with the poll; their tokens count down from `token_last`. Call it on the worker's own thread, because the
    /// buffers for the system calls cannot be moved to another thread.
    pub(crate) fn open(sockets: Vec<UdpSocket>, desk: &Desk, registry: &Registry, token_last: usize) -> io::Result<Self> {
        let shared = desk.shared();
        let mut open = Vec::new();
        for (index, mut socket) in sockets.into_iter().enumerate() {
            let token = Token(token_last - index);
            registry.register(&mut socket, token, Interest::READABLE)?;
            let local = socket.local_addr()?;
            let id = shared.peers.next_id();
            let address = PeerAddress::Udp { remote: None, local };
            let peer = || {
                Peer::new(
                    id,
                    socket.as_raw_fd(),
                    address.clone(),
                    desk.executor.worker(),
                    true,
                    desk.uptime_s,
                )
            };
            let (peer, shown) = (peer(), Arc::new(peer()));
            shared.peers.show(&shown);
            open.push(Datagrams {
                socket,
                token,
                peer,
                shown,
                inbox: Inbox::new(),
                outbox: Outbox::new(),
                ready: true,
                blocked: false,
                wants_write: false,
            });
        }
        Ok(Self {
            sockets: open,
            allowed: shared.config.udp_allow.clone(),
        })
    }

    /// Records an event, if it belongs to one of these sockets.
    pub(crate) fn note(&mut self, event: &Event) {
        if let Some(socket) = self.sockets.iter_mut().find(|socket| socket.token == event.token()) {
            socket.ready |= event.is_readable() || event.is_error();
            socket.blocked &= !(event.is_writable() || event.is_error());
        }
    }

    /// Whether a turn would have something to do.
    pub(crate) fn has_work(&self) -> bool {
        self.sockets
            .iter()
            .any(|socket| !socket.blocked && (socket.ready || !socket.inbox.is_empty() || !socket.outbox.is_empty()))
    }

    /// Gives one turn of one batch to each socket that has something to do.
    pub(crate) fn turn(&mut self, desk: &mut Desk, registry: &Registry) {
        for socket in &mut self.sockets {
            socket.turn(desk, &self.allowed, registry);
        }
    }

    /// Answers the datagrams that were received, and receives no more.
    pub(crate) fn finish_batches(&mut self, desk: &mut Desk, registry: &Registry) {
        for socket in &mut self.sockets {
            socket.ready = false;
            for _ in 0..BATCH {
                if !socket.inbox.is_empty() {
                    socket.turn(desk, &self.allowed, registry);
                }
            }
        }
    }

    /// Receives again.
    pub(crate) fn resume(&mut self) {
        self.sockets.iter_mut().for_each(|socket| socket.ready = true);
    }

    /// Another server has the sockets.
    pub(crate) fn leave(&mut self, desk: &Desk, registry: &Registry) {
        for mut socket in self.sockets.drain(..) {
            if let Err(error) = registry.deregister(&mut socket.socket) {
                log::debug!("a UDP socket that was handed over is still watched: {error}");
            }
            desk.shared().peers.hide(&socket.shown);
        }
    }

    /// Answers what has arrived, at most a few batches per socket, and closes the sockets.
    pub(crate) fn close(&mut self, desk: &mut Desk, registry: &Registry) {
        for _ in 0..BATCHES_AT_END {
            if self.has_work() {
                self.turn(desk, registry);
            }
        }
        for socket in self.sockets.drain(..) {
            desk.shared().peers.hide(&socket.shown);
        }
    }
}

impl Datagrams {
    fn turn(&mut self, desk: &mut Desk, allowed: &[Network], registry: &Registry) {
        if self.blocked || !self.send(desk, registry) {
            return;
        }
        if self.ready && self.inbox.is_empty() {
            self.receive(desk);
        }
        let mut spent = 0;
        while spent < TURN_WORK
            && let Some((place, source)) = self.inbox.take()
        {
            desk.executor.cpu_budget.begin();
            self.answer(desk, &place, source, allowed);
            spent += desk.executor.cpu_budget.spent();
            if self.outbox.bytes.len() > UNSENT_PAUSE && !self.send(desk, registry) {
                return;
            }
        }
        self.send(desk, registry);
    }

    fn receive(&mut self, desk: &Desk) {
        match self.inbox.fill(&self.socket) {
            Ok(len) => {
                let counters = desk.executor.counters();
                counters.bytes_read.add(len as u64);
                counters.udp_datagrams.add(self.inbox.arrived.len() as u64);
                // Fewer than fit: the socket is empty, and the next datagram makes a new event.
                self.ready = self.inbox.arrived.len() == BATCH;
                self.shown.last_request_s.store(desk.uptime_s, Relaxed);
            }
            Err(Errno::EAGAIN) => self.ready = false,
            Err(Errno::EINTR) => {}
            // A network error of an earlier answer is reported here; the socket itself works.
            Err(error) => log::debug!("{}: receiving: {error}", self.shown.address),
        }
    }

    /// Executes the requests of the datagram at `place` in the inbox, and queues the answer.
    fn answer(&mut self, desk: &mut Desk, place: &Range<usize>, source: Option<SockaddrStorage>, allowed: &[Network]) {
        let datagram = &self.inbox.bytes[place.clone()];
        let remote = source.as_ref().and_then(socket_address);
        let counters = desk.executor.counters();
        if !remote.is_some_and(|remote| allowed.iter().any(|network| network.contains(remote.ip()))) {
            counters.udp_refused.add(1);
            log::debug!("{}: a datagram from {remote:?} is refused (--udp-allow)", self.shown.address);
            return;
        }
        let framed = match Framed::open(datagram) {
            Ok(framed) => framed,
            Err(why) => {
                counters.udp_dropped.add(1);
                log::debug!("{}: a datagram from {remote:?} is dropped: {why}", self.shown.address);
                return;
            }
        };
        if is_error_line(framed.payload) {
            counters.udp_dropped.add(1);
            return;
        }
        if let PeerAddress::Udp { remote: asker, .. } = &mut self.peer.address {
            *asker = remote;
        }
        let shared = Arc::clone(desk.shared());
        let asker = self.peer.address.source(|| None);
        let rated = shared.rates.as_ref().map(|rates| (rates, asker));
        if rated.is_some_and(|(rates, asker)| rates.take(asker, 1, desk.now) == 0) {
            counters.udp_over_rate.add(1);
            return;
        }
        let start = self.outbox.bytes.len();
        let requests = execute_all(&mut desk.executor, framed.payload, &self.peer, &mut self.outbox.bytes);
        if let Some((rates, asker)) = rated {
            rates.charge(asker, requests.saturating_sub(1), desk.now);
        }
        self.outbox.queue(framed.id, start, source);
    }

    /// Sends what is queued. Returns false if the socket does not take all of it now.
    fn send(&mut self, desk: &Desk, registry: &Registry) -> bool {
        let sent = self.outbox.send(&self.socket, &self.shown);
        desk.executor.counters().bytes_written.add(sent as u64);
        self.blocked = !self.outbox.is_empty();
        if self.blocked != self.wants_write {
            // Writability is watched only while answers are unsent; otherwise each sent datagram would wake the worker.
            let interest = if self.blocked {
                Interest::READABLE | Interest::WRITABLE
            } else {
                Interest::READABLE
            };
            match registry.reregister(&mut self.socket, self.token, interest) {
                Ok(()) => self.wants_write = self.blocked,
                Err(error) => {
                    log::warn!(
                        "{}: cannot wait for room to send: {error}; answers are dropped",
                        self.shown.address
                    );
                    self.outbox.clear();
                    self.blocked = false;
                }
            }
        }
        !self.blocked
    }
}

fn socket_address(address: &SockaddrStorage) -> Option<SocketAddr> {
    if let Some(v4) = address.as_sockaddr_in() {
        return Some(SocketAddr::from((v4.ip(), v4.port())));
    }
    let v6 = address.as_sockaddr_in6()?;
    Some(SocketAddr::from((v6.ip(), v6.port())))
}
