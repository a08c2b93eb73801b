//! A session's thread slot: the region's session, its entry in its process's list, and what comes before and after every call: that the
//! process is the one that attached, that the thread is known, that the gate is open, that the slot is still ours, and what time it is.
//!
//! Never: knows what a verb does, or that some calls are measured.

use crate::clock::{self, Watch};
use crate::gate::{Bytes, Latch, Verb as Call, aside};
use crate::process::cancel::Uncancelled;
use crate::process::thread;
use crate::session::kernel;
use crate::session::roster::Sessions;
use keyway_region::verbs::{Get, Item, Now, RELATIVE_EXPTIME_MAX, WriteError};
use keyway_region::{Key, KeyRoom, Region, Session, Sink};
use std::hint::cold_path;
use std::sync::Arc;

/// See the top of the file.
pub struct Slot {
    inner: Session,
    /// dropped after `inner`: a thread that dies between the two is still in its process's list
    member: Membership,
    /// the number of the thread that used the session last
    thread: u64,
    latch: Latch,
    /// there is a gate, or gets do not take the region's fast path
    is_special: bool,
}

impl Slot {
    /// With a session of the region, and its number ([`Sessions::hire`]).
    pub fn new(sessions: Arc<Sessions>, (inner, id): (Box<Session>, u64)) -> Self {
        let latch = sessions.latch();
        Self {
            is_special: latch.is_on() || !inner.has_fast_path(),
            inner: *inner,
            member: Membership {
                sessions,
                id,
                watch: Watch::default(),
            },
            thread: thread::thread_number(),
            latch,
        }
    }

    /// What the threads of this process share of the region.
    pub fn sessions(&self) -> &Arc<Sessions> {
        &self.member.sessions
    }

    /// The session's number in its process.
    pub fn number(&self) -> u64 {
        self.member.id
    }

    /// Whether the region is accessible inside only.
    #[inline(always)]
    pub fn has_gate(&self) -> bool {
        self.latch.is_on()
    }

    /// A caller's key, copied to the room: every verb goes by that copy. It has a length that a key can have.
    #[inline(always)]
    pub fn key<'r>(&self, given: &[u8], room: &'r mut KeyRoom) -> Key<'r> {
        self.inner.region().mapped().key(given, room)
    }

    /// To be called before every use: checks that the process is the one that attached, and that the calling thread is
    /// known.
    #[inline(always)]
    pub fn ready(&mut self) -> Result<(), WriteError> {
        if self.is_ready() { Ok(()) } else { self.arrive() }
    }

    #[inline(always)]
    pub fn is_ready(&self) -> bool {
        thread::thread_number_if_known() == self.thread && self.is_here()
    }

    /// Whether this is the process that attached.
    #[inline(always)]
    pub fn is_here(&self) -> bool {
        self.member.is_here()
    }

    #[cold]
    fn arrive(&mut self) -> Result<(), WriteError> {
        if !self.member.is_here() {
            return Err(WriteError::Detached);
        }
        let _uncancelled = Uncancelled::new();
        if !self.member.move_here() {
            // The thread that used the session last has ended, and its slot was given back.
            self.inner.abandon();
            take_slot(&mut self.inner, &mut self.member)?;
        }
        self.thread = thread::thread_number();
        Ok(())
    }

    /// Works on the region, inside the gate; this is no verb.
    pub fn inside<R>(&self, work: impl FnOnce(&Session) -> R) -> R {
        let _inside = self.latch.open();
        work(&self.inner)
    }

    /// The session, without a gate: for what does not access the region's mapping, or is known to have none.
    #[inline(always)]
    pub fn session(&self) -> &Session {
        &self.inner
    }

    /// Now, on the region's clock; inside the gate.
    #[inline]
    pub fn tick(&mut self) -> u32 {
        RegionTime(&mut self.member).tick()
    }

    /// Begins a verb that may change the region, by what the caller has in this place; the caller ends it. The session has its thread slot, and
    /// changes can be counted if they are to be.
    #[inline(always)]
    pub fn begin_change(&mut self, place: Bytes<'_>) -> Result<(Call<'_>, &mut Session, RegionTime<'_>), WriteError> {
        let call = self.latch.begin_verb([place, &[]]);
        match prepare(&mut self.inner, &mut self.member) {
            Ok(()) => Ok((call, &mut self.inner, RegionTime(&mut self.member))),
            Err(error) => {
                call.end();
                Err(error)
            }
        }
    }

    /// A verb that changes nothing but counters: inside the gate, at the region's time.
    pub fn verb<R>(&mut self, work: impl FnOnce(&mut Session, u32) -> R) -> R {
        let verb = self.latch.begin_verb([&[]; 2]);
        let now = self.member.tick();
        let done = work(&mut self.inner, now);
        verb.end();
        done
    }

    /// Work of a session that is not a verb. Without a thread slot there is nothing that it could do.
    pub fn work<R>(&mut self, work: impl FnOnce(&mut Session, u32) -> R) -> Option<R> {
        let _inside = self.latch.open();
        let now = self.tick();
        let has_slot = !self.inner.is_fenced() || aside(|| take_slot(&mut self.inner, &mut self.member)).is_ok();
        has_slot.then(|| work(&mut self.inner, now))
    }

    /// One attempt at a get by the fast path. `hit`, which is this crate's, may run inside.
    #[inline(always)]
    pub fn get_fast<S: Sink, R>(
        &mut self,
        key: Key<'_>,
        how: &Get,
        sink: &mut S,
        hit: impl FnOnce(Item) -> R,
    ) -> Option<Option<R>> {
        let Some(reach) = sink.reach() else {
            // Other code does not run inside.
            if self.is_special {
                return None;
            }
            return self.inner.get_fast(key, how, RegionTime(&mut self.member), sink, hit);
        };
        let verb = if self.is_special {
            cold_path();
            if !self.inner.has_fast_path() {
                return None;
            }
            self.latch.begin_verb(reach)
        } else {
            self.latch.no_gate()
        };
        self.inner
            .get_and_leave(key, how, RegionTime(&mut self.member), sink, || verb.end(), hit)
    }

    /// A get that changes nothing, by the slow path.
    pub fn get_slow<S: Sink>(&mut self, key: Key<'_>, how: &Get, sink: &mut S) -> Result<Option<Item>, WriteError> {
        let verb = self.latch.begin_verb(sink.reach().unwrap_or_default());
        let found = match self.inner.get_watched(key, how, RegionTime(&mut self.member), sink) {
            Some(found) => Ok(found),
            None => {
                let now = self.member.tick();
                self.inner.get_slow(key, how, now, sink)
            }
        };
        verb.end();
        found
    }

    /// A get that may change its item.
    pub fn get_and_change<S: Sink>(&mut self, key: Key<'_>, how: &Get, sink: &mut S) -> Result<Option<Item>, WriteError> {
        let (call, session, now) = self.begin_change(&[])?;
        let found = session.get_slow(key, how, now.at(), sink);
        call.end();
        found
    }

    /// For a change by the fast path: without a gate, with a thread slot. `None`: not possible.
    #[inline(always)]
    pub fn fast(&mut self) -> Option<(&mut Session, RegionTime<'_>)> {
        let is_common = self.is_ready() && !self.latch.is_on() && !self.inner.is_fenced();
        is_common.then_some((&mut self.inner, RegionTime(&mut self.member)))
    }

    /// To be called before a verb with this exptime. A Unix time is translated by the process's own wall clock, as it is
    /// now.
    #[inline]
    pub fn translate_exptime(&mut self, exptime: i64) {
        if exptime > RELATIVE_EXPTIME_MAX {
            self.read_wall_clock();
        }
    }

    #[cold]
    fn read_wall_clock(&mut self) {
        let now = self.member.sessions.now_by_own_wall();
        let _inside = self.latch.open();
        self.inner.set_wall_clock(now);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if self.member.is_here() && self.member.move_here() {
            let _inside = self.latch.open();
            self.inner.end();
        } else {
            self.inner.abandon();
        }
    }
}

