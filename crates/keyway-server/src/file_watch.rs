//! Checks once a second whether the region that is served is still the one at its place, and logs when that changes.
//!
//! A region whose file was removed or replaced is still served. But programs and servers that open the place get another region,
//! and so does the next start. The operator has to know that.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::time::{Duration, Instant};

use keyway_cache::{AtPlace, Cache};

/// Time between two checks.
const EVERY: Duration = Duration::from_secs(1);

/// See the top of the file.
pub(crate) struct FileWatch {
    seen: AtPlace,
    next: Instant,
}

/// What was at the region's place at the last check.
pub(crate) struct RegionFile(AtomicU8);

impl RegionFile {
    pub(crate) fn new(cache: &Cache) -> Self {
        Self(AtomicU8::new(code(cache.at_place())))
    }

    fn seen(&self) -> AtPlace {
        at_place(self.0.load(Relaxed))
    }

    /// The word by which `stats` shows it.
    pub(crate) fn word(&self) -> &'static str {
        match self.seen() {
            AtPlace::Same => "in_place",
            AtPlace::Nothing => "removed",
            AtPlace::Another => "replaced",
            AtPlace::Unknown => "unknown",
        }
    }
}

impl FileWatch {
    pub(crate) fn new(file: &RegionFile) -> Self {
        Self {
            seen: file.seen(),
            next: Instant::now() + EVERY,
        }
    }

    /// Time until the next check.
    pub(crate) fn due_in(&self) -> Duration {
        self.next.saturating_duration_since(Instant::now())
    }

    /// Checks, if it is due; returns whether it was. `region`: its name, for the log.
    pub(crate) fn look(&mut self, cache: &Cache, file: &RegionFile, region: &str) -> bool {
        if !self.due_in().is_zero() {
            return false;
        }
        self.next = Instant::now() + EVERY;
        let now = cache.at_place();
        file.0.store(code(now), Relaxed);
        if let Some(news) = news(self.seen, now) {
            log::warn!("region {region} {news}");
        }
        self.seen = now;
        true
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
fn code(at_place: AtPlace) -> u8 {
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
