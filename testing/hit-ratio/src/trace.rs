//! The traces: seeded, endless, each a mixture of zipfian popularity with what makes caches fail.

use keyway_bench::workload::{KEY_LEN, Rng, key, mix};

/// Ranks by Gray et al., "Quickly Generating Billion-Record Synthetic Databases" (SIGMOD 1994), as YCSB uses it.
#[derive(Clone, Debug)]
pub struct Zipf {
    items: u64,
    theta: f64,
    zeta: f64,
    eta: f64,
}

/// Terms of the harmonic sum that are added up one by one; an integral stands for the rest.
const TERMS: u64 = 100_000;

#[allow(clippy::cast_precision_loss, reason = "item counts are below 2^53")]
impl Zipf {
    /// Ranks below `items`, exponent `theta` below 1.
    pub fn new(items: u64, theta: f64) -> Self {
        let sum = |n: u64| (1..=n).map(|i| (i as f64).powf(-theta)).sum::<f64>();
        let integral = |n: f64| n.powf(1.0 - theta) / (1.0 - theta);
        let tail = if items > TERMS {
            integral(items as f64 + 0.5) - integral(TERMS as f64 + 0.5)
        } else {
            0.0
        };
        let zeta = sum(items.min(TERMS)) + tail;
        let eta = (1.0 - (2.0 / items as f64).powf(1.0 - theta)) / (1.0 - sum(2) / zeta);
        Self { items, theta, zeta, eta }
    }

    /// A rank, 0 the most popular.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "0 <= rank <= items, and then bounded"
    )]
    pub fn rank(&self, rng: &mut Rng) -> u64 {
        let u = rng.unit();
        let uz = u * self.zeta;
        if uz < 1.0 {
            0
        } else if uz < 1.0 + 0.5_f64.powf(self.theta) {
            1
        } else {
            let rank = self.items as f64 * (self.eta * u - self.eta + 1.0).powf(1.0 / (1.0 - self.theta));
            (rank as u64).min(self.items - 1)
        }
    }
}

/// A request: a key, by its number, and the lengths of its item, which are the key's own for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// the key's number
    pub id: u64,
    /// bytes of the key
    pub key_len: usize,
    /// bytes of the value
    pub value_len: usize,
}

impl Request {
    /// The key: 16 hexadecimal digits, different for every number, and a filler.
    pub fn key(&self, out: &mut Vec<u8>) {
        out.clear();
        out.extend_from_slice(&key(self.id));
        out.resize(self.key_len, b'-');
    }
}

/// Bytes of a fixed value.
const VALUE_LEN: usize = 64;

/// How long keys and values are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sizes {
    /// keys of 16 bytes, values of 64
    Fixed,
    /// Facebook's ETC pool as fitted by Atikoglu et al. (SIGMETRICS 2012)
    Etc,
}

/// P(value size = 0..14) of ETC; larger ones follow a generalized Pareto distribution.
const ETC_SMALL: [f64; 15] = [
    0.00536, 0.00047, 0.17820, 0.09239, 0.00018, 0.02740, 0.00065, 0.00606, 0.00023, 0.00837, 0.00837, 0.08989, 0.00092, 0.00326,
    0.01980,
];
/// Longest value drawn, bytes: below memcached's largest item with any key.
const VALUE_LEN_MAX: f64 = 1_000_000.0;

impl Sizes {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded by constants")]
    fn of(self, id: u64) -> Request {
        let fixed = Request {
            id,
            key_len: KEY_LEN,
            value_len: VALUE_LEN,
        };
        if self == Self::Fixed {
            return fixed;
        }
        let mut rng = Rng::new(mix(id ^ 0xe7c));
        // Generalized extreme value distribution; keys hold 16 digits, so that they differ: 1 in 200 of ETC's is shorter.
        let key_len = 30.7984 + 8.20449 * ((-rng.unit().ln()).powf(-0.078_688) - 1.0) / 0.078_688;
        let mut left = rng.unit();
        for (value_len, share) in ETC_SMALL.iter().enumerate() {
            left -= share;
            if left < 0.0 {
                let key_len = key_len.clamp(16.0, 250.0) as usize;
                return Request { id, key_len, value_len };
            }
        }
        let value_len = 15.0 + 214.476 * (rng.unit().powf(-0.348_238) - 1.0) / 0.348_238;
        Request {
            id,
            key_len: key_len.clamp(16.0, 250.0) as usize,
            value_len: value_len.min(VALUE_LEN_MAX) as usize,
        }
    }
}

/// What is special about a trace.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// zipfian with this exponent
    Zipf(f64),
    /// zipf 0.99, and one request in five belongs to a sequential sweep over ten times as many keys as the cache holds
    Scans,
    /// zipf 0.99 whose ranks drift; 2 % of the requests bring a new key into the ranks, 10 % are for keys asked for once
    Churn,
}

/// A trace to be generated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plan {
    /// its name in the table
    pub name: &'static str,
    /// what is special about it
    pub kind: Kind,
    /// lengths of keys and values
    pub sizes: Sizes,
    /// keys for each that the cache holds
    pub keys_per_held: u64,
}

/// All of them.
pub const ALL: [Plan; 6] = [
    Plan {
        name: "zipf 0.99, cache 1 %",
        kind: Kind::Zipf(0.99),
        sizes: Sizes::Fixed,
        keys_per_held: 100,
    },
    Plan {
        name: "zipf 0.99, cache 10 %",
        kind: Kind::Zipf(0.99),
        sizes: Sizes::Fixed,
        keys_per_held: 10,
    },
    Plan {
        name: "zipf 0.7, cache 10 %",
        kind: Kind::Zipf(0.7),
        sizes: Sizes::Fixed,
        keys_per_held: 10,
    },
    Plan {
        name: "zipf 0.99 with scans",
        kind: Kind::Scans,
        sizes: Sizes::Fixed,
        keys_per_held: 10,
    },
    Plan {
        name: "web-like churn",
        kind: Kind::Churn,
        sizes: Sizes::Fixed,
        keys_per_held: 10,
    },
    Plan {
        name: "ETC's sizes",
        kind: Kind::Zipf(0.99),
        sizes: Sizes::Etc,
        keys_per_held: 10,
    },
];

