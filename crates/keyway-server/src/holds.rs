//! Misses that are held (`--hold-misses`, and `lease-get` with a time): a get of a key that another client, or a program with the library, is
//! computing waits for the value, so that clients which know nothing of it compute each value once.
//!
//! The first client that misses a key has claimed it, in the region, where the flights of all doors are. Whoever stores the key ends that,
//! by any connection or process. A connection whose get waits is parked: one thread waits for all of them, and gives those a turn whose key
//! may have come. Each turn executes the request again, which finds the value, or parks the connection again, or ends at its time as a miss.
//!
//! Never: executes or answers a request (`execute` does).

use std::collections::HashMap;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use keyway_cache::server::{Armed, Flights};

use crate::basics::lock;
use crate::config::HoldMisses;
use crate::shared::{Life, Notice, Workers};

/// After so many misses in a row that were held in vain, the prefix's are not held for a while: its clients do not store what they miss.
const IN_VAIN_MAX: u32 = 16;
/// How long they are not.
const PAUSE: Duration = Duration::from_secs(60);
/// How often all parked connections look again: a program that computes may have died, and tells nobody.
const LOOK: Duration = Duration::from_millis(100);

/// See the top of the file.
pub struct Holds {
    prefixes: Vec<HeldPrefix>,
    /// connections by worker and its token, with what ends when their key comes
    parked: Mutex<HashMap<(usize, usize), Armed>>,
    /// the first one is parked, or the server ends
    has_parked: Condvar,
    is_over: AtomicBool,
    started: Instant,
}

/// A beginning of keys whose misses are held.
pub struct HeldPrefix {
    how: HoldMisses,
    /// misses after which their client was to compute
    pub claimed: AtomicU64,
    /// gets that have waited
    pub held: AtomicU64,
    /// of them, those that have waited in vain
    pub in_vain: AtomicU64,
    in_vain_in_a_row: AtomicU32,
    /// milliseconds after the start until which nothing is held
    paused_until_ms: AtomicU64,
}

impl HeldPrefix {
    fn new(how: HoldMisses) -> Self {
        Self {
            how,
            claimed: AtomicU64::new(0),
            held: AtomicU64::new(0),
            in_vain: AtomicU64::new(0),
            in_vain_in_a_row: AtomicU32::new(0),
            paused_until_ms: AtomicU64::new(0),
        }
    }

    pub fn name(&self) -> &str {
        &self.how.prefix
    }

    /// How long a get waits at most.
    pub fn wait(&self) -> Duration {
        self.how.wait
    }

    /// How long a client that has missed has to store the value, seconds.
    pub fn claim_s(&self) -> u32 {
        u32::try_from(self.how.wait.as_millis().div_ceil(1000))
            .unwrap_or(u32::MAX)
            .saturating_add(1)
    }

    /// A get that has waited has found a value.
    pub fn has_come(&self) {
        self.in_vain_in_a_row.store(0, Relaxed);
    }
}

impl Holds {
    pub fn new(prefixes: &[HoldMisses]) -> Self {
        Self {
            prefixes: prefixes.iter().cloned().map(HeldPrefix::new).collect(),
            parked: Mutex::default(),
            has_parked: Condvar::new(),
            is_over: AtomicBool::new(false),
            started: Instant::now(),
        }
    }

    pub fn prefixes(&self) -> &[HeldPrefix] {
        &self.prefixes
    }

    /// The longest prefix that a key begins with.
    pub fn prefix_of(&self, key: &[u8]) -> Option<&HeldPrefix> {
        let own = self
            .prefixes
            .iter()
            .filter(|prefix| key.starts_with(prefix.name().as_bytes()));
        own.max_by_key(|prefix| prefix.name().len())
    }

    /// Whether the misses of a prefix are not held now, because its clients do not store what they miss.
    pub fn is_paused(&self, prefix: &HeldPrefix, now: Instant) -> bool {
        self.ms(now) < prefix.paused_until_ms.load(Relaxed)
    }

    /// A get has waited for the whole time.
    pub fn was_in_vain(&self, prefix: &HeldPrefix, now: Instant) {
        prefix.in_vain.fetch_add(1, Relaxed);
        if prefix.in_vain_in_a_row.fetch_add(1, Relaxed) + 1 == IN_VAIN_MAX {
            prefix.in_vain_in_a_row.store(0, Relaxed);
            prefix.paused_until_ms.store(self.ms(now + PAUSE), Relaxed);
            log::warn!(
                "clients do not store the keys \"{}…\" that they miss: their misses are not held for {} seconds (--hold-misses)",
                prefix.name(),
                PAUSE.as_secs()
            );
        }
    }

    fn ms(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.started).as_millis()).unwrap_or(u64::MAX)
    }

    /// This connection gets a turn when that has ended.
    pub fn park(&self, flights: &Flights, armed: Armed, (worker, token): (usize, usize)) {
        let mut parked = lock(&self.parked);
        parked.insert((worker, token), armed);
        if parked.len() == 1 {
            self.has_parked.notify_all();
        }
        drop(parked);
        if flights.has_ended(armed) {
            flights.wake_any();
        }
    }

    /// Its get is answered.
    pub fn unpark(&self, worker: usize, token: usize) {
        lock(&self.parked).remove(&(worker, token));
    }

    /// Waits for all parked connections, until the server ends.
    pub fn run(&self, flights: &Flights, workers: &Workers, life: &Life) {
        let mut looked = Instant::now();
        loop {
            let parked = lock(&self.parked);
            let is_idle = |parked: &mut HashMap<_, _>| parked.is_empty() && !self.is_over.load(SeqCst);
            drop(self.has_parked.wait_while(parked, is_idle));
            if self.is_over.load(SeqCst) || life.is_stopping() {
                return;
            }
            let armed = flights.arm_any();
            let is_look = looked.elapsed() >= LOOK;
            if is_look {
                looked = Instant::now();
            }
            let mut due = Vec::new();
            lock(&self.parked).retain(|place, armed| {
                let has_ended = is_look || flights.has_ended(*armed);
                if has_ended {
                    due.push(*place);
                }
                !has_ended
            });
            for (worker, token) in due {
                workers.send(worker, Notice::Turn(token));
            }
            flights.wait(armed, LOOK.saturating_sub(looked.elapsed()));
        }
    }

    /// The server ends: the thread that waits sees it by its next look.
    pub fn stop(&self) {
        let parked = lock(&self.parked);
        self.is_over.store(true, SeqCst);
        self.has_parked.notify_all();
        drop(parked);
    }
}
