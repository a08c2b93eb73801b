//! The ways, one function each.
//!
//! # Safety
//!
//! System calls that are to fail, and accesses that are to fault: the fault's handler jumps back. Whatever succeeds puts things back, or
//! has only read.
#![allow(unsafe_code, reason = "attempts on this process's own memory; contract above")]

use crate::library::{Cache, Library};
use libc::{c_int, c_long, c_void};
use std::io::Write;
use std::ops::Range;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering::SeqCst};

/// `Ok`: stopped. `Err`: what was got.
pub type Outcome = Result<(), String>;
/// A way's name, as the table in `docs/security.md` has it, and what came of it.
pub type Tried = (&'static str, Outcome);

const PAGE: usize = 4096;
/// Newer than the C library's names (Linux, include/uapi).
const MADV_GUARD_INSTALL: c_int = 102;
const USERFAULTFD_IOC_NEW: libc::Ioctl = 0xAA00;
const SYS_FCHMODAT2: c_long = 452;
const SYS_SETXATTRAT: c_long = 463;
const SYS_REMOVEXATTRAT: c_long = 466;
const SYS_FILE_SETATTR: c_long = 469;
/// `keyway.h`: codes from here on are failures.
const KEYWAY_ERROR_ARGUMENT: c_int = 16;

/// Tries all of them: on the region that the library opens by `place`, whose file is `file`, and which is mapped there.
pub fn all(library: &Library, place: &str, file: &str, region: Range<usize>) -> Vec<Tried> {
    let mut tried = vec![("verbs", verbs(library, place))];
    tried.extend(memory_of_processes(&region));
    tried.extend(keys(&region));
    tried.extend(mapping(&region));
    tried.extend(files(file));
    tried.extend(rights(file));
    tried.extend(code());
    tried.extend(others());
    tried.push(("forked-child", forked_child(library, place)));
    #[cfg(target_arch = "x86_64")]
    tried.extend(accesses(library, place, file, &region));
    tried
}

/// A call that is to be refused.
fn refused(result: c_long) -> Outcome {
    match result {
        -1 => Ok(()),
        got => Err(format!("the call gives {got}")),
    }
}

/// A call that is to be refused for what it is, not for its arguments.
fn denied(result: c_long) -> Outcome {
    let error = std::io::Error::last_os_error().raw_os_error();
    truth(result == -1 && error == Some(libc::EPERM), &format!("{result}, {error:?}"))
}

fn truth(stopped: bool, got: &str) -> Outcome {
    if stopped { Ok(()) } else { Err(got.to_owned()) }
}

/// What is allowed works, from eight threads; nothing of what `keyway exec` has set is left in the environment.
fn verbs(library: &Library, place: &str) -> Outcome {
    let cache = library.open(place).ok_or("keyway_open fails")?;
    let good = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8u8)
            .map(|thread| {
                scope.spawn(move || {
                    (0..200u32).all(|round| {
                        let value = [round.to_le_bytes().as_slice(), &[thread; 300]].concat();
                        cache.set(&[b'k', thread], &value) == 0 && cache.has(&[b'k', thread], &value)
                    })
                })
            })
            .collect();
        threads.into_iter().all(|thread| thread.join().unwrap_or(false))
    });
    let left = std::env::vars_os().any(|(name, _)| name == "LD_PRELOAD" || name.to_string_lossy().starts_with("KEYWAY_EXEC"));
    truth(
        good && !left,
        if left {
            "the environment has its variables"
        } else {
            "a verb failed"
        },
    )
}

