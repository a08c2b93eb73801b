//! The region's clock: which second it is, the same for all processes.
//!
//! It is the machine's boot clock (CLOCK_BOOTTIME, `clock_gettime(2)`) plus an offset. No process can set the boot clock, all
//! processes of a boot share it, and it counts while the machine is suspended. The first user in a boot stores the offset once,
//! by one compare-and-swap. From then on a reading is only an addition. Each second a user notes the pair {region's clock, Unix
//! time}. In the next boot the clock continues from the last pair, by the Unix time that has passed since, and never goes back.
//!
//! Users share no high-water mark: a reading changes nothing that another process reads before the next boot.
//!
//! *Ticks* are the units in which expiries are stored, in 29 bits: a second each for the first 12 years, [`COARSE_S`] seconds
//! each from then on, so that they last for 80 years. They rise with the clock, so ticks are compared directly; only differences
//! need [`seconds_of`].

mod restart;

pub use restart::{LastBoot, LastUse, Restarts};

use crate::atomics::Relaxed;
use crate::durable::{LINE, line};
use crate::layout::item::{EXPIRED, EXPIRY_MAX};
use crate::layout::superblock::{CLOCK_UNITS_PER_S, ClockWord, SeenWord, Superblock};
use crate::mapped::Mapped;
use crate::memory::Pinned;
use core::time::Duration;
use std::sync::Arc;

/// Seconds that a new region's clock starts with: ticks 0 and 1 are always in the past.
pub(crate) const START_S: u64 = 86_400;
/// Ticks below are seconds: 12.7 years of them.
pub(crate) const FINE_TICKS: u32 = EXPIRY_MAX + 1 - (1 << 27);
/// Seconds of a tick from then on: 68 years of them.
pub(crate) const COARSE_S: u64 = 16;

const NS_PER_S: u64 = 1_000_000_000;
/// A unit of the offset, nanoseconds.
const UNIT_NS: i64 = 1_000_000_000 / CLOCK_UNITS_PER_S;

/// The machine's clocks at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// the boot clock, as the initial time namespace has it
    pub boot: Duration,
    /// Unix time, as the kernel has it
    pub unix: Duration,
}

impl Moment {
    /// The moment at which both clocks show this many seconds: a machine that booted in 1970, for tests.
    pub const fn from_secs(seconds: i64) -> Self {
        let both = Duration::from_secs(if seconds < 0 { 0 } else { seconds.cast_unsigned() });
        Self { boot: both, unix: both }
    }

    /// Unix seconds.
    pub fn unix_s(self) -> i64 {
        i64::try_from(self.unix.as_secs()).unwrap_or(i64::MAX)
    }
}

/// The region's clock, and what it says of the last use.
#[derive(Clone)]
pub struct Clock {
    mapped: Arc<Mapped>,
    superblock: Pinned<Superblock, Mapped>,
}

impl Clock {
    pub(crate) fn new(mapped: &Arc<Mapped>) -> Self {
        Self {
            mapped: Arc::clone(mapped),
            superblock: Pinned::new(mapped, Mapped::superblock),
        }
    }

    /// The offset of a new region's clock.
    pub(super) fn first_clock(boot_id: [u64; 2], now: Moment) -> ClockWord {
        offset(boot_id, START_S, now)
    }

    /// Stores the clock's offset, unless a process of this boot has stored it. To be called before the region is used
    /// ([`Restarts::begin_use`] does it, too). Returns whether this call stored it.
    ///
    /// If the boot is unknown (`boot_id` zero, as where there is no /proc), it counts as the boot in which the region was last
    /// in use, unless the clock would go back.
    pub fn start_clock(&self, boot_id: [u64; 2], now: Moment) -> bool {
        let word = &self.superblock.clock;
        let found = ClockWord(word.load(Relaxed));
        let boot = ClockWord::boot(boot_id);
        let seen = self.seen();
        let goes_back = reading_s(found, now.boot) < u64::from(seen.clock_s());
        let is_of_this_boot = found.is_of(boot) || (boot == 0 || found.is_of(0)) && !goes_back;
        if is_of_this_boot {
            return false;
        }
        let away = now.unix.as_secs().saturating_sub(u64::from(seen.unix_s()));
        // No session has used a later second than the one noted.
        let fresh = offset(boot_id, u64::from(seen.clock_s()) + away, now);
        // Of two concurrent processes one stores its offset, and both use that: the word is all that they see. It is not written
        // back, because the next boot does not use it.
        word.compare_exchange(found.0, fresh.0, Relaxed, Relaxed).is_ok()
    }

    /// Whether a process of this boot has stored the clock's offset, as far as this process knows.
    pub fn is_clock_started(&self, boot_id: [u64; 2]) -> bool {
        let (found, boot) = (ClockWord(self.superblock.clock.load(Relaxed)), ClockWord::boot(boot_id));
        found.is_of(boot) || boot == 0 || found.is_of(0)
    }

