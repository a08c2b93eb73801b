//! Which thread and which process this is, and whether another one still exists.
//!
//! A thread of this process is queried with signal 0 (`tgkill(2)`), which sends nothing. A process is queried by a
//! descriptor of its process number (`pidfd_open(2)`). No path is involved, so neither a changed root directory nor a
//! hidden /proc gives a wrong answer. A thread or process that cannot be queried is taken to exist.
//!
//! # Safety
//!
//! The only `unsafe` here is system calls that take numbers, and reading the 16 random bytes that the kernel gives each
//! program.
#![allow(unsafe_code, reason = "system calls that take numbers; contract above")]

use crate::attach::boot_id;
use crate::here;
use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{getsockopt, sockopt};
use nix::sys::statfs::fstatfs;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The calling thread's number in this process. No number is used twice, not even by a thread that reuses another
/// thread's storage.
#[inline]
pub(crate) fn thread_number() -> u64 {
    match here::number() {
        0 => number_thread(),
        number => number,
    }
}

/// The same, or 0 if the thread has none yet.
#[inline(always)]
pub(crate) fn thread_number_if_known() -> u64 {
    here::number()
}

#[cold]
fn number_thread() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let number = LAST.fetch_add(1, Relaxed) + 1;
    here::set_number(number);
    number
}

/// A thread of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Thread {
    /// its process's number, and its own, as the kernel numbers them
    process: i32,
    id: i32,
    /// [`thread_number`]
    number: u64,
}

impl Thread {
    /// The calling thread.
    pub(crate) fn current() -> Self {
        Self {
            process: nix::unistd::getpid().as_raw(),
            id: nix::unistd::gettid().as_raw(),
            number: thread_number(),
        }
    }

    /// Whether it has ended: no later store of it can come.
    pub(crate) fn has_ended(self) -> bool {
        // SAFETY: takes numbers; signal 0 is sent to no thread.
        let asked = unsafe { libc::syscall(libc::SYS_tgkill, self.process, self.id, 0) };
        if asked != 0 {
            return Errno::last() == Errno::ESRCH;
        }
        // A process's first thread keeps its number if it ends before the others.
        self.id == self.process && open_pidfd(self.id, PIDFD_THREAD).is_ok_and(|thread| has_exited(&thread))
    }

    /// Whether the other thread has its number now: then this thread has ended.
    pub(crate) fn is_succeeded_by(self, other: Self) -> bool {
        (self.process, self.id) == (other.process, other.id) && self.number != other.number
    }
}

/// Whether a process still exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Gone,
    There,
    /// it cannot be queried from here
    Unknown,
}

/// How another process recognises this one, whatever file systems are mounted there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    /// its number in its process namespace
    pub pid: u64,
    pub identity: [u64; 4],
}

/// The words of an identity; 0: unknown.
const BOOT: usize = 0;
const NAMESPACE: usize = 1;
const PROCESS: usize = 2;
const PROGRAM: usize = 3;

impl Process {
    /// The calling process.
    pub(crate) fn current() -> Self {
        let pid = nix::unistd::getpid().as_raw();
        let pidfd = open_pidfd(pid, 0).ok();
        Self {
            pid: u64::from(pid.unsigned_abs()),
            identity: [
                boot_id().map_or(0, |[a, b]| a ^ b.rotate_left(32) | 1),
                pidfd.as_ref().and_then(process_namespace).unwrap_or(0),
                pidfd.as_ref().and_then(|fd| process_id(pid, fd)).unwrap_or(0),
                program(),
            ],
        }
    }

    /// Whether other processes in its process namespace can find out whether it exists.
    pub(crate) fn is_known(&self) -> bool {
        [BOOT, NAMESPACE, PROCESS]
            .iter()
            .all(|word| self.identity.get(*word).is_some_and(|known| *known != 0))
    }

