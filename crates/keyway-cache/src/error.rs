//! What can go wrong when a region is opened or a session is asked for.

use crate::file::blocks::CopiesOnWrite;
use crate::file::limits::{Limit, Mib};
use keyway_region::Unusable;
#[cfg(doc)]
use keyway_region::verbs::KEY_LEN_MAX;
use keyway_region::verbs::WriteError;
use nix::libc::ELOOP;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Why a region could not be opened. `Debug` is the same message as `Display`: it is what a `main` prints that returns this error.
#[allow(missing_docs, reason = "the fields are what the messages name")]
#[non_exhaustive]
pub enum OpenError {
    /// a system call failed
    Io {
        what: &'static str,
        path: PathBuf,
        source: std::io::Error,
    },
    /// there is not enough space for the region
    NoSpace {
        path: PathBuf,
        wanted: u64,
        source: std::io::Error,
    },
    /// a limit of this process, or of the machine, forbids it
    OverLimit { path: PathBuf, why: Limit },
    /// the file exists and is not a region that this program can use
    Unusable { path: PathBuf, why: Unusable },
    /// the file exists and is not a regular file
    NotAFile { path: PathBuf },
    /// the file belongs to another user
    AnotherUsers { path: PathBuf, owner: u32, user: u32 },
    /// the file has several names: another user may have given it this one
    Linked { path: PathBuf, names: u64 },
    /// every user may write the file
    WritableByAll { path: PathBuf, mode: u32 },
    /// the region is absent, and no memory was requested for a new one; these are in the folder of default places
    Absent { path: PathBuf, there: Vec<PathBuf> },
    /// the requested memory is less, or more, than any region can have
    Memory { asked: u64, least: u64, most: u64 },
    /// the largest item does not fit the memory
    ItemSize { asked: usize, least: usize, most: usize },
    /// the place is the address of a server and not a path
    Address { path: PathBuf },
    /// a region of this memory cannot have the requested number of thread slots
    Sessions { asked: usize, least: usize, most: usize },
    /// a region of the requested memory has no room for the thread slots that the server needs
    ServerSessions { sessions: usize, needed: usize, most: usize },
    /// the requested file mode has bits that are no permissions
    Mode { asked: u32 },
    /// living processes have all process slots, except those reserved for servers, and no server executes writes for this
    /// process
    ProcessesFull { path: PathBuf, slots: usize },
    /// another process is making or replacing the region and does not finish
    Busy { path: PathBuf, doing: &'static str },
    /// on a full disk its users would be ended, because the file's blocks are copied when they are written, or are not there
    CopiesOnWrite { path: PathBuf, why: CopiesOnWrite },
    /// durable mode (`durable`) was requested where changes cannot be made persistent
    DurableImpossible { path: PathBuf, source: std::io::Error },
    /// durable mode (`durable`) was requested, but the region was made without it
    NotDurable { path: PathBuf },
    /// the file that was kept for a restart is not anonymous memory
    NotAnonymous { path: PathBuf },
    /// checksums were requested, but the region was made without them
    NotChecksummed { path: PathBuf },
    /// the region exists, and cannot get the requested memory
    NotGrown { path: PathBuf, why: GrowError },
    /// the region is on a disk, was not stopped cleanly, and this process cannot find out whether the machine has rebooted since
    NoBootId { path: PathBuf },
    /// a new region on a disk, or without a file, needs what /proc says, and it cannot be read
    NoProc { path: PathBuf, needs: &'static str },
    /// the file system loses the lock that shows that this process is alive
    LockLost { path: PathBuf },
    /// the time namespace of this process is unknown, and its clock differs from the region's by this many seconds
    ClockUnknown { path: PathBuf, error_s: u64 },
    /// no server listens on the region socket
    NoServer { path: PathBuf, source: std::io::Error },
    /// the server does not hand out its region to this process
    NotHandedOut { path: PathBuf, why: String },
    /// a forked child cannot have the anonymous memory of its parent
    Forked,
    /// the process was started by `keyway exec`, and this is another copy of the library than the attached one
    KeptOut { path: PathBuf },
}

/// A system call failed.
pub(crate) fn io(what: &'static str, path: &Path, source: std::io::Error) -> OpenError {
    OpenError::Io {
        what,
        path: path.to_path_buf(),
        source,
    }
}

/// The file is no region that this program can use.
pub(crate) fn unusable(path: &Path, why: Unusable) -> OpenError {
    OpenError::Unusable {
        path: path.to_path_buf(),
        why,
    }
}

/// On a full disk the file's users would be ended.
pub(crate) fn copies(path: &Path, why: CopiesOnWrite) -> OpenError {
    OpenError::CopiesOnWrite {
        path: path.to_path_buf(),
        why,
    }
}

/// Regions that a message names.
const NAMED_MAX: usize = 4;

/// Why a region could not grow. It keeps its memory and its items.
#[derive(Debug)]
#[allow(missing_docs, reason = "the fields are what the messages name")]
#[non_exhaustive]
pub enum GrowError {
    /// more than a region of its first size can ever have
    TooLarge { asked: u64, most: u64 },
    /// there is not enough space for it
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
                "it cannot grow to {} MiB: its maximum, from its first size, is {} MiB; request less, or remove it and make a new one",
                asked >> 20,
                most >> 20
            ),
            Self::NoSpace { has, wanted, source } => write!(
                f,
                "it has {} and there is no room for {} ({source}); request less memory, or give its file system more",
                Mib(*has),
                Mib(*wanted)
            ),
            Self::OverLimit { has, wanted, why } => {
                write!(f, "it has {} MiB and cannot grow to {} MiB: {why}", has >> 20, wanted >> 20)
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

impl std::fmt::Debug for OpenError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}

/// Makes `Display` of an error from a table: of each variant its fields, and the format of its message with what it names.
macro_rules! messages {
    ($error:ty: $($name:ident $({ $($field:ident),* })? => ($($message:tt)*),)*) => {
        impl std::fmt::Display for $error {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match self {
                    $(Self::$name $({ $($field),* })? => write!(f, $($message)*),)*
                }
            }
        }
    };
}

messages! { OpenError:
    Io { what, path, source } => ("{}: {what}: {source}{}", path.display(), IoRemedy(path, source)),
    NoSpace { path, wanted, source } => (
        "{}: no room for a region of {} ({source}); request less memory, or give its file system more",
        path.display(),
        Mib(*wanted),
    ),
    OverLimit { path, why } => ("{}: {why}", path.display()),
    Unusable { path, why } => (
        "{}: {why}; the file was not changed: move it away, or choose another path",
        path.display(),
    ),
    NotAnonymous { path } => (
        "{}: the descriptor leads to a file with a name, or on a disk, and not to anonymous memory; give its path (--region)",
        path.display(),
    ),
    NotAFile { path } => ("{}: is not a regular file; choose another path", path.display()),
    AnotherUsers { path, owner, user } => (
        "{}: belongs to user {owner}, and this process is user {user}'s: that user can read and change it at any time, and end this \
        process by truncating it; remove it, choose another path, or accept its owner (--any-owner, Options::owners, \
        KEYWAY_ANY_OWNER, any_owner=True)",
        path.display(),
    ),
    Linked { path, names } => (
        "{}: the file has {names} names, and another user may have given it this one; remove the others (find DIR -samefile {0}), or \
        choose another path",
        path.display(),
    ),
    WritableByAll { path, mode } => (
        "{}: every user of this machine may write the file (mode {mode:04o}): remove this permission with chmod o-w, or accept it \
        (a mode with o+w, or --any-owner)",
        path.display(),
    ),
    Absent { path, there } => (
        "{}: there is no region{}; name the one of your server (`keyway regions` lists them), start a server with this one (`keyway serve --region`), or \
         request memory for a new one (Options::memory, keyway_options.memory, memory=)",
        path.display(),
        There(there),
    ),
    Memory { asked, least, most } => ("{asked} bytes of memory were requested: {}", Memory(*asked, *least, *most)),
    ItemSize { asked, least, most } => (
        "a largest item of {asked} bytes was requested: it can have {least} to {most} bytes (1 GiB, or half of the memory); request \
        another size, or more memory",
    ),
    ProcessesFull { path, slots } => (
        "{}: {slots} processes are attached, and the region has no more slots except those for servers; start `keyway serve` with it, \
        which then serves further processes, use it from fewer processes, or make a new one with more slots (--sessions)",
        path.display(),
    ),
    Address { path } => (
        "\"{0}\" is the address of a server, and a region is a file: give its path (`keyway serve` prints it), or the path of the \
        server's --region-socket; for a file of this name write \"./{0}\"; to use the address, use a network client",
        path.display(),
    ),
    Sessions { asked, least, most } => (
        "{asked} thread slots were requested: a region of this memory can have {least} to {most}; request another number, or more memory",
    ),
    ServerSessions { sessions, needed, most } => (
        "a region of this memory can have {most} thread slots, and needs {needed} for programs, this server ({sessions}) and one that takes \
        over from it; give the server fewer threads (--threads, -t) or the region more memory (--memory, -m)",
    ),
    Mode { asked } => (
        "a file mode of {asked:#o} was requested: it can have the permission bits 0 to 0o777 only; leave the other bits out",
    ),
    DurableImpossible { path, source } => (
        "{}: durable mode (--durable) needs a file on persistent memory, mapped directly (DAX): MAP_SYNC failed with \"{source}\"; put the region on a \
        file system mounted with -o dax, or leave --durable out",
        path.display(),
    ),
    NotDurable { path } => (
        "{}: the region was made without --durable, and this cannot change; copy it elsewhere and remove the file, or leave --durable out",
        path.display(),
    ),
    NotChecksummed { path } => (
        "{}: the region was made without --checksums, and this cannot change; copy it elsewhere and remove the file, or leave --checksums out",
        path.display(),
    ),
    Busy { path, doing } => (
        "{}: another process {doing} and makes no progress (it holds the lock on the file's first byte); resume it or end it, and open \
        the region again",
        path.display(),
    ),
    NoBootId { path } => (
        "{}: the region was not stopped cleanly, and this process cannot find out whether the machine has rebooted since (the \
        region, or this process, has no boot id of the kernel's own: /proc/sys/kernel/random/boot_id; and the machine's clocks \
        do not tell); the file was not changed: open it once outside the container, remove it, or use a region in /dev/shm",
        path.display(),
    ),
    NoProc { path, needs } => (
        "{}: no region was made, because {needs}: mount /proc, or use a region in /dev/shm",
        path.display(),
    ),
    LockLost { path } => (
        "{}: this file system loses the lock that shows that this process is alive (overlayfs and FUSE may), and the file \
        cannot be opened again to hold the lock; put the region in /dev/shm or on a volume",
        path.display(),
    ),
    NotGrown { path, why } => ("{}: {why}", path.display()),
    CopiesOnWrite { path, why } => ("{}: {why}", path.display()),
    ClockUnknown { path, error_s } => (
        "{}: this process's boot clock differs from the region's by {error_s} s, and without /proc the offset of its time \
        namespace is unknown (time_namespaces(7)); mount /proc where it runs, or start it outside the namespace",
        path.display(),
    ),
    NoServer { path, source } => (
        "{}: no server answers on the region socket ({source}); start `keyway serve --region-socket` there",
        path.display(),
    ),
    NotHandedOut { path, why } => ("{}: {why}", path.display()),
    Forked => (
        "this process was forked after the cache was opened, and a region in anonymous memory stays with the parent; open a region in a file, or open one after the fork",
    ),
    KeptOut { path } => (
        "{}: cannot be opened here: this process was started by keyway exec, or forked from one that was, and only the cache that was attached before main can use the region's file; name the file of this copy of the library by keyway exec --library; use threads instead of forked children",
        path.display(),
    ),
}

/// The regions at default places, where there was none at the place that was named.
struct There<'t>(&'t [PathBuf]);

