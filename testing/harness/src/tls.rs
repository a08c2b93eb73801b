//! TLS for tests: certificates of their own, and a client.
//!
//! The client is a Unix socket pair: two threads carry what is written to one end through TLS to the server, and back. So a connection with
//! TLS is used like any other: half of it from another thread, closed in one direction.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose, SanType, date_time_ymd,
};
use rustls::client::{Resumption, WantsClientCert};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, ConfigBuilder, RootCertStore, SupportedProtocolVersion};

use crate::DEADLINE;

/// An authority that signs certificates.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// A certificate and its key, PEM.
#[derive(Clone, Debug)]
pub struct Identity {
    /// the certificate
    pub certificate: String,
    /// its private key
    pub key: String,
}

/// Until when a certificate is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Validity {
    /// for many years to come
    Valid,
    /// it ended years ago
    Expired,
}

impl Authority {
    /// A new one.
    ///
    /// # Panics
    ///
    /// When no key can be made.
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.distinguished_name.push(DnType::CommonName, "an authority for tests");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate().expect("a key");
        Self {
            issuer: CertifiedIssuer::self_signed(params, key).expect("a certificate"),
        }
    }

    /// Its certificate, PEM.
    pub fn certificate(&self) -> String {
        self.issuer.pem()
    }

    /// A certificate with this common name that it has signed, for `localhost` and 127.0.0.1.
    ///
    /// # Panics
    ///
    /// When none can be made.
    pub fn signs(&self, name: &str, validity: Validity) -> Identity {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
        params.subject_alt_names.push(SanType::IpAddress(Ipv4Addr::LOCALHOST.into()));
        params.distinguished_name.push(DnType::CommonName, name);
        params.not_before = date_time_ymd(2000, 1, 1);
        params.not_after = match validity {
            Validity::Valid => date_time_ymd(2100, 1, 1),
            Validity::Expired => date_time_ymd(2001, 1, 1),
        };
        let key = KeyPair::generate().expect("a key");
        Identity {
            certificate: params.signed_by(&key, &self.issuer).expect("a certificate").pem(),
            key: key.serialize_pem(),
        }
    }
}

impl Default for Authority {
    fn default() -> Self {
        Self::new()
    }
}

impl Identity {
    /// Writes it to the two files, and returns their paths.
    ///
    /// # Panics
    ///
    /// When they cannot be written.
    pub fn write_to(&self, folder: &Path, name: &str) -> (PathBuf, PathBuf) {
        let (certificate, key) = (folder.join(format!("{name}.pem")), folder.join(format!("{name}.key")));
        for (path, text) in [(&certificate, &self.certificate), (&key, &self.key)] {
            // Whole at once, because a server may be reading it.
            let new = path.with_extension("new");
            std::fs::write(&new, text)
                .and_then(|()| std::fs::rename(&new, path))
                .unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        }
        (certificate, key)
    }
}

/// How a client speaks TLS.
#[derive(Clone, Debug)]
pub struct TlsClient(Arc<ClientConfig>);

impl TlsClient {
    /// One that trusts this authority.
    pub fn trusting(authority: &Authority) -> Self {
        Self::build(builder(authority, rustls::ALL_VERSIONS).with_no_client_auth())
    }

    /// One that speaks this version of TLS only.
    pub fn speaking(authority: &Authority, version: &'static SupportedProtocolVersion) -> Self {
        Self::build(builder(authority, &[version]).with_no_client_auth())
    }

    /// One that has a certificate.
    ///
    /// # Panics
    ///
    /// When certificate and key do not fit.
    pub fn with_identity(authority: &Authority, identity: &Identity) -> Self {
        Self::identified(builder(authority, rustls::ALL_VERSIONS), identity)
    }

    /// One that has a certificate, and speaks this version of TLS only.
    ///
    /// # Panics
    ///
    /// When certificate and key do not fit.
    pub fn with_identity_speaking(
        authority: &Authority,
        identity: &Identity,
        version: &'static SupportedProtocolVersion,
    ) -> Self {
        Self::identified(builder(authority, &[version]), identity)
    }

