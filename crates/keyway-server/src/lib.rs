//! Keyway's network door: a server that speaks memcached's protocols over TCP, Unix sockets and UDP.
//!
//! [`Sockets::bind`] binds the sockets before the region is opened. [`Server::start_on`] opens a session per worker and prepares the
//! rest. [`Server::run`] serves until a signal, a client's `shutdown` or [`Handle::shutdown`] ends it.
//!
//! One thread accepts connections (`acceptor`) and gives them round-robin to the workers (`worker`). A worker is an event loop on
//! its own thread, with its own session. It gives its connections turns (`connection`): the connection's bytes are read, `keyway-proto`
//! decodes the requests, the session executes them (`execute`), and the answers are sent. Workers come in pairs: one of each pair serves
//! the connections whose turns are short, its partner those whose turns are long, new ones, and UDP (`udp`, `source`). So the kernel
//! decides between long and short turns, at any instruction. The threads share only counters and mailboxes (`shared`); they share items
//! through the region.
//!
//! The server knows nothing of the region's layout or of eviction, and has no unsafe code.

#![forbid(unsafe_code)]

mod acceptor;
mod account;
mod auth;
mod basics;
mod census;
mod config;
mod connection;
mod cpu_budget;
mod detail;
mod execute;
mod file_watch;
mod given;
mod handout;
mod holds;
mod hotkeys;
mod http;
#[cfg(feature = "kernel")]
pub mod kernel;
#[cfg(not(feature = "kernel"))]
#[path = "kernel_absent.rs"]
mod kernel;
mod listener;
mod log_limiter;
mod memory;
pub mod overview;
mod rate;
mod shared;
mod shown;
mod source;
mod start;
mod stats;
mod takeover;
mod threads;
mod tls;
mod udp;
mod watch;
mod watchdog;
mod worker;

use keyway_cache::server::ServerCache as _;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;
use std::time::Duration;

use keyway_cache::{Cache, Session};
use keyway_uring::Ring;
use mio::net::UnixListener;
use mio::{Poll, Waker};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};

pub use auth::{AuthFileError, HashError, UserLines, auth_line};
pub use basics::{log_level, size_text};
pub use config::{
    Allowed, Config, EventLoop, HoldMisses, HttpAddress, KEYWAY_VERSION, Kernel, PROTOCOL_VERSION, RegionSocket, Sasl, UnixSocket,
};
pub use given::{Given, GivenError, Role};
pub use hotkeys::HotAsked;
pub use keyway_proto::Protocol;
pub use listener::BindError;
pub use source::{LOOPBACK, Network};
pub use start::StartError;
pub use takeover::{TakeOver, TakeOverError};
pub use threads::{NoThreads, limits_of_threads};
pub use tls::{ClientCertificates, Tls, TlsError, TlsVersion, crypto_provider};
pub use watch::{WatchAsked, WatchUnknown};
pub use watchdog::{Manager, News};
#[cfg(fuzzing)]
pub use worker::driven::Driven;

use acceptor::Acceptor;
use auth::Users;
use census::Census;
use connection::Desk;
use execute::Executor;
use given::{Offered, Purpose};
use listener::{HttpSockets, Listener, SocketFile};
use shared::{Lane, Life, Peers, Setup, Shared, Workers};
use takeover::{Halt, Predecessor};
use tls::Certificates;
use worker::{Transfers, Worker};

/// A server's sockets, bound and listening, before there is a region. Clients that connect wait until the server runs.
pub struct Sockets {
    users: Option<Users>,
    certificates: Option<Certificates>,
    listeners: Vec<listener::Listener>,
    udp_addresses: Vec<SocketAddr>,
    /// for each thread, one socket per address
    udp_sockets: Vec<Vec<mio::net::UdpSocket>>,
    http: Option<HttpSockets>,
    /// what came with the role of another server
    special: Vec<(Purpose, OwnedFd)>,
    predecessor: Option<Predecessor>,
}

