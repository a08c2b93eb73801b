//! "Hippos: a high-throughput, low-latency, and energy-efficient key-value store implementation" (2014): latency and peak throughput (Figure 7), mixes of gets and sets
//! (Figure 9), Facebook's pools (Figure 10, Table 4), and a surge (section 2.1).
//!
//! The paper's machine: eight Xeon cores at 2.33 GHz and 64 GB, 1 Gb/s and 10 Gb/s Ethernet, eight and 24 client machines, Linux 3.5 with a kernel module; memcached 1.4.15 in
//! Facebook's version with one UDP port a thread.

use super::kernel_door::{self, Line, Paper, both, mixed, paced};
use crate::datagrams::{Datagrams, Phase};
use crate::kernel::{self, Doors, How, way};
use crate::presets::Reproduction;
use crate::table::{PaperRow, PaperTable};
use keyway_bench::caches::Side;
use keyway_bench::machine;
use keyway_bench::measurement::Measurement;
use keyway_bench::mix::{Kind, Workload};
use keyway_bench::plan::{Cell, Pace, Plan};
use keyway_bench::report::Better;
use keyway_bench::run::{Draw, Operations};
use keyway_bench::workloads;
use std::io;

const MACHINE: &str = "an eight-core Xeon at 2.33 GHz with 64 GB, behind 1 Gb/s Ethernet and eight client machines";
const SYSTEM: &str = "Hippos";
/// Few enough for the kernel door's memory, and for stripes of a few keys each.
const ITEMS: u64 = 10_000;
/// Enough that none is waited for below the peak, and few enough for one socket's queue in the server.
const SOCKETS: usize = 64;
/// The paper's bound of a peak.
const MEAN_US_MAX: f64 = 1000.0;

fn tables<const N: usize>(source: &str, titles: [(&str, &str); N]) -> [PaperTable; N] {
    let peer = "memcached is Debian's or the one that KEYWAY_MEMCACHED names, with one thread, like Keyway; the paper's was 1.4.15 on eight cores.";
    kernel_door::tables(source, SYSTEM, kernel_door::differs(MACHINE, peer), titles)
}

fn items(reproduction: &Reproduction<'_>) -> u64 {
    reproduction.items(ITEMS, 1_000_000)
}

pub(crate) fn fig7(reproduction: &mut Reproduction<'_>) -> io::Result<()> {
    let items = items(reproduction);
    let found = mixed(20, 20, 100)?;
    let absent = Workload {
        name: "20/20 B, absent keys".to_owned(),
        mix: vec![(Kind::GetNew, 1)],
        ..found.clone()
    };
    let peak = |workload, name: &str, paper| {
        both(workload, items, SOCKETS, How::Peak(MEAN_US_MAX), |_| {
            vec![(0, name.to_owned(), "throughput", paper)]
        })
    };
    let mut lines = Vec::from(peak(&found, "keys that are there", Paper::Both(240.0, 480.0)));
    for share in [20.0, 40.0, 60.0, 80.0, 100.0] {
        let name = format!("{share:.0} % of memcached's closed loop");
        let rows = |_: &str| vec![(1, name.clone(), "latency, mean", Paper::Nothing)];
        lines.extend(both(&found, items, SOCKETS, How::Share(share), rows));
    }
    lines.extend(peak(&absent, "absent keys", Paper::Both(320.0, 520.0)));
    let mut tables = tables(
        "Hippos (2014), Figure 7 (a), 1 Gb/s",
        [
            (
                "highest rate of gets with a mean latency below 1 ms",
                "The kernel door passes a miss up to the server, so absent keys are user space's; the paper's answers them in the kernel.",
            ),
            (
                "mean latency of gets at a given rate",
                "The paper's curve is a plot without numbers: both latencies hardly rise until the peak, where they jump.",
            ),
        ],
    );
    kernel_door::measure(reproduction, &kernel_door::plan(reproduction, 300, 3)?, &lines, &mut tables)?;
    reproduction.tables(tables);
    Ok(())
}

