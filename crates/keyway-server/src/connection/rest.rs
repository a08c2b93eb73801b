//! When a connection is at rest, and what is published of it for the kernel door.
//!
//! A connection is *at rest* when all bytes that were read from its socket are consumed, all requests in them are executed, all output is in
//! the socket, and nothing will be written until more bytes are read. A turn and a completed send may bring a connection to rest. What ends
//! the rest of an enrolled connection is a read, which needs no word (see `kernel/enrolled.rs`), or one of these, before which the word is
//! cleared:
//!
//! | what | where |
//! |---|---|
//! | the server stops | `stop` |
//! | it is closed: idle, for memory, by an error | `end` |
//! | another server takes over, whether it gets this connection or not | `handed` |
//! | it must be seen whether its client is idle | `doubt_idleness` |
//!
//! A connection is enrolled when it has come to rest [`RESTS_BEFORE`] times, and one of its requests was a get. Only these may be: plain TCP
//! at the door's address, accepted by this process, speaking text, with a role that may read every key, without a limit of requests.
//!
//! Never: reads, writes or executes.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Instant;

use keyway_proto::{Request, Within};

use super::{Connection, Desk, Phase};
use crate::kernel::{Enrolment, Enrolments, Served};
use crate::shared::PeerAddress;

/// A connection is enrolled when it comes to rest for this time: one that sends a few requests and closes is not worth the system call.
const RESTS_BEFORE: u8 = 4;

/// A connection that the kernel door may serve.
pub(super) struct Rest {
    /// bytes that were read from the socket since it was accepted
    read: u64,
    /// it is at rest only after more bytes than this were read
    after: u64,
    step: Step,
}

enum Step {
    Waiting {
        enrolments: Arc<Enrolments>,
        /// how often it has come to rest, and how many bytes were read before the last time
        rests: u8,
        rested: u64,
        has_got: bool,
    },
    Enrolled(Enrolment),
}

impl Rest {
    /// This many bytes were read from the socket.
    #[inline]
    pub(super) fn read(&mut self, count: usize) {
        self.read += count as u64;
    }

    /// A request is about to be executed.
    #[inline]
    pub(super) fn note(&mut self, request: &Request<'_>, served: Option<&mut Served>) {
        match (&mut self.step, served) {
            // A binary get is another kind of request, and a connection speaks one protocol, so those that are enrolled speak text.
            (Step::Waiting { has_got, .. }, _) => *has_got |= matches!(request, Request::Get { .. } | Request::MetaGet(_)),
            (Step::Enrolled(_), Some(served)) => served.note(request),
            (Step::Enrolled(_), None) => {}
        }
    }

    /// It has come to rest: publishes that, or enrols it if it is time. Returns false if it cannot be enrolled.
    fn has_come_to_rest(&mut self, socket: BorrowedFd<'_>) -> bool {
        if let Step::Waiting {
            enrolments,
            rests,
            rested,
            has_got,
        } = &mut self.step
        {
            if *rested == self.read {
                return true;
            }
            *rested = self.read;
            *rests = rests.saturating_add(1);
            if *rests < RESTS_BEFORE || !*has_got {
                return true;
            }
            let Some(enrolment) = enrolments.enrol(socket) else {
                return false;
            };
            self.step = Step::Enrolled(enrolment);
        }
        if let Step::Enrolled(enrolment) = &mut self.step {
            enrolment.is_at_rest(self.read);
        }
        true
    }

    fn is_disturbed(&mut self) {
        if let Step::Enrolled(enrolment) = &mut self.step {
            enrolment.is_not_at_rest();
        }
    }
}

impl Connection {
    /// This process has accepted it just now: the kernel door may serve it later.
    pub(crate) fn may_be_enrolled(&mut self, desk: &Desk) {
        let executor = &desk.executor;
        let (Some(enrolments), None, None) = (&executor.enrolments, &executor.shared.rates, &self.secure) else {
            return;
        };
        let PeerAddress::Tcp {
            local: Some(local),
            is_secure: false,
            ..
        } = self.peer.address
        else {
            return;
        };
        self.rest = enrolments.admits(local).then(|| {
            Box::new(Rest {
                read: 0,
                after: 0,
                step: Step::Waiting {
                    enrolments: Arc::clone(enrolments),
                    rests: 0,
                    rested: 0,
                    has_got: false,
                },
            })
        });
    }

    /// Called whenever it may have come to rest.
    #[inline]
    pub(super) fn look_for_rest(&mut self) {
        if self.rest.is_some() {
            self.publish_door();
        }
    }

    fn publish_door(&mut self) {
        let is_at_rest = self.is_at_rest();
        let Some(rest) = &mut self.rest else { return };
        if !is_at_rest {
            rest.is_disturbed();
        } else if !rest.has_come_to_rest(self.stream.as_fd()) {
            self.rest = None;
        }
    }

    /// The program must not answer for it until it comes to rest again.
    pub(super) fn disturb(&mut self) {
        if let Some(rest) = &mut self.rest {
            rest.is_disturbed();
        }
    }

    /// The program answers without this server's knowledge. A connection that was silent for longer than `limit` must show with its next
    /// request that its client is not idle; it counts as active until now.
    pub(crate) fn doubt_idleness(&mut self, limit: Instant, now: Instant) {
        if let Some(rest) = &mut self.rest
            && let Step::Enrolled(enrolment) = &mut rest.step
            && enrolment.is_published()
            && self.last_active < limit
        {
            enrolment.is_not_at_rest();
            rest.after = rest.read;
            self.last_active = now;
        }
    }

    /// See the top of the file.
    fn is_at_rest(&self) -> bool {
        let is_between_requests = || {
            let progress = self.decoder.progress();
            progress.is_some_and(|progress| progress.within == Within::Nothing)
        };
        matches!(self.phase, Phase::Serving)
            && self.input.is_empty()
            && self.unsent() == 0
            && !(self.stopping || self.draining || self.is_over || self.at_end || self.read_closed)
            && self.keys_done == 0
            && self.role.as_ref().is_none_or(|role| role.prefix().is_empty())
            && self.rest.as_ref().is_some_and(|rest| rest.read > rest.after)
            && is_between_requests()
    }
}
