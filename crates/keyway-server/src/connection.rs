//! One client connection: its buffers, and a turn of work on it.
//!
//! A turn reads what has arrived, executes at most `requests_per_turn` requests, and no more than an [`Effort`](crate::effort) allows, and
//! sends the replies with one write. Between turns an idle connection holds no buffer: turns borrow the worker's, and only unfinished input
//! and unsent output stay, which the server's [`Account`](crate::account) counts.
//!
//! | phase | input | output | next |
//! |---|---|---|---|
//! | `Login` | the first `set`, a few KiB at most | one line | `Serving` when admitted; `Refused` when not; closed after [`LOGIN_TIME`] |
//! | `Refused` | left in the socket | held back for [`REFUSED_FOR`] | `Login`, or `Closing` after the last attempt |
//! | `Serving` | requests | replies | `Dumping`, `Watching` by command; `Closing` at the end of input or by command |
//! | `Dumping` | left in the socket | items, as the client takes them | `Serving` |
//! | `Waiting` | left in the socket | what is there | `Serving` when another thread has done what was asked |
//! | `Watching` | thrown away | log lines | closed at the end of input |
//! | `Closing` | left in the socket | the rest | closed when all is sent |
//!
//! In every phase: with more than [`UNSENT_MAX`] bytes unsent, nothing is read or executed until the client takes some; and when memory
//! for connections is tight, a connection that would need more is not read for a while.
//!
//! With epoll, a turn reads and writes the socket itself. With a ring (`port`) bytes are brought, and replies taken away, between
//! turns: whole requests are executed where they were brought to, before the turn, and what is left of them goes to the input. A turn then
//! reads only what is large, and only while the ring receives nothing.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use keyway_proto::{Decoded, Decoder, Limits, Protocol, reply};
use keyway_uring::{Piece, Ring};
use mio::net::{TcpStream, UnixStream};
use mio::{Interest, Registry, Token, event};
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv, send};
use socket2::SockRef;

use crate::account::{Charge, PATIENCE, PAUSE, PAUSED_MAX, SMALL, UNSENT_TIGHT};
use crate::auth::{self, Login};
use crate::buffer::Buffer;
use crate::dump::Dump;
use crate::effort::REQUEST;
use crate::execute::{Executor, Origin, Outcome, Task};
use crate::port::{Intake, Port};
use crate::quiet::Quiet;
use crate::shared::{Peer, PeerAddress};
use crate::watch::{self, Watcher};

/// Unsent bytes above which a connection is not served until its client reads. One reply may go beyond it.
pub(crate) const UNSENT_MAX: usize = 256 << 10;
/// Within so long after its `connect`, a connection has logged in or is closed, whatever it sends.
pub(crate) const LOGIN_TIME: Duration = Duration::from_secs(10);
/// What is taken of a connection's input before it has logged in: any login there is, and what may follow it in a packet.
const LOGIN_INPUT_MAX: usize = auth::LINE_MAX + auth::TOKEN_MAX + 64;
/// Unsent bytes above which nothing more is answered before a login.
const LOGIN_UNSENT_MAX: usize = 1024;
/// The answer to a failed login is held back for so long.
const REFUSED_FOR: Duration = Duration::from_secs(1);
/// Failed logins after which a connection is closed.
const LOGINS_MAX: u8 = 3;
/// After a turn that did all that a turn may, so many smaller ones make a connection an ordinary one again.
const HEAVY_FOR: u8 = 16;
/// Size of the worker's input buffer that turns borrow, bytes.
pub(crate) const INPUT_SIZE: usize = 64 * 1024;
/// An output buffer larger than this is given back to the allocator after use.
const OUTPUT_KEPT_MAX: usize = 1 << 20;
/// Capacity that a vector for the ring to send starts with, bytes.
const SPARE_SIZE: usize = 1024;
/// A reply of this length is sent at once, so that its vector serves the next reply while it is still in the processor's cache.
const SEND_NOW_MIN: usize = 32 * 1024;
/// After so many small requests, a connection is taken for one that sends no large ones any more.
const SMALL_IN_A_ROW: u8 = 16;
/// What the empty input buffers for large requests may take together, bytes.
const LARGE_SUM_MAX: usize = 4 << 20;
/// Reads of one connection in a turn before others get theirs: a large value comes in steps.
const READS_PER_TURN: usize = 8;

/// A client's socket.
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// What the state word of a [`Peer`] says, in `stats conns`' words.
pub(crate) const STATES: [&str; 6] = [
    "conn_read",
    "conn_parse_cmd",
    "conn_mwrite",
    "conn_watch",
    "conn_nread",
    "conn_swallow",
];
const STATE_WAITING: u8 = 0;
const STATE_EXECUTING: u8 = 1;
const STATE_UNSENT: u8 = 2;
const STATE_WATCHING: u8 = 3;
const STATE_IN_VALUE: u8 = 4;
const STATE_DROPPING: u8 = 5;

