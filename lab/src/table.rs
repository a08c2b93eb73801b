//! A paper's figure or table, with what was measured here beside it.
//!
//! A [`PaperTable`] is a part of the report: as text for a terminal, and as it is in the JSON. Its rows say for one thing what Keyway
//! did and its peer here, what the paper's system did and the paper's peer there, each side's ratio, and the ratio of the ratios: what
//! is left of the difference when each machine is compared with itself. A ratio is always that of the new system to its peer.

use keyway_bench::medians::{Sides, finite};
use keyway_bench::report::{self, Better};
use keyway_bench::table::{columns, digits};
use serde::Serialize;
use std::fmt::Write;

/// A figure or table of a paper, measured again.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PaperTable {
    /// the preset that measured it
    pub preset: String,
    /// what the table is of, different from that of every other table of the preset
    pub title: String,
    /// the paper, and what of it
    pub source: String,
    /// what the paper calls its peer
    pub paper_peer: String,
    /// what the paper calls its system
    pub paper_system: String,
    /// in the paper's order
    pub rows: Vec<PaperRow>,
    /// what differs from the paper (machine, network, scale, peer), in plain sentences
    pub differs: Vec<String>,
}

/// One thing that the paper measured. What is not known is `None`, null in JSON.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PaperRow {
    /// what was measured, different from that of every other row of the table
    pub name: String,
    /// of all figures but the ratios; empty for a plain number
    pub unit: String,
    /// digits after the point that are worth showing
    pub digits: usize,
    /// which way is better
    pub better: Better,
    /// how Keyway was reached, such as `library`
    pub keyway_by: String,
    /// what the peer was and how it was reached, such as `memcached, Unix socket`; empty: there was none
    pub peer_by: String,
    /// what was measured
    #[serde(flatten)]
    pub sides: Sides,
    /// the paper's peer
    pub paper_peer: Option<f64>,
    /// the paper's system
    pub paper_system: Option<f64>,
    /// the paper's system over its peer; where the paper gives a range, its middle
    pub paper_ratio: Option<f64>,
    /// the range's ends, where the paper gives one
    pub paper_ratio_low: Option<f64>,
    /// the range's ends, where the paper gives one
    pub paper_ratio_high: Option<f64>,
    /// the ratio over the paper's
    pub ratio_of_ratios: Option<f64>,
}

impl PaperRow {
    /// Nothing known so far.
    pub fn new(name: impl Into<String>, unit: &str, digits: usize, better: Better) -> Self {
        Self {
            name: name.into(),
            unit: unit.to_owned(),
            digits,
            better,
            keyway_by: String::new(),
            peer_by: String::new(),
            sides: Sides::default(),
            paper_peer: None,
            paper_system: None,
            paper_ratio: None,
            paper_ratio_low: None,
            paper_ratio_high: None,
            ratio_of_ratios: None,
        }
    }

    /// Of a figure of the report.
    pub fn of_figure(name: String, figure: &str) -> Self {
        let (unit, digits, better) = report::shown(figure);
        Self::new(name, unit, digits, better)
    }

    /// With Keyway's measurements, in their order; NaN is none.
    #[must_use]
    pub fn keyway(self, by: &str, values: &[f64]) -> Self {
        self.measured(by, values, "", &[])
    }

    /// With both sides' measurements, those with the same place made one after the other; NaN is none. A peer of which nothing was measured
    /// is none.
    #[must_use]
    pub fn measured(mut self, keyway_by: &str, keyway: &[f64], peer_by: &str, peer: &[f64]) -> Self {
        keyway_by.clone_into(&mut self.keyway_by);
        self.peer_by = if peer.is_empty() { String::new() } else { peer_by.to_owned() };
        self.sides = Sides::of(keyway, peer);
        self.compared()
    }

    /// With the paper's figures.
    #[must_use]
    pub fn paper(mut self, peer: f64, system: f64) -> Self {
        (self.paper_peer, self.paper_system) = (Some(peer), Some(system));
        self.paper_ratio = finite(system / peer);
        self.compared()
    }

    /// With the paper's figure of its own system, where it names no peer's.
    #[must_use]
    pub fn paper_system(mut self, system: f64) -> Self {
        self.paper_system = Some(system);
        self
    }

    /// With the paper's ratio of its system to its peer, from `low` to `high`, where it gives no more than that.
    #[must_use]
    pub fn paper_ratio(mut self, low: f64, high: f64) -> Self {
        self.paper_ratio = Some(f64::midpoint(low, high));
        if low < high {
            (self.paper_ratio_low, self.paper_ratio_high) = (Some(low), Some(high));
        }
        self.compared()
    }

    fn compared(mut self) -> Self {
        let both = self.sides.ratio.zip(self.paper_ratio);
        self.ratio_of_ratios = both.and_then(|(here, there)| finite(here / there));
        self
    }
}

