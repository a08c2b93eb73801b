//! What a server's threads share: settings, counters, mailboxes, and the list of connections for `stats conns`.
//!
//! Everything here is off the hot path, or a counter with a single writer; requests of different threads meet only in the region.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use keyway_cache::Info;

use crate::account::Account;
use crate::auth::{Hasher, Users};
use crate::census::Census;
use crate::config::{Config, EventLoop, Sasl};
use crate::connection::{CloseReason, Connection, Stream};
use crate::detail::Detail;
use crate::hotkeys;
use crate::hour::Hour;
use crate::kernel::Post;
use crate::log_limiter::LogLimiter;
use crate::rate::{Rates, Source};
use crate::size_text;
use crate::stats::{Since, Traffic, WorkerCounters};
use crate::takeover::{Halt, Inherited};
use crate::tls::Certificates;
use crate::watch::Hub;

static CLOSED_FOR_MEMORY: LogLimiter = LogLimiter::new();

/// A message to a worker, about its connections.
pub(crate) enum Message {
    /// serve this new connection
    Adopt(Stream, Arc<Peer>),
    /// serve this connection of the partner's from now on
    Move(Box<Connection>),
    /// this connection has something to send
    Turn(usize),
    /// end this connection
    End(Arc<Peer>, CloseReason),
    /// serve this connection, which another server has handed over
    Inherit(Box<Inherited>, Arc<Peer>),
    /// answer this round of `vitals`
    Answer(u64),
}

/// Which connections a worker serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// those whose turns are short
    Short,
    /// those whose turns are long, new ones, and datagrams
    Long,
}

/// A worker as the other threads see it: they leave messages here, and read its counters.
pub(crate) struct Mailbox {
    inbox: Mutex<Inbox>,
    waker: mio::Waker,
    pub(crate) counters: WorkerCounters,
    /// the last round of `vitals` that the worker has answered
    answered: AtomicU64,
}

#[derive(Default)]
struct Inbox {
    messages: Vec<Message>,
    /// the worker has ended or halted: it takes no connections from its partner
    is_closed: bool,
}

/// A connection as `stats conns` shows it.
pub(crate) struct Peer {
    pub(crate) id: u64,
    pub(crate) fd: RawFd,
    pub(crate) address: PeerAddress,
    /// the worker that serves it
    worker: AtomicUsize,
    pub(crate) state: AtomicU8,
    /// it need not log in, or has logged in
    pub(crate) is_admitted: AtomicBool,
    /// its worker has been asked to end it
    pub(crate) is_ending: AtomicBool,
    /// memory that it is charged with, bytes; and the second since when it has been charged
    pub(crate) held: AtomicUsize,
    pub(crate) held_since_s: AtomicU32,
    /// seconds after the server's start
    pub(crate) last_request_s: AtomicU32,
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

/// Counters of the accepting thread, and the number of connections.
#[derive(Default)]
pub(crate) struct Arrivals {
    pub(crate) current: AtomicUsize,
    /// of these, by [`PeerAddress::kind`]
    pub(crate) by_kind: [AtomicUsize; KINDS.len()],
    pub(crate) total: AtomicU64,
    pub(crate) rejected: AtomicU64,
    pub(crate) disabled_count: AtomicU64,
    pub(crate) disabled_us: AtomicU64,
    /// no connection is accepted because there are too many
    pub(crate) paused: AtomicBool,
}

/// The kernel door's numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct KernelNumbers {
    /// packets by what the program did with them
    pub(crate) verdicts: Vec<(&'static str, u64)>,
    /// copies held; copies made; copies made again after changes
    pub(crate) copies: u64,
    pub(crate) copied: u64,
    pub(crate) renewed: u64,
    /// stripes of dead writers that the program can serve again
    pub(crate) mended: u64,
    /// interfaces that the program is on; how many times it was attached again
    pub(crate) interfaces: u64,
    pub(crate) reattached: u64,
    /// CPU time of the programs, by protocol, estimated from one run in 256
    pub(crate) cpu_time: Vec<(&'static str, Duration)>,
    /// TCP connections that the program may answer; `None`: it was loaded without TCP
    pub(crate) enrolled: Option<EnrolledNumbers>,
}

/// How many TCP connections the kernel door may answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct EnrolledNumbers {
    /// since the start; now
    pub(crate) total: u64,
    pub(crate) current: u64,
    /// those that could not be enrolled
    pub(crate) failures: u64,
}

/// The kinds of connections.
pub(crate) const KINDS: [&str; 4] = ["tcp", "tls", "unix", "reader"];

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

impl KernelNumbers {
    /// Answers of the program: datagrams, and keys of requests on TCP.
    pub(crate) fn hits(&self) -> u64 {
        self.hits_by_protocol().iter().sum()
    }

