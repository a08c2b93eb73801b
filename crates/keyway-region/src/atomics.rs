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
