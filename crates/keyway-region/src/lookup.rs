//! Reading: from a key to its item without a lock, an atomic read-modify-write (sampled hints aside) or a system call.
//!
//! The order of loads is the protocol (`model/region_protocol.py`, "get"): table word, slots, then for a slot with our tag:
//! segment words, the slot again, header, key, value, generation again. On a miss the table word again.

use crate::aside::List;
use crate::atomics::{Acquire, AtomicU32, AtomicU64, Relaxed, SeqCst, fence};
use crate::hash::{Key, choices, tag, third_choice};
use crate::layout::bucket::{SLOTS, Table};
use crate::layout::index;
use crate::layout::item::{ALIGNMENT, Header, LIFETIME_OFFSET, SIZE_MIN, flag};
use crate::layout::segment::{CHAIN_HEADER_SIZE, Link, SegmentLife};
use crate::layout::slot::{FREQUENCY_MAX, Slot};
use crate::memory::Line;
use crate::mutants::{self, Mutant};
use crate::operations::ttl;
use crate::out::Out;
use crate::region::Region;
use crate::verbs::{Get, Item};

/// How often an operation starts again before it calls the region corrupt. Contention takes a few; only a word that no
/// version of this program writes makes an endless loop, and this bound turns that into an error.
pub(crate) const ATTEMPTS_MAX: usize = 1 << 16;

/// Hints below tell the second of the last access, modulo as many; they are made coarse before that begins anew.
pub(crate) const HINT_SECONDS: u32 = 64;
/// Seconds that a unit of the others stands for.
pub(crate) const HINT_UNIT_S: u32 = 16;
/// Units before their time begins anew.
pub(crate) const HINT_UNITS: u32 = 63;
/// Hint: the item was fetched since it was written.
pub(crate) const HINT_FETCHED: u8 = 0x80;
/// Hint, lower bits: longer ago than can be said.
pub(crate) const HINT_OLD: u8 = 0x7F;
/// A hint of seconds that is this old becomes one of units.
const HINT_FINE_S: u32 = 16;
/// Hints older than this many units become [`HINT_OLD`].
const HINT_AGED: u32 = 32;
/// Seconds in which all hints are looked at, so that none begins anew: where there are hints of seconds, and elsewhere.
const SWEEP_FINE_S: u64 = 32;
const SWEEP_S: u64 = 248;
const _: () = assert!(HINT_SECONDS + HINT_UNITS == HINT_OLD as u32);
// A sweep that is late by as much as it takes does no harm either.
const _: () = assert!(HINT_FINE_S as u64 + SWEEP_FINE_S < HINT_SECONDS as u64);
const _: () = assert!((HINT_AGED * HINT_UNIT_S) as u64 + 2 * SWEEP_S <= (HINT_UNITS * HINT_UNIT_S) as u64);

/// Longest value: the largest item that can be allowed.
const VALUE_LEN_MAX: usize = 1 << 30;

/// Cache lines of an item that are asked for before its length is known: header, key and a small value.
const ITEM_PREFETCH: usize = 3;

/// A slot of the index: where it is, and whose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    /// its offset in the region
    pub at: usize,
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

    /// The first empty slot of whichever bucket has more of them.
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
    /// of the third only if any key was ever put into its third
    all: [(u64, usize); 3],
    count: usize,
}

impl Buckets {
    /// The two that come first.
    #[inline(always)]
    pub fn pair(&self) -> [(u64, usize); 2] {
        let [a, b, _] = self.all;
        [a, b]
    }

    /// All that are to be looked at.
    #[inline(always)]
    pub fn iter(&self) -> core::iter::Copied<core::slice::Iter<'_, (u64, usize)>> {
        self.all.get(..self.count).unwrap_or(&self.all).iter().copied()
    }
}

/// An item under a reader's eyes: valid as long as [`Region::still`] says so.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub segment: usize,
    pub life: SegmentLife,
    /// offset in the region
    pub at: usize,
    /// offset in the segment
    pub offset: usize,
    pub header: Header,
}

