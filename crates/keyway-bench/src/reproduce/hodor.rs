//! "Memcached as a protected library" (Kjellqvist, Hedayati, Scott, ICPP 2020): latency of calls (Figure 5).
//!
//! The paper's machine: one Xeon Gold 5215 (10 cores, 20 hyperthreads, 2.5 GHz, 192 GB), a kernel with Hodor, YCSB's zipfian keys,
//! 4·10⁷ records of 128 B or 10⁶ of 5 KB, memcached over Unix sockets with 4 or 8 threads.

use super::{Preset, Reproduction, has_gate, machines};
use crate::machine;
use crate::paper::{PaperRow, PaperTable};
use crate::plan::{Cell, Door};
use crate::report::{Better, values};
use crate::run::CellRan;
use crate::workloads;
use std::io;
use std::time::Duration;

pub(super) const FIG5: Preset = Preset {
    name: "hodor-fig5",
    about: "Memcached as a protected library (ICPP 2020), Figure 5: latency of one caller, on memcached's CPU and on another one",
    run: fig5,
};

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

/// What is read off a cell: the figure's name in the report, and the digits that are worth showing.
const FIGURES: [(&str, &str); 3] = [("mean", "latency, mean"), ("p50", "latency, p50"), ("p99", "latency, p99")];

fn fig5(reproduction: &mut Reproduction<'_>) -> io::Result<()> {
    let dropin = reproduction.dropin().is_some();
    let gate = has_gate()?;
    let allowed = machine::allowed_cpus()?;
    // Interrupts, and everybody who does not choose, are on the first.
    let own = reproduction
        .setup
        .client_cpus
        .first()
        .or(allowed.last())
        .copied()
        .unwrap_or(0);
    let mut placements = vec![("one CPU", own)];
    let chosen = reproduction.setup.server_cpus.first();
    placements.extend(
        chosen
            .or(allowed.first())
            .filter(|&&cpu| cpu != own)
            .map(|&cpu| ("two CPUs", cpu)),
    );
    for (placement, server) in placements {
        let cells = fig5_cells(reproduction, placement, dropin)?;
        let mut plan = reproduction.plan(cells, Duration::from_millis(200), 5);
        (plan.client_cpus, plan.server_cpus) = (vec![own], vec![server]);
        let ran = reproduction.measure(&plan)?;
        let [mean, p50, p99] = FIGURES.map(|figure| fig5_table(ran, placement, figure, gate));
        let differs = fig5_differs(gate, reproduction.items(FEW, FULL_SMALL));
        reproduction.table(PaperTable { differs, ..mean });
        reproduction.table(p50);
        reproduction.table(p99);
    }
    Ok(())
}

fn fig5_differs(gate: bool, items: u64) -> Vec<String> {
    let mut differs = vec![
        machines(MACHINE),
        "The paper's figures are means, over Unix sockets; it does not say on which CPUs client and server ran.".to_owned(),
        "memcached is reached by this program's own client beside the library, and by the system's libmemcached beside the drop-in."
            .to_owned(),
        if gate {
            "The gate here is protection keys on an unmodified kernel; the paper's library has Hodor's.".to_owned()
        } else {
            "This run has no gate: beside it is the paper's library without Hodor.".to_owned()
        },
    ];
    if items != FULL_SMALL {
        differs.push(format!(
            "{items} items of each size instead of 4·10⁷ of 128 B and 10⁶ of 5 KB, so that calls are measured and not the memory's latency \
             (--scale full has the paper's)."
        ));
    }
    differs
}

/// Of each operation: the library, the drop-in and a TCP connection, each beside memcached.
fn fig5_cells(reproduction: &Reproduction<'_>, placement: &str, dropin: bool) -> io::Result<Vec<Cell>> {
    let mut cells = Vec::new();
    for (workload, ..) in OPERATIONS {
        let workload = workloads::find(workload).map_err(io::Error::other)?;
        let full = if workload.sizes.of(0).1 > 1024 {
            FULL_LARGE
        } else {
            FULL_SMALL
        };
        let items = reproduction.items(FEW, full);
        for door in [Door::Library, Door::Libmemcached, Door::Tcp] {
            if door != Door::Libmemcached || dropin {
                cells.push(Cell {
                    setting: Some(placement.to_owned()),
                    ..Cell::new(workload.clone(), items, door, 1)
                });
            }
        }
    }
    Ok(cells)
}

/// The library and the drop-in beside memcached's faster socket.
fn fig5_table(ran: &[CellRan], placement: &str, (short, figure): (&str, &str), gate: bool) -> PaperTable {
    let mut rows = Vec::new();
    for (workload, name, peer_us, gated_us, bare_us) in OPERATIONS {
        let of = |door: Door| {
            ran.iter()
                .find(|ran| ran.cell.workload.name == workload && ran.cell.door == door)
        };
        let peers = [(Door::Library, "memcached, Unix socket"), (Door::Tcp, "memcached, TCP")];
        let peer = faster(peers.map(|(door, by)| (by, side(of(door), 1, figure))));
        for (by, door) in [("library", Door::Library), ("drop-in", Door::Libmemcached)] {
            let Some(cell) = of(door) else { continue };
            let own = side(Some(cell), 0, figure);
            let row = PaperRow::new(format!("{name}, {by}"), "µs", 3, Better::Lower);
            // Beside the drop-in is what the same program does without it.
            let row = match (door, &peer) {
                (Door::Libmemcached, _) if cell.sides.len() > 1 => row.measured(
                    by,
                    &own,
                    "libmemcached to memcached, Unix socket",
                    &side(Some(cell), 1, figure),
                ),
                (Door::Library, Some((peer_by, peer))) => row.measured(by, &own, peer_by, peer),
                _ => row.keyway(by, &own),
            };
            rows.push(if short == "mean" {
                row.paper(peer_us, if gate { gated_us } else { bare_us })
            } else {
                row
            });
        }
    }
    PaperTable {
        preset: String::new(),
        title: format!("latency of one caller, {short}, client and memcached on {placement}"),
        source: "Memcached as a protected library (ICPP 2020), Figure 5".to_owned(),
        paper_peer: "memcached".to_owned(),
        paper_system: if gate { "library with Hodor" } else { "library without Hodor" }.to_owned(),
        rows,
        differs: vec!["The paper gives means alone.".to_owned()],
    }
}

/// What a side of a cell gave in each measurement; nothing of one that was not measured.
fn side(ran: Option<&CellRan>, at: usize, figure: &str) -> Vec<f64> {
    ran.and_then(|ran| ran.sides.get(at))
        .map_or_else(Vec::new, |side| values(side, figure))
}

/// The peer with the least median, if any was measured.
fn faster<const N: usize>(peers: [(&'static str, Vec<f64>); N]) -> Option<(&'static str, Vec<f64>)> {
    let median = |values: &[f64]| values.iter().copied().collect::<crate::samples::Samples>().median();
    peers
        .into_iter()
        .filter(|(_, values)| !values.is_empty())
        .min_by(|(_, a), (_, b)| median(a).total_cmp(&median(b)))
}
