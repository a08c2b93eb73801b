//! Copying a region that is in use to another place, for example to warm another host.
//!
//! Items are copied one by one, so each is whole or absent in the copy, while writers continue. An item that is written or
//! deleted after the copy has passed its bucket is missing in the copy, or is still in it. The copy gets its name when it is
//! complete and cleanly stopped.
//!
//! Until then it is beside its place under a name that no other process can know before the file exists (`.NAME.` and 32 random
//! hexadecimal digits, `.copy`), and a byte of it is locked. A file of that kind without a lock was left by a copy that was
//! killed: [`remove_leftovers`] removes it.

use crate::attach::io;
use crate::creation::{is_at, random};
use crate::descriptor::StreamsTaken;
use crate::limits::Mib;
use crate::liveness::{Locked, lock, locked};
use crate::{Cache, Delete, Get, OpenError, Options, Place, Session, Store};
use keyway_region::verbs::Item;
use nix::fcntl::{AT_FDCWD, OFlag, RenameFlags, renameat2};
use nix::unistd::geteuid;
use std::fs::File;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Items read between two reports of progress.
const STEP: usize = 256;
/// Longest time that an exptime can express as seconds from now (protocol.txt, "Expiration times").
const RELATIVE_MAX_S: u32 = 60 * 60 * 24 * 30;
/// The byte of an unfinished copy that its maker has locked. It belongs to no process slot, and is not the byte under
/// which regions are made.
const COPYING: i64 = 1;
/// Number of hexadecimal digits in an unfinished copy's name: so many that no process can guess them.
const DIGITS: usize = 32;
/// Files that are made before it is clear that there are no locks: other processes seldom meet a new one.
const ATTEMPTS: usize = 16;

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
    Session(crate::SessionError),
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

/// The unfinished copy: removed unless it gets its name.
struct Unfinished {
    /// with the lock
    file: File,
    path: PathBuf,
}

impl Unfinished {
    /// An empty file for a copy to this place.
    fn new(to: &Path) -> Result<Self, OpenError> {
        Self::locked(to, |file| lock(file, COPYING))
    }

    /// An empty file for a copy to this place, with the lock that `lock` takes.
    fn locked(to: &Path, lock: impl Fn(&File) -> bool) -> Result<Self, OpenError> {
        for _ in 0..ATTEMPTS {
            let [one, two] = random(to)?;
            let name = to.file_name().unwrap_or_default().to_string_lossy();
            let path = to.with_file_name(format!(".{name}.{one:016x}{two:016x}.copy"));
            let file = File::options()
                .read(true)
                .write(true)
                .create_new(true)
                .mode(0o600)
                .custom_flags(OFlag::O_NOFOLLOW.bits())
                .open(&path)
                .map_err(|e| io("create", &path, e))?;
            // Before it was locked, another process may have taken it for a leftover and removed it.
            let is_locked = lock(&file);
            let unfinished = Self { file, path };
            if is_locked && is_at(&unfinished.file, &unfinished.path) {
                return Ok(unfinished);
            }
        }
        let source = std::io::Error::other("its file system has no locks");
        Err(io("lock a file beside", to, source))
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if is_at(&self.file, &self.path) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Removes what killed copies to this place have left: files with such names, of this user, in which nothing is locked.
pub(crate) fn remove_leftovers(place: &Path) {
    let name = place.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let begin = format!(".{name}.");
    let folder = match place.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let digits = name.strip_prefix(&begin).and_then(|rest| rest.strip_suffix(".copy"));
        if digits.is_some_and(|digits| digits.len() == DIGITS && digits.bytes().all(|b| b.is_ascii_hexdigit())) {
            remove_leftover(&entry.path());
        }
    }
}

fn remove_leftover(path: &Path) {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let opened = File::options().read(true).write(true).custom_flags(flags.bits()).open(path);
    // A file that cannot be opened belongs to another user, and stays.
    let Ok(file) = opened else { return };
    let is_ours = file
        .metadata()
        .is_ok_and(|meta| meta.is_file() && meta.uid() == geteuid().as_raw());
    // A length of 0 bytes: to the end of the file, wherever that is (fcntl(2), l_len).
    if is_ours && lock(&file, COPYING) && locked(&file, 0, 0) == Locked::No && is_at(&file, path) {
        let _ = std::fs::remove_file(path);
    }
}

pub(crate) fn copy(from: &Cache, to: &Path, force: bool, mut goes_on: impl FnMut(u8) -> bool) -> Result<Copied, CopyError> {
    if !force && to.symlink_metadata().is_ok() {
        return Err(CopyError::Exists { path: to.to_path_buf() });
    }
    // In a program that was started without standard streams, the unfinished copy's descriptor must not become one.
    let _streams = StreamsTaken::new();
    remove_leftovers(to);
    let info = from.info();
    // A region has whole segments, so it is a little smaller than requested.
    let memory = from.held_bytes() + info.segment_bytes;
    // Of what the copy certainly has.
    let half = usize::try_from(from.held_bytes() / 2).unwrap_or(usize::MAX);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_there_are_no_locks_nothing_is_left_of_a_copy() {
        let folder = std::env::temp_dir().join(format!("keyway-copy-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let refused = Unfinished::locked(&folder.join("copy"), |_| false)
            .err()
            .map(|why| why.to_string());
        let left = std::fs::read_dir(&folder).unwrap().count();
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(refused.is_some_and(|why| why.contains("no locks")));
        assert_eq!(left, 0);
    }
}
