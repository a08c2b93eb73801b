//! What can go wrong when a region is opened or a session is asked for.

use crate::limits::Limit;
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
    /// a limit of this process, or of the machine, forbids it
    OverLimit { path: PathBuf, why: Limit },
    /// the file is there and is no region that this program can use
    Unusable { path: PathBuf, why: Unusable },
    /// the file is there and is no regular file
    NotAFile { path: PathBuf },
    /// the file belongs to a user whose regions were not asked for
    AnotherUsers { path: PathBuf, owner: u32, user: u32 },
    /// the file has several names: another user may have given it this one
    Linked { path: PathBuf, names: u64 },
    /// every user may write the file
    WritableByAll { path: PathBuf, mode: u32 },
    /// the region is absent and only an existing one was asked for
    Absent { path: PathBuf },
    /// no region has as little memory as was asked for, or as much
    Memory { asked: u64, least: u64, most: u64 },
    /// the largest item does not fit the memory
    ItemSize { asked: usize, least: usize, most: usize },
    /// nothing is there, and it is no path but how a server's address is written
    Address { path: PathBuf },
    /// no region of this memory has room for as few threads as were asked for, or for as many
    Sessions { asked: usize, least: usize, most: usize },
    /// all process slots are taken by processes that are alive, but for those that are kept for servers; and no server does what this
    /// process cannot
    ProcessesFull { path: PathBuf, slots: usize },
    /// another process is making or replacing the region and does not finish
    Busy { path: PathBuf, doing: &'static str },
    /// strict mode was asked for where changes cannot be made persistent
    StrictImpossible { path: PathBuf, source: std::io::Error },
    /// strict mode was asked for, the region was made without it
    NotStrict { path: PathBuf },
    /// checksums were asked for, the region was made without them
    NotChecksummed { path: PathBuf },
    /// the region is there, and cannot be given the memory asked for
    NotGrown { path: PathBuf, why: GrowError },
    /// the region is on a disk, was not stopped cleanly, and whether the machine was started anew since then cannot be known here
    NoBootId { path: PathBuf },
    /// the file system does not keep the lock that says that this process is alive
    LockLost { path: PathBuf },
    /// it cannot be known in which time namespace this process is, and its clock is so many seconds off the region's
    ClockUnknown { path: PathBuf, error_s: u64 },
    /// nobody listens on the socket that a region was asked of
    NoServer { path: PathBuf, source: std::io::Error },
    /// who listens there does not hand out a region to this process
    NotHandedOut { path: PathBuf, why: String },
    /// a forked child cannot have the anonymous memory of its parent
    Forked,
    /// the process was started by `keyway exec`, and the cache is another copy of the library's
    KeptOut { path: PathBuf },
}

/// Why a region could not be given more memory. It keeps what it has, with its items.
#[derive(Debug)]
#[allow(missing_docs, reason = "the fields are what the messages name")]
pub enum GrowError {
    /// more than a region of its first size can ever have
    TooLarge { asked: u64, most: u64 },
    /// there is not enough room for it
    NoSpace { has: u64, wanted: u64, source: std::io::Error },
    /// a limit of this process, or of the machine, forbids it
    OverLimit { has: u64, wanted: u64, why: Limit },
    /// a system call failed
    Io { source: std::io::Error },
}

impl std::fmt::Display for GrowError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::TooLarge { asked, most } => write!(
                f,
                "it was made too small for {} MiB: it can have {} MiB at most; ask for less, or remove it for a new one",
                asked >> 20,
                most >> 20
            ),
            Self::NoSpace { has, wanted, source } => write!(
                f,
                "it has {} MiB and there is no room for {} MiB ({source}); ask for less memory, or give its file system more",
                has >> 20,
                wanted >> 20
            ),
            Self::OverLimit { has, wanted, why } => {
                write!(f, "it has {} MiB and cannot be given {} MiB: {why}", has >> 20, wanted >> 20)
            }
            Self::Io { source } => write!(f, "its file cannot be extended: {source}"),
        }
    }
}

