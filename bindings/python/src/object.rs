//! Bytes objects of values.
//!
//! # Safety
//!
//! The interpreter's lock is held. The interpreter returns a new object, or nothing and an exception; in the latter case
//! pyo3's own function would panic. It copies bytes that it is given before the call ends. An object that was made without
//! bytes is written to only until [`Place::finish`] gives it out.
#![allow(unsafe_code, reason = "functions of the interpreter; contract above")]

use keyway_cache::{Item, Target};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::mem::MaybeUninit;

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

/// A bytes object into which a value is copied. Making it runs no Python code.
pub(crate) struct Place<'py> {
    py: Python<'py>,
    /// its length is `len`
    object: Option<Bound<'py, PyBytes>>,
    /// why there is none
    failed: Option<PyErr>,
    len: usize,
    /// client flags of the item
    pub(crate) flags: u32,
}

impl<'py> Place<'py> {
    #[inline(always)]
    pub(crate) fn new(py: Python<'py>) -> Self {
        Self {
            py,
            object: None,
            failed: None,
            len: 0,
            flags: 0,
        }
    }

    /// The object with the value in it. The error: the interpreter has no memory for it.
    #[inline(always)]
    pub(crate) fn finish(self) -> PyResult<Bound<'py, PyBytes>> {
        self.object
            .ok_or(())
            .or_else(|()| self.failed.map_or_else(|| bytes(self.py, &[]), Err))
    }

    /// Makes an object of this length.
    #[inline(always)]
    fn make(&mut self, len: usize) {
        self.len = len;
        // SAFETY: a new object of that many bytes, or NULL with an exception set. The lock is held, as `py` says.
        self.object = unsafe {
            let object = pyo3::ffi::PyBytes_FromStringAndSize(std::ptr::null(), len.cast_signed());
            Bound::from_owned_ptr_or_opt(self.py, object).map(|object| object.cast_into_unchecked())
        };
        if self.object.is_none() {
            self.failed = Some(PyErr::fetch(self.py));
        }
    }
}

impl Target for Place<'_> {
    #[inline(always)]
    fn make_room(&mut self, item: &Item) -> bool {
        self.flags = item.flags;
        if self.object.is_none() || self.len != item.value_len {
            self.make(item.value_len);
        }
        self.object.is_some()
    }

    #[inline(always)]
    fn room(&mut self) -> &mut [MaybeUninit<u8>] {
        match &self.object {
            // SAFETY: the object has that many bytes, which no other code knows of yet. One of no bytes is the interpreter's
            // own, and nothing is written to it.
            Some(object) => unsafe {
                let bytes = pyo3::ffi::PyBytes_AsString(object.as_ptr());
                std::slice::from_raw_parts_mut(bytes.cast(), self.len)
            },
            None => &mut [],
        }
    }
}
