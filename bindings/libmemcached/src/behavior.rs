//! Behaviours and callbacks of a handle. They are the fields of its structure. Settings that only a network has are
//! stored and returned, and change nothing. If KEYWAY_LIBMEMCACHED_STRICT is set, setting them is refused instead.
//!
//! # Safety
//!
//! As `handle.rs` and `export.rs`.
#![allow(unsafe_code, reason = "C pointers; contract above")]

use crate::error;
use crate::export::{handle_functions, plain_functions};
use crate::handle::{self, Handle, put};
use crate::hash;
use crate::server;
use crate::setup::{Call, key_of, real, sets, setup_functions};
use crate::types::*;
use std::ffi::{CStr, c_char, c_int, c_void};

macro_rules! behaviors {
    ($($name:ident = $number:literal;)*) => {
        $(#[allow(dead_code, reason = "the list is libmemcached's, whole")] pub(crate) const $name: u32 = $number;)*
        fn name(behavior: u32) -> &'static CStr {
            match behavior {
                $($number => match CStr::from_bytes_with_nul(concat!("MEMCACHED_BEHAVIOR_", stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => c"",
                },)*
                _ => c"INVALID memcached_behavior_t",
            }
        }
    };
}
behaviors! {
    NO_BLOCK = 0; TCP_NODELAY = 1; HASH = 2; KETAMA = 3; SOCKET_SEND_SIZE = 4; SOCKET_RECV_SIZE = 5; CACHE_LOOKUPS = 6; SUPPORT_CAS = 7;
    POLL_TIMEOUT = 8; DISTRIBUTION = 9; BUFFER_REQUESTS = 10; USER_DATA = 11; SORT_HOSTS = 12; VERIFY_KEY = 13; CONNECT_TIMEOUT = 14;
    RETRY_TIMEOUT = 15; KETAMA_WEIGHTED = 16; KETAMA_HASH = 17; BINARY_PROTOCOL = 18; SND_TIMEOUT = 19; RCV_TIMEOUT = 20;
    SERVER_FAILURE_LIMIT = 21; IO_MSG_WATERMARK = 22; IO_BYTES_WATERMARK = 23; IO_KEY_PREFETCH = 24; HASH_WITH_PREFIX_KEY = 25; NOREPLY = 26;
    USE_UDP = 27; AUTO_EJECT_HOSTS = 28; NUMBER_OF_REPLICAS = 29; RANDOMIZE_REPLICA_READ = 30; CORK = 31; TCP_KEEPALIVE = 32;
    TCP_KEEPIDLE = 33; LOAD_FROM_FILE = 34; REMOVE_FAILED_SERVERS = 35; DEAD_TIMEOUT = 36; SERVER_TIMEOUT_LIMIT = 37;
}

/// Behaviours that have no meaning on a region.
const NETWORK_ONLY: &[u32] = &[
    NO_BLOCK,
    TCP_NODELAY,
    SOCKET_SEND_SIZE,
    SOCKET_RECV_SIZE,
    POLL_TIMEOUT,
    BUFFER_REQUESTS,
    CONNECT_TIMEOUT,
    SND_TIMEOUT,
    RCV_TIMEOUT,
    SERVER_FAILURE_LIMIT,
    IO_MSG_WATERMARK,
    IO_BYTES_WATERMARK,
    IO_KEY_PREFETCH,
    NOREPLY,
    USE_UDP,
    AUTO_EJECT_HOSTS,
    NUMBER_OF_REPLICAS,
    RANDOMIZE_REPLICA_READ,
    TCP_KEEPALIVE,
    TCP_KEEPIDLE,
    REMOVE_FAILED_SERVERS,
    DEAD_TIMEOUT,
    SERVER_TIMEOUT_LIMIT,
];

/// Distributions (`memcached_server_distribution_t`).
const CONSISTENT: u32 = 1;
const CONSISTENT_KETAMA: u32 = 2;
const RANDOM: u32 = 3;
const CONSISTENT_WEIGHTED: u32 = 5;
const VIRTUAL_BUCKET: u32 = 6;

#[allow(
    clippy::cast_possible_truncation,
    reason = "libmemcached keeps these numbers in 32 bits, and cuts them"
)]
fn low(data: u64) -> u32 {
    data as u32
}