    /// The same of UDP, and of TCP.
    pub(crate) fn hits_by_protocol(&self) -> [u64; 2] {
        ["hits", "tcp_hits"].map(|name| {
            let hits = self.verdicts.iter().find(|(word, _)| *word == name);
            hits.map_or(0, |(_, count)| *count)
        })
    }
}

pub(crate) struct Shared {
    pub(crate) config: Config,
    /// the largest item that the region allowed when a worker last looked ([`Self::allows_items_of`])
    pub(crate) item_size_max: AtomicUsize,
    /// the state of the region's place, as [`crate::file_watch::code`]
    pub(crate) at_place: AtomicU8,
    /// what was counted in the last hour
    pub(crate) hour: Mutex<Hour>,
    /// held by the thread that changes the region's memory limit
    pub(crate) raising: Mutex<()>,
    /// the thread that brings the region within its limit
    pub(crate) shrinker: Mutex<Option<std::thread::JoinHandle<()>>>,
    /// memory limit that was set last, bytes: at the start, or by `cache_memlimit`
    pub(crate) memory: AtomicU64,
    pub(crate) started: Instant,
    pub(crate) arrivals: Arrivals,
    pub(crate) mailboxes: Vec<Mailbox>,
    /// from when on `stats` counts
    pub(crate) since: Since,
    pub(crate) hot: hotkeys::Earlier,
    pub(crate) peers: Mutex<BTreeMap<u64, Arc<Peer>>>,
    /// listening sockets: descriptor and "tcp:address" or "unix:path"
    pub(crate) listening: Mutex<Vec<(RawFd, String)>>,
    pub(crate) udp_addresses: Vec<SocketAddr>,
    /// inodes of the UDP sockets of all workers, which memcached counts as connections
    pub(crate) udp_sockets: BTreeSet<u64>,
    /// the event loop that the workers use
    pub(crate) event_loop: EventLoop,
    /// the kernel door
    pub(crate) kernel: Option<Arc<Post>>,
    pub(crate) account: Arc<Account>,
    pub(crate) watch: Hub,
    pub(crate) detail: Detail,
    /// how many requests each source may make
    pub(crate) rates: Option<Rates>,
    pub(crate) users: Option<RwLock<Users>>,
    /// how many logins of each source have failed
    pub(crate) login_failures: Rates,
    /// verifies hashed passwords
    pub(crate) hasher: Hasher,
    /// for connections with TLS
    pub(crate) certificates: Option<Certificates>,
    pub(crate) verbosity: AtomicU8,
    pub(crate) stopping: AtomicBool,
    /// how the threads halt while another server takes over
    pub(crate) halt: Halt,
    /// the process that has taken over; 0: none has
    pub(crate) taken_over_by: AtomicU32,
    /// a worker has panicked
    pub(crate) broken: AtomicBool,
    pub(crate) workers_running: AtomicUsize,
    pub(crate) acceptor: mio::Waker,
    /// whose commands the region's counters count
    pub(crate) census: Census,
    /// ends the HTTP port, if there is one
    pub(crate) http: keyway_http::Stopper,
}

impl Mailbox {
    pub(crate) fn new(waker: mio::Waker) -> Self {
        Self {
            inbox: Mutex::default(),
            waker,
            counters: WorkerCounters::default(),
            answered: AtomicU64::new(0),
        }
    }

    /// Answers a round; called by its worker.
    pub(crate) fn answer(&self, round: u64) {
        self.answered.store(round, Relaxed);
    }

    /// The last round that its worker has answered.
    pub(crate) fn answered(&self) -> u64 {
        self.answered.load(Relaxed)
    }

    pub(crate) fn send(&self, message: Message) {
        lock(&self.inbox).messages.push(message);
        self.wake();
    }

    /// Swaps the waiting messages with `empty`.
    pub(crate) fn receive(&self, empty: &mut Vec<Message>) {
        std::mem::swap(&mut lock(&self.inbox).messages, empty);
    }

    /// The worker ends or halts, unless messages wait: returns false then.
    pub(crate) fn close(&self) -> bool {
        let mut inbox = lock(&self.inbox);
        inbox.is_closed = inbox.messages.is_empty();
        inbox.is_closed
    }

