//! `cargo xtask kill-points`: every operation stopped and killed at every instruction.
//! Guards: P1
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line tool talks to its terminal"
)]

use harness::Random;
use kill_points::door::{self, Way};
use kill_points::foreign::Libraries;
use kill_points::real::{self, Fate};
use kill_points::scenario::{self, Scenario};
use kill_points::trial::{self, Effort, Trial, Tried};
use mutants::Mutant;
use std::process::ExitCode;
use std::time::Instant;

const HELP: &str = "\
cargo xtask kill-points [--short] [--seed N] [TEXT]

Single-steps each operation once, from call to return, on a region of a few segments, and keeps every state of the memory that
differs from the one before. On every distinct one: others read, write, delete and evict while the stopped process is alive and
never moves again, in a bounded number of accesses; then, on a fresh copy, it is dead: recovery runs, every invariant holds, the
operation is seen wholly or not at all, and when everything is deleted no segment is missing. At some points the process goes on
after the others have worked. Operations through the built libkeyway and the built drop-in for libmemcached are tried in the same way. The
same with real processes, SIGKILL, SIGSTOP and SIGCONT. Then every broken variant of the region, and doors that store in two calls, are
tried: each must be rejected.

    --short    the gate's form: the most telling operations, fewer samples, always the same ones
    --seed N   of the sampled points (printed)
    TEXT       only operations and variants whose name contains it
";

/// Of the short form's samples, so that what fails in the gate fails again.
const GATE_SEED: u64 = 1;

/// Which scenario shows that a mutant is broken.
const MUTANTS: &[(Mutant, &str)] = &[
    (Mutant::PublishBeforeTail, "set, absent"),
    (Mutant::DeadExtentsStand, "set, absent"),
    (Mutant::DeadClaimsStand, "set, large, absent"),
    (Mutant::TentativeForgotten, "set, absent"),
    (Mutant::WaitOnFrozen, "set, absent, first split of a doubling"),
    (Mutant::WaitOnTentative, "set, absent"),
    (Mutant::OverwriteInTwoSteps, "set, present"),
    (Mutant::TableBeforeFill, "set, absent, first split of a doubling"),
    (Mutant::InsertWithoutRescan, "set, absent"),
    (Mutant::ChainWithoutOwner, "set, large over large"),
    (Mutant::OrphansForgotten, "delete, large"),
    (Mutant::RelocateInTwoSteps, "set, present, compacting"),
];

/// How many of [`DEATHS`] the short form has.
const DEATHS_SHORT: usize = 2;
/// Scenarios in which a process dies before another recovers.
const DEATHS: &[&str] = &[
    "set, absent",
    "delete, large",
    "set, large over large",
    "set, absent, evicting large values",
    "set, present, compacting",
    "set, absent, first split of a doubling",
];

/// Instructions that each kind of fate of one real operation may take together.
const REAL_STEPS: u64 = 3_000_000;

struct Arguments {
    is_short: bool,
    seed: u64,
    only: Option<String>,
}

fn main() -> ExitCode {
    let arguments = match arguments() {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    if !mutants::BUILT_IN {
        eprintln!("kill-points: built without faults; `cargo xtask kill-points` builds it right");
        return ExitCode::from(2);
    }
    // What panics inside a trial is reported with its trial.
    std::panic::set_hook(Box::new(|_| {}));
    println!("kill-points: seed {}", arguments.seed);
    let mut score = Score::default();
    let libraries = Libraries::build();
    each_scenario(&arguments, &mut score);
    each_call(&arguments, &libraries, &mut score);
    real_processes(&arguments, "", &Way::Rust, &mut score);
    for (library, way) in libraries.ways() {
        real_processes(&arguments, library, &way, &mut score);
    }
    broken_variants(&arguments, &mut score);
    broken_doors(&arguments, &libraries, &mut score);
    println!(
        "\n{} instructions stepped, {} distinct images judged twice, {} resumed samples; real processes: {} killed, {} stopped and \
         continued; at most {} accesses a verb",
        score.instructions, score.images, score.resumed, score.killed, score.stopped, score.accesses
    );
    println!("{} passed, {} failed", score.passed, score.failed);
    ExitCode::from(u8::from(score.failed > 0))
}

fn arguments() -> Result<Arguments, ExitCode> {
    let mut parsed = Arguments {
        is_short: false,
        seed: 0,
        only: None,
    };
    let mut seed = None;
    let mut rest = std::env::args().skip(1);
    while let Some(argument) = rest.next() {
        match argument.as_str() {
            "--help" | "-h" => {
                print!("{HELP}");
                return Err(ExitCode::SUCCESS);
            }
            "--short" => parsed.is_short = true,
            "--seed" => match rest.next().and_then(|n| n.parse().ok()) {
                Some(number) => seed = Some(number),
                None => return Err(wrong("--seed needs a number")),
            },
            option if option.starts_with('-') => return Err(wrong(&format!("no option is called '{option}'"))),
            text => parsed.only = Some(text.to_owned()),
        }
    }
    let of_the_day = || Random::new(u64::from(std::process::id())).next() % 1_000_000;
    parsed.seed = seed.unwrap_or_else(|| if parsed.is_short { GATE_SEED } else { of_the_day() });
    Ok(parsed)
}

fn wrong(message: &str) -> ExitCode {
    eprintln!("kill-points: {message}; --help lists what there is");
    ExitCode::from(2)
}

impl Arguments {
    fn wants(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|text| name.contains(text.as_str()))
    }

    fn effort(&self) -> Effort {
        Effort {
            resumed_max: if self.is_short { 4 } else { 40 },
            seed: self.seed,
            is_first_error_enough: false,
        }
    }
}

