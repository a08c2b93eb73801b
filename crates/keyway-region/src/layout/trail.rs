//! The trail: a ring of what operations on a sample of the keys did, for a process that estimates miss ratios.
//!
//! ```text
//! a line with the number of entries ever taken, then the entries
//! entry: lap (16) key (48) | lap (16) what (2) size (30) time left (16)
//! ```
//!
//! [`crate::trail`] says when entries are written, and what the words promise.

use crate::atomics::AtomicU64;
use crate::memory::Shared;

/// Fewest and most entries: with the most, the ring takes 128 KiB.
const ENTRIES: (usize, usize) = (512, 8192);
/// Entries for each bucket of the first index, which has a bucket for each 64 KiB.
const ENTRIES_PER_BUCKET: usize = 16;
/// Highest exponent of a share: one key in 2^20.
pub const SHIFT_MAX: u32 = 20;
/// Bits of a key in its entry.
pub const KEY_BITS: u32 = 48;
/// Odd, with well-mixed bits, for a product of its own: the bits of a hash that choose buckets, tags, ghosts and counters are not those
/// that choose the sample.
pub const SPREAD: u64 = 0xA24B_AED4_963E_E407;

/// How many entries were ever taken. It is alone in its line.
#[repr(C, align(64))]
pub struct TrailHead {
    /// the number of the next entry
    pub next: AtomicU64,
    pad: [AtomicU64; 7],
}

/// An entry.
#[repr(C)]
pub struct TrailEntry {
    /// lap and key
    pub key: AtomicU64,
    /// lap, and what became of the key
    pub what: AtomicU64,
}

super::fields!(TrailHead { next, pad });
super::fields!(TrailEntry { key, what });
// SAFETY: `repr(C)`, nothing but atomics.
#[allow(unsafe_code, reason = "the type is nothing but atomics")]
unsafe impl Shared for TrailHead {}
// SAFETY: `repr(C)`, nothing but atomics.
#[allow(unsafe_code, reason = "the type is nothing but atomics")]
unsafe impl Shared for TrailEntry {}

/// Entries in a region with this many buckets in its first index: a power of two.
pub const fn entries(buckets_initial: usize) -> usize {
    super::within(buckets_initial.saturating_mul(ENTRIES_PER_BUCKET), ENTRIES)
}

/// Whether the trail is kept, and of which keys: 63..56 shift: one key in 2^shift | 55..0 the second of the region's clock until which it
/// is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrailWord(pub u64);

impl TrailWord {
    const UNTIL_BITS: u32 = 56;

    /// A word of these parts.
    pub const fn new(shift: u32, until_s: u64) -> Self {
        Self((shift as u64) << Self::UNTIL_BITS | until_s & ((1 << Self::UNTIL_BITS) - 1))
    }

    /// One key in two to this power is on the trail.
    pub const fn shift(self) -> u32 {
        let shift = (self.0 >> Self::UNTIL_BITS) as u32;
        if shift < SHIFT_MAX { shift } else { SHIFT_MAX }
    }

    /// A second of the region's clock.
    pub const fn until_s(self) -> u64 {
        self.0 & ((1 << Self::UNTIL_BITS) - 1)
    }
}

/// What an operation did to its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// a get found an item
    Hit(Footprint),
    /// a get found nothing
    Missed,
    /// a change has left an item
    Stored(Footprint),
    /// a change has left nothing
    Gone,
}

/// What an item takes, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// bytes in the region
    pub size: u32,
    /// seconds left, rounded down by less than a thousandth; `None`: it never expires
    pub ttl_s: Option<u32>,
}

const SIZE_BITS: u32 = 30;
const TIME_BITS: u32 = 16;
const EXPONENT_BITS: u32 = 5;
const MANTISSA_BITS: u32 = TIME_BITS - EXPONENT_BITS;

impl Fate {
    /// As the low 48 bits of an entry's word.
    pub fn bits(self) -> u64 {
        let (kind, footprint) = match self {
            Self::Missed => (0, None),
            Self::Gone => (1, None),
            Self::Hit(footprint) => (2, Some(footprint)),
            Self::Stored(footprint) => (3, Some(footprint)),
        };
        let footprint = footprint.map_or(0, |footprint| {
            let size = u64::from(footprint.size).min((1 << SIZE_BITS) - 1);
            size << TIME_BITS | time_bits(footprint.ttl_s)
        });
        kind << (SIZE_BITS + TIME_BITS) | footprint
    }

    /// From an entry's word, whatever is in it.
    pub fn of(word: u64) -> Self {
        let footprint = Footprint {
            size: low(word >> TIME_BITS, SIZE_BITS),
            ttl_s: time_of(low(word, TIME_BITS)),
        };
        match word >> (SIZE_BITS + TIME_BITS) & 3 {
            0 => Self::Missed,
            1 => Self::Gone,
            2 => Self::Hit(footprint),
            _ => Self::Stored(footprint),
        }
    }
}

fn low(word: u64, bits: u32) -> u32 {
    u32::try_from(word & ((1 << bits) - 1)).unwrap_or(0)
}

/// Seconds plus 1 as a number with an exponent, rounded down; 0: for ever.
fn time_bits(ttl_s: Option<u32>) -> u64 {
    let Some(ttl_s) = ttl_s else { return 0 };
    let time = u64::from(ttl_s) + 1;
    let exponent = (u64::BITS - time.leading_zeros()).saturating_sub(MANTISSA_BITS);
    u64::from(exponent) << MANTISSA_BITS | time >> exponent
}

fn time_of(bits: u32) -> Option<u32> {
    let (exponent, mantissa) = (bits >> MANTISSA_BITS, u64::from(bits & ((1 << MANTISSA_BITS) - 1)));
    let time = mantissa << exponent;
    (time > 0).then(|| u32::try_from(time - 1).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fate_is_read_as_it_was_written() {
        let times = [
            None,
            Some(0),
            Some(1),
            Some(2046),
            Some(100_000),
            Some(2_592_000),
            Some(u32::MAX),
        ];
        for ttl_s in times {
            for size in [0, 40, (1 << 30) - 1] {
                let footprint = Footprint { size, ttl_s };
                for fate in [Fate::Hit(footprint), Fate::Stored(footprint), Fate::Missed, Fate::Gone] {
                    let bits = fate.bits();
                    assert!(bits < 1 << KEY_BITS);
                    let (Fate::Hit(read) | Fate::Stored(read)) = Fate::of(bits | 0xBAD0 << KEY_BITS) else {
                        assert_eq!(Fate::of(bits), fate);
                        continue;
                    };
                    assert_eq!(
                        (matches!(fate, Fate::Hit(_)), read.size),
                        (matches!(Fate::of(bits), Fate::Hit(_)), size)
                    );
                    let (read, time) = (read.ttl_s.map(f64::from), ttl_s.map(f64::from));
                    assert_eq!(read.is_some(), time.is_some());
                    let (read, time) = (read.unwrap_or(0.0), time.unwrap_or(0.0));
                    assert!(read <= time && read >= time - (time + 1.0) / 1024.0, "{time}: {read}");
                }
            }
        }
        let word = TrailWord::new(7, 1 << 40);
        assert_eq!((word.shift(), word.until_s()), (7, 1 << 40));
        assert_eq!(TrailWord(u64::MAX).shift(), SHIFT_MAX, "any bytes");
    }
}
