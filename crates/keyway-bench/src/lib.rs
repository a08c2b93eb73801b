//! Measures Keyway's doors, and other memcached-compatible servers beside them.
//!
//! A [`plan::Plan`] says what to measure; [`run::run`] measures it, the sides in turn; [`report`] says what came out, and [`page`]
//! makes a page of it.
//! Beneath: [`workloads`] has the workloads, [`mix`] their operations, [`items`] values that prove whose they are, [`sockets`] and [`calls`] the
//! load generators, [`caches`] what is measured. Nothing here knows a region's layout, and nothing prints: text is given to the caller.
//! What reproduces papers is in `lab/`, which builds on this.

pub mod caches;
pub mod calls;
pub mod datagram;
pub mod items;
pub mod load;
pub mod machine;
pub mod measurement;
pub mod medians;
pub mod mix;
pub mod options;
pub mod page;
pub mod plan;
pub mod report;
pub mod run;
pub mod servers;
pub mod sockets;
pub mod table;
pub mod wire;
pub mod workload;
pub mod workloads;
