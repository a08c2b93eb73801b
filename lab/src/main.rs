//! `cargo run --release -p lab -- COMMAND`: a command line becomes presets or a plan of the kernel door; progress goes to the terminal, the
//! report to where it is asked for.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line tool talks to its terminal"
)]

use clap::{Args, Parser, Subcommand};
use keyway_bench::caches::Caches;
use keyway_bench::compare::{Comparison, THRESHOLD_PERCENT};
use keyway_bench::machine;
use keyway_bench::mix::Workload;
use keyway_bench::plan::{Against, Cell, Door, Pace, Plan};
use keyway_bench::report;
use keyway_bench::run::{self, Outcome};
use keyway_bench::workload::Sizes;
use keyway_bench::workloads;
use lab::applications;
use lab::idle;
use lab::kernel::{self, ALL_WAYS, How, Job};
use lab::namespaces::Clients;
use lab::papers::kernel_door;
use lab::presets::{self, Event, Preset, Reproduced, Scale, Setup};
use lab::report::LabReport;
use lab::tls;
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
  cargo run --release -p lab -- reproduce hodor-fig5 --json fig5.json --html fig5.html
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
  target/release/lab show fig5.json --compare old.json
                                  a stored report: its tables, page, or what changed

The program `keyway` that is measured lies beside this one, or is named in KEYWAY_BIN (cargo build --release -p keyway-cli). memcached is
taken from the PATH, or from KEYWAY_MEMCACHED.
Exit codes: 0 done; 1 a value was wrong, a connection was lost, a server failed, or a figure got worse; 64 wrong command line; 71 a
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
    /// Tables of a report that --json wrote, its page, or what changed since another
    Show(Show),
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
    common: Common,
    #[command(flatten)]
    outputs: Outputs,
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
    common: Common,
    #[command(flatten)]
    outputs: Outputs,
}

#[derive(Args)]
struct Idle {
    /// How many
    #[arg(long, short = 'c', default_value = "10000", value_parser = parse_count)]
    connections: usize,
    #[command(flatten)]
    common: Common,
}

#[derive(Args)]
struct Applications {
    /// Connections that ask for pages
    #[arg(long, short = 'c', default_value = "8", value_parser = parse_count)]
    connections: usize,
    /// Length of one measurement
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
    /// Length of one measurement
    #[arg(long, value_name = "S", value_parser = parse_seconds, default_value = "0.5")]
    seconds: Duration,
    /// Measurements of each kind of each server
    #[arg(long, value_name = "N", value_parser = parse_count, default_value = "7")]
    repeat: usize,
    /// CPUs on which servers run
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    server_cpus: Vec<usize>,
    /// CPUs on which the client runs
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    client_cpus: Vec<usize>,
    /// More options for the Keyway that is started, as `keyway serve` takes them
    #[arg(long, value_name = "OPTIONS", default_value = "", allow_hyphen_values = true)]
    server_options: String,
}

#[derive(Args)]
struct Show {
    /// The report
    file: PathBuf,
    #[command(flatten)]
    outputs: Outputs,
}

/// What is `None` or empty is the experiment's to choose.
#[derive(Args)]
struct Common {
    /// Items stored before measuring
    #[arg(long)]
    items: Option<u64>,
    /// Length of one measurement
    #[arg(long, value_name = "S", value_parser = parse_seconds)]
    seconds: Option<Duration>,
    /// Warm-up before each [default: a fifth of its length]
    #[arg(long, value_name = "S", value_parser = parse_seconds)]
    warmup: Option<Duration>,
    /// Measurements of each kind on each side
    #[arg(long, value_name = "N", value_parser = parse_count)]
    repeat: Option<usize>,
    /// What to compare with
    #[arg(long, default_value = "memcached", value_parser = ["memcached", "none"])]
    against: String,
    /// Worker threads of each server
    #[arg(long, value_name = "N", value_parser = parse_count)]
    server_threads: Option<usize>,
    /// CPUs on which servers run
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    server_cpus: Vec<usize>,
    /// CPUs on which the client runs
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    client_cpus: Vec<usize>,
    /// More options for the Keyway that is started, as `keyway serve` takes them
    #[arg(long, value_name = "OPTIONS", default_value = "", allow_hyphen_values = true)]
    server_options: String,
    /// More options for the memcached that is started
    #[arg(long, value_name = "OPTIONS", default_value = "", allow_hyphen_values = true)]
    memcached_options: String,
    /// How long a server may be silent before it counts as dead
    #[arg(long, value_name = "S", value_parser = parse_seconds, default_value = "10")]
    patience: Duration,
}

