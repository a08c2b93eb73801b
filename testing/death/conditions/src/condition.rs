//! The conditions, and how a process enters them: before it opens the cache, and after.

use crate::ledger::{Ledger, Role, Word};
use crate::system;
use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::resource::{Resource, setrlimit};
use nix::unistd::{Gid, Uid, chdir, chroot, pivot_root, setgid, setgroups, setuid};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Who owns the region where users differ; the neighbour is this one then.
pub const OWNER: u32 = 61_001;
/// A user of the same group.
pub const MEMBER: u32 = 61_002;
/// A user of another group.
pub const STRANGER: u32 = 61_003;
/// The group that may use the region.
pub const GROUP: u32 = 61_000;
/// Memory that a process in a control group of its own may have, bytes: enough for the program, and less than it would touch.
pub const CGROUP_MEMORY: u64 = 12 << 20;
/// Address space of a process that has little of it, bytes: some regions fit with their room to grow, others do not.
const ADDRESS_SPACE: u64 = 2 << 30;
/// A year, seconds.
const YEAR_S: i64 = 365 * 86_400;
/// An hour, seconds.
const HOUR_S: i64 = 3600;

/// See the top of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// nothing is odd
    Plain,
    /// closefrom(3) after the cache was opened
    CloseFrom,
    /// the same, and every number that was free or open is then a file of the program's own, which it writes to
    Reused,
    /// 0, 1 and 2 are closed when it starts, and it prints
    NoStdio,
    /// chroot(2) to an empty directory after the cache was opened
    Chroot,
    /// `pivot_root(2)` likewise
    PivotRoot,
    /// /proc is empty when it starts
    NoProc,
    /// /proc is made empty after the cache was opened
    ProcLost,
    /// /proc shows processes only (systemd's `ProcSubset=pid`): no boot id
    ProcSubset,
    /// a boot id of its own is mounted over the kernel's, as systemd-nspawn does it
    BootId,
    /// a pid namespace of its own, with its own /proc
    PidNamespace,
    /// a pid namespace of its own with the machine's /proc, which shows other numbers
    PidNamespaceForeignProc,
    /// a mount namespace of its own, where the region has another path
    MountNamespace,
    /// a time namespace whose clocks since boot are a day ahead
    TimeNamespace,
    /// the region's owner, not root
    Owner,
    /// a user of the group that may use the region
    Member,
    /// a user who may not
    Stranger,
    /// a user whose process may not be looked into, not even by itself (`PR_SET_DUMPABLE` 0)
    Undumpable,
    /// no descriptor more than it needs to attach, and none at all afterwards
    FewDescriptors,
    /// little address space
    LittleAddressSpace,
    /// no file of more than a mebibyte
    SmallFiles,
    /// a control group with less memory than the region has
    LittleMemory,
    /// it forks all the time, while other threads are inside calls; children use the cache, or outlive it
    Forks,
    /// it is stopped (SIGSTOP) and resumed after others have recovered many times
    Stopped,
    /// threads end without a word, with sessions open
    RawExits,
    /// the same, and /proc is empty
    RawExitsNoProc,
    /// it starts itself anew (execve), same pid, with sessions open
    Execs,
    /// no thread slot is free for its threads: a server writes for them
    Served,
    /// its wall clock is a year ahead
    ClockAhead,
    /// its wall clock is an hour behind
    ClockBack,
    /// its wall clock steps all the time, a year ahead and an hour back
    ClockStepped,
}

