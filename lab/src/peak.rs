//! A search for the highest rate at which latency keeps a limit.

use keyway_bench::caches::Side;
use keyway_bench::measurement::Measurement;
use keyway_bench::plan::{Cell, Pace, Plan};
use keyway_bench::run::{self, Draw, Operations};
use std::io;

/// A limit of latency.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limit {
    /// of which percentile; `None`: of the mean
    pub percentile: Option<f64>,
    /// the most
    pub us: f64,
}

impl std::fmt::Display for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.percentile {
            None => write!(f, "mean ≤ {} µs", self.us),
            Some(percentile) => write!(f, "p{percentile} ≤ {} µs", self.us),
        }
    }
}

/// Rates tried: each halves what is uncertain, so that a hundredth of the peak is left.
const STEPS: usize = 7;
/// A closed loop leaves gaps that an open one may fill.
const ABOVE_CLOSED: f64 = 1.25;

/// The measurement with the highest rate at which latency keeps the limit, by halving; without any operations, if none of those tried does.
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
    limit: Limit,
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
        let latencies = made.latencies();
        let us = limit
            .percentile
            .map_or_else(|| latencies.mean_us(), |percentile| latencies.percentile_us(percentile));
        if made.unanswered == 0 && us <= limit.us {
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
