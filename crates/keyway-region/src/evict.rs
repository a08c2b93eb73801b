//! Room: free segments, and how used ones become free again.
//!
//! Segments that are dead as a whole (flushed, expired) go first. Then mostly-dead ones are compacted: their live items are
//! copied to the log's head, so a region whose live items fit never evicts, however often they are rewritten. Then a hand
//! walks the segments in turn and evicts what it meets, sparing items that were hit since they were written (second
//! chance). Every segment under purge belongs to one thread; a dead owner's claim is taken over. Nobody waits for anybody:
//! what cannot be reclaimed now is passed by.

use crate::atomics::{AcqRel, Acquire, Relaxed, Release, add_single_writer};
use crate::hash::{hash, tag};
use crate::layout::bucket::SLOTS;
use crate::layout::index;
use crate::layout::item::{self, Header, flag};
use crate::layout::segment::{CLASSES_MAX, EXTENT_HEADER_SIZE, ExtentWord, Kind, LeaseWord, Link, SegmentWord, State, TailWord};
use crate::layout::session::UPKEEP;
use crate::layout::slot::Slot;
use crate::layout::stats::Counter;
use crate::lookup::{ATTEMPTS_MAX, Look, Place, Seen};
use crate::memory::Line;
use crate::mutants::{self, Mutant};
use crate::region::Region;
use crate::session::Session;
use crate::verbs::{KEY_LEN_MAX, WriteError};

/// Segments whose headers are looked at for being dead as a whole, each time room is needed.
const SWEEP: usize = 64;
/// Free segments that are kept for relocations: one in this many, within bounds.
const RESERVE_SHARE: usize = 128;
const RESERVE_MIN: usize = 2;
const RESERVE_MAX: usize = 16;
/// Times that the hand goes round before nothing is found to be evictable. In the last round nothing is spared.
const ROUNDS: usize = 3;

/// Segments among which compaction chooses the one with the most dead bytes.
const COMPACTION_WINDOW: usize = 32;
/// Segments whose headers are looked at for compaction before anything is evicted.
const COMPACTION_SEARCH: usize = 1024;
/// One in this many bytes of a segment must be dead for its compaction to be worth the copying.
const COMPACTION_DEAD_SHARE: usize = 4;

/// Bytes of dead items that a session counts at a time.
const DEAD_PORTION: u64 = 1024;

/// Which live items of a purged segment are copied to the log's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spare {
    /// all: the segment is compacted, nothing is evicted
    All,
    /// those that were hit (second chance), as long as no more than half of the segment has been copied
    Hit,
    Nothing,
}

impl Region {
    /// Whether a live thread may still publish an item of this segment. Its lease word must be sealed, or the answer ages.
    fn has_live_extent(&self, segment: usize) -> bool {
        let word = self.segment_word(segment);
        let lease = LeaseWord(self.header(segment).lease.load(Acquire));
        if !lease.is_of_generation(word.generation()) {
            return false;
        }
        let cell_size = self.layout.shape.cell_size();
        lease.extents().any(|(cell, _)| {
            let at = self.segment(segment) + (cell * cell_size).min(self.layout.shape.segment_size - EXTENT_HEADER_SIZE);
            let mut extent = ExtentWord(self.slot(at).load(Acquire));
            if extent.generation() != word.generation() {
                // Leased, header not written: by somebody who is at it, or by somebody who died there.
                if self.is_leasing(segment) {
                    return true;
                }
                extent = ExtentWord(self.slot(at).load(Acquire));
                if extent.generation() != word.generation() {
                    return false;
                }
            }
            let incarnation = TailWord(self.slot(at + 8).load(Relaxed)).incarnation();
            let owner = crate::layout::segment::Owner {
                slot: extent.owner(),
                incarnation,
            };
            !extent.is_closed() && (self.is_held(owner) || mutants::is(Mutant::DeadExtentsStand))
        })
    }

    /// Whether every item in the segment is flushed or expired.
    fn is_dead(&self, segment: usize, now: u32, epoch: u32) -> bool {
        let header = self.header(segment);
        if State(header.state.load(Relaxed)).kind() != Some(Kind::Open) {
            return false;
        }
        self.segment_word(segment).epoch() < epoch || {
            let expires = header.expires.load(Relaxed);
            expires != u32::MAX
                && expires <= now
                && LeaseWord(header.lease.load(Relaxed)).is_sealed_or_full(self.layout.shape.cells())
        }
    }

