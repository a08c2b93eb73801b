//! Reading: from a key to its item. It takes no lock, no atomic read-modify-write (except for sampled hints) and no system call.
//!
//! The order of loads is the protocol (`model/region_protocol.py`, "get"): table word, slots; then for a slot with the key's
//! tag: segment words, the slot again, header, key, value, generation again. On a miss the table word again.

use crate::atomics::{Acquire, AtomicU32, AtomicU64, Relaxed, SeqCst, fence};
use crate::clock::ttl;
use crate::directory::Directory;
use crate::flushes::Flushes;
use crate::hash::Keyed;
use crate::hash::{Key, choices, tag, third_choice};
use crate::heap::List;
use crate::index::slots::Slots;
use crate::layout::bucket;
use crate::layout::bucket::{SLOTS, Table};
use crate::layout::item::{Header, LIFETIME_OFFSET, SIZE_MIN};
use crate::layout::segment::SegmentLife;
use crate::layout::slot::Slot;
use crate::limits::LimitWords;
use crate::log::Items;
use crate::log::{ATTEMPTS_MAX, ItemView};
use crate::mapped::Mapped;
use crate::memory::KeyRoom;
use crate::memory::{Line, View};
use crate::sink::Nowhere;
use crate::sink::{Sink, Unread};
use crate::verbs::{Get, Item};
use crate::verbs::{Read, WriteError};
use std::sync::Arc;

/// A slot of the index: where it is, and in which bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    /// its offset in the region; private to the index, so that no other room stores its word
    pub(super) at: usize,
    /// its bucket
    pub bucket: u64,
    /// its number in the bucket
    pub index: usize,
}

impl Place {
    /// The slot with this number in the bucket at this offset.
    #[inline]
    pub fn new(bucket: u64, bucket_at: usize, index: usize) -> Self {
        Self {
            at: bucket_at + index * 8,
            bucket,
            index,
        }
    }

    /// Whether the slot is at this offset.
    pub fn is_at(&self, offset: u64) -> bool {
        self.at as u64 == offset
    }

    /// The first empty slot of the bucket that has more of them.
    #[inline]
    pub fn emptiest([first, second]: [(u64, usize); 2], [a, b]: &[Line; 2]) -> Option<Self> {
        let [a, b] = [Slot::empties(a), Slot::empties(b)];
        let ((bucket, at), free) = if a.count_ones() >= b.count_ones() {
            (first, a)
        } else {
            (second, b)
        };
        (free != 0).then(|| Self::new(bucket, at, free.trailing_zeros() as usize))
    }
}

/// Where a key may be: numbers and offsets of its buckets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buckets {
    /// the third one counts only if any key was ever put into its third bucket
    all: [(u64, usize); 3],
    count: usize,
}

impl Buckets {
    /// The key's first two buckets.
    #[inline(always)]
    pub fn pair(&self) -> [(u64, usize); 2] {
        let [a, b, _] = self.all;
        [a, b]
    }

    /// All buckets to search.
    #[inline(always)]
    pub fn iter(&self) -> core::iter::Copied<core::slice::Iter<'_, (u64, usize)>> {
        self.all.get(..self.count).unwrap_or(&self.all).iter().copied()
    }
}

/// Where a slot's word leads, as long as the segment has the generation that the word names.
#[derive(Clone, Copy, Debug)]
pub(super) struct ItemAt {
    pub segment: usize,
    pub life: SegmentLife,
    /// offset in the region
    pub(super) at: usize,
    /// offset in the segment
    pub offset: usize,
}

/// The result of following a slot's word.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Followed<T> {
    Got(T),
    /// the slot or the segment changed meanwhile: look again
    Moved,
    /// the word leads to nothing valid: shared memory is corrupted
    Corrupt,
}

/// How a pass over a key's words ended.
pub(super) enum Pass<T> {
    Done(T),
    /// no word ended it; the table word was the same all the time
    Absent(Table),
    /// something changed meanwhile: pass once more
    Again,
    /// the directory lacks a bucket: shared memory is corrupted
    Corrupt,
}

/// The candidates of a bucket's line, or, if it has any, its frozen words.
#[inline]
pub(super) fn frozen_or(line: &Line, candidates: impl Fn(&Line) -> u32) -> u32 {
    if Slot::any_frozen(line) {
        (0..SLOTS)
            .filter(|index| Slot::of(line, *index).is_frozen())
            .fold(0, |bits, index| bits | 1 << index)
    } else {
        candidates(line)
    }
}

