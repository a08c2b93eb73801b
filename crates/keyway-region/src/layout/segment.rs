//! A segment: its words, its 64-byte header, and the extents that threads lease in it. See `docs/region.md`.
//!
//! ```text
//! segment words: word 0: 63..40 0 | 39..0 generation (40); word 1: flush epoch
//! state word:    63..32 owner's incarnation (32) | 31..16 owner's thread slot (16) | 15..11 0 | 10..7 TTL class (4) | 6..5 lifetime class | 4 pool | 3..0 state
//!                withdrawn, without owner: 63..16 0 | 15..5 generation, low bits (11) | 4 its pages were given back | 3..0 state
//! lease word:    63..48 generation, low bits (16) | 47 sealed | 46..40 hands of the last extent (7) | 39..32 cells leased (8) | 31..0 cells at which an extent starts
//! cursor word:   63..48 generation, low bits (16) | 47..46 what is spared | 45..40 0 | 39..20 bytes relocated | 19..0 reclaimed up to here
//! extent header: word 0: 63..24 generation (40) | 23..17 hands (7) | 16 closed | 15..0 owner's thread slot; word 1: 63..32 owner's incarnation | 31..0 tail
//! link:          63..60 0 | 59..40 segment (20) | 39..0 generation (40); 0 for none
//! ```
//!
//! State machine (every change by compare-and-swap; "claimed" has one owner, everything else none):
//!
//! | from | to | by |
//! |---|---|---|
//! | free | claimed | an allocating thread |
//! | claimed | open, index, hints, ghosts | its owner, when it is ready for use |
//! | claimed | large | its owner, which puts a part of a value in it (the word still names the owner until the head is published) |
//! | open | claimed | an allocating thread that found every extent closed: the reclaim begins |
//! | claimed | retired | its owner, after a step of the reclaim that was not the last |
//! | retired | claimed | the thread that does the next step |
//! | large | claimed | the thread that took the head's word out of the index; a sweep that found no head |
//! | claimed | free | its owner, after it gave the segment a new generation |
//! | claimed, owner dead | claimed | an allocating thread, which repeats the step |
//! | claimed | withdrawn | its owner, which claimed it free, because the memory limit is lower than the region |
//! | withdrawn | withdrawn, with an owner | the thread that gives its pages back to the system |
//! | withdrawn, with an owner | withdrawn | that thread; after its death a sweep |
//! | withdrawn | free | the thread that grows the region, after it has allocated its pages |

use super::item::ALIGNMENT;
use crate::atomics::{AtomicU32, AtomicU64};
use crate::memory::Shared;

/// Extents (and cells) that a segment can have: bits of the lease word.
pub const CELLS_MAX: usize = 32;
/// Smallest cell, bytes: smaller extents would be mostly header.
pub const CELL_SIZE_MIN: usize = 4096;
/// Smallest segment, bytes.
pub const SIZE_MIN: usize = 16 << 10;
/// Largest segment, bytes: as far as a slot's offset reaches.
pub const SIZE_MAX: usize = 1 << 19;
/// Bytes of an extent's header.
pub const EXTENT_HEADER_SIZE: usize = 16;
/// Bytes of a chain segment's header: link to the next, last link, hash of the key, and {checksum 32, bytes of value in it 32}.
/// The checksum is 0 in a region without checksums.
pub const CHAIN_HEADER_SIZE: usize = 32;
/// The word of a chain segment's header that has its length.
pub const CHAIN_LEN_WORD: usize = 3;
/// TTL classes that the state word can name.
pub const CLASSES_MAX: usize = 16;

/// A segment's header, 64 bytes in a dense array.
#[repr(C, align(64))]
pub struct SegmentHeader {
    /// the state word
    pub state: AtomicU64,
    /// the lease word
    pub lease: AtomicU64,
    /// its number in the order in which all segments were opened: the first of the CAS uniques that belong to its words, one to each
    pub sequence: AtomicU64,
    /// when it was opened, a tick of the region's clock
    pub opened: AtomicU32,
    /// the latest expiry of its items; `u32::MAX`: one never expires
    pub expires: AtomicU32,
    /// bytes that are dead: of items that were replaced or removed, and of rests that no thread will fill
    pub dead: AtomicU64,
    /// the cursor word: how far its reclaim has come
    pub cursor: AtomicU64,
    /// not 0: no CAS uniques belong to its words, so each of its items carries one
    pub carries: AtomicU64,
    reserved: AtomicU64,
}

