//! Keyway's region.
pub mod verbs;
