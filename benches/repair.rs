//! How long the repair of a region in durable mode takes: what the first process to open it after a power failure waits for.
//!
//! The region is on ordinary memory, which is read faster than persistent memory is. Another boot is played by changing the boot's
//! identity in the region.

use benches::machine;
use benches::report::{Args, Samples, head, row, say};
use benches::workload::key;
use keyway_cache::{Cache, Options, Place, Store};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

const HELP: &str = "\
repair: time to repair a region in durable mode after a power failure

    --items N      items in the region (1000000, then 10000000)
    --repeats N    repairs of each region (5)
    --folder DIR   where the region's file is (/dev/shm)";

const VALUE_LEN: usize = 64;
/// Bytes of region for each item of 16 + 64 bytes: ample, so that none is evicted.
const ITEM_BYTES_MAX: u64 = 256;
/// Offset of the boot's identity in the superblock (docs/region.md), and of the word with the clock's boot.
const BOOT_ID: u64 = 968;
const CLOCK: u64 = 536;

fn main() {
    let args = Args::parse(HELP);
    let repeats: usize = args.number("--repeats", 5);
    let sizes = args
        .value("--items")
        .map_or(vec![1_000_000, 10_000_000], |_| vec![args.number("--items", 0)]);
    let folder = PathBuf::from(args.value("--folder").unwrap_or("/dev/shm"));
    say(machine::describe());
    say(head(&["items", "region", "opened and repaired, ms"]));
    for items in sizes {
        let region = Region(folder.join(format!("keyway-bench-repair-{}", std::process::id())));
        drop(region.filled(items));
        let size_mib = std::fs::metadata(&region.0).map_or(0, |m| m.len() >> 20);
        let mut times = Samples::default();
        for _ in 0..repeats {
            reboot(&region.0).expect("the region's file is this program's own");
            let started = Instant::now();
            let cache = region.open(64 << 20);
            times.push(started.elapsed().as_secs_f64() * 1e3);
            assert_eq!(cache.counters().curr_items, items, "every acknowledged item is there");
        }
        say(row(&[items.to_string(), format!("{size_mib} MiB"), times.show(0)]));
    }
}

/// The region's file, removed at the end.
struct Region(PathBuf);

impl Region {
    fn open(&self, memory: u64) -> Cache {
        let options = Options::new().memory(memory).strict(true).strict_rehearsed(true);
        Cache::open(&Place::Path(self.0.clone()), &options).expect("the region")
    }

    fn filled(&self, items: u64) -> Cache {
        let cache = self.open((items * ITEM_BYTES_MAX).max(64 << 20));
        let mut session = cache.session().expect("the first session");
        for index in 0..items {
            session
                .store(&key(index), &[b'v'; VALUE_LEN], &Store::default())
                .expect("a set is not refused");
        }
        drop(session);
        cache
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Makes the region one whose last use was cut off in another boot.
fn reboot(path: &Path) -> std::io::Result<()> {
    let file = File::options().read(true).write(true).open(path)?;
    for (at, change) in [(BOOT_ID, 1), (CLOCK, 0x10_1234_5678)] {
        let mut word = [0; 8];
        file.read_exact_at(&mut word, at)?;
        file.write_all_at(&(u64::from_le_bytes(word) ^ change).to_le_bytes(), at)?;
    }
    Ok(())
}
