//! How a server's threads halt together for a take-over, and continue or end together.
//!
//! A thread that is to halt finishes the request that it executes, brings its connections to a request boundary, and waits here for the
//! verdict. The acceptor halts first, so no connection is on its way to a worker when the workers halt.

use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Instant;

use crate::basics::lock;
use crate::connection::Handed;

/// Which threads are to halt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// none
    Off,
    Acceptor,
    /// also the workers and the kernel door's keeper
    Everyone,
}

/// What the halted threads do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HaltVerdict {
    /// continue as before
    Resume,
    /// another server has what was handed over
    End,
}

/// See the top of the file.
#[derive(Default)]
pub(crate) struct Halt {
    /// a [`Stage`]
    stage: AtomicU8,
    inner: Mutex<Inner>,
    changed: Condvar,
}

#[derive(Default)]
struct Inner {
    halted: usize,
    handed: Vec<Handed>,
    /// a thread could not reach a request boundary, for this reason
    failed: Option<String>,
    verdict: Option<HaltVerdict>,
}

impl Halt {
    /// Whether threads that halt at `stage` are to halt.
    #[inline]
    pub(crate) fn is_wanted(&self, stage: Stage) -> bool {
        // Relaxed would do: the mutex orders everything else.
        self.stage.load(SeqCst) >= stage as u8
    }

    /// Called by a thread that has halted, with the connections that it hands over, or the reason why it could not halt. Returns when there
    /// is a verdict.
    pub(crate) fn wait(&self, handed: Result<Vec<Handed>, String>) -> HaltVerdict {
        let mut inner = lock(&self.inner);
        if !self.is_wanted(Stage::Acceptor) {
            return HaltVerdict::Resume;
        }
        inner.halted += 1;
        match handed {
            Ok(handed) => inner.handed.extend(handed),
            Err(why) => inner.failed = Some(why),
        }
        self.changed.notify_all();
        let verdict = loop {
            if let Some(verdict) = inner.verdict {
                break verdict;
            }
            inner = self.changed.wait(inner).unwrap_or_else(PoisonError::into_inner);
        };
        inner.halted -= 1;
        self.changed.notify_all();
        verdict
    }

    /// Asks the threads of `stage` to halt; `wake` wakes them. Returns when `count` threads have halted in all.
    ///
    /// # Errors
    ///
    /// One of them cannot halt, or they have not halted until then.
    pub(super) fn halt(&self, stage: Stage, wake: impl FnOnce(), count: usize, until: Instant) -> Result<(), String> {
        self.stage.store(stage as u8, SeqCst);
        wake();
        let mut inner = lock(&self.inner);
        loop {
            if let Some(why) = inner.failed.take() {
                return Err(why);
            }
            if inner.halted >= count {
                return Ok(());
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(format!(
                    "{} of its {count} threads were busy for too long",
                    count - inner.halted
                ));
            }
            inner = self
                .changed
                .wait_timeout(inner, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    /// The connections of all halted threads.
    pub(super) fn handed(&self) -> Vec<Handed> {
        std::mem::take(&mut lock(&self.inner).handed)
    }

    /// Lets the halted threads go, and returns when they have gone.
    pub(super) fn let_go(&self, verdict: HaltVerdict) {
        let mut inner = lock(&self.inner);
        self.stage.store(Stage::Off as u8, SeqCst);
        inner.verdict = Some(verdict);
        self.changed.notify_all();
        while inner.halted > 0 {
            inner = self.changed.wait(inner).unwrap_or_else(PoisonError::into_inner);
        }
        *inner = Inner::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn threads_halt_together_and_one_that_is_late_goes_on() {
        let halt = Halt::default();
        let until = Instant::now() + Duration::from_secs(600);
        for verdict in [HaltVerdict::Resume, HaltVerdict::End] {
            std::thread::scope(|scope| {
                let threads: Vec<_> = [Stage::Acceptor, Stage::Everyone, Stage::Everyone]
                    .into_iter()
                    .map(|stage| {
                        let halt = &halt;
                        scope.spawn(move || {
                            while !halt.is_wanted(stage) {
                                std::thread::yield_now();
                            }
                            halt.wait(Ok(Vec::new()))
                        })
                    })
                    .collect();
                halt.halt(Stage::Acceptor, || (), 1, until).unwrap();
                halt.halt(Stage::Everyone, || (), 3, until).unwrap();
                halt.let_go(verdict);
                threads
                    .into_iter()
                    .for_each(|thread| assert_eq!(thread.join().unwrap(), verdict));
            });
            assert_eq!(halt.wait(Ok(Vec::new())), HaltVerdict::Resume, "too late");
        }
    }

    #[test]
    fn a_thread_that_cannot_halt_or_does_not_is_an_error() {
        let halt = Halt::default();
        let error = halt.halt(Stage::Acceptor, || (), 1, Instant::now()).unwrap_err();
        assert!(error.starts_with("1 of its 1 threads"), "{error}");
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| halt.wait(Err("why not".to_owned())));
            let until = Instant::now() + Duration::from_secs(600);
            assert_eq!(halt.halt(Stage::Everyone, || (), 2, until).unwrap_err(), "why not");
            halt.let_go(HaltVerdict::Resume);
            assert_eq!(thread.join().unwrap(), HaltVerdict::Resume);
        });
    }
}
