//! The library door beside libmemcached, in one C program (`library_door.c`): libkeyway, the drop-in for libmemcached, and libmemcached to
//! a memcached over a Unix socket and TCP, on the client's CPU and on another one. The paper on protected libraries has this as its
//! Figure 5 ("Memcached as a protected library", ICPP 2020).
//!
//! It builds what it measures: both libraries in the release profile, the C program with gcc -O2.

use benches::report::{Args, Samples, head, row, say};
use benches::{gate, machine, servers};
use keyway_bench::plan::Door;
use servers::{Server, Settings, memcached_version};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

const HELP: &str = "\
library_door: get and set of 128 B and 5 KB, delete and increment: libkeyway, the drop-in, and libmemcached to a memcached

    --runs N    runs of each side, in turn (7)
    --loops N   operations of each kind in a run of a library (100000); over a socket a twentieth of it";

const OPERATIONS: [&str; 6] = ["get-128", "set-128", "get-5K", "set-5K", "delete", "increment"];
const BUILD_FAILED: &str = "the libraries must be built first, and this failed";

/// Who answers, and where.
struct Side {
    name: &'static str,
    program: PathBuf,
    place: String,
    preload: Option<PathBuf>,
    loops: u64,
    /// of each run, for each operation: mean, median, 99th percentile
    runs: BTreeMap<String, [Samples; 3]>,
}

fn main() -> io::Result<()> {
    let args = Args::parse(HELP);
    let (runs, loops): (u64, u64) = (args.number("--runs", 7), args.number("--loops", 100_000));
    let built = build()?;
    let folder = keyway_bench::servers::Folder::new(Path::new("/dev/shm"), "library-door")?;
    let lean = compile(folder.path(), "lean", &["-DLEAN"], &built)?;
    let plain = compile(folder.path(), "libmemcached", &[], &built)?;
    let cpus = machine::allowed_cpus()?;
    // Interrupts and the default of all other programs are on the first.
    let own = cpus[cpus.len() - 1];
    let other = (cpus[0] != own).then_some(cpus[0]);
    say(gate::describe());
    say(format!(
        "{}; client on CPU {own}; medians of {runs} runs in turn",
        memcached_version()
    ));

    let mut running = Vec::new();
    let region = |name: &str| folder.path().join(name).display().to_string();
    let side = |name, program: &Path, place: String, preload: Option<PathBuf>, loops| Side {
        name,
        program: program.to_owned(),
        place,
        preload,
        loops,
        runs: BTreeMap::new(),
    };
    let dropin = built.join("libmemcached.so");
    let mut sides = vec![
        side("libkeyway", &lean, region("lean"), None, loops),
        side("drop-in", &plain, format!("keyway:{}", region("dropin")), Some(dropin), loops),
    ];
    let placed = [
        (Some(own), "memcached, Unix, same CPU", "memcached, TCP, same CPU"),
        (other, "memcached, Unix, other CPU", "memcached, TCP, other CPU"),
    ];
    for (cpu, over_unix, over_tcp) in placed {
        let Some(cpu) = cpu else { continue };
        for (name, unix) in [(over_unix, true), (over_tcp, false)] {
            // A child is where its parent was when it started.
            machine::pin(&[cpu])?;
            let server = Server::memcached(&settings(unix))?;
            let Some(server) = server else {
                say("SKIP: memcached is not installed");
                continue;
            };
            let place = match server.target(if unix { Door::Unix } else { Door::Tcp }) {
                Some(keyway_bench::wire::Target::Unix(path)) => path.display().to_string(),
                Some(keyway_bench::wire::Target::Tcp(address)) => address.to_string(),
                _ => continue,
            };
            running.push(server);
            sides.push(side(name, &plain, place, None, (loops / 20).max(256)));
        }
    }
    machine::pin(&[own])?;
    for _ in 0..runs {
        for side in &mut sides {
            side.run()?;
        }
    }
    print(&sides);
    Ok(())
}