/// An item that a get found, and the word that led there.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FoundItem {
    pub item: Item,
    pub place: Place,
    pub word: Slot,
}

/// What a lookup found.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Lookup {
    /// reported separately: see [`Index::get`]
    Hit,
    Miss,
    Expired,
    Flushed,
    Corrupt,
    /// the slot's item does not match its checksums
    Damaged {
        place: Place,
        word: Slot,
    },
    /// the item is present, but this process has no memory for its value
    NoMemory {
        /// bytes of the value
        len: usize,
    },
}

/// From a key to its item.
#[derive(Clone)]
pub struct Index {
    pub(super) mapped: Arc<Mapped>,
    pub(super) directory: Arc<Directory>,
    pub(super) items: Items,
    pub(super) slots: Slots,
    pub(super) flushes: Flushes,
    pub(super) limits: LimitWords,
}

impl Index {
    pub(crate) fn new(directory: &Arc<Directory>, flushes: &Flushes, items: &Items, slots: &Slots, limits: &LimitWords) -> Self {
        Self {
            mapped: Arc::clone(&slots.mapped),
            directory: Arc::clone(directory),
            items: items.clone(),
            slots: slots.clone(),
            flushes: flushes.clone(),
            limits: limits.clone(),
        }
    }

    /// The items, as they are read.
    #[inline(always)]
    pub(crate) fn items(&self) -> &Items {
        &self.items
    }

    /// The slots, one by one.
    #[inline(always)]
    pub(crate) fn slots(&self) -> &Slots {
        &self.slots
    }

    /// Where the buckets are.
    #[inline(always)]
    pub(crate) fn directory(&self) -> &Directory {
        &self.directory
    }

    /// The flush word.
    #[inline(always)]
    pub(crate) fn flushes(&self) -> &Flushes {
        &self.flushes
    }

    /// What the region allows.
    #[inline(always)]
    pub(crate) fn limits(&self) -> &LimitWords {
        &self.limits
    }

    /// The buckets in which the key of a hash may be. `None`: the directory lacks one, so shared memory is corrupted.
    #[inline(always)]
    pub(crate) fn buckets(&self, hash: u64, table: Table) -> Option<Buckets> {
        let [a, b] = choices(hash);
        let [a, b] = [table.bucket(a), table.bucket(b)];
        let [a, b] = [(a, self.directory.bucket(a)?), (b, self.directory.bucket(b)?)];
        if self.has_thirds() {
            let third = self.third_bucket(hash, table)?;
            return Some(Buckets {
                all: [a, b, third],
                count: 3,
            });
        }
        Some(Buckets {
            all: [a, b, b],
            count: 2,
        })
    }

    /// Whether any thread has ever put an item into a third bucket.
    ///
    /// SeqCst: if an inserter reads "no" after it has stored its tentative word, an inserter that stores "yes" later sees that word.
    #[inline(always)]
    pub(crate) fn has_thirds(&self) -> bool {
        // PAIRS: third: the store in `Publisher::announce_third`.
        self.mapped.superblock().thirds.load(SeqCst) != 0
    }

    /// The bucket of a hash's third choice.
    #[cold]
    #[inline(never)]
    pub(super) fn third_bucket(&self, hash: u64, table: Table) -> Option<(u64, usize)> {
        let bucket = table.bucket(third_choice(hash));
        let at = self.directory.bucket(bucket)?;
        self.mapped.memory().prefetch::<1>(at);
        Some((bucket, at))
    }

    /// Follows a word to the item's header, from the slot at this place.
    #[inline]
    pub(crate) fn look_in(&self, place: Place, word: Slot) -> Followed<ItemView> {
        self.look(self.slots.slot(place.at), word)
    }

    /// Goes once through the words in the buckets of a key with this hash, as far as they are among the `candidates` of their
    /// bucket's line, and ends with what `visit` returns of one of them.
    ///
    /// The table word is read before the buckets and once more after them: a split may have moved the key meanwhile.
    #[inline]
    pub(super) fn pass<T>(
        &self,
        hash: u64,
        candidates: impl Fn(&Line) -> u32,
        mut visit: impl FnMut(Table, Place, Slot) -> Option<Pass<T>>,
    ) -> Pass<T> {
        let table = self.directory.table();
        let Some(buckets) = self.buckets(hash, table) else {
            return Pass::Corrupt;
        };
        for (_, at) in buckets.pair() {
            self.mapped.memory().prefetch::<1>(at);
        }
        for (bucket, bucket_at) in buckets.iter() {
            let line = self.mapped.memory().line(bucket_at);
            let mut found = candidates(&line);
            while found != 0 {
                let index = found.trailing_zeros() as usize;
                found &= found - 1;
                if let Some(end) = visit(table, Place::new(bucket, bucket_at, index), Slot::of(&line, index)) {
                    return end;
                }
            }
        }
        if self.directory.table() == table {
            Pass::Absent(table)
        } else {
            Pass::Again
        }
    }

