//! `cargo run --release -p lab -- COMMAND`: a command line becomes presets or a plan of the kernel door; progress goes to the terminal, the
//! tables to the standard output.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line tool talks to its terminal"
)]

use clap::{Args, Parser, Subcommand};
use keyway_bench::caches::Caches;
use keyway_bench::machine;
use keyway_bench::mix::{Kind, Workload};
use keyway_bench::options::{Common, parse_count, parse_seconds};
use keyway_bench::plan::{Against, Cell, Door};
use keyway_bench::report::{self, Report};
use keyway_bench::run::{self, Outcome};
use keyway_bench::servers::keyway_path;
use keyway_bench::table::Part;
use keyway_bench::workloads;
use lab::datagrams::DEPTH_MAX;
use lab::kernel::{self, ALL_WAYS, How, Job};
use lab::namespaces::Clients;
use lab::papers::kernel_door;
use lab::presets::{self, Event, PRESETS, Preset, Reproduced, Scale, Setup};
use lab::{applications, idle, tls};
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Exit codes, as `keyway` has them: something was wrong; a command line that makes no sense; the system refuses.
const NO: u8 = 1;
const USAGE: u8 = 64;
const SYSTEM: u8 = 71;

const EXAMPLES: &str = "\
Examples:
  cargo run --release -p lab -- reproduce hodor-fig5 --json fig5.json
                                  a paper's figure, measured here; its numbers and ours side by side
  sudo target/release/lab kernel --value-size 20,128,1024 --connections 1,32 --multiget 1,10
                                  the kernel door and UDP in user space beside memcached's UDP, over veth
  sudo target/release/lab kernel --connections 1 --pipeline 32
                                  the same with 32 gets on the way on one socket
  target/release/lab idle --connections 10000
                                  memory of the server for each idle connection
  target/release/lab applications
                                  pages a second of web applications with memcached and with Keyway
  KEYWAY_MEMCACHED=... target/release/lab tls
                                  TLS beside a memcached that was built with --enable-tls

The program `keyway` that is measured lies beside this one, or is named in KEYWAY_BIN (cargo build --release -p keyway-cli). memcached is
taken from the PATH, or from KEYWAY_MEMCACHED.
Exit codes: 0 done; 1 a value was wrong, a connection was lost, or a server failed; 64 wrong command line; 71 a
server cannot be started or reached.";

#[derive(Parser)]
#[command(name = "lab", about = "Reproduces what papers measured, and measures what only experiments need", after_help = EXAMPLES)]
struct Line {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// The presets of `reproduce`
    List,
    /// Measures again what papers measured, and puts their figures beside what comes out
    Reproduce(Box<Reproduce>),
    /// The kernel door and user space, over UDP or TCP, each beside memcached, between network namespaces; as root
    Kernel(Box<Kernel>),
    /// Memory of a server for each connection that asks once and then says nothing
    Idle(Box<Idle>),
    /// Pages a second of a PHP page and a Django page, with memcached and with Keyway
    Applications(Applications),
    /// TLS beside that of a memcached which was built with it: gets, and handshakes
    Tls(Tls),
}

#[derive(Args)]
struct Reproduce {
    /// Presets, separated by commas; `lab list` has them
    #[arg(value_name = "PRESET,...", value_delimiter = ',', value_parser = presets::find, required = true)]
    presets: Vec<&'static Preset>,
    /// Items: small, enough for minutes, or full, as many as the paper had
    #[arg(long, default_value = "small", value_parser = Scale::parse)]
    scale: Scale,
    #[command(flatten)]
    beside: Beside,
    /// Write the report as JSON; - for standard output, instead of the tables
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Args)]
struct Kernel {
    /// Ways to Keyway: kernel, user (UDP in user space), kernel-tcp, tcp
    #[arg(long, value_name = "WAY,...", value_delimiter = ',', default_value = "kernel,user", value_parser = ["kernel", "user", "kernel-tcp", "tcp"])]
    way: Vec<String>,
    /// Workloads of `keyway bench`, separated by commas
    #[arg(long, short = 'w', value_delimiter = ',', default_value = "20b", value_parser = workloads::find)]
    workload: Vec<Workload>,
    /// Value sizes instead of the workload's own, bytes
    #[arg(long, value_name = "BYTES,...", value_delimiter = ',')]
    value_size: Vec<usize>,
    /// Sockets
    #[arg(long, short = 'c', value_name = "N,...", value_delimiter = ',', default_value = "1,32", value_parser = parse_count)]
    connections: Vec<usize>,
    /// Gets of one key in flight on each socket, which then has a thread of its own
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1", value_parser = parse_count)]
    pipeline: Vec<usize>,
    /// Keys of one get
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1", value_parser = parse_count)]
    multiget: Vec<usize>,
    #[command(flatten)]
    beside: Beside,
    /// Write the report as JSON; - for standard output, instead of the tables
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Args)]
struct Idle {
    /// How many
    #[arg(long, short = 'c', default_value = "10000", value_parser = parse_count)]
    connections: usize,
    #[command(flatten)]
    beside: Beside,
}

