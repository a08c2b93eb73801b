//! The items of a workload: their keys, and values that prove which item's they are.
//!
//! A value of 16 bytes or more begins with the number of the write that made it and a checksum of that number with the item's
//! index; the rest is a piece of fixed random text, chosen by the checksum. So a reader can tell that it was written
//! for this key, whole; the checksum covers the value's length. What was written is made with one copy and verified with one comparison, which costs a client little.
//! Shorter values depend on the item alone. Whether a value is the newest one is not verified: `cargo xtask storm` does that.

use crate::workload::{ETC_VALUE_LEN_MAX, KEY_LEN, Rng, Sizes, key, mix};
use std::sync::Arc;

/// Bytes of a value before its text: the write's number and the checksum.
const HEAD_LEN: usize = 16;
/// Where in the text a value's piece may start: few enough places for the text of small values to stay in a CPU's cache.
const STARTS: usize = 1 << 12;
/// Items whose sizes are drawn beforehand; drawing them takes longer than a request to a region.
const TABLE_LEN_MAX: u64 = 1 << 22;
/// What a counter starts from: ten digits, and ten it keeps.
const COUNTER: &[u8] = b"1000000000";

/// All items of a workload.
#[derive(Clone, Debug)]
pub struct Items {
    sizes: Sizes,
    /// of the first items, where sizes are not fixed: key and value length
    table: Option<Arc<[(u16, u32)]>>,
    text: Arc<[u8]>,
    /// values are decimal numbers that requests count up
    counters: bool,
}

impl Items {
    /// Of these sizes; the first `count` of them are the quickest.
    pub fn new(sizes: Sizes, count: u64, counters: bool) -> Self {
        let drawn = |index| {
            let (key_len, value_len) = sizes.of(index);
            // Sizes are below memcached's limits, 250 bytes and 1 MiB.
            (
                u16::try_from(key_len).unwrap_or(u16::MAX),
                u32::try_from(value_len).unwrap_or(u32::MAX),
            )
        };
        let table = match sizes {
            Sizes::Fixed(_) | Sizes::Both(..) => None,
            Sizes::Pool(_) | Sizes::Etc => Some((0..count.min(TABLE_LEN_MAX)).map(drawn).collect()),
        };
        let longest = match sizes {
            Sizes::Fixed(value) | Sizes::Both(_, value) => value,
            Sizes::Pool(_) => 1 << 10,
            Sizes::Etc => ETC_VALUE_LEN_MAX,
        };
        Self {
            sizes,
            table,
            text: text(longest),
            counters,
        }
    }

    /// Lengths of the key and the value of item `index`.
    pub fn lengths(&self, index: u64) -> (usize, usize) {
        if self.counters {
            return (KEY_LEN, COUNTER.len());
        }
        let drawn = usize::try_from(index).ok().and_then(|i| self.table.as_ref()?.get(i));
        drawn.map_or_else(|| self.sizes.of(index), |&(key, value)| (usize::from(key), value as usize))
    }

    /// Appends the key of item `index`.
    pub fn push_key(&self, index: u64, out: &mut Vec<u8>) {
        let end = out.len() + self.lengths(index).0;
        out.extend_from_slice(&key(index));
        out.resize(end, b'-');
    }

    /// Appends the value that write number `write` gives to item `index`.
    pub fn push_value(&self, index: u64, write: u64, out: &mut Vec<u8>) {
        if self.counters {
            return out.extend_from_slice(COUNTER);
        }
        let value_len = self.lengths(index).1;
        if value_len < HEAD_LEN {
            let short = short_value(index);
            return out.extend_from_slice(&short[..value_len]);
        }
        let check = checksum(index, write, value_len);
        out.extend_from_slice(&write.to_le_bytes());
        out.extend_from_slice(&check.to_le_bytes());
        out.extend_from_slice(self.piece(check, value_len - HEAD_LEN));
    }

    /// Whether some write gave exactly this value to item `index`.
    pub fn is_value(&self, index: u64, value: &[u8]) -> bool {
        if self.counters {
            return value.len() == COUNTER.len() && value.iter().all(u8::is_ascii_digit);
        }
        if value.len() != self.lengths(index).1 {
            return false;
        }
        let (Some((write, rest)), true) = (value.split_first_chunk::<8>(), value.len() >= HEAD_LEN) else {
            return value == &short_value(index)[..value.len()];
        };
        let Some((check, text)) = rest.split_first_chunk::<8>() else {
            return false;
        };
        let expected = checksum(index, u64::from_le_bytes(*write), value.len());
        u64::from_le_bytes(*check) == expected && text == self.piece(expected, text.len())
    }

