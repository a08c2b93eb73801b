//! The report as one page that needs nothing else: no network, no script, no font; plots are SVG, light or dark as the reader has it.
//!
//! It opens with one sentence ([`sentence`]). Everything that comes from the report passes through maud, which escapes it. A kind of plot
//! appears when the report has what it is made of ([`plots`]); tables have every row.

pub mod bars;
pub mod plots;

use crate::compare::Comparison;
use crate::compare::{Change, Verdict, table};
use crate::report::{self, CellReport, Report, Row};
use bars::{Bar, Chart, Scale, fixed, number};
use maud::{DOCTYPE, Markup, PreEscaped, html};
use plots::{label, row_label};
use std::time::{Duration, UNIX_EPOCH};

const STYLE: &str = include_str!("html/style.css");

/// The browser itself refuses whatever is not in the page.
const NOTHING_ELSE: &str = "default-src 'none'; style-src 'unsafe-inline'";

/// Plots of a kind that are shown at once; more are folded.
const CHARTS_MAX: usize = 12;

/// A part of the page that has something to say.
pub struct Section {
    /// its anchor
    pub id: &'static str,
    /// its heading
    pub title: &'static str,
    /// how to read it
    pub note: &'static str,
    /// what it shows
    pub body: Markup,
}

/// The page.
pub fn page(report: &Report, changes: Option<&Comparison>) -> String {
    page_with(report, changes, Vec::new())
}

/// The page, with these sections before its own.
pub fn page_with(report: &Report, changes: Option<&Comparison>, mut sections: Vec<Section>) -> String {
    add_sections(&mut sections, report, changes);
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(NOTHING_ELSE);
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { "keyway bench, " (date(report.begun_unix_s)) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                header {
                    h1 { "keyway bench" }
                    @if let Some(sentence) = sentence(report) { p.sentence { (sentence) } }
                    p { (date(report.begun_unix_s)) " · Keyway " (report.version) " · " (report.machine) }
                    (remarks("failed", "Failed: the figures concerned are void", &report.failures))
                    (remarks("notes", "Notes", &report.notes))
                    @if sections.len() > 1 {
                        nav { @for section in &sections { a href=(format!("#{}", section.id)) { (section.title) } } }
                    }
                }
                main {
                    (measured(report))
                    @if sections.is_empty() { p.nothing { "Nothing was measured: the run ended before its first row was complete." } }
                    @for section in &sections {
                        section id=(section.id) {
                            h2 { (section.title) }
                            @if !section.note.is_empty() { p.note { (section.note) } }
                            (section.body)
                        }
                    }
                }
                footer { "Made by " code { "keyway bench" } " " (report.version) ". A point or bar is a median; the thin line through it runs from the lowest measurement to the highest." }
            }
        }
    };
    page.into_string()
}

/// What the report says, of the row that says most: a call beside a socket if there is one, else the first with a peer.
pub fn sentence(report: &Report) -> Option<String> {
    let beside = |cell: &&CellReport| cell.sides.len() > 1 && cell.rate.is_none();
    let call = |cell: &&CellReport| cell.door == "library";
    let cells = || report.cells.iter();
    let chosen = cells().find(|cell| beside(cell) && call(cell));
    let cell = chosen.or_else(|| cells().find(beside)).or_else(|| cells().next())?;
    let row = report
        .row(cell, "latency of gets, mean")
        .or_else(|| report.row(cell, "latency, mean"))?;
    let way = |side: usize| cell.sides.get(side).map_or("", |side| side.way.as_str());
    let operation = if cell.operation.is_empty() {
        "an operation"
    } else {
        &cell.operation
    };
    let own_us = row.sides.keyway?;
    let own = format!("Keyway answers {operation} in {} µs", number(own_us));
    let own = match way(0) {
        "" => own,
        way => format!("{}{}, {own}", way[..1].to_uppercase(), &way[1..]),
    };
    // The quotient of the two numbers that are here, which the median of the pairs' quotients need not be.
    let Some(peer) = cell.sides.get(1).zip(row.sides.peer).filter(|_| own_us > 0.0) else {
        return Some(format!("{own}."));
    };
    let times = peer.1 / own_us;
    let (peer, us) = (format!("{} {}", peer.0.name, way(1)), number(peer.1));
    Some(format!(
        "{own}; {} in {us} µs: {} times as long.",
        peer.trim_end(),
        number(times)
    ))
}