    /// The item to which a slot's word leads. The error is how a pass goes on: this word leads to none, or it has to begin again.
    fn item_in<T>(&self, place: Place, word: Slot) -> Result<ItemView, Option<Pass<T>>> {
        if word.is_dirty() {
            // The answer depends on this word, so the word must be persistent first.
            self.slots.persist_word(place.at, word);
            return Err(Some(Pass::Again));
        }
        if !word.is_item() {
            return Err(None);
        }
        match self.look_in(place, word) {
            Followed::Got(seen) => Ok(seen),
            Followed::Moved => Err(Some(Pass::Again)),
            Followed::Corrupt => Err(None),
        }
    }

    /// A pass over the items to which words with the tag of this hash lead.
    fn pass_items<T>(&self, hash: u64, mut visit: impl FnMut(Table, Place, Slot, ItemView) -> Option<Pass<T>>) -> Pass<T> {
        let wanted = tag(hash);
        self.pass(
            hash,
            |line| Slot::with_tag(line, wanted),
            |table, place, word| match self.item_in(place, word) {
                Ok(seen) => visit(table, place, word, seen),
                Err(end) => end,
            },
        )
    }

    /// The first word in the key's buckets that is among the `candidates` and for which `is_it` is true, with its slot. `Err`: a
    /// frozen slot is there.
    pub(crate) fn find_word(
        &self,
        hash: u64,
        candidates: impl Fn(&Line) -> u32,
        mut is_it: impl FnMut(Place, Slot) -> bool,
    ) -> Result<Option<(Place, Slot)>, (Place, Slot)> {
        for _ in 0..ATTEMPTS_MAX {
            let pass = self.pass(
                hash,
                |line| frozen_or(line, &candidates),
                |_, place, word| {
                    if word.is_frozen() {
                        Some(Pass::Done(Err((place, word))))
                    } else {
                        is_it(place, word).then_some(Pass::Done(Ok(Some((place, word)))))
                    }
                },
            );
            match pass {
                Pass::Done(found) => return found,
                Pass::Absent(_) | Pass::Corrupt => return Ok(None),
                Pass::Again => {}
            }
        }
        Ok(None)
    }

    /// Follows a word from its slot to the item's header.
    #[inline(always)]
    pub(super) fn look(&self, slot: &AtomicU64, word: Slot) -> Followed<ItemView> {
        match self.follow(word) {
            Some(led) => self.look_at(led, slot, word),
            None => unlooked(slot, word),
        }
    }

    /// First half of [`Self::look`]: checks the generation and prefetches the item. `None`: the word leads to no item, or not any more.
    #[inline(always)]
    pub(super) fn follow(&self, word: Slot) -> Option<ItemAt> {
        self.mapped
            .has(word.segment())
            .then(|| Self::follow_known(&self.mapped, self.mapped.memory().view(), word))
            .flatten()
    }

    /// Checks the generation and prefetches the item, for a caller that does not check whether the region has grown.
    #[inline(always)]
    #[allow(unsafe_code, reason = "the segment's words; its number was compared before")]
    pub(super) fn follow_known(mapped: &Mapped, view: View<'_>, word: Slot) -> Option<ItemAt> {
        let (segment, offset) = (word.segment(), word.offset());
        if segment >= mapped.segments() {
            return None;
        }
        let at = mapped.segment(segment) + offset;
        // Header, key and the beginning of the value arrive together, while the words are being compared: three lines.
        view.prefetch_three(at);
        let led = ItemAt {
            segment,
            // SAFETY: there is the segment.
            life: Mapped::life_of(unsafe { mapped.words_in(view, segment) }),
            at,
            offset,
        };
        let fits = offset + SIZE_MIN <= mapped.layout().shape.segment_size;
        (word.is_of_generation(led.life.generation) && fits).then_some(led)
    }

