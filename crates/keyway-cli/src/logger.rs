//! The log: one line per record on standard error, `2026-11-22T18:27:39.123Z warning: …`: time (UTC), level, text.

use std::io::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

struct Logger;

impl log::Log for Logger {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // In one write, so that lines of several threads do not mix. If standard error is closed, the error cannot be reported.
        let _ = std::io::stderr().write_all(line(since_epoch, record.level(), &record.args()).as_bytes());
    }

    fn flush(&self) {}
}

fn line(since_epoch: Duration, level: log::Level, text: &dyn std::fmt::Display) -> String {
    let level = match level {
        log::Level::Error => "error",
        log::Level::Warn => "warning",
        log::Level::Info => "info",
        log::Level::Debug => "debug",
        log::Level::Trace => "trace",
    };
    let (seconds, ms) = (since_epoch.as_secs(), since_epoch.subsec_millis());
    let (year, month, day) = date(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z {level}: {text}\n")
}

/// Year, month and day of the Gregorian calendar, this many days after 1970-01-01. Here a year begins in March, so that the day of a
/// leap year is its last one, and 400 years have 146,097 days.
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let months_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * months_from_march + 2) / 5 + 1;
    let month = if months_from_march < 10 {
        months_from_march + 3
    } else {
        months_from_march - 9
    };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

/// Starts logging at memcached's `verbosity`.
pub(crate) fn start(verbosity: u8) {
    if log::set_logger(&Logger).is_ok() {
        log::set_max_level(keyway_server::log_level(verbosity));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_time_and_level() {
        for (seconds, time) in [
            (0, "1970-01-01T00:00:00"),
            (951_782_399, "2000-02-28T23:59:59"),
            (951_782_400, "2000-02-29T00:00:00"),
            (951_868_800, "2000-03-01T00:00:00"),
            (1_709_164_800, "2024-02-29T00:00:00"),
            (1_795_373_259, "2026-11-22T18:47:39"),
            (4_107_542_399, "2100-02-28T23:59:59"),
            (4_107_542_400, "2100-03-01T00:00:00"),
        ] {
            let since_epoch = Duration::new(seconds, 7_000_000);
            assert_eq!(line(since_epoch, log::Level::Warn, &"x"), format!("{time}.007Z warning: x\n"));
        }
    }
}
