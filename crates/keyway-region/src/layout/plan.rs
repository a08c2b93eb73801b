//! The offset of everything in a region of a given size, and which parts of it must be backed by memory.
//!
//! ```text
//! superblock | process slots | thread slots | latency pages | hot-key counters | their texts | trail | rings | flights | segment words | segment headers | bucket directory | hint directory | ghost directory | segments
//! ```
//!
//! The arrays have space for the most segments that the region can ever have, so that nothing moves when it grows; only the
//! parts in use are backed. Offsets only, never pointers.

use super::flight;
use super::hot::{By, HotGroup, HotText, WAYS};
use super::segment::{CELL_SIZE_MIN, CELLS_MAX, CHAIN_HEADER_SIZE, SIZE_MAX, SIZE_MIN, SegmentWords};
use super::session::{ProcessSlot, ThreadSlot};
use super::slot::SEGMENTS_MAX;
use super::trail::{TrailEntry, TrailHead};
use super::{bucket, hot, latency, superblock, trail, watch};
use crate::atomics::AtomicU32;
use core::ops::Range;

/// Smallest region, bytes.
pub const MEMORY_MIN: u64 = 2 << 20;
/// Largest region, bytes: all segments that slots can name, at their largest.
pub const MEMORY_MAX: u64 = (SEGMENTS_MAX * SIZE_MAX) as u64;
/// The segment size is chosen to give about this many segments: few enough for short tables, enough for eviction in small
/// portions and for one open segment per TTL class.
const SEGMENTS_WANTED: u64 = 1024;
/// How many times its first size a region can grow to. All of that is mapped from the start, so every process pays for it in
/// address space: 1 GiB for a region of 64 MiB.
const GROWTH_MAX: usize = 16;
/// The size to which any region can grow, bytes: small regions cost little address space.
const GROWN_MIN: usize = 1 << 30;
/// Bytes of memory per bucket of the first index, which suffices for items of 13 KiB: a larger one would take more of the processor's
/// caches than such items need. After all doublings there is a bucket for each 4 bytes of the first memory, or for each 64 of
/// sixteen times as much: more slots than items fit.
const MEMORY_PER_BUCKET: u64 = 65536;
/// Fewest buckets of an index: the three of a key differ in their lowest two bits.
const BUCKETS_MIN: usize = 4;

/// Fewest thread slots of a region, and so the fewest that can be requested.
pub const THREAD_SLOTS_MIN: usize = 32;
/// Most thread slots of a region: an owner names one in 16 bits.
const THREAD_SLOTS_MAX: usize = 1 << 15;
/// Bytes of memory for each thread slot that can be requested: the slots take a quarter of the memory at most.
const MEMORY_PER_THREAD_MIN: u64 = 4096;
/// One in this many slots is reserved for servers.
const SERVERS_SHARE: usize = 8;
/// Process slots reserved for servers, at least: a server, and the one that takes over from it.
const SERVER_PROCESSES_MIN: usize = 2;
/// Thread slots reserved for servers, at least: those of two servers with four pairs of threads.
const SERVER_THREADS_MIN: usize = 16;

/// The ghost table takes one in this many segments at most: a fingerprint of 12 bits for each item of 102 bytes.
const GHOSTS_SHARE: usize = 64;

/// Most processes that can be attached at a time: as many as a lease word can name.
const PROCESS_SLOTS_MAX: usize = 1 << 14;

/// The numbers that determine a layout, as in the superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// bytes of a segment, a power of two
    pub segment_size: usize,
    /// most segments that the region can ever have
    pub segments_max: usize,
    /// processes that can be attached at a time
    pub process_slots: usize,
    /// threads that can be attached at a time
    pub thread_slots: usize,
    /// how many of them are reserved for servers
    pub server_threads: usize,
    /// buckets of the first index, a power of two
    pub buckets_initial: usize,
    /// bytes to which every array is aligned, a power of two: the page size of the backing
    pub page_size: usize,
}