fn memory_of_processes(region: &Range<usize>) -> Vec<Tried> {
    let mut byte = 0u8;
    let here = libc::iovec {
        iov_base: (&raw mut byte).cast(),
        iov_len: 1,
    };
    let there = libc::iovec {
        iov_base: std::ptr::with_exposed_provenance_mut(region.start),
        iov_len: 1,
    };
    let own = std::process::id().cast_signed();
    let opens = |write: bool| match std::fs::File::options().read(true).write(write).open("/proc/self/mem") {
        Err(_) => Ok(()),
        Ok(_) => Err("/proc/self/mem is open".to_owned()),
    };
    let (read, written) = vm_calls(own, &here, &there);
    vec![
        ("proc-mem-read", opens(false)),
        ("proc-mem-write", opens(true)),
        ("process-vm-readv", read),
        ("process-vm-writev", written),
        (
            "ptrace",
            // SAFETY: a call that is to be refused; a child that attaches ends at once, and lets go.
            by_child(|| unsafe { libc::ptrace(libc::PTRACE_ATTACH, own, 0, 0) }),
        ),
    ]
}

fn vm_calls(own: i32, here: &libc::iovec, there: &libc::iovec) -> (Outcome, Outcome) {
    // SAFETY: one byte is read, and written back.
    unsafe {
        let read = libc::process_vm_readv(own, here, 1, there, 1, 0);
        let written = libc::process_vm_writev(own, here, 1, there, 1, 0);
        (refused(read as c_long), refused(written as c_long))
    }
}

fn keys(region: &Range<usize>) -> Vec<Tried> {
    let call = |number, arguments: [usize; 4]| {
        // SAFETY: a call that is to be refused; it changes no rights but to what they are.
        refused(unsafe { libc::syscall(number, arguments[0], arguments[1], arguments[2], arguments[3]) })
    };
    vec![
        ("pkey-mprotect", call(libc::SYS_pkey_mprotect, [region.start, PAGE, 3, 0])),
        ("pkey-free", call(libc::SYS_pkey_free, [1, 0, 0, 0])),
        ("pkey-alloc", call(libc::SYS_pkey_alloc, [0, 0, 0, 0])),
    ]
}

fn mapping(region: &Range<usize>) -> Vec<Tried> {
    let start: *mut c_void = std::ptr::with_exposed_provenance_mut(region.start);
    let last: *mut c_void = std::ptr::with_exposed_provenance_mut(region.end - PAGE);
    let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // SAFETY: each is to be refused. They aim at the last page, which nothing uses, as far as they would destroy.
    unsafe {
        let mapped = libc::mmap(last, PAGE, 3, anonymous, -1, 0);
        vec![
            ("mmap-over", truth(mapped == libc::MAP_FAILED, "a page lies over the region")),
            ("mprotect", refused(c_long::from(libc::mprotect(last, PAGE, libc::PROT_READ)))),
            (
                "mremap",
                truth(
                    libc::mremap(
                        last,
                        PAGE,
                        PAGE,
                        libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED,
                        start.wrapping_byte_sub(1 << 30),
                    ) == libc::MAP_FAILED,
                    "a page of the region is elsewhere",
                ),
            ),
            ("munmap", refused(c_long::from(libc::munmap(last, PAGE)))),
            (
                "madvise-remove",
                refused(c_long::from(libc::madvise(last, PAGE, libc::MADV_REMOVE))),
            ),
            (
                "madvise-dofork",
                refused(c_long::from(libc::madvise(last, PAGE, libc::MADV_DOFORK))),
            ),
            (
                "madvise-guard",
                refused(c_long::from(libc::madvise(last, PAGE, MADV_GUARD_INSTALL))),
            ),
            (
                "madvise-poison",
                // Of an address that nothing is mapped at: a page that is taken for broken is lost to the machine.
                denied(c_long::from(libc::madvise(std::ptr::null_mut(), PAGE, libc::MADV_HWPOISON))),
            ),
        ]
    }
}

