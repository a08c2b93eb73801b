//! Cancellation of threads (pthreads(7)). A verb, opening or closing may make a system call that is a cancellation point.
//! A thread that is cancelled there would unwind through Rust.
//!
//! # Safety
//!
//! The only `unsafe` sets a state of the calling thread, and restores it.
#![allow(unsafe_code, reason = "a thread's cancelability; contract above")]

use std::ffi::c_int;

unsafe extern "C" {
    /// pthread_setcancelstate(3)
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// PTHREAD_CANCEL_DISABLE of Linux's pthread.h.
const CANCEL_DISABLE: c_int = 1;

/// As long as it lives, this thread is not cancelled.
#[must_use]
pub struct Uncancelled(c_int);

impl Uncancelled {
    /// Disables cancellation from here on.
    #[expect(clippy::new_without_default, reason = "a guard is asked for by name")]
    pub fn new() -> Self {
        let mut old = 0;
        // SAFETY: a valid state, and room for the old one.
        unsafe { pthread_setcancelstate(CANCEL_DISABLE, &raw mut old) };
        Self(old)
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        // SAFETY: the state that the thread had before.
        unsafe { pthread_setcancelstate(self.0, std::ptr::null_mut()) };
    }
}
