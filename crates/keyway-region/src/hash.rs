//! A key's hash, and what the index derives from it: three buckets and a tag.
//!
//! NH (Black, Halevi, Krawczyk, Krovetz, Rogaway: "UMAC: fast and secure message authentication", CRYPTO 1999): words of eight
//! bytes, each with a secret added to it, multiplied in pairs; the sum of the products, 128 bits, is folded to 64 by another
//! product with secrets. For any two keys, no more than about one in 2^63 choices of the secrets gives them the same sum. So no
//! keys collide in all regions, and a client that does not know a region's seed cannot choose keys that collide in it. The
//! secrets come from the seed. A BPF program computes the same value from products of 32 bits.

use crate::layout::slot;
use crate::memory::KeyRoom;
use crate::verbs::{KEY_LEN_MAX, WriteError};

/// A key and its hash: a copy that no other code changes, of 1 to 250 bytes, and the hash of that copy.
#[derive(Clone, Copy, Debug)]
pub struct Key<'a> {
    pub(crate) bytes: &'a [u8],
    /// [`Hasher::hash`] of them
    pub(crate) hash: u64,
}

impl<'a> Key<'a> {
    /// Whether a key can have this length.
    #[inline(always)]
    pub fn has_len(given: &[u8]) -> bool {
        !given.is_empty() && given.len() <= KEY_LEN_MAX
    }

    /// # Errors
    ///
    /// A key of a wrong length.
    #[inline(always)]
    pub fn check_len(given: &[u8]) -> Result<(), WriteError> {
        if Self::has_len(given) {
            Ok(())
        } else {
            Err(WriteError::KeyLength { len: given.len() })
        }
    }

    /// The copy.
    #[inline(always)]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Its hash.
    #[inline(always)]
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// A key again from its two parts: these stay in registers where a key would go through memory.
    #[inline(always)]
    pub fn of((bytes, hash): (&'a [u8], u64)) -> Self {
        Self { bytes, hash }
    }
}

/// What a verb takes as its key: a caller's bytes, which it copies first, or a key that was copied before.
///
/// A caller's bytes may change at any time: another thread, a process that shares the memory, or a signal handler may write to them, and so
/// may the verb itself, if its result goes to the same memory. So they are loaded once, by [`Hasher::key`].
pub trait Keyed {
    /// The key. `room`: where to copy it.
    ///
    /// # Errors
    ///
    /// A key of a wrong length.
    fn keyed<'r>(self, hasher: &Hasher, room: &'r mut KeyRoom) -> Result<Key<'r>, WriteError>
    where
        Self: 'r;
}

impl<B: AsRef<[u8]> + ?Sized> Keyed for &B {
    #[inline(always)]
    fn keyed<'r>(self, hasher: &Hasher, room: &'r mut KeyRoom) -> Result<Key<'r>, WriteError>
    where
        Self: 'r,
    {
        let given = self.as_ref();
        Key::check_len(given)?;
        Ok(hasher.key(given, room))
    }
}

impl Keyed for Key<'_> {
    #[inline(always)]
    fn keyed<'r>(self, _: &Hasher, _: &'r mut KeyRoom) -> Result<Key<'r>, WriteError>
    where
        Self: 'r,
    {
        Ok(self)
    }
}

/// Bytes that are multiplied with each other: two words.
const PAIR: usize = 16;
/// Pairs of the longest key.
const PAIRS: usize = KEY_LEN_MAX.div_ceil(PAIR);

/// The hash function of a region.
#[derive(Clone, Debug)]
pub struct Hasher {
    last: [u64; 2],
    pairs: [[u64; 2]; PAIRS],
}

impl Hasher {
    /// The hash function of a region with this seed.
    pub const fn new(seed: u64) -> Self {
        let mut hasher = Self {
            last: [secret(seed, 0), secret(seed, 1)],
            pairs: [[0; 2]; PAIRS],
        };
        let mut rest: &mut [[u64; 2]] = &mut hasher.pairs;
        let mut number = 2;
        while let [pair, following @ ..] = rest {
            *pair = [secret(seed, number), secret(seed, number + 1)];
            number += 2;
            rest = following;
        }
        hasher
    }

