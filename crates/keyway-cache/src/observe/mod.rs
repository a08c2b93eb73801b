//! Looking at a region, attached or not: what is in it, what is done with it, and where a server's is.
//!
//! Never: changes an item.

pub(crate) mod curve;
pub(crate) mod hot;
pub(crate) mod record;
pub(crate) mod survey;

pub mod watch;
