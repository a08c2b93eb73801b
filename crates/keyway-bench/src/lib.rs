//! Measures Keyway's doors, and other memcached-compatible servers beside them.
//!
//! A [`plan::Plan`] says what to measure; [`run::run`] measures it, the sides in turn; [`report`] says what came out, [`compare`] what changed, [`html`]
//! makes a page of both.
//! Beneath:
//! [`workloads`] has the workloads, [`mix`] their operations, [`items`] values that prove whose they are, [`sockets`], [`calls`] and [`processes`] the load
//! generators, [`rig`] the caches. [`reproduce`] has plans for what papers measured, and [`paper`] what came out of them. Nothing here knows a region's layout, and nothing prints: text is given to the caller.

pub mod calls;
pub mod compare;
pub mod datagram;
pub mod dropin;
pub mod flood;
pub mod html;
mod idle;
pub mod items;
pub mod link;
pub mod load;
pub mod machine;
pub mod meters;
pub mod mix;
pub mod mixture;
pub mod paper;
pub mod plan;
pub mod processes;
pub mod ran;
pub mod report;
pub mod reproduce;
pub mod rig;
pub mod run;
pub mod samples;
pub mod servers;
pub mod sides;
pub mod sockets;
pub mod trace;
pub mod twitter;
pub mod volley;
pub mod wire;
pub mod workload;
pub mod workloads;
