//! Room `watch`: events for watchers of any process.
//!
//! Holds the word that says what is watched, the rings into which sessions write events, and what a watcher makes of them.
//!
//! - While no event is watched, none costs anything: the word that says so is the flush word, which every operation compares. A watcher has
//!   to renew its wish ([`Watch::want_events`]); a killed one is forgotten after [`WATCHED_S`] seconds.
//! - A session writes into a ring of its own, over the oldest events, and waits for no watcher. A session that finds no ring counts the
//!   events that it could not write.
//! - The events of the changes of a key are printed in the order in which the changes were published. A session draws a *stamp*, a number
//!   that only rises, after it has read what its change replaces, and before the compare-and-swap that publishes the change. A later change
//!   of the key has read what this one has published, so its stamp is greater. Before it draws, a session says so in its thread slot, so that
//!   a watcher prints no greater stamp before the event is in the ring ([`Watching`]). A look-up that changes nothing
//!   gets its stamp when its event is written, so an operation that began after another one had ended is printed after that. As long as no
//!   other session has drawn a stamp since, look-ups share the session's last one, in the session's order.
//!
//! Never: a decision of the cache. Nothing that is read here changes what an operation does.

#[cfg(all(test, feature = "observe"))]
mod late;
mod reader;

pub use reader::{Delivery, Event, Watching};

use crate::atomics::{Acquire, Relaxed, Release, fence};
use crate::clock::{Clock, seconds_of};
use crate::flushes::Flushes;
use crate::layout::latency::Door;
use crate::layout::session::{Entrance, Lease};
use crate::layout::stats::Counter;
use crate::layout::superblock::Superblock;
use crate::layout::watch::{
    ALL, CHANGES, Cell as RingCell, Command, HEAD_WORDS, KINDS, Kind, RINGS, Ring, Status, TEXT_MAX, Tag, cell_at, parts, ring_at,
};
use crate::mapped::Mapped;
use crate::memory::Pinned;
use crate::threads::Thread;
use core::cell::Cell;
use std::sync::Arc;

/// Seconds after which a watcher that does not renew its wish is forgotten.
pub const WATCHED_S: u64 = 10;
/// A wish for longer than this was not written by a watcher.
const WATCHED_MAX_S: u64 = 12 * WATCHED_S;
/// Events that a session without a ring loses before it looks for one again.
const UNTIL_NEXT_TRY: u32 = 1024;

/// A session asks for a cell so many events before it writes it: the watcher, on another processor, has read it.
const ASKED_AHEAD: u64 = 8;

/// Set in an event's flags: the item had been fetched.
const FETCHED: u64 = 1;
/// Set in an event's flags: its stamp is another event's, which comes first.
const AFTER: u64 = 2;

/// What a session knows of its events.
pub struct Emitter {
    watch: Watch,
    thread: Thread,
    /// the process slot
    process: usize,
    /// for a request of a connection: its door, whether it is a meta command, and the connection's descriptor
    request: Cell<Option<(Door, bool, i32)>>,
    ring: Cell<Option<usize>>,
    until_next_try: Cell<u32>,
    /// the present change will emit an event
    is_changing: Cell<bool>,
    /// the stamp that it has drawn last
    last: Cell<Option<u64>>,
    /// the stamp of the last attempt to publish it
    stamp: Cell<Option<u64>>,
    /// the stamp of the last attempt to remove an item that no client has removed
    gone: Cell<Option<u64>>,
    /// what the present change has found
    before: Cell<(Status, usize)>,
}

impl Emitter {
    /// For a session of the process in this slot.
    pub(crate) fn new(watch: &Watch, thread: &Thread, process: usize) -> Self {
        Self {
            watch: watch.clone(),
            thread: thread.clone(),
            process,
            request: Cell::new(None),
            ring: Cell::new(None),
            until_next_try: Cell::new(0),
            is_changing: Cell::new(false),
            last: Cell::new(None),
            stamp: Cell::new(None),
            gone: Cell::new(None),
            before: Cell::default(),
        }
    }

    fn mapped(&self) -> &Mapped {
        &self.watch.mapped
    }

    /// The next operations are those of a connection: it has this descriptor, and they come through this door.
    pub fn serve_as(&self, door: Door, is_meta: bool, descriptor: i32) {
        self.request.set(Some((door, is_meta, descriptor)));
    }

    /// A change of a key begins.
    #[inline]
    pub(crate) fn begin_event(&self) {
        let told = self.watch.wanted() & CHANGES != 0;
        self.is_changing.set(told);
        self.stamp.set(None);
    }

