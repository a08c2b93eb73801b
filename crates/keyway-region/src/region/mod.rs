//! A region: what each room has of it for all threads, and how it is made and opened.
//!
//! Holds the owners ([`Region`]), create and open (`create`), and what an observer sees (`overview`). Nothing here maps anything:
//! [`Region::create`] and [`Region::open`] get bytes.

mod create;
mod overview;

pub use create::Creation;
pub use overview::{ThreadInUse, USES};

use crate::changes::Changes;
use crate::clock::{Clock, Restarts};
use crate::directory::Directory;
use crate::flushes::Flushes;
use crate::hot::Hot;
use crate::latencies::LatencyTable;
use crate::limits::LimitWords;
use crate::mapped::Mapped;
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
    trail: Trail,
    hot: Hot,
    watch: Watch,
    restarts: Restarts,
    latencies: LatencyTable,
    directory: Directory,
    limits: LimitWords,
}

impl Region {
    /// A region in these mapped bytes.
    fn new(mapped: Mapped) -> Self {
        let mapped = Arc::new(mapped);
        let threads = Threads::new(&mapped);
        let clock = Clock::new(&mapped);
        let flushes = Flushes::new(&mapped);
        Self {
            changes: Arc::new(Changes::new(&mapped, &threads)),
            trail: Trail::new(&mapped, &clock),
            hot: Hot::new(&mapped, &clock),
            watch: Watch::new(&mapped, &clock, &flushes),
            restarts: Restarts::new(&mapped, &clock),
            latencies: LatencyTable::new(&mapped),
            directory: Directory::new(&mapped),
            limits: LimitWords::new(&mapped),
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
    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// What the region allows.
    #[inline(always)]
    pub fn limits(&self) -> &LimitWords {
        &self.limits
    }
}
