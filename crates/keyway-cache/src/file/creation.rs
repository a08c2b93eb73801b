//! A new region: its file, allocated in full, and the memory that is added to it later.
//!
//! One process makes a region, in the file that has its name:
//!
//! 1. It creates the file (O_EXCL), or finds it empty or unfinished, and locks [`Whole`]. Every
//!    other process that wants the region waits for that lock. The lock ends with its holder, however the holder ends.
//! 2. It empties the file, and writes the unfinished mark at its start. It checks limits and free space, and allocates
//!    all of the file.
//! 3. It puts everything in place. Last, the magic number replaces the mark. The lock ends with the descriptor.
//!
//! So a file without the magic number whose lock is free was left by a maker that died: the next process that opens the
//! place makes the region in it. A file that is neither a region nor the beginning of one is only read.

use crate::clock::Clock;
use crate::error::copies;
use crate::error::io;
use crate::error::unusable;
use crate::error::{GrowError, OpenError};
use crate::file::backing::{allocate, huge_page_size, is_on_disk, offset, page_size};
use crate::file::blocks;
use crate::file::inspect::Stage;
use crate::file::inspect::open_file;
use crate::file::inspect::stage;
use crate::file::limits::{self, Limit};
use crate::file::liveness::{Attachment, Whole};
use crate::file::mapping::Mapping;
use crate::file::unfinished::is_at;
use crate::file::unfinished::random;
use crate::options::Options;
use crate::options::check_sessions;
use crate::options::shape_of;
use crate::process::descriptor::file_id;
use crate::process::proc;
use keyway_region::layout::plan::Layout;
use keyway_region::layout::superblock;
use keyway_region::{Creation, Limits, Region, Unusable};
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, OFlag, fallocate};
use nix::sys::statfs::{HUGETLBFS_MAGIC, statfs};
use nix::unistd::geteuid;
use std::fs::{File, Permissions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

/// Time between two looks at a region that another process is making.
const POLL: Duration = Duration::from_millis(10);
/// Mode of a file while a region is being made in it.
const MAKERS_MODE: u32 = 0o600;
/// How long another process may make a region without visible progress. After the allocation, which is visible, it clears
/// the first index: 16 MiB per GiB.
const STUCK_AFTER: Duration = Duration::from_secs(5);

/// Makes the region at `path`, if it is absent. `false`: another process has made it.
///
/// Without [`Options::memory`] nothing is made. What a dead maker left is removed.
///
/// # Errors
///
/// There is no space for it, or a limit forbids it: then nothing is left. The existing file is not a region: it stays as
/// it is. Another process is making it, and makes no progress.
pub(crate) fn make(path: &Path, options: &Options) -> Result<bool, OpenError> {
    make_within(path, options, STUCK_AFTER)
}

fn make_within(path: &Path, options: &Options, stuck_after: Duration) -> Result<bool, OpenError> {
    let mut progress = Progress::new(stuck_after);
    loop {
        let Some(file) = open_or_create(path, options)? else {
            continue;
        };
        match stage(&file).map_err(|e| io("read", path, e))? {
            Stage::Complete => return Ok(false),
            Stage::Foreign => return Err(unusable(path, Unusable::NotARegion)),
            Stage::Unfinished => {}
        }
        let Some(_whole) = Whole::take(&file) else {
            progress.wait(&file, path)?;
            continue;
        };
        // Looked at once more: before this process got the lock, another process had it.
        let stage = stage(&file).map_err(|e| io("read", path, e))?;
        if !is_at(&file, path) || stage != Stage::Unfinished {
            continue;
        }
        let meta = file.metadata().map_err(|e| io("stat", path, e))?;
        if meta.uid() != geteuid().as_raw() {
            // The file's owner could read and change whatever this process puts into it.
            return Err(unusable(path, Unusable::Unfinished));
        }
        if options.memory.is_none() {
            discard(&file, path);
            return Err(OpenError::Absent {
                path: path.to_path_buf(),
                there: Vec::new(),
            });
        }
        return remake(&file, path, options).map(|()| true);
    }
}

/// Makes a new region in this file, whatever is in it. The caller holds [`Whole`] on `file` and
/// has seen that no process is attached.
///
/// # Errors
///
/// There is no space for it, or a limit forbids it: then the file is removed.
pub(crate) fn remake(file: &File, path: &Path, options: &Options) -> Result<(), OpenError> {
    create_in(file, path, options).inspect_err(|_| discard(file, path))
}

/// Opens the file, or makes an empty one. `None`: it appeared or disappeared meanwhile, so the caller looks again.
fn open_or_create(path: &Path, options: &Options) -> Result<Option<File>, OpenError> {
    match open_file(path, options) {
        Err(OpenError::Absent { .. }) if options.memory.is_some() => {}
        found => return found.map(Some),
    }
    let created = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(MAKERS_MODE)
        .custom_flags(OFlag::O_NOFOLLOW.bits())
        .open(path);
    match created {
        Ok(file) => Ok(Some(file)),
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => Ok(None),
        Err(e) => Err(io("create", path, e)),
    }
}

/// Removes a file in which a region was to be made; the caller holds its lock.
fn discard(file: &File, path: &Path) {
    if is_at(file, path) {
        let _ = std::fs::remove_file(path);
    }
}

/// The progress of another process's creation, as far as it is visible from outside.
struct Progress {
    stuck_after: Duration,
    /// inode, length and blocks
    seen: (u64, u64, u64),
    since: Instant,
}

impl Progress {
    fn new(stuck_after: Duration) -> Self {
        Self {
            stuck_after,
            seen: (0, 0, 0),
            since: Instant::now(),
        }
    }

    /// Waits a little. Fails if there was no progress for too long.
    fn wait(&mut self, file: &File, path: &Path) -> Result<(), OpenError> {
        let meta = file.metadata().map_err(|e| io("stat", path, e))?;
        let now = (meta.ino(), meta.len(), meta.blocks());
        if now != self.seen {
            (self.seen, self.since) = (now, Instant::now());
        } else if self.since.elapsed() > self.stuck_after {
            return Err(OpenError::Busy {
                path: path.to_path_buf(),
                doing: "is making the region",
            });
        }
        crate::process::wait::sleep(POLL);
        Ok(())
    }
}

/// Makes a region in a file, whose contents are lost. Until it is complete, no other user can open the file, and so none
/// can lock a byte of it.
pub(crate) fn create_in(file: &File, path: &Path, options: &Options) -> Result<(), OpenError> {
    let is_ours = file.metadata().map_err(|e| io("stat", path, e))?.uid() == geteuid().as_raw();
    let allow = |mode| match is_ours {
        true => file
            .set_permissions(Permissions::from_mode(mode))
            .map_err(|e| io("chmod", path, e)),
        // The file of another user, which the caller has allowed: only its owner can set its mode.
        false => Ok(()),
    };
    if is_on_disk(file) && proc::boot_id().is_none() && !Clock::here().is_known() {
        return Err(OpenError::NoProc {
            path: path.to_path_buf(),
            needs: "a region on a disk outlives a reboot, and this process cannot find out which boot this is (/proc/sys/kernel/random/boot_id)",
        });
    }
    allow(MAKERS_MODE)?;
    blocks::write_in_place(file);
    let memory = options.memory_of_new();
    empty(file, path, memory)?;
    blocks::claim(file).map_err(|why| copies(path, why))?;
    check_sessions(options, memory)?;
    let shape = shape_of(options, memory, page_size(file));
    let layout = Layout::new(shape);
    let (mapping, segments) = allocate_all(file, path, options, &layout, memory)?;
    let [id0, id1, seed] = random(path)?;
    let creation = Creation {
        shape,
        segments,
        id: [id0, id1],
        seed,
        now: Clock::here().now(),
        boot_id: proc::boot_id().unwrap_or_default(),
        checksums: options.checksums,
        limits: options.limits(Limits::default()),
    };
    let id = file_id(file).map_err(|e| io("stat", path, e))?;
    let memory = mapping.memory();
    let unowned = Attachment::new(mapping, id, None, None, false).map_err(|e| io("describe", path, e))?;
    let region = Region::unfinished(memory, &creation, Box::new(unowned)).map_err(|why| unusable(path, why))?;
    let not_written = || io("write back", path, std::io::Error::last_os_error());
    // A region in durable mode is on the medium before its magic number is.
    if region.mapped().is_durable() {
        let mut ranges = layout.backed(segments).into_iter();
        let written = ranges.all(|range| region.mapped().host().write_back(range)) && file.sync_all().is_ok();
        written.then_some(()).ok_or_else(not_written)?;
    }
    allow(options.mode)?;
    region.finish();
    if region.mapped().is_durable() && !region.mapped().host().write_back(0..superblock::SIZE) {
        return Err(not_written());
    }
    Ok(())
}

/// Gives a region's file its length and its memory, as far as there is any: the mapping, and how many segments have memory.
fn allocate_all(
    file: &File,
    path: &Path,
    options: &Options,
    layout: &Layout,
    memory: u64,
) -> Result<(Mapping, usize), OpenError> {
    // What it has already is no more: in a file system of the region's size that decides.
    let there = file.metadata().map_err(|e| io("stat", path, e))?.blocks() * 512;
    let asked = layout.segments_for(memory);
    let beyond = limits::beyond(file, layout.backed_len(asked).saturating_sub(there));
    let segments = without(layout, asked, beyond);
    // A file on hugetlbfs consists of whole pages of its own.
    let len = layout.len(segments).next_multiple_of(layout.shape.page_size) as u64;
    let wanted = layout.backed_len(segments);
    limits::file_size(len).map_err(|why| over_limit(path, why))?;
    let was = file.metadata().map_err(|e| io("stat", path, e))?.len();
    file.set_len(len.max(was)).map_err(|e| io("set length", path, e))?;
    // Address space, persistent memory, memory: whatever can be known to be missing is found out before anything is
    // allocated.
    let mapping = Mapping::of(file, layout.len_max, options.durable, options, path)?;
    limits::memory(file, wanted.saturating_sub(there)).map_err(|e| no_room_or(e, "allocate", path, wanted))?;
    for range in layout.backed(segments) {
        allocate(file, range).map_err(|e| no_room_or(e, "allocate", path, wanted))?;
    }
    Ok((mapping, segments))
}

/// Leaves nothing in a file but the unfinished mark. The file is not truncated: a process that is about to attach may
/// have mapped it, and looks at the magic number next. If the file became shorter, that process would get SIGBUS.
/// `wanted`: the memory that the region is to have, bytes.
fn empty(file: &File, path: &Path, wanted: u64) -> Result<(), OpenError> {
    let mut begin = [0; superblock::SIZE];
    begin[..8].copy_from_slice(&superblock::MAGIC_UNFINISHED.to_le_bytes());
    let len = file.metadata().map_err(|e| io("stat", path, e))?.len();
    let kept = if huge_page_size(file).is_none() {
        limits::file_size(superblock::SIZE as u64).map_err(|why| over_limit(path, why))?;
        // The mark comes first, in a write of its own: a maker that dies after it leaves an unfinished region, not an
        // unknown file.
        for bytes in [&begin[..8], &begin] {
            file.write_all_at(bytes, 0)
                .map_err(|e| no_room_or(e, "write", path, wanted))?;
        }
        superblock::SIZE
    } else {
        0
    };
    if len <= kept as u64 {
        return Ok(());
    }
    let hole = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    let rest = i64::try_from(len).unwrap_or(i64::MAX) - offset(kept);
    let punched = loop {
        match fallocate(file, hole, offset(kept), rest) {
            Err(Errno::EINTR) => {}
            done => break done,
        }
    };
    match punched {
        // A file system without holes (fallocate(2)).
        Err(Errno::EOPNOTSUPP) => file.set_len(kept as u64).map_err(|e| io("truncate", path, e)),
        done => done.map_err(|e| io("punch a hole into", path, e.into())),
    }
}

/// This many segments less those that take so many bytes, but not none.
fn without(layout: &Layout, segments: usize, bytes: u64) -> usize {
    let fewer = bytes.div_ceil(layout.shape.segment_size as u64);
    segments.saturating_sub(usize::try_from(fewer).unwrap_or(usize::MAX)).max(1)
}

fn over_limit(path: &Path, why: Limit) -> OpenError {
    OpenError::OverLimit {
        path: path.to_path_buf(),
        why,
    }
}

/// The error for a failed attempt to allocate memory for a file.
fn no_room_or(error: std::io::Error, what: &'static str, path: &Path, wanted: u64) -> OpenError {
    match Limit::of(error) {
        Ok(why) => over_limit(path, why),
        Err(source) if no_room(&source) => OpenError::NoSpace {
            path: path.to_path_buf(),
            wanted,
            source: huge_pages_missing(path).unwrap_or(source),
        },
        Err(source) => io(what, path, source),
    }
}

/// What a file system of huge pages says by "no space": how many there are.
fn huge_pages_missing(path: &Path) -> Option<std::io::Error> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let fs = statfs(folder.unwrap_or(Path::new("."))).ok()?;
    if fs.filesystem_type() != HUGETLBFS_MAGIC {
        return None;
    }
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let of = |name: &str| {
        info.lines()
            .find_map(|line| line.strip_prefix(name))
            .map_or("unknown", str::trim)
    };
    Some(std::io::Error::new(
        std::io::ErrorKind::StorageFull,
        format!(
            "of {} huge pages {} are free; `sysctl vm.nr_hugepages=N` reserves more",
            of("HugePages_Total:"),
            of("HugePages_Free:")
        ),
    ))
}

