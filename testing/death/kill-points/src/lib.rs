//! Operations stopped and killed at every instruction: the promise that no death leaves a trace.
//!
//! For each scenario ([`scenario`]) a child process is single-stepped once from call to return ([`step`]) on a region of a few
//! segments ([`ground`]); whenever a byte of the region changed, the image is kept. On every distinct image ([`judge`]):
//! somebody else, for whom the stopped process is alive and never moves again, reads, writes, deletes and fills the memory in
//! a bounded number of accesses; then, on a fresh copy with the stopped one dead, recovery runs, every invariant holds, the
//! operation is seen wholly or not at all, and in the end every segment is free again. A sample of the points is repeated with a
//! process that goes on after the others have worked ([`resume`]), and with real processes, locks and signals ([`real`]). Operations
//! through the C library and through the drop-in for libmemcached ([`foreign`]) are tried in the same way, as their built libraries do them.

pub mod door;
pub mod foreign;
pub mod ground;
pub mod judge;
pub mod operation;
pub mod real;
pub mod resume;
pub mod scenario;
pub mod step;
pub mod trial;
