//! The phases of a connection before it is served: it has a limited time for its TLS handshake, and a limited time and number of attempts
//! to log in. A client that its certificate or its user on this machine identifies need not log in. While too many logins of a source have
//! failed, its next ones wait.
//!
//! What its role does not allow is refused here too.

use std::sync::Arc;
use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use keyway_proto::binary::{self, Status};
use keyway_proto::{Protocol, Request};

use super::{CloseReason, Connection, Desk, Phase, Stop, Verdict};
use crate::auth::sasl::Plain;
use crate::auth::{self, Form, Judgement, Pending, Role, Users, sasl, text};
use crate::config::{PROTOCOL_VERSION, Sasl};
use crate::cpu_budget::REQUEST;
use crate::execute::{Executor, Outcome};
use crate::log_limiter::LogLimiter;
use crate::tls::Certificates;

/// A connection has to finish its TLS handshake and to log in within this time after its `connect`, whatever it sends; otherwise it is
/// closed.
pub(super) const LOGIN_TIME: Duration = Duration::from_secs(10);
/// Bytes that are read from a connection before it has logged in: any login, and what may follow it in a packet.
pub(super) const LOGIN_INPUT_MAX: usize = auth::LINE_MAX + auth::TOKEN_MAX + 64;
const _: () = assert!(sasl::PACKET_MAX <= LOGIN_INPUT_MAX);
/// The answer to a failed login comes this time after the login.
const REFUSED_FOR: Duration = Duration::from_secs(1);
/// Failed logins after which a connection is closed.
const LOGINS_MAX: u8 = 3;

static LOGIN_FAILED: LogLimiter = LogLimiter::new();
static LOGIN_DELAYED: LogLimiter = LogLimiter::new();