    /// The worker that had halted continues.
    pub(crate) fn open(&self) {
        lock(&self.inbox).is_closed = false;
    }

    fn wake(&self) {
        if let Err(error) = self.waker.wake() {
            log::error!("cannot wake a worker: {error}");
        }
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
            state: AtomicU8::new(0),
            is_admitted: AtomicBool::new(is_admitted),
            is_ending: AtomicBool::new(false),
            held: AtomicUsize::new(0),
            held_since_s: AtomicU32::new(0),
            last_request_s: AtomicU32::new(uptime_s),
        }
    }

    /// The worker that serves it.
    pub(crate) fn worker(&self) -> usize {
        self.worker.load(SeqCst)
    }
}

impl Shared {
    /// Whether clients of the binary protocol log in by SASL.
    pub(crate) fn has_sasl(&self) -> bool {
        self.users.is_some() && self.config.sasl != Sasl::Off
    }

    /// Reads the files of TLS again; if that fails, the old certificate stays in force. `None`: there is no TLS.
    pub(crate) fn refresh_certificates(&self, asked_by: &str) -> Option<bool> {
        let certificates = self.certificates.as_ref()?;
        let file = certificates.settings().certificate.display();
        match certificates.refresh() {
            Ok(()) => log::info!(
                "{asked_by}: read {file} again; it is valid for {} more days",
                certificates.days_left()
            ),
            Err(ref error) => {
                log::error!("{asked_by}: TLS: {error}; the old certificate stays in force");
                return Some(false);
            }
        }
        Some(true)
    }

    /// The region allows items of this size, perhaps since another server of it was started.
    #[inline]
    pub(crate) fn allows_items_of(&self, size: usize) {
        if self.item_size_max.load(Relaxed) != size {
            self.item_size_max.store(size, Relaxed);
            self.account.set_limit(self.config.connection_memory_limit(size));
        }
    }

    /// Most that one connection can hold, bytes.
    pub(crate) fn each_held_max(&self) -> usize {
        crate::account::each_held_max(self.item_size_max.load(Relaxed)).min(self.account.limit())
    }

    /// Ends connections to free memory: first those that make no progress, and of these the ones that hold most, until the total is within
    /// the limit. If it is within the limit, ends one that makes no progress, unless one was ended for that a moment ago.
    pub(crate) fn relieve(&self) {
        let mut excess = self.account.used().saturating_sub(self.account.limit());
        let must = excess > 0;
        if !must && !self.account.may_close() {
            return;
        }
        let mut holders: Vec<_> = lock(&self.peers)
            .values()
            .filter(|peer| peer.held.load(Relaxed) > 0)
            .map(|peer| (self.account.is_stalled(peer), peer.held.load(Relaxed), Arc::clone(peer)))
            .filter(|(is_stalled, ..)| must || *is_stalled)
            .collect();
        holders.sort_unstable_by_key(|(is_stalled, held, _)| std::cmp::Reverse((*is_stalled, *held)));
        for (_, held, peer) in holders {
            if !peer.is_ending.swap(true, SeqCst) {
                self.end_for_memory(&peer, held);
            }
            // A connection that is ending already counts as freed.
            excess = excess.saturating_sub(held);
            if excess == 0 {
                return;
            }
        }
    }

    fn end_for_memory(&self, peer: &Arc<Peer>, held: usize) {
        self.account.closed.fetch_add(1, Relaxed);
        if let Some(left_out) = CLOSED_FOR_MEMORY.may_speak() {
            log::warn!(
                "{} holds {} of the {} that connections hold (limit {}: --connection-memory) and is closed{left_out}",
                peer.address,
                size_text(held as u64),
                size_text(self.account.used() as u64),
                size_text(self.account.limit() as u64),
            );
        }
        self.end(peer, CloseReason::Memory);
    }

    /// Asks the worker that serves it to end a connection.
    pub(crate) fn end(&self, peer: &Arc<Peer>, reason: CloseReason) {
        self.mailboxes[peer.worker()].send(Message::End(Arc::clone(peer), reason));
    }

    /// Which connections this worker serves: the first `threads` workers serve those with short turns, as many others those with long ones.
    pub(crate) fn lane(&self, worker: usize) -> Lane {
        match worker < self.config.threads {
            true => Lane::Short,
            false => Lane::Long,
        }
    }

    /// The worker of this pair that new connections begin at.
    pub(crate) fn worker_for_new(&self, pair: usize) -> usize {
        pair + self.config.threads
    }

