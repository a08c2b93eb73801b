//! The login of the binary protocol: SASL with the mechanism PLAIN (RFC 4616), in memcached's packets.
//!
//! Before the login the server answers `version`, `quit` and the steps of SASL, as memcached does (`-S`). Every other packet gets an error
//! and ends the connection, whatever its body is.

use keyway_proto::binary::{self, EarlyPacket, Front, HEADER_LEN, Head, Operation, SASL_DATA_MAX, SaslStep, Status};
use keyway_proto::{Decoded, Decoder, KEY_LEN_MAX, Limits, Protocol, Request};

/// The mechanisms, as a client sees them.
pub(crate) const MECHANISMS: &[u8] = b"PLAIN";
/// A password would cross the network unencrypted.
pub(crate) const NEEDS_TLS: &[u8] = b"Auth failure: passwords need TLS here (--auth-without-tls allows them without)";
/// Longest packet of a login, bytes.
pub(crate) const PACKET_MAX: usize = HEADER_LEN + KEY_LEN_MAX + SASL_DATA_MAX;

/// What the first packet of an unauthenticated connection is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SaslLogin<'a> {
    /// more bytes are needed
    Incomplete,
    /// the client quits; it gets this answer, if any
    Quit { answer: Option<Head> },
    /// refused with this status and its text: the connection ends
    Refused { head: Head, status: Status },
    /// asks for the version
    Version { consumed: usize, head: Head },
    /// asks for the mechanisms
    List { consumed: usize, head: Head },
    /// the mechanism is right, but there is no user and password yet
    Begun { consumed: usize, head: Head },
    /// a login. `None`: it has no user and password that are in order
    Attempt {
        consumed: usize,
        head: Head,
        plain: Option<Plain<'a>>,
    },
}

/// A user and a password.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Plain<'a> {
    pub(crate) user: &'a [u8],
    pub(crate) password: &'a [u8],
}

/// Decides what the first packet of a connection is. `has_begun`: the client has named the mechanism, without a user and password.
pub(crate) fn read(data: &[u8], has_begun: bool) -> SaslLogin<'_> {
    let Some(Front {
        head,
        body_len,
        before_login,
    }) = binary::front(data)
    else {
        return SaslLogin::Incomplete;
    };
    let refused = |status| SaslLogin::Refused { head, status };
    match before_login {
        Some(EarlyPacket::Quit { quiet }) => {
            return SaslLogin::Quit {
                answer: (!quiet).then_some(head),
            };
        }
        Some(EarlyPacket::Version | EarlyPacket::Sasl) if body_len <= PACKET_MAX - HEADER_LEN => {}
        Some(_) | None => return refused(Status::AuthenticationError),
    }
    let mut decoder = Decoder::speaking(Limits::default(), Protocol::Binary);
    let (consumed, command) = match decoder.decode(data) {
        Decoded::Incomplete { .. } => return SaslLogin::Incomplete,
        Decoded::Request {
            consumed,
            request: Request::Binary(request),
        } => (consumed, request.operation),
        _ => return refused(Status::AuthenticationError),
    };
    match command {
        Operation::Version => SaslLogin::Version { consumed, head },
        Operation::Sasl {
            step: SaslStep::List, ..
        } => SaslLogin::List { consumed, head },
        Operation::Sasl { step, mechanism, data } => {
            let is_known = mechanism.eq_ignore_ascii_case(MECHANISMS) && (step == SaslStep::Start || has_begun);
            match data {
                b"" if is_known && step == SaslStep::Start => SaslLogin::Begun { consumed, head },
                _ => SaslLogin::Attempt {
                    consumed,
                    head,
                    plain: plain(data).filter(|_| is_known),
                },
            }
        }
        Operation::Refuse { status, .. } => refused(status),
        _ => refused(Status::AuthenticationError),
    }
}

