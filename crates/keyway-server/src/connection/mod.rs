//! One client connection: its state and its buffers; a turn of work on it is in `turn`.
//!
//! A turn reads what has arrived and executes at most `requests_per_turn` requests, and no more than an [`CpuBudget`](crate::cpu_budget) allows.
//! It sends the replies with one write. Between turns an idle connection holds no buffer: turns borrow the worker's, and only unfinished
//! input and unsent output stay, which the server's [`Account`](crate::account) counts.
//!
//! | phase | input | output | next |
//! |---|---|---|---|
//! | `Login` | a login, a few KiB at most | one answer | `Serving` if it is right, `Refused` if not; closed after `LOGIN_TIME` |
//! | `Verifying` | left in the socket | what is there | `Serving` or `Refused`, when the hashed password is verified |
//! | `Refused` | left in the socket | delayed by `REFUSED_FOR`, or a login that waits | `Login`, or `Closing` after the last attempt |
//! | `Serving` | requests | replies | `Dumping`, `Watching`, `Login` by command; `Closing` at the end of input or by command |
//! | `Dumping` | left in the socket | items, as the client takes them | `Serving` |
//! | `Waiting` | left in the socket | what is there | `Serving` when another thread has finished its task |
//! | `Watching` | dropped | log lines | closed at the end of input |
//! | `Closing` | left in the socket | the rest | closed when all is sent |
//!
//! In every phase: while more than [`UNSENT_MAX`] bytes are unsent, nothing is read or executed until the client takes some. When memory
//! for connections is tight, a connection that would need more is not read for a while.
//!
//! A connection is made of owners. Each has private state and knows none of the others, except those that it is given for a call:
//!
//! | owner | file | holds |
//! |---|---|---|
//! | `Link` | `link` | the socket, and who watches it: the poll or the ring |
//! | `Input` | `input` | what has arrived and is not executed |
//! | `Output` | `output` | what is to be sent |
//! | `Secure` | `secure` | TLS: decrypts into the input, encrypts the output |
//! | `Login` | `login` | who the client is, and what it may do |
//! | `Schedule` | `schedule` | when it has a turn, and how it ends |
//! | `Rest` | `rest` | what is published of it for a kernel door |
//! | `Requests` | `turn` | how far the request at the front of the input is |
//! | `Claims` | `execute/miss.rs` | the keys that its client has claimed or won, and may not have stored |
//!
//! With epoll, a turn reads and writes the socket itself. With a ring, the ring receives bytes and sends replies between turns. Requests are
//! executed by [`Connection::serve`] with both, from the input, or from the ring's buffer while the input is empty; what is left in the ring's
//! buffer is copied to the input.
//!
//! When another server takes over, all connections are brought to a request boundary ([`handed`]) and most of them are handed over.

mod buffer;
mod desk;
mod handed;
mod input;
mod link;
mod login;
mod output;
mod rest;
mod schedule;
mod secure;
mod stream;
mod turn;

pub(crate) use desk::Desk;
pub(crate) use handed::{CARRIED_MAX, Carried, Handed, Inherited};
#[cfg(test)]
pub(crate) use schedule::HEAVY_FOR;
pub(crate) use secure::Secure;
pub(crate) use stream::Stream;
pub(crate) use turn::Verdict;

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use keyway_cache::server::Presence;
use keyway_proto::Within;
use keyway_uring::{Piece, Ring};
use mio::{Registry, event};

use self::input::Input;
use self::link::{Link, Wanted};
use self::login::Login;
use self::output::Output;
use self::rest::Rest;
use self::schedule::{Ending, Schedule};
use self::turn::Requests;
use crate::account::{Charge, UNSENT_MAX};
use crate::auth::Pending;
use crate::execute::{Claims, Dump, Task};
use crate::shared::{Activity, CloseReason, Lane, Peer, PeerAddress};
use crate::watch;
use crate::watch::Watcher;

pub(crate) struct Connection {
    pub(crate) peer: Arc<Peer>,
    charge: Charge,
    phase: Phase,
    link: Link,
    input: Input,
    output: Output,
    secure: Option<Box<Secure>>,
    requests: Requests,
    login: Login,
    schedule: Schedule,
    rest: Rest,
    claims: Claims,
    /// set from the first `watch` on; the worker removes it at the end
    watcher: Option<Arc<Watcher>>,
    /// the program whose line it is, as far as the kernel says who that is; `None`: it is no line
    program: Option<Option<Presence>>,
}

