//! `cargo xtask scribble`: a process scribbles over a region that others use.
//! Guards: P6, P7

use scribble::round::{Round, play};
use scribble::scribbler::Part;
use scribble::values::Tally;
use scribble::{ROLE, client, scribbler};
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

const HELP: &str = "\
scribble: a process writes random bytes over a region that a server and other processes use: none of them crashes or hangs, and
in a region with checksums none is given a value that was never stored

    --short         the gate's form: 0.8 seconds for each part of the region
    --seconds N     for each part (8)
    --seed N        of every random choice (printed)
    --only TEXT     parts whose name contains it
    --help          this
";

struct Arguments {
    time: Duration,
    seed: u64,
    only: String,
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let played = match words.as_slice() {
        [ROLE, "client", region, seed] => client::main(Path::new(region), seed.parse().unwrap_or(0)),
        [ROLE, "scribbler", region, part, seed] => {
            let part = Part::ALL
                .iter()
                .find(|(_, name)| name == part)
                .map_or(Part::Everything, |(part, _)| *part);
            scribbler::main(Path::new(region), part, seed.parse().unwrap_or(0)).map_err(|e| e.to_string())
        }
        _ => return commanded(&args),
    };
    match played {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            harness::say(&why);
            ExitCode::FAILURE
        }
    }
}

fn commanded(args: &[String]) -> ExitCode {
    match parse(args) {
        Ok(Some(arguments)) => run(&arguments),
        Ok(None) => {
            say(HELP);
            ExitCode::SUCCESS
        }
        Err(why) => {
            say(&format!("scribble: {why}; --help tells what there is\n"));
            ExitCode::from(2)
        }
    }
}

fn parse(args: &[String]) -> Result<Option<Arguments>, String> {
    let mut parsed = Arguments {
        time: Duration::from_secs(8),
        seed: 0,
        only: String::new(),
    };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
        let number = |text: &String| text.parse().map_err(|_| format!("{arg}: '{text}' is no number"));
        match arg.as_str() {
            "--help" => return Ok(None),
            "--short" => parsed.time = Duration::from_millis(800),
            "--seconds" => parsed.time = Duration::from_secs(number(value()?)?),
            "--seed" => parsed.seed = number(value()?)?,
            "--only" => parsed.only.clone_from(value()?),
            _ => return Err(format!("unknown argument {arg}")),
        }
    }
    if parsed.seed == 0 {
        parsed.seed = harness::Random::seed_for("scribble");
    }
    Ok(Some(parsed))
}

fn run(arguments: &Arguments) -> ExitCode {
    say(&format!("seed {}\n", arguments.seed));
    let (mut passed, mut failed) = (0, 0);
    let mut told = |name: &str, verdict: Result<String, String>| {
        let (word, what) = match verdict {
            Ok(what) => {
                passed += 1;
                ("ok     ", what)
            }
            Err(why) => {
                failed += 1;
                ("FAILED ", why)
            }
        };
        say(&format!("{word} {name}: {what}\n"));
    };
    for (part, name) in Part::ALL
        .into_iter()
        .filter(|(_, name)| name.contains(arguments.only.as_str()))
    {
        let round = Round {
            part,
            checksums: true,
            time: arguments.time,
            seed: arguments.seed,
        };
        told(name, play(round).and_then(|tally| judge(part, tally)));
    }
    if Part::Items.name().contains(arguments.only.as_str()) {
        let round = Round {
            part: Part::Items,
            checksums: false,
            time: arguments.time,
            seed: arguments.seed,
        };
        told("items, without checksums", play(round).and_then(judge_unguarded));
    }
    say(&format!("{passed} passed, {failed} failed\n"));
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// In a region with checksums.
fn judge(part: Part, tally: Tally) -> Result<String, String> {
    let shown = show(tally);
    if tally.wrong > 0 {
        return Err(format!("values that were never stored: {shown}"));
    }
    // No word that leads to items was touched.
    if part == Part::Items && tally.stale > 0 {
        return Err(format!("older values: {shown}"));
    }
    if tally.right == 0 {
        return Err(format!("nothing was read: {shown}"));
    }
    Ok(shown)
}

/// In a region without: what is scribbled must have been given out, or the judge does not look.
fn judge_unguarded(tally: Tally) -> Result<String, String> {
    match tally.wrong {
        0 => Err(format!("nothing wrong was given out: {}", show(tally))),
        _ => Ok(format!("rejected: {}", show(tally))),
    }
}

fn show(tally: Tally) -> String {
    let Tally {
        right,
        none,
        errors,
        wrong,
        stale,
    } = tally;
    format!("{right} right, {none} misses, {errors} errors, {wrong} wrong, {stale} older than the last one")
}

fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes());
    let _ = out.flush();
}