impl Connection {
    /// The end of its time for the TLS handshake and to log in, if it has not done both.
    pub(crate) fn login_deadline(&self) -> Option<Instant> {
        let has_to_log_in = matches!(self.phase, Phase::Login | Phase::Verifying(..) | Phase::Refused { .. });
        (self.is_shaking_hands() || has_to_log_in).then(|| self.since + LOGIN_TIME)
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

    /// Waits for the login of a connection.
    pub(super) fn log_in(&mut self, desk: &mut Desk) -> Stop {
        let shared = Arc::clone(&desk.executor.shared);
        let Some(users) = &shared.users else {
            self.phase = Phase::Serving;
            return Stop::Phase;
        };
        let users = users.read().unwrap_or_else(PoisonError::into_inner);
        if !self.is_identified && !self.is_shaking_hands() {
            self.is_identified = true;
            if let Some(role) = self.identify(&users) {
                self.admit(&role);
                return Stop::Phase;
            }
        }
        desk.executor.cpu_budget.spend(REQUEST);
        if !self.input.is_empty() && !shared.login_failures.has_room(self.source(), desk.now) {
            return self.delay(desk);
        }
        let is_packet = self.input.data().first() == Some(&binary::REQUEST);
        if is_packet && shared.has_sasl() && shared.config.protocol != Protocol::Text {
            self.log_in_by_packet(desk, &users)
        } else if is_packet || shared.config.protocol == Protocol::Binary {
            self.turn_away()
        } else {
            self.log_in_by_text(desk, &users)
        }
    }

    /// Leaves what has arrived for later.
    fn delay(&mut self, desk: &Desk) -> Stop {
        if !std::mem::replace(&mut self.is_delayed, true) {
            desk.executor.counters().auth_delays.add(1);
            if let Some(left_out) = LOGIN_DELAYED.may_speak() {
                log::warn!(
                    "{}: too many logins from there have failed, and the next ones wait{left_out}",
                    self.peer.address
                );
            }
        }
        self.phase = Phase::Refused {
            until: desk.executor.shared.login_failures.again_at(desk.now),
        };
        Stop::Phase
    }

    /// The role of a client that need not log in.
    fn identify(&self, users: &Users) -> Option<Arc<Role>> {
        match &self.secure {
            Some(secure) if users.knows_certificates() => users.role_of_certificate(&secure.client_names()),
            Some(_) => None,
            None => users.role_of_peer(self.stream.peer_user()?),
        }
    }

    fn log_in_by_text(&mut self, desk: &Desk, users: &Users) -> Stop {
        match text::read(self.input.data()) {
            text::Login::Incomplete => return Stop::NeedBytes,
            text::Login::Hopeless => self.phase = Phase::Closing(CloseReason::Error),
            text::Login::Quit => self.phase = Phase::Closing(CloseReason::Normal),
            text::Login::Refused { consumed, reply } => {
                self.input.consume(consumed);
                self.output.extend_from_slice(reply);
            }
            text::Login::Attempt {
                consumed,
                user,
                password,
            } => {
                let judgement = users.judge(user, password);
                self.input.consume(consumed);
                self.judged(desk, judgement, Form::Text);
            }
        }
        Stop::Phase
    }

    fn log_in_by_packet(&mut self, desk: &Desk, users: &Users) -> Stop {
        let is_allowed = desk.executor.shared.config.sasl == Sasl::Everywhere || self.peer.address.is_protected();
        match sasl::read(self.input.data(), self.has_begun_sasl) {
            sasl::Login::Incomplete => return Stop::NeedBytes,
            sasl::Login::Quit { answer } => {
                if let Some(head) = answer {
                    binary::done(&mut self.output, head, 0);
                }
                self.phase = Phase::Closing(CloseReason::Normal);
            }
            sasl::Login::Refused { head, status } => {
                binary::error(&mut self.output, head, status);
                self.phase = Phase::Closing(CloseReason::Error);
            }
            sasl::Login::Version { consumed, head } => {
                self.input.consume(consumed);
                binary::value(&mut self.output, head, PROTOCOL_VERSION.as_bytes(), 0);
            }
            sasl::Login::List { head, .. } | sasl::Login::Begun { head, .. } | sasl::Login::Attempt { head, .. }
                if !is_allowed =>
            {
                binary::error_saying(&mut self.output, head, Status::AuthenticationError, sasl::NEEDS_TLS);
                self.phase = Phase::Closing(CloseReason::Error);
            }
            sasl::Login::List { consumed, head } => {
                self.input.consume(consumed);
                binary::value(&mut self.output, head, sasl::MECHANISMS, 0);
            }
            sasl::Login::Begun { consumed, head } => {
                self.input.consume(consumed);
                self.has_begun_sasl = true;
                binary::error(&mut self.output, head, Status::AuthenticationContinues);
            }
            sasl::Login::Attempt { consumed, head, plain } => {
                let judgement = match plain {
                    Some(Plain { user, password }) => users.judge(user, password),
                    None => Judgement::Refused,
                };
                self.input.consume(consumed);
                self.has_begun_sasl = false;
                self.judged(desk, judgement, Form::Packet(head));
            }
        }
        Stop::Phase
    }

    /// A client that speaks a protocol without a login here. A packet is answered.
    fn turn_away(&mut self) -> Stop {
        let data = self.input.data();
        if data.is_empty() {
            return Stop::NeedBytes;
        }
        let reason = match (data.first(), binary::front(data)) {
            (Some(&binary::REQUEST), None) => return Stop::NeedBytes,
            (Some(&binary::REQUEST), Some(front)) => match front.before_login {
                Some(binary::BeforeLogin::Quit { quiet }) => {
                    if !quiet {
                        binary::done(&mut self.output, front.head, 0);
                    }
                    CloseReason::Normal
                }
                _ => {
                    binary::error(&mut self.output, front.head, Status::AuthenticationError);
                    CloseReason::Error
                }
            },
            _ => CloseReason::Error,
        };
        self.phase = Phase::Closing(reason);
        Stop::Phase
    }

    fn judged(&mut self, desk: &Desk, judgement: Judgement, form: Form) {
        match judgement {
            Judgement::Admitted(role) => self.succeed(desk, &role, form),
            Judgement::Refused => self.fail(desk, form, desk.now),
            Judgement::Undecided(check) => {
                let executor = &desk.executor;
                let (source, asker) = (self.source(), (executor.worker, self.token));
                let pending = executor.shared.hasher.ask(check, form, source, asker);
                self.phase = Phase::Verifying(pending, desk.now);
            }
        }
    }

    /// Whether the hashed password has been verified; the phase is another one then.
    pub(super) fn verified(&mut self, desk: &Desk, pending: &Pending, arrived: Instant) -> bool {
        match pending.verdict() {
            None => return false,
            Some(Some(role)) => self.succeed(desk, &role, pending.form),
            Some(None) => self.fail(desk, pending.form, arrived),
        }
        true
    }

    fn succeed(&mut self, desk: &Desk, role: &Arc<Role>, form: Form) {
        desk.executor.counters().auth_cmds.add(1);
        form.admit(&mut self.output);
        self.decoder.speak(match form {
            Form::Text => Protocol::Text,
            Form::Packet(_) => Protocol::Binary,
        });
        self.admit(role);
    }

    fn admit(&mut self, role: &Arc<Role>) {
        self.role = (!role.is_full()).then(|| Arc::clone(role));
        self.peer.is_admitted.store(true, Relaxed);
        self.phase = Phase::Serving;
    }

    /// The answer is delayed, and the connection does nothing else meanwhile.
    fn fail(&mut self, desk: &Desk, form: Form, arrived: Instant) {
        let counters = desk.executor.counters();
        counters.auth_cmds.add(1);
        counters.auth_errors.add(1);
        desk.executor.shared.login_failures.charge(self.source(), 1, desk.now);
        self.is_delayed = false;
        if let Some(left_out) = LOGIN_FAILED.may_speak() {
            log::warn!("{}: a login failed{left_out}", self.peer.address);
        }
        form.answer_failure(&mut self.output);
        self.failures = self.failures.saturating_add(1);
        self.phase = Phase::Refused {
            until: arrived + REFUSED_FOR,
        };
    }

    /// A client that is served sends a step of SASL: it has to log in again, with this packet, which is not consumed.
    pub(super) fn log_in_again(&mut self, executor: &Executor) {
        log::debug!("{} logs in again", self.peer.address);
        self.decoder.repeat();
        self.since = Instant::now();
        self.peer.is_admitted.store(false, Relaxed);
        self.phase = match executor.shared.users {
            Some(_) => Phase::Login,
            None => Phase::Serving,
        };
    }

    /// Whether its role does not allow this request.
    #[inline]
    pub(super) fn is_denied(&self, request: &Request<'_>) -> bool {
        self.role.as_ref().is_some_and(|role| role.denies(request).is_some())
    }

    /// Answers a request that its role does not allow.
    #[cold]
    pub(super) fn answer_denied(&mut self, request: &Request<'_>) -> Outcome {
        if let Some(denied) = self.role.as_ref().and_then(|role| role.denies(request)) {
            denied.answer(request, &mut self.output);
        }
        // The rest of a long line of keys gets no answer.
        Outcome::Broken
    }
}