    /// Whether new extents are leased in this segment at present.
    fn is_current(&self, segment: usize) -> bool {
        let name = segment as u64 + 1;
        let sb = self.superblock();
        sb.open
            .iter()
            .any(|pool| (0..CLASSES_MAX).any(|class| pool.get(class).is_some_and(|w| w.load(Relaxed) == name)))
    }

    /// The first word in the key's buckets that is among the `candidates` and that `is_it`, with its slot. `Err`: a frozen
    /// slot is in the way.
    fn find_word(
        &self,
        hash: u64,
        candidates: impl Fn(&Line) -> u32,
        mut is_it: impl FnMut(Place, Slot) -> bool,
    ) -> Result<Option<(Place, Slot)>, (Place, Slot)> {
        for _ in 0..ATTEMPTS_MAX {
            let table = self.table();
            let Some(buckets) = self.buckets(hash, table) else {
                return Ok(None);
            };
            for (bucket, bucket_at) in buckets {
                let line = self.memory.line(bucket_at);
                if Slot::any_frozen(&line) {
                    let frozen = (0..SLOTS).find(|index| Slot::of(&line, *index).is_frozen()).unwrap_or(0);
                    return Err((Place::new(bucket, bucket_at, frozen), Slot::of(&line, frozen)));
                }
                let mut found = candidates(&line);
                while found != 0 {
                    let index = found.trailing_zeros() as usize;
                    found &= found - 1;
                    let (place, word) = (Place::new(bucket, bucket_at, index), Slot::of(&line, index));
                    if is_it(place, word) {
                        return Ok(Some((place, word)));
                    }
                }
            }
            if self.table() == table {
                return Ok(None);
            }
        }
        Ok(None)
    }
}

impl LeaseWord {
    fn is_sealed_or_full(self, cells: usize) -> bool {
        self.is_sealed() || self.cells() >= cells
    }
}

impl Session {
    /// A claimed segment, purged and with a generation of its own. With `make_room` by reclaiming one if need be; without,
    /// only a free one.
    pub(crate) fn take_segment(&self, now: u32, make_room: bool) -> Result<usize, WriteError> {
        self.region.catch_up();
        if !make_room {
            return self.claim_free().ok_or(WriteError::OutOfMemory);
        }
        let reserve = self.reserve();
        // Each round gives one segment and its relocations take less than one: this ends when the reserve is full.
        for _ in 0..self.region.segments() + ROUNDS {
            if self.free_segments() > reserve
                && let Some(segment) = self.claim_free()
            {
                return Ok(segment);
            }
            let Some(segment) = self.reclaim(now) else { break };
            if self.free_segments() >= reserve {
                return Ok(segment);
            }
            self.free_segment(segment);
        }
        if !self.limits.evict {
            return Err(WriteError::OutOfMemory);
        }
        self.claim_free().ok_or(WriteError::OutOfMemory)
    }

    fn reserve(&self) -> usize {
        (self.region.segments() / RESERVE_SHARE).clamp(RESERVE_MIN, RESERVE_MAX)
    }

    /// Whether new segments come from old ones only.
    pub(crate) fn is_full(&self) -> bool {
        self.free_segments() <= self.reserve()
    }

    fn free_segments(&self) -> usize {
        // The count drifts by one when a thread dies beside it; below zero is none.
        let free = self.region.superblock().free.load(Relaxed);
        if free > u64::MAX / 2 {
            0
        } else {
            usize::try_from(free).unwrap_or(0)
        }
    }

    fn claim_free(&self) -> Option<usize> {
        if self.free_segments() == 0 {
            return None;
        }
        let (region, segments) = (&self.region, self.region.segments());
        let sb = region.superblock();
        let from = usize::try_from(sb.free_hint.load(Relaxed)).unwrap_or(0) % segments;
        for i in 0..segments {
            let segment = (from + i) % segments;
            if self.claim(segment, State::FREE) {
                sb.free.fetch_sub(1, Relaxed);
                sb.free_hint.store(segment as u64 + 1, Relaxed);
                return Some(segment);
            }
        }
        sb.free.store(0, Relaxed);
        None
    }

