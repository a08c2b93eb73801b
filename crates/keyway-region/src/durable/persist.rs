//! The only flush and fence: what makes changes outlive a power failure (strict mode), and nothing at all in cache mode.
//!
//! A strict region lies on persistent memory, mapped so that the processor's own write-backs reach it. `docs/concurrency.md`,
//! "Strict mode", has the order of all of them and what recovery makes of every cut. In short: bytes that a word leads to are
//! written back before the word says so; the word says so with its dirty bit; it is written back before anybody acts on it;
//! then the bit goes.
//!
//! # Safety
//!
//! The only `unsafe` are instructions that write a mapped cache line back and never change it.
#![allow(unsafe_code, reason = "cache instructions; contract above")]

use crate::atomics::{Acquire, Relaxed, Release, SeqCst, fence};
use crate::layout::bucket::{self, Split};
use crate::layout::segment::{Kind, SegmentHeader, SegmentWords};
use crate::layout::slot::{DIRTY_BIT, Slot};
use crate::layout::superblock::{DIRTY, FlushWord, STOPPED, STOPPING, Superblock};
use crate::region::{Moment, Region};
use core::mem::offset_of;

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

/// The mode of a region, and in strict mode the instruction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Persist {
    /// `None`: cache mode
    means: Option<Means>,
    /// called at every barrier, if anything is
    at_barrier: Option<fn()>,
}

impl Persist {
    /// Of a region whose superblock says so. `None`: this processor cannot write a line back.
    pub fn new(strict: bool) -> Option<Self> {
        Some(Self {
            means: if strict { Some(detect()?) } else { None },
            at_barrier: None,
        })
    }

