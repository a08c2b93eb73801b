//! What a watcher of everything costs those that it watches: `keyway watch all` on one of two regions, each with the same load in turn.
//!
//! A watcher needs a processor of its own: for each event it sorts, formats and writes a line. So it has one, and client and server share
//! another: then no wake-up of one side is from another processor, and both sides have the same requests at hand at a time. Beside the rates
//! by the clock there are those for each second of processor time of the server's process, or of the calling thread. Operations of the library come as from a program that makes a million a second:
//! between two calls it works as long as makes a microsecond of both, when no watcher looks. One row is of a client that offers the server
//! a million operations a second.

use benches::client::{Admin, Door, Exchange, Load};
use benches::cpu_time::CpuTime;
use benches::machine;
use benches::report::{Args, Samples, head, row, say};
use benches::requests::{Popularity, keys};
use benches::servers::{Server, Settings, keyway_path};
use benches::workload::{Key, key};
use keyway_cache::{Cache, Gate, Options, Place, Session};
use std::hint::black_box;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const HELP: &str = "\
watched: the cost of a watcher of everything

    --seconds S    length of one measurement (1)
    --repeats N    measurements of each kind (7)

KEYWAY_BIN names another program than target/release/keyway.";

const CPU: usize = 0;
const WATCHER_CPU: usize = 1;
const ITEMS: u64 = 100_000;
const VALUE_LEN: usize = 128;
const MEMORY_MIB: u64 = 256;
/// One in this many operations is a set (YCSB's B).
const SETS: usize = 20;
/// What an operation and the program's own work take together, nanoseconds.
const PACE_NS: f64 = 1000.0;
/// The rate that a client offers, operations a second.
const OFFERED_PER_S: f64 = 1e6;
/// Operations between two looks at the clock.
const ROUND: usize = 10_000;

/// A region's file, removed at the end, and its watcher.
struct Region {
    path: PathBuf,
    watcher: Option<Child>,
}

impl Region {
    fn new(name: &str) -> Self {
        let name = format!("keyway-bench-watched-{}-{name}", std::process::id());
        Self {
            path: Path::new("/dev/shm").join(name),
            watcher: None,
        }
    }

    fn watch(&mut self) -> io::Result<()> {
        machine::pin(&[WATCHER_CPU])?;
        let mut command = Command::new(keyway_path()?);
        command.args(["watch", "all", "--region"]).arg(&self.path);
        self.watcher = Some(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?);
        // Until it watches.
        std::thread::sleep(Duration::from_secs(1));
        Ok(())
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if let Some(mut watcher) = self.watcher.take() {
            let _ = watcher.kill();
            let _ = watcher.wait();
        }
        let _ = std::fs::remove_file(&self.path);
    }
}

fn main() -> io::Result<()> {
    let args = Args::parse(HELP);
    let length = Duration::from_secs_f64(args.number("--seconds", 1.0));
    let repeats = args.number("--repeats", 7);
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
    network(length, repeats)?;
    library(length, repeats)
}

/// Rates of the two sides, by the clock and by processor time, in thousands.
#[derive(Default)]
struct Rates {
    by_clock: [Samples; 2],
    by_cpu: [Samples; 2],
    ratios: [Samples; 2],
}

impl Rates {
    /// The rates of both sides, one after the other: by the clock and by processor time.
    fn push(&mut self, sides: [[f64; 2]; 2]) {
        for (side, [by_clock, by_cpu]) in sides.into_iter().enumerate() {
            self.by_clock[side].push(by_clock / 1e3);
            self.by_cpu[side].push(by_cpu / 1e3);
        }
        for (kind, ratios) in self.ratios.iter_mut().enumerate() {
            ratios.push(sides[1][kind] / sides[0][kind]);
        }
    }

    fn row(&self, name: &str) -> String {
        row(&[
            name.to_owned(),
            self.by_clock[0].show(0),
            self.by_clock[1].show(0),
            self.ratios[0].show(2),
            self.by_cpu[0].show(0),
            self.by_cpu[1].show(0),
            self.ratios[1].show(2),
        ])
    }
}