impl std::error::Error for GrowError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::TooLarge { .. } => None,
            Self::OverLimit { why, .. } => Some(why),
            Self::NoSpace { source, .. } | Self::Io { source } => Some(source),
        }
    }
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
            Self::OverLimit { path, why } => write!(f, "{}: {why}", path.display()),
            Self::Unusable { path, why } => {
                write!(
                    f,
                    "{}: {why}; it is left as it is: move it away, or choose another path",
                    path.display()
                )
            }
            Self::NotAFile { path } => write!(f, "{}: is no regular file; choose another path", path.display()),
            Self::AnotherUsers { path, owner, user } => write!(
                f,
                "{}: belongs to user {owner}, and this process is user {user}'s: that user can read and change it at any time, and end this \
                 process by cutting it short; remove it, choose another path, or open it as what it is (--any-owner, Options::owners, \
                 KEYWAY_ANY_OWNER, any_owner=True)",
                path.display()
            ),
            Self::Linked { path, names } => write!(
                f,
                "{}: the file has {names} names, and another user may have given it this one; remove the others (find DIR -samefile {0}), or \
                 choose another path",
                path.display()
            ),
            Self::WritableByAll { path, mode } => write!(
                f,
                "{}: every user of this machine may write the file (mode {mode:04o}): take that away with chmod o-w, or say that it is meant \
                 (a mode with o+w, or --any-owner)",
                path.display()
            ),
            Self::Absent { path } => write!(
                f,
                "{}: there is no region; start `keyway serve` with it first",
                path.display()
            ),
            Self::Memory { asked, least, most } => {
                write!(
                    f,
                    "{asked} bytes of memory were asked for; a region has {} MiB to {} GiB",
                    least >> 20,
                    most >> 30
                )
            }
            Self::ItemSize { asked, least, most } => write!(
                f,
                "a largest item of {asked} bytes was asked for; allowed are {least} bytes to {most} (1 GiB, and half of the memory)"
            ),
            Self::ProcessesFull { path, slots } => {
                write!(
                    f,
                    "{}: {slots} processes are attached, which is all that the region has room for besides servers; start `keyway serve` with it, \
                     which then does what others ask for, let fewer processes use it, or make it anew with more room (--sessions)",
                    path.display()
                )
            }
            Self::Address { path } => write!(
                f,
                "\"{0}\" is how a server's address is written, and a region is a file: give its path (`keyway serve` prints it), or that of the \
                 server's --region-socket; for a file of this name write \"./{0}\"; a client for the network talks to the address",
                path.display()
            ),
            Self::Sessions { asked, least, most } => write!(
                f,
                "room for {asked} threads was asked for; a region of this memory has room for {least} to {most}"
            ),
            Self::StrictImpossible { path, source } => write!(
                f,
                "{}: strict mode needs a file on persistent memory, mapped directly (DAX): MAP_SYNC gave \"{source}\"; put the region on a \
                 file system mounted with -o dax, or leave --strict out",
                path.display()
            ),
            Self::NotStrict { path } => write!(
                f,
                "{}: the region was made without --strict and stays so; copy it elsewhere and remove the file, or leave --strict out",
                path.display()
            ),
            Self::NotChecksummed { path } => write!(
                f,
                "{}: the region was made without --checksums and stays so; copy it elsewhere and remove the file, or leave --checksums out",
                path.display()
            ),
            Self::Busy { path, doing } => write!(
                f,
                "{}: another process {doing} and does not go on (it holds the lock on the file's first byte); resume it or end it, and open \
                 the region again",
                path.display()
            ),
            Self::NoBootId { path } => write!(
                f,
                "{}: the region was not stopped cleanly, and whether the machine was started anew since then cannot be known here \
                 (/proc/sys/kernel/random/boot_id cannot be read); it is left as it is: make /proc readable, or use a region in /dev/shm",
                path.display()
            ),
            Self::LockLost { path } => write!(
                f,
                "{}: this file system loses the lock that tells others that this process is alive (overlayfs and FUSE may), and the file \
                 cannot be opened once more to hold it; put the region in /dev/shm or on a volume",
                path.display()
            ),
            Self::NotGrown { path, why } => write!(f, "{}: {why}", path.display()),
            Self::ClockUnknown { path, error_s } => write!(
                f,
                "{}: this process's boot clock is {error_s} s off the region's, and without /proc it cannot be known by how much its time \
                 namespace shifts it (time_namespaces(7)); mount /proc where it runs, or start it outside",
                path.display()
            ),
            Self::NoServer { path, source } => write!(
                f,
                "{}: no server can be asked for its region ({source}); start `keyway serve --region-socket` there",
                path.display()
            ),
            Self::NotHandedOut { path, why } => write!(f, "{}: {why}", path.display()),
            Self::Forked => f.write_str(
                "this process was forked after the cache was opened, and a region in anonymous memory stays with the parent; open a region in a file, or open one after the fork",
            ),
            Self::KeptOut { path } => write!(
                f,
                "{}: cannot be opened here: this process was started by keyway exec, or forked from one that was, and the region's file is closed to all but the one cache that was attached before main; let keyway exec --library name the file that this copy of the library is in; use threads instead of forked children",
                path.display()
            ),
        }
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. }
            | Self::NoSpace { source, .. }
            | Self::NoServer { source, .. }
            | Self::StrictImpossible { source, .. } => Some(source),
            Self::Unusable { why, .. } => Some(why),
            Self::NotGrown { why, .. } => Some(why),
            Self::OverLimit { why, .. } => Some(why),
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
    /// the thread is in the middle of using its session
    Busy,
    /// the thread's own storage has been destroyed already
    ThreadEnding,
    /// this is a forked child: only its parent is attached
    Forked,
}

impl std::fmt::Display for SessionError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::TableFull { slots } => write!(
                f,
                "{slots} threads are attached to the region, which is all that it has room for; let fewer threads use it, start `keyway serve` with \
                 it, which then does what others ask for, or make it anew with more room (--sessions)"
            ),
            Self::Busy => f.write_str(
                "this thread is inside a call already: a signal handler interrupted it, or it was left by a jump; call from another thread",
            ),
            Self::ThreadEnding => f.write_str("this thread is ending and has given its session back; call before it ends"),
            Self::Forked => {
                f.write_str("this process is a forked child, only its parent is attached: use `Cache::here` in the child")
            }
        }
    }
}

impl std::error::Error for SessionError {}

/// Why a thread could not use its own session.
#[derive(Debug)]
pub enum LocalError {
    /// it could not be given one
    Session(SessionError),
    /// this is a forked child, and the region could not be opened again
    Open(Box<OpenError>),
}

impl std::fmt::Display for LocalError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Session(error) => error.fmt(f),
            Self::Open(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for LocalError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Session(error) => Some(error),
            Self::Open(error) => Some(&**error),
        }
    }
}

impl From<SessionError> for LocalError {
    fn from(error: SessionError) -> Self {
        Self::Session(error)
    }
}