#[derive(Args)]
struct Applications {
    /// Connections that ask for pages
    #[arg(long, short = 'c', default_value = "8", value_parser = parse_count)]
    connections: usize,
    /// Length of one measurement, seconds
    #[arg(long, value_name = "S", value_parser = parse_seconds, default_value = "3")]
    seconds: Duration,
    /// Measurements of each application with each cache
    #[arg(long, value_name = "N", value_parser = parse_count, default_value = "5")]
    repeat: usize,
}

#[derive(Args)]
struct Tls {
    /// Connections with one get in flight
    #[arg(long, short = 'c', value_name = "N,...", value_delimiter = ',', default_value = "1,16,64", value_parser = parse_count)]
    connections: Vec<usize>,
    /// Size of a value
    #[arg(long, value_name = "BYTES", default_value = "128", value_parser = parse_count)]
    value_size: usize,
    #[command(flatten)]
    common: Common,
}

/// What is left open is the experiment's to choose.
#[derive(Args)]
struct Beside {
    /// Items stored before measuring
    #[arg(long)]
    items: Option<u64>,
    /// What to compare with
    #[arg(long, default_value = "memcached", value_parser = ["memcached", "none"])]
    against: String,
    #[command(flatten)]
    common: Common,
}

/// Why it ends, and the exit code.
struct Failure(u8, String);

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self(SYSTEM, error.to_string())
    }
}

/// A command line that makes no sense.
fn usage(why: String) -> Failure {
    Failure(USAGE, why)
}

fn main() -> ExitCode {
    let line = Line::try_parse().unwrap_or_else(|error| {
        let _ = error.print();
        std::process::exit(if error.use_stderr() { USAGE.into() } else { 0 });
    });
    match line.command.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure(code, why)) => {
            eprintln!("lab: {why}");
            ExitCode::from(code)
        }
    }
}

impl Command {
    fn run(self) -> Result<(), Failure> {
        match self {
            Self::List => {
                let width = PRESETS.iter().map(|(name, ..)| name.len()).max().unwrap_or(0);
                PRESETS
                    .iter()
                    .for_each(|(name, about, _)| println!("{name:<width$}  {about}"));
                Ok(())
            }
            Self::Reproduce(asked) => {
                let (setup, screen) = (asked.beside.setup(asked.scale)?, Screen::new(asked.json));
                let reproduced = presets::run(&asked.presets, &setup, &mut |event| screen.show(&event));
                screen.deliver(reproduced?)
            }
            Self::Kernel(kernel) => kernel.run(),
            Self::Idle(idle) => idle.run(),
            Self::Applications(asked) => {
                // Packages are kept beside the program, so that they are fetched once.
                let program = std::env::current_exe()?;
                let folder = program.parent().unwrap_or(Path::new("."));
                let rows = applications::measure(folder, asked.connections, asked.seconds, asked.repeat);
                print!("{}", rows.map_err(|why| Failure(SYSTEM, why))?);
                Ok(())
            }
            Self::Tls(asked) => {
                let workload = workloads::find("get-128b").map_err(usage)?.with_values(asked.value_size);
                let cells = asked
                    .connections
                    .iter()
                    .map(|&count| Cell::new(workload.clone(), 1000, Door::Tcp, count))
                    .collect();
                let plan = asked.common.plan(keyway_path()?, cells, (Duration::from_millis(500), 7, 1));
                plan.check(machine::cpus_online()).map_err(usage)?;
                print!("{}", tls::measure(&plan)?);
                Ok(())
            }
        }
    }
}

impl Kernel {
    fn run(self) -> Result<(), Failure> {
        let (jobs, setup) = (self.jobs()?, self.beside.setup(Scale::Small)?);
        let any = Cell::new(kernel_door::mixed(20, 20, 100)?, 1, Door::Split, 1);
        let mut plan = setup.plan(vec![any], Duration::from_secs(2), 5, 1);
        kernel_door::place(&mut plan)?;
        let pipelined = jobs.iter().filter(|job| job.cell.depth > 1);
        plan.client_threads = pipelined.map(|job| job.cell.connections).max().unwrap_or(1);
        plan.check(machine::cpus_online()).map_err(usage)?;
        let screen = Screen::new(self.json);
        let mut outcome = Outcome::begin();
        let clients = Clients::enter()?;
        kernel::measure(&clients, &plan, &jobs, &mut outcome, &mut |event| match event {
            run::Event::Doing { what, done } => screen.show(&Event::Doing { what, done }),
            run::Event::Cell(cell) => screen.print(&Part::texts(&report::cell_parts(cell))),
        })?;
        screen.deliver(Reproduced {
            outcome,
            conditions: vec![report::conditions(&plan)],
            tables: Vec::new(),
        })
    }