    /// Makes the segment this thread's, if it is in this state.
    pub(crate) fn claim(&self, segment: usize, from: State) -> bool {
        let state = &self.region.header(segment).state;
        let claimed = State::owned(Kind::Claimed, self.owner);
        state.load(Relaxed) == from.0 && state.compare_exchange(from.0, claimed.0, AcqRel, Relaxed).is_ok()
    }

    /// Reclaims one segment: claimed, purged, bumped. `None`: nothing can be.
    fn reclaim(&self, now: u32) -> Option<usize> {
        let segments = self.region.segments();
        if let Some(segment) = self
            .reclaim_dead(SWEEP, now)
            .or_else(|| self.compact_some(COMPACTION_SEARCH, now))
        {
            return Some(segment);
        }
        if !self.limits.evict {
            return self.reclaim_dead(segments, now).or_else(|| self.compact_some(segments, now));
        }
        for step in 0..ROUNDS * segments {
            if step % segments == 0 && step > 0 {
                self.region.recover();
            }
            let segment = index(self.region.superblock().hand.fetch_add(1, Relaxed)) % segments;
            let last_round = step / segments == ROUNDS - 1;
            if let Some(segment) = self.reclaim_at(segment, last_round, now) {
                return Some(segment);
            }
        }
        None
    }

    /// Looks at up to `count` segments for one that is dead as a whole, and reclaims it.
    pub(crate) fn reclaim_dead(&self, count: usize, now: u32) -> Option<usize> {
        let segments = self.region.segments();
        let epoch = self.region.epoch(now);
        for _ in 0..count.min(segments) {
            let segment = index(self.region.superblock().sweep.fetch_add(1, Relaxed)) % segments;
            if self.region.is_dead(segment, now, epoch) && self.claim_open(segment) && self.purge(segment, Spare::Nothing, now) {
                return Some(segment);
            }
        }
        None
    }

    /// Compacts a segment of the next `count` that is worth it: the best of the first window that has one. What was compacted
    /// lately lies together and is dense, so one window is not enough.
    fn compact_some(&self, count: usize, now: u32) -> Option<usize> {
        let count = count.min(self.region.segments());
        (0..count.div_ceil(COMPACTION_WINDOW)).find_map(|_| self.compact(COMPACTION_WINDOW, now))
    }

    /// Compacts the segment with the most dead bytes of the next `window`, if it has enough of them.
    fn compact(&self, window: usize, now: u32) -> Option<usize> {
        let region = &*self.region;
        let segments = region.segments();
        let from = index(region.superblock().compaction.fetch_add(window as u64, Relaxed)) % segments;
        let least = (region.layout.shape.segment_size / COMPACTION_DEAD_SHARE) as u64;
        let (_, segment) = (0..window.min(segments))
            .map(|i| (from + i) % segments)
            .map(|segment| (region.header(segment).dead.load(Relaxed), segment))
            .filter(|(dead, segment)| *dead >= least && !region.is_current(*segment))
            .filter(|(_, segment)| State(region.header(*segment).state.load(Relaxed)).kind() == Some(Kind::Open))
            .max()?;
        // Without room for the copies it would evict what it is to keep.
        let room = self.free_segments() > 0;
        (room && self.claim_open(segment) && self.purge(segment, Spare::All, now)).then_some(segment)
    }

    fn reclaim_at(&self, segment: usize, last_round: bool, now: u32) -> Option<usize> {
        let state = State(self.region.header(segment).state.load(Acquire));
        if let Some(owner) = state.owner()
            && (owner == self.owner || self.region.is_held(owner) || mutants::is(Mutant::DeadClaimsStand))
        {
            return None;
        }
        match state.kind()? {
            Kind::Free => self.claim(segment, state).then(|| {
                self.region.superblock().free.fetch_sub(1, Relaxed);
                segment
            }),
            Kind::Open => {
                if (self.region.is_current(segment) && !last_round) || !self.claim_open(segment) {
                    return None;
                }
                let spare = if last_round { Spare::Nothing } else { Spare::Hit };
                self.purge(segment, spare, now).then_some(segment)
            }
            Kind::Claimed => (self.claim(segment, state) && self.purge(segment, Spare::Nothing, now)).then_some(segment),
            Kind::Large => self.reclaim_large(segment, state, last_round, now),
            Kind::Index | Kind::Hints => self.reclaim_index(segment, state),
        }
    }