fn files(file: &str) -> Vec<Tried> {
    let opens = |path: &str, write: bool| std::fs::File::options().read(true).write(write).open(path).is_ok();
    let by_path = opens(file, false) || opens(file, true) || std::fs::remove_file(file).is_ok();
    // A descriptor that leads to the region must not be of use, nor be opened anew. Names may be asked about; files not.
    let identity = |path: &str| {
        use std::os::unix::fs::MetadataExt;
        std::fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()))
    };
    let region = identity(file);
    let by_descriptor = (0..1024).find(|number| {
        // SAFETY: a structure of numbers, filled in by the call; a byte is read from what leads to the region.
        unsafe {
            let mut about: libc::stat = std::mem::zeroed();
            let mut byte = 0u8;
            let leads = libc::fstat(*number, &raw mut about) == 0 && Some((about.st_dev, about.st_ino)) == region;
            let anew = format!("/proc/self/fd/{number}");
            leads && (libc::pread(*number, (&raw mut byte).cast(), 1, 0) > 0 || opens(&anew, false) || opens(&anew, true))
        }
    });
    let other = std::fs::read("/etc/passwd").is_ok() || std::fs::read("/proc/cpuinfo").is_ok();
    vec![
        ("region-file", truth(!by_path, "the region's file can be opened or removed")),
        (
            "descriptor",
            truth(by_descriptor.is_none(), &format!("descriptor {by_descriptor:?} can be read")),
        ),
        (
            "other-files",
            truth(other, "files that have nothing to do with it cannot be read"),
        ),
    ]
}

/// A user who may not open the file is let in by a change of its mode, owner or attributes.
fn rights(file: &str) -> Vec<Tried> {
    let file = std::ffi::CString::new(file).unwrap_or_default();
    let path = file.as_ptr();
    let text = |text: &'static std::ffi::CStr| text.as_ptr() as usize;
    let here = (libc::AT_FDCWD as isize).cast_unsigned();
    // SAFETY: structures of numbers; a path that ends in 0.
    let (mode, user, group, own) = unsafe {
        let mut about: libc::stat = std::mem::zeroed();
        libc::stat(path, &raw mut about);
        // What can be asked about only, and yet be changed by its descriptor.
        let own = libc::open(path, libc::O_PATH);
        (
            about.st_mode as usize & 0o7777,
            about.st_uid as usize,
            about.st_gid as usize,
            (own as isize).cast_unsigned(),
        )
    };
    // To what they are, and of an attribute that says nothing: what succeeds changes nothing.
    let (path, name, value) = (path as usize, text(c"user.keyway"), text(c"value"));
    let all = |calls: &[(c_long, [usize; 5])]| -> Outcome {
        for (number, [a, b, c, d, e]) in calls {
            // SAFETY: calls that are to be refused.
            denied(unsafe { libc::syscall(*number, *a, *b, *c, *d, *e) }).map_err(|got| format!("call {number}: {got}"))?;
        }
        Ok(())
    };
    vec![
        (
            "chmod",
            all(&[
                #[cfg(target_arch = "x86_64")]
                (libc::SYS_chmod, [path, mode, 0, 0, 0]),
                (libc::SYS_fchmod, [own, mode, 0, 0, 0]),
                (libc::SYS_fchmodat, [here, path, mode, 0, 0]),
                (SYS_FCHMODAT2, [here, path, mode, 0, 0]),
            ]),
        ),
        (
            "chown",
            all(&[
                #[cfg(target_arch = "x86_64")]
                (libc::SYS_chown, [path, user, group, 0, 0]),
                (libc::SYS_fchown, [own, user, group, 0, 0]),
                #[cfg(target_arch = "x86_64")]
                (libc::SYS_lchown, [path, user, group, 0, 0]),
                (libc::SYS_fchownat, [here, path, user, group, 0]),
            ]),
        ),
        (
            "xattr",
            all(&[
                (libc::SYS_setxattr, [path, name, value, 5, 0]),
                (libc::SYS_lsetxattr, [path, name, value, 5, 0]),
                (libc::SYS_fsetxattr, [own, name, value, 5, 0]),
                (SYS_SETXATTRAT, [here, path, 0, name, 0]),
                (libc::SYS_removexattr, [path, name, 0, 0, 0]),
                (libc::SYS_lremovexattr, [path, name, 0, 0, 0]),
                (libc::SYS_fremovexattr, [own, name, 0, 0, 0]),
                (SYS_REMOVEXATTRAT, [here, path, 0, name, 0]),
                (SYS_FILE_SETATTR, [here, path, 0, 0, 0]),
            ]),
        ),
    ]
}

