//! Requests about servers themselves: statistics, versions, verbosity, and all their keys.
//!
//! They are the server's own answers, requested over its socket: a server that is away has none, even if its region is in use. If a
//! handle names a region directly, they are the region's.
//!
//! # Safety
//!
//! As `handle.rs` and `export.rs`. No reference to a handle is kept while a callback runs.
#![allow(unsafe_code, reason = "C pointers; contract above")]

use crate::discover::Target;
use crate::error;
use crate::export::{handle_functions, plain_functions};
use crate::handle::{self, Handle, Way, put};
use crate::server::{self, Instance};
use crate::store;
use crate::types::*;
use std::ffi::{CStr, CString, c_char, c_int, c_void};

/// Number of keys of a region that are examined in one step.
const STEP: usize = 512;

/// The names that `memcached_stat_get_keys` returns.
const KEYS: &[&CStr] = &[
    c"pid",
    c"uptime",
    c"time",
    c"version",
    c"pointer_size",
    c"rusage_user",
    c"rusage_system",
    c"curr_items",
    c"total_items",
    c"bytes",
    c"curr_connections",
    c"total_connections",
    c"connection_structures",
    c"cmd_get",
    c"cmd_set",
    c"get_hits",
    c"get_misses",
    c"evictions",
    c"bytes_read",
    c"bytes_written",
    c"limit_maxbytes",
    c"threads",
];

/// The rows that a server reports; a code if it does not know the request, or is away.
fn rows(st: *const memcached_st, handle: &mut Handle, position: usize, args: &str) -> Result<Vec<(String, String)>, c_int> {
    let asked = handle
        .server(position)
        .and_then(|(server, target)| target.ask(&mut server.connection, &format!("stats {args}\r\n")));
    if let Some(Err(error)) = &asked {
        error::set_away(st, position, error);
        return Err(rc::CONNECTION_FAILURE);
    }
    if let Some(Ok(lines)) = asked {
        if lines.iter().any(|line| line == "ERROR") {
            return Err(rc::INVALID_ARGUMENTS);
        }
        let rows = lines.iter().filter_map(|line| line.strip_prefix("STAT ")?.split_once(' '));
        // libmemcached ends a value at its first space.
        return Ok(rows
            .map(|(name, value)| (name.to_owned(), value.split(' ').next().unwrap_or("").to_owned()))
            .collect());
    }
    let Some(open) = &handle.open else {
        return Err(rc::FAILURE);
    };
    if !args.is_empty() {
        return Ok(Vec::new());
    }
    Ok(of_region(&open.cache, open.facts.version))
}

/// The rows for a region that is named without a server.
fn of_region(cache: &keyway_cache::Cache, [major, minor, micro]: [u8; 3]) -> Vec<(String, String)> {
    let info = cache.info();
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |now| now.as_secs());
    let created = u64::try_from(info.created_unix_s).unwrap_or(0);
    let own = [
        ("pid", u64::from(std::process::id())),
        ("uptime", now.saturating_sub(created)),
        ("time", now),
        ("pointer_size", u64::from(usize::BITS)),
        ("limit_maxbytes", info.limit_bytes),
        ("threads", info.sessions),
    ];
    let counted = cache.counters().named();
    let numbers = own
        .into_iter()
        .chain(counted)
        .map(|(name, number)| (name.to_owned(), number.to_string()));
    let version = ("version".to_owned(), format!("{major}.{minor}.{micro}"));
    std::iter::once(version).chain(numbers).collect()
}

