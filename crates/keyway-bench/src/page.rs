//! The report as one page that needs nothing else: no network, no script, no font; light or dark as the reader has it.
//!
//! It opens with one sentence ([`sentence`]), then has a bar for each ratio and every row of every cell. Everything that comes from the report
//! passes through maud, which escapes it.

use crate::plan::{Door, Pace};
use crate::report::{Report, Row};
use crate::run::CellResult;
use crate::table::{digits, number};
use maud::{DOCTYPE, Markup, PreEscaped, html};
use std::time::{Duration, UNIX_EPOCH};

const STYLE: &str = include_str!("page.css");

/// The browser itself refuses whatever is not in the page.
const NOTHING_ELSE: &str = "default-src 'none'; style-src 'unsafe-inline'";

/// Of a bar's drawing, in pixels: it is stretched in its width alone.
const HEIGHT: f64 = 16.0;

/// The page.
pub fn page(report: &Report<'_>) -> String {
    let outcome = report.outcome;
    let (version, begun) = (env!("CARGO_PKG_VERSION"), date(outcome.begun_unix_s));
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(NOTHING_ELSE);
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { "keyway bench, " (begun) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                header {
                    h1 { "keyway bench" }
                    @if let Some(sentence) = sentence(report) { p.sentence { (sentence) } }
                    p { (begun) " · Keyway " (version) " · " (outcome.machine) }
                    (remarks("failed", "Failed: the figures concerned are void", &outcome.failures))
                    (remarks("notes", "Notes", &outcome.notes))
                }
                main {
                    dl.measured {
                        @for (name, about) in &outcome.about { dt { (name) } dd { (about) } }
                        dt { "how" } dd { (report.conditions) }
                        dt { "command" } dd { code { (report.command) } }
                    }
                    @if outcome.cells.is_empty() { p.nothing { "Nothing was measured: the run ended before its first row was complete." } }
                    // An open loop's throughput is what was asked for.
                    (bars(report, "throughput", "more is better", |cell| cell.cell.pace == Pace::Closed))
                    (bars(report, "latency, p99", "less is better", |_| true))
                    @for cell in &outcome.cells { (table(report, cell)) }
                }
                footer { "Medians (lowest–highest). Blue: Keyway is ahead by more than the spread. Orange: its peer is. Grey: neither." }
            }
        }
    };
    page.into_string()
}

/// What the report says, of the row that says most: a call beside a socket if there is one, else the first with a peer.
fn sentence(report: &Report<'_>) -> Option<String> {
    let beside = |cell: &&CellResult| cell.sides.len() > 1 && cell.cell.pace == Pace::Closed;
    let cells = || report.outcome.cells.iter();
    let chosen = cells().find(|cell| beside(cell) && cell.cell.door == Door::Library);
    let cell = chosen.or_else(|| cells().find(beside)).or_else(|| cells().next())?;
    let gets = report.row(cell, "latency of gets, mean");
    let sides = gets.or_else(|| report.row(cell, "latency, mean"))?.sides;
    let (about, way, own_us) = (&cell.cell.workload.about, cell.sides.first()?.way, sides.keyway?);
    let own = format!("{about}: {way}, Keyway answers in {} µs", number(own_us));
    // The quotient of the two numbers that are here, which the median of the pairs' quotients need not be.
    let Some((peer, peer_us)) = cell.sides.get(1).zip(sides.peer).filter(|_| own_us > 0.0) else {
        return Some(format!("{own}."));
    };
    let (name, way, times) = (peer.name, peer.way, number(peer_us / own_us));
    Some(format!(
        "{own}; {name} {way} in {} µs: {times} times as long.",
        number(peer_us)
    ))
}

fn remarks(class: &str, title: &str, lines: &[String]) -> Markup {
    html! { @if !lines.is_empty() { div.remarks.(class) { strong { (title) } ul { @for line in lines { li { (line) } } } } } }
}

