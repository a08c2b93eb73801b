//! The connections of a server, as other threads see them: how many there are, where they come from, and what they hold.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use crate::basics::lock;
use crate::rate::Source;

/// A connection as `stats conns` shows it.
pub(crate) struct Peer {
    pub(crate) id: u64,
    pub(crate) fd: RawFd,
    pub(crate) address: PeerAddress,
    /// the worker that serves it
    worker: AtomicUsize,
    /// an [`Activity`]
    activity: AtomicU8,
    /// it need not log in, or has logged in
    pub(crate) is_admitted: AtomicBool,
    /// its worker has been asked to end it
    is_ending: AtomicBool,
    /// memory that it is charged with, bytes; and the second since when it has been charged
    pub(crate) held: AtomicUsize,
    pub(crate) held_since_s: AtomicU32,
    /// seconds after the server's start
    pub(crate) last_request_s: AtomicU32,
}

/// What a connection does, with the names of `stats conns`.
#[derive(Clone, Copy)]
pub(crate) enum Activity {
    Waiting,
    Executing,
    /// output is unsent
    Unsent,
    Watching,
    InValue,
    /// what comes belongs to a request that was refused
    Dropping,
}

const ACTIVITIES: [&str; 6] = [
    "conn_read",
    "conn_parse_cmd",
    "conn_mwrite",
    "conn_watch",
    "conn_nread",
    "conn_swallow",
];

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

/// Where a connection comes from.
#[derive(Clone, Debug)]
pub(crate) enum PeerAddress {
    Tcp {
        remote: SocketAddr,
        local: Option<SocketAddr>,
        /// with TLS
        is_secure: bool,
    },
    Unix,
    /// a process that got the region for reading: it sends its writes here
    Reader,
    /// the sender of a datagram; `None`: the socket itself
    Udp {
        remote: Option<SocketAddr>,
        local: SocketAddr,
    },
}

/// The kinds of connections.
const KINDS: [&str; 4] = ["tcp", "tls", "unix", "reader"];

/// See the top of the file.
#[derive(Default)]
pub(crate) struct Peers {
    all: Mutex<BTreeMap<u64, Arc<Peer>>>,
    /// listening sockets: descriptor and "tcp:address" or "unix:path"
    listening: Mutex<Vec<(RawFd, String)>>,
    /// the UDP sockets of all workers, which memcached counts as connections
    udp_sockets: Mutex<Vec<OwnedFd>>,
    current: AtomicUsize,
    /// of these, by [`PeerAddress::kind`]
    by_kind: [AtomicUsize; KINDS.len()],
    total: AtomicU64,
    rejected: AtomicU64,
    /// times that no connection was accepted, and for how long together
    disabled_count: AtomicU64,
    disabled_us: AtomicU64,
    /// no connection is accepted because there are too many
    paused: AtomicBool,
}

/// Counts of arrivals.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Arrivals {
    pub(crate) total: u64,
    pub(crate) rejected: u64,
    pub(crate) disabled_count: u64,
    pub(crate) disabled_us: u64,
}

impl Arrivals {
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        Self {
            total: self.total.saturating_sub(earlier.total),
            rejected: self.rejected.saturating_sub(earlier.rejected),
            disabled_count: self.disabled_count.saturating_sub(earlier.disabled_count),
            disabled_us: self.disabled_us.saturating_sub(earlier.disabled_us),
        }
    }
}

impl Peers {
    /// Of a server with these UDP sockets.
    pub(crate) fn new(udp_sockets: Vec<OwnedFd>) -> Self {
        Self {
            udp_sockets: Mutex::new(udp_sockets),
            ..Self::default()
        }
    }

    /// Connections now. As in memcached, every UDP socket is one that never ends.
    pub(crate) fn current(&self) -> usize {
        self.streams() + self.udp_sockets().len()
    }

    /// Connections now, without UDP sockets.
    pub(crate) fn streams(&self) -> usize {
        // SeqCst: see `leave`.
        self.current.load(SeqCst)
    }

