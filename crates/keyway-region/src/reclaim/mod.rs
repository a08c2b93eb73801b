//! Room `reclaim`: how a used segment becomes a free one.
//!
//! Holds the choice of the next victim and which session pays for it (`evict`), emptying a segment by steps (`empty`), and taking
//! segments out of use for a lower memory limit (`limit`).
//!
//! - Every word that names a segment is out of the index before the segment's generation moves.
//! - No segment is given a generation while a hazard pointer of another session names it.
//! - No operation pays for a whole segment, and none waits for another thread: a segment that cannot be reclaimed now is skipped.
//!
//! Never: publishes a new value. It moves items unchanged, and removes them.

mod empty;
mod evict;
mod limit;

#[cfg(all(test, feature = "observe"))]
pub(crate) use empty::Step;
pub use evict::Ages;
#[cfg(all(test, feature = "observe"))]
pub(crate) use evict::Victim;
pub(crate) use evict::{Reclaim, SUPPLY};
pub use limit::Shrinking;
