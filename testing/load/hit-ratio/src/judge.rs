//! A trace through every contender, and what must hold. What is judged is Keyway, or something broken in its place.

use crate::Contender;
use crate::keyway::Keyway;
use crate::memcached::Memcached;
use crate::s3fifo::{S3Fifo, Variant};
use crate::trace::{ALL, Plan, Request, SMALL, Trace};
use std::io;

/// Requests between two looks at the number of items held.
const STEP: usize = 1 << 16;

/// How large a run is.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// memory of each cache, MiB
    pub memory_mib: u64,
    /// requests for each item that the cache holds, half of them to warm up
    pub requests_per_held: u64,
    /// how much more than the item-level S3-FIFO Keyway may miss, relative
    pub s3fifo_margin: f64,
}

impl Scale {
    /// The whole.
    pub const FULL: Self = Self {
        memory_mib: 64,
        requests_per_held: 60,
        s3fifo_margin: 0.02,
    };
    /// The gate's form. Smaller caches have fewer segments, and short runs count less: the margin is wider.
    pub const SHORT: Self = Self {
        memory_mib: 16,
        requests_per_held: 10,
        s3fifo_margin: 0.04,
    };
}

/// What is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// Keyway as it is
    Keyway,
    /// Keyway whose evictions spare nothing that was hit, in a build with faults
    KeywayWithoutSecondChance,
    /// a FIFO of items
    Fifo,
}

/// What must be rejected.
pub const BROKEN: &[Subject] = &[Subject::Fifo, Subject::KeywayWithoutSecondChance];

/// The trace that it must be rejected on.
pub const TRACE_FOR_BROKEN: Plan = ALL[1];

impl Subject {
    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Keyway => "Keyway",
            Self::KeywayWithoutSecondChance => "Keyway without second chances",
            Self::Fifo => "a FIFO of items",
        }
    }
}

/// What came out.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    /// share of the requests that the subject missed
    pub subject: f64,
    /// the same of memcached, where it was asked
    pub memcached: Option<f64>,
    /// the same of the item-level S3-FIFO
    pub s3fifo: f64,
    /// items that the subject held on the average
    pub held: u64,
    /// items that memcached held at the end
    pub memcached_held: Option<u64>,
    /// items that Keyway copied for each set
    pub copies_per_set: f64,
}

impl Outcome {
    /// Comparisons that were made.
    pub fn checks(&self) -> usize {
        1 + usize::from(self.memcached.is_some())
    }

    /// Those that failed.
    pub fn failures(&self, scale: &Scale) -> Vec<String> {
        let mut failures = Vec::new();
        if let Some(memcached) = self.memcached
            && self.subject >= memcached
        {
            failures.push(format!("misses {:.4}, memcached {memcached:.4}", self.subject));
        }
        let most = self.s3fifo * (1.0 + scale.s3fifo_margin);
        if self.subject > most {
            failures.push(format!("misses {:.4}, item-level S3-FIFO allows {most:.4}", self.subject));
        }
        failures
    }
}

/// Items that a region of so many MiB holds, about: what the trace's number of keys follows from.
pub fn items_held(plan: &Plan, memory_mib: u64) -> u64 {
    let item_size = if plan.sizes == SMALL { 110 } else { 270 };
    (memory_mib << 20) / item_size
}

#[allow(clippy::cast_precision_loss, reason = "counts are below 2^53")]
fn ratio(a: u64, b: u64) -> f64 {
    a as f64 / b.max(1) as f64
}

/// Sends the trace through a contender; the miss ratio of the second half. `counted` is called when that begins, and after every
/// step of it.
fn miss_ratio<C: Contender>(
    contender: &mut C,
    plan: Plan,
    scale: &Scale,
    seed: u64,
    mut counted: impl FnMut(&C, bool),
) -> io::Result<f64> {
    let held = items_held(&plan, scale.memory_mib);
    let steps = usize::try_from(held * scale.requests_per_held)
        .unwrap_or(usize::MAX)
        .div_ceil(STEP);
    let mut trace = Trace::new(plan, held, seed);
    let mut requests: Vec<Request> = Vec::with_capacity(STEP);
    let (mut misses, mut count) = (0, 0);
    for step in 0..steps {
        if step == steps / 2 {
            counted(contender, true);
        }
        trace.fill(&mut requests, STEP);
        let missed = contender.replay(&requests)?;
        if step >= steps / 2 {
            misses += missed;
            count += STEP as u64;
            counted(contender, false);
        }
    }
    Ok(ratio(misses, count))
}

/// The subject's part of the outcome.
fn through_keyway(plan: Plan, scale: &Scale, seed: u64) -> io::Result<Outcome> {
    let mut keyway = Keyway::new(scale.memory_mib << 20)?;
    let (mut items, mut steps, mut before) = (0, 0, keyway_cache::Counters::default());
    let subject = miss_ratio(&mut keyway, plan, scale, seed, |keyway, begins| {
        let counters = keyway.counters();
        if begins {
            before = counters;
        } else {
            items += counters.curr_items;
            steps += 1;
        }
    })?;
    if let [problem, ..] = &keyway.problems()[..] {
        return Err(io::Error::other(format!("the region is not sound: {problem}")));
    }
    let counters = keyway.counters().since(&before);
    Ok(Outcome {
        subject,
        held: items / u64::max(steps, 1),
        copies_per_set: ratio(counters.relocations, counters.cmd_set),
        ..Outcome::default()
    })
}

/// Runs a trace.
///
/// # Errors
///
/// A refused `set`, an unsound region, or a memcached that breaks.
pub fn run(plan: Plan, scale: &Scale, seed: u64, subject: Subject, with_memcached: bool) -> io::Result<Outcome> {
    let mut outcome = match subject {
        Subject::Keyway => through_keyway(plan, scale, seed)?,
        Subject::KeywayWithoutSecondChance => {
            use mutants::{Mutant, set};
            set(Some(Mutant::NoSecondChance));
            let outcome = through_keyway(plan, scale, seed);
            set(None);
            outcome?
        }
        Subject::Fifo => {
            let held = items_held(&plan, scale.memory_mib);
            let mut fifo = reference(held, Variant::Fifo, PROMOTED_FROM[0]);
            Outcome {
                subject: miss_ratio(&mut fifo, plan, scale, seed, |_, _| {})?,
                held,
                ..Outcome::default()
            }
        }
    };
    outcome.s3fifo = f64::INFINITY;
    for promoted_from in PROMOTED_FROM {
        let mut reference = reference(outcome.held, Variant::Whole, promoted_from);
        let s3fifo = miss_ratio(&mut reference, plan, scale, seed, |_, _| {})?;
        outcome.s3fifo = outcome.s3fifo.min(s3fifo);
    }
    if with_memcached && let Some(mut memcached) = Memcached::start(scale.memory_mib)? {
        outcome.memcached = Some(miss_ratio(&mut memcached, plan, scale, seed, |_, _| {})?);
        outcome.memcached_held = Some(memcached.stat("curr_items")?);
    }
    Ok(outcome)
}

/// Hits after which the reference takes an item to its main queue: the paper says two, and one is better on some of the traces.
/// Keyway is held to the better of the two.
const PROMOTED_FROM: [u8; 2] = [2, 1];

fn reference(held: u64, variant: Variant, promoted_from: u8) -> S3Fifo {
    S3Fifo::new(usize::try_from(held).unwrap_or(usize::MAX), promoted_from, variant)
}