/// How many of so many thread slots are reserved for servers.
fn server_threads(thread_slots: usize) -> usize {
    (thread_slots / SERVERS_SHARE).max(SERVER_THREADS_MIN)
}

impl Shape {
    /// Words that a shape takes in the superblock.
    pub const WORDS: usize = 6;

    /// As words for the superblock; one has both numbers of thread slots, those of servers in its upper half.
    pub fn to_words(self) -> [u64; Self::WORDS] {
        [
            self.segment_size,
            self.segments_max,
            self.process_slots,
            self.thread_slots | self.server_threads << 32,
            self.buckets_initial,
            self.page_size,
        ]
        .map(|n| n as u64)
    }

    /// From the superblock's words; `None` if no region can have this shape.
    pub fn from_words(words: [u64; Self::WORDS]) -> Option<Self> {
        let within = |word: u64, max: usize| usize::try_from(word).ok().filter(|n| (1..=max).contains(n));
        let n = |i: usize, max: usize| within(*words.get(i)?, max);
        let threads = *words.get(3)?;
        let shape = Self {
            segment_size: n(0, SIZE_MAX)?,
            segments_max: n(1, SEGMENTS_MAX)?,
            process_slots: n(2, PROCESS_SLOTS_MAX)?,
            thread_slots: within(threads & u64::from(u32::MAX), 1 << 16)?,
            server_threads: within(threads >> 32, 1 << 16)?,
            buckets_initial: n(4, 1 << 40)?,
            page_size: n(5, 1 << 30)?,
        };
        let powers = [shape.segment_size, shape.buckets_initial, shape.page_size];
        let sane = powers.into_iter().all(usize::is_power_of_two)
            && shape.server_threads < shape.thread_slots
            && shape.segment_size >= SIZE_MIN
            && shape.page_size >= 4096
            && shape.buckets_initial >= BUCKETS_MIN;
        sane.then_some(shape)
    }

    /// The shape of a new region of about `memory` bytes (at least [`MEMORY_MIN`]) on pages of `page_size` bytes.
    pub fn for_memory(memory: u64, page_size: usize) -> Self {
        let wanted = usize::try_from((memory / SEGMENTS_WANTED).max(1)).unwrap_or(SIZE_MAX);
        let segment_size = (1usize << wanted.ilog2()).clamp(SIZE_MIN, SIZE_MAX);
        let now = usize::try_from(memory).unwrap_or(usize::MAX) / segment_size;
        let per_memory = |bytes: u64, min: u64, max: u64| usize::try_from((memory / bytes).clamp(min, max)).unwrap_or(1);
        // LMDB's default of 126 readers is the scale; a thread slot takes 1 KiB, so small regions have fewer.
        let thread_slots = per_memory(512 << 10, THREAD_SLOTS_MIN as u64, 4096);
        Self {
            segment_size,
            segments_max: segments_max(now, segment_size),
            process_slots: per_memory(512 << 10, 16, 1024),
            thread_slots,
            server_threads: server_threads(thread_slots),
            buckets_initial: 1usize << per_memory(MEMORY_PER_BUCKET, BUCKETS_MIN as u64, 1 << 40).ilog2(),
            page_size,
        }
    }

    /// Most thread slots that a region of about `memory` bytes can be made with.
    pub fn thread_slots_max(memory: u64) -> usize {
        usize::try_from(memory / MEMORY_PER_THREAD_MIN).map_or(THREAD_SLOTS_MAX, |n| n.clamp(THREAD_SLOTS_MIN, THREAD_SLOTS_MAX))
    }

    /// This shape with so many thread slots, and at least as many processes as before: each process has at least one thread.
    #[must_use]
    pub fn with_thread_slots(self, thread_slots: usize) -> Self {
        Self {
            process_slots: self.process_slots.max(thread_slots.min(PROCESS_SLOTS_MAX)),
            thread_slots,
            server_threads: server_threads(thread_slots),
            ..self
        }
    }

