//! How long operations take, by the processor's counter, and which calls of a session are measured.

use crate::clock;
use keyway_region::CALLS_PER_SAMPLE;

/// Measures short times. A reading costs some nanoseconds where the processor's counter can be used: it runs at one speed, whatever the
/// processor does. Elsewhere it is CLOCK_MONOTONIC.
#[derive(Debug)]
pub struct Timer {
    has_counter: bool,
    /// both clocks when this was made
    since: (u64, u64),
    /// nanoseconds in a tick of the counter, in units of 2^-32
    scale: u64,
    /// the scale is determined again when the counter has advanced by this many ticks since then
    settle_after: u64,
}

/// After this many nanoseconds the scale stays as it is: a machine that is suspended later, which the counter may not notice, does not
/// change it.
const SETTLED_NS: u64 = 1_000_000_000;

impl Default for Timer {
    fn default() -> Self {
        Self::new()
    }
}

impl Timer {
    /// One to be used by one thread at a time.
    pub fn new() -> Self {
        let has_counter = clock::has_steady_counter();
        let timer = Self {
            has_counter,
            since: (0, 0),
            scale: 1 << 32,
            settle_after: if has_counter { 0 } else { u64::MAX },
        };
        Self {
            since: timer.both(),
            ..timer
        }
    }

    /// A reading of the counter and of the clock, as close to each other as a few attempts allow: the thread may be held up between them.
    fn both(&self) -> (u64, u64) {
        const ATTEMPTS: usize = 3;
        let read = || {
            let (before_ns, ticks) = (clock::monotonic_ns(), self.now());
            (clock::monotonic_ns().saturating_sub(before_ns), ticks, before_ns)
        };
        let closest = std::iter::repeat_with(read).take(ATTEMPTS).min();
        closest.map_or((0, 0), |(_, ticks, ns)| (ticks, ns))
    }

    /// A reading, in ticks.
    #[inline(always)]
    pub fn now(&self) -> u64 {
        if self.has_counter {
            clock::counter()
        } else {
            clock::monotonic_ns()
        }
    }

    /// The nanoseconds between two readings.
    #[inline]
    pub fn ns_between(&mut self, start: u64, end: u64) -> u64 {
        if end.wrapping_sub(self.since.0) >= self.settle_after {
            self.settle();
        }
        // Processors of one machine may differ by a little.
        let ticks = end.saturating_sub(start);
        u64::try_from((u128::from(ticks) * u128::from(self.scale)) >> 32).unwrap_or(u64::MAX)
    }

    /// Compares the counter with the clock, over a longer time each time, so that what the two readings are apart matters less.
    #[cold]
    fn settle(&mut self) {
        let (ticks, ns) = self.both();
        let (ticks, ns) = (ticks.saturating_sub(self.since.0), ns.saturating_sub(self.since.1));
        if ticks > 0 {
            self.scale = u64::try_from((u128::from(ns) << 32) / u128::from(ticks)).unwrap_or(u64::MAX);
        }
        self.settle_after = if ns > SETTLED_NS {
            u64::MAX
        } else {
            ticks.max(1).saturating_mul(2)
        };
    }
}

/// Decides which deletes, touches and flushes of a session are measured (other verbs are when their key is counted): one in
/// 256, after a random number of others, so that a program that makes its calls in a fixed order is measured in all of them.
#[derive(Debug)]
pub(crate) struct Sampler {
    /// calls up to and including the next one that is measured
    left: u32,
    random: u64,
}

impl Sampler {
    /// `seed`: different for each session.
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            // So many at first that the timer has a scale.
            left: CALLS_PER_SAMPLE,
            random: seed | 1,
        }
    }

    /// To be asked once in each call: whether it is to be measured.
    #[inline(always)]
    pub(crate) fn is_due(&mut self) -> bool {
        self.left = self.left.wrapping_sub(1);
        self.left == 0
    }

    /// Begins to count the calls up to the next one. The one that is being measured is asked again first.
    pub(crate) fn begin_again(&mut self) {
        // xorshift64
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        // From 1 to 511: 256 on average.
        let calls = 1 + u32::try_from(self.random % u64::from(2 * CALLS_PER_SAMPLE - 1)).unwrap_or(0);
        self.left = calls + 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_call_in_256_is_measured_at_every_place_of_a_fixed_order() {
        let mut sampler = Sampler::new(0x1234_5678);
        let mut measured = [0u32; 4];
        for call in 0..4 * 256 * 1000 {
            if sampler.is_due() {
                sampler.begin_again();
                assert!(!sampler.is_due(), "the call that is measured");
                measured[call % 4] += 1;
            }
        }
        let all: u32 = measured.iter().sum();
        assert!((3_900..4_100).contains(&all), "{all} of 1,024,000");
        assert!(measured.iter().all(|count| (850..1_150).contains(count)), "{measured:?}");
    }

    #[test]
    fn the_counter_and_the_clock_agree() {
        let mut timer = Timer::new();
        for _ in 0..3 {
            let outer_ns = clock::monotonic_ns();
            let start = timer.now();
            let inner_ns = clock::monotonic_ns();
            std::thread::sleep(std::time::Duration::from_millis(20));
            let least = clock::monotonic_ns() - inner_ns;
            let end = timer.now();
            let most = clock::monotonic_ns() - outer_ns;
            let found = timer.ns_between(start, end);
            assert!(
                (least - least / 100..=most + most / 100).contains(&found),
                "{found} ns, and by the clock {least} to {most} ns"
            );
        }
        assert_eq!(timer.ns_between(5, 4), 0, "two processors");
    }

    #[test]
    fn the_scale_is_determined_from_two_readings() {
        let mut timer = Timer {
            has_counter: true,
            since: (clock::counter().saturating_sub(1), clock::monotonic_ns()),
            scale: 1,
            settle_after: 0,
        };
        let _ = timer.ns_between(1, 2);
        assert!(timer.scale != 1 && timer.settle_after > 0);
    }
}