impl std::fmt::Display for There<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (nth, other) in self.0.iter().take(NAMED_MAX).enumerate() {
            write!(f, "{} {}", if nth == 0 { "; there are" } else { "," }, other.display())?;
        }
        f.write_str(if self.0.len() > NAMED_MAX { " and others" } else { "" })
    }
}

/// Which limit the requested memory exceeds: asked, least and most bytes.
struct Memory(u64, u64, u64);

impl std::fmt::Display for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self(asked, least, most) = *self;
        match asked < least {
            true => write!(f, "a region has at least {least} bytes ({} MiB); request more", least >> 20),
            false => write!(f, "a region has at most {most} bytes ({} GiB); request less", most >> 30),
        }
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. }
            | Self::NoSpace { source, .. }
            | Self::NoServer { source, .. }
            | Self::DurableImpossible { source, .. } => Some(source),
            Self::Unusable { why, .. } => Some(why),
            Self::NotGrown { why, .. } => Some(why),
            Self::OverLimit { why, .. } => Some(why),
            _ => None,
        }
    }
}

/// What to do about a failed system call on a region's file.
struct IoRemedy<'e>(&'e Path, &'e std::io::Error);

impl std::fmt::Display for IoRemedy<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self(path, source) = self;
        match (source.kind(), source.raw_os_error()) {
        (_, Some(ELOOP)) => write!(
            f,
            "; it is a symbolic link, and a region is opened by its own name only: give that (`readlink -f {}`)",
            path.display()
        ),
        (ErrorKind::NotFound, _) => match path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            Some(folder) if folder.is_dir() => write!(f, "; the folder {} is there, and takes or has no such file: choose another path", folder.display()),
            Some(folder) => write!(f, "; if the folder {0} is absent, make it (`mkdir -p {0}`)", folder.display()),
            None => Ok(()),
        },
        (ErrorKind::IsADirectory, _) => f.write_str("; a region is a file, whose name has no / at its end: name one"),
        (ErrorKind::PermissionDenied, _) => f.write_str(
            "; this user may not: be the file's owner (`ls -l` says who that is, `sudo -u OWNER`), or use the --region-socket of a server that \
             hands the region out",
        ),
        _ => Ok(()),
    }
    }
}