    /// Seals an open segment and claims it, unless somebody may still publish from it.
    fn claim_open(&self, segment: usize) -> bool {
        let header = self.region.header(segment);
        let state = State(header.state.load(Acquire));
        if state.kind() != Some(Kind::Open) || self.operates_on(segment) {
            return false;
        }
        loop {
            let lease = LeaseWord(header.lease.load(Acquire));
            if lease.is_sealed() {
                break;
            }
            if header
                .lease
                .compare_exchange(lease.0, lease.seal().0, AcqRel, Relaxed)
                .is_ok()
            {
                break;
            }
        }
        !self.region.has_live_extent(segment) && self.claim(segment, state)
    }

    /// Takes every word that names this claimed segment out of the index and bumps its generation. `false`: a live intent
    /// names it; it is left purged, for later.
    fn purge(&self, segment: usize, spare: Spare, now: u32) -> bool {
        let region = &*self.region;
        let shape = region.layout.shape;
        let word = region.segment_word(segment);
        let header = region.header(segment);
        let lease = LeaseWord(header.lease.load(Acquire));
        let mut purge = Purge {
            segment,
            word,
            spare,
            relocated: 0,
            finished: u64::MAX,
        };
        if lease.is_of_generation(word.generation()) {
            for (first, end) in lease.extents() {
                let start = first * shape.cell_size();
                let end = (end * shape.cell_size()).min(shape.segment_size);
                let at = region.segment(segment);
                if start >= end || ExtentWord(region.slot(at + start).load(Acquire)).generation() != word.generation() {
                    continue;
                }
                let tail = TailWord(region.slot(at + start + 8).load(Acquire)).tail().min(end);
                let mut offset = start + EXTENT_HEADER_SIZE;
                while offset + item::HEADER_SIZE < tail {
                    let Some(header) = Header(region.slot(at + offset).load(Acquire)).validate(tail - offset) else {
                        self.count(Counter::corrupt, 1);
                        break;
                    };
                    if !header.has(flag::DEAD) {
                        self.purge_item(&mut purge, offset, header, now);
                    }
                    offset += header.size();
                }
            }
        }
        // Frozen words that the last split left behind may name items that died where they had gone.
        self.finish_last_split();
        if region.is_intended(segment, self.owner) {
            let open = State::new(Kind::Open, State(header.state.load(Relaxed)).class());
            header.state.store(open.0, Release);
            return false;
        }
        // Every word that the purge removed or met as replaced, before the bytes that it led to may be another's.
        region.barrier();
        self.bump(segment);
        true
    }

    /// Takes one item of a claimed segment out of the index, or moves it.
    fn purge_item(&self, purge: &mut Purge, offset: usize, header: Header, now: u32) {
        let region = &*self.region;
        let at = region.segment(purge.segment) + offset;
        let mut bytes = [0; KEY_LEN_MAX];
        let Some(key) = bytes.get_mut(..header.key_len()) else {
            return;
        };
        region.memory.read(at + header.key_offset(), key);
        let key_hash = hash(region.seed, key);
        let here = Slot::confirmed(0, 0, purge.segment, offset);
        for _ in 0..ATTEMPTS_MAX {
            // Words that the last split left frozen in its old bucket name items of keys that are elsewhere now.
            let count = region.table().count;
            if purge.finished != count {
                self.finish_last_split();
                purge.finished = count;
            }
            let found = region.find_word(key_hash, |line| here.same_places(line), |_, _| true);
            let (place, word) = match found {
                Ok(Some(found)) => found,
                Ok(None) => return region.write_back_buckets(key_hash),
                Err((place, word)) => {
                    self.unfreeze(place, word);
                    continue;
                }
            };
            let seen = Seen {
                segment: purge.segment,
                word: purge.word,
                at,
                offset,
                header,
            };
            if word.is_tentative() {
                region.abort(place.at, word);
                continue;
            }
            if word.is_dirty() {
                region.settle(place.at, word);
                continue;
            }
            let present = purge.word.epoch() >= region.epoch(now) && !header.is_expired(now);
            let spared = match purge.spare {
                Spare::All => true,
                Spare::Hit => word.frequency() > 0 && purge.relocated < region.layout.shape.segment_size / 2,
                Spare::Nothing => false,
            };
            if present && spared && self.relocate(purge, place, word, &seen, now) {
                return;
            }
            if region.vacate(place.at, word) {
                self.count_gone(&seen, place, present, now);
                if let Some(chain) = region.chain(&seen) {
                    self.free_chain(chain.first);
                }
                return;
            }
        }
        self.count(Counter::corrupt, 1);
    }

