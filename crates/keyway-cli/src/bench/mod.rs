//! `keyway bench`: options become a plan (`measuring`), progress goes to the terminal (`screen`), the report to the requested outputs
//! (`outputs`).
//!
//! Never: measures; `keyway-bench` does.

mod measuring;
mod outputs;
mod screen;

use clap::Args;
use keyway_bench::options::Common;
use keyway_bench::report::Report;
use keyway_bench::table::Part;
use keyway_bench::{machine, run, workloads};

use self::measuring::Measuring;
use self::outputs::Outputs;
use self::screen::{Screen, minutes};
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
      one page with plots and all figures; what there is to plot is what was
      varied: several --connections, --rate, --memory
  keyway bench --from today.json --html today.html
      the same page of a stored report, without measuring
  keyway bench --compare yesterday.json
      what changed since then, and exit code 1 if anything got worse
  keyway bench --from today.json --compare yesterday.json --threshold 5
      the same of two stored reports, without measuring
  keyway bench --list
      the workloads

memcached is taken from the PATH, or from KEYWAY_MEMCACHED. Every value that is
read is verified.

Exit codes:
  0   done
  1   a value was wrong, a connection was lost, a server failed, or --compare
      found a figure that got worse
  64  wrong command line, or a file that is no report
  71  a server cannot be started or reached";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Bench {
    #[command(flatten)]
    measuring: Measuring,
    #[command(flatten)]
    common: Common,
    /// Print where the figures of papers are measured
    #[arg(long, num_args = 0.., allow_hyphen_values = true, hide = true)]
    reproduce: Option<Vec<String>>,
    #[command(flatten)]
    outputs: Outputs,
    /// List the workloads
    #[arg(long)]
    list: bool,
}

impl Bench {
    /// Measures and reports; fails if a measurement failed.
    pub(crate) fn run(self) -> Result<(), Failure> {
        if let Some(presets) = &self.reproduce {
            return Err(Failure::usage(format_args!(
                "figures of papers are measured by the lab in Keyway's sources: cargo run --release -p lab -- reproduce {}",
                presets.first().map_or("PRESET", String::as_str)
            )));
        }
        if self.list {
            return commands::say(terminal::wrapped(&workloads(), terminal::columns()).trim_end());
        }
        let outputs = self.outputs.clone();
        let old = outputs.old()?;
        let report = match outputs.stored()? {
            Some(stored) => stored,
            None => self.measure()?,
        };
        outputs.deliver(&report, old.as_ref())
    }

    /// Measures every cell of the plan.
    fn measure(self) -> Result<Report, Failure> {
        let outputs = self.outputs.clone();
        let plan = self.measuring.plan(&self.common)?;
        plan.check(machine::cpus()).map_err(Failure::usage)?;
        outputs.check()?;
        let tables = !outputs.take_stdout();
        let about = plan.duration();
        if tables {
            let (rows, time) = (plan.cells.len(), minutes(about));
            let text = format!("{rows} rows of measurements, about {time} and the time to store items");
            let _ = commands::say(terminal::wrapped(&text, terminal::columns()).trim_end());
        }
        let mut screen = Screen::new(about, tables);
        let outcome = run::run(&plan, &mut |event| screen.show(&event));
        screen.clear();
        let outcome = outcome.map_err(|error| Failure::new(exit::SYSTEM, error))?;
        let report = Report::new(&plan, &outcome, command());
        if tables {
            let head = [Part::Text(format!("\n{}\n", report.head())), report.summary()];
            let text = terminal::parts(&head, terminal::columns());
            let _ = commands::say(text.trim_end_matches('\n'));
            screen.end(&report);
        }
        Ok(report)
    }
}

fn workloads() -> String {
    let all = workloads::all();
    let width = all.iter().map(|workload| workload.name.len()).max().unwrap_or(0);
    all.iter()
        .map(|w| format!("{:<width$}  {}; {}; {}\n", w.name, w.about, w.sizes.name(), w.access.name()))
        .collect()
}

fn command() -> String {
    format!("keyway {}", std::env::args().skip(1).collect::<Vec<_>>().join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use keyway_bench::plan::{Cell, Plan};
    use std::time::Duration;

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
            "--from a --door tcp",
            "--from a --patience 1",
            "--compare a --threshold -1",
            "--threshold 5",
        ] {
            let words = ["bench"].into_iter().chain(line.split_whitespace());
            assert!(Line::try_parse_from(words).is_err(), "{line}");
        }
    }
}
