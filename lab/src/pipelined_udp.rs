//! The load generator for many gets on the way on one socket: a closed loop over datagrams.
//!
//! As clients do that have much to ask, it sends all requests that it may with one system call, takes all answers that are there with another one,
//! and tells them apart by their numbers, so they may come in any order. Each request is a get of one key, and an answer is one
//! datagram whose value is verified. A latency counts from before the call that sent its request to after the one that took its answer: waiting for others
//! of the same call is part of it.

use crate::flood;
use keyway_bench::load::Load;
use keyway_bench::machine::{self, thread_cpu};
use keyway_bench::measurement::{Measurement, Window};
use keyway_bench::wire::Target;
use keyway_proto::client;
use keyway_proto::frame::FRAME_LEN;
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, MultiHeaders, recvmmsg, sendmmsg};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, IoSlice, IoSliceMut};
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// Most requests on the way: a small part of the numbers that tell them apart, so that one that was given up has its number for itself long enough.
pub const DEPTH_MAX: usize = 1024;
/// Longest value whose answer is one datagram, whatever the key: memcached's have 1400 bytes, with frame, line, key (250) and ends of lines.
pub const VALUE_LEN_MAX: usize = 1100;
/// Datagrams of one system call.
const BATCH: usize = 64;
/// Room for each answer, bytes.
const ANSWER_LEN_MAX: usize = 2048;
/// How long an answer may take before the request counts as dropped, as for one request on a socket.
const DROPPED_AFTER: Duration = Duration::from_millis(600);
/// How often requests are looked for that are lost, and how long a wait for answers is at most.
const LOOK_AROUND_EVERY: Duration = Duration::from_millis(50);

/// A request on its way.
#[derive(Clone, Copy)]
struct Asked {
    number: u16,
    item: u64,
    start: Instant,
}

/// A socket, and what it owes.
pub struct PipelinedUdp {
    socket: UdpSocket,
    load: Load,
    depth: usize,
    silence_max: Duration,
    /// on the way, at most `depth`, in no order
    asked: Vec<Asked>,
    /// by number: where in `asked`
    places: Vec<Option<u32>>,
    number: u16,
    out: Outbox,
    input: Vec<u8>,
    key: Vec<u8>,
    ran: Measurement,
}

/// Requests that wait to be sent.
struct Outbox {
    bytes: Vec<u8>,
    /// where each ends in `bytes`
    ends: Vec<usize>,
}

impl PipelinedUdp {
    /// Opens the socket. `silence_max`: how long the server may be silent.
    pub fn open(target: &Target, depth: usize, silence_max: Duration, load: Load) -> io::Result<Self> {
        Ok(Self {
            socket: flood::socket(target)?,
            load,
            depth: depth.min(DEPTH_MAX),
            silence_max,
            asked: Vec::with_capacity(depth),
            places: vec![None; 1 << 16],
            number: 0,
            out: Outbox {
                bytes: Vec::new(),
                ends: Vec::with_capacity(depth),
            },
            input: vec![0; BATCH * ANSWER_LEN_MAX],
            key: Vec::new(),
            ran: Measurement::default(),
        })
    }

    /// Runs until `window` is over and everything is answered or lost.
    pub fn run(mut self, window: Window) -> Measurement {
        machine::precise_timers();
        let mut now = Instant::now();
        let (mut heard, mut expired) = (now, now);
        let mut cpu_before = None;
        // Of this thread: they have pointers in them.
        let mut headers = MultiHeaders::preallocate(BATCH, None);
        while now < window.until || !self.asked.is_empty() {
            if cpu_before.is_none() && now >= window.from {
                cpu_before = Some(thread_cpu());
            }
            if now < window.until {
                self.ask(now);
            }
            if let Err(error) = self
                .send(&mut headers)
                .and_then(|()| self.take(&mut headers, window, &mut heard))
            {
                self.ran.wrong.connections += 1;
                self.ran.wrong.lost += self.asked.len() as u64;
                self.ran.wrong.describe(|| format!("datagrams: {error}"));
                break;
            }
            now = Instant::now();
            if now.saturating_duration_since(expired) >= LOOK_AROUND_EVERY {
                expired = now;
                self.expire(now, window);
            }
            if now.saturating_duration_since(heard) > self.silence_max {
                let silence_max = self.silence_max;
                self.ran.wrong.connections += 1;
                self.ran.wrong.describe(|| format!("no answer for {silence_max:?}"));
                break;
            }
        }
        self.ran.elapsed = now.max(window.until).saturating_duration_since(window.from);
        self.ran.used(cpu_before.unwrap_or_else(thread_cpu), window.from);
        self.ran
    }

    /// Makes requests until as many are on the way as may be.
    fn ask(&mut self, now: Instant) {
        while self.asked.len() < self.depth {
            // Of the numbers, at most `depth` are taken.
            self.number = self.number.wrapping_add(1);
            let place = &mut self.places[usize::from(self.number)];
            if place.is_some() {
                continue;
            }
            *place = u32::try_from(self.asked.len()).ok();
            let item = self.load.stream.draw_item();
            self.asked.push(Asked {
                number: self.number,
                item,
                start: now,
            });
            let bytes = &mut self.out.bytes;
            bytes.extend_from_slice(&self.number.to_be_bytes());
            bytes.extend_from_slice(&[0, 0, 0, 1, 0, 0]);
            let items = &self.load.items;
            client::get(bytes, false, [|out: &mut Vec<u8>| items.push_key(item, out)]);
            self.out.ends.push(bytes.len());
        }
    }

