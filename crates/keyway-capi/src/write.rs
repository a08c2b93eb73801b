//! Changing items.

use crate::bytes;
use crate::failure::{Failure, boundary};
use crate::types::keyway_result::*;
use crate::types::*;
use keyway_cache::{Arithmetic, Delete, Deleted, Number, Session, Store, StoreMode, Stored, WriteError};
use std::ffi::c_void;

/// Stores a value, whether the key has one or not.
///
/// `exptime` is memcached's, in all functions: 0 never, negative at once, up to 30 days seconds from now, above that a Unix
/// time. `flags` are for the caller.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keyway_set(
    cache: *mut keyway,
    key: *const c_void,
    key_len: usize,
    value: *const c_void,
    value_len: usize,
    exptime: i64,
    flags: u32,
) -> keyway_result {
    let how = storing(StoreMode::Set, exptime, flags);
    // SAFETY: guaranteed by the caller.
    boundary(|| unsafe { store(cache, key, key_len, value, value_len, &how) })
}

/// Stores a value if the key has none; otherwise KEYWAY_NOT_STORED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keyway_add(
    cache: *mut keyway,
    key: *const c_void,
    key_len: usize,
    value: *const c_void,
    value_len: usize,
    exptime: i64,
    flags: u32,
) -> keyway_result {
    let how = storing(StoreMode::Add, exptime, flags);
    // SAFETY: guaranteed by the caller.
    boundary(|| unsafe { store(cache, key, key_len, value, value_len, &how) })
}

/// Stores a value if the key has one; otherwise KEYWAY_NOT_STORED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keyway_replace(
    cache: *mut keyway,
    key: *const c_void,
    key_len: usize,
    value: *const c_void,
    value_len: usize,
    exptime: i64,
    flags: u32,
) -> keyway_result {
    let how = storing(StoreMode::Replace, exptime, flags);
    // SAFETY: guaranteed by the caller.
    boundary(|| unsafe { store(cache, key, key_len, value, value_len, &how) })
}

/// Adds bytes at the end of a value, which keeps its flags and its exptime. KEYWAY_NOT_STORED: the key has no value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keyway_append(
    cache: *mut keyway,
    key: *const c_void,
    key_len: usize,
    value: *const c_void,
    value_len: usize,
) -> keyway_result {
    let how = storing(StoreMode::Append, 0, 0);
    // SAFETY: guaranteed by the caller.
    boundary(|| unsafe { store(cache, key, key_len, value, value_len, &how) })
}

/// Adds bytes before a value, which keeps its flags and its exptime. KEYWAY_NOT_STORED: the key has no value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keyway_prepend(
    cache: *mut keyway,
    key: *const c_void,
    key_len: usize,
    value: *const c_void,
    value_len: usize,
) -> keyway_result {
    let how = storing(StoreMode::Prepend, 0, 0);
    // SAFETY: guaranteed by the caller.
    boundary(|| unsafe { store(cache, key, key_len, value, value_len, &how) })
}

/// Stores a value if the item still has this CAS unique, which keyway_gets() returned; otherwise KEYWAY_EXISTS (it has
/// changed) or KEYWAY_NOT_FOUND.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keyway_cas(
    cache: *mut keyway,
    key: *const c_void,
    key_len: usize,
    value: *const c_void,
    value_len: usize,
    exptime: i64,
    flags: u32,
    cas: u64,
) -> keyway_result {
    let how = Store {
        compare_cas: Some(cas),
        ..storing(StoreMode::Set, exptime, flags)
    };
    // SAFETY: guaranteed by the caller.
    boundary(|| unsafe { store(cache, key, key_len, value, value_len, &how) })
}

/// Deletes an item, or returns KEYWAY_NOT_FOUND.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keyway_delete(cache: *mut keyway, key: *const c_void, key_len: usize) -> keyway_result {
    boundary(|| {
        // SAFETY: guaranteed by the caller.
        let (cache, key) = unsafe { (bytes::cache(cache)?, bytes::key(key, key_len)?) };
        let deleted = cache.with_session(|session, _| session.delete(key, &Delete::default()))??;
        Ok(match deleted {
            Deleted::Deleted => KEYWAY_OK,
            Deleted::NotFound => KEYWAY_NOT_FOUND,
            Deleted::Exists => KEYWAY_EXISTS,
        })
    })
}

/// Adds `delta` to a decimal number, modulo 2^64, and stores the sum in `*number` (which may be NULL): 0 with any other result than
/// KEYWAY_OK. KEYWAY_NOT_FOUND: there is no such item; KEYWAY_ERROR_NOT_A_NUMBER: its value is not a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keyway_incr(
    cache: *mut keyway,
    key: *const c_void,
    key_len: usize,
    delta: u64,
    number: *mut u64,
) -> keyway_result {
    // SAFETY: guaranteed by the caller.
    unsafe { count(cache, key, key_len, number, |session, key| session.incr(key, delta)) }
}

