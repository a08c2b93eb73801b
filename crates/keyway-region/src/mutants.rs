//! Broken variants of the protocol, for the checkers to reject: a checker that never failed proves nothing. And a count of
//! accesses, so that a checker can say "in so many steps" without a clock.
//!
//! Only with the cargo feature `mutants`, which no product is built with, can one be switched on; without it [`is`] is a
//! constant and the broken branches are not compiled in. Each variant is one line or two at the place that it breaks, so that
//! the code that is tested is the code that is shipped.

/// What is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Mutant {
    /// an item's slot is published before the extent's tail covers it
    PublishBeforeTail = 1,
    /// an extent of a dead thread counts as one that is being filled
    DeadExtentsStand,
    /// a dead thread's claim of a segment counts as a live one's
    DeadClaimsStand,
    /// recovery leaves the dead thread's tentative word
    TentativeForgotten,
    /// whoever meets a frozen slot waits for the splitter instead of finishing the split
    WaitOnFrozen,
    /// whoever meets a tentative word of its key waits for the inserter instead of aborting it
    WaitOnTentative,
    /// a changed item is put in by two steps: the old word goes, then the new one comes
    OverwriteInTwoSteps,
    /// a split advances the table word before the new bucket is filled
    TableBeforeFill,
    /// an insert is confirmed at once, without a tentative word and without a look for twins
    InsertWithoutRescan,
    /// the parts of a large value belong to nobody while they are being written
    ChainWithoutOwner,
    /// nobody looks for the segments of large values that no item leads to
    OrphansForgotten,
    /// a relocated item's old word goes before the copy's comes
    RelocateInTwoSteps,
    /// a relocated item's word is stored, whatever the slot holds by then
    RelocateBlindly,
    /// a get gives out what it has copied without another look at the segment's generation
    GetWithoutSecondLook,
    /// an entry goes into a third bucket, and nobody is told to look there
    ThirdUnannounced,
    /// a split forgets the items in the last slots of its bucket
    SplitLosesASlot,
    /// the number of segments is raised before memory backs them
    RaisedBeforeBacked,
    /// items that were hit are evicted like any other
    NoSecondChance,
    /// a set over an item stamps the epoch that it has read, even if the item's is younger
    StampDown,
    /// changes are not counted: whoever keeps copies does not learn of them
    ChangesUncounted,
    /// of changes, those are not counted that nobody has asked for: evictions, and purges of what has expired
    EvictionsUncounted,
    /// a flush is not counted
    FlushUncounted,
    /// a change is counted when it is published, not before it
    CountedLate,
    /// recovery leaves the stripe in which the dead thread had begun a change
    StripeForgotten,
    /// the kernel door is on before every session counts
    DoorBeforeAcknowledged,
    /// an overwrite is published without release ordering (nothing that x86-64 shows, but a race detector)
    PublishUnordered,
    /// suspicion takes back at once, as if the death were certain
    SuspicionFrees,
    /// extents and claims of fenced sessions do not stand
    FencedHoldNothing,
}

impl Mutant {
    /// All that break the region alone. [`Self::NoSecondChance`] only costs hits; [`Self::COUNTING`] are seen by whoever keeps copies,
    /// [`Self::PublishUnordered`] by a race detector.
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

    /// All that a wrong suspicion shows.
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

/// The number of the mutant that is switched on in this process, 0 for none. No word of any region.
#[cfg(feature = "mutants")]
static ON: core::sync::atomic::AtomicU32 = core::sync::atomic::AtomicU32::new(0);

/// Whether this build has the broken variants.
pub const BUILT_IN: bool = cfg!(feature = "mutants");

/// Switches one on, or all off, in this process (nothing happens in a build without them).
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

/// Counts the calling thread's accesses to mapped memory from 0 again. From `max` on each panics: what never ends shows
/// itself.
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
