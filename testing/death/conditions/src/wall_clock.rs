//! A wall clock that is wrong in this program only: the machine's cannot be set under everything else that runs.
//!
//! The program has functions of the C library's names, and what it is linked with calls these. CLOCK_REALTIME is off by so many
//! seconds; every other clock is the kernel's.
//!
//! # Safety
//!
//! Both functions keep the contract of the ones that they stand for (`time(2)`, `clock_gettime(2)`).
#![allow(unsafe_code, reason = "functions of the C library; contract above")]

use nix::libc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

/// PAIRS: nothing; a clock may step at any time.
static OFF_S: AtomicI64 = AtomicI64::new(0);

/// From now on the wall clock is off by this, seconds.
pub fn set_off(seconds: i64) {
    OFF_S.store(seconds, Relaxed);
}

/// `clock_gettime(2)`.
// SAFETY: stands for the C library's function of this name, with its contract.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: libc::clockid_t, to: *mut libc::timespec) -> libc::c_int {
    // SAFETY: the caller's pointer is for a timespec, or wrong, which the kernel says.
    let done = unsafe { libc::syscall(libc::SYS_clock_gettime, clock, to) };
    if done != 0 {
        return -1;
    }
    if matches!(clock, libc::CLOCK_REALTIME | libc::CLOCK_REALTIME_COARSE) {
        // SAFETY: the kernel has just written there.
        unsafe { (*to).tv_sec += OFF_S.load(Relaxed) };
    }
    0
}

/// `time(2)`.
// SAFETY: stands for the C library's function of this name, with its contract.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn time(to: *mut libc::time_t) -> libc::time_t {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a timespec of this function's own.
    unsafe { clock_gettime(libc::CLOCK_REALTIME, &raw mut now) };
    if !to.is_null() {
        // SAFETY: the caller's pointer is NULL or for a time_t.
        unsafe { *to = now.tv_sec };
    }
    now.tv_sec
}
