//! What the bytes of a region mean: one file a structure, each written once. `docs/region.md` tells the same to people.

pub mod bucket;
pub mod item;
pub mod plan;
pub mod segment;
pub mod session;
pub mod slot;
pub mod stats;
pub mod superblock;

/// A number out of a 64-bit word as an index.
#[inline]
#[allow(
    clippy::cast_possible_truncation,
    reason = "usize has 64 bits: lib.rs refuses other targets"
)]
pub(crate) const fn index(n: u64) -> usize {
    n as usize
}
