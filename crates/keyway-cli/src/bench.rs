//! `keyway bench`: a command line becomes a plan, progress goes to the terminal, the report to where it is asked for ([`outputs`]).

mod outputs;

use std::fmt::Display;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use keyway_bench::mix::{Access, Workload};
use keyway_bench::plan::{Against, Cell, Door, Limit, Pace, Plan};
use keyway_bench::report::{self, Report};
use keyway_bench::reproduce::{self, Preset, Scale, Setup};
use keyway_bench::run::{self, Event};
use keyway_bench::trace::Trace;
use keyway_bench::wire::Target;
use keyway_bench::workload::Sizes;
use keyway_bench::{machine, processes, rig, workloads};

use self::outputs::Outputs;
use crate::exit::{self, Failure};
use crate::{listen, place, size};

const EXAMPLES: &str = "\
Without workloads and doors, a first picture is taken: gets and sets of 128 B through the library, a Unix socket, TCP and UDP.

Examples:
  keyway bench --quick                            a first picture, beside memcached if it is installed, in under a minute
  keyway bench --workload ycsb-b --door tcp --connections 1,16,64 --seconds 5
  keyway bench --door tcp --connections 16 --rate 20000,40000,60000
                                                  latency at given rates, measured from the moment at which each request was due
  keyway bench --door tcp --connections 64 --load 10,30,50,70,90
                                                  a curve: latency at these percents of the peer's peak
  keyway bench --door udp --workload 20b --connections 64 --peak mean:1ms
                                                  the highest rate with a mean latency below 1 ms
  keyway bench --workload etc --fill --items 2000000 --memory 64m,128m,256m --door unix --pipeline 16 --warmup 10
                                                  hit ratio against memory
  keyway bench --door kernel,udp-tcp --workload 20b --items 10000 --connections 1,32
                                                  the kernel door, then UDP in user space, beside memcached's UDP, over veth; as root
  keyway bench --door kernel --workload 20b --items 10000 --connections 1 --pipeline 32
                                                  the same with 32 gets on the way on one socket
  keyway bench --server 10.0.0.5:11211 --against 10.0.0.6:11211 --door tcp
                                                  two servers that run already; their items are evicted by the benchmark's
  keyway bench --json today.json --html today.html --server-cpus 0 --client-cpus 1
                                                  one page with plots and all figures; what there is to plot is what was varied: several
                                                  --connections, --rate or --load, --memory
  keyway bench --from today.json --html today.html
                                                  the same page of a stored report, without measuring
  keyway bench --compare yesterday.json           what changed since then, and exit code 1 if anything got worse
  keyway bench --from today.json --compare yesterday.json --threshold 5
                                                  the same of two stored reports, without measuring
  keyway bench --reproduce hodor-fig5 --json fig5.json
                                                  a paper's figure, measured here; its numbers and ours side by side
  keyway bench --list                             the workloads

memcached is taken from the PATH, or from KEYWAY_MEMCACHED. Every value that is read is verified.
Exit codes: 0 done; 1 a value was wrong, a connection was lost, a server failed, or --compare found a figure that got worse; 64 wrong
command line, or a file that is no report; 71 a server cannot be started or reached.";

