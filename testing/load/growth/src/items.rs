//! The items of the trials: number `n` has a key of 8 bytes and, unless a trial wants larger ones, a value of 12.

use keyway_cache::{Session, WriteError};

/// Bytes of a small value.
pub const SMALL: usize = 12;

/// The key of item `n`.
pub fn key(n: u64) -> [u8; 8] {
    n.to_be_bytes()
}

/// Writes the value of item `n`, of `len` bytes, to `value`.
pub fn value(n: u64, len: usize, value: &mut Vec<u8>) {
    value.clear();
    let mixed = n.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    value.extend_from_slice(&mixed.to_le_bytes());
    value.resize(len.max(8), mixed.to_be_bytes()[0]);
}

/// Stores item `n`.
///
/// # Errors
///
/// The store's.
pub fn store(session: &mut Session, n: u64, len: usize, scratch: &mut Vec<u8>) -> Result<(), WriteError> {
    value(n, len, scratch);
    session.set(&key(n), scratch, 0).map(drop)
}

/// Whether item `n` is there with its value. `Err`: with another value.
///
/// # Errors
///
/// It has a value that was never written.
pub fn is_there(session: &mut Session, n: u64, len: usize, scratch: &mut Vec<u8>) -> Result<bool, String> {
    scratch.clear();
    let found = session.get_append(&key(n), scratch).map_err(|error| error.to_string())?;
    if found.is_none() {
        return Ok(false);
    }
    let mut wanted = Vec::new();
    value(n, len, &mut wanted);
    if *scratch == wanted {
        Ok(true)
    } else {
        Err(format!("item {n} has a value that was never written"))
    }
}

/// Asserts that all of these items are there.
///
/// # Errors
///
/// How many are not, and the first.
pub fn all_there(session: &mut Session, items: impl Iterator<Item = u64>, len: usize) -> Result<u64, String> {
    let (mut count, mut missing, mut first, mut scratch) = (0, 0u64, None, Vec::new());
    for n in items {
        count += 1;
        if !is_there(session, n, len, &mut scratch)? {
            missing += 1;
            first.get_or_insert(n);
        }
    }
    match first {
        None => Ok(count),
        Some(first) => Err(format!(
            "{missing} of {count} acknowledged items are gone, the first is item {first}"
        )),
    }
}
