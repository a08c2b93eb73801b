//! Room `log`: the bytes of items, and the segments that hold them.
//!
//! Holds segments as the log uses them (`segments`), the streams that items join (`streams`), the extents that a thread leases
//! (`extents`), items as they are written and read (`items`, `seen`), copies (`copies`), large values (`large`), checksums
//! (`checksum`), what is dead in a segment (`dead`), and two lists of hints: sparse segments (`sparse`), and keys that were evicted (`ghost`).
//!
//! - An item is private to its writer until the index publishes a slot that names it. From then on it is immutable, except its
//!   mark *dead*.
//! - An extent's tail is stored before an item of the extent is published: everything before the tail is complete.
//! - A segment changes hands by one exchange of its state word. Only its owner gives it a generation.
//! - No byte is written to a segment before its generation is one that no slot names.
//!
//! Never: reads or writes a slot of the index; chooses what is evicted. When no segment is free, it asks its [`Supply`].

mod checksum;
mod copies;
mod dead;
mod extents;
mod ghost;
mod item_view;
mod items;
mod large;
mod segments;
mod sparse;
mod streams;
mod uniques;

pub(crate) use checksum::{Outcome, Verified, chain_of};
pub(crate) use copies::{CopyOf, Relocated};
pub(crate) use extents::{Leased, PORTION};
pub(crate) use ghost::{BITS as GHOST_BITS, LINE_SIZE as GHOST_LINE_SIZE, SPREAD as GHOST_SPREAD};
pub(crate) use item_view::{ATTEMPTS_MAX, Chain, ItemView};
pub(crate) use items::{Draft, Purpose, Replaced, Value, Written};
pub(crate) use segments::Supply;
pub(crate) use sparse::{counts_samples, dead_factor};
pub(crate) use streams::{CLASS_TTL_FEW_S, CLASS_TTL_S};
pub(crate) use uniques::{Steps, UNIQUES_LOST};
