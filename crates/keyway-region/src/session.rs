//! A session: a thread attached to the region, with its share of each room.
//!
//! A session is made by [`Region::session`] for a process that holds a process slot, and used by one thread at a time. Its
//! thread slot records what it is doing, so that any thread can finish or undo that if this one dies.

use crate::atomics::Relaxed;
use crate::changes::Counting;
use crate::hash::{Key, Keyed};
use crate::hot::Sampling;
use crate::layout::bucket::Table;
use crate::layout::latency::{Door, Latency, Verb, bucket_of};
use crate::layout::segment::{Owner, Stream};
use crate::layout::session::ThreadSlot;
use crate::layout::slot::Slot;
use crate::layout::stats::Counters;
use crate::log::{Leased, Steps, Supply, Verified, dead_factor};
use crate::mapped::Mapped;
use crate::memory::KeyRoom;
use crate::reclaim::{self, Reclaim};
use crate::region::Region;
use crate::threads::Thread;
use crate::verbs::WriteError;
use crate::watch::Emitter;
use std::cell::{Cell, RefCell};
use std::sync::Arc;

/// Changes of the item count that a session collects before it adds them to the superblock's.
const ITEMS_BATCH: u64 = 64;

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

/// A thread's access to the region. Its own state is in cells, so that its methods can borrow the region meanwhile.
pub struct Session {
    pub(crate) region: Arc<Region>,
    /// the region's mapped bytes
    pub(crate) mapped: Arc<Mapped>,
    /// the Unix time in seconds, by the caller's wall clock, at which the region's clock is 0
    pub(crate) unix_at_zero_s: i64,
    pub(crate) thread: Thread,
    pub(crate) extents: [Leased; Stream::MAX],
    /// which CAS uniques may follow those that it has given
    pub(crate) steps: Steps,
    /// in a region with checksums: a buffer for copies during a reclaim
    pub(crate) scratch: Cell<Vec<u8>>,
    /// in a region with checksums: the item of the present operation
    pub(crate) verified: Verified,
    /// a buffer for values that an operation builds
    pub(crate) built: RefCell<Vec<u8>>,
    is_abandoned: bool,
    /// the table as its word was last
    pub(crate) table: Cell<Table>,
    /// the word of the present operation's item, as long as its hazard pointer stands
    pub(crate) held: Cell<Slot>,
    /// bytes of the last long value that it got
    pub(crate) long_len: Cell<usize>,
    /// how it draws which dead items it counts
    pub(crate) dead_factor: u64,
    /// which of its operations are samples
    sampling: Sampling,
    /// where it emits events for watchers
    pub(crate) emitter: Emitter,
    /// what it is about to reclaim
    pub(crate) reclaim: Reclaim,
    /// where its segments come from when none is free
    pub(crate) supply: Supply,
    /// the segment whose pages it looks at next, to give them back
    pub(crate) given_back_next: Cell<usize>,
    /// how its changes are counted
    pub(crate) counting: Counting,
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
        let session = Session {
            region: Arc::clone(self),
            mapped: Arc::clone(self.mapped()),
            unix_at_zero_s: i64::from(seen.unix_s()) - i64::from(seen.clock_s()),
            extents: [const { Leased::none() }; Stream::MAX],
            steps: Steps::default(),
            scratch: Cell::default(),
            verified: Verified::default(),
            built: RefCell::default(),
            is_abandoned: false,
            table: Cell::new(self.directory().table()),
            held: Cell::new(Slot::EMPTY),
            long_len: Cell::new(usize::MAX),
            dead_factor: dead_factor(self.mapped().layout().shape.segment_size),
            sampling: Sampling::new(self.hot(), self.trail(), self.mapped().hasher(), owner),
            emitter: Emitter::new(self.watch(), &thread, process.slot),
            reclaim: Reclaim::default(),
            supply: reclaim::SUPPLY,
            given_back_next: Cell::new(0),
            counting: Counting::new(self.mapped(), self.changes(), &thread),
            thread,
        };
        session.emitter.emit_connection(b"type=session_new");
        Some(session)
    }

    /// The counters of one thread slot: what this session and the slot's earlier tenants have counted.
    pub fn counters_of(&self, id: SessionId) -> Counters {
        let mut counters = Counters::default();
        let slot = usize::from(id.0.slot);
        if slot < self.mapped().layout().shape.thread_slots {
            self.mapped().thread(slot).add_counters_to(&mut counters);
        }
        counters
    }
}

