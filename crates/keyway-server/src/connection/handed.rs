//! A connection between two servers: how it is brought to a request boundary, what the next server needs to know, and how that server
//! continues with it.
//!
//! A connection is at a request boundary between any two turns: requests are executed whole, except a line of many keys, for which the
//! `Requests` says how far it is. Only a ring may be in the middle of something then: its receive is cancelled, and what it has
//! received is kept; its send is cancelled, and what it has not sent goes back to the output.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{OwnedFd, RawFd};
use std::time::{Duration, Instant};

use keyway_proto::{ManyKeys, Progress, Protocol, Within};
use keyway_uring::Ring;
use mio::Registry;
use mio::net::{TcpStream, UnixStream};
use nix::libc::ECANCELED;
use serde::{Deserialize, Serialize};

use super::input::Input;
use super::login::{CarriedLogin, LOGIN_TIME, Login};
use super::output::Output;
use super::schedule::Ending;
use super::{Connection, Desk, Phase, Stream};
use crate::shared::{CloseReason, PeerAddress};
use crate::watch::WatchAsked;

/// A connection that holds more unexecuted input and unsent output than this, bytes, is not handed over: in the middle of a large value, the
/// time to send that would delay all others.
pub(crate) const CARRIED_MAX: usize = 1 << 20;

impl Connection {
    /// Whether the ring has to let go of it before it can be handed over.
    pub(crate) fn is_held_by_ring(&self) -> bool {
        !self.is_let_go() && !self.is_over() && self.secure.is_none()
    }

    /// Cancels what the ring does for it; the last events are still to come.
    pub(crate) fn let_go(&mut self, ring: &mut Ring) -> io::Result<()> {
        self.link.let_go(ring)
    }

    /// The ring has sent some of these bytes, or none: the rest is output again.
    pub(crate) fn take_back(&mut self, desk: &Desk, bytes: &[u8], result: i32) -> io::Result<()> {
        let Some(sending) = self.link.end_send() else { return Ok(()) };
        let sent = match usize::try_from(result) {
            Ok(sent) => sent,
            Err(_) if result == -ECANCELED => 0,
            Err(_) => return Err(io::Error::from_raw_os_error(-result)),
        };
        desk.executor.counters().bytes_written.add(sent as u64);
        self.output.take_back(bytes, bytes.len() - sending + sent);
        Ok(())
    }

    /// What the next server gets. `None`: the connection stays here and is drained.
    pub(crate) fn handed(&mut self, desk: &Desk) -> Option<Handed> {
        self.rest.disturb();
        let shared = desk.shared();
        if let Some(watcher) = &self.watcher {
            shared.watch.pump(&shared.workers);
            watcher.take(self.output.bytes());
        }
        let (input, output) = (self.input.data(), self.output.rest());
        if self.is_over() || !self.is_let_go() || self.secure.is_some() || input.len() + output.len() > CARRIED_MAX {
            return None;
        }
        let carried = Carried {
            origin: CarriedOrigin::of(&self.peer.address)?,
            phase: self.carried_phase(desk.now)?,
            has_logged_in: shared.users.is_some() && matches!(self.phase, Phase::Serving | Phase::Watching),
            login: self.login.carried(desk.now),
            progress: self.requests.progress()?.into(),
            keys_done: self.requests.keys_done(),
            read_closed: self.input.is_read_closed(),
            at_end: self.input.is_at_end(),
            input_len: input.len(),
            bytes: Vec::new(),
        };
        Some(Handed {
            fd: self.link.fd(),
            carried: Box::new(carried),
            bytes: [input, output].concat(),
        })
    }

    fn carried_phase(&self, now: Instant) -> Option<CarriedPhase> {
        Some(match &self.phase {
            Phase::Login => CarriedPhase::Login,
            Phase::Refused { until } => CarriedPhase::Refused {
                for_ms: u64::try_from(until.saturating_duration_since(now).as_millis()).unwrap_or(u64::MAX),
            },
            Phase::Serving => CarriedPhase::Serving,
            Phase::Watching => {
                let asked = self.watcher.as_ref()?.asked();
                CarriedPhase::Watching {
                    events: u32::try_from(asked.kinds()).unwrap_or(0),
                    what: asked.words(),
                }
            }
            Phase::Verifying(..) | Phase::Dumping(_) | Phase::Waiting(_) | Phase::Closing(_) => return None,
        })
    }

    /// Another server has it: it is not served here any more.
    pub(crate) fn part(mut self, desk: &Desk, registry: &Registry) -> io::Result<()> {
        let shared = desk.shared();
        if let Some(watcher) = &self.watcher {
            shared.watch.remove(watcher);
        }
        shared.connection_closed(&self.peer);
        self.link.leave(registry)
    }

