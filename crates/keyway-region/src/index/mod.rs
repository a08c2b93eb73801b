//! Room `index`: buckets and their slots, each of which leads to one item.
//!
//! For all threads: [`Slots`] has what is done with one slot (`slots`, in durable mode `persist`, its hint `hints`), [`Index`] leads from a
//! key to its item (`lookup`, the prefetch of several keys `ahead`, the buckets of a split `split`).
//!
//! For one thread, each holding the one before it: [`Publisher`] makes the compare-and-swaps (`publish`, `insert`, and `evicted` for items
//! that leave unasked) and its part of splits ([`Splits`]); [`Finder`] looks (`fast_get` for a get, with `long_value`; `find` for a writer);
//! [`Changer`] makes the one attempt at a change (`change`; `old` is what its decision sees).
//!
//! - Every change of a key is one compare-and-swap of one slot. Before it the change is invisible. After it nothing has to be
//!   repaired before the next operation.
//! - A key has at most one confirmed slot, in one of its two buckets, or in its third.
//! - A reader relies on nothing of an item before it has read the slot, the segment's generation, and the slot again.
//! - A frozen slot belongs to a split. Any thread that finds one finishes the split.
//!
//! Only this room knows where a slot is ([`Place`]): no other room can store its word.
//!
//! Never: writes an item's bytes, or chooses what is evicted.

mod ahead;
mod change;
mod evicted;
mod fast_get;
mod find;
mod hints;
mod insert;
mod long_value;
mod lookup;
mod old;
mod persist;
mod publish;
mod slots;
mod split;

use crate::changes::Counting;
use crate::clock::Clock;
use crate::directory::Directory;
use crate::flights::Flights;
use crate::layout::bucket::Table;
use crate::layout::slot::Slot;
use crate::log::{Appender, Segments, Uniques, Verified};
use crate::mapped::Mapped;
use crate::threads::Thread;
use crate::watch::Emitter;
pub use ahead::{AHEAD_MAX, Ahead};
use std::cell::{Cell, RefCell};
use std::sync::Arc;

pub(crate) use change::{Changed, Decide, Decision};
pub(crate) use hints::{HINT_OLD, HINT_SECONDS, HINT_UNIT_S, HINT_UNITS};
pub use lookup::Index;
pub(crate) use lookup::{Followed, FoundItem, Lookup, Place};
pub(crate) use old::Old;
pub use slots::Slots;

/// What a thread publishes: the words of slots.
pub(crate) struct Publisher {
    /// the index, as all threads share it
    index: Index,
    segments: Segments,
    uniques: Uniques,
    clock: Clock,
    log: Appender,
    /// the region's, at hand for the fast paths
    directory: Arc<Directory>,
    /// the word of the present operation's item, as long as its hazard pointer stands
    held: Cell<Slot>,
    /// those who wait for what it publishes
    flights: Flights,
    /// how its changes are counted
    counting: Counting,
    /// where it emits events for watchers
    emitter: Emitter,
}

/// A thread's part in splits of buckets.
#[derive(Clone, Copy)]
pub(crate) struct Splits<'p> {
    publisher: &'p Publisher,
}

/// How a thread looks for keys.
pub(crate) struct Finder {
    publisher: Publisher,
    /// the table as its word was last
    table: Cell<Table>,
    /// bytes of the last long value that it got
    long_len: Cell<usize>,
}

/// How a thread changes keys.
pub(crate) struct Changer {
    finder: Finder,
    /// in a region with checksums: the item of the present operation
    verified: Verified,
    /// a buffer for values that an operation builds
    built: RefCell<Vec<u8>>,
}

impl Splits<'_> {
    /// The mapped bytes.
    #[inline(always)]
    fn mapped(&self) -> &Mapped {
        self.publisher.log.mapped()
    }

    /// The thread's slot.
    #[inline(always)]
    fn thread(&self) -> &Thread {
        self.publisher.log.thread()
    }
}

impl Changer {
    pub fn new(index: &Index, clock: &Clock, log: Appender, flights: &Flights, counting: Counting, emitter: Emitter) -> Self {
        let publisher = Publisher {
            index: index.clone(),
            segments: log.claims().segments().clone(),
            uniques: log.claims().uniques().clone(),
            clock: clock.clone(),
            log,
            directory: Arc::clone(&index.directory),
            held: Cell::new(Slot::EMPTY),
            flights: flights.clone(),
            counting,
            emitter,
        };
        let finder = Finder {
            table: Cell::new(index.directory.table()),
            long_len: Cell::new(usize::MAX),
            publisher,
        };
        Self {
            finder,
            verified: Verified::default(),
            built: RefCell::default(),
        }
    }

    /// How it looks for keys.
    #[inline(always)]
    pub fn finder(&self) -> &Finder {
        &self.finder
    }

    /// What it publishes.
    #[inline(always)]
    pub fn publisher(&self) -> &Publisher {
        &self.finder.publisher
    }

    /// The mapped bytes.
    #[inline(always)]
    fn mapped(&self) -> &Mapped {
        self.publisher().log.mapped()
    }

    /// The thread's slot.
    #[inline(always)]
    fn thread(&self) -> &Thread {
        self.publisher().log.thread()
    }
}
