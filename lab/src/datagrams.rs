//! The load generator for many gets on the way on one socket, over datagrams.
//!
//! A closed loop keeps so many on the way, as clients do that have much to ask. A flood sends what is due, however many are unanswered: a rate
//! may be above what a server can do, and may change from one phase to the next; what never comes back is counted. Either sends all that it may with
//! one system call and takes all answers that are there with another one. It tells them apart by their numbers, so they may come in any order.
//! Each request is a get of one key, and an answer is one datagram whose value is verified. A latency counts from before the call that sent its
//! request (in a flood from the moment at which it was due) to after the one that took its answer: waiting for others of the same call is part of it.

use keyway_bench::load::{Load, Schedule};
use keyway_bench::machine::{self, thread_cpu};
use keyway_bench::measurement::{Measurement, Window};
use keyway_bench::wire::Target;
use keyway_proto::client::{self, Answer, Received};
use keyway_proto::frame::FRAME_LEN;
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, MultiHeaders, recvmmsg, sendmmsg};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;
use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// Most requests on the way of a closed loop: a small part of their numbers, so that one that was given up has its number for itself long enough.
pub const DEPTH_MAX: usize = 1024;
/// Longest value whose answer is one datagram, whatever the key: memcached's have 1400 bytes, with frame, line, key (250) and ends of lines.
pub const VALUE_LEN_MAX: usize = 1100;
/// Numbers of requests; an answer that comes after so many others were sent is dropped.
const NUMBERS: usize = 1 << 16;
/// Datagrams of one system call.
const BATCH: usize = 64;
/// Requests of a flood that are made at most before answers are looked for.
const MADE_IN_A_TURN: usize = 16;
/// Room for each answer, bytes; and for those that wait in the socket: more than come while a turn sends, so that none is lost on this side.
const ANSWER_LEN_MAX: usize = 2048;
const RECEIVED_MAX: usize = 16 << 20;
/// How long an answer may take in a closed loop before the request counts as dropped, as for one request on a socket.
const DROPPED_AFTER: Duration = Duration::from_millis(600);
/// What has not come so long after the last request of a flood was sent is lost.
const LOST_AFTER: Duration = Duration::from_millis(200);
/// How long a wait for answers is at most.
const LOOK_AROUND_EVERY: Duration = Duration::from_millis(50);

/// A rate for some time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Phase {
    /// requests a second
    pub rate: f64,
    /// how long
    pub length: Duration,
}

/// A request on its way: when it was sent or due, its item, and the measurement that it belongs to.
#[derive(Clone, Copy)]
struct Asked {
    start: Instant,
    item: u64,
    phase: usize,
}

/// A socket, and what it owes.
pub struct Datagrams {
    socket: UdpSocket,
    load: Load,
    /// by number; `None`: answered, given up, or never sent
    asked: Vec<Option<Asked>>,
    on_way: usize,
    number: u16,
    /// numbers of a closed loop, the oldest first
    order: VecDeque<u16>,
    /// requests that wait to be sent, and where each ends
    out: Vec<u8>,
    ends: Vec<usize>,
    input: Vec<u8>,
    key: Vec<u8>,
    ran: Vec<Measurement>,
}

impl Datagrams {
    /// Opens the socket.
    pub fn open(target: &Target, load: Load) -> io::Result<Self> {
        Ok(Self {
            socket: socket(target)?,
            load,
            asked: vec![None; NUMBERS],
            on_way: 0,
            number: 0,
            order: VecDeque::new(),
            out: Vec::new(),
            ends: Vec::new(),
            input: vec![0; BATCH * ANSWER_LEN_MAX],
            key: Vec::new(),
            ran: Vec::new(),
        })
    }