impl Seen {
    /// Whether it is there for those who ask: neither flushed before this epoch, nor expired.
    #[inline(always)]
    pub fn is_present(&self, epoch: u64, now: u32) -> bool {
        self.life.epoch >= epoch && !self.header.is_expired(now)
    }
}

/// Where a slot's word leads, as long as the segment is in the life that the word says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Led {
    pub segment: usize,
    pub life: SegmentLife,
    /// offset in the region
    at: usize,
    /// offset in the segment
    pub offset: usize,
}

/// What following a slot's word gave.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Look<T> {
    Got(T),
    /// the slot or the segment changed meanwhile: look again
    Moved,
    /// the word names what cannot be: shared memory is damaged
    Corrupt,
}

/// Why a value could not be copied; what was appended of it is rubbish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unread {
    /// it changed on the way, or it is damaged
    Changed,
    /// this process has no memory for it
    NoMemory,
}

/// A large item's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chain {
    pub value_len: usize,
    pub first: Link,
    /// the last link, which also tells this chain from any other
    pub last: Link,
}

impl Chain {
    /// From a body's words.
    #[inline]
    pub fn of([value_len, first, last]: [u64; 3]) -> Option<Self> {
        Some(Self {
            // The upper half is its checksum.
            value_len: Some(index(value_len & 0xFFFF_FFFF)).filter(|len| *len <= VALUE_LEN_MAX)?,
            first: Link(first),
            last: Link(last),
        })
    }
}

/// An item that a get found, and the word that led there.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Hit {
    pub item: Item,
    pub place: Place,
    pub word: Slot,
}

/// What a lookup found.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Found {
    /// told apart: see [`Region::get`]
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
    /// it is there, and this process has no memory for its value
    NoMemory {
        /// bytes of the value
        len: usize,
    },
}

