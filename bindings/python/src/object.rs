//! What needs the interpreter's lock: bytes objects of values, and what a client's threads share.
//!
//! # Safety
//!
//! The interpreter's lock is held, as a `Python` says; the stable ABI has no interpreter without it. The interpreter returns a new object, or nothing and an exception; in the latter case
//! pyo3's own function would panic. It copies bytes that it is given before the call ends. An object that was made without
//! bytes is written to only until [`Place::finish`] gives it out.
#![allow(unsafe_code, reason = "functions of the interpreter; contract above")]

use keyway_cache::{Item, Target};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;

/// A value that the threads of an interpreter share, and use for moments with the interpreter's lock held. No other lock is
/// needed, so that no thread waits for one that waits.
pub(crate) struct Shared<T>(UnsafeCell<T>);

// SAFETY: used only with the interpreter's lock held, by one thread at a time.
unsafe impl<T: Send> Sync for Shared<T> {}

impl<T> Shared<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(UnsafeCell::new(value))
    }

    /// A copy of the value. Copying it runs no Python code.
    #[inline(always)]
    pub fn get(&self, _: Python<'_>) -> T
    where
        T: Clone,
    {
        // SAFETY: no other thread uses it, and this one has no reference to it.
        unsafe { &*self.0.get() }.clone()
    }

    /// Sets the value. Returns the old one.
    pub(crate) fn replace(&self, _: Python<'_>, value: T) -> T {
        // SAFETY: as above.
        unsafe { self.0.get().replace(value) }
    }
}

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
