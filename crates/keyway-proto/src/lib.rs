//! The memcached wire language, sans-io.
//!
//! [`Decoder::decode`] turns bytes that have arrived into a [`Request`] that borrows from them; [`reply`] has the writers of
//! every answer. Nothing here reads a socket, knows a clock, allocates on the way in, or knows how items are stored.
//!
//! Norm: memcached's `doc/protocol.txt`, cited at the lines that follow it. What is spoken, and each deviation with its
//! reason, is in `docs/protocol.md`.

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod base64;
mod decode;
pub mod reply;
mod request;
mod token;

pub use decode::{Decoded, Decoder, LINE_LEN_MAX, Limits};
pub use request::*;
pub use token::{Tokens, tokens};
