//! Sockets through io_uring, behind an interface without unsafe.
//!
//! A [`Ring`] belongs to one thread. Requests are written down with [`Ring::receive`], [`Ring::send`] and [`Ring::watch`]; they
//! start at the next [`Ring::wait`], all with one system call, which also waits for what has come of earlier ones.
//!
//! What makes it safe: the kernel only ever writes to buffers that the ring owns, and reads from vectors that were given away
//! to it. A [`Piece`] is the one right to read a buffer, and giving it back ends that right. A ring that is dropped while the kernel
//! may still use its memory leaks that memory rather than freeing it.
//!
//! It needs Linux 6.1 (`IORING_SETUP_DEFER_TASKRUN`); [`Ring::open`] says what is missing.

mod buffers;
mod ring;

pub use buffers::Piece;
pub use ring::{Event, Ring};
