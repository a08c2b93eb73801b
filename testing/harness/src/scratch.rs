//! A directory of its own for every server and every test, removed with its handle.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A fresh directory.
#[derive(Debug)]
pub struct Scratch(PathBuf);

/// PAIRS: nothing; only uniqueness within the process matters.
static NEXT: AtomicU32 = AtomicU32::new(0);

impl Scratch {
    /// Creates one. It lies in memory (`/dev/shm`) where there is such a place, since region files are written at memory
    /// speed; the name is short, because a Unix socket's path takes at most 107 bytes (unix(7)).
    ///
    /// # Panics
    ///
    /// When no directory can be made.
    pub fn new() -> Self {
        let shm = Path::new("/dev/shm");
        let base = if shm.is_dir() {
            shm.to_path_buf()
        } else {
            std::env::temp_dir()
        };
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = base.join(format!("keyway-test-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        Self(path)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// A path inside.
    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The names of what lies in it, sorted.
    ///
    /// # Panics
    ///
    /// When it cannot be read.
    pub fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).unwrap_or_else(|e| panic!("{}: {e}", self.0.display()));
        let mut names: Vec<_> = entries
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }
}

impl Default for Scratch {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if crate::is_set("KEYWAY_TESTS_KEEP") {
            crate::say(&format!("kept {}", self.0.display()));
            return;
        }
        // leftovers are only a nuisance
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
