//! Changing items: what `set`, `add`, `incr`, `delete`, `touch` and similar functions do to the region, and what a server
//! would have answered over the protocol that the handle is set to.
//!
//! # Safety
//!
//! As `handle.rs` and `export.rs`.
#![allow(unsafe_code, reason = "C pointers; contract above")]

use crate::error;
use crate::export::handle_functions;
use crate::handle::{self, Handle, Way, put};
use crate::types::*;
use keyway_cache::server::KeyRoom;
use keyway_cache::{Arithmetic, Counted, Delete, Deleted, LocalError, Session, Store, StoreMode, Stored, WriteError};
use std::ffi::{c_char, c_int};

/// The key, if libmemcached accepts it; otherwise the code. The program may change its bytes at any time. So where they are looked at here,
/// that is a copy in the room, which is returned; otherwise the session's verb makes the only copy.
///
/// # Safety
///
/// The handle is ours; the key is NULL or has the given number of bytes.
#[inline]
pub(crate) unsafe fn check_key(
    st: *const memcached_st,
    key: *const c_char,
    length: usize,
    room: &mut KeyRoom,
) -> Result<&[u8], c_int> {
    if key.is_null() || length == 0 || length >= MAX_KEY {
        return Err(error::set(st, rc::BAD_KEY_PROVIDED, "Key provided was too long."));
    }
    // SAFETY: guaranteed by the caller.
    unsafe {
        let bytes = std::slice::from_raw_parts(key.cast::<u8>(), length);
        if !(*st).is(Flag::VerifyKey) || (*st).is(Flag::BinaryProtocol) {
            return Ok(bytes);
        }
        let copy = room.take(bytes);
        if !copy.iter().all(u8::is_ascii_graphic) {
            return Err(error::set(st, rc::BAD_KEY_PROVIDED, "Key provided had invalid character."));
        }
        Ok(copy)
    }
}

/// The key as it is in the region: with the namespace before it.
#[inline]
pub(crate) fn whole_key<'a>(namespace: Option<&std::ffi::CStr>, buffer: &'a mut Vec<u8>, key: &'a [u8]) -> &'a [u8] {
    match namespace {
        None => key,
        Some(namespace) => {
            buffer.clear();
            buffer.extend_from_slice(namespace.to_bytes());
            buffer.extend_from_slice(key);
            buffer
        }
    }
}

/// Why a call was not executed in the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Undone {
    /// this code is returned
    Code(c_int),
    /// the handle is the real library's now, which is to be called instead
    Away,
}

impl Undone {
    /// What a body of [`handle_functions`] returns.
    pub(crate) fn answer(self) -> Option<c_int> {
        match self {
            Self::Code(code) => Some(code),
            Self::Away => None,
        }
    }
}

/// Executes an operation on a key in the region. If it fails, the failure is kept in the handle.
///
/// # Safety
///
/// The handle is ours; the key has the given number of bytes.
#[inline]
unsafe fn work<R>(
    st: *mut memcached_st,
    handle: &mut Handle,
    key: *const c_char,
    length: usize,
    work: impl FnOnce(&mut Session, &[u8]) -> Result<R, WriteError>,
) -> Result<R, Undone> {
    let mut room = KeyRoom::new();
    // SAFETY: guaranteed by the caller.
    let key = unsafe { check_key(st, key, length, &mut room).map_err(Undone::Code)? };
    let Some(open) = &handle.open else {
        return Err(Undone::Code(rc::FAILURE));
    };
    let key = whole_key(handle.namespace.as_deref(), &mut handle.key, key);
    match open.cache.with_session(|session, _| work(session, key)) {
        Ok(Ok(done)) => Ok(done),
        // SAFETY: guaranteed by the caller; the handle is not used after it.
        Ok(Err(error)) => Err(unsafe { undone(st, error) }),
        Err(error) => Err(Undone::Code(unreachable(st, &error))),
    }
}

