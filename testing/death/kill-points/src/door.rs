//! The ways of a process into a region: the library as Rust programs link it, the C library, and the drop-in for libmemcached. The last two
//! are loaded from their built files (`dlopen(3)`), so that what is stepped is what programs call.
//!
//! # Safety
//!
//! The signatures are those of `keyway.h` and of libmemcached's headers. A library is loaded once in a process that one thread uses,
//! and never unloaded; a handle is used by its door alone, and closed with it.
#![allow(unsafe_code, reason = "functions of libraries found by name; contract above")]

use crate::operation::{Cas, Door, Op};
use keyway_cache::{Cache, Options, Place};
use keyway_region::verbs::{Arithmetic, Counted, Delete, Deleted, Get, Item, Store, StoreMode, Stored, WriteError};
use nix::libc;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Largest item that is stored here, and so the room for a value that comes back.
const ITEM_SIZE_MAX: usize = 1 << 18;

/// How a process uses a region.
#[derive(Clone, Debug)]
pub enum Way {
    /// the crate
    Rust,
    /// `libkeyway`, from this file; with the gate, where there can be one, or without
    C(PathBuf, bool),
    /// `libmemcached.so.11`, from this file
    Dropin(PathBuf),
    /// a broken one: what it stores it deletes first
    InTwoCalls(Box<Way>),
}

impl Way {
    /// Opens the region.
    ///
    /// # Panics
    ///
    /// It cannot.
    pub fn open(&self, place: &Path) -> Box<dyn Door> {
        match self {
            Self::Rust => {
                let options = Options::new().item_size_max(ITEM_SIZE_MAX);
                let cache = Cache::open(&Place::Path(place.to_path_buf()), &options).expect("the region is there");
                // The session keeps the mapping, and with it the lock.
                Box::new(cache.session().expect("a thread slot"))
            }
            Self::C(library, gate) => Box::new(C::open(library, place, *gate)),
            Self::Dropin(library) => Box::new(Dropin::open(library, place)),
            Self::InTwoCalls(way) => Box::new(InTwoCalls(way.open(place))),
        }
    }
}

impl Way {
    /// Whether it is the drop-in.
    pub fn is_dropin(&self) -> bool {
        match self {
            Self::Rust | Self::C(..) => false,
            Self::Dropin(_) => true,
            Self::InTwoCalls(way) => way.is_dropin(),
        }
    }

    /// Whether it has this operation: a get of the drop-in's tells no CAS unique.
    pub fn has(&self, op: &Op) -> bool {
        !self.is_dropin() || !matches!(op, Op::Store(.., Cas::Noted))
    }
}

/// A library that is loaded.
struct Library(*mut c_void);

impl Library {
    fn load(file: &Path) -> Self {
        let name = CString::new(file.as_os_str().as_bytes()).expect("a path");
        // SAFETY: loads a library of this workspace, which runs nothing but its own constructors.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!handle.is_null(), "{} cannot be loaded", file.display());
        Self(handle)
    }

    /// The function of this name.
    ///
    /// # Safety
    ///
    /// `F` is a pointer to a function with its signature.
    unsafe fn function<F: Copy>(&self, name: &CStr) -> F {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        // SAFETY: looks a name up.
        let found = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        assert!(!found.is_null(), "the library has no {}", name.to_string_lossy());
        // SAFETY: the caller's word, and of the same size.
        unsafe { std::mem::transmute_copy(&found) }
    }
}

fn c_path(place: &Path, prefix: &str) -> CString {
    CString::new([prefix.as_bytes(), place.as_os_str().as_bytes()].concat()).expect("a path")
}

/// What was found, as far as a door in C tells.
fn item(value_len: usize, flags: u32, cas: u64, ttl_s: Option<u32>) -> Item {
    Item {
        value_len,
        flags,
        cas,
        ttl_s,
        idle_s: 0,
        fetched: false,
        stale: false,
        win: false,
        win_sent: false,
        opaque_key: false,
        size: 0,
    }
}

/// `keyway_options`.
#[repr(C)]
struct COptions {
    size: usize,
    memory: u64,
    item_size_max: u64,
    mode: u32,
    flags: u32,
}
const NO_GATE: u32 = 64;

/// `keyway_item`.
#[repr(C)]
#[derive(Default)]
struct CItem {
    value_len: usize,
    cas: u64,
    ttl: i64,
    flags: u32,
}

/// `keyway_stat`.
#[repr(C)]
#[derive(Clone, Copy)]
struct CStat {
    name: [c_char; 32],
    value: u64,
}

