//! Broken variants of the protocol, for the checkers to reject: a checker that has never failed proves nothing. And a count of
//! accesses, so that a checker can say "in this many steps" without a clock.
//!
//! One can be switched on only with the cargo feature `mutants`, with which no product is built. Without it [`is`] is a constant
//! and the broken branches are not compiled. Each variant is one line or two at the place that it breaks, so that the tested
//! code is the shipped code.

/// Which part is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Mutant {
    /// an item's slot is published before the extent's tail covers it
    PublishBeforeTail = 1,
    /// an extent of a dead thread counts as one that is being filled
    DeadExtentsStand,
    /// a dead thread's claim of a segment counts as a live thread's
    DeadClaimsStand,
    /// recovery leaves the dead thread's tentative word
    TentativeForgotten,
    /// a thread that meets a frozen slot waits for the splitter instead of finishing the split
    WaitOnFrozen,
    /// a thread that meets a tentative word of its key waits for the inserter instead of aborting it
    WaitOnTentative,
    /// an item is replaced in two steps: first its word is removed, then the new one is stored
    OverwriteInTwoSteps,
    /// a split advances the table word before the new bucket is filled
    TableBeforeFill,
    /// an insert is confirmed at once, without a tentative word and without a look for twins
    InsertWithoutRescan,
    /// the parts of a large value have no owner while they are being written
    ChainWithoutOwner,
    /// no thread looks for the segments of large values to which no item leads
    OrphansForgotten,
    /// a relocated item's old word is removed before the copy's is stored
    RelocateInTwoSteps,
    /// a relocated item's word is stored, whatever the slot holds by then
    RelocateBlindly,
    /// a get returns what it has copied without another look at the segment's generation
    GetWithoutSecondLook,
    /// an entry goes into a third bucket, but no thread learns that it must search there
    ThirdUnannounced,
    /// a split forgets the items in the last slots of its bucket
    SplitLosesASlot,
    /// a shift is not counted
    ShiftUncounted,
    /// a shift is undone although its item may still arrive
    ShiftUndoneBlindly,
    /// the number of segments is raised before memory backs them
    RaisedBeforeBacked,
    /// items that were hit are evicted like any other
    NoSecondChance,
    /// a set over an item stamps the epoch that it has read, even if the item's epoch is younger
    StampDown,
    /// changes are not counted: a process that keeps copies does not learn of them
    ChangesUncounted,
    /// changes that no client requested are not counted: evictions, and purges of expired items
    EvictionsUncounted,
    /// a flush is not counted
    FlushUncounted,
    /// a change is counted when it is published, not before it
    CountedLate,
    /// recovery does not mend the stripe in which the dead thread had begun a change
    StripeForgotten,
    /// the kernel door counts as on before every session counts its changes
    DoorBeforeAcknowledged,
    /// an overwrite is published without release ordering (not observable on x86-64, except by a race detector)
    PublishUnordered,
    /// a suspicion takes everything back at once, as if the death were certain
    SuspicionFrees,
    /// extents and claims of fenced sessions do not stay valid
    FencedHoldNothing,
    /// an extent is handed on although a thread that got it has not written its header yet
    HandedOnTwice,
}

impl Mutant {
    /// All that break the region by themselves. [`Self::NoSecondChance`] only costs hits; a process that keeps copies sees
    /// [`Self::COUNTING`], a race detector sees [`Self::PublishUnordered`].
    pub const ALL: [Self; 18] = [
        Self::PublishBeforeTail,
        Self::DeadExtentsStand,
        Self::DeadClaimsStand,
        Self::TentativeForgotten,
        Self::WaitOnFrozen,
        Self::WaitOnTentative,
        Self::OverwriteInTwoSteps,
        Self::TableBeforeFill,
        Self::InsertWithoutRescan,
        Self::ChainWithoutOwner,
        Self::OrphansForgotten,
        Self::RelocateInTwoSteps,
        Self::RelocateBlindly,
        Self::GetWithoutSecondLook,
        Self::ThirdUnannounced,
        Self::SplitLosesASlot,
        Self::RaisedBeforeBacked,
        Self::StampDown,
    ];

    /// All that a wrong suspicion makes visible.
    pub const SUSPECTING: [Self; 2] = [Self::SuspicionFrees, Self::FencedHoldNothing];

    /// All that break the counting of changes.
    pub const COUNTING: [Self; 6] = [
        Self::ChangesUncounted,
        Self::EvictionsUncounted,
        Self::FlushUncounted,
        Self::CountedLate,
        Self::StripeForgotten,
        Self::DoorBeforeAcknowledged,
    ];
}

/// The number of the mutant that is switched on in this process, 0 for none. Not in any region.
#[cfg(feature = "mutants")]
static ON: core::sync::atomic::AtomicU32 = core::sync::atomic::AtomicU32::new(0);

/// Whether this build has the broken variants.
pub const BUILT_IN: bool = cfg!(feature = "mutants");

/// Switches one on, or all off, in this process. Does nothing in a build without them.
pub fn set(mutant: Option<Mutant>) {
    #[cfg(feature = "mutants")]
    ON.store(mutant.map_or(0, |m| m as u32), core::sync::atomic::Ordering::Relaxed);
    #[cfg(not(feature = "mutants"))]
    let _ = mutant;
}

#[cfg(feature = "mutants")]
thread_local! {
    static ACCESSES: core::cell::Cell<u64> = const { core::cell::Cell::new(0) };
    static ACCESSES_MAX: core::cell::Cell<u64> = const { core::cell::Cell::new(u64::MAX) };
}

/// Counts the calling thread's accesses to mapped memory from 0 again. From `max` on each access panics, so that an endless loop
/// is noticed.
pub fn count_accesses(max: u64) {
    #[cfg(feature = "mutants")]
    {
        ACCESSES.set(0);
        ACCESSES_MAX.set(max);
    }
    #[cfg(not(feature = "mutants"))]
    let _ = max;
}

/// The calling thread's accesses since [`count_accesses`].
pub fn accesses() -> u64 {
    #[cfg(feature = "mutants")]
    return ACCESSES.get();
    #[cfg(not(feature = "mutants"))]
    0
}

/// An access to mapped memory.
#[inline(always)]
pub(crate) fn accessed() {
    #[cfg(feature = "mutants")]
    {
        let count = ACCESSES.get() + 1;
        ACCESSES.set(count);
        if count >= ACCESSES_MAX.get() {
            ACCESSES_MAX.set(u64::MAX);
            panic!("more than {count} accesses to the region: this does not end");
        }
    }
}

/// Whether this one is switched on.
#[cfg(feature = "mutants")]
#[inline]
pub fn is(mutant: Mutant) -> bool {
    ON.load(core::sync::atomic::Ordering::Relaxed) == mutant as u32
}

/// Whether this one is switched on: never.
#[cfg(not(feature = "mutants"))]
#[inline(always)]
pub const fn is(_: Mutant) -> bool {
    false
}
