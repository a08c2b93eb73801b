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

use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use keyway_proto::frame::{ANSWER_LEN_MAX, FRAME_LEN, Framed, datagrams};
use keyway_proto::{Admin, Decoded, Decoder, Limits, OverUdp, Request, binary};
use mio::event::Event;
use mio::net::UdpSocket;
use mio::{Interest, Registry, Token};
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, MultiHeaders, SockaddrStorage, recvmmsg, sendmmsg};

use crate::connection::Desk;
use crate::cpu_budget::{REQUEST, TURN_WORK};
use crate::execute::{Executor, Held, Origin, Outcome};
use crate::shared::{Peer, PeerAddress};
use crate::shown::Shown;
use crate::source::Network;

/// Batches of one socket that are still answered when the server stops.
const BATCHES_AT_END: usize = 8;

/// Datagrams received or sent with one system call.
const BATCH: usize = 32;
/// Room for any datagram: IPv4 and IPv6 have no longer ones (udp(7)).
const RECEIVED_LEN_MAX: usize = 1 << 16;
/// When this many bytes of answers wait, they are sent; also the capacity that is kept for them.
const UNSENT_PAUSE: usize = 256 * 1024;
/// Most requests of a datagram that are executed.
const REQUESTS_MAX: usize = 64;
/// A request that needs a connection: it changes the server, or its answer is long, and the sender's address may be forged.
const NEEDS_CONNECTION: &[u8] = b"SERVER_ERROR not over UDP; use TCP or a Unix socket\r\n";
/// The answer is longer, or takes more work, than one datagram may ask for.
const ANSWER_TOO_LONG: &[u8] = b"SERVER_ERROR the rest is too long for UDP; use TCP or a Unix socket\r\n";

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

/// Datagrams that have arrived.
struct Inbox {
    /// room for [`BATCH`] of them
    bytes: Vec<u8>,
    headers: MultiHeaders<SockaddrStorage>,
    /// length and source of each, in the order of their places in `bytes`
    arrived: Vec<(usize, Option<SockaddrStorage>)>,
    next: usize,
}

/// Datagrams to send, as parallel vectors, which is how the system call takes them.
struct Outbox {
    /// the answers, one after the other
    bytes: Vec<u8>,
    /// header, and place of the payload in `bytes`
    datagrams: Vec<([u8; FRAME_LEN], Range<usize>)>,
    targets: Vec<Option<SockaddrStorage>>,
    headers: MultiHeaders<SockaddrStorage>,
    next: usize,
}

impl Inbox {
    fn new() -> Self {
        Self {
            // The kernel has not allocated the pages of zeroed memory yet: only pages that datagrams fill use memory.
            bytes: vec![0; BATCH * RECEIVED_LEN_MAX],
            headers: MultiHeaders::preallocate(BATCH, None),
            arrived: Vec::with_capacity(BATCH),
            next: 0,
        }
    }

    fn is_empty(&self) -> bool {
        self.next == self.arrived.len()
    }

    /// Receives up to [`BATCH`] datagrams; returns their total length.
    fn fill(&mut self, socket: &UdpSocket) -> Result<usize, Errno> {
        self.arrived.clear();
        self.next = 0;
        let mut rooms = self.bytes.chunks_exact_mut(RECEIVED_LEN_MAX);
        let mut slices: [_; BATCH] = std::array::from_fn(|_| [IoSliceMut::new(rooms.next().unwrap_or_default())]);
        let received = recvmmsg(
            socket.as_raw_fd(),
            &mut self.headers,
            slices.iter_mut(),
            MsgFlags::MSG_DONTWAIT,
            None,
        )?;
        self.arrived.extend(received.map(|message| (message.bytes, message.address)));
        Ok(self.arrived.iter().map(|(len, _)| len).sum())
    }

    /// The place in `bytes` and the source of the next datagram.
    fn take(&mut self) -> Option<(Range<usize>, Option<SockaddrStorage>)> {
        let (len, source) = *self.arrived.get(self.next)?;
        let start = self.next * RECEIVED_LEN_MAX;
        self.next += 1;
        Some((start..start + len, source))
    }
}

