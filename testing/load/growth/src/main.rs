//! `cargo xtask growth`: index and memory grow under traffic, and no item is lost.
//! Guards: P10

use growth::trials::{self, Scale};
use growth::{Verdict, long, worker};
use std::io::Write;
use std::process::ExitCode;

const HELP: &str = "\
growth: index and memory grow under traffic, and no item is lost

    --short         the gate's form: small regions, nothing measured
    --seed N        of every random choice (printed)
    --only TEXT     trials whose name contains it
    --items N       items of the long trial (50000000)
    --memory-mib M  memory of its region (4608)
    --help          this

The long trial, \"fifty million\", is left out with --short. It measures, on whatever machine it runs, and asserts no time.
";

struct Arguments {
    short: bool,
    seed: u64,
    only: String,
    items: u64,
    memory_mib: u64,
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|a| a == worker::ARGUMENT) {
        return match worker::main(&args) {
            Ok(()) => ExitCode::SUCCESS,
            Err(why) => {
                harness::say(&format!("worker: {why}"));
                ExitCode::FAILURE
            }
        };
    }
    match parse(&args) {
        Ok(Some(arguments)) => run(&arguments),
        Ok(None) => {
            say(HELP);
            ExitCode::SUCCESS
        }
        Err(why) => {
            say(&format!("growth: {why}; --help tells what there is\n"));
            ExitCode::from(2)
        }
    }
}

fn parse(args: &[String]) -> Result<Option<Arguments>, String> {
    let mut parsed = Arguments {
        short: false,
        seed: 0,
        only: String::new(),
        items: 50_000_000,
        memory_mib: 4608,
    };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
        match arg.as_str() {
            "--help" => return Ok(None),
            "--short" => parsed.short = true,
            "--seed" => parsed.seed = number(arg, value()?)?,
            "--items" => parsed.items = number(arg, value()?)?,
            "--memory-mib" => parsed.memory_mib = number(arg, value()?)?,
            "--only" => parsed.only.clone_from(value()?),
            _ => return Err(format!("unknown argument {arg}")),
        }
    }
    if parsed.seed == 0 {
        parsed.seed = harness::Random::seed_for("growth");
    }
    Ok(Some(parsed))
}

fn number(name: &str, value: &str) -> Result<u64, String> {
    value.parse().map_err(|_| format!("{name}: '{value}' is no number"))
}

fn run(arguments: &Arguments) -> ExitCode {
    let scale = Scale {
        short: arguments.short,
        seed: arguments.seed,
    };
    say(&format!("seed {}\n", arguments.seed));
    let (mut passed, mut failed) = (0, 0);
    let mut told = |name: &str, verdict: Verdict| match verdict {
        Ok(what) => {
            passed += 1;
            say(&format!("ok      {name}: {what}\n"));
        }
        Err(why) => {
            failed += 1;
            say(&format!("FAILED  {name}: {why}\n"));
        }
    };
    let wanted = |name: &str| name.contains(arguments.only.as_str());
    for (name, trial) in trials::ALL.into_iter().filter(|(name, _)| wanted(name)) {
        told(name, trial(scale));
    }
    broken(scale, wanted, &mut told);
    if !arguments.short && wanted("fifty million") {
        told(
            "fifty million",
            long::run(arguments.items, arguments.memory_mib, arguments.seed),
        );
    }
    say(&format!("{passed} passed, {failed} failed\n"));
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Regions that grow wrongly: each must fail its trial.
fn broken(scale: Scale, wanted: impl Fn(&str) -> bool, told: &mut impl FnMut(&str, Verdict)) {
    use mutants::{BUILT_IN, Mutant, set};
    if !BUILT_IN {
        return say("(built without faults: no broken region is tried)\n");
    }
    let mutants: [(Mutant, trials::Trial); 3] = [
        (Mutant::SplitLosesASlot, trials::ALL[0]),
        (Mutant::RaisedBeforeBacked, trials::ALL[5]),
        (Mutant::ThirdUnannounced, trials::ALL[6]),
    ];
    for (mutant, (name, trial)) in mutants.into_iter().filter(|(_, (name, _))| wanted(name)) {
        set(Some(mutant));
        let verdict = trial(scale);
        set(None);
        let verdict = match verdict {
            Ok(what) if what.starts_with("SKIPPED") => Ok(what),
            Ok(_) => Err(format!("accepted by \"{name}\"")),
            Err(why) => Ok(format!("rejected by \"{name}\": {why}")),
        };
        told(&format!("mutant {mutant:?}"), verdict);
    }
}

fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes());
    let _ = out.flush();
}
