//! The operating system's side of a region: its file, its mapping, and the lock that says that this process is alive.
//!
//! The lock is an open-file-description lock (`fcntl(2)`, F_OFD_SETLK) on the first byte of a process slot. The file is
//! opened a second time for it, locked, mapped (not inherited by forks) and closed: from then on the mapping alone holds the
//! description, so the lock lives exactly as long as the mapping. It survives every other `close`, and SIGSTOP; it is gone
//! when no later store can come. Another descriptor, without locks, is kept to ask for the locks of others.
//!
//! A new region is made whole in a file of another name and then given its own, so nobody ever attaches to half of one.
//!
//! # Safety
//!
//! The only `unsafe` here is mapping a shared file, which the region's [`Memory`] treats as bytes that change under it, and
//! advice to the kernel about that mapping. A file that somebody truncates while it is mapped gives SIGBUS, as with every
//! program that maps files; `docs/operating.md` says so.
#![allow(unsafe_code, reason = "the room of mmap; contract above")]

use crate::crew::{Crew, Standing};
use crate::error::{GrowError, OpenError};
use crate::fork::{self, Home};
use crate::gate::{self, Gate, GateState, Latch, aside};
use crate::handout::Handed;
use crate::peer::Peer;
use crate::restart::{self, Restart};
use crate::{Inner, Options, Place, clock, handout, kernel, nodes, resident};
use keyway_region::layout::plan::{Layout, MEMORY_MAX, MEMORY_MIN, Shape};
use keyway_region::layout::superblock;
use keyway_region::memory::Memory;
use keyway_region::{Creation, Host, Limits, Region, Unusable};
use nix::fcntl::{AT_FDCWD, FallocateFlags, FcntlArg, OFlag, RenameFlags, fallocate, fcntl, renameat2};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, MmapAdvise, MsFlags, ProtFlags, madvise, mmap, msync, munmap};
use nix::sys::statfs::{HUGETLBFS_MAGIC, TMPFS_MAGIC, fstatfs};
use std::cell::RefCell;
use std::fs::{File, Permissions};
use std::io::Read;
use std::num::NonZeroUsize;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Smallest and largest limit for items, as memcached's -I.
const ITEM_SIZE_MAX: std::ops::RangeInclusive<usize> = 1024..=1 << 30;
/// What a file's memory has at least of.
const PAGE: usize = 4096;
/// The byte of a new file that whoever makes a region in it has locked.
const BEING_MADE: i64 = 1;
/// How long to wait for another process that is replacing a region.
const BUSY_MAX: Duration = Duration::from_secs(5);

