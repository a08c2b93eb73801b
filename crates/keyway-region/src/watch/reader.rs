//! A watcher: reads the rings, puts the events in order, and counts what it could not read.

use super::{AFTER, FETCHED};
use crate::atomics::{Acquire, Relaxed, fence};
use crate::layout::index;
use crate::layout::latency::Door;
use crate::layout::session::Lease;
use crate::layout::stats::Counter;
use crate::layout::watch::{CELL_WORDS, Command, HEAD_WORDS, Kind, PARTS_MAX, RINGS, Ring, Status, TEXT_MAX, Tag, parts};
use crate::mapped::Mapped;
use crate::watch::Watch;
use std::sync::Arc;
use std::time::Duration;

/// How long a watcher waits for a session that is about to emit the event of a change. After that, the event is counted as lost
/// if the session emits it too late.
const PATIENCE: Duration = Duration::from_secs(1);
/// Most events that a watcher holds back while it waits.
const HELD_MAX: usize = 1 << 16;

/// An event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// its kind
    pub kind: Kind,
    /// what was asked for
    pub command: Command,
    /// through which door
    pub door: Door,
    /// what became of it
    pub status: Status,
    /// the item had been fetched, for an eviction or expiry
    pub fetched: bool,
    /// of the value, bytes
    pub size: u32,
    /// seconds until it expires; −1: it does not, for an eviction; 0: for all others
    pub ttl_s: i32,
    /// the descriptor of the connection; for an eviction or expiry the seconds since the item was used
    pub number: u32,
    /// process number, in the process's own PID namespace
    pub pid: u32,
    /// the session's thread slot
    pub slot: u16,
    /// the item's CAS unique, as far as the session knows it
    pub cas: u64,
    /// the key; of a connection's event all of the text
    pub text: Vec<u8>,
    /// events are delivered in the order of these
    pub stamp: u64,
    /// a look-up that has drawn no stamp: it comes after the event of its session that has drawn this one
    pub is_after: bool,
}

/// What a watcher gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// this happened
    Event(Event),
    /// so many events are not delivered, of whatever kind
    Lost {
        /// the session's thread slot
        slot: usize,
        /// its process, 0 if there is none
        pid: u64,
        /// how many
        count: u64,
    },
}

/// How far a ring was read.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    cells: u64,
    events: u64,
}

/// A watcher's place in all rings.
pub struct Watching {
    watch: Watch,
    rings: [Progress; RINGS],
    /// events that each session has lost for want of a ring
    lost: Vec<u64>,
    /// events that wait for others
    held: Vec<Event>,
    /// every event with a smaller stamp was delivered or lost
    bound: u64,
    /// by thread slot: the stamp of the event that it is about to emit, and since when
    waiting: Vec<(u64, Duration)>,
}

/// A word of so many bits, out of another one.
const fn bits(word: u64, from: u32, count: u32) -> u64 {
    word >> from & ((1 << count) - 1)
}

impl Watching {
    /// A watcher of what happens from now on.
    pub fn new(watch: &Watch) -> Self {
        let mapped = &watch.mapped;
        let slots = mapped.layout().shape.thread_slots;
        let rings = core::array::from_fn(|ring| rest(watch.ring(ring)));
        let lost = (0..slots).map(|slot| lost_by(mapped, slot)).collect();
        Self {
            bound: mapped.superblock().stamps.load(Relaxed),
            rings,
            lost,
            held: Vec::new(),
            waiting: vec![(0, Duration::ZERO); slots],
            watch: watch.clone(),
        }
    }

