//! What the operating system is asked for: a clock that all processes share, forks, signals, and the dead.
//!
//! # Safety
//!
//! - [`fork_away`] forks in a process that may have other threads. The child has only the calling one; the C library makes its
//!   allocator usable there, and the child takes no lock that another thread can have held: it neither prints nor joins.
#![allow(unsafe_code, reason = "the room of fork; contract above")]

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{ForkResult, Pid, fork};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Nanoseconds of CLOCK_MONOTONIC, the same for all processes of the machine.
pub fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap_or_else(|e| panic!("CLOCK_MONOTONIC: {e}"));
    let part = |n: i64| u64::try_from(n).unwrap_or(0);
    part(time.tv_sec()) * 1_000_000_000 + part(time.tv_nsec())
}

/// Forks a process that is nobody's child here: it becomes the child of the storm. In it `child` runs, and it ends.
pub fn fork_away(child: impl FnOnce() -> i32) {
    // SAFETY: see the contract of this file.
    match unsafe { fork() } {
        Ok(ForkResult::Parent { child: between }) => {
            let _ = waitpid(between, None);
        }
        Ok(ForkResult::Child) => {
            // SAFETY: as above.
            let code = match unsafe { fork() } {
                // A panic must not unwind into frames that are the parent's.
                Ok(ForkResult::Child) => catch_unwind(AssertUnwindSafe(child)).unwrap_or(101),
                _ => 0,
            };
            // SAFETY: `_exit` ends the process; no destructor of what the parent owns may run here.
            unsafe { nix::libc::_exit(code) }
        }
        Err(e) => panic!("fork: {e}"),
    }
}

/// Lets others go first: the storm itself has to be on time however many workers there are.
pub fn step_back() {
    // SAFETY: changes this process' priority only.
    let _ = unsafe { nix::libc::nice(10) };
}

/// Makes orphaned descendants children of this process, so that it can reap them.
pub fn adopt_orphans() {
    nix::sys::prctl::set_child_subreaper(true).unwrap_or_else(|e| panic!("PR_SET_CHILD_SUBREAPER: {e}"));
}

/// Sends a signal; one to a process that has ended is lost.
pub fn signal(pid: i32, signal: Signal) {
    let _ = kill(Pid::from_raw(pid), signal);
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// by itself, with this exit code
    Exited(i32),
    /// by this signal
    Signalled(Signal),
}

/// What there is to reap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reaped {
    /// this child has ended
    One(i32, End),
    /// no child has ended since
    NoneYet,
    /// there are no children at all
    Nobody,
}

/// Reaps one child that has ended, if any.
pub fn reap() -> Reaped {
    match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
        Ok(WaitStatus::Exited(pid, code)) => Reaped::One(pid.as_raw(), End::Exited(code)),
        Ok(WaitStatus::Signaled(pid, signal, _)) => Reaped::One(pid.as_raw(), End::Signalled(signal)),
        Ok(_) | Err(nix::errno::Errno::EINTR) => Reaped::NoneYet,
        Err(nix::errno::Errno::ECHILD) => Reaped::Nobody,
        Err(e) => panic!("waitpid: {e}"),
    }
}
