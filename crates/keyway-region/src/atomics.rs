//! The only user of `core::sync::atomic`: every shared word of the region is one of these types.
//!
//! Each is its namesake in `core` and compiles to the same instructions. With the feature `observe`, with which no program is
//! built, an observer that a test installs sees every access: schedulers of model checkers and crash recorders plug in there
//! (see `observe`). Nothing in this file knows what a word means.

#[cfg(feature = "observe")]
use crate::observe::{Access, Event, report};
pub use core::sync::atomic::Ordering::{self, AcqRel, Acquire, Relaxed, Release, SeqCst};
/// For values that a process keeps outside the region: not observed.
pub use core::sync::atomic::{AtomicBool as OwnFlag, AtomicUsize as OwnNumber};

/// Calls the observer before an access.
macro_rules! before {
    ($access:ident) => {
        #[cfg(feature = "observe")]
        report(Event::Before(Access::$access));
    };
}

/// Defines an atomic integer by the one of the same name in `core`.
macro_rules! atomic {
    ($name:ident, $value:ty) => {
        #[doc = concat!("`core::sync::atomic::", stringify!($name), "`, observed where a test asks for it.")]
        #[derive(Debug, Default)]
        #[repr(transparent)]
        pub struct $name(core::sync::atomic::$name);

        #[allow(missing_docs, reason = "each is core's of the same name")]
        #[allow(dead_code, reason = "every width has the same set")]
        impl $name {
            #[inline(always)]
            pub fn load(&self, order: Ordering) -> $value {
                before!(Load);
                self.0.load(order)
            }

            #[inline(always)]
            pub fn store(&self, value: $value, order: Ordering) {
                before!(Store);
                self.0.store(value, order);
                self.stored();
            }

            #[inline(always)]
            pub fn swap(&self, value: $value, order: Ordering) -> $value {
                before!(Exchange);
                let old = self.0.swap(value, order);
                self.stored();
                old
            }

            #[inline(always)]
            pub fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                before!(Exchange);
                let result = self.0.compare_exchange(current, new, success, failure);
                if result.is_ok() {
                    self.stored();
                }
                result
            }

            #[inline(always)]
            pub fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                before!(Exchange);
                let old = self.0.fetch_add(value, order);
                self.stored();
                old
            }

            #[inline(always)]
            pub fn fetch_sub(&self, value: $value, order: Ordering) -> $value {
                before!(Exchange);
                let old = self.0.fetch_sub(value, order);
                self.stored();
                old
            }

            #[inline(always)]
            pub fn fetch_max(&self, value: $value, order: Ordering) -> $value {
                before!(Exchange);
                let old = self.0.fetch_max(value, order);
                self.stored();
                old
            }

            #[inline(always)]
            pub fn fetch_and(&self, value: $value, order: Ordering) -> $value {
                before!(Exchange);
                let old = self.0.fetch_and(value, order);
                self.stored();
                old
            }

            #[inline(always)]
            pub fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                before!(Exchange);
                let old = self.0.fetch_or(value, order);
                self.stored();
                old
            }

            #[inline(always)]
            fn stored(&self) {
                #[cfg(feature = "observe")]
                report(Event::Stored {
                    at: core::ptr::from_ref(self).addr(),
                    len: size_of::<Self>(),
                });
            }
        }
    };
}

atomic!(AtomicU8, u8);
atomic!(AtomicU32, u32);
atomic!(AtomicU64, u64);

/// `core::sync::atomic::fence`.
#[inline(always)]
pub fn fence(order: Ordering) {
    before!(Fence);
    core::sync::atomic::fence(order);
}

/// `core::sync::atomic::compiler_fence`: for a fence that another process turns into a full one (membarrier(2)).
#[inline(always)]
pub fn light_fence() {
    before!(Fence);
    core::sync::atomic::compiler_fence(SeqCst);
}

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
