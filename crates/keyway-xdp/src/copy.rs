//! A hot copy: an item in the form that the program sends, with the layout of `intf.h`.
//!
//! ```text
//! word  63            48 47    40 39    32 31                                0
//!  0    | expires_s, region's; 0: never    | seq: odd while it is written     |
//!  1    | the stripe's word when the value was read                           |
//!  2    | the flush word, likewise                                            |
//!  3    | flags_len | key_len | value_len  | referenced: the program's mark   |
//!  4    | flush_s: 0: no flush is scheduled     | unused    | cas_len | size_len |
//!  5-7  | " <cas unique>"                                                     |
//!  8-   | "VALUE <key> <flags> <bytes>\r\n<value>\r\n"                        |
//! ```

use std::io::Write;

/// Words of a copy's header.
const HEADER_WORDS: usize = 8;
/// Longest copy, bytes (`KW_COPY_MAX`).
pub const COPY_LEN_MAX: usize = 2048;
/// Longest key, bytes (protocol.txt, "Keys").
const KEY_LEN_MAX: usize = 250;
/// Most bytes for the line of a copy, so that `END` still fits into the datagram (`KW_PAYLOAD_MAX`).
const LINE_LEN_MAX: usize = 1392 - b"END\r\n".len();

/// Most bytes for the numbers and fixed parts of a line.
const LINE_NUMBERS_LEN_MAX: usize = 64;

/// An item as the server has read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item<'a> {
    /// as stored: 1 to 250 bytes, all of which the text protocol allows in a key
    pub key: &'a [u8],
    /// client flags
    pub flags: u32,
    /// CAS unique, as clients see it
    pub cas: u64,
    /// the value
    pub value: &'a [u8],
    /// second of the region's clock at which it is expired, which `mg` shows as its TTL; 0: never
    pub expires_s: u32,
    /// second of the region's clock at which a delayed `flush_all` begins; 0: none is scheduled
    pub flush_s: u32,
}

/// The words that show whether a copy is still current, as they were before the item was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChangeCounts {
    /// of the key's stripe
    pub stripe: u64,
    /// of `flush_all`
    pub flush: u64,
}

/// The words of a copy, except its sequence number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HotCopy(Vec<u64>);

impl HotCopy {
    /// The copy of an item; `None` if the program could not send it: it is too long, or the text protocol does not allow its
    /// key.
    pub fn new(item: &Item<'_>, seen: ChangeCounts) -> Option<Self> {
        let is_plain = |key: &[u8]| key.iter().all(|byte| *byte > b' ');
        if item.key.is_empty() || item.key.len() > KEY_LEN_MAX || !is_plain(item.key) {
            return None;
        }
        let mut line = Vec::with_capacity(item.key.len() + item.value.len() + LINE_NUMBERS_LEN_MAX);
        line.extend_from_slice(b"VALUE ");
        line.extend_from_slice(item.key);
        let flags_len = push_number(&mut line, u64::from(item.flags));
        let size_len = push_number(&mut line, len(item.value.len()));
        line.extend_from_slice(b"\r\n");
        line.extend_from_slice(item.value);
        line.extend_from_slice(b"\r\n");
        if line.len() > LINE_LEN_MAX {
            return None;
        }
        let mut cas = Vec::with_capacity(LINE_NUMBERS_LEN_MAX);
        let cas_len = push_number(&mut cas, item.cas);
        let mut words = Vec::with_capacity(HEADER_WORDS + line.len().div_ceil(8));
        words.extend([
            u64::from(item.expires_s) << 32,
            seen.stripe,
            seen.flush,
            len(item.value.len()) << 32 | len(item.key.len()) << 48 | flags_len << 56,
            size_len | cas_len << 8 | u64::from(item.flush_s) << 32,
        ]);
        words.extend(packed(&cas));
        words.resize(HEADER_WORDS, 0);
        words.extend(packed(&line));
        Some(Self(words))
    }

    pub(crate) fn words(&self) -> &[u64] {
        &self.0
    }

    /// How many words a copy takes if its header has these third and fourth words; `None` if there is no such copy.
    pub(crate) fn words_of(lens: u64, sizes: u64) -> Option<usize> {
        let byte = |word: u64, shift: u32| usize::try_from(word >> shift & 0xFF).unwrap_or(0);
        let value_len = usize::try_from(lens >> 32 & 0xFFFF).unwrap_or(0);
        let (key_len, flags_len, size_len) = (byte(lens, 48), byte(lens, 56), byte(sizes, 0));
        let line_len = b"VALUE ".len() + key_len + flags_len + size_len + value_len + 4;
        (key_len > 0 && line_len <= LINE_LEN_MAX).then_some(HEADER_WORDS + line_len.div_ceil(8))
    }