    /// The region's clock when the boot clock says `boot`: the time since a day before the region was created.
    pub fn clock_at(&self, boot: Duration) -> Duration {
        Duration::from_nanos(reading_ns(ClockWord(self.superblock.clock.load(Relaxed)), boot))
    }

    /// The tick of that time: `now` for all verbs.
    pub fn tick(&self, now: Moment) -> u32 {
        tick_at(self.clock_at(now.boot))
    }

    /// Notes that the region is in use now. In durable mode that is persistent afterwards: in the next boot the clock starts at
    /// `now` or later, so no item that was reported as expired comes back.
    pub fn note_use(&self, now: Moment) {
        self.see(now);
        // Every process that calls in this second does this: the first one may not have written it back yet.
        self.mapped.write_back(line::RESTART, LINE);
        self.mapped.barrier();
    }

    /// [`Self::note_use`], for a caller that writes the line back itself.
    pub(crate) fn see(&self, now: Moment) {
        let clock_s = u32::try_from(self.clock_at(now.boot).as_secs()).unwrap_or(u32::MAX);
        let fresh = SeenWord::new(clock_s, u32::try_from(now.unix.as_secs()).unwrap_or(u32::MAX));
        let seen = &self.superblock.seen;
        if seen.load(Relaxed) < fresh.0 {
            // PAIRS: nothing; both halves are in one word.
            seen.fetch_max(fresh.0, Relaxed);
        }
    }

    /// When the region was last in use, as noted.
    #[inline]
    pub fn seen(&self) -> SeenWord {
        SeenWord(self.superblock.seen.load(Relaxed))
    }

    /// The difference in seconds between `now` and what the last note predicts for it, if both clocks have advanced equally
    /// since. It is more than a second or two if the boot clock is that of another time namespace (`time_namespaces(7)`), or if
    /// the machine's clock was set since.
    pub fn clock_error_s(&self, now: Moment) -> u64 {
        error_s(ClockWord(self.superblock.clock.load(Relaxed)), self.seen(), now)
    }

    /// By how many seconds Unix time has been set forward since the region was made, or back (negative), as far as the clock knows: what
    /// was set while the machine was off is not in it.
    pub fn unix_set_by_s(&self, now: Moment) -> i64 {
        let whole = |seconds: u64| i64::try_from(seconds).unwrap_or(i64::MAX);
        let passed = whole(self.clock_at(now.boot).as_secs()).saturating_sub(whole(START_S));
        let unix_s = whole(now.unix.as_secs());
        unix_s.saturating_sub(whole(self.mapped.created_unix_s()).saturating_add(passed))
    }
}

/// In which boot a region was last in use, by its clock's word, the last note of its use, and the machine's clocks now.
///
/// In the same boot both clocks have advanced equally since that note. In another boot they differ by the time for which the last
/// one had been running, and the machine was off. So nothing is concluded from a note of the first seconds of a boot.
pub(super) fn last_boot(clock: ClockWord, seen: SeenWord, now: Moment) -> LastBoot {
    const ERROR_MAX_S: u64 = 2;
    let noted_s = u64::from(seen.clock_s());
    if reading_s(clock, now.boot) < noted_s {
        return LastBoot::Another;
    }
    // The boot clock at the note.
    let ran_s = signed(noted_s).saturating_sub(clock.units() * UNIT_NS / signed(NS_PER_S));
    if ran_s > 2 * signed(ERROR_MAX_S) && error_s(clock, seen, now) <= ERROR_MAX_S {
        LastBoot::This
    } else {
        LastBoot::Unknown
    }
}

/// See [`Clock::clock_error_s`].
fn error_s(clock: ClockWord, seen: SeenWord, now: Moment) -> u64 {
    let since = |now: u64, then: u32| i64::try_from(now).unwrap_or(i64::MAX) - i64::from(then);
    let by_boot = since(reading_s(clock, now.boot), seen.clock_s());
    by_boot.abs_diff(since(now.unix.as_secs(), seen.unix_s()))
}

/// The offset with which the clock shows `clock_s` seconds and the same fraction as Unix time: both begin the next second together.
fn offset(boot_id: [u64; 2], clock_s: u64, now: Moment) -> ClockWord {
    let clock_ns = signed(clock_s.saturating_mul(NS_PER_S)).saturating_add(i64::from(now.unix.subsec_nanos()));
    let boot_ns = signed(u64::try_from(now.boot.as_nanos()).unwrap_or(u64::MAX));
    // Rounded up, so that the clock is not below what was noted.
    let units = clock_ns
        .saturating_sub(boot_ns)
        .saturating_add(UNIT_NS - 1)
        .div_euclid(UNIT_NS);
    ClockWord::new(ClockWord::boot(boot_id), units)
}