/// Handles a write that the region does not accept. If a server answers from the kernel, the write goes to the server's
/// own socket.
///
/// # Safety
///
/// The handle is ours. After this, the only valid use of the handle is to ask whose it is.
#[cold]
pub(crate) unsafe fn undone(st: *mut memcached_st, error: WriteError) -> Undone {
    // SAFETY: guaranteed by the caller.
    if error == WriteError::KernelDoor && unsafe { handle::shut_out(st) } {
        return Undone::Away;
    }
    Undone::Code(refused(st, error))
}

/// What the server would have answered to a write that cannot be executed.
#[cold]
pub(crate) fn refused(st: *const memcached_st, error: WriteError) -> c_int {
    match error {
        WriteError::TooLarge { .. } => rc::E2BIG,
        WriteError::NoMemory { .. } => error::set(st, rc::MEMORY_ALLOCATION_FAILURE, &error.to_string()),
        WriteError::OutOfMemory => rc::SERVER_MEMORY_ALLOCATION_FAILURE,
        WriteError::FlushRefused => error::set_client_error(st, "flush_all not allowed"),
        WriteError::KeyLength { .. } => error::set_client_error(st, "line too long: namespace and key have more than 250 bytes"),
        // A handle that has no server to fall back to.
        WriteError::KernelDoor => {
            let why = "the region's server answers from the kernel, and what is changed here cannot be counted for it: name the server \
                       in place of keyway:PATH, or its region socket, keyway:SOCKET (keyway serve --region-socket SOCKET)";
            error::set(st, rc::SERVER_ERROR, why)
        }
        WriteError::Detached => error::set(st, rc::CONNECTION_FAILURE, &error.to_string()),
        other => error::set(st, rc::SERVER_ERROR, &other.to_string()),
    }
}

/// This thread, or this child, cannot use the region.
#[cold]
pub(crate) fn unreachable(st: *const memcached_st, error: &LocalError) -> c_int {
    error::set(st, rc::CONNECTION_FAILURE, &error.to_string())
}

/// The bytes of a value; NULL has none. `None`: no object has so many.
///
/// # Safety
///
/// The pointer is NULL, or refers to the given number of bytes.
#[inline]
pub(crate) unsafe fn value<'a>(value: *const c_char, length: usize) -> Option<&'a [u8]> {
    if value.is_null() || length == 0 {
        return Some(&[]);
    }
    isize::try_from(length).ok()?;
    // SAFETY: guaranteed by the caller; the length is one that an object can have.
    Some(unsafe { std::slice::from_raw_parts(value.cast(), length) })
}

/// An expiration as a server gets it. Both protocols carry the low 32 bits, the binary one without a sign. So a `time_t`
/// of -1 expires at once by the text protocol, and lasts until 2106 by the binary one.
///
/// # Safety
///
/// The handle can be read.
#[inline]
unsafe fn sent_exptime(st: *const memcached_st, expiration: i64) -> i64 {
    let [a, b, c, d, ..] = expiration.to_le_bytes();
    // SAFETY: guaranteed by the caller.
    if unsafe { (*st).is(Flag::BinaryProtocol) } {
        u32::from_le_bytes([a, b, c, d]).into()
    } else {
        i32::from_le_bytes([a, b, c, d]).into()
    }
}

