//! What the operating system is asked for: shared pages, a clock that all processes share, forks, signals, and the dead.
//!
//! # Safety
//!
//! - [`Pages`] is a shared mapping that is only ever accessed as atomic words, and stays mapped for the value's life.
//! - [`fork_away`] forks in a process that may have other threads. The child has only the calling one; the C library makes its
//!   allocator usable there, and the child takes no lock that another thread can have held: it neither prints nor joins.
#![allow(unsafe_code, reason = "the room of mmap and fork; contract above")]

use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{ForkResult, Pid, fork};
use std::fs::File;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// Nanoseconds of CLOCK_MONOTONIC, the same for all processes of the machine.
pub fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap_or_else(|e| panic!("CLOCK_MONOTONIC: {e}"));
    let part = |n: i64| u64::try_from(n).unwrap_or(0);
    part(time.tv_sec()) * 1_000_000_000 + part(time.tv_nsec())
}

/// A file's words, mapped shared.
#[derive(Debug)]
pub struct Pages {
    base: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: every access is atomic, and the mapping belongs to the whole process.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    /// Creates the file with this many words, all 0, or opens it if it is there.
    ///
    /// # Panics
    ///
    /// When the file cannot be made or mapped.
    pub fn open(path: &Path, words: usize) -> Self {
        let mut options = File::options();
        let file = options.read(true).write(true).create(true).truncate(false).open(path);
        let file = file.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let len = NonZeroUsize::new(words * 8).unwrap_or(NonZeroUsize::MIN);
        file.set_len(len.get() as u64)
            .unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let base = unsafe { mmap(None, len, access, MapFlags::MAP_SHARED, &file, 0) };
        let base = base.unwrap_or_else(|e| panic!("mapping {}: {e}", path.display()));
        Self {
            base: base.cast(),
            words,
        }
    }

    /// A word.
    ///
    /// # Panics
    ///
    /// When there is none of this number.
    pub fn word(&self, i: usize) -> &AtomicU64 {
        assert!(i < self.words, "word {i} of {}", self.words);
        // SAFETY: in bounds, aligned (a mapping is page-aligned), valid for every bit pattern, mapped as long as `self`.
        unsafe { self.base.add(i).as_ref() }
    }

    /// Words there are.
    pub fn words(&self) -> usize {
        self.words
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped by `open`; no reference outlives `self`.
        let _ = unsafe { munmap(self.base.cast(), self.words * 8) };
    }
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
