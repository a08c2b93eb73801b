//! Getting items: one at a time, or many that are fetched afterwards.
//!
//! `memcached_mget` gets all items at once, as a server would have when the request came. Items that the program has not
//! fetched yet wait in the handle ([`Pending`]).
//!
//! # Safety
//!
//! As `handle.rs` and `export.rs`. No reference to a handle is kept while a callback runs.
#![allow(unsafe_code, reason = "C pointers; contract above")]

use crate::error;
use crate::export::handle_functions;
use crate::flight;
use crate::handle::{self, Handle, Way, put};
use crate::result;
use crate::store;
use crate::types::*;
use keyway_cache::server::KeyRoom;
use keyway_cache::{AHEAD_MAX, Get, Item, Session, Target, WriteError};
use std::ffi::{CString, c_char, c_int, c_void};
use std::mem::MaybeUninit;

/// Items that were got and not fetched yet.
#[derive(Default)]
pub(crate) struct Pending {
    /// keys and values, one after the other
    bytes: Vec<u8>,
    items: Vec<Got>,
    next: usize,
    /// items were requested, and the end of them has not been reported yet
    asked: bool,
}

struct Got {
    /// where its key begins; its value follows
    at: usize,
    key_len: usize,
    value_len: usize,
    flags: u32,
    cas: u64,
}

impl Pending {
    #[inline]
    pub(crate) fn clear(&mut self) {
        if self.asked {
            self.forget();
        }
    }

    #[cold]
    fn forget(&mut self) {
        self.bytes.clear();
        self.items.clear();
        self.next = 0;
        self.asked = false;
        if self.bytes.capacity() > 1 << 20 {
            self.bytes = Vec::new();
        }
    }
}

fn how(st: &memcached_st) -> Get {
    Get {
        value: true,
        details: st.is(Flag::SupportCas) || st.is(Flag::BinaryProtocol),
        ..Get::default()
    }
}

/// A block of the handle's memory for a value, with two zero bytes after it, as libmemcached's values have. It does not free itself:
/// what a panic would have to clean up costs every get.
struct Block {
    st: *const memcached_st,
    /// NULL for an empty value, as in libmemcached, and if there is no memory
    block: *mut c_char,
    /// length of the value
    len: usize,
    flags: u32,
}

impl Block {
    /// # Safety
    ///
    /// The handle is one, as long as the block lives.
    unsafe fn new(st: *const memcached_st) -> Self {
        Self {
            st,
            block: std::ptr::null_mut(),
            len: 0,
            flags: 0,
        }
    }

    /// Frees the block, if there is one.
    fn free(&mut self) {
        let block = std::mem::replace(&mut self.block, std::ptr::null_mut());
        // SAFETY: guaranteed by `new`'s caller; the block comes from there, or is NULL.
        unsafe { handle::free_block(self.st, block.cast()) };
    }
}

impl Target for Block {
    #[inline]
    fn make_room(&mut self, item: &Item) -> bool {
        self.flags = item.flags;
        if self.block.is_null() || self.len != item.value_len {
            if !self.block.is_null() {
                self.free();
            }
            self.len = item.value_len;
            // SAFETY: guaranteed by `new`'s caller; there is space for the value and two bytes more.
            unsafe {
                if self.len > 0 {
                    let allocators = &(*self.st).allocators;
                    self.block = (allocators.malloc)(self.st, self.len.saturating_add(2), allocators.context).cast();
                }
                if !self.block.is_null() {
                    self.block.add(self.len).cast::<[u8; 2]>().write([0; 2]);
                }
            }
        }
        !self.block.is_null()
    }

    #[inline]
    fn room(&mut self) -> &mut [MaybeUninit<u8>] {
        if self.block.is_null() {
            return &mut [];
        }
        // SAFETY: the block has this many bytes, and no other code uses it.
        unsafe { std::slice::from_raw_parts_mut(self.block.cast(), self.len) }
    }
}

/// Gets the value of a key into a block. `None`: `failed` says why not. Its arguments and its result fit registers.
#[inline(never)]
fn get_to(session: &mut Session, key: &[u8], block: &mut Block, failed: &mut Option<WriteError>) -> Option<bool> {
    let mut get = |session: &mut Session| session.get_into(key, Get::VALUE, block);
    let mut found = get(session);
    if let Ok(false) = found {
        found = flight::after_miss(session, key, get);
    }
    match found {
        Ok(found) => Some(found),
        Err(error) => {
            *failed = Some(error);
            None
        }
    }
}

