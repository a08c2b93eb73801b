//! The life of a handle: it is created, cloned and freed. This module also decides where its calls go: into the region or
//! to the real library.
//!
//! A handle is this library's own until its first call that needs a server. If all its servers are this host's Keyway,
//! and lead to one region, it stays this library's, and calls are functions on the region. If not, the real library makes
//! a handle of its own in the same memory, with the same settings, and owns it from then on.
//!
//! # Safety
//!
//! A handle is used by one thread at a time. The data attached to it is made by [`create`] and freed once, by `free` or
//! [`hand_over`]. No reference to it is kept while a program's own functions are called.
#![allow(unsafe_code, reason = "a C structure that is shared with the program; contract above")]

use crate::discover::{self, Discovery, Entry, Open, Target};
use crate::error::{self, Failed};
use crate::export::{handle_functions, plain_functions};
use crate::fetch::Pending;
use crate::hash;
use crate::options;
use crate::real::{self, Symbol};
use crate::result;
use crate::server::Instance;
use crate::setup::{Calls, real, sets, setup_functions};
use crate::types::*;
use std::ffi::{CString, c_char, c_int, c_void};

/// Its address marks a handle as this library's.
static OURS: u8 = 0;

/// The data attached to a handle of ours.
pub(crate) struct Handle {
    /// its region, once it is known that it has one
    pub(crate) open: Option<Open>,
    /// servers that were asked
    entries: Vec<&'static Entry>,
    /// second of the last check whether the region is still theirs
    looked_s: i64,
    /// no server is there: the servers are asked again at this second
    down_until_s: i64,
    pub(crate) servers: Vec<Instance>,
    /// comes before each key
    pub(crate) namespace: Option<CString>,
    /// the buffer in which namespace and key are joined
    pub(crate) key: Vec<u8>,
    pub(crate) pending: Pending,
    /// the handle's own result is in use
    pub(crate) result_used: bool,
    pub(crate) error: Option<Failed>,
    pub(crate) filename: Option<CString>,
    /// what has set it up
    pub(crate) calls: Calls,
}

/// Where a call goes.
pub(crate) enum Way {
    /// into the region
    Here(&'static mut Handle),
    /// to the real library
    Away,
    /// nowhere: this code is returned
    Stuck(c_int),
}

#[inline]
pub(crate) fn is_ours(st: *const memcached_st) -> bool {
    // SAFETY: the caller guarantees that it is a handle.
    std::ptr::eq(unsafe { (*st).virtual_bucket }, (&raw const OURS).cast())
}

/// The data attached to a handle.
///
/// # Safety
///
/// The handle is ours.
#[inline]
pub(crate) unsafe fn of(st: *const memcached_st) -> &'static mut Handle {
    // SAFETY: guaranteed by the caller; made by `create`.
    unsafe { &mut *(*st).ketama.continuum.cast::<Handle>() }
}

/// The data attached to a handle, if the handle is ours.
pub(crate) fn ours(st: *const memcached_st) -> Option<&'static mut Handle> {
    // SAFETY: checked before.
    (!st.is_null() && is_ours(st)).then(|| unsafe { of(st) })
}

/// Begins a call that needs servers, and decides where it goes.
///
/// # Safety
///
/// The handle is ours.
#[inline]
pub(crate) unsafe fn enter(st: *mut memcached_st) -> Way {
    // SAFETY: guaranteed by the caller.
    unsafe {
        (*st).query_id += 1;
        let way = way(st);
        if matches!(way, Way::Away) {
            // The real library counts the call.
            (*st).query_id -= 1;
        }
        way
    }
}

/// Decides where a call goes that libmemcached does not count as a query.
///
/// # Safety
///
/// The handle is ours.
#[inline]
pub(crate) unsafe fn way(st: *mut memcached_st) -> Way {
    // SAFETY: guaranteed by the caller.
    let handle = unsafe { of(st) };
    if handle.error.is_some() {
        error::clear(handle);
    }
    if handle.result_used {
        // SAFETY: guaranteed by the caller.
        unsafe { result::reset(&raw mut (*st).result) };
        handle.result_used = false;
    }
    // It is not open if it has no servers.
    if handle.open.is_some() && handle.looked_s == monotonic_s() {
        return Way::Here(handle);
    }
    // SAFETY: guaranteed by the caller.
    unsafe { find_way(st) }
}

