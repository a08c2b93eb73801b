//! The gate: where the processor has protection keys, a region's mapping is accessible to a thread only during a call.
//!
//! One key of the process (pkeys(7)) is on every mapping of a region. Each thread's PKRU register says whether the thread may use
//! the key. A new thread may not, and neither may a signal handler (the kernel starts it with the initial register). A call
//! opens the gate for its own thread and closes it at its end: two writes of the register, no system call.
//!
//! Inside the gate only the region's code runs, and the kernel's that reads a clock; callbacks run when the gate has closed, and code
//! that needs the allocator or the kernel closes the gate during that time ([`aside`]). A key is copied before the gate opens. Values are
//! read and written in their places in the caller's memory, except a place near a mapping with the protection key: that is read once before
//! the gate opens, page by page ([`Latch::begin_verb`]). If it is in the mapping, the processor ends the program there, as it ends any stray access.
//!
//! The gate stops stray pointers, not hostile code: code that executes WRPKRU can open it (`docs/security.md`).
//!
//! # Safety
//!
//! The `unsafe` here asks the kernel for a key, sets it on mappings of this crate, and reads and writes the PKRU register: only
//! this key's two bits, so the access to other memory does not change. It accesses no memory except two words of a stack frame, and
//! places that the caller says are readable.
#![allow(unsafe_code, reason = "the room of PKRU; contract above")]

use crate::process::cancel::Uncancelled;
use crate::process::storage;
use keyway_region::heap as region_heap;
use nix::errno::Errno;
use std::convert::identity;
use std::hint::cold_path;
use std::mem::MaybeUninit;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicUsize};

/// Whether to make a region's mapping inaccessible outside calls.
///
/// The environment variable `KEYWAY_GATE` overrides the program: `off` and `on` (where possible).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Gate {
    /// on, if processor and kernel have protection keys and one is free; otherwise off
    #[default]
    WherePossible,
    /// off
    Off,
    /// For tests: the mapping stays accessible, and only a note is kept of which thread is inside ([`is_open`]).
    #[doc(hidden)]
    Rehearsed,
}

/// Whether the gate is on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum GateState {
    /// the mapping is inaccessible outside calls
    On,
    /// it was switched off
    #[default]
    Off,
    /// there are no protection keys; the reason
    Unavailable(String),
}

impl std::fmt::Display for GateState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::On => f.write_str("on"),
            Self::Off => f.write_str("off"),
            Self::Unavailable(why) => write!(f, "none: {why}"),
        }
    }
}

/// The two bits of PKRU that a call clears; zero: there is no gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Latch(u32);

/// A latch that only keeps that note. No key has these bits: key 0's are among them.
const REHEARSED: u32 = u32::MAX;

/// The bits of PKRU that belong to this process's key; zero before there is one. Written once. PAIRS: nothing; it is a
/// number.
static BITS: AtomicU32 = AtomicU32::new(0);
/// Nonzero if a latch of this process only keeps a note of which thread is inside.
static REHEARSAL: AtomicU32 = AtomicU32::new(0);
/// The process's key, the kernel's error (negative), or 0: it has not asked yet. A forked child has its parent's. PAIRS: nothing; it
/// is a number.
static KEY: AtomicI32 = AtomicI32::new(0);
/// All mappings with the key are between these addresses. They only move apart. PAIRS: nothing; who has a pointer into a mapping has
/// synchronised with the thread that made it.
static FROM: AtomicUsize = AtomicUsize::new(usize::MAX);
static TO: AtomicUsize = AtomicUsize::new(0);
/// No page is smaller.
const PAGE: usize = 4096;

impl Latch {
    pub(crate) const NONE: Self = Self(0);

    /// The requested latch, if it is possible.
    pub(crate) fn of(asked: Gate) -> (Self, GateState) {
        let asked = match std::env::var("KEYWAY_GATE").as_deref() {
            Ok("off") => Gate::Off,
            Ok("on") => Gate::WherePossible,
            _ => asked,
        };
        match asked {
            Gate::Off => (Self::NONE, GateState::Off),
            Gate::Rehearsed => {
                REHEARSAL.store(1, Relaxed);
                region_heap::set(aside_erased);
                (Self(REHEARSED), GateState::On)
            }
            Gate::WherePossible => match take_key() {
                Ok(bits) => (Self(bits), GateState::On),
                Err(why) => (Self::NONE, GateState::Unavailable(why)),
            },
        }
    }

    #[inline(always)]
    pub(crate) fn is_on(self) -> bool {
        self.0 != 0
    }

