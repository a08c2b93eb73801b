//! Room `durable`: the only cache-line write-backs and persist barriers. In cache mode, none is executed.
//!
//! In durable mode (`--durable`) a region is on persistent memory, mapped so that the processor's own write-backs reach it.
//! `docs/concurrency.md` has the order of all write-backs, and what recovery makes of a failure at each point. In short: the
//! bytes to which a word leads are written back before the word is published. The word is published with its dirty bit. It is
//! written back before any thread acts on it; then the bit is cleared. Which words have such a bit is decided in the rooms that
//! own them (`index/persist.rs`, `region`).
//!
//! Never: stores to the region.
//!
//! # Safety
//!
//! The only `unsafe` are instructions that write a mapped cache line back and never change it.

#![allow(unsafe_code, reason = "cache instructions; contract above")]

use crate::layout::superblock::Superblock;
use crate::memory::Memory;
use core::mem::offset_of;
use std::sync::OnceLock;

/// Bytes that are written back at a time.
pub(crate) const LINE: usize = 64;

/// Lines of the superblock that change together, by the offset of their first word.
pub(crate) mod line {
    use super::{Superblock, offset_of};

    /// table word, flush word and flush-at word, number of segments
    pub const TABLE: usize = offset_of!(Superblock, table);
    /// clean flag, boot, when last seen
    pub const RESTART: usize = offset_of!(Superblock, clean);
}

/// How this processor writes a cache line back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, reason = "there is no means on this processor")
)]
enum Means {
    /// keeps it in the cache
    Clwb,
    /// drops it from the cache, unordered
    ClflushOpt,
    /// drops it from the cache, in order
    Clflush,
}

/// The mode of a region, and in durable mode the instruction.
#[derive(Debug)]
pub(crate) struct Persist {
    /// `None`: cache mode
    means: Option<Means>,
    /// called at every barrier, if anything is
    at_barrier: OnceLock<fn()>,
}

impl Persist {
    /// The mode that the superblock says. `None`: this processor cannot write a line back.
    pub fn new(durable: bool) -> Option<Self> {
        Some(Self {
            means: if durable { Some(detect()?) } else { None },
            at_barrier: OnceLock::new(),
        })
    }

    /// Whether every change shall survive a power failure.
    #[inline(always)]
    pub fn is_durable(&self) -> bool {
        self.means.is_some()
    }

    /// Starts to write these bytes back. They are persistent after the next [`Self::barrier`] of the same thread.
    #[inline(always)]
    #[cfg_attr(feature = "observe", track_caller)]
    pub fn write_back(&self, memory: &Memory, offset: usize, len: usize) {
        if let Some(means) = self.means {
            Self::write_lines_back(memory, offset, len, means);
        }
    }

    // A separate function, so that cache mode does not pay for it.
    #[cold]
    #[inline(never)]
    #[cfg_attr(feature = "observe", track_caller)]
    fn write_lines_back(memory: &Memory, offset: usize, len: usize, means: Means) {
        #[cfg(feature = "observe")]
        crate::observe::report(crate::observe::Event::WriteBack {
            at: memory.line_address(offset).addr() + offset % LINE,
            len,
            site: core::panic::Location::caller(),
        });
        for line in (offset & !(LINE - 1)..offset + len).step_by(LINE) {
            write_line_back(memory.line_address(line), means);
        }
    }

    /// What this thread has written back is persistent after this.
    #[inline(always)]
    #[cfg_attr(feature = "observe", track_caller)]
    pub fn barrier(&self) {
        if self.is_durable() {
            if let Some(call) = self.at_barrier.get() {
                call();
            }
            #[cfg(feature = "observe")]
            crate::observe::report(crate::observe::Event::Barrier {
                site: core::panic::Location::caller(),
            });
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            // SAFETY: orders stores and write-backs, nothing else.
            unsafe {
                core::arch::asm!("sfence", options(nostack, preserves_flags));
            }
        }
    }

    /// Calls this at every barrier: a measurement makes barriers as slow as those of other memory. The first call counts.
    pub fn at_barrier(&self, call: fn()) {
        let _ = self.at_barrier.set(call);
    }
}

#[cfg(target_arch = "x86_64")]
fn detect() -> Option<Means> {
    use core::arch::x86_64::{__cpuid, __cpuid_count};
    if cfg!(miri) {
        return Some(Means::Clflush);
    }
    // Intel SDM, volume 2, CPUID: leaf 7 EBX bits 24 (CLWB) and 23 (CLFLUSHOPT), leaf 1 EDX bit 19 (CLFLUSH).
    let leaves = __cpuid(0).eax;
    let extended = if leaves >= 7 { __cpuid_count(7, 0).ebx } else { 0 };
    if extended & 1 << 24 != 0 {
        Some(Means::Clwb)
    } else if extended & 1 << 23 != 0 {
        Some(Means::ClflushOpt)
    } else {
        (__cpuid(1).edx & 1 << 19 != 0).then_some(Means::Clflush)
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn detect() -> Option<Means> {
    None
}

/// Writes one line back.
#[cfg(all(target_arch = "x86_64", not(miri), not(feature = "observe")))]
#[inline]
fn write_line_back(p: *const u8, means: Means) {
    use core::arch::asm;
    // SAFETY: the line at `p` is mapped (the caller got it from the memory's bounds); its contents do not change.
    unsafe {
        match means {
            Means::Clwb => asm!("clwb [{p}]", p = in(reg) p, options(nostack, preserves_flags)),
            Means::ClflushOpt => asm!("clflushopt [{p}]", p = in(reg) p, options(nostack, preserves_flags)),
            Means::Clflush => asm!("clflush [{p}]", p = in(reg) p, options(nostack, preserves_flags)),
        }
    }
}

#[cfg(not(all(target_arch = "x86_64", not(miri), not(feature = "observe"))))]
fn write_line_back(_: *const u8, _: Means) {}