/// Gets the value of a key, and returns libmemcached's code.
///
/// # Safety
///
/// The handle is ours; the key has the given number of bytes.
#[inline(always)]
unsafe fn get(st: *mut memcached_st, handle: &mut Handle, key: *const c_char, length: usize, block: &mut Block) -> c_int {
    // SAFETY: guaranteed by the caller.
    let mut room = KeyRoom::new();
    // SAFETY: guaranteed by the caller.
    let key = match unsafe { store::check_key(st, key, length, &mut room) } {
        Ok(key) => key,
        Err(code) => return code,
    };
    let Some(open) = &handle.open else {
        return rc::FAILURE;
    };
    let key = store::whole_key(handle.namespace.as_deref(), &mut handle.key, key);
    let mut failed = None;
    match open.cache.with_session(|session, _| get_to(session, key, block, &mut failed)) {
        Ok(Some(true)) => rc::SUCCESS,
        Ok(Some(false)) => rc::NOTFOUND,
        Ok(None) => failed.map_or(rc::FAILURE, |error| store::refused(st, error)),
        Err(error) => store::unreachable(st, &error),
    }
}

/// # Safety
///
/// The handle is ours; the key has the given number of bytes; the places are NULL or can be written.
#[inline(always)]
unsafe fn get_one(
    st: *mut memcached_st,
    key: *const c_char,
    length: usize,
    value_length: *mut usize,
    flags: *mut u32,
    code: *mut c_int,
) -> Option<*mut c_char> {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let mut block = Block::new(st);
        let answer = match handle::enter(st) {
            Way::Here(handle) => {
                handle.pending.clear();
                get(st, handle, key, length, &mut block)
            }
            Way::Away => return None,
            Way::Stuck(failed) => failed,
        };
        Some(match answer {
            rc::SUCCESS => {
                put(value_length, block.len);
                put(flags, block.flags);
                put(
                    code,
                    if block.block.is_null() {
                        without_block(&block)
                    } else {
                        rc::SUCCESS
                    },
                );
                block.block
            }
            failed => {
                block.free();
                put(value_length, 0);
                put(code, failed);
                if failed == rc::NOTFOUND {
                    put(flags, 0);
                    if let Some(trigger) = (*st).get_key_failure {
                        return Some(made_good(st, trigger, key, length, value_length, flags, code));
                    }
                }
                std::ptr::null_mut()
            }
        })
    }
}

/// The code for a value that has no block: it is empty, or there was no memory for it.
#[cold]
#[inline(never)]
fn without_block(block: &Block) -> c_int {
    match block.len {
        0 => rc::SUCCESS,
        len => store::refused(block.st, WriteError::NoMemory { len }),
    }
}

/// Calls the program's function that makes a missing value, and stores the value.
///
/// # Safety
///
/// The handle is ours; the key has the given number of bytes; the places are NULL or can be written.
#[cold]
unsafe fn made_good(
    st: *mut memcached_st,
    trigger: TriggerKeyFn,
    key: *const c_char,
    length: usize,
    value_length: *mut usize,
    flags: *mut u32,
    code: *mut c_int,
) -> *mut c_char {
    // SAFETY: guaranteed by the caller; the result lives until it is freed here.
    unsafe {
        let mut made = std::mem::MaybeUninit::<memcached_result_st>::uninit();
        let made = result::memcached_result_create(st, made.as_mut_ptr());
        let mut value = std::ptr::null_mut();
        let answer = trigger(st, key, length, made);
        if matches!(answer, rc::SUCCESS | rc::BUFFERED) {
            let (bytes, size) = (result::memcached_result_value(made), result::memcached_result_length(made));
            let stored = store::memcached_set(st, key, length, bytes, size, 0, (*made).item_flags);
            if matches!(stored, rc::SUCCESS | rc::BUFFERED) {
                put(code, stored);
                put(value_length, size);
                put(flags, (*made).item_flags);
                value = result::take(made);
            }
        }
        result::memcached_result_free(made);
        value
    }
}

