//! Death: taking back what a dead thread left.
//!
//! Nothing has to be recovered before the region can be used: a dead thread's tentative word hides nothing, and its extents and
//! claims end as soon as its incarnation moves. Recovery only gives back what the thread held. Any thread may do it, twice, or
//! die in the middle.
//!
//! **A detector of deaths can be wrong.** So there are two steps, for two degrees of certainty ([`Life`]):
//!
//! - *Suspect*: the session is **fenced**, by a bit in its lease word. If it is alive, it finishes its operation, sees
//!   the fence when it starts the next one, gives its slot back itself and takes another one. Until then everything that it may
//!   still write to is in **quarantine**: its hazard pointers are honoured, its extents and claims stay valid, and its slot is leased to
//!   no other thread. That is at most what one session can hold at a time.
//! - *Dead*, for certain: all of that is taken back.
//!
//! `docs/concurrency.md`, "Process death", lists what a dying thread leaves at each point. Three kinds need work: the tentative word on
//! its record (removed here), counts that it had not reported (added here), and segments that it owned: claimed, about to join
//! the index, or parts of a large value that nothing leads to. [`Session::upkeep`](crate::Session::upkeep) and threads that need
//! space look for these segments afterwards.

#[cfg(all(test, feature = "observe"))]
mod late;
pub(crate) mod repair;

use crate::atomics::{Acquire, Relaxed, Release};
use crate::directory::Directory;
use crate::flushes::Flushes;
use crate::heap::List;
use crate::index::{Index, Slots};
use crate::layout::flight::Holder;
use crate::layout::index;
use crate::layout::session::{Entrance, Hold, IDENTITY_WORDS, Lease, Tenancy, Tenant};
use crate::layout::slot::Slot;
use crate::layout::stats::Counter;
use crate::log::{Items, Segments, Uniques};
use crate::mapped::Life;
use crate::mapped::Mapped;
use crate::threads::{Process, SessionId};
use crate::watch::Watch;
use keyway_probes as probes;
use std::sync::Arc;

/// What takes back what dead threads left, and repairs a region after a power failure.
#[derive(Clone)]
pub struct Recovery {
    mapped: Arc<Mapped>,
    directory: Arc<Directory>,
    flushes: Flushes,
    watch: Watch,
    segments: Segments,
    items: Items,
    uniques: Uniques,
    slots: Slots,
    index: Index,
}

impl Recovery {
    pub(crate) fn new(
        mapped: &Arc<Mapped>,
        (directory, flushes, watch): (&Arc<Directory>, &Flushes, &Watch),
        (segments, items, uniques): (&Segments, &Items, &Uniques),
        (slots, index): (&Slots, &Index),
    ) -> Self {
        Self {
            mapped: Arc::clone(mapped),
            directory: Arc::clone(directory),
            flushes: flushes.clone(),
            watch: watch.clone(),
            segments: segments.clone(),
            items: items.clone(),
            uniques: uniques.clone(),
            slots: slots.clone(),
            index: index.clone(),
        }
    }

    /// Takes back the thread slots of processes that are certainly gone, and fences those of processes that seem to be gone.
    /// Returns how many slots it took back.
    pub fn recover(&self) -> usize {
        // A verdict is about one incarnation of a process: the next tenant of its slot is another process.
        let mut verdicts = List::with_capacity(self.mapped.layout().shape.process_slots);
        verdicts
            .as_vec()
            .resize(self.mapped.layout().shape.process_slots, None::<(u64, Life)>);
        self.take_back(|lease| {
            let process = lease.process();
            let Some(verdict) = verdicts.as_vec().get_mut(process) else {
                return Life::Dead;
            };
            let tenant = self.mapped.tenant(process);
            let incarnation = tenant.tenancy.incarnation();
            let known = verdict.filter(|(of, _)| *of == incarnation);
            let (_, life) = *verdict.insert(known.unwrap_or_else(|| (incarnation, self.mapped.host().life(&tenant))));
            // A slot gets a new tenant only after the death of its last one was certain.
            if lease.is_of_process_incarnation(incarnation) {
                life
            } else {
                Life::Dead
            }
        })
    }