pub(crate) struct Connection {
    stream: Stream,
    pub(crate) peer: Arc<Peer>,
    charge: Charge,
    /// the worker's number for it
    token: usize,
    decoder: Decoder,
    phase: Phase,
    /// set from the first `watch` on, and the worker's to sign off at the end
    pub(crate) watcher: Option<Arc<Watcher>>,
    input: Buffer,
    /// length of the last request that was larger than the worker's buffer, 0 if there was none lately
    large: usize,
    /// requests since then
    small_since: u8,
    /// the input is not worth decoding before it has this many bytes
    need: usize,
    /// keys of the first request in `input` that have been answered already
    keys_done: usize,
    output: Vec<u8>,
    sent: usize,
    /// the socket may hold bytes (readiness is edge-triggered: it is told once)
    readable: bool,
    /// the other side has closed or is closing: a short read does not mean that nothing is left
    read_closed: bool,
    /// the end of the input has been read
    at_end: bool,
    /// the server is stopping: what has arrived is answered, and no more
    stopping: bool,
    /// registered for writability, because output is left over
    wants_write: bool,
    /// what the worker's ring does for it, if the worker has one
    port: Option<Port>,
    /// it has been silent for long: the ring only watches its socket, which takes a third of the kernel's memory that a receive does
    is_parked: bool,
    /// closed; here only until the ring has let go of it
    pub(crate) is_over: bool,
    /// in the worker's list of connections to serve
    pub(crate) queued: bool,
    /// when it is to have a turn whatever happens
    pub(crate) called_at: Option<Instant>,
    /// smaller turns that it has to have before it is served with the others again; a new connection has one
    heavy: u8,
    /// length of the large request at the front of `input`, when there is memory for it
    reserved: usize,
    /// since when it is not read for want of memory
    paused_since: Option<Instant>,
    /// failed logins
    failures: u8,
    since: Instant,
    pub(crate) last_active: Instant,
}

enum Phase {
    Login,
    Refused {
        until: Instant,
    },
    Serving,
    Dumping(Dump),
    Watching,
    /// for what another thread does
    Waiting(Arc<Task>),
    Closing(CloseReason),
}

/// Why a connection ends, in the words of `watch connevents`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CloseReason {
    Normal,
    Error,
    IdleTimeout,
    Shutdown,
    /// it did not log in in time
    LoginTimeout,
    /// to make room for another one that has to log in
    Displaced,
    /// it held most of the memory for connections, and that was used up
    Memory,
}

/// What a worker lends to a turn.
pub(crate) struct Desk {
    pub(crate) executor: Executor,
    /// an empty buffer of [`INPUT_SIZE`] bytes
    pub(crate) input: Buffer,
    /// empty buffers larger than that
    pub(crate) large: Vec<Buffer>,
    /// an empty vector with capacity
    pub(crate) output: Vec<u8>,
    /// the ring, with the event loop of that name, and empty vectors for the next sends
    pub(crate) ring: Option<Ring>,
    pub(crate) spare: Vec<Vec<u8>>,
    /// nobody else has a turn in this round, as far as is known
    pub(crate) is_alone: bool,
    /// requests that the connection whose turn is next has had executed for it already
    pub(crate) spent: usize,
    /// its turn has begun with them
    pub(crate) is_begun: bool,
    /// time of this round of the event loop
    pub(crate) now: Instant,
    /// the same in seconds after the server's start
    pub(crate) uptime_s: u32,
}

impl Desk {
    /// An empty vector for a connection's output.
    fn spare_output(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_else(|| Vec::with_capacity(SPARE_SIZE))
    }

    /// An empty buffer of at least `size` bytes, if one is left of an earlier request. If those that are there are too small for what is
    /// asked now, they make room for larger ones.
    fn large_input(&mut self, size: usize) -> Option<Buffer> {
        match self.large.iter().rposition(|buffer| buffer.size() >= size) {
            Some(place) => Some(self.large.swap_remove(place)),
            None => {
                self.large.pop();
                None
            }
        }
    }

    /// Takes a buffer that a connection needs no more.
    fn take_input(&mut self, mut buffer: Buffer) {
        buffer.clear();
        if buffer.size() == INPUT_SIZE && self.input.size() == 0 {
            self.input = buffer;
        } else if buffer.size() > INPUT_SIZE
            && self.large.iter().map(Buffer::size).sum::<usize>() + buffer.size() <= LARGE_SUM_MAX
        {
            self.large.push(buffer);
        }
    }
}

/// What a turn ends with.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// nothing to do before the socket has news
    Wait,
    /// more to do at once, after the others
    Again,
    /// more to do then
    Later(Instant),
    /// the connection is over
    Close(CloseReason),
}

/// What came of the request at the front of some bytes.
enum Served {
    /// it is not complete before there are this many
    Needs(usize),
    /// it was executed, and had so many
    Done(usize),
    /// so many are not needed any more, and no more are to be executed for now
    Stop(usize, Stop),
}

/// Why decoding stopped.
enum Stop {
    /// the next request is not complete
    NeedBytes,
    /// the turn's share of requests is used up
    Budget,
    /// too much is unsent
    Unsent,
    /// the next request has to wait a while, and others do not
    HeldUp,
    /// the phase has changed
    Phase,
}