/// `[authorization] NUL user NUL password`. A client can ask for no other authorization than its own.
fn plain(message: &[u8]) -> Option<Plain<'_>> {
    let mut parts = message.split(|&byte| byte == 0);
    let (authorization, user, password) = (parts.next()?, parts.next()?, parts.next()?);
    let is_own = authorization.is_empty() || authorization == user;
    (is_own && !user.is_empty() && parts.next().is_none()).then_some(Plain { user, password })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(opcode: u8, key: &[u8], value: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        binary::request(&mut out, head(opcode), 0, [b"", key, value]);
        out
    }

    fn head(opcode: u8) -> Head {
        Head {
            opcode,
            opaque: [0, 0, 0, 9],
        }
    }

    #[test]
    fn plain_is_a_user_and_a_password() {
        let of = |message: &'static [u8]| plain(message).map(|plain| (plain.user, plain.password));
        assert_eq!(of(b"\0ann\0secret"), Some((&b"ann"[..], &b"secret"[..])));
        assert_eq!(of(b"ann\0ann\0secret"), Some((&b"ann"[..], &b"secret"[..])));
        assert_eq!(of(b"\0ann\0"), Some((&b"ann"[..], &b""[..])));
        for wrong in [
            &b""[..],
            b"\0ann",
            b"bob\0ann\0secret",
            b"\0\0secret",
            b"\0ann\0sec\0ret",
            b"ann secret",
        ] {
            assert_eq!(of(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn steps_follow_each_other() {
        let message = b"\0ann\0secret";
        let is_attempt = |bytes: &[u8], has_begun| match read(bytes, has_begun) {
            SaslLogin::Attempt { plain, consumed, .. } => {
                assert_eq!(consumed, bytes.len());
                plain.is_some()
            }
            other => panic!("{other:?}"),
        };
        assert!(is_attempt(&packet(0x21, b"PLAIN", message), false));
        assert!(is_attempt(&packet(0x22, b"PLAIN", message), true));
        assert!(
            !is_attempt(&packet(0x22, b"PLAIN", message), false),
            "no step before the start"
        );
        assert!(!is_attempt(&packet(0x21, b"CRAM-MD5", message), false));
        assert!(!is_attempt(&packet(0x21, b"CRAM-MD5", b""), false));
        assert!(matches!(read(&packet(0x21, b"PLAIN", b""), false), SaslLogin::Begun { .. }));
        assert!(matches!(
            read(&packet(0x20, b"", b""), false),
            SaslLogin::List { consumed: 24, .. }
        ));
        assert!(matches!(
            read(&packet(0x0b, b"", b""), false),
            SaslLogin::Version { consumed: 24, .. }
        ));
        assert_eq!(
            read(&packet(0x07, b"", b""), false),
            SaslLogin::Quit {
                answer: Some(head(0x07))
            }
        );
        assert_eq!(read(&packet(0x17, b"", b""), false), SaslLogin::Quit { answer: None });
    }

    #[test]
    fn every_other_packet_is_refused_by_its_header() {
        for opcode in (0..=255).filter(|opcode| ![0x07, 0x17, 0x0b, 0x20, 0x21, 0x22].contains(opcode)) {
            let packet = packet(opcode, b"key", &[0; 9999]);
            assert_eq!(read(&packet[..HEADER_LEN - 1], false), SaslLogin::Incomplete);
            assert_eq!(
                read(&packet[..HEADER_LEN], false),
                SaslLogin::Refused {
                    head: head(opcode),
                    status: Status::AuthenticationError
                }
            );
        }
        let long = packet(0x21, b"PLAIN", &[b'x'; SASL_DATA_MAX + 250]);
        assert!(matches!(read(&long[..HEADER_LEN], false), SaslLogin::Refused { .. }));
    }

    #[test]
    fn bytes_may_come_one_by_one() {
        let whole = packet(0x21, b"PLAIN", b"\0ann\0secret");
        for len in 0..whole.len() {
            assert_eq!(read(&whole[..len], false), SaslLogin::Incomplete, "{len}");
        }
    }
}