/// A behaviour that only a network has is refused, if the user requires that.
fn refused(st: *const memcached_st, behavior: u32, data: u64) -> Option<c_int> {
    let is_refused = data != 0 && NETWORK_ONLY.contains(&behavior) && std::env::var_os("KEYWAY_LIBMEMCACHED_STRICT").is_some();
    is_refused.then(|| {
        let name = name(behavior).to_string_lossy();
        let why = format!("{name} is a network's: a region has none (KEYWAY_LIBMEMCACHED_STRICT is set)");
        error::set(st, rc::NOT_SUPPORTED, &why)
    })
}

/// Behaviours that are a flag of the handle, and nothing else.
const FLAGS: [(u32, Flag); 8] = [
    (NO_BLOCK, Flag::NoBlock),
    (TCP_NODELAY, Flag::TcpNodelay),
    (TCP_KEEPALIVE, Flag::TcpKeepalive),
    (SUPPORT_CAS, Flag::SupportCas),
    (HASH_WITH_PREFIX_KEY, Flag::HashWithNamespace),
    (AUTO_EJECT_HOSTS, Flag::AutoEjectHosts),
    (REMOVE_FAILED_SERVERS, Flag::AutoEjectHosts),
    (RANDOMIZE_REPLICA_READ, Flag::RandomizeReplicaRead),
];

/// Behaviours that are a number of the handle, and nothing else.
fn number_of(settings: &mut memcached_st, behavior: u32) -> Option<&mut u32> {
    Some(match behavior {
        NUMBER_OF_REPLICAS => &mut settings.number_of_replicas,
        IO_MSG_WATERMARK => &mut settings.io_msg_watermark,
        IO_BYTES_WATERMARK => &mut settings.io_bytes_watermark,
        IO_KEY_PREFETCH => &mut settings.io_key_prefetch,
        TCP_KEEPIDLE => &mut settings.tcp_keepidle,
        SERVER_TIMEOUT_LIMIT => &mut settings.server_timeout_limit,
        _ => return None,
    })
}

/// Behaviours that are a number with a sign of the handle, and nothing else.
fn signed_of(settings: &mut memcached_st, behavior: u32) -> Option<&mut i32> {
    Some(match behavior {
        SND_TIMEOUT => &mut settings.snd_timeout,
        RCV_TIMEOUT => &mut settings.rcv_timeout,
        POLL_TIMEOUT => &mut settings.poll_timeout,
        CONNECT_TIMEOUT => &mut settings.connect_timeout,
        RETRY_TIMEOUT => &mut settings.retry_timeout,
        DEAD_TIMEOUT => &mut settings.dead_timeout,
        SOCKET_SEND_SIZE => &mut settings.send_size,
        SOCKET_RECV_SIZE => &mut settings.recv_size,
        _ => return None,
    })
}

/// Behaviours that libmemcached has given up, and what it says.
const DEPRECATED: [(u32, &str); 3] = [
    (CACHE_LOOKUPS, "MEMCACHED_BEHAVIOR_CACHE_LOOKUPS has been deprecated."),
    (USER_DATA, "MEMCACHED_BEHAVIOR_USER_DATA deprecated."),
    (
        CORK,
        "MEMCACHED_BEHAVIOR_CORK is now incorporated into the driver by default.",
    ),
];

/// Sets a behaviour of a handle of ours.
fn set(st: *mut memcached_st, behavior: u32, data: u64) -> c_int {
    let Some(handle) = handle::ours(st) else {
        return rc::INVALID_ARGUMENTS;
    };
    // SAFETY: a handle of ours.
    let settings = unsafe { &mut *st };
    let on = data != 0;
    let number = low(data);
    if let Some((_, flag)) = FLAGS.iter().find(|(known, _)| *known == behavior) {
        settings.put(*flag, on);
        return rc::SUCCESS;
    }
    if let Some(field) = number_of(settings, behavior) {
        *field = number;
        return rc::SUCCESS;
    }
    if let Some(field) = signed_of(settings, behavior) {
        *field = low(data).cast_signed();
        return rc::SUCCESS;
    }
    match behavior {
        SERVER_FAILURE_LIMIT if !on => invalid(
            st,
            "MEMCACHED_BEHAVIOR_SERVER_FAILURE_LIMIT requires a value greater then zero.",
        ),
        SERVER_FAILURE_LIMIT => {
            settings.server_failure_limit = number;
            rc::SUCCESS
        }
        LOAD_FROM_FILE => invalid(
            st,
            "MEMCACHED_BEHAVIOR_LOAD_FROM_FILE can not be set with memcached_behavior_set()",
        ),
        BINARY_PROTOCOL | BUFFER_REQUESTS | USE_UDP | NOREPLY | VERIFY_KEY | SORT_HOSTS => {
            switch(st, handle, settings, behavior, on)
        }
        _ => match DEPRECATED.iter().find(|(known, _)| *known == behavior) {
            Some((_, why)) => error::set(st, rc::DEPRECATED, why),
            None => place_keys(st, settings, behavior, data),
        },
    }
}

