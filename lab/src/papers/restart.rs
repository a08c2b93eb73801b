//! pmemcached's claim (HotStorage 2017, section 4): after a restart the cache is warm within a millisecond, however large it is.
//!
//! Two things are measured: what attaching to the region of a killed server takes, with the first touches of its pages; and the hit ratio
//! before and after the end of a server, beside memcached's, which begins cold, unless it was started with `-e` and asked to end.

use super::pmemcached::{MACHINE, PAPER};
use crate::presets::{Preset, Reproduction, machines};
use crate::table::{PaperRow, PaperTable};
use keyway_bench::items::Items;
use keyway_bench::mix::Workload;
use keyway_bench::plan::{Against, Cell, Door};
use keyway_bench::report::Better;
use keyway_bench::servers::{Folder, Server, Settings, memcached_path, memcached_version};
use keyway_bench::wire::Admin;
use keyway_bench::workload::{Rng, Zipf, mix};
use keyway_bench::workloads;
use keyway_cache::{Cache, Options, Place};
use rustix::process::Signal;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub(crate) const RESTART: Preset = Preset {
    name: "pmemcached-restart",
    about: "the same, section 4: attach, first touches, and hit ratio before and after a server was killed",
    run: restart,
};

/// Records of 1,000 bytes, zipfian.
const WORKLOAD: &str = "ycsb-c";
const RECORDS: u64 = 10_000_000;
const RECORDS_FEW: u64 = 150_000;
/// "Sub-millisecond warm up intervals, irrespective of the dataset size."
const PAPER_ATTACH_MS: f64 = 1.0;
/// Random gets after an attach whose times are averaged.
const TOUCHES: u64 = 2000;
/// Requests whose hits are counted, before and after.
const REQUESTS: u64 = 10_000;
/// Share of the records' bytes that caches hold when hits are counted.
const HELD: f64 = 0.35;
/// memcached takes back what it left only if the clock shows another second than when it began.
const MEMCACHED_SECOND: Duration = Duration::from_millis(1100);

fn restart(reproduction: &mut Reproduction<'_>) -> io::Result<()> {
    let workload = workloads::find(WORKLOAD).map_err(io::Error::other)?;
    let records = reproduction.items(RECORDS_FEW, RECORDS);
    let repetitions = reproduction.setup.repetitions.unwrap_or(5);
    let bench = Bench {
        program: reproduction.setup.program.clone(),
        threads: reproduction.setup.server_threads.unwrap_or(2),
        items: workload.items(records),
        records,
        keyway_options: reproduction.setup.server_options.clone(),
        memcached_options: reproduction.setup.memcached_options.clone(),
    };
    let all = Cell::new(workload.clone(), records, Door::Library, 1).memory();
    let rows = bench.attaches(reproduction, all, repetitions);
    let rows = rows.map_err(|e| reproduction.failed(format!("attach: {e}")))?;
    reproduction.table(PaperTable {
        title: format!("attach to the region of a killed server, {records} records of 1,000 B"),
        differs: differs(records),
        ..table(rows)
    });
    let held = bench.held_mib(&workload);
    let rows = bench.lives(reproduction, held, repetitions.min(3))?;
    reproduction.table(PaperTable {
        title: format!("before and after the end of a server, {held} MiB for {records} records of 1,000 B, zipf 0.99"),
        differs: vec![
            "The paper measures no hit ratios: its cache comes back whole.".to_owned(),
            format!("Hits are those of {REQUESTS} requests, what was missed is stored: a cold cache fills meanwhile."),
            "memcached keeps its items only with -e (a file in memory) and if it is asked to end with SIGUSR1; Keyway is asked with SIGTERM."
                .to_owned(),
        ],
        ..table(rows)
    });
    Ok(())
}

