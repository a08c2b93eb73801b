//! Persistent memory that loses its power.

use crate::kernels::Version;
use crate::tests::Test;
use crate::trial::{self, Bench, Report};

/// The kernel that it is tried on.
pub const KERNEL: Version = Version::V6_12;

/// What the guest does in it.
pub const STEPS: &[Test] = &[];

/// Runs `tests` in the first boot, and then the rounds.
pub fn run(report: &Report, bench: &Bench, tests: &[&Test], _rounds: u32, _seed: u64) {
    trial::run(report, bench, tests);
}