/// Attaches to a region, or creates it.
pub(crate) fn open(place: &Place, options: &Options) -> Result<Inner, OpenError> {
    fork::watch().map_err(|e| io("mmap", Path::new("a page for telling forks"), e))?;
    if !(MEMORY_MIN..=MEMORY_MAX).contains(&options.memory) {
        return Err(OpenError::Memory {
            asked: options.memory,
            least: MEMORY_MIN,
            most: MEMORY_MAX,
        });
    }
    match place {
        Place::Memfd => {
            check_item_size(options.item_size_max, options.memory)?;
            let name = PathBuf::from("memfd:keyway");
            let fd = memfd_create(c"keyway", MFdFlags::MFD_CLOEXEC).map_err(|e| io("memfd_create", &name, e.into()))?;
            let file = File::from(fd);
            // Anybody could write it otherwise who was given a descriptor to read, by opening that again.
            file.set_permissions(Permissions::from_mode(options.mode))
                .map_err(|e| io("chmod", &name, e))?;
            create_in(&file, &name, options)?;
            // A descriptor's own entry in /proc opens the same memory with a description of its own.
            let own = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
            let reopen = || open_file(&own, options, false);
            attach(place, &name, reopen, options, false)
        }
        Place::Socket(path) => {
            let (files, doorway) = match handout::ask(path)? {
                Handed::ToWrite { files, doorway } => (RefCell::new(files.into_iter()), doorway),
                Handed::ToRead(file, line) => return attach_to_read(path, file, line, options),
            };
            let next = || {
                let file = files.borrow_mut().next();
                file.filter(|file| file.metadata().is_ok_and(|meta| meta.is_file()))
                    .ok_or_else(|| OpenError::NotAFile { path: path.clone() })
            };
            let options = Options {
                existing_only: true,
                ..options.clone()
            };
            let inner = attach(place, path, next, &options, true)?;
            if let Some((word, map)) = doorway {
                kernel::take_in(&inner.crew, word, map).map_err(|e| io("map the stripes of", path, e))?;
            }
            Ok(inner)
        }
        Place::Path(path) => {
            let deadline = Instant::now() + BUSY_MAX;
            let mut warm = true;
            loop {
                match open_file(path, options, true) {
                    Ok(file) => match restart::before_use(&file, path, options)? {
                        Restart::Use => return attach(place, path, || open_file(path, options, true), options, warm),
                        Restart::Again { cold } => warm &= !cold,
                    },
                    Err(OpenError::Absent { .. }) if !options.existing_only => {
                        check_item_size(options.item_size_max, options.memory)?;
                        if create_at(path, options, RenameFlags::RENAME_NOREPLACE)? {
                            warm = false;
                        }
                    }
                    Err(e) => return Err(e),
                }
                if Instant::now() > deadline && !restart::is_being_repaired(path) {
                    return Err(OpenError::Busy { path: path.clone() });
                }
            }
        }
    }
}

/// Marks the region as cleanly stopped if nobody else is attached.
pub(crate) fn close(inner: &Inner) -> bool {
    let Standing::Writer(process) = inner.crew.standing else {
        return false;
    };
    let _inside = inner.crew.latch.open();
    let region = &inner.crew.region;
    let layout = region.layout();
    let others = (0..region.layout().shape.process_slots).any(|p| p != process.slot && region.is_process_alive(p));
    if others || region.sessions() > 0 {
        return false;
    }
    let sb = region.superblock();
    sb.last_seen_unix_s
        .store(u64::try_from(clock::unix_s()).unwrap_or(0), Relaxed);
    if inner.durable
        && !layout
            .backed(region.segments())
            .into_iter()
            .all(|r| region.host().write_back(r))
    {
        return false;
    }
    sb.clean.store(1, Release);
    !inner.durable || region.host().write_back(0..superblock::SIZE)
}

pub(crate) fn check_item_size(asked: usize, memory: u64) -> Result<(), OpenError> {
    // A region backs a little less than the memory asked for, never a MiB less.
    let half = usize::try_from(memory.next_multiple_of(1 << 20) / 2).unwrap_or(usize::MAX);
    let (least, most) = (*ITEM_SIZE_MAX.start(), half.min(*ITEM_SIZE_MAX.end()));
    if asked < least || asked > most {
        Err(OpenError::ItemSize { asked, least, most })
    } else {
        Ok(())
    }
}

pub(crate) fn io(what: &'static str, path: &Path, source: std::io::Error) -> OpenError {
    OpenError::Io {
        what,
        path: path.to_path_buf(),
        source,
    }
}

/// Opens a region's file for reading and writing, with a description of its own.
pub(crate) fn open_file(path: &Path, options: &Options, by_name: bool) -> Result<File, OpenError> {
    // A descriptor's entry in /proc is a symbolic link; a region's own name must not be one.
    let flags = if by_name { OFlag::O_NOFOLLOW } else { OFlag::empty() } | OFlag::O_NONBLOCK;
    let opened = File::options()
        .read(true)
        .write(true)
        .mode(options.mode)
        .custom_flags(flags.bits())
        .open(path);
    let file = match opened {
        Ok(file) => file,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            return Err(OpenError::Absent {
                path: path.to_path_buf(),
            });
        }
        Err(e) if e.kind() == std::io::ErrorKind::IsADirectory => {
            return Err(OpenError::NotAFile {
                path: path.to_path_buf(),
            });
        }
        Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied && is_hardened() => {
            return Err(OpenError::KeptOut {
                path: path.to_path_buf(),
            });
        }
        Err(e) => return Err(io("open", path, e)),
    };
    let meta = file.metadata().map_err(|e| io("stat", path, e))?;
    if meta.is_file() {
        Ok(file)
    } else {
        Err(OpenError::NotAFile {
            path: path.to_path_buf(),
        })
    }
}

