//! What one measurement gave: counts, latencies, and everything that went wrong.

use crate::machine::Usage;
use hdrhistogram::Histogram;
use std::time::{Duration, Instant};

/// Longest latency that is recorded as it is, ns: an hour, longer than any run waits.
const LATENCY_NS_MAX: u64 = 3_600_000_000_000;
/// Failures that are described; the rest is counted.
const TROUBLES_MAX: usize = 5;

/// Latencies, to three digits.
#[derive(Clone, Debug)]
pub struct Latencies(Histogram<u64>);

impl Latencies {
    /// None so far.
    ///
    /// # Panics
    ///
    /// Never: the bounds are constants that the histogram takes.
    #[allow(clippy::expect_used, reason = "the bounds are constants that it takes")]
    pub fn new() -> Self {
        Self(Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3).expect("the bounds are sound"))
    }

    /// One more.
    #[inline]
    pub fn record(&mut self, latency: Duration) {
        self.0
            .saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX).max(1));
    }

    /// `count` more of about this many nanoseconds.
    pub fn record_n(&mut self, ns: u64, count: u64) {
        self.0.saturating_record_n(ns.max(1), count);
    }

    /// All of another's.
    pub fn add(&mut self, other: &Self) {
        // Both have the same bounds, which is all that can go wrong.
        let _ = self.0.add(&other.0);
    }

    /// How many.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// How many took longer than this.
    pub fn longer_than(&self, limit: Duration) -> u64 {
        let limit_ns = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        self.recorded().filter(|(ns, _)| *ns > limit_ns).map(|(_, count)| count).sum()
    }

    /// The latency that this share of them (0 to 100) did not exceed, µs; NaN of none.
    #[allow(clippy::cast_precision_loss, reason = "nanoseconds are below 2^53")]
    pub fn percentile_us(&self, percent: f64) -> f64 {
        if self.0.is_empty() {
            return f64::NAN;
        }
        self.0.value_at_percentile(percent) as f64 / 1e3
    }

    /// µs; NaN of none.
    pub fn mean_us(&self) -> f64 {
        if self.0.is_empty() { f64::NAN } else { self.0.mean() / 1e3 }
    }

    /// µs; NaN of none.
    #[allow(clippy::cast_precision_loss, reason = "nanoseconds are below 2^53")]
    pub fn max_us(&self) -> f64 {
        if self.0.is_empty() {
            f64::NAN
        } else {
            self.0.max() as f64 / 1e3
        }
    }

    /// Every latency that occurs, ns, and how often.
    pub fn recorded(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.0
            .iter_recorded()
            .map(|v| (v.value_iterated_to(), v.count_since_last_iteration()))
    }
}

impl Default for Latencies {
    fn default() -> Self {
        Self::new()
    }
}

/// When to measure: what starts before `from` warms up, nothing starts after `until`.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// the first moment that counts
    pub from: Instant,
    /// the last one
    pub until: Instant,
}

impl Window {
    /// Begins now.
    pub fn begin(warmup: Duration, length: Duration) -> Self {
        let from = Instant::now() + warmup;
        Self {
            from,
            until: from + length,
        }
    }

    /// Open loop: a cache that cannot keep up is given as much time again; what is due then stays unanswered.
    pub fn patience_end(&self) -> Instant {
        self.until + (self.until - self.from).max(Duration::from_secs(1))
    }
}

/// What went wrong.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wrong {
    /// values that no write gave to their key, and replies that make no sense
    pub values: u64,
    /// requests answered with an error
    pub errors: u64,
    /// connections that ended or gave no answer
    pub connections: u64,
    /// requests that they took with them
    pub lost: u64,
    /// the first few of all these, in words
    pub described: Vec<String>,
}

impl Wrong {
    /// Whether there is anything.
    pub fn any(&self) -> bool {
        self.values + self.errors + self.connections + self.lost > 0 || !self.described.is_empty()
    }

    /// Says one of them in words, while there is room.
    pub fn describe(&mut self, words: impl FnOnce() -> String) {
        if self.described.len() < TROUBLES_MAX {
            self.described.push(words());
        }
    }

    /// All of another's.
    pub fn add(&mut self, other: &Self) {
        self.values += other.values;
        self.errors += other.errors;
        self.connections += other.connections;
        self.lost += other.lost;
        self.described.extend(
            other
                .described
                .iter()
                .take(TROUBLES_MAX.saturating_sub(self.described.len()))
                .cloned(),
        );
    }

