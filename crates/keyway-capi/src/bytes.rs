//! From pointers to slices and references, and back to allocated blocks.
//!
//! # Safety
//!
//! The caller guarantees that its pointers are valid. NULL is refused here, and so are lengths that no object has.
//! Nothing else can be checked.

use crate::failure::Failure;
use crate::types::keyway_result::{KEYWAY_ERROR_BUFFER_TOO_SMALL, KEYWAY_ERROR_KEY_LENGTH, KEYWAY_ERROR_OUT_OF_MEMORY};
use crate::types::{KEYWAY_KEY_LENGTH_MAX, keyway, keyway_item};
use keyway_cache::{Cache, Item, Target};
use std::ffi::{CStr, c_char, c_void};
use std::mem::MaybeUninit;
use std::ptr::NonNull;

/// The cache behind a handle.
///
/// # Safety
///
/// The handle is NULL, or comes from `keyway_open` and has not been closed.
#[inline]
pub(crate) unsafe fn cache<'a>(handle: *const keyway) -> Result<&'a Cache, Failure> {
    // SAFETY: guaranteed by the caller.
    match unsafe { handle.as_ref() } {
        Some(handle) => Ok(&handle.cache),
        None => Err(Failure::argument(
            "the cache is NULL: keyway_open() failed, or was not called",
        )),
    }
}

/// The bytes of a key.
///
/// # Safety
///
/// The pointer is NULL, or so many bytes can be read from it. They may change at any time, also by what the call writes: nothing but the
/// one copy at the beginning of a session's verb reads them.
#[inline]
pub(crate) unsafe fn key<'a>(key: *const c_void, len: usize) -> Result<&'a [u8], Failure> {
    if key.is_null() {
        return Err(Failure::argument("the key is NULL"));
    }
    if len == 0 || len > KEYWAY_KEY_LENGTH_MAX {
        let message = format!("a key has 1 to {KEYWAY_KEY_LENGTH_MAX} bytes, this one {len}");
        return Err(Failure::new(KEYWAY_ERROR_KEY_LENGTH, message));
    }
    // SAFETY: guaranteed by the caller; not NULL, and the length is checked.
    Ok(unsafe { std::slice::from_raw_parts(key.cast(), len) })
}

/// A copy of a caller's key, for more than one use, or why it is no key.
pub(crate) struct OwnKey {
    bytes: [u8; KEYWAY_KEY_LENGTH_MAX],
    len: usize,
    refused: Option<Failure>,
}

impl OwnKey {
    /// None yet.
    pub(crate) const NONE: Self = Self {
        bytes: [0; KEYWAY_KEY_LENGTH_MAX],
        len: 0,
        refused: None,
    };

    /// # Safety
    ///
    /// `given` is NULL, or `len` bytes can be read from it. They may change at any time: the copy that is taken here is used.
    pub(crate) unsafe fn copy(given: *const c_void, len: usize) -> Self {
        // SAFETY: guaranteed by the caller.
        match unsafe { key(given, len) } {
            Ok(given) => Self::of(given),
            Err(failure) => Self {
                refused: Some(failure),
                ..Self::NONE
            },
        }
    }

    /// A copy of at most [`KEYWAY_KEY_LENGTH_MAX`] bytes: what is beyond is left out.
    pub fn of(given: &[u8]) -> Self {
        let mut own = Self::NONE;
        own.len = given.len().min(KEYWAY_KEY_LENGTH_MAX);
        own.bytes.iter_mut().zip(given).for_each(|(to, from)| *to = *from);
        own
    }

    /// Its bytes; none if it is no key.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    /// The key, if it is one.
    pub(crate) fn checked(mut self) -> Result<Self, Failure> {
        match self.refused.take() {
            Some(failure) => Err(failure),
            None => Ok(self),
        }
    }
}

/// The bytes of a value. NULL is one of no bytes.
///
/// # Safety
///
/// The pointer is NULL, or so many bytes can be read from it. They may change at any time: each that is stored is one that was
/// there during the call.
#[inline]
pub(crate) unsafe fn value<'a>(value: *const c_void, len: usize) -> Result<&'a [u8], Failure> {
    if len == 0 {
        return Ok(&[]);
    }
    if value.is_null() {
        return Err(Failure::argument(format!("the value is NULL, and its length {len}, not 0")));
    }
    if isize::try_from(len).is_err() {
        return Err(Failure::argument(format!(
            "the value's length is {len}: no object has so many bytes"
        )));
    }
    // SAFETY: guaranteed by the caller; not NULL, and the length is one that an object can have.
    Ok(unsafe { std::slice::from_raw_parts(value.cast(), len) })
}

