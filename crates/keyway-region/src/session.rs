//! A session: a thread attached to the region, with its share of each room.
//!
//! A session is made by [`Region::session`] for a process that holds a process slot, and used by one thread at a time. Its
//! thread slot records what it is doing, so that any thread can finish or undo that if this one dies.

use crate::atomics::Relaxed;
use crate::changes::Counting;
use crate::hash::{Key, Keyed};
use crate::hot::Sampling;
use crate::index::Changer;
use crate::layout::flight::Holder;
use crate::layout::latency::{Door, Latency, Verb, bucket_of};
use crate::layout::stats::Counter;
use crate::log::Appender;
use crate::mapped::Mapped;
use crate::memory::KeyRoom;
use crate::reclaim::Reclaimer;
use crate::region::Region;
use crate::threads::{Process, SessionId, Thread};
use crate::verbs::WriteError;
use crate::watch::Emitter;
use std::sync::Arc;

/// A thread's access to the region. Its own state is in cells, so that its methods can borrow the region meanwhile.
pub struct Session {
    pub(crate) region: Arc<Region>,
    /// the Unix time in seconds, by the caller's wall clock, at which the region's clock is 0
    pub(crate) unix_at_zero_s: i64,
    /// how it changes keys, and makes room for that
    reclaimer: Reclaimer,
    is_abandoned: bool,
    /// which of its operations are samples
    sampling: Sampling,
}

impl Region {
    /// Takes a free thread slot for a thread of this process. `None`: all are taken.
    pub fn session(self: &Arc<Self>, process: Process) -> Option<Session> {
        self.session_among(self.mapped().layout().shape.thread_slots, process)
    }

    /// Takes a free one of the first `slots` thread slots for a thread of this process
    /// ([`crate::layout::plan::Shape::thread_slots_for`]). `None`: all of these are taken.
    pub fn session_among(self: &Arc<Self>, slots: usize, process: Process) -> Option<Session> {
        let number = u32::try_from(process.slot).ok()?;
        let thread = self.threads().take(slots, number, process.incarnation)?;
        let owner = thread.owner();
        self.watch().count_unwatched(owner.slot.into());
        let seen = self.clock().seen();
        let index = Changer::new(
            self.index(),
            self.clock(),
            Appender::new(&thread, self.directory(), self.segments(), self.ghosts(), self.uniques()),
            self.flights(),
            Counting::new(self.mapped(), self.changes(), &thread),
            Emitter::new(self.watch(), &thread, process.slot),
        );
        let session = Session {
            region: Arc::clone(self),
            unix_at_zero_s: i64::from(seen.unix_s()) - i64::from(seen.clock_s()),
            reclaimer: Reclaimer::new(self.victims(), self.recovery(), index),
            is_abandoned: false,
            sampling: Sampling::new(self.hot(), self.trail(), self.mapped().hasher(), owner),
        };
        session.emitter().emit_connection(b"type=session_new");
        Some(session)
    }
}

impl Session {
    /// The region's mapped bytes.
    #[inline(always)]
    pub(crate) fn mapped(&self) -> &Mapped {
        self.log().mapped()
    }

    /// How it makes room.
    #[inline(always)]
    pub(crate) fn reclaimer(&self) -> &Reclaimer {
        &self.reclaimer
    }

    /// How it changes keys.
    #[inline(always)]
    pub(crate) fn index(&self) -> &Changer {
        self.reclaimer.index()
    }

    /// Its end of the log.
    #[inline(always)]
    pub(crate) fn log(&self) -> &Appender {
        self.index().publisher().log()
    }

    /// The thread's slot.
    #[inline(always)]
    pub(crate) fn thread(&self) -> &Thread {
        self.log().thread()
    }

    /// Whether the session is suspected to be dead, or its slot was taken back: then it starts no operation.
    #[inline(always)]
    pub fn is_fenced(&self) -> bool {
        self.thread().is_fenced()
    }

    /// Which of its operations are samples.
    #[inline(always)]
    pub fn sampling(&self) -> &Sampling {
        &self.sampling
    }

    /// Where it emits events for watchers.
    #[inline(always)]
    pub fn emitter(&self) -> &Emitter {
        self.index().publisher().emitter()
    }

    /// How its changes are counted.
    #[inline(always)]
    pub fn counting(&self) -> &Counting {
        self.index().publisher().counting()
    }

    /// The region.
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// The key with its hash, if a key can have this length: a caller's bytes are copied to the room.
    #[inline(always)]
    pub(crate) fn key<'r>(&self, key: impl Keyed + 'r, room: &'r mut KeyRoom) -> Result<Key<'r>, WriteError> {
        key.keyed(self.mapped().hasher(), room)
    }

    /// Notes that an operation of this session took so long.
    pub fn note_latency(&self, door: Door, verb: Verb, ns: u64) {
        let Some(row) = self
            .region
            .latencies()
            .latency_row(usize::from(self.thread().owner().slot), door, verb)
        else {
            return;
        };
        if let Some(count) = row.counts.get(bucket_of(ns)) {
            // Not as a single writer: another session may share the page.
            count.fetch_add(1, Relaxed);
        }
        row.sum_ns.fetch_add(ns, Relaxed);
    }

    /// Adds operations that were counted elsewhere.
    pub fn add_latency(&self, door: Door, verb: Verb, counted: &Latency) {
        let Some(row) = self
            .region
            .latencies()
            .latency_row(usize::from(self.thread().owner().slot), door, verb)
        else {
            return;
        };
        for (sum, count) in row.counts.iter().zip(counted.counts) {
            if count > 0 {
                sum.fetch_add(count, Relaxed);
            }
        }
        row.sum_ns.fetch_add(counted.sum_ns, Relaxed);
    }

    /// Takes a counted miss back: the get that has found nothing is executed again, and is counted then.
    pub fn uncount_miss(&self) {
        self.thread().count(Counter::get_misses, u64::MAX);
    }

    /// As who it computes.
    pub fn holder(&self) -> Holder {
        Holder::of(self.thread().owner())
    }

    /// The session's thread slot and incarnation.
    pub fn id(&self) -> SessionId {
        SessionId(self.thread().owner())
    }

    /// Ends the session without a write, because its thread slot has another tenant, or its mapping is gone.
    pub fn abandon(&mut self) {
        self.is_abandoned = true;
    }

    /// Gives back everything that the session holds in the region. It does not touch the region after this.
    pub fn end(&mut self) {
        if std::mem::replace(&mut self.is_abandoned, true) {
            return;
        }
        if !self.thread().holds_its_slot() {
            // It was taken back as certainly dead, though this session is still running: its extents and claims belong to others now.
            return;
        }
        self.emitter().emit_connection(b"type=session_close");
        // Before the slot is vacant: an extent is closed by a plain store, and its segment may have another owner after that.
        self.reclaimer().release_extents();
        let uncounted = self.thread().slot().items.swap(0, Relaxed);
        self.mapped().superblock().items.fetch_add(uncounted, Relaxed);
        self.thread().leave_slot();
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.end();
    }
}
