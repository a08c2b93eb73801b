//! Events for watchers: the rings into which sessions write them.
//!
//! ```text
//! ring:  64 bytes of head, then cells
//! cell:  64 bytes: tag, then seven words;  tag: 63..40 position of the cell | 39..8 number of the event | 7..0 part, plus 1
//! event: 1 to 6 cells; the first has five words about the event and the first 16 bytes of its text, the others 56 bytes of it each
//! ```
//!
//! A ring has one writer at a time, which overwrites the oldest cells and never waits. [`crate::watch`] says in which order the words are
//! written, and what a reader makes of them. All of it is checked when it is read: another process may have written anything there.

use super::plan::Layout;
use crate::atomics::AtomicU64;
use crate::memory::Shared;

/// Rings of a region: so many sessions can write events at a time. Those without a ring count theirs as lost.
pub const RINGS: usize = 32;
/// Fewest and most cells of a ring, powers of two: with the most, the rings take a MiB.
const CELLS: (usize, usize) = (8, 512);
/// One cell in each ring for this many buckets of the first index, which has a bucket for each 64 KiB: the rings take less than a
/// hundredth of a small region.
const BUCKETS_PER_CELL: usize = 4;

/// Words of a cell after its tag.
pub const CELL_WORDS: usize = 7;
/// Words of an event before its text.
pub const HEAD_WORDS: usize = 5;
/// Longest text of an event, bytes: the longest key.
pub const TEXT_MAX: usize = 250;
/// Most cells of an event.
pub const PARTS_MAX: usize = parts(TEXT_MAX);

/// The head of a ring.
#[repr(C, align(64))]
pub struct Ring {
    /// the session that writes it, see [`Self::owner_of`]; 0: none has
    pub owner: AtomicU64,
    /// cells ever written
    pub cells: AtomicU64,
    /// events ever written
    pub events: AtomicU64,
    pad: [AtomicU64; 5],
}

/// A cell of a ring.
#[repr(C, align(64))]
pub struct Cell {
    /// see [`Tag`]; 0 while it is being written
    pub tag: AtomicU64,
    /// a part of an event
    pub words: [AtomicU64; CELL_WORDS],
}

const _: () = assert!(size_of::<Ring>() == 64 && size_of::<Cell>() == 64);
super::fields!(Ring {
    owner,
    cells,
    events,
    pad
});
super::fields!(Cell { tag, words });
// SAFETY: `repr(C)`, nothing but atomics.
#[allow(unsafe_code, reason = "the type is nothing but atomics")]
unsafe impl Shared for Ring {}
// SAFETY: `repr(C)`, nothing but atomics.
#[allow(unsafe_code, reason = "the type is nothing but atomics")]
unsafe impl Shared for Cell {}

impl Ring {
    /// The owner word of a session in this thread slot and incarnation.
    pub const fn owner_of(slot: u16, incarnation: u32) -> u64 {
        (slot as u64 + 1) << 32 | incarnation as u64
    }

    /// The thread slot and the incarnation in an owner word.
    pub fn owner_in(word: u64) -> Option<(usize, u32)> {
        let slot = super::index(word >> 32).checked_sub(1)?;
        Some((slot, u32::try_from(word & 0xFFFF_FFFF).ok()?))
    }
}

/// The tag of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag(pub u64);

impl Tag {
    /// The tag of a part of an event.
    pub const fn new(position: u64, event: u64, part: u64) -> Self {
        Self((position & 0xFF_FFFF) << 40 | (event & 0xFFFF_FFFF) << 8 | (part + 1) & 0xFF)
    }

    /// The part, if it is the tag of the cell at this position.
    pub fn part_at(self, position: u64) -> Option<u64> {
        let part = (self.0 & 0xFF).checked_sub(1)?;
        (self.0 >> 40 == position & 0xFF_FFFF).then_some(part)
    }

    /// The number of the event, low bits.
    pub const fn event(self) -> u64 {
        self.0 >> 8 & 0xFFFF_FFFF
    }
}

/// Cells of each ring in a region with this many buckets in its first index: a power of two.
pub const fn cells(buckets_initial: usize) -> usize {
    super::within(buckets_initial / BUCKETS_PER_CELL, CELLS)
}

/// Bytes of all rings.
pub const fn size(cells: usize) -> usize {
    RINGS * (size_of::<Ring>() + cells * size_of::<Cell>())
}

/// Cells of an event with so many bytes of text.
pub const fn parts(len: usize) -> usize {
    1 + len.saturating_sub((CELL_WORDS - HEAD_WORDS) * 8).div_ceil(CELL_WORDS * 8)
}

/// Offset in the region of a ring's head.
pub const fn ring_at(layout: &Layout, ring: usize) -> usize {
    layout.rings + ring * (size_of::<Ring>() + layout.ring_cells * size_of::<Cell>())
}

