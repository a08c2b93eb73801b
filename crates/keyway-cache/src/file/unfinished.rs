//! A file that gets its name when it is complete, and is removed otherwise: also what a process that was killed has left of one.

use crate::error::{OpenError, io};
use crate::file::liveness::{Locked, lock, locked};
use nix::fcntl::OFlag;
use nix::unistd::geteuid;
use std::fs::File;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The byte of an unfinished copy that its maker has locked. It belongs to no process slot, and is not the byte under
/// which regions are made.
const COPYING: i64 = 1;
/// Number of hexadecimal digits in an unfinished copy's name: so many that no process can guess them.
const DIGITS: usize = 32;
/// Files that are made before it is clear that there are no locks: other processes seldom meet a new one.
const ATTEMPTS: usize = 16;

/// The unfinished copy: removed unless it gets its name.
pub(crate) struct Unfinished {
    /// with the lock
    file: File,
    pub path: PathBuf,
}

impl Unfinished {
    /// An empty file for a copy to this place.
    pub(crate) fn new(to: &Path) -> Result<Self, OpenError> {
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

/// Whether this is the file at `path`.
pub(crate) fn is_at(file: &File, path: &Path) -> bool {
    let (Ok(there), Ok(this)) = (path.symlink_metadata(), file.metadata()) else {
        return false;
    };
    (there.dev(), there.ino()) == (this.dev(), this.ino())
}

/// Random words from the kernel, by getrandom(2): a container may have no /dev/urandom.
pub(crate) fn random<const N: usize>(path: &Path) -> Result<[u64; N], OpenError> {
    let mut words = [0; N];
    for word in &mut words {
        *word = getrandom::u64().map_err(|e| io("get random numbers for", path, std::io::Error::other(e)))?;
    }
    Ok(words)
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
