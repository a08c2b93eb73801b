//! Values that tell who wrote them.
//!
//! A value is a row of *pieces*, one a store and one more an append or prepend. A piece is its length and key, its id (writer
//! and sequence number), a checksum of both, and filler that follows from the checksum: every bit is determined by key, id and
//! length, so [`read`] recognises a piece that is torn, cut short, mixed with another, or of another key. Numbers are decimal.
//!
//! What the model keeps of a value is a [`Value`]: a polynomial hash of its pieces' ids, modulo 2^61 - 1, which can be extended
//! on both sides, and their count.

use crate::call::Key;

/// Bytes of the smallest piece.
pub const PIECE_LEN_MIN: usize = 24;
const MODULUS: u64 = (1 << 61) - 1;
/// Any number of about the modulus' size would do.
const BASE: u64 = 0x0B4E_0F1A_9D3C_5A77;

/// What the model knows of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Value {
    /// of its pieces' ids; of a number, the number
    pub hash: u64,
    /// its pieces; 0 says that it is a number
    pub pieces: u32,
}

impl Value {
    /// A value of one piece.
    pub fn piece(id: u64) -> Self {
        Self {
            hash: harness::mix(id) % MODULUS,
            pieces: 1,
        }
    }

    /// A number.
    pub fn number(number: u64) -> Self {
        Self { hash: number, pieces: 0 }
    }

    /// This value with the other one behind it.
    pub fn then(self, other: Self) -> Self {
        Self {
            hash: add(multiply(self.hash, power(other.pieces)), other.hash),
            pieces: self.pieces + other.pieces,
        }
    }
}

/// A piece of `len` bytes (at least [`PIECE_LEN_MIN`]).
pub fn make(key: Key, id: u64, len: usize) -> Vec<u8> {
    let len = len.max(PIECE_LEN_MIN);
    let head = u64::try_from(len).unwrap_or(u64::MAX) << 32 | u64::from(key.0);
    let sum = harness::mix(head ^ harness::mix(id));
    let mut out = Vec::with_capacity(len + 8);
    for word in [head, id, sum] {
        out.extend_from_slice(&word.to_le_bytes());
    }
    let mut at = 0;
    while out.len() < len {
        at += 1;
        out.extend_from_slice(&harness::mix(sum.wrapping_add(at)).to_le_bytes());
    }
    out.truncate(len);
    out
}

/// The value in these bytes, if they are whole pieces of this key, or a number where the key holds one.
pub fn read(key: Key, bytes: &[u8]) -> Option<Value> {
    if key.is_number() {
        let text = std::str::from_utf8(bytes).ok()?;
        return text.trim_end_matches(' ').parse().ok().map(Value::number);
    }
    let mut value: Option<Value> = None;
    let mut rest = bytes;
    while !rest.is_empty() {
        let head = word(rest, 0)?;
        let len = usize::try_from(head >> 32).ok()?;
        let (piece, behind) = rest.split_at_checked(len)?;
        let id = word(piece, 8)?;
        if piece != make(key, id, len) {
            return None;
        }
        let one = Value::piece(id);
        value = Some(value.map_or(one, |v| v.then(one)));
        rest = behind;
    }
    value
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..at + 8)?;
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

fn add(a: u64, b: u64) -> u64 {
    (a + b) % MODULUS
}

fn multiply(a: u64, b: u64) -> u64 {
    u64::try_from(u128::from(a) * u128::from(b) % u128::from(MODULUS)).unwrap_or(0)
}

fn power(exponent: u32) -> u64 {
    (0..exponent).fold(1, |product, _| multiply(product, BASE))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Key = Key(7);

    #[test]
    fn pieces_are_read_back_in_their_order() {
        let (a, b, c) = (make(KEY, 1, 24), make(KEY, 2, 31), make(KEY, 3, 1000));
        let (va, vb, vc) = (Value::piece(1), Value::piece(2), Value::piece(3));
        assert_eq!(
            read(KEY, &[a.clone(), b.clone(), c.clone()].concat()),
            Some(va.then(vb).then(vc))
        );
        assert_eq!(va.then(vb).then(vc), va.then(vb.then(vc)));
        assert_ne!(read(KEY, &[a.clone(), b.clone()].concat()), read(KEY, &[b, a].concat()));
    }

    #[test]
    fn what_is_torn_cut_or_foreign_is_not_read() {
        let (a, b) = (make(KEY, 1, 100), make(KEY, 2, 100));
        assert_eq!(read(KEY, &[&a[..60], &b[60..]].concat()), None, "half of each");
        assert_eq!(read(KEY, &a[..99]), None);
        assert_eq!(read(Key(8), &a), None);
        assert_eq!(read(KEY, b""), None);
        for at in 0..a.len() {
            let mut bad = a.clone();
            bad[at] ^= 1;
            assert_eq!(read(KEY, &bad), None, "byte {at}");
        }
    }

    #[test]
    fn numbers_are_padded_with_blanks_only() {
        let key = Key::number(3);
        assert_eq!(read(key, b"120"), Some(Value::number(120)));
        assert_eq!(read(key, b"99  "), Some(Value::number(99)));
        assert_eq!(read(key, b"9x"), None);
    }
}