/// Numbers of keys outside the ranks begin here.
const SWEPT: u64 = 1 << 40;
const ONCE: u64 = 2 << 40;
const NEW: u64 = 3 << 40;

/// A trace: the requests, one after the other.
#[derive(Clone, Debug)]
pub struct Trace {
    plan: Plan,
    rng: Rng,
    zipf: Zipf,
    swept: u64,
    sweep_len: u64,
    once: u64,
    new: u64,
    /// key of each rank, where ranks drift
    ranks: Vec<u64>,
}

impl Trace {
    /// The trace for a cache that holds about `held` items.
    pub fn new(plan: Plan, held: u64, seed: u64) -> Self {
        let keys = held * plan.keys_per_held;
        let theta = match plan.kind {
            Kind::Zipf(theta) => theta,
            Kind::Scans | Kind::Churn => 0.99,
        };
        Self {
            plan,
            rng: Rng::new(mix(seed)),
            zipf: Zipf::new(keys, theta),
            swept: 0,
            sweep_len: 10 * held,
            once: 0,
            new: 0,
            ranks: if plan.kind == Kind::Churn {
                (0..keys).collect()
            } else {
                Vec::new()
            },
        }
    }

    /// The next requests, as many as `requests` has room for.
    pub fn fill(&mut self, requests: &mut Vec<Request>, count: usize) {
        requests.clear();
        for _ in 0..count {
            let id = self.next_id();
            requests.push(self.plan.sizes.of(id));
        }
    }

    fn next_id(&mut self) -> u64 {
        let dice = self.rng.below(100);
        match self.plan.kind {
            Kind::Scans if dice < 20 => {
                self.swept = (self.swept + 1) % self.sweep_len;
                SWEPT + self.swept
            }
            Kind::Churn if dice < 10 => {
                self.once += 1;
                ONCE + self.once
            }
            Kind::Churn => self.drifting(dice),
            Kind::Zipf(_) | Kind::Scans => self.zipf.rank(&mut self.rng),
        }
    }

    fn drifting(&mut self, dice: u64) -> u64 {
        let mut rank = || usize::try_from(self.zipf.rank(&mut self.rng)).unwrap_or(0);
        let (one, other) = (rank(), rank());
        match dice {
            10..12 => {
                self.new += 1;
                self.ranks[one] = NEW + self.new;
            }
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

    fn ids(plan: Plan, count: usize, seed: u64) -> Vec<u64> {
        let mut requests = Vec::new();
        Trace::new(plan, 1000, seed).fill(&mut requests, count);
        requests.iter().map(|r| r.id).collect()
    }

    #[test]
    fn a_seed_gives_the_same_requests_again() {
        for plan in ALL {
            assert_eq!(ids(plan, 1000, 7), ids(plan, 1000, 7));
            assert_ne!(ids(plan, 1000, 7), ids(plan, 1000, 8));
        }
    }

    #[test]
    fn the_most_popular_key_has_the_share_that_theory_gives() {
        for theta in [0.7, 0.99] {
            let zipf = Zipf::new(10_000, theta);
            let exact: f64 = (1..=10_000).map(|i| f64::from(i).powf(-theta)).sum();
            let mut rng = Rng::new(mix(1));
            let first = (0..400_000).filter(|_| zipf.rank(&mut rng) == 0).count();
            let share = first as f64 / 400_000.0;
            assert!((share - 1.0 / exact).abs() < 0.002, "{theta}: {share}");
        }
        // The integral that stands for the sum's tail is as good as the sum.
        let exact: f64 = (1..=1_000_000).map(|i| f64::from(i).powf(-0.99)).sum();
        assert!((Zipf::new(1_000_000, 0.99).zeta - exact).abs() < 1e-6);
    }

    #[test]
    fn each_mixture_has_its_shares() {
        let of = |name: &str| *ALL.iter().find(|p| p.name == name).unwrap();
        let share = |ids: &[u64], from: u64| {
            ids.iter().filter(|id| (from..from + (1 << 40)).contains(*id)).count() as f64 / ids.len() as f64
        };
        let scans = ids(of("zipf 0.99 with scans"), 100_000, 1);
        assert!((share(&scans, SWEPT) - 0.2).abs() < 0.01);
        let churn = ids(of("web-like churn"), 100_000, 1);
        assert!((share(&churn, ONCE) - 0.1).abs() < 0.01);
        let mut counts = HashMap::new();
        churn.iter().for_each(|id| *counts.entry(*id).or_insert(0) += 1);
        assert!(churn.iter().filter(|id| **id >= ONCE && **id < NEW).all(|id| counts[id] == 1));
        let brought = counts.keys().filter(|id| **id >= NEW).count() as f64 / churn.len() as f64;
        assert!((0.018..0.022).contains(&brought), "{brought}");
    }

    #[test]
    fn keys_have_their_lengths_and_differ() {
        let mut seen = HashMap::new();
        let mut key = Vec::new();
        for id in 0..10_000 {
            let request = Sizes::Etc.of(id);
            request.key(&mut key);
            assert_eq!((key.len(), Sizes::Etc.of(id)), (request.key_len, request));
            assert_eq!(seen.insert(key.clone(), id), None);
        }
    }
}