fn invalid(st: *mut memcached_st, why: &str) -> c_int {
    error::set(st, rc::INVALID_ARGUMENTS, why)
}

/// Switches a behaviour that others depend on, or that depends on others.
fn switch(st: *mut memcached_st, handle: &mut Handle, settings: &mut memcached_st, behavior: u32, on: bool) -> c_int {
    match behavior {
        BINARY_PROTOCOL => {
            settings.put(Flag::BinaryProtocol, on);
            if on {
                settings.put(Flag::VerifyKey, false);
            }
        }
        BUFFER_REQUESTS if settings.is(Flag::UseUdp) => {
            let why = "MEMCACHED_BEHAVIOR_BUFFER_REQUESTS cannot be set while MEMCACHED_BEHAVIOR_USE_UDP is enabled.";
            return invalid(st, why);
        }
        BUFFER_REQUESTS => settings.put(Flag::BufferRequests, on),
        USE_UDP => {
            settings.put(Flag::UseUdp, on);
            settings.put(Flag::Reply, !on);
            if on {
                settings.put(Flag::BufferRequests, false);
            }
            handle.servers_changed(st);
        }
        NOREPLY if settings.is(Flag::UseUdp) && !on => {
            let why = "MEMCACHED_BEHAVIOR_NOREPLY cannot be disabled while MEMCACHED_BEHAVIOR_USE_UDP is enabled.";
            return invalid(st, why);
        }
        NOREPLY => settings.put(Flag::Reply, !on),
        VERIFY_KEY if settings.is(Flag::BinaryProtocol) => {
            return invalid(st, "MEMCACHED_BEHAVIOR_VERIFY_KEY if the binary protocol has been enabled.");
        }
        VERIFY_KEY => settings.put(Flag::VerifyKey, on),
        _ => {
            debug_assert_eq!(behavior, SORT_HOSTS);
            settings.put(Flag::UseSortHosts, on);
            if on {
                server::sort(&mut handle.servers);
                handle.servers_changed(st);
            }
        }
    }
    rc::SUCCESS
}

/// Sets a behaviour by which keys find their servers.
fn place_keys(st: *mut memcached_st, settings: &mut memcached_st, behavior: u32, data: u64) -> c_int {
    let on = data != 0;
    match behavior {
        DISTRIBUTION => distribute(st, settings, low(data)),
        KETAMA => distribute(st, settings, if on { CONSISTENT_KETAMA } else { 0 }),
        KETAMA_WEIGHTED if !on => distribute(st, settings, CONSISTENT_KETAMA),
        KETAMA_WEIGHTED => {
            set_hash(st, hash::hashkit_set_function, hash::MD5);
            set_hash(st, hash::hashkit_set_distribution_function, hash::MD5);
            distribute(st, settings, CONSISTENT_WEIGHTED)
        }
        HASH => set_hash(st, hash::hashkit_set_function, low(data)),
        KETAMA_HASH => set_hash(st, hash::hashkit_set_distribution_function, low(data)),
        _ => error::set(
            st,
            rc::INVALID_ARGUMENTS,
            "Invalid behavior passed to memcached_behavior_set()",
        ),
    }
}

fn distribute(st: *const memcached_st, settings: &mut memcached_st, distribution: u32) -> c_int {
    match distribution {
        CONSISTENT | CONSISTENT_KETAMA => settings.ketama.weighted = false,
        CONSISTENT_WEIGHTED => settings.ketama.weighted = true,
        0..=VIRTUAL_BUCKET => {}
        _ => return error::set(st, rc::INVALID_ARGUMENTS, "Invalid memcached_server_distribution_t"),
    }
    settings.distribution = distribution;
    rc::SUCCESS
}

