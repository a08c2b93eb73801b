//! The settings of a server.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use keyway_proto::{KEY_LEN_MAX, Protocol};

use crate::auth::UserLines;
use crate::source::{LOOPBACK, Network};
use crate::tls::{ClientCertificates, Tls};

/// The protocol version that `version` and `stats` report: that of the memcached whose protocol Keyway implements.
///
/// Clients and tools compare this number with memcached's releases to decide which commands they may use. Keyway's own number
/// would look like a memcached from 2004. `stats` shows Keyway's own as `keyway_version`.
pub const PROTOCOL_VERSION: &str = "1.6.45";
/// Keyway's own version.
pub const KEYWAY_VERSION: &str = env!("CARGO_PKG_VERSION");

/// Longest answer to a datagram unless the configuration says otherwise, bytes: 12 datagrams.
pub const UDP_ANSWER_MAX: usize = 16 << 10;
/// Least memory for connections, unless the configuration says otherwise, bytes.
const CONNECTION_MEMORY_MIN: u64 = 64 << 20;

/// Descriptors that a server has whatever its threads are.
const DESCRIPTORS_OF_PROCESS: u64 = 24;

/// A Unix socket to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnixSocket {
    /// its path; a stale socket file there is replaced, and the server's own is removed at exit
    pub path: PathBuf,
    /// its file mode
    pub mode: u32,
}

/// A Unix socket through which the region is handed out to processes of this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegionSocket {
    /// its path; every user that the folder admits may connect, and `writers` and `readers` say which users get the region
    pub path: PathBuf,
    /// users that may have the region for reading and writing; also the server's own user, unless it is among the readers
    pub writers: Allowed,
    /// users that may have it for reading only; their writes go through a connection that they get with it
    pub readers: Allowed,
}

/// Users and groups that may have the region, by the effective user and group of the process that asks
/// (`SO_PEERCRED`, unix(7)).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allowed {
    /// users' numbers
    pub users: Vec<u32>,
    /// groups' numbers
    pub groups: Vec<u32>,
}

/// Where the HTTP port listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HttpAddress {
    /// TCP addresses; port 0 takes a free one (see [`crate::Server::http_names`])
    Tcp(Vec<SocketAddr>),
    /// a Unix socket
    Unix(UnixSocket),
}

/// How a worker waits for events of its connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EventLoop {
    /// io_uring if the system has it, otherwise epoll
    #[default]
    Auto,
    /// epoll
    Epoll,
    /// io_uring; the server does not start if the system does not have it
    IoUring,
}

impl EventLoop {
    /// Its name on the command line and in `stats settings`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Epoll => "epoll",
            Self::IoUring => "io_uring",
        }
    }
}

/// Where clients may log in by SASL, in the binary protocol, which sends the password as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sasl {
    /// nowhere: the binary protocol has no login
    Off,
    /// with TLS, over a Unix socket, and from a loopback address
    #[default]
    Protected,
    /// everywhere, as in memcached
    Everywhere,
}

/// The kernel door: what a BPF program answers over UDP, and over TCP if that is asked for, before any socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// names of the interfaces that the program is attached to
    pub interfaces: Vec<String>,
    /// the folder of a program that is already attached and pinned; it is used instead of loading one
    pub pinned: Option<PathBuf>,
    /// TCP connections are answered, too; experimental
    pub tcp: bool,
    /// memory for copies and their index, bytes
    pub memory: usize,
    /// answers per second that a source gets from the program at most, and how many at once after a pause
    pub rate: Option<(u32, u32)>,
}

impl Default for Kernel {
    fn default() -> Self {
        Self {
            interfaces: Vec::new(),
            pinned: None,
            tcp: false,
            memory: 64 << 20,
            rate: None,
        }
    }
}

/// Gets that wait for a value which another client computes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldMisses {
    /// how long at most
    pub wait: Duration,
    /// the beginning of their keys; empty: of all
    pub prefix: String,
}

impl HoldMisses {
    /// From `MS[:PREFIX]`.
    ///
    /// # Errors
    ///
    /// What is wrong, and how it is written.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (wait, prefix) = text.split_once(':').unwrap_or((text, ""));
        let wait = wait.parse().ok().filter(|wait| (1..=HOLD_MS_MAX).contains(wait)).ok_or_else(|| {
            format!("\"{text}\" does not begin with milliseconds from 1 to {HOLD_MS_MAX}; write the longest wait and a prefix, as in 500:user:")
        })?;
        if prefix.len() > KEY_LEN_MAX || prefix.bytes().any(|byte| byte <= b' ' || byte == 0x7F) {
            return Err(format!(
                "\"{prefix}\" begins no key: a key has at most {KEY_LEN_MAX} bytes, and no blanks"
            ));
        }
        Ok(Self {
            wait: Duration::from_millis(wait),
            prefix: prefix.to_owned(),
        })
    }
}

