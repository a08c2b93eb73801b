//! A server's own confinement: once it serves, it gives up the rights that serving does not need. An attacker that finds
//! a way to run code in it then has its sockets, its region and the few files of its options. The attacker has no way to
//! start a program, to connect anywhere, to bind another port, to open other files, or to gain a right.
//!
//! The main thread calls this before it starts other threads: Landlock, capabilities and `no_new_privs` belong to a
//! thread, and the threads that it starts inherit them.
//!
//! | what | by |
//! |---|---|
//! | no program that is started gains a right | `PR_SET_NO_NEW_PRIVS` |
//! | files, TCP ports, other processes' abstract sockets | Landlock (Linux 5.13; ports 6.7; sockets 6.12) |
//! | system calls: those that serving needs, and no others | seccomp |
//! | root's rights | capabilities |
//!
//! # Safety
//!
//! The `unsafe` here is system calls on this thread itself. The structures that they get live longer than the calls.

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetStatus, Scope,
};
use seccompiler::{
    SeccompAction, SeccompCmpArgLen as Len, SeccompCmpOp as Op, SeccompCondition as Condition, SeccompFilter, SeccompRule,
};
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The newest rights that are requested. An older kernel grants those that it has.
const NEWEST: ABI = ABI::V6;

/// What a server still needs while it serves.
#[derive(Clone, Debug, Default)]
pub struct Needs {
    /// files that it opens again for reading and writing: the region's
    pub files: Vec<PathBuf>,
    /// files that it reads again and that may be replaced meanwhile: they are identified by their folders
    pub read_again: Vec<PathBuf>,
    /// files that it removes at its end, if they are still its own
    pub removed_at_end: Vec<PathBuf>,
    /// folders into which the kernel may write a core file on its behalf
    pub core_files: Option<PathBuf>,
    /// it creates rings of io_uring
    pub io_uring: bool,
    /// it shows connections to a BPF program, and removes the program from its interfaces at the end
    pub kernel_door: bool,
    /// its memory is locked, and future memory is to be locked too
    pub locked_memory: bool,
}

/// The result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Confined {
    /// whether Landlock closes files, partly or fully
    pub landlock: bool,
    /// the remaining capabilities, in bits
    pub capabilities: u64,
}

/// What a server reads in /proc and /sys to find out how much memory there is, and whether other processes are alive.
const READ: [&str; 2] = ["/proc", "/sys/fs/cgroup"];

const CAP_DAC_OVERRIDE: u32 = 1;
const CAP_NET_ADMIN: u32 = 12;
const CAP_IPC_LOCK: u32 = 14;
const CAP_BPF: u32 = 39;

/// Calls that serving needs, whatever their arguments.
const ALLOWED: &[i64] = &[
    // Open descriptors.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_lseek,
    libc::SYS_fcntl,
    libc::SYS_flock,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_ioctl,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_sync_file_range,
    libc::SYS_fadvise64,
    // Files: Landlock decides which.
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_unlinkat,
    libc::SYS_getdents64,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_statfs,
    libc::SYS_fstatfs,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_readlinkat,
    libc::SYS_getcwd,
    // Memory.
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_mincore,
    libc::SYS_msync,
    libc::SYS_mlock,
    libc::SYS_mlock2,
    libc::SYS_munlock,
    libc::SYS_mlockall,
    libc::SYS_munlockall,
    libc::SYS_brk,
    libc::SYS_mbind,
    libc::SYS_get_mempolicy,
    libc::SYS_set_mempolicy,
    libc::SYS_membarrier,
    // Threads, signals and time.
    libc::SYS_futex,
    libc::SYS_futex_waitv,
    libc::SYS_set_robust_list,
    libc::SYS_get_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_rseq,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_setaffinity,
    libc::SYS_getcpu,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_getgroups,
    libc::SYS_getrusage,
    libc::SYS_prlimit64,
    libc::SYS_sysinfo,
    libc::SYS_uname,
    libc::SYS_prctl,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigpending,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_sigaltstack,
    libc::SYS_tgkill,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_getrandom,
    // To find out whether another process is alive.
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_send_signal,
    // Existing sockets, and the connections that they accept.
    libc::SYS_accept4,
    libc::SYS_shutdown,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_socketpair,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_eventfd2,
    libc::SYS_pipe2,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
];

