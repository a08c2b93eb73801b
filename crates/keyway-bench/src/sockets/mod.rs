//! The load generator for sockets: one thread drives many connections, verifies every reply, and never waits for one of them.
//!
//! Closed loop: each connection has a fixed number of requests on the way, and sends the next when one is answered. Open loop:
//! requests are due at moments drawn beforehand, go to the connections in turn, and their latency counts from the moment at
//! which they were due, whether or not the server let the client send them then.
//!
//! This file has the event loop and the sockets; `conversation` has what is said over them.

mod conversation;

use self::conversation::Pending;
use crate::load::{Load, Schedule};
use crate::machine::{self, thread_cpu};
use crate::measurement::{Measurement, Window};
use crate::wire::{Connection, Target};
use rustix::event::epoll;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// How often the event loop looks at the clock at least.
const LOOK_AROUND_EVERY: Duration = Duration::from_millis(50);
/// How long the answer to a datagram may take, before the request counts as dropped; three times the longest pause that a test makes.
const DROPPED_AFTER: Duration = Duration::from_millis(600);
/// Bytes read at a time.
const READ_LEN: usize = 256 << 10;

/// How the connections are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// of this thread
    pub connections: usize,
    /// closed loop: requests in flight on each connection
    pub depth: usize,
    /// keys of one get
    pub keys_per_get: usize,
    /// how long a server may be silent while requests are on the way
    pub silence_max: Duration,
}

/// One thread's connections, open, and what it will do with them.
pub struct Client {
    load: Load,
    shape: Shape,
    poll: OwnedFd,
    peers: Vec<Peer>,
    /// how many connections are of use
    alive: usize,
    /// requests on the way on all of them
    owed: usize,
    ran: Measurement,
    /// number of the next write
    write: u64,
    /// the peer that is given the next request of an open loop
    turn: usize,
    /// CPU time that this thread had used when the window began
    cpu_before: Option<Duration>,
    /// the latest look at the clock
    now: Instant,
    /// when datagrams were last looked for that are lost
    expired_at: Instant,
    /// since the last answer, datagrams were lost
    all_dropped: bool,
    key: Vec<u8>,
}

impl Client {
    /// Connects.
    pub fn open(target: &Target, shape: Shape, load: Load) -> io::Result<Self> {
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let mut peers = Vec::with_capacity(shape.connections);
        for number in 0..shape.connections {
            let connection = Connection::open(target).map_err(|e| {
                let remedy = "allow more connections at the server, or raise ulimit -n";
                io::Error::new(e.kind(), format!("connection {} to {target}: {e}; {remedy}", number + 1))
            })?;
            connection.set_nonblocking()?;
            watch(&poll, number, &connection)?;
            peers.push(Peer::new(connection));
        }
        Ok(Self {
            write: load.first_write(),
            load,
            shape,
            poll,
            alive: peers.len(),
            owed: 0,
            peers,
            ran: Measurement::default(),
            turn: 0,
            cpu_before: None,
            now: Instant::now(),
            expired_at: Instant::now(),
            all_dropped: false,
            key: Vec::new(),
        })
    }

    /// Runs until `window` is over and everything is answered, or patience with the server ends.
    pub fn run(mut self, window: Window) -> Measurement {
        machine::precise_timers();
        let begun = Instant::now();
        self.now = begun;
        let mut schedule = self.load.schedule(begun);
        if schedule.is_none() {
            for number in 0..self.peers.len() {
                self.refill(number, begun);
                self.flush(number);
            }
        }
        let last = self.work(window, &mut schedule, begun);
        self.give_up(last, window, schedule);
        self.ran.elapsed = last.max(window.until).saturating_duration_since(window.from);
        self.ran.used(self.cpu_before.unwrap_or_else(thread_cpu), window.from);
        self.ran
    }