    /// Sends them. What finds no room at this end waits for the next turn.
    fn send(&mut self, headers: &mut MultiHeaders<()>) -> Result<(), Errno> {
        let (mut sent, mut start) = (0, 0);
        while sent < self.out.ends.len() {
            let waiting = &self.out.ends[sent..self.out.ends.len().min(sent + BATCH)];
            let mut from = start;
            let mut slices = [[IoSlice::new(&[])]; BATCH];
            for (slice, &end) in slices.iter_mut().zip(waiting) {
                *slice = [IoSlice::new(&self.out.bytes[from..end])];
                from = end;
            }
            let count = waiting.len();
            let done = sendmmsg(
                self.socket.as_raw_fd(),
                headers,
                slices[..count].iter(),
                [None; BATCH],
                [],
                MsgFlags::MSG_DONTWAIT,
            );
            match done {
                Ok(done) => sent += done.count(),
                Err(Errno::EAGAIN | Errno::EINTR) => break,
                Err(error) => return Err(error),
            }
            start = self.out.ends[..sent].last().copied().unwrap_or(0);
        }
        self.out.bytes.drain(..start);
        self.out.ends.drain(..sent);
        self.out.ends.iter_mut().for_each(|end| *end -= start);
        Ok(())
    }

    /// Takes the answers that are there; waits for some, if there are none.
    fn take(&mut self, headers: &mut MultiHeaders<()>, window: Window, heard: &mut Instant) -> Result<(), Errno> {
        let mut waited = false;
        loop {
            let mut input = std::mem::take(&mut self.input);
            let lens = self.receive(headers, &mut input);
            let now = Instant::now();
            if let Ok((lens, count)) = &lens {
                for (datagram, &len) in input.chunks_exact(ANSWER_LEN_MAX).zip(&lens[..*count]) {
                    self.answer(&datagram[..len], now, window);
                }
                *heard = now;
            }
            self.input = input;
            match lens {
                Ok(_) => return Ok(()),
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) if waited => return Ok(()),
                Err(Errno::EAGAIN) => self.wait(),
                Err(error) => return Err(error),
            }
            waited = true;
        }
    }

    /// Lengths of the datagrams that have come, and how many.
    fn receive(&self, headers: &mut MultiHeaders<()>, input: &mut [u8]) -> Result<([usize; BATCH], usize), Errno> {
        let mut rooms = input.chunks_exact_mut(ANSWER_LEN_MAX);
        let mut slices: [_; BATCH] = std::array::from_fn(|_| [IoSliceMut::new(rooms.next().unwrap_or_default())]);
        let (socket, flags) = (self.socket.as_raw_fd(), MsgFlags::MSG_DONTWAIT);
        let received = recvmmsg(socket, headers, slices.iter_mut(), flags, None)?;
        let (mut lens, mut count) = ([0; BATCH], 0);
        for (len, message) in lens.iter_mut().zip(received) {
            *len = message.bytes;
            count += 1;
        }
        Ok((lens, count))
    }

    fn wait(&self) {
        let time = Timespec {
            tv_sec: 0,
            tv_nsec: i64::from(LOOK_AROUND_EVERY.subsec_nanos()),
        };
        // An interruption only makes another turn.
        let _ = poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&time));
    }

    fn answer(&mut self, datagram: &[u8], now: Instant, window: Window) {
        let Some((frame, payload)) = datagram.split_first_chunk::<FRAME_LEN>() else {
            return;
        };
        let number = u16::from_be_bytes([frame[0], frame[1]]);
        // One that was given up comes late.
        let Some(asked) = self.free(number) else { return };
        if asked.start >= window.from {
            self.ran.operations += 1;
            self.ran.reads.record(now.saturating_duration_since(asked.start));
        }
        let counted = u64::from(asked.start >= window.from);
        if payload == b"END\r\n" {
            self.ran.misses += counted;
            return;
        }
        self.ran.hits += counted;
        self.key.clear();
        self.load.items.push_key(asked.item, &mut self.key);
        if !flood::is_answer(payload, &self.key, |value| self.load.items.is_value(asked.item, value)) {
            self.ran.wrong.values += 1;
            self.ran
                .wrong
                .describe(|| format!("the answer is {}", payload[..payload.len().min(80)].escape_ascii()));
        }
    }

    /// The request with this number, which is not on the way any more.
    fn free(&mut self, number: u16) -> Option<Asked> {
        let place = self.places[usize::from(number)].take()?;
        let asked = self.asked.swap_remove(place as usize);
        if let Some(moved) = self.asked.get(place as usize) {
            self.places[usize::from(moved.number)] = Some(place);
        }
        Some(asked)
    }

    /// Gives up what is lost.
    fn expire(&mut self, now: Instant, window: Window) {
        let waited = |asked: &Asked| now.saturating_duration_since(asked.start);
        let lost: Vec<Asked> = self
            .asked
            .iter()
            .filter(|asked| waited(asked) >= DROPPED_AFTER)
            .copied()
            .collect();
        for asked in lost {
            self.free(asked.number);
            if asked.start >= window.from {
                self.ran.dropped += 1;
                self.ran.reads.record(waited(&asked));
            }
        }
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
            let client = PipelinedUdp::open(&Target::Udp(address), DEPTH, Duration::from_secs(10), load()).unwrap();
            let ran = client.run(window);
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
        let (ran, _) = run(Duration::from_millis(50), |request, number| {
            let mut answer = hit(request);
            if number == 3 {
                let last = answer.len() - 8;
                answer[last] ^= 1;
            }
            vec![answer.clone(), answer]
        });
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
}
