//! Keyway's region: one position-independent file that many processes map concurrently.
//!
//! No locks: every shared word is valid on its own at every instant. Every change becomes visible by one 8-byte
//! compare-and-swap. Every procedure of several steps can be finished or undone by any thread. The crate gets mapped bytes,
//! their length and the time; it makes no system call, starts no thread and knows no wire.
//!
//! Follow an operation: [`verbs`] lists the requests, `operations` gives their meaning, `index` finds and publishes, `log` holds
//! the bytes, `reclaim` frees segments, `sessions` says what a thread protects, `recover` takes back what dead threads left.
//! Each of these is a room: a folder whose `mod.rs` says what it holds and what is always true there. `layout` has every
//! structure once. `memory` and `atomics` are the only access to the bytes. [`check`] verifies everything. `ARCHITECTURE.md` has
//! the rooms' order.

#![deny(clippy::indexing_slicing, clippy::unwrap_used)]

#[cfg(not(target_pointer_width = "64"))]
compile_error!("a region is mapped whole: 64-bit address spaces only");

mod atomics;
mod changes;
pub mod check;
mod clock;
mod decimal;
mod directory;
mod durable;
pub mod fetch;
mod flights;
mod flushes;
mod hash;
pub mod heap;
mod hot;
mod index;
#[cfg(all(test, feature = "observe"))]
mod late;
mod latencies;
pub mod layout;
mod limits;
mod log;
mod mapped;
pub mod memory;
#[cfg(feature = "observe")]
pub mod observe;
mod operations;
mod reclaim;
mod recover;
mod region;
mod session;
mod sink;
mod threads;
mod trace;
mod trail;
pub mod verbs;
mod watch;

pub use changes::{Changes, Counting, FLUSH, STRIPES, Stripes, WORDS as STRIPE_WORDS};
pub use clock::{Clock, LastBoot, LastUse, Moment, Restarts, seconds_of};
pub use directory::Directory;
pub use flights::{Armed, Berth, Flights, Turn};
pub use flushes::Flushes;
pub use hash::{Hasher, Key, Keyed, all_choices, hash};
pub use hot::{Hot, HotRange, HotSnapshot, ONE_IN as CALLS_PER_SAMPLE, Sampling};
pub use index::{AHEAD_MAX, Ahead, Index, Slots};
pub use latencies::LatencyTable;
pub use layout::flight::Holder;
pub use limits::{ITEM_SIZES, LimitWords, Limits};
pub use mapped::{Host, Life, Mapped, Unusable};
pub use memory::{KeyRoom, append_bytes, copy_bytes};
pub use operations::Fetches;
pub use reclaim::Ages;
pub use reclaim::Shrinking;
pub use reclaim::Victims;
pub use recover::Recovery;
pub use region::{Creation, Overview, Region, ThreadInUse, USES};
pub use session::Session;
pub use sink::{Headed, Once, PinnedValue, Pinning, Placed, Sink, Target, Unread};
pub use threads::{Process, SessionId, Threads};
pub use trace::{Left, Trace, Whereabouts, trace};
pub use trail::{Trail, TrailPlace, TrailStep, is_among};
pub use watch::{Delivery, Event, WATCHED_S, Watch, Watching};
