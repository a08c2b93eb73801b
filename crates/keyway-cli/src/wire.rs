//! A connection to a server: its address or Unix socket, TLS, the login, and one answer after the other.
//!
//! Never: knows what is asked.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use keyway_proto::client::{self, Answer, Received};
use keyway_proto::reply::UNAUTHENTICATED;
use keyway_proto::{Store, StoreVerb};
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::exit::{self, Failure};
use crate::{listen, password, place};

/// Longest that a server may take to accept a connection, and to send each part of an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes that are read at a time.
const READ: usize = 64 << 10;
/// What is before an address with TLS, in `--listen` as well.
const TLS: &str = "tls://";

/// How to get in.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Access {
    /// Log in to the server as this user; the password is in --password-file, or asked for on the terminal
    #[arg(long, value_name = "NAME", requires = "server")]
    pub(crate) user: Option<String>,
    /// A file whose first line is the user's password
    #[arg(long, value_name = "FILE", requires = "user")]
    pub(crate) password_file: Option<PathBuf>,
    /// For tls://: a PEM file with the authorities that sign the server's certificate [default: the system's]
    #[arg(long, value_name = "FILE", requires = "server")]
    pub(crate) tls_ca: Option<PathBuf>,
    /// For tls://: a PEM file with this client's certificate
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// For tls://: a PEM file with its private key
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
}

/// A stream of bytes.
pub(crate) trait Wire: Read + Write {}
impl<T: Read + Write> Wire for T {}

/// A connection on which requests are answered in their order.
pub(crate) struct Client {
    place: String,
    wire: Box<dyn Wire>,
    arrived: Vec<u8>,
    /// bytes of these that are consumed
    consumed: usize,
    /// it is unknown where the next answer begins, or the connection is closed
    is_broken: bool,
}

impl Client {
    /// Connects to the server at `place`, and logs in if a user is named.
    pub(crate) fn connect(place: &str, access: &Access) -> Result<Self, Failure> {
        let mut client = Self {
            place: place.to_owned(),
            wire: open(place, access)?,
            arrived: Vec::new(),
            consumed: 0,
            is_broken: false,
        };
        if let Some(user) = &access.user {
            let password = password::known(user, access.password_file.as_deref())?;
            client.log_in(user, &password).map_err(|why| client.failure(why))?;
        }
        Ok(client)
    }

    /// This failure, with the server's place before it.
    pub(crate) fn failure(&self, why: impl std::fmt::Display) -> Failure {
        Failure::new(exit::NO, format_args!("{}: {why}", self.place))
    }

    pub(crate) fn place(&self) -> &str {
        &self.place
    }

    /// Whether no further answer can be heard.
    pub(crate) fn is_broken(&self) -> bool {
        self.is_broken
    }

    pub(crate) fn send(&mut self, request: &[u8]) -> Result<(), String> {
        let sent = self.wire.write_all(request).and_then(|()| self.wire.flush());
        self.is_broken |= sent.is_err();
        sent.map_err(failed)
    }

