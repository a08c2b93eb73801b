//! TLS: the settings, and the certificate that new connections are served with.
//!
//! The files are read at the start and again on SIGHUP and by `refresh_certs`. New connections then get the new certificate; established
//! ones keep theirs. Files that cannot be used leave the certificate that is in force. What one connection does is in
//! `connection::secure`; how long a client may continue its sessions is in `tickets`.

mod keys;
mod tickets;

use std::fmt;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs1KeyDer, PrivatePkcs8KeyDer, PrivateSec1KeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, ProducesTickets, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::time_provider::{DefaultTimeProvider, TimeProvider};
use rustls::{RootCertStore, ServerConfig, SupportedProtocolVersion};
use x509_cert::der::oid::ObjectIdentifier;
use x509_cert::der::{Decode, Encode};
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;
use x509_cert::spki::SubjectPublicKeyInfoOwned;

/// The bit of a file's mode that lets every user read it.
const OTHERS: u32 = 0o004;
/// The attribute of a subject that is its common name (X.520).
const COMMON_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.3");
/// Seconds in a day.
const DAY_S: i64 = 24 * 60 * 60;

/// Settings of TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// PEM file with the server's certificate, followed by those that lead to its authority
    pub certificate: PathBuf,
    /// PEM file with the certificate's private key
    pub key: PathBuf,
    /// PEM file with the authorities whose client certificates are accepted
    pub client_ca: Option<PathBuf>,
    /// which clients need a certificate
    pub client_certificates: ClientCertificates,
    /// the oldest protocol version that is spoken
    pub min_version: TlsVersion,
}

/// Which clients need a certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientCertificates {
    /// none is asked for
    #[default]
    Ignored,
    /// a client may have one; if it has one, it must be valid
    Optional,
    /// every client
    Required,
}

impl ClientCertificates {
    /// memcached's number for it (`ssl_verify_mode`).
    pub(crate) fn mode(self) -> u8 {
        match self {
            Self::Ignored => 0,
            Self::Optional => 1,
            Self::Required => 2,
        }
    }
}

/// A version of TLS. Versions before 1.2 are not spoken (RFC 8996).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsVersion {
    /// TLS 1.2
    #[default]
    V1_2,
    /// TLS 1.3
    V1_3,
}

impl TlsVersion {
    /// Its name in `stats settings`, as memcached has it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::V1_2 => "tlsv1.2",
            Self::V1_3 => "tlsv1.3",
        }
    }
}

/// Why TLS cannot be used with these files.
#[derive(Debug)]
pub enum TlsError {
    /// a file cannot be read, or is not what it has to be
    File(PathBuf, String),
    /// certificate and key do not belong together, or rustls does not accept them
    Refused(PathBuf, rustls::Error),
    /// client certificates are asked for, but no authority is named
    NoClientCa,
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path, why) => write!(f, "{}: {why}", path.display()),
            Self::Refused(path, error) => write!(f, "{} cannot be used with its key: {error}", path.display()),
            Self::NoClientCa => {
                f.write_str("client certificates are asked for, but there is no file with the authorities that sign them")
            }
        }
    }
}

impl std::error::Error for TlsError {}

/// The certificate that is in force.
pub(crate) struct Certificates {
    settings: Tls,
    started: Instant,
    current: RwLock<Loaded>,
    /// handshakes that failed, and established connections that broke the protocol
    pub(crate) handshake_errors: AtomicU64,
    pub(crate) protocol_errors: AtomicU64,
    /// handshakes that agreed on new keys, instead of resuming an earlier session
    pub(crate) new_sessions: AtomicU64,
}

/// What was read from the files.
struct Loaded {
    terms: Terms,
    /// seconds after the epoch when the certificate's validity ends
    not_after_s: i64,
    /// seconds after the server's start when the files were read
    at_s: u64,
}

