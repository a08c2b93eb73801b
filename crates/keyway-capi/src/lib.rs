//! Keyway's library door for C: what `keyway.h` declares, and nothing but conversions.
//!
//! `types.rs` has the types of the header, `open.rs`, `read.rs`, `write.rs` and `about.rs` its functions. Pointers become
//! slices in `bytes.rs`; every outcome becomes a code and a message in `failure.rs`, where panics stop as well. Rules of its
//! own this crate has none: what a verb does is in the crate `keyway`, and what a process must not do in `docs/library.md`.
//!
//! # Safety
//!
//! Every function takes the caller's word that a pointer which is not NULL is what the header says, and stays so during the
//! call. What can be known to be wrong is answered with [`types::keyway_result::KEYWAY_ERROR_ARGUMENT`]: NULL, and lengths that
//! nothing has.
#![allow(unsafe_code, reason = "a C interface is pointers; contract above")]
#![allow(
    clippy::missing_safety_doc,
    reason = "the contract of every function is the one above; the documentation becomes the header's"
)]

pub mod about;
mod bytes;
mod failure;
pub mod open;
pub mod read;
pub mod types;
pub mod write;

// What runs when the library is loaded: nothing, unless `keyway exec` has asked for it.
keyway_harden::hardened_at_start!();