/// Seconds of a clock that needs no system call.
#[inline]
fn monotonic_s() -> i64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: there is space for the answer.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut now) };
    now.tv_sec
}

/// # Safety
///
/// The handle is ours.
#[cold]
unsafe fn find_way(st: *mut memcached_st) -> Way {
    // SAFETY: guaranteed by the caller.
    let handle = unsafe { of(st) };
    if handle.servers.is_empty() {
        return Way::Stuck(error::set(st, rc::NO_SERVERS, ""));
    }
    let now_s = monotonic_s();
    if let Some(open) = &handle.open {
        let known: u64 = handle.generations();
        handle.entries.iter().for_each(|entry| entry.look_again());
        if handle.generations() == known {
            handle.looked_s = now_s;
            return Way::Here(handle);
        }
        open.cache.leave();
        handle.open = None;
    }
    if now_s < handle.down_until_s {
        return Way::Stuck(error::set(st, rc::SERVER_TEMPORARILY_DISABLED, ""));
    }
    match handle.discover(st) {
        HandleDiscovery::Region(open) => {
            handle.open = Some(open);
            handle.looked_s = now_s;
            Way::Here(handle)
        }
        HandleDiscovery::NoServer(errno) => {
            // SAFETY: guaranteed by the caller.
            handle.down_until_s = now_s + i64::from(unsafe { (*st).retry_timeout });
            Way::Stuck(error::set_errno(st, rc::CONNECTION_FAILURE, errno))
        }
        HandleDiscovery::Other if real::is_there() => {
            // SAFETY: guaranteed by the caller.
            unsafe { hand_over(st) };
            Way::Away
        }
        HandleDiscovery::Other => Way::Stuck(error::set(
            st,
            rc::CONNECTION_FAILURE,
            "its servers are not all this host's Keyway, and there is no libmemcached to ask them: install it, or name it in \
             KEYWAY_LIBMEMCACHED_REAL",
        )),
    }
}

/// A server answers from the kernel, so this program must not change the region. The handle becomes the real library's,
/// if that library is installed and every server has a socket of its own. Returns whether it has.
///
/// # Safety
///
/// The handle is ours.
#[cold]
pub(crate) unsafe fn shut_out(st: *mut memcached_st) -> bool {
    // SAFETY: guaranteed by the caller.
    let handle = unsafe { of(st) };
    let by_socket = !handle.entries.iter().any(|entry| matches!(entry.target(), Target::Place(_)));
    if !by_socket || !real::is_there() {
        return false;
    }
    handle.entries.iter().for_each(|entry| entry.shut_out());
    if let Some(open) = handle.open.take() {
        open.cache.leave();
    }
    // SAFETY: guaranteed by the caller. The real library counts the call that has begun here.
    unsafe {
        hand_over(st);
        (*st).query_id -= 1;
    }
    true
}

/// Finds out whose the handle is, for a call that asks which server has a key. It is no query: what failed last stays known.
/// `None`: it is the real library's.
///
/// # Safety
///
/// The handle is ours.
pub(crate) unsafe fn find_owner<'a>(st: *mut memcached_st) -> Option<&'a mut Handle> {
    // SAFETY: guaranteed by the caller.
    let handle = unsafe { of(st) };
    if handle.open.is_some() || handle.servers.is_empty() {
        return Some(handle);
    }
    match handle.discover(st) {
        HandleDiscovery::Region(open) => handle.open = Some(open),
        HandleDiscovery::Other if real::is_there() => {
            // SAFETY: guaranteed by the caller.
            unsafe { hand_over(st) };
            return None;
        }
        HandleDiscovery::Other | HandleDiscovery::NoServer(_) => {}
    }
    Some(handle)
}

/// The result of asking all servers of a handle.
enum HandleDiscovery {
    /// one region
    Region(Open),
    /// anything else
    Other,
    /// no server is there
    NoServer(i32),
}

impl Handle {
    fn generations(&self) -> u64 {
        self.entries.iter().map(|entry| entry.generation()).sum()
    }

