//! How long requests take: from when a request is taken up, before it is decoded, until its answer is in the output. What the network
//! and the client add is not in it, except that an answer for which the output had no room includes the wait for the client.

use keyway_cache::server::ServerSession as _;
use keyway_cache::server::Timer;
use keyway_cache::{Door, Session, Verb};
use keyway_proto::{Effect, Form, Request};

use super::Outcome;

/// What is noted of a request, for counters, watchers and the kernel door.
#[derive(Clone, Copy)]
pub(super) struct Measured {
    pub(super) door: Door,
    pub(super) form: Form,
    verb: Verb,
    effect: Effect,
    /// it is all of its line, or the last piece
    is_last: bool,
}

impl Measured {
    /// `over_udp`: it came in a datagram.
    #[inline]
    pub(super) fn of(request: &Request<'_>, over_udp: bool) -> Self {
        let (facts, form) = (request.facts(), request.form());
        let door = match form {
            _ if over_udp => Door::Udp,
            Form::Text => Door::Text,
            Form::Meta => Door::Meta,
            Form::Binary => Door::Binary,
        };
        let verb = match facts.verb {
            keyway_proto::Verb::Get => Verb::Get,
            keyway_proto::Verb::Set => Verb::Set,
            keyway_proto::Verb::Delete => Verb::Delete,
            keyway_proto::Verb::Arithmetic => Verb::Arithmetic,
            keyway_proto::Verb::Touch => Verb::Touch,
            keyway_proto::Verb::Other => Verb::Other,
        };
        Self {
            door,
            form,
            verb,
            effect: facts.access.effect(),
            is_last: request.is_last(),
        }
    }

    /// Whether it was meant to change items.
    pub(super) fn changes(&self) -> bool {
        self.effect == Effect::Changes
    }

    /// Notes how long a request took that was taken up at `start`, a reading of the timer, if this outcome is the end of it. Otherwise
    /// returns `start`, for its next piece.
    #[inline]
    pub(super) fn note(self, session: &mut Session, timer: &mut Timer, start: u64, outcome: &Outcome) -> Option<u64> {
        match outcome {
            Outcome::Partly { .. } | Outcome::Hold { .. } => return Some(start),
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