/// Sets one of the two functions of the handle's kit.
fn set_hash(st: *mut memcached_st, setter: unsafe extern "C" fn(*mut hashkit_st, u32) -> c_int, hash: u32) -> c_int {
    // SAFETY: a handle of ours, and its kit.
    match unsafe { setter(&raw mut (*st).hashkit, hash) } {
        0 => rc::SUCCESS,
        _ => error::set(st, rc::INVALID_ARGUMENTS, "Invalid memcached_hash_t()"),
    }
}

pub(crate) fn is_consistent(distribution: u32) -> bool {
    (CONSISTENT..=CONSISTENT_WEIGHTED).contains(&distribution) && distribution != RANDOM
}

fn current(st: &memcached_st, handle: &Handle, behavior: u32) -> u64 {
    let flag = |flag| u64::from(st.is(flag));
    let signed = |number: i32| i64::from(number).cast_unsigned();
    match behavior {
        NO_BLOCK => flag(Flag::NoBlock),
        TCP_NODELAY => flag(Flag::TcpNodelay),
        TCP_KEEPALIVE => flag(Flag::TcpKeepalive),
        SUPPORT_CAS => flag(Flag::SupportCas),
        HASH_WITH_PREFIX_KEY => flag(Flag::HashWithNamespace),
        AUTO_EJECT_HOSTS | REMOVE_FAILED_SERVERS => flag(Flag::AutoEjectHosts),
        RANDOMIZE_REPLICA_READ => flag(Flag::RandomizeReplicaRead),
        BINARY_PROTOCOL => flag(Flag::BinaryProtocol),
        BUFFER_REQUESTS => flag(Flag::BufferRequests),
        USE_UDP => flag(Flag::UseUdp),
        VERIFY_KEY => flag(Flag::VerifyKey),
        SORT_HOSTS => flag(Flag::UseSortHosts),
        NOREPLY => u64::from(!st.is(Flag::Reply)),
        CACHE_LOOKUPS | CORK => 1,
        NUMBER_OF_REPLICAS => u64::from(st.number_of_replicas),
        IO_MSG_WATERMARK => u64::from(st.io_msg_watermark),
        IO_BYTES_WATERMARK => u64::from(st.io_bytes_watermark),
        IO_KEY_PREFETCH => u64::from(st.io_key_prefetch),
        TCP_KEEPIDLE => u64::from(st.tcp_keepidle),
        SERVER_FAILURE_LIMIT => u64::from(st.server_failure_limit),
        SERVER_TIMEOUT_LIMIT => u64::from(st.server_timeout_limit),
        SND_TIMEOUT => signed(st.snd_timeout),
        RCV_TIMEOUT => signed(st.rcv_timeout),
        POLL_TIMEOUT => signed(st.poll_timeout),
        CONNECT_TIMEOUT => signed(st.connect_timeout),
        RETRY_TIMEOUT => signed(st.retry_timeout),
        DEAD_TIMEOUT => signed(st.dead_timeout),
        // The default is the system's; there is no socket to ask for it.
        SOCKET_SEND_SIZE => signed(st.send_size.max(0)),
        SOCKET_RECV_SIZE => signed(st.recv_size.max(0)),
        DISTRIBUTION => u64::from(st.distribution),
        KETAMA => u64::from(is_consistent(st.distribution)),
        KETAMA_WEIGHTED => u64::from(is_consistent(st.distribution) && st.ketama.weighted),
        // SAFETY: the handle's kit.
        HASH => u64::from(unsafe { hash::hashkit_get_function(&raw const st.hashkit) }),
        // SAFETY: as above.
        KETAMA_HASH => u64::from(unsafe { hash::hashkit_get_distribution_function(&raw const st.hashkit) }),
        LOAD_FROM_FILE => u64::from(handle.filename.is_some()),
        _ => 0,
    }
}

setup_functions! {
    fn memcached_behavior_set(st: *mut memcached_st, behavior: u32, data: u64) -> c_int = rc::INVALID_ARGUMENTS,
        sets sets::of_behavior(behavior);
        match refused(st, behavior, data) {
            Some(code) => return code,
            None => set(st, behavior, data),
        }

    fn memcached_behavior_set_distribution(st: *mut memcached_st, distribution: u32) -> c_int = rc::INVALID_ARGUMENTS,
        sets sets::PLACEMENT; distribute(st, &mut *st, distribution)

    fn memcached_behavior_set_key_hash(st: *mut memcached_st, hash: u32) -> c_int = rc::INVALID_ARGUMENTS,
        sets sets::PLACEMENT; set_hash(st, hash::hashkit_set_function, hash)

    fn memcached_behavior_set_distribution_hash(st: *mut memcached_st, hash: u32) -> c_int = rc::INVALID_ARGUMENTS,
        sets sets::PLACEMENT; set_hash(st, hash::hashkit_set_distribution_function, hash)

    fn memcached_set_hashkit(st: *mut memcached_st, kit: *mut hashkit_st) -> c_int = rc::INVALID_ARGUMENTS, sets sets::PLACEMENT; {
        hash::hashkit_free(&raw mut (*st).hashkit);
        hash::hashkit_clone(&raw mut (*st).hashkit, kit);
        rc::SUCCESS
    }
}

