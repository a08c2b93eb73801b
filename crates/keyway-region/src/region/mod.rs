//! Room `region`: the mapped bytes as a whole, and the words that all processes share.
//!
//! Holds create and open (this file), the clock (`clock`), more memory for a region in use (`resize`), the memory limit's words (`limit`),
//! clean and unclean ends (`restart`), what a change has to heed (`rules`), and which pages this process has touched (`faulted`).
//! Nothing here maps anything: [`Region::create`] and [`Region::open`] get bytes.
//!
//! - What this room returns can be used as an offset: segment numbers, directory entries and the table word are checked here, once.
//! - The number of segments is published after all that it makes reachable.
//!
//! Never: knows what an item is.

mod clock;
mod faulted;
#[cfg(all(test, feature = "observe"))]
mod late;
mod limit;
mod resize;
mod restart;
mod rules;

pub(crate) use clock::{COARSE_S, EXPIRED, FINE_TICKS, START_S, expiry_at, seconds_left, ttl};
pub use clock::{Moment, seconds_of};
pub(crate) use limit::LOG_MIN;
pub(crate) use rules::Rules;

use crate::atomics::{Acquire, AtomicU8, AtomicU32, AtomicU64, OwnFlag, OwnNumber, Relaxed, Release};
use crate::changes::Offered;
use crate::durable::{LINE, Persist, line};
use crate::hash::Hasher;
use crate::layout::bucket::{self, Table};
use crate::layout::fingerprint::FINGERPRINT;
use crate::layout::plan::{Layout, Shape};
use crate::layout::segment::{Kind, SegmentHeader, SegmentLife, SegmentWords, State};
use crate::layout::session::{ProcessSlot, Tenancy, Tenant, ThreadSlot};
use crate::layout::slot::{ROUNDS_MAX, Slot};
use crate::layout::stats::{Counter, Counters};
use crate::layout::superblock::{self, DIRTY, FlushAt, FlushWord, Maker, Superblock};
use crate::layout::{self, index, item};
use crate::memory::{Memory, View};
use crate::region::faulted::Touched;

/// Unix time from which segment sequences count (2024-01-01): keeps CAS uniques below 2^63 until 2057, because clients in
/// several languages read them as signed.
pub(crate) const SEQUENCE_EPOCH_UNIX_S: i64 = 1_704_067_200;
/// Segments opened per second for which the sequence has space, in bits. A new region's sequence starts above any number that an
/// older region of the same name can have reached.
pub(crate) const SEQUENCE_RATE_BITS: u32 = 16;

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
            Self::NotPersistent(what) => write!(f, "the region was made with --strict, and {what}"),
            Self::Damaged(what) => write!(f, "the region's superblock is damaged: {what}"),
        }
    }
}

impl core::error::Error for Unusable {}

/// What is known of the life of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// it exists, or its state cannot be determined
    Alive,
    /// it seems to be gone, but that is not certain
    Suspect,
    /// it is gone: it makes no later store
    Dead,
}

