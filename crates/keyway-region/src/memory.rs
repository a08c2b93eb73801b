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
//! - A caller's key is copied likewise ([`KeyRoom`]), because other code may change it at any time.
#![allow(unsafe_code, reason = "the room of the raw mapping; contract above")]

#[cfg(all(target_arch = "x86_64", not(miri), not(feature = "observe")))]
#[path = "memory/native.rs"]
mod copy;
#[cfg(not(all(target_arch = "x86_64", not(miri), not(feature = "observe"))))]
#[path = "memory/portable.rs"]
mod copy;
#[cfg(test)]
pub(crate) mod tests;

use crate::atomics::{AtomicU8, AtomicU32, AtomicU64};
use crate::verbs::KEY_LEN_MAX;
use core::marker::PhantomData;
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use std::sync::Arc;

/// Bytes that the processor moves at a time.
pub(crate) const CACHE_LINE: usize = 64;

/// Space after the data that makes a vector grow, bytes: otherwise what a protocol appends would make it grow, and copy, once more.
const ROOM_BEHIND: usize = 64;

/// Lengths of values that are prefetched as a whole before they are copied, bytes.
pub(crate) const COPIED_AHEAD: core::ops::RangeInclusive<usize> = 2 << 10..=8 << 10;

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

    /// Which words of two lines equal `wanted` in the bits of `mask`, which are in the upper halves; the second line's bits
    /// follow the first one's.
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
// SAFETY: as above.
unsafe impl<T: Shared + Sync, K: Send + Sync> Sync for Pinned<T, K> {}

impl<T: Shared, K> Pinned<T, K> {
    /// The value that `find` finds in the keeper's memory.
    pub fn new(keeper: &Arc<K>, find: impl for<'k> FnOnce(&'k K) -> &'k T) -> Self {
        Self {
            at: NonNull::from(find(keeper)),
            _keeper: Arc::clone(keeper),
        }
    }
}

