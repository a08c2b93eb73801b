//! How a function is exported: no panic crosses the boundary, and a handle that is not the region's goes to the real library.
//!
//! # Safety
//!
//! Every exported function takes its caller's word, as libmemcached's headers give it: pointers are NULL where that is allowed, or
//! lead to what they say; a handle is used by one thread at a time; lengths are those of what they belong to.
#![allow(unsafe_code, reason = "the C ABI; contract above")]

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs a call; a panic, which would be a bug, becomes `instead`.
#[inline]
pub(crate) fn guard<R>(work: impl FnOnce() -> R, instead: impl FnOnce() -> R) -> R {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| instead())
}

/// Functions of a handle. The body gives `Some` of what is returned, or `None`: the handle is the real library's (by now), which
/// is called with the same arguments. What stands behind `=` is returned where there is neither: the handle is NULL, or somebody's
/// whom nobody here knows.
macro_rules! handle_functions {
    ($($(#[$meta:meta])* fn $name:ident($ptr:ident: $ty:ty $(, $arg:ident: $t:ty)* $(,)?) -> $ret:ty = $absent:expr; $body:expr)*) => {$(
        $(#[$meta])*
        #[unsafe(no_mangle)]
        #[allow(unused_unsafe, reason = "some answers are only numbers")]
        pub unsafe extern "C" fn $name($ptr: $ty $(, $arg: $t)*) -> $ret {
            static REAL: $crate::real::Symbol = $crate::real::Symbol::new(concat!(stringify!($name), "\0"));
            // SAFETY: the caller's word (module `export`); the real library's function has the type of its header.
            $crate::export::guard(|| unsafe {
                if $ptr.is_null() {
                    return $absent;
                }
                if $crate::handle::is_ours($ptr) {
                    if let Some(done) = $body {
                        return done;
                    }
                }
                match REAL.get() {
                    Some(real) => {
                        let real: unsafe extern "C" fn($ty $(, $t)*) -> $ret = std::mem::transmute(real);
                        real($ptr $(, $arg)*)
                    }
                    None => $absent,
                }
            // SAFETY: as above.
            }, || unsafe { $absent })
        }
    )*};
}

/// Functions that need no handle, or judge for themselves.
macro_rules! plain_functions {
    ($($(#[$meta:meta])* fn $name:ident($($arg:ident: $t:ty),* $(,)?) -> $ret:ty = $absent:expr; $body:expr)*) => {$(
        $(#[$meta])*
        #[unsafe(no_mangle)]
        #[allow(unused_unsafe, reason = "some answers are only numbers")]
        pub unsafe extern "C" fn $name($($arg: $t),*) -> $ret {
            $crate::export::guard(
                // SAFETY: the caller's word (module `export`).
                || unsafe { $body },
                // SAFETY: as above.
                || unsafe { $absent },
            )
        }
    )*};
}

pub(crate) use {handle_functions, plain_functions};
