//! Bytes objects of values.
//!
//! # Safety
//!
//! The interpreter's lock is held, and the interpreter copies the bytes before the call is over. What it gives is an object of its own,
//! or nothing and an exception; that last pyo3 would make a panic of.
#![allow(unsafe_code, reason = "a function of the interpreter; contract above")]

use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// A copy of the bytes. The error: the interpreter has no memory for it.
#[inline]
pub(crate) fn bytes<'py>(py: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    // No slice has more bytes than an `isize` counts.
    let len = bytes.len().cast_signed();
    // SAFETY: so many bytes can be read there; the lock is held.
    let object = unsafe { pyo3::ffi::PyBytes_FromStringAndSize(bytes.as_ptr().cast(), len) };
    // SAFETY: a new reference, or NULL with an exception set.
    let object = unsafe { Bound::from_owned_ptr_or_err(py, object)? };
    Ok(object.cast_into::<PyBytes>()?)
}
