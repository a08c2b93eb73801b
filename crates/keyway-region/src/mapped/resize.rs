//! The region grows: more segments, while all sessions continue.
//!
//! 1. The new parts of the file are backed by memory, arrays first, segments last; no thread looks at them yet.
//! 2. Each new segment gets generation 1 by compare-and-swap from 0. Headers, directories and segments are zeros, which is their
//!    right initial value (a free segment, no entry).
//! 3. PUBLISH: the superblock's number of segments, by compare-and-swap, upwards only.
//! 4. The count of free segments is corrected.
//!
//! Before all that, segments that a memory limit keeps out of use are taken into use again (`limit.rs`).
//!
//! Each step is idempotent, so two threads may do this concurrently. A thread that dies before step 3 leaves the old number and a
//! longer file, which the next attempt uses. One that dies after step 3 leaves a count of free segments that is too low; the
//! next process that learns of the new number corrects it.
//!
//! A process keeps the number of segments that it has checked. It reads the superblock's number again when it meets a segment
//! beyond its own number, and when it needs space. It accepts a higher one only if the file is long enough for it, so a
//! corrupted word makes no process touch memory that does not exist.

use crate::atomics::{Acquire, Relaxed, Release};
use crate::durable::line;
use crate::layout::segment::{Kind, SegmentLife, State};
use crate::mapped::Mapped;

/// Attempts to correct the count of free segments while other threads claim and free.
const RECOUNTS_MAX: usize = 16;

impl Mapped {
    /// Grows the region, so that at least `segments` may be in use; it never shrinks it.
    ///
    /// # Errors
    ///
    /// The host's, when it cannot back them; the region is then unchanged.
    pub fn grow(&self, segments: usize) -> std::io::Result<()> {
        let segments = segments.min(self.layout().shape.segments_max);
        self.learn();
        let withheld = self.withheld();
        self.lift(segments)?;
        self.add_segments(segments).inspect_err(|_| self.withhold(withheld))
    }

    /// Adds segments, if there are fewer.
    fn add_segments(&self, segments: usize) -> std::io::Result<()> {
        let old = self.segments();
        if segments <= old {
            return Ok(());
        }
        let (was, is) = (self.layout().backed(old), self.layout().backed(segments));
        for (was, is) in was.into_iter().zip(is) {
            if was.end < is.end {
                self.host().back(was.end..is.end)?;
            }
        }
        for segment in old..segments {
            let _ = self
                .words(segment)
                .generation
                .compare_exchange(0, SegmentLife::FIRST.generation, Relaxed, Relaxed);
        }
        // The generations are not written back here, but when a segment is first used. A repair gives segments that have no
        // generation their first one.
        self.publish_segments(segments as u64);
        self.learn();
        self.recount_free();
        Ok(())
    }

    /// PUBLISH: the number of segments. Everything that it makes reachable is backed and initialised.
    fn publish_segments(&self, segments: u64) {
        let word = &self.superblock().segments;
        let mut now = word.load(Relaxed);
        while now < segments {
            // PAIRS: segments: the loads in `learn` and `inspect`: a thread that sees the number sees the words of the new segments.
            match word.compare_exchange(now, segments, Release, Relaxed) {
                Ok(_) => return,
                Err(other) => now = other,
            }
        }
    }

    /// Checks whether the region has grown. `true`: it has more segments than this process knew.
    #[cold]
    pub fn learn(&self) -> bool {
        // PAIRS: segments: the exchange in `publish_segments`.
        let said = self.superblock().segments.load(Acquire);
        let Some(segments) = usize::try_from(said).ok().filter(|n| *n <= self.layout().shape.segments_max) else {
            return false;
        };
        let known = self.segments();
        let len = self.layout().len(segments);
        if segments <= known || self.host().file_len() < len || self.memory().len() < len {
            return false;
        }
        self.secure_segments();
        self.know(segments);
        true
    }

    /// Makes the number of segments persistent before this process uses a new one, no matter which process has grown the region.
    pub(crate) fn secure_segments(&self) {
        self.write_back(line::TABLE, 64);
        self.barrier();
    }

