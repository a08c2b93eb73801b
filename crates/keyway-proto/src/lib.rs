//! The memcached wire language, sans-io.
//!
//! [`Decoder::decode`] turns bytes that have arrived into a [`Request`] that borrows from them; [`reply`] has the writers of
//! every answer. Nothing here reads a socket, knows a clock, allocates on the way in, or knows how items are stored.

mod decode;
pub mod reply;
mod request;

pub use decode::{Decoded, Decoder, Limits};
pub use request::*;
