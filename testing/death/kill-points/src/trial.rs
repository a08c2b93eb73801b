//! A scenario on trial: stepped once, judged on every image, resumed at some points; and the same for one who recovers.

use crate::ground::{Ground, STOPPED};
use crate::judge::{Brief, Verdict, judge, said};
use crate::operation::Op;
use crate::resume;
use crate::scenario::{Recovery, Scenario};
use crate::step::{self, Child, Stepped};
use harness::Random;
use keyway_region::Region;
use mutants::Mutant;
use std::fs::File;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

/// Instructions that the resumed samples of one scenario may take together, and samples at most.
const RESUMED_STEPS: u64 = 400_000;
/// Images that a judge takes at a time.
const CHUNK: usize = 16;

/// What a trial tried and found.
#[derive(Debug, Default)]
pub struct Trial {
    /// instructions from call to return
    pub instructions: u64,
    /// distinct images, the first one included
    pub images: usize,
    /// points at which the process went on after the others had worked
    pub resumed: usize,
    /// most accesses to the region that a verb of the others took
    pub accesses: u64,
    /// the operation is seen from this instruction on
    pub seen_from: Option<u64>,
    /// what is wrong
    pub errors: Vec<String>,
}

/// How much is tried.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// resumed samples at most
    pub resumed_max: u64,
    /// the seed of the samples
    pub seed: u64,
    /// stop at the first error
    pub is_first_error_enough: bool,
}

/// A scenario that has been stepped.
pub struct Tried {
    /// what happened
    pub stepped: Stepped,
    /// what its images may show
    pub brief: Brief,
}

/// A process that has come to its call.
pub struct Begun {
    /// the process
    pub child: Child,
    /// the region that it is in
    pub region: Arc<Region>,
    /// its memory
    pub ground: Ground,
    /// what keeps [`crate::ground::OTHER`] alive there, if the region is in a file
    pub file: Option<File>,
}

/// An operation in a state that can be brought about again and again.
pub trait Stage {
    /// the operation
    fn op(&self) -> &Op;
    /// segments of its region
    fn segments(&self) -> usize;
    /// what is broken, in this process too
    fn mutant(&self) -> Option<Mutant> {
        None
    }
    /// Whether its process gives back what it holds when it ends well; otherwise its end is a death like others.
    fn leaves_nothing(&self) -> bool {
        true
    }
    /// Brings a process to its call.
    ///
    /// # Errors
    ///
    /// What went wrong, for people.
    fn begin(&self) -> Result<Begun, String>;
}

/// A scenario as it is, or with something broken.
struct Staged<'s>(&'s Scenario, Option<Mutant>);

impl Stage for Staged<'_> {
    fn op(&self) -> &Op {
        &self.0.op
    }
    fn segments(&self) -> usize {
        self.0.segments
    }
    fn mutant(&self) -> Option<Mutant> {
        self.1
    }
    fn begin(&self) -> Result<Begun, String> {
        let ground = Ground::new(self.segments(), true);
        let region = ground.create();
        let child = Child::at_call(self.0.work(Arc::clone(&region), self.1))?;
        Ok(Begun {
            child,
            region,
            ground,
            file: None,
        })
    }
}

/// Steps a scenario, judges its images, resumes it at some points.
///
/// # Errors
///
/// It cannot be tried at all.
pub fn of_scenario(scenario: &mut Scenario, mutant: Option<Mutant>, effort: Effort) -> Result<(Trial, Tried), String> {
    mutants::set(None);
    scenario.rehearse()?;
    of(&Staged(scenario, mutant), effort)
}

