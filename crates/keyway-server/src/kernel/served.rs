//! What a worker has served lately over UDP and for enrolled TCP connections: from it the worker knows which keys to offer to the keeper.
//!
//! Never: holds a key. A fingerprint and a count are enough.

use keyway_cache::server::ServerCache as _;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::Thread;
use std::time::{Duration, Instant};

use keyway_cache::Cache;
use keyway_proto::Request;

use crate::basics::lock;

/// Most keys that wait for the keeper; further ones are dropped, and user space serves them again.
const CANDIDATES_MAX: usize = 4096;
/// So many wake the keeper. It looks at fewer with its next tick: to wake it for each would cost more than most of them save.
const CANDIDATES_WAKE: usize = 64;
/// Fingerprints in a worker's table of served keys.
const SERVED_LEN: usize = 1 << 15;
/// A key that was served once is forgotten after this time.
const SERVED_FOR: Duration = Duration::from_secs(10);
/// After this many further requests for a key it is offered again: the first offer may have failed.
const OFFERED_EVERY: u32 = 4;

/// Keys that workers have offered and the keeper has not looked at.
#[derive(Default)]
pub(crate) struct Candidates {
    keys: Mutex<Vec<Vec<u8>>>,
    keeper: OnceLock<Thread>,
}

/// What a worker has served lately: fingerprint 24, count 8.
pub(crate) struct Served {
    candidates: Arc<Candidates>,
    cache: Cache,
    table: Vec<u32>,
    emptied: Instant,
}

impl Candidates {
    /// The calling thread is the keeper.
    pub(super) fn keep(&self) {
        let _ = self.keeper.set(std::thread::current());
    }

    fn offer(&self, key: &[u8]) {
        let mut keys = lock(&self.keys);
        if keys.len() < CANDIDATES_MAX {
            keys.push(key.to_vec());
        }
        let are_many = keys.len() == CANDIDATES_WAKE;
        drop(keys);
        if are_many {
            self.wake();
        }
    }

    /// All of them.
    pub(crate) fn take(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut *lock(&self.keys))
    }

    /// Ends the keeper's pause.
    pub(super) fn wake(&self) {
        if let Some(keeper) = self.keeper.get() {
            keeper.unpark();
        }
    }
}

impl Served {
    pub(crate) fn new(candidates: Arc<Candidates>, cache: Cache) -> Self {
        Self {
            candidates,
            cache,
            table: vec![0; SERVED_LEN],
            emptied: Instant::now(),
        }
    }

    /// Called when a turn begins.
    pub(crate) fn turn(&mut self, now: Instant) {
        if now.saturating_duration_since(self.emptied) > SERVED_FOR {
            self.table.fill(0);
            self.emptied = now;
        }
    }

    /// Called for each request that is served.
    pub(crate) fn note(&mut self, request: &Request<'_>) {
        // The program passes all others up, even if it has copies.
        if request.is_for_kernel() {
            request.keys().for_each(|key| self.note_key(key));
        }
    }

    fn note_key(&mut self, key: &[u8]) {
        let hash = self.cache.hash(key);
        let at = usize::try_from(hash).unwrap_or(0) % self.table.len();
        let Some(entry) = self.table.get_mut(at) else { return };
        let print = u32::try_from(hash >> 40).unwrap_or(0) << 8;
        let count = if *entry & !0xFF == print { *entry & 0xFF } else { 0 };
        // At the second request, and then at every `OFFERED_EVERY`-th one.
        if count % OFFERED_EVERY == 1 {
            self.candidates.offer(key);
        }
        *entry = print | if count < 0xFF { count + 1 } else { OFFERED_EVERY };
    }
}
