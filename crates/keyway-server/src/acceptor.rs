//! The accepting thread. It takes connections, enforces the limit, gives them round-robin to the workers, turns signals into a
//! shutdown, and checks once a second whether the region is still at its place.
//!
//! | state | accepts | leaves when |
//! |---|---|---|
//! | open | yes | the limit is reached, or the process has no descriptor left |
//! | full | no | a connection closes (`connections_fast`: never entered; connections above the limit get an error and are closed) |
//! | starved | no | a connection closes, or [`RETRY`] has passed |
//! | stopping | sockets closed | all workers have ended |
//! | halted | no | another server has taken over (then as stopping), or has not |

use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use keyway_cache::Cache;
use mio::net::UnixStream;
use mio::{Events, Interest, Poll, Token};
use signal_hook::consts::SIGHUP;
use signal_hook_mio::v1_0::Signals;

use crate::auth::Users;
use crate::connection::{Inherited, Stream};
use crate::file_watch::FileWatch;
use crate::given::Offered;
use crate::listener::{Arrival, Listener, SocketFile};
use crate::log_limiter::LogLimiter;
use crate::shared::{CloseReason, Peer, PeerAddress, Shared};
use crate::takeover::{Halt, HaltVerdict, Stage};
use crate::watchdog::{Manager, Watchdog};
use crate::worker::{Transfer, Transfers};
use crate::{handout, takeover};

pub(crate) const WAKE: Token = Token(0);
const SIGNALS: Token = Token(1);
const LISTENER_FIRST: usize = 2;

/// How long to wait after the process ran out of descriptors or memory.
const RETRY: Duration = Duration::from_millis(100);
/// Connections taken from one listener before the others, and signals, get their turn.
const ACCEPTS_PER_TURN: usize = 64;
/// What a connection above the limit is sent (memcached's words).
const TOO_MANY: &[u8] = b"ERROR Too many open connections\r\n";

static FULL: LogLimiter = LogLimiter::new();
static STARVED: LogLimiter = LogLimiter::new();

pub(crate) struct Acceptor {
    poll: Poll,
    cache: Cache,
    shared: Arc<Shared>,
    transfers: Arc<Transfers>,
    halt: Arc<Halt>,
    listeners: Vec<Listening>,
    signals: Option<Signals>,
    file_watch: FileWatch,
    watchdog: Option<Watchdog>,
    pause: Pause,
    /// a failure to accept has been logged, and no attempt has succeeded since
    complained: bool,
    /// connections so far
    accepted: usize,
    /// what another server gets that takes over
    offered: Arc<Vec<Offered>>,
    /// the thread that talks to such a server
    giving: Option<JoinHandle<()>>,
}

/// A listener, and whether connections may be waiting there (readiness is edge-triggered: reported once).
struct Listening {
    listener: Listener,
    ready: bool,
}

/// Why no connection is accepted, and since when.
enum Pause {
    No,
    Full {
        since: Instant,
    },
    /// `open` connections were open at that time
    Starved {
        since: Instant,
        open: usize,
    },
}

/// The result of an attempt to accept.
enum Accepted {
    One,
    NothingWaits,
    Paused,
}

impl Acceptor {
    pub(crate) fn new(
        poll: Poll,
        cache: Cache,
        shared: Arc<Shared>,
        (transfers, halt): (Arc<Transfers>, Arc<Halt>),
        listeners: Vec<Listener>,
        offered: Vec<Offered>,
        signals: Option<Signals>,
    ) -> io::Result<Self> {
        let mut waiting = Vec::new();
        for (index, mut listener) in listeners.into_iter().enumerate() {
            poll.registry()
                .register(listener.as_source(), Token(LISTENER_FIRST + index), Interest::READABLE)?;
            if let Some(name) = listener.name() {
                shared.peers.listens(listener.fd(), name);
            }
            waiting.push(Listening { listener, ready: true });
        }
        let mut acceptor = Self {
            poll,
            cache,
            file_watch: FileWatch::new(&shared.region_file),
            watchdog: None,
            shared,
            transfers,
            halt,
            listeners: waiting,
            signals,
            pause: Pause::No,
            complained: false,
            accepted: 0,
            offered: Arc::new(offered),
            giving: None,
        };
        if let Some(signals) = &mut acceptor.signals {
            acceptor.poll.registry().register(signals, SIGNALS, Interest::READABLE)?;
        }
        Ok(acceptor)
    }

