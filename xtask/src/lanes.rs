//! Jobs side by side: as many lanes as there are CPUs, each of which takes the next job of one list. Jobs that need the machine for
//! themselves run after the others, one at a time. Each runs once: a job that fails has failed.

use crate::run::{Context, Outcome};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

/// One job.
pub struct Job<'a> {
    /// what its failure is reported as
    pub name: String,
    /// it runs after the others, with nothing beside it
    pub alone: bool,
    /// does the work
    pub work: Box<dyn FnOnce() -> Outcome + Send + 'a>,
}

impl<'a> Job<'a> {
    /// Runs a command. Its output is printed as a whole when it ends.
    pub fn command(context: &'a Context<'a>, name: String, alone: bool, mut command: Command) -> Self {
        let title = name.clone();
        let work = move || {
            let log = context.target.join("xtask-logs").join(title.replace(['/', ' '], "-"));
            let outcome = context.logged(&log, &mut command);
            let output = std::fs::read(&log).unwrap_or_default();
            println!("== {title}:\n{}", String::from_utf8_lossy(&output));
            outcome
        };
        Self {
            name,
            alone,
            work: Box::new(work),
        }
    }

    /// The failure of a run, if it fails.
    fn failure(self) -> Option<String> {
        match (self.work)() {
            Outcome::Passed => None,
            Outcome::Failed(why) | Outcome::Skipped(why) | Outcome::Late(why) => Some(format!("{}: {why}", self.name)),
        }
    }
}

/// Runs all jobs, in this order where lanes are free, and says which failed. None is begun when the context's time is over.
pub fn run(context: &Context<'_>, jobs: Vec<Job<'_>>) -> Outcome {
    let at_once = std::thread::available_parallelism().map_or(1, usize::from);
    let (alone, shared): (Vec<_>, Vec<_>) = jobs.into_iter().partition(|job| job.alone);
    let (mut failed, mut late) = lanes(context, shared, at_once);
    let last = lanes(context, alone, 1);
    failed.extend(last.0);
    late.extend(last.1);
    if !failed.is_empty() {
        Outcome::Failed(failed.join("; "))
    } else if !late.is_empty() {
        Outcome::Late(late.join("; "))
    } else {
        Outcome::Passed
    }
}

/// Runs these jobs in so many lanes; returns which failed, and why, and which were not begun.
fn lanes(context: &Context<'_>, jobs: Vec<Job<'_>>, at_once: usize) -> (Vec<String>, Vec<String>) {
    let left = Mutex::new(jobs.into_iter());
    let next = || match context.is_late() {
        true => None,
        false => left.lock().unwrap_or_else(PoisonError::into_inner).next(),
    };
    let failed = Mutex::new(Vec::new());
    let lane = || {
        for job in std::iter::from_fn(next) {
            if let Some(why) = job.failure() {
                failed.lock().unwrap_or_else(PoisonError::into_inner).push(why);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(lane);
        }
    });
    let late = left.into_inner().unwrap_or_else(PoisonError::into_inner);
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    (failed, late.map(|job| job.name).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::{Path, PathBuf};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    fn context() -> Context<'static> {
        Context::new(Path::new("/"), PathBuf::new())
    }

    fn job<'a>(name: &str, alone: bool, work: impl FnOnce() -> Outcome + Send + 'a) -> Job<'a> {
        Job {
            name: name.into(),
            alone,
            work: Box::new(work),
        }
    }

    #[test]
    fn every_job_runs_once_and_every_failure_is_reported() {
        let ran = AtomicUsize::new(0);
        let jobs: Vec<_> = (0..20)
            .map(|number| {
                let ran = &ran;
                job(&format!("job {number}"), number % 5 == 0, move || {
                    ran.fetch_add(1, Ordering::Relaxed);
                    match number {
                        5 | 7 => Outcome::Failed("broken".into()),
                        _ => Outcome::Passed,
                    }
                })
            })
            .collect();
        assert_eq!(run(&context(), jobs), Outcome::Failed("job 7: broken; job 5: broken".into()));
        assert_eq!(ran.into_inner(), 20);
        assert_eq!(run(&context(), Vec::new()), Outcome::Passed);
    }

    #[test]
    fn nothing_runs_beside_a_job_that_needs_the_machine_for_itself() {
        let running = AtomicUsize::new(0);
        let most = AtomicUsize::new(0);
        let work = |alone: bool| {
            let (running, most) = (&running, &most);
            move || {
                let beside = running.fetch_add(1, Ordering::SeqCst);
                if alone {
                    most.fetch_max(beside, Ordering::SeqCst);
                }
                std::thread::yield_now();
                running.fetch_sub(1, Ordering::SeqCst);
                Outcome::Passed
            }
        };
        let jobs: Vec<_> = (0..200)
            .map(|number| job("", number % 2 == 0, work(number % 2 == 0)))
            .collect();
        assert_eq!(run(&context(), jobs), Outcome::Passed);
        assert_eq!(most.into_inner(), 0);
    }

    #[test]
    fn what_is_not_begun_in_time_is_named() {
        let late = context().until(Duration::ZERO);
        let jobs = || {
            vec![
                job("one", false, || panic!("it was begun")),
                job("two", true, || Outcome::Passed),
            ]
        };
        assert_eq!(run(&late, jobs()), Outcome::Late("one; two".into()));
    }

    #[test]
    fn a_command_that_fails_is_named() {
        let folder = std::env::temp_dir().join(format!("keyway-xtask-lanes-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let context = Context::new(&folder, folder.clone());
        let jobs: Vec<_> = ["true", "false"]
            .map(|program| Job::command(&context, format!("lanes {program}"), false, context.command(program, &[])))
            .into();
        let Outcome::Failed(why) = run(&context, jobs) else {
            panic!("it passed")
        };
        assert!(why.starts_with("lanes false: false: exit status"), "{why}");
        std::fs::remove_dir_all(folder).unwrap();
    }
}