fn reading_ns(word: ClockWord, boot: Duration) -> u64 {
    let boot_ns = signed(u64::try_from(boot.as_nanos()).unwrap_or(u64::MAX));
    let ns = boot_ns.saturating_add(word.units().saturating_mul(UNIT_NS));
    u64::try_from(ns).unwrap_or(0)
}

fn reading_s(word: ClockWord, boot: Duration) -> u64 {
    reading_ns(word, boot) / NS_PER_S
}

fn signed(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// The tick at this time. The last tick never ends: an expiry that was cut to fit stays in the future.
fn tick_at(clock: Duration) -> u32 {
    tick_of(clock.as_secs(), 0).clamp(EXPIRED + 1, EXPIRY_MAX - 1)
}

/// The tick of this second. `round`: 0, or what rounds a coarse tick up.
#[inline]
fn tick_of(seconds: u64, round: u64) -> u32 {
    let fine = u64::from(FINE_TICKS);
    let tick = if seconds < fine {
        seconds
    } else {
        fine + (seconds - fine).saturating_add(round) / COARSE_S
    };
    u32::try_from(tick.min(u64::from(EXPIRY_MAX))).unwrap_or(EXPIRY_MAX)
}

/// The second at which this tick begins, on the region's clock.
#[inline(always)]
pub fn seconds_of(tick: u32) -> u64 {
    let coarse = tick.saturating_sub(FINE_TICKS);
    if coarse == 0 {
        u64::from(tick)
    } else {
        u64::from(FINE_TICKS) + u64::from(coarse) * COARSE_S
    }
}

/// The expiry at this second of the region's clock. A coarse tick is rounded up; a time that does not fit is cut.
#[inline]
pub(crate) fn expiry_at(seconds: i64) -> u32 {
    u64::try_from(seconds).map_or(EXPIRED, |seconds| tick_of(seconds, COARSE_S - 1).max(EXPIRED))
}

/// Seconds from one tick to a later one; 0 if that is not later.
#[inline(always)]
pub(crate) fn seconds_left(expiry: u32, now: u32) -> u32 {
    if expiry <= FINE_TICKS {
        expiry.saturating_sub(now)
    } else {
        coarse_left(expiry, now)
    }
}

#[cold]
fn coarse_left(expiry: u32, now: u32) -> u32 {
    u32::try_from(seconds_of(expiry).saturating_sub(seconds_of(now))).unwrap_or(u32::MAX)
}

#[inline(always)]
pub(crate) fn ttl(expiry: u32, now: u32) -> Option<u32> {
    (expiry != 0).then(|| seconds_left(expiry, now))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_seconds_at_first_and_last_for_eighty_years() {
        const YEAR_S: u64 = 31_557_600;
        for s in [START_S, YEAR_S, 12 * YEAR_S] {
            assert_eq!(seconds_of(tick_of(s, 0)), s);
            assert_eq!(expiry_at(signed(s + 5)), tick_of(s, 0) + 5);
        }
        for years in [13, 18, 40, 80] {
            let s = years * YEAR_S;
            let now = tick_at(Duration::from_secs(s));
            assert!(seconds_of(now) <= s && seconds_of(now) + COARSE_S > s, "{years} years");
            for ttl in [1, 5, 60, 3600] {
                let expiry = expiry_at(signed(seconds_of(now) + ttl));
                assert!(expiry > now, "{years} years: not expired at once");
                let left = u64::from(seconds_left(expiry, now));
                assert!((ttl..ttl + COARSE_S).contains(&left), "{years} years, {ttl} s: {left} s");
                let over = tick_at(Duration::from_secs(s + ttl + 2 * COARSE_S));
                assert!(expiry <= over, "{years} years: it does expire");
            }
        }
        // After its end the clock stands still, and what is stored then stays.
        let end = tick_at(Duration::from_secs(200 * YEAR_S));
        assert!(end < EXPIRY_MAX && expiry_at(signed(200 * YEAR_S)) == EXPIRY_MAX);
    }

    #[test]
    fn ticks_rise_with_the_clock() {
        let from = u64::from(FINE_TICKS) - 40;
        let ticks: Vec<u32> = (from..from + 200).map(|s| tick_of(s, 0)).collect();
        assert!(ticks.is_sorted(), "{ticks:?}");
        for (s, tick) in (from..).zip(&ticks) {
            assert!(seconds_of(*tick) <= s && expiry_at(signed(s)) >= *tick);
        }
        assert_eq!(seconds_left(FINE_TICKS + 2, FINE_TICKS - 10), 42);
        assert_eq!((expiry_at(-7), expiry_at(0), seconds_left(5, 9)), (EXPIRED, EXPIRED, 0));
    }
}