/// Whether this process is as `keyway exec` makes those that it starts: they cannot be looked into, nor gain rights.
fn is_hardened() -> bool {
    use nix::sys::prctl::{get_dumpable, get_no_new_privs};
    matches!((get_dumpable(), get_no_new_privs()), (Ok(false), Ok(true)))
}

/// Makes a region in a new file beside `path`, and gives it that name. `false`: somebody else was faster.
pub(crate) fn create_at(path: &Path, options: &Options, rename: RenameFlags) -> Result<bool, OpenError> {
    remove_leftovers(path);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let [unique] = random(path)?;
    let new = path.with_file_name(format!(".{name}.{unique:016x}.new"));
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(options.mode)
        .open(&new)
        .map_err(|e| io("create", &new, e))?;
    // As long as this lock stands the file is no leftover. Whoever took it for one before has it, and removes it.
    if fcntl(&file, FcntlArg::F_OFD_SETLK(&byte_lock(BEING_MADE))).is_err() {
        return Ok(false);
    }
    let result = create_in(&file, path, options).and_then(|()| match renameat2(AT_FDCWD, &new, AT_FDCWD, path, rename) {
        Ok(()) => Ok(true),
        Err(nix::errno::Errno::EEXIST | nix::errno::Errno::ENOENT) => Ok(false),
        Err(e) => Err(io("rename", path, e.into())),
    });
    if !matches!(result, Ok(true)) {
        let _ = std::fs::remove_file(&new);
    }
    result
}

