//! Sockets that exist before the server: another process has bound them, and gives their descriptors.
//!
//! Each is checked when it is added: what it is must be what it is for, and it must listen. [`Given::ask_for`] then adds their addresses
//! to a [`Config`], which so names all that is served; [`crate::Sockets::bind_beside`] takes a given socket where the configuration names
//! its address, and binds the others.
//!
//! A server offers its own sockets ([`Offered`]) to one that takes over, where they are given.
//!
//! Never: reads descriptors from the environment (the program does), or decides what happens to a socket that is left out.

use std::fmt;
use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use nix::sys::stat::fstat;
use serde::{Deserialize, Serialize};
use socket2::{Domain, Protocol, SockRef, Type};

use crate::config::{Config, HttpAddress, RegionSocket, UnixSocket};

/// What a given socket is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// clients: a TCP socket without TLS, a Unix stream socket, or a UDP socket
    Clients,
    /// clients with TLS: a TCP socket
    Tls,
    /// programs that want the region itself: a Unix stream socket
    RegionSocket,
    /// the HTTP port: a TCP or a Unix stream socket
    Http,
}

/// Where a given socket listens.
#[derive(Clone, Debug, PartialEq, Eq)]
enum At {
    Tcp(SocketAddr),
    Udp(SocketAddr),
    Unix(PathBuf),
}

/// A checked socket.
#[derive(Debug)]
struct GivenSocket {
    fd: OwnedFd,
    label: String,
    role: Role,
    at: At,
    removes_file: bool,
    /// device and inode: two descriptors of one socket have the same
    identity: (u64, u64),
}

/// The sockets that a server is given.
#[derive(Debug, Default)]
pub struct Given {
    sockets: Vec<GivenSocket>,
    /// another server has them, too, and removes their files as long as it has the role
    is_shared: bool,
}

/// A Unix socket that was given: its path, and whether the server removes its file at its end.
pub(crate) struct GivenUnix {
    pub(crate) fd: OwnedFd,
    pub(crate) path: PathBuf,
    pub(crate) removes_file: bool,
    /// not yet: another server has the socket, too
    pub(crate) is_shared: bool,
}

/// A socket that is handed over and is no client's connection.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct OfferedSocket {
    pub(crate) purpose: Purpose,
    /// for people
    pub(crate) label: String,
    /// the server that has it removes the file at its path when it ends
    pub(crate) removes_file: bool,
}

/// What it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Purpose {
    Clients,
    Tls,
    RegionSocket,
    Http,
    /// programs that find no slot in the region
    Lines,
    /// servers that take over
    TakeOver,
    /// the lock on a pinned kernel program
    PinnedProgram,
}

/// A socket that can be handed over: a descriptor of its own.
pub(crate) struct Offered {
    pub(crate) socket: OfferedSocket,
    pub(crate) fd: OwnedFd,
}

impl Offered {
    /// The lock on a pinned kernel program.
    pub(crate) fn pinned(lock: File) -> Self {
        Self {
            socket: OfferedSocket {
                purpose: Purpose::PinnedProgram,
                label: String::new(),
                removes_file: false,
            },
            fd: lock.into(),
        }
    }
}

/// A descriptor that cannot be served; the text names it and says why.
#[derive(Debug)]
pub struct GivenError(String);

impl fmt::Display for GivenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for GivenError {}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "tcp {address}"),
            Self::Udp(address) => write!(f, "udp {address}"),
            Self::Unix(path) => write!(f, "unix {}", path.display()),
        }
    }
}

impl Role {
    fn wants(self) -> &'static str {
        match self {
            Self::Clients => "clients need a listening TCP or Unix stream socket, or a bound UDP socket",
            Self::Tls => "TLS needs a listening TCP socket",
            Self::RegionSocket => "the region socket must be a listening Unix stream socket",
            Self::Http => "HTTP needs a listening TCP or Unix stream socket",
        }
    }

    fn may_be(self, at: &At) -> bool {
        match at {
            At::Tcp(_) => self != Self::RegionSocket,
            At::Udp(_) => self == Self::Clients,
            At::Unix(_) => self != Self::Tls,
        }
    }
}