    /// A closed loop of so many on the way, until `window` is over and everything is answered or lost. `silence_max`: how long the server may be
    /// silent.
    pub fn closed(mut self, depth: usize, silence_max: Duration, window: Window) -> Measurement {
        machine::precise_timers();
        // What warms up, and what counts.
        self.ran = vec![Measurement::default(); 2];
        let mut now = Instant::now();
        let mut received = now;
        let mut cpu_before = None;
        // Of this thread: they have pointers in them.
        let mut headers = MultiHeaders::preallocate(BATCH, None);
        while now < window.until || self.on_way > 0 {
            if cpu_before.is_none() && now >= window.from {
                cpu_before = Some(thread_cpu());
            }
            while now < window.until && self.on_way < depth.min(DEPTH_MAX) {
                self.number = self.number.wrapping_add(1);
                // Of the numbers, at most `depth` are taken.
                if self.asked[usize::from(self.number)].is_none() {
                    self.ask(now, usize::from(now >= window.from));
                    self.order.push_back(self.number);
                }
            }
            match self.turn(&mut headers, LOOK_AROUND_EVERY) {
                Ok(true) => received = Instant::now(),
                Ok(false) => {}
                Err(error) => {
                    self.ran[1].wrong.lost += self.on_way as u64;
                    self.broken(&format!("datagrams: {error}"));
                    break;
                }
            }
            now = Instant::now();
            self.expire(now);
            if now.saturating_duration_since(received) > silence_max {
                self.broken(&format!("no answer for {silence_max:?}"));
                break;
            }
        }
        let [warm, mut ran] = std::mem::take(&mut self.ran).try_into().unwrap_or_default();
        ran.wrong.add(&warm.wrong);
        ran.elapsed = now.max(window.until).saturating_duration_since(window.from);
        ran.used(cpu_before.unwrap_or_else(thread_cpu), window.from);
        ran
    }

    /// A flood of one rate, from now to the end of `window`; what is due before the window counts for nothing.
    pub fn flood(self, rate: f64, window: Window) -> Measurement {
        let warmup = window.from.saturating_duration_since(Instant::now());
        let phases = [warmup, window.until - window.from].map(|length| Phase { rate, length });
        self.phases(&phases).pop().unwrap_or_default()
    }

    /// A flood of one phase after the other, without a pause; what came of each. A phase in which this thread could not send as many as were due
    /// takes longer: its rate is what was sent.
    pub fn phases(mut self, phases: &[Phase]) -> Vec<Measurement> {
        machine::precise_timers();
        self.ran = vec![Measurement::default(); phases.len()];
        let mut headers = MultiHeaders::preallocate(BATCH, None);
        let mut begin = Instant::now();
        for (at, phase) in phases.iter().enumerate() {
            let (began, cpu) = (Instant::now(), thread_cpu());
            let until = begin + phase.length;
            let mut schedule = Schedule::new(phase.rate, begin, self.load.thread + at as u64);
            while schedule.next() < until || !self.ends.is_empty() {
                let now = Instant::now();
                while self.ends.len() < MADE_IN_A_TURN && schedule.next() <= now && schedule.next() < until {
                    self.number = self.number.wrapping_add(1);
                    // The answer to the request that had this number is not going to come.
                    if let Some(lost) = self.free(self.number) {
                        self.ran[lost.phase].dropped += 1;
                    }
                    self.ask(schedule.next(), at);
                    schedule.advance();
                }
                let wait = schedule.next().min(until).saturating_duration_since(Instant::now());
                if let Err(error) = self.turn(&mut headers, wait) {
                    // Such as a refusal that an earlier request met: no program listens any more.
                    self.broken(&format!("datagrams: {error}"));
                }
            }
            begin = Instant::now();
            self.ran[at].elapsed = began.elapsed();
            self.ran[at].used(cpu, began);
        }
        let sent = Instant::now();
        while sent.elapsed() < LOST_AFTER && self.on_way > 0 && self.turn(&mut headers, Duration::from_millis(5)).is_ok() {}
        self.asked.iter().flatten().for_each(|lost| self.ran[lost.phase].dropped += 1);
        self.ran
    }

    fn broken(&mut self, why: &str) {
        if let Some(ran) = self.ran.last_mut() {
            ran.wrong.connections += 1;
            ran.wrong.describe(|| why.to_owned());
        }
    }

    /// Makes the request of this number.
    fn ask(&mut self, start: Instant, phase: usize) {
        let item = self.load.stream.draw_item();
        self.asked[usize::from(self.number)] = Some(Asked { start, item, phase });
        self.on_way += 1;
        self.out.extend_from_slice(&self.number.to_be_bytes());
        self.out.extend_from_slice(&[0, 0, 0, 1, 0, 0]);
        let items = &self.load.items;
        client::get(&mut self.out, false, [|out: &mut Vec<u8>| items.push_key(item, out)]);
        self.ends.push(self.out.len());
    }