impl Condition {
    /// All of them, with their names.
    pub const ALL: [(Self, &'static str); 31] = [
        (Self::Plain, "plain"),
        (Self::CloseFrom, "closefrom"),
        (Self::Reused, "reused"),
        (Self::NoStdio, "no-stdio"),
        (Self::Chroot, "chroot"),
        (Self::PivotRoot, "pivot-root"),
        (Self::NoProc, "no-proc"),
        (Self::ProcLost, "proc-lost"),
        (Self::ProcSubset, "proc-subset"),
        (Self::BootId, "boot-id"),
        (Self::PidNamespace, "pid-ns"),
        (Self::PidNamespaceForeignProc, "pid-ns-foreign-proc"),
        (Self::MountNamespace, "mount-ns"),
        (Self::TimeNamespace, "time-ns"),
        (Self::Owner, "owner"),
        (Self::Member, "member"),
        (Self::Stranger, "stranger"),
        (Self::Undumpable, "undumpable"),
        (Self::FewDescriptors, "few-descriptors"),
        (Self::LittleAddressSpace, "little-address-space"),
        (Self::SmallFiles, "small-files"),
        (Self::LittleMemory, "little-memory"),
        (Self::Forks, "forks"),
        (Self::Stopped, "stopped"),
        (Self::RawExits, "raw-exits"),
        (Self::RawExitsNoProc, "raw-exits-no-proc"),
        (Self::Execs, "execs"),
        (Self::Served, "served"),
        (Self::ClockAhead, "clock-ahead"),
        (Self::ClockBack, "clock-back"),
        (Self::ClockStepped, "clock-stepped"),
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(c, _)| *c == self).map_or("", |(_, name)| name)
    }

    /// Whether the neighbour is the region's owner and not root.
    pub fn has_users(self) -> bool {
        matches!(self, Self::Owner | Self::Member | Self::Stranger | Self::Undumpable)
    }

    /// Whether a process may be refused, with an error, or ended by the kernel: the condition is a limit.
    pub fn is_limit(self) -> bool {
        matches!(
            self,
            Self::Stranger | Self::Undumpable | Self::FewDescriptors | Self::LittleAddressSpace | Self::LittleMemory
        )
    }

    /// How far its wall clock is off at a turn of its first thread, seconds.
    pub fn clock_off_s(self, turn: u64) -> i64 {
        match (self, turn / 16 % 3) {
            (Self::ClockAhead, _) | (Self::ClockStepped, 1) => YEAR_S,
            (Self::ClockBack, _) | (Self::ClockStepped, 2) => -HOUR_S,
            _ => 0,
        }
    }

    /// Enters what there is to enter before the cache is opened, in a process with one thread. `folder` is an empty place of the
    /// process's own, `region` the directory of the region.
    ///
    /// # Errors
    ///
    /// What this machine does not allow.
    pub fn before(self, ledger: &Ledger, role: Role, folder: &Path, region: &Path) -> Result<(), String> {
        let said = |what: &'static str| move |e: Errno| format!("{what}: {e}");
        match self {
            Self::NoStdio => (0..3).for_each(system::close),
            Self::NoProc | Self::RawExitsNoProc => {
                private_mounts().map_err(said("a mount namespace"))?;
                hide_proc().map_err(said("a tmpfs over /proc"))?;
            }
            Self::ProcLost | Self::PivotRoot => private_mounts().map_err(said("a mount namespace"))?,
            Self::ProcSubset => {
                private_mounts().map_err(said("a mount namespace"))?;
                mount(Some("proc"), "/proc", Some("proc"), MsFlags::empty(), Some("subset=pid"))
                    .map_err(said("proc with subset=pid"))?;
            }
            Self::BootId => {
                private_mounts().map_err(said("a mount namespace"))?;
                let own = folder.join("boot-id");
                std::fs::write(&own, "01234567-89ab-cdef-0123-456789abcdef\n").map_err(|e| format!("a boot id: {e}"))?;
                let over = "/proc/sys/kernel/random/boot_id";
                mount(Some(&own), over, None::<&str>, MsFlags::MS_BIND, None::<&str>).map_err(said("a boot id of its own"))?;
            }
            Self::PidNamespace | Self::PidNamespaceForeignProc => {
                unshare(CloneFlags::CLONE_NEWPID).map_err(said("a pid namespace"))?;
                system::go_on_in_child(|pid| record_pid(ledger, role, pid)).map_err(said("fork"))?;
                if self == Self::PidNamespace {
                    private_mounts().map_err(said("a mount namespace"))?;
                    mount(Some("proc"), "/proc", Some("proc"), MsFlags::empty(), None::<&str>).map_err(said("its own /proc"))?;
                }
            }
            Self::MountNamespace => {
                private_mounts().map_err(said("a mount namespace"))?;
                mount(Some(region), folder, None::<&str>, MsFlags::MS_BIND, None::<&str>).map_err(said("a bind mount"))?;
                let tmpfs = mount(Some("tmpfs"), region, Some("tmpfs"), MsFlags::empty(), None::<&str>);
                tmpfs.map_err(said("a tmpfs over the region's directory"))?;
            }
            Self::TimeNamespace => {
                unshare(CloneFlags::from_bits_retain(nix::libc::CLONE_NEWTIME)).map_err(said("a time namespace"))?;
                std::fs::write("/proc/self/timens_offsets", "monotonic 86400 0\nboottime 86400 0\n")
                    .map_err(|e| format!("its offsets: {e}"))?;
                system::go_on_in_child(|pid| record_pid(ledger, role, pid)).map_err(said("fork"))?;
            }
            Self::Owner => become_user(OWNER, GROUP)?,
            Self::Member => become_user(MEMBER, GROUP)?,
            Self::Stranger => become_user(STRANGER, STRANGER)?,
            Self::Undumpable => {
                become_user(MEMBER, GROUP)?;
                nix::sys::prctl::set_dumpable(false).map_err(said("PR_SET_DUMPABLE"))?;
            }
            Self::FewDescriptors => limit(Resource::RLIMIT_NOFILE, 12)?,
            Self::LittleAddressSpace => limit(Resource::RLIMIT_AS, ADDRESS_SPACE)?,
            Self::SmallFiles => limit(Resource::RLIMIT_FSIZE, 1 << 20)?,
            Self::LittleMemory => join_cgroup(folder)?,
            _ => {}
        }
        Ok(())
    }

