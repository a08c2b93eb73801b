//! What a worker does by the clock: idle connections, the region's upkeep, and how long the poll may block.
//!
//! Never: serves a request.

use std::cmp::Reverse;
use std::time::Duration;

use super::{RELEASE_AFTER, Worker};
use crate::connection::CloseReason;
use crate::udp::UdpSockets;

/// After this time without work, a connection is parked: the ring stops receiving for it.
const PARK_AFTER: Duration = Duration::from_secs(5);
/// Most connections that are parked at a time: each needs a cancellation, and other connections wait meanwhile.
const PARKED_AT_ONCE: usize = 256;
/// How often the worker looks for idle connections and does the region's upkeep.
pub(super) const TICK: Duration = Duration::from_secs(1);

impl Worker {
    /// How long the poll may block.
    pub(super) fn timeout(&self, udp: &UdpSockets) -> Option<Duration> {
        if !self.queue.is_empty() || udp.has_work() || self.has_mail {
            return Some(Duration::ZERO);
        }
        let has_ticks = self.keeps_up() || self.idle_timeout().is_some() || self.has_unparked;
        let next = [
            has_ticks.then_some(self.next_tick),
            self.busy_at.map(|at| at + RELEASE_AFTER),
            self.deadline,
            self.later.peek().map(|Reverse((at, ..))| *at),
        ];
        next.into_iter()
            .flatten()
            .min()
            .map(|next| next.saturating_duration_since(self.desk.now))
    }

    /// Whether this worker does the region's housekeeping; only one does.
    fn keeps_up(&self) -> bool {
        self.desk.executor.worker == 0
    }

    fn idle_timeout(&self) -> Option<Duration> {
        Some(self.desk.executor.shared.config.idle_timeout).filter(|timeout| !timeout.is_zero())
    }

    pub(super) fn tick(&mut self) {
        self.next_tick = self.desk.now + self.idle_timeout().map_or(TICK, |timeout| TICK.min(timeout / 2));
        if self.keeps_up() {
            self.desk.executor.session.upkeep();
        }
        if let Some(limit) = self.idle_timeout().and_then(|timeout| self.desk.now.checked_sub(timeout / 2)) {
            for (_, connection) in &mut self.connections {
                connection.doubt_idleness(limit, self.desk.now);
            }
        }
        if let Some(limit) = self.idle_timeout().and_then(|timeout| self.desk.now.checked_sub(timeout)) {
            for token in self.tokens(|connection| connection.is_idle_since(limit)) {
                self.desk.executor.counters().idle_kicks.add(1);
                self.close(token, CloseReason::IdleTimeout);
            }
        }
        self.park();
        if self.deadline.is_some_and(|deadline| self.desk.now >= deadline) {
            let late = self.tokens(|connection| !connection.is_over);
            log::warn!("{} connections did not read their replies in time and are closed", late.len());
            late.into_iter().for_each(|token| self.close(token, CloseReason::Shutdown));
        }
    }

    /// Parks connections that have been silent for [`PARK_AFTER`].
    fn park(&mut self) {
        let (Some(ring), Some(limit), true) = (&mut self.desk.ring, self.desk.now.checked_sub(PARK_AFTER), self.has_unparked)
        else {
            return;
        };
        self.has_unparked = false;
        let mut parked = 0;
        for (token, connection) in &mut self.connections {
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
