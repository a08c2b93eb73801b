//! The traces: seeded, endless, each a mixture of zipfian popularity with what makes caches fail, and the lengths of its items.

use crate::mixture::{Kind, Mixture};
use keyway_bench::workload::{Sizes, key};

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

/// Keys of 16 bytes, values of 64.
pub const SMALL: Sizes = Sizes::Fixed(64);

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
        sizes: SMALL,
        keys_per_held: 100,
    },
    Plan {
        name: "zipf 0.99, cache 10 %",
        kind: Kind::Zipf(0.99),
        sizes: SMALL,
        keys_per_held: 10,
    },
    Plan {
        name: "zipf 0.7, cache 10 %",
        kind: Kind::Zipf(0.7),
        sizes: SMALL,
        keys_per_held: 10,
    },
    Plan {
        name: "zipf 0.99 with scans",
        kind: Kind::Scans,
        sizes: SMALL,
        keys_per_held: 10,
    },
    Plan {
        name: "web-like churn",
        kind: Kind::Churn,
        sizes: SMALL,
        keys_per_held: 10,
    },
    Plan {
        name: "ETC's sizes",
        kind: Kind::Zipf(0.99),
        sizes: Sizes::Etc,
        keys_per_held: 10,
    },
];

/// A trace: the requests, one after the other.
#[derive(Clone, Debug)]
pub struct Trace {
    sizes: Sizes,
    mixture: Mixture,
}

impl Trace {
    /// The trace for a cache that holds about `held` items.
    pub fn new(plan: Plan, held: u64, seed: u64) -> Self {
        Self {
            sizes: plan.sizes,
            mixture: Mixture::new(plan.kind, held * plan.keys_per_held, 10 * held, seed),
        }
    }

    /// The next requests, as many as `requests` has room for.
    pub fn fill(&mut self, requests: &mut Vec<Request>, count: usize) {
        requests.clear();
        for _ in 0..count {
            let id = self.mixture.next_key();
            let (key_len, value_len) = self.sizes.of(id);
            requests.push(Request { id, key_len, value_len });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn a_seed_gives_the_same_requests_again() {
        let requests = |plan, seed| {
            let mut requests = Vec::new();
            Trace::new(plan, 1000, seed).fill(&mut requests, 1000);
            requests
        };
        for plan in ALL {
            assert_eq!(requests(plan, 7), requests(plan, 7));
            assert_ne!(requests(plan, 7), requests(plan, 8));
        }
    }

    #[test]
    fn keys_have_their_lengths_and_differ() {
        let mut seen = HashMap::new();
        let mut key = Vec::new();
        for id in 0..10_000 {
            let (key_len, value_len) = Sizes::Etc.of(id);
            Request { id, key_len, value_len }.key(&mut key);
            assert_eq!(key.len(), key_len);
            assert_eq!(seen.insert(key.clone(), id), None);
        }
    }
}
