//! Which fault is in force in this process: the one that the environment variable KEYWAY_MUTANT numbers, or that was switched on last. And a
//! count of accesses to mapped memory.

use core::cell::Cell;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;

/// The environment variable has not been read.
const UNREAD: u32 = u32::MAX;

static ON: AtomicU32 = AtomicU32::new(UNREAD);

thread_local! {
    static ACCESSES: Cell<u64> = const { Cell::new(0) };
    static ACCESSES_MAX: Cell<u64> = const { Cell::new(u64::MAX) };
}

/// Whether the fault of this number is in force.
#[inline]
pub(crate) fn listed(number: u32) -> bool {
    let on = ON.load(Relaxed);
    number == if on == UNREAD { asked_for() } else { on }
}

#[cold]
fn asked_for() -> u32 {
    let number = std::env::var("KEYWAY_MUTANT").ok().and_then(|number| number.parse().ok());
    ON.store(number.unwrap_or(0), Relaxed);
    number.unwrap_or(0)
}

/// Puts the fault of this name in force, or none.
///
/// # Panics
///
/// If there is no fault of this name.
pub fn set(name: Option<&str>) {
    let number = name.map_or(0, |name| {
        let found = KNOWN.iter().find(|(known, _)| *known == name);
        found.unwrap_or_else(|| panic!("xtask/mutants.txt has no fault with `known: {name}`")).1
    });
    ON.store(number, Relaxed);
}

/// Counts the calling thread's accesses to mapped memory from 0 again. From `max` on each access panics, so that an endless loop
/// is noticed.
pub fn count_accesses(max: u64) {
    ACCESSES.set(0);
    ACCESSES_MAX.set(max);
}

/// The calling thread's accesses since [`count_accesses`].
pub fn accesses() -> u64 {
    ACCESSES.get()
}

/// An access to mapped memory.
#[inline]
pub(crate) fn accessed() {
    let count = ACCESSES.get() + 1;
    ACCESSES.set(count);
    if count >= ACCESSES_MAX.get() {
        ACCESSES_MAX.set(u64::MAX);
        panic!("more than {count} accesses to the region: this does not end");
    }
}
