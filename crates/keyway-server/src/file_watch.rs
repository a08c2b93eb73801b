//! Checks once a second whether the region that is served is still the one at its place, and logs when that changes; and notes once a
//! minute what was counted ([`crate::hour`]).
//!
//! A region whose file was removed or replaced is still served. But programs and servers that open the place get another region,
//! and so does the next start. The operator has to know that.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use keyway_cache::{AtPlace, Cache};

use crate::hour::Note;
use crate::shared::{Shared, lock};

/// Time between two checks.
const EVERY: Duration = Duration::from_secs(1);

/// See the top of the file.
pub(crate) struct FileWatch {
    seen: AtPlace,
    next: Instant,
}

impl FileWatch {
    pub(crate) fn new(shared: &Shared) -> Self {
        Self {
            seen: at_place(shared.at_place.load(Relaxed)),
            next: Instant::now() + EVERY,
        }
    }

    /// Time until the next check.
    pub(crate) fn due_in(&self) -> Duration {
        self.next.saturating_duration_since(Instant::now())
    }

    /// Checks, if it is due.
    pub(crate) fn look(&mut self, cache: &Cache, shared: &Shared) {
        if !self.due_in().is_zero() {
            return;
        }
        self.next = Instant::now() + EVERY;
        let mut hour = lock(&shared.hour);
        if hour.is_due(Instant::now()) {
            hour.note(Note::now(shared, cache));
        }
        drop(hour);
        let now = cache.at_place();
        shared.at_place.store(code(now), Relaxed);
        if let Some(news) = news(self.seen, now) {
            log::warn!("region {} {news}", shared.config.region);
        }
        self.seen = now;
    }
}

/// The log message for a change.
fn news(before: AtPlace, now: AtPlace) -> Option<&'static str> {
    match now {
        _ if before == now => None,
        AtPlace::Same => Some("is at its place again"),
        AtPlace::Nothing => Some(
            "was removed: this server goes on with it, but servers that open the place now make another one, and programs find none; restart \
             this server to serve a new one",
        ),
        AtPlace::Another => Some(
            "was replaced by another file: this server goes on with the old one, but programs and servers that open the place now have the new \
             one; restart this server to serve that",
        ),
        AtPlace::Unknown => {
            Some("cannot be checked at its place: does its folder still exist, and can this server's user read it?")
        }
    }
}

/// As a number, for an atomic.
pub(crate) fn code(at_place: AtPlace) -> u8 {
    match at_place {
        AtPlace::Same => 0,
        AtPlace::Nothing => 1,
        AtPlace::Another => 2,
        AtPlace::Unknown => 3,
    }
}

fn at_place(code: u8) -> AtPlace {
    match code {
        0 => AtPlace::Same,
        1 => AtPlace::Nothing,
        2 => AtPlace::Another,
        _ => AtPlace::Unknown,
    }
}

/// The word by which `stats` shows what is at the region's place.
pub(crate) fn word(code: u8) -> &'static str {
    match at_place(code) {
        AtPlace::Same => "in_place",
        AtPlace::Nothing => "removed",
        AtPlace::Another => "replaced",
        AtPlace::Unknown => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [AtPlace; 4] = [AtPlace::Same, AtPlace::Nothing, AtPlace::Another, AtPlace::Unknown];

    #[test]
    fn every_change_is_said_and_nothing_else() {
        for before in ALL {
            for now in ALL {
                assert_eq!(news(before, now).is_some(), before != now, "{before:?} {now:?}");
            }
            assert_eq!(at_place(code(before)), before);
        }
    }
}
