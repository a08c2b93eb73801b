//! A load as both generators see it: which operations, how hard, and when.

use crate::items::Items;
use crate::mix::Stream;
use crate::workload::Rng;
use std::time::{Duration, Instant};

/// What one thread does.
pub struct Load {
    /// what it asks
    pub stream: Stream,
    /// of which items
    pub items: Items,
    /// what a get missed is stored
    pub fill: bool,
    /// open loop: operations a second of this thread; `None`: the next one starts when one has ended
    pub rate: Option<f64>,
    /// tells this thread's writes from those of others
    pub thread: u64,
}

impl Load {
    /// Numbers for this thread's writes, none of which another thread has.
    pub fn first_write(&self) -> u64 {
        self.thread << 40
    }

    /// When its operations are due, from `begin` on; `None` in a closed loop.
    pub fn schedule(&self, begin: Instant) -> Option<Schedule> {
        self.rate.map(|rate| Schedule::new(rate, begin, self.thread))
    }
}

/// The moments at which operations of an open loop are due: a Poisson process, as of many clients that know nothing of each
/// other. It depends on the seed alone, never on what the server does.
#[derive(Clone, Debug)]
pub struct Schedule {
    rng: Rng,
    mean_gap_s: f64,
    next: Instant,
}

impl Schedule {
    /// `rate` operations a second from `begin` on.
    pub fn new(rate: f64, begin: Instant, seed: u64) -> Self {
        let mut schedule = Self {
            rng: Rng::new(seed ^ 0x5c4e_d01e),
            mean_gap_s: 1.0 / rate,
            next: begin,
        };
        schedule.advance();
        schedule
    }

    /// When the next operation is due.
    pub fn next(&self) -> Instant {
        self.next
    }

    /// Goes on to the one after it.
    pub fn advance(&mut self) {
        self.next += Duration::from_secs_f64(-self.rng.unit().ln() * self.mean_gap_s);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schedule_has_its_rate_and_its_seed() {
        let begin = Instant::now();
        let mut schedule = Schedule::new(1000.0, begin, 1);
        let (mut same, mut due) = (schedule.clone(), 0_u32);
        while schedule.next() < begin + Duration::from_secs(20) {
            due += 1;
            assert_eq!(schedule.next(), same.next());
            schedule.advance();
            same.advance();
        }
        // 20,000 of a Poisson process: the standard deviation is 141.
        assert!((19_000..21_000).contains(&due), "{due}");
    }
}