/// Removes files beside `path` in which a region was being made by a process that did not live to name it.
fn remove_leftovers(path: &Path) {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let file_name = entry.file_name().to_string_lossy().into_owned();
        let unique = file_name
            .strip_prefix(&format!(".{name}."))
            .and_then(|rest| rest.strip_suffix(".new"));
        if unique.is_none_or(|unique| unique.len() != 16 || !unique.bytes().all(|b| b.is_ascii_hexdigit())) {
            continue;
        }
        let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
        let opened = File::options()
            .read(true)
            .write(true)
            .custom_flags(flags.bits())
            .open(entry.path());
        // What cannot be opened or removed is somebody else's, and stays.
        if let Ok(file) = opened
            && file.metadata().is_ok_and(|meta| meta.is_file())
            && fcntl(&file, FcntlArg::F_OFD_SETLK(&byte_lock(BEING_MADE))).is_ok()
        {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Makes an empty file a region.
fn create_in(file: &File, path: &Path, options: &Options) -> Result<(), OpenError> {
    let shape = Shape::for_memory(options.memory, page_size(file));
    let layout = Layout::new(shape);
    let segments = layout.segments_for(options.memory);
    let len = layout.len(segments) as u64;
    file.set_len(len).map_err(|e| io("set length", path, e))?;
    for range in layout.backed(segments) {
        back(file, range).map_err(|e| match no_room(&e) {
            true => OpenError::NoSpace {
                path: path.to_path_buf(),
                wanted: layout.backed_len(segments),
                source: e,
            },
            false => io("allocate", path, e),
        })?;
    }
    let mapping = Mapping::of(file, layout.len_max, options.strict, options, path)?;
    let [id0, id1, seed] = random(path)?;
    let creation = Creation {
        shape,
        segments,
        id: [id0, id1],
        seed,
        now_unix_s: clock::unix_s(),
        boot_id: boot_id(),
        checksums: options.checksums,
    };
    let memory = mapping.memory();
    let nobody = Attachment {
        probe: Some(Arc::new(file.try_clone().map_err(|e| io("dup", path, e))?)),
        mapping,
    };
    let region = Region::create(memory, &creation, Box::new(nobody)).map_err(|why| unusable(path, why))?;
    // A strict region is on the medium before it has its name.
    let written = !region.is_strict()
        || layout
            .backed(segments)
            .into_iter()
            .all(|range| region.host().write_back(range))
            && file.sync_all().is_ok();
    if written {
        Ok(())
    } else {
        Err(io("write back", path, std::io::Error::last_os_error()))
    }
}

/// Attaches to the region behind `reopen`, each of whose files has a description of its own.
fn attach(
    place: &Place,
    path: &Path,
    reopen: impl Fn() -> Result<File, OpenError>,
    options: &Options,
    warm: bool,
) -> Result<Inner, OpenError> {
    let file = reopen()?;
    let found = inspect(&file, path, Access::Write)?;
    found.check(options, path)?;
    let Inspected { layout, strict, .. } = found;
    let slots = layout.shape.process_slots;
    let slot = (0..slots)
        .find(|slot| fcntl(&file, FcntlArg::F_OFD_SETLK(&byte_lock(offset(layout.process(*slot))))).is_ok())
        .ok_or_else(|| OpenError::ProcessesFull {
            path: path.to_path_buf(),
            slots,
        })?;
    let mapping = Mapping::of(&file, layout.len_max, strict, options, path)?;
    drop(file);
    let (latch, gate) = Latch::of(options.gate);
    if let GateState::Unavailable(why) = &gate {
        gate::say_once(why);
    }
    mapping.protect(latch).map_err(|e| io("lay a protection key on", path, e))?;
    // Attaching is no verb: all of it is inside.
    let _inside = latch.open();
    let probe = reopen()?;
    let durable = is_durable(&probe);
    let identity = resident::identity(&probe).map_err(|e| io("stat", path, e))?;
    let memory = mapping.memory();
    let mapped = memory.addresses();
    let file = if options.sealed { harmless(&probe) } else { Some(probe) }.map(Arc::new);
    let attachment = Attachment {
        probe: file.clone(),
        mapping,
    };
    let mut region = Region::open(memory, Box::new(attachment)).map_err(|why| unusable(path, why))?;
    if options.strict_rehearsed {
        region.at_barrier(wait_100_ns);
    }
    let last_seen_unix_s = i64::try_from(region.superblock().last_seen_unix_s.load(Relaxed)).unwrap_or(0);
    // "In use since this boot" must be on the medium before the first change can be.
    if !region.begin_use(boot_id(), clock::unix_s()) {
        kernel::forget(&region);
        if durable && !region.host().write_back(0..superblock::SIZE) {
            return Err(io("write back", path, std::io::Error::last_os_error()));
        }
    }
    if !options.existing_only {
        raise(&region, options.memory).map_err(|why| OpenError::NotGrown {
            path: path.to_path_buf(),
            why,
        })?;
    }
    check_item_size(options.item_size_max, layout.backed_len(region.segments()))?;
    region
        .host()
        .prepare(&layout.backed(region.segments()), options.huge_pages, options.prefault);
    let process = region.attach(slot, std::process::id(), clock::unix_s());
    restart::after_gap(&region, slot, last_seen_unix_s, options);
    region.recover();
    let limits = Limits {
        item_size_max: options.item_size_max,
        evict: options.evict,
    };
    Ok(Inner {
        crew: Arc::new(Crew::new(
            Arc::new(region),
            Standing::Writer(process),
            limits,
            Home::new(),
            latch,
            whole(place),
        )),
        doorway: kernel::Doorway::default(),
        mapped,
        identity,
        file,
        warm,
        attached_in: Duration::ZERO,
        durable,
        place: whole(place),
        options: options.clone(),
        gate,
        again: OnceLock::new(),
    })
}

/// Attaches to a region that may only be read: there is no lock, no process slot and no session, so nobody need know.
fn attach_to_read(path: &Path, file: File, line: UnixStream, options: &Options) -> Result<Inner, OpenError> {
    if !file.metadata().is_ok_and(|meta| meta.is_file()) {
        return Err(OpenError::NotAFile {
            path: path.to_path_buf(),
        });
    }
    let found = inspect(&file, path, Access::Read)?;
    found.check(options, path)?;
    let mapping = Mapping::to_read(&file, found.layout.len_max).map_err(|e| io("map", path, e))?;
    let memory = mapping.memory();
    let mapped = memory.addresses();
    let peer = Peer::new(&whole_path(path), &file, line).map_err(|e| io("stat", path, e))?;
    let identity = resident::identity(&file).map_err(|e| io("stat", path, e))?;
    let file = if options.sealed { harmless(&file) } else { Some(file) }.map(Arc::new);
    let attachment = Attachment {
        probe: file.clone(),
        mapping,
    };
    let region = Region::open(memory, Box::new(attachment)).map_err(|why| unusable(path, why))?;
    let limits = Limits {
        item_size_max: options.item_size_max,
        evict: options.evict,
    };
    let place = Place::Socket(whole_path(path));
    Ok(Inner {
        crew: Arc::new(Crew::new(
            Arc::new(region),
            Standing::Reader(peer),
            limits,
            Home::new(),
            Latch::NONE,
            place.clone(),
        )),
        doorway: kernel::Doorway::default(),
        mapped,
        identity,
        file,
        warm: true,
        attached_in: Duration::ZERO,
        durable: false,
        place,
        options: options.clone(),
        gate: match options.gate {
            Gate::Off => GateState::Off,
            _ => GateState::Unavailable("this process may only read, and the kernel keeps it so".to_owned()),
        },
        again: OnceLock::new(),
    })
}

/// Opens a file that is open already: another description of the same file, whatever its name is by now.
pub(crate) fn open_anew(file: &File, access: Access) -> std::io::Result<File> {
    let own = format!("/proc/self/fd/{}", file.as_raw_fd());
    File::options().read(true).write(access == Access::Write).open(own)
}

/// The file opened so that the descriptor can neither read nor write, nor be mapped (open(2), access mode 3): it can still be asked for
/// locks and the length. `None`: this user may not open the file by itself.
fn harmless(file: &File) -> Option<File> {
    let own = format!("/proc/self/fd/{}", file.as_raw_fd());
    let flags = OFlag::from_bits_retain(nix::libc::O_ACCMODE) | OFlag::O_CLOEXEC;
    nix::fcntl::open(own.as_str(), flags, nix::sys::stat::Mode::empty())
        .ok()
        .map(File::from)
}

/// The place by a name that stays right when this process changes its directory.
pub(crate) fn whole(place: &Place) -> Place {
    match place {
        Place::Memfd => Place::Memfd,
        Place::Path(path) => Place::Path(whole_path(path)),
        Place::Socket(path) => Place::Socket(whole_path(path)),
    }
}

fn whole_path(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf())
}

/// Gives a region the segments that `memory` bytes have room for; it keeps what it has if that is more.
pub(crate) fn raise(region: &Region, memory: u64) -> Result<(), GrowError> {
    let layout = region.layout();
    region.learn();
    let (old, wanted) = (region.segments(), layout.segments_for(memory));
    let most = layout.backed_len(layout.shape.segments_max) + layout.shape.segment_size as u64;
    if wanted > old && memory > most {
        return Err(GrowError::TooLarge { asked: memory, most });
    }
    region.raise(wanted).map_err(|source| match no_room(&source) {
        true => GrowError::NoSpace {
            has: layout.backed_len(old),
            wanted: memory,
            source,
        },
        false => GrowError::Io { source },
    })
}

/// Whether a file could not be given memory because there is none.
pub(crate) fn no_room(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded | std::io::ErrorKind::OutOfMemory
    )
}

