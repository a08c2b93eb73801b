//! What a worker does by the clock: idle connections, the region's upkeep, and when it has to wake up for that.
//!
//! Never: serves a request.

use std::time::{Duration, Instant};

use slab::Slab;

use crate::connection::{Connection, Desk};
use crate::shared::CloseReason;

/// After this time without work, a connection is parked: the ring stops receiving for it.
const PARK_AFTER: Duration = Duration::from_secs(5);
/// Most connections that are parked at a time: each needs a cancellation, and other connections wait meanwhile.
const PARKED_AT_ONCE: usize = 256;
/// How often the worker looks for idle connections and does the region's upkeep.
const TICK: Duration = Duration::from_secs(1);
/// After this time without work, a worker releases the space that its session has reserved for its next writes.
const RELEASE_AFTER: Duration = Duration::from_secs(5);

/// See the top of the file.
pub(super) struct Upkeep {
    /// this worker does the region's housekeeping; only one does
    is_keeper: bool,
    idle_timeout: Option<Duration>,
    next_tick: Instant,
    /// some connections may have to be parked soon
    has_unparked: bool,
    /// last time there was work; `None` after the session's reserved space was released
    busy_at: Option<Instant>,
    /// while the server is stopping: when it stops waiting for clients
    deadline: Option<Instant>,
}

impl Upkeep {
    pub(super) fn new(desk: &Desk) -> Self {
        let idle_timeout = desk.shared().config.idle_timeout;
        Self {
            is_keeper: desk.executor.worker() == 0,
            idle_timeout: Some(idle_timeout).filter(|timeout| !timeout.is_zero()),
            next_tick: Instant::now() + TICK,
            has_unparked: false,
            busy_at: None,
            deadline: None,
        }
    }

    /// Whether the worker waits only for its clients to take their answers.
    pub(super) fn is_stopping(&self) -> bool {
        self.deadline.is_some()
    }

    /// From now on it does, for the time that the server grants.
    pub(super) fn stop(&mut self, desk: &Desk) {
        self.deadline = Some(Instant::now() + desk.shared().config.shutdown_grace);
    }

    /// There was work in this round.
    pub(super) fn note_work(&mut self, desk: &Desk) {
        self.busy_at = Some(desk.now);
        self.has_unparked = desk.ring.is_some();
    }

    /// When there is something to do.
    pub(super) fn next(&self) -> Option<Instant> {
        let has_ticks = self.is_keeper || self.idle_timeout.is_some() || self.has_unparked;
        let next = [
            has_ticks.then_some(self.next_tick),
            self.busy_at.map(|at| at + RELEASE_AFTER),
            self.deadline,
        ];
        next.into_iter().flatten().min()
    }

    /// Does what is due. Returns the connections that have to be closed, by their tokens.
    pub(super) fn look(&mut self, desk: &mut Desk, connections: &mut Slab<Connection>) -> Vec<(usize, CloseReason)> {
        if self.busy_at.is_some_and(|at| desk.now >= at + RELEASE_AFTER) {
            desk.executor.session().release();
            self.busy_at = None;
        }
        let is_late = self.deadline.is_some_and(|deadline| desk.now >= deadline);
        if desk.now < self.next_tick && !is_late {
            return Vec::new();
        }
        self.next_tick = desk.now + self.idle_timeout.map_or(TICK, |timeout| TICK.min(timeout / 2));
        if self.is_keeper {
            desk.executor.session().upkeep();
        }
        let mut ended = self.idle(desk, connections);
        self.park(desk, connections);
        if is_late {
            let open = connections.iter().filter(|(_, connection)| !connection.is_over());
            ended.extend(open.map(|(token, _)| (token, CloseReason::Shutdown)));
            log::warn!(
                "{} connections did not read their replies in time and are closed",
                ended.len()
            );
        }
        ended
    }

    /// The connections that have been idle for too long.
    fn idle(&self, desk: &Desk, connections: &mut Slab<Connection>) -> Vec<(usize, CloseReason)> {
        let before = |time: Duration| desk.now.checked_sub(time);
        if let Some(limit) = self.idle_timeout.and_then(|timeout| before(timeout / 2)) {
            for (_, connection) in &mut *connections {
                connection.doubt_idleness(limit, desk.now);
            }
        }
        let Some(limit) = self.idle_timeout.and_then(before) else {
            return Vec::new();
        };
        let idle = connections.iter().filter(|(_, connection)| connection.is_idle_since(limit));
        let idle: Vec<_> = idle.map(|(token, _)| (token, CloseReason::IdleTimeout)).collect();
        desk.executor.counters().idle_kicks.add(idle.len() as u64);
        idle
    }

    /// Parks connections that have been silent for [`PARK_AFTER`].
    fn park(&mut self, desk: &mut Desk, connections: &mut Slab<Connection>) {
        let (Some(ring), Some(limit), true) = (&mut desk.ring, desk.now.checked_sub(PARK_AFTER), self.has_unparked) else {
            return;
        };
        self.has_unparked = false;
        let mut parked = 0;
        for (token, connection) in connections {
            if !connection.is_receiving() {
                continue;
            }
            if connection.is_idle_since(limit) && parked < PARKED_AT_ONCE {
                parked += 1;
                if let Err(error) = connection.park(ring) {
                    // The connection continues as before.
                    log::debug!("connection {token} cannot be parked: {error}");
                }
            } else {
                self.has_unparked = true;
            }
        }
    }
}
