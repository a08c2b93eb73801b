//! A key's hash, and what the index takes from it: two buckets and a tag.
//!
//! XXH64 with the region's own seed: 64-bit multiplications, rotations and exclusive ors only, so that a BPF program computes
//! the same value (it has no 128-bit product). A new seed with every region keeps an outsider from choosing colliding keys
//! in advance.

use crate::layout::slot;

/// A key and its hash.
#[derive(Clone, Copy, Debug)]
pub struct Key<'a> {
    /// the bytes, 1 to 250 of them
    pub bytes: &'a [u8],
    /// [`hash`] of them
    pub hash: u64,
}

/// The hash of a key in a region with this seed.
#[inline]
pub fn hash(seed: u64, key: &[u8]) -> u64 {
    if key.len() < STRIPE_SIZE {
        short_hash(seed, key)
    } else {
        xxhash_rust::xxh64::xxh64(key, seed)
    }
}

/// Bytes from which on XXH64 works on four lanes.
const STRIPE_SIZE: usize = 32;
/// XXH64's primes ("xxHash fast digest algorithm", XXH64 Algorithm Description).
pub(crate) const PRIMES: [u64; 5] = [
    0x9E37_79B1_85EB_CA87,
    0xC2B2_AE3D_27D4_EB4F,
    0x1656_67B1_9E37_79F9,
    0x85EB_CA77_C2B2_AE63,
    0x27D4_EB2F_1656_67C5,
];

/// XXH64 of fewer bytes than a stripe: most keys, and worth no call.
#[inline(always)]
fn short_hash(seed: u64, bytes: &[u8]) -> u64 {
    let [prime_1, prime_2, prime_3, prime_4, prime_5] = PRIMES;
    let mut hash = seed.wrapping_add(prime_5).wrapping_add(bytes.len() as u64);
    let (words, rest) = bytes.as_chunks();
    for word in words {
        let lane = u64::from_le_bytes(*word)
            .wrapping_mul(prime_2)
            .rotate_left(31)
            .wrapping_mul(prime_1);
        hash = (hash ^ lane).rotate_left(27).wrapping_mul(prime_1).wrapping_add(prime_4);
    }
    let (halves, rest) = rest.as_chunks();
    for half in halves {
        let lane = u64::from(u32::from_le_bytes(*half)).wrapping_mul(prime_1);
        hash = (hash ^ lane).rotate_left(23).wrapping_mul(prime_2).wrapping_add(prime_3);
    }
    for byte in rest {
        hash = (hash ^ u64::from(*byte).wrapping_mul(prime_5))
            .rotate_left(11)
            .wrapping_mul(prime_1);
    }
    hash = (hash ^ hash >> 33).wrapping_mul(prime_2);
    hash = (hash ^ hash >> 29).wrapping_mul(prime_3);
    hash ^ hash >> 32
}

/// Odd, with well-mixed bits: 2^64 divided by the golden ratio (Knuth, "The Art of Computer Programming", 6.4).
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;

/// The two bucket choices of a hash before they are reduced to the table's size. They differ in bit 0 for ever, so that a
/// split, which keeps the low bits, never sees both choices of a key.
#[inline]
pub const fn choices(hash: u64) -> [u64; 2] {
    let first = hash & 0xFFFF_FFFF;
    let second = (hash.wrapping_mul(SPREAD) >> 32) & !1 | (!first & 1);
    [first, second]
}

/// Odd, with well-mixed bits, for another product: 2^64 divided by the square root of 2.
const SPREAD_AGAIN: u64 = 0xB504_F333_F9DE_6485;

/// The third choice, for a key that finds the buckets of both others full. It differs from each in one of the two low bits.
#[inline]
pub const fn third_choice(hash: u64) -> u64 {
    let [first, second] = choices(hash);
    let third = hash.wrapping_mul(SPREAD_AGAIN) >> 32;
    let alike = if (third ^ first) & 1 == 0 { first } else { second };
    third & !2 | (!alike & 2)
}

/// All three choices.
pub fn all_choices(hash: u64) -> [u64; 3] {
    let [first, second] = choices(hash);
    [first, second, third_choice(hash)]
}

/// The tag that a slot carries for this hash.
#[inline]
pub const fn tag(hash: u64) -> u64 {
    hash >> (64 - slot::TAG_BITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_xxh64() {
        // Known answers of the XXH64 specification (seed 0 and seed 2654435761, empty input).
        assert_eq!(hash(0, b""), 0xEF46_DB37_51D8_E999);
        assert_eq!(hash(2_654_435_761, b""), 0xAC75_FDA2_929B_17EF);
        let key: [u8; 40] = core::array::from_fn(|i| (i * 37 + 200).to_le_bytes()[0]);
        for len in 0..=key.len() {
            for seed in [0, 1, u64::MAX, 0x1234_5678_9ABC_DEF0] {
                assert_eq!(
                    hash(seed, &key[..len]),
                    xxhash_rust::xxh64::xxh64(&key[..len], seed),
                    "{len} bytes"
                );
            }
        }
    }

    #[test]
    fn the_choices_differ_in_their_two_low_bits() {
        let mut thirds = [0; 4];
        for i in 0..10_000u64 {
            let [a, b, c] = all_choices(hash(7, &i.to_le_bytes()));
            assert_eq!((a ^ b) & 1, 1);
            assert!((a ^ c) & 3 != 0 && (b ^ c) & 3 != 0);
            if let Some(n) = thirds.get_mut(crate::layout::index(c & 3)) {
                *n += 1;
            }
        }
        assert!(thirds.iter().all(|n| (2_300..2_700).contains(n)), "{thirds:?}");
    }
}