/// Allocates these bytes of a file, which becomes as long as that needs.
pub(crate) fn back(file: &File, range: std::ops::Range<usize>) -> std::io::Result<()> {
    let (offset, len) = (offset(range.start), offset(range.end - range.start));
    let _spread = nodes::Spread::begin();
    loop {
        match fallocate(file, FallocateFlags::empty(), offset, len) {
            Err(nix::errno::Errno::EINTR) => {}
            done => return done.map_err(std::io::Error::from),
        }
    }
}

/// The delay that pmemcached's authors gave each persist barrier (HotStorage 2017).
fn wait_100_ns() {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_nanos(100) {
        std::hint::spin_loop();
    }
}

/// What a file was opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Write,
    Read,
}

/// What a file says of the region in it.
pub(crate) struct Inspected {
    pub layout: Layout,
    pub strict: bool,
    pub checksums: bool,
}

impl Inspected {
    /// Whether it is what was asked for: what a region was not made with it does not have.
    fn check(&self, options: &Options, path: &Path) -> Result<(), OpenError> {
        let path = path.to_path_buf();
        if options.strict && !self.strict {
            Err(OpenError::NotStrict { path })
        } else if options.checksums && !self.checksums {
            Err(OpenError::NotChecksummed { path })
        } else {
            Ok(())
        }
    }
}

