//! Keys, by pymemcache's rules: text or bytes. With the client's prefix before it, a key has 1 to 250 bytes, without
//! white space or zero bytes, so that clients over the network can use the same items.

use crate::failure::Failure;
use keyway_cache::KEY_LEN_MAX;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};
use std::borrow::Cow;

/// The options by which keys are made.
pub(crate) struct Keys {
    /// comes before every key
    pub(crate) prefix: Vec<u8>,
    /// text may contain more than ASCII, and is encoded as UTF-8
    pub(crate) unicode: bool,
}

/// A key as the region has it: the object's own bytes if there is no prefix.
pub(crate) type Key<'a> = Cow<'a, [u8]>;

impl Keys {
    /// The key with the prefix before it.
    #[inline]
    pub(crate) fn key<'a>(&self, object: &'a Bound<'_, PyAny>) -> Result<Key<'a>, Failure> {
        if let Ok(text) = object.cast::<PyString>() {
            let text = text.to_str()?;
            if !self.unicode && !text.is_ascii() {
                return Err(illegal("is not ASCII (allow_unicode_keys is off)", object));
            }
            self.whole(text.as_bytes(), object)
        } else if let Ok(bytes) = object.cast::<PyBytes>() {
            self.whole(bytes.as_bytes(), object)
        } else {
            let what = format!("a key is str or bytes, not {}", object.get_type());
            Err(Failure::Illegal(PyTypeError::new_err(what).into()))
        }
    }

    #[inline]
    fn whole<'a>(&self, own: &'a [u8], object: &Bound<'_, PyAny>) -> Result<Key<'a>, Failure> {
        let key = match self.prefix.as_slice() {
            [] => Key::Borrowed(own),
            prefix => Key::Owned([prefix, own].concat()),
        };
        if key.len() > KEY_LEN_MAX {
            return Err(illegal(&format!("has {} bytes, {KEY_LEN_MAX} at most", key.len()), object));
        }
        if key.is_empty() {
            return Err(illegal("is empty", object));
        }
        // Control characters are rare. Only if there is one, find out which.
        if may_be_blank(&key) && key.iter().any(|byte| matches!(byte, 0 | b'\t'..=b'\r' | b' ')) {
            let what = if key.contains(&0) {
                "contains a zero byte"
            } else {
                "contains white space"
            };
            return Err(illegal(what, object));
        }
        Ok(key)
    }
}

/// Django's key for an object: a prefix, and the text that the program gave. `None`: any object but plain text, or a key that
/// Django or this client refuses, or would change.
#[inline]
pub(crate) fn made<'m>(keys: &Keys, place: &'m mut Made, prefix: &[u8], object: &Bound<'_, PyAny>) -> Option<&'m [u8]> {
    let text = object.cast_exact::<PyString>().ok()?.to_str().ok()?.as_bytes();
    let key = place.get_mut(..prefix.len() + text.len())?;
    let (before, behind) = key.split_at_mut_checked(prefix.len())?;
    before.copy_from_slice(prefix);
    behind.copy_from_slice(text);
    (keys.prefix.is_empty() && keys.unicode && is_plain(key)).then_some(key)
}

/// Room for a key that is made of parts.
pub(crate) type Made = [u8; KEY_LEN_MAX];

/// Whether both Django and this client allow the key, and it has no more than 250 bytes. Django allows keys of at most 250
/// characters without those up to the blank, and without DEL (`memcache_key_warnings`).
pub(crate) fn is_plain(key: &[u8]) -> bool {
    (1..=KEY_LEN_MAX).contains(&key.len()) && !may_be_blank(key) && !key.contains(&0x7F)
}

/// Whether any byte is a blank or below it. Eight bytes at a time: where a byte is less than 0x21, the difference borrows, and
/// the byte itself has no high bit.
#[inline]
fn may_be_blank(key: &[u8]) -> bool {
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    let lows = |word: u64| word.wrapping_sub(ONES * 0x21) & !word & (ONES << 7);
    let (words, rest) = key.as_chunks::<8>();
    let found = words.iter().fold(0, |found, word| found | lows(u64::from_le_bytes(*word)));
    let rest = match key.last_chunk::<8>() {
        Some(last) => lows(u64::from_le_bytes(*last)),
        None => u64::from(rest.iter().any(|byte| *byte <= b' ')),
    };
    found | rest != 0
}

#[cold]
fn illegal(what: &str, key: &Bound<'_, PyAny>) -> Failure {
    Failure::illegal(format!("the key {what}: {key:?}"))
}
