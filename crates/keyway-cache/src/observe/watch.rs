//! Watching: what all sessions of all processes do with a region.

use crate::session::roster::Sessions;
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
    sessions: Arc<Sessions>,
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

impl Watcher {
    /// See [`crate::Cache::watcher`].
    pub(crate) fn new(sessions: &Arc<Sessions>, kinds: u64) -> Option<Self> {
        if sessions.is_reader() || !sessions.is_here() {
            return None;
        }
        let now = sessions.now();
        let inner = sessions.inside(|region| {
            // The place first: what is written from the wish on is read.
            let inner = Watching::new(region.watch());
            region.watch().want_events(kinds, region.clock().tick(now));
            inner
        });
        Some(Self {
            sessions: Arc::clone(sessions),
            inner,
            kinds,
            begun: Instant::now(),
            renewed: Instant::now(),
        })
    }

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
        if !self.sessions.is_here() {
            return polled;
        }
        if self.renewed.elapsed() >= RENEWED_EVERY {
            polled.gap = !self.renew();
        }
        let (inner, begun) = (&mut self.inner, self.begun);
        polled.read = self
            .sessions
            .inside(|_| inner.poll(begun.elapsed(), &mut |one| told.push(one)));
        polled
    }

    /// Returns whether all of the kinds were watched until now.
    fn renew(&mut self) -> bool {
        self.renewed = Instant::now();
        let now = self.sessions.now();
        self.sessions
            .inside(|region| region.watch().want_events(self.kinds, region.clock().tick(now)))
    }
}
