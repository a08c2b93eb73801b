//! Listening sockets: binding those that are not given, and the Unix socket's file.

use std::fmt;
use std::fs::{File, TryLockError};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use mio::net::{TcpListener, UdpSocket, UnixListener, UnixStream};
use nix::sys::socket::{UnixAddr, getpeername};
use nix::sys::stat::{Mode, fchmod, umask};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::config::{Config, HttpAddress, RegionSocket, UnixSocket};
use crate::connection::Stream;
use crate::given::{Given, GivenUnix, Offered, OfferedSocket, Purpose, Role};
use crate::shared::PeerAddress;

/// Room for datagrams that wait in a socket, bytes; the system may allow less.
const UDP_BUFFER_SIZE: usize = 4 << 20;
/// Most connections of the HTTP port that wait in the kernel's queue.
const HTTP_BACKLOG: i32 = 64;

/// How often the lock of a folder is tried, and how long it is waited in between.
const FOLDER_TRIES: usize = 50;
const FOLDER_WAIT: Duration = Duration::from_millis(20);

/// Why a listening socket could not be opened.
#[derive(Debug)]
pub struct BindError {
    what: String,
    error: io::Error,
}

impl fmt::Display for BindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, error } = self;
        write!(f, "cannot listen on {what}: {error}")?;
        match error.kind() {
            io::ErrorKind::AddrInUse => {
                let option = match what.split_whitespace().next() {
                    Some("tcp") => "--listen; -p or -l",
                    Some("udp") => "--udp; -U",
                    Some("http") => "--http; -o http",
                    _ => "--socket or --region-socket; -s",
                };
                write!(
                    f,
                    "; another server is running there: stop it, or choose another address ({option})"
                )
            }
            io::ErrorKind::AddrNotAvailable => write!(f, "; no interface of this machine has this address"),
            io::ErrorKind::NotFound => write!(f, "; its folder is absent: make it (mkdir -p)"),
            io::ErrorKind::PermissionDenied => write!(f, "; ports below 1024 and the socket's folder need permission"),
            _ => Ok(()),
        }
    }
}

impl std::error::Error for BindError {}

impl BindError {
    /// Whether another socket has the address.
    pub fn is_taken(&self) -> bool {
        self.error.kind() == io::ErrorKind::AddrInUse
    }
}

/// One listening socket.
pub(crate) enum Listener {
    Tcp(TcpListener),
    /// TCP, with TLS
    Tls(TcpListener),
    Unix(UnixListener, SocketFile),
    /// for processes that want the region itself
    Region(UnixListener, SocketFile),
    /// for processes that have the region but found no free slot in it: its name is derived from the region's
    Lines(UnixListener),
    /// for servers that take over: its name is derived from the region's, too
    TakeOver(UnixListener),
}

/// A new connection, and what it wants.
pub(crate) enum Arrival {
    Client(Stream, PeerAddress),
    /// wants the region itself
    Attaching(UnixStream),
    /// wants to be served without logging in, because it has the region, but no slot
    Slotless(UnixStream),
    /// wants this server's role
    TakingOver(UnixStream),
}

/// The file of a Unix socket. Dropping this removes the file, unless another server has put its own there meanwhile, or the process that
/// gave the socket keeps it.
pub(crate) struct SocketFile {
    path: PathBuf,
    /// device and inode of a file that is removed
    identity: Option<(u64, u64)>,
    /// another server has the socket, too, and the role
    is_shared: bool,
}

/// The bound sockets of the port.
#[derive(Default)]
pub(crate) struct HttpSockets {
    pub(crate) listeners: Vec<keyway_http::Listener>,
    /// addresses and paths, for people
    pub(crate) names: Vec<String>,
    /// removed when the port is closed
    pub(crate) file: Option<SocketFile>,
}

