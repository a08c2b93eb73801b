//! What is known about failures, the cache and the library.

use crate::bytes;
use crate::failure::{self, Failure, boundary};
use crate::types::keyway_result::*;
use crate::types::*;
use keyway_cache::GateState;
use std::ffi::{CStr, c_char, c_int};

/// A message about this thread's last failure: value, limit and remedy. Empty if there was no failure. It is valid until this
/// thread's next failure; calls that succeed, miss or are not stored do not change it.
#[unsafe(no_mangle)]
pub extern "C" fn keyway_message() -> *const c_char {
    failure::last()
}

/// The code of this thread's last failure, KEYWAY_OK if there was none: for keyway_open(), which does not return a code.
#[unsafe(no_mangle)]
pub extern "C" fn keyway_error() -> keyway_result {
    failure::last_code()
}

/// The name of a result, such as "KEYWAY_NOT_FOUND"; "unknown" for any other number.
#[unsafe(no_mangle)]
pub extern "C" fn keyway_result_name(result: c_int) -> *const c_char {
    failure::name(result).as_ptr()
}

/// The version of the library, such as "0.2.0".
#[unsafe(no_mangle)]
pub extern "C" fn keyway_version() -> *const c_char {
    const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(version) => version,
        Err(_) => panic!("a version has no zero byte"),
    };
    VERSION.as_ptr()
}

/// The statistics of the cache, of all processes and doors since the region was created. On entry `*count` is the number of
/// elements of `stats`, on return the number of statistics, or 0 if the call failed. If there are more than `stats` can hold, the result is
/// KEYWAY_ERROR_BUFFER_TOO_SMALL. `stats` may be NULL if `*count` is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keyway_stats(cache: *mut keyway, stats: *mut keyway_stat, count: *mut usize) -> keyway_result {
    let mut number = 0;
    let code = boundary(|| {
        // SAFETY: guaranteed by the caller.
        let (cache, room) = unsafe { (bytes::cache(cache), count.as_ref().copied()) };
        let Some(room) = room else {
            return Err(Failure::argument("the place for the number of statistics is NULL"));
        };
        if stats.is_null() && room > 0 {
            return Err(Failure::argument(format!("stats is NULL, and its room {room}, not 0")));
        }
        let cache = cache?.here()?;
        let info = cache.info();
        let numbers = [
            ("limit_maxbytes", info.limit_bytes),
            ("segment_bytes", info.segment_bytes),
            ("segments", info.segments),
            ("segments_free", info.segments_free),
            ("segments_withdrawn", info.segments_withdrawn),
            ("segments_given_back", info.segments_given_back),
            ("index_bytes", info.index_bytes),
            ("sessions", info.sessions),
            ("sessions_max", info.sessions_max),
            ("gate", u64::from(info.gate == GateState::On)),
        ];
        let all: Vec<(&str, u64)> = cache.counters().named().chain(numbers).collect();
        number = all.len();
        for (index, (name, value)) in all.iter().take(room).enumerate() {
            // SAFETY: the caller guarantees that there is space for this many.
            unsafe { stats.add(index).write(stat(name, *value)) };
        }
        if all.len() > room {
            let message = format!("there are {} statistics, and room for {room}; give more room", all.len());
            return Err(Failure::new(KEYWAY_ERROR_BUFFER_TOO_SMALL, message));
        }
        Ok(KEYWAY_OK)
    });
    // SAFETY: guaranteed by the caller.
    unsafe { bytes::answer(count, number) };
    code
}

/// A name too long for its field is cut.
fn stat(name: &str, value: u64) -> keyway_stat {
    let mut field = [0; KEYWAY_STAT_NAME_SIZE];
    for (to, from) in field.iter_mut().take(KEYWAY_STAT_NAME_SIZE - 1).zip(name.bytes()) {
        *to = from.cast_signed() as c_char;
    }
    keyway_stat { name: field, value }
}
