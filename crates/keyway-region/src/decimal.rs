//! Numbers as values say them: in decimal, maybe with blanks. Short ones, which most are, are read and written eight characters at a
//! time.

/// Longest text that [`text`] makes, bytes: the digits of 2^64, and some blanks.
pub(crate) const LEN_MAX: usize = 24;

/// Most characters that are handled together.
pub(crate) const SHORT_MAX: usize = 8;
/// The first number that has more.
const SHORT_END: u64 = 100_000_000;

const ZEROS: u64 = 0x3030_3030_3030_3030;
const BLANKS: u64 = 0x2020_2020_2020_2020;

/// The number that the last `len` characters of these eight say, the first of them in the lowest byte, if all are decimal digits.
#[inline(always)]
pub(crate) fn read_short(word: u64, len: usize) -> Option<u64> {
    const HIGH: u64 = 0xF0F0_F0F0_F0F0_F0F0;
    let others = 64 - 8 * len;
    // What stands before them is made zeros; a shift by all 64 bits does not come up.
    let text = word >> others << others | (ZEROS & ((1 << others) - 1));
    if text & HIGH != ZEROS || text.wrapping_add(0x0606_0606_0606_0606) & HIGH != ZEROS {
        return None;
    }
    // Digits make pairs, pairs fours, fours all of it.
    let pairs = (text - ZEROS).wrapping_mul(10 << 8 | 1) >> 8 & 0x00FF_00FF_00FF_00FF;
    let fours = pairs.wrapping_mul(100 << 16 | 1) >> 16 & 0x0000_FFFF_0000_FFFF;
    Some(fours.wrapping_mul(10_000 << 32 | 1) >> 32)
}

/// The same of nine to sixteen characters: these eight, of which some may be none of them, and the last eight.
pub(crate) fn read_long(first: u64, last: u64, len: usize) -> Option<u64> {
    Some(read_short(first, len - SHORT_MAX)? * SHORT_END + read_short(last, SHORT_MAX)?)
}

/// The same as [`read_short`], with blanks behind the digits.
pub(crate) fn read_padded(word: u64, len: usize) -> Option<u64> {
    let blanks = (word ^ BLANKS).leading_zeros() as usize / 8;
    if blanks == 0 || blanks >= len {
        return None;
    }
    read_short(word << (8 * blanks), len - blanks)
}

/// The number with blanks behind it, `width` characters or as many as it takes, the first of them in the lowest byte; and how many
/// they are. `None`: they are more than eight.
#[inline(always)]
pub(crate) fn short(number: u64, width: usize) -> Option<(u64, usize)> {
    if number >= SHORT_END || width > SHORT_MAX {
        return None;
    }
    // All of it makes fours, fours pairs, pairs digits. The higher half comes first; each quotient is exact for what it divides.
    let fours = (number / 10_000) | ((number % 10_000) << 32);
    let hundreds = fours.wrapping_mul(5_243) >> 19 & 0x0000_007F_0000_007F;
    let pairs = hundreds | (fours - hundreds * 100) << 16;
    let tens = pairs.wrapping_mul(103) >> 10 & 0x000F_000F_000F_000F;
    let digits = tens | (pairs - tens * 10) << 8;
    // Without its zeros, but for the last one.
    let zeros = ((digits | 1 << 63).trailing_zeros() / 8) as usize;
    let len = SHORT_MAX - zeros;
    let text = (digits | ZEROS) >> (8 * zeros);
    let blanks = if zeros == 0 { 0 } else { BLANKS << (8 * len) };
    Some((text | blanks, len.max(width)))
}

/// The same of any number, `width` being at most [`LEN_MAX`].
pub(crate) fn text(number: u64, width: usize) -> ([u8; LEN_MAX], usize) {
    let mut digits = itoa::Buffer::new();
    let digits = digits.format(number).as_bytes();
    let mut text = [b' '; LEN_MAX];
    for (to, from) in text.iter_mut().zip(digits) {
        *to = *from;
    }
    (text, digits.len().max(width))
}

/// A decimal number below 2^64, as memcached reads one: blanks before it and behind it do not count.
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

/// So many digits are always below 2^64.
const DIGITS_SAFE: usize = 19;

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
                assert_eq!(read_short(u64::from_le_bytes(bytes), len as usize), Some(number), "{text}");
                for (at, wrong) in (8 - len as usize..8).flat_map(|at| (0..=255).map(move |wrong: u8| (at, wrong))) {
                    let mut bytes = bytes;
                    bytes[at] = wrong;
                    let is_number = read_short(u64::from_le_bytes(bytes), len as usize).is_some();
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
            assert_eq!(read_padded(eight(&word), text.len()), number, "{text:?}");
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
                let eight = short(number, width).map(|(text, len)| text.to_le_bytes()[..len].to_vec());
                assert_eq!(eight, (wanted.len() <= 8).then(|| wanted.into_bytes()), "{number} in {width}");
            }
        }
    }
}
