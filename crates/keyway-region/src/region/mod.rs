//! Room `region`: the mapped bytes as a whole, and the words that all processes share.
//!
//! Holds the accessors of its words (this file), create and open (`create`), what it needs from the code that maps it (`host`), the table
//! word and the directories (`table`), the flush word (`flush`), the clock (`clock`), more memory for a region in use (`resize`), the memory
//! limit's words (`limit`), what the region allows (`limits`), clean and unclean ends (`restart`), what a change has to heed (`rules`), which pages this process has touched (`faulted`), and where it has found
//! the index (`known`). Nothing here maps anything: [`Region::create`] and [`Region::open`] get bytes.
//!
//! - What this room returns can be used as an offset: segment numbers, directory entries and the table word are checked here, once.
//! - The number of segments is published after all that it makes reachable.
//!
//! Never: knows what an item is.

mod clock;
mod create;
mod faulted;
mod flush;
mod host;
mod known;
#[cfg(all(test, feature = "observe"))]
mod late;
mod latencies;
mod limit;
mod limits;
mod overview;
mod resize;
mod restart;
mod rules;
mod table;

pub(crate) use clock::{COARSE_S, EXPIRED, FINE_TICKS, START_S, expiry_at, seconds_left, ttl};
pub use clock::{Moment, seconds_of};
pub use create::{Creation, Unusable};
pub(crate) use flush::epoch_at_any_time;
pub use host::{Host, Life};
pub(crate) use limit::LOG_MIN;
pub(crate) use limits::memcached_size;
pub use limits::{ITEM_SIZES, Limits};
pub use overview::{ThreadInUse, USES};
pub use restart::{LastBoot, LastUse};
pub(crate) use rules::Rules;

use crate::atomics::{Acquire, AtomicU64, OwnFlag, OwnNumber, Relaxed, Release};
use crate::changes::Offered;
use crate::durable::{LINE, Persist, line};
use crate::hash::{Hasher, Key};
use crate::layout::index;
use crate::layout::plan::Layout;
use crate::layout::segment::{SegmentHeader, SegmentLife, SegmentWords};
use crate::layout::session::{ProcessSlot, Tenancy, Tenant, ThreadSlot};
use crate::layout::stats::{Counter, Counters};
use crate::layout::superblock::{Maker, Superblock};
use crate::memory::{KeyRoom, Memory, View};
use crate::region::faulted::Faulted;
use crate::region::known::Known;

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
    faulted: Faulted,
    known_buckets: Known,
    known_hints: Known,
}

impl Region {
    /// Whether the region has neither durable mode nor checksums.
    #[inline(always)]
    pub(crate) fn is_plain(&self) -> bool {
        self.is_plain
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
    /// As for [`Self::words_in`].
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
        // PAIRS: generation: the fence in `Session::claim_from_free`, and those before hazard pointers are read: a slot that is read
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
}

/// A count of segments. It drifts when a thread dies before it counts; a negative count means none.
pub(crate) fn number(count: &AtomicU64) -> usize {
    let number = count.load(Relaxed);
    if number > u64::MAX / 2 { 0 } else { index(number) }
}
