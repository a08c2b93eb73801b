//! This process and this thread: forks, cancellation, what the kernel says of them, what waits.
//!
//! Never: knows of a region.

pub(crate) mod cancel;
pub(crate) mod descriptor;
pub(crate) mod fork;
pub(crate) mod proc;
pub(crate) mod storage;
pub(crate) mod thread;
pub(crate) mod wait;
