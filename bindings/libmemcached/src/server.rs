//! Servers: lists that programs build, and the servers of a handle (`memcached_instance_st`, which programs access by
//! functions only).
//!
//! # Safety
//!
//! An instance that is passed in came from a handle, ours or the real library's. One pointer in the instance tells the
//! two apart ([`OURS`]). Lists are arrays from malloc, whose first entry contains their length.
#![allow(unsafe_code, reason = "C structures that are shared with the program; contract above")]

use crate::behavior;
use crate::discover::{Target, WHO_ARE_YOU, version_among};
use crate::error::{self, Failed};
use crate::export::{handle_functions, plain_functions};
use crate::handle::{self, put};
use crate::hash;
use crate::setup::{Call, real, sets, setup_functions};
use crate::types::*;
use keyway_cache::server::{Connection, KeyRoom};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::{MaybeUninit, offset_of};

/// Its address marks an instance as ours. The real library's instances have another address in this place.
static OURS: u8 = 0;

/// The size of the send and receive buffers in the real library's instances.
const BUFFERS: usize = 2 * 8196;

/// A server of a handle. It begins as the real library's instances do: libmemcached-tools are built with the private
/// header, and read name and port in it.
#[repr(C)]
pub(crate) struct Instance {
    options: [u8; 5],
    events: [i16; 2],
    cursor_active: u32,
    pub(crate) port: u16,
    fd: c_int,
    counts: [u32; 3],
    failure_query_id: u64,
    timeout_counter: u32,
    timeout_query_id: u64,
    pub(crate) weight: u32,
    number: u32,
    state: u32,
    waits: [u64; 3],
    /// major, micro, minor, as the program has requested them; 255: not yet
    pub(crate) version: [u8; 3],
    pub(crate) kind: u32,
    read: [usize; 3],
    /// address_info in the real library's instances
    ours: *const c_void,
    next_address: *const c_void,
    next_retry: i64,
    root: *mut memcached_st,
    limit_maxbytes: u64,
    error_messages: *mut c_void,
    buffers: MaybeUninit<[u8; BUFFERS]>,
    hostname: [u8; MAX_HOST],
    /// major, minor, micro, as the server has reported them
    pub(crate) told: [u8; 3],
    pub(crate) error: Option<Failed>,
    /// what asks about the server uses one connection
    pub(crate) connection: Option<Connection>,
}

const _: () =
    assert!(offset_of!(Instance, port) == 16 && offset_of!(Instance, version) == 104 && offset_of!(Instance, ours) == 136);
const _: () = assert!(offset_of!(Instance, buffers) == 184 && offset_of!(Instance, hostname) == 184 + BUFFERS);

impl Instance {
    pub(crate) const TCP: u32 = 0;
    pub(crate) const UNIX: u32 = 2;

    fn new(root: *mut memcached_st, name: &CStr, port: u16, kind: u32, weight: u32) -> Self {
        let mut hostname = [0; MAX_HOST];
        for (to, from) in hostname.iter_mut().take(MAX_HOST - 1).zip(name.to_bytes()) {
            *to = *from;
        }
        Self {
            options: [0, 1, 0, 0, 0],
            events: [0; 2],
            cursor_active: 0,
            port,
            fd: -1,
            counts: [0; 3],
            failure_query_id: 0,
            timeout_counter: 0,
            timeout_query_id: 0,
            weight: weight.max(1),
            number: 0,
            state: 0,
            waits: [0; 3],
            version: [u8::MAX; 3],
            kind,
            read: [0; 3],
            ours: (&raw const OURS).cast(),
            next_address: std::ptr::null(),
            next_retry: 0,
            root,
            limit_maxbytes: 0,
            error_messages: std::ptr::null_mut(),
            buffers: MaybeUninit::uninit(),
            hostname,
            told: [u8::MAX; 3],
            error: None,
            connection: None,
        }
    }

    /// A copy of this server for another handle.
    pub(crate) fn copy(&self, root: *mut memcached_st) -> Self {
        Self::new(root, self.name(), self.port, self.kind, self.weight)
    }

    pub(crate) fn name(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.hostname).unwrap_or(c"")
    }

    /// The program asks for the server's version. As in libmemcached, the server is asked until it has answered.
    pub(crate) fn fill_in_version(&mut self, target: &Target) -> std::io::Result<()> {
        if self.version[0] == u8::MAX {
            let lines = target.ask(&mut self.connection, WHO_ARE_YOU).transpose()?;
            let [major, minor, micro] = lines.and_then(|lines| version_among(&lines)).unwrap_or(self.told);
            self.version = [major, micro, minor];
        }
        Ok(())
    }
}

