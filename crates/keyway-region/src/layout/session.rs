//! Process slots and thread slots: which processes and threads are attached, and what each thread is doing.
//!
//! ```text
//! process slot: 64 bytes;  tenancy word: 63..3 incarnation (61) | 2..0 hold
//! thread slot: 1 KiB;      lease word: 63..32 incarnation (32) | 31..16 process incarnation, low bits | 15 fenced | 14..1 process slot | 0 leased
//! ```
//!
//! A process is alive as long as it holds an open-file-description lock on the first byte of its process slot. The lock lives as
//! long as its mapping (`docs/concurrency.md`, "Process death"). A process that takes a process slot first takes back all thread
//! slots that name it.

use super::segment::Owner;
use super::stats::{Counter, Counters};
use crate::atomics::{AtomicU64, Relaxed, add_single_writer};
use crate::memory::Shared;

/// A process that is, or was, attached.
#[repr(C, align(64))]
pub struct ProcessSlot {
    /// the tenancy word: how often the slot was taken, and how its tenant holds its lock; changed only by compare-and-swap
    pub tenancy: AtomicU64,
    /// its process number in its own PID namespace
    pub pid: AtomicU64,
    /// Unix seconds at which it attached
    pub since_unix_s: AtomicU64,
    /// the host's description of it, which another host compares: see [`Tenant::identity`]
    pub identity: [AtomicU64; IDENTITY_WORDS],
    /// what it is, for statistics: see [`Entrance`]
    pub entrance: AtomicU64,
}

/// By which kind of program a process came to the region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u64)]
pub enum Entrance {
    /// one that calls the library
    #[default]
    Library = 0,
    /// one that was written for libmemcached
    DropIn = 1,
    /// a server
    Server = 2,
}

impl Entrance {
    /// What a process slot's word says.
    pub fn of(word: u64) -> Self {
        match word {
            1 => Self::DropIn,
            2 => Self::Server,
            _ => Self::Library,
        }
    }
}

/// Words by which a host identifies a process.
pub const IDENTITY_WORDS: usize = 4;

/// How the tenant of a process slot holds its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Hold {
    /// there is no tenant
    None = 0,
    /// a process is taking the slot: it has no thread slot yet
    Attaching = 1,
    /// its mapping holds the lock, as it verified when it attached
    Mapping = 2,
    /// a descriptor holds the lock: any code of its process can close that
    Descriptor = 3,
    /// no lock: a process that may only read the region prevents the slot's lock from being taken
    Presence = 4,
}

/// Bits of a tenancy word that say how the lock is held.
const HOLD_BITS: u32 = 3;

/// A process slot's tenancy word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tenancy(pub u64);

impl Tenancy {
    /// The word of a slot in this incarnation.
    pub const fn new(incarnation: u64, hold: Hold) -> Self {
        Self(incarnation << HOLD_BITS | hold as u64)
    }

    /// Times the slot was taken.
    pub fn incarnation(self) -> u64 {
        self.0 >> HOLD_BITS
    }

    /// How its tenant holds its lock.
    pub fn hold(self) -> Hold {
        match self.0 & ((1 << HOLD_BITS) - 1) {
            0 => Hold::None,
            1 => Hold::Attaching,
            2 => Hold::Mapping,
            3 => Hold::Descriptor,
            // Also for a value that no version writes: a process that is looked up by itself is least easily taken for dead.
            _ => Hold::Presence,
        }
    }
}

/// The tenant of a process slot, as it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tenant {
    /// the process slot
    pub slot: usize,
    /// offset of the byte in the region whose lock the tenant holds
    pub lock_offset: usize,
    /// its incarnation, and how it holds that lock
    pub tenancy: Tenancy,
    /// its process number in its own PID namespace
    pub pid: u64,
    /// what its host wrote when it attached. The region does not know what the words mean.
    pub identity: [u64; IDENTITY_WORDS],
}

const _: () = assert!(size_of::<ProcessSlot>() == 64);
super::fields!(ProcessSlot {
    tenancy,
    pid,
    since_unix_s,
    identity,
    entrance,
});
// SAFETY: `repr(C)`, nothing but atomics.
#[allow(unsafe_code, reason = "the type is nothing but atomics")]
unsafe impl Shared for ProcessSlot {}

/// Hazard pointers that a thread can have at a time; see [`ThreadSlot::hazard pointers`].
pub const HAZARDS: usize = 5;
/// Counters for which a thread slot has space.
pub const COUNTERS_MAX: usize = 112;

/// A thread slot: a thread's place in the region.
#[repr(C, align(64))]
pub struct ThreadSlot {
    /// the lease word: which process's thread has this slot
    pub lease: AtomicU64,
    /// byte offset of the index slot for a tentative word; written before the word is put there
    pub pending_slot: AtomicU64,
    /// that tentative word
    pub pending_word: AtomicU64,
    /// change of the item count that is not yet added to the superblock's (two's complement)
    pub items: AtomicU64,
    /// 1 while the thread is in an operation that may make visible changes
    pub writing: AtomicU64,
    /// the door word that the thread has acknowledged: it counts its changes by it from then on
    pub door: AtomicU64,
    /// the stripe, plus 1, in which the thread has counted a change as begun, or is about to; 0 for none
    pub stripe: AtomicU64,
    /// while the thread is about to publish a change that emits an event: a lower bound of the change's stamp; otherwise 0
    pub event: AtomicU64,
    /// hazard pointers: segments, plus 1, that no recycler may give a new generation meanwhile; 0 for none. By index:
    /// [`OPERATION`], [`UPKEEP`], [`LEASING`], [`WRITTEN`], [`FREEING`]
    pub hazards: [AtomicU64; HAZARDS],
    reserved_hazards: [AtomicU64; 8 - HAZARDS],
    /// see [`super::stats`]
    pub counters: [AtomicU64; COUNTERS_MAX],
}