    fn piece(&self, check: u64, len: usize) -> &[u8] {
        let start = usize::try_from(check % STARTS as u64).unwrap_or(0); // below STARTS
        &self.text[start..start + len]
    }

    /// Mean bytes of key and value, over the first items.
    #[allow(clippy::cast_precision_loss, reason = "a sum of lengths is below 2^53")]
    pub fn mean_len(&self) -> f64 {
        const SAMPLE: u64 = 10_000;
        let total: usize = (0..SAMPLE).map(|i| self.lengths(i)).map(|(key, value)| key + value).sum();
        total as f64 / SAMPLE as f64
    }

    /// The longest value that occurs.
    pub fn longest(&self) -> usize {
        self.text.len() - STARTS
    }
}

fn checksum(index: u64, write: u64, len: usize) -> u64 {
    mix(mix(index ^ 0x6b77 ^ (len as u64) << 40).wrapping_add(write))
}

/// Random bytes, enough for a piece of the longest value to start anywhere.
fn text(longest: usize) -> Arc<[u8]> {
    let mut rng = Rng::new(0x7e87);
    let words = (STARTS + longest).div_ceil(8);
    let text: Vec<u8> = (0..words).flat_map(|_| rng.bits().to_le_bytes()).collect();
    text[..STARTS + longest].into()
}

fn short_value(index: u64) -> [u8; HEAD_LEN] {
    let mut value = [0; HEAD_LEN];
    value[..8].copy_from_slice(&mix(index ^ 0x5407).to_le_bytes());
    value[8..].copy_from_slice(&mix(index ^ 0x5408).to_le_bytes());
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Pool;

    fn value(items: &Items, index: u64, write: u64) -> Vec<u8> {
        let mut value = Vec::new();
        items.push_value(index, write, &mut value);
        value
    }

    #[test]
    fn every_write_of_an_item_is_its_value_and_no_other_items() {
        for len in [0, 1, 7, 8, 15, 16, 17, 128, 5 << 10] {
            let items = Items::new(Sizes::Fixed(len), 100, false);
            for write in [0, 1, u64::MAX] {
                let mine = value(&items, 7, write);
                assert_eq!(mine.len(), len);
                assert!(items.is_value(7, &mine));
                assert!(len == 0 || !items.is_value(8, &mine), "{len}");
                assert!(!items.is_value(7, &[&mine[..], b"x"].concat()));
            }
        }
    }

    #[test]
    fn one_wrong_bit_anywhere_is_seen() {
        for len in [1, 15, 16, 128] {
            let items = Items::new(Sizes::Fixed(len), 100, false);
            for at in 0..len {
                let mut broken = value(&items, 3, 9);
                broken[at] ^= 1;
                assert!(!items.is_value(3, &broken), "byte {at} of {len}");
            }
        }
    }

    #[test]
    fn the_halves_of_two_writes_are_no_value() {
        let items = Items::new(Sizes::Fixed(128), 100, false);
        let torn = [&value(&items, 3, 1)[..64], &value(&items, 3, 2)[64..]].concat();
        assert!(!items.is_value(3, &torn));
    }

    #[test]
    fn drawn_sizes_are_those_of_the_workload() {
        for sizes in [Sizes::Etc, Sizes::Pool(Pool::App), Sizes::Pool(Pool::Usr)] {
            let items = Items::new(sizes, 100, false);
            for index in [0, 1, 99, 100, 5000] {
                let mut key = Vec::new();
                items.push_key(index, &mut key);
                assert_eq!((key.len(), value(&items, index, 1).len()), sizes.of(index));
                assert_eq!(items.lengths(index), sizes.of(index));
            }
        }
    }

    #[test]
    fn a_counter_is_a_number() {
        let items = Items::new(Sizes::Fixed(5), 10, true);
        assert_eq!(value(&items, 1, 1), COUNTER);
        assert!(items.is_value(1, b"1000000042") && !items.is_value(1, b"100000004x"));
    }
}
