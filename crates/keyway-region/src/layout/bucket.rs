//! A bucket, 64 bytes = 8 slots, and how bucket numbers follow from a table word.
//!
//! The table word is the number of buckets. It only grows: split number `n - buckets_initial` makes bucket `n`, from the
//! bucket `n - base` of its round (linear hashing; Litwin, VLDB 1980).

use super::slot::ROUNDS_MAX;

/// Slots of a bucket: one cache line.
pub const SLOTS: usize = 8;
/// Bytes of a bucket.
pub const SIZE: usize = SLOTS * 8;

/// The table at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Table {
    /// present number of buckets
    pub count: u64,
    /// number of buckets when the round began: `initial` times a power of two, at most `count`
    pub base: u64,
}

impl Table {
    /// The table with this many buckets.
    #[inline]
    pub const fn new(count: u64) -> Self {
        debug_assert!(count.is_power_of_two() || count > 1);
        Self {
            count,
            base: 1 << (63 - (count | 1).leading_zeros()),
        }
    }

    /// The bucket of a choice.
    #[inline]
    pub const fn bucket(self, choice: u64) -> u64 {
        let wide = choice & (2 * self.base - 1);
        if wide < self.count { wide } else { choice & (self.base - 1) }
    }

    /// Whether no split of this round has been done.
    #[inline]
    pub fn is_even(self) -> bool {
        self.count == self.base
    }

    /// The next split.
    pub fn next_split(self, initial: u64) -> Split {
        Split {
            source: self.count - self.base,
            target: self.count,
            round: self.base.ilog2() - initial.ilog2(),
        }
    }

    /// The split done last, if any has been.
    pub fn last_split(self, initial: u64) -> Option<Split> {
        (self.count > initial).then(|| Self::new(self.count - 1).next_split(initial))
    }
}

/// One split: its two buckets and its round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Split {
    /// the bucket that is split
    pub source: u64,
    /// the bucket that it makes; also the table word until the split is done
    pub target: u64,
    /// rounds of doubling before this one
    pub round: u32,
}

impl Split {
    /// The split that freezes this bucket with this mark; `None` when the bucket's number is too high for that round.
    pub fn of(bucket: u64, mark: u32, initial: u64) -> Option<Self> {
        let base = initial << mark;
        (mark < ROUNDS_MAX && bucket < base).then_some(Self {
            source: bucket,
            target: bucket + base,
            round: mark,
        })
    }

    /// Whether a key with these choices moves to the new bucket.
    pub fn moves(self, choices: [u64; 3]) -> bool {
        let wide = 2 * (self.target - self.source) - 1;
        choices
            .into_iter()
            .any(|c| (c ^ self.source) & 3 == 0 && c & wide == self.target)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_split_moves_exactly_the_keys_whose_bucket_changes() {
        let initial = 4;
        for count in 4..64 {
            let (before, after) = (Table::new(count), Table::new(count + 1));
            let split = before.next_split(initial);
            assert_eq!(after.last_split(initial), Some(split));
            assert_eq!(Split::of(split.source, split.round, initial), Some(split));
            for first in 0..256u64 {
                let second = (first * 7 + 5) & !1 | (!first & 1);
                let choices = [first, second, (first * 11 + 4) & !3 | (first + 2) & 3];
                let [a, b, c] = choices.map(|c| (before.bucket(c), after.bucket(c)));
                assert!(a.1 & 1 != b.1 & 1 && a.1 & 3 != c.1 & 3 && b.1 & 3 != c.1 & 3);
                let moves = [a, b, c].iter().any(|(old, new)| old != new);
                assert_eq!(
                    split.moves(choices),
                    moves && [a, b, c].iter().any(|(old, _)| *old == split.source)
                );
                for (old, new) in [a, b, c] {
                    assert!(old == new || (old == split.source && new == split.target));
                }
            }
        }
    }
}