/// What the file says of the region in it.
pub(crate) fn inspect(file: &File, path: &Path, access: Access) -> Result<Inspected, OpenError> {
    let len = || file.metadata().map(|meta| usize::try_from(meta.len()).unwrap_or(usize::MAX));
    let now = len().map_err(|e| io("stat", path, e))?;
    if now < superblock::SIZE {
        return Err(unusable(
            path,
            Unusable::Truncated {
                len: now,
                wanted: superblock::SIZE,
            },
        ));
    }
    let mapping = match access {
        Access::Write => Mapping::new(file, superblock::SIZE),
        Access::Read => Mapping::to_read(file, superblock::SIZE),
    };
    let mapping = mapping.map_err(|e| io("map", path, e))?;
    let memory = mapping.memory();
    let (layout, _) = Region::inspect(&memory, || len().unwrap_or(0)).map_err(|why| unusable(path, why))?;
    let sb: &superblock::Superblock = memory.get(0);
    let features = sb.incompatible.load(Relaxed);
    Ok(Inspected {
        layout,
        strict: features & superblock::STRICT != 0,
        checksums: features & superblock::CHECKSUMS != 0,
    })
}

pub(crate) fn unusable(path: &Path, why: Unusable) -> OpenError {
    OpenError::Unusable {
        path: path.to_path_buf(),
        why,
    }
}

/// Whether the file outlives the next boot.
pub(crate) fn is_durable(file: &File) -> bool {
    fstatfs(file).is_ok_and(|fs| fs.filesystem_type() != TMPFS_MAGIC && fs.filesystem_type() != HUGETLBFS_MAGIC)
}

/// The page size of the file's memory: hugetlbfs has its own.
pub(crate) fn page_size(file: &File) -> usize {
    match fstatfs(file) {
        Ok(fs) if fs.filesystem_type() == HUGETLBFS_MAGIC => usize::try_from(fs.block_size()).unwrap_or(4096).max(4096),
        _ => 4096,
    }
}

pub(crate) fn byte_lock(at: i64) -> nix::libc::flock {
    // SAFETY: the structure is plain numbers, for which zeros are valid.
    let mut lock: nix::libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = i16::try_from(nix::libc::F_WRLCK).unwrap_or(0);
    lock.l_whence = i16::try_from(nix::libc::SEEK_SET).unwrap_or(0);
    lock.l_start = at;
    lock.l_len = 1;
    lock
}

