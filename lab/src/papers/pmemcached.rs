//! "Persistent memcached: bringing legacy code to byte-addressable persistent memory" (Marathe, Seltzer, Byan, Harris, HotStorage 2017).
//!
//! The paper's machine: an emulator of persistent memory with two sockets of 8 cores and 512 GB, loads of 300 ns and persist barriers of
//! 100 ns; YCSB on one socket, the store on the other one.

use super::restart::region_folder;
use crate::presets::{Reproduction, machines, side};
use crate::table::{PaperRow, PaperTable};
use keyway_bench::caches::Side;
use keyway_bench::machine;
use keyway_bench::plan::{Cell, Door};
use keyway_bench::workloads;
use keyway_cache::{Cache, Options, Place};
use std::io;
use std::path::Path;
use std::time::Duration;

pub(crate) const PAPER: &str =
    "Persistent Memcached: Bringing Legacy Code to Byte-Addressable Persistent Memory (HotStorage 2017)";
/// As the paper says, section 4.
pub(crate) const MACHINE: &str =
    "an emulator of persistent memory with 16 cores on two sockets, loads of 300 ns and persist barriers of 100 ns";
/// Records of 1,000 bytes.
const RECORDS: u64 = 10_000_000;
const RECORDS_FEW: u64 = 20_000;

/// A workload's name; and what is left of the throughput with many threads, from and to (section 4). With one thread it is 40 to 60 %
/// less in all of them.
type Line = (&'static str, &'static str, f64, f64);

#[rustfmt::skip]
const WORKLOADS: [Line; 4] = [
    ("ycsb-a", "YCSB A", 0.4, 0.6),
    ("ycsb-b", "YCSB B", 0.85, 0.9),
    ("ycsb-c", "YCSB C", 0.85, 0.9),
    ("ycsb-f", "YCSB F", 0.4, 0.6),
];
const WITH_ONE_THREAD: (f64, f64) = (0.4, 0.6);
/// The paper goes to as many.
const THREADS_MAX: usize = 8;

pub(crate) fn fig1(reproduction: &mut Reproduction<'_>) -> io::Result<()> {
    let records = reproduction.items(RECORDS_FEW, RECORDS);
    let cpus = machine::cpus().min(THREADS_MAX);
    let threads = if cpus > 1 { vec![1, cpus] } else { vec![1] };
    let mut cells = Vec::new();
    for (name, ..) in WORKLOADS {
        let workload = workloads::find(name).map_err(io::Error::other)?;
        cells.extend(
            threads
                .iter()
                .map(|&count| Cell::new(workload.clone(), records, Door::Library, count)),
        );
    }
    let plan = reproduction.setup.plan(cells, Duration::from_millis(500), 5, 2);
    let memory_mib = plan.cells[0].memory();
    let folder = region_folder()?;
    let (durable, cache) = (
        region(folder.path(), memory_mib, true)?,
        region(folder.path(), memory_mib, false)?,
    );
    let ran = reproduction.measure_sides(&plan, &[&durable, &cache])?;
    let mut differs = vec![
        machines(MACHINE),
        "Here loads have ordinary memory's latency; each persist barrier is 100 ns slower, as in the paper.".to_owned(),
        "The paper's peer is the original memcached, reached like pmemcached by YCSB through sockets, which are most of each operation; here \
         both sides are calls, so that more of each operation is what persistence costs."
            .to_owned(),
        "The paper gives ranges: with one thread 40 to 60 % less; with many, 10 to 15 % less where most is read, 40 to 60 % where half is \
         written."
            .to_owned(),
    ];
    differs.extend((records != RECORDS).then(|| format!("{records} records instead of {RECORDS} (--scale full has as many).")));
    let title = "what persistence costs, 100 ns at each persist barrier";
    let mut table = PaperTable::new(title, &format!("{PAPER}, Figure 1"), ["memcached", "pmemcached"], differs);
    for ran in ran {
        let (name, count) = (&ran.cell.workload.name, ran.cell.connections);
        let Some((_, title, low, high)) = WORKLOADS.into_iter().find(|(known, ..)| known == name) else {
            continue;
        };
        let (low, high) = if count == 1 { WITH_ONE_THREAD } else { (low, high) };
        let row = PaperRow::of_figure(format!("{title}, {count} {}", Door::Library.unit(count)), "throughput");
        let [own, peer] = [0, 1].map(|at| side(Some(ran), at, "throughput"));
        let row = row.measured("library, durable mode", &own, "library, cache mode", &peer);
        table.rows.push(row.paper_ratio(low, high));
    }
    reproduction.tables([table]);
    Ok(())
}

/// A region of one of the modes, in memory. Strict mode is rehearsed: this memory persists nothing, but all is done as if it did.
fn region(folder: &Path, memory_mib: u64, durable: bool) -> io::Result<Side> {
    let options = Options::new()
        .memory(memory_mib << 20)
        .prefault(true)
        .durable(durable)
        .durable_rehearsed(durable);
    let mode = if durable { "durable" } else { "cache" };
    let cache = Cache::open(&Place::Path(folder.join(mode)), &options).map_err(io::Error::other)?;
    let name = if durable {
        "Keyway, durable mode"
    } else {
        "Keyway, cache mode"
    };
    Ok(Side::of_region(
        name,
        format!("{}, library, {memory_mib} MiB", env!("CARGO_PKG_VERSION")),
        cache,
    ))
}