    /// Sends what waits, and takes the answers that are there; waits so long for some, if there are none. Whether any came.
    fn turn(&mut self, headers: &mut MultiHeaders<()>, wait: Duration) -> Result<bool, Errno> {
        self.send(headers)?;
        if self.take(headers)? {
            return Ok(true);
        }
        if !wait.is_zero() {
            let time = Timespec {
                tv_sec: 0,
                tv_nsec: i64::from(wait.min(LOOK_AROUND_EVERY).subsec_nanos()),
            };
            // An interruption only makes another turn.
            let _ = poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&time));
        }
        self.take(headers)
    }

    /// What finds no room at this end waits for the next turn.
    fn send(&mut self, headers: &mut MultiHeaders<()>) -> Result<(), Errno> {
        let (mut sent, mut start) = (0, 0);
        while sent < self.ends.len() {
            let waiting = &self.ends[sent..self.ends.len().min(sent + BATCH)];
            let mut from = start;
            let mut slices = [[IoSlice::new(&[])]; BATCH];
            for (slice, &end) in slices.iter_mut().zip(waiting) {
                *slice = [IoSlice::new(&self.out[from..end])];
                from = end;
            }
            let (socket, flags) = (self.socket.as_raw_fd(), MsgFlags::MSG_DONTWAIT);
            match sendmmsg(socket, headers, slices[..waiting.len()].iter(), [None; BATCH], [], flags) {
                Ok(done) => sent += done.count(),
                Err(Errno::EAGAIN | Errno::EINTR) => break,
                Err(error) => return Err(error),
            }
            start = self.ends[..sent].last().copied().unwrap_or(0);
        }
        self.out.drain(..start);
        self.ends.drain(..sent);
        self.ends.iter_mut().for_each(|end| *end -= start);
        Ok(())
    }

    /// Takes the answers that are there; whether there were any.
    fn take(&mut self, headers: &mut MultiHeaders<()>) -> Result<bool, Errno> {
        let mut input = std::mem::take(&mut self.input);
        let mut rooms = input.chunks_exact_mut(ANSWER_LEN_MAX);
        let mut slices: [_; BATCH] = std::array::from_fn(|_| [IoSliceMut::new(rooms.next().unwrap_or_default())]);
        let received = recvmmsg(
            self.socket.as_raw_fd(),
            headers,
            slices.iter_mut(),
            MsgFlags::MSG_DONTWAIT,
            None,
        );
        let lens = received.map(|messages| messages.map(|message| message.bytes).collect::<Vec<_>>());
        let now = Instant::now();
        for (datagram, &len) in input.chunks_exact(ANSWER_LEN_MAX).zip(lens.iter().flatten()) {
            self.answer(&datagram[..len], now);
        }
        self.input = input;
        match lens {
            Ok(lens) => Ok(!lens.is_empty()),
            Err(Errno::EAGAIN | Errno::EINTR) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn answer(&mut self, datagram: &[u8], now: Instant) {
        let Some((frame, payload)) = datagram.split_first_chunk::<FRAME_LEN>() else {
            return;
        };
        // One that was given up comes late.
        let Some(asked) = self.free(u16::from_be_bytes([frame[0], frame[1]])) else {
            return;
        };
        let ran = &mut self.ran[asked.phase];
        ran.operations += 1;
        ran.reads.record(now.saturating_duration_since(asked.start));
        if payload == b"END\r\n" {
            ran.misses += 1;
            return;
        }
        ran.hits += 1;
        self.key.clear();
        self.load.items.push_key(asked.item, &mut self.key);
        if !is_answer(payload, &self.key, |value| self.load.items.is_value(asked.item, value)) {
            ran.wrong.values += 1;
            let shown = payload[..payload.len().min(80)].escape_ascii();
            ran.wrong.describe(|| format!("the answer is {shown}"));
        }
    }

    /// The request with this number, which is not on the way any more.
    fn free(&mut self, number: u16) -> Option<Asked> {
        let asked = self.asked[usize::from(number)].take()?;
        self.on_way -= 1;
        Some(asked)
    }

    /// Gives up what is lost of a closed loop.
    fn expire(&mut self, now: Instant) {
        while let Some(&oldest) = self.order.front() {
            let waited = self.asked[usize::from(oldest)].map(|asked| now.saturating_duration_since(asked.start));
            if waited.is_some_and(|waited| waited < DROPPED_AFTER) {
                return;
            }
            self.order.pop_front();
            if let Some((asked, waited)) = self.free(oldest).zip(waited) {
                self.ran[asked.phase].dropped += 1;
                self.ran[asked.phase].reads.record(waited);
            }
        }
    }
}

/// A socket that many requests are on the way on.
fn socket(target: &Target) -> io::Result<UdpSocket> {
    let (Target::Udp(address) | Target::Split(address)) = target else {
        return Err(io::ErrorKind::Unsupported.into());
    };
    let any: IpAddr = if address.is_ipv4() {
        Ipv4Addr::UNSPECIFIED.into()
    } else {
        Ipv6Addr::UNSPECIFIED.into()
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(address)?;
    socket.set_nonblocking(true)?;
    // The limit that others have to keep is root's to pass; without, losses here would look like the server's.
    if sockopt::set_socket_recv_buffer_size_force(&socket, RECEIVED_MAX).is_err() {
        sockopt::set_socket_recv_buffer_size(&socket, RECEIVED_MAX)?;
    }
    Ok(socket)
}

/// Whether this is a get's whole answer, with a value that is one.
fn is_answer(payload: &[u8], key: &[u8], is_value: impl FnOnce(&[u8]) -> bool) -> bool {
    match client::receive(payload) {
        Received::Answer {
            consumed,
            answer:
                Answer::Value {
                    key: of,
                    flags: 0,
                    cas: None,
                    value,
                },
        } => of == key && payload.get(consumed..) == Some(b"END\r\n") && is_value(value),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use keyway_bench::mix::Stream;
    use keyway_bench::workload::Ranks;
    use keyway_bench::workloads;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    const DEPTH: usize = 8;

    fn load() -> Load {
        let workload = workloads::find("20b").unwrap();
        let newest = Arc::new(AtomicU64::new(100));
        Load {
            stream: Stream::new(&workload, 100, &Ranks::new(workload.access, 100), newest, 1),
            items: workload.items(100),
            fill: false,
            rate: None,
            thread: 1,
        }
    }

    /// Runs a client against a server that sends what `answers` makes of each request, and tells how many requests have come at most before an answer went.
    fn run(length: Duration, mut answers: impl FnMut(&[u8], u64) -> Vec<Vec<u8>> + Send) -> (Measurement, usize) {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = server.local_addr().unwrap();
        let window = Window::begin(Duration::ZERO, length);
        std::thread::scope(|scope| {
            let serving = scope.spawn(|| {
                let (mut buffer, mut asked, mut most) = ([0; 2048], 0_u64, 0);
                server.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
                loop {
                    let mut together = Vec::new();
                    server.set_nonblocking(false).unwrap();
                    while let Ok((len, from)) = server.recv_from(&mut buffer) {
                        if len == 1 {
                            return most;
                        }
                        together.push((buffer[..len].to_vec(), from));
                        server.set_nonblocking(true).unwrap();
                    }
                    most = most.max(together.len());
                    // The last first: order is nothing that a client of datagrams may count on.
                    for (request, from) in together.into_iter().rev() {
                        asked += 1;
                        for answer in answers(&request, asked) {
                            server.send_to(&answer, from).unwrap();
                        }
                    }
                }
            });
            let client = Datagrams::open(&Target::Udp(address), load()).unwrap();
            let ran = client.closed(DEPTH, Duration::from_secs(10), window);
            UdpSocket::bind("127.0.0.1:0").unwrap().send_to(b"x", address).unwrap();
            (ran, serving.join().unwrap())
        })
    }

    /// A whole answer with the value that was stored first.
    fn hit(request: &[u8]) -> Vec<u8> {
        let items = load().items;
        let key = request[FRAME_LEN + 4..].strip_suffix(b"\r\n").unwrap();
        let own = |item: &u64| {
            let mut name = Vec::new();
            items.push_key(*item, &mut name);
            name == key
        };
        let item = (0..100).find(own).unwrap();
        let mut value = Vec::new();
        items.push_value(item, 0, &mut value);
        let line = format!(" 0 {}\r\n", value.len());
        [&request[..FRAME_LEN], b"VALUE ", key, line.as_bytes(), &value, b"\r\nEND\r\n"].concat()
    }

    #[test]
    fn answers_in_any_order_are_their_requests_own_and_no_more_are_on_the_way_than_may_be() {
        let (ran, most) = run(Duration::from_millis(200), |request, number| {
            if number.is_multiple_of(5) {
                vec![[&request[..FRAME_LEN], b"END\r\n"].concat()]
            } else {
                vec![hit(request)]
            }
        });
        assert!(!ran.wrong.any(), "{:?}", ran.wrong.described);
        assert_eq!(ran.operations, ran.hits + ran.misses);
        // On a busy machine an answer may come too late to count.
        assert!(ran.dropped * 20 < ran.operations, "{} of {}", ran.dropped, ran.operations);
        assert!(ran.hits > 3 * ran.misses && ran.misses > 0, "{} {}", ran.hits, ran.misses);
        assert_eq!(most, DEPTH);
    }

    #[test]
    fn a_wrong_value_is_noticed_and_a_second_answer_is_dropped() {
        // A busy machine may give the client no turn in so short a time.
        let mut lengths = (0..8).map(|longer| Duration::from_millis(50 << longer));
        let mut ran_for = |length| {
            let (ran, _) = run(length, |request, number| {
                let mut answer = hit(request);
                if number == 3 {
                    let last = answer.len() - 8;
                    answer[last] ^= 1;
                }
                vec![answer.clone(), answer]
            });
            (ran.operations > 2).then_some(ran)
        };
        let ran = lengths.find_map(&mut ran_for).expect("a turn");
        assert_eq!((ran.wrong.values, ran.dropped), (1, 0));
        assert_eq!(ran.operations, ran.hits);
    }

    #[test]
    fn what_is_lost_is_counted_with_the_time_that_it_was_waited_for() {
        let (ran, _) = run(Duration::from_millis(100), |request, number| {
            if number == 3 { Vec::new() } else { vec![hit(request)] }
        });
        assert!(!ran.wrong.any(), "{:?}", ran.wrong.described);
        assert_eq!(ran.dropped, 1);
        // A histogram's values are exact to three digits.
        assert!(ran.reads.longer_than(DROPPED_AFTER - Duration::from_millis(5)) >= 1);
    }

    /// A server that answers two of three, and one of them late with another's number.
    fn serve(socket: &UdpSocket) {
        let mut buffer = [0; 2048];
        let mut count = 0_u64;
        while let Ok((len, from)) = socket.recv_from(&mut buffer) {
            count += 1;
            if !count.is_multiple_of(3) {
                let answer = [&buffer[..FRAME_LEN], b"END\r\n"].concat();
                let _ = socket.send_to(&answer, from);
            }
            if len <= FRAME_LEN {
                return;
            }
        }
    }

    #[test]
    fn what_is_not_answered_is_counted_in_its_phase() {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = server.local_addr().unwrap();
        let serving = std::thread::spawn(move || serve(&server));
        let length = Duration::from_millis(300);
        let phases = [1000.0, 3000.0].map(|rate| Phase { rate, length });
        let ran = Datagrams::open(&Target::Udp(address), load()).unwrap().phases(&phases);
        UdpSocket::bind("127.0.0.1:0")
            .unwrap()
            .send_to(&[0; FRAME_LEN], address)
            .unwrap();
        serving.join().unwrap();
        let sent: Vec<u64> = ran.iter().map(|ran| ran.operations + ran.dropped).collect();
        assert!(sent[1] > 2 * sent[0], "{sent:?}");
        for ran in &ran {
            assert!(ran.misses == ran.operations && !ran.wrong.any());
            // Every third, and what the kernel may have lost besides.
            assert!(
                ran.dropped * 3 + 6 >= ran.operations + ran.dropped,
                "{} of {}",
                ran.dropped,
                ran.operations
            );
        }
    }

    #[test]
    fn an_answer_is_whole_and_the_keys_own() {
        let is = |payload: &[u8]| is_answer(payload, b"key", |value| value == b"abc");
        assert!(is(b"VALUE key 0 3\r\nabc\r\nEND\r\n"));
        for bad in [
            &b"VALUE key 0 3\r\nabd\r\nEND\r\n"[..],
            b"VALUE kez 0 3\r\nabc\r\nEND\r\n",
            b"VALUE key 0 3\r\nabc\r\n",
            b"VALUE key 0 4\r\nabc\r\nEND\r\n",
            b"ERROR\r\n",
        ] {
            assert!(!is(bad), "{}", bad.escape_ascii());
        }
    }
}
