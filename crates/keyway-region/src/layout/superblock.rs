//! The superblock: what a region is (fixed at creation, checksummed), and the words that all processes share.
//!
//! Feature bits as ext4 has them: an unknown *compatible* bit is ignored, an unknown *read-only compatible* one forbids
//! writing, an unknown *incompatible* one forbids opening.

use super::fingerprint::FINGERPRINT;
use super::plan::Shape;
use super::segment::{CLASSES_MAX, POOLS};
use crate::atomics::{AtomicU32, AtomicU64, Relaxed};
use crate::memory::Shared;

/// "KEYWAYR" and a line feed that text-mode transfers would change.
pub const MAGIC: u64 = u64::from_le_bytes(*b"KEYWAYR\n");
/// The magic number of a region that is being made: its maker holds the file's lock, or has died.
pub const MAGIC_UNFINISHED: u64 = u64::from_le_bytes(*b"KEYWAYu\n");
/// Version of the format. It is incremented by a change of meaning that neither feature bits nor the layout's fingerprint
/// express. Version 1 had no fingerprint.
pub const VERSION: u64 = 3;
/// Words of [`Superblock::program`]: 32 bytes hold any semantic version that a release has had.
pub const PROGRAM_WORDS: usize = 4;
/// The version of this program, as a superblock has it.
pub const PROGRAM: [u64; PROGRAM_WORDS] = program(env!("CARGO_PKG_VERSION").as_bytes());
/// Incompatible feature: durable mode. A reader, too, must write a dirty word back before it answers, so a program that does not
/// know the bit may not even read.
pub const DURABLE: u64 = 1;
/// Incompatible feature: every item and every part of a large value carries a checksum.
pub const CHECKSUMS: u64 = 2;
/// Incompatible features that this version knows.
pub const INCOMPATIBLE_KNOWN: u64 = DURABLE | CHECKSUMS;
/// Read-only compatible features that this version knows.
pub const READ_ONLY_COMPATIBLE_KNOWN: u64 = 0;
/// Bytes of the superblock.
pub const SIZE: usize = 4096;
/// Levels by which sparse segments are listed: dead sixteenths of a segment, from [`SPARSE_FROM`] on.
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
    /// zero
    pub unused: AtomicU64,
    pub shape: [AtomicU64; Shape::WORDS],
    /// XXH64 of the words above and of the two fields below
    pub checksum: AtomicU64,
    /// the layout for which it was made; see [`super::fingerprint`]
    pub fingerprint: AtomicU64,
    /// the version of the program that made it: text, filled up with zeros
    pub program: [AtomicU64; PROGRAM_WORDS],
    pad0: [AtomicU64; 64 - 12 - Shape::WORDS - PROGRAM_WORDS],

    // Read by every operation, seldom written: one cache line.
    /// number of buckets; see [`super::bucket`]
    pub table: AtomicU64,
    /// see [`FlushWord`]
    pub flush: AtomicU64,
    /// number of segments
    pub segments: AtomicU64,
    /// see [`ClockWord`]
    pub clock: AtomicU64,
    /// see [`DoorWord`]
    pub kernel_door: AtomicU64,
    /// 1 once any thread has put an item into a third bucket
    pub thirds: AtomicU64,
    /// items in segments that were opened before this sequence number are stale; 0: none are
    pub stale_before: AtomicU64,
    /// largest item, bytes, counted as memcached counts
    pub item_size_max: AtomicU32,
    /// what the region refuses: [`REFUSES_EVICTION`], [`REFUSES_FLUSHES`]
    pub refuses: AtomicU32,

    // Allocation: one cache line of words that are written about once per segment.
    /// the next CAS unique that belongs neither to an item nor to a segment: the next segment's sequence number
    pub sequence: AtomicU64,
    /// free segments, approximately
    pub free: AtomicU64,
    /// where to look for a free segment
    pub free_hint: AtomicU64,
    /// thread slots that were ever leased: none after them has a hazard pointer
    pub threads: AtomicU64,
    /// where the next sweep looks for segments in which everything is dead
    pub sweep: AtomicU64,
    /// items in the index, approximately: they start its growth
    pub items: AtomicU64,
    /// where the hints are aged next
    pub aging: AtomicU64,
    /// lines of the ghost table that are in use
    pub ghost_lines: AtomicU64,

    /// the open segment, plus 1, of each pool and TTL class: a hint
    pub open: [[AtomicU64; CLASSES_MAX]; POOLS],
    /// the same for long-lived items (*settled*), in each pool
    pub open_settled: [AtomicU64; POOLS],
    /// seconds since the last access to the item that was evicted last, when it was: for statistics
    pub evicted_idle_s: AtomicU64,
    pad2: [AtomicU64; 7 - POOLS],

    // The words by which a restart decides.
    /// [`STOPPED`] after a clean stop with everything written back, [`STOPPING`] shortly before it, otherwise 0
    pub clean: AtomicU64,
    /// the boot in which the region was last written
    pub boot_id: [AtomicU64; 2],
    /// see [`SeenWord`]
    pub seen: AtomicU64,
    /// the kernel program answers from copies until this instant of its clock at most, nanoseconds. Its owner stores it before
    /// it lets the program answer until then
    pub door_lease_ns: AtomicU64,
    pad3: [AtomicU64; 3],

    /// segments still to be checked for what dead threads held; see [`crate::Session::upkeep`]
    pub lost: AtomicU64,
    /// the kinds of events that watchers want, a bit each ([`super::watch::Kind`])
    pub watched: AtomicU64,
    /// segments that the memory limit keeps out of use: 0 without a limit
    pub withheld: AtomicU64,
    /// segments that are withdrawn, approximately: fewer than `withheld` while the region still shrinks
    pub withdrawn: AtomicU64,
    /// withdrawn segments whose pages were given back to the system, approximately
    pub given_back: AtomicU64,
    /// second of the region's clock until which the hot-key counters are looked at
    pub hot_until: AtomicU64,
    /// see [`super::trail::TrailWord`]
    pub trail: AtomicU64,
    /// see [`FlushAt`]
    pub flush_at: AtomicU64,

    /// the next stamp of an event for watchers: alone in its line, because every session increments it while they watch
    pub stamps: AtomicU64,
    pad5: [AtomicU64; 7],
    /// second of the region's clock until which each kind of event is watched
    pub watched_until: [AtomicU64; 8],

    /// which entries of `sparse` are filled, a bit each
    pub sparse_filled: [AtomicU32; 16],
    /// segments, plus 1, with many dead bytes: hints, by level
    pub sparse: [[AtomicU32; SPARSE_WAYS]; FREE + 1],
    reserved: [AtomicU64; 512 - 64 - 8 - 8 - 32 - 8 - 8 - 8 - 8 - 8 - 8 - (FREE + 1) * SPARSE_WAYS / 2],
}

