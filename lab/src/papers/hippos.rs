//! "Hippos: a high-throughput, low-latency, and energy-efficient key-value store implementation" (2014): latency and peak throughput (Figure 7), mixes of gets and sets
//! (Figure 9), Facebook's pools (Figure 10, Table 4), and a surge (section 2.1).
//!
//! The paper's machine: eight Xeon cores at 2.33 GHz and 64 GB, 1 Gb/s and 10 Gb/s Ethernet, eight and 24 client machines, Linux 3.5 with a kernel module; memcached 1.4.15 in
//! Facebook's version with one UDP port a thread.

use super::kernel_door::{self, BOTH_CPU, GETS, MACHINE_CPU, MEAN, OTHERS, THROUGHPUT};
use crate::flood::{Flood, Phase};
use crate::kernel::{self, Doors, How, Job, way};
use crate::peak::Limit;
use crate::presets::{Preset, Reproduction};
use crate::table::PaperRow;
use keyway_bench::caches::Side;
use keyway_bench::load::Load;
use keyway_bench::machine;
use keyway_bench::measurement::Measurement;
use keyway_bench::mix::{Kind, Stream, Workload};
use keyway_bench::plan::{Cell, Pace, Plan};
use keyway_bench::report::Better;
use keyway_bench::workload::Ranks;
use keyway_bench::workloads;
use std::io;

pub(crate) const FIG7: Preset = Preset {
    name: "hippos-fig7",
    about: "Hippos (2014), Figure 7: latency of gets against their rate, and the highest rate with a mean below 1 ms; as root",
    run: fig7,
};
pub(crate) const FIG9: Preset = Preset {
    name: "hippos-fig9",
    about: "Hippos, Figure 9: latency of mixes from all gets to all sets at three rates; as root",
    run: fig9,
};
pub(crate) const FIG10: Preset = Preset {
    name: "hippos-fig10",
    about: "Hippos, Figure 10: highest rate of Facebook's five pools with a mean below 1 ms; as root",
    run: fig10,
};
pub(crate) const TABLE4: Preset = Preset {
    name: "hippos-table4",
    about: "Hippos, Table 4: latency and CPU time of Facebook's five pools at low, medium and high rate; as root",
    run: table4,
};
pub(crate) const SURGE: Preset = Preset {
    name: "hippos-surge",
    about: "Hippos, section 2.1: a surge to three times the peak rate and back, and what is lost in it; as root",
    run: surge,
};

const MACHINE: &str = "an eight-core Xeon at 2.33 GHz with 64 GB, behind 1 Gb/s Ethernet and eight client machines";
const SYSTEM: &str = "Hippos";
/// Few enough for the kernel door's memory, and for stripes of a few keys each.
const ITEMS: u64 = 10_000;
/// Enough that none is waited for below the peak, and few enough for one socket's queue in the server.
const SOCKETS: usize = 64;
/// The paper's bound of a peak.
const LIMIT: Limit = Limit {
    percentile: None,
    us: 1000.0,
};

fn differs() -> Vec<String> {
    let mut differs = kernel_door::differs(MACHINE);
    differs.push(
        "memcached is Debian's or the one that KEYWAY_MEMCACHED names, with one thread, like Keyway; the paper's was 1.4.15 on eight cores.".to_owned(),
    );
    differs
}

fn items(reproduction: &Reproduction<'_>) -> u64 {
    reproduction.items(ITEMS, 1_000_000)
}

