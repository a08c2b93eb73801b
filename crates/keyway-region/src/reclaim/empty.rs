//! Emptying a segment: its items leave the index or move to the log's head, a step at a time. Then it is free.
//!
//! A segment under reclaim is claimed by one thread during a step, and has no owner between two. The segment's header says how far
//! the reclaim has come, so any thread can do the next step. A step whose thread died before its end is repeated, which does no
//! harm. Items after the cursor are fully present: they are read, overwritten and deleted meanwhile.

#[cfg(all(test, feature = "observe"))]
mod late;

use crate::atomics::{Acquire, AtomicU32, Relaxed, Release};
use crate::hash::tag;
use crate::index::{Followed, Place};
use crate::layout::item::{self, Header, flag};
use crate::layout::segment::{
    ADMISSION, Cursor, EXTENT_HEADER_SIZE, ExtentWord, Kind, LeaseWord, Link, MAIN, SegmentLife, Spare, State, Stream, TailWord,
};
use crate::layout::session::{FREEING, UPKEEP};
use crate::layout::slot::Slot;
use crate::layout::stats::Counter;
use crate::log::Items;
use crate::log::{ATTEMPTS_MAX, Chain, CopyOf, ItemView, Relocated};
use crate::memory::Line;
use crate::reclaim::Reclaimer;
use crate::reclaim::Victims;
use crate::reclaim::evict::Victim;
use crate::verbs::KEY_LEN_MAX;

/// Items whose headers are prefetched before they are looked at.
const HEADERS_AHEAD: usize = 3;
/// Hits that move an item from the admission pool to the main pool.
const PROMOTED_FROM: u64 = 1;
/// At most this part of a segment that is reclaimed for space is copied, so that each reclaim frees at least the rest of a segment.
pub(super) const SPARED_MAX: (usize, usize) = (3, 4);

/// The mark of a record, in a lifetime.
const RECORD_IN_LIFETIME: u32 = (flag::RECORD >> 32) as u32;

/// What leads to the segments of a large value.
enum Head {
    /// a frozen slot is in the way
    Frozen(Place, Slot),
    Item(Place, Slot, ItemView),
    /// something changed during the search
    Moved,
    None,
}

/// What a step did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// the budget is used up, the segment is not empty yet
    More,
    /// the segment, or more than one, is free
    Freed,
    /// nothing for now: another thread is using it
    Passed,
    /// its item gets another chance
    Spared,
}

/// A step in progress.
struct Emptying {
    segment: usize,
    life: SegmentLife,
    cursor: Cursor,
    /// where spared items go
    pool: usize,
    /// the table word up to which all splits are known to be finished
    finished: u64,
    /// items looked at
    items: u64,
    /// there was no space for an item that must not be evicted
    stuck: bool,
}

impl Victims {
    /// Walks over the items of a segment that no slot names any more, from this offset on, as long as they begin before `until`.
    /// Returns the offset that it reached, and how many items it passed. A function of its own, because most of what is reclaimed is dead.
    #[inline(never)]
    fn skip_dead(&self, segment_at: usize, from: usize, tail: usize, until: usize) -> (usize, u64) {
        // PAIRS: dead-mark: the store in `ItemCounts::mark_dead`.
        let word_at = |offset: usize| self.mapped.memory().get::<AtomicU32>(segment_at + offset).load(Acquire);
        let (mut offset, mut items) = (from, 0);
        while offset < until && offset + item::SIZE_MIN <= tail {
            let word = word_at(offset);
            // The part of the lifetime in which a record is marked: no other part of it says where the item ends.
            let lifetime_at = |offset: usize| word_at(offset + item::LIFETIME_OFFSET) & RECORD_IN_LIFETIME;
            let header = Header::of(word, || lifetime_at(offset));
            if !header.has(flag::DEAD) || header.validate(tail - offset).is_none() {
                break;
            }
            // Most headers are as the one before: then the processor need not wait for this word to know where the next one is.
            let size = header.size();
            let end = until.min(tail + 1 - size);
            loop {
                // Where a later header is if these items are of one size. The next step profits too.
                self.mapped.memory().prefetch::<1>(segment_at + offset + HEADERS_AHEAD * size);
                offset += size;
                items += 1;
                if offset >= end || word_at(offset) != word {
                    break;
                }
                if header.has(flag::LIFETIME) && header != Header::of(word, || lifetime_at(offset)) {
                    break;
                }
            }
        }
        (offset, items)
    }
}