    /// Delivers the events that are due at `now`, a time that only rises: changes in the order of their stamps. Returns how many
    /// events it has read.
    pub fn poll(&mut self, now: Duration, tell: &mut impl FnMut(Delivery)) -> usize {
        let mapped = Arc::clone(&self.watch.mapped);
        // In this order: what has a smaller stamp is announced in its thread slot, or its event is in its ring, or lost.
        // PAIRS: told: the exchange in `Emitter::draw_stamp`.
        let drawn = mapped.superblock().stamps.load(Acquire);
        let mut bound = drawn;
        let slots = index(mapped.superblock().threads.load(Relaxed)).min(self.waiting.len());
        for (slot, waiting) in self.waiting.iter_mut().enumerate().take(slots) {
            let thread = mapped.thread(slot);
            // PAIRS: told: the store in `Emitter::end_stamp`.
            let event = thread.event.load(Acquire);
            if event != waiting.0 {
                *waiting = (event, now);
            }
            let is_awaited =
                event != 0 && Lease(thread.lease.load(Relaxed)).is_leased() && now.saturating_sub(waiting.1) < PATIENCE;
            if is_awaited {
                bound = bound.min(event - 1);
            }
        }
        let before = self.held.len();
        let mut lost = Vec::new();
        self.read_rings(drawn, &mut lost);
        // Once more: what ended before an event of the first reading began is in its ring by now. Of what comes only now that is not known,
        // so it waits, and what comes after its look-ups with it. Changes among it are above the bound.
        let first = self.held.len();
        self.read_rings(drawn, &mut lost);
        let read = self.held.len() - before;
        let late = self.held.split_off(first);
        let look_ups = late.iter().filter(|event| event.is_after);
        bound = look_ups.fold(bound, |bound, event| bound.min(event.stamp + 1));
        for slot in 0..slots {
            if let Some(old) = self.lost.get_mut(slot) {
                let now = lost_by(&mapped, slot);
                lost.push((slot, now.saturating_sub(*old)));
                *old = now;
            }
        }
        // Before what has happened since.
        self.deliver_lost(&lost, tell);
        lost.clear();
        if self.held.len() > HELD_MAX {
            bound = drawn;
        }
        // Stable: those of one stamp are a session's, and come in its order.
        self.held.sort_by_key(|event| event.stamp);
        let count = self.held.iter().take_while(|event| event.stamp < bound).count();
        for event in self.held.drain(..count) {
            // Later events of the same key may have been delivered. A look-up without a stamp of its own was not announced, and
            // may come now: each event that was delivered had begun before it ended.
            if event.stamp < self.bound && !event.is_after {
                lost.push((event.slot.into(), 1));
            } else {
                tell(Delivery::Event(event));
            }
        }
        if self.held.len() > HELD_MAX {
            // So many are not in all rings together: their stamps are above what was drawn, because shared memory was damaged.
            lost.extend(self.held.drain(..).map(|event| (event.slot.into(), 1)));
        }
        self.held.extend(late);
        self.bound = self.bound.max(bound);
        self.deliver_lost(&lost, tell);
        read
    }

    /// Reads what is new in all rings. `lost`: how many events of which thread slots are not there any more.
    fn read_rings(&mut self, drawn: u64, lost: &mut Vec<(usize, u64)>) {
        for ring in 0..RINGS {
            let count = self.read_ring(ring, drawn);
            if count > 0 {
                let owner = self.watch.ring(ring).owner.load(Relaxed);
                lost.push((Ring::owner_in(owner).map_or(0, |(slot, _)| slot), count));
            }
        }
    }

    fn deliver_lost(&self, lost: &[(usize, u64)], tell: &mut impl FnMut(Delivery)) {
        for &(slot, count) in lost.iter().filter(|(_, count)| *count > 0) {
            tell(Delivery::Lost {
                slot,
                pid: self.pid_of(slot),
                count,
            });
        }
    }

    fn pid_of(&self, slot: usize) -> u64 {
        let shape = self.watch.mapped.layout().shape;
        if slot >= shape.thread_slots {
            return 0;
        }
        let lease = Lease(self.watch.mapped.thread(slot).lease.load(Relaxed));
        let process = Some(lease.process()).filter(|process| lease.is_leased() && *process < shape.process_slots);
        process.map_or(0, |process| self.watch.mapped.process(process).pid.load(Relaxed))
    }