impl ThreadSlot {
    /// Adds to a counter. Only the slot's tenant does that.
    #[inline(always)]
    pub(crate) fn count(&self, counter: Counter, n: u64) {
        if let Some(count) = self.counters.get(counter as usize) {
            add_single_writer(count, n);
        }
    }

    /// Adds to `sum` what the slot's tenants have counted, the present one and earlier ones.
    pub(crate) fn add_counters_to(&self, sum: &mut Counters) {
        sum.add(|counter: Counter| self.counters.get(counter as usize).map_or(0, |count| count.load(Relaxed)));
    }
}

/// The hazard pointer of the operation that the caller requested.
pub const OPERATION: usize = 0;
/// The hazard pointer of a split's repair or of a relocation, which may run within an operation.
pub const UPKEEP: usize = 1;
/// The segment in which the thread is about to lease an extent.
pub const LEASING: usize = 2;
/// The segment of the item that the thread has written for its operation but not published: its extent may be closed before.
pub const WRITTEN: usize = 3;
/// The segment of a large value whose chain the thread walks, to free it or to find out whether an item leads to it.
pub const FREEING: usize = 4;

const _: () = assert!(size_of::<ThreadSlot>() == 1024);
super::fields!(ThreadSlot {
    lease,
    pending_slot,
    pending_word,
    items,
    writing,
    door,
    stripe,
    event,
    hazards,
    reserved_hazards,
    counters,
});
const _: () = assert!(Counters::COUNT <= COUNTERS_MAX);
// SAFETY: `repr(C)`, nothing but atomics.
#[allow(unsafe_code, reason = "the type is nothing but atomics")]
unsafe impl Shared for ThreadSlot {}

/// A thread slot's lease word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease(pub u64);

impl Lease {
    /// Leased to this process in its incarnation.
    pub const fn new(incarnation: u32, process: u32, process_incarnation: u64) -> Self {
        Self((incarnation as u64) << 32 | (process_incarnation & 0xFFFF) << 16 | ((process & 0x3FFF) as u64) << 1 | 1)
    }

    /// Whether the slot has a tenant.
    pub fn is_leased(self) -> bool {
        self.0 & 1 != 0
    }

    /// Times the slot was leased or taken back.
    pub fn incarnation(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// The process slot of its tenant.
    pub fn process(self) -> usize {
        super::index(self.0 >> 1 & 0x3FFF)
    }

    /// Whether the tenant is suspected to be dead: it may finish its operation, and starts no other one.
    pub fn is_fenced(self) -> bool {
        self.0 & FENCED != 0
    }

    /// This lease with the mark that its tenant is suspected to be dead.
    #[must_use]
    pub const fn fenced(self) -> Self {
        Self(self.0 | FENCED)
    }

    /// Whether the tenant's process was in this incarnation.
    pub fn is_of_process_incarnation(self, incarnation: u64) -> bool {
        (self.0 >> 16) & 0xFFFF == incarnation & 0xFFFF
    }

    /// The slot without a tenant. With the next incarnation every extent and claim of the last tenant ends.
    pub fn vacated(self) -> Self {
        Self(u64::from(next_incarnation(self.incarnation())) << 32)
    }

    /// Whether the extents and claims of this owner are still valid.
    pub fn is_held_by(self, owner: Owner) -> bool {
        self.is_leased() && self.incarnation() == owner.incarnation
    }
}

const FENCED: u64 = 1 << 15;

/// Incarnations skip 0, which means "no owner" in a segment's state.
pub fn next_incarnation(incarnation: u32) -> u32 {
    incarnation.checked_add(1).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenancy_keeps_incarnation_and_hold() {
        for hold in [Hold::None, Hold::Attaching, Hold::Mapping, Hold::Descriptor, Hold::Presence] {
            let tenancy = Tenancy::new(77, hold);
            assert_eq!((tenancy.incarnation(), tenancy.hold()), (77, hold));
        }
    }

    #[test]
    fn a_vacated_slot_voids_its_tenant() {
        let lease = Lease::new(7, 12, 0x1_0003);
        let owner = Owner { slot: 3, incarnation: 7 };
        let fenced = lease.fenced();
        assert!(
            !lease.is_fenced() && fenced.is_fenced() && fenced.is_leased() && fenced.is_held_by(owner) && fenced.process() == 12
        );
        assert_eq!(fenced.vacated(), lease.vacated(), "the fence goes with its tenant");
        assert!(lease.is_leased() && lease.is_held_by(owner) && lease.process() == 12 && lease.is_of_process_incarnation(3));
        let gone = lease.vacated();
        assert!(!gone.is_leased() && !gone.is_held_by(owner) && gone.incarnation() == 8);
        assert_eq!(next_incarnation(u32::MAX), 1);
    }
}
