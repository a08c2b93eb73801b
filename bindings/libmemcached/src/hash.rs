//! libmemcached's hashes: which of a handle's servers a key belongs to. On one region it makes no difference, but
//! programs ask for it.
//!
//! The algorithms are public (Bob Jenkins' one-at-a-time and lookup3, FNV-1 and FNV-1a, CRC-32, MD5, Austin Appleby's
//! MurmurHash2 and 3). `tests/hash.c` shows what libmemcached uses of them, and where it treats a byte as signed.
//!
//! # Safety
//!
//! For functions that C calls, the caller guarantees that a key has the given length.
#![allow(unsafe_code, reason = "C function pointers; contract above")]

use crate::export::{handle_functions, plain_functions};
use crate::handle::{self, Handle};
use crate::types::*;
use std::ffi::{c_char, c_void};

pub(crate) const MD5: u32 = 1;
pub(crate) const CUSTOM: u32 = 11;
pub(crate) const MAX: u32 = 12;
const HSIEH: u32 = 7;

/// Whether a handle may use this hash. libmemcached's usual builds do not have Hsieh's hash either.
pub(crate) fn is_known(hash: u32) -> bool {
    hash < CUSTOM && hash != HSIEH
}

/// The structure that programs may read.
pub(crate) fn kit(base: u32, distribution: u32) -> hashkit_st {
    let one = |hash: u32| hashkit_function_st {
        function: Some(FUNCTIONS.get(hash as usize).copied().unwrap_or(function::<0>)),
        context: std::ptr::null_mut(),
    };
    hashkit_st {
        base_hash: one(base),
        distribution_hash: one(distribution),
        flags: 0,
        options: 0,
        key: std::ptr::null_mut(),
    }
}

const FUNCTIONS: [HashFn; 11] = [
    function::<0>,
    function::<1>,
    function::<2>,
    function::<3>,
    function::<4>,
    function::<5>,
    function::<6>,
    function::<7>,
    function::<8>,
    function::<9>,
    function::<10>,
];

unsafe extern "C" fn function<const HASH: u32>(key: *const c_char, length: usize, _: *mut c_void) -> u32 {
    // SAFETY: guaranteed by the caller.
    value(unsafe { bytes(key, length) }, HASH)
}

/// # Safety
///
/// The key is NULL or has the given number of bytes.
unsafe fn bytes<'a>(key: *const c_char, length: usize) -> &'a [u8] {
    if key.is_null() || length == 0 {
        return &[];
    }
    // SAFETY: guaranteed by the caller.
    unsafe { std::slice::from_raw_parts(key.cast(), length) }
}

/// The number of the server that a key belongs to.
pub(crate) fn server(st: &memcached_st, handle: &Handle, key: &[u8]) -> u32 {
    let count = u32::try_from(handle.servers.len()).unwrap_or(u32::MAX);
    if count < 2 {
        return 0;
    }
    let mut whole = Vec::new();
    let key = match &handle.namespace {
        Some(namespace) if st.is(Flag::HashWithNamespace) => {
            whole.extend_from_slice(namespace.to_bytes());
            whole.extend_from_slice(key);
            &whole
        }
        _ => key,
    };
    let hash = match handle
        .kit
        .and_then(|kit| Some((kit.base_hash.function?, kit.base_hash.context)))
    {
        // SAFETY: the program's own function, called as the program requested.
        Some((function, context)) => unsafe { function(key.as_ptr().cast(), key.len(), context) },
        None => value(key, handle.hash),
    };
    match &handle.buckets {
        Some(buckets) if st.distribution == 6 => {
            let masked = hash as usize & (buckets.host.len() - 1);
            buckets.host.get(masked).copied().unwrap_or(0) % count
        }
        _ => hash % count,
    }
}

/// A key's hash; 1 if there is no such hash.
fn value(key: &[u8], hash: u32) -> u32 {
    match hash {
        0 => one_at_a_time(key),
        MD5 => md5(key),
        2 => (crc32(key) >> 16) & 0x7fff,
        3 => fnv1_64(key),
        4 => fnv(key, 0x8422_2325, 0x1b3, true),
        5 => fnv(key, 2_166_136_261, 16_777_619, false),
        6 => fnv(key, 2_166_136_261, 16_777_619, true),
        8 => murmur2(key),
        9 => lookup3(key),
        10 => murmur3(key),
        _ => 1,
    }
}

