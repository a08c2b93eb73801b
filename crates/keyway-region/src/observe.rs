//! Observers of the region's accesses: for tests only (feature `observe`, with which no program is built).
//!
//! A thread installs a function with [`install`]. Until it is replaced, the thread calls it before every access that it makes to
//! shared memory, after every store, and at every write-back and persist barrier. In such a build payload is copied word by
//! word, so the function sees every eight bytes of it. The function may switch to another thread's work (a scheduler), or note
//! the events (a crash recorder). It must not touch a region itself before it has uninstalled itself.

use core::panic::Location;
use std::cell::Cell;

/// The kind of access to a shared word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// it is read
    Load,
    /// it is written
    Store,
    /// it is read and written in one step
    Exchange,
    /// no word is accessed: accesses before are ordered before those after
    Fence,
}

/// What the observer gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// an access follows: here a scheduler may let other threads run
    Before(Access),
    /// these bytes were just stored; they are in one cache line
    Stored {
        /// address of the first
        at: usize,
        /// how many: 1, 4 or 8
        len: usize,
    },
    /// the cache lines of these bytes are being written back; that is complete after the next barrier
    WriteBack {
        /// address of the first byte
        at: usize,
        /// bytes
        len: usize,
        /// the code that requested it
        site: &'static Location<'static>,
    },
    /// what was written back before is persistent from here on
    Barrier {
        /// the code that requested it
        site: &'static Location<'static>,
    },
}

/// A function that gets the events.
pub type Observer = fn(Event);

thread_local! {
    static OBSERVER: Cell<Option<Observer>> = const { Cell::new(None) };
}

/// Installs an observer for the calling thread, or none. Returns the previous one.
pub fn install(observer: Option<Observer>) -> Option<Observer> {
    OBSERVER.replace(observer)
}

/// Calls the thread's observer, if it has one.
#[inline]
pub(crate) fn report(event: Event) {
    if let Some(observer) = OBSERVER.get() {
        observer(event);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::atomics::{AcqRel, AtomicU64, Relaxed, fence};
    use crate::memory::tests::Page;
    use std::cell::RefCell;

    thread_local! {
        static TOLD: RefCell<Vec<Event>> = const { RefCell::new(Vec::new()) };
    }

    fn note(event: Event) {
        TOLD.with_borrow_mut(|told| told.push(event));
    }

    #[test]
    fn every_access_is_reported_and_every_stored_byte() {
        let mut page = Page::new();
        let memory = page.memory();
        let word = memory.get::<AtomicU64>(64);
        let at = core::ptr::from_ref(word).addr();
        install(Some(note));
        word.store(5, Relaxed);
        let _ = word.compare_exchange(4, 6, AcqRel, Relaxed);
        fence(AcqRel);
        memory.write(64, &[1; 13]);
        assert!(memory.equals(64, &[1; 13]));
        memory.zero(64, 8);
        install(None);
        word.store(7, Relaxed);
        let stored = |at, len| Event::Stored { at, len };
        let (load, store) = (Event::Before(Access::Load), Event::Before(Access::Store));
        let mut wanted = vec![
            store,
            stored(at, 8),
            Event::Before(Access::Exchange),
            Event::Before(Access::Fence),
        ];
        wanted.extend([store, stored(at, 8)]);
        wanted.extend((8..13).flat_map(|i| [store, stored(at + i, 1)]));
        wanted.extend([load; 1 + 5]);
        wanted.extend([store, stored(at, 8)]);
        assert_eq!(TOLD.take(), wanted);
    }
}