impl Reclaimer {
    /// A step of emptying a victim: about `budget` bytes of items. Returns what it did, and the bytes.
    pub(crate) fn empty_step(&self, victim: Victim, budget: usize, now: u32) -> (Step, usize) {
        let mapped = self.mapped();
        let segment = victim.segment;
        // PAIRS: owner: the claim, in `Claims::claim`. PAIRS: large: the store in `write_chain`. PAIRS: chain-owner: the exchange in
        // `disown_chain`.
        let state = State(mapped.header(segment).state.load(Acquire));
        if let Some(owner) = state.owner()
            && (owner == self.thread().owner() || self.log().claims().threads().is_held(owner))
        {
            return (Step::Passed, 0);
        }
        let claimed = match state.kind() {
            Some(Kind::Open) => self.claim_open(victim, state),
            Some(Kind::Retired) => !self.thread().operates_on(segment) && self.claim_in_life(victim, state),
            Some(Kind::Claimed) => !self.thread().operates_on(segment) && self.claim_idle(victim, state),
            Some(Kind::Large) => {
                return (
                    self.reclaim_large(segment, state, Some(victim.spare), now),
                    mapped.layout().shape.segment_size,
                );
            }
            Some(Kind::Index | Kind::Hints | Kind::Ghosts) => return (self.reclaim_index(segment, state), 0),
            Some(Kind::Withdrawn) => return (self.settle_withdrawn(segment, state), 0),
            Some(Kind::Free) | None => false,
        };
        if claimed {
            self.emptying(segment, state, victim.spare, budget, now)
        } else {
            (Step::Passed, 0)
        }
    }

    /// Seals an open segment and claims it, unless a live thread may still publish from it.
    fn claim_open(&self, victim: Victim, state: State) -> bool {
        let segment = victim.segment;
        if self.thread().operates_on(segment) {
            return false;
        }
        self.log().claims().seal(segment, victim.generation);
        self.log().extents().close_extents_in(segment);
        !self.log().claims().segments().has_live_extent(segment) && self.claim_idle(victim, state)
    }

    /// Claims the victim, if it still has the generation in which it was chosen. State words do not contain generations, so a
    /// thread that slept may have claimed a recycled segment: it gives that back unchanged.
    fn claim_in_life(&self, victim: Victim, state: State) -> bool {
        let segment = victim.segment;
        if !self.log().claims().claim(segment, state) {
            return false;
        }
        let same = self.mapped().segment_life(segment).generation == victim.generation;
        if !same {
            // PAIRS: retire: the claim by the thread that continues: it comes after the threads that left the segment before.
            self.mapped().header(segment).state.store(state.0, Release);
        }
        same
    }

    /// Claims a segment that is, or may be, a log, unless a live thread may still publish from it. This thread may have slept
    /// since it read `state`, so the segment may have been recycled since: what was read before the claim is checked again after it.
    fn claim_idle(&self, victim: Victim, state: State) -> bool {
        if !self.claim_in_life(victim, state) {
            return false;
        }
        let segment = victim.segment;
        self.log().claims().seal(segment, victim.generation);
        let is_idle = !self.log().claims().segments().has_live_extent(segment);
        if !is_idle {
            let open = state.leave(Kind::Open);
            // PAIRS: retire: as in `claim_in_life`.
            self.mapped().header(segment).state.store(open.0, Release);
        }
        is_idle
    }