/// The instance that the pointer leads to, if it is one of ours.
///
/// # Safety
///
/// The pointer is NULL or leads to an instance.
pub(crate) unsafe fn instance<'a>(pointer: *const c_void) -> Option<&'a Instance> {
    let pointer = pointer.cast::<Instance>();
    // SAFETY: guaranteed by the caller; both kinds have a pointer there.
    unsafe {
        let ours = !pointer.is_null() && std::ptr::eq((*pointer).ours, (&raw const OURS).cast());
        ours.then(|| &*pointer)
    }
}

/// Functions of an instance. One of ours is handled here, any other by the real library.
macro_rules! instance_functions {
    ($(fn $name:ident($instance:ident: *const c_void $(, $arg:ident: $t:ty)*) -> $ret:ty = $absent:expr; $body:expr)*) => {$(
        #[unsafe(no_mangle)]
        #[allow(unused_unsafe, reason = "some answers are only numbers")]
        pub unsafe extern "C" fn $name($instance: *const c_void $(, $arg: $t)*) -> $ret {
            static REAL: $crate::real::Symbol = $crate::real::Symbol::new(concat!(stringify!($name), "\0"));
            // SAFETY: guaranteed by the caller (module `export`); the real library's function has the type of its header.
            $crate::export::guard(|| unsafe {
                if $instance.is_null() {
                    return $absent;
                }
                if let Some(server) = $crate::server::instance($instance) {
                    return $body(server);
                }
                match REAL.get() {
                    Some(real) => {
                        let real: unsafe extern "C" fn(*const c_void $(, $t)*) -> $ret = std::mem::transmute(real);
                        real($instance $(, $arg)*)
                    }
                    None => $absent,
                }
            // SAFETY: as above.
            }, || unsafe { $absent })
        }
    )*};
}
pub(crate) use instance_functions;

instance_functions! {
    fn memcached_server_name(instance: *const c_void) -> *const c_char = std::ptr::null(); |server: &Instance| server.name().as_ptr()
    fn memcached_server_port(instance: *const c_void) -> u16 = 0; |server: &Instance| server.port
    // There is no socket.
    fn memcached_server_srcport(instance: *const c_void) -> u16 = 0; |_: &Instance| 0
    // All answers have been given.
    fn memcached_server_response_count(instance: *const c_void) -> u32 = 0; |_: &Instance| 0
    fn memcached_instance_next_retry(instance: *const c_void, time: i64) -> () = (); |_: &Instance| ()
    fn memcached_server_type(instance: *const c_void) -> *const c_char = c"UNKNOWN".as_ptr(); |server: &Instance| match server.kind {
        Instance::TCP => c"TCP".as_ptr(),
        Instance::UNIX => c"SOCKET".as_ptr(),
        _ => c"UNKNOWN".as_ptr(),
    }
    fn memcached_server_major_version(instance: *const c_void) -> u8 = u8::MAX; |server: &Instance| server.version[0]
    fn memcached_server_minor_version(instance: *const c_void) -> u8 = u8::MAX; |server: &Instance| server.version[2]
    fn memcached_server_micro_version(instance: *const c_void) -> u8 = u8::MAX; |server: &Instance| server.version[1]
}

/// Adds a server to a handle of ours.
pub(crate) fn add(st: *mut memcached_st, hostname: &CStr, port: u16, weight: u32, kind: u32) -> c_int {
    let Some(handle) = handle::ours(st) else {
        return rc::INVALID_ARGUMENTS;
    };
    let server = Instance::new(st, hostname, port, kind, weight);
    handle.servers.push(server);
    // SAFETY: a handle of ours.
    unsafe {
        if (*st).is(Flag::UseSortHosts) {
            sort(&mut handle.servers);
        }
        (*st).server_version += 1;
        (*st).ketama.weighted |= weight > 1 && behavior::is_consistent((*st).distribution);
    }
    handle.servers_changed(st);
    rc::SUCCESS
}

/// Adds a server of a list to a handle. A list's weights count with every distribution.
fn push(st: *mut memcached_st, hostname: &CStr, port: u16, weight: u32, kind: u32) {
    add(st, hostname, port, weight, kind);
    // SAFETY: a handle of ours.
    unsafe { (*st).ketama.weighted |= weight > 1 };
}

pub(crate) fn sort(servers: &mut [Instance]) {
    servers.sort_by(|a, b| a.name().cmp(b.name()).then(a.port.cmp(&b.port)));
}

