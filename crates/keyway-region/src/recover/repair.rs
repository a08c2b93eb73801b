//! Repair after a power failure (durable mode): makes the region one that no thread was in the middle of changing.
//!
//! After a failure each cache line is as it was at some moment since its last write-back, independently of other lines. The
//! order of write-backs (`docs/concurrency.md`, "Durable mode") leaves only two kinds of words in the index. Some name an item
//! that is complete, in a segment whose description is complete. The others are removed: tentative, removed, or frozen by a
//! split that was not done. So the index is the truth, and everything else is made to agree with it: segments that no word needs
//! become free, extents end after their last item, no segment or slot has an owner, and counts are recounted.
//!
//! Nothing here is written back. After a failure in the middle, or later, the same words are repaired again: a word's own bits
//! say that it goes, whatever else was lost; and a thread that relies on a repaired word writes its line back before it answers.

use crate::atomics::{AtomicU64, Relaxed};
use crate::hash::{all_choices, tag};
use crate::index::{Followed, Place};
use crate::layout::bucket::SLOTS;
use crate::layout::segment::{CHAIN_HEADER_SIZE, EXTENT_HEADER_SIZE, ExtentWord, Kind, LeaseWord, Link, State, TailWord};
use crate::layout::session::Lease;
use crate::layout::slot::Slot;
use crate::layout::stats::Counter;
use crate::log::ItemView;
use crate::log::UNIQUES_LOST;
use crate::mapped::Unusable;
use crate::recover::Recovery;
use crate::verbs::KEY_LEN_MAX;

/// Buckets between two reports of progress.
const PROGRESS: u64 = 1 << 10;

/// What the index needs of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum UsedFor {
    #[default]
    Nothing,
    /// its buckets or hints
    Directory(Kind, usize),
    /// items
    Log,
    /// a part of a value
    Part,
}

/// What the index was found to need.
struct Needs {
    segments: Vec<UsedFor>,
    /// for each cell of each segment the end of the last item that begins in it, in bytes from the segment's start
    ends: Vec<u32>,
    /// bytes of each segment's items
    live: Vec<usize>,
    items: u64,
    bytes: u64,
}

/// The result of a repair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repaired {
    /// items that are present
    pub items: u64,
    /// words that led to nothing: none, unless memory was corrupted
    pub lost: u64,
}

impl Recovery {
    /// Repairs a region in durable mode after a power failure. No other process may be attached. `progress` gets the share that is done.
    ///
    ///
    ///
    /// [`Unusable::Damaged`]: the index cannot be found. A power failure never leaves that.
    pub fn repair(&self, mut progress: impl FnMut(u8)) -> Result<Repaired, Unusable> {
        let mut needs = Needs {
            segments: vec![UsedFor::Nothing; self.mapped.segments()],
            ends: vec![0; self.mapped.segments() * self.mapped.layout().shape.cells()],
            live: vec![0; self.mapped.segments()],
            items: 0,
            bytes: 0,
        };
        self.repair_words();
        self.vacate_all();
        self.repair_directories(&mut needs)?;
        let lost = self.repair_index(&mut needs, &mut progress);
        // Above all that were given: a segment's header is persistent before the first item in it is.
        let mut sequence = self.mapped.superblock().sequence.load(Relaxed);
        for segment in 0..self.mapped.segments() {
            if !matches!(needs.segments.get(segment), Some(UsedFor::Directory(..))) {
                let first = self.mapped.header(segment).sequence.load(Relaxed);
                sequence = sequence.max(first.saturating_add(self.uniques.uniques_of_segment()));
            }
            self.repair_segment(segment, &needs);
        }
        self.recount(&needs, sequence.saturating_add(UNIQUES_LOST));
        // No session fills the segments that were open.
        self.sweep_lost();
        progress(100);
        Ok(Repaired {
            items: needs.items,
            lost,
        })
    }

    /// The words that all processes share: their values are persistent now.
    fn repair_words(&self) {
        let sb = self.mapped.superblock();
        sb.table.store(self.directory.table().count, Relaxed);
        sb.flush.store(self.flushes.flush_word().0, Relaxed);
        // The first use of a third bucket is not written back, so assume that there was one.
        sb.thirds.store(1, Relaxed);
        for word in sb.open_words() {
            word.store(0, Relaxed);
        }
    }

    /// Vacates all slots: no process is attached.
    fn vacate_all(&self) {
        for slot in 0..self.mapped.layout().shape.process_slots {
            self.dismiss(&self.mapped.tenant(slot));
        }
        for slot in 0..self.mapped.layout().shape.thread_slots {
            let thread = self.mapped.thread(slot);
            thread.pending_slot.store(0, Relaxed);
            for hazard in &thread.hazards {
                hazard.store(0, Relaxed);
            }
            let lease = Lease(thread.lease.load(Relaxed));
            if lease.is_leased() {
                thread.lease.store(lease.vacated().0, Relaxed);
            }
        }
    }

