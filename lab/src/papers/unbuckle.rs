//! "Unbuckle: a high-performance key-value store" (Cambridge, 2014): the kernel beside user space (Figure 4.6), one thread and several beside memcached (4.7, 4.8), threads (4.9),
//! small and large items (Table 4.1), and packets lost under overload (4.3b).
//!
//! The paper's machine: servers and clients of 10 Gb/s Ethernet, a six-core Ivy Bridge-EP for threads; a kernel module, and the same source in user space; memcached 1.4.17; keys
//! of 64 B, 90 % gets, by memaslap.

use super::kernel_door::{self, LOST, P50, P99, THROUGHPUT};
use crate::kernel::{How, KERNEL, USER, way};
use crate::presets::{Preset, Reproduction};
use crate::table::{PaperRow, PaperTable};
use keyway_bench::machine;
use keyway_bench::mix::Workload;
use keyway_bench::plan::Pace;
use keyway_bench::report::Better;
use keyway_bench::run::CellResult;
use std::io;

pub(crate) const FIG4_3B: Preset = Preset {
    name: "unbuckle-fig4.3b",
    about: "Unbuckle (2014), Figure 4.3b: packets lost above capacity; as root",
    run: fig4_3b,
};
pub(crate) const FIG4_6: Preset = Preset {
    name: "unbuckle-fig4.6",
    about: "Unbuckle, Figure 4.6: median latency in the kernel and in user space against the size of a value; as root",
    run: fig4_6,
};
pub(crate) const FIG4_7: Preset = Preset {
    name: "unbuckle-fig4.7",
    about: "Unbuckle, Figure 4.7: one thread beside memcached with one, three sizes; as root",
    run: fig4_7,
};
pub(crate) const FIG4_8: Preset = Preset {
    name: "unbuckle-fig4.8",
    about: "Unbuckle, Figure 4.8: a thread a CPU beside memcached with as many, three sizes; as root",
    run: fig4_8,
};
pub(crate) const FIG4_9: Preset = Preset {
    name: "unbuckle-fig4.9",
    about: "Unbuckle, Figure 4.9: throughput against threads, values of 1 KB; as root",
    run: fig4_9,
};
pub(crate) const TABLE4_1: Preset = Preset {
    name: "unbuckle-table4.1",
    about: "Unbuckle, Table 4.1: small and large items, beside other systems' figures; as root",
    run: table4_1,
};

const MACHINE: &str = "a server of 10 Gb/s Ethernet, with several client machines (for Figure 4.9 and Table 4.1 a six-core Ivy Bridge-EP with several such cards)";
const SYSTEM: &str = "Unbuckle";
const ITEMS: u64 = 10_000;
/// Bytes of a key, unless a figure says otherwise.
const KEY: usize = 64;
/// Percent of gets, memaslap's own.
const GETS: u32 = 90;
/// Small, medium and large values. The medium one is the paper's, the large one that of its Figure 4.9; the small one its text does not name.
const SIZES: [(&str, usize); 3] = [("small, 1 B", 1), ("medium, 320 B", 320), ("large, 1024 B", 1024)];
/// Sockets with a request on the way each: enough to keep a server busy.
const BUSY: usize = 32;

fn differs() -> Vec<String> {
    let mut differs = kernel_door::differs(MACHINE);
    differs.push("The client waits for answers, 32 at a time; memaslap's batches and threads are not named.".to_owned());
    differs
}