impl Given {
    /// Adds a socket for `role`. `label` names the descriptor in messages. `removes_file`: the server removes a Unix socket's file at its
    /// end, as it does with its own; `false`: the process that bound it does.
    ///
    /// # Errors
    ///
    /// The descriptor is no socket, or not one that `role` needs; it does not listen; the same socket was added before.
    pub fn add(&mut self, fd: OwnedFd, label: impl Into<String>, role: Role, removes_file: bool) -> Result<(), GivenError> {
        let label = label.into();
        let refused = |why: &dyn fmt::Display| GivenError(format!("{label}: {why}; {}", role.wants()));
        let identity = fstat(&fd)
            .map(|stat| (stat.st_dev, stat.st_ino))
            .map_err(|error| refused(&format_args!("the descriptor cannot be used: {error}")))?;
        let at = examine(&fd).map_err(|why| refused(&why))?;
        if !role.may_be(&at) {
            return Err(refused(&format_args!("it is {at}")));
        }
        if let Some(same) = self.sockets.iter().find(|socket| socket.identity == identity) {
            return Err(GivenError(format!(
                "{label}: it is the same socket as {}; give each once",
                same.label
            )));
        }
        SockRef::from(&fd)
            .set_nonblocking(true)
            .map_err(|error| refused(&format_args!("it cannot be made non-blocking: {error}")))?;
        self.sockets.push(GivenSocket {
            fd,
            label,
            role,
            at,
            removes_file,
            identity,
        });
        Ok(())
    }

