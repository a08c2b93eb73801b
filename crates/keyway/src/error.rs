//! What can go wrong when a region is opened or a session is asked for.

use keyway_region::Unusable;
use std::path::PathBuf;

/// Why a region could not be opened.
#[derive(Debug)]
#[allow(missing_docs, reason = "the fields are what the messages name")]
pub enum OpenError {
    /// a system call failed
    Io {
        what: &'static str,
        path: PathBuf,
        source: std::io::Error,
    },
    /// there is not enough room for the region where it is to be
    NoSpace {
        path: PathBuf,
        wanted: u64,
        source: std::io::Error,
    },
    /// the file is there and is no region that this program can use
    Unusable { path: PathBuf, why: Unusable },
    /// the file is there and is no regular file
    NotAFile { path: PathBuf },
    /// the region is absent and only an existing one was asked for
    Absent { path: PathBuf },
    /// the memory asked for cannot hold a region
    MemoryTooSmall { asked: u64, least: u64 },
    /// the largest item does not fit the memory
    ItemSize { asked: usize, least: usize, most: usize },
    /// all process slots are taken by processes that are alive
    ProcessesFull { path: PathBuf, slots: usize },
    /// another process is replacing the region and does not finish
    Busy { path: PathBuf },
}

impl std::fmt::Display for OpenError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Io { what, path, source } => write!(f, "{}: {what}: {source}", path.display()),
            Self::NoSpace { path, wanted, source } => write!(
                f,
                "{}: no room for a region of {} MiB ({source}); ask for less memory, or give its file system more",
                path.display(),
                wanted >> 20
            ),
            Self::Unusable { path, why } => {
                write!(
                    f,
                    "{}: {why}; it is left as it is: move it away, or choose another path",
                    path.display()
                )
            }
            Self::NotAFile { path } => write!(f, "{}: is no regular file; choose another path", path.display()),
            Self::Absent { path } => write!(
                f,
                "{}: there is no region; start `keyway serve` with it first",
                path.display()
            ),
            Self::MemoryTooSmall { asked, least } => {
                write!(
                    f,
                    "{asked} bytes of memory were asked for, a region needs at least {} MiB",
                    least >> 20
                )
            }
            Self::ItemSize { asked, least, most } => write!(
                f,
                "a largest item of {asked} bytes was asked for; allowed are {least} bytes to {most} (1 GiB, and half of the memory)"
            ),
            Self::ProcessesFull { path, slots } => {
                write!(
                    f,
                    "{}: {slots} processes are attached, which is all that the region has room for; use the server",
                    path.display()
                )
            }
            Self::Busy { path } => write!(
                f,
                "{}: another process is replacing the region and does not finish",
                path.display()
            ),
        }
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } | Self::NoSpace { source, .. } => Some(source),
            Self::Unusable { why, .. } => Some(why),
            _ => None,
        }
    }
}

/// Why a thread could not be given a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionError {
    /// all thread slots are taken
    TableFull {
        /// how many there are
        slots: usize,
    },
}

impl std::fmt::Display for SessionError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self::TableFull { slots } = self;
        write!(
            f,
            "{slots} threads are attached to the region, which is all that it has room for; use the server"
        )
    }
}

impl std::error::Error for SessionError {}