type COpen = unsafe extern "C" fn(*const c_char, *const COptions) -> *mut c_void;
type CClose = unsafe extern "C" fn(*mut c_void);
type CGet = unsafe extern "C" fn(*mut c_void, *const c_void, usize, *mut c_void, usize, *mut CItem) -> c_int;
type CGat = unsafe extern "C" fn(*mut c_void, *const c_void, usize, i64, *mut c_void, usize, *mut CItem) -> c_int;
type CSet = unsafe extern "C" fn(*mut c_void, *const c_void, usize, *const c_void, usize, i64, u32) -> c_int;
type CAppend = unsafe extern "C" fn(*mut c_void, *const c_void, usize, *const c_void, usize) -> c_int;
type CCas = unsafe extern "C" fn(*mut c_void, *const c_void, usize, *const c_void, usize, i64, u32, u64) -> c_int;
type CDelete = unsafe extern "C" fn(*mut c_void, *const c_void, usize) -> c_int;
type CCount = unsafe extern "C" fn(*mut c_void, *const c_void, usize, u64, *mut u64) -> c_int;
type CVivify = unsafe extern "C" fn(*mut c_void, *const c_void, usize, u64, u64, i64, *mut u64) -> c_int;
type CTouch = unsafe extern "C" fn(*mut c_void, *const c_void, usize, i64) -> c_int;
type CFlush = unsafe extern "C" fn(*mut c_void, i64) -> c_int;
type CStats = unsafe extern "C" fn(*mut c_void, *mut CStat, *mut usize) -> c_int;
type CMessage = unsafe extern "C" fn() -> *const c_char;

/// `keyway_result`, as far as it is an answer.
mod code {
    use super::c_int;
    pub(super) const OK: c_int = 0;
    pub(super) const NOT_FOUND: c_int = 1;
    pub(super) const NOT_STORED: c_int = 2;
    pub(super) const EXISTS: c_int = 3;
    pub(super) const NOT_A_NUMBER: c_int = 20;
}

/// An open cache of `libkeyway`.
struct C {
    library: Library,
    cache: *mut c_void,
    get: CGet,
    gets: CGet,
    gat: CGat,
    set: CSet,
    add: CSet,
    replace: CSet,
    append: CAppend,
    prepend: CAppend,
    cas: CCas,
    delete: CDelete,
    counts: [CCount; 2],
    vivify: [CVivify; 2],
    touch: CTouch,
    flush_all: CFlush,
    room: Vec<u8>,
}

impl C {
    fn open(file: &Path, place: &Path, gate: bool) -> Self {
        let library = Library::load(file);
        let options = COptions {
            size: size_of::<COptions>(),
            memory: 0,
            item_size_max: ITEM_SIZE_MAX as u64,
            mode: 0,
            flags: if gate { 0 } else { NO_GATE },
        };
        // SAFETY: keyway.h.
        let own = unsafe {
            let open: COpen = library.function(c"keyway_open");
            Self {
                cache: open(c_path(place, "").as_ptr(), &raw const options),
                get: library.function(c"keyway_get"),
                gets: library.function(c"keyway_gets"),
                gat: library.function(c"keyway_gat"),
                set: library.function(c"keyway_set"),
                add: library.function(c"keyway_add"),
                replace: library.function(c"keyway_replace"),
                append: library.function(c"keyway_append"),
                prepend: library.function(c"keyway_prepend"),
                cas: library.function(c"keyway_cas"),
                delete: library.function(c"keyway_delete"),
                counts: [library.function(c"keyway_incr"), library.function(c"keyway_decr")],
                vivify: [
                    library.function(c"keyway_incr_with_initial"),
                    library.function(c"keyway_decr_with_initial"),
                ],
                touch: library.function(c"keyway_touch"),
                flush_all: library.function(c"keyway_flush_all"),
                room: vec![0; ITEM_SIZE_MAX],
                library,
            }
        };
        if own.cache.is_null() {
            own.failed(-1);
        }
        assert_eq!(
            own.has_gate(),
            gate && has_protection_keys(),
            "the gate is not as it was asked for"
        );
        own
    }

    fn has_gate(&self) -> bool {
        const STATS: usize = 64;
        let nothing = CStat { name: [0; 32], value: 0 };
        let (mut stats, mut count) = ([nothing; STATS], STATS);
        // SAFETY: keyway.h; there is room for so many.
        let result = unsafe {
            let stats_of: CStats = self.library.function(c"keyway_stats");
            stats_of(self.cache, stats.as_mut_ptr(), &raw mut count)
        };
        assert_eq!(result, code::OK, "keyway_stats");
        let is_gate = |stat: &&CStat| stat.name.iter().map(|c| c.cast_unsigned()).take(5).eq(*b"gate\0");
        stats.iter().find(is_gate).is_some_and(|stat| stat.value == 1)
    }