/// # Safety
///
/// The handle is ours; the key has the given number of bytes; the value is NULL, or has the given number of bytes.
#[inline]
unsafe fn store(
    st: *mut memcached_st,
    key: *const c_char,
    key_length: usize,
    bytes: *const c_char,
    length: usize,
    how: &Store,
) -> Option<c_int> {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let handle = match handle::enter(st) {
            Way::Here(handle) => handle,
            Way::Away => return None,
            Way::Stuck(code) => return Some(code),
        };
        let Some(bytes) = value(bytes, length) else {
            return Some(refused(st, WriteError::NoMemory { len: length }));
        };
        let how = &Store {
            exptime: sent_exptime(st, how.exptime),
            ..*how
        };
        let stored = work(st, handle, key, key_length, |session, key| session.store(key, bytes, how));
        let (binary, quiet) = ((*st).is(Flag::BinaryProtocol), !(*st).is(Flag::Reply));
        Some(match stored {
            // Also without replies: the old value is gone, and nothing is stored.
            Err(undone) => return undone.answer(),
            Ok(_) if quiet => rc::SUCCESS,
            Ok(_) if (*st).is(Flag::BufferRequests) && how.mode == StoreMode::Set && how.compare_cas.is_none() => rc::BUFFERED,
            Ok(Stored::Stored { .. }) => rc::SUCCESS,
            Ok(Stored::Exists) => rc::DATA_EXISTS,
            Ok(Stored::NotFound) => rc::NOTFOUND,
            Ok(Stored::NotStored) if binary && how.mode == StoreMode::Add => rc::DATA_EXISTS,
            Ok(Stored::NotStored) if binary && how.mode == StoreMode::Replace => rc::NOTFOUND,
            Ok(Stored::NotStored) => rc::NOTSTORED,
        })
    }
}

#[inline]
fn how(mode: StoreMode, exptime: i64, flags: u32) -> Store {
    Store {
        mode,
        exptime,
        flags,
        ..Store::default()
    }
}

/// Stores if the item still has this CAS unique. With 0, which no item has, the text protocol's line lacks its last word,
/// and a server refuses it; the binary protocol's command is then a plain `replace`.
///
/// # Safety
///
/// The handle is ours; the key has the given number of bytes; the value is NULL, or has the given number of bytes.
#[inline]
unsafe fn compare_and_store(
    st: *mut memcached_st,
    (key, key_length): (*const c_char, usize),
    (bytes, length): (*const c_char, usize),
    (exptime, flags): (i64, u32),
    cas: u64,
) -> Option<c_int> {
    // SAFETY: guaranteed by the caller.
    unsafe {
        if cas != 0 {
            let how = Store {
                compare_cas: Some(cas),
                ..how(StoreMode::Set, exptime, flags)
            };
            return store(st, key, key_length, bytes, length, &how);
        }
        if (*st).is(Flag::BinaryProtocol) {
            return store(st, key, key_length, bytes, length, &how(StoreMode::Replace, exptime, flags));
        }
        match handle::enter(st) {
            Way::Here(_) => {
                let refused = if (*st).is(Flag::Reply) { rc::ERROR } else { rc::SUCCESS };
                Some(check_key(st, key, key_length, &mut KeyRoom::new()).err().unwrap_or(refused))
            }
            Way::Away => None,
            Way::Stuck(code) => Some(code),
        }
    }
}

macro_rules! stores {
    ($($name:ident, $by_key:ident, $mode:ident;)*) => { handle_functions! {$(
        fn $name(st: *mut memcached_st, key: *const c_char, key_length: usize, value: *const c_char, length: usize, exptime: i64, flags: u32)
            -> c_int = rc::INVALID_ARGUMENTS; store(st, key, key_length, value, length, &how(StoreMode::$mode, exptime, flags))

        fn $by_key(st: *mut memcached_st, _group: *const c_char, _group_length: usize, key: *const c_char, key_length: usize,
            value: *const c_char, length: usize, exptime: i64, flags: u32)
            -> c_int = rc::INVALID_ARGUMENTS; store(st, key, key_length, value, length, &how(StoreMode::$mode, exptime, flags))
    )*} };
}

stores! {
    memcached_set, memcached_set_by_key, Set;
    memcached_add, memcached_add_by_key, Add;
    memcached_replace, memcached_replace_by_key, Replace;
    memcached_append, memcached_append_by_key, Append;
    memcached_prepend, memcached_prepend_by_key, Prepend;
}