    /// Reclaims a segment that a dead thread owned, or a part of a large value that nothing leads to. If the segment has items,
    /// none is evicted: the dead thread may have been compacting it.
    pub(super) fn reclaim_if_lost(&self, segment: usize, now: u32) -> Step {
        // PAIRS: owner, chain-owner, large: as in `empty_step`.
        let state = State(self.mapped().header(segment).state.load(Acquire));
        match (state.kind(), state.owner()) {
            (Some(Kind::Claimed | Kind::Index | Kind::Hints | Kind::Ghosts | Kind::Withdrawn), Some(_)) => {
                let victim = Victim {
                    segment,
                    generation: self.mapped().segment_life(segment).generation,
                    spare: Spare::All,
                    in_turn: false,
                    is_offered: false,
                };
                self.empty_step(victim, usize::MAX, now).0
            }
            (Some(Kind::Open), None) => {
                self.log().claims().close_dead_extents(segment);
                self.log().extents().leave_to_others(segment);
                Step::Passed
            }
            (Some(Kind::Retired), None) => {
                self.victims.offer_begun(segment);
                Step::Passed
            }
            (Some(Kind::Large), owner) if owner.is_none_or(|owner| !self.log().claims().threads().is_held(owner)) => {
                self.reclaim_large(segment, state, None, now)
            }
            _ => Step::Passed,
        }
    }

    /// A step for a claimed segment: removes words that name it from the index, and after the last one gives it its next generation.
    fn emptying(&self, segment: usize, state: State, spare: Spare, budget: usize, now: u32) -> (Step, usize) {
        let mapped = self.mapped();
        let life = mapped.segment_life(segment);
        let saved = Cursor::of(mapped.header(segment).cursor.load(Relaxed), life.generation);
        let mut cursor = saved.unwrap_or(Cursor::start(spare));
        if spare == Spare::Nothing {
            cursor.spare = spare;
        }
        // A sleeping writer's hazard pointer may stand for hours: do not begin before it is gone.
        if cursor.offset == 0 && self.log().claims().threads().is_protected(segment, self.thread().owner()) {
            self.retire(segment, state, life, cursor);
            return (Step::Passed, 0);
        }
        let mut emptying = Emptying {
            segment,
            life,
            cursor,
            pool: if cursor.spare == Spare::All || !self.log().claims().segments().has_pools() {
                state.pool()
            } else {
                MAIN
            },
            finished: u64::MAX,
            items: 0,
            stuck: false,
        };
        let (ended, used) = self.empty_items(&mut emptying, budget, now);
        self.thread().count(Counter::purged, emptying.items);
        // Every word that this step removed, or found replaced, must be persistent before the bytes that it led to get another owner.
        mapped.barrier();
        if !ended {
            self.retire(segment, state, life, emptying.cursor);
            return (if emptying.stuck { Step::Passed } else { Step::More }, used);
        }
        // Splits that were done since the last item was looked for may have left a word of it frozen in their old bucket.
        self.index.publisher().splits().finish_last_split();
        if self.log().claims().threads().is_protected(segment, self.thread().owner()) {
            self.retire(segment, state, life, Cursor::start(cursor.spare));
            return (Step::Passed, used);
        }
        self.log().claims().bump(segment);
        self.log().claims().free_segment(segment);
        if cursor.spare == Spare::Promoted {
            self.log().ghosts().fit(self.log().claims(), self, now);
        }
        (Step::Freed, used)
    }

    /// Leaves a claimed segment to the thread that does the next step.
    fn retire(&self, segment: usize, state: State, life: SegmentLife, cursor: Cursor) {
        let header = self.mapped().header(segment);
        header.cursor.store(cursor.word(life.generation), Relaxed);
        // PAIRS: retire: the claim in `claim_in_life`: the thread that continues sees how far the reclaim has come.
        header.state.store(state.leave(Kind::Retired).0, Release);
    }

