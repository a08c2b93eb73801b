//! Helpers that ask one server something, with a handle made for that.

use crate::{ClientHandle, guard, put, rc};
use std::ffi::{c_char, c_int, c_void};

/// MEMCACHED_BEHAVIOR_CONNECT_TIMEOUT, and what a ping waits, milliseconds.
const CONNECT_TIMEOUT: (u32, u64) = (14, 400_000);
/// Offset of `pid` in `memcached_stat_st`.
const PID: usize = 24;

unsafe extern "C" {
    fn memcached_create(st: *mut ClientHandle) -> *mut ClientHandle;
    fn memcached_free(st: *mut ClientHandle);
    fn memcached_server_add(st: *mut ClientHandle, hostname: *const c_char, port: u16) -> c_int;
    fn memcached_set_sasl_auth_data(st: *mut ClientHandle, user: *const c_char, password: *const c_char) -> c_int;
    fn memcached_behavior_set(st: *mut ClientHandle, behavior: u32, data: u64) -> c_int;
    fn memcached_flush(st: *mut ClientHandle, expiration: i64) -> c_int;
    fn memcached_version(st: *mut ClientHandle) -> c_int;
    fn memcached_stat(st: *mut ClientHandle, args: *mut c_char, code: *mut c_int) -> *mut c_void;
    fn memcached_stat_free(st: *const ClientHandle, stat: *mut c_void);
    fn memcached_server_cursor(st: *const ClientHandle, callbacks: *const VisitFn, context: *mut c_void, count: u32) -> c_int;
    fn memcached_server_instance_by_position(st: *const ClientHandle, position: u32) -> *const c_void;
    fn memcached_server_error_return(server: *const c_void) -> c_int;
    fn memcached_server_major_version(server: *const c_void) -> u8;
    fn memcached_server_minor_version(server: *const c_void) -> u8;
    fn memcached_server_micro_version(server: *const c_void) -> u8;
}

type VisitFn = unsafe extern "C" fn(*const ClientHandle, *const c_void, *mut c_void) -> c_int;

/// Where a server is, and with which login to ask it.
struct Server {
    hostname: *const c_char,
    port: u16,
    user: *const c_char,
    password: *const c_char,
}

/// Asks with a handle of its own. Where libmemcached reports "some errors", it returns the first server's.
///
/// # Safety
///
/// The strings are NULL or C strings.
unsafe fn ask(server: &Server, question: impl FnOnce(*mut ClientHandle) -> c_int) -> c_int {
    // SAFETY: the caller's word; the handle is freed once.
    unsafe {
        let st = memcached_create(std::ptr::null_mut());
        if st.is_null() {
            return rc::MEMORY_ALLOCATION_FAILURE;
        }
        let mut code = rc::SUCCESS;
        if !server.user.is_null() {
            code = memcached_set_sasl_auth_data(st, server.user, server.password);
        }
        if rc::succeeded(code) {
            code = memcached_server_add(st, server.hostname, server.port);
        }
        if rc::succeeded(code) {
            code = question(st);
        }
        if code == rc::SOME_ERRORS {
            code = memcached_server_error_return(memcached_server_instance_by_position(st, 0));
        }
        memcached_free(st);
        code
    }
}

/// # Safety
///
/// The strings of `server` are NULL or C strings; `outcome` is NULL or can be written.
unsafe fn ping(server: &Server, outcome: *mut c_int) -> bool {
    guard(false, || {
        // SAFETY: the caller's word; the handle is alive while it is asked.
        unsafe {
            let code = ask(server, |st| {
                memcached_behavior_set(st, CONNECT_TIMEOUT.0, CONNECT_TIMEOUT.1);
                memcached_version(st)
            });
            put(outcome, code);
            rc::succeeded(code)
        }
    })
}

/// # Safety
///
/// The strings of `server` are NULL or C strings; `outcome` is NULL or can be written.
unsafe fn pid(server: &Server, outcome: *mut c_int) -> c_int {
    guard(-1, || {
        let mut pid = -1;
        // SAFETY: the caller's word; `memcached_stat` gives a structure with a pid, or NULL.
        unsafe {
            let code = ask(server, |st| {
                let mut code = rc::SUCCESS;
                let stat = memcached_stat(st, std::ptr::null_mut(), &raw mut code);
                if !stat.is_null() {
                    if rc::succeeded(code) {
                        pid = stat.cast::<u8>().add(PID).cast::<c_int>().read();
                    }
                    memcached_stat_free(st, stat);
                }
                if rc::succeeded(code) && pid == -1 {
                    rc::UNKNOWN_STAT_KEY
                } else {
                    code
                }
            });
            put(outcome, code);
        }
        pid
    })
}

fn plain(hostname: *const c_char, port: u16) -> Server {
    Server {
        hostname,
        port,
        user: std::ptr::null(),
        password: std::ptr::null(),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn libmemcached_util_ping(hostname: *const c_char, port: u16, outcome: *mut c_int) -> bool {
    // SAFETY: the caller's word.
    unsafe { ping(&plain(hostname, port), outcome) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn libmemcached_util_ping2(
    hostname: *const c_char,
    port: u16,
    user: *const c_char,
    password: *const c_char,
    outcome: *mut c_int,
) -> bool {
    let server = Server {
        user,
        password,
        ..plain(hostname, port)
    };
    // SAFETY: the caller's word.
    unsafe { ping(&server, outcome) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn libmemcached_util_getpid(hostname: *const c_char, port: u16, outcome: *mut c_int) -> c_int {
    // SAFETY: the caller's word.
    unsafe { pid(&plain(hostname, port), outcome) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn libmemcached_util_getpid2(
    hostname: *const c_char,
    port: u16,
    user: *const c_char,
    password: *const c_char,
    outcome: *mut c_int,
) -> c_int {
    let server = Server {
        user,
        password,
        ..plain(hostname, port)
    };
    // SAFETY: the caller's word.
    unsafe { pid(&server, outcome) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn libmemcached_util_flush(hostname: *const c_char, port: u16, outcome: *mut c_int) -> bool {
    guard(false, || {
        // SAFETY: the caller's word; the handle is alive while it is asked.
        unsafe {
            let code = ask(&plain(hostname, port), |st| memcached_flush(st, 0));
            put(outcome, code);
            rc::succeeded(code)
        }
    })
}

/// A version that is wanted, and whether every server has it.
struct Wanted {
    version: [u8; 3],
    met: bool,
}

unsafe extern "C" fn compare(_: *const ClientHandle, server: *const c_void, context: *mut c_void) -> c_int {
    // SAFETY: called by `memcached_server_cursor` below, with what it was given.
    unsafe {
        let wanted = &mut *context.cast::<Wanted>();
        let has = [
            memcached_server_major_version(server),
            memcached_server_minor_version(server),
            memcached_server_micro_version(server),
        ];
        if has[0] == u8::MAX || has < wanted.version {
            wanted.met = false;
        }
    }
    rc::SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn libmemcached_util_version_check(st: *mut ClientHandle, major: u8, minor: u8, micro: u8) -> bool {
    guard(false, || {
        let mut wanted = Wanted {
            version: [major, minor, micro],
            met: true,
        };
        let callback: VisitFn = compare;
        // SAFETY: the caller's word; the context outlives the call.
        unsafe {
            if !rc::succeeded(memcached_version(st)) {
                return false;
            }
            memcached_server_cursor(st, &raw const callback, (&raw mut wanted).cast(), 1);
        }
        wanted.met
    })
}
