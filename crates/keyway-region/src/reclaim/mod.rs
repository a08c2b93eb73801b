//! Room `reclaim`: how a used segment becomes a free one.
//!
//! Holds the choice of the next victim and which session pays for it (`evict`), emptying a segment by steps (`empty`), and taking
//! segments out of use for a lower memory limit (`limit`).
//!
//! - Every word that names a segment is out of the index before the segment's generation moves.
//! - No segment is given a generation while a hazard pointer of another session names it.
//! - No operation pays for a whole segment, and none waits for another thread: a segment that cannot be reclaimed now is skipped.
//!
//! Never: publishes a new value. It moves items unchanged, and removes them.

mod empty;
mod evict;
mod limit;

use crate::index::Changer;
use crate::layout::segment::POOLS;
use crate::log::Segments;
use crate::mapped::Mapped;
use crate::recover::Recovery;
use crate::threads::Threads;
use evict::{PASSED, Survey};
use std::cell::Cell;
use std::sync::Arc;

#[cfg(all(test, feature = "observe"))]
pub(crate) use empty::Step;
pub use evict::Ages;
pub(crate) use evict::Victim;
pub use limit::Shrinking;

/// Which segments can be emptied, and how many of them may be in use.
#[derive(Clone)]
pub struct Victims {
    mapped: Arc<Mapped>,
    threads: Threads,
    segments: Segments,
    recovery: Recovery,
}

/// How a thread makes room: what it is about to reclaim, which any other thread can find out too.
pub(crate) struct Reclaimer {
    victims: Victims,
    recovery: Recovery,
    index: Changer,
    victim: Cell<Option<Victim>>,
    survey: Cell<Survey>,
    next: Cell<usize>,
    /// segments that its samples have drawn
    drawn: Cell<u64>,
    rest: Cell<u32>,
    /// bytes taken since its last sweep
    unswept: Cell<usize>,
    /// segments reclaimed
    count: Cell<u32>,
    /// when it looked for dead processes last
    looked: Cell<u32>,
    /// segments reclaimed since its last survey
    unsurveyed: Cell<usize>,
    /// in each pool only segments opened after this one are next in turn: the older ones could not be reclaimed
    floors: Cell<[u64; POOLS]>,
    /// segments, plus 1, that it has skipped because they could not be reclaimed
    passed: Cell<[usize; PASSED]>,
    /// how many of those were not in turn
    passed_out_of_turn: Cell<usize>,
    /// the segment whose pages it looks at next, to give them back
    given_back_next: Cell<usize>,
}