fn differs(records: u64) -> Vec<String> {
    let mut differs = vec![
        machines(MACHINE),
        "The paper's millisecond is the upper bound that it gives; here an attach is opening the file, mapping it, and looking at the \
         superblock."
            .to_owned(),
        "The region is a file in memory (tmpfs), not on persistent memory.".to_owned(),
    ];
    if records != RECORDS {
        differs.push(format!("{records} records instead of {RECORDS} (--scale full has as many)."));
    }
    differs
}

fn table(rows: Vec<PaperRow>) -> PaperTable {
    PaperTable {
        preset: String::new(),
        title: String::new(),
        source: format!("{PAPER}, section 4"),
        paper_peer: "memcached".to_owned(),
        paper_system: "pmemcached".to_owned(),
        rows,
        differs: Vec::new(),
    }
}

/// A folder in memory, for a region that several processes map.
pub(super) fn region_folder() -> io::Result<Folder> {
    let memory = Path::new("/dev/shm");
    let parent = if memory.is_dir() {
        memory.to_path_buf()
    } else {
        std::env::temp_dir()
    };
    Folder::new(&parent, "region")
}

/// What all servers are given.
struct Bench {
    program: PathBuf,
    threads: usize,
    items: Items,
    records: u64,
    keyway_options: Vec<String>,
    memcached_options: Vec<String>,
}

/// What one attach took.
struct Attach {
    attach_ms: f64,
    touch_us: f64,
    again_us: f64,
}

impl Bench {
    fn settings<'a>(&self, memory_mib: u64, more: &'a [String]) -> Settings<'a> {
        Settings {
            memory_mib,
            threads: self.threads,
            connections: 64,
            unix: true,
            more,
            ..Settings::default()
        }
    }

    fn keyway(&self, region: &Path, memory_mib: u64) -> io::Result<Server> {
        Server::keyway_at(region, &self.program, &self.settings(memory_mib, &self.keyway_options))
    }

    /// Memory that holds a part of the records.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a count of MiB far below 2^53, and not negative"
    )]
    fn held_mib(&self, workload: &Workload) -> u64 {
        /// memcached -e takes no less than 39 MiB: a page of 1 MiB for each of its size classes.
        const LEAST: u64 = 48;
        let bytes = workload.items(1).mean_len() * self.records as f64 * HELD;
        ((bytes / f64::from(1 << 20)) as u64).max(LEAST)
    }

    fn attaches(&self, reproduction: &mut Reproduction<'_>, memory_mib: u64, repetitions: usize) -> io::Result<Vec<PaperRow>> {
        let folder = region_folder()?;
        let region = folder.path().join("region");
        let mut attaches: [Vec<Attach>; 2] = [Vec::new(), Vec::new()];
        for repetition in 0..repetitions {
            for (prefault, attaches) in [false, true].into_iter().zip(&mut attaches) {
                reproduction.doing("attach after a kill", share(repetition, repetitions));
                let server = self.keyway(&region, memory_mib)?;
                if attaches.is_empty() && !prefault {
                    reproduction.measured("Keyway", format!("{}, {}", env!("CARGO_PKG_VERSION"), server.options()));
                }
                let mut admin = Admin::open(server.admin())?;
                // The first server stores all; the others are killed with the region in use.
                let count = if repetition == 0 && !prefault { self.records } else { 1 };
                (0..count).try_for_each(|index| self.store(&mut admin, index))?;
                admin.barrier()?;
                drop(server);
                attaches.push(self.attach(&region, prefault)?);
            }
        }
        let [plain, prefaulted] = &attaches;
        let of = |attaches: &[Attach], what: fn(&Attach) -> f64| attaches.iter().map(what).collect::<Vec<_>>();
        let row =
            |name: &str, unit: &str, by: &str, values: &[f64]| PaperRow::new(name, unit, 3, Better::Lower).keyway(by, values);
        let (without, with) = ("library", "library, prefault");
        Ok(vec![
            row("attach", "ms", without, &of(plain, |a| a.attach_ms)).paper_system(PAPER_ATTACH_MS),
            row("attach, prefault", "ms", with, &of(prefaulted, |a| a.attach_ms)),
            row("get, first touches", "µs", without, &of(plain, |a| a.touch_us)),
            row("get, first touches, prefault", "µs", with, &of(prefaulted, |a| a.touch_us)),
            row("get, the same keys again", "µs", without, &of(plain, |a| a.again_us)),
        ])
    }

    /// A new mapping, and gets of random records in it, twice the same.
    fn attach(&self, region: &Path, prefault: bool) -> io::Result<Attach> {
        let options = Options::new().prefault(prefault);
        let begun = Instant::now();
        let cache = Cache::open(&Place::Path(region.to_owned()), &options).map_err(io::Error::other)?;
        let attach_ms = begun.elapsed().as_secs_f64() * 1e3;
        let mut session = cache.session().map_err(io::Error::other)?;
        let (mut key, mut value) = (Vec::new(), Vec::new());
        let mut gets = || {
            let mut rng = Rng::new(mix(7));
            let mut spent = Duration::ZERO;
            for _ in 0..TOUCHES {
                let index = rng.below(self.records);
                key.clear();
                value.clear();
                self.items.push_key(index, &mut key);
                let begun = Instant::now();
                let found = session.get_append(&key, &mut value).unwrap();
                spent += begun.elapsed();
                if found.is_none() || !self.items.is_value(index, &value) {
                    return Err(io::Error::other(format!("record {index} did not survive the kill")));
                }
            }
            Ok(spent.as_secs_f64() * 1e6 / count(TOUCHES))
        };
        Ok(Attach {
            attach_ms,
            touch_us: gets()?,
            again_us: gets()?,
        })
    }

    fn store(&self, admin: &mut Admin, index: u64) -> io::Result<()> {
        let (mut key, mut value) = (Vec::new(), Vec::new());
        self.items.push_key(index, &mut key);
        self.items.push_value(index, 0, &mut value);
        admin.set(&key, &value)
    }
}