/// Why an item could not be read. An absent key is not an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReadError {
    /// the key is empty or longer than [`KEY_LEN_MAX`]
    KeyLength {
        /// its length, bytes
        len: usize,
    },
    /// this process has no memory for a copy of the value
    NoMemory {
        /// bytes of the value
        len: usize,
    },
    /// the session belongs to another process (inherited by a fork); or its thread slot was given back and none is free
    Detached,
}

impl ReadError {
    /// From a get that changes nothing, which has no other errors. (To such a get a corrupted item is absent.)
    #[cold]
    pub(crate) fn of(error: WriteError) -> Self {
        match error {
            WriteError::KeyLength { len } => Self::KeyLength { len },
            WriteError::NoMemory { len } => Self::NoMemory { len },
            _ => Self::Detached,
        }
    }
}

impl From<ReadError> for WriteError {
    /// For a function that reads and writes.
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::KeyLength { len } => Self::KeyLength { len },
            ReadError::NoMemory { len } => Self::NoMemory { len },
            ReadError::Detached => Self::Detached,
        }
    }
}

impl std::fmt::Display for ReadError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        WriteError::from(*self).fmt(f)
    }
}

impl std::error::Error for ReadError {}

/// Why a thread could not get a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SessionError {
    /// all thread slots are taken
    TableFull {
        /// how many there are
        slots: usize,
    },
    /// the thread is in the middle of using its session
    Busy,
    /// this is a forked child: only its parent is attached
    Forked,
}

