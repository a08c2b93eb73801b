//! Copies by instructions in `asm!` blocks: the compiler sees neither address nor width, so it can neither tear, repeat nor
//! drop a load from memory to which other threads write.
//!
//! Never: decides whether the bytes are in bounds ([`Memory`](super::Memory) does).

use super::{CACHE_LINE, Line, ask};
use core::arch::asm;
use core::arch::x86_64::{
    __m128i, _mm_and_si128, _mm_castps_si128, _mm_castsi128_ps, _mm_cmpeq_epi8, _mm_cmpeq_epi32, _mm_movemask_epi8, _mm_or_si128,
    _mm_packs_epi16, _mm_packs_epi32, _mm_set1_epi32, _mm_setzero_si128, _mm_shuffle_ps, _mm_xor_si128,
};

/// Up to this many bytes are copied without a loop.
const SHORT_MAX: usize = 32;
/// Up to this many bytes are copied out of the region in blocks of 64.
const MIDDLE_MAX: usize = REP_FROM - 1;
/// From this many bytes on `rep movsb` (fast on processors with ERMS/FSRM) beats the 16-byte loop.
const REP_FROM: usize = 512;
/// From [`REP_FROM`] to this many bytes vectors of 32 bytes, where the processor has them, beat both.
const WIDE_MAX: usize = *super::COPIED_AHEAD.end();
/// From this many bytes on the log is written line by line: on lines that are not in the cache `rep movsb` is as fast only if both
/// sides begin at the same place of a line. Below it all lines are prefetched first.
const LINES_FROM: usize = 16 * 1024;
/// From this many bytes on the log is written past the cache: that saves reading the lines, and whatever is in the cache stays there.
const STREAM_FROM: usize = 64 * 1024;
/// From this many bytes on, the source is prefetched page by page first, so that the translations of its addresses are there.
const PAGES_FROM: usize = 8 * 1024;
const PAGE: usize = 4096;

#[inline(always)]
unsafe fn load16(p: *const u8) -> __m128i {
    let v: __m128i;
    // SAFETY: the caller says that 16 bytes are mapped at `p`.
    unsafe { asm!("movdqu {v}, [{p}]", v = lateout(xmm_reg) v, p = in(reg) p, options(nostack, preserves_flags, readonly)) };
    v
}

/// # Safety
/// 64 bytes are mapped at `p`, a multiple of 64.
#[inline(always)]
pub unsafe fn line(p: *const u8) -> Line {
    let (a, b, c, d): (__m128i, __m128i, __m128i, __m128i);
    // SAFETY: the caller's promise. Each aligned word within a vector is loaded without tearing (no cache line is crossed).
    // Loads stay in order, and the block, which may touch any memory, is an acquire fence to the compiler.
    unsafe {
        asm!(
            "movdqa {a}, [{p}]", "movdqa {b}, [{p} + 16]", "movdqa {c}, [{p} + 32]", "movdqa {d}, [{p} + 48]",
            a = lateout(xmm_reg) a, b = lateout(xmm_reg) b, c = lateout(xmm_reg) c, d = lateout(xmm_reg) d, p = in(reg) p,
            options(nostack, preserves_flags)
        );
        core::mem::transmute([a, b, c, d])
    }
}

/// Takes the low (0x88) or the high halves (0xDD) of four words and says which equal `wanted` under `mask`.
#[inline(always)]
unsafe fn halves<const WHICH: i32>(pairs: [__m128i; 2], mask: u32, wanted: u32) -> __m128i {
    let [a, b] = pairs;
    // SAFETY: SSE2 is part of the x86-64 baseline; nothing here touches memory.
    unsafe {
        let four = _mm_castps_si128(_mm_shuffle_ps::<WHICH>(_mm_castsi128_ps(a), _mm_castsi128_ps(b)));
        _mm_cmpeq_epi32(
            _mm_and_si128(four, _mm_set1_epi32(mask.cast_signed())),
            _mm_set1_epi32(wanted.cast_signed()),
        )
    }
}

