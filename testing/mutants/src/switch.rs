//! The switch of a build without faults. In the copy of the tree that has them, `xtask/faults/forward.rs` stands in its place.

/// Whether this build has the broken variants.
pub const BUILT_IN: bool = false;

pub(crate) fn set(_: Option<&str>) {}

/// Counts the calling thread's accesses to mapped memory from 0 again. From `max` on each access panics, so that an endless loop
/// is noticed.
pub fn count_accesses(_: u64) {}

/// The calling thread's accesses since [`count_accesses`]; 0 in a build without faults.
pub fn accesses() -> u64 {
    0
}