    /// A process takes a process slot, whose lock it already holds. First it takes back what the slot's last tenant left. The
    /// caller knows that this tenant, as it was read, is certainly gone. `None`: the slot has another tenant by now.
    pub fn take_over(&self, last: &Tenant, pid: u32, now_unix_s: i64) -> Option<Process> {
        let process = self.mapped.process(last.slot);
        let incarnation = last.tenancy.incarnation() + 1;
        let attaching = Tenancy::new(incarnation, Hold::Attaching);
        // From here on every process can distinguish the last tenant's threads from those of this process.
        process
            .tenancy
            .compare_exchange(last.tenancy.0, attaching.0, Relaxed, Relaxed)
            .ok()?;
        process.pid.store(u64::from(pid), Relaxed);
        process.since_unix_s.store(u64::try_from(now_unix_s).unwrap_or(0), Relaxed);
        self.take_back(|lease| {
            if lease.process() == last.slot && !lease.is_of_process_incarnation(incarnation) {
                Life::Dead
            } else {
                Life::Alive
            }
        });
        Some(Process {
            slot: last.slot,
            incarnation,
        })
    }

    /// Takes a process slot whatever its last tenant is: for a caller that is the only process that takes the slot.
    pub fn attach(&self, slot: usize, pid: u32, now_unix_s: i64) -> Process {
        loop {
            if let Some(process) = self.take_over(&self.mapped.tenant(slot), pid, now_unix_s) {
                return process;
            }
        }
    }

    /// Stores which process this is, and how it holds its lock; before its first session. `false`: another process has taken the
    /// slot over, because the lock was lost meanwhile.
    pub fn identify(&self, process: Process, hold: Hold, identity: [u64; IDENTITY_WORDS]) -> bool {
        let slot = self.mapped.process(process.slot);
        for (word, value) in slot.identity.iter().zip(identity) {
            word.store(value, Relaxed);
        }
        let attaching = Tenancy::new(process.incarnation, Hold::Attaching);
        let attached = Tenancy::new(process.incarnation, hold);
        // PAIRS: tenancy: the load in `Mapped::tenant`: a process that sees how the lock is held sees which process holds it.
        slot.tenancy
            .compare_exchange(attaching.0, attached.0, Release, Relaxed)
            .is_ok()
    }

    /// Notes what the process is, for statistics.
    pub fn note_entrance(&self, process: Process, entrance: Entrance) {
        self.mapped.process(process.slot).entrance.store(entrance as u64, Relaxed);
    }

    /// The process has no session any more and leaves its slot.
    pub fn detach(&self, process: Process) {
        let tenancy = &self.mapped.process(process.slot).tenancy;
        let now = Tenancy(tenancy.load(Relaxed));
        if now.incarnation() == process.incarnation {
            let none = Tenancy::new(process.incarnation, Hold::None);
            // PAIRS: tenancy: the load in `Mapped::tenant`: a process that finds no tenant comes after its last session.
            let _ = tenancy.compare_exchange(now.0, none.0, Release, Relaxed);
        }
    }

    /// The slot of a process that is certainly gone, and of which nothing is left, has no tenant any more. Nothing happens if it
    /// has another one by now.
    pub fn dismiss(&self, tenant: &Tenant) {
        let none = Tenancy::new(tenant.tenancy.incarnation(), Hold::None);
        // PAIRS: tenancy: the load in `Mapped::tenant`.
        let _ = self
            .mapped
            .process(tenant.slot)
            .tenancy
            .compare_exchange(tenant.tenancy.0, none.0, Release, Relaxed);
    }

    /// Takes back a thread slot of this process whose thread has ended without giving it back. `false`: it has another tenant by now.
    ///
    /// The caller knows that the thread has ended: it makes no later store.
    pub fn take_back_own(&self, process: Process, id: SessionId) -> bool {
        self.take_back_slots([usize::from(id.0.slot)].into_iter(), |lease| {
            let is_ours =
                lease.is_held_by(id.0) && lease.process() == process.slot && lease.is_of_process_incarnation(process.incarnation);
            if is_ours { Life::Dead } else { Life::Alive }
        }) > 0
    }

    /// Takes back the slot of this thread if it is certainly gone, so that what it was computing is handed over.
    pub fn take_back_dead(&self, holder: Holder) {
        let Some(owner) = holder.owner() else { return };
        self.take_back_slots([usize::from(owner.slot)].into_iter(), |lease| {
            let tenant = self.mapped.tenant(lease.process());
            match lease.is_held_by(owner) {
                false => Life::Alive,
                // A slot gets a new tenant only after the death of its last one was certain.
                true if !lease.is_of_process_incarnation(tenant.tenancy.incarnation()) => Life::Dead,
                true => self.mapped.host().life(&tenant),
            }
        });
    }

