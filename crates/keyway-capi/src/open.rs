//! Opening and closing a cache.

use crate::bytes;
use crate::failure::{Failure, boundary};
use crate::types::keyway_result::*;
use crate::types::*;
use keyway_cache::server::Uncancelled;
use keyway_cache::{Cache, Gate, OpenError, Options, Owners, Place};
use std::ffi::{OsStr, c_char};
use std::os::unix::ffi::OsStrExt;

/// The size that `keyway_options` had first.
const OPTIONS_SIZE_MIN: usize = 32;
const _: () = assert!(size_of::<keyway_options>() == OPTIONS_SIZE_MIN);

/// Opens the cache whose region is the file `place`: attaches to it, or makes it if options.memory says how large. If `place` is a Unix
/// socket, its server hands out its region (keyway serve --region-socket); "memfd" is anonymous memory of this process.
/// `options` may be NULL. Returns NULL on failure: keyway_error() and keyway_message() say why.
///
/// Opening takes about 0.1 ms, and each open cache takes one of the region's process slots: open once in a process, not once
/// in a thread or a request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keyway_open(place: *const c_char, options: *const keyway_options) -> *mut keyway {
    let mut opened = std::ptr::null_mut();
    boundary(|| {
        let _uncancelled = Uncancelled::new();
        // SAFETY: guaranteed by the caller.
        let (place, asked) = unsafe { (bytes::text(place, "the place")?, read_options(options)?) };
        if place.is_empty() {
            return Err(Failure::argument(
                "the place is empty: give the path of a region or of a server's region socket, or \"memfd\"",
            ));
        }
        let place = match place.as_slice() {
            b"memfd" => Place::Memfd,
            path => Place::at(OsStr::from_bytes(path)),
        };
        let cache = open(&place, &asked)?;
        opened = Box::into_raw(Box::new(keyway { cache }));
        Ok(KEYWAY_OK)
    });
    opened
}

/// Closes a cache. No thread may use it now or later. The region remains, with its items. Its memory is unmapped when the
/// threads that used it have ended, close it, or open another cache. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keyway_close(cache: *mut keyway) {
    boundary(|| {
        let _uncancelled = Uncancelled::new();
        if !cache.is_null() {
            // SAFETY: made by `Box::into_raw` in `keyway_open`; the caller guarantees that it was not closed before.
            let handle = unsafe { Box::from_raw(cache) };
            handle.cache.leave();
            handle.cache.close();
        }
        Ok(KEYWAY_OK)
    });
}

fn open(place: &Place, asked: &keyway_options) -> Result<Cache, OpenError> {
    let default = Options::default();
    let mut options = default
        .clone()
        .huge_pages(asked.flags & KEYWAY_HUGE_PAGES != 0)
        .prefault(asked.flags & KEYWAY_PREFAULT != 0)
        .evict((asked.flags & KEYWAY_NO_EVICT != 0).then_some(false))
        .checksums(asked.flags & KEYWAY_CHECKSUMS != 0)
        .memory((asked.memory != 0).then_some(asked.memory))
        .owners(match asked.flags & KEYWAY_ANY_OWNER {
            0 => Owners::AsNamed,
            _ => Owners::Any,
        })
        .gate(match asked.flags & KEYWAY_NO_GATE {
            0 => Gate::WherePossible,
            _ => Gate::Off,
        });
    if asked.item_size_max != 0 {
        options.item_size_max = Some(usize::try_from(asked.item_size_max).unwrap_or(usize::MAX));
    }
    if asked.mode != 0 {
        options.mode = asked.mode;
    }
    Cache::open(place, &options)
}

/// The caller's options.
///
/// # Safety
///
/// NULL, or as many bytes as `size` says can be read.
unsafe fn read_options(options: *const keyway_options) -> Result<keyway_options, Failure> {
    // SAFETY: guaranteed by the caller.
    let known = unsafe { bytes::options(options, OPTIONS_SIZE_MIN, "keyway_options")? };
    let all = KEYWAY_HUGE_PAGES | KEYWAY_PREFAULT | KEYWAY_NO_EVICT | KEYWAY_CHECKSUMS | KEYWAY_NO_GATE | KEYWAY_ANY_OWNER;
    if known.flags & !all != 0 {
        return Err(Failure::argument(format!(
            "options.flags is {:#x}: this version knows {all:#x}",
            known.flags
        )));
    }
    Ok(known)
}
