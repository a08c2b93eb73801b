//! The mapped bytes, and the one audited way to read and write them.
//!
//! [`Memory`] returns references to atomics and copies bytes. It never makes a Rust reference or slice of the region's payload,
//! because another process may overwrite any byte at any moment. Nothing here knows the layout.
//!
//! # Safety
//!
//! - [`Memory::new`]'s caller promises that `base..base + len` stays mapped for the value's life, readable, and writable unless
//!   `new` says otherwise, and that no Rust reference to plain data in it exists anywhere.
//! - Every access is bounds-checked against `len`. An access out of bounds is a bug of the caller and panics.
//! - Payload bytes are copied by single machine instructions that the compiler does not see into (x86-64), or by atomic loads
//!   and stores (elsewhere, under Miri and under an observer). So a racing writer makes the copy stale, never undefined.
#![allow(unsafe_code, reason = "the room of the raw mapping; contract above")]

use crate::atomics::{AtomicU8, AtomicU32, AtomicU64};
use core::marker::PhantomData;
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use std::sync::Arc;

/// Bytes that the processor moves at a time.
const CACHE_LINE: usize = 64;

/// Space after the data that makes a vector grow, bytes: otherwise what a protocol appends would make it grow, and copy, once more.
const ROOM_BEHIND: usize = 64;

/// Lengths of values that are prefetched as a whole before they are copied, bytes.
const COPIED_AHEAD: core::ops::RangeInclusive<usize> = 2 << 10..=8 << 10;

/// Bytes that any mapping has. No shared structure is larger, which saves every access one comparison.
const LEN_MIN: usize = 4096;

/// A mapping of a region.
#[derive(Debug)]
pub struct Memory {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping outlives the value and every access to it is atomic or opaque to the compiler.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

/// Types that consist only of atomics and may therefore be accessed through a shared reference into the region.
///
/// # Safety
///
/// Only for `repr(C)` types all of whose bytes belong to atomics, and that are valid for every bit pattern.
pub unsafe trait Shared {}

// SAFETY: an atomic is nothing but itself.
unsafe impl Shared for AtomicU64 {}
// SAFETY: an atomic is nothing but itself.
unsafe impl Shared for AtomicU32 {}
// SAFETY: an atomic is nothing but itself.
unsafe impl Shared for AtomicU8 {}
// SAFETY: an array of such types is one.
unsafe impl<T: Shared, const N: usize> Shared for [T; N] {}

/// A bucket's words in place.
#[repr(C, align(64))]
struct Lined([AtomicU64; 8]);

// SAFETY: it is nothing but atomics.
unsafe impl Shared for Lined {}

/// Eight words that were loaded one by one, each without tearing, with acquire ordering: a bucket.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub struct Line(pub [u64; 8]);

impl Line {
    /// A line that is not loaded yet.
    pub const EMPTY: Self = Self([0; 8]);

    /// Which words equal `wanted` in the bits of `mask`, as bits.
    #[inline(always)]
    pub fn matches(&self, mask: u64, wanted: u64) -> u32 {
        #[cfg(all(target_arch = "x86_64", not(miri), not(feature = "observe")))]
        return copy::matches(self, mask, wanted);
        #[cfg(not(all(target_arch = "x86_64", not(miri), not(feature = "observe"))))]
        return self
            .0
            .iter()
            .enumerate()
            .fold(0, |bits, (i, word)| bits | u32::from(word & mask == wanted) << i);
    }

    /// The same for two lines, of which only the words' upper halves are compared; the second one's bits follow the first one's.
    #[inline(always)]
    pub fn pair_matches_high(pair: &[Self; 2], mask: u64, wanted: u64) -> u32 {
        debug_assert!((mask | wanted) & 0xFFFF_FFFF == 0);
        #[cfg(all(target_arch = "x86_64", not(miri), not(feature = "observe")))]
        return copy::pair_matches_high(pair, mask, wanted);
        #[cfg(not(all(target_arch = "x86_64", not(miri), not(feature = "observe"))))]
        pair.iter()
            .enumerate()
            .fold(0, |bits, (i, line)| bits | line.matches(mask, wanted) << (8 * i))
    }