    /// Second half of [`Self::look`]: reads the slot again, then the header.
    #[inline(always)]
    fn look_at(&self, led: ItemAt, slot: &AtomicU64, word: Slot) -> Followed<ItemView> {
        // The nine bits of generation in a slot wrap. So the slot is read again after the segment's words: it must still name the segment.
        // PAIRS: item: the publish of the word that is there now, if the segment was recycled.
        if !word.same_but_frequency(Slot(slot.load(Acquire))) {
            return Followed::Moved;
        }
        match Self::header_of(self.mapped.memory().view(), &led).validate(self.mapped.layout().shape.segment_size - led.offset) {
            Some(header) => Followed::Got(ItemView {
                segment: led.segment,
                life: led.life,
                at: led.at,
                offset: led.offset,
                header,
            }),
            None => {
                // PAIRS: generation: the fence in `Claims::claim_from_free`, as in `still`.
                fence(Acquire);
                if self.mapped.segment_life(led.segment).generation == led.life.generation {
                    unlooked(slot, word)
                } else {
                    Followed::Moved
                }
            }
        }
    }

    /// The header at the place to which a word leads, or what is now in its place.
    #[inline(always)]
    #[allow(unsafe_code, reason = "the item's first words, where `follow` has led")]
    pub(super) fn header_of(view: View<'_>, led: &ItemAt) -> Header {
        // SAFETY: `follow`, which alone makes this, has found that there is the segment, and that the smallest item, which has both
        // words, ends in it. Items begin at multiples of 4.
        // PAIRS: dead-mark: the store in `ItemCounts::mark_dead`.
        let load = |at| unsafe { view.at::<AtomicU32>(at) }.load(Acquire);
        Header::of(load(led.at), || load(led.at + LIFETIME_OFFSET))
    }

    /// Gets a key's item. On a hit the sink takes the item, and the value if it is asked for; otherwise it is as long as before.
    /// `VERIFIED`: the region has checksums; a function of its own, so that a region without them does not pay. A hit is stored
    /// in `hit`, by reference: a processor waits for the words of a result that is moved just after it was made.
    #[inline]
    pub(crate) fn get<const VERIFIED: bool, S: Sink>(
        &self,
        key: &Key<'_>,
        how: &Get,
        now: u32,
        sink: &mut S,
        hit: &mut FoundItem,
    ) -> Lookup {
        for _ in 0..ATTEMPTS_MAX {
            let epoch = self.flushes.epoch(now);
            let pass = self.pass_items(key.hash, |table, place, word, seen| {
                if how.value {
                    self.mapped.memory().prefetch_to_copy(seen.at, seen.header.value_len());
                }
                if !self.items.has_key(&seen, key.bytes) {
                    return if self.items.still(&seen) { None } else { Some(Pass::Again) };
                }
                if seen.is_present(epoch, now) {
                    return Some(self.take::<VERIFIED, S>(key, how, now, sink, hit, (table, place, word, seen)));
                }
                Some(match self.items.still(&seen) {
                    false => Pass::Again,
                    true if seen.life.epoch < epoch => Pass::Done(Lookup::Flushed),
                    true => Pass::Done(Lookup::Expired),
                })
            });
            match pass {
                Pass::Done(lookup) => return lookup,
                Pass::Absent(_) => return Lookup::Miss,
                Pass::Corrupt => return Lookup::Corrupt,
                Pass::Again => {}
            }
        }
        Lookup::Corrupt
    }

