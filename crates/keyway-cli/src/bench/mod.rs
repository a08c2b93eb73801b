//! `keyway bench`: options become a plan (`measuring`), progress and tables go to the terminal, the report to the requested files.
//!
//! Never: measures; `keyway-bench` does.

mod measuring;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use keyway_bench::options::Common;
use keyway_bench::page::page;
use keyway_bench::report::{self, Report};
use keyway_bench::run::{self, Event};
use keyway_bench::table::Part;
use keyway_bench::{machine, workloads};

use self::measuring::Measuring;
use crate::exit::{self, Failure};
use crate::{commands, terminal};

const EXAMPLES: &str = "\
Without workloads and doors, a first picture is taken: gets and sets of 128 B
through the library, a Unix socket, TCP and UDP. A measurement takes 2 seconds
and is repeated 5 times, with --quick 0.5 seconds and 3 times, unless other
numbers are given. A server has as many threads as it has CPUs, at most 4. One
that is silent for 10 seconds while it owes answers counts as dead.

Examples:
  keyway bench --quick
      a first picture, beside memcached if it is installed, in under a minute
  keyway bench --workload ycsb-b --door tcp --connections 1,16,64 --seconds 5
  keyway bench --door tcp --connections 16 --rate 20000,40000,60000
      latency at given rates, measured from the moment at which each request was
      due
  keyway bench --workload etc --fill --items 2000000 --door unix --pipeline 16 \\
      --memory 64m,128m,256m --warmup 10
      hit ratio against memory
  keyway bench --server 10.0.0.5:11211 --against 10.0.0.6:11211 --door tcp
      two servers that run already; their items are evicted by the benchmark's
  keyway bench --json today.json --html today.html \\
      --server-cpus 0 --client-cpus 1
      all figures for programs, and as one page for a browser
  keyway bench --list
      the workloads

memcached is taken from the PATH, or from KEYWAY_MEMCACHED. Every value that is
read is verified.

Exit codes:
  0   done
  1   a value was wrong, a connection was lost, or a server failed
  64  wrong command line
  71  a server cannot be started or reached";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Bench {
    #[command(flatten)]
    measuring: Measuring,
    #[command(flatten)]
    common: Common,
    /// Write the report as JSON; - for standard output, instead of the tables
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the report as one page, for a browser; it needs nothing besides itself
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// List the workloads
    #[arg(long)]
    list: bool,
}

impl Bench {
    /// Measures and reports; fails if a measurement failed.
    pub(crate) fn run(self) -> Result<(), Failure> {
        let columns = terminal::columns();
        if self.list {
            return commands::say(terminal::wrapped(&workloads(), columns).trim_end());
        }
        let (plan, begun) = (self.measuring.plan(&self.common)?, Instant::now());
        plan.check(machine::cpus()).map_err(Failure::usage)?;
        let json = self.json.as_deref();
        let json_file = json.filter(|path| path.as_os_str() != "-");
        // Before anything is measured.
        for path in json_file.into_iter().chain(self.html.as_deref()) {
            let opened = std::fs::OpenOptions::new().append(true).create(true).open(path);
            opened.map_err(|error| cannot_write(path, &error))?;
        }
        let (has_tables, has_progress) = (json.is_none() || json_file.is_some(), std::io::stderr().is_terminal());
        let clear = || {
            if has_progress {
                commands::remark("\r\x1b[K");
            }
        };
        // What cannot be shown is still measured, for the report's files.
        let say = |text: &str| {
            clear();
            if has_tables {
                let _ = commands::say(text.trim_end_matches('\n'));
            }
        };
        let about = plan.duration();
        let (rows, time) = (plan.cells.len(), minutes(about));
        let text = format!("{rows} rows of measurements, about {time} and the time to store items");
        say(&terminal::wrapped(&text, columns));
        let outcome = run::run(&plan, &mut |event| match event {
            Event::Doing { what, done } if has_progress => {
                let left = minutes(about.mul_f64((1.0 - done).clamp(0.0, 1.0)));
                let line = format!("[{:3.0} %, {left} left] {what}", done * 100.0);
                commands::remark(format_args!("\r\x1b[K{}", terminal::progress(&line)));
            }
            Event::Doing { .. } => {}
            Event::Cell(cell) => say(&format!("\n{}", terminal::parts(&report::cell_parts(cell), columns))),
        });
        clear();
        let outcome = outcome.map_err(|error| Failure::new(exit::SYSTEM, error))?;
        let command = format!("keyway {}", std::env::args().skip(1).collect::<Vec<_>>().join(" "));
        let report = Report::new(&outcome, report::conditions(&plan), command);
        let parts = [
            Part::Text(format!("\n{}\n", report.head())),
            report.summary(),
            Part::Text(format!("{}\n{} in all", report.tail(), minutes(begun.elapsed()))),
        ];
        say(&terminal::parts(&parts, columns));
        match (json, json_file) {
            (Some(_), None) => commands::say(format_args!("{:#}", report.json()))?,
            (_, Some(path)) => write(path, &format!("{:#}", report.json()))?,
            (None, None) => {}
        }
        self.html.as_deref().map_or(Ok(()), |path| write(path, &page(&report)))?;
        match outcome.failures.first() {
            Some(failure) => Err(Failure::new(exit::NO, failure)),
            None => Ok(()),
        }
    }
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text).map_err(|error| cannot_write(path, &error))
}

fn cannot_write(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(exit::SYSTEM, format_args!("cannot write {}: {error}", path.display()))
}

/// A time for people.
fn minutes(time: Duration) -> String {
    match time.as_secs() {
        s @ 0..120 => format!("{s} s"),
        s => format!("{} min {} s", s / 60, s % 60),
    }
}

fn workloads() -> String {
    let all = workloads::all();
    let width = all.iter().map(|workload| workload.name.len()).max().unwrap_or(0);
    all.iter()
        .map(|w| format!("{:<width$}  {}; {}; {}\n", w.name, w.about, w.sizes.name(), w.access.name()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use keyway_bench::plan::{Cell, Plan};

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        bench: Bench,
    }

    fn plan(line: &str) -> Plan {
        let words = ["bench"].into_iter().chain(line.split_whitespace());
        let Bench { measuring, common, .. } = Line::try_parse_from(words).unwrap_or_else(|e| panic!("{line}: {e}")).bench;
        measuring.plan(&common).unwrap()
    }

    #[test]
    fn every_combination_is_measured_and_each_makes_sense() {
        let plan = plan("--workload ycsb-a,etc --door tcp,unix --connections 1,8 --pipeline 1,16 --memory 64,128");
        assert_eq!(plan.cells.len(), 32);
        assert_eq!(plan.check(2), Ok(()));
        let names: std::collections::HashSet<_> = plan.cells.iter().map(Cell::name).collect();
        assert_eq!(names.len(), 32);
        assert_eq!(plan.cells.chunk_by(Cell::shares_caches).count(), 4);
    }

    #[test]
    fn the_first_picture_is_quick() {
        for line in [
            "--quick",
            "--quick --against none",
            "--quick --server 127.0.0.1:1",
            "--quick --against /s",
        ] {
            let plan = plan(line);
            assert_eq!(plan.check(8), Ok(()), "{line}");
            assert!(!plan.cells.is_empty() && plan.duration() < Duration::from_secs(40), "{line}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for line in [
            "--door x",
            "--workload x",
            "--connections 0",
            "--seconds -1",
            "--against nowhere:x",
            "--popularity x",
        ] {
            let words = ["bench"].into_iter().chain(line.split_whitespace());
            assert!(Line::try_parse_from(words).is_err(), "{line}");
        }
    }
}
