//! A turn of work on a connection: what it reads, executes and sends, and where it ends.
//!
//! Never: chooses which connection gets the turn (`worker`), or knows what a request means (`execute`).

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use keyway_proto::{Decoded, Decoder, Effect, Limits, Progress, Protocol, Request};
use keyway_uring::Piece;

use super::login::{Guest, LOGIN_INPUT_MAX, LoginStep};
use super::schedule::Ending;
use super::secure::Arrived;
use super::stream::Reader;
use super::{Connection, Desk, Phase};
use crate::account::{PAUSE, PAUSED_MAX, SMALL, UNSENT_MAX, UNSENT_TIGHT};
use crate::cpu_budget::{REQUEST, TURN_WORK};
use crate::execute::{Executor, Held, Origin, Outcome};
use crate::log_limiter::LogLimiter;
use crate::shared::{Activity, CloseReason, Shared};
use crate::shown::Shown;
use crate::tls;
use crate::tls::Certificates;

/// Reads of one connection in a turn before other connections get theirs, so a large value is read in steps.
const READS_PER_TURN: usize = 8;
/// Unsent bytes above which nothing more is answered before a login.
const LOGIN_UNSENT_MAX: usize = 1024;

static HANDSHAKE_FAILED: LogLimiter = LogLimiter::new();

/// The result of a turn.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// nothing to do before the next event of the socket
    Wait,
    /// more to do at once, after the other connections
    Again,
    /// more to do at that time
    Later(Instant),
    /// the connection is over
    Close(CloseReason),
}

/// The result of serving the request at the front of some bytes.
enum Executed {
    /// it is incomplete until there are this many bytes
    Needs(usize),
    /// it was executed, and had this many bytes
    Done(usize),
    /// this many bytes are consumed, and no more requests are to be executed for now
    Stop(usize, Stop),
}

/// Why a phase has stopped its work.
enum Stop {
    /// the next request is not complete
    NeedBytes,
    /// the turn has used its share
    Budget,
    /// too many bytes are unsent
    Unsent,
    /// the next request has to wait a while; other connections do not
    HeldUp,
    /// the phase has changed
    Phase,
    /// the next request waits for a value that somebody computes, at most until then
    Holds(Instant),
    /// it waits: what it has to say is sent, and the turn ends with this verdict
    Waits(Verdict),
    /// it says nothing before this time
    IsSilent(Instant),
}

/// What follows in a turn.
enum Next {
    /// the phase goes on, or another one begins
    Step,
    /// the turn ends; `true`: with work left
    End(bool),
    Verdict(Verdict),
}

/// What a turn may still do.
struct Allowance {
    requests: usize,
    reads: usize,
}

/// How far the request at the front of the input is.
pub(super) struct Requests {
    decoder: Decoder,
    /// keys of it that have been answered already
    keys_done: usize,
    /// when it was taken up, by the executor's timer
    taken_up: Option<u64>,
    /// since when it has waited for a value that somebody computes
    held_since: Option<Instant>,
}

impl Requests {
    /// `login`: the client has to log in first.
    pub(super) fn new(login: bool, shared: &Shared) -> Self {
        // A login without SASL is a line of text, so the requests after it are text too.
        let protocol = match login && !shared.has_sasl() {
            true => Protocol::Text,
            false => shared.config.protocol,
        };
        Self {
            decoder: Decoder::speaking(Limits::default(), protocol),
            keys_done: 0,
            taken_up: None,
            held_since: None,
        }
    }

    /// Continues where another server left it.
    pub(super) fn continuing(&self, progress: Progress, keys_done: usize) -> Self {
        Self {
            decoder: Decoder::continuing(self.decoder.limits().clone(), progress),
            keys_done,
            taken_up: None,
            held_since: None,
        }
    }

    pub(super) fn progress(&self) -> Option<Progress> {
        self.decoder.progress()
    }

    pub(super) fn keys_done(&self) -> usize {
        self.keys_done
    }
}

