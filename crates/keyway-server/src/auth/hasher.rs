//! The thread that verifies hashed passwords, one after the other, so that no worker and no other connection waits for it.
//!
//! The sources of logins take turns: one that tries many passwords at a time delays another's login by one verification, not by all of them.
//! It holds the memory of one hash at a time. A login whose connection has ended meanwhile is left out.

use std::sync::{Arc, Condvar, Mutex, OnceLock};

use super::file::Check;
use super::turns::FairQueue;
use super::{Form, UserRole};
use crate::basics::lock;
use crate::rate::Source;
use crate::shared::{Notice, Workers};

/// The logins that wait for the thread.
#[derive(Default)]
pub(crate) struct Hasher {
    queue: Mutex<LoginQueue>,
    bell: Condvar,
}

#[derive(Default)]
struct LoginQueue {
    waiting: FairQueue<Job>,
    is_over: bool,
}

struct Job {
    pending: Arc<Pending>,
    check: Check,
    /// the connection's worker, and the worker's token for it
    worker: usize,
    token: usize,
}

/// A login that is being verified.
pub(crate) struct Pending {
    pub(crate) form: Form,
    verdict: OnceLock<Option<Arc<UserRole>>>,
}

impl Pending {
    /// The verdict, when there is one: the role of the user, or `None` for a wrong password.
    pub(crate) fn verdict(&self) -> Option<Option<Arc<UserRole>>> {
        self.verdict.get().cloned()
    }
}

impl Hasher {
    /// Adds a login from this source; when it is verified, the connection gets a turn.
    pub(crate) fn ask(&self, check: Check, form: Form, source: Source, (worker, token): (usize, usize)) -> Arc<Pending> {
        let pending = Arc::new(Pending {
            form,
            verdict: OnceLock::new(),
        });
        let mut queue = lock(&self.queue);
        if queue.is_over {
            let _ = pending.verdict.set(None);
            return pending;
        }
        let job = Job {
            pending: Arc::clone(&pending),
            check,
            worker,
            token,
        };
        queue.waiting.push(source, job);
        drop(queue);
        self.bell.notify_one();
        pending
    }

    /// Verifies what waits, until the server stops. What waits then is refused.
    pub(crate) fn run(&self, workers: &Workers) {
        while let Some((job, is_over)) = self.next() {
            // The connection holds the other one.
            if Arc::strong_count(&job.pending) < 2 {
                continue;
            }
            let verdict = if is_over { None } else { job.check.run() };
            // Only this thread sets it.
            let _ = job.pending.verdict.set(verdict);
            workers.send(job.worker, Notice::Turn(job.token));
        }
    }

    /// The next login, and whether the server stops. `None`: it stops, and none waits.
    fn next(&self) -> Option<(Job, bool)> {
        let mut queue = lock(&self.queue);
        loop {
            if let Some(job) = queue.waiting.pop() {
                return Some((job, queue.is_over));
            }
            if queue.is_over {
                return None;
            }
            queue = self.bell.wait(queue).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }

    /// The server stops.
    pub(crate) fn stop(&self) {
        lock(&self.queue).is_over = true;
        self.bell.notify_all();
    }
}