    /// Counts the free segments and those out of use, and sets the superblock's counts to that.
    pub(crate) fn recount_free(&self) {
        let sb = self.superblock();
        let counts = [&sb.free, &sb.withdrawn, &sb.given_back];
        for _ in 0..RECOUNTS_MAX {
            let said = counts.map(|count| count.load(Relaxed));
            let [mut free, mut withdrawn, mut given_back] = [0; 3];
            for segment in 0..self.segments() {
                let state = State(self.header(segment).state.load(Relaxed));
                free += u64::from(state.kind() == Some(Kind::Free));
                withdrawn += u64::from(state.kind() == Some(Kind::Withdrawn));
                given_back += u64::from(state.owner().is_none() && state.has_no_pages());
            }
            let found = [free, withdrawn, given_back];
            if said == found {
                return;
            }
            // Recounted once more even after a success: a thread that sleeps in between stores a count from long ago.
            for ((count, said), found) in counts.into_iter().zip(said).zip(found) {
                let _ = count.compare_exchange(said, found, Relaxed, Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::atomics::Release;
    use crate::layout::plan::{Layout, Shape};
    use crate::layout::session::Tenant;
    use crate::mapped::{Host, Life};
    use crate::memory::Memory;
    use crate::region::{Creation, Region};
    use core::ops::Range;
    use core::ptr::NonNull;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    const MEMORY: u64 = 2 << 20;

    /// Acts as a file on a file system with a limit.
    struct Disk {
        len: Arc<AtomicUsize>,
        limit: usize,
    }

    impl Host for Disk {
        fn life(&self, _: &Tenant) -> Life {
            Life::Alive
        }
        fn prepare(&self, _: &[Range<usize>], _: bool, _: bool) {}
        fn write_back(&self, _: Range<usize>) -> bool {
            true
        }
        fn file_len(&self) -> usize {
            self.len.load(Acquire)
        }
        fn back(&self, range: Range<usize>) -> std::io::Result<()> {
            if range.end > self.limit {
                return Err(std::io::ErrorKind::StorageFull.into());
            }
            self.len.fetch_max(range.end, Release);
            Ok(())
        }
    }

    #[repr(align(4096))]
    struct Page(#[allow(dead_code, reason = "touched through the mapping only")] [u64; 512]);

    /// A region of 2 MiB that can grow to 8, seen by two processes; its pages; the file's length.
    fn two(limit_segments: usize) -> (Region, Region, Vec<Page>, Arc<AtomicUsize>) {
        let mut shape = Shape::for_memory(MEMORY, 4096);
        shape.segments_max = 512;
        let layout = Layout::new(shape);
        let segments = layout.segments_for(MEMORY);
        let mut pages: Vec<Page> = (0..layout.len_max.div_ceil(4096)).map(|_| Page([0; 512])).collect();
        let base = NonNull::new(pages.as_mut_ptr().cast()).expect("pages");
        let len = Arc::new(AtomicUsize::new(layout.len(segments)));
        let disk = || {
            Box::new(Disk {
                len: Arc::clone(&len),
                limit: layout.len(limit_segments),
            })
        };
        // SAFETY: the pages outlive the regions in each test and are not touched otherwise.
        #[allow(unsafe_code, reason = "private memory plays the mapping")]
        let memory = || unsafe { Memory::new(base, layout.len_max) };
        let creation = Creation {
            shape,
            segments,
            id: [1, 2],
            seed: 3,
            now: crate::Moment::from_secs(1_800_000_000),
            boot_id: [4, 5],
            checksums: false,
            limits: crate::Limits::default(),
        };
        let one = Region::create(memory(), &creation, disk()).expect("memory of the right size");
        let other = Region::open(memory(), disk()).expect("just created");
        (one, other, pages, len)
    }

    fn free(region: &Region) -> u64 {
        region.mapped().superblock().free.load(Relaxed)
    }

    #[test]
    fn a_raise_is_learnt_by_others_and_counted_once() {
        let (one, other, _pages, _) = two(512);
        let (old, free_before) = (one.mapped().segments(), free(&one));
        one.mapped().grow(old + 100).expect("there is room");
        assert_eq!((one.mapped().segments(), other.mapped().segments()), (old + 100, old));
        assert!(other.mapped().has(old + 99) && !other.mapped().has(old + 100));
        assert_eq!(other.mapped().segments(), old + 100);
        assert_eq!(free(&one), free_before + 100);
        other.mapped().grow(old + 50).expect("nothing to do");
        other.mapped().grow(old + 100).expect("nothing to do");
        assert_eq!((free(&one), one.mapped().segments()), (free_before + 100, old + 100));
        assert!(one.mapped().segment_life(old + 99) == SegmentLife::FIRST);
    }

    #[test]
    fn a_refused_raise_leaves_the_region_as_it_was_and_the_next_one_continues() {
        let (one, other, _pages, _) = two(200);
        let (old, free_before) = (one.mapped().segments(), free(&one));
        assert!(one.mapped().grow(300).is_err());
        other.mapped().learn();
        assert_eq!(
            (one.mapped().segments(), other.mapped().segments(), free(&one)),
            (old, old, free_before)
        );
        one.mapped().grow(200).expect("there is room");
        assert_eq!(free(&one), free_before + 200 - old as u64);
    }

    #[test]
    fn a_number_that_the_file_does_not_have_is_not_believed() {
        let (one, other, _pages, len) = two(512);
        let old = one.mapped().segments();
        for said in [old as u64 + 1, 513, u64::MAX] {
            one.mapped().superblock().segments.store(said, Relaxed);
            assert!(
                !other.mapped().has(old) && !other.mapped().learn() && other.mapped().segments() == old,
                "{said}"
            );
        }
        one.mapped().superblock().segments.store(old as u64 + 1, Relaxed);
        len.store(one.mapped().layout().len(old + 1), Release);
        assert!(other.mapped().has(old));
    }

    #[test]
    fn who_learns_of_more_segments_sets_the_free_count_right() {
        let (one, other, _pages, len) = two(512);
        let (old, free_before) = (one.mapped().segments(), free(&one));
        // As if the growing thread had died between its publish and its count.
        len.store(one.mapped().layout().len(old + 10), Release);
        one.mapped().publish_segments(old as u64 + 10);
        other.mapped().catch_up();
        assert_eq!(free(&one), free_before + 10);
    }

    #[test]
    fn who_attaches_while_it_is_raised_is_not_told_that_the_file_was_truncated() {
        let (one, _, _pages, len) = two(512);
        let old = one.mapped().segments();
        // The other process grows the region whenever it can: just after each look at the file's length.
        let raised_behind = || {
            let seen = len.load(Acquire);
            one.mapped().grow(old + 100).expect("there is room");
            seen
        };
        let found = Region::inspect(one.mapped().memory(), raised_behind).map(|(_, segments)| segments);
        assert_eq!(found, Ok(old + 100));
    }
}