handle_functions! {
    fn memcached_behavior_get(st: *mut memcached_st, behavior: u32) -> u64 = rc::INVALID_ARGUMENTS as u64; {
        if behavior == USER_DATA {
            error::set(st, rc::DEPRECATED, "MEMCACHED_BEHAVIOR_USER_DATA deprecated.");
        }
        Some(current(&*st, handle::of(st), behavior))
    }

    fn memcached_behavior_get_distribution(st: *mut memcached_st) -> u32 = 7; Some((*st).distribution)

    fn memcached_behavior_get_key_hash(st: *mut memcached_st) -> u32 = hash::MAX; Some(low(current(&*st, handle::of(st), HASH)))

    // The key's hash, as libmemcached reports it here.
    fn memcached_behavior_get_distribution_hash(st: *mut memcached_st) -> u32 = hash::MAX;
        Some(low(current(&*st, handle::of(st), HASH)))

    fn memcached_bucket_set(st: *mut memcached_st, host_map: *const u32, forward_map: *const u32, buckets: u32, replicas: u32)
        -> c_int = rc::INVALID_ARGUMENTS; {
        if host_map.is_null() || buckets == 0 {
            return rc::INVALID_ARGUMENTS;
        }
        let list = |map: *const u32| std::slice::from_raw_parts(map, buckets as usize).to_vec();
        let (host, forward) = (list(host_map), (!forward_map.is_null()).then(|| list(forward_map)));
        let call = Call::new(sets::PLACEMENT, key_of(&("buckets", &host, &forward, replicas)), move |st| {
            let forward = forward.as_ref().map_or(std::ptr::null(), Vec::as_ptr);
            real!(memcached_bucket_set(*mut memcached_st, *const u32, *const u32, u32, u32) -> c_int;
                st, host.as_ptr(), forward, buckets, replicas);
        });
        let code = distribute(st, &mut *st, VIRTUAL_BUCKET);
        handle::of(st).calls.write_down(call, true);
        Some(code)
    }

    fn memcached_callback_set(st: *mut memcached_st, callback: u32, data: *const c_void) -> c_int = rc::INVALID_ARGUMENTS; {
        let code = set_callback(st, callback, data);
        let text = (callback == 0 && !data.is_null()).then(|| CStr::from_ptr(data.cast()).to_owned());
        let call = Call::new(sets::of_callback(callback), key_of(&("callback", callback, data, &text)), move |st| {
            let data = text.as_ref().map_or(data, |text| text.as_ptr().cast());
            real!(memcached_callback_set(*mut memcached_st, u32, *const c_void) -> c_int; st, callback, data);
        });
        handle::of(st).calls.write_down(call, code == rc::SUCCESS);
        Some(code)
    }

    fn memcached_callback_get(st: *mut memcached_st, callback: u32, code: *mut c_int) -> *mut c_void = {
        put(code, rc::INVALID_ARGUMENTS);
        // Perl's module asks for its data after memcached_free. libmemcached answers from the structure, although it is freed.
        if callback == 1 && !st.is_null() { (*st).user_data } else { std::ptr::null_mut() }
    }; {
        let known = match callback {
            0 => {
                put(code, rc::SUCCESS);
                return handle::of(st).namespace.as_ref().map_or(std::ptr::null_mut(), |n| n.as_ptr().cast_mut().cast());
            }
            1 => (*st).user_data,
            2 => std::mem::transmute::<Option<CleanupFn>, *mut c_void>((*st).on_cleanup),
            3 => std::mem::transmute::<Option<CloneFn>, *mut c_void>((*st).on_clone),
            7 => std::mem::transmute::<Option<TriggerKeyFn>, *mut c_void>((*st).get_key_failure),
            8 => std::mem::transmute::<Option<TriggerDeleteFn>, *mut c_void>((*st).delete_trigger),
            _ => std::ptr::null_mut(),
        };
        put(code, if known.is_null() { rc::FAILURE } else { rc::SUCCESS });
        Some(known)
    }

    fn memcached_get_hashkit(st: *const memcached_st) -> *const hashkit_st = std::ptr::null(); Some(&raw const (*st).hashkit)

    // This library never ejects a server.
    fn memcached_autoeject(st: *mut memcached_st) -> () = (); {
        let _ = st;
        Some(())
    }
}