const _: () = assert!(size_of::<Superblock>() == SIZE);
// Every version must find these, to say which program made the region.
const _: () = assert!(core::mem::offset_of!(Superblock, magic) == 0 && core::mem::offset_of!(Superblock, version) == 8);
const _: () = assert!(core::mem::offset_of!(Superblock, fingerprint) == 136 && core::mem::offset_of!(Superblock, program) == 144);
super::fields!(Superblock {
    magic,
    version,
    incompatible,
    read_only_compatible,
    compatible,
    id,
    seed,
    created_unix_s,
    unused,
    shape,
    checksum,
    fingerprint,
    program,
    pad0,
    table,
    flush,
    segments,
    clock,
    kernel_door,
    thirds,
    stale_before,
    item_size_max,
    refuses,
    sequence,
    free,
    free_hint,
    threads,
    sweep,
    items,
    aging,
    ghost_lines,
    open,
    open_settled,
    evicted_idle_s,
    pad2,
    clean,
    boot_id,
    seen,
    door_lease_ns,
    pad3,
    lost,
    watched,
    withheld,
    withdrawn,
    given_back,
    hot_until,
    trail,
    flush_at,
    stamps,
    pad5,
    watched_until,
    sparse_filled,
    sparse,
    reserved,
});
const _: () = assert!(core::mem::offset_of!(Superblock, table) == 512 && core::mem::offset_of!(Superblock, sequence) == 576);
// SAFETY: `repr(C)`, nothing but atomics.
#[allow(unsafe_code, reason = "the type is nothing but atomics")]
unsafe impl Shared for Superblock {}

