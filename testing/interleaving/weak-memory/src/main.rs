//! `cargo xtask weak-memory`: every pairing of atomics under the C11 memory model, and each of its orderings weakened in turn.
//! Guards: P5
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line tool talks to its terminal"
)]

use std::process::ExitCode;
use weak_memory::{Row, Verdict, passed_though_broken, try_all};

const HELP: &str = "\
cargo xtask weak-memory [--short]

Runs a skeleton of every pairing of atomics in the region under a checker that has the C11 memory model (loom): as in the code, and
with each ordering weakened by one step. Prints pairing, operation, ordering, what it was weakened to, and whether that was caught.

  --short   the gate's form: prints what fails only";

fn main() -> ExitCode {
    let mut is_short = false;
    for arg in std::env::args().skip(1) {
        match arg.as_str() {
            "--short" => is_short = true,
            "--help" => {
                println!("{HELP}");
                return ExitCode::SUCCESS;
            }
            other => {
                eprintln!("weak-memory: {other:?} is no option; --help has them");
                return ExitCode::from(2);
            }
        }
    }
    let (mut passed, mut failed) = (0, 0);
    try_all(|row| {
        let has_failed = matches!(row.verdict, Verdict::Failed(_));
        if has_failed {
            failed += 1
        } else {
            passed += 1
        }
        if has_failed || !is_short {
            println!("{}", line(&row));
        }
    });
    for says in passed_though_broken() {
        println!("NOT REJECTED, though broken: {says}");
        failed += 1;
    }
    println!("{passed} passed, {failed} failed");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn line(row: &Row) -> String {
    let what = match row.weakened {
        None => "as in the code".to_owned(),
        Some((operation, is, weaker)) => format!("{operation}: {is:?} as {weaker:?}"),
    };
    let verdict = match row.verdict {
        Verdict::Sound => "sound".to_owned(),
        Verdict::Caught => "caught".to_owned(),
        Verdict::Argued(why) => format!("argued: {why}"),
        Verdict::Failed(why) => format!("FAILED: {why}"),
    };
    format!("{:<14} {what:<58} {verdict}", row.pairing)
}