/// The region's time: the clock is asked only if an item has an expiry, and otherwise every so many calls.
pub struct RegionTime<'w>(&'w mut Membership);

impl RegionTime<'_> {
    /// The tick of a verb's time.
    pub fn at(mut self) -> u32 {
        self.tick()
    }
}

impl Now for RegionTime<'_> {
    #[inline(always)]
    fn tick(&mut self) -> u32 {
        self.0.tick()
    }

    #[inline(always)]
    fn recent(&mut self, noted: u64) -> u32 {
        match self.0.watch.recent(noted) {
            Some(tick) => tick,
            None => ask_clock(self.0),
        }
    }
}

/// The region's tick, which is recent for the next calls.
#[cold]
#[inline(never)]
fn ask_clock(member: &mut Membership) -> u32 {
    let tick = member.tick();
    let seen = member.region().clock().seen().0;
    member.watch.has_asked(seen);
    tick
}

/// To be called before a change, inside the gate: makes sure that the session has its thread slot, and that the change
/// can be counted if changes are to be counted.
#[inline(always)]
fn prepare(inner: &mut Session, member: &mut Membership) -> Result<(), WriteError> {
    if inner.is_fenced() {
        aside(|| take_slot(inner, member))?;
    }
    if !inner.counting().knows_door() {
        // If this does not succeed, the verb reports it.
        aside(|| kernel::follow_door(&member.sessions));
    }
    Ok(())
}

/// The session was fenced: another process took this process for dead. The session gives its thread slot back, and takes
/// another one.
#[cold]
#[inline(never)]
fn take_slot(inner: &mut Session, member: &mut Membership) -> Result<(), WriteError> {
    let _uncancelled = Uncancelled::new();
    member.sessions.inside(|_| inner.end());
    member.sessions.leave(member.id);
    member.sessions.liveness().regain();
    let (mut fresh, id) = member.sessions.hire().ok_or(WriteError::Detached)?;
    fresh.set_wall_clock_like(inner);
    std::mem::swap(inner, &mut *fresh);
    member.id = id;
    Ok(())
}

/// A session's entry in its process's list.
struct Membership {
    sessions: Arc<Sessions>,
    id: u64,
    /// what the session knows of the region's clock
    watch: Watch,
}

impl Membership {
    #[inline(always)]
    fn is_here(&self) -> bool {
        self.sessions.is_here()
    }

    #[inline(always)]
    fn region(&self) -> &Region {
        self.sessions.region_inside()
    }

    #[inline(always)]
    fn tick(&mut self) -> u32 {
        let Self { watch, sessions, .. } = self;
        watch.tick(
            clock::coarse_ns(),
            || clock::read(sessions.region_inside(), sessions.now()),
            |now| sessions.region_inside().clock().note_use(now),
        )
    }

    fn move_here(&self) -> bool {
        self.sessions.move_here(self.id)
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        // In a forked child, a thread that the child does not have may hold the list's lock.
        if self.is_here() {
            self.sessions.leave(self.id);
        }
    }
}
