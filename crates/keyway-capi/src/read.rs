//! Getting items: into the caller's buffer, into allocated memory, or many at once.

use crate::bytes::{self, Block, Buffer};
use crate::failure::{Failure, boundary};
use crate::types::keyway_result::*;
use crate::types::*;
use keyway_cache::{AHEAD_MAX, Get, Item};
use std::ffi::{c_char, c_void};

/// Copies the value of a key into `buffer`, and the item's properties into `item` (which may be NULL).
///
/// KEYWAY_NOT_FOUND: there is no such item. KEYWAY_ERROR_BUFFER_TOO_SMALL: item->value_len bytes are needed, and nothing was
/// copied (a `buffer_size` of 0 asks for the length). With any other result the buffer may have been written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keyway_get(
    cache: *mut keyway,
    key: *const c_void,
    key_len: usize,
    buffer: *mut c_void,
    buffer_size: usize,
    item: *mut keyway_item,
) -> keyway_result {
    // SAFETY: guaranteed by the caller.
    boundary(|| unsafe { get_into::<true>(cache, key, key_len, Get::VALUE, buffer, buffer_size, item) })
}

/// As keyway_get(), and also returns the item's CAS unique.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keyway_gets(
    cache: *mut keyway,
    key: *const c_void,
    key_len: usize,
    buffer: *mut c_void,
    buffer_size: usize,
    item: *mut keyway_item,
) -> keyway_result {
    let how = Get {
        value: buffer_size > 0,
        details: true,
        ..Get::default()
    };
    // SAFETY: guaranteed by the caller.
    boundary(|| unsafe { get_into::<false>(cache, key, key_len, &how, buffer, buffer_size, item) })
}

/// As keyway_gets(), and gives the item a new `exptime`, even if the buffer is too small.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keyway_gat(
    cache: *mut keyway,
    key: *const c_void,
    key_len: usize,
    exptime: i64,
    buffer: *mut c_void,
    buffer_size: usize,
    item: *mut keyway_item,
) -> keyway_result {
    let how = Get {
        value: buffer_size > 0,
        details: true,
        exptime: Some(exptime),
        ..Get::default()
    };
    // SAFETY: guaranteed by the caller.
    boundary(|| unsafe { get_into::<false>(cache, key, key_len, &how, buffer, buffer_size, item) })
}

/// As keyway_gets(), with the value in memory from malloc() and a zero byte after it. Free it by keyway_free() or free().
/// `*value` is NULL unless the result is KEYWAY_OK.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keyway_get_alloc(
    cache: *mut keyway,
    key: *const c_void,
    key_len: usize,
    value: *mut *mut c_void,
    item: *mut keyway_item,
) -> keyway_result {
    let how = Get {
        value: true,
        details: true,
        ..Get::default()
    };
    // SAFETY: guaranteed by the caller.
    boundary(|| unsafe { get_allocated(cache, key, key_len, &how, value, item) })
}

/// As keyway_get_alloc(), and gives the item a new `exptime`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keyway_gat_alloc(
    cache: *mut keyway,
    key: *const c_void,
    key_len: usize,
    exptime: i64,
    value: *mut *mut c_void,
    item: *mut keyway_item,
) -> keyway_result {
    let how = Get {
        value: true,
        details: true,
        exptime: Some(exptime),
        ..Get::default()
    };
    // SAFETY: guaranteed by the caller.
    boundary(|| unsafe { get_allocated(cache, key, key_len, &how, value, item) })
}

/// Gets `count` items. Each entry's key and key_len are inputs, its other fields outputs. The values are in one block from
/// malloc(), which is stored in `*block` (NULL if there is none). Free it by keyway_free() or free() after the last use of
/// the values. The result is KEYWAY_OK if each entry was found or not found, otherwise the result of the first entry that
/// failed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keyway_get_many(
    cache: *mut keyway,
    entries: *mut keyway_entry,
    count: usize,
    block: *mut *mut c_void,
) -> keyway_result {
    // SAFETY: guaranteed by the caller.
    boundary(|| unsafe { get_many(cache, entries, count, block) })
}

/// Frees memory of keyway_get_alloc(), keyway_gat_alloc() and keyway_get_many(); the same as free(). NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keyway_free(block: *mut c_void) {
    // SAFETY: guaranteed by the caller.
    unsafe { libc::free(block) };
}

/// `PLAIN`: as by [`Get::VALUE`], whatever `how` is. A buffer of no bytes gets no value then, because none fits. Otherwise
/// with details.
///
/// # Safety
///
/// As `keyway_get`.
#[inline(always)]
unsafe fn get_into<const PLAIN: bool>(
    cache: *mut keyway,
    key: *const c_void,
    key_len: usize,
    how: &Get,
    buffer: *mut c_void,
    buffer_size: usize,
    item: *mut keyway_item,
) -> Result<keyway_result, Failure> {
    if buffer.is_null() && buffer_size > 0 {
        return Err(Failure::argument(format!(
            "the buffer is NULL, and its size {buffer_size}, not 0"
        )));
    }
    if isize::try_from(buffer_size).is_err() {
        return Err(Failure::argument(format!(
            "the buffer's size is {buffer_size}: no object has so many bytes"
        )));
    }
    // SAFETY: guaranteed by the caller.
    let (cache, key) = unsafe { (bytes::cache(cache)?, bytes::key(key, key_len)?) };
    // SAFETY: guaranteed by the caller.
    let mut place = unsafe { Buffer::new(buffer, buffer_size, item) };
    let found = cache.with_session(|session, _| {
        let details = Get { details: true, ..*how };
        session.get_into(key, if PLAIN { Get::VALUE } else { &details }, &mut place)
    })??;
    if !found {
        return Ok(KEYWAY_NOT_FOUND);
    }
    if !place.fits() {
        return Err(too_small(place.len, buffer_size));
    }
    Ok(KEYWAY_OK)
}

