//! "Safe, fast sharing of memcached as a protected library" (Kjellqvist, Hedayati, Scott, ICPP 2020): latency of calls (Figure 5), and
//! throughput of many callers (Figures 6 to 9).
//!
//! The paper's machine: one Xeon Gold 5215 (10 cores, 20 hyperthreads, 2.5 GHz, 192 GB), a kernel with Hodor, YCSB's zipfian keys,
//! 4·10⁷ records of 128 B or 10⁶ of 5 KB, memcached over Unix sockets with 4 or 8 threads.

use crate::presets::{Reproduction, has_gate, machines, side};
use crate::table::{PaperRow, PaperTable};
use keyway_bench::machine;
use keyway_bench::medians::Samples;
use keyway_bench::plan::{Cell, Door};
use keyway_bench::run::CellResult;
use keyway_bench::workloads;
use std::io;
use std::time::Duration;

const PAPER: &str = "Safe, fast sharing of memcached as a protected library (ICPP 2020)";
/// As the paper says, section 4.
const MACHINE: &str = "a Xeon Gold 5215 with 10 cores and 20 hyperthreads at 2.5 GHz, and 192 GB";
/// Records of 128 B, and of 5 KB.
const FULL_SMALL: u64 = 40_000_000;
const FULL_LARGE: u64 = 1_000_000;
/// In a CPU's cache, most of them: what a call costs, not what memory does.
const FEW: u64 = 10_000;

/// An operation of Figure 5: workload, name, and the paper's mean latencies in µs: memcached, the library with Hodor, and without.
type Operation = (&'static str, &'static str, f64, f64, f64);

#[rustfmt::skip]
const OPERATIONS: [Operation; 6] = [
    ("get-128b", "get 128 B", 13.0, 0.67, 0.64),
    ("get-5k", "get 5 KB", 13.0, 0.67, 0.64),
    ("set-128b", "set 128 B", 13.0, 1.2, 1.2),
    ("set-5k", "set 5 KB", 17.0, 1.5, 1.5),
    ("delete", "delete", 10.0, 0.21, 0.18),
    ("incr", "increment", 54.0, 1.6, 1.5),
];

/// Figures of the report that a table is made of; the paper has the first.
const FIGURES: [(&str, &str); 3] = [("mean", "latency, mean"), ("p50", "latency, p50"), ("p99", "latency, p99")];

pub(crate) fn fig5(reproduction: &mut Reproduction<'_>) -> io::Result<()> {
    let gate = has_gate()?;
    let allowed = machine::allowed_cpus()?;
    let common = &reproduction.setup.common;
    // Interrupts, and programs that do not choose, are on the first.
    let own = *common.client_cpus.first().or(allowed.last()).unwrap_or(&0);
    let other = *common.server_cpus.first().or(allowed.first()).unwrap_or(&own);
    for (placement, server) in [("one CPU", own), ("two CPUs", other)] {
        if placement == "two CPUs" && other == own {
            continue;
        }
        let cells = fig5_cells(reproduction, placement)?;
        let mut plan = reproduction.setup.plan(cells, Duration::from_millis(200), 5, 2);
        (plan.client_cpus, plan.server_cpus) = (vec![own], vec![server]);
        let ran = reproduction.measure(&plan)?;
        let mut tables = FIGURES.map(|figure| fig5_table(ran, placement, figure, gate));
        tables[0].differs = fig5_differs(gate, reproduction.items(FEW, FULL_SMALL));
        reproduction.tables(tables);
    }
    Ok(())
}

fn fig5_differs(gate: bool, items: u64) -> Vec<String> {
    let mut differs = vec![
        machines(MACHINE),
        "The paper's figures are means, over Unix sockets; it does not say on which CPUs client and server ran.".to_owned(),
        "memcached is reached by this program's own client.".to_owned(),
        if gate {
            "The gate here is protection keys on an unmodified kernel; the paper's library has Hodor's.".to_owned()
        } else {
            "This run has no gate: beside it is the paper's library without Hodor.".to_owned()
        },
    ];
    let few = format!(
        "{items} items of each size instead of 4·10⁷ of 128 B and 10⁶ of 5 KB, so that calls are measured and not the memory's latency \
         (--scale full has the paper's)."
    );
    differs.extend((items != FULL_SMALL).then_some(few));
    differs
}

/// Of each operation: the library and a TCP connection, each beside memcached.
fn fig5_cells(reproduction: &Reproduction<'_>, placement: &str) -> io::Result<Vec<Cell>> {
    let mut cells = Vec::new();
    for (workload, ..) in OPERATIONS {
        let workload = workloads::find(workload).map_err(io::Error::other)?;
        let is_large = workload.sizes.of(0).1 > 1024;
        let items = reproduction.items(FEW, if is_large { FULL_LARGE } else { FULL_SMALL });
        cells.extend([Door::Library, Door::Tcp].map(|door| Cell {
            setting: Some(placement.to_owned()),
            ..Cell::new(workload.clone(), items, door, 1)
        }));
    }
    Ok(cells)
}