impl Outbox {
    fn new() -> Self {
        Self {
            bytes: Vec::with_capacity(UNSENT_PAUSE),
            datagrams: Vec::with_capacity(BATCH),
            targets: Vec::with_capacity(BATCH),
            headers: MultiHeaders::preallocate(BATCH, None),
            next: 0,
        }
    }

    fn is_empty(&self) -> bool {
        self.next == self.datagrams.len()
    }

    fn clear(&mut self) {
        self.next = 0;
        self.datagrams.clear();
        self.targets.clear();
        self.bytes.clear();
        // Releases the memory of an answer of many megabytes.
        self.bytes.shrink_to(2 * UNSENT_PAUSE);
    }

    /// Makes datagrams of the answer in `bytes` from `start` on.
    fn queue(&mut self, id: [u8; 2], start: usize, target: Option<SockaddrStorage>) {
        if self.bytes.len() - start > ANSWER_LEN_MAX {
            self.bytes.truncate(start);
            self.bytes.extend_from_slice(ANSWER_TOO_LONG);
        }
        for (header, place) in datagrams(id, self.bytes.len() - start) {
            self.datagrams.push((header, start + place.start..start + place.end));
            self.targets.push(target);
        }
    }

    /// Sends as many datagrams as the socket takes; returns their total length.
    fn send(&mut self, socket: &UdpSocket, shown: &Peer) -> usize {
        let mut sent_len = 0;
        while !self.is_empty() {
            match self.send_batch(socket) {
                Ok(count) => {
                    let sent = &self.datagrams[self.next..self.next + count];
                    sent_len += sent.iter().map(|(header, place)| header.len() + place.len()).sum::<usize>();
                    self.next += count;
                }
                Err(Errno::EAGAIN) => return sent_len,
                Err(Errno::EINTR) => {}
                Err(error) => {
                    // No route, a firewall, or no memory: this datagram is lost, which UDP allows.
                    log::debug!("{}: sending: {error}", shown.address);
                    self.next += 1;
                }
            }
        }
        self.clear();
        sent_len
    }

    fn send_batch(&mut self, socket: &UdpSocket) -> Result<usize, Errno> {
        let mut waiting = self.datagrams[self.next..].iter();
        let slices: [_; BATCH] = std::array::from_fn(|_| match waiting.next() {
            Some((header, place)) => [IoSlice::new(header), IoSlice::new(&self.bytes[place.clone()])],
            None => [IoSlice::new(&[]), IoSlice::new(&[])],
        });
        let targets = &self.targets[self.next..self.targets.len().min(self.next + BATCH)];
        let sent = sendmmsg(
            socket.as_raw_fd(),
            &mut self.headers,
            slices.iter(),
            targets,
            [],
            MsgFlags::MSG_DONTWAIT,
        )?;
        Ok(sent.count())
    }
}

/// What to do after a request of a datagram.
enum AfterRequest {
    Request,
    End,
    TooLong,
}

/// Whether a payload is an error line, which is an answer and not a request. A server sends an error line to a sender of something
/// wrong. If two servers answered each other's error lines, one forged datagram would start an endless exchange.
fn is_error_line(payload: &[u8]) -> bool {
    [&b"ERROR"[..], b"CLIENT_ERROR", b"SERVER_ERROR"]
        .iter()
        .any(|word| payload.starts_with(word))
}