handle_functions! {
    fn memcached_delete(st: *mut memcached_st, key: *const c_char, length: usize, expiration: i64) -> c_int = rc::INVALID_ARGUMENTS;
        delete(st, key, length, expiration)

    fn memcached_delete_by_key(st: *mut memcached_st, _group: *const c_char, _group_length: usize, key: *const c_char, length: usize,
        expiration: i64) -> c_int = rc::INVALID_ARGUMENTS; delete(st, key, length, expiration)

    fn memcached_touch(st: *mut memcached_st, key: *const c_char, length: usize, expiration: i64) -> c_int = rc::INVALID_ARGUMENTS;
        touch(st, key, length, expiration)

    fn memcached_touch_by_key(st: *mut memcached_st, _group: *const c_char, _group_length: usize, key: *const c_char, length: usize,
        expiration: i64) -> c_int = rc::INVALID_ARGUMENTS; touch(st, key, length, expiration)

    fn memcached_exist(st: *mut memcached_st, key: *const c_char, length: usize) -> c_int = rc::INVALID_ARGUMENTS;
        exist(st, key, length)

    fn memcached_exist_by_key(st: *mut memcached_st, _group: *const c_char, _group_length: usize, key: *const c_char, length: usize)
        -> c_int = rc::INVALID_ARGUMENTS; exist(st, key, length)

    fn memcached_increment(st: *mut memcached_st, key: *const c_char, length: usize, delta: u32, number: *mut u64)
        -> c_int = rc::INVALID_ARGUMENTS; count(st, key, length, &counting(u64::from(delta), false), number)

    fn memcached_decrement(st: *mut memcached_st, key: *const c_char, length: usize, delta: u32, number: *mut u64)
        -> c_int = rc::INVALID_ARGUMENTS; count(st, key, length, &counting(u64::from(delta), true), number)

    fn memcached_increment_by_key(st: *mut memcached_st, _group: *const c_char, _group_length: usize, key: *const c_char, length: usize,
        delta: u64, number: *mut u64) -> c_int = rc::INVALID_ARGUMENTS; count(st, key, length, &counting(delta, false), number)

    fn memcached_decrement_by_key(st: *mut memcached_st, _group: *const c_char, _group_length: usize, key: *const c_char, length: usize,
        delta: u64, number: *mut u64) -> c_int = rc::INVALID_ARGUMENTS; count(st, key, length, &counting(delta, true), number)

    fn memcached_increment_with_initial(st: *mut memcached_st, key: *const c_char, length: usize, delta: u64, initial: u64,
        expiration: i64, number: *mut u64) -> c_int = rc::INVALID_ARGUMENTS;
        count_from(st, key, length, counting(delta, false), (initial, expiration), number)

    fn memcached_decrement_with_initial(st: *mut memcached_st, key: *const c_char, length: usize, delta: u64, initial: u64,
        expiration: i64, number: *mut u64) -> c_int = rc::INVALID_ARGUMENTS;
        count_from(st, key, length, counting(delta, true), (initial, expiration), number)

    fn memcached_increment_with_initial_by_key(st: *mut memcached_st, _group: *const c_char, _group_length: usize, key: *const c_char,
        length: usize, delta: u64, initial: u64, expiration: i64, number: *mut u64) -> c_int = rc::INVALID_ARGUMENTS;
        count_from(st, key, length, counting(delta, false), (initial, expiration), number)

    fn memcached_decrement_with_initial_by_key(st: *mut memcached_st, _group: *const c_char, _group_length: usize, key: *const c_char,
        length: usize, delta: u64, initial: u64, expiration: i64, number: *mut u64) -> c_int = rc::INVALID_ARGUMENTS;
        count_from(st, key, length, counting(delta, true), (initial, expiration), number)

    fn memcached_cas(st: *mut memcached_st, key: *const c_char, key_length: usize, value: *const c_char, length: usize, exptime: i64,
        flags: u32, cas: u64) -> c_int = rc::INVALID_ARGUMENTS;
        compare_and_store(st, (key, key_length), (value, length), (exptime, flags), cas)

    fn memcached_cas_by_key(st: *mut memcached_st, _group: *const c_char, _group_length: usize, key: *const c_char, key_length: usize,
        value: *const c_char, length: usize, exptime: i64, flags: u32, cas: u64) -> c_int = rc::INVALID_ARGUMENTS;
        compare_and_store(st, (key, key_length), (value, length), (exptime, flags), cas)

    fn memcached_flush(st: *mut memcached_st, expiration: i64) -> c_int = rc::INVALID_ARGUMENTS; {
        match handle::enter(st) {
            Way::Here(handle) => flush(st, handle, expiration),
            Way::Away => None,
            Way::Stuck(code) => Some(code),
        }
    }
}

