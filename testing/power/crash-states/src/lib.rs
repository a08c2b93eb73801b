//! Every image that a power failure may leave of a durable region, and what recovery makes of each.
//!
//! `record` notes what an operation stores, writes back and fences; `machine` keeps, for each cache line, which prefixes
//! of its stores may be on the medium; `world` is a small region in private memory and what its users know of it;
//! `scenarios` are the operations; `explore` puts it together.
#![cfg(feature = "watched")]

pub mod explore;
pub mod left_out;
pub mod machine;
pub mod record;
pub mod scenarios;
pub mod world;
