//! `cargo xtask hit-ratio`: fewer misses than memcached in the same memory, and as few as item-level S3-FIFO.
//! Guards: P12

use hit_ratio::judge::{self, Outcome, Scale, Subject};
use hit_ratio::program::{self, Arguments, say};
use hit_ratio::trace::{ALL, Plan};
use std::io;
use std::process::ExitCode;

const HELP: &str = "\
hit-ratio: miss ratios of Keyway, of a real memcached with as many MB, and of an item-level S3-FIFO with as many items

    --short         the gate's form: small caches, wider margins
    --memory-mib M  memory of each cache (64; short: 16)
    --requests N    requests for each item that the cache holds; the second half is counted (60; short: 10)
    --seed N        the seed of the traces (1)
    --only TEXT     traces whose name contains it
    --help          this

memcached is Debian's, or the one that KEYWAY_MEMCACHED names.
";

fn main() -> ExitCode {
    program::run("hit-ratio", HELP, all)
}

/// Runs all; how many failed.
fn all(arguments: &Arguments) -> io::Result<usize> {
    let usual = if arguments.short { Scale::SHORT } else { Scale::FULL };
    let scale = &Scale {
        memory_mib: arguments.memory_mib.unwrap_or(usual.memory_mib),
        requests_per_held: arguments.requests_per_held.unwrap_or(usual.requests_per_held),
        ..usual
    };
    let Arguments { seed, only, .. } = arguments;
    say(&format!(
        "{} MiB each, {} requests for each item held, seed {seed}; miss ratios of the second half\n",
        scale.memory_mib, scale.requests_per_held
    ));
    say(
        "| trace | Keyway | memcached | item-level S3-FIFO | Keyway against it | items held: Keyway, memcached | copies a set |\n",
    );
    say("|---|---|---|---|---|---|---|\n");
    let (mut passed, mut failed, mut absent) = (0, 0, false);
    for plan in ALL.iter().filter(|plan| plan.name.contains(only.as_str())) {
        let outcome = judge::run(*plan, scale, *seed, Subject::Keyway, true)?;
        show(plan, &outcome);
        absent |= outcome.memcached.is_none();
        for failure in outcome.failures(scale) {
            say(&format!("FAILED: {}: {failure}\n", plan.name));
            failed += 1;
        }
        passed += outcome.checks() - outcome.failures(scale).len();
    }
    if absent {
        say("SKIP: memcached is not installed, so nothing was compared with it\n");
        failed += usize::from(std::env::var_os("KEYWAY_TESTS_REQUIRE_ALL").is_some());
    }
    let is_there = |subject: &&judge::Subject| **subject != judge::Subject::KeywayWithoutSecondChance || mutants::BUILT_IN;
    for subject in judge::BROKEN.iter().filter(is_there) {
        let plan = judge::TRACE_FOR_BROKEN;
        let outcome = judge::run(plan, scale, *seed, *subject, false)?;
        let caught = !outcome.failures(scale).is_empty();
        let verdict = if caught { "rejected" } else { "FAILED: accepted" };
        say(&format!(
            "{verdict}: {} ({}: {:.4}, item-level S3-FIFO {:.4})\n",
            subject.name(),
            plan.name,
            outcome.subject,
            outcome.s3fifo
        ));
        passed += usize::from(caught);
        failed += usize::from(!caught);
    }
    say(&format!("{passed} passed, {failed} failed\n"));
    Ok(failed)
}

fn show(plan: &Plan, outcome: &Outcome) {
    let memcached = outcome.memcached.map_or("-".to_owned(), |m| format!("{m:.4}"));
    let held = outcome.memcached_held.map_or("-".to_owned(), |h| h.to_string());
    say(&format!(
        "| {} | {:.4} | {memcached} | {:.4} | {:+.2} % | {}, {held} | {:.3} |\n",
        plan.name,
        outcome.subject,
        outcome.s3fifo,
        (outcome.subject / outcome.s3fifo - 1.0) * 100.0,
        outcome.held,
        outcome.copies_per_set
    ));
}
