//! Requests drawn before the clock starts: which items, by which popularity.

use keyway_bench::workload::{Key, Rng, Sizes, Zipf, key, mix};

/// How requests fall on items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Popularity {
    /// every item alike
    Uniform,
    /// YCSB's scrambled zipfian, exponent 0.99: popular items lie anywhere, not side by side
    Zipf,
}

impl Popularity {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Uniform, Self::Zipf];

    /// Its name in a table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Uniform => "uniform",
            Self::Zipf => "zipf 0.99",
        }
    }
}

/// The indices of `count` requests for `items` items.
pub fn indices(items: u64, popularity: Popularity, count: usize, seed: u64) -> Vec<u64> {
    let mut rng = Rng::new(seed);
    match popularity {
        Popularity::Uniform => (0..count).map(|_| rng.below(items)).collect(),
        Popularity::Zipf => {
            let zipf = Zipf::new(items);
            (0..count).map(|_| mix(zipf.rank(&mut rng)) % items).collect()
        }
    }
}

/// The keys of `count` requests for `items` items.
pub fn keys(items: u64, popularity: Popularity, count: usize, seed: u64) -> Vec<Key> {
    indices(items, popularity, count, seed).into_iter().map(key).collect()
}

/// Writes the key of item `index` to `key` and gives the length of its value.
pub fn item(sizes: Sizes, index: u64, key: &mut Vec<u8>) -> usize {
    let (key_len, value_len) = sizes.of(index);
    key.clear();
    key.extend_from_slice(&self::key(index));
    key.resize(key_len, b'-');
    value_len
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_requests_again() {
        for popularity in Popularity::ALL {
            assert_eq!(indices(1000, popularity, 100, 7), indices(1000, popularity, 100, 7));
            assert_ne!(indices(1000, popularity, 100, 7), indices(1000, popularity, 100, 8));
            assert!(indices(1000, popularity, 10_000, 1).iter().all(|&i| i < 1000));
        }
    }
}
