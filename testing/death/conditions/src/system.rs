//! What the operating system is asked for where Rust has no safe word: forks, descriptors by their number, threads that end without a
//! word.
//!
//! # Safety
//!
//! - Forks: the child has only the calling thread; the C library makes its allocator usable there, and the child ends by `_exit`.
//! - Descriptors by number: that is what is tested. The program itself keeps no descriptor whose number it closes or takes.
#![allow(unsafe_code, reason = "the room of fork and raw descriptors; contract above")]

use nix::libc;
use nix::unistd::{ForkResult, fork};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Forks; the child runs `child` and ends with its exit code. The child's number.
///
/// # Errors
///
/// fork(2)'s.
pub fn fork_to(child: impl FnOnce() -> i32) -> nix::Result<i32> {
    // SAFETY: see the contract of this file.
    match unsafe { fork() }? {
        ForkResult::Parent { child } => Ok(child.as_raw()),
        ForkResult::Child => {
            // A panic must not unwind into frames that are the parent's.
            let code = catch_unwind(AssertUnwindSafe(child)).unwrap_or(101);
            end(code)
        }
    }
}

/// Forks, and goes on in the child; the parent gets the child's number to `known`, waits for it and ends as it ends.
///
/// # Errors
///
/// fork(2)'s.
pub fn go_on_in_child(known: impl FnOnce(i32)) -> nix::Result<()> {
    use nix::sys::wait::{WaitStatus, waitpid};
    // SAFETY: see the contract of this file.
    match unsafe { fork() }? {
        ForkResult::Child => {
            // The test kills the parent when all else fails.
            let _ = nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL);
            Ok(())
        }
        ForkResult::Parent { child } => {
            known(child.as_raw());
            loop {
                match waitpid(child, None) {
                    Ok(WaitStatus::Exited(_, code)) => end(code),
                    Ok(WaitStatus::Signaled(_, signal, _)) => end(128 + signal as i32),
                    Err(nix::errno::Errno::EINTR) | Ok(_) => {}
                    Err(_) => end(101),
                }
            }
        }
    }
}

/// Ends the process at once.
pub fn end(code: i32) -> ! {
    // SAFETY: `_exit` ends the process and runs nothing of it.
    unsafe { libc::_exit(code) }
}

/// Ends the calling thread at once: no destructor runs, and no other thread is informed.
pub fn end_thread() -> ! {
    // SAFETY: exit(2) ends the calling thread; its stack is never used again, nor freed.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
    unreachable!("exit(2) does not return")
}

/// The calling thread's number.
pub fn thread_id() -> i32 {
    nix::unistd::gettid().as_raw()
}

/// Whether this process has a thread of this number.
pub fn has_thread(number: i32) -> bool {
    // SAFETY: signal 0 only asks.
    number > 0 && unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), number, 0) } == 0
}

/// Closes every descriptor from this number on.
pub fn close_from(first: u32) {
    // SAFETY: see the contract of this file.
    unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0) };
}

/// Closes a descriptor, if there is one of this number.
pub fn close(number: i32) {
    // SAFETY: see the contract of this file.
    unsafe { libc::close(number) };
}

/// Opens a file for reading and writing at this very number, whatever was there. Whether that could be done.
pub fn open_at(path: &std::ffi::CStr, number: i32) -> bool {
    // SAFETY: a path that ends, and numbers; see the contract of this file.
    unsafe {
        let opened = libc::open(path.as_ptr(), libc::O_RDWR);
        if opened < 0 {
            return false;
        }
        if opened == number {
            return true;
        }
        let done = libc::dup2(opened, number) == number;
        libc::close(opened);
        done
    }
}

/// Writes at a descriptor's beginning; a descriptor that cannot is left alone.
pub fn write_at_start(number: i32, bytes: &[u8]) {
    // SAFETY: a pointer and a length of bytes that are there; see the contract of this file.
    unsafe { libc::pwrite(number, bytes.as_ptr().cast(), bytes.len(), 0) };
}

/// Writes where a descriptor stands, as `printf` does.
pub fn print(number: i32, bytes: &[u8]) {
    // SAFETY: as above.
    unsafe { libc::write(number, bytes.as_ptr().cast(), bytes.len()) };
}

/// Device and inode of what is open at this number.
pub fn identity_of(number: i32) -> Option<(u64, u64)> {
    // SAFETY: the structure is plain numbers, for which zeros are valid, and fstat(2) fills it in.
    unsafe {
        let mut found: libc::stat = std::mem::zeroed();
        (libc::fstat(number, &raw mut found) == 0).then_some((found.st_dev, found.st_ino))
    }
}