/// Longest time for which a miss can be held, milliseconds.
const HOLD_MS_MAX: u64 = 60_000;

/// Settings of a [`crate::Server`]. The defaults are memcached's, with two exceptions: TCP is off until an address is given, and UDP
/// answers this machine only.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is one of memcached's switches")]
pub struct Config {
    /// TCP addresses to listen on; port 0 takes a free one (see [`crate::Server::tcp_addresses`])
    pub tcp: Vec<SocketAddr>,
    /// TCP addresses to listen on with TLS
    pub tls_tcp: Vec<SocketAddr>,
    /// TLS; needed for `tls_tcp`
    pub tls: Option<Tls>,
    /// skip an address that is in use, as long as another one is free: the addresses are one setting, given for each address family
    pub tcp_where_free: bool,
    /// serve even if there is nothing to listen on: processes that have the region's file can still use it
    pub may_listen_nowhere: bool,
    /// Unix socket to listen on
    pub unix: Option<UnixSocket>,
    /// Unix socket through which the region is handed out
    pub region_socket: Option<RegionSocket>,
    /// UDP addresses to serve, with a socket for each thread; port 0 takes a free one (see [`crate::Server::udp_addresses`])
    pub udp: Vec<SocketAddr>,
    /// where datagrams may come from; those from elsewhere are neither executed nor answered
    pub udp_allow: Vec<Network>,
    /// the HTTP port: metrics, health and a page for people; without a login
    pub http: Option<HttpAddress>,
    /// names by which clients ask for the HTTP port over TCP, besides its addresses, the loopback names and this machine's name
    pub http_hosts: Vec<String>,
    /// the page of the HTTP port shows hot keys, and not only their hashes
    pub http_keys: bool,
    /// the kernel door; it answers for the only UDP address, and for the TCP address with the same IP address; without UDP, for the first TCP
    /// address
    pub kernel: Option<Kernel>,
    /// event loops, each on its own thread (`-t`)
    pub threads: usize,
    /// how the threads wait for events of their connections
    pub event_loop: EventLoop,
    /// CPUs that the threads run on, one each, round-robin; empty: the system chooses
    pub cpus: Vec<usize>,
    /// how long a thread polls for work before it sleeps
    pub busy_poll: Duration,
    /// protocol of the connections (`-B`); connections that have to log in use text if there is no SASL
    pub protocol: Protocol,
    /// most connections at a time (`-c`)
    pub connections_max: usize,
    /// answer an error to connections above the limit, instead of leaving them in the kernel's queue (`-o maxconns_fast`)
    pub connections_fast: bool,
    /// memory that all connections together may hold for requests and unsent answers, bytes; 0: a quarter of `memory`, at least 64 MiB and
    /// four of the largest items
    pub connection_memory: usize,
    /// requests per second that a source may make, and how many at once after a pause; connections above it wait, datagrams are dropped
    pub request_rate: Option<(u32, u32)>,
    /// gets that wait for a value which another client computes, by prefix
    pub hold_misses: Vec<HoldMisses>,
    /// longest answer to a datagram, bytes
    pub udp_answer_max: usize,
    /// most requests of one connection before other connections get their turn (`-R`)
    pub requests_per_turn: usize,
    /// connections idle for longer are closed; zero: never (`-o idle_timeout`)
    pub idle_timeout: Duration,
    /// most connections that wait in the kernel's queue (`-b`)
    pub backlog: i32,
    /// users, their passwords, and what each may do (`-Y`); without it every client may do everything
    pub auth_file: Option<PathBuf>,
    /// by whose rules the lines of `auth_file` are read
    pub auth_lines: UserLines,
    /// where a client may log in by SASL, if there is an `auth_file`
    pub sasl: Sasl,
    /// dumps of keys and `stats detail` are allowed (`-X` forbids)
    pub dump_enabled: bool,
    /// `stats sizes` counts the items by size, which needs a walk over all of them (`-o track_sizes`)
    pub track_sizes: bool,
    /// `watch` is allowed (`-W` forbids)
    pub watch_enabled: bool,
    /// `shutdown` is allowed (`-A`)
    pub shutdown_enabled: bool,
    /// CAS uniques are shown (`-C` shows 0)
    pub cas_enabled: bool,
    /// delimiter that ends the key prefixes of `stats detail`; `Some` turns the counting on (`-D`)
    pub detail_delimiter: Option<u8>,
    /// memcached's verbosity, 0 to 3: `stats settings` shows it, `verbosity` changes it
    pub verbosity: u8,
    /// SIGTERM, SIGINT and SIGUSR1 shut this server down, and a second one does so at once; SIGHUP reloads the authentication file
    pub signals: bool,
    /// longest time that a shutdown waits for clients to take their replies
    pub shutdown_grace: Duration,
    /// the memory that was configured, bytes; 0: the region's
    pub memory: u64,
    /// the region's path, for messages
    pub region: String,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            tcp: Vec::new(),
            tls_tcp: Vec::new(),
            tls: None,
            tcp_where_free: false,
            may_listen_nowhere: false,
            unix: None,
            region_socket: None,
            udp: Vec::new(),
            udp_allow: LOOPBACK.to_vec(),
            http: None,
            http_hosts: Vec::new(),
            http_keys: false,
            kernel: None,
            threads: 4,
            event_loop: EventLoop::Auto,
            protocol: Protocol::Auto,
            cpus: Vec::new(),
            busy_poll: Duration::ZERO,
            connections_max: 1024,
            connections_fast: true,
            connection_memory: 0,
            request_rate: None,
            hold_misses: Vec::new(),
            udp_answer_max: UDP_ANSWER_MAX,
            requests_per_turn: 20,
            idle_timeout: Duration::ZERO,
            backlog: 1024,
            auth_file: None,
            auth_lines: UserLines::Keyway,
            sasl: Sasl::default(),
            dump_enabled: true,
            track_sizes: false,
            watch_enabled: true,
            shutdown_enabled: false,
            cas_enabled: true,
            detail_delimiter: None,
            verbosity: 0,
            signals: false,
            shutdown_grace: Duration::from_secs(5),
            memory: 0,
            region: "memfd".to_owned(),
        }
    }
}