    /// A failure, which nothing here expects.
    fn failed(&self, result: c_int) -> ! {
        // SAFETY: keyway.h: a C string, until the thread's next failure.
        let message = unsafe {
            let message: CMessage = self.library.function(c"keyway_message");
            CStr::from_ptr(message()).to_string_lossy().into_owned()
        };
        panic!("result {result}: {message}")
    }
}

impl Drop for C {
    fn drop(&mut self) {
        // SAFETY: keyway.h; no other thread has the handle.
        unsafe {
            let close: CClose = self.library.function(c"keyway_close");
            close(self.cache);
        }
    }
}

impl Door for C {
    fn get(&mut self, key: &[u8], how: &Get, out: &mut Vec<u8>) -> Result<Option<Item>, WriteError> {
        let (at, len) = (key.as_ptr().cast(), key.len());
        let (room, size) = (self.room.as_mut_ptr().cast(), self.room.len());
        let mut found = CItem::default();
        // SAFETY: keyway.h; slices, and a structure of ours.
        let result = unsafe {
            match (how.exptime, how.details) {
                (Some(exptime), _) => (self.gat)(self.cache, at, len, exptime, room, size, &raw mut found),
                (None, true) => (self.gets)(self.cache, at, len, room, size, &raw mut found),
                (None, false) => (self.get)(self.cache, at, len, room, size, &raw mut found),
            }
        };
        match result {
            code::OK => {
                if how.value {
                    out.extend_from_slice(&self.room[..found.value_len]);
                }
                Ok(Some(item(
                    found.value_len,
                    found.flags,
                    found.cas,
                    u32::try_from(found.ttl).ok(),
                )))
            }
            code::NOT_FOUND => Ok(None),
            other => self.failed(other),
        }
    }

    fn store(&mut self, key: &[u8], value: &[u8], how: &Store) -> Result<Stored, WriteError> {
        let (key, key_len) = (key.as_ptr().cast(), key.len());
        let (value, value_len) = (value.as_ptr().cast(), value.len());
        let (exptime, flags) = (how.exptime, how.flags);
        // SAFETY: keyway.h; slices.
        let result = unsafe {
            match (how.compare_cas, how.mode) {
                (Some(cas), _) => (self.cas)(self.cache, key, key_len, value, value_len, exptime, flags, cas),
                (None, StoreMode::Append) => (self.append)(self.cache, key, key_len, value, value_len),
                (None, StoreMode::Prepend) => (self.prepend)(self.cache, key, key_len, value, value_len),
                (None, StoreMode::Add) => (self.add)(self.cache, key, key_len, value, value_len, exptime, flags),
                (None, StoreMode::Replace) => (self.replace)(self.cache, key, key_len, value, value_len, exptime, flags),
                (None, StoreMode::Set) => (self.set)(self.cache, key, key_len, value, value_len, exptime, flags),
            }
        };
        match result {
            code::OK => Ok(stored()),
            code::NOT_STORED => Ok(Stored::NotStored),
            code::EXISTS => Ok(Stored::Exists),
            code::NOT_FOUND => Ok(Stored::NotFound),
            other => self.failed(other),
        }
    }

    fn delete(&mut self, key: &[u8], _: &Delete) -> Result<Deleted, WriteError> {
        // SAFETY: keyway.h; a slice.
        match unsafe { (self.delete)(self.cache, key.as_ptr().cast(), key.len()) } {
            code::OK => Ok(Deleted::Deleted),
            code::NOT_FOUND => Ok(Deleted::NotFound),
            other => self.failed(other),
        }
    }

    fn arithmetic(&mut self, key: &[u8], how: &Arithmetic) -> Result<Counted, WriteError> {
        let (at, len, which) = (key.as_ptr().cast(), key.len(), usize::from(how.decrement));
        let mut value = 0;
        // SAFETY: keyway.h; a slice, and a number of ours.
        let result = unsafe {
            match how.vivify {
                Some((initial, exptime)) => self.vivify[which](self.cache, at, len, how.delta, initial, exptime, &raw mut value),
                None => self.counts[which](self.cache, at, len, how.delta, &raw mut value),
            }
        };
        counted(result, code::NOT_FOUND, value).unwrap_or_else(|| match result {
            code::NOT_A_NUMBER => Ok(Counted::NotANumber),
            other => self.failed(other),
        })
    }

