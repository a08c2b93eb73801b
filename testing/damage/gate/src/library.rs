//! The preloaded library's functions, found by name.
//!
//! # Safety
//!
//! The signatures are `keyway.h`'s.
#![allow(unsafe_code, reason = "functions of a library found by name; contract above")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};

type Open = unsafe extern "C" fn(*const c_char, *const c_void) -> *mut c_void;
type Set = unsafe extern "C" fn(*mut c_void, *const c_void, usize, *const c_void, usize, i64, u32) -> c_int;
type Message = unsafe extern "C" fn() -> *const c_char;
type Get = unsafe extern "C" fn(*mut c_void, *const c_void, usize, *mut c_void, usize, *mut c_void) -> c_int;

/// What is needed of it.
pub struct Library {
    open: Open,
    set: Set,
    get: Get,
    message: Message,
}

/// An open cache.
#[derive(Clone, Copy)]
pub struct Cache<'l> {
    library: &'l Library,
    handle: *mut c_void,
}

// SAFETY: keyway.h: every thread may use it, also at the same time.
unsafe impl Send for Cache<'_> {}
// SAFETY: as above.
unsafe impl Sync for Cache<'_> {}

fn symbol(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: looks a name up.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

impl Library {
    /// The library, if it has been preloaded.
    pub fn find() -> Option<Self> {
        let [open, set, get, message] = [c"keyway_open", c"keyway_set", c"keyway_get", c"keyway_message"].map(symbol);
        // SAFETY: the functions of these names.
        unsafe {
            Some(Self {
                open: std::mem::transmute::<*mut c_void, Open>(open?),
                set: std::mem::transmute::<*mut c_void, Set>(set?),
                get: std::mem::transmute::<*mut c_void, Get>(get?),
                message: std::mem::transmute::<*mut c_void, Message>(message?),
            })
        }
    }

    /// Where its code is mapped: the executable segment that `keyway_get` is in (`dl_iterate_phdr(3)`; /proc/self/maps is closed here).
    pub fn code(&self) -> Option<std::ops::Range<usize>> {
        struct Search {
            address: usize,
            found: Option<std::ops::Range<usize>>,
        }
        unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _: usize, data: *mut c_void) -> c_int {
            // SAFETY: the loader gives the first, the caller below the second.
            unsafe {
                let (info, search) = (&*info, &mut *data.cast::<Search>());
                let headers = std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum));
                for header in headers
                    .iter()
                    .filter(|header| header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_X != 0)
                {
                    let start = usize::try_from(info.dlpi_addr + header.p_vaddr).unwrap_or(0);
                    let code = start..start + usize::try_from(header.p_memsz).unwrap_or(0);
                    if code.contains(&search.address) {
                        search.found = Some(code);
                    }
                }
            }
            0
        }
        let mut search = Search {
            address: self.get as usize,
            found: None,
        };
        // SAFETY: the function keeps nothing of what it is given.
        unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut search).cast()) };
        search.found
    }

    /// What it says of this thread's last failure.
    pub fn message(&self) -> String {
        // SAFETY: a C string of the thread's own until its next failure.
        unsafe { CStr::from_ptr((self.message)()) }.to_string_lossy().into_owned()
    }

    /// Opens a place.
    pub fn open(&self, place: &str) -> Option<Cache<'_>> {
        let place = CString::new(place).ok()?;
        // SAFETY: a C string, and no options.
        let handle = unsafe { (self.open)(place.as_ptr(), std::ptr::null()) };
        (!handle.is_null()).then_some(Cache { library: self, handle })
    }
}

impl Cache<'_> {
    /// The result's code.
    pub fn set(&self, key: &[u8], value: &[u8]) -> c_int {
        // SAFETY: an open cache; slices.
        unsafe {
            (self.library.set)(
                self.handle,
                key.as_ptr().cast(),
                key.len(),
                value.as_ptr().cast(),
                value.len(),
                0,
                0,
            )
        }
    }

    /// The result's code; the value goes to this address.
    ///
    /// # Safety
    ///
    /// It is one that may be written to, or is to fault.
    pub unsafe fn get_to(&self, key: &[u8], to: *mut c_void, room: usize) -> c_int {
        // SAFETY: an open cache; slices; the caller's word.
        unsafe { (self.library.get)(self.handle, key.as_ptr().cast(), key.len(), to, room, std::ptr::null_mut()) }
    }

    /// Stores a value from this address.
    ///
    /// # Safety
    ///
    /// It is one that may be read, or is to fault.
    pub unsafe fn set_from(&self, key: &[u8], from: *const c_void, len: usize) -> c_int {
        // SAFETY: an open cache; a slice; the caller's word.
        unsafe { (self.library.set)(self.handle, key.as_ptr().cast(), key.len(), from, len, 0, 0) }
    }

    /// Whether the key has this value.
    pub fn has(&self, key: &[u8], value: &[u8]) -> bool {
        let mut room = vec![0u8; value.len()];
        // SAFETY: the room is there.
        let code = unsafe { self.get_to(key, room.as_mut_ptr().cast(), room.len()) };
        code == 0 && room == value
    }
}