pub(crate) fn offset(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// Random words from the kernel.
pub(crate) fn random<const N: usize>(path: &Path) -> Result<[u64; N], OpenError> {
    let mut words = [0; N];
    let mut source = File::open("/dev/urandom").map_err(|e| io("open /dev/urandom for", path, e))?;
    for word in &mut words {
        let mut bytes = [0; 8];
        source
            .read_exact(&mut bytes)
            .map_err(|e| io("read /dev/urandom for", path, e))?;
        *word = u64::from_le_bytes(bytes);
    }
    Ok(words)
}

/// The identity of this boot (`random(4)`, "boot_id"); zeros where there is no /proc, so that every boot looks the same
/// there, and files should not be used.
pub(crate) fn boot_id() -> [u64; 2] {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let half = |r| digits.get(r).and_then(|d| u64::from_str_radix(d, 16).ok()).unwrap_or(0);
    [half(0..16), half(16..32)]
}

/// A mapping, unmapped when dropped.
pub(crate) struct Mapping {
    base: NonNull<nix::libc::c_void>,
    len: usize,
    /// the process that mapped it
    home: Home,
    is_persistent: bool,
    is_read_only: bool,
}

// SAFETY: an address range belongs to the whole process.
unsafe impl Send for Mapping {}
// SAFETY: as above; nothing is accessed through it but by `Memory`.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// For a strict region, or any other. As a rehearsal a strict one lies on ordinary memory, which is taken for persistent.
    pub(crate) fn of(file: &File, len: usize, strict: bool, options: &Options, path: &Path) -> Result<Self, OpenError> {
        if strict && options.strict_rehearsed {
            let mut mapping = Self::new(file, len).map_err(|e| io("map", path, e))?;
            mapping.is_persistent = true;
            return Ok(mapping);
        }
        if !strict {
            return Self::new(file, len).map_err(|e| io("map", path, e));
        }
        // `mmap(2)`: MAP_SYNC fails with EOPNOTSUPP where the processor's write-backs do not reach the medium.
        Self::with(file, len, MapFlags::MAP_SHARED_VALIDATE | MapFlags::MAP_SYNC).map_err(|source| OpenError::StrictImpossible {
            path: path.to_path_buf(),
            source,
        })
    }

    pub(crate) fn new(file: &File, len: usize) -> std::io::Result<Self> {
        Self::with(file, len, MapFlags::MAP_SHARED | MapFlags::MAP_NORESERVE)
    }

    /// For reading only, of a file that is open for reading: the kernel refuses to make such a mapping writable (`mprotect(2)`,
    /// EACCES).
    fn to_read(file: &File, len: usize) -> std::io::Result<Self> {
        Self::protected(
            file,
            len,
            MapFlags::MAP_SHARED | MapFlags::MAP_NORESERVE,
            ProtFlags::PROT_READ,
        )
    }

    fn with(file: &File, len: usize, flags: MapFlags) -> std::io::Result<Self> {
        Self::protected(file, len, flags, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE)
    }

    fn protected(file: &File, len: usize, flags: MapFlags, prot: ProtFlags) -> std::io::Result<Self> {
        let size = NonZeroUsize::new(len).ok_or(std::io::ErrorKind::InvalidInput)?;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let base = unsafe { mmap(None, size, prot, flags, file, 0) }?;
        let is_persistent = flags.contains(MapFlags::MAP_SYNC);
        let mapping = Self {
            base,
            len,
            home: Home::new(),
            is_persistent,
            is_read_only: !prot.contains(ProtFlags::PROT_WRITE),
        };
        // A forked child must not hold the lock nor write as its parent: it has no mapping at all.
        // SAFETY: advice about our own mapping.
        unsafe { madvise(base, len, MmapAdvise::MADV_DONTFORK) }?;
        Ok(mapping)
    }

    /// The mapped bytes; the caller keeps the mapping as long as it uses them.
    pub(crate) fn memory(&self) -> Memory {
        // SAFETY: mapped shared, readable, and writable unless the region is told otherwise, page-aligned; kept by the `Attachment` that the region owns.
        unsafe { Memory::new(self.base.cast(), self.len) }
    }

    /// Makes it inaccessible outside calls.
    pub(crate) fn protect(&self, latch: Latch) -> std::io::Result<()> {
        latch.protect(self.base.cast(), self.len)
    }

    fn advise(&self, offset: usize, len: usize, advice: MmapAdvise) -> nix::Result<()> {
        // SAFETY: within the mapping; the advices used change no contents.
        unsafe { madvise(self.base.byte_add(offset), len, advice) }
    }

    /// How much of the mapping the file backs: what the kernel can fault in (madvise(2), MADV_POPULATE_READ). It does that with the calling
    /// thread's rights, so inside the gate.
    fn backed_len(&self) -> usize {
        let (mut backed, mut beyond) = (0, self.len / PAGE);
        while backed < beyond {
            let middle = backed + (beyond - backed) / 2;
            if self.advise(middle * PAGE, PAGE, MmapAdvise::MADV_POPULATE_READ).is_ok() {
                backed = middle + 1;
            } else {
                beyond = middle;
            }
        }
        backed * PAGE
    }

    fn sync(&self, offset: usize, len: usize) -> bool {
        // SAFETY: within the mapping.
        unsafe { msync(self.base.byte_add(offset), len, MsFlags::MS_SYNC) }.is_ok()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // A forked child does not have it, and may have something else there.
        if !self.home.is_here() {
            return;
        }
        // SAFETY: mapped by `new`, and nobody uses it any more: the region that did is being dropped.
        let _ = unsafe { munmap(self.base, self.len) };
    }
}

