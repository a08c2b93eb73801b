//! Tests of workers that run in the test's thread ([`driven`](super::driven)).

#[cfg(feature = "kernel")]
mod at_rest;
mod turns;
