//! The blocks of a region's file on a disk: they are its own, and are written in place.
//!
//! A region is allocated in full when it is made, so that no later write needs space. On a file system that copies on write that is
//! not enough: a write to a page of the mapping needs a new block, and if there is none, the kernel ends the process with SIGBUS.
//!
//! - btrfs copies on write, except for files with the attribute NOCOW, which an empty file can get (`chattr +C`). A region's file gets it
//!   before its first byte.
//! - A block that a file shares with a copy of the file (`cp` on XFS and btrfs, `cp --reflink`, a snapshot) is copied at the first write,
//!   on any such file system. Shared blocks are made the file's own (fallocate(2), FALLOC_FL_UNSHARE_RANGE) when a process attaches, and by
//!   the upkeep of those that are attached.
//! - A copy has a hole where the region has blocks that were never written, on any file system, those in memory included. They are
//!   allocated when a process attaches.
//!
//! If that is not possible, the region is not used.
//!
//! # Safety
//!
//! The `unsafe` here is ioctl(2) on an open file, with a number or a structure that the kernel reads and writes during the call.
#![allow(unsafe_code, reason = "ioctl(2); contract above")]

use crate::file::backing::{allocate, back, folios, is_on_disk, offset};
use crate::file::limits;
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::libc;
use nix::sys::statfs::{BTRFS_SUPER_MAGIC, fstatfs};
use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;

/// linux/fs.h: FS_IOC_GETFLAGS and FS_IOC_SETFLAGS (with the size of a `long`), FS_IOC_FIEMAP, FS_NOCOW_FL.
const GETFLAGS: libc::c_ulong = 0x8008_6601;
const SETFLAGS: libc::c_ulong = 0x4008_6602;
const FIEMAP: libc::c_ulong = 0xC020_660B;
const NOCOW: libc::c_long = 0x0080_0000;

/// Extents that are asked for at a time.
const EXTENTS: usize = 64;

/// linux/fiemap.h, `struct fiemap` with its extents.
#[repr(C)]
struct Extents {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    reserved: u32,
    extents: [Extent; EXTENTS],
}

/// linux/fiemap.h, `struct fiemap_extent`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Extent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved: [u64; 2],
    flags: u32,
    reserved_words: [u32; 3],
}

const _: () = assert!(size_of::<Extent>() == 56 && std::mem::offset_of!(Extents, extents) == 32);

/// FIEMAP_EXTENT_LAST and FIEMAP_EXTENT_SHARED.
const LAST: u32 = 1;
const SHARED: u32 = 0x2000;

/// Why a region's file cannot be used where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are what the messages name")]
#[non_exhaustive]
pub enum CopiesOnWrite {
    /// all of it: it is on btrfs without the attribute NOCOW
    All,
    /// these bytes, which it shares with a copy of it or a snapshot
    Shared { bytes: u64, why: String },
    /// these bytes, which have no blocks: the file is a copy
    Holes { bytes: u64, why: String },
}

impl std::fmt::Display for CopiesOnWrite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::All => f.write_str(
                "btrfs copies this file on write, so its users would be ended (SIGBUS) if the disk was full; only an empty file can change that: \
                 remove it, or stop its users, and copy it with `cp --reflink=never` into a folder with `chattr +C`",
            ),
            Self::Shared { bytes, why } => write!(
                f,
                "{bytes} bytes of this file are shared with a copy of it (cp, a snapshot), so its users would be ended (SIGBUS) if the disk was \
                 full, and they cannot be made its own: {why}; give the disk as much space, or remove that copy, or put the region in /dev/shm"
            ),
            Self::Holes { bytes, why } => write!(
                f,
                "{bytes} bytes of this file have no blocks (a copy made with cp has holes), so its users would be ended (SIGBUS) if the disk was \
                 full, and they cannot be allocated: {why}; give the disk as much space, or remove the file: a new region is empty"
            ),
        }
    }
}

/// Has an empty file written in place from now on, if its file system can do that.
pub(crate) fn write_in_place(file: &File) {
    if is_on_btrfs(file)
        && let Some(flags) = flags(file)
    {
        let flags = flags | NOCOW;
        // SAFETY: an open file, and a number that the kernel reads. It may refuse; then [`claim`] says so.
        unsafe { libc::ioctl(file.as_raw_fd(), SETFLAGS, &raw const flags) };
    }
}

/// Makes sure that all blocks of a file, which is open for writing, are its own and are written in place.
pub(crate) fn claim(file: &File) -> Result<(), CopiesOnWrite> {
    if is_on_btrfs(file) && flags(file).is_some_and(|flags| flags & NOCOW == 0) {
        return Err(CopiesOnWrite::All);
    }
    let shared = shared(file);
    let Some(why) = shared.iter().find_map(|range| unshare(file, range).err()) else {
        return Ok(());
    };
    match self::shared(file).iter().map(|range| range.end - range.start).sum() {
        0 => Ok(()),
        bytes => Err(CopiesOnWrite::Shared {
            bytes,
            why: std::io::Error::from(why).to_string(),
        }),
    }
}

/// The parts of a file whose blocks it shares with other files. Empty, if its file system does not say.
pub(crate) fn shared(file: &File) -> Vec<Range<u64>> {
    let extents = extents(file).unwrap_or_default();
    let shared = extents.iter().filter(|extent| extent.flags & SHARED != 0);
    shared.map(Extent::range).collect()
}

