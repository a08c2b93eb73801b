//! What the bytes of a region mean: one file a structure, each written once. `docs/region.md` tells the same to people.

pub mod bucket;
pub mod item;
pub mod plan;
pub mod segment;
pub mod session;
pub mod slot;
pub mod stats;
pub mod superblock;