fn fig7(reproduction: &mut Reproduction<'_>) -> io::Result<()> {
    const SOURCE: &str = "Hippos (2014), Figure 7 (a), 1 Gb/s";
    let items = items(reproduction);
    let found = kernel_door::mixed(20, 20, 100)?;
    let absent = Workload {
        name: "20/20 B, absent keys".to_owned(),
        mix: vec![(Kind::GetNew, 1)],
        ..found.clone()
    };
    let shares = [20.0, 40.0, 60.0, 80.0, 100.0];
    let peak = How::Peak(LIMIT);
    let mut jobs: Vec<Job> = kernel_door::both(&found, items, SOCKETS, Pace::Closed, peak).to_vec();
    for share in shares {
        jobs.extend(kernel_door::both(&found, items, SOCKETS, Pace::Closed, How::Share(share)));
    }
    jobs.extend(kernel_door::both(&absent, items, SOCKETS, Pace::Closed, peak));
    let plan = kernel_door::plan(reproduction, 300, 3)?;
    let ran = reproduction.measure_kernel(&plan, &jobs)?;
    let mut peaks = kernel_door::table(
        "highest rate of gets with a mean latency below 1 ms",
        SOURCE,
        SYSTEM,
        differs(),
    );
    let mut curve = kernel_door::table("mean latency of gets at a given rate", SOURCE, SYSTEM, Vec::new());
    for (ran, job) in ran.iter().zip(&jobs) {
        let is_absent = ran.cell.workload.name == absent.name;
        match job.how {
            How::Peak(_) if is_absent => {
                peaks.rows.push(kernel_door::row("absent keys", ran, THROUGHPUT, |row| {
                    row.paper(320.0, 520.0)
                }));
            }
            How::Peak(_) => {
                peaks
                    .rows
                    .push(kernel_door::row("keys that are there", ran, THROUGHPUT, |row| {
                        row.paper(240.0, 480.0)
                    }));
            }
            How::Share(share) => {
                let name = format!("{share:.0} % of memcached's closed loop");
                curve.rows.push(kernel_door::row(&name, ran, MEAN, |row| row));
            }
            How::AsSaid | How::Flood(_) => {}
        }
    }
    peaks
        .differs
        .push("The kernel door passes a miss up to the server, so absent keys are user space's; the paper's answers them in the kernel.".to_owned());
    curve.differs.push(
        "The paper's curve is a plot without numbers: both latencies hardly rise until the peak, where they jump.".to_owned(),
    );
    reproduction.table(peaks);
    reproduction.table(curve);
    Ok(())
}

fn fig9(reproduction: &mut Reproduction<'_>) -> io::Result<()> {
    let items = items(reproduction);
    let gets = kernel_door::mixed(20, 20, 100)?;
    let peak = closed(reproduction, &gets, items)?;
    let rates = [("low", 0.2), ("medium", 0.4), ("high", 0.7)];
    let mut jobs = Vec::new();
    for percent in [100, 75, 50, 25, 0] {
        let workload = kernel_door::mixed(20, 20, percent)?;
        for (_, share) in rates {
            let rate = Pace::Rate((peak * share).round());
            jobs.extend(kernel_door::both(&workload, items, SOCKETS, rate, How::AsSaid));
        }
    }
    let plan = kernel_door::plan(reproduction, 300, 3)?;
    let ran = reproduction.measure_kernel(&plan, &jobs)?;
    let mut table = kernel_door::table(
        "mean latency of mixes of gets and sets",
        "Hippos (2014), Figure 9",
        SYSTEM,
        differs(),
    );
    for ran in ran {
        let Pace::Rate(rate) = ran.cell.pace else { continue };
        let name = format!("{} at {:.0} k/s", ran.cell.workload.name, rate / 1e3);
        table.rows.push(kernel_door::row(&name, ran, MEAN, |row| row));
    }
    table.differs.push(
        "The paper's figure is a plot without numbers, at 80, 160, 240 and 320 k/s: at 80 k/s sets cost hardly any latency, at 320 k/s all sets are above 1 ms. Rates \
         here are 20, 40 and 70 % of what memcached does of gets in a closed loop."
            .to_owned(),
    );
    reproduction.table(table);
    Ok(())
}

/// What the peer does of this workload in a closed loop, operations a second.
fn closed(reproduction: &mut Reproduction<'_>, workload: &Workload, items: u64) -> io::Result<f64> {
    let plan = kernel_door::plan(reproduction, 300, 3)?;
    let jobs = kernel_door::both(workload, items, SOCKETS, Pace::Closed, How::AsSaid);
    let peak = kernel_door::peak_of_peer(reproduction.measure_kernel(&plan, &jobs)?);
    peak.ok_or_else(|| io::Error::other("nothing was measured to take rates from"))
}

/// A pool of Facebook's: workload, and the paper's ratio of peaks with 1 Gb/s.
const POOLS: [(&str, f64); 5] = [
    ("fb-usr", 1.98),
    ("fb-etc", 1.41),
    ("fb-app", 1.15),
    ("fb-var", 2.5),
    ("fb-sys", 1.33),
];

