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
use keyway_proto::{Decoder, Protocol, Request};
use serde::{Deserialize, Serialize};

use super::input::Input;
use super::link::Link;
use super::{Desk, Phase, Secure};
use crate::auth;
use crate::auth::sasl::Plain;
use crate::auth::{Form, Judgement, Pending, UserRole, Users, sasl, text};
use crate::config::{PROTOCOL_VERSION, Sasl};
use crate::cpu_budget::REQUEST;
use crate::execute::Outcome;
use crate::log_limiter::LogLimiter;
use crate::rate::Source;
use crate::shared::{CloseReason, Peer, Shared};

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

/// Who a client is, as far as that is known, and what it may do.
pub(super) struct Login {
    /// what it may do, if that is not everything
    role: Option<Arc<UserRole>>,
    /// it has been asked who it is by other means than a password: its certificate, or its user on this machine
    is_identified: bool,
    /// its login waits, or has waited, because too many of its source have failed
    is_delayed: bool,
    /// it has named the mechanism of SASL, without user and password
    has_begun_sasl: bool,
    /// failed logins
    failures: u8,
    /// whose requests its own are counted with, once that has been asked
    source: Option<Source>,
    /// since when it has to log in
    since: Instant,
}

/// The rest of a connection, as far as a login concerns it.
pub(super) struct Guest<'a> {
    pub(super) peer: &'a Peer,
    pub(super) link: &'a Link,
    pub(super) secure: Option<&'a Secure>,
    pub(super) input: &'a mut Input,
    pub(super) out: &'a mut Vec<u8>,
    pub(super) decoder: &'a mut Decoder,
}

/// What a login needs next.
pub(super) enum LoginStep {
    /// more bytes
    NeedBytes,
    /// another look at the input
    Stay,
    Become(Phase),
}

/// How far a login is, as one server tells the next.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct CarriedLogin {
    /// what it may do, if that is not everything: whether it may write, and the prefix of its keys
    role: Option<(bool, Vec<u8>)>,
    is_identified: bool,
    has_begun_sasl: bool,
    failures: u8,
    /// milliseconds since it has to log in
    since_ms: u64,
}