#[derive(Args)]
#[command(after_help = format!("{EXAMPLES}\n\nPresets of --reproduce:\n{}", presets()))]
pub(crate) struct Bench {
    /// A first picture in under a minute: short measurements, few of them
    #[arg(long)]
    quick: bool,
    /// Measures again what papers measured, and puts their figures beside what comes out; the presets are listed below
    #[arg(long, value_name = "PRESET,...", value_delimiter = ',', value_parser = reproduce::find, conflicts_with_all = [
        "quick", "workload", "door", "connections", "pipeline", "multiget", "rate", "load", "peak", "flood", "churn", "value_size", "fill", "trace",
        "popularity", "memory", "server", "client_threads", "idle",
    ])]
    reproduce: Vec<&'static Preset>,
    /// Items of --reproduce: small, enough for minutes, or full, as many as the paper had
    #[arg(long, value_name = "SCALE", default_value = "small", value_parser = Scale::parse, requires = "reproduce")]
    scale: Scale,
    /// Workloads, separated by commas; --list has them
    #[arg(long, short = 'w', value_name = "NAME,...", value_delimiter = ',', value_parser = workloads::find)]
    workload: Vec<Workload>,
    /// Ways to Keyway: library (threads of one process), processes (that share a region), libmemcached, unix, tcp, udp, udp-tcp (gets over UDP, the rest over
    /// TCP), kernel (the same, with the kernel door; takes root)
    #[arg(long, short = 'd', value_name = "DOOR,...", value_delimiter = ',', value_parser = Door::parse)]
    door: Vec<Door>,
    /// Connections; of the library threads, or processes
    #[arg(long, short = 'c', value_name = "N,...", value_delimiter = ',', value_parser = parse_count, default_value = "1,16")]
    connections: Vec<usize>,
    /// Requests on the way on each connection; over UDP only gets of one key, and as many client threads as connections
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = parse_count, default_value = "1")]
    pipeline: Vec<usize>,
    /// Keys of one get
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = parse_count, default_value = "1")]
    multiget: Vec<usize>,
    /// Operations a second, whether or not earlier ones have ended (an open loop); left out: one starts when one has ended
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    rate: Vec<f64>,
    /// Open loops with these percents of what the peer does in a closed loop: a curve of latency under load
    #[arg(long, value_name = "PERCENT,...", value_delimiter = ',', conflicts_with = "rate")]
    load: Vec<f64>,
    /// Searches for the highest rate at which latency keeps a limit: mean:1ms, p99:500us
    #[arg(long, value_name = "LIMIT,...", value_delimiter = ',', value_parser = Limit::parse, conflicts_with_all = ["rate", "load"])]
    peak: Vec<Limit>,
    /// Over UDP, gets so many a second, however many are unanswered: what is lost is counted
    #[arg(long, value_name = "N,...", value_delimiter = ',', conflicts_with_all = ["rate", "load", "peak"])]
    flood: Vec<f64>,
    /// Replaces each connection by a new one after so many operations
    #[arg(long, value_name = "N")]
    churn: Option<u64>,
    /// Behind the measurements, opens so many connections that ask once and then say nothing: the memory of the server that one takes
    #[arg(long, value_name = "N", value_parser = parse_count)]
    idle: Option<usize>,
    /// Items stored before measuring [default: 100,000, or as many as take 512 MiB]
    #[arg(long, value_name = "N")]
    items: Option<u64>,
    /// Value sizes instead of the workload's own, such as 100, 10k
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',', value_parser = size::parse_value_size)]
    value_size: Vec<usize>,
    /// Stores what a get missed, as an application does: for hit ratios under limited --memory
    #[arg(long)]
    fill: bool,
    /// Replays a file of lines key,op,size,ttl instead of a workload; what it misses is stored
    #[arg(long, value_name = "FILE", conflicts_with_all = ["workload", "items", "value_size", "popularity"])]
    trace: Option<PathBuf>,
    /// How requests fall on items, instead of the workload's own way: uniform, zipf, zipf:EXPONENT, latest, scans, churn
    #[arg(long, value_name = "HOW", value_parser = Access::parse)]
    popularity: Option<Access>,
    /// Memory of each cache; left out: room for all items
    #[arg(long, short = 'm', value_name = "SIZE,...", value_delimiter = ',', value_parser = size::parse_mebibytes)]
    memory: Vec<u64>,
    /// Length of one measurement [default: 2; with --quick 0.5, with --reproduce the preset's]
    #[arg(long, value_name = "S", value_parser = parse_seconds)]
    seconds: Option<Duration>,
    /// Warm-up before each [default: a fifth of its length]
    #[arg(long, value_name = "S", value_parser = parse_seconds)]
    warmup: Option<Duration>,
    /// Measurements of each kind on each side [default: 5; with --quick 3, with --reproduce the preset's]
    #[arg(long, value_name = "N", value_parser = parse_count)]
    repeat: Option<usize>,
    /// Where the sequences of operations begin: the same number draws the same ones again, for every kind and measurement another one
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with = "reproduce")]
    seed: u64,
    /// What to compare with: memcached, nobody, or a server that runs already: its address or the path of its Unix socket
    #[arg(long, value_name = "WHOM", default_value = "memcached", value_parser = parse_against)]
    against: Against,
    /// The Keyway to measure, if it runs already: its address or the path of its Unix socket; left out: one is started
    #[arg(long, value_name = "ADDR|PATH", value_parser = parse_target)]
    server: Option<Target>,
    /// Keyway's libmemcached.so.11, for that door [default: where `make install` puts it beside this program]; the system's is
    /// measured beside it, with memcached
    #[arg(long, value_name = "FILE")]
    libmemcached: Option<PathBuf>,
    /// Worker threads of each server that is started [default: as many as it has CPUs, at most 4]
    #[arg(long, value_name = "N", value_parser = parse_count)]
    server_threads: Option<usize>,
    /// CPUs on which servers run
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    server_cpus: Vec<usize>,
    /// More options for the Keyway that is started, as `keyway serve` takes them
    #[arg(long, value_name = "OPTIONS", default_value = "", allow_hyphen_values = true)]
    server_options: String,
    /// More options for the memcached that is started
    #[arg(long, value_name = "OPTIONS", default_value = "", allow_hyphen_values = true)]
    memcached_options: String,
    /// Threads that drive connections
    #[arg(long, value_name = "N", value_parser = parse_count, default_value = "1")]
    client_threads: usize,
    /// CPUs on which the client runs, and the library
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    client_cpus: Vec<usize>,
    /// How long a server may be silent before it counts as dead
    #[arg(long, value_name = "S", value_parser = parse_seconds, default_value = "10")]
    patience: Duration,
    #[command(flatten)]
    outputs: Outputs,
    /// List the workloads
    #[arg(long)]
    list: bool,
}