/// [`Line::pair_matches_high`].
#[inline(always)]
pub fn pair_matches_high(pair: &[Line; 2], mask: u64, wanted: u64) -> u32 {
    let (mask, wanted) = ((mask >> 32) as u32, (wanted >> 32) as u32);
    // SAFETY: all are 64 plain bytes; SSE2 is part of the x86-64 baseline.
    unsafe {
        let [a, b, c, d]: [__m128i; 4] = core::mem::transmute(pair[0].0);
        let first = _mm_packs_epi32(halves::<0xDD>([a, b], mask, wanted), halves::<0xDD>([c, d], mask, wanted));
        let [a, b, c, d]: [__m128i; 4] = core::mem::transmute(pair[1].0);
        let second = _mm_packs_epi32(halves::<0xDD>([a, b], mask, wanted), halves::<0xDD>([c, d], mask, wanted));
        _mm_movemask_epi8(_mm_packs_epi16(first, second)).cast_unsigned()
    }
}

/// [`Line::matches`] with instructions of every x86-64 processor: SSE2 compares 32 bits, so the words' halves are compared separately.
#[inline(always)]
pub fn matches(line: &Line, mask: u64, wanted: u64) -> u32 {
    let [mask_low, wanted_low] = [mask, wanted].map(|n| (n & 0xFFFF_FFFF) as u32);
    let [mask_high, wanted_high] = [mask, wanted].map(|n| (n >> 32) as u32);
    // SAFETY: both are 64 plain bytes; SSE2 is part of the x86-64 baseline.
    unsafe {
        let [a, b, c, d]: [__m128i; 4] = core::mem::transmute(line.0);
        let [mut first, mut second] = [[a, b], [c, d]].map(|pairs| halves::<0xDD>(pairs, mask_high, wanted_high));
        if mask_low != 0 {
            first = _mm_and_si128(first, halves::<0x88>([a, b], mask_low, wanted_low));
            second = _mm_and_si128(second, halves::<0x88>([c, d], mask_low, wanted_low));
        }
        let eight = _mm_packs_epi32(first, second);
        _mm_movemask_epi8(_mm_packs_epi16(eight, _mm_setzero_si128())).cast_unsigned()
    }
}

#[inline(always)]
unsafe fn store16(p: *mut u8, v: __m128i) {
    // SAFETY: the caller says that 16 bytes are mapped at `p`.
    unsafe { asm!("movdqu [{p}], {v}", v = in(xmm_reg) v, p = in(reg) p, options(nostack, preserves_flags)) };
}

/// Stores a part of a line past the cache. It is not ordered like other stores: [`stream_end`].
#[inline(always)]
unsafe fn stream16(p: *mut u8, v: __m128i) {
    // SAFETY: the caller says that 16 bytes are mapped at `p`, a multiple of 16.
    unsafe { asm!("movntdq [{p}], {v}", v = in(xmm_reg) v, p = in(reg) p, options(nostack, preserves_flags)) };
}

/// All that was stored by [`stream16`] comes before the stores that follow.
#[inline(always)]
fn stream_end() {
    // SAFETY: orders stores, and does nothing else; SSE is part of the x86-64 baseline.
    unsafe { asm!("sfence", options(nostack, preserves_flags)) };
}

#[inline(always)]
pub unsafe fn load8(p: *const u8) -> u64 {
    let v: u64;
    // SAFETY: the caller says that 8 bytes are mapped at `p`.
    unsafe { asm!("mov {v}, [{p}]", v = lateout(reg) v, p = in(reg) p, options(nostack, preserves_flags, readonly)) };
    v
}

#[inline(always)]
unsafe fn store8(p: *mut u8, v: u64) {
    // SAFETY: the caller says that 8 bytes are mapped at `p`.
    unsafe { asm!("mov [{p}], {v}", v = in(reg) v, p = in(reg) p, options(nostack, preserves_flags)) };
}

