//! What a client may do after its login: read only or read and write, and the key prefix that it is confined to.
//!
//! Which rights a request needs is said by its command's row ([`Access`]). A role that does not allow them by name refuses the request.

use keyway_proto::binary::{self, Status};
use keyway_proto::{Access, KEY_LEN_MAX, Request, reply};

/// What a user may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UserRole {
    may_write: bool,
    /// the keys that it may use begin with this; empty: all keys
    prefix: Vec<u8>,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Denied {
    /// it changes an item, and the user may only read
    ReadOnly,
    /// it is about a key that does not begin with the user's prefix
    OutsidePrefix,
    /// it is about the server, or about all items
    NotForThisUser,
}

impl UserRole {
    /// Everything: what a user has whose line says no more.
    pub(crate) const FULL: Self = Self {
        may_write: true,
        prefix: Vec::new(),
    };

    pub(crate) fn new(may_write: bool, prefix: &[u8]) -> Self {
        Self {
            may_write,
            prefix: prefix.to_vec(),
        }
    }

    /// Whether it may do everything, so that no request has to be looked at.
    pub(crate) fn is_full(&self) -> bool {
        self.may_write && self.prefix.is_empty()
    }

    pub(crate) fn may_write(&self) -> bool {
        self.may_write
    }

    /// What the keys that it may use begin with.
    pub(crate) fn prefix(&self) -> &[u8] {
        &self.prefix
    }

    /// Why this request is refused; `None`: it is allowed.
    pub(crate) fn denies(&self, request: &Request<'_>) -> Option<Denied> {
        match request.access() {
            Access::Nothing => None,
            Access::Reads => self.denies_keys(request),
            Access::Overview => (!self.prefix.is_empty()).then_some(Denied::NotForThisUser),
            Access::Writes => self.denies_access(true).or_else(|| self.denies_keys(request)),
            // The last two are said of no request.
            Access::Server | Access::ByFlags | Access::ByArgument => (!self.is_full()).then_some(Denied::NotForThisUser),
        }
    }

    fn denies_keys(&self, request: &Request<'_>) -> Option<Denied> {
        request.keys().find_map(|key| self.denies_key(key))
    }

    /// Whether it may change the item of this key.
    pub(crate) fn may_change(&self, key: &[u8]) -> bool {
        self.denies_access(true).or_else(|| self.denies_key(key)).is_none()
    }

    fn denies_access(&self, writes: bool) -> Option<Denied> {
        (writes && !self.may_write).then_some(Denied::ReadOnly)
    }

    fn denies_key(&self, key: &[u8]) -> Option<Denied> {
        (!key.starts_with(&self.prefix)).then_some(Denied::OutsidePrefix)
    }
}

/// Whether keys can begin with this.
pub(crate) fn is_prefix(prefix: &[u8]) -> bool {
    (1..=KEY_LEN_MAX).contains(&prefix.len()) && !prefix.iter().any(|byte| *byte == b' ' || byte.is_ascii_control())
}

impl Denied {
    fn line(self) -> &'static [u8] {
        match self {
            Self::ReadOnly => b"CLIENT_ERROR this user may only read\r\n",
            Self::OutsidePrefix => b"CLIENT_ERROR this user may only use keys with its prefix\r\n",
            Self::NotForThisUser => b"CLIENT_ERROR not allowed for this user\r\n",
        }
    }

    /// Appends the answer to `request`.
    pub(crate) fn answer(self, request: &Request<'_>, out: &mut Vec<u8>) {
        let line = self.line();
        match request {
            Request::Binary(request) => {
                let text = line.strip_prefix(b"CLIENT_ERROR ").unwrap_or(line);
                let text = text.strip_suffix(reply::LINE_END).unwrap_or(text);
                binary::error_saying(out, request.head, Status::AuthenticationError, text);
            }
            request if request.is_silent() => {}
            _ => out.extend_from_slice(line),
        }
    }
}

#[cfg(test)]
#[path = "../../tests/it/refusals/mod.rs"]
mod refusals;

#[cfg(test)]
mod tests {
    use super::refusals::{Refusal, refusals};
    use super::*;
    use keyway_proto::{Command, Decoded, Decoder, Limits};

    fn denied(role: &UserRole, bytes: &[u8]) -> Option<Denied> {
        match Decoder::new(Limits::default()).decode(bytes) {
            Decoded::Request { request, .. } => role.denies(&request),
            other => panic!("{}: {other:?}", bytes.escape_ascii()),
        }
    }

    fn expected(command: Command) -> [Option<Denied>; 3] {
        refusals(command).map(|refusal| {
            Some(match refusal? {
                Refusal::ReadOnly => Denied::ReadOnly,
                Refusal::OutsidePrefix => Denied::OutsidePrefix,
                Refusal::NotForThisUser => Denied::NotForThisUser,
            })
        })
    }

    #[test]
    fn every_command_has_a_decision_for_every_role() {
        let roles = [
            UserRole::new(false, b""),
            UserRole::new(true, b"exam"),
            UserRole::new(true, b"other:"),
        ];
        for &command in Command::ALL {
            let example = command.facts().example;
            for (role, expected) in roles.iter().zip(expected(command)) {
                assert_eq!(denied(role, example), expected, "{command:?} for {role:?}");
            }
            let both = UserRole::new(false, b"other:");
            let least = expected(command).iter().any(Option::is_some);
            assert_eq!(denied(&both, example).is_some(), least, "{command:?} for {both:?}");
            assert_eq!(denied(&UserRole::FULL, example), None, "{command:?}");
        }
    }

