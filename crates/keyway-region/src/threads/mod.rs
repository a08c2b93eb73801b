//! Room `threads`: what each thread protects, and what it has on record.
//!
//! Holds the hazard pointers of all thread slots ([`Threads`]; one segment each), a thread's own slot with its record of a tentative word
//! ([`Thread`]), and the fence that a suspected session sees.
//!
//! - From [`Thread::protect`] to [`Thread::release`] no other session gives the segment a generation, if the slot that names it is read
//!   again after the hazard pointer was stored.
//! - A tentative word is on its session's record before it is in a slot.
//! - What a fenced session holds stays reserved for it until its death is certain.
//!
//! Never: decides which process is dead (`recover`, by what the region's host says).

use crate::atomics::{Acquire, Relaxed, Release, SeqCst, fence, store_then_fence};
use crate::heap::List;
use crate::layout::index;
use crate::layout::segment::Owner;
use crate::layout::session::{FREEING, HAZARDS, LEASING, Lease, OPERATION, ThreadSlot, UPKEEP, next_incarnation};
use crate::layout::slot::Slot;
use crate::layout::stats::{Counter, Counters};
use crate::mapped::Mapped;
use crate::memory::Pinned;
use std::sync::Arc;

/// The process slot whose lock a process holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// its number
    pub slot: usize,
    /// its incarnation since the process took it
    pub incarnation: u64,
}

/// A session's thread slot, as it was when the session moved in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionId(pub(crate) Owner);

/// The thread slots.
#[derive(Clone)]
pub struct Threads {
    mapped: Arc<Mapped>,
}

impl Threads {
    pub(crate) fn new(mapped: &Arc<Mapped>) -> Self {
        Self {
            mapped: Arc::clone(mapped),
        }
    }

    /// The counters of all thread slots, summed.
    pub fn counters(&self) -> Counters {
        let mut sum = Counters::default();
        for slot in 0..self.mapped.layout().shape.thread_slots {
            self.mapped.thread(slot).add_counters_to(&mut sum);
        }
        // Gauges are sums of differences: threads that died may have left them below zero.
        for gauge in [&mut sum.curr_items, &mut sum.bytes] {
            if *gauge > u64::MAX / 2 {
                *gauge = 0;
            }
        }
        sum
    }

    /// Thread slots that are leased.
    pub fn sessions(&self) -> usize {
        (0..self.mapped.layout().shape.thread_slots)
            .filter(|s| self.mapped.thread(*s).lease.load(Relaxed) & 1 != 0)
            .count()
    }

    /// Whether this owner's extents and claims are still valid.
    pub(crate) fn is_held(&self, owner: Owner) -> bool {
        let slot = usize::from(owner.slot);
        slot < self.mapped.layout().shape.thread_slots && {
            // PAIRS: vacate: the end of the owner's session: a thread that takes over what the owner held comes after it.
            let lease = Lease(self.mapped.thread(slot).lease.load(Acquire));
            lease.is_held_by(owner)
        }
    }

    /// Thread slots that were ever leased.
    pub(crate) fn threads_used(&self) -> usize {
        index(self.mapped.superblock().threads.load(Relaxed)).min(self.mapped.layout().shape.thread_slots)
    }

    /// Whether any session's hazard pointer names the segment. Of `own` only the hazard pointers of the operation count.
    pub(crate) fn is_protected(&self, segment: usize, own: Owner) -> bool {
        let name = segment as u64 + 1;
        // A writer that stores its hazard pointer after this fence sees everything that was reclaimed before it; a hazard pointer that is stored
        // earlier is seen here.
        // PAIRS: hazard: the fence in `Thread::protect`.
        fence(SeqCst);
        (0..self.threads_used()).any(|slot| {
            let thread = self.mapped.thread(slot);
            let own = slot == usize::from(own.slot);
            (0..HAZARDS).any(|i| {
                // PAIRS: hazard-end: `Thread::release` and `end_operation`: what was done under an ended hazard pointer comes before.
                thread.hazards.get(i).is_some_and(|w| w.load(Acquire) == name)
                    && !(own && matches!(i, UPKEEP | LEASING | FREEING))
                    && has_hazards(thread)
            })
        })
    }