/// Puts a row into its field of the structure, if there is one.
fn fill(stat: &mut memcached_stat_st, name: &str, value: &str) {
    let number: u64 = value.parse().unwrap_or(0);
    let halves = || {
        let (seconds, micros) = value.split_once('.').unwrap_or((value, "0"));
        (seconds.parse().unwrap_or(0), micros.parse().unwrap_or(0))
    };
    match name {
        "pid" => stat.pid = value.parse().unwrap_or(-1),
        "uptime" => stat.uptime = number,
        "time" => stat.time = number,
        "version" => {
            for (to, from) in stat.version.iter_mut().take(VERSION_LENGTH - 1).zip(value.bytes()) {
                *to = from;
            }
        }
        "pointer_size" => stat.pointer_size = number,
        "rusage_user" => (stat.rusage_user_seconds, stat.rusage_user_microseconds) = halves(),
        "rusage_system" => (stat.rusage_system_seconds, stat.rusage_system_microseconds) = halves(),
        "curr_items" => stat.curr_items = number,
        "total_items" => stat.total_items = number,
        "bytes" => stat.bytes = number,
        "bytes_read" => stat.bytes_read = number,
        "bytes_written" => stat.bytes_written = number,
        "curr_connections" => stat.curr_connections = number,
        "total_connections" => stat.total_connections = number,
        "connection_structures" => stat.connection_structures = number,
        "cmd_get" => stat.cmd_get = number,
        "cmd_set" => stat.cmd_set = number,
        "get_hits" => stat.get_hits = number,
        "get_misses" => stat.get_misses = number,
        "evictions" => stat.evictions = number,
        "limit_maxbytes" => stat.limit_maxbytes = number,
        "threads" => stat.threads = number,
        _ => {}
    }
}

/// The structure's value for a name.
fn told(stat: &memcached_stat_st, name: &[u8]) -> Option<String> {
    let number = match name {
        b"pid" => return Some(stat.pid.to_string()),
        b"version" => {
            let version = stat.version.split(|byte| *byte == 0).next().unwrap_or_default();
            return Some(String::from_utf8_lossy(version).into_owned());
        }
        b"rusage_user" => return Some(format!("{}.{}", stat.rusage_user_seconds, stat.rusage_user_microseconds)),
        b"rusage_system" => return Some(format!("{}.{}", stat.rusage_system_seconds, stat.rusage_system_microseconds)),
        b"uptime" => stat.uptime,
        b"time" => stat.time,
        b"pointer_size" => stat.pointer_size,
        b"curr_items" => stat.curr_items,
        b"total_items" => stat.total_items,
        b"curr_connections" => stat.curr_connections,
        b"total_connections" => stat.total_connections,
        b"connection_structures" => stat.connection_structures,
        b"cmd_get" => stat.cmd_get,
        b"cmd_set" => stat.cmd_set,
        b"get_hits" => stat.get_hits,
        b"get_misses" => stat.get_misses,
        b"evictions" => stat.evictions,
        b"bytes" => stat.bytes,
        b"bytes_read" => stat.bytes_read,
        b"bytes_written" => stat.bytes_written,
        b"limit_maxbytes" => stat.limit_maxbytes,
        b"threads" => stat.threads,
        _ => return None,
    };
    Some(number.to_string())
}

/// Asks each server something. Those that are away keep that as their failure.
fn each_server(st: *const memcached_st, mut ask: impl FnMut(&mut Instance, &Target) -> std::io::Result<()>) -> c_int {
    let (mut code, mut position) = (rc::SUCCESS, 0);
    while let Some((server, target)) = handle::ours(st).and_then(|handle| handle.server(position)) {
        if let Err(error) = ask(server, target) {
            error::set_away(st, position, &error);
            code = rc::SOME_ERRORS;
        }
        position += 1;
    }
    code
}

/// Gets the versions of a handle's servers.
fn versions(st: *const memcached_st) -> c_int {
    each_server(st, Instance::fill_in_version)
}

/// # Safety
///
/// NULL or a C string.
unsafe fn text(args: *const c_char) -> String {
    if args.is_null() {
        return String::new();
    }
    // SAFETY: guaranteed by the caller.
    unsafe { CStr::from_ptr(args) }.to_string_lossy().into_owned()
}

