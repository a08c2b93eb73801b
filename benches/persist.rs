//! What strict mode costs: pmemcached's experiment (HotStorage 2017). Strict beside cache mode on ordinary memory, each persist
//! barrier 100 ns slower than the instruction, under YCSB's workloads A (half updates), B (one in twenty), C (none) and F (half
//! read-modify-writes).
//!
//! `cargo bench -p benches --bench persist --features slow-barrier`. One thread; the two modes take turns in every repeat.

use benches::machine;
use benches::report::{Args, Samples, head, row, say};
use benches::workload::{KEY_LEN, Popularity, Rng, key, keys};
use keyway::{Cache, Options, Place, Session};
use std::path::PathBuf;
use std::time::Instant;

const HELP: &str = "\
persist: strict mode beside cache mode, with 100 ns at each persist barrier

    --records N      records of 1,000 bytes (20000)
    --operations N   operations of a measurement (200000)
    --repeats N      measurements of each mode and workload (7)";

const VALUE_LEN: usize = 1000;
const SEED: u64 = 7;
const FOLDER: &str = "/dev/shm";

/// A workload: its name, and how many of 100 operations read only; the others write, or read and write.
struct Workload {
    name: &'static str,
    reads: u64,
    modifies: bool,
    /// what the paper found
    paper: &'static str,
}

const WORKLOADS: [Workload; 4] = [
    Workload {
        name: "A: 50 % updates",
        reads: 50,
        modifies: false,
        paper: "40-60 % slower",
    },
    Workload {
        name: "B: 5 % updates",
        reads: 95,
        modifies: false,
        paper: "10-15 % slower",
    },
    Workload {
        name: "C: reads",
        reads: 100,
        modifies: false,
        paper: "10-15 % slower",
    },
    Workload {
        name: "F: 50 % read-modify-writes",
        reads: 50,
        modifies: true,
        paper: "40-60 % slower",
    },
];

/// A region in one of the modes.
struct Mode {
    session: Session,
    cache: Option<Cache>,
    path: PathBuf,
}

impl Mode {
    fn filled(strict: bool, records: u64) -> Self {
        let path = PathBuf::from(FOLDER).join(format!("keyway-bench-persist-{}-{strict}", std::process::id()));
        let options = Options {
            memory: (records * 2048).max(64 << 20),
            strict,
            ..Options::default()
        };
        let cache = Cache::open(&Place::Path(path.clone()), &options).expect("there is memory for the region");
        let mut session = cache.session().expect("nobody else is there");
        for i in 0..records {
            session.set(&key(i), &[b'v'; VALUE_LEN], 0).expect("there is room");
        }
        Self {
            session,
            cache: Some(cache),
            path,
        }
    }

    /// Nanoseconds an operation.
    fn measure(&mut self, workload: &Workload, order: &[[u8; KEY_LEN]], operations: usize) -> f64 {
        let mut random = Rng::new(SEED);
        let mut out = Vec::with_capacity(2 * VALUE_LEN);
        let begun = Instant::now();
        let mut misses = 0;
        for key in order.iter().cycle().take(operations) {
            let reads = random.below(100) < workload.reads;
            if reads || workload.modifies {
                out.clear();
                misses += usize::from(self.session.get(key, &mut out).is_none());
            }
            if !reads {
                self.session.set(key, &[b'w'; VALUE_LEN], 0).expect("there is room");
            }
        }
        assert_eq!(misses, 0, "everything fits");
        begun.elapsed().as_nanos() as f64 / operations as f64
    }
}

impl Drop for Mode {
    fn drop(&mut self) {
        drop(self.cache.take());
        let _ = std::fs::remove_file(&self.path);
    }
}

fn main() {
    let args = Args::parse(HELP);
    let records: u64 = args.number("--records", 20_000);
    let operations: usize = args.number("--operations", 200_000);
    let repeats: usize = args.number("--repeats", 7);
    say(machine::describe());
    say(head(&[
        "workload",
        "cache mode, ns",
        "strict mode, ns",
        "slower",
        "pmemcached",
    ]));
    let order = keys(records, Popularity::Zipf, 1 << 16, SEED);
    let (mut cache, mut strict) = (Mode::filled(false, records), Mode::filled(true, records));
    for workload in &WORKLOADS {
        let (mut plain, mut safe, mut ratio) = (Samples::new(), Samples::new(), Samples::new());
        for _ in 0..repeats {
            let (a, b) = (
                cache.measure(workload, &order, operations),
                strict.measure(workload, &order, operations),
            );
            plain.push(a);
            safe.push(b);
            ratio.push((1.0 - a / b) * 100.0);
        }
        say(row(&[
            workload.name.to_string(),
            plain.show(0),
            safe.show(0),
            format!("{} %", ratio.show(0)),
            workload.paper.to_string(),
        ]));
    }
}
