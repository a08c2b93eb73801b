//! The load generator for calls of the library: the calling thread runs the operations itself.
//!
//! Throughput counts everything that the thread does: making the key, the call, verifying the value. Latency is measured on
//! every 16th operation and covers the call alone: what two looks at the clock take is measured before, and subtracted. In an open
//! loop it is measured on all, from the moment at which the operation was due.

use crate::load::{Load, Schedule};
use crate::machine::{clock_cost, thread_cpu};
use crate::measurement::{Measurement, Window};
use crate::mix::{Kind, Operation};
use keyway_cache::{Arithmetic, Counted, Delete, Deleted, Session, Store, StoreMode, Stored};
use std::fmt::Display;
use std::time::{Duration, Instant};

/// One operation in so many is timed: looking at the clock takes a third of the time of a get.
const TIMED_EVERY: u64 = 16;
/// Operations between two looks at whether time is up.
const BATCH: u64 = 64;

/// A thread with its way into a cache.
pub struct Caller {
    cache: Session,
    load: Load,
    ran: Measurement,
    write: u64,
    /// what two looks at the clock take
    clock_cost: Duration,
    /// CPU time that this thread had used when the window began
    cpu_before: Option<Duration>,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl Caller {
    /// Ready to run.
    pub fn new(cache: Session, load: Load) -> Self {
        Self {
            write: load.first_write(),
            clock_cost: clock_cost(),
            cache,
            load,
            ran: Measurement::default(),
            cpu_before: None,
            key: Vec::new(),
            value: Vec::new(),
        }
    }

    /// Runs until `window` is over.
    pub fn run(mut self, window: Window) -> Measurement {
        let begun = Instant::now();
        let end = match self.load.schedule(begun) {
            Some(schedule) => self.run_open(window, schedule),
            None => self.run_closed(window),
        };
        self.ran.elapsed = end.saturating_duration_since(window.from);
        self.ran.used(self.cpu_before.unwrap_or_else(thread_cpu), window.from);
        self.ran
    }

    fn run_closed(&mut self, window: Window) -> Instant {
        loop {
            let now = Instant::now();
            if now >= window.until {
                return now;
            }
            let counted = now >= window.from;
            self.note_begin(counted);
            for number in 0..BATCH {
                let timed = counted && number % TIMED_EVERY == 0;
                self.operation(counted, timed, None);
            }
        }
    }

    fn run_open(&mut self, window: Window, mut schedule: Schedule) -> Instant {
        let patience_end = window.patience_end();
        loop {
            let due = schedule.next();
            schedule.advance();
            if due >= window.until {
                return Instant::now().max(window.until);
            }
            let now = Instant::now();
            if now >= patience_end {
                return self.give_up(schedule, due, now, window);
            }
            // A call takes less time than a sleep is late.
            while Instant::now() < due {
                std::hint::spin_loop();
            }
            let counted = due >= window.from;
            self.note_begin(counted);
            self.operation(counted, counted, Some(due));
        }
    }

    /// What was due and never started has at least the latency that it has by now.
    fn give_up(&mut self, mut schedule: Schedule, mut due: Instant, now: Instant, window: Window) -> Instant {
        while due < window.until {
            if due >= window.from {
                self.ran.unanswered += 1;
                self.ran.reads.record(now.saturating_duration_since(due));
            }
            due = schedule.next();
            schedule.advance();
        }
        now
    }

    fn note_begin(&mut self, counted: bool) {
        if counted && self.cpu_before.is_none() {
            self.cpu_before = Some(thread_cpu());
        }
    }

    #[inline]
    fn operation(&mut self, counted: bool, timed: bool, due: Option<Instant>) {
        let Operation { kind, item } = self.load.stream.draw();
        self.key.clear();
        self.load.items.push_key(item, &mut self.key);
        let start = || timed.then(|| due.unwrap_or_else(Instant::now));
        match kind {
            Kind::Get | Kind::GetNew => {
                let begun = start();
                let hit = self.get();
                self.took(begun, due, true);
                self.verify(item, hit, counted);
                if !hit && self.load.fill {
                    self.make_value(item);
                    self.store(false);
                }
            }
            Kind::Set | Kind::Insert | Kind::Add => {
                self.make_value(item);
                let begun = start();
                self.store(kind == Kind::Add);
                self.took(begun, due, false);
            }
            Kind::ReadModifyWrite => {
                let begun = start();
                let hit = self.get();
                self.verify(item, hit, counted);
                self.make_value(item);
                self.store(false);
                self.took(begun, due, false);
            }
            Kind::Delete | Kind::Remove => {
                if kind == Kind::Delete {
                    self.make_value(item);
                    self.store(false);
                }
                let begun = start();
                let deleted = self.cache.delete(&self.key, &Delete::default());
                self.took(begun, due, false);
                self.found(
                    deleted.map(|deleted| deleted == Deleted::Deleted),
                    counted && kind == Kind::Delete,
                );
            }
            Kind::Incr => {
                let begun = start();
                let incremented = self.cache.arithmetic(&self.key, &Arithmetic::default());
                self.took(begun, due, false);
                self.found(incremented.map(|answer| matches!(answer, Counted::Value { .. })), counted);
            }
        }
        self.ran.operations += u64::from(counted);
    }

    #[inline]
    fn took(&mut self, begun: Option<Instant>, due: Option<Instant>, read: bool) {
        let Some(begun) = begun else { return };
        let took = begun.elapsed();
        // What was due earlier has waited; what starts now has only been looked at twice by the clock.
        let looks = if due.is_some() { Duration::ZERO } else { self.clock_cost };
        let took = took.saturating_sub(looks);
        let latencies = if read { &mut self.ran.reads } else { &mut self.ran.writes };
        latencies.record(took);
    }

    #[inline]
    fn get(&mut self) -> bool {
        self.value.clear();
        let found = self.cache.get_append(&self.key, &mut self.value);
        found.map_err(|why| self.failed(&why)).is_ok_and(|found| found.is_some())
    }

    fn make_value(&mut self, item: u64) {
        self.value.clear();
        self.load.items.push_value(item, self.write, &mut self.value);
        self.write += 1;
    }

    /// Stores; with `add` unless it is there.
    fn store(&mut self, add: bool) {
        let how = Store {
            mode: if add { StoreMode::Add } else { StoreMode::Set },
            ..Store::default()
        };
        match self.cache.store(&self.key, &self.value, &how) {
            Ok(Stored::Stored { .. }) => {}
            Ok(Stored::NotStored) if add => {}
            Ok(other) => self.failed(&format!("a store gave {other:?}")),
            Err(why) => self.failed(&why),
        }
    }

    /// An operation on what should be there.
    fn found(&mut self, found: Result<bool, impl Display>, counted: bool) {
        match found {
            Ok(found) => self.ran.misses += u64::from(counted && !found),
            Err(why) => self.failed(&why),
        }
    }

    #[cold]
    fn failed(&mut self, why: &dyn Display) {
        self.ran.wrong.errors += 1;
        self.ran.wrong.describe(|| why.to_string());
    }

    #[inline]
    fn verify(&mut self, item: u64, hit: bool, counted: bool) {
        if !hit {
            self.ran.misses += u64::from(counted);
            return;
        }
        self.ran.hits += u64::from(counted);
        if !self.load.items.is_value(item, &self.value) {
            self.ran.wrong.values += 1;
            let (key, len) = (self.key.escape_ascii(), self.value.len());
            self.ran
                .wrong
                .describe(|| format!("key {key}: a value of {len} bytes that was never written to it"));
        }
    }
}
