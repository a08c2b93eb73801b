//! The real libmemcached, if one is installed. It gets the handles whose servers are not this host's Keyway.
//!
//! It is searched when the first such handle appears. `KEYWAY_LIBMEMCACHED_REAL` names its file; without it, the
//! directories that the loader searches are tried. It is bound to its own symbols (`RTLD_DEEPBIND`), so that it does not
//! call this library by the same names.
//!
//! # Safety
//!
//! dlopen(3) runs the library's constructors, as loading it in the usual way would have done. Addresses of functions are
//! only stored.
#![allow(unsafe_code, reason = "dlopen(3); contract above")]

use std::ffi::{CString, OsStr, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::ptr::{NonNull, null_mut, without_provenance_mut};
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::{Acquire, Release};

/// The library's name for the loader.
const NAME: &str = "libmemcached.so.11";
/// A symbol that only this library exports.
const OURS: &std::ffi::CStr = c"keyway_libmemcached";
/// Where distributions put 64-bit libraries.
const DIRECTORIES: &[&str] = &[
    "/usr/local/lib",
    "/usr/lib/x86_64-linux-gnu",
    "/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/lib64",
    "/usr/lib",
    "/lib",
];

/// A function of the real library, looked up at its first use.
pub(crate) struct Symbol {
    name: &'static str,
    found: Found,
}

/// What the loader has answered. Threads that ask at the same time get the same answer: none waits for another one, which a forked
/// child may not have.
struct Found(
    /// NULL before the first answer, [`NOTHING`], or an address. PAIRS: the store and the load in [`Found::or`]: the loader has
    /// loaded what is there.
    AtomicPtr<c_void>,
);

/// No code is at this address.
const NOTHING: *mut c_void = without_provenance_mut(1);

impl Found {
    const fn new() -> Self {
        Self(AtomicPtr::new(null_mut()))
    }

    fn or(&self, ask: impl FnOnce() -> Option<NonNull<c_void>>) -> Option<NonNull<c_void>> {
        let known = self.0.load(Acquire);
        if known.is_null() {
            let answer = ask();
            self.0.store(answer.map_or(NOTHING, NonNull::as_ptr), Release);
            return answer;
        }
        NonNull::new(known).filter(|_| known != NOTHING)
    }
}

impl Symbol {
    /// `name` ends with a zero byte.
    pub(crate) const fn new(name: &'static str) -> Self {
        Self {
            name,
            found: Found::new(),
        }
    }

    pub(crate) fn get(&self) -> Option<NonNull<c_void>> {
        // SAFETY: an open library, and a C string.
        self.found
            .or(|| NonNull::new(unsafe { libc::dlsym(library()?.as_ptr(), self.name.as_ptr().cast()) }))
    }
}

/// Whether the real library is installed.
pub(crate) fn is_there() -> bool {
    library().is_some()
}

/// The handle of the real library, which is never closed.
fn library() -> Option<NonNull<c_void>> {
    static LIBRARY: Found = Found::new();
    LIBRARY.or(|| candidates().iter().find_map(|path| open(path)))
}

fn candidates() -> Vec<PathBuf> {
    if let Some(named) = std::env::var_os("KEYWAY_LIBMEMCACHED_REAL") {
        return vec![named.into()];
    }
    let listed = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let listed = std::env::split_paths(&listed).filter(|path| path.is_absolute());
    let usual = DIRECTORIES.iter().map(PathBuf::from);
    listed.chain(usual).map(|directory| directory.join(NAME)).collect()
}

fn open(path: &Path) -> Option<NonNull<c_void>> {
    let file = std::fs::metadata(path).ok()?;
    let own = own_file();
    if own == Some((file.dev(), file.ino())) {
        return None;
    }
    let name = CString::new(path.as_os_str().as_bytes()).ok()?;
    // SAFETY: a C string; constructors as above.
    let library = NonNull::new(unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_DEEPBIND) })?;
    // SAFETY: an open library, and C strings.
    let (ours, theirs) = unsafe {
        (
            libc::dlsym(library.as_ptr(), OURS.as_ptr()),
            libc::dlsym(library.as_ptr(), c"memcached_create".as_ptr()),
        )
    };
    (ours.is_null() && !theirs.is_null()).then_some(library)
}

/// Device and inode of the file that this code was loaded from.
fn own_file() -> Option<(u64, u64)> {
    // SAFETY: all zeros are a valid `Dl_info`.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: any address may be passed.
    let known = unsafe { libc::dladdr(own_file as *const c_void, &raw mut info) };
    if known == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's own string.
    let name = unsafe { std::ffi::CStr::from_ptr(info.dli_fname.cast::<c_char>()) };
    let file = std::fs::metadata(OsStr::from_bytes(name.to_bytes())).ok()?;
    Some((file.dev(), file.ino()))
}