    fn touch(&mut self, key: &[u8], exptime: i64) -> Result<bool, WriteError> {
        // SAFETY: keyway.h; a slice.
        match unsafe { (self.touch)(self.cache, key.as_ptr().cast(), key.len(), exptime) } {
            code::OK => Ok(true),
            code::NOT_FOUND => Ok(false),
            other => self.failed(other),
        }
    }

    fn flush_all(&mut self, exptime: i64) -> Result<(), WriteError> {
        // SAFETY: keyway.h.
        match unsafe { (self.flush_all)(self.cache, exptime) } {
            code::OK => Ok(()),
            other => self.failed(other),
        }
    }
}

type MCreate = unsafe extern "C" fn(*const c_void) -> *mut c_void;
type MServerAdd = unsafe extern "C" fn(*mut c_void, *const c_char, u16) -> c_int;
type MFree = unsafe extern "C" fn(*mut c_void);
type MGet = unsafe extern "C" fn(*mut c_void, *const c_char, usize, *mut usize, *mut u32, *mut c_int) -> *mut c_char;
type MSet = unsafe extern "C" fn(*mut c_void, *const c_char, usize, *const c_char, usize, libc::time_t, u32) -> c_int;
type MDelete = unsafe extern "C" fn(*mut c_void, *const c_char, usize, libc::time_t) -> c_int;
type MCount = unsafe extern "C" fn(*mut c_void, *const c_char, usize, u32, *mut u64) -> c_int;
type MTouch = unsafe extern "C" fn(*mut c_void, *const c_char, usize, libc::time_t) -> c_int;
type MFlush = unsafe extern "C" fn(*mut c_void, libc::time_t) -> c_int;

/// `memcached_return_t`.
mod rc {
    use super::c_int;
    pub(super) const SUCCESS: c_int = 0;
    pub(super) const CLIENT_ERROR: c_int = 9;
    pub(super) const NOTSTORED: c_int = 14;
    pub(super) const NOTFOUND: c_int = 16;
}

/// A handle of the drop-in.
struct Dropin {
    library: Library,
    handle: *mut c_void,
    get: MGet,
    set: MSet,
    add: MSet,
    replace: MSet,
    append: MSet,
    prepend: MSet,
    delete: MDelete,
    counts: [MCount; 2],
    touch: MTouch,
    flush: MFlush,
}

impl Dropin {
    fn open(file: &Path, place: &Path) -> Self {
        let library = Library::load(file);
        // SAFETY: libmemcached/memcached.h.
        unsafe {
            let create: MCreate = library.function(c"memcached_create");
            let server_add: MServerAdd = library.function(c"memcached_server_add");
            let handle = create(std::ptr::null());
            assert!(!handle.is_null(), "memcached_create");
            let added = server_add(handle, c_path(place, "keyway:").as_ptr(), 0);
            assert_eq!(added, rc::SUCCESS, "memcached_server_add");
            Self {
                handle,
                get: library.function(c"memcached_get"),
                set: library.function(c"memcached_set"),
                add: library.function(c"memcached_add"),
                replace: library.function(c"memcached_replace"),
                append: library.function(c"memcached_append"),
                prepend: library.function(c"memcached_prepend"),
                delete: library.function(c"memcached_delete"),
                counts: [
                    library.function(c"memcached_increment"),
                    library.function(c"memcached_decrement"),
                ],
                touch: library.function(c"memcached_touch"),
                flush: library.function(c"memcached_flush"),
                library,
            }
        }
    }
}

impl Drop for Dropin {
    fn drop(&mut self) {
        // SAFETY: libmemcached/memcached.h; no other thread has the handle.
        unsafe {
            let free: MFree = self.library.function(c"memcached_free");
            free(self.handle);
        }
    }
}

impl Door for Dropin {
    fn get(&mut self, key: &[u8], how: &Get, out: &mut Vec<u8>) -> Result<Option<Item>, WriteError> {
        let (mut len, mut flags, mut code) = (0, 0, 0);
        // SAFETY: libmemcached/get.h; a slice, and numbers of ours. The value is malloc's, and given back.
        unsafe {
            let value = (self.get)(
                self.handle,
                key.as_ptr().cast(),
                key.len(),
                &raw mut len,
                &raw mut flags,
                &raw mut code,
            );
            if how.value && !value.is_null() {
                out.extend_from_slice(std::slice::from_raw_parts(value.cast(), len));
            }
            libc::free(value.cast());
        }
        match code {
            rc::SUCCESS => Ok(Some(item(len, flags, 0, None))),
            rc::NOTFOUND => Ok(None),
            other => panic!("memcached_get: {other}"),
        }
    }

