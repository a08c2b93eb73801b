//! Making a region out of zeroed memory, and opening the one that is in some memory.
//!
//! Never: trusts a word of the superblock that it has not checked.

use crate::atomics::{Acquire, OwnFlag, OwnNumber, Relaxed, Release};
use crate::changes::Offered;
use crate::durable::Persist;
use crate::hash::Hasher;
use crate::layout::bucket;
use crate::layout::fingerprint::FINGERPRINT;
use crate::layout::item;
use crate::layout::plan::{Layout, Shape};
use crate::layout::segment::{Kind, SegmentLife, State};
use crate::layout::slot::{ROUNDS_MAX, Slot};
use crate::layout::superblock::{self, Maker, Superblock};
use crate::memory::Memory;
use crate::region::clock::Moment;
use crate::region::faulted::Faulted;
use crate::region::known::Known;
use crate::region::{Host, Limits, Region};

/// See [`Creation::first_unique`].
const FIRST_UNIQUE_BELOW: u64 = 1 << 24;
/// Regions up to this many bytes note last accesses to the second: a sweep over the hints of that many items takes some
/// milliseconds each second.
const FINE_HINTS_MEMORY_MAX: u64 = 4 << 30;

/// The properties of a new region.
#[derive(Clone, Copy, Debug)]
pub struct Creation {
    /// its layout
    pub shape: Shape,
    /// segments backed by memory
    pub segments: usize,
    /// random: distinguishes this region from any other
    pub id: [u64; 2],
    /// random: the hash's seed
    pub seed: u64,
    /// the present moment
    pub now: Moment,
    /// the boot's identity, from the kernel
    pub boot_id: [u64; 2],
    /// items carry checksums
    pub checksums: bool,
    /// what it allows at first
    pub limits: Limits,
}

impl Creation {
    /// Its first CAS unique: less than [`FIRST_UNIQUE_BELOW`], and at random, so that few clients that keep a unique of the region that was
    /// there before find it again.
    fn first_unique(&self) -> u64 {
        1 + self.id[0] % FIRST_UNIQUE_BELOW
    }
}

/// Why bytes are not a usable region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// shorter than a superblock, or shorter than it says
    Truncated {
        /// the bytes that are present
        len: usize,
        /// the bytes that there should be
        wanted: usize,
    },
    /// no region at all
    NotARegion,
    /// it is being made, or its maker died before it was complete
    Unfinished,
    /// made by a program with another layout
    Layout {
        /// the program that made it
        made_by: Maker,
        /// this program
        this: Maker,
    },
    /// features that this version does not know
    Features {
        /// the unknown bits
        unknown: u64,
    },
    /// a region in durable mode on memory, or with a processor, that cannot make its changes persistent
    NotPersistent(&'static str),
    /// the superblock is corrupted: it does not match its checksum, or has an impossible value
    Damaged(&'static str),
}

impl core::fmt::Display for Unusable {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Truncated { len, wanted } => write!(f, "the file has {len} bytes, its region needs {wanted}: it was truncated"),
            Self::NotARegion => f.write_str("the file is no Keyway region (wrong magic number)"),
            Self::Unfinished => f.write_str("the region is not finished: its maker is at work, or died"),
            Self::Layout { made_by, this } => write!(
                f,
                "the region was made by {made_by}, and this is {this}, which uses regions of its own layout only; to keep the items, \
                 send the output of the other program's `keyway dump` to a server with a new region"
            ),
            Self::Features { unknown } => write!(
                f,
                "the region uses features that this program does not know (bits {unknown:#x})"
            ),
            Self::NotPersistent(what) => write!(f, "the region was made with --durable, and {what}"),
            Self::Damaged(what) => write!(f, "the region's superblock is damaged: {what}"),
        }
    }
}

impl core::error::Error for Unusable {}

impl Region {
    /// Makes a region out of zeroed memory.
    ///
    /// # Errors
    ///
    /// The memory is too small, or cannot hold such a region.
    pub fn create(memory: Memory, creation: &Creation, host: Box<dyn Host>) -> Result<Self, Unusable> {
        let region = Self::unfinished(memory, creation, host)?;
        region.finish();
        Ok(region)
    }

