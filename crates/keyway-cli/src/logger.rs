//! The log: one line per record on standard error. As text, `2026-11-22T18:27:39.123Z warning: …`: time (UTC), level, message. As JSON, an
//! object `{"time":…,"level":…,"target":…,"message":…}`; the target is the part of the program that wrote it.
//!
//! Neither has a raw control character in its message, so no client can make a line of its own or change a terminal.

use std::fmt::Write as _;
use std::io::Write;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How a line looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Format {
    #[default]
    Text,
    Json,
}

/// A value of `--log-format`.
pub(crate) fn parse(text: &str) -> Result<Format, String> {
    match text {
        "text" => Ok(Format::Text),
        "json" => Ok(Format::Json),
        _ => Err("it must be text or json".to_owned()),
    }
}

struct Logger(Format);

static LOGGER: OnceLock<Logger> = OnceLock::new();

impl log::Log for Logger {
    /// Of other packages only what is wrong: what they do in detail is no event of the server.
    fn enabled(&self, about: &log::Metadata<'_>) -> bool {
        about.target().starts_with("keyway") || about.level() <= log::Level::Warn
    }

    fn log(&self, record: &log::Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let message = record.args().to_string();
        // In one write, so that lines of several threads do not mix. If standard error is closed, the error cannot be reported.
        let line = line(self.0, since_epoch, record.level(), record.target(), &message);
        let _ = std::io::stderr().write_all(line.as_bytes());
    }

    fn flush(&self) {}
}

fn line(format: Format, since_epoch: Duration, level: log::Level, target: &str, message: &str) -> String {
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
    let time = format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z");
    let message = printable(message);
    match format {
        Format::Text => format!("{time} {level}: {message}\n"),
        Format::Json => {
            let object = serde_json::json!({ "time": time, "level": level, "target": target, "message": message });
            format!("{object}\n")
        }
    }
}

/// The text with each control character, and each that ends a line or turns the direction of writing, as an escape.
pub(crate) fn printable(text: &str) -> String {
    let is_hidden = |c: char| c.is_control() || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if is_hidden(c) {
            // Writing to a string does not fail.
            let _ = write!(shown, "{}", c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown
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
pub(crate) fn start(verbosity: u8, format: Format) {
    if log::set_logger(LOGGER.get_or_init(|| Logger(format))).is_ok() {
        log::set_max_level(keyway_server::log_level(verbosity));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn details_of_other_packages_are_left_out() {
        let takes = |target, level| {
            let about = log::Metadata::builder().target(target).level(level).build();
            log::Log::enabled(&Logger(Format::Text), &about)
        };
        assert!(takes("keyway_server::worker", log::Level::Trace) && takes("mio::poll", log::Level::Warn));
        assert!(!takes("mio::poll", log::Level::Trace) && !takes("mio::poll", log::Level::Info));
    }

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
            let line = line(Format::Text, since_epoch, log::Level::Warn, "t", "x");
            assert_eq!(line, format!("{time}.007Z warning: x\n"));
        }
    }

    #[test]
    fn a_line_of_json_is_one_object() {
        let line = line(
            Format::Json,
            Duration::ZERO,
            log::Level::Error,
            "keyway_server::tls",
            "\"a\" \\ b\nc\u{7f}",
        );
        assert!(line.ends_with("}\n") && line.matches('\n').count() == 1, "{line}");
        let object: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(object["time"], "1970-01-01T00:00:00.000Z");
        assert_eq!(
            (&object["level"], &object["target"]),
            (&"error".into(), &"keyway_server::tls".into())
        );
        assert_eq!(object["message"], "\"a\" \\ b\\nc\\u{7f}");
    }

    #[test]
    fn no_line_has_a_raw_control_character() {
        let nasty: String = (0..0x2100).filter_map(char::from_u32).collect();
        for format in [Format::Text, Format::Json] {
            let line = line(format, Duration::ZERO, log::Level::Warn, "t", &nasty);
            let inside = line.strip_suffix('\n').unwrap();
            assert!(
                !inside
                    .chars()
                    .any(|c| c.is_control() || ('\u{2028}'..='\u{202e}').contains(&c))
            );
            assert!(inside.contains("\u{e9}"), "letters of other languages stay");
        }
    }
}