/// Executes the complete requests in `input` and appends the answers to `out`, within a datagram's bounds. An unfinished request is
/// dropped. Returns how many requests there were.
fn execute_all(executor: &mut Executor, mut input: &[u8], peer: &Peer, out: &mut Vec<u8>) -> usize {
    let start = out.len();
    let room = executor.shared().config.udp_answer_max.saturating_sub(ANSWER_TOO_LONG.len());
    let mut decoder = Decoder::speaking(Limits::default(), executor.shared().config.protocol);
    decoder.allow_items_of(executor.item_size_max());
    let mut requests = 0;
    while !input.is_empty() {
        if requests == REQUESTS_MAX || executor.cpu_budget.is_datagram_over() {
            out.extend_from_slice(ANSWER_TOO_LONG);
            break;
        }
        requests += 1;
        if log::log_enabled!(log::Level::Trace) {
            log::trace!("{} < {}", peer.address, Shown(input));
        }
        let before = out.len();
        let taken_up = executor.take_up();
        let consumed = match decoder.decode(input) {
            Decoded::Incomplete { .. } => {
                executor.counters().udp_dropped.add(1);
                log::debug!("{}: an unfinished request is dropped", peer.address);
                break;
            }
            Decoded::Request { consumed, request } => {
                let origin = origin_of(peer, start, room);
                if let Some(served) = executor.served() {
                    served.note(&request);
                }
                match execute_one(executor, &request, out, &origin, taken_up) {
                    AfterRequest::Request => consumed,
                    AfterRequest::End => break,
                    AfterRequest::TooLong => {
                        out.extend_from_slice(ANSWER_TOO_LONG);
                        break;
                    }
                }
            }
            Decoded::TooLarge { consumed, forget } => {
                executor.too_large(forget.as_ref());
                consumed
            }
            Decoded::Refused { consumed, reply, close } => {
                out.extend_from_slice(reply);
                if close {
                    break;
                }
                consumed
            }
        };
        input = input.get(consumed..).unwrap_or_default();
        executor.cpu_budget.spend(REQUEST);
        executor.cpu_budget.spend_on_bytes(consumed + out.len() - before);
        if out.len() - start > room {
            out.truncate(before);
            out.extend_from_slice(ANSWER_TOO_LONG);
            break;
        }
    }
    requests
}

/// Where a request of a datagram comes from; its answers begin at `start`, and may have `room` bytes.
fn origin_of(peer: &Peer, start: usize, room: usize) -> Origin<'_> {
    Origin {
        peer,
        token: 0,
        sent: start,
        keys_done: 0,
        room,
        is_bounded: true,
        is_line: false,
        may_write: true,
        // No connection: nothing waits, and what a client wins ends by its time.
        held: Held::default(),
        socket: None,
    }
}

/// `taken_up`: a reading of the timer.
fn execute_one(
    executor: &mut Executor,
    request: &Request<'_>,
    out: &mut Vec<u8>,
    origin: &Origin<'_>,
    taken_up: u64,
) -> AfterRequest {
    if !is_for_udp(request) {
        executor.counters().udp_refused_requests.add(1);
        match request {
            Request::Binary(request) => {
                let text = NEEDS_CONNECTION.strip_prefix(b"SERVER_ERROR ").unwrap_or(NEEDS_CONNECTION);
                let text = text.strip_suffix(b"\r\n").unwrap_or(text);
                binary::error_saying(out, request.head, binary::Status::UnknownCommand, text);
            }
            _ => out.extend_from_slice(NEEDS_CONNECTION),
        }
        return AfterRequest::Request;
    }
    match executor.execute(request, out, origin, taken_up).0 {
        Outcome::Done => AfterRequest::Request,
        Outcome::Partly { .. } | Outcome::Hold { .. } => AfterRequest::TooLong,
        Outcome::Broken | Outcome::Close(_) | Outcome::Dump(_) | Outcome::Watch(_) | Outcome::Wait(_) | Outcome::LogIn => {
            AfterRequest::End
        }
    }
}

/// Whether a datagram may contain this request ([`OverUdp`]). A refused packet gets the same answer as over TCP.
fn is_for_udp(request: &Request<'_>) -> bool {
    match request.command().map(|command| command.facts().over_udp) {
        None | Some(OverUdp::Answered) => true,
        Some(OverUdp::AnsweredBare) => matches!(
            request,
            Request::Admin(Admin::Stats { argument: b"" })
                | Request::Binary(binary::Packet {
                    operation: binary::Operation::Stat { argument: b"" },
                    ..
                })
        ),
        Some(OverUdp::Refused) => false,
    }
}