impl Certificates {
    pub(crate) fn load(settings: Tls) -> Result<Self, TlsError> {
        let current = Loaded::read(&settings, 0, Arc::new(DefaultTimeProvider))?;
        if std::fs::metadata(&settings.key).is_ok_and(|file| file.mode() & OTHERS != 0) {
            log::warn!(
                "{}: every user of this machine can read this private key; chmod 600 it",
                settings.key.display()
            );
        }
        Ok(Self {
            current: RwLock::new(current),
            settings,
            started: Instant::now(),
            handshake_errors: AtomicU64::new(0),
            protocol_errors: AtomicU64::new(0),
            new_sessions: AtomicU64::new(0),
        })
    }

    /// Reads the files again.
    pub(crate) fn refresh(&self) -> Result<(), TlsError> {
        let loaded = Loaded::read(
            &self.settings,
            self.started.elapsed().as_secs(),
            Arc::new(DefaultTimeProvider),
        )?;
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = loaded;
        Ok(())
    }

    /// What a new connection is served with.
    ///
    /// # Errors
    ///
    /// None that was not met when the files were read.
    pub(crate) fn config(&self) -> Result<Arc<ServerConfig>, rustls::Error> {
        self.read().terms.config()
    }

    pub(crate) fn settings(&self) -> &Tls {
        &self.settings
    }

    /// Seconds since the files were read.
    pub(crate) fn age_s(&self) -> u64 {
        self.started.elapsed().as_secs().saturating_sub(self.read().at_s)
    }

