//! Concurrent histories of a cache, and whether they make sense.
//!
//! [`Call`] is what is asked and [`Answer`] what is answered, by any [`Door`]. [`value`] makes values whose every byte tells
//! which call wrote it, so a torn or foreign one is seen at once. [`choose`] picks random calls on few keys. [`mod@judge`] decides
//! whether the answers to all calls on a key are those of some order of the calls that respects real time (linearizability,
//! Herlihy and Wing 1990); [`map`] is a store with seeded faults that it must reject. Nothing here knows how a cache works.

pub mod call;
pub mod choose;
pub mod judge;
pub mod map;
pub mod value;

pub use call::{Answer, Call, Door, Key, Verb};
pub use judge::{Operation, Rules, Verdict, judge, judge_all};