/// A server that is ready to run: its sockets are bound, and clients may connect already.
pub struct Server {
    cache: Cache,
    shared: Arc<Shared>,
    acceptor: Acceptor,
    workers: Vec<Worker>,
    tcp_addresses: Vec<SocketAddr>,
    udp_addresses: Vec<SocketAddr>,
    keeper: Option<(kernel::Keeper, Arc<Halt>)>,
    http: Option<http::Port>,
}

/// Ends a server from another thread.
#[derive(Clone)]
pub struct Handle(Arc<Shared>);

/// Why a server ended other than by request.
#[derive(Debug)]
pub enum RunError {
    /// the system refused something
    System(io::Error),
    /// a worker thread panicked, which is a bug in Keyway; the region is intact
    WorkerPanicked,
}

impl Sockets {
    /// Binds the sockets of `config` and reads its authentication file, before the region is opened: a server that cannot start leaves the
    /// region alone.
    ///
    /// # Errors
    ///
    /// [`StartError`]: nothing is bound then.
    pub fn bind(config: &Config) -> Result<Self, StartError> {
        Self::bind_beside(config, Given::default())
    }

    /// Binds the sockets of `config` beside sockets that exist already. `config` names their addresses ([`Given::ask_for`]);
    /// those that it does not name are closed.
    ///
    /// # Errors
    ///
    /// [`StartError`]: nothing is bound then, and the given sockets are closed.
    pub fn bind_beside(config: &Config, mut given: Given) -> Result<Self, StartError> {
        config.check()?;
        let (users, certificates) = (config.users()?, config.certificates()?);
        let listeners = listener::bind(config, &mut given).map_err(StartError::Bind)?;
        let (udp_addresses, udp_sockets) = listener::bind_udp(config, &mut given).map_err(StartError::Bind)?;
        let http = config
            .http
            .as_ref()
            .map(|address| listener::bind_http(address, &mut given))
            .transpose()
            .map_err(StartError::Bind)?;
        Ok(Self {
            users,
            certificates,
            listeners,
            udp_addresses,
            udp_sockets,
            http,
            special: Vec::new(),
            predecessor: None,
        })
    }

    /// Binds the sockets of `config` beside those of a server that is about to be taken over ([`Server::take_over`]).
    ///
    /// # Errors
    ///
    /// [`StartError`]: nothing is bound then, and the running server goes on.
    pub fn bind_to_take_over(config: &Config, running: &mut TakeOver) -> Result<Self, StartError> {
        Ok(Self {
            predecessor: Some(running.predecessor()?),
            special: running.special(),
            ..Self::bind_beside(config, running.given())?
        })
    }
}

impl Server {
    /// Binds the sockets of `config` and prepares to serve `cache`.
    ///
    /// # Errors
    ///
    /// [`StartError`]. By then the region is open. A caller that wants to leave the region alone after an error calls [`Sockets::bind`] first.
    pub fn start(config: Config, cache: Cache) -> Result<Self, StartError> {
        let sockets = Sockets::bind(&config)?;
        Self::start_on(sockets, config, cache)
    }

