//! Room `sessions`: what each thread protects, and what it has on record.
//!
//! Holds the hazard pointers of all thread slots (hazard pointers, one segment each), the record of a tentative word, and the fence that
//! a suspected session sees.
//!
//! - From [`Session::intend`] to [`Session::release`] no other session gives the segment a generation, if the slot that names it is read
//!   again after the hazard pointer was stored.
//! - A tentative word is on its session's record before it is in a slot.
//! - What a fenced session holds stays reserved for it until its death is certain.
//!
//! Never: decides which process is dead (`recover`, by what the region's host says).

use crate::atomics::{Acquire, Relaxed, Release, SeqCst, fence, store_then_fence};
use crate::heap::List;
use crate::layout::index;
use crate::layout::segment::Owner;
use crate::layout::session::{FREEING, HAZARDS, LEASING, Lease, OPERATION, ThreadSlot, UPKEEP};
use crate::layout::slot::Slot;
use crate::region::Region;
use crate::session::Session;

/// Whether sessions record what they are doing. Only a benchmark of that cost leaves it out.
const RECORDS: bool = !cfg!(feature = "bare");

impl Region {
    /// Whether this owner's extents and claims are still valid.
    pub(crate) fn is_held(&self, owner: Owner) -> bool {
        let slot = usize::from(owner.slot);
        slot < self.layout.shape.thread_slots && {
            // PAIRS: vacate: the end of the owner's session: a thread that takes over what the owner held comes after it.
            let lease = Lease(self.thread(slot).lease.load(Acquire));
            lease.is_held_by(owner)
        }
    }

    /// Thread slots that were ever leased.
    pub(crate) fn threads(&self) -> usize {
        index(self.superblock().threads.load(Relaxed)).min(self.layout.shape.thread_slots)
    }

    /// Whether any session's hazard pointer names the segment. Of `own` only the hazard pointers of the operation count.
    pub(crate) fn is_protected(&self, segment: usize, own: Owner) -> bool {
        let name = segment as u64 + 1;
        // A writer that stores its hazard pointer after this fence sees everything that was reclaimed before it; a hazard pointer that is stored
        // earlier is seen here.
        // PAIRS: hazard: the fence in `Session::intend`.
        fence(SeqCst);
        (0..self.threads()).any(|slot| {
            let thread = self.thread(slot);
            let own = slot == usize::from(own.slot);
            (0..HAZARDS).any(|i| {
                // PAIRS: hazard-end: `Session::release` and `end_operation`: what was done under an ended hazard pointer comes before.
                thread.hazards.get(i).is_some_and(|w| w.load(Acquire) == name)
                    && !(own && matches!(i, UPKEEP | LEASING | FREEING))
                    && has_hazards(thread)
            })
        })
    }

    /// The segments that other sessions' hazard pointers name, plus 1 each.
    pub(crate) fn protected_by_others(&self, own: Owner) -> List<u64> {
        // PAIRS: hazard: the fence in `Session::intend`, as in `is_protected`. PAIRS: chain: the same fence, in `each_of_chain`.
        fence(SeqCst);
        let mut intended = List::new();
        (0..self.threads())
            .filter(|slot| *slot != usize::from(own.slot))
            .map(|slot| self.thread(slot))
            // PAIRS: hazard-end: as in `is_protected`.
            .flat_map(|thread| thread.hazards.iter().map(move |hazard| (thread, hazard.load(Acquire))))
            .filter(|(thread, name)| *name != 0 && has_hazards(thread))
            .for_each(|(_, name)| intended.push(name));
        intended
    }

    /// Whether a live session is about to write an extent's header in the segment, whose lease word the caller has read.
    pub(crate) fn is_leasing(&self, segment: usize) -> bool {
        let name = segment as u64 + 1;
        (0..self.threads()).any(|slot| {
            let thread = self.thread(slot);
            // PAIRS: leasing: the end of the hazard pointer, in `Session::lease_in`: if it has ended, the header is there.
            thread.hazards.get(LEASING).is_some_and(|w| w.load(Acquire) == name) && has_hazards(thread)
        })
    }
}

