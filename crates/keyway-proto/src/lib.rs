//! The memcached wire language, sans-io.
//!
//! [`Decoder::decode`] turns bytes that have arrived into a [`Request`] that borrows from them; [`reply`] has the writers of
//! every answer. [`Command`] is the list of commands, with what is true of each. [`client`] is the other side: requests written, answers read. [`binary`] has both for the binary protocol, which is recognised by its first byte. [`frame`] is the envelope of both in UDP datagrams. Nothing here reads a socket, knows a clock, allocates on the way in, or knows how items are stored.
//!
//! ```
//! use keyway_proto::{Decoded, Decoder, Limits, Request, reply};
//!
//! let mut decoder = Decoder::new(Limits::default());
//! let (arrived, mut out) = (b"get color\r\nget sha", Vec::new());
//! let Decoded::Request { consumed, request: Request::Get { keys, .. } } = decoder.decode(arrived) else { panic!() };
//! for key in keys {
//!     reply::value(&mut out, key, 0, 3, None);
//!     out.extend_from_slice(b"red\r\n");
//! }
//! out.extend_from_slice(reply::END);
//! assert_eq!(out, b"VALUE color 0 3\r\nred\r\nEND\r\n");
//! assert_eq!(decoder.decode(&arrived[consumed..]), Decoded::Incomplete { need: 8 });
//! ```
//!
//! Norm: memcached's `doc/protocol.txt`, cited at the lines that follow it. What is spoken, and each deviation with its
//! reason, is in `docs/protocol.md`.

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod base64;
pub mod binary;
pub mod client;
mod command;
mod decode;
pub mod frame;
pub mod reply;
mod request;
mod token;

pub use command::{BeforeLogin, Command, EXAMPLE_KEY, Facts, ManyKeys, Needs, Origin, OverUdp};
pub use decode::{Decoded, Decoder, LINE_LEN_MAX, Limits, Protocol};
pub use request::*;
pub use token::{Tokens, is_plain, tokens};