    /// The event loop; gives the moment of the last answer or of the end.
    fn work(&mut self, window: Window, schedule: &mut Option<Schedule>, begun: Instant) -> Instant {
        let mut events = Vec::with_capacity(self.peers.len().max(16));
        let mut scratch = vec![0; READ_LEN];
        let (mut now, mut received) = (begun, begun);
        let patience_end = schedule.as_ref().map(|_| window.patience_end());
        loop {
            if let Some(schedule) = schedule {
                self.send_due(schedule, now, window);
            }
            if self.cpu_before.is_none() && now >= window.from {
                self.cpu_before = Some(thread_cpu());
            }
            self.expire(now, schedule.is_none() && now < window.until);
            let is_due = schedule
                .as_ref()
                .is_some_and(|schedule| schedule.next() < window.until.min(now));
            let waiting = self.owed > 0 || is_due;
            let over = now >= window.until;
            if self.alive == 0 || (over && !waiting) || patience_end.is_some_and(|end| now >= end) {
                return now;
            }
            if waiting && now.saturating_duration_since(received) > self.shape.silence_max {
                let silence_max = self.shape.silence_max;
                self.ran.wrong.describe(|| format!("no answer for {silence_max:?}"));
                for number in 0..self.peers.len() {
                    self.lose(number, "it gives no answer");
                }
                return now;
            }
            if !waiting && !self.all_dropped {
                received = now; // no answer is owed
            }
            let mut wake = if over { now + LOOK_AROUND_EVERY } else { window.until };
            wake = wake.min(now + LOOK_AROUND_EVERY);
            if let (Some(schedule), false) = (&schedule, over || is_due) {
                wake = wake.min(schedule.next());
            }
            events.clear();
            let wait = wake.saturating_duration_since(now);
            if let Err(e) = self.wait(wait, schedule.is_some(), &mut events)
                && e != rustix::io::Errno::INTR
            {
                self.ran.wrong.describe(|| format!("epoll: {e}"));
                self.ran.wrong.errors += 1;
                return now;
            }
            for event in &events {
                let Ok(number) = usize::try_from(event.data.u64()) else {
                    continue;
                };
                let read = self.receive(number, &mut scratch, window);
                now = self.now;
                if read {
                    received = now;
                    self.all_dropped = false;
                    if schedule.is_none() && now < window.until {
                        self.refill(number, now);
                    }
                }
                self.flush(number);
            }
            now = Instant::now();
            self.now = now;
        }
    }

    /// Waits so long for something to arrive. `exactly`: epoll_wait(2) knows milliseconds only, of which an open loop would make its requests late;
    /// ppoll(2) knows nanoseconds, and does not tell which of them it was.
    fn wait(&self, time: Duration, exactly: bool, events: &mut Vec<epoll::Event>) -> rustix::io::Result<()> {
        let mut time = timespec(time);
        if exactly {
            poll(&mut [PollFd::new(&self.poll, PollFlags::IN)], Some(&time))?;
            time = timespec(Duration::ZERO);
        }
        epoll::wait(&self.poll, rustix::buffer::spare_capacity(events), Some(&time)).map(drop)
    }

    /// Sends every request that is due; those of a connection together.
    fn send_due(&mut self, schedule: &mut Schedule, now: Instant, window: Window) {
        let mut asked = Vec::new();
        while schedule.next() <= now && schedule.next() < window.until {
            let Some(number) = self.next_free() else { break };
            self.request(number, schedule.next());
            schedule.advance();
            asked.push(number);
        }
        // Anything more that is due meanwhile goes with the next turn of the event loop.
        asked.into_iter().for_each(|number| self.flush(number));
    }

    fn next_free(&mut self) -> Option<usize> {
        for _ in 0..self.peers.len() {
            self.turn = (self.turn + 1) % self.peers.len();
            let peer = &self.peers[self.turn];
            if peer.alive && (peer.pending.is_empty() || !peer.connection.is_one_at_a_time()) {
                return Some(self.turn);
            }
        }
        None
    }

    /// Frees sockets whose datagrams are lost; in a closed loop they ask again.
    fn expire(&mut self, now: Instant, asks_again: bool) {
        let has_datagrams = self.peers.first().is_some_and(|peer| peer.connection.is_one_at_a_time());
        if !has_datagrams || now.saturating_duration_since(self.expired_at) < LOOK_AROUND_EVERY {
            return;
        }
        self.expired_at = now;
        for number in 0..self.peers.len() {
            let peer = &mut self.peers[number];
            let Some(pending) = peer.pending.front().copied() else {
                continue;
            };
            if !peer.alive || !peer.connection.may_lose() || now.saturating_duration_since(peer.asked) < DROPPED_AFTER {
                continue;
            }
            peer.items.clear();
            peer.fills.clear();
            peer.input.clear();
            self.pop(number);
            self.ran.dropped += 1;
            self.all_dropped = true;
            self.record(pending, now);
            if asks_again {
                self.refill(number, now);
                self.flush(number);
            }
        }
    }

    /// Brings a connection of a closed loop to its number of requests.
    fn refill(&mut self, number: usize, now: Instant) {
        while self.peers[number].alive && self.peers[number].pending.len() < self.shape.depth {
            self.request(number, now);
        }
    }

    /// Writes as much as the connection takes.
    fn flush(&mut self, number: usize) {
        loop {
            let peer = &mut self.peers[number];
            if !peer.alive || peer.sent == peer.out.len() {
                peer.out.clear();
                peer.sent = 0;
                return self.wait_for_room(number, false);
            }
            match peer.connection.write(&peer.out[peer.sent..]) {
                Ok(n) => peer.sent += n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return self.wait_for_room(number, true),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return self.lose(number, &e.to_string()),
            }
        }
    }

