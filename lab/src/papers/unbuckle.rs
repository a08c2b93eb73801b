//! "Unbuckle: a high-performance key-value store" (Cambridge, 2014): the kernel beside user space (Figure 4.6), one thread and several beside memcached (4.7, 4.8), threads (4.9),
//! small and large items (Table 4.1), and packets lost under overload (4.3b).
//!
//! The paper's machine: servers and clients of 10 Gb/s Ethernet, a six-core Ivy Bridge-EP for threads; a kernel module, and the same source in user space; memcached 1.4.17; keys
//! of 64 B, 90 % gets, by memaslap.

use super::kernel_door::{self, Line, Paper, both, mixed};
use crate::kernel::{How, KERNEL, USER};
use crate::presets::{Reproduction, side};
use crate::table::{PaperRow, PaperTable};
use keyway_bench::machine;
use keyway_bench::plan::Plan;
use std::io;

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

fn tables<const N: usize>(source: &str, titles: [(&str, &str); N]) -> [PaperTable; N] {
    let client = "The client waits for answers, 32 at a time; memaslap's batches and threads are not named.";
    kernel_door::tables(source, SYSTEM, kernel_door::differs(MACHINE, client), titles)
}

fn items(reproduction: &Reproduction<'_>) -> u64 {
    reproduction.items(ITEMS, 1_000_000)
}

/// A plan with so many threads of servers and client.
fn plan(reproduction: &Reproduction<'_>, length_ms: u64, threads: usize) -> io::Result<Plan> {
    let mut plan = kernel_door::plan(reproduction, length_ms, 5)?;
    kernel_door::spread(reproduction, &mut plan, threads)?;
    Ok(plan)
}

pub(crate) fn fig4_6(reproduction: &mut Reproduction<'_>) -> io::Result<()> {
    const FIGURE: &str = "latency, p50";
    let items = items(reproduction);
    let sizes = [1, 16, 64, 150, 320, 640, 1024];
    let mut lines = Vec::new();
    for size in sizes {
        let rows = |_: &str| vec![(1, format!("{size} B"), FIGURE, Paper::Nothing)];
        lines.extend(both(&mixed(KEY, size, 100)?, items, 1, How::AsSaid, rows));
    }
    let mut tables = tables(
        "Unbuckle (2014), Figure 4.6 and section 4.5.1",
        [
            (
                "median latency of a get in the kernel beside user space, against the size of its value",
                "The paper's kernel version here uses sockets as the one in user space does, and needs 140 µs whatever the size; user space takes 10 µs more for small values, and more than \
             that from 150 B on. Its test mixes gets with sets; this is gets alone. The kernel door bypasses the socket.",
            ),
            ("the same, each beside memcached", "The paper has none of it."),
        ],
    );
    (tables[0].paper_system, tables[0].paper_peer) = ("Unbuckle in the kernel".to_owned(), "Unbuckle in user space".to_owned());
    let plan = plan(reproduction, 300, 1)?;
    let ran = kernel_door::measure(reproduction, &plan, &lines, &mut tables)?;
    for (pair, size) in ran.chunks(2).zip(sizes) {
        let [kernel, user] = [0, 1].map(|at| side(pair.get(at), 0, FIGURE));
        let row = PaperRow::of_figure(format!("{size} B"), FIGURE).measured(KERNEL, &kernel, USER, &user);
        // The text has figures for small sizes only.
        tables[0].rows.push(if size < 150 { row.paper(150.0, 140.0) } else { row });
    }
    reproduction.tables(tables);
    Ok(())
}

/// Throughput, median and p99 of the three sizes; `paper` has what the paper says of a way, a figure and a size.
fn sizes(
    reproduction: &mut Reproduction<'_>,
    threads: usize,
    source: &str,
    note: &str,
    paper: impl Fn(&str, &str, usize) -> Paper,
) -> io::Result<()> {
    let items = items(reproduction);
    let mut lines = Vec::new();
    for (named, size) in SIZES {
        for gets in [100, GETS] {
            let name = format!("{named}, {}", if gets == GETS { "90 % get" } else { "gets" });
            let rows = |way: &str| {
                // The paper's figures are those of its mix.
                let theirs = |figure: &str| {
                    if gets == GETS {
                        paper(way, figure, size)
                    } else {
                        Paper::Nothing
                    }
                };
                let mut rows = vec![(0, name.clone(), "throughput", theirs("rate"))];
                if size == 320 {
                    rows.push((1, format!("{name}, median"), "latency, p50", theirs("p50")));
                    rows.push((1, format!("{name}, p99"), "latency, p99", Paper::Nothing));
                }
                rows
            };
            lines.extend(both(&mixed(KEY, size, gets)?, items, BUSY, How::AsSaid, rows));
        }
    }
    let titles = [
        ("throughput of small, medium and large values", ""),
        ("latency with values of 320 B", note),
    ];
    let mut tables = tables(source, titles);
    kernel_door::measure(reproduction, &plan(reproduction, 300, threads)?, &lines, &mut tables)?;
    reproduction.tables(tables);
    Ok(())
}

pub(crate) fn fig4_7(reproduction: &mut Reproduction<'_>) -> io::Result<()> {
    let note = "The paper's figures are plots; its text has 90 % more throughput than memcached with small values in the kernel, and 40 % more, and 25 % less latency, in user space.";
    let source = "Unbuckle (2014), Figure 4.7 and section 4.5.2";
    sizes(reproduction, 1, source, note, |way, figure, size| match (way, figure, size) {
        (KERNEL, "rate", 1) => Paper::Ratio(1.9),
        (_, "rate", 1) => Paper::Ratio(1.4),
        (USER, "p50", _) => Paper::Ratio(0.75),
        _ => Paper::Nothing,
    })
}

