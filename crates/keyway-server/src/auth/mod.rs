//! Logins: who a client is, and what it may do.
//!
//! | file | |
//! |---|---|
//! | `file` | the authentication file: users with passwords, names of client certificates, users of this machine |
//! | `line` | one line of it: what is taken, and what is refused |
//! | `text` | the login of the text protocol: memcached's ASCII authentication (`-Y`), where the first request is a `set` |
//! | `sasl` | the login of the binary protocol: SASL with the mechanism PLAIN (RFC 4616) |
//! | `password` | hashed passwords |
//! | `hasher` | the thread that verifies them |
//! | `role` | what a client may do after its login |
//!
//! An unauthenticated client can make the server hold at most [`LINE_MAX`] + [`TOKEN_MAX`] bytes. What one connection does is in
//! `connection::login`.

mod file;
mod hasher;
mod line;
mod password;
mod role;
pub(crate) mod sasl;
pub(crate) mod text;
mod turns;

pub use file::{AuthFileError, UserLines};
pub(crate) use file::{Judgement, Users};
pub(crate) use hasher::{Hasher, Pending};
pub use password::{HashError, auth_line};
pub(crate) use role::UserRole;

use keyway_proto::binary::{self, Head};
use keyway_proto::reply;

use crate::rate::Rates;

/// Longest first line, bytes (as memcached).
pub(crate) const LINE_MAX: usize = 2048;
/// Longest `user password`, bytes. memcached allows 16 KiB, for every client that has not logged in.
pub(crate) const TOKEN_MAX: usize = 2048;

/// Logins of one source that may fail in a second, and at once after a pause. Above that, its next logins wait, right ones too: nothing else
/// slows a client that does not wait for its answers.
const FAILURES_RATE: u32 = 10;
const FAILURES_BURST: u32 = 100;

/// How many logins of each source have failed: none so far.
pub(crate) fn failures() -> Rates {
    Rates::new(FAILURES_RATE, FAILURES_BURST)
}

/// The form in which a client asked to log in, which is that of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Text,
    Packet(Head),
}

impl Form {
    /// The client is in.
    pub(crate) fn admit(self, out: &mut Vec<u8>) {
        match self {
            Self::Text => out.extend_from_slice(reply::STORED),
            Self::Packet(head) => binary::value(out, head, b"Authenticated", 0),
        }
    }

    /// User or password are wrong.
    pub(crate) fn answer_failure(self, out: &mut Vec<u8>) {
        match self {
            Self::Text => out.extend_from_slice(reply::AUTHENTICATION_FAILURE),
            Self::Packet(head) => binary::error(out, head, binary::Status::AuthenticationError),
        }
    }
}