impl Bench {
    /// Measures, reports, and fails if anything went wrong.
    pub(crate) fn run(self) -> Result<(), Failure> {
        if self.list {
            print!("{}", workloads());
            return Ok(());
        }
        let outputs = self.outputs.clone();
        let old = outputs.old()?;
        let report = match outputs.stored()? {
            Some(stored) => stored,
            None if self.reproduce.is_empty() => self.measure()?,
            None => self.measure_again()?,
        };
        outputs.deliver(&report, old.as_ref())
    }

    /// What was asked for, cell by cell.
    fn measure(self) -> Result<Report, Failure> {
        let outputs = self.outputs.clone();
        let plan = self.plan()?;
        plan.check(machine::cpus()).map_err(Failure::usage)?;
        outputs.check()?;
        let tables = !outputs.take_stdout();
        let about = plan.duration();
        if tables {
            let (rows, time) = (plan.cells.len(), minutes(about));
            println!("{rows} rows of measurements, about {time} and the time to store items");
        }
        let mut screen = Screen::new(Some(about), tables);
        let outcome = run::run(&plan, &mut |event| screen.show(&event));
        screen.clear();
        let outcome = outcome.map_err(|error| Failure::new(exit::SYSTEM, error))?;
        let report = Report::new(&plan, &outcome, command());
        if tables {
            print!("\n{}\n{}", report.head(), report.summary());
            screen.end(&report);
        }
        Ok(report)
    }

    /// What papers measured.
    fn measure_again(self) -> Result<Report, Failure> {
        let setup = self.setup()?;
        self.outputs.check()?;
        let tables = !self.outputs.take_stdout();
        let mut screen = Screen::new(None, tables);
        let reproduced = reproduce::run(&self.reproduce, &setup, &mut |event| screen.show(&event));
        screen.clear();
        let reproduced = reproduced.map_err(|error| Failure::new(exit::SYSTEM, error))?;
        let report = Report::of_papers(&reproduced, command());
        if tables {
            print!("\n{}", report.head());
            screen.end(&report);
        }
        Ok(report)
    }