    /// Whether the change that began last emits an event that is not emitted yet.
    #[inline]
    pub(crate) fn is_watched(&self) -> bool {
        self.is_changing.get()
    }

    /// Whether the present request is a meta command.
    pub(crate) fn is_meta(&self) -> bool {
        self.request.get().is_some_and(|(_, is_meta, _)| is_meta)
    }

    /// The length of the value that the present change has found, bytes.
    pub(crate) fn size_before(&self) -> usize {
        self.before.get().1
    }

    /// The present change has found this.
    pub(crate) fn note_before(&self, status: Status, size: usize) {
        self.before.set((status, size));
    }

    /// To be called after what a change replaces was read, and before the change is published.
    #[inline]
    pub(crate) fn stamp_change(&self) {
        if self.is_watched() {
            self.stamp.set(Some(self.draw_stamp()));
        }
    }

    /// Draws the stamp of a change before it is published. Returns `true`, so that it can end a condition.
    #[inline]
    pub(crate) fn stamp_insert(&self) -> bool {
        self.stamp_change();
        true
    }

    /// Draws the stamp of an eviction or expiry, which no client has requested, before it is published.
    #[inline]
    pub(crate) fn stamp_removal(&self) {
        let is_told = self.watch.is_watched(Kind::Eviction.bit() | Kind::Expiry.bit());
        self.gone.set(is_told.then(|| self.draw_stamp()));
    }

    /// It was not removed.
    #[inline]
    pub(crate) fn end_removal(&self) {
        if self.gone.take().is_some() {
            self.end_stamp();
        }
    }

    #[cold]
    fn draw_stamp(&self) -> u64 {
        let (stamps, event) = (&self.watch.superblock.stamps, &self.thread.slot().event);
        if event.load(Relaxed) == 0 {
            event.store(stamps.load(Relaxed).wrapping_add(1), Relaxed);
        }
        // PAIRS: told: the load in `Watching::poll`: a watcher that sees a later stamp sees that this one is on its way.
        let stamp = stamps.fetch_add(1, Release);
        self.last.set(Some(stamp));
        stamp
    }

    /// The event of the last stamp is in the ring, or there is none. Not in the middle of a change, which has a stamp of its own.
    fn end_stamp(&self) {
        if self.stamp.get().is_none() {
            // PAIRS: told: the load in `Watching::poll`: a watcher that sees nothing on its way sees the event.
            self.thread.slot().event.store(0, Release);
        }
    }

    /// The change that began last emits no event: nothing was published.
    fn end_event(&self) {
        self.is_changing.set(false);
        if self.stamp.take().is_some() {
            self.end_stamp();
        }
    }

    /// Emits the event of the change that began last, and of the look-up for it.
    #[cold]
    #[inline(never)]
    pub(crate) fn emit_change(&self, key: &[u8], done: Option<Done>) {
        let (status, size) = self.before.get();
        let stamp = self.stamp.get().map_or(Mark::Next, Mark::Drawn);
        self.tell(&Entry {
            command: done.map_or(Command::Get, |done| done.command),
            status,
            size,
            stamp,
            ..Entry::new(Kind::Fetch, key)
        });
        if let Some(done) = done {
            self.tell(&Entry {
                command: done.command,
                status: done.status,
                size: done.size,
                ttl_s: done.ttl_s,
                cas: done.cas,
                stamp,
                ..Entry::new(done.kind, key)
            });
        }
        self.end_event();
    }

    /// Tells a store that was refused before anything was looked up.
    #[cold]
    #[inline(never)]
    pub(crate) fn emit_refused(&self, key: &[u8], command: Command, size: usize) {
        self.tell(&Entry {
            command,
            status: Status::TooLarge,
            size,
            ..Entry::new(Kind::Mutation, key)
        });
    }

    /// Tells a look-up that changes nothing.
    #[inline]
    pub(crate) fn emit_fetch(&self, key: &[u8], status: Status, size: usize, cas: u64) {
        if self.watch.is_watched(Kind::Fetch.bit()) {
            self.tell(&Entry {
                command: Command::Get,
                status,
                size,
                cas,
                stamp: Mark::LastOrNext,
                ..Entry::new(Kind::Fetch, key)
            });
        }
    }

    /// Tells that an item was removed although no client has removed it; between [`Self::stamp_removal`] and the next operation.
    pub(crate) fn emit_removal(&self, kind: Kind, fetched: bool, (size, ttl_s, idle_s): (usize, i64, u32), cas: u64, key: &[u8]) {
        if let Some(stamp) = self.gone.take() {
            self.tell(&Entry {
                size,
                ttl_s,
                idle_s,
                fetched,
                cas,
                stamp: Mark::Drawn(stamp),
                ..Entry::new(kind, key)
            });
            self.end_stamp();
        }
    }

