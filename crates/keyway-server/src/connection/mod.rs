//! One client connection: its buffers, and a turn of work on it.
//!
//! A turn reads what has arrived and executes at most `requests_per_turn` requests, and no more than an [`Effort`](crate::effort) allows.
//! It sends the replies with one write. Between turns an idle connection holds no buffer: turns borrow the worker's, and only unfinished
//! input and unsent output stay, which the server's [`Account`](crate::account) counts.
//!
//! | phase | input | output | next |
//! |---|---|---|---|
//! | `Login` | the first `set`, a few KiB at most | one line | `Serving` if it is right, `Refused` if not; closed after `LOGIN_TIME` |
//! | `Refused` | left in the socket | delayed by `REFUSED_FOR` | `Login`, or `Closing` after the last attempt |
//! | `Serving` | requests | replies | `Dumping`, `Watching` by command; `Closing` at the end of input or by command |
//! | `Dumping` | left in the socket | items, as the client takes them | `Serving` |
//! | `Waiting` | left in the socket | what is there | `Serving` when another thread has finished its task |
//! | `Watching` | dropped | log lines | closed at the end of input |
//! | `Closing` | left in the socket | the rest | closed when all is sent |
//!
//! In every phase: while more than [`UNSENT_MAX`] bytes are unsent, nothing is read or executed until the client takes some. When memory
//! for connections is tight, a connection that would need more is not read for a while.
//!
//! With epoll, a turn reads and writes the socket itself. With a ring (`port`), the ring receives bytes and sends replies between
//! turns. Complete requests are executed in the ring's buffer, before the turn, and the rest of the buffer is copied to the input. A turn
//! then reads only large requests, and only while the ring does not receive.
//!
//! A connection with TLS ([`secure`]) is read by its turns, with either event loop; a ring only watches its socket. Its output is encrypted
//! just before it is sent.

mod desk;
mod intake;
mod login;
mod output;
mod secure;
mod stream;

pub(crate) use desk::Desk;
pub(crate) use secure::Secure;
pub(crate) use stream::Stream;

use std::io;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use keyway_proto::{Decoded, Decoder, Limits, Protocol};
use keyway_uring::{Piece, Ring};
use mio::{Interest, Registry, Token};
use socket2::SockRef;

use crate::account::{Charge, PAUSE, PAUSED_MAX, UNSENT_TIGHT};
use crate::buffer::Buffer;
use crate::dump::Dump;
use crate::effort::REQUEST;
use crate::execute::{Executor, Origin, Outcome, Task};
use crate::port::{Intake, Port};
use crate::shared::Peer;
use crate::watch;
use crate::watch::Watcher;

/// Unsent bytes above which a connection is not served until its client reads. One reply may go beyond it.
pub(crate) const UNSENT_MAX: usize = 256 << 10;
/// Unsent bytes above which nothing more is answered before a login.
const LOGIN_UNSENT_MAX: usize = 1024;
/// After a turn that used all that a turn may, this many smaller turns make a connection an ordinary one again.
const HEAVY_FOR: u8 = 16;
/// Size of the worker's input buffer that turns borrow, bytes.
pub(crate) const INPUT_SIZE: usize = 64 * 1024;
/// An output buffer larger than this is given back to the allocator after use.
const OUTPUT_KEPT_MAX: usize = 1 << 20;
/// Reads of one connection in a turn before other connections get theirs, so a large value is read in steps.
const READS_PER_TURN: usize = 8;

/// What the state word of a [`Peer`] means, with the names of `stats conns`.
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
    secure: Option<Box<Secure>>,
    pub(crate) peer: Arc<Peer>,
    charge: Charge,
    /// the worker's token for it
    token: usize,
    decoder: Decoder,
    phase: Phase,
    /// set from the first `watch` on; the worker removes it at the end
    pub(crate) watcher: Option<Arc<Watcher>>,
    input: Buffer,
    /// length of the last request that was larger than the worker's buffer, 0 if there was none lately
    large: usize,
    /// requests since that one
    small_since: u8,
    /// the input is not decoded before it has this many bytes
    need: usize,
    /// keys of the first request in `input` that have been answered already
    keys_done: usize,
    output: Vec<u8>,
    sent: usize,
    /// the socket may hold bytes (readiness is edge-triggered: reported once)
    readable: bool,
    /// the client has closed its side or is closing it: bytes may be left after a short read
    read_closed: bool,
    /// the end of the input has been read
    at_end: bool,
    /// the server is stopping: only what has arrived is answered
    stopping: bool,
    /// registered for writability, because output is left over
    wants_write: bool,
    /// the ring's work for this connection, if the worker has a ring
    port: Option<Port>,
    /// it has been silent for long: the ring only watches its socket, which takes a third of the kernel memory of a receive
    is_parked: bool,
    /// closed; kept only until the ring no longer uses it
    pub(crate) is_over: bool,
    /// in one of the worker's queues
    pub(crate) queued: bool,
    /// when it gets a turn even without an event
    pub(crate) called_at: Option<Instant>,
    /// smaller turns that it must have before it leaves the second queue; a new connection needs one
    heavy: u8,
    /// length of the large request at the front of `input`, when there is memory for it
    reserved: usize,
    /// since when it is not read because memory is short
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
    /// for a task of another thread
    Waiting(Arc<Task>),
    Closing(CloseReason),
}