/// # Safety
///
/// The handle is ours; the key has the given number of bytes.
unsafe fn delete(st: *mut memcached_st, key: *const c_char, length: usize, expiration: i64) -> Option<c_int> {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let handle = match handle::enter(st) {
            Way::Here(handle) => handle,
            Way::Away => return None,
            Way::Stuck(code) => return Some(code),
        };
        if expiration != 0 {
            if let Err(code) = check_key(st, key, length, &mut KeyRoom::new()) {
                return Some(code);
            }
            let why = "Memcached server version does not allow expiration of deleted items";
            return Some(error::set(st, rc::INVALID_ARGUMENTS, why));
        }
        let deleted = work(st, handle, key, length, |session, key| {
            session.delete(key, &Delete::default())
        });
        let code = match deleted {
            Err(undone) => return undone.answer(),
            Ok(_) if (*st).is(Flag::BufferRequests) => rc::BUFFERED,
            Ok(_) if !(*st).is(Flag::Reply) => rc::SUCCESS,
            Ok(Deleted::Deleted) => rc::SUCCESS,
            Ok(Deleted::NotFound) => rc::NOTFOUND,
            Ok(Deleted::Exists) => rc::DATA_EXISTS,
        };
        // libmemcached calls it only for the text protocol's answer.
        if let (rc::SUCCESS, Some(trigger), false) = (code, (*st).delete_trigger, (*st).is(Flag::BinaryProtocol)) {
            trigger(st, key, length);
        }
        Some(code)
    }
}

/// # Safety
///
/// The handle is ours; the key has the given number of bytes.
unsafe fn touch(st: *mut memcached_st, key: *const c_char, length: usize, expiration: i64) -> Option<c_int> {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let exptime = sent_exptime(st, expiration);
        match handle::enter(st) {
            Way::Here(handle) => match work(st, handle, key, length, |session, key| session.touch(key, exptime)) {
                Ok(true) => Some(rc::SUCCESS),
                Ok(false) => Some(rc::NOTFOUND),
                Err(undone) => undone.answer(),
            },
            Way::Away => None,
            Way::Stuck(code) => Some(code),
        }
    }
}

/// libmemcached finds this out by adding an item that is long expired (`add KEY 0 2678400 0`); here nothing is added.
///
/// # Safety
///
/// The handle is ours; the key has the given number of bytes.
unsafe fn exist(st: *mut memcached_st, key: *const c_char, length: usize) -> Option<c_int> {
    let how = keyway_cache::Get {
        no_bump: true,
        ..keyway_cache::Get::default()
    };
    // SAFETY: guaranteed by the caller.
    unsafe {
        match handle::enter(st) {
            Way::Here(handle) => match work(st, handle, key, length, |session, key| {
                session.get_with(key, &how, &mut Vec::new(), |_, _| {})
            }) {
                Ok(Some(_)) => Some(rc::SUCCESS),
                Ok(None) => Some(rc::NOTFOUND),
                Err(undone) => undone.answer(),
            },
            Way::Away => None,
            Way::Stuck(code) => Some(code),
        }
    }
}