    /// A caller's key, of a length that a key can have ([`Key::check_len`]): its bytes are loaded once, each by one load, and everything else
    /// works on the copy.
    #[inline(always)]
    pub fn key<'r>(&self, given: &[u8], room: &'r mut KeyRoom) -> Key<'r> {
        let len = given.len();
        let [secrets, ..] = &self.pairs;
        let short = |words| self.finish(product(words, *secrets), len);
        let (bytes, hash) = room.take_hashed(given, short, |copy| self.long_hash(copy));
        Key { bytes, hash }
    }

    /// The hash of a key, of at most 250 bytes that no thread changes meanwhile.
    #[inline]
    pub fn hash(&self, key: &[u8]) -> u64 {
        if key.len() > PAIR {
            return self.long_hash(key);
        }
        let [secrets, ..] = &self.pairs;
        self.finish(product(short_words(key), *secrets), key.len())
    }

    /// The hash of a key of more than 16 bytes, which is summed by pairs of words: the last pair is the last 16 bytes.
    #[inline(never)]
    fn long_hash(&self, key: &[u8]) -> u64 {
        let last = key.last_chunk().unwrap_or(&[0; PAIR]);
        // The pairs before the last one; the last one may be a whole pair.
        let whole = key.len().div_ceil(PAIR) - 1;
        let (pairs, _) = key.as_chunks();
        let (secrets, secrets_of_last) = self.pairs.split_at_checked(whole).unwrap_or((&[], &[]));
        let mut sum = secrets_of_last.first().map_or(0, |secrets| product(words(last), *secrets));
        for (pair, secrets) in pairs.iter().zip(secrets) {
            sum = sum.wrapping_add(product(words(pair), *secrets));
        }
        self.finish(sum, key.len())
    }

    #[inline(always)]
    const fn finish(&self, sum: u128, len: usize) -> u64 {
        // Keys may differ only in their length.
        let sum = sum.wrapping_add(len as u128);
        let [a, b] = self.last;
        fold((low(sum) ^ a) as u128 * (low(sum >> 64) ^ b) as u128)
    }
}

/// For the layout's fingerprint: a value that depends on every part of the hash.
pub(crate) const fn sample() -> u64 {
    let hasher = Hasher::new(KEY_SEED);
    let [.., pair] = &hasher.pairs;
    hasher.finish(product([KEY_SEED, !KEY_SEED], *pair), PAIR)
}

/// Any seed.
const KEY_SEED: u64 = 0x0123_4567_89AB_CDEF;

/// The hash of a key in a region with this seed, for a caller that needs few of them.
pub fn hash(seed: u64, key: &[u8]) -> u64 {
    Hasher::new(seed).hash(key)
}

/// The secret with this number (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014: SplitMix64).
const fn secret(seed: u64, number: u64) -> u64 {
    let z = seed.wrapping_add((number + 1).wrapping_mul(SPREAD));
    let z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ z >> 31
}

/// Up to 16 bytes as two words. Words and length determine the bytes.
#[inline(always)]
fn short_words(key: &[u8]) -> [u64; 2] {
    if let (Some(first), Some(last)) = (key.first_chunk(), key.last_chunk()) {
        [u64::from_le_bytes(*first), u64::from_le_bytes(*last)]
    } else if let (Some(first), Some(last)) = (key.first_chunk(), key.last_chunk()) {
        [u32::from_le_bytes(*first), u32::from_le_bytes(*last)].map(u64::from)
    } else {
        let byte = |at: usize| key.get(at).map_or(0, |byte| u64::from(*byte));
        [byte(0) | byte(1) << 8 | byte(2) << 16, 0]
    }
}

#[inline(always)]
fn words(pair: &[u8; PAIR]) -> [u64; 2] {
    let both = u128::from_le_bytes(*pair);
    [low(both), low(both >> 64)]
}

#[inline(always)]
const fn product([a, b]: [u64; 2], [c, d]: [u64; 2]) -> u128 {
    a.wrapping_add(c) as u128 * b.wrapping_add(d) as u128
}

#[inline(always)]
const fn fold(product: u128) -> u64 {
    low(product) ^ low(product >> 64)
}

/// The lower word.
#[inline(always)]
#[allow(
    clippy::cast_possible_truncation,
    reason = "the lower word is what is asked for, and From is not const"
)]
const fn low(words: u128) -> u64 {
    words as u64
}

/// Odd, with well-mixed bits: 2^64 divided by the golden ratio (Knuth, "The Art of Computer Programming", 6.4).
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;

