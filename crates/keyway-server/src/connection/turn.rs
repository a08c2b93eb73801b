//! A turn of work on a connection: what it reads, executes and sends, and where it ends.
//!
//! Never: chooses which connection gets the turn (`worker`), or knows what a request means (`execute`).

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use keyway_proto::{Decoded, Effect};
use keyway_uring::Piece;

use super::login::LOGIN_TIME;
use super::{
    CloseReason, Connection, Desk, INPUT_SIZE, OUTPUT_KEPT_MAX, Phase, STATE_DROPPING, STATE_EXECUTING, STATE_IN_VALUE,
    STATE_UNSENT, STATE_WAITING, STATE_WATCHING, UNSENT_MAX,
};
use crate::account::{PAUSE, PAUSED_MAX, UNSENT_TIGHT};
use crate::buffer::Buffer;
use crate::cpu_budget::REQUEST;
use crate::execute::{Executor, Measured, Origin, Outcome};
use crate::rate::Source;
use crate::shown::Shown;

/// Reads of one connection in a turn before other connections get theirs, so a large value is read in steps.
const READS_PER_TURN: usize = 8;
/// Unsent bytes above which nothing more is answered before a login.
const LOGIN_UNSENT_MAX: usize = 1024;
/// A turn that ends with work left is long. When a new connection's first turns are long, this many short turns make it one with short turns. Each time that such a connection has
/// a long turn again, it takes twice as many, up to [`HEAVY_FOR_MAX`]: one that mixes both stays where long turns are served.
pub(crate) const HEAVY_FOR: u16 = 8;
const HEAVY_FOR_MAX: u16 = 16 << 10;

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
enum Served {
    /// it is incomplete until there are this many bytes
    Needs(usize),
    /// it was executed, and had this many bytes
    Done(usize),
    /// this many bytes are consumed, and no more requests are to be executed for now
    Stop(usize, Stop),
}

/// Why decoding stopped.
pub(super) enum Stop {
    /// the next request is not complete
    NeedBytes,
    /// the turn has used its share
    Budget,
    /// too many bytes are unsent
    Unsent,
    /// the next request has to wait a while; other connections do not
    HeldUp,
    /// its source is above its rate
    Slowed,
    /// the phase has changed
    Phase,
}

impl Connection {
    /// One turn of work.
    pub(crate) fn turn(&mut self, desk: &mut Desk) -> Verdict {
        self.borrow(desk);
        if !std::mem::take(&mut desk.is_begun) {
            desk.executor.cpu_budget.begin();
        }
        let verdict = match self.work(desk) {
            Ok(verdict) => verdict,
            Err(error) => {
                log::debug!("{}: {error}", self.peer.address);
                Verdict::Close(CloseReason::Error)
            }
        };
        self.give_back(desk);
        self.settle();
        self.look_for_rest();
        if verdict == Verdict::Again || desk.executor.cpu_budget.is_over() || matches!(self.phase, Phase::Dumping(_)) {
            if !self.is_heavy() {
                self.heavy_for = (2 * self.heavy_for).min(HEAVY_FOR_MAX);
            }
            self.heavy = self.heavy_for;
        } else {
            self.heavy = self.heavy.saturating_sub(1);
        }
        let state = match (&self.phase, self.unsent()) {
            (Phase::Watching, _) => STATE_WATCHING,
            (_, 0) if self.decoder.is_dropping() => STATE_DROPPING,
            (_, 0) if self.decoder.is_in_value(self.input.data()) => STATE_IN_VALUE,
            (_, 0) => STATE_WAITING,
            _ => STATE_UNSENT,
        };
        self.peer.state.store(state, Relaxed);
        verdict
    }

    /// Takes the worker's buffers for those that the connection does not have.
    pub(super) fn borrow(&mut self, desk: &mut Desk) {
        if self.input.is_empty() && self.input.size() == 0 {
            self.input = match self.large {
                0 => None,
                size => desk.large_input(size),
            }
            .unwrap_or_else(|| std::mem::take(&mut desk.input));
        }
        if self.output.is_empty() {
            std::mem::swap(&mut self.output, &mut desk.output);
            if self.output.capacity() == 0 {
                self.output = desk.spare_output();
            }
        }
    }

