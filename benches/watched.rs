//! What a watcher of everything costs those that it watches: `keyway watch all` on one of two regions, each with the same load in turn.
//!
//! A watcher needs a processor of its own: for each event it sorts, formats and writes a line. So it has one, and client and server share
//! another: then no wake-up of one side is from another processor, and both sides have the same requests at hand at a time. Beside the rates
//! by the clock there are those for each second of processor time of the server's process, or of the calling thread. Operations of the library come as from a program that makes a million a second:
//! between two calls it works as long as makes a microsecond of both, when no watcher looks.

use benches::{Args, fill, head, keys, row, say};
use keyway_bench::caches::Side;
use keyway_bench::machine;
use keyway_bench::medians::Samples;
use keyway_bench::plan::{Cell, Door, Plan};
use keyway_bench::run::{Draw, Operations, measure};
use keyway_bench::servers::{Folder, Server, Settings, keyway_path};
use keyway_bench::workload::Key;
use keyway_bench::workloads;
use keyway_cache::{Cache, Gate, Options, Place, Session};
use std::hint::black_box;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const HELP: &str = "\
watched: the cost of a watcher of everything

    --seconds S    length of one measurement (1)
    --repeats N    measurements of each kind (7)

KEYWAY_BIN names another program than target/release/keyway.";

const CPU: usize = 0;
const WATCHER_CPU: usize = 1;
const ITEMS: u64 = 100_000;
const VALUE: [u8; 128] = [b'v'; 128];
const MEMORY_MIB: u64 = 256;
/// One in this many operations is a set (YCSB's B).
const SETS: usize = 20;
/// What an operation and the program's own work take together, nanoseconds.
const PACE_NS: f64 = 1000.0;
/// Operations between two looks at the clock.
const ROUND: usize = 10_000;

/// A watcher of a region, ended with its handle.
struct Watcher(Child);

