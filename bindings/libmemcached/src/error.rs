//! The last failure, as libmemcached reports it: a code, an errno and a message that stay until the handle's next query.
//!
//! # Safety
//!
//! As `handle.rs`: the handle is one of ours.
#![allow(unsafe_code, reason = "a C structure that is shared with the program; contract above")]

use crate::export::{handle_functions, plain_functions};
use crate::handle::{self, Handle};
use crate::say;
use crate::server::{Instance, instance_functions};
use crate::types::*;
use std::ffi::{CStr, CString, c_char, c_int, c_void};

/// A failure that is not only an answer.
#[derive(Clone, Debug)]
pub(crate) struct Failed {
    pub(crate) code: c_int,
    pub(crate) errno: c_int,
    pub(crate) message: CString,
}

/// Keeps a failure, if it is not only an answer. Returns the code.
pub(crate) fn set(st: *const memcached_st, code: c_int, why: &str) -> c_int {
    if rc::is_fatal(code) {
        keep(st, code, 0, why);
    }
    code
}

/// Keeps what the server would have answered.
pub(crate) fn set_client_error(st: *const memcached_st, why: &str) -> c_int {
    let message = CString::new(format!("({st:p}) {why}")).unwrap_or_default();
    let failed = Failed {
        code: rc::CLIENT_ERROR,
        errno: 0,
        message,
    };
    remember(st, failed);
    rc::CLIENT_ERROR
}

/// Keeps a system error.
pub(crate) fn set_errno(st: *const memcached_st, code: c_int, errno: c_int) -> c_int {
    keep(st, code, errno, "");
    code
}

/// Keeps that a server does not answer.
pub(crate) fn set_away(st: *const memcached_st, position: usize, error: &std::io::Error) {
    let failed = failed(
        st,
        rc::CONNECTION_FAILURE,
        error.raw_os_error().unwrap_or(libc::ETIMEDOUT),
        "",
    );
    let Some(handle) = handle::ours(st) else { return };
    if let Some(server) = handle.servers.get_mut(position) {
        server.error = Some(failed.clone());
    }
    handle.error = Some(failed);
}

#[cold]
fn keep(st: *const memcached_st, code: c_int, errno: c_int, why: &str) {
    remember(st, failed(st, code, errno, why));
}

fn failed(st: *const memcached_st, code: c_int, errno: c_int, why: &str) -> Failed {
    let mut message = format!("({st:p}) {}", rc::text(code).to_string_lossy());
    if errno != 0 {
        // SAFETY: a thread's own string until its next call.
        let text = unsafe { CStr::from_ptr(libc::strerror(errno)) };
        message += &format!("({})", text.to_string_lossy());
    }
    if !why.is_empty() {
        message += ", ";
        message += why;
    }
    let message = CString::new(message).unwrap_or_default();
    Failed { code, errno, message }
}

fn remember(st: *const memcached_st, failed: Failed) {
    let Some(handle) = handle::ours(st) else { return };
    // Such a failure is kept in the servers' instances until the next one of this kind.
    if matches!(
        failed.code,
        rc::CONNECTION_FAILURE | rc::SERVER_TEMPORARILY_DISABLED | rc::CLIENT_ERROR | rc::SERVER_ERROR | rc::UNKNOWN_READ_FAILURE
    ) {
        for server in &mut handle.servers {
            server.error = Some(failed.clone());
        }
    }
    handle.error = Some(failed);
}

/// A new query: forgets the previous failure.
#[cold]
pub(crate) fn clear(handle: &mut Handle) {
    handle.error = None;
}

plain_functions! {
    fn memcached_strerror(_st: *const memcached_st, code: c_int) -> *const c_char = c"".as_ptr(); rc::text(code).as_ptr()
}

handle_functions! {
    fn memcached_last_error(st: *const memcached_st) -> c_int = rc::INVALID_ARGUMENTS;
        Some(handle::of(st).error.as_ref().map_or(rc::SUCCESS, |failed| failed.code))

    fn memcached_last_error_errno(st: *const memcached_st) -> c_int = 0;
        Some(handle::of(st).error.as_ref().map_or(0, |failed| failed.errno))

    fn memcached_last_error_message(st: *const memcached_st) -> *const c_char = rc::text(rc::INVALID_ARGUMENTS).as_ptr();
        Some(message(handle::of(st)))

    fn memcached_error(st: *const memcached_st) -> *const c_char = rc::text(rc::INVALID_ARGUMENTS).as_ptr();
        Some(message(handle::of(st)))

    fn memcached_error_print(st: *const memcached_st) -> () = (); {
        if let Some(failed) = &handle::of(st).error {
            let text = rc::text(failed.code).to_string_lossy();
            say::print(&format!("\t{text} {}\n", failed.message.to_string_lossy()));
        }
        Some(())
    }
}

fn message(handle: &Handle) -> *const c_char {
    handle
        .error
        .as_ref()
        .map_or(rc::text(rc::SUCCESS), |failed| &failed.message)
        .as_ptr()
}

instance_functions! {
    fn memcached_server_error(instance: *const c_void) -> *const c_char = std::ptr::null(); |server: &Instance| {
        server.error.as_ref().map_or(rc::text(rc::SUCCESS), |failed| &failed.message).as_ptr()
    }

    fn memcached_server_error_return(instance: *const c_void) -> c_int = rc::INVALID_ARGUMENTS; |server: &Instance| {
        server.error.as_ref().map_or(rc::SUCCESS, |failed| failed.code)
    }
}
