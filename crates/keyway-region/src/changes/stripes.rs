//! Changes, counted for a process that keeps copies of items outside the region.
//!
//! The hash space is cut into [`STRIPES`] stripes. A key's tag is the number of its stripe, so a slot's word alone names it.
//! Each stripe has a word `{started, finished}`, and one more word is for `flush_all`. While the kernel door is on, every
//! visible change is bracketed: started + 1, the publish, finished + 1. A maker of copies reads the stripe's word before it
//! copies an item, and keeps the word with the copy. As long as the word is the same, with equal halves, no thread has begun to
//! change what was copied. This file does not know what uses the copies.
//!
//! The words are outside the region, in memory that a process maps when it needs to ([`Changes::offer_stripes`]). A session
//! without them may not change anything while the door is on.
//!
//! Turning the door on ([`Changes::turn_door_on`]): the door word is stored; then a fence that every processor passes; then the
//! caller waits for each session that was in an operation meanwhile and may not have seen the word
//! ([`Changes::is_door_acknowledged`]). Only the process that turns the door on waits.
//!
//! A thread that dies between its two counts leaves its stripe's halves unequal. Then no item of it is copied, and none of its
//! copies is valid, until [`Changes::mend_stripes`] finds that no live session names the stripe, and moves the word on to equal
//! halves that it never had.

use crate::atomics::{Acquire, AtomicU64, Relaxed, Release, light_fence};
use crate::heap;
use crate::layout::session::Lease;
use crate::layout::slot::{Slot, TAG_BITS};
use crate::layout::superblock::{DoorWord, Superblock};
use crate::mapped::{Life, Mapped};
use crate::memory::{Memory, Pinned};
use crate::threads::Process;
use crate::threads::{Thread, Threads};
use crate::verbs::WriteError;
use core::any::Any;
use core::cell::{Cell, RefCell};
use std::sync::{Arc, Mutex, PoisonError};

/// Stripes of the hash space: as many as tags.
pub const STRIPES: usize = 1 << TAG_BITS;
/// The index of `flush_all`'s word, after those of the stripes.
pub const FLUSH: usize = STRIPES;
/// Words in all.
pub const WORDS: usize = STRIPES + 1;
/// In the place of a door word: no process has so high a slot.
const COUNTED: u64 = u64::MAX;

/// The words of the stripes, as mapped in this process.
pub struct Stripes {
    memory: Memory,
    /// keeps the memory mapped
    _mapping: Box<dyn Any + Send + Sync>,
}

/// A stripe's word: 63..32 changes finished | 31..0 changes started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ChangeWord(u64);

impl ChangeWord {
    fn started(self) -> u32 {
        (self.0 & 0xFFFF_FFFF) as u32
    }

    fn finished(self) -> u32 {
        (self.0 >> 32) as u32
    }

    fn new(started: u32, finished: u32) -> Self {
        Self(u64::from(finished) << 32 | u64::from(started))
    }

    fn with_one_started(self) -> Self {
        Self::new(self.started().wrapping_add(1), self.finished())
    }

    fn with_one_finished(self) -> Self {
        Self::new(self.started(), self.finished().wrapping_add(1))
    }

    /// Equal halves that the word has not had.
    fn mended(self) -> Self {
        let next = self.started().wrapping_add(1);
        Self::new(next, next)
    }

    fn is_at_rest(self) -> bool {
        self.started() == self.finished()
    }
}

impl Stripes {
    /// The stripes in this memory, which `mapping` keeps mapped. `None`: it is too small.
    pub fn new(memory: Memory, mapping: Box<dyn Any + Send + Sync>) -> Option<Self> {
        (memory.len() >= WORDS * 8).then_some(Self {
            memory,
            _mapping: mapping,
        })
    }

    fn word(&self, stripe: usize) -> &AtomicU64 {
        self.memory.get(stripe.min(FLUSH) * 8)
    }