    fn identified(builder: ConfigBuilder<ClientConfig, WantsClientCert>, identity: &Identity) -> Self {
        let chain = vec![CertificateDer::from_pem_slice(identity.certificate.as_bytes()).expect("a certificate")];
        let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).expect("a key");
        Self::build(builder.with_client_auth_cert(chain, key).expect("they fit"))
    }

    fn build(mut config: ClientConfig) -> Self {
        config.resumption = Resumption::in_memory_sessions(4);
        Self(Arc::new(config))
    }

    /// The same client, which resumes no session.
    #[must_use]
    pub fn without_sessions(&self) -> Self {
        let mut config = ClientConfig::clone(&self.0);
        config.resumption = Resumption::disabled();
        Self(Arc::new(config))
    }

    /// A session, before its handshake.
    ///
    /// # Panics
    ///
    /// When the configuration is unusable.
    pub fn session(&self) -> ClientConnection {
        let name = ServerName::try_from("localhost").expect("a name");
        ClientConnection::new(Arc::clone(&self.0), name).expect("a session")
    }

    /// Connects, and shakes hands. The certificate that the server showed comes with the connection.
    ///
    /// # Errors
    ///
    /// The server is not there, or one of the two refuses the other.
    pub fn connect(&self, address: SocketAddr) -> io::Result<(UnixStream, CertificateDer<'static>)> {
        let mut tcp = TcpStream::connect_timeout(&address, DEADLINE)?;
        tcp.set_nodelay(true)?;
        tcp.set_read_timeout(Some(DEADLINE))?;
        let mut session = self.session();
        while session.is_handshaking() {
            session.complete_io(&mut tcp)?;
        }
        tcp.set_read_timeout(None)?;
        let shown = session.peer_certificates().and_then(|chain| chain.first()).cloned();
        let shown = shown.ok_or(io::ErrorKind::InvalidData)?;
        Ok((carry(session, tcp)?, shown.into_owned()))
    }
}

fn builder(
    authority: &Authority,
    versions: &[&'static SupportedProtocolVersion],
) -> ConfigBuilder<ClientConfig, WantsClientCert> {
    let mut roots = RootCertStore::empty();
    roots.add(authority.issuer.der().clone()).expect("an authority's certificate");
    ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_protocol_versions(versions)
        .expect("versions that the provider has")
        .with_root_certificates(roots)
}

/// What the two threads of a connection share.
struct Carrier {
    session: Mutex<ClientConnection>,
    /// held while encrypted bytes are taken and sent, so that they leave in order
    sender: Mutex<TcpStream>,
}

/// Carries what is written to the returned socket, and what arrives, until either side ends.
fn carry(session: ClientConnection, tcp: TcpStream) -> io::Result<UnixStream> {
    let (near, far) = UnixStream::pair()?;
    let (mut from_server, mut from_client) = (tcp.try_clone()?, far.try_clone()?);
    let carrier = Arc::new(Carrier {
        session: Mutex::new(session),
        sender: Mutex::new(tcp),
    });
    let other = Arc::clone(&carrier);
    std::thread::spawn(move || {
        let mut room = [0; 16 << 10];
        while let Ok(count @ 1..) = from_client.read(&mut room) {
            if other.send(|session| session.writer().write_all(&room[..count])).is_err() {
                return;
            }
        }
        // The client has ended: the server sees that, and its last answers still come.
        let told = other.send(|session| {
            session.send_close_notify();
            Ok(())
        });
        if told.is_ok() {
            // An error means that the server was faster.
            let _ = lock(&other.sender).shutdown(Shutdown::Write);
        }
    });
    std::thread::spawn(move || {
        // Whatever ends it, the client sees the end of the stream.
        let _ = carrier.receive(&mut from_server, &far);
        let _ = far.shutdown(Shutdown::Both);
        let _ = from_server.shutdown(Shutdown::Both);
    });
    Ok(near)
}

impl Carrier {
    fn send(&self, act: impl FnOnce(&mut ClientConnection) -> io::Result<()>) -> io::Result<()> {
        let mut sender = lock(&self.sender);
        let mut bytes = Vec::new();
        {
            let mut session = lock(&self.session);
            act(&mut session)?;
            while session.wants_write() {
                session.write_tls(&mut bytes)?;
            }
        }
        sender.write_all(&bytes)
    }

    fn receive(&self, from_server: &mut TcpStream, mut to_client: &UnixStream) -> io::Result<()> {
        let mut room = vec![0; 64 << 10];
        loop {
            let count = from_server.read(&mut room)?;
            if count == 0 {
                return Ok(());
            }
            let (mut rest, mut plain) = (&room[..count], Vec::new());
            while !rest.is_empty() {
                let mut session = lock(&self.session);
                session.read_tls(&mut rest)?;
                let state = session.process_new_packets().map_err(io::Error::other)?;
                let start = plain.len();
                plain.resize(start + state.plaintext_bytes_to_read(), 0);
                session.reader().read_exact(&mut plain[start..])?;
                if state.peer_has_closed() {
                    rest = &[];
                }
            }
            to_client.write_all(&plain)?;
            if lock(&self.session).wants_write() {
                self.send(|_| Ok(()))?;
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
