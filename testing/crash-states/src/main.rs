//! `crash-states`: fails the power of a strict region wherever it may fail, and looks at what is left.
#![allow(clippy::print_stdout, reason = "a program for people")]

use crash_states::explore::{Effort, Outcome, Recording, recordings};
use crash_states::machine::Choice;
use crash_states::record::Site;
use crash_states::scenarios::ALL;
use harness::Random;
use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::time::Instant;

const HELP: &str = "\
crash-states: every image that a power failure may leave of a strict region

Each operation is recorded: stores, write-backs, barriers. The power is failed before each barrier and behind each acknowledgement: of each cache
line any prefix of its stores is left that was not written back and waited for. Every image is recovered and judged: it is sound, no item is torn, no
acknowledged change is lost, nothing deleted is back. Then each write-back and each barrier of the sources is left out, and must be missed.

    --short        fewer images, and nothing left out, for the gate
    --seed N       what is left to chance (default 1)
    --only TEXT    scenarios whose name contains it
    --no-mutants   do not leave anything out
    --help";

/// Write-backs and barriers that nothing would miss, with the proof: source file, text of the line, proof.
const REDUNDANT: &[(&str, &str, &str)] = &[];

/// Calls that no scenario comes to, with the reason: source file, text of the line, reason.
const UNREACHED: &[(&str, &str, &str)] = &[(
    "publish.rs",
    "if self.region.vacate(place.at, word)",
    "an insert that finds all its buckets full in an index that may not grow; the removal is the purge's, write-back and barrier included",
)];

struct Arguments {
    short: bool,
    seed: u64,
    only: String,
    mutants: bool,
}

fn main() -> ExitCode {
    let Some(arguments) = arguments() else {
        return ExitCode::from(2);
    };
    let began = Instant::now();
    let (normal, against) = efforts(arguments.short);
    let mut random = Random::new(arguments.seed);
    println!("crash-states: seed {}", arguments.seed);
    let (mut passed, mut failed) = (0, 0);
    let mut all = Vec::new();
    for scenario in ALL.iter().filter(|s| s.name.contains(&arguments.only)) {
        let runs = recordings(scenario, &normal, &mut random);
        let mut sum = Outcome::default();
        for run in &runs {
            let outcome = run.examine(&normal, None, &mut random);
            sum.cuts += outcome.cuts;
            sum.images += outcome.images;
            sum.wrong = sum.wrong.or(outcome.wrong);
        }
        let barriers = if runs.len() == 1 {
            format!(", barriers {:?}", runs[0].barriers())
        } else {
            String::new()
        };
        println!(
            "{:58} {:3} runs, {:5} cuts, {:7} images{barriers}",
            scenario.name,
            runs.len(),
            sum.cuts,
            sum.images
        );
        if let Some(wanted) = scenario.barriers
            && runs[0].barriers() != wanted
        {
            sum.wrong = Some(format!("barriers {:?}, promised are {wanted:?}", runs[0].barriers()));
        }
        match sum.wrong {
            Some(wrong) => {
                println!("   FAILED: {wrong}");
                failed += 1;
            }
            None => passed += 1,
        }
        all.extend(runs);
    }
    if arguments.mutants && !arguments.short && failed == 0 {
        let (caught, missed) = mutants(&all, &against, &mut random);
        passed += caught;
        failed += missed;
    }
    println!("took {:.0} s", began.elapsed().as_secs_f64());
    println!("{passed} passed, {failed} failed");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// What is tried on the code as it is, and on each mutant.
fn efforts(short: bool) -> (Effort, Effort) {
    let effort = |all_up_to, random, alone, pauses, moments_max| Effort {
        choice: Choice {
            all_up_to,
            random,
            alone,
            thin: short,
        },
        pauses,
        moments_max,
        further: 40,
    };
    if short {
        (effort(16, 1, 6, 0, 4), effort(64, 8, 200, 0, 4))
    } else {
        (effort(128, 10, 100, 4, 12), effort(64, 10, 200, 0, 12))
    }
}

/// Leaves out one site after the other. How many were caught, and how many were not.
fn mutants(runs: &[Recording], effort: &Effort, random: &mut Random) -> (usize, usize) {
    let mut sites: BTreeMap<Site, Vec<&Recording>> = BTreeMap::new();
    for run in runs {
        for site in run.sites().keys() {
            sites.entry(*site).or_default().push(run);
        }
    }
    println!("\nleft out, one at a time:");
    let (mut caught, mut missed) = (0, 0);
    for (number, (site, runs)) in sites.iter().enumerate() {
        let what = if site.barrier { "barrier" } else { "write-back" };
        let text = source(site);
        let wrong = runs.iter().find_map(|run| run.examine(effort, Some(*site), random).wrong);
        let redundant = REDUNDANT
            .iter()
            .find(|(file, line, _)| site.file.ends_with(file) && text == *line);
        let name = format!("{number:3} {what} at {}:{}", site.file, site.line);
        match (wrong, redundant) {
            (Some(wrong), None) => {
                println!("{name}: caught: {wrong}");
                caught += 1;
            }
            (None, Some((_, _, proof))) => println!("{name}: redundant: {proof}"),
            (Some(wrong), Some(_)) => {
                println!("{name}: FAILED: said to be redundant, but: {wrong}");
                missed += 1;
            }
            (None, None) => {
                println!("{name}: FAILED: nothing missed it ({} runs): {text}", runs.len());
                missed += 1;
            }
        }
    }
    let passed: BTreeSet<(&str, u32)> = sites.keys().map(|s| (s.file, s.line)).collect();
    for (file, line, text) in calls() {
        if passed.iter().any(|(f, l)| f.ends_with(&file) && *l == line) {
            continue;
        }
        if let Some((.., why)) = UNREACHED.iter().find(|(f, t, _)| *f == file && *t == text) {
            println!("    not reached: {file}:{line}: {why}");
        } else {
            println!("    FAILED: no scenario comes to {file}:{line}: {text}");
            missed += 1;
        }
    }
    (caught, missed)
}

fn region_sources() -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates/keyway-region/src")
}

