//! Which thread and which process this is, and whether another one still exists.
//!
//! A thread of this process is queried with signal 0 (`tgkill(2)`), which sends nothing. A process is queried by a
//! descriptor of its process number (`pidfd_open(2)`). No path is involved, so neither a changed root directory nor a
//! hidden /proc gives a wrong answer. A thread or process that cannot be queried is taken to exist.
//!
//! A process is *gone* only if this kernel says so of that very process. What differs between two processes is at most a reason
//! not to know: another boot, another process namespace, another way in which a process was described.
//!
//! # Safety
//!
//! The only `unsafe` here is system calls that take numbers, and reading the 16 random bytes that the kernel gives each
//! program.
#![allow(unsafe_code, reason = "system calls that take numbers; contract above")]

use crate::clock::Clock;
use crate::process::descriptor::FileId;
use crate::process::proc;
use crate::process::thread::has_exited;
use crate::process::thread::open_pidfd;
use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{getsockopt, sockopt};
use nix::sys::statfs::fstatfs;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

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

/// The words of an identity; 0: unknown. Of the first, 63..32 are a hash of the region's file as the process sees it (device and
/// inode), and 31..0 one of the boot.
const PLACE: usize = 0;
const NAMESPACE: usize = 1;
/// see [`process_id`]
const PROCESS: usize = 2;
const PROGRAM: usize = 3;

impl Process {
    /// The calling process, which uses this region.
    pub(crate) fn current(region: FileId) -> Self {
        let pid = nix::unistd::getpid().as_raw();
        let pidfd = open_pidfd(pid, 0).ok();
        let boot = proc::boot_id().map_or(0, |[a, b]| half(a, b));
        Self {
            pid: u64::from(pid.unsigned_abs()),
            identity: [
                half(region.0, region.1) << 32 | boot,
                pidfd.as_ref().and_then(process_namespace).unwrap_or(0),
                pidfd.as_ref().and_then(|fd| process_id(pid, fd)).unwrap_or(0),
                program(),
            ],
        }
    }

    /// Whether other processes in its process namespace can find out whether it exists.
    pub(crate) fn is_known(&self) -> bool {
        [NAMESPACE, PROCESS]
            .iter()
            .all(|word| self.identity.get(*word).is_some_and(|known| *known != 0))
    }

    /// Both processes' words, if both are known.
    fn both(&self, identity: [u64; 4], word: usize, part: u64) -> Option<(u64, u64)> {
        let (own, its) = (self.identity.get(word)? & part, identity.get(word)? & part);
        (own != 0 && its != 0).then_some((own, its))
    }

    fn differs(&self, identity: [u64; 4], word: usize, part: u64) -> bool {
        self.both(identity, word, part).is_some_and(|(own, its)| own != its)
    }

    /// Whether a lock of the process with this identity would be seen through this process's descriptor: both have the same file
    /// of the same kernel, as far as they know. A file that is reached through overlayfs and beside it is two files with locks of
    /// their own.
    pub(crate) fn shares_locks(&self, identity: [u64; 4]) -> bool {
        !self.differs(identity, PLACE, LOW) && !self.differs(identity, PLACE, !LOW)
    }

    /// What happened to the process with this number and identity, as far as this process can know.
    pub(crate) fn fate_of(&self, pid: u64, identity: [u64; 4]) -> Fate {
        // Of another boot's process this kernel knows nothing, nor of one of another kernel; and the process may be of this boot
        // after all, because either of the two was deceived.
        if self.differs(identity, PLACE, LOW) {
            return Fate::Unknown;
        }
        // A process number has a meaning in one process namespace only.
        if self.both(identity, NAMESPACE, u64::MAX).is_none_or(|(own, its)| own != its) {
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
        let is_another = process_id(number, &pidfd).is_some_and(|found| is_another_process(its, found));
        // The same process, which has replaced its program (execve(2)): what the old program had mapped is gone.
        let is_another_program = pid == self.pid && self.differs(identity, PROGRAM, u64::MAX);
        if is_another || is_another_program || has_exited(&pidfd) {
            Fate::Gone
        } else {
            Fate::There
        }
    }
}

const LOW: u64 = 0xFFFF_FFFF;

/// A hash of two words, in 32 bits; never 0.
fn half(a: u64, b: u64) -> u64 {
    /// 2^64 divided by the golden ratio (Knuth, The Art of Computer Programming, volume 3, 6.4).
    const RATIO: u64 = 0x9E37_79B9_7F4A_7C15;
    let mixed = (a.wrapping_mul(RATIO) ^ b).wrapping_mul(RATIO);
    (mixed >> 32).max(1)
}

/// The file system of such descriptors since Linux 6.9 (`linux/magic.h`, PID_FS_MAGIC). It never uses an inode number
/// twice in a boot.
const PID_FS_MAGIC: i64 = 0x5049_4446;
/// Linux 6.11: a descriptor of the process's namespace (`linux/pidfd.h`, PIDFD_GET_PID_NAMESPACE).
const PIDFD_GET_PID_NAMESPACE: libc::c_ulong = 0xFF05;

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
    if fd >= 0 {
        // SAFETY: new, and owned by no other value.
        let namespace = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
        return namespace.metadata().ok().map(|meta| meta.ino());
    }
    proc::namespace("pid")
}

