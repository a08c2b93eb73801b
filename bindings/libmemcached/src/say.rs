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
