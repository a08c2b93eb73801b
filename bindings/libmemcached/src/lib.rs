//! Keyway for programs that know libmemcached: a `libmemcached.so.11` that runs on the region.
//!
//! An unmodified program uses it by LD_PRELOAD, or because it stands where the real library stood. Handles whose servers are all
//! this host's Keyway are functions on its region; every other handle is the real library's, if one is installed
//! ([`handle`], [`discover`]). What libmemcached's functions mean is told by libmemcached; where this library differs,
//! `docs/library.md` says so.
//!
//! # Safety
//!
//! Every exported function is unsafe to call; module [`export`] has the one contract.
#![allow(
    non_camel_case_types,
    missing_docs,
    clippy::missing_safety_doc,
    clippy::too_many_arguments,
    clippy::unused_unit,
    reason = "names, signatures and contracts are those of libmemcached's headers"
)]

mod behavior;
mod discover;
mod error;
mod export;
mod fetch;
mod handle;
mod hash;
mod options;
mod real;
mod result;
mod server;
mod stats;
mod store;
mod types;

#[allow(unsafe_code, reason = "a list that the loader reads")]
mod start {
    // What runs when the library is loaded: nothing, unless `keyway exec` has asked for it.
    keyway_harden::hardened_at_start!();
}
