//! What the region's code asks of the allocator, apart from its work on shared memory.
//!
//! Whoever maps the region may want to know when that is: a function that it sets with [`set`] is given each piece of such work to
//! run, and may make the mapping inaccessible meanwhile. The region can be left and come back to between any two accesses. Only
//! what is rare goes this way: buffers that have grown once are used again.

use std::sync::OnceLock;

/// Runs the work that it is given, once.
type Runner = fn(&mut dyn FnMut());

static RUNNER: OnceLock<Runner> = OnceLock::new();

/// Sets who runs such work in this process; the first one stays.
pub fn set(runner: Runner) {
    let _ = RUNNER.set(runner);
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

/// Room for so many more elements.
#[inline(always)]
pub fn reserve<T>(list: &mut Vec<T>, more: usize) {
    if list.capacity() - list.len() < more {
        run(&mut || list.reserve(more));
    }
}

/// The same for as many bytes as a value may have. `false`: this process has no memory for them.
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

/// Gives back room beyond so many elements.
pub(crate) fn shrink<T>(list: &mut Vec<T>, kept: usize) {
    if list.capacity() > kept {
        run(&mut || list.shrink_to(kept));
    }
}

/// A list whose memory is taken and given back aside.
#[derive(Debug)]
pub(crate) struct List<T>(Vec<T>);

impl<T> List<T> {
    pub fn new() -> Self {
        Self(Vec::new())
    }

    /// A list with room for so many.
    pub fn with_capacity(count: usize) -> Self {
        let mut list = Self::new();
        reserve(&mut list.0, count);
        list
    }

    pub fn push(&mut self, value: T) {
        reserve(&mut self.0, 1);
        self.0.push(value);
    }

    /// The list itself, for what asks for room by [`reserve`].
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
