//! The options that say what to measure and how, and the plan that they make.
//!
//! Never: measures, or prints.

use std::fmt::Display;
use std::time::Duration;

use clap::Args;
use keyway_bench::mix::{Access, Workload};
use keyway_bench::options::{Common, parse_count};
use keyway_bench::plan::{Against, Cell, Door, Pace, Plan};
use keyway_bench::wire::Target;
use keyway_bench::{caches, machine, workloads};

use crate::exit::{self, Failure};
use crate::{listen, place, size};

/// The workload of the first measurements: that of the protected library's authors, small values, mostly reads.
const FIRST_WORKLOAD: &str = "128b-95";

/// What says what to measure.
#[derive(Args)]
pub(super) struct Measuring {
    /// Take few and short measurements: an overview in under a minute
    #[arg(long)]
    quick: bool,
    /// Workloads, separated by commas; --list has them
    #[arg(long, short = 'w', value_name = "NAME,...", value_delimiter = ',', value_parser = workloads::find)]
    workload: Vec<Workload>,
    /// Doors to Keyway: library, unix, tcp, kernel-tcp (TCP of a server with the kernel door), udp, udp-tcp (gets over UDP, the rest over TCP)
    #[arg(long, short = 'd', value_name = "DOOR,...", value_delimiter = ',', value_parser = Door::parse)]
    door: Vec<Door>,
    /// Connections; of the library threads
    #[arg(long, short = 'c', value_name = "N,...", value_delimiter = ',', value_parser = parse_count, default_value = "1,16")]
    connections: Vec<usize>,
    /// Requests in flight on each connection; not over UDP
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = parse_count, default_value = "1")]
    pipeline: Vec<usize>,
    /// Keys of one get
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = parse_count, default_value = "1")]
    multiget: Vec<usize>,
    /// Operations per second, started whether or not earlier ones have ended (an open loop) [default: each starts when the one before has ended]
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    rate: Vec<f64>,
    /// Items stored before measuring [default: 100,000, or as many as take 512 MiB]
    #[arg(long, value_name = "N")]
    items: Option<u64>,
    /// Value sizes instead of the workload's own, such as 100, 10k
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',', value_parser = size::parse_value_size)]
    value_size: Vec<usize>,
    /// Store what a get missed, as an application does: for hit ratios under limited --memory
    #[arg(long)]
    fill: bool,
    /// Distribution of the requests over the items, instead of the workload's own: uniform, zipf (exponent 0.99), zipf:EXPONENT, latest
    #[arg(long, value_name = "HOW", value_parser = Access::parse)]
    popularity: Option<Access>,
    /// Memory of each cache [default: room for all items]
    #[arg(long, short = 'm', value_name = "SIZE,...", value_delimiter = ',', value_parser = size::parse_cache_memory)]
    memory: Vec<u64>,
    /// Seed of the random operations: the same seed repeats them, with operations of its own for each kind and measurement
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// What to compare with: memcached, none, or a server that runs already: its address or the path of its Unix socket
    #[arg(long, value_name = "PEER", default_value = "memcached", value_parser = parse_against)]
    against: Against,
    /// The Keyway to measure, if it runs already: its address or the path of its Unix socket [default: one is started]
    #[arg(long, value_name = "ADDR|PATH", value_parser = parse_target)]
    server: Option<Target>,
    /// Threads that drive connections
    #[arg(long, value_name = "N", value_parser = parse_count, default_value = "1")]
    client_threads: usize,
}

impl Measuring {
    pub(super) fn plan(self, common: &Common) -> Result<Plan, Failure> {
        let cpus = match common.server_cpus.len() {
            0 => machine::cpus(),
            chosen => chosen,
        };
        let (length, repetitions) = if self.quick { (500, 3) } else { (2000, 5) };
        let usual = (Duration::from_millis(length), repetitions, cpus.min(4));
        let program = caches::own_program().map_err(|error| Failure::new(exit::SYSTEM, error))?;
        Ok(Plan {
            seed: self.seed,
            client_threads: self.client_threads,
            server: self.server.clone(),
            against: self.against.clone(),
            ..common.plan(program, self.cells()?, usual)
        })
    }

    /// Every combination of the options' values.
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
                        memory_mib,
                        ..Cell::new(workload.clone(), items, door, connections)
                    });
                }
            }
        }
        Ok(cells)
    }

    fn paces(&self) -> Vec<Pace> {
        let paces: Vec<Pace> = self.rate.iter().map(|rate| Pace::Rate(*rate)).collect();
        if paces.is_empty() { vec![Pace::Closed] } else { paces }
    }

    /// The workloads, with the options' values instead of their own.
    fn workloads(&self) -> Result<Vec<Workload>, Failure> {
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
        let mut all: Vec<Workload> = named.iter().map(changed).collect();
        if !self.value_size.is_empty() {
            let sizes = |workload: &Workload| {
                self.value_size
                    .iter()
                    .map(|size| workload.with_values(*size))
                    .collect::<Vec<_>>()
            };
            all = all.iter().flat_map(sizes).collect();
        }
        Ok(all)
    }

    fn items(&self, workload: &Workload) -> u64 {
        /// Most bytes for keys and values together: more than any CPU's cache, less than any machine's memory.
        const BYTES: f64 = 536_870_912.0;
        const ITEMS: u64 = 100_000;
        let fitting = BYTES / workload.items(1000).mean_len().max(1.0);
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a count above 0 and below 2^53"
        )]
        let usual = (fitting as u64).clamp(100, ITEMS);
        self.items.unwrap_or(usual)
    }

    fn is_first_picture(&self) -> bool {
        let nothing = self.workload.is_empty() && self.door.is_empty() && self.value_size.is_empty();
        nothing && self.paces() == [Pace::Closed] && self.memory.is_empty()
    }

    /// The first measurements for a new user.
    fn first_picture(&self) -> Result<Vec<Cell>, Failure> {
        let workload = self.workloads()?.remove(0);
        let items = self.items(&workload);
        let cpus = machine::cpus().min(8);
        let cell = |door, connections| Cell::new(workload.clone(), items, door, connections);
        let mut cells = vec![cell(Door::Library, 1)];
        if cpus > 1 {
            cells.push(cell(Door::Library, cpus));
        }
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
            Against::Memcached | Against::Nothing => true,
        };
        cells.retain(|cell| server_has(cell) && peer_has(cell));
        Ok(cells)
    }
}

fn product<A: Clone, B: Clone>(a: &[A], b: &[B]) -> Vec<(A, B)> {
    a.iter().flat_map(|a| b.iter().map(|b| (a.clone(), b.clone()))).collect()
}

fn parse_against(text: &str) -> Result<Against, String> {
    match text {
        "memcached" => Ok(Against::Memcached),
        "none" => Ok(Against::Nothing),
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