    /// The copy at the beginning of these words, whatever follows it; `None` if there is none.
    pub(crate) fn from_words(mut words: Vec<u64>) -> Option<Self> {
        let len = Self::words_of(*words.get(3)?, *words.get(4)?)?;
        if words.len() < len {
            return None;
        }
        words.truncate(len);
        // without the sequence number and the mark
        words[0] &= !0xFFFF_FFFF;
        words[3] &= !0xFFFF_FFFF;
        Some(Self(words))
    }

    /// Its key.
    #[cfg(test)]
    fn key(&self) -> Vec<u8> {
        Self::key_of(|number| self.0[number]).unwrap_or_default()
    }

    /// The key of a copy with these words; `None` if there is no such copy.
    pub(crate) fn key_of(word: impl Fn(usize) -> u64) -> Option<Vec<u8>> {
        Self::words_of(word(3), word(4))?;
        let end = b"VALUE ".len() + usize::try_from(word(3) >> 48 & 0xFF).unwrap_or(0);
        let mut key = Vec::with_capacity(end.next_multiple_of(8));
        (0..end.div_ceil(8)).for_each(|number| key.extend_from_slice(&word(HEADER_WORDS + number).to_le_bytes()));
        key.truncate(end);
        key.drain(..b"VALUE ".len());
        Some(key)
    }

    /// The change words with which it was made.
    pub fn seen(&self) -> ChangeCounts {
        ChangeCounts {
            stripe: self.0[1],
            flush: self.0[2],
        }
    }

    /// Its size, bytes.
    pub fn size(&self) -> usize {
        self.0.len() * 8
    }
}

fn len(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(0)
}

/// Appends a space and this number; returns their length in bytes.
fn push_number(text: &mut Vec<u8>, number: u64) -> u64 {
    let start = text.len();
    // Writing to a vector cannot fail.
    let _ = write!(text, " {number}");
    len(text.len() - start)
}

/// Bytes as little-endian words; the last one is padded with 0.
fn packed(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item<'a>(key: &'a [u8], value: &'a [u8]) -> Item<'a> {
        Item {
            key,
            flags: u32::MAX,
            cas: u64::MAX,
            value,
            expires_s: 0,
            flush_s: 0,
        }
    }

    #[test]
    fn a_copy_has_what_an_answer_is_made_of() {
        let seen = ChangeCounts { stripe: 5, flush: 6 };
        let copy = HotCopy::new(&item(b"key", b"value"), seen).unwrap();
        let bytes: Vec<u8> = copy.words().iter().flat_map(|word| word.to_le_bytes()).collect();
        assert_eq!(bytes[40..61], *b" 18446744073709551615");
        assert!(bytes[64..].starts_with(b"VALUE key 4294967295 5\r\nvalue\r\n"));
        assert_eq!((bytes[28], bytes[30], bytes[31], bytes[32], bytes[33]), (5, 3, 11, 2, 21));
        assert_eq!((copy.words()[1], copy.words()[2]), (5, 6));
    }

    #[test]
    fn a_copy_is_read_back_as_it_was_written() {
        let seen = ChangeCounts { stripe: 5, flush: 6 };
        let copy = HotCopy::new(&item(b"key", b"value"), seen).unwrap();
        let mut words = copy.words().to_vec();
        words[0] |= 8;
        words[3] |= 1;
        words.extend([7; 9]);
        let back = HotCopy::from_words(words).unwrap();
        assert_eq!((&back, back.key(), back.seen()), (&copy, b"key".to_vec(), seen));
        assert_eq!(HotCopy::from_words(vec![u64::MAX; 300]), None);
        assert_eq!(HotCopy::from_words(vec![0; 300]), None);
    }

    #[test]
    fn what_the_program_cannot_give_out_is_not_copied() {
        let is_copied = |key: &[u8], value: &[u8]| HotCopy::new(&item(key, value), ChangeCounts::default()).is_some();
        assert!(is_copied(b"k", b"") && is_copied(&[b'k'; 250], b"v") && is_copied(b"\x80\xff", b"v"));
        assert!(!is_copied(b"", b"v") && !is_copied(&[b'k'; 251], b"v") && !is_copied(b"a b", b"v") && !is_copied(b"a\n", b"v"));
        let longest = 1387 - b"VALUE k 4294967295 1300\r\n\r\n".len();
        assert!(is_copied(b"k", &vec![0; longest]) && !is_copied(b"k", &vec![0; longest + 1]));
        let copy = HotCopy::new(&item(b"k", &vec![0; longest]), ChangeCounts::default()).unwrap();
        assert!(copy.size() <= COPY_LEN_MAX);
    }
}
