//! Room `sessions`: what each thread protects, and what it has on record.
//!
//! Holds the intents of all thread slots (hazard pointers, one segment each), the record of a tentative word, and the fence that
//! a suspected session sees.
//!
//! - From [`Session::intend`] to [`Session::relent`] no other session gives the segment a generation, if the slot that names it is read
//!   again after the intent was stored.
//! - A tentative word is on its session's record before it is in a slot.
//! - What a fenced session holds stays reserved for it until its death is certain.
//!
//! Never: decides which process is dead (`recover`, by what the region's host says).

use crate::atomics::{Acquire, Relaxed, Release, SeqCst, fence, store_then_fence};
use crate::heap::List;
use crate::layout::index;
use crate::layout::segment::Owner;
use crate::layout::session::{FREEING, INTENTS, LEASING, Lease, OPERATION, ThreadSlot, UPKEEP};
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

    /// Whether any session's intent names the segment. Of `own` only the intents of the operation count.
    pub(crate) fn is_intended(&self, segment: usize, own: Owner) -> bool {
        let name = segment as u64 + 1;
        // A writer that stores its intent after this fence sees everything that was purged before it; an intent that is stored
        // earlier is seen here.
        // PAIRS: intent: the fence in `Session::intend`.
        fence(SeqCst);
        (0..self.threads()).any(|slot| {
            let thread = self.thread(slot);
            let own = slot == usize::from(own.slot);
            (0..INTENTS).any(|i| {
                // PAIRS: intent-end: `Session::relent` and `end_operation`: what was done under an ended intent comes before.
                thread.intents.get(i).is_some_and(|w| w.load(Acquire) == name)
                    && !(own && matches!(i, UPKEEP | LEASING | FREEING))
                    && has_intents(thread)
            })
        })
    }

    /// The segments that other sessions' intents name, plus 1 each.
    pub(crate) fn intended_by_others(&self, own: Owner) -> List<u64> {
        // PAIRS: intent: the fence in `Session::intend`, as in `is_intended`. PAIRS: chain: the same fence, in `each_of_chain`.
        fence(SeqCst);
        let mut intended = List::new();
        (0..self.threads())
            .filter(|slot| *slot != usize::from(own.slot))
            .map(|slot| self.thread(slot))
            // PAIRS: intent-end: as in `is_intended`.
            .flat_map(|thread| thread.intents.iter().map(move |intent| (thread, intent.load(Acquire))))
            .filter(|(thread, name)| *name != 0 && has_intents(thread))
            .for_each(|(_, name)| intended.push(name));
        intended
    }

    /// Whether a live session is about to write an extent's header in the segment, whose lease word the caller has read.
    pub(crate) fn is_leasing(&self, segment: usize) -> bool {
        let name = segment as u64 + 1;
        (0..self.threads()).any(|slot| {
            let thread = self.thread(slot);
            // PAIRS: leasing: the end of the intent, in `Session::lease_in`: if it has ended, the header is there.
            thread.intents.get(LEASING).is_some_and(|w| w.load(Acquire) == name) && has_intents(thread)
        })
    }
}

/// Whether a tenant owns the intents in a thread slot; a fenced tenant counts.
fn has_intents(thread: &ThreadSlot) -> bool {
    // PAIRS: vacate: the end of the session: everything that was done under its intents comes before.
    Lease(thread.lease.load(Acquire)).is_leased()
}

impl Session {
    /// From now until [`Self::relent`] no recycler gives this segment a new generation, if the slot that names it is still the
    /// same after this.
    #[inline]
    pub(crate) fn intend(&self, which: usize, segment: usize) {
        // The intent must be visible before the slot is read again; the recycler's purge is visible before it reads intents.
        // PAIRS: intent: the fences in `Region::is_intended` and `intended_by_others`.
        if RECORDS && let Some(intent) = self.thread().intents.get(which) {
            store_then_fence(intent, segment as u64 + 1);
        }
    }

    /// The item that is about to be published is in this segment: no recycler gives it a new generation before the operation has ended.
    #[inline]
    pub(crate) fn intend_written(&self, which: usize, segment: usize) {
        // Neither fence nor release: the item's extent is still open. A recycler looks for intents after it has seen the extent
        // closed, and the store that closes it releases this one too (`Session::close`).
        if RECORDS && let Some(intent) = self.thread().intents.get(which) {
            intent.store(segment as u64 + 1, Relaxed);
        }
    }

    /// Whether this thread's own operation uses an item of this segment, so that it should not evict the segment.
    pub(crate) fn operates_on(&self, segment: usize) -> bool {
        self.thread()
            .intents
            .get(OPERATION)
            .is_some_and(|w| w.load(Relaxed) == segment as u64 + 1)
    }

    /// Whether this thread's own operation uses exactly this item. It may evict other items of the segment, if the segment then
    /// stays where it is.
    pub(crate) fn operates_on_item(&self, segment: usize, offset: usize) -> bool {
        self.operates_on(segment) && self.held.get().offset() == offset
    }

    /// Ends an intent.
    #[inline]
    pub(crate) fn relent(&self, which: usize) {
        if RECORDS && let Some(intent) = self.thread().intents.get(which) {
            // PAIRS: intent-end: the loads in `Region::is_intended` and `intended_by_others`. PAIRS: leasing: that in `is_leasing`.
            intent.store(0, Release);
        }
    }

    /// Ends the operation and its intents.
    #[inline]
    pub(crate) fn end_operation(&self) {
        let thread = self.thread();
        if RECORDS {
            let [operation, _, _, written, _] = &thread.intents;
            // PAIRS: intent-end: the loads in `Region::is_intended` and `intended_by_others`.
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
