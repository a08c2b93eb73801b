//! The counters as they were at one moment, and what two moments say of the time between.

use crate::atomics::Relaxed;
use crate::heap::List;
use crate::hot::Hot;
use crate::layout::hot::{By, TABLES, group};
use core::cmp::Reverse;

/// A counter as it was read. Other processes may have written anything there: it is checked when it is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    hash: u64,
    weight: u64,
    error: u64,
    spread: u64,
}

/// The counters as they were at one moment.
#[derive(Debug, Default)]
pub struct HotSnapshot {
    groups: usize,
    tables: [List<Seen>; TABLES],
}

/// What is known of one key, in operations or bytes of all sessions.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HotRange {
    /// its hash
    pub hash: u64,
    /// counted for this key while it had the counter; the best estimate
    pub estimate: u64,
    /// the same and what others counted there before it: a key cannot have more, apart from the sampling
    pub bound: u64,
    /// the variance of the estimate, as the samples have it
    pub variance: f64,
}

impl HotRange {
    /// What sampling adds to and takes from an estimate with this variance: two standard deviations, so that the truth is outside about
    /// once in twenty times.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "not negative, and such a cast ends at the largest number"
    )]
    pub fn sampling_error(variance: f64) -> u64 {
        (2.0 * variance.max(0.0).sqrt()) as u64
    }

    /// At least this much.
    pub fn at_least(&self) -> u64 {
        self.estimate.saturating_sub(Self::sampling_error(self.variance))
    }

    /// At most this much.
    pub fn at_most(&self) -> u64 {
        self.bound.saturating_add(Self::sampling_error(self.variance))
    }
}

impl Hot {
    /// Reads all hot-key counters.
    pub fn hot_snapshot(&self) -> HotSnapshot {
        let groups = self.mapped.layout().hot_groups;
        let table = |by| {
            let mut seen = List::with_capacity(groups * crate::layout::hot::WAYS);
            for number in 0..groups {
                for counter in &self.hot_group(by, number).counters {
                    seen.push(Seen {
                        hash: counter.hash.load(Relaxed),
                        weight: counter.weight.load(Relaxed),
                        error: counter.error.load(Relaxed),
                        spread: counter.spread.load(Relaxed),
                    });
                }
            }
            seen
        };
        HotSnapshot {
            groups,
            tables: By::ALL.map(table),
        }
    }
}

impl HotSnapshot {
    /// What was counted of each key, all in all or since an earlier snapshot of the same region; the hottest key first. Counters that
    /// cannot be what they say are left out.
    pub fn ranges(&self, by: By, since: Option<&Self>) -> Vec<HotRange> {
        let nothing = Vec::new();
        let table = |snapshot: &Self| snapshot.tables.get(by as usize).map(|table| table.as_slice().to_vec());
        let now = table(self).unwrap_or_default();
        let then = since.and_then(table).unwrap_or(nothing);
        let mut ranges: Vec<HotRange> = now
            .iter()
            .enumerate()
            .filter_map(|(number, seen)| {
                let old = then.get(number).copied().unwrap_or_default();
                let is_here = seen.hash != 0 && group(seen.hash, self.groups) == number / crate::layout::hot::WAYS;
                let grown = seen.weight.checked_sub(old.weight).filter(|grown| is_here && *grown > 0)?;
                let spread = |seen: &Seen| f64::from_bits(seen.spread);
                let has_had_it = (old.hash, old.error) == (seen.hash, seen.error) && spread(&old) <= spread(seen);
                let (own, variance) = match has_had_it {
                    true => (grown, spread(seen) - spread(&old)),
                    false => (seen.weight.checked_sub(seen.error)?.min(grown), spread(seen)),
                };
                let range = HotRange {
                    hash: seen.hash,
                    estimate: own,
                    bound: grown,
                    variance,
                };
                variance.is_finite().then_some(range)
            })
            .collect();
        ranges.sort_by_key(|range| Reverse((range.estimate, range.bound, range.hash)));
        ranges
    }
}
