//! Ways past the gate, each tried. What comes of each is in `docs/security.md`, whose table names them; the tests compare.

pub mod library;
pub mod trial;
pub mod ways;
