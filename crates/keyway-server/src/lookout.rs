//! Whether the region that is served is still the one at its place: looked at once a second, said when it changes.
//!
//! A region whose file was removed or replaced is served on as it is, but programs and servers that open the place have another one,
//! and the next start finds another one. That is for an operator to know.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use keyway::{AtPlace, Cache};

use crate::shared::Shared;

/// Between two looks.
const EVERY: Duration = Duration::from_secs(1);

/// See the top of the file.
pub(crate) struct Lookout {
    seen: AtPlace,
    next: Instant,
}

impl Lookout {
    pub(crate) fn new(shared: &Shared) -> Self {
        Self {
            seen: at_place(shared.at_place.load(Relaxed)),
            next: Instant::now() + EVERY,
        }
    }

    /// How long until the next look.
    pub(crate) fn due_in(&self) -> Duration {
        self.next.saturating_duration_since(Instant::now())
    }

    /// Looks, if it is time to.
    pub(crate) fn look(&mut self, cache: &Cache, shared: &Shared) {
        if !self.due_in().is_zero() {
            return;
        }
        self.next = Instant::now() + EVERY;
        let now = cache.at_place();
        shared.at_place.store(code(now), Relaxed);
        if let Some(news) = news(self.seen, now) {
            log::warn!("region {} {news}", shared.config.region);
        }
        self.seen = now;
    }
}

/// What to say of a change.
fn news(before: AtPlace, now: AtPlace) -> Option<&'static str> {
    match now {
        _ if before == now => None,
        AtPlace::Same => Some("is at its place again"),
        AtPlace::Nothing => Some(
            "was removed: this server goes on with it, but programs and servers that open the place now make another one; restart this server \
             to serve that",
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

/// For an atomic.
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

/// As `stats` shows it.
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
