//! A client of ordinary manners, and how long it waits.
//!
//! What counts is what the server does between a request and its answer: the processor time that its process uses meanwhile. By a clock on
//! the wall, a server that is kept busy also waits for processors that others use (this machine's other work, the attacker's too), and
//! that is the kernel's to decide. Both are shown.

use std::io;
use std::time::{Duration, Instant};

use harness::{Server, Transport, Wire};
use nix::time::{ClockId, clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;

/// A client that asks for one item again and again.
pub struct Ordinary {
    wire: Wire,
    value: String,
    /// the processor time that the server's process has used
    used: ClockId,
}

/// How long answers took, in rising order.
pub struct Waits {
    /// by the server's own processor time
    work: Vec<Duration>,
    /// by the clock on the wall
    wall: Vec<Duration>,
}

impl Ordinary {
    /// Connects and stores its item.
    pub fn new(server: &Server) -> Self {
        let mut wire = server.connect(Transport::Tcp);
        let value = "an ordinary value of some length, as caches hold them".to_owned();
        let stored = wire
            .ask(&format!("set ordinary 0 0 {}\r\n{value}", value.len()))
            .expect("an ordinary set is answered");
        assert_eq!(stored, "STORED");
        let pid = i32::try_from(server.pid()).expect("a process number");
        Self {
            wire,
            value,
            used: clock_getcpuclockid(Pid::from_raw(pid)).expect("a process has a clock"),
        }
    }

    /// Processor time that the server has used so far.
    fn used(&self) -> Duration {
        clock_gettime(self.used)
            .map(Duration::from)
            .expect("the server's clock can be read")
    }

    /// One get; it must be answered in full, or with a miss (the item may be evicted or flushed by others).
    pub fn get(&mut self) -> io::Result<()> {
        let line = self.wire.ask("get ordinary")?;
        if line == "END" {
            return Ok(());
        }
        assert_eq!(line, format!("VALUE ordinary 0 {}", self.value.len()));
        assert_eq!(self.wire.line()?, self.value.as_bytes());
        assert_eq!(self.wire.line()?, b"END");
        Ok(())
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
            let (asked, used) = (Instant::now(), self.used());
            self.get().unwrap_or_else(|e| panic!("an ordinary get is not answered: {e}"));
            work.push(self.used().saturating_sub(used));
            wall.push(asked.elapsed());
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

/// One of a server's statistics.
pub fn stat(server: &Server, name: &str) -> u64 {
    let mut wire = server.connect(Transport::Tcp);
    wire.send(b"stats\r\n").expect("stats can be asked for");
    let prefix = format!("STAT {name} ");
    let mut found = None;
    loop {
        let line = String::from_utf8_lossy(&wire.line().expect("stats are answered")).into_owned();
        if line == "END" {
            return found.unwrap_or_else(|| panic!("stats has no {name}"));
        }
        if let Some(value) = line.strip_prefix(&prefix) {
            found = value.parse().ok();
        }
    }
}

/// For people.
pub fn kib(bytes: u64) -> String {
    format!("{} KiB", bytes >> 10)
}
