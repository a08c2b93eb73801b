//! How long requests take: from when a request is taken up, before it is decoded, until its answer is in the output. What the network
//! and the client add is not in it, except that an answer for which the output had no room includes the wait for the client.

use keyway_cache::server::Timer;
use keyway_cache::{Door, Session, Verb};
use keyway_proto::{Request, binary};

use super::Outcome;

/// As what a request is measured.
#[derive(Clone, Copy)]
pub(super) struct Measured {
    door: Door,
    verb: Verb,
    /// it is all of its line, or the last piece
    is_last: bool,
}

impl Measured {
    /// `over_udp`: it came in a datagram.
    #[inline]
    pub(super) fn of(request: &Request<'_>, over_udp: bool) -> Self {
        let mut is_last = true;
        let (door, verb) = match request {
            Request::Get { keys, .. } => {
                is_last = keys.are_last();
                (Door::Text, Verb::Get)
            }
            Request::GetAndTouch { keys, .. } => {
                is_last = keys.are_last();
                (Door::Text, Verb::Touch)
            }
            Request::Store(_) => (Door::Text, Verb::Set),
            Request::Delete { .. } => (Door::Text, Verb::Delete),
            Request::Arithmetic { .. } => (Door::Text, Verb::Arithmetic),
            Request::Touch { .. } => (Door::Text, Verb::Touch),
            Request::Admin(_) => (Door::Text, Verb::Other),
            Request::MetaGet(_) => (Door::Meta, Verb::Get),
            Request::MetaSet(_) => (Door::Meta, Verb::Set),
            Request::MetaDelete(_) => (Door::Meta, Verb::Delete),
            Request::MetaArithmetic(_) => (Door::Meta, Verb::Arithmetic),
            Request::MetaNoop | Request::MetaDebug { .. } => (Door::Meta, Verb::Other),
            Request::Binary(request) => {
                let verb = match request.command {
                    binary::Command::Get { exptime: None, .. } => Verb::Get,
                    binary::Command::Get { exptime: Some(_), .. } => Verb::Touch,
                    binary::Command::Store { .. } => Verb::Set,
                    binary::Command::Delete { .. } => Verb::Delete,
                    binary::Command::Arithmetic { .. } => Verb::Arithmetic,
                    _ => Verb::Other,
                };
                (Door::Binary, verb)
            }
        };
        let door = if over_udp { Door::Udp } else { door };
        Self { door, verb, is_last }
    }

    /// Notes how long a request took that was taken up at `start`, a reading of the timer, if this outcome is the end of it. Otherwise
    /// returns `start`, for its next piece.
    #[inline]
    pub(super) fn note(self, session: &mut Session, timer: &mut Timer, start: u64, outcome: &Outcome) -> Option<u64> {
        match outcome {
            Outcome::Partly { .. } => return Some(start),
            Outcome::Done if !self.is_last => return Some(start),
            // A login is no request: its connection answers it.
            Outcome::LogIn => return None,
            Outcome::Done | Outcome::Broken | Outcome::Close(_) | Outcome::Dump(_) | Outcome::Watch(_) | Outcome::Wait(_) => {}
        }
        let ns = timer.ns_between(start, timer.now());
        session.note_latency(self.door, self.verb, ns);
        None
    }
}