pub(crate) fn fig9(reproduction: &mut Reproduction<'_>) -> io::Result<()> {
    let items = items(reproduction);
    let peak = closed(reproduction, &mixed(20, 20, 100)?, items)?;
    let mut lines = Vec::new();
    for percent in [100, 75, 50, 25, 0] {
        let workload = mixed(20, 20, percent)?;
        for share in [0.2, 0.4, 0.7] {
            let rate = (peak * share).round();
            let name = format!("{} at {:.0} k/s", workload.name, rate / 1e3);
            let rows = |_: &str| vec![(0, name.clone(), "latency, mean", Paper::Nothing)];
            lines.extend(paced(&workload, items, SOCKETS, Pace::Rate(rate), How::AsSaid, rows));
        }
    }
    let mut tables = tables(
        "Hippos (2014), Figure 9",
        [(
            "mean latency of mixes of gets and sets",
            "The paper's figure is a plot without numbers, at 80, 160, 240 and 320 k/s: at 80 k/s sets cost hardly any latency, at 320 k/s all sets are above 1 ms. \
         Rates here are 20, 40 and 70 % of what memcached does of gets in a closed loop.",
        )],
    );
    kernel_door::measure(reproduction, &kernel_door::plan(reproduction, 300, 3)?, &lines, &mut tables)?;
    reproduction.tables(tables);
    Ok(())
}

/// What the peer does of this workload in a closed loop, operations a second.
fn closed(reproduction: &mut Reproduction<'_>, workload: &Workload, items: u64) -> io::Result<f64> {
    let plan = kernel_door::plan(reproduction, 300, 3)?;
    let lines = both(workload, items, SOCKETS, How::AsSaid, |_| Vec::new());
    kernel_door::peak_of_peer(kernel_door::measure(reproduction, &plan, &lines, &mut [])?)
}

/// A pool of Facebook's: workload, and the paper's ratio of peaks with 1 Gb/s.
const POOLS: [(&str, f64); 5] = [
    ("fb-usr", 1.98),
    ("fb-etc", 1.41),
    ("fb-app", 1.15),
    ("fb-var", 2.5),
    ("fb-sys", 1.33),
];

pub(crate) fn fig10(reproduction: &mut Reproduction<'_>) -> io::Result<()> {
    let items = items(reproduction);
    let mut lines = Vec::new();
    for (pool, ratio) in POOLS {
        let workload = workloads::find(pool).map_err(io::Error::other)?;
        let rows = |_: &str| vec![(0, pool.to_owned(), "throughput", Paper::Ratio(ratio))];
        lines.extend(both(&workload, items, SOCKETS, How::Peak(MEAN_US_MAX), rows));
    }
    let mut tables = tables(
        "Hippos (2014), Figure 10 (a) and section 3.2, 1 Gb/s",
        [(
            "highest rate of Facebook's pools with a mean latency below 1 ms",
            "The paper gives ratios in its text; with 1 Gb/s, ETC, APP and SYS are bound by the wire, which is not here (10 Gb/s: 2.4, 2.0 and 6.9).",
        )],
    );
    kernel_door::measure(reproduction, &kernel_door::plan(reproduction, 200, 3)?, &lines, &mut tables)?;
    reproduction.tables(tables);
    Ok(())
}

/// memcached's latency of Table 4, µs, and Hippos's change in percent.
fn change(us: f64, percent: f64) -> Paper {
    Paper::Both(us, (us * (1.0 + percent / 100.0)).round())
}

/// A figure of Table 4: memcached's and Hippos's change, or its own where memcached's is above 1 ms.
#[derive(Clone, Copy)]
enum Theirs {
    Change(f64, f64),
    Alone(f64),
}

impl Theirs {
    fn paper(self) -> Paper {
        match self {
            Self::Change(us, percent) => change(us, percent),
            Self::Alone(us) => Paper::System(us),
        }
    }
}

/// A pool's rates in k/s: gets, updates, and power in watts with its change.
type Rated = (f64, Theirs, Theirs, f64, f64);

