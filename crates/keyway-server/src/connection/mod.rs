//! One client connection: its state and its buffers; a turn of work on it is in `turn`.
//!
//! A turn reads what has arrived and executes at most `requests_per_turn` requests, and no more than an [`CpuBudget`](crate::cpu_budget) allows.
//! It sends the replies with one write. Between turns an idle connection holds no buffer: turns borrow the worker's, and only unfinished
//! input and unsent output stay, which the server's [`Account`](crate::account) counts.
//!
//! | phase | input | output | next |
//! |---|---|---|---|
//! | `Login` | a login, a few KiB at most | one answer | `Serving` if it is right, `Refused` if not; closed after `LOGIN_TIME` |
//! | `Verifying` | left in the socket | what is there | `Serving` or `Refused`, when the hashed password is verified |
//! | `Refused` | left in the socket | delayed by `REFUSED_FOR`, or a login that waits | `Login`, or `Closing` after the last attempt |
//! | `Serving` | requests | replies | `Dumping`, `Watching`, `Login` by command; `Closing` at the end of input or by command |
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
//! Between requests a plain TCP connection is at rest, and a kernel door may answer for it ([`rest`]).
//!
//! When another server takes over, all connections are brought to a request boundary ([`handed`]) and most of them are handed over.
//!
//! A connection with TLS ([`secure`]) is read by its turns, with either event loop; a ring only watches its socket. Its output is encrypted
//! just before it is sent.

mod desk;
mod handed;
mod intake;
mod login;
mod output;
mod rest;
mod secure;
mod stream;
mod turn;

pub(crate) use desk::Desk;
use rest::Rest;
pub(crate) use secure::Secure;
pub(crate) use stream::Stream;
use turn::Stop;
pub(crate) use turn::{HEAVY_FOR, Verdict};

use std::io;
use std::net::Shutdown;
use std::sync::Arc;
use std::time::Instant;

use keyway_cache::server::Presence;
use keyway_proto::{Decoder, Limits, Protocol};
use keyway_uring::Ring;
use mio::{Interest, Registry, Token};
use socket2::SockRef;

use crate::account::Charge;
use crate::auth::{Pending, Role};
use crate::buffer::Buffer;
use crate::dump::Dump;
use crate::execute::Task;
use crate::port::{Intake, Port};
use crate::rate::Source;
use crate::shared::{Peer, PeerAddress};
use crate::watch;
use crate::watch::Watcher;

/// Unsent bytes above which a connection is not served until its client reads. One reply may go beyond it.
pub(crate) const UNSENT_MAX: usize = 256 << 10;
/// Size of the worker's input buffer that turns borrow, bytes.
pub(crate) const INPUT_SIZE: usize = 64 * 1024;
/// An output buffer larger than this is given back to the allocator after use.
const OUTPUT_KEPT_MAX: usize = 1 << 20;
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
    /// when that request was taken up, by the worker's timer
    taken_up: Option<u64>,
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
    /// another server has taken over: this connection ends at the next request boundary
    draining: bool,
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
    /// goes to the worker's partner as soon as the ring does not use it; it has no turn meanwhile
    pub(crate) is_leaving: bool,
    /// when it gets a turn even without an event
    pub(crate) called_at: Option<Instant>,
    /// short turns that it must have before it counts as one with short turns; a new connection needs one
    heavy: u16,
    /// what `heavy` becomes with a long turn
    heavy_for: u16,
    /// length of the large request at the front of `input`, when there is memory for it
    reserved: usize,
    /// since when it is not read because memory is short
    paused_since: Option<Instant>,
    /// what it may do, if that is not everything
    role: Option<Arc<Role>>,
    /// the program whose line it is, as far as the kernel says who that is; `None`: it is no line
    client: Option<Option<Presence>>,
    /// it has been asked who it is by other means than a password: its certificate, or its user on this machine
    is_identified: bool,
    /// its login waits, or has waited, because too many of its source have failed
    is_delayed: bool,
    /// it has named the mechanism of SASL, without user and password
    has_begun_sasl: bool,
    /// failed logins
    failures: u8,
    /// whose requests its own are counted with, once that has been asked
    source: Option<Source>,
    /// its source is above its rate: it executes nothing before this time
    slowed_until: Option<Instant>,
    /// since when it has to log in
    since: Instant,
    /// the kernel door may serve it, now or later
    rest: Option<Box<Rest>>,
    pub(crate) last_active: Instant,
}

