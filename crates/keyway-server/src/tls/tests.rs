//! Enemy: a client whose certificate has ended, and that still has a ticket.
//!
//! Client and server are in one thread and exchange their records in memory; the server's clock is the test's.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use harness::{Authority, Identity, Scratch, TlsClient, Validity};
use rustls::pki_types::UnixTime;
use rustls::{ClientConnection, HandshakeKind, ServerConnection, SupportedProtocolVersion};

use super::*;

/// Seconds after the epoch: within the validity of a client's certificate, in its last second, and after it.
const BEFORE_S: u64 = 1_000_000_000;
const END_S: u64 = 4_102_444_800;

#[derive(Debug)]
struct Clock(AtomicU64);

impl TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(std::time::Duration::from_secs(
            self.0.load(Relaxed),
        )))
    }
}

struct World {
    clock: Arc<Clock>,
    loaded: Loaded,
    authority: Authority,
    _folder: Scratch,
}

impl World {
    fn new(client_certificates: ClientCertificates) -> Self {
        let (authority, folder) = (Authority::new(), Scratch::new());
        let (certificate, key) = authority.signs("server", Validity::Valid).write_to(folder.path(), "server");
        let client_ca = folder.join("clients.pem");
        std::fs::write(&client_ca, authority.certificate()).unwrap();
        let settings = settings(certificate, key, client_ca, client_certificates);
        let clock = Arc::new(Clock(AtomicU64::new(BEFORE_S)));
        let loaded = Loaded::read(&settings, 0, Arc::clone(&clock) as Arc<dyn TimeProvider>).unwrap();
        Self {
            clock,
            loaded,
            authority,
            _folder: folder,
        }
    }

    /// How the handshake of a new connection ends, at this time.
    fn connect(&self, client: &TlsClient, at_s: u64) -> Result<HandshakeKind, rustls::Error> {
        self.clock.0.store(at_s, Relaxed);
        let mut server = ServerConnection::new(self.loaded.terms.config()?)?;
        let mut client = client.session();
        shake_hands(&mut client, &mut server)?;
        server.handshake_kind().ok_or(rustls::Error::HandshakeNotComplete)
    }
}

fn settings(certificate: PathBuf, key: PathBuf, client_ca: PathBuf, client_certificates: ClientCertificates) -> Tls {
    Tls {
        certificate,
        key,
        client_ca: Some(client_ca),
        client_certificates,
        min_version: TlsVersion::V1_2,
    }
}

/// Exchanges records until there are no more: tickets come last.
fn shake_hands(client: &mut ClientConnection, server: &mut ServerConnection) -> Result<(), rustls::Error> {
    while client.wants_write() || server.wants_write() {
        let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
        while client.wants_write() {
            client.write_tls(&mut to_server).unwrap();
        }
        let mut rest = &to_server[..];
        while !rest.is_empty() {
            server.read_tls(&mut rest).unwrap();
            server.process_new_packets()?;
        }
        while server.wants_write() {
            server.write_tls(&mut to_client).unwrap();
        }
        let mut rest = &to_client[..];
        while !rest.is_empty() {
            client.read_tls(&mut rest).unwrap();
            client.process_new_packets()?;
        }
    }
    Ok(())
}

fn with(world: &World, identity: &Identity, version: &'static SupportedProtocolVersion) -> TlsClient {
    TlsClient::with_identity_speaking(&world.authority, identity, version)
}

#[test]
fn no_ticket_outlives_the_certificate_of_its_client() {
    for wanted in [ClientCertificates::Optional, ClientCertificates::Required] {
        for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
            let world = World::new(wanted);
            let identity = world.authority.signs("a client", Validity::Valid);
            let client = with(&world, &identity, version);
            assert_eq!(world.connect(&client, BEFORE_S), Ok(HandshakeKind::Full));
            // Each session that is continued brings the next ticket.
            for at_s in [BEFORE_S, BEFORE_S + 1, END_S - 1, END_S] {
                assert_eq!(world.connect(&client, at_s), Ok(HandshakeKind::Resumed), "{version:?} {at_s}");
            }
            for at_s in [END_S + 1, END_S + 1_000_000] {
                let refused = world.connect(&client, at_s).unwrap_err();
                let shown = refused.to_string();
                assert!(shown.contains("expired"), "{version:?} {at_s}: {shown}");
            }
        }
    }
}

#[test]
fn a_session_without_a_certificate_is_continued_at_any_time() {
    for wanted in [ClientCertificates::Ignored, ClientCertificates::Optional] {
        for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
            let world = World::new(wanted);
            let client = TlsClient::speaking(&world.authority, version);
            assert_eq!(world.connect(&client, BEFORE_S), Ok(HandshakeKind::Full));
            assert_eq!(
                world.connect(&client, END_S + 1),
                Ok(HandshakeKind::Resumed),
                "{wanted:?} {version:?}"
            );
        }
    }
}

