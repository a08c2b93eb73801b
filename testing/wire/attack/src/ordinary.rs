//! A client of ordinary manners, and how long it waits.
//!
//! Two things are measured from a request to its answer. By a clock on the wall, and the kernel's time stamp of the answer's arrival: so it
//! is no matter when this thread gets a processor. And the processor time that the server's process uses meanwhile: by the clock on the wall
//! a server that is kept busy also waits for processors that others use (this machine's other work, the attacker's too), and that is the
//! kernel's to decide. The kernel moves a running thread's processor time on at its ticks only, some milliseconds apart: it tells long waits
//! from short ones, and says nothing of a percentile below that.

use std::io::{self, IoSliceMut, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
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
}

/// How long answers took, in rising order.
pub struct Waits {
    /// by the server's own processor time, of which no more counts than was waited
    work: Vec<Duration>,
    /// by the clock on the wall
    wall: Vec<Duration>,
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
        let (mut work, mut wall) = (Vec::new(), Vec::new());
        while start.elapsed() < period {
            let used = self.used();
            let wait = self.get().unwrap_or_else(|e| panic!("an ordinary get is not answered: {e}"));
            // What the server used after its answer, until this thread ran again, no client waited for.
            work.push(self.used().saturating_sub(used).min(wait));
            wall.push(wait);
        }
        work.sort_unstable();
        wall.sort_unstable();
        Waits { work, wall }
    }
}

/// A wait by the server's work, and by the clock on the wall.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wait {
    pub work: Duration,
    pub wall: Duration,
}

impl std::fmt::Display for Wait {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.1?} of the server's work ({:.1?} on the wall)", self.work, self.wall)
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
    }
}

/// For people.
pub fn kib(bytes: u64) -> String {
    format!("{} KiB", bytes >> 10)
}
