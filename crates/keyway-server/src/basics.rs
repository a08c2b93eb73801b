//! What any room may use: a lock that outlives a panic, the Unix clock, and texts of sizes and levels.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A panic leaves nothing here half done, so a poisoned lock is used like any other.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The Unix clock.
pub(crate) fn unix_time() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// memcached's verbosity as a log level: 0 warnings, 1 the server's actions, 2 connections, 3 requests.
pub fn log_level(verbosity: u8) -> log::LevelFilter {
    match verbosity {
        0 => log::LevelFilter::Warn,
        1 => log::LevelFilter::Info,
        2 => log::LevelFilter::Debug,
        _ => log::LevelFilter::Trace,
    }
}

/// `bytes` for people: in the largest unit that leaves a whole number, or with one decimal.
pub fn size_text(bytes: u64) -> String {
    const UNITS: [(&str, u64); 4] = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match UNITS.iter().find(|(_, size)| bytes >= *size) {
        None => format!("{bytes} B"),
        Some((unit, size)) if bytes.is_multiple_of(*size) => format!("{} {unit}", bytes / size),
        // Tenths, rounded down, without floating point.
        Some((unit, size)) => format!("{}.{} {unit}", bytes / size, bytes % size * 10 / size),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_readable() {
        for (bytes, text) in [
            (64 << 20, "64 MiB"),
            (1 << 30, "1 GiB"),
            (1536 << 20, "1.5 GiB"),
            (67_035_136, "63.9 MiB"),
            (1000, "1000 B"),
            (0, "0 B"),
        ] {
            assert_eq!(size_text(bytes), text);
        }
    }
}