    /// The files of its Unix sockets.
    pub(crate) fn socket_files(&self) -> impl Iterator<Item = &SocketFile> {
        self.listeners.iter().filter_map(|waiting| waiting.listener.file())
    }

    /// Runs until a shutdown has been asked for and all workers have ended.
    pub(crate) fn run(mut self, manager: Option<Box<dyn Manager>>) -> io::Result<()> {
        self.watchdog = manager.map(Watchdog::new);
        let mut events = Events::with_capacity(64);
        while !(self.shared.life.is_stopping() && self.shared.workers.running().1 == 0) {
            if self.halt.is_wanted(Stage::Acceptor) && self.halt.wait(Ok(Vec::new())) == HaltVerdict::End {
                self.leave();
            }
            match self.poll.poll(&mut events, self.timeout()) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
            for event in &events {
                if event.token() == SIGNALS {
                    self.take_signals();
                } else if let Some(waiting) = event
                    .token()
                    .0
                    .checked_sub(LISTENER_FIRST)
                    .and_then(|i| self.listeners.get_mut(i))
                {
                    waiting.ready = true;
                }
            }
            if let Some(watchdog) = &mut self.watchdog {
                watchdog.look(&self.cache, &self.shared);
            }
            if self.shared.life.is_stopping() {
                // Closed at once: the kernel refuses new clients of this address, and the next server can bind it.
                self.listeners.clear();
                self.offered = Arc::default();
                self.shared.peers.listens_no_more();
            } else {
                self.accept_all();
                if self
                    .file_watch
                    .look(&self.cache, &self.shared.region_file, &self.shared.config.region)
                {
                    self.shared.note_hour(&self.cache);
                }
            }
        }
        if let Some(giving) = self.giving.take() {
            // A panic of that thread has been printed; it concerned no client.
            let _ = giving.join();
        }
        Ok(())
    }

    /// Another server has the listeners, and the files of Unix sockets.
    fn leave(&mut self) {
        for mut waiting in self.listeners.drain(..) {
            waiting.listener.set_shared(true);
            if let Err(error) = self.poll.registry().deregister(waiting.listener.as_source()) {
                log::debug!("a listener that was handed over is still watched: {error}");
            }
        }
    }

    /// This server has the role now: what it shared with another one is its own.
    pub(crate) fn own(&mut self) {
        self.listeners
            .iter_mut()
            .for_each(|waiting| waiting.listener.set_shared(false));
    }

    /// Gives a connection that another server has handed over to a worker.
    pub(crate) fn inherit(&mut self, inherited: Inherited) {
        let address = inherited.address();
        let is_admitted = self.shared.users.is_none() || inherited.has_logged_in() || matches!(address, PeerAddress::Reader);
        let peer = self.enrol(inherited.stream(), address, is_admitted);
        let worker = peer.worker();
        let transfer = Transfer::Inherited(Box::new(inherited), peer);
        self.transfers.send(worker, transfer, &self.shared.workers);
    }

    /// Has another thread talk to a server that wants to take over. One at a time.
    fn give(&mut self, stream: UnixStream) {
        let stream = std::os::unix::net::UnixStream::from(OwnedFd::from(stream));
        let process = match takeover::admit(&stream) {
            Ok(process) => process,
            Err(why) => return takeover::send_refusal(stream, &why),
        };
        if self.giving.as_ref().is_some_and(|giving| !giving.is_finished()) {
            return takeover::send_refusal(
                stream,
                "another server is taking over at this moment; try again when it has done so, or has failed",
            );
        }
        let (shared, halt, offered) = (Arc::clone(&self.shared), Arc::clone(&self.halt), Arc::clone(&self.offered));
        let thread = std::thread::Builder::new().name("keyway-take-over".to_owned());
        match thread.spawn(move || takeover::give(stream, process, &shared, &halt, &offered)) {
            Ok(giving) => self.giving = Some(giving),
            Err(error) => log::warn!("this server cannot be taken over now: no thread: {error}"),
        }
    }

