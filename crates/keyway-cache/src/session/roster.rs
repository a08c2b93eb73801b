//! The sessions of one process in one region: which session has which thread slot, and which sessions belong to threads
//! that have ended without giving them back.
//!
//! A thread may end while its session still exists, forgotten or held by other code. This process then gives the slot
//! back, during upkeep and when slots run out. A session may move between threads. At its first use in another thread it
//! becomes that thread's session, under the same lock, so no slot is given back while it is in use. A session whose slot
//! was given back before its next use gets another slot.

use crate::clock::Clock;
use crate::file::liveness::Liveness;
use crate::gate::Latch;
use crate::place::Place;
use crate::process::cancel::Uncancelled;
use crate::process::fork::Home;
use crate::process::thread::Thread;
use crate::remote::peer::Peer;
use keyway_region::layout::latency::Door;
use keyway_region::layout::session::Entrance;
use keyway_region::{Key, KeyRoom, Life, Moment, Process, Region, SessionId};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Number of threads that one upkeep asks about.
const ASKED: usize = 16;

/// What this process may do.
pub(crate) enum Role {
    /// everything: it has this process slot
    Writer(Process),
    /// only read: a server executes its writes
    Reader(Arc<Peer>),
}

/// See the top of the file.
pub(crate) struct Sessions {
    liveness: Arc<Liveness>,
    region: Arc<Region>,
    role: Role,
    /// thread slots that its threads may take: those with lower numbers than this
    slots: usize,
    /// one thread of this process serves many clients, so it never waits
    is_server: bool,
    /// the door of its calls; `None`: a server, which measures requests itself
    door: Option<Door>,
    home: Home,
    /// where the region is
    place: Place,
    latch: Latch,
    /// the boot clock as this process sees it
    clock: Clock,
    members: Mutex<Members>,
}

#[derive(Default)]
struct Members {
    list: Vec<Member>,
    /// the session to ask about next
    next: usize,
    last_id: u64,
}

struct Member {
    id: u64,
    session_id: SessionId,
    thread: Thread,
    /// another thread has its number now, so the thread has ended
    has_ended: bool,
}

impl Members {
    /// This thread exists. So threads that had its number before have ended.
    fn succeed(&mut self, thread: Thread) {
        for member in &mut self.list {
            member.has_ended |= member.thread.is_succeeded_by(thread);
        }
    }
}

impl Sessions {
    pub(crate) fn new(
        region: Arc<Region>,
        liveness: Arc<Liveness>,
        role: Role,
        (slots, entrance): (usize, Entrance),
        latch: Latch,
        clock: Clock,
        place: Place,
    ) -> Self {
        Self {
            liveness,
            region,
            role,
            slots,
            is_server: entrance == Entrance::Server,
            door: match entrance {
                Entrance::Library => Some(Door::Library),
                Entrance::DropIn => Some(Door::DropIn),
                Entrance::Server => None,
            },
            home: Home::new(),
            place,
            latch,
            clock,
            members: Mutex::default(),
        }
    }

    /// Whether this is the process that attached, and not a forked child of it.
    #[inline(always)]
    pub(crate) fn is_here(&self) -> bool {
        self.home.is_here()
    }

    /// Whether this process serves many clients with a thread, so that it never waits.
    pub(crate) fn is_server(&self) -> bool {
        self.is_server
    }

    /// The door of its calls; `None`: a server, which measures requests itself.
    pub(crate) fn door(&self) -> Option<Door> {
        self.door
    }

    /// Where the region is.
    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    /// The gate of the region's mapping.
    pub(crate) fn latch(&self) -> Latch {
        self.latch
    }

    /// What this process may do.
    pub(crate) fn role(&self) -> &Role {
        &self.role
    }

