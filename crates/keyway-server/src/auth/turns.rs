//! A queue in which sources take turns: each gets one thing done, then the next source.

use std::collections::{HashMap, VecDeque};

use crate::rate::Source;

/// What waits, by source.
pub(super) struct FairQueue<T> {
    /// none of them is empty
    waiting: HashMap<Source, VecDeque<T>>,
    /// each source of `waiting`, the next one first
    order: VecDeque<Source>,
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        Self {
            waiting: HashMap::new(),
            order: VecDeque::new(),
        }
    }
}

impl<T> FairQueue<T> {
    pub(super) fn push(&mut self, source: Source, job: T) {
        let jobs = self.waiting.entry(source).or_default();
        if jobs.is_empty() {
            self.order.push_back(source);
        }
        jobs.push_back(job);
    }

    /// The first of the source whose turn it is.
    pub(super) fn pop(&mut self) -> Option<T> {
        let source = self.order.pop_front()?;
        let jobs = self.waiting.get_mut(&source)?;
        let job = jobs.pop_front();
        if jobs.is_empty() {
            self.waiting.remove(&source);
        } else {
            self.order.push_back(source);
        }
        job
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_floods_delays_another_by_one() {
        let mut turns = FairQueue::default();
        let (flood, other) = (Source::V4(1), Source::User(1));
        (0..100).for_each(|job| turns.push(flood, job));
        assert_eq!(turns.pop(), Some(0));
        turns.push(other, 1000);
        turns.push(other, 1001);
        let order: Vec<_> = std::iter::from_fn(|| turns.pop()).collect();
        assert_eq!(order[..5], [1, 1000, 2, 1001, 3]);
        assert_eq!((order.len(), order.last()), (101, Some(&99)));
        assert!(turns.waiting.is_empty() && turns.order.is_empty());
    }
}
