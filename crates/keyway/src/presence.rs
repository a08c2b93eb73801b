//! Which thread this is, and whether another one is still there.
//!
//! Threads have numbers that are never used twice in a process. Whether one has ended is asked of the kernel, by its number
//! there and its start time, because the kernel's numbers are used again.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

thread_local! {
    static NUMBER: Cell<u64> = const { Cell::new(0) };
}

/// The calling thread's number in this process: never used twice, not even by a thread that takes over another's storage.
#[inline]
pub(crate) fn thread_number() -> u64 {
    match NUMBER.get() {
        0 => number_thread(),
        number => number,
    }
}

#[cold]
fn number_thread() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let number = LAST.fetch_add(1, Relaxed) + 1;
    NUMBER.set(number);
    number
}

/// A thread of this process, as the kernel knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Thread {
    id: i32,
    /// ticks since boot at which it started; 0 where there is no /proc
    started: u64,
}

impl Thread {
    /// The calling thread.
    pub(crate) fn current() -> Self {
        let id = nix::unistd::gettid().as_raw();
        Self {
            id,
            started: status(id).map_or(0, |(_, started)| started),
        }
    }

    /// Whether it has ended: no later store of it can come. Who cannot be asked about has not.
    pub(crate) fn has_ended(self) -> bool {
        match status(self.id) {
            // A first thread that ended before the others stays as a zombie.
            Ok((state, started)) => matches!(state, 'Z' | 'X') || (self.started != 0 && started != self.started),
            Err(e) => e.kind() == std::io::ErrorKind::NotFound && self.started != 0,
        }
    }
}

/// State and start time of a thread of this process (`proc(5)`, /proc/pid/stat, fields 3 and 22).
fn status(id: i32) -> std::io::Result<(char, u64)> {
    let text = std::fs::read_to_string(format!("/proc/self/task/{id}/stat"))?;
    // The second field is a name in parentheses, in which anything may stand.
    let fields = text.rsplit_once(')').map_or("", |(_, rest)| rest);
    let mut fields = fields.split_ascii_whitespace();
    let state = fields.next().and_then(|f| f.chars().next()).unwrap_or('?');
    let started = fields.nth(18).and_then(|f| f.parse().ok()).unwrap_or(0);
    Ok((state, started))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_there_until_it_has_ended() {
        let here = Thread::current();
        assert!(here.started > 0 && !here.has_ended());
        let (number, there) = std::thread::spawn(|| (thread_number(), Thread::current())).join().unwrap();
        assert_ne!(number, thread_number());
        // The kernel lets go of it a moment after the join.
        while !there.has_ended() {
            std::thread::yield_now();
        }
        let reused = Thread {
            started: here.started + 1,
            ..here
        };
        assert!(reused.has_ended(), "a number that was used again");
    }
}
