//! Lines for the user who runs the program, on its standard error, and nothing that the program would notice: a broken pipe there does
//! not end it (SIGPIPE), and a full one does not stop it; the line is lost then.
//!
//! Rust's own `stderr` is not used: it has a lock, which a forked child may find held by a thread of its parent.
//!
//! # Safety
//!
//! The `unsafe` here is system calls with places of this thread's stack. The signal mask that they change is the calling thread's, and is
//! as before afterwards.
#![allow(
    unsafe_code,
    reason = "system calls about a descriptor and the thread's signals; contract above"
)]

use std::mem::zeroed;
use std::ptr::null_mut;

/// Longest line, bytes: a pipe that can be written has room for as much (`pipe(7)`, PIPE_BUF).
const LINE_MAX: usize = libc::PIPE_BUF;

/// Prints a line of this library's own, unless KEYWAY_LIBMEMCACHED_QUIET is set.
pub(crate) fn say(text: &str) {
    if std::env::var_os("KEYWAY_LIBMEMCACHED_QUIET").is_none() {
        print(&format!("keyway (libmemcached): {text}\n"));
    }
}

/// Prints a line.
pub(crate) fn print(line: &str) {
    let bytes = line.as_bytes().get(..LINE_MAX).unwrap_or(line.as_bytes());
    let mut asked = libc::pollfd {
        fd: libc::STDERR_FILENO,
        events: libc::POLLOUT,
        revents: 0,
    };
    // SAFETY: one structure, and no time to wait.
    let can_be_written = unsafe { libc::poll(&raw mut asked, 1, 0) } == 1 && asked.revents == libc::POLLOUT;
    if can_be_written {
        without_sigpipe(|| {
            // SAFETY: bytes that are there. If it fails, the line is lost.
            unsafe { libc::write(libc::STDERR_FILENO, bytes.as_ptr().cast(), bytes.len()) < 0 }
        });
    }
}

/// Writes, and takes back the signal that a failed write sends to the calling thread, unless one was pending before.
fn without_sigpipe(write: impl FnOnce() -> bool) {
    // SAFETY: sets of signals on this thread's stack; zeros are valid ones.
    unsafe {
        let (mut pipe, mut before, mut pending): (libc::sigset_t, libc::sigset_t, libc::sigset_t) =
            (zeroed(), zeroed(), zeroed());
        libc::sigemptyset(&raw mut pipe);
        libc::sigaddset(&raw mut pipe, libc::SIGPIPE);
        libc::sigpending(&raw mut pending);
        let was_pending = libc::sigismember(&raw const pending, libc::SIGPIPE) == 1;
        if libc::pthread_sigmask(libc::SIG_BLOCK, &raw const pipe, &raw mut before) != 0 {
            return;
        }
        let has_failed = write();
        if has_failed && !was_pending {
            let at_once: libc::timespec = zeroed();
            libc::sigtimedwait(&raw const pipe, null_mut(), &raw const at_once);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, null_mut());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::sync::atomic::{AtomicI32, AtomicU32, Ordering::SeqCst};

    /// The thread whose signals are counted: other tests have their own.
    static THREAD: AtomicI32 = AtomicI32::new(0);
    static CAUGHT: AtomicU32 = AtomicU32::new(0);

    extern "C" fn catch(_: libc::c_int) {
        // SAFETY: asks for a number.
        if unsafe { libc::gettid() } == THREAD.load(SeqCst) {
            CAUGHT.fetch_add(1, SeqCst);
        }
    }

    #[test]
    fn a_write_that_fails_leaves_signals_as_they_were() {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        // SAFETY: a byte that is there.
        let write = || unsafe { libc::write(writer.as_raw_fd(), b"x".as_ptr().cast(), 1) < 0 };
        // SAFETY: a handler that stores to atomics, sets of signals on this thread's stack, and this thread's own mask.
        unsafe {
            THREAD.store(libc::gettid(), SeqCst);
            let handler: extern "C" fn(libc::c_int) = catch;
            libc::signal(libc::SIGPIPE, handler as libc::sighandler_t);
            assert!(write() && CAUGHT.load(SeqCst) == 1, "such a write sends the signal");
            without_sigpipe(write);
            assert_eq!(CAUGHT.load(SeqCst), 1, "and here it is taken back");

            let (mut pipe, mut now): (libc::sigset_t, libc::sigset_t) = (zeroed(), zeroed());
            libc::sigemptyset(&raw mut pipe);
            libc::sigaddset(&raw mut pipe, libc::SIGPIPE);
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const pipe, &raw mut now);
            assert_eq!(libc::sigismember(&raw const now, libc::SIGPIPE), 0, "it was not left blocked");
            assert!(write());
            without_sigpipe(write);
            libc::sigpending(&raw mut now);
            assert_eq!(
                libc::sigismember(&raw const now, libc::SIGPIPE),
                1,
                "the program's own signal stays pending"
            );
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const pipe, null_mut());
            assert_eq!(CAUGHT.load(SeqCst), 2);
            libc::signal(libc::SIGPIPE, libc::SIG_IGN);
        }
    }
}