/// Offset in the region of a ring's cell at this position.
pub const fn cell_at(layout: &Layout, ring: usize, position: u64) -> usize {
    let cell = super::index(position) & (layout.ring_cells - 1);
    ring_at(layout, ring) + size_of::<Ring>() + cell * size_of::<Cell>()
}

/// A kind of event. A watcher chooses among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Kind {
    /// a look-up, which memcached makes before it changes something, too
    Fetch = 0,
    /// a store, with its result
    Mutation = 1,
    /// a connection, or a program's session, began or ended; the text says which
    Connection = 2,
    /// an item was deleted
    Deletion = 3,
    /// an item was evicted before its time was over
    Eviction = 4,
    /// another change of an item, which memcached's watchers see as a look-up only: arithmetic, a touch, a mark
    Update = 5,
    /// an item whose time was over was removed
    Expiry = 6,
}

impl Kind {
    /// All of them, by number.
    pub const ALL: [Self; KINDS] = [
        Self::Fetch,
        Self::Mutation,
        Self::Connection,
        Self::Deletion,
        Self::Eviction,
        Self::Update,
        Self::Expiry,
    ];

    /// Its bit in a set of kinds.
    pub const fn bit(self) -> u64 {
        1 << self as u64
    }
}

/// Kinds of events.
pub const KINDS: usize = 7;
/// Every kind, a bit each.
pub const ALL: u64 = (1 << KINDS) - 1;
/// The kinds of events that changes of keys emit.
pub const CHANGES: u64 = Kind::Fetch.bit() | Kind::Mutation.bit() | Kind::Deletion.bit() | Kind::Update.bit();

/// What a session did, by its name in lines for watchers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs, reason = "memcached's own names")]
pub enum Command {
    Get = 0,
    Set = 1,
    Add = 2,
    Replace = 3,
    Append = 4,
    Prepend = 5,
    Cas = 6,
    Delete = 7,
    MetaDelete = 8,
    Incr = 9,
    Decr = 10,
    Touch = 11,
    /// a mark that a get leaves: that it won, or that it created an item
    Mark = 12,
    None = 13,
}

impl Command {
    /// All of them, by number.
    pub const ALL: [Self; 14] = [
        Self::Get,
        Self::Set,
        Self::Add,
        Self::Replace,
        Self::Append,
        Self::Prepend,
        Self::Cas,
        Self::Delete,
        Self::MetaDelete,
        Self::Incr,
        Self::Decr,
        Self::Touch,
        Self::Mark,
        Self::None,
    ];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Set => "set",
            Self::Add => "add",
            Self::Replace => "replace",
            Self::Append => "append",
            Self::Prepend => "prepend",
            Self::Cas => "cas",
            Self::Delete => "delete",
            Self::MetaDelete => "md",
            Self::Incr => "incr",
            Self::Decr => "decr",
            Self::Touch => "touch",
            Self::Mark => "mark",
            Self::None => "none",
        }
    }
}

/// What became of it, by its name in lines for watchers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs, reason = "memcached's own names")]
pub enum Status {
    #[default]
    NotFound = 0,
    Found = 1,
    Expired = 2,
    Stored = 3,
    NotStored = 4,
    Exists = 5,
    TooLarge = 6,
    NoMemory = 7,
}

impl Status {
    /// All of them, by number.
    pub const ALL: [Self; 8] = [
        Self::NotFound,
        Self::Found,
        Self::Expired,
        Self::Stored,
        Self::NotStored,
        Self::Exists,
        Self::TooLarge,
        Self::NoMemory,
    ];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NotFound => "not_found",
            Self::Found => "found",
            Self::Expired => "expired",
            Self::Stored => "stored",
            Self::NotStored => "not_stored",
            Self::Exists => "exists",
            Self::TooLarge => "too_large",
            Self::NoMemory => "no_memory",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_takes_as_many_cells_as_its_text_needs() {
        assert_eq!([0, 16, 17, 72, 73, TEXT_MAX].map(parts), [1, 1, 2, 2, 3, 6]);
        assert!(PARTS_MAX <= CELLS.0);
    }

    #[test]
    fn a_tag_is_of_one_position() {
        let tag = Tag::new(0x1_0000_0003, 0x2_0000_0005, 2);
        assert_eq!((tag.part_at(3), tag.part_at(4), tag.event()), (Some(2), None, 5));
        assert_eq!(Tag(0).part_at(0), None);
    }

    #[test]
    fn the_numbers_are_the_places() {
        assert!(Kind::ALL.iter().enumerate().all(|(at, kind)| *kind as usize == at));
        assert!(Command::ALL.iter().enumerate().all(|(at, command)| *command as usize == at));
        assert!(Status::ALL.iter().enumerate().all(|(at, status)| *status as usize == at));
    }

    #[test]
    fn an_owner_is_found_again() {
        assert_eq!(Ring::owner_in(Ring::owner_of(7, 9)), Some((7, 9)));
        assert_eq!(Ring::owner_in(0), None);
    }
}
