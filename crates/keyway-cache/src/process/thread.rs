//! Which thread this is, and whether another one of this process still exists: it is queried with signal 0 (`tgkill(2)`), which
//! sends nothing. A thread that cannot be queried is taken to exist.
//!
//! # Safety
//!
//! The only `unsafe` here is system calls that take numbers.
#![allow(unsafe_code, reason = "system calls that take numbers; contract above")]

use crate::process::storage;
use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The calling thread's number in this process. No number is used twice, not even by a thread that reuses another
/// thread's storage.
#[inline]
pub(crate) fn thread_number() -> u64 {
    match storage::number() {
        0 => number_thread(),
        number => number,
    }
}

/// The calling thread's number in this process, or 0 if it has none yet.
#[inline(always)]
pub(crate) fn thread_number_if_known() -> u64 {
    storage::number()
}

#[cold]
fn number_thread() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let number = LAST.fetch_add(1, Relaxed) + 1;
    storage::set_number(number);
    number
}

/// A thread of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Thread {
    /// its process's number, and its own, as the kernel numbers them
    process: i32,
    id: i32,
    /// [`thread_number`]
    number: u64,
}

impl Thread {
    /// The calling thread.
    pub(crate) fn current() -> Self {
        Self {
            process: nix::unistd::getpid().as_raw(),
            id: nix::unistd::gettid().as_raw(),
            number: thread_number(),
        }
    }

    /// Whether it has ended: no later store of it can come.
    pub(crate) fn has_ended(self) -> bool {
        // SAFETY: takes numbers; signal 0 is sent to no thread.
        let asked = unsafe { libc::syscall(libc::SYS_tgkill, self.process, self.id, 0) };
        if asked != 0 {
            return Errno::last() == Errno::ESRCH;
        }
        // A process's first thread keeps its number if it ends before the others.
        self.id == self.process && open_pidfd(self.id, PIDFD_THREAD).is_ok_and(|thread| has_exited(&thread))
    }

    /// Whether the other thread has its number now: then this thread has ended.
    pub(crate) fn is_succeeded_by(self, other: Self) -> bool {
        (self.process, self.id) == (other.process, other.id) && self.number != other.number
    }
}

/// Linux 6.9: the descriptor is a thread's (pidfd_open(2)).
const PIDFD_THREAD: u32 = nix::libc::O_EXCL.unsigned_abs();
/// A descriptor of a process, or with [`PIDFD_THREAD`] of a thread (`pidfd_open(2)`).
pub(crate) fn open_pidfd(id: i32, flags: u32) -> nix::Result<OwnedFd> {
    // SAFETY: takes numbers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, id, flags) };
    let fd = i32::try_from(Errno::result(fd)?).map_err(|_| Errno::EBADF)?;
    // SAFETY: new, and owned by no other value.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Whether the process, or thread, of a descriptor has exited. Its parent may not have waited for it yet.
pub(crate) fn has_exited(pidfd: &OwnedFd) -> bool {
    let mut asked = [PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)];
    matches!(poll(&mut asked, PollTimeout::ZERO), Ok(1..))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_there_until_it_has_ended() {
        let here = Thread::current();
        assert!(!here.has_ended());
        let (number, there) = std::thread::spawn(|| (thread_number(), Thread::current())).join().unwrap();
        assert_ne!(number, thread_number());
        // The kernel removes the thread a moment after the join.
        while !there.has_ended() {
            std::thread::yield_now();
        }
        let later = Thread {
            number: here.number + 1,
            ..here
        };
        assert!(
            here.is_succeeded_by(later) && !here.is_succeeded_by(here),
            "a number that was used again"
        );
    }
}