impl Connection {
    pub(crate) fn new(stream: Stream, peer: Arc<Peer>, token: usize, limits: Limits, login: bool, desk: &Desk) -> Self {
        Self {
            stream,
            charge: Charge::new(Arc::clone(&desk.executor.shared.account), Arc::clone(&peer)),
            peer,
            token,
            // A login is a line of text, and what follows it too.
            decoder: Decoder::speaking(
                limits,
                if login {
                    Protocol::Text
                } else {
                    desk.executor.shared.config.protocol
                },
            ),
            phase: if login { Phase::Login } else { Phase::Serving },
            watcher: None,
            input: Buffer::default(),
            large: 0,
            small_since: 0,
            need: 1,
            keys_done: 0,
            output: Vec::new(),
            sent: 0,
            // A client often sends with its connect; trying at once saves a round of the loop.
            readable: true,
            read_closed: false,
            at_end: false,
            stopping: false,
            wants_write: false,
            port: desk.ring.as_ref().map(|_| Port::default()),
            is_parked: false,
            is_over: false,
            queued: false,
            called_at: None,
            heavy: 1,
            reserved: 0,
            paused_since: None,
            failures: 0,
            since: desk.now,
            last_active: desk.now,
        }
    }

    /// Whether it is served behind the others: its turns were long lately, or it has had none yet.
    pub(crate) fn is_heavy(&self) -> bool {
        self.heavy > 0
    }

    /// When it has to have logged in, if it still has to.
    pub(crate) fn login_deadline(&self) -> Option<Instant> {
        matches!(self.phase, Phase::Login | Phase::Refused { .. }).then(|| self.since + LOGIN_TIME)
    }

    pub(crate) fn register(&mut self, registry: &Registry) -> io::Result<()> {
        if self.port.is_some() {
            // The ring waits for sockets that block, and only for those; reads of our own say that they do not want to.
            return SockRef::from(&self.stream).set_nonblocking(false);
        }
        registry.register(&mut self.stream, Token(self.token), Interest::READABLE)
    }

    /// Adjusts what the socket is watched for. Writability is asked for only while output is left over: a Unix socket would
    /// otherwise wake us for every reply that its client takes.
    pub(crate) fn update_interest(&mut self, registry: &Registry, desk: &mut Desk) -> io::Result<()> {
        if let Some(ring) = &mut desk.ring {
            let is_tight = desk.executor.shared.account.is_tight();
            return self.update_intake(ring, is_tight);
        }
        let wants_write = self.unsent() > 0;
        if wants_write != self.wants_write {
            let interest = if wants_write {
                Interest::READABLE | Interest::WRITABLE
            } else {
                Interest::READABLE
            };
            registry.reregister(&mut self.stream, Token(self.token), interest)?;
            self.wants_write = wants_write;
        }
        Ok(())
    }

    /// Takes note of what the event loop was told.
    pub(crate) fn note(&mut self, event: &event::Event) {
        self.readable |= event.is_readable() || event.is_error() || event.is_read_closed();
        self.read_closed |= event.is_read_closed() || event.is_error();
    }

    /// Takes a piece that the ring has received; true if the connection should have a turn.
    pub(crate) fn received(&mut self, desk: &mut Desk, piece: &Piece, last: bool) -> bool {
        let wants_turn = !self.queued && !self.is_heavy() && self.unsent() <= UNSENT_MAX;
        if wants_turn {
            self.peer.state.store(STATE_EXECUTING, Relaxed);
            self.borrow(desk);
            desk.executor.effort.begin();
            desk.is_begun = true;
        }
        let served = if wants_turn { self.serve_piece(desk, piece) } else { 0 };
        if served < piece.len() {
            self.make_room(desk, piece.len() - served);
            if let Some(ring) = &desk.ring {
                self.input.append(&ring.bytes(piece)[served..], self.need);
            }
        }
        desk.executor.counters().bytes_read.add(piece.len() as u64);
        self.is_parked = false;
        self.last_active = desk.now;
        self.peer.last_request_s.store(desk.uptime_s, Relaxed);
        if last {
            self.ended_receiving();
        }
        if !wants_turn {
            self.settle();
        }
        wants_turn
    }

    /// The ring receives nothing any more: at the end of the input (0), because it was told so, or by an error. The socket may
    /// hold bytes.
    pub(crate) fn receive_ended(&mut self, result: i32) -> io::Result<()> {
        self.ended_receiving();
        match result {
            0 => self.at_end = true,
            result if Port::may_go_on(result) => {}
            result => return Err(io::Error::from_raw_os_error(-result)),
        }
        Ok(())
    }

    /// Nothing is under way that reads the socket, so a turn may.
    pub(crate) fn ended_receiving(&mut self) {
        if let Some(port) = &mut self.port {
            port.intake = Intake::Off;
        }
        self.readable = true;
    }

    /// The same for a connection that is over, whose bytes nobody wants.
    pub(crate) fn ended_receiving_if(&mut self, last: bool) {
        if last {
            self.ended_receiving();
        }
    }

