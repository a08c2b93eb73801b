//! `cargo xtask flights`: many processes fetch values that take a while to compute, while some of them are killed and stopped at random.
//! Enemy: a computation without a cause, a value that is older than a delete, a death that holds a value up.
//!
//! | file | holds |
//! |---|---|
//! | `main` | the options, the processes, and who kills and stops them |
//! | `worker` | a process that fetches, changes rows, and says what it finds |
//! | `ledger` | what all say, in a region of its own: counters that survive whoever counts |
//! | `race` | rows are changed and deleted while others fetch them, through all doors |
//! | `cold` | a flush, and a back end whose latency grows with the number of concurrent requests |
//! | `times` | a wake-up, a hand-over, a hot key, and very many flights |
//! | `door` | the library and the network, to `race` and `cold` |
//!
//! Guards: P53
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line tool talks to its terminal"
)]

mod cold;
mod door;
mod ledger;
mod race;
mod times;
mod worker;

use harness::{Random, Scratch};
use ledger::{Count, Ledger};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode};
use std::time::{Duration, Instant};

const HELP: &str = "\
cargo xtask flights: processes that fetch, killed and stopped at random

    cargo xtask flights --seconds N     for N seconds (60 if not given)
    cargo xtask flights --short         the gate's form: 12 processes for 6 seconds
    cargo xtask flights race            10,000,000 computations of rows that are changed and deleted meanwhile, through the library and the
                                        network, and some by get and set, which shows stale ones; --rounds N for fewer
    cargo xtask flights cold            how soon a flushed cache is of use again, beside memcached
    cargo xtask flights times           a wake-up, a hand-over, a hot key, 100,000 flights at once; --short for a tenth of it
    --seed N                            of all choices

Forty processes fetch 1,000 keys whose values take 50 ms to compute and are fresh for 2 seconds. One request in 200 changes a row and
deletes its key. Twice a second one process is killed, and one is stopped for a while. Every computation must have a cause: there was
no value, or its time was over, or it was deleted, or who computed it has died, or a wait has run out. No value may be older than a delete
that had returned before the request began.
";

/// How it is run.
struct Plan {
    /// `race`, `cold` or `times`
    what: Option<String>,
    is_short: bool,
    rounds: u64,
    processes: usize,
    keys: u64,
    seconds: u64,
    seed: u64,
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [first, folder, number, keys] = args.as_slice()
        && first == "--worker"
    {
        let (Ok(number), Ok(keys)) = (number.parse(), keys.parse()) else {
            return ExitCode::from(2);
        };
        worker::run(Path::new(folder), number, keys);
        return ExitCode::SUCCESS;
    }
    if let [first, region] = args.as_slice()
        && first == "--other"
    {
        times::other(Path::new(region));
        return ExitCode::SUCCESS;
    }
    match plan_from(&args) {
        Ok(Some(plan)) => match plan.what.as_deref() {
            Some("race") => race::run(plan.rounds, plan.seed),
            Some("cold") => cold::run(plan.seed),
            Some("times") => times::run(plan.is_short),
            _ => run(&plan),
        },
        Ok(None) => {
            print!("{HELP}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("flights: {why}; `cargo xtask flights --help` says what there is");
            ExitCode::from(2)
        }
    }
}

fn plan_from(args: &[String]) -> Result<Option<Plan>, String> {
    let mut plan = Plan {
        what: None,
        is_short: false,
        rounds: 10_000_000,
        processes: 40,
        keys: 1000,
        seconds: 60,
        seed: Random::seed_for("flights"),
    };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut number = || {
            let text = args.next().ok_or_else(|| format!("{arg} needs a value"))?;
            text.parse::<u64>().map_err(|e| format!("{arg} {text}: {e}"))
        };
        match arg.as_str() {
            "--help" | "-h" => return Ok(None),
            "--short" => {
                (plan.processes, plan.keys, plan.seconds) = (12, 100, 6);
                (plan.is_short, plan.rounds) = (true, 100_000);
            }
            "race" | "cold" | "times" => plan.what = Some(arg.clone()),
            "--rounds" => plan.rounds = number()?,
            "--seconds" => plan.seconds = number()?,
            "--seed" => plan.seed = number()?,
            _ => return Err(format!("there is no option '{arg}'")),
        }
    }
    Ok(Some(plan))
}

