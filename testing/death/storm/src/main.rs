//! `cargo xtask storm`: the storm from the command line, and its workers, which are this program started again.
//! Guards: P1, P3
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line tool talks to its terminal"
)]

use harness::{Random, Scratch};
use histories::map::{Fault, Map, play};
use histories::{Rules, judge_all};
use keyway_cache::{Cache, Place};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use storm::round::{self, Kept, Tally};
use storm::system::{adopt_orphans, step_back};
use storm::worker::{self, Job, Kind, options};

const HELP: &str = "\
cargo xtask storm: ten processes on one region, killed, stopped, resumed, forked and restarted at random

    cargo xtask storm --seconds N    N seconds (600 if not given) over each of two kinds of region
    cargo xtask storm --short        the gate's form: a few seconds each
    --kind lasting|evicting          one kind only
    --seed N                         of every random choice (the schedule of the processors remains)

A `lasting` region has room for everything: a miss of a key that was stored and not deleted fails the run. An `evicting` one is
small; it evicts, grows its index and is flushed all the time: misses are allowed, but nothing stale, torn or risen from the dead.
Most workers use the library, some the socket of a `keyway serve` that is killed and stopped as well. In every second round there are
more threads than the region has slots: the server writes for those that find none. Every call and answer is
written to a journal in shared memory; at the end of each round every worker must end and be reaped, the region is checked, no
session may be left, and every key's history must be linearizable. Before that, the judge is shown histories of a store with
seeded faults, and, built with faults, storms over broken variants of the region: it must reject each.
";

/// How a storm is run.
struct Plan {
    seconds: u64,
    short: bool,
    seed: u64,
    kinds: Vec<Kind>,
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|a| a == "--worker") {
        let Some(job) = job_from(&args) else {
            eprintln!("storm: --worker is for the storm's own use");
            return ExitCode::from(2);
        };
        step_back();
        return ExitCode::from(u8::try_from(worker::run(&job)).unwrap_or(1));
    }
    match plan_from(&args) {
        Ok(Some(plan)) => run(&plan),
        Ok(None) => {
            print!("{HELP}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("storm: {why}; `cargo xtask storm --help` says what there is");
            ExitCode::from(2)
        }
    }
}

fn job_from(args: &[String]) -> Option<Job> {
    let [_, folder, region, kind, round, seed, capacity, memory, mutant] = args else {
        return None;
    };
    Some(Job {
        folder: PathBuf::from(folder),
        region: PathBuf::from(region),
        kind: kind_from(kind)?,
        round: round.parse().ok()?,
        seed: seed.parse().ok()?,
        capacity: capacity.parse().ok()?,
        memory: memory.parse().ok()?,
        mutant: mutant.parse().ok()?,
    })
}

fn kind_from(name: &str) -> Option<Kind> {
    [Kind::Lasting, Kind::Evicting].into_iter().find(|k| k.name() == name)
}

fn plan_from(args: &[String]) -> Result<Option<Plan>, String> {
    let mut plan = Plan {
        seconds: 600,
        short: false,
        seed: 0,
        kinds: vec![Kind::Lasting, Kind::Evicting],
    };
    let mut seed = None;
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
        let number = |text: &String| text.parse::<u64>().map_err(|e| format!("{arg} {text}: {e}"));
        match arg.as_str() {
            "--help" | "-h" => return Ok(None),
            "--short" => (plan.short, plan.seconds) = (true, 4),
            "--seconds" => plan.seconds = number(value()?)?,
            "--seed" => seed = Some(number(value()?)?),
            "--kind" => {
                let name = value()?;
                plan.kinds = vec![kind_from(name).ok_or_else(|| format!("no kind is called '{name}'"))?];
            }
            _ => return Err(format!("there is no option '{arg}'")),
        }
    }
    plan.seed = seed.unwrap_or_else(|| Random::seed_for("storm"));
    Ok(Some(plan))
}

