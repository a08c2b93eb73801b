//! Scribbling: a process writes random bytes over a region while a server and other processes use it.
//!
//! Its enemy: a word of shared memory that is believed. [`round`] starts a server, clients of the library and one of the
//! network, and the process that scribbles ([`scribbler`]); no process may crash or hang, and in a region with checksums none may be
//! given a value that was never stored ([`values`] tells). The same round in a region without checksums must find wrong values:
//! otherwise nothing was damaged, or no process looked.

pub mod client;
pub mod round;
pub mod scribbler;
pub mod values;

/// The first argument of a process that plays a part.
pub const ROLE: &str = "--role";