    /// Whether any of the words has any of these bits.
    #[inline(always)]
    pub fn has_any(&self, bits: u64) -> bool {
        self.0.iter().fold(0, |all, word| all | word) & bits != 0
    }
}

/// A shared value whose place was looked up once, and the keeper that keeps it mapped.
pub(crate) struct Pinned<T: Shared, K> {
    at: NonNull<T>,
    _keeper: Arc<K>,
}

// SAFETY: a shared reference to the value and to its keeper, which both may be used by any thread.
unsafe impl<T: Shared + Sync, K: Send + Sync> Send for Pinned<T, K> {}

impl<T: Shared, K> Pinned<T, K> {
    /// The value that `find` finds in the keeper's memory.
    pub fn new(keeper: &Arc<K>, find: impl for<'k> FnOnce(&'k K) -> &'k T) -> Self {
        Self {
            at: NonNull::from(find(keeper)),
            _keeper: Arc::clone(keeper),
        }
    }
}

impl<T: Shared, K> core::ops::Deref for Pinned<T, K> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: `find` says that it lives as long as the keeper, which is alive, at the same place, and never borrowed mutably.
        unsafe { self.at.as_ref() }
    }
}

/// A mapping's place and length by value: they stay in registers where a [`Memory`] is read again after every acquiring load.
#[derive(Clone, Copy)]
pub(crate) struct View<'m> {
    base: NonNull<u8>,
    len: usize,
    memory: PhantomData<&'m Memory>,
}

impl<'m> View<'m> {
    /// As [`Memory::get`].
    #[inline(always)]
    pub fn get<T: Shared>(self, offset: usize) -> &'m T {
        const { assert!(size_of::<T>() <= LEN_MIN) };
        debug_assert!(offset.is_multiple_of(align_of::<T>()), "unaligned: {offset}");
        let offset = offset & !(align_of::<T>() - 1);
        // A value whose size is its alignment is within the line in which it begins.
        let is_outside = if size_of::<T>() == align_of::<T>() && size_of::<T>() <= CACHE_LINE {
            offset >= self.len
        } else {
            offset > self.len - size_of::<T>()
        };
        if is_outside {
            outside(offset);
        }
        // SAFETY: in bounds by the lines above, and aligned (the base is page-aligned).
        unsafe { self.at(offset) }
    }

    /// As [`Memory::get`], without a look at bounds and alignment.
    ///
    /// # Safety
    ///
    /// A `T` at `offset` is in the mapping and aligned: the offset follows from the layout, and from numbers that were compared
    /// with those of the layout.
    #[inline(always)]
    pub unsafe fn at<T: Shared>(self, offset: usize) -> &'m T {
        crate::mutants::accessed();
        debug_assert!(offset.is_multiple_of(align_of::<T>()) && offset <= self.len && size_of::<T>() <= self.len - offset);
        // SAFETY: the caller's promise; valid for every bit pattern, and only ever accessed atomically.
        unsafe { self.base.add(offset).cast().as_ref() }
    }

    /// As [`Memory::line`], without a look at bounds and alignment.
    ///
    /// # Safety
    ///
    /// As for [`Self::at`]: 64 bytes.
    #[inline(always)]
    pub unsafe fn line(self, offset: usize) -> Line {
        // SAFETY: the caller's promise.
        load(unsafe { self.at(offset) })
    }

    /// Prefetches three cache lines. The address need not be a valid one.
    #[inline(always)]
    pub fn prefetch_three(self, offset: usize) {
        ask_three(self.base.as_ptr().wrapping_add(offset));
    }

    /// The `len` bytes at `offset`, whose bounds are looked at once.
    ///
    /// # Safety
    ///
    /// They are in the mapping.
    #[inline(always)]
    pub unsafe fn window(self, offset: usize, len: usize) -> Window<'m> {
        crate::mutants::accessed();
        debug_assert!(len <= self.len && offset <= self.len - len);
        Window {
            // SAFETY: the caller's promise.
            start: unsafe { self.base.add(offset) },
            len,
            memory: PhantomData,
        }
    }
}

/// Bytes of the region whose bounds have been looked at.
#[derive(Clone, Copy)]
pub struct Window<'m> {
    start: NonNull<u8>,
    len: usize,
    memory: PhantomData<&'m Memory>,
}

impl<'m> Window<'m> {
    /// Whether they are these.
    #[inline(always)]
    pub(crate) fn equals(self, bytes: &[u8]) -> bool {
        // SAFETY: as many bytes are in the window; `bytes` is private memory.
        bytes.len() == self.len && unsafe { copy::equal(self.start.as_ptr(), bytes) }
    }

