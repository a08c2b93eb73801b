//! Waiting for events: of the poll, and of the ring, which then watches the poll too.
//!
//! Never: knows what an event means to a connection.

use std::io;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use keyway_uring::{Event, Ring};
use mio::{Events, Poll, Registry};

/// The ring's token for the poll.
const POLL: usize = 1 << 40;

/// See the top of the file.
pub(super) struct Waiting {
    poll: Poll,
    /// how long it polls before it sleeps
    spin: Duration,
    /// the ring watches the poll
    is_poll_watched: bool,
    /// events of the ring that are not handled yet
    completions: Vec<Event>,
}

impl Waiting {
    pub(super) fn new(poll: Poll, spin: Duration) -> Self {
        Self {
            poll,
            spin,
            is_poll_watched: false,
            completions: Vec::new(),
        }
    }

    pub(super) fn registry(&self) -> &Registry {
        self.poll.registry()
    }

    /// The events of the ring that are not handled yet; one of the poll's own has a token that no connection has. The vector comes back with
    /// [`Self::keep`].
    pub(super) fn completions(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.completions)
    }

    /// Keeps these events of the ring for later, or an empty vector for its capacity.
    pub(super) fn keep(&mut self, completions: Vec<Event>) {
        self.completions = completions;
    }

    /// Whether events of the ring are not handled yet.
    pub(super) fn has_completions(&self) -> bool {
        !self.completions.is_empty()
    }

    #[cfg(all(test, feature = "kernel"))]
    pub(super) fn completed(&self) -> &[Event] {
        &self.completions
    }

    /// Waits for events, at most for `timeout`. If busy polling is configured, it spins before it sleeps.
    pub(super) fn wait(&mut self, ring: &mut Option<Ring>, events: &mut Events, timeout: Option<Duration>) -> io::Result<()> {
        let spin = self.spin;
        if spin.is_zero() || timeout == Some(Duration::ZERO) {
            return self.wait_once(ring, events, timeout);
        }
        let until = Instant::now() + timeout.map_or(spin, |timeout| timeout.min(spin));
        loop {
            self.wait_once(ring, events, Some(Duration::ZERO))?;
            if !events.is_empty() || self.has_completions() {
                return Ok(());
            }
            let now = Instant::now();
            if now >= until {
                return self.wait_once(ring, events, timeout.map(|timeout| timeout.saturating_sub(spin)));
            }
            std::hint::spin_loop();
        }
    }

    fn wait_once(&mut self, ring: &mut Option<Ring>, events: &mut Events, timeout: Option<Duration>) -> io::Result<()> {
        let Some(ring) = ring else {
            return self.poll.poll(events, timeout);
        };
        events.clear();
        if !self.is_poll_watched {
            // Each new watch checks readiness again, so events that are not taken at once are not lost.
            ring.watch(self.poll.as_raw_fd(), POLL)?;
            self.is_poll_watched = true;
        }
        if self.wait_for_ring(ring, timeout)? {
            self.poll.poll(events, Some(Duration::ZERO))?;
        }
        Ok(())
    }

    /// Takes the events of the ring. Returns whether the poll has some; its watch has ended then.
    pub(super) fn wait_for_ring(&mut self, ring: &mut Ring, timeout: Option<Duration>) -> io::Result<bool> {
        ring.wait(timeout)?;
        ring.take(&mut self.completions);
        let has_polled = self
            .completions
            .iter()
            .any(|event| matches!(event, Event::Ready { token: POLL }));
        self.is_poll_watched &= !has_polled;
        Ok(has_polled)
    }
}
