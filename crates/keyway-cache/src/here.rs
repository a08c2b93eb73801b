//! What this crate keeps in a thread's storage where every call needs it: the thread's number, and the seat that it used
//! last ([`crate::local`]).
//!
//! A shared library normally finds a thread's storage by a call of the loader (`__tls_get_addr`), once for each variable.
//! With glibc on x86-64 these 16 bytes are at an offset from the thread's pointer that the loader settles when it loads the
//! library (ELF's *initial-exec* model): two instructions. Rust has no way to choose that model, so the two instructions
//! are written here. Other platforms have an ordinary `thread_local!`.
//!
//! A shared library with such an access has all its thread-local storage in the program's static block. If it is loaded
//! while the program runs (dlopen), it takes that from a reserve of glibc; docs/library.md says how much. glibc also clears
//! it in every thread that already runs.
//!
//! # Safety
//!
//! The only `unsafe` here finds those 16 bytes. They belong to the calling thread, are zero when it starts, and last until
//! it has ended. References to them are not given out: only the calling thread reads and writes them, in whole words.
#![allow(unsafe_code, reason = "the address of a thread's storage; contract above")]

use crate::local::Seat;
use std::cell::Cell;

/// See the top of the file. All zero at first.
#[repr(C)]
struct Here {
    number: Cell<u64>,
    seat: Cell<*mut Seat>,
}

/// The calling thread's number, 0 if it has none yet.
#[inline(always)]
pub(crate) fn number() -> u64 {
    machine::here(|here| here.number.get())
}

/// Gives the calling thread its number.
pub(crate) fn set_number(number: u64) {
    machine::here(|here| here.number.set(number));
}

/// The word for the calling thread's seat, as [`set_seat`] left it; NULL at first.
#[inline(always)]
pub(crate) fn seat() -> *mut Seat {
    machine::here(|here| here.seat.get())
}

/// See [`seat`].
#[inline(always)]
pub(crate) fn set_seat(seat: *mut Seat) {
    machine::here(|here| here.seat.set(seat));
}

#[cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu", not(miri)))]
mod machine {
    use super::Here;
    use std::arch::{asm, global_asm};

    /// The name of the bytes. It has the version, so that two versions of this crate in one program have bytes each.
    macro_rules! name {
        () => {
            concat!(
                "keyway_cache_here_",
                env!("CARGO_PKG_VERSION_MAJOR"),
                "_",
                env!("CARGO_PKG_VERSION_MINOR"),
                "_",
                env!("CARGO_PKG_VERSION_PATCH")
            )
        };
    }

    const _: () = assert!(size_of::<Here>() == 16 && align_of::<Here>() == 8);

    global_asm!(
        ".pushsection .tbss.keyway_cache_here,\"awT\",@nobits",
        concat!(".globl ", name!()),
        concat!(".hidden ", name!()),
        concat!(".type ", name!(), ",@object"),
        ".balign 8",
        concat!(name!(), ":"),
        ".zero 16",
        concat!(".size ", name!(), ", 16"),
        ".popsection",
    );

    #[inline(always)]
    pub(super) fn here<R>(work: impl FnOnce(&Here) -> R) -> R {
        let at: *const Here;
        // SAFETY: reads a constant of the loader and the thread's pointer to itself (both never change for a thread), and
        // adds them.
        unsafe {
            asm!(
                concat!("mov {at}, qword ptr [rip + ", name!(), "@gottpoff]"),
                "add {at}, qword ptr fs:[0]",
                at = out(reg) at,
                options(pure, nomem, nostack)
            );
        }
        // SAFETY: these are the calling thread's 16 bytes, aligned, zero or as this module wrote them; see the contract.
        work(unsafe { &*at })
    }
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu", not(miri))))]
mod machine {
    use super::Here;
    use std::cell::Cell;

    thread_local! {
        static HERE: Here = const {
            Here {
                number: Cell::new(0),
                seat: Cell::new(std::ptr::null_mut()),
            }
        };
    }

    #[inline(always)]
    pub(super) fn here<R>(work: impl FnOnce(&Here) -> R) -> R {
        // Nothing has to be dropped, so it is there until the thread has ended.
        HERE.with(work)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_has_words_of_its_own_that_begin_as_zero() {
        let barrier = &std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            for seat in [16, 32] {
                scope.spawn(move || {
                    assert_eq!((number(), super::seat().addr()), (0, 0));
                    set_number(seat as u64 + 10);
                    set_seat(std::ptr::without_provenance_mut(seat));
                    barrier.wait();
                    assert_eq!((number(), super::seat().addr()), (seat as u64 + 10, seat));
                    set_seat(std::ptr::null_mut());
                    assert_eq!((number(), super::seat().addr()), (seat as u64 + 10, 0));
                });
            }
        });
    }
}
