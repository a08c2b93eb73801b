//! A region: what each room has of it for all threads, and how it is made and opened.
//!
//! Holds the owners ([`Region`]), create and open (`create`), and what an observer sees (`overview`). Nothing here maps anything:
//! [`Region::create`] and [`Region::open`] get bytes.

mod create;
mod overview;

pub use create::Creation;
pub use overview::{Overview, ThreadInUse, USES};

use crate::changes::Changes;
use crate::clock::{Clock, Restarts};
use crate::directory::Directory;
use crate::flights::Flights;
use crate::flushes::Flushes;
use crate::hot::Hot;
use crate::index::{Index, Slots};
use crate::latencies::LatencyTable;
use crate::limits::LimitWords;
use crate::log::{Ghosts, Items, Segments, Uniques};
use crate::mapped::Mapped;
use crate::reclaim::Victims;
use crate::recover::Recovery;
use crate::threads::Threads;
use crate::trail::Trail;
use crate::watch::Watch;
use std::sync::Arc;

/// A region: what each room has of it for all threads.
pub struct Region {
    mapped: Arc<Mapped>,
    threads: Threads,
    clock: Clock,
    flushes: Flushes,
    changes: Arc<Changes>,
    flights: Flights,
    trail: Trail,
    hot: Hot,
    watch: Watch,
    restarts: Restarts,
    latencies: LatencyTable,
    directory: Arc<Directory>,
    items: Items,
    segments: Segments,
    ghosts: Ghosts,
    uniques: Uniques,
    slots: Slots,
    index: Index,
    recovery: Recovery,
    victims: Victims,
    limits: LimitWords,
}

impl Region {
    /// A region in these mapped bytes.
    fn new(mapped: Mapped) -> Self {
        let mapped = Arc::new(mapped);
        let threads = Threads::new(&mapped);
        let clock = Clock::new(&mapped);
        let flushes = Flushes::new(&mapped);
        let directory = Arc::new(Directory::new(&mapped));
        let items = Items::new(&mapped);
        let limits = LimitWords::new(&mapped);
        let slots = Slots::new(&mapped, &directory);
        let (segments, uniques) = (Segments::new(&mapped, &threads, &items), Uniques::new(&mapped, &items));
        let watch = Watch::new(&mapped, &clock, &flushes);
        let flights = Flights::new(&mapped, &threads);
        let index = Index::new(&directory, &flushes, &items, &slots, &limits);
        let recovery = Recovery::new(
            &mapped,
            (&directory, &flushes, &watch),
            (&segments, &items, &uniques),
            (&slots, &index),
        );
        let victims = Victims::new(&mapped, &threads, &segments, &recovery);
        Self {
            changes: Arc::new(Changes::new(&mapped, &threads)),
            flights,
            trail: Trail::new(&mapped, &clock),
            hot: Hot::new(&mapped, &clock),
            watch,
            restarts: Restarts::new(&mapped, &clock),
            latencies: LatencyTable::new(&mapped),
            ghosts: Ghosts::new(&mapped, &directory),
            uniques,
            segments,
            index,
            victims,
            recovery,
            slots,
            directory,
            items,
            limits,
            mapped,
            threads,
            clock,
            flushes,
        }
    }

    /// The mapped bytes.
    #[inline(always)]
    pub fn mapped(&self) -> &Arc<Mapped> {
        &self.mapped
    }

    /// The thread slots.
    #[inline(always)]
    pub fn threads(&self) -> &Threads {
        &self.threads
    }

    /// The clock.
    #[inline(always)]
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// The flush word.
    #[inline(always)]
    pub fn flushes(&self) -> &Flushes {
        &self.flushes
    }

    /// The counted changes.
    #[inline(always)]
    pub fn changes(&self) -> &Arc<Changes> {
        &self.changes
    }

    /// Where callers wait for values that others compute.
    pub fn flights(&self) -> &Flights {
        &self.flights
    }

    /// What operations did to a sample of the keys.
    #[inline(always)]
    pub fn trail(&self) -> &Trail {
        &self.trail
    }

    /// The hot keys.
    #[inline(always)]
    pub fn hot(&self) -> &Hot {
        &self.hot
    }

    /// The watched events.
    #[inline(always)]
    pub fn watch(&self) -> &Watch {
        &self.watch
    }

    /// How its last use ended.
    #[inline(always)]
    pub fn restarts(&self) -> &Restarts {
        &self.restarts
    }

    /// How long operations took.
    #[inline(always)]
    pub fn latencies(&self) -> &LatencyTable {
        &self.latencies
    }

    /// Where the buckets of the index are.
    #[inline(always)]
    pub fn directory(&self) -> &Arc<Directory> {
        &self.directory
    }

    /// What the region allows.
    #[inline(always)]
    pub fn limits(&self) -> &LimitWords {
        &self.limits
    }

    /// The items, as they are read.
    #[inline(always)]
    pub fn items(&self) -> &Items {
        &self.items
    }

    /// The segments of the log.
    #[inline(always)]
    pub fn segments(&self) -> &Segments {
        &self.segments
    }

    /// The ghosts of evicted keys.
    #[inline(always)]
    pub fn ghosts(&self) -> &Ghosts {
        &self.ghosts
    }

    /// The CAS uniques.
    #[inline(always)]
    pub fn uniques(&self) -> &Uniques {
        &self.uniques
    }

    /// The slots of the index.
    #[inline(always)]
    pub fn slots(&self) -> &Slots {
        &self.slots
    }

    /// From a key to its item.
    #[inline(always)]
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// What takes back what dead threads left.
    #[inline(always)]
    pub fn recovery(&self) -> &Recovery {
        &self.recovery
    }

    /// Which segments can be emptied.
    #[inline(always)]
    pub fn victims(&self) -> &Victims {
        &self.victims
    }

    /// What an observer sees of it.
    pub fn overview(&self) -> Overview<'_> {
        Overview(&self.mapped)
    }
}
