//! Cancellation of threads (pthreads(7)): what a verb, opening or closing asks of the kernel, if it asks anything, is a cancellation point, and a
//! thread that is cancelled there would unwind through Rust.
//!
//! # Safety
//!
//! The only `unsafe` sets a state of the calling thread, and sets it back.
#![allow(unsafe_code, reason = "a thread's cancelability; contract above")]

use std::ffi::c_int;

unsafe extern "C" {
    /// pthread_setcancelstate(3)
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// PTHREAD_CANCEL_DISABLE of Linux's pthread.h.
const CANCEL_DISABLE: c_int = 1;

/// While it lives, this thread is not cancelled.
#[must_use]
pub struct Uncancelled(c_int);

impl Uncancelled {
    /// From here on.
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
        // SAFETY: the state that was there before.
        unsafe { pthread_setcancelstate(self.0, std::ptr::null_mut()) };
    }
}
