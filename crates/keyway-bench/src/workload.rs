//! Keys, values and their popularity: seeded, so that a run can be repeated, and drawn before the clock starts.

use crate::mix::Access;

/// Length of the fixed keys, bytes.
pub const KEY_LEN: usize = 16;
/// A fixed-length key.
pub type Key = [u8; KEY_LEN];

/// SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): enough for workloads, and eight lines.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A stream of its own for every seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `n`, uniform but for a bias of n / 2^64.
    pub fn below(&mut self, n: u64) -> u64 {
        let wide = u128::from(self.bits()) * u128::from(n);
        u64::try_from(wide >> 64).unwrap_or(0) // a product of two u64, shifted by 64, is below 2^64
    }

    /// A number in the open interval (0, 1).
    #[allow(clippy::cast_precision_loss, reason = "53 bits are exact in an f64")]
    pub fn unit(&mut self) -> f64 {
        ((self.bits() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
    }
}

/// SplitMix64's finalizer: a bijection of the 64-bit numbers.
pub fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The key of item `index`: 16 hexadecimal digits, different for every index, alike for no two neighbours.
pub fn key(index: u64) -> Key {
    let mut key = [0; KEY_LEN];
    let mut bits = mix(index);
    for digit in &mut key {
        *digit = b"0123456789abcdef"[usize::from(bits.to_le_bytes()[0] & 15)];
        bits >>= 4;
    }
    key
}

/// Ranks by Gray et al., "Quickly Generating Billion-Record Synthetic Databases" (SIGMOD 1994), as YCSB uses it.
#[derive(Clone, Debug)]
pub struct Zipf {
    items: u64,
    zeta: f64,
    eta: f64,
    theta: f64,
    alpha: f64,
}

impl Zipf {
    /// YCSB's default exponent.
    pub const THETA: f64 = 0.99;
    /// Terms of the harmonic sum that are added up one by one; an integral stands for the rest.
    const TERMS: u64 = 100_000;

    /// Ranks below `items`, at least 1, with YCSB's exponent.
    pub fn new(items: u64) -> Self {
        Self::with(items, Self::THETA)
    }

    /// With another exponent, below 1.
    #[allow(clippy::cast_precision_loss, reason = "item counts are below 2^53")]
    pub fn with(items: u64, theta: f64) -> Self {
        let sum = |n: u64| (1..=n).map(|i| (i as f64).powf(-theta)).sum::<f64>();
        let integral = |n: f64| n.powf(1.0 - theta) / (1.0 - theta);
        let tail = if items > Self::TERMS {
            integral(items as f64 + 0.5) - integral(Self::TERMS as f64 + 0.5)
        } else {
            0.0
        };
        let zeta = sum(items.min(Self::TERMS)) + tail;
        let eta = (1.0 - (2.0 / items as f64).powf(1.0 - theta)) / (1.0 - sum(2) / zeta);
        Self {
            items,
            zeta,
            eta,
            theta,
            alpha: 1.0 / (1.0 - theta),
        }
    }

    /// A rank, 0 the most popular.
    #[allow(clippy::cast_precision_loss, reason = "item counts are below 2^53")]
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
            1.min(self.items - 1)
        } else {
            let rank = self.items as f64 * (self.eta * u - self.eta + 1.0).powf(self.alpha);
            (rank as u64).min(self.items - 1)
        }
    }
}

/// How popular items are, ready to draw from.
#[derive(Clone, Debug)]
pub struct Ranks(Option<Zipf>);

impl Ranks {
    /// For so many items.
    pub fn new(access: Access, items: u64) -> Self {
        Self(match access {
            Access::Uniform => None,
            Access::Latest => Some(Zipf::new(items)),
            Access::Zipf(exponent) => Some(Zipf::with(items, exponent)),
        })
    }

    /// A rank, 0 the most popular; `None`: all are alike.
    pub fn rank(&self, rng: &mut Rng) -> Option<u64> {
        self.0.as_ref().map(|zipf| zipf.rank(rng))
    }
}

/// One of Facebook's pools whose sizes are known by their bounds (Hippos, section 2.1): lengths are drawn evenly up to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pool {
    /// keys of 16 or 21 bytes, values of 2
    Usr,
    /// keys to 45, values to 450, of which 30 % have 270
    App,
    /// keys of 31 (90 %) or less, values to 200
    Var,
    /// keys to 45, values to 640
    Sys,
}

impl Pool {
    fn name(self) -> &'static str {
        match self {
            Self::Usr => "16 or 21 B keys, 2 B values",
            Self::App => "keys to 45 B, values to 450 B",
            Self::Var => "keys to 31 B, values to 200 B",
            Self::Sys => "keys to 45 B, values to 640 B",
        }
    }

    fn of(self, rng: &mut Rng) -> (u64, u64) {
        let mut between = |low: u64, high: u64| low + rng.below(high - low + 1);
        match self {
            Self::Usr => (if between(0, 1) == 0 { 16 } else { 21 }, 2),
            Self::App => (between(16, 45), if between(1, 100) <= 30 { 270 } else { between(1, 450) }),
            Self::Var => (if between(1, 100) <= 90 { 31 } else { between(16, 30) }, between(1, 200)),
            Self::Sys => (between(16, 45), between(1, 640)),
        }
    }
}