    fn store(&mut self, key: &[u8], value: &[u8], how: &Store) -> Result<Stored, WriteError> {
        let store = match how.mode {
            StoreMode::Set => self.set,
            StoreMode::Add => self.add,
            StoreMode::Replace => self.replace,
            StoreMode::Append => self.append,
            StoreMode::Prepend => self.prepend,
        };
        let (key, key_len) = (key.as_ptr().cast(), key.len());
        // SAFETY: libmemcached/storage.h; slices.
        let code = unsafe {
            store(
                self.handle,
                key,
                key_len,
                value.as_ptr().cast(),
                value.len(),
                how.exptime,
                how.flags,
            )
        };
        match code {
            rc::SUCCESS => Ok(stored()),
            rc::NOTSTORED => Ok(Stored::NotStored),
            other => panic!("memcached_set or another store: {other}"),
        }
    }

    fn delete(&mut self, key: &[u8], _: &Delete) -> Result<Deleted, WriteError> {
        // SAFETY: libmemcached/delete.h; a slice.
        match unsafe { (self.delete)(self.handle, key.as_ptr().cast(), key.len(), 0) } {
            rc::SUCCESS => Ok(Deleted::Deleted),
            rc::NOTFOUND => Ok(Deleted::NotFound),
            other => panic!("memcached_delete: {other}"),
        }
    }

    fn arithmetic(&mut self, key: &[u8], how: &Arithmetic) -> Result<Counted, WriteError> {
        let count = self.counts[usize::from(how.decrement)];
        let delta = u32::try_from(how.delta).expect("a small number");
        let mut value = 0;
        // SAFETY: libmemcached/auto.h; a slice, and a number of ours.
        let code = unsafe { count(self.handle, key.as_ptr().cast(), key.len(), delta, &raw mut value) };
        counted(code, rc::NOTFOUND, value).unwrap_or_else(|| match code {
            rc::CLIENT_ERROR => Ok(Counted::NotANumber),
            other => panic!("memcached_increment or _decrement: {other}"),
        })
    }

    fn touch(&mut self, key: &[u8], exptime: i64) -> Result<bool, WriteError> {
        // SAFETY: libmemcached/touch.h; a slice.
        match unsafe { (self.touch)(self.handle, key.as_ptr().cast(), key.len(), exptime) } {
            rc::SUCCESS => Ok(true),
            rc::NOTFOUND => Ok(false),
            other => panic!("memcached_touch: {other}"),
        }
    }

    fn flush_all(&mut self, exptime: i64) -> Result<(), WriteError> {
        // SAFETY: libmemcached/flush.h.
        match unsafe { (self.flush)(self.handle, exptime) } {
            rc::SUCCESS => Ok(()),
            other => panic!("memcached_flush: {other}"),
        }
    }
}

/// Stored; neither door tells more.
fn stored() -> Stored {
    Stored::Stored {
        cas: 0,
        value_len: 0,
        size: 0,
    }
}

/// Both doors have the same zero.
fn counted(code: c_int, not_found: c_int, value: u64) -> Option<Result<Counted, WriteError>> {
    match code {
        0 => Some(Ok(Counted::Value {
            value,
            item: item(0, 0, 0, None),
        })),
        code if code == not_found => Some(Ok(Counted::NotFound)),
        _ => None,
    }
}

/// Whether processor and kernel have protection keys (`ospke`, proc_cpuinfo(5)).
pub fn has_protection_keys() -> bool {
    std::fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| text.split_whitespace().any(|word| word == "ospke"))
}

/// What a checker must reject: a store that is two calls.
struct InTwoCalls(Box<dyn Door>);

impl Door for InTwoCalls {
    fn get(&mut self, key: &[u8], how: &Get, out: &mut Vec<u8>) -> Result<Option<Item>, WriteError> {
        self.0.get(key, how, out)
    }
    fn store(&mut self, key: &[u8], value: &[u8], how: &Store) -> Result<Stored, WriteError> {
        self.0.delete(key, &Delete::default())?;
        self.0.store(key, value, how)
    }
    fn delete(&mut self, key: &[u8], how: &Delete) -> Result<Deleted, WriteError> {
        self.0.delete(key, how)
    }
    fn arithmetic(&mut self, key: &[u8], how: &Arithmetic) -> Result<Counted, WriteError> {
        self.0.arithmetic(key, how)
    }
    fn touch(&mut self, key: &[u8], exptime: i64) -> Result<bool, WriteError> {
        self.0.touch(key, exptime)
    }
    fn flush_all(&mut self, exptime: i64) -> Result<(), WriteError> {
        self.0.flush_all(exptime)
    }
}
