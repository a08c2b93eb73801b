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
            Err(Failure::Illegal(PyTypeError::new_err(what)))
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
        // One pass looks for all rare bytes. Only if there is one, find out which.
        if key.iter().any(|byte| matches!(byte, 0 | b'\t'..=b'\r' | b' ')) {
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

#[cold]
fn illegal(what: &str, key: &Bound<'_, PyAny>) -> Failure {
    Failure::illegal(format!("the key {what}: {key:?}"))
}
