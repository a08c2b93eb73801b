//! Endless mixtures of zipfian popularity with what makes caches fail: sequential sweeps, and ranks that drift while new keys come and
//! others are asked for once. Each request depends on those before it, so they are drawn while they are asked for.
//!
//! Keys are numbers: those with a rank begin at 0, and none of the others is below 2^40.

use keyway_bench::workload::{Rng, Zipf, mix};

/// What is mixed in.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// nothing: zipfian with this exponent, below 1
    Zipf(f64),
    /// zipf 0.99, and one request in five belongs to a sequential sweep over ten times as many keys as the cache holds
    Scans,
    /// zipf 0.99 whose ranks drift; 2 % of the requests bring a new key into the ranks, 10 % are for keys asked for once
    Churn,
    /// one request in twenty brings a new key; the others are for zipf 0.99 keys, the newest first (YCSB's workload D)
    Latest,
}

/// Numbers of keys outside the ranks begin here.
const SWEPT: u64 = 1 << 40;
const ONCE: u64 = 2 << 40;
const NEW: u64 = 3 << 40;

/// The requests, one after the other.
#[derive(Clone, Debug)]
pub struct Mixture {
    kind: Kind,
    rng: Rng,
    zipf: Zipf,
    keys: u64,
    swept: u64,
    sweep_len: u64,
    /// how many keys have been new so far
    fresh: u64,
    /// key of each rank, where ranks drift
    ranks: Vec<u64>,
}

impl Mixture {
    /// Of `keys` keys with a rank, for a cache that holds a tenth of `sweep_len`.
    pub fn new(kind: Kind, keys: u64, sweep_len: u64, seed: u64) -> Self {
        let exponent = match kind {
            Kind::Zipf(exponent) => exponent,
            Kind::Scans | Kind::Churn | Kind::Latest => Zipf::THETA,
        };
        let mut rng = Rng::new(mix(seed));
        Self {
            kind,
            zipf: Zipf::with(keys, exponent),
            keys,
            swept: rng.clone().below(sweep_len),
            sweep_len,
            fresh: 0,
            ranks: if kind == Kind::Churn {
                (0..keys).collect()
            } else {
                Vec::new()
            },
            rng: Rng::new(rng.bits()),
        }
    }

    /// The next request's key.
    #[inline]
    pub fn next_key(&mut self) -> u64 {
        let dice = self.rng.below(100);
        match self.kind {
            Kind::Scans if dice < 20 => {
                self.swept = (self.swept + 1) % self.sweep_len;
                SWEPT + self.swept
            }
            Kind::Churn if dice < 10 => ONCE + self.fresh(),
            Kind::Churn => self.drifting(dice),
            Kind::Latest => self.latest(dice),
            Kind::Zipf(_) | Kind::Scans => self.zipf.rank(&mut self.rng),
        }
    }

    fn fresh(&mut self) -> u64 {
        self.fresh += 1;
        self.fresh - 1
    }

    fn latest(&mut self, dice: u64) -> u64 {
        let rank = if dice < 5 {
            self.fresh();
            0
        } else {
            self.zipf.rank(&mut self.rng)
        };
        (self.keys + self.fresh).saturating_sub(1 + rank)
    }

    fn drifting(&mut self, dice: u64) -> u64 {
        let mut rank = || usize::try_from(self.zipf.rank(&mut self.rng)).unwrap_or(0);
        let (one, other) = (rank(), rank());
        match dice {
            10..12 => self.ranks[one] = NEW + self.fresh(),
            12..14 => self.ranks.swap(one, other),
            _ => {}
        }
        self.ranks[one]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn keys(kind: Kind, count: usize, seed: u64) -> Vec<u64> {
        let mut mixture = Mixture::new(kind, 10_000, 10_000, seed);
        (0..count).map(|_| mixture.next_key()).collect()
    }

    fn share(keys: &[u64], from: u64) -> f64 {
        keys.iter().filter(|key| (from..from + (1 << 40)).contains(*key)).count() as f64 / keys.len() as f64
    }

    #[test]
    fn a_seed_gives_the_same_requests_again() {
        for kind in [Kind::Zipf(0.7), Kind::Scans, Kind::Churn, Kind::Latest] {
            assert_eq!(keys(kind, 1000, 7), keys(kind, 1000, 7));
            assert_ne!(keys(kind, 1000, 7), keys(kind, 1000, 8));
        }
    }

    #[test]
    fn one_request_in_five_sweeps_and_sweeps_are_sequential() {
        let scans = keys(Kind::Scans, 100_000, 1);
        assert!((share(&scans, SWEPT) - 0.2).abs() < 0.01);
        let swept: Vec<u64> = scans.into_iter().filter(|key| *key >= SWEPT).map(|key| key - SWEPT).collect();
        assert!(swept.windows(2).all(|pair| pair[1] == (pair[0] + 1) % 10_000));
    }

    #[test]
    fn the_newest_keys_are_asked_for_most() {
        let latest = keys(Kind::Latest, 100_000, 1);
        let newest = latest.iter().max().copied().unwrap_or(0);
        assert!(
            (14_800..15_300).contains(&newest),
            "{newest}: a twentieth of the requests brings one"
        );
        let late = latest[50_000..].iter().filter(|key| **key >= 12_000).count();
        assert!(late > 25_000, "{late} of 50,000");
    }

    #[test]
    fn churn_has_its_shares_of_keys_asked_for_once_and_of_new_ones() {
        let churn = keys(Kind::Churn, 100_000, 1);
        assert!((share(&churn, ONCE) - 0.1).abs() < 0.01);
        let mut counts = HashMap::new();
        churn.iter().for_each(|key| *counts.entry(*key).or_insert(0) += 1);
        assert!(
            churn
                .iter()
                .filter(|key| **key >= ONCE && **key < NEW)
                .all(|key| counts[key] == 1)
        );
        let brought = counts.keys().filter(|key| **key >= NEW).count() as f64 / churn.len() as f64;
        assert!((0.018..0.022).contains(&brought), "{brought}");
    }
}
