//! One slot of the index: 8 bytes that say where a key's item is. See `docs/region.md`.
//!
//! ```text
//! 63 T tentative | 62 F frozen | 61 D dirty | 60..59 frequency | 58..47 tag | 46 fetched | 45..37 generation | 36..17 segment | 16..0 offset/4
//! ```
//!
//! In a frozen word D, T and the two frequency bits hold the mark of the split's round. T with D, not frozen, means that the item
//! named was removed; the slot becomes empty once that is persistent. This file knows bits only.

use super::item::ALIGNMENT;
use super::segment::SIZE_MAX;
use crate::memory::Line;

/// Bits of a tag.
pub const TAG_BITS: u32 = 12;
/// Bits of a generation that a slot carries.
pub const GENERATION_BITS: u32 = 9;
/// How many of them are used. With the feature `small` only one, as in the model: generations wrap as soon as a segment was
/// recycled twice.
const GENERATION_BITS_USED: u32 = if cfg!(feature = "small") { 1 } else { GENERATION_BITS };
/// Bits of a segment number.
pub const SEGMENT_BITS: u32 = 20;
/// Bits of an item's place in its segment, in units of [`ALIGNMENT`].
pub const OFFSET_BITS: u32 = 17;

const TENTATIVE: u64 = 1 << 63;
const FROZEN: u64 = 1 << 62;
const DIRTY: u64 = 1 << 61;
const FREQUENCY_SHIFT: u32 = 59;
const FREQUENCY: u64 = 3 << FREQUENCY_SHIFT;
const TAG_SHIFT: u32 = 47;
const FETCHED: u64 = 1 << 46;
const GENERATION_SHIFT: u32 = 37;
const SEGMENT_SHIFT: u32 = 17;
const MARK: u64 = DIRTY | TENTATIVE | FREQUENCY;

/// D alone: the bit that a change adds to a word until it is persistent.
pub const DIRTY_BIT: u64 = DIRTY;

const _: () = assert!(
    TAG_SHIFT + TAG_BITS == FREQUENCY_SHIFT
        && 1 << (GENERATION_SHIFT + GENERATION_BITS) == FETCHED
        && FETCHED << 1 == 1 << TAG_SHIFT
);
const _: () = assert!(SIZE_MAX == ALIGNMENT << OFFSET_BITS);
const _: () = assert!(SEGMENT_SHIFT + SEGMENT_BITS == GENERATION_SHIFT && OFFSET_BITS == SEGMENT_SHIFT);

/// Largest number of segments that slots can name.
pub const SEGMENTS_MAX: usize = 1 << SEGMENT_BITS;
/// Rounds of doubling in a region's life: each has a mark of its own, of four bits.
pub const ROUNDS_MAX: u32 = 14;
/// Highest frequency.
pub const FREQUENCY_MAX: u64 = 3;

const fn mask(bits: u32) -> u64 {
    (1 << bits) - 1
}

/// A slot's value.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Slot(pub u64);

impl core::fmt::Debug for Slot {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match *self {
            Self::UNSET => f.write_str("unset"),
            s if s.is_frozen() && s.payload_is_empty() => write!(f, "frozen({}) empty", s.mark()),
            s if s.payload_is_empty() => f.write_str("empty"),
            s => {
                let kind = if s.is_frozen() {
                    "frozen"
                } else if s.is_tentative() && s.is_dirty() {
                    "removed"
                } else if s.is_tentative() {
                    "tentative"
                } else if s.is_dirty() {
                    "dirty"
                } else {
                    "confirmed"
                };
                write!(
                    f,
                    "{kind} {}@{:#x} g{} t{:#05x}",
                    s.segment(),
                    s.offset(),
                    s.generation(),
                    s.tag()
                )
            }
        }
    }
}

impl Slot {
    /// A slot of a new bucket that no split has filled yet: all zeros, as fresh memory is.
    pub const UNSET: Self = Self(0);
    /// Free: an offset that no item can have, because an item takes more than the last 4 bytes of a segment.
    pub const EMPTY: Self = Self(mask(OFFSET_BITS));