/// Why a connection ends, with the names of `watch connevents`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CloseReason {
    Normal,
    Error,
    IdleTimeout,
    Shutdown,
    /// it did not log in in time
    LoginTimeout,
    /// it did not finish its TLS handshake in time
    HandshakeTimeout,
    /// closed to make room for another connection that has to log in
    Displaced,
    /// memory for connections was used up, and it held the most
    Memory,
}

/// The result of a turn.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// nothing to do before the next event of the socket
    Wait,
    /// more to do at once, after the other connections
    Again,
    /// more to do at that time
    Later(Instant),
    /// the connection is over
    Close(CloseReason),
}

/// The result of serving the request at the front of some bytes.
enum Served {
    /// it is incomplete until there are this many bytes
    Needs(usize),
    /// it was executed, and had this many bytes
    Done(usize),
    /// this many bytes are consumed, and no more requests are to be executed for now
    Stop(usize, Stop),
}

/// Why decoding stopped.
enum Stop {
    /// the next request is not complete
    NeedBytes,
    /// the turn has used its share
    Budget,
    /// too many bytes are unsent
    Unsent,
    /// the next request has to wait a while; other connections do not
    HeldUp,
    /// the phase has changed
    Phase,
}

impl Connection {
    pub(crate) fn new(
        stream: Stream,
        secure: Option<Secure>,
        peer: Arc<Peer>,
        token: usize,
        limits: Limits,
        login: bool,
        desk: &Desk,
    ) -> Self {
        Self {
            stream,
            secure: secure.map(Box::new),
            charge: Charge::new(Arc::clone(&desk.executor.shared.account), Arc::clone(&peer)),
            peer,
            token,
            // A login is a line of text, so the requests after it are text too.
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
            // A client often sends data right after it connects; a first attempt to read saves a round of the loop.
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

    /// Whether it waits in the second queue: its turns were long lately, or it has had none yet.
    pub(crate) fn is_heavy(&self) -> bool {
        self.heavy > 0
    }

    pub(crate) fn register(&mut self, registry: &Registry) -> io::Result<()> {
        if self.port.is_some() {
            // The ring waits only for blocking sockets; the server's own reads ask for no waiting.
            return SockRef::from(&self.stream).set_nonblocking(false);
        }
        registry.register(&mut self.stream, Token(self.token), Interest::READABLE)
    }

    /// The connection is over. Returns true if the ring no longer uses it. Otherwise the receive is cancelled and the socket is shut down, so
    /// that pending operations fail.
    pub(crate) fn end(&mut self, ring: &mut Option<Ring>) -> bool {
        self.is_over = true;
        let (Some(port), Some(ring)) = (&mut self.port, ring) else {
            return true;
        };
        if port.is_idle() {
            return true;
        }
        // The socket is not connected any more, or the ring has no such operation any more: both are the wanted state.
        let _ = SockRef::from(&self.stream).shutdown(Shutdown::Both);
        let _ = port.let_go(ring, self.token);
        false
    }

    /// Whether the ring no longer uses it.
    pub(crate) fn is_let_go(&self) -> bool {
        self.port.as_ref().is_none_or(Port::is_idle)
    }

    /// The server is stopping; requests that have arrived are still answered.
    pub(crate) fn stop(&mut self) {
        self.stopping = true;
        // The ring's receive ends first.
        self.readable = self.port.as_ref().is_none_or(|port| port.intake == Intake::Off);
    }

    pub(crate) fn is_idle_since(&self, limit: Instant) -> bool {
        self.last_active < limit
            && !self.is_over
            && !matches!(self.phase, Phase::Watching | Phase::Dumping(_) | Phase::Waiting(_))
    }

    /// Reports to the account what is held between turns.
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

    /// Takes the worker's buffers for those that the connection does not have.
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

    /// Returns them, and keeps copies of what is left in them.
    fn give_back(&mut self, desk: &mut Desk) {
        if self.output.len() == self.sent {
            self.clear_output();
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
                    // One step a turn: a dump of millions of items shares the worker with all other connections.
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
                // A client that takes its replies as fast as they are made still ends its turn here, so that others get theirs.
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

    /// Executes requests from received data in place, if no input waits before it; returns how many bytes they were.
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
                    // The turn that follows handles the reason.
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
            // Taken out of `self`: a request borrows from it while its answer goes to the output.
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
            // The connection is queued again, and the request is decoded again.
            Decoded::Request { request, .. } if executor.holds_up(&request) => return Served::Stop(0, Stop::HeldUp),
            Decoded::Request { consumed, request } => {
                // No earlier output is still unsent, so a direct send keeps the order.
                let is_free = self.sent == 0 && self.port.as_ref().is_none_or(|port| port.sending == 0);
                let origin = Origin {
                    peer: &self.peer,
                    token: self.token,
                    sent: self.sent,
                    keys_done: self.keys_done,
                    room: UNSENT_MAX,
                    is_bounded: false,
                    socket: (is_free && self.secure.is_none()).then(|| self.stream.as_fd()),
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

    /// Logs the line of the next request (`-vvv`).
    #[inline]
    fn trace(&self, input: &[u8]) {
        if log::log_enabled!(log::Level::Trace) {
            let line = input.split(|&byte| byte == b'\n').next().unwrap_or_default();
            log::trace!("{} < {}", self.peer.address, line.escape_ascii());
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
            Self::HandshakeTimeout => "handshake_timeout",
            Self::Displaced => "displaced",
            Self::Memory => "memory",
        }
    }
}