    fn discover(&mut self, st: *const memcached_st) -> HandleDiscovery {
        self.entries.clear();
        // SAFETY: the handle that this data is attached to.
        let udp = unsafe { (*st).is(Flag::UseUdp) };
        if udp || std::env::var_os("KEYWAY_LIBMEMCACHED").is_some_and(|v| v == "off") {
            return HandleDiscovery::Other;
        }
        let mut targets = Vec::new();
        for server in &self.servers {
            match Target::of(&server.name().to_string_lossy(), server.port) {
                Some(target) => targets.push(target),
                None => return HandleDiscovery::Other,
            }
        }
        let mut absent = None;
        for target in &targets {
            let Some(entry) = discover::entry(target) else {
                return HandleDiscovery::Other;
            };
            match entry.has_region() {
                Ok(true) => self.entries.push(entry),
                Ok(false) => return HandleDiscovery::Other,
                Err(error) => absent = Some(error.0),
            }
        }
        if let Some(errno) = absent {
            return if self.entries.is_empty() {
                HandleDiscovery::NoServer(errno)
            } else {
                HandleDiscovery::Other
            };
        }
        let mut region: Option<Open> = None;
        for (entry, server) in self.entries.iter().zip(&mut self.servers) {
            match entry.discover() {
                Discovery::Region(open) if region.as_ref().is_none_or(|first| first.identity == open.identity) => {
                    server.told = open.facts.version;
                    region.get_or_insert(open);
                }
                Discovery::NoServer(errno) => return HandleDiscovery::NoServer(errno),
                Discovery::Region(_) | Discovery::Stranger => return HandleDiscovery::Other,
            }
        }
        region.map_or(HandleDiscovery::Other, HandleDiscovery::Region)
    }

    /// A server, and where it is.
    pub(crate) fn server(&mut self, position: usize) -> Option<(&mut Instance, &'static Target)> {
        let entry: &'static Entry = self.entries.get(position)?;
        Some((self.servers.get_mut(position)?, entry.target()))
    }

    /// Forgets where calls go, because the servers have changed.
    pub(crate) fn servers_changed(&mut self, st: *mut memcached_st) {
        self.open = None;
        self.down_until_s = 0;
        // SAFETY: the handle that this data is attached to.
        unsafe {
            (*st).number_of_hosts = u32::try_from(self.servers.len()).unwrap_or(u32::MAX);
            (*st).servers = self.servers.as_mut_ptr().cast();
            if self.servers.is_empty() {
                (*st).servers = std::ptr::null_mut();
            }
        }
    }
}

/// A handle as libmemcached makes it.
///
/// # Safety
///
/// `st` has room for a handle, whatever is in it.
unsafe fn create(st: *mut memcached_st, allocated: bool) {
    let handle = Box::new(Handle {
        open: None,
        entries: Vec::new(),
        looked_s: 0,
        down_until_s: 0,
        servers: Vec::new(),
        namespace: None,
        key: Vec::new(),
        pending: Pending::default(),
        result_used: false,
        error: None,
        filename: None,
        calls: Calls::default(),
    });
    // SAFETY: guaranteed by the caller; all zeros are valid for every field but the allocators, which are set before any
    // code reads them.
    unsafe {
        st.cast::<u8>().write_bytes(0, size_of::<memcached_st>());
        (&raw mut (*st).allocators).write(DEFAULT_ALLOCATORS);
        let st = &mut *st;
        st.virtual_bucket = (&raw const OURS).cast();
        st.ketama.continuum = Box::into_raw(handle).cast();
        st.put(Flag::Reply, true);
        hash::hashkit_create(&raw mut st.hashkit);
        st.server_failure_limit = 5;
        st.io_msg_watermark = 500;
        st.io_bytes_watermark = 65 * 1024;
        st.poll_timeout = 5000;
        st.connect_timeout = 4000;
        st.retry_timeout = 2;
        st.send_size = -1;
        st.recv_size = -1;
        st.query_id = 1;
        st.configure.initial_pool_size = 1;
        st.configure.max_pool_size = 1;
        st.configure.version = -1;
        st.options = if allocated { ALLOCATED } else { 0 };
        let root = std::ptr::from_mut(st);
        result::init(&raw mut st.result, root, false);
    }
}

/// Frees the data attached to a handle, but not the handle.
///
/// # Safety
///
/// The handle is ours, and is not used as one of ours again.
unsafe fn empty(st: *mut memcached_st) -> Box<Handle> {
    // SAFETY: guaranteed by the caller; made by `create`.
    unsafe {
        result::free_value(&raw mut (*st).result);
        hash::hashkit_free(&raw mut (*st).hashkit);
        (*st).virtual_bucket = std::ptr::null();
        let handle = Box::from_raw((*st).ketama.continuum.cast::<Handle>());
        (*st).ketama.continuum = std::ptr::null_mut();
        handle
    }
}

