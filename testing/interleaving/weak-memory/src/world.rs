//! What a skeleton runs on: a few words of loom's, and operations whose orderings come from the pairing's table, one of them weakened.
//!
//! A run tries every interleaving, and for each load every store that the memory model lets it see. A violation is noted and not
//! panicked at, so a run always ends.

use crate::pairings::{Pairing, Shape};
use loom::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use loom::sync::atomic::{AtomicUsize, fence};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize as Plain};

/// Words of shared memory that a skeleton has.
const WORDS: usize = 10;
/// Facts that its threads can leave for its end.
const FACTS: usize = 4;

/// A pairing's operations as they are tried: as in the code, or with one of them weakened.
#[derive(Clone, Copy)]
pub struct Trial {
    /// whose operations
    pub pairing: &'static Pairing,
    /// the operation that is weaker here, and what it is then
    pub weakened: Option<(&'static str, Shape)>,
}

/// What a run found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// what the pairing forbids was seen
    pub violated: bool,
    /// what the pairing is about was met: otherwise the run says nothing
    pub reached: bool,
}

/// What all executions of a run have found up to now.
#[derive(Default)]
struct Findings {
    violated: AtomicBool,
    reached: AtomicBool,
}

/// One execution's shared memory.
struct Shared {
    trial: Trial,
    words: [AtomicUsize; WORDS],
    facts: [Plain; FACTS],
    findings: Arc<Findings>,
}

/// One execution, as one of its threads has it.
pub struct World {
    shared: Arc<Shared>,
    /// the thread has made a sequentially consistent store, and no such load since
    stored: Cell<bool>,
}

/// A thread of a skeleton.
pub type Thread = fn(&World);

/// Runs a skeleton: all executions of its threads, and after each of them its end.
pub fn run(trial: Trial) -> Found {
    let findings = Arc::new(Findings::default());
    let noted = Arc::clone(&findings);
    loom::model::Builder::new().check(move || {
        let shared = Arc::new(Shared::new(trial, Arc::clone(&noted)));
        let world = World::of(&shared);
        let [threads @ .., last] = trial.pairing.threads else {
            return;
        };
        let spawn = |thread: &Thread| {
            let (thread, shared) = (*thread, Arc::clone(&shared));
            loom::thread::spawn(move || thread(&World::of(&shared)))
        };
        let spawned: Vec<_> = threads.iter().map(spawn).collect();
        last(&world);
        for thread in spawned {
            if thread.join().is_err() {
                world.violated(true);
            }
        }
        (trial.pairing.end)(&world);
    });
    Found {
        violated: findings.violated.load(Relaxed),
        reached: findings.reached.load(Relaxed),
    }
}

impl Shared {
    fn new(trial: Trial, findings: Arc<Findings>) -> Self {
        let first = |word| {
            trial
                .pairing
                .initial
                .iter()
                .find(|(of, _)| *of == word)
                .map_or(0, |(_, value)| *value)
        };
        Self {
            trial,
            words: std::array::from_fn(|word| AtomicUsize::new(first(word))),
            facts: std::array::from_fn(|_| Plain::new(0)),
            findings,
        }
    }
}

impl World {
    fn of(shared: &Arc<Shared>) -> Self {
        Self {
            shared: Arc::clone(shared),
            stored: Cell::new(false),
        }
    }

    /// What an operation is in this trial.
    fn shape(&self, operation: &str) -> Shape {
        let trial = &self.shared.trial;
        if let Some((weakened, shape)) = trial.weakened
            && weakened == operation
        {
            return shape;
        }
        let found = trial.pairing.operations.iter().find(|known| known.name == operation);
        found.map_or(Shape::None, |known| known.shape)
    }

    fn word(&self, word: usize) -> &AtomicUsize {
        &self.shared.words[word]
    }

    /// A load of the pairing's.
    pub fn load(&self, word: usize, operation: &str) -> usize {
        let Shape::Load(order) = self.shape(operation) else {
            panic!("{operation} is no load");
        };
        if order != SeqCst {
            return self.word(word).load(order);
        }
        // After a store that is sequentially consistent too: see the crate's page.
        if self.stored.take() {
            fence(SeqCst);
        }
        self.word(word).load(Acquire)
    }

    /// A store of the pairing's.
    pub fn store(&self, word: usize, value: usize, operation: &str) {
        let Shape::Store(order) = self.shape(operation) else {
            panic!("{operation} is no store");
        };
        self.stored.set(self.stored.get() || order == SeqCst);
        self.word(word).store(value, if order == SeqCst { Release } else { order });
    }

    /// A compare-and-swap of the pairing's; whether it was done.
    pub fn exchange(&self, word: usize, from: usize, to: usize, operation: &str) -> bool {
        let Shape::Exchange(order) = self.shape(operation) else {
            panic!("{operation} is no exchange");
        };
        self.stored.set(self.stored.get() || order == SeqCst);
        let order = if order == SeqCst { AcqRel } else { order };
        self.word(word).compare_exchange(from, to, order, Relaxed).is_ok()
    }

    /// A fence of the pairing's, unless it is left out.
    pub fn fence(&self, operation: &str) {
        match self.shape(operation) {
            Shape::Fence(order) => fence(order),
            Shape::None => {}
            _ => panic!("{operation} is no fence"),
        }
    }

    /// A relaxed load. Where the pairing says that something has happened before, this is how a skeleton finds out whether it has: a
    /// load that may still miss it is a violation.
    pub fn look(&self, word: usize) -> usize {
        self.word(word).load(Relaxed)
    }

    /// A relaxed store.
    pub fn put(&self, word: usize, value: usize) {
        self.word(word).store(value, Relaxed);
    }

    /// A relaxed compare-and-swap; whether it was done.
    pub fn swap(&self, word: usize, from: usize, to: usize) -> bool {
        self.word(word).compare_exchange(from, to, Relaxed, Relaxed).is_ok()
    }

    /// Leaves a fact for the end.
    pub fn fact(&self, fact: usize, value: bool) {
        self.shared.facts[fact].store(usize::from(value), Relaxed);
    }

    /// Whether a fact was left.
    pub fn is(&self, fact: usize) -> bool {
        self.shared.facts[fact].load(Relaxed) != 0
    }

    /// What the pairing is about was met.
    pub fn reached(&self) {
        self.shared.findings.reached.store(true, Relaxed);
    }

    /// What the pairing forbids was seen, if so.
    pub fn violated(&self, violated: bool) {
        if violated {
            self.shared.findings.violated.store(true, Relaxed);
        }
    }
}
