//! A connection between two servers: how it is brought to a request boundary, what the next server needs to know, and how that server
//! continues with it.
//!
//! A connection is at a request boundary between any two turns: requests are executed whole, except a line of many keys, for which the
//! decoder and `keys_done` say how far it is. Only a ring may be in the middle of something then: its receive is cancelled, and what it has
//! received is kept; its send is cancelled, and what it has not sent goes back to the output.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use keyway_proto::Decoder;
use keyway_uring::{Piece, Ring};
use nix::libc::ECANCELED;

use super::login::LOGIN_TIME;
use super::{CloseReason, Connection, Desk, Phase};
use crate::auth::Role;
use crate::buffer::Buffer;
use crate::port::Intake;
use crate::takeover::{CARRIED_MAX, Carried, CarriedPhase, Handed, Origin};
use crate::watch::WatchAsked;

impl Connection {
    /// Whether the ring has to let go of it before it can be handed over.
    pub(crate) fn is_held_by_ring(&self) -> bool {
        !self.is_let_go() && !self.is_over && self.secure.is_none()
    }

    /// Cancels what the ring does for it; the last events are still to come.
    pub(crate) fn let_go(&mut self, ring: &mut Ring) -> io::Result<()> {
        let Some(port) = &mut self.port else { return Ok(()) };
        port.let_go(ring, self.token)?;
        match port.sending {
            0 => Ok(()),
            _ => ring.cancel_send(self.token),
        }
    }

    /// Keeps data that the ring has received, without executing it.
    pub(crate) fn keep(&mut self, desk: &mut Desk, piece: &Piece, last: bool) {
        self.make_room(desk, piece.len());
        if let Some(ring) = &desk.ring {
            self.input.append(ring.bytes(piece), self.need);
        }
        self.has_read(piece.len(), desk);
        self.ended_receiving_if(last);
    }

    /// The ring has sent some of these bytes, or none: the rest is output again.
    pub(crate) fn take_back(&mut self, desk: &Desk, bytes: &[u8], result: i32) -> io::Result<()> {
        let Some(port) = &mut self.port else { return Ok(()) };
        let sending = port.end_send();
        let sent = match usize::try_from(result) {
            Ok(sent) => sent,
            Err(_) if result == -ECANCELED => 0,
            Err(_) => return Err(io::Error::from_raw_os_error(-result)),
        };
        desk.executor.counters().bytes_written.add(sent as u64);
        let rest = bytes.get(bytes.len() - sending + sent..).unwrap_or_default();
        self.output = [rest, &self.output[self.sent..]].concat();
        self.sent = 0;
        Ok(())
    }

    /// What the next server gets. `None`: the connection stays here and is drained.
    pub(crate) fn handed(&mut self, desk: &Desk) -> Option<Handed> {
        self.disturb();
        if let Some(watcher) = &self.watcher {
            let shared = &desk.executor.shared;
            shared.watch.pump(shared);
            watcher.take(&mut self.output);
        }
        let (input, output) = (self.input.data(), &self.output[self.sent..]);
        if self.is_over || !self.is_let_go() || self.secure.is_some() || input.len() + output.len() > CARRIED_MAX {
            return None;
        }
        let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let is_movable = matches!(self.phase, Phase::Serving | Phase::Watching);
        let phase = match &self.phase {
            Phase::Login => CarriedPhase::Login,
            Phase::Refused { until } => CarriedPhase::Refused {
                for_ms: milliseconds(until.saturating_duration_since(desk.now)),
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
        };
        let origin = Origin::of(&self.peer.address)?;
        let carried = Carried {
            origin,
            phase,
            progress: self.decoder.progress()?.into(),
            has_logged_in: desk.executor.shared.users.is_some() && is_movable,
            role: self.role.as_ref().map(|role| (role.may_write(), role.prefix().to_vec())),
            is_identified: self.is_identified,
            has_begun_sasl: self.has_begun_sasl,
            failures: self.failures,
            since_ms: milliseconds(desk.now.saturating_duration_since(self.since)),
            keys_done: self.keys_done,
            read_closed: self.read_closed,
            at_end: self.at_end,
            input_len: input.len(),
        };
        Some(Handed {
            fd: self.stream.as_raw_fd(),
            carried: Box::new(carried),
            input: input.to_vec(),
            output: output.to_vec(),
        })
    }

    /// Continues, as if there had been no take-over.
    pub(crate) fn resume(&mut self) {
        self.is_leaving = false;
        // What happened meanwhile is not known, so a turn finds it out.
        self.readable |= self.port.as_ref().is_none_or(|port| port.intake == Intake::Off);
    }

    /// Another server has the others: this one is served to its next request boundary, then ends.
    pub(crate) fn drain(&mut self) {
        self.draining = true;
        self.resume();
    }

    /// Continues a connection where another server left it. This one is new, and is in the phase of a login if it has to log in here. Returns
    /// when it needs a turn.
    pub(crate) fn inherit(&mut self, carried: &Carried, bytes: &[u8], desk: &Desk) -> Instant {
        let (input, output) = bytes.split_at_checked(carried.input_len).unwrap_or((bytes, &[]));
        self.input = Buffer::copy_of(input);
        self.output = output.to_vec();
        (self.at_end, self.read_closed) = (carried.at_end, carried.read_closed);
        self.since = desk
            .now
            .checked_sub(Duration::from_millis(carried.since_ms))
            .unwrap_or(desk.now);
        let has_to_log_in = matches!(self.phase, Phase::Login);
        if has_to_log_in && !matches!(carried.phase, CarriedPhase::Login | CarriedPhase::Refused { .. }) {
            // The other server had no logins.
            self.since = desk.now;
            return desk.now;
        }
        self.decoder = Decoder::continuing(self.decoder.limits().clone(), carried.progress.into());
        self.keys_done = carried.keys_done;
        (self.is_identified, self.has_begun_sasl) = (carried.is_identified, carried.has_begun_sasl);
        self.failures = carried.failures;
        self.role = carried
            .role
            .as_ref()
            .filter(|_| desk.executor.shared.users.is_some())
            .map(|(may_write, prefix)| Arc::new(Role::new(*may_write, prefix)));
        match &carried.phase {
            CarriedPhase::Refused { for_ms } if has_to_log_in => {
                let until = desk.now + Duration::from_millis(*for_ms).min(LOGIN_TIME);
                self.phase = Phase::Refused { until };
                return until;
            }
            CarriedPhase::Watching { events, what } => {
                let executor = &desk.executor;
                let asked = match what.is_empty() {
                    true => Some(WatchAsked::of_kinds((*events).into())),
                    false => WatchAsked::parse(what).ok(),
                };
                let place = (executor.worker, self.token);
                let add = |asked| executor.shared.watch.add(asked, place, &executor.cache, &executor.shared);
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
