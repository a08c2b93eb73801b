//! Emitter a forked child from its parent. A child has a copy of the parent's memory, but neither its mapping of a region
//! nor its lock, and none of its other threads: a lock that one of them held stays locked in the child for ever.
//!
//! The kernel wipes one page of the process in every child (madvise(2), `MADV_WIPEONFORK`), however the child was forked.
//! The word in it is the name of this process's life, a number. A child finds zero there, and takes the next name.
//!
//! So nothing that a whole process shares is behind a lock or a once-cell of its own: it is a word that is exchanged, or a
//! [`PerProcess`] value, of which a child makes its own.
//!
//! # Safety
//!
//! The `unsafe` here makes that page, which stays for ever, and follows the pointer of a [`PerProcess`] value: it is NULL, or
//! comes from a box that is freed only with the value.
#![allow(
    unsafe_code,
    reason = "a page that the kernel wipes, and a pointer that is exchanged; contract above"
)]

use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous, munmap};
use std::marker::PhantomData;
use std::num::NonZeroUsize;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU64};

/// Every page is at least this large; the kernel takes all of it (mmap(2), madvise(2)).
const SIZE: NonZeroUsize = NonZeroUsize::new(4096).unwrap();

/// The page; NULL before there is one. PAIRS: the exchange in [`watch`] and the load in [`word`]: the page is wiped on forks
/// from then on.
static WORD: AtomicPtr<AtomicU64> = AtomicPtr::new(null_mut());
/// The last name that this process took, or one of those that it was forked from. PAIRS: nothing; a fork copies it.
static NAMES: AtomicU64 = AtomicU64::new(0);

/// Makes the page, once. Before that, [`life`] is 0.
pub(crate) fn watch() -> std::io::Result<()> {
    if word().is_none() {
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let page = unsafe { mmap_anonymous(None, SIZE, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, flags) }?;
        // SAFETY: the page that was just made.
        unsafe { madvise(page, SIZE.get(), MmapAdvise::MADV_WIPEONFORK) }?;
        // PAIRS: once: the page is wiped on forks before another thread finds it.
        let first = WORD.compare_exchange(null_mut(), page.cast().as_ptr(), Release, Relaxed);
        if first.is_err() {
            // Another thread was first. SAFETY: the page that was just made, which no code uses.
            unsafe { munmap(page, SIZE.get()) }?;
        }
    }
    Ok(())
}

/// The word of the page.
fn word() -> Option<&'static AtomicU64> {
    // PAIRS: once: a page that is found is wiped on forks.
    // SAFETY: NULL, or a page of zeros, aligned, never unmapped, and only used as an atomic.
    unsafe { WORD.load(Acquire).as_ref() }
}

/// The name of this process's life. Every forked child has another name.
#[inline]
pub(crate) fn life() -> u64 {
    match word().map(|word| word.load(Relaxed)) {
        Some(0) => renew(),
        Some(name) => name,
        None => 0,
    }
}

/// The process in which a value was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Home {
    word: &'static AtomicU64,
    name: u64,
}

impl Home {
    /// The calling process. Call it after [`watch`].
    pub(crate) fn new() -> Self {
        // In a process that does not watch, every child is taken for its parent.
        static UNWATCHED: AtomicU64 = AtomicU64::new(0);
        Self {
            word: word().unwrap_or(&UNWATCHED),
            name: life(),
        }
    }

    /// Whether the calling process is that process.
    #[inline]
    pub(crate) fn is_here(self) -> bool {
        self.word.load(Relaxed) == self.name
    }
}

/// The first call in a new process.
#[cold]
fn renew() -> u64 {
    let name = NAMES.fetch_add(1, Relaxed) + 1;
    let Some(word) = word() else { return 0 };
    // PAIRS: nothing; two threads agree on the name that was stored first.
    match word.compare_exchange(0, name, Relaxed, Relaxed) {
        Ok(_) => name,
        Err(first) => first,
    }
}

/// A value that each process has for itself. A forked child makes its own, so it waits for no thread of its parent.
#[derive(Debug)]
pub struct PerProcess<T> {
    /// PAIRS: the exchange in [`Self::get_or_try`] and the load in [`Self::node`]: what was made before is seen.
    node: AtomicPtr<Node<T>>,
    owns: PhantomData<Box<T>>,
}

#[derive(Debug)]
struct Node<T> {
    /// the process's, see [`life`]
    life: u64,
    value: T,
}

impl<T: Send + Sync> PerProcess<T> {
    /// No process has one yet.
    pub const fn new() -> Self {
        Self {
            node: AtomicPtr::new(null_mut()),
            owns: PhantomData,
        }
    }

    /// This process's value, if it has made one.
    #[inline]
    pub fn get(&self) -> Option<&T> {
        self.node().filter(|node| node.life == life()).map(|node| &node.value)
    }

    /// This process's value, which `make` makes if there is none. In a forked child, `make` gets the value of the parent: one of
    /// its threads may have locked it, or been changing it.
    pub fn get_or(&self, make: impl FnOnce(Option<&T>) -> T) -> &T {
        match self.get_or_try(|parents| Ok::<T, std::convert::Infallible>(make(parents))) {
            Ok(value) => value,
        }
    }

