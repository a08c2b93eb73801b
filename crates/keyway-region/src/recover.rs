//! Death: taking back what a thread left behind.
//!
//! Nothing has to be recovered before the region can be used: a dead thread's tentative word hides nothing, its extents and
//! claims are void as soon as its incarnation moves. This only gives back what it held. Anybody may do it, twice, or die in
//! the middle.
//!
//! What a thread that dies leaves, by where it was: `docs/concurrency.md`, "Death", has the list. Three kinds of it need work:
//! the tentative word on its record (emptied here), counts that it had not told (here too), and segments that were its own:
//! claimed, half way into the index, or parts of a large value that nothing leads to. These are looked for afterwards, by
//! [`Session::upkeep`] and by whoever needs room.

use crate::aside::List;
use crate::atomics::{AcqRel, Acquire, Relaxed, Release};
use crate::layout::segment::{Kind, State};
use crate::layout::session::Lease;
use crate::layout::slot::Slot;
use crate::layout::stats::Counter;
use crate::mutants::{self, Mutant};
use crate::purge::Step;
use crate::region::Region;
use crate::session::{Process, Seat, Session};

impl Region {
    /// Takes back the thread slots of processes that are gone; how many.
    pub fn recover(&self) -> usize {
        // A verdict is about one incarnation of a process: who takes its slot meanwhile is somebody else.
        let mut verdicts = List::with_capacity(self.layout.shape.process_slots);
        verdicts.as_vec().resize(self.layout.shape.process_slots, None::<(u64, bool)>);
        self.take_back(|lease| {
            let process = lease.process();
            let Some(verdict) = verdicts.as_vec().get_mut(process) else {
                return true;
            };
            let incarnation = self.process(process).incarnation.load(Acquire);
            let known = verdict.filter(|(of, _)| *of == incarnation);
            let (_, alive) = *verdict.insert(known.unwrap_or_else(|| (incarnation, self.is_process_alive(process))));
            !lease.is_of_process_incarnation(incarnation) || !alive
        })
    }

    /// A process takes a process slot, whose lock it already has: what the slot's last tenant left is taken back first.
    pub fn attach(&self, slot: usize, pid: u32, now_unix_s: i64) -> Process {
        let process = self.process(slot);
        // From here on everybody can tell the last tenant's threads from ours, whoever takes them back.
        let incarnation = process.incarnation.fetch_add(1, AcqRel) + 1;
        process.pid.store(u64::from(pid), Relaxed);
        process.since_unix_s.store(u64::try_from(now_unix_s).unwrap_or(0), Relaxed);
        self.take_back(|lease| lease.process() == slot && !lease.is_of_process_incarnation(incarnation));
        Process { slot, incarnation }
    }

    /// Takes back a thread slot of this process whose thread has ended without giving it back. `false`: it is another's by now.
    ///
    /// The caller knows that the thread has ended: no later store of it can come.
    pub fn take_back_own(&self, process: Process, seat: Seat) -> bool {
        self.take_back_slots([usize::from(seat.0.slot)].into_iter(), |lease| {
            lease.is_held_by(seat.0) && lease.process() == process.slot && lease.is_of_process_incarnation(process.incarnation)
        }) > 0
    }

    fn take_back(&self, is_dead: impl FnMut(Lease) -> bool) -> usize {
        self.take_back_slots(0..self.layout.shape.thread_slots, is_dead)
    }

    /// Takes back those of these thread slots whose tenants are dead; how many. Intents stay: recyclers ignore those of vacant
    /// slots, and clearing them could clear the next tenant's.
    fn take_back_slots(&self, slots: impl Iterator<Item = usize>, mut is_dead: impl FnMut(Lease) -> bool) -> usize {
        let mut dead = List::new();
        for slot in slots {
            // The incarnation is read before the death is established: a thread that moves in later is not touched.
            let lease = Lease(self.thread(slot).lease.load(Acquire));
            if lease.is_leased() && is_dead(lease) {
                self.undo(slot);
                dead.push((slot, lease));
            }
        }
        if dead.is_empty() {
            return 0;
        }
        // Before the slots are vacant, so that whoever recovers us does it again if we die here.
        self.recount_free();
        self.sweep_lost();
        let won = |(slot, lease): &(usize, Lease)| {
            let word = &self.thread(*slot).lease;
            word.compare_exchange(lease.0, lease.vacated().0, AcqRel, Relaxed).is_ok()
        };
        let count = dead.iter().filter(|one| won(one)).count();
        // And behind, because a sweep that ran meanwhile took them for alive.
        self.sweep_lost();
        if let Some(counter) = self.thread(0).counters.get(Counter::recoveries as usize) {
            counter.fetch_add(count as u64, Relaxed);
        }
        count
    }

    /// Undoes the insert that a dead tenant was in, and tells what it had not told.
    fn undo(&self, slot: usize) {
        let thread = self.thread(slot);
        let at = usize::try_from(thread.pending_slot.load(Acquire)).unwrap_or(0);
        let word = Slot(thread.pending_word.load(Relaxed));
        if word.is_tentative() && self.is_index_slot(at) && !mutants::is(Mutant::TentativeForgotten) {
            let _ = self.slot(at).compare_exchange(word.0, Slot::EMPTY.0, AcqRel, Relaxed);
        }
        let items = thread.items.swap(0, Relaxed);
        self.superblock().items.fetch_add(items, Relaxed);
    }

    /// Every segment shall be looked at for having been a dead thread's.
    fn sweep_lost(&self) {
        self.superblock().lost.store(self.segments() as u64, Release);
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

impl Session {
    /// Looks at up to `count` segments, as long as there are any to be looked at after a death, and frees those of no use. Whether
    /// there were any.
    pub(crate) fn reclaim_lost(&self, count: usize, now: u32) -> bool {
        let lost = &self.region.superblock().lost;
        let mut found = false;
        for _ in 0..count {
            let left = lost.load(Acquire);
            let last = usize::try_from(left).unwrap_or(usize::MAX).min(self.region.segments());
            let Some(segment) = last.checked_sub(1) else { break };
            found |= self.reclaim_if_lost(segment, now) == Step::Freed;
            // Behind the look: if we die in it, the next one looks again.
            let _ = lost.compare_exchange(left, segment as u64, AcqRel, Relaxed);
        }
        found
    }
}