    /// Its bytes.
    #[allow(clippy::len_without_is_empty, reason = "no caller asks")]
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Copies them to the end of `out`. `false`: this process has no memory for them.
    #[inline(always)]
    #[must_use]
    pub fn append_to(self, out: &mut Vec<u8>) -> bool {
        if out.capacity() - out.len() < self.len && !crate::heap::try_reserve(out, self.len + ROOM_BEHIND) {
            return false;
        }
        // SAFETY: `len` bytes are reserved after the vector's end, and are initialised before its length includes them.
        unsafe {
            copy::out_of(self.start.as_ptr(), out.as_mut_ptr().add(out.len()), self.len);
            out.set_len(out.len() + self.len);
        }
        true
    }

    /// Copies as many as fit over `out`, and returns those.
    #[inline(always)]
    pub fn fill(self, out: &mut [MaybeUninit<u8>]) -> &[u8] {
        let len = self.len.min(out.len());
        // SAFETY: both sides have this many bytes; `out` is private memory, and so much of it is initialised after the copy.
        unsafe {
            copy::out_of(self.start.as_ptr(), out.as_mut_ptr().cast(), len);
            out.get_unchecked(..len).assume_init_ref()
        }
    }
}

/// A bucket's words.
#[inline(always)]
fn load(line: &Lined) -> Line {
    #[cfg(all(target_arch = "x86_64", not(miri), not(feature = "observe")))]
    // SAFETY: 64 bytes are mapped there, aligned as the line that is made of them.
    return unsafe { copy::line(core::ptr::from_ref(line).cast()) };
    #[cfg(not(all(target_arch = "x86_64", not(miri), not(feature = "observe"))))]
    Line(core::array::from_fn(|i| {
        // PAIRS: item: the publish in `Session::swap_same` and in `insert`.
        line.0.get(i).map_or(0, |w| w.load(crate::atomics::Acquire))
    }))
}

