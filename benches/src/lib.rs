//! What the benchmarks share beside `keyway-bench`: a client that counts replies, Markdown tables and arguments.
//!
//! Nothing here knows a region or measures by itself; `../*.rs` hold the measurements, one question a file.

pub mod client;
pub mod cpu_time;
pub mod report;
pub mod requests;
pub mod servers;

pub use keyway_bench::{machine, workload};