/// A byte, widened as a C `char` on x86-64.
fn widened(byte: u8) -> u32 {
    i32::from(byte.cast_signed()).cast_unsigned()
}

fn one_at_a_time(key: &[u8]) -> u32 {
    let mut hash = 0_u32;
    for byte in key {
        hash = hash.wrapping_add(widened(*byte));
        hash = hash.wrapping_add(hash << 10);
        hash ^= hash >> 6;
    }
    hash = hash.wrapping_add(hash << 3);
    hash ^= hash >> 11;
    hash.wrapping_add(hash << 15)
}

fn fnv(key: &[u8], start: u32, prime: u32, first_xor: bool) -> u32 {
    key.iter().fold(start, |hash, byte| {
        if first_xor {
            (hash ^ widened(*byte)).wrapping_mul(prime)
        } else {
            hash.wrapping_mul(prime) ^ widened(*byte)
        }
    })
}

#[allow(clippy::cast_possible_truncation, reason = "the lower half is what libmemcached takes")]
fn fnv1_64(key: &[u8]) -> u32 {
    let hash = key.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        hash.wrapping_mul(0x100_0000_01b3) ^ i64::from(byte.cast_signed()).cast_unsigned()
    });
    hash as u32
}

fn crc32(key: &[u8]) -> u32 {
    !key.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ if crc & 1 == 1 { 0xedb8_8320 } else { 0 }
        })
    })
}

/// Up to four bytes, the first one lowest.
fn word(bytes: &[u8]) -> u32 {
    bytes.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte))
}

#[allow(clippy::cast_possible_truncation, reason = "a key's length")]
fn murmur2(key: &[u8]) -> u32 {
    const M: u32 = 0x5bd1_e995;
    let len = key.len() as u32;
    let mut hash = 0xdead_beef_u32.wrapping_mul(len) ^ len;
    let blocks = key.chunks_exact(4);
    let rest = blocks.remainder();
    for block in blocks {
        let mut k = word(block).wrapping_mul(M);
        k ^= k >> 24;
        hash = hash.wrapping_mul(M) ^ k.wrapping_mul(M);
    }
    if !rest.is_empty() {
        hash = (hash ^ word(rest)).wrapping_mul(M);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(M);
    hash ^ (hash >> 15)
}

#[allow(clippy::cast_possible_truncation, reason = "a key's length")]
fn murmur3(key: &[u8]) -> u32 {
    let len = key.len() as u32;
    let mixed = |word: u32| word.wrapping_mul(0xcc9e_2d51).rotate_left(15).wrapping_mul(0x1b87_3593);
    let mut hash = 0xdead_beef_u32.wrapping_mul(len);
    let blocks = key.chunks_exact(4);
    let rest = blocks.remainder();
    for block in blocks {
        hash = (hash ^ mixed(word(block)))
            .rotate_left(13)
            .wrapping_mul(5)
            .wrapping_add(0xe654_6b64);
    }
    hash ^= mixed(word(rest));
    hash ^= len;
    hash = (hash ^ (hash >> 16)).wrapping_mul(0x85eb_ca6b);
    hash = (hash ^ (hash >> 13)).wrapping_mul(0xc2b2_ae35);
    hash ^ (hash >> 16)
}

#[allow(clippy::cast_possible_truncation, reason = "a key's length")]
#[allow(clippy::many_single_char_names, reason = "lookup3's own names")]
fn lookup3(key: &[u8]) -> u32 {
    let start = 0xdead_beef_u32.wrapping_add(key.len() as u32).wrapping_add(13);
    let [mut a, mut b, mut c] = [start; 3];
    let mut rest = key;
    while rest.len() > 12 {
        let (block, after) = rest.split_at(12);
        let (first, second) = block.split_at(4);
        let (second, third) = second.split_at(4);
        a = a.wrapping_add(word(first));
        b = b.wrapping_add(word(second));
        c = c.wrapping_add(word(third));
        for (x, y, z, turn) in [
            (0, 2, 1, 4),
            (1, 0, 2, 6),
            (2, 1, 0, 8),
            (0, 2, 1, 16),
            (1, 0, 2, 19),
            (2, 1, 0, 4),
        ] {
            let mut s = [a, b, c];
            s[x] = s[x].wrapping_sub(s[y]) ^ s[y].rotate_left(turn);
            s[y] = s[y].wrapping_add(s[z]);
            [a, b, c] = s;
        }
        rest = after;
    }
    if rest.is_empty() {
        return c;
    }
    let part = |from: usize| word(rest.get(from..rest.len().min(from + 4)).unwrap_or_default());
    a = a.wrapping_add(part(0));
    b = b.wrapping_add(part(4));
    c = c.wrapping_add(part(8));
    for (x, y, turn) in [
        (2, 1, 14),
        (0, 2, 11),
        (1, 0, 25),
        (2, 1, 16),
        (0, 2, 4),
        (1, 0, 14),
        (2, 1, 24),
    ] {
        let mut s = [a, b, c];
        s[x] = (s[x] ^ s[y]).wrapping_sub(s[y].rotate_left(turn));
        [a, b, c] = s;
    }
    c
}

/// The first four bytes of RFC 1321's digest.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "RFC 1321's table is the whole part of 2^32 times a sine"
)]
fn md5(key: &[u8]) -> u32 {
    const TURNS: [[u32; 4]; 4] = [[7, 12, 17, 22], [5, 9, 14, 20], [4, 11, 16, 23], [6, 10, 15, 21]];
    let table: Vec<u32> = (1..=64)
        .map(|i| (f64::from(i).sin().abs() * 4_294_967_296.0) as u32)
        .collect();
    let mut message = key.to_vec();
    message.push(0x80);
    let padded = (key.len() + 9).next_multiple_of(64);
    message.resize(padded - 8, 0);
    message.extend_from_slice(&(key.len() as u64 * 8).to_le_bytes());
    let mut state = [0x6745_2301_u32, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476];
    for block in message.chunks_exact(64) {
        let words: Vec<u32> = block.chunks_exact(4).map(word).collect();
        let [mut a, mut b, mut c, mut d] = state;
        for step in 0..64 {
            let (mixed, at) = match step / 16 {
                0 => (b & c | !b & d, step),
                1 => (d & b | !d & c, 5 * step + 1),
                2 => (b ^ c ^ d, 3 * step + 5),
                _ => (c ^ (b | !d), 7 * step),
            };
            let sum = a.wrapping_add(mixed).wrapping_add(table[step]).wrapping_add(words[at % 16]);
            (a, d, c) = (d, c, b);
            b = b.wrapping_add(sum.rotate_left(TURNS[step / 16][step % 4]));
        }
        for (whole, part) in state.iter_mut().zip([a, b, c, d]) {
            *whole = whole.wrapping_add(part);
        }
    }
    state[0]
}

