//! Watching: what all sessions of all processes do with a region.

use crate::Cache;
use keyway_region::Watching;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use keyway_region::layout::watch::{ALL, Command, Kind, Status};
pub use keyway_region::{Delivery, Event, WATCHED_S};

/// How often the wish is renewed.
const RENEWED_EVERY: Duration = Duration::from_millis(500);

/// Gets the events of a region. As long as there is one that is polled, sessions write events into rings in the region, over the oldest ones
/// if no watcher reads them in time.
pub struct Watcher {
    cache: Cache,
    inner: Watching,
    kinds: u64,
    begun: Instant,
    renewed: Instant,
}

/// What [`Watcher::poll`] has found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Polled {
    /// events that were read; they are returned now or later
    pub read: usize,
    /// this watcher had not polled for so long that sessions took it for gone: what happened meanwhile is unknown
    pub gap: bool,
}

impl Cache {
    /// A watcher of these kinds of events, from now on. `None`: this process may only read the region, or is a forked child.
    pub fn watcher(&self, kinds: u64) -> Option<Watcher> {
        let sessions = &self.inner.sessions;
        if self.is_reader() || self.region().is_none() {
            return None;
        }
        let now = sessions.clock.now();
        let inner = {
            let _inside = sessions.latch.open();
            // The place first: what is written from the wish on is read.
            let inner = Watching::new(Arc::clone(&sessions.region));
            sessions.region.watch().want_events(kinds, sessions.region.clock().tick(now));
            inner
        };
        Some(Watcher {
            cache: self.clone(),
            inner,
            kinds,
            begun: Instant::now(),
            renewed: Instant::now(),
        })
    }
}

impl Watcher {
    /// The kinds that it watches.
    pub fn kinds(&self) -> u64 {
        self.kinds
    }

    /// Watches these kinds, too.
    pub fn watch_also(&mut self, kinds: u64) {
        self.kinds |= kinds;
        self.renew();
    }

    /// Watches these kinds only. Those that no other watcher wants end after [`WATCHED_S`] seconds.
    pub fn watch_only(&mut self, kinds: u64) {
        self.kinds = kinds;
    }

    /// Appends what can be returned now. It has to be called more often than every [`WATCHED_S`] seconds, and the more often, the fewer events are
    /// lost.
    pub fn poll(&mut self, told: &mut Vec<Delivery>) -> Polled {
        let mut polled = Polled::default();
        if self.cache.region().is_none() {
            return polled;
        }
        if self.renewed.elapsed() >= RENEWED_EVERY {
            polled.gap = !self.renew();
        }
        let _inside = self.cache.inner.sessions.latch.open();
        polled.read = self.inner.poll(self.begun.elapsed(), &mut |one| told.push(one));
        polled
    }

    /// Returns whether all of the kinds were watched until now.
    fn renew(&mut self) -> bool {
        let sessions = &self.cache.inner.sessions;
        self.renewed = Instant::now();
        let now = sessions.clock.now();
        let _inside = sessions.latch.open();
        sessions
            .region
            .watch()
            .want_events(self.kinds, sessions.region.clock().tick(now))
    }
}