/// How a server ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Killed,
    Asked,
}

/// One life of a server and the next one.
struct Life {
    before: f64,
    after: f64,
    first_answer_ms: f64,
}

impl Bench {
    fn lives(&self, reproduction: &mut Reproduction<'_>, memory_mib: u64, repetitions: usize) -> io::Result<Vec<PaperRow>> {
        let zipf = Zipf::new(self.records);
        let peer = reproduction.setup.against != Against::Nothing && memcached_path().is_some();
        if !peer && reproduction.setup.against != Against::Nothing {
            reproduction.note("memcached is not installed: Keyway is measured alone");
        }
        let mut lives: [Vec<Life>; 4] = std::array::from_fn(|_| Vec::new());
        for repetition in 0..repetitions {
            for (at, lives) in lives.iter_mut().enumerate() {
                let (keyway, end) = (at < 2, if at % 2 == 0 { End::Killed } else { End::Asked });
                if !keyway && !peer {
                    continue;
                }
                let name = if keyway { "Keyway" } else { "memcached" };
                reproduction.doing(&format!("{name} ends and begins again"), share(repetition, repetitions));
                let life = self.life(reproduction, keyway, end, memory_mib, &zipf, repetition);
                lives.push(life.map_err(|e| reproduction.failed(format!("{name}: {e}")))?);
            }
        }
        let of = |at: usize, what: fn(&Life) -> f64| lives[at].iter().map(what).collect::<Vec<_>>();
        let row = |name: &str, unit, better, at: usize, what: fn(&Life) -> f64| {
            let peer_by = if at == 0 { "memcached" } else { "memcached -e" };
            let row = PaperRow::new(name, unit, 2, better);
            if peer {
                row.measured("keyway serve", &of(at, what), peer_by, &of(at + 2, what))
            } else {
                row.keyway("keyway serve", &of(at, what))
            }
        };
        Ok(vec![
            row("hits before SIGKILL", "%", Better::Higher, 0, |life| life.before),
            row("hits after SIGKILL", "%", Better::Higher, 0, |life| life.after),
            row("hits before an orderly end", "%", Better::Higher, 1, |life| life.before),
            row("hits after an orderly end", "%", Better::Higher, 1, |life| life.after),
            row("first answer after SIGKILL", "ms", Better::Lower, 0, |life| {
                life.first_answer_ms
            }),
            row("first answer after an orderly end", "ms", Better::Lower, 1, |life| {
                life.first_answer_ms
            }),
        ])
    }