use Theirs::{Alone, Change};

#[rustfmt::skip]
const POOL_ROWS: [(&str, [Rated; 3]); 5] = [
    ("fb-usr", [
        (160.0, Change(173.0, -28.0), Change(206.0, 6.0), 330.0, -19.0),
        (240.0, Change(235.0, -45.0), Change(234.0, -6.0), 343.0, -16.0),
        (320.0, Alone(226.0), Change(286.0, -11.0), 347.0, -15.0),
    ]),
    ("fb-etc", [
        (80.0, Change(327.0, -41.0), Change(183.0, -17.0), 302.0, -7.0),
        (160.0, Change(916.0, -72.0), Change(224.0, -20.0), 324.0, -9.0),
        (240.0, Alone(471.0), Change(279.0, -14.0), 337.0, -9.0),
    ]),
    ("fb-app", [
        (80.0, Change(289.0, -48.0), Change(185.0, -14.0), 303.0, -10.0),
        (160.0, Change(547.0, -53.0), Change(230.0, -18.0), 324.0, -10.0),
        (200.0, Alone(386.0), Change(237.0, 42.0), 337.0, -10.0),
    ]),
    ("fb-var", [
        (40.0, Change(163.0, -23.0), Change(163.0, -11.0), 286.0, -5.0),
        (80.0, Change(186.0, -32.0), Change(179.0, -12.0), 316.0, -10.0),
        (120.0, Alone(174.0), Alone(163.0), 326.0, -9.0),
    ]),
    ("fb-sys", [
        (80.0, Change(376.0, -54.0), Change(174.0, -10.0), 304.0, -6.0),
        (120.0, Change(331.0, -52.0), Change(201.0, -19.0), 319.0, -5.0),
        (160.0, Alone(230.0), Alone(231.0), 323.0, -6.0),
    ]),
];

/// Low, medium and high, in percents of memcached's closed loop.
const LOADS: [(&str, f64); 3] = [("low", 30.0), ("medium", 60.0), ("high", 90.0)];

pub(crate) fn table4(reproduction: &mut Reproduction<'_>) -> io::Result<()> {
    let items = items(reproduction);
    let mut lines = Vec::new();
    for (pool, rated) in POOL_ROWS {
        let workload = workloads::find(pool).map_err(io::Error::other)?;
        for ((load, share), (rate_k, gets, updates, watts, changed)) in LOADS.into_iter().zip(rated) {
            let name = format!("{pool}, {load} rate (paper: {rate_k:.0} k/s)");
            let rows = |_: &str| {
                let figures = [
                    ("latency of gets, mean", gets.paper()),
                    ("latency of the others, mean", updates.paper()),
                    ("machine CPU an operation", change(watts, changed)),
                    ("client and server CPU an operation", Paper::Nothing),
                ];
                let row = |(table, (figure, paper))| (table, name.clone(), figure, paper);
                figures.into_iter().enumerate().map(row).collect()
            };
            lines.extend(both(&workload, items, SOCKETS, How::Share(share), rows));
        }
    }
    let mut tables = tables(
        "Hippos (2014), Table 4, 1 Gb/s",
        [
            (
                "mean latency of gets of Facebook's pools",
                "Low, medium and high are 30, 60 and 90 % of what memcached does of the pool in a closed loop; the paper's rates are in the names of the rows.",
            ),
            (
                "mean latency of updates and deletes of Facebook's pools",
                "The paper's figures are of updates alone; its deletes are within 30 % of them.",
            ),
            (
                "CPU time of the machine a request, of Facebook's pools",
                "The paper measured watts at the server's plug, idle power included: its columns here are watts, ours CPU time of the whole machine, client included.",
            ),
            (
                "CPU time of client and server a request, of Facebook's pools",
                "For machines on which others are at work: it leaves out what the kernel does while neither runs, and counts to both what it does while they do.",
            ),
        ],
    );
    kernel_door::measure(reproduction, &kernel_door::plan(reproduction, 300, 3)?, &lines, &mut tables)?;
    reproduction.tables(tables);
    Ok(())
}

