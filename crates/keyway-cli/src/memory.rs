//! `keyway memory`: how many misses a region would have with more memory, or less.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use clap::Args;
use keyway_cache::{Prediction, PredictionState, Predictions};
use keyway_server::size_text;
use serde_json::{Value, json};

use crate::commands::{self, Which};
use crate::exit::{self, Failure};
use crate::terminal::{self, LEFT, Table, right};

/// Time between two looks at the trail.
const LOOK: Duration = Duration::from_millis(2);
/// Steps of the trail, and misses, below which nothing is said of other sizes.
const STEPS_MIN: u64 = 1000;
const MISSES_MIN: u64 = 100;
/// Steps after which it ends early, if the simulations up to this size have settled.
const STEPS_ENOUGH: u64 = 200_000;
const ASKED_FIRST: f64 = 2.0;
/// Below this part of the misses seen, some sessions have not looked yet.
const SEEN_MIN: f64 = 0.8;

pub(crate) const HELP: &str = "\
While it runs, each program with the library and each server writes what it does
to a sample of the keys into the region, and this program simulates the
evictions of regions of other sizes with it. It begins with the items that the
region has. A size that was not full yet, or that has not yet replaced its
items, is marked: follow it for longer. The numbers are those of the later half
of the time.

Examples:
  keyway memory                  follow the region's requests for 30 seconds, or
                                 until that is enough
  keyway memory --seconds 3600   an hour, for a region whose items stay for long
  keyway memory --json | jq '.sizes[] | select(.part == 2) | .miss_ratio'";