    fn life(
        &self,
        reproduction: &mut Reproduction<'_>,
        keyway: bool,
        end: End,
        memory_mib: u64,
        zipf: &Zipf,
        repetition: usize,
    ) -> io::Result<Life> {
        let folder: Folder = region_folder()?;
        let path = folder.path().join("items");
        let mut more = self.memcached_options.clone();
        if end == End::Asked {
            more.extend(["-e".to_owned(), path.display().to_string()]);
        }
        let start = || {
            let server = if keyway {
                Some(self.keyway(&path, memory_mib)?)
            } else {
                Server::memcached(&self.settings(memory_mib, &more))?
            };
            server.ok_or_else(|| io::Error::other("memcached is not installed"))
        };
        // The same requests for all servers of a repetition.
        let mut rng = Rng::new(mix(repetition as u64 + 1));
        let server = start()?;
        let (name, version) = if keyway {
            ("Keyway", env!("CARGO_PKG_VERSION").to_owned())
        } else {
            ("memcached", memcached_version())
        };
        if repetition == 0 {
            reproduction.measured(name, format!("{version}, {}", server.options()));
        }
        let begun = Instant::now();
        let mut admin = Admin::open(server.admin())?;
        // The most popular come last: what is left is near to what a cache ends up with.
        (0..self.records).try_for_each(|number| self.store(&mut admin, mix(self.records - 1 - number) % self.records))?;
        self.ask(&mut admin, zipf, &mut rng)?;
        let before = self.ask(&mut admin, zipf, &mut rng)?;
        admin.barrier()?;
        let wait = !keyway && end == End::Asked;
        if wait {
            std::thread::sleep(MEMCACHED_SECOND.saturating_sub(begun.elapsed()));
        }
        match end {
            End::Killed => drop(server),
            End::Asked => server.stop(if keyway { Signal::TERM } else { Signal::USR1 })?,
        }
        if wait {
            std::thread::sleep(MEMCACHED_SECOND);
        }
        let begun = Instant::now();
        let server = start()?;
        let mut admin = Admin::open(server.admin())?;
        admin.version()?;
        let first_answer_ms = begun.elapsed().as_secs_f64() * 1e3;
        let after = self.ask(&mut admin, zipf, &mut rng)?;
        Ok(Life {
            before,
            after,
            first_answer_ms,
        })
    }

    /// Share of hits in percent; what was missed is stored.
    fn ask(&self, admin: &mut Admin, zipf: &Zipf, rng: &mut Rng) -> io::Result<f64> {
        let mut hits = 0;
        let mut key = Vec::new();
        for _ in 0..REQUESTS {
            let index = mix(zipf.rank(rng)) % self.records;
            key.clear();
            self.items.push_key(index, &mut key);
            let (hit, _) = admin.hits(&[&key])?;
            hits += hit;
            if hit == 0 {
                self.store(admin, index)?;
            }
        }
        Ok(count(hits) / count(REQUESTS) * 100.0)
    }
}

#[allow(clippy::cast_precision_loss, reason = "counts are below 2^53")]
fn count(n: u64) -> f64 {
    n as f64
}

#[allow(clippy::cast_precision_loss, reason = "a few repetitions")]
fn share(done: usize, all: usize) -> f64 {
    done as f64 / all as f64
}