    /// A confirmed word for an item.
    #[inline]
    pub const fn confirmed(tag: u64, generation: u64, segment: usize, offset: usize) -> Self {
        debug_assert!(segment < SEGMENTS_MAX && offset.is_multiple_of(ALIGNMENT) && offset < SIZE_MAX);
        Self(
            (tag & mask(TAG_BITS)) << TAG_SHIFT
                | (generation & mask(GENERATION_BITS_USED)) << GENERATION_SHIFT
                | (segment as u64) << SEGMENT_SHIFT
                | (offset / ALIGNMENT) as u64,
        )
    }

    /// The tentative form of a confirmed word.
    #[inline]
    pub const fn tentative(self) -> Self {
        Self(self.0 | TENTATIVE)
    }

    /// A word that may not be persistent yet (durable mode): a thread makes it persistent before it acts on it.
    #[inline]
    pub fn is_dirty(self) -> bool {
        self.0 & (DIRTY | FROZEN) == DIRTY
    }

    /// This word, dirty if `other` is.
    #[inline]
    pub fn as_dirty_as(self, other: Self) -> Self {
        Self(self.0 | other.0 & DIRTY)
    }

    /// The word that a removal leaves in an item's slot until it is persistent. It names the item, so that no later removal is
    /// mistaken for this one.
    #[inline]
    pub fn removed(self) -> Self {
        Self(self.0 | TENTATIVE | DIRTY)
    }

    /// What a dirty word becomes when it is persistent.
    #[inline]
    pub fn settled(self) -> Self {
        if self.is_tentative() {
            Self::EMPTY
        } else {
            Self(self.0 & !DIRTY)
        }
    }

    /// A frozen word.
    #[inline]
    pub fn is_frozen(self) -> bool {
        self.0 & FROZEN != 0
    }

    /// Frozen by the split of this round.
    #[inline]
    pub fn is_frozen_by(self, round: u32) -> bool {
        self.is_frozen() && self.mark() == round
    }

    /// An insert that is not confirmed yet, or, when dirty, a removal.
    #[inline]
    pub const fn is_tentative(self) -> bool {
        self.0 & (TENTATIVE | FROZEN) == TENTATIVE
    }

