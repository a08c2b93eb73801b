//! Index and memory grow, and no item is lost: trials on regions that real processes share.
//!
//! [`items`] says what is written, [`worker`] is the child process that writes it and says what it has written, [`trials`]
//! are what a region must stand, [`long`] is the one with fifty million items, which also measures. A trial answers with a
//! line for people, or with what was lost.

pub mod histogram;
pub mod items;
pub mod long;
pub mod trials;
pub mod worker;

/// What a trial says: what it did, or what went wrong.
pub type Verdict = Result<String, String>;