    #[test]
    fn every_packet_has_a_decision_for_every_role() {
        use Denied::{NotForThisUser, OutsidePrefix, ReadOnly};
        let roles = [
            UserRole::new(false, b""),
            UserRole::new(true, b"ex"),
            UserRole::new(true, b"other:"),
        ];
        let (read, written) = ([None, None, Some(OutsidePrefix)], [Some(ReadOnly), None, Some(OutsidePrefix)]);
        for opcode in 0..=0xff {
            let (extras, key, value, expected): (&[u8], &[u8], &[u8], _) = match opcode {
                0x00 | 0x09 | 0x0c | 0x0d => (b"", b"example", b"", read),
                0x01..=0x03 | 0x11..=0x13 => (&[0; 8], b"example", b"v", written),
                0x0e | 0x0f | 0x19 | 0x1a => (b"", b"example", b"v", written),
                0x04 | 0x14 => (b"", b"example", b"", written),
                0x05 | 0x06 | 0x15 | 0x16 => (&[0; 20], b"example", b"", written),
                0x1c..=0x1e | 0x23 | 0x24 => (&[0; 4], b"example", b"", written),
                0x08 | 0x18 => (b"", b"", b"", [Some(NotForThisUser); 3]),
                0x10 => (b"", b"settings", b"", [None, Some(NotForThisUser), Some(NotForThisUser)]),
                // Quit, noop, version, SASL, and what is no command.
                _ => (b"", b"", b"", [None; 3]),
            };
            let mut packet = Vec::new();
            let head = binary::Head { opcode, opaque: [0; 4] };
            binary::request(&mut packet, head, 0, [extras, key, value]);
            for (role, expected) in roles.iter().zip(expected) {
                assert_eq!(denied(role, &packet), expected, "{opcode:#x} for {role:?}");
            }
        }
    }

    #[test]
    fn flags_and_arguments_decide_too() {
        let (reader, confined) = (UserRole::new(false, b""), UserRole::new(true, b"shop:"));
        for line in [
            "mg k v t\r\n",
            "mg k u q\r\n",
            "stats settings\r\n",
            "stats detail dump\r\n",
            "stats conns\r\n",
        ] {
            assert_eq!(denied(&reader, line.as_bytes()), None, "{line}");
        }
        for line in ["mg k T0\r\n", "mg k N30\r\n", "mg k R30\r\n"] {
            assert_eq!(denied(&reader, line.as_bytes()), Some(Denied::ReadOnly), "{line}");
        }
        for line in [
            "stats reset\r\n",
            "stats detail on\r\n",
            "stats detail\r\n",
            "lru_crawler enable\r\n",
        ] {
            assert_eq!(denied(&reader, line.as_bytes()), Some(Denied::NotForThisUser), "{line}");
        }
        for line in [
            "stats settings\r\n",
            "stats cachedump 1 0\r\n",
            "stats conns\r\n",
            "stats detail dump\r\n",
        ] {
            assert_eq!(denied(&confined, line.as_bytes()), Some(Denied::NotForThisUser), "{line}");
        }
        // c2hvcDph is shop:a, and b3RoZXI= is other.
        assert_eq!(denied(&confined, b"mg c2hvcDph b\r\n"), None);
        for line in [
            "mg b3RoZXI= b\r\n",
            "get shop:a other\r\n",
            "gat 0 shop:a shop\r\n",
            "mg shop:\x00 b\r\n",
        ] {
            let decided = match Decoder::new(Limits::default()).decode(line.as_bytes()) {
                Decoded::Request { request, .. } => confined.denies(&request),
                // Not base64.
                _ => continue,
            };
            assert_eq!(decided, Some(Denied::OutsidePrefix), "{line}");
        }
    }

    #[test]
    fn a_refusal_has_the_form_of_its_request() {
        let answer = |bytes: &[u8]| match Decoder::new(Limits::default()).decode(bytes) {
            Decoded::Request { request, .. } => {
                let mut out = Vec::new();
                Denied::ReadOnly.answer(&request, &mut out);
                out
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(answer(b"set k 0 0 1\r\nv\r\n"), b"CLIENT_ERROR this user may only read\r\n");
        assert_eq!(answer(b"md k q\r\n"), b"CLIENT_ERROR this user may only read\r\n");
        assert_eq!(answer(b"set k 0 0 1 noreply\r\nv\r\n"), b"");
        assert_eq!(answer(b"flush_all noreply\r\n"), b"");
        let mut packet = Vec::new();
        let head = binary::Head {
            opcode: 0x14,
            opaque: [7; 4],
        };
        binary::request(&mut packet, head, 0, [b"", b"k", b""]);
        let said = answer(&packet);
        assert_eq!(
            (&said[6..8], &said[12..16], &said[24..]),
            (&[0, 0x20][..], &[7; 4][..], &b"this user may only read"[..])
        );
    }
}
