//! Waiting. Every wait of this crate ends at an instant of the monotonic clock, whatever signals the program gets meanwhile,
//! and may run apart: a binding can have its interpreter's lock released for as long as the wait lasts ([`run_apart_by`]).
//!
//! Never: waits with a lock held for which another thread waits in turn.

use crate::process::cancel::Uncancelled;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::fd::BorrowedFd;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Runs a wait. Other code of the program may run in other threads meanwhile, not in this one.
pub type RunApart = fn(&mut (dyn FnMut() + Send));

static RUN_APART: OnceLock<RunApart> = OnceLock::new();

/// Has all waits of this process run by this function. The first call counts.
pub fn run_apart_by(how: RunApart) {
    let _ = RUN_APART.set(how);
}

/// Waits until the socket is ready for this, or has failed; `false`: it is not by the deadline. A deadline that has passed asks
/// once.
pub(crate) fn until_ready(socket: BorrowedFd<'_>, what: PollFlags, deadline: Instant) -> bool {
    let mut asked = [PollFd::new(socket, what)];
    if matches!(poll(&mut asked, PollTimeout::ZERO), Ok(1..)) {
        return true;
    }
    if Instant::now() >= deadline {
        return false;
    }
    apart(move || {
        let mut asked = [PollFd::new(socket, what)];
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            // Whole milliseconds, at least one, so that the last round does not end before the deadline.
            let time = PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
            match poll(&mut asked, time) {
                Ok(1..) => return true,
                // A signal: the deadline stays where it is.
                Ok(_) | Err(Errno::EINTR) if Instant::now() < deadline => {}
                _ => return false,
            }
        }
    })
}

/// Waits as long.
pub(crate) fn sleep(time: Duration) {
    apart(|| std::thread::sleep(time));
}

fn apart<R: Default + Send>(wait: impl FnOnce() -> R + Send) -> R {
    let _uncancelled = Uncancelled::new();
    let Some(run) = RUN_APART.get() else { return wait() };
    let (mut wait, mut result) = (Some(wait), R::default());
    run(&mut || {
        if let Some(wait) = wait.take() {
            result = wait();
        }
    });
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_deadline_that_has_passed_asks_once() {
        let (one, other) = UnixStream::pair().unwrap();
        let passed = Instant::now();
        assert!(!until_ready(one.as_fd(), PollFlags::POLLIN, passed));
        assert!(until_ready(one.as_fd(), PollFlags::POLLOUT, passed));
        drop(other);
        assert!(until_ready(one.as_fd(), PollFlags::POLLIN, passed), "it has failed");
    }
}
