//! Fetches: one caller of all processes computes a value, the others wait for it or take what is stale.

use crate::bytes::{self, Block, Buffer, OwnKey, Place};
use crate::failure::{Failure, boundary};
use crate::types::keyway_result::*;
use crate::types::*;
use keyway_cache::server::BindingSession as _;
use keyway_cache::{AtOnce, Begun, Cache, Fetch, Item, Session, Token, WaitedFor};
use std::ffi::{c_int, c_void};
use std::time::Duration;

/// The size that `keyway_fetch_options` had first.
const OPTIONS_SIZE_MIN: usize = 72;
const _: () = assert!(size_of::<keyway_fetch_options>() == OPTIONS_SIZE_MIN);

/// The right, and the duty, to compute the value of a key: keyway_fetch_store(), keyway_fetch_store_nothing() and
/// keyway_fetch_abandon() free it.
#[allow(non_camel_case_types, reason = "this is the name that C programs write")]
pub struct keyway_fetch_token {
    cache: Cache,
    token: Token,
    key: OwnKey,
    /// without a limit, which matters at the begin only
    how: Fetch<'static>,
    has_old: bool,
}

/// Gets a value, or the right and the duty to compute it, which one caller of all threads and processes has at a time. The
/// others wait for that one, or get what is stale. What was computed is not stored if the key was deleted, flushed or stored
/// meanwhile, so nothing that was read before a delete is found after it. `options` may be NULL; a hit looks at their size and
/// at `early` only. `item` may be NULL.
///
/// KEYWAY_OK: a value is in `buffer`. KEYWAY_STALE: an old one is, and another caller computes. KEYWAY_NOT_FOUND: it is
/// remembered that there is no value. KEYWAY_COMPUTE: the caller computes, and ends the fetch by keyway_fetch_store(),
/// keyway_fetch_store_nothing() or keyway_fetch_abandon(); until then, or until this thread ends, others wait.
/// KEYWAY_IN_FLIGHT, KEYWAY_LIMITED: the wait is over. KEYWAY_ERROR_BUFFER_TOO_SMALL: item->value_len bytes are needed,
/// nothing was copied, and no fetch has begun. With any other result the buffer may have been written to.
///
/// `*token` is NULL unless the result is KEYWAY_COMPUTE. If keyway_fetch_has_old(*token), an old value and its item are where
/// a hit's would be. Otherwise `item` gets zeros where no value was found, or the call failed. The key may be in the buffer.
///
/// A process that may only read has its server wait. Without a server it computes, and stores nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keyway_fetch_begin(
    cache: *mut keyway,
    key: *const c_void,
    key_len: usize,
    options: *const keyway_fetch_options,
    buffer: *mut c_void,
    buffer_size: usize,
    item: *mut keyway_item,
    token: *mut *mut keyway_fetch_token,
) -> keyway_result {
    let mut begun = std::ptr::null_mut();
    let code = boundary(|| {
        bytes::check_buffer(buffer, buffer_size)?;
        // SAFETY: guaranteed by the caller.
        let mut place = unsafe { Buffer::new(buffer, buffer_size, item) };
        // SAFETY: guaranteed by the caller.
        unsafe { begin(cache, key, key_len, options, &mut place, token, &mut begun) }
    });
    // SAFETY: guaranteed by the caller; the token is NULL, or was made above.
    unsafe {
        if !matches!(code, KEYWAY_OK | KEYWAY_STALE | KEYWAY_ERROR_BUFFER_TOO_SMALL) && keyway_fetch_has_old(begun) == 0 {
            bytes::answer(item, keyway_item::default());
        }
        bytes::answer(token, begun);
    }
    code
}

/// As keyway_fetch_begin(), with the value in memory from malloc() and a zero byte after it. Free it by keyway_free() or
/// free(). `*value` is NULL if there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keyway_fetch_begin_alloc(
    cache: *mut keyway,
    key: *const c_void,
    key_len: usize,
    options: *const keyway_fetch_options,
    value: *mut *mut c_void,
    item: *mut keyway_item,
    token: *mut *mut keyway_fetch_token,
) -> keyway_result {
    let (mut copy, mut its, mut begun) = (std::ptr::null_mut(), keyway_item::default(), std::ptr::null_mut());
    let code = boundary(|| {
        if value.is_null() {
            return Err(Failure::argument("the place for the value is NULL"));
        }
        let mut block = Block::default();
        // SAFETY: guaranteed by the caller; the token is NULL, or was made here.
        let (code, has_old) = unsafe {
            let code = begin(cache, key, key_len, options, &mut block, token, &mut begun)?;
            (code, keyway_fetch_has_old(begun) != 0)
        };
        if matches!(code, KEYWAY_OK | KEYWAY_STALE) || has_old {
            let item = block.item;
            (copy, its) = (block.finish()?, item);
        }
        Ok(code)
    });
    // SAFETY: guaranteed by the caller.
    unsafe {
        bytes::answer(value, copy);
        bytes::answer(item, its);
        bytes::answer(token, begun);
    }
    code
}

