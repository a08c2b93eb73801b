//! The option string of `memcached()`, as `--SERVER=localhost --BINARY-PROTOCOL`.
//!
//! # Safety
//!
//! As `export.rs`.
#![allow(unsafe_code, reason = "C pointers; contract above")]

use crate::behavior;
use crate::error;
use crate::export::plain_functions;
use crate::handle;
use crate::server::{self, Instance};
use crate::types::*;
use std::ffi::{CString, c_char, c_int};

/// Options with a number, and the behaviours that they set.
const NUMBERS: &[(&str, u32)] = &[
    ("--REMOVE-FAILED-SERVERS=", behavior::REMOVE_FAILED_SERVERS),
    ("--CONNECT-TIMEOUT=", behavior::CONNECT_TIMEOUT),
    ("--IO-MSG-WATERMARK=", behavior::IO_MSG_WATERMARK),
    ("--IO-BYTES-WATERMARK=", behavior::IO_BYTES_WATERMARK),
    ("--IO-KEY-PREFETCH=", behavior::IO_KEY_PREFETCH),
    ("--NUMBER-OF-REPLICAS=", behavior::NUMBER_OF_REPLICAS),
    ("--POLL-TIMEOUT=", behavior::POLL_TIMEOUT),
    ("--RCV-TIMEOUT=", behavior::RCV_TIMEOUT),
    ("--RETRY-TIMEOUT=", behavior::RETRY_TIMEOUT),
    ("--SND-TIMEOUT=", behavior::SND_TIMEOUT),
    ("--SOCKET-RECV-SIZE=", behavior::SOCKET_RECV_SIZE),
    ("--SOCKET-SEND-SIZE=", behavior::SOCKET_SEND_SIZE),
];

/// Options without a value, and the behaviours that they set to true.
const SWITCHES: &[(&str, u32)] = &[
    ("--BINARY-PROTOCOL", behavior::BINARY_PROTOCOL),
    ("--BUFFER-REQUESTS", behavior::BUFFER_REQUESTS),
    ("--HASH-WITH-NAMESPACE", behavior::HASH_WITH_PREFIX_KEY),
    ("--NOREPLY", behavior::NOREPLY),
    ("--RANDOMIZE-REPLICA-READ", behavior::RANDOMIZE_REPLICA_READ),
    ("--SORT-HOSTS", behavior::SORT_HOSTS),
    ("--SUPPORT-CAS", behavior::SUPPORT_CAS),
    ("--TCP-NODELAY", behavior::TCP_NODELAY),
    ("--TCP-KEEPALIVE", behavior::TCP_KEEPALIVE),
    ("--TCP-KEEPIDLE", behavior::TCP_KEEPIDLE),
    ("--USE-UDP", behavior::USE_UDP),
    ("--VERIFY-KEY", behavior::VERIFY_KEY),
];

const HASHES: &[(&str, u32)] = &[
    ("MD5", 1),
    ("CRC", 2),
    ("FNV1_64", 3),
    ("FNV1A_64", 4),
    ("FNV1_32", 5),
    ("FNV1A_32", 6),
    ("HSIEH", 7),
    ("MURMUR", 8),
    ("JENKINS", 9),
];

/// Sets up a handle as an option string says.
pub(crate) fn configure(st: *mut memcached_st, text: &[u8]) -> c_int {
    let text = String::from_utf8_lossy(text);
    if text.trim().is_empty() {
        return error::set(st, rc::PARSE_ERROR, "Error occured while parsing");
    }
    for option in words(&text) {
        if option.eq_ignore_ascii_case("END") {
            break;
        }
        let code = one(st, option);
        if code != rc::SUCCESS {
            return code;
        }
    }
    let file = handle::ours(st).and_then(|handle| handle.filename.clone());
    file.map_or(rc::SUCCESS, |name| configure_from_file(st, name.as_bytes()))
}

