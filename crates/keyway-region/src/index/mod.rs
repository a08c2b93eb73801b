//! Room `index`: buckets and their slots, each of which leads to one item.
//!
//! Holds look-up (`lookup`, its fast path `fast_get`, hints for the processor before it `ahead`, and within it `long_value`; for a writer `find`), the one attempt at a change (`change`, `old`), inserts (`insert`),
//! the publish of each kind of change (`publish`), splits (`split`), durable mode's part of it (`persist`), the hints beside the slots
//! (`hints`), and items that leave it unasked (`evicted`).
//!
//! - Every change of a key is one compare-and-swap of one slot. Before it the change is invisible. After it nothing has to be
//!   repaired before the next operation.
//! - A key has at most one confirmed slot, in one of its two buckets, or in its third.
//! - A reader relies on nothing of an item before it has read the slot, the segment's generation, and the slot again.
//! - A frozen slot belongs to a split. Any thread that finds one finishes the split.
//!
//! Only this room knows where a slot is ([`Place`]): no other room can store its word.
//!
//! Never: writes an item's bytes, or chooses what is evicted.

mod ahead;
mod change;
mod evicted;
mod fast_get;
mod find;
mod hints;
mod insert;
mod long_value;
mod lookup;
mod old;
mod persist;
mod publish;
mod split;

pub use ahead::{AHEAD_MAX, Ahead};
pub(crate) use change::{Changed, Decide, Decision};
pub(crate) use fast_get::Fast;
pub(crate) use hints::{HINT_OLD, HINT_SECONDS, HINT_UNIT_S, HINT_UNITS};
pub(crate) use lookup::{Followed, FoundItem, Lookup, Place};
pub(crate) use old::Old;