    /// This process's value, which `make` makes if there is none, or fails to. Of two threads that make one at a time, the second
    /// one's is dropped.
    ///
    /// # Errors
    ///
    /// Those of `make`.
    pub fn get_or_try<E>(&self, make: impl FnOnce(Option<&T>) -> Result<T, E>) -> Result<&T, E> {
        // Without the page, children cannot be told from their parent, and nothing opens a region either.
        let _ = watch();
        let life = life();
        let found = self.node();
        if let Some(node) = found.filter(|node| node.life == life) {
            return Ok(&node.value);
        }
        let value = make(found.map(|node| &node.value))?;
        let fresh = Box::into_raw(Box::new(Node { life, value }));
        let found = found.map_or(null_mut(), |node| std::ptr::from_ref(node).cast_mut());
        // The parent's stays where it is: it may be in any state. PAIRS: once: the value is made before another thread finds it.
        let node = match self.node.compare_exchange(found, fresh, Release, Acquire) {
            Ok(_) => fresh,
            Err(first) => {
                // SAFETY: made above, and seen by no other thread.
                drop(unsafe { Box::from_raw(fresh) });
                first
            }
        };
        // SAFETY: from a box that is freed only with this value, as `first` is, which another thread of this process has made.
        Ok(unsafe { &(*node).value })
    }

    /// This process's value. A parent's is left as it is.
    pub fn into_inner(mut self) -> Option<T> {
        self.take()
    }

    fn node(&self) -> Option<&Node<T>> {
        // PAIRS: once: a value that is found is made.
        // SAFETY: NULL, or from a box that is freed only with this value.
        unsafe { self.node.load(Acquire).as_ref() }
    }
}

impl<T> PerProcess<T> {
    fn take(&mut self) -> Option<T> {
        let node = NonNull::new(std::mem::replace(self.node.get_mut(), null_mut()))?;
        // SAFETY: from a box that no other code has now.
        let is_ours = unsafe { node.as_ref() }.life == life();
        // SAFETY: as above.
        is_ours.then(|| unsafe { Box::from_raw(node.as_ptr()) }.value)
    }
}

impl<T: Send + Sync> Default for PerProcess<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Drop for PerProcess<T> {
    fn drop(&mut self) {
        drop(self.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::{ForkResult, fork};
    use std::sync::Mutex;

    /// Runs `child` in a forked child; whether it said that all was well. One that hangs is ended by a signal.
    fn forked(child: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child uses no more than values of this process, and leaves by `_exit`.
        match unsafe { fork() }.unwrap() {
            ForkResult::Child => {
                nix::unistd::alarm::set(30);
                let well = child();
                // SAFETY: ends the child without running what belongs to its parent.
                unsafe { nix::libc::_exit(i32::from(!well)) }
            }
            ForkResult::Parent { child } => matches!(waitpid(child, None).unwrap(), WaitStatus::Exited(_, 0)),
        }
    }

    #[test]
    fn a_child_has_a_value_of_its_own_and_waits_for_no_thread_of_its_parent() {
        static VALUE: PerProcess<Mutex<u32>> = PerProcess::new();
        let own = VALUE.get_or(|parents| {
            assert!(parents.is_none());
            Mutex::new(1)
        });
        let make =
            |parents: Option<&Mutex<u32>>| Mutex::new(parents.and_then(|p| p.try_lock().ok()).map_or(7, |value| *value + 1));
        assert!(
            forked(|| VALUE.get().is_none() && *VALUE.get_or(make).lock().unwrap() == 2),
            "it inherits what no thread holds"
        );
        // A thread holds the lock; in the child there is no such thread.
        let held = own.lock().unwrap();
        assert!(forked(|| {
            let its = VALUE.get_or(make);
            let well = *its.lock().unwrap() == 7 && std::ptr::eq(its, VALUE.get_or(make));
            // A child of the child.
            well && forked(|| *VALUE.get_or(make).lock().unwrap() == 8)
        }));
        drop(held);
        assert!(std::ptr::eq(own, VALUE.get_or(make)) && *own.lock().unwrap() == 1);
    }

    #[test]
    fn a_child_does_not_drop_what_is_its_parents() {
        struct Ends<'e>(&'e std::cell::Cell<bool>);
        impl Drop for Ends<'_> {
            fn drop(&mut self) {
                self.0.set(true);
            }
        }
        // SAFETY: the cell is used by this thread only, and its forked copy by the child's.
        unsafe impl Send for Ends<'_> {}
        // SAFETY: as above.
        unsafe impl Sync for Ends<'_> {}
        let has_ended = std::cell::Cell::new(false);
        let mut value = Some(PerProcess::new());
        value.as_ref().unwrap().get_or(|_| Ends(&has_ended));
        assert!(forked(|| {
            drop(value.take());
            !has_ended.get()
        }));
        drop(value);
        assert!(has_ended.get());
    }
}
