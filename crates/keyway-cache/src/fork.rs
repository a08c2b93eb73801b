//! Telling a forked child from its parent. A child has a copy of the parent's memory, but neither its mapping of a region
//! nor its lock.
//!
//! The kernel wipes one page of the process in every child (madvise(2), `MADV_WIPEONFORK`), however the child was forked.
//! The word in it is the name of this process's life, a number. A child finds zero there, and takes the next name.
//!
//! # Safety
//!
//! The only `unsafe` here makes that page, which stays for ever.
#![allow(unsafe_code, reason = "a page that the kernel wipes; contract above")]

use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous};
use std::num::NonZeroUsize;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Every page is at least this large; the kernel takes all of it (mmap(2), madvise(2)).
const SIZE: NonZeroUsize = NonZeroUsize::new(4096).unwrap();

static WORD: OnceLock<&AtomicU64> = OnceLock::new();
/// The last name that this process took, or one of those that it was forked from. PAIRS: nothing; a fork copies it.
static NAMES: AtomicU64 = AtomicU64::new(0);

/// Makes the page, once. Before that, [`life`] is 0.
pub(crate) fn watch() -> std::io::Result<()> {
    if WORD.get().is_none() {
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let page = unsafe { mmap_anonymous(None, SIZE, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, flags) }?;
        // SAFETY: the page that was just made.
        unsafe { madvise(page, SIZE.get(), MmapAdvise::MADV_WIPEONFORK) }?;
        // SAFETY: zeros, aligned, never unmapped, and only used as an atomic.
        let _ = WORD.set(unsafe { page.cast().as_ref() });
    }
    Ok(())
}

/// The name of this process's life. Every forked child has another name.
#[inline]
pub(crate) fn life() -> u64 {
    match WORD.get().map(|word| word.load(Relaxed)) {
        Some(0) => renew(),
        Some(name) => name,
        None => 0,
    }
}

/// The process in which a value was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Home {
    word: &'static AtomicU64,
    name: u64,
}

impl Home {
    /// The calling process. Call it after [`watch`].
    pub(crate) fn new() -> Self {
        // In a process that does not watch, every child is taken for its parent.
        static UNWATCHED: AtomicU64 = AtomicU64::new(0);
        Self {
            word: WORD.get().copied().unwrap_or(&UNWATCHED),
            name: life(),
        }
    }

    /// Whether the calling process is that process.
    #[inline]
    pub(crate) fn is_here(self) -> bool {
        self.word.load(Relaxed) == self.name
    }
}

/// The first call in a new process.
#[cold]
fn renew() -> u64 {
    let name = NAMES.fetch_add(1, Relaxed) + 1;
    let Some(word) = WORD.get() else { return 0 };
    // PAIRS: nothing; two threads agree on the name that was stored first.
    match word.compare_exchange(0, name, Relaxed, Relaxed) {
        Ok(_) => name,
        Err(first) => first,
    }
}
