//! The load generator for sockets: one thread drives many connections, verifies every reply, and never waits for one of them.
//!
//! Closed loop: each connection has a fixed number of requests on the way, and sends the next when one is answered. Open loop:
//! requests are due at moments drawn beforehand, go to the connections in turn, and their latency counts from the moment at
//! which they were due, whether or not the server let the client send them then.

use crate::load::{Load, Schedule};
use crate::machine::{self, thread_cpu};
use crate::measurement::{Measurement, Window};
use crate::mix::{Kind, Operation, Put};
use crate::wire::{Connection, Target};
use rustix::event::epoll;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// How long a server may be silent while requests are on the way.
pub const SILENCE_MAX: Duration = Duration::from_secs(10);
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
    /// closed loop, one request on the way: operations of a connection before it is replaced by a new one
    pub operations_max: Option<u64>,
    /// how long a server may be silent while requests are on the way
    pub silence_max: Duration,
}

/// One thread's connections, open, and what it will do with them.
pub struct Client {
    target: Target,
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
            target: target.clone(),
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
        let (mut now, mut heard) = (begun, begun);
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
            if waiting && now.saturating_duration_since(heard) > self.shape.silence_max {
                let silence_max = self.shape.silence_max;
                self.ran.wrong.tell(|| format!("no answer for {silence_max:?}"));
                for number in 0..self.peers.len() {
                    self.lose(number, "it gives no answer");
                }
                return now;
            }
            if !waiting && !self.all_dropped {
                heard = now; // no answer is owed
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
                self.ran.wrong.tell(|| format!("epoll: {e}"));
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
                    heard = now;
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

    /// Sends every request that is due.
    fn send_due(&mut self, schedule: &mut Schedule, now: Instant, window: Window) {
        while schedule.next() <= now && schedule.next() < window.until {
            let Some(number) = self.next_free() else { return };
            self.request(number, schedule.next());
            schedule.advance();
            // Anything more that is due meanwhile goes with the next turn of the event loop.
            self.flush(number);
        }
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

    /// Brings a connection of a closed loop to its number of requests; before, replaces it if it has had its share of them.
    fn refill(&mut self, number: usize, now: Instant) {
        let peer = &self.peers[number];
        if peer.pending.is_empty() && self.shape.operations_max.is_some_and(|most| peer.done >= most) {
            self.reopen(number);
        }
        while self.peers[number].alive && self.peers[number].pending.len() < self.shape.depth {
            self.request(number, now);
        }
    }

    /// A new connection in the place of an old one. Its time is part of the next operation's latency.
    fn reopen(&mut self, number: usize) {
        if !self.peers[number].alive {
            return;
        }
        let opened = Connection::open(&self.target).and_then(|connection| {
            connection.set_nonblocking()?;
            watch(&self.poll, number, &connection)?;
            Ok(connection)
        });
        match opened {
            Ok(connection) => self.peers[number] = Peer::new(connection),
            Err(e) => self.lose(number, &format!("it cannot be opened again: {e}")),
        }
    }

    /// Appends the next operation's first request.
    fn request(&mut self, number: usize, start: Instant) {
        let Operation { kind, item, put } = self.load.stream.draw();
        let pending = |step| Pending {
            step,
            item,
            put,
            keys: 1,
            left: 0,
            start,
        };
        match kind {
            Kind::Get => self.get(number, pending(Step::Get), self.shape.keys_per_get - 1),
            Kind::GetNew => self.get(number, pending(Step::Get), 0),
            Kind::ReadModifyWrite => self.get(number, pending(Step::GetThenSet), 0),
            Kind::Set | Kind::Insert => self.store(number, pending(Step::Set)),
            Kind::Add => self.store(number, pending(Step::Add)),
            Kind::Delete => self.store(number, pending(Step::SetThenDelete)),
            Kind::Remove => self.key_request(number, b"delete ", b"\r\n", pending(Step::Remove)),
            Kind::Incr => self.key_request(number, b"incr ", b" 1\r\n", pending(Step::Incr)),
        }
    }

    /// A get of the operation's item and `more` others.
    fn get(&mut self, number: usize, mut pending: Pending, more: usize) {
        let peer = &mut self.peers[number];
        peer.out.extend_from_slice(b"get ");
        self.load.items.push_key(pending.item, &mut peer.out);
        peer.items.push_back(pending.item);
        for _ in 0..more {
            let item = self.load.stream.draw_item();
            peer.out.push(b' ');
            self.load.items.push_key(item, &mut peer.out);
            peer.items.push_back(item);
        }
        peer.out.extend_from_slice(b"\r\n");
        pending.keys = 1 + more;
        pending.left = 1 + more;
        self.push(number, pending);
    }

    fn store(&mut self, number: usize, pending: Pending) {
        let peer = &mut self.peers[number];
        let Pending { item, put, .. } = pending;
        let value_len = self.load.items.value_len(item, put.value_len);
        peer.out
            .extend_from_slice(if pending.step == Step::Add { b"add " } else { b"set " });
        self.load.items.push_key(item, &mut peer.out);
        let _ = write!(peer.out, " 0 {} {value_len}\r\n", put.ttl_s); // writing to memory does not fail
        self.load.items.push_value(item, self.write, put.value_len, &mut peer.out);
        self.write += 1;
        peer.out.extend_from_slice(b"\r\n");
        self.push(number, pending);
    }

    /// A request that has a key between two words.
    fn key_request(&mut self, number: usize, verb: &[u8], end: &[u8], pending: Pending) {
        let peer = &mut self.peers[number];
        peer.out.extend_from_slice(verb);
        self.load.items.push_key(pending.item, &mut peer.out);
        peer.out.extend_from_slice(end);
        self.push(number, pending);
    }

    fn push(&mut self, number: usize, pending: Pending) {
        let peer = &mut self.peers[number];
        if peer.connection.is_one_at_a_time() {
            peer.asked = self.now;
        }
        peer.pending.push_back(pending);
        self.owed += 1;
    }

    fn pop(&mut self, number: usize) {
        self.peers[number].pending.pop_front();
        self.owed -= 1;
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
                break; // the socket is empty; more is told when it comes
            }
        }
        any
    }

