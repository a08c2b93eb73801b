//! Keyway's region: one position-independent file that many processes map at once.
//!
//! No locks: every shared word is valid on its own at every instant, every change becomes true by one 8-byte
//! compare-and-swap, every multi-step procedure can be finished or undone by anybody. The crate is handed mapped bytes,
//! their length and the time; it makes no system call, starts no thread and knows no wire.
//!
//! Follow an operation: [`verbs`] says what can be asked, `operations` what it means, `lookup` reads, `publish` writes, `quick` is
//! the shortest way there, `extent` finds room in the log, `evict` makes room, `purge` empties segments, `ghost` remembers what went, `grow` doubles the index, `limit` takes memory out of use, `checksum` tells what was scribbled over, `recover` takes back what the dead left, `stripes`
//! counts changes for whoever keeps copies,
//! `clock` says what time it is, [`check`] verifies all of it. `layout` has every structure once; `memory` and `atomics` are the only way to the bytes.

#![deny(clippy::indexing_slicing, clippy::unwrap_used)]

#[cfg(not(target_pointer_width = "64"))]
compile_error!("a region is mapped whole: 64-bit address spaces only");

mod atomics;
mod changes;
pub mod check;
mod decimal;
mod durable;
mod hash;
pub mod heap;
mod index;
#[cfg(all(test, feature = "observe"))]
mod late;
pub mod layout;
mod log;
pub mod memory;
pub mod mutants;
#[cfg(feature = "observe")]
pub mod observe;
mod operations;
mod reclaim;
mod recover;
mod region;
mod session;
mod sessions;
mod sink;
pub mod verbs;

pub use changes::{FLUSH, STRIPES, Stripes, WORDS as STRIPE_WORDS};
pub use hash::{Hasher, all_choices, hash};
pub use operations::Lent;
pub use reclaim::Ages;
pub use reclaim::Shrinking;
pub use region::{Creation, Host, Life, Region, Unusable};
pub use region::{Moment, seconds_of};
pub use session::{Limits, Process, Seat, Session};
pub use sink::Target;