    /// Reclaims items from the cursor on. Returns whether it reached the end, and the bytes that it processed.
    fn empty_items(&self, emptying: &mut Emptying, budget: usize, now: u32) -> (bool, usize) {
        let mapped = self.mapped();
        let shape = mapped.layout().shape;
        let generation = emptying.life.generation;
        let lease = LeaseWord(mapped.header(emptying.segment).lease.load(Relaxed));
        if !lease.is_of_generation(generation) {
            return (true, 0);
        }
        let at = mapped.segment(emptying.segment);
        let mut used = 0;
        for (first, end) in lease.extents() {
            let (start, end) = (first * shape.cell_size(), (end * shape.cell_size()).min(shape.segment_size));
            // PAIRS: extent: the store in `begin_extent`.
            if start >= end
                || end <= emptying.cursor.offset
                || ExtentWord(mapped.word(at + start).load(Acquire)).generation() != generation
            {
                continue;
            }
            // PAIRS: tail: the store in `commit`.
            let tail = TailWord(mapped.word(at + start + 8).load(Acquire)).tail().min(end);
            let mut offset = emptying.cursor.offset.max(start + EXTENT_HEADER_SIZE);
            while offset + item::SIZE_MIN <= tail {
                let (living, dead) = self
                    .victims
                    .skip_dead(at, offset, tail, offset.saturating_add(budget.saturating_sub(used)));
                emptying.items += dead;
                used += living - offset;
                offset = living;
                emptying.cursor.offset = offset;
                if used >= budget {
                    return (false, used);
                }
                if offset + item::SIZE_MIN > tail {
                    break;
                }
                let Some(header) = self.all().items().item_header(at + offset).validate(tail - offset) else {
                    self.thread().count(Counter::corrupt, 1);
                    break;
                };
                mapped.memory().prefetch::<1>(at + offset + HEADERS_AHEAD * header.size());
                if !header.has(flag::DEAD) {
                    self.empty_item(emptying, offset, header, now);
                }
                if emptying.stuck {
                    return (false, used);
                }
                emptying.items += 1;
                used += header.size();
                offset += header.size();
            }
        }
        (true, used)
    }

    /// Removes one item of a claimed segment from the index, or moves it.
    fn empty_item(&self, emptying: &mut Emptying, offset: usize, header: Header, now: u32) {
        let mapped = self.mapped();
        let at = mapped.segment(emptying.segment) + offset;
        let mut bytes = [0; KEY_LEN_MAX];
        let Some(key) = bytes.get_mut(..header.key_len()) else {
            return;
        };
        mapped.memory().read(at + header.key_offset(), key);
        let key_hash = mapped.hasher().hash(key);
        let here = Slot::confirmed(0, 0, emptying.segment, offset);
        for _ in 0..ATTEMPTS_MAX {
            // Words that the last split left frozen in its old bucket name items of keys that are now in another bucket.
            let count = self.all().directory().table().count;
            if emptying.finished != count {
                self.index.publisher().splits().finish_last_split();
                emptying.finished = count;
            }
            let found = self.all().find_word(key_hash, |line| here.same_places(line), |_, _| true);
            let (place, word) = match found {
                Ok(Some(found)) => found,
                Ok(None) => return self.all().write_back_buckets(key_hash),
                Err((place, word)) => {
                    self.index.publisher().splits().unfreeze(place, word);
                    continue;
                }
            };
            let seen = ItemView {
                segment: emptying.segment,
                life: emptying.life,
                at,
                offset,
                header,
            };
            if word.is_tentative() {
                self.all().slots().abort(place, word);
                continue;
            }
            let present = emptying.life.epoch >= self.all().flushes().epoch(now) && self.all().items().until(&seen) > now;
            if present && let Some(frequency) = self.spared(emptying, word) {
                match self.relocate(emptying, place, word.with_frequency(frequency), word, &seen, now) {
                    Relocated::Yes => return,
                    // Compaction evicts nothing: it continues when there is space.
                    Relocated::NoRoom if emptying.cursor.spare == Spare::All => {
                        emptying.stuck = true;
                        return;
                    }
                    Relocated::NoRoom | Relocated::Unfit => {}
                    Relocated::Changed => continue,
                }
            }
            if self.index.publisher().evict_slot(place, word) {
                self.index.publisher().count_emptied(&seen, (place, word), present, now);
                if present && emptying.cursor.spare == Spare::Promoted {
                    self.log().ghosts().add_ghost(key_hash);
                }
                if let Some(chain) = self.all().items().chain(&seen) {
                    self.log().claims().free_chain(chain.first);
                }
                return;
            }
        }
        self.thread().count(Counter::corrupt, 1);
    }

