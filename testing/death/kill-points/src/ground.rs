//! The ground that a region stands on here: a few small segments in memory of this process, shared with its children or private, or
//! in a file that others open by its name.
//!
//! # Safety
//!
//! The only `unsafe` is the mapping itself: made here, readable and writable, unmapped when the last user is gone, and touched
//! as plain bytes only while no region stands on it or its user is stopped.
#![allow(unsafe_code, reason = "the room of the mapping; contract above")]

use keyway_region::layout::plan::{Layout, Shape};
use keyway_region::layout::session::Tenant;
use keyway_region::memory::Memory;
use keyway_region::{Creation, Host, Life, Limits, Region, Stripes};
use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use std::fs::File;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Unix seconds at which everything happens.
pub const NOW: i64 = 1_800_000_000;
/// Process slots: whose is whose.
pub const OTHER: usize = 0;
/// The process slot of the one that is stopped.
pub const STOPPED: usize = 1;
/// The process slot of the one that recovers and is stopped too.
pub const RECOVERER: usize = 2;

/// Segments that a region may be raised by.
pub const SPARE: usize = 4;

/// Segments that a lower memory limit keeps out of use.
pub const WITHHELD: usize = 3;

/// The smallest shape: segments of 16 KiB, of which the first index is one, and a handful of slots for processes and threads.
pub fn shape(segments: usize) -> Shape {
    let smallest = Shape::for_memory(keyway_region::layout::plan::MEMORY_MIN, 4096);
    Shape {
        segments_max: segments + SPARE,
        process_slots: 4,
        thread_slots: 6,
        server_threads: 1,
        buckets_initial: smallest.buckets_per_segment(),
        ..smallest
    }
}

/// What the region allows.
fn limits() -> Limits {
    Limits {
        item_size_max: 1 << 18,
        evict: true,
        ..Limits::default()
    }
}

/// Which process slots belong to the dead, and which seem to, as bits.
#[derive(Clone, Debug, Default)]
pub struct Dead(Arc<AtomicU64>, Arc<AtomicU64>);

impl Dead {
    /// These are dead from now on, the others alive.
    pub fn are(&self, slots: &[usize]) {
        self.0.store(bits(slots), Relaxed);
    }

    /// These seem to be dead from now on, whether they are or not.
    pub fn seem(&self, slots: &[usize]) {
        self.1.store(bits(slots), Relaxed);
    }
}

fn bits(slots: &[usize]) -> u64 {
    slots.iter().fold(0, |bits, slot| bits | 1 << slot)
}

struct Watcher {
    layout: Layout,
    dead: Dead,
}

impl Host for Watcher {
    fn life(&self, tenant: &Tenant) -> Life {
        let is_among = |slots: &AtomicU64| slots.load(Relaxed) & 1 << tenant.slot != 0;
        if is_among(&self.dead.0) {
            Life::Dead
        } else if is_among(&self.dead.1) {
            Life::Suspect
        } else {
            Life::Alive
        }
    }
    fn prepare(&self, _: &[Range<usize>], _: bool, _: bool) {}
    fn write_back(&self, _: Range<usize>) -> bool {
        true
    }
    fn fence_everywhere(&self) -> bool {
        // Who asks is the only one who is not stopped.
        true
    }
    fn file_len(&self) -> usize {
        self.layout.len_max
    }
    fn back(&self, _: Range<usize>) -> Result<(), std::io::Error> {
        Ok(())
    }
    fn give_back(&self, _: Range<usize>) -> Result<(), std::io::Error> {
        Ok(())
    }
}

/// A mapping, and the region's layout in it.
pub struct Ground {
    base: NonNull<u8>,
    layout: Layout,
    /// who is dead, for every region opened here
    pub dead: Dead,
    file: Option<Named>,
}

/// A region's file in memory, removed at the end.
pub struct Named(pub PathBuf);

impl Named {
    /// A name that nothing has.
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let (own, next) = (std::process::id(), NEXT.fetch_add(1, Relaxed));
        Self(PathBuf::from(format!("/dev/shm/keyway-kill-points-{own}-{next}")))
    }
}

impl Default for Named {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

// SAFETY: an address range belongs to the whole process.
unsafe impl Send for Ground {}

impl Ground {
    /// Zeroed memory for this many segments; `shared` with children forked later, or private.
    ///
    /// # Panics
    ///
    /// If the kernel has no memory.
    pub fn new(segments: usize, shared: bool) -> Self {
        let layout = Layout::new(shape(segments));
        let len = NonZeroUsize::new(layout.len_max).expect("a region has a length");
        let flags = if shared { MapFlags::MAP_SHARED } else { MapFlags::MAP_PRIVATE };
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let base = unsafe { mmap_anonymous(None, len, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, flags) };
        Self {
            base: base.expect("anonymous memory").cast(),
            layout,
            dead: Dead::default(),
            file: None,
        }
    }