#[cold]
fn too_small(value_len: usize, buffer_size: usize) -> Failure {
    let message = format!(
        "the value has {value_len} bytes, the buffer {buffer_size}; give a larger one, or let keyway_get_alloc() allocate"
    );
    Failure::new(KEYWAY_ERROR_BUFFER_TOO_SMALL, message)
}

/// # Safety
///
/// As `keyway_get_alloc`.
unsafe fn get_allocated(
    cache: *mut keyway,
    key: *const c_void,
    key_len: usize,
    how: &Get,
    value: *mut *mut c_void,
    item: *mut keyway_item,
) -> Result<keyway_result, Failure> {
    if value.is_null() {
        return Err(Failure::argument("the place for the value is NULL"));
    }
    // SAFETY: guaranteed by the caller.
    let (cache, key) = unsafe {
        value.write(std::ptr::null_mut());
        (bytes::cache(cache)?, bytes::key(key, key_len)?)
    };
    let mut block = Block::default();
    if !cache.with_session(|session, _| session.get_into(key, how, &mut block))?? {
        return Ok(KEYWAY_NOT_FOUND);
    }
    // SAFETY: guaranteed by the caller.
    unsafe {
        bytes::answer(item, block.item);
        value.write(block.finish()?);
    }
    Ok(KEYWAY_OK)
}

/// # Safety
///
/// As `keyway_get_many`.
unsafe fn get_many(
    cache: *mut keyway,
    entries: *mut keyway_entry,
    count: usize,
    block: *mut *mut c_void,
) -> Result<keyway_result, Failure> {
    if block.is_null() || (entries.is_null() && count > 0) {
        return Err(Failure::argument("the entries, or the place for the block, are NULL"));
    }
    let size = count.checked_mul(size_of::<keyway_entry>());
    if size.is_none_or(|size| isize::try_from(size).is_err()) {
        return Err(Failure::argument(format!("{count} entries: no array has so many")));
    }
    // SAFETY: guaranteed by the caller.
    let cache = unsafe {
        block.write(std::ptr::null_mut());
        bytes::cache(cache)?
    };
    let how = Get {
        value: true,
        details: true,
        ..Get::default()
    };
    cache.with_session(|session, values| {
        let mut failed = None;
        for index in 0..count {
            if index % AHEAD_MAX == 0 && count - index > 1 {
                // SAFETY: guaranteed by the caller. A key that is no key is refused when it is its turn.
                let key = |index| unsafe { bytes::key((*entries.add(index)).key, (*entries.add(index)).key_len) };
                session.prefetch((index..count.min(index + AHEAD_MAX)).filter_map(|index| key(index).ok()));
            }
            // SAFETY: guaranteed by the caller; the fields are read and written by pointer, because the result fields may
            // be uninitialised.
            let entry = unsafe { entries.add(index) };
            // SAFETY: as above.
            let key = unsafe { bytes::key((*entry).key, (*entry).key_len) };
            let found = key.and_then(|key| {
                let found = session.get_with(key, &how, values, |_, _| {})?;
                // For the zero byte after it.
                values.try_reserve(1).map_err(|_| bytes::no_memory(values.len()))?;
                Ok(found)
            });
            let (result, item) = match found {
                Ok(Some(item)) => {
                    values.push(0);
                    (KEYWAY_OK, item.into())
                }
                Ok(None) => (KEYWAY_NOT_FOUND, keyway_item::default()),
                Err(failure) => {
                    let code = failure.code();
                    failed.get_or_insert(failure);
                    (code, keyway_item::default())
                }
            };
            // SAFETY: as above.
            unsafe {
                (&raw mut (*entry).result).write(result);
                (&raw mut (*entry).item).write(item);
                (&raw mut (*entry).value).write(std::ptr::null());
            }
        }
        if !values.is_empty() {
            let all = bytes::allocated(values);
            // SAFETY: the entries have just been filled in, and the block holds their values in the same order.
            unsafe {
                match all {
                    Ok(values) => {
                        block.write(values);
                        spread(entries, count, values.cast());
                    }
                    Err(failure) => {
                        withdraw(entries, count, failure.code());
                        failed.get_or_insert(failure);
                    }
                }
            }
        }
        failed.map_or(Ok(KEYWAY_OK), Err)
    })?
}

/// Leads each found entry to its value.
///
/// # Safety
///
/// The entries are answered, and their values follow each other from `value`, a zero byte after each.
unsafe fn spread(entries: *mut keyway_entry, count: usize, mut value: *const c_char) {
    for index in 0..count {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let entry = entries.add(index);
            if (*entry).result == KEYWAY_OK {
                (*entry).value = value;
                value = value.add((*entry).item.value_len + 1);
            }
        }
    }
}

/// Answers each found entry with a failure instead.
///
/// # Safety
///
/// The entries are answered.
#[cold]
unsafe fn withdraw(entries: *mut keyway_entry, count: usize, code: keyway_result) {
    for index in 0..count {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let entry = entries.add(index);
            if (*entry).result == KEYWAY_OK {
                (*entry).result = code;
                (*entry).item = keyway_item::default();
            }
        }
    }
}

impl From<Item> for keyway_item {
    #[inline]
    fn from(item: Item) -> Self {
        Self {
            value_len: item.value_len,
            cas: item.cas,
            ttl_s: item.ttl_s.map_or(-1, i64::from),
            flags: item.flags,
        }
    }
}
