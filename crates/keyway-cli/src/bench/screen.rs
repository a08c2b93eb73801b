//! What a run shows: complete tables, and below them, on a terminal, a line with the progress.
//!
//! Never: writes a report to a file (`outputs` does).

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use keyway_bench::report::{self, Report};
use keyway_bench::run::Event;

use crate::{commands, terminal};

/// The display of a run.
pub(super) struct Screen {
    begun: Instant,
    /// expected duration of the whole run
    about: Duration,
    tables: bool,
    line: bool,
}

impl Screen {
    pub(super) fn new(about: Duration, tables: bool) -> Self {
        Self {
            begun: Instant::now(),
            about,
            tables,
            line: std::io::stderr().is_terminal(),
        }
    }

    pub(super) fn show(&mut self, event: &Event<'_>) {
        match event {
            Event::Doing { what, done } if self.line => {
                let left = minutes(self.about.mul_f64((1.0 - done).clamp(0.0, 1.0)));
                let line = format!("[{:3.0} %, {left} left] {what}", done * 100.0);
                commands::remark(format_args!("\r\x1b[K{}", terminal::progress(&line)));
            }
            Event::Cell(cell) => self.print(&terminal::parts(&report::cell_parts(cell), terminal::columns())),
            Event::Doing { .. } => {}
        }
    }

    fn print(&self, table: &str) {
        self.clear();
        if self.tables {
            // What cannot be shown is still measured, for the report's files.
            let _ = commands::say(format_args!("\n{}", table.trim_end()));
        }
    }

    /// Shows the end of the report.
    pub(super) fn end(&self, report: &Report) {
        let took = minutes(self.begun.elapsed());
        let tail = terminal::wrapped(&report.tail(), terminal::columns());
        let _ = commands::say(format_args!("{tail}\n{took} in all"));
    }

    pub(super) fn clear(&self) {
        if self.line {
            commands::remark("\r\x1b[K");
        }
    }
}

/// A time for people.
pub(super) fn minutes(time: Duration) -> String {
    match time.as_secs() {
        s @ 0..120 => format!("{s} s"),
        s => format!("{} min {} s", s / 60, s % 60),
    }
}
