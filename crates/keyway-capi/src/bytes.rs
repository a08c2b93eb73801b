//! From pointers to slices and references, and back to allocated blocks.
//!
//! # Safety
//!
//! Pointers are the caller's word. NULL is refused here, and so are lengths that no object has; all else cannot be known.

use crate::failure::Failure;
use crate::types::keyway_result::{KEYWAY_ERROR_KEY_LENGTH, KEYWAY_ERROR_OUT_OF_MEMORY};
use crate::types::{KEYWAY_KEY_LENGTH_MAX, keyway};
use ::keyway::Cache;
use std::ffi::{CStr, c_char, c_void};

/// The cache behind a handle.
///
/// # Safety
///
/// The handle is NULL, or comes from `keyway_open` and has not been closed.
#[inline]
pub(crate) unsafe fn cache<'a>(handle: *const keyway) -> Result<&'a Cache, Failure> {
    // SAFETY: the caller's word.
    match unsafe { handle.as_ref() } {
        Some(handle) => Ok(&handle.cache),
        None => Err(Failure::argument(
            "the cache is NULL: keyway_open() failed, or was not called",
        )),
    }
}

/// The bytes of a key.
///
/// # Safety
///
/// The pointer is NULL, or so many bytes can be read from it and do not change.
#[inline]
pub(crate) unsafe fn key<'a>(key: *const c_void, len: usize) -> Result<&'a [u8], Failure> {
    if key.is_null() {
        return Err(Failure::argument("the key is NULL"));
    }
    if len == 0 || len > KEYWAY_KEY_LENGTH_MAX {
        let message = format!("a key has 1 to {KEYWAY_KEY_LENGTH_MAX} bytes, this one {len}");
        return Err(Failure::new(KEYWAY_ERROR_KEY_LENGTH, message));
    }
    // SAFETY: the caller's word; not NULL, and the length is checked.
    Ok(unsafe { std::slice::from_raw_parts(key.cast(), len) })
}

/// The bytes of a value. NULL is one of no bytes.
///
/// # Safety
///
/// As [`key`].
#[inline]
pub(crate) unsafe fn value<'a>(value: *const c_void, len: usize) -> Result<&'a [u8], Failure> {
    if len == 0 {
        return Ok(&[]);
    }
    if value.is_null() {
        return Err(Failure::argument(format!("the value is NULL, and its length {len}, not 0")));
    }
    if isize::try_from(len).is_err() {
        return Err(Failure::argument(format!(
            "the value's length is {len}: no object has so many bytes"
        )));
    }
    // SAFETY: the caller's word; not NULL, and the length is one that an object can have.
    Ok(unsafe { std::slice::from_raw_parts(value.cast(), len) })
}

/// The text of a C string.
///
/// # Safety
///
/// The pointer is NULL, or leads to bytes that end with a zero byte and do not change.
pub(crate) unsafe fn text<'a>(text: *const c_char, what: &str) -> Result<&'a CStr, Failure> {
    if text.is_null() {
        return Err(Failure::argument(format!("{what} is NULL")));
    }
    // SAFETY: the caller's word.
    Ok(unsafe { CStr::from_ptr(text) })
}

/// Stores an answer where the caller wants it, if anywhere.
///
/// # Safety
///
/// The pointer is NULL, or a `T` can be written to it.
#[inline]
pub(crate) unsafe fn answer<T>(place: *mut T, value: T) {
    if !place.is_null() {
        // SAFETY: the caller's word.
        unsafe { place.write(value) };
    }
}

/// Copies bytes to the caller's buffer.
///
/// # Safety
///
/// So many bytes can be written to the buffer.
#[inline]
pub(crate) unsafe fn copy_out(bytes: &[u8], buffer: *mut c_void) {
    if !bytes.is_empty() {
        // SAFETY: the caller's word; the bytes are ours, so the two do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), buffer.cast(), bytes.len()) };
    }
}

/// A copy of the bytes with a zero byte after them, from malloc.
pub(crate) fn allocated(bytes: &[u8]) -> Result<*mut c_void, Failure> {
    let Some(size) = bytes.len().checked_add(1) else {
        return Err(Failure::argument("no object has so many bytes"));
    };
    // SAFETY: any size may be asked for.
    let block = unsafe { libc::malloc(size) };
    if block.is_null() {
        return Err(no_memory(bytes.len()));
    }
    // SAFETY: the block has room for the bytes and one more.
    unsafe {
        copy_out(bytes, block);
        block.cast::<u8>().add(bytes.len()).write(0);
    }
    Ok(block)
}

/// There is no memory for so many bytes.
#[cold]
pub(crate) fn no_memory(len: usize) -> Failure {
    let message = format!("this process has no memory for a copy of {len} bytes");
    Failure::new(KEYWAY_ERROR_OUT_OF_MEMORY, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_known_to_be_wrong_is_refused() {
        let bytes = b"abc".as_ptr().cast();
        // SAFETY: every pointer is NULL or leads to three bytes, and no length that is accepted is greater.
        unsafe {
            assert!(key(std::ptr::null(), 3).is_err());
            assert!(key(bytes, 0).is_err());
            assert!(key(bytes, 251).is_err());
            assert!(key(bytes, usize::MAX).is_err());
            assert_eq!(key(bytes, 3).unwrap(), b"abc");
            assert!(value(std::ptr::null(), 1).is_err());
            assert!(value(bytes, usize::MAX).is_err());
            assert_eq!(value(std::ptr::null(), 0).unwrap(), b"");
            assert!(cache(std::ptr::null()).is_err());
            assert!(text(std::ptr::null(), "it").is_err());
        }
    }
}