pub(crate) fn surge(reproduction: &mut Reproduction<'_>) -> io::Result<()> {
    let items = items(reproduction);
    let workload = mixed(20, 20, 100)?;
    // A cache that runs at half of what it can do: a surge is then half as much again as it can.
    let usual = closed(reproduction, &workload, items)? * 0.5;
    let lines = both(&workload, items, 1, How::Flood(usual), |_| Vec::new());
    let plan = kernel_door::plan(reproduction, 700, 3)?;
    let cells = lines.map(|Line { job, .. }| job.cell);
    let doors = Doors::start(reproduction.clients()?, &plan, &cells)?;
    let title = format!(
        "a surge from {:.0} to {:.0} k/s and back, half of memcached's closed loop and one and a half times it",
        usual / 1e3,
        usual * 3.0 / 1e3
    );
    let [mut table] = tables(
        "Hippos (2014), section 2.1",
        [(
            title.as_str(),
            "The paper names surges to two and three times the usual peak as what a cache is built for, and does not measure one.",
        )],
    );
    for cell in &cells {
        let (way, sides) = (way(cell), doors.sides(cell));
        // By side, repetition and phase.
        let mut all = [Vec::new(), Vec::new()];
        for side in &sides {
            reproduction.measured(side.name, side.about.clone());
        }
        for repetition in 0..plan.repetitions {
            for (side, all) in sides.iter().zip(&mut all) {
                reproduction.doing(&format!("surge, {way}: {}", side.name), 0.5);
                let ran = flood(&plan, cell, side, repetition, usual)?;
                if let Some(wrong) = ran.iter().find(|ran| ran.wrong.any()) {
                    return Err(reproduction.failed(format!("{}: {}", side.name, wrong.wrong)));
                }
                all.push(ran);
            }
        }
        for (phase, name) in ["before", "in the surge", "after it"].into_iter().enumerate() {
            let figures: [Figure; 3] = [
                ("answered", "k/s", Better::Higher, |ran| ran.rate() / 1e3),
                ("lost", "%", Better::Lower, lost_percent),
                ("mean latency of what was answered", "µs", Better::Lower, |ran| {
                    ran.reads.mean_us()
                }),
            ];
            for (what, unit, better, figure) in figures {
                let [own, peer] = all
                    .each_ref()
                    .map(|runs| runs.iter().map(|phases| figure(&phases[phase])).collect::<Vec<_>>());
                let row = PaperRow::new(format!("{name}, {what}, {way}"), unit, 2, better);
                table.rows.push(row.measured(way, &own, "memcached, UDP", &peer));
            }
        }
    }
    reproduction.tables([table]);
    Ok(())
}

/// What is read off a phase: name, unit, which way is better, and how.
type Figure = (&'static str, &'static str, Better, fn(&Measurement) -> f64);

#[allow(clippy::cast_precision_loss, reason = "counts are below 2^53")]
fn lost_percent(ran: &Measurement) -> f64 {
    ran.dropped as f64 / (ran.operations + ran.dropped) as f64 * 100.0
}

/// The usual rate, three times that, and the usual rate again, from the client's CPU.
fn flood(plan: &Plan, cell: &Cell, side: &Side, repetition: usize, usual: f64) -> io::Result<Vec<Measurement>> {
    let operations = Operations::new(cell);
    side.prepare(cell, &operations.items)?;
    let mut loads = operations.loads(plan, cell, side, Draw { repetition, step: 0 }, 1, None);
    let sockets = loads
        .pop()
        .map(|load| Datagrams::open(kernel::target(side)?, load))
        .transpose()?;
    let phases = [1.0, 3.0, 1.0].map(|times| Phase {
        rate: usual * times,
        length: plan.length,
    });
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| {
            if !plan.client_cpus.is_empty() {
                machine::pin(&plan.client_cpus)?;
            }
            Ok(sockets.map_or_else(Vec::new, |socket| socket.phases(&phases)))
        });
        sending.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