impl Region {
    /// The buckets in which the key of a hash may be. `None`: the directory lacks one, which only damage explains.
    #[inline(always)]
    pub(crate) fn buckets(&self, hash: u64, table: Table) -> Option<Buckets> {
        let [a, b] = choices(hash);
        let [a, b] = [table.bucket(a), table.bucket(b)];
        let [a, b] = [(a, self.bucket(a)?), (b, self.bucket(b)?)];
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

    /// Whether anybody has ever put an item into a third bucket.
    ///
    /// SeqCst: if an inserter reads "no" after it has put its tentative word, an inserter that says "yes" later sees that word.
    #[inline(always)]
    pub(crate) fn has_thirds(&self) -> bool {
        // PAIRS: third: the store in `Session::announce_third`.
        self.superblock().thirds.load(SeqCst) != 0
    }

    /// The bucket of a hash's third choice.
    #[cold]
    #[inline(never)]
    pub(crate) fn third_bucket(&self, hash: u64, table: Table) -> Option<(u64, usize)> {
        let bucket = table.bucket(third_choice(hash));
        let at = self.bucket(bucket)?;
        self.memory.prefetch::<1>(at);
        Some((bucket, at))
    }

    /// Follows a word from its slot to the item's header.
    #[inline(always)]
    pub(crate) fn look(&self, slot: &AtomicU64, word: Slot) -> Look<Seen> {
        match self.follow(word) {
            Some(led) => self.look_at(led, slot, word),
            None => unlooked(slot, word),
        }
    }

    /// The first half of it: what the word leads to is asked for. `None`: nothing, at least not any more.
    #[inline(always)]
    pub(crate) fn follow(&self, word: Slot) -> Option<Led> {
        let segment = word.segment();
        if !self.has(segment) {
            return None;
        }
        let offset = word.offset();
        let at = self.segment(segment) + offset;
        // Header, key and the value's beginning arrive together, while the words are being compared.
        self.memory.prefetch::<ITEM_PREFETCH>(at);
        let led = Led {
            segment,
            life: self.segment_life(segment),
            at,
            offset,
        };
        let fits = offset + SIZE_MIN <= self.layout.shape.segment_size;
        (word.is_of_generation(led.life.generation) && fits).then_some(led)
    }

    /// The second half.
    #[inline(always)]
    pub(crate) fn look_at(&self, led: Led, slot: &AtomicU64, word: Slot) -> Look<Seen> {
        // The slot's ten bits of generation wrap; the slot still naming the segment after the segment's words were read does not.
        // PAIRS: item: the publish of the word that stands there now, if it is another life's.
        if !word.same_but_frequency(Slot(slot.load(Acquire))) {
            return Look::Moved;
        }
        match self.item_header(led.at).validate(self.layout.shape.segment_size - led.offset) {
            Some(header) => Look::Got(Seen {
                segment: led.segment,
                life: led.life,
                at: led.at,
                offset: led.offset,
                header,
            }),
            None => {
                // PAIRS: generation: the fence in `Session::claim_from_free`, as in `still`.
                fence(Acquire);
                if self.segment_life(led.segment).generation == led.life.generation {
                    unlooked(slot, word)
                } else {
                    Look::Moved
                }
            }
        }
    }

    /// What stands where an item's header is or was.
    #[inline(always)]
    pub(crate) fn item_header(&self, at: usize) -> Header {
        // PAIRS: dead-mark: the store in `Session::bury`.
        let word = |at| self.memory.get::<AtomicU32>(at).load(Acquire);
        Header::of(word(at), || word(at + LIFETIME_OFFSET))
    }

    /// Whether what was read of this item up to now was the item.
    #[inline(always)]
    pub(crate) fn still(&self, seen: &Seen) -> bool {
        // PAIRS: generation: the release fence in `Session::claim_from_free`: a reader of a new byte sees the new generation.
        fence(Acquire);
        self.words(seen.segment).generation.load(Relaxed) == seen.life.generation
    }

    /// Whether the item has this key. Meaningless unless [`Self::still`] holds afterwards.
    #[inline(always)]
    pub(crate) fn has_key(&self, seen: &Seen, key: &[u8]) -> bool {
        seen.header.key_len() == key.len() && self.memory.equals(seen.at + seen.header.key_offset(), key)
    }

    /// Gets: appends `head`'s bytes and the value to `out` on a hit, leaves `out` as it was otherwise. `VERIFIED`: in a region with
    /// checksums; a function of its own, so that a region without does not pay for them. A hit goes to `hit`: behind a reference, because a
    /// processor waits for the words of a result that is moved as soon as it was made.
    #[inline]
    pub(crate) fn get<const VERIFIED: bool, O: Out>(
        &self,
        key: &Key<'_>,
        how: &Get,
        now: u32,
        out: &mut O,
        head: &mut impl FnMut(&Item, &mut O),
        hit: &mut Hit,
    ) -> Found {
        let start = out.len();
        let wanted = tag(key.hash);
        'again: for _ in 0..ATTEMPTS_MAX {
            let epoch = self.epoch(now);
            let table = self.table();
            let Some(buckets) = self.buckets(key.hash, table) else {
                return Found::Corrupt;
            };
            self.memory.prefetch::<1>(buckets.pair()[0].1);
            self.memory.prefetch::<1>(buckets.pair()[1].1);
            for (bucket, bucket_at) in buckets.iter() {
                let line = self.memory.line(bucket_at);
                let mut same = Slot::with_tag(&line, wanted);
                while same != 0 {
                    let index = same.trailing_zeros() as usize;
                    same &= same - 1;
                    let word = Slot::of(&line, index);
                    let place = Place::new(bucket, bucket_at, index);
                    if word.is_dirty() {
                        // What is answered from it must be persistent first.
                        self.persist_word(place.at, word);
                        continue 'again;
                    }
                    if !word.is_item() {
                        continue;
                    }
                    let seen = match self.look(self.slot(place.at), word) {
                        Look::Got(seen) => seen,
                        Look::Moved => continue 'again,
                        Look::Corrupt => continue,
                    };
                    if how.value {
                        self.memory.prefetch_to_copy(seen.at, seen.header.value_len());
                    }
                    if !self.has_key(&seen, key.bytes) {
                        if self.still(&seen) {
                            continue;
                        }
                        continue 'again;
                    }
                    if !seen.is_present(epoch, now) {
                        if !self.still(&seen) {
                            continue 'again;
                        }
                        return if seen.life.epoch < epoch {
                            Found::Flushed
                        } else {
                            Found::Expired
                        };
                    }
                    let checksum_size = if VERIFIED { self.checksum_size } else { 0 };
                    let item = self.facts_before(&seen, place, how.details, now, checksum_size);
                    head(&item, out);
                    let wants_value = out.make_room(&item)
                        && how.value
                        && how.unless_cas.is_none_or(|cas| cas != item.cas)
                        && how.at_most.is_none_or(|most| item.value_len <= most);
                    let copied = if VERIFIED {
                        self.append_verified(&seen, key.bytes, &item, wants_value, out)
                    } else if wants_value {
                        let begun = out.len();
                        let appended = self.append_value(&seen, out);
                        appended.and(if out.len() - begun == item.value_len {
                            Ok(())
                        } else {
                            Err(Unread::Changed)
                        })
                    } else {
                        Ok(())
                    };
                    if copied.is_err() || !self.still(&seen) && !mutants::is(Mutant::GetWithoutSecondLook) {
                        out.truncate(start);
                        // A value's segments are freed, and an item is marked dead, after its slot has changed (or, where a split
                        // left a frozen word behind, the table word): otherwise it is damaged.
                        let unchanged =
                            || word.same_but_frequency(Slot(self.slot(place.at).load(Relaxed))) && self.table() == table;
                        if let Err(unread) = copied
                            && self.still(&seen)
                            && unchanged()
                        {
                            return match unread {
                                Unread::NoMemory => Found::NoMemory { len: item.value_len },
                                Unread::Changed if VERIFIED => Found::Damaged { place, word },
                                Unread::Changed => Found::Corrupt,
                            };
                        }
                        continue 'again;
                    }
                    (hit.item, hit.place, hit.word) = (item, place, word);
                    return Found::Hit;
                }
            }
            // A split may have moved the key between the two loads of the table word.
            if self.table() == table {
                return Found::Miss;
            }
        }
        Found::Corrupt
    }

