//! The flush word: the epoch of the items that are present, and a flush that begins later.
//!
//! Never: looks at an item. Items of older epochs are absent because every look-up compares.

#[cfg(all(test, feature = "observe"))]
mod late;

use crate::atomics::{Acquire, Relaxed, Release};
use crate::clock::seconds_of;
use crate::durable::line;
use crate::layout::superblock::{DIRTY, FlushAt, FlushWord, Superblock};
use crate::mapped::Mapped;
use crate::memory::Pinned;
use std::sync::Arc;

/// The flush epoch in force, unless that depends on the time.
#[inline(always)]
pub(crate) fn epoch_at_any_time(superblock: &Superblock) -> Option<u64> {
    // PAIRS: flush: the exchange in `replace_flush`: a thread that sees the flush sees it counted as begun.
    let word = FlushWord(superblock.flush.load(Acquire));
    (!word.is_pending()).then(|| word.epoch())
}

/// The flush word: from which epoch on items are present.
#[derive(Clone)]
pub struct Flushes {
    mapped: Arc<Mapped>,
    superblock: Pinned<Superblock, Mapped>,
}

impl Flushes {
    pub(crate) fn new(mapped: &Arc<Mapped>) -> Self {
        Self {
            mapped: Arc::clone(mapped),
            superblock: Pinned::new(mapped, Mapped::superblock),
        }
    }

    /// The flush epoch in force at `now`: begins a delayed flush that is due.
    #[inline]
    pub(crate) fn epoch(&self, now: u32) -> u64 {
        epoch_at_any_time(&self.superblock).unwrap_or_else(|| self.pending_flush(now))
    }

    /// The flush epoch, if events are watched and no delayed flush is pending; otherwise `None`. It begins no flush.
    pub(crate) fn epoch_if_watched(&self) -> Option<u64> {
        // PAIRS: flush: the exchange in `replace_flush`, as above.
        let word = self.superblock.flush.load(Acquire);
        let rest = FlushWord(word & !FlushWord::WATCHED);
        (word & FlushWord::WATCHED != 0 && !rest.is_pending()).then(|| rest.epoch())
    }

    /// Whether the flush word says that events are watched.
    #[inline]
    pub(crate) fn is_said_watched(&self) -> bool {
        self.superblock.flush.load(Relaxed) & FlushWord::WATCHED != 0
    }

    /// Says whether any events are watched, to operations that begin from now on. Returns whether it said so until now.
    pub(crate) fn say_watched(&self, is_watched: bool) -> bool {
        let word = &self.superblock.flush;
        let old = match is_watched {
            true if word.load(Relaxed) & FlushWord::WATCHED != 0 => return true,
            true => word.fetch_or(FlushWord::WATCHED, Relaxed),
            false => word.fetch_and(!FlushWord::WATCHED, Relaxed),
        };
        old & FlushWord::WATCHED != 0
    }

    /// The epoch in force when the flush word contains more than an epoch: makes a dirty word persistent, begins a delayed flush
    /// that is due.
    #[cold]
    fn pending_flush(&self, now: u32) -> u64 {
        loop {
            let (word, in_force) = self.flush_in_force(now);
            if in_force == word || self.mapped.is_read_only() || self.replace_flush(word, in_force) {
                return in_force.epoch();
            }
        }
    }

    /// The epoch in force at `now`, as `epoch` would return it, but without beginning a flush.
    pub(crate) fn epoch_unchanged(&self, now: u32) -> u64 {
        self.flush_in_force(now).1.epoch()
    }

    /// The flush word, and the word that replaces it if a delayed flush is due at `now`: the same word if none is.
    fn flush_in_force(&self, now: u32) -> (FlushWord, FlushWord) {
        let (word, at) = self.flush_state();
        let is_due = at.is_some_and(|at| at <= now);
        (word, if is_due { word.flushed() } else { word })
    }

    /// The flush word, and the tick of the region's clock at which a delayed flush begins, if there is one.
    fn flush_state(&self) -> (FlushWord, Option<u32>) {
        loop {
            let word = self.flush_word();
            if !word.is_delayed() {
                return (word, None);
            }
            let delay = FlushAt(self.superblock.flush_at.load(Relaxed));
            if delay.is_of(word.epoch()) {
                return (word, Some(delay.at()));
            }
            if self.flush_word() == word {
                // The flush-at word is corrupted: the delayed flush never begins.
                return (word, None);
            }
        }
    }

    /// The flush word, once it is persistent.
    pub(crate) fn flush_word(&self) -> FlushWord {
        // PAIRS: flush: the exchange in `replace_flush`.
        let word = FlushWord(self.superblock.flush.load(Acquire));
        if word.0 & DIRTY != 0 && !self.mapped.is_read_only() {
            self.settle_flush(word);
        }
        FlushWord(word.0 & !DIRTY)
    }

    /// PUBLISH of a flush: with the new word, everything older is absent. A restart takes the word that is persistent, old or new.
    fn replace_flush(&self, old: FlushWord, new: FlushWord) -> bool {
        let word = FlushWord(new.0 | if self.mapped.is_durable() { DIRTY } else { 0 });
        // PAIRS: flush: the loads in `epoch` and `flush_word`.
        let done = self
            .superblock
            .flush
            .compare_exchange(old.0, word.0, Release, Relaxed)
            .is_ok();
        if done && self.mapped.is_durable() {
            self.settle_flush(word);
        }
        done
    }

    /// Makes a dirty flush word persistent.
    fn settle_flush(&self, word: FlushWord) {
        self.mapped.write_back(line::TABLE, 8);
        self.mapped.barrier();
        // PAIRS: settled: the loads of the flush word.
        let _ = self
            .superblock
            .flush
            .compare_exchange(word.0, word.0 & !DIRTY, Release, Relaxed);
    }

    /// Flushes at `at` (a tick of the region's clock; 0: now).
    pub(crate) fn flush_at_tick(&self, at: u32) {
        let flush_at = &self.superblock.flush_at;
        loop {
            // Read before the flush word: the exchange below fails if another thread has set a delay for a newer epoch since.
            let delay = flush_at.load(Relaxed);
            let old = self.flush_word();
            // If there is a delayed flush already, this one replaces it.
            let delayed = FlushAt::new(old.epoch(), at).0;
            if at != 0 && flush_at.compare_exchange(delay, delayed, Relaxed, Relaxed).is_err() {
                continue;
            }
            if self.replace_flush(old, if at == 0 { old.flushed() } else { old.delayed() }) {
                return;
            }
        }
    }

    /// When a delayed flush begins, seconds on the region's clock.
    pub fn flush_at_s(&self) -> Option<u64> {
        self.flush_state().1.map(seconds_of)
    }

    /// Flushes immediately.
    pub fn flush_now(&self) {
        self.flush_at_tick(0);
    }
}