/// The line of a site.
fn source(site: &Site) -> String {
    let name = site.file.rsplit("/src/").next().unwrap_or(site.file);
    let text = std::fs::read_to_string(region_sources().join(name)).unwrap_or_default();
    text.lines()
        .nth(site.line as usize - 1)
        .unwrap_or_default()
        .trim()
        .to_string()
}

/// Every call in the sources, outside `persist.rs`, of what writes back or waits.
fn calls() -> Vec<(String, u32, String)> {
    const CALLS: [&str; 7] = [
        ".write_back(",
        ".write_back_header(",
        ".write_back_word(",
        ".write_back_buckets(",
        ".barrier()",
        ".persist_word(",
        ".vacate(",
    ];
    let mut found = Vec::new();
    let Ok(entries) = std::fs::read_dir(region_sources()) else {
        return found;
    };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name == "persist.rs" || !name.ends_with(".rs") {
            continue;
        }
        let text = std::fs::read_to_string(entry.path()).unwrap_or_default();
        for (i, line) in text.lines().enumerate() {
            let line = line.trim();
            if !line.starts_with("//") && CALLS.iter().any(|call| line.contains(call)) {
                found.push((name.clone(), u32::try_from(i + 1).unwrap_or(0), line.to_string()));
            }
        }
    }
    found.sort();
    found
}

fn arguments() -> Option<Arguments> {
    let mut found = Arguments {
        short: false,
        seed: 1,
        only: String::new(),
        mutants: true,
    };
    let mut rest = std::env::args().skip(1);
    while let Some(argument) = rest.next() {
        let known = match argument.as_str() {
            "--short" => {
                found.short = true;
                true
            }
            "--no-mutants" => {
                found.mutants = false;
                true
            }
            "--seed" => rest.next().and_then(|n| n.parse().ok()).map(|n| found.seed = n).is_some(),
            "--only" => rest.next().map(|text| found.only = text).is_some(),
            "--help" => {
                println!("{HELP}");
                std::process::exit(0);
            }
            _ => false,
        };
        if !known {
            println!("'{argument}' is not understood\n\n{HELP}");
            return None;
        }
    }
    Some(found)
}