    /// Puts the key on a mapping. From now on the mapping is accessible only inside.
    pub(crate) fn protect(self, base: std::ptr::NonNull<u8>, len: usize) -> std::io::Result<()> {
        match key() {
            Some(key) if self.is_on() && self.0 != REHEARSED => {
                FROM.fetch_min(base.addr().get(), Relaxed);
                TO.fetch_max(base.addr().get() + len, Relaxed);
                machine::lay(key, base, len)
            }
            _ => Ok(()),
        }
    }

    /// Opens the gate for this thread, until the returned value is dropped. Inside an open gate it does nothing.
    #[inline(always)]
    pub(crate) fn open(self) -> Inside {
        if self.is_on() { self.enter() } else { Inside(Self::NONE) }
    }

    /// Opens the gate at the beginning of a verb: the thread is not inside, unless a panic has left it there. The verb uses these places of
    /// the caller; those that are near a mapping are read first.
    ///
    /// Compiled into the verb, and without calls: a call would take registers from verbs without a gate.
    #[inline(always)]
    pub(crate) fn begin_verb(&self, places: [Bytes<'_>; 2]) -> Verb<'_> {
        if self.is_on() {
            cold_path();
            for place in places {
                if touches(place, FROM.load(Relaxed), TO.load(Relaxed)) {
                    cold_path();
                    for byte in one_a_page(place) {
                        // SAFETY: a place that can be read.
                        let _ = unsafe { std::ptr::from_ref(byte).read_volatile() };
                    }
                }
            }
            self.open_register();
        }
        Verb(self)
    }

    /// Begins a verb in a process that is known to have no gate.
    #[inline(always)]
    pub(crate) fn no_gate(&self) -> Verb<'_> {
        debug_assert!(!self.is_on());
        Verb(self)
    }

    #[inline(always)]
    fn open_register(self) {
        if self.0 == REHEARSED {
            storage::set_rehearsed(1);
        } else {
            machine::open(self.0);
        }
    }

    #[inline(always)]
    fn close_register(self) {
        if self.0 == REHEARSED {
            storage::set_rehearsed(0);
        } else {
            machine::close(self.0);
        }
    }

    /// Marked cold, so that calls without a gate are compiled as if there were none.
    #[cold]
    #[inline(never)]
    fn enter(self) -> Inside {
        if is_open_for(self.0) {
            return Inside(Self::NONE);
        }
        self.open_register();
        Inside(self)
    }

    #[cold]
    #[inline(never)]
    fn leave(self) {
        self.close_register();
    }
}

/// As long as it lives, its thread is inside.
#[must_use]
pub(crate) struct Inside(Latch);

impl Drop for Inside {
    #[inline(always)]
    fn drop(&mut self) {
        if self.0.is_on() {
            self.0.leave();
        }
    }
}

/// A verb that is under way: its thread is inside, if there is a gate. By reference, so that it takes no register meanwhile. It does not end
/// by itself, because what a panic has to clean up costs a verb without a gate 30 instructions ([`close_after_panic`]).
#[must_use]
pub(crate) struct Verb<'l>(&'l Latch);

impl Verb<'_> {
    /// The gate closes.
    #[inline(always)]
    pub(crate) fn end(&self) {
        if self.0.is_on() {
            cold_path();
            self.0.close_register();
        }
    }
}

/// Memory of the caller.
pub(crate) type Bytes<'p> = &'p [MaybeUninit<u8>];

/// Bytes of the caller as a place.
#[inline(always)]
pub(crate) fn callers(bytes: &[u8]) -> Bytes<'_> {
    // SAFETY: the same bytes; each of them is initialised.
    unsafe { &*(std::ptr::from_ref(bytes) as *const [MaybeUninit<u8>]) }
}

/// Whether any byte of a place is between two addresses, the second one excluded.
#[inline(always)]
fn touches(place: Bytes<'_>, from: usize, to: usize) -> bool {
    let begin = place.as_ptr().addr();
    begin < to && begin + place.len() > from
}

/// A byte of each page of a place.
#[inline(always)]
fn one_a_page(place: Bytes<'_>) -> impl Iterator<Item = &MaybeUninit<u8>> {
    place.iter().step_by(PAGE).chain(place.last())
}

/// Works with the gate closed, whether or not the calling thread is inside. The work may make system calls that are cancellation points:
/// the thread is not cancelled there, in the middle of a verb.
pub(crate) fn aside<R>(work: impl FnOnce() -> R) -> R {
    let _again = Again::close();
    let _uncancelled = Uncancelled::new();
    work()
}

fn aside_erased(work: &mut dyn FnMut()) {
    aside(work);
}

/// The thread was inside, and will be inside again.
struct Again(Latch);

