mod checksum;
mod copies;
mod extents;
mod ghost;
mod items;
mod large;
mod seen;
mod segments;
mod sparse;
mod streams;

pub(crate) use checksum::{Outcome, Verified, chain_of};
pub(crate) use copies::{CopyOf, Relocated};
pub(crate) use extents::Leased;
pub(crate) use ghost::{BITS as GHOST_BITS, LINE_SIZE as GHOST_LINE_SIZE, SPREAD as GHOST_SPREAD};
pub(crate) use items::{Draft, Replaced, Value, Written};
pub(crate) use seen::{ATTEMPTS_MAX, Chain, Seen};
pub(crate) use segments::Supply;
pub(crate) use streams::{CLASS_TTL_FEW_S, CLASS_TTL_S};
