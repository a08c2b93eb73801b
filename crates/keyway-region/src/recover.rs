//! Death: taking back what a thread left behind.
//!
//! Nothing has to be recovered before the region can be used: a dead thread's tentative word hides nothing, its extents and
//! claims are void as soon as its incarnation moves. This only gives back what it held. Anybody may do it, twice, or die in
//! the middle.

use crate::atomics::{AcqRel, Acquire, Relaxed};
use crate::layout::segment::{Kind, State};
use crate::layout::session::Lease;
use crate::layout::slot::Slot;
use crate::layout::stats::Counter;
use crate::mutants::{self, Mutant};
use crate::region::Region;
use crate::session::Process;

impl Region {
    /// Takes back the thread slots of processes that are gone; how many.
    pub fn recover(&self) -> usize {
        let mut verdicts: Vec<Option<bool>> = vec![None; self.layout.shape.process_slots];
        (0..self.layout.shape.thread_slots)
            .filter(|slot| {
                // The incarnation is read before the death is established: a thread that moves in later is not touched.
                let lease = Lease(self.thread(*slot).lease.load(Acquire));
                if !lease.is_leased() {
                    return false;
                }
                let process = lease.process();
                let alive = match verdicts.get_mut(process) {
                    Some(verdict) => {
                        lease.is_of_process_incarnation(self.process(process).incarnation.load(Acquire))
                            && *verdict.get_or_insert_with(|| self.is_process_alive(process))
                    }
                    None => false,
                };
                !alive && self.take_back(*slot, lease)
            })
            .count()
    }

    /// A process takes a process slot, whose lock it already has: what the slot's last tenant left is taken back first.
    pub fn attach(&self, slot: usize, pid: u32, now_unix_s: i64) -> Process {
        for thread in 0..self.layout.shape.thread_slots {
            let lease = Lease(self.thread(thread).lease.load(Acquire));
            if lease.is_leased() && lease.process() == slot {
                self.take_back(thread, lease);
            }
        }
        let process = self.process(slot);
        let incarnation = process.incarnation.fetch_add(1, AcqRel) + 1;
        process.pid.store(u64::from(pid), Relaxed);
        process.since_unix_s.store(u64::try_from(now_unix_s).unwrap_or(0), Relaxed);
        Process { slot, incarnation }
    }

    /// Undoes the insert that a dead tenant was in, and vacates its slot. Its intents stay: recyclers ignore those of vacant
    /// slots, and clearing them could clear the next tenant's.
    fn take_back(&self, slot: usize, lease: Lease) -> bool {
        let thread = self.thread(slot);
        let at = usize::try_from(thread.pending_slot.load(Acquire)).unwrap_or(0);
        let word = Slot(thread.pending_word.load(Relaxed));
        if word.is_tentative() && self.is_index_slot(at) && !mutants::is(Mutant::TentativeForgotten) {
            let _ = self.slot(at).compare_exchange(word.0, Slot::EMPTY.0, AcqRel, Relaxed);
        }
        if thread
            .lease
            .compare_exchange(lease.0, lease.vacated().0, AcqRel, Relaxed)
            .is_err()
        {
            return false;
        }
        if let Some(counter) = self.thread(0).counters.get(Counter::recoveries as usize) {
            counter.fetch_add(1, Relaxed);
        }
        // It may have died between a segment's state and the count.
        self.doubt_free();
        true
    }

    /// Whether a slot of the index can be at this offset.
    fn is_index_slot(&self, at: usize) -> bool {
        let start = self.layout.segments;
        if at < start || !at.is_multiple_of(8) {
            return false;
        }
        let segment = (at - start) / self.layout.shape.segment_size;
        self.has(segment) && State(self.header(segment).state.load(Acquire)).kind() == Some(Kind::Index)
    }
}