/// Steps an operation, judges its images, resumes it at some points.
///
/// # Errors
///
/// It cannot be tried at all.
pub fn of(stage: &dyn Stage, effort: Effort) -> Result<(Trial, Tried), String> {
    mutants::set(None);
    let stepped = {
        let Begun { child, ground, file, .. } = stage.begin()?;
        let stepped = step::through(&ground, child)?;
        drop(file);
        stepped
    };
    let mut ground = Ground::new(stage.segments(), false);
    let last = stepped.image(stepped.changes.len());
    let brief = Brief::new(&mut ground, &stepped.base, &last, stage.op())?;
    mutants::set(stage.mutant());
    let mut trial = judge_all(stage.segments(), &stepped, &brief, effort);
    // What is broken is sampled until it is rejected, however long its operation is.
    let samples = if effort.is_first_error_enough {
        effort.resumed_max
    } else {
        (RESUMED_STEPS / stepped.steps.max(1)).clamp(1, effort.resumed_max)
    };
    let mut random = Random::new(effort.seed);
    for sample in 0..samples {
        if effort.is_first_error_enough && !trial.errors.is_empty() {
            break;
        }
        // Every other sample is right behind a change.
        let steps = match stepped.changes.len() as u64 {
            n if n > 0 && sample % 2 == 0 => stepped.changes[usize::try_from(random.next() % n).unwrap_or(0)].step,
            _ => random.next() % stepped.steps.max(1),
        };
        let resumed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            resume::after(stage, &brief, &stepped, steps, sample % 4 < 2)
        }));
        trial.resumed += 1;
        if let Err(e) = resumed.unwrap_or_else(|panic| Err(said(&*panic))) {
            trial.errors.push(format!("resumed after {steps} of {}: {e}", stepped.steps));
        }
    }
    mutants::set(None);
    Ok((trial, Tried { stepped, brief }))
}

/// The process died after change number `n`; another recovers, and is stepped and judged in turn.
///
/// # Errors
///
/// It cannot be tried at all.
pub fn of_recovery(scenario: &Scenario, tried: &Tried, n: usize, effort: Effort) -> Result<Trial, String> {
    let image = tried.stepped.image(n);
    let stepped = {
        let mut ground = Ground::new(scenario.segments, true);
        ground.restore(&image);
        ground.dead.are(&[STOPPED]);
        let recovery = Recovery {
            region: Some(ground.open()),
            player: None,
        };
        step::through(&ground, Child::at_call(recovery)?)?
    };
    let mut ground = Ground::new(scenario.segments, false);
    let brief = Brief::of_recovery(&tried.brief, &mut ground, &image)?;
    Ok(judge_all(scenario.segments, &stepped, &brief, effort))
}

/// Judges every distinct image, on all processors.
fn judge_all(segments: usize, stepped: &Stepped, brief: &Brief, effort: Effort) -> Trial {
    let (next, enough) = (AtomicUsize::new(0), AtomicBool::new(false));
    let results: Mutex<Vec<(usize, Result<Verdict, String>)>> = Mutex::default();
    let workers = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                let mut ground = Ground::new(segments, false);
                let (mut image, mut at) = (stepped.base.clone(), 0);
                loop {
                    let from = next.fetch_add(CHUNK, Relaxed);
                    if from > stepped.changes.len() || enough.load(Relaxed) {
                        return;
                    }
                    // Image 0 is the one before the first change.
                    for n in from..(from + CHUNK).min(stepped.changes.len() + 1) {
                        for change in &stepped.changes[at..n] {
                            Stepped::apply(&mut image, change);
                        }
                        at = n;
                        if n > 0 && !stepped.changes[n - 1].is_new {
                            continue;
                        }
                        let verdict = judge(&mut ground, &image, brief);
                        enough.fetch_or(effort.is_first_error_enough && verdict.is_err(), Relaxed);
                        if let Ok(mut results) = results.lock() {
                            results.push((n, verdict));
                        }
                    }
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap_or_default();
    results.sort_by_key(|(n, _)| *n);
    let mut trial = Trial {
        instructions: stepped.steps,
        images: results.len(),
        ..Trial::default()
    };
    for (n, verdict) in results {
        let step = if n == 0 { 0 } else { stepped.changes[n - 1].step };
        match verdict {
            Ok(verdict) => {
                trial.accesses = trial.accesses.max(verdict.accesses);
                match verdict.is_done {
                    Some(true) => trial.seen_from = trial.seen_from.or(Some(step)),
                    Some(false) if trial.seen_from.is_some() => {
                        trial
                            .errors
                            .push(format!("after {step} of {}: done before, and undone now", stepped.steps));
                    }
                    _ => {}
                }
            }
            Err(e) => trial.errors.push(format!("after {step} of {}: {e}", stepped.steps)),
        }
    }
    trial
}