/// # Safety
///
/// The name is NULL or a C string.
unsafe fn add_tcp(st: *mut memcached_st, hostname: *const c_char, port: u16, weight: u32) -> c_int {
    // SAFETY: guaranteed by the caller.
    let name = unsafe { if hostname.is_null() { c"" } else { CStr::from_ptr(hostname) } };
    if name.count_bytes() >= MAX_HOST {
        return error::set(st, rc::INVALID_ARGUMENTS, "Invalid hostname provided");
    }
    let name = if name.is_empty() { c"localhost" } else { name };
    let kind = if name.to_bytes().starts_with(b"/") {
        Instance::UNIX
    } else {
        Instance::TCP
    };
    add(st, name, if port == 0 { DEFAULT_PORT } else { port }, weight, kind)
}

/// # Safety
///
/// The name is NULL or a C string.
unsafe fn add_unix(st: *mut memcached_st, filename: *const c_char, weight: u32) -> c_int {
    // SAFETY: guaranteed by the caller.
    let name = unsafe { if filename.is_null() { c"" } else { CStr::from_ptr(filename) } };
    if name.is_empty() || name.count_bytes() >= MAX_HOST {
        return error::set(st, rc::INVALID_ARGUMENTS, "Invalid filename for socket provided");
    }
    add(st, name, 0, weight, Instance::UNIX)
}

setup_functions! {
    fn memcached_server_add(st: *mut memcached_st, hostname: *const c_char, port: u16) -> c_int = rc::INVALID_ARGUMENTS,
        sets sets::SERVERS; add_tcp(st, hostname, port, 0)

    fn memcached_server_add_with_weight(st: *mut memcached_st, hostname: *const c_char, port: u16, weight: u32) -> c_int
        = rc::INVALID_ARGUMENTS, sets sets::SERVERS; add_tcp(st, hostname, port, weight)

    fn memcached_server_add_unix_socket(st: *mut memcached_st, filename: *const c_char) -> c_int = rc::FAILURE,
        sets sets::SERVERS; add_unix(st, filename, 0)

    fn memcached_server_add_unix_socket_with_weight(st: *mut memcached_st, filename: *const c_char, weight: u32) -> c_int = rc::FAILURE,
        sets sets::SERVERS; add_unix(st, filename, weight)

    fn memcached_server_push(st: *mut memcached_st, list: *mut memcached_server_st) -> c_int = rc::INVALID_ARGUMENTS,
        sets sets::SERVERS; {
        for index in 0..list.as_ref().map_or(0, |first| first.number_of_hosts as usize) {
            let entry = &*list.add(index);
            let Ok(name) = CStr::from_bytes_until_nul(&entry.hostname) else { continue };
            push(st, name, entry.port, entry.weight, entry.kind);
        }
        rc::SUCCESS
    }
}

handle_functions! {
    fn memcached_server_add_udp(st: *mut memcached_st, _hostname: *const c_char, _port: u16) -> c_int = rc::INVALID_ARGUMENTS;
        Some(error::set(st, rc::DEPRECATED, ""))

    fn memcached_server_add_udp_with_weight(st: *mut memcached_st, _hostname: *const c_char, _port: u16, _weight: u32) -> c_int
        = rc::INVALID_ARGUMENTS; Some(error::set(st, rc::DEPRECATED, ""))

    fn memcached_servers_reset(st: *mut memcached_st) -> () = (); {
        let handle = handle::of(st);
        handle.servers.clear();
        handle.pending.clear();
        handle.servers_changed(st);
        handle.calls.remove_servers((*st).ketama.weighted);
        Some(())
    }

    // This library never disconnects from a server.
    fn memcached_reset_last_disconnected_server(st: *mut memcached_st) -> () = (); {
        let _ = st;
        Some(())
    }

    fn memcached_server_get_last_disconnect(st: *const memcached_st) -> *const c_void = std::ptr::null(); {
        let _ = st;
        Some(std::ptr::null())
    }

    fn memcached_server_count(st: *const memcached_st) -> u32 = 0; Some((*st).number_of_hosts)

    fn memcached_server_instance_by_position(st: *const memcached_st, position: u32) -> *const c_void = std::ptr::null();
        Some(at(st, position))

    fn memcached_server_by_key(st: *mut memcached_st, key: *const c_char, length: usize, code: *mut c_int) -> *const c_void
        = std::ptr::null(); {
        let handle = handle::of(st);
        let outcome = if handle.servers.is_empty() {
            error::set(st, rc::NO_SERVERS, "")
        } else {
            crate::store::check_key(st, key, length, &mut KeyRoom::new()).err().unwrap_or(rc::SUCCESS)
        };
        if outcome != rc::SUCCESS {
            put(code, outcome);
            return std::ptr::null();
        }
        hash::server(st, key, length).map(|position| {
            put(code, rc::SUCCESS);
            at(st, position)
        })
    }

    fn memcached_server_cursor(st: *const memcached_st, callbacks: *const ServerFn, context: *mut c_void, count: u32) -> c_int
        = rc::INVALID_ARGUMENTS; {
        if handle::of(st).servers.is_empty() {
            return rc::NO_SERVERS;
        }
        let mut failed = false;
        let mut position = 0;
        // A callback may change anything, including the number of servers and the owner of the handle.
        while handle::ours(st).is_some_and(|handle| position < handle.servers.len()) {
            for index in 0..count as usize {
                let server = at(st, u32::try_from(position).unwrap_or(u32::MAX));
                if server.is_null() || !handle::is_ours(st) {
                    break;
                }
                if !rc::succeeded((*callbacks.add(index))(st, server, context)) {
                    failed = true;
                }
            }
            position += 1;
        }
        Some(if failed { rc::SOME_ERRORS } else { rc::SUCCESS })
    }
}