    /// This shape with room for a server whose threads need this many slots, and for the one that takes over from it. Programs
    /// have as many slots as before.
    #[must_use]
    pub fn with_server(self, threads: usize) -> Self {
        let server_threads = self.server_threads.max(threads.saturating_mul(2));
        Self {
            thread_slots: self.thread_slots_for(false).saturating_add(server_threads),
            server_threads,
            ..self
        }
    }

    /// Process slots that a process may take: all but the last few, which are reserved for servers.
    pub fn process_slots_for(&self, server: bool) -> usize {
        let kept = (self.process_slots / SERVERS_SHARE).max(SERVER_PROCESSES_MIN);
        self.process_slots.saturating_sub(if server { 0 } else { kept }).max(1)
    }

    /// Thread slots that a thread of a process may take: all but the last few, which are reserved for servers.
    pub fn thread_slots_for(&self, server: bool) -> usize {
        self.thread_slots.saturating_sub(if server { 0 } else { self.server_threads })
    }

    /// Buckets that fit in a segment.
    pub fn buckets_per_segment(&self) -> usize {
        self.segment_size / bucket::SIZE
    }

    /// Bytes of a cell, the unit of extents.
    pub const fn cell_size(&self) -> usize {
        let least = self.segment_size / CELLS_MAX;
        if least > CELL_SIZE_MIN { least } else { CELL_SIZE_MIN }
    }

    /// Segments that the ghost table takes at most in a region of this many.
    pub const fn ghosts_max(segments: usize) -> usize {
        segments.div_ceil(GHOSTS_SHARE)
    }

    /// Cells of a segment.
    pub fn cells(&self) -> usize {
        self.segment_size / self.cell_size()
    }
}

/// The most segments that a region can have which begins with `now` of them.
fn segments_max(now: usize, segment_size: usize) -> usize {
    now.saturating_mul(GROWTH_MAX)
        .max(GROWN_MIN / segment_size)
        .clamp(1, SEGMENTS_MAX)
}

/// Byte offsets of everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// the shape from which they are computed
    pub shape: Shape,
    /// process slots
    pub processes: usize,
    /// thread slots
    pub threads: usize,
    /// latency pages
    pub latencies: usize,
    /// hot-key counters
    pub hot: usize,
    /// groups of each of their tables, a power of two
    pub hot_groups: usize,
    /// texts of the hot-key counters of gets
    pub hot_texts: usize,
    /// the trail
    pub trail: usize,
    /// its entries, a power of two
    pub trail_entries: usize,
    /// rings of events for watchers
    pub rings: usize,
    /// cells of each of them, a power of two
    pub ring_cells: usize,
    /// where callers wait for flights
    pub flights: usize,
    /// segment words
    pub words: usize,
    /// segment headers
    pub headers: usize,
    /// segments, plus 1, of the buckets
    pub bucket_directory: usize,
    /// segments, plus 1, of the hints
    pub hint_directory: usize,
    /// segments, plus 1, of the ghost table
    pub ghost_directory: usize,
    /// the segments
    pub segments: usize,
    /// length of all of it, at its largest
    pub len_max: usize,
}

impl Layout {
    /// The layout of a shape.
    pub const fn new(shape: Shape) -> Self {
        let page = shape.page_size;
        let processes = superblock::SIZE;
        let threads = processes + shape.process_slots * size_of::<ProcessSlot>();
        let latencies = threads + shape.thread_slots * size_of::<ThreadSlot>();
        let hot = latencies + latency::pages(shape.thread_slots) * latency::PAGE_SIZE;
        let hot_groups = hot::groups(shape.buckets_initial);
        let hot_texts = hot + hot::TABLES * hot_groups * size_of::<HotGroup>();
        let trail = hot_texts + hot_groups * WAYS * size_of::<HotText>();
        let trail_entries = trail::entries(shape.buckets_initial);
        let rings = trail + size_of::<TrailHead>() + trail_entries * size_of::<TrailEntry>();
        let ring_cells = watch::cells(shape.buckets_initial);
        let flights = (rings + watch::size(ring_cells)).next_multiple_of(align_of::<flight::LimitRow>());
        let words = (flights + flight::SIZE).next_multiple_of(page);
        let headers = (words + shape.segments_max * size_of::<SegmentWords>()).next_multiple_of(page);
        let bucket_directory = (headers + shape.segments_max * 64).next_multiple_of(page);
        let hint_directory = (bucket_directory + shape.segments_max * 4).next_multiple_of(page);
        let ghost_directory = (hint_directory + shape.segments_max * 4).next_multiple_of(page);
        let segments = (ghost_directory + Shape::ghosts_max(shape.segments_max) * 4)
            .next_multiple_of(page)
            .next_multiple_of(shape.segment_size);
        Self {
            shape,
            processes,
            threads,
            latencies,
            hot,
            hot_groups,
            hot_texts,
            trail,
            trail_entries,
            rings,
            ring_cells,
            flights,
            words,
            headers,
            bucket_directory,
            hint_directory,
            ghost_directory,
            segments,
            len_max: segments + shape.segments_max * shape.segment_size,
        }
    }