    /// The same without the last step, [`Self::finish`]: a maker that dies before that step leaves a region with the unfinished mark.
    ///
    /// # Errors
    ///
    /// As above.
    pub fn unfinished(memory: Memory, creation: &Creation, host: Box<dyn Host>) -> Result<Self, Unusable> {
        let layout = Layout::new(creation.shape);
        let wanted = layout.len(creation.segments);
        if memory.len() < wanted {
            return Err(Unusable::Truncated {
                len: memory.len(),
                wanted,
            });
        }
        let sb: &Superblock = memory.get(0);
        sb.magic.store(superblock::MAGIC_UNFINISHED, Relaxed);
        sb.version.store(superblock::VERSION, Relaxed);
        sb.fingerprint.store(FINGERPRINT, Relaxed);
        for (word, value) in sb.program.iter().zip(superblock::PROGRAM) {
            word.store(value, Relaxed);
        }
        let durable = if host.is_persistent() { superblock::DURABLE } else { 0 };
        let checksums = if creation.checksums { superblock::CHECKSUMS } else { 0 };
        sb.incompatible.store(durable | checksums, Relaxed);
        for (word, value) in sb.id.iter().zip(creation.id) {
            word.store(value, Relaxed);
        }
        sb.seed.store(creation.seed, Relaxed);
        sb.created_unix_s.store(creation.now.unix.as_secs(), Relaxed);
        sb.clock.store(Self::first_clock(creation.boot_id, creation.now).0, Relaxed);
        for (word, value) in sb.shape.iter().zip(creation.shape.to_words()) {
            word.store(value, Relaxed);
        }
        sb.sequence.store(creation.first_unique(), Relaxed);
        sb.segments.store(creation.segments as u64, Relaxed);
        sb.free.store(creation.segments as u64, Relaxed);
        sb.table.store(creation.shape.buckets_initial as u64, Relaxed);
        for (word, value) in sb.boot_id.iter().zip(creation.boot_id) {
            word.store(value, Relaxed);
        }
        let region = Self::assemble(memory, layout, creation.segments, host)?;
        for segment in 0..creation.segments {
            region.words(segment).generation.store(SegmentLife::FIRST.generation, Relaxed);
        }
        region.set_limits(&creation.limits);
        region.create_index();
        region.see(creation.now);
        let sb = region.superblock();
        sb.checksum.store(sb.checksum_now(), Relaxed);
        Ok(region)
    }

    /// PUBLISH: the magic number, with which the region can be opened. Everything before it is in place.
    pub fn finish(&self) {
        // PAIRS: magic: the load in `inspect`: a process that finds the magic number finds the rest.
        self.superblock().magic.store(superblock::MAGIC, Release);
    }

    /// The first index: the first segments, every slot empty.
    fn create_index(&self) {
        let buckets = self.layout.shape.buckets_initial;
        let index = buckets.div_ceil(self.layout.shape.buckets_per_segment());
        let hints = index.div_ceil(bucket::SLOTS);
        for i in 0..index + hints {
            let (kind, entry) = if i < index {
                (Kind::Index, self.bucket_directory(i))
            } else {
                (Kind::Hints, self.hint_directory(i - index))
            };
            self.header(i).state.store(State::new(kind, 0).0, Relaxed);
            entry.store(u32::try_from(i + 1).unwrap_or(0), Relaxed);
        }
        self.superblock().free.fetch_sub((index + hints) as u64, Relaxed);
        for number in 0..buckets as u64 {
            if let Some(at) = self.bucket(number) {
                for i in 0..bucket::SLOTS {
                    self.word(at + i * 8).store(Slot::EMPTY.0, Relaxed);
                }
            }
        }
    }

    /// Checks that the memory holds a region, in constant time.
    pub fn open(memory: Memory, host: Box<dyn Host>) -> Result<Self, Unusable> {
        let (layout, segments) = Self::inspect(&memory, || host.file_len())?;
        if memory.len() < layout.len_max {
            return Err(Unusable::Truncated {
                len: memory.len(),
                wanted: layout.len_max,
            });
        }
        let region = Self::assemble(memory, layout, segments, host)?;
        region.secure_segments();
        Ok(region)
    }

