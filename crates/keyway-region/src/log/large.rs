//! Large values: chains of segments that hold nothing else.
//!
//! A chain is written last part first, so each part is complete before another one names it. Its segments belong to the writer
//! until the item that leads to the first one is published. From then on the thread that removes that item frees them.

use crate::atomics::{Acquire, Relaxed, Release, fence};
use crate::hash::Key;
use crate::heap::List;
use crate::layout::segment::{CHAIN_HEADER_SIZE, CHAIN_LEN_WORD, Kind, Link, State, Stream};
use crate::layout::session::FREEING;
use crate::log::Claims;
use crate::log::Items;
use crate::log::Supply;
use crate::log::checksum::begin_part;
use crate::log::item_view::Chain;
use crate::sink::{Sink, Unread};
use crate::verbs::WriteError;

impl Items {
    pub(crate) fn append_chain(&self, chain: Chain, out: &mut impl Sink) -> Result<(), Unread> {
        let room = self.mapped.layout().shape.segment_size - CHAIN_HEADER_SIZE;
        let (mut link, mut left) = (chain.first, chain.value_len);
        let mut walked = 0;
        while walked < self.mapped.segments() {
            walked += 1;
            let segment = link.segment();
            if !self.mapped.has(segment) || self.mapped.segment_life(segment).generation != link.generation() {
                return Err(Unread::Changed);
            }
            let at = self.mapped.segment(segment);
            let next = Link(self.mapped.word(at).load(Relaxed));
            let part = left.min(room);
            let window = self.mapped.memory().window(at + CHAIN_HEADER_SIZE, part);
            let intact = if self.has_checksums() {
                self.append_part((link, next, chain.last), window, out)
            } else {
                out.append_region(window).map(|()| true)
            };
            // PAIRS: generation: the fence in `Claims::claim_from_free`, as in `still`.
            fence(Acquire);
            if self.mapped.segment_life(segment).generation != link.generation() {
                return Err(Unread::Changed);
            }
            if !intact? {
                return Err(Unread::Changed);
            }
            left -= part;
            if left == 0 {
                return Ok(());
            }
            link = next;
        }
        Err(Unread::Changed)
    }
}

impl Claims {
    /// Puts a value into segments of its own, last part first, so that each part is complete before another names it.
    pub(super) fn write_chain(
        &self,
        supply: &dyn Supply,
        key: &Key<'_>,
        value: &[u8],
        (stream, expiry): (Stream, u32),
        now: u32,
    ) -> Result<Chain, WriteError> {
        let room = self.mapped.layout().shape.segment_size - CHAIN_HEADER_SIZE;
        let parts = value.len().div_ceil(room).max(1);
        // Half of the region ([`Layout::item_size_max`](crate::layout::plan::Layout::item_size_max)): above that, two writers of such values could starve each other for ever.
        if parts > self.mapped.allowed() / 2 {
            return Err(WriteError::OutOfMemory);
        }
        let (mut next, mut last) = (Link::NONE, Link::NONE);
        for part in value.chunks(room).rev() {
            supply.pay(self.mapped.layout().shape.segment_size, now);
            let segment = match supply.take_segment(now, true) {
                Ok(segment) => segment,
                Err(e) => {
                    self.free_chain(next);
                    return Err(e);
                }
            };
            let generation = self.mapped.segment_life(segment).generation;
            let link = Link::new(segment, generation);
            if last == Link::NONE {
                last = link;
            }
            let at = self.mapped.segment(segment);
            self.mapped.fault_in(at, CHAIN_HEADER_SIZE + part.len());
            let words = [next.0, last.0, key.hash, part.len() as u64];
            let checksum = if self.items.has_checksums() {
                let sum = self.items.write_summed(at + CHAIN_HEADER_SIZE, part, begin_part(link, words));
                u64::from(sum) << 32
            } else {
                self.mapped.memory().write(at + CHAIN_HEADER_SIZE, part);
                0
            };
            for (i, word) in words.into_iter().enumerate() {
                let checksum = if i == CHAIN_LEN_WORD { checksum } else { 0 };
                self.mapped.word(at + i * 8).store(word | checksum, Relaxed);
            }
            self.mapped
                .header(segment)
                .sequence
                .store(self.uniques.take_uniques(now).0, Relaxed);
            let expires = if expiry == 0 { u32::MAX } else { expiry };
            self.mapped.header(segment).expires.store(expires, Relaxed);
            let none = State::of(Kind::Large, stream);
            let state = none.take(Kind::Large, self.thread.owner());
            // PAIRS: large: the load in `Reclaimer::empty_step`: a thread that sees it large sees its words.
            self.mapped.header(segment).state.store(state.0, Release);
            // The thread that gave the segment its generation may not have reached a barrier.
            self.mapped.write_back(at, CHAIN_HEADER_SIZE + part.len());
            self.mapped.write_back_words(segment);
            next = link;
        }
        Ok(Chain {
            value_len: value.len(),
            first: next,
            last,
        })
    }