impl Again {
    fn close() -> Self {
        let bits = BITS.load(Relaxed);
        let latch = match () {
            () if bits != 0 && is_open_for(bits) => Latch(bits),
            () if REHEARSAL.load(Relaxed) != 0 && storage::rehearsed() != 0 => Latch(REHEARSED),
            () => Latch::NONE,
        };
        if latch.is_on() {
            latch.leave();
        }
        Self(latch)
    }
}

impl Drop for Again {
    fn drop(&mut self) {
        if self.0.is_on() {
            // The gate that is opened here is closed by the caller that opened it before.
            std::mem::forget(self.0.enter());
        }
    }
}

fn is_open_for(bits: u32) -> bool {
    if bits == REHEARSED {
        storage::rehearsed() != 0
    } else {
        machine::is_open(bits)
    }
}

/// Closes the gate for the calling thread, if a panic, which would be a bug, has left it open: a verb does not close it then.
pub fn close_after_panic() {
    std::mem::forget(Again::close());
}

/// Whether the calling thread is inside. For tests, in which an allocator may ask.
pub fn is_open() -> bool {
    let bits = BITS.load(Relaxed);
    (bits != 0 && machine::is_open(bits)) || storage::rehearsed() != 0
}

/// Writes to the detailed log, once in a process, why there is no gate. This is not an error.
pub(crate) fn say_once(why: &str) {
    /// PAIRS: nothing.
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Relaxed) {
        log::debug!("the region's mapping is accessible outside calls too: {why}");
    }
}

/// The key on the mappings of regions, if there is one.
pub fn key() -> Option<i32> {
    Some(KEY.load(Relaxed)).filter(|key| *key > 0)
}

/// The bits of the process's key, which is asked of the kernel the first time, with no rights for the calling thread. Other threads
/// have no rights anyway.
fn take_key() -> Result<u32, String> {
    let known = match KEY.load(Relaxed) {
        0 => {
            let asked = machine::take_key().map_or_else(|errno| -(errno as i32), identity);
            match KEY.compare_exchange(0, asked, Relaxed, Relaxed) {
                Ok(_) => asked,
                Err(first) => {
                    machine::give_key_back(asked);
                    first
                }
            }
        }
        known => known,
    };
    if known < 0 {
        return Err(match Errno::from_raw(-known) {
            Errno::ENOSPC => {
                "this processor or kernel has no protection keys, or all 15 are taken (pkey_alloc: ENOSPC)".to_owned()
            }
            Errno::EINVAL | Errno::ENOSYS => "this processor or kernel has no protection keys".to_owned(),
            errno => format!(
                "the kernel gives no protection key (pkey_alloc: {})",
                std::io::Error::from(errno)
            ),
        });
    }
    let bits = 0b11u32 << (2 * known);
    BITS.store(bits, Relaxed);
    region_heap::set(aside_erased);
    Ok(bits)
}

#[cfg(target_arch = "x86_64")]
mod machine {
    //! PKRU, two bits a key: access disabled, write disabled (Intel SDM, volume 3, 4.6.2).

    use super::BITS;
    use nix::errno::Errno;
    use nix::libc;
    use std::arch::asm;

    /// pkeys(7), PKEY_DISABLE_ACCESS.
    const DISABLE_ACCESS: libc::c_ulong = 1;

    pub(super) fn take_key() -> Result<i32, Errno> {
        // SAFETY: pkey_alloc(2) takes two numbers.
        let key = unsafe { libc::syscall(libc::SYS_pkey_alloc, 0 as libc::c_ulong, DISABLE_ACCESS) };
        if key < 0 {
            return Err(Errno::last());
        }
        i32::try_from(key)
            .ok()
            .filter(|key| (1..=15).contains(key))
            .ok_or(Errno::ENOSPC)
    }

    /// Gives back a key that is on no mapping.
    pub(super) fn give_key_back(key: i32) {
        if key > 0 {
            // SAFETY: pkey_free(2) takes a number.
            unsafe { libc::syscall(libc::SYS_pkey_free, key) };
        }
    }

    pub(super) fn lay(key: i32, base: std::ptr::NonNull<u8>, len: usize) -> std::io::Result<()> {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: pkey_mprotect(2) on a mapping of this crate, which keeps its other rights.
        let done = unsafe { libc::syscall(libc::SYS_pkey_mprotect, base.as_ptr(), len, prot, key) };
        if done == 0 {
            Ok(())
        } else {
            Err(std::io::Error::last_os_error())
        }
    }

    pub(super) fn is_open(bits: u32) -> bool {
        let pkru: u32;
        // SAFETY: reads a register; there is a key, so the kernel has enabled the instruction.
        unsafe { asm!("rdpkru", in("ecx") 0, out("eax") pkru, out("edx") _, options(nomem, nostack, preserves_flags)) };
        pkru & bits == 0
    }

