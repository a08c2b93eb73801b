//! Making a region out of zeroed memory, and opening the one that is in some memory.
//!
//! Never: trusts a word of the superblock that it has not checked.

use crate::atomics::{Acquire, Relaxed, Release};
use crate::clock::Clock;
use crate::clock::Moment;
use crate::layout::bucket;
use crate::layout::fingerprint::FINGERPRINT;
use crate::layout::plan::{Layout, Shape};
use crate::layout::segment::{Kind, SegmentLife, State};
use crate::layout::slot::Slot;
use crate::layout::superblock::{self, Maker, Superblock};
use crate::limits::Limits;
use crate::mapped::{Host, Mapped, Unusable};
use crate::memory::Memory;
use crate::region::Region;

/// See [`Creation::first_unique`].
const FIRST_UNIQUE_BELOW: u64 = 1 << 24;

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

    /// Makes a region without the last step, [`Self::finish`]: a maker that dies before that step leaves a region with the
    /// unfinished mark.
    ///
    /// # Errors
    ///
    /// The memory is too small, or cannot hold such a region.
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
        sb.clock.store(Clock::first_clock(creation.boot_id, creation.now).0, Relaxed);
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
        let region = Self::new(Mapped::new(memory, layout, creation.segments, host)?);
        for segment in 0..creation.segments {
            region
                .mapped()
                .words(segment)
                .generation
                .store(SegmentLife::FIRST.generation, Relaxed);
        }
        region.limits().write(&creation.limits);
        region.create_index();
        region.clock().see(creation.now);
        let sb = region.mapped().superblock();
        sb.checksum.store(sb.checksum_now(), Relaxed);
        Ok(region)
    }

    /// PUBLISH: the magic number, with which the region can be opened. Everything before it is in place.
    pub fn finish(&self) {
        // PAIRS: magic: the load in `inspect`: a process that finds the magic number finds the rest.
        self.mapped().superblock().magic.store(superblock::MAGIC, Release);
    }

    /// The first index: the first segments, every slot empty.
    fn create_index(&self) {
        let buckets = self.mapped().layout().shape.buckets_initial;
        let index = buckets.div_ceil(self.mapped().layout().shape.buckets_per_segment());
        let hints = index.div_ceil(bucket::SLOTS);
        for i in 0..index + hints {
            let (kind, entry) = if i < index {
                (Kind::Index, self.directory().bucket_directory(i))
            } else {
                (Kind::Hints, self.directory().hint_directory(i - index))
            };
            self.mapped().header(i).state.store(State::new(kind, 0).0, Relaxed);
            entry.store(u32::try_from(i + 1).unwrap_or(0), Relaxed);
        }
        self.mapped().superblock().free.fetch_sub((index + hints) as u64, Relaxed);
        for number in 0..buckets as u64 {
            if let Some(at) = self.directory().bucket(number) {
                for i in 0..bucket::SLOTS {
                    self.mapped().word(at + i * 8).store(Slot::EMPTY.0, Relaxed);
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
        let region = Self::new(Mapped::new(memory, layout, segments, host)?);
        region.mapped().secure_segments();
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
}
