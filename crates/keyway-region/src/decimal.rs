//! Numbers in values: in decimal, perhaps with blanks. Short ones, which are the most common, are read and written eight
//! characters at a time.

/// Longest text that [`text`] makes, bytes: the digits of 2^64, and some blanks.
pub(crate) const LEN_MAX: usize = 24;

/// Most characters that are processed together.
pub(crate) const SHORT_MAX: usize = 8;
/// The first number with more digits.
const SHORT_END: u64 = 100_000_000;

const ZEROS: u64 = 0x3030_3030_3030_3030;
const BLANKS: u64 = 0x2020_2020_2020_2020;

/// Up to eight decimal digits, one per byte, the first of them in the lowest byte, with zeros before them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Digits(u64);

impl Digits {
    /// The last `len` of these eight characters, the first of them in the lowest byte, if all are decimal digits.
    #[inline(always)]
    pub fn read(word: u64, len: usize) -> Option<Self> {
        const HIGH: u64 = 0x8080_8080_8080_8080;
        let others = 64 - 8 * len;
        // The bytes before them become zeros. A shift by all 64 bits does not occur.
        let digits = (word ^ ZEROS) >> others << others;
        // The high bit of a byte that is no digit is set, or becomes set when this is added. No digit carries to the next byte.
        let marked = digits.wrapping_add(0x7676_7676_7676_7676) | digits;
        (marked & HIGH == 0).then_some(Self(digits))
    }

    /// Reads the last `len` characters as digits that blanks may follow. `None`: there is no blank, no digit, or another
    /// character.
    pub fn read_padded(word: u64, len: usize) -> Option<Self> {
        let blanks = (word ^ BLANKS).leading_zeros() as usize / 8;
        if blanks == 0 || blanks >= len {
            return None;
        }
        Self::read(word << (8 * blanks), len - blanks)
    }

    /// The digits of a number; `None`: it has more than eight.
    #[inline(always)]
    pub fn of(number: u64) -> Option<Self> {
        if number < 10 {
            return Some(Self(number << 56));
        }
        if number >= SHORT_END {
            return None;
        }
        // The number is divided into fours, fours into pairs, pairs into digits. The higher half comes first. Each quotient is
        // exact for the numbers that it is used for.
        let fours = (number / 10_000) | ((number % 10_000) << 32);
        let hundreds = fours.wrapping_mul(5_243) >> 19 & 0x0000_007F_0000_007F;
        let pairs = hundreds | (fours - hundreds * 100) << 16;
        let tens = pairs.wrapping_mul(103) >> 10 & 0x000F_000F_000F_000F;
        Some(Self(tens | (pairs - tens * 10) << 8))
    }

    /// The number.
    #[inline(always)]
    pub fn number(self) -> u64 {
        // Digits are combined to pairs, pairs to fours, fours to the number.
        let pairs = self.0.wrapping_mul(10 << 8 | 1) >> 8 & 0x00FF_00FF_00FF_00FF;
        let fours = pairs.wrapping_mul(100 << 16 | 1) >> 16 & 0x0000_FFFF_0000_FFFF;
        fours.wrapping_mul(10_000 << 32 | 1) >> 32
    }

    /// The digits of the sum; `None`: it has more than eight. Digit by digit this is much faster than through the numbers.
    #[inline(always)]
    pub fn plus(self, other: Self) -> Option<Self> {
        // A sum of ten or more carries to the next byte, as it would to the next digit.
        const TO_CARRY_AT_TEN: u64 = 0xF6F6_F6F6_F6F6_F6F6;
        let (sum, is_more) = self.last_lowest().overflowing_add(other.last_lowest() + TO_CARRY_AT_TEN);
        (!is_more).then(|| Self::carried(sum))
    }

    /// The digits of the difference; `None`: it is below zero.
    #[inline(always)]
    pub fn minus(self, other: Self) -> Option<Self> {
        let (difference, is_less) = self.last_lowest().overflowing_sub(other.last_lowest());
        (!is_less).then(|| Self::carried(difference))
    }

    /// The last digit in the lowest byte, so that a processor's addition carries in the right direction.
    #[inline(always)]
    fn last_lowest(self) -> u64 {
        self.0.swap_bytes()
    }