/// As [`configure`], for each line of a file.
pub(crate) fn configure_from_file(st: *mut memcached_st, name: &[u8]) -> c_int {
    let name = String::from_utf8_lossy(name).into_owned();
    let text = match std::fs::read_to_string(&name) {
        Ok(text) => text,
        Err(read) => return error::set_errno(st, rc::ERRNO, read.raw_os_error().unwrap_or(libc::EIO)),
    };
    let mut code = rc::INVALID_ARGUMENTS;
    for line in text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')) {
        for option in words(line) {
            code = one(st, option);
            if code != rc::SUCCESS {
                return code;
            }
        }
    }
    code
}

/// Words between blanks. Quotes keep blanks within a word.
fn words(text: &str) -> Vec<&str> {
    let (mut words, mut from, mut quoted) = (Vec::new(), None, false);
    for (at, c) in text.char_indices() {
        quoted ^= c == '"';
        match (c.is_ascii_whitespace() && !quoted, from) {
            (true, Some(start)) => {
                words.extend(text.get(start..at));
                from = None;
            }
            (false, None) => from = Some(at),
            _ => {}
        }
    }
    words.extend(from.and_then(|start| text.get(start..)));
    words
}

/// What follows `name` in an option. Upper and lower case are equal.
fn after<'a>(option: &'a str, name: &str) -> Option<&'a str> {
    let start = option.get(..name.len())?;
    start.eq_ignore_ascii_case(name).then(|| option.get(name.len()..))?
}

fn unquoted(text: &str) -> &str {
    text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(text)
}

fn one(st: *mut memcached_st, option: &str) -> c_int {
    let wrong = |why: &str| error::set(st, rc::PARSE_ERROR, why);
    let Some(handle) = handle::ours(st) else {
        return rc::INVALID_ARGUMENTS;
    };
    if let Some(text) = after(option, "--SERVER=") {
        return server(st, unquoted(text));
    }
    if let Some(text) = after(option, "--SOCKET=") {
        let (path, weight) = weighted(text);
        return match CString::new(unquoted(path)) {
            Ok(name) if !name.is_empty() => server::add(st, &name, 0, weight, Instance::UNIX),
            _ => wrong("Failed to add socket"),
        };
    }
    if let Some(text) = after(option, "--NAMESPACE=") {
        if handle.namespace.is_some() {
            return wrong("--NAMESPACE can only be called once");
        }
        let name = CString::new(unquoted(text)).unwrap_or_default();
        return match behavior::set_namespace(st, Some(&name)) {
            rc::SUCCESS => rc::SUCCESS,
            _ => wrong("the namespace cannot be used"),
        };
    }
    if let Some(text) = after(option, "--CONFIGURE-FILE=").or_else(|| after(option, "INCLUDE")) {
        handle.filename = CString::new(unquoted(text)).ok();
        return rc::SUCCESS;
    }
    for (name, minimum) in [("--POOL-MIN=", true), ("--POOL-MAX=", false)] {
        if let Some(Ok(number)) = after(option, name).map(str::parse) {
            // SAFETY: a handle of ours.
            unsafe {
                if minimum {
                    (*st).configure.initial_pool_size = number;
                } else {
                    (*st).configure.max_pool_size = number;
                }
            }
            return rc::SUCCESS;
        }
    }
    if let Some(text) = after(option, "--DISTRIBUTION=") {
        return distribution(st, text);
    }
    if let Some(text) = after(option, "--HASH=") {
        return match hash(text) {
            Some(hash) if behavior::set(st, behavior::HASH, u64::from(hash)) == rc::SUCCESS => rc::SUCCESS,
            _ => wrong("--HASH can only be set once"),
        };
    }
    for (name, behavior) in NUMBERS {
        if let Some(text) = after(option, name) {
            return match text.parse() {
                Ok(number) if behavior::set(st, *behavior, number) == rc::SUCCESS => rc::SUCCESS,
                _ => wrong("Unable to set behavior"),
            };
        }
    }
    if let Some((name, behavior)) = SWITCHES.iter().find(|(name, _)| option.eq_ignore_ascii_case(name)) {
        return match behavior::set(st, *behavior, 1) {
            rc::SUCCESS => rc::SUCCESS,
            _ => wrong(&format!("Could not set: {name}")),
        };
    }
    if option.eq_ignore_ascii_case("--FETCH-VERSION") {
        // SAFETY: a handle of ours.
        unsafe { (*st).put(Flag::IsFetchingVersion, true) };
        return rc::SUCCESS;
    }
    if option.eq_ignore_ascii_case("--USER-DATA") {
        return rc::SUCCESS;
    }
    if option.eq_ignore_ascii_case("RESET") {
        // The file that has this line is not read again, and one that is named with it is read at the end.
        // SAFETY: a handle of ours.
        unsafe { handle::renew(st) };
        return rc::SUCCESS;
    }
    if option.eq_ignore_ascii_case("ERROR") {
        return rc::PARSE_USER_ERROR;
    }
    wrong(&format!("Unknown option: {option}"))
}

