//! What is stored: values that say whose they are, which version they are, and whether they are whole.
//!
//! A text is `sum, version, length, length of the key, key, payload`; the sum covers all the rest, so that a value put together of
//! two is told from a whole one, and the key inside tells another key's value from a torn one. A number is its own version.

/// Bytes before the key.
const HEAD: usize = 8 + 8 + 4 + 1;

/// What a value turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// this key's, whole, of this version
    Whole(u64),
    /// whole, and another key's
    OtherKey,
    /// put together, cut, or no value at all
    Torn,
}

/// The text of a key's version, with `payload` bytes that depend on both.
pub fn text(key: &[u8], version: u64, payload: usize, out: &mut Vec<u8>) {
    out.clear();
    out.extend_from_slice(&[0; 8]);
    out.extend_from_slice(&version.to_le_bytes());
    let len = u32::try_from(HEAD + key.len() + payload).unwrap_or(u32::MAX);
    out.extend_from_slice(&len.to_le_bytes());
    out.push(u8::try_from(key.len()).unwrap_or(u8::MAX));
    out.extend_from_slice(key);
    let mut state = sum(key) ^ version;
    let end = out.len() + payload;
    while out.len() < end {
        state = mix(state, 1);
        let word = state.to_le_bytes();
        let take = word.len().min(end - out.len());
        out.extend_from_slice(word.get(..take).unwrap_or(&word));
    }
    let total = out.get(8..).map_or(0, sum);
    if let Some(first) = out.first_chunk_mut::<8>() {
        *first = total.to_le_bytes();
    }
}

/// Judges a text that a get of `key` gave.
pub fn judge_text(key: &[u8], value: &[u8]) -> Found {
    let parts = || {
        let (total, rest) = value.split_first_chunk::<8>()?;
        let (version, after) = rest.split_first_chunk::<8>()?;
        let (len, after) = after.split_first_chunk::<4>()?;
        let (key_len, after) = after.split_first()?;
        let stored = after.get(..usize::from(*key_len))?;
        let whole = u64::from_le_bytes(*total) == sum(rest)
            && usize::try_from(u32::from_le_bytes(*len)).is_ok_and(|len| len == value.len());
        Some((whole, u64::from_le_bytes(*version), stored))
    };
    match parts() {
        Some((true, version, stored)) if stored == key => Found::Whole(version),
        Some((true, ..)) => Found::OtherKey,
        _ => Found::Torn,
    }
}

/// Judges a number: every number of digits is whole, and its version is what it says.
pub fn judge_number(value: &[u8]) -> Found {
    let text = std::str::from_utf8(value).unwrap_or_default();
    text.trim_end().parse().map_or(Found::Torn, Found::Whole)
}

fn mix(state: u64, word: u64) -> u64 {
    let mixed = (state ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ (mixed >> 29)
}

fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let state = words
        .iter()
        .fold(bytes.len() as u64 + 1, |s, w| mix(s, u64::from_le_bytes(*w)));
    rest.iter().fold(state, |s, b| mix(s, u64::from(*b)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_tells_its_key_its_version_and_every_turned_bit() {
        let (mut one, mut other) = (Vec::new(), Vec::new());
        text(b"t1.2", 7, 300, &mut one);
        assert_eq!(judge_text(b"t1.2", &one), Found::Whole(7));
        assert_eq!(judge_text(b"t1.3", &one), Found::OtherKey);
        text(b"t1.2", 8, 300, &mut other);
        let half: Vec<u8> = one.iter().take(150).chain(other.iter().skip(150)).copied().collect();
        assert_eq!(judge_text(b"t1.2", &half), Found::Torn);
        for bit in 0..one.len() * 8 {
            let mut turned = one.clone();
            turned[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(judge_text(b"t1.2", &turned), Found::Torn, "bit {bit}");
        }
        for len in 0..one.len() {
            assert_eq!(judge_text(b"t1.2", &one[..len]), Found::Torn, "cut to {len}");
        }
    }

    #[test]
    fn a_number_is_digits() {
        assert_eq!(judge_number(b"12"), Found::Whole(12));
        assert_eq!(judge_number(b"12x"), Found::Torn);
        assert_eq!(judge_number(b""), Found::Torn);
    }
}
