//! Keyway for programs that use libmemcached: a `libmemcached.so.11` that works on the region.
//!
//! An unmodified program uses it by LD_PRELOAD, or because it is installed in place of the real library. For handles
//! whose servers are all this host's Keyway, calls are functions on its region. Every other handle is the real library's,
//! if one is installed ([`handle`], [`discover`]). libmemcached's documentation describes the functions;
//! `docs/library.md` lists where this library differs.
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
mod flight;
mod handle;
mod hash;
mod options;
mod real;
mod result;
mod say;
mod server;
mod setup;
mod stats;
mod store;
mod types;

#[allow(unsafe_code, reason = "a list that the loader reads")]
mod start {
    // The code that runs when the library is loaded. It does nothing unless `keyway exec` has requested it.
    keyway_harden::hardened_at_start!();
}