enum Phase {
    Login,
    /// a hashed password is being verified; the login came at this time
    Verifying(Arc<Pending>, Instant),
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

impl Connection {
    pub(crate) fn new(stream: Stream, secure: Option<Secure>, peer: Arc<Peer>, token: usize, login: bool, desk: &Desk) -> Self {
        Self {
            client: matches!(peer.address, PeerAddress::Reader).then(|| Presence::of_peer(&stream).ok()),
            stream,
            secure: secure.map(Box::new),
            charge: Charge::new(Arc::clone(&desk.executor.shared.account), Arc::clone(&peer)),
            peer,
            token,
            // A login without SASL is a line of text, so the requests after it are text too.
            decoder: Decoder::speaking(
                Limits::default(),
                if login && !desk.executor.shared.has_sasl() {
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
            taken_up: None,
            output: Vec::new(),
            sent: 0,
            // A client often sends data right after it connects; a first attempt to read saves a round of the loop.
            readable: true,
            read_closed: false,
            at_end: false,
            stopping: false,
            draining: false,
            wants_write: false,
            port: desk.ring.as_ref().map(|_| Port::default()),
            is_parked: false,
            is_over: false,
            queued: false,
            is_leaving: false,
            called_at: None,
            heavy: 1,
            heavy_for: HEAVY_FOR,
            reserved: 0,
            paused_since: None,
            role: None,
            is_identified: false,
            is_delayed: false,
            has_begun_sasl: false,
            failures: 0,
            source: None,
            slowed_until: None,
            since: desk.now,
            rest: None,
            last_active: desk.now,
        }
    }

    /// Whether its turns were long lately, or it has had none yet.
    pub(crate) fn is_heavy(&self) -> bool {
        self.heavy > 0
    }

    /// Whether another worker can serve it: no other thread has promised its worker an event.
    pub(crate) fn may_move(&self) -> bool {
        !self.is_over && !self.stopping && !self.draining && matches!(self.phase, Phase::Serving | Phase::Dumping(_))
    }

    /// It is served elsewhere from now on, and not closed here: the poll no longer watches it. Otherwise it would go on reporting its events,
    /// because the socket lives on (epoll(7), question 6).
    pub(crate) fn leave(&mut self, registry: &Registry) -> io::Result<()> {
        self.is_leaving = false;
        match self.port {
            Some(_) => Ok(()),
            None => registry.deregister(&mut self.stream),
        }
    }

    /// It is served by another worker from now on, whose token for it is this one.
    pub(crate) fn settle_at(&mut self, token: usize, desk: &Desk, registry: &Registry) -> io::Result<()> {
        let had_ring = self.port.is_some();
        self.port = desk.ring.as_ref().map(|_| Port::default());
        self.token = token;
        self.called_at = None;
        self.is_parked = false;
        self.wants_write = false;
        // Bytes may have come while no worker watched the socket.
        self.readable = true;
        self.register(registry, had_ring)
    }

    /// Has the event loop watch the socket. `is_inherited`: another server, or another worker, may have left it in blocking mode.
    pub(crate) fn register(&mut self, registry: &Registry, is_inherited: bool) -> io::Result<()> {
        if self.port.is_some() {
            // The ring waits only for blocking sockets; the server's own reads ask for no waiting.
            return SockRef::from(&self.stream).set_nonblocking(false);
        }
        if is_inherited {
            SockRef::from(&self.stream).set_nonblocking(true)?;
        }
        registry.register(&mut self.stream, Token(self.token), Interest::READABLE)
    }

    /// The connection is over. Returns true if the ring no longer uses it. Otherwise the receive is cancelled and the socket is shut down, so
    /// that pending operations fail.
    pub(crate) fn end(&mut self, ring: &mut Option<Ring>) -> bool {
        self.is_over = true;
        self.rest = None;
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
        self.disturb();
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
        let sending = self.port.as_ref().map_or(0, |port| port.held);
        let watched = if self.watcher.is_some() { watch::QUEUE_MAX } else { 0 };
        if self.need <= INPUT_SIZE {
            self.reserved = 0;
        }
        let input = self.input.size().max(self.reserved);
        let dumped = match &self.phase {
            Phase::Dumping(dump) => dump.held(),
            _ => 0,
        };
        let secured = self.secure.as_ref().map_or(0, |secure| secure.held());
        self.charge
            .set(input + self.output.capacity() + sending + watched + dumped + secured);
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
