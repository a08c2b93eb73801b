//! Tables of the page: every row of every cell, and what changed.

use crate::compare::{Change, Comparison, Verdict};
use crate::html::chart::{apart, number};
use crate::html::plots::row_label;
use crate::html::ratios::digits;
use crate::medians::Spread;
use crate::report::{Better, CellReport, Report, Row};
use maud::{Markup, html};

/// More cells than this are folded: their summaries still say what they gave.
const OPEN_MAX: usize = 8;

/// Every figure of every cell.
pub fn rows(report: &Report) -> Markup {
    let open = report.cells.len() <= OPEN_MAX;
    html! {
        @for cell in &report.cells {
            @let rows: Vec<_> = report.rows.iter().filter(|row| row.cell == cell.name).collect();
            details.cell open[open] {
                summary { (row_label(cell)) span.brief { (brief(&rows)) } }
                p.note { (grouped(cell.items)) " items, " (grouped(cell.memory_mib)) " MiB" }
                (cell_table(cell, &rows))
            }
        }
    }
}

/// What a folded cell shows of itself.
fn brief(rows: &[&Row]) -> String {
    let Some(throughput) = rows.iter().find(|row| row.figure == "throughput") else {
        return String::new();
    };
    let own = throughput
        .sides
        .keyway
        .map_or(String::new(), |rate| format!("{} {}", number(rate), throughput.unit));
    throughput
        .sides
        .ratio
        .map_or(own.clone(), |ratio| format!("{own}, ratio {ratio:.2}"))
}

fn cell_table(cell: &CellReport, rows: &[&Row]) -> Markup {
    let own = cell.sides.first().map_or("", |side| side.way.as_str());
    html! {
        div.scroll { table {
            thead { tr {
                th {} th { "Keyway" br; span.note { (own) } }
                @if let Some(peer) = cell.sides.get(1) { th { (peer.name) br; span.note { (peer.way) } } th { "ratio" } }
            } }
            tbody { @for row in rows { tr {
                th scope="row" { (row.figure) @if !row.unit.is_empty() { ", " (row.unit) } }
                td { (value(row.sides.of_keyway(), row.digits)) }
                @if cell.sides.len() > 1 {
                    td { (value(row.sides.of_peer(), row.digits)) }
                    td.(ahead(row)) { (value(row.sides.of_ratio(), ratio_digits(row))) }
                }
            } } }
        } }
    }
}

fn ratio_digits(row: &Row) -> usize {
    digits(row.sides.ratio.unwrap_or(1.0))
}

/// Which side is ahead, if that is more than the spread: a class.
pub fn ahead(row: &Row) -> &'static str {
    let (Some(low), Some(high)) = (row.sides.ratio_low, row.sides.ratio_high) else {
        return "even";
    };
    match (row.better, low > 1.0, high < 1.0) {
        (Better::Higher, true, _) | (Better::Lower, _, true) => "keyway",
        (Better::Higher, _, true) | (Better::Lower, true, _) => "peer",
        _ => "even",
    }
}

/// A median, and its spread if there is one.
pub fn value(spread: Spread, digits: usize) -> Markup {
    html! {
        @match (spread.median, spread.low, spread.high) {
            (Some(median), Some(low), Some(high)) if low < high => { (fixed(median, digits)) span.spread { " (" (fixed(low, digits)) "–" (fixed(high, digits)) ")" } },
            (Some(median), ..) => (fixed(median, digits)),
            _ => "–",
        }
    }
}

/// With this many digits after the point, and thousands apart.
fn fixed(value: f64, digits: usize) -> String {
    let text = format!("{value:.digits$}");
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    let (sign, whole) = whole.strip_prefix('-').map_or(("", whole), |whole| ("−", whole));
    format!("{sign}{}{rest}", apart(whole))
}

fn grouped(count: u64) -> String {
    apart(&count.to_string())
}

/// What changed, the worst first; what stayed is folded.
pub fn changes(comparison: &Comparison, label: &dyn Fn(&str) -> String) -> Markup {
    let mut moved: Vec<&Change> = Vec::new();
    for verdict in [Verdict::Worse, Verdict::Better, Verdict::Noise] {
        moved.extend(comparison.changes.iter().filter(|change| change.verdict == verdict));
    }
    let same: Vec<&Change> = comparison
        .changes
        .iter()
        .filter(|change| change.verdict.word().is_empty())
        .collect();
    html! {
        p { (comparison.summary()) "." }
        @for note in &comparison.notes { p.note { (note) } }
        @if !moved.is_empty() { (changes_table(&moved, label)) }
        @if !same.is_empty() { details.cell { summary { "the same, or not judged: " (same.len()) } (changes_table(&same, label)) } }
        @for (what, names) in [("Only in the old report", &comparison.gone), ("Only in this one", &comparison.appeared)] {
            @if !names.is_empty() { details.cell { summary { (what) ": " (names.len()) } ul { @for name in names { li { (name) } } } } }
        }
    }
}

fn changes_table(changes: &[&Change], label: &dyn Fn(&str) -> String) -> Markup {
    html! {
        div.scroll { table {
            thead { tr { th {} th { "old" } th { "new" } th { "old, ratio to the peer" } th { "new, ratio to the peer" } th { "new / old" } th {} } }
            tbody { @for change in changes { tr {
                @let (old, new) = (&change.old, &change.new);
                th scope="row" { (label(&new.cell)) ": " (new.figure) @if !new.unit.is_empty() { ", " (new.unit) } }
                @for row in [old, new] { td { (value(row.sides.of_keyway(), row.digits)) } }
                @for row in [old, new] { td { @if change.beside_peer { (value(row.sides.of_ratio(), ratio_digits(row))) } } }
                td { (value(Spread::none(change.factor), 2)) }
                td class=(verdict_class(change.verdict)) { (change.verdict.word()) }
            } } }
        } }
    }
}

fn verdict_class(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Better => "keyway",
        Verdict::Worse => "wrong",
        Verdict::Same | Verdict::Noise | Verdict::NotJudged => "even",
    }
}
