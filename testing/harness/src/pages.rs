//! Words that processes of a test share.
//!
//! # Safety
//!
//! [`Pages`] is a shared mapping that is only ever accessed as atomic words, and stays mapped for the value's life.
#![allow(unsafe_code, reason = "the room of mmap; contract above")]

use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use std::fs::File;
use std::num::NonZeroUsize;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// A file's words, mapped shared.
#[derive(Debug)]
pub struct Pages {
    base: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: every access is atomic, and the mapping belongs to the whole process.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    /// Creates the file with this many words, all 0, or opens it if it is there.
    ///
    /// # Panics
    ///
    /// When the file cannot be made or mapped.
    pub fn open(path: &Path, words: usize) -> Self {
        let mut options = File::options();
        let file = options.read(true).write(true).create(true).truncate(false).open(path);
        let file = file.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let len = NonZeroUsize::new(words * 8).unwrap_or(NonZeroUsize::MIN);
        if file.metadata().is_ok_and(|m| m.len() != len.get() as u64) {
            file.set_len(len.get() as u64)
                .unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        }
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let base = unsafe { mmap(None, len, access, MapFlags::MAP_SHARED, &file, 0) };
        let base = base.unwrap_or_else(|e| panic!("mapping {}: {e}", path.display()));
        Self {
            base: base.cast(),
            words,
        }
    }

    /// A word.
    ///
    /// # Panics
    ///
    /// When there is none of this number.
    pub fn word(&self, i: usize) -> &AtomicU64 {
        assert!(i < self.words, "word {i} of {}", self.words);
        // SAFETY: in bounds, aligned (a mapping is page-aligned), valid for every bit pattern, mapped as long as `self`.
        unsafe { self.base.add(i).as_ref() }
    }

    /// Words there are.
    pub fn words(&self) -> usize {
        self.words
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped by `open`; no reference outlives `self`.
        let _ = unsafe { munmap(self.base.cast(), self.words * 8) };
    }
}