fn fig10(reproduction: &mut Reproduction<'_>) -> io::Result<()> {
    let items = items(reproduction);
    let mut jobs = Vec::new();
    for (pool, _) in POOLS {
        let workload = workloads::find(pool).map_err(io::Error::other)?;
        jobs.extend(kernel_door::both(&workload, items, SOCKETS, Pace::Closed, How::Peak(LIMIT)));
    }
    let plan = kernel_door::plan(reproduction, 200, 3)?;
    let ran = reproduction.measure_kernel(&plan, &jobs)?;
    let title = "highest rate of Facebook's pools with a mean latency below 1 ms";
    let mut table = kernel_door::table(
        title,
        "Hippos (2014), Figure 10 (a) and section 3.2, 1 Gb/s",
        SYSTEM,
        differs(),
    );
    for ran in ran {
        let name = &ran.cell.workload.name;
        let ratio = POOLS
            .iter()
            .find(|(pool, _)| pool == name)
            .map_or(f64::NAN, |(_, ratio)| *ratio);
        table
            .rows
            .push(kernel_door::row(name, ran, THROUGHPUT, |row| row.paper_ratio(ratio, ratio)));
    }
    table.differs.push(
        "The paper gives ratios in its text; with 1 Gb/s, ETC, APP and SYS are bound by the wire, which is not here (10 Gb/s: 2.4, 2.0 and 6.9)."
            .to_owned(),
    );
    reproduction.table(table);
    Ok(())
}

/// Latencies of Table 4: of memcached, and Hippos's change, or its own where memcached's is above 1 ms.
#[derive(Clone, Copy)]
enum Theirs {
    /// µs, and the change in percent
    Change(f64, f64),
    /// µs of Hippos alone
    Alone(f64),
}