handle_functions! {
    fn memcached_stat(st: *mut memcached_st, args: *mut c_char, code: *mut c_int) -> *mut memcached_stat_st = {
        put(code, rc::INVALID_ARGUMENTS);
        std::ptr::null_mut()
    }; {
        let handle = match handle::enter(st) {
            Way::Here(handle) => Some(handle),
            Way::Away => None,
            Way::Stuck(failed) => {
                put(code, failed);
                return std::ptr::null_mut();
            }
        };
        handle.map(|handle| {
            let args = text(args);
            let count = handle.servers.len();
            let stats: *mut memcached_stat_st = handle::malloc(st, count * size_of::<memcached_stat_st>()).cast();
            if stats.is_null() {
                put(code, error::set(st, rc::MEMORY_ALLOCATION_FAILURE, ""));
                return stats;
            }
            stats.cast::<u8>().write_bytes(0, count * size_of::<memcached_stat_st>());
            put(code, rc::SUCCESS);
            for position in 0..count {
                let stat = &mut *stats.add(position);
                stat.pid = -1;
                stat.root = st;
                match rows(st, handle, position, &args) {
                    Ok(rows) => rows.iter().for_each(|(name, value)| fill(stat, name, value)),
                    Err(rc::INVALID_ARGUMENTS) => put(code, rc::INVALID_ARGUMENTS),
                    Err(_) => put(code, rc::SOME_ERRORS),
                }
            }
            stats
        })
    }

    fn memcached_stat_get_keys(st: *mut memcached_st, _stat: *mut memcached_stat_st, code: *mut c_int) -> *mut *mut c_char
        = std::ptr::null_mut(); {
        let list: *mut *const c_char = handle::malloc(st, (KEYS.len() + 1) * size_of::<*const c_char>()).cast();
        if list.is_null() {
            put(code, error::set(st, rc::MEMORY_ALLOCATION_FAILURE, ""));
        } else {
            for (index, key) in KEYS.iter().enumerate() {
                list.add(index).write(key.as_ptr());
            }
            list.add(KEYS.len()).write(std::ptr::null());
            put(code, rc::SUCCESS);
        }
        Some(list.cast())
    }

    fn memcached_stat_execute(st: *mut memcached_st, args: *const c_char, callback: Option<StatFn>, context: *mut c_void)
        -> c_int = rc::INVALID_ARGUMENTS; {
        match handle::enter(st) {
            Way::Here(_) => Some(call_for_rows_of_all(st, &text(args), callback, context)),
            Way::Away => None,
            Way::Stuck(code) => Some(code),
        }
    }

    fn memcached_version(st: *mut memcached_st) -> c_int = rc::INVALID_ARGUMENTS;
        match handle::enter(st) {
            Way::Here(_) => Some(versions(st)),
            Way::Away => None,
            // Treated as one server's failure to answer.
            Way::Stuck(rc::CONNECTION_FAILURE | rc::SERVER_TEMPORARILY_DISABLED) => Some(rc::SOME_ERRORS),
            Way::Stuck(code) => Some(code),
        }

    fn memcached_verbosity(st: *mut memcached_st, verbosity: u32) -> c_int = rc::INVALID_ARGUMENTS;
        match handle::way(st) {
            Way::Here(_) => {
                let line = format!("verbosity {verbosity}\r\n");
                Some(each_server(st, |server, target| {
                    target.ask(&mut server.connection, &line).map_or(Ok(()), |answer| answer.map(drop))
                }))
            }
            Way::Away => None,
            Way::Stuck(code) => Some(code),
        }

    fn memcached_dump(st: *mut memcached_st, callbacks: *const DumpFn, context: *mut c_void, count: u32) -> c_int
        = rc::INVALID_ARGUMENTS; {
        if let Way::Stuck(code) = handle::enter(st) {
            return code;
        }
        if handle::is_ours(st) { Some(dump(st, callbacks, context, count)) } else { None }
    }

    fn memcached_analyze(st: *mut memcached_st, stats: *mut memcached_stat_st, code: *mut c_int) -> *mut memcached_analysis_st
        = std::ptr::null_mut(); {
        if stats.is_null() {
            return std::ptr::null_mut();
        }
        let count = handle::of(st).servers.len();
        let analysis: *mut memcached_analysis_st = handle::malloc(st, size_of::<memcached_analysis_st>()).cast();
        if analysis.is_null() {
            put(code, rc::MEMORY_ALLOCATION_FAILURE);
        } else {
            analysis.write(analyzed(st, std::slice::from_raw_parts(stats, count)));
            put(code, rc::SUCCESS);
        }
        Some(analysis)
    }

    fn memcached_stat_get_value(st: *const memcached_st, stat: *mut memcached_stat_st, key: *const c_char, code: *mut c_int)
        -> *mut c_char = std::ptr::null_mut(); Some(stat_value(st, stat, key, code))
}

