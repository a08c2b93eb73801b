//! A region's file before it is attached: opening it, and what it says about the region in it.
//!
//! Never: locks or changes the file.

use crate::error::OpenError;
use crate::error::io;
use crate::error::unusable;
use crate::file::backing::huge_page_size;
use crate::file::liveness::Attachment;
use crate::file::liveness::Liveness;
use crate::file::liveness::open_harmless;
use crate::file::mapping;
use crate::file::mapping::Mapping;
use crate::file::trust;
use crate::file::trust::Source;
use crate::options::Options;
use crate::process::descriptor::file_id;
use keyway_region::layout::plan::Layout;
use keyway_region::layout::superblock;
use keyway_region::{Limits, Region, Unusable};
use nix::fcntl::OFlag;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

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
    pub(crate) fn check(&self, options: &Options, path: &Path) -> Result<(), OpenError> {
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
pub(crate) fn described_twice(file: File, path: Option<&Path>) -> std::io::Result<(File, File)> {
    let probe = open_harmless(file_id(&file)?, Some(file.as_raw_fd()), path)?;
    Ok((file, probe))
}

/// What the file says about the region in it.
pub(crate) fn inspect(file: &File, path: &Path) -> Result<Inspected, OpenError> {
    let len = || file.metadata().map(|meta| usize::try_from(meta.len()).unwrap_or(usize::MAX));
    if is_unfinished(file).map_err(|e| io("read", path, e))? {
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

/// How far a file is from being a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// it has a region's magic number
    Complete,
    /// it is empty, or has the unfinished mark
    Unfinished,
    /// it is something else
    Foreign,
}

/// Whether a region is being made in this file, or was when its maker died.
fn is_unfinished(file: &File) -> std::io::Result<bool> {
    Ok(stage(file)? == Stage::Unfinished)
}

/// How far this file is.
pub(crate) fn stage(file: &File) -> std::io::Result<Stage> {
    let mut magic = [0; 8];
    let mut at = 0;
    while let Some(rest) = magic.get_mut(at..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, at as u64) {
            Ok(0) => break,
            Ok(n) => at += n,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(match u64::from_le_bytes(magic) {
        superblock::MAGIC => Stage::Complete,
        superblock::MAGIC_UNFINISHED => Stage::Unfinished,
        // Hugetlbfs has no write(2), so the file cannot begin with the mark: there the mark comes after the length.
        0 if at == 0 || huge_page_size(file).is_some() => Stage::Unfinished,
        _ => Stage::Foreign,
    })
}

/// Maps a region's file to read it: the region, what says who lives, and where it is mapped.
pub(crate) fn map_to_read(
    file: File,
    path: &Path,
    found: &Inspected,
    sealed: bool,
) -> Result<(Region, Arc<Liveness>, std::ops::Range<usize>), OpenError> {
    let len = found.layout.len_max;
    let mapping = Mapping::to_read(&file, len).map_err(|e| mapping::refused(e, len, path))?;
    let mapped = mapping.memory().addresses();
    let id = file_id(&file).map_err(|e| io("stat", path, e))?;
    let probe = open_harmless(id, Some(file.as_raw_fd()), None).unwrap_or(file);
    let attachment = Attachment::new(mapping, id, Some(probe), None, sealed);
    let (region, liveness) = attachment.map_err(|e| io("keep a descriptor of", path, e))?.open(path)?;
    liveness.seal();
    Ok((region, liveness, mapped))
}