/// Ratios of a figure to the peer, a bar for each cell: the median of those of measurements that were made one after the other.
fn bars(report: &Report<'_>, figure: &str, better: &str, has: fn(&CellResult) -> bool) -> Markup {
    let cells = report.outcome.cells.iter().filter(|cell| has(cell));
    let of = |cell| {
        let row = report.row(cell, figure)?;
        Some((row, row.sides.ratio.filter(|ratio| *ratio > 0.0)?))
    };
    let rows: Vec<(&Row, f64)> = cells.filter_map(of).collect();
    // What is shown even where all are equal.
    let widest = rows.iter().map(|(_, ratio)| ratio.ln().abs()).fold(2_f64.ln(), f64::max);
    let at = |ratio: f64| (50.0 + ratio.ln() / widest * 50.0).clamp(0.0, 100.0);
    let bar = |row: &Row, ratio: f64| {
        let ends = row.sides.of_ratio().ends().filter(|(low, _)| *low > 0.0);
        html! {
            svg viewBox=(format!("0 0 100 {HEIGHT}")) height=(HEIGHT) preserveAspectRatio="none" aria-hidden="true" {
                rect.bar.(row.ahead()) x=(px(at(ratio).min(50.0))) y="3" width=(px((at(ratio) - 50.0).abs())) height=(HEIGHT - 6.0) {}
                @if let Some((low, high)) = ends { line.whisker x1=(px(at(low))) x2=(px(at(high))) y1=(HEIGHT / 2.0) y2=(HEIGHT / 2.0) {} }
                line.base x1="50" x2="50" y1="0" y2=(HEIGHT) {}
            }
        }
    };
    html! {
        @if !rows.is_empty() {
            section.bars data-plot=(figure) {
                h2 { (figure) ", Keyway : peer" }
                p.note { (better) "; the line is 1, and twice is as far from it as half" }
                @for (row, ratio) in rows {
                    div.row {
                        div.name { (row.cell) }
                        div.plot { (bar(row, ratio)) }
                        div.value { strong { (row.sides.of_ratio().text(digits(ratio))) } }
                    }
                }
            }
        }
    }
}

/// A place, to a hundredth of a percent of the width.
fn px(at: f64) -> String {
    format!("{at:.2}")
}

/// Every figure of a cell.
fn table(report: &Report<'_>, cell: &CellResult) -> Markup {
    let (name, has_peer) = (cell.cell.name(), cell.sides.len() > 1);
    html! {
        section {
            h2 { (name) }
            p.note { (cell.cell.workload.about) "; " (cell.cell.items) " items, " (cell.cell.memory()) " MiB" }
            div.scroll { table {
                thead { tr { th {} @for side in &cell.sides { th { (side.name) br; span.note { (side.way) } } } @if has_peer { th { "ratio" } } } }
                tbody { @for row in report.rows.iter().filter(|row| row.cell == name) { tr.(row.ahead()) {
                    @for entry in row.entries(has_peer) { td { (entry) } }
                } } }
            } }
        }
    }
}

/// In UTC.
fn date(unix_s: u64) -> String {
    let text = humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(unix_s)).to_string();
    text.replace('T', " ").replace('Z', " UTC")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::{outcome_of, report};

    #[test]
    fn the_sentence_says_how_it_was_asked_and_how_much_longer_the_peer_takes() {
        let mut outcome = outcome_of(&[4000], &[1000]);
        let said = |outcome: &crate::run::Outcome| sentence(&report(outcome));
        let beside = "YCSB C: gets: over TCP, Keyway answers in 10 µs; memcached over TCP in 40 µs: 4 times as long.";
        assert_eq!(said(&outcome).as_deref(), Some(beside));
        outcome.cells[0].sides.pop();
        assert_eq!(
            said(&outcome).as_deref(),
            Some("YCSB C: gets: over TCP, Keyway answers in 10 µs.")
        );
        outcome.cells.clear();
        assert_eq!(said(&outcome), None);
    }
}