#[inline(always)]
pub unsafe fn load1(p: *const u8) -> u8 {
    let v: u32;
    // SAFETY: the caller says that a byte is mapped at `p`.
    unsafe {
        asm!("movzx {v:e}, byte ptr [{p}]", v = lateout(reg) v, p = in(reg) p, options(nostack, preserves_flags, readonly))
    };
    v.to_le_bytes()[0]
}

#[inline(always)]
unsafe fn store1(p: *mut u8, v: u8) {
    // SAFETY: the caller says that a byte is mapped at `p`.
    unsafe { asm!("mov byte ptr [{p}], {v}", v = in(reg_byte) v, p = in(reg) p, options(nostack, preserves_flags)) };
}

#[inline(always)]
pub unsafe fn load4(p: *const u8) -> u32 {
    let v: u32;
    // SAFETY: the caller says that 4 bytes are mapped at `p`.
    unsafe { asm!("mov {v:e}, [{p}]", v = lateout(reg) v, p = in(reg) p, options(nostack, preserves_flags, readonly)) };
    v
}

#[inline(always)]
unsafe fn store4(p: *mut u8, v: u32) {
    // SAFETY: the caller says that 4 bytes are mapped at `p`.
    unsafe { asm!("mov [{p}], {v:e}", v = in(reg) v, p = in(reg) p, options(nostack, preserves_flags)) };
}

/// Two words of a caller's memory, each loaded once.
///
/// # Safety
/// 16 bytes are readable at `p`.
#[inline(always)]
pub unsafe fn once16(p: *const u8) -> [u64; 2] {
    let (a, b): (u64, u64);
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "mov {a}, [{p}]", "mov {b}, [{p} + 8]",
            a = out(reg) a, b = lateout(reg) b, p = in(reg) p, options(nostack, preserves_flags, readonly)
        );
    }
    [a, b]
}

/// The region's loads take a caller's memory too: the compiler sees into neither.
pub use {load1 as once1, load4 as once4, load8 as once8, out_of as once};

/// Up to two vectors are copied without a loop: a length below two units of a width is copied by its two ends, which may
/// overlap. The same for both directions: each load and store is the region's side or the private one.
macro_rules! move_short {
    ($src:ident, $dst:ident, $len:ident, $load16:expr, $store16:expr, $load8:expr, $store8:expr, $load4:expr, $store4:expr, $load1:expr, $store1:expr) => {
        if $len >= 16 {
            let (a, b) = ($load16($src), $load16($src.add($len - 16)));
            $store16($dst, a);
            $store16($dst.add($len - 16), b);
        } else if $len >= 8 {
            let (a, b) = ($load8($src), $load8($src.add($len - 8)));
            $store8($dst, a);
            $store8($dst.add($len - 8), b);
        } else if $len >= 4 {
            let (a, b) = ($load4($src), $load4($src.add($len - 4)));
            $store4($dst, a);
            $store4($dst.add($len - 4), b);
        } else {
            for at in 0..$len {
                $store1($dst.add(at), $load1($src.add(at)));
            }
        }
    };
}

/// Whether `rep movsb` takes up to twenty times as long as usual (Zen 4): the destination is 1 to 15 bytes after the source,
/// modulo a page. By chance that is so for one copy in 270; for an item that is always copied to the same place, for all.
#[inline(always)]
fn stumbles(src: *const u8, dst: *const u8) -> bool {
    dst.addr().wrapping_sub(src.addr()).wrapping_sub(1) % PAGE < 15
}

/// Whether to copy this many bytes, at least [`REP_FROM`], by [`wide`].
#[inline(always)]
fn is_wide(len: usize) -> bool {
    len <= WIDE_MAX && std::arch::is_x86_feature_detected!("avx")
}