enum Phase {
    Login,
    /// a hashed password is being verified; the login came at this time
    Verifying(Arc<Pending>, Instant),
    Refused {
        until: Instant,
    },
    Serving,
    Dumping(Dump),
    Watching,
    /// for a task of another thread
    Waiting(Arc<Task>),
    Closing(CloseReason),
}

impl Connection {
    pub(crate) fn new(stream: Stream, secure: Option<Secure>, peer: Arc<Peer>, token: usize, login: bool, desk: &Desk) -> Self {
        let shared = desk.shared();
        Self {
            program: matches!(peer.address, PeerAddress::Reader).then(|| Presence::of_peer(&stream).ok()),
            link: Link::new(stream, token, desk.ring.is_some()),
            charge: Charge::new(Arc::clone(&shared.account), Arc::clone(&peer)),
            peer,
            phase: if login { Phase::Login } else { Phase::Serving },
            input: Input::new(),
            output: Output::default(),
            secure: secure.map(Box::new),
            requests: Requests::new(login, shared),
            login: Login::new(desk.now),
            schedule: Schedule::new(desk.now),
            rest: Rest::default(),
            claims: Claims::default(),
            watcher: None,
        }
    }

    /// This process has accepted it just now: the kernel door may serve it later.
    pub(crate) fn may_be_enrolled(&mut self, desk: &Desk) {
        if self.secure.is_none() {
            self.rest = Rest::of_new(desk, &self.peer.address);
        }
    }

    /// Has the event loop watch the socket. `is_inherited`: another server may have left it in blocking mode.
    pub(crate) fn register(&mut self, registry: &Registry, is_inherited: bool) -> io::Result<()> {
        self.link.register(registry, is_inherited)
    }

    /// It has something to do. Returns whether the worker has to queue it.
    pub(crate) fn enqueue(&mut self) -> bool {
        self.schedule.enqueue()
    }

    /// It wants a turn at this time. Returns whether the worker has to note that.
    pub(crate) fn call_at(&mut self, at: Instant) -> bool {
        self.schedule.call_at(at)
    }

    /// That time has come.
    pub(crate) fn called(&mut self) {
        self.schedule.called();
    }

    /// Whether it goes to the worker's partner as soon as the ring does not use it, because its turns are not of this lane. A connection for
    /// which another thread has promised its worker an event stays.
    pub(crate) fn leaves(&mut self, lane: Lane) -> bool {
        let may_move = matches!(self.phase, Phase::Serving | Phase::Dumping(_)) && self.schedule.ending() == Ending::No;
        let leaves = may_move && self.schedule.is_heavy() == (lane == Lane::Short);
        self.schedule.leave(leaves);
        leaves
    }

    pub(crate) fn is_leaving(&self) -> bool {
        self.schedule.is_leaving()
    }

    /// Closed; kept only until the ring no longer uses it.
    pub(crate) fn is_over(&self) -> bool {
        self.schedule.is_over()
    }

    /// It is served elsewhere from now on, and not closed here.
    pub(crate) fn leave(&mut self, registry: &Registry) -> io::Result<()> {
        self.schedule.leave(false);
        self.link.leave(registry)
    }

    /// It is served by another worker from now on, whose token for it is this one.
    pub(crate) fn settle_at(&mut self, token: usize, desk: &Desk, registry: &Registry) -> io::Result<()> {
        self.schedule.called();
        // Bytes may have come while no worker watched the socket.
        self.input.set_readable(true);
        self.link.settle_at(token, desk.ring.is_some(), registry)
    }

    /// The connection is over. Returns true if the ring no longer uses it.
    pub(crate) fn end(&mut self, desk: &mut Desk) -> bool {
        if let Some(watcher) = &self.watcher {
            desk.shared().watch.remove(watcher);
        }
        self.schedule.end();
        self.rest = Rest::default();
        std::mem::take(&mut self.claims).release(&mut desk.executor);
        self.link.end(&mut desk.ring)
    }