#[derive(Args)]
struct Outputs {
    /// Write the report as JSON; - for standard output, instead of the tables
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the report as one page with plots, for a browser
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Show what changed since a report that --json wrote
    #[arg(long, value_name = "FILE")]
    compare: Option<PathBuf>,
}

/// Why it ends, and the exit code.
struct Failure(u8, String);

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self(SYSTEM, error.to_string())
    }
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
                let width = presets::PRESETS.iter().map(|preset| preset.name.len()).max().unwrap_or(0);
                for preset in presets::PRESETS {
                    println!("{:<width$}  {}", preset.name, preset.about);
                }
                Ok(())
            }
            Self::Reproduce(reproduce) => {
                let setup = reproduce.common.setup(reproduce.scale)?;
                let old = reproduce.outputs.old()?;
                let tables = !reproduce.outputs.take_stdout();
                let screen = Screen { tables };
                let reproduced = presets::run(&reproduce.presets, &setup, &mut |event| screen.show(&event));
                screen.clear();
                let report = LabReport::new(reproduced?, command());
                reproduce.outputs.deliver(&report, old.as_ref())
            }
            Self::Kernel(kernel) => kernel.run(),
            Self::Idle(idle) => idle.run(),
            Self::Applications(how) => {
                // Packages are kept beside the program, so that they are fetched once.
                let program = std::env::current_exe()?;
                let folder = program.parent().unwrap_or(Path::new("."));
                let rows = applications::measure(folder, how.connections, how.seconds, how.repeat);
                let rows = rows.map_err(|why| Failure(SYSTEM, why))?;
                print!("{}", applications::table(&rows));
                Ok(())
            }
            Self::Tls(asked) => {
                let rows = tls::measure(&tls::How {
                    program: program()?,
                    connections: asked.connections,
                    value_size: asked.value_size,
                    seconds: asked.seconds,
                    repeat: asked.repeat,
                    server_cpus: asked.server_cpus,
                    client_cpus: asked.client_cpus,
                    server_options: asked.server_options.split_whitespace().map(str::to_owned).collect(),
                })?;
                print!("{}", tls::table(&rows));
                Ok(())
            }
            Self::Show(show) => {
                let (report, old) = (read(&show.file)?, show.outputs.old()?);
                if !show.outputs.take_stdout() {
                    report.papers.iter().for_each(|table| println!("{}", table.text()));
                    print!("{}", report.report.text());
                }
                show.outputs.deliver(&report, old.as_ref())
            }
        }
    }
}