    /// Free, and not frozen.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.0 & !DIRTY == Self::EMPTY.0
    }

    /// Free, frozen or not.
    #[inline]
    pub fn payload_is_empty(self) -> bool {
        self.0 & !(MARK | FROZEN) == Self::EMPTY.0
    }

    /// Names an item that is visible to readers: confirmed, or frozen from a confirmed word.
    #[inline]
    pub fn is_item(self) -> bool {
        !self.is_tentative() && !self.payload_is_empty() && self != Self::UNSET
    }

    /// Names an item that is visible to readers, and has this tag.
    #[inline]
    pub fn is_item_with(self, tag: u64) -> bool {
        self.tag() == tag && self.is_item()
    }

    /// Names an item, has this tag, and nothing special: confirmed, neither frozen nor dirty.
    #[inline(always)]
    pub(crate) fn is_confirmed_with(self, tag: u64) -> bool {
        self.0 & (TENTATIVE | FROZEN | DIRTY | mask(TAG_BITS) << TAG_SHIFT) == tag << TAG_SHIFT
    }

    /// Which of a bucket's words have this tag, as bits.
    #[inline(always)]
    pub(crate) fn with_tag(line: &Line, tag: u64) -> u32 {
        line.matches(mask(TAG_BITS) << TAG_SHIFT, tag << TAG_SHIFT)
    }

    /// Which of two buckets' words have this tag, as bits.
    #[inline(always)]
    pub(crate) fn with_tag_in_pair(pair: &[Line; 2], tag: u64) -> u32 {
        Line::pair_matches_high(pair, mask(TAG_BITS) << TAG_SHIFT, tag << TAG_SHIFT)
    }

    /// Whether any of a bucket's words is frozen.
    #[inline(always)]
    pub(crate) fn any_frozen(line: &Line) -> bool {
        line.has_any(FROZEN)
    }

    /// Which of a bucket's words are empty, as bits.
    #[inline(always)]
    pub(crate) fn empties(line: &Line) -> u32 {
        line.matches(!DIRTY, Self::EMPTY.0)
    }

    /// Which of a bucket's words name the same place as this one, whatever else they say, as bits.
    #[inline(always)]
    pub(crate) fn same_places(self, line: &Line) -> u32 {
        let place = mask(SEGMENT_BITS + OFFSET_BITS);
        line.matches(place, self.0 & place)
    }

    /// A bucket's word by its number.
    #[inline(always)]
    pub(crate) fn of(line: &Line, index: usize) -> Self {
        line.0.get(index).map_or(Self::EMPTY, |word| Self(*word))
    }

    /// The mark of a frozen word: the round of its split, if it is below [`ROUNDS_MAX`].
    #[inline]
    pub fn mark(self) -> u32 {
        u32::from(self.0 & DIRTY != 0) << 3
            | u32::from(self.0 & TENTATIVE != 0) << 2
            | u32::from(self.0 & 2 << FREQUENCY_SHIFT != 0) << 1
            | u32::from(self.0 & 1 << FREQUENCY_SHIFT != 0)
    }

    /// The frozen form of an unfrozen word with this mark: a tentative word freezes to an empty one.
    #[inline]
    pub const fn freeze(self, mark: u32) -> Self {
        let payload = if self.is_tentative() { Self::EMPTY.0 } else { self.0 & !MARK };
        let dirty = if mark & 8 != 0 { DIRTY } else { 0 };
        let tentative = if mark & 4 != 0 { TENTATIVE } else { 0 };
        Self(payload | FROZEN | dirty | tentative | (mark as u64 & 3) << FREQUENCY_SHIFT)
    }

    /// The confirmed word inside a frozen one. The mark has overwritten its frequency; whether it was fetched says if it had any.
    #[inline]
    pub fn thaw(self) -> Self {
        Self(self.0 & !(MARK | FROZEN)).with_frequency(u64::from(self.is_fetched()))
    }

    /// How often the item was hit lately, 0 to 3 (unfrozen words).
    #[inline]
    pub const fn frequency(self) -> u64 {
        (self.0 & FREQUENCY) >> FREQUENCY_SHIFT
    }

    /// Whether the item was fetched since it was written.
    #[inline]
    pub fn is_fetched(self) -> bool {
        self.0 & FETCHED != 0
    }

    /// This word with the mark that its item was fetched.
    #[inline(always)]
    pub const fn fetched(self) -> Self {
        Self(self.0 | FETCHED)
    }

    /// Whether it is not frozen, and a hit changes it.
    #[inline(always)]
    pub(crate) fn can_rise(self) -> bool {
        // F is above the other bits, which are all set in the word of an item that is fetched often.
        self.0 & (FROZEN | FREQUENCY | FETCHED) < FREQUENCY | FETCHED
    }

    /// The word after a hit (unfrozen words).
    #[inline(always)]
    pub(crate) const fn risen(self) -> Self {
        self.with_frequency(self.frequency() + 1).fetched()
    }

    /// This word with this frequency, at most 3 (unfrozen words).
    #[inline]
    pub const fn with_frequency(self, frequency: u64) -> Self {
        let frequency = if frequency < FREQUENCY_MAX { frequency } else { FREQUENCY_MAX };
        Self(self.0 & !FREQUENCY | frequency << FREQUENCY_SHIFT)
    }

    /// The word of a new item that replaces that of another one: of its frequency, and fetched if both are (unfrozen words).
    #[inline(always)]
    pub const fn instead_of(self, other: Self) -> Self {
        Self(self.0 & !FREQUENCY & (other.0 | !FETCHED) | other.0 & FREQUENCY)
    }

    /// The word of a copy of another one's item: of its frequency, and fetched if it is (unfrozen words).
    #[inline]
    pub const fn copy_of(self, other: Self) -> Self {
        Self(self.0 & !(FREQUENCY | FETCHED) | other.0 & (FREQUENCY | FETCHED))
    }

    /// Whether both words are the same. If neither is frozen, the frequency, the mark of a fetched item and the dirty bit may differ.
    #[inline(always)]
    pub fn same_but_frequency(self, other: Self) -> bool {
        self == other || self.differs_in_hints(other)
    }

    #[cold]
    #[inline(never)]
    fn differs_in_hints(self, other: Self) -> bool {
        (self.0 | other.0) & FROZEN == 0 && (self.0 ^ other.0) & !(FREQUENCY | FETCHED | DIRTY) == 0
    }

    /// Twelve bits of the key's hash.
    #[inline]
    pub fn tag(self) -> u64 {
        self.0 >> TAG_SHIFT & mask(TAG_BITS)
    }

    /// The low bits of the segment's generation.
    #[inline]
    pub fn generation(self) -> u64 {
        self.0 >> GENERATION_SHIFT & mask(GENERATION_BITS_USED)
    }

    /// Whether the word may mean a segment of this generation.
    #[inline]
    pub fn is_of_generation(self, generation: u64) -> bool {
        self.generation() == generation & mask(GENERATION_BITS_USED)
    }

    /// The segment.
    #[inline]
    pub fn segment(self) -> usize {
        (self.0 >> SEGMENT_SHIFT & mask(SEGMENT_BITS)) as usize
    }

    /// The item's place in its segment, bytes.
    #[inline]
    pub fn offset(self) -> usize {
        super::index(self.0 & mask(OFFSET_BITS)) * ALIGNMENT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_come_back() {
        let w = Slot::confirmed(0xABC, 0x12345, 0xFEDCB, 0x7_FFF8);
        assert_eq!(
            (w.tag(), w.generation(), w.segment(), w.offset()),
            (0xABC, 0x145, 0xFEDCB, 0x7_FFF8)
        );
        assert!(w.is_item() && !w.is_frozen() && !w.is_empty() && !w.is_tentative());
        let t = w.tentative();
        assert!(t.is_tentative() && !t.is_item());
    }

    #[test]
    fn a_hit_marks_a_word_until_it_says_all_that_it_can() {
        let mut word = Slot::confirmed(0x123, 9, 77, 4096);
        for frequency in [1, 2, 3] {
            assert!(word.can_rise() && !word.freeze(0).can_rise());
            word = word.risen();
            assert!(
                word.is_fetched()
                    && word.frequency() == frequency
                    && word.same_but_frequency(Slot::confirmed(0x123, 9, 77, 4096))
            );
        }
        assert!(!word.can_rise());
        let new = Slot::confirmed(0x123, 10, 78, 8192);
        assert!(!new.instead_of(word).is_fetched() && new.instead_of(word).can_rise() && new.instead_of(word).frequency() == 3);
        assert!(new.fetched().instead_of(word) == new.copy_of(word) && new.copy_of(word).is_fetched());
        assert!(new.fetched().instead_of(new) == new && new.fetched().copy_of(new) == new);
        assert!(word.freeze(5).is_fetched() && word.freeze(5).thaw().is_fetched());
        assert!(word.freeze(9).thaw() == word.with_frequency(1) && new.freeze(9).thaw() == new);
    }

    #[test]
    fn a_frozen_word_keeps_the_item_and_carries_every_mark() {
        let w = Slot::confirmed(0x123, 9, 77, 4096).with_frequency(3);
        for round in 0..ROUNDS_MAX {
            let f = w.freeze(round);
            assert!(f.is_frozen() && f.is_item() && !f.is_tentative() && f.mark() == round);
            assert!(f.thaw().same_but_frequency(w));
            for gone in [Slot::EMPTY, w.tentative()] {
                let f = gone.freeze(round);
                assert!(f.is_frozen() && f.payload_is_empty() && !f.is_empty() && !f.is_item() && f.mark() == round);
            }
        }
    }

    #[test]
    fn a_dirty_word_settles_to_what_it_says() {
        let w = Slot::confirmed(0x123, 9, 77, 4096).with_frequency(2);
        let d = Slot(w.0 | DIRTY_BIT);
        assert!(d.is_dirty() && d.is_item() && d.same_but_frequency(w) && d.settled() == w && d.tag() == w.tag());
        let r = w.removed();
        assert!(r.is_dirty() && !r.is_item() && !r.is_empty() && r.settled() == Slot::EMPTY && r.tag() == w.tag());
        assert!(!w.is_dirty() && !w.tentative().is_dirty() && w.freeze(5).settled() == w.freeze(5));
    }

    #[test]
    fn empty_and_unset_are_no_items() {
        for w in [Slot::EMPTY, Slot::UNSET] {
            assert!(!w.is_item() && !w.is_tentative() && !w.is_frozen());
        }
        assert!(Slot::EMPTY.is_empty() && !Slot::UNSET.is_empty());
    }
}