fn code() -> Vec<Tried> {
    let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: fresh mappings of one page, which stay.
    unsafe {
        let both = libc::mmap(std::ptr::null_mut(), PAGE, 7, private, -1, 0);
        let page = libc::mmap(std::ptr::null_mut(), PAGE, 3, private, -1, 0);
        let gained = libc::mprotect(page, PAGE, libc::PROT_READ | libc::PROT_EXEC);
        let own = std::fs::File::open("/bin/sh").or_else(|_| std::fs::File::open("/bin/keyway"));
        let file = own.map_or(-1, std::os::fd::IntoRawFd::into_raw_fd);
        let mapped = libc::mmap(
            std::ptr::null_mut(),
            PAGE,
            libc::PROT_READ | libc::PROT_EXEC,
            libc::MAP_PRIVATE,
            file,
            0,
        );
        vec![
            (
                "writable-code",
                truth(both == libc::MAP_FAILED && gained == -1, "memory is writable and executable"),
            ),
            (
                "new-code",
                truth(mapped == libc::MAP_FAILED, "a file can be mapped executable"),
            ),
        ]
    }
}

fn others() -> Vec<Tried> {
    let call = |number| {
        // SAFETY: a call that is to be refused whatever its arguments.
        denied(unsafe { libc::syscall(number, 0usize, 0usize, 0usize, 0usize) })
    };
    // The device, or any other descriptor where there is none.
    let device = std::fs::File::options().read(true).write(true).open("/dev/userfaultfd");
    let device = device.map_or(0, std::os::fd::IntoRawFd::into_raw_fd);
    // SAFETY: prctl(2) with numbers.
    let dumpable = unsafe {
        (
            libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0),
            libc::prctl(libc::PR_GET_DUMPABLE, 0, 0, 0, 0),
        )
    };
    vec![
        ("bpf", call(libc::SYS_bpf)),
        ("io-uring", call(libc::SYS_io_uring_setup)),
        ("userfaultfd", call(libc::SYS_userfaultfd)),
        (
            "dev-userfaultfd",
            // SAFETY: a call that is to be refused whatever the descriptor is.
            denied(c_long::from(unsafe { libc::ioctl(device, USERFAULTFD_IOC_NEW, 0) })),
        ),
        ("pidfd-getfd", call(libc::SYS_pidfd_getfd)),
        ("x32", call(libc::SYS_pkey_free | 0x4000_0000)),
        ("dumpable", truth(dumpable == (-1, 0), &format!("{dumpable:?}"))),
    ]
}

/// A child tries it: its exit code is whether it was refused.
fn by_child(attempt: impl FnOnce() -> c_long) -> Outcome {
    // SAFETY: the child makes one system call and ends.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::_exit(c_int::from(attempt() != -1));
        }
        let mut status = 0;
        libc::waitpid(child, &raw mut status, 0);
        truth(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "a child did it")
    }
}

/// A forked child has neither the mapping nor a way to open the region; every call says so, and its parent's go on.
fn forked_child(library: &Library, place: &str) -> Outcome {
    let cache = library.open(place).ok_or("keyway_open fails")?;
    cache.set(b"parent", b"value");
    by_child(|| {
        let mut room = [0u8; 5];
        // SAFETY: the room is there.
        let got = unsafe { cache.get_to(b"parent", room.as_mut_ptr().cast(), room.len()) };
        let _ = writeln!(std::io::stderr(), "a forked child's get: {got}: {}", library.message());
        let set = cache.set(b"parent", b"child");
        let _ = writeln!(std::io::stderr(), "a forked child's set: {set}: {}", library.message());
        let is_refused = [got, set].iter().all(|code| *code >= KEYWAY_ERROR_ARGUMENT);
        if is_refused && room == [0; 5] { -1 } else { 0 }
    })?;
    truth(cache.has(b"parent", b"value"), "the parent's get fails behind it")
}

/// Where the handler of a fault finds what it is to go on with, and what it leaves.
static FAULT: AtomicI32 = AtomicI32::new(0);
static RESUME: AtomicUsize = AtomicUsize::new(0);