/// What a region needs from the code that maps it. It is dropped with the region, and not before.
pub trait Host: Send + Sync {
    /// The state of a process that took a process slot. [`Life::Dead`] is certain: the process makes no later store.
    fn life(&self, tenant: &Tenant) -> Life;
    /// Asks for huge pages, or for every page now.
    fn prepare(&self, ranges: &[core::ops::Range<usize>], huge_pages: bool, prefault: bool);
    /// Whether the region is on persistent memory, mapped so that the processor's write-backs reach it (`mmap(2)`, MAP_SYNC). A
    /// region created on such memory is in durable mode, and can be opened on such memory only.
    fn is_persistent(&self) -> bool {
        false
    }
    /// Makes every thread of every process that may use the region pass a full fence between its accesses before this call and
    /// those after it (membarrier(2)). `false`: this system cannot do that.
    fn fence_everywhere(&self) -> bool {
        false
    }
    /// Whether the region is mapped for reading only: a store to it ends the process.
    fn is_read_only(&self) -> bool {
        false
    }
    /// Writes these bytes back to the file. `false`: that failed.
    fn write_back(&self, range: core::ops::Range<usize>) -> bool;
    /// Bytes that the file has now: only these may be touched.
    fn file_len(&self) -> usize;
    /// Backs these bytes by memory, so that touching them can no longer fail. The file becomes as long as necessary.
    ///
    /// # Errors
    ///
    /// There is no space for them.
    fn back(&self, range: core::ops::Range<usize>) -> std::io::Result<()>;
    /// Gives the memory of these bytes, whole pages, back to the system: they are zeros from then on. The file keeps its length.
    ///
    /// # Errors
    ///
    /// The system cannot do that: the memory stays, and so do the bytes.
    fn give_back(&self, _range: core::ops::Range<usize>) -> std::io::Result<()> {
        Err(std::io::ErrorKind::Unsupported.into())
    }
}

/// Regions up to this many bytes note last accesses to the second: a sweep over the hints of that many items takes some
/// milliseconds each second.
const FINE_HINTS_MEMORY_MAX: u64 = 4 << 30;

/// A region.
pub struct Region {
    pub(crate) memory: Memory,
    pub(crate) layout: Layout,
    pub(crate) hasher: Hasher,
    pub(crate) persist: Persist,
    /// mapped for reading only: this process repairs nothing that it finds
    pub(crate) is_read_only: bool,
    /// bytes of the checksum after an item's body: 0 in a region without checksums
    pub(crate) checksum_size: usize,
    /// it has neither durable mode nor checksums
    is_plain: bool,
    /// last accesses are noted to the second: the region is small enough to look at all hints before they wrap
    pub(crate) has_fine_hints: bool,
    host: Box<dyn Host>,
    /// the bits of a bucket's number that give its place in its segment; below, the same for its hints
    bucket_mask: u64,
    hint_mask: u64,
    bucket_shift: u32,
    hint_shift: u32,
    segment_shift: u32,
    buckets_initial: u64,
    buckets_max: u64,
    /// the superblock's number of segments, after it was checked
    segments: OwnNumber,
    /// how many of them may be in use, as far as this process knows
    pub(crate) allowed: OwnNumber,
    /// the system refused to take pages back
    pub(crate) keeps_pages: OwnFlag,
    /// the count of free segments may be wrong, because of a death, or of growth that this process has just learnt of
    free_is_doubtful: OwnFlag,
    /// the words in which this process counts its changes, if it has them
    pub(crate) offered: Offered,
    touched: Touched,
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
        let strict = if host.is_persistent() { superblock::STRICT } else { 0 };
        let checksums = if creation.checksums { superblock::CHECKSUMS } else { 0 };
        sb.incompatible.store(strict | checksums, Relaxed);
        for (word, value) in sb.id.iter().zip(creation.id) {
            word.store(value, Relaxed);
        }
        sb.seed.store(creation.seed, Relaxed);
        sb.created_unix_s.store(creation.now.unix.as_secs(), Relaxed);
        sb.clock.store(Self::first_clock(creation.boot_id, creation.now).0, Relaxed);
        for (word, value) in sb.shape.iter().zip(creation.shape.to_words()) {
            word.store(value, Relaxed);
        }
        sb.sequence.store(first_sequence(creation.now.unix_s()), Relaxed);
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
        let strict = features & superblock::STRICT != 0;
        if strict && host.is_read_only() {
            return Err(Unusable::NotPersistent(
                "it is mapped for reading only: who reads a dirty word must be able to write it back",
            ));
        }
        if strict && !host.is_persistent() {
            return Err(Unusable::NotPersistent(
                "its file is not on a file system that maps persistent memory (DAX)",
            ));
        }
        let Some(persist) = Persist::new(strict) else {
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
        let touched = Touched::new(layout.len_max);
        let region = Self {
            memory,
            layout,
            hasher,
            persist,
            is_read_only: host.is_read_only(),
            is_plain: !strict && !checksums,
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
            touched,
        };
        region.allowed.store(region.allowed_now(), Relaxed);
        Ok(region)
    }

