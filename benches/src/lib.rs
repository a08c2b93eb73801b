//! What the benchmarks share beside `keyway-bench`: a client that counts replies, Markdown tables and arguments.
//!
//! Nothing here measures by itself; `../*.rs` hold the measurements, one question a file.

pub mod client;
pub mod cpu_time;
pub mod gate;
pub mod report;
pub mod requests;
pub mod servers;

use std::hint::black_box;

pub use keyway_bench::{machine, workload};

/// Takes a value as used, so that getting it is not optimised away.
///
/// Its place and its length one by one. The two words of a `Vec`'s slice may be read by one load, and a load of more than the last store
/// has written (the length) waits until that store has left the processor's store queue: 10 ns and more that are
/// part of no get.
#[inline(always)]
pub fn used(value: &[u8]) {
    black_box(value.as_ptr());
    black_box(value.len());
}