/// A handle's server, or NULL.
///
/// # Safety
///
/// The handle is ours.
pub(crate) unsafe fn at(st: *const memcached_st, position: u32) -> *const c_void {
    // SAFETY: guaranteed by the caller.
    let handle = unsafe { handle::of(st) };
    handle
        .servers
        .get(position as usize)
        .map_or(std::ptr::null(), |server| std::ptr::from_ref(server).cast())
}

plain_functions! {
    fn memcached_push(st: *mut memcached_st, source: *const memcached_st) -> c_int = rc::INVALID_ARGUMENTS; {
        if st.is_null() || source.is_null() {
            return rc::INVALID_ARGUMENTS;
        }
        let push_theirs = |st, source| real!(memcached_push(*mut memcached_st, *const memcached_st) -> c_int; st, source);
        match (handle::ours(st), handle::ours(source)) {
            (Some(handle), Some(from)) => {
                for server in &from.servers {
                    push(st, server.name(), server.port, server.weight, server.kind);
                }
                let source = from.calls.clone();
                let call = Call::new(sets::SERVERS, 0, move |st| {
                    source.with_twin(|twin| push_theirs(st, twin));
                });
                handle.calls.write_down(call, true);
                Some(rc::SUCCESS)
            }
            (None, Some(from)) => from.calls.with_twin(|twin| push_theirs(st, twin)).flatten(),
            // With the servers of a handle of the real library's, this one is too.
            (owner, None) => {
                if owner.is_some() {
                    handle::hand_over(st);
                }
                push_theirs(st, source)
            }
        }.unwrap_or(rc::INVALID_ARGUMENTS)
    }

    fn memcached_server_list_append(list: *mut memcached_server_st, hostname: *const c_char, port: u16, code: *mut c_int)
        -> *mut memcached_server_st = std::ptr::null_mut(); append(list, hostname, port, 0, code)

    fn memcached_server_list_append_with_weight(list: *mut memcached_server_st, hostname: *const c_char, port: u16, weight: u32,
        code: *mut c_int) -> *mut memcached_server_st = std::ptr::null_mut(); append(list, hostname, port, weight, code)

    fn memcached_server_list_count(list: *mut memcached_server_st) -> u32 = 0;
        list.as_ref().map_or(0, |first| first.number_of_hosts)

    fn memcached_server_list_free(list: *mut memcached_server_st) -> () = (); libc::free(list.cast())

    fn memcached_server_free(list: *mut memcached_server_st) -> () = (); {
        if list.as_ref().is_some_and(|first| first.number_of_hosts > 0 || first.options & ALLOCATED != 0) {
            libc::free(list.cast());
        }
    }

    fn memcached_server_error_reset(list: *mut memcached_server_st) -> () = (); {
        if let Some(first) = list.as_mut() {
            first.error_messages = std::ptr::null_mut();
        }
    }

    fn memcached_servers_parse(servers: *const c_char) -> *mut memcached_server_st = std::ptr::null_mut(); {
        if servers.is_null() {
            return std::ptr::null_mut();
        }
        let mut list: *mut memcached_server_st = std::ptr::null_mut();
        let text = CStr::from_ptr(servers).to_string_lossy().into_owned();
        for one in split(&text) {
            let Some((host, port, weight)) = parse(one) else {
                libc::free(list.cast());
                return std::ptr::null_mut();
            };
            let host = CString::new(host).unwrap_or_default();
            list = append(list, host.as_ptr(), port, weight, std::ptr::null_mut());
        }
        list
    }
}

