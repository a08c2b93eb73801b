//! What kind of key a certificate has, for the message that refuses one.

use x509_cert::der::asn1::{ObjectIdentifier, UintRef};
use x509_cert::der::{Decode, Reader, SliceReader};
use x509_cert::spki::SubjectPublicKeyInfoOwned;

/// What the ciphers of this program sign with.
pub(super) const SUPPORTED: &str = "supported are ECDSA on P-256 and P-384, Ed25519, and RSA of 2048 to 4096 bits: make such a key (openssl req \
                                    -newkey ec -pkeyopt ec_paramgen_curve:prime256v1)";

/// Names of curves, and of keys that are no RSA keys and on no curve.
const NAMES: [(&str, &str); 8] = [
    ("1.2.840.10045.3.1.7", "ECDSA on P-256"),
    ("1.3.132.0.34", "ECDSA on P-384"),
    ("1.3.132.0.35", "ECDSA on P-521"),
    ("1.3.132.0.10", "ECDSA on secp256k1"),
    ("1.2.840.113549.1.1.10", "RSA-PSS"),
    ("1.3.101.112", "Ed25519"),
    ("1.3.101.113", "Ed448"),
    ("1.2.840.10040.4.1", "DSA"),
];
/// A key of RSA (RFC 8017), and one on a curve, which its parameters name (RFC 5480).
const RSA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.1");
const ON_A_CURVE: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.2.1");

/// The kind of a key.
pub(super) fn name(key: &SubjectPublicKeyInfoOwned) -> String {
    let algorithm = &key.algorithm;
    if algorithm.oid == RSA {
        return match modulus_bits(key.subject_public_key.raw_bytes()) {
            Ok(bits) => format!("RSA of {bits} bits"),
            Err(_) => "RSA".to_owned(),
        };
    }
    let curve = algorithm
        .parameters
        .as_ref()
        .and_then(|curve| curve.decode_as::<ObjectIdentifier>().ok());
    let oid = match curve {
        Some(curve) if algorithm.oid == ON_A_CURVE => curve,
        _ => algorithm.oid,
    };
    let text = oid.to_string();
    let known = NAMES.iter().find(|(known, _)| *known == text);
    known.map_or_else(|| format!("of the kind {text}"), |(_, name)| (*name).to_owned())
}

/// Whether a key of this name can be used.
pub(super) fn is_supported(name: &str) -> bool {
    let bits = name.strip_prefix("RSA of ").and_then(|rest| rest.strip_suffix(" bits"));
    match bits.and_then(|bits| bits.parse::<u32>().ok()) {
        Some(bits) => (2048..=4096).contains(&bits),
        None => ["ECDSA on P-256", "ECDSA on P-384", "Ed25519"].contains(&name),
    }
}

/// Bits of the modulus of an RSA key.
fn modulus_bits(key: &[u8]) -> x509_cert::der::Result<usize> {
    let mut reader = SliceReader::new(key)?;
    reader.sequence(|fields| {
        let modulus = UintRef::decode(fields)?;
        let _exponent = UintRef::decode(fields)?;
        let bytes = modulus.as_bytes();
        let unused = bytes.first().map_or(0, |first| first.leading_zeros() as usize);
        Ok(bytes.len() * 8 - unused)
    })
}