/// A copy of the text of a C string.
///
/// # Safety
///
/// The pointer is NULL, or leads to bytes that end with a zero byte.
pub(crate) unsafe fn text(text: *const c_char, what: &str) -> Result<Vec<u8>, Failure> {
    if text.is_null() {
        return Err(Failure::argument(format!("{what} is NULL")));
    }
    // SAFETY: guaranteed by the caller.
    let mut bytes = unsafe { CStr::from_ptr(text) }.to_bytes().to_vec();
    // It may have become shorter since it was measured.
    bytes.truncate(bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len()));
    Ok(bytes)
}

/// Bytes of options that no version will ever have.
const OPTIONS_SIZE_MAX: usize = 4096;

/// The caller's options, which begin with their size. Those of a program that was compiled for another version may be shorter or
/// longer: what is missing is zero, and what this version does not know must be. NULL: the defaults. `size_min` is the size that they
/// had first, `name` the name of their type.
///
/// # Safety
///
/// NULL, or as many bytes as its size says can be read.
pub unsafe fn options<T: Copy + Default>(options: *const T, size_min: usize, name: &str) -> Result<T, Failure> {
    if options.is_null() {
        return Ok(T::default());
    }
    // SAFETY: the first field of every version.
    let size = unsafe { options.cast::<usize>().read() };
    if !(size_min..=OPTIONS_SIZE_MAX).contains(&size) {
        return Err(Failure::argument(format!(
            "options.size is {size}: set it to sizeof({name}), {} in this version",
            size_of::<T>()
        )));
    }
    // SAFETY: guaranteed by the caller; at least as large as this version's structure.
    let (known, bytes) = unsafe { (options.read(), std::slice::from_raw_parts(options.cast::<u8>(), size)) };
    if bytes.iter().skip(size_of::<T>()).any(|byte| *byte != 0) {
        return Err(Failure::argument(format!(
            "options of {size} bytes set what this version of the library does not know; it knows {} bytes",
            size_of::<T>()
        )));
    }
    Ok(known)
}

/// Refuses what is visibly no buffer.
pub fn check_buffer(buffer: *mut c_void, buffer_size: usize) -> Result<(), Failure> {
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
    Ok(())
}

/// Stores an answer where the caller wants it, if anywhere.
///
/// # Safety
///
/// The pointer is NULL, or a `T` can be written to it.
#[inline]
pub(crate) unsafe fn answer<T>(place: *mut T, value: T) {
    if !place.is_null() {
        // SAFETY: guaranteed by the caller.
        unsafe { place.write(value) };
    }
}

/// A caller's memory for a value, or memory that becomes the caller's.
pub trait Place: Target {
    /// Whether the last value has, or had, room in it.
    fn fits(&self) -> bool;

    /// Why it has not.
    fn refusal(&self) -> Failure;
}

/// The caller's buffer for a value, and a place for the properties of its item.
pub(crate) struct Buffer {
    place: NonNull<MaybeUninit<u8>>,
    size: usize,
    item: *mut keyway_item,
    /// of the value
    len: usize,
}

impl Place for Buffer {
    fn fits(&self) -> bool {
        self.len <= self.size
    }

    fn refusal(&self) -> Failure {
        let message = format!(
            "the value has {} bytes, the buffer {}; give a larger one, or let keyway_get_alloc() or keyway_fetch_begin_alloc() allocate",
            self.len, self.size
        );
        Failure::new(KEYWAY_ERROR_BUFFER_TOO_SMALL, message)
    }
}

impl Buffer {
    /// # Safety
    ///
    /// As long as it lives, so many bytes can be written to the buffer, and no other code uses them; NULL has none. `item` is NULL, or can be
    /// written too.
    #[inline(always)]
    pub unsafe fn new(buffer: *mut c_void, size: usize, item: *mut keyway_item) -> Self {
        let place = NonNull::new(buffer.cast());
        Self {
            place: place.unwrap_or(NonNull::dangling()),
            size: if place.is_some() { size } else { 0 },
            item,
            len: 0,
        }
    }
}

