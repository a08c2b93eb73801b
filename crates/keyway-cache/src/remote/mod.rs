//! A server, as a client of it sees it: its region is asked for, and it executes the writes of those that only read.

pub(crate) mod connection;
pub(crate) mod handout;
pub(crate) mod peer;
