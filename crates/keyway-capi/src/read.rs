//! Getting items: into the caller's buffer, into allocated memory, or many at once.

use crate::bytes::{self, Block, Buffer, OwnKey, Place as _};
use crate::failure::{Failure, boundary};
use crate::types::keyway_result::*;
use crate::types::*;
use keyway_cache::{AHEAD_MAX, Get, Item, Session};
use std::ffi::{c_char, c_void};

/// Copies the value of a key into `buffer`, and the item's properties into `item` (which may be NULL).
///
/// KEYWAY_NOT_FOUND: there is no such item. KEYWAY_ERROR_BUFFER_TOO_SMALL: item->value_len bytes are needed, and nothing was
/// copied (a `buffer_size` of 0 asks for the length). With any other result the buffer may have been written to. `item` gets
/// zeros if no item was found, or the call failed. The key may be in the buffer.
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
    unsafe { get_into::<true>(cache, key, key_len, Get::VALUE, buffer, buffer_size, item) }
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
    unsafe { get_into::<false>(cache, key, key_len, &how, buffer, buffer_size, item) }
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
    unsafe { get_into::<false>(cache, key, key_len, &how, buffer, buffer_size, item) }
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
    unsafe { get_allocated(cache, key, key_len, &how, value, item) }
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
    unsafe { get_allocated(cache, key, key_len, &how, value, item) }
}

/// Gets `count` items. Each entry's key and key_len are inputs, its other fields outputs. The values are in one block from
/// malloc(), which is stored in `*block` (NULL if there is none). Free it by keyway_free() or free() after the last use of
/// the values. The result is KEYWAY_OK if each entry was found or not found, otherwise the result of the first entry that
/// failed; if the call fails as a whole, every entry has its result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keyway_get_many(
    cache: *mut keyway,
    entries: *mut keyway_entry,
    count: usize,
    block: *mut *mut c_void,
) -> keyway_result {
    let size = count.checked_mul(size_of::<keyway_entry>());
    if block.is_null() || size.is_none_or(|size| isize::try_from(size).is_err()) {
        // SAFETY: guaranteed by the caller.
        unsafe { bytes::answer(block, std::ptr::null_mut()) };
        return boundary(|| {
            Err(Failure::argument(format!(
                "the place for the block is NULL, or there are more entries ({count}) than an array has"
            )))
        });
    }
    let mut answers = Answers::default();
    // SAFETY: guaranteed by the caller.
    let code = boundary(|| unsafe { get_many(cache, entries, count, &mut answers) });
    // SAFETY: guaranteed by the caller.
    unsafe {
        block.write(answers.block);
        answers.give(entries, count, code);
    }
    code
}

/// Frees memory of keyway_get_alloc(), keyway_gat_alloc(), keyway_get_many() and keyway_fetch_begin_alloc(); the same as
/// free(). NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keyway_free(block: *mut c_void) {
    // SAFETY: guaranteed by the caller.
    unsafe { libc::free(block) };
}

/// Calls [`get_to_buffer`]. The properties of an item are those of the last one that was found in an attempt; if there is none in the end,
/// they are zeros.
///
/// # Safety
///
/// `cache` is NULL or open; `key` is NULL, or `key_len` bytes can be read from it; `buffer` is NULL, or `buffer_size` bytes can
/// be written to it; `item` is NULL or can be written.
#[inline(always)]
unsafe fn get_into<const PLAIN: bool>(
    cache: *mut keyway,
    key: *const c_void,
    key_len: usize,
    how: &Get,
    buffer: *mut c_void,
    buffer_size: usize,
    item: *mut keyway_item,
) -> keyway_result {
    // SAFETY: guaranteed by the caller.
    let code = boundary(|| unsafe { get_to_buffer::<PLAIN>(cache, key, key_len, how, buffer, buffer_size, item) });
    if !matches!(code, KEYWAY_OK | KEYWAY_ERROR_BUFFER_TOO_SMALL) {
        // SAFETY: guaranteed by the caller.
        unsafe { bytes::answer(item, keyway_item::default()) };
    }
    code
}

/// `PLAIN`: as by [`Get::VALUE`], whatever `how` is. A buffer of no bytes gets no value then, because none fits. Otherwise
/// with details.
///
/// # Safety
///
/// `cache` is NULL or open; `key` is NULL, or `key_len` bytes can be read from it; `buffer` is NULL, or `buffer_size` bytes can
/// be written to it; `item` is NULL or can be written.
#[inline(always)]
unsafe fn get_to_buffer<const PLAIN: bool>(
    cache: *mut keyway,
    key: *const c_void,
    key_len: usize,
    how: &Get,
    buffer: *mut c_void,
    buffer_size: usize,
    item: *mut keyway_item,
) -> Result<keyway_result, Failure> {
    bytes::check_buffer(buffer, buffer_size)?;
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
        return Err(place.refusal());
    }
    Ok(KEYWAY_OK)
}