/// Whether there is an old value that options.stale_if_error_s allows to be used if computing fails: 1 or 0. It is where
/// keyway_fetch_begin() or keyway_fetch_begin_alloc() has put it. NULL has none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keyway_fetch_has_old(token: *const keyway_fetch_token) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { token.as_ref() }.is_some_and(|token| token.has_old).into()
}

/// Stores what was computed, by the options of the begin, and wakes those who wait. The token is freed, whatever the result
/// is. Any thread may call it, before keyway_close().
///
/// KEYWAY_NOT_STORED: the token is void, and nothing is stored: the key was deleted, flushed or stored since the fetch began,
/// another caller has taken the computation over, or this is a forked child and the fetch its parent's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keyway_fetch_store(
    token: *mut keyway_fetch_token,
    value: *const c_void,
    value_len: usize,
) -> keyway_result {
    // SAFETY: guaranteed by the caller.
    unsafe {
        end(token, |session, key, token, how| match bytes::value(value, value_len) {
            Ok(value) => Ok(session.fetch_store(key, token, value, how)?),
            Err(failure) => {
                session.fetch_abandon(key, token)?;
                Err(failure)
            }
        })
    }
}

/// As keyway_fetch_store(), where there is no value. That is remembered for options.negative_ttl_s seconds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keyway_fetch_store_nothing(token: *mut keyway_fetch_token) -> keyway_result {
    // SAFETY: guaranteed by the caller.
    unsafe {
        end(token, |session, key, token, how| {
            Ok(session.fetch_store_nothing(key, token, how)?)
        })
    }
}

/// Ends a fetch whose computation has failed: one of those who wait computes. Otherwise as keyway_fetch_store(). NULL is
/// ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keyway_fetch_abandon(token: *mut keyway_fetch_token) -> keyway_result {
    if token.is_null() {
        return KEYWAY_OK;
    }
    // SAFETY: guaranteed by the caller.
    unsafe { end(token, |session, key, token, _| Ok(session.fetch_abandon(key, token)?)) }
}

/// Begins a fetch whose value goes to `place`. A hit is a get, and two words of the options.
///
/// # Safety
///
/// `cache` is NULL or open; `key` is NULL, or `key_len` bytes can be read from it; `options` is NULL, or as many bytes as its size says
/// can be read, and those of the first version.
#[inline(always)]
unsafe fn begin<P: Place>(
    cache: *mut keyway,
    key: *const c_void,
    key_len: usize,
    options: *const keyway_fetch_options,
    place: &mut P,
    token: *mut *mut keyway_fetch_token,
    begun: &mut *mut keyway_fetch_token,
) -> Result<keyway_result, Failure> {
    // SAFETY: guaranteed by the caller.
    let (cache, given) = unsafe { (bytes::cache(cache)?, bytes::key(key, key_len)?) };
    if token.is_null() {
        return Err(Failure::argument("the place for the token is NULL"));
    }
    // SAFETY: guaranteed by the caller.
    let gets_first = unsafe { options.as_ref() }
        .is_none_or(|options| options.size == size_of::<keyway_fetch_options>() && options.early.to_bits() == 0);
    if !gets_first {
        // SAFETY: guaranteed by the caller.
        return unsafe { begin_without_get(cache, given, options, place, begun) };
    }
    let missed = cache.with_session(|session, value| {
        session.get_fresh(given, place, |session, key, place| {
            // SAFETY: guaranteed by the caller.
            unsafe { begin_missed(cache, session, (key, value), options, place, begun) }
        })
    })??;
    match missed {
        Some(missed) => missed,
        None if place.fits() => Ok(KEYWAY_OK),
        None => Err(place.refusal()),
    }
}

/// A fetch that may refresh early, or whose options are of another version.
///
/// # Safety
///
/// `options` as in [`begin`].
#[cold]
unsafe fn begin_without_get<P: Place>(
    cache: &Cache,
    given: &[u8],
    options: *const keyway_fetch_options,
    place: &mut P,
    begun: &mut *mut keyway_fetch_token,
) -> Result<keyway_result, Failure> {
    let key = OwnKey::of(given);
    // SAFETY: guaranteed by the caller.
    cache.with_session(|session, value| unsafe { begin_missed(cache, session, (key.bytes(), value), options, place, begun) })?
}

