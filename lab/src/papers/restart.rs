//! pmemcached's claim (HotStorage 2017, section 4): after a restart the cache is warm within a millisecond, however large it is.
//!
//! What is measured is the hit ratio before and after the end of a server, beside memcached's, which begins cold, unless it was started with
//! `-e` and asked to end. What attaching takes is measured by `benches/attach.rs`.

use super::pmemcached::{MACHINE, PAPER};
use crate::presets::{Reproduction, machines};
use crate::table::{PaperRow, PaperTable};
use keyway_bench::items::Items;
use keyway_bench::plan::{Against, Cell, Door, Plan};
use keyway_bench::report::Better;
use keyway_bench::servers::{Folder, Server, Settings, memcached_path, memcached_version};
use keyway_bench::wire::Admin;
use keyway_bench::workload::{Rng, Zipf, mix};
use keyway_bench::workloads;
use rustix::process::Signal;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

/// Records of 1,000 bytes, zipfian.
const WORKLOAD: &str = "ycsb-c";
const RECORDS: u64 = 10_000_000;
const RECORDS_FEW: u64 = 150_000;
/// Requests whose hits are counted, before and after.
const REQUESTS: u32 = 10_000;
/// Share of the records' bytes that caches hold when hits are counted.
const HELD: f64 = 0.35;
/// memcached takes back what it left only if the clock shows another second than when it began.
const MEMCACHED_SECOND: Duration = Duration::from_millis(1100);

pub(crate) fn restart(reproduction: &mut Reproduction<'_>) -> io::Result<()> {
    let workload = workloads::find(WORKLOAD).map_err(io::Error::other)?;
    let records = reproduction.items(RECORDS_FEW, RECORDS);
    let cell = Cell::new(workload, records, Door::Library, 1);
    let plan = reproduction.setup.plan(vec![cell.clone()], Duration::ZERO, 5, 2);
    let bench = Bench {
        items: cell.workload.items(records),
        records,
        plan,
    };
    let held = bench.held_mib();
    let rows = bench.lives(reproduction, held)?;
    let title = format!("before and after the end of a server, {held} MiB for {records} records of 1,000 B, zipf 0.99");
    let mut differs = vec![
        machines(MACHINE),
        "The paper measures no hit ratios: its cache comes back whole.".to_owned(),
        format!("Hits are those of {REQUESTS} requests, what was missed is stored: a cold cache fills meanwhile."),
        "memcached keeps its items only with -e (a file in memory) and if it is asked to end with SIGUSR1; Keyway is asked with SIGTERM."
            .to_owned(),
    ];
    differs.extend((records != RECORDS).then(|| format!("{records} records instead of {RECORDS} (--scale full has as many).")));
    let table = PaperTable::new(title, &format!("{PAPER}, section 4"), ["memcached", "pmemcached"], differs);
    reproduction.tables([PaperTable { rows, ..table }]);
    Ok(())
}

/// A folder in memory, for a region that several processes map.
pub(super) fn region_folder() -> io::Result<Folder> {
    let memory = Path::new("/dev/shm");
    Folder::new(if memory.is_dir() { memory } else { Path::new("/tmp") }, "region")
}

/// What is stored, and what all servers are given.
struct Bench {
    plan: Plan,
    items: Items,
    records: u64,
}

