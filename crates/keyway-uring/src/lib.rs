//! Sockets through io_uring, with a safe interface.
//!
//! A [`Ring`] belongs to one thread. [`Ring::receive`], [`Ring::send`] and [`Ring::watch`] queue requests. They
//! start at the next [`Ring::wait`], all with one system call, which also waits for completions of earlier ones.
//!
//! Why it is safe: the kernel only writes to buffers that the ring owns, and only reads from vectors that the caller gave away
//! to it. A [`Piece`] is the only right to read a buffer, and giving it back ends that right. If a ring is dropped while the kernel
//! may still use its memory, it leaks that memory and does not free it.
//!
//! It needs Linux 6.1 (`IORING_SETUP_DEFER_TASKRUN`); [`Ring::open`] says what is missing.

mod buffers;
mod ring;

pub use buffers::Piece;
pub use ring::{Event, Ring};