#[inline]
fn counting(delta: u64, decrement: bool) -> Arithmetic {
    Arithmetic {
        delta,
        decrement,
        ..Arithmetic::default()
    }
}

/// # Safety
///
/// The handle is ours; the key has the given number of bytes; the number is NULL or can be written.
#[inline]
unsafe fn count(st: *mut memcached_st, key: *const c_char, length: usize, how: &Arithmetic, number: *mut u64) -> Option<c_int> {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let handle = match handle::enter(st) {
            Way::Here(handle) => handle,
            Way::Away => return None,
            Way::Stuck(code) => return Some(code),
        };
        let counted = work(st, handle, key, length, |session, key| session.arithmetic(key, how));
        let (mut answer, mut code) = (u64::MAX, rc::SUCCESS);
        match counted {
            Ok(Counted::Value { value, .. }) => answer = value,
            Ok(Counted::NotFound) => code = rc::NOTFOUND,
            Ok(Counted::Exists) => code = rc::DATA_EXISTS,
            // Without replies, the server's error is not sent.
            Ok(Counted::NotANumber) if !(*st).is(Flag::Reply) => {}
            Ok(Counted::NotANumber) if (*st).is(Flag::BinaryProtocol) => code = error::set(st, rc::UNKNOWN_READ_FAILURE, ""),
            Ok(Counted::NotANumber) => {
                code = error::set_client_error(st, "cannot increment or decrement non-numeric value");
            }
            Err(Undone::Away) => return None,
            Err(Undone::Code(refused)) => code = refused,
        }
        if !(*st).is(Flag::Reply) && code != rc::BAD_KEY_PROVIDED {
            (answer, code) = (u64::MAX, rc::SUCCESS);
        }
        if code != rc::BAD_KEY_PROVIDED {
            put(number, answer);
        }
        Some(code)
    }
}

/// Only the binary protocol can do this. A handle that is set to the text protocol is refused, as by libmemcached.
///
/// # Safety
///
/// The handle is ours; the key has the given number of bytes; the number is NULL or can be written.
unsafe fn count_from(
    st: *mut memcached_st,
    key: *const c_char,
    length: usize,
    how: Arithmetic,
    (initial, expiration): (u64, i64),
    number: *mut u64,
) -> Option<c_int> {
    // SAFETY: guaranteed by the caller.
    unsafe {
        if !(*st).is(Flag::BinaryProtocol) {
            match handle::enter(st) {
                Way::Away => return None,
                Way::Stuck(code) => return Some(code),
                Way::Here(_) => {}
            }
            if let Err(code) = check_key(st, key, length, &mut KeyRoom::new()) {
                return Some(code);
            }
            put(number, u64::MAX);
            let why = "memcached_increment_with_initial_by_key() is not supported via the ASCII protocol";
            return Some(error::set(st, rc::INVALID_ARGUMENTS, why));
        }
        let exptime = sent_exptime(st, expiration);
        // MEMCACHED_EXPIRATION_NOT_ADD, as the 32 bits that the protocol has for it.
        let vivify = (exptime != i64::from(u32::MAX)).then_some((initial, exptime));
        count(st, key, length, &Arithmetic { vivify, ..how }, number)
    }
}

/// # Safety
///
/// The handle is ours.
unsafe fn flush(st: *mut memcached_st, handle: &mut Handle, expiration: i64) -> Option<c_int> {
    let Some(open) = &handle.open else { return Some(rc::FAILURE) };
    // SAFETY: guaranteed by the caller.
    let exptime = unsafe { sent_exptime(st, expiration) };
    match open.cache.with_session(|session, _| session.flush_all(exptime)) {
        Ok(Ok(())) => Some(rc::SUCCESS),
        // SAFETY: guaranteed by the caller.
        Ok(Err(error)) => unsafe { undone(st, error) }.answer(),
        Err(error) => Some(unreachable(st, &error)),
    }
}
