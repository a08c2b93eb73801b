//! What this crate keeps in a thread's storage where every call needs it: the thread's number, the session that it used
//! last (`cache/local.rs`), and a note for rehearsals of the gate.
//!
//! A shared library normally finds a thread's storage by a call of the loader (`__tls_get_addr`), once for each variable.
//! With glibc on x86-64 these 24 bytes are at an offset from the thread's pointer that the loader settles when it loads the
//! library (ELF's *initial-exec* model): one instruction gets the offset, and one gets a word. Rust has no way to choose that model, so
//! they are written here. Other platforms have an ordinary `thread_local!`.
//!
//! A shared library with such an access has all its thread-local storage in the program's static block. If it is loaded
//! while the program runs (dlopen), it takes that from a reserve of glibc; docs/library.md says how much. glibc also clears
//! it in every thread that already runs.
//!
//! # Safety
//!
//! The only `unsafe` here reads and writes those 24 bytes, in whole words. They belong to the calling thread, are zero when it starts, and
//! last until it has ended. No reference to them is made.
#![allow(unsafe_code, reason = "the address of a thread's storage; contract above")]

/// The calling thread's number, 0 if it has none yet.
#[inline(always)]
pub(crate) fn number() -> u64 {
    machine::load::<0>() as u64
}

/// Gives the calling thread its number.
pub(crate) fn set_number(number: u64) {
    // There are fewer threads than addresses.
    machine::store::<0>(usize::try_from(number).unwrap_or(usize::MAX));
}

/// The word for the calling thread's session, as [`set_session`] left it; NULL at first.
#[inline(always)]
pub(crate) fn session_word<T>() -> *mut T {
    std::ptr::with_exposed_provenance_mut(machine::load::<8>())
}

/// See [`session_word`].
#[inline(always)]
pub(crate) fn set_session<T>(session: *mut T) {
    machine::store::<8>(session.expose_provenance());
}

/// Whether the calling thread is inside, in the rehearsal of a gate ([`crate::gate`]): 0 is no.
#[inline(always)]
pub(crate) fn rehearsed() -> usize {
    machine::load::<16>()
}

/// See [`rehearsed`].
#[inline(always)]
pub(crate) fn set_rehearsed(inside: usize) {
    machine::store::<16>(inside);
}

#[cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu", not(miri)))]
mod machine {
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

    global_asm!(
        ".pushsection .tbss.keyway_cache_here,\"awT\",@nobits",
        concat!(".globl ", name!()),
        concat!(".hidden ", name!()),
        concat!(".type ", name!(), ",@object"),
        ".balign 8",
        concat!(name!(), ":"),
        ".zero 24",
        concat!(".size ", name!(), ", 24"),
        ".popsection",
    );

    /// Where the bytes are, from the thread's pointer.
    #[inline(always)]
    fn offset() -> usize {
        let offset;
        // SAFETY: reads a constant of the loader, which never changes.
        unsafe {
            asm!(
                concat!("mov {offset}, qword ptr [rip + ", name!(), "@gottpoff]"),
                offset = out(reg) offset,
                options(pure, nomem, nostack, preserves_flags)
            );
        }
        offset
    }

    /// The word this far from the beginning of the bytes.
    #[inline(always)]
    pub(super) fn load<const AT: usize>() -> usize {
        const { assert!(AT.is_multiple_of(8) && AT < 24) };
        let word;
        // SAFETY: one of the calling thread's three words.
        unsafe {
            asm!(
                "mov {word}, qword ptr fs:[{offset} + {at}]",
                word = lateout(reg) word, offset = in(reg) offset(), at = const AT,
                options(readonly, nostack, preserves_flags)
            );
        }
        word
    }

    #[inline(always)]
    pub(super) fn store<const AT: usize>(word: usize) {
        const { assert!(AT.is_multiple_of(8) && AT < 24) };
        // SAFETY: as above.
        unsafe {
            asm!(
                "mov qword ptr fs:[{offset} + {at}], {word}",
                word = in(reg) word, offset = in(reg) offset(), at = const AT,
                options(nostack, preserves_flags)
            );
        }
    }
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu", not(miri))))]
mod machine {
    use std::cell::Cell;

    thread_local! {
        static HERE: [Cell<usize>; 3] = const { [const { Cell::new(0) }; 3] };
    }

    #[inline(always)]
    pub(super) fn load<const AT: usize>() -> usize {
        HERE.with(|words| words[AT / 8].get())
    }

    #[inline(always)]
    pub(super) fn store<const AT: usize>(word: usize) {
        HERE.with(|words| words[AT / 8].set(word));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_has_words_of_its_own_that_begin_as_zero() {
        let barrier = &std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            for own in [16, 32] {
                scope.spawn(move || {
                    assert_eq!((number(), super::session_word::<u8>().addr()), (0, 0));
                    set_number(own as u64 + 10);
                    set_session::<u8>(std::ptr::without_provenance_mut(own));
                    barrier.wait();
                    assert_eq!((number(), super::session_word::<u8>().addr()), (own as u64 + 10, own));
                    set_session::<u8>(std::ptr::null_mut());
                    assert_eq!((number(), super::session_word::<u8>().addr()), (own as u64 + 10, 0));
                });
            }
        });
    }
}