    /// Offset of a segment.
    #[inline]
    pub fn segment(&self, segment: usize) -> usize {
        self.segments + segment * self.shape.segment_size
    }

    /// Offset of a process slot. The lock on its first byte says that the process is alive.
    pub fn process(&self, slot: usize) -> usize {
        self.processes + slot * size_of::<ProcessSlot>()
    }

    /// Offset of a group of the hot-key counters.
    pub fn hot_group(&self, by: By, group: usize) -> usize {
        self.hot + (by as usize * self.hot_groups + group) * size_of::<HotGroup>()
    }

    /// Offset of the text of a counter of the gets: of the counter `way` of a group.
    pub fn hot_text(&self, group: usize, way: usize) -> usize {
        self.hot_texts + (group * WAYS + way) * size_of::<HotText>()
    }

    /// Offset of a word on which callers wait.
    pub fn flight_word(&self, word: usize) -> usize {
        self.flights + word * size_of::<AtomicU32>()
    }

    /// Offset of a row of the limits.
    pub const fn flight_row(&self, row: usize) -> usize {
        self.flights + flight::WORDS_SIZE + row * size_of::<flight::LimitRow>()
    }

    /// Offset of an entry of the trail.
    pub fn trail_entry(&self, entry: usize) -> usize {
        self.trail + size_of::<TrailHead>() + entry * size_of::<TrailEntry>()
    }

    /// Length of the file with this many segments.
    pub fn len(&self, segments: usize) -> usize {
        self.segment(segments)
    }

    /// The parts of the file that must be backed by memory with this many segments.
    pub fn backed(&self, segments: usize) -> [Range<usize>; 7] {
        let page = |n: usize| n.next_multiple_of(self.shape.page_size);
        [
            0..self.words,
            self.words..page(self.words + segments * size_of::<SegmentWords>()),
            self.headers..page(self.headers + segments * 64),
            self.bucket_directory..page(self.bucket_directory + segments * 4),
            self.hint_directory..page(self.hint_directory + segments * 4),
            self.ghost_directory..page(self.ghost_directory + Shape::ghosts_max(segments) * 4),
            self.segments..page(self.segment(segments)),
        ]
    }

    /// Bytes backed with this many segments.
    pub fn backed_len(&self, segments: usize) -> u64 {
        self.backed(segments).iter().map(|r| (r.end - r.start) as u64).sum()
    }

    /// The most segments that `memory` bytes can back.
    pub fn segments_for(&self, memory: u64) -> usize {
        let (mut low, mut high) = (0, self.shape.segments_max);
        while low < high {
            let middle = (low + high).div_ceil(2);
            if self.backed_len(middle) <= memory {
                low = middle
            } else {
                high = middle - 1
            }
        }
        low
    }