/// One of the processes, which is started again when it was killed.
struct Worker {
    child: Child,
    number: usize,
    /// it is stopped until then
    stopped_until: Option<Instant>,
}

impl Worker {
    fn start(folder: &Path, number: usize, keys: u64) -> Self {
        let child = Command::new(std::env::current_exe().expect("this program"))
            .args([
                "--worker",
                &folder.display().to_string(),
                &number.to_string(),
                &keys.to_string(),
            ])
            .spawn()
            .expect("a process");
        Self {
            child,
            number,
            stopped_until: None,
        }
    }

    fn send(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).expect("a process number");
        // It has ended only if it has failed, which is seen at the end.
        let _ = kill(Pid::from_raw(pid), signal);
    }

    /// Kills it, and says so first.
    fn kill(&mut self, ledger: &mut Ledger) {
        ledger.will_be_killed(self.number);
        self.send(Signal::SIGKILL);
        let _ = self.child.wait();
    }
}

fn run(plan: &Plan) -> ExitCode {
    println!("flights: seed {}", plan.seed);
    let scratch = Scratch::new();
    let folder: PathBuf = scratch.join("world");
    std::fs::create_dir(&folder).expect("a folder");
    let mut ledger = Ledger::open(&folder);
    let _cache = worker::open(&folder);
    let mut random = Random::new(plan.seed);
    let mut workers: Vec<_> = (0..plan.processes)
        .map(|number| Worker::start(&folder, number, plan.keys))
        .collect();
    let begun = Instant::now();
    let mut problems = Vec::new();
    let mut next = begun + Duration::from_millis(500);
    while begun.elapsed() < Duration::from_secs(plan.seconds) && problems.is_empty() {
        std::thread::sleep(Duration::from_millis(10));
        let now = Instant::now();
        for worker in &mut workers {
            if worker.stopped_until.is_some_and(|until| now >= until) {
                worker.stopped_until = None;
                worker.send(Signal::SIGCONT);
            }
            if let Ok(Some(status)) = worker.child.try_wait() {
                problems.push(format!("process {} ended: {status}", worker.number));
            }
        }
        if now < next {
            continue;
        }
        next = now + Duration::from_millis(250 + random.below(500));
        let victim = random.index(plan.processes);
        if random.below(2) == 0 {
            let worker = &mut workers[victim];
            worker.kill(&mut ledger);
            // Meanwhile others see what it did.
            std::thread::sleep(Duration::from_millis(200));
            *worker = Worker::start(&folder, victim, plan.keys);
        } else if workers[victim].stopped_until.is_none() {
            ledger.will_be_stopped(victim);
            workers[victim].send(Signal::SIGSTOP);
            workers[victim].stopped_until = Some(now + Duration::from_millis(50 + random.below(1500)));
        }
    }
    for worker in &mut workers {
        worker.send(Signal::SIGKILL);
        let _ = worker.child.wait();
    }
    report(plan, &mut ledger, &problems)
}

fn report(plan: &Plan, ledger: &mut Ledger, problems: &[String]) -> ExitCode {
    let counts: Vec<_> = Count::ALL.iter().map(|count| (count.name(), ledger.count(*count))).collect();
    println!("{} processes, {} keys, {} s:", plan.processes, plan.keys, plan.seconds);
    for (name, count) in &counts {
        println!("  {count:>9} {name}");
    }
    for what in ["hand-over after a death", "wake-up after a store"] {
        times::print_quantiles(what, ledger.times(what));
    }
    let mut wrong: Vec<String> = problems.to_vec();
    for count in [Count::Older, Count::WithoutCause, Count::Needless] {
        if ledger.count(count) > 0 {
            wrong.push(format!("{} {}", ledger.count(count), count.name()));
        }
    }
    // It must have met what it is about.
    for count in [Count::Hits, Count::Computed, Count::Waited, Count::Deleted] {
        if ledger.count(count) == 0 {
            wrong.push(format!("there were no {}", count.name()));
        }
    }
    wrong.iter().for_each(|why| println!("  WRONG: {why}"));
    let failed = u64::from(!wrong.is_empty());
    println!("{} passed, {failed} failed", 1 - failed);
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