const _: () = assert!(size_of::<SegmentHeader>() == 64);
super::fields!(SegmentHeader {
    state,
    lease,
    sequence,
    opened,
    expires,
    dead,
    cursor,
    carries,
    reserved,
});
// SAFETY: `repr(C)`, nothing but atomics.
#[allow(unsafe_code, reason = "the type is nothing but atomics")]
unsafe impl Shared for SegmentHeader {}

/// A segment's words, 16 bytes in a dense array: a thread that looks at an item reads both.
#[repr(C, align(16))]
pub struct SegmentWords {
    /// see [`SegmentLife::generation`]
    pub generation: AtomicU64,
    /// see [`SegmentLife::epoch`]
    pub epoch: AtomicU64,
}

const _: () = assert!(size_of::<SegmentWords>() == 16);
super::fields!(SegmentWords { generation, epoch });
// SAFETY: `repr(C)`, nothing but atomics.
#[allow(unsafe_code, reason = "the type is nothing but atomics")]
unsafe impl Shared for SegmentWords {}

/// One life of a segment, from one recycling to the next. The epoch changes only before the first item of a life is published.
/// So a thread that reads the same generation again afterwards has read both words of one life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentLife {
    /// times the segment has been recycled; 40 bits outlast any region
    pub generation: u64,
    /// the flush epoch of every item in it
    pub epoch: u64,
}

impl SegmentLife {
    /// The first life of a segment, before it was ever opened.
    pub const FIRST: Self = Self { generation: 1, epoch: 0 };

    /// Whether its items were written after the flush that began this epoch.
    #[inline(always)]
    pub fn is_since(self, epoch: u64) -> bool {
        self.epoch >= epoch
    }
}

/// What a segment is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Kind {
    /// without owner; its generation is higher than in every word that ever named it
    Free = 0,
    /// owned by one thread, to be prepared or reclaimed
    Claimed = 1,
    /// a log of items
    Open = 2,
    /// part of a large value
    Large = 3,
    /// buckets
    Index = 4,
    /// hints of buckets
    Hints = 5,
    /// a log that is being reclaimed, without owner between two steps
    Retired = 6,
    /// fingerprints of items that were evicted from the admission pool
    Ghosts = 7,
    /// out of use, because of the memory limit; it may have no pages, so no thread writes to it
    Withdrawn = 8,
}

/// Pools that log segments and large values belong to.
pub const POOLS: usize = 2;
/// The pool of new items.
pub const ADMISSION: usize = 0;
/// The pool of items that were hit, or came back soon after they had been evicted.
pub const MAIN: usize = 1;

/// Lifetime class: how long items of a segment are expected to live before they are replaced. If a segment's items are of one
/// class, it dies as a whole, or hardly at all, so that less is copied to reclaim it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum LifetimeClass {
    /// unknown: new items, and most of those that replace others
    Plain = 0,
    /// replaces long-lived items, or was copied by compaction
    LongLived = 1,
}

/// Where an item is written: the open segment of a pool, TTL class and lifetime class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    /// [`ADMISSION`] or [`MAIN`]
    pub pool: usize,
    /// its TTL class
    pub class: usize,
    /// its lifetime class; plain except in class 0
    pub lifetime_class: LifetimeClass,
}

impl Stream {
    /// Streams that there can be.
    pub const MAX: usize = POOLS * CLASSES_MAX + POOLS;

    /// Its number, below [`Self::MAX`].
    #[inline]
    pub fn index(self) -> usize {
        match self.lifetime_class {
            LifetimeClass::Plain => self.pool * CLASSES_MAX + self.class,
            LifetimeClass::LongLived => POOLS * CLASSES_MAX + self.pool,
        }
    }
}

/// A thread slot together with the incarnation that it had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// number of the thread slot
    pub slot: u16,
    /// its incarnation, never 0
    pub incarnation: u32,
}

/// A segment's state word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State(pub u64);

impl State {
    /// Empty, without owner: also what fresh memory says.
    pub const FREE: Self = Self(0);

    /// A state without owner.
    pub fn new(kind: Kind, class: usize) -> Self {
        debug_assert!(class < CLASSES_MAX);
        Self(kind as u64 | (class as u64) << 6)
    }