plain_functions! {
    fn libmemcached_string_behavior(behavior: u32) -> *const c_char = c"".as_ptr(); name(behavior).as_ptr()

    fn libmemcached_string_distribution(distribution: u32) -> *const c_char = c"".as_ptr(); match distribution {
        0 => c"MEMCACHED_DISTRIBUTION_MODULA",
        1 => c"MEMCACHED_DISTRIBUTION_CONSISTENT",
        2 => c"MEMCACHED_DISTRIBUTION_CONSISTENT_KETAMA",
        3 => c"MEMCACHED_DISTRIBUTION_RANDOM",
        4 => c"MEMCACHED_DISTRIBUTION_CONSISTENT_KETAMA_SPY",
        5 => c"MEMCACHED_DISTRIBUTION_CONSISTENT_WEIGHTED",
        6 => c"MEMCACHED_DISTRIBUTION_VIRTUAL_BUCKET",
        _ => c"INVALID memcached_server_distribution_t",
    }.as_ptr()
}

/// # Safety
///
/// The handle is ours; the data is what the callback's kind says.
unsafe fn set_callback(st: *mut memcached_st, callback: u32, data: *const c_void) -> c_int {
    // SAFETY: guaranteed by the caller; a function's address, or NULL for none.
    unsafe {
        match callback {
            0 => {
                let text = if data.is_null() {
                    None
                } else {
                    Some(CStr::from_ptr(data.cast()))
                };
                return set_namespace(st, text);
            }
            1 => (*st).user_data = data.cast_mut(),
            2 => (*st).on_cleanup = std::mem::transmute::<*const c_void, Option<CleanupFn>>(data),
            3 => (*st).on_clone = std::mem::transmute::<*const c_void, Option<CloneFn>>(data),
            7 => (*st).get_key_failure = std::mem::transmute::<*const c_void, Option<TriggerKeyFn>>(data),
            8 if !data.is_null() && (*st).is(Flag::BufferRequests) => {
                return error::set(
                    st,
                    rc::INVALID_ARGUMENTS,
                    "Delete triggers cannot be used if buffering is enabled",
                );
            }
            8 if !data.is_null() && !(*st).is(Flag::Reply) => {
                let why = "Delete triggers cannot be used if MEMCACHED_BEHAVIOR_NOREPLY is set";
                return error::set(st, rc::INVALID_ARGUMENTS, why);
            }
            8 => (*st).delete_trigger = std::mem::transmute::<*const c_void, Option<TriggerDeleteFn>>(data),
            9 => return error::set(st, rc::INVALID_ARGUMENTS, "Invalid callback supplied"),
            _ => {}
        }
    }
    rc::SUCCESS
}

/// The prefix that comes before every key of the handle.
pub(crate) fn set_namespace(st: *mut memcached_st, namespace: Option<&CStr>) -> c_int {
    let Some(handle) = handle::ours(st) else {
        return rc::INVALID_ARGUMENTS;
    };
    let Some(namespace) = namespace else {
        handle.namespace = None;
        return rc::SUCCESS;
    };
    let bytes = namespace.to_bytes();
    // SAFETY: a handle of ours.
    let text = unsafe { !(*st).is(Flag::BinaryProtocol) };
    if bytes.is_empty() {
        let why = "Invalid namespace, namespace string had value but length was 0";
        return error::set(st, rc::INVALID_ARGUMENTS, why);
    }
    if bytes.len() >= MAX_KEY {
        return error::set(st, rc::BAD_KEY_PROVIDED, "Key provided was too long.");
    }
    if text && !bytes.iter().all(u8::is_ascii_graphic) {
        return error::set(st, rc::BAD_KEY_PROVIDED, "Key provided had invalid character.");
    }
    if bytes.len() >= MAX_NAMESPACE {
        return error::set(st, rc::KEY_TOO_BIG, "");
    }
    handle.namespace = Some(namespace.to_owned());
    rc::SUCCESS
}
