//! What the presets of the two papers on caches in the kernel have in common: the kernel door and UDP in user space, each beside memcached's UDP.

use super::Reproduction;
use crate::machine;
use crate::mix::{Kind, Workload};
use crate::paper::{PaperRow, PaperTable};
use crate::plan::{Cell, Door, Pace, Plan};
use crate::report::{Better, values};
use crate::run::CellRan;
use crate::samples::Samples;
use crate::workload::Sizes;
use crate::workloads;
use std::io;
use std::time::Duration;

/// Both ways to Keyway, as rows call them.
pub(super) const WAYS: [(Door, &str); 2] = [(Door::Kernel, "kernel door"), (Door::Split, "UDP in user space")];
/// The peer of both.
const PEER: &str = "memcached, UDP";

/// A figure of the report, as a table shows it.
#[derive(Clone, Copy)]
pub(super) struct Figure {
    /// in the report
    pub name: &'static str,
    pub unit: &'static str,
    pub digits: usize,
    pub better: Better,
}

#[rustfmt::skip]
pub(super) const THROUGHPUT: Figure = Figure { name: "throughput", unit: "k/s", digits: 1, better: Better::Higher };
#[rustfmt::skip]
pub(super) const MEAN: Figure = Figure { name: "latency, mean", unit: "µs", digits: 1, better: Better::Lower };
#[rustfmt::skip]
pub(super) const P50: Figure = Figure { name: "latency, p50", unit: "µs", digits: 1, better: Better::Lower };
#[rustfmt::skip]
pub(super) const P99: Figure = Figure { name: "latency, p99", unit: "µs", digits: 1, better: Better::Lower };
#[rustfmt::skip]
pub(super) const GETS: Figure = Figure { name: "latency of gets, mean", unit: "µs", digits: 1, better: Better::Lower };
#[rustfmt::skip]
pub(super) const OTHERS: Figure = Figure { name: "latency of the others, mean", unit: "µs", digits: 1, better: Better::Lower };
#[rustfmt::skip]
pub(super) const MACHINE_CPU: Figure = Figure { name: "machine CPU an operation", unit: "µs", digits: 2, better: Better::Lower };
#[rustfmt::skip]
pub(super) const BOTH_CPU: Figure = Figure { name: "client and server CPU an operation", unit: "µs", digits: 2, better: Better::Lower };
#[rustfmt::skip]
pub(super) const LOST: Figure = Figure { name: "datagrams lost", unit: "%", digits: 3, better: Better::Lower };

/// A plan for these cells: servers on the first CPU, the client on the last, unless the user says otherwise.
pub(super) fn plan(reproduction: &Reproduction<'_>, cells: Vec<Cell>, length_ms: u64, repetitions: usize) -> io::Result<Plan> {
    let mut plan = reproduction.plan(cells, Duration::from_millis(length_ms), repetitions);
    plan.server_threads = reproduction.setup.server_threads.unwrap_or(1);
    let allowed = machine::allowed_cpus()?;
    if plan.server_cpus.is_empty() && plan.client_cpus.is_empty() && allowed.len() > 1 {
        plan.server_cpus.extend(allowed.first());
        plan.client_cpus.extend(allowed.last());
    }
    Ok(plan)
}

/// A workload of fixed sizes, of this many percents of gets; the others are sets.
pub(super) fn mixed(key: usize, value: usize, gets: u32) -> io::Result<Workload> {
    let parts = [(Kind::Get, gets), (Kind::Set, 100 - gets)];
    Ok(Workload {
        name: format!("{key}/{value} B, {gets} % get"),
        about: format!("keys of {key} B, values of {value} B"),
        mix: parts.into_iter().filter(|(_, weight)| *weight > 0).collect(),
        sizes: Sizes::Both(key, value),
        ..workloads::find("20b").map_err(io::Error::other)?
    })
}

/// This workload through both doors.
pub(super) fn both(workload: &Workload, items: u64, sockets: usize, pace: Pace) -> [Cell; 2] {
    WAYS.map(|(door, _)| Cell {
        pace,
        ..Cell::new(workload.clone(), items, door, sockets)
    })
}

/// What a side of a cell gave in each measurement; nothing of one that was not measured.
pub(super) fn side(ran: &CellRan, at: usize, figure: Figure) -> Vec<f64> {
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
pub(super) fn row(name: &str, ran: &CellRan, figure: Figure, paper: impl FnOnce(PaperRow) -> PaperRow) -> PaperRow {
    let way = WAYS
        .iter()
        .find(|(door, _)| *door == ran.cell.door)
        .map_or("", |(_, way)| way);
    let row = PaperRow::new(format!("{name}, {way}"), figure.unit, figure.digits, figure.better);
    let own = side(ran, 0, figure);
    paper(if ran.sides.len() > 1 {
        row.measured(way, &own, PEER, &side(ran, 1, figure))
    } else {
        row.keyway(way, &own)
    })
}

/// What the peer did in a closed loop, operations a second; Keyway, where there is no peer.
pub(super) fn peak_of_peer(ran: &[CellRan]) -> Option<f64> {
    let last = ran.iter().find(|ran| ran.cell.door == Door::Split)?;
    let rates = side(last, last.sides.len() - 1, THROUGHPUT).into_iter().collect::<Samples>();
    Some(rates.median() * 1e3).filter(|rate| *rate > 0.0)
}

/// A table without rows.
pub(super) fn table(title: &str, source: &str, system: &str, differs: Vec<String>) -> PaperTable {
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
pub(super) fn differs(machine_of_paper: &str) -> Vec<String> {
    vec![
        super::machines(machine_of_paper),
        "The network is a pair of veth interfaces between two namespaces of one machine, not a wire between several: there is no network card, and a packet is \
         received by the CPU that sent it, so the kernel door works on the client's CPU, and the CPU time of the whole machine is what compares."
            .to_owned(),
        "Gets go over UDP, updates and deletes over TCP, on all sides. The items were asked for before, so those that the kernel door can hold are there; a change \
         takes the copies of its stripe (one of 4,096) out until they are made anew behind it, or served again."
            .to_owned(),
    ]
}