impl Session {
    /// Whether the session is suspected to be dead, or its slot was taken back: then it starts no operation.
    #[inline(always)]
    pub fn is_fenced(&self) -> bool {
        self.thread.is_fenced()
    }

    /// Which of its operations are samples.
    #[inline(always)]
    pub fn sampling(&self) -> &Sampling {
        &self.sampling
    }

    /// Where it emits events for watchers.
    #[inline(always)]
    pub fn emitter(&self) -> &Emitter {
        &self.emitter
    }

    /// How its changes are counted.
    #[inline(always)]
    pub fn counting(&self) -> &Counting {
        &self.counting
    }

    /// Whether this thread's own operation uses exactly this item. It may evict other items of the segment, if the segment then
    /// stays where it is.
    pub(crate) fn operates_on_item(&self, segment: usize, offset: usize) -> bool {
        self.thread.operates_on(segment) && self.held.get().offset() == offset
    }

    /// The region.
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// The key with its hash, if a key can have this length: a caller's bytes are copied to the room.
    #[inline(always)]
    pub(crate) fn key<'r>(&self, key: impl Keyed + 'r, room: &'r mut KeyRoom) -> Result<Key<'r>, WriteError> {
        key.keyed(self.mapped.hasher(), room)
    }

    /// Notes that an operation of this session took so long.
    pub fn note_latency(&self, door: Door, verb: Verb, ns: u64) {
        let Some(row) = self
            .region
            .latencies()
            .latency_row(usize::from(self.thread.owner().slot), door, verb)
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
            .latency_row(usize::from(self.thread.owner().slot), door, verb)
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

    /// Counts one more, or one less, item in the index. `thread`: the session's thread slot, which the caller has at hand.
    #[inline(always)]
    pub(crate) fn count_items(&self, thread: &ThreadSlot, n: i64) {
        // In the thread slot, so that recovery finds it.
        let uncounted = &thread.items;
        let items = uncounted.load(Relaxed).cast_signed().wrapping_add(n);
        if !(1 - ITEMS_BATCH.cast_signed()..ITEMS_BATCH.cast_signed()).contains(&items) {
            uncounted.store(0, Relaxed);
            self.mapped.superblock().items.fetch_add(items.cast_unsigned(), Relaxed);
        } else {
            uncounted.store(items.cast_unsigned(), Relaxed);
        }
    }

    /// The session's thread slot and incarnation.
    pub fn id(&self) -> SessionId {
        SessionId(self.thread.owner())
    }

    /// Ends the session without a write, because its thread slot has another tenant, or its mapping is gone.
    pub fn abandon(&mut self) {
        self.is_abandoned = true;
    }

    /// Gives up every extent, so that others can use what is left of it, and their segments can be reclaimed. The next write leases new ones.
    pub fn release_extents(&self) {
        self.leave_victim();
        for stream in 0..Stream::MAX {
            self.close_extent(stream);
        }
    }

    /// Gives back everything that the session holds in the region. It does not touch the region after this.
    pub fn end(&mut self) {
        if std::mem::replace(&mut self.is_abandoned, true) {
            return;
        }
        if !self.thread.holds_its_slot() {
            // It was taken back as certainly dead, though this session is still running: its extents and claims belong to others now.
            return;
        }
        self.emitter.emit_connection(b"type=session_close");
        // Before the slot is vacant: an extent is closed by a plain store, and its segment may have another owner after that.
        self.release_extents();
        let uncounted = self.thread.slot().items.swap(0, Relaxed);
        self.mapped.superblock().items.fetch_add(uncounted, Relaxed);
        self.thread.leave_slot();
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.end();
    }
}