/// A fetch of what a get has not found, or that may refresh early. The key is a copy; `value` is empty.
///
/// # Safety
///
/// `options` as in [`begin`].
unsafe fn begin_missed<P: Place>(
    cache: &Cache,
    session: &mut Session,
    (key, value): (&[u8], &mut Vec<u8>),
    options: *const keyway_fetch_options,
    place: &mut P,
    begun: &mut *mut keyway_fetch_token,
) -> Result<keyway_result, Failure> {
    // SAFETY: guaranteed by the caller.
    let (options, prefix) = unsafe { read_options(options)? };
    let how = fetch_of(&options, prefix.bytes());
    let (code, item, token) = match session.fetch_missed(key, &how, value)? {
        Begun::Hit(item) => (KEYWAY_OK, Some(item), None),
        Begun::Stale(item) => (KEYWAY_STALE, Some(item), None),
        Begun::Nothing => (KEYWAY_NOT_FOUND, None, None),
        Begun::Waited(WaitedFor::Flight) => (KEYWAY_IN_FLIGHT, None, None),
        Begun::Waited(WaitedFor::Limit) => (KEYWAY_LIMITED, None, None),
        Begun::Compute(token) => {
            let old = token.old().copied();
            (KEYWAY_COMPUTE, old, Some(token))
        }
    };
    if let Some(item) = &item
        && !put(place, item, value)
    {
        if let Some(token) = token {
            session.fetch_abandon(key, token)?;
        }
        return Err(place.refusal());
    }
    if let Some(token) = token {
        *begun = Box::into_raw(Box::new(keyway_fetch_token {
            cache: cache.clone(),
            token,
            key: OwnKey::of(key),
            how: Fetch {
                limit: None,
                ..fetch_of(&options, &[])
            },
            has_old: item.is_some(),
        }));
    }
    Ok(code)
}

/// Copies a value to its place. `false`: there is no room for it.
fn put(place: &mut impl Place, item: &Item, value: &[u8]) -> bool {
    if !place.make_room(&Item { cas: 0, ..*item }) {
        return false;
    }
    let Some(room) = place.room().get_mut(..value.len()) else {
        return false;
    };
    room.write_copy_of_slice(value);
    true
}

/// Ends a fetch, and frees its token.
///
/// # Safety
///
/// The token is NULL, or comes from [`begin`] and has not been freed.
unsafe fn end(
    token: *mut keyway_fetch_token,
    work: impl FnOnce(&mut Session, &[u8], Token, &Fetch<'_>) -> Result<bool, Failure>,
) -> keyway_result {
    boundary(|| {
        if token.is_null() {
            return Err(Failure::argument(
                "the token is NULL: keyway_fetch_begin() has returned no KEYWAY_COMPUTE",
            ));
        }
        // SAFETY: guaranteed by the caller.
        let keyway_fetch_token {
            cache, token, key, how, ..
        } = *unsafe { Box::from_raw(token) };
        let is_stored = cache.with_session(|session, _| work(session, key.bytes(), token, &how))??;
        Ok(if is_stored { KEYWAY_OK } else { KEYWAY_NOT_STORED })
    })
}

/// The caller's options, and its limit's prefix, both copied.
///
/// # Safety
///
/// As in [`begin`].
unsafe fn read_options(options: *const keyway_fetch_options) -> Result<(keyway_fetch_options, OwnKey), Failure> {
    // SAFETY: guaranteed by the caller.
    let known = unsafe { bytes::options(options, OPTIONS_SIZE_MIN, "keyway_fetch_options")? };
    let all = KEYWAY_FETCH_NO_WAIT | KEYWAY_FETCH_GIVE_UP | KEYWAY_FETCH_TASKS;
    if known.options & !all != 0 {
        return Err(Failure::argument(format!(
            "options.options is {:#x}: this version knows {all:#x}",
            known.options
        )));
    }
    if !(0.0..=f64::MAX).contains(&known.early) {
        return Err(Failure::argument(format!(
            "options.early is {}: it is 0 or greater, usually 1",
            known.early
        )));
    }
    if known.limit == 0 || known.limit_prefix_len == 0 {
        return Ok((known, OwnKey::NONE));
    }
    if known.limit_prefix.is_null() {
        return Err(Failure::argument(format!(
            "options.limit_prefix is NULL, and options.limit_prefix_len {}, not 0",
            known.limit_prefix_len
        )));
    }
    // What is longer than a key names the limit by its beginning.
    let len = known.limit_prefix_len.min(KEYWAY_KEY_LENGTH_MAX);
    // SAFETY: guaranteed by the caller.
    let prefix = unsafe { bytes::value(known.limit_prefix, len)? };
    Ok((known, OwnKey::of(prefix)))
}

/// Options in the words of the library.
fn fetch_of<'p>(options: &keyway_fetch_options, prefix: &'p [u8]) -> Fetch<'p> {
    let default = Fetch::default();
    let has = |flag| options.options & flag != 0;
    Fetch {
        flags: options.flags,
        ttl: options.exptime,
        negative_ttl: options.negative_ttl_s,
        stale_while_revalidate: options.stale_while_revalidate_s,
        stale_if_error: options.stale_if_error_s,
        early: options.early,
        wait: match options.wait_ms {
            _ if has(KEYWAY_FETCH_NO_WAIT) => Duration::ZERO,
            0 => default.wait,
            wait_ms => Duration::from_millis(wait_ms),
        },
        compute_after_wait: !has(KEYWAY_FETCH_GIVE_UP),
        limit: (options.limit > 0).then_some(AtOnce {
            prefix,
            at_most: usize::try_from(options.limit).unwrap_or(usize::MAX),
        }),
        has_tasks: has(KEYWAY_FETCH_TASKS),
        has_looked: false,
    }
}
