//! A shared mapping of a file. The file is mapped as long as the value lives.
//!
//! # Safety
//!
//! The only `unsafe` here is mapping a shared file, advice to the kernel about that mapping, and making, filling and
//! unmapping mappings of this process's own. The region's [`Memory`] treats the mapping as bytes that change at any time. If another process
//! truncates a file while it is mapped, this process gets SIGBUS, as every program that maps files does;
//! `docs/operating.md` says so.
#![allow(unsafe_code, reason = "the room of mmap; contract above")]

use crate::error::OpenError;
use crate::error::io;
use crate::file::backing;
use crate::file::limits::{self, Limit};
use crate::file::pages::page_size;
use crate::gate::Latch;
use crate::options::Options;
use crate::process::fork::Home;
use keyway_region::memory::Memory;
use nix::sys::mman::{MapFlags, MmapAdvise, MsFlags, ProtFlags, madvise, mmap, mmap_anonymous, msync, munmap};
use std::fs::File;
use std::num::NonZeroUsize;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;

/// A huge page of x86-64, and of others with small pages of 4 KiB, bytes.
const HUGE_PAGE: usize = 2 << 20;

/// A mapping, unmapped when dropped.
pub(crate) struct Mapping {
    base: NonNull<nix::libc::c_void>,
    len: usize,
    /// the process that mapped it
    home: Home,
    pub(crate) is_persistent: bool,
    pub(crate) is_read_only: bool,
}

// SAFETY: an address range belongs to the whole process.
unsafe impl Send for Mapping {}

