//! A connection between two servers: how it is brought to a request boundary, what the next server needs to know, and how that server
//! continues with it.
//!
//! A connection is at a request boundary between any two turns: requests are executed whole, except a line of many keys, for which the
//! `Requests` says how far it is. Only a ring may be in the middle of something then: its receive is cancelled, and what it has
//! received is kept; its send is cancelled, and what it has not sent goes back to the output.

use std::io;
use std::time::{Duration, Instant};

use keyway_uring::Ring;
use mio::Registry;
use nix::libc::ECANCELED;

use super::input::Input;
use super::login::{LOGIN_TIME, Login};
use super::output::Output;
use super::schedule::Ending;
use super::{CloseReason, Connection, Desk, Phase};
use crate::takeover::{CARRIED_MAX, Carried, CarriedOrigin, CarriedPhase, Handed};
use crate::watch::WatchAsked;

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
        let mut carried = Carried::new(CarriedOrigin::of(&self.peer.address)?, self.carried_phase(desk.now)?);
        carried.has_logged_in = shared.users.is_some() && matches!(self.phase, Phase::Serving | Phase::Watching);
        carried.progress = self.requests.progress()?.into();
        carried.keys_done = self.requests.keys_done();
        carried.read_closed = self.input.is_read_closed();
        carried.at_end = self.input.is_at_end();
        carried.input_len = input.len();
        self.login.hand_over(&mut carried, desk.now);
        Some(Handed {
            fd: self.link.fd(),
            carried: Box::new(carried),
            input: input.to_vec(),
            output: output.to_vec(),
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
    pub(crate) fn inherit(&mut self, carried: &Carried, bytes: &[u8], desk: &Desk) -> Instant {
        let (input, output) = bytes.split_at_checked(carried.input_len).unwrap_or((bytes, &[]));
        self.input = Input::continuing(input, carried.read_closed, carried.at_end);
        self.output = Output::continuing(output);
        let has_to_log_in = matches!(self.phase, Phase::Login);
        if has_to_log_in && !matches!(carried.phase, CarriedPhase::Login | CarriedPhase::Refused { .. }) {
            // The other server had no logins: its time begins now.
            return desk.now;
        }
        self.requests = self.requests.continuing(carried.progress.into(), carried.keys_done);
        self.login = Login::continuing(carried, desk.now, desk.shared().users.is_some());
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
                let add = |asked| desk.shared().watch.add(asked, place, desk.executor.cache(), desk.shared());
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
