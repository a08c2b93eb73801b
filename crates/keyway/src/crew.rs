//! The sessions of one process in one region: who has which thread slot, and which of them have ended without a word.
//!
//! A thread may end and leave its session behind, forgotten or in somebody else's hands. Its slot is given back by this
//! process, from upkeep and when slots run out. A session may move between threads; the first use in another thread makes it
//! that thread's, under the same lock, so that nobody's slot is taken while it is in use. A session whose slot was given back
//! before its next use gets another one.

use crate::Place;
use crate::fork::Home;
use crate::gate::Latch;
use crate::peer::Peer;
use crate::presence::Thread;
use keyway_region::{Limits, Process, Region, Seat};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Threads that one upkeep asks about.
const ASKED: usize = 16;

/// What this process may do.
pub(crate) enum Standing {
    /// all: it has this process slot
    Writer(Process),
    /// read; what it writes, a server writes for it
    Reader(Peer),
}

/// See the top of the file.
pub(crate) struct Crew {
    pub(crate) region: Arc<Region>,
    pub(crate) standing: Standing,
    pub(crate) limits: Limits,
    pub(crate) home: Home,
    /// where the region is
    pub(crate) place: Place,
    pub(crate) latch: Latch,
    members: Mutex<Members>,
}

#[derive(Default)]
struct Members {
    list: Vec<Member>,
    /// where to ask next
    next: usize,
    last_id: u64,
}

struct Member {
    id: u64,
    seat: Seat,
    thread: Thread,
}

impl Crew {
    pub(crate) fn new(region: Arc<Region>, standing: Standing, limits: Limits, home: Home, latch: Latch, place: Place) -> Self {
        Self {
            region,
            standing,
            limits,
            home,
            place,
            latch,
            members: Mutex::default(),
        }
    }

    /// A session of the region for the calling thread, and its number here. `None`: every slot belongs to a living thread.
    pub(crate) fn hire(&self) -> Option<(keyway_region::Session, u64)> {
        let Standing::Writer(process) = self.standing else {
            return None;
        };
        let take = || self.inside(|_| self.region.session(process, self.limits));
        let session = take().or_else(|| {
            let found = self.inside(Region::recover) + self.dismiss_ended(usize::MAX);
            (found > 0).then(take)?
        })?;
        let mut members = self.members();
        members.last_id += 1;
        let id = members.last_id;
        members.list.push(Member {
            id,
            seat: session.seat(),
            thread: Thread::current(),
        });
        Some((session, id))
    }

    /// The session is the calling thread's from now on. `false`: its slot has been given back.
    pub(crate) fn move_here(&self, id: u64) -> bool {
        let mut members = self.members();
        let member = members.list.iter_mut().find(|member| member.id == id);
        member.is_some_and(|member| {
            member.thread = Thread::current();
            true
        })
    }

    /// The session has given its slot back.
    pub(crate) fn leave(&self, id: u64) {
        self.members().list.retain(|member| member.id != id);
    }

    /// Gives back the slots of threads that have ended, as far as `count` sessions are asked about; how many.
    pub(crate) fn dismiss_ended(&self, count: usize) -> usize {
        let Standing::Writer(process) = self.standing else { return 0 };
        let mut members = self.members();
        let mut found = 0;
        for _ in 0..count.min(members.list.len()) {
            let at = members.next % members.list.len().max(1);
            match members.list.get(at) {
                Some(member) if member.thread.has_ended() => {
                    self.inside(|region| region.take_back_own(process, member.seat));
                    members.list.swap_remove(at);
                    found += 1;
                }
                Some(_) => members.next = at + 1,
                None => break,
            }
        }
        found
    }

    /// Work on the region.
    pub(crate) fn inside<R>(&self, work: impl FnOnce(&Region) -> R) -> R {
        let _inside = self.latch.open();
        work(&self.region)
    }

    /// What a process does for itself once in a while.
    pub(crate) fn upkeep(&self) {
        self.dismiss_ended(ASKED);
    }

    fn members(&self) -> MutexGuard<'_, Members> {
        // A list is whole whenever a panic can come.
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