    /// A log segment's state, or a large value's, without owner.
    pub const fn of(kind: Kind, stream: Stream) -> Self {
        debug_assert!(stream.class < CLASSES_MAX && stream.pool < POOLS);
        Self(kind as u64 | (stream.pool as u64) << 4 | (stream.lifetime_class as u64) << 5 | (stream.class as u64) << 6)
    }

    /// The state of the same stream in another kind, owned by one thread.
    pub fn take(self, kind: Kind, owner: Owner) -> Self {
        Self(Self::owned(kind, owner).0 | self.0 & STREAM)
    }

    /// The state of the same stream in another kind, without owner.
    pub fn leave(self, kind: Kind) -> Self {
        Self(kind as u64 | self.0 & STREAM)
    }

    /// A state that one thread owns.
    pub const fn owned(kind: Kind, owner: Owner) -> Self {
        Self(kind as u64 | (owner.slot as u64) << 16 | (owner.incarnation as u64) << 32)
    }

    /// A segment out of use, without owner. The word contains the generation, so that a thread that has slept does not mistake a
    /// later withdrawal for the one that it read.
    pub const fn withdrawn(generation: u64, pages_given_back: bool) -> Self {
        Self(Kind::Withdrawn as u64 | (pages_given_back as u64) << 4 | (generation & 0x7FF) << 5)
    }

    /// Whether the pages of a withdrawn segment were given back.
    pub fn has_no_pages(self) -> bool {
        self.kind() == Some(Kind::Withdrawn) && self.0 & 1 << 4 != 0
    }

    /// The state of this withdrawn segment once it has its pages again.
    pub fn with_pages(self) -> Self {
        Self(self.0 & !(1 << 4))
    }

    /// What the segment is for; `None`: corrupted, a value that this version does not write.
    #[inline]
    pub fn kind(self) -> Option<Kind> {
        Some(match self.0 & 0xF {
            0 => Kind::Free,
            1 => Kind::Claimed,
            2 => Kind::Open,
            3 => Kind::Large,
            4 => Kind::Index,
            5 => Kind::Hints,
            6 => Kind::Retired,
            7 => Kind::Ghosts,
            8 => Kind::Withdrawn,
            _ => return None,
        })
    }

    /// The owner, if it has one.
    pub fn owner(self) -> Option<Owner> {
        let incarnation = (self.0 >> 32) as u32;
        (incarnation != 0).then_some(Owner {
            slot: (self.0 >> 16 & 0xFFFF) as u16,
            incarnation,
        })
    }

    /// The TTL class.
    pub fn class(self) -> usize {
        (self.0 >> 6 & 0xF) as usize
    }

    /// The pool.
    pub fn pool(self) -> usize {
        if self.0 >> 4 & 1 == MAIN as u64 { MAIN } else { ADMISSION }
    }

    /// The stream of its items.
    pub fn stream(self) -> Stream {
        Stream {
            pool: self.pool(),
            class: self.class(),
            lifetime_class: if self.0 >> 5 & 1 == 0 {
                LifetimeClass::Plain
            } else {
                LifetimeClass::LongLived
            },
        }
    }
}

/// The state word's bits of the stream.
const STREAM: u64 = 0x3F << 4;

/// Which live items a reclaim copies to the log's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spare {
    /// none
    Nothing,
    /// those of the admission pool that were hit: they go to the main pool
    Promoted,
    /// those of the main pool that were hit since they were last spared
    Hit,
    /// all: the segment is compacted, nothing is evicted
    All,
}

/// How far a segment's reclaim has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// items before this offset are out of the index
    pub offset: usize,
    /// bytes that were copied
    pub relocated: usize,
    /// what the reclaim spares
    pub spare: Spare,
}

impl Cursor {
    /// At the segment's start.
    pub fn start(spare: Spare) -> Self {
        Self {
            offset: 0,
            relocated: 0,
            spare,
        }
    }

    /// As a word for this generation.
    pub const fn word(self, generation: u64) -> u64 {
        let (relocated, offset) = (self.relocated as u64 & 0xF_FFFF, self.offset as u64 & 0xF_FFFF);
        generation << 48 | (self.spare as u64) << 46 | relocated << 20 | offset
    }

