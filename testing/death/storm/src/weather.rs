//! What happens to the workers, and when: drawn from a seed.

use harness::Random;

/// Workers that there are at a time, about.
pub const WORKERS: usize = 10;

/// Something that happens to one of the workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// SIGKILL
    Kill,
    /// SIGSTOP, until further notice
    Stop,
    /// a stopped one goes on
    Resume,
    /// a stopped one is killed as it stands
    KillStopped,
    /// one forks a new worker
    Fork,
    /// a new worker is started
    Start,
    /// SIGKILL for the server, and another one is started
    KillServer,
    /// SIGSTOP for the server, for a moment
    StopServer,
}

/// A run of such events.
#[derive(Debug)]
pub struct Weather {
    random: Random,
}

impl Weather {
    /// Of this seed.
    pub fn new(random: Random) -> Self {
        Self { random }
    }

    /// One of `count`.
    pub fn one_of(&mut self, count: usize) -> usize {
        self.random.index(count.max(1))
    }

    /// What happens in the next instant, with this many workers, of which so many stand still.
    pub fn next_act(&mut self, workers: usize, stopped: usize) -> Option<Act> {
        if workers < WORKERS {
            // Half of the new ones come from forks; with no worker to fork, all are started.
            let fork = workers > stopped + 2 && self.random.below(2) == 0;
            return Some(if fork { Act::Fork } else { Act::Start });
        }
        Some(match self.random.below(100) {
            0..5 => Act::Kill,
            5..15 if stopped < WORKERS / 2 => Act::Stop,
            15..24 if stopped > 0 => Act::Resume,
            24..26 if stopped > 0 => Act::KillStopped,
            26 if self.random.below(4) == 0 => Act::KillServer,
            27 => Act::StopServer,
            _ => return None,
        })
    }
}