fn remarks(class: &str, title: &str, lines: &[String]) -> Markup {
    html! { @if !lines.is_empty() { div.remarks.(class) { strong { (title) } ul { @for line in lines { li { (line) } } } } } }
}

/// What was measured where and how: versions, options, command.
fn measured(report: &Report) -> Markup {
    html! {
        dl.measured {
            @for (name, abouts) in by_name(report) { dt { (name) } dd { (started(&abouts)) } }
            dt { "how" } dd { @for line in report.conditions.lines() { div { (line) } } }
            dt { "command" } dd { code { (report.command) } }
        }
    }
}

/// With their options; of many, which differ in ports and memory, all but the first are folded.
fn started(abouts: &[&str]) -> Markup {
    const SHOWN: usize = 3;
    let (shown, folded) = abouts.split_at(if abouts.len() > SHOWN { 1 } else { abouts.len() });
    html! {
        @for about in shown { div { (about) } }
        @if !folded.is_empty() {
            details { summary { (folded.len()) " more that were started" } @for about in folded { div { (about) } } }
        }
    }
}

/// Each name once, with all that was started under it.
fn by_name(report: &Report) -> Vec<(&str, Vec<&str>)> {
    let mut all: Vec<(&str, Vec<&str>)> = Vec::new();
    for measured in &report.measured {
        match all.iter_mut().find(|(name, _)| *name == measured.name) {
            Some((_, abouts)) => abouts.push(&measured.about),
            None => all.push((&measured.name, vec![&measured.about])),
        }
    }
    all
}

fn add_sections(sections: &mut Vec<Section>, report: &Report, changes: Option<&Comparison>) {
    let mut add = |id, title, note, body: Option<Markup>| {
        sections.extend(body.map(|body| Section { id, title, note, body }));
    };
    add("ratios", "Keyway beside its peer", RATIOS, overview(report));
    add(
        "throughput",
        "Throughput",
        THROUGHPUT,
        charts(plots::charts(report, "throughput")),
    );
    add("load", "Latency at a given rate", "", charts(plots::charts(report, "load")));
    add("hits", "Hit ratio against memory", "", charts(plots::charts(report, "hits")));
    add("changes", "What changed", "", changes.map(|changes| since(report, changes)));
    let rows = (!report.cells.is_empty()).then(|| all_rows(report));
    add("rows", "All rows", "Medians (lowest–highest).", rows);
}

const RATIOS: &str = "Keyway over its peer: the median of the ratios of measurements that were made one after the other. Blue: Keyway is ahead by \
                      more than the spread. Orange: its peer is. Grey: neither.";
const THROUGHPUT: &str = "Closed loops: each connection, thread or process sends its next request when it has its answer.";
fn charts(charts: Vec<Chart>) -> Option<Markup> {
    let (shown, folded) = charts.split_at(charts.len().min(CHARTS_MAX));
    let grid = |charts: &[Chart]| html! { div.grid { @for chart in charts { (chart.markup()) } } };
    (!charts.is_empty()).then(|| {
        html! {
            (grid(shown))
            @if !folded.is_empty() { details.more { summary { (folded.len()) " more" } (grid(folded)) } }
        }
    })
}

/// Ratios of the two figures that say most, one bar for each cell.
fn overview(report: &Report) -> Option<Markup> {
    let chart = |figure: &str, name: &str, has: fn(&CellReport) -> bool| -> Option<Chart> {
        let cells = report.cells.iter().filter(|cell| has(cell));
        let rows: Vec<_> = cells
            .filter_map(|cell| ratio(row_label(cell), report.row(cell, figure)?))
            .collect();
        (!rows.is_empty()).then(|| Chart {
            kind: "ratios",
            title: String::new(),
            note: String::new(),
            name: name.to_owned(),
            scale: Scale::Ratio,
            rows,
        })
    };
    // An open loop's throughput is what was asked for.
    let rates = chart("throughput", "throughput, Keyway : peer; more is better", |cell| {
        cell.rate.is_none()
    });
    let latencies = chart("latency, p99", "latency, p99, Keyway : peer; less is better", |_| true);
    (rates.is_some() || latencies.is_some()).then(|| html! { @for chart in rates.iter().chain(&latencies) { (chart.markup()) } })
}