    /// The digits of these bytes: removes what each byte has in addition to its digit, to cause a carry or because of one.
    #[inline(always)]
    fn carried(bytes: u64) -> Self {
        let sixteens = bytes & 0x1010_1010_1010_1010;
        let digits = (bytes & 0x0F0F_0F0F_0F0F_0F0F) - ((sixteens * 3) >> 3);
        Self(digits.swap_bytes())
    }

    /// The digits, if they are so many: as [`Self::text`] of this width, but simpler.
    #[inline(always)]
    pub fn text_of_len(self, len: usize) -> Option<u64> {
        (self.zeros() + len == SHORT_MAX).then(|| (self.0 | ZEROS) >> (64 - 8 * len))
    }

    /// Zeros before the number, of which the last digit is none.
    #[inline(always)]
    fn zeros(self) -> usize {
        ((self.0 | 1 << 63).trailing_zeros() / 8) as usize
    }

    /// The digits and blanks after them, at most eight characters together: `width` characters, or more if the digits need them;
    /// the first in the lowest byte. Also their count.
    #[inline(always)]
    pub fn text(self, width: usize) -> (u64, usize) {
        let zeros = self.zeros();
        let len = SHORT_MAX - zeros;
        let text = (self.0 | ZEROS) >> (8 * zeros);
        let blanks = if zeros == 0 { 0 } else { BLANKS << (8 * len) };
        (text | blanks, len.max(width))
    }
}

/// The number of nine to sixteen digits: the first eight characters, some of which may not belong to it, and the last eight.
pub(crate) fn read_long(first: u64, last: u64, len: usize) -> Option<u64> {
    let (first, last) = (Digits::read(first, len - SHORT_MAX)?, Digits::read(last, SHORT_MAX)?);
    Some(first.number() * SHORT_END + last.number())
}

/// Any number, with blanks after it: `width` characters, at most [`LEN_MAX`], or more if the digits need them. Also their count.
pub(crate) fn text(number: u64, width: usize) -> ([u8; LEN_MAX], usize) {
    let mut digits = itoa::Buffer::new();
    let digits = digits.format(number).as_bytes();
    let mut text = [b' '; LEN_MAX];
    for (to, from) in text.iter_mut().zip(digits) {
        *to = *from;
    }
    (text, digits.len().max(width))
}

/// A decimal number below 2^64, as memcached reads one: blanks before it and after it do not count.
pub(crate) fn read(bytes: &[u8]) -> Option<u64> {
    let blank = |b: &u8| matches!(b, b' ' | b'\t' | b'\n' | 0x0B | 0x0C | b'\r');
    let from = bytes.iter().position(|b| !blank(b))?;
    let digits = bytes.get(from..)?;
    let digits = digits.strip_prefix(b"+").unwrap_or(digits);
    let mut number = 0u64;
    for (at, byte) in digits.iter().enumerate() {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return (at > 0 && blank(byte)).then_some(number);
        }
        number = if at < DIGITS_SAFE {
            number * 10 + u64::from(digit)
        } else {
            number.checked_mul(10)?.checked_add(u64::from(digit))?
        };
    }
    (!digits.is_empty()).then_some(number)
}

/// This many digits are always below 2^64.
const DIGITS_SAFE: usize = 19;

/// The operand of an increment or decrement.
#[derive(Clone, Copy)]
pub(crate) struct Operand {
    pub delta: u64,
    pub decrement: bool,
}

impl Operand {
    /// The result for a number ("Increment/Decrement").
    #[inline(always)]
    pub fn of(self, number: u64) -> u64 {
        if self.decrement {
            number.saturating_sub(self.delta)
        } else {
            number.wrapping_add(self.delta)
        }
    }

