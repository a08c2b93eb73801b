//! `keyway hot`: the hottest keys of a region, once or again and again.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use clap::Args;
use keyway_cache::{Cache, Hot, HotBy, HotCounts};
use keyway_server::HotAsked;

use crate::commands::{self, Which};
use crate::exit::Failure;
use crate::terminal::{self, LEFT, Table, right};

/// The kinds, with their titles.
const KINDS: [(HotBy, &str); 3] = [
    (HotBy::Gets, "by gets"),
    (HotBy::Sets, "by sets"),
    (HotBy::Bytes, "by bytes given out"),
];
/// Clears a terminal and begins at its top (ECMA-48: ED, CUP).
const CLEAR: &str = "\x1b[H\x1b[2J";

pub(crate) const HELP: &str = "\
One in 256 operations of each session is counted in the region, by all programs
with the library and all servers; one in 16 while this program looks. A key of
more than 127 bytes that has no item now, or one that is not read, is shown by
its hash. The counts are estimates: the true number is below AT LEAST or above
AT MOST about once in twenty times. Increments and decrements count as sets.

Examples:
  keyway hot                             every 5 seconds the hottest keys of
                                         these, and since the region was made
  keyway hot --once --top 3 --prefix :   once, by what is before the first colon
                                         of a key
  keyway hot --once --json | jq '.recent.gets[0]'";

#[derive(Args)]
pub(crate) struct HotKeys {
    /// Keys of each kind
    #[arg(long, value_name = "NUMBER", default_value = "10", value_parser = parse_top)]
    top: usize,
    /// Seconds to look at
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// Group keys by what is before the first SEPARATOR in them
    #[arg(long, value_name = "SEPARATOR", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    prefix: Option<String>,
    /// Show hashes in the place of keys
    #[arg(long)]
    redact: bool,
    /// Look once, and end
    #[arg(long)]
    once: bool,
    /// Print JSON, one line each time
    #[arg(long)]
    json: bool,
}

/// How many are shown.
pub(crate) fn parse_top(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| "it is a whole number, at least 1".to_owned())
}

/// Shows hot keys, until a signal ends this program, or once.
pub(crate) fn run(which: Which, how: &HotKeys) -> Result<(), Failure> {
    let cache = commands::open(which)?;
    let asked = HotAsked {
        most: how.top,
        separator: how.prefix.as_deref().map(str::as_bytes),
        redacted: how.redact,
    };
    let mut out = std::io::stdout();
    let clears = out.is_terminal() && !how.once && !how.json;
    let ending = commands::Ending::new()?;
    let mut since = cache.hot_counts();
    loop {
        ending.sleep_until(Instant::now() + Duration::from_secs(how.seconds));
        if ending.is_asked() {
            cache.close();
            ending.follow();
            return Ok(());
        }
        let counts = cache.hot_counts();
        let text = match how.json {
            true => format!("{}\n", asked.json(&cache, &counts, Some(&since))),
            false => text(&asked, &cache, &counts, &since),
        };
        let clear = if clears { CLEAR } else { "" };
        if let Err(error) = write!(out, "{clear}{text}").and_then(|()| out.flush()) {
            return commands::written(Err(error));
        }
        if how.once {
            return Ok(());
        }
        since = counts;
    }
}

/// A table for each kind and each time.
fn text(asked: &HotAsked<'_>, cache: &Cache, counts: &HotCounts, since: &HotCounts) -> String {
    let mut text = String::new();
    let seconds = format!("in {:.1} seconds", counts.after(since).as_secs_f64());
    for (since, when) in [(Some(since), seconds.as_str()), (None, "since the region was made")] {
        for (by, kind) in KINDS {
            let rows = asked.list(cache, counts, since, by);
            if !rows.is_empty() {
                let title = terminal::wrapped(&format!("{kind}, {when}"), terminal::columns());
                text.push_str(&format!("{title}{}\n", table(asked, &rows)));
            }
        }
    }
    if text.is_empty() {
        text.push_str("nothing was counted yet\n");
    }
    text
}

fn table(asked: &HotAsked<'_>, rows: &[Hot]) -> String {
    let title = if asked.separator.is_some() { "PREFIX" } else { "KEY" };
    let mut table = Table::new(&[right(14), right(14), right(14), LEFT], 3);
    table.head(["ABOUT", "AT LEAST", "AT MOST", title]);
    for hot in rows {
        let numbers = [hot.estimate, hot.at_least, hot.at_most].map(|number| number.to_string());
        table.row(numbers.into_iter().chain([asked.shown(hot)]));
    }
    table.text(terminal::columns())
}
