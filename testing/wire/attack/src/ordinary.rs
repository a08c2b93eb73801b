//! A client of ordinary manners, and how long it waits.
//!
//! Two things are measured from a request to its answer. By a clock on the wall, and the kernel's time stamp of the answer's arrival: so it
//! is no matter when this thread gets a processor. And the processor time that the server's process uses meanwhile: by the clock on the wall
//! a server that is kept busy also waits for processors that others use (this machine's other work, the attacker's too), and that is the
//! kernel's to decide. The kernel moves a running thread's processor time on at its ticks only, some milliseconds apart: it tells long waits
//! from short ones, and says nothing of a percentile below that.
//!
//! Of the wait by the wall, what the one thread that serves this client was ready to run and had no processor does not count as the
//! server's work: the server's other threads may have worked for others all that time. A thread that waits for a lock is not ready to run.

use std::fs::File;
use std::io::{self, IoSliceMut, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use harness::Server;
use nix::cmsg_space;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt, sockopt};
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;

/// What it stores.
const VALUE: &str = "an ordinary value of some length, as caches hold them";

/// A client that asks for one item again and again.
pub struct Ordinary {
    socket: TcpStream,
    /// the processor time that the server's process has used
    used: ClockId,
    /// what the kernel counts for the thread that serves this client, if one thread serves all such clients
    thread: Option<File>,
}

/// How long answers took, each in rising order.
#[derive(Default)]
pub struct Waits {
    /// by the server's own processor time, of which no more counts than was waited
    work: Vec<Duration>,
    /// by the clock on the wall
    wall: Vec<Duration>,
    /// of the wall, how long the thread that serves this client was ready to run and had no processor
    unserved: Vec<Duration>,
}

impl Ordinary {
    /// Connects and stores its item.
    pub fn new(server: &Server) -> Self {
        let socket = TcpStream::connect(server.address()).expect("the server listens");
        socket.set_nodelay(true).expect("a socket");
        setsockopt(&socket, sockopt::ReceiveTimestampns, &true).expect("sockets have timestamps");
        let pid = i32::try_from(server.pid()).expect("a process number");
        let mut ordinary = Self {
            socket,
            used: clock_getcpuclockid(Pid::from_raw(pid)).expect("a process has a clock"),
            thread: serving_thread(pid),
        };
        let set = format!("set ordinary 0 0 {}\r\n{VALUE}\r\n", VALUE.len());
        let (stored, _) = ordinary.ask(&set, &[b"STORED\r\n"]).expect("an ordinary set is answered");
        assert_eq!(stored, 0);
        ordinary
    }

    /// Processor time that the server has used so far.
    fn used(&self) -> Duration {
        clock_gettime(self.used)
            .map(Duration::from)
            .expect("the server's clock can be read")
    }

    /// How long the thread that serves it has been ready to run without a processor, so far (Documentation/scheduler/sched-stats.rst of the
    /// kernel). Zero where that is not known.
    fn unserved(&self) -> Duration {
        let mut room = [0; 128];
        let counted = self.thread.as_ref().and_then(|thread| {
            let len = thread.read_at(&mut room, 0).ok()?;
            let text = std::str::from_utf8(room.get(..len)?).ok()?;
            text.split_whitespace().nth(1)?.parse().ok()
        });
        counted.map_or(Duration::ZERO, Duration::from_nanos)
    }

    /// Asks for something, of which these are the answers that there can be. Which one came, and how long after the request its end was
    /// there.
    fn ask(&mut self, request: &str, answers: &[&[u8]]) -> io::Result<(usize, Duration)> {
        let now = || clock_gettime(ClockId::CLOCK_REALTIME).map(Duration::from);
        self.socket.write_all(request.as_bytes())?;
        // On this host a packet has arrived when it has left.
        let asked = now()?;
        let mut answer = Vec::new();
        loop {
            let mut room = [0; 512];
            let mut stamps = cmsg_space!(TimeSpec);
            let mut parts = [IoSliceMut::new(&mut room)];
            let message = recvmsg::<()>(self.socket.as_raw_fd(), &mut parts, Some(&mut stamps), MsgFlags::empty())?;
            let len = message.bytes;
            let arrived = message.cmsgs()?.find_map(|control| match control {
                ControlMessageOwned::ScmTimestampns(at) => Some(Duration::from(at)),
                _ => None,
            });
            if len == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            answer.extend_from_slice(&room[..len]);
            if let Some(which) = answers.iter().position(|wanted| *wanted == answer) {
                let arrived = arrived.map_or_else(now, Ok)?;
                return Ok((which, arrived.saturating_sub(asked)));
            }
            let is_begun = answers.iter().any(|wanted| wanted.starts_with(&answer));
            assert!(is_begun, "an answer to {request:?}: {}", String::from_utf8_lossy(&answer));
        }
    }