/// Calls the program's function for each row of each server.
///
/// # Safety
///
/// The handle is ours, and has been entered.
unsafe fn call_for_rows_of_all(st: *mut memcached_st, args: &str, callback: Option<StatFn>, context: *mut c_void) -> c_int {
    versions(st);
    let (mut code, mut position) = (rc::SUCCESS, 0);
    while let Some(handle) = handle::ours(st).filter(|handle| position < handle.servers.len()) {
        match rows(st, handle, position, args) {
            // SAFETY: guaranteed by the caller.
            Ok(rows) => unsafe { call_for_rows(st, position, &rows, callback, context) },
            Err(_) => code = rc::SOME_ERRORS,
        }
        position += 1;
    }
    code
}

/// # Safety
///
/// The handle is ours.
unsafe fn call_for_rows(
    st: *mut memcached_st,
    position: usize,
    rows: &[(String, String)],
    callback: Option<StatFn>,
    context: *mut c_void,
) {
    let Some(callback) = callback else { return };
    for (name, value) in rows {
        let (Ok(name), Ok(value)) = (CString::new(name.as_str()), CString::new(value.as_str())) else {
            continue;
        };
        // SAFETY: guaranteed by the caller; the strings live until the callback returns.
        unsafe {
            if !handle::is_ours(st) {
                return;
            }
            let server = server::at(st, u32::try_from(position).unwrap_or(u32::MAX));
            callback(
                server,
                name.as_ptr(),
                name.count_bytes(),
                value.as_ptr(),
                value.count_bytes(),
                context,
            );
        }
    }
}