    /// None yet. Those that are added are another server's, too, until this one has taken over.
    pub(crate) fn shared() -> Self {
        Self {
            is_shared: true,
            ..Self::default()
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.sockets.is_empty()
    }

    /// Whether one of them is for clients, with or without TLS.
    pub fn has_clients(&self) -> bool {
        self.has(Role::Clients) || self.has(Role::Tls)
    }

    /// Whether one of them is for this.
    pub fn has(&self, role: Role) -> bool {
        self.sockets.iter().any(|socket| socket.role == role)
    }

    /// Adds the addresses of all these sockets to `config`, unless they are there.
    ///
    /// # Errors
    ///
    /// `config` names another Unix socket for the same purpose, or two are given: a server has one for each.
    pub fn ask_for(&self, config: &mut Config) -> Result<(), GivenError> {
        for GivenSocket { label, role, at, .. } in &self.sockets {
            let one_only = |other: &Path, option: &str| {
                GivenError(format!(
                    "{label}: it is {at}, and {} is asked for as well ({option}, or another descriptor): there can be one such Unix \
                     socket; leave one out",
                    other.display()
                ))
            };
            match (role, at) {
                (Role::Tls, At::Tcp(address)) => add(&mut config.tls_tcp, *address),
                (Role::Clients, At::Tcp(address)) => add(&mut config.tcp, *address),
                (_, At::Udp(address)) => add(&mut config.udp, *address),
                (Role::RegionSocket, At::Unix(path)) => match &config.region_socket {
                    Some(socket) if !is_same(&socket.path, path) => return Err(one_only(&socket.path, "--region-socket")),
                    Some(_) => {}
                    None => {
                        config.region_socket = Some(RegionSocket {
                            path: path.clone(),
                            ..RegionSocket::default()
                        });
                    }
                },
                (Role::Http, At::Unix(path)) => match &config.http {
                    Some(HttpAddress::Unix(socket)) if is_same(&socket.path, path) => {}
                    Some(HttpAddress::Unix(socket)) => return Err(one_only(&socket.path, "--http")),
                    Some(HttpAddress::Tcp(_)) => return Err(both_kinds(label)),
                    None => config.http = Some(HttpAddress::Unix(unix_socket(path))),
                },
                (Role::Http, At::Tcp(address)) => match &mut config.http {
                    Some(HttpAddress::Tcp(addresses)) => add(addresses, *address),
                    Some(HttpAddress::Unix(_)) => return Err(both_kinds(label)),
                    None => config.http = Some(HttpAddress::Tcp(vec![*address])),
                },
                (_, At::Unix(path)) => match &config.unix {
                    Some(socket) if !is_same(&socket.path, path) => return Err(one_only(&socket.path, "--socket")),
                    Some(_) => {}
                    None => config.unix = Some(unix_socket(path)),
                },
                // `add` has refused it.
                (Role::RegionSocket, At::Tcp(_)) => {}
            }
        }
        Ok(())
    }

    /// The TCP sockets for `role` on this address.
    pub(crate) fn take_tcp(&mut self, role: Role, address: SocketAddr) -> Vec<OwnedFd> {
        self.take(role, |at| *at == At::Tcp(address))
            .map(|socket| socket.fd)
            .collect()
    }

    /// The UDP sockets on this address.
    pub(crate) fn take_udp(&mut self, address: SocketAddr) -> Vec<OwnedFd> {
        self.take(Role::Clients, |at| *at == At::Udp(address))
            .map(|socket| socket.fd)
            .collect()
    }

    /// The Unix socket for `role` at this path.
    pub(crate) fn take_unix(&mut self, role: Role, path: &Path) -> Option<GivenUnix> {
        let found = self.take(role, |at| matches!(at, At::Unix(own) if is_same(own, path))).next();
        let GivenSocket {
            fd, at, removes_file, ..
        } = found?;
        match at {
            At::Unix(path) => Some(GivenUnix {
                fd,
                path,
                removes_file,
                is_shared: self.is_shared,
            }),
            At::Tcp(_) | At::Udp(_) => None,
        }
    }

    fn take(&mut self, role: Role, is_wanted: impl Fn(&At) -> bool) -> std::vec::IntoIter<GivenSocket> {
        let (taken, left) = std::mem::take(&mut self.sockets)
            .into_iter()
            .partition(|socket| socket.role == role && is_wanted(&socket.at));
        self.sockets = left;
        Vec::into_iter(taken)
    }
}

fn add(addresses: &mut Vec<SocketAddr>, address: SocketAddr) {
    if !addresses.contains(&address) {
        addresses.push(address);
    }
}

fn both_kinds(label: &str) -> GivenError {
    GivenError(format!(
        "{label}: the HTTP port is asked for on TCP and on a Unix socket; leave one out (--http, or a descriptor)"
    ))
}

fn unix_socket(path: &Path) -> UnixSocket {
    UnixSocket {
        path: path.to_owned(),
        mode: std::fs::metadata(path).map_or(0o700, |meta| meta.permissions().mode() & 0o777),
    }
}

/// Whether both paths lead to the same place.
fn is_same(a: &Path, b: &Path) -> bool {
    a == b || a.canonicalize().is_ok_and(|a| b.canonicalize().is_ok_and(|b| a == b))
}

/// Where a socket listens, or why it cannot be served.
fn examine(fd: &impl AsFd) -> Result<At, String> {
    let socket = SockRef::from(fd);
    let asked = |error: io::Error| match error.raw_os_error() {
        Some(nix::libc::ENOTSOCK) => "it is no socket".to_owned(),
        _ => format!("the descriptor cannot be used: {error}"),
    };
    let (domain, kind) = (socket.domain().map_err(asked)?, socket.r#type().map_err(asked)?);
    let protocol = socket.protocol().map_err(asked)?;
    let address = socket.local_addr().map_err(asked)?;
    let is_internet = domain == Domain::IPV4 || domain == Domain::IPV6;
    if kind == Type::STREAM && !socket.is_listener().map_err(asked)? {
        return Err("it does not listen".to_owned());
    }
    match address.as_socket() {
        Some(address) if is_internet && kind == Type::STREAM && protocol == Some(Protocol::TCP) => Ok(At::Tcp(address)),
        Some(address) if is_internet && kind == Type::DGRAM && protocol == Some(Protocol::UDP) => {
            if socket.peer_addr().is_ok() {
                Err(format!("it is udp {address}, connected to one client"))
            } else if address.port() == 0 {
                Err("it is a UDP socket that is not bound".to_owned())
            } else {
                Ok(At::Udp(address))
            }
        }
        _ if domain == Domain::UNIX && kind == Type::STREAM => match address.as_pathname() {
            Some(path) => Ok(At::Unix(path.to_owned())),
            None => Err("it is a Unix socket without a path".to_owned()),
        },
        _ => Err(format!("it is a socket of another kind (family {domain:?}, type {kind:?})")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::unix::net::{UnixDatagram, UnixListener};

    fn tcp() -> TcpListener {
        TcpListener::bind("127.0.0.1:0").unwrap()
    }

    fn folder() -> PathBuf {
        use std::sync::atomic::{AtomicU32, Ordering};
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "keyway-given-{}-{}",
            std::process::id(),
            COUNT.fetch_add(1, Ordering::Relaxed)
        );
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        path
    }

    #[test]
    fn what_is_given_is_asked_for_and_taken_once() {
        let folder = folder();
        let (plain, secure, udp) = (tcp(), tcp(), UdpSocket::bind("127.0.0.1:0").unwrap());
        let addresses = (
            plain.local_addr().unwrap(),
            secure.local_addr().unwrap(),
            udp.local_addr().unwrap(),
        );
        let (unix, region) = (folder.join("unix"), folder.join("region"));
        let mut given = Given::default();
        given.add(plain.into(), "3", Role::Clients, false).unwrap();
        given.add(secure.into(), "4", Role::Tls, false).unwrap();
        given.add(udp.into(), "5", Role::Clients, false).unwrap();
        let bound = [&unix, &region].map(|path| UnixListener::bind(path).unwrap());
        for (listener, role) in bound.into_iter().zip([Role::Clients, Role::RegionSocket]) {
            given.add(listener.into(), "6", role, false).unwrap();
        }
        let mut config = Config::default();
        given.ask_for(&mut config).unwrap();
        assert_eq!((&config.tcp, &config.tls_tcp), (&vec![addresses.0], &vec![addresses.1]));
        assert_eq!(config.udp, [addresses.2]);
        assert_eq!(config.unix.as_ref().unwrap().path, unix);
        assert_eq!(config.region_socket.as_ref().unwrap().path, region);
        assert!(given.take_tcp(Role::Clients, addresses.1).is_empty(), "that one is for TLS");
        assert_eq!(given.take_tcp(Role::Tls, addresses.1).len(), 1);
        assert!(given.take_tcp(Role::Tls, addresses.1).is_empty());
        assert_eq!(given.take_udp(addresses.2).len(), 1);
        assert!(given.take_unix(Role::Clients, &region).is_none());
        assert_eq!(given.take_unix(Role::RegionSocket, &region).unwrap().path, region);
        assert!(given.has_clients());
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_descriptor_that_is_not_what_its_role_needs_is_refused_by_its_name() {
        let folder = folder();
        let listener = tcp();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let connected = UdpSocket::bind("127.0.0.1:0").unwrap();
        connected.connect("127.0.0.1:9").unwrap();
        let unbound = socket2::Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
        let path = folder.join("datagrams");
        let file = std::fs::File::create(folder.join("file")).unwrap();
        let wrong: Vec<(OwnedFd, Role, &str)> = vec![
            (file.into(), Role::Clients, "no socket"),
            (client.into(), Role::Clients, "does not listen"),
            (connected.into(), Role::Clients, "connected to one client"),
            (unbound.into(), Role::Clients, "not bound"),
            (UnixDatagram::bind(&path).unwrap().into(), Role::Clients, "another kind"),
            (UdpSocket::bind("127.0.0.1:0").unwrap().into(), Role::Tls, "udp 127.0.0.1"),
            (UdpSocket::bind("127.0.0.1:0").unwrap().into(), Role::Http, "udp 127.0.0.1"),
            (tcp().into(), Role::RegionSocket, "tcp 127.0.0.1"),
            (UnixListener::bind(folder.join("unix")).unwrap().into(), Role::Tls, "unix /"),
        ];
        for (fd, role, why) in wrong {
            let mut given = Given::default();
            let error = given.add(fd, "descriptor 7 (\"x\")", role, false).unwrap_err().to_string();
            assert!(error.starts_with("descriptor 7 (\"x\"): ") && error.contains(why), "{error}");
            assert!(error.contains(role.wants()), "{error}");
            assert!(given.is_empty());
        }
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn one_socket_is_given_once() {
        let listener = tcp();
        let mut given = Given::default();
        given
            .add(listener.try_clone().unwrap().into(), "3", Role::Clients, false)
            .unwrap();
        let error = given.add(listener.into(), "4", Role::Http, false).unwrap_err().to_string();
        assert!(error.contains("same socket as 3"), "{error}");
    }

    #[test]
    fn there_is_one_unix_socket_for_each_purpose() {
        let folder = folder();
        let mut given = Given::default();
        given
            .add(
                UnixListener::bind(folder.join("a")).unwrap().into(),
                "3",
                Role::Clients,
                false,
            )
            .unwrap();
        let mut config = Config {
            unix: Some(unix_socket(&folder.join("b"))),
            ..Config::default()
        };
        let error = given.ask_for(&mut config).unwrap_err().to_string();
        assert!(error.contains("--socket") && error.contains("leave one out"), "{error}");
        config.unix = Some(unix_socket(&folder.join("./a")));
        given.ask_for(&mut config).unwrap();
        std::fs::remove_dir_all(folder).unwrap();
    }
}
