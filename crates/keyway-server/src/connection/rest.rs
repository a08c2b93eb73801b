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

use keyway_proto::Request;

use super::Desk;
use crate::kernel::{Enrolment, Enrolments, Served};
use crate::shared::PeerAddress;

/// A connection is enrolled when it comes to rest for this time: one that sends a few requests and closes is not worth the system call.
const RESTS_BEFORE: u8 = 4;

/// What is published of a connection, if the kernel door may serve it, now or later.
#[derive(Default)]
pub(super) struct Rest(Option<Box<Watched>>);

/// A connection that the kernel door may serve.
struct Watched {
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
    /// Of a connection that this process has accepted just now: the kernel door may serve it later.
    pub(super) fn of_new(desk: &Desk, address: &PeerAddress) -> Self {
        let (Some(enrolments), None) = (desk.executor.enrolments(), &desk.shared().rates) else {
            return Self(None);
        };
        let PeerAddress::Tcp {
            local: Some(local),
            is_secure: false,
            ..
        } = *address
        else {
            return Self(None);
        };
        Self(enrolments.admits(local).then(|| {
            Box::new(Watched {
                read: 0,
                after: 0,
                step: Step::Waiting {
                    enrolments: Arc::clone(enrolments),
                    rests: 0,
                    rested: 0,
                    has_got: false,
                },
            })
        }))
    }

    /// This many bytes were read from the socket.
    #[inline]
    pub(super) fn read(&mut self, count: usize) {
        if let Some(watched) = &mut self.0 {
            watched.read += count as u64;
        }
    }

    /// Whether requests are to be noted.
    #[inline]
    pub(super) fn is_watched(&self) -> bool {
        self.0.is_some()
    }

    /// A request is about to be executed.
    pub(super) fn note(&mut self, request: &Request<'_>, served: Option<&mut Served>) {
        let Some(watched) = &mut self.0 else { return };
        match (&mut watched.step, served) {
            // A connection speaks one protocol, so those that are enrolled speak text.
            (Step::Waiting { has_got, .. }, _) => *has_got |= request.is_for_kernel(),
            (Step::Enrolled(_), Some(served)) => served.note(request),
            (Step::Enrolled(_), None) => {}
        }
    }

    /// Publishes whether the connection is at rest.
    pub(super) fn publish(&mut self, is_at_rest: bool, socket: &impl AsFd) {
        let Some(watched) = &mut self.0 else { return };
        if !is_at_rest || watched.read <= watched.after {
            watched.is_disturbed();
        } else if !watched.has_come_to_rest(socket.as_fd()) {
            self.0 = None;
        }
    }

    /// The program must not answer for it until it comes to rest again.
    pub(super) fn disturb(&mut self) {
        if let Some(watched) = &mut self.0 {
            watched.is_disturbed();
        }
    }

    /// The program answers without this server's knowledge. A connection that is at rest must show with its next request that its client is
    /// not idle. Returns whether it is.
    pub(super) fn doubt(&mut self) -> bool {
        if let Some(watched) = &mut self.0
            && let Step::Enrolled(enrolment) = &mut watched.step
            && enrolment.is_published()
        {
            enrolment.is_not_at_rest();
            watched.after = watched.read;
            return true;
        }
        false
    }
}

impl Watched {
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