    /// The ring has sent all it was given, or failed; true if the connection should have a turn.
    pub(crate) fn sent(&mut self, desk: &Desk, result: i32) -> io::Result<bool> {
        let was_full = self.unsent() > UNSENT_MAX;
        let Some(port) = &mut self.port else { return Ok(false) };
        let sending = std::mem::take(&mut port.sending);
        let count = usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result))?;
        desk.executor.counters().bytes_written.add(count as u64);
        self.last_active = desk.now;
        self.settle();
        if count < sending {
            return Err(io::ErrorKind::WriteZero.into());
        }
        Ok(was_full || self.unsent() > 0 || !self.input.is_empty() || !matches!(self.phase, Phase::Serving))
    }

    /// Whether the ring receives for it although nothing comes, and nothing is under way.
    pub(crate) fn is_receiving(&self) -> bool {
        self.port.as_ref().is_some_and(|port| port.intake == Intake::Receiving)
            && matches!(self.phase, Phase::Serving)
            && self.input.is_empty()
            && self.unsent() == 0
            && !self.is_over
    }

    /// Has its socket watched only, until something comes.
    pub(crate) fn park(&mut self, ring: &mut Ring) -> io::Result<()> {
        self.is_parked = true;
        self.update_intake(ring, false)
    }

    /// Starts or ends the ring's work on what arrives (the table is in `port`).
    fn update_intake(&mut self, ring: &mut Ring, is_tight: bool) -> io::Result<()> {
        let wants_input = !self.at_end
            && !self.stopping
            && self.paused_since.is_none()
            && self.unsent() <= UNSENT_MAX
            && !matches!(
                self.phase,
                Phase::Dumping(_) | Phase::Waiting(_) | Phase::Closing(_) | Phase::Refused { .. }
            );
        let (waiting, fd) = (self.input.len(), self.stream.as_raw_fd());
        // What comes after a long silence is read as what is large: by the turn.
        // So is a login, of which no more is taken than it may have, and all else when memory is tight.
        let is_direct = self.is_parked || is_tight || matches!(self.phase, Phase::Login);
        let least = if is_direct { usize::MAX } else { self.need };
        let missing = least.max(if waiting == 0 { self.large } else { 0 }).saturating_sub(waiting);
        let Some(port) = &mut self.port else { return Ok(()) };
        if port.update(ring, fd, self.token, wants_input, self.readable, missing, waiting)? {
            self.readable = false;
        }
        Ok(())
    }

    /// The connection is over; true if the ring has nothing to do with it any more. Otherwise it is told to let go, and the socket
    /// to fail what is under way.
    pub(crate) fn end(&mut self, ring: &mut Option<Ring>) -> bool {
        self.is_over = true;
        let (Some(port), Some(ring)) = (&mut self.port, ring) else {
            return true;
        };
        if port.is_idle() {
            return true;
        }
        // Not connected any more, or not known to the ring any more: both are what is wanted.
        let _ = SockRef::from(&self.stream).shutdown(Shutdown::Both);
        let _ = port.let_go(ring, self.token);
        false
    }

    /// Whether the ring has nothing to do with it.
    pub(crate) fn is_let_go(&self) -> bool {
        self.port.as_ref().is_none_or(Port::is_idle)
    }

    /// The server is stopping: requests that have arrived are still answered.
    pub(crate) fn stop(&mut self) {
        self.stopping = true;
        // What a ring receives is ended first.
        self.readable = self.port.as_ref().is_none_or(|port| port.intake == Intake::Off);
    }

    pub(crate) fn is_idle_since(&self, limit: Instant) -> bool {
        self.last_active < limit
            && !self.is_over
            && !matches!(self.phase, Phase::Watching | Phase::Dumping(_) | Phase::Waiting(_))
    }

    fn unsent(&self) -> usize {
        self.output.len() - self.sent + self.port.as_ref().map_or(0, |port| port.sending)
    }

    /// Tells the account what is held between turns.
    fn settle(&mut self) {
        let sending = self.port.as_ref().map_or(0, |port| port.sending);
        let watched = if self.watcher.is_some() { watch::QUEUE_MAX } else { 0 };
        if self.need <= INPUT_SIZE {
            self.reserved = 0;
        }
        let input = self.input.size().max(self.reserved);
        let dumped = match &self.phase {
            Phase::Dumping(dump) => dump.held(),
            _ => 0,
        };
        self.charge.set(input + self.output.capacity() + sending + watched + dumped);
    }

    /// One turn of work.
    pub(crate) fn turn(&mut self, desk: &mut Desk) -> Verdict {
        self.borrow(desk);
        if !std::mem::take(&mut desk.is_begun) {
            desk.executor.effort.begin();
        }
        let verdict = match self.work(desk) {
            Ok(verdict) => verdict,
            Err(error) => {
                log::debug!("{}: {error}", self.peer.address);
                Verdict::Close(CloseReason::Error)
            }
        };
        self.give_back(desk);
        self.settle();
        self.heavy = match desk.executor.effort.is_over() || matches!(self.phase, Phase::Dumping(_)) {
            true => HEAVY_FOR,
            false => self.heavy.saturating_sub(1),
        };
        let state = match (&self.phase, self.unsent()) {
            (Phase::Watching, _) => STATE_WATCHING,
            (_, 0) if self.decoder.is_dropping() => STATE_DROPPING,
            (_, 0) if self.decoder.is_in_value(self.input.data()) => STATE_IN_VALUE,
            (_, 0) => STATE_WAITING,
            _ => STATE_UNSENT,
        };
        self.peer.state.store(state, Relaxed);
        verdict
    }

    /// Takes the worker's buffers where the connection has none of its own.
    fn borrow(&mut self, desk: &mut Desk) {
        if self.input.is_empty() && self.input.size() == 0 {
            self.input = match self.large {
                0 => None,
                size => desk.large_input(size),
            }
            .unwrap_or_else(|| std::mem::take(&mut desk.input));
        }
        if self.output.is_empty() {
            std::mem::swap(&mut self.output, &mut desk.output);
            if self.output.capacity() == 0 {
                self.output = desk.spare_output();
            }
        }
    }

    /// Returns them, keeping copies of what is left in them.
    fn give_back(&mut self, desk: &mut Desk) {
        if self.output.len() == self.sent {
            self.output.clear();
            self.sent = 0;
            if desk.output.capacity() == 0 && self.output.capacity() <= OUTPUT_KEPT_MAX {
                std::mem::swap(&mut self.output, &mut desk.output);
            } else {
                self.output = Vec::new();
            }
        }
        self.shed_output(desk);
        if self.input.is_empty() {
            desk.take_input(std::mem::take(&mut self.input));
        } else if desk.input.size() == 0 && self.input.size() == INPUT_SIZE {
            let rest = Buffer::copy_of(self.input.data());
            desk.take_input(std::mem::replace(&mut self.input, rest));
        }
        if desk.input.size() == 0 {
            desk.input = Buffer::with_size(INPUT_SIZE);
        }
    }

    /// Keeps no more room for what is unsent than that takes.
    fn shed_output(&mut self, desk: &mut Desk) {
        if self.output.is_empty() || self.output.capacity() <= 2 * self.output.len() + SPARE_SIZE {
            return;
        }
        let rest = self.output.split_off(std::mem::take(&mut self.sent));
        let mut room = std::mem::replace(&mut self.output, rest);
        room.clear();
        if desk.output.capacity() == 0 && room.capacity() <= OUTPUT_KEPT_MAX {
            desk.output = room;
        }
    }

    fn work(&mut self, desk: &mut Desk) -> io::Result<Verdict> {
        self.peer.state.store(STATE_EXECUTING, Relaxed);
        if let Some(verdict) = self.wait_for_login(desk) {
            return Ok(verdict);
        }
        let unsent_max = match self.phase {
            Phase::Login => LOGIN_UNSENT_MAX,
            _ if desk.executor.shared.account.is_tight() => UNSENT_TIGHT,
            _ => UNSENT_MAX,
        };
        let mut budget = desk.executor.shared.config.requests_per_turn - std::mem::take(&mut desk.spent);
        let mut reads = READS_PER_TURN;
        let mut again = false;
        loop {
            if self.unsent() > unsent_max {
                self.send(desk)?;
                if self.unsent() > unsent_max {
                    return Ok(Verdict::Wait);
                }
            }
            let stop = match &mut self.phase {
                Phase::Closing(_) => break,
                Phase::Login if desk.executor.effort.is_over() => Stop::Budget,
                Phase::Login => self.log_in(desk),
                Phase::Refused { until } => return Ok(Verdict::Later(*until)),
                Phase::Serving => self.serve(&mut desk.executor, &mut budget),
                Phase::Dumping(dump) => {
                    if dump.step(&mut desk.executor, &mut self.output) {
                        self.phase = Phase::Serving;
                    }
                    // One step a turn: a dump of millions shares the worker with everybody else.
                    Stop::Budget
                }
                Phase::Waiting(task) => {
                    let Some(answer) = task.answer() else {
                        self.send(desk)?;
                        return Ok(Verdict::Wait);
                    };
                    self.output.extend_from_slice(answer);
                    self.phase = Phase::Serving;
                    Stop::Phase
                }
                Phase::Watching => {
                    if let Some(watcher) = &self.watcher {
                        watcher.take(&mut self.output);
                    }
                    self.input.clear();
                    Stop::NeedBytes
                }
            };
            match stop {
                // A client that takes its replies as quickly as they are made lets others have their turn.
                Stop::Unsent if self.unsent() <= UNSENT_MAX => {
                    again = true;
                    break;
                }
                Stop::Phase | Stop::Unsent => {}
                Stop::Budget => {
                    if budget == 0 || desk.executor.effort.is_over() {
                        desk.executor.counters().conn_yields.add(1);
                    }
                    again = true;
                    break;
                }
                Stop::HeldUp => {
                    again = true;
                    break;
                }
                Stop::NeedBytes if self.at_end => {
                    let reason = if self.stopping {
                        CloseReason::Shutdown
                    } else {
                        CloseReason::Normal
                    };
                    self.phase = Phase::Closing(reason);
                }
                Stop::NeedBytes if !self.readable => break,
                Stop::NeedBytes if reads == 0 || desk.executor.effort.is_over() => {
                    again = true;
                    break;
                }
                Stop::NeedBytes if self.must_pause(desk) => {
                    self.send(desk)?;
                    if self
                        .paused_since
                        .is_some_and(|since| desk.now.saturating_duration_since(since) >= PAUSED_MAX)
                    {
                        desk.executor.shared.account.closed.fetch_add(1, Relaxed);
                        return Ok(Verdict::Close(CloseReason::Memory));
                    }
                    return Ok(Verdict::Later(desk.now + PAUSE));
                }
                Stop::NeedBytes => {
                    reads -= 1;
                    self.receive(desk)?;
                }
            }
        }
        self.send(desk)?;
        if again && self.unsent() <= UNSENT_MAX {
            return Ok(Verdict::Again);
        }
        match self.phase {
            Phase::Closing(reason) if self.unsent() == 0 => Ok(Verdict::Close(reason)),
            _ => Ok(Verdict::Wait),
        }
    }

    /// Whether it is not to be read, because its request is large and memory is tight. After some time somebody who makes no progress ends.
    fn must_pause(&mut self, desk: &Desk) -> bool {
        if self.need <= INPUT_SIZE || self.reserved >= self.need {
            self.paused_since = None;
            return false;
        }
        let shared = &desk.executor.shared;
        if shared.account.has_room(self.need.saturating_sub(self.input.size())) {
            self.paused_since = None;
            self.reserved = self.need;
            self.settle();
            return false;
        }
        let since = *self.paused_since.get_or_insert_with(|| {
            shared.account.paused.fetch_add(1, Relaxed);
            desk.now
        });
        if desk.now.saturating_duration_since(since) >= PATIENCE {
            shared.relieve();
        }
        // It is not its fault.
        self.peer.last_request_s.store(desk.uptime_s, Relaxed);
        self.peer.held_since_s.store(desk.uptime_s, Relaxed);
        true
    }

    /// Puts a larger buffer in the input's place, if `more` bytes or the rest of the request would not fit.
    fn make_room(&mut self, desk: &mut Desk, more: usize) {
        let need = self.need.max(self.input.len() + more);
        if need <= self.input.size() {
            return;
        }
        let larger = (need > INPUT_SIZE)
            .then(|| desk.large_input(need))
            .flatten()
            .or_else(|| self.input.size_wanted(more, self.need).map(Buffer::with_size));
        if let Some(mut larger) = larger {
            larger.append(self.input.data(), need);
            desk.take_input(std::mem::replace(&mut self.input, larger));
        }
    }

    /// One read.
    fn receive(&mut self, desk: &mut Desk) -> io::Result<()> {
        self.make_room(desk, 1);
        let most = match self.phase {
            Phase::Login => LOGIN_INPUT_MAX.saturating_sub(self.input.len()).max(1),
            _ if self.reserved == 0 && desk.executor.shared.account.is_tight() => {
                SMALL.saturating_sub(self.input.len()).max(1024)
            }
            _ => usize::MAX,
        };
        match self.input.fill(&mut Reader(self.stream.as_raw_fd()), self.need, most) {
            Ok((0, _)) => self.at_end = true,
            Ok((count, filled)) => {
                // Less than the room offered: the socket is empty, and the next bytes make a new event (epoll(7), question 9).
                self.readable = (filled || self.read_closed) && !self.stopping;
                desk.executor.counters().bytes_read.add(count as u64);
                desk.executor.effort.spend_on_bytes(count);
                self.is_parked = false;
                self.last_active = desk.now;
                self.peer.last_request_s.store(desk.uptime_s, Relaxed);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.readable = false,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        // A stopping server answers what is here and takes no more.
        self.at_end |= self.stopping;
        Ok(())
    }

    /// One write of everything unsent, by the ring if there is one.
    fn send(&mut self, desk: &mut Desk) -> io::Result<()> {
        if self.port.is_some() {
            return self.send_by_ring(desk);
        }
        while self.unsent() > 0 {
            match self.stream.write(&self.output[self.sent..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    self.sent += count;
                    desk.executor.counters().bytes_written.add(count as u64);
                    self.last_active = desk.now;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if self.unsent() == 0 {
            self.output.clear();
            self.sent = 0;
        } else if self.sent > UNSENT_MAX {
            // What is sent leaves the buffer now and then, so that a client that always lags does not make it grow.
            self.output.drain(..self.sent);
            self.sent = 0;
        }
        Ok(())
    }

    /// The same by the ring; what is large, and what no other reply of the round would go with, is sent here and now as far as the socket
    /// takes it.
    fn send_by_ring(&mut self, desk: &mut Desk) -> io::Result<()> {
        let (Some(port), Some(ring)) = (&mut self.port, &mut desk.ring) else {
            return Ok(());
        };
        if port.sending > 0 || self.output.is_empty() {
            return Ok(());
        }
        let fd = self.stream.as_raw_fd();
        let mut sent = 0;
        if desk.is_alone || self.output.len() >= SEND_NOW_MIN {
            sent = match send(fd, &self.output, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL) {
                Ok(count) => count,
                Err(Errno::EAGAIN | Errno::EINTR) => 0,
                Err(error) => return Err(error.into()),
            };
            desk.executor.counters().bytes_written.add(sent as u64);
            self.last_active = desk.now;
        }
        if sent == self.output.len() {
            self.output.clear();
            return Ok(());
        }
        port.sending = self.output.len() - sent;
        ring.send(fd, self.token, std::mem::take(&mut self.output), sent)?;
        self.output = desk.spare_output();
        Ok(())
    }

    /// Executes requests from a piece where it lies, if nothing waits before it; how many bytes they were.
    #[inline]
    fn serve_piece(&mut self, desk: &mut Desk, piece: &Piece) -> usize {
        let Desk {
            ring: Some(ring),
            executor,
            spent,
            ..
        } = desk
        else {
            return 0;
        };
        if !self.input.is_empty() || !matches!(self.phase, Phase::Serving) {
            return 0;
        }
        let bytes = ring.bytes(piece);
        let most = executor.shared.config.requests_per_turn;
        let mut served = 0;
        while *spent < most && self.unsent() <= UNSENT_MAX && !executor.effort.is_over() {
            let rest = &bytes[served..];
            if rest.len() < self.need {
                break;
            }
            match self.serve_one(rest, executor) {
                Served::Needs(need) => {
                    self.need = need;
                    break;
                }
                Served::Done(consumed) => served += consumed,
                Served::Stop(consumed, _) => {
                    // What it stopped for, the turn that follows finds.
                    served += consumed;
                    break;
                }
            }
            *spent += 1;
        }
        served
    }

    /// Executes requests from the input.
    fn serve(&mut self, executor: &mut Executor, budget: &mut usize) -> Stop {
        while self.input.len() >= self.need {
            if *budget == 0 || executor.effort.is_over() {
                return Stop::Budget;
            }
            if self.unsent() > UNSENT_MAX {
                return Stop::Unsent;
            }
            // Lent to itself: a request is read from it while its answer goes to the output.
            let mut input = std::mem::take(&mut self.input);
            let served = self.serve_one(input.data(), executor);
            if let Served::Done(consumed) | Served::Stop(consumed, _) = served {
                input.consume(consumed);
            }
            self.input = input;
            match served {
                Served::Needs(need) => {
                    self.need = need;
                    return Stop::NeedBytes;
                }
                Served::Done(_) => *budget -= 1,
                Served::Stop(_, stop) => {
                    *budget -= 1;
                    return stop;
                }
            }
        }
        Stop::NeedBytes
    }

    /// Executes the first request of these bytes.
    #[inline]
    fn serve_one(&mut self, input: &[u8], executor: &mut Executor) -> Served {
        self.trace(input);
        let unsent = self.output.len();
        let (consumed, outcome) = match self.decoder.decode(input) {
            Decoded::Incomplete { need } => return Served::Needs(need),
            // It stands in line again, and is read again.
            Decoded::Request { request, .. } if executor.holds_up(&request) => return Served::Stop(0, Stop::HeldUp),
            Decoded::Request { consumed, request } => {
                // Nothing is on its way that what is sent now would overtake.
                let is_free = self.sent == 0 && self.port.as_ref().is_none_or(|port| port.sending == 0);
                let origin = Origin {
                    peer: &self.peer,
                    token: self.token,
                    sent: self.sent,
                    keys_done: self.keys_done,
                    room: UNSENT_MAX,
                    is_bounded: false,
                    socket: is_free.then(|| self.stream.as_fd()),
                };
                let outcome = executor.execute(&request, &mut self.output, &origin);
                (consumed, outcome)
            }
            Decoded::TooLarge { consumed, forget } => {
                executor.too_large(forget.as_ref());
                (consumed, Outcome::Done)
            }
            Decoded::Refused { consumed, reply, close } => {
                self.output.extend_from_slice(reply);
                let outcome = if close {
                    Outcome::Close(CloseReason::Error)
                } else {
                    Outcome::Done
                };
                (consumed, outcome)
            }
        };
        self.need = 1;
        executor.effort.spend(REQUEST);
        executor
            .effort
            .spend_on_bytes(consumed + self.output.len().saturating_sub(unsent));
        match outcome {
            Outcome::Broken => {
                self.keys_done = 0;
                self.decoder.end_answer();
                Served::Done(consumed)
            }
            Outcome::Done => {
                self.keys_done = 0;
                self.note_length(consumed);
                Served::Done(consumed)
            }
            Outcome::Partly { keys_done } => {
                self.decoder.repeat();
                self.keys_done = keys_done;
                Served::Stop(0, Stop::Unsent)
            }
            Outcome::Close(reason) => {
                self.phase = Phase::Closing(reason);
                Served::Stop(0, Stop::Phase)
            }
            Outcome::Dump(dump) => {
                self.phase = Phase::Dumping(dump);
                Served::Stop(consumed, Stop::Phase)
            }
            Outcome::Wait(task) => {
                self.phase = Phase::Waiting(task);
                Served::Stop(consumed, Stop::Phase)
            }
            Outcome::Watch(watcher) => {
                self.phase = Phase::Watching;
                self.watcher = Some(watcher);
                Served::Stop(consumed, Stop::Phase)
            }
        }
    }

    /// Whoever sends one large request sends more of them.
    #[inline]
    fn note_length(&mut self, len: usize) {
        if len > INPUT_SIZE {
            self.large = len;
            self.small_since = 0;
        } else if self.large > 0 {
            self.small_since += 1;
            if self.small_since == SMALL_IN_A_ROW {
                self.large = 0;
            }
        }
    }

    /// Logs the line of the next request (`-vvv`).
    #[inline]
    fn trace(&self, input: &[u8]) {
        if log::log_enabled!(log::Level::Trace) {
            let line = input.split(|&byte| byte == b'\n').next().unwrap_or_default();
            log::trace!("{} < {}", self.peer.address, line.escape_ascii());
        }
    }

    /// What becomes of a turn for which a connection comes too late, or too early, to log in.
    fn wait_for_login(&mut self, desk: &Desk) -> Option<Verdict> {
        if self.login_deadline()? <= desk.now {
            desk.executor.counters().auth_timeouts.add(1);
            return Some(Verdict::Close(CloseReason::LoginTimeout));
        }
        let Phase::Refused { until } = self.phase else {
            return None;
        };
        if desk.now < until {
            return Some(Verdict::Wait);
        }
        self.phase = match self.failures {
            LOGINS_MAX.. => Phase::Closing(CloseReason::Error),
            _ => Phase::Login,
        };
        None
    }

    /// Waits for the first `set` of an authenticated connection.
    fn log_in(&mut self, desk: &mut Desk) -> Stop {
        let Some(users) = &desk.executor.shared.users else {
            self.phase = Phase::Serving;
            return Stop::Phase;
        };
        let verdict = auth::login(
            &users.read().unwrap_or_else(std::sync::PoisonError::into_inner),
            self.input.data(),
        );
        desk.executor.effort.spend(REQUEST);
        let counters = desk.executor.counters();
        match verdict {
            Login::Incomplete => return Stop::NeedBytes,
            Login::Hopeless => self.phase = Phase::Closing(CloseReason::Error),
            Login::Quit => self.phase = Phase::Closing(CloseReason::Normal),
            Login::Binary { answer } => {
                answer.append_to(&mut self.output);
                self.phase = Phase::Closing(CloseReason::Error);
            }
            Login::Refused {
                consumed,
                reply,
                attempt,
            } => {
                self.input.consume(consumed);
                self.output.extend_from_slice(reply);
                if attempt {
                    counters.auth_cmds.add(1);
                    counters.auth_errors.add(1);
                    if let Some(left_out) = LOGIN_FAILED.may_speak() {
                        log::warn!("{}: a login failed{left_out}", self.peer.address);
                    }
                    self.failures = self.failures.saturating_add(1);
                    self.phase = Phase::Refused {
                        until: desk.now + REFUSED_FOR,
                    };
                }
            }
            Login::Admitted { consumed } => {
                counters.auth_cmds.add(1);
                self.input.consume(consumed);
                self.output.extend_from_slice(reply::STORED);
                self.peer.is_admitted.store(true, Relaxed);
                self.phase = Phase::Serving;
            }
        }
        Stop::Phase
    }
}

static LOGIN_FAILED: Quiet = Quiet::new();

/// Reads a socket without waiting, whatever its mode.
struct Reader(RawFd);

impl Read for Reader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        Ok(recv(self.0, buf, MsgFlags::MSG_DONTWAIT)?)
    }
}

impl Write for Stream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(buf),
            Self::Unix(stream) => stream.write(buf),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
        }
    }
}