    /// A file in memory with an empty region of this many segments, which any process may open. [`OTHER`] is alive there as long as
    /// the returned description is open, so that the first to come is [`STOPPED`].
    ///
    /// # Errors
    ///
    /// The system has no file, no memory or no lock.
    pub fn in_file(segments: usize) -> std::io::Result<(Self, Arc<Region>, File)> {
        let layout = Layout::new(shape(segments));
        let name = Named::new();
        let file = File::options().read(true).write(true).create_new(true).open(&name.0)?;
        file.set_len(layout.len_max as u64)?;
        let len = NonZeroUsize::new(layout.len_max).ok_or(std::io::ErrorKind::InvalidInput)?;
        let rights = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing; the file is of no other process yet.
        let base = unsafe { mmap(None, len, rights, MapFlags::MAP_SHARED, &file, 0) }?;
        let ground = Self {
            base: base.cast(),
            layout,
            dead: Dead::default(),
            file: Some(name),
        };
        let region = ground.create();
        fcntl(&file, FcntlArg::F_OFD_SETLK(&lock_on(layout.process(OTHER))))?;
        Ok((ground, region, file))
    }

    /// Where the region is, if it is in a file.
    pub fn path(&self) -> Option<&std::path::Path> {
        self.file.as_ref().map(|name| name.0.as_path())
    }

    /// An empty region.
    ///
    /// # Panics
    ///
    /// If it cannot be made, which only a wrong shape explains.
    pub fn create(&self) -> Arc<Region> {
        let creation = Creation {
            shape: self.layout.shape,
            segments: self.layout.shape.segments_max - SPARE,
            id: [1, 2],
            seed: 3,
            now: keyway_region::Moment::from_secs(NOW),
            boot_id: [4, 5],
            checksums: false,
            limits: limits(),
        };
        Region::create(self.memory(), &creation, self.host()).expect("memory of the right size");
        self.open()
    }

    /// The region that stands here.
    ///
    /// # Panics
    ///
    /// If there is none.
    pub fn open(&self) -> Arc<Region> {
        Arc::new(Region::open(self.memory(), self.host()).expect("a region"))
    }

    /// All of it. Who uses the region is stopped meanwhile.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: mapped by `new`; no process writes while the slice is looked at, which the callers see to.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.layout.len_max) }
    }

    /// Puts an image here. No region is open on it.
    pub fn restore(&mut self, image: &[u8]) {
        assert_eq!(image.len(), self.layout.len_max, "an image of another shape");
        // SAFETY: both sides have this length, and they are different memory.
        unsafe { std::ptr::copy_nonoverlapping(image.as_ptr(), self.base.as_ptr(), image.len()) }
    }

    /// This memory as the words in which changes are counted, instead of a region.
    ///
    /// # Panics
    ///
    /// If there is no room for them.
    pub fn stripes(&self) -> Stripes {
        Stripes::new(self.memory(), Box::new(())).expect("room for a word a stripe")
    }

    /// One of those words. Every process that counts is stopped meanwhile.
    pub fn stripe(&self, number: usize) -> u64 {
        let word = self.bytes()[number * 8..].first_chunk();
        u64::from_ne_bytes(*word.expect("a stripe's number"))
    }

    fn memory(&self) -> Memory {
        // SAFETY: mapped, page-aligned, and kept by `self`, which outlives every region here.
        unsafe { Memory::new(self.base, self.layout.len_max) }
    }

    fn host(&self) -> Box<dyn Host> {
        Box::new(Watcher {
            layout: self.layout,
            dead: self.dead.clone(),
        })
    }
}

/// The lock on one byte of a file.
fn lock_on(at: usize) -> nix::libc::flock {
    nix::libc::flock {
        l_type: i16::try_from(nix::libc::F_WRLCK).unwrap_or(0),
        l_whence: i16::try_from(nix::libc::SEEK_SET).unwrap_or(0),
        l_start: i64::try_from(at).unwrap_or(i64::MAX),
        l_len: 1,
        l_pid: 0,
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and no region stands on it any more.
        let _ = unsafe { munmap(self.base.cast(), self.layout.len_max) };
    }
}
