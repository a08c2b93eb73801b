//! The load generator for the library door: the calling thread runs the operations itself.
//!
//! Throughput counts everything that the thread does: making the key, the call, verifying the value. Latency is measured on
//! every 16th operation and covers the call alone, with one look at the clock (about 30 ns); in an open loop it is measured on all, from
//! the moment at which the operation was due.

use crate::load::{Load, Schedule};
use crate::machine::thread_cpu;
use crate::mix::Kind;
use crate::ran::{Ran, Window};
use keyway::{Arithmetic, Counted, Delete, Deleted, Session, Stored, WriteError};
use std::time::{Duration, Instant};

/// One operation in so many is timed: looking at the clock takes a third of the time of a get.
const TIMED_EVERY: u64 = 16;
/// Operations between two looks at whether time is up.
const BATCH: u64 = 64;

/// A thread with its session.
pub struct Caller {
    session: Session,
    load: Load,
    ran: Ran,
    write: u64,
    /// CPU time that this thread had used when the window began
    cpu_before: Option<Duration>,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl Caller {
    /// Ready to run.
    pub fn new(session: Session, load: Load) -> Self {
        Self {
            write: load.first_write(),
            session,
            load,
            ran: Ran::default(),
            cpu_before: None,
            key: Vec::new(),
            value: Vec::new(),
        }
    }

    /// Runs until `window` is over.
    pub fn run(mut self, window: Window) -> Ran {
        let begun = Instant::now();
        let end = if self.load.rate.is_some() {
            self.run_open(window, begun)
        } else {
            self.run_closed(window)
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

    fn run_open(&mut self, window: Window, begun: Instant) -> Instant {
        let Some(mut schedule) = self.load.schedule(begun) else {
            return begun;
        };
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
        let (kind, item) = self.load.stream.draw();
        self.key.clear();
        self.load.items.push_key(item, &mut self.key);
        let start = || timed.then(|| due.unwrap_or_else(Instant::now));
        let begun;
        match kind {
            Kind::Get => {
                begun = start();
                let hit = self.get();
                let took = begun.map(|begun| begun.elapsed());
                if let Some(took) = took {
                    self.ran.reads.record(took);
                }
                self.verify(item, hit, counted);
                self.ran.operations += u64::from(counted);
                return;
            }
            Kind::Set | Kind::Insert => {
                self.make_value(item);
                begun = start();
                self.set();
            }
            Kind::ReadModifyWrite => {
                begun = start();
                let hit = self.get();
                self.verify(item, hit, counted);
                self.make_value(item);
                self.set();
            }
            Kind::Delete => {
                self.make_value(item);
                self.set();
                begun = start();
                let deleted = self.session.delete(&self.key, &Delete::default());
                match deleted {
                    Ok(Deleted::Deleted) => {}
                    Ok(_) => self.ran.misses += u64::from(counted),
                    Err(e) => self.failed(e),
                }
            }
            Kind::Incr => {
                let one = Arithmetic {
                    delta: 1,
                    ..Arithmetic::default()
                };
                begun = start();
                match self.session.arithmetic(&self.key, &one) {
                    Ok(Counted::Value { .. }) => {}
                    Ok(Counted::NotFound) => self.ran.misses += u64::from(counted),
                    Ok(other) => self.ran.wrong.tell(|| format!("incr gave {other:?}")),
                    Err(e) => self.failed(e),
                }
            }
        }
        if let Some(begun) = begun {
            self.ran.writes.record(begun.elapsed());
        }
        self.ran.operations += u64::from(counted);
    }

    #[inline]
    fn get(&mut self) -> bool {
        self.value.clear();
        self.session.get(&self.key, &mut self.value).is_some()
    }

    fn make_value(&mut self, item: u64) {
        self.value.clear();
        self.load.items.push_value(item, self.write, &mut self.value);
        self.write += 1;
    }

    fn set(&mut self) {
        match self.session.set(&self.key, &self.value, 0) {
            Ok(Stored::Stored { .. }) => {}
            Ok(other) => {
                self.ran.wrong.errors += 1;
                self.ran.wrong.tell(|| format!("set gave {other:?}"));
            }
            Err(e) => self.failed(e),
        }
    }

    fn failed(&mut self, error: WriteError) {
        self.ran.wrong.errors += 1;
        self.ran.wrong.tell(|| error.to_string());
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
                .tell(|| format!("key {key}: a value of {len} bytes that was never written to it"));
        }
    }
}