impl Watcher {
    fn of(region: &Path) -> io::Result<Self> {
        machine::pin(&[WATCHER_CPU])?;
        let mut command = Command::new(keyway_path()?);
        command.args(["watch", "all", "--region"]).arg(region);
        let watcher = Self(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?);
        // Until it watches.
        std::thread::sleep(Duration::from_secs(1));
        machine::pin(&[CPU])?;
        Ok(watcher)
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn main() -> io::Result<()> {
    let args = Args::parse(HELP);
    let (length, repeats) = (
        Duration::from_secs_f64(args.number("--seconds", 1.0)),
        args.number("--repeats", 7),
    );
    say(machine::describe());
    if machine::cpus() <= WATCHER_CPU {
        say("SKIP: two CPUs are needed, and this process may use one");
        return Ok(());
    }
    say(head(&[
        "load, 95 % gets",
        "thousand operations a second, not watched",
        "watched",
        "ratio",
        "for each second of processor time: not watched, thousand",
        "watched",
        "ratio",
    ]));
    let folder = Folder::new(Path::new("/dev/shm"), "watched")?;
    network(["quiet", "watched"].map(|name| folder.path().join(name)), length, repeats)?;
    library(["calm", "seen"].map(|name| folder.path().join(name)), length, repeats)
}

/// Measures both sides in turn, each by the clock and by processor time, and prints their row.
fn compare(name: &str, repeats: usize, mut side: impl FnMut(usize) -> io::Result<[f64; 2]>) -> io::Result<()> {
    let mut columns: [[Samples; 3]; 2] = Default::default();
    for _ in 0..repeats {
        let rates = [side(0)?, side(1)?];
        for (kind, [quiet, watched, ratio]) in columns.iter_mut().enumerate() {
            quiet.push(rates[0][kind] / 1e3);
            watched.push(rates[1][kind] / 1e3);
            ratio.push(rates[1][kind] / rates[0][kind]);
        }
    }
    let shown = columns
        .iter()
        .flat_map(|[quiet, watched, ratio]| [quiet.show(0), watched.show(0), ratio.show(2)]);
    say(row(&std::iter::once(name.to_owned()).chain(shown).collect::<Vec<_>>()));
    Ok(())
}

#[allow(clippy::cast_precision_loss, reason = "counts are below 2^53")]
fn network(regions: [PathBuf; 2], length: Duration, repeats: usize) -> io::Result<()> {
    machine::pin(&[CPU])?;
    let settings = Settings {
        memory_mib: MEMORY_MIB,
        unix: true,
        ..Settings::default()
    };
    let program = keyway_path()?;
    let start = |region: &PathBuf| Server::keyway_at(region, &program, &settings);
    let servers = [start(&regions[0])?, start(&regions[1])?];
    let sides = servers.each_ref().map(|server| Side::of_server("Keyway", server, Door::Unix));
    let [quiet, watched] = sides;
    let sides = [quiet?, watched?];
    let cell = |depth| {
        let workload = workloads::find("128b-95").map_err(io::Error::other)?;
        Ok::<_, io::Error>(Cell {
            depth,
            ..Cell::new(workload, ITEMS, Door::Unix, 4)
        })
    };
    let mut watcher = None;
    for (name, cell) in [("network, 1 at a time", cell(1)?), ("network, 20 pipelined", cell(SETS)?)] {
        let plan = Plan::new(program.clone(), vec![cell.clone()], length, repeats);
        let operations = Operations::new(&cell);
        sides.iter().try_for_each(|side| side.prepare(&cell, &operations.items))?;
        if watcher.is_none() {
            watcher = Some(Watcher::of(&regions[1])?);
        }
        let mut step = 0;
        compare(name, repeats, |side| {
            step += 1;
            let ran = measure(&plan, &cell, &sides[side], &operations, Draw { repetition: 0, step })?;
            if ran.wrong.any() {
                return Err(io::Error::other(ran.wrong.to_string()));
            }
            let used = ran.server.map_or(f64::NAN, |used| used.cpu.as_secs_f64());
            Ok([ran.rate(), ran.operations as f64 / used])
        })?;
    }
    Ok(())
}

fn library(regions: [PathBuf; 2], length: Duration, repeats: usize) -> io::Result<()> {
    let options = Options::new().memory(MEMORY_MIB << 20).gate(Gate::Off);
    let caches = regions
        .each_ref()
        .map(|region| Cache::open(&Place::Path(region.clone()), &options).expect("a new region"));
    let mut sessions = caches.each_ref().map(|cache| fill(cache, ITEMS, &VALUE));
    let _watcher = Watcher::of(&regions[1])?;
    let order = keys(ITEMS, false, 1 << 14, 42);
    let paced = pace(&mut sessions[0], &order, length);
    for (name, steps) in [("library, as fast as it can", 0), ("library, a million a second", paced)] {
        compare(name, repeats, |side| {
            calls(&mut sessions[side], &order, length / 10, steps);
            Ok(calls(&mut sessions[side], &order, length, steps))
        })?;
    }
    Ok(())
}

/// The work of its own with which a program makes a million calls a second, on a region that no watcher looks at.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "about a thousand")]
fn pace(session: &mut Session, order: &[Key], length: Duration) -> u64 {
    let before = machine::thread_cpu();
    work(10_000_000);
    let step_ns = (machine::thread_cpu() - before).as_secs_f64() * 1e9 / 1e7;
    let mut steps = PACE_NS / step_ns;
    // A call takes longer between other work than after another call.
    for _ in 0..5 {
        let took_ns = 1e9 / calls(session, order, length, steps as u64)[1];
        steps = (steps + (PACE_NS - took_ns) / step_ns).max(0.0);
    }
    steps as u64
}

/// Makes calls for so long, with so much work of its own after each. Returns the rate by the clock and by this thread's processor time.
#[allow(clippy::cast_precision_loss, reason = "counts are below 2^53")]
fn calls(session: &mut Session, order: &[Key], length: Duration, steps: u64) -> [f64; 2] {
    let (begun, cpu) = (Instant::now(), machine::thread_cpu());
    let (mut out, mut made) = (Vec::with_capacity(2 * VALUE.len()), 0);
    let mut keys = order.iter().cycle();
    while begun.elapsed() < length {
        for (number, key) in keys.by_ref().take(ROUND).enumerate() {
            if number % SETS == 0 {
                session.set(key, &VALUE, 0).expect("a set is not refused");
            } else {
                out.clear();
                assert!(session.get_append(key, &mut out).expect("a key of 16 B").is_some());
            }
            work(steps);
        }
        made += ROUND;
    }
    [begun.elapsed(), machine::thread_cpu() - cpu].map(|time| made as f64 / time.as_secs_f64())
}

/// The program's own work.
#[inline(never)]
fn work(steps: u64) {
    for step in 0..steps {
        black_box(step);
    }
}