pub(crate) fn fig4_8(reproduction: &mut Reproduction<'_>) -> io::Result<()> {
    let note = "The paper's text has up to 50 % more throughput than memcached with large values, and more than 100 µs less at the median.";
    let source = "Unbuckle (2014), Figure 4.8 and section 4.5.3";
    sizes(
        reproduction,
        machine::cpus_online(),
        source,
        note,
        |way, figure, size| match (way, figure, size) {
            (KERNEL, "rate", 1024) => Paper::Ratio(1.5),
            _ => Paper::Nothing,
        },
    )
}

pub(crate) fn fig4_9(reproduction: &mut Reproduction<'_>) -> io::Result<()> {
    let (items, workload) = (items(reproduction), mixed(KEY, 1024, GETS)?);
    let mut tables = tables(
        "Unbuckle (2014), Figure 4.9 and section 4.6",
        [(
            "throughput against threads, values of 1024 B",
            "The paper's figure is a plot up to ten threads; its text has more than 2 million a second with eight (22 Gb/s), and memcached not above 8 Gb/s, which is about a third of that. \
         Here servers and client share the CPUs, with as many threads each.",
        )],
    );
    for threads in 1..=machine::cpus_online().min(8) {
        let name = format!("{threads} thread{}", if threads == 1 { "" } else { "s" });
        // The paper's highest, in its eight.
        let paper = if threads == 8 { Paper::System(2000.0) } else { Paper::Nothing };
        let rows = |_: &str| vec![(0, name.clone(), "throughput", paper)];
        let lines = both(&workload, items, BUSY * threads, How::AsSaid, rows);
        kernel_door::measure(reproduction, &plan(reproduction, 500, threads)?, &lines, &mut tables)?;
    }
    reproduction.tables(tables);
    Ok(())
}

/// Systems of Table 4.1: name, small and large requests, in k/s.
const SYSTEMS: [(&str, f64, f64); 4] = [
    ("Unbuckle", 1900.0, 2500.0),
    ("RAMCloud", 2300.0, 3100.0),
    ("Masstree", 4900.0, 10_800.0),
    ("MICA", 9400.0, 64_400.0),
];

pub(crate) fn table4_1(reproduction: &mut Reproduction<'_>) -> io::Result<()> {
    let items = items(reproduction);
    let mut lines = Vec::new();
    for (key, value) in [(16, 64), (128, 1024)] {
        // 95 % is MICA's mix, in which the paper's table is.
        for gets in [95, 100] {
            let workload = mixed(key, value, gets)?;
            let name = &workload.name;
            let beside = |(system, small, large): (&str, f64, f64)| {
                let theirs = Paper::System(if key == 16 { small } else { large });
                (0, format!("{name}, beside {system}"), "throughput", theirs)
            };
            let rows = |way: &str| match (way, gets) {
                (KERNEL, 95) => SYSTEMS.map(beside).to_vec(),
                _ => vec![(0, name.clone(), "throughput", Paper::Nothing)],
            };
            lines.extend(both(&workload, items, BUSY, How::AsSaid, rows));
        }
    }
    let mut tables = tables(
        "Unbuckle (2014), Table 4.1",
        [(
            "throughput of small and large items",
            "The paper's table has no memcached, so there is no ratio of ratios; its systems ran with eight threads and clients on other machines, these figures are of \
         all CPUs of one machine with the client on them. Requests a second of whole machines compare machines as well.",
        )],
    );
    tables[0].paper_peer = "none".to_owned();
    kernel_door::measure(
        reproduction,
        &plan(reproduction, 500, machine::cpus_online())?,
        &lines,
        &mut tables,
    )?;
    reproduction.tables(tables);
    Ok(())
}

pub(crate) fn fig4_3b(reproduction: &mut Reproduction<'_>) -> io::Result<()> {
    const NOTE: &str = "The paper's figure is a plot of losses a second, at loads that it does not name: more than one a second through sockets for medium and large values, at most five in a whole run without. \
                    Rates here are 70, 100 and 150 % of what memcached does in a closed loop. Where the client cannot send as fast, it takes longer; the rate is then what was answered and lost.";
    let (items, plan) = (items(reproduction), kernel_door::plan(reproduction, 300, 3)?);
    let mut lines: Vec<Line> = Vec::new();
    for (_, size) in SIZES {
        let workload = mixed(KEY, size, 100)?;
        let closed = both(&workload, items, BUSY, How::AsSaid, |_| Vec::new());
        let peak = kernel_door::peak_of_peer(kernel_door::measure(reproduction, &plan, &closed, &mut [])?)?;
        for share in [0.7, 1.0, 1.5] {
            let rate = (peak * share).round();
            let name = format!("{} at {:.0} k/s", workload.name, rate / 1e3);
            let row = |(table, figure)| (table, name.clone(), figure, Paper::Nothing);
            let rows = |_: &str| [(0, "datagrams lost"), (1, "throughput")].map(row).to_vec();
            lines.extend(both(&workload, items, 1, How::Flood(rate), rows));
        }
    }
    let mut tables = tables(
        "Unbuckle (2014), Figure 4.3b and section 4.4.2",
        [
            ("packets lost, gets sent whether or not they are answered", NOTE),
            ("answers a second, of the same", "The paper has none of it."),
        ],
    );
    (tables[0].paper_system, tables[0].paper_peer) = ("Unbuckle's own UDP".to_owned(), "Unbuckle's sockets".to_owned());
    kernel_door::measure(reproduction, &plan, &lines, &mut tables)?;
    reproduction.tables(tables);
    Ok(())
}