impl<T: Shared, K> Clone for Pinned<T, K> {
    fn clone(&self) -> Self {
        Self {
            at: self.at,
            _keeper: Arc::clone(&self._keeper),
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
    /// The shared value at `offset`, a multiple of its alignment. Panics outside the mapping.
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

    /// The shared value at `offset`. Only debug builds check bounds and alignment.
    ///
    /// # Safety
    ///
    /// A `T` at `offset` is in the mapping and aligned: the offset follows from the layout, and from numbers that were compared
    /// with those of the layout.
    #[inline(always)]
    pub unsafe fn at<T: Shared>(self, offset: usize) -> &'m T {
        debug_assert!(offset.is_multiple_of(align_of::<T>()) && offset <= self.len && size_of::<T>() <= self.len - offset);
        // SAFETY: the caller's promise; valid for every bit pattern, and only ever accessed atomically.
        unsafe { self.base.add(offset).cast().as_ref() }
    }

    /// Loads the 64-byte line at `offset`. Only debug builds check bounds and alignment.
    ///
    /// # Safety
    ///
    /// 64 bytes at `offset` are in the mapping, and `offset` is a multiple of 64.
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

    /// Copies `src` into the region at `offset`. Only debug builds check bounds.
    ///
    /// # Safety
    ///
    /// As many bytes at `offset` are in the mapping.
    #[inline(always)]
    pub unsafe fn write(self, offset: usize, src: &[u8]) {
        debug_assert!(src.len() <= self.len && offset <= self.len - src.len());
        // SAFETY: the caller's promise; `src` is private memory.
        unsafe { copy::into(src.as_ptr(), self.base.add(offset).as_ptr(), src.len()) }
    }

    /// Loads eight bytes, little-endian, that need not be aligned. Only debug builds check bounds.
    ///
    /// # Safety
    ///
    /// Eight bytes at `offset` are in the mapping.
    #[inline(always)]
    pub unsafe fn u64_unaligned(self, offset: usize) -> u64 {
        debug_assert!(offset <= self.len - 8);
        // SAFETY: the caller's promise.
        unsafe { copy::load8(self.base.add(offset).as_ptr()) }
    }

    /// The `len` bytes at `offset`, whose bounds are checked one time.
    ///
    /// # Safety
    ///
    /// They are in the mapping.
    #[inline(always)]
    pub unsafe fn window(self, offset: usize, len: usize) -> Window<'m> {
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

    /// Its bytes from this one on.
    pub(crate) fn part(self, from: usize) -> Self {
        let from = from.min(self.len);
        Self {
            // SAFETY: within the window, or at its end.
            start: unsafe { self.start.add(from) },
            len: self.len - from,
            memory: PhantomData,
        }
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

/// Space for a private copy of a caller's key.
pub struct KeyRoom([MaybeUninit<u8>; KEY_ROOM]);

/// The longest key, in whole words.
const KEY_ROOM: usize = KEY_LEN_MAX.next_multiple_of(16);

impl KeyRoom {
    /// Without a key in it.
    #[inline(always)]
    #[allow(clippy::new_without_default, reason = "it is made in one way")]
    pub const fn new() -> Self {
        Self([MaybeUninit::uninit(); KEY_ROOM])
    }

    /// Copies a key of at most [`KEY_LEN_MAX`] bytes, and hashes the copy: `short` those of at most 16 bytes, by its two words
    /// ([`Self::take_short`]), `long` the others.
    #[inline(always)]
    pub(crate) fn take_hashed(
        &mut self,
        given: &[u8],
        short: impl FnOnce([u64; 2]) -> u64,
        long: impl FnOnce(&[u8]) -> u64,
    ) -> (&[u8], u64) {
        let len = given.len();
        assert!(len <= KEY_LEN_MAX);
        let hash = if len > 16 {
            self.take_long(given, long)
        } else {
            short(self.take_short(given))
        };
        // SAFETY: so many have just been written.
        (unsafe { self.taken(len) }, hash)
    }

    /// A number as the result: a key would have to go through memory.
    #[inline(never)]
    fn take_long(&mut self, given: &[u8], hash: impl FnOnce(&[u8]) -> u64) -> u64 {
        hash(self.take(given))
    }

    /// Copies a key of at most 16 bytes. Returns the copy as two words, which may overlap: its first and its last eight bytes, or four; of
    /// fewer than four bytes they are all in the first word.
    ///
    /// The caller's bytes may change meanwhile. So none is loaded twice and used differently: where the two words overlap, what the first
    /// one has counts.
    #[inline(always)]
    fn take_short(&mut self, given: &[u8]) -> [u64; 2] {
        let (from, to, len) = (given.as_ptr(), self.0.as_mut_ptr().cast::<u8>(), given.len());
        assert!(len <= 16);
        // SAFETY: every load and store stays within `len` bytes of its side; there is room for the longest key.
        unsafe {
            if len == 16 {
                let [first, last] = copy::once16(from);
                to.cast::<u64>().write_unaligned(first);
                to.add(8).cast::<u64>().write_unaligned(last);
                [first, last]
            } else if len >= 8 {
                let [first, last] = [copy::once8(from), copy::once8(from.add(len - 8))];
                let after = 8 * (len - 8);
                let last = first >> after | last & !(u64::MAX >> after);
                to.cast::<u64>().write_unaligned(first);
                to.add(len - 8).cast::<u64>().write_unaligned(last);
                [first, last]
            } else if len >= 4 {
                let [first, last] = [copy::once4(from), copy::once4(from.add(len - 4))];
                let after = 8 * (len - 4);
                let last = first >> after | last & !(u32::MAX >> after);
                to.cast::<u32>().write_unaligned(first);
                to.add(len - 4).cast::<u32>().write_unaligned(last);
                [first, last].map(u64::from)
            } else {
                let mut word = 0;
                for at in 0..len {
                    let byte = copy::once1(from.add(at));
                    to.add(at).write(byte);
                    word |= u64::from(byte) << (8 * at);
                }
                [word, 0]
            }
        }
    }

    /// Copies a key, as far as it is no longer than the longest, and returns the copy.
    pub fn take(&mut self, given: &[u8]) -> &[u8] {
        let len = given.len().min(KEY_LEN_MAX);
        // SAFETY: `given` has as many bytes, and there is room for them; then they have been written.
        unsafe {
            copy::once(given.as_ptr(), self.0.as_mut_ptr().cast(), len);
            self.taken(len)
        }
    }

    /// The first bytes.
    ///
    /// # Safety
    ///
    /// So many have been written.
    #[inline(always)]
    unsafe fn taken(&self, len: usize) -> &[u8] {
        // SAFETY: guaranteed by the caller.
        unsafe { core::slice::from_raw_parts(self.0.as_ptr().cast(), len) }
    }
}

/// Copies bytes of this process over `to`, which has as many, as the region's are copied: in blocks, without a call of the C library
/// for a few.
#[inline(always)]
pub(crate) fn fill_bytes(from: &[u8], to: &mut [MaybeUninit<u8>]) {
    assert!(from.len() == to.len());
    #[cfg(all(target_arch = "x86_64", not(miri), not(feature = "observe")))]
    // SAFETY: both sides have this many bytes.
    unsafe {
        copy::out_of(from.as_ptr(), to.as_mut_ptr().cast(), from.len());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri), not(feature = "observe"))))]
    to.write_copy_of_slice(from);
}