    fn timeout(&self) -> Option<Duration> {
        match self.pause {
            Pause::No if self.listeners.iter().any(|waiting| waiting.ready) => Some(Duration::ZERO),
            Pause::Starved { since, .. } => Some(RETRY.saturating_sub(since.elapsed())),
            _ if !self.shared.life.is_stopping() => {
                let watchdog = self.watchdog.as_ref().map(Watchdog::due_in);
                Some(self.file_watch.due_in().min(watchdog.unwrap_or(Duration::MAX)))
            }
            _ => None,
        }
    }

    fn take_signals(&mut self) {
        let Some(signals) = &mut self.signals else { return };
        for signal in signals.pending() {
            match signal {
                SIGHUP => {
                    if let Some(watchdog) = &self.watchdog {
                        watchdog.reloading();
                    }
                    let result = reload(&self.shared);
                    if let Some(watchdog) = &self.watchdog {
                        watchdog.reloaded(result);
                    }
                }
                _ => {
                    log::info!("signal {signal}: shutting down; send it again to exit at once");
                    self.shared.stop();
                }
            }
        }
    }

    fn accept_all(&mut self) {
        self.resume();
        for index in 0..self.listeners.len() {
            for _ in 0..ACCEPTS_PER_TURN {
                if !matches!(self.pause, Pause::No) || !self.listeners[index].ready {
                    break;
                }
                match self.accept_one(index) {
                    Accepted::One => {}
                    Accepted::NothingWaits => self.listeners[index].ready = false,
                    Accepted::Paused => break,
                }
            }
        }
    }

    fn accept_one(&mut self, index: usize) -> Accepted {
        let limit = self.shared.config.connections_max;
        let for_clients = self.listeners[index].listener.is_for_clients();
        let is_full = for_clients && self.shared.peers.streams() >= limit && !self.displace();
        if is_full && !self.shared.config.connections_fast {
            return self.pause_full();
        }
        match self.listeners[index].listener.accept() {
            Ok(Arrival::Attaching(stream)) => {
                self.complained = false;
                if let Some(socket) = &self.shared.config.region_socket {
                    handout::answer(&stream, &self.cache, socket);
                }
                Accepted::One
            }
            Ok(Arrival::Slotless(stream)) => {
                self.complained = false;
                let has_room = self.shared.peers.streams() < limit;
                if handout::give_line(&stream, &self.cache, self.shared.config.region_socket.as_ref(), has_room) {
                    self.hand_over(Stream::Unix(stream), PeerAddress::Reader);
                }
                Accepted::One
            }
            Ok(Arrival::TakingOver(stream)) => {
                self.give(stream);
                Accepted::One
            }
            Ok(Arrival::Client(stream, address)) if is_full => {
                self.reject(stream, &address);
                Accepted::One
            }
            Ok(Arrival::Client(stream, address)) => {
                self.complained = false;
                self.hand_over(stream, address);
                Accepted::One
            }
            Err(error) => self.accept_failed(&error),
        }
    }

    /// Starts a pause, unless the error concerns only this connection. It is logged once, not at every attempt.
    fn accept_failed(&mut self, error: &io::Error) -> Accepted {
        match error.kind() {
            io::ErrorKind::WouldBlock => Accepted::NothingWaits,
            // The client has left again: not an error of the server.
            io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::Interrupted => Accepted::One,
            _ => {
                if !std::mem::replace(&mut self.complained, true)
                    && let Some(left_out) = STARVED.may_speak()
                {
                    log::warn!(
                        "cannot accept connections: {error}; trying again whenever one closes, and every {} ms{left_out}",
                        RETRY.as_millis()
                    );
                }
                self.pause = Pause::Starved {
                    since: Instant::now(),
                    open: self.shared.peers.streams(),
                };
                self.shared.peers.pause(0);
                Accepted::Paused
            }
        }
    }

    fn pause_full(&mut self) -> Accepted {
        if !self.shared.peers.pause(self.shared.config.connections_max) {
            return Accepted::One;
        }
        if let Some(left_out) = FULL.may_speak() {
            log::warn!(
                "{} connections, the limit (-c): not accepting more until one closes{left_out}",
                self.shared.config.connections_max
            );
        }
        self.pause = Pause::Full { since: Instant::now() };
        Accepted::Paused
    }

