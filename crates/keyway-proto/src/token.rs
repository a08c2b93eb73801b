//! Splits lines into tokens and parses numbers: the lexer that every command uses.
//!
//! Nothing here allocates, and errors are only `None`; the caller decides whether a missing or wrong token is an error.

/// The index of the first `byte` in `haystack`.
///
/// Eight bytes a step: keys and lines are mostly longer than that, and a byte-wise loop costs about a nanosecond a byte.
pub(crate) fn find_byte(haystack: &[u8], byte: u8) -> Option<usize> {
    const LOW: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x8080_8080_8080_8080;
    let pattern = LOW * u64::from(byte);
    let (words, rest) = haystack.as_chunks::<8>();
    for (at, word) in words.iter().enumerate() {
        let differing = u64::from_le_bytes(*word) ^ pattern;
        // The lowest flagged byte is exact; a borrow can only flag bytes above a true match.
        let matches = differing.wrapping_sub(LOW) & !differing & HIGH;
        if matches != 0 {
            return Some(at * 8 + (matches.trailing_zeros() / 8) as usize);
        }
    }
    rest.iter().position(|&b| b == byte).map(|at| words.len() * 8 + at)
}

/// The space-separated words of `line` (protocol.txt, "Commands").
pub fn tokens(line: &[u8]) -> Tokens<'_> {
    Tokens(line)
}

/// Whether `key` can be a word of the text protocol. Keys that were sent in base64, or stored through the library door, need not be.
pub fn is_plain(key: &[u8]) -> bool {
    !key.iter().any(|byte| byte.is_ascii_control() || *byte == b' ')
}

/// Whether `key` would end a word or a line of text. Such keys come in base64, by the binary protocol or through the library door.
pub(crate) fn splits_lines(key: &[u8]) -> bool {
    key.iter().any(|byte| matches!(byte, b' ' | b'\r' | b'\n'))
}

/// Iterator over space-separated words; runs of spaces count as one, as memcached takes them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tokens<'a>(pub(crate) &'a [u8]);

impl<'a> Tokens<'a> {
    /// What has not been read yet, from the start of the next word.
    pub(crate) fn rest(mut self) -> &'a [u8] {
        self.skip_spaces();
        self.0
    }

    fn skip_spaces(&mut self) {
        while let [b' ', rest @ ..] = self.0 {
            self.0 = rest;
        }
    }
}

impl<'a> Iterator for Tokens<'a> {
    type Item = &'a [u8];

    #[inline(always)]
    fn next(&mut self) -> Option<&'a [u8]> {
        self.skip_spaces();
        if self.0.is_empty() {
            return None;
        }
        let end = find_byte(self.0, b' ').unwrap_or(self.0.len());
        let (token, rest) = self.0.split_at_checked(end)?;
        self.0 = rest;
        Some(token)
    }
}

/// Decimal digits and nothing else, up to 2^64 - 1.
pub(crate) fn parse_u64(token: &[u8]) -> Option<u64> {
    if token.is_empty() {
        return None;
    }
    token.iter().try_fold(0u64, |sum, &byte| {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        sum.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

/// Decimal digits and nothing else, up to 2^32 - 1.
pub(crate) fn parse_u32(token: &[u8]) -> Option<u32> {
    u32::try_from(parse_u64(token)?).ok()
}

/// A number in the form of [`parse_i64`] within an `i32`: a delay, or an exptime of any but the classic storage commands.
pub(crate) fn parse_i32(token: &[u8]) -> Option<i32> {
    i32::try_from(parse_i64(token)?).ok()
}

/// Decimal digits with at most one leading minus sign, within an `i64`.
pub(crate) fn parse_i64(token: &[u8]) -> Option<i64> {
    match token {
        [b'-', digits @ ..] => 0i64.checked_sub_unsigned(parse_u64(digits)?),
        digits => i64::try_from(parse_u64(digits)?).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn find_byte_agrees_with_a_plain_loop_at_every_length_and_place() {
        for len in 0..40 {
            for at in 0..=len {
                for filler in [0u8, 1, 9, 11, 0x7f, 0x80, 0x8a, 0xff] {
                    let mut bytes = vec![filler; len];
                    if let Some(slot) = bytes.get_mut(at) {
                        *slot = b'\n';
                    }
                    assert_eq!(find_byte(&bytes, b'\n'), bytes.iter().position(|&b| b == b'\n'), "{bytes:?}");
                }
            }
        }
    }

    #[test]
    fn tokens_skip_runs_of_spaces() {
        let words: Vec<&[u8]> = tokens(b"  a  bb c ").collect();
        assert_eq!(words, [b"a".as_slice(), b"bb", b"c"]);
        assert_eq!(tokens(b"   ").next(), None);
    }

    #[test]
    fn numbers_keep_their_bounds() {
        assert_eq!(parse_u64(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(parse_u64(b"18446744073709551616"), None);
        assert_eq!(parse_u64(b"00000000000000000000000007"), Some(7));
        for wrong in [b"".as_slice(), b"-1", b"+1", b"1a", b" 1", b"/", b":"] {
            assert_eq!(parse_u64(wrong), None);
        }
        assert_eq!(parse_u32(b"4294967295"), Some(u32::MAX));
        assert_eq!(parse_u32(b"4294967296"), None);
        assert_eq!(parse_i64(b"-9223372036854775808"), Some(i64::MIN));
        assert_eq!(parse_i64(b"9223372036854775807"), Some(i64::MAX));
        assert_eq!(parse_i64(b"9223372036854775808"), None);
        assert_eq!(parse_i64(b"-"), None);
        assert_eq!(parse_i32(b"2147483647"), Some(i32::MAX));
        assert_eq!(parse_i32(b"-2147483648"), Some(i32::MIN));
        assert_eq!(parse_i32(b"2147483648"), None);
        assert_eq!(parse_i32(b"-2147483649"), None);
        assert_eq!(parse_i64(b"--1"), None);
    }
}
