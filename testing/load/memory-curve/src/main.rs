//! `cargo xtask memory-curve`: what `keyway memory` predicts for other sizes of a region is what regions of those sizes miss.
//!
//! Each trace is sent through a region, whose sessions leave a trail, and through one of each other size. The first half of the requests
//! fills them; the second one is compared.
//! Guards: P13

use hit_ratio::Contender;
use hit_ratio::judge::items_held;
use hit_ratio::keyway::Keyway;
use hit_ratio::mixture::Kind;
use hit_ratio::program::{self, say};
use hit_ratio::trace::{ALL, Plan, SMALL, Trace};
use keyway_cache::Predictions;
use std::io;
use std::process::ExitCode;

const HELP: &str = "\
memory-curve: miss ratios that are predicted for other sizes of a region, beside a replay in regions of those sizes

    --short         the gate's form: fewer requests, and not 4 times the memory
    --memory-mib M  memory of the region that predicts (64; short: 16)
    --requests N    requests for each item that it holds; the second half is counted (30; short: 5)
    --seed N        the seed of the traces (1)
    --only TEXT     traces whose name contains it
    --help          this
";

/// Requests between two looks at the trail.
const STEP: usize = 2048;
/// The sizes that are replayed, as parts of the region's: numerator and denominator. The first is the region's own.
const SIZES: [(u64, u64); 5] = [(1, 1), (1, 4), (1, 2), (2, 1), (4, 1)];
/// How many of them the short form replays.
const SIZES_SHORT: usize = 4;
/// How far a prediction may be from the replay.
const MARGIN: f64 = 0.02;

/// The traces beside those of `hit-ratio`.
const MORE: [Plan; 2] = [
    Plan {
        name: "latest, cache 10 %",
        kind: Kind::Latest,
        sizes: SMALL,
        keys_per_held: 10,
    },
    Plan {
        name: "uniform, cache 20 %",
        kind: Kind::Zipf(0.0),
        sizes: SMALL,
        keys_per_held: 5,
    },
];

struct Options<'a> {
    sizes: &'static [(u64, u64)],
    memory_mib: u64,
    requests_per_held: u64,
    seed: u64,
    only: &'a str,
}

fn main() -> ExitCode {
    program::run("memory-curve", HELP, |arguments| {
        let (sizes, memory_mib, requests_per_held) = match arguments.short {
            true => (&SIZES[..SIZES_SHORT], 16, 5),
            false => (&SIZES[..], 64, 30),
        };
        all(&Options {
            sizes,
            memory_mib: arguments.memory_mib.unwrap_or(memory_mib),
            requests_per_held: arguments.requests_per_held.unwrap_or(requests_per_held),
            seed: arguments.seed,
            only: &arguments.only,
        })
    })
}

/// A trace through all sizes.
struct Outcome {
    predicted: Predictions,
    /// what the replay missed, in the order of [`SIZES`]
    replayed: Vec<f64>,
}

impl Outcome {
    /// The prediction for one of the sizes, and what is claimed of its error.
    fn of(&self, size: usize) -> Option<(f64, f64)> {
        let (many, parts) = SIZES[size];
        let part = many as f64 / parts as f64;
        let found = self.predicted.sizes.iter().find(|one| (one.part - part).abs() < 1e-9)?;
        Some((found.miss_ratio, found.error))
    }

    /// Sizes whose prediction is too far away.
    fn failures(&self, predict: impl Fn(usize) -> Option<f64>) -> Vec<usize> {
        let is_far = |size: &usize| predict(*size).is_none_or(|ratio| (ratio - self.replayed[*size]).abs() > MARGIN);
        (0..self.replayed.len()).filter(is_far).collect()
    }
}

/// Runs all; how many failed.
fn all(options: &Options<'_>) -> io::Result<usize> {
    say(&format!(
        "{} MiB, {} requests for each item held, seed {}; miss ratios of the second half in a region of each size: replayed (predicted less that, in points; the error that it claims)\n",
        options.memory_mib, options.requests_per_held, options.seed
    ));
    let titles: String = options
        .sizes
        .iter()
        .map(|(many, parts)| format!(" {many}/{parts} |"))
        .collect();
    say(&format!(
        "| trace |{titles} one key in |\n|---|{}---|\n",
        "---|".repeat(options.sizes.len())
    ));
    let (mut passed, mut failed, mut worst) = (0, 0, 0f64);
    let mut rejected = 0;
    for plan in ALL.iter().chain(&MORE).filter(|plan| plan.name.contains(options.only)) {
        let outcome = run(*plan, options)?;
        let mut row = format!("| {} |", plan.name);
        for (size, replayed) in outcome.replayed.iter().enumerate() {
            let Some((predicted, error)) = outcome.of(size) else {
                continue;
            };
            worst = worst.max((predicted - replayed).abs());
            row.push_str(&format!(
                " {replayed:.4} ({:+.2}; {:.2}) |",
                100.0 * (predicted - replayed),
                100.0 * error
            ));
        }
        say(&format!("{row} {} |\n", outcome.predicted.one_in));
        let failures = outcome.failures(|size| Some(outcome.of(size)?.0));
        failed += failures.len();
        passed += options.sizes.len() - failures.len();
        for size in failures {
            let (many, parts) = SIZES[size];
            say(&format!("FAILED: {}: {many}/{parts} of the memory\n", plan.name));
        }
        if outcome.predicted.lost > 0 {
            say(&format!(
                "FAILED: {}: {} steps of the trail were lost\n",
                plan.name, outcome.predicted.lost
            ));
            failed += 1;
        }
        // What a prediction that knows nothing of other sizes would say.
        rejected += usize::from(!outcome.failures(|_| outcome.replayed.first().copied()).is_empty());
    }
    let verdict = if rejected > 0 { "rejected" } else { "FAILED: accepted" };
    say(&format!(
        "{verdict}: every size misses what the region misses ({rejected} traces)\n"
    ));
    failed += usize::from(rejected == 0);
    say(&format!(
        "largest difference {:.2} points; {passed} passed, {failed} failed\n",
        100.0 * worst
    ));
    Ok(failed)
}

fn run(plan: Plan, options: &Options<'_>) -> io::Result<Outcome> {
    let memory = options.memory_mib << 20;
    let held = items_held(&plan, options.memory_mib);
    let steps = usize::try_from(held * options.requests_per_held)
        .unwrap_or(usize::MAX)
        .div_ceil(STEP);
    let mut regions = Vec::new();
    for (many, parts) in options.sizes {
        regions.push(Keyway::new(memory / parts * many)?);
    }
    let curve = regions[0].cache().memory_curve(None);
    let mut curve = curve.ok_or_else(|| io::Error::other("a region that may only be read"))?;
    let mut trace = Trace::new(plan, held, options.seed);
    let mut requests = Vec::with_capacity(STEP);
    let (mut misses, mut count) = (vec![0; options.sizes.len()], 0);
    for step in 0..steps {
        if step == steps / 2 {
            curve.restart();
        }
        trace.fill(&mut requests, STEP);
        for (region, misses) in regions.iter_mut().zip(&mut misses) {
            let missed = region.replay(&requests)?;
            if step >= steps / 2 {
                *misses += missed;
            }
        }
        if step >= steps / 2 {
            count += STEP as u64;
        }
        curve.follow();
    }
    Ok(Outcome {
        predicted: curve.predictions_since_restart(),
        replayed: misses.iter().map(|misses| *misses as f64 / count as f64).collect(),
    })
}