/// All sockets that `config` asks for: the given ones, and others that are bound.
pub(crate) fn bind(config: &Config, given: &mut Given) -> Result<Vec<Listener>, BindError> {
    let mut listeners = Vec::new();
    let mut missing = None;
    let mut taken = None;
    let plain = config
        .tcp
        .iter()
        .map(|&address| (address, Role::Clients, Listener::Tcp as fn(TcpListener) -> Listener));
    let secure = config
        .tls_tcp
        .iter()
        .map(|&address| (address, Role::Tls, Listener::Tls as fn(TcpListener) -> Listener));
    for (address, role, listener) in plain.chain(secure) {
        match given_or_bound_tcp(given, role, address, config.backlog) {
            Ok(bound) => listeners.extend(bound.into_iter().map(listener)),
            Err(error) => {
                let is_missing_ipv6 = is_missing_ipv6(address, &error);
                let is_taken = error.kind() == io::ErrorKind::AddrInUse;
                let error = BindError {
                    what: format!("tcp {address}"),
                    error,
                };
                if is_missing_ipv6 {
                    missing.get_or_insert(error);
                } else if is_taken && config.tcp_where_free {
                    taken.get_or_insert(error);
                } else {
                    return Err(error);
                }
            }
        }
    }
    match taken.or(missing) {
        Some(error) if listeners.is_empty() => return Err(error),
        Some(error) if error.error.kind() == io::ErrorKind::AddrInUse => log::warn!("{error}; serving on the other addresses"),
        Some(error) => log::info!("{error}"),
        None => {}
    }
    if let Some(socket) = &config.unix {
        let (listener, file) = given_or_bound_unix(given, Role::Clients, socket, config.backlog).map_err(|error| BindError {
            what: format!("unix {}", socket.path.display()),
            error,
        })?;
        listeners.push(Listener::Unix(listener, file));
    }
    if let Some(RegionSocket { path, .. }) = &config.region_socket {
        // Any user may connect here; each connection is checked before it gets the region.
        let socket = UnixSocket {
            path: path.clone(),
            mode: 0o777,
        };
        let bound = given_or_bound_unix(given, Role::RegionSocket, &socket, config.backlog);
        let (listener, file) = bound.map_err(|error| BindError {
            what: format!("unix {}", path.display()),
            error,
        })?;
        listeners.push(Listener::Region(listener, file));
    }
    Ok(listeners)
}

/// The sockets of the HTTP port.
pub(crate) fn bind_http(address: &HttpAddress, given: &mut Given) -> Result<HttpSockets, BindError> {
    let mut sockets = HttpSockets::default();
    match address {
        HttpAddress::Tcp(addresses) => {
            for &address in addresses {
                let failed = |error| BindError {
                    what: format!("http {address}"),
                    error,
                };
                match given_or_bound_tcp(given, Role::Http, address, HTTP_BACKLOG) {
                    Ok(listeners) => {
                        for listener in listeners {
                            let bound = listener.local_addr().map_err(failed)?;
                            sockets.names.push(bound.to_string());
                            sockets.listeners.push(keyway_http::Listener::Tcp(listener.into()));
                        }
                    }
                    // "localhost" on a machine with one address family
                    Err(error) if is_missing_ipv6(address, &error) && addresses.len() > 1 => log::info!("{}", failed(error)),
                    Err(error) => return Err(failed(error)),
                }
                if !address.ip().is_loopback() {
                    log::warn!(
                        "the HTTP port {address} has no login: every host that reaches it sees this server's numbers (no keys, no values); \
                         give a loopback address, or let a firewall or a proxy decide who reaches it"
                    );
                }
            }
        }
        HttpAddress::Unix(socket) => {
            let (listener, file) = given_or_bound_unix(given, Role::Http, socket, HTTP_BACKLOG).map_err(|error| BindError {
                what: format!("http {}", socket.path.display()),
                error,
            })?;
            sockets.names.push(file.path.display().to_string());
            sockets
                .listeners
                .push(keyway_http::Listener::Unix(OwnedFd::from(listener).into()));
            sockets.file = Some(file);
        }
    }
    Ok(sockets)
}

/// The socket through which the server serves processes that have the region in this file but no slot. `Err`: another server of the
/// region has the socket, or this kernel or sandbox has no abstract names; programs that find no slot then get no help.
pub(crate) fn bind_lines(region: (u64, u64)) -> io::Result<Listener> {
    use std::os::linux::net::SocketAddrExt;
    let name = std::os::unix::net::SocketAddr::from_abstract_name(keyway_cache::server::handout::line_name(region))?;
    Ok(Listener::Lines(UnixListener::bind_addr(&name)?))
}

