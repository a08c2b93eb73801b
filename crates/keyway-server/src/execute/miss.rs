//! Gets that have found nothing, where misses are held (`--hold-misses`), and what clients have claimed or won.
//!
//! Never: parks a connection longer than the prefix's time, or knows a protocol.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use keyway_cache::WriteError;
use keyway_cache::server::{Flight, Missed, ServerSession as _};

use super::{Items, Origin};

/// What is done about a get that has found nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Miss {
    /// it is answered as a miss
    Answer,
    /// it is executed again: there is a value now
    Again,
    /// its connection waits until then, or until the value is there
    Hold(Instant),
}

/// The answer to a client that asks for a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lease {
    /// there is a value now
    Present,
    /// its token
    Token(u64),
}

/// The token that says: another client computes, ask again soon (mcrouter, `MockMc.cpp`, "hot miss").
pub(super) const ANOTHER_COMPUTES: u64 = 1;
/// The token of a lease with which nothing can be stored.
const NO_LEASE: u64 = 0;
/// How long a client has to store the value, seconds (Nishtala et al., NSDI 2013, section 3.2.1).
const LEASE_S: u32 = 10;

/// Where a connection's get waits, if it does.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Waiting {
    /// its gets may wait
    pub(crate) is_allowed: bool,
    /// since when the present request has waited
    pub(crate) since: Option<Instant>,
}

/// What a connection's client has claimed or won and may not have stored. It is given back when the connection ends.
#[derive(Default)]
pub(crate) struct Claims(Vec<(Box<[u8]>, Flight)>);

/// Claims that a connection keeps: the oldest of more ends by its time.
const CLAIMS_MAX: usize = 64;

impl Claims {
    /// Whether the client has claimed this key.
    pub(super) fn has(&self, key: &[u8]) -> bool {
        self.0.iter().any(|(own, _)| **own == *key)
    }

    /// Takes these.
    pub(crate) fn take(&mut self, from: &mut Vec<(Box<[u8]>, Flight)>) {
        for (key, flight) in from.drain(..) {
            self.0.retain(|(own, _)| *own != key);
            if self.0.len() == CLAIMS_MAX {
                self.0.remove(0);
            }
            self.0.push((key, flight));
        }
    }

    pub(crate) fn into_all(self) -> impl Iterator<Item = (Box<[u8]>, Flight)> {
        self.0.into_iter()
    }
}

impl Items {
    /// Decides about a get that has found nothing.
    #[inline]
    pub(super) fn missed(&mut self, key: &[u8], origin: &Origin<'_>) -> Miss {
        match self.shared.holds.is_some() && origin.waiting.is_allowed {
            true => self.missed_where_held(key, origin),
            false => Miss::Answer,
        }
    }

    #[cold]
    fn missed_where_held(&mut self, key: &[u8], origin: &Origin<'_>) -> Miss {
        let Some((holds, prefix)) = self
            .shared
            .holds
            .as_ref()
            .and_then(|holds| Some((holds, holds.prefix_of(key)?)))
        else {
            return Miss::Answer;
        };
        let now = Instant::now();
        let since = origin.waiting.since;
        let until = since.unwrap_or(now) + prefix.wait();
        if now >= until {
            holds.was_in_vain(prefix, now);
            return Miss::Answer;
        }
        // A client that asks again before it stores is not made to wait for itself.
        if holds.is_paused(prefix, now) || origin.claims.has(key) {
            return Miss::Answer;
        }
        match self.session.claim(key, prefix.claim_s()) {
            Ok(Missed::Claimed(flight)) => {
                prefix.claimed.fetch_add(1, Relaxed);
                self.claimed.push((key.into(), flight));
                Miss::Answer
            }
            Ok(Missed::InFlight(armed)) => {
                if since.is_none() {
                    prefix.held.fetch_add(1, Relaxed);
                }
                holds.park(armed, self.worker, origin.token);
                Miss::Hold(until)
            }
            Ok(Missed::Present) => Miss::Again,
            // No memory for a claim: as without it.
            Ok(Missed::Absent) | Err(_) => Miss::Answer,
        }
    }

    /// Gives a client the lease of a key that it has not found.
    pub(super) fn lease(&mut self, key: &[u8]) -> Result<Lease, WriteError> {
        Ok(match self.session.claim(key, LEASE_S)? {
            Missed::Claimed(flight) => {
                self.claimed.push((key.into(), flight));
                Lease::Token(flight.serial)
            }
            Missed::InFlight(_) => Lease::Token(ANOTHER_COMPUTES),
            Missed::Present => Lease::Present,
            Missed::Absent => Lease::Token(NO_LEASE),
        })
    }

    /// A get has found a value.
    #[inline]
    pub(super) fn found(&self, key: &[u8], origin: &Origin<'_>) {
        if origin.waiting.since.is_some()
            && let Some(prefix) = self.shared.holds.as_ref().and_then(|holds| holds.prefix_of(key))
        {
            prefix.has_come();
        }
    }

    /// The client has won the right to recache (`mg`), with this CAS unique.
    pub(super) fn won(&mut self, key: &[u8], cas: u64) {
        if let Some(flight) = self.session.won(cas) {
            self.claimed.push((key.into(), flight));
        }
    }
}
