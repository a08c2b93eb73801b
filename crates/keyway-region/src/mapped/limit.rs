//! The memory limit in the region's words: how many segments may be in use, how many are out of use.
//!
//! Lowering the limit only stores a number; steps of [`Session::shrink`](crate::Session::shrink) do the work. Raising it
//! allocates the pages first: a segment is free only when they are there.

use crate::atomics::{AcqRel, Acquire, Relaxed};
use crate::heap::List;
use crate::layout::index;
use crate::layout::segment::{Kind, State};
use crate::mapped::{Mapped, number};
use std::io;
use std::ops::Range;

/// Log segments that any limit leaves, besides those that sessions may hold and those that the largest item takes: the reserve,
/// the open segments of a small region, and some full ones.
pub(crate) const LOG_MIN: usize = 8;
/// Bytes that are allocated at a time.
const ALLOCATED_AT_ONCE: usize = 32 << 20;

impl Mapped {
    /// Segments that may be in use: all but those that the memory limit keeps out of use, as far as this process knows.
    #[inline(always)]
    pub fn allowed(&self) -> usize {
        self.allowed.load(Relaxed)
    }

    /// Segments that the memory limit keeps out of use. A corrupted word still leaves a few in use.
    pub fn withheld(&self) -> usize {
        self.withheld_of(self.segments())
    }

    fn withheld_of(&self, segments: usize) -> usize {
        index(self.superblock().withheld.load(Relaxed)).min(segments.saturating_sub(LOG_MIN))
    }

    /// Segments that are out of use, approximately.
    pub fn withdrawn(&self) -> usize {
        number(&self.superblock().withdrawn)
    }

    /// Segments out of use whose pages were given back, approximately.
    pub fn given_back(&self) -> usize {
        number(&self.superblock().given_back)
    }

    /// Whether the memory limit requires any work.
    pub fn is_shrinking(&self) -> bool {
        let withdrawn = self.withdrawn();
        withdrawn != self.withheld() || withdrawn > self.given_back() && self.may_give_back()
    }

    /// Reads the limit from the superblock. If it is new to this process, the process that set it may have died before it
    /// corrected the counts.
    pub(super) fn learn_limit(&self) {
        let allowed = self.allowed_now();
        if self.allowed() != allowed {
            self.allowed.store(allowed, Relaxed);
            self.doubt_free();
        }
    }

    /// Segments that may be in use, as the superblock says now.
    pub(super) fn allowed_now(&self) -> usize {
        // Another thread of this process may learn of more segments meanwhile: their number is read once.
        let segments = self.segments();
        segments - self.withheld_of(segments)
    }

    /// Makes the limit keep this many segments out of use from now on.
    pub(crate) fn withhold(&self, segments: usize) {
        // Not written back: after a power failure an older limit applies.
        self.superblock().withheld.store(segments as u64, Relaxed);
        self.learn_limit();
    }

    /// Raises the limit to this many segments, as far as the region has them.
    ///
    /// # Errors
    ///
    /// The host's, when it cannot back them; the limit is then unchanged.
    pub(super) fn lift(&self, segments: usize) -> io::Result<()> {
        let old = self.withheld();
        let new = self.segments().saturating_sub(segments);
        if new >= old {
            return Ok(());
        }
        // Before the segments are taken into use: otherwise they would be withdrawn again.
        self.withhold(new);
        let taken = self.take_into_use(new, usize::MAX);
        if taken.is_err() {
            self.withhold(old);
        }
        taken
    }

    /// Takes withdrawn segments into use, up to `most`, until no more than `withheld` are out of use.
    pub(crate) fn take_into_use(&self, withheld: usize, most: usize) -> io::Result<()> {
        let segments = self.segments();
        let at_once = (ALLOCATED_AT_ONCE / self.layout().shape.segment_size).max(1);
        let (mut next, mut left) = (0, most);
        while next < segments && left > 0 {
            let excess = self.withdrawn().saturating_sub(withheld);
            if excess == 0 {
                return Ok(());
            }
            let first = (next..segments).find(|segment| self.unowned_withdrawn(*segment).is_some());
            let Some(first) = first else {
                // Some are being given back now, or the counts are wrong.
                self.doubt_free();
                break;
            };
            let mut states = List::new();
            (first..segments)
                .map_while(|segment| self.unowned_withdrawn(segment))
                .take(at_once.min(excess).min(left))
                .for_each(|state| states.push(state));
            let end = first + states.len();
            let pages = self.pages_of(first..end);
            self.host().back(pages.clone())?;
            for (segment, state) in (first..end).zip(states.iter()) {
                left -= usize::from(self.free_withdrawn(segment, *state));
            }
            self.note_pages(pages, first..end);
            next = end;
        }
        Ok(())
    }

