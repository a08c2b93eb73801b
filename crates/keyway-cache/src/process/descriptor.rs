//! Descriptors that this library keeps in a program that is not its own: of files and of sockets.
//!
//! A program may close any descriptor, close one twice, close all of them (`closefrom(3)`, `daemon(3)`), or be started
//! without standard streams. So a descriptor is kept under a high number, never under 0, 1 or 2. Before each use the
//! kernel is asked which file or socket the number refers to now. If it is another one, it is neither used nor closed.
//!
//! # Safety
//!
//! The only `unsafe` here takes ownership of a descriptor that the kernel has just made, and gives up one that this
//! process still owns.
#![allow(unsafe_code, reason = "ownership of descriptors; contract above")]

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::stat::fstat;
use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

/// Numbers that programs use themselves, if they use few. Numbers above those that `select(2)` supports would need a
/// larger table.
const NUMBERS_OF_PROGRAMS: u64 = 768;
/// Descriptors below this are a program's standard streams.
const STREAMS: i32 = 3;

/// Device and inode: they identify a file, whatever its name is now. Every socket has an inode of its own.
pub(crate) type FileId = (u64, u64);

/// The file or socket that this descriptor refers to.
pub(crate) fn file_id(file: impl AsFd) -> std::io::Result<FileId> {
    Ok(fstat(file).map(|stat| (stat.st_dev, stat.st_ino))?)
}

/// A descriptor of one file or socket, for as long as no other code of the process closes it.
pub(crate) struct Kept<T: AsFd = File> {
    file: ManuallyDrop<T>,
    id: FileId,
    access: i32,
}

impl<T: AsFd + From<OwnedFd>> Kept<T> {
    /// Moves a descriptor to a high number.
    ///
    /// # Errors
    ///
    /// There is no descriptor left.
    pub(crate) fn new(file: T) -> std::io::Result<Self> {
        let id = file_id(&file)?;
        let access = access(&file).unwrap_or(0);
        Ok(Self {
            file: ManuallyDrop::new(moved_up(file)?),
            id,
            access,
        })
    }
}

impl<T: AsFd> Kept<T> {
    /// The file, if the number still refers to it.
    pub(crate) fn get(&self) -> Option<&T> {
        self.is_there().then_some(&*self.file)
    }

    /// Whether it can neither read nor write.
    pub(crate) fn is_harmless(&self) -> bool {
        self.access == nix::libc::O_ACCMODE
    }

    fn is_there(&self) -> bool {
        file_id(&*self.file).is_ok_and(|id| id == self.id) && access(&*self.file) == Some(self.access)
    }
}

impl<T: AsFd> Drop for Kept<T> {
    fn drop(&mut self) {
        if self.is_there() {
            // SAFETY: owned by this value, dropped once, and not used after this.
            unsafe {
                ManuallyDrop::drop(&mut self.file);
            }
        }
    }
}

#[cfg(test)]
impl Kept<OwnedFd> {
    /// What a program does that closes descriptors of others, and opens its own: the number is the other file's from now on.
    pub(crate) fn overrun(&mut self, other: impl AsFd) {
        nix::unistd::dup2(other, &mut self.file).unwrap();
    }
}

/// How a descriptor may be used (`fcntl(2)`, F_GETFL): reading, writing, both, or neither.
fn access(file: impl AsFd) -> Option<i32> {
    fcntl(file, FcntlArg::F_GETFL)
        .ok()
        .map(|flags| flags & (nix::libc::O_ACCMODE | nix::libc::O_PATH))
}

/// Duplicates a descriptor to a number that programs do not reach, or at least above the standard streams; both have one file
/// description.
fn moved_up<T: AsFd + From<OwnedFd>>(file: T) -> std::io::Result<T> {
    let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let high = i32::try_from(soft.saturating_mul(3) / 4).unwrap_or(i32::MAX);
    let high = high.min(i32::try_from(NUMBERS_OF_PROGRAMS).unwrap_or(i32::MAX));
    for least in [high, STREAMS] {
        if let Ok(number) = fcntl(&file, FcntlArg::F_DUPFD_CLOEXEC(least.max(STREAMS))) {
            // SAFETY: made by the kernel just now, and owned by no other value.
            return Ok(unsafe { OwnedFd::from_raw_fd(number) }.into());
        }
    }
    Ok(file)
}

/// Keeps 0, 1 and 2 in use as long as it lives: what is opened meanwhile does not become a standard stream, to which any
/// `printf` writes.
pub(crate) struct StreamsTaken(#[allow(dead_code, reason = "held, not used")] Vec<OwnedFd>);

impl StreamsTaken {
    pub(crate) fn new() -> Self {
        let mut taken = Vec::new();
        while let Ok(event) = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK) {
            let event = OwnedFd::from(event);
            if event.as_raw_fd() >= STREAMS {
                break;
            }
            taken.push(event);
        }
        Self(taken)
    }
}

/// Flags to open a file so that the descriptor can neither read nor write, nor be mapped (open(2), access mode 3): it can
/// still be used to query locks and the length. If a file system does not support that mode: for reading.
pub(crate) fn harmless_flags() -> [OFlag; 2] {
    [
        OFlag::from_bits_retain(nix::libc::O_ACCMODE) | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK,
        OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn file(name: &str) -> (std::path::PathBuf, File) {
        let path = std::env::temp_dir().join(format!("keyway-descriptor-{}-{name}", std::process::id()));
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path)
            .unwrap();
        (path, file)
    }

    #[test]
    fn a_number_that_became_another_files_is_neither_used_nor_closed() {
        let ((path, mine), (other_path, other)) = (file("mine"), file("other"));
        let mut kept = Kept::new(OwnedFd::from(mine)).unwrap();
        assert!(kept.get().is_some());
        let number = kept.file.as_raw_fd();
        assert!(number >= STREAMS);
        kept.overrun(&other);
        assert!(kept.get().is_none());
        drop(kept);
        // SAFETY: the number refers to the other file, which the test owns.
        let mut again = unsafe { File::from_raw_fd(number) };
        again.write_all(b"still open").unwrap();
        assert_eq!(std::fs::read(&other_path).unwrap(), b"still open");
        std::fs::remove_file(path).unwrap();
        std::fs::remove_file(other_path).unwrap();
    }
}