/// Gives a region the segments for which `memory` bytes have room. It keeps what it has if that is more. A lower memory
/// limit is lifted.
pub(crate) fn grow(region: &Region, memory: u64) -> Result<(), GrowError> {
    let layout = region.mapped().layout();
    region.mapped().learn();
    let (old, wanted) = (region.mapped().segments(), layout.segments_for(memory));
    let most = layout.backed_len(layout.shape.segments_max) + layout.shape.segment_size as u64;
    if wanted > old && memory > most {
        return Err(GrowError::TooLarge { asked: memory, most });
    }
    let has = limit_bytes(region);
    // In a region as large as this one is now, a limit counts the arrays of all its segments.
    let within = if wanted > old {
        wanted
    } else {
        segments_within(region, memory)
    };
    let raised = match region.mapped().grow(within) {
        // Without what a region leaves free, as at its creation.
        Err(error) if error.kind() == std::io::ErrorKind::StorageFull && within > old => {
            region.mapped().grow(without(layout, within, limits::LEFT_FREE).max(old))
        }
        raised => raised,
    };
    raised.map_err(|source| not_grown(source, has, memory))
}

/// Lowers a region's memory limit to `memory` bytes, or to the lowest limit with which the region can work. A limit that
/// is already lower stays.
pub(crate) fn lower(region: &Region, memory: u64) {
    region.mapped().learn();
    region
        .victims()
        .lower(segments_within(region, memory), region.limits().read().item_size_max);
}

