//! Tickets by which clients continue their sessions. None of them outlives the certificates that its client has shown.
//!
//! rustls verifies a client's certificates in a full handshake only, and a session that is continued brings the next ticket with it. So a
//! ticket carries, inside its encryption, when the first of these certificates ends. After that it is no ticket any more: the client has to
//! do a full handshake, for which its certificates are verified again.
//!
//! What makes and reads tickets does not see the client's certificates; what verifies these does. So each connection has one of both, and
//! they share a [`Validity`].

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::ProducesTickets;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::time_provider::TimeProvider;
use rustls::{DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};
use x509_cert::der::Decode;

/// When the first certificate of a connection's client ends, seconds after the epoch. Only the connection's own thread uses it.
#[derive(Debug)]
struct Validity(AtomicU64);

/// Verifies client certificates as `inner` does, and notes when they end.
#[derive(Debug)]
pub(super) struct Verifier {
    inner: Arc<dyn ClientCertVerifier>,
    end: Arc<Validity>,
}

/// Makes and reads tickets as `inner` does, with their ends.
#[derive(Debug)]
pub(super) struct Tickets {
    inner: Arc<dyn ProducesTickets>,
    clock: Arc<dyn TimeProvider>,
    end: Arc<Validity>,
}

/// When a certificate's validity ends, seconds after the epoch.
pub(super) fn ends_at_s(certificate: &CertificateDer<'_>) -> x509_cert::der::Result<u64> {
    let certificate = x509_cert::Certificate::from_der(certificate.as_ref())?;
    Ok(certificate.tbs_certificate.validity.not_after.to_unix_duration().as_secs())
}

/// What one connection verifies its client and makes its tickets with.
pub(super) fn bind(
    verifier: &Arc<dyn ClientCertVerifier>,
    tickets: &Arc<dyn ProducesTickets>,
    clock: &Arc<dyn TimeProvider>,
) -> (Verifier, Tickets) {
    // A client without a certificate has none that could end.
    let end = Arc::new(Validity(AtomicU64::new(u64::MAX)));
    let verifier = Verifier {
        inner: Arc::clone(verifier),
        end: Arc::clone(&end),
    };
    let tickets = Tickets {
        inner: Arc::clone(tickets),
        clock: Arc::clone(clock),
        end,
    };
    (verifier, tickets)
}

impl Tickets {
    /// Seconds until the certificates end; `None`: they have ended, or the time is not known.
    fn left_s(&self) -> Option<u64> {
        let now = self.clock.current_time()?;
        // They are valid until the end of their last second (RFC 5280, 4.1.2.5).
        self.end.0.load(Relaxed).checked_sub(now.as_secs())
    }
}

impl ProducesTickets for Tickets {
    fn enabled(&self) -> bool {
        self.inner.enabled()
    }

    fn lifetime(&self) -> u32 {
        let left = self.left_s().unwrap_or(0);
        self.inner.lifetime().min(u32::try_from(left).unwrap_or(u32::MAX))
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        self.left_s()?;
        let end = self.end.0.load(Relaxed).to_be_bytes();
        self.inner.encrypt(&[&end, plain].concat())
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        let plain = self.inner.decrypt(ticket)?;
        let (end, plain) = plain.split_first_chunk()?;
        // The session that is continued may end with a ticket, which has this end too.
        self.end.0.store(u64::from_be_bytes(*end), Relaxed);
        self.left_s()?;
        Some(plain.to_vec())
    }
}

impl ClientCertVerifier for Verifier {
    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.inner.verify_client_cert(certificate, others, now)?;
        let ends = std::iter::once(certificate)
            .chain(others)
            .map(|one| ends_at_s(one).unwrap_or(0));
        self.end.0.store(ends.min().unwrap_or(0), Relaxed);
        Ok(verified)
    }

    fn offer_client_auth(&self) -> bool {
        self.inner.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.inner.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        self.inner.requires_raw_public_keys()
    }
}