    /// What happened to the process with this number and identity, as far as this process can know.
    pub(crate) fn fate_of(&self, pid: u64, identity: [u64; 4]) -> Fate {
        let both_know = |word: usize| {
            let (own, its) = (self.identity.get(word).copied(), identity.get(word).copied());
            own.zip(its).filter(|(own, its)| *own != 0 && *its != 0)
        };
        if both_know(BOOT).is_some_and(|(own, its)| own != its) {
            return Fate::Gone;
        }
        // A process number has a meaning in one process namespace only.
        if both_know(NAMESPACE).is_none_or(|(own, its)| own != its) {
            return Fate::Unknown;
        }
        let Ok(number) = i32::try_from(pid) else {
            return Fate::Unknown;
        };
        let pidfd = match open_pidfd(number, 0) {
            Ok(pidfd) => pidfd,
            // EINVAL: the number now belongs to a thread of another process (pidfd_open(2)).
            Err(Errno::ESRCH | Errno::EINVAL) => return Fate::Gone,
            Err(_) => return Fate::Unknown,
        };
        let its = identity.get(PROCESS).copied().unwrap_or(0);
        let is_another = its != 0 && process_id(number, &pidfd).is_some_and(|found| found != its);
        // The same process, which has replaced its program (execve(2)): what the old program had mapped is gone.
        let is_another_program = pid == self.pid && both_know(PROGRAM).is_some_and(|(own, its)| own != its);
        if is_another || is_another_program || has_exited(&pidfd) {
            Fate::Gone
        } else {
            Fate::There
        }
    }
}

/// Linux 6.9: the descriptor is a thread's (pidfd_open(2)).
const PIDFD_THREAD: u32 = nix::libc::O_EXCL.unsigned_abs();
/// The file system of such descriptors since Linux 6.9 (`linux/magic.h`, PID_FS_MAGIC). It never uses an inode number
/// twice in a boot.
const PID_FS_MAGIC: i64 = 0x5049_4446;
/// Linux 6.11: a descriptor of the process's namespace (`linux/pidfd.h`, PIDFD_GET_PID_NAMESPACE).
const PIDFD_GET_PID_NAMESPACE: libc::c_ulong = 0xFF05;

/// A descriptor of a process, or with [`PIDFD_THREAD`] of a thread (`pidfd_open(2)`).
pub(crate) fn open_pidfd(id: i32, flags: u32) -> nix::Result<OwnedFd> {
    // SAFETY: takes numbers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, id, flags) };
    let fd = i32::try_from(Errno::result(fd)?).map_err(|_| Errno::EBADF)?;
    // SAFETY: new, and owned by no other value.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Whether the process, or thread, of a descriptor has exited. Its parent may not have waited for it yet.
fn has_exited(pidfd: &OwnedFd) -> bool {
    let mut asked = [PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)];
    matches!(poll(&mut asked, PollTimeout::ZERO), Ok(1..))
}

/// A descriptor of a process, by which another process that gets it knows when the first one has ended.
#[derive(Debug)]
pub struct Presence(OwnedFd);

impl Presence {
    /// The calling process's.
    ///
    /// # Errors
    ///
    /// Those of pidfd_open(2).
    pub fn own() -> std::io::Result<Self> {
        Ok(Self(open_pidfd(nix::unistd::getpid().as_raw(), 0)?))
    }

    /// The process that connected this Unix socket.
    ///
    /// # Errors
    ///
    /// The kernel does not say who that is: an older Linux than 6.5, and a process of another namespace.
    pub fn of_peer(socket: &impl AsFd) -> std::io::Result<Self> {
        match getsockopt(&socket.as_fd(), sockopt::PeerPidfd) {
            Ok(pidfd) => Ok(Self(pidfd)),
            Err(_) => {
                let peer = getsockopt(&socket.as_fd(), sockopt::PeerCredentials)?;
                Ok(Self(open_pidfd(peer.pid(), 0)?))
            }
        }
    }

    /// Whether the process has ended, or ends within this time.
    pub fn ends_within(&self, time: std::time::Duration) -> bool {
        let time = PollTimeout::try_from(time).unwrap_or(PollTimeout::MAX);
        let mut asked = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
        matches!(poll(&mut asked, time), Ok(1..))
    }
}

impl From<OwnedFd> for Presence {
    /// One that another process has sent.
    fn from(descriptor: OwnedFd) -> Self {
        Self(descriptor)
    }
}