    /// Makes sure that the entries that the table needs are there. Further entries name segments in which nothing was put yet.
    fn repair_directories(&self, needs: &mut Needs) -> Result<(), Unusable> {
        let count = self.directory.table().count;
        for (kind, needed) in [
            (Kind::Index, self.directory.bucket_entry(count - 1) + 1),
            (Kind::Hints, self.directory.hint_entry(count - 1) + 1),
        ] {
            for i in 0..self.mapped.segments() {
                let entry = self.directory.directory_entry(kind, i);
                let segment = (entry.load(Relaxed) as usize).checked_sub(1);
                if i >= needed {
                    if segment.is_some() {
                        entry.store(0, Relaxed);
                    }
                    continue;
                }
                match segment.and_then(|s| needs.segments.get_mut(s)) {
                    Some(need @ UsedFor::Nothing) => *need = UsedFor::Directory(kind, i),
                    _ => return Err(Unusable::Damaged("its directory of buckets has a hole")),
                }
            }
        }
        // Ghosts are forgotten, and their segments are free.
        self.mapped.superblock().ghost_lines.store(0, Relaxed);
        for i in 0..self.directory.directory_len(Kind::Ghosts) {
            self.directory.directory_entry(Kind::Ghosts, i).store(0, Relaxed);
        }
        self.directory.forget_segments();
        Ok(())
    }

    /// Repairs every word of the index: settled, thawed, or removed. Returns how many led to nothing.
    fn repair_index(&self, needs: &mut Needs, progress: &mut impl FnMut(u8)) -> u64 {
        let count = self.directory.table().count;
        let covered = count.next_multiple_of(self.mapped.layout().shape.buckets_per_segment() as u64);
        let mut lost = 0;
        for bucket in 0..covered {
            let Some(at) = self.directory.bucket(bucket) else { continue };
            if bucket % PROGRESS == 0 {
                progress(u8::try_from(bucket * 99 / covered).unwrap_or(99));
            }
            for index in 0..SLOTS {
                let place = Place::new(bucket, at, index);
                let word = self.slots.word_in(place);
                let new = if bucket < count {
                    self.repaired(place, word, needs, &mut lost)
                } else {
                    Slot::UNSET
                };
                if new != word {
                    self.slots.repair_word(place, new);
                }
            }
        }
        lost
    }

    /// What a word shall become; notes what it needs.
    fn repaired(&self, place: Place, word: Slot, needs: &mut Needs, lost: &mut u64) -> Slot {
        if !word.is_item() {
            return Slot::EMPTY;
        }
        let new = if word.is_frozen() { word.thaw() } else { word.settled() };
        let Followed::Got(seen) = self.index.look_in(place, word) else {
            // A frozen word that a split left may name an item that is gone since.
            *lost += u64::from(!word.is_frozen());
            return Slot::EMPTY;
        };
        let mut bytes = [0; KEY_LEN_MAX];
        let Some(key) = bytes.get_mut(..seen.header.key_len()) else {
            return Slot::EMPTY;
        };
        self.mapped.memory().read(seen.at + seen.header.key_offset(), key);
        let key_hash = self.mapped.hasher().hash(key);
        let table = self.directory.table();
        let at_home = all_choices(key_hash).into_iter().any(|c| table.bucket(c) == place.bucket);
        let intact = || {
            let item = self.index.facts(&seen, (place, word), false, 0);
            !self.items.has_checksums() || self.items.append_verified(&seen, key, &item, false, &mut Vec::new()).is_ok()
        };
        if at_home && tag(key_hash) == word.tag() && intact() && self.note(&seen, key_hash, needs) {
            return new;
        }
        *lost += u64::from(!word.is_frozen());
        Slot::EMPTY
    }

    /// Notes what an item needs. `false`: the item is not complete.
    fn note(&self, seen: &ItemView, key_hash: u64, needs: &mut Needs) -> bool {
        let shape = self.mapped.layout().shape;
        let cell = seen.offset / shape.cell_size();
        let lease = LeaseWord(self.mapped.header(seen.segment).lease.load(Relaxed));
        let in_extent = lease.is_of_generation(seen.life.generation)
            && lease
                .extents()
                .any(|(first, end)| (first..end).contains(&cell) && seen.offset + seen.header.size() <= end * shape.cell_size());
        let is_log = matches!(needs.segments.get(seen.segment), Some(UsedFor::Nothing | UsedFor::Log));
        if !in_extent || !is_log || !self.note_parts(seen, key_hash, needs) {
            return false;
        }
        if let Some(need) = needs.segments.get_mut(seen.segment) {
            *need = UsedFor::Log;
        }
        if let Some(end) = needs.ends.get_mut(seen.segment * shape.cells() + cell) {
            *end = (*end).max(u32::try_from(seen.offset + seen.header.size()).unwrap_or(0));
        }
        if let Some(live) = needs.live.get_mut(seen.segment) {
            *live += seen.header.size();
        }
        needs.items += 1;
        needs.bytes = needs.bytes.saturating_add(self.items.size(seen) as u64);
        true
    }