/// Calls that newer architectures do not have.
#[cfg(target_arch = "x86_64")]
const ALLOWED_OLD: &[i64] = &[
    libc::SYS_open,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_access,
    libc::SYS_readlink,
    libc::SYS_unlink,
    libc::SYS_dup2,
    libc::SYS_epoll_wait,
    libc::SYS_poll,
    libc::SYS_select,
    libc::SYS_time,
    libc::SYS_arch_prctl,
    libc::SYS_getrlimit,
];
#[cfg(not(target_arch = "x86_64"))]
const ALLOWED_OLD: &[i64] = &[];

const IO_URING: &[i64] = &[
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
];
/// Counters and maps of the program, and the sockets of connections that it may answer (`BPF_MAP_UPDATE_ELEM`); netlink to remove it; and an abstract name that decides which process removes it.
const KERNEL_DOOR: &[i64] = &[libc::SYS_bpf, libc::SYS_bind];

/// Gives up everything else, for this thread and for all that it starts, permanently.
///
/// # Errors
///
/// The step that failed. The steps before it stay in force.
pub fn confine(needs: &Needs) -> Result<Confined, String> {
    // SAFETY: prctl(2) with numbers.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
        return Err(format!("no_new_privs: {}", std::io::Error::last_os_error()));
    }
    let capabilities = drop_capabilities(needs)?;
    let landlock = close_files(needs)?;
    for filter in filters(needs)? {
        seccompiler::apply_filter_all_threads(&filter).map_err(|error| format!("seccomp: {error}"))?;
    }
    Ok(Confined { landlock, capabilities })
}

/// The folder in which a file is found again by its name.
fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}

fn close_files(needs: &Needs) -> Result<bool, String> {
    let failed = |error: &dyn std::fmt::Display| format!("Landlock: {error}");
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let mut rules: Vec<(PathBuf, BitFlags<AccessFs>)> = Vec::new();
    rules.extend(READ.map(|path| (path.into(), read)));
    // Counters are kept for each possible CPU.
    rules.extend(needs.kernel_door.then(|| ("/sys/devices/system/cpu".into(), read)));
    let own = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::Truncate;
    rules.extend(needs.files.iter().map(|path| (path.clone(), own)));
    rules.extend(
        needs
            .read_again
            .iter()
            .map(|path| (folder(path).to_owned(), AccessFs::ReadFile.into())),
    );
    // A file is removed if it is still this server's. The file's contents show that.
    let remove = AccessFs::ReadFile | AccessFs::RemoveFile;
    rules.extend(needs.removed_at_end.iter().map(|path| (folder(path).to_owned(), remove)));
    let write = AccessFs::WriteFile | AccessFs::MakeReg | AccessFs::Truncate;
    rules.extend(needs.core_files.iter().map(|path| (path.clone(), write)));
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(NEWEST))
        .and_then(|ruleset| ruleset.handle_access(AccessNet::from_all(NEWEST)))
        .and_then(|ruleset| ruleset.scope(Scope::AbstractUnixSocket))
        .and_then(Ruleset::create)
        .map_err(|error| failed(&error))?;
    for (path, rights) in rules {
        // A path that does not exist needs no permission.
        let Ok(opened) = PathFd::new(&path) else { continue };
        let rights = if path.is_dir() {
            rights
        } else {
            rights & AccessFs::from_file(NEWEST)
        };
        ruleset = ruleset
            .add_rule(PathBeneath::new(opened, rights))
            .map_err(|error| failed(&format_args!("{}: {error}", path.display())))?;
    }
    let status = ruleset.restrict_self().map_err(|error| failed(&error))?;
    Ok(status.ruleset != RulesetStatus::NotEnforced)
}

