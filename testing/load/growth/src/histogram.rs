//! Latencies in buckets that are at most 1/32 wide: enough for percentiles, small enough for the cache.

use std::time::Duration;

/// Buckets for each power of two.
const STEPS: usize = 32;

/// Counts of durations.
#[derive(Clone, Debug)]
pub struct Histogram {
    counts: Vec<u64>,
    max_ns: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            counts: vec![0; 64 * STEPS],
            max_ns: 0,
        }
    }
}

impl Histogram {
    /// Counts one.
    pub fn record(&mut self, duration: Duration) {
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.max_ns = self.max_ns.max(ns);
        if let Some(count) = self.counts.get_mut(bucket(ns)) {
            *count += 1;
        }
    }

    /// How many were counted.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Nanoseconds that this share, in parts of a million, stayed below.
    pub fn below_ns(&self, millionths: u64) -> u64 {
        let wanted = (self.count() * millionths).div_ceil(1_000_000);
        let mut seen = 0;
        for (i, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted && seen > 0 {
                return end_ns(i).min(self.max_ns);
            }
        }
        self.max_ns
    }

    /// "p50 …, p99 …, p99.99 …, max …" in microseconds.
    pub fn show(&self) -> String {
        let us = |ns: u64| format!("{}.{:02}", ns / 1000, ns % 1000 / 10);
        format!(
            "p50 {}, p99 {}, p99.99 {}, max {} µs of {}",
            us(self.below_ns(500_000)),
            us(self.below_ns(990_000)),
            us(self.below_ns(999_900)),
            us(self.max_ns),
            self.count()
        )
    }
}

fn bucket(ns: u64) -> usize {
    if ns < STEPS as u64 {
        return usize::try_from(ns).unwrap_or(0);
    }
    let power = ns.ilog2();
    let step = (ns >> (power - STEPS.ilog2())) & (STEPS as u64 - 1);
    (power - STEPS.ilog2() + 1) as usize * STEPS + usize::try_from(step).unwrap_or(0)
}

/// The first duration above a bucket.
fn end_ns(bucket: usize) -> u64 {
    let (power, step) = (bucket / STEPS, (bucket % STEPS) as u64);
    match power {
        0 => step + 1,
        power => (STEPS as u64 + step + 1) << (power - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_falls_into_a_bucket_that_ends_a_little_above_it() {
        for ns in (0..4096).chain((12..40).map(|p| (1u64 << p) + 12_345 % (1 << p))) {
            let end = end_ns(bucket(ns));
            assert!(end > ns && end <= ns + ns / 32 + 1, "{ns}: {end}");
        }
    }

    #[test]
    fn percentiles_are_those_of_what_was_counted() {
        let mut h = Histogram::default();
        for ns in 1..=10_000 {
            h.record(Duration::from_nanos(ns));
        }
        assert!(h.below_ns(500_000).abs_diff(5_000) < 200 && h.below_ns(990_000).abs_diff(9_900) < 350);
        assert_eq!((h.count(), h.below_ns(1_000_000)), (10_000, 10_000));
    }
}