    /// Prepares to serve `cache` on sockets that were bound for this `config`.
    ///
    /// # Errors
    ///
    /// [`StartError`], except for the errors of [`Sockets::bind`].
    pub fn start_on(sockets: Sockets, config: Config, cache: Cache) -> Result<Self, StartError> {
        let (sessions, probe) = open_sessions(&config, &cache, sockets.http.is_some())?;
        let mut listeners = sockets.listeners;
        listeners.extend(listeners_of_region(sockets.special, &cache));
        let mut offered = offer(&listeners, &sockets.udp_sockets, sockets.http.as_ref())?;
        let tcp_addresses = listeners.iter().filter_map(listener::Listener::tcp_address).collect();
        let plain_addresses: Vec<SocketAddr> = listeners.iter().filter_map(Listener::plain_tcp_address).collect();
        let addresses = (&sockets.udp_addresses[..], &plain_addresses[..]);
        let (keeper, post) = open_kernel_door(&config, addresses, &cache, sockets.predecessor)?.unzip();
        if let Some(keeper) = &keeper {
            offered.extend(keeper.pinned()?.map(Offered::pinned));
        }
        let reads_items = keeper.as_ref().and_then(kernel::Keeper::session_id);
        let census = Census::new(&cache, &sessions, probe.as_ref(), reads_items);
        let stopper = keyway_http::Stopper::default();
        let http = sockets.http.zip(probe).map(|(sockets, session)| http::Port {
            sockets,
            hosts: http::hosts(&config.http_hosts),
            session,
            stopper: stopper.clone(),
        });
        let signals = if config.signals { Some(catch_signals()?) } else { None };

        threads::try_out(config.thread_count()).map_err(StartError::Threads)?;
        let event_loop = choose_event_loop(&config)?;
        let poll = Poll::new()?;
        let polls = (0..config.workers()).map(|_| Poll::new()).collect::<io::Result<Vec<_>>>()?;
        let wakers = polls.iter().map(|poll| Waker::new(poll.registry(), worker::WAKE));
        let wakers = wakers.collect::<io::Result<Vec<_>>>()?;
        let acceptor_waker = Waker::new(poll.registry(), acceptor::WAKE)?;
        let setup = Setup {
            udp_addresses: sockets.udp_addresses.clone(),
            event_loop,
            workers: Workers::new(wakers),
            peers: Peers::new(descriptors_of(&sockets.udp_sockets)?),
            life: Life::new(acceptor_waker, stopper),
            census,
            kernel: post,
            users: sockets.users,
            certificates: sockets.certificates,
            config,
        };
        let shared = Arc::new(Shared::new(setup, &cache));
        shared.note_hour(&cache);
        let (transfers, halt) = (Arc::new(Transfers::new(polls.len())), Arc::<Halt>::default());
        let workers = make_workers(polls, sessions, sockets.udp_sockets, &cache, &shared, (&transfers, &halt));
        let ways = (transfers, Arc::clone(&halt));
        let acceptor = Acceptor::new(poll, cache.clone(), Arc::clone(&shared), ways, listeners, offered, signals)?;
        Ok(Self {
            cache,
            shared,
            acceptor,
            workers,
            tcp_addresses,
            udp_addresses: sockets.udp_addresses,
            keeper: keeper.map(|keeper| (keeper, halt)),
            http,
        })
    }

    /// The TCP addresses that the server listens on; port 0 is replaced by the port that the system chose.
    pub fn tcp_addresses(&self) -> &[SocketAddr] {
        &self.tcp_addresses
    }

    /// The UDP addresses that the server serves; port 0 is replaced by the port that the system chose.
    pub fn udp_addresses(&self) -> &[SocketAddr] {
        &self.udp_addresses
    }

    /// Addresses or the path of the HTTP port; port 0 is replaced by the port that the system chose. Empty: there is none.
    pub fn http_names(&self) -> &[String] {
        self.http.as_ref().map_or(&[], |port| &port.sockets.names)
    }

    /// Files of Unix sockets that the server removes when it ends.
    pub fn removed_at_end(&self) -> Vec<PathBuf> {
        let http = self.http.as_ref().and_then(|port| port.sockets.file.as_ref());
        let files = self.acceptor.socket_files().chain(http);
        files.filter_map(SocketFile::removed_at_end).map(Path::to_owned).collect()
    }

    /// Whether its workers open rings of io_uring.
    pub fn has_io_uring(&self) -> bool {
        self.shared.event_loop == EventLoop::IoUring
    }

    /// A handle that ends this server from another thread.
    pub fn handle(&self) -> Handle {
        Handle(Arc::clone(&self.shared))
    }

    /// One line that tells an operator what is served, where.
    pub fn ready_line(&self) -> String {
        let info = self.cache.info();
        let listening = self.shared.peers.listening();
        let mut sockets: Vec<String> = listening
            .iter()
            .map(|(_, name)| name.replacen(':', " ", 1))
            .chain(self.udp_addresses.iter().map(|address| format!("udp {address}")))
            .chain(self.http_names().iter().map(|name| format!("http {name}")))
            .chain(self.shared.config.kernel.iter().map(|kernel| match &kernel.pinned {
                Some(folder) => format!("kernel {}", folder.display()),
                None => format!("kernel {}", kernel.interfaces.join(",")),
            }))
            .collect();
        let state = match self.cache.counters().curr_items {
            0 => "empty".to_owned(),
            items => format!("warm: {items} items"),
        };
        if sockets.is_empty() {
            sockets.push("no socket".to_owned());
        }
        format!(
            "keyway {KEYWAY_VERSION} ready: {}, region {} ({}, {state}, {} in {}), {} threads",
            sockets.join(", "),
            self.shared.config.region,
            size_text(self.shared.memory.limit(&info)),
            if info.warm { "attached" } else { "created" },
            short(info.attached_in),
            self.shared.config.threads,
        )
    }

