//! memcached's wire protocols, without I/O.
//!
//! [`Decoder::decode`] turns bytes that have arrived into a [`Request`] that borrows from them. [`reply`] has the writers of
//! every answer. [`Command`] lists the commands with their properties. [`client`] is the other side: it writes requests and reads answers.
//! [`binary`] has both for the binary protocol, which its first byte identifies. [`frame`] is the frame of both in UDP datagrams. Nothing
//! here reads a socket, knows a clock or how items are stored, or allocates while it decodes.
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
//! Norm: memcached's `doc/protocol.txt`, cited at the lines that follow it. `docs/protocol.md` lists what Keyway supports, and each
//! deviation with its reason.

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod ahead;
mod base64;
pub mod binary;
pub mod client;
mod command;
mod decode;
pub mod frame;
pub mod reply;
mod request;
mod token;

pub use ahead::{KeysAhead, keys_ahead};
pub use command::{Access, BeforeLogin, Command, EXAMPLE_KEY, Facts, Form, ManyKeys, Needs, Origin, OverUdp, Verb};
pub use decode::{Decoded, Decoder, LINE_LEN_MAX, Limits, Progress, Protocol, Within};
pub use request::*;
pub use token::{Tokens, is_plain, tokens};
