//! What the region's code requests from the allocator, apart from its work on shared memory.
//!
//! The code that maps the region may want to know when that happens. A function that it sets with [`set`] gets each piece of
//! such work to run, and may make the mapping inaccessible meanwhile. It may leave the region and come back between any two
//! accesses. Only rare work runs this way: buffers that have grown once are reused.

use crate::atomics::{OwnFlag, Relaxed};
use std::sync::OnceLock;

/// Runs the work that it gets, once.
type Runner = fn(&mut dyn FnMut());

static RUNNER: OnceLock<Runner> = OnceLock::new();

/// Sets the function that runs such work in this process; the first one stays.
pub fn set(runner: Runner) {
    /// PAIRS: nothing; one thread sets the cell, so no thread waits for another one, which a forked child may not have. If it does
    /// not have that thread, such work runs in the child as if no function was set.
    static IS_SET: OwnFlag = OwnFlag::new(false);
    if !IS_SET.swap(true, Relaxed) {
        let _ = RUNNER.set(runner);
    }
}

/// Runs work that does not touch the region.
#[cold]
#[inline(never)]
pub fn run(work: &mut dyn FnMut()) {
    match RUNNER.get() {
        Some(runner) => runner(work),
        None => work(),
    }
}

/// Space for this many more elements.
#[inline(always)]
pub fn reserve<T>(list: &mut Vec<T>, more: usize) {
    if list.capacity() - list.len() < more {
        run(&mut || list.reserve(more));
    }
}

/// Reserves space for so many bytes of a value, whose length a client chooses. `false`: this process has no memory for them.
#[inline(always)]
#[must_use]
pub fn try_reserve(list: &mut Vec<u8>, more: usize) -> bool {
    list.capacity() - list.len() >= more || try_to_grow(list, more)
}

#[cold]
#[inline(never)]
fn try_to_grow(list: &mut Vec<u8>, more: usize) -> bool {
    let mut has_room = false;
    run(&mut || has_room = list.try_reserve(more).is_ok());
    has_room
}

/// Gives back space beyond this many elements.
pub(crate) fn shrink<T>(list: &mut Vec<T>, kept: usize) {
    if list.capacity() > kept {
        run(&mut || list.shrink_to(kept));
    }
}

/// A list whose memory is allocated and freed by [`run`].
#[derive(Debug)]
pub(crate) struct List<T>(Vec<T>);

impl<T> List<T> {
    pub fn new() -> Self {
        Self(Vec::new())
    }

    /// A list with space for this many elements.
    pub fn with_capacity(count: usize) -> Self {
        let mut list = Self::new();
        reserve(&mut list.0, count);
        list
    }

    pub fn push(&mut self, value: T) {
        reserve(&mut self.0, 1);
        self.0.push(value);
    }

    /// Its elements.
    pub fn as_slice(&self) -> &[T] {
        &self.0
    }

    /// The list itself, for code that requests space by [`reserve`].
    pub fn as_vec(&mut self) -> &mut Vec<T> {
        &mut self.0
    }
}

impl<T> Default for List<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> core::ops::Deref for List<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T> Drop for List<T> {
    fn drop(&mut self) {
        if self.0.capacity() > 0 {
            run(&mut || self.0 = Vec::new());
        }
    }
}