impl Kernel {
    fn run(self) -> Result<(), Failure> {
        let jobs = self.jobs()?;
        let setup = self.common.setup(Scale::Small)?;
        let old = self.outputs.old()?;
        let mut plan = plan(&setup, Cell::new(kernel_door::mixed(20, 20, 100)?, 1, Door::Split, 1));
        plan.server_threads = setup.server_threads.unwrap_or(1);
        kernel_door::place(&mut plan)?;
        let most = jobs
            .iter()
            .filter(|job| job.cell.depth > 1)
            .map(|job| job.cell.connections)
            .max();
        plan.client_threads = most.unwrap_or(1);
        plan.check(machine::cpus_online()).map_err(|why| Failure(USAGE, why))?;
        let tables = !self.outputs.take_stdout();
        let screen = Screen { tables };
        let mut outcome = Outcome::begin();
        let clients = Clients::enter()?;
        let measured = kernel::measure(&clients, &plan, &jobs, &mut outcome, &mut |event| match event {
            run::Event::Doing { what, done } => screen.show(&Event::Doing { what, done }),
            run::Event::Cell(cell) => screen.print(&report::cell_text(cell)),
        });
        screen.clear();
        measured?;
        let reproduced = Reproduced {
            outcome,
            conditions: vec![report::conditions(&plan)],
            tables: Vec::new(),
        };
        self.outputs.deliver(&LabReport::new(reproduced, command()), old.as_ref())
    }

    /// Every combination of what was asked for.
    fn jobs(&self) -> Result<Vec<Job>, Failure> {
        let mut jobs = Vec::new();
        for workload in &self.workload {
            let sizes = if self.value_size.is_empty() {
                vec![workload.clone()]
            } else {
                self.value_size.iter().map(|size| workload.with_values(*size)).collect()
            };
            for workload in sizes {
                self.of(&workload, &mut jobs)?;
            }
        }
        Ok(jobs)
    }

    fn of(&self, workload: &Workload, jobs: &mut Vec<Job>) -> Result<(), Failure> {
        let gets_only = workload.mix.iter().all(|(kind, _)| *kind == keyway_bench::mix::Kind::Get);
        for (named, way) in ALL_WAYS {
            if !self.way.iter().any(|way| way == named) {
                continue;
            }
            for &connections in &self.connections {
                for &depth in &self.pipeline {
                    if depth > 1 && !(gets_only && self.multiget == [1] && depth <= lab::pipelined_udp::DEPTH_MAX) {
                        let most = lab::pipelined_udp::DEPTH_MAX;
                        return Err(Failure(
                            USAGE,
                            format!(
                                "{}: up to {most} gets of one key are pipelined, and nothing else",
                                workload.name
                            ),
                        ));
                    }
                    for &keys_per_get in &self.multiget {
                        let cell = Cell {
                            depth,
                            keys_per_get,
                            pace: Pace::Closed,
                            ..Cell::new(
                                workload.clone(),
                                self.common.items.unwrap_or(10_000),
                                Door::Split,
                                connections,
                            )
                        };
                        jobs.push(Job::new(way, cell, How::AsSaid));
                    }
                }
            }
        }
        Ok(())
    }
}

