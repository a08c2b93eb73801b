//! What the presets of the two papers on caches in the kernel have in common: the kernel door and UDP in user space, each beside memcached's UDP.

use crate::kernel::{How, Job, USER, WAYS, way};
use crate::presets::{self, Reproduction, side};
use crate::table::{PaperRow, PaperTable};
use keyway_bench::machine;
use keyway_bench::medians::Samples;
use keyway_bench::mix::{Kind, Workload};
use keyway_bench::plan::{Cell, Door, Pace, Plan};
use keyway_bench::run::CellResult;
use keyway_bench::workload::Sizes;
use keyway_bench::workloads;
use std::io;
use std::time::Duration;

/// The peer of both.
const PEER: &str = "memcached, UDP";

/// What the paper has of a row.
#[derive(Clone, Copy)]
pub(crate) enum Paper {
    /// nothing
    Nothing,
    /// its peer's figure and its system's
    Both(f64, f64),
    /// its system's
    System(f64),
    /// its system's over its peer's
    Ratio(f64),
}

impl Paper {
    fn on(self, row: PaperRow) -> PaperRow {
        match self {
            Self::Nothing => row,
            Self::Both(peer, system) => row.paper(peer, system),
            Self::System(system) => row.paper_system(system),
            Self::Ratio(ratio) => row.paper_ratio(ratio, ratio),
        }
    }
}

/// A row that a measurement gives: in which of a preset's tables, its name, the report's figure, and what the paper has.
pub(crate) type Row = (usize, String, &'static str, Paper);

/// A measurement, and the rows that it gives.
pub(crate) struct Line {
    pub(crate) job: Job,
    pub(crate) rows: Vec<Row>,
}

/// This workload both ways; `rows` says which rows a way gives.
pub(crate) fn both(workload: &Workload, items: u64, sockets: usize, how: How, rows: impl Fn(&str) -> Vec<Row>) -> [Line; 2] {
    paced(workload, items, sockets, Pace::Closed, how, rows)
}

/// The same at a rate.
pub(crate) fn paced(
    workload: &Workload,
    items: u64,
    sockets: usize,
    pace: Pace,
    how: How,
    rows: impl Fn(&str) -> Vec<Row>,
) -> [Line; 2] {
    WAYS.map(|way| {
        let cell = Cell {
            pace,
            ..Cell::new(workload.clone(), items, Door::Split, sockets)
        };
        Line {
            job: Job::new(way, cell, how),
            rows: rows(way),
        }
    })
}

/// Measures these lines, and adds their rows to the tables.
pub(crate) fn measure<'a>(
    reproduction: &'a mut Reproduction<'_>,
    plan: &Plan,
    lines: &[Line],
    tables: &mut [PaperTable],
) -> io::Result<&'a [CellResult]> {
    let jobs: Vec<Job> = lines.iter().map(|line| line.job.clone()).collect();
    let ran = reproduction.measure_kernel(plan, &jobs)?;
    for (ran, line) in ran.iter().zip(lines) {
        for (table, name, figure, paper) in &line.rows {
            tables[*table].rows.push(paper.on(row(name, ran, figure)));
        }
    }
    Ok(ran)
}

/// Servers and client on every CPU, with so many threads of each, unless the user says otherwise.
pub(crate) fn spread(reproduction: &Reproduction<'_>, plan: &mut Plan, threads: usize) -> io::Result<()> {
    if threads > 1 && reproduction.setup.common.server_threads.is_none() {
        let all = machine::allowed_cpus()?;
        (plan.server_threads, plan.client_threads) = (threads, threads);
        (plan.server_cpus, plan.client_cpus) = (all.clone(), all);
    }
    Ok(())
}

/// A plan: servers on the first CPU, the client on the last, unless the user says otherwise.
///
/// # Errors
///
/// The kernel does not say which CPUs this thread may use.
pub(crate) fn plan(reproduction: &Reproduction<'_>, length_ms: u64, repetitions: usize) -> io::Result<Plan> {
    // Of jobs, which have the cells; a plan has at least one.
    let any = Cell::new(mixed(20, 20, 100)?, 1, Door::Split, 1);
    let mut plan = reproduction
        .setup
        .plan(vec![any], Duration::from_millis(length_ms), repetitions, 1);
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

/// A row for this cell.
fn row(name: &str, ran: &CellResult, figure: &str) -> PaperRow {
    let way = way(&ran.cell);
    // What the report leaves out where there was none is a measurement here.
    let lost = |value: f64| {
        if figure == "datagrams lost" && value.is_nan() {
            0.0
        } else {
            value
        }
    };
    let of = |at| side(Some(ran), at, figure).into_iter().map(lost).collect::<Vec<_>>();
    PaperRow::of_figure(format!("{name}, {way}"), figure).measured(way, &of(0), PEER, &of(1))
}

/// What the peer did in a closed loop, operations a second; Keyway, where there is no peer.
///
/// # Errors
///
/// Nothing was measured.
pub(crate) fn peak_of_peer(ran: &[CellResult]) -> io::Result<f64> {
    let last = ran.iter().find(|ran| way(&ran.cell) == USER);
    let rates = last.map(|ran| {
        side(Some(ran), ran.sides.len() - 1, "throughput")
            .into_iter()
            .collect::<Samples>()
            .median()
            * 1e3
    });
    rates
        .filter(|rate| *rate > 0.0)
        .ok_or_else(|| io::Error::other("nothing was measured to take rates from"))
}

/// Tables of these titles, and what else differs from the paper; the first has what differs in every preset.
pub(crate) fn tables<const N: usize>(
    source: &str,
    system: &str,
    differs: Vec<String>,
    titles: [(&str, &str); N],
) -> [PaperTable; N] {
    let mut differs = Some(differs);
    titles.map(|(title, more)| {
        let mut differs = differs.take().unwrap_or_default();
        differs.extend((!more.is_empty()).then(|| more.to_owned()));
        PaperTable::new(title, source, ["memcached", system], differs)
    })
}

/// What differs from either paper in every preset.
pub(crate) fn differs(machine_of_paper: &str, more: &str) -> Vec<String> {
    vec![
        presets::machines(machine_of_paper),
        "The network is a pair of veth interfaces between two namespaces of one machine, not a wire between several: there is no network card, and a packet is \
         received by the CPU that sent it, so the kernel door works on the client's CPU, and the CPU time of the whole machine is what compares."
            .to_owned(),
        "Gets go over UDP, updates and deletes over TCP, on all sides. The items were asked for before, so those that the kernel door can hold are there; a change \
         takes the copies of its stripe (one of 4,096) out until they are made anew after it, or served again."
            .to_owned(),
        more.to_owned(),
    ]
}
