//! The hot-key counters: which keys the sampled operations of all sessions named most.
//!
//! ```text
//! per table: groups of 256 bytes, each of 8 counters;  counter: hash (64) | weight (64) | error (64) | spread (64)
//! then, for each counter of the gets: a text of 128 bytes;  text: length (8) | bytes of the key (127 x 8)
//! ```
//!
//! A key's hash names its group in each table. [`crate::hot`] says what is counted and what the words promise.

use crate::atomics::AtomicU64;
use crate::memory::Shared;

/// What is counted, each in a table of its own, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum By {
    /// gets, whether they found something or not
    Gets = 0,
    /// stores and arithmetic, whatever became of them
    Sets = 1,
    /// bytes of values that gets gave out
    Bytes = 2,
}

impl By {
    /// All of them, in the order of their tables.
    pub const ALL: [Self; TABLES] = [Self::Gets, Self::Sets, Self::Bytes];
}

/// Tables.
pub const TABLES: usize = 3;
/// Counters of a group.
pub const WAYS: usize = 8;
/// Fewest and most groups of a table: with the most, the tables take 192 KiB, and the texts 256 KiB.
const GROUPS: (usize, usize) = (4, 256);
/// One group for this many buckets of the first index, which has a bucket for each 64 KiB: the tables take a seventh of a percent of a
/// small region, and the texts a fifth.
const BUCKETS_PER_GROUP: usize = 8;

/// One key's counter.
#[repr(C)]
pub struct HotCounter {
    /// the hash of the key that has it; 0: none has had it
    pub hash: AtomicU64,
    /// what was counted here, for this key and for those that had the counter before; it only rises
    pub weight: AtomicU64,
    /// the weight when this key got the counter
    pub error: AtomicU64,
    /// the sum of the squares of the weights of this key's samples since then, an IEEE 754 number: the variance that sampling gives to
    /// the weight (Horvitz, Thompson: "A generalization of sampling without replacement from a finite universe", Journal of the American
    /// Statistical Association 47, 1952)
    pub spread: AtomicU64,
}

/// The counters of the keys that share them.
#[repr(C, align(64))]
pub struct HotGroup {
    /// see [`HotCounter`]
    pub counters: [HotCounter; WAYS],
}

/// Words of a text.
pub const TEXT_WORDS: usize = 16;
/// Longest key that has a text, bytes.
pub const TEXT_MAX: usize = TEXT_WORDS * size_of::<u64>() - 1;

/// The key that has a counter of the gets, so that a key has its name even if it has no item. Sessions may write it at the same time: a
/// reader believes a text whose hash is the counter's.
#[repr(C, align(64))]
pub struct HotText {
    /// the length, 0 if the key is longer than [`TEXT_MAX`], and the key's bytes
    pub words: [AtomicU64; TEXT_WORDS],
}

const _: () = assert!(size_of::<HotGroup>() == 256 && size_of::<HotText>() == 128);
super::fields!(HotCounter {
    hash,
    weight,
    error,
    spread,
});
super::fields!(HotGroup { counters });
super::fields!(HotText { words });
// SAFETY: `repr(C)`, nothing but atomics.
#[allow(unsafe_code, reason = "the type is nothing but atomics")]
unsafe impl Shared for HotGroup {}
// SAFETY: `repr(C)`, nothing but atomics.
#[allow(unsafe_code, reason = "the type is nothing but atomics")]
unsafe impl Shared for HotText {}

/// Groups of each table in a region with this many buckets in its first index: a power of two.
pub const fn groups(buckets_initial: usize) -> usize {
    super::within(buckets_initial / BUCKETS_PER_GROUP, GROUPS)
}

/// The group of a hash among this many. Its bits choose neither a bucket nor the tag, so that the keys of a group are spread over
/// the index.
#[inline]
pub const fn group(hash: u64, groups: usize) -> usize {
    super::index(hash >> 40) & (groups - 1)
}