#[cfg(target_arch = "x86_64")]
mod machine {
    //! Accesses that may fault, and PKRU.
    use super::*;
    use std::arch::asm;

    // A handler that ends the thread that it runs in, and needs no stack.
    std::arch::global_asm!(
        ".globl gate_end_thread",
        "gate_end_thread:",
        "mov eax, 60",
        "xor edi, edi",
        "syscall"
    );
    unsafe extern "C" {
        pub(super) fn gate_end_thread();
    }

    /// Linux, include/uapi/asm-generic/siginfo.h.
    pub(super) const SEGV_PKUERR: i32 = 4;

    /// Goes on behind the access that faulted. The context restores PKRU as it was.
    pub(super) extern "C" fn on_fault(_: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
        // SAFETY: the kernel gives both.
        unsafe {
            FAULT.store((*info).si_code, SeqCst);
            let context = context.cast::<libc::ucontext_t>();
            (*context).uc_mcontext.gregs[libc::REG_RIP as usize] = RESUME.load(SeqCst).cast_signed() as i64;
        }
    }

    /// Reads a byte, or writes it back as it is; the code of the fault, 0 if there was none.
    pub(super) fn touch(at: usize, write: bool) -> i32 {
        FAULT.store(0, SeqCst);
        // SAFETY: the address where the handler goes on is in a static before the access; a write stores what was read.
        unsafe {
            asm!(
                "lea {resume}, [rip + 2f]",
                "mov [rip + {place}], {resume}",
                "test {write:e}, {write:e}",
                "jz 3f",
                "lock or byte ptr [{at}], 0",
                "jmp 2f",
                "3: mov {resume:l}, byte ptr [{at}]",
                "2:",
                resume = out(reg) _, at = in(reg) at, write = in(reg) u32::from(write), place = sym RESUME,
            );
        }
        FAULT.load(SeqCst)
    }

    /// The signal that a jump has ended with.
    static ENDED: AtomicI32 = AtomicI32::new(0);
    static STACK: AtomicUsize = AtomicUsize::new(0);

    /// Goes on where the jump was made from, on its stack, with PKRU as it was there.
    pub(super) extern "C" fn on_illegal(signal: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
        // SAFETY: the kernel gives the context.
        unsafe {
            ENDED.store(signal, SeqCst);
            let context = &mut *context.cast::<libc::ucontext_t>();
            context.uc_mcontext.gregs[libc::REG_RIP as usize] = RESUME.load(SeqCst).cast_signed() as i64;
            context.uc_mcontext.gregs[libc::REG_RSP as usize] = STACK.load(SeqCst).cast_signed() as i64;
        }
    }

    /// Jumps to a WRPKRU that is to open every key; the signal that it ends with.
    pub(super) fn jump(to: usize, zeros: usize) -> i32 {
        ENDED.store(0, SeqCst);
        let before = pkru().unwrap_or(0);
        // SAFETY: every register but the stack pointer is given up, and that comes back from a static. The code that ends the jump goes on at the
        // label; the memory that registers point to is zeros of ours, and nothing of it is believed later.
        unsafe {
            asm!(
                "push rbx",
                "push rbp",
                "lea rbx, [rip + 2f]",
                "mov [rip + {place}], rbx",
                "mov [rip + {stack}], rsp",
                "mov rbx, rsi",
                "mov rbp, rsi",
                "mov r8, rsi",
                "mov r9, rsi",
                "mov r10, rsi",
                "mov r11, rsi",
                "mov r12, rsi",
                "mov r13, rsi",
                "mov r14, rsi",
                "mov r15, rsi",
                "push rdi",
                "mov rdi, rsi",
                "xor eax, eax",
                "xor ecx, ecx",
                "xor edx, edx",
                "ret",
                "2:",
                "pop rbp",
                "pop rbx",
                place = sym RESUME, stack = sym STACK,
                in("rdi") to, in("rsi") zeros,
                lateout("rdi") _, lateout("rsi") _, out("rax") _, out("rcx") _, out("rdx") _,
                out("r8") _, out("r9") _, out("r10") _, out("r11") _, out("r12") _, out("r13") _, out("r14") _, out("r15") _,
            );
        }
        set_pkru(before);
        ENDED.load(SeqCst)
    }