    /// A caller's key, copied to the room: every verb goes by that copy.
    pub(crate) fn key<'r>(&self, given: &[u8], room: &'r mut KeyRoom) -> Key<'r> {
        self.region.mapped().key(given, room)
    }

    /// Whether this process may only read.
    pub(crate) fn is_reader(&self) -> bool {
        matches!(self.role, Role::Reader(_))
    }

    /// The region, unless this is a forked child of the process that attached.
    pub(crate) fn region(&self) -> Option<&Region> {
        self.is_here().then_some(&*self.region)
    }

    /// The region, for a caller that is inside, or uses nothing of its mapping; and not in a forked child.
    #[inline(always)]
    pub(crate) fn region_inside(&self) -> &Region {
        &self.region
    }

    /// Works on the region, inside the gate, unless this is a forked child.
    pub(crate) fn here<R>(&self, work: impl FnOnce(&Region) -> R) -> Option<R> {
        let _inside = self.latch.open();
        self.region().map(work)
    }

    /// What `work` says of the region; in a forked child: the default.
    pub(crate) fn view<R: Default>(&self, work: impl FnOnce(&Region) -> R) -> R {
        self.here(work).unwrap_or_default()
    }

    /// What is known of which processes live.
    pub(crate) fn liveness(&self) -> &Liveness {
        &self.liveness
    }

    /// Whether a process has this process slot, as far as this one knows.
    pub(crate) fn is_there(&self, region: &Region, slot: usize) -> bool {
        match self.role {
            // This process has no lock of its own, which would show whether locks can be queried.
            Role::Reader(_) => self.liveness.seems_there(&region.mapped().tenant(slot)),
            Role::Writer(_) => region.mapped().life(slot) != Life::Dead,
        }
    }

    /// Now, by the clocks of this process.
    pub(crate) fn now(&self) -> Moment {
        self.clock.now()
    }

    /// Now, with the time of the process's own wall clock.
    pub(crate) fn now_by_own_wall(&self) -> Moment {
        self.clock.now_by_own_wall()
    }

    /// CLOCK_MONOTONIC as the kernel program sees it.
    pub(crate) fn monotonic(&self) -> Duration {
        self.clock.monotonic()
    }

    /// A session of the region for the calling thread, and its number here. `None`: every slot belongs to a living
    /// thread. It is on the heap, because a session has some kilobytes and a thread may have a small stack.
    pub(crate) fn hire(&self) -> Option<(Box<keyway_region::Session>, u64)> {
        let Role::Writer(process) = self.role else {
            return None;
        };
        let session = self.take_slot(process).or_else(|| {
            let found = self.inside(|region| region.recovery().recover()) + self.dismiss_ended(usize::MAX);
            (found > 0).then(|| self.take_slot(process))?
        })?;
        let thread = Thread::current();
        let mut members = self.members();
        members.succeed(thread);
        members.last_id += 1;
        let id = members.last_id;
        members.list.push(Member {
            id,
            session_id: session.id(),
            thread,
            has_ended: false,
        });
        Some((session, id))
    }

    #[inline(never)]
    fn take_slot(&self, process: Process) -> Option<Box<keyway_region::Session>> {
        self.inside(|_| self.region.session_among(self.slots, process)).map(Box::new)
    }

    /// Makes the session the calling thread's. `false`: its slot has been given back.
    pub(crate) fn move_here(&self, id: u64) -> bool {
        let thread = Thread::current();
        let mut members = self.members();
        members.succeed(thread);
        let member = members.list.iter_mut().find(|member| member.id == id);
        member.is_some_and(|member| {
            (member.thread, member.has_ended) = (thread, false);
            true
        })
    }

    /// The session has given its slot back.
    pub(crate) fn leave(&self, id: u64) {
        self.members().list.retain(|member| member.id != id);
    }

    /// Gives back the slots of threads that have ended, and asks about at most `count` sessions. Returns how many slots.
    pub(crate) fn dismiss_ended(&self, count: usize) -> usize {
        let Role::Writer(process) = self.role else { return 0 };
        // A cancelled thread would leave the list locked.
        let _uncancelled = Uncancelled::new();
        let mut members = self.members();
        let mut found = 0;
        for _ in 0..count.min(members.list.len()) {
            let at = members.next % members.list.len().max(1);
            match members.list.get(at) {
                Some(member) if member.has_ended || member.thread.has_ended() => {
                    self.inside(|region| region.recovery().take_back_own(process, member.session_id));
                    members.list.swap_remove(at);
                    found += 1;
                }
                Some(_) => members.next = at + 1,
                None => break,
            }
        }
        found
    }

    /// Works on the region, inside the gate.
    pub(crate) fn inside<R>(&self, work: impl FnOnce(&Region) -> R) -> R {
        let _inside = self.latch.open();
        work(&self.region)
    }

    /// What a process does for itself from time to time.
    pub(crate) fn upkeep(&self) {
        self.dismiss_ended(ASKED);
        // Blocks that a copy of the file was given since are copied before the disk is full, and not when they are written.
        if let Some(why) = self.liveness.claim_blocks() {
            log::warn!("{}: {why}", self.place);
        }
    }

    fn members(&self) -> MutexGuard<'_, Members> {
        // No panic can come while the list is being changed, so the list is always whole.
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Sessions {
    fn drop(&mut self) {
        // Every session has ended, because each session holds a reference to this.
        if let Role::Writer(process) = self.role
            && self.home.is_here()
        {
            self.inside(|region| region.recovery().detach(process));
        }
    }
}
