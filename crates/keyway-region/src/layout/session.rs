//! Process slots and thread slots: who is attached, and what each is in the middle of.
//!
//! ```text
//! process slot: 64 bytes;  incarnation word: times the slot was taken
//! thread slot: 1 KiB;      lease word: 63..32 incarnation (32) | 31..16 process incarnation, low bits | 15..1 process slot | 0 leased
//! ```
//!
//! A process is alive as long as it holds an open-file-description lock on the first byte of its process slot; the lock
//! lives as long as its mapping (`docs/concurrency.md`, "Death"). Whoever takes a process slot first takes back all thread
//! slots that name it.

use super::segment::Owner;
use super::stats::Counters;
use crate::atomics::AtomicU64;
use crate::memory::Shared;

/// A process that is, or was, attached.
#[repr(C, align(64))]
pub struct ProcessSlot {
    /// times the slot was taken; changed only under the lock
    pub incarnation: AtomicU64,
    /// its process number where it runs: for people only, never a proof of life
    pub pid: AtomicU64,
    /// Unix seconds at which it attached
    pub since_unix_s: AtomicU64,
    reserved: [AtomicU64; 5],
}

const _: () = assert!(size_of::<ProcessSlot>() == 64);
// SAFETY: `repr(C)`, nothing but atomics.
#[allow(unsafe_code, reason = "the type is nothing but atomics")]
unsafe impl Shared for ProcessSlot {}

/// Intents that a thread can have at a time; see [`ThreadSlot::intents`].
pub const INTENTS: usize = 5;
/// Counters that a thread slot has room for.
pub const COUNTERS_MAX: usize = 112;

/// A thread's place in the region.
#[repr(C, align(64))]
pub struct ThreadSlot {
    /// the lease word: whose slot this is
    pub lease: AtomicU64,
    /// byte offset of the index slot that a tentative word goes to; written before the word is
    pub pending_slot: AtomicU64,
    /// that tentative word
    pub pending_word: AtomicU64,
    /// change of the item count that the superblock has not been told of (two's complement)
    pub items: AtomicU64,
    /// 1 while the thread is in an operation that may change what others see
    pub writing: AtomicU64,
    /// the door word that the thread has acknowledged: it counts its changes by it from then on
    pub door: AtomicU64,
    /// the stripe, plus 1, in which the thread has counted a change as begun, or is about to; 0 for none
    pub stripe: AtomicU64,
    reserved: [AtomicU64; 1],
    /// segments, plus 1, that no recycler may bump meanwhile; 0 for none. By index: [`OPERATION`], [`UPKEEP`], [`LEASING`],
    /// [`WRITTEN`], [`FREEING`]
    pub intents: [AtomicU64; INTENTS],
    reserved_intents: [AtomicU64; 8 - INTENTS],
    /// see [`super::stats`]
    pub counters: [AtomicU64; COUNTERS_MAX],
}

/// The intent of the operation that the thread was called for.
pub const OPERATION: usize = 0;
/// The intent of a split's repair or of a relocation, which an operation may run on its way.
pub const UPKEEP: usize = 1;
/// The segment in which the thread is about to lease an extent.
pub const LEASING: usize = 2;
/// The segment of the item that the thread has written for its operation and not published: its extent may be closed before.
pub const WRITTEN: usize = 3;
/// The segment of a large value whose chain the thread walks, to free it or to see whether anything leads to it.
pub const FREEING: usize = 4;

const _: () = assert!(size_of::<ThreadSlot>() == 1024);
const _: () = assert!(Counters::COUNT <= COUNTERS_MAX);
// SAFETY: `repr(C)`, nothing but atomics.
#[allow(unsafe_code, reason = "the type is nothing but atomics")]
unsafe impl Shared for ThreadSlot {}

/// A thread slot's lease word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease(pub u64);

impl Lease {
    /// Leased by this process in its incarnation.
    pub fn new(incarnation: u32, process: u32, process_incarnation: u64) -> Self {
        Self(u64::from(incarnation) << 32 | (process_incarnation & 0xFFFF) << 16 | u64::from(process & 0x7FFF) << 1 | 1)
    }

    /// Whether anybody has the slot.
    pub fn is_leased(self) -> bool {
        self.0 & 1 != 0
    }

    /// Times the slot was leased or taken back.
    pub fn incarnation(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// The process slot of its tenant.
    pub fn process(self) -> usize {
        super::index(self.0 >> 1 & 0x7FFF)
    }

    /// Whether the tenant's process was in this incarnation.
    pub fn is_of_process_incarnation(self, incarnation: u64) -> bool {
        (self.0 >> 16) & 0xFFFF == incarnation & 0xFFFF
    }

    /// The slot without a tenant. The next incarnation voids every extent and claim of the last one.
    pub fn vacated(self) -> Self {
        Self(u64::from(next_incarnation(self.incarnation())) << 32)
    }

    /// Whether the extents and claims of this owner still stand.
    pub fn is_held_by(self, owner: Owner) -> bool {
        self.is_leased() && self.incarnation() == owner.incarnation
    }
}

/// Incarnations skip 0, which means "no owner" in a segment's state.
pub fn next_incarnation(incarnation: u32) -> u32 {
    incarnation.checked_add(1).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vacated_slot_voids_its_tenant() {
        let lease = Lease::new(7, 12, 0x1_0003);
        let owner = Owner { slot: 3, incarnation: 7 };
        assert!(lease.is_leased() && lease.is_held_by(owner) && lease.process() == 12 && lease.is_of_process_incarnation(3));
        let gone = lease.vacated();
        assert!(!gone.is_leased() && !gone.is_held_by(owner) && gone.incarnation() == 8);
        assert_eq!(next_incarnation(u32::MAX), 1);
    }
}