#[test]
fn the_label_of_a_key_may_be_that_of_another_form() {
    let (authority, folder) = (Authority::new(), Scratch::new());
    let identity = authority.signs("server", Validity::Valid);
    let other = authority.signs("another", Validity::Valid);
    for label in ["PRIVATE KEY", "RSA PRIVATE KEY", "EC PRIVATE KEY"] {
        let load = |key: &str| {
            let key = key.replace(" PRIVATE KEY", &format!(" {label}"));
            let (certificate, key) = Identity { key, ..identity.clone() }.write_to(folder.path(), "server");
            let settings = settings(certificate, key, PathBuf::new(), ClientCertificates::Ignored);
            Loaded::read(&settings, 0, Arc::new(DefaultTimeProvider)).map(|_| ())
        };
        assert!(load(&identity.key).is_ok(), "{label}");
        assert!(load(&other.key).is_err(), "{label}: the key of another certificate");
        assert!(
            load(&identity.certificate.replace("CERTIFICATE", "PRIVATE KEY")).is_err(),
            "{label}: no key"
        );
    }
}

/// Keys and certificates as OpenSSL makes them; `None`: it cannot make this one.
fn made(folder: &Scratch, arguments: &[&str]) -> Option<Tls> {
    let (certificate, key) = (folder.join("made.pem"), folder.join("made.key"));
    let mut command = std::process::Command::new("openssl");
    command
        .args(arguments)
        .args(["-nodes", "-subj", "/CN=localhost", "-days", "2"]);
    let output = command.arg("-keyout").arg(&key).arg("-out").arg(&certificate).output().ok()?;
    output
        .status
        .success()
        .then(|| settings(certificate, key, PathBuf::new(), ClientCertificates::Ignored))
}

#[test]
fn a_key_that_cannot_be_used_is_named_with_what_is_supported() {
    let folder = Scratch::new();
    let curve = |name: &'static str| ["-newkey", "ec", "-pkeyopt", name];
    let rows: [(&[&str], &str); 7] = [
        (&["-newkey", "rsa:2048"], ""),
        (&curve("ec_paramgen_curve:secp384r1"), ""),
        (&["-newkey", "rsa:1024"], "its key is RSA of 1024 bits"),
        (&curve("ec_paramgen_curve:secp521r1"), "its key is ECDSA on P-521"),
        (&curve("ec_paramgen_curve:secp256k1"), "its key is ECDSA on secp256k1"),
        (
            &["-newkey", "rsa-pss", "-pkeyopt", "rsa_keygen_bits:2048"],
            "its key is RSA-PSS",
        ),
        (&["-newkey", "ed448"], "its key is Ed448"),
    ];
    for (kind, why) in rows {
        let Some(settings) = made(&folder, &[&["req", "-x509"], kind].concat()) else {
            harness::skip(&kind.join(" "), "openssl cannot make such a key");
            continue;
        };
        let loaded = Loaded::read(&settings, 0, Arc::new(DefaultTimeProvider));
        match loaded {
            Ok(_) => assert_eq!(why, "", "{kind:?}"),
            Err(error) => {
                let said = error.to_string();
                assert!(!why.is_empty() && said.contains(why), "{kind:?}: {said}");
                assert!(
                    said.contains("made.pem") && said.contains("P-256") && said.contains("2048 to 4096"),
                    "{said}"
                );
            }
        }
    }
}

#[test]
fn an_encrypted_key_is_named_with_the_way_out() {
    let folder = Scratch::new();
    let Some(settings) = made(&folder, &["req", "-x509", "-newkey", "rsa:2048"]) else {
        return harness::skip("encrypted keys", "openssl cannot make a key");
    };
    for form in [&["-traditional"][..], &[]] {
        let encrypted = folder.join("encrypted.key");
        let made = std::process::Command::new("openssl")
            .args(["rsa", "-aes256", "-passout", "pass:word", "-in"])
            .arg(&settings.key)
            .arg("-out")
            .arg(&encrypted)
            .args(form)
            .output()
            .unwrap();
        assert!(made.status.success(), "{made:?}");
        let settings = Tls {
            key: encrypted,
            ..settings.clone()
        };
        let said = Loaded::read(&settings, 0, Arc::new(DefaultTimeProvider))
            .err()
            .unwrap()
            .to_string();
        assert!(
            said.contains("encrypted.key") && said.contains("is encrypted") && said.contains("openssl pkey"),
            "{form:?}: {said}"
        );
    }
}