    fn take_back(&self, life: impl FnMut(Lease) -> Life) -> usize {
        self.take_back_slots(0..self.mapped.layout().shape.thread_slots, life)
    }

    /// Takes back those of these thread slots whose tenants are dead, and fences those whose tenants seem to be. Returns how
    /// many it took back. Hazard pointers stay: recyclers ignore those of vacant slots, and clearing them could clear the next tenant's.
    fn take_back_slots(&self, slots: impl Iterator<Item = usize>, mut life: impl FnMut(Lease) -> Life) -> usize {
        let mut dead = List::new();
        for slot in slots {
            // The incarnation is read before the death is established: a thread that takes the slot later is not affected.
            // PAIRS: tenant: the exchange in `Region::session`: the tenancy that is read after this is its process's, or a later one.
            let lease = Lease(self.mapped.thread(slot).lease.load(Acquire));
            if !lease.is_leased() {
                continue;
            }
            match life(lease) {
                Life::Alive => {}
                Life::Suspect => self.fence(slot, lease),
                Life::Dead => {
                    self.undo(slot);
                    dead.push((slot, lease));
                }
            }
        }
        if dead.is_empty() {
            return 0;
        }
        // Before the slots are vacant: if this thread dies here, its recovery does this again.
        self.mapped.recount_free();
        self.sweep_lost();
        let won = |(slot, lease): &(usize, Lease)| {
            let word = &self.mapped.thread(*slot).lease;
            // Twice, in case another process has fenced it meanwhile: its tenant is the same.
            // PAIRS: vacate: the loads of leases.
            let vacate = |from: Lease| word.compare_exchange(from.0, lease.vacated().0, Release, Relaxed).is_ok();
            vacate(*lease) || vacate(lease.fenced())
        };
        let tell = |(slot, lease): &&(usize, Lease)| probes::recover(*slot, lease.process());
        let count = dead.iter().filter(|one| won(one)).inspect(tell).count();
        // And again afterwards, because a sweep that ran meanwhile took the tenants for alive.
        self.sweep_lost();
        if let Some(counter) = self.mapped.thread(0).counters.get(Counter::recoveries as usize) {
            counter.fetch_add(count as u64, Relaxed);
        }
        count
    }

    /// Fences the tenant of this lease, which seems to be dead: it starts no other operation. Everything that it holds stays its own.
    fn fence(&self, slot: usize, lease: Lease) {
        let word = &self.mapped.thread(slot).lease;
        if !lease.is_fenced() && word.compare_exchange(lease.0, lease.fenced().0, Relaxed, Relaxed).is_ok() {
            // Any thread may abort any tentative word.
            self.abort_on_record(slot);
            if let Some(counter) = self.mapped.thread(0).counters.get(Counter::fences as usize) {
                counter.fetch_add(1, Relaxed);
            }
        }
    }

    /// Undoes the insert that a dead tenant had begun, and reports the counts that it had not reported.
    fn undo(&self, slot: usize) {
        self.abort_on_record(slot);
        // Where it may have made an item dead that it had not counted.
        for hazard in &self.mapped.thread(slot).hazards {
            if let Some(segment) = index(hazard.load(Relaxed)).checked_sub(1) {
                self.segments.recount_dead(segment);
            }
        }
        self.watch.count_unwatched(slot);
        let items = self.mapped.thread(slot).items.swap(0, Relaxed);
        self.mapped.superblock().items.fetch_add(items, Relaxed);
    }

    /// Empties the slot that holds the tentative word on a thread's record.
    fn abort_on_record(&self, slot: usize) {
        let thread = self.mapped.thread(slot);
        // PAIRS: record: the stores in `Thread::pend` and `settle`.
        let at = usize::try_from(thread.pending_slot.load(Acquire)).unwrap_or(0);
        let word = Slot(thread.pending_word.load(Relaxed));
        if word.is_tentative() {
            self.slots.abort_at(at, word);
        }
    }

    /// Marks every segment to be checked for what a dead owner left.
    pub(crate) fn sweep_lost(&self) {
        // PAIRS: sweep: the load in `Reclaimer::reclaim_lost`: a sweep takes no dead owner for a living one.
        self.mapped.superblock().lost.store(self.mapped.segments() as u64, Release);
    }
}
