//! How many items a memory limit holds: a region beside a memcached that this program starts.
//!
//! New keys are written until the cache evicts, and then on to a multiple of that. Items are counted twice: by the cache's own
//! `curr_items`, and by asking for every key that was ever written.

use benches::{Args, head, region, row, say};
use keyway_bench::caches::Side;
use keyway_bench::items::Items;
use keyway_bench::machine;
use keyway_bench::medians::Samples;
use keyway_bench::plan::Door;
use keyway_bench::servers::{Server, Settings, memcached_version};
use keyway_bench::workload::Sizes;
use keyway_cache::Options;
use std::io;

const HELP: &str = "\
memory: items held within a memory limit, Keyway beside memcached

    --memory-mib M   the limit (256)
    --beyond X       write X times the items that fit before the first eviction (3)";

/// Keys between two looks at the counters.
const STEP: u64 = 5_000;
/// Keys that are asked for together.
const TOGETHER: usize = 50;

fn main() -> io::Result<()> {
    let args = Args::parse(HELP);
    let (memory_mib, beyond): (u64, f64) = (args.number("--memory-mib", 256), args.number("--beyond", 3.0));
    say(machine::describe());
    say(format!("{}; {memory_mib} MiB", memcached_version()));
    say(head(&[
        "sizes",
        "cache",
        "items before the first eviction",
        "items held while evicting: counted",
        "found",
        "limit / item, B",
        "mean key + value of those found, B",
        "resident, MiB",
    ]));
    for sizes in [Sizes::Fixed(64), Sizes::Etc] {
        let settings = Settings {
            memory_mib,
            unix: true,
            ..Settings::default()
        };
        let peer = match Server::memcached(&settings)? {
            Some(server) => Some(measure(
                &Side::of_server("memcached", &server, Door::Unix)?,
                sizes,
                memory_mib,
                beyond,
            )?),
            None => None,
        };
        let cache = region(&Options::new().memory(memory_mib << 20).prefault(true));
        let keyway = measure(&Side::of_region("Keyway", String::new(), cache), sizes, memory_mib, beyond)?;
        say(match peer {
            Some(peer) => format!("{}: Keyway holds {:.2} times memcached's items", sizes.name(), keyway / peer),
            None => "SKIP: memcached is not installed".to_owned(),
        });
    }
    Ok(())
}

/// Fills a cache, prints its row, and gives the items found at the end.
#[allow(clippy::cast_precision_loss, reason = "counts are below 2^53")]
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a small multiple of a count"
)]
fn measure(side: &Side, sizes: Sizes, memory_mib: u64, beyond: f64) -> io::Result<f64> {
    let items = Items::new(sizes, 0, false);
    let mut filler = side.store.filler()?;
    let (mut key, mut value) = (Vec::new(), Vec::new());
    let mut written = 0;
    let mut step = || {
        for index in written..written + STEP {
            key.clear();
            value.clear();
            items.push_key(index, &mut key);
            items.push_value(index, 0, &mut value);
            filler.set(&key, &value)?;
        }
        written += STEP;
        filler.finish()?;
        let counted = ["curr_items", "evictions"].map(|name| side.store.stat(name).unwrap_or(0));
        Ok::<_, io::Error>((written, counted))
    };
    let mut before = 0;
    let first = loop {
        let (_, [held, evictions]) = step()?;
        if evictions > 0 {
            break before;
        }
        before = held;
    };
    let total = (first as f64 * beyond) as u64;
    let mut counted = Samples::default();
    let written = loop {
        let (written, [held, _]) = step()?;
        // The last third: by then nothing is left of the first fill's order.
        if written > total / 3 * 2 {
            counted.push(held as f64);
        }
        if written >= total {
            break written;
        }
    };
    let (mut found, mut bytes) = (0, 0);
    let keys: Vec<u64> = (0..written).collect();
    for some in keys.chunks(TOGETHER) {
        let keys = some.iter().map(|&index| {
            let mut key = Vec::new();
            items.push_key(index, &mut key);
            key
        });
        let (more, more_bytes) = filler.hits(&keys.collect::<Vec<_>>())?;
        (found, bytes) = (found + more, bytes + more_bytes);
    }
    say(row(&[
        sizes.name(),
        side.name.to_owned(),
        first.to_string(),
        counted.show(0),
        found.to_string(),
        format!("{:.1}", (memory_mib << 20) as f64 / found as f64),
        format!("{:.1}", bytes as f64 / found as f64),
        format!("{:.0}", side.store.resident_bytes().unwrap_or(0) as f64 / f64::from(1 << 20)),
    ]));
    Ok(found as f64)
}
