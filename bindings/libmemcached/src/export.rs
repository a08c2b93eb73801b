//! How a function is exported: no panic crosses the boundary, and a call on a handle that does not use the region goes to
//! the real library.
//!
//! # Safety
//!
//! The caller of every exported function guarantees what libmemcached's headers require: pointers are NULL where that is
//! allowed, or refer to what they are declared as; a handle is used by one thread at a time; a length belongs to its
//! data.
#![allow(unsafe_code, reason = "the C ABI; contract above")]

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs a call; a panic, which would be a bug, becomes `instead`.
#[inline]
pub(crate) fn guard<R>(work: impl FnOnce() -> R, instead: impl FnOnce() -> R) -> R {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        keyway_cache::server::close_after_panic();
        instead()
    })
}

/// Functions of a handle. The body returns `Some` with the return value, or `None` if the handle is the real library's
/// (by now). That library is then called with the same arguments. The expression after `=` is returned if neither is
/// possible: the handle is NULL, or belongs to a library that is not installed here.
macro_rules! handle_functions {
    ($($(#[$meta:meta])* fn $name:ident($ptr:ident: $ty:ty $(, $arg:ident: $t:ty)* $(,)?) -> $ret:ty = $absent:expr; $body:expr)*) => {$(
        $(#[$meta])*
        #[unsafe(no_mangle)]
        #[allow(unused_unsafe, reason = "some answers are only numbers")]
        pub unsafe extern "C" fn $name($ptr: $ty $(, $arg: $t)*) -> $ret {
            static REAL: $crate::real::Symbol = $crate::real::Symbol::new(concat!(stringify!($name), "\0"));
            // SAFETY: guaranteed by the caller (module `export`); the real library's function has the type of its header.
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

/// Functions that need no handle, or check it themselves.
macro_rules! plain_functions {
    ($($(#[$meta:meta])* fn $name:ident($($arg:ident: $t:ty),* $(,)?) -> $ret:ty = $absent:expr; $body:expr)*) => {$(
        $(#[$meta])*
        #[unsafe(no_mangle)]
        #[allow(unused_unsafe, reason = "some answers are only numbers")]
        pub unsafe extern "C" fn $name($($arg: $t),*) -> $ret {
            $crate::export::guard(
                // SAFETY: guaranteed by the caller (module `export`).
                || unsafe { $body },
                // SAFETY: as above.
                || unsafe { $absent },
            )
        }
    )*};
}

pub(crate) use {handle_functions, plain_functions};