impl Config {
    /// TCP addresses at which clients from other machines can do everything: not loopback, and without logins and client certificates.
    pub fn open_addresses(&self) -> Vec<SocketAddr> {
        let has_certificates = self
            .tls
            .as_ref()
            .is_some_and(|tls| tls.client_certificates == ClientCertificates::Required);
        let with_tls = self.tls_tcp.iter().filter(|_| !has_certificates);
        let all = self.tcp.iter().chain(with_tls).filter(|_| self.auth_file.is_none());
        all.filter(|address| !address.ip().is_loopback()).copied().collect()
    }

    /// Workers: for each thread of `threads` one for short turns and one for long ones.
    pub(crate) fn workers(&self) -> usize {
        self.threads.saturating_mul(2)
    }

    /// Threads that the server starts, except those that only a command starts.
    pub(crate) fn thread_count(&self) -> usize {
        let others = [self.kernel.is_some(), self.http.is_some(), self.auth_file.is_some()];
        self.workers() + others.into_iter().filter(|&is_there| is_there).count()
    }

    /// Sessions that the server has at most: of its workers, and those of the HTTP port, the kernel door and the thread that evicts
    /// after the memory limit was lowered.
    pub fn sessions(&self) -> usize {
        self.workers() + 3
    }

    /// Descriptors that the server needs before the first client comes: for each worker two and a ring of io_uring, its UDP sockets, and
    /// those of listeners, region, log, signals and kernel door.
    pub fn descriptors(&self) -> u64 {
        let workers = self.workers() as u64;
        DESCRIPTORS_OF_PROCESS + 3 * workers + (self.threads * self.udp.len()) as u64
    }

    /// All TCP addresses, those with TLS last.
    pub fn tcp_and_tls(&self) -> impl Iterator<Item = SocketAddr> {
        self.tcp.iter().chain(&self.tls_tcp).copied()
    }

    /// What connections may hold, bytes.
    pub(crate) fn connection_memory_limit(&self, item_size_max: usize) -> usize {
        match self.connection_memory {
            0 => usize::try_from((self.memory / 4).max(CONNECTION_MEMORY_MIN))
                .unwrap_or(usize::MAX)
                .max(item_size_max.saturating_mul(4)),
            limit => limit,
        }
    }
}