impl std::fmt::Display for SessionError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::TableFull { slots } => write!(
                f,
                "{slots} threads are attached to the region, and it has no more slots; use it from fewer threads, start `keyway serve` with \
                 it, which then serves further threads, or make a new one with more slots (--sessions)"
            ),
            Self::Busy => f.write_str(
                "this thread is already inside a call: a signal handler interrupted it, or a jump left it; call from another thread",
            ),
            Self::Forked => {
                f.write_str("this process is a forked child, and only its parent is attached: use `Cache::here` in the child")
            }
        }
    }
}

impl std::error::Error for SessionError {}

/// Why a thread could not use its own session.
#[derive(Debug)]
#[non_exhaustive]
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

/// Why a fetch returned no value.
#[derive(Debug)]
#[non_exhaustive]
pub enum FetchError<E> {
    /// computing failed: what the function returned
    Compute(E),
    /// another caller computes, and the wait was over ([`crate::Fetch::compute_after_wait`])
    InFlight {
        /// how long this one has waited
        waited: Duration,
    },
    /// as many compute as may ([`crate::Fetch::limit`]), and the wait was over
    Limited {
        /// how long this one has waited
        waited: Duration,
    },
    /// the cache could not be used
    Write(WriteError),
    /// the calling thread could not use its session
    Session(LocalError),
}

impl<E: std::fmt::Display> std::fmt::Display for FetchError<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Compute(error) => error.fmt(f),
            Self::InFlight { waited } => write!(
                f,
                "another caller has been computing this value for longer than {waited:?}: wait longer, or compute it after the wait"
            ),
            Self::Limited { waited } => write!(
                f,
                "as many values of this prefix are being computed as its limit allows, and that for {waited:?}: wait longer, raise the limit, or \
                 allow stale values"
            ),
            Self::Write(error) => error.fmt(f),
            Self::Session(error) => error.fmt(f),
        }
    }
}

impl<E: std::error::Error + 'static> std::error::Error for FetchError<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Compute(error) => Some(error),
            Self::Write(error) => Some(error),
            Self::Session(error) => Some(error),
            Self::InFlight { .. } | Self::Limited { .. } => None,
        }
    }
}

impl<E> From<LocalError> for FetchError<E> {
    fn from(error: LocalError) -> Self {
        Self::Session(error)
    }
}
