//! Copies of a verb's arguments, made before the gate opens: inside, no pointer of the caller's is followed.
//!
//! A key is copied to the session. A value is copied to a buffer that the session keeps (up to [`KEPT_MAX`]; for a longer
//! value the buffer is allocated and freed each time). A value that is read goes to the end of the caller's vector, which
//! is Rust's memory and never a foreign pointer. Otherwise it goes to that buffer, and from there to the caller's memory
//! ([`keyway_region::Target`]) after the gate has closed. Without a gate nothing is copied: values go directly to the caller's memory.

use crate::gate::Latch;
use keyway_region::verbs::{Item, KEY_LEN_MAX, WriteError};
use keyway_region::{Sink, append_bytes, copy_bytes};

/// Key and value as they are passed to the region.
type Given<'c> = (&'c [u8], &'c [u8]);

/// Size of the largest copy whose buffer a session keeps from call to call, bytes.
const KEPT_MAX: usize = 64 << 10;

/// Gives an item and its value, which is in our memory, to the sink.
pub(crate) fn pass(sink: &mut impl Sink, item: &Item, value: &[u8]) -> Result<(), WriteError> {
    let start = sink.len();
    if !sink.begin(item) || value.is_empty() {
        return Ok(());
    }
    sink.append_bytes(value).map_err(|_| {
        sink.truncate(start);
        WriteError::NoMemory { len: value.len() }
    })
}

/// See the top of the file.
pub(crate) struct Copies {
    key: [u8; KEY_LEN_MAX],
    value: Vec<u8>,
}

impl Default for Copies {
    fn default() -> Self {
        Self {
            key: [0; KEY_LEN_MAX],
            value: Vec::new(),
        }
    }
}

impl Copies {
    /// A key as it is passed to the region: without a gate the key itself, with a gate a copy. A key with an invalid
    /// length is not copied: it is refused because of its length, and not read.
    #[inline(always)]
    pub fn of<'c>(&'c mut self, latch: Latch, key: &'c [u8]) -> &'c [u8] {
        if latch.is_on() {
            copied_aside(&mut self.key, key)
        } else {
            key
        }
    }

    /// Behind a gate: the key's copy.
    #[inline(always)]
    pub fn of_key<'c>(&'c mut self, key: &'c [u8]) -> &'c [u8] {
        copied(&mut self.key, key)
    }

    /// Behind a gate: copies of a key and a value. A value longer than `limit` is not copied. The error: there is no memory for a
    /// copy of it.
    #[inline(always)]
    pub fn for_store<'c>(&'c mut self, key: &'c [u8], value: &'c [u8], limit: usize) -> Result<Given<'c>, WriteError> {
        let key = copied(&mut self.key, key);
        if value.is_empty() || value.len() > limit {
            return Ok((key, value));
        }
        self.value.clear();
        append(&mut self.value, value)?;
        Ok((key, &self.value))
    }

    /// Behind a gate: the value's copy is not needed any more.
    #[inline(always)]
    pub fn clear(&mut self) {
        if self.value.capacity() > KEPT_MAX {
            self.free();
        }
    }

    #[cold]
    #[inline(never)]
    fn free(&mut self) {
        self.value = Vec::new();
    }

    /// Takes out the buffer, empty, for a value that is read.
    pub fn lend(&mut self) -> Vec<u8> {
        let mut buffer = std::mem::take(&mut self.value);
        buffer.clear();
        buffer
    }

    /// Puts the buffer back.
    pub fn give_back(&mut self, buffer: Vec<u8>) {
        if buffer.capacity() <= KEPT_MAX {
            self.value = buffer;
        }
    }

    /// Behind a gate: the key's copy, and the buffer, empty, for a value that is read.
    #[inline(always)]
    pub fn for_read<'c>(&'c mut self, key: &'c [u8]) -> (&'c [u8], &'c mut Vec<u8>) {
        self.value.clear();
        (copied(&mut self.key, key), &mut self.value)
    }
}

/// Cold, for the reason given at `Latch::enter`.
#[cold]
#[inline(never)]
fn copied_aside<'c>(copy: &'c mut [u8; KEY_LEN_MAX], key: &'c [u8]) -> &'c [u8] {
    copied(copy, key)
}

#[inline(always)]
fn copied<'c>(copy: &'c mut [u8; KEY_LEN_MAX], key: &'c [u8]) -> &'c [u8] {
    match copy.get_mut(..key.len()) {
        Some(copy) => {
            copy_bytes(key, copy);
            copy
        }
        None => key,
    }
}

/// Appends a value, if this process has the memory.
pub(crate) fn append(out: &mut Vec<u8>, value: &[u8]) -> Result<(), WriteError> {
    let no_memory = |_| WriteError::NoMemory { len: value.len() };
    out.try_reserve(value.len()).map_err(no_memory)?;
    append_bytes(value, out);
    Ok(())
}
