//! Copying a region that is in use to another place, for example to warm another host.
//!
//! Items are copied one by one, so each is whole or absent in the copy, while writers continue. An item that is written or
//! deleted after the copy has passed its bucket is missing in the copy, or is still in it. The copy gets its name when it is
//! complete and cleanly stopped.
//!
//! Until then it is beside its place under a name that no other process can know before the file exists (`.NAME.` and 32 random
//! hexadecimal digits, `.copy`), and a byte of it is locked. A file of that kind without a lock was left by a copy that was
//! killed: [`remove_leftovers`] removes it.

use super::Cache;
use crate::error::{OpenError, SessionError};
use crate::file::creation::held_bytes;
use crate::file::limits::Mib;
use crate::file::unfinished::Unfinished;
use crate::file::unfinished::remove_leftovers;
use crate::options::Options;
use crate::place::Place;
use crate::process::descriptor::StreamsTaken;
use crate::session::Session;
use keyway_region::verbs::{Delete, Get, Item, Store};
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use std::path::{Path, PathBuf};

/// Items read between two reports of progress.
const STEP: usize = 256;
/// Longest time that an exptime can express as seconds from now (protocol.txt, "Expiration times").
const RELATIVE_MAX_S: u32 = 60 * 60 * 24 * 30;
/// Why a region could not be copied.
#[derive(Debug)]
#[allow(missing_docs, reason = "the fields are what the messages name")]
#[non_exhaustive]
pub enum CopyError {
    /// a file exists already
    Exists { path: PathBuf },
    /// the copy could not be made, or used
    Open(OpenError),
    /// there is no room for the copy
    NoSpace {
        path: PathBuf,
        wanted: u64,
        source: std::io::Error,
    },
    /// a thread could not attach to one of the two
    Session(SessionError),
    /// the copy could not be given its name, or no file can be made beside it
    Rename { path: PathBuf, source: std::io::Error },
    /// the copy could not be written back
    NotWritten { path: PathBuf },
    /// the copying was interrupted
    Interrupted { path: PathBuf },
}

impl std::fmt::Display for CopyError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exists { path } => write!(
                f,
                "{}: exists already; choose another path, or overwrite it with --force",
                path.display()
            ),
            Self::Open(why) => why.fmt(f),
            Self::NoSpace { path, wanted, source } => write!(
                f,
                "{}: no room for a copy of {} ({source}); choose a place with more room, or make room there",
                path.display(),
                Mib(*wanted)
            ),
            Self::Session(why) => why.fmt(f),
            Self::Rename { path, source } => write!(f, "{}: cannot give the copy this name: {source}", path.display()),
            Self::NotWritten { path } => write!(f, "{}: the copy could not be written back to the disk", path.display()),
            Self::Interrupted { path } => write!(f, "{}: the copy was interrupted, and nothing is left of it", path.display()),
        }
    }
}

impl std::error::Error for CopyError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Open(why) => Some(why),
            Self::Session(why) => Some(why),
            Self::Rename { source, .. } | Self::NoSpace { source, .. } => Some(source),
            Self::Exists { .. } | Self::NotWritten { .. } | Self::Interrupted { .. } => None,
        }
    }
}

/// What was copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Copied {
    /// items in the copy
    pub items: u64,
    /// items for which the copy had no space
    pub left_out: u64,
}

impl Cache {
    /// Copies the region's items to a new region at `to`, while writers continue: each item is whole in the copy or absent.
    /// The copy gets its name when it is complete; an existing file is replaced only with `force`. `progress` gets the
    /// percentage done, 0 to 100.
    ///
    /// ```
    /// # use keyway_cache::{Cache, Options, Place};
    /// # let cache = Cache::open(&Place::Memfd, &Options::new().memory(4 << 20))?;
    /// # let path = std::env::temp_dir().join(format!("keyway-doc-copy-{}", std::process::id()));
    /// cache.session()?.set(b"key", b"value", 0)?;
    /// let copied = cache.copy_to(&path, false, |_| {})?;
    /// assert_eq!(copied.items, 1);
    /// # std::fs::remove_file(&path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`CopyError`]; nothing is left at `to` then, nor changed.
    pub fn copy_to(&self, to: &std::path::Path, force: bool, mut progress: impl FnMut(u8)) -> Result<Copied, CopyError> {
        self.copy_to_while(to, force, |percent| {
            progress(percent);
            true
        })
    }

    /// Copies the region to the file `to`, as [`Self::copy_to`], as long as `goes_on`, which gets the percentage done, returns
    /// true.
    ///
    /// # Errors
    ///
    /// [`CopyError`], and [`CopyError::Interrupted`] if it returns false; then nothing is left at `to`, and nothing is
    /// changed there.
    pub fn copy_to_while(&self, to: &std::path::Path, force: bool, goes_on: impl FnMut(u8) -> bool) -> Result<Copied, CopyError> {
        copy(self, to, force, goes_on)
    }
}