    /// Replaces a word by its successor. Not an addition, because the halves must not carry into each other. An attempt fails
    /// only because another thread's change was counted.
    fn step(&self, stripe: usize, next: impl Fn(ChangeWord) -> ChangeWord) {
        let word = self.word(stripe);
        let mut now = word.load(Relaxed);
        // PAIRS: stripe: the loads of the word: a maker of copies that sees a change finished reads what was published, and
        // `mend` sees which session's change is begun.
        while let Err(other) = word.compare_exchange(now, next(ChangeWord(now)).0, Release, Relaxed) {
            now = other;
        }
    }
}

/// This process's mapping of the stripes, and the door word that it is for.
#[derive(Default)]
struct Offered(Mutex<Option<(DoorWord, Arc<Stripes>)>>);

/// The kernel door's word, and the words in which this process counts its changes.
pub struct Changes {
    mapped: Arc<Mapped>,
    superblock: Pinned<Superblock, Mapped>,
    threads: Threads,
    offered: Offered,
}

impl Changes {
    pub(crate) fn new(mapped: &Arc<Mapped>, threads: &Threads) -> Self {
        Self {
            mapped: Arc::clone(mapped),
            superblock: Pinned::new(mapped, Mapped::superblock),
            threads: threads.clone(),
            offered: Offered::default(),
        }
    }

    /// The door word.
    pub fn door(&self) -> DoorWord {
        // PAIRS: door-offer: the exchange in `turn_door_on`. PAIRS: door: that in `turn_door_off`.
        DoorWord(self.superblock.kernel_door.load(Acquire))
    }

    /// While the door word is this one, sessions of this process count in these words.
    pub fn offer_stripes(&self, door: DoorWord, stripes: Stripes) {
        *self.offered.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((door, Arc::new(stripes)));
    }

    fn stripes_for(&self, door: DoorWord) -> Option<Arc<Stripes>> {
        let offered = self.offered.0.lock().unwrap_or_else(PoisonError::into_inner);
        offered
            .as_ref()
            .filter(|(of, _)| *of == door)
            .map(|(_, stripes)| Arc::clone(stripes))
    }

    /// Whether this process has the words for the present door word.
    pub fn has_stripes(&self) -> bool {
        self.stripes_for(self.door()).is_some()
    }

    /// Whether the process that turned the door on may still exist.
    pub fn is_door_owned(&self) -> bool {
        let door = self.door();
        let slot = door.slot();
        door.is_on()
            && slot < self.mapped.layout().shape.process_slots
            && door.is_of_incarnation(self.mapped.tenant(slot).tenancy.incarnation())
            && self.mapped.life(slot) != Life::Dead
    }

    /// Turns the door on: from now on changes are counted in `stripes`. Nothing may be copied before [`Self::is_door_acknowledged`].
    /// `None`: another live process has turned it on.
    pub fn turn_door_on(&self, process: Process, stripes: Stripes) -> Option<DoorWord> {
        let old = self.door();
        if self.is_door_owned() {
            return None;
        }
        let door = old.next(process.slot, process.incarnation);
        self.offer_stripes(door, stripes);
        // PAIRS: door-offer: the loads of the door word: a session that sees it turned on finds the words that were offered.
        let won = self
            .superblock
            .kernel_door
            .compare_exchange(old.0, door.0, Release, Relaxed)
            .is_ok();
        won.then_some(door)
    }

    /// Whether every session counts its changes by now: none is still in an operation that began before it could know.
    pub fn is_door_acknowledged(&self) -> bool {
        let door = self.door();
        // PAIRS: door: the light fence in `Counting::enter`. After this, a session that has not read the door word yet will read
        // this one; a session that has read another one is seen to be writing.
        let all_fenced = self.mapped.host().fence_everywhere();
        (0..self.threads.threads_used()).all(|slot| {
            let thread = self.mapped.thread(slot);
            // PAIRS: vacate: the end of the session. PAIRS: door: the stores in `leave` and `follow_door`: changes that were not
            // counted are seen.
            !Lease(thread.lease.load(Acquire)).is_leased()
                || thread.door.load(Acquire) == door.0
                || (all_fenced && thread.writing.load(Acquire) == 0)
        })
    }

    /// Turns the door off, if the word is still this one. The caller knows that no process answers from copies any more.
    pub fn turn_door_off(&self, door: DoorWord) {
        let word = &self.superblock.kernel_door;
        // PAIRS: door: the loads of the door word: an operation that need not count comes after the last answer from a copy.
        let _ = word.compare_exchange(door.0, door.off().0, Release, Relaxed);
    }

