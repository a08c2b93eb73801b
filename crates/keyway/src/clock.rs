//! The clock: seconds of time(2), which the kernel's code in the process reads from memory (`vdso(7)`): a load, where clock_gettime(2)
//! makes sure that seconds and nanoseconds belong together.
//!
//! # Safety
//!
//! The only `unsafe` asks for the time, and gives no place to store it to.
#![allow(unsafe_code, reason = "time(2); contract above")]

/// Unix seconds now.
#[inline]
pub(crate) fn unix_s() -> i64 {
    // SAFETY: NULL is allowed, and nothing is stored then.
    unsafe { nix::libc::time(std::ptr::null_mut()) }
}