    /// Gets the connections of the running server, whose sockets this one was started on, and its role. [`Self::run`] has to follow at
    /// once: clients wait.
    ///
    /// # Errors
    ///
    /// The running server goes on; this one must not run.
    pub fn take_over(&mut self, running: TakeOver) -> Result<(), TakeOverError> {
        let taken = running.finish()?;
        self.acceptor.own();
        if let Some(file) = self.http.as_mut().and_then(|port| port.sockets.file.as_mut()) {
            file.set_shared(false);
        }
        log::info!(
            "took over {} connections of process {}",
            taken.connections.len(),
            taken.process
        );
        taken
            .connections
            .into_iter()
            .for_each(|inherited| self.acceptor.inherit(inherited));
        Ok(())
    }

    /// Serves until a requested shutdown is complete, or another server has taken over. The region is closed as cleanly as other processes'
    /// use of it allows.
    ///
    /// # Errors
    ///
    /// [`RunError`]
    pub fn run(self) -> Result<(), RunError> {
        self.begin()?.serve(None)
    }

    /// Starts the threads: all that can fail before clients are served. What this thread may do, they may do.
    ///
    /// # Errors
    ///
    /// [`RunError::System`]: the system refused a thread. Those that were started have ended.
    pub fn begin(self) -> Result<Running, RunError> {
        let Self {
            cache,
            shared,
            acceptor,
            workers,
            keeper,
            http,
            ..
        } = self;
        let mut running = Running {
            cache,
            shared,
            acceptor,
            threads: Vec::new(),
        };
        match running.start(workers, keeper, http) {
            Ok(()) => Ok(running),
            Err(error) => {
                running.shared.stop();
                join(running.threads);
                Err(RunError::System(error))
            }
        }
    }
}

/// A server whose threads run. [`Self::serve`] accepts connections.
pub struct Running {
    cache: Cache,
    shared: Arc<Shared>,
    acceptor: Acceptor,
    threads: Vec<JoinHandle<()>>,
}

impl Running {
    fn start(
        &mut self,
        workers: Vec<Worker>,
        keeper: Option<(kernel::Keeper, Arc<Halt>)>,
        http: Option<http::Port>,
    ) -> io::Result<()> {
        let (shared, cache, threads) = (&self.shared, &self.cache, &mut self.threads);
        if let Some((keeper, halt)) = keeper {
            let shared = Arc::clone(shared);
            let thread = std::thread::Builder::new().name("keyway-kernel".to_owned());
            threads.push(thread.spawn(move || keeper.run(&shared, &halt))?);
        }
        if let Some(port) = http {
            let (shared, cache) = (Arc::clone(shared), cache.clone());
            let thread = std::thread::Builder::new().name("keyway-http".to_owned());
            threads.push(thread.spawn(move || port.run(shared, cache))?);
        }
        if shared.users.is_some() {
            let shared = Arc::clone(shared);
            let thread = std::thread::Builder::new().name("keyway-logins".to_owned());
            threads.push(thread.spawn(move || shared.hasher.run(&shared.workers))?);
        }
        // A thread that has the flights keeps the region open, so only threads that end before the region is closed have them.
        if let Some(flights) = cache.flights() {
            let shared = Arc::clone(shared);
            let thread = std::thread::Builder::new().name("keyway-holds".to_owned());
            threads.push(thread.spawn(move || shared.holds.run(&flights, &shared.workers, &shared.life))?);
        }
        for (index, worker) in workers.into_iter().enumerate() {
            let threads_of_lane = shared.config.threads;
            let name = match shared.workers.lane(index) {
                Lane::Short => format!("keyway-{index}"),
                Lane::Long => format!("keyway-long-{}", index - threads_of_lane),
            };
            let thread = std::thread::Builder::new().name(name).spawn(move || worker.run());
            threads.push(thread?);
        }
        Ok(())
    }