/// Whether a tenant owns the hazard pointers in a thread slot; a fenced tenant counts.
fn has_hazards(thread: &ThreadSlot) -> bool {
    // PAIRS: vacate: the end of the session: everything that was done under its hazard pointers comes before.
    Lease(thread.lease.load(Acquire)).is_leased()
}

impl Session {
    /// From now until [`Self::release`] no recycler gives this segment a new generation, if the slot that names it is still the
    /// same after this.
    #[inline]
    pub(crate) fn protect(&self, which: usize, segment: usize) {
        // The hazard pointer must be visible before the slot is read again; the recycler's reclaim is visible before it reads hazard pointers.
        // PAIRS: hazard: the fences in `Region::is_protected` and `protected_by_others`.
        if RECORDS && let Some(hazard) = self.thread().hazards.get(which) {
            store_then_fence(hazard, segment as u64 + 1);
        }
    }

    /// The item that is about to be published is in this segment: no recycler gives it a new generation before the operation has ended.
    #[inline]
    pub(crate) fn protect_written(&self, which: usize, segment: usize) {
        // Neither fence nor release: the item's extent is still open. A recycler looks for hazard pointers after it has seen the extent
        // closed, and the store that closes it releases this one too (`Session::close`).
        if RECORDS && let Some(hazard) = self.thread().hazards.get(which) {
            hazard.store(segment as u64 + 1, Relaxed);
        }
    }

    /// Whether this thread's own operation uses an item of this segment, so that it should not evict the segment.
    pub(crate) fn operates_on(&self, segment: usize) -> bool {
        self.thread()
            .hazards
            .get(OPERATION)
            .is_some_and(|w| w.load(Relaxed) == segment as u64 + 1)
    }

    /// Whether this thread's own operation uses exactly this item. It may evict other items of the segment, if the segment then
    /// stays where it is.
    pub(crate) fn operates_on_item(&self, segment: usize, offset: usize) -> bool {
        self.operates_on(segment) && self.held.get().offset() == offset
    }

    /// Ends a hazard pointer.
    #[inline]
    pub(crate) fn release(&self, which: usize) {
        if RECORDS && let Some(hazard) = self.thread().hazards.get(which) {
            // PAIRS: hazard-end: the loads in `Region::is_protected` and `protected_by_others`. PAIRS: leasing: that in `is_leasing`.
            hazard.store(0, Release);
        }
    }

    /// Ends the operation and its hazard pointers.
    #[inline]
    pub(crate) fn end_operation(&self) {
        let thread = self.thread();
        if RECORDS {
            let [operation, _, _, written, _] = &thread.hazards;
            // PAIRS: hazard-end: the loads in `Region::is_protected` and `protected_by_others`.
            written.store(0, Release);
            operation.store(0, Release);
        }
        // PAIRS: door: the load in `Region::is_door_acknowledged`: changes that were not counted are published.
        thread.writing.store(0, Release);
    }

    /// This tentative word is about to be put into this slot: recovery aborts it if the thread dies before [`Self::settle`].
    #[inline]
    pub(crate) fn pend(&self, slot_at: usize, tentative: Slot) {
        if RECORDS {
            let thread = self.thread();
            thread.pending_word.store(tentative.0, Relaxed);
            // PAIRS: record: the load in `Region::abort_on_record`: a thread that sees the slot sees the word.
            thread.pending_slot.store(slot_at as u64, Release);
        }
    }

    /// The tentative word is confirmed or gone.
    #[inline]
    pub(crate) fn settle(&self) {
        if RECORDS {
            // PAIRS: record: as in `pend`: a thread that sees nothing on record sees no tentative word of this session.
            self.thread().pending_slot.store(0, Release);
        }
    }
}
