//! The report as one page that needs nothing else: no network, no script, no font; plots are SVG, light or dark as the reader has it.
//!
//! Everything that comes from the report passes through maud, which escapes it. A kind of plot appears when the report has what it is
//! made of ([`plots`]); tables have every row.

pub mod chart;
pub mod papers;
pub mod plots;
pub mod ratios;
pub mod tables;

use crate::compare::Comparison;
use crate::report::{Report, Row};
use chart::Chart;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use std::time::{Duration, UNIX_EPOCH};

const STYLE: &str = include_str!("html/style.css");

/// The browser itself refuses whatever is not in the page.
const NOTHING_ELSE: &str = "default-src 'none'; style-src 'unsafe-inline'";

/// Plots of a kind that are shown at once; more are folded.
const CHARTS_MAX: usize = 12;

/// A part of the page that has something to say.
struct Section {
    id: &'static str,
    title: &'static str,
    note: &'static str,
    body: Markup,
}

/// The page.
pub fn page(report: &Report, changes: Option<&Comparison>) -> String {
    let sections = sections(report, changes);
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
                    p { (date(report.begun_unix_s)) " · Keyway " (report.version) " · " (report.machine) }
                    (told("failed", "Failed: the figures concerned are void", &report.failures))
                    (told("notes", "Notes", &report.notes))
                    @if sections.len() > 1 {
                        nav { @for section in &sections { a href=(format!("#{}", section.id)) { (section.title) } } }
                    }
                }
                main {
                    (measured(report))
                    @if report.cells.is_empty() && !has_papers(report) {
                        p.nothing { "Nothing was measured: the run ended before its first row was complete." }
                    }
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

fn told(class: &str, title: &str, lines: &[String]) -> Markup {
    html! { @if !lines.is_empty() { div.told.(class) { strong { (title) } ul { @for line in lines { li { (line) } } } } } }
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
    let (shown, folded) = if abouts.len() > SHOWN {
        abouts.split_at(1)
    } else {
        (abouts, &[][..])
    };
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

fn sections(report: &Report, changes: Option<&Comparison>) -> Vec<Section> {
    let mut sections = Vec::new();
    let mut add = |id, title, note, body: Option<Markup>| {
        sections.extend(body.map(|body| Section { id, title, note, body }));
    };
    add("papers", "Beside the papers", PAPERS, paper_tables(report));
    add("ratios", "Keyway beside its peer", RATIOS, overview(report));
    add("throughput", "Throughput", THROUGHPUT, charts(plots::throughput(report)));
    add("load", "Latency under load", "", charts(plots::latency_under_load(report)));
    add("hits", "Hit ratio against memory", "", charts(plots::hit_ratio(report)));
    add(
        "latency",
        "Distributions of latency",
        LATENCY,
        charts(plots::latencies(report)),
    );
    add("changes", "What changed", "", changes.map(since));
    add(
        "rows",
        "All rows",
        ROWS,
        (!report.cells.is_empty()).then(|| tables::rows(report)),
    );
    sections
}

const PAPERS: &str = "A paper's system beside that paper's own peer, and Keyway beside its peer on this machine: each ratio compares two \
                      systems on one machine.";
const RATIOS: &str = "Keyway over its peer: the median of the ratios of measurements that were made one after the other. Blue: Keyway is ahead by \
                      more than the spread. Orange: its peer is. Grey: neither. Beside calls (library, processes) the peer is reached through \
                      its Unix socket.";
const THROUGHPUT: &str = "Closed loops: each connection, thread or process sends its next request when it has its answer.";
const LATENCY: &str = "Each curve says which share of all operations took no longer; further up every step is a tenth of what was left. It ends where \
                       the slowest operation alone decides.";
const ROWS: &str = "Medians (lowest–highest).";

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
    let all = |figure: &'static str| report.rows.iter().filter(move |row| row.figure == figure);
    // An open loop's throughput is what was asked for.
    let paced: Vec<&str> = report
        .cells
        .iter()
        .filter(|cell| cell.rate.is_some())
        .map(|cell| cell.name.as_str())
        .collect();
    let rates: Vec<_> = all("throughput")
        .filter(|row| !paced.contains(&row.cell.as_str()))
        .filter_map(ratio_row)
        .collect();
    let latencies: Vec<_> = all("latency, p99").filter_map(ratio_row).collect();
    (!rates.is_empty() || !latencies.is_empty()).then(|| {
        html! {
            @if !rates.is_empty() { (ratios::markup("ratios", "throughput, Keyway : peer; more is better", &rates)) }
            @if !latencies.is_empty() { (ratios::markup("ratios", "latency, p99, Keyway : peer; less is better", &latencies)) }
        }
    })
}

fn ratio_row(row: &Row) -> Option<ratios::Row> {
    let ratio = row.sides.ratio.filter(|ratio| *ratio > 0.0)?;
    let spread = row
        .sides
        .ratio_low
        .zip(row.sides.ratio_high)
        .filter(|(low, high)| *low > 0.0 && low < high);
    let bar = ratios::Bar {
        class: tables::ahead(row),
        ratio,
        spread,
        whose: "",
    };
    Some(ratios::Row {
        name: row.cell.clone(),
        bars: vec![bar],
    })
}

fn paper_tables(report: &Report) -> Option<Markup> {
    has_papers(report).then(|| html! { @for table in &report.papers { (papers::markup(table)) } })
}

fn has_papers(report: &Report) -> bool {
    !report.papers.is_empty()
}

fn since(comparison: &Comparison) -> Markup {
    html! { p.note { "Since the report of " (date(comparison.old_begun_unix_s)) "." } (tables::changes(comparison)) }
}

/// In UTC.
fn date(unix_s: u64) -> String {
    /// The last second of the year 9999: what comes later is no date of a report.
    const LATEST: u64 = 253_402_300_799;
    let time = UNIX_EPOCH + Duration::from_secs(unix_s.min(LATEST));
    humantime::format_rfc3339_seconds(time)
        .to_string()
        .replace('T', " ")
        .replace('Z', " UTC")
}