/// For how many of a region's segments `memory` bytes have room. The arrays of all segments stay as they are.
fn segments_within(region: &Region, memory: u64) -> usize {
    let layout = region.mapped().layout();
    let over = layout.backed_len(region.mapped().segments()).saturating_sub(memory);
    let segments = over.div_ceil(layout.shape.segment_size as u64);
    region
        .mapped()
        .segments()
        .saturating_sub(usize::try_from(segments).unwrap_or(usize::MAX))
}

/// The memory limit: bytes that a region may use, everything included.
pub(crate) fn limit_bytes(region: &Region) -> u64 {
    bytes_without(region, region.mapped().withheld())
}

/// Bytes that a region uses, or may use at once: more than its limit while it is still shrinking.
pub(crate) fn held_bytes(region: &Region) -> u64 {
    bytes_without(region, region.mapped().withdrawn())
}

fn bytes_without(region: &Region, segments: usize) -> u64 {
    let layout = region.mapped().layout();
    layout
        .backed_len(region.mapped().segments())
        .saturating_sub((segments * layout.shape.segment_size) as u64)
}

fn not_grown(error: std::io::Error, has: u64, wanted: u64) -> GrowError {
    match Limit::of(error) {
        Ok(why) => GrowError::OverLimit { has, wanted, why },
        Err(source) if no_room(&source) => GrowError::NoSpace { has, wanted, source },
        Err(source) => GrowError::Io { source },
    }
}

/// Whether a file could not get memory because there is none.
fn no_room(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded | std::io::ErrorKind::OutOfMemory
    )
}