    /// No process answers from copies after this instant of the kernel program's clock, unless the lease is renewed.
    pub fn renew_door_lease(&self, until_ns: u64) {
        // Relaxed: the kernel program gets the lease after this, by a releasing store. The word is read only when that process is gone.
        self.superblock.door_lease_ns.store(until_ns, Relaxed);
    }

    /// See [`Self::renew_door_lease`].
    pub fn door_lease_ns(&self) -> u64 {
        self.superblock.door_lease_ns.load(Relaxed)
    }

    /// Moves on the stripes in which a thread has died between its two counts; returns how many. Of this process's stripes only.
    pub fn mend_stripes(&self) -> usize {
        let Some(stripes) = self.stripes_for(self.door()) else {
            return 0;
        };
        (0..WORDS).filter(|stripe| self.mend(&stripes, *stripe)).count()
    }

    fn mend(&self, stripes: &Stripes, stripe: usize) -> bool {
        let word = stripes.word(stripe);
        // PAIRS: stripe: `Stripes::step`: a session that is counted here has the stripe on its record. One that counts later
        // makes the exchange fail.
        let now = ChangeWord(word.load(Acquire));
        if now.is_at_rest() {
            return false;
        }
        let name = stripe as u64 + 1;
        let is_named = (0..self.threads.threads_used()).any(|slot| {
            let thread = self.mapped.thread(slot);
            // PAIRS: stripe-name: the store in `end_change`. PAIRS: vacate: the end of the session.
            thread.stripe.load(Acquire) == name && Lease(thread.lease.load(Acquire)).is_leased()
        });
        // PAIRS: stripe-mend: the loads of the word: a maker of copies reads what the dead thread had published.
        !is_named && word.compare_exchange(now.0, now.mended().0, Release, Relaxed).is_ok()
    }
}

/// A thread's part in counting: the door word that it knows, and where its changes are counted.
pub struct Counting {
    superblock: Pinned<Superblock, Mapped>,
    changes: Arc<Changes>,
    thread: Thread,
    /// the door word that it has acknowledged
    door: Cell<u64>,
    /// the same, if changes are not counted by it: one that names no owner; otherwise no door word
    idle_door: Cell<u64>,
    /// where its changes are counted, if they are
    stripes: RefCell<Option<Arc<Stripes>>>,
}

impl Counting {
    pub(crate) fn new(mapped: &Arc<Mapped>, changes: &Arc<Changes>, thread: &Thread) -> Self {
        Self {
            superblock: Pinned::new(mapped, Mapped::superblock),
            changes: Arc::clone(changes),
            thread: thread.clone(),
            door: Cell::new(0),
            idle_door: Cell::new(0),
            stripes: RefCell::default(),
        }
    }

    /// Begins an operation that may make visible changes. The present door word says whether changes are counted.
    ///
    /// # Errors
    ///
    /// Changes are counted, and this process does not have the words.
    #[inline]
    pub(crate) fn enter(&self) -> Result<(), WriteError> {
        self.thread.slot().writing.store(1, Relaxed);
        // PAIRS: door: the fence everywhere in `Changes::is_door_acknowledged`.
        light_fence();
        // PAIRS: door-offer: `Changes::turn_door_on`. PAIRS: door: `Changes::turn_door_off`.
        let door = self.superblock.kernel_door.load(Acquire);
        if door == self.door.get() {
            return Ok(());
        }
        self.follow_door(DoorWord(door))
    }

    /// Begins an operation if the session knows the present door word and changes are not counted. `false`: it has not begun.
    #[inline(always)]
    pub(crate) fn enter_known(&self, superblock: &Superblock) -> bool {
        let writing = &self.thread.slot().writing;
        writing.store(1, Relaxed);
        // PAIRS: door, door-offer: as in `enter`.
        light_fence();
        let is_known = superblock.kernel_door.load(Acquire) == self.idle_door.get();
        if !is_known {
            self.leave();
        }
        is_known
    }