    /// Whether every change is to outlive a power failure.
    #[inline(always)]
    pub fn is_strict(&self) -> bool {
        self.means.is_some()
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

impl Region {
    /// Starts to write these bytes back. They are persistent after the next [`Self::barrier`] of the same thread.
    #[inline(always)]
    #[cfg_attr(feature = "observe", track_caller)]
    pub(crate) fn write_back(&self, offset: usize, len: usize) {
        if let Some(means) = self.persist.means {
            self.write_lines_back(offset, len, means);
        }
    }

    // Out of the way of those for whom there is nothing to do.
    #[cold]
    #[inline(never)]
    #[cfg_attr(feature = "observe", track_caller)]
    fn write_lines_back(&self, offset: usize, len: usize, means: Means) {
        #[cfg(feature = "observe")]
        crate::observe::tell(crate::observe::Event::WriteBack {
            at: self.memory.line_address(offset).addr() + offset % LINE,
            len,
            site: core::panic::Location::caller(),
        });
        for line in (offset & !(LINE - 1)..offset + len).step_by(LINE) {
            write_line_back(self.memory.line_address(line), means);
        }
    }

    /// What this thread has written back is persistent from here on.
    #[inline(always)]
    #[cfg_attr(feature = "observe", track_caller)]
    pub(crate) fn barrier(&self) {
        if self.persist.is_strict() {
            if let Some(call) = self.persist.at_barrier {
                call();
            }
            #[cfg(feature = "observe")]
            crate::observe::tell(crate::observe::Event::Barrier {
                site: core::panic::Location::caller(),
            });
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            // SAFETY: orders stores and write-backs, nothing else.
            unsafe {
                core::arch::asm!("sfence", options(nostack, preserves_flags));
            }
        }
    }

    /// Calls this at every barrier: a measurement makes barriers as slow as those of other memory.
    pub fn at_barrier(&mut self, call: fn()) {
        self.persist.at_barrier = Some(call);
    }

    /// Whether every acknowledged change outlives a power failure.
    #[inline]
    pub fn is_strict(&self) -> bool {
        self.persist.is_strict()
    }

    /// What a change adds to a word until it is persistent: nothing in cache mode.
    #[inline(always)]
    pub(crate) fn dirty(&self, word: Slot) -> Slot {
        Slot(word.0 | if self.is_strict() { DIRTY_BIT } else { 0 })
    }

    /// Starts to write a segment's header back: state, lease, sequence, expiry.
    #[inline(always)]
    #[cfg_attr(feature = "observe", track_caller)]
    pub(crate) fn write_back_header(&self, segment: usize) {
        self.write_back(
            self.layout.headers + segment * size_of::<SegmentHeader>(),
            size_of::<SegmentHeader>(),
        );
    }

    /// Starts to write a segment's words back: generation and epoch.
    #[inline(always)]
    #[cfg_attr(feature = "observe", track_caller)]
    pub(crate) fn write_back_words(&self, segment: usize) {
        self.write_back(
            self.layout.words + segment * size_of::<SegmentWords>(),
            size_of::<SegmentWords>(),
        );
    }

    /// Makes a slot's word persistent, whoever wrote it, and then clears its dirty bit.
    #[cold]
    #[inline(never)]
    #[cfg_attr(feature = "observe", track_caller)]
    pub(crate) fn persist_word(&self, at: usize, word: Slot) {
        if self.is_read_only {
            // Only damage explains the bit: a strict region is not mapped so.
            return;
        }
        self.write_back(at, 8);
        self.barrier();
        // A word with this bit is written once, so the exchange cannot mean a later one. Not written back: a bit that
        // survives costs whoever meets it a write-back.
        // PAIRS: settled: the loads of slots: a thread that finds the bit gone comes after the barrier.
        let _ = self.slot(at).compare_exchange(word.0, word.settled().0, Release, Relaxed);
    }

    /// PUBLISH of a removal: the slot's item is gone. `false`: the slot had changed.
    #[cfg_attr(feature = "observe", track_caller)]
    pub(crate) fn vacate(&self, at: usize, word: Slot) -> bool {
        let gone = if self.is_strict() { word.removed() } else { Slot::EMPTY };
        // PAIRS: changes: the loads of slots: a thread that sees the removal sees what its maker had changed before.
        let done = self.slot(at).compare_exchange(word.0, gone.0, Release, Relaxed).is_ok();
        if done && self.is_strict() {
            self.persist_word(at, gone);
        }
        done
    }

    /// Takes a tentative word out, whoever put it there: an insert that was not confirmed, or a removal that may not be
    /// persistent yet.
    #[cfg_attr(feature = "observe", track_caller)]
    pub(crate) fn abort(&self, at: usize, word: Slot) {
        if word.is_dirty() {
            self.persist_word(at, word);
        } else {
            let _ = self.slot(at).compare_exchange(word.0, Slot::EMPTY.0, Relaxed, Relaxed);
        }
    }

    /// Starts to write the buckets of a key back: that no word there leads to some place is about to be relied on.
    #[cfg_attr(feature = "observe", track_caller)]
    pub(crate) fn write_back_buckets(&self, hash: u64) {
        if self.is_strict()
            && let Some(buckets) = self.buckets(hash, self.table())
        {
            for (_, at) in buckets.iter() {
                self.write_back(at, bucket::SIZE);
            }
        }
    }

    /// Before a split's table word moves on: everything that a reader of the new count relies on, whoever wrote it.
    pub(crate) fn persist_split(&self, split: Split) {
        if !self.is_strict() {
            return;
        }
        for bucket in [split.source, split.target] {
            if let Some(at) = self.bucket(bucket) {
                self.write_back(at, bucket::SIZE);
            }
        }
        for (kind, entry) in [
            (Kind::Index, self.bucket_entry(split.target)),
            (Kind::Hints, self.hint_entry(split.target)),
        ] {
            self.write_back(self.directory_entry_at(kind, entry), 4);
        }
        self.barrier();
    }

    /// A table word that is dirty or damaged, as it is to be used.
    #[cold]
    pub(crate) fn odd_table(&self, word: u64) -> u64 {
        let count = (word & !DIRTY).clamp(self.buckets_initial(), self.buckets_max());
        if word & DIRTY != 0 && !self.is_read_only {
            self.write_back(line::TABLE, 8);
            self.barrier();
            // PAIRS: settled: the load in `Region::table`.
            let _ = self.superblock().table.compare_exchange(word, count, Release, Relaxed);
        }
        count
    }

    /// Makes a dirty flush word persistent.
    pub(crate) fn settle_flush(&self, word: FlushWord) {
        self.write_back(line::TABLE, 8);
        self.barrier();
        // PAIRS: settled: the loads of the flush word.
        let _ = self
            .superblock()
            .flush
            .compare_exchange(word.0, word.0 & !DIRTY, Release, Relaxed);
    }

    /// Says that the region is in use since this boot, before it is: from now on another boot finds it unclean. Whether that was
    /// said already. In a file of a strict region it is persistent behind this.
    /// The region's clock goes on from here.
    pub fn begin_use(&self, boot_id: [u64; 2], now: Moment) -> bool {
        self.start_clock(boot_id, now);
        let sb = self.superblock();
        let mut same = true;
        for (word, id) in sb.boot_id.iter().zip(boot_id) {
            same &= word.swap(id, Relaxed) == id;
        }
        // After the boot: a process that reads "not clean" sees in which boot. PAIRS: clean: the load in `Region::is_cut_off`.
        same &= sb.clean.swap(0, Release) == 0;
        self.see(now);
        self.write_back(line::RESTART, LINE);
        self.barrier();
        same
    }

    /// The first of two steps by which the last process says that it stopped cleanly. It looks for others between them.
    pub fn begin_clean_stop(&self) {
        self.superblock().clean.store(STOPPING, Relaxed);
        // PAIRS: stop: the system call with which the other process takes its lock, before the swap in `Self::begin_use`: either that swap
        // takes this back, or its lock is seen.
        fence(SeqCst);
    }

    /// The second step, if this process is the last one and everything is written back. `false`: it is not stopped cleanly, perhaps
    /// because another process has begun to use the region meanwhile.
    pub fn end_clean_stop(&self, is_last: bool) -> bool {
        let to = if is_last { STOPPED } else { 0 };
        let clean = &self.superblock().clean;
        // PAIRS: clean: the loads of the word: a process that finds the mark sees everything that was done before.
        clean.compare_exchange(STOPPING, to, Release, Relaxed).is_ok() && is_last
    }

    /// Whether a power failure, or another end of the boot in which it was used, cut the region's last use off.
    pub fn is_cut_off(&self, boot_id: [u64; 2]) -> bool {
        let sb = self.superblock();
        // Before the boot. PAIRS: clean: the exchanges in `Self::begin_use` and `end_clean_stop`.
        let is_clean = sb.clean.load(Acquire) == STOPPED;
        !is_clean && !sb.boot_id.iter().zip(boot_id).all(|(word, id)| word.load(Relaxed) == id)
    }
}