    /// Gives a connection to the partner of the worker that serves it: the worker of the other lane with which it exchanges connections. If
    /// the partner has ended or halted, returns the connection.
    pub(crate) fn give_to_partner(&self, connection: Box<Connection>) -> Result<(), Box<Connection>> {
        let peer = Arc::clone(&connection.peer);
        let partner = (peer.worker() + self.config.threads) % self.mailboxes.len();
        let mailbox = &self.mailboxes[partner];
        let mut inbox = lock(&mailbox.inbox);
        if inbox.is_closed {
            return Err(connection);
        }
        inbox.messages.push(Message::Move(connection));
        // Before the lock is released, so that a message about this connection comes after it.
        peer.worker.store(partner, SeqCst);
        drop(inbox);
        mailbox.wake();
        Ok(())
    }

    /// Seconds since the start.
    pub(crate) fn uptime_s(&self) -> u32 {
        self.started.elapsed().as_secs().try_into().unwrap_or(u32::MAX)
    }

    /// Seconds from the start to `now`.
    pub(crate) fn uptime_s_at(&self, now: Instant) -> u32 {
        now.saturating_duration_since(self.started)
            .as_secs()
            .try_into()
            .unwrap_or(u32::MAX)
    }

    /// Connections now. As in memcached, every UDP socket is one that never ends.
    pub(crate) fn connections(&self) -> usize {
        self.arrivals.current.load(Relaxed) + self.udp_sockets.len()
    }

    pub(crate) fn traffic(&self) -> Traffic {
        Traffic::sum(self.mailboxes.iter().map(|mailbox| &mailbox.counters))
    }

    /// The region's memory limit, bytes: the configured number, if the region was made for it. The region uses only whole segments of
    /// that, and tools compare this number with what they configured.
    pub(crate) fn memory_limit(&self, info: &Info) -> u64 {
        let asked = self.memory.load(Relaxed);
        match asked.checked_sub(info.limit_bytes) {
            Some(rest) if rest < 2 * info.segment_bytes => asked,
            _ => info.limit_bytes,
        }
    }

    /// Records that the region's limit has been set to this much.
    pub(crate) fn memory_set(&self, memory: u64) {
        self.memory.store(memory, Relaxed);
    }

    /// Starts a graceful shutdown; has no effect if one has started.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, SeqCst);
        self.wake_acceptor();
        self.http.stop();
        self.hasher.stop();
        self.wake_workers();
    }

    /// Another server has the role now: stops without closing what that one has.
    pub(crate) fn give_up_role(&self, process: u32) {
        self.taken_over_by.store(process, SeqCst);
        self.stop();
    }

    /// The process that has taken over.
    pub(crate) fn taken_over_by(&self) -> Option<u32> {
        Some(self.taken_over_by.load(SeqCst)).filter(|&process| process != 0)
    }

    pub(crate) fn wake_workers(&self) {
        self.mailboxes.iter().for_each(Mailbox::wake);
        if let Some(post) = &self.kernel {
            post.wake();
        }
    }

    pub(crate) fn is_stopping(&self) -> bool {
        // SeqCst: off the hot path, and the store is followed by a wake-up, which orders it anyway.
        self.stopping.load(SeqCst)
    }

    pub(crate) fn wake_acceptor(&self) {
        if let Err(error) = self.acceptor.wake() {
            log::error!("cannot wake the accepting thread: {error}");
        }
    }

    /// Records that a connection begins.
    pub(crate) fn connection_opened(&self, address: &PeerAddress) {
        self.arrivals.current.fetch_add(1, SeqCst);
        if let Some(number) = address.kind().and_then(|kind| self.arrivals.by_kind.get(kind)) {
            number.fetch_add(1, Relaxed);
        }
    }

    /// Records that a connection has ended.
    pub(crate) fn connection_closed(&self, peer: &Peer) {
        lock(&self.peers).remove(&peer.id);
        if let Some(number) = peer.address.kind().and_then(|kind| self.arrivals.by_kind.get(kind)) {
            number.fetch_sub(1, Relaxed);
        }
        // SeqCst on both words, here and in `Acceptor::pause`: either this thread sees the pause and wakes the acceptor, or the acceptor sees
        // the lower count after it has announced the pause. With weaker orders both could miss it.
        self.arrivals.current.fetch_sub(1, SeqCst);
        if self.arrivals.paused.load(SeqCst) {
            self.wake_acceptor();
        }
    }
}

/// A panic leaves nothing here half done, so a poisoned lock is used like any other.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The Unix clock.
pub(crate) fn unix_time() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
