//! What the presets of the two papers on caches in the kernel have in common: the kernel door and UDP in user space, each beside memcached's UDP.

use crate::kernel::{How, Job, USER, WAYS, way};
use crate::presets::Reproduction;
use crate::table::{PaperRow, PaperTable};
use keyway_bench::machine;
use keyway_bench::medians::Samples;
use keyway_bench::mix::{Kind, Workload};
use keyway_bench::plan::{Cell, Door, Pace, Plan};
use keyway_bench::report::{Better, values};
use keyway_bench::run::CellResult;
use keyway_bench::workload::Sizes;
use keyway_bench::workloads;
use std::io;
use std::time::Duration;

/// The peer of both.
const PEER: &str = "memcached, UDP";

/// A figure of the report, as a table shows it.
#[derive(Clone, Copy)]
pub(crate) struct Figure {
    /// in the report
    pub(crate) name: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) digits: usize,
    pub(crate) better: Better,
}

#[rustfmt::skip]
pub(crate) const THROUGHPUT: Figure = Figure { name: "throughput", unit: "k/s", digits: 1, better: Better::Higher };
#[rustfmt::skip]
pub(crate) const MEAN: Figure = Figure { name: "latency, mean", unit: "µs", digits: 1, better: Better::Lower };
#[rustfmt::skip]
pub(crate) const P50: Figure = Figure { name: "latency, p50", unit: "µs", digits: 1, better: Better::Lower };
#[rustfmt::skip]
pub(crate) const P99: Figure = Figure { name: "latency, p99", unit: "µs", digits: 1, better: Better::Lower };
#[rustfmt::skip]
pub(crate) const GETS: Figure = Figure { name: "latency of gets, mean", unit: "µs", digits: 1, better: Better::Lower };
#[rustfmt::skip]
pub(crate) const OTHERS: Figure = Figure { name: "latency of the others, mean", unit: "µs", digits: 1, better: Better::Lower };
#[rustfmt::skip]
pub(crate) const MACHINE_CPU: Figure = Figure { name: "machine CPU an operation", unit: "µs", digits: 2, better: Better::Lower };
#[rustfmt::skip]
pub(crate) const BOTH_CPU: Figure = Figure { name: "client and server CPU an operation", unit: "µs", digits: 2, better: Better::Lower };
#[rustfmt::skip]
pub(crate) const LOST: Figure = Figure { name: "datagrams lost", unit: "%", digits: 3, better: Better::Lower };

/// A plan: servers on the first CPU, the client on the last, unless the user says otherwise.
///
/// # Errors
///
/// The kernel does not say which CPUs this thread may use.
pub(crate) fn plan(reproduction: &Reproduction<'_>, length_ms: u64, repetitions: usize) -> io::Result<Plan> {
    // Of jobs, which have the cells; a plan has at least one.
    let any = Cell::new(mixed(20, 20, 100)?, 1, Door::Split, 1);
    let mut plan = reproduction.plan(vec![any], Duration::from_millis(length_ms), repetitions);
    plan.server_threads = reproduction.setup.server_threads.unwrap_or(1);
    place(&mut plan)?;
    Ok(plan)
}

/// Servers on the first CPU, the client on the last, unless the user says otherwise: the kernel door works on the client's.
///
/// # Errors
///
/// The kernel does not say which CPUs this thread may use.
pub fn place(plan: &mut Plan) -> io::Result<()> {
    let allowed = machine::allowed_cpus()?;
    if plan.server_cpus.is_empty() && plan.client_cpus.is_empty() && allowed.len() > 1 {
        plan.server_cpus.extend(allowed.first());
        plan.client_cpus.extend(allowed.last());
    }
    Ok(())
}

/// A workload of fixed sizes, of this many percents of gets; the others are sets.
///
/// # Errors
///
/// None: the workload that it is made from has a name.
pub fn mixed(key: usize, value: usize, gets: u32) -> io::Result<Workload> {
    let parts = [(Kind::Get, gets), (Kind::Set, 100 - gets)];
    Ok(Workload {
        name: format!("{key}/{value} B, {gets} % get"),
        about: format!("keys of {key} B, values of {value} B"),
        mix: parts.into_iter().filter(|(_, weight)| *weight > 0).collect(),
        sizes: Sizes::Both(key, value),
        ..workloads::find("20b").map_err(io::Error::other)?
    })
}

/// This workload both ways.
pub(crate) fn both(workload: &Workload, items: u64, sockets: usize, pace: Pace, how: How) -> [Job; 2] {
    WAYS.map(|way| {
        let cell = Cell::new(workload.clone(), items, Door::Split, sockets);
        Job::new(way, Cell { pace, ..cell }, how)
    })
}

/// What a side of a cell gave in each measurement; nothing of one that was not measured.
pub(crate) fn side(ran: &CellResult, at: usize, figure: Figure) -> Vec<f64> {
    ran.sides.get(at).map_or_else(Vec::new, |side| {
        let found = values(side, figure.name);
        // What the report leaves out where there was none is a measurement here.
        match figure.name {
            "datagrams lost" => found.into_iter().map(|lost| if lost.is_nan() { 0.0 } else { lost }).collect(),
            _ => found,
        }
    })
}

/// A row for this cell; `paper` adds what the paper has.
pub(crate) fn row(name: &str, ran: &CellResult, figure: Figure, paper: impl FnOnce(PaperRow) -> PaperRow) -> PaperRow {
    let way = way(&ran.cell);
    let row = PaperRow::new(format!("{name}, {way}"), figure.unit, figure.digits, figure.better);
    let own = side(ran, 0, figure);
    paper(if ran.sides.len() > 1 {
        row.measured(way, &own, PEER, &side(ran, 1, figure))
    } else {
        row.keyway(way, &own)
    })
}

/// What the peer did in a closed loop, operations a second; Keyway, where there is no peer.
pub(crate) fn peak_of_peer(ran: &[CellResult]) -> Option<f64> {
    let last = ran.iter().find(|ran| way(&ran.cell) == USER)?;
    let rates = side(last, last.sides.len() - 1, THROUGHPUT).into_iter().collect::<Samples>();
    Some(rates.median() * 1e3).filter(|rate| *rate > 0.0)
}

/// A table without rows.
pub(crate) fn table(title: &str, source: &str, system: &str, differs: Vec<String>) -> PaperTable {
    PaperTable {
        preset: String::new(),
        title: title.to_owned(),
        source: source.to_owned(),
        paper_peer: "memcached".to_owned(),
        paper_system: system.to_owned(),
        rows: Vec::new(),
        differs,
    }
}

/// What differs from either paper in every preset.
pub(crate) fn differs(machine_of_paper: &str) -> Vec<String> {
    vec![
        crate::presets::machines(machine_of_paper),
        "The network is a pair of veth interfaces between two namespaces of one machine, not a wire between several: there is no network card, and a packet is \
         received by the CPU that sent it, so the kernel door works on the client's CPU, and the CPU time of the whole machine is what compares."
            .to_owned(),
        "Gets go over UDP, updates and deletes over TCP, on all sides. The items were asked for before, so those that the kernel door can hold are there; a change \
         takes the copies of its stripe (one of 4,096) out until they are made anew after it, or served again."
            .to_owned(),
    ]
}