impl Login {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            role: None,
            is_identified: false,
            is_delayed: false,
            has_begun_sasl: false,
            failures: 0,
            source: None,
            since: now,
        }
    }

    /// The end of its time for the TLS handshake and to log in.
    pub(super) fn deadline(&self) -> Instant {
        self.since + LOGIN_TIME
    }

    /// What follows a refusal whose delay has ended.
    pub(super) fn after_refusal(&self) -> Phase {
        match self.failures {
            LOGINS_MAX.. => Phase::Closing(CloseReason::Error),
            _ => Phase::Login,
        }
    }

    /// Whose requests its own are counted with.
    pub(super) fn source(&mut self, peer: &Peer, link: &Link) -> Source {
        *self
            .source
            .get_or_insert_with(|| peer.address.source(|| link.stream().peer_user()))
    }

    /// Looks for a login in the input.
    pub(super) fn log_in(&mut self, guest: &mut Guest<'_>, desk: &mut Desk) -> LoginStep {
        let shared = Arc::clone(desk.shared());
        let Some(users) = &shared.users else {
            return LoginStep::Become(Phase::Serving);
        };
        let users = users.read().unwrap_or_else(PoisonError::into_inner);
        if !self.is_identified && !guest.secure.is_some_and(Secure::is_handshaking) {
            self.is_identified = true;
            if let Some(role) = guest.identify(&users) {
                return LoginStep::Become(self.admit(guest, &role));
            }
        }
        desk.executor.cpu_budget.spend(REQUEST);
        if !guest.input.data().is_empty() {
            let source = self.source(guest.peer, guest.link);
            if !shared.login_failures.has_room(source, desk.now) {
                return self.delay(guest, desk);
            }
        }
        let is_packet = guest.input.data().first() == Some(&binary::REQUEST);
        if is_packet && shared.has_sasl() && shared.config.protocol != Protocol::Text {
            self.log_in_by_packet(guest, desk, &users)
        } else if is_packet || shared.config.protocol == Protocol::Binary {
            guest.turn_away()
        } else {
            self.log_in_by_text(guest, desk, &users)
        }
    }

    /// What follows when the hashed password has been verified; `None`: it has not yet.
    pub(super) fn verified(&mut self, guest: &mut Guest<'_>, desk: &Desk, pending: &Pending, arrived: Instant) -> Option<Phase> {
        Some(match pending.verdict()? {
            Some(role) => self.succeed(guest, desk, &role, pending.form),
            None => self.fail(guest, desk, pending.form, arrived),
        })
    }

    /// A client that is served sends a step of SASL: it has to log in again, with this packet, which is not consumed.
    pub(super) fn log_in_again(&mut self, peer: &Peer, decoder: &mut Decoder, shared: &Shared) -> Phase {
        log::debug!("{} logs in again", peer.address);
        decoder.repeat();
        self.since = Instant::now();
        peer.is_admitted.store(false, Relaxed);
        match shared.users {
            Some(_) => Phase::Login,
            None => Phase::Serving,
        }
    }

    /// Whether its role does not allow this request.
    #[inline]
    pub(super) fn denies(&self, request: &Request<'_>) -> bool {
        self.role.as_ref().is_some_and(|role| role.denies(request).is_some())
    }

    /// Answers a request that its role does not allow.
    #[cold]
    pub(super) fn answer_denied(&self, request: &Request<'_>, out: &mut Vec<u8>) -> Outcome {
        if let Some(denied) = self.role.as_ref().and_then(|role| role.denies(request)) {
            denied.answer(request, out);
        }
        // The rest of a long line of keys gets no answer.
        Outcome::Broken
    }

    /// Its role, if that is not everything.
    #[inline]
    pub(super) fn role(&self) -> Option<&UserRole> {
        self.role.as_deref()
    }

    /// What the next server gets of it.
    pub(super) fn carried(&self, now: Instant) -> CarriedLogin {
        let since = now.saturating_duration_since(self.since);
        CarriedLogin {
            role: self.role.as_ref().map(|role| (role.may_write(), role.prefix().to_vec())),
            is_identified: self.is_identified,
            has_begun_sasl: self.has_begun_sasl,
            failures: self.failures,
            since_ms: u64::try_from(since.as_millis()).unwrap_or(u64::MAX),
        }
    }

    /// Continues where another server left it.
    pub(super) fn continuing(carried: &CarriedLogin, now: Instant, has_logins: bool) -> Self {
        let role = carried.role.as_ref().filter(|_| has_logins);
        Self {
            role: role.map(|(may_write, prefix)| Arc::new(UserRole::new(*may_write, prefix))),
            is_identified: carried.is_identified,
            has_begun_sasl: carried.has_begun_sasl,
            failures: carried.failures,
            ..Self::new(now.checked_sub(Duration::from_millis(carried.since_ms)).unwrap_or(now))
        }
    }

    /// Leaves what has arrived for later.
    fn delay(&mut self, guest: &Guest<'_>, desk: &Desk) -> LoginStep {
        if !std::mem::replace(&mut self.is_delayed, true) {
            desk.executor.counters().auth_delays.add(1);
            if let Some(left_out) = LOGIN_DELAYED.may_speak() {
                log::warn!(
                    "{}: too many logins from there have failed, and the next ones wait{left_out}",
                    guest.peer.address
                );
            }
        }
        LoginStep::Become(Phase::Refused {
            until: desk.shared().login_failures.again_at(desk.now),
        })
    }

    fn log_in_by_text(&mut self, guest: &mut Guest<'_>, desk: &Desk, users: &Users) -> LoginStep {
        match text::read(guest.input.data()) {
            text::TextLogin::Incomplete => LoginStep::NeedBytes,
            text::TextLogin::Hopeless => LoginStep::Become(Phase::Closing(CloseReason::Error)),
            text::TextLogin::Quit => LoginStep::Become(Phase::Closing(CloseReason::Normal)),
            text::TextLogin::Refused { consumed, reply } => {
                guest.input.consume(consumed);
                guest.out.extend_from_slice(reply);
                LoginStep::Stay
            }
            text::TextLogin::Attempt {
                consumed,
                user,
                password,
            } => {
                let judgement = users.judge(user, password);
                guest.input.consume(consumed);
                LoginStep::Become(self.judged(guest, desk, judgement, Form::Text))
            }
        }
    }

    fn log_in_by_packet(&mut self, guest: &mut Guest<'_>, desk: &Desk, users: &Users) -> LoginStep {
        let is_allowed = desk.shared().config.sasl == Sasl::Everywhere || guest.peer.address.is_protected();
        match sasl::read(guest.input.data(), self.has_begun_sasl) {
            sasl::SaslLogin::Incomplete => return LoginStep::NeedBytes,
            sasl::SaslLogin::Quit { answer } => {
                if let Some(head) = answer {
                    binary::done(guest.out, head, 0);
                }
                return LoginStep::Become(Phase::Closing(CloseReason::Normal));
            }
            sasl::SaslLogin::Refused { head, status } => {
                binary::error(guest.out, head, status);
                return LoginStep::Become(Phase::Closing(CloseReason::Error));
            }
            sasl::SaslLogin::Version { consumed, head } => {
                guest.input.consume(consumed);
                binary::value(guest.out, head, PROTOCOL_VERSION.as_bytes(), 0);
            }
            sasl::SaslLogin::List { head, .. } | sasl::SaslLogin::Begun { head, .. } | sasl::SaslLogin::Attempt { head, .. }
                if !is_allowed =>
            {
                binary::error_saying(guest.out, head, Status::AuthenticationError, sasl::NEEDS_TLS);
                return LoginStep::Become(Phase::Closing(CloseReason::Error));
            }
            sasl::SaslLogin::List { consumed, head } => {
                guest.input.consume(consumed);
                binary::value(guest.out, head, sasl::MECHANISMS, 0);
            }
            sasl::SaslLogin::Begun { consumed, head } => {
                guest.input.consume(consumed);
                self.has_begun_sasl = true;
                binary::error(guest.out, head, Status::AuthenticationContinues);
            }
            sasl::SaslLogin::Attempt { consumed, head, plain } => {
                let judgement = match plain {
                    Some(Plain { user, password }) => users.judge(user, password),
                    None => Judgement::Refused,
                };
                guest.input.consume(consumed);
                self.has_begun_sasl = false;
                return LoginStep::Become(self.judged(guest, desk, judgement, Form::Packet(head)));
            }
        }
        LoginStep::Stay
    }

    fn judged(&mut self, guest: &mut Guest<'_>, desk: &Desk, judgement: Judgement, form: Form) -> Phase {
        match judgement {
            Judgement::Admitted(role) => self.succeed(guest, desk, &role, form),
            Judgement::Refused => self.fail(guest, desk, form, desk.now),
            Judgement::Undecided(check) => {
                let source = self.source(guest.peer, guest.link);
                let asker = (desk.executor.worker(), guest.link.token());
                Phase::Verifying(desk.shared().hasher.ask(check, form, source, asker), desk.now)
            }
        }
    }

    fn succeed(&mut self, guest: &mut Guest<'_>, desk: &Desk, role: &Arc<UserRole>, form: Form) -> Phase {
        desk.executor.counters().auth_cmds.add(1);
        form.admit(guest.out);
        guest.decoder.speak(match form {
            Form::Text => Protocol::Text,
            Form::Packet(_) => Protocol::Binary,
        });
        self.admit(guest, role)
    }

    fn admit(&mut self, guest: &Guest<'_>, role: &Arc<UserRole>) -> Phase {
        self.role = (!role.is_full()).then(|| Arc::clone(role));
        guest.peer.is_admitted.store(true, Relaxed);
        Phase::Serving
    }

    /// The answer is delayed, and the connection does nothing else meanwhile.
    fn fail(&mut self, guest: &mut Guest<'_>, desk: &Desk, form: Form, arrived: Instant) -> Phase {
        let counters = desk.executor.counters();
        counters.auth_cmds.add(1);
        counters.auth_errors.add(1);
        let source = self.source(guest.peer, guest.link);
        desk.shared().login_failures.charge(source, 1, desk.now);
        self.is_delayed = false;
        if let Some(left_out) = LOGIN_FAILED.may_speak() {
            log::warn!("{}: a login failed{left_out}", guest.peer.address);
        }
        form.answer_failure(guest.out);
        self.failures = self.failures.saturating_add(1);
        Phase::Refused {
            until: arrived + REFUSED_FOR,
        }
    }
}

impl Guest<'_> {
    /// The role of a client that need not log in.
    fn identify(&self, users: &Users) -> Option<Arc<UserRole>> {
        match self.secure {
            Some(secure) if users.knows_certificates() => users.role_of_certificate(&secure.client_names()),
            Some(_) => None,
            None => users.role_of_peer(self.link.stream().peer_user()?),
        }
    }

    /// A client that speaks a protocol without a login here. A packet is answered.
    fn turn_away(&mut self) -> LoginStep {
        let data = self.input.data();
        if data.is_empty() {
            return LoginStep::NeedBytes;
        }
        let reason = match (data.first(), binary::front(data)) {
            (Some(&binary::REQUEST), None) => return LoginStep::NeedBytes,
            (Some(&binary::REQUEST), Some(front)) => match front.before_login {
                Some(binary::EarlyPacket::Quit { quiet }) => {
                    if !quiet {
                        binary::done(self.out, front.head, 0);
                    }
                    CloseReason::Normal
                }
                _ => {
                    binary::error(self.out, front.head, Status::AuthenticationError);
                    CloseReason::Error
                }
            },
            _ => CloseReason::Error,
        };
        LoginStep::Become(Phase::Closing(reason))
    }
}