    /// Takes whole replies; how many bytes they were.
    fn replies(&mut self, number: usize, bytes: &[u8], now: Instant, window: Window) -> usize {
        let mut at = 0;
        while self.peers[number].alive && at < bytes.len() {
            match self.reply(number, &bytes[at..], now, window) {
                Taken::Bytes(n) => at += n,
                Taken::Incomplete => break,
                Taken::Nonsense(why) => {
                    self.ran.wrong.values += 1;
                    let start = bytes[at..].escape_ascii().to_string();
                    let start = start.chars().take(80).collect::<String>();
                    self.ran.wrong.tell(|| format!("{why}: {start}"));
                    self.lose(number, "its replies can no longer be told apart");
                    break;
                }
            }
        }
        at
    }

    /// One line of a reply, with the value that follows it.
    fn reply(&mut self, number: usize, bytes: &[u8], now: Instant, window: Window) -> Taken {
        const LINE_MAX: usize = 2048;
        let Some(end) = bytes.iter().take(LINE_MAX).position(|&b| b == b'\n') else {
            return if bytes.len() < LINE_MAX {
                Taken::Incomplete
            } else {
                Taken::Nonsense("a line without an end")
            };
        };
        let Some(line) = bytes[..end].strip_suffix(b"\r") else {
            return Taken::Nonsense("a line that ends without a carriage return");
        };
        let Some(pending) = self.peers[number].pending.front().copied() else {
            return Taken::Nonsense("a reply to no request");
        };
        let taken = Taken::Bytes(end + 1);
        if is_error(line) {
            self.ran.wrong.errors += 1;
            self.ran.wrong.tell(|| format!("the server answers {}", line.escape_ascii()));
            self.peers[number].items.drain(..pending.left);
            self.pop(number);
            return taken;
        }
        let counted = pending.start >= window.from;
        match (pending.step, line) {
            (Step::Get | Step::GetThenSet, b"END") => {
                self.pop(number);
                self.misses(number, pending, counted);
                for (item, put) in std::mem::take(&mut self.peers[number].fills) {
                    let fill = Pending {
                        item,
                        put,
                        ..pending.then(Step::Fill, now)
                    };
                    self.store(number, fill);
                }
                if pending.step == Step::GetThenSet {
                    self.store(number, pending.then(Step::Set, pending.start));
                } else {
                    self.done(number, pending, now, counted);
                }
                taken
            }
            (Step::Fill, b"STORED") => {
                self.pop(number);
                taken
            }
            (Step::Add, b"STORED" | b"NOT_STORED")
            | (Step::Remove, b"DELETED" | b"NOT_FOUND")
            | (Step::Set, b"STORED")
            | (Step::Delete, b"DELETED") => {
                self.pop(number);
                self.done(number, pending, now, counted);
                taken
            }
            (Step::Get | Step::GetThenSet, line) => self.value(number, line, &bytes[end + 1..], end + 1, counted),
            (Step::SetThenDelete, b"STORED") => {
                self.pop(number);
                self.key_request(number, b"delete ", b"\r\n", pending.then(Step::Delete, now));
                taken
            }
            // Another connection may have deleted it first, or it was evicted.
            (Step::Delete | Step::Incr, b"NOT_FOUND") => {
                self.pop(number);
                self.ran.misses += u64::from(counted);
                self.done(number, pending, now, counted);
                taken
            }
            (Step::Incr, digits) if !digits.is_empty() && digits.iter().all(u8::is_ascii_digit) => {
                self.pop(number);
                self.done(number, pending, now, counted);
                taken
            }
            _ => Taken::Nonsense("a reply to something else"),
        }
    }

