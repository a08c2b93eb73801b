//! The phases of a connection before it is served: it has a limited time for its TLS handshake, and a limited time and number of attempts
//! to log in.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use keyway_proto::reply;

use super::{CloseReason, Connection, Desk, Phase, Stop, Verdict};
use crate::auth::{self, Login};
use crate::effort::REQUEST;
use crate::quiet::Quiet;
use crate::tls::Certificates;

/// A connection has to finish its TLS handshake and to log in within this time after its `connect`, whatever it sends; otherwise it is
/// closed.
pub(super) const LOGIN_TIME: Duration = Duration::from_secs(10);
/// Bytes that are read from a connection before it has logged in: any login, and what may follow it in a packet.
pub(super) const LOGIN_INPUT_MAX: usize = auth::LINE_MAX + auth::TOKEN_MAX + 64;
/// The answer to a failed login is delayed by this time.
const REFUSED_FOR: Duration = Duration::from_secs(1);
/// Failed logins after which a connection is closed.
const LOGINS_MAX: u8 = 3;

static LOGIN_FAILED: Quiet = Quiet::new();

impl Connection {
    /// The end of its time for the TLS handshake and to log in, if it has not done both.
    pub(crate) fn login_deadline(&self) -> Option<Instant> {
        (self.is_shaking_hands() || matches!(self.phase, Phase::Login | Phase::Refused { .. })).then(|| self.since + LOGIN_TIME)
    }

    fn is_shaking_hands(&self) -> bool {
        self.secure.as_ref().is_some_and(|secure| secure.is_handshaking())
    }

    /// The verdict of a turn that comes after the time to log in has ended, or while a refusal is still delayed.
    pub(super) fn wait_for_login(&mut self, desk: &Desk) -> Option<Verdict> {
        if self.login_deadline()? <= desk.now {
            if let (true, Some(certificates)) = (self.is_shaking_hands(), &desk.executor.shared.certificates) {
                Certificates::count(&certificates.handshake_errors);
                return Some(Verdict::Close(CloseReason::HandshakeTimeout));
            }
            desk.executor.counters().auth_timeouts.add(1);
            return Some(Verdict::Close(CloseReason::LoginTimeout));
        }
        let Phase::Refused { until } = self.phase else {
            return None;
        };
        if desk.now < until {
            return Some(Verdict::Wait);
        }
        self.phase = match self.failures {
            LOGINS_MAX.. => Phase::Closing(CloseReason::Error),
            _ => Phase::Login,
        };
        None
    }

    /// Waits for the first `set` of an authenticated connection.
    pub(super) fn log_in(&mut self, desk: &mut Desk) -> Stop {
        let Some(users) = &desk.executor.shared.users else {
            self.phase = Phase::Serving;
            return Stop::Phase;
        };
        let verdict = auth::login(
            &users.read().unwrap_or_else(std::sync::PoisonError::into_inner),
            self.input.data(),
        );
        desk.executor.effort.spend(REQUEST);
        let counters = desk.executor.counters();
        match verdict {
            Login::Incomplete => return Stop::NeedBytes,
            Login::Hopeless => self.phase = Phase::Closing(CloseReason::Error),
            Login::Quit => self.phase = Phase::Closing(CloseReason::Normal),
            Login::Binary { answer } => {
                answer.append_to(&mut self.output);
                self.phase = Phase::Closing(CloseReason::Error);
            }
            Login::Refused {
                consumed,
                reply,
                attempt,
            } => {
                self.input.consume(consumed);
                self.output.extend_from_slice(reply);
                if attempt {
                    counters.auth_cmds.add(1);
                    counters.auth_errors.add(1);
                    if let Some(left_out) = LOGIN_FAILED.may_speak() {
                        log::warn!("{}: a login failed{left_out}", self.peer.address);
                    }
                    self.failures = self.failures.saturating_add(1);
                    self.phase = Phase::Refused {
                        until: desk.now + REFUSED_FOR,
                    };
                }
            }
            Login::Admitted { consumed } => {
                counters.auth_cmds.add(1);
                self.input.consume(consumed);
                self.output.extend_from_slice(reply::STORED);
                self.peer.is_admitted.store(true, Relaxed);
                self.phase = Phase::Serving;
            }
        }
        Stop::Phase
    }
}