/// Makes the handle the real library's, which creates one of its own in the same memory. The calls that have set up ours are made
/// again on it.
///
/// # Safety
///
/// The handle is ours; the real library is installed.
pub(crate) unsafe fn hand_over(st: *mut memcached_st) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let (allocated, query_id) = ((*st).options & ALLOCATED, (*st).query_id);
        let handle = empty(st);
        real!(memcached_create(*mut memcached_st) -> *mut memcached_st; st);
        handle.calls.again(st);
        (*st).options |= allocated;
        (*st).query_id = query_id;
    }
}

// ---- memory

unsafe extern "C" fn default_malloc(_: *const memcached_st, size: usize, _: *mut c_void) -> *mut c_void {
    // SAFETY: any size may be requested.
    unsafe { libc::malloc(size) }
}
unsafe extern "C" fn default_free(_: *const memcached_st, block: *mut c_void, _: *mut c_void) {
    // SAFETY: the caller guarantees that it comes from malloc.
    unsafe { libc::free(block) };
}
unsafe extern "C" fn default_realloc(_: *const memcached_st, block: *mut c_void, size: usize, _: *mut c_void) -> *mut c_void {
    // SAFETY: as above.
    unsafe { libc::realloc(block, size) }
}
unsafe extern "C" fn default_calloc(_: *const memcached_st, count: usize, size: usize, _: *mut c_void) -> *mut c_void {
    // SAFETY: any size may be requested.
    unsafe { libc::calloc(count, size) }
}

const DEFAULT_ALLOCATORS: memcached_allocator_t = memcached_allocator_t {
    calloc: default_calloc,
    free: default_free,
    malloc: default_malloc,
    realloc: default_realloc,
    context: std::ptr::null_mut(),
};

/// Allocates memory with the functions that the handle's program has set. NULL stands for no handle.
///
/// # Safety
///
/// The handle is NULL or one.
pub(crate) unsafe fn malloc(st: *const memcached_st, size: usize) -> *mut c_void {
    // SAFETY: guaranteed by the caller.
    unsafe {
        match st.as_ref() {
            Some(st) => (st.allocators.malloc)(st, size, st.allocators.context),
            None => libc::malloc(size),
        }
    }
}

/// # Safety
///
/// The handle is NULL or one; the block is NULL, or [`malloc`] or this function has returned it for the handle.
pub(crate) unsafe fn realloc(st: *const memcached_st, block: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: guaranteed by the caller.
    unsafe {
        match st.as_ref() {
            Some(st) => (st.allocators.realloc)(st, block, size, st.allocators.context),
            None => libc::realloc(block, size),
        }
    }
}

/// # Safety
///
/// The handle is NULL or one; the block is NULL, or [`malloc`] or [`realloc`] has returned it for the handle.
pub(crate) unsafe fn free_block(st: *const memcached_st, block: *mut c_void) {
    if block.is_null() {
        return;
    }
    // SAFETY: guaranteed by the caller.
    unsafe {
        match st.as_ref() {
            Some(st) => (st.allocators.free)(st, block, st.allocators.context),
            None => libc::free(block),
        }
    }
}

/// A copy in memory that belongs to no handle, with two zero bytes after it, as libmemcached's values have.
pub(crate) fn copied(bytes: &[u8]) -> *mut c_char {
    // SAFETY: there is space for the bytes and two more.
    unsafe {
        let block = libc::malloc(bytes.len() + 2).cast::<u8>();
        if !block.is_null() {
            block.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            block.add(bytes.len()).write(0);
            block.add(bytes.len() + 1).write(0);
        }
        block.cast()
    }
}

// ---- exported