    /// Every combination of what was asked for.
    fn jobs(&self) -> Result<Vec<Job>, Failure> {
        let mut jobs = Vec::new();
        let sizes = |workload: &Workload| match self.value_size.as_slice() {
            [] => vec![workload.clone()],
            sizes => sizes.iter().map(|size| workload.with_values(*size)).collect(),
        };
        for workload in self.workload.iter().flat_map(sizes) {
            let gets_only = workload.mix.iter().all(|(kind, _)| *kind == Kind::Get);
            let pipelines = gets_only && self.multiget == [1] && self.pipeline.iter().all(|&depth| depth <= DEPTH_MAX);
            if self.pipeline.iter().any(|&depth| depth > 1) && !pipelines {
                let why = format!(
                    "{}: up to {DEPTH_MAX} gets of one key are pipelined, and nothing else",
                    workload.name
                );
                return Err(usage(why));
            }
            let asked = |named: &str| self.way.iter().any(|way| way == named);
            for (_, way) in ALL_WAYS.into_iter().filter(|(named, _)| asked(named)) {
                for &connections in &self.connections {
                    for &depth in &self.pipeline {
                        jobs.extend(self.multiget.iter().map(|&keys_per_get| {
                            let items = self.beside.items.unwrap_or(10_000);
                            let cell = Cell::new(workload.clone(), items, Door::Split, connections);
                            Job::new(
                                way,
                                Cell {
                                    depth,
                                    keys_per_get,
                                    ..cell
                                },
                                How::AsSaid,
                            )
                        }));
                    }
                }
            }
        }
        Ok(jobs)
    }
}

impl Idle {
    fn run(self) -> Result<(), Failure> {
        let setup = self.beside.setup(Scale::Small)?;
        let workload = workloads::find("get-128b").map_err(usage)?;
        // As many connections as are measured, so that the servers allow them.
        let cell = Cell::new(workload, setup.items.unwrap_or(1000), Door::Tcp, self.connections);
        let plan = setup.plan(vec![cell.clone()], Duration::from_secs(1), 1, 2);
        let caches = Caches::start(&plan, &plan.cells)?;
        for side in caches.sides(&cell) {
            side.prepare(&cell, &cell.workload.items(cell.items))?;
            let bytes = idle::bytes_per_connection(side, self.connections)?;
            let bytes = bytes.map_or("unknown".to_owned(), |bytes| format!("{bytes:.0} B"));
            println!(
                "{}: {bytes} for each of {} idle connections ({})",
                side.name, self.connections, side.about
            );
        }
        caches.notes.iter().for_each(|note| println!("NOTE: {note}"));
        Ok(())
    }
}

impl Beside {
    fn setup(&self, scale: Scale) -> Result<Setup, Failure> {
        let cpus = machine::cpus_online();
        let common = self.common.clone();
        if let Some(cpu) = common.server_cpus.iter().chain(&common.client_cpus).find(|&&cpu| cpu >= cpus) {
            return Err(usage(format!(
                "there is no CPU {cpu}: this machine has {cpus}, numbered from 0"
            )));
        }
        let against = if self.against == "memcached" {
            Against::Memcached
        } else {
            Against::Nothing
        };
        Ok(Setup {
            program: keyway_path()?,
            scale,
            items: self.items,
            against,
            common,
        })
    }
}

/// What is seen of a run: tables as they are complete, and below them, on a terminal, a line that says what happens.
struct Screen {
    json: Option<PathBuf>,
    tables: bool,
}

impl Screen {
    fn new(json: Option<PathBuf>) -> Self {
        let tables = json.as_ref().is_none_or(|path| path.as_os_str() != "-");
        Self { json, tables }
    }

    fn show(&self, event: &Event<'_>) {
        match event {
            Event::Doing { what, done } if io::stderr().is_terminal() => {
                eprint!("\r\x1b[K[{:3.0} %] {what}", done * 100.0);
                let _ = io::stderr().flush();
            }
            Event::Paper(table) => self.print(&table.text()),
            Event::Doing { .. } => {}
        }
    }

    fn print(&self, table: &str) {
        if io::stderr().is_terminal() {
            eprint!("\r\x1b[K");
        }
        if self.tables {
            println!("\n{}", table.trim_end());
        }
    }

    /// Shows the rest, and writes what is asked for; a measurement that went wrong is an error.
    fn deliver(&self, reproduced: Reproduced) -> Result<(), Failure> {
        let command = format!("lab {}", std::env::args().skip(1).collect::<Vec<_>>().join(" "));
        let report = Report::new(&reproduced.outcome, reproduced.conditions.join("\n"), command);
        self.print(&format!("{}{}", report.head(), report.tail()));
        if let Some(path) = &self.json {
            let mut json = report.json();
            json["papers"] = serde_json::to_value(&reproduced.tables).map_err(io::Error::other)?;
            if self.tables {
                let written = std::fs::write(path, format!("{json:#}"));
                written.map_err(|error| Failure(SYSTEM, format!("cannot write {}: {error}", path.display())))?;
            } else {
                println!("{json:#}");
            }
        }
        match reproduced.outcome.failures.first() {
            Some(failure) => Err(Failure(NO, failure.clone())),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Line::command().debug_assert();
    }
}