/// The library beside memcached's faster socket.
fn fig5_table(ran: &[CellResult], placement: &str, (short, figure): (&str, &str), gate: bool) -> PaperTable {
    let mut table = PaperTable::new(
        format!("latency of one caller, {short}, client and memcached on {placement}"),
        &format!("{PAPER}, Figure 5"),
        ["memcached", if gate { "library with Hodor" } else { "library without Hodor" }],
        vec!["The paper gives means alone.".to_owned()],
    );
    for (workload, name, peer_us, gated_us, bare_us) in OPERATIONS {
        let of = |door: Door| {
            ran.iter()
                .find(|ran| ran.cell.workload.name == workload && ran.cell.door == door)
        };
        let peers = [(Door::Library, "memcached, Unix socket"), (Door::Tcp, "memcached, TCP")];
        let faster = peers
            .map(|(door, by)| (by, side(of(door), 1, figure)))
            .into_iter()
            .min_by(|(_, a), (_, b)| median(a).total_cmp(&median(b)));
        let (by, peer) = faster.unwrap_or_default();
        let row = PaperRow::of_figure(format!("{name}, library"), figure);
        let row = row.measured("library", &side(of(Door::Library), 0, figure), by, &peer);
        table.rows.push(if short == "mean" {
            row.paper(peer_us, if gate { gated_us } else { bare_us })
        } else {
            row
        });
    }
    table
}

/// A figure of throughput: workload, what it is called, items for minutes, and the paper's.
type Throughput = (&'static str, &'static str, u64, u64);

#[rustfmt::skip]
const THROUGHPUTS: [Throughput; 4] = [
    ("128b-95", "128 B, 95 % read", 100_000, FULL_SMALL),
    ("128b-50", "128 B, 50 % read", 100_000, FULL_SMALL),
    ("5k-95", "5 KB, 95 % read", 20_000, FULL_LARGE),
    ("5k-50", "5 KB, 50 % read", 20_000, FULL_LARGE),
];

/// Threads; the paper goes on to 40, two for each of its hyperthreads.
const CALLERS: [usize; 4] = [1, 2, 4, 8];
/// Section 4.1: at its peak the library has three times the throughput of memcached, with more threads than cores twice.
const RATIO_AT_PEAK: f64 = 3.0;
const RATIO_BEYOND: f64 = 2.0;
/// Read off its figures.
const PEAK_K_PER_S: f64 = 1500.0;

pub(crate) fn fig6_9(reproduction: &mut Reproduction<'_>) -> io::Result<()> {
    let gate = has_gate()?;
    for (name, title, small, full) in THROUGHPUTS {
        let workload = workloads::find(name).map_err(io::Error::other)?;
        let items = reproduction.items(small, full);
        let cells = CALLERS
            .map(|callers| Cell::new(workload.clone(), items, Door::Library, callers))
            .into();
        let mut plan = reproduction.setup.plan(cells, Duration::from_millis(300), 3, 2);
        // As many clients as can run at the same time: each of the paper's is a thread.
        plan.client_threads = machine::cpus().min(CALLERS[3]);
        let table = fig6_9_table(reproduction.measure(&plan)?, title, items, full, gate);
        reproduction.tables([table]);
    }
    Ok(())
}

fn fig6_9_table(ran: &[CellResult], title: &str, items: u64, full: u64, gate: bool) -> PaperTable {
    let mut differs = vec![
        machines(MACHINE),
        format!(
            "The paper's memcached has 4 or 8 threads, its callers are 1 to 40; here there are {} CPUs, which the callers share with memcached's \
             threads.",
            machine::cpus()
        ),
        "The paper gives its figures as curves: a peak of about 1,500 k/s, three times memcached's, and twice beyond the last hyperthread."
            .to_owned(),
        "The best of each side may be at different numbers of callers. memcached is reached by this program's own client, whose threads \
         have several connections each if there are more than CPUs."
            .to_owned(),
        if gate { "With a gate." } else { "Without a gate." }.to_owned(),
    ];
    differs.extend((items != full).then(|| format!("{items} items instead of {full} (--scale full has as many).")));
    let source = format!("{PAPER}, Figures 6 to 9");
    let mut table = PaperTable::new(format!("throughput, {title}"), &source, ["memcached", "library"], differs);
    let row = |name: String, [own, peer]: [&[f64]; 2]| {
        PaperRow::of_figure(format!("threads: {name}"), "throughput").measured("threads", own, "memcached, Unix socket", peer)
    };
    let points: Vec<[Vec<f64>; 2]> = ran
        .iter()
        .map(|ran| [0, 1].map(|at| side(Some(ran), at, "throughput")))
        .collect();
    for (ran, [own, peer]) in ran.iter().zip(&points) {
        let row = row(ran.cell.connections.to_string(), [own, peer]);
        // The paper says no more of single points than that it stays so beyond the last hyperthread.
        let is_beyond = ran.cell.connections > machine::cpus();
        table.rows.push(if is_beyond {
            row.paper_ratio(RATIO_BEYOND, RATIO_BEYOND)
        } else {
            row
        });
    }
    let best = |at: usize| {
        points
            .iter()
            .map(|point| point[at].as_slice())
            .max_by(|a, b| median(a).total_cmp(&median(b)))
    };
    let row = row("best".to_owned(), [0, 1].map(|at| best(at).unwrap_or(&[])));
    table
        .rows
        .push(row.paper_system(PEAK_K_PER_S).paper_ratio(RATIO_AT_PEAK, RATIO_AT_PEAK));
    table
}

/// NaN of nothing, which is the greatest of all.
fn median(values: &[f64]) -> f64 {
    values.iter().copied().collect::<Samples>().median()
}
