//! The library door beside libmemcached, in one C program (`library_door.c`): libkeyway, the drop-in for libmemcached, and libmemcached to
//! a memcached over a Unix socket and TCP, on the client's CPU and on another one. The paper on protected libraries has this as its
//! Figure 5 ("Memcached as a protected library", ICPP 2020).
//!
//! It builds what it measures: both libraries in the release profile, the C program with gcc -O2.

use benches::{Args, describe, head, row, say};
use keyway_bench::machine;
use keyway_bench::medians::Samples;
use keyway_bench::servers::{Folder, Server, Settings, memcached_version};
use keyway_cache::{Cache, Options, Place};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

const HELP: &str = "\
library_door: get and set of 128 B and 5 KB, delete and increment: libkeyway, the drop-in, and libmemcached to a memcached

    --runs N    runs of each side, in turn (7)
    --loops N   operations of each kind in a run of a library (100000); over a socket a twentieth of it";

const OPERATIONS: [&str; 6] = ["get-128", "set-128", "get-5K", "set-5K", "delete", "increment"];

/// Who answers, and where.
struct Side {
    name: String,
    command: Command,
    /// of each run, for each operation: mean, median, 99th percentile
    runs: BTreeMap<String, [Samples; 3]>,
}

impl Side {
    fn new(name: &str, program: &Path, place: &str, loops: u64) -> Self {
        let mut command = Command::new(program);
        command.args([place, &loops.to_string()]);
        Self {
            name: name.to_owned(),
            command,
            runs: BTreeMap::new(),
        }
    }

    fn run(&mut self) -> io::Result<()> {
        let output = self.command.output()?;
        if !output.status.success() {
            return failed(&format!("{}: {}", self.name, String::from_utf8_lossy(&output.stderr)));
        }
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let mut words = line.split(' ');
            let samples = self.runs.entry(words.next().unwrap_or_default().to_owned()).or_default();
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

fn failed<T>(why: &str) -> io::Result<T> {
    Err(io::Error::other(why.to_owned()))
}

fn main() -> io::Result<()> {
    let args = Args::parse(HELP);
    let (runs, loops): (u64, u64) = (args.number("--runs", 7), args.number("--loops", 100_000));
    let built = build()?;
    let folder = Folder::new(Path::new("/dev/shm"), "library-door")?;
    let lean = compile(folder.path(), "lean", &["-DLEAN"], &built)?;
    let plain = compile(folder.path(), "libmemcached", &[], &built)?;
    let cpus = machine::allowed_cpus()?;
    // Interrupts and the default of all other programs are on the first.
    let own = cpus[cpus.len() - 1];
    describe();
    say(format!(
        "{}; client on CPU {own}; medians of {runs} runs in turn",
        memcached_version()
    ));
    let region = |name: &str| {
        let path = folder.path().join(name);
        // The program names no memory, and the drop-in makes no region.
        Cache::open(&Place::Path(path.clone()), &Options::new().memory(64 << 20)).map_err(io::Error::other)?;
        io::Result::Ok(path.display().to_string())
    };
    let mut dropin = Side::new("drop-in", &plain, &format!("keyway:{}", region("dropin")?), loops);
    dropin
        .command
        .env("LD_PRELOAD", built.join("libmemcached.so"))
        .env("KEYWAY_LIBMEMCACHED_REAL", "/nowhere");
    let mut sides = vec![Side::new("libkeyway", &lean, &region("lean")?, loops), dropin];
    let mut running = Vec::new();
    for (cpu, place) in [(own, "same CPU"), (cpus[0], "other CPU")] {
        for unix in [true, false] {
            if place == "other CPU" && cpu == own {
                continue;
            }
            // A child is where its parent was when it started.
            machine::pin(&[cpu])?;
            let settings = Settings {
                threads: 2,
                connections: 64,
                unix,
                ..Settings::default()
            };
            let Some(server) = Server::memcached(&settings)? else {
                say("SKIP: memcached is not installed");
                continue;
            };
            let name = format!("memcached, {}, {place}", if unix { "Unix" } else { "TCP" });
            sides.push(Side::new(&name, &plain, &server.admin().to_string(), (loops / 20).max(256)));
            running.push(server);
        }
    }
    machine::pin(&[own])?;
    for _ in 0..runs {
        sides.iter_mut().try_for_each(Side::run)?;
    }
    print(&sides);
    Ok(())
}

/// Builds both libraries as `make build` does; the folder that they are in.
fn build() -> io::Result<PathBuf> {
    let bench = std::env::current_exe()?;
    let Some(release) = bench.ancestors().nth(2) else {
        return failed("no target directory");
    };
    for arguments in [
        &["rustc", "--package", "keyway-capi", "--lib", "--crate-type", "cdylib"][..],
        &["build", "--package", "keyway-libmemcached"],
    ] {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo
            .args(arguments)
            .args(["--release", "--quiet", "--target-dir"])
            .arg(release.parent().unwrap_or(release));
        if !cargo
            .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
            .status()?
            .success()
        {
            return failed("the libraries must be built first, and this failed");
        }
    }
    Ok(release.to_owned())
}

fn compile(folder: &Path, name: &str, flags: &[&str], built: &Path) -> io::Result<PathBuf> {
    let (program, here) = (folder.join(format!("{name}.program")), Path::new(env!("CARGO_MANIFEST_DIR")));
    let mut gcc = Command::new("gcc");
    gcc.args(["-O2", "-Wall", "-o"])
        .arg(&program)
        .args(flags)
        .arg(here.join("library_door.c"));
    if flags.is_empty() {
        gcc.arg("-lmemcached");
    } else {
        // Under the name that the program is to look for.
        let library = folder.join("libkeyway.so.0");
        std::fs::copy(built.join("libkeyway_capi.so"), &library)?;
        gcc.arg("-I").arg(here.join("../crates/keyway-capi/include")).arg(library);
        gcc.arg(format!("-Wl,-rpath,{}", folder.display()));
    }
    if gcc.status()?.success() {
        return Ok(program);
    }
    failed("gcc and libmemcached-dev are needed: xtask/prerequisites.sh test installs them")
}

fn print(sides: &[Side]) {
    // "At least so many times" is against memcached's best: the faster socket on the client's own CPU.
    let best = |operation: &str| {
        let same = sides.iter().filter(|side| side.name.ends_with("same CPU"));
        same.map(|side| side.median(operation, 0)).fold(f64::NAN, f64::min)
    };
    let title = ["mean / p50 / p99, ns (times memcached's best on the same CPU)"];
    say(head(&[&title[..], &OPERATIONS].concat()));
    for side in sides {
        let cells = OPERATIONS.map(|operation| {
            let [mean, p50, p99] = [0, 1, 2].map(|what| side.median(operation, what));
            let times = best(operation) / mean;
            let times = if times.is_nan() {
                String::new()
            } else {
                format!(" ({times:.1}×)")
            };
            format!("{mean:.0} / {p50:.0} / {p99:.0}{times}")
        });
        say(row(&[&[side.name.clone()][..], &cells].concat()));
    }
}
