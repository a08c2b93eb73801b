//! Keyway's library door for C: what `keyway.h` declares, and nothing but conversions.
//!
//! `types.rs` has the types of the header; `open.rs`, `read.rs`, `write.rs`, `fetch.rs` and `about.rs` have its functions. `bytes.rs`
//! makes slices of pointers. `failure.rs` makes a code and a message of every result, and stops panics. This crate has no
//! rules of its own: what a verb does is decided in the crate `keyway`, and `docs/library.md` says what a process must
//! not do.
//!
//! # Safety
//!
//! In every function the caller guarantees that a pointer which is not NULL is what the header says, and stays so during
//! the call. Arguments that are visibly wrong get [`types::keyway_result::KEYWAY_ERROR_ARGUMENT`]: NULL, and lengths that
//! no object has.
#![allow(unsafe_code, reason = "a C interface is pointers; contract above")]
#![allow(
    clippy::missing_safety_doc,
    reason = "the contract of every function is the one above; the documentation becomes the header's"
)]

pub mod about;
mod bytes;
mod failure;
pub mod fetch;
pub mod open;
pub mod read;
pub mod types;
pub mod write;

// The code that runs when the library is loaded. It does nothing unless `keyway exec` has requested it.
keyway_harden::hardened_at_start!();