    /// Whether the ring no longer uses it.
    pub(crate) fn is_let_go(&self) -> bool {
        self.link.is_let_go()
    }

    /// The server is stopping; requests that have arrived are still answered.
    pub(crate) fn stop(&mut self) {
        self.schedule.end_as(Ending::Stopping);
        self.rest.disturb();
        // The ring's receive ends first.
        self.input.set_readable(self.link.is_for_turns());
    }

    pub(crate) fn is_idle_since(&self, limit: Instant) -> bool {
        self.schedule.last_active < limit
            && !self.is_over()
            && !matches!(self.phase, Phase::Watching | Phase::Dumping(_) | Phase::Waiting(_))
    }

    #[cfg(all(test, feature = "kernel"))]
    pub(crate) fn last_active(&self) -> Instant {
        self.schedule.last_active
    }

    /// The kernel door answers without this server's knowledge. A connection that was silent for longer than `limit` must show with its next
    /// request that its client is not idle; it counts as active until now.
    pub(crate) fn doubt_idleness(&mut self, limit: Instant, now: Instant) {
        if self.schedule.last_active < limit && self.rest.doubt() {
            self.schedule.last_active = now;
        }
    }

    /// The end of its time for the TLS handshake and to log in, if it has not done both.
    pub(crate) fn login_deadline(&self) -> Option<Instant> {
        let has_to_log_in = matches!(self.phase, Phase::Login | Phase::Verifying(..) | Phase::Refused { .. });
        (self.is_shaking_hands() || has_to_log_in).then(|| self.login.deadline())
    }

    fn is_shaking_hands(&self) -> bool {
        self.secure.as_ref().is_some_and(|secure| secure.is_handshaking())
    }

    /// Updates what the socket is watched for. Writability is watched only while output is unsent; otherwise a Unix socket would
    /// wake the worker for every reply that its client takes.
    pub(crate) fn update_interest(&mut self, registry: &Registry, desk: &mut Desk) -> io::Result<()> {
        if desk.ring.is_none() {
            return self.link.watch_writability(self.unsent() > 0, registry);
        }
        let is_tight = desk.shared().account.is_tight();
        match &mut desk.ring {
            Some(ring) => self.update_intake(ring, is_tight),
            None => Ok(()),
        }
    }

    /// Starts or stops the ring's receiving.
    fn update_intake(&mut self, ring: &mut Ring, is_tight: bool) -> io::Result<()> {
        let wanted = Wanted {
            input: !self.input.is_at_end()
                && self.schedule.ending() != Ending::Stopping
                && !self.schedule.is_leaving()
                && self.input.paused_since().is_none()
                && self.unsent() <= UNSENT_MAX
                && !matches!(
                    self.phase,
                    Phase::Dumping(_) | Phase::Waiting(_) | Phase::Verifying(..) | Phase::Closing(_) | Phase::Refused { .. }
                ),
            readable: self.input.is_readable(),
            // A turn reads a login, which may have only a limited size, everything when memory is tight, and TLS.
            directly: is_tight || self.secure.is_some() || matches!(self.phase, Phase::Login),
            least: self.input.least(),
            waiting: self.input.data().len(),
        };
        if self.link.update_intake(ring, &wanted)? {
            self.input.set_readable(false);
        }
        Ok(())
    }

    /// Records an event of the poll.
    pub(crate) fn note(&mut self, event: &event::Event) {
        self.input.note(event);
    }

    /// Takes data that the ring has received; returns true if the connection should have a turn.
    pub(crate) fn received(&mut self, desk: &mut Desk, piece: &Piece, last: bool) -> bool {
        let wants_turn = self.schedule.is_at_hand() && self.unsent() <= UNSENT_MAX;
        let mut served = 0;
        if wants_turn {
            self.peer.shows(Activity::Executing);
            self.begin_turn(desk);
            served = self.serve_piece(desk, piece);
        }
        self.keep(desk, piece, served);
        self.note_activity(desk);
        self.peer.last_request_s.store(desk.uptime_s, Relaxed);
        if last {
            self.ended_receiving();
        }
        if !wants_turn {
            self.settle();
        }
        wants_turn
    }