    /// From the word, if it is for this generation.
    pub fn of(word: u64, generation: u64) -> Option<Self> {
        let bytes = |n: u64| super::index(n & 0xF_FFFF);
        (word >> 48 == generation & 0xFFFF).then(|| Self {
            // Items begin at multiples of it, whatever another process has written there.
            offset: bytes(word) / ALIGNMENT * ALIGNMENT,
            relocated: bytes(word >> 20),
            spare: [Spare::Nothing, Spare::Promoted, Spare::Hit, Spare::All]
                .into_iter()
                .nth(super::index(word >> 46 & 3))
                .unwrap_or(Spare::Nothing),
        })
    }
}

/// How often an extent can be handed on.
const HANDS_MAX: u64 = 0x7F;

/// A segment's lease word: which of its cells have been leased, and where extents start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseWord(pub u64);

impl LeaseWord {
    /// Nothing leased in this generation.
    pub const fn new(generation: u64) -> Self {
        Self(generation << 48)
    }

    /// Whether the word is for this generation.
    pub fn is_of_generation(self, generation: u64) -> bool {
        self.0 >> 48 == generation & 0xFFFF
    }

    /// Whether no cell can be leased any more.
    pub fn is_sealed(self) -> bool {
        self.0 & 1 << 47 != 0
    }

    /// This lease word, sealed: no cell can be leased any more.
    pub const fn seal(self) -> Self {
        Self(self.0 | 1 << 47)
    }

    /// Cells leased.
    pub const fn cells(self) -> usize {
        (self.0 >> 32 & 0xFF) as usize
    }

    /// After leasing `count` more cells, as an extent of their own or to extend the last one.
    pub const fn lease(self, count: usize, own_extent: bool) -> Self {
        let (start, kept) = if own_extent {
            (1 << self.cells(), !(0xFF << 32 | HANDS_MAX << 40))
        } else {
            (0, !(0xFF << 32))
        };
        Self((self.0 & kept | start) + (((self.cells() + count) as u64) << 32))
    }

    /// How often the last extent has been handed on.
    pub const fn hands(self) -> u64 {
        self.0 >> 40 & HANDS_MAX
    }

    /// After handing the last extent on; `None`: it was handed on as often as the word can say.
    pub const fn hand_on(self) -> Option<Self> {
        if self.hands() < HANDS_MAX {
            Some(Self(self.0 + (1 << 40)))
        } else {
            None
        }
    }

    /// The cell at which the last extent starts, if there is one.
    pub fn last_extent(self) -> Option<usize> {
        let starts = (self.0 & 0xFFFF_FFFF) as u32;
        Some(starts.checked_ilog2()? as usize).filter(|cell| *cell < self.cells())
    }

    /// The cells at which extents start, and for each the cell after its last.
    pub fn extents(self) -> impl Iterator<Item = (usize, usize)> {
        let starts = (self.0 & 0xFFFF_FFFF) as u32;
        let cells = self.cells().min(CELLS_MAX);
        (0..cells).filter(move |c| starts & 1 << c != 0).map(move |c| {
            let end = (c + 1..cells).find(|e| starts & 1 << e != 0).unwrap_or(cells);
            (c, end)
        })
    }
}

/// The first word of an extent's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentWord(pub u64);

impl ExtentWord {
    /// An extent that its owner fills.
    pub const fn new(generation: u64, owner: u16) -> Self {
        Self(generation << 24 | owner as u64)
    }

    /// The word of this extent after it was handed on so often: each is a new word, so none of them comes back.
    pub const fn in_hands(self, hands: u64) -> Self {
        Self(self.0 & !(HANDS_MAX << 17) | (hands & HANDS_MAX) << 17)
    }

    /// How often it had been handed on.
    pub const fn hands(self) -> u64 {
        self.0 >> 17 & HANDS_MAX
    }

    /// Its segment's generation when it was leased.
    pub fn generation(self) -> u64 {
        self.0 >> 24
    }

    /// Whether its owner has finished with it.
    pub fn is_closed(self) -> bool {
        self.0 & 1 << 16 != 0
    }

    /// The word of this extent once its owner has finished with it.
    pub const fn close(self) -> Self {
        Self(self.0 | 1 << 16)
    }

    /// The thread slot that leases it.
    pub fn owner(self) -> u16 {
        (self.0 & 0xFFFF) as u16
    }