    /// Returns them, and keeps copies of what is left in them.
    fn give_back(&mut self, desk: &mut Desk) {
        if self.output.len() == self.sent {
            self.clear_output();
            if desk.output.capacity() == 0 && self.output.capacity() <= OUTPUT_KEPT_MAX {
                std::mem::swap(&mut self.output, &mut desk.output);
            } else {
                self.output = Vec::new();
            }
        }
        self.shed_output(desk);
        if self.input.is_empty() {
            desk.take_input(std::mem::take(&mut self.input));
        } else if desk.input.size() == 0 && self.input.size() == INPUT_SIZE {
            let rest = Buffer::copy_of(self.input.data());
            desk.take_input(std::mem::replace(&mut self.input, rest));
        }
        if desk.input.size() == 0 {
            desk.input = Buffer::with_size(INPUT_SIZE);
        }
    }

    fn work(&mut self, desk: &mut Desk) -> io::Result<Verdict> {
        self.peer.state.store(STATE_EXECUTING, Relaxed);
        if let Some(verdict) = self.wait_for_login(desk) {
            return Ok(verdict);
        }
        let unsent_max = match self.phase {
            Phase::Login => LOGIN_UNSENT_MAX,
            _ if desk.executor.shared.account.is_tight() => UNSENT_TIGHT,
            _ => UNSENT_MAX,
        };
        let mut budget = desk.executor.shared.config.requests_per_turn - std::mem::take(&mut desk.spent);
        let mut reads = READS_PER_TURN;
        let mut again = false;
        loop {
            if self.unsent() > unsent_max {
                self.send(desk)?;
                if self.unsent() > unsent_max {
                    return Ok(Verdict::Wait);
                }
            }
            let stop = match &mut self.phase {
                Phase::Closing(_) => break,
                Phase::Login if desk.executor.cpu_budget.is_over() => Stop::Budget,
                Phase::Login => self.log_in(desk),
                Phase::Verifying(pending, arrived) => {
                    let (pending, arrived) = (Arc::clone(pending), *arrived);
                    if !self.verified(desk, &pending, arrived) {
                        self.send(desk)?;
                        return Ok(Verdict::Later(self.since + LOGIN_TIME));
                    }
                    Stop::Phase
                }
                Phase::Refused { until } => return Ok(Verdict::Later(*until)),
                Phase::Serving if desk.executor.shared.rates.is_some() => self.serve_at_rate(desk, &mut budget),
                Phase::Serving => self.serve(&mut desk.executor, &mut budget),
                Phase::Dumping(dump) => {
                    if dump.step(&mut desk.executor, &mut self.output) {
                        self.phase = Phase::Serving;
                    }
                    // One step a turn: a dump of millions of items shares the worker with all other connections.
                    Stop::Budget
                }
                Phase::Waiting(task) => {
                    let Some(answer) = task.answer() else {
                        self.send(desk)?;
                        return Ok(Verdict::Wait);
                    };
                    self.output.extend_from_slice(answer);
                    self.phase = Phase::Serving;
                    Stop::Phase
                }
                Phase::Watching => {
                    if let Some(watcher) = &self.watcher {
                        watcher.take(&mut self.output);
                    }
                    self.input.clear();
                    Stop::NeedBytes
                }
            };
            match stop {
                // A client that takes its replies as fast as they are made still ends its turn here, so that others get theirs.
                Stop::Unsent if self.unsent() <= UNSENT_MAX => {
                    again = true;
                    break;
                }
                Stop::Phase | Stop::Unsent => {}
                Stop::Budget => {
                    if budget == 0 || desk.executor.cpu_budget.is_over() {
                        desk.executor.counters().conn_yields.add(1);
                    }
                    again = true;
                    break;
                }
                Stop::HeldUp => {
                    again = true;
                    break;
                }
                Stop::Slowed => {
                    self.send(desk)?;
                    return Ok(self.slowed_until.map_or(Verdict::Again, Verdict::Later));
                }
                Stop::NeedBytes if self.at_end => {
                    let reason = if self.stopping {
                        CloseReason::Shutdown
                    } else {
                        CloseReason::Normal
                    };
                    self.phase = Phase::Closing(reason);
                }
                Stop::NeedBytes
                    if !self.readable && self.draining && self.input.is_empty() && self.decoder.is_between_requests() =>
                {
                    self.phase = Phase::Closing(CloseReason::Shutdown);
                }
                Stop::NeedBytes if !self.readable => break,
                Stop::NeedBytes if reads == 0 || desk.executor.cpu_budget.is_over() => {
                    again = true;
                    break;
                }
                // The next round of this loop ends the turn.
                Stop::NeedBytes if self.lacks_bytes()? => {}
                Stop::NeedBytes if self.must_pause(desk) => {
                    self.send(desk)?;
                    if self
                        .paused_since
                        .is_some_and(|since| desk.now.saturating_duration_since(since) >= PAUSED_MAX)
                    {
                        desk.executor.shared.account.closed.fetch_add(1, Relaxed);
                        return Ok(Verdict::Close(CloseReason::Memory));
                    }
                    return Ok(Verdict::Later(desk.now + PAUSE));
                }
                Stop::NeedBytes => {
                    reads -= 1;
                    self.receive(desk)?;
                }
            }
        }
        self.send(desk)?;
        if again && self.unsent() <= UNSENT_MAX {
            return Ok(Verdict::Again);
        }
        match self.phase {
            Phase::Closing(reason) if self.unsent() == 0 => Ok(Verdict::Close(reason)),
            Phase::Login => Ok(Verdict::Later(self.since + LOGIN_TIME)),
            _ => Ok(Verdict::Wait),
        }
    }

