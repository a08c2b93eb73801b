//! The load generator that waits for no answer: datagrams are sent when they are due, however many are unanswered, and what never comes back is counted.
//!
//! The other generators wait for an answer, or give one up for lost, before a socket is used again, so no server is ever given more than it can
//! hold. Here it is: a rate may be above what a server can do, and may change from one phase to the next. Each request is a get of one key; an answer is
//! recognised by its number, and its value verified. Latencies are of what was answered, from the moment at which the request was due.

use keyway_bench::load::{Load, Schedule};
use keyway_bench::machine::{self, thread_cpu};
use keyway_bench::measurement::{Measurement, Window};
use keyway_bench::wire::Target;
use keyway_proto::client::{self, Answer, Heard};
use keyway_proto::frame::FRAME_LEN;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::time::{Duration, Instant};

/// Numbers of requests; an answer that comes after so many others were sent is dropped.
const NUMBERS: usize = 1 << 16;
/// Room for answers that wait in the socket, bytes: more than come while a turn sends, so that none is lost on this side.
const RECEIVED_MAX: usize = 16 << 20;
/// Requests sent at most before answers are looked for.
const SENT_IN_A_TURN: u32 = 16;
/// What has not come so long after the last request was sent is lost.
const LOST_AFTER: Duration = Duration::from_millis(200);

/// A rate for some time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Phase {
    /// requests a second
    pub rate: f64,
    /// how long
    pub length: Duration,
}

/// A socket, and what will be sent through it.
pub struct Flood {
    socket: UdpSocket,
    load: Load,
    /// by number: when the request was due, its item, its phase; `None`: answered, or never sent
    asked: Vec<Option<(Instant, u64, usize)>>,
    number: u16,
    frame: Vec<u8>,
    key: Vec<u8>,
}

impl Flood {
    /// Opens the socket.
    pub fn open(target: &Target, load: Load) -> io::Result<Self> {
        Ok(Self {
            socket: socket(target)?,
            load,
            asked: vec![None; NUMBERS],
            number: 0,
            frame: Vec::new(),
            key: Vec::new(),
        })
    }

    /// One rate, from now to the end of `window`; what is due before the window counts for nothing.
    pub fn run(self, rate: f64, window: Window) -> Measurement {
        let warmup = window.from.saturating_duration_since(Instant::now());
        let phases = [warmup, window.until - window.from].map(|length| Phase { rate, length });
        self.run_phases(&phases).pop().unwrap_or_default()
    }

    /// One phase after the other, without a pause; what came of each. A phase in which this thread could not send as many as were due takes
    /// longer: its rate is what was sent.
    pub fn run_phases(mut self, phases: &[Phase]) -> Vec<Measurement> {
        machine::precise_timers();
        let mut all: Vec<Measurement> = phases.iter().map(|_| Measurement::default()).collect();
        let mut begin = Instant::now();
        for (at, phase) in phases.iter().enumerate() {
            let (began, cpu) = (Instant::now(), thread_cpu());
            let until = begin + phase.length;
            let mut schedule = Schedule::new(phase.rate, begin, self.load.thread + at as u64);
            while schedule.next() < until {
                self.send_due(&mut schedule, until, at, &mut all);
                self.receive(&mut all);
                let now = Instant::now();
                if schedule.next() > now {
                    self.wait(schedule.next().min(until) - now);
                }
            }
            begin = Instant::now();
            all[at].elapsed = began.elapsed();
            all[at].used(cpu, began);
        }
        let sent = Instant::now();
        while sent.elapsed() < LOST_AFTER && self.asked.iter().any(Option::is_some) {
            self.wait(Duration::from_millis(5));
            self.receive(&mut all);
        }
        self.asked.iter().flatten().for_each(|&(_, _, phase)| all[phase].dropped += 1);
        all
    }

    /// Sends what is due, at most a few, so that answers are taken meanwhile.
    fn send_due(&mut self, schedule: &mut Schedule, until: Instant, phase: usize, all: &mut [Measurement]) {
        let now = Instant::now();
        for _ in 0..SENT_IN_A_TURN {
            if schedule.next() > now || schedule.next() >= until {
                return;
            }
            let item = self.load.stream.draw_item();
            self.number = self.number.wrapping_add(1);
            self.frame.clear();
            self.frame.extend_from_slice(&self.number.to_be_bytes());
            self.frame.extend_from_slice(&[0, 0, 0, 1, 0, 0]);
            let items = &self.load.items;
            client::get(&mut self.frame, false, [|out: &mut Vec<u8>| items.push_key(item, out)]);
            match self.socket.send(&self.frame) {
                Ok(_) => {}
                // No room at this end: it was not sent, and stays due.
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => return,
                Err(e) => {
                    all[phase].wrong.describe(|| format!("sending: {e}"));
                    all[phase].wrong.errors += 1;
                }
            }
            let asked = (schedule.next(), item, phase);
            // The answer to the request that had this number is not going to come.
            if let Some((_, _, lost)) = self.asked[usize::from(self.number)].replace(asked) {
                all[lost].dropped += 1;
            }
            schedule.advance();
        }
    }

    /// Takes the answers that are there.
    fn receive(&mut self, all: &mut [Measurement]) {
        let mut buffer = [0; 2048];
        loop {
            let len = match self.socket.recv(&mut buffer) {
                Ok(len) => len,
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => return,
                // Such as a refusal that an earlier request met: no program listens any more.
                Err(e) => {
                    if let Some(ran) = all.last_mut() {
                        ran.wrong.connections += 1;
                        ran.wrong.describe(|| format!("receiving: {e}"));
                    }
                    return;
                }
            };
            let now = Instant::now();
            let Some((frame, payload)) = buffer[..len].split_first_chunk::<FRAME_LEN>() else {
                continue;
            };
            let number = usize::from(u16::from_be_bytes([frame[0], frame[1]]));
            let Some((due, item, phase)) = self.asked[number].take() else {
                continue;
            };
            let ran = &mut all[phase];
            ran.operations += 1;
            ran.reads.record(now.saturating_duration_since(due));
            if payload == b"END\r\n" {
                ran.misses += 1;
                continue;
            }
            ran.hits += 1;
            self.key.clear();
            self.load.items.push_key(item, &mut self.key);
            if !is_answer(payload, &self.key, |value| self.load.items.is_value(item, value)) {
                ran.wrong.values += 1;
                ran.wrong
                    .describe(|| format!("the answer is {}", payload[..payload.len().min(80)].escape_ascii()));
            }
        }
    }

    fn wait(&self, time: Duration) {
        let time = Timespec {
            tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(time.subsec_nanos()),
        };
        // An interruption only makes another turn.
        let _ = poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&time));
    }
}

/// A socket that many requests are on the way on.
pub(crate) fn socket(target: &Target) -> io::Result<UdpSocket> {
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
pub(crate) fn is_answer(payload: &[u8], key: &[u8], is_value: impl FnOnce(&[u8]) -> bool) -> bool {
    match client::hear(payload) {
        Heard::Answer {
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
        let workload = workloads::find("20b").unwrap();
        let load = Load {
            stream: Stream::new(
                &workload,
                100,
                &Ranks::new(workload.access, 100),
                Arc::new(AtomicU64::new(100)),
                1,
            ),
            items: workload.items(100),
            fill: false,
            rate: None,
            thread: 1,
        };
        let length = Duration::from_millis(300);
        let phases = [1000.0, 3000.0].map(|rate| Phase { rate, length });
        let ran = Flood::open(&Target::Udp(address), load).unwrap().run_phases(&phases);
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