    fn setup(&self) -> Result<Setup, Failure> {
        if let Against::Server(peer) = &self.against {
            return Err(Failure::usage(format_args!(
                "--reproduce starts its peers with the options that a figure needs, and cannot use the server at {peer}; leave out --against"
            )));
        }
        let cpus = machine::cpus_online();
        if let Some(cpu) = self.server_cpus.iter().chain(&self.client_cpus).find(|&&cpu| cpu >= cpus) {
            return Err(Failure::usage(format_args!(
                "there is no CPU {cpu}: this machine has {cpus}, numbered from 0"
            )));
        }
        Ok(Setup {
            program: rig::own_program().map_err(|error| Failure::new(exit::SYSTEM, error))?,
            libmemcached: self.libmemcached.clone().or_else(installed_dropin),
            scale: self.scale,
            items: self.items,
            length: self.seconds,
            warmup: self.warmup,
            repetitions: self.repeat,
            server_threads: self.server_threads,
            server_cpus: self.server_cpus.clone(),
            client_cpus: self.client_cpus.clone(),
            server_options: words(&self.server_options),
            memcached_options: words(&self.memcached_options),
            against: self.against.clone(),
            silence_max: self.patience,
        })
    }

    fn plan(mut self) -> Result<Plan, Failure> {
        // Beside the kernel door, whose work is done on the client's CPU, both must be known.
        let anywhere = self.server_cpus.is_empty() && self.client_cpus.is_empty();
        if self.door.contains(&Door::Kernel) && anywhere && machine::cpus() > 1 {
            (self.server_cpus, self.client_cpus) = (vec![0], vec![1]);
        }
        let cpus = if self.server_cpus.is_empty() {
            machine::cpus()
        } else {
            self.server_cpus.len()
        };
        let length = self
            .seconds
            .unwrap_or(Duration::from_millis(if self.quick { 500 } else { 2000 }));
        Ok(Plan {
            cells: self.cells()?,
            length,
            warmup: self.warmup.unwrap_or(length / 5),
            repetitions: self.repeat.unwrap_or(if self.quick { 3 } else { 5 }),
            seed: self.seed,
            server_threads: self.server_threads.unwrap_or(cpus.min(4)),
            client_threads: self.client_threads,
            server_cpus: self.server_cpus,
            client_cpus: self.client_cpus,
            server_options: words(&self.server_options),
            memcached_options: words(&self.memcached_options),
            libmemcached: self.libmemcached.or_else(installed_dropin),
            server: self.server,
            against: self.against,
            program: rig::own_program().map_err(|error| Failure::new(exit::SYSTEM, error))?,
            silence_max: self.patience,
            idle: self.idle,
        })
    }

    /// Every combination of what was asked for.
    fn cells(&self) -> Result<Vec<Cell>, Failure> {
        if self.is_first_picture() {
            return self.first_picture();
        }
        let doors = if self.door.is_empty() {
            &[Door::Library, Door::Unix, Door::Tcp][..]
        } else {
            &self.door
        };
        let memories: Vec<Option<u64>> = match self.memory.as_slice() {
            [] => vec![None],
            sizes => sizes.iter().map(|bytes| Some(bytes >> 20)).collect(),
        };
        let mut cells = Vec::new();
        for (workload, memory_mib) in product(&self.workloads()?, &memories) {
            let items = self.items(&workload);
            for ((door, connections), pace) in product(&product(doors, &self.connections), &self.paces()) {
                for (depth, keys_per_get) in product(&self.pipeline, &self.multiget) {
                    cells.push(Cell {
                        depth,
                        keys_per_get,
                        pace,
                        operations_max: self.churn,
                        memory_mib,
                        ..Cell::new(workload.clone(), items, door, connections)
                    });
                }
            }
        }
        Ok(cells)
    }

    fn paces(&self) -> Vec<Pace> {
        let rates = self.rate.iter().map(|rate| Pace::Rate(*rate));
        let shares = self.load.iter().map(|percent| Pace::Share(*percent));
        let peaks = self.peak.iter().map(|limit| Pace::Peak(*limit));
        let floods = self.flood.iter().map(|rate| Pace::Flood(*rate));
        let paces: Vec<Pace> = rates.chain(shares).chain(peaks).chain(floods).collect();
        if paces.is_empty() { vec![Pace::Closed] } else { paces }
    }