    /// Connections by kind, those that there are.
    pub(crate) fn kinds(&self) -> impl Iterator<Item = (&'static str, usize)> {
        let numbers = self.by_kind.iter().map(|number| number.load(Relaxed));
        KINDS.into_iter().zip(numbers).filter(|(_, number)| *number > 0)
    }

    pub(crate) fn udp_sockets(&self) -> MutexGuard<'_, Vec<OwnedFd>> {
        lock(&self.udp_sockets)
    }

    pub(crate) fn arrivals(&self) -> Arrivals {
        Arrivals {
            total: self.total.load(Relaxed),
            rejected: self.rejected.load(Relaxed),
            disabled_count: self.disabled_count.load(Relaxed),
            disabled_us: self.disabled_us.load(Relaxed),
        }
    }

    /// A connection begins; `worker` serves it.
    pub(crate) fn enrol(&self, fd: RawFd, address: PeerAddress, worker: usize, is_admitted: bool, uptime_s: u32) -> Arc<Peer> {
        self.current.fetch_add(1, SeqCst);
        if let Some(number) = address.kind().and_then(|kind| self.by_kind.get(kind)) {
            number.fetch_add(1, Relaxed);
        }
        let id = self.next_id();
        let peer = Arc::new(Peer::new(id, fd, address, worker, is_admitted, uptime_s));
        self.show(&peer);
        peer
    }

    /// A connection has ended. Returns whether the accepting thread waits for that.
    pub(crate) fn leave(&self, peer: &Peer) -> bool {
        self.hide(peer);
        if let Some(number) = peer.address.kind().and_then(|kind| self.by_kind.get(kind)) {
            number.fetch_sub(1, Relaxed);
        }
        // SeqCst on both words, here and in `pause`: either this thread sees the pause and wakes the acceptor, or the acceptor sees
        // the lower count after it has announced the pause. With weaker orders both could miss it.
        self.current.fetch_sub(1, SeqCst);
        self.paused.load(SeqCst)
    }

    /// The number of the next connection, or UDP socket.
    pub(crate) fn next_id(&self) -> u64 {
        self.total.fetch_add(1, Relaxed)
    }

    /// `stats conns` shows it from now on.
    pub(crate) fn show(&self, peer: &Arc<Peer>) {
        lock(&self.all).insert(peer.id, Arc::clone(peer));
    }

    /// `stats conns` does not show it any more.
    pub(crate) fn hide(&self, peer: &Peer) {
        lock(&self.all).remove(&peer.id);
    }

    /// At most `count` of them, from this number on.
    pub(crate) fn page(&self, from: u64, count: usize) -> Vec<Arc<Peer>> {
        let all = lock(&self.all);
        all.range(from..).take(count).map(|(_, peer)| Arc::clone(peer)).collect()
    }

    /// Those that hold memory.
    pub(crate) fn holders(&self) -> Vec<Arc<Peer>> {
        let all = lock(&self.all);
        let holders = all.values().filter(|peer| peer.held.load(Relaxed) > 0);
        holders.map(Arc::clone).collect()
    }

    /// The one that has taken longest to log in or to finish its TLS handshake: it is about to be ended.
    pub(crate) fn end_unadmitted(&self) -> Option<Arc<Peer>> {
        let all = lock(&self.all);
        let mut late = all.values().filter(|peer| !peer.is_admitted.load(Relaxed));
        late.find(|peer| peer.begin_end()).cloned()
    }

    /// A connection is refused.
    pub(crate) fn reject(&self) {
        self.rejected.fetch_add(1, Relaxed);
    }

    /// No connection is accepted from now on, if there are at least this many; returns whether that is so. It was announced before they were
    /// counted, so the end of one of them wakes the acceptor.
    pub(crate) fn pause(&self, at_least: usize) -> bool {
        self.paused.store(true, SeqCst);
        let pauses = self.streams() >= at_least;
        match pauses {
            true => _ = self.disabled_count.fetch_add(1, Relaxed),
            false => self.paused.store(false, SeqCst),
        }
        pauses
    }

    /// Connections are accepted again, after this time.
    pub(crate) fn resume(&self, after: Duration) {
        self.paused.store(false, SeqCst);
        let us = u64::try_from(after.as_micros()).unwrap_or(u64::MAX);
        self.disabled_us.fetch_add(us, Relaxed);
    }

    /// Whether connections are accepted, as far as their number allows.
    pub(crate) fn is_accepting(&self) -> bool {
        !self.paused.load(SeqCst)
    }

    /// This socket listens.
    pub(crate) fn listens(&self, fd: RawFd, name: String) {
        lock(&self.listening).push((fd, name));
    }

    /// No socket listens any more, and the workers alone have those for datagrams.
    pub(crate) fn listens_no_more(&self) {
        lock(&self.listening).clear();
        self.udp_sockets().clear();
    }

    /// The listening sockets.
    pub(crate) fn listening(&self) -> Vec<(RawFd, String)> {
        lock(&self.listening).clone()
    }
}