#[derive(Args)]
pub(crate) struct HowMuch {
    /// Seconds to follow the requests, at most
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Follows the region's requests, and prints what is predicted.
pub(crate) fn run(which: Which, how: &HowMuch) -> Result<(), Failure> {
    let cache = commands::open(which)?;
    let mut session = commands::session(&cache)?;
    let reader = "this user may only read the region, and to follow its requests this program has to ask its sessions to note them, which is a write: be \
                  the region's owner, or one of its writers";
    let mut curve = cache
        .memory_curve(Some(&mut session))
        .ok_or_else(|| Failure::new(exit::NO, reader))?;
    // From here on its slot is free for others.
    drop(session);
    if std::io::stderr().is_terminal() {
        let _ = writeln!(std::io::stderr(), "following the requests for up to {} s", how.seconds);
    }
    let ending = commands::Ending::new()?;
    let end = Instant::now() + Duration::from_secs(how.seconds);
    let mut predictions = curve.predictions();
    let mut looked = Instant::now();
    while Instant::now() < end && !ending.is_asked() && !is_all_known(&predictions) {
        std::thread::sleep(LOOK);
        curve.follow();
        if looked.elapsed() >= Duration::from_secs(1) {
            (predictions, looked) = (curve.predictions(), Instant::now());
        }
    }
    let predictions = curve.predictions();
    if ending.is_asked() {
        drop(curve);
        cache.close();
        ending.follow();
        return Ok(());
    }
    match how.json {
        true => commands::say(as_json(&predictions)),
        false => commands::written(std::io::stdout().write_all(text(&predictions, terminal::columns()).as_bytes())),
    }
}

/// Whether there is enough to say something of other sizes.
fn is_enough(predictions: &Predictions) -> bool {
    predictions.steps >= STEPS_MIN && predictions.misses >= MISSES_MIN
}

fn is_all_known(predictions: &Predictions) -> bool {
    let is_known = |size: &Prediction| size.state == PredictionState::Settled || size.part > ASKED_FIRST;
    predictions.steps >= STEPS_ENOUGH && predictions.sizes.iter().all(is_known)
}

/// How many more misses a size has than the present one, as a part of those.
fn more(predictions: &Predictions, size: &Prediction) -> Option<f64> {
    let own = predictions.misses as f64 / predictions.gets.max(1) as f64;
    (own > 0.0).then(|| size.miss_ratio / own - 1.0)
}

fn as_json(predictions: &Predictions) -> Value {
    let size = |size: &Prediction| {
        json!({
            "memory_bytes": size.memory,
            "part": size.part,
            "miss_ratio": size.miss_ratio,
            "error": size.error,
            "state": match size.state {
                PredictionState::Filling => "filling",
                PredictionState::Settling => "settling",
                PredictionState::Settled => "settled",
            },
        })
    };
    json!({
        "enough": is_enough(predictions),
        "memory_bytes": predictions.memory,
        "followed_s": predictions.followed.as_secs_f64(),
        "window_s": predictions.window.as_secs_f64(),
        "gets": predictions.gets,
        "misses": predictions.misses,
        "seen": predictions.seen,
        "evictions": predictions.evictions,
        "came_back": predictions.came_back,
        "steps": predictions.steps,
        "lost": predictions.lost,
        "one_key_in": predictions.one_in,
        "sizes": predictions.sizes.iter().map(size).collect::<Vec<_>>(),
    })
}

fn text(predictions: &Predictions, columns: Option<usize>) -> String {
    let percent = |part: f64| 100.0 * part;
    let (gets, misses) = (predictions.gets, predictions.misses);
    let mut text = format!(
        "{}: {gets} gets in the last {:.1} of {:.1} s, of which {misses} missed ({:.2} %); one key in {} was followed\n",
        size_text(predictions.memory),
        predictions.window.as_secs_f64(),
        predictions.followed.as_secs_f64(),
        percent(misses as f64 / gets.max(1) as f64),
        predictions.one_in,
    );
    if !is_enough(predictions) {
        text.push_str(&format!(
            "Too little to say more: {} steps were followed, and it takes {STEPS_MIN}, and {MISSES_MIN} misses. Follow the region for longer (--seconds).\n",
            predictions.steps
        ));
        return terminal::wrapped(&text, columns);
    }
    let mut table = Table::new(&[right(10), right(7), right(20), right(13), LEFT], 0);
    table.head(["MEMORY", "OF NOW", "MISSES OF THE GETS", "MORE MISSES"]);
    for size in &predictions.sizes {
        let bound = if size.state == PredictionState::Filling { "<" } else { "" };
        let range = format!("{bound}{:.2} % +- {:.2}", percent(size.miss_ratio), percent(size.error));
        let more = more(predictions, size).map_or_else(String::new, |more| format!("{:+.0} %", percent(more)));
        let note = match size.state {
            PredictionState::Filling => "not full yet: at most",
            PredictionState::Settling => "has not replaced its items yet",
            PredictionState::Settled => "",
        };
        table.row([size_text(size.memory), part_text(size.part), range, more, note.to_owned()]);
    }
    let begin = terminal::wrapped(&text, columns);
    let mut text = sentence(predictions);
    if predictions.seen < SEEN_MIN {
        text.push_str(&format!(
            "Only {:.0} % of the misses were followed: some sessions have not seen yet that they are to be. Follow the region for longer.\n",
            percent(predictions.seen)
        ));
    }
    if predictions.lost > 0 {
        text.push_str(&format!(
            "{} steps were lost, because this program did not keep up: the error may be larger.\n",
            predictions.lost
        ));
    }
    format!("{begin}\n{}\n{}", table.text(columns), terminal::wrapped(&text, columns))
}

/// A size as a part of the present one.
fn part_text(part: f64) -> String {
    match part {
        part if part < 1.0 => format!("1/{:.0}", 1.0 / part),
        part if part > 1.0 => format!("{part:.0} x"),
        _ => "now".to_owned(),
    }
}

/// What it means.
fn sentence(predictions: &Predictions) -> String {
    let of = |part: f64| {
        let size = predictions.sizes.iter().find(|size| (size.part - part).abs() < 1e-9)?;
        more(predictions, size)
    };
    let mut text = String::new();
    match (of(0.5), of(2.0)) {
        (Some(half), Some(twice)) => text.push_str(&format!(
            "With half the memory there would be {:.0} % more misses; twice the memory would save {:.0} %.\n",
            100.0 * half.max(0.0),
            100.0 * (-twice).max(0.0)
        )),
        (None, Some(twice)) => text.push_str(&format!(
            "Twice the memory would save {:.0} % of the misses.\n",
            100.0 * (-twice).max(0.0)
        )),
        _ => {}
    }
    text.push_str(&format!(
        "{} items were evicted in that time, and {} came back soon after an eviction: {:.1} % of the misses.\n",
        predictions.evictions,
        predictions.came_back,
        100.0 * predictions.came_back as f64 / predictions.misses.max(1) as f64
    ));
    text
}
