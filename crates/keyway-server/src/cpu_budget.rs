//! How much work a turn may do before other connections get theirs.
//!
//! The work of requests is estimated as they are executed, in nanoseconds of an ordinary processor: a fixed amount per key and per byte.
//! A turn of small requests never reads the clock. A turn that has done more than [`LOOK_EVERY`] is also measured by the clock,
//! because the estimate ignores cold caches and full memory. The turn ends when the estimate or the clock reaches its limit
//! ([`TURN_WORK`], [`TURN_TIME`]), at a place where it can continue later: between requests, between keys of a request, between steps of
//! a dump. The look-up, copy or store of one item cannot be interrupted. A datagram is not continued later: its answer is cut off
//! ([`CpuBudget::is_datagram_over`]).

use std::time::{Duration, Instant};

/// Work of a turn, estimated nanoseconds.
pub(crate) const TURN_WORK: u64 = 60_000;
/// Most work for one datagram.
const DATAGRAM_WORK: u64 = 4 * TURN_WORK;
/// Longest turn by the clock.
const TURN_TIME: Duration = Duration::from_micros(100);
/// Work between two readings of the clock.
const LOOK_EVERY: u64 = TURN_WORK / 4;

/// A request of any kind: decoding, a look-up, an answer.
pub(crate) const REQUEST: u64 = 250;
/// A key of a request with several keys.
pub(crate) const KEY: u64 = 200;
/// One answer to `stats`: it sums counters of all threads of all processes.
pub(crate) const STATS: u64 = 20_000;
/// A bucket or an item of the index, in a walk.
pub(crate) const LOOKED_AT: u64 = 100;
/// Bytes moved per nanosecond, counting Keyway's copies and the kernel's.
const BYTES_IN_NS: u64 = 4;

/// The work that a turn has done so far.
#[derive(Debug, Default)]
pub(crate) struct CpuBudget {
    spent: u64,
    /// the clock is read when `spent` reaches this
    look_at: u64,
    /// the first reading of the clock
    since: Option<Instant>,
    is_over: bool,
}

impl CpuBudget {
    /// Starts a turn.
    pub(crate) fn begin(&mut self) {
        *self = Self {
            look_at: LOOK_EVERY,
            ..Self::default()
        };
    }

    /// Adds this much work.
    #[inline]
    pub(crate) fn spend(&mut self, work: u64) {
        self.spent += work;
        if self.spent >= self.look_at {
            self.look();
        }
    }

    /// Adds the work of moving this many bytes.
    #[inline]
    pub(crate) fn spend_on_bytes(&mut self, count: usize) {
        self.spend(count as u64 / BYTES_IN_NS);
    }

    #[cold]
    fn look(&mut self) {
        let now = Instant::now();
        let since = *self.since.get_or_insert(now);
        self.is_over |= self.spent >= TURN_WORK || now.saturating_duration_since(since) >= TURN_TIME;
        self.look_at = self.spent + LOOK_EVERY;
    }

    /// Whether a datagram's limit is reached. Only the estimate counts: the answer must not depend on how busy the machine is.
    pub(crate) fn is_datagram_over(&self) -> bool {
        self.spent >= DATAGRAM_WORK
    }

    /// Whether the turn should end, so that other connections get theirs.
    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Estimated nanoseconds of this turn so far.
    pub(crate) fn spent(&self) -> u64 {
        self.spent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_requests_do_not_end_a_turn_and_never_look_at_the_clock() {
        let mut cpu_budget = CpuBudget::default();
        cpu_budget.begin();
        (0..20).for_each(|_| cpu_budget.spend(REQUEST + KEY));
        assert!(!cpu_budget.is_over() && cpu_budget.since.is_none());
    }

    #[test]
    fn a_turn_ends_by_its_work_and_the_next_one_begins_anew() {
        let mut cpu_budget = CpuBudget::default();
        cpu_budget.begin();
        let requests = (0..).take_while(|_| {
            cpu_budget.spend(KEY);
            !cpu_budget.is_over()
        });
        assert!(requests.count() as u64 <= TURN_WORK / KEY);
        cpu_budget.begin();
        assert!(!cpu_budget.is_over() && cpu_budget.spent() == 0);
        cpu_budget.spend_on_bytes(1 << 20);
        assert!(cpu_budget.is_over(), "a megabyte is a turn");
    }
}