    /// Whether to copy the item, and with what frequency.
    fn spared(&self, emptying: &Emptying, word: Slot) -> Option<u64> {
        let frequency = word.frequency();
        let (part, whole) = SPARED_MAX;
        let room = emptying.cursor.relocated < self.mapped().layout().shape.segment_size / whole * part;
        match emptying.cursor.spare {
            Spare::Nothing => None,
            Spare::All => Some(frequency),
            Spare::Promoted => (room && frequency >= PROMOTED_FROM).then_some(0),
            Spare::Hit => (room && frequency > 0).then(|| frequency - 1),
        }
    }

    /// Copies an item to the log's head and swaps its slot to the copy, which begins with the frequency of `like`. This thread
    /// has claimed the segment, so no other thread recycles it meanwhile.
    fn relocate(&self, emptying: &mut Emptying, place: Place, like: Slot, word: Slot, seen: &ItemView, now: u32) -> Relocated {
        let mapped = self.mapped();
        let stale = if Items::is_of_before_gap(self.mapped(), seen) {
            flag::STALE
        } else {
            0
        };
        let header = seen.header.with(flag::CAS | stale);
        if header.size() + EXTENT_HEADER_SIZE > mapped.layout().shape.segment_size {
            return Relocated::Unfit;
        }
        let is_compaction = emptying.cursor.spare == Spare::All;
        let copy = CopyOf { seen, header };
        let (segment, life, offset) =
            match self
                .log()
                .write_copy(self, &copy, (emptying.pool, is_compaction), emptying.life.epoch, now)
            {
                Ok(place) => place,
                Err(why) => return why,
            };
        // A word that may not be persistent yet does not become persistent by moving.
        let new = Slot::confirmed(word.tag(), life.generation, segment, offset)
            .copy_of(like)
            .as_dirty_as(word);
        let moved = self.all().slots().move_item(place, word, new);
        self.thread().release(UPKEEP);
        if !moved {
            self.log().claims().segments().count_dead(segment, header.size());
            return Relocated::Changed;
        }
        emptying.cursor.relocated += header.size();
        self.thread().count(Counter::relocations, 1);
        self.thread()
            .count(Counter::bytes, (header.size() as u64).wrapping_sub(seen.header.size() as u64));
        Relocated::Yes
    }

    /// Evicts the large item to which this segment belongs (`spare`: unless it must be spared; `None`: it stays in any case), or
    /// frees the segment if no item leads to it.
    fn reclaim_large(&self, segment: usize, state: State, spare: Option<Spare>, now: u32) -> Step {
        // While this hazard pointer stands, no thread gives the segment a new generation: what is found out about it stays true until it
        // is claimed.
        self.thread().protect(FREEING, segment);
        let step = self.reclaim_large_protected(segment, state, spare, now);
        self.thread().release(FREEING);
        step
    }