    /// An item was evicted, or was expired or flushed and its place reclaimed.
    pub(crate) fn count_gone(&self, seen: &Seen, place: Place, present: bool, now: u32) {
        let (fetched, _) = self.region.hint_facts(seen, place, now);
        if present {
            self.count(Counter::evictions, 1);
            self.count(Counter::evicted_unfetched, u64::from(!fetched));
        } else {
            self.count(Counter::reclaimed, 1);
            self.count(Counter::expired_unfetched, u64::from(!fetched && seen.header.is_expired(now)));
        }
        self.count_removed(seen);
    }

    /// An item whose word this thread has taken out of the index, under an intent or a claim of its segment that still
    /// stands: a purge need not look for its word. Its bytes are counted; the segment's count is a hint in a line that every
    /// writer wants: small items are counted together, with the segment of the one that makes up a portion, so that of random
    /// segments each gets its share. Two that count at once lose one of the counts.
    #[inline]
    pub(crate) fn bury(&self, seen: &Seen) {
        // PAIRS: Acquire in `Session::purge`: whoever sees it dead sees its slot without it.
        self.region.slot(seen.at).store(seen.header.dead().0, Release);
        let dead = self.dead.get() + seen.header.size() as u64;
        if dead < DEAD_PORTION {
            self.dead.set(dead);
            return;
        }
        self.dead.set(0);
        add_single_writer(&self.region.header(seen.segment).dead, dead);
    }

    /// An item left the index.
    pub(crate) fn count_removed(&self, seen: &Seen) {
        self.count(Counter::curr_items, 1u64.wrapping_neg());
        self.count(Counter::bytes, (self.region.size(seen) as u64).wrapping_neg());
        self.count_items(-1);
        self.bury(seen);
    }

    /// Copies an item to the log's head and swaps its slot to the copy. The segment is claimed by this thread, so nobody
    /// recycles it meanwhile. `false`: no room, or the slot changed.
    fn relocate(&self, purge: &mut Purge, place: Place, word: Slot, seen: &Seen, now: u32) -> bool {
        let has_cas = seen.header.has(flag::CAS);
        let region = &*self.region;
        let mut bytes = self.scratch.take();
        bytes.clear();
        let header = Header(seen.header.0 | flag::CAS << 28);
        bytes.extend_from_slice(&header.0.to_le_bytes());
        bytes.extend_from_slice(&region.cas_unique(seen).to_le_bytes());
        let old_rest = item::HEADER_SIZE + if has_cas { 8 } else { 0 };
        let rest = seen.header.value_offset() + seen.header.value_len() - old_rest;
        region.memory.append_to(seen.at + old_rest, rest, &mut bytes);
        bytes.resize(header.size(), 0);
        let copy = self.write_copy(&bytes, header, purge.word.epoch(), now);
        self.scratch.set(bytes);
        let Some((segment, segment_word, offset)) = copy else {
            return false;
        };
        // A second chance costs a hit; compaction is not the item's doing.
        let frequency = if purge.spare == Spare::Hit {
            word.frequency() - 1
        } else {
            word.frequency()
        };
        let new = Slot::confirmed(word.tag(), segment_word.generation(), segment, offset).with_frequency(frequency);
        let word = if mutants::is(Mutant::RelocateInTwoSteps) {
            let _ = region.slot(place.at).compare_exchange(word.0, Slot::EMPTY.0, AcqRel, Relaxed);
            Slot::EMPTY
        } else {
            word
        };
        region.barrier();
        // PUBLISH: the copy. Before it the item is where it was; the old place is purged only after it.
        if region
            .slot(place.at)
            .compare_exchange(word.0, new.0, AcqRel, Relaxed)
            .is_err()
        {
            return false;
        }
        region.write_back(place.at, 8);
        purge.relocated += header.size();
        self.count(Counter::relocations, 1);
        self.count(Counter::bytes, (header.size() as u64).wrapping_sub(seen.header.size() as u64));
        true
    }