#[allow(clippy::cast_precision_loss, reason = "counts are below 2^53")]
fn network(length: Duration, repeats: usize) -> io::Result<()> {
    let mut regions = ["quiet", "watched"].map(Region::new);
    machine::pin(&[CPU])?;
    let settings = Settings {
        memory_mib: MEMORY_MIB,
        threads: 1,
        connections: 64,
        unix: true,
        ..Settings::default()
    };
    let program = keyway_path()?;
    let servers = [&regions[0], &regions[1]].map(|region| Server::keyway_at(&region.path, &program, &settings));
    let [quiet, watched] = servers;
    let servers = [quiet?, watched?];
    for server in &servers {
        let mut admin = Admin::open(server.admin())?;
        (0..ITEMS).try_for_each(|index| admin.set(&key(index), &[b'v'; VALUE_LEN]))?;
        admin.barrier()?;
    }
    regions[1].watch()?;
    machine::pin(&[CPU])?;
    let order = keys(ITEMS, Popularity::Zipf, 1 << 14, 42);
    let exchange = |(number, key): (usize, &Key)| match number % SETS {
        0 => Exchange::set(key, VALUE_LEN),
        _ => Exchange::get(&[key], VALUE_LEN),
    };
    let exchanges: Vec<Exchange> = order.iter().enumerate().map(exchange).collect();
    // A batch begins with a set or not, and its answers have one length.
    for (name, batch, connections, offered) in [
        ("network, 1 at a time", 1, 4, None),
        ("network, 20 pipelined", SETS, 4, None),
        (
            "network, 20 pipelined, a million a second offered",
            SETS,
            16,
            Some(OFFERED_PER_S),
        ),
    ] {
        let load = Load {
            exchanges: exchanges.chunks_exact(batch).map(Exchange::pipelined).collect(),
            connections,
        };
        let run = |target: &_, length| match offered {
            None => load.run(target, length),
            Some(rate) => load.run_at(target, length, rate / batch as f64),
        };
        let mut rates = Rates::default();
        for _ in 0..repeats {
            let mut sides = [[0.0; 2]; 2];
            for (server, side) in servers.iter().zip(&mut sides) {
                let target = server.target(Door::Unix).ok_or(io::ErrorKind::NotConnected)?;
                run(&target, length / 10)?;
                let before = CpuTime::of(server.pid())?;
                let ran = run(&target, length)?;
                let used = CpuTime::of(server.pid())?.since(before).total();
                let requests = (ran.exchanges * batch as u64) as f64;
                *side = [requests / ran.elapsed.as_secs_f64(), requests / used.as_secs_f64()];
            }
            rates.push(sides);
        }
        say(rates.row(name));
    }
    Ok(())
}

#[allow(clippy::cast_precision_loss, reason = "counts are below 2^53")]
fn library(length: Duration, repeats: usize) -> io::Result<()> {
    let mut regions = ["calm", "seen"].map(Region::new);
    let options = Options::new().memory(MEMORY_MIB << 20).gate(Gate::Off);
    let open = |region: &Region| Cache::open(&Place::Path(region.path.clone()), &options).map_err(io::Error::other);
    let caches = [open(&regions[0])?, open(&regions[1])?];
    let order = keys(ITEMS, Popularity::Zipf, 1 << 14, 42);
    let mut sessions = Vec::new();
    for cache in &caches {
        let mut session = cache.session().map_err(io::Error::other)?;
        for index in 0..ITEMS {
            session.set(&key(index), &[b'v'; VALUE_LEN], 0).map_err(io::Error::other)?;
        }
        sessions.push(session);
    }
    regions[1].watch()?;
    machine::pin(&[CPU])?;
    let paced = pace(&mut sessions[0], &order, length);
    for (name, steps) in [("library, as fast as it can", 0), ("library, a million a second", paced)] {
        let mut rates = Rates::default();
        for _ in 0..repeats {
            let mut sides = [[0.0; 2]; 2];
            for (session, side) in sessions.iter_mut().zip(&mut sides) {
                calls(session, &order, length / 10, steps);
                *side = calls(session, &order, length, steps);
            }
            rates.push(sides);
        }
        say(rates.row(name));
    }
    Ok(())
}

/// The work of its own with which a program makes a million calls a second, on a region that no watcher looks at.
#[allow(clippy::cast_precision_loss, reason = "counts are below 2^53")]
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
    let (begun, cpu) = (std::time::Instant::now(), machine::thread_cpu());
    let mut out = Vec::with_capacity(2 * VALUE_LEN);
    let mut made = 0;
    let mut keys = order.iter().cycle();
    while begun.elapsed() < length {
        for (number, key) in keys.by_ref().take(ROUND).enumerate() {
            if number % SETS == 0 {
                session.set(key, &[b'v'; VALUE_LEN], 0).expect("a set is not refused");
            } else {
                out.clear();
                assert!(session.get_append(key, &mut out).expect("a key of 16 B").is_some());
            }
            work(steps);
        }
        made += ROUND;
    }
    let rate = |time: Duration| made as f64 / time.as_secs_f64();
    [rate(begun.elapsed()), rate(machine::thread_cpu() - cpu)]
}

/// The program's own work.
#[inline(never)]
fn work(steps: u64) {
    for step in 0..steps {
        black_box(step);
    }
}