    /// The chain's head is published: its segments have no owner any more and belong to the head.
    #[inline(never)]
    pub(crate) fn disown_chain(&self, chain: Chain) {
        self.each_of_chain(chain.first, |claims, segment, old| {
            if old.kind() == Some(Kind::Large) && old.owner() == Some(claims.thread.owner()) {
                let state = &self.mapped.header(segment).state;
                // PAIRS: chain-owner: the load in `empty_step`: a thread that finds no owner finds the head.
                let _ = state.compare_exchange(old.0, old.leave(Kind::Large).0, Release, Relaxed);
            }
        });
    }

    /// Frees the segments of a chain that no slot leads to any more.
    #[inline(never)]
    pub(crate) fn free_chain(&self, first: Link) {
        let mut claimed = List::new();
        self.each_of_chain(first, |claims, segment, state| {
            if state.kind() == Some(Kind::Large) && claims.claim(segment, state) {
                claimed.push(segment);
            }
        });
        if claimed.is_empty() {
            return;
        }
        let protected = self.threads.protected_by_others(self.thread.owner());
        for segment in claimed.iter() {
            if self.bump_large(*segment, &protected) {
                self.free_segment(*segment);
            }
        }
    }

    /// Gives a claimed segment of a large value its next generation, unless a thread walks a chain through it: then it is left
    /// to be reclaimed as a log without items. `protected`: read after the claim.
    pub(crate) fn bump_large(&self, segment: usize, protected: &[u64]) -> bool {
        let is_free = !protected.contains(&(segment as u64 + 1));
        if is_free {
            self.bump(segment);
        } else {
            let state = &self.mapped.header(segment).state;
            // PAIRS: retire: the claim by the thread that continues.
            state.store(State(state.load(Relaxed)).leave(Kind::Retired).0, Release);
        }
        is_free
    }

    /// Calls `each` with every segment of a chain and its state; the next link is read before the call. Meanwhile a hazard pointer
    /// (hazard pointer) names the segment: a thread that claims it from then on does not give it a new generation. A thread that
    /// claimed it before may do so. Therefore state and link are read first, and then the generation. If it is the link's, both
    /// belong to that generation. If the segment was not claimed either, the generation stays as long as the hazard pointer, however
    /// long this thread sleeps in between.
    fn each_of_chain(&self, first: Link, mut each: impl FnMut(&Self, usize, State)) {
        let mut link = first;
        let mut walked = 0;
        while walked < self.mapped.segments() {
            walked += 1;
            let segment = link.segment();
            if link == Link::NONE || !self.mapped.has(segment) {
                break;
            }
            self.thread.protect(FREEING, segment);
            let state = State(self.mapped.header(segment).state.load(Relaxed));
            let next = Link(self.mapped.word(self.mapped.segment(segment)).load(Relaxed));
            // PAIRS: chain: the fence of the segment's next owner, in `claim_from_free`.
            fence(Acquire);
            if self.mapped.words(segment).generation.load(Relaxed) != link.generation() {
                break;
            }
            each(self, segment, state);
            link = next;
        }
        self.thread.release(FREEING);
    }
}