fn settings(unix: bool) -> Settings<'static> {
    Settings {
        memory_mib: 64,
        threads: 2,
        connections: 64,
        unix,
        ..Settings::default()
    }
}

/// Builds both libraries as `make build` does; the folder that they are in.
fn build() -> io::Result<PathBuf> {
    let bench = std::env::current_exe()?;
    let release = bench
        .ancestors()
        .nth(2)
        .ok_or_else(|| io::Error::other("no target directory"))?;
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for arguments in [
        &["rustc", "--package", "keyway-capi", "--lib", "--crate-type", "cdylib"][..],
        &["build", "--package", "keyway-libmemcached"],
    ] {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(arguments).args(["--release", "--quiet"]).current_dir(&root);
        cargo.arg("--target-dir").arg(release.parent().unwrap_or(release));
        if !cargo.status()?.success() {
            return Err(io::Error::other(BUILD_FAILED));
        }
    }
    Ok(release.to_owned())
}

fn compile(folder: &Path, name: &str, flags: &[&str], built: &Path) -> io::Result<PathBuf> {
    let program = folder.join(format!("{name}.program"));
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut gcc = Command::new("gcc");
    gcc.args(["-O2", "-Wall", "-o"])
        .arg(&program)
        .args(flags)
        .arg(here.join("library_door.c"));
    if flags.is_empty() {
        gcc.arg("-lmemcached");
    } else {
        // Under the name that the program is to look for.
        std::fs::copy(built.join("libkeyway_capi.so"), folder.join("libkeyway.so.0"))?;
        gcc.arg("-I")
            .arg(here.join("../crates/keyway-capi/include"))
            .arg(folder.join("libkeyway.so.0"));
        gcc.arg(format!("-Wl,-rpath,{}", folder.display()));
    }
    if gcc.status()?.success() {
        return Ok(program);
    }
    Err(io::Error::other(
        "gcc and libmemcached-dev are needed: xtask/prerequisites.sh test installs them",
    ))
}

impl Side {
    fn run(&mut self) -> io::Result<()> {
        let mut command = Command::new(&self.program);
        command.arg(&self.place).arg(self.loops.to_string());
        if let Some(library) = &self.preload {
            command.env("LD_PRELOAD", library).env("KEYWAY_LIBMEMCACHED_REAL", "/nowhere");
        }
        let output = command.output()?;
        if !output.status.success() {
            return Err(io::Error::other(format!(
                "{}: {}",
                self.name,
                String::from_utf8_lossy(&output.stderr)
            )));
        }
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let mut words = line.split(' ');
            let name = words.next().unwrap_or_default().to_owned();
            let samples = self
                .runs
                .entry(name)
                .or_insert_with(|| std::array::from_fn(|_| Samples::default()));
            for (samples, number) in samples.iter_mut().zip(words) {
                samples.push(number.parse().map_err(io::Error::other)?);
            }
        }
        Ok(())
    }

    fn median(&self, operation: &str, what: usize) -> f64 {
        self.runs.get(operation).map_or(f64::NAN, |samples| samples[what].median())
    }
}

fn print(sides: &[Side]) {
    // "At least so many times" is against memcached's best: the faster socket on the client's own CPU.
    let best = |operation: &str| {
        let same = sides.iter().filter(|side| side.name.ends_with("same CPU"));
        same.map(|side| side.median(operation, 0)).fold(f64::NAN, f64::min)
    };
    let mut columns = vec!["mean / p50 / p99, ns (times memcached's best on the same CPU)"];
    columns.extend(OPERATIONS);
    say(head(&columns));
    for side in sides {
        let mut cells = vec![side.name.to_owned()];
        for operation in OPERATIONS {
            let [mean, p50, p99] = [0, 1, 2].map(|what| side.median(operation, what));
            let times = best(operation) / mean;
            let times = if times.is_nan() {
                String::new()
            } else {
                format!(" ({times:.1}×)")
            };
            cells.push(format!("{mean:.0} / {p50:.0} / {p99:.0}{times}"));
        }
        say(row(&cells));
    }
}