#[derive(Default)]
struct Score {
    passed: usize,
    failed: usize,
    instructions: u64,
    images: usize,
    resumed: usize,
    killed: usize,
    stopped: usize,
    accesses: u64,
}

impl Score {
    fn line(&mut self, name: &str, columns: &str, begun: Instant, errors: &[String]) {
        let verdict = match errors.len() {
            0 => "passed".to_owned(),
            n => format!("FAILED {n} times"),
        };
        println!("{name:58} {columns} {:>6.1} s  {verdict}", begun.elapsed().as_secs_f64());
        for error in errors.iter().take(3) {
            println!("    {error}");
        }
        if errors.is_empty() {
            self.passed += 1;
        } else {
            self.failed += 1;
        }
    }

    fn trial(&mut self, name: &str, begun: Instant, result: Result<Trial, String>) {
        let trial = result.unwrap_or_else(|e| Trial {
            errors: vec![e],
            ..Trial::default()
        });
        self.instructions += trial.instructions;
        self.images += trial.images;
        self.resumed += trial.resumed;
        self.accesses = self.accesses.max(trial.accesses);
        let seen_from = trial.seen_from.map_or_else(String::new, |step| step.to_string());
        let columns = format!(
            "{:>9} {:>6} {:>7} {:>9} {seen_from:>9}",
            trial.instructions, trial.images, trial.resumed, trial.accesses
        );
        self.line(name, &columns, begun, &trial.errors);
    }
}

/// Every scenario, and recoveries from some of them.
fn each_scenario(arguments: &Arguments, score: &mut Score) {
    println!(
        "\n{:58} {:>9} {:>6} {:>7} {:>9} {:>9}",
        "operation", "instr.", "images", "resumed", "accesses", "seen from"
    );
    for mut scenario in scenario::all() {
        if !arguments.wants(scenario.name) || (arguments.is_short && !scenario.is_short) {
            continue;
        }
        let begun = Instant::now();
        match trial::of_scenario(&mut scenario, None, arguments.effort()) {
            Err(e) => score.trial(scenario.name, begun, Err(e)),
            Ok((found, tried)) => {
                score.trial(scenario.name, begun, Ok(found));
                let deaths = if arguments.is_short { &DEATHS[..DEATHS_SHORT] } else { DEATHS };
                if deaths.contains(&scenario.name) {
                    recoveries(arguments, score, &scenario, &tried);
                }
            }
        }
    }
}

/// Every call through the libraries that programs in C have.
fn each_call(arguments: &Arguments, libraries: &Libraries, score: &mut Score) {
    let gate = if door::has_protection_keys() {
        "behind the gate"
    } else {
        "no gate: this processor or kernel has no protection keys"
    };
    println!(
        "\n{:58} {:>9} {:>6} {:>7} {:>9} {:>9}   ({gate})",
        "call of a library in C", "instr.", "images", "resumed", "accesses", "seen from"
    );
    for call in libraries.calls() {
        if arguments.wants(&call.name) && (call.is_short || !arguments.is_short) {
            let begun = Instant::now();
            let tried = trial::of(&call, arguments.effort());
            score.trial(&call.name, begun, tried.map(|(found, _)| found));
        }
    }
}

fn recoveries(arguments: &Arguments, score: &mut Score, scenario: &Scenario, tried: &Tried) {
    let quarters: &[usize] = if arguments.is_short { &[2] } else { &[1, 2, 3] };
    for quarter in quarters {
        let begun = Instant::now();
        let n = tried.stepped.changes.len() * quarter / 4;
        let name = format!("recovery, death at image {n} of: {}", scenario.name);
        score.trial(&name, begun, trial::of_recovery(scenario, tried, n, arguments.effort()));
    }
}

