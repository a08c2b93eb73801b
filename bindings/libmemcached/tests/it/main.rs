//! The drop-in for libmemcached: a file for each subject, in one program of tests, which is linked once.

mod abi;
mod common;
mod lives;
mod placement;
mod programs;
mod surface;