    /// The layout of the region in this memory, and its number of segments. `file_len` says how many bytes from its start may be
    /// touched now. It is called after each number that it limits was read, because the region may grow meanwhile.
    pub fn inspect(memory: &Memory, file_len: impl Fn() -> usize) -> Result<(Layout, usize), Unusable> {
        let len = file_len().min(memory.len());
        if len < superblock::SIZE {
            return Err(Unusable::Truncated {
                len,
                wanted: superblock::SIZE,
            });
        }
        let sb: &Superblock = memory.get(0);
        // PAIRS: magic: the store in `finish`.
        match sb.magic.load(Acquire) {
            superblock::MAGIC => {}
            superblock::MAGIC_UNFINISHED => return Err(Unusable::Unfinished),
            _ => return Err(Unusable::NotARegion),
        }
        let (made_by, this) = (sb.maker(), Maker::this());
        if (made_by.format, made_by.layout) != (this.format, this.layout) {
            return Err(Unusable::Layout { made_by, this });
        }
        let unknown = sb.incompatible.load(Relaxed) & !superblock::INCOMPATIBLE_KNOWN
            | sb.read_only_compatible.load(Relaxed) & !superblock::READ_ONLY_COMPATIBLE_KNOWN;
        if unknown != 0 {
            return Err(Unusable::Features { unknown });
        }
        if sb.checksum.load(Relaxed) != sb.checksum_now() {
            return Err(Unusable::Damaged("its checksum does not match"));
        }
        let words = core::array::from_fn(|i| sb.shape.get(i).map_or(0, |w| w.load(Relaxed)));
        let shape = Shape::from_words(words).ok_or(Unusable::Damaged("no region has this shape"))?;
        let layout = Layout::new(shape);
        // PAIRS: segments: `publish_segments`: the words of these segments are seen, and the file is as long as they need.
        let segments = usize::try_from(sb.segments.load(Acquire)).unwrap_or(usize::MAX);
        if segments == 0 || segments > shape.segments_max {
            return Err(Unusable::Damaged("its number of segments is out of bounds"));
        }
        let (len, wanted) = (file_len(), layout.len(segments));
        if len < wanted {
            return Err(Unusable::Truncated { len, wanted });
        }
        Ok((layout, segments))
    }

    fn assemble(memory: Memory, layout: Layout, segments: usize, host: Box<dyn Host>) -> Result<Self, Unusable> {
        let sb: &Superblock = memory.get(0);
        let features = sb.incompatible.load(Relaxed);
        let durable = features & superblock::DURABLE != 0;
        if durable && host.is_read_only() {
            return Err(Unusable::NotPersistent(
                "it is mapped for reading only: who reads a dirty word must be able to write it back",
            ));
        }
        if durable && !host.is_persistent() {
            return Err(Unusable::NotPersistent(
                "its file is not on a file system that maps persistent memory (DAX)",
            ));
        }
        let Some(persist) = Persist::new(durable) else {
            return Err(Unusable::NotPersistent("this processor cannot write a cache line back"));
        };
        let checksums = features & superblock::CHECKSUMS != 0;
        let hasher = Hasher::new(sb.seed.load(Relaxed));
        let bucket_shift = layout.shape.buckets_per_segment().ilog2();
        // One hint segment has a byte for each slot of eight times as many buckets as fit into a segment.
        let hint_shift = bucket_shift + bucket::SLOTS.ilog2();
        let buckets_initial = layout.shape.buckets_initial as u64;
        let buckets_max = buckets_initial << ROUNDS_MAX;
        let segment_shift = layout.shape.segment_size.ilog2();
        let faulted = Faulted::new(layout.len_max);
        let region = Self {
            memory,
            layout,
            hasher,
            persist,
            is_read_only: host.is_read_only(),
            is_plain: !durable && !checksums,
            has_fine_hints: (segments as u64) << segment_shift <= FINE_HINTS_MEMORY_MAX,
            checksum_size: if checksums { item::CHECKSUM_SIZE } else { 0 },
            host,
            bucket_mask: (1 << bucket_shift) - 1,
            hint_mask: (1 << hint_shift) - 1,
            bucket_shift,
            hint_shift,
            segment_shift,
            buckets_initial,
            buckets_max,
            segments: OwnNumber::new(segments),
            allowed: OwnNumber::new(segments),
            keeps_pages: OwnFlag::new(false),
            free_is_doubtful: OwnFlag::new(false),
            offered: Offered::default(),
            faulted,
            known_buckets: Known::new(buckets_max >> bucket_shift),
            known_hints: Known::new(buckets_max >> hint_shift),
        };
        region.allowed.store(region.allowed_now(), Relaxed);
        Ok(region)
    }
}