/// The two bucket choices of a hash before they are reduced to the table's size. They always differ in bit 0, so that a split,
/// which keeps the low bits, never has both choices of a key.
#[inline]
pub const fn choices(hash: u64) -> [u64; 2] {
    let first = hash & 0xFFFF_FFFF;
    let second = (hash.wrapping_mul(SPREAD) >> 32) & !1 | (!first & 1);
    [first, second]
}

/// Odd, with well-mixed bits, for another product: 2^64 divided by the square root of 2.
const SPREAD_AGAIN: u64 = 0xB504_F333_F9DE_6485;

/// The third choice, for a key whose other two buckets are full. It differs from each of them in one of the two low bits.
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

/// The tag of this hash in a slot.
#[inline]
pub const fn tag(hash: u64) -> u64 {
    hash >> (64 - slot::TAG_BITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The key's hash with one line for each step, with the sum in two halves of 64 bits as in a BPF program.
    fn plain(seed: u64, key: &[u8]) -> u64 {
        let word = |at: usize, len: usize| (0..len).fold(0, |word, i| word | u64::from(key[at + i]) << (8 * i));
        let len = key.len();
        let pairs: Vec<[u64; 2]> = match len {
            0 => vec![[0, 0]],
            1..4 => vec![[word(0, len), 0]],
            4..8 => vec![[word(0, 4), word(len - 4, 4)]],
            8..=16 => vec![[word(0, 8), word(len - 8, 8)]],
            _ => (0..(len - 1) / 16)
                .map(|i| i * 16)
                .chain([len - 16])
                .map(|at| [word(at, 8), word(at + 8, 8)])
                .collect(),
        };
        let wide = |a: u64, b: u64| {
            let [(a1, a0), (b1, b0)] = [a, b].map(|x| (x >> 32, x & 0xFFFF_FFFF));
            let middle = ((a0 * b0) >> 32) + ((a1 * b0) & 0xFFFF_FFFF) + ((a0 * b1) & 0xFFFF_FFFF);
            (
                a.wrapping_mul(b),
                a1 * b1 + ((a1 * b0) >> 32) + ((a0 * b1) >> 32) + (middle >> 32),
            )
        };
        let (mut low, mut high) = (len as u64, 0u64);
        for (i, [a, b]) in (1..).zip(pairs) {
            let (l, h) = wide(a.wrapping_add(secret(seed, 2 * i)), b.wrapping_add(secret(seed, 2 * i + 1)));
            low = low.wrapping_add(l);
            high = high.wrapping_add(h).wrapping_add(u64::from(low < l));
        }
        let (l, h) = wide(low ^ secret(seed, 0), high ^ secret(seed, 1));
        l ^ h
    }

    #[test]
    fn the_hash_is_what_it_is_said_to_be() {
        // The BPF program's test has the same ones.
        for (seed, len, known) in KNOWN {
            let key: Vec<u8> = (0..len).map(|i: usize| (i * 37 + 200).to_le_bytes()[0]).collect();
            assert_eq!(hash(seed, &key), known, "{len} bytes: {:#x}", hash(seed, &key));
        }
        let key: [u8; crate::verbs::KEY_LEN_MAX] = core::array::from_fn(|i| (i * 73 + i / 7).to_le_bytes()[0]);
        for len in 0..=key.len() {
            for seed in [0, 1, u64::MAX, 0x1234_5678_9ABC_DEF0] {
                assert_eq!(hash(seed, &key[..len]), plain(seed, &key[..len]), "{len} bytes");
            }
        }
    }

    #[test]
    fn keys_that_collide_in_every_region_are_none() {
        // XXH64 mixes a word before the seed reaches it: a difference that the rotations carry to the top bit is undone by the
        // next word, with any seed. These keys have the same XXH64 with every seed.
        const FIRST: u64 = 0x9E37_79B1_85EB_CA87;
        const SECOND: u64 = 0xC2B2_AE3D_27D4_EB4F;
        let inverse = |odd: u64| (0..6).fold(odd, |x, _| x.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(x))));
        let mixed = |word: u64| word.wrapping_mul(SECOND).rotate_left(31).wrapping_mul(FIRST);
        let unmixed = |lane: u64| {
            lane.wrapping_mul(inverse(FIRST))
                .rotate_right(31)
                .wrapping_mul(inverse(SECOND))
        };
        let colliding = |words: [u64; 3], number: u64| {
            let [a, b] = [number & 1, number >> 1 & 1];
            let lanes = words.map(mixed);
            let differences = [a << 36, (a << 63) ^ (b << 36), b << 63];
            let words: [u64; 3] = core::array::from_fn(|i| unmixed(lanes[i] ^ differences[i]));
            words.map(u64::to_le_bytes).concat()
        };
        for seed in 0..100u64 {
            let seed = secret(7, seed);
            for words in 0..50u64 {
                let words = [secret(words, 0), secret(words, 1), secret(words, 2)];
                let keys: Vec<Vec<u8>> = (0..4).map(|number| colliding(words, number)).collect();
                let mut hashes: Vec<u64> = keys.iter().map(|key| hash(seed, key)).collect();
                assert!(
                    keys.iter()
                        .all(|key| xxhash_rust::xxh64::xxh64(key, seed) == xxhash_rust::xxh64::xxh64(&keys[0], seed))
                );
                hashes.sort_unstable();
                hashes.dedup();
                assert_eq!(hashes.len(), keys.len(), "{keys:x?}");
            }
        }
        // Words that are exchanged, and words that differ from those that make a factor zero with a seed of 0.
        for seed in 1..1000 {
            let [a, b] = [secret(0, 2).wrapping_neg(), secret(0, 3).wrapping_neg()];
            let keys = [[a, 1], [a, 2], [1, b], [2, b], [1, 2], [2, 1], [a, b], [b, a]];
            let mut hashes: Vec<u64> = keys
                .iter()
                .map(|key| hash(seed, &key.map(u64::to_le_bytes).concat()))
                .collect();
            hashes.sort_unstable();
            hashes.dedup();
            assert_eq!(hashes.len(), keys.len());
        }
    }

    #[test]
    fn similar_keys_are_spread_evenly() {
        // Counters, in decimal and in binary, long and short: their tags, first and second choices fill the ranges like random ones.
        let kinds: [fn(u32) -> Vec<u8>; 5] = [
            |i| i.to_le_bytes().to_vec(),
            |i| format!("{i}").into_bytes(),
            |i| format!("user:{i:09}:profile").into_bytes(),
            |i| [vec![0; 40], i.to_be_bytes().to_vec(), vec![0; 30]].concat(),
            |i| {
                vec![b'x'; i as usize % 250 + 1]
                    .into_iter()
                    .chain(i.to_be_bytes())
                    .take(250)
                    .collect()
            },
        ];
        for (kind, name) in kinds.into_iter().zip(["binary", "decimal", "text", "long", "filled"]) {
            for seed in [0, 3, u64::MAX] {
                let hasher = Hasher::new(seed);
                for shift in [0, 16, 32, 52] {
                    let mut counts = vec![0u32; 1 << 10];
                    let keys: std::collections::HashSet<Vec<u8>> = (0..1u32 << 16).map(kind).collect();
                    let expected = keys.len() as f64 / counts.len() as f64;
                    for key in &keys {
                        let place = usize::try_from(hasher.hash(key) >> shift & 0x3FF).unwrap();
                        counts[place] += 1;
                    }
                    // Chi square: 1,023 degrees of freedom, so 1,023 with a deviation of 45.
                    let chi: f64 = counts.iter().map(|n| (f64::from(*n) - expected).powi(2) / expected).sum();
                    assert!((750.0..1_300.0).contains(&chi), "{name}, seed {seed}, bit {shift}: {chi}");
                }
            }
        }
    }

    const KNOWN: [(u64, usize, u64); 8] = [
        (0, 0, 0x6B94_2094_2DC2_136B),
        (1, 1, 0xE87A_0112_261F_243B),
        (1, 3, 0x4B4A_94E8_C6D7_D523),
        (1, 7, 0x331F_F853_F490_AD9B),
        (1, 8, 0x6B74_80A2_4D16_57B1),
        (0x1234_5678_9ABC_DEF0, 16, 0x518E_FCF1_83F0_00C1),
        (0x1234_5678_9ABC_DEF0, 17, 0x815F_288F_9C6E_18C6),
        (0x1234_5678_9ABC_DEF0, 250, 0xBA74_B5BC_5246_235C),
    ];

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