    /// Clears the key's bits. After WRPKRU the code relies on no register. A thread that jumped there has not executed
    /// the start of this function, which puts the frame's address and the value to be written into the frame. Such a
    /// thread ends with everything closed (SIGILL).
    #[inline(always)]
    pub(super) fn open(bits: u32) {
        let mut frame = [0u64; 2];
        // SAFETY: clears two bits of a register that belong to this key; the words written are in this frame.
        unsafe {
            asm!(
                "mov [{frame}], {frame}",
                "xor ecx, ecx",
                "rdpkru",
                "and eax, {others:e}",
                "mov [{frame} + 8], rax",
                "wrpkru",
                "cmp [{frame}], {frame}",
                "jne 2f",
                "xor ecx, ecx",
                "rdpkru",
                "cmp [{frame} + 8], rax",
                "jne 2f",
                "mov qword ptr [{frame}], 0",
                "jmp 3f",
                "2:",
                "xor ecx, ecx",
                "xor edx, edx",
                "mov eax, -4",
                "wrpkru",
                "ud2",
                "3:",
                frame = in(reg) frame.as_mut_ptr(),
                others = in(reg) !bits,
                out("eax") _, out("ecx") _, out("edx") _,
                options(nostack)
            );
        }
    }

    /// Sets the key's bits. The value that was written is compared with what memory says, not with what was in a register
    /// before. A thread that jumps to the WRPKRU with a value that leaves the gate open is ended.
    #[inline(always)]
    pub(super) fn close(bits: u32) {
        // SAFETY: sets two bits of a register that belong to this key.
        unsafe {
            asm!(
                "xor ecx, ecx",
                "rdpkru",
                "or eax, {bits:e}",
                "wrpkru",
                "mov ecx, dword ptr [rip + {all}]",
                "and eax, ecx",
                "cmp eax, ecx",
                "je 3f",
                "xor ecx, ecx",
                "xor edx, edx",
                "mov eax, -4",
                "wrpkru",
                "ud2",
                "3:",
                bits = in(reg) bits,
                all = sym BITS,
                out("eax") _, out("ecx") _, out("edx") _,
                options(nostack)
            );
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod machine {
    //! Here no protection keys are used.

    use nix::errno::Errno;

    pub(super) fn take_key() -> Result<i32, Errno> {
        Err(Errno::ENOSYS)
    }

    pub(super) fn give_key_back(_: i32) {}

    pub(super) fn lay(_: i32, _: std::ptr::NonNull<u8>, _: usize) -> std::io::Result<()> {
        Ok(())
    }

    pub(super) fn is_open(_: u32) -> bool {
        false
    }

    pub(super) fn open(_: u32) {}

    pub(super) fn close(_: u32) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_near_a_mapping_if_any_of_its_bytes_is_between_the_addresses() {
        let bytes = [0; 8];
        let begin = bytes.as_ptr().addr();
        for (from, to, is_near) in [(8, 9, false), (7, 9, true), (0, 1, true), (0, 0, false), (3, 4, true)] {
            assert_eq!(touches(callers(&bytes), begin + from, begin + to), is_near, "{from} to {to}");
        }
        assert!(!touches(callers(&bytes), begin - 1, begin));
        assert!(!touches(callers(&bytes), usize::MAX, 0), "there is no mapping");
    }

    #[test]
    fn a_thread_is_not_cancelled_by_what_a_verb_asks_of_the_kernel() {
        use nix::libc;
        let done = std::thread::spawn(|| {
            // SAFETY: the calling thread, which exists. It is to end at its next cancellation point.
            assert_eq!(unsafe { libc::pthread_cancel(libc::pthread_self()) }, 0);
            // SAFETY: no such descriptor; close(2) is a cancellation point.
            let closed = aside(|| unsafe { libc::close(-1) });
            // The test's own way out has some.
            std::mem::forget(Uncancelled::new());
            closed
        });
        assert_eq!(done.join().unwrap(), -1);
    }

    #[test]
    fn every_page_of_a_place_is_read() {
        let bytes = vec![0; 4 * PAGE];
        for (begin, len) in [(0, 0), (0, 1), (1, PAGE), (PAGE - 1, 2), (7, 2 * PAGE), (5, 3 * PAGE + 1)] {
            let place = callers(&bytes[begin..begin + len]);
            let page_of = |byte: &MaybeUninit<u8>| std::ptr::from_ref(byte).addr() / PAGE;
            let mut expected: Vec<_> = place.iter().map(page_of).collect();
            let mut read: Vec<_> = one_a_page(place).map(page_of).collect();
            expected.dedup();
            read.dedup();
            assert_eq!(read, expected, "{len} bytes from {begin}");
        }
    }
}
