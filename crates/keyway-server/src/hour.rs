//! What was counted in the last hour, for `keyway doctor`: the region's counters as they were at each minute of it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use keyway_cache::Counters;

/// Time between two notes, and how many are kept: an hour.
const EVERY: Duration = Duration::from_secs(60);
const MOST: usize = 60;

/// See the top of the file.
pub(crate) struct Hour {
    notes: VecDeque<Note>,
}

/// What had been counted at a moment.
#[derive(Clone, Copy)]
pub(crate) struct Note {
    pub(crate) at: Instant,
    pub(crate) counters: Counters,
    /// connections that were refused
    pub(crate) rejected: u64,
    /// connections that were closed because their memory was short
    pub(crate) closed: u64,
}

impl Hour {
    /// Begins with this note.
    pub(crate) fn new(first: Note) -> Self {
        Self {
            notes: VecDeque::from([first]),
        }
    }

    /// Whether a minute has passed since the last note.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.notes
            .back()
            .is_none_or(|last| now.saturating_duration_since(last.at) >= EVERY)
    }

    /// Keeps this note, and those of the hour before it.
    pub(crate) fn note(&mut self, note: Note) {
        self.notes.push_back(note);
        while self.notes.len() > MOST + 1 {
            self.notes.pop_front();
        }
    }

    /// The note of an hour ago, or the first one.
    pub(crate) fn first(&self) -> Option<Note> {
        self.notes.front().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_knows_an_hour_and_no_more() {
        let begun = Instant::now();
        let note = |minute: u32| Note {
            at: begun + EVERY * minute,
            counters: Counters::default(),
            rejected: minute.into(),
            closed: 0,
        };
        let mut hour = Hour::new(note(0));
        assert!(!hour.is_due(begun) && !hour.is_due(begun + EVERY / 2) && hour.is_due(begun + EVERY));
        for minute in 1..=60 {
            hour.note(note(minute));
            assert_eq!(hour.first().unwrap().rejected, 0);
        }
        for minute in 61..200 {
            hour.note(note(minute));
            assert_eq!(hour.first().unwrap().rejected, u64::from(minute) - 60);
        }
    }
}