    /// Passes the next answer to `take`.
    pub(crate) fn receive<T>(&mut self, take: impl FnOnce(Answer<'_>) -> T) -> Result<T, String> {
        let received = self.receive_whole(take);
        self.is_broken |= received.is_err();
        received
    }

    fn receive_whole<T>(&mut self, take: impl FnOnce(Answer<'_>) -> T) -> Result<T, String> {
        loop {
            let input = self.arrived.get(self.consumed..).unwrap_or_default();
            let missing = match client::receive(input) {
                Received::Answer { consumed, answer } => {
                    let taken = take(answer);
                    self.consumed += consumed;
                    return Ok(taken);
                }
                Received::Broken(why) => {
                    let tls = match input.first() {
                        // A record of TLS (RFC 8446, section 5.1): an alert, or a handshake.
                        Some(0x15 | 0x16) => "; it seems to want TLS: write tls:// before its address",
                        _ => "",
                    };
                    return Err(format!("it does not speak memcached's protocol ({why}){tls}"));
                }
                Received::Incomplete { need } => need.saturating_sub(input.len()),
            };
            self.more(missing)?;
        }
    }

    /// Sends a request, and passes its answer to `take`.
    pub(crate) fn ask<T>(&mut self, request: &[u8], take: impl FnOnce(Answer<'_>) -> T) -> Result<T, String> {
        self.send(request)?;
        self.receive(take)
    }

    /// The lines of an answer to `stats`, by name.
    pub(crate) fn stats(&mut self, request: &str) -> Result<BTreeMap<String, String>, String> {
        self.send(request.as_bytes())?;
        let mut lines = BTreeMap::new();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        loop {
            let line = self.receive(|answer| match answer {
                Answer::Stat { name, value } => Ok(Some((text(name), text(value)))),
                Answer::End => Ok(None),
                other => Err(said(&other)),
            })?;
            match line? {
                Some((name, value)) => lines.insert(name, value),
                None => return Ok(lines),
            };
        }
    }

    /// The stream itself, on which no answer is waiting.
    pub(crate) fn into_wire(self) -> Box<dyn Wire> {
        self.wire
    }

    fn log_in(&mut self, user: &str, password: &[u8]) -> Result<(), String> {
        let token = [user.as_bytes(), b" ", password].concat();
        let mut request = Vec::new();
        let login = Store {
            verb: StoreVerb::Set,
            key: b"login",
            flags: 0,
            exptime: 0,
            cas: 0,
            noreply: false,
            value: &token,
        };
        client::store(&mut request, &login);
        self.ask(&request, |answer| match answer {
            Answer::Stored => Ok(()),
            other => Err(format!("it does not let {user} in: {}", said(&other))),
        })?
    }

    /// Waits for more bytes, about as many as are missing.
    fn more(&mut self, missing: usize) -> Result<(), String> {
        self.arrived.drain(..self.consumed);
        self.consumed = 0;
        let held = self.arrived.len();
        self.arrived.resize(held + missing.clamp(READ, 1 << 20), 0);
        let read = self.wire.read(self.arrived.get_mut(held..).unwrap_or_default());
        self.arrived.truncate(held + *read.as_ref().unwrap_or(&0));
        match read.map_err(failed)? {
            0 => Err(format!(
                "it closes the connection; if it wants TLS, write {TLS} before its address"
            )),
            _ => Ok(()),
        }
    }
}

/// What an answer says, on one line.
pub(crate) fn said(answer: &Answer<'_>) -> String {
    match answer {
        Answer::Error(line) if UNAUTHENTICATED.strip_suffix(b"\r\n") == Some(line) => {
            "it wants a login: name a user (--user), whose password is asked for or in --password-file".to_owned()
        }
        Answer::Line(line) if line.starts_with(b"HTTP/") => {
            format!("it speaks HTTP ({}): give a port of memcached's", line.escape_ascii())
        }
        Answer::Error(line) | Answer::Line(line) => format!("it answers {}", line.escape_ascii()),
        Answer::Meta { code, .. } => format!("it answers {}", code.escape_ascii()),
        other => format!("it answers {other:?}"),
    }
}

/// Connects to the server at this place, which may begin with `tls://`.
pub(crate) fn open(place: &str, access: &Access) -> Result<Box<dyn Wire>, Failure> {
    let (text, has_tls) = match place.strip_prefix(TLS) {
        Some(text) => (text, true),
        None => (place, false),
    };
    if !has_tls && (access.tls_ca.is_some() || access.tls_cert.is_some()) {
        return Err(Failure::usage(format_args!(
            "{place}: --tls-ca and --tls-cert are for addresses with TLS: {TLS}{place}"
        )));
    }
    if let Some((scheme, _)) = text.split_once("://") {
        return Err(Failure::usage(format_args!(
            "{place}: {scheme}:// is not known here: write ADDR[:PORT], {TLS}ADDR[:PORT], or the path of a Unix socket"
        )));
    }
    if text.contains('/') {
        return match has_tls {
            true => Err(Failure::usage(format_args!(
                "{place}: a Unix socket has no TLS: leave {TLS} out"
            ))),
            false => open_socket(place, text),
        };
    }
    let addresses = listen::parse(text, place::DEFAULT_PORT).map_err(|why| Failure::usage(format_args!("{place}: {why}")))?;
    match has_tls {
        true => open_tls(place, text, &addresses, access),
        false => open_tcp(place, &addresses).map(boxed),
    }
}

fn boxed(stream: impl Wire + 'static) -> Box<dyn Wire> {
    Box::new(stream)
}

/// Connects to the first of these addresses that accepts, with deadlines.
pub(crate) fn open_tcp(place: &str, addresses: &[SocketAddr]) -> Result<TcpStream, Failure> {
    let mut result = Err(io::Error::new(io::ErrorKind::InvalidInput, "port 0 is no port"));
    for address in addresses {
        result = TcpStream::connect_timeout(address, PATIENCE);
        if result.is_ok() {
            break;
        }
    }
    result
        .and_then(|stream| {
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            stream.set_nodelay(true)?;
            Ok(stream)
        })
        .map_err(|error| unanswered(place, &error))
}

/// Connects to a Unix socket, with deadlines.
pub(crate) fn open_socket(place: &str, path: &str) -> Result<Box<dyn Wire>, Failure> {
    connect_unix(path)
        .and_then(|stream| {
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            Ok(boxed(stream))
        })
        .map_err(|error| unanswered(place, &error))
}

fn unanswered(place: &str, error: &io::Error) -> Failure {
    let remedy = match error.kind() {
        io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => {
            "; none is there: start one, or give the place of one that runs"
        }
        io::ErrorKind::PermissionDenied => {
            "; this user may not write to the socket: `ls -l` says whose it is, and --socket-mode of the server lets others in"
        }
        _ => "",
    };
    Failure::new(exit::NO, format_args!("{place}: no server answers: {error}{remedy}"))
}

/// Connects to a Unix socket, without waiting: the kernel accepts at once, unless the server's queue is full.
fn connect_unix(path: &str) -> io::Result<UnixStream> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    connect(socket.as_raw_fd(), &UnixAddr::new(path)?).map_err(|error| match error {
        Errno::EAGAIN => io::Error::other("its queue of connections is full, and it takes none"),
        error => error.into(),
    })?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Connects, and agrees on keys at once, so that an untrusted certificate is an error here.
fn open_tls(place: &str, text: &str, addresses: &[SocketAddr], access: &Access) -> Result<Box<dyn Wire>, Failure> {
    let wrong = |why: String| Failure::new(exit::NO, format_args!("{place}: {why}"));
    let config = tls_config(access)?;
    let name = ServerName::try_from(listen::host(text).to_owned())
        .map_err(|_| Failure::usage(format_args!("{place}: no name that a certificate can have")))?;
    let mut stream = open_tcp(place, addresses)?;
    let mut connection = ClientConnection::new(config, name).map_err(|error| wrong(format!("TLS: {error}")))?;
    while connection.is_handshaking() {
        connection
            .complete_io(&mut stream)
            .map_err(|error| wrong(untrusted(&failed(error))))?;
    }
    Ok(boxed(StreamOwned::new(connection, stream)))
}

/// Why there was no agreement on keys.
fn untrusted(why: &str) -> String {
    match why.contains("CaUsedAsEndEntity") {
        true => {
            "TLS: the server's certificate is an authority's (CA:TRUE), as `openssl req -x509` makes it: make it with -addext \
                 basicConstraints=critical,CA:FALSE, or have an authority sign one"
                .to_owned()
        }
        false => format!("TLS: {why}; --tls-ca names the authority of its certificate, and tls:// is for a port with TLS"),
    }
}

fn tls_config(access: &Access) -> Result<Arc<ClientConfig>, Failure> {
    let unusable = |path: &Path, why: &dyn std::fmt::Display| Failure::usage(format_args!("{}: {why}", path.display()));
    let certificates = |path: &Path| {
        CertificateDer::pem_file_iter(path)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(|error| unusable(path, &format_args!("no certificates in PEM form: {error}")))
    };
    let mut roots = RootCertStore::empty();
    match &access.tls_ca {
        Some(path) => {
            for root in certificates(path)? {
                roots
                    .add(root)
                    .map_err(|error| unusable(path, &format_args!("no authority's certificate: {error}")))?;
            }
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    if roots.is_empty() {
        return Err(Failure::usage(
            "no authority is known that could sign the server's certificate: name its file (--tls-ca)",
        ));
    }
    let refused = |error: rustls::Error| Failure::usage(format_args!("TLS: {error}"));
    let builder = ClientConfig::builder_with_provider(keyway_server::crypto_provider())
        .with_safe_default_protocol_versions()
        .map_err(refused)?
        .with_root_certificates(roots);
    let config = match (&access.tls_cert, &access.tls_key) {
        (Some(certificate), Some(key)) => {
            let own = PrivateKeyDer::from_pem_file(key)
                .map_err(|error| unusable(key, &format_args!("no private key in PEM form: {error}")))?;
            builder
                .with_client_auth_cert(certificates(certificate)?, own)
                .map_err(refused)?
        }
        _ => builder.with_no_client_auth(),
    };
    Ok(Arc::new(config))
}

/// The reason of a failure, for people.
pub(crate) fn failed(error: io::Error) -> String {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => format!("no answer in {} s", PATIENCE.as_secs()),
        _ => error.to_string(),
    }
}
