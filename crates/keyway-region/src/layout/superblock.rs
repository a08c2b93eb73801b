//! The superblock: what a region is (fixed at creation, checksummed), and the words that all its users share.
//!
//! Feature bits as ext4 has them: an unknown *compatible* bit is ignored, an unknown *read-only compatible* one forbids
//! writing, an unknown *incompatible* one forbids opening.

use super::plan::Shape;
use super::segment::{CLASSES_MAX, EPOCH_MAX, POOLS};
use crate::atomics::{AtomicU32, AtomicU64, Relaxed};
use crate::memory::Shared;

/// "KEYWAYR" and a line feed that text-mode transfers would change.
pub const MAGIC: u64 = u64::from_le_bytes(*b"KEYWAYR\n");
/// Version of the format. Changes that feature bits cannot express raise it.
pub const VERSION: u64 = 1;
/// Incompatible feature: strict persistence. A reader, too, must write a dirty word back before it answers, so a program that
/// does not know the bit may not even read.
pub const STRICT: u64 = 1;
/// Incompatible feature: every item and every part of a large value carries a checksum.
pub const CHECKSUMS: u64 = 2;
/// Incompatible features that this version knows.
pub const INCOMPATIBLE_KNOWN: u64 = STRICT | CHECKSUMS;
/// Read-only compatible features that this version knows.
pub const READ_ONLY_COMPATIBLE_KNOWN: u64 = 0;
/// Bytes of the superblock.
pub const SIZE: usize = 4096;
/// Levels of deadness by which sparse segments are listed, in sixteenths of a segment: the first is [`SPARSE_FROM`].
pub const SPARSE_LEVELS: usize = 12;
/// The first level's sixteenths.
pub const SPARSE_FROM: u64 = 16 - SPARSE_LEVELS as u64;
/// The level above all others: segments that are free.
pub const FREE: usize = SPARSE_LEVELS;
/// Segments that are listed at a level.
pub const SPARSE_WAYS: usize = 32;

/// The first page of a region.
#[allow(missing_docs, reason = "fields without a comment are named like what they hold")]
#[repr(C, align(4096))]
pub struct Superblock {
    // Fixed at creation.
    pub magic: AtomicU64,
    pub version: AtomicU64,
    pub incompatible: AtomicU64,
    pub read_only_compatible: AtomicU64,
    pub compatible: AtomicU64,
    pub id: [AtomicU64; 2],
    pub seed: AtomicU64,
    pub created_unix_s: AtomicU64,
    /// Unix seconds at which the region's clock says 0
    pub clock_base_unix_s: AtomicU64,
    pub shape: [AtomicU64; Shape::WORDS],
    /// XXH64 of all words above
    pub checksum: AtomicU64,
    pad0: [AtomicU64; 64 - 11 - Shape::WORDS],

    // Read by every operation, written seldom: one line.
    /// number of buckets; see [`super::bucket`]
    pub table: AtomicU64,
    /// see [`FlushWord`]
    pub flush: AtomicU64,
    /// segments that there are
    pub segments: AtomicU64,
    /// high-water mark of the region's clock, seconds
    pub clock: AtomicU64,
    /// see [`DoorWord`]
    pub kernel_door: AtomicU64,
    /// 1 once anybody has put an item into a third bucket
    pub thirds: AtomicU64,
    /// items in segments that were opened before this sequence number are stale; 0: none are
    pub stale_before: AtomicU64,
    pad1: [AtomicU64; 1],

    // Allocation: one line of words written at every segment or so.
    /// the next segment's sequence number
    pub sequence: AtomicU64,
    /// free segments, about
    pub free: AtomicU64,
    /// where to look for a free segment
    pub free_hint: AtomicU64,
    /// thread slots that were ever leased: none beyond has an intent
    pub threads: AtomicU64,
    /// where to look for segments that are dead as a whole
    pub sweep: AtomicU64,
    /// items in the index, about: what starts its growth
    pub items: AtomicU64,
    /// where the hints are aged next
    pub aging: AtomicU64,
    /// lines of the ghost table that are in use
    pub ghost_lines: AtomicU64,

    /// the open segment, plus 1, of each pool and TTL class: a hint
    pub open: [[AtomicU64; CLASSES_MAX]; POOLS],
    /// the same of what stands briefly, and of what is settled, in each pool
    pub open_brief: [AtomicU64; POOLS],
    /// see `open_brief`
    pub open_settled: [AtomicU64; POOLS],
    pad2: [AtomicU64; 8 - 2 * POOLS],

