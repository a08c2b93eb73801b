//! The types of `keyway.h`, by their C names.
#![allow(non_camel_case_types, reason = "these are the names that C programs write")]

use std::ffi::{c_char, c_void};

/// An open cache. Every thread may use it, also at the same time; there is nothing to set up per thread.
pub struct keyway {
    pub(crate) cache: ::keyway::Cache,
}

/// What a call came to. Below KEYWAY_ERROR_ARGUMENT it is an answer; from there on it is a failure, and keyway_message() says
/// what was wrong, which limit applies and what to do.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum keyway_result {
    /// done
    KEYWAY_OK = 0,
    /// there is no such item
    KEYWAY_NOT_FOUND = 1,
    /// add: there is one already; replace, append, prepend: there is none
    KEYWAY_NOT_STORED = 2,
    /// cas: the item has been changed since its CAS unique was read
    KEYWAY_EXISTS = 3,
    /// an argument is impossible: NULL where something is needed, or a value that is not allowed
    KEYWAY_ERROR_ARGUMENT = 16,
    /// a key is empty or longer than KEYWAY_KEY_LENGTH_MAX
    KEYWAY_ERROR_KEY_LENGTH = 17,
    /// the item is larger than the largest allowed
    KEYWAY_ERROR_TOO_LARGE = 18,
    /// the value does not fit the buffer; its length is in the item
    KEYWAY_ERROR_BUFFER_TOO_SMALL = 19,
    /// incr, decr: the value is no decimal number below 2^64
    KEYWAY_ERROR_NOT_A_NUMBER = 20,
    /// the region is full and nothing can be evicted, or this process has no memory for a copy
    KEYWAY_ERROR_OUT_OF_MEMORY = 21,
    /// there is no region at this place, and only an existing one was asked for; or no server to ask for one
    KEYWAY_ERROR_ABSENT = 22,
    /// what is at this place is no region that this library can use: another version, truncated, or something else
    KEYWAY_ERROR_UNUSABLE = 23,
    /// there is no room for the region, or for as much memory as was asked for
    KEYWAY_ERROR_NO_SPACE = 24,
    /// as many processes or threads are attached as the region has room for
    KEYWAY_ERROR_FULL = 25,
    /// this thread is inside a call already, or somebody is replacing the region
    KEYWAY_ERROR_BUSY = 26,
    /// shared memory holds what nobody writes
    KEYWAY_ERROR_DAMAGED = 27,
    /// the operating system refused something
    KEYWAY_ERROR_SYSTEM = 28,
    /// the server does not hand out its region to this process; or it answers from the kernel, and this process cannot tell it of changes
    KEYWAY_ERROR_REFUSED = 29,
    /// a bug in Keyway was stopped at the library's edge
    KEYWAY_ERROR_BUG = 30,
}

/// How to open a cache. Zeros mean the defaults, so set `size`, what you want otherwise, and nothing else:
/// `keyway_options options = {.size = sizeof options, .memory = 1 << 30};`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct keyway_options {
    /// sizeof(keyway_options)
    pub size: usize,
    /// size of the region in bytes, all-inclusive, from 2 MiB: a new one has it, and an existing one that has less is given
    /// it. 0: 64 MiB for a new one; an existing one stays as it is
    pub memory: u64,
    /// largest item, bytes, counted as memcached counts (its -I), 1 KiB to 1 GiB and at most half of the memory. 0: 1 MiB
    pub item_size_max: u64,
    /// file mode of a new region. 0: 0600
    pub mode: u32,
    /// KEYWAY_EXISTING_ONLY and others, added up
    pub flags: u32,
}

/// What is known of an item besides its key and value.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct keyway_item {
    /// length of the value, bytes
    pub value_len: usize,
    /// its CAS unique, for keyway_cas(); 0 from keyway_get(), which does not look for it
    pub cas: u64,
    /// seconds until it expires; -1: never
    pub ttl: i64,
    /// the flags that it was stored with
    pub flags: u32,
}

/// One key of a keyway_get_many(), and what became of it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct keyway_entry {
    /// given: the key
    pub key: *const c_void,
    /// given: its length, bytes
    pub key_len: usize,
    /// answered: KEYWAY_OK, KEYWAY_NOT_FOUND or a failure
    pub result: keyway_result,
    /// answered if KEYWAY_OK: the item
    pub item: keyway_item,
    /// answered if KEYWAY_OK: the value, with a zero byte after it; it lies in the call's one block. NULL otherwise
    pub value: *const c_char,
}

/// A number that keyway_stats() tells.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct keyway_stat {
    /// what it counts, as memcached's `stats` calls it where memcached has it
    pub name: [c_char; KEYWAY_STAT_NAME_SIZE],
    /// how many
    pub value: u64,
}

/// Longest key, bytes.
pub const KEYWAY_KEY_LENGTH_MAX: usize = 250;
/// Size of a statistic's name, its zero byte included.
pub const KEYWAY_STAT_NAME_SIZE: usize = 32;

/// Option: a region that is absent is an error, not created.
pub const KEYWAY_EXISTING_ONLY: u32 = 1;
/// Option: ask for huge pages.
pub const KEYWAY_HUGE_PAGES: u32 = 2;
/// Option: fault every page in now instead of at its first use.
pub const KEYWAY_PREFAULT: u32 = 4;
/// Option: the region's mapping stays accessible outside calls also where the processor has protection keys. The environment
/// variable KEYWAY_GATE, off or on, outranks it.
pub const KEYWAY_NO_GATE: u32 = 64;
/// Option: when the region is full, refuse to store instead of evicting (this process only).
pub const KEYWAY_NO_EVICT: u32 = 8;
/// Option: a new region gives every item a checksum, which every reader verifies; an existing one must have been made so.
pub const KEYWAY_CHECKSUMS: u32 = 16;
/// Option: use the region even if another user owns its file, or its mode lets every user write to it. Such a user can change items at any
/// time, and kill this process by truncating the file (SIGBUS).
pub const KEYWAY_ANY_OWNER: u32 = 128;

const _: () = assert!(KEYWAY_KEY_LENGTH_MAX == ::keyway::KEY_LEN_MAX);
