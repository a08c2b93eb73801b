//! The mapped bytes with their layout: every structure of the region by its number, and which segments may be touched.
//!
//! - What comes out can be used as an offset: numbers of segments are compared with those that are backed by memory.
//! - The number of segments is published after all that it makes reachable (`resize`).
//!
//! Never: knows what a word means, except how many segments there are and may be used (`resize`, `limit`).

mod faulted;
mod host;
mod limit;
mod resize;
mod rules;
mod unusable;

pub use host::{Host, Life};
pub(crate) use limit::LOG_MIN;
pub(crate) use rules::Rules;
pub use unusable::Unusable;

use crate::atomics::{Acquire, AtomicU64, OwnFlag, OwnNumber, Relaxed, Release};
use crate::durable::{LINE, Persist, line};
use crate::hash::{Hasher, Key};
use crate::layout::index;
use crate::layout::item;
use crate::layout::plan::Layout;
use crate::layout::segment::{SegmentHeader, SegmentLife, SegmentWords};
use crate::layout::session::{ProcessSlot, Tenancy, Tenant, ThreadSlot};
use crate::layout::superblock::{self, Maker, Superblock};
use crate::mapped::faulted::Faulted;
use crate::memory::{KeyRoom, Memory, View};

/// Regions up to this many bytes note last accesses to the second: a sweep over the hints of that many items takes some
/// milliseconds each second.
const FINE_HINTS_MEMORY_MAX: u64 = 4 << 30;

/// The mapped bytes of a region, and its layout.
pub struct Mapped {
    memory: Memory,
    layout: Layout,
    hasher: Hasher,
    persist: Persist,
    is_read_only: bool,
    checksum_size: usize,
    is_plain: bool,
    has_fine_hints: bool,
    host: Box<dyn Host>,
    segment_shift: u32,
    /// the superblock's number of segments, after it was checked
    segments: OwnNumber,
    /// how many of them may be in use, as far as this process knows
    allowed: OwnNumber,
    /// the system refused to take pages back
    keeps_pages: OwnFlag,
    /// the count of free segments may be wrong, because of a death, or of growth that this process has just learnt of
    free_is_doubtful: OwnFlag,
    faulted: Faulted,
}

impl Mapped {
    /// A mapping of this layout, of which so many segments are backed by memory.
    ///
    /// # Errors
    ///
    /// The region is durable, and this mapping or processor is not able to keep that.
    pub(super) fn new(memory: Memory, layout: Layout, segments: usize, host: Box<dyn Host>) -> Result<Self, Unusable> {
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
        let segment_shift = layout.shape.segment_size.ilog2();
        let faulted = Faulted::new(layout.len_max);
        let mapped = Self {
            memory,
            layout,
            hasher,
            persist,
            is_read_only: host.is_read_only(),
            is_plain: !durable && !checksums,
            has_fine_hints: (segments as u64) << segment_shift <= FINE_HINTS_MEMORY_MAX,
            checksum_size: if checksums { item::CHECKSUM_SIZE } else { 0 },
            host,
            segment_shift,
            segments: OwnNumber::new(segments),
            allowed: OwnNumber::new(segments),
            keeps_pages: OwnFlag::new(false),
            free_is_doubtful: OwnFlag::new(false),
            faulted,
        };
        mapped.allowed.store(mapped.allowed_now(), Relaxed);
        Ok(mapped)
    }

    /// Whether the region has neither durable mode nor checksums.
    #[inline(always)]
    pub(crate) fn is_plain(&self) -> bool {
        self.is_plain
    }

    /// The mapped bytes.
    #[inline(always)]
    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// How keys are hashed.
    #[inline(always)]
    pub(crate) fn hasher(&self) -> &Hasher {
        &self.hasher
    }

    /// It is mapped for reading only: this process repairs nothing that it finds.
    pub(crate) fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    /// Bytes of the checksum after an item's body: 0 in a region without checksums.
    #[inline(always)]
    pub(crate) fn checksum_size(&self) -> usize {
        self.checksum_size
    }

    /// Last accesses are noted to the second: the region is small enough to look at all hints before they wrap.
    #[inline(always)]
    pub(crate) fn has_fine_hints(&self) -> bool {
        self.has_fine_hints
    }

    /// When the region was made, Unix seconds.
    pub fn created_unix_s(&self) -> u64 {
        self.superblock().created_unix_s.load(Relaxed)
    }