impl Idle {
    fn run(self) -> Result<(), Failure> {
        let setup = self.common.setup(Scale::Small)?;
        let workload = Workload {
            sizes: Sizes::Fixed(128),
            ..workloads::find("get-128b").map_err(|why| Failure(USAGE, why))?
        };
        // As many connections as are measured, so that the servers allow them.
        let cell = Cell::new(workload, setup.items.unwrap_or(1000), Door::Tcp, self.connections);
        let plan = plan(&setup, cell.clone());
        let caches = Caches::start(&plan, std::slice::from_ref(&cell))?;
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

impl Common {
    fn setup(&self, scale: Scale) -> Result<Setup, Failure> {
        let cpus = machine::cpus_online();
        if let Some(cpu) = self.server_cpus.iter().chain(&self.client_cpus).find(|&&cpu| cpu >= cpus) {
            return Err(Failure(
                USAGE,
                format!("there is no CPU {cpu}: this machine has {cpus}, numbered from 0"),
            ));
        }
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect();
        Ok(Setup {
            program: program()?,
            scale,
            items: self.items,
            length: self.seconds,
            warmup: self.warmup,
            repetitions: self.repeat,
            server_threads: self.server_threads,
            server_cpus: self.server_cpus.clone(),
            client_cpus: self.client_cpus.clone(),
            server_options: words(&self.server_options),
            memcached_options: words(&self.memcached_options),
            against: if self.against == "memcached" {
                Against::Memcached
            } else {
                Against::Nothing
            },
            silence_max: self.patience,
        })
    }
}

/// With what the user asked for; what is left open is as in `keyway bench`.
fn plan(setup: &Setup, cell: Cell) -> Plan {
    let length = setup.length.unwrap_or(Duration::from_secs(2));
    Plan {
        cells: vec![cell],
        ..setup.plan(length, 5)
    }
}

/// The `keyway` that is measured: what KEYWAY_BIN names, or the one beside this program.
fn program() -> Result<PathBuf, Failure> {
    if let Some(named) = std::env::var_os("KEYWAY_BIN") {
        return Ok(named.into());
    }
    let beside = std::env::current_exe()?.with_file_name("keyway");
    if beside.is_file() {
        return Ok(beside);
    }
    let why = format!(
        "there is no {}: build it (cargo build -p keyway-cli, in the same profile), or name it in KEYWAY_BIN",
        beside.display()
    );
    Err(Failure(SYSTEM, why))
}

impl Outputs {
    fn take_stdout(&self) -> bool {
        self.json.as_ref().is_some_and(|path| path.as_os_str() == "-")
    }

    /// To be read before anything is measured, so that a wrong file costs no time.
    fn old(&self) -> Result<Option<LabReport>, Failure> {
        self.compare.as_deref().map(read).transpose()
    }

    /// Writes and shows all that was asked for, and judges it.
    fn deliver(&self, report: &LabReport, old: Option<&LabReport>) -> Result<(), Failure> {
        let tables = !self.take_stdout();
        if tables {
            print!("\n{}{}", report.report.head(), report.report.tail());
        }
        let comparison = old.map(|old| report.since(old, THRESHOLD_PERCENT)).transpose();
        let comparison = comparison.map_err(|why| Failure(USAGE, format!("--compare: {why}")))?;
        if let Some(path) = &self.json {
            let text = report.to_json().map_err(|why| Failure(SYSTEM, why))?;
            if tables {
                write(path, &text)?;
            } else {
                println!("{text}");
            }
        }
        if let Some(path) = &self.html {
            write(path, &report.page(comparison.as_ref()))?;
        }
        if let Some(comparison) = comparison.as_ref().filter(|_| tables) {
            print!("\n{}", comparison.text());
        }
        if let Some(failure) = report.report.failures.first() {
            return Err(Failure(NO, failure.clone()));
        }
        match comparison.as_ref().map(Comparison::worse).as_deref() {
            None | Some([]) => Ok(()),
            Some(worse) => Err(Failure(NO, format!("{} figures got worse", worse.len()))),
        }
    }
}

/// What is seen of a run: tables as they are complete, and below them, on a terminal, a line that says what happens.
struct Screen {
    tables: bool,
}

impl Screen {
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
        self.clear();
        if self.tables {
            println!("\n{}", table.trim_end());
        }
    }

    fn clear(&self) {
        if io::stderr().is_terminal() {
            eprint!("\r\x1b[K");
        }
    }
}

fn command() -> String {
    format!("lab {}", std::env::args().skip(1).collect::<Vec<_>>().join(" "))
}

fn read(path: &Path) -> Result<LabReport, Failure> {
    let text =
        std::fs::read_to_string(path).map_err(|error| Failure(USAGE, format!("cannot read {}: {error}", path.display())))?;
    LabReport::from_json(&text).map_err(|why| Failure(USAGE, format!("{}: {why}", path.display())))
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text).map_err(|error| Failure(SYSTEM, format!("cannot write {}: {error}", path.display())))
}

fn parse_count(text: &str) -> Result<usize, String> {
    let count = text.parse().ok().filter(|count| *count > 0);
    count.ok_or_else(|| "it is a number from 1".to_owned())
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().and_then(|s| Duration::try_from_secs_f64(s).ok());
    seconds.ok_or_else(|| "it is a number of seconds".to_owned())
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
