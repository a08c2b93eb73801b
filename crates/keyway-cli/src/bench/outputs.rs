//! Outputs of a report: JSON files, a page, a comparison with an older report; a stored report can replace a run.

use std::path::{Path, PathBuf};

use clap::Args;
use keyway_bench::compare::{self, Comparison};
use keyway_bench::html;
use keyway_bench::report::Report;
use keyway_bench::table::Part;

use crate::exit::{self, Failure};
use crate::{commands, terminal};

#[derive(Args, Clone)]
pub(super) struct Outputs {
    /// Write the report as JSON; - for standard output, instead of the tables
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the report as one page with plots, for a browser; it needs nothing besides itself
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Take a report that --json wrote instead of measuring: shows its tables, or makes the page or the comparison that is asked for
    #[arg(long, value_name = "FILE", conflicts_with_all = ["Measuring", "Common"])]
    from: Option<PathBuf>,
    /// Show what changed since a report that --json wrote; the exit code is 1 if anything got worse
    #[arg(long, value_name = "FILE")]
    compare: Option<PathBuf>,
    /// Percent that a figure must get worse by, besides more than the spread of both reports, to count
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent, default_value_t = compare::THRESHOLD_PERCENT, requires = "compare")]
    threshold: f64,
}

impl Outputs {
    /// Whether the report takes standard output for itself.
    pub(super) fn take_stdout(&self) -> bool {
        self.json.as_ref().is_some_and(|path| path.as_os_str() == "-")
    }

    /// The stored report that replaces a run, if there is one.
    pub(super) fn stored(&self) -> Result<Option<Report>, Failure> {
        self.from.as_deref().map(read).transpose()
    }

    /// The report to compare with. It is read before the measurements, so that a wrong file costs no time.
    pub(super) fn old(&self) -> Result<Option<Report>, Failure> {
        self.compare.as_deref().map(read).transpose()
    }

    /// Checks, before the measurements, that the output files can be written.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let json = self.json.as_deref().filter(|_| !self.take_stdout());
        for path in json.into_iter().chain(self.html.as_deref()) {
            let opened = std::fs::OpenOptions::new().append(true).create(true).open(path);
            opened.map_err(|error| cannot_write(path, &error))?;
        }
        Ok(())
    }

    /// Writes and shows all requested outputs, and returns the verdict.
    pub(super) fn deliver(&self, report: &Report, old: Option<&Report>) -> Result<(), Failure> {
        let comparison = old.map(|old| Comparison::new(old, report, self.threshold)).transpose();
        if let Some(path) = &self.json {
            let text = report.to_json().map_err(|error| Failure::new(exit::SYSTEM, error))?;
            if self.take_stdout() {
                commands::say(text)?;
            } else {
                write(path, &text)?;
            }
        }
        if let Some(path) = &self.html {
            let changes = comparison.as_ref().ok().and_then(Option::as_ref);
            write(path, &html::page(report, changes))?;
        }
        let comparison = comparison.map_err(|why| Failure::usage(format_args!("--compare: {why}")))?;
        match &comparison {
            Some(comparison) if self.take_stdout() => commands::remark(Part::texts(&comparison.parts())),
            Some(comparison) => {
                let text = terminal::parts(&comparison.parts(), terminal::columns());
                commands::say(format_args!("\n{}", text.trim_end()))?;
            }
            None if self.from.is_some() && self.json.is_none() && self.html.is_none() => {
                commands::say(terminal::parts(&report.parts(), terminal::columns()).trim_end())?;
            }
            None => {}
        }
        self.judge(report, comparison.as_ref())
    }

    /// A failed run is reported before a comparison that got worse; the failures of a stored one were reported when it ran.
    fn judge(&self, report: &Report, comparison: Option<&Comparison>) -> Result<(), Failure> {
        if let Some(failure) = report
            .failures
            .first()
            .filter(|_| self.from.is_none() || comparison.is_some())
        {
            return Err(Failure::new(exit::NO, failure));
        }
        let worse = comparison.map(Comparison::worse).unwrap_or_default();
        if worse.is_empty() {
            return Ok(());
        }
        let names: Vec<_> = worse.iter().map(|change| format!("\n  {}", change.new.name)).collect();
        Err(Failure::new(
            exit::NO,
            format_args!("worse by more than {} % than it was:{}", self.threshold, names.concat()),
        ))
    }
}

fn read(path: &Path) -> Result<Report, Failure> {
    let text =
        std::fs::read_to_string(path).map_err(|error| Failure::usage(format_args!("cannot read {}: {error}", path.display())))?;
    Report::from_json(&text).map_err(|why| Failure::usage(format_args!("{}: {why}", path.display())))
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text).map_err(|error| cannot_write(path, &error))
}

fn cannot_write(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(exit::SYSTEM, format_args!("cannot write {}: {error}", path.display()))
}

fn parse_percent(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(percent) if (0.0..=1000.0).contains(&percent) => Ok(percent),
        _ => Err("it is a number from 0 to 1000".to_owned()),
    }
}
