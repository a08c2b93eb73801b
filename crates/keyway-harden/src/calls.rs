//! System calls that lead past the gate. Seccomp (seccomp(2)) refuses them: they fail with EPERM, for this process and
//! for all processes that it starts.

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as Len, SeccompCmpOp as Op, SeccompCondition as Condition, SeccompFilter,
    SeccompRule,
};
use std::collections::BTreeMap;
use std::ops::Range;

/// Refused, whatever their arguments.
const REFUSED: &[i64] = &[
    // The memory of other processes, and this process's own memory without its keys.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_userfaultfd,
    // The stripes of the kernel door, by their map.
    libc::SYS_bpf,
    // Seccomp does not see the requests of io_uring.
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    // Keys are not freed, allocated, or put on other memory.
    libc::SYS_pkey_alloc,
    libc::SYS_pkey_free,
    libc::SYS_pkey_mprotect,
    libc::SYS_remap_file_pages,
    // Files without their paths.
    libc::SYS_open_by_handle_at,
];

/// Once its mode, its owner or its access control list (an extended attribute) says so, another user can read the
/// region's file. No path is needed for such a change, so Landlock does not see it. The calls without a name here are new
/// in Linux 6.6 and later; newer processors have no calls that newer calls replace.
const REFUSED_RIGHTS: &[i64] = &[
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chmod,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    SYS_FCHMODAT2,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chown,
    libc::SYS_fchown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lchown,
    libc::SYS_fchownat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    SYS_SETXATTRAT,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
    SYS_REMOVEXATTRAT,
    SYS_FILE_SETATTR,
];
const SYS_FCHMODAT2: i64 = 452;
const SYS_SETXATTRAT: i64 = 463;
const SYS_REMOVEXATTRAT: i64 = 466;
const SYS_FILE_SETATTR: i64 = 469;

/// The bit of the x32 interface's numbers (Linux, arch/x86/include/uapi/asm/unistd.h), and that interface's own numbers
/// of refused calls (arch/x86/entry/syscalls/syscall_64.tbl).
const X32: i64 = 0x4000_0000;
const REFUSED_X32: &[i64] = &[X32 + 521, X32 + 539, X32 + 540];

/// madvise(2): advices that destroy a mapping's contents, give it to children, or treat its pages as broken (root only).
const MADV_REMOVE: u64 = 9;
const MADV_DOFORK: u64 = 11;
const MADV_HWPOISON: u64 = 100;
const MADV_SOFT_OFFLINE: u64 = 101;
/// Makes accesses fault, even in a sealed mapping.
const MADV_GUARD_INSTALL: u64 = 102;
/// The request for which /dev/userfaultfd is opened, which root can do: it makes a userfaultfd without the system call of
/// that name (ioctl_userfaultfd(2)).
const USERFAULTFD_IOC_NEW: u64 = 0xAA00;
const PR_SET_DUMPABLE: u64 = 4;
const PROT_EXEC: u64 = 4;

/// What else the filter refuses.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wishes {
    /// A mapping that the kernel has not sealed: calls about an address in it are refused. A range that begins before it
    /// is not detected.
    pub unsealed: Option<Range<usize>>,
    /// new executable mappings
    pub new_code: bool,
    /// changes of files' modes, owners and extended attributes
    pub rights: bool,
}

/// The filter.
pub(crate) fn filter(wishes: &Wishes) -> Result<BpfProgram, String> {
    let mut rules: Rules = BTreeMap::new();
    let rights = if wishes.rights { REFUSED_RIGHTS } else { &[] };
    for number in REFUSED.iter().chain(rights) {
        rules.insert(*number, vec![]);
        rules.insert(number | X32, vec![]);
    }
    for number in REFUSED_X32 {
        rules.insert(*number, vec![]);
    }
    let mut add_refusal = |number: i64, conditions: &[Condition]| add_refusal(&mut rules, number, conditions);
    for advice in [MADV_REMOVE, MADV_DOFORK, MADV_HWPOISON, MADV_SOFT_OFFLINE] {
        add_refusal(libc::SYS_madvise, &[condition(2, Len::Dword, Op::Eq, advice)?])?;
    }
    add_refusal(libc::SYS_ioctl, &[condition(1, Len::Dword, Op::Eq, USERFAULTFD_IOC_NEW)?])?;
    add_refusal(libc::SYS_prctl, &[condition(0, Len::Dword, Op::Eq, PR_SET_DUMPABLE)?])?;
    if wishes.new_code {
        for number in [libc::SYS_mmap, libc::SYS_mprotect] {
            add_refusal(number, &[condition(2, Len::Dword, Op::MaskedEq(PROT_EXEC), PROT_EXEC)?])?;
        }
    }
    if let Some(range) = &wishes.unsealed {
        let calls = [
            (libc::SYS_munmap, 0),
            (libc::SYS_mremap, 0),
            (libc::SYS_mremap, 4),
            (libc::SYS_mprotect, 0),
            (libc::SYS_mmap, 0),
            (libc::SYS_shmat, 1),
        ];
        for (number, argument) in calls {
            let conditions = [
                condition(argument, Len::Qword, Op::Ge, range.start as u64)?,
                condition(argument, Len::Qword, Op::Lt, range.end as u64)?,
            ];
            add_refusal(number, &conditions)?;
        }
    }
    compiled(rules, libc::EPERM)
}

/// Calls that fail as in an older kernel that does not know them: the C library then works without them.
fn unknown() -> Result<BpfProgram, String> {
    let mut rules: Rules = BTreeMap::new();
    add_refusal(
        &mut rules,
        libc::SYS_madvise,
        &[condition(2, Len::Dword, Op::Eq, MADV_GUARD_INSTALL)?],
    )?;
    compiled(rules, libc::EINVAL)
}

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

fn add_refusal(rules: &mut Rules, number: i64, conditions: &[Condition]) -> Result<(), String> {
    for number in [number, number | X32] {
        let rule = SeccompRule::new(conditions.to_vec()).map_err(|e| e.to_string())?;
        rules.entry(number).or_default().push(rule);
    }
    Ok(())
}

/// The filter with which these calls fail with this error.
fn compiled(rules: Rules, error: i32) -> Result<BpfProgram, String> {
    let refused = SeccompAction::Errno(error.cast_unsigned());
    let arch = std::env::consts::ARCH.try_into().map_err(|e| format!("{e}"))?;
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refused, arch).map_err(|e| e.to_string())?;
    filter.try_into().map_err(|e: seccompiler::BackendError| e.to_string())
}

fn condition(argument: u8, len: Len, op: Op, value: u64) -> Result<Condition, String> {
    Condition::new(argument, len, op, value).map_err(|e| e.to_string())
}

/// Refuses from here on, for all threads and for all programs that are started.
pub(crate) fn install_filters(wishes: &Wishes) -> Result<(), String> {
    for filter in [unknown()?, filter(wishes)?] {
        seccompiler::apply_filter_all_threads(&filter).map_err(|e| format!("seccomp: {e}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_can_be_made_of_every_wish() {
        let none = filter(&Wishes::default()).unwrap().len();
        let wishes = Wishes {
            unsealed: Some(0x7000_0000_0000..0x7100_0000_0000),
            new_code: true,
            rights: true,
        };
        let all = filter(&wishes).unwrap().len();
        assert!(none > REFUSED.len() && all > none, "{none} {all}");
    }
}
