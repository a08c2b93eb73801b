//! System calls that lead past the gate, refused by seccomp (seccomp(2)): they fail with EPERM, for this process and for whatever
//! it starts.

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as Len, SeccompCmpOp as Op, SeccompCondition as Condition, SeccompFilter,
    SeccompRule,
};
use std::collections::BTreeMap;
use std::ops::Range;

/// Refused whatever their arguments.
const REFUSED: &[i64] = &[
    // Others' memory, and this process's own, past its keys.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_userfaultfd,
    // The stripes of the kernel door by their map.
    libc::SYS_bpf,
    // Its requests are not seen by seccomp.
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    // Keys are not given back, given out or laid anew.
    libc::SYS_pkey_alloc,
    libc::SYS_pkey_free,
    libc::SYS_pkey_mprotect,
    libc::SYS_remap_file_pages,
    // Files without their paths.
    libc::SYS_open_by_handle_at,
];

/// The bit of the x32 interface's numbers (Linux, arch/x86/include/uapi/asm/unistd.h), and those of its own for refused calls
/// (arch/x86/entry/syscalls/syscall_64.tbl).
const X32: i64 = 0x4000_0000;
const REFUSED_X32: &[i64] = &[X32 + 521, X32 + 539, X32 + 540];

/// madvise(2), advices that destroy a mapping's contents or hand it to children.
const MADV_REMOVE: u64 = 9;
const MADV_DOFORK: u64 = 11;
const PR_SET_DUMPABLE: u64 = 4;
const PROT_EXEC: u64 = 4;

/// What the filter is to refuse besides.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wishes {
    /// A mapping that the kernel has not sealed: calls about an address in it are refused. A range that begins before it is
    /// not seen.
    pub unsealed: Option<Range<usize>>,
    /// new executable mappings
    pub new_code: bool,
}

/// The filter.
pub(crate) fn filter(wishes: &Wishes) -> Result<BpfProgram, String> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    for number in REFUSED {
        rules.insert(*number, vec![]);
        rules.insert(number | X32, vec![]);
    }
    for number in REFUSED_X32 {
        rules.insert(*number, vec![]);
    }
    let mut refuse_if = |number: i64, conditions: &[Condition]| -> Result<(), String> {
        for number in [number, number | X32] {
            let rule = SeccompRule::new(conditions.to_vec()).map_err(|e| e.to_string())?;
            rules.entry(number).or_default().push(rule);
        }
        Ok(())
    };
    for advice in [MADV_REMOVE, MADV_DOFORK] {
        refuse_if(libc::SYS_madvise, &[condition(2, Len::Dword, Op::Eq, advice)?])?;
    }
    refuse_if(libc::SYS_prctl, &[condition(0, Len::Dword, Op::Eq, PR_SET_DUMPABLE)?])?;
    if wishes.new_code {
        for number in [libc::SYS_mmap, libc::SYS_mprotect] {
            refuse_if(number, &[condition(2, Len::Dword, Op::MaskedEq(PROT_EXEC), PROT_EXEC)?])?;
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
            refuse_if(number, &conditions)?;
        }
    }
    let refused = SeccompAction::Errno(libc::EPERM.cast_unsigned());
    let arch = std::env::consts::ARCH.try_into().map_err(|e| format!("{e}"))?;
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refused, arch).map_err(|e| e.to_string())?;
    filter.try_into().map_err(|e: seccompiler::BackendError| e.to_string())
}

fn condition(argument: u8, len: Len, op: Op, value: u64) -> Result<Condition, String> {
    Condition::new(argument, len, op, value).map_err(|e| e.to_string())
}

/// From here on, for all threads and for whatever is started.
pub(crate) fn refuse(wishes: &Wishes) -> Result<(), String> {
    seccompiler::apply_filter_all_threads(&filter(wishes)?).map_err(|e| format!("seccomp: {e}"))
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
        };
        let all = filter(&wishes).unwrap().len();
        assert!(none > REFUSED.len() && all > none, "{none} {all}");
    }
}
