//! Hints: a byte for each slot that says when its item was last accessed.
//!
//! Any value in a hint is harmless. Hints decide what is evicted first and what statistics say, never what is returned.

use crate::atomics::Relaxed;
use crate::directory::Directory;
use crate::index::lookup::Place;
use crate::index::slots::Slots;
use crate::layout::bucket::SLOTS;
use crate::layout::segment::SegmentHeader;
use crate::layout::slot::Slot;
use crate::log::ItemView;
use crate::mapped::Mapped;

/// Hints below this value name the second of the last access, modulo this value. They are made coarse before that wraps.
pub(crate) const HINT_SECONDS: u32 = 64;
/// Seconds in a unit of the coarse hints.
pub(crate) const HINT_UNIT_S: u32 = 16;
/// Units before a coarse hint wraps.
pub(crate) const HINT_UNITS: u32 = 63;
/// Hint: too long ago to be represented.
pub(crate) const HINT_OLD: u8 = 0x7F;
/// A hint of seconds that is this old becomes one of units.
const HINT_FINE_S: u32 = 16;
/// Hints older than this many units become [`HINT_OLD`].
const HINT_AGED: u32 = 32;
/// Seconds in which a sweep looks at all hints, so that none wraps: where there are hints of seconds, and elsewhere. A sweep
/// that is late by its own length does no harm.
const SWEEP_FINE_S: u64 = 32;
const SWEEP_S: u64 = 248;
const _: () = assert!(HINT_SECONDS + HINT_UNITS == HINT_OLD as u32);
const _: () = assert!(HINT_FINE_S as u64 + SWEEP_FINE_S < HINT_SECONDS as u64);
const _: () = assert!((HINT_AGED * HINT_UNIT_S) as u64 + 2 * SWEEP_S <= (HINT_UNITS * HINT_UNIT_S) as u64);

impl Slots {
    /// Marks a hit: in the slot, until its item is fetched and its frequency at the maximum, and the time in the hint. A mark that is lost
    /// does no harm. "Fetched" is in the slot because a set changes it, as it changes the slot: bits that many slots share a cache
    /// line for would move to the other CPU with each set and with the next get.
    #[inline(always)]
    pub(crate) fn bump((mapped, directory): (&Mapped, &Directory), place: Place, word: Slot, now: u32) {
        if word.can_rise() {
            // Relaxed: a read-modify-write continues the release sequence of the publish.
            let _ = mapped
                .word(place.at)
                .compare_exchange(word.0, word.risen().0, Relaxed, Relaxed);
        }
        Self::set_hint((mapped, directory), place, now);
    }

    /// Writes a slot's hint, if it differs.
    #[inline(always)]
    pub(super) fn set_hint((mapped, directory): (&Mapped, &Directory), place: Place, now: u32) {
        if let Some(hint) = directory.hint(place.bucket, place.index) {
            let new = Self::hint_code(mapped, now);
            if hint.load(Relaxed) != new {
                hint.store(new, Relaxed);
            }
        }
    }

    /// The item of a slot that has just replaced `seen` is in use. This is written once in
    /// each period of so many seconds, as memcached does once a minute (ITEM_UPDATE_INTERVAL). An item of a segment that was
    /// opened in the present period was written in this period, and its writer has set the hint; or it was copied, then the hint
    /// is set in the next period.
    #[inline(always)]
    pub(super) fn refresh_hint((mapped, directory): (&Mapped, &Directory), place: Place, header: &SegmentHeader, now: u32) {
        const PERIOD_S: u32 = 64;
        if now ^ header.opened.load(Relaxed) >= PERIOD_S {
            Self::set_hint((mapped, directory), place, now);
        }
    }

    /// The least number of seconds since the item's last access.
    pub(super) fn idle_s(&self, seen: &ItemView, place: Place, now: u32) -> u32 {
        let hint = self
            .directory
            .hint(place.bucket, place.index)
            .map_or(HINT_OLD, |h| h.load(Relaxed));
        let since_opened = now.saturating_sub(self.mapped.header(seen.segment).opened.load(Relaxed));
        match SinceAccess::by(hint, now) {
            SinceAccess::Seconds(seconds) => seconds,
            SinceAccess::Units(units) => (units * HINT_UNIT_S + now % HINT_UNIT_S).saturating_sub(HINT_UNIT_S - 1),
            SinceAccess::Old => since_opened.max(HINT_AGED * HINT_UNIT_S),
        }
    }

    #[inline(always)]
    fn hint_code(mapped: &Mapped, now: u32) -> u8 {
        if mapped.has_fine_hints() {
            (now % HINT_SECONDS).to_le_bytes()[0]
        } else {
            coarse_code(now)
        }
    }

    /// Turns hints that would soon wrap and look recent into coarser ones, and in the end into "old". Each call looks at a share
    /// of them; called once a second, it reaches each hint in time.
    pub(crate) fn age_hints(&self, now: u32) {
        let count = self.directory.table().count;
        let share = count.div_ceil(if self.mapped.has_fine_hints() { SWEEP_FINE_S } else { SWEEP_S });
        let from = self.mapped.superblock().aging.fetch_add(share, Relaxed) % count;
        for bucket in from..(from + share).min(count) {
            for index in 0..SLOTS {
                let Some(hint) = self.directory.hint(bucket, index) else {
                    return;
                };
                let old = hint.load(Relaxed);
                let aged = match SinceAccess::by(old, now) {
                    SinceAccess::Seconds(seconds @ HINT_FINE_S..) => coarse_code(now.saturating_sub(seconds)),
                    SinceAccess::Units(units) if units > HINT_AGED => HINT_OLD,
                    _ => continue,
                };
                let _ = hint.compare_exchange(old, aged, Relaxed, Relaxed);
            }
        }
    }
}

/// What a hint says of the time since the last access.
enum SinceAccess {
    Seconds(u32),
    /// units that have begun since the unit of the access
    Units(u32),
    Old,
}

impl SinceAccess {
    fn by(hint: u8, now: u32) -> Self {
        match u32::from(hint) {
            second @ ..HINT_SECONDS => Self::Seconds(now.wrapping_sub(second) % HINT_SECONDS),
            code if code < HINT_SECONDS + HINT_UNITS => {
                Self::Units((now / HINT_UNIT_S % HINT_UNITS + HINT_UNITS + HINT_SECONDS - code) % HINT_UNITS)
            }
            _ => Self::Old,
        }
    }
}

/// The hint of an access at this time, in units.
fn coarse_code(at: u32) -> u8 {
    (HINT_SECONDS + at / HINT_UNIT_S % HINT_UNITS).to_le_bytes()[0]
}