/// Copies bytes of this process over `to`, whose bytes are initialised. Panics if the lengths differ.
#[inline(always)]
pub fn copy_bytes(from: &[u8], to: &mut [u8]) {
    // SAFETY: only bytes are written, and they are as good as those before.
    fill_bytes(from, unsafe { &mut *(core::ptr::from_mut(to) as *mut [MaybeUninit<u8>]) });
}

/// Appends bytes of this process to a vector, which grows if necessary.
#[inline(always)]
pub fn append_bytes(from: &[u8], to: &mut Vec<u8>) {
    to.reserve(from.len());
    if let Some(room) = to.spare_capacity_mut().get_mut(..from.len()) {
        fill_bytes(from, room);
        // SAFETY: initialised by the line above.
        unsafe { to.set_len(to.len() + from.len()) }
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
        // PAIRS: item: the publish in `Publisher::swap_same` and in `insert`.
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
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
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
        ask::<false>(self.base.as_ptr().wrapping_add(offset), LINES, CACHE_LINE);
    }

    /// Prefetches bytes that are about to be copied, if it helps: a copy fetches fewer by itself fast enough, and very many do
    /// not fit into the first-level cache. Every other line: the processor fetches its neighbour, too.
    #[inline(always)]
    pub fn prefetch_to_copy(&self, offset: usize, len: usize) {
        if COPIED_AHEAD.contains(&len) {
            ask::<false>(
                self.base.as_ptr().wrapping_add(offset),
                len.div_ceil(2 * CACHE_LINE),
                2 * CACHE_LINE,
            );
        }
    }

    /// Prefetches the lines of this many bytes. The address need not be a valid one.
    #[inline(always)]
    pub fn prefetch_to_read(&self, offset: usize, len: usize) {
        let start = self.base.as_ptr().wrapping_add(offset);
        ask_to_read(start, start.wrapping_add(len));
    }

    /// Prefetches the lines of this many bytes that are about to be written. The address need not be a valid one.
    #[inline(always)]
    pub fn prefetch_to_write(&self, offset: usize, len: usize) {
        let start = self.base.as_ptr().wrapping_add(offset);
        ask_to_write(start, start.wrapping_add(len));
    }

    /// Prefetches four cache lines that are about to be written. The address need not be a valid one.
    #[inline(always)]
    pub fn prefetch_four_to_write(&self, offset: usize) {
        ask_four_to_write(self.base.as_ptr().wrapping_add(offset));
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
    #[cfg(test)]
    (0..lines).for_each(|line| tests::note_asked(p.wrapping_add(line * step)));
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

/// Prefetches the lines from `p` to `end`, and at least one, to read them. The last one comes second, because it may be in another page: a
/// processor then translates both pages' addresses at the same time.
#[inline(always)]
fn ask_to_read(p: *const u8, end: *const u8) {
    #[cfg(test)]
    tests::note_lines(p, end);
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch affects only the cache and never faults, whatever the address.
    unsafe {
        core::arch::asm!(
            "prefetcht0 [{p}]", "prefetcht0 [{end} - 1]",
            "2:", "prefetcht0 [{p}]", "prefetcht0 [{p} + 64]", "sub {p}, -128", "cmp {p}, {end}", "jb 2b",
            p = inout(reg) p => _, end = in(reg) end, options(nostack, readonly)
        );
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = (p, end);
}

/// Prefetches the lines from `p` to `end`, and at least one, to write them.
#[inline(always)]
fn ask_to_write(p: *const u8, end: *const u8) {
    #[cfg(test)]
    tests::note_lines(p, end);
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch affects only the cache and never faults, whatever the address.
    unsafe {
        core::arch::asm!(
            "2:", "prefetchw [{p}]", "add {p}, 64", "cmp {p}, {end}", "jb 2b",
            p = inout(reg) p => _, end = in(reg) end, options(nostack, readonly)
        );
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = (p, end);
}

/// Prefetches four cache lines, to write them.
#[inline(always)]
fn ask_four_to_write(p: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch affects only the cache and never faults, whatever the address.
    unsafe {
        core::arch::asm!(
            "prefetchw [{p}]", "prefetchw [{p} + 64]", "prefetchw [{p} + 128]", "prefetchw [{p} + 192]",
            p = in(reg) p, options(nostack, preserves_flags, readonly)
        );
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = p;
}

/// Prefetches three cache lines.
#[inline(always)]
fn ask_three(p: *const u8) {
    #[cfg(test)]
    (0..3).for_each(|line| tests::note_asked(p.wrapping_add(line * CACHE_LINE)));
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