plain_functions! {
    /// Distinguishes a copy of this library from the real one.
    fn keyway_libmemcached() -> *const c_char = c"".as_ptr(); c"keyway".as_ptr()

    fn memcached_create(st: *mut memcached_st) -> *mut memcached_st = std::ptr::null_mut(); {
        let allocated = st.is_null();
        let st = if allocated { libc::malloc(size_of::<memcached_st>()).cast() } else { st };
        if !st.is_null() {
            create(st, allocated);
        }
        st
    }

    fn memcached(string: *const c_char, length: usize) -> *mut memcached_st = std::ptr::null_mut(); {
        if string.is_null() != (length == 0) {
            return std::ptr::null_mut();
        }
        let st = memcached_create(std::ptr::null_mut());
        let text = if length > 0 {
            Some(std::slice::from_raw_parts(string.cast::<u8>(), length).to_vec())
        } else {
            std::env::var_os("LIBMEMCACHED").map(std::os::unix::ffi::OsStringExt::into_vec)
        };
        let text = text.filter(|text| !text.is_empty());
        if st.is_null() || text.as_deref().is_none_or(|text| rc::succeeded(options::configure(st, text))) {
            return st;
        }
        memcached_free(st);
        std::ptr::null_mut()
    }

    fn memcached_clone(st: *mut memcached_st, source: *const memcached_st) -> *mut memcached_st = std::ptr::null_mut(); {
        if source.is_null() {
            return memcached_create(st);
        }
        if !is_ours(source) {
            static REAL: Symbol = Symbol::new("memcached_clone\0");
            let Some(real) = REAL.get() else { return std::ptr::null_mut() };
            let real: unsafe extern "C" fn(*mut memcached_st, *const memcached_st) -> *mut memcached_st = std::mem::transmute(real);
            return real(st, source);
        }
        let st = memcached_create(st);
        if st.is_null() {
            return st;
        }
        copy_settings(&mut *st, &*source);
        let (new, old) = (of(st), of(source));
        new.namespace.clone_from(&old.namespace);
        new.calls = old.calls.of_clone();
        hash::hashkit_clone(&raw mut (*st).hashkit, &raw const (*source).hashkit);
        new.servers = old.servers.iter().map(|server| server.copy(st)).collect();
        (*st).ketama.weighted = new.servers.iter().any(|server| server.weight > 1);
        new.servers_changed(st);
        if let Some(on_clone) = (*source).on_clone {
            on_clone(st, source);
        }
        st
    }
}

/// Copies the settings that libmemcached copies to a clone.
fn copy_settings(new: &mut memcached_st, old: &memcached_st) {
    new.flags = old.flags;
    new.distribution = old.distribution;
    new.send_size = old.send_size;
    new.recv_size = old.recv_size;
    new.poll_timeout = old.poll_timeout;
    new.connect_timeout = old.connect_timeout;
    new.retry_timeout = old.retry_timeout;
    new.dead_timeout = old.dead_timeout;
    new.user_data = old.user_data;
    new.snd_timeout = old.snd_timeout;
    new.rcv_timeout = old.rcv_timeout;
    new.on_clone = old.on_clone;
    new.on_cleanup = old.on_cleanup;
    new.allocators = old.allocators;
    new.get_key_failure = old.get_key_failure;
    new.delete_trigger = old.delete_trigger;
    new.server_failure_limit = old.server_failure_limit;
    new.server_timeout_limit = old.server_timeout_limit;
    new.io_msg_watermark = old.io_msg_watermark;
    new.io_bytes_watermark = old.io_bytes_watermark;
    new.io_key_prefetch = old.io_key_prefetch;
    new.number_of_replicas = old.number_of_replicas;
    new.tcp_keepidle = old.tcp_keepidle;
    new.configure.version = old.configure.version;
    new.sasl_callbacks = old.sasl_callbacks;
}

/// Makes the handle as it was when it was created.
///
/// # Safety
///
/// The handle is ours, and no reference to what is attached to it is used after this.
pub(crate) unsafe fn renew(st: *mut memcached_st) {
    // SAFETY: guaranteed by the caller; the program's function does not free the handle.
    unsafe {
        let (allocated, query_id) = ((*st).options & ALLOCATED != 0, (*st).query_id);
        if let Some(on_cleanup) = (*st).on_cleanup {
            on_cleanup(st);
        }
        drop(empty(st));
        create(st, allocated);
        (*st).query_id = query_id;
    }
}