/// The abstract name of the socket at which the server of this region (device and inode of its file) can be taken over.
pub(crate) fn take_over_name((device, inode): (u64, u64)) -> io::Result<std::os::unix::net::SocketAddr> {
    use std::os::linux::net::SocketAddrExt;
    std::os::unix::net::SocketAddr::from_abstract_name(format!("keyway-take-over {device}:{inode}"))
}

/// The socket at which another server can take over this one, which serves this region. `Err`: as for [`bind_lines`].
pub(crate) fn bind_take_over(region: (u64, u64)) -> io::Result<Listener> {
    Ok(Listener::TakeOver(UnixListener::bind_addr(&take_over_name(region)?)?))
}

/// "All interfaces" and "localhost" are bound in both address families; a machine without IPv6 has only one, which is enough.
fn is_missing_ipv6(address: SocketAddr, error: &io::Error) -> bool {
    let missing = [nix::libc::EAFNOSUPPORT, nix::libc::EADDRNOTAVAIL];
    let is_general = address.ip().is_unspecified() || address.ip().is_loopback();
    address.is_ipv6() && is_general && error.raw_os_error().is_some_and(|code| missing.contains(&code))
}

/// The given sockets of this address, or one that is bound now.
fn given_or_bound_tcp(given: &mut Given, role: Role, address: SocketAddr, backlog: i32) -> io::Result<Vec<TcpListener>> {
    let taken = given.take_tcp(role, address);
    if taken.is_empty() {
        return Ok(vec![bind_tcp(address, backlog)?]);
    }
    let listener = |fd| {
        let socket = Socket::from(fd);
        prepare_tcp(&socket)?;
        Ok(TcpListener::from_std(socket.into()))
    };
    taken.into_iter().map(listener).collect()
}

fn given_or_bound_unix(
    given: &mut Given,
    role: Role,
    wanted: &UnixSocket,
    backlog: i32,
) -> io::Result<(UnixListener, SocketFile)> {
    let Some(GivenUnix {
        fd,
        path,
        removes_file,
        is_shared,
    }) = given.take_unix(role, &wanted.path)
    else {
        return bind_unix(wanted, backlog);
    };
    let file = SocketFile {
        is_shared,
        identity: removes_file.then(|| identity(&path)).transpose()?,
        path,
    };
    Ok((UnixListener::from_std(fd.into()), file))
}

/// Accepted sockets inherit both (tcp(7)), which saves two system calls per connection.
fn prepare_tcp(socket: &Socket) -> io::Result<()> {
    socket.set_tcp_nodelay(true)?;
    socket.set_keepalive(true)
}

fn bind_tcp(address: SocketAddr, backlog: i32) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    prepare_tcp(&socket)?;
    socket.bind(&address.into())?;
    socket.listen(backlog)?;
    Ok(TcpListener::from_std(socket.into()))
}

/// The UDP sockets of `config`: the addresses, and for each thread one socket per address. The kernel spreads clients
/// over the sockets of one address (`SO_REUSEPORT`, socket(7)). The given sockets of an address are served by a thread each, in turn: no
/// others can be bound beside them, because they may belong to another user.
pub(crate) fn bind_udp(config: &Config, given: &mut Given) -> Result<(Vec<SocketAddr>, Vec<Vec<UdpSocket>>), BindError> {
    let mut addresses = Vec::new();
    let mut sockets: Vec<_> = (0..config.threads).map(|_| Vec::new()).collect();
    let mut missing = None;
    for &address in &config.udp {
        let taken = given.take_udp(address);
        if !taken.is_empty() {
            addresses.push(address);
            for (index, fd) in taken.into_iter().enumerate() {
                sockets[index % config.threads].push(udp_of(fd.into()));
            }
            continue;
        }
        let bound = bind_udp_group(address, config.threads);
        match bound {
            Ok((bound, group)) => {
                addresses.push(bound);
                sockets
                    .iter_mut()
                    .zip(group)
                    .for_each(|(sockets, socket)| sockets.push(socket));
            }
            Err(error) => {
                let is_missing_ipv6 = is_missing_ipv6(address, &error);
                let error = BindError {
                    what: format!("udp {address}"),
                    error,
                };
                if !is_missing_ipv6 {
                    return Err(error);
                }
                missing.get_or_insert(error);
            }
        }
    }
    match missing {
        Some(error) if addresses.is_empty() => Err(error),
        Some(error) => {
            log::info!("{error}");
            Ok((addresses, sockets))
        }
        None => Ok((addresses, sockets)),
    }
}