/// Gets many keys into the handle.
///
/// # Safety
///
/// The handle is ours; there are the given number of keys, of these lengths.
unsafe fn ask(st: *mut memcached_st, keys: *const *const c_char, lengths: *const usize, count: usize) -> Option<c_int> {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let handle = match handle::enter(st) {
            Way::Here(handle) => handle,
            Way::Away => return None,
            Way::Stuck(code) => return Some(code),
        };
        if count == 0 {
            return Some(error::set(st, rc::INVALID_ARGUMENTS, "Numbers of keys provided was zero"));
        }
        if keys.is_null() || lengths.is_null() {
            return Some(error::set(
                st,
                rc::BAD_KEY_PROVIDED,
                "Key was NULL or length of key was zero.",
            ));
        }
        // From here on only the copies count: the program may change its keys, and these arrays, at any time.
        let namespace = handle.namespace.clone().map_or_else(Vec::new, CString::into_bytes);
        let (mut bytes, mut ends) = (Vec::new(), Vec::new());
        for index in 0..count {
            match store::check_key(st, keys.add(index).read(), lengths.add(index).read(), &mut KeyRoom::new()) {
                Ok(key) => {
                    bytes.extend_from_slice(&namespace);
                    bytes.extend_from_slice(key);
                    ends.push(bytes.len());
                }
                Err(code) => return Some(code),
            }
        }
        let starts = std::iter::once(0).chain(ends.iter().copied());
        let wholes: Vec<&[u8]> = starts.zip(&ends).filter_map(|(start, end)| bytes.get(start..*end)).collect();
        let how = how(&*st);
        let Handle { open, pending, .. } = handle;
        let Some(open) = open else { return Some(rc::FAILURE) };
        pending.clear();
        pending.asked = true;
        let all = open.cache.with_session(|session, _| {
            for together in wholes.chunks(AHEAD_MAX) {
                if together.len() > 1 {
                    session.prefetch(together.iter().copied());
                }
                for whole in together {
                    let key = whole.get(namespace.len()..).unwrap_or_default();
                    pending.get(session, key, whole, &how)?;
                }
            }
            Ok(())
        });
        match all {
            Ok(Ok(())) => Some(rc::SUCCESS),
            Ok(Err(error)) => store::undone(st, error).answer(),
            Err(error) => Some(store::unreachable(st, &error)),
        }
    }
}

impl Pending {
    fn get(&mut self, session: &mut Session, key: &[u8], whole: &[u8], how: &Get) -> Result<(), WriteError> {
        let at = self.bytes.len();
        self.bytes.extend_from_slice(key);
        let found = session.get_with(whole, how, &mut self.bytes, |_, _| {});
        match found {
            Ok(Some(item)) => self.items.push(Got {
                at,
                key_len: key.len(),
                value_len: item.value_len,
                flags: item.flags,
                cas: item.cas,
            }),
            Ok(None) | Err(_) => self.bytes.truncate(at),
        }
        found.map(|_| ())
    }

    /// The next item's bytes, key before value.
    fn next(&mut self) -> Option<(&Got, &[u8], &[u8])> {
        let got = self.items.get(self.next)?;
        self.next += 1;
        let (key, rest) = self.bytes.get(got.at..)?.split_at_checked(got.key_len)?;
        Some((got, key, rest.get(..got.value_len)?))
    }
}

/// Puts the next item into a result; NULL and a code if there is none.
///
/// # Safety
///
/// The handle is ours; the result is NULL or one.
unsafe fn next(st: *mut memcached_st, into: *mut memcached_result_st, code: *mut c_int) -> *mut memcached_result_st {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let handle = handle::of(st);
        let into = if into.is_null() {
            result::memcached_result_create(st, std::ptr::null_mut())
        } else {
            into
        };
        if into.is_null() {
            put(code, rc::MEMORY_ALLOCATION_FAILURE);
            return into;
        }
        if let Some((got, key, value)) = handle.pending.next() {
            result::reset(into);
            let item = &mut *into;
            item.item_flags = got.flags;
            item.item_cas = got.cas;
            item.key_length = key.len();
            if let Some(to) = item.item_key.get_mut(..key.len()) {
                to.copy_from_slice(key);
            }
            if let Some(end) = item.item_key.get_mut(key.len()) {
                *end = 0;
            }
            if !result::append(into, value) {
                put(code, rc::MEMORY_ALLOCATION_FAILURE);
                return std::ptr::null_mut();
            }
            (*into).count += 1;
            handle.result_used |= std::ptr::eq(into, &raw const (*st).result);
            put(code, rc::SUCCESS);
            return into;
        }
        handle.pending.clear();
        put(code, if (*into).count > 0 { rc::END } else { rc::NOTFOUND });
        if (*into).options & ALLOCATED != 0 {
            result::memcached_result_free(into);
        } else {
            (*into).count = 0;
            (*into).value.end = (*into).value.string;
        }
        std::ptr::null_mut()
    }
}

/// Calls the program's functions for each waiting item. If one function fails for an item, the later ones are not called
/// for it.
///
/// # Safety
///
/// The handle is ours; there are the given number of callbacks.
unsafe fn call(st: *mut memcached_st, callbacks: *const ExecuteFn, context: *mut c_void, count: u32) -> c_int {
    let (mut code, mut failed) = (rc::NOTFOUND, false);
    // SAFETY: guaranteed by the caller; a callback may have handed the handle over.
    unsafe {
        while handle::is_ours(st) {
            let item = next(st, &raw mut (*st).result, &raw mut code);
            if item.is_null() {
                break;
            }
            for index in 0..count as usize {
                let answer = (*callbacks.add(index))(st, item, context);
                if !rc::succeeded(answer) {
                    failed = true;
                    error::set(st, answer, "");
                    break;
                }
            }
        }
    }
    match code {
        _ if failed => rc::SOME_ERRORS,
        code if rc::succeeded(code) => rc::SUCCESS,
        code => code,
    }
}