/// What distinguishes a process from another one that gets its number later in this boot: the inode of its descriptor, and 0 in the
/// lowest bit. If the kernel has no such inodes, or does not say so, it is the time at which the process started, and 1.
fn process_id(number: i32, pidfd: &OwnedFd) -> Option<u64> {
    if fstatfs(pidfd).is_ok_and(|fs| fs.filesystem_type().0 == PID_FS_MAGIC) {
        return nix::sys::stat::fstat(pidfd).ok().map(|stat| stat.st_ino << 1);
    }
    // As in the initial time namespace.
    let added_ticks = Clock::here().boot_added_ns()? / NS_PER_TICK;
    let started = proc::started(number)?.checked_add_signed(added_ticks.checked_neg()?)?;
    Some(started << 1 | 1)
}

/// Nanoseconds of a clock tick in proc(5), on every machine that Linux runs on here (`sysconf(3)`, _SC_CLK_TCK).
const NS_PER_TICK: i64 = 10_000_000;

/// Whether two of [`process_id`] are certainly of two processes. One process may be described in both ways: by one that the kernel
/// answers, and by one that it refuses an answer.
fn is_another_process(its: u64, found: u64) -> bool {
    match (its & 1, found & 1) {
        (0, 0) => its != 0 && its != found,
        // An offset of the clock is not a number of whole ticks.
        (1, 1) => (its >> 1).abs_diff(found >> 1) > 1,
        _ => false,
    }
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
    fn a_process_that_started_at_about_the_same_time_is_not_certainly_another() {
        let started = |ticks: u64| ticks << 1 | 1;
        assert!(!is_another_process(started(7), started(8)) && is_another_process(started(7), started(9)));
        assert!(!is_another_process(0, 14) && !is_another_process(started(7), 14) && !is_another_process(14, started(7)));
    }

    #[test]
    fn a_process_is_there_until_it_has_exited_waited_for_or_not() {
        let own = Process::current((1, 2));
        assert_eq!(own.fate_of(own.pid, own.identity), Fate::There);
        assert!(own.shares_locks(own.identity) && own.is_known());
        // Another boot, or another kernel: neither alive nor dead, and its locks would not be seen.
        let mut other_boot = own.identity;
        other_boot[PLACE] ^= 2;
        assert_eq!(own.fate_of(own.pid, other_boot), Fate::Unknown);
        assert_eq!(own.fate_of(1 << 30, other_boot), Fate::Unknown, "no process has this number");
        assert!(!own.shares_locks(other_boot));
        // The same file by another way.
        let mut other_file = own.identity;
        other_file[PLACE] ^= 2 << 32;
        assert_eq!(own.fate_of(own.pid, other_file), Fate::There);
        assert!(!own.shares_locks(other_file));
        // No boot is known.
        let mut no_boot = own.identity;
        no_boot[PLACE] &= !LOW;
        assert_eq!(own.fate_of(own.pid, no_boot), Fate::There);
        assert!(own.shares_locks(no_boot));
        let mut other_namespace = own.identity;
        other_namespace[NAMESPACE] += 1;
        assert_eq!(own.fate_of(own.pid, other_namespace), Fate::Unknown);
        let mut before_exec = own.identity;
        before_exec[PROGRAM] ^= 2;
        assert_eq!(own.fate_of(own.pid, before_exec), Fate::Gone);
        let mut other_process = own.identity;
        other_process[PROCESS] ^= 8;
        assert_eq!(own.fate_of(own.pid, other_process), Fate::Gone, "its number was used again");
        let mut described_otherwise = own.identity;
        described_otherwise[PROCESS] ^= 9;
        assert_eq!(own.fate_of(own.pid, described_otherwise), Fate::There);

        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let its = [
            own.identity[PLACE],
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