    /// Whole days until the certificate's validity ends; negative after it.
    pub(crate) fn days_left(&self) -> i64 {
        let now_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
        (self.read().not_after_s - i64::try_from(now_s).unwrap_or(i64::MAX)).div_euclid(DAY_S)
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, Loaded> {
        self.current.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The ciphers, for clients that this program is as well.
pub fn crypto_provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// What connections are served with.
enum Terms {
    /// all with the same
    Common(Arc<ServerConfig>),
    /// each with its own, because clients have certificates ([`tickets`])
    Each(Parts),
}

/// What a connection's configuration is made of.
struct Parts {
    provider: Arc<CryptoProvider>,
    clock: Arc<dyn TimeProvider>,
    versions: Vec<&'static SupportedProtocolVersion>,
    identity: Arc<dyn ResolvesServerCert>,
    tickets: Arc<dyn ProducesTickets>,
    /// `None`: no client is asked for a certificate
    verifier: Option<Arc<dyn ClientCertVerifier>>,
}

impl Loaded {
    fn read(settings: &Tls, at_s: u64, clock: Arc<dyn TimeProvider>) -> Result<Self, TlsError> {
        let chain = certificates(&settings.certificate)?;
        let key = PrivateKeyDer::from_pem_file(&settings.key).map_err(|error| match is_encrypted(&settings.key) {
            true => TlsError::File(settings.key.clone(), ENCRYPTED.to_owned()),
            false => unusable(&settings.key, "private key", &error),
        })?;
        let not_after_s = not_after_s(&settings.certificate, &chain)?;
        let provider = crypto_provider();
        let verifier = match (settings.client_certificates, &settings.client_ca) {
            (ClientCertificates::Ignored, _) => None,
            (_, None) => return Err(TlsError::NoClientCa),
            (wanted, Some(path)) => {
                let mut roots = RootCertStore::empty();
                for root in certificates(path)? {
                    roots
                        .add(root)
                        .map_err(|error| TlsError::File(path.clone(), format!("not an authority's certificate: {error}")))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
                let verifier = match wanted {
                    ClientCertificates::Required => verifier.build(),
                    _ => verifier.allow_unauthenticated().build(),
                };
                Some(verifier.map_err(|error| TlsError::File(path.clone(), format!("cannot be used: {error}")))?)
            }
        };
        let refused = |error| TlsError::Refused(settings.certificate.clone(), error);
        let identity = identity(settings, &chain, key, &provider)?;
        let parts = Parts {
            provider,
            clock,
            versions: match settings.min_version {
                TlsVersion::V1_2 => vec![&rustls::version::TLS12, &rustls::version::TLS13],
                TlsVersion::V1_3 => vec![&rustls::version::TLS13],
            },
            identity: Arc::new(SingleCertAndKey::from(identity)),
            // Sessions are resumed by tickets, whose keys change every few hours. The server keeps nothing for them.
            tickets: ring::Ticketer::new().map_err(refused)?,
            verifier: verifier.map(|verifier| -> Arc<dyn ClientCertVerifier> { verifier }),
        };
        // Also made where it is not kept: what cannot be used is found out here.
        let config = parts.config().map_err(refused)?;
        Ok(Self {
            terms: match parts.verifier {
                None => Terms::Common(config),
                Some(_) => Terms::Each(parts),
            },
            not_after_s,
            at_s,
        })
    }
}

impl Terms {
    /// The configuration of a new connection.
    ///
    /// # Errors
    ///
    /// None that was not met when the files were read.
    fn config(&self) -> Result<Arc<ServerConfig>, rustls::Error> {
        match self {
            Self::Common(config) => Ok(Arc::clone(config)),
            Self::Each(parts) => parts.config(),
        }
    }
}

impl Parts {
    fn config(&self) -> Result<Arc<ServerConfig>, rustls::Error> {
        let builder = ServerConfig::builder_with_details(Arc::clone(&self.provider), Arc::clone(&self.clock))
            .with_protocol_versions(&self.versions)?;
        let (builder, tickets): (_, Arc<dyn ProducesTickets>) = match &self.verifier {
            None => (builder.with_no_client_auth(), Arc::clone(&self.tickets)),
            Some(verifier) => {
                let (verifier, tickets) = tickets::bind(verifier, &self.tickets, &self.clock);
                (builder.with_client_cert_verifier(Arc::new(verifier)), Arc::new(tickets))
            }
        };
        let mut config = builder.with_cert_resolver(Arc::clone(&self.identity));
        config.ticketer = tickets;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        Ok(Arc::new(config))
    }
}

/// A certificate with its key. As for OpenSSL, the key may have another form than the label of its PEM promises, and the certificate may be
/// of version 1 of X.509: only who verifies it needs the extensions of version 3.
fn identity(
    settings: &Tls,
    chain: &[CertificateDer<'static>],
    key: PrivateKeyDer<'static>,
    provider: &CryptoProvider,
) -> Result<CertifiedKey, TlsError> {
    let der = key.secret_der().to_vec();
    let forms: [PrivateKeyDer<'static>; 4] = [
        key,
        PrivatePkcs8KeyDer::from(der.clone()).into(),
        PrivatePkcs1KeyDer::from(der.clone()).into(),
        PrivateSec1KeyDer::from(der).into(),
    ];
    let unusable = |why| TlsError::File(settings.certificate.clone(), why);
    let public = public_key(&settings.certificate, chain)?;
    let mut keys = forms.into_iter().map(|form| provider.key_provider.load_private_key(form));
    let Some(key) = keys.find_map(Result::ok) else {
        let kind = keys::name(&public);
        return Err(match keys::is_supported(&kind) {
            true if is_encrypted(&settings.key) => TlsError::File(settings.key.clone(), ENCRYPTED.to_owned()),
            true => TlsError::File(settings.key.clone(), "is no private key that can be read".to_owned()),
            false => unusable(format!("its key is {kind}; {}", keys::SUPPORTED)),
        });
    };
    let own = key.public_key().map(|own| own.to_vec());
    let of_certificate = public.to_der().map_err(|error| unusable(error.to_string()))?;
    if own.is_some_and(|own| own != of_certificate) {
        return Err(TlsError::Refused(
            settings.certificate.clone(),
            rustls::InconsistentKeys::KeyMismatch.into(),
        ));
    }
    Ok(CertifiedKey::new(chain.to_vec(), key))
}

/// The public key of the first certificate.
fn public_key(path: &Path, chain: &[CertificateDer<'_>]) -> Result<SubjectPublicKeyInfoOwned, TlsError> {
    let first = chain
        .first()
        .ok_or_else(|| unusable(path, "certificate", &pem::Error::NoItemsFound))?;
    x509_cert::Certificate::from_der(first.as_ref())
        .map(|certificate| certificate.tbs_certificate.subject_public_key_info)
        .map_err(|error| TlsError::File(path.to_owned(), format!("is not an X.509 certificate: {error}")))
}

/// Why a client's part of the protocol was refused, for the log: with a remedy where rustls has none.
pub(crate) fn refusal(error: &io::Error) -> String {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
    let said = error.to_string();
    match cause {
        Some(rustls::Error::InvalidCertificate(_)) if said.contains("UnsupportedCertVersion") => {
            "the client's certificate is of version 1 of X.509; sign it with an extension, which makes it one of version 3 (openssl x509 -req \
             -extfile with basicConstraints=CA:FALSE)"
                .to_owned()
        }
        _ => said,
    }
}

/// The certificates of a PEM file, at least one.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| unusable(path, "certificate", &error))?;
    match found.is_empty() {
        true => Err(unusable(path, "certificate", &pem::Error::NoItemsFound)),
        false => Ok(found),
    }
}

/// What is said of an encrypted key.
const ENCRYPTED: &str = "is encrypted, and the server cannot ask for its passphrase; write it without one (openssl pkey -in FILE -out NEW), \
                         readable by the server's user only";

/// Whether a private key is encrypted with a passphrase, in either of its forms (RFC 5958, RFC 1421).
fn is_encrypted(path: &Path) -> bool {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines()
        .any(|line| line.starts_with("-----BEGIN ENCRYPTED ") || line.starts_with("Proc-Type:") && line.ends_with("ENCRYPTED"))
}

fn unusable(path: &Path, what: &str, error: &pem::Error) -> TlsError {
    let why = match error {
        pem::Error::NoItemsFound => format!("has no {what} in PEM form (-----BEGIN …)"),
        pem::Error::Io(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            format!("cannot be read by this user: {error}; the server's user must be its owner or in its group")
        }
        pem::Error::Io(error) => format!("cannot be read: {error}"),
        error => format!("is not a {what} in PEM form: {error}"),
    };
    TlsError::File(path.to_owned(), why)
}

/// When the first certificate's validity ends, seconds after the epoch.
fn not_after_s(path: &Path, chain: &[CertificateDer<'_>]) -> Result<i64, TlsError> {
    let first = chain
        .first()
        .ok_or_else(|| unusable(path, "certificate", &pem::Error::NoItemsFound))?;
    let end_s = tickets::ends_at_s(first)
        .map_err(|error| TlsError::File(path.to_owned(), format!("is not an X.509 certificate: {error}")))?;
    Ok(i64::try_from(end_s).unwrap_or(i64::MAX))
}

/// The names that a certificate is for: its common names, then its DNS, mail and URI names. The authority that signed it has verified them.
pub(crate) fn names(certificate: &CertificateDer<'_>) -> Vec<Vec<u8>> {
    let Ok(certificate) = x509_cert::Certificate::from_der(certificate.as_ref()) else {
        return Vec::new();
    };
    let certificate = certificate.tbs_certificate;
    let attributes = certificate.subject.0.iter().flat_map(|part| part.0.iter());
    let mut names: Vec<Vec<u8>> = attributes
        .filter(|attribute| attribute.oid == COMMON_NAME)
        .map(|attribute| attribute.value.value().to_vec())
        .collect();
    if let Ok(Some((_, others))) = certificate.get::<SubjectAltName>() {
        names.extend(others.0.iter().filter_map(|name| match name {
            GeneralName::DnsName(name) | GeneralName::Rfc822Name(name) | GeneralName::UniformResourceIdentifier(name) => {
                Some(name.as_bytes().to_vec())
            }
            _ => None,
        }));
    }
    names
}

impl Certificates {
    /// Adds one to a counter.
    pub(crate) fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Relaxed);
    }
}

#[cfg(test)]
mod tests;