impl AsFd for Presence {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The number of the process namespace of a process.
fn process_namespace(own: &OwnedFd) -> Option<u64> {
    // SAFETY: takes numbers, and returns a new descriptor.
    let fd = unsafe { libc::ioctl(own.as_raw_fd(), PIDFD_GET_PID_NAMESPACE, 0) };
    let namespace = if fd >= 0 {
        // SAFETY: new, and owned by no other value.
        File::from(unsafe { OwnedFd::from_raw_fd(fd) }).metadata().ok()
    } else {
        std::fs::metadata("/proc/self/ns/pid").ok()
    };
    namespace.map(|meta| meta.ino())
}

/// What distinguishes a process from another one that gets its number later in this boot: the inode of its descriptor. If
/// the kernel has no such inodes, it is the time at which the process started.
fn process_id(number: i32, pidfd: &OwnedFd) -> Option<u64> {
    if fstatfs(pidfd).is_ok_and(|fs| fs.filesystem_type().0 == PID_FS_MAGIC) {
        return nix::sys::stat::fstat(pidfd).ok().map(|stat| stat.st_ino << 1);
    }
    // proc(5), /proc/pid/stat, field 22; the second field is a name in parentheses, which may contain anything.
    let text = std::fs::read_to_string(format!("/proc/{number}/stat")).ok()?;
    let (_, fields) = text.rsplit_once(')')?;
    let started: u64 = fields.split_ascii_whitespace().nth(19)?.parse().ok()?;
    Some(started << 1 | 1)
}

/// What distinguishes the program that this process runs from those that it ran before: random bytes (getauxval(3),
/// AT_RANDOM).
fn program() -> u64 {
    // SAFETY: asks for a number.
    let at = unsafe { libc::getauxval(libc::AT_RANDOM) };
    let at = usize::try_from(at).unwrap_or(0);
    if at == 0 {
        return 0;
    }
    let bytes: *const [u8; 8] = std::ptr::with_exposed_provenance(at);
    // SAFETY: the kernel has put 16 bytes there, which stay as long as the program runs.
    u64::from_le_bytes(unsafe { bytes.read() }) | 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_there_until_it_has_ended() {
        let here = Thread::current();
        assert!(!here.has_ended());
        let (number, there) = std::thread::spawn(|| (thread_number(), Thread::current())).join().unwrap();
        assert_ne!(number, thread_number());
        // The kernel removes the thread a moment after the join.
        while !there.has_ended() {
            std::thread::yield_now();
        }
        let later = Thread {
            number: here.number + 1,
            ..here
        };
        assert!(
            here.is_succeeded_by(later) && !here.is_succeeded_by(here),
            "a number that was used again"
        );
    }

    #[test]
    fn a_process_is_there_until_it_has_exited_waited_for_or_not() {
        let own = Process::current();
        assert_eq!(own.fate_of(own.pid, own.identity), Fate::There);
        let mut other_boot = own.identity;
        other_boot[BOOT] ^= 2;
        assert_eq!(own.fate_of(own.pid, other_boot), Fate::Gone);
        let mut other_namespace = own.identity;
        other_namespace[NAMESPACE] += 1;
        assert_eq!(own.fate_of(own.pid, other_namespace), Fate::Unknown);
        let mut before_exec = own.identity;
        before_exec[PROGRAM] ^= 2;
        assert_eq!(own.fate_of(own.pid, before_exec), Fate::Gone);
        let mut other_process = own.identity;
        other_process[PROCESS] ^= 2;
        assert_eq!(own.fate_of(own.pid, other_process), Fate::Gone, "its number was used again");

        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let its = [
            own.identity[BOOT],
            own.identity[NAMESPACE],
            process_id(pid, &open_pidfd(pid, 0).unwrap()).unwrap(),
            0,
        ];
        let fate = || own.fate_of(u64::from(pid.unsigned_abs()), its);
        assert_eq!(fate(), Fate::There);
        child.kill().unwrap();
        while fate() != Fate::Gone {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert_eq!(fate(), Fate::Gone);
    }
}