fn ratio(name: String, row: &Row) -> Option<bars::Row> {
    let ends = row.sides.ratio_low.zip(row.sides.ratio_high);
    let bar = Bar {
        class: row.ahead().to_owned(),
        value: row.sides.ratio.filter(|ratio| *ratio > 0.0)?,
        spread: ends.filter(|(low, high)| *low > 0.0 && low < high),
        whose: String::new(),
    };
    Some(bars::Row { name, bars: vec![bar] })
}

/// Every figure of every cell; of many cells, folded: their summaries still say what they gave.
fn all_rows(report: &Report) -> Markup {
    const OPEN_MAX: usize = 8;
    #[allow(clippy::cast_precision_loss, reason = "counts are below 2^53")]
    let count = |count: u64| fixed(count as f64, 0);
    html! {
        @for cell in &report.cells {
            details.cell open[report.cells.len() <= OPEN_MAX] {
                summary { (row_label(cell)) span.brief { (brief(report, cell)) } }
                p.note { (count(cell.items)) " items, " (count(cell.memory_mib)) " MiB" }
                (report::table(cell, &report.rows_of(cell)).markup())
            }
        }
    }
}

/// What a folded cell shows of itself.
fn brief(report: &Report, cell: &CellReport) -> String {
    let Some(row) = report.row(cell, "throughput") else {
        return String::new();
    };
    let own = row
        .sides
        .keyway
        .map_or(String::new(), |rate| format!("{} {}", number(rate), row.unit));
    let ratio = row.sides.ratio.map(|ratio| format!(", ratio {ratio:.2}"));
    own + &ratio.unwrap_or_default()
}

/// What changed, the worst first; what stayed is folded.
fn since(report: &Report, comparison: &Comparison) -> Markup {
    let name = |row: &Row| {
        let cell = report.cells.iter().find(|cell| cell.name == row.cell);
        let cell = cell.map_or_else(|| row.cell.clone(), |cell| label(cell, None));
        format!("{cell}: {}", row.title())
    };
    let with = |verdicts: &[Verdict]| -> Vec<&Change> { verdicts.iter().flat_map(|verdict| comparison.with(*verdict)).collect() };
    let moved = with(&[Verdict::Worse, Verdict::Better, Verdict::Noise]);
    let same = with(&[Verdict::Same, Verdict::NotJudged]);
    html! {
        p.note { "Since the report of " (date(comparison.old_begun_unix_s)) "." }
        p { (comparison.summary()) "." }
        @for note in &comparison.notes { p.note { (note) } }
        @if !moved.is_empty() { (table(&moved, name).markup()) }
        @if !same.is_empty() { details.cell { summary { "the same, or not judged: " (same.len()) } (table(&same, name).markup()) } }
        @for (what, names) in [("Only in the old report", &comparison.gone), ("Only in this one", &comparison.appeared)] {
            @if !names.is_empty() { details.cell { summary { (what) ": " (names.len()) } ul { @for name in names { li { (name) } } } } }
        }
    }
}

/// In UTC.
fn date(unix_s: u64) -> String {
    /// The last second of the year 9999: what comes later is no date of a report.
    const LATEST: u64 = 253_402_300_799;
    let time = UNIX_EPOCH + Duration::from_secs(unix_s.min(LATEST));
    let text = humantime::format_rfc3339_seconds(time).to_string();
    text.replace('T', " ").replace('Z', " UTC")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::report_of;

    #[test]
    fn the_sentence_says_what_was_asked_how_and_how_much_longer_the_peer_takes() {
        let mut report = report_of(&[4000.0], &[1000.0]);
        let beside = "Over TCP, Keyway answers a get of 1000 B in 10 µs; memcached over TCP in 40 µs: 4 times as long.";
        assert_eq!(sentence(&report).as_deref(), Some(beside));
        // The median of the pairs' quotients may be another one than that of the two numbers that the sentence has.
        for row in &mut report.rows {
            row.sides.ratio = Some(0.4);
        }
        assert_eq!(sentence(&report).as_deref(), Some(beside));
        report.cells[0].sides.pop();
        assert_eq!(
            sentence(&report).as_deref(),
            Some("Over TCP, Keyway answers a get of 1000 B in 10 µs.")
        );
        report.cells.clear();
        assert_eq!(sentence(&report), None);
    }
}
