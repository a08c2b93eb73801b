//! The buffers that receives of all sockets share: a ring of buffer addresses. For each receive the kernel takes one of them.
//!
//! # Safety
//!
//! The kernel writes to a buffer from when its number is published by the tail (release store, read by the kernel with acquire:
//! io_uring_register_buf_ring(3)) until a completion names it. From then until [`Buffers::give_back`] only the owner of the
//! [`Piece`] reads it. Both areas are allocated once, and freed only when the kernel no longer uses the ring.

#![allow(
    unsafe_code,
    reason = "memory shared with the kernel; the contract is in the module's documentation"
)]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::sync::atomic::AtomicU16;
use std::sync::atomic::Ordering::Release;

use io_uring::types::BufRingEntry;

/// Buffers of a ring; a power of two (io_uring_register_buf_ring(3)).
pub(crate) const COUNT: u16 = 128;
/// Bytes of each buffer: a request of 5 KB arrives in one piece.
pub(crate) const SIZE: u32 = 8 * 1024;
/// Alignment that the kernel requires of the addresses: a page, which is never larger than this.
const PAGE: usize = if cfg!(target_arch = "x86_64") { 4096 } else { 65536 };

/// Data that has arrived, in a buffer of the ring.
#[derive(Debug)]
pub struct Piece {
    number: u16,
    len: usize,
}

impl Piece {
    /// Its length, bytes.
    #[allow(clippy::len_without_is_empty, reason = "a piece holds at least a byte")]
    pub fn len(&self) -> usize {
        self.len
    }
}

pub(crate) struct Buffers {
    entries: *mut BufRingEntry,
    bytes: *mut u8,
    tail: u16,
    /// the kernel may use the memory forever
    leaked: bool,
}

// SAFETY: the pointers are this value's own allocations, and do not depend on the thread that uses them.
unsafe impl Send for Buffers {}

impl Buffers {
    pub(crate) fn new() -> Self {
        // SAFETY: both layouts have a size that is not 0.
        let (entries, bytes) = unsafe { (alloc_zeroed(entries_layout()), alloc_zeroed(bytes_layout())) };
        if entries.is_null() || bytes.is_null() {
            handle_alloc_error(bytes_layout());
        }
        Self {
            entries: entries.cast(),
            bytes,
            tail: 0,
            leaked: false,
        }
    }

    /// The address of the ring of addresses, for the kernel.
    pub(crate) fn address(&self) -> u64 {
        self.entries as u64
    }

    /// Gives all buffers to the kernel, at the start.
    pub(crate) fn give_all(&mut self) {
        (0..COUNT).for_each(|number| self.give(number));
    }

    /// The piece of a completion. `None`: the kernel names a buffer or a length that does not exist.
    pub(crate) fn piece(number: u16, len: usize) -> Option<Piece> {
        (number < COUNT && len <= SIZE as usize).then_some(Piece { number, len })
    }

    pub(crate) fn bytes(&self, piece: &Piece) -> &[u8] {
        // SAFETY: `piece` was made with a number and a length within the area, and the kernel does not own its buffer while it lives.
        unsafe { std::slice::from_raw_parts(self.bytes.add(usize::from(piece.number) * SIZE as usize), piece.len) }
    }

    #[allow(
        clippy::needless_pass_by_value,
        reason = "the piece ends here: no thread reads the buffer any more"
    )]
    pub(crate) fn give_back(&mut self, piece: Piece) {
        self.give(piece.number);
    }

    fn give(&mut self, number: u16) {
        let index = usize::from(self.tail % COUNT);
        // SAFETY: the index is below COUNT, for which there is room. The kernel does not read this entry before the tail has
        // passed it. The fields are set one by one, because the last field of the first entry is the tail itself.
        unsafe {
            let entry = &mut *self.entries.add(index);
            entry.set_addr(self.bytes.add(usize::from(number) * SIZE as usize) as u64);
            entry.set_len(SIZE);
            entry.set_bid(number);
        }
        self.tail = self.tail.wrapping_add(1);
        // SAFETY: the tail is the last field of the first entry, aligned to 2 bytes, and only written here.
        let tail = unsafe { AtomicU16::from_ptr(BufRingEntry::tail(self.entries).cast_mut()) };
        // PAIRS: the kernel's acquire load of the tail (io_uring/kbuf.c) makes the entry visible to it.
        tail.store(self.tail, Release);
    }

    /// The kernel may use the memory after this value is dropped, so it is never freed.
    pub(crate) fn leak(&mut self) {
        self.leaked = true;
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        if !self.leaked {
            // SAFETY: allocated in `new` with these layouts, and the kernel no longer uses them.
            unsafe {
                dealloc(self.entries.cast(), entries_layout());
                dealloc(self.bytes, bytes_layout());
            }
        }
    }
}

const fn entries_layout() -> Layout {
    layout(COUNT as usize * size_of::<BufRingEntry>(), PAGE)
}

/// With less than a page's alignment the allocator returns zeroed memory whose pages the kernel has not allocated yet.
const fn bytes_layout() -> Layout {
    layout(COUNT as usize * SIZE as usize, 16)
}

const fn layout(size: usize, align: usize) -> Layout {
    match Layout::from_size_align(size, align) {
        Ok(layout) => layout,
        Err(_) => panic!("sizes are constants"),
    }
}