    /// Its owner, whose incarnation is in the second word.
    pub fn owner_with(self, tail: TailWord) -> Owner {
        Owner {
            slot: self.owner(),
            incarnation: tail.incarnation(),
        }
    }
}

/// The second word of an extent's header: up to where walkers may trust it, and the owner's incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TailWord(pub u64);

impl TailWord {
    /// A word of these parts; `tail` in bytes from the segment's start.
    pub const fn new(tail: usize, incarnation: u32) -> Self {
        Self(tail as u64 | (incarnation as u64) << 32)
    }

    /// The end of the last item, bytes from the segment's start.
    pub fn tail(self) -> usize {
        (self.0 & 0xFFFF_FFFF) as usize
    }

    /// The owner's incarnation.
    pub fn incarnation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// A link of a chain: a segment in one generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link(pub u64);

impl Link {
    /// The end of a chain.
    pub const NONE: Self = Self(0);

    /// A link of these parts (generations start at 1, so that no link is 0).
    pub const fn new(segment: usize, generation: u64) -> Self {
        Self((segment as u64) << 40 | generation)
    }

    /// The segment.
    pub fn segment(self) -> usize {
        (self.0 >> 40) as usize
    }

    /// Its generation.
    pub fn generation(self) -> u64 {
        self.0 & ((1 << 40) - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_follow_from_the_lease_word() {
        let w = LeaseWord::new(0x1_0005)
            .lease(1, true)
            .lease(1, false)
            .lease(3, true)
            .lease(1, true)
            .lease(26, false);
        assert_eq!(w.extents().collect::<Vec<_>>(), [(0, 2), (2, 5), (5, 32)]);
        assert!(w.is_of_generation(5) && !w.is_of_generation(6) && !w.is_sealed() && w.seal().is_sealed());
        assert_eq!(w.seal().cells(), 32);
        assert_eq!(LeaseWord::new(3).extents().count(), 0);
    }

    #[test]
    fn a_cursor_comes_back_in_its_generation_only() {
        for spare in [Spare::Nothing, Spare::Promoted, Spare::Hit, Spare::All] {
            let cursor = Cursor {
                offset: SIZE_MAX,
                relocated: SIZE_MAX - 4,
                spare,
            };
            let word = cursor.word(0x5_0007);
            assert_eq!(Cursor::of(word, 0x9_0007), Some(cursor));
            assert_eq!(Cursor::of(word, 0x5_0008), None);
        }
        let odd = Cursor::of(0x7_0003, 0).map(|cursor| cursor.offset);
        assert_eq!(odd, Some(0x7_0000), "no item begins at another place");
    }

    #[test]
    fn state_words_keep_their_fields() {
        let owner = Owner {
            slot: 0xFFFF,
            incarnation: u32::MAX,
        };
        let s = State::owned(Kind::Claimed, owner);
        assert_eq!((s.kind(), s.owner()), (Some(Kind::Claimed), Some(owner)));
        let s = State::new(Kind::Open, 15);
        assert_eq!((s.kind(), s.owner(), s.class()), (Some(Kind::Open), None, 15));
        let stream = Stream {
            pool: MAIN,
            class: 9,
            lifetime_class: LifetimeClass::LongLived,
        };
        let s = State::of(Kind::Open, stream);
        assert_eq!((s.kind(), s.owner(), s.stream()), (Some(Kind::Open), None, stream));
        let claimed = s.take(Kind::Claimed, owner);
        assert_eq!(
            (claimed.kind(), claimed.owner(), claimed.stream()),
            (Some(Kind::Claimed), Some(owner), stream)
        );
        assert_eq!(claimed.leave(Kind::Open), s);
        assert_eq!(State(15).kind(), None);
        for pages_given_back in [false, true] {
            let s = State::withdrawn(u64::MAX, pages_given_back);
            assert_eq!((s.kind(), s.owner()), (Some(Kind::Withdrawn), None));
            assert_eq!(s.has_no_pages(), pages_given_back);
            assert_ne!(s, State::withdrawn(u64::MAX - 1, pages_given_back));
            assert_eq!(s.with_pages(), State::withdrawn(u64::MAX, false));
        }
        assert!(!State::of(Kind::Open, stream).has_no_pages());
    }
}