    /// Enters what there is to enter after the cache was opened and its threads have begun. `folder` is an empty directory.
    ///
    /// # Errors
    ///
    /// What this machine does not allow.
    pub fn after(self, folder: &Path, decoy: &Decoy) -> Result<(), String> {
        let said = |what: &'static str| move |e: Errno| format!("{what}: {e}");
        match self {
            Self::CloseFrom => system::close_from(3),
            Self::Reused => decoy.take_numbers(),
            Self::Chroot => {
                chroot(folder).map_err(said("chroot"))?;
                chdir("/").map_err(said("chdir"))?;
            }
            Self::PivotRoot => {
                mount(Some("tmpfs"), folder, Some("tmpfs"), MsFlags::empty(), None::<&str>).map_err(said("a tmpfs"))?;
                chdir(folder).map_err(said("chdir"))?;
                pivot_root(".", ".").map_err(said("pivot_root"))?;
                umount2(".", MntFlags::MNT_DETACH).map_err(said("the old root"))?;
                chdir("/").map_err(said("chdir"))?;
            }
            Self::ProcLost => hide_proc().map_err(said("a tmpfs over /proc"))?,
            Self::FewDescriptors => limit(Resource::RLIMIT_NOFILE, 0)?,
            _ => {}
        }
        Ok(())
    }
}

fn record_pid(ledger: &Ledger, role: Role, pid: i32) {
    ledger.write(role, Word::Pid, u64::try_from(pid).unwrap_or(0));
}

/// From now on what is mounted here is mounted here only.
///
/// # Errors
///
/// unshare(2)'s and mount(2)'s.
pub fn private_mounts() -> nix::Result<()> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    mount(
        None::<&str>,
        "/",
        None::<&str>,
        MsFlags::MS_REC | MsFlags::MS_PRIVATE,
        None::<&str>,
    )
}

fn hide_proc() -> nix::Result<()> {
    mount(Some("tmpfs"), "/proc", Some("tmpfs"), MsFlags::empty(), None::<&str>)
}

/// Becomes a user; the process stays one that may look at itself, as after an exec.
///
/// # Errors
///
/// What was refused.
pub fn become_user(user: u32, group: u32) -> Result<(), String> {
    setgroups(&[])
        .and_then(|()| setgid(Gid::from_raw(group)))
        .and_then(|()| setuid(Uid::from_raw(user)))
        .and_then(|()| nix::sys::prctl::set_dumpable(true))
        .map_err(|e| format!("becoming user {user}: {e}"))
}

