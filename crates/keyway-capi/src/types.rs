//! The types of `keyway.h`, by their C names.
#![allow(non_camel_case_types, reason = "these are the names that C programs write")]

use std::ffi::{c_char, c_void};

/// An open cache. All threads may use it at the same time. A thread needs no setup.
pub struct keyway {
    pub(crate) cache: keyway_cache::Cache,
}

/// The result of a call. Results below KEYWAY_ERROR_ARGUMENT are answers. The others are failures, and keyway_message() says
/// what was wrong, which limit applies and what to do.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum keyway_result {
    /// done
    KEYWAY_OK = 0,
    /// there is no such item; fetch: it is remembered that there is no value
    KEYWAY_NOT_FOUND = 1,
    /// add: there is one already; replace, append, prepend: there is none; fetch: the token is void
    KEYWAY_NOT_STORED = 2,
    /// cas: the item has changed since its CAS unique was read
    KEYWAY_EXISTS = 3,
    /// fetch: an old value, while another caller computes the next one
    KEYWAY_STALE = 4,
    /// fetch: there is no value, and the caller computes it
    KEYWAY_COMPUTE = 5,
    /// fetch: another caller computes, and the wait is over
    KEYWAY_IN_FLIGHT = 6,
    /// fetch: as many as the limit allows compute, and the wait is over
    KEYWAY_LIMITED = 7,
    /// an argument is invalid: NULL where a pointer is needed, or a value that is not allowed
    KEYWAY_ERROR_ARGUMENT = 16,
    /// a key is empty or longer than KEYWAY_KEY_LENGTH_MAX
    KEYWAY_ERROR_KEY_LENGTH = 17,
    /// the item is larger than the largest allowed
    KEYWAY_ERROR_TOO_LARGE = 18,
    /// the value does not fit the buffer; its length is in the item
    KEYWAY_ERROR_BUFFER_TOO_SMALL = 19,
    /// incr, decr: the value is not a decimal number below 2^64
    KEYWAY_ERROR_NOT_A_NUMBER = 20,
    /// the region is full and nothing can be evicted, or this process has no memory for a copy
    KEYWAY_ERROR_OUT_OF_MEMORY = 21,
    /// there is no region at this place, and no memory was requested for a new one; or no server answers
    KEYWAY_ERROR_ABSENT = 22,
    /// the file at this place is not a region that this library can use: another version, truncated, or another kind of file
    KEYWAY_ERROR_UNUSABLE = 23,
    /// there is not enough space for the region, or for the requested memory
    KEYWAY_ERROR_NO_SPACE = 24,
    /// all slots of the region for processes or threads are taken
    KEYWAY_ERROR_FULL = 25,
    /// this thread is already inside a call, or computes the key that it fetches; or another process is replacing the region
    KEYWAY_ERROR_BUSY = 26,
    /// shared memory is corrupted: it holds a value that no version of Keyway writes
    KEYWAY_ERROR_DAMAGED = 27,
    /// the operating system refused something
    KEYWAY_ERROR_SYSTEM = 28,
    /// the server does not hand out its region to this process; or the server has a kernel door, and this process cannot
    /// count its changes for it; or the region is not to be flushed
    KEYWAY_ERROR_REFUSED = 29,
    /// a bug in Keyway: the library caught a panic
    KEYWAY_ERROR_BUG = 30,
}

/// How to open a cache. Zeros mean the defaults, so set `size` and the fields that you want to change, and nothing else:
/// `keyway_options options = {.size = sizeof options, .memory = 1 << 30};`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct keyway_options {
    /// sizeof(keyway_options)
    pub size: usize,
    /// size of the region in bytes, everything included, at least 2 MiB: an absent region is made, and a smaller existing one
    /// grows to it. 0: an existing region keeps its size, and an absent one is an error (KEYWAY_ERROR_ABSENT); anonymous
    /// memory has 64 MiB
    pub memory: u64,
    /// largest item, bytes, counted as memcached counts (its -I), 1 KiB to 1 GiB and at most half of the memory. A rule of a new
    /// region, for all its users; an existing one keeps its own. 0: 1 MiB
    pub item_size_max: u64,
    /// file mode of a new region. 0: 0600
    pub mode: u32,
    /// the sum of options, such as KEYWAY_CHECKSUMS
    pub flags: u32,
}