/// Allocates what these parts of a file lack. In a region that was made here they lack nothing.
pub(crate) fn fill(file: &File, parts: &[Range<usize>]) -> Result<(), CopiesOnWrite> {
    let refused = |bytes: usize, why: std::io::Error| CopiesOnWrite::Holes {
        bytes: bytes as u64,
        why: why.to_string(),
    };
    if let Some(extents) = extents(file) {
        let len = file
            .metadata()
            .map_or(usize::MAX, |meta| usize::try_from(meta.len()).unwrap_or(usize::MAX));
        let holes = lacking(parts, len, &extents);
        let bytes = holes.iter().map(Range::len).sum();
        return holes
            .into_iter()
            .try_for_each(|hole| back(file, hole))
            .map_err(|why| refused(bytes, why));
    }
    // In memory nothing else counts as blocks (st_blocks, in units of 512 bytes).
    let has = file.metadata().map_or(u64::MAX, |meta| meta.blocks().saturating_mul(512));
    let bytes = parts.iter().map(Range::len).sum::<usize>();
    let lacks = bytes.saturating_sub(usize::try_from(has).unwrap_or(usize::MAX));
    if lacks == 0 {
        return Ok(());
    }
    limits::memory(file, lacks as u64)
        .and_then(|()| parts.iter().try_for_each(|part| allocate(file, part.clone())))
        .map_err(|why| refused(lacks, why))
}

/// What these parts, which are in the order of the file, lack in a file of this length; each byte once. Holes beside them count if a folio may
/// have both.
fn lacking(parts: &[Range<usize>], len: usize, extents: &[Extent]) -> Vec<Range<usize>> {
    let mut from = 0;
    let mut found = Vec::new();
    for reached in parts.iter().map(folios) {
        let end = reached.end.min(len);
        found.extend(holes(&(reached.start.max(from)..end), extents));
        from = from.max(end);
    }
    found
}

/// What is left of a part between the extents, which are in the order of the file.
fn holes(part: &Range<usize>, extents: &[Extent]) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut at = part.start;
    let bytes = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
    for extent in extents.iter().map(Extent::range) {
        let end = bytes(extent.start).min(part.end);
        if at < end {
            found.push(at..end);
        }
        at = at.max(bytes(extent.end));
    }
    if at < part.end {
        found.push(at..part.end);
    }
    found
}

impl Extent {
    fn range(&self) -> Range<u64> {
        self.logical..self.logical.saturating_add(self.length)
    }
}

/// The extents of a file on a disk, in its order. `None`: its file system does not say.
fn extents(file: &File) -> Option<Vec<Extent>> {
    if !is_on_disk(file) {
        return None;
    }
    let mut found: Vec<Extent> = Vec::new();
    let mut start = 0;
    loop {
        let mut asked = Extents {
            start,
            length: u64::MAX - start,
            flags: 0,
            mapped: 0,
            count: u32::try_from(EXTENTS).unwrap_or(0),
            reserved: 0,
            extents: [Extent::default(); EXTENTS],
        };
        // SAFETY: an open file, and a structure with room for as many extents as it says.
        if unsafe { libc::ioctl(file.as_raw_fd(), FIEMAP, &raw mut asked) } != 0 {
            return None;
        }
        let mapped = usize::try_from(asked.mapped).unwrap_or(0);
        let extents = asked.extents.get(..mapped).unwrap_or_default();
        found.extend(extents);
        match extents.last() {
            Some(last) if last.flags & LAST == 0 && last.range().end > start => start = last.range().end,
            _ => return Some(found),
        }
    }
}

fn unshare(file: &File, range: &Range<u64>) -> Result<(), Errno> {
    let number = |n: u64| usize::try_from(n).map_or(i64::MAX, offset);
    loop {
        let flags = FallocateFlags::FALLOC_FL_UNSHARE_RANGE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        match fallocate(file, flags, number(range.start), number(range.end - range.start)) {
            Err(Errno::EINTR) => {}
            done => return done,
        }
    }
}

fn is_on_btrfs(file: &File) -> bool {
    fstatfs(file).is_ok_and(|fs| fs.filesystem_type() == BTRFS_SUPER_MAGIC)
}

/// The file's attributes (ioctl_iflags(2)). `None`: they cannot be asked.
fn flags(file: &File) -> Option<libc::c_long> {
    let mut flags: libc::c_long = 0;
    // SAFETY: an open file, and a place for the answer.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), GETFLAGS, &raw mut flags) };
    (done == 0).then_some(flags)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hole_in_a_folio_with_what_is_used_is_lacking_once_and_not_beyond_the_end() {
        const MIB: usize = 1 << 20;
        let blocks = Extent {
            length: 1 << 19,
            ..Extent::default()
        };
        let half = MIB / 2;
        let lacking = |parts: &[Range<usize>], len| lacking(parts, len, &[blocks]);
        let (one, halves) = (0..half, [0..half / 2, half / 2..half]);
        let one = std::slice::from_ref(&one);
        assert_eq!(lacking(one, 8 * MIB), lacking(&halves, 8 * MIB));
        assert_eq!(lacking(one, half), []);
        let apart = lacking(&[0..half, 5 * MIB..6 * MIB], 5 * MIB + half);
        assert_eq!(apart, [half..2 * MIB, 4 * MIB..5 * MIB + half]);
    }
}