/// Subtracts `delta` from a decimal number, stopping at 0; otherwise as keyway_incr().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keyway_decr(
    cache: *mut keyway,
    key: *const c_void,
    key_len: usize,
    delta: u64,
    number: *mut u64,
) -> keyway_result {
    // SAFETY: guaranteed by the caller.
    unsafe { count(cache, key, key_len, number, |session, key| session.decr(key, delta)) }
}

/// As keyway_incr(), but if there is no item, one with the number `initial` is stored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keyway_incr_with_initial(
    cache: *mut keyway,
    key: *const c_void,
    key_len: usize,
    delta: u64,
    initial: u64,
    exptime: i64,
    number: *mut u64,
) -> keyway_result {
    let verb = counting_from(delta, false, (initial, exptime));
    // SAFETY: guaranteed by the caller.
    unsafe { count(cache, key, key_len, number, verb) }
}

/// As keyway_decr(), but if there is no item, one with the number `initial` is stored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keyway_decr_with_initial(
    cache: *mut keyway,
    key: *const c_void,
    key_len: usize,
    delta: u64,
    initial: u64,
    exptime: i64,
    number: *mut u64,
) -> keyway_result {
    let verb = counting_from(delta, true, (initial, exptime));
    // SAFETY: guaranteed by the caller.
    unsafe { count(cache, key, key_len, number, verb) }
}

/// Gives an item a new `exptime`, or returns KEYWAY_NOT_FOUND.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keyway_touch(cache: *mut keyway, key: *const c_void, key_len: usize, exptime: i64) -> keyway_result {
    boundary(|| {
        // SAFETY: guaranteed by the caller.
        let (cache, key) = unsafe { (bytes::cache(cache)?, bytes::key(key, key_len)?) };
        let touched = cache.with_session(|session, _| session.touch(key, exptime))??;
        Ok(if touched { KEYWAY_OK } else { KEYWAY_NOT_FOUND })
    })
}

/// Empties the cache for all its users: with `exptime` 0 at once, otherwise at that time, of all items stored until then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keyway_flush_all(cache: *mut keyway, exptime: i64) -> keyway_result {
    boundary(|| {
        // SAFETY: guaranteed by the caller.
        let cache = unsafe { bytes::cache(cache)? };
        cache.with_session(|session, _| session.flush_all(exptime))??;
        Ok(KEYWAY_OK)
    })
}

fn storing(mode: StoreMode, exptime: i64, flags: u32) -> Store {
    Store {
        mode,
        exptime,
        flags,
        ..Store::default()
    }
}

/// # Safety
///
/// `cache` is NULL or open; `key` is NULL, or `key_len` bytes can be read from it; `value` likewise, with `value_len`.
#[inline]
unsafe fn store(
    cache: *mut keyway,
    key: *const c_void,
    key_len: usize,
    value: *const c_void,
    value_len: usize,
    how: &Store,
) -> Result<keyway_result, Failure> {
    // SAFETY: guaranteed by the caller.
    let (cache, key, value) = unsafe {
        (
            bytes::cache(cache)?,
            bytes::key(key, key_len)?,
            bytes::value(value, value_len)?,
        )
    };
    let stored = cache.with_session(|session, _| session.store(key, value, how))??;
    Ok(match stored {
        Stored::Stored { .. } => KEYWAY_OK,
        Stored::NotStored => KEYWAY_NOT_STORED,
        Stored::Exists => KEYWAY_EXISTS,
        Stored::NotFound => KEYWAY_NOT_FOUND,
    })
}

/// Counting that stores `initial`, a number and its exptime, where there is none.
fn counting_from(
    delta: u64,
    decrement: bool,
    initial: (u64, i64),
) -> impl FnOnce(&mut Session, &[u8]) -> Result<Number, WriteError> {
    let how = Arithmetic {
        delta,
        decrement,
        vivify: Some(initial),
        ..Arithmetic::default()
    };
    move |session, key| session.arithmetic(key, &how).map(Number::from)
}

/// All kinds of counting.
///
/// # Safety
///
/// `cache` is NULL or open; `key` is NULL, or `key_len` bytes can be read from it; `number` is NULL or can be written.
#[inline]
unsafe fn count(
    cache: *mut keyway,
    key: *const c_void,
    key_len: usize,
    number: *mut u64,
    verb: impl FnOnce(&mut Session, &[u8]) -> Result<Number, WriteError>,
) -> keyway_result {
    let mut answer = 0;
    let code = boundary(|| {
        // SAFETY: guaranteed by the caller.
        let (cache, key) = unsafe { (bytes::cache(cache)?, bytes::key(key, key_len)?) };
        match cache.with_session(|session, _| verb(session, key))?? {
            Number::Is(value) => {
                answer = value;
                Ok(KEYWAY_OK)
            }
            Number::NotFound => Ok(KEYWAY_NOT_FOUND),
            Number::NotANumber => Err(Failure::new(
                KEYWAY_ERROR_NOT_A_NUMBER,
                "the value is no decimal number below 2^64; set it to one before counting",
            )),
        }
    });
    // SAFETY: guaranteed by the caller.
    unsafe { bytes::answer(number, answer) };
    code
}