impl Superblock {
    /// All words that name open segments.
    pub fn open_words(&self) -> impl Iterator<Item = &AtomicU64> {
        self.open.iter().flatten().chain(&self.open_settled)
    }

    /// The program that made the region.
    pub fn maker(&self) -> Maker {
        let format = self.version.load(Relaxed);
        let bytes = self.program.iter().flat_map(|word| word.load(Relaxed).to_le_bytes());
        Maker {
            program: bytes.map(char::from).take_while(char::is_ascii_graphic).collect(),
            format,
            layout: if format < 2 { 0 } else { self.fingerprint.load(Relaxed) },
        }
    }

    /// The right value of `checksum`.
    pub fn checksum_now(&self) -> u64 {
        // The magic number is stored last; its final value is used here.
        let mut bytes = MAGIC.to_le_bytes().to_vec();
        let fixed = [
            &self.version,
            &self.incompatible,
            &self.read_only_compatible,
            &self.compatible,
            &self.id[0],
            &self.id[1],
            &self.seed,
            &self.created_unix_s,
            &self.unused,
        ];
        let identity = core::iter::once(&self.fingerprint).chain(&self.program);
        for word in fixed.into_iter().chain(&self.shape).chain(identity) {
            bytes.extend_from_slice(&word.load(Relaxed).to_le_bytes());
        }
        xxhash_rust::xxh64::xxh64(&bytes, 0)
    }
}

/// In [`Superblock::refuses`]: nothing is evicted, a store into a full region fails.
pub const REFUSES_EVICTION: u32 = 1;
/// In [`Superblock::refuses`]: nothing flushes the region.
pub const REFUSES_FLUSHES: u32 = 2;

/// The last process has stopped cleanly.
pub const STOPPED: u64 = 1;
/// The last process is about to stop cleanly, if it is the last one.
pub const STOPPING: u64 = 2;

/// A program, described by the regions that it makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Maker {
    /// its version; empty where the format does not say
    pub program: String,
    /// version of the format
    pub format: u64,
    /// fingerprint of the layout; 0 in format 1, which has none
    pub layout: u64,
}

impl Maker {
    /// This program.
    pub fn this() -> Self {
        Self {
            program: env!("CARGO_PKG_VERSION").to_owned(),
            format: VERSION,
            layout: FINGERPRINT,
        }
    }
}

impl core::fmt::Display for Maker {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.program.as_str() {
            "" if self.format < VERSION => f.write_str("an older Keyway")?,
            "" => f.write_str("another Keyway")?,
            program => write!(f, "Keyway {program}")?,
        }
        match self.layout {
            0 => write!(f, " (format {})", self.format),
            layout => write!(f, " (format {}, layout {layout:016x})", self.format),
        }
    }
}

/// A version as the words of [`Superblock::program`]. What is too long is cut.
#[allow(clippy::indexing_slicing, reason = "below the bound that is checked, at compile time")]
const fn program(version: &[u8]) -> [u64; PROGRAM_WORDS] {
    let mut words = [0; PROGRAM_WORDS];
    let mut rest = version;
    let mut at = 0;
    while let [byte, following @ ..] = rest {
        if at == 8 * PROGRAM_WORDS {
            break;
        }
        words[at / 8] |= (*byte as u64) << (at % 8 * 8);
        rest = following;
        at += 1;
    }
    words
}

/// In the table word and the flush word: the rest of the word may not be persistent yet (durable mode).
pub const DIRTY: u64 = 1 << 63;

/// Flush epoch: 63 dirty | 62 a delayed flush begins when [`FlushAt`] says | 61 events are watched | 60..0 epoch. With ten million flushes a second the epochs
/// last for 7,000 years.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlushWord(pub u64);

impl FlushWord {
    const DELAYED: u64 = 1 << 62;
    /// Here, because every operation compares this word: [`Superblock::watched`] says which events.
    pub const WATCHED: u64 = 1 << 61;

    /// The word of a region in which this is the epoch.
    pub const fn new(epoch: u64) -> Self {
        Self(epoch & (Self::WATCHED - 1))
    }

    /// This word with the mark of a delayed flush.
    pub const fn delayed(self) -> Self {
        Self(self.0 | Self::DELAYED)
    }

    /// The epoch: items of older epochs are absent.
    #[inline]
    pub const fn epoch(self) -> u64 {
        self.0 & (Self::WATCHED - 1)
    }