    /// One item of a get: `rest` is what follows its line.
    fn value(&mut self, number: usize, line: &[u8], rest: &[u8], line_len: usize, counted: bool) -> Taken {
        let Some((key, value_len)) = parse_value_line(line) else {
            return Taken::Nonsense("no line of a get's reply");
        };
        let Some(value) = rest.get(..value_len) else {
            return Taken::Incomplete;
        };
        match rest.get(value_len..value_len + 2) {
            Some(b"\r\n") => {}
            Some(_) => return Taken::Nonsense("a value that is longer or shorter than its line says"),
            None => return Taken::Incomplete,
        }
        // Items come in the order of their keys; those that are absent are left out.
        loop {
            let peer = &mut self.peers[number];
            let Some(pending) = peer.pending.front_mut().filter(|p| p.left > 0) else {
                return Taken::Nonsense("a value of a key that was not asked for");
            };
            pending.left -= 1;
            let Some(item) = peer.items.pop_front() else {
                return Taken::Nonsense("a value of a key that was not asked for");
            };
            self.key.clear();
            self.load.items.push_key(item, &mut self.key);
            if self.key != key {
                let pending = *pending;
                self.ran.misses += u64::from(counted);
                self.missed(number, pending, item);
                continue;
            }
            self.ran.hits += u64::from(counted);
            if !self.load.items.is_value(item, value) {
                self.ran.wrong.values += 1;
                let shown = value[..value.len().min(32)].escape_ascii().to_string();
                self.ran.wrong.tell(|| {
                    let key = key.escape_ascii();
                    format!("key {key}: a value of {value_len} bytes that was never written to it, starting {shown}")
                });
            }
            return Taken::Bytes(line_len + value_len + 2);
        }
    }

    /// The items of a get that are still to come are absent: they are stored, if the load says so.
    fn misses(&mut self, number: usize, pending: Pending, counted: bool) {
        if counted {
            self.ran.misses += pending.left as u64;
        }
        for _ in 0..pending.left {
            let Some(item) = self.peers[number].items.pop_front() else {
                return;
            };
            self.missed(number, pending, item);
        }
    }

