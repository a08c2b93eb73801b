//! The switch of a build with faults: it is in the region's crate, where the faults are.

/// Whether this build has the broken variants.
pub const BUILT_IN: bool = true;

pub use keyway_region::mutants::{accesses, count_accesses};
pub(crate) use keyway_region::mutants::set;