fn fig4_6(reproduction: &mut Reproduction<'_>) -> io::Result<()> {
    let items = reproduction.items(ITEMS, 1_000_000);
    let sizes = [1, 16, 64, 150, 320, 640, 1024];
    let mut jobs = Vec::new();
    for size in sizes {
        jobs.extend(kernel_door::both(
            &kernel_door::mixed(KEY, size, 100)?,
            items,
            1,
            Pace::Closed,
            How::AsSaid,
        ));
    }
    let plan = kernel_door::plan(reproduction, 300, 5)?;
    let ran = reproduction.measure_kernel(&plan, &jobs)?;
    let mut beside = kernel_door::table(
        "median latency of a get in the kernel beside user space, against the size of its value",
        "Unbuckle (2014), Figure 4.6 and section 4.5.1",
        "Unbuckle in the kernel",
        differs(),
    );
    beside.paper_peer = "Unbuckle in user space".to_owned();
    let mut memcached = kernel_door::table("the same, each beside memcached", "measured with it", SYSTEM, Vec::new());
    for (pair, size) in ran.chunks(2).zip(sizes) {
        let [kernel, user] = pair else { continue };
        let by = [KERNEL, USER];
        let row = PaperRow::new(format!("{size} B"), P50.unit, P50.digits, Better::Lower);
        let row = row.measured(
            by[0],
            &kernel_door::side(kernel, 0, P50),
            by[1],
            &kernel_door::side(user, 0, P50),
        );
        // The text has figures for small sizes only.
        beside.rows.push(if size < 150 { row.paper(150.0, 140.0) } else { row });
        for ran in pair {
            memcached
                .rows
                .push(kernel_door::row(&format!("{size} B"), ran, P50, |row| row));
        }
    }
    beside.differs.push(
        "The paper's kernel version here uses sockets as the one in user space does, and needs 140 µs whatever the size; user space takes 10 µs more for small values, and more than \
         that from 150 B on. Its test mixes gets with sets; this is gets alone. The kernel door bypasses the socket."
            .to_owned(),
    );
    reproduction.table(beside);
    reproduction.table(memcached);
    Ok(())
}

/// Throughput, median and p99 of the three sizes.
fn sizes(
    reproduction: &mut Reproduction<'_>,
    threads: usize,
    source: &str,
    note: &str,
    paper: impl Fn(&CellResult, &str, PaperRow) -> PaperRow,
) -> io::Result<()> {
    let items = reproduction.items(ITEMS, 1_000_000);
    let mut jobs = Vec::new();
    for (_, size) in SIZES {
        for gets in [100, GETS] {
            jobs.extend(kernel_door::both(
                &kernel_door::mixed(KEY, size, gets)?,
                items,
                BUSY,
                Pace::Closed,
                How::AsSaid,
            ));
        }
    }
    let mut plan = kernel_door::plan(reproduction, 300, 5)?;
    if threads > 1 && reproduction.setup.server_threads.is_none() {
        spread(&mut plan, threads)?;
    }
    let ran = reproduction.measure_kernel(&plan, &jobs)?;
    let mut rates = kernel_door::table("throughput of small, medium and large values", source, SYSTEM, differs());
    let mut latencies = kernel_door::table("latency with values of 320 B", source, SYSTEM, Vec::new());
    for (ran, (name, size)) in ran
        .chunks(4)
        .zip(SIZES)
        .flat_map(|(chunk, size)| chunk.iter().map(move |ran| (ran, size)))
    {
        let is_paper_mix = ran.cell.workload.mix.len() > 1;
        let mix = if is_paper_mix { "90 % get" } else { "gets" };
        let name = format!("{name}, {mix}");
        // The paper's figures are those of its mix.
        let theirs = |row: PaperRow, figure: &str| {
            if is_paper_mix {
                paper(ran, &format!("{figure} {size}"), row)
            } else {
                row
            }
        };
        rates
            .rows
            .push(kernel_door::row(&name, ran, THROUGHPUT, |row| theirs(row, "rate")));
        if size == 320 {
            let median = kernel_door::row(&format!("{name}, median"), ran, P50, |row| theirs(row, "p50"));
            latencies.rows.push(median);
            latencies
                .rows
                .push(kernel_door::row(&format!("{name}, p99"), ran, P99, |row| row));
        }
    }
    latencies.differs.push(note.to_owned());
    reproduction.table(rates);
    reproduction.table(latencies);
    Ok(())
}