    /// Whether the session has acknowledged the present door word: an operation that begins now need not stop for it.
    #[inline]
    pub fn knows_door(&self) -> bool {
        self.superblock.kernel_door.load(Relaxed) == self.door.get()
    }

    /// The operation has ended.
    #[inline]
    pub(crate) fn leave(&self) {
        // PAIRS: door: the load in `Changes::is_door_acknowledged`: changes that were not counted are published.
        self.thread.slot().writing.store(0, Release);
    }

    #[cold]
    #[inline(never)]
    fn follow_door(&self, door: DoorWord) -> Result<(), WriteError> {
        let mut stripes = None;
        // Another thread may be using the list now. What it held before is unmapped.
        heap::run(&mut || stripes = self.changes.stripes_for(door));
        if door.is_on() && stripes.is_none() {
            self.leave();
            return Err(WriteError::KernelDoor);
        }
        self.idle_door.set(if door.is_on() { COUNTED } else { door.0 });
        let mut old = self.stripes.replace(stripes.filter(|_| door.is_on()));
        heap::run(&mut || old = None);
        self.door.set(door.0);
        // PAIRS: door: the load in `Changes::is_door_acknowledged`, as in `leave`.
        self.thread.slot().door.store(door.0, Release);
        Ok(())
    }

    /// Makes a visible change of the key of a slot's word: counted, if changes are counted.
    #[inline(always)]
    pub(crate) fn counted<R>(&self, word: Slot, publish: impl FnOnce() -> R) -> R {
        self.counted_in(crate::layout::index(word.tag()), publish)
    }

    /// Makes a visible change that no client has requested, an eviction or an expiry: counted, if changes are counted.
    #[inline(always)]
    pub(crate) fn counted_eviction<R>(&self, word: Slot, publish: impl FnOnce() -> R) -> R {
        self.counted(word, publish)
    }

    /// Publishes a flush, which changes all keys: counted, if changes are counted.
    pub(crate) fn counted_flush<R>(&self, publish: impl FnOnce() -> R) -> R {
        self.counted_in(FLUSH, publish)
    }

    #[inline(always)]
    fn counts(&self) -> bool {
        self.idle_door.get() == COUNTED
    }

    #[inline(always)]
    fn counted_in<R>(&self, stripe: usize, publish: impl FnOnce() -> R) -> R {
        if self.counts() {
            self.begin_change(stripe);
        }
        let result = publish();
        if self.counts() {
            self.end_change(stripe);
        }
        result
    }

    #[cold]
    #[inline(never)]
    fn begin_change(&self, stripe: usize) {
        if let Some(stripes) = &*self.stripes.borrow() {
            // Before the count: recovery does not touch the stripe as long as a live session names it.
            self.thread.slot().stripe.store(stripe as u64 + 1, Relaxed);
            // The publish releases, so it does not become visible before the count.
            stripes.step(stripe, ChangeWord::with_one_started);
        }
    }

    #[cold]
    #[inline(never)]
    fn end_change(&self, stripe: usize) {
        if let Some(stripes) = &*self.stripes.borrow() {
            stripes.step(stripe, ChangeWord::with_one_finished);
            // PAIRS: stripe-name: the load in `Changes::mend`: a change that is no longer on record is seen finished.
            self.thread.slot().stripe.store(0, Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_do_not_carry_into_each_other() {
        let full = ChangeWord::new(u32::MAX, 7);
        assert_eq!(full.with_one_started(), ChangeWord::new(0, 7));
        let full = ChangeWord::new(7, u32::MAX);
        assert_eq!(full.with_one_finished(), ChangeWord::new(7, 0));
        let dead = ChangeWord::new(8, 7);
        assert!(!dead.is_at_rest() && dead.mended().is_at_rest() && dead.mended() == ChangeWord::new(9, 9));
    }

    #[test]
    fn a_door_word_tells_its_owner_and_is_another_one_each_time() {
        let on = DoorWord(0).next(12, 0x100_0003);
        assert!(on.is_on() && on.slot() == 12 && on.is_of_incarnation(3) && !on.is_of_incarnation(4));
        let off = on.off();
        assert!(!off.is_on() && off != DoorWord(0));
        assert_ne!(off.next(12, 3), on);
    }
}