impl Theirs {
    fn on(self, row: PaperRow) -> PaperRow {
        match self {
            Self::Change(us, percent) => row.paper(us, (us * (1.0 + percent / 100.0)).round()),
            Self::Alone(us) => row.paper_system(us),
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

fn table4(reproduction: &mut Reproduction<'_>) -> io::Result<()> {
    const SOURCE: &str = "Hippos (2014), Table 4, 1 Gb/s";
    let items = items(reproduction);
    let mut jobs = Vec::new();
    for (pool, _) in POOL_ROWS {
        let workload = workloads::find(pool).map_err(io::Error::other)?;
        for (_, share) in LOADS {
            jobs.extend(kernel_door::both(&workload, items, SOCKETS, Pace::Closed, How::Share(share)));
        }
    }
    let plan = kernel_door::plan(reproduction, 300, 3)?;
    let ran = reproduction.measure_kernel(&plan, &jobs)?;
    let mut gets = kernel_door::table("mean latency of gets of Facebook's pools", SOURCE, SYSTEM, differs());
    let mut others = kernel_door::table(
        "mean latency of updates and deletes of Facebook's pools",
        SOURCE,
        SYSTEM,
        Vec::new(),
    );
    let mut cpu = kernel_door::table(
        "CPU time of the machine a request, of Facebook's pools",
        SOURCE,
        SYSTEM,
        Vec::new(),
    );
    let title = "CPU time of client and server a request, of Facebook's pools";
    let mut both = kernel_door::table(title, SOURCE, SYSTEM, Vec::new());
    for (ran, job) in ran.iter().zip(&jobs) {
        let How::Share(share) = job.how else { continue };
        let at = LOADS.iter().position(|(_, percent)| *percent == share);
        let rated = POOL_ROWS.iter().find(|(pool, _)| *pool == ran.cell.workload.name);
        let (Some(at), Some((pool, rated))) = (at, rated) else {
            continue;
        };
        let (rate_k, theirs, updates, watts, change) = rated[at];
        let name = format!("{pool}, {} rate (paper: {rate_k:.0} k/s)", LOADS[at].0);
        gets.rows.push(kernel_door::row(&name, ran, GETS, |row| theirs.on(row)));
        others.rows.push(kernel_door::row(&name, ran, OTHERS, |row| updates.on(row)));
        cpu.rows
            .push(kernel_door::row(&name, ran, MACHINE_CPU, |row| Change(watts, change).on(row)));
        both.rows.push(kernel_door::row(&name, ran, BOTH_CPU, |row| row));
    }
    let rates = "Low, medium and high are 30, 60 and 90 % of what memcached does of the pool in a closed loop; the paper's rates are in the names of the rows.";
    gets.differs.push(rates.to_owned());
    others
        .differs
        .push("The paper's figures are of updates alone; its deletes are within 30 % of them.".to_owned());
    cpu.differs.push(
        "The paper measured watts at the server's plug, idle power included: its columns here are watts, ours CPU time of the whole machine, client included.".to_owned(),
    );
    both.differs.push(
        "For machines on which others are at work: it leaves out what the kernel does while neither runs, and counts to both what it does while they do.".to_owned(),
    );
    [gets, others, cpu, both]
        .into_iter()
        .for_each(|table| reproduction.table(table));
    Ok(())
}

fn surge(reproduction: &mut Reproduction<'_>) -> io::Result<()> {
    let items = items(reproduction);
    let workload = kernel_door::mixed(20, 20, 100)?;
    let peak = closed(reproduction, &workload, items)?;
    // A cache that runs at half of what it can do: a surge is then half as much again as it can.
    let usual = peak * 0.5;
    let jobs = kernel_door::both(&workload, items, 1, Pace::Closed, How::Flood(usual));
    let plan = kernel_door::plan(reproduction, 700, 3)?;
    let cells = jobs.each_ref().map(|job| &job.cell);
    let doors = Doors::start(reproduction.clients()?, &plan, &cells)?;
    let title = format!(
        "a surge from {:.0} to {:.0} k/s and back, half of memcached's closed loop and one and a half times it",
        usual / 1e3,
        usual * 3.0 / 1e3
    );
    let mut table = kernel_door::table(&title, "Hippos (2014), section 2.1", SYSTEM, differs());
    let names = ["before", "in the surge", "after it"];
    for cell in cells {
        let way = way(cell);
        // By side, repetition and phase.
        let mut all: Vec<Vec<Vec<Measurement>>> = Vec::new();
        let sides = doors.sides(cell);
        sides
            .iter()
            .for_each(|side| reproduction.measured(side.name, side.about.clone()));
        all.resize_with(sides.len(), Vec::new);
        for repetition in 0..plan.repetitions {
            for (side, all) in sides.iter().zip(&mut all) {
                reproduction.doing(&format!("surge, {way}: {}", side.name), 0.5);
                let ran = flood(&plan, cell, side, repetition as u64, usual)?;
                if let Some(wrong) = ran.iter().find(|ran| ran.wrong.any()) {
                    return Err(reproduction.failed(format!("{}: {}", side.name, wrong.wrong)));
                }
                all.push(ran);
            }
        }
        for (phase, name) in names.iter().enumerate() {
            let of = |side: usize, figure: fn(&Measurement) -> f64| -> Vec<f64> {
                let runs = all.get(side).map_or(&[][..], Vec::as_slice);
                runs.iter().filter_map(|phases| phases.get(phase)).map(figure).collect()
            };
            let mut row = |what: &str, unit: &str, better, figure: fn(&Measurement) -> f64| {
                let row = PaperRow::new(format!("{name}, {what}, {way}"), unit, 2, better);
                table.rows.push(if all.len() > 1 {
                    row.measured(way, &of(0, figure), "memcached, UDP", &of(1, figure))
                } else {
                    row.keyway(way, &of(0, figure))
                });
            };
            row("answered", "k/s", Better::Higher, |ran| ran.rate() / 1e3);
            row("lost", "%", Better::Lower, lost_percent);
            row("mean latency of what was answered", "µs", Better::Lower, |ran| {
                ran.reads.mean_us()
            });
        }
    }
    table.differs.push(
        "The paper names surges to two and three times the usual peak as what a cache is built for, and does not measure one."
            .to_owned(),
    );
    reproduction.table(table);
    Ok(())
}

#[allow(clippy::cast_precision_loss, reason = "counts are below 2^53")]
fn lost_percent(ran: &Measurement) -> f64 {
    ran.dropped as f64 / (ran.operations + ran.dropped) as f64 * 100.0
}

/// The usual rate, three times that, and the usual rate again, from the client's CPU.
fn flood(plan: &Plan, cell: &Cell, side: &Side, repetition: u64, usual: f64) -> io::Result<Vec<Measurement>> {
    let items = cell.workload.items(cell.items);
    side.prepare(cell, &items)?;
    let ranks = Ranks::new(cell.workload.access, cell.items);
    let load = Load {
        stream: Stream::new(&cell.workload, cell.items, &ranks, side.store.newest.clone(), repetition + 1),
        items,
        fill: false,
        rate: None,
        thread: repetition + 1,
    };
    let flood = Flood::open(kernel::target(side)?, load)?;
    let phases = [1.0, 3.0, 1.0].map(|times| Phase {
        rate: usual * times,
        length: plan.length,
    });
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| {
            if !plan.client_cpus.is_empty() {
                machine::pin(&plan.client_cpus)?;
            }
            Ok(flood.run_phases(&phases))
        });
        sending.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
