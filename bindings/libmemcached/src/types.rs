//! libmemcached 1.1.4's public structures as programs allocate and read them: every size and every offset that is used here is
//! asserted, and `tests/it/abi.rs` compares them with the headers. Names are libmemcached's.
//!
//! The drop-in keeps its private data in two fields that libmemcached also keeps private:
//! [`memcached_st::virtual_bucket`] says whose handle it is, [`memcached_ketama_st::continuum`] leads to a
//! [`crate::handle::Handle`].

use std::ffi::{c_char, c_int, c_ulong, c_ulonglong, c_void};

pub(crate) const MAX_KEY: usize = 251;
pub(crate) const MAX_HOST: usize = 1025;
pub(crate) const MAX_NAMESPACE: usize = 128;
pub(crate) const VERSION_LENGTH: usize = 24;
pub(crate) const DEFAULT_PORT: u16 = 11211;

#[repr(C)]
pub struct memcached_st {
    pub state: u8,
    pub flags: [u8; 2],
    pub distribution: u32,
    pub hashkit: hashkit_st,
    pub server_version: u32,
    pub number_of_hosts: u32,
    pub servers: *mut c_void,
    pub last_disconnected_server: *mut c_void,
    pub snd_timeout: i32,
    pub rcv_timeout: i32,
    pub server_failure_limit: u32,
    pub server_timeout_limit: u32,
    pub io_msg_watermark: u32,
    pub io_bytes_watermark: u32,
    pub io_key_prefetch: u32,
    pub tcp_keepidle: u32,
    pub poll_timeout: i32,
    pub connect_timeout: i32,
    pub retry_timeout: i32,
    pub dead_timeout: i32,
    pub send_size: c_int,
    pub recv_size: c_int,
    pub user_data: *mut c_void,
    pub query_id: u64,
    pub number_of_replicas: u32,
    pub result: memcached_result_st,
    pub ketama: memcached_ketama_st,
    pub virtual_bucket: *const c_void,
    pub allocators: memcached_allocator_t,
    pub on_clone: Option<CloneFn>,
    pub on_cleanup: Option<CleanupFn>,
    pub get_key_failure: Option<TriggerKeyFn>,
    pub delete_trigger: Option<TriggerDeleteFn>,
    pub callbacks: *mut memcached_callback_st,
    pub sasl_callbacks: *mut c_void,
    pub sasl_is_allocated: bool,
    pub error_messages: *mut c_void,
    pub namespace: *mut c_void,
    pub configure: memcached_configure_st,
    pub options: u8,
}