    /// Serves until a requested shutdown is complete, or another server has taken over, and reports to a service manager. The region is
    /// closed as cleanly as other processes' use of it allows.
    ///
    /// # Errors
    ///
    /// [`RunError`]
    pub fn serve(self, manager: Option<Box<dyn Manager>>) -> Result<(), RunError> {
        let Self {
            cache,
            shared,
            acceptor,
            threads,
        } = self;
        shared.memory.keep_within(&shared.life, &cache);
        let accepted = acceptor.run(manager);
        shared.stop();
        shared.memory.join();
        shared.watch.join();
        join(threads);
        cache.close();
        accepted.map_err(RunError::System)?;
        if shared.workers.have_panicked() {
            Err(RunError::WorkerPanicked)
        } else {
            Ok(())
        }
    }
}

fn join(threads: Vec<JoinHandle<()>>) {
    for thread in threads {
        // A panic has been reported by the thread's own end.
        let _ = thread.join();
    }
}

impl Handle {
    /// Asks for a graceful shutdown: no new connections, answers to what has arrived, then [`Server::run`] returns.
    pub fn shutdown(&self) {
        self.0.stop();
    }

    /// Whether another server has taken over: it has this one's sockets and role.
    pub fn is_taken_over(&self) -> bool {
        self.0.life.taken_over_by().is_some()
    }
}

/// A session for each worker, and one for the readiness probe of the HTTP port.
fn open_sessions(config: &Config, cache: &Cache, has_http: bool) -> Result<(Vec<Session>, Option<Session>), StartError> {
    let open = || {
        cache.session().map_err(|error| StartError::Session {
            needed: config.sessions(),
            error,
        })
    };
    let workers = (0..config.workers()).map(|_| open()).collect::<Result<Vec<_>, _>>()?;
    Ok((workers, has_http.then(open).transpose()?))
}

/// Opens the kernel door, if there is to be one, for these UDP and TCP addresses.
fn open_kernel_door(
    config: &Config,
    (udp, tcp): (&[SocketAddr], &[SocketAddr]),
    cache: &Cache,
    predecessor: Option<Predecessor>,
) -> Result<Option<(kernel::Keeper, Arc<kernel::Post>)>, StartError> {
    let Some(kernel) = &config.kernel else { return Ok(None) };
    let opened = kernel::start(config, kernel, udp, tcp, cache, predecessor);
    opened.map(Some).map_err(StartError::Kernel)
}

/// What a server that takes over gets of these sockets.
fn offer(listeners: &[Listener], udp: &[Vec<mio::net::UdpSocket>], http: Option<&HttpSockets>) -> io::Result<Vec<Offered>> {
    let mut offered = listeners.iter().map(Listener::offer).collect::<io::Result<Vec<_>>>()?;
    for socket in udp.iter().flatten() {
        offered.push(listener::offer_udp(socket)?);
    }
    if let Some(http) = http {
        offered.extend(http.offer()?);
    }
    Ok(offered)
}

/// Chooses the workers' event loop, epoll or io_uring. With io_uring each worker opens its own ring, in its own thread.
fn choose_event_loop(config: &Config) -> Result<EventLoop, StartError> {
    if config.event_loop == EventLoop::Epoll {
        return Ok(EventLoop::Epoll);
    }
    // In a separate thread: the kernel's work after a ring is closed interrupts system calls of the thread that opened the ring.
    let thread = std::thread::Builder::new().spawn(|| Ring::open().map(drop))?;
    match thread.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into())) {
        Ok(()) => Ok(EventLoop::IoUring),
        Err(error) if config.event_loop == EventLoop::IoUring => Err(StartError::NoUring(error)),
        Err(error) => {
            log::info!("io_uring is not available ({error}): connections are served with epoll");
            Ok(EventLoop::Epoll)
        }
    }
}