    fn reclaim_large_protected(&self, segment: usize, state: State, spare: Option<Spare>, now: u32) -> Step {
        let mapped = self.mapped();
        let at = mapped.segment(segment);
        let generation = mapped.segment_life(segment).generation;
        let (last, key_hash) = (Link(mapped.word(at + 8).load(Relaxed)), mapped.word(at + 16).load(Relaxed));
        for _ in 0..ATTEMPTS_MAX {
            // PAIRS: large, chain-owner: as in `empty_step`: the state is read before the generation.
            if State(mapped.header(segment).state.load(Acquire)) != state || mapped.segment_life(segment).generation != generation
            {
                return Step::Passed;
            }
            match self.find_head(key_hash, last) {
                Head::Moved => {}
                Head::Frozen(place, word) => self.index.publisher().splits().unfreeze(place, word),
                Head::Item(_, _, seen) if self.index.publisher().operates_on_item(seen.segment, seen.offset) => {
                    return Step::Passed;
                }
                Head::Item(place, word, seen) => {
                    let Some(spare) = spare else { return Step::Passed };
                    let present = seen.life.is_since(self.all().flushes().epoch(now)) && self.all().items().until(&seen) > now;
                    if present && spare == Spare::All {
                        // It was believed to be expired, but was touched since.
                        mapped.header(segment).expires.store(self.all().items().until(&seen), Relaxed);
                        return Step::Spared;
                    }
                    if present && self.spare_large((segment, state), last, (place, word), spare, now) {
                        return Step::Spared;
                    }
                    if let Some(chain) = self.evict_head((place, word), &seen, last, present, now) {
                        if present && spare == Spare::Promoted {
                            self.log().ghosts().add_ghost(key_hash);
                        }
                        self.log().claims().free_chain(chain.first);
                        return Step::Freed;
                    }
                }
                Head::None => return self.free_orphan(segment, state, key_hash),
            }
        }
        Step::Passed
    }

    /// Searches the item whose value has segments of its own with this last link.
    fn find_head(&self, key_hash: u64, last: Link) -> Head {
        let mut head = None;
        let tagged = |line: &Line| Slot::with_tag(line, tag(key_hash));
        // A head that changes during the search may have handed its segments to its successor: not an orphan until nothing changes.
        let mut moved = false;
        let found = self.all().find_word(key_hash, tagged, |place, word| {
            let seen = match self.all().look_in(place, word) {
                Followed::Got(seen) => seen,
                Followed::Moved => {
                    moved = true;
                    return false;
                }
                Followed::Corrupt => return false,
            };
            let ours = word.is_item() && self.all().items().chain(&seen).is_some_and(|c| c.last == last);
            moved |= !self.all().items().still(&seen);
            if ours && !moved {
                head = Some(seen);
            }
            ours && !moved
        });
        match (found, head) {
            (_, None) if moved => Head::Moved,
            (Err((place, word)), _) => Head::Frozen(place, word),
            (Ok(Some((place, word))), Some(seen)) => Head::Item(place, word, seen),
            _ => Head::None,
        }
    }

    /// Evicts a large item, and returns its segments. `None`: another thread was faster.
    fn evict_head(&self, slot: (Place, Slot), seen: &ItemView, last: Link, present: bool, now: u32) -> Option<Chain> {
        let (place, word) = slot;
        self.thread().protect(UPKEEP, seen.segment);
        let chain = match self.all().look_in(place, word) {
            Followed::Got(seen) => self
                .all()
                .items()
                .chain(&seen)
                .filter(|c| c.last == last && self.all().items().still(&seen)),
            _ => None,
        };
        let gone = chain.filter(|_| self.index.publisher().evict_slot(place, word));
        if gone.is_some() {
            self.index.publisher().count_gone(seen, slot, present, now);
        }
        self.thread().release(UPKEEP);
        gone
    }