/// Real processes with a fate, by the library of this name ("": the crate).
fn real_processes(arguments: &Arguments, library: &str, way: &Way, score: &mut Score) {
    let title = match library {
        "" => "real processes".to_owned(),
        library => format!("real processes, by {library}"),
    };
    println!(
        "\n{title:58} {:>9} {:>6} {:>7} {:>9}",
        "instr.", "killed", "stopped", "replaced"
    );
    let mut points: Vec<(Fate, u64)> = if arguments.is_short {
        vec![(Fate::Killed, 3), (Fate::Stopped, 2), (Fate::Replaced, 0)]
    } else {
        vec![(Fate::Killed, 30), (Fate::Stopped, 15), (Fate::Replaced, 1)]
    };
    if way.is_dropin() {
        // It follows the name, by design: docs/library.md.
        points.retain(|(fate, _)| *fate != Fate::Replaced);
    }
    let mut random = Random::new(arguments.seed);
    for (number, (name, op, is_full)) in real::operations().into_iter().filter(|(_, op, _)| way.has(op)).enumerate() {
        // The libraries share what is behind them: of each the short form has two.
        let is_left_out = arguments.is_short && (is_full || (!library.is_empty() && number > 1));
        if !arguments.wants(name) || is_left_out {
            continue;
        }
        real_process(name, way, &op, is_full, &points, &mut random, score);
    }
}

fn real_process(
    name: &str,
    way: &Way,
    op: &kill_points::operation::Op,
    is_full: bool,
    points: &[(Fate, u64)],
    random: &mut Random,
    score: &mut Score,
) {
    let begun = Instant::now();
    let mut errors = Vec::new();
    let mut columns = String::new();
    match real::know(way, op, is_full) {
        Err(e) => errors.push(e),
        Ok(known) => {
            let most = (REAL_STEPS / known.steps.max(1)).max(2);
            columns = format!("{:>9}", known.steps);
            for (fate, samples) in points.iter().map(|(fate, samples)| (*fate, (*samples).min(most))) {
                columns += &format!(" {samples:>7}");
                for _ in 0..samples {
                    let steps = random.next() % known.steps.max(1);
                    if let Err(e) = real::at(way, op, is_full, &known, steps, fate) {
                        errors.push(format!("{fate:?} after {steps} of {}: {e}", known.steps));
                    }
                    match fate {
                        Fate::Killed => score.killed += 1,
                        Fate::Stopped | Fate::Replaced => score.stopped += 1,
                    }
                }
            }
        }
    }
    score.line(name, &columns, begun, &errors);
}

/// Each mutant must be rejected.
fn broken_variants(arguments: &Arguments, score: &mut Score) {
    println!("\n{:58} rejected on the strength of", "broken variant");
    for (mutant, name) in MUTANTS {
        let title = format!("{mutant:?}, {name}");
        let Some(mut scenario) = scenario::all().into_iter().find(|s| s.name == *name) else {
            score.line(&title, "", Instant::now(), &["no such scenario".into()]);
            continue;
        };
        if !arguments.wants(&title) {
            continue;
        }
        let begun = Instant::now();
        let tried = trial::of_scenario(&mut scenario, Some(*mutant), until_rejected(arguments));
        rejected(&title, begun, tried.map(|(trial, _)| trial), score);
        mutants::set(None);
    }
}

/// And each broken door.
fn broken_doors(arguments: &Arguments, libraries: &Libraries, score: &mut Score) {
    for call in libraries.broken() {
        if arguments.wants(&call.name) {
            let begun = Instant::now();
            let tried = trial::of(&call, until_rejected(arguments));
            rejected(&call.name, begun, tried.map(|(trial, _)| trial), score);
        }
    }
}

fn until_rejected(arguments: &Arguments) -> Effort {
    Effort {
        resumed_max: 40,
        seed: arguments.seed,
        is_first_error_enough: true,
    }
}

fn rejected(title: &str, begun: Instant, tried: Result<Trial, String>, score: &mut Score) {
    match tried {
        Err(e) => score.line(title, "", begun, &[format!("could not be tried: {e}")]),
        Ok(trial) => match trial.errors.first() {
            Some(error) => {
                println!("{title:58} {}", error.chars().take(150).collect::<String>());
                score.passed += 1;
            }
            None => score.line(title, "", begun, &["nothing was found wrong with it".into()]),
        },
    }
}