/// Copies by vectors of 32 bytes, four at a time; the last four may overlap those before.
///
/// # Safety
///
/// `len` bytes, at least [`REP_FROM`], are readable at `src` and writable at `dst`; the processor has AVX.
#[inline(always)]
unsafe fn wide(src: *const u8, dst: *mut u8, len: usize) {
    const { assert!(REP_FROM > 128) };
    // SAFETY: every access stays within `len` bytes of its side. The kernel keeps the upper halves of the vectors from one thread to
    // the next; this program's other code does not know them, and they are zero again at the end.
    unsafe {
        asm!(
            "2:",
            "vmovdqu ymm0, [{src}]", "vmovdqu ymm1, [{src} + 32]", "vmovdqu ymm2, [{src} + 64]", "vmovdqu ymm3, [{src} + 96]",
            "vmovdqu [{dst}], ymm0", "vmovdqu [{dst} + 32], ymm1", "vmovdqu [{dst} + 64], ymm2", "vmovdqu [{dst} + 96], ymm3",
            "sub {src}, -128",
            "sub {dst}, -128",
            "cmp {src}, {last}",
            "jb 2b",
            "vmovdqu ymm0, [{last}]", "vmovdqu ymm1, [{last} + 32]", "vmovdqu ymm2, [{last} + 64]", "vmovdqu ymm3, [{last} + 96]",
            "vmovdqu [{to}], ymm0", "vmovdqu [{to} + 32], ymm1", "vmovdqu [{to} + 64], ymm2", "vmovdqu [{to} + 96], ymm3",
            "vzeroupper",
            src = inout(reg) src => _, dst = inout(reg) dst => _, last = in(reg) src.add(len - 128), to = in(reg) dst.add(len - 128),
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
            out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _, out("xmm12") _, out("xmm13") _, out("xmm14") _,
            out("xmm15") _,
            options(nostack)
        );
    }
}

/// Copies of more bytes than `move_short` takes: by `rep movsb` from [`REP_FROM`] on where it is fast, otherwise by blocks of 64
/// bytes.
macro_rules! move_long {
    ($src:ident, $dst:ident, $len:ident, $load16:expr, $store16:expr) => {
        if $len >= REP_FROM && !stumbles($src, $dst) {
            asm!("rep movsb", inout("rcx") $len => _, inout("rdi") $dst => _, inout("rsi") $src => _, options(nostack, preserves_flags));
        } else {
            let mut at = 0;
            while at + 64 <= $len {
                let parts = [0, 16, 32, 48].map(|i| $load16($src.add(at + i)));
                for (i, part) in parts.into_iter().enumerate() {
                    $store16($dst.add(at + i * 16), part);
                }
                at += 64;
            }
            while at + 16 <= $len {
                $store16($dst.add(at), $load16($src.add(at)));
                at += 16;
            }
            if at < $len {
                $store16($dst.add($len - 16), $load16($src.add($len - 16)));
            }
        }
    };
}

/// Copies of at least two lines, by whole lines of the destination: those at both ends may be written twice.
macro_rules! move_lines {
    ($src:ident, $dst:ident, $len:ident, $load16:expr, $store16:expr) => {{
        let last = $len - CACHE_LINE;
        move_line!($src, $dst, 0, $load16, $store16);
        let first = CACHE_LINE - $dst.addr() % CACHE_LINE;
        if $len >= STREAM_FROM {
            for at in (first..last).step_by(CACHE_LINE) {
                move_line!($src, $dst, at, $load16, |p, v| stream16(p, v));
            }
            stream_end();
        } else {
            for at in (first..last).step_by(CACHE_LINE) {
                move_line!($src, $dst, at, $load16, $store16);
            }
        }
        move_line!($src, $dst, last, $load16, $store16);
    }};
}

/// A line of these.
macro_rules! move_line {
    ($src:ident, $dst:ident, $at:expr, $load16:expr, $store16:expr) => {{
        let parts = [0, 16, 32, 48].map(|i| $load16($src.add($at + i)));
        for (i, part) in parts.into_iter().enumerate() {
            $store16($dst.add($at + i * 16), part);
        }
    }};
}