    /// Whether the region has neither durable mode nor checksums.
    #[inline(always)]
    pub(crate) fn is_plain(&self) -> bool {
        self.is_plain
    }

    /// Buckets of the index.
    pub fn index_buckets(&self) -> u64 {
        self.table().count
    }

    /// When the region was made, Unix seconds.
    pub fn created_unix_s(&self) -> u64 {
        self.superblock().created_unix_s.load(Relaxed)
    }

    /// The seed of its hash.
    pub fn seed(&self) -> u64 {
        self.superblock().seed.load(Relaxed)
    }

    /// The superblock. Its words are internal to the region, except that tests read them.
    #[doc(hidden)]
    #[inline]
    pub fn superblock(&self) -> &Superblock {
        self.memory.get(0)
    }

    /// The layout.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Segments that may be touched: as many as this process knows to be backed by memory. There may be more by now
    /// ([`Self::learn`]).
    #[inline]
    pub fn segments(&self) -> usize {
        // PAIRS: segments: `know`, in the thread of this process that has learnt of them.
        self.segments.load(Acquire)
    }

    /// Whether there is a segment of this number. Then its bytes are mapped, and so are its words and its header.
    #[inline(always)]
    pub(crate) fn has(&self, segment: usize) -> bool {
        segment < self.segments() || (self.learn() && segment < self.segments())
    }

    /// This many segments may be touched from now on.
    fn know(&self, segments: usize) {
        // PAIRS: segments: the load in `segments`.
        self.segments.fetch_max(segments, Release);
        self.doubt_free();
        self.learn_limit();
    }

    /// Notes that the count of free segments may be wrong.
    pub(crate) fn doubt_free(&self) {
        self.free_is_doubtful.store(true, Relaxed);
    }

    /// Called where space is needed: learns of added segments and of the memory limit, and corrects a doubtful count of free segments.
    pub(crate) fn catch_up(&self) {
        self.learn();
        self.learn_limit();
        if self.free_is_doubtful.load(Relaxed) && self.free_is_doubtful.swap(false, Relaxed) {
            self.recount_free();
        }
    }

    /// Offset of a segment.
    #[inline]
    pub(crate) fn segment(&self, segment: usize) -> usize {
        self.layout.segments + (segment << self.segment_shift)
    }

    /// Announces that this process is about to write these bytes, by their offset in the region.
    pub(crate) fn touch(&self, at: usize, len: usize) {
        for part in self.touched.missing(at..at + len) {
            // Only what is backed: the rest would allocate memory.
            let backed = part.start.max(self.layout.segments)..part.end.min(self.layout.len(self.segments()));
            if self.withdrawn() == 0 {
                self.host.prepare(&[backed], false, true);
            } else {
                self.touch_in_use(backed);
            }
        }
    }

    /// The same, except for segments that are out of use: the system has their pages.
    #[cold]
    fn touch_in_use(&self, part: core::ops::Range<usize>) {
        let size = self.layout.shape.segment_size;
        let within = |at: usize| at.saturating_sub(self.layout.segments);
        for segment in within(part.start) / size..within(part.end).div_ceil(size) {
            if !self.is_withdrawn(segment) {
                let at = self.segment(segment);
                let bytes = at.max(part.start)..(at + size).min(part.end);
                self.host.prepare(&[bytes], false, true);
            }
        }
    }

    /// A segment's word.
    #[inline]
    pub(crate) fn words(&self, segment: usize) -> &SegmentWords {
        self.memory.get(self.layout.words + segment * size_of::<SegmentWords>())
    }

