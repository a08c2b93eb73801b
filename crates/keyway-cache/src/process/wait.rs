//! Waiting. Every wait of this crate ends at an instant of the monotonic clock, whatever signals the program gets meanwhile,
//! and may run apart: a binding can have its interpreter's lock released for as long as the wait lasts ([`run_apart_by`]).
//!
//! Never: waits with a lock held for which another thread waits in turn.
//!
//! # Safety
//!
//! The `unsafe` here is futex(2) on a word that the caller refers to.
#![allow(unsafe_code, reason = "futex(2), which has no wrapper; contract above")]

use crate::process::cancel::Uncancelled;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::fd::BorrowedFd;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU32;
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

/// Waits until a word that several processes share is woken, or this time is over; not at all if it has another value (futex(2)). It
/// may end for no reason.
pub fn on_word(word: &AtomicU32, value: u32, timeout: Duration) {
    // A word of the region: its address stays mapped as long as the caller has the region.
    let at = std::ptr::from_ref(word).expose_provenance();
    apart(move || {
        let time = nix::libc::timespec {
            tv_sec: timeout.as_secs().min(i32::MAX as u64).cast_signed(),
            tv_nsec: timeout.subsec_nanos().into(),
        };
        // SAFETY: a system call that reads the word, which is mapped, and the time.
        let _ = unsafe { nix::libc::syscall(nix::libc::SYS_futex, at, nix::libc::FUTEX_WAIT, value, &raw const time, 0, 0) };
    });
}

/// Wakes at most so many of those who wait for a word, in every process (futex(2)), and returns how many.
pub fn wake_word(word: &AtomicU32, at_most: u32) -> usize {
    // SAFETY: a system call that takes an address, and touches no memory.
    let woken = unsafe {
        nix::libc::syscall(
            nix::libc::SYS_futex,
            std::ptr::from_ref(word),
            nix::libc::FUTEX_WAKE,
            at_most.min(i32::MAX as u32),
            0,
            0,
            0,
        )
    };
    usize::try_from(woken).unwrap_or(0)
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
    use std::sync::atomic::Ordering::SeqCst;

    #[test]
    fn no_more_are_woken_than_was_asked_for() {
        const MANY: usize = 3;
        let word = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..MANY {
                scope.spawn(|| {
                    while word.load(SeqCst) == 0 {
                        on_word(&word, 0, Duration::from_secs(10));
                    }
                });
            }
            let (mut woken, mut most) = (0, 0);
            while woken < 20 * MANY {
                let now = wake_word(&word, 1);
                (woken, most) = (woken + now, most.max(now));
                // They wait again meanwhile.
                std::thread::sleep(Duration::from_millis(1));
            }
            word.store(1, SeqCst);
            wake_word(&word, u32::MAX);
            // Now that none of them waits any more.
            assert_eq!(most, 1, "at once");
        });
    }

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