    /// Gives the item to which this word has led to the sink. [`Pass::Again`]: it changed meanwhile, and the sink is as long as before.
    #[inline(always)]
    fn take<const VERIFIED: bool, S: Sink>(
        &self,
        key: &Key<'_>,
        how: &Get,
        now: u32,
        sink: &mut S,
        hit: &mut FoundItem,
        (table, place, word, seen): (Table, Place, Slot, ItemView),
    ) -> Pass<Lookup> {
        let start = sink.len();
        let checksum_size = if VERIFIED { self.mapped.checksum_size() } else { 0 };
        let item = self.facts_before(&seen, (place, word), how.details, now, checksum_size);
        let wants_value = sink.begin(&item)
            && how.value
            && how.unless_cas.is_none_or(|cas| cas != item.cas)
            && how.at_most.is_none_or(|most| item.value_len <= most);
        let copied = if VERIFIED {
            self.items.append_verified(&seen, key.bytes, &item, wants_value, sink)
        } else if wants_value {
            let begun = sink.len();
            let appended = self.items.append_value(&seen, sink);
            appended.and(if sink.len() - begun == item.value_len {
                Ok(())
            } else {
                Err(Unread::Changed)
            })
        } else {
            Ok(())
        };
        if copied.is_ok() && self.items.still(&seen) {
            *hit = FoundItem { item, place, word };
            return Pass::Done(Lookup::Hit);
        }
        sink.truncate(start);
        // A value's segments are freed, and an item is marked dead, only after its slot has changed (or the table word, where a
        // split left a frozen word). So if neither has changed, the item is corrupted.
        let unchanged =
            || word.same_but_frequency(Slot(self.slots.slot(place.at).load(Relaxed))) && self.directory.table() == table;
        match copied {
            Err(unread) if self.items.still(&seen) && unchanged() => Pass::Done(match unread {
                Unread::NoMemory => Lookup::NoMemory { len: item.value_len },
                Unread::Changed if VERIFIED => Lookup::Damaged { place, word },
                Unread::Changed => Lookup::Corrupt,
            }),
            _ => Pass::Again,
        }
    }

    /// What is known of an item besides its key and value. With `details`, also what needs other cache lines.
    #[inline]
    pub(crate) fn facts(&self, seen: &ItemView, slot: (Place, Slot), details: bool, now: u32) -> Item {
        self.facts_before(seen, slot, details, now, self.mapped.checksum_size())
    }

    /// What is known of an item whose body ends before this many bytes of checksum. With `details`, also what needs other cache
    /// lines.
    #[inline(always)]
    fn facts_before(&self, seen: &ItemView, (place, word): (Place, Slot), details: bool, now: u32, checksum_size: usize) -> Item {
        let value_len = self.items.value_len(seen, checksum_size);
        let mut item = Self::plain_facts(
            &self.mapped,
            seen,
            value_len,
            self.items.size(seen),
            ttl(seen.header.expiry(), now),
        );
        if details {
            item.cas = self.items.cas_unique(seen);
            (item.fetched, item.idle_s) = (word.is_fetched(), self.slots.idle_s(seen, place, now));
        }
        item
    }

    /// The facts that need no other cache line, of an item with this length, size and time left.
    #[inline(always)]
    pub(super) fn plain_facts(mapped: &Mapped, seen: &ItemView, value_len: usize, size: usize, ttl_s: Option<u32>) -> Item {
        let (marks, flags) = Items::marks_and_flags(mapped, seen);
        Item {
            value_len,
            flags,
            ttl_s,
            size,
            ..Item::marked(marks)
        }
    }

    /// Appends the key of the item with this hash to `key`, which has space for the longest. `false`: there is no such item at `now`.
    pub fn key_of_hash(&self, hash: u64, now: u32, key: &mut Vec<u8>) -> bool {
        let epoch = self.flushes.epoch_unchanged(now);
        let start = key.len();
        // The hottest keys may have another item before the first one's lines have come from memory.
        for _ in 0..ATTEMPTS_MAX {
            let pass = self.pass_items(hash, |_, _, _, seen| {
                let _ = self
                    .mapped
                    .memory()
                    .append_to(seen.at + seen.header.key_offset(), seen.header.key_len(), key);
                let is_it = self.mapped.hash(key.get(start..).unwrap_or_default()) == hash;
                let is_whole = self.items.still(&seen);
                if is_whole && is_it {
                    return Some(Pass::Done(seen.is_present(epoch, now)));
                }
                key.truncate(start);
                if is_whole { None } else { Some(Pass::Again) }
            });
            match pass {
                Pass::Done(is_present) => return is_present,
                Pass::Absent(_) | Pass::Corrupt => return false,
                Pass::Again => {}
            }
        }
        false
    }