impl Memory {
    /// Its place and length, by value.
    #[inline(always)]
    pub(crate) fn view(&self) -> View<'_> {
        View {
            base: self.base,
            len: self.len,
            memory: PhantomData,
        }
    }

    /// The line at `offset`, a multiple of 64.
    #[inline(always)]
    pub fn line(&self, offset: usize) -> Line {
        load(self.get(offset))
    }

    /// Wraps a mapping.
    ///
    /// # Safety
    ///
    /// `base..base + len` is mapped shared, page-aligned, and stays so as long as the value lives.
    pub unsafe fn new(base: NonNull<u8>, len: usize) -> Self {
        assert!(len >= LEN_MIN, "a mapping of {len} bytes");
        // Whole lines: an aligned value that begins in the mapping ends in it.
        let len = len & !(CACHE_LINE - 1);
        Self { base, len }
    }

    /// The addresses of the mapping.
    pub fn addresses(&self) -> core::ops::Range<usize> {
        let start = self.base.addr().get();
        start..start + self.len
    }

    /// Mapped bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is mapped.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline(always)]
    fn at(&self, offset: usize, len: usize) -> *mut u8 {
        crate::mutants::accessed();
        // `offset + len > self.len`, without its overflow.
        if len > self.len || offset > self.len - len {
            outside(offset);
        }
        // SAFETY: in bounds by the lines above.
        unsafe { self.base.as_ptr().add(offset) }
    }

    /// The shared value at `offset`, which is a multiple of its alignment.
    #[inline(always)]
    pub fn get<T: Shared>(&self, offset: usize) -> &T {
        self.view().get(offset)
    }

    /// The `len` bytes at `offset`.
    #[inline(always)]
    pub fn window(&self, offset: usize, len: usize) -> Window<'_> {
        self.at(offset, len);
        // SAFETY: in bounds by the line above.
        unsafe { self.view().window(offset, len) }
    }

    /// Copies region bytes to the end of `out`. `false`: this process has no memory for them.
    #[inline]
    #[must_use]
    pub fn append_to(&self, offset: usize, len: usize, out: &mut Vec<u8>) -> bool {
        self.window(offset, len).append_to(out)
    }

    /// The address of these bytes, for the kernel to read.
    pub(crate) fn address(&self, offset: usize, len: usize) -> *const u8 {
        self.at(offset, len)
    }

    /// Copies `src` into the region.
    #[inline(always)]
    pub fn write(&self, offset: usize, src: &[u8]) {
        let dst = self.at(offset, src.len());
        // SAFETY: both sides are in bounds; `src` is private memory.
        unsafe { copy::into(src.as_ptr(), dst, src.len()) }
    }

    /// Copies region bytes to another place of the region.
    #[inline]
    pub fn copy(&self, from: usize, to: usize, len: usize) {
        let (src, dst) = (self.at(from, len), self.at(to, len));
        // SAFETY: both sides are in bounds.
        unsafe { copy::within(src, dst, len) }
    }

    /// Copies region bytes over `out`.
    #[inline]
    pub fn read(&self, offset: usize, out: &mut [u8]) {
        let src = self.at(offset, out.len());
        // SAFETY: both sides are in bounds; `out` is private memory.
        unsafe { copy::out_of(src, out.as_mut_ptr(), out.len()) }
    }

    /// Whether the region's bytes at `offset` equal `bytes`.
    #[inline(always)]
    pub fn equals(&self, offset: usize, bytes: &[u8]) -> bool {
        let p = self.at(offset, bytes.len());
        // SAFETY: both sides are in bounds; `bytes` is private memory.
        unsafe { copy::equal(p, bytes) }
    }

    /// Eight bytes, little-endian, that need not be aligned.
    #[inline(always)]
    pub fn u64_unaligned(&self, offset: usize) -> u64 {
        let p = self.at(offset, 8);
        // SAFETY: eight bytes are mapped at `p`.
        unsafe { copy::load8(p) }
    }

    /// Prefetches this many cache lines. The address need not be a valid one.
    #[inline(always)]
    pub fn prefetch<const LINES: usize>(&self, offset: usize) {
        self.ask::<LINES, false>(offset);
    }

    /// The same for bytes that are about to be copied, if it helps: many bytes are copied at once by an instruction that starts
    /// slowly on lines in the second-level cache, and very many do not fit into the first-level cache.
    #[inline(always)]
    pub fn prefetch_to_copy(&self, offset: usize, len: usize) {
        if COPIED_AHEAD.contains(&len) {
            for lines in 0..len / (4 * CACHE_LINE) + 1 {
                self.prefetch::<4>(offset + lines * 4 * CACHE_LINE);
            }
        }
    }

    /// The same for lines that are about to be written.
    #[inline(always)]
    pub fn prefetch_to_write<const LINES: usize>(&self, offset: usize) {
        self.ask::<LINES, true>(offset);
    }

    #[inline(always)]
    fn ask<const LINES: usize, const WRITE: bool>(&self, offset: usize) {
        ask::<WRITE>(self.base.as_ptr().wrapping_add(offset), LINES, CACHE_LINE);
    }

    /// The address of this byte's cache line, for instructions that do not change it.
    #[inline(always)]
    pub(crate) fn line_address(&self, offset: usize) -> *const u8 {
        self.at(offset & !(CACHE_LINE - 1), 1)
    }

    /// Zeroes region bytes; both arguments multiples of 8.
    pub fn zero(&self, offset: usize, len: usize) {
        for at in (offset..offset + len).step_by(8) {
            self.get::<AtomicU64>(at).store(0, crate::atomics::Relaxed);
        }
    }
}

/// The offset is its only argument: every other one would have to be kept ready wherever the region is accessed.
#[cold]
#[inline(never)]
fn outside(offset: usize) -> ! {
    panic!("access outside the region: at {offset}");
}

