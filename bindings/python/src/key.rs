//! Keys, by pymemcache's rules: text or bytes, behind the client's prefix 1 to 250 bytes, without white space or zero bytes, so
//! that clients over the network can have the same items.

use crate::failure::Failure;
use keyway::KEY_LEN_MAX;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

/// What keys are made by.
pub(crate) struct Keys {
    /// stands before every key
    pub(crate) prefix: Vec<u8>,
    /// text may hold more than ASCII, and goes as UTF-8
    pub(crate) unicode: bool,
}

/// A key as the region has it.
pub(crate) struct Key {
    bytes: [u8; KEY_LEN_MAX],
    len: usize,
}

impl Key {
    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

impl Keys {
    /// The key behind the prefix.
    #[inline]
    pub(crate) fn key(&self, object: &Bound<'_, PyAny>) -> Result<Key, Failure> {
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
            Err(Failure::Illegal(PyTypeError::new_err(what)))
        }
    }

    #[inline]
    fn whole(&self, own: &[u8], object: &Bound<'_, PyAny>) -> Result<Key, Failure> {
        let mut key = Key {
            bytes: [0; KEY_LEN_MAX],
            len: self.prefix.len() + own.len(),
        };
        let Some(room) = key.bytes.get_mut(..key.len) else {
            return Err(illegal(&format!("has {} bytes, {KEY_LEN_MAX} at most", key.len), object));
        };
        let (before, behind) = room.split_at_mut(self.prefix.len());
        before.copy_from_slice(&self.prefix);
        behind.copy_from_slice(own);
        if key.len == 0 {
            return Err(illegal("is empty", object));
        }
        if key.bytes().iter().any(|byte| matches!(byte, b'\t'..=b'\r' | b' ')) {
            return Err(illegal("contains white space", object));
        }
        if key.bytes().contains(&0) {
            return Err(illegal("contains a zero byte", object));
        }
        Ok(key)
    }
}

#[cold]
fn illegal(what: &str, key: &Bound<'_, PyAny>) -> Failure {
    Failure::illegal(format!("the key {what}: {key:?}"))
}
