//! Protection keys: that the emulated processor and the kernel enforce them.
//!
//! # Safety
//!
//! Memory is mapped here and accessed where its key forbids it, on purpose: the fault's handler opens the key, and the access is
//! done again. The handler touches two atomics and PKRU, nothing else.
#![allow(unsafe_code, reason = "protection keys; contract above")]

use crate::tests::Verdict;
use core::arch::asm;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering::SeqCst};

/// The code of the last fault, and the key that it names. SeqCst: of no importance where every access faults.
static CODE: AtomicI32 = AtomicI32::new(0);
static KEY: AtomicU32 = AtomicU32::new(u32::MAX);

/// Linux, include/uapi/asm-generic/mman-common.h.
const PKEY_DISABLE_ACCESS: libc::c_ulong = 1;
const PKEY_DISABLE_WRITE: libc::c_ulong = 2;
/// Linux, include/uapi/asm-generic/siginfo.h: what a fault is called that a key caused.
const SEGV_PKUERR: i32 = 4;
/// The same: where `si_pkey` is on 64-bit machines.
const SI_PKEY_OFFSET: usize = 32;

/// Reads and writes that a key forbids fault, each with SEGV_PKUERR and the key; those that it allows do not. In a second thread
/// as well, with rights of its own.
pub fn fault() -> Verdict {
    // SAFETY: a fresh mapping of one page, and a key that no other thread has.
    let (page, key) = unsafe {
        let page = libc::mmap(
            std::ptr::null_mut(),
            4096,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        let key = libc::syscall(libc::SYS_pkey_alloc, 0, PKEY_DISABLE_WRITE);
        if page == libc::MAP_FAILED || key < 1 {
            return Err(format!("mmap: {page:?}, pkey_alloc: {key}"));
        }
        let protected = libc::syscall(libc::SYS_pkey_mprotect, page, 4096, libc::PROT_READ | libc::PROT_WRITE, key);
        if protected != 0 {
            return Err(format!("pkey_mprotect: {}", std::io::Error::last_os_error()));
        }
        (page.cast::<u64>() as usize, u32::try_from(key).map_err(|e| e.to_string())?)
    };
    install()?;
    let here = accesses(page, key)?;
    // A new thread has its maker's rights, which are all of them here.
    open(key, 0);
    let there = std::thread::spawn(move || accesses(page, key)).join();
    let there = there.map_err(|_| "the second thread panicked")??;
    if rights(key) != 0 {
        return Err("what the second thread did to its rights was done to this thread's".into());
    }
    Ok(format!("{} faults, each with SEGV_PKUERR and key {key}", here + there))
}

/// Tries both accesses under all rights. How many faults there were.
fn accesses(page: usize, key: u32) -> Result<u32, String> {
    let mut faults = 0;
    let table = [
        (0, false, false),
        (PKEY_DISABLE_WRITE, false, true),
        (PKEY_DISABLE_ACCESS, true, true),
    ];
    for (denied, read_faults, write_faults) in table {
        for (is_write, expected) in [(false, read_faults), (true, write_faults)] {
            CODE.store(0, SeqCst);
            open(key, u32::try_from(denied).unwrap_or(0));
            let word = std::ptr::with_exposed_provenance_mut::<u64>(page);
            // SAFETY: the page is mapped; if the key forbids the access, the handler opens it.
            unsafe {
                if is_write {
                    word.write_volatile(1);
                } else {
                    word.read_volatile();
                }
            }
            let seen = (CODE.load(SeqCst), KEY.load(SeqCst));
            match (expected, seen) {
                (true, (SEGV_PKUERR, named)) if named == key => faults += 1,
                (false, (0, _)) => {}
                _ => {
                    return Err(format!(
                        "rights {denied}, write: {is_write}: expected a fault: {expected}, saw {seen:?}"
                    ));
                }
            }
        }
    }
    open(key, 0);
    Ok(faults)
}

/// PKRU, two bits for each key: 1 forbids every access, 2 forbids writes (Intel SDM, volume 3, "Protection Keys").
fn pkru() -> u32 {
    let value: u32;
    // SAFETY: reads a register; its caller has found that there are keys.
    unsafe { asm!("rdpkru", in("ecx") 0, out("eax") value, out("edx") _, options(nomem, nostack)) };
    value
}

fn rights(key: u32) -> u32 {
    pkru() >> (2 * key) & 3
}

/// Sets what the key forbids this thread.
fn open(key: u32, denied: u32) {
    let value = pkru() & !(3 << (2 * key)) | denied << (2 * key);
    // SAFETY: changes which accesses fault, and no memory; not `nomem`, so that no access is moved across.
    unsafe { asm!("wrpkru", in("ecx") 0, in("edx") 0, in("eax") value, options(nostack)) };
}

fn install() -> Result<(), String> {
    // SAFETY: the handler has the signature that SA_SIGINFO asks for.
    let done = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_fault as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigaction(libc::SIGSEGV, &raw const action, std::ptr::null_mut())
    };
    if done == 0 { Ok(()) } else { Err("sigaction".into()) }
}

/// Notes what the fault was, and opens every key in the rights that the return restores.
extern "C" fn on_fault(_: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel gives both; `si_pkey` is there for every fault.
    unsafe {
        CODE.store((*info).si_code, SeqCst);
        KEY.store(info.cast::<u8>().add(SI_PKEY_OFFSET).cast::<u32>().read_unaligned(), SeqCst);
        restore_open(context.cast());
    }
}

/// The rights that the return from a handler restores: PKRU in the frame that the kernel put on the stack, opened for every key.
///
/// # Safety
///
/// `context` is the one of a running handler.
unsafe fn restore_open(context: *mut libc::ucontext_t) {
    // Intel SDM, volume 1, "Managing State Using the XSAVE Feature Set": CPUID leaf 13, sub-leaf 9 has the place of PKRU.
    let offset = core::arch::x86_64::__cpuid_count(13, 9).ebx as usize;
    // SAFETY: the kernel saves PKRU there on every processor that has it. An absent component is restored as 0, which is the same.
    unsafe {
        (*context)
            .uc_mcontext
            .fpregs
            .cast::<u8>()
            .add(offset)
            .cast::<u32>()
            .write_unaligned(0)
    };
}