fn fig4_7(reproduction: &mut Reproduction<'_>) -> io::Result<()> {
    let note = "The paper's figures are plots; its text has 90 % more throughput than memcached with small values in the kernel, and 40 % more, and 25 % less latency, in user space.";
    sizes(
        reproduction,
        1,
        "Unbuckle (2014), Figure 4.7 and section 4.5.2",
        note,
        |ran, what, row| match (way(&ran.cell), what) {
            (KERNEL, "rate 1") => row.paper_ratio(1.9, 1.9),
            (_, "rate 1") => row.paper_ratio(1.4, 1.4),
            (USER, "p50 320") => row.paper_ratio(0.75, 0.75),
            _ => row,
        },
    )
}

fn fig4_8(reproduction: &mut Reproduction<'_>) -> io::Result<()> {
    let threads = machine::cpus_online();
    let note = "The paper's text has up to 50 % more throughput than memcached with large values, and more than 100 µs less at the median.";
    sizes(
        reproduction,
        threads,
        "Unbuckle (2014), Figure 4.8 and section 4.5.3",
        note,
        |ran, what, row| match (way(&ran.cell), what) {
            (KERNEL, "rate 1024") => row.paper_ratio(1.5, 1.5),
            _ => row,
        },
    )
}

/// Servers and client on every CPU, with so many threads of each.
fn spread(plan: &mut keyway_bench::plan::Plan, threads: usize) -> io::Result<()> {
    let all = machine::allowed_cpus()?;
    (plan.server_threads, plan.client_threads) = (threads, threads);
    (plan.server_cpus, plan.client_cpus) = (all.clone(), all);
    Ok(())
}

fn fig4_9(reproduction: &mut Reproduction<'_>) -> io::Result<()> {
    let items = reproduction.items(ITEMS, 1_000_000);
    let workload = kernel_door::mixed(KEY, 1024, GETS)?;
    let mut table = kernel_door::table(
        "throughput against threads, values of 1024 B",
        "Unbuckle (2014), Figure 4.9 and section 4.6",
        SYSTEM,
        differs(),
    );
    for threads in 1..=machine::cpus_online().min(8) {
        let jobs = kernel_door::both(&workload, items, BUSY * threads, Pace::Closed, How::AsSaid);
        let mut plan = kernel_door::plan(reproduction, 500, 5)?;
        if reproduction.setup.server_threads.is_none() {
            spread(&mut plan, threads)?;
        }
        let ran = reproduction.measure_kernel(&plan, &jobs)?;
        for ran in ran {
            // The paper's highest, in its eight.
            let theirs = |row: PaperRow| if threads == 8 { row.paper_system(2000.0) } else { row };
            table
                .rows
                .push(kernel_door::row(&of_threads(threads), ran, THROUGHPUT, theirs));
        }
    }
    table.differs.push(
        "The paper's figure is a plot up to ten threads; its text has more than 2 million a second with eight (22 Gb/s), and memcached not above 8 Gb/s, which is about a third of that. \
         Here servers and client share the CPUs, with as many threads each."
            .to_owned(),
    );
    reproduction.table(table);
    Ok(())
}

fn of_threads(threads: usize) -> String {
    format!("{threads} thread{}", if threads == 1 { "" } else { "s" })
}

/// Systems of Table 4.1: name, small and large requests, in k/s.
const SYSTEMS: [(&str, f64, f64); 4] = [
    ("Unbuckle", 1900.0, 2500.0),
    ("RAMCloud", 2300.0, 3100.0),
    ("Masstree", 4900.0, 10_800.0),
    ("MICA", 9400.0, 64_400.0),
];