    /// Continues, as if there had been no take-over.
    pub(crate) fn resume(&mut self) {
        self.schedule.leave(false);
        // What happened meanwhile is not known, so a turn finds it out.
        self.input.set_readable(self.input.is_readable() || self.link.is_for_turns());
    }

    /// Another server has the others: this one is served to its next request boundary, then ends.
    pub(crate) fn drain(&mut self) {
        self.schedule.end_as(Ending::Draining);
        self.resume();
    }

    /// Continues a connection where another server left it. This one is new, and is in the phase of a login if it has to log in here. Returns
    /// when it needs a turn.
    pub(crate) fn inherit(&mut self, carried: &Carried, desk: &Desk) -> Instant {
        let (input, output) = carried
            .bytes
            .split_at_checked(carried.input_len)
            .unwrap_or((&carried.bytes, &[]));
        self.input = Input::continuing(input, carried.read_closed, carried.at_end);
        self.output = Output::continuing(output);
        let has_to_log_in = matches!(self.phase, Phase::Login);
        if has_to_log_in && !matches!(carried.phase, CarriedPhase::Login | CarriedPhase::Refused { .. }) {
            // The other server had no logins: its time begins now.
            return desk.now;
        }
        self.requests = self.requests.continuing(carried.progress.into(), carried.keys_done);
        self.login = Login::continuing(&carried.login, desk.now, desk.shared().users.is_some());
        match &carried.phase {
            CarriedPhase::Refused { for_ms } if has_to_log_in => {
                let until = desk.now + Duration::from_millis(*for_ms).min(LOGIN_TIME);
                self.phase = Phase::Refused { until };
                return until;
            }
            CarriedPhase::Watching { events, what } => {
                let asked = match what.is_empty() {
                    true => Some(WatchAsked::of_kinds((*events).into())),
                    false => WatchAsked::parse(what).ok(),
                };
                let place = (desk.executor.worker(), self.link.token());
                let add = |asked| desk.shared().watch_as(asked, place, desk.executor.cache());
                match asked.and_then(add) {
                    Some(watcher) => (self.phase, self.watcher) = (Phase::Watching, Some(watcher)),
                    None => self.phase = Phase::Closing(CloseReason::Error),
                }
            }
            CarriedPhase::Refused { .. } | CarriedPhase::Login | CarriedPhase::Serving => {}
        }
        desk.now
    }
}

/// The state of a connection, as one server sends it to the next: what the client has said so far and what it has not been told yet.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Carried {
    origin: CarriedOrigin,
    phase: CarriedPhase,
    /// it has logged in, where clients must
    has_logged_in: bool,
    /// how far its login is
    #[serde(flatten)]
    login: CarriedLogin,
    progress: CarriedProgress,
    keys_done: usize,
    read_closed: bool,
    at_end: bool,
    /// how many of the bytes are input; the others are output
    input_len: usize,
    /// input, then output; in a message they go beside it
    #[serde(skip)]
    bytes: Vec<u8>,
}

impl Carried {
    pub(crate) fn has_logged_in(&self) -> bool {
        self.has_logged_in
    }
}

/// Where the connection comes from.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum CarriedOrigin {
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
enum CarriedPhase {
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
struct CarriedProgress {
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
    fd: RawFd,
    carried: Box<Carried>,
    /// input, then output
    bytes: Vec<u8>,
}

impl Handed {
    /// What goes to the next server: the socket, its state, and the bytes beside it.
    pub(crate) fn parts(self) -> (RawFd, Box<Carried>, Vec<u8>) {
        (self.fd, self.carried, self.bytes)
    }
}

/// A connection that has come from another server.
pub(crate) struct Inherited {
    stream: Stream,
    carried: Box<Carried>,
}

impl Inherited {
    pub(crate) fn new(fd: OwnedFd, mut carried: Box<Carried>, bytes: Vec<u8>) -> Self {
        // Whether it blocks is the old server's affair until this one serves it.
        let stream = match carried.origin {
            CarriedOrigin::Tcp { .. } => Stream::Tcp(TcpStream::from_std(fd.into())),
            CarriedOrigin::Unix | CarriedOrigin::Reader => Stream::Unix(UnixStream::from_std(fd.into())),
        };
        carried.bytes = bytes;
        Self { stream, carried }
    }

    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    pub(crate) fn address(&self) -> PeerAddress {
        self.carried.origin.address()
    }

    /// Whether it has logged in, where clients must.
    pub(crate) fn has_logged_in(&self) -> bool {
        self.carried.has_logged_in()
    }

    /// The socket, and what the connection continues with.
    pub(crate) fn apart(self) -> (Stream, Box<Carried>) {
        (self.stream, self.carried)
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
    fn of(address: &PeerAddress) -> Option<Self> {
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

    fn address(self) -> PeerAddress {
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
