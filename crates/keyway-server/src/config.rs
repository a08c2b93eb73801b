//! What a server is told at its start.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use keyway_proto::Protocol;

use crate::source::{LOOPBACK, Network};

/// The protocol version that `version` and `stats` answer: that of the memcached whose protocol is spoken here.
///
/// Clients and tools compare this number with memcached's releases to decide which commands they may use; Keyway's own number
/// would make them think of a memcached from 2004. `stats` has Keyway's own as `keyway_version`.
pub const PROTOCOL_VERSION: &str = "1.6.45";
/// Keyway's own version.
pub const KEYWAY_VERSION: &str = env!("CARGO_PKG_VERSION");

/// Longest answer to a datagram unless the configuration says otherwise, bytes: 12 datagrams.
pub const UDP_ANSWER_MAX: usize = 16 << 10;
/// Least memory for connections, unless the configuration says otherwise, bytes.
const CONNECTION_MEMORY_MIN: u64 = 64 << 20;

/// A Unix socket to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnixSocket {
    /// where; a stale socket file there is replaced, and ours is removed at exit
    pub path: PathBuf,
    /// its file mode
    pub mode: u32,
}

/// A Unix socket through which the region is handed out to processes of this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegionSocket {
    /// where; anybody may connect whom the folder lets in, and `writers` and `readers` say who gets the region
    pub path: PathBuf,
    /// who may have the region, for reading and writing; and the server's own user, unless it is among the readers
    pub writers: Allowed,
    /// who else may have it, for reading only: what they write, they write through a connection that comes with it
    pub readers: Allowed,
}

/// Who may have the region: by the effective user and group of the process that asks
/// (`SO_PEERCRED`, unix(7)).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allowed {
    /// users' numbers
    pub users: Vec<u32>,
    /// groups' numbers
    pub groups: Vec<u32>,
}

/// What a worker waits for its connections with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EventLoop {
    /// io_uring where the system has it, otherwise epoll
    #[default]
    Auto,
    /// epoll
    Epoll,
    /// io_uring, and no server where the system has it not
    IoUring,
}

impl EventLoop {
    /// As the command line and `stats settings` have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Epoll => "epoll",
            Self::IoUring => "io_uring",
        }
    }
}

/// The kernel door: what a BPF program answers over UDP, before any socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// interfaces that the program is put on, by name
    pub interfaces: Vec<String>,
    /// use the program that somebody has put on interfaces and pinned in this folder, instead of loading one
    pub pinned: Option<PathBuf>,
    /// memory for copies and their index, bytes
    pub memory: usize,
    /// answers that a source gets from the program in a second at most, and how many at once after a pause
    pub rate: Option<(u32, u32)>,
}

impl Default for Kernel {
    fn default() -> Self {
        Self {
            interfaces: Vec::new(),
            pinned: None,
            memory: 64 << 20,
            rate: None,
        }
    }
}

/// Settings of a [`crate::Server`]. The defaults are memcached's, except that TCP is off until an address is given, and that UDP
/// answers this machine only.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is one of memcached's switches")]
pub struct Config {
    /// TCP addresses to listen on; port 0 takes a free one (see [`crate::Server::tcp_addresses`])
    pub tcp: Vec<SocketAddr>,
    /// one of them that is taken is left out, as long as another is not: they are one wish, said for each family of addresses
    pub tcp_where_free: bool,
    /// serve even if there is nothing to listen on: whoever has the region's file uses it all the same
    pub may_listen_nowhere: bool,
    /// Unix socket to listen on
    pub unix: Option<UnixSocket>,
    /// Unix socket through which the region is handed out
    pub region_socket: Option<RegionSocket>,
    /// UDP addresses to serve, with a socket for each thread; port 0 takes a free one (see [`crate::Server::udp_addresses`])
    pub udp: Vec<SocketAddr>,
    /// where datagrams may come from; those from elsewhere are neither executed nor answered
    pub udp_allow: Vec<Network>,
    /// the kernel door; it answers for the one UDP address
    pub kernel: Option<Kernel>,
    /// event loops, each on its own thread (`-t`)
    pub threads: usize,
    /// what the threads wait for their connections with
    pub event_loop: EventLoop,
    /// CPUs that the threads run on, one each, in turn; empty: wherever the system puts them
    pub cpus: Vec<usize>,
    /// how long a thread looks for work again and again before it sleeps
    pub busy_poll: Duration,
    /// what connections speak (`-B`); those that have to log in speak text
    pub protocol: Protocol,
    /// most connections at a time (`-c`)
    pub connections_max: usize,
    /// answer an error to connections above the limit, instead of leaving them in the kernel's queue (`-o maxconns_fast`)
    pub connections_fast: bool,
    /// what all connections together may hold for requests and answers on their way, bytes; 0: a quarter of `memory`, at least 64 MiB and
    /// four of the largest items
    pub connection_memory: usize,
    /// longest answer to a datagram, bytes
    pub udp_answer_max: usize,
    /// most requests of one connection before others get their turn (`-R`)
    pub requests_per_turn: usize,
    /// connections idle for longer are closed; zero: never (`-o idle_timeout`)
    pub idle_timeout: Duration,
    /// connections that the kernel queues for us (`-b`)
    pub backlog: i32,
    /// users and passwords for ASCII authentication (`-Y`)
    pub auth_file: Option<PathBuf>,
    /// `flush_all` is allowed (`-F` forbids)
    pub flush_enabled: bool,
    /// dumps of keys and `stats detail` are allowed (`-X` forbids)
    pub dump_enabled: bool,
    /// `stats sizes` counts the items by their sizes, which takes a walk over all of them (`-o track_sizes`)
    pub track_sizes: bool,
    /// `watch` is allowed (`-W` forbids)
    pub watch_enabled: bool,
    /// `shutdown` is allowed (`-A`)
    pub shutdown_enabled: bool,
    /// CAS uniques are shown (`-C` shows 0)
    pub cas_enabled: bool,
    /// items are evicted when memory is full (`-M`: stores fail); the cache was opened so, this is for `stats settings`
    pub evict: bool,
    /// end of the key prefix that `stats detail` counts by; `Some` turns the counting on (`-D`)
    pub detail_delimiter: Option<u8>,
    /// memcached's verbosity, 0 to 3: `stats settings` shows it, `verbosity` changes it
    pub verbosity: u8,
    /// SIGTERM, SIGINT and SIGUSR1 shut this server down, a second one at once; SIGHUP reads the authentication file again
    pub signals: bool,
    /// longest time that a shutdown waits for clients to take their replies
    pub shutdown_grace: Duration,
    /// the memory that was asked for, bytes; 0: whatever the region has
    pub memory: u64,
    /// where the region is, for people
    pub region: String,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            tcp: Vec::new(),
            tcp_where_free: false,
            may_listen_nowhere: false,
            unix: None,
            region_socket: None,
            udp: Vec::new(),
            udp_allow: LOOPBACK.to_vec(),
            kernel: None,
            threads: 4,
            event_loop: EventLoop::Auto,
            protocol: Protocol::Auto,
            cpus: Vec::new(),
            busy_poll: Duration::ZERO,
            connections_max: 1024,
            connections_fast: true,
            connection_memory: 0,
            udp_answer_max: UDP_ANSWER_MAX,
            requests_per_turn: 20,
            idle_timeout: Duration::ZERO,
            backlog: 1024,
            auth_file: None,
            flush_enabled: true,
            dump_enabled: true,
            track_sizes: false,
            watch_enabled: true,
            shutdown_enabled: false,
            cas_enabled: true,
            evict: true,
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