/// Calls the program's functions for each key of the region. They are called between the steps, and may do anything.
///
/// # Safety
///
/// The handle is ours, and has been entered.
unsafe fn dump(st: *mut memcached_st, callbacks: *const DumpFn, context: *mut c_void, count: u32) -> c_int {
    // SAFETY: guaranteed by the caller.
    let (binary, open) = unsafe { ((*st).is(Flag::BinaryProtocol), handle::of(st).open.clone()) };
    if binary {
        return error::set(st, rc::NOT_SUPPORTED, "Binary protocol is not supported for memcached_dump()");
    }
    let Some(open) = open else { return rc::FAILURE };
    versions(st);
    let (mut cursor, mut failed) = (0, false);
    loop {
        let mut keys = Vec::new();
        let step = open
            .cache
            .with_session(|session, _| session.walk(cursor, STEP, |key, _| keys.push(key.to_vec())));
        let next = match step {
            Ok(next) => next,
            Err(error) => return store::unreachable(st, &error),
        };
        for mut key in keys {
            let len = key.len();
            key.push(0);
            for index in 0..count as usize {
                // SAFETY: guaranteed by the caller; the key lives until the callback returns.
                let code = unsafe { (*callbacks.add(index))(st, key.as_ptr().cast(), len, context) };
                if code != rc::SUCCESS {
                    failed = true;
                    break;
                }
            }
        }
        match next {
            Some(next) => cursor = next,
            None => return if failed { rc::SOME_ERRORS } else { rc::SUCCESS },
        }
    }
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "libmemcached's own fields are so narrow"
)]
fn analyzed(st: *mut memcached_st, stats: &[memcached_stat_st]) -> memcached_analysis_st {
    let mut analysis = memcached_analysis_st {
        root: st,
        average_item_size: 0,
        longest_uptime: 0,
        least_free_server: 0,
        most_consumed_server: 0,
        oldest_server: 0,
        pool_hit_ratio: 0.0,
        most_used_bytes: 0,
        least_remaining_bytes: 0,
    };
    let sum = |field: fn(&memcached_stat_st) -> u64| stats.iter().map(field).sum::<u64>();
    for (position, stat) in (0..).zip(stats) {
        if analysis.most_used_bytes < stat.bytes {
            (analysis.most_used_bytes, analysis.most_consumed_server) = (stat.bytes, position);
        }
        if u64::from(analysis.longest_uptime) < stat.uptime {
            (analysis.longest_uptime, analysis.oldest_server) = (stat.uptime as u32, position);
        }
        let remaining = stat.limit_maxbytes.wrapping_sub(stat.bytes);
        if analysis.least_remaining_bytes == 0 || remaining < analysis.least_remaining_bytes {
            (analysis.least_remaining_bytes, analysis.least_free_server) = (remaining, position);
        }
    }
    let (items, bytes) = (sum(|stat| stat.curr_items), sum(|stat| stat.bytes));
    analysis.average_item_size = bytes.checked_div(items).unwrap_or(0) as u32;
    let (hits, gets) = (sum(|stat| stat.get_hits), sum(|stat| stat.cmd_get));
    if hits > 0 && gets > 0 {
        analysis.pool_hit_ratio = hits as f64 / gets as f64 * 100.0;
    }
    analysis
}

/// # Safety
///
/// The structure is NULL or one; the key is a C string; the place is NULL or can be written.
unsafe fn stat_value(st: *const memcached_st, stat: *mut memcached_stat_st, key: *const c_char, code: *mut c_int) -> *mut c_char {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let (Some(stat), false) = (stat.as_ref(), key.is_null()) else {
            put(code, rc::INVALID_ARGUMENTS);
            return std::ptr::null_mut();
        };
        match told(stat, CStr::from_ptr(key).to_bytes()) {
            Some(value) => {
                put(code, rc::SUCCESS);
                handle::copied(value.as_bytes())
            }
            None => {
                put(code, error::set(st, rc::INVALID_ARGUMENTS, "Invalid key provided"));
                std::ptr::null_mut()
            }
        }
    }
}

plain_functions! {
    fn memcached_lib_version() -> *const c_char = c"1.1.4".as_ptr(); c"1.1.4".as_ptr()

    fn memcached_stat_free(st: *const memcached_st, stat: *mut memcached_stat_st) -> () = (); {
        let _ = st;
        if let Some(first) = stat.as_ref() {
            handle::free_block(first.root, stat.cast());
        }
    }

    fn memcached_analyze_free(analysis: *mut memcached_analysis_st) -> () = (); {
        if let Some(first) = analysis.as_ref() {
            handle::free_block(first.root, analysis.cast());
        }
    }

    fn memcached_stat_servername(stat: *mut memcached_stat_st, args: *mut c_char, hostname: *const c_char, port: u16) -> c_int
        = rc::FAILURE; {
        let st = handle::memcached_create(std::ptr::null_mut());
        if st.is_null() {
            return rc::MEMORY_ALLOCATION_FAILURE;
        }
        let mut code = server::memcached_server_add(st, hostname, port);
        if rc::succeeded(code) {
            let told = memcached_stat(st, args, &raw mut code);
            if !told.is_null() {
                if let Some(stat) = stat.as_mut() {
                    std::ptr::copy_nonoverlapping(told, stat, 1);
                    stat.root = std::ptr::null_mut();
                }
                memcached_stat_free(st, told);
            }
        }
        handle::memcached_free(st);
        code
    }
}
