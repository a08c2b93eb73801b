//! Persistent memory that loses its power: a guest with an NVDIMM writes to regions on it, its emulator is killed in the middle, and
//! the next boot finds what it had acknowledged.
//!
//! The NVDIMM is a file that the emulator has mapped; a kill leaves in it what the guest's processors had stored. So this shows MAP_SYNC
//! and the restart, and not the order of write-backs, which is `crash-states`' matter.

use crate::guest::nvdimm::{check, faults, prepare, write};
use crate::kernels::Version;
use crate::machine::{Guest, Said};
use crate::tests::{Fails, KEYWAY, Program, Test};
use crate::trial::{self, Bench, Report};
use harness::Random;
use std::fs::File;
use std::time::{Duration, Instant};

/// The kernel that it is tried on.
pub const KERNEL: Version = Version::V6_12;
/// Writers of a round: one through a server's socket, one through the library.
pub const WRITERS: usize = 2;

const SIZE: u64 = 192 << 20;
const PROGRAMS: &[Program] = &[KEYWAY, Program::System("mkfs.ext4")];
const MODULES: &[&str] = &["nfit", "nd_pmem"];
/// Acknowledged calls of each writer before the power may fail.
const CALLS_MIN: u64 = 20;
/// For how long it holds after that, at most.
const LIFE_MAX_MS: u64 = 2500;

const STEP: Test = Test {
    name: "",
    shows: "",
    kernel: KERNEL,
    programs: PROGRAMS,
    modules: MODULES,
    fails: Fails::Never,
    run: |_| Ok(String::new()),
};

/// What the guest does in it.
pub const STEPS: &[Test] = &[
    Test {
        name: "nvdimm-prepare",
        shows: "strict mode is refused where MAP_SYNC is, with the reason, and has synchronous mappings on a DAX file system",
        run: |_| prepare(),
        ..STEP
    },
    Test {
        name: "nvdimm-check",
        shows: "every acknowledged change is there after the power failure, nothing deleted is, and a region in cache mode is discarded",
        run: check,
        ..STEP
    },
    Test {
        name: "nvdimm-write",
        shows: "writers whose power fails",
        run: write,
        ..STEP
    },
    Test {
        name: "nvdimm-faults",
        shows: "the same judge refuses a lost, a risen, an older and a torn item",
        run: faults,
        ..STEP
    },
];

/// Runs `tests` in the first boot, and so many rounds; each ends with a kill.
pub fn run(report: &Report, bench: &Bench, tests: &[&Test], rounds: u32, seed: u64) {
    let nvdimm = bench.file("nvdimm");
    if let Err(e) = File::create(&nvdimm).and_then(|file| file.set_len(SIZE)) {
        return report.take(bench.who(), "the NVDIMM's file", Err(format!("{}: {e}", nvdimm.display())));
    }
    let mut random = Random::new(seed);
    // arguments of the check: of each round the seed, and of each writer the calls that are known of it
    let mut history: Vec<String> = Vec::new();
    let mut before: Vec<String> = tests.iter().map(|test| test.name.to_owned()).collect();
    before.push("nvdimm-prepare".into());
    for round in 0..=rounds {
        let round_seed = random.next() >> 1;
        let last = if round == rounds { "nvdimm-faults" } else { "nvdimm-write" };
        let steps = [&before[..], &[format!("{last}:{round_seed}:{round}")]].concat().join(",");
        report.say(bench.who(), &format!("booting for {}", names(&steps).join(", ")));
        let mut guest = match bench.boot(&steps, Some(&nvdimm)) {
            Ok(guest) => guest,
            Err(why) => return report.take(bench.who(), "boot", Err(why)),
        };
        let steps_before = before.join(",");
        let mut judged = names(&steps_before);
        if last == "nvdimm-faults" {
            judged.push(last);
        }
        let mut settled = None;
        let mut listen = |line: &str| {
            if let Some(calls) = line.strip_prefix("was ") {
                settled = Some(calls.to_owned());
            }
        };
        let is_sound = trial::follow(report, bench.who(), &guest, &judged, &mut listen);
        if let (Some(calls), Some(entry)) = (settled, history.last_mut()) {
            // what the check found takes the place of what was acknowledged
            let seed = entry.split('-').next().unwrap_or_default().to_owned();
            *entry = format!("{seed}-{calls}");
        }
        if !is_sound || last == "nvdimm-faults" {
            return;
        }
        match cut(&mut guest, &mut random) {
            Ok(acknowledged) => {
                let calls: Vec<String> = acknowledged.iter().map(u64::to_string).collect();
                report.say(
                    bench.who(),
                    &format!("power cut behind {} acknowledged calls", calls.join(" and ")),
                );
                history.push(format!("{round_seed}-{}", calls.join("-")));
            }
            Err(why) => {
                return report.take(
                    bench.who(),
                    "nvdimm-write",
                    Err(format!("{why}; its console:{}", guest.console())),
                );
            }
        }
        before = vec![format!("nvdimm-check:{}", history.join(":"))];
    }
}

fn names(steps: &str) -> Vec<&str> {
    steps.split(',').map(|step| step.split(':').next().unwrap_or(step)).collect()
}

/// Kills the guest at a random moment of its writing. How many calls of each writer it had acknowledged and told.
fn cut(guest: &mut Guest, random: &mut Random) -> Result<[u64; WRITERS], String> {
    let mut told = [0; WRITERS];
    let mut note = |line: &str| -> Result<[u64; WRITERS], String> {
        if let Some((writer, calls)) = line.strip_prefix("a ").and_then(|rest| rest.split_once(' '))
            && let (Ok(writer), Ok(calls)) = (writer.parse::<usize>(), calls.parse::<u64>())
            && let Some(told) = told.get_mut(writer)
        {
            // a line that the cut has shortened tells less
            *told = calls.max(*told);
        } else if line.starts_with("FAILED") {
            return Err(line.to_owned());
        }
        Ok(told)
    };
    loop {
        match guest.next() {
            Said::Line(line) if note(&line)?.iter().all(|calls| *calls >= CALLS_MIN) => break,
            Said::Line(_) => {}
            Said::End => return Err("the guest ended while it wrote".into()),
            Said::Silence => return Err("the guest was silent instead of writing".into()),
        }
    }
    let end = Instant::now() + Duration::from_millis(random.below(LIFE_MAX_MS));
    while let Some(left) = end.checked_duration_since(Instant::now()) {
        match guest.next_within(left) {
            Said::Line(line) => {
                note(&line)?;
            }
            Said::End => return Err("the guest ended while it wrote".into()),
            Said::Silence => {}
        }
    }
    guest.kill();
    // What it had told before counts.
    while let Said::Line(line) = guest.next_within(Duration::from_secs(10)) {
        note(&line)?;
    }
    note("")
}