    pub(super) fn pkru() -> Option<u32> {
        // Intel SDM, volume 2, CPUID leaf 7: OSPKE.
        if core::arch::x86_64::__cpuid_count(7, 0).ecx & 1 << 4 == 0 {
            return None;
        }
        let value: u32;
        // SAFETY: reads a register that is there.
        unsafe { asm!("rdpkru", in("ecx") 0, out("eax") value, out("edx") _, options(nomem, nostack)) };
        Some(value)
    }

    pub(super) fn set_pkru(value: u32) {
        // SAFETY: changes which accesses fault.
        unsafe { asm!("wrpkru", in("ecx") 0, in("edx") 0, in("eax") value, options(nostack)) };
    }

    /// Opens every key in the frame of the interrupted program, as an attacker who forges such a frame does.
    pub(super) extern "C" fn forge(_: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
        let offset = core::arch::x86_64::__cpuid_count(13, 9).ebx as usize;
        // SAFETY: the kernel saves PKRU there (Intel SDM, volume 1, 13.4.2).
        unsafe {
            let frame = (*context.cast::<libc::ucontext_t>()).uc_mcontext.fpregs.cast::<u8>();
            frame.add(offset).cast::<u32>().write_unaligned(0);
        }
    }

    pub(super) fn handle(signal: c_int, handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void)) {
        // SAFETY: a handler of the signature that SA_SIGINFO asks for.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
            libc::sigaction(signal, &raw const action, std::ptr::null_mut());
        }
    }
}

/// What a handler saw that came while the program was inside or not.
static SEEN: AtomicUsize = AtomicUsize::new(0);
static CAME: AtomicUsize = AtomicUsize::new(0);
static CAME_INSIDE: AtomicUsize = AtomicUsize::new(0);

#[cfg(target_arch = "x86_64")]
fn accesses(library: &Library, place: &str, file: &str, region: &Range<usize>) -> Vec<Tried> {
    use machine::{SEGV_PKUERR, forge, handle, on_fault, pkru, set_pkru, touch};
    handle(libc::SIGSEGV, on_fault);
    let closed = |write| match touch(region.start, write) {
        SEGV_PKUERR => Ok(()),
        0 => Err("no fault".to_owned()),
        other => Err(format!("a fault of another kind: {other}")),
    };
    let mut tried = vec![("stray-read", closed(false)), ("stray-write", closed(true))];
    let start = region.start;
    let there = std::thread::spawn(move || touch(start, true)).join().unwrap_or(0);
    tried.push(("other-thread", truth(there == SEGV_PKUERR, &format!("fault {there}"))));
    let Some(cache) = library.open(place) else { return tried };
    tried.push(("pointers", pointers(cache, region, touch(start, false))));
    tried.push(("signal-handler", handlers(cache)));
    let Some(before) = pkru() else { return tried };
    tried.push(("gate-jump", gate_jumps(library)));
    // What no process can close for itself.
    let len = std::fs::metadata(file).map_or(0, |about| usize::try_from(about.len()).unwrap_or(0));
    let middle = region.start + (len.min(region.len()) / 2).next_multiple_of(PAGE);
    tried.push(("signal-stack", signal_stack(middle, before)));
    set_pkru(0);
    tried.push(("own-wrpkru", truth(touch(start, true) != 0, "WRPKRU opens it")));
    set_pkru(before);
    handle(libc::SIGUSR1, forge);
    // SAFETY: a signal to this thread.
    unsafe { libc::raise(libc::SIGUSR1) };
    tried.push(("forged-sigreturn", truth(touch(start, true) != 0, "a forged frame opens it")));
    set_pkru(before);
    tried
}

