//! libmemcached's hashes, which are libhashkit's, and which of a handle's servers a key belongs to.
//!
//! # Safety
//!
//! libhashkit's functions have the types of its headers. A kit that they get was made by one of them. A key has the given length.
#![allow(unsafe_code, reason = "C functions; contract above")]

use crate::export::{handle_functions, plain_functions};
use crate::handle;
use crate::setup::real;
use crate::types::*;
use std::ffi::{c_char, c_int};
use std::hash::{Hash, Hasher};

pub(crate) const MD5: u32 = 1;
pub(crate) const MAX: u32 = 12;

// build.rs lists them for the linker.
unsafe extern "C" {
    pub(crate) fn hashkit_create(kit: *mut hashkit_st) -> *mut hashkit_st;
    pub(crate) fn hashkit_clone(kit: *mut hashkit_st, source: *const hashkit_st) -> *mut hashkit_st;
    pub(crate) fn hashkit_free(kit: *mut hashkit_st);
    pub(crate) fn hashkit_set_function(kit: *mut hashkit_st, hash: u32) -> c_int;
    pub(crate) fn hashkit_set_distribution_function(kit: *mut hashkit_st, hash: u32) -> c_int;
    pub(crate) fn hashkit_get_function(kit: *const hashkit_st) -> u32;
    pub(crate) fn hashkit_get_distribution_function(kit: *const hashkit_st) -> u32;
    fn hashkit_digest(kit: *const hashkit_st, key: *const c_char, length: usize) -> u32;
    fn libhashkit_digest(key: *const c_char, length: usize, hash: u32) -> u32;
    fn libhashkit_string_hash(hash: u32) -> *const c_char;
}

/// A program's kit, copied.
pub(crate) struct Kit(*mut hashkit_st);

impl Kit {
    /// # Safety
    ///
    /// A kit.
    pub(crate) unsafe fn of(source: *const hashkit_st) -> Self {
        // SAFETY: guaranteed by the caller; the copy is in memory of libhashkit's own.
        Self(unsafe { hashkit_clone(std::ptr::null_mut(), source) })
    }

    pub(crate) fn get(&self) -> *mut hashkit_st {
        self.0
    }
}

impl Drop for Kit {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: made by `of`.
            unsafe { hashkit_free(self.0) };
        }
    }
}

impl Hash for Kit {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // SAFETY: NULL, or a kit that lives as long as this one.
        if let Some(kit) = unsafe { self.0.as_ref() } {
            [kit.base_hash, kit.distribution_hash]
                .map(|hash| (hash.function, hash.context))
                .hash(state);
        }
    }
}

/// The number of the server that a key belongs to. `None`: the handle is the real library's by now.
///
/// # Safety
///
/// The handle is ours; the key has the given number of bytes.
pub(crate) unsafe fn server(st: *mut memcached_st, key: *const c_char, length: usize) -> Option<u32> {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let handle = handle::find_owner(st)?;
        let count = u32::try_from(handle.servers.len()).unwrap_or(u32::MAX);
        if count < 2 {
            return Some(0);
        }
        let theirs = |twin: *mut memcached_st| real!(memcached_generate_hash(*const memcached_st, *const c_char, usize) -> u32; twin.cast_const(), key, length);
        // All servers of a region have all its keys. If no server answers, it is not known yet whether they are a region's.
        let placed = match handle.open {
            Some(_) => None,
            None => handle.calls.with_twin(theirs).flatten(),
        };
        Some(placed.unwrap_or_else(|| hashkit_digest(&raw const (*st).hashkit, key, length) % count))
    }
}

handle_functions! {
    fn memcached_generate_hash(st: *const memcached_st, key: *const c_char, length: usize) -> u32 = u32::MAX;
        server(st.cast_mut(), key, length)
}

plain_functions! {
    fn memcached_generate_hash_value(key: *const c_char, length: usize, hash: u32) -> u32 = 1; libhashkit_digest(key, length, hash)

    fn libmemcached_string_hash(hash: u32) -> *const c_char = c"".as_ptr(); libhashkit_string_hash(hash)
}
