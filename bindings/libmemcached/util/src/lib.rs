//! libmemcachedutil for programs that use Keyway's libmemcached: pools of handles, and helpers that ask one server something.
//!
//! It knows handles by libmemcached's own functions alone, so it works with any `libmemcached.so.11`; of a handle's structure it
//! knows the three numbers that pools keep there. Of `keyway-cache` it uses only what tells a forked child from its parent.
//!
//! # Safety
//!
//! Every exported function takes its caller's word, as libmemcachedutil's headers give it.
#![allow(unsafe_code, reason = "the C ABI; contract above")]
#![allow(
    non_camel_case_types,
    missing_docs,
    clippy::missing_safety_doc,
    reason = "names, signatures and contracts are those of libmemcachedutil's headers"
)]

mod ask;
mod pool;

use std::panic::{AssertUnwindSafe, catch_unwind};

/// A handle, of which this library knows only where pools keep their numbers.
#[repr(C)]
pub struct ClientHandle {
    before: [u8; CONFIGURE],
    pub(crate) initial_pool_size: u32,
    pub(crate) max_pool_size: u32,
    /// which settings it has: a pool counts them
    pub(crate) version: i32,
}

/// Offset of `configure` in libmemcached 1.1.4's structure (`tests/abi.c` compares).
const CONFIGURE: usize = 664;
const _: () = assert!(std::mem::offset_of!(ClientHandle, version) == CONFIGURE + 8);

/// `memcached_return_t`, as far as it is needed here.
pub(crate) mod rc {
    pub(crate) const SUCCESS: i32 = 0;
    pub(crate) const NOTFOUND: i32 = 16;
    pub(crate) const MEMORY_ALLOCATION_FAILURE: i32 = 17;
    pub(crate) const SOME_ERRORS: i32 = 19;
    pub(crate) const TIMEOUT: i32 = 31;
    pub(crate) const UNKNOWN_STAT_KEY: i32 = 36;
    pub(crate) const INVALID_ARGUMENTS: i32 = 38;
    pub(crate) const IN_PROGRESS: i32 = 46;

    /// `memcached_success()`
    pub(crate) fn succeeded(code: i32) -> bool {
        matches!(code, 0 | 15 | 21 | 22 | 23 | 24 | 25 | 32)
    }
}

/// Runs a call; a panic, which would be a bug, becomes `instead`.
pub(crate) fn guard<R>(instead: R, work: impl FnOnce() -> R) -> R {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or(instead)
}

/// # Safety
///
/// The place is NULL, or a `T` can be written to it.
pub(crate) unsafe fn put<T>(place: *mut T, value: T) {
    if !place.is_null() {
        // SAFETY: the caller's word.
        unsafe { place.write(value) };
    }
}
