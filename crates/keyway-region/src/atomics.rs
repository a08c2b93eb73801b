//! The only user of `core::sync::atomic`: every shared word of the region is one of these types.
//!
//! Model checkers and crash recorders plug in here. Nothing in this file knows what a word means.

pub use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
pub use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, fence};

/// Adds to a counter that has one writer: a load and a store, no read-modify-write.
#[inline]
pub fn add_single_writer(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(n), Relaxed);
}

/// Stores, and lets no later load pass the store: a store and a full fence.
#[inline]
pub fn store_then_fence(word: &AtomicU64, value: u64) {
    // On x86-64 an exchange is a full barrier, for the whole machine, at half the price of MFENCE (Intel SDM, volume 3, 9.2).
    #[cfg(target_arch = "x86_64")]
    word.swap(value, SeqCst);
    #[cfg(not(target_arch = "x86_64"))]
    {
        word.store(value, Relaxed);
        fence(SeqCst);
    }
}