/// # Safety
/// `len` bytes are readable at `src`, in the region, and writable at `dst`, which is private.
#[inline(always)]
pub unsafe fn out_of(src: *const u8, dst: *mut u8, len: usize) {
    // SAFETY: called within the bounds that the moves below keep.
    let put16 = |p: *mut u8, v| unsafe { p.cast::<__m128i>().write_unaligned(v) };
    // SAFETY: called within the bounds that the moves below keep.
    let put8 = |p: *mut u8, v| unsafe { p.cast::<u64>().write_unaligned(v) };
    // SAFETY: called within the bounds that the moves below keep.
    let put4 = |p: *mut u8, v| unsafe { p.cast::<u32>().write_unaligned(v) };
    // SAFETY: called within the bounds that the moves below keep.
    let put1 = |p: *mut u8, v| unsafe { p.write(v) };
    // SAFETY: every access stays within `len` bytes of its side.
    unsafe {
        if len > SHORT_MAX {
            if len <= MIDDLE_MAX {
                middle_out_of(src, dst, len);
            } else {
                long_out_of(src, dst, len);
            }
        } else {
            let (get16, get8) = (|p| load16(p), |p| load8(p));
            let (get4, get1) = (|p| load4(p), |p| load1(p));
            move_short!(src, dst, len, get16, put16, get8, put8, get4, put4, get1, put1);
        }
    }
}

/// [`SHORT_MAX`] to [`MIDDLE_MAX`] bytes: blocks of 64 bytes, then the last block, which may overlap the one before.
///
/// # Safety
/// `len` bytes, more than [`SHORT_MAX`], are readable at `src`, in the region, and writable at `dst`, which is private.
#[inline(always)]
unsafe fn middle_out_of(src: *const u8, dst: *mut u8, len: usize) {
    // SAFETY: every access stays within `len` bytes of its side, which are more than 32.
    unsafe {
        if len < 64 {
            half_block(src, dst);
            half_block(src.add(len - 32), dst.add(len - 32));
            return;
        }
        let (mut from, mut to, last) = (src, dst, src.add(len - 64));
        block(from, to);
        if len > 128 {
            while from.add(64) < last {
                (from, to) = (from.add(64), to.add(64));
                block(from, to);
            }
        }
        block(last, dst.add(len - 64));
    }
}

/// # Safety
/// 64 bytes are readable at `src`, in the region, and writable at `dst`, which is private.
#[inline(always)]
unsafe fn block(src: *const u8, dst: *mut u8) {
    let (a, b, c, d): (__m128i, __m128i, __m128i, __m128i);
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "movdqu {a}, [{p}]", "movdqu {b}, [{p} + 16]", "movdqu {c}, [{p} + 32]", "movdqu {d}, [{p} + 48]",
            a = lateout(xmm_reg) a, b = lateout(xmm_reg) b, c = lateout(xmm_reg) c, d = lateout(xmm_reg) d, p = in(reg) src,
            options(nostack, preserves_flags, readonly)
        );
        for (i, part) in [a, b, c, d].into_iter().enumerate() {
            dst.add(i * 16).cast::<__m128i>().write_unaligned(part);
        }
    }
}

/// # Safety
/// 32 bytes are readable at `src`, in the region, and writable at `dst`, which is private.
#[inline(always)]
unsafe fn half_block(src: *const u8, dst: *mut u8) {
    let (a, b): (__m128i, __m128i);
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "movdqu {a}, [{p}]", "movdqu {b}, [{p} + 16]",
            a = lateout(xmm_reg) a, b = lateout(xmm_reg) b, p = in(reg) src, options(nostack, preserves_flags, readonly)
        );
        dst.cast::<__m128i>().write_unaligned(a);
        dst.add(16).cast::<__m128i>().write_unaligned(b);
    }
}