fn table4_1(reproduction: &mut Reproduction<'_>) -> io::Result<()> {
    let items = reproduction.items(ITEMS, 1_000_000);
    let mut jobs = Vec::new();
    for (key, value) in [(16, 64), (128, 1024)] {
        let workload: Workload = kernel_door::mixed(key, value, 95)?;
        jobs.extend(kernel_door::both(&workload, items, BUSY, Pace::Closed, How::AsSaid));
        jobs.extend(kernel_door::both(
            &kernel_door::mixed(key, value, 100)?,
            items,
            BUSY,
            Pace::Closed,
            How::AsSaid,
        ));
    }
    let mut plan = kernel_door::plan(reproduction, 500, 5)?;
    if reproduction.setup.server_threads.is_none() {
        spread(&mut plan, machine::cpus_online())?;
    }
    let ran = reproduction.measure_kernel(&plan, &jobs)?;
    let mut table = kernel_door::table(
        "throughput of small and large items",
        "Unbuckle (2014), Table 4.1",
        SYSTEM,
        differs(),
    );
    table.paper_peer = "none".to_owned();
    for ran in ran {
        let is_small = ran.cell.workload.name.starts_with("16/");
        // MICA's mix, in which the paper's table is.
        let is_mixed = ran.cell.workload.mix.len() > 1;
        for (system, small, large) in SYSTEMS {
            let name = format!("{}, beside {system}", ran.cell.workload.name);
            if is_mixed && way(&ran.cell) == KERNEL {
                table.rows.push(kernel_door::row(&name, ran, THROUGHPUT, |row| {
                    row.paper_system(if is_small { small } else { large })
                }));
            }
        }
        if !is_mixed || way(&ran.cell) != KERNEL {
            table
                .rows
                .push(kernel_door::row(&ran.cell.workload.name, ran, THROUGHPUT, |row| row));
        }
    }
    table.differs.push(
        "The paper's table has no memcached, so there is no ratio of ratios; its systems ran with eight threads and clients on other machines, these figures are of \
         all CPUs of one machine with the client on them. Requests a second of whole machines compare machines as well."
            .to_owned(),
    );
    reproduction.table(table);
    Ok(())
}

fn fig4_3b(reproduction: &mut Reproduction<'_>) -> io::Result<()> {
    const SOURCE: &str = "Unbuckle (2014), Figure 4.3b and section 4.4.2";
    let items = reproduction.items(ITEMS, 1_000_000);
    let mut first = Vec::new();
    for (_, size) in SIZES {
        first.extend(kernel_door::both(
            &kernel_door::mixed(KEY, size, 100)?,
            items,
            BUSY,
            Pace::Closed,
            How::AsSaid,
        ));
    }
    let plan = kernel_door::plan(reproduction, 300, 3)?;
    let ran = reproduction.measure_kernel(&plan, &first)?;
    let mut jobs = Vec::new();
    let shares = [0.7, 1.0, 1.5];
    for (pair, (_, size)) in ran.chunks(2).zip(SIZES) {
        let peak = kernel_door::peak_of_peer(pair).ok_or_else(|| io::Error::other("nothing was measured to take rates from"))?;
        let workload = kernel_door::mixed(KEY, size, 100)?;
        for share in shares {
            let flood = How::Flood((peak * share).round());
            jobs.extend(kernel_door::both(&workload, items, 1, Pace::Closed, flood));
        }
    }
    let plan = kernel_door::plan(reproduction, 300, 3)?;
    let ran = reproduction.measure_kernel(&plan, &jobs)?;
    let mut lost = kernel_door::table(
        "packets lost, gets sent whether or not they are answered",
        SOURCE,
        "Unbuckle's own UDP",
        differs(),
    );
    lost.paper_peer = "Unbuckle's sockets".to_owned();
    let mut answered: PaperTable = kernel_door::table("answers a second, of the same", SOURCE, SYSTEM, Vec::new());
    for (ran, job) in ran.iter().zip(&jobs) {
        let How::Flood(rate) = job.how else { continue };
        let name = format!("{} at {:.0} k/s", ran.cell.workload.name, rate / 1e3);
        lost.rows.push(kernel_door::row(&name, ran, LOST, |row| row));
        answered.rows.push(kernel_door::row(&name, ran, THROUGHPUT, |row| row));
    }
    lost.differs.push(
        "The paper's figure is a plot of losses a second, at loads that it does not name: more than one a second through sockets for medium and large values, at most five in a whole run without. \
         Rates here are 70, 100 and 150 % of what memcached does in a closed loop. Where the client cannot send as fast, it takes longer; the rate is then what was answered and lost."
            .to_owned(),
    );
    reproduction.table(lost);
    reproduction.table(answered);
    Ok(())
}
