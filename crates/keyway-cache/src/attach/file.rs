//! A region's file before it is attached: opening it, and what it says about the region in it.
//!
//! Never: locks or changes the file.

use crate::blocks::CopiesOnWrite;
use crate::creation;
use crate::descriptor::file_id;
use crate::error::OpenError;
use crate::liveness::open_harmless;
use crate::mapping::Mapping;
use crate::trust::Source;
use crate::{Options, trust};
use keyway_region::layout::plan::Layout;
use keyway_region::layout::superblock;
use keyway_region::{Limits, Region, Unusable};
use nix::fcntl::OFlag;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;

/// How a file was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Write,
    Read,
}

/// What a file says about the region in it.
pub(crate) struct Inspected {
    pub layout: Layout,
    pub durable: bool,
    pub checksums: bool,
    /// what it allows
    pub limits: Limits,
    /// memory in use, bytes
    pub memory: u64,
}

impl Inspected {
    /// Checks that the region has what was requested: a region lacks what it was not made with.
    pub(super) fn check(&self, options: &Options, path: &Path) -> Result<(), OpenError> {
        let path = path.to_path_buf();
        if options.durable && !self.durable {
            Err(OpenError::NotDurable { path })
        } else if options.checksums && !self.checksums {
            Err(OpenError::NotChecksummed { path })
        } else {
            Ok(())
        }
    }
}

/// Opens a region's file for reading and writing, with a file description of its own.
pub(crate) fn open_file(path: &Path, options: &Options) -> Result<File, OpenError> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let opened = File::options().read(true).write(true).custom_flags(flags.bits()).open(path);
    let file = match opened {
        Ok(file) => file,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            return Err(OpenError::Absent {
                path: path.to_path_buf(),
                there: Vec::new(),
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
    trust::check(&file, Source::Path, path, options)?;
    Ok(file)
}

/// Whether this process is hardened as `keyway exec` does it: other processes cannot inspect it, and it cannot gain
/// rights.
fn is_hardened() -> bool {
    use nix::sys::prctl::{get_dumpable, get_no_new_privs};
    matches!((get_dumpable(), get_no_new_privs()), (Ok(false), Ok(true)))
}

/// The file with a second file description of it, which can neither read nor write.
pub(super) fn described_twice(file: File, path: Option<&Path>) -> std::io::Result<(File, File)> {
    let probe = open_harmless(file_id(&file)?, Some(file.as_raw_fd()), path)?;
    Ok((file, probe))
}

/// What the file says about the region in it.
pub(crate) fn inspect(file: &File, path: &Path) -> Result<Inspected, OpenError> {
    let len = || file.metadata().map(|meta| usize::try_from(meta.len()).unwrap_or(usize::MAX));
    if creation::is_unfinished(file).map_err(|e| io("read", path, e))? {
        return Err(unusable(path, Unusable::Unfinished));
    }
    let now = len().map_err(|e| io("stat", path, e))?;
    if now < superblock::SIZE {
        let mut begin = [0; size_of::<u64>()];
        let is_begun =
            now >= begin.len() && file.read_exact_at(&mut begin, 0).is_ok() && u64::from_ne_bytes(begin) == superblock::MAGIC;
        return Err(unusable(
            path,
            match is_begun {
                true => Unusable::Truncated {
                    len: now,
                    wanted: superblock::SIZE,
                },
                false => Unusable::NotARegion,
            },
        ));
    }
    // From a copy: a dead maker may have left the file, and another process may be emptying it.
    let mapping = Mapping::copied(file, superblock::SIZE).map_err(|e| io("read", path, e))?;
    let memory = mapping.memory();
    let (layout, _) = Region::inspect(&memory, || len().unwrap_or(0)).map_err(|why| unusable(path, why))?;
    let sb: &superblock::Superblock = memory.get(0);
    let features = sb.incompatible.load(Relaxed);
    let segments = usize::try_from(sb.segments.load(Relaxed)).unwrap_or(usize::MAX);
    Ok(Inspected {
        memory: layout.backed_len(segments.min(layout.shape.segments_max)),
        layout,
        durable: features & superblock::DURABLE != 0,
        checksums: features & superblock::CHECKSUMS != 0,
        limits: Limits::of(sb),
    })
}

pub(crate) fn io(what: &'static str, path: &Path, source: std::io::Error) -> OpenError {
    OpenError::Io {
        what,
        path: path.to_path_buf(),
        source,
    }
}

pub(crate) fn unusable(path: &Path, why: Unusable) -> OpenError {
    OpenError::Unusable {
        path: path.to_path_buf(),
        why,
    }
}

pub(crate) fn copies(path: &Path, why: CopiesOnWrite) -> OpenError {
    OpenError::CopiesOnWrite {
        path: path.to_path_buf(),
        why,
    }
}