/// Key and value sizes of one item, from its index alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sizes {
    /// every key 16 bytes, every value this many
    Fixed(usize),
    /// every key and every value this many bytes; keys have at least 16
    Both(usize, usize),
    /// one of Facebook's pools that are known by their bounds
    Pool(Pool),
    /// Facebook's ETC pool as fitted by Atikoglu et al. (SIGMETRICS 2012)
    Etc,
}

/// P(value size = 0..14) of ETC; larger ones follow a generalized Pareto distribution.
const ETC_SMALL: [f64; 15] = [
    0.00536, 0.00047, 0.17820, 0.09239, 0.00018, 0.02740, 0.00065, 0.00606, 0.00023, 0.00837, 0.00837, 0.08989, 0.00092, 0.00326,
    0.01980,
];
/// Largest value drawn, bytes: two in a million would be larger, and could not be stored with one datagram.
pub const ETC_VALUE_LEN_MAX: usize = 60_000;
/// Longest key that memcached takes, bytes (protocol.txt, "Keys").
const KEY_LEN_MAX: f64 = 250.0;

impl Sizes {
    /// Its name in a table.
    pub fn name(self) -> String {
        match self {
            Self::Fixed(value) => format!("16 B keys, {value} B values"),
            Self::Both(key, value) => format!("{key} B keys, {value} B values"),
            Self::Pool(pool) => pool.name().to_owned(),
            Self::Etc => "ETC's sizes".to_owned(),
        }
    }

    /// Lengths of the key and the value of item `index`.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "bounded by the two constants above"
    )]
    pub fn of(self, index: u64) -> (usize, usize) {
        match self {
            Self::Fixed(value_len) => (KEY_LEN, value_len),
            Self::Both(key_len, value_len) => (key_len.max(KEY_LEN), value_len),
            Self::Pool(pool) => {
                let (key_len, value_len) = pool.of(&mut Rng::new(mix(index ^ 0x9001)));
                (key_len as usize, value_len as usize)
            }
            Self::Etc => {
                let mut rng = Rng::new(mix(index ^ 0xe7c));
                // Keys hold 16 digits, so that they differ; 1 in 200 of ETC's is shorter.
                let key_len = generalized_extreme_value(&mut rng, 30.7984, 8.20449, 0.078_688).clamp(16.0, KEY_LEN_MAX);
                let mut left = rng.unit();
                for (value_len, share) in ETC_SMALL.iter().enumerate() {
                    left -= share;
                    if left < 0.0 {
                        return (key_len as usize, value_len);
                    }
                }
                let value_len = generalized_pareto(&mut rng, 15.0, 214.476, 0.348_238);
                (key_len as usize, (value_len as usize).min(ETC_VALUE_LEN_MAX))
            }
        }
    }
}

fn generalized_extreme_value(rng: &mut Rng, location: f64, scale: f64, shape: f64) -> f64 {
    location + scale * ((-rng.unit().ln()).powf(-shape) - 1.0) / shape
}

fn generalized_pareto(rng: &mut Rng, location: f64, scale: f64, shape: f64) -> f64 {
    location + scale * (rng.unit().powf(-shape) - 1.0) / shape
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn keys_differ_and_are_text() {
        let distinct: HashSet<Key> = (0..10_000).map(key).collect();
        assert_eq!(distinct.len(), 10_000);
        assert!(distinct.iter().flatten().all(u8::is_ascii_hexdigit));
    }

    /// The most popular of n items has a share of 1 / zeta(n): 0.0976 for 10^4 items.
    #[test]
    fn zipf_has_the_share_that_theory_gives() {
        for theta in [0.7, Zipf::THETA] {
            let zipf = Zipf::with(10_000, theta);
            let exact: f64 = (1..=10_000).map(|i| f64::from(i).powf(-theta)).sum();
            let mut rng = Rng::new(1);
            let draws = 1_000_000;
            let first = (0..draws).filter(|_| zipf.rank(&mut rng) == 0).count();
            let share = first as f64 / f64::from(draws);
            assert!((share - 1.0 / exact).abs() < 0.002, "{theta}: {share}");
        }
        // The integral that stands for the sum's tail is as good as the sum.
        let exact: f64 = (1..=1_000_000).map(|i| f64::from(i).powf(-Zipf::THETA)).sum();
        assert!((Zipf::new(1_000_000).zeta - exact).abs() < 1e-6);
    }

    /// Atikoglu et al., section 3.4: keys of 30-odd bytes, values of about 300 on the average with 44 % below 15 bytes.
    #[test]
    fn etc_has_the_fitted_means() {
        let items = 200_000;
        let (mut key_bytes, mut value_bytes, mut small) = (0.0, 0.0, 0);
        for index in 0..items {
            let (key_len, value_len) = Sizes::Etc.of(index);
            key_bytes += key_len as f64;
            value_bytes += value_len as f64;
            small += u32::from(value_len < 15);
        }
        let (key_mean, value_mean) = (key_bytes / items as f64, value_bytes / items as f64);
        assert!((35.0..38.0).contains(&key_mean), "{key_mean}");
        // 0.558 of the values are Pareto with mean 15 + 214.476 / (1 - 0.348238) = 344; the others add 3 bytes.
        assert!((185.0..205.0).contains(&value_mean), "{value_mean}");
        assert!((0.43..0.45).contains(&(f64::from(small) / items as f64)));
    }
}