/// SIGTERM, SIGINT and SIGUSR1 arrive in the accepting thread's loop. A second one of these exits at once, from the signal
/// handler itself, so that even a server that hangs obeys it. The region needs no clean exit.
fn catch_signals() -> io::Result<signal_hook_mio::v1_0::Signals> {
    let seen = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT, SIGUSR1] {
        // In this order: the first signal finds the flag false and sets it.
        signal_hook::flag::register_conditional_shutdown(signal, 1, Arc::clone(&seen))?;
        signal_hook::flag::register(signal, Arc::clone(&seen))?;
    }
    signal_hook_mio::v1_0::Signals::new([SIGTERM, SIGINT, SIGUSR1, SIGHUP])
}

/// The sockets once more, to be listed.
fn descriptors_of(sockets: &[Vec<mio::net::UdpSocket>]) -> io::Result<Vec<OwnedFd>> {
    let all = sockets.iter().flatten();
    all.map(|socket| socket.as_fd().try_clone_to_owned()).collect()
}

/// The listeners that belong to the region: for programs that find no slot in it, and for a server that takes over. Each comes from the server
/// that had it (`special`), or is bound; without it this server serves all the same.
fn listeners_of_region(mut special: Vec<(Purpose, OwnedFd)>, cache: &Cache) -> Vec<Listener> {
    let mut came_with_role = |wanted| {
        let place = special.iter().position(|(purpose, _)| *purpose == wanted)?;
        Some(UnixListener::from_std(special.swap_remove(place).1.into()))
    };
    let mut listeners = Vec::new();
    match came_with_role(Purpose::Lines) {
        Some(lines) => listeners.push(Listener::Lines(lines)),
        None => match cache.identity().and_then(listener::bind_lines) {
            Ok(lines) => listeners.push(lines),
            Err(error) => log::info!("this server does not serve programs that find no slot in the region: {error}"),
        },
    }
    match came_with_role(Purpose::TakeOver) {
        Some(take_over) => listeners.push(Listener::TakeOver(take_over)),
        None => match cache.identity().and_then(listener::bind_take_over) {
            Ok(take_over) => listeners.push(take_over),
            Err(error) => log::info!("another server cannot take over this one (--take-over): {error}"),
        },
    }
    listeners
}

/// A worker for each poll, with its session and its UDP sockets.
fn make_workers(
    polls: Vec<Poll>,
    sessions: Vec<Session>,
    udp_sockets: Vec<Vec<mio::net::UdpSocket>>,
    cache: &Cache,
    shared: &Arc<Shared>,
    (transfers, halt): (&Arc<Transfers>, &Arc<Halt>),
) -> Vec<Worker> {
    // Datagrams may be long work: the lane of short turns has none.
    let udp_sockets = std::iter::repeat_with(Vec::new)
        .take(shared.config.threads)
        .chain(udp_sockets);
    polls
        .into_iter()
        .zip(sessions)
        .zip(udp_sockets)
        .enumerate()
        .map(|(worker, ((poll, session), udp_sockets))| {
            let executor = Executor::new(session, cache.clone(), Arc::clone(shared), worker);
            Worker::new(
                poll,
                Desk::new(executor),
                udp_sockets,
                Arc::clone(transfers),
                Arc::clone(halt),
            )
        })
        .collect()
}

/// A short time, for people: at most four digits.
fn short(time: Duration) -> String {
    match time.as_micros() {
        us @ 0..1_000 => format!("{us} µs"),
        us @ 1_000..1_000_000 => format!("{}.{} ms", us / 1_000, us % 1_000 / 100),
        us => format!("{}.{} s", us / 1_000_000, us % 1_000_000 / 100_000),
    }
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::System(error) => error.fmt(f),
            Self::WorkerPanicked => f.write_str("a worker thread panicked, which is a bug; the region is intact, start again"),
        }
    }
}

impl std::error::Error for RunError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_times_are_readable() {
        for (us, text) in [
            (0, "0 µs"),
            (999, "999 µs"),
            (1_000, "1.0 ms"),
            (75_987, "75.9 ms"),
            (2_350_000, "2.3 s"),
        ] {
            assert_eq!(short(Duration::from_micros(us)), text);
        }
    }
}