    /// A segment's word, in the memory's view.
    ///
    /// # Safety
    ///
    /// There is a segment of this number ([`Self::has`]).
    #[inline(always)]
    #[allow(unsafe_code, reason = "contract above")]
    pub(crate) unsafe fn words_in<'v>(&self, view: View<'v>, segment: usize) -> &'v SegmentWords {
        // SAFETY: the layout has words for each segment, at multiples of their size, which is their alignment.
        unsafe { view.at(self.layout.words + segment * size_of::<SegmentWords>()) }
    }

    /// A segment's header.
    #[inline]
    pub(crate) fn header(&self, segment: usize) -> &SegmentHeader {
        self.memory.get(self.layout.headers + segment * size_of::<SegmentHeader>())
    }

    /// A segment's generation and epoch.
    #[inline(always)]
    pub(crate) fn segment_life(&self, segment: usize) -> SegmentLife {
        Self::life_of(self.words(segment))
    }

    /// The generation and epoch in a segment's words.
    #[inline(always)]
    pub(crate) fn life_of(words: &SegmentWords) -> SegmentLife {
        // PAIRS: generation: the fence in `Session::claim_from_free`, and those before intents are read: a slot that is read
        // after this is not as it was before the purge of an earlier generation.
        SegmentLife {
            generation: words.generation.load(Acquire),
            // Relaxed: a thread that found an item of that generation sees the epoch, which was stored before the item was published.
            epoch: words.epoch.load(Relaxed),
        }
    }

    /// A thread slot.
    #[inline]
    pub(crate) fn thread(&self, slot: usize) -> &ThreadSlot {
        self.memory.get(self.layout.threads + slot * size_of::<ThreadSlot>())
    }

    /// A process slot.
    pub(crate) fn process(&self, slot: usize) -> &ProcessSlot {
        self.memory.get(self.layout.process(slot))
    }

    /// The host that maps the region.
    pub fn host(&self) -> &dyn Host {
        &*self.host
    }

    /// The tenant of a process slot: the process that took it last.
    pub fn tenant(&self, slot: usize) -> Tenant {
        let process = self.process(slot);
        // PAIRS: tenancy: the exchange in `Region::identify`: a hold of kind mapping or descriptor comes with the words of that
        // incarnation.
        let tenancy = Tenancy(process.tenancy.load(Acquire));
        Tenant {
            slot,
            lock_offset: self.layout.process(slot),
            tenancy,
            pid: process.pid.load(Relaxed),
            identity: core::array::from_fn(|i| process.identity.get(i).map_or(0, |word| word.load(Relaxed))),
        }
    }

    /// The state of the process that took this process slot last.
    pub fn life(&self, slot: usize) -> Life {
        self.host.life(&self.tenant(slot))
    }

    /// Entry of the bucket directory.
    #[inline]
    pub(crate) fn bucket_directory(&self, i: usize) -> &AtomicU32 {
        self.memory.get(self.layout.bucket_directory + i * 4)
    }

    /// Entry of the hint directory.
    #[inline]
    pub(crate) fn hint_directory(&self, i: usize) -> &AtomicU32 {
        self.memory.get(self.layout.hint_directory + i * 4)
    }

    /// The entry of the bucket directory that leads to this bucket.
    pub(crate) fn bucket_entry(&self, bucket: u64) -> usize {
        index(bucket >> self.bucket_shift)
    }

    /// The entry of the hint directory that leads to this bucket's hints.
    pub(crate) fn hint_entry(&self, bucket: u64) -> usize {
        index(bucket >> self.hint_shift)
    }

    /// Offset of an entry of one of the directories.
    pub(crate) fn directory_entry_at(&self, kind: Kind, i: usize) -> usize {
        i * 4
            + match kind {
                Kind::Index => self.layout.bucket_directory,
                Kind::Ghosts => self.layout.ghost_directory,
                _ => self.layout.hint_directory,
            }
    }

    /// Entry of the directory of index, hint or ghost segments; `i` below [`Self::directory_len`].
    pub(crate) fn directory_entry(&self, kind: Kind, i: usize) -> &AtomicU32 {
        self.memory.get(self.directory_entry_at(kind, i))
    }

    /// Entries of that directory in use at this number of segments.
    pub(crate) fn directory_len(&self, kind: Kind) -> usize {
        match kind {
            Kind::Ghosts => Shape::ghosts_max(self.segments()),
            _ => self.segments(),
        }
    }

    /// A segment of the ghost table. Its kind is checked here, because ghosts are stored without a further check.
    pub(crate) fn ghost_segment(&self, entry: usize) -> Option<usize> {
        let [segment] = self.directory(self.memory.view(), self.layout.ghost_directory, [entry as u64])?;
        (State(self.header(segment).state.load(Relaxed)).kind() == Some(Kind::Ghosts)).then_some(segment)
    }

    /// A word of a segment, by its offset in the region. Not for slots: only the index knows their offsets.
    #[inline]
    pub(crate) fn word(&self, offset: usize) -> &AtomicU64 {
        self.memory.get(offset)
    }

    /// The table word, once it is persistent. A corrupted one is cut to a possible value.
    #[inline]
    pub(crate) fn table(&self) -> Table {
        // PAIRS: table: the exchange in `advance_table`: a thread that counts the new bucket sees it filled.
        let word = self.superblock().table.load(Acquire);
        let sane = (self.buckets_initial..=self.buckets_max).contains(&word);
        Table::new(if sane { word } else { self.odd_table(word) })
    }

    /// Advances the table word by one. `false`: it was not `from`.
    pub(crate) fn advance_table(&self, from: u64) -> bool {
        let to = (from + 1) | if self.is_strict() { DIRTY } else { 0 };
        // PAIRS: table: the load in `table`.
        let done = self.superblock().table.compare_exchange(from, to, Release, Relaxed).is_ok();
        // No matter which thread advanced it, the word is persistent after this.
        self.table();
        done
    }

    /// Buckets of the first index.
    #[inline]
    pub(crate) fn buckets_initial(&self) -> u64 {
        self.buckets_initial
    }

    /// The number of buckets at which the splits have used up their marks.
    pub(crate) fn buckets_max(&self) -> u64 {
        self.buckets_max
    }

    /// Offset of a bucket, if the directory has its segment.
    #[inline]
    pub(crate) fn bucket(&self, number: u64) -> Option<usize> {
        self.buckets_in(self.memory.view(), [number]).map(|[at]| at)
    }

    /// The same of several buckets, for a caller that has the memory's view. 64 bytes are mapped at each offset.
    #[inline(always)]
    pub(crate) fn buckets_in<const N: usize>(&self, view: View<'_>, numbers: [u64; N]) -> Option<[usize; N]> {
        let entries = numbers.map(|number| number >> self.bucket_shift);
        let within = numbers.map(|number| index(number & self.bucket_mask) * bucket::SIZE);
        let segments = self.directory(view, self.layout.bucket_directory, entries)?;
        let mut at = within;
        for (at, segment) in at.iter_mut().zip(segments) {
            *at += self.segment(segment);
        }
        Some(at)
    }

    /// The hint of a slot, if the directory has its segment.
    #[inline(always)]
    pub(crate) fn hint(&self, bucket: u64, index: usize) -> Option<&AtomicU8> {
        let view = self.memory.view();
        let [segment] = self.directory(view, self.layout.hint_directory, [bucket >> self.hint_shift])?;
        let within = layout::index(bucket & self.hint_mask) * bucket::SLOTS + index;
        Some(view.get(self.segment(segment) + within))
    }

    /// The segments that a directory names. Table words are bounded, so the entry is in the directory's array.
    #[inline(always)]
    fn directory<const N: usize>(&self, view: View<'_>, directory: usize, entries: [u64; N]) -> Option<[usize; N]> {
        let words = entries.map(|entry| view.get::<AtomicU32>(directory + index(entry) * 4));
        // An empty entry becomes the highest number, which no segment has.
        // PAIRS: directory: the exchange in `Session::prepare_segment`: a thread that reaches the segment sees its zeros.
        let segments = words.map(|word| (word.load(Acquire) as usize).wrapping_sub(1));
        for segment in segments {
            if !self.has(segment) {
                return None;
            }
        }
        Some(segments)
    }

    /// The flush epoch in force at `now`: begins a delayed flush that is due.
    #[inline]
    pub(crate) fn epoch(&self, now: u32) -> u64 {
        self.epoch_at_any_time().unwrap_or_else(|| self.pending_flush(now))
    }

    /// The flush epoch in force, unless that depends on the time.
    #[inline(always)]
    pub(crate) fn epoch_at_any_time(&self) -> Option<u64> {
        // PAIRS: flush: the exchange in `replace_flush`: a thread that sees the flush sees it counted as begun.
        let word = FlushWord(self.superblock().flush.load(Acquire));
        (!word.is_pending()).then(|| word.epoch())
    }

    /// The epoch in force when the flush word contains more than an epoch: makes a dirty word persistent, begins a delayed flush
    /// that is due.
    #[cold]
    fn pending_flush(&self, now: u32) -> u64 {
        loop {
            let (word, in_force) = self.flush_in_force(now);
            if in_force == word || self.is_read_only || self.replace_flush(word, in_force) {
                return in_force.epoch();
            }
        }
    }

    /// The epoch in force at `now`, as `epoch` would return it, but without beginning a flush.
    pub(crate) fn epoch_unchanged(&self, now: u32) -> u64 {
        self.flush_in_force(now).1.epoch()
    }

    /// The flush word, and the word that replaces it if a delayed flush is due at `now`: the same word if none is.
    fn flush_in_force(&self, now: u32) -> (FlushWord, FlushWord) {
        let (word, at) = self.flush_state();
        let is_due = at.is_some_and(|at| at <= now);
        (word, if is_due { word.flushed() } else { word })
    }

    /// The flush word, and the tick of the region's clock at which a delayed flush begins, if there is one.
    fn flush_state(&self) -> (FlushWord, Option<u32>) {
        loop {
            let word = self.flush_word();
            if !word.is_delayed() {
                return (word, None);
            }
            let delay = FlushAt(self.superblock().flush_at.load(Relaxed));
            if delay.is_of(word.epoch()) {
                return (word, Some(delay.at()));
            }
            if self.flush_word() == word {
                // The flush-at word is corrupted: the delayed flush never begins.
                return (word, None);
            }
        }
    }

    /// The flush word, once it is persistent.
    pub(crate) fn flush_word(&self) -> FlushWord {
        // PAIRS: flush: the exchange in `replace_flush`.
        let word = FlushWord(self.superblock().flush.load(Acquire));
        if word.0 & DIRTY != 0 && !self.is_read_only {
            self.settle_flush(word);
        }
        FlushWord(word.0 & !DIRTY)
    }

    /// PUBLISH of a flush: with the new word, everything older is absent. A restart takes the word that is persistent, old or new.
    fn replace_flush(&self, old: FlushWord, new: FlushWord) -> bool {
        let word = FlushWord(new.0 | if self.is_strict() { DIRTY } else { 0 });
        // PAIRS: flush: the loads in `epoch` and `flush_word`.
        let done = self
            .superblock()
            .flush
            .compare_exchange(old.0, word.0, Release, Relaxed)
            .is_ok();
        if done && self.is_strict() {
            self.settle_flush(word);
        }
        done
    }

    /// Flushes at `at` (a tick of the region's clock; 0: now).
    pub(crate) fn flush(&self, at: u32) {
        let flush_at = &self.superblock().flush_at;
        loop {
            // Read before the flush word: the exchange below fails if another thread has set a delay for a newer epoch since.
            let delay = flush_at.load(Relaxed);
            let old = self.flush_word();
            // If there is a delayed flush already, this one replaces it.
            let delayed = FlushAt::new(old.epoch(), at).0;
            if at != 0 && flush_at.compare_exchange(delay, delayed, Relaxed, Relaxed).is_err() {
                continue;
            }
            if self.replace_flush(old, if at == 0 { old.flushed() } else { old.delayed() }) {
                return;
            }
        }
    }

    /// When a delayed flush begins, seconds on the region's clock.
    pub fn flush_at_s(&self) -> Option<u64> {
        self.flush_state().1.map(seconds_of)
    }

    /// The hash of a key in this region.
    pub fn hash(&self, key: &[u8]) -> u64 {
        self.hasher.hash(key)
    }

    /// Flushes at once.
    pub fn flush_now(&self) {
        self.flush(0);
    }

    /// Makes all items in the region stale, in constant time. No other process is attached.
    pub fn make_stale(&self) {
        let sb = self.superblock();
        // New items are written to other segments: no open one is offered any more.
        for word in sb.open_words() {
            word.store(0, Relaxed);
        }
        sb.stale_before.store(sb.sequence.load(Relaxed), Relaxed);
        self.write_back(line::TABLE, LINE);
        self.barrier();
    }

    /// The counters of all thread slots, summed.
    pub fn counters(&self) -> Counters {
        let mut sum = Counters::default();
        for slot in 0..self.layout.shape.thread_slots {
            let thread = self.thread(slot);
            sum.add(|counter: Counter| thread.counters.get(counter as usize).map_or(0, |c| c.load(Relaxed)));
        }
        // Gauges are sums of differences: threads that died may have left them below zero.
        for gauge in [&mut sum.curr_items, &mut sum.bytes] {
            if *gauge > u64::MAX / 2 {
                *gauge = 0;
            }
        }
        sum
    }

    /// Thread slots that are leased.
    pub fn sessions(&self) -> usize {
        (0..self.layout.shape.thread_slots)
            .filter(|s| self.thread(*s).lease.load(Relaxed) & 1 != 0)
            .count()
    }

    /// Bytes of the index, hints included.
    pub fn index_size(&self) -> u64 {
        self.table().count * (bucket::SIZE + bucket::SLOTS) as u64
    }
}