    /// Executes requests from received data in place, if no input waits before it; returns how many bytes they were.
    #[inline]
    pub(super) fn serve_piece(&mut self, desk: &mut Desk, piece: &Piece) -> usize {
        let Desk {
            ring: Some(ring),
            executor,
            spent,
            ..
        } = desk
        else {
            return 0;
        };
        // With a rate the turn that follows serves them, as many as its source may have.
        if !self.input.is_empty() || !matches!(self.phase, Phase::Serving) || executor.shared.rates.is_some() {
            return 0;
        }
        let bytes = ring.bytes(piece);
        let most = executor.shared.config.requests_per_turn;
        let (mut served, mut ahead) = (0, 0);
        while *spent < most && self.unsent() <= UNSENT_MAX && !executor.cpu_budget.is_over() {
            let rest = &bytes[served..];
            if rest.len() < self.need {
                break;
            }
            match self.serve_one(rest, executor) {
                Served::Needs(need) => {
                    self.need = need;
                    break;
                }
                Served::Done(consumed) => {
                    served += consumed;
                    look_ahead(executor, &bytes[served..], &mut ahead);
                }
                Served::Stop(consumed, _) => {
                    // The turn that follows handles the reason.
                    served += consumed;
                    break;
                }
            }
            *spent += 1;
        }
        served
    }

    /// Executes requests from the input, as many as its source may have executed now.
    fn serve_at_rate(&mut self, desk: &mut Desk, budget: &mut usize) -> Stop {
        let shared = Arc::clone(&desk.executor.shared);
        let Some(rates) = shared
            .rates
            .as_ref()
            .filter(|_| !self.stopping && *budget > 0 && self.input.len() >= self.need)
        else {
            return self.serve(&mut desk.executor, budget);
        };
        if self.slowed_until.is_some_and(|until| desk.now < until) {
            return Stop::Slowed;
        }
        self.slowed_until = None;
        let source = self.source();
        let granted = rates.take(source, *budget, desk.now);
        if granted == 0 {
            self.slowed_until = Some(rates.again_at(desk.now));
            desk.executor.counters().rate_pauses.add(1);
            return Stop::Slowed;
        }
        let mut left = granted;
        let stop = self.serve(&mut desk.executor, &mut left);
        *budget -= granted - left;
        rates.give_back(source, left, desk.now);
        stop
    }

    /// Whose requests its own are counted with.
    pub(super) fn source(&mut self) -> Source {
        let (address, stream) = (&self.peer.address, &self.stream);
        *self.source.get_or_insert_with(|| address.source(|| stream.peer_user()))
    }

    /// Executes requests from the input.
    fn serve(&mut self, executor: &mut Executor, budget: &mut usize) -> Stop {
        self.decoder.allow_items_of(executor.item_size_max());
        let mut ahead = 0;
        while self.input.len() >= self.need {
            if *budget == 0 || executor.cpu_budget.is_over() {
                return Stop::Budget;
            }
            if self.unsent() > UNSENT_MAX {
                return Stop::Unsent;
            }
            // Taken out of `self`: a request borrows from it while its answer goes to the output.
            let mut input = std::mem::take(&mut self.input);
            let served = self.serve_one(input.data(), executor);
            if let Served::Done(consumed) | Served::Stop(consumed, _) = served {
                input.consume(consumed);
            }
            self.input = input;
            match served {
                Served::Needs(need) => {
                    self.need = need;
                    return Stop::NeedBytes;
                }
                Served::Done(_) => {
                    *budget -= 1;
                    look_ahead(executor, self.input.data(), &mut ahead);
                }
                Served::Stop(_, stop) => {
                    *budget -= 1;
                    return stop;
                }
            }
        }
        Stop::NeedBytes
    }

