//! `cargo xtask suites`: the test suites of clients, of libmemcached's users and of memcached itself, as their authors publish them.
//!
//! Each suite runs twice: with the real server or library, and with Keyway in its place. Whether its cases pass is not the point: each case
//! has to end the same way both times, except those of one table ([`differences`]), from which docs/testing.md is generated ([`page`]).
//! A difference that is not in the table fails, and so does a row of the table that is no difference.
//!
//! Nothing of the suites is committed: they come from package registries into cargo's target directory ([`obtain`]). One that cannot be had
//! is reported as absent. Each run has a network namespace of its own, because many suites insist on memcached's port.
//! Guards: P35, P36

#![allow(clippy::print_stdout, reason = "a tool that is started in a terminal")]

mod cases;
mod compare;
mod differences;
mod list;
mod obtain;
mod page;
mod run;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;

use compare::Verdict;
use list::Suite;

const HELP: &str = "\
suites: other authors' test suites, with memcached or libmemcached and then with Keyway

    --short      the gate's form: the suites that take less than a minute, or all of them with KEYWAY_TESTS_FULL=1
    --only TEXT  suites whose name contains it
    --list       names the suites
    --table      prints what docs/testing.md has of them
    --help       this
";

struct Options {
    short: bool,
    only: String,
    list: bool,
}

fn main() -> ExitCode {
    let mut options = Options {
        short: false,
        only: String::new(),
        list: false,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--short" => options.short = !harness::full_run(),
            "--list" => options.list = true,
            "--table" => {
                print!("{}", page::generated());
                return ExitCode::SUCCESS;
            }
            "--help" => {
                print!("{HELP}");
                return ExitCode::SUCCESS;
            }
            "--only" => options.only = arguments.next().unwrap_or_default(),
            other => {
                println!("suites: there is no option {other}\n{HELP}");
                return ExitCode::from(2);
            }
        }
    }
    let chosen: Vec<&Suite> = list::ALL
        .iter()
        .filter(|suite| suite.name.contains(&options.only) && (suite.is_short || !options.short))
        .collect();
    if options.list {
        chosen.iter().for_each(|suite| println!("{}: {}", suite.name, suite.source));
        return ExitCode::SUCCESS;
    }
    if !nix::unistd::geteuid().is_root() {
        harness::skip("suites", "only root can give each run a network namespace of its own");
        return ExitCode::SUCCESS;
    }
    report(&all(&chosen))
}

/// Cargo's target directory: this program is in `<target>/<profile>`.
fn target() -> PathBuf {
    let program = std::env::current_exe().unwrap_or_else(|e| panic!("this program's own path: {e}"));
    program.ancestors().nth(2).map(PathBuf::from).unwrap_or_default()
}

/// Runs these suites, as many at once as there are CPUs: each waits most of the time.
fn all<'a>(chosen: &[&'a Suite]) -> Vec<(&'a Suite, Verdict)> {
    let target = target().join("tmp");
    let left = Mutex::new(chosen.iter());
    let done = Mutex::new(Vec::new());
    let next = || left.lock().unwrap_or_else(std::sync::PoisonError::into_inner).next();
    let lanes = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..lanes {
            scope.spawn(|| {
                for suite in std::iter::from_fn(next) {
                    let verdict = compare::both(suite, &target);
                    println!("{}", verdict.line(suite));
                    done.lock()
                        .unwrap_or_else(std::sync::PoisonError::into_inner)
                        .push((*suite, verdict));
                }
            });
        }
    });
    done.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// The line of totals, and the exit code.
fn report(verdicts: &[(&Suite, Verdict)]) -> ExitCode {
    let (mut passed, mut failed, mut absent) = (0, 0, 0);
    for (suite, verdict) in verdicts {
        match verdict {
            Verdict::Absent(why) => {
                absent += 1;
                harness::skip(suite.name, why);
            }
            Verdict::Compared { problems, .. } if problems.is_empty() => passed += 1,
            Verdict::Compared { .. } => failed += 1,
        }
    }
    println!("{passed} passed, {failed} failed, {absent} absent");
    ExitCode::from(u8::from(failed > 0))
}