    /// What is known of an item besides its key and value. With `details`, also what needs other cache lines.
    #[inline]
    pub(crate) fn facts(&self, seen: &Seen, place: Place, details: bool, now: u32) -> Item {
        self.facts_before(seen, place, details, now, self.checksum_size)
    }

    /// The same of an item whose body ends before so many bytes of checksum.
    #[inline(always)]
    fn facts_before(&self, seen: &Seen, place: Place, details: bool, now: u32, checksum_size: usize) -> Item {
        let header = seen.header;
        let (marks, flags) = self.marks_and_flags(seen);
        let mut item = Item {
            value_len: self.value_len(seen, checksum_size),
            flags,
            ttl_s: ttl(header.expiry(), now),
            size: self.size(seen),
            ..Item::marked(marks)
        };
        if details {
            item.cas = self.cas_unique(seen);
            (item.fetched, item.idle_s) = self.hint_facts(seen, place, now);
        }
        item
    }

    /// The item's marks ([`flag::MARKS`]), and the client's flags.
    #[inline(always)]
    pub(crate) fn marks_and_flags(&self, seen: &Seen) -> (u64, u32) {
        let stale = if self.is_of_before_gap(seen) { flag::STALE } else { 0 };
        let flags = if seen.header.has(flag::CLIENT_FLAGS) {
            self.client_flags(seen)
        } else {
            0
        };
        (seen.header.given() & flag::MARKS | stale, flags)
    }

