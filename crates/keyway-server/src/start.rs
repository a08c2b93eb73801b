//! Whether a server can start: what its options and files show before anything is bound, and the reasons why it could not.

use std::fmt;
use std::io;
use std::path::PathBuf;

use keyway_cache::SessionError;

use crate::auth::{AuthFileError, Users};
use crate::config::{Config, HttpAddress};
use crate::given::GivenError;
use crate::listener::{BindError, too_long};
use crate::threads::NoThreads;
use crate::tls::{Certificates, TlsError};
use crate::worker;

/// Why a server could not start.
#[derive(Debug)]
pub enum StartError {
    /// no address and no Unix socket was given
    NothingToListenOn,
    /// UDP and authentication are both asked for: datagrams cannot log in
    UdpWithAuthentication,
    /// `threads` is 0
    NoThreads,
    /// the kernel door cannot be opened, for this reason
    Kernel(String),
    /// a socket that was given cannot be served
    Given(GivenError),
    /// a socket could not be bound
    Bind(BindError),
    /// TLS was asked for, but no certificate was given
    NoCertificate,
    /// the files for TLS are unusable
    Tls(TlsError),
    /// the authentication file is unusable
    AuthFile(PathBuf, AuthFileError),
    /// the region has no session for a worker
    Session {
        /// how many the server needs
        needed: usize,
        /// why it does not get them
        error: SessionError,
    },
    /// the system does not give as many threads
    Threads(NoThreads),
    /// io_uring is required, and the system does not have it
    NoUring(io::Error),
    /// the system refused something else
    System(io::Error),
    /// the path of a Unix socket is too long
    SocketPath(PathBuf, io::Error),
}

impl Config {
    /// Whether a server can serve with these options, as far as they show that by themselves.
    ///
    /// # Errors
    ///
    /// No client could connect, there is no thread, or two options exclude each other.
    pub fn check(&self) -> Result<(), StartError> {
        let listens_nowhere = self.tcp.is_empty() && self.tls_tcp.is_empty() && self.unix.is_none() && self.udp.is_empty();
        if listens_nowhere && !self.may_listen_nowhere {
            return Err(StartError::NothingToListenOn);
        }
        if self.threads == 0 {
            return Err(StartError::NoThreads);
        }
        if self.auth_file.is_some() && !self.udp.is_empty() {
            return Err(StartError::UdpWithAuthentication);
        }
        let http = match &self.http {
            Some(HttpAddress::Unix(socket)) => Some(&socket.path),
            _ => None,
        };
        let unix = self.unix.iter().map(|socket| &socket.path);
        let region = self.region_socket.iter().map(|socket| &socket.path);
        let too_long = |path: &PathBuf| Some(StartError::SocketPath(path.clone(), too_long(path)?));
        unix.chain(region).chain(http).find_map(too_long).map_or(Ok(()), Err)
    }

    /// Whether a server can serve with these options on this machine, as far as files and interfaces show it: nothing is bound or changed.
    ///
    /// # Errors
    ///
    /// Those of [`Self::check`]; the file of users or a file of TLS is absent or unusable; an interface is absent.
    pub fn check_here(&self) -> Result<(), StartError> {
        self.check()?;
        self.users()?;
        self.certificates()?;
        #[cfg(feature = "kernel")]
        for name in self.kernel.iter().flat_map(|kernel| &kernel.interfaces) {
            crate::kernel::interface(name).map_err(StartError::Kernel)?;
        }
        Ok(())
    }

    /// The users, from their file.
    pub(crate) fn users(&self) -> Result<Option<Users>, StartError> {
        let load =
            |path: &PathBuf| Users::load(path, &self.auth_lines, None).map_err(|error| StartError::AuthFile(path.clone(), error));
        self.auth_file.as_ref().map(load).transpose()
    }

    /// Certificate and key, from their files.
    pub(crate) fn certificates(&self) -> Result<Option<Certificates>, StartError> {
        match &self.tls {
            Some(tls) => Certificates::load(tls.clone()).map(Some).map_err(StartError::Tls),
            None if self.tls_tcp.is_empty() => Ok(None),
            None => Err(StartError::NoCertificate),
        }
    }
}

impl From<io::Error> for StartError {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NothingToListenOn => {
                f.write_str("nothing to listen on: give a TCP address (port not 0), a Unix socket or a UDP address")
            }
            Self::UdpWithAuthentication => f.write_str("UDP with an authentication file: datagrams cannot log in; leave one out"),
            Self::SocketPath(path, why) => write!(f, "{}: {why}", path.display()),
            Self::NoThreads => f.write_str("0 threads cannot serve a client: give at least 1"),
            Self::Kernel(why) => f.write_str(why),
            Self::Given(error) => error.fmt(f),
            Self::Bind(error) => error.fmt(f),
            Self::NoCertificate => f.write_str("TLS needs a certificate and its key"),
            Self::Tls(error) => write!(f, "TLS: {error}"),
            Self::AuthFile(path, error) => write!(f, "the authentication file {} {error}", path.display()),
            Self::NoUring(error) => match worker::ring_remedy(error).as_str() {
                "" => write!(
                    f,
                    "io_uring is not to be had here: {error}; it takes Linux 6.1, and no seccomp filter or sysctl kernel.io_uring_disabled in \
                     its way; leave --event-loop out"
                ),
                remedy => write!(
                    f,
                    "io_uring is not to be had here: {error}{remedy}; or leave --event-loop out"
                ),
            },
            Self::Session {
                needed,
                error: SessionError::TableFull { slots },
            } => write!(
                f,
                "the server needs {needed} thread slots of the region, which has {slots}, or other processes have too many of them; give the server \
                 fewer threads (--threads, -t), or let it make a new region: remove the region's file, or name another one"
            ),
            Self::Session { error, .. } => write!(f, "no session in the region for a worker thread: {error}"),
            Self::Threads(why) => why.fmt(f),
            Self::System(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for StartError {}