    /// Evicts the large item that this segment belongs to, or frees the segment if no item claims it.
    fn reclaim_large(&self, segment: usize, state: State, last_round: bool, now: u32) -> Option<usize> {
        let region = &*self.region;
        let at = region.segment(segment);
        let generation = region.segment_word(segment).generation();
        let (last, key_hash) = (Link(region.slot(at + 8).load(Relaxed)), region.slot(at + 16).load(Relaxed));
        for _ in 0..ATTEMPTS_MAX {
            if State(region.header(segment).state.load(Acquire)) != state
                || region.segment_word(segment).generation() != generation
            {
                return None;
            }
            let mut head = None;
            let tagged = |line: &Line| Slot::with_tag(line, tag(key_hash));
            // A head that changes under our eyes may have handed its segments to the next one: no orphan until all stand still.
            let mut moved = false;
            let found = region.find_word(key_hash, tagged, |place, word| {
                let seen = match region.look(place.at, word) {
                    Look::Got(seen) => seen,
                    Look::Moved => {
                        moved = true;
                        return false;
                    }
                    Look::Corrupt => return false,
                };
                let ours = word.is_item() && region.chain(&seen).is_some_and(|c| c.last == last);
                moved |= !region.still(&seen);
                if ours && !moved {
                    head = Some(seen);
                }
                ours && !moved
            });
            if moved && head.is_none() {
                continue;
            }
            match (found, head) {
                (Err((place, word)), _) => self.unfreeze(place, word),
                (Ok(Some(_)), Some(seen)) if self.operates_on(seen.segment) => return None,
                (Ok(Some((place, word))), Some(seen)) => {
                    if word.frequency() > 0 && !last_round {
                        let less = word.with_frequency(word.frequency() - 1);
                        let _ = region.slot(place.at).compare_exchange(word.0, less.0, AcqRel, Relaxed);
                        return None;
                    }
                    self.intend(UPKEEP, seen.segment);
                    let chain = match region.look(place.at, word) {
                        Look::Got(seen) => region.chain(&seen).filter(|c| c.last == last && region.still(&seen)),
                        _ => None,
                    };
                    let gone = chain.is_some() && region.vacate(place.at, word);
                    if gone {
                        let present = seen.word.epoch() >= region.epoch(now) && !seen.header.is_expired(now);
                        self.count_gone(&seen, place, present, now);
                    }
                    self.relent(UPKEEP);
                    if let (Some(chain), true) = (chain, gone) {
                        self.free_chain(chain.first);
                        return self.claim_free();
                    }
                }
                _ => {
                    // No item leads here, and no live writer is about to make one: an orphan.
                    if mutants::is(Mutant::OrphansForgotten) || !self.claim(segment, state) {
                        return None;
                    }
                    // The word that replaced its head may be somebody's who did not come to a barrier.
                    region.write_back_buckets(key_hash);
                    region.barrier();
                    self.bump(segment);
                    return Some(segment);
                }
            }
        }
        None
    }

    /// A segment on its way into the index whose owner died: finished if the directory has it, freed otherwise.
    fn reclaim_index(&self, segment: usize, state: State) -> Option<usize> {
        state.owner()?;
        let region = &self.region;
        let kind = state.kind()?;
        let entry = usize::try_from(region.header(segment).sequence.load(Relaxed)).ok()?;
        if entry >= region.layout.shape.segments_max {
            return None;
        }
        let directory = region.directory_entry(kind, entry);
        if directory.load(Acquire) as usize == segment + 1 {
            let _ = region
                .header(segment)
                .state
                .compare_exchange(state.0, State::new(kind, 0).0, AcqRel, Relaxed);
            return None;
        }
        if !self.claim(segment, state) {
            return None;
        }
        self.bump(segment);
        Some(segment)
    }
}

/// A purge under way.
struct Purge {
    segment: usize,
    word: SegmentWord,
    spare: Spare,
    relocated: usize,
    /// the table word for which the last split is known to be cleaned up
    finished: u64,
}