    fn missed(&mut self, number: usize, pending: Pending, item: u64) {
        if self.load.fill && pending.step == Step::Get {
            // Beside the item that was drawn, others of the same get have lengths of their own.
            let put = if item == pending.item { pending.put } else { Put::default() };
            self.peers[number].fills.push((item, put));
        }
    }

    fn done(&mut self, number: usize, pending: Pending, now: Instant, counted: bool) {
        self.peers[number].done += 1;
        if !counted {
            return;
        }
        self.ran.operations += pending.keys as u64;
        self.record(pending, now);
    }

    fn record(&mut self, pending: Pending, now: Instant) {
        let latencies = match pending.step {
            Step::Get => &mut self.ran.reads,
            _ => &mut self.ran.writes,
        };
        latencies.record(now.saturating_duration_since(pending.start));
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
        self.ran.wrong.tell(|| format!("connection {}: {why}", number + 1));
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
    fills: Vec<(u64, Put)>,
    /// operations done over this connection
    done: u64,
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
            done: 0,
        }
    }
}

/// What a request is, and what follows its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Get,
    GetThenSet,
    Set,
    Add,
    SetThenDelete,
    Delete,
    Remove,
    Incr,
    /// a set of what a get missed, which is no operation of its own
    Fill,
}

/// A request on its way.
#[derive(Clone, Copy, Debug)]
struct Pending {
    step: Step,
    item: u64,
    put: Put,
    /// of a get: how many were asked for, and how many of them are still to come
    keys: usize,
    left: usize,
    /// when it was sent (closed loop) or due (open loop)
    start: Instant,
}

impl Pending {
    /// The request that follows it, of the same operation.
    fn then(self, step: Step, start: Instant) -> Self {
        Self {
            step,
            keys: 1,
            left: 0,
            start,
            ..self
        }
    }
}

enum Taken {
    Bytes(usize),
    Incomplete,
    Nonsense(&'static str),
}

fn is_error(line: &[u8]) -> bool {
    line == b"ERROR" || line.starts_with(b"SERVER_ERROR") || line.starts_with(b"CLIENT_ERROR")
}

/// Key and value length of `VALUE <key> <flags> <bytes>` (protocol.txt, "Retrieval command").
fn parse_value_line(line: &[u8]) -> Option<(&[u8], usize)> {
    let rest = line.strip_prefix(b"VALUE ")?;
    let key_end = rest.iter().position(|&b| b == b' ')?;
    let (key, numbers) = rest.split_at(key_end);
    let mut numbers = numbers[1..].split(|&b| b == b' ');
    let (flags, value_len) = (numbers.next()?, numbers.next()?);
    if flags != b"0" || numbers.next().is_some() || value_len.is_empty() || value_len.len() > 9 {
        return None;
    }
    let digits = value_len.iter().map(|&b| b.is_ascii_digit().then(|| usize::from(b - b'0')));
    let value_len = digits.into_iter().try_fold(0, |n, digit| Some(n * 10 + digit?))?;
    Some((key, value_len))
}

fn timespec(wait: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(wait.subsec_nanos()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_line_is_read_or_refused() {
        assert_eq!(parse_value_line(b"VALUE abc 0 12"), Some((&b"abc"[..], 12)));
        for bad in [
            &b"VALUE abc 0"[..],
            b"VALUE abc 0 x",
            b"VALUE abc 7 1",
            b"VALUE abc 0 1 9",
            b"VALUE abc 0 ",
            b"VALUES abc 0 1",
            b"VALUE abc 0 99999999999999999999",
        ] {
            assert_eq!(parse_value_line(bad), None, "{}", bad.escape_ascii());
        }
    }

    #[test]
    fn every_error_of_the_protocol_is_one() {
        assert!(is_error(b"ERROR") && is_error(b"SERVER_ERROR out of memory") && is_error(b"CLIENT_ERROR bad"));
        assert!(!is_error(b"STORED") && !is_error(b"ERRORS"));
    }
}
