//! Papers' figures on the page: their ratios as bars beside those measured here, the table, and what differs.

use crate::table::{PaperRow, PaperTable, sides};
use keyway_bench::html::Section;
use keyway_bench::html::bars::{self, Bar, Chart, Row, Scale, number};
use keyway_bench::medians::Spread;
use keyway_bench::report::Better;
use keyway_bench::table::Entry;
use maud::{Markup, html};

/// All tables, if there are any.
pub fn section(papers: &[PaperTable]) -> Option<Section> {
    const NOTE: &str = "A paper's system beside that paper's own peer, and Keyway beside its peer on this machine: each ratio compares two \
                        systems on one machine.";
    (!papers.is_empty()).then(|| Section {
        id: "papers",
        title: "Beside the papers",
        note: NOTE,
        body: html! { @for table in papers { (markup(table)) } },
    })
}

/// One table, with bars for the rows that have a ratio.
fn markup(table: &PaperTable) -> Markup {
    let rows: Vec<Row> = table.rows.iter().filter_map(bars).collect();
    html! {
        section.paper {
            h3 { (table.title) " " code { (table.preset) } }
            p.note { (table.source) }
            @if !rows.is_empty() {
                (chart(of_whom(table), rows).markup())
            }
            (figures(table))
            @for (ours, theirs) in sides(&table.rows) {
                p.note { "Keyway by " (ours) @if !theirs.is_empty() { "; peer: " (theirs) } "." }
            }
            @if !table.differs.is_empty() {
                p.note { "What differs from the paper:" }
                ul.note { @for differs in &table.differs { li { (differs) } } }
            }
        }
    }
}

fn chart(name: String, rows: Vec<Row>) -> Chart {
    Chart {
        kind: "paper",
        title: String::new(),
        note: String::new(),
        name,
        scale: Scale::Ratio,
        rows,
    }
}

fn of_whom(table: &PaperTable) -> String {
    if table.rows.iter().any(|row| row.paper_ratio.is_some()) {
        format!(
            "here: Keyway over its peer; paper: {} over {}",
            table.paper_system, table.paper_peer
        )
    } else {
        "here: Keyway over its peer".to_owned()
    }
}

fn bars(row: &PaperRow) -> Option<Row> {
    let bar = |class: &str, whose: &str, of: Spread| {
        let spread = of.low.zip(of.high).filter(|(low, high)| low < high);
        of.median.map(|value| Bar {
            class: class.to_owned(),
            value,
            spread,
            whose: whose.to_owned(),
        })
    };
    let bars: Vec<Bar> = [
        bar("paper", "paper", row.of_paper_ratio()),
        bar("keyway", "here", row.sides.of_ratio()),
    ]
    .into_iter()
    .flatten()
    .collect();
    let way = match row.better {
        Better::Higher => "more is better",
        Better::Lower => "less is better",
    };
    let unit = if row.unit.is_empty() {
        String::new()
    } else {
        format!("{}, ", row.unit)
    };
    (!bars.is_empty()).then(|| Row {
        name: format!("{} ({unit}{way})", row.name),
        bars,
    })
}

fn figures(table: &PaperTable) -> Markup {
    let theirs = table.rows.iter().any(|row| row.paper_system.or(row.paper_ratio).is_some());
    html! {
        div.scroll { table {
            thead { tr {
                th {} th { "peer" } th { "Keyway" } th { "ratio" }
                @if theirs { th { "paper: " (table.paper_peer) } th { "paper: " (table.paper_system) } th { "paper's ratio" } th { "ratio of ratios" } }
            } }
            tbody { @for row in &table.rows { tr {
                th scope="row" { (row.name) @if !row.unit.is_empty() { ", " (row.unit) } }
                td { (Entry::of(row.sides.of_peer(), row.digits).markup()) }
                td { (Entry::of(row.sides.of_keyway(), row.digits).markup()) }
                td { (ratio(row.sides.of_ratio())) }
                @if theirs {
                    td { (plain(row.paper_peer)) }
                    td { (plain(row.paper_system)) }
                    td { (ratio(row.of_paper_ratio())) }
                    td { (ratio(Spread::none(row.ratio_of_ratios))) }
                }
            } } }
        } }
    }
}

/// As the paper has it.
fn plain(value: Option<f64>) -> String {
    value.map_or("–".to_owned(), number)
}

fn ratio(spread: Spread) -> Markup {
    Entry::of(spread, bars::digits(spread.median.unwrap_or(1.0))).markup()
}
