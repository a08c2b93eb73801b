//! The log: one line a record on standard error, `warning: …` for what needs attention.

use std::io::Write;

struct Logger;

impl log::Log for Logger {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        let label = match record.level() {
            log::Level::Error => "error: ",
            log::Level::Warn => "warning: ",
            _ => "",
        };
        // In one write, so that lines of several threads do not mix. Standard error may be gone, and there is nobody to tell.
        let _ = std::io::stderr().write_all(format!("{label}{}\n", record.args()).as_bytes());
    }

    fn flush(&self) {}
}

/// Starts logging at memcached's `verbosity`.
pub(crate) fn start(verbosity: u8) {
    if log::set_logger(&Logger).is_ok() {
        log::set_max_level(keyway_server::log_level(verbosity));
    }
}