    /// Has the poll report room to write, or not.
    fn wait_for_room(&mut self, number: usize, wanted: bool) {
        let peer = &mut self.peers[number];
        if !peer.alive || peer.waits_for_room == wanted {
            return;
        }
        let event = epoll::EventData::new_u64(number as u64);
        let room = if wanted {
            epoll::EventFlags::OUT
        } else {
            epoll::EventFlags::empty()
        };
        match epoll::modify(&self.poll, &peer.connection, event, epoll::EventFlags::IN | room) {
            Ok(()) => peer.waits_for_room = wanted,
            Err(e) => self.lose(number, &format!("epoll: {e}")),
        }
    }

    /// Reads all that has arrived and takes the replies in it. Whether there was anything; if so, it has looked at the clock.
    fn receive(&mut self, number: usize, scratch: &mut [u8], window: Window) -> bool {
        let mut any = false;
        while self.peers[number].alive {
            let n = match self.peers[number].connection.read(scratch) {
                Ok(0) => {
                    self.lose(number, "the server closed it");
                    break;
                }
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => {
                    self.lose(number, &e.to_string());
                    break;
                }
            };
            any = true;
            let now = Instant::now();
            self.now = now;
            // Most of the time nothing is left of earlier reads, and replies are taken from where they were read to.
            let mut arrived = std::mem::take(&mut self.peers[number].input);
            if arrived.is_empty() {
                let taken = self.replies(number, &scratch[..n], now, window);
                arrived.extend_from_slice(&scratch[taken..n]);
            } else {
                arrived.extend_from_slice(&scratch[..n]);
                let taken = self.replies(number, &arrived, now, window);
                arrived.drain(..taken);
            }
            self.peers[number].input = arrived;
            if n < scratch.len() {
                break; // the socket is empty; epoll reports when more arrives
            }
        }
        any
    }

    /// A connection is of no use any more.
    fn lose(&mut self, number: usize, why: &str) {
        let peer = &mut self.peers[number];
        if !peer.alive {
            return;
        }
        peer.alive = false;
        self.alive -= 1;
        self.owed -= peer.pending.len();
        self.ran.wrong.connections += 1;
        self.ran.wrong.lost += peer.pending.len() as u64;
        self.ran.wrong.describe(|| format!("connection {}: {why}", number + 1));
        let _ = epoll::delete(&self.poll, &peer.connection);
        let _ = peer.connection.second().map(|second| epoll::delete(&self.poll, second));
    }

    /// Open loop: what is unanswered, or was due and could not even be sent, has at least the latency that it has by now.
    fn give_up(&mut self, now: Instant, window: Window, schedule: Option<Schedule>) {
        let Some(mut schedule) = schedule else { return };
        while schedule.next() < window.until.min(now) {
            if schedule.next() >= window.from {
                self.ran.unanswered += 1;
                self.ran.reads.record(now.saturating_duration_since(schedule.next()));
            }
            schedule.advance();
        }
        let owed = self.peers.iter().filter(|peer| peer.alive).flat_map(|peer| &peer.pending);
        let owed: Vec<Pending> = owed.filter(|pending| pending.start >= window.from).copied().collect();
        self.ran.unanswered += owed.len() as u64;
        owed.into_iter().for_each(|pending| self.record(pending, now));
    }
}

/// Has the poll report when something arrives on a connection.
fn watch(poll: &OwnedFd, number: usize, connection: &Connection) -> io::Result<()> {
    let event = epoll::EventData::new_u64(number as u64);
    epoll::add(poll, connection, event, epoll::EventFlags::IN)?;
    if let Some(second) = connection.second() {
        epoll::add(poll, second, event, epoll::EventFlags::IN)?;
    }
    Ok(())
}

/// A connection and what it owes.
struct Peer {
    connection: Connection,
    alive: bool,
    /// to be sent, from `sent` on
    out: Vec<u8>,
    sent: usize,
    waits_for_room: bool,
    /// the beginning of a reply
    input: Vec<u8>,
    /// over UDP: when the request on the way was sent
    asked: Instant,
    pending: VecDeque<Pending>,
    /// items of all pending gets, in their order
    items: VecDeque<u64>,
    /// what the get at the front has missed and will be stored
    fills: Vec<u64>,
}

impl Peer {
    fn new(connection: Connection) -> Self {
        Self {
            connection,
            alive: true,
            out: Vec::new(),
            sent: 0,
            waits_for_room: false,
            input: Vec::new(),
            asked: Instant::now(),
            pending: VecDeque::new(),
            items: VecDeque::new(),
            fills: Vec::new(),
        }
    }
}

fn timespec(wait: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(wait.subsec_nanos()),
    }
}
