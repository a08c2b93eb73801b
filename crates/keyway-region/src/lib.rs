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

mod arithmetic;
pub mod aside;
mod atomics;
pub mod check;
mod checksum;
mod clock;
mod decimal;
mod evict;
mod extent;
mod ghost;
mod grow;
mod hash;
#[cfg(all(test, feature = "observe"))]
mod late;
pub mod layout;
mod limit;
mod lookup;
pub mod memory;
pub mod mutants;
#[cfg(feature = "observe")]
pub mod observe;
mod operations;
mod out;
mod persist;
mod publish;
mod purge;
mod quick;
mod raise;
mod recover;
mod region;
mod repair;
mod session;
mod sparse;
mod stripes;
mod touched;
pub mod verbs;

pub use clock::{Moment, seconds_of};
pub use evict::Ages;
pub use hash::{Hasher, all_choices, hash};
pub use limit::Shrinking;
pub use operations::Lent;
pub use out::Target;
pub use region::{Creation, Host, Life, Region, Unusable};
pub use session::{Limits, Process, Seat, Session};
pub use stripes::{FLUSH, STRIPES, Stripes, WORDS as STRIPE_WORDS};