handle_functions! {
    fn memcached_free(st: *mut memcached_st) -> () = (); {
        if let Some(on_cleanup) = (*st).on_cleanup {
            on_cleanup(st);
        }
        let allocated = (*st).options & ALLOCATED != 0;
        drop(empty(st));
        if allocated {
            libc::free(st.cast());
        }
        Some(())
    }

    fn memcached_reset(st: *mut memcached_st) -> c_int = rc::INVALID_ARGUMENTS; {
        renew(st);
        Some(rc::SUCCESS)
    }

    fn memcached_get_user_data(st: *const memcached_st) -> *mut c_void = std::ptr::null_mut(); Some((*st).user_data)

    fn memcached_query_id(st: *const memcached_st) -> u64 = 0; Some((*st).query_id)

    fn memcached_get_memory_allocators(
        st: *const memcached_st, malloc: *mut MallocFn, free: *mut FreeFn, realloc: *mut ReallocFn, calloc: *mut CallocFn
    ) -> () = (); {
        let allocators = (*st).allocators;
        put(malloc, allocators.malloc);
        put(free, allocators.free);
        put(realloc, allocators.realloc);
        put(calloc, allocators.calloc);
        Some(())
    }

    fn memcached_get_memory_allocators_context(st: *const memcached_st) -> *mut c_void = std::ptr::null_mut();
        Some((*st).allocators.context)

    // Nothing is buffered, so there is nothing to send.
    fn memcached_quit(st: *mut memcached_st) -> () = (); {
        (*st).query_id += 1;
        let handle = of(st);
        error::clear(handle);
        handle.pending.clear();
        handle.servers.iter_mut().for_each(|server| server.connection = None);
        Some(())
    }

    fn memcached_flush_buffers(st: *mut memcached_st) -> c_int = rc::INVALID_ARGUMENTS; {
        let _ = st;
        Some(rc::SUCCESS)
    }

    fn memcached_set_encoding_key(st: *mut memcached_st, key: *const c_char, length: usize) -> c_int = rc::INVALID_ARGUMENTS; {
        if key.is_null() {
            // It has no encryption key: a handle with one is the real library's.
            return rc::SUCCESS;
        }
        if !real::is_there() {
            let why = "values are encoded by the real libmemcached only, and it is not there: install it, or name it in KEYWAY_LIBMEMCACHED_REAL";
            return error::set(st, rc::NOT_SUPPORTED, why);
        }
        if let Some(open) = of(st).open.take() {
            open.cache.leave();
        }
        hand_over(st);
        // The real library is called with the caller's own pointer. It makes its key of 32 bytes from there, whatever the
        // length is, so no copy of the key would encode as the key does.
        let _ = length;
        None
    }

    fn memcached_get_sasl_callbacks(st: *mut memcached_st) -> *mut c_void = std::ptr::null_mut(); Some((*st).sasl_callbacks)
}

setup_functions! {
    fn memcached_set_user_data(st: *mut memcached_st, data: *mut c_void) -> *mut c_void = std::ptr::null_mut(), sets sets::USER_DATA;
        std::mem::replace(&mut (*st).user_data, data)

    fn memcached_set_memory_allocators(
        st: *mut memcached_st, malloc: Option<MallocFn>, free: Option<FreeFn>, realloc: Option<ReallocFn>, calloc: Option<CallocFn>,
        context: *mut c_void
    ) -> c_int = rc::INVALID_ARGUMENTS, sets sets::ANYTHING;
        match (malloc, free, realloc, calloc) {
            (None, None, None, None) => {
                (*st).allocators = DEFAULT_ALLOCATORS;
                rc::SUCCESS
            }
            (Some(malloc), Some(free), Some(realloc), Some(calloc)) => {
                (*st).allocators = memcached_allocator_t { calloc, free, malloc, realloc, context };
                rc::SUCCESS
            }
            _ => error::set(st, rc::INVALID_ARGUMENTS, "NULL parameter provided for one or more allocators"),
        }

    fn memcached_set_sasl_auth_data(st: *mut memcached_st, user: *const c_char, password: *const c_char) -> c_int
        = rc::INVALID_ARGUMENTS, sets sets::LOGIN; {
        if user.is_null() || password.is_null() {
            return rc::INVALID_ARGUMENTS;
        }
        (*st).put(Flag::BinaryProtocol, true);
        (*st).put(Flag::VerifyKey, false);
        rc::SUCCESS
    }

    fn memcached_destroy_sasl_auth_data(st: *mut memcached_st) -> c_int = rc::INVALID_ARGUMENTS, sets sets::LOGIN; {
        (*st).sasl_callbacks = std::ptr::null_mut();
        rc::SUCCESS
    }

    fn memcached_set_sasl_callbacks(st: *mut memcached_st, callbacks: *const c_void) -> () = (), sets sets::LOGIN; {
        (*st).sasl_callbacks = callbacks.cast_mut();
        (*st).sasl_is_allocated = false;
    }
}

/// # Safety
///
/// The place is NULL, or a `T` can be written to it.
#[inline]
pub(crate) unsafe fn put<T>(place: *mut T, value: T) {
    if !place.is_null() {
        // SAFETY: guaranteed by the caller.
        unsafe { place.write(value) };
    }
}