    /// Frees a large value's segment to which no item leads, and to which no live writer is about to make one lead: an orphan.
    fn free_orphan(&self, segment: usize, state: State, key_hash: u64) -> Step {
        if !self.log().claims().claim(segment, state) {
            return Step::Passed;
        }
        // The word that replaced its head may be of a thread that did not reach a barrier.
        self.all().write_back_buckets(key_hash);
        self.mapped().barrier();
        let protected = self.log().claims().threads().protected_by_others(self.thread().owner());
        if !self.log().claims().bump_large(segment, &protected) {
            return Step::Passed;
        }
        self.log().claims().free_segment(segment);
        Step::Freed
    }

    /// Gives a large item that was hit another chance: its segments go to the queue's end, one by one as they are met. The last
    /// part was opened first, so it is met first and decides for all.
    fn spare_large(&self, own: (usize, State), last: Link, slot: (Place, Slot), spare: Spare, now: u32) -> bool {
        let mapped = self.mapped();
        let (segment, state) = own;
        let header = mapped.header(segment);
        let (place, word) = slot;
        let sequence = header.sequence.load(Relaxed);
        let pool = if last.segment() != segment && last.segment() < mapped.segments() {
            let decided = mapped.header(last.segment());
            if decided.sequence.load(Relaxed) < sequence {
                return false;
            }
            State(decided.state.load(Relaxed)).pool()
        } else {
            let (least, after) = match spare {
                Spare::Promoted => (PROMOTED_FROM, 0),
                Spare::Hit => (1, word.frequency().saturating_sub(1)),
                Spare::Nothing | Spare::All => return false,
            };
            if word.frequency() < least {
                return false;
            }
            self.all().slots().set_frequency(place, word, after);
            if self.log().claims().segments().has_pools() {
                MAIN
            } else {
                ADMISSION
            }
        };
        let stream = Stream { pool, ..state.stream() };
        header
            .sequence
            .store(self.log().claims().uniques().take_uniques(now).0, Relaxed);
        let _ = header
            .state
            .compare_exchange(state.0, State::of(Kind::Large, stream).0, Relaxed, Relaxed);
        true
    }

    /// A segment that was about to join the index, or the ghost table, when its owner died: completed if the directory has it,
    /// freed otherwise.
    fn reclaim_index(&self, segment: usize, state: State) -> Step {
        let entry = usize::try_from(self.mapped().header(segment).sequence.load(Relaxed)).unwrap_or(usize::MAX);
        let Some(kind) = state
            .kind()
            .filter(|kind| state.owner().is_some() && entry < self.all().directory().directory_len(*kind))
        else {
            return Step::Passed;
        };
        let directory = self.all().directory().directory_entry(kind, entry);
        if directory.load(Relaxed) as usize == segment + 1 {
            let _ = self
                .mapped()
                .header(segment)
                .state
                .compare_exchange(state.0, State::new(kind, 0).0, Relaxed, Relaxed);
            return Step::Passed;
        }
        if !self.log().claims().claim(segment, state) {
            return Step::Passed;
        }
        self.log().claims().bump(segment);
        self.log().claims().free_segment(segment);
        Step::Freed
    }
}

impl Reclaimer {
    /// After a death: looks at up to `count` of the segments that are still to be looked at, and frees unneeded ones. Returns
    /// whether there were any to look at.
    pub(crate) fn reclaim_lost(&self, count: usize, now: u32) -> bool {
        let lost = &self.mapped().superblock().lost;
        let mut found = false;
        for _ in 0..count {
            // PAIRS: sweep: the store in `Recovery::sweep_lost`.
            let left = lost.load(Acquire);
            let last = usize::try_from(left).unwrap_or(usize::MAX).min(self.mapped().segments());
            let Some(segment) = last.checked_sub(1) else { break };
            found |= self.reclaim_if_lost(segment, now) == Step::Freed;
            // After the look: if this thread dies in it, the next one looks again.
            let _ = lost.compare_exchange(left, segment as u64, Relaxed, Relaxed);
        }
        found
    }
}
