//! Bytes objects of values.
//!
//! # Safety
//!
//! The interpreter's lock is held, and the interpreter copies the bytes before the call ends. It returns a new object, or
//! nothing and an exception; in the latter case pyo3's own function would panic.
#![allow(unsafe_code, reason = "a function of the interpreter; contract above")]

use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// A copy of the bytes. The error: the interpreter has no memory for it.
#[inline]
pub(crate) fn bytes<'py>(py: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    // A slice has at most as many bytes as an `isize` can count.
    let len = bytes.len().cast_signed();
    // SAFETY: this many bytes can be read there; the lock is held.
    let object = unsafe { pyo3::ffi::PyBytes_FromStringAndSize(bytes.as_ptr().cast(), len) };
    // SAFETY: a new reference, or NULL with an exception set.
    let object = unsafe { Bound::from_owned_ptr_or_err(py, object)? };
    Ok(object.cast_into::<PyBytes>()?)
}