    /// The largest item that a region of this many segments can hold, bytes: a value takes at most half of the segments.
    pub fn item_size_max(&self, segments: usize) -> usize {
        segments / 2 * (self.shape.segment_size - CHAIN_HEADER_SIZE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_uses_its_memory_and_no_more() {
        for memory in [
            2u64 << 20,
            3 << 20,
            64 << 20,
            100_000_000,
            256 << 20,
            1 << 30,
            64 << 30,
            512 << 30,
        ] {
            let shape = Shape::for_memory(memory, 4096);
            let layout = Layout::new(shape);
            let segments = layout.segments_for(memory);
            let backed = layout.backed_len(segments);
            assert!(backed <= memory, "{memory}");
            assert!(
                memory - backed <= shape.segment_size as u64 + 4096 * 9,
                "{memory}: {} unused",
                memory - backed
            );
            assert!(
                (segments * shape.segment_size) as f64 > 0.92 * memory as f64,
                "{memory}: {segments}"
            );
            assert!(layout.backed(segments).windows(2).all(|w| w[0].end <= w[1].start));
            assert_eq!(Shape::from_words(shape.to_words()), Some(shape));
        }
    }

    #[test]
    fn a_region_takes_sixteen_times_its_size_of_address_space_or_a_gib() {
        for (memory, most) in [
            (2u64 << 20, 1u64 << 30),
            (4 << 20, 1 << 30),
            (64 << 20, 1 << 30),
            (1 << 30, 16 << 30),
        ] {
            let shape = Shape::for_memory(memory, 4096);
            let segments = (shape.segments_max * shape.segment_size) as u64;
            assert_eq!(segments, most, "{memory}");
            // Before the segments: words, headers and directories of all possible segments, and the slots.
            assert!(
                (Layout::new(shape).len_max as u64) < most + most / 100 + (8 << 20),
                "{memory}"
            );
        }
        assert_eq!(Shape::for_memory(512 << 30, 4096).segments_max, SEGMENTS_MAX);
    }

    #[test]
    fn a_share_of_the_slots_is_kept_for_servers() {
        let kept = |memory| {
            let shape = Shape::for_memory(memory, 4096);
            (
                (
                    shape.process_slots,
                    shape.process_slots_for(true),
                    shape.process_slots_for(false),
                ),
                (
                    shape.thread_slots,
                    shape.thread_slots_for(true),
                    shape.thread_slots_for(false),
                ),
            )
        };
        assert_eq!(kept(MEMORY_MIN), ((16, 16, 14), (32, 32, 16)));
        assert_eq!(kept(64 << 20), ((128, 128, 112), (128, 128, 112)));
        assert_eq!(kept(64 << 30), ((1024, 1024, 896), (4096, 4096, 3584)));
    }

    #[test]
    fn a_server_and_its_successor_take_no_slot_of_programs() {
        let shape = Shape::for_memory(64 << 20, 4096);
        for threads in [0, 1, 8, 9, 66, 130] {
            let with = shape.with_server(threads);
            assert!(
                with.server_threads >= 2 * threads && Shape::from_words(with.to_words()) == Some(with),
                "{with:?}"
            );
            assert_eq!(
                (with.thread_slots_for(false), with.thread_slots_for(true)),
                (112, 112 + with.server_threads)
            );
        }
        for memory in [MEMORY_MIN, 64 << 20] {
            let shape = Shape::for_memory(memory, 4096);
            assert_eq!(shape.with_server(8), shape);
        }
        let without_programs = Shape {
            server_threads: shape.thread_slots,
            ..shape
        };
        assert_eq!(Shape::from_words(without_programs.to_words()), None);
    }

    #[test]
    fn a_region_can_be_made_for_more_threads_in_a_quarter_of_its_memory() {
        for memory in [MEMORY_MIN, 64 << 20, 64 << 30] {
            let most = Shape::thread_slots_max(memory);
            let shape = Shape::for_memory(memory, 4096).with_thread_slots(most);
            assert_eq!(Shape::from_words(shape.to_words()), Some(shape), "{memory}: most {most}");
            assert!((most * size_of::<ThreadSlot>()) as u64 <= memory / 4, "{memory}: most {most}");
            assert!(shape.process_slots >= shape.thread_slots.min(PROCESS_SLOTS_MAX), "{memory}");
        }
        assert_eq!(Shape::for_memory(64 << 20, 4096).with_thread_slots(32).process_slots, 128);
    }
}