/// How to fetch, with the words of RFC 5861. Zeros mean the defaults: set `size` and the fields that you want to change:
/// `keyway_fetch_options options = {.size = sizeof options, .exptime = 60};`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct keyway_fetch_options {
    /// sizeof(keyway_fetch_options)
    pub size: usize,
    /// how long a value is fresh: memcached's exptime. 0: for ever
    pub exptime: i64,
    /// XFetch's beta: a value is refreshed before it expires, by chance, the likelier the longer it took to compute. 1 is usual,
    /// 0: never
    pub early: f64,
    /// longest wait for another caller, milliseconds; then the caller computes. 0: 10000
    pub wait_ms: u64,
    /// what names the limit: usually the beginning of its keys
    pub limit_prefix: *const c_void,
    /// its length, bytes; the first KEYWAY_KEY_LENGTH_MAX count
    pub limit_prefix_len: usize,
    /// how many callers of all processes compute at a time under this limit, 1 to 63. 0: there is no limit
    pub limit: u32,
    /// the sum of options, such as KEYWAY_FETCH_NO_WAIT
    pub options: u32,
    /// flags of the item that is stored, for the caller
    pub flags: u32,
    /// how long it is remembered that there is no value, seconds. 0: not at all
    pub negative_ttl_s: u32,
    /// so many seconds after its time the old value is returned while another caller computes the next one
    pub stale_while_revalidate_s: u32,
    /// so many seconds after its time the old value may be used if computing fails
    pub stale_if_error_s: u32,
}

impl Default for keyway_fetch_options {
    fn default() -> Self {
        Self {
            size: size_of::<Self>(),
            exptime: 0,
            early: 0.0,
            wait_ms: 0,
            limit_prefix: std::ptr::null(),
            limit_prefix_len: 0,
            limit: 0,
            options: 0,
            flags: 0,
            negative_ttl_s: 0,
            stale_while_revalidate_s: 0,
            stale_if_error_s: 0,
        }
    }
}

/// Properties of an item, in addition to its key and value.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct keyway_item {
    /// length of the value, bytes
    pub value_len: usize,
    /// its CAS unique, for keyway_cas(); keyway_get() and fetches do not read it and give 0
    pub cas: u64,
    /// seconds until it expires; -1: never
    pub ttl_s: i64,
    /// its flags, as stored
    pub flags: u32,
}

/// One key of a keyway_get_many(), and its result.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct keyway_entry {
    /// input: the key
    pub key: *const c_void,
    /// input: its length, bytes
    pub key_len: usize,
    /// output: KEYWAY_OK, KEYWAY_NOT_FOUND or a failure
    pub result: keyway_result,
    /// output if KEYWAY_OK: the item
    pub item: keyway_item,
    /// output if KEYWAY_OK: the value, with a zero byte after it, in the block of this call. NULL otherwise
    pub value: *const c_char,
}

/// A statistic of keyway_stats().
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct keyway_stat {
    /// its name, the same as in memcached's `stats` if memcached has it
    pub name: [c_char; KEYWAY_STAT_NAME_SIZE],
    /// its value
    pub value: u64,
}

/// Longest key, bytes.
pub const KEYWAY_KEY_LENGTH_MAX: usize = 250;
/// Size of a statistic's name, its zero byte included.
pub const KEYWAY_STAT_NAME_SIZE: usize = 32;

/// Option: ask for huge pages.
pub const KEYWAY_HUGE_PAGES: u32 = 2;
/// Option: fault every page in at the open instead of at its first use.
pub const KEYWAY_PREFAULT: u32 = 4;
/// Option: no gate. The region's mapping stays accessible outside calls even if the processor has protection keys. The
/// environment variable KEYWAY_GATE, off or on, overrides this.
pub const KEYWAY_NO_GATE: u32 = 64;
/// Option: if the region is full, stores fail instead of evicting. A rule of a new region, for all its users; an existing one
/// keeps its own.
pub const KEYWAY_NO_EVICT: u32 = 8;
/// Option: every item of a new region has a checksum, which every reader verifies; an existing region must have been made
/// with it.
pub const KEYWAY_CHECKSUMS: u32 = 16;
/// Option: use the region even if another user owns its file, or its mode lets every user write to it. Such a user can change
/// items at any time, and end this process by truncating the file (SIGBUS).
pub const KEYWAY_ANY_OWNER: u32 = 128;

/// Fetch: do not wait for another caller.
pub const KEYWAY_FETCH_NO_WAIT: u32 = 1;
/// Fetch: when the wait is over, do not compute: the result is KEYWAY_IN_FLIGHT.
pub const KEYWAY_FETCH_GIVE_UP: u32 = 2;
/// Fetch: other tasks of this thread may be computing, so a key that the thread computes is waited for. Without it that is
/// KEYWAY_ERROR_BUSY.
pub const KEYWAY_FETCH_TASKS: u32 = 4;

const _: () = assert!(KEYWAY_KEY_LENGTH_MAX == keyway_cache::KEY_LEN_MAX);
