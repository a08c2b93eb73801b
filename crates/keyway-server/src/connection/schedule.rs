//! When a connection has a turn: whether it waits for one, where its turns belong, and how it ends.
//!
//! Never: looks at its input or output.

use std::time::Instant;

/// A turn that ends with work left is long. When a new connection's first turns are long, this many short turns make it one with short turns. Each time that such a connection has
/// a long turn again, it takes twice as many, up to [`HEAVY_FOR_MAX`]: one that mixes both stays where long turns are served.
pub(crate) const HEAVY_FOR: u16 = 8;
const HEAVY_FOR_MAX: u16 = 16 << 10;

/// See the top of the file.
pub(super) struct Schedule {
    is_queued: bool,
    stay: Stay,
    ending: Ending,
    /// when it gets a turn even without an event
    called_at: Option<Instant>,
    /// short turns that it must have before it counts as one with short turns; a new connection needs one
    heavy: u16,
    /// what `heavy` becomes with a long turn
    heavy_for: u16,
    /// its source is above its rate: it executes nothing before this time
    pub(super) slowed_until: Option<Instant>,
    pub(super) last_active: Instant,
}

/// Whether its worker serves it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stay {
    Here,
    /// it goes to the worker's partner as soon as the ring does not use it; it has no turn meanwhile
    Leaving,
    /// closed; kept only until the ring no longer uses it
    Over,
}

/// Whether it may go on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    No,
    /// the server is stopping: only what has arrived is answered
    Stopping,
    /// another server has taken over: this connection ends at the next request boundary
    Draining,
}

impl Schedule {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            is_queued: false,
            stay: Stay::Here,
            ending: Ending::No,
            called_at: None,
            heavy: 1,
            heavy_for: HEAVY_FOR,
            slowed_until: None,
            last_active: now,
        }
    }

    /// It has something to do. Returns whether it is to be queued.
    pub(super) fn enqueue(&mut self) -> bool {
        self.stay == Stay::Here && !std::mem::replace(&mut self.is_queued, true)
    }

    /// Its turn begins; returns `false` if it has none.
    pub(super) fn begin_turn(&mut self) -> bool {
        let is_served = self.stay == Stay::Here;
        if is_served {
            self.is_queued = false;
        }
        is_served
    }

    /// Whether it has its turn at once when something arrives: it does not wait for one, and turns of its kind are short.
    pub(super) fn is_at_hand(&self) -> bool {
        !self.is_queued && self.stay != Stay::Leaving && !self.is_heavy()
    }

    /// Whether its turns were long lately, or it has had none yet.
    pub(super) fn is_heavy(&self) -> bool {
        self.heavy > 0
    }

    /// Its turn has ended.
    pub(super) fn end_turn(&mut self, was_long: bool) {
        if was_long {
            if !self.is_heavy() {
                self.heavy_for = (2 * self.heavy_for).min(HEAVY_FOR_MAX);
            }
            self.heavy = self.heavy_for;
        } else {
            self.heavy = self.heavy.saturating_sub(1);
        }
    }

    /// It wants a turn at this time. Returns whether that is sooner than before: there is one call at a time, even if other events give it
    /// turns meanwhile.
    pub(super) fn call_at(&mut self, at: Instant) -> bool {
        let is_sooner = self.called_at.is_none_or(|called_at| at < called_at);
        if is_sooner {
            self.called_at = Some(at);
        }
        is_sooner
    }

    /// The time of that call has come, or another worker serves it.
    pub(super) fn called(&mut self) {
        self.called_at = None;
    }

    pub(super) fn is_over(&self) -> bool {
        self.stay == Stay::Over
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.stay == Stay::Leaving
    }

    pub(super) fn end(&mut self) {
        self.stay = Stay::Over;
    }

    /// It goes to the partner, or stays here after all.
    pub(super) fn leave(&mut self, leaves: bool) {
        if self.stay != Stay::Over {
            self.stay = if leaves { Stay::Leaving } else { Stay::Here };
        }
    }

    pub(super) fn ending(&self) -> Ending {
        self.ending
    }

    /// Stopping is final.
    pub(super) fn end_as(&mut self, ending: Ending) {
        if self.ending != Ending::Stopping {
            self.ending = ending;
        }
    }
}