    /// The counts in words.
    fn counts(&self) -> String {
        let count = |n: u64, what: &str| (n > 0).then(|| format!("{n} {what}"));
        let all = [
            count(self.values, "wrong values or replies"),
            count(self.errors, "errors"),
            count(self.connections, "connections lost"),
            count(self.lost, "requests without an answer"),
        ];
        all.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}

/// The counts, then the descriptions.
impl std::fmt::Display for Wrong {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.counts(), self.described.join("; "))
    }
}

/// What one measurement gave, of one thread or of all together.
#[derive(Clone, Debug, Default)]
pub struct Measurement {
    /// operations done; of a get of several keys each key counts
    pub operations: u64,
    /// gets that found their item
    pub hits: u64,
    /// those that did not
    pub misses: u64,
    /// from the first moment that counts to the last answer
    pub elapsed: Duration,
    /// latencies of gets
    pub reads: Latencies,
    /// latencies of everything else
    pub writes: Latencies,
    /// open loop: requests that were due and not answered when patience ended; their latencies so far are among the others
    pub unanswered: u64,
    /// over UDP: requests that were not answered in time, as happens to datagrams; they have the latency that they were waited for
    pub dropped: u64,
    /// what went wrong
    pub wrong: Wrong,
    /// CPU time of the client's threads
    pub client_cpu: Duration,
    /// of the busiest of them: CPU time over elapsed time
    pub client_busiest: f64,
    /// of the server's process, where it is known
    pub server: Option<Usage>,
    /// CPU time of the whole machine, all its processes together
    pub machine: Option<Duration>,
    /// requests that the kernel door answered; `None`: there is none
    pub in_kernel: Option<u64>,
}

impl Measurement {
    /// Joins what another thread did at the same time.
    pub fn add(&mut self, other: &Self) {
        self.operations += other.operations;
        self.hits += other.hits;
        self.misses += other.misses;
        self.elapsed = self.elapsed.max(other.elapsed);
        self.reads.add(&other.reads);
        self.writes.add(&other.writes);
        self.unanswered += other.unanswered;
        self.dropped += other.dropped;
        self.wrong.add(&other.wrong);
        self.client_cpu += other.client_cpu;
        self.client_busiest = self.client_busiest.max(other.client_busiest);
    }

    /// Fills in what this thread used since it had used `cpu_before`, at the first moment that counts.
    pub fn used(&mut self, cpu_before: Duration, from: Instant) {
        self.client_cpu = crate::machine::thread_cpu().saturating_sub(cpu_before);
        self.client_busiest = self.client_cpu.as_secs_f64() / from.elapsed().as_secs_f64().max(1e-9);
    }

    /// Reads and writes together.
    pub fn latencies(&self) -> Latencies {
        let mut all = self.reads.clone();
        all.add(&self.writes);
        all
    }

    /// Operations a second.
    #[allow(clippy::cast_precision_loss, reason = "counts are below 2^53")]
    pub fn rate(&self) -> f64 {
        self.operations as f64 / self.elapsed.as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_the_numbers_recorded() {
        let mut latencies = Latencies::new();
        assert!(latencies.percentile_us(50.0).is_nan() && latencies.mean_us().is_nan());
        for us in 1..=1000 {
            latencies.record(Duration::from_micros(us));
        }
        for (percent, us) in [(50.0, 500.0), (99.0, 990.0), (99.9, 999.0), (100.0, 1000.0)] {
            let found = latencies.percentile_us(percent);
            assert!((found / us - 1.0).abs() < 0.002, "p{percent}: {found}");
        }
        assert!((latencies.mean_us() / 500.5 - 1.0).abs() < 0.002);
        // A value between two that the histogram tells apart counts as the higher one.
        assert!((99..=100).contains(&latencies.longer_than(Duration::from_micros(901))));
    }

    #[test]
    fn what_went_wrong_is_counted_and_the_first_few_described() {
        let mut all = Wrong::default();
        assert!(!all.any());
        for i in 0..10 {
            let mut one = Wrong {
                values: 1,
                ..Wrong::default()
            };
            one.describe(|| format!("number {i}"));
            all.add(&one);
        }
        assert!(all.any());
        assert_eq!((all.values, all.described.len()), (10, TROUBLES_MAX));
        assert_eq!(all.counts(), "10 wrong values or replies");
    }
}
