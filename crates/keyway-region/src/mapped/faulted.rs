//! Which parts of the region this process has requested from the kernel, so that the log's head is not faulted in page by page.
//!
//! A process's first store to a page of a mapping costs a page fault, a microsecond or two. When a session is about to fill
//! space, it requests the whole part with one call, which costs a fraction of that
//! ([`Host::prepare`](crate::Host::prepare)). This is only a hint: pages that are missing are faulted in.

use crate::atomics::{OwnNumber, Relaxed};
use crate::mapped::Mapped;
use core::ops::Range;

/// Bytes that are requested at a time: small enough that no thread waits for long (some 10 µs), large enough to share the cost
/// of the call.
const PART: usize = 64 << 10;

/// A bit for each part.
pub(super) struct Faulted(Vec<OwnNumber>);

impl Faulted {
    /// For a region of at most this many bytes.
    pub fn new(len_max: usize) -> Self {
        let words = len_max.div_ceil(PART).div_ceil(usize::BITS as usize);
        Self((0..words).map(|_| OwnNumber::new(0)).collect())
    }

    /// The parts of these bytes, from end to end, that this process has not requested yet. They count as requested after this.
    pub fn missing(&self, bytes: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let parts = bytes.start / PART..bytes.end.div_ceil(PART);
        parts
            .filter(|part| self.note(*part))
            .map(|part| part * PART..(part + 1) * PART)
    }

    /// Whether it was not noted before.
    fn note(&self, part: usize) -> bool {
        let bit = 1 << (part % usize::BITS as usize);
        // PAIRS: nothing; two threads that request the same part lose a little time.
        self.0
            .get(part / usize::BITS as usize)
            .is_some_and(|word| word.load(Relaxed) & bit == 0 && word.fetch_or(bit, Relaxed) & bit == 0)
    }

    /// Announces that this process is about to write these bytes, by their offset in the region.
    pub fn fault_in(&self, mapped: &Mapped, at: usize, len: usize) {
        for part in self.missing(at..at + len) {
            // Only what is backed: the rest would allocate memory.
            let backed = part.start.max(mapped.layout().segments)..part.end.min(mapped.layout().len(mapped.segments()));
            if mapped.withdrawn() == 0 {
                mapped.host().prepare(&[backed], false, true);
            } else {
                Self::fault_in_used(mapped, backed);
            }
        }
    }

    /// Announces that this process is about to write these bytes, except those of segments that are out of use: the system has
    /// their pages.
    #[cold]
    fn fault_in_used(mapped: &Mapped, part: Range<usize>) {
        let size = mapped.layout().shape.segment_size;
        let within = |at: usize| at.saturating_sub(mapped.layout().segments);
        for segment in within(part.start) / size..within(part.end).div_ceil(size) {
            if !mapped.is_withdrawn(segment) {
                let at = mapped.segment(segment);
                let bytes = at.max(part.start)..(at + size).min(part.end);
                mapped.host().prepare(&[bytes], false, true);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_is_asked_for_once() {
        let faulted = Faulted::new(200 * PART + 1);
        let missing = |from: usize, to: usize| {
            let parts = faulted.missing(from..to).map(|part| {
                assert_eq!(part.len(), PART);
                part.start / PART
            });
            parts.collect::<Vec<_>>()
        };
        assert_eq!(missing(PART, PART + 1), [1]);
        assert_eq!(missing(PART + 7, 2 * PART), []);
        assert_eq!(missing(2 * PART - 1, 2 * PART + 1), [2]);
        assert_eq!(missing(0, 4 * PART), [0, 3]);
        assert_eq!(missing(200 * PART, 200 * PART + 1), [200]);
        assert_eq!(missing(1000 * PART, 1001 * PART), []);
    }
}
