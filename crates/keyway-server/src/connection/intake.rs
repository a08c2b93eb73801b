//! How bytes are received: what is watched, what the ring receives, what a turn reads, and when a connection has to pause.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering::Relaxed;

use keyway_uring::{Piece, Ring};
use mio::{Interest, Registry, Token, event};

use super::login::LOGIN_INPUT_MAX;
use super::secure::Arrived;
use super::stream::{Front, Reader};
use super::{CloseReason, Connection, Desk, INPUT_SIZE, Phase, STATE_EXECUTING, UNSENT_MAX};
use crate::account::{PATIENCE, SMALL};
use crate::buffer::Buffer;
use crate::cpu_budget::TURN_WORK;
use crate::log_limiter::LogLimiter;
use crate::port::{Intake, Port};
use crate::tls::{self, Certificates};

/// After this many small requests, the server expects no more large ones from a connection.
const SMALL_IN_A_ROW: u8 = 16;

static HANDSHAKE_FAILED: LogLimiter = LogLimiter::new();

impl Connection {
    /// Updates what the socket is watched for. Writability is watched only while output is unsent; otherwise a Unix socket would
    /// wake the worker for every reply that its client takes.
    pub(crate) fn update_interest(&mut self, registry: &Registry, desk: &mut Desk) -> io::Result<()> {
        if let Some(ring) = &mut desk.ring {
            let is_tight = desk.executor.shared.account.is_tight();
            return self.update_intake(ring, is_tight);
        }
        let wants_write = self.unsent() > 0;
        if wants_write != self.wants_write {
            let interest = if wants_write {
                Interest::READABLE | Interest::WRITABLE
            } else {
                Interest::READABLE
            };
            registry.reregister(&mut self.stream, Token(self.token), interest)?;
            self.wants_write = wants_write;
        }
        Ok(())
    }

    /// Records an event of the event loop.
    pub(crate) fn note(&mut self, event: &event::Event) {
        self.readable |= event.is_readable() || event.is_error() || event.is_read_closed();
        self.read_closed |= event.is_read_closed() || event.is_error();
    }

    /// Takes data that the ring has received; returns true if the connection should have a turn.
    pub(crate) fn received(&mut self, desk: &mut Desk, piece: &Piece, last: bool) -> bool {
        let wants_turn = !self.queued && !self.is_leaving && !self.is_heavy() && self.unsent() <= UNSENT_MAX;
        if wants_turn {
            self.peer.state.store(STATE_EXECUTING, Relaxed);
            self.borrow(desk);
            desk.executor.cpu_budget.begin();
            desk.is_begun = true;
        }
        let served = if wants_turn { self.serve_piece(desk, piece) } else { 0 };
        if served < piece.len() {
            self.make_room(desk, piece.len() - served);
            if let Some(ring) = &desk.ring {
                self.input.append(&ring.bytes(piece)[served..], self.need);
            }
        }
        self.has_read(piece.len(), desk);
        self.is_parked = false;
        self.last_active = desk.now;
        self.peer.last_request_s.store(desk.uptime_s, Relaxed);
        if last {
            self.ended_receiving();
        }
        if !wants_turn {
            self.settle();
        }
        wants_turn
    }

    /// Counts bytes that were read from the socket.
    #[inline]
    pub(super) fn has_read(&mut self, count: usize, desk: &Desk) {
        desk.executor.counters().bytes_read.add(count as u64);
        if let Some(rest) = &mut self.rest {
            rest.read(count);
        }
    }

    /// The ring has stopped receiving: at the end of the input (0), because it was cancelled, or by an error. The socket may
    /// hold bytes.
    pub(crate) fn receive_ended(&mut self, result: i32) -> io::Result<()> {
        self.ended_receiving();
        match result {
            0 => self.at_end = true,
            result if Port::may_go_on(result) => {}
            result => return Err(io::Error::from_raw_os_error(-result)),
        }
        Ok(())
    }

    /// The ring no longer reads the socket, so a turn may.
    pub(crate) fn ended_receiving(&mut self) {
        if let Some(port) = &mut self.port {
            port.intake = Intake::Off;
        }
        self.readable = true;
    }

    /// The same for a connection that is over; its bytes are dropped.
    pub(crate) fn ended_receiving_if(&mut self, last: bool) {
        if last {
            self.ended_receiving();
        }
    }

    /// Whether the ring receives for it, and no data and no output waits.
    pub(crate) fn is_receiving(&self) -> bool {
        self.port.as_ref().is_some_and(|port| port.intake == Intake::Receiving)
            && matches!(self.phase, Phase::Serving)
            && self.input.is_empty()
            && self.unsent() == 0
            && !self.is_over
    }

    /// Stops the receive; the ring then only watches the socket until data arrives.
    pub(crate) fn park(&mut self, ring: &mut Ring) -> io::Result<()> {
        self.is_parked = true;
        self.update_intake(ring, false)
    }

