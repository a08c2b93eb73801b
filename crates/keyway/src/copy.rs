//! Copying a region that is in use to another place, for warming another host.
//!
//! Item by item, so that each is whole or absent in the copy, while writers go on: what is written or deleted after the
//! copy has passed its bucket is not in it, or still is. The copy gets its name when it is complete and cleanly stopped.

use crate::{Cache, Delete, Get, Options, Place, Session, Store};
use keyway_region::verbs::Item;
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use std::path::{Path, PathBuf};

/// Items read between two reports of progress.
const STEP: usize = 1024;
/// Longest time that an exptime can say as seconds from now (protocol.txt, "Expiration times").
const RELATIVE_MAX_S: u32 = 60 * 60 * 24 * 30;

/// Why a region could not be copied.
#[derive(Debug)]
#[allow(missing_docs, reason = "the fields are what the messages name")]
pub enum CopyError {
    /// there is something already
    Exists { path: PathBuf },
    /// the copy could not be made, or used
    Open(crate::OpenError),
    /// a thread could not attach to one of the two
    Session(crate::SessionError),
    /// the copy could not be given its name
    Rename { path: PathBuf, source: std::io::Error },
    /// it could not be written back
    NotWritten { path: PathBuf },
}

impl std::fmt::Display for CopyError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exists { path } => write!(
                f,
                "{}: is there already; choose another path, or overwrite it with --force",
                path.display()
            ),
            Self::Open(why) => why.fmt(f),
            Self::Session(why) => why.fmt(f),
            Self::Rename { path, source } => write!(f, "{}: cannot give the copy this name: {source}", path.display()),
            Self::NotWritten { path } => write!(f, "{}: the copy could not be written back to the disk", path.display()),
        }
    }
}

impl std::error::Error for CopyError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Open(why) => Some(why),
            Self::Session(why) => Some(why),
            Self::Rename { source, .. } => Some(source),
            Self::Exists { .. } | Self::NotWritten { .. } => None,
        }
    }
}

/// What was copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    /// items in the copy
    pub items: u64,
    /// items for which it had no room
    pub left_out: u64,
}

/// The unfinished copy: removed unless it got its name.
struct Unfinished(PathBuf);

impl Drop for Unfinished {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

pub(crate) fn copy(from: &Cache, to: &Path, force: bool, mut progress: impl FnMut(u8)) -> Result<Copied, CopyError> {
    if !force && to.symlink_metadata().is_ok() {
        return Err(CopyError::Exists { path: to.to_path_buf() });
    }
    let info = from.info();
    let name = to.file_name().unwrap_or_default().to_string_lossy();
    let aside = Unfinished(to.with_file_name(format!(".{name}.{}.copy", std::process::id())));
    let options = Options {
        // A region has whole segments, so it is a little smaller than what was asked for.
        memory: info.limit_bytes + info.segment_bytes,
        item_size_max: info.item_size_max,
        checksums: info.checksums,
        ..Options::default()
    };
    // A copy that was killed may have left one of the same name.
    let _ = std::fs::remove_file(&aside.0);
    let cache = Cache::open(&Place::Path(aside.0.clone()), &options).map_err(CopyError::Open)?;
    let copied = copy_items(from, &cache, info.index_buckets, &mut progress)?;
    let is_written = cache.close();
    if !is_written {
        return Err(CopyError::NotWritten { path: to.to_path_buf() });
    }
    let flags = if force {
        RenameFlags::empty()
    } else {
        RenameFlags::RENAME_NOREPLACE
    };
    renameat2(AT_FDCWD, &aside.0, AT_FDCWD, to, flags).map_err(|e| match e {
        nix::errno::Errno::EEXIST => CopyError::Exists { path: to.to_path_buf() },
        e => CopyError::Rename {
            path: to.to_path_buf(),
            source: e.into(),
        },
    })?;
    progress(100);
    Ok(copied)
}

fn copy_items(from: &Cache, to: &Cache, buckets: u64, progress: &mut impl FnMut(u8)) -> Result<Copied, CopyError> {
    let mut source = from.session().map_err(CopyError::Session)?;
    let mut sink = to.session().map_err(CopyError::Session)?;
    let mut copied = Copied::default();
    let mut cursor = Some(0);
    let mut value = Vec::new();
    while let Some(at) = cursor {
        progress(u8::try_from((at * 100 / buckets.max(1)).min(99)).unwrap_or(99));
        let mut keys = Vec::new();
        cursor = source.walk(at, STEP, |key, _| keys.push(key.to_vec()));
        for key in keys {
            value.clear();
            let how = Get {
                value: true,
                details: true,
                no_bump: true,
                ..Get::default()
            };
            // Gone since the walk saw it: not copied.
            if let Ok(Some(item)) = source.get_with(&key, &how, &mut value, |_, _| {}) {
                if put(&mut sink, &key, &value, &item) {
                    copied.items += 1;
                } else {
                    copied.left_out += 1;
                }
            }
        }
    }
    Ok(copied)
}

/// Stores an item as it was: value, client flags, expiry, CAS unique, and whether it was stale.
fn put(sink: &mut Session, key: &[u8], value: &[u8], item: &Item) -> bool {
    let exptime = match item.ttl_s {
        None => 0,
        Some(ttl) if ttl <= RELATIVE_MAX_S => i64::from(ttl),
        Some(ttl) => sink.now_unix_s() + i64::from(ttl),
    };
    if item.ttl_s == Some(0) {
        return true;
    }
    let how = Store {
        flags: item.flags,
        exptime,
        new_cas: Some(item.cas),
        binary_key: item.binary_key,
        ..Store::default()
    };
    let stored = sink.store(key, value, &how).is_ok();
    if stored && item.stale {
        let how = Delete {
            invalidate: true,
            new_cas: Some(item.cas),
            uncounted: true,
            ..Delete::default()
        };
        let _ = sink.delete(key, &how);
    }
    stored
}