/// What a server that takes over gets of a UDP socket: a descriptor of its own.
pub(crate) fn offer_udp(socket: &UdpSocket) -> io::Result<Offered> {
    Ok(Offered {
        socket: OfferedSocket {
            purpose: Purpose::Clients,
            label: format!("udp {}", socket.local_addr()?),
            removes_file: false,
        },
        fd: socket.as_fd().try_clone_to_owned()?,
    })
}

/// `count` sockets on one address; port 0 becomes the same free port for all.
fn bind_udp_group(mut address: SocketAddr, count: usize) -> io::Result<(SocketAddr, Vec<UdpSocket>)> {
    // Sockets that share an address share its datagrams, even with another server of the same user. The first socket here
    // does not share, so binding it fails if there is such a server.
    let alone = udp_socket(address)?;
    alone.bind(&address.into())?;
    address.set_port(alone.local_addr()?.as_socket().map_or(address.port(), |bound| bound.port()));
    drop(alone);
    let mut group = Vec::new();
    for _ in 0..count {
        let socket = udp_socket(address)?;
        socket.set_reuse_port(true)?;
        socket.bind(&address.into())?;
        group.push(udp_of(socket));
    }
    Ok((address, group))
}

/// A bound socket, with buffers as large as the system allows: the kernel drops datagrams that do not fit.
fn udp_of(socket: Socket) -> UdpSocket {
    let _ = socket.set_recv_buffer_size(UDP_BUFFER_SIZE);
    let _ = socket.set_send_buffer_size(UDP_BUFFER_SIZE);
    UdpSocket::from_std(socket.into())
}

fn udp_socket(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM.nonblocking(), Some(Protocol::UDP))?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    Ok(socket)
}

fn bind_unix(wanted: &UnixSocket, backlog: i32) -> io::Result<(UnixListener, SocketFile)> {
    // Until the socket listens: before that its file looks stale.
    let _folder = lock_folder(&wanted.path);
    remove_stale(&wanted.path)?;
    let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None)?;
    let address = SockAddr::unix(&wanted.path)?;
    // The file has the socket's mode from its first moment on (unix(7)), so no path is followed to it once more: another user could have put
    // a link there.
    fchmod(&socket, Mode::from_bits_truncate(wanted.mode & 0o777))?;
    let mask = umask(Mode::from_bits_truncate(!wanted.mode & 0o777));
    let bound = socket.bind(&address);
    umask(mask);
    bound?;
    let path = whole(&wanted.path)?;
    let file = SocketFile {
        identity: Some(identity(&path)?),
        path,
        is_shared: false,
    };
    socket.listen(backlog)?;
    Ok((UnixListener::from_std(socket.into()), file))
}

/// Why no socket can have this path, if that is its length.
pub(crate) fn too_long(path: &Path) -> Option<io::Error> {
    let len = path.as_os_str().len();
    (len > PATH_LEN_MAX).then(|| {
        let why =
            format!("its path has {len} bytes, and a Unix socket's has at most {PATH_LEN_MAX} (unix(7)): choose a shorter one");
        io::Error::new(io::ErrorKind::InvalidInput, why)
    })
}

/// Longest path of a Unix socket, bytes: `sun_path` has one more, for its end (unix(7)).
const PATH_LEN_MAX: usize = 107;

/// The path of a file from the root on; a link at its end is not followed.
fn whole(path: &Path) -> io::Result<PathBuf> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    Ok(folder.unwrap_or(Path::new(".")).canonicalize()?.join(name))
}

/// Locks the folder of a socket's file (flock(2)). Of two servers that start at once, the second one would otherwise find a file stale that
/// the first one is about to replace, and remove the first one's. A folder that this process may not read is not locked, nor one that
/// another process has locked for a second.
fn lock_folder(path: &Path) -> Option<File> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = File::open(folder.unwrap_or(Path::new("."))).ok()?;
    for _ in 0..FOLDER_TRIES {
        match folder.try_lock() {
            Ok(()) => return Some(folder),
            Err(TryLockError::WouldBlock) => std::thread::sleep(FOLDER_WAIT),
            Err(TryLockError::Error(_)) => return None,
        }
    }
    None
}