    /// Starts or stops the ring's receiving (the table is in `port`).
    pub(super) fn update_intake(&mut self, ring: &mut Ring, is_tight: bool) -> io::Result<()> {
        let wants_input = !self.at_end
            && !self.stopping
            && !self.is_leaving
            && self.paused_since.is_none()
            && self.unsent() <= UNSENT_MAX
            && !matches!(
                self.phase,
                Phase::Dumping(_) | Phase::Waiting(_) | Phase::Verifying(..) | Phase::Closing(_) | Phase::Refused { .. }
            );
        let (waiting, fd) = (self.input.len(), self.stream.as_raw_fd());
        // After a long silence the turn reads the data, as it reads large requests. It also reads a login, which may have only a limited size,
        // everything when memory is tight, and TLS.
        let is_direct = self.is_parked || is_tight || self.secure.is_some() || matches!(self.phase, Phase::Login);
        let least = if is_direct { usize::MAX } else { self.need };
        let missing = least.max(if waiting == 0 { self.large } else { 0 }).saturating_sub(waiting);
        let Some(port) = &mut self.port else { return Ok(()) };
        if port.update(ring, fd, self.token, wants_input, self.readable, missing, waiting)? {
            self.readable = false;
        }
        Ok(())
    }

    /// Whether a large request, for which no memory is reserved yet, has nothing to be read at the moment. Only a client that goes on gets
    /// memory: one that has begun a value and sends no more would take it from others until it is closed.
    pub(super) fn lacks_bytes(&mut self) -> io::Result<bool> {
        if self.need <= INPUT_SIZE || self.reserved >= self.need {
            return Ok(false);
        }
        match self.stream.front()? {
            Front::Bytes => return Ok(false),
            Front::Nothing => self.readable = false,
            Front::End => self.at_end = true,
        }
        // A stopping server reads no more.
        self.at_end |= self.stopping;
        self.paused_since = None;
        Ok(true)
    }

    /// Whether it must not be read now, because its request is large and memory is tight. After [`PATIENCE`] a connection without progress ends.
    pub(super) fn must_pause(&mut self, desk: &Desk) -> bool {
        if self.need <= INPUT_SIZE || self.reserved >= self.need {
            self.paused_since = None;
            return false;
        }
        let shared = &desk.executor.shared;
        if shared.account.has_room(self.need.saturating_sub(self.input.size())) {
            self.paused_since = None;
            self.reserved = self.need;
            self.settle();
            return false;
        }
        let since = *self.paused_since.get_or_insert_with(|| {
            shared.account.paused.fetch_add(1, Relaxed);
            desk.now
        });
        if desk.now.saturating_duration_since(since) >= PATIENCE {
            shared.relieve();
        }
        // This wait must not count as lack of progress.
        self.peer.last_request_s.store(desk.uptime_s, Relaxed);
        self.peer.held_since_s.store(desk.uptime_s, Relaxed);
        true
    }

    /// Replaces the input buffer by a larger one, if `more` bytes or the rest of the request would not fit.
    pub(super) fn make_room(&mut self, desk: &mut Desk, more: usize) {
        let need = self.need.max(self.input.len() + more);
        if need <= self.input.size() {
            return;
        }
        let larger = (need > INPUT_SIZE)
            .then(|| desk.large_input(need))
            .flatten()
            .or_else(|| self.input.size_wanted(more, self.need).map(Buffer::with_size));
        if let Some(mut larger) = larger {
            larger.append(self.input.data(), need);
            desk.take_input(std::mem::replace(&mut self.input, larger));
        }
    }

    /// Reads once.
    pub(super) fn receive(&mut self, desk: &mut Desk) -> io::Result<()> {
        self.make_room(desk, 1);
        let most = match self.phase {
            Phase::Login => LOGIN_INPUT_MAX.saturating_sub(self.input.len()).max(1),
            _ if self.reserved == 0 && desk.executor.shared.account.is_tight() => {
                SMALL.saturating_sub(self.input.len()).max(1024)
            }
            _ => usize::MAX,
        };
        let mut socket = Reader(self.stream.as_raw_fd());
        let arrived = match self.secure.is_some() {
            true => self.receive_records(desk, &mut socket, most),
            false => self.input.fill(&mut socket, self.need, most).map(|(count, filled)| Arrived {
                count,
                filled,
                at_end: count == 0,
            }),
        };
        match arrived {
            Ok(Arrived {
                count: 0, at_end: true, ..
            }) => self.at_end = true,
            Ok(Arrived { count, filled, at_end }) => {
                self.at_end = at_end;
                // Fewer bytes than fit: the socket is empty, and the next bytes make a new event (epoll(7), question 9).
                self.readable = (filled || self.read_closed) && !self.stopping;
                self.has_read(count, desk);
                desk.executor.cpu_budget.spend_on_bytes(count);
                self.is_parked = false;
                self.last_active = desk.now;
                self.peer.last_request_s.store(desk.uptime_s, Relaxed);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.readable = false,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        // A stopping server answers what has arrived and reads no more.
        self.at_end |= self.stopping;
        Ok(())
    }

    /// Reads TLS records once. Counts what becomes of the handshake, and ends the connection of a client that breaks the protocol.
    fn receive_records(&mut self, desk: &mut Desk, socket: &mut Reader, most: usize) -> io::Result<Arrived> {
        let shared = &desk.executor.shared;
        let (Some(secure), Some(certificates)) = (&mut self.secure, &shared.certificates) else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let was_shaking_hands = secure.is_handshaking();
        let arrived = secure.receive(socket, &mut desk.records, &mut self.input, self.need, most, &mut self.output);
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
                self.readable = false;
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

    /// A client that sends one large request is expected to send more.
    #[inline]
    pub(super) fn note_length(&mut self, len: usize) {
        if len > INPUT_SIZE {
            self.large = len;
            self.small_since = 0;
        } else if self.large > 0 {
            self.small_since += 1;
            if self.small_since == SMALL_IN_A_ROW {
                self.large = 0;
            }
        }
    }
}
