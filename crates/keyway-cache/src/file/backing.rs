//! The memory of a region's file: bytes of it are allocated, and given back to the system.

use crate::file::{limits, nodes, pages};
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::statfs::{FsType, HUGETLBFS_MAGIC, TMPFS_MAGIC, fstatfs};
use std::fs::File;

/// An offset as the kernel takes it.
pub(crate) fn offset(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// Allocates these bytes of a file, and makes the file as long as necessary, unless a limit forbids it (`Limit::of` the
/// error).
pub(crate) fn back(file: &File, range: std::ops::Range<usize>) -> std::io::Result<()> {
    limits::file_size(range.end as u64)?;
    limits::memory(file, (range.end - range.start) as u64)?;
    allocate(file, range)
}

/// Gives the memory of these bytes of a file back to the system. In a file system in memory they are zeros from then on. On a disk the file
/// keeps its blocks, as a hole beside a block that is in use is what [`allocate`] prevents; the kernel takes their pages when it needs memory.
pub(crate) fn give_back(file: &File, range: std::ops::Range<usize>) -> std::io::Result<()> {
    if is_on_disk(file) {
        return Ok(());
    }
    let (offset, len) = (offset(range.start), offset(range.end - range.start));
    let hole = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    loop {
        match fallocate(file, hole, offset, len) {
            Err(Errno::EINTR) => {}
            done => return done.map_err(std::io::Error::from),
        }
    }
}

/// Bytes that the kernel may write at a time where a program writes one: a large folio of the page cache (Linux, `include/linux/pagemap.h`,
/// `MAX_PAGECACHE_ORDER`).
const FOLIO: usize = 2 << 20;

/// The largest folios that have these bytes.
pub(crate) fn folios(bytes: &std::ops::Range<usize>) -> std::ops::Range<usize> {
    bytes.start / FOLIO * FOLIO..bytes.end.next_multiple_of(FOLIO)
}

/// Allocates these bytes of a file, whatever the limits are. On a disk also those that may be in a folio with them: a write to the mapping
/// needs blocks for the whole folio, and on a full disk a hole in it ends the process with SIGBUS.
pub(crate) fn allocate(file: &File, range: std::ops::Range<usize>) -> std::io::Result<()> {
    let _spread = nodes::Spread::begin();
    let take = |range, flags| {
        by_parts(range, page_size(file), |part| {
            fallocate(file, flags, offset(part.start), offset(part.end - part.start))
        })
    };
    if is_on_disk(file) {
        // Without making the file longer.
        take(folios(&range), FallocateFlags::FALLOC_FL_KEEP_SIZE)?;
    }
    take(range, FallocateFlags::empty())
}

/// Allocates all of it at once. If a signal interrupts that, nothing was allocated (fallocate(2); a tmpfs before Linux 6.12 stops at any
/// signal): then smaller and smaller parts are, because a program with an interval timer might never get to the end of a large one.
fn by_parts(
    range: std::ops::Range<usize>,
    page: usize,
    mut allocate: impl FnMut(std::ops::Range<usize>) -> nix::Result<()>,
) -> std::io::Result<()> {
    let (mut at, mut most) = (range.start, range.end - range.start);
    while at < range.end {
        let end = at.saturating_add(most).min(range.end);
        match allocate(at..end) {
            Ok(()) => at = end,
            Err(Errno::EINTR) => most = (most / 2).next_multiple_of(page),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Whether the file survives the next boot, as far as is known: not if it is certainly in memory.
pub(crate) fn is_on_disk(file: &File) -> bool {
    lasts(fstatfs(file).map(|fs| fs.filesystem_type()).ok())
}

/// Whether files on a file system of this type do. `None`: the kernel does not say.
fn lasts(kind: Option<FsType>) -> bool {
    kind.is_none_or(|kind| ![TMPFS_MAGIC, HUGETLBFS_MAGIC].contains(&kind))
}

/// Bytes of a page of the file's memory.
pub(crate) fn page_size(file: &File) -> usize {
    huge_page_size(file).unwrap_or(0).max(pages::page_size())
}

/// Bytes of a page, if the file is on hugetlbfs, which has pages of its own.
pub(crate) fn huge_page_size(file: &File) -> Option<usize> {
    let fs = fstatfs(file).ok().filter(|fs| fs.filesystem_type() == HUGETLBFS_MAGIC)?;
    usize::try_from(fs.block_size()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::statfs::EXT4_SUPER_MAGIC;

    #[test]
    fn only_what_is_certainly_in_memory_does_not_last() {
        let kinds = [None, Some(EXT4_SUPER_MAGIC), Some(TMPFS_MAGIC), Some(HUGETLBFS_MAGIC)];
        assert_eq!(kinds.map(lasts), [true, true, false, false]);
    }

    #[test]
    fn signals_that_come_more_often_than_an_allocation_takes_do_not_keep_it_from_its_end() {
        const PAGE: usize = 4096;
        for (first, len) in [(0, PAGE), (3 * PAGE, 1000 * PAGE), (PAGE, 777 * PAGE)] {
            for most in [PAGE, 7 * PAGE, 2000 * PAGE] {
                let (mut next, mut interrupted) = (first, 0);
                let done = by_parts(first..first + len, PAGE, |part| {
                    assert!(part.start == next && part.end <= first + len && part.start.is_multiple_of(PAGE));
                    if part.len() > most {
                        interrupted += 1;
                        return Err(Errno::EINTR);
                    }
                    next = part.end;
                    Ok(())
                });
                assert!(
                    done.is_ok() && next == first + len && interrupted <= 10,
                    "{len}, {most}: {interrupted}"
                );
            }
        }
        let full = by_parts(0..PAGE, PAGE, |_| Err(Errno::ENOSPC));
        assert_eq!(full.map_err(|error| error.kind()), Err(std::io::ErrorKind::StorageFull));
        assert!(by_parts(0..0, PAGE, |_| Err(Errno::ENOSPC)).is_ok());
    }
}
