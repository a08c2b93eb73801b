//! What a region needs from the code that maps it.
//!
//! Never: implements it; the crate knows no system call.

use crate::layout::session::Tenant;

/// What is known of the life of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// it exists, or its state cannot be determined
    Alive,
    /// it seems to be gone, but that is not certain
    Suspect,
    /// it is gone: it makes no later store
    Dead,
}

/// What a region needs from the code that maps it. It is dropped with the region, and not before.
pub trait Host: Send + Sync {
    /// The state of a process that took a process slot. [`Life::Dead`] is certain: the process makes no later store.
    fn life(&self, tenant: &Tenant) -> Life;
    /// Asks for huge pages, or for every page now.
    fn prepare(&self, ranges: &[core::ops::Range<usize>], huge_pages: bool, prefault: bool);
    /// Whether the region is on persistent memory, mapped so that the processor's write-backs reach it (`mmap(2)`, MAP_SYNC). A
    /// region created on such memory is in durable mode, and can be opened on such memory only.
    fn is_persistent(&self) -> bool {
        false
    }
    /// Makes every thread of every process that may use the region pass a full fence between its accesses before this call and
    /// those after it (membarrier(2)). `false`: this system cannot do that.
    fn fence_everywhere(&self) -> bool {
        false
    }
    /// Whether the region is mapped for reading only: a store to it ends the process.
    fn is_read_only(&self) -> bool {
        false
    }
    /// Waits until the 32-bit word at this offset is woken, or this time is over; not at all if the word has another value
    /// (futex(2), FUTEX_WAIT). It may end for no reason.
    fn wait(&self, _at: usize, _value: u32, timeout: core::time::Duration) {
        std::thread::sleep(timeout.min(core::time::Duration::from_millis(1)));
    }
    /// Wakes at most so many of those who wait for the word at this offset, in every process (futex(2), FUTEX_WAKE).
    fn wake(&self, _at: usize, _at_most: u32) {}
    /// Writes these bytes back to the file. `false`: that failed.
    fn write_back(&self, range: core::ops::Range<usize>) -> bool;
    /// Bytes that the file has now: only these may be touched.
    fn file_len(&self) -> usize;
    /// Backs these bytes by memory, so that touching them can no longer fail. The file becomes as long as necessary.
    ///
    /// # Errors
    ///
    /// There is no space for them.
    fn back(&self, range: core::ops::Range<usize>) -> std::io::Result<()>;
    /// Gives the memory of these bytes, whole pages, back to the system, at once or when it needs memory: they are zeros from then on, or as
    /// they are. The file keeps its length.
    ///
    /// # Errors
    ///
    /// The system cannot do that: the memory stays, and so do the bytes.
    fn give_back(&self, _range: core::ops::Range<usize>) -> std::io::Result<()> {
        Err(std::io::ErrorKind::Unsupported.into())
    }
}