/// Removes a socket file on which no process listens any more. Any other file at this path is an error.
fn remove_stale(path: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(file) if !file.file_type().is_socket() => Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "a file that is not a socket is there; remove it or choose another path",
        )),
        Ok(_) => {
            // Without waiting: the queue of a server that is stopped may be full, and such a server listens, too.
            let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None)?;
            match socket.connect(&SockAddr::unix(path)?) {
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path),
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
                _ => Err(io::ErrorKind::AddrInUse.into()),
            }
        }
    }
}

/// Device and inode.
fn identity(path: &Path) -> io::Result<(u64, u64)> {
    std::fs::symlink_metadata(path).map(|file| (file.dev(), file.ino()))
}

impl HttpSockets {
    /// What a server that takes over gets: descriptors of its own.
    pub(crate) fn offer(&self) -> io::Result<Vec<Offered>> {
        let of = |listener: &keyway_http::Listener| {
            let (fd, address) = match listener {
                keyway_http::Listener::Tcp(listener) => (listener.as_fd(), Some(listener.local_addr()?)),
                keyway_http::Listener::Unix(listener) => (listener.as_fd(), None),
            };
            let socket = match (address, &self.file) {
                (None, Some(file)) => file.offer(Purpose::Http),
                (address, _) => OfferedSocket {
                    purpose: Purpose::Http,
                    label: address.map_or_else(String::new, |address| format!("tcp {address}")),
                    removes_file: false,
                },
            };
            let fd = fd.try_clone_to_owned()?;
            Ok(Offered { socket, fd })
        };
        self.listeners.iter().map(of).collect()
    }
}

impl SocketFile {
    /// Whether another server has the socket and the role: then that one removes the file.
    pub(crate) fn set_shared(&mut self, is_shared: bool) {
        self.is_shared = is_shared;
    }

    /// How it is offered to a server that takes over.
    pub(crate) fn offer(&self, purpose: Purpose) -> OfferedSocket {
        OfferedSocket {
            purpose,
            label: format!("unix {}", self.path.display()),
            removes_file: self.identity.is_some(),
        }
    }

    /// Its path, if the file is removed.
    pub(crate) fn removed_at_end(&self) -> Option<&Path> {
        self.identity.map(|_| self.path.as_path())
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let is_ours = !self.is_shared && self.identity.is_some() && identity(&self.path).ok() == self.identity;
        if is_ours && let Err(error) = std::fs::remove_file(&self.path) {
            log::warn!("cannot remove {}: {error}", self.path.display());
        }
    }
}

impl Listener {
    /// Takes one waiting connection.
    pub(crate) fn accept(&self) -> io::Result<Arrival> {
        match self {
            Self::Tcp(listener) | Self::Tls(listener) => {
                let (stream, remote) = listener.accept()?;
                let local = stream.local_addr().ok();
                let is_secure = matches!(self, Self::Tls(_));
                let address = PeerAddress::Tcp {
                    remote,
                    local,
                    is_secure,
                };
                Ok(Arrival::Client(Stream::Tcp(stream), address))
            }
            Self::Unix(listener, _) => Ok(Arrival::Client(Stream::Unix(listener.accept()?.0), PeerAddress::Unix)),
            Self::Region(listener, _) => {
                let stream = listener.accept()?.0;
                // A client that wants to be served without a slot binds a name of its own (`keyway_cache::server::handout`). The kernel is asked for it: mio's accept()
                // does not report abstract names.
                let name = getpeername::<UnixAddr>(stream.as_raw_fd());
                let has_name = name.is_ok_and(|name| name.as_abstract().is_some());
                Ok(if has_name {
                    Arrival::Slotless(stream)
                } else {
                    Arrival::Attaching(stream)
                })
            }
            Self::Lines(listener) => Ok(Arrival::Slotless(listener.accept()?.0)),
            Self::TakeOver(listener) => Ok(Arrival::TakingOver(listener.accept()?.0)),
        }
    }

