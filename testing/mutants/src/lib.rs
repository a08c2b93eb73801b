//! Faults of the region that the tools of the promises must reject: a checker that has never failed proves nothing.
//!
//! The product has none of them. `xtask/mutants.txt` says which text of its sources each one replaces; `cargo xtask` puts them into a copy of
//! the tree, in which [`set`] switches one on, and builds there the tools that use this crate. In every other build [`BUILT_IN`] is false and
//! nothing here has an effect. It also counts accesses, so that a checker can say "in this many steps" without a clock.

mod switch;

pub use switch::{BUILT_IN, accesses, count_accesses};

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
    /// the number of segments is raised before memory backs them
    RaisedBeforeBacked,
    /// items that were hit are evicted like any other
    NoSecondChance,
    /// a set over an item stamps the epoch that it has read, even if the item's epoch is younger
    StampDown,
    /// changes are not counted: a process that keeps copies does not learn of them
    ChangesUncounted,
    /// changes that no client requested are not counted: evictions, and reclaims of expired items
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
    /// what was computed is stored, whatever the key has become meanwhile
    LateStoreLands,
    /// a fetch begins a flight although another caller computes
    TwoCompute,
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

/// Switches one on, or all off, in this process. Does nothing in a build without them.
///
/// # Panics
///
/// In a build with them, if `xtask/mutants.txt` has no fault of this name.
pub fn set(mutant: Option<Mutant>) {
    switch::set(mutant.map(|mutant| format!("{mutant:?}")).as_deref());
}