/// One filter that permits the calls that are needed and refuses all others (EPERM), and one that is installed before it.
/// The earlier filter makes the newer call that starts a thread look unknown. The C library then uses an older call,
/// whose flags a filter can see.
fn filters(needs: &Needs) -> Result<[seccompiler::BpfProgram; 2], String> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    let mut lists = vec![ALLOWED, ALLOWED_OLD];
    if needs.io_uring {
        lists.push(IO_URING);
    }
    if needs.kernel_door {
        lists.push(KERNEL_DOOR);
    }
    rules.extend(lists.into_iter().flatten().map(|number| (*number, vec![])));
    // The other filter refuses it.
    rules.insert(libc::SYS_clone3, vec![]);
    let mut allow_if = |number: i64, argument: u8, op: Op, value: u64| -> Result<(), String> {
        let condition = Condition::new(argument, Len::Dword, op, value).map_err(|error| error.to_string())?;
        let rule = SeccompRule::new(vec![condition]).map_err(|error| error.to_string())?;
        rules.entry(number).or_default().push(rule);
        Ok(())
    };
    let number = |number: libc::c_int| u64::from(number.cast_unsigned());
    // New threads, but no new processes.
    allow_if(
        libc::SYS_clone,
        0,
        Op::MaskedEq(number(libc::CLONE_THREAD)),
        number(libc::CLONE_THREAD),
    )?;
    // No new code.
    for call in [libc::SYS_mmap, libc::SYS_mprotect] {
        allow_if(call, 2, Op::MaskedEq(number(libc::PROT_EXEC)), 0)?;
    }
    if needs.kernel_door {
        for family in [libc::AF_NETLINK, libc::AF_UNIX] {
            allow_if(libc::SYS_socket, 0, Op::Eq, number(family))?;
        }
    }
    let arch = || std::env::consts::ARCH.try_into().map_err(|error| format!("{error}"));
    let errno = |error: i32| SeccompAction::Errno(error.cast_unsigned());
    let compiled = |rules, otherwise, matching| {
        let filter = SeccompFilter::new(rules, otherwise, matching, arch()?).map_err(|error| error.to_string())?;
        filter
            .try_into()
            .map_err(|error: seccompiler::BackendError| error.to_string())
    };
    let clone3 = BTreeMap::from([(libc::SYS_clone3, vec![])]);
    Ok([
        compiled(clone3, SeccompAction::Allow, errno(libc::ENOSYS))?,
        compiled(rules, errno(libc::EPERM), SeccompAction::Allow)?,
    ])
}

/// capget(2), capset(2)
#[repr(C)]
struct CapabilityHeader {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct CapabilityData {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// _LINUX_CAPABILITY_VERSION_3
const CAPABILITY_VERSION: u32 = 0x2008_0522;

/// Keeps the needed capabilities among those that the process has. Returns the capabilities that are left.
fn drop_capabilities(needs: &Needs) -> Result<u64, String> {
    let failed = |what: &str| format!("{what}: {}", std::io::Error::last_os_error());
    let mut header = CapabilityHeader {
        version: CAPABILITY_VERSION,
        pid: 0,
    };
    let mut data = [CapabilityData::default(); 2];
    // SAFETY: a header, and space for the two words of this version.
    if unsafe { libc::syscall(libc::SYS_capget, &raw mut header, data.as_mut_ptr()) } != 0 {
        return Err(failed("capget"));
    }
    let held = u64::from(data[0].permitted) | u64::from(data[1].permitted) << 32;
    let mut wanted = 0;
    if needs.kernel_door {
        wanted |= 1 << CAP_NET_ADMIN | 1 << CAP_BPF;
    }
    if needs.locked_memory {
        wanted |= 1 << CAP_IPC_LOCK;
    }
    if has_strangers_files(needs) {
        wanted |= 1 << CAP_DAC_OVERRIDE;
    }
    let kept: u64 = held & wanted;
    let halves = [kept & 0xFFFF_FFFF, kept >> 32].map(|half| u32::try_from(half).unwrap_or(0));
    for (data, half) in data.iter_mut().zip(halves) {
        *data = CapabilityData {
            effective: half,
            permitted: half,
            inheritable: 0,
        };
    }
    // SAFETY: as above.
    if unsafe { libc::syscall(libc::SYS_capset, &raw mut header, data.as_ptr()) } != 0 {
        return Err(failed("capset"));
    }
    Ok(kept)
}

/// Whether needed files belong to another user, so that only root can read or remove them.
fn has_strangers_files(needs: &Needs) -> bool {
    // SAFETY: a system call without arguments.
    let own = unsafe { libc::geteuid() };
    let paths = needs.files.iter().map(PathBuf::as_path);
    let again = needs.read_again.iter().flat_map(|path| [path.as_path(), folder(path)]);
    let removed = needs.removed_at_end.iter().map(|path| folder(path));
    paths
        .chain(again)
        .chain(removed)
        .any(|path| path.metadata().is_ok_and(|meta| meta.uid() != own))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_can_be_made_of_every_need() {
        let least = filters(&Needs::default()).unwrap();
        let most = filters(&Needs {
            io_uring: true,
            kernel_door: true,
            ..Needs::default()
        })
        .unwrap();
        assert!(most[1].len() > least[1].len() && least[1].len() > ALLOWED.len());
    }

    #[test]
    fn a_file_is_found_again_in_its_folder() {
        for (path, its) in [("/etc/keyway/users", "/etc/keyway"), ("users", "."), ("/users", "/")] {
            assert_eq!(folder(Path::new(path)), Path::new(its));
        }
    }
}