/// `HOST[:PORT][/?WEIGHT]`, or `keyway:PATH`.
fn server(st: *mut memcached_st, text: &str) -> c_int {
    let (name, weight) = if text.starts_with("keyway:") {
        (text, 1)
    } else {
        weighted(text)
    };
    let (host, port) = match server::parse(name) {
        Some((host, port, _)) if !host.is_empty() => (host, port),
        _ => return error::set(st, rc::PARSE_ERROR, "Failed to add server"),
    };
    let sound = |c: char| c.is_ascii_alphanumeric() || ".-_[]:".contains(c) || host.starts_with("keyway:");
    match CString::new(host) {
        Ok(name) if host.chars().all(sound) && name.count_bytes() < MAX_HOST => {
            server::add(st, &name, if port == 0 { DEFAULT_PORT } else { port }, weight, Instance::TCP)
        }
        _ => error::set(
            st,
            rc::PARSE_ERROR,
            "Error occured durring parsing, an unknown token was found.",
        ),
    }
}

fn weighted(text: &str) -> (&str, u32) {
    match text.rsplit_once("/?") {
        Some((before, weight)) => (before, weight.parse().unwrap_or(1)),
        None => (text, 1),
    }
}

fn hash(text: &str) -> Option<u32> {
    HASHES
        .iter()
        .find(|(name, _)| text.eq_ignore_ascii_case(name))
        .map(|(_, hash)| *hash)
}

fn distribution(st: *mut memcached_st, text: &str) -> c_int {
    let (name, hashed) = text.split_once(',').map_or((text, None), |(name, hash)| (name, Some(hash)));
    let number = match name.to_ascii_uppercase().as_str() {
        "MODULA" => 0,
        "CONSISTENT" => 1,
        "RANDOM" => 3,
        _ => return error::set(st, rc::PARSE_ERROR, "Error occured while parsing"),
    };
    let code = behavior::set(st, behavior::DISTRIBUTION, number);
    match hashed.map(hash) {
        None => code,
        Some(Some(hash)) => behavior::set(st, behavior::KETAMA_HASH, u64::from(hash)),
        Some(None) => error::set(st, rc::PARSE_ERROR, "Unable to set the hash for the DISTRIBUTION requested"),
    }
}

plain_functions! {
    fn libmemcached_check_configuration(text: *const c_char, length: usize, buffer: *mut c_char, size: usize) -> c_int = rc::FAILURE; {
        if text.is_null() || length == 0 {
            return rc::INVALID_ARGUMENTS;
        }
        let st = handle::memcached_create(std::ptr::null_mut());
        if st.is_null() {
            return rc::MEMORY_ALLOCATION_FAILURE;
        }
        let code = configure(st, std::slice::from_raw_parts(text.cast(), length));
        if !buffer.is_null() && size > 0 {
            let message = if code == rc::SUCCESS { c"" } else { std::ffi::CStr::from_ptr(error::memcached_last_error_message(st)) };
            let bytes = message.to_bytes();
            let len = bytes.len().min(size - 1);
            buffer.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), len);
            buffer.add(len).write(0);
        }
        handle::memcached_free(st);
        code
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_kept_together_by_quotes() {
        assert_eq!(
            words(" --A=1  --SOCKET=\"/a b/c\" END"),
            ["--A=1", "--SOCKET=\"/a b/c\"", "END"]
        );
        assert_eq!(words(""), [""; 0]);
        assert_eq!(after("--server=x", "--SERVER="), Some("x"));
        assert_eq!(weighted("h:1/?5"), ("h:1", 5));
    }
}
