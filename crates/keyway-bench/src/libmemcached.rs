//! libmemcached as a program uses it: a library loaded by its path, a handle for each thread, calls that block.
//!
//! The same client measures Keyway's drop-in and the real library, which is loaded beside it: nothing of one is seen by the other.
//!
//! # Safety
//!
//! Loading a library runs its initializers, and its symbols have the types that libmemcached 1.0's headers give them: the user who names a
//! file as `libmemcached.so.11` vouches for both. A handle is used by one thread at a time, and freed once. The library stays
//! loaded as long as any handle. What `memcached_get` gives is allocated with malloc(3) and freed here.
#![allow(unsafe_code, reason = "functions of a C library; contract above")]

use crate::calls::Calls;
use libloading::Library;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::io;
use std::path::Path;
use std::sync::Arc;

type Create = unsafe extern "C" fn(*const c_char, usize) -> *mut c_void;
type Free = unsafe extern "C" fn(*mut c_void);
type Get = unsafe extern "C" fn(*mut c_void, *const c_char, usize, *mut usize, *mut u32, *mut c_int) -> *mut c_char;
type Store = unsafe extern "C" fn(*mut c_void, *const c_char, usize, *const c_char, usize, i64, u32) -> c_int;
type Delete = unsafe extern "C" fn(*mut c_void, *const c_char, usize, i64) -> c_int;
type Increment = unsafe extern "C" fn(*mut c_void, *const c_char, usize, u32, *mut u64) -> c_int;
type Explain = unsafe extern "C" fn(*mut c_void, c_int) -> *const c_char;
type Version = unsafe extern "C" fn() -> *const c_char;

unsafe extern "C" {
    /// free(3)
    fn free(allocated: *mut c_void);
}

/// memcached_return_t, as far as it is no failure (libmemcached-1.0/types/return.h).
const SUCCESS: c_int = 0;
const NOT_STORED: c_int = 14;
const NOT_FOUND: c_int = 16;

/// A loaded library.
#[derive(Clone, Debug)]
pub struct Libmemcached {
    functions: Arc<Functions>,
}

#[derive(Debug)]
struct Functions {
    create: Create,
    free: Free,
    get: Get,
    set: Store,
    add: Store,
    delete: Delete,
    increment: Increment,
    explain: Explain,
    version: Version,
    /// what they are in
    _library: Library,
}

impl Libmemcached {
    /// Loads the library at `path`, or the system's of that name.
    pub fn load(path: &Path) -> io::Result<Self> {
        // SAFETY: the contract of this module: the file is a libmemcached, whose initializers may run in any program.
        let library = unsafe { Library::new(path) }.map_err(io::Error::other)?;
        // SAFETY: the contract of this module: the symbols have the types of libmemcached's headers.
        let functions = unsafe {
            Functions {
                create: symbol(&library, c"memcached")?,
                free: symbol(&library, c"memcached_free")?,
                get: symbol(&library, c"memcached_get")?,
                set: symbol(&library, c"memcached_set")?,
                add: symbol(&library, c"memcached_add")?,
                delete: symbol(&library, c"memcached_delete")?,
                increment: symbol(&library, c"memcached_increment")?,
                explain: symbol(&library, c"memcached_strerror")?,
                version: symbol(&library, c"memcached_lib_version")?,
                _library: library,
            }
        };
        Ok(Self {
            functions: Arc::new(functions),
        })
    }

    /// What it calls itself.
    pub fn version(&self) -> String {
        // SAFETY: the function takes nothing and gives a constant text.
        text(unsafe { (self.functions.version)() })
    }

    /// A handle for the server at this Unix socket.
    pub fn open(&self, socket: &Path) -> io::Result<Handle> {
        let options = format!("--SOCKET=\"{}\"", socket.display());
        // SAFETY: the text is as long as is said, and copied.
        let handle = unsafe { (self.functions.create)(options.as_ptr().cast(), options.len()) };
        if handle.is_null() {
            return Err(io::Error::other(format!("libmemcached takes no options {options}")));
        }
        Ok(Handle {
            functions: Arc::clone(&self.functions),
            handle,
        })
    }
}

/// # Safety
///
/// The symbol has the type `T`, a function pointer, and is not used longer than the library.
unsafe fn symbol<T: Copy>(library: &Library, name: &CStr) -> io::Result<T> {
    // SAFETY: the caller's contract.
    unsafe { library.get::<T>(name.to_bytes_with_nul()) }
        .map(|symbol| *symbol)
        .map_err(io::Error::other)
}

fn text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: libmemcached's texts are constants that end with 0.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// A thread's `memcached_st`.
#[derive(Debug)]
pub struct Handle {
    functions: Arc<Functions>,
    handle: *mut c_void,
}

// SAFETY: libmemcached ties a handle to no thread; it only must not be used by two at the same time, which `&mut self` forbids.
unsafe impl Send for Handle {}

impl Handle {
    fn failed(&self, code: c_int) -> String {
        // SAFETY: the handle is open.
        let why = unsafe { (self.functions.explain)(self.handle, code) };
        format!("libmemcached: {}", text(why))
    }

    fn found(&self, code: c_int) -> Result<bool, String> {
        match code {
            SUCCESS => Ok(true),
            NOT_FOUND => Ok(false),
            code => Err(self.failed(code)),
        }
    }
}

impl Calls for Handle {
    #[inline]
    fn get(&mut self, key: &[u8], out: &mut Vec<u8>) -> Result<bool, String> {
        let (mut len, mut flags, mut code) = (0, 0, SUCCESS);
        // SAFETY: the handle is open; the key is as long as is said; the rest is for results, of the types of the header.
        let value = unsafe { (self.functions.get)(self.handle, key.as_ptr().cast(), key.len(), &mut len, &mut flags, &mut code) };
        if !value.is_null() {
            // SAFETY: a value that is not null has as many bytes as was said, and is ours to free, once.
            unsafe {
                out.extend_from_slice(std::slice::from_raw_parts(value.cast(), len));
                free(value.cast());
            }
        }
        self.found(code)
    }

    #[inline]
    fn store(&mut self, key: &[u8], value: &[u8], ttl_s: u32, add: bool) -> Result<(), String> {
        let store = if add { self.functions.add } else { self.functions.set };
        let (key_start, value_start) = (key.as_ptr().cast(), value.as_ptr().cast());
        // SAFETY: the handle is open; key and value are as long as is said, and only read.
        match unsafe { store(self.handle, key_start, key.len(), value_start, value.len(), ttl_s.into(), 0) } {
            SUCCESS => Ok(()),
            NOT_STORED if add => Ok(()),
            code => Err(self.failed(code)),
        }
    }

    #[inline]
    fn delete(&mut self, key: &[u8]) -> Result<bool, String> {
        // SAFETY: the handle is open; the key is as long as is said.
        let code = unsafe { (self.functions.delete)(self.handle, key.as_ptr().cast(), key.len(), 0) };
        self.found(code)
    }

    #[inline]
    fn increment(&mut self, key: &[u8]) -> Result<bool, String> {
        let mut value = 0;
        // SAFETY: the handle is open; the key is as long as is said; the last is for the result.
        let code = unsafe { (self.functions.increment)(self.handle, key.as_ptr().cast(), key.len(), 1, &mut value) };
        self.found(code)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: it was created by this library and is not used again.
        unsafe { (self.functions.free)(self.handle) }
    }
}