    /// The state of a withdrawn segment without owner.
    pub(crate) fn unowned_withdrawn(&self, segment: usize) -> Option<State> {
        // PAIRS: owner: the store in `Reclaimer::leave_withdrawn`: that session does not give back what is allocated after this.
        let state = State(self.header(segment).state.load(Acquire));
        (state.kind() == Some(Kind::Withdrawn) && state.owner().is_none()).then_some(state)
    }

    /// PUBLISH: the segment is free. Its pages are allocated.
    fn free_withdrawn(&self, segment: usize, state: State) -> bool {
        let sb = self.superblock();
        // PAIRS: owner: the claim by its next owner, which comes after the allocation.
        let freed = self
            .header(segment)
            .state
            .compare_exchange(state.0, State::FREE.0, AcqRel, Relaxed)
            .is_ok();
        if freed {
            sb.free.fetch_add(1, Relaxed);
            sb.withdrawn.fetch_sub(1, Relaxed);
            sb.given_back.fetch_sub(u64::from(state.has_no_pages()), Relaxed);
        }
        freed
    }

    /// Notes that withdrawn segments have pages again, because they share pages with those just allocated.
    fn note_pages(&self, pages: Range<usize>, allocated: Range<usize>) {
        let segment = |at: usize| (at - self.layout().segments) / self.layout().shape.segment_size;
        for neighbour in segment(pages.start)..segment(pages.end).min(self.segments()) {
            if let Some(state) = self.unowned_withdrawn(neighbour)
                && !allocated.contains(&neighbour)
                && state.has_no_pages()
            {
                let word = &self.header(neighbour).state;
                if word.compare_exchange(state.0, state.with_pages().0, Relaxed, Relaxed).is_ok() {
                    self.superblock().given_back.fetch_sub(1, Relaxed);
                }
            }
        }
    }

    /// Segments that share a page: their pages can only be given back together.
    pub(crate) fn segments_of_a_page(&self) -> usize {
        let shape = self.layout().shape;
        (shape.page_size / shape.segment_size).max(1)
    }

    /// The whole pages that contain these segments.
    pub(crate) fn pages_of(&self, segments: Range<usize>) -> Range<usize> {
        let together = self.segments_of_a_page();
        let start = segments.start / together * together;
        let end = segments.end.next_multiple_of(together);
        self.segment(start)..self.segment(end)
    }

    /// Whether the system takes pages back, as far as this process knows.
    pub(crate) fn may_give_back(&self) -> bool {
        !self.keeps_pages.load(Relaxed)
    }

    /// Notes that the system has refused to take pages back: this process does not ask again.
    pub(crate) fn note_that_pages_stay(&self) {
        self.keeps_pages.store(true, Relaxed);
    }

    /// The parts of the file that are in use: those of withdrawn segments must not be touched.
    pub fn in_use(&self) -> Vec<Range<usize>> {
        let backed = self.layout().backed(self.segments());
        if self.withdrawn() == 0 {
            return backed.into();
        }
        let arrays = backed.into_iter().filter(|part| part.start != self.layout().segments);
        let used = (0..self.segments()).filter(|segment| !self.is_withdrawn(*segment));
        let mut parts: Vec<Range<usize>> = arrays.collect();
        for segment in used {
            let at = self.segment(segment);
            match parts.last_mut() {
                Some(last) if last.end == at => last.end = self.segment(segment + 1),
                _ => parts.push(at..self.segment(segment + 1)),
            }
        }
        parts
    }

    /// Whether the segment is out of use.
    pub(super) fn is_withdrawn(&self, segment: usize) -> bool {
        State(self.header(segment).state.load(Relaxed)).kind() == Some(Kind::Withdrawn)
    }
}
