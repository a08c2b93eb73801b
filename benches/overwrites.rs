//! A region that is written round and round: what its writers pay for room, by threads and by size of the values.
//!
//! Zipfian sets and gets on a region that has twice the memory that the items need, so nothing need be evicted: all room comes from
//! segments of which much is dead. Prints what the region counted meanwhile, per set.

use benches::{Args, describe, head, region, row, say};
use keyway_bench::caches::Side;
use keyway_bench::mix::{Access, Kind, Workload};
use keyway_bench::plan::{Cell, Door, Plan};
use keyway_bench::run::{Draw, Operations, measure};
use keyway_bench::workload::Sizes;
use keyway_cache::Options;
use std::io;
use std::time::Duration;

const HELP: &str = "\
overwrites: what writers pay for room, in a region of twice the memory that its items need

    --rounds N        how often as much is written as the region has memory, before it is measured (2)
    --seconds S       length of the measurement (3)
    --threads N,...   writers (1,2,4)
    --sizes B,...     bytes of a value (128,5120,102400)
    --mb N            what the items take (100)
    --room X          memory, in times of what the items take (2)
    --set-percent P   sets among the operations (50)
    --uniform         keys are drawn uniformly, not by zipf's law";

#[allow(clippy::cast_precision_loss, reason = "counts are below 2^53")]
fn main() -> io::Result<()> {
    let args = Args::parse(HELP);
    let (rounds, room): (u64, u64) = (args.number("--rounds", 2), args.number("--room", 2));
    let (mb, percent): (u64, u32) = (args.number("--mb", 100), args.number("--set-percent", 50));
    let length = Duration::from_secs_f64(args.number("--seconds", 3.0));
    describe();
    say(head(&[
        "value, B",
        "writers",
        "k/s",
        "CPU an operation, µs",
        "set p50, µs",
        "set p99, µs",
        "relocated a set",
        "purged a set",
        "segments on the spot, %",
        "evicted, %",
        "missed, %",
    ]));
    for size in args.numbers("--sizes", &[128_u64, 5120, 102_400]) {
        for threads in args.numbers("--threads", &[1, 2, 4]) {
            let workload = Workload {
                name: "overwrites".to_owned(),
                about: String::new(),
                mix: vec![(Kind::Get, 100 - percent), (Kind::Set, percent)],
                sizes: Sizes::Fixed(usize::try_from(size).map_err(io::Error::other)?),
                access: if args.has("--uniform") {
                    Access::Uniform
                } else {
                    Access::YCSB
                },
                fill: false,
            };
            let memory = mb * 1_000_000 * room;
            let cell = Cell::new(workload, mb * 1_000_000 / (size + 40), Door::Library, threads);
            let cache = region(&Options::new().memory(memory).prefault(true));
            let (side, operations) = (
                Side::of_region("Keyway", String::new(), cache.clone()),
                Operations::new(&cell),
            );
            let mut plan = Plan::new("keyway".into(), vec![cell.clone()], length / 10, 1);
            let mut step = 0;
            let mut run = |plan: &Plan| {
                step += 1;
                measure(plan, &cell, &side, &operations, Draw { repetition: 0, step })
            };
            while cache.counters().cmd_set * size < rounds * memory {
                run(&plan)?;
            }
            (plan.warmup, plan.length) = (Duration::ZERO, length);
            let before = cache.counters();
            let ran = run(&plan)?;
            let counted = cache.counters().since(&before);
            let sets = counted.cmd_set.max(1);
            let per_set = |n: u64| format!("{:.3}", n as f64 / sets as f64);
            let share = |n: u64, of: u64| format!("{:.3}", 100.0 * n as f64 / of.max(1) as f64);
            say(row(&[
                size.to_string(),
                threads.to_string(),
                format!("{:.0}", ran.rate() / 1e3),
                format!("{:.2}", ran.client_cpu.as_secs_f64() * 1e6 / ran.operations.max(1) as f64),
                format!("{:.2}", ran.writes.percentile_us(50.0)),
                format!("{:.2}", ran.writes.percentile_us(99.0)),
                per_set(counted.relocations),
                per_set(counted.purged),
                share(counted.reserve_empty, counted.segments_recycled),
                share(counted.evictions, sets),
                share(counted.get_misses, counted.cmd_get()),
            ]));
        }
    }
    Ok(())
}
