//! Values that say of themselves whose they are: key, version, and bytes that follow from both.

/// Keys that every client reads and writes.
pub const KEYS: u64 = 400;
/// Longest value that fits into one segment of the smallest regions.
const SMALL_MAX: u64 = 600;
/// Of so many versions one has segments of its own.
const LARGE_ONE_IN: u64 = 40;
const LARGE_LEN: u64 = 40_000;

/// What a look at a value, or at a number, showed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// as it was stored
    pub right: u64,
    /// misses
    pub none: u64,
    /// errors
    pub errors: u64,
    /// never stored under this key
    pub wrong: u64,
    /// stored, and since replaced by the only one who writes this key
    pub stale: u64,
}

impl Tally {
    /// As words for another process.
    pub fn to_words(self) -> [u64; 5] {
        [self.right, self.none, self.errors, self.wrong, self.stale]
    }

    /// From these words.
    pub fn from_words([right, none, errors, wrong, stale]: [u64; 5]) -> Self {
        Self {
            right,
            none,
            errors,
            wrong,
            stale,
        }
    }

    /// Both.
    pub fn add(&mut self, other: Self) {
        let (mine, others) = (self.to_words(), other.to_words());
        *self = Self::from_words(std::array::from_fn(|i| mine[i] + others[i]));
    }
}

/// The name of a shared key.
pub fn key(number: u64) -> String {
    format!("scribbled-{number}")
}

fn mixed(key: u64, version: u64) -> u64 {
    let n = (key ^ version.rotate_left(24)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (n ^ n >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9)
}

/// The value of a version of a key.
pub fn value(key: u64, version: u64) -> Vec<u8> {
    let mix = mixed(key, version);
    let len = if mix.is_multiple_of(LARGE_ONE_IN) {
        LARGE_LEN
    } else {
        16 + mix % SMALL_MAX
    };
    let words = [key, version].into_iter().chain((1..).map(|i: u64| mixed(mix, i)));
    let len = usize::try_from(len).unwrap_or(0);
    words.flat_map(u64::to_le_bytes).take(len).collect()
}

/// The version that these bytes are of, if they are one of this key's.
pub fn version_of(key: u64, bytes: &[u8]) -> Option<u64> {
    let version = u64::from_le_bytes(bytes.get(8..16)?.try_into().ok()?);
    (value(key, version) == bytes).then_some(version)
}

/// The client flags of a version.
pub fn flags_of(version: u64) -> u32 {
    u32::try_from(version % 3 * 77).unwrap_or(0)
}

/// What numbers that are counted are multiples of.
pub const STEP: u64 = 1_000_003;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_known_and_a_wrong_byte_is_too() {
        for version in [1, 2, 1 << 40] {
            let mut bytes = value(7, version);
            assert_eq!(version_of(7, &bytes), Some(version));
            assert_eq!(version_of(8, &bytes), None);
            for at in [0, 9, bytes.len() - 1] {
                bytes[at] ^= 4;
                assert_eq!(version_of(7, &bytes), None);
                bytes[at] ^= 4;
            }
            bytes.push(0);
            assert_eq!(version_of(7, &bytes), None);
        }
    }
}