    /// Whether connections of this listener count as client connections.
    pub(crate) fn is_for_clients(&self) -> bool {
        !matches!(self, Self::Region(..) | Self::Lines(_) | Self::TakeOver(_))
    }

    pub(crate) fn fd(&self) -> RawFd {
        match self {
            Self::Tcp(listener) | Self::Tls(listener) => listener.as_raw_fd(),
            Self::Unix(listener, _) | Self::Region(listener, _) | Self::Lines(listener) | Self::TakeOver(listener) => {
                listener.as_raw_fd()
            }
        }
    }

    pub(crate) fn tcp_address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(listener) | Self::Tls(listener) => listener.local_addr().ok(),
            Self::Unix(..) | Self::Region(..) | Self::Lines(_) | Self::TakeOver(_) => None,
        }
    }

    /// The TCP address of a listener without TLS.
    pub(crate) fn plain_tcp_address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(listener) => listener.local_addr().ok(),
            Self::Tls(_) | Self::Unix(..) | Self::Region(..) | Self::Lines(_) | Self::TakeOver(_) => None,
        }
    }

    /// The file of a Unix socket that goes with the listener.
    pub(crate) fn file(&self) -> Option<&SocketFile> {
        match self {
            Self::Unix(_, file) | Self::Region(_, file) => Some(file),
            Self::Tcp(_) | Self::Tls(_) | Self::Lines(_) | Self::TakeOver(_) => None,
        }
    }

    /// Whether another server has the socket and the role.
    pub(crate) fn set_shared(&mut self, is_shared: bool) {
        match self {
            Self::Unix(_, file) | Self::Region(_, file) => file.set_shared(is_shared),
            Self::Tcp(_) | Self::Tls(_) | Self::Lines(_) | Self::TakeOver(_) => {}
        }
    }

    /// What a server that takes over gets: a descriptor of its own.
    pub(crate) fn offer(&self) -> io::Result<Offered> {
        let abstract_socket = |purpose| OfferedSocket {
            purpose,
            label: String::new(),
            removes_file: false,
        };
        let tcp = |purpose, listener: &TcpListener| {
            let label = listener.local_addr().map(|address| format!("tcp {address}"))?;
            Ok::<_, io::Error>(OfferedSocket {
                label,
                ..abstract_socket(purpose)
            })
        };
        let (socket, fd) = match self {
            Self::Tcp(listener) => (tcp(Purpose::Clients, listener)?, listener.as_fd()),
            Self::Tls(listener) => (tcp(Purpose::Tls, listener)?, listener.as_fd()),
            Self::Unix(listener, file) => (file.offer(Purpose::Clients), listener.as_fd()),
            Self::Region(listener, file) => (file.offer(Purpose::RegionSocket), listener.as_fd()),
            Self::Lines(listener) => (abstract_socket(Purpose::Lines), listener.as_fd()),
            Self::TakeOver(listener) => (abstract_socket(Purpose::TakeOver), listener.as_fd()),
        };
        let fd = fd.try_clone_to_owned()?;
        Ok(Offered { socket, fd })
    }

    /// The name in `stats conns` and in the ready line, if it is shown there.
    pub(crate) fn name(&self) -> Option<String> {
        Some(match self {
            Self::Lines(_) | Self::TakeOver(_) => return None,
            Self::Tcp(_) | Self::Tls(_) => {
                let protocol = if matches!(self, Self::Tls(_)) { "tls" } else { "tcp" };
                self.tcp_address()
                    .map_or_else(|| format!("{protocol}:?"), |address| format!("{protocol}:{address}"))
            }
            Self::Unix(_, file) => format!("unix:{}", file.path.display()),
            Self::Region(_, file) => format!("region-socket:{}", file.path.display()),
        })
    }

    pub(crate) fn as_source(&mut self) -> &mut dyn mio::event::Source {
        match self {
            Self::Tcp(listener) | Self::Tls(listener) => listener,
            Self::Unix(listener, _) | Self::Region(listener, _) | Self::Lines(listener) | Self::TakeOver(listener) => listener,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket(name: &str) -> UnixSocket {
        UnixSocket {
            path: std::env::temp_dir().join(format!("keyway-listener-{}-{name}", std::process::id())),
            mode: 0o700,
        }
    }

    #[test]
    fn a_socket_file_has_its_mode_and_goes_with_its_listener() {
        for mode in [0o700, 0o600, 0o770, 0o777] {
            let wanted = UnixSocket { mode, ..socket("mode") };
            let (_listener, file) = bind_unix(&wanted, 1).unwrap();
            assert_eq!(std::fs::symlink_metadata(&wanted.path).unwrap().mode() & 0o777, mode);
            drop(file);
            assert!(!wanted.path.exists());
        }
    }

    #[test]
    fn a_link_in_the_place_of_a_socket_file_is_not_followed() {
        let (wanted, other) = (socket("link"), socket("linked").path);
        for is_there in [false, true] {
            if is_there {
                std::fs::write(&other, "precious").unwrap();
            }
            std::os::unix::fs::symlink(&other, &wanted.path).unwrap();
            assert!(bind_unix(&wanted, 1).is_err());
            assert!(wanted.path.is_symlink() && other.exists() == is_there);
            std::fs::remove_file(&wanted.path).unwrap();
        }
        std::fs::remove_file(&other).unwrap();
    }

    #[test]
    fn a_stale_socket_file_is_replaced_and_a_live_one_is_not() {
        let wanted = socket("stale");
        drop(std::os::unix::net::UnixListener::bind(&wanted.path).unwrap());
        let (_listener, _file) = bind_unix(&wanted, 1).unwrap();
        assert_eq!(bind_unix(&wanted, 1).err().unwrap().kind(), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn of_servers_that_start_at_once_one_has_the_socket_and_keeps_it() {
        let wanted = socket("race");
        for _ in 0..100 {
            drop(std::os::unix::net::UnixListener::bind(&wanted.path).unwrap());
            let barrier = std::sync::Barrier::new(2);
            let start = || {
                barrier.wait();
                bind_unix(&wanted, 1)
            };
            let started =
                std::thread::scope(|scope| [scope.spawn(start), scope.spawn(start)].map(|server| server.join().unwrap()));
            let kinds = started.each_ref().map(|server| server.as_ref().err().map(io::Error::kind));
            assert!(
                kinds == [None, Some(io::ErrorKind::AddrInUse)] || kinds == [Some(io::ErrorKind::AddrInUse), None],
                "{kinds:?}"
            );
            std::os::unix::net::UnixStream::connect(&wanted.path).expect("the one that has started has the file");
        }
    }

    #[test]
    fn a_folder_that_is_locked_holds_no_server_up() {
        let folder = std::env::temp_dir().join(format!("keyway-listener-{}-folder", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let locked = File::open(&folder).unwrap();
        locked.lock().unwrap();
        let wanted = UnixSocket {
            path: folder.join("socket"),
            mode: 0o700,
        };
        let bound = bind_unix(&wanted, 1);
        std::fs::remove_dir_all(&folder).unwrap();
        bound.unwrap();
    }

    #[test]
    fn a_server_that_accepts_nothing_holds_no_other_one_up() {
        let wanted = socket("full");
        let (_listener, _file) = bind_unix(&wanted, 1).unwrap();
        let mut waiting = Vec::new();
        loop {
            let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None).unwrap();
            match socket.connect(&SockAddr::unix(&wanted.path).unwrap()) {
                Ok(()) => waiting.push(socket),
                Err(error) => break assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
        }
        assert_eq!(bind_unix(&wanted, 1).err().unwrap().kind(), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn a_file_that_is_no_socket_is_left_alone() {
        let wanted = socket("file");
        std::fs::write(&wanted.path, "precious").unwrap();
        let error = bind_unix(&wanted, 1).err().unwrap();
        assert_eq!(std::fs::read(&wanted.path).unwrap(), b"precious");
        std::fs::remove_file(&wanted.path).unwrap();
        assert!(error.to_string().contains("not a socket"));
    }

    #[test]
    fn errors_say_what_to_do() {
        let first = bind_tcp("127.0.0.1:0".parse().unwrap(), 1).unwrap();
        let address = first.local_addr().unwrap();
        let config = Config {
            tcp: vec![address],
            ..Config::default()
        };
        let error = bind(&config, &mut Given::default()).err().unwrap().to_string();
        assert!(
            error.contains(&address.to_string()) && error.contains("choose another address (--listen"),
            "{error}"
        );
    }
}