impl PaperTable {
    /// Without rows; whose figures the paper's are: its peer and its system.
    pub fn new(title: impl Into<String>, source: &str, [peer, system]: [&str; 2], differs: Vec<String>) -> Self {
        Self {
            preset: String::new(),
            title: title.into(),
            source: source.to_owned(),
            paper_peer: peer.to_owned(),
            paper_system: system.to_owned(),
            rows: Vec::new(),
            differs,
        }
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut text = format!("{}: {}\n  {}\n", self.preset, self.title, self.source);
        let theirs = [
            &format!("paper: {}", self.paper_peer),
            &self.paper_system,
            "ratio",
            "ratio of ratios",
        ];
        let head = ["", "peer", "Keyway", "ratio"].map(str::to_owned);
        if self.rows.iter().any(|row| row.paper_system.or(row.paper_ratio).is_some()) {
            let head = (head, theirs.map(str::to_owned));
            let lines = std::iter::once(head).chain(self.rows.iter().map(|row| (here(row), there(row))));
            text.push_str(&columns(&lines.map(|(here, there)| joined(here, there)).collect::<Vec<_>>()));
        } else {
            let lines: Vec<_> = std::iter::once(head).chain(self.rows.iter().map(here)).collect();
            text.push_str(&columns(&lines));
        }
        for (way, words) in [(Better::Lower, "less is better"), (Better::Higher, "more is better")] {
            // Writing to a string does not fail.
            let _ = match self.rows.iter().filter(|row| row.better == way).count() {
                0 => Ok(()),
                n if n == self.rows.len() => writeln!(text, "  {words}"),
                _ => writeln!(text, "  {words}: {}", units(&self.rows, way)),
            };
        }
        for (ours, theirs) in sides(&self.rows) {
            let _ = writeln!(
                text,
                "  Keyway by {ours}{}{theirs}",
                if theirs.is_empty() { "" } else { "; peer: " }
            );
        }
        for differs in &self.differs {
            let _ = writeln!(text, "  Differs: {differs}");
        }
        text
    }
}

fn joined(here: [String; 4], there: [String; 4]) -> [String; 8] {
    let ([a, b, c, d], [e, f, g, h]) = (here, there);
    [a, b, c, d, e, f, g, h]
}

fn here(row: &PaperRow) -> [String; 4] {
    let unit = if row.unit.is_empty() {
        String::new()
    } else {
        format!(", {}", row.unit)
    };
    [
        format!("{}{unit}", row.name),
        row.sides.of_peer().text(row.digits),
        row.sides.of_keyway().text(row.digits),
        significant(row.sides.ratio),
    ]
}

fn there(row: &PaperRow) -> [String; 4] {
    let plain = |value: Option<f64>| value.map_or("–".to_owned(), |value| value.to_string());
    let ratio = match (row.paper_ratio_low, row.paper_ratio_high) {
        (Some(low), Some(high)) => format!("{}–{}", significant(Some(low)), significant(Some(high))),
        _ => significant(row.paper_ratio),
    };
    [
        plain(row.paper_peer),
        plain(row.paper_system),
        ratio,
        significant(row.ratio_of_ratios),
    ]
}

/// With as many digits as say something.
fn significant(value: Option<f64>) -> String {
    value.map_or("–".to_owned(), |value| format!("{value:.0$}", digits(value)))
}

/// The units of what is better this way, each once.
fn units(rows: &[PaperRow], way: Better) -> String {
    let mut units: Vec<&str> = rows
        .iter()
        .filter(|row| row.better == way)
        .map(|row| row.unit.as_str())
        .collect();
    units.sort_unstable();
    units.dedup();
    units.join(", ")
}

/// What was compared with what, each pair once, in their order.
pub(crate) fn sides(rows: &[PaperRow]) -> Vec<(&str, &str)> {
    let mut sides: Vec<(&str, &str)> = Vec::new();
    for row in rows {
        let side = (row.keyway_by.as_str(), row.peer_by.as_str());
        if !side.0.is_empty() && !sides.contains(&side) {
            sides.push(side);
        }
    }
    sides
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A table with a row of every kind.
    pub(crate) fn table() -> PaperTable {
        PaperTable {
            preset: "hodor-fig5".to_owned(),
            title: "mean latency".to_owned(),
            source: "a paper, figure 5".to_owned(),
            paper_peer: "memcached".to_owned(),
            paper_system: "library".to_owned(),
            rows: vec![
                PaperRow::new("get", "µs", 2, Better::Lower)
                    .measured("library", &[1.0, 2.0, 4.0], "memcached, Unix socket", &[10.0, 20.0, 20.0])
                    .paper(13.0, 0.65),
                PaperRow::new("mixed", "k/s", 1, Better::Higher)
                    .measured("library", &[80.0], "memcached, Unix socket", &[100.0])
                    .paper_ratio(0.4, 0.6),
                PaperRow::new("alone", "k/s", 1, Better::Higher)
                    .keyway("library", &[f64::NAN, 5.0])
                    .paper_system(7.0),
            ],
            differs: vec!["The machine has 2 CPUs.".to_owned()],
        }
    }

    #[test]
    fn ratios_are_those_of_pairs_and_compared_with_the_papers() {
        let rows = table().rows;
        assert_eq!(
            rows[0].sides.of_ratio(),
            keyway_bench::medians::Spread {
                median: Some(0.1),
                low: Some(0.1),
                high: Some(0.2)
            }
        );
        assert!((rows[0].paper_ratio.unwrap() - 0.05).abs() < 1e-12);
        assert!((rows[0].ratio_of_ratios.unwrap() - 2.0).abs() < 1e-9);
        assert!((rows[1].ratio_of_ratios.unwrap() - 1.6).abs() < 1e-9);
        assert_eq!(
            (rows[2].sides.keyway, rows[2].sides.ratio, rows[2].ratio_of_ratios),
            (Some(5.0), None, None)
        );
    }

    #[test]
    fn a_table_of_what_the_paper_has_not_is_ours_alone() {
        let mut table = table();
        table.rows.truncate(1);
        assert!(table.text().contains("ratio of ratios"));
        table.rows[0].paper_system = None;
        table.rows[0].paper_ratio = None;
        assert!(!table.text().contains("ratio of ratios"));
    }

    #[test]
    fn text_has_both_sides_of_here_and_there() {
        let text = table().text();
        for part in [
            "hodor-fig5: mean latency",
            "2.00 (1.00–4.00)",
            "0.050",
            "0.40–0.60",
            "peer: memcached, Unix socket",
            "less is better: µs",
            "Differs: The machine has 2 CPUs.",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
    }
}