fn run(plan: &Plan) -> ExitCode {
    adopt_orphans();
    println!("storm: seed {}", plan.seed);
    let (mut passed, mut failed) = judge_the_judge(plan);
    for kind in &plan.kinds {
        let tally = storm(plan, *kind, Duration::from_secs(plan.seconds), 0);
        report(*kind, &tally);
        passed += tally.histories + tally.checks - u64::try_from(tally.problems.len()).unwrap_or(0).min(tally.histories);
        failed += tally.problems.len() as u64;
    }
    if mutants::BUILT_IN {
        let (p, f) = broken(plan);
        (passed, failed) = (passed + p, failed + f);
    }
    println!("{passed} passed, {failed} failed");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Histories of a store with seeded faults, which must be rejected, and without, which must be accepted.
fn judge_the_judge(plan: &Plan) -> (u64, u64) {
    let (mut passed, mut failed) = (0, 0);
    let repeats = if plan.short { 1 } else { 10 };
    for kind in &plan.kinds {
        let may_vanish = *kind == Kind::Evicting;
        let mix = histories::choose::Mix {
            fill: 50,
            flush: 200,
            len_max: 300,
            expiring: false,
            ..kind.mix(0)
        };
        let faults = Fault::ALL
            .into_iter()
            .filter(|f| !may_vanish || f.is_wrong_where_items_vanish());
        let stores: Vec<Option<Fault>> = std::iter::once(None).chain(faults.map(Some)).collect();
        for (fault, n) in stores.into_iter().flat_map(|fault| (0..repeats).map(move |n| (fault, n))) {
            let random = Random::new(plan.seed).fork(fault.map_or(0, |f| f as u64 + 1) + (n << 8));
            let history = play(&Map::new(fault, random.clone()), 4, 3_000, mix, &random);
            let rules = Rules {
                may_vanish,
                flights_may_end: false,
            };
            let verdict = judge_all(&history, rules);
            let right = verdict.violations.is_empty() == fault.is_none() && verdict.undecided == 0;
            (passed, failed) = (passed + u64::from(right), failed + u64::from(!right));
            if !right {
                println!(
                    "  the judge of {} regions is wrong about {fault:?}: {:?}",
                    kind.name(),
                    verdict.violations
                );
            }
        }
    }
    println!("  the judge: {passed} histories of stores with and without a seeded fault told apart, {failed} not");
    (passed, failed)
}

/// Rounds over regions of one kind until the time is over, or something is wrong.
fn storm(plan: &Plan, kind: Kind, lasts: Duration, mutant: u32) -> Tally {
    let scratch = Scratch::new();
    let end = Instant::now() + lasts;
    let mut random = Random::new(plan.seed).fork(1 + kind as u64 + (u64::from(mutant) << 8));
    let mut tally = Tally::default();
    let mut kept = Kept::new();
    let mut region = 0;
    let length = if plan.short { 2 } else { 3 };
    let mut round = 0;
    while Instant::now() < end && tally.problems.is_empty() {
        round += 1;
        let folder = scratch.join(&format!("round-{round}"));
        if let Err(e) = std::fs::create_dir(&folder) {
            tally.check(false, || format!("{}: {e}", folder.display()));
            break;
        }
        let memory = match kind {
            Kind::Lasting => 64 << 20,
            Kind::Evicting => (2 + random.below(2)) << 20,
        };
        let job = Job {
            region: scratch.join(&format!("region-{region}")),
            folder: folder.clone(),
            round,
            seed: random.next(),
            kind,
            capacity: if plan.short { 6_000 } else { 10_000 },
            memory,
            mutant,
        };
        tally.add(round::run(&job, Duration::from_secs(length), mutant == 0, &mut kept));
        // A region of the lasting kind serves until it is half full, others one round.
        if let Some(cache) = finished(&job, &mut tally, kind == Kind::Evicting || Instant::now() >= end) {
            if kind == Kind::Lasting {
                let found = round::verify(&cache, &kept);
                tally.check(found.is_ok(), || format!("{found:?}"));
            }
            summarise(kind, round, &cache, &mut tally, mutant != 0);
            drop(cache);
            kept.clear();
            region += 1;
            // Leftovers are only a nuisance.
            let _ = std::fs::remove_file(&job.region);
        }
        let _ = std::fs::remove_dir_all(&folder);
    }
    // A judge that gives up often judges nothing.
    let (undecided, judged) = (tally.undecided, tally.histories);
    tally.check(undecided * 1000 <= judged, || {
        format!("{undecided} histories were given up, {judged} were not")
    });
    // The storm must have met what it is about.
    let served = tally.served;
    tally.check(mutant != 0 || round < 2 || served > 0, || {
        format!("no thread found all slots taken in {round} rounds")
    });
    let evicted = tally.evictions;
    tally.check(mutant != 0 || (evicted > 0) == (kind == Kind::Evicting), || {
        format!("{evicted} items were evicted from {} regions", kind.name())
    });
    tally
}

/// The region, if it has served its time.
fn finished(job: &Job, tally: &mut Tally, at_once: bool) -> Option<Cache> {
    match Cache::open(&Place::Path(job.region.clone()), &options(job)) {
        Ok(cache) => {
            let info = cache.info();
            (at_once || info.segments_free < info.segments / 2).then_some(cache)
        }
        Err(e) => {
            tally.check(false, || format!("the region does not open any more: {e}"));
            None
        }
    }
}

/// What became of a region.
fn summarise(kind: Kind, round: u32, cache: &Cache, tally: &mut Tally, quietly: bool) {
    let counters = cache.counters();
    if !quietly {
        println!(
            "  {} region, round {round}: {} MiB, {} buckets by {} splits, {} segments recycled, {} items evicted, {} recoveries",
            kind.name(),
            cache.info().limit_bytes >> 20,
            cache.info().index_buckets,
            counters.splits,
            counters.segments_recycled,
            counters.evictions,
            counters.recoveries,
        );
    }
    tally.check(counters.corrupt == 0, || {
        format!("{} times something was found damaged", counters.corrupt)
    });
    tally.evictions += counters.evictions;
}

fn report(kind: Kind, tally: &Tally) {
    println!(
        "  {}: {} rounds, {} operations ({} without an answer, {} refused, the slowest {} ms), {} starts, {} forks, {} kills, \
         {} stops, {} resumes, {} servers killed, {} found no place, {} threads were served; {} histories judged in {} s (at most {} configurations), {} given up, {} other \
         checks",
        kind.name(),
        tally.rounds,
        tally.operations,
        tally.unanswered,
        tally.refused,
        tally.slowest_ns / 1_000_000,
        tally.starts,
        tally.forks,
        tally.kills,
        tally.stops,
        tally.resumes,
        tally.server_kills,
        tally.no_place,
        tally.served,
        tally.histories,
        tally.judging.as_secs(),
        tally.configurations_max,
        tally.undecided,
        tally.checks,
    );
    for problem in tally.problems.iter().take(5) {
        println!("  FAILED {}: {problem}", kind.name());
    }
}

/// Storms over broken variants of the region, each of which must be rejected.
fn broken(plan: &Plan) -> (u64, u64) {
    use mutants::Mutant;
    // Each with the kind of region that shows it sooner.
    const TRIED: [(Mutant, Kind); 4] = [
        (Mutant::OverwriteInTwoSteps, Kind::Lasting),
        (Mutant::RelocateInTwoSteps, Kind::Lasting),
        (Mutant::InsertWithoutRescan, Kind::Evicting),
        (Mutant::TableBeforeFill, Kind::Lasting),
    ];
    let (mut passed, mut failed) = (0, 0);
    for (mutant, kind) in TRIED {
        let begun = Instant::now();
        let tally = storm(plan, kind, Duration::from_secs(120), mutant as u32);
        match tally.problems.first() {
            Some(problem) => {
                passed += 1;
                let line = problem.lines().next().unwrap_or_default();
                println!("  rejected {mutant:?} after {} s: {line:.120}", begun.elapsed().as_secs());
            }
            None => {
                failed += 1;
                println!(
                    "  FAILED: a storm of {} s over {mutant:?} found nothing",
                    begun.elapsed().as_secs()
                );
            }
        }
    }
    (passed, failed)
}