    /// The workloads with what was asked for instead of their own.
    fn workloads(&self) -> Result<Vec<Workload>, Failure> {
        if let Some(path) = &self.trace {
            let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
            let trace = Trace::read(path).map_err(|why| Failure::usage(format_args!("--trace: {why}")))?;
            return Ok(vec![Workload::replay(&name, trace)]);
        }
        let first = [workloads::find(FIRST_WORKLOAD).map_err(Failure::usage)?];
        let named = if self.workload.is_empty() {
            &first[..]
        } else {
            &self.workload
        };
        let changed = |workload: &Workload| Workload {
            access: self.popularity.unwrap_or(workload.access),
            fill: self.fill || workload.fill,
            ..workload.clone()
        };
        let mut all = Vec::new();
        for workload in named.iter().map(changed) {
            if self.value_size.is_empty() {
                all.push(workload);
                continue;
            }
            for &size in &self.value_size {
                all.push(Workload {
                    name: format!("{}, values of {size} B", workload.name),
                    sizes: Sizes::Both(workload.sizes.of(0).0, size),
                    ..workload.clone()
                });
            }
        }
        Ok(all)
    }

    fn items(&self, workload: &Workload) -> u64 {
        /// Keys and values may take so much together: more than any CPU's cache, less than any machine's memory.
        const BYTES: f64 = 536_870_912.0;
        const ITEMS: u64 = 100_000;
        let fitting = BYTES / workload.items(1000).mean_len().max(1.0);
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a count above 0 and below 2^53"
        )]
        let usual = (fitting as u64).clamp(100, ITEMS);
        match &workload.trace {
            Some(recording) => recording.0.keys(),
            None => self.items.unwrap_or(usual),
        }
    }

    fn is_first_picture(&self) -> bool {
        let nothing = self.workload.is_empty() && self.door.is_empty() && self.trace.is_none() && self.value_size.is_empty();
        nothing && self.paces() == [Pace::Closed] && self.churn.is_none() && self.memory.is_empty()
    }

    /// What a new user wants to know first.
    fn first_picture(&self) -> Result<Vec<Cell>, Failure> {
        let workload = self.workloads()?.remove(0);
        let items = self.items(&workload);
        let cpus = machine::cpus().min(8);
        let cell = |door, connections| Cell::new(workload.clone(), items, door, connections);
        let mut cells = vec![cell(Door::Library, 1)];
        if cpus > 1 {
            cells.push(cell(Door::Library, cpus));
        }
        cells.push(cell(Door::Processes, cpus.max(2)));
        cells.extend([
            cell(Door::Unix, 16),
            cell(Door::Tcp, 1),
            cell(Door::Tcp, 16),
            cell(Door::Udp, 16),
        ]);
        cells.push(Cell {
            depth: 16,
            ..cell(Door::Tcp, 16)
        });
        let server_has = |cell: &Cell| {
            let server = self.server.as_ref();
            server.is_none_or(|server| !cell.door.is_region() && server.through(cell.door).is_some())
        };
        let peer_has = |cell: &Cell| match &self.against {
            Against::Server(peer) => cell.door.is_region() || peer.through(cell.door).is_some(),
            Against::Memcached | Against::Nobody => true,
        };
        cells.retain(|cell| server_has(cell) && peer_has(cell));
        Ok(cells)
    }
}

/// Of the first picture: what the protected library's authors measured, small values, mostly read.
const FIRST_WORKLOAD: &str = "128b-95";

/// The hidden half of the door `processes`.
pub(crate) fn work() -> Result<(), Failure> {
    processes::work(std::io::stdin().lock(), std::io::stdout().lock()).map_err(|error| Failure::new(exit::SYSTEM, error))
}

/// What is seen of a run: tables as they are complete, and below them, on a terminal, a line that says what happens.
struct Screen {
    begun: Instant,
    /// how long the whole takes; presets do not know
    about: Option<Duration>,
    tables: bool,
    line: bool,
}

impl Screen {
    fn new(about: Option<Duration>, tables: bool) -> Self {
        Self {
            begun: Instant::now(),
            about,
            tables,
            line: std::io::stderr().is_terminal(),
        }
    }

    fn show(&mut self, event: &Event<'_>) {
        match event {
            Event::Doing { what, done } if self.line => {
                let left = self.about.map(|about| about.mul_f64((1.0 - done).clamp(0.0, 1.0)));
                let left = left.map_or(String::new(), |left| format!(", {} left", minutes(left)));
                eprint!("\r\x1b[K[{:3.0} %{left}] {what}", done * 100.0);
                let _ = std::io::stderr().flush();
            }
            // A preset's cells are summed up in its tables.
            Event::Cell(cell) if self.about.is_some() => self.print(&report::cell_text(cell)),
            Event::Paper(table) => self.print(&table.text()),
            Event::Doing { .. } | Event::Cell(_) => {}
        }
    }

