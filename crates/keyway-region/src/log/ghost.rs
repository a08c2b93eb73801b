//! The ghost table: fingerprints of items that were evicted from the admission pool without a hit.
//!
//! A key that comes back while its ghost is there goes straight to the main pool. Each line of 40 fingerprints is a queue of its
//! own: a new one pushes the oldest out, so the table remembers as many evictions as it has places. It gets as many places as
//! the main pool has items. Everything in it is a hint: any thread changes lines by plain stores, at the same time as others,
//! and any value is harmless.

use crate::atomics::Relaxed;
use crate::directory::Directory;
use crate::layout::index;
use crate::layout::segment::Kind;
use crate::log::Claims;
use crate::log::Supply;
use crate::mapped::Mapped;
use std::sync::Arc;

/// Bytes of a line.
pub(crate) const LINE_SIZE: usize = 64;
/// Bits of a fingerprint, and how many of them fit into a word, whose top bits stay 0. One new key in a hundred is mistaken for
/// one that was evicted.
pub(crate) const BITS: u32 = 12;
const LANES: u32 = 64 / BITS;
/// Fingerprints in a line.
const LINE_LANES: u64 = LANES as u64 * (LINE_SIZE as u64 / 8);
/// One in every lane of a word; all bits of the lowest lane, and of all lanes.
const ONES: u64 = 1 | 1 << BITS | 1 << (2 * BITS) | 1 << (3 * BITS) | 1 << (4 * BITS);
const LOWEST: u64 = (1 << BITS) - 1;
const ALL: u64 = ONES * LOWEST;
/// Odd, with well-mixed bits, for a product of its own.
pub(crate) const SPREAD: u64 = 0xD6E8_FEB8_6659_FD93;
/// The table gets another number of lines when the items need more than 9/8 of it, or less than 1/2.
const GROW: (u64, u64) = (9, 8);
const SHRINK: (u64, u64) = (1, 2);

/// The fingerprints of keys that were evicted without a hit.
#[derive(Clone)]
pub struct Ghosts {
    mapped: Arc<Mapped>,
    directory: Arc<Directory>,
}

impl Ghosts {
    pub(crate) fn new(mapped: &Arc<Mapped>, directory: &Arc<Directory>) -> Self {
        Self {
            mapped: Arc::clone(mapped),
            directory: Arc::clone(directory),
        }
    }

    /// Remembers that the key with this hash was evicted.
    pub(crate) fn add_ghost(&self, hash: u64) {
        let Some((line, mut fingerprint)) = self.ghost(hash) else {
            return;
        };
        for i in 0..LINE_SIZE / 8 {
            let word = self.mapped.word(line + i * 8);
            let old = word.load(Relaxed);
            word.store((old << BITS | fingerprint) & ALL, Relaxed);
            fingerprint = old >> (BITS * (LANES - 1)) & LOWEST;
        }
    }

    /// Whether the key's ghost is there; removes it.
    pub(super) fn take_ghost(&self, hash: u64) -> bool {
        self.find_ghost(hash, true)
    }

    /// Whether the key's ghost is there.
    pub(crate) fn has_ghost(&self, hash: u64) -> bool {
        self.find_ghost(hash, false)
    }

    #[inline(always)]
    fn find_ghost(&self, hash: u64, takes: bool) -> bool {
        let Some((line, fingerprint)) = self.ghost(hash) else {
            return false;
        };
        for i in 0..LINE_SIZE / 8 {
            let word = self.mapped.word(line + i * 8);
            let old = word.load(Relaxed);
            // The lowest lane without a difference: a zero lane borrows from its neighbour's top bit.
            let differing = old ^ (fingerprint * ONES);
            let zeros = differing.wrapping_sub(ONES) & !differing & ONES << (BITS - 1);
            if zeros != 0 {
                if takes {
                    word.store(old & !(LOWEST << (zeros.trailing_zeros() + 1 - BITS)), Relaxed);
                }
                return true;
            }
        }
        false
    }

    /// The place of a hash's ghost, and its fingerprint, never 0. `None`: nothing was evicted yet.
    fn ghost(&self, hash: u64) -> Option<(usize, u64)> {
        let lines = self.mapped.superblock().ghost_lines.load(Relaxed).min(self.ghost_lines_max());
        if lines == 0 {
            return None;
        }
        // Bits of its own: the index uses the top twelve, the low half, and a product of all.
        let mixed = (hash ^ hash >> 29).wrapping_mul(SPREAD);
        let line = usize::try_from((u128::from(mixed) * u128::from(lines)) >> 64).unwrap_or(0);
        let in_segment = self.ghost_lines_in_segment();
        let segment = self.directory.ghost_segment(line / in_segment)?;
        let at = self.mapped.segment(segment) + line % in_segment * LINE_SIZE;
        Some((at, (mixed & LOWEST).max(1)))
    }

    fn ghost_lines_in_segment(&self) -> usize {
        self.mapped.layout().shape.segment_size / LINE_SIZE
    }

    fn ghost_lines_max(&self) -> u64 {
        (self.directory.directory_len(Kind::Ghosts) * self.ghost_lines_in_segment()) as u64
    }
}

impl Ghosts {
    /// Makes the table as long as the main pool, within the share of segments that it may take, by one segment at a time.
    pub(crate) fn fit(&self, claims: &Claims, supply: &dyn Supply, now: u32) {
        let mapped = &*self.mapped;
        let sb = mapped.superblock();
        let items = sb.items.load(Relaxed);
        if items > u64::MAX / 2 {
            return;
        }
        let in_segment = self.ghost_lines_in_segment() as u64;
        let wanted = (items / LINE_LANES).clamp(1, self.ghost_lines_max());
        // Rounded to the nearest. Segments are never given back, because a thread that slept may still store a ghost there.
        let segments = index((wanted + in_segment / 2) / in_segment).max(1);
        let there = (0..segments)
            .take_while(|entry| self.directory.ghost_segment(*entry).is_some())
            .count();
        // Not from the reserve: otherwise a thread would do reclaiming work for it within the operation.
        let grows =
            there < segments && claims.has_more_than_reserve() && claims.prepare_segment(supply, Kind::Ghosts, there, now);
        let there = there + usize::from(grows);
        let wanted = wanted.min(there as u64 * in_segment);
        let lines = sb.ghost_lines.load(Relaxed);
        if wanted > lines.saturating_mul(GROW.0) / GROW.1 || wanted < lines.saturating_mul(SHRINK.0) / SHRINK.1 {
            sb.ghost_lines.store(wanted, Relaxed);
        }
    }
}