impl Target for Buffer {
    #[inline(always)]
    fn reach(&self) -> Option<[&[MaybeUninit<u8>]; 2]> {
        // SAFETY: `new`'s caller guarantees that both can be written, and bytes of any value may be read as such.
        unsafe {
            let room = std::slice::from_raw_parts(self.place.as_ptr(), self.size);
            let item = match self.item.is_null() {
                true => &[],
                false => std::slice::from_raw_parts(self.item.cast(), size_of::<keyway_item>()),
            };
            Some([room, item])
        }
    }

    #[inline(always)]
    fn make_room(&mut self, item: &Item) -> bool {
        self.len = item.value_len;
        // SAFETY: guaranteed by `new`'s caller.
        unsafe { answer(self.item, (*item).into()) };
        self.fits()
    }

    #[inline(always)]
    fn room(&mut self) -> &mut [MaybeUninit<u8>] {
        let len = if self.fits() { self.len } else { 0 };
        // SAFETY: `new`'s caller guarantees that `size` bytes can be written, and `len` is not greater.
        unsafe { std::slice::from_raw_parts_mut(self.place.as_ptr(), len) }
    }
}

/// A block from malloc for a value, and a zero byte after it.
#[derive(Default)]
pub(crate) struct Block {
    block: Option<NonNull<MaybeUninit<u8>>>,
    /// bytes that it has room for, and one more
    len: usize,
    /// the properties of the value's item
    pub item: keyway_item,
}

impl Block {
    /// The block, which now is the caller's, with the value in it.
    pub fn finish(mut self) -> Result<*mut c_void, Failure> {
        let Some(block) = self.block.take() else {
            return Err(no_memory(self.len));
        };
        // SAFETY: the block has space for one byte more.
        unsafe { block.add(self.len).cast::<u8>().write(0) };
        Ok(block.as_ptr().cast())
    }

    fn allocate(&mut self, len: usize) -> bool {
        if self.block.is_none() || self.len != len {
            self.free();
            // SAFETY: any size may be requested.
            self.block = NonNull::new(unsafe { libc::malloc(len.saturating_add(1)) }.cast());
            self.len = len;
        }
        self.block.is_some()
    }

    fn free(&mut self) {
        if let Some(block) = self.block.take() {
            // SAFETY: it comes from malloc, and no other code has it.
            unsafe { libc::free(block.as_ptr().cast()) };
        }
    }
}

impl Place for Block {
    fn fits(&self) -> bool {
        self.block.is_some()
    }

    fn refusal(&self) -> Failure {
        no_memory(self.len)
    }
}

impl Target for Block {
    #[inline]
    fn make_room(&mut self, item: &Item) -> bool {
        self.item = (*item).into();
        self.allocate(item.value_len)
    }

    #[inline]
    fn room(&mut self) -> &mut [MaybeUninit<u8>] {
        match self.block {
            // SAFETY: the block has this many bytes, and no other code uses it.
            Some(block) => unsafe { std::slice::from_raw_parts_mut(block.as_ptr(), self.len) },
            None => &mut [],
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.free();
    }
}

/// A copy of the bytes with a zero byte after them, from malloc.
pub(crate) fn allocated(bytes: &[u8]) -> Result<*mut c_void, Failure> {
    let mut block = Block::default();
    if block.allocate(bytes.len()) {
        block.room().write_copy_of_slice(bytes);
    }
    block.finish()
}

/// There is no memory for so many bytes.
#[cold]
pub(crate) fn no_memory(len: usize) -> Failure {
    let message = format!("this process has no memory for a copy of {len} bytes");
    Failure::new(KEYWAY_ERROR_OUT_OF_MEMORY, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_known_to_be_wrong_is_refused() {
        let bytes = b"abc".as_ptr().cast();
        // SAFETY: every pointer is NULL or refers to three bytes, and no accepted length is greater.
        unsafe {
            assert!(key(std::ptr::null(), 3).is_err());
            assert!(key(bytes, 0).is_err());
            assert!(key(bytes, 251).is_err());
            assert!(key(bytes, usize::MAX).is_err());
            assert_eq!(key(bytes, 3).unwrap(), b"abc");
            assert!(value(std::ptr::null(), 1).is_err());
            assert!(value(bytes, usize::MAX).is_err());
            assert_eq!(value(std::ptr::null(), 0).unwrap(), b"");
            assert!(cache(std::ptr::null()).is_err());
            assert!(text(std::ptr::null(), "it").is_err());
        }
    }
}