    /// The segments that other sessions' hazard pointers name, plus 1 each.
    pub(crate) fn protected_by_others(&self, own: Owner) -> List<u64> {
        // PAIRS: hazard: the fence in `Thread::protect`, as in `is_protected`. PAIRS: chain: the same fence, in `each_of_chain`.
        fence(SeqCst);
        let mut protected = List::new();
        (0..self.threads_used())
            .filter(|slot| *slot != usize::from(own.slot))
            .map(|slot| self.mapped.thread(slot))
            // PAIRS: hazard-end: as in `is_protected`.
            .flat_map(|thread| thread.hazards.iter().map(move |hazard| (thread, hazard.load(Acquire))))
            .filter(|(thread, name)| *name != 0 && has_hazards(thread))
            .for_each(|(_, name)| protected.push(name));
        protected
    }

    /// Whether a live session is about to write an extent's header in the segment, whose lease word the caller has read.
    pub(crate) fn is_leasing(&self, segment: usize) -> bool {
        let name = segment as u64 + 1;
        (0..self.threads_used()).any(|slot| {
            let thread = self.mapped.thread(slot);
            // PAIRS: leasing: the end of the hazard pointer, in `Extents::lease_in`: if it has ended, the header is there.
            thread.hazards.get(LEASING).is_some_and(|w| w.load(Acquire) == name) && has_hazards(thread)
        })
    }

    /// Takes the first free one of the first `slots` thread slots for a thread of this process. `None`: all are taken.
    pub(crate) fn take(&self, slots: usize, process: u32, process_incarnation: u64) -> Option<Thread> {
        for slot in 0..self.mapped.layout().shape.thread_slots.min(slots) {
            let thread = self.mapped.thread(slot);
            // PAIRS: vacate: the end of its last tenant's session, or the exchange in `Recovery::take_back_slots`.
            let old = Lease(thread.lease.load(Acquire));
            if old.is_leased() {
                continue;
            }
            // Before the slot can have a hazard pointer. The hazard pointer's fence also orders this store: a recycler reads it after its own fence.
            self.mapped.superblock().threads.fetch_max(slot as u64 + 1, Relaxed);
            let incarnation = next_incarnation(old.incarnation());
            let lease = Lease::new(incarnation, process, process_incarnation);
            // PAIRS: tenant: the load in `Recovery::take_back_slots`: a thread that sees the lease sees the process's tenancy.
            if thread.lease.compare_exchange(old.0, lease.0, Release, Relaxed).is_err() {
                continue;
            }
            thread.pending_slot.store(0, Relaxed);
            thread.items.store(0, Relaxed);
            thread.door.store(0, Relaxed);
            thread.stripe.store(0, Relaxed);
            thread.writing.store(0, Relaxed);
            for hazard in &thread.hazards {
                // PAIRS: hazard-end: the loads of hazard pointers: also what the slot's last tenant did comes before.
                hazard.store(0, Release);
            }
            return Some(Thread {
                slot: Pinned::new(&self.mapped, |mapped| mapped.thread(slot)),
                owner: Owner {
                    slot: u16::try_from(slot).unwrap_or(u16::MAX),
                    incarnation,
                },
                lease,
            });
        }
        None
    }
}

/// Whether a tenant owns the hazard pointers in a thread slot; a fenced tenant counts.
fn has_hazards(thread: &ThreadSlot) -> bool {
    // PAIRS: vacate: the end of the session: everything that was done under its hazard pointers comes before.
    Lease(thread.lease.load(Acquire)).is_leased()
}

/// A thread's own slot: what the thread protects, what it has on record, what it counts.
#[derive(Clone)]
pub(crate) struct Thread {
    slot: Pinned<ThreadSlot, Mapped>,
    /// the slot with its incarnation
    owner: Owner,
    /// its lease word as it was leased
    lease: Lease,
}

impl Thread {
    /// The words of the slot.
    #[inline(always)]
    pub fn slot(&self) -> &ThreadSlot {
        &self.slot
    }

    /// The slot with its incarnation.
    #[inline(always)]
    pub fn owner(&self) -> Owner {
        self.owner
    }

    /// Adds to a counter.
    #[inline(always)]
    pub fn count(&self, counter: Counter, n: u64) {
        self.slot.count(counter, n);
    }

