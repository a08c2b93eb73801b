//! What the region allows, to every process that uses it: the largest item, and whether it evicts and may be flushed.
//!
//! These rules are words of the superblock, so a change holds for every process from its next operation on. Another process may have
//! written any number there: what is read here is brought within the bounds that creation checks.

use crate::atomics::Relaxed;
use crate::layout::superblock::{REFUSES_EVICTION, REFUSES_FLUSHES, Superblock};
use crate::mapped::Mapped;
use crate::memory::Pinned;
use crate::verbs::{Item, WriteError};
use std::ops::RangeInclusive;
use std::sync::Arc;

/// Values that the largest allowed item can be set to, bytes.
pub const ITEM_SIZES: RangeInclusive<usize> = 1024..=1 << 30;

/// What memcached adds to key and value when it compares an item with -I: its header, the CAS unique, a zero byte after the key
/// and a line end after the value. Counting the same way makes the same stores fail.
const MEMCACHED_ITEM_OVERHEAD: usize = 48 + 8 + 1 + 2;

/// What a region allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// largest item, bytes, counted as memcached counts
    pub item_size_max: usize,
    /// free memory by evicting; otherwise a full region refuses
    pub evict: bool,
    /// whether it may be flushed
    pub flush: bool,
}

impl Default for Limits {
    /// memcached's.
    fn default() -> Self {
        Self {
            item_size_max: 1 << 20,
            evict: true,
            flush: true,
        }
    }
}

/// An item's size as memcached counts it.
#[inline]
pub(crate) fn memcached_size(key_len: usize, flags: u32, value_len: usize) -> usize {
    MEMCACHED_ITEM_OVERHEAD + if flags == 0 { 0 } else { 4 } + key_len + value_len
}

impl Item {
    /// Its size in bytes as memcached counts it, which is what the largest item of a region is compared with.
    pub fn counted_size(&self, key_len: usize) -> usize {
        memcached_size(key_len, self.flags, self.value_len)
    }
}

impl Limits {
    /// What the region with this superblock allows.
    pub fn of(superblock: &Superblock) -> Self {
        let item_size_max = usize::try_from(superblock.item_size_max.load(Relaxed)).unwrap_or(usize::MAX);
        let refuses = superblock.refuses.load(Relaxed);
        Self {
            item_size_max: item_size_max.clamp(*ITEM_SIZES.start(), *ITEM_SIZES.end()),
            evict: refuses & REFUSES_EVICTION == 0,
            flush: refuses & REFUSES_FLUSHES == 0,
        }
    }

    /// Why an item of these lengths is refused for its size, if it is. `flags`: the client's.
    #[inline]
    pub fn too_large(&self, key_len: usize, value_len: usize, flags: u32) -> Option<WriteError> {
        let (size, limit) = (memcached_size(key_len, flags, value_len), self.item_size_max);
        (size > limit).then_some(WriteError::TooLarge { size, limit })
    }
}

/// The words that say what the region allows.
#[derive(Clone)]
pub struct LimitWords {
    mapped: Arc<Mapped>,
    superblock: Pinned<Superblock, Mapped>,
}

impl LimitWords {
    pub(crate) fn new(mapped: &Arc<Mapped>) -> Self {
        Self {
            mapped: Arc::clone(mapped),
            superblock: Pinned::new(mapped, Mapped::superblock),
        }
    }

    /// What it allows now.
    pub fn read(&self) -> Limits {
        Limits::of(&self.superblock)
    }

    /// From now on it allows this, for all processes; of items at most those that it has room for.
    pub fn write(&self, limits: &Limits) {
        let sb = &self.superblock;
        let item_size_max = limits
            .item_size_max
            .min(self.mapped.layout().item_size_max(self.mapped.segments()));
        let item_size_max = item_size_max.clamp(*ITEM_SIZES.start(), *ITEM_SIZES.end());
        sb.item_size_max
            .store(u32::try_from(item_size_max).unwrap_or(u32::MAX), Relaxed);
        let refused = |allowed: bool, bit: u32| if allowed { 0 } else { bit };
        let refuses = refused(limits.evict, REFUSES_EVICTION) | refused(limits.flush, REFUSES_FLUSHES);
        sb.refuses.store(refuses, Relaxed);
    }

    /// Whether memory is freed by evicting.
    #[inline]
    pub(crate) fn evicts(&self) -> bool {
        self.superblock.refuses.load(Relaxed) & REFUSES_EVICTION == 0
    }

    /// [`Limits::too_large`], now.
    #[inline(always)]
    pub(crate) fn too_large(&self, key_len: usize, value_len: usize, flags: u32) -> Option<WriteError> {
        let size = memcached_size(key_len, flags, value_len);
        let limit = self.superblock.item_size_max.load(Relaxed);
        if size <= usize::try_from(limit).unwrap_or(usize::MAX) {
            return None;
        }
        self.too_large_exactly(key_len, value_len, flags)
    }

    #[cold]
    #[inline(never)]
    fn too_large_exactly(&self, key_len: usize, value_len: usize, flags: u32) -> Option<WriteError> {
        self.read().too_large(key_len, value_len, flags)
    }
}
