//! Log lines that clients can cause: at most one a second of each kind, with the number of those that were left out.

use std::fmt;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::basics::lock;

/// Least time between two lines of a kind.
const EVERY: Duration = Duration::from_secs(1);

/// One kind of log line.
pub(crate) struct LogLimiter(Mutex<State>);

struct State {
    last: Option<Instant>,
    left_out: u64,
}

/// How many lines of a kind were left out before this one. As text: empty, or a note for the end of the line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LeftOut(u64);

impl LogLimiter {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(State { last: None, left_out: 0 }))
    }

    /// Whether a line may be logged now.
    pub(crate) fn may_speak(&self) -> Option<LeftOut> {
        self.may_speak_at(Instant::now())
    }

    fn may_speak_at(&self, now: Instant) -> Option<LeftOut> {
        let mut state = lock(&self.0);
        if state.last.is_some_and(|last| now.saturating_duration_since(last) < EVERY) {
            state.left_out += 1;
            return None;
        }
        state.last = Some(now);
        Some(LeftOut(std::mem::take(&mut state.left_out)))
    }
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            count => write!(f, " ({count} lines like this were left out before)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_second_and_the_others_are_counted() {
        let (quiet, start) = (LogLimiter::new(), Instant::now());
        let at = |ms| quiet.may_speak_at(start + Duration::from_millis(ms));
        assert_eq!(at(0), Some(LeftOut(0)));
        assert_eq!([at(1), at(500), at(999)], [None, None, None]);
        let next = at(1000).unwrap();
        assert_eq!(next.to_string(), " (3 lines like this were left out before)");
        assert_eq!(at(1001), None);
        assert_eq!(at(2000), Some(LeftOut(1)));
        assert_eq!(at(9000).unwrap().to_string(), "");
    }
}