/// # Safety
/// `len` bytes, more than [`MIDDLE_MAX`], are readable at `src`, in the region, and writable at `dst`, which is private.
#[inline(never)]
unsafe fn long_out_of(src: *const u8, dst: *mut u8, len: usize) {
    // SAFETY: called within the bounds that the moves below keep.
    let put16 = |p: *mut u8, v| unsafe { p.cast::<__m128i>().write_unaligned(v) };
    if is_wide(len) {
        // SAFETY: both sides have this many bytes.
        return unsafe { wide(src, dst, len) };
    }
    if len >= PAGES_FROM {
        ask::<false>(src, len.div_ceil(PAGE), PAGE);
    }
    // SAFETY: every access stays within `len` bytes of its side.
    unsafe { move_long!(src, dst, len, |p| load16(p), put16) }
}

/// # Safety
/// `len` bytes are readable at `src`, which is private, and writable at `dst`, in the region.
#[inline(always)]
pub unsafe fn into(src: *const u8, dst: *mut u8, len: usize) {
    // SAFETY: called within the bounds that the moves below keep.
    let take16 = |p: *const u8| unsafe { p.cast::<__m128i>().read_unaligned() };
    // SAFETY: called within the bounds that the moves below keep.
    let take8 = |p: *const u8| unsafe { p.cast::<u64>().read_unaligned() };
    // SAFETY: called within the bounds that the moves below keep.
    let take4 = |p: *const u8| unsafe { p.cast::<u32>().read_unaligned() };
    // SAFETY: called within the bounds that the moves below keep.
    let take1 = |p: *const u8| unsafe { p.read() };
    // SAFETY: every access stays within `len` bytes of its side.
    unsafe {
        if len > SHORT_MAX {
            if len <= MIDDLE_MAX {
                middle_into(src, dst, len);
            } else {
                long_into(src, dst, len);
            }
        } else {
            let (put16, put8) = (|p, v| store16(p, v), |p, v| store8(p, v));
            let (put4, put1) = (|p, v| store4(p, v), |p, v| store1(p, v));
            move_short!(src, dst, len, take16, put16, take8, put8, take4, put4, take1, put1);
        }
    }
}

/// Copies [`SHORT_MAX`] to [`MIDDLE_MAX`] bytes into the region: blocks of 64 bytes, then the last block, which may overlap the
/// one before.
///
/// # Safety
/// `len` bytes, more than [`SHORT_MAX`], are readable at `src`, which is private, and writable at `dst`, in the region.
#[inline(always)]
unsafe fn middle_into(src: *const u8, dst: *mut u8, len: usize) {
    // SAFETY: every access stays within `len` bytes of its side, which are more than 32.
    unsafe {
        if len < 64 {
            half_block_into(src, dst);
            half_block_into(src.add(len - 32), dst.add(len - 32));
            return;
        }
        let (mut from, mut to, last) = (src, dst, src.add(len - 64));
        block_into(from, to);
        if len > 128 {
            while from.add(64) < last {
                (from, to) = (from.add(64), to.add(64));
                block_into(from, to);
            }
        }
        block_into(last, dst.add(len - 64));
    }
}

/// # Safety
/// 64 bytes are readable at `src`, which is private, and writable at `dst`, in the region.
#[inline(always)]
unsafe fn block_into(src: *const u8, dst: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe {
        let [a, b, c, d] = [0, 16, 32, 48].map(|i| src.add(i).cast::<__m128i>().read_unaligned());
        asm!(
            "movdqu [{p}], {a}", "movdqu [{p} + 16], {b}", "movdqu [{p} + 32], {c}", "movdqu [{p} + 48], {d}",
            a = in(xmm_reg) a, b = in(xmm_reg) b, c = in(xmm_reg) c, d = in(xmm_reg) d, p = in(reg) dst,
            options(nostack, preserves_flags)
        );
    }
}