    /// The result for a number that is given by its digits. `None`: the operand or the result has more than eight.
    #[inline(always)]
    pub fn of_digits(self, digits: Digits) -> Option<Digits> {
        let delta = Digits::of(self.delta)?;
        if self.decrement {
            digits.minus(delta)
        } else {
            digits.plus(delta)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        for (text, number) in [
            ("0", Some(0)),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("000000000000000000001", Some(1)),
            ("12 ", Some(12)),
            ("", None),
            (" ", None),
            ("12a", None),
            ("-1", None),
        ] {
            assert_eq!(read(text.as_bytes()), number, "{text:?}");
        }
    }

    #[test]
    fn digits_are_read_eight_at_a_time() {
        for len in 1..=8u32 {
            for number in [0, 1, 9, 10, 42, 999, 12_345_678, 90_000_009, 99_999_999] {
                let number = number % 10u64.pow(len);
                let text = format!("{number:0width$}", width = len as usize);
                let mut bytes = [0xFF; 8];
                bytes[8 - len as usize..].copy_from_slice(text.as_bytes());
                let digits = Digits::read(u64::from_le_bytes(bytes), len as usize);
                assert_eq!(digits.map(Digits::number), Some(number), "{text}");
                for (at, wrong) in (8 - len as usize..8).flat_map(|at| (0..=255).map(move |wrong: u8| (at, wrong))) {
                    let mut bytes = bytes;
                    bytes[at] = wrong;
                    let is_number = Digits::read(u64::from_le_bytes(bytes), len as usize).is_some();
                    assert_eq!(is_number, wrong.is_ascii_digit(), "byte {wrong} at {at}");
                }
            }
        }
    }

    #[test]
    fn longer_ones_and_padded_ones_are_read_as_slowly() {
        let eight = |text: &[u8]| u64::from_le_bytes(text.try_into().unwrap());
        for number in [1u64, 123_456_789, 9_999_999_999, 1_000_000_000_000_000, 9_999_999_999_999_999] {
            for len in 9..=16 {
                let text = format!("{number:?<16}").into_bytes();
                let text = &text[..len];
                let mut all = [0xFF; 16];
                all[16 - len..].copy_from_slice(text);
                let wanted = text.iter().all(u8::is_ascii_digit).then(|| read(text)).flatten();
                assert_eq!(
                    read_long(eight(&all[..8]), eight(&all[8..]), len),
                    wanted,
                    "{len} of {number}"
                );
            }
        }
        for (text, number) in [
            ("7       ", Some(7)),
            ("42 ", Some(42)),
            ("9999999 ", Some(9_999_999)),
            ("   ", None),
            (" 1 ", None),
            ("12", None),
            ("1 2 ", None),
            ("x ", None),
        ] {
            let mut word = [0x39; 8];
            word[8 - text.len()..].copy_from_slice(text.as_bytes());
            let digits = Digits::read_padded(eight(&word), text.len());
            assert_eq!(digits.map(Digits::number), number, "{text:?}");
        }
    }

    #[test]
    fn what_is_written_is_the_number_and_blanks() {
        let around = (0..20).flat_map(|power| (0..3).map(move |more| 10u64.pow(power).wrapping_add(more).wrapping_sub(1)));
        let few = (0..20_000).chain((0..4_000).map(|n| n * 24_989));
        for number in around.chain(few).chain([u64::MAX]) {
            for width in [0, 1, 2, 5, 7, 8, 9, 20, LEN_MAX] {
                let wanted = format!("{number:<width$}");
                let (text, len) = text(number, width);
                assert_eq!(&text[..len], wanted.as_bytes());
                let digits = Digits::of(number);
                assert_eq!(digits.map(Digits::number), (number < SHORT_END).then_some(number));
                if let (Some(digits), 0..=8) = (digits, width) {
                    let (text, len) = digits.text(width);
                    assert_eq!(text.to_le_bytes()[..len], *wanted.as_bytes(), "{number} in {width}");
                    let of_len = digits.text_of_len(width).map(|text| text.to_le_bytes()[..width].to_vec());
                    let fits = number.to_string().len() == width;
                    assert_eq!(of_len, fits.then(|| wanted.into_bytes()), "{number} in {width}");
                }
            }
        }
    }
    #[test]
    fn digits_are_added_and_subtracted_as_numbers_are() {
        let powers = (0..8).flat_map(|power| [10u64.pow(power) - 1, 10u64.pow(power), 10u64.pow(power) + 1]);
        let some = (0..400u64).map(|n| n * 7_919 * (n % 37 + 1) % SHORT_END).chain(powers);
        let some: Vec<u64> = some.chain([SHORT_END - 1, 50_000_000, 49_999_999, 9_090_909]).collect();
        for a in &some {
            for b in &some {
                let of = |number: u64| Digits::of(number).unwrap();
                assert_eq!(of(*a).plus(of(*b)), Digits::of(a + b), "{a} + {b}");
                assert_eq!(of(*a).minus(of(*b)), a.checked_sub(*b).and_then(Digits::of), "{a} - {b}");
            }
        }
    }
}