    /// Whether the session is suspected to be dead, or its slot was taken back: then it starts no operation. This orders
    /// nothing: no other session gets memory that a fenced session may still write to.
    #[inline(always)]
    pub fn is_fenced(&self) -> bool {
        self.slot.lease.load(Relaxed) != self.lease.0
    }

    /// Whether the session has its thread slot, fenced or not.
    pub fn holds_its_slot(&self) -> bool {
        Lease(self.slot.lease.load(Relaxed)).is_held_by(self.owner)
    }

    /// From now until [`Self::release`] no recycler gives this segment a new generation, if the slot that names it is still the
    /// same after this.
    #[inline]
    pub fn protect(&self, which: usize, segment: usize) {
        // The hazard pointer must be visible before the slot is read again; the recycler's reclaim is visible before it reads hazard pointers.
        // PAIRS: hazard: the fences in `Threads::is_protected` and `protected_by_others`.
        if let Some(hazard) = self.slot.hazards.get(which) {
            store_then_fence(hazard, segment as u64 + 1);
        }
    }

    /// The item that is about to be published is in this segment: no recycler gives it a new generation before the operation has ended.
    #[inline]
    pub fn protect_written(&self, which: usize, segment: usize) {
        // Neither fence nor release: the item's extent is still open. A recycler looks for hazard pointers after it has seen the extent
        // closed, and the store that closes it releases this one too (`Extents::close`).
        if let Some(hazard) = self.slot.hazards.get(which) {
            hazard.store(segment as u64 + 1, Relaxed);
        }
    }

    /// Whether this thread's own operation uses an item of this segment, so that it should not evict the segment.
    pub fn operates_on(&self, segment: usize) -> bool {
        self.slot
            .hazards
            .get(OPERATION)
            .is_some_and(|w| w.load(Relaxed) == segment as u64 + 1)
    }

    /// Ends a hazard pointer.
    #[inline]
    pub fn release(&self, which: usize) {
        if let Some(hazard) = self.slot.hazards.get(which) {
            // PAIRS: hazard-end: the loads in `Threads::is_protected` and `protected_by_others`. PAIRS: leasing: that in `is_leasing`.
            hazard.store(0, Release);
        }
    }

    /// Ends the operation and its hazard pointers.
    #[inline]
    pub fn end_operation(&self) {
        let thread = &self.slot;
        let [operation, _, _, written, _] = &thread.hazards;
        // PAIRS: hazard-end: the loads in `Threads::is_protected` and `protected_by_others`.
        written.store(0, Release);
        operation.store(0, Release);
        // PAIRS: door: the load in `Changes::is_door_acknowledged`: changes that were not counted are published.
        thread.writing.store(0, Release);
    }

    /// This tentative word is about to be put into this slot: recovery aborts it if the thread dies before [`Self::settle`].
    #[inline]
    pub fn pend(&self, slot_at: usize, tentative: Slot) {
        let thread = &self.slot;
        thread.pending_word.store(tentative.0, Relaxed);
        // PAIRS: record: the load in `Recovery::abort_on_record`: a thread that sees the slot sees the word.
        thread.pending_slot.store(slot_at as u64, Release);
    }

    /// The tentative word is confirmed or gone.
    #[inline]
    pub fn settle(&self) {
        // PAIRS: record: as in `pend`: a thread that sees nothing on record sees no tentative word of this session.
        self.slot.pending_slot.store(0, Release);
    }

    /// Gives the slot to the next tenant. Everything that the session had in the region has been given back.
    pub fn leave_slot(&self) {
        for hazard in &self.slot.hazards {
            // PAIRS: hazard-end: the loads in `Threads::is_protected` and `protected_by_others`.
            hazard.store(0, Release);
        }
        // Again if another process has fenced it meanwhile.
        let mut lease = Lease(self.slot.lease.load(Relaxed));
        while lease.is_held_by(self.owner) {
            // PAIRS: vacate: the loads of leases: the next tenant, and a thread that finds the slot vacated, come after all that was done.
            match self.slot.lease.compare_exchange(lease.0, lease.vacated().0, Release, Relaxed) {
                Ok(_) => break,
                Err(now) => lease = Lease(now),
            }
        }
    }
}
