//! Keyway's library door: a memcached-compatible cache as function calls on shared memory.
//!
//! It works with or without a running server: the first process creates the region, and every process sees what another
//! one stores.
//!
//! ```
//! use keyway_cache::{Cache, Options, Place};
//!
//! let options = Options::new().memory(64 << 20);
//! let cache = Cache::open(&Place::Memfd, &options)?;   // or Place::at("/dev/shm/keyway.region")
//! let mut session = cache.session()?;                  // one per thread
//! session.set(b"greeting", b"hello", 60)?;             // for 60 seconds
//! assert_eq!(session.get(b"greeting")?, Some(b"hello".to_vec()));
//! assert_eq!(session.get(b"absent")?, None);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | to | use | it fails with |
//! |---|---|---|
//! | open a region | [`Cache::open`] with a [`Place`] and [`Options`] | [`OpenError`] |
//! | attach a thread | [`Cache::session`], or [`Cache::with_session`], which keeps one for each thread | [`SessionError`], [`LocalError`] |
//! | read | [`Session::get`], [`Session::get_append`]; with conditions [`Session::get_with`] and a [`Get`] | [`ReadError`]; [`WriteError`] |
//! | read, write or delete many keys at once | [`Session::get_many`], [`Session::set_many`], …; before other verbs [`Session::prefetch`] | the same |
//! | write | [`Session::set`], [`Session::incr`], [`Session::delete`], …; with conditions [`Store`], [`Arithmetic`], [`Delete`] | [`WriteError`] |
//! | change the memory of a region | [`Cache::grow`], [`Cache::limit`] | [`GrowError`] |
//! | copy or verify a region | [`Cache::copy_to`], [`Cache::check`] | [`CopyError`] |
//!
//! The structs [`Get`], [`Store`], [`Delete`] and [`Arithmetic`] may get further fields: end them with `..Get::default()`.
//!
//! What only Keyway's own server and bindings need is in [`server`].
//!
//! Only this crate knows the operating system's side of a region: files, mappings, locks, the clock. It never knows a
//! wire protocol, except in `remote/peer.rs`, which sends the writes of a reader.

/// The README's program.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod attach;
mod cache;
mod clock;
mod error;
mod file;
mod gate;
mod observe;
mod options;
mod place;
mod process;
mod remote;
pub mod server;
mod session;

pub use cache::{AtPlace, Cache, Copied, CopyError, Info};
pub use error::{FetchError, GrowError, LocalError, OpenError, ReadError, SessionError};
pub use file::blocks::CopiesOnWrite;
pub use file::limits::Limit;
pub use gate::{Gate, GateState};
pub use keyway_region::AHEAD_MAX;
pub use keyway_region::Ages;
pub use keyway_region::Limits;
pub use keyway_region::Shrinking;
pub use keyway_region::Target;
pub use keyway_region::Unusable;
pub use keyway_region::check::Report as CheckReport;
pub use keyway_region::layout::hot::By as HotBy;
pub use keyway_region::layout::latency::{Door, Latencies, Latency, Verb};
pub use keyway_region::layout::stats::Counters;
pub use keyway_region::verbs::*;
pub use keyway_region::{Left, Trace, Whereabouts};
pub use observe::curve::{MemoryCurve, Prediction, PredictionState, Predictions};
pub use observe::hot::{Hot, HotCounts};
pub use observe::watch;
pub use options::{Gap, Options, Owners};
pub use place::Place;
pub use session::{AtOnce, Begun, Fetch, Session, Token, WaitedFor};