/// What keeps a region attached: its mapping, and a descriptor without locks of its own to ask for others'.
pub(crate) struct Attachment {
    /// none in a sealed process that may not open the file
    pub probe: Option<Arc<File>>,
    pub mapping: Mapping,
}

impl Host for Attachment {
    fn is_alive(&self, lock_offset: usize) -> bool {
        let mut lock = byte_lock(offset(lock_offset));
        // Who cannot be asked about is left alone.
        let Some(probe) = &self.probe else { return true };
        let asked = aside(|| fcntl(probe, FcntlArg::F_OFD_GETLK(&mut lock)));
        // Who cannot be asked about is left alone.
        asked.is_err() || i32::from(lock.l_type) != nix::libc::F_UNLCK
    }

    fn prepare(&self, ranges: &[std::ops::Range<usize>], huge_pages: bool, prefault: bool) {
        for range in ranges {
            // The kernel faults pages in with the calling thread's rights, so inside the gate.
            let len = range.end - range.start;
            // Both are wishes: a kernel that cannot grant them serves the region in small pages, faulted in as they are used.
            if huge_pages {
                let _ = self.mapping.advise(range.start, len, MmapAdvise::MADV_HUGEPAGE);
            }
            if prefault {
                let _ = self.mapping.advise(range.start, len, MmapAdvise::MADV_POPULATE_WRITE);
            }
        }
    }

    fn is_persistent(&self) -> bool {
        self.mapping.is_persistent
    }

    fn fence_everywhere(&self) -> bool {
        aside(kernel::fence_everywhere)
    }

    fn is_read_only(&self) -> bool {
        self.mapping.is_read_only
    }

    fn write_back(&self, range: std::ops::Range<usize>) -> bool {
        aside(|| self.mapping.sync(range.start, range.end - range.start))
    }

    fn file_len(&self) -> usize {
        let Some(probe) = &self.probe else {
            return self.mapping.backed_len();
        };
        let len = aside(|| probe.metadata()).map_or(0, |m| m.len());
        usize::try_from(len).unwrap_or(usize::MAX)
    }

    fn back(&self, range: std::ops::Range<usize>) -> std::io::Result<()> {
        let Some(probe) = &self.probe else {
            return Err(std::io::ErrorKind::PermissionDenied.into());
        };
        aside(|| back(probe, range))
    }
}