    /// Whether the item is from before a gap behind which everything older is stale.
    #[inline(always)]
    pub(crate) fn is_of_before_gap(&self, seen: &Seen) -> bool {
        let before = self.superblock().stale_before.load(Relaxed);
        before != 0 && self.header(seen.segment).sequence.load(Relaxed) < before
    }

    #[inline]
    fn value_len(&self, seen: &Seen, checksum_size: usize) -> usize {
        match seen.header.is_large() {
            false => seen.header.value_len().saturating_sub(checksum_size),
            true => self.chain(seen).map_or(0, |chain| chain.value_len),
        }
    }

    /// Bytes that the item takes in the region, a large value's included.
    #[inline(always)]
    pub(crate) fn size(&self, seen: &Seen) -> usize {
        if seen.header.is_large() {
            self.size_with_chain(seen)
        } else {
            seen.header.size()
        }
    }

    #[cold]
    #[inline(never)]
    fn size_with_chain(&self, seen: &Seen) -> usize {
        seen.header.size().saturating_add(self.value_len(seen, self.checksum_size))
    }

    fn client_flags(&self, seen: &Seen) -> u32 {
        self.memory
            .get::<AtomicU32>(seen.at + seen.header.client_flags_offset())
            .load(Relaxed)
    }

    /// The item's CAS unique: the one that it carries, or the one that its place gives it.
    pub(crate) fn cas_unique(&self, seen: &Seen) -> u64 {
        if seen.header.has(flag::CAS) {
            self.memory.u64_unaligned(seen.at + seen.header.cas_offset())
        } else {
            cas_of(self.header(seen.segment).sequence.load(Relaxed), seen.offset)
        }
    }

    /// A large item's body.
    pub(crate) fn chain(&self, seen: &Seen) -> Option<Chain> {
        if !seen.header.is_large() {
            return None;
        }
        let at = seen.at + seen.header.value_offset();
        Chain::of([at, at + 8, at + 16].map(|at| self.memory.u64_unaligned(at)))
    }

    /// Copies the item's value to the end of `out`.
    pub(crate) fn append_value(&self, seen: &Seen, out: &mut impl Out) -> Result<(), Unread> {
        if seen.header.is_large() {
            return self.append_chain(self.chain(seen).ok_or(Unread::Changed)?, out);
        }
        let at = seen.at + seen.header.value_offset();
        out.append(&self.memory, at, seen.header.value_len()).map(|_| ())
    }