    /// Visits live items from bucket `cursor` on, until about `budget` buckets and items have been looked at, live or not.
    /// Returns the next cursor, `None` at the end. An item that is present all the time is visited at least once; one that a
    /// split moves may be visited twice.
    pub fn walk(&self, cursor: u64, budget: usize, now: u32, mut visit: impl FnMut(&[u8], &Item)) -> Option<u64> {
        let epoch = self.flushes.epoch_unchanged(now);
        let mut key = List::with_capacity(crate::verbs::KEY_LEN_MAX);
        let key = key.as_vec();
        let mut looked = 0;
        let mut bucket = cursor;
        while bucket < self.directory.table().count {
            if looked >= budget {
                return Some(bucket);
            }
            looked += 1;
            let bucket_at = self.directory.bucket(bucket)?;
            for index in 0..SLOTS {
                let place = Place::new(bucket, bucket_at, index);
                for _ in 0..ATTEMPTS_MAX {
                    // PAIRS: item: the publish in `Publisher::swap_same` and in `insert`.
                    let word = Slot(self.slots.slot(place.at).load(Acquire));
                    let seen = match self.item_in::<()>(place, word) {
                        Ok(seen) => seen,
                        Err(None) => break,
                        Err(Some(_)) => continue,
                    };
                    looked += 1;
                    key.clear();
                    // `out` has the space already.
                    let _ = self
                        .mapped
                        .memory()
                        .append_to(seen.at + seen.header.key_offset(), seen.header.key_len(), key);
                    let item = self.facts(&seen, (place, word), true, now);
                    if !self.items.still(&seen) {
                        continue;
                    }
                    if self.items.has_checksums()
                        && self.items.append_verified(&seen, key, &item, false, &mut Vec::new()).is_err()
                    {
                        // The item was replaced meanwhile, or it is corrupted.
                        match word.same_but_frequency(Slot(self.slots.slot(place.at).load(Relaxed))) {
                            true => break,
                            false => continue,
                        }
                    }
                    if seen.is_present(epoch, now) {
                        visit(key, &item);
                    }
                    break;
                }
            }
            bucket += 1;
        }
        None
    }

    /// Whether the item to which this word leads does not match its checksums, or there is none.
    pub(super) fn is_damaged(&self, key: &[u8], place: Place, word: Slot) -> bool {
        match self.look_in(place, word) {
            Followed::Got(seen) => {
                let item = self.facts(&seen, (place, word), true, 0);
                self.items.append_verified(&seen, key, &item, true, &mut Nowhere) == Err(Unread::Changed)
            }
            Followed::Moved => false,
            Followed::Corrupt => true,
        }
    }

    /// Starts to write back a key's buckets, before the caller relies on it that no word in them leads to some place.
    #[cfg_attr(feature = "observe", track_caller)]
    pub(crate) fn write_back_buckets(&self, hash: u64) {
        if self.mapped.is_durable()
            && let Some(buckets) = self.buckets(hash, self.directory.table())
        {
            for (_, at) in buckets.iter() {
                self.mapped.write_back(at, bucket::SIZE);
            }
        }
    }

    /// Get, for a process that has no session and may only read: nothing is stored, counted or marked. Otherwise as
    /// [`Session::get`](crate::Session::get).
    ///
    /// # Errors
    ///
    /// A bad key.
    pub fn read<S: Sink>(&self, key: impl Keyed, how: &Get, now: u32, sink: &mut S) -> Result<Read, WriteError> {
        let mut room = KeyRoom::new();
        let key = key.keyed(self.mapped.hasher(), &mut room)?;
        if how.exptime.is_some() {
            return Ok(Read::Change);
        }
        let start = sink.len();
        let mut hit = FoundItem::default();
        let found = if self.items.has_checksums() {
            self.get::<true, _>(&key, how, now, sink, &mut hit)
        } else {
            self.get::<false, _>(&key, how, now, sink, &mut hit)
        };
        let item = hit.item;
        Ok(match found {
            Lookup::Hit if how.wins(&item, item.ttl_s) => {
                sink.truncate(start);
                Read::Change
            }
            Lookup::Hit => Read::Hit(item),
            Lookup::Corrupt | Lookup::Damaged { .. } => Read::Miss,
            Lookup::NoMemory { len } => return Err(WriteError::NoMemory { len }),
            Lookup::Miss | Lookup::Expired | Lookup::Flushed if how.vivify.is_some() => Read::Change,
            Lookup::Expired => Read::Expired,
            Lookup::Miss | Lookup::Flushed => Read::Miss,
        })
    }
}

/// A word is reclaimed before its segment's generation moves on. So after a mismatch the word is gone by now, or it is corrupted.
#[inline(always)]
fn unlooked(slot: &AtomicU64, word: Slot) -> Followed<ItemView> {
    if is_same(slot, word) {
        Followed::Corrupt
    } else {
        Followed::Moved
    }
}

#[cold]
#[inline(never)]
fn is_same(slot: &AtomicU64, word: Slot) -> bool {
    word.same_but_frequency(Slot(slot.load(Relaxed)))
}
