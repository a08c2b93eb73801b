//! The connections that the program may answer: which sockets it looks at, and which of them are at rest.
//!
//! A server enrols a socket that it has accepted, and publishes one word for it. The program answers a request on that socket only while
//! this word is the connection's ticket and the number of bytes that the socket has received: then the server has read and answered all of
//! them. So a word needs no change when more bytes arrive.
//!
//! Never: decides which connections are enrolled.

use std::io;
use std::os::fd::BorrowedFd;

use crate::door::DoorError;

/// Connections whose requests the program may answer.
pub struct Connections {
    _private: (),
}

impl Connections {
    /// Number of connections for which one process can publish.
    pub const SLOTS: u32 = 16_384;

    /// Makes the program look at this socket's segments. This process publishes in `slot`; a published word is the `ticket` and the number of
    /// bytes read from the socket since it was accepted.
    pub fn enrol(&self, _socket: BorrowedFd<'_>, _slot: u32, _ticket: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Publishes that the connection with this slot is at rest, or with 0 that it is not.
    pub fn publish(&self, _slot: u32, _word: u64) {}

    /// Number of live sockets whose sequence numbers the program translates, because it has answered for them.
    pub fn translated(&self) -> Result<usize, DoorError> {
        Ok(0)
    }
}
