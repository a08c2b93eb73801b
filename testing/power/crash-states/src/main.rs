//! `crash-states`: fails the power of a durable region wherever it may fail, and looks at what is left.
//! Guards: P21
#![allow(clippy::print_stdout, reason = "a program for people")]

use crash_states::explore::{Effort, Outcome, Recording, recordings};
use crash_states::left_out::{Verdict, each_left_out};
use crash_states::machine::Choice;
use crash_states::scenarios::ALL;
use harness::Random;
use std::process::ExitCode;
use std::time::Instant;

const HELP: &str = "\
crash-states: every image that a power failure may leave of a durable region

Each operation is recorded: stores, write-backs, barriers. The power is failed before each barrier and behind each acknowledgement: of each cache
line any prefix of its stores is left that was not written back and waited for. Every image is recovered and judged: it is sound, no item is torn, no
acknowledged change is lost, nothing deleted is back. Then each write-back and each barrier of the sources is left out, and must be missed.

    --short        fewer moments and images, for the gate
    --seed N       what is left to chance (default 1)
    --only TEXT    scenarios whose name contains it
    --no-mutants   do not leave anything out
    --help";

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
    if arguments.mutants && failed == 0 {
        let (good, bad) = leave_out(&all, &against, &mut random);
        passed += good;
        failed += bad;
    }
    println!("took {:.0} s", began.elapsed().as_secs_f64());
    println!("{passed} passed, {failed} failed");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// What is tried on the code as it is, and on the code with a call left out: more, if less finds nothing.
fn efforts(short: bool) -> (Effort, [Effort; 2]) {
    let effort = |all_up_to, random, alone, further| Effort {
        choice: Choice {
            all_up_to,
            random,
            alone,
            thin: short,
        },
        pauses: if short { 0 } else { 4 },
        moments_max: if short { 4 } else { 12 },
        cuts_max: if short { 12 } else { 200 },
        further,
    };
    let whole = if short { effort(16, 1, 6, 40) } else { effort(64, 6, 50, 40) };
    (whole, [effort(16, 4, 40, 0), effort(128, 20, 200, 4)])
}

/// Leaves out one call after the other. How many were missed as they must be, or need not be, and how many not.
fn leave_out(runs: &[Recording], efforts: &[Effort], random: &mut Random) -> (usize, usize) {
    println!("\nleft out, one at a time:");
    each_left_out(runs, efforts, random, |call, what, verdict, images| {
        let name = format!("{what:10} {}:{} {}", call.file, call.line, call.function);
        match verdict {
            Verdict::Caught(wrong) => println!("{name}: caught, {images} images: {wrong}"),
            Verdict::Redundant(proof) => println!("{name}: redundant, {images} images: {proof}"),
            Verdict::Unreached(reason) => println!("{name}: not reached: {reason}"),
            Verdict::Failed(why) => println!("{name}: FAILED, {images} images: {why}"),
        }
    })
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