    fn print(&self, table: &str) {
        self.clear();
        if self.tables {
            println!("\n{}", table.trim_end());
            let _ = std::io::stdout().flush();
        }
    }

    /// What comes last.
    fn end(&self, report: &Report) {
        print!("{}", report.tail());
        println!("\n{} in all", minutes(self.begun.elapsed()));
    }

    fn clear(&self) {
        if self.line {
            eprint!("\r\x1b[K");
        }
    }
}

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

fn presets() -> String {
    let width = reproduce::PRESETS.iter().map(|preset| preset.name.len()).max().unwrap_or(0);
    let line = |preset: &Preset| format!("  {:<width$}  {}\n", preset.name, preset.about);
    reproduce::PRESETS.iter().map(line).collect()
}

fn command() -> String {
    format!("keyway {}", std::env::args().skip(1).collect::<Vec<_>>().join(" "))
}

/// Keyway's libmemcached, where `make install` puts it.
fn installed_dropin() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    Some(program.parent()?.join("../lib/keyway/libmemcached.so.11")).filter(|path| path.is_file())
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

fn product<A: Clone, B: Clone>(a: &[A], b: &[B]) -> Vec<(A, B)> {
    a.iter().flat_map(|a| b.iter().map(|b| (a.clone(), b.clone()))).collect()
}

fn parse_count(text: &str) -> Result<usize, String> {
    /// More connections than one address has ports cannot be.
    const MOST: usize = 65_000;
    match text.parse() {
        Ok(n @ 1..=MOST) => Ok(n),
        _ => Err(format!("it is a number from 1 to {MOST}")),
    }
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    /// A day: nobody waits longer for one figure.
    const MOST: f64 = 86_400.0;
    match text.parse::<f64>() {
        Ok(s) if (0.0..=MOST).contains(&s) => Ok(Duration::from_secs_f64(s)),
        _ => Err(format!("it is a number of seconds, at most {MOST}")),
    }
}

fn parse_against(text: &str) -> Result<Against, String> {
    match text {
        "memcached" => Ok(Against::Memcached),
        "nobody" => Ok(Against::Nobody),
        _ => parse_target(text).map(Against::Server),
    }
}

fn parse_target(text: &str) -> Result<Target, String> {
    if text.starts_with('/') {
        return Ok(Target::Unix(text.into()));
    }
    let explain = |why: &dyn Display| format!("\"{text}\" is neither an address nor the absolute path of a Unix socket: {why}");
    let addresses = listen::parse(text, place::DEFAULT_PORT).map_err(|why| explain(&why))?;
    addresses
        .first()
        .copied()
        .map(Target::Tcp)
        .ok_or_else(|| explain(&"no such host"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        bench: Bench,
    }

    fn plan(line: &str) -> Plan {
        let words = ["bench"].into_iter().chain(line.split_whitespace());
        Line::try_parse_from(words)
            .unwrap_or_else(|e| panic!("{line}: {e}"))
            .bench
            .plan()
            .unwrap()
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
            "--quick --against nobody",
            "--quick --server 127.0.0.1:1",
            "--quick --against /s",
        ] {
            let plan = plan(line);
            assert_eq!(plan.check(8), Ok(()), "{line}");
            assert!(!plan.cells.is_empty() && plan.duration() < Duration::from_secs(40), "{line}");
        }
    }

    #[test]
    fn a_stored_report_takes_no_argument_that_tells_how_to_measure() {
        let command = <Line as clap::CommandFactory>::command();
        let of_reports = |id: &str| ["from", "json", "html", "compare", "threshold", "list"].contains(&id);
        let all = command.get_arguments().map(|argument| argument.get_id().as_str());
        for id in all.filter(|id| !of_reports(id)) {
            assert!(outputs::MEASURING.contains(&id), "is --from refused with {id}?");
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
            "--compare a --threshold -1",
            "--threshold 5",
        ] {
            let words = ["bench"].into_iter().chain(line.split_whitespace());
            assert!(Line::try_parse_from(words).is_err(), "{line}");
        }
    }
}