impl AsRawFd for Stream {
    fn as_raw_fd(&self) -> RawFd {
        match self {
            Self::Tcp(stream) => stream.as_raw_fd(),
            Self::Unix(stream) => stream.as_raw_fd(),
        }
    }
}

impl event::Source for Stream {
    fn register(&mut self, registry: &Registry, token: Token, interests: Interest) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.register(registry, token, interests),
            Self::Unix(stream) => stream.register(registry, token, interests),
        }
    }

    fn reregister(&mut self, registry: &Registry, token: Token, interests: Interest) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.reregister(registry, token, interests),
            Self::Unix(stream) => stream.reregister(registry, token, interests),
        }
    }

    fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.deregister(registry),
            Self::Unix(stream) => stream.deregister(registry),
        }
    }
}

impl std::fmt::Display for PeerAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp { remote, .. } => write!(f, "tcp:{remote}"),
            Self::Unix | Self::Reader => f.write_str("unix"),
            Self::Udp { remote, local } => write!(f, "udp:{}", remote.unwrap_or(*local)),
        }
    }
}

impl CloseReason {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Normal => "normal",
            Self::Error => "error",
            Self::IdleTimeout => "idle_timeout",
            Self::Shutdown => "shutdown",
            Self::LoginTimeout => "login_timeout",
            Self::Displaced => "displaced",
            Self::Memory => "memory",
        }
    }
}
