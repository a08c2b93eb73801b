//! Results: an item that was found, in a structure of the program's or the handle's.
//!
//! # Safety
//!
//! A result was made by `memcached_result_create`, ours or the real library's: both use the same fields. Its `root` is a
//! handle that still exists, or NULL. Its string is NULL or a block of that handle's memory.
#![allow(unsafe_code, reason = "a C structure that is shared with the program; contract above")]

use crate::export::plain_functions;
use crate::handle;
use crate::store;
use crate::types::*;
use std::ffi::{c_char, c_int};

/// # Safety
///
/// There is room for a result.
pub(crate) unsafe fn init(result: *mut memcached_result_st, root: *mut memcached_st, allocated: bool) {
    // SAFETY: guaranteed by the caller; all zeros are valid.
    unsafe {
        result.cast::<u8>().write_bytes(0, size_of::<memcached_result_st>());
        (*result).root = root;
        (*result).numeric_value = u64::MAX;
        (*result).value.root = root;
        (*result).value.options = INITIALIZED;
        (*result).options = INITIALIZED | if allocated { ALLOCATED } else { 0 };
    }
}

/// # Safety
///
/// A result.
pub(crate) unsafe fn reset(result: *mut memcached_result_st) {
    // SAFETY: guaranteed by the caller.
    let result = unsafe { &mut *result };
    result.key_length = 0;
    result.value.end = result.value.string;
    result.item_flags = 0;
    result.item_cas = 0;
    result.item_expiration = 0;
    result.numeric_value = u64::MAX;
}

/// # Safety
///
/// A result.
pub(crate) unsafe fn free_value(result: *mut memcached_result_st) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let value = &mut (*result).value;
        handle::free_block(value.root, value.string.cast());
        value.string = std::ptr::null_mut();
        value.end = std::ptr::null_mut();
        value.current_size = 0;
        value.options &= !INITIALIZED;
    }
}

/// Appends bytes to a result's value, with a zero byte after them that is not counted. `false`: no memory.
///
/// # Safety
///
/// A result.
pub(crate) unsafe fn append(result: *mut memcached_result_st, bytes: &[u8]) -> bool {
    // SAFETY: guaranteed by the caller; the block has space for its contents, the bytes and two more.
    unsafe {
        let value = &mut (*result).value;
        let have = length(value);
        let need = have.saturating_add(bytes.len()).saturating_add(2);
        if value.current_size < need {
            let block: *mut c_char = handle::realloc(value.root, value.string.cast(), need).cast();
            if block.is_null() {
                return false;
            }
            value.string = block;
            value.current_size = need;
        }
        let end = value.string.add(have).cast::<u8>();
        end.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        value.end = end.add(bytes.len()).cast();
        value.end.write(0);
        value.end.add(1).write(0);
        true
    }
}

fn length(value: &memcached_string_st) -> usize {
    (value.end as usize).saturating_sub(value.string as usize)
}

/// Takes the value out; NULL for an empty one, as in libmemcached.
///
/// # Safety
///
/// A result.
pub(crate) unsafe fn take(result: *mut memcached_result_st) -> *mut c_char {
    // SAFETY: guaranteed by the caller.
    let value = unsafe { &mut (*result).value };
    if length(value) == 0 {
        return std::ptr::null_mut();
    }
    value.end = std::ptr::null_mut();
    value.current_size = 0;
    std::mem::replace(&mut value.string, std::ptr::null_mut())
}

plain_functions! {
    fn memcached_result_create(st: *const memcached_st, result: *mut memcached_result_st) -> *mut memcached_result_st
        = std::ptr::null_mut(); {
        let allocated = result.is_null();
        let result = if allocated { handle::malloc(st, size_of::<memcached_result_st>()).cast() } else { result };
        if !result.is_null() {
            init(result, st.cast_mut(), allocated);
        }
        result
    }

    fn memcached_result_reset(result: *mut memcached_result_st) -> () = (); reset(result)

    fn memcached_result_free(result: *mut memcached_result_st) -> () = (); {
        if result.is_null() {
            return;
        }
        free_value(result);
        if (*result).options & ALLOCATED != 0 {
            handle::free_block((*result).root, result.cast());
        } else {
            (*result).count = 0;
            (*result).numeric_value = u64::MAX;
            (*result).options &= !INITIALIZED;
        }
    }

    fn memcached_result_key_value(result: *const memcached_result_st) -> *const c_char = std::ptr::null();
        if (*result).key_length == 0 { std::ptr::null() } else { (*result).item_key.as_ptr().cast() }

    fn memcached_result_key_length(result: *const memcached_result_st) -> usize = 0; (*result).key_length
    fn memcached_result_value(result: *const memcached_result_st) -> *const c_char = std::ptr::null(); (*result).value.string.cast_const()
    fn memcached_result_length(result: *const memcached_result_st) -> usize = 0; length(&(*result).value)
    fn memcached_result_flags(result: *const memcached_result_st) -> u32 = 0; (*result).item_flags
    fn memcached_result_cas(result: *const memcached_result_st) -> u64 = 0; (*result).item_cas
    fn memcached_result_take_value(result: *mut memcached_result_st) -> *mut c_char = std::ptr::null_mut(); take(result)

    fn memcached_result_set_value(result: *mut memcached_result_st, value: *const c_char, size: usize) -> c_int = rc::FAILURE; {
        match store::value(value, size) {
            Some(bytes) if append(result, bytes) => rc::SUCCESS,
            _ => rc::MEMORY_ALLOCATION_FAILURE,
        }
    }

    fn memcached_result_set_flags(result: *mut memcached_result_st, flags: u32) -> () = (); (*result).item_flags = flags
    fn memcached_result_set_expiration(result: *mut memcached_result_st, expiration: i64) -> () = (); (*result).item_expiration = expiration
}