    // What a restart decides by.
    /// 1 after a clean stop with everything written back
    pub clean: AtomicU64,
    /// the boot in which the region was last written
    pub boot_id: [AtomicU64; 2],
    /// Unix seconds of the last attach, detach or upkeep
    pub last_seen_unix_s: AtomicU64,
    /// the kernel program answers from copies until this instant of its clock at most, nanoseconds; its owner sets it, before he
    /// lets the program answer so long
    pub door_lease_ns: AtomicU64,
    pad3: [AtomicU64; 3],

    /// segments still to be looked at for what the dead held; see [`crate::Session::upkeep`]
    pub lost: AtomicU64,
    pad4: [AtomicU64; 7],

    /// which entries of `sparse` are filled, a bit each
    pub sparse_filled: [AtomicU32; 16],
    /// segments, plus 1, of which much is dead: hints, by level
    pub sparse: [[AtomicU32; SPARSE_WAYS]; FREE + 1],
    reserved: [AtomicU64; 512 - 64 - 8 - 8 - 32 - 8 - 8 - 8 - 8 - (FREE + 1) * SPARSE_WAYS / 2],
}

const _: () = assert!(size_of::<Superblock>() == SIZE);
const _: () = assert!(core::mem::offset_of!(Superblock, table) == 512 && core::mem::offset_of!(Superblock, sequence) == 576);
// SAFETY: `repr(C)`, nothing but atomics.
#[allow(unsafe_code, reason = "the type is nothing but atomics")]
unsafe impl Shared for Superblock {}

impl Superblock {
    /// All words that name open segments.
    pub fn open_words(&self) -> impl Iterator<Item = &AtomicU64> {
        self.open.iter().flatten().chain(&self.open_brief).chain(&self.open_settled)
    }

    /// What `checksum` must be.
    pub fn checksum_now(&self) -> u64 {
        let fixed = [
            &self.magic,
            &self.version,
            &self.incompatible,
            &self.read_only_compatible,
            &self.compatible,
            &self.id[0],
            &self.id[1],
            &self.seed,
            &self.created_unix_s,
            &self.clock_base_unix_s,
        ];
        let mut bytes = Vec::with_capacity(8 * (fixed.len() + Shape::WORDS));
        for word in fixed.into_iter().chain(&self.shape) {
            bytes.extend_from_slice(&word.load(Relaxed).to_le_bytes());
        }
        xxhash_rust::xxh64::xxh64(&bytes, 0)
    }
}

/// In the table word and the flush word: the rest of the word may not be persistent yet (strict mode).
pub const DIRTY: u64 = 1 << 63;

/// Flush epoch, and when the next one begins: 63 dirty | 62..24 seconds on the region's clock or 0 | 23..0 epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlushWord(pub u64);

impl FlushWord {
    /// Puts it together.
    pub fn new(epoch: u32, at: u32) -> Self {
        debug_assert!(epoch <= EPOCH_MAX);
        Self(u64::from(at) << 24 | u64::from(epoch))
    }

    /// The epoch: items of older ones are absent.
    #[inline]
    pub fn epoch(self) -> u32 {
        (self.0 & 0xFF_FFFF) as u32
    }

    /// When a delayed flush begins, seconds on the region's clock; 0 for never.
    #[inline]
    pub fn at(self) -> u32 {
        u32::try_from((self.0 & !DIRTY) >> 24).unwrap_or(u32::MAX)
    }

    /// Whether it says more than an epoch: a delayed flush, or one that may not be persistent yet.
    #[inline]
    pub fn is_pending(self) -> bool {
        self.0 >> 24 != 0
    }

    /// Whether the delayed flush is due.
    #[inline]
    pub fn is_due(self, now: u32) -> bool {
        let at = self.at();
        at != 0 && at <= now
    }
}

/// The kernel door: 63..40 number | 39..16 incarnation of the owner's process slot, low bits | 15..1 that slot | 0 on.
///
/// While it is on, every change is counted (see the region's `stripes`). Each time that it is turned on it has another number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DoorWord(pub u64);

impl DoorWord {
    /// The word with which this process turns it on after `self`.
    #[must_use]
    pub fn next(self, slot: usize, incarnation: u64) -> Self {
        Self(((self.0 >> 40) + 1) << 40 | (incarnation & 0xFF_FFFF) << 16 | (slot as u64 & 0x7FFF) << 1 | 1)
    }

    /// The word that turns it off.
    #[must_use]
    pub fn off(self) -> Self {
        Self(self.0 >> 40 << 40)
    }

    /// Whether changes are counted.
    #[inline]
    pub fn is_on(self) -> bool {
        self.0 & 1 != 0
    }

    /// The process slot of its owner.
    pub fn slot(self) -> usize {
        super::index(self.0 >> 1 & 0x7FFF)
    }

    /// Whether the owner's process slot was in this incarnation.
    pub fn is_of_incarnation(self, incarnation: u64) -> bool {
        (self.0 >> 16) & 0xFF_FFFF == incarnation & 0xFF_FFFF
    }
}
