//! Copies by relaxed atomics: whole words where the region's side is aligned, bytes elsewhere. With the feature `races` by
//! plain copies, for a race detector.
//!
//! Never: decides whether the bytes are in bounds ([`Memory`](super::Memory) does).

#[cfg(not(feature = "races"))]
use crate::atomics::{AtomicU8, AtomicU64, Relaxed};

/// # Safety
/// `len` bytes are readable at `src` (region) and writable at `dst` (private).
pub unsafe fn out_of(src: *const u8, dst: *mut u8, len: usize) {
    #[cfg(feature = "races")]
    // SAFETY: the caller's promise. Where nothing is recycled, the publish of these bytes orders them: that is what is tested.
    return unsafe { core::ptr::copy_nonoverlapping(src, dst, len) };
    #[cfg(not(feature = "races"))]
    let mut at = 0;
    #[cfg(not(feature = "races"))]
    while at < len {
        // SAFETY: `at` stays below `len`; a whole word is read only where it fits and is aligned.
        unsafe {
            let p = src.add(at);
            if p.addr() % 8 == 0 && at + 8 <= len {
                let v = (*p.cast::<AtomicU64>()).load(Relaxed);
                dst.add(at).cast::<u64>().write_unaligned(v);
                at += 8;
            } else {
                *dst.add(at) = (*p.cast::<AtomicU8>()).load(Relaxed);
                at += 1;
            }
        }
    }
}

/// # Safety
/// `len` bytes are readable at `src` (private) and writable at `dst` (region).
pub unsafe fn into(src: *const u8, dst: *mut u8, len: usize) {
    #[cfg(feature = "races")]
    // SAFETY: as in `out_of`.
    return unsafe { core::ptr::copy_nonoverlapping(src, dst, len) };
    #[cfg(not(feature = "races"))]
    let mut at = 0;
    #[cfg(not(feature = "races"))]
    while at < len {
        // SAFETY: `at` stays below `len`; a whole word is written only where it fits and is aligned.
        unsafe {
            let p = dst.add(at);
            if p.addr() % 8 == 0 && at + 8 <= len {
                (*p.cast::<AtomicU64>()).store(src.add(at).cast::<u64>().read_unaligned(), Relaxed);
                at += 8;
            } else {
                (*p.cast::<AtomicU8>()).store(*src.add(at), Relaxed);
                at += 1;
            }
        }
    }
}

/// # Safety
/// `len` bytes are readable at `src` and writable at `dst`, both in the region.
pub unsafe fn within(src: *const u8, dst: *mut u8, len: usize) {
    let mut part = [0; 64];
    for at in (0..len).step_by(part.len()) {
        let len = part.len().min(len - at);
        // SAFETY: the part is within the bounds that the caller promises, and is private.
        unsafe {
            out_of(src.add(at), part.as_mut_ptr(), len);
            into(part.as_ptr(), dst.add(at), len);
        }
    }
}

/// Bytes of a caller's memory, loaded once. Volatile: what is done with them goes by what was loaded, whatever becomes of the memory.
///
/// # Safety
/// `N` bytes are readable at `p`.
unsafe fn bytes_once<const N: usize>(p: *const u8) -> [u8; N] {
    // SAFETY: the caller's promise; bytes need no alignment.
    unsafe { p.cast::<[u8; N]>().read_volatile() }
}

/// # Safety
/// A byte is readable at `p`.
pub unsafe fn once1(p: *const u8) -> u8 {
    // SAFETY: the caller's promise.
    unsafe { p.read_volatile() }
}

/// # Safety
/// Four bytes are readable at `p`.
pub unsafe fn once4(p: *const u8) -> u32 {
    // SAFETY: the caller's promise.
    u32::from_le_bytes(unsafe { bytes_once(p) })
}

/// # Safety
/// Eight bytes are readable at `p`.
pub unsafe fn once8(p: *const u8) -> u64 {
    // SAFETY: the caller's promise.
    u64::from_le_bytes(unsafe { bytes_once(p) })
}

/// # Safety
/// 16 bytes are readable at `p`.
pub unsafe fn once16(p: *const u8) -> [u64; 2] {
    // SAFETY: the caller's promise.
    unsafe { [once8(p), once8(p.add(8))] }
}

/// # Safety
/// `len` bytes are readable at `src`, and writable at `dst`, which is private.
pub unsafe fn once(src: *const u8, dst: *mut u8, len: usize) {
    let words = len / 8 * 8;
    // SAFETY: every access stays within `len` bytes of its side.
    unsafe {
        for at in (0..words).step_by(8) {
            dst.add(at).cast::<[u8; 8]>().write(bytes_once(src.add(at)));
        }
        for at in words..len {
            dst.add(at).write(once1(src.add(at)));
        }
    }
}

/// # Safety
/// Eight bytes are readable at `p`.
pub unsafe fn load8(p: *const u8) -> u64 {
    let mut bytes = [0; 8];
    // SAFETY: the caller's promise.
    unsafe { out_of(p, bytes.as_mut_ptr(), 8) };
    u64::from_le_bytes(bytes)
}

/// # Safety
/// `bytes.len()` bytes are readable at `p`.
pub unsafe fn equal(p: *const u8, bytes: &[u8]) -> bool {
    let mut word = [0; 8];
    bytes.chunks(8).enumerate().all(|(i, wanted)| {
        // SAFETY: the chunk is within the bounds that the caller promises.
        unsafe { out_of(p.add(i * 8), word.as_mut_ptr(), wanted.len()) };
        word.starts_with(wanted)
    })
}
