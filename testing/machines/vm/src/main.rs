//! `cargo xtask vm`: tests in guests of QEMU.
//! Guards: P20, P21, P32, P33
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line tool talks to its terminal"
)]

use std::process::ExitCode;
use vm::kernels::Version;
use vm::machine::{QEMU, SETPRIV};
use vm::tests::{ALL, Fails, Test};
use vm::trial::{Bench, Report};
use vm::{guest, nvdimm, trial};

const HELP: &str = "\
vm: tests that need another kernel, processor or memory, in guests of QEMU that are started here

    --short         the gate's form: fewer rounds of the persistent memory that loses its power
    --rounds N      so many of them (10)
    --seed N        of every random choice (printed)
    --only TEXT     tests whose name contains it; nvdimm is one
    --list          what there is
    --help          this

Guests run under software emulation, with two processors each, two guests at a time. They have no network and none of this
machine's disks. They need QEMU and the kernels that xtask/guest-kernels.sh fetches (xtask/prerequisites.sh test does both).
";

struct Options {
    rounds: u32,
    seed: u64,
    only: String,
}

fn main() -> ExitCode {
    if let Some(code) = guest::part_of_it() {
        return code;
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match parse(&arguments) {
        Ok(Some(options)) => run(&options),
        Ok(None) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("vm: {why}; --help tells what there is");
            ExitCode::from(2)
        }
    }
}

fn parse(arguments: &[String]) -> Result<Option<Options>, String> {
    let mut options = Options {
        rounds: 10,
        seed: harness::Random::seed_for("vm"),
        only: String::new(),
    };
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value"));
        match argument.as_str() {
            "--short" => options.rounds = 2,
            "--rounds" => options.rounds = number(value()?)?,
            "--seed" => options.seed = number(value()?)?,
            "--only" => options.only.clone_from(value()?),
            "--help" | "-h" => {
                print!("{HELP}");
                return Ok(None);
            }
            "--list" => {
                for test in ALL.iter().chain(nvdimm::STEPS) {
                    println!("{:18} {:5} {}", test.name, test.kernel.name(), test.shows);
                }
                return Ok(None);
            }
            _ => return Err(format!("there is no option {argument}")),
        }
    }
    Ok(Some(options))
}

fn run(options: &Options) -> ExitCode {
    if let Some(why) = missing() {
        harness::skip("the tests in guests", &why);
        println!("0 passed, 0 failed");
        return ExitCode::SUCCESS;
    }
    println!("seed {}", options.seed);
    let report = Report::default();
    std::thread::scope(|scope| {
        for version in [Version::V6_12, Version::V6_1] {
            let report = &report;
            scope.spawn(move || on(report, version, options));
        }
    });
    let (passed, failed) = report.counts();
    println!("{passed} passed, {failed} failed");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{text} is no number"))
}

/// What of it is not here.
fn missing() -> Option<String> {
    if !cfg!(target_arch = "x86_64") {
        return Some("the guests' kernels are for x86-64".into());
    }
    let programs = [QEMU, SETPRIV, "ldd"];
    if let Some(name) = programs.into_iter().find(|name| harness::program_on_path(name).is_none()) {
        return Some(format!("{name} is not installed"));
    }
    let kernels = [Version::V6_1, Version::V6_12].into_iter();
    kernels.filter_map(|version| vm::kernels::Kernel::find(version).err()).next()
}

/// Everything that is tried on one kernel.
fn on(report: &Report, version: Version, options: &Options) {
    let wanted = |name: &str| name.contains(options.only.as_str());
    let mut tests: Vec<&Test> = ALL.iter().filter(|t| t.kernel == version && wanted(t.name)).collect();
    // the test that takes the guest with it comes last
    tests.sort_by_key(|test| test.fails == Fails::WithGuest);
    let with_nvdimm = version == nvdimm::KERNEL && options.rounds > 0 && wanted("nvdimm");
    let steps = nvdimm::STEPS.iter().filter(|_| with_nvdimm);
    let all: Vec<&Test> = tests.iter().copied().chain(steps).collect();
    if all.is_empty() {
        return;
    }
    match Bench::new(version, &all) {
        Ok(bench) if with_nvdimm => nvdimm::run(report, &bench, &tests, options.rounds, options.seed),
        Ok(bench) => trial::run(report, &bench, &tests),
        Err(why) => report.take(version.name(), "the guest's files", Err(why)),
    }
}
