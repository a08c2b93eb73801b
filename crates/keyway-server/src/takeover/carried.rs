//! The state of a connection, as one server sends it to the next: what the client has said so far and what it has not been told yet.
//!
//! Never: holds the bytes of its input and output; they go with the message as they are.

use std::net::SocketAddr;
use std::os::fd::{OwnedFd, RawFd};

use keyway_proto::{ManyKeys, Progress, Protocol, Within};
use mio::net::{TcpStream, UnixStream};
use serde::{Deserialize, Serialize};

use crate::connection::Stream;
use crate::shared::PeerAddress;

/// See the top of the file.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact about the connection")]
pub(crate) struct Carried {
    pub(crate) origin: CarriedOrigin,
    pub(crate) phase: CarriedPhase,
    /// it has logged in, where clients must
    pub(crate) has_logged_in: bool,
    /// what it may do, if that is not everything: whether it may write, and the prefix of its keys
    pub(crate) role: Option<(bool, Vec<u8>)>,
    pub(crate) is_identified: bool,
    pub(crate) has_begun_sasl: bool,
    pub(crate) failures: u8,
    /// milliseconds since it has to log in
    pub(crate) since_ms: u64,
    pub(crate) progress: CarriedProgress,
    pub(crate) keys_done: usize,
    pub(crate) read_closed: bool,
    pub(crate) at_end: bool,
    /// how many of the bytes are input; the others are output
    pub(crate) input_len: usize,
}

impl Carried {
    /// Of a connection from there, in this phase; nothing else has been said yet.
    pub(crate) fn new(origin: CarriedOrigin, phase: CarriedPhase) -> Self {
        Self {
            origin,
            phase,
            has_logged_in: false,
            role: None,
            is_identified: false,
            has_begun_sasl: false,
            failures: 0,
            since_ms: 0,
            progress: CarriedProgress {
                protocol: CarriedProtocol::Auto,
                within: CarriedWithin::Nothing,
            },
            keys_done: 0,
            read_closed: false,
            at_end: false,
            input_len: 0,
        }
    }
}

/// Where the connection comes from.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CarriedOrigin {
    Tcp {
        remote: SocketAddr,
        local: Option<SocketAddr>,
    },
    Unix,
    /// from a process that has the region, for reading or without a slot
    Reader,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CarriedPhase {
    Login,
    Refused {
        for_ms: u64,
    },
    Serving,
    /// for these events
    Watching {
        events: u32,
        /// all that it asked for; empty from an older server
        #[serde(default)]
        what: Vec<u8>,
    },
}

/// Where its decoder is.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct CarriedProgress {
    protocol: CarriedProtocol,
    within: CarriedWithin,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum CarriedProtocol {
    Auto,
    Text,
    Binary,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum CarriedWithin {
    Nothing,
    Get,
    Gets,
    Gat { exptime: i32 },
    Gats { exptime: i32 },
    Refused,
}

/// A connection that is to be sent. Its descriptor stays open while its worker is halted.
pub(crate) struct Handed {
    pub(crate) fd: RawFd,
    pub(crate) carried: Box<Carried>,
    pub(crate) input: Vec<u8>,
    pub(crate) output: Vec<u8>,
}

/// A connection that has come from another server.
pub(crate) struct Inherited {
    pub(crate) stream: Stream,
    pub(crate) carried: Box<Carried>,
    /// input, then output
    pub(crate) bytes: Vec<u8>,
}

impl Inherited {
    pub(crate) fn new(fd: OwnedFd, carried: Box<Carried>, bytes: Vec<u8>) -> Self {
        // Whether it blocks is the old server's affair until this one serves it.
        let stream = match carried.origin {
            CarriedOrigin::Tcp { .. } => Stream::Tcp(TcpStream::from_std(fd.into())),
            CarriedOrigin::Unix | CarriedOrigin::Reader => Stream::Unix(UnixStream::from_std(fd.into())),
        };
        Self { stream, carried, bytes }
    }
}

impl From<Progress> for CarriedProgress {
    fn from(progress: Progress) -> Self {
        Self {
            protocol: match progress.protocol {
                Protocol::Auto => CarriedProtocol::Auto,
                Protocol::Text => CarriedProtocol::Text,
                Protocol::Binary => CarriedProtocol::Binary,
            },
            within: match progress.within {
                Within::Nothing => CarriedWithin::Nothing,
                Within::Refused => CarriedWithin::Refused,
                Within::Keys { command, exptime } => match command {
                    ManyKeys::Get => CarriedWithin::Get,
                    ManyKeys::Gets => CarriedWithin::Gets,
                    ManyKeys::Gat => CarriedWithin::Gat { exptime },
                    ManyKeys::Gats => CarriedWithin::Gats { exptime },
                },
            },
        }
    }
}

impl From<CarriedProgress> for Progress {
    fn from(carried: CarriedProgress) -> Self {
        let keys = |command, exptime| Within::Keys { command, exptime };
        Self {
            protocol: match carried.protocol {
                CarriedProtocol::Auto => Protocol::Auto,
                CarriedProtocol::Text => Protocol::Text,
                CarriedProtocol::Binary => Protocol::Binary,
            },
            within: match carried.within {
                CarriedWithin::Nothing => Within::Nothing,
                CarriedWithin::Refused => Within::Refused,
                CarriedWithin::Get => keys(ManyKeys::Get, 0),
                CarriedWithin::Gets => keys(ManyKeys::Gets, 0),
                CarriedWithin::Gat { exptime } => keys(ManyKeys::Gat, exptime),
                CarriedWithin::Gats { exptime } => keys(ManyKeys::Gats, exptime),
            },
        }
    }
}

impl CarriedOrigin {
    /// `None`: connections from there are not handed over.
    pub(crate) fn of(address: &PeerAddress) -> Option<Self> {
        match *address {
            PeerAddress::Tcp {
                remote,
                local,
                is_secure: false,
            } => Some(Self::Tcp { remote, local }),
            PeerAddress::Unix => Some(Self::Unix),
            PeerAddress::Reader => Some(Self::Reader),
            PeerAddress::Tcp { is_secure: true, .. } | PeerAddress::Udp { .. } => None,
        }
    }

    pub(crate) fn address(self) -> PeerAddress {
        match self {
            Self::Tcp { remote, local } => PeerAddress::Tcp {
                remote,
                local,
                is_secure: false,
            },
            Self::Unix => PeerAddress::Unix,
            Self::Reader => PeerAddress::Reader,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decoder_is_where_it_was_after_the_journey() {
        let keys = |command, exptime| Within::Keys { command, exptime };
        let lines = [
            Within::Nothing,
            Within::Refused,
            keys(ManyKeys::Get, 0),
            keys(ManyKeys::Gets, 0),
            keys(ManyKeys::Gat, -7),
            keys(ManyKeys::Gats, 7),
        ];
        for within in lines {
            for protocol in [Protocol::Auto, Protocol::Text, Protocol::Binary] {
                let progress = Progress { protocol, within };
                let text = serde_json::to_string(&CarriedProgress::from(progress)).unwrap();
                let there: CarriedProgress = serde_json::from_str(&text).unwrap();
                assert_eq!(Progress::from(there), progress);
            }
        }
    }
}