handle_functions! {
    fn memcached_generate_hash(st: *const memcached_st, key: *const c_char, length: usize) -> u32 = u32::MAX;
        Some(server(&*st, handle::of(st), bytes(key, length)))
}

plain_functions! {
    fn memcached_generate_hash_value(key: *const c_char, length: usize, hash: u32) -> u32 = 1; value(bytes(key, length), hash)

    fn libmemcached_string_hash(hash: u32) -> *const c_char = c"".as_ptr(); match hash {
        0 => c"DEFAULT",
        1 => c"MD5",
        2 => c"CRC",
        3 => c"FNV1_64",
        4 => c"FNV1A_64",
        5 => c"FNV1_32",
        6 => c"FNV1A_32",
        7 => c"HSIEH",
        8 => c"MURMUR",
        9 => c"JENKINS",
        10 => c"MURMUR3",
        CUSTOM => c"CUSTOM",
        _ => c"INVALID",
    }.as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_have_the_values_that_their_authors_publish() {
        assert_eq!(md5(b""), u32::from_le_bytes([0xd4, 0x1d, 0x8c, 0xd9]));
        assert_eq!(md5(b"abc"), u32::from_le_bytes([0x90, 0x01, 0x50, 0x98]));
        let digits = b"12345678901234567890123456789012345678901234567890123456789012345678901234567890";
        assert_eq!(md5(digits), u32::from_le_bytes([0x57, 0xed, 0xf4, 0xa2]));
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        assert_eq!(fnv(b"a", 2_166_136_261, 16_777_619, true), 0xe40c_292c);
        assert_eq!(fnv(b"a", 2_166_136_261, 16_777_619, false), 0x050c_5d7e);
        assert_eq!(one_at_a_time(b"a"), 0xca2e_9442);
    }
}