    /// The word after a flush; a delayed flush is then over.
    pub const fn flushed(self) -> Self {
        Self(Self::new(self.epoch() + 1).0 | self.0 & Self::WATCHED)
    }

    /// Whether it says more than an epoch: a delayed flush, one that may not be persistent yet, or that events are watched.
    #[inline]
    pub const fn is_pending(self) -> bool {
        self.0 & (DIRTY | Self::DELAYED | Self::WATCHED) != 0
    }

    /// Whether there is a delayed flush.
    pub const fn is_delayed(self) -> bool {
        self.0 & Self::DELAYED != 0
    }
}

/// When a delayed flush begins: 63..32 the epoch that it ends, low bits | 31..0 tick of the region's clock.
///
/// It is written before the flush word says that there is a delayed flush. So, as long as the flush word says so, both have the
/// same epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlushAt(pub u64);

impl FlushAt {
    /// A word of these parts.
    pub const fn new(epoch: u64, at: u32) -> Self {
        Self(epoch << 32 | at as u64)
    }

    /// Whether the flush ends this epoch.
    pub const fn is_of(self, epoch: u64) -> bool {
        self.0 >> 32 == epoch & 0xFFFF_FFFF
    }

    /// A tick of the region's clock.
    pub const fn at(self) -> u32 {
        (self.0 & 0xFFFF_FFFF) as u32
    }
}

/// Units of the clock word's offset per second: fine enough for the clock's seconds to begin with those of Unix time.
pub const CLOCK_UNITS_PER_S: i64 = 16;

/// Bits of the offset.
const CLOCK_OFFSET_BITS: u32 = 36;

/// The region's clock minus the machine's boot clock, and the boot in which that is valid: 63..36 boot, from its identity; 0:
/// not known | 35..0 offset in sixteenths of a second, two's complement: 68 years either way.
///
/// Two successive boots have the same 28 bits once in 268 million times. Then the clock is late by the time that the first one lasted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockWord(pub u64);

impl ClockWord {
    /// A word of these parts.
    pub const fn new(boot: u64, units: i64) -> Self {
        Self(boot << CLOCK_OFFSET_BITS | units.cast_unsigned() & ((1 << CLOCK_OFFSET_BITS) - 1))
    }

    /// The bits of a boot; 0 for one that is not known.
    pub fn boot(id: [u64; 2]) -> u64 {
        if id == [0; 2] {
            return 0;
        }
        let bytes = id.map(u64::to_le_bytes);
        (xxhash_rust::xxh64::xxh64(bytes.as_flattened(), 0) >> CLOCK_OFFSET_BITS).max(1)
    }

    /// Whether it is valid in the boot with these bits.
    pub fn is_of(self, boot: u64) -> bool {
        self.0 >> CLOCK_OFFSET_BITS == boot
    }

    /// The offset.
    pub fn units(self) -> i64 {
        const UNUSED: u32 = 64 - CLOCK_OFFSET_BITS;
        (self.0 << UNUSED).cast_signed() >> UNUSED
    }
}

/// When the region was last in use, by both clocks: 63..32 seconds on the region's clock | 31..0 Unix seconds (until 2106). It only rises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenWord(pub u64);

impl SeenWord {
    /// A word of these parts.
    pub const fn new(clock_s: u32, unix_s: u32) -> Self {
        Self((clock_s as u64) << 32 | unix_s as u64)
    }

    /// Seconds on the region's clock.
    pub fn clock_s(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Unix seconds at that moment.
    pub fn unix_s(self) -> u32 {
        (self.0 & 0xFFFF_FFFF) as u32
    }
}

/// The kernel door: 63..40 number | 39..16 incarnation of the owner's process slot, low bits | 15..1 that slot | 0 on.
///
/// While it is on, every change is counted (see the region's `stripes`). It gets another number each time that it is turned on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DoorWord(pub u64);

impl DoorWord {
    /// The word with which this process turns the door on after `self`.
    #[must_use]
    pub const fn next(self, slot: usize, incarnation: u64) -> Self {
        Self(((self.0 >> 40) + 1) << 40 | (incarnation & 0xFF_FFFF) << 16 | (slot as u64 & 0x7FFF) << 1 | 1)
    }

    /// The word that turns the door off.
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
