//! What a thread does to memory: its stores, write-backs and barriers, in order.
//!
//! # Safety
//!
//! The only `unsafe` reads the bytes that have just been stored, which no other thread touches.
#![allow(unsafe_code, reason = "reads what was stored; contract above")]

use keyway_region::observe::{self, Event};
use std::cell::RefCell;

/// Threads at most.
pub const THREADS: usize = 3;
/// Bytes of a cache line.
pub const LINE: usize = 64;

/// A call of a write-back or a barrier in the sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Site {
    /// path of the file, from the workspace's root
    pub file: &'static str,
    /// line in it
    pub line: u32,
    /// a barrier, or a write-back
    pub barrier: bool,
}

/// One thing that was done.
#[derive(Clone, Copy, Debug)]
pub enum Done {
    /// bytes of a line were stored
    Store {
        /// who did it
        thread: usize,
        /// number of the line
        line: usize,
        /// first byte in it
        at: usize,
        /// how many, at most 8
        len: usize,
        /// the bytes
        bytes: [u8; 8],
    },
    /// lines were handed to the medium
    WriteBack {
        /// who did it
        thread: usize,
        /// the first
        first: usize,
        /// the last
        last: usize,
        /// where in the sources
        site: Site,
    },
    /// what this thread handed over has arrived
    Barrier {
        /// who did it
        thread: usize,
        /// where in the sources
        site: Site,
    },
    /// an operation was acknowledged
    Acknowledged(usize),
}

/// Something to be done by another thread while the first one stands still.
pub type Interlude = Box<dyn FnOnce()>;

#[derive(Default)]
struct Recorder {
    base: usize,
    len: usize,
    done: Vec<Done>,
    thread: usize,
    /// stores since the thread at work began, or came to work again
    stores: usize,
    /// the next last
    interludes: Vec<(usize, Interlude)>,
}

thread_local! {
    static RECORDER: RefCell<Recorder> = RefCell::default();
}

/// Records what `work` does to the `len` bytes at `base`. The first interlude, another thread's work, begins when `work` has
/// done the given number of stores, the second one in the middle of the first in the same way.
pub fn record(base: usize, len: usize, mut interludes: Vec<(usize, Interlude)>, work: impl FnOnce()) -> Vec<Done> {
    interludes.reverse();
    RECORDER.replace(Recorder {
        base,
        len,
        interludes,
        ..Recorder::default()
    });
    let before = observe::install(Some(note));
    work();
    observe::install(before);
    RECORDER.take().done
}

/// Notes that an operation was acknowledged.
pub fn acknowledge(operation: usize) {
    RECORDER.with_borrow_mut(|r| r.done.push(Done::Acknowledged(operation)));
}

/// Lets `work` go unrecorded.
pub fn unseen<T>(work: impl FnOnce() -> T) -> T {
    let before = observe::install(None);
    let result = work();
    observe::install(before);
    result
}

fn note(event: Event) {
    let interlude = RECORDER.with_borrow_mut(|r| r.note(event));
    if let Some(work) = interlude {
        RECORDER.with_borrow_mut(|r| (r.thread, r.stores) = (r.thread + 1, 0));
        work();
        RECORDER.with_borrow_mut(|r| {
            r.thread -= 1;
            // What was to come in the middle of this one comes no more.
            r.interludes.clear();
        });
    }
}

impl Recorder {
    fn note(&mut self, event: Event) -> Option<Interlude> {
        let thread = self.thread;
        let offset = |at: usize| at.checked_sub(self.base).filter(|o| *o < self.len);
        match event {
            Event::Before(_) => {}
            Event::Stored { at, len } => {
                let offset = offset(at)?;
                let mut bytes = [0; 8];
                for (i, byte) in bytes.iter_mut().enumerate().take(len) {
                    // SAFETY: the region has just stored this byte.
                    *byte = unsafe { std::ptr::with_exposed_provenance::<u8>(at + i).read_volatile() };
                }
                self.done.push(Done::Store {
                    thread,
                    line: offset / LINE,
                    at: offset % LINE,
                    len,
                    bytes,
                });
                self.stores += 1;
                if self.interludes.last().is_some_and(|(after, _)| *after == self.stores) {
                    return self.interludes.pop().map(|(_, work)| work);
                }
            }
            Event::WriteBack { at, len, site } => {
                let offset = offset(at)?;
                self.done.push(Done::WriteBack {
                    thread,
                    first: offset / LINE,
                    last: (offset + len.max(1) - 1) / LINE,
                    site: Site {
                        file: site.file(),
                        line: site.line(),
                        barrier: false,
                    },
                });
            }
            Event::Barrier { site } => self.done.push(Done::Barrier {
                thread,
                site: Site {
                    file: site.file(),
                    line: site.line(),
                    barrier: true,
                },
            }),
        }
        None
    }
}