fn limit(resource: Resource, most: u64) -> Result<(), String> {
    setrlimit(resource, most, most).map_err(|e| format!("setrlimit: {e}"))
}

/// The control group of a cell with this folder, and the files of it that hold the limit and the processes: version 1 or 2.
fn cgroup(folder: &Path) -> Result<(PathBuf, &'static str), String> {
    let names: Vec<_> = folder.iter().rev().take(3).filter_map(|n| n.to_str()).collect();
    let name = format!("keyway-{}", names.join("-"));
    let root = Path::new("/sys/fs/cgroup");
    if root.join("memory/cgroup.procs").exists() {
        return Ok((root.join("memory").join(name), "memory.limit_in_bytes"));
    }
    let controllers = std::fs::read_to_string(root.join("cgroup.subtree_control")).unwrap_or_default();
    if controllers.split_whitespace().any(|c| c == "memory") {
        Ok((root.join(name), "memory.max"))
    } else {
        Err("no control group for memory can be made in /sys/fs/cgroup".to_owned())
    }
}

fn join_cgroup(folder: &Path) -> Result<(), String> {
    let (group, limit) = cgroup(folder)?;
    let made = std::fs::create_dir(&group).or_else(|e| if group.is_dir() { Ok(()) } else { Err(e) });
    made.and_then(|()| std::fs::write(group.join(limit), CGROUP_MEMORY.to_string()))
        .and_then(|()| std::fs::write(group.join("cgroup.procs"), std::process::id().to_string()))
        .map_err(|e| format!("{}: {e}", group.display()))
}

/// Removes the control group of a cell, when its processes have ended.
pub fn leave_cgroup(folder: &Path) {
    if let Ok((group, _)) = cgroup(folder) {
        let _ = std::fs::remove_dir(group);
    }
}

/// A file of the odd program's own, that is open wherever descriptors were: what the library must leave alone.
#[derive(Debug, Default)]
pub struct Decoy {
    path: CString,
    identity: (u64, u64),
}

/// Numbers that the decoy takes: those that a small program's library can have got.
const NUMBERS: std::ops::Range<i32> = 3..40;
/// What it holds, and stays to hold.
const CONTENT: &[u8] = b"a program's own file, of which nothing may change\n";

impl Decoy {
    /// Makes the file.
    ///
    /// # Errors
    ///
    /// It cannot be made.
    pub fn new(path: &Path) -> Result<Self, String> {
        let text = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
        std::fs::write(path, CONTENT).map_err(|e| text(&e))?;
        let meta = std::fs::metadata(path).map_err(|e| text(&e))?;
        Ok(Self {
            path: CString::new(path.as_os_str().as_bytes()).map_err(|e| text(&e))?,
            identity: (meta.dev(), meta.ino()),
        })
    }

    /// Is open at every number from now on, also at those that were open far above.
    pub fn take_numbers(&self) {
        let open: Vec<i32> = std::fs::read_dir("/proc/self/fd").map_or_else(
            |_| Vec::new(),
            |entries| {
                let names = entries.flatten().map(|e| e.file_name());
                names.filter_map(|n| n.to_str().and_then(|n| n.parse().ok())).collect()
            },
        );
        system::close_from(3);
        for number in NUMBERS.chain(open.into_iter().filter(|n| !NUMBERS.contains(n) && *n > 2)) {
            system::open_at(&self.path, number);
        }
    }

    /// Writes to it through one of its numbers, what it holds anyway.
    pub fn write(&self, turn: u64) {
        let count = u64::try_from(NUMBERS.len()).unwrap_or(1);
        let number = NUMBERS.start + i32::try_from(turn % count).unwrap_or(0);
        system::write_at_start(number, CONTENT);
    }

    /// A number that is the program's own, and closed by another.
    pub fn missing_number(&self) -> Option<i32> {
        NUMBERS.into_iter().find(|n| system::identity_of(*n) != Some(self.identity))
    }

    /// Whether the file at this path is what it was made to be.
    pub fn is_untouched(path: &Path) -> bool {
        std::fs::read(path).is_ok_and(|bytes| bytes == CONTENT)
    }
}