impl Bench {
    fn settings<'a>(&self, memory_mib: u64, more: &'a [String]) -> Settings<'a> {
        Settings {
            memory_mib,
            threads: self.plan.server_threads,
            unix: true,
            more,
            ..Settings::default()
        }
    }

    fn keyway(&self, region: &Path, memory_mib: u64) -> io::Result<Server> {
        let settings = self.settings(memory_mib, &self.plan.server_options);
        Server::keyway_at(region, &self.plan.program, &settings)
    }

    /// Memory that holds a part of the records.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a count of MiB far below 2^53, and not negative"
    )]
    fn held_mib(&self) -> u64 {
        /// memcached -e takes no less than 39 MiB: a page of 1 MiB for each of its size classes.
        const LEAST: u64 = 48;
        let bytes = self.items.mean_len() * self.records as f64 * HELD;
        ((bytes / f64::from(1 << 20)) as u64).max(LEAST)
    }

    fn store(&self, admin: &mut Admin, index: u64) -> io::Result<()> {
        let (mut key, mut value) = (Vec::new(), Vec::new());
        self.items.push_key(index, &mut key);
        self.items.push_value(index, 0, &mut value);
        admin.set(&key, &value)
    }

    fn lives(&self, reproduction: &mut Reproduction<'_>, memory_mib: u64) -> io::Result<Vec<PaperRow>> {
        let is_wanted = self.plan.against != Against::Nothing;
        let peer = is_wanted && memcached_path().is_some();
        if is_wanted && !peer {
            reproduction.note("memcached is not installed: Keyway is measured alone");
        }
        // Keyway killed, and asked to end; memcached the same.
        let mut lives: [Vec<Life>; 4] = Default::default();
        for repetition in 0..self.plan.repetitions.min(3) {
            for (at, lives) in lives.iter_mut().enumerate().filter(|(at, _)| peer || *at < 2) {
                let (name, is_asked) = (["Keyway", "memcached"][at / 2], at % 2 == 1);
                reproduction.doing(&format!("{name} ends and begins again"), 0.75);
                let life = self.life(reproduction, name, is_asked, memory_mib, repetition as u64);
                lives.push(life.map_err(|e| reproduction.failed(format!("{name}: {e}")))?);
            }
        }
        let row = |what: &str, at: usize, figure: usize| {
            let (unit, better) = if figure == 2 {
                ("ms", Better::Lower)
            } else {
                ("%", Better::Higher)
            };
            let name = format!("{what} {}", ["SIGKILL", "an orderly end"][at]);
            let of = |at: usize| lives[at].iter().map(|life| life[figure]).collect::<Vec<_>>();
            let peer_by = ["memcached", "memcached -e"][at];
            PaperRow::new(name, unit, 2, better).measured("keyway serve", &of(at), peer_by, &of(at + 2))
        };
        Ok(vec![
            row("hits before", 0, 0),
            row("hits after", 0, 1),
            row("hits before", 1, 0),
            row("hits after", 1, 1),
            row("first answer after", 0, 2),
            row("first answer after", 1, 2),
        ])
    }

    fn life(
        &self,
        reproduction: &mut Reproduction<'_>,
        name: &'static str,
        is_asked: bool,
        memory_mib: u64,
        repetition: u64,
    ) -> io::Result<Life> {
        let keyway = name == "Keyway";
        let folder: Folder = region_folder()?;
        let path = folder.path().join("items");
        let mut more = self.plan.memcached_options.clone();
        if is_asked {
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
        let server = start()?;
        if repetition == 0 {
            let version = if keyway {
                env!("CARGO_PKG_VERSION").to_owned()
            } else {
                memcached_version()
            };
            reproduction.measured(name, format!("{version}, {}", server.options()));
        }
        // The same requests for all servers of a repetition.
        let (mut rng, zipf) = (Rng::new(mix(repetition + 1)), Zipf::new(self.records));
        let begun = Instant::now();
        let mut admin = Admin::open(server.admin())?;
        // The most popular come last: what is left is near to what a cache ends up with.
        (0..self.records).try_for_each(|number| self.store(&mut admin, mix(self.records - 1 - number) % self.records))?;
        self.ask(&mut admin, &zipf, &mut rng)?;
        let before = self.ask(&mut admin, &zipf, &mut rng)?;
        admin.barrier()?;
        let waits = !keyway && is_asked;
        if waits {
            std::thread::sleep(MEMCACHED_SECOND.saturating_sub(begun.elapsed()));
        }
        if is_asked {
            server.stop(if keyway { Signal::TERM } else { Signal::USR1 })?;
        } else {
            drop(server);
        }
        if waits {
            std::thread::sleep(MEMCACHED_SECOND);
        }
        let begun = Instant::now();
        let server = start()?;
        let mut admin = Admin::open(server.admin())?;
        admin.version()?;
        let first_answer_ms = begun.elapsed().as_secs_f64() * 1e3;
        Ok([before, self.ask(&mut admin, &zipf, &mut rng)?, first_answer_ms])
    }

    /// Share of hits in percent; what was missed is stored.
    fn ask(&self, admin: &mut Admin, zipf: &Zipf, rng: &mut Rng) -> io::Result<f64> {
        let (mut missed, mut key) = (0_u32, Vec::new());
        for _ in 0..REQUESTS {
            let index = mix(zipf.rank(rng)) % self.records;
            key.clear();
            self.items.push_key(index, &mut key);
            if admin.hits(&[&key])?.0 == 0 {
                missed += 1;
                self.store(admin, index)?;
            }
        }
        Ok(100.0 - f64::from(missed) / f64::from(REQUESTS) * 100.0)
    }
}

/// One life of a server and the next one: percent of hits before the end and after it, and milliseconds until the first answer.
type Life = [f64; 3];
