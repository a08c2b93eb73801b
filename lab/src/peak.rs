//! A search for the highest rate at which the mean latency keeps a limit.

use keyway_bench::caches::Side;
use keyway_bench::measurement::Measurement;
use keyway_bench::plan::{Cell, Pace, Plan};
use keyway_bench::run::{self, Draw, Operations};
use std::io;

/// Rates tried: each halves what is uncertain, so that a hundredth of the peak is left.
const STEPS: usize = 7;
/// A closed loop leaves gaps that an open one may fill.
const ABOVE_CLOSED: f64 = 1.25;

/// The measurement with the highest rate at which the mean latency is at most `mean_us_max`, by halving; without any operations, if none of those tried does.
///
/// # Errors
///
/// Those of [`run::measure`], and a measurement in which something was wrong.
pub fn peak(
    plan: &Plan,
    cell: &Cell,
    side: &Side,
    operations: &Operations,
    repetition: usize,
    mean_us_max: f64,
) -> io::Result<Measurement> {
    let closed = whole(plan, cell, side, operations, Draw { repetition, step: 0 })?;
    let (mut low, mut high) = (0.0, closed.rate() * ABOVE_CLOSED);
    let mut best = Measurement::default();
    for step in 1..=STEPS {
        let rate = f64::midpoint(low, high);
        let paced = Cell {
            pace: Pace::Rate(rate),
            ..cell.clone()
        };
        let made = whole(plan, &paced, side, operations, Draw { repetition, step })?;
        if made.unanswered == 0 && made.latencies().mean_us() <= mean_us_max {
            (low, best) = (rate, made);
        } else {
            high = rate;
        }
    }
    Ok(best)
}

/// A measurement on which others depend.
///
/// # Errors
///
/// Those of [`run::measure`], and a measurement in which something was wrong.
pub fn whole(plan: &Plan, cell: &Cell, side: &Side, operations: &Operations, draw: Draw) -> io::Result<Measurement> {
    let made = run::with_a_turn(plan, |plan| run::measure(plan, cell, side, operations, draw))?;
    if made.wrong.any() {
        return Err(io::Error::other(made.wrong.to_string()));
    }
    Ok(made)
}