pub type CloneFn = unsafe extern "C" fn(*mut memcached_st, *const memcached_st) -> c_int;
pub type CleanupFn = unsafe extern "C" fn(*const memcached_st) -> c_int;
pub type TriggerKeyFn = unsafe extern "C" fn(*const memcached_st, *const c_char, usize, *mut memcached_result_st) -> c_int;
pub type TriggerDeleteFn = unsafe extern "C" fn(*const memcached_st, *const c_char, usize) -> c_int;
pub type ExecuteFn = unsafe extern "C" fn(*const memcached_st, *mut memcached_result_st, *mut c_void) -> c_int;
pub type ServerFn = unsafe extern "C" fn(*const memcached_st, *const c_void, *mut c_void) -> c_int;
pub type StatFn = unsafe extern "C" fn(*const c_void, *const c_char, usize, *const c_char, usize, *mut c_void) -> c_int;
pub type DumpFn = unsafe extern "C" fn(*const memcached_st, *const c_char, usize, *mut c_void) -> c_int;
pub type MallocFn = unsafe extern "C" fn(*const memcached_st, usize, *mut c_void) -> *mut c_void;
pub type FreeFn = unsafe extern "C" fn(*const memcached_st, *mut c_void, *mut c_void);
pub type ReallocFn = unsafe extern "C" fn(*const memcached_st, *mut c_void, usize, *mut c_void) -> *mut c_void;
pub type CallocFn = unsafe extern "C" fn(*const memcached_st, usize, usize, *mut c_void) -> *mut c_void;
pub type HashFn = unsafe extern "C" fn(*const c_char, usize, *mut c_void) -> u32;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct hashkit_function_st {
    pub function: Option<HashFn>,
    pub context: *mut c_void,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct hashkit_st {
    pub base_hash: hashkit_function_st,
    pub distribution_hash: hashkit_function_st,
    pub flags: u8,
    pub options: u8,
    pub key: *mut c_void,
}

#[repr(C)]
pub struct memcached_ketama_st {
    pub weighted: bool,
    pub continuum_count: u32,
    pub continuum_points_counter: u32,
    pub next_distribution_rebuild: i64,
    pub continuum: *mut c_void,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct memcached_allocator_t {
    pub calloc: CallocFn,
    pub free: FreeFn,
    pub malloc: MallocFn,
    pub realloc: ReallocFn,
    pub context: *mut c_void,
}

#[repr(C)]
pub struct memcached_callback_st {
    pub callback: *mut ExecuteFn,
    pub context: *mut c_void,
    pub number_of_callback: u32,
}

#[repr(C)]
pub struct memcached_configure_st {
    pub initial_pool_size: u32,
    pub max_pool_size: u32,
    pub version: i32,
    pub filename: *mut c_void,
}

#[repr(C)]
pub struct memcached_string_st {
    pub end: *mut c_char,
    pub string: *mut c_char,
    pub current_size: usize,
    pub root: *mut memcached_st,
    pub options: u8,
}

#[repr(C)]
pub struct memcached_result_st {
    pub item_flags: u32,
    pub item_expiration: i64,
    pub key_length: usize,
    pub item_cas: u64,
    pub root: *mut memcached_st,
    pub value: memcached_string_st,
    pub numeric_value: u64,
    pub count: u64,
    pub item_key: [u8; MAX_KEY],
    pub options: u8,
}

#[repr(C)]
pub struct memcached_stat_st {
    pub connection_structures: c_ulong,
    pub curr_connections: c_ulong,
    pub curr_items: c_ulong,
    pub pid: c_int,
    pub pointer_size: c_ulong,
    pub rusage_system_microseconds: c_ulong,
    pub rusage_system_seconds: c_ulong,
    pub rusage_user_microseconds: c_ulong,
    pub rusage_user_seconds: c_ulong,
    pub threads: c_ulong,
    pub time: c_ulong,
    pub total_connections: c_ulong,
    pub total_items: c_ulong,
    pub uptime: c_ulong,
    pub bytes: c_ulonglong,
    pub bytes_read: c_ulonglong,
    pub bytes_written: c_ulonglong,
    pub cmd_get: c_ulonglong,
    pub cmd_set: c_ulonglong,
    pub evictions: c_ulonglong,
    pub get_hits: c_ulonglong,
    pub get_misses: c_ulonglong,
    pub limit_maxbytes: c_ulonglong,
    pub version: [u8; VERSION_LENGTH],
    pub future: *mut c_void,
    pub root: *mut memcached_st,
}

#[repr(C)]
pub struct memcached_analysis_st {
    pub root: *mut memcached_st,
    pub average_item_size: u32,
    pub longest_uptime: u32,
    pub least_free_server: u32,
    pub most_consumed_server: u32,
    pub oldest_server: u32,
    pub pool_hit_ratio: f64,
    pub most_used_bytes: u64,
    pub least_remaining_bytes: u64,
}

/// An entry of a server list, which a program builds before it has a handle; the first one's `number_of_hosts` is the list's length.
#[repr(C)]
pub struct memcached_server_st {
    pub options: u8,
    pub number_of_hosts: u32,
    pub cursor_active: u32,
    pub port: u16,
    pub io_bytes_sent: u32,
    pub request_id: u32,
    pub server_failure_counter: u32,
    pub server_failure_counter_query_id: u64,
    pub server_timeout_counter: u32,
    pub server_timeout_counter_query_id: u64,
    pub weight: u32,
    pub version: u32,
    pub state: u32,
    pub io_wait_count: [u64; 3],
    pub major_version: u8,
    pub micro_version: u8,
    pub minor_version: u8,
    pub kind: u32,
    pub next_retry: i64,
    pub root: *mut memcached_st,
    pub limit_maxbytes: u64,
    pub error_messages: *mut c_void,
    pub hostname: [u8; MAX_HOST],
}

/// `is_allocated` of results, servers, strings and handles.
pub(crate) const ALLOCATED: u8 = 1;
/// `is_initialized` of results, servers and strings.
pub(crate) const INITIALIZED: u8 = 2;

macro_rules! offsets {
    ($($of:ty: $size:literal { $(($f:ident, $at:literal))* })*) => {
        $(const _: () = { assert!(size_of::<$of>() == $size); $(assert!(std::mem::offset_of!($of, $f) == $at);)* };)*
    };
}
offsets! {
    hashkit_st: 48 { (flags, 32) (key, 40) }
    memcached_string_st: 40 { (current_size, 16) (options, 32) }
    memcached_callback_st: 24 { (number_of_callback, 16) }
    memcached_analysis_st: 56 { (pool_hit_ratio, 32) (least_remaining_bytes, 48) }
    memcached_result_st: 352 { (value, 40) (numeric_value, 80) (count, 88) (item_key, 96) (options, 347) }
    memcached_stat_st: 224 { (pid, 24) (bytes, 112) (version, 184) (future, 208) (root, 216) }
    memcached_server_st: 1168 { (port, 12) (weight, 56) (state, 64) (io_wait_count, 72) (major_version, 96) (kind, 100) (next_retry, 104)
        (root, 112) (hostname, 136) }
    memcached_st: 696 { (flags, 1) (distribution, 4) (hashkit, 8) (server_version, 56) (number_of_hosts, 60) (servers, 64)
        (snd_timeout, 80) (recv_size, 132) (user_data, 136) (query_id, 144) (number_of_replicas, 152) (result, 160) (ketama, 512)
        (virtual_bucket, 544) (allocators, 552) (on_clone, 592) (callbacks, 624) (sasl_callbacks, 632) (error_messages, 648)
        (namespace, 656) (configure, 664) (options, 688) }
}

/// A bit of [`memcached_st::flags`].
#[allow(dead_code, reason = "the list is libmemcached's, whole")]
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flag {
    AutoEjectHosts,
    BinaryProtocol,
    BufferRequests,
    HashWithNamespace,
    NoBlock,
    Reply,
    RandomizeReplicaRead,
    SupportCas,
    TcpNodelay,
    UseSortHosts,
    UseUdp,
    VerifyKey,
    TcpKeepalive,
    IsAes,
    IsFetchingVersion,
}

impl memcached_st {
    #[inline]
    pub(crate) fn is(&self, flag: Flag) -> bool {
        u16::from_le_bytes(self.flags) & (1 << flag as u16) != 0
    }

    pub(crate) fn put(&mut self, flag: Flag, on: bool) {
        let bit = 1 << flag as u16;
        let flags = u16::from_le_bytes(self.flags);
        self.flags = (if on { flags | bit } else { flags & !bit }).to_le_bytes();
    }
}

/// What a call returns (`memcached_return_t`).
pub(crate) mod rc {
    macro_rules! codes {
        ($($name:ident = $code:literal, $text:literal;)*) => {
            $(#[allow(dead_code, reason = "the list is libmemcached's, whole")] pub(crate) const $name: i32 = $code;)*
            /// libmemcached's text for a code.
            pub(crate) fn text(code: i32) -> &'static std::ffi::CStr {
                match code {
                    $($code => match std::ffi::CStr::from_bytes_with_nul(concat!($text, "\0").as_bytes()) {
                        Ok(text) => text,
                        Err(_) => c"",
                    },)*
                    _ => c"INVALID memcached_return_t",
                }
            }
        };
    }
    codes! {
        SUCCESS = 0, "SUCCESS";
        FAILURE = 1, "FAILURE";
        HOST_LOOKUP_FAILURE = 2, "getaddrinfo() or getnameinfo() HOSTNAME LOOKUP FAILURE";
        CONNECTION_FAILURE = 3, "CONNECTION FAILURE";
        CONNECTION_BIND_FAILURE = 4, "CONNECTION BIND FAILURE";
        WRITE_FAILURE = 5, "WRITE FAILURE";
        READ_FAILURE = 6, "READ FAILURE";
        UNKNOWN_READ_FAILURE = 7, "UNKNOWN READ FAILURE";
        PROTOCOL_ERROR = 8, "PROTOCOL ERROR";
        CLIENT_ERROR = 9, "CLIENT ERROR";
        SERVER_ERROR = 10, "SERVER ERROR";
        ERROR = 11, "ERROR was returned by server";
        DATA_EXISTS = 12, "CONNECTION DATA EXISTS";
        DATA_DOES_NOT_EXIST = 13, "CONNECTION DATA DOES NOT EXIST";
        NOTSTORED = 14, "NOT STORED";
        STORED = 15, "STORED";
        NOTFOUND = 16, "NOT FOUND";
        MEMORY_ALLOCATION_FAILURE = 17, "MEMORY ALLOCATION FAILURE";
        PARTIAL_READ = 18, "PARTIAL READ";
        SOME_ERRORS = 19, "SOME ERRORS WERE REPORTED";
        NO_SERVERS = 20, "NO SERVERS DEFINED";
        END = 21, "SERVER END";
        DELETED = 22, "SERVER DELETE";
        VALUE = 23, "SERVER VALUE";
        STAT = 24, "STAT VALUE";
        ITEM = 25, "ITEM VALUE";
        ERRNO = 26, "SYSTEM ERROR";
        FAIL_UNIX_SOCKET = 27, "COULD NOT OPEN UNIX SOCKET";
        NOT_SUPPORTED = 28, "ACTION NOT SUPPORTED";
        NO_KEY_PROVIDED = 29, "A KEY LENGTH OF ZERO WAS PROVIDED";
        FETCH_NOTFINISHED = 30, "FETCH WAS NOT COMPLETED";
        TIMEOUT = 31, "A TIMEOUT OCCURRED";
        BUFFERED = 32, "ACTION QUEUED";
        BAD_KEY_PROVIDED = 33, "A BAD KEY WAS PROVIDED/CHARACTERS OUT OF RANGE";
        INVALID_HOST_PROTOCOL = 34, "THE HOST TRANSPORT PROTOCOL DOES NOT MATCH THAT OF THE CLIENT";
        SERVER_MARKED_DEAD = 35, "SERVER IS MARKED DEAD";
        UNKNOWN_STAT_KEY = 36, "ENCOUNTERED AN UNKNOWN STAT KEY";
        E2BIG = 37, "ITEM TOO BIG";
        INVALID_ARGUMENTS = 38, "INVALID ARGUMENTS";
        KEY_TOO_BIG = 39, "KEY RETURNED FROM SERVER WAS TOO LARGE";
        AUTH_PROBLEM = 40, "FAILED TO SEND AUTHENTICATION TO SERVER";
        AUTH_FAILURE = 41, "AUTHENTICATION FAILURE";
        AUTH_CONTINUE = 42, "CONTINUE AUTHENTICATION";
        PARSE_ERROR = 43, "ERROR OCCURED WHILE PARSING";
        PARSE_USER_ERROR = 44, "USER INITIATED ERROR OCCURED WHILE PARSING";
        DEPRECATED = 45, "DEPRECATED";
        IN_PROGRESS = 46, "OPERATION IN PROCESS";
        SERVER_TEMPORARILY_DISABLED = 47, "SERVER HAS FAILED AND IS DISABLED UNTIL TIMED RETRY";
        SERVER_MEMORY_ALLOCATION_FAILURE = 48, "SERVER FAILED TO ALLOCATE OBJECT";
    }

    /// Whether the call did what was asked (`memcached_success()`).
    pub(crate) fn succeeded(code: i32) -> bool {
        matches!(code, SUCCESS | BUFFERED | DELETED | END | ITEM | STAT | STORED | VALUE)
    }

    /// Whether it is a failure and not only an answer (`memcached_fatal()`): such codes are kept for
    /// `memcached_last_error()`.
    pub(crate) fn is_fatal(code: i32) -> bool {
        !succeeded(code)
            && !matches!(
                code,
                AUTH_CONTINUE
                    | CLIENT_ERROR
                    | DATA_EXISTS
                    | E2BIG
                    | ERROR
                    | NOTFOUND
                    | NOTSTORED
                    | SERVER_MEMORY_ALLOCATION_FAILURE
            )
    }
}