/// Whether the kernel writes a signal's frame into the region, for a thread that has laid its signal stack there. What it has written is taken back.
#[cfg(target_arch = "x86_64")]
fn signal_stack(at: usize, closed: u32) -> Outcome {
    const LEN: usize = 1 << 16;
    static THREAD: AtomicI32 = AtomicI32::new(0);
    let stack: *mut u8 = std::ptr::with_exposed_provenance_mut(at);
    // SAFETY: within the region's file, which the key that is opened around it lets this thread read and write.
    let read = || unsafe {
        machine::set_pkru(0);
        let bytes = std::slice::from_raw_parts(stack, LEN).to_vec();
        machine::set_pkru(closed);
        bytes
    };
    let before = read();
    // SAFETY: handlers that end their thread, in a thread whose end only the loop below waits for.
    unsafe {
        let mut end: libc::sigaction = std::mem::zeroed();
        end.sa_sigaction = machine::gate_end_thread as *const () as usize;
        libc::sigaction(libc::SIGSEGV, &raw const end, std::ptr::null_mut());
        end.sa_flags = libc::SA_ONSTACK;
        libc::sigaction(libc::SIGUSR2, &raw const end, std::ptr::null_mut());
        THREAD.store(0, SeqCst);
        std::mem::forget(std::thread::spawn(move || {
            let laid = libc::stack_t {
                ss_sp: std::ptr::with_exposed_provenance_mut(at),
                ss_flags: 0,
                ss_size: LEN,
            };
            libc::sigaltstack(&raw const laid, std::ptr::null_mut());
            let own = libc::gettid();
            THREAD.store(own, SeqCst);
            libc::syscall(libc::SYS_tgkill, libc::getpid(), own, libc::SIGUSR2);
        }));
        let is_there = |thread: c_int| libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, 0) == 0;
        while THREAD.load(SeqCst) == 0 || is_there(THREAD.load(SeqCst)) {
            std::thread::yield_now();
        }
    }
    machine::handle(libc::SIGSEGV, machine::on_fault);
    let after = read();
    machine::set_pkru(0);
    // SAFETY: as above.
    unsafe { std::ptr::copy_nonoverlapping(before.as_ptr(), stack, LEN) };
    machine::set_pkru(closed);
    truth(before == after, "the kernel has written a frame into the region")
}

/// Jumps to each WRPKRU in the library's own code, with registers that open every key, and everything else pointing to zeros. What is
/// behind it compares with memory and ends the program: SIGILL.
#[cfg(target_arch = "x86_64")]
fn gate_jumps(library: &Library) -> Outcome {
    let code = library.code().ok_or("the library's code is not found")?;
    // SAFETY: mapped readable, and the library is never unloaded.
    let bytes = unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance::<u8>(code.start), code.len()) };
    let gadgets: Vec<usize> = bytes
        .windows(3)
        .enumerate()
        .filter_map(|(at, bytes)| (bytes == [0x0F, 0x01, 0xEF]).then_some(code.start + at))
        .collect();
    let zeros = vec![0u64; PAGE];
    let middle = zeros.as_ptr().wrapping_add(PAGE / 2);
    machine::handle(libc::SIGILL, machine::on_illegal);
    for gadget in &gadgets {
        let came = machine::jump(*gadget, middle.expose_provenance());
        if came != libc::SIGILL {
            return Err(format!("a jump to {gadget:#x} ends with signal {came}"));
        }
    }
    // One that opens and one that closes, and each has another behind its comparison.
    truth(gadgets.len() >= 4, &format!("only {} gadgets are found", gadgets.len()))
}