fn copy(from: &Cache, to: &Path, force: bool, mut goes_on: impl FnMut(u8) -> bool) -> Result<Copied, CopyError> {
    if !force && to.symlink_metadata().is_ok() {
        return Err(CopyError::Exists { path: to.to_path_buf() });
    }
    // In a program that was started without standard streams, the unfinished copy's descriptor must not become one.
    let _streams = StreamsTaken::new();
    remove_leftovers(to);
    let info = from.info();
    // A region has whole segments, so it is a little smaller than requested.
    let held_bytes = from.sessions().view(held_bytes);
    let memory = held_bytes + info.segment_bytes;
    // Of what the copy certainly has.
    let half = usize::try_from(held_bytes / 2).unwrap_or(usize::MAX);
    let options = Options::new()
        .memory(memory)
        // The caller may allow items that do not fit since the region's memory limit was lowered.
        .item_size_max(info.item_size_max.min(half))
        .checksums(info.checksums);
    let unfinished = Unfinished::new(to).map_err(|error| match error {
        OpenError::Io { source, .. } => CopyError::Rename {
            path: to.to_path_buf(),
            source,
        },
        error => CopyError::Open(error),
    })?;
    let opened = Cache::open(&Place::Path(unfinished.path.clone()), &options);
    let cache = opened.map_err(|error| match error {
        OpenError::NoSpace { wanted, source, .. } => CopyError::NoSpace {
            path: to.to_path_buf(),
            wanted,
            source,
        },
        error => CopyError::Open(error),
    })?;
    let copied = copy_items(from, &cache, info.index_buckets, &mut goes_on)?
        .ok_or_else(|| CopyError::Interrupted { path: to.to_path_buf() })?;
    let is_written = cache.close();
    if !is_written {
        return Err(CopyError::NotWritten { path: to.to_path_buf() });
    }
    let flags = if force {
        RenameFlags::empty()
    } else {
        RenameFlags::RENAME_NOREPLACE
    };
    renameat2(AT_FDCWD, &unfinished.path, AT_FDCWD, to, flags).map_err(|e| match e {
        nix::errno::Errno::EEXIST => CopyError::Exists { path: to.to_path_buf() },
        e => CopyError::Rename {
            path: to.to_path_buf(),
            source: e.into(),
        },
    })?;
    goes_on(100);
    Ok(copied)
}

/// `None`: it was interrupted.
fn copy_items(from: &Cache, to: &Cache, buckets: u64, goes_on: &mut impl FnMut(u8) -> bool) -> Result<Option<Copied>, CopyError> {
    let mut source = from.session().map_err(CopyError::Session)?;
    let mut sink = to.session().map_err(CopyError::Session)?;
    let mut copied = Copied::default();
    let mut cursor = Some(0);
    let mut value = Vec::new();
    while let Some(at) = cursor {
        let percent = u8::try_from((at * 100 / buckets.max(1)).min(99)).unwrap_or(99);
        if !goes_on(percent) {
            return Ok(None);
        }
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
            // One that has disappeared since the walk saw it, or does so in this second, is not copied.
            let found = source.get_with(&key, &how, &mut value, |_, _| {}).ok().flatten();
            if let Some(item) = found.filter(|item| item.ttl_s != Some(0)) {
                if put(&mut sink, &key, &value, &item) {
                    copied.items += 1;
                } else {
                    copied.left_out += 1;
                }
            }
        }
    }
    // An interruption that was requested meanwhile counts until the copy has its name.
    Ok(goes_on(99).then_some(copied))
}

/// Stores an item as it was: value, client flags, expiry, CAS unique, and whether it was stale. `false`: there is no room for it.
fn put(sink: &mut Session, key: &[u8], value: &[u8], item: &Item) -> bool {
    let exptime = match item.ttl_s {
        None => 0,
        Some(ttl) if ttl <= RELATIVE_MAX_S => i64::from(ttl),
        Some(ttl) => sink.now_unix_s() + i64::from(ttl),
    };
    let how = Store {
        flags: item.flags,
        exptime,
        new_cas: Some(item.cas),
        opaque_key: item.opaque_key,
        ..Store::default()
    };
    if sink.store(key, value, &how).is_err() {
        return false;
    }
    let mark = Delete {
        invalidate: true,
        new_cas: Some(item.cas),
        uncounted: true,
        ..Delete::default()
    };
    if !item.stale || sink.delete(key, &mark).is_ok() {
        return true;
    }
    // Without the mark it would be a good item.
    let remove = Delete {
        uncounted: true,
        ..Delete::default()
    };
    let _ = sink.delete(key, &remove);
    false
}
