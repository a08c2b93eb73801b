//! What a server that is killed at any moment must still hold.
//!
//! [`history`] knows, for every key, what was acknowledged and what was sent after that, and judges what is found after a
//! restart. [`load`] is a client that writes its own keys, pipelined, checks every reply at once, and records all of it.
//! Neither knows how a server stores anything.

pub mod history;
pub mod load;