/// Pointers into the region, given to the library as a caller's buffer: it follows them outside the gate only, so they fault in the
/// caller's name. (Tried in children, which end by it.)
#[cfg(target_arch = "x86_64")]
fn pointers(cache: Cache<'_>, region: &Range<usize>, fault: i32) -> Outcome {
    if fault == 0 {
        return Err("there is no gate".to_owned());
    }
    cache.set(b"pointer", &[7; 64]);
    let at: *mut c_void = std::ptr::with_exposed_provenance_mut(region.start + PAGE);
    let ends = |attempt: &dyn Fn()| {
        // A thread of its own, whose fault ends the wait: the handler of this one jumps to where the last access was.
        extern "C" fn leave(_: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
            // SAFETY: the kernel gives it; the handler ends the attempt's thread and nothing else.
            unsafe {
                FAULT.store((*info).si_code, SeqCst);
                libc::syscall(libc::SYS_exit, 0);
            }
        }
        machine::handle(libc::SIGSEGV, leave);
        FAULT.store(0, SeqCst);
        attempt();
        machine::handle(libc::SIGSEGV, machine::on_fault);
        FAULT.load(SeqCst) == machine::SEGV_PKUERR
    };
    let address = at.addr();
    let written = ends(&|| in_raw_thread(cache, address, true));
    let read = ends(&|| in_raw_thread(cache, address, false));
    truth(written && read, "the library follows a pointer into the region")
}

/// Runs an attempt in a thread that may end without a word, and waits until it has ended.
#[cfg(target_arch = "x86_64")]
fn in_raw_thread(cache: Cache<'_>, address: usize, write: bool) {
    static DONE: AtomicUsize = AtomicUsize::new(0);
    DONE.store(0, SeqCst);
    FAULT.store(0, SeqCst);
    // SAFETY: the cache is a handle that is never closed, and a library that is never unloaded.
    let cache: Cache<'static> = unsafe { std::mem::transmute::<Cache<'_>, Cache<'static>>(cache) };
    std::mem::forget(std::thread::spawn(move || {
        let at: *mut c_void = std::ptr::with_exposed_provenance_mut(address);
        // SAFETY: to fault.
        unsafe {
            if write {
                cache.get_to(b"pointer", at, 64);
            } else {
                cache.set_from(b"pointer", at, 64);
            }
        }
        DONE.store(1, SeqCst);
    }));
    while DONE.load(SeqCst) == 0 && FAULT.load(SeqCst) == 0 {
        std::thread::yield_now();
    }
}

/// A timer's signals come while verbs run: the handler finds the gate closed each time, also when it was open.
#[cfg(target_arch = "x86_64")]
fn handlers(cache: Cache<'_>) -> Outcome {
    extern "C" fn on_timer(_: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
        CAME.fetch_add(1, SeqCst);
        let Some(here) = machine::pkru() else { return };
        let offset = core::arch::x86_64::__cpuid_count(13, 9).ebx as usize;
        // SAFETY: the kernel saves PKRU there.
        let there = unsafe {
            let frame = (*context.cast::<libc::ucontext_t>()).uc_mcontext.fpregs.cast::<u8>();
            frame.add(offset).cast::<u32>().read_unaligned()
        };
        // Key 1 is the first that a program gets.
        if there & 0b1100 == 0 {
            CAME_INSIDE.fetch_add(1, SeqCst);
        }
        if here & 0b1100 == 0 {
            SEEN.fetch_add(1, SeqCst);
        }
    }
    if machine::pkru().is_none() {
        return Err("there is no gate".to_owned());
    }
    machine::handle(libc::SIGALRM, on_timer);
    let every = |microseconds| {
        let time = libc::timeval {
            tv_sec: 0,
            tv_usec: microseconds,
        };
        let timer = libc::itimerval {
            it_interval: time,
            it_value: time,
        };
        // SAFETY: a timer of this process.
        unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut()) };
    };
    every(1_000);
    let value = [5; 2_000];
    let mut good = true;
    // Until enough of them have come inside; far more than that are never needed.
    for round in 0..2_000_000u32 {
        good &= cache.set(&round.to_le_bytes(), &value) == 0 && cache.has(&round.to_le_bytes(), &value);
        if CAME_INSIDE.load(SeqCst) >= 20 {
            break;
        }
    }
    every(0);
    let (inside, open) = (CAME_INSIDE.load(SeqCst), SEEN.load(SeqCst));
    truth(
        good && inside >= 20 && open == 0,
        &format!("{inside} came inside, {open} found it open, verbs good: {good}"),
    )
}