/// # Safety
///
/// `cache` is NULL or open; `key` is NULL, or `key_len` bytes can be read from it; `value` and `item` are NULL or can be written.
unsafe fn get_allocated(
    cache: *mut keyway,
    key: *const c_void,
    key_len: usize,
    how: &Get,
    value: *mut *mut c_void,
    item: *mut keyway_item,
) -> keyway_result {
    let (mut copy, mut found) = (std::ptr::null_mut(), keyway_item::default());
    let code = boundary(|| {
        if value.is_null() {
            return Err(Failure::argument("the place for the value is NULL"));
        }
        // SAFETY: guaranteed by the caller.
        let (cache, key) = unsafe { (bytes::cache(cache)?, bytes::key(key, key_len)?) };
        let mut block = Block::default();
        if !cache.with_session(|session, _| session.get_into(key, how, &mut block))?? {
            return Ok(KEYWAY_NOT_FOUND);
        }
        let its = block.item;
        (copy, found) = (block.finish()?, its);
        Ok(KEYWAY_OK)
    });
    // SAFETY: guaranteed by the caller.
    unsafe {
        bytes::answer(value, copy);
        bytes::answer(item, found);
    }
    code
}

/// What came of one key.
struct Answer {
    result: keyway_result,
    item: keyway_item,
}

impl Answer {
    fn of(result: keyway_result) -> Self {
        Self {
            result,
            item: keyway_item::default(),
        }
    }
}

/// What came of all keys. It is complete before the first entry is written: the entries are the caller's memory, and so are the keys, which may
/// be in it.
#[derive(Default)]
struct Answers {
    each: Vec<Answer>,
    /// the values in the keys' order, a zero byte after each; NULL: there are none
    block: *mut c_void,
}

/// Appends the value of a key and a zero byte.
fn append_value(session: &mut Session, key: &OwnKey, values: &mut Vec<u8>) -> Result<Option<Item>, Failure> {
    let how = Get {
        value: true,
        details: true,
        ..Get::default()
    };
    let found = session.get_with(key.bytes(), &how, values, |_, _| {})?;
    // For the zero byte after it.
    values.try_reserve(1).map_err(|_| bytes::no_memory(values.len()))?;
    if found.is_some() {
        values.push(0);
    }
    Ok(found)
}

/// Gets the items of all entries, and reads of these only key and key_len, each once.
///
/// # Safety
///
/// `cache` is NULL or open; `entries` is NULL, or the address of `count` entries, whose keys are NULL or can be read.
unsafe fn get_many(
    cache: *mut keyway,
    entries: *mut keyway_entry,
    count: usize,
    answers: &mut Answers,
) -> Result<keyway_result, Failure> {
    if entries.is_null() && count > 0 {
        return Err(Failure::argument(format!(
            "the entries are NULL, and their number {count}, not 0"
        )));
    }
    // SAFETY: guaranteed by the caller.
    let cache = unsafe { bytes::cache(cache)? };
    let Answers { each, block } = answers;
    let room = each.try_reserve_exact(count);
    room.map_err(|_| bytes::no_memory(count.saturating_mul(size_of::<Answer>())))?;
    cache.with_session(|session, values| {
        let mut failed = None;
        for first in (0..count).step_by(AHEAD_MAX) {
            let together = first..count.min(first + AHEAD_MAX);
            let mut keys = [const { OwnKey::NONE }; AHEAD_MAX];
            for (key, index) in keys.iter_mut().zip(together.clone()) {
                // SAFETY: guaranteed by the caller; the fields are read by pointer, because the others may be uninitialised.
                *key = unsafe {
                    let entry = entries.add(index);
                    OwnKey::copy((&raw const (*entry).key).read(), (&raw const (*entry).key_len).read())
                };
            }
            if together.len() > 1 {
                session.prefetch(keys.iter().take(together.len()).map(OwnKey::bytes));
            }
            for key in keys.into_iter().take(together.len()) {
                each.push(match key.checked().and_then(|key| append_value(session, &key, values)) {
                    Ok(Some(item)) => Answer {
                        result: KEYWAY_OK,
                        item: item.into(),
                    },
                    Ok(None) => Answer::of(KEYWAY_NOT_FOUND),
                    Err(failure) => {
                        let code = failure.code();
                        failed.get_or_insert(failure);
                        Answer::of(code)
                    }
                });
            }
        }
        if !values.is_empty() {
            match bytes::allocated(values) {
                Ok(values) => *block = values,
                Err(failure) => {
                    let found = each.iter_mut().filter(|answer| answer.result == KEYWAY_OK);
                    found.for_each(|answer| *answer = Answer::of(failure.code()));
                    failed.get_or_insert(failure);
                }
            }
        }
        failed.map_or(Ok(KEYWAY_OK), Err)
    })?
}

impl Answers {
    /// Writes the outputs of all entries: where a call failed as a whole, each has failed so.
    ///
    /// # Safety
    ///
    /// `entries` is NULL, or the address of `count` entries that can be written.
    unsafe fn give(self, entries: *mut keyway_entry, count: usize, code: keyway_result) {
        if entries.is_null() {
            return;
        }
        let failed = Answer::of(code);
        let all = self.each.len() == count;
        let mut next = self.block.cast::<c_char>().cast_const();
        for index in 0..count {
            let answer = self.each.get(index).filter(|_| all).unwrap_or(&failed);
            let mut value = std::ptr::null();
            if answer.result == KEYWAY_OK {
                value = next;
                next = next.wrapping_add(answer.item.value_len + 1);
            }
            // SAFETY: guaranteed by the caller.
            unsafe {
                let entry = entries.add(index);
                (&raw mut (*entry).result).write(answer.result);
                (&raw mut (*entry).item).write(answer.item);
                (&raw mut (*entry).value).write(value);
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