impl Peer {
    /// The record of a new connection, which `worker` serves.
    pub(crate) fn new(id: u64, fd: RawFd, address: PeerAddress, worker: usize, is_admitted: bool, uptime_s: u32) -> Self {
        Self {
            id,
            fd,
            address,
            worker: AtomicUsize::new(worker),
            activity: AtomicU8::new(Activity::Waiting as u8),
            is_admitted: AtomicBool::new(is_admitted),
            is_ending: AtomicBool::new(false),
            held: AtomicUsize::new(0),
            held_since_s: AtomicU32::new(0),
            last_request_s: AtomicU32::new(uptime_s),
        }
    }

    /// It does this now.
    pub(crate) fn shows(&self, activity: Activity) {
        self.activity.store(activity as u8, Relaxed);
    }

    /// What it does, as a word of `stats conns`.
    pub(crate) fn activity(&self) -> &'static str {
        let activity = usize::from(self.activity.load(Relaxed));
        ACTIVITIES.get(activity).copied().unwrap_or_default()
    }

    /// The worker that serves it.
    pub(crate) fn worker(&self) -> usize {
        self.worker.load(SeqCst)
    }

    /// Another worker serves it from now on.
    pub(crate) fn moved_to(&self, worker: usize) {
        self.worker.store(worker, SeqCst);
    }

    /// Its worker is to end it; returns `false` if that has been asked for before.
    pub(super) fn begin_end(&self) -> bool {
        !self.is_ending.swap(true, SeqCst)
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

impl PeerAddress {
    /// The kind of the connection, as an index into [`KINDS`]; `None`: a UDP socket.
    fn kind(&self) -> Option<usize> {
        match self {
            Self::Tcp { is_secure: false, .. } => Some(0),
            Self::Tcp { is_secure: true, .. } => Some(1),
            Self::Unix => Some(2),
            Self::Reader => Some(3),
            Self::Udp { .. } => None,
        }
    }

    /// Whose requests are counted with those from here; `user` is the user of this machine at a Unix socket.
    pub(crate) fn source(&self, user: impl FnOnce() -> Option<u32>) -> Source {
        match self {
            Self::Tcp { remote, .. }
            | Self::Udp {
                remote: Some(remote), ..
            } => Source::at(remote.ip()),
            Self::Unix | Self::Reader => user().map_or(Source::Unknown, Source::User),
            Self::Udp { remote: None, .. } => Source::Unknown,
        }
    }

    /// Whether what the client sends cannot be read on a network.
    pub(crate) fn is_protected(&self) -> bool {
        match self {
            Self::Tcp { remote, is_secure, .. } => *is_secure || remote.ip().to_canonical().is_loopback(),
            Self::Unix | Self::Reader => true,
            Self::Udp { .. } => false,
        }
    }
}
