//! Client programs of other authors, unchanged, against Keyway and, for sanity, against memcached: see `tests/`.
//!
//! Each program in `scripts/` uses one client's ordinary API widely, asserts every result, and ends with a line that starts with
//! `OK`. [`prepare`] gets the clients from their registries in fixed versions, into cargo's target directory, once.

pub mod prepare;
