//! Gets that have found nothing: those that are held (`--hold-misses`, `lease-get` with a time), and what clients have claimed or won.
//!
//! Never: parks a connection longer than the prefix's time, or knows a protocol.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use keyway_cache::server::{Armed, Flight, Missed, ServerSession as _};
use keyway_cache::{Item, WriteError};

use super::{Executor, Items, Origin};

/// What is done about a get that has found nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Miss {
    /// it is answered as a miss
    Answer,
    /// it is executed again: there is a value now
    Again,
    /// its connection waits until then, or until the value is there
    Hold(Instant),
}

/// The answer to a client that asks for a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lease {
    /// there is a value now
    Present,
    /// its token
    Token(u64),
    /// its connection waits until then, or until the value is there
    Hold(Instant),
}

/// The token that says: another client computes, ask again soon (mcrouter, `MockMc.cpp`, "hot miss").
pub const ANOTHER_COMPUTES: u64 = 1;
/// The token of a lease with which nothing can be stored.
const NO_LEASE: u64 = 0;
/// How long a client has to store the value, seconds (Nishtala et al., NSDI 2013, section 3.2.1).
const LEASE_S: u32 = 10;
/// How long one has that waits for others, as a program with the library does: its lease ends with its connection, which a pool may never
/// close.
const WAITING_LEASE_S: u32 = 3600;

/// Where a connection's get waits, if it does.
#[derive(Clone, Copy, Debug, Default)]
pub struct Held<'a> {
    /// its gets may wait
    pub is_allowed: bool,
    /// since when the present request has waited
    pub since: Option<Instant>,
    /// what its client has claimed or won; `None`: it is no connection
    pub claims: Option<&'a Claims>,
}

/// What a connection's client has claimed or won and may not have stored. It is given back when the connection ends.
#[derive(Debug, Default)]
pub struct Claims(Vec<(Box<[u8]>, Flight)>);

/// Claims that a connection keeps: the oldest of more ends by its time.
const CLAIMS_MAX: usize = 64;

impl Claims {
    /// Whether the flight is this client's.
    fn has(&self, flight: Flight) -> bool {
        self.0.iter().any(|(_, own)| *own == flight)
    }

    /// Takes what the client has claimed or won by the last request.
    pub fn take(&mut self, executor: &mut Executor) {
        for (key, flight) in executor.items.claimed.drain(..) {
            self.0.retain(|(own, _)| *own != key);
            if self.0.len() == CLAIMS_MAX {
                self.0.remove(0);
            }
            self.0.push((key, flight));
        }
    }

    /// The connection has ended: another client may compute what this one has not stored.
    pub fn release(self, executor: &mut Executor) {
        for (key, flight) in self.0 {
            executor.items.session.release_claim(&key, flight);
        }
    }
}

impl Items {
    /// Decides about a get that has found nothing.
    pub fn missed(&mut self, key: &[u8], origin: &Origin<'_>) -> Miss {
        match self.shared.holds.prefixes().is_empty() || !origin.held.is_allowed {
            true => Miss::Answer,
            false => self.missed_where_held(key, origin),
        }
    }

    fn missed_where_held(&mut self, key: &[u8], origin: &Origin<'_>) -> Miss {
        let holds = &self.shared.holds;
        let Some(prefix) = holds.prefix_of(key) else {
            return Miss::Answer;
        };
        let now = Instant::now();
        let since = origin.held.since;
        let until = since.unwrap_or(now) + prefix.wait();
        if now >= until {
            holds.was_in_vain(prefix, now);
            return Miss::Answer;
        }
        if holds.is_paused(prefix, now) {
            return Miss::Answer;
        }
        match self.session.claim(key, prefix.claim_s()) {
            Ok(Missed::Claimed(flight)) => {
                prefix.claimed.fetch_add(1, Relaxed);
                self.note_claim(key, flight, origin);
                Miss::Answer
            }
            // A client that asks again before it stores is not made to wait for itself.
            Ok(Missed::InFlight(flight, _)) if origin.held.claims.is_some_and(|claims| claims.has(flight)) => Miss::Answer,
            Ok(Missed::InFlight(_, armed)) => {
                if since.is_none() {
                    prefix.held.fetch_add(1, Relaxed);
                }
                self.park(armed, origin);
                Miss::Hold(until)
            }
            Ok(Missed::Present) => Miss::Again,
            // No memory for a claim: as without it.
            Ok(Missed::Absent) | Err(_) => Miss::Answer,
        }
    }

    /// Gives a client the lease of a key that it has not found, or has it wait so long for the value of another one.
    pub fn lease(&mut self, key: &[u8], wait_ms: Option<u32>, origin: &Origin<'_>) -> Result<Lease, WriteError> {
        let for_s = wait_ms.map_or(LEASE_S, |_| WAITING_LEASE_S);
        Ok(match self.session.claim(key, for_s)? {
            Missed::Claimed(flight) => {
                self.note_claim(key, flight, origin);
                Lease::Token(flight.serial)
            }
            Missed::InFlight(flight, armed) => match self.wait_for(flight, wait_ms, origin) {
                Some(until) => {
                    self.park(armed, origin);
                    Lease::Hold(until)
                }
                None => Lease::Token(ANOTHER_COMPUTES),
            },
            Missed::Present => Lease::Present,
            Missed::Absent => Lease::Token(NO_LEASE),
        })
    }

    /// Until when a client waits that asks for it. `None`: not, or not any more. It is not made to wait for itself.
    fn wait_for(&self, flight: Flight, wait_ms: Option<u32>, origin: &Origin<'_>) -> Option<Instant> {
        let held = &origin.held;
        let is_own = held.claims.is_none_or(|claims| claims.has(flight));
        let wait = wait_ms.filter(|_| held.is_allowed && !is_own)?;
        let now = Instant::now();
        let until = held.since.unwrap_or(now) + Duration::from_millis(wait.into());
        (now < until).then_some(until)
    }

    /// The connection waits for that. Its request is executed again, and counts then.
    fn park(&mut self, armed: Armed, origin: &Origin<'_>) {
        self.session.uncount_miss();
        if let Some(flights) = &self.flights {
            self.shared.holds.park(flights, armed, (self.worker, origin.token));
        }
    }

    /// What a datagram has claimed is no connection's, and ends by its time.
    fn note_claim(&mut self, key: &[u8], flight: Flight, origin: &Origin<'_>) {
        if origin.held.claims.is_some() {
            self.claimed.push((key.into(), flight));
        }
    }

    /// A get has found an item, or made one.
    pub fn found(&mut self, key: &[u8], item: &Item, origin: &Origin<'_>) {
        if item.win
            && let Some(flight) = self.session.won(item.cas)
        {
            self.note_claim(key, flight, origin);
        }
        if origin.held.since.is_some()
            && let Some(prefix) = self.shared.holds.prefix_of(key)
        {
            prefix.has_come();
        }
    }
}