    /// One get; it must be answered in full, or with a miss (the item may be evicted or flushed by others). How long that took.
    pub fn get(&mut self) -> io::Result<Duration> {
        let item = format!("VALUE ordinary 0 {}\r\n{VALUE}\r\nEND\r\n", VALUE.len());
        self.ask("get ordinary\r\n", &[item.as_bytes(), b"END\r\n"])
            .map(|(_, wait)| wait)
    }

    /// The waits of as many gets, one after the other, as go into this time.
    ///
    /// # Panics
    ///
    /// When one is not answered.
    pub fn waits(&mut self, period: Duration) -> Waits {
        let start = Instant::now();
        let mut waits = Waits::default();
        while start.elapsed() < period {
            let begun = Instant::now();
            let (used, unserved) = (self.used(), self.unserved());
            let wait = self.get().unwrap_or_else(|e| panic!("an ordinary get is not answered: {e}"));
            let used = self.used().saturating_sub(used);
            let unserved = self.unserved().saturating_sub(unserved);
            // All of that may have been after the answer, until this thread ran again.
            let after = begun.elapsed().saturating_sub(wait);
            let unserved = unserved.saturating_sub(after).min(wait);
            waits.work.push(work_of(wait, used, unserved));
            waits.wall.push(wait);
            waits.unserved.push(unserved);
        }
        for kind in [&mut waits.work, &mut waits.wall, &mut waits.unserved] {
            kind.sort_unstable();
        }
        waits
    }
}

/// How much of a wait was the server's work, when the server used this much processor time from the request until this thread ran again,
/// and the thread that serves this client had no processor for this long of the wait.
fn work_of(wait: Duration, used: Duration, unserved: Duration) -> Duration {
    // What the server used after its answer no client waited for.
    used.min(wait.saturating_sub(unserved))
}

/// The counts of the thread of a server that serves connections with short turns. `None`: there are several, or the kernel counts nothing.
fn serving_thread(pid: i32) -> Option<File> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let is_named = |task: &Path, name: &str| std::fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.trim_end() == name);
    let tasks: Vec<_> = tasks.filter_map(|task| Some(task.ok()?.path())).collect();
    if tasks.iter().any(|task| is_named(task, "keyway-1")) {
        return None;
    }
    let serving = tasks.iter().find(|task| is_named(task, "keyway-0"))?;
    File::open(serving.join("schedstat")).ok()
}

/// A wait by the server's work, and by the clock on the wall.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wait {
    pub work: Duration,
    pub wall: Duration,
    pub unserved: Duration,
}

impl std::fmt::Display for Wait {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { work, wall, unserved } = self;
        write!(
            f,
            "{work:.1?} of the server's work ({wall:.1?} on the wall, {unserved:.1?} without a processor)"
        )
    }
}

impl Waits {
    /// The longest.
    pub fn worst(&self) -> Wait {
        self.at(self.work.len().saturating_sub(1))
    }

    /// What 99 of 100 are not above.
    pub fn p99(&self) -> Wait {
        self.at(self.work.len() * 99 / 100)
    }

    fn at(&self, place: usize) -> Wait {
        let of = |waits: &[Duration]| waits.get(place).copied().unwrap_or_default();
        Wait {
            work: of(&self.work),
            wall: of(&self.wall),
            unserved: of(&self.unserved),
        }
    }
}

/// The middle ones.
pub fn median(waits: &[Wait]) -> Wait {
    let middle = |mut durations: Vec<Duration>| {
        durations.sort_unstable();
        durations.get(durations.len() / 2).copied().unwrap_or_default()
    };
    Wait {
        work: middle(waits.iter().map(|wait| wait.work).collect()),
        wall: middle(waits.iter().map(|wait| wait.wall).collect()),
        unserved: middle(waits.iter().map(|wait| wait.unserved).collect()),
    }
}

/// For people.
pub fn kib(bytes: u64) -> String {
    format!("{} KiB", bytes >> 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_thread_that_had_no_processor_excuses_a_wait() {
        let work = |wait, used, unserved| {
            let [wait, used, unserved] = [wait, used, unserved].map(Duration::from_millis);
            work_of(wait, used, unserved).as_millis()
        };
        // Held up for all the time, on a quiet machine and on a busy one.
        assert_eq!(work(30, 30, 0), 30);
        assert_eq!(work(200, 30, 170), 30);
        // Others of the server's threads worked while this one had no processor.
        assert_eq!(work(200, 50, 195), 5);
        // It waited for a lock of theirs: then it sleeps.
        assert_eq!(work(200, 30, 0), 30);
        // What was used after the answer.
        assert_eq!(work(5, 60, 0), 5);
    }
}