    /// Whether the removal of the last item emits an event.
    pub(crate) fn emits_removals(&self) -> bool {
        self.gone.get().is_some()
    }

    /// Emits the event of a flush of everything.
    pub(crate) fn emit_flush(&self) {
        if self.watch.is_watched(Kind::Update.bit()) {
            self.tell(&Entry::new(Kind::Update, b"type=flush_all"));
        }
    }

    /// Whether the begin and end of connections emit events.
    pub fn emits_connections(&self) -> bool {
        self.watch.is_watched(Kind::Connection.bit())
    }

    /// Emits the event that a connection, or a session, begins or ends: `text` begins with `type=`.
    pub fn emit_connection(&self, text: &[u8]) {
        if self.emits_connections() {
            self.tell(&Entry::new(Kind::Connection, text));
        }
    }

    #[cold]
    #[inline(never)]
    fn tell(&self, entry: &Entry<'_>) {
        if !self.watch.is_wanted(entry.kind) {
            return;
        }
        // A fenced session may have given its thread slot back: then its word for the coming event is the next tenant's.
        let ring = if self.thread.holds_its_slot() { self.own_ring() } else { None };
        let Some(ring) = ring else {
            return self.thread.count(Counter::events_lost, 1);
        };
        let is_drawn = match entry.stamp {
            Mark::Drawn(stamp) => return self.write_event(ring, entry, (stamp, false)),
            Mark::Next => false,
            Mark::LastOrNext => self
                .last
                .get()
                .is_some_and(|last| last.wrapping_add(1) == self.stamps_drawn()),
        };
        match self.last.get().filter(|_| is_drawn) {
            // What the look-up has found was stamped before it was published, so its stamp is no greater than this one.
            Some(last) => self.write_event(ring, entry, (last, true)),
            None => {
                let stamp = self.draw_stamp();
                self.write_event(ring, entry, (stamp, false));
                self.end_stamp();
            }
        }
    }

    /// How many stamps were drawn.
    fn stamps_drawn(&self) -> u64 {
        self.watch.superblock.stamps.load(Relaxed)
    }

    /// The session's ring; if it has none yet, one that no other session has.
    fn own_ring(&self) -> Option<usize> {
        let watch = &self.watch;
        let own = Ring::owner_of(self.thread.owner().slot, self.thread.owner().incarnation);
        if let Some(ring) = self.ring.get()
            && watch.ring(ring).owner.load(Relaxed) == own
        {
            return Some(ring);
        }
        let left = self.until_next_try.get();
        if left > 0 {
            self.until_next_try.set(left - 1);
            return None;
        }
        let first = usize::from(self.thread.owner().slot);
        let found = (0..RINGS).map(|n| (first + n) % RINGS).find(|ring| {
            let owner = &watch.ring(*ring).owner;
            let old = owner.load(Relaxed);
            watch.is_vacant(old) && owner.compare_exchange(old, own, Relaxed, Relaxed).is_ok()
        });
        if let Some(ring) = found {
            self.mend(ring);
        }
        self.ring.set(found);
        self.until_next_try.set(if found.is_none() { UNTIL_NEXT_TRY } else { 0 });
        found
    }

    /// A new owner counts the event whose writer has died before it could count it.
    fn mend(&self, number: usize) {
        let ring = self.watch.ring(number);
        let (cells, events) = (ring.cells.load(Relaxed), ring.events.load(Relaxed));
        let last = cells.wrapping_sub(1);
        let tag = Tag(self.watch.ring_cell(number, last).tag.load(Relaxed));
        if tag.part_at(last).is_some() && tag.event() == events & 0xFFFF_FFFF {
            ring.events.store(events.wrapping_add(1), Relaxed);
        }
    }