    /// Keeps data that the ring has received, without executing it. The first `served` bytes are done with.
    pub(crate) fn keep(&mut self, desk: &mut Desk, piece: &Piece, served: usize) {
        if let Desk {
            ring: Some(ring),
            buffers,
            ..
        } = desk
            && served < piece.len()
        {
            self.input.append(buffers, &ring.bytes(piece)[served..]);
        }
        self.has_read(piece.len(), desk);
    }

    /// Counts bytes that were read from the socket.
    #[inline]
    fn has_read(&mut self, count: usize, desk: &Desk) {
        desk.executor.counters().bytes_read.add(count as u64);
        self.rest.read(count);
    }

    /// Its client has sent something.
    fn note_activity(&mut self, desk: &Desk) {
        self.link.park(false);
        self.schedule.last_active = desk.now;
    }

    /// The ring has stopped receiving: at the end of the input (0), because it was cancelled, or by an error. The socket may
    /// hold bytes.
    pub(crate) fn receive_ended(&mut self, result: i32) -> io::Result<()> {
        self.ended_receiving();
        match result {
            0 => self.input.end(),
            result if Link::may_go_on(result) => {}
            result => return Err(io::Error::from_raw_os_error(-result)),
        }
        Ok(())
    }

    /// The ring no longer reads the socket, so a turn may.
    pub(crate) fn ended_receiving(&mut self) {
        self.link.ended_receiving();
        self.input.set_readable(true);
    }

    /// Whether the ring receives for it, and no data and no output waits.
    pub(crate) fn is_receiving(&self) -> bool {
        self.link.is_receiving()
            && matches!(self.phase, Phase::Serving)
            && self.input.data().is_empty()
            && self.unsent() == 0
            && !self.is_over()
    }

    /// Stops the receive; the ring then only watches the socket until data arrives.
    pub(crate) fn park(&mut self, ring: &mut Ring) -> io::Result<()> {
        self.link.park(true);
        self.update_intake(ring, false)
    }

    /// The ring has sent all that it was given, or failed. Returns true if the connection should have a turn.
    pub(crate) fn sent(&mut self, desk: &Desk, result: i32) -> io::Result<bool> {
        let was_full = self.unsent() > UNSENT_MAX;
        let Some(sending) = self.link.end_send() else {
            return Ok(false);
        };
        let count = usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result))?;
        desk.executor.counters().bytes_written.add(count as u64);
        self.schedule.last_active = desk.now;
        self.settle();
        if count < sending {
            return Err(io::ErrorKind::WriteZero.into());
        }
        self.look_for_rest();
        // A turn that was not to serve it, because too much was unsent, may have left bytes in a socket that nothing watches now.
        let is_due = was_full || self.input.is_readable() || self.unsent() > 0 || !self.input.data().is_empty();
        Ok(is_due || !matches!(self.phase, Phase::Serving))
    }

    /// Bytes that the client has not got, as far as is known here.
    fn unsent(&self) -> usize {
        self.output.rest().len() + self.link.sending().0
    }

    /// Called whenever it may have come to rest.
    #[inline]
    fn look_for_rest(&mut self) {
        if self.rest.is_watched() {
            self.rest.publish(self.is_at_rest(), self.link.stream());
        }
    }

    /// See `rest`.
    fn is_at_rest(&self) -> bool {
        let is_between_requests = || {
            let progress = self.requests.progress();
            progress.is_some_and(|progress| progress.within == Within::Nothing)
        };
        matches!(self.phase, Phase::Serving)
            && self.input.data().is_empty()
            && self.unsent() == 0
            && self.schedule.ending() == Ending::No
            && !(self.is_over() || self.input.is_at_end() || self.input.is_read_closed())
            && self.requests.keys_done() == 0
            && self.login.role().is_none_or(|role| role.prefix().is_empty())
            && is_between_requests()
    }

    /// Reports to the account what is held between turns.
    fn settle(&mut self) {
        let watched = if self.watcher.is_some() { watch::QUEUE_MAX } else { 0 };
        let dumped = match &self.phase {
            Phase::Dumping(dump) => dump.held(),
            _ => 0,
        };
        let secured = self.secure.as_ref().map_or(0, |secure| secure.held());
        let held = self.input.held() + self.output.held() + self.link.sending().1 + watched + dumped + secured;
        self.charge.set(held);
    }
}