/// Gets many keys for a program that gives its functions with the request. libmemcached calls them for items that arrive while a
/// long request is still being sent; here none does, so all items wait for the program to fetch them.
///
/// # Safety
///
/// The handle is ours; there are the given number of keys, of these lengths.
unsafe fn ask_to_execute(
    st: *mut memcached_st,
    keys: *const *const c_char,
    lengths: *const usize,
    number: usize,
) -> Option<c_int> {
    // SAFETY: guaranteed by the caller.
    unsafe {
        if !(*st).is(Flag::BinaryProtocol) {
            return match handle::way(st) {
                Way::Away => None,
                Way::Stuck(code) => Some(code),
                Way::Here(_) => {
                    let why = "ASCII protocol is not supported for memcached_mget_execute_by_key()";
                    Some(error::set(st, rc::NOT_SUPPORTED, why))
                }
            };
        }
        ask(st, keys, lengths, number)
    }
}

handle_functions! {
    fn memcached_get(st: *mut memcached_st, key: *const c_char, length: usize, value_length: *mut usize, flags: *mut u32,
        code: *mut c_int) -> *mut c_char = nothing(value_length, code);
        get_one(st, key, length, value_length, flags, code)

    fn memcached_get_by_key(st: *mut memcached_st, _group: *const c_char, _group_length: usize, key: *const c_char, length: usize,
        value_length: *mut usize, flags: *mut u32, code: *mut c_int) -> *mut c_char = nothing(value_length, code);
        get_one(st, key, length, value_length, flags, code)

    fn memcached_mget(st: *mut memcached_st, keys: *const *const c_char, lengths: *const usize, count: usize)
        -> c_int = rc::INVALID_ARGUMENTS; ask(st, keys, lengths, count)

    fn memcached_mget_by_key(st: *mut memcached_st, _group: *const c_char, _group_length: usize, keys: *const *const c_char,
        lengths: *const usize, count: usize) -> c_int = rc::INVALID_ARGUMENTS; ask(st, keys, lengths, count)

    fn memcached_mget_execute(st: *mut memcached_st, keys: *const *const c_char, lengths: *const usize, number: usize,
        callbacks: *const ExecuteFn, context: *mut c_void, count: u32) -> c_int = rc::INVALID_ARGUMENTS;
        ask_to_execute(st, keys, lengths, number)

    fn memcached_mget_execute_by_key(st: *mut memcached_st, _group: *const c_char, _group_length: usize, keys: *const *const c_char,
        lengths: *const usize, number: usize, callbacks: *const ExecuteFn, context: *mut c_void, count: u32)
        -> c_int = rc::INVALID_ARGUMENTS; ask_to_execute(st, keys, lengths, number)

    fn memcached_fetch_result(st: *mut memcached_st, result: *mut memcached_result_st, code: *mut c_int) -> *mut memcached_result_st
        = { put(code, rc::INVALID_ARGUMENTS); std::ptr::null_mut() }; Some(next(st, result, code))

    fn memcached_fetch_execute(st: *mut memcached_st, callbacks: *const ExecuteFn, context: *mut c_void, count: u32)
        -> c_int = rc::INVALID_ARGUMENTS; Some(call(st, callbacks, context, count))

    fn memcached_fetch(st: *mut memcached_st, key: *mut c_char, key_length: *mut usize, value_length: *mut usize, flags: *mut u32,
        code: *mut c_int) -> *mut c_char = nothing(value_length, code); {
        let item = next(st, &raw mut (*st).result, code);
        Some(match item.as_ref() {
            None => {
                put(value_length, 0);
                put(key_length, 0);
                put(flags, 0);
                put(key, 0);
                std::ptr::null_mut()
            }
            Some(found) => {
                put(value_length, result::memcached_result_length(item));
                if !key.is_null() {
                    key.cast::<u8>().copy_from_nonoverlapping(found.item_key.as_ptr(), found.key_length);
                    put(key_length, found.key_length);
                }
                put(flags, found.item_flags);
                result::take(item)
            }
        })
    }
}

/// # Safety
///
/// The places are NULL or can be written.
unsafe fn nothing(value_length: *mut usize, code: *mut c_int) -> *mut c_char {
    // SAFETY: guaranteed by the caller.
    unsafe {
        put(value_length, 0);
        put(code, rc::INVALID_ARGUMENTS);
    }
    std::ptr::null_mut()
}
