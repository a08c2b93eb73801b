//! A BPF map's memory in this process.
//!
//! # Safety
//!
//! The map is an array created with `BPF_F_MMAPABLE`, and its pages stay as long as the mapping does, even if the map's
//! descriptor is closed (bpf(2), kernel/bpf/arraymap.c `array_map_mmap`). The mapping has at least the length of the slice that this
//! value gives out, and is aligned to a page. It is unmapped when this value is dropped, and no borrow of it lives longer. All
//! access is by atomics, because the program and other processes use the same memory.
#![allow(unsafe_code)]

use std::io;
use std::num::NonZeroUsize;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

/// A mapping.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<AtomicU64>,
    words: usize,
    len: NonZeroUsize,
}

// SAFETY: the memory is the same in every thread, and is accessed by atomics only.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `words` words of a map.
    pub(crate) fn new(map: BorrowedFd<'_>, words: usize) -> io::Result<Self> {
        let len = NonZeroUsize::new(words * 8).ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: a new mapping, at an address that the kernel chooses; no other memory of this process is affected.
        let start = unsafe {
            mmap(
                None,
                len,
                ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
                MapFlags::MAP_SHARED,
                map,
                0,
            )?
        };
        Ok(Self {
            start: start.cast(),
            words,
            len,
        })
    }

    pub(crate) fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping has this many words, aligned, for as long as `self` lives; other writers use atomics, or are the
        // program, whose stores are single words.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.words) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is the mapping that `new` made, and nothing borrows from it any more.
        let unmapped = unsafe { munmap(self.start.cast(), self.len.get()) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}