    /// Reads what is new in a ring. Returns how many events were overwritten, or damaged.
    fn read_ring(&mut self, ring: usize, drawn: u64) -> u64 {
        let watch = self.watch.clone();
        let size = watch.mapped.layout().ring_cells as u64;
        let Some(mut read) = self.rings.get(ring).copied() else {
            return 0;
        };
        let head = watch.ring(ring);
        // The number of events first: what it counts is in the cells that are counted after it.
        // PAIRS: ring: the stores in `Emitter::write_event`.
        let events = head.events.load(Acquire);
        // PAIRS: ring: the stores in `Emitter::write_event`.
        let cells = head.cells.load(Acquire);
        let mut lost = 0;
        let new = cells.wrapping_sub(read.cells);
        if new > u64::MAX / 2 {
            // The words were damaged: no event before them can be read.
            read.cells = cells;
        } else if new > size {
            // Not to the oldest cells, which are overwritten next.
            read.cells = cells.wrapping_sub(size - size / 4);
        }
        while read.cells != cells {
            let left = cells.wrapping_sub(read.cells);
            let Some((event, number, parts)) = self.read_event(ring, read.cells, left, drawn) else {
                read.cells = read.cells.wrapping_add(1);
                continue;
            };
            lost += missing(&mut read.events, number);
            read.events = read.events.wrapping_add(1);
            read.cells = read.cells.wrapping_add(parts);
            match event {
                Some(event) => self.held.push(event),
                None => lost += 1,
            }
        }
        // Those that were lost at the end.
        let at_end = events.wrapping_sub(read.events);
        if at_end <= u64::MAX / 2 && at_end > 0 {
            lost += at_end.min(u64::from(u32::MAX));
            read.events = events;
        }
        if let Some(place) = self.rings.get_mut(ring) {
            *place = read;
        }
        lost
    }

    /// The event that begins in this cell (`None`: it cannot be what it says), its number, and its cells. `None`: no event begins there
    /// that is still complete.
    fn read_event(&self, ring: usize, first: u64, left: u64, drawn: u64) -> Option<(Option<Event>, u64, u64)> {
        let mut words = [0; CELL_WORDS * PARTS_MAX];
        let (chunk, _) = words.split_first_chunk_mut::<CELL_WORDS>()?;
        let (number, part) = self.read_cell(ring, first, chunk)?;
        if part != 0 {
            return None;
        }
        let len = index(bits(*words.get(1)?, 32, 8));
        if len > TEXT_MAX {
            return Some((None, number, 1));
        }
        let count = parts(len) as u64;
        if count > left {
            return Some((None, number, 1));
        }
        for (part, chunk) in (1..count).zip(words.chunks_exact_mut(CELL_WORDS).skip(1)) {
            let same = self.read_cell(ring, first.wrapping_add(part), chunk);
            if same != Some((number, part)) {
                return None;
            }
        }
        Some((
            decode(&words, len).filter(|event| event.stamp < self.latest(drawn)),
            number,
            count,
        ))
    }

    /// The stamps that events can have by now.
    fn latest(&self, drawn: u64) -> u64 {
        drawn.max(self.watch.mapped.superblock().stamps.load(Relaxed))
    }

    /// Copies a cell: the number of its event, and which part it is. `None`: it was overwritten, or is not what should be at this position.
    fn read_cell(&self, ring: usize, position: u64, to: &mut [u64]) -> Option<(u64, u64)> {
        let cell = self.watch.ring_cell(ring, position);
        // PAIRS: cell: the store of the tag in `Emitter::write_event`.
        let tag = Tag(cell.tag.load(Acquire));
        for (to, word) in to.iter_mut().zip(&cell.words) {
            *to = word.load(Relaxed);
        }
        // PAIRS: cell: the fence in `Emitter::write_event`.
        fence(Acquire);
        let is_same = cell.tag.load(Relaxed) == tag.0;
        tag.part_at(position).filter(|_| is_same).map(|part| (tag.event(), part))
    }
}

