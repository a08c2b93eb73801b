//! Whether a file may be used as a region. The check uses the file's descriptor, because a name can lead to another file
//! a moment later.
//!
//! In a folder where every user may make files, such as /dev/shm, another user can prepare the place where a program
//! looks for its region: with a file of theirs, or with another name of a file of ours (a hard link).

use crate::error::OpenError;
use crate::error::io;
use crate::options::{Options, Owners};
use nix::unistd::geteuid;
use std::fs::File;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

/// How a program got a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// it opened a path
    Path,
    /// a server handed it out
    Server,
}

/// The mode bit that lets users write other than the owner and the members of the file's group.
const OTHERS_WRITE: u32 = 0o002;
const ROOT: u32 = 0;

/// Checks an open file before anything of it is read or mapped.
///
/// # Errors
///
/// It is not a regular file, has several names, or belongs to a user whose regions were not requested.
pub(crate) fn check(file: &File, source: Source, path: &Path, options: &Options) -> Result<(), OpenError> {
    let meta = file.metadata().map_err(|e| io("stat", path, e))?;
    let path = path.to_path_buf();
    if !meta.is_file() {
        return Err(OpenError::NotAFile { path });
    }
    if options.owners == Owners::Any {
        return Ok(());
    }
    // Anonymous memory has no name.
    if meta.nlink() > 1 {
        return Err(OpenError::Linked {
            path,
            names: meta.nlink(),
        });
    }
    let (owner, user) = (meta.uid(), geteuid().as_raw());
    let is_trusted = match (&options.owners, source) {
        (Owners::AsNamed, Source::Path) => owner == user,
        (Owners::Only(others), _) => owner == user || owner == ROOT || others.contains(&owner),
        (Owners::AsNamed, Source::Server) | (Owners::Any, _) => true,
    };
    if !is_trusted {
        return Err(OpenError::AnotherUsers { path, owner, user });
    }
    let mode = meta.permissions().mode();
    let is_open_to_all = mode & OTHERS_WRITE & !options.mode != 0;
    if is_open_to_all && source == Source::Path {
        return Err(OpenError::WritableByAll {
            path,
            mode: mode & 0o7777,
        });
    }
    Ok(())
}