    /// Ends a pause whose reason may be gone; [`Self::accept_one`] starts a new one if it is not.
    fn resume(&mut self) {
        let peers = &self.shared.peers;
        let (since, is_over) = match self.pause {
            Pause::No => return,
            Pause::Full { since } => (since, peers.streams() < self.shared.config.connections_max),
            Pause::Starved { since, open } => (since, since.elapsed() >= RETRY || peers.streams() < open),
        };
        if is_over {
            peers.resume(since.elapsed());
            self.pause = Pause::No;
        }
    }

    /// Ends the connection that has taken longest to log in or to finish its TLS handshake, so that clients that never do so cannot use up
    /// the connections. Returns `false` if there is none.
    fn displace(&self) -> bool {
        if self.shared.users.is_none() && self.shared.certificates.is_none() {
            return false;
        }
        let oldest = self.shared.peers.end_unadmitted();
        if let Some(peer) = &oldest {
            self.shared.workers.end(peer, CloseReason::Displaced);
        }
        oldest.is_some()
    }

    fn reject(&self, mut stream: Stream, address: &PeerAddress) {
        self.shared.peers.reject();
        log::debug!(
            "rejected a connection: {} are open, the limit (-c)",
            self.shared.config.connections_max
        );
        // A new socket has room for these few bytes; if not, the client just sees a closed connection, as it does with TLS.
        if !matches!(address, PeerAddress::Tcp { is_secure: true, .. }) {
            let _ = stream.write(TOO_MANY);
        }
    }

    fn hand_over(&mut self, stream: Stream, address: PeerAddress) {
        // The server checked a reader's user and group before.
        let is_secure = matches!(address, PeerAddress::Tcp { is_secure: true, .. });
        let is_admitted = self.shared.users.is_none() && !is_secure || matches!(address, PeerAddress::Reader);
        let peer = self.enrol(&stream, address, is_admitted);
        let worker = peer.worker();
        self.transfers.send(worker, Transfer::New(stream, peer), &self.shared.workers);
    }

    /// The record of a connection, with the worker whose turn it is.
    fn enrol(&mut self, stream: &Stream, address: PeerAddress, is_admitted: bool) -> Arc<Peer> {
        let worker = self.shared.workers.worker_for_new(self.accepted);
        self.accepted = self.accepted.wrapping_add(1);
        let uptime_s = self.shared.uptime_s();
        self.shared
            .peers
            .enrol(stream.as_raw_fd(), address, worker, is_admitted, uptime_s)
    }
}

/// Reads the files again that a server may read again. The result, in a line.
fn reload(shared: &Shared) -> String {
    match (reload_users(shared), shared.refresh_certificates("SIGHUP")) {
        (None, None) => {
            log::info!("SIGHUP: there is no file to read again");
            "reloaded: there is no file to read again".to_owned()
        }
        (Some(false), Some(false)) => {
            "reload failed: the old users and the old certificate stay in force; see the log".to_owned()
        }
        (Some(false), _) => "reload failed: the old users stay in force; see the log".to_owned(),
        (_, Some(false)) => "reload failed: the old certificate stays in force; see the log".to_owned(),
        _ => "reloaded".to_owned(),
    }
}

/// Reads the authentication file again; if that fails, the old users stay valid. `None`: there is none.
fn reload_users(shared: &Shared) -> Option<bool> {
    let (path, users) = shared.config.auth_file.as_ref().zip(shared.users.as_ref())?;
    let before = users.read().unwrap_or_else(std::sync::PoisonError::into_inner);
    let new = Users::load(path, &shared.config.auth_lines, Some(&before));
    drop(before);
    match new {
        Ok(new) => {
            *users.write().unwrap_or_else(std::sync::PoisonError::into_inner) = new;
            log::info!("SIGHUP: read {} again", path.display());
            Some(true)
        }
        Err(error) => {
            log::error!("SIGHUP: {} {error}; the old users remain valid", path.display());
            Some(false)
        }
    }
}
