//! `cargo xtask`: all checks, the same locally and in `.ci/run`.
//!
//! They are a list of [`stages`]; each stage is a command that exists already, or a check of the sources ([`sources`]). The runner
//! prints every stage with its time when it runs, a table at the end, and one line with the totals. It installs nothing
//! (`xtask/prerequisites.sh` does) and changes no tracked file.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line tool talks to its terminal"
)]

mod arm;
mod check;
mod deny;
mod figures;
mod guards;
mod lanes;
mod mutants;
mod promises;
mod rooms;
mod run;
mod sources;
mod stages;
mod testing;
mod untested;
mod walls;

use stages::Lane;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

const HELP: &str = "\
cargo xtask: the project's own tasks

    cargo xtask check              format, lints and tests of the crates that a change touches, and of those that depend on them
    cargo xtask test               what says that the tree works: the stages of `make test`
    cargo xtask gate               the rest: the stages of `make gate`
    … --begin-within MINUTES       the same two, but no stage and no test is begun after so long: those are listed as NOT RUN, and fail
                                   nothing
    cargo xtask ci STAGE...        run these stages, in their usual order; all, if none is named
    cargo xtask ci --skip STAGE    run all but this one (may be repeated)
    cargo xtask stages             list the stages, which command runs them, and what each finds
    cargo xtask NAME [ARGS]        try to break one of the design's promises; NAME is one of kill-points, crash-states, storm, flights,
                                   schedules, growth, scribble, attack, kernel, vm, hit-ratio,
                                   memory-curve, weak-memory, suites (each has --help and --short)
    cargo xtask mutants [NAME...]  one-line faults of the region, each of which one of the checks must find (--help, --list)
    cargo xtask promises           the promises of docs/promises.md, each with the tests that guard it
    cargo xtask walls [FIGURE]     figures of the code that may only fall, beside their limits; what FIGURE counts; --renew lowers limits
    cargo xtask figures            measures again the tables of docs/performance.md (--help, --list, --only)
    cargo xtask help               this text

Every stage prints its name and time; a table and a line `N passed, M failed` come last. The exit status is 0 only if no
stage failed. A stage that cannot run here (no nightly compiler, no Python) is reported as SKIPPED with the reason.

Environment:
    KEYWAY_TESTS_REQUIRE_ALL=1     a skip, of a stage or of a test, is a failure
    KEYWAY_FUZZ_SECONDS=20         how long each fuzz target runs
    CARGO_TARGET_DIR               where cargo builds

`make test` and `make gate` install what their stages need (Debian, Ubuntu) and then run them.
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.as_slice() {
        [] | ["help" | "--help" | "-h"] | ["ci", "--help" | "-h"] => {
            print!("{HELP}");
            ExitCode::SUCCESS
        }
        ["stages"] => {
            for stage in stages::ALL {
                let lane = match stage.lane {
                    Lane::Test => "test",
                    Lane::Gate => "gate",
                };
                println!("{:10} {lane}  {}", stage.name, stage.catches);
            }
            ExitCode::SUCCESS
        }
        ["test", rest @ ..] => run_all(Lane::Test, rest),
        ["gate", rest @ ..] => run_all(Lane::Gate, rest),
        ["check", rest @ ..] => run::alone(&root(), |c| check::run(c, rest)),
        ["ci", rest @ ..] => match select(rest) {
            Ok(chosen) => run::gate(&chosen, &root(), None),
            Err(message) => usage(&message),
        },
        ["promises"] => match sources::promises(&root()) {
            Ok(table) => {
                print!("{table}");
                ExitCode::SUCCESS
            }
            Err(e) => usage(&format!("cannot read the sources: {e}")),
        },
        ["walls", rest @ ..] => run::alone(&root(), |c| sources::walls(c.root, rest)),
        ["figures", rest @ ..] => run::alone(&root(), |c| figures::run(c, rest)),
        ["mutants", rest @ ..] => run::alone(&root(), |c| mutants::run(c, rest)),
        [name, rest @ ..] if promises::ALL.iter().any(|p| p.name == *name) => {
            run::alone(&root(), |c| promises::run(c, name, rest))
        }
        [other, ..] => usage(&format!("no command is called '{other}'")),
    }
}

fn usage(message: &str) -> ExitCode {
    eprintln!("xtask: {message}; `cargo xtask help` lists what there is");
    ExitCode::from(2)
}