    fn write_event(&self, number: usize, entry: &Entry<'_>, stamp: (u64, bool)) {
        let watch = &self.watch;
        let ring = watch.ring(number);
        let (first, event) = (ring.cells.load(Relaxed), ring.events.load(Relaxed));
        let mut text = entry.text.get(..TEXT_MAX).unwrap_or(entry.text);
        let head = self.event_words(entry, text.len(), stamp);
        let count = parts(text.len()) as u64;
        for part in 0..count {
            let position = first.wrapping_add(part);
            let cell = watch.ring_cell(number, position);
            cell.tag.store(0, Relaxed);
            // PAIRS: cell: the fence in `Watching::read_cell`: a watcher that sees a word of this event sees that the old one is gone.
            fence(Release);
            let head = if part == 0 { &head[..] } else { &[] };
            for (to, word) in cell.words.iter().zip(head) {
                to.store(*word, Relaxed);
            }
            for to in cell.words.iter().skip(head.len()) {
                let Some(word) = take_word(&mut text) else { break };
                to.store(word, Relaxed);
            }
            // PAIRS: cell: the load in `Watching::read_cell`: a watcher that sees the tag sees the words.
            cell.tag.store(Tag::new(position, event, part).0, Release);
            let later = cell_at(self.mapped().layout(), number, position.wrapping_add(ASKED_AHEAD));
            self.mapped().memory().prefetch_to_write(later, 1);
        }
        // PAIRS: ring: the loads in `Watching::read_ring`.
        ring.cells.store(first.wrapping_add(count), Release);
        // PAIRS: ring: the loads in `Watching::read_ring`: what counts the event comes after what contains it.
        ring.events.store(event.wrapping_add(1), Release);
    }

    fn event_words(&self, entry: &Entry<'_>, text_len: usize, (stamp, is_after): (u64, bool)) -> [u64; HEAD_WORDS] {
        let process = self.mapped().process(self.process);
        let own = match Entrance::of(process.entrance.load(Relaxed)) {
            Entrance::Library => Door::Library,
            Entrance::DropIn => Door::DropIn,
            Entrance::Server => Door::Text,
        };
        let (door, _, descriptor) = self.request.get().unwrap_or((own, false, 0));
        let flags = if entry.fetched { FETCHED } else { 0 } | if is_after { AFTER } else { 0 };
        let last = match entry.kind {
            Kind::Eviction | Kind::Expiry => entry.idle_s,
            _ => descriptor.cast_unsigned(),
        };
        let low = |n: u64| n & 0xFFFF_FFFF;
        let size = u64::from(u32::try_from(entry.size).unwrap_or(u32::MAX));
        let ttl = i32::try_from(entry.ttl_s).unwrap_or(i32::MAX).cast_unsigned();
        [
            stamp,
            entry.kind as u64
                | (entry.command as u64) << 8
                | (door as u64) << 16
                | (entry.status as u64) << 24
                | (text_len as u64) << 32
                | flags << 40
                | u64::from(self.thread.owner().slot) << 48,
            size | u64::from(ttl) << 32,
            u64::from(last) | low(process.pid.load(Relaxed)) << 32,
            entry.cas,
        ]
    }
}

/// An event that is to be written.
#[derive(Clone, Copy)]
struct Entry<'e> {
    kind: Kind,
    command: Command,
    status: Status,
    /// of the value, bytes
    size: usize,
    /// seconds; −1: it does not expire
    ttl_s: i64,
    /// of an item that goes: seconds since it was used
    idle_s: u32,
    fetched: bool,
    cas: u64,
    stamp: Mark,
    /// the key
    text: &'e [u8],
}

/// Where an event comes among the others.
#[derive(Clone, Copy)]
enum Mark {
    /// it has this stamp
    Drawn(u64),
    /// it gets the next one
    Next,
    /// it gets the session's last one, if that is the last of all, and else the next one
    LastOrNext,
}

impl<'e> Entry<'e> {
    const fn new(kind: Kind, text: &'e [u8]) -> Self {
        Self {
            kind,
            command: Command::None,
            status: Status::NotFound,
            size: 0,
            ttl_s: 0,
            idle_s: 0,
            fetched: false,
            cas: 0,
            stamp: Mark::Next,
            text,
        }
    }
}

/// What a change has done, for its event.
#[derive(Clone, Copy)]
pub(crate) struct Done {
    pub kind: Kind,
    pub command: Command,
    pub status: Status,
    /// of the value, bytes
    pub size: usize,
    /// seconds; 0: it does not expire
    pub ttl_s: i64,
    pub cas: u64,
}

/// Which events are watched, and the rings in which they are.
#[derive(Clone)]
pub struct Watch {
    mapped: Arc<Mapped>,
    superblock: Pinned<Superblock, Mapped>,
    clock: Clock,
    flushes: Flushes,
}

impl Watch {
    pub(crate) fn new(mapped: &Arc<Mapped>, clock: &Clock, flushes: &Flushes) -> Self {
        Self {
            mapped: Arc::clone(mapped),
            superblock: Pinned::new(mapped, Mapped::superblock),
            clock: clock.clone(),
            flushes: flushes.clone(),
        }
    }

