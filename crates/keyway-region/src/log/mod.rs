//! Room `log`: the bytes of items, and the segments that hold them.
//!
//! Holds segments as the log uses them (`segments`), the streams that items join (`streams`), the extents that a thread leases
//! (`extents`), items as they are written and read (`items`, `item_view`), copies (`copies`), large values (`large`), checksums
//! (`checksum`), what is dead in a segment (`dead`), and two lists of hints: sparse segments (`sparse`), and keys that were evicted (`ghost`).
//!
//! - An item is private to its writer until the index publishes a slot that names it. From then on it is immutable, except its
//!   mark *dead*.
//! - An extent's tail is stored before an item of the extent is published: everything before the tail is complete.
//! - A segment changes hands by one exchange of its state word. Only its owner gives it a generation.
//! - No byte is written to a segment before its generation is one that no slot names.
//!
//! Never: reads or writes a slot of the index; chooses what is evicted. When no segment is free, it asks its [`Supply`].

mod checksum;
mod copies;
mod dead;
mod extents;
mod ghost;
mod item_view;
mod items;
mod large;
mod segments;
mod sparse;
mod streams;
mod uniques;

pub(crate) use checksum::{Outcome, Verified, chain_of};
pub(crate) use copies::{CopyOf, Relocated};
pub(crate) use extents::{Leased, PORTION};
pub use ghost::Ghosts;
pub(crate) use ghost::{BITS as GHOST_BITS, LINE_SIZE as GHOST_LINE_SIZE, SPREAD as GHOST_SPREAD};
pub(crate) use item_view::{ATTEMPTS_MAX, Chain, ItemView};
pub(crate) use items::{Draft, Purpose, Replaced, Value, Written};
pub(crate) use segments::Supply;
pub(crate) use sparse::{counts_samples, dead_factor};
pub(crate) use streams::{CLASS_TTL_FEW_S, CLASS_TTL_S};
pub use uniques::Uniques;
pub(crate) use uniques::{Steps, UNIQUES_LOST};

use crate::directory::Directory;
use crate::layout::segment::Stream;
use crate::mapped::Mapped;
use crate::threads::{Thread, Threads};
use std::cell::Cell;
use std::sync::Arc;

/// The items of the log, as they are read.
#[derive(Clone)]
pub struct Items {
    mapped: Arc<Mapped>,
}

/// The segments, as the log uses them.
#[derive(Clone)]
pub struct Segments {
    mapped: Arc<Mapped>,
    threads: Threads,
    items: Items,
}

/// The segments that a thread claims, fills and frees.
pub(crate) struct Claims {
    mapped: Arc<Mapped>,
    thread: Thread,
    threads: Threads,
    directory: Arc<Directory>,
    items: Items,
    segments: Segments,
    uniques: Uniques,
}

/// The extents that a thread has leased.
pub(crate) struct Extents {
    claims: Claims,
    leased: [Leased; Stream::MAX],
}

/// A thread's end of the log, where it writes items.
pub(crate) struct Appender {
    extents: Extents,
    counts: ItemCounts,
    ghosts: Ghosts,
    /// which CAS uniques may follow those that it has given
    steps: Steps,
    /// in a region with checksums: a buffer for copies during a reclaim
    scratch: Cell<Vec<u8>>,
}

/// What a thread counts of the items that come and go.
pub(crate) struct ItemCounts {
    mapped: Arc<Mapped>,
    thread: Thread,
    items: Items,
    segments: Segments,
    /// how it draws which dead items it counts
    dead_factor: u64,
}
