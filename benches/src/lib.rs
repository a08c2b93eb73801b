//! What the benchmarks share: seeded workloads, pinning, medians, memcached and Keyway as child processes, and a cheap client.
//!
//! Nothing here knows a region or measures by itself; `../*.rs` hold the measurements, one question a file.

pub mod client;
pub mod machine;
pub mod report;
pub mod servers;
pub mod workload;