impl Connection {
    /// One turn of work; `None`: it has none.
    pub(crate) fn turn(&mut self, desk: &mut Desk) -> Option<Verdict> {
        if !self.schedule.begin_turn() {
            return None;
        }
        self.begin_turn(desk);
        let verdict = match self.work(desk) {
            Ok(verdict) => verdict,
            Err(error) => {
                log::debug!("{}: {error}", self.peer.address);
                Verdict::Close(CloseReason::Error)
            }
        };
        self.output.give_back(&mut desk.buffers);
        self.input.give_back(&mut desk.buffers);
        self.settle();
        self.look_for_rest();
        let is_long = verdict == Verdict::Again || desk.executor.cpu_budget.is_over() || matches!(self.phase, Phase::Dumping(_));
        self.schedule.end_turn(is_long);
        let activity = match (&self.phase, self.unsent()) {
            (Phase::Watching, _) => Activity::Watching,
            (_, 0) if self.requests.decoder.is_dropping() => Activity::Dropping,
            (_, 0) if self.requests.decoder.is_in_value(self.input.data()) => Activity::InValue,
            (_, 0) => Activity::Waiting,
            _ => Activity::Unsent,
        };
        self.peer.shows(activity);
        Some(verdict)
    }

    /// Borrows the worker's buffers. The work of a turn that has begun with what the ring received is counted from there on.
    pub(super) fn begin_turn(&mut self, desk: &mut Desk) {
        self.input.borrow(&mut desk.buffers);
        self.output.borrow(&mut desk.buffers);
        if desk.begun.is_none() {
            desk.executor.cpu_budget.begin();
            desk.begun = Some(0);
        }
    }

    fn work(&mut self, desk: &mut Desk) -> io::Result<Verdict> {
        self.peer.shows(Activity::Executing);
        let spent = desk.begun.take().unwrap_or(0);
        if let Some(verdict) = self.wait_for_login(desk) {
            return Ok(verdict);
        }
        let unsent_max = match self.phase {
            Phase::Login => LOGIN_UNSENT_MAX,
            _ if desk.shared().account.is_tight() => UNSENT_TIGHT,
            _ => UNSENT_MAX,
        };
        let mut share = Allowance {
            requests: desk.shared().config.requests_per_turn - spent,
            reads: READS_PER_TURN,
        };
        let again = loop {
            if self.unsent() > unsent_max {
                self.send(desk)?;
                if self.unsent() > unsent_max {
                    return Ok(Verdict::Wait);
                }
            }
            if matches!(self.phase, Phase::Closing(_)) {
                break false;
            }
            let stop = self.step(desk, &mut share);
            match self.after(stop, desk, &mut share)? {
                Next::Step => {}
                Next::End(again) => break again,
                Next::Verdict(verdict) => return Ok(verdict),
            }
        };
        self.send(desk)?;
        if again && self.unsent() <= UNSENT_MAX {
            return Ok(Verdict::Again);
        }
        match self.phase {
            Phase::Closing(reason) if self.unsent() == 0 => Ok(Verdict::Close(reason)),
            Phase::Login => Ok(Verdict::Later(self.login.deadline())),
            _ => Ok(Verdict::Wait),
        }
    }