/// The servers of a list; libmemcached skips one space after a comma.
fn split(text: &str) -> impl Iterator<Item = &str> {
    let text = text.strip_suffix(',').unwrap_or(text);
    text.split(',')
        .enumerate()
        .map(|(index, one)| match index {
            0 => one,
            _ => one.strip_prefix(|c: char| c.is_ascii_whitespace()).unwrap_or(one),
        })
        .take(if text.is_empty() { 0 } else { usize::MAX })
}

/// `HOST[:PORT[:WEIGHT]]`, also with a space before the weight; `[ADDRESS]:PORT`; `keyway:PATH`, which has no port.
pub(crate) fn parse(one: &str) -> Option<(&str, u16, u32)> {
    if one.starts_with("keyway:") {
        return Some((one, 0, 0));
    }
    let bracket = one.find('[').and_then(|open| Some(open + one.get(open..)?.find(']')?));
    let from = bracket.unwrap_or(0);
    let Some(colon) = one.get(from..)?.find(':').map(|at| from + at) else {
        return Some((one, 0, 0));
    };
    let (host, rest) = one.split_at_checked(colon)?;
    let rest = rest.get(1..)?;
    let weight = rest.find([' ', ':']).and_then(|at| rest.get(at + 1..)).unwrap_or("");
    Some((
        host,
        u16::try_from(number(rest)? & 0xffff).ok()?,
        u32::try_from(number(weight)? & 0xffff_ffff).ok()?,
    ))
}

/// The number at the start, 0 if there is none, as strtoul(3).
fn number(text: &str) -> Option<u64> {
    let text = text.trim_start();
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    match text.get(..end)? {
        "" => Some(0),
        digits => digits.parse().ok(),
    }
}

/// # Safety
///
/// The list is NULL or one; the name is NULL or a C string.
unsafe fn append(
    list: *mut memcached_server_st,
    hostname: *const c_char,
    port: u16,
    weight: u32,
    code: *mut c_int,
) -> *mut memcached_server_st {
    // SAFETY: guaranteed by the caller; the new block has space for one more entry.
    unsafe {
        let name = if hostname.is_null() {
            c"localhost"
        } else {
            CStr::from_ptr(hostname)
        };
        let bytes = name.to_bytes_with_nul();
        let count = list.as_ref().map_or(0, |first| first.number_of_hosts as usize) + 1;
        if bytes.len() > MAX_HOST {
            libc::free(list.cast());
            return std::ptr::null_mut();
        }
        let place = bytes.starts_with(b"keyway:");
        let port = if bytes.starts_with(b"/") {
            0
        } else if port == 0 && !place {
            DEFAULT_PORT
        } else {
            port
        };
        let grown = libc::realloc(list.cast(), count * size_of::<memcached_server_st>()).cast::<memcached_server_st>();
        if grown.is_null() {
            return grown;
        }
        let new = grown.add(count - 1);
        new.cast::<u8>().write_bytes(0, size_of::<memcached_server_st>());
        let entry = &mut *new;
        entry.options = INITIALIZED;
        entry.port = port;
        entry.weight = weight.max(1);
        entry.version = u32::MAX;
        (entry.major_version, entry.minor_version, entry.micro_version) = (u8::MAX, u8::MAX, u8::MAX);
        entry.kind = if port == 0 && !place { Instance::UNIX } else { Instance::TCP };
        if let Some(to) = entry.hostname.get_mut(..bytes.len()) {
            to.copy_from_slice(bytes);
        }
        (*grown).number_of_hosts = u32::try_from(count).unwrap_or(u32::MAX);
        put(code, rc::SUCCESS);
        grown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_parsed_as_libmemcached_parses_them() {
        assert_eq!(parse("localhost"), Some(("localhost", 0, 0)));
        assert_eq!(parse("host:12"), Some(("host", 12, 0)));
        assert_eq!(parse("host:12:3"), Some(("host", 12, 3)));
        assert_eq!(parse("host:12 3"), Some(("host", 12, 3)));
        assert_eq!(parse("[::1]:12"), Some(("[::1]", 12, 0)));
        assert_eq!(parse("keyway:/dev/shm/x"), Some(("keyway:/dev/shm/x", 0, 0)));
        assert_eq!(split("a:1, b:2,c").collect::<Vec<_>>(), ["a:1", "b:2", "c"]);
        assert_eq!(split("a,").count(), 1);
        assert_eq!(split("").count(), 0);
    }
}