/// Prefetches this many cache lines, `step` bytes apart; `WRITE`: to write them.
#[inline(always)]
fn ask<const WRITE: bool>(p: *const u8, lines: usize, step: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    for line in 0..lines {
        let p = p.wrapping_add(line * step);
        // SAFETY: a prefetch affects only the cache and never faults, whatever the address.
        unsafe {
            if WRITE {
                core::arch::asm!("prefetchw [{p}]", p = in(reg) p, options(nostack, preserves_flags, readonly));
            } else {
                core::arch::asm!("prefetcht0 [{p}]", p = in(reg) p, options(nostack, preserves_flags, readonly));
            }
        }
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = (p, lines, step);
}

/// Prefetches three cache lines.
#[inline(always)]
fn ask_three(p: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch affects only the cache and never faults, whatever the address.
    unsafe {
        core::arch::asm!(
            "prefetcht0 [{p}]", "prefetcht0 [{p} + 64]", "prefetcht0 [{p} + 128]",
            p = in(reg) p, options(nostack, preserves_flags, readonly)
        );
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = p;
}

#[cfg(all(target_arch = "x86_64", not(miri), not(feature = "observe")))]
mod copy {
    //! Copies by instructions in `asm!` blocks: the compiler sees neither address nor width, so it can neither tear, repeat nor
    //! drop a load from memory to which other threads write.
    use super::{CACHE_LINE, Line, ask};
    use core::arch::asm;
    use core::arch::x86_64::{
        __m128i, _mm_and_si128, _mm_castps_si128, _mm_castsi128_ps, _mm_cmpeq_epi8, _mm_cmpeq_epi32, _mm_movemask_epi8,
        _mm_or_si128, _mm_packs_epi16, _mm_packs_epi32, _mm_set1_epi32, _mm_setzero_si128, _mm_shuffle_ps, _mm_xor_si128,
    };

    /// Up to this many bytes are copied without a loop.
    const SHORT_MAX: usize = 32;
    /// Up to this many bytes are copied out of the region in blocks of 64.
    const MIDDLE_MAX: usize = REP_FROM - 1;
    /// Above this many bytes `rep movsb` (fast on processors with ERMS/FSRM) beats the 16-byte loop.
    const REP_FROM: usize = 512;
    /// Below this many bytes all lines of the log that are written are prefetched at once.
    const ASKED_BELOW: usize = 16 * 1024;
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
        let [mask, wanted] = [mask, wanted].map(|n| (n >> 32) as u32);
        // SAFETY: all are 64 plain bytes; SSE2 is part of the x86-64 baseline.
        unsafe {
            let [first, second] = pair.map(|line| {
                let [a, b, c, d]: [__m128i; 4] = core::mem::transmute(line.0);
                _mm_packs_epi32(halves::<0xDD>([a, b], mask, wanted), halves::<0xDD>([c, d], mask, wanted))
            });
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
    unsafe fn load1(p: *const u8) -> u8 {
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
    unsafe fn load4(p: *const u8) -> u32 {
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

    /// The same for longer copies.
    macro_rules! move_long {
        ($src:ident, $dst:ident, $len:ident, $load16:expr, $store16:expr) => {
            if $len >= REP_FROM {
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
    /// As [`out_of`].
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
            while from < last {
                block(from, to);
                (from, to) = (from.add(64), to.add(64));
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
    /// The same with 32 bytes.
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
    /// As [`out_of`].
    #[inline(never)]
    unsafe fn long_out_of(src: *const u8, dst: *mut u8, len: usize) {
        // SAFETY: called within the bounds that the moves below keep.
        let put16 = |p: *mut u8, v| unsafe { p.cast::<__m128i>().write_unaligned(v) };
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
                long_into(src, dst, len);
            } else {
                let (put16, put8) = (|p, v| store16(p, v), |p, v| store8(p, v));
                let (put4, put1) = (|p, v| store4(p, v), |p, v| store1(p, v));
                move_short!(src, dst, len, take16, put16, take8, put8, take4, put4, take1, put1);
            }
        }
    }

    /// # Safety
    /// As [`into`].
    #[inline(never)]
    unsafe fn long_into(src: *const u8, dst: *mut u8, len: usize) {
        // SAFETY: called within the bounds that the moves below keep.
        let take16 = |p: *const u8| unsafe { p.cast::<__m128i>().read_unaligned() };
        // Prefetched, because the stores would request one line after the other. Longer copies prefetch by themselves.
        if (REP_FROM..ASKED_BELOW).contains(&len) {
            ask::<true>(dst, len.div_ceil(CACHE_LINE), CACHE_LINE);
        }
        // SAFETY: every access stays within `len` bytes of its side.
        unsafe { move_long!(src, dst, len, take16, |p, v| store16(p, v)) }
    }

    /// # Safety
    /// `len` bytes are readable at `src` and writable at `dst`, both in the region.
    #[inline(always)]
    pub unsafe fn within(src: *const u8, dst: *mut u8, len: usize) {
        if (REP_FROM..ASKED_BELOW).contains(&len) {
            ask::<true>(dst, len.div_ceil(CACHE_LINE), CACHE_LINE);
        }
        // SAFETY: every access stays within `len` bytes of its side.
        unsafe {
            let (get16, put16) = (|p| load16(p), |p, v| store16(p, v));
            if len > SHORT_MAX {
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
}

#[cfg(not(all(target_arch = "x86_64", not(miri), not(feature = "observe"))))]
mod copy {
    //! Copies by relaxed atomics: whole words where the region's side is aligned, bytes elsewhere. With the feature `races` by
    //! plain copies, for a race detector.
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
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Private memory that acts as the mapping, aligned like one.
    #[repr(align(4096))]
    pub struct Page([u64; 528]);

    /// Space for copies so long that nothing is prefetched before they write.
    #[repr(align(4096))]
    struct Pages([u64; 9000]);

    impl Page {
        pub fn new() -> Box<Self> {
            Box::new(Self([0; 528]))
        }

        pub fn memory(&mut self) -> Memory {
            let base = NonNull::new(self.0.as_mut_ptr().cast()).unwrap();
            // SAFETY: the page outlives the value in each test and is not touched meanwhile.
            unsafe { Memory::new(base, self.0.len() * 8) }
        }
    }

    /// This many bytes of zeros, like a mapping of pages; they live as long as the vector.
    #[cfg(feature = "observe")]
    pub fn private(len: usize) -> (Vec<u64>, Memory) {
        const PAGE: usize = 4096;
        let mut words = vec![0u64; (len + PAGE) / 8];
        let start = words.as_mut_ptr().cast::<u8>();
        let base = NonNull::new(start.wrapping_add(start.align_offset(PAGE))).unwrap();
        // SAFETY: `base` is less than a page after the vector's start, so `len` bytes of the vector follow, and they are
        // accessed only through this.
        (words, unsafe { Memory::new(base, len) })
    }

    /// The same mapping once more, as another process has it; it lives as long as the first one's memory.
    #[cfg(feature = "observe")]
    pub fn again(memory: &Memory) -> Memory {
        // SAFETY: the promise that was made for the first one.
        unsafe { Memory::new(memory.base, memory.len) }
    }

    #[test]
    fn what_is_written_is_read_back_at_every_length_and_alignment() {
        let mut page = Page::new();
        let m = page.memory();
        let src: Vec<u8> = (0..1200u32).map(|i| (i * 7 + 3).to_le_bytes()[0]).collect();
        for len in (0..70).chain([127, 128, 129, 250, 511, 512, 513, 1100]) {
            for offset in 0..17 {
                m.write(offset, &src[..len]);
                let mut out = vec![9];
                assert!(m.append_to(offset, len, &mut out));
                assert_eq!(out[1..], src[..len], "{len} bytes at {offset}");
                assert!(m.equals(offset, &src[..len]));
                for wrong in [0, len / 2, len.saturating_sub(1)] {
                    let mut other = src[..len].to_vec();
                    if let Some(b) = other.get_mut(wrong) {
                        *b ^= 0x10;
                        assert!(!m.equals(offset, &other), "{len} bytes at {offset}, byte {wrong} changed");
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_long_is_written_whole_and_nothing_beside_it() {
        let mut pages = Box::new(Pages([0; 9000]));
        let base = NonNull::new(pages.0.as_mut_ptr().cast()).unwrap();
        // SAFETY: the pages outlive the value and are not touched meanwhile.
        let m = unsafe { Memory::new(base, pages.0.len() * 8) };
        let src: Vec<u8> = (0..70_000u32).map(|i| (i * 7 + i / 251).to_le_bytes()[0] | 1).collect();
        for len in [512, 4_097, 8_191, 8_192, 16_383, 16_384, 16_385, 16_447, 32_768, 65_537] {
            for offset in [16, 17, 24, 31, 32, 60, 63, 65] {
                m.zero(0, m.len());
                m.write(offset, &src[..len]);
                let mut out = Vec::new();
                assert!(m.append_to(0, offset + len + 64, &mut out));
                assert!(out[offset..offset + len] == src[..len], "{len} bytes at {offset}");
                let beside = out[..offset].iter().chain(&out[offset + len..]);
                assert!(
                    beside.eq(std::iter::repeat_n(&0, offset + 64)),
                    "beside {len} bytes at {offset}"
                );
            }
        }
    }

    #[test]
    fn a_line_finds_its_words() {
        let mut page = Page::new();
        let m = page.memory();
        for (i, word) in [5, 0x1_0000_0005, 7, u64::MAX, 5, 0, 1 << 63, 5].into_iter().enumerate() {
            m.get::<AtomicU64>(64 + i * 8).store(word, crate::atomics::Relaxed);
        }
        let line = m.line(64);
        assert_eq!(line.matches(u64::MAX, 5), 0b1001_0001);
        assert_eq!(line.matches(0xFFFF_FFFF, 5), 0b1001_0011);
        assert_eq!(line.matches(1 << 63, 1 << 63), 0b0100_1000);
        assert_eq!(line.matches(u64::MAX, 0), 0b0010_0000);
        assert!(line.has_any(1 << 40));
    }

    #[test]
    #[should_panic(expected = "outside the region")]
    fn an_access_beyond_the_end_is_refused() {
        Page::new().memory().get::<AtomicU64>(528 * 8);
    }
}