    /// The verdict of a turn that comes after the time to log in has ended, or while a refusal is still delayed.
    fn wait_for_login(&mut self, desk: &Desk) -> Option<Verdict> {
        if self.login_deadline()? <= desk.now {
            if let (true, Some(certificates)) = (self.is_shaking_hands(), &desk.shared().certificates) {
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
        self.phase = self.login.after_refusal();
        None
    }

    /// Does what the phase asks for, as far as bytes and budget allow.
    fn step(&mut self, desk: &mut Desk, share: &mut Allowance) -> Stop {
        match &mut self.phase {
            // The turn ends before that.
            Phase::Closing(_) => Stop::Phase,
            Phase::Login if desk.executor.cpu_budget.is_over() => Stop::Budget,
            Phase::Login | Phase::Verifying(..) => self.log_in(desk),
            Phase::Refused { until } => Stop::IsSilent(*until),
            Phase::Serving => self.serve_input(desk, &mut share.requests),
            Phase::Dumping(dump) => {
                if dump.step(&mut desk.executor, self.output.bytes()) {
                    self.phase = Phase::Serving;
                }
                // One step a turn: a dump of millions of items shares the worker with all other connections.
                Stop::Budget
            }
            Phase::Waiting(task) => {
                let Some(answer) = task.answer() else {
                    return Stop::Waits(Verdict::Wait);
                };
                self.output.bytes().extend_from_slice(answer);
                self.phase = Phase::Serving;
                Stop::Phase
            }
            Phase::Watching => {
                if let Some(watcher) = &self.watcher {
                    watcher.take(self.output.bytes());
                }
                self.input.consume(usize::MAX);
                Stop::NeedBytes
            }
        }
    }

    /// What follows from the reason why a phase has stopped.
    fn after(&mut self, stop: Stop, desk: &mut Desk, share: &mut Allowance) -> io::Result<Next> {
        Ok(match stop {
            Stop::NeedBytes => self.read(desk, share)?,
            Stop::Phase => Next::Step,
            // A client that takes its replies as fast as they are made still ends its turn here, so that others get theirs.
            Stop::Unsent if self.unsent() <= UNSENT_MAX => Next::End(true),
            Stop::Unsent => Next::Step,
            Stop::Budget => {
                if share.requests == 0 || desk.executor.cpu_budget.is_over() {
                    desk.executor.counters().conn_yields.add(1);
                }
                Next::End(true)
            }
            Stop::HeldUp => Next::End(true),
            Stop::Holds(until) => {
                self.send(desk)?;
                Next::Verdict(Verdict::Later(until))
            }
            Stop::Waits(verdict) => {
                self.send(desk)?;
                Next::Verdict(verdict)
            }
            Stop::IsSilent(until) => Next::Verdict(Verdict::Later(until)),
        })
    }

    /// Reads, if the socket may hold bytes and this turn may read once more.
    fn read(&mut self, desk: &mut Desk, share: &mut Allowance) -> io::Result<Next> {
        let ending = self.schedule.ending();
        if self.input.is_at_end() {
            self.phase = Phase::Closing(match ending {
                Ending::Stopping => CloseReason::Shutdown,
                _ => CloseReason::Normal,
            });
            return Ok(Next::Step);
        }
        if !self.input.is_readable() {
            let is_between_requests = self.input.data().is_empty() && self.requests.decoder.is_between_requests();
            if ending == Ending::Draining && is_between_requests {
                self.phase = Phase::Closing(CloseReason::Shutdown);
                return Ok(Next::Step);
            }
            return Ok(Next::End(false));
        }
        if share.reads == 0 || desk.executor.cpu_budget.is_over() {
            return Ok(Next::End(true));
        }
        let (link, is_stopping) = (&self.link, ending == Ending::Stopping);
        if self.input.lacks_bytes(|| link.stream().front(), is_stopping)? {
            // The next round of the turn's loop ends it.
            return Ok(Next::Step);
        }
        if self.input.must_pause(desk, &self.peer) {
            self.send(desk)?;
            let since = self.input.paused_since();
            if since.is_some_and(|since| desk.now.saturating_duration_since(since) >= PAUSED_MAX) {
                desk.shared().account.closed.fetch_add(1, Relaxed);
                return Ok(Next::Verdict(Verdict::Close(CloseReason::Memory)));
            }
            return Ok(Next::Verdict(Verdict::Later(desk.now + PAUSE)));
        }
        if self.input.is_reserved() {
            self.settle();
        }
        share.reads -= 1;
        self.receive(desk)?;
        Ok(Next::Step)
    }

    /// Reads once.
    fn receive(&mut self, desk: &mut Desk) -> io::Result<()> {
        let waiting = self.input.data().len();
        let most = match self.phase {
            Phase::Login => LOGIN_INPUT_MAX.saturating_sub(waiting).max(1),
            _ if !self.input.is_reserved() && desk.shared().account.is_tight() => SMALL.saturating_sub(waiting).max(1024),
            _ => usize::MAX,
        };
        let mut socket = Reader(self.link.fd());
        let read = match self.secure.is_some() {
            true => self.receive_records(desk, &mut socket, most),
            false => self.input.fill(&mut desk.buffers, &mut socket, most),
        };
        if let Some(count) = self.input.has_read(read, self.schedule.ending() == Ending::Stopping)? {
            self.has_read(count, desk);
            desk.executor.cpu_budget.spend_on_bytes(count);
            self.note_activity(desk);
            self.peer.last_request_s.store(desk.uptime_s, Relaxed);
        }
        Ok(())
    }

    /// Reads TLS records once. Counts what becomes of the handshake, and ends the connection of a client that breaks the protocol.
    fn receive_records(&mut self, desk: &mut Desk, socket: &mut Reader, most: usize) -> io::Result<Arrived> {
        let shared = Arc::clone(desk.shared());
        let (Some(secure), Some(certificates)) = (&mut self.secure, &shared.certificates) else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let was_shaking_hands = secure.is_handshaking();
        let (buffer, need) = self.input.room(&mut desk.buffers);
        let arrived = secure.receive(socket, &mut desk.buffers.records, buffer, need, most, &mut self.output);
        if was_shaking_hands {
            // A step of a handshake takes as long as a turn may: others come before the next step.
            desk.executor.cpu_budget.spend(TURN_WORK);
        }
        let is_shaking_hands = secure.is_handshaking();
        match arrived {
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                if is_shaking_hands {
                    Certificates::count(&certificates.handshake_errors);
                    if let Some(left_out) = HANDSHAKE_FAILED.may_speak() {
                        log::warn!(
                            "{}: the TLS handshake failed: {}{left_out}",
                            self.peer.address,
                            tls::refusal(&error)
                        );
                    }
                } else {
                    Certificates::count(&certificates.protocol_errors);
                    log::debug!("{}: {error}", self.peer.address);
                }
                self.phase = Phase::Closing(CloseReason::Error);
                self.input.set_readable(false);
                Ok(Arrived {
                    at_end: true,
                    ..Arrived::default()
                })
            }
            Ok(arrived) if is_shaking_hands && arrived.at_end && secure.has_begun() => {
                Certificates::count(&certificates.handshake_errors);
                Ok(arrived)
            }
            Ok(arrived) => {
                if was_shaking_hands && !is_shaking_hands {
                    if secure.is_resumed() == Some(false) {
                        Certificates::count(&certificates.new_sessions);
                    }
                    if shared.users.is_none() {
                        self.peer.is_admitted.store(true, Relaxed);
                    }
                }
                desk.executor.cpu_budget.spend_on_bytes(arrived.count);
                Ok(arrived)
            }
            Err(error) => Err(error),
        }
    }

    /// Encrypts everything unsent, if the connection has TLS, and sends it once.
    fn send(&mut self, desk: &mut Desk) -> io::Result<()> {
        if let Some(secure) = &mut self.secure {
            let count = secure.seal(&mut self.output, &mut desk.buffers.plain)?;
            desk.executor.cpu_budget.spend_on_bytes(count);
            if matches!(self.phase, Phase::Closing(_)) {
                // close_notify (RFC 8446, 6.1): the end is the server's, and no cut.
                secure.close(&mut self.output);
            }
        }
        if self.output.send(&mut self.link, desk)? {
            self.schedule.last_active = desk.now;
        }
        Ok(())
    }

    /// A step of a login.
    fn log_in(&mut self, desk: &mut Desk) -> Stop {
        let Self {
            peer,
            link,
            secure,
            input,
            output,
            requests,
            login,
            phase,
            ..
        } = self;
        let mut guest = Guest {
            peer,
            link,
            secure: secure.as_deref(),
            input,
            out: output.bytes(),
            decoder: &mut requests.decoder,
        };
        let step = match phase {
            Phase::Verifying(pending, arrived) => match login.verified(&mut guest, desk, pending, *arrived) {
                Some(next) => LoginStep::Become(next),
                None => return Stop::Waits(Verdict::Later(login.deadline())),
            },
            _ => login.log_in(&mut guest, desk),
        };
        match step {
            LoginStep::NeedBytes => Stop::NeedBytes,
            LoginStep::Stay => Stop::Phase,
            LoginStep::Become(next) => {
                *phase = next;
                Stop::Phase
            }
        }
    }

    /// Executes requests from data that the ring has received, if no input waits before it; returns how many bytes they were. The turn that
    /// follows handles the reason why it stopped.
    #[inline]
    pub(super) fn serve_piece(&mut self, desk: &mut Desk, piece: &Piece) -> usize {
        // With a rate the turn that follows serves them, as many as its source may have.
        let is_free = self.input.data().is_empty() && matches!(self.phase, Phase::Serving) && desk.shared().rates.is_none();
        let Desk {
            ring: Some(ring),
            executor,
            begun: Some(spent),
            ..
        } = desk
        else {
            return 0;
        };
        if !is_free {
            return 0;
        }
        let most = executor.shared().config.requests_per_turn;
        let mut left = most - *spent;
        let (served, _) = self.serve(ring.bytes(piece), executor, &mut left);
        *spent = most - left;
        served
    }

    /// Executes requests from the input, as many as its source may have executed now.
    fn serve_input(&mut self, desk: &mut Desk, budget: &mut usize) -> Stop {
        let is_stopping = self.schedule.ending() == Ending::Stopping;
        let is_rated =
            desk.shared().rates.is_some() && !is_stopping && *budget > 0 && self.input.data().len() >= self.input.need();
        let granted = match is_rated {
            true => match self.take_of_rate(desk, *budget) {
                Ok(granted) => granted,
                Err(until) => return Stop::Waits(Verdict::Later(until)),
            },
            false => *budget,
        };
        let mut left = granted;
        self.requests.decoder.allow_items_of(desk.executor.item_size_max());
        // Taken out of `self`: a request borrows from it while its answer goes to the output.
        let mut buffer = self.input.take_buffer();
        let (served, stop) = self.serve(buffer.data(), &mut desk.executor, &mut left);
        buffer.consume(served);
        self.input.put_buffer(buffer);
        *budget -= granted - left;
        if is_rated && let Some(rates) = &desk.shared().rates {
            rates.give_back(self.login.source(&self.peer, &self.link), left, desk.now);
        }
        stop
    }

    /// Takes requests from what its source may have executed now, at most `most`; if that is none, returns when it may again.
    fn take_of_rate(&mut self, desk: &Desk, most: usize) -> Result<usize, Instant> {
        let Some(rates) = &desk.shared().rates else { return Ok(most) };
        if let Some(until) = self.schedule.slowed_until.filter(|until| desk.now < *until) {
            return Err(until);
        }
        self.schedule.slowed_until = None;
        let granted = rates.take(self.login.source(&self.peer, &self.link), most, desk.now);
        if granted > 0 {
            return Ok(granted);
        }
        let until = rates.again_at(desk.now);
        self.schedule.slowed_until = Some(until);
        desk.executor.counters().rate_pauses.add(1);
        Err(until)
    }

    /// Executes requests from the front of these bytes, at most `budget`: the only place where a connection's requests are executed, whichever
    /// event loop has received them. Returns how many bytes are done with.
    fn serve(&mut self, bytes: &[u8], executor: &mut Executor, budget: &mut usize) -> (usize, Stop) {
        let (mut served, mut ahead) = (0, 0);
        loop {
            let rest = &bytes[served..];
            if rest.len() < self.input.need() {
                return (served, Stop::NeedBytes);
            }
            if *budget == 0 || executor.cpu_budget.is_over() {
                return (served, Stop::Budget);
            }
            if self.unsent() > UNSENT_MAX {
                return (served, Stop::Unsent);
            }
            match self.serve_one(rest, executor) {
                Executed::Needs(need) => {
                    self.input.set_need(need);
                    return (served, Stop::NeedBytes);
                }
                Executed::Done(consumed) => {
                    *budget -= 1;
                    served += consumed;
                    look_ahead(executor, &bytes[served..], &mut ahead);
                }
                Executed::Stop(consumed, stop) => {
                    *budget -= 1;
                    return (served + consumed, stop);
                }
            }
        }
    }

    /// Executes the first request of these bytes.
    #[inline]
    fn serve_one(&mut self, input: &[u8], executor: &mut Executor) -> Executed {
        self.trace(input);
        let unsent = self.output.len();
        let taken_up = executor.take_up();
        // By reference: a request has several hundred bytes, and is not moved on its way.
        let (consumed, outcome) = match &self.requests.decoder.decode(input) {
            Decoded::Incomplete { need } => return Executed::Needs(*need),
            Decoded::Request { consumed, request } if self.login.denies(request) => {
                (*consumed, self.login.answer_denied(request, self.output.bytes()))
            }
            Decoded::Request { consumed, request } => {
                if request.effect() != Effect::Reads {
                    if self.is_forsaken() {
                        self.phase = Phase::Closing(CloseReason::Normal);
                        return Executed::Stop(0, Stop::Phase);
                    }
                    // The connection is queued again, and the request is decoded again.
                    if executor.is_held_up() {
                        self.requests.decoder.repeat();
                        return Executed::Stop(0, Stop::HeldUp);
                    }
                }
                (*consumed, self.execute(request, executor, taken_up))
            }
            Decoded::TooLarge { consumed, forget } => {
                let forget = forget.as_ref().filter(|_| self.program.is_none());
                let forget = forget.filter(|key| self.login.role().is_none_or(|role| role.may_change(key.stored())));
                executor.too_large(forget);
                (*consumed, Outcome::Done)
            }
            Decoded::Refused { consumed, reply, close } => {
                self.output.bytes().extend_from_slice(reply);
                let outcome = match close {
                    true => Outcome::Close(CloseReason::Error),
                    false => Outcome::Done,
                };
                (*consumed, outcome)
            }
        };
        self.input.set_need(1);
        executor.cpu_budget.spend(REQUEST);
        executor
            .cpu_budget
            .spend_on_bytes(consumed + self.output.len().saturating_sub(unsent));
        self.served(outcome, consumed, executor)
    }

    #[inline]
    fn execute(&mut self, request: &Request<'_>, executor: &mut Executor, taken_up: u64) -> Outcome {
        let keys_done = self.requests.keys_done;
        if self.rest.is_watched() && keys_done == 0 {
            self.rest.note(request, executor.served());
        }
        let sent = self.output.sent();
        // No earlier output is still unsent, so a direct send keeps the order.
        let is_free = sent == 0 && self.link.sending().0 == 0;
        let origin = Origin {
            peer: &self.peer,
            token: self.link.token(),
            sent,
            keys_done,
            room: UNSENT_MAX,
            is_bounded: false,
            is_line: self.program.is_some(),
            may_write: self.login.role().is_none_or(|role| role.may_write()),
            held: Held {
                is_allowed: self.schedule.ending() == Ending::No,
                since: self.requests.held_since,
                claims: Some(&self.claims),
            },
            socket: (is_free && self.secure.is_none()).then(|| self.link.stream().as_fd()),
        };
        let taken_up = self.requests.taken_up.take().unwrap_or(taken_up);
        let (outcome, unfinished) = executor.execute(request, self.output.bytes(), &origin, taken_up);
        self.requests.taken_up = unfinished;
        self.claims.take(executor);
        outcome
    }

    /// What follows from a request's outcome.
    #[inline]
    fn served(&mut self, outcome: Outcome, consumed: usize, executor: &Executor) -> Executed {
        if self.requests.held_since.is_some() && !matches!(outcome, Outcome::Hold { .. }) {
            self.requests.held_since = None;
            executor.shared().holds.unpark(executor.worker(), self.link.token());
        }
        let (consumed, phase) = match outcome {
            Outcome::Done => {
                self.requests.keys_done = 0;
                self.input.note_length(consumed);
                return Executed::Done(consumed);
            }
            Outcome::Broken => {
                self.requests.keys_done = 0;
                self.requests.decoder.end_answer();
                return Executed::Done(consumed);
            }
            Outcome::Partly { keys_done } => {
                self.requests.decoder.repeat();
                self.requests.keys_done = keys_done;
                return Executed::Stop(0, Stop::Unsent);
            }
            Outcome::Hold { keys_done, until } => {
                self.requests.decoder.repeat();
                self.requests.keys_done = keys_done;
                self.requests.held_since.get_or_insert_with(Instant::now);
                return Executed::Stop(0, Stop::Holds(until));
            }
            Outcome::Close(reason) => (0, Phase::Closing(reason)),
            Outcome::Dump(dump) => (consumed, Phase::Dumping(dump)),
            Outcome::Wait(task) => (consumed, Phase::Waiting(task)),
            Outcome::LogIn => {
                let decoder = &mut self.requests.decoder;
                (0, self.login.log_in_again(&self.peer, decoder, executor.shared()))
            }
            Outcome::Watch(watcher) => {
                self.watcher = Some(watcher);
                (consumed, Phase::Watching)
            }
        };
        self.phase = phase;
        Executed::Stop(consumed, Stop::Phase)
    }

    /// Whether it is a program's line, and the program has ended, or has given up waiting for its answer. What it has sent is not begun
    /// any more, because the program, or the one that was started in its place, may have gone on with other commands.
    #[inline]
    fn is_forsaken(&self) -> bool {
        let Some(program) = &self.program else { return false };
        self.link.stream().is_closed_there() || program.as_ref().is_some_and(|program| program.ends_within(Duration::ZERO))
    }

    /// Logs the next request (`-vvv`), without a value.
    #[inline]
    fn trace(&self, input: &[u8]) {
        if log::log_enabled!(log::Level::Trace) && !self.requests.decoder.is_dropping() {
            log::trace!("{} < {}", self.peer.address, Shown(input));
        }
    }
}

/// Called after a request, with the input that follows it: has the memory of several requests fetched together, if the client has
/// sent them together. `ahead`: for how many requests that has been done.
#[inline]
fn look_ahead(executor: &mut Executor, rest: &[u8], ahead: &mut usize) {
    *ahead = ahead.saturating_sub(1);
    if *ahead == 0 && !rest.is_empty() {
        *ahead = executor.prefetch(rest);
    }
}