/// The stages of a command.
fn of(lane: Lane) -> Vec<&'static stages::Stage> {
    stages::ALL.iter().filter(|stage| stage.lane == lane).collect()
}

/// Runs the stages of a command.
fn run_all(lane: Lane, args: &[&str]) -> ExitCode {
    let chosen = of(lane);
    match args {
        [] => run::gate(&chosen, &root(), None),
        ["--begin-within", minutes] => match minutes.parse::<u64>() {
            Ok(minutes) => run::gate(&chosen, &root(), Some(Duration::from_secs(60 * minutes))),
            Err(_) => usage(&format!("--begin-within takes whole minutes, not '{minutes}'")),
        },
        _ => usage("test and gate take no arguments but --begin-within MINUTES"),
    }
}

/// The stages that the arguments of `ci` name, in their usual order.
fn select(args: &[&str]) -> Result<Vec<&'static stages::Stage>, String> {
    let mut only = Vec::new();
    let mut skip = Vec::new();
    let mut args = args.iter();
    while let Some(&arg) = args.next() {
        let (list, name) = match arg {
            "--skip" => (&mut skip, *args.next().ok_or("--skip needs the name of a stage")?),
            _ if arg.starts_with('-') => return Err(format!("ci has no option '{arg}'")),
            _ => (&mut only, arg),
        };
        if !stages::ALL.iter().any(|s| s.name == name) {
            return Err(format!("no stage is called '{name}'"));
        }
        list.push(name);
    }
    let wanted = |name: &str| (only.is_empty() || only.contains(&name)) && !skip.contains(&name);
    Ok(stages::ALL.iter().filter(|s| wanted(s.name)).collect())
}

/// The workspace's root: the directory above this crate's.
fn root() -> PathBuf {
    let crate_dir = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    crate_dir.parent().map(PathBuf::from).unwrap_or(crate_dir)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn names(args: &[&str]) -> Result<Vec<&'static str>, String> {
        select(args).map(|chosen| chosen.iter().map(|s| s.name).collect())
    }

    #[test]
    fn no_argument_means_all_stages() {
        assert_eq!(names(&[]).unwrap().len(), stages::ALL.len());
    }

    #[test]
    fn stages_run_in_the_order_of_the_gate() {
        assert_eq!(names(&["clippy", "fmt"]).unwrap(), ["fmt", "clippy"]);
    }

    #[test]
    fn every_stage_is_of_one_of_two_commands() {
        let both: Vec<_> = [Lane::Test, Lane::Gate]
            .into_iter()
            .flat_map(of)
            .map(|stage| stage.name)
            .collect();
        assert_eq!(both, names(&[]).unwrap());
    }

    #[test]
    fn a_skipped_stage_is_left_out() {
        let left = names(&["--skip", "model"]).unwrap();
        assert!(!left.contains(&"model"));
        assert_eq!(left.len(), stages::ALL.len() - 1);
    }

    #[test]
    fn unknown_names_and_options_are_refused() {
        assert!(names(&["nonsense"]).is_err());
        assert!(names(&["--skip"]).is_err());
        assert!(names(&["--fast"]).is_err());
    }

    /// The exit status of `.ci/run` if `make` ends with these for `test` and `gate`, and what it made.
    fn ci_run(test: u8, gate: u8) -> (Option<i32>, Vec<String>) {
        // A function of bash, which is found before the program.
        let make = format!(
            "() {{ echo \"made $* $KEYWAY_TESTS_REQUIRE_ALL\"; case $1 in test) return {test} ;; gate) return {gate} ;; esac; return 99; }}"
        );
        let ended = Command::new(root().join(".ci/run"))
            .env("BASH_FUNC_make%%", make)
            .output()
            .unwrap();
        let said = String::from_utf8(ended.stdout).unwrap();
        let made = said.lines().filter_map(|line| line.strip_prefix("made ")).map(str::to_owned);
        (ended.status.code(), made.collect())
    }

    #[test]
    fn the_gate_fails_if_either_half_fails_and_runs_both() {
        let both = ["test BEGIN_WITHIN=55 1", "gate BEGIN_WITHIN=45 1"].map(str::to_owned);
        for (test, gate, status) in [(0, 0, 0), (3, 0, 3), (0, 4, 4), (3, 4, 4)] {
            assert_eq!(ci_run(test, gate), (Some(status), both.to_vec()), "{test}, {gate}");
        }
    }
}
