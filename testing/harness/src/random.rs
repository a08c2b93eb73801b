//! Seeded randomness: SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014), which needs
//! no dependency. Seeds are printed, so that a failing run can be repeated with `KEYWAY_TESTS_SEED`.

use std::time::{SystemTime, UNIX_EPOCH};

/// Between two states of a stream.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The number that a stream of this seed begins with: a hash of 64 bits.
pub fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(STEP);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A stream of pseudorandom numbers.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The stream of one seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The seed of `KEYWAY_TESTS_SEED`, or one from the clock; says which.
    ///
    /// # Panics
    ///
    /// When the variable is set and is no number.
    pub fn seed_for(test: &str) -> u64 {
        let seed = match std::env::var("KEYWAY_TESTS_SEED") {
            Ok(text) => text
                .parse()
                .unwrap_or_else(|e| panic!("KEYWAY_TESTS_SEED={text}: {e}; a number below 2^64 is needed")),
            Err(_) => {
                let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                clock.as_secs() << 30 | u64::from(clock.subsec_nanos())
            }
        };
        crate::say(&format!("{test}: KEYWAY_TESTS_SEED={seed}"));
        seed
    }

    /// A stream that does not depend on how far this one is used.
    pub fn fork(&self, index: u64) -> Self {
        let mut child = Self(self.0 ^ index.wrapping_mul(0xd134_2543_de82_ef95));
        child.next();
        child
    }

    /// The next number.
    #[allow(clippy::should_implement_trait, reason = "an endless stream has no use for Option")]
    pub fn next(&mut self) -> u64 {
        let number = mix(self.0);
        self.0 = self.0.wrapping_add(STEP);
        number
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        // 128-bit multiplication (Lemire 2019) without the rejection step: the bias does not matter here
        let wide = u128::from(self.next()) * u128::from(bound);
        u64::try_from(wide >> 64).unwrap_or(0)
    }

    /// A number below `bound`, which is not 0, as an index.
    pub fn index(&mut self, bound: usize) -> usize {
        usize::try_from(self.below(bound as u64)).unwrap_or(0)
    }

    /// Random bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(len + 8);
        while out.len() < len {
            out.extend_from_slice(&self.next().to_le_bytes());
        }
        out.truncate(len);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_its_stream() {
        let stream = |seed| {
            let mut random = Random::new(seed);
            (0..100).map(|_| random.below(1000)).collect::<Vec<_>>()
        };
        assert_eq!(stream(7), stream(7));
        assert_ne!(stream(7), stream(8));
        assert!(stream(7).iter().all(|&n| n < 1000));
        assert_eq!(Random::new(1).bytes(13).len(), 13);
    }
}