// SAFETY: as above; only `Memory` accesses anything through it.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// A mapping for a region in durable mode (`durable`), or for any other. In a rehearsal, a durable region is on
    /// ordinary memory, which is treated as persistent.
    pub(crate) fn of(file: &File, len: usize, durable: bool, options: &Options, path: &Path) -> Result<Self, OpenError> {
        if durable && options.durable_rehearsed {
            let mut mapping = Self::new(file, len).map_err(|e| refused(e, len, path))?;
            mapping.is_persistent = true;
            return Ok(mapping);
        }
        if !durable {
            return Self::new(file, len).map_err(|e| refused(e, len, path));
        }
        // `mmap(2)`: MAP_SYNC fails with EOPNOTSUPP if the processor's write-backs do not reach the medium.
        Self::with(file, len, MapFlags::MAP_SHARED_VALIDATE | MapFlags::MAP_SYNC).map_err(|source| OpenError::DurableImpossible {
            path: path.to_path_buf(),
            source,
        })
    }

    pub(crate) fn new(file: &File, len: usize) -> std::io::Result<Self> {
        Self::with(file, len, MapFlags::MAP_SHARED | MapFlags::MAP_NORESERVE)
    }

    /// For reading only, of a file that is open for reading: the kernel refuses to make such a mapping writable (`mprotect(2)`,
    /// EACCES).
    pub(crate) fn to_read(file: &File, len: usize) -> std::io::Result<Self> {
        Self::protected(
            file,
            len,
            MapFlags::MAP_SHARED | MapFlags::MAP_NORESERVE,
            ProtFlags::PROT_READ,
        )
    }

    /// A copy of the file's first bytes, with zeros if the file has fewer. Whatever happens to the file meanwhile, it
    /// cannot end this process.
    pub(crate) fn copied(file: &File, len: usize) -> std::io::Result<Self> {
        let mut bytes = vec![0; len];
        let mut at = 0;
        while let Some(rest) = bytes.get_mut(at..).filter(|rest| !rest.is_empty()) {
            match file.read_at(rest, at as u64) {
                Ok(0) => break,
                Ok(n) => at += n,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        let size = NonZeroUsize::new(len).ok_or(std::io::ErrorKind::InvalidInput)?;
        // SAFETY: as in `protected`.
        let base = unsafe {
            mmap_anonymous(
                None,
                size,
                ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
                MapFlags::MAP_PRIVATE,
            )
        }?;
        // SAFETY: the new mapping has `len` bytes, and no other code uses it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), base.cast().as_ptr(), len) };
        Ok(Self {
            base,
            len,
            home: Home::new(),
            is_persistent: false,
            is_read_only: false,
        })
    }

    fn with(file: &File, len: usize, flags: MapFlags) -> std::io::Result<Self> {
        Self::protected(file, len, flags, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE)
    }

    fn protected(file: &File, len: usize, flags: MapFlags, prot: ProtFlags) -> std::io::Result<Self> {
        // Only whole huge pages can be advised about and unmapped (madvise(2), munmap(2)).
        let len = len.next_multiple_of(backing::page_size(file));
        let size = NonZeroUsize::new(len).ok_or(std::io::ErrorKind::InvalidInput)?;
        // SAFETY: a new mapping overlaps nothing: without MAP_FIXED an address is a wish.
        let base = unsafe { mmap(place_for(len), size, prot, flags, file, 0) }?;
        let is_persistent = flags.contains(MapFlags::MAP_SYNC);
        let mapping = Self {
            base,
            len,
            home: Home::new(),
            is_persistent,
            is_read_only: !prot.contains(ProtFlags::PROT_WRITE),
        };
        // A forked child must neither hold the lock nor write as its parent does, so it gets no mapping at all.
        // SAFETY: advice about our own mapping.
        unsafe { madvise(base, len, MmapAdvise::MADV_DONTFORK) }?;
        // Otherwise a core dump of this process would contain all of the cache, if the file has no name (core(5)).
        // SAFETY: as above.
        unsafe { madvise(base, len, MmapAdvise::MADV_DONTDUMP) }?;
        Ok(mapping)
    }

    /// The mapped bytes; the caller keeps the mapping as long as it uses them.
    pub(crate) fn memory(&self) -> Memory {
        // SAFETY: mapped shared, readable, writable unless the region is opened for reading only, and page-aligned; kept by
        // the `Attachment` that the region owns.
        unsafe { Memory::new(self.base.cast(), self.len) }
    }

    /// Makes the mapping inaccessible outside calls.
    pub(crate) fn protect(&self, latch: Latch) -> std::io::Result<()> {
        latch.protect(self.base.cast(), self.len)
    }

    /// A word of 32 bits at this offset. `None`: none of that mapping is there.
    pub fn word(&self, at: usize) -> Option<&AtomicU32> {
        let fits = at.is_multiple_of(4) && at.checked_add(4).is_some_and(|end| end <= self.len);
        // SAFETY: within the mapping, which is as long as this value and begins at a page.
        fits.then(|| unsafe { self.base.byte_add(at).cast().as_ref() })
    }

    pub(crate) fn advise(&self, offset: usize, len: usize, advice: MmapAdvise) -> nix::Result<()> {
        // SAFETY: within the mapping; the advices that are used change no contents.
        unsafe { madvise(self.base.byte_add(offset), len, advice) }
    }

    /// Has the kernel put these bytes in huge pages now. It also does so where its settings give shared memory none that is only
    /// asked for (madvise(2), MADV_COLLAPSE, from Linux 6.1 on). `false`: some small pages stay.
    pub(crate) fn collapse(&self, range: &std::ops::Range<usize>) -> bool {
        const MADV_COLLAPSE: nix::libc::c_int = 25;
        // SAFETY: within the mapping; the contents stay.
        unsafe {
            let start = self.base.byte_add(range.start);
            nix::libc::madvise(start.as_ptr(), range.end - range.start, MADV_COLLAPSE) == 0
        }
    }

    /// How much of the mapping the file backs: the part that the kernel can fault in (madvise(2), MADV_POPULATE_READ).
    /// The kernel faults pages in with the calling thread's rights, so this is called inside the gate.
    pub(crate) fn backed_len(&self) -> usize {
        let page = page_size();
        let (mut backed, mut beyond) = (0, self.len / page);
        while backed < beyond {
            let middle = backed + (beyond - backed) / 2;
            if self.advise(middle * page, page, MmapAdvise::MADV_POPULATE_READ).is_ok() {
                backed = middle + 1;
            } else {
                beyond = middle;
            }
        }
        backed * page
    }

    pub(crate) fn sync(&self, offset: usize, len: usize) -> bool {
        // Only whole pages can be written back (msync(2)). The region may have been made on a system with smaller ones.
        let before = offset % page_size();
        // SAFETY: within the mapping.
        unsafe { msync(self.base.byte_add(offset - before), len + before, MsFlags::MS_SYNC) }.is_ok()
    }
}

/// Free addresses for a mapping of this length, which begin as a huge page does: only then can the kernel map huge pages there.
/// `None`: it is shorter than such a page, or so many addresses cannot be had.
fn place_for(len: usize) -> Option<NonZeroUsize> {
    if len < HUGE_PAGE {
        return None;
    }
    let more = NonZeroUsize::new(len.checked_add(HUGE_PAGE)?)?;
    let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
    let found = unsafe { mmap_anonymous(None, more, ProtFlags::PROT_NONE, flags) }.ok()?;
    // SAFETY: the mapping that has just been made, which no code uses.
    unsafe { munmap(found, more.get()) }.ok()?;
    NonZeroUsize::new(found.addr().get().next_multiple_of(HUGE_PAGE))
}

/// Why a file could not be mapped, with the numbers if a limit forbids it.
pub(crate) fn refused(error: std::io::Error, len: usize, path: &Path) -> OpenError {
    match Limit::of(limits::not_mapped(error, len)) {
        Ok(why) => OpenError::OverLimit {
            path: path.to_path_buf(),
            why,
        },
        Err(source) => io("map", path, source),
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // A forked child does not have the mapping, and may have something else at this address.
        if !self.home.is_here() {
            return;
        }
        // SAFETY: mapped by `new`, and no longer used: the region that used it is being dropped.
        let _ = unsafe { munmap(self.base, self.len) };
    }
}

/// Linux's number of mseal(2) on every processor (6.10).
const SYS_MSEAL: nix::libc::c_long = 462;

/// Seals a region's mapping: see [`crate::Cache::seal`].
pub(crate) fn seal(mapped: &std::ops::Range<usize>) -> std::io::Result<()> {
    // SAFETY: takes numbers; forbids changes of a mapping that this crate never changes before it is dropped with the
    // process.
    let done = unsafe { nix::libc::syscall(SYS_MSEAL, mapped.start, mapped.end - mapped.start, 0) };
    if done == 0 {
        Ok(())
    } else {
        Err(std::io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_can_have_huge_pages() {
        let name = c"keyway-test-huge";
        let file = nix::sys::memfd::memfd_create(name, nix::sys::memfd::MFdFlags::empty()).unwrap();
        let file = File::from(file);
        let len = 4 * HUGE_PAGE;
        file.set_len(len as u64).unwrap();
        let mapping = Mapping::new(&file, len).unwrap();
        assert!(mapping.base.addr().get().is_multiple_of(HUGE_PAGE));
        let memory = mapping.memory();
        let bytes: Vec<u8> = (0..len).map(|at| (at % 251).to_le_bytes()[0]).collect();
        memory.write(0, &bytes);
        let is_collapsed = mapping.collapse(&(page_size()..len));
        assert!(memory.equals(0, &bytes), "the contents stay");
        // Where the kernel can (from Linux 6.1 on, with enough memory in one piece), each whole huge page of the part is one.
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let at = smaps.find(&format!("{:x}-", mapping.base.addr())).expect("it is mapped");
        let huge_kib: usize = smaps[at..]
            .lines()
            .find_map(|line| line.strip_prefix("ShmemPmdMapped:"))
            .and_then(|rest| rest.trim().strip_suffix(" kB")?.parse().ok())
            .expect("the kernel says so");
        assert_eq!(huge_kib >= (len - HUGE_PAGE) / 1024, is_collapsed, "{huge_kib} KiB");
    }
}