/// # Safety
/// 32 bytes are readable at `src`, which is private, and writable at `dst`, in the region.
#[inline(always)]
unsafe fn half_block_into(src: *const u8, dst: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe {
        let [a, b] = [0, 16].map(|i| src.add(i).cast::<__m128i>().read_unaligned());
        asm!(
            "movdqu [{p}], {a}", "movdqu [{p} + 16], {b}",
            a = in(xmm_reg) a, b = in(xmm_reg) b, p = in(reg) dst, options(nostack, preserves_flags)
        );
    }
}

/// # Safety
/// `len` bytes, more than [`MIDDLE_MAX`], are readable at `src`, which is private, and writable at `dst`, in the region.
#[inline(never)]
unsafe fn long_into(src: *const u8, dst: *mut u8, len: usize) {
    // SAFETY: called within the bounds that the moves below keep.
    let take16 = |p: *const u8| unsafe { p.cast::<__m128i>().read_unaligned() };
    // SAFETY: called within the bounds that the moves below keep.
    let put16 = |p: *mut u8, v| unsafe { store16(p, v) };
    if len >= LINES_FROM {
        // SAFETY: every access stays within `len` bytes of its side.
        return unsafe { move_lines!(src, dst, len, take16, put16) };
    }
    if is_wide(len) {
        // SAFETY: both sides have this many bytes.
        return unsafe { wide(src, dst, len) };
    }
    // Prefetched, because the stores would request one line after the other.
    ask::<true>(dst, len.div_ceil(CACHE_LINE), CACHE_LINE);
    // SAFETY: every access stays within `len` bytes of its side.
    unsafe { move_long!(src, dst, len, take16, put16) }
}

/// # Safety
/// `len` bytes are readable at `src` and writable at `dst`, both in the region.
#[inline(always)]
pub unsafe fn within(src: *const u8, dst: *mut u8, len: usize) {
    if (REP_FROM..LINES_FROM).contains(&len) {
        ask::<true>(dst, len.div_ceil(CACHE_LINE), CACHE_LINE);
    }
    // SAFETY: every access stays within `len` bytes of its side.
    unsafe {
        let (get16, put16) = (|p| load16(p), |p, v| store16(p, v));
        if len >= LINES_FROM {
            move_lines!(src, dst, len, get16, put16);
        } else if len > SHORT_MAX {
            move_long!(src, dst, len, get16, put16);
        } else {
            let (get8, put8) = (|p| load8(p), |p, v| store8(p, v));
            let (get4, put4) = (|p| load4(p), |p, v| store4(p, v));
            let (get1, put1) = (|p| load1(p), |p, v| store1(p, v));
            move_short!(src, dst, len, get16, put16, get8, put8, get4, put4, get1, put1);
        }
    }
}

/// # Safety
/// `bytes.len()` bytes are readable at `p`.
#[inline(always)]
pub unsafe fn equal(p: *const u8, bytes: &[u8]) -> bool {
    let len = bytes.len();
    // SAFETY: every load below stays within `len` bytes.
    unsafe {
        if len >= 16 {
            let take16 = |at| bytes.as_ptr().add(at).cast::<__m128i>().read_unaligned();
            let differ_at = |at| _mm_xor_si128(load16(p.add(at)), take16(at));
            let (mut differ, mut at) = (differ_at(len - 16), 0);
            while at < len - 16 {
                differ = _mm_or_si128(differ, differ_at(at));
                at += 16;
            }
            _mm_movemask_epi8(_mm_cmpeq_epi8(differ, _mm_setzero_si128())) == 0xFFFF
        } else if len >= 8 {
            let take8 = |at| bytes.as_ptr().add(at).cast::<u64>().read_unaligned();
            let differ_at = |at| load8(p.add(at)) ^ take8(at);
            differ_at(0) | differ_at(len - 8) == 0
        } else {
            (0..len).all(|at| load1(p.add(at)) == *bytes.as_ptr().add(at))
        }
    }
}