/// The events between the one that was expected and this one, which is then the one that is expected.
fn missing(expected: &mut u64, number: u64) -> u64 {
    let missing = number.wrapping_sub(*expected) & 0xFFFF_FFFF;
    if missing > u64::from(u32::MAX / 2) {
        // The numbers were damaged: at least one event was.
        *expected = number;
        return 1;
    }
    *expected = expected.wrapping_add(missing);
    missing
}

/// Where a ring ends now.
fn rest(ring: &Ring) -> Progress {
    let mut read = Progress::default();
    // Until both words are of the same moment; a ring that is written all the time may count an event too many as lost.
    for _ in 0..1000 {
        let events = ring.events.load(Relaxed);
        // PAIRS: ring: the stores in `Emitter::write_event`.
        let cells = ring.cells.load(Acquire);
        read = Progress { cells, events };
        if ring.events.load(Relaxed) == events {
            break;
        }
    }
    read
}

/// Events that the sessions of a thread slot could not write.
fn lost_by(mapped: &Mapped, slot: usize) -> u64 {
    let counters = &mapped.thread(slot).counters;
    counters
        .get(Counter::events_lost as usize)
        .map_or(0, |lost| lost.load(Relaxed))
}

/// The event in these words. `None`: no session writes such words.
fn decode(words: &[u64], len: usize) -> Option<Event> {
    let [stamp, what, amounts, numbers, cas, ..] = *words else {
        return None;
    };
    let text = words.get(HEAD_WORDS..)?.iter().flat_map(|word| word.to_le_bytes()).take(len);
    let (flags, low) = (bits(what, 40, 8), |word: u64| u32::try_from(bits(word, 0, 32)).unwrap_or(0));
    Some(Event {
        kind: *Kind::ALL.get(index(bits(what, 0, 8)))?,
        command: *Command::ALL.get(index(bits(what, 8, 8)))?,
        door: *Door::ALL.get(index(bits(what, 16, 8)))?,
        status: *Status::ALL.get(index(bits(what, 24, 8)))?,
        fetched: flags & FETCHED != 0,
        size: low(amounts),
        ttl_s: low(amounts >> 32).cast_signed(),
        number: low(numbers),
        pid: low(numbers >> 32),
        slot: u16::try_from(what >> 48).unwrap_or(0),
        cas,
        text: text.collect(),
        stamp,
        is_after: flags & AFTER != 0,
    })
}

#[cfg(all(test, feature = "observe"))]
mod tests {
    use super::*;
    use crate::late::Ground;

    fn event(stamp: u64) -> Event {
        Event {
            kind: Kind::Update,
            command: Command::Set,
            door: Door::Library,
            status: Status::Stored,
            fetched: false,
            size: 0,
            ttl_s: 0,
            number: 0,
            pid: 0,
            slot: 3,
            cas: 0,
            text: Vec::new(),
            stamp,
            is_after: false,
        }
    }

    #[test]
    fn events_of_stamps_that_were_never_drawn_are_not_held_for_ever() {
        let ground = Ground::new();
        let mut watching = Watching::new(ground.region.watch());
        let mut polled = |held: usize| {
            watching.held = (0..held as u64).map(|n| event(1 << 50 | n)).collect();
            let mut told = Vec::new();
            watching.poll(Duration::ZERO, &mut |it| told.push(it));
            (told, watching.held.len())
        };
        // So many may come a little later.
        assert_eq!(polled(HELD_MAX), (vec![], HELD_MAX));
        let (told, held) = polled(HELD_MAX + 1);
        assert!(
            told.iter().all(|it| matches!(it, Delivery::Lost { slot: 3, count: 1, .. })),
            "{:?}",
            told.first()
        );
        assert_eq!((told.len(), held), (HELD_MAX + 1, 0));
    }
}