    /// Executes the first request of these bytes.
    #[inline]
    fn serve_one(&mut self, input: &[u8], executor: &mut Executor) -> Served {
        self.trace(input);
        let unsent = self.output.len();
        let start = executor.timer.now();
        let (consumed, outcome) = match self.decoder.decode(input) {
            Decoded::Incomplete { need } => return Served::Needs(need),
            Decoded::Request { consumed, request } if self.is_denied(&request) => (consumed, self.answer_denied(&request)),
            Decoded::Request { request, .. } if request.effect() != Effect::Reads && self.is_forsaken() => {
                self.phase = Phase::Closing(CloseReason::Normal);
                return Served::Stop(0, Stop::Phase);
            }
            // The connection is queued again, and the request is decoded again.
            Decoded::Request { request, .. } if executor.holds_up(&request) => {
                self.decoder.repeat();
                return Served::Stop(0, Stop::HeldUp);
            }
            Decoded::Request { consumed, request } => {
                if let Some(rest) = &mut self.rest
                    && self.keys_done == 0
                {
                    rest.note(&request, executor.served.as_mut());
                }
                // No earlier output is still unsent, so a direct send keeps the order.
                let is_free = self.sent == 0 && self.port.as_ref().is_none_or(|port| port.sending == 0);
                let origin = Origin {
                    peer: &self.peer,
                    token: self.token,
                    sent: self.sent,
                    keys_done: self.keys_done,
                    room: UNSENT_MAX,
                    is_bounded: false,
                    is_line: self.client.is_some(),
                    may_write: self.role.as_ref().is_none_or(|role| role.may_write()),
                    socket: (is_free && self.secure.is_none()).then(|| self.stream.as_fd()),
                };
                let outcome = executor.execute(&request, &mut self.output, &origin);
                let start = self.taken_up.take().unwrap_or(start);
                self.taken_up = executor.note_measured(Measured::of(&request), start, &outcome);
                (consumed, outcome)
            }
            Decoded::TooLarge { consumed, forget } => {
                let forget = forget.filter(|_| self.client.is_none());
                let forget = forget.filter(|key| self.role.as_ref().is_none_or(|role| role.may_change(key.stored())));
                executor.too_large(forget.as_ref());
                (consumed, Outcome::Done)
            }
            Decoded::Refused { consumed, reply, close } => {
                self.output.extend_from_slice(reply);
                let outcome = if close {
                    Outcome::Close(CloseReason::Error)
                } else {
                    Outcome::Done
                };
                (consumed, outcome)
            }
        };
        self.need = 1;
        executor.cpu_budget.spend(REQUEST);
        executor
            .cpu_budget
            .spend_on_bytes(consumed + self.output.len().saturating_sub(unsent));
        match outcome {
            Outcome::Broken => {
                self.keys_done = 0;
                self.decoder.end_answer();
                Served::Done(consumed)
            }
            Outcome::Done => {
                self.keys_done = 0;
                self.note_length(consumed);
                Served::Done(consumed)
            }
            Outcome::Partly { keys_done } => {
                self.decoder.repeat();
                self.keys_done = keys_done;
                Served::Stop(0, Stop::Unsent)
            }
            Outcome::Close(reason) => {
                self.phase = Phase::Closing(reason);
                Served::Stop(0, Stop::Phase)
            }
            Outcome::Dump(dump) => {
                self.phase = Phase::Dumping(dump);
                Served::Stop(consumed, Stop::Phase)
            }
            Outcome::Wait(task) => {
                self.phase = Phase::Waiting(task);
                Served::Stop(consumed, Stop::Phase)
            }
            Outcome::LogIn => {
                self.log_in_again(executor);
                Served::Stop(0, Stop::Phase)
            }
            Outcome::Watch(watcher) => {
                self.phase = Phase::Watching;
                self.watcher = Some(watcher);
                Served::Stop(consumed, Stop::Phase)
            }
        }
    }

    /// Whether it is a program's line, and the program has ended, or has given up waiting for its answer. What it has sent is not begun
    /// any more, because the program, or the one that was started in its place, may have gone on with other commands.
    #[inline]
    fn is_forsaken(&self) -> bool {
        let Some(client) = &self.client else { return false };
        self.stream.is_closed_there() || client.as_ref().is_some_and(|client| client.ends_within(Duration::ZERO))
    }

    /// Logs the next request (`-vvv`), without a value.
    #[inline]
    fn trace(&self, input: &[u8]) {
        if log::log_enabled!(log::Level::Trace) && !self.decoder.is_dropping() {
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