    /// The item's value, copied to `out`; `None` if it is longer, or has segments of its own.
    #[inline]
    pub(crate) fn short_value<'o>(&self, seen: &Seen, out: &'o mut [u8]) -> Option<&'o [u8]> {
        let out = out.get_mut(..seen.header.value_len()).filter(|_| !seen.header.is_large())?;
        self.memory.read(seen.at + seen.header.value_offset(), out);
        Some(out)
    }

    pub(crate) fn append_chain(&self, chain: Chain, out: &mut impl Out) -> Result<(), Unread> {
        let room = self.layout.shape.segment_size - CHAIN_HEADER_SIZE;
        let (mut link, mut left) = (chain.first, chain.value_len);
        let mut walked = 0;
        while walked < self.segments() {
            walked += 1;
            let segment = link.segment();
            if !self.has(segment) || self.segment_life(segment).generation != link.generation() {
                return Err(Unread::Changed);
            }
            let at = self.segment(segment);
            let next = Link(self.slot(at).load(Relaxed));
            let part = left.min(room);
            let copy = out.append(&self.memory, at + CHAIN_HEADER_SIZE, part);
            // PAIRS: generation: the fence in `Session::claim_from_free`, as in `still`.
            fence(Acquire);
            if self.segment_life(segment).generation != link.generation() {
                return Err(Unread::Changed);
            }
            let copy = copy?;
            if self.has_checksums() && !self.is_part_intact(link, next, chain.last, copy) {
                return Err(Unread::Changed);
            }
            left -= part;
            if left == 0 {
                return Ok(());
            }
            link = next;
        }
        Err(Unread::Changed)
    }

    /// Marks a hit: frequency in the slot (until it is full), time and "fetched" in the hint. Hints: a lost one does no harm.
    #[inline(always)]
    pub(crate) fn bump(&self, place: Place, word: Slot, now: u32) {
        if !word.is_frozen() && word.frequency() < FREQUENCY_MAX {
            let more = word.with_frequency(word.frequency() + 1);
            // Relaxed: a read-modify-write goes on with what the publish has released.
            let _ = self.slot(place.at).compare_exchange(word.0, more.0, Relaxed, Relaxed);
        }
        self.set_hint(place, now, true);
    }

    /// Writes a slot's hint if it says something else.
    #[inline(always)]
    pub(crate) fn set_hint(&self, place: Place, now: u32, fetched: bool) {
        if let Some(hint) = self.hint(place.bucket, place.index) {
            let new = self.hint_code(now) | if fetched { HINT_FETCHED } else { 0 };
            if hint.load(Relaxed) != new {
                hint.store(new, Relaxed);
            }
        }
    }

    /// The item of a slot that has just taken the place of `seen` is in use, and was fetched or not as that one. Said once in each period of
    /// so many seconds, as memcached says it once a minute (ITEM_UPDATE_INTERVAL): an item of a segment that was opened in the present
    /// period was written in it, and its writer has said so; or copied, then it is said in the next one.
    #[inline(always)]
    pub(crate) fn refresh_hint(&self, place: Place, seen: &Seen, now: u32) {
        const PERIOD_S: u32 = 64;
        if now ^ self.header(seen.segment).opened.load(Relaxed) >= PERIOD_S {
            self.set_hint_as_fetched(place, now);
        }
    }

    #[cold]
    #[inline(never)]
    fn set_hint_as_fetched(&self, place: Place, now: u32) {
        self.set_hint(place, now, self.is_fetched(place));
    }

    /// Whether the slot's hint says that its item was fetched since it was written.
    pub(crate) fn is_fetched(&self, place: Place) -> bool {
        self.hint(place.bucket, place.index)
            .is_some_and(|hint| hint.load(Relaxed) & HINT_FETCHED != 0)
    }

    /// Whether the item was fetched since it was written, and seconds since its last access, at least.
    pub(crate) fn hint_facts(&self, seen: &Seen, place: Place, now: u32) -> (bool, u32) {
        let hint = self.hint(place.bucket, place.index).map_or(HINT_OLD, |h| h.load(Relaxed));
        let fetched = hint & HINT_FETCHED != 0;
        let since_opened = now.saturating_sub(self.header(seen.segment).opened.load(Relaxed));
        let idle = match Told::by(hint, now) {
            Told::Seconds(seconds) => seconds,
            Told::Units(units) => (units * HINT_UNIT_S + now % HINT_UNIT_S).saturating_sub(HINT_UNIT_S - 1),
            Told::Old => since_opened.max(HINT_AGED * HINT_UNIT_S),
        };
        (fetched, idle)
    }

    #[inline(always)]
    fn hint_code(&self, now: u32) -> u8 {
        if self.has_fine_hints {
            (now % HINT_SECONDS).to_le_bytes()[0]
        } else {
            coarse_code(now)
        }
    }

    /// Turns hints that are about to be mistaken for recent ones into coarser ones, and into "old" in the end. Looks at a share of them a
    /// call: called once a second, it sees each before that.
    pub(crate) fn age_hints(&self, now: u32) {
        let count = self.table().count;
        let share = count.div_ceil(if self.has_fine_hints { SWEEP_FINE_S } else { SWEEP_S });
        let from = self.superblock().aging.fetch_add(share, Relaxed) % count;
        for bucket in from..(from + share).min(count) {
            for index in 0..SLOTS {
                let Some(hint) = self.hint(bucket, index) else { return };
                let old = hint.load(Relaxed);
                let aged = match Told::by(old, now) {
                    Told::Seconds(seconds @ HINT_FINE_S..) => coarse_code(now.saturating_sub(seconds)),
                    Told::Units(units) if units > HINT_AGED => HINT_OLD,
                    _ => continue,
                };
                let _ = hint.compare_exchange(old, old & HINT_FETCHED | aged, Relaxed, Relaxed);
            }
        }
    }

    /// Visits live items from bucket `cursor` on, until about `budget` buckets and items have been looked at, live or not; the next cursor,
    /// `None` at the end.
    /// An item that is there all the time is visited at least once; one that a split moves may be visited twice.
    pub fn walk(&self, cursor: u64, budget: usize, now: u32, mut visit: impl FnMut(&[u8], &Item)) -> Option<u64> {
        let epoch = self.epoch_unchanged(now);
        let mut key = List::with_capacity(crate::verbs::KEY_LEN_MAX);
        let key = key.as_vec();
        let mut looked = 0;
        let mut bucket = cursor;
        while bucket < self.table().count {
            if looked >= budget {
                return Some(bucket);
            }
            looked += 1;
            let bucket_at = self.bucket(bucket)?;
            for index in 0..SLOTS {
                let place = Place::new(bucket, bucket_at, index);
                for _ in 0..ATTEMPTS_MAX {
                    // PAIRS: item: the publish in `Session::swap_same` and in `insert`.
                    let word = Slot(self.slot(place.at).load(Acquire));
                    if word.is_dirty() {
                        self.persist_word(place.at, word);
                        continue;
                    }
                    if !word.is_item() {
                        break;
                    }
                    looked += 1;
                    let seen = match self.look(self.slot(place.at), word) {
                        Look::Got(seen) => seen,
                        Look::Moved => continue,
                        Look::Corrupt => break,
                    };
                    key.clear();
                    // It has the room already.
                    let _ = self
                        .memory
                        .append_to(seen.at + seen.header.key_offset(), seen.header.key_len(), key);
                    let item = self.facts(&seen, place, true, now);
                    if !self.still(&seen) {
                        continue;
                    }
                    if self.has_checksums() && self.append_verified(&seen, key, &item, false, &mut Vec::new()).is_err() {
                        // It was replaced meanwhile, or it is damaged.
                        match word.same_but_frequency(Slot(self.slot(place.at).load(Relaxed))) {
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
}

/// A word is purged before its segment's generation moves on, so a mismatch is either over by now or damage.
#[inline(always)]
fn unlooked(slot: &AtomicU64, word: Slot) -> Look<Seen> {
    if is_same(slot, word) { Look::Corrupt } else { Look::Moved }
}

#[cold]
#[inline(never)]
fn is_same(slot: &AtomicU64, word: Slot) -> bool {
    word.same_but_frequency(Slot(slot.load(Relaxed)))
}

/// The CAS unique that an item's place gives it.
pub(crate) fn cas_of(sequence: u64, offset: usize) -> u64 {
    sequence << crate::layout::slot::OFFSET_BITS | (offset / ALIGNMENT) as u64
}

/// What a hint tells of the time since the last access.
enum Told {
    Seconds(u32),
    /// units that have begun since the one of the access
    Units(u32),
    Old,
}

impl Told {
    fn by(hint: u8, now: u32) -> Self {
        match u32::from(hint & !HINT_FETCHED) {
            second @ ..HINT_SECONDS => Self::Seconds(now.wrapping_sub(second) % HINT_SECONDS),
            code if code < HINT_SECONDS + HINT_UNITS => {
                Self::Units((now / HINT_UNIT_S % HINT_UNITS + HINT_UNITS + HINT_SECONDS - code) % HINT_UNITS)
            }
            _ => Self::Old,
        }
    }
}

/// The hint of an access at this time, in units.
fn coarse_code(at: u32) -> u8 {
    (HINT_SECONDS + at / HINT_UNIT_S % HINT_UNITS).to_le_bytes()[0]
}