    /// The program that made the region.
    pub fn made_by(&self) -> Maker {
        self.superblock().maker()
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

    /// Bits of the number of a segment's words, of [`crate::layout::item::ALIGNMENT`] bytes.
    #[inline(always)]
    pub(crate) fn words_shift(&self) -> u32 {
        self.segment_shift - crate::layout::item::ALIGNMENT.ilog2()
    }

    /// Whether there is a segment of this number. Then its bytes are mapped, and so are its words and its header.
    #[inline(always)]
    pub(crate) fn has(&self, segment: usize) -> bool {
        segment < self.segments() || (self.learn() && segment < self.segments())
    }

    /// This many segments may be touched from now on.
    pub(super) fn know(&self, segments: usize) {
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

    /// A segment's header, in the memory's view.
    ///
    /// # Safety
    ///
    /// There is a segment of this number ([`Self::has`]).
    #[inline(always)]
    #[allow(unsafe_code, reason = "contract above")]
    pub(crate) unsafe fn header_in<'v>(&self, view: View<'v>, segment: usize) -> &'v SegmentHeader {
        // SAFETY: the layout has a header for each segment, at multiples of their size, which is a multiple of their alignment.
        unsafe { view.at(self.layout.headers + segment * size_of::<SegmentHeader>()) }
    }

    /// A segment's generation and epoch.
    #[inline(always)]
    pub(crate) fn segment_life(&self, segment: usize) -> SegmentLife {
        Self::life_of(self.words(segment))
    }

    /// The generation and epoch in a segment's words.
    #[inline(always)]
    pub(crate) fn life_of(words: &SegmentWords) -> SegmentLife {
        // PAIRS: generation: the fence in `Claims::claim_from_free`, and those before hazard pointers are read: a slot that is read
        // after this is not as it was before the reclaim of an earlier generation.
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
        // PAIRS: tenancy: the exchange in `Recovery::identify`: a hold of kind mapping or descriptor comes with the words of that
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

    /// A word of a segment, by its offset in the region. Not for slots: only the index knows their offsets.
    #[inline]
    pub(crate) fn word(&self, offset: usize) -> &AtomicU64 {
        self.memory.get(offset)
    }

    /// A caller's key with its hash in this region, copied to the room: for any number of verbs. It has a length that a key can have.
    #[inline(always)]
    pub fn key<'r>(&self, given: &[u8], room: &'r mut KeyRoom) -> Key<'r> {
        self.hasher.key(given, room)
    }

    /// The hash of a key in this region.
    pub fn hash(&self, key: &[u8]) -> u64 {
        self.hasher.hash(key)
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

    /// Starts to write these bytes back. They are persistent after the next [`Self::barrier`] of the same thread.
    #[inline(always)]
    #[cfg_attr(feature = "observe", track_caller)]
    pub(crate) fn write_back(&self, offset: usize, len: usize) {
        self.persist.write_back(&self.memory, offset, len);
    }

    /// What this thread has written back is persistent after this.
    #[inline(always)]
    #[cfg_attr(feature = "observe", track_caller)]
    pub(crate) fn barrier(&self) {
        self.persist.barrier();
    }

    /// Calls this at every barrier: a measurement makes barriers as slow as those of other memory.
    pub fn at_barrier(&self, call: fn()) {
        self.persist.at_barrier(call);
    }

    /// Whether every acknowledged change survives a power failure.
    #[inline]
    pub fn is_durable(&self) -> bool {
        self.persist.is_durable()
    }

    /// Starts to write a segment's header back: state, lease, sequence, expiry.
    #[inline(always)]
    #[cfg_attr(feature = "observe", track_caller)]
    pub(crate) fn write_back_header(&self, segment: usize) {
        self.write_back(
            self.layout.headers + segment * size_of::<SegmentHeader>(),
            size_of::<SegmentHeader>(),
        );
    }

    /// Starts to write a segment's words back: generation and epoch.
    #[inline(always)]
    #[cfg_attr(feature = "observe", track_caller)]
    pub(crate) fn write_back_words(&self, segment: usize) {
        self.write_back(
            self.layout.words + segment * size_of::<SegmentWords>(),
            size_of::<SegmentWords>(),
        );
    }

    /// Makes the processor's tables for these bytes, before they are written to for the first time.
    pub(crate) fn fault_in(&self, at: usize, len: usize) {
        self.faulted.fault_in(self, at, len);
    }
}

/// A count of segments. It drifts when a thread dies before it counts; a negative count means none.
pub(crate) fn number(count: &AtomicU64) -> usize {
    let number = count.load(Relaxed);
    if number > u64::MAX / 2 { 0 } else { index(number) }
}