    /// Notes the segments of a large value; any other item has none.
    fn note_parts(&self, seen: &ItemView, key_hash: u64, needs: &mut Needs) -> bool {
        let Some(chain) = self.items.chain(seen) else {
            return !seen.header.is_large();
        };
        let room = self.mapped.layout().shape.segment_size - CHAIN_HEADER_SIZE;
        let parts = chain.value_len.div_ceil(room).max(1);
        let mut found = Vec::new();
        let mut link = chain.first;
        for _ in 0..parts.min(self.mapped.segments()) {
            let segment = link.segment();
            let is_free = matches!(needs.segments.get(segment), Some(UsedFor::Nothing)) && !found.contains(&segment);
            if !is_free || self.mapped.segment_life(segment).generation != link.generation() {
                return false;
            }
            let at = self.mapped.segment(segment);
            let word = |i: usize| self.mapped.word(at + i * 8).load(Relaxed);
            if Link(word(1)) != chain.last || word(2) != key_hash {
                return false;
            }
            found.push(segment);
            link = Link(word(0));
        }
        for segment in found {
            if let Some(need) = needs.segments.get_mut(segment) {
                *need = UsedFor::Part;
            }
        }
        true
    }

    /// Makes a segment's words say what the index needs of it.
    fn repair_segment(&self, segment: usize, needs: &Needs) {
        let header = self.mapped.header(segment);
        let old = State(header.state.load(Relaxed));
        let new = match needs.segments.get(segment).copied().unwrap_or_default() {
            UsedFor::Nothing => {
                // The next generation: everything that was begun in it becomes stale. A segment that was never used has no
                // generation yet.
                let generation = self.mapped.segment_life(segment).generation;
                let next = generation.wrapping_add(u64::from(old != State::FREE || generation == 0));
                self.mapped.words(segment).generation.store(next, Relaxed);
                // The system may have its pages: a thread that takes it into use allocates them first.
                if old.kind() == Some(Kind::Withdrawn) {
                    State::withdrawn(next, old.has_no_pages())
                } else {
                    State::FREE
                }
            }
            UsedFor::Directory(kind, entry) => {
                header.sequence.store(entry as u64, Relaxed);
                State::new(kind, 0)
            }
            UsedFor::Part => State::of(Kind::Large, old.stream()),
            UsedFor::Log => {
                self.repair_extents(segment, needs);
                if old.kind() != Some(Kind::Open) {
                    // A thread was about to reclaim it: no more extents are leased in it.
                    header.lease.store(LeaseWord(header.lease.load(Relaxed)).seal().0, Relaxed);
                }
                State::of(Kind::Open, old.stream())
            }
        };
        header.state.store(new.0, Relaxed);
        let live = needs.live.get(segment).copied().unwrap_or(0);
        header
            .dead
            .store(self.segments.given_to_items(segment).saturating_sub(live) as u64, Relaxed);
    }

    /// Closes every extent after its last item.
    fn repair_extents(&self, segment: usize, needs: &Needs) {
        let shape = self.mapped.layout().shape;
        let generation = self.mapped.segment_life(segment).generation;
        let lease = LeaseWord(self.mapped.header(segment).lease.load(Relaxed));
        for (first, end) in lease.extents() {
            let cells = segment * shape.cells()..(segment + 1) * shape.cells();
            let ends = needs.ends.get(cells).and_then(|ends| ends.get(first..end)).unwrap_or(&[]);
            let start = first * shape.cell_size();
            let tail = ends.iter().copied().max().unwrap_or(0) as usize;
            let at = self.mapped.segment(segment) + start;
            let hands = if lease.last_extent() == Some(first) {
                lease.hands()
            } else {
                0
            };
            let closed = ExtentWord::new(generation, 0).in_hands(hands).close();
            self.mapped.word(at).store(closed.0, Relaxed);
            self.mapped
                .word(at + 8)
                .store(TailWord::new(tail.max(start + EXTENT_HEADER_SIZE), 0).0, Relaxed);
        }
    }

    /// Recounts everything that is counted.
    fn recount(&self, needs: &Needs, sequence: u64) {
        let sb = self.mapped.superblock();
        sb.sequence.store(sequence, Relaxed);
        sb.items.store(needs.items, Relaxed);
        self.mapped.recount_free();
        for slot in 0..self.mapped.layout().shape.thread_slots {
            let counters = &self.mapped.thread(slot).counters;
            let set = |counter: Counter, n: u64| {
                if let Some(c) = counters.get(counter as usize) {
                    AtomicU64::store(c, if slot == 0 { n } else { 0 }, Relaxed);
                }
            };
            set(Counter::curr_items, needs.items);
            set(Counter::bytes, needs.bytes);
        }
    }
}