    /// A watcher wants these kinds of events at `now`: from now on, and for [`WATCHED_S`] seconds. Returns whether all of them were wanted
    /// until now.
    pub fn want_events(&self, kinds: u64, now: u32) -> bool {
        let superblock = &*self.superblock;
        let until = seconds_of(now).saturating_add(WATCHED_S);
        let mut were_wanted = true;
        for kind in Kind::ALL.into_iter().filter(|kind| kinds & kind.bit() != 0) {
            were_wanted &= self.is_watched(kind.bit()) && self.is_wanted_at(kind, seconds_of(now));
            if let Some(word) = superblock.watched_until.get(kind as usize) {
                let old = word.load(Relaxed);
                // A word that no watcher has written does not stay.
                let is_later = old > until && old - until <= WATCHED_MAX_S;
                if !is_later && old != until {
                    word.store(until, Relaxed);
                }
            }
        }
        if superblock.watched.load(Relaxed) & kinds != kinds {
            superblock.watched.fetch_or(kinds, Relaxed);
        }
        self.flushes.say_watched(true) && were_wanted
    }

    /// Whether any of these kinds is watched. A new watcher may miss what began at the same moment.
    #[inline(always)]
    pub(crate) fn is_watched(&self, kinds: u64) -> bool {
        self.superblock.watched.load(Relaxed) & kinds != 0
    }

    fn is_wanted_at(&self, kind: Kind, now_s: u64) -> bool {
        let until = self
            .superblock
            .watched_until
            .get(kind as usize)
            .map_or(0, |word| word.load(Relaxed));
        (1..=WATCHED_MAX_S).contains(&until.wrapping_sub(now_s))
    }

    /// Whether this kind is watched by a watcher that has renewed its wish. Otherwise it is watched no longer.
    #[cold]
    fn is_wanted(&self, kind: Kind) -> bool {
        if !self.is_watched(kind.bit()) {
            return false;
        }
        // The clock is not asked: in a region in use, its last note is about a second old.
        let now_s = u64::from(self.clock.seen().clock_s());
        if self.is_wanted_at(kind, now_s) {
            return true;
        }
        self.superblock.watched.fetch_and(!kind.bit(), Relaxed);
        false
    }

    /// The kinds that are watched by watchers that have renewed their wishes. If there are none, operations see that.
    #[inline]
    pub(crate) fn wanted(&self) -> u64 {
        if self.flushes.is_said_watched() {
            self.wanted_now()
        } else {
            0
        }
    }

    #[cold]
    #[inline(never)]
    fn wanted_now(&self) -> u64 {
        let wanted = Kind::ALL.into_iter().filter(|kind| self.is_wanted(*kind));
        let wanted = wanted.fold(0, |kinds, kind| kinds | kind.bit());
        if wanted == 0 {
            self.flushes.say_watched(false);
            // A watcher may have come meanwhile.
            if self.is_watched(ALL) {
                self.flushes.say_watched(true);
            }
        }
        wanted
    }

    fn ring(&self, ring: usize) -> &Ring {
        self.mapped.memory().get(ring_at(self.mapped.layout(), ring))
    }

    fn ring_cell(&self, ring: usize, position: u64) -> &RingCell {
        self.mapped.memory().get(cell_at(self.mapped.layout(), ring, position))
    }

    /// Whether a ring's owner is gone, so that another session may have it.
    fn is_vacant(&self, owner: u64) -> bool {
        Ring::owner_in(owner).is_none_or(|(slot, incarnation)| {
            slot >= self.mapped.layout().shape.thread_slots || {
                // PAIRS: vacate: the end of the owner's session: its next owner comes after all that it has written.
                let lease = Lease(self.mapped.thread(slot).lease.load(Acquire));
                !lease.is_leased() || lease.incarnation() != incarnation
            }
        })
    }

    /// A thread has died, perhaps after it had published a change and before the change's event was in its ring: the event is counted as lost.
    pub(crate) fn count_unwatched(&self, slot: usize) {
        let thread = self.mapped.thread(slot);
        if thread.event.swap(0, Relaxed) != 0
            && let Some(lost) = thread.counters.get(Counter::events_lost as usize)
        {
            lost.fetch_add(1, Relaxed);
        }
    }
}

/// Takes the next eight bytes of a text as a word. What is missing of the last word is zeros.
fn take_word(text: &mut &[u8]) -> Option<u64> {
    if let Some((bytes, rest)) = text.split_first_chunk() {
        *text = rest;
        return Some(u64::from_le_bytes(*bytes));
    }
    let last = core::mem::take(text);
    (!last.is_empty()).then(|| last.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)))
}

const _: () = assert!(KINDS <= 8);
