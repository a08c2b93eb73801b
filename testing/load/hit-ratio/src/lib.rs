//! Hit ratios, trace by trace: Keyway beside a real memcached with as many MB, and beside an item-level S3-FIFO with as many
//! items. A miss is followed by a set, as an application would.
//!
//! The traces are generated from a seed (`trace`); every cache sees the same requests. `s3fifo` is the algorithm that Keyway's
//! segments approximate, item by item, as its authors describe it; `memcached` starts and drives the real one; `keyway` is the
//! library door. `judge` says what must hold;
//! `program` has what the programs share.

pub mod judge;
pub mod keyway;
pub mod memcached;
pub mod mixture;
pub mod program;
pub mod s3fifo;
pub mod trace;

/// A cache that a trace is sent through.
pub trait Contender {
    /// Requests these keys in turn, and sets each that is missed; how many were missed.
    ///
    /// # Errors
    ///
    /// A `set` that was refused, or a connection that broke.
    fn replay(&mut self, requests: &[trace::Request]) -> std::io::Result<u64>;
}
