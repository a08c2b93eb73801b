//! Base64 for binary keys (protocol.txt, "Meta Get", flag `b`).
//!
//! The decoder is as tolerant as memcached's, because clients of both must reach the same item: bytes outside the alphabet
//! are skipped, and what follows the first padded block is ignored.

use crate::request::{Decoded64, KEY_LEN_MAX};

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// The six bits of a letter. Padding counts as a letter with value 0; `None` for any other byte.
fn sextet(byte: u8) -> Option<u32> {
    Some(match byte {
        b'A'..=b'Z' => u32::from(byte - b'A'),
        b'a'..=b'z' => u32::from(byte - b'a') + 26,
        b'0'..=b'9' => u32::from(byte - b'0') + 52,
        b'+' => 62,
        b'/' => 63,
        b'=' => 0,
        _ => return None,
    })
}

/// The bytes that `sent` encodes; `None` if it is not a whole number of blocks, has too much padding, or is too long for a key.
pub(crate) fn decode(sent: &[u8]) -> Option<Decoded64> {
    let letters = sent.iter().filter(|&&byte| sextet(byte).is_some()).count();
    if letters == 0 || !letters.is_multiple_of(4) {
        return None;
    }
    let mut decoded = Decoded64 {
        bytes: [0; KEY_LEN_MAX],
        len: 0,
    };
    let (mut block, mut in_block, mut padding) = (0u32, 0, 0usize);
    let mut len = 0usize;
    for &byte in sent {
        let Some(bits) = sextet(byte) else { continue };
        padding += usize::from(byte == b'=');
        block = block << 6 | bits;
        in_block += 1;
        if in_block < 4 {
            continue;
        }
        let kept = 3usize.checked_sub(padding).filter(|&kept| kept > 0)?;
        let [_, three @ ..] = block.to_be_bytes();
        decoded.bytes.get_mut(len..len + kept)?.copy_from_slice(three.get(..kept)?);
        len += kept;
        (block, in_block) = (0, 0);
        if padding > 0 {
            break;
        }
    }
    decoded.len = u8::try_from(len).ok()?;
    Some(decoded)
}

/// Appends the base64 of `bytes`, padded, without line breaks.
pub(crate) fn encode(out: &mut Vec<u8>, bytes: &[u8]) {
    for chunk in bytes.chunks(3) {
        let (three, letters) = match *chunk {
            [a, b, c] => ([0, a, b, c], 4),
            [a, b] => ([0, a, b, 0], 3),
            [a] => ([0, a, 0, 0], 2),
            _ => continue,
        };
        let bits = u32::from_be_bytes(three);
        for (place, shift) in [18, 12, 6, 0].into_iter().enumerate() {
            let letter = ALPHABET.get((bits >> shift & 63) as usize).copied();
            out.push(letter.filter(|_| place < letters).unwrap_or(b'='));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(sent: &[u8]) -> Option<Vec<u8>> {
        decode(sent).map(|d| d.bytes.iter().copied().take(usize::from(d.len)).collect())
    }

    #[test]
    fn rfc_4648_vectors_both_ways() {
        for (plain, coded) in [
            (b"f".as_slice(), b"Zg==".as_slice()),
            (b"fo", b"Zm8="),
            (b"foo", b"Zm9v"),
            (b"foob", b"Zm9vYg=="),
            (b"fooba", b"Zm9vYmE="),
            (b"foobar", b"Zm9vYmFy"),
            (b"\xff\xfe\x00", b"//4A"),
        ] {
            assert_eq!(decoded(coded).as_deref(), Some(plain));
            let mut out = Vec::new();
            encode(&mut out, plain);
            assert_eq!(out, coded);
        }
    }

    #[test]
    fn what_memcached_refuses_is_refused_and_what_it_skips_is_skipped() {
        for wrong in [b"".as_slice(), b"A", b"AAA", b"AAAAA", b"A===", b"====", b"****"] {
            assert_eq!(decoded(wrong), None, "{wrong:?}");
        }
        assert_eq!(decoded(b"Zm*9v").as_deref(), Some(b"foo".as_slice()));
        assert_eq!(decoded(b"Zg==Zm9v").as_deref(), Some(b"f".as_slice()));
    }

    #[test]
    fn a_key_of_250_base64_letters_fits_and_longer_output_is_refused() {
        assert_eq!(decoded(&[b'A'; 248]).map(|d| d.len()), Some(186));
        assert_eq!(decoded(&[b'A'; 400]), None);
    }
}