/// The sequence number with which a region continues at this time: no older region can have reached it.
pub(crate) fn first_sequence(now_unix_s: i64) -> u64 {
    u64::try_from(now_unix_s - SEQUENCE_EPOCH_UNIX_S).unwrap_or(0).max(1) << SEQUENCE_RATE_BITS
}

impl Region {
    /// The usable value of a table word that is dirty or corrupted.
    #[cold]
    fn odd_table(&self, word: u64) -> u64 {
        let count = (word & !DIRTY).clamp(self.buckets_initial(), self.buckets_max());
        if word & DIRTY != 0 && !self.is_read_only {
            self.write_back(line::TABLE, 8);
            self.barrier();
            // PAIRS: settled: the load in `Region::table`.
            let _ = self.superblock().table.compare_exchange(word, count, Release, Relaxed);
        }
        count
    }

    /// Makes a dirty flush word persistent.
    fn settle_flush(&self, word: FlushWord) {
        self.write_back(line::TABLE, 8);
        self.barrier();
        // PAIRS: settled: the loads of the flush word.
        let _ = self
            .superblock()
            .flush
            .compare_exchange(word.0, word.0 & !DIRTY, Release, Relaxed);
    }
}

/// A count of segments. It drifts when a thread dies before it counts; a negative count means none.
pub(crate) fn number(count: &AtomicU64) -> usize {
    let number = count.load(Relaxed);
    if number > u64::MAX / 2 { 0 } else { index(number) }
}
