//! What came out, for people and for programs.
//!
//! A [`Row`] is one figure of one cell: the median of its measurements on each side, with the lowest and the highest, and the ratio of
//! Keyway to its peer: the median of the ratios of neighbours in time, which a drifting machine moves least.

use crate::measurement::{Latencies, Measurement};
use crate::medians::{Sides, finite};
use crate::plan::{Against, Pace, Plan};
use crate::run::{CellResult, Outcome, SideResult};
use crate::table::{Part, digits};
use serde::Serialize;
use serde_json::{Value, json};
use std::fmt::Write;

/// Version of the JSON's format; raised when a reader of the present one could misunderstand.
const FORMAT: u32 = 1;

/// Everything that one invocation found.
#[derive(Debug)]
pub struct Report<'a> {
    /// what was measured
    pub outcome: &'a Outcome,
    /// how, a line for each way
    pub conditions: String,
    /// the command line
    pub command: String,
    /// every figure of every cell
    pub rows: Vec<Row>,
}

/// Whether more or less of it is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// as of a throughput
    Higher,
    /// as of a latency
    Lower,
}

/// One figure of one cell. What is not known is `None`, null in JSON.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// cell and figure: the same in every report that measures the same
    pub name: String,
    /// the cell's name
    pub cell: String,
    /// the figure's
    pub figure: &'static str,
    /// of both sides; empty for a plain number
    pub unit: &'static str,
    /// digits after the point that are worth showing
    pub digits: usize,
    /// which way is better
    pub better: Better,
    /// what was measured
    #[serde(flatten)]
    pub sides: Sides,
}

/// A figure that every measurement gives, or NaN.
struct Figure {
    name: &'static str,
    unit: &'static str,
    digits: usize,
    better: Better,
    of: fn(&SideResult, &Measurement, &Latencies) -> f64,
}

#[rustfmt::skip]
const FIGURES: &[Figure] = &[
    Figure { name: "throughput", unit: "k/s", digits: 1, better: Better::Higher, of: |_, ran, _| ran.rate() / 1e3 },
    Figure { name: "latency, mean", unit: "µs", digits: 2, better: Better::Lower, of: |_, _, all| all.mean_us() },
    Figure { name: "latency, p50", unit: "µs", digits: 2, better: Better::Lower, of: |_, _, all| percentile(all, 50.0) },
    Figure { name: "latency, p99", unit: "µs", digits: 2, better: Better::Lower, of: |_, _, all| percentile(all, 99.0) },
    Figure { name: "latency, p99.9", unit: "µs", digits: 2, better: Better::Lower, of: |_, _, all| percentile(all, 99.9) },
    Figure { name: "latency, p99.99", unit: "µs", digits: 2, better: Better::Lower, of: |_, _, all| percentile(all, 99.99) },
    Figure { name: "latency, longest", unit: "µs", digits: 0, better: Better::Lower, of: |_, _, all| all.max_us() },
    Figure { name: "latency of gets, mean", unit: "µs", digits: 2, better: Better::Lower, of: |_, ran, _| if ran.writes.count() > 0 { ran.reads.mean_us() } else { f64::NAN } },
    Figure { name: "latency of the others, mean", unit: "µs", digits: 2, better: Better::Lower, of: |_, ran, _| if ran.reads.count() > 0 { ran.writes.mean_us() } else { f64::NAN } },
    Figure { name: "server CPU an operation", unit: "µs", digits: 2, better: Better::Lower, of: |_, ran, _| per_operation(ran, ran.server.map(|used| used.cpu.as_secs_f64() * 1e6)) },
    Figure { name: "server context switches an operation", unit: "", digits: 3, better: Better::Lower, of: |_, ran, _| per_operation(ran, ran.server.map(|used| count(used.switches))) },
    Figure { name: "client CPU an operation", unit: "µs", digits: 2, better: Better::Lower, of: |_, ran, _| per_operation(ran, Some(ran.client_cpu.as_secs_f64() * 1e6)) },
    Figure { name: "client and server CPU an operation", unit: "µs", digits: 2, better: Better::Lower, of: |_, ran, _| per_operation(ran, ran.server.map(|used| (used.cpu + ran.client_cpu).as_secs_f64() * 1e6)) },
    Figure { name: "machine CPU an operation", unit: "µs", digits: 2, better: Better::Lower, of: |_, ran, _| per_operation(ran, ran.machine.map(|used| used.as_secs_f64() * 1e6)) },
    Figure { name: "gets answered in the kernel", unit: "%", digits: 1, better: Better::Higher, of: |_, ran, _| ran.in_kernel.filter(|_| ran.reads.count() > 0).map_or(f64::NAN, |hits| count(hits) / count(ran.reads.count()) * 100.0) },
    Figure { name: "client's busiest thread", unit: "% of a CPU", digits: 0, better: Better::Lower, of: |_, ran, _| ran.client_busiest * 100.0 },
    Figure { name: "gets that missed", unit: "%", digits: 3, better: Better::Lower, of: |_, ran, _| if ran.misses > 0 { count(ran.misses) / count(ran.hits + ran.misses) * 100.0 } else { f64::NAN } },
    Figure { name: "datagrams lost", unit: "%", digits: 3, better: Better::Lower, of: |_, ran, _| if ran.dropped > 0 { count(ran.dropped) / count(ran.operations + ran.dropped) * 100.0 } else { f64::NAN } },
    Figure { name: "items held", unit: "", digits: 0, better: Better::Higher, of: |side, ran, _| if ran.misses > 0 { side.items_held.map_or(f64::NAN, count) } else { f64::NAN } },
    Figure { name: "memory an item", unit: "B", digits: 1, better: Better::Lower, of: |side, _, _| side.bytes_per_item.unwrap_or(f64::NAN) },
];

/// Percentiles that a distribution is written down with.
const CDF_PERCENTS: [f64; 22] = [
    0.0, 1.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 75.0, 80.0, 85.0, 90.0, 95.0, 98.0, 99.0, 99.5, 99.9, 99.95, 99.99,
    100.0,
];

#[allow(clippy::cast_precision_loss, reason = "counts are below 2^53")]
fn count(n: u64) -> f64 {
    n as f64
}

/// NaN where so few were recorded that no whole one lies beyond the percentile.
fn percentile(all: &Latencies, percent: f64) -> f64 {
    if count(all.count()) * (1.0 - percent / 100.0) < 1.0 {
        return f64::NAN;
    }
    all.percentile_us(percent)
}

fn per_operation(ran: &Measurement, used: Option<f64>) -> f64 {
    match used {
        Some(used) if ran.operations > 0 => used / count(ran.operations),
        _ => f64::NAN,
    }
}

impl<'a> Report<'a> {
    /// Of what one or several plans gave, measured as `conditions` says; `command` is what was asked for.
    pub fn new(outcome: &'a Outcome, conditions: String, command: String) -> Self {
        let rows = outcome.cells.iter().flat_map(rows).collect();
        Self {
            outcome,
            conditions,
            command,
            rows,
        }
    }

    /// The whole of it, for programs.
    pub fn json(&self) -> Value {
        let outcome = self.outcome;
        let measured = outcome
            .about
            .iter()
            .map(|(name, about)| json!({ "name": name, "about": about }));
        json!({
            "keyway_bench": FORMAT,
            "version": env!("CARGO_PKG_VERSION"),
            "begun_unix_s": outcome.begun_unix_s,
            "machine": outcome.machine,
            "command": self.command,
            "conditions": self.conditions,
            "measured": measured.collect::<Vec<_>>(),
            "rows": self.rows,
            "cells": outcome.cells.iter().map(cell_json).collect::<Vec<_>>(),
            "notes": outcome.notes,
            "failures": outcome.failures,
        })
    }

    /// What was measured where.
    pub fn head(&self) -> String {
        let mut text = format!("{}\n", self.outcome.machine);
        for (name, about) in &self.outcome.about {
            // Writing to a string does not fail.
            let _ = writeln!(text, "{name}: {about}");
        }
        let _ = writeln!(text, "{}", self.conditions);
        text
    }

    /// One line for each cell: throughput, and the latency that 99 of 100 did not exceed.
    pub fn summary(&self) -> Part {
        let head = ["", "Keyway, k/s", "peer, k/s", "ratio", "Keyway, p99 µs", "peer, p99 µs"].map(str::to_owned);
        let number = |value: Option<f64>, digits: usize| value.map_or("–".to_owned(), |value| format!("{value:.digits$}"));
        let line = |cell: &CellResult| {
            let of = |figure| self.row(cell, figure).map_or_else(Sides::default, |row| row.sides);
            let (rate, p99) = (of("throughput"), of("latency, p99"));
            vec![
                cell.cell.name(),
                number(rate.keyway, 1),
                number(rate.peer, 1),
                number(rate.ratio, 2),
                number(p99.keyway, 2),
                number(p99.peer, 2),
            ]
        };
        Part::Table(
            std::iter::once(head.to_vec())
                .chain(self.outcome.cells.iter().map(line))
                .collect(),
        )
    }

    /// What the reader must know.
    pub fn tail(&self) -> String {
        let of = |what: &str, lines: &[String]| lines.iter().map(|line| format!("\n{what}: {line}\n")).collect::<String>();
        of("NOTE", &self.outcome.notes) + &of("FAILED", &self.outcome.failures)
    }

    /// One row of a cell.
    pub fn row(&self, cell: &CellResult, figure: &str) -> Option<&Row> {
        let name = cell.cell.name();
        self.rows.iter().find(|row| row.cell == name && row.figure == figure)
    }
}

/// A cell, and what each measurement gave.
fn cell_json(ran: &CellResult) -> Value {
    let cell = &ran.cell;
    json!({
        "name": cell.name(),
        "about": cell.workload.about,
        "workload": cell.workload.name,
        "door": cell.door.name(),
        "connections": cell.connections,
        "pipeline": cell.depth,
        "multiget": cell.keys_per_get,
        "rate": match cell.pace {
            Pace::Rate(rate) => Some(rate),
            Pace::Closed => None,
        },
        "items": cell.items,
        "memory_mib": cell.memory(),
        "sides": ran.sides.iter().map(side_json).collect::<Vec<_>>(),
    })
}

fn side_json(side: &SideResult) -> Value {
    let mut all = Latencies::new();
    side.runs.iter().for_each(|ran| all.add(&ran.latencies()));
    let at = |percent: f64| finite(all.percentile_us(percent)).map(|us| (percent, us));
    let run = |ran: &Measurement| {
        json!({
            "rate": finite(ran.rate()).unwrap_or(0.0),
            "operations": ran.operations,
            "hits": ran.hits,
            "misses": ran.misses,
            "unanswered": ran.unanswered,
            "wrong_values": ran.wrong.values,
            "errors": ran.wrong.errors,
            "connections_lost": ran.wrong.connections,
        })
    };
    json!({
        "name": side.name,
        "way": side.way,
        "bytes_per_item": side.bytes_per_item,
        "items_held": side.items_held,
        "runs": side.runs.iter().map(run).collect::<Vec<_>>(),
        "latency_us": CDF_PERCENTS.into_iter().filter_map(at).collect::<Vec<_>>(),
    })
}

/// The table of one cell.
pub fn cell_parts(ran: &CellResult) -> [Part; 2] {
    let (name, about, items, mib) = (ran.cell.name(), &ran.cell.workload.about, ran.cell.items, ran.cell.memory());
    let mut lines = vec![
        [
            &[String::new()][..],
            &ran.sides.iter().map(|side| side.name.to_owned()).collect::<Vec<_>>(),
        ]
        .concat(),
    ];
    lines[0].extend((ran.sides.len() > 1).then(|| "ratio".to_owned()));
    lines.extend(rows(ran).iter().map(|row| row.entries(ran.sides.len() > 1)));
    [
        Part::Text(format!("{name} ({about}; {items} items, {mib} MiB)\n")),
        Part::Table(lines),
    ]
}

/// What each measurement of a side gave of the figure of this name (as in [`Row::figure`]), NaN where it gave none.
pub fn values(side: &SideResult, figure: &str) -> Vec<f64> {
    let of = |figure: &Figure| side.runs.iter().map(|ran| (figure.of)(side, ran, &ran.latencies())).collect();
    FIGURES.iter().find(|known| known.name == figure).map_or_else(Vec::new, of)
}

/// Unit and digits of the figure of this name, and which way is better; of another one what a plain number has.
pub fn shown(figure: &str) -> (&'static str, usize, Better) {
    let found = FIGURES.iter().find(|known| known.name == figure);
    found.map_or(("", 2, Better::Higher), |figure| (figure.unit, figure.digits, figure.better))
}

/// The rows of a cell: every figure that at least one side has.
pub(crate) fn rows(cell: &CellResult) -> Vec<Row> {
    let of_side = |side: Option<&SideResult>, figure: &Figure| side.map_or_else(Vec::new, |side| values(side, figure.name));
    let rows = FIGURES.iter().map(|figure| {
        let (keyway, peer) = (of_side(cell.sides.first(), figure), of_side(cell.sides.get(1), figure));
        let name = cell.cell.name();
        Row {
            name: format!("{name}: {}", figure.name),
            cell: name,
            figure: figure.name,
            unit: figure.unit,
            digits: figure.digits,
            better: figure.better,
            sides: Sides::of(&keyway, &peer),
        }
    });
    rows.filter(|row| row.sides.keyway.or(row.sides.peer).is_some()).collect()
}

/// How it was measured, in one line.
pub fn conditions(plan: &Plan) -> String {
    let cpus = |cpus: &[usize]| match cpus {
        [] => "any CPU".to_owned(),
        cpus => format!("CPU {}", cpus.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")),
    };
    let peer = match &plan.against {
        Against::Nothing => "",
        Against::Memcached | Against::Server(_) => ", sides in turn",
    };
    format!(
        "{} measurements of {:?} each after {:?} of warm-up{peer}; medians (lowest–highest); servers on {}, client on {}",
        plan.repetitions,
        plan.length,
        plan.warmup,
        cpus(&plan.server_cpus),
        cpus(&plan.client_cpus),
    )
}

impl Row {
    /// The figure with its unit, Keyway's median and spread, and beside a peer that one's and the ratio.
    pub(crate) fn entries(&self, has_peer: bool) -> Vec<String> {
        let unit = if self.unit.is_empty() { "" } else { ", " };
        let mut entries = vec![
            format!("{}{unit}{}", self.figure, self.unit),
            self.sides.of_keyway().text(self.digits),
        ];
        if has_peer {
            let ratio = digits(self.sides.ratio.unwrap_or(1.0));
            entries.extend([self.sides.of_peer().text(self.digits), self.sides.of_ratio().text(ratio)]);
        }
        entries
    }

    /// Which side is ahead by more than the spread: a class.
    pub(crate) fn ahead(&self) -> &'static str {
        let (Some(low), Some(high)) = (self.sides.ratio_low, self.sides.ratio_high) else {
            return "even";
        };
        match (self.better, low > 1.0, high < 1.0) {
            (Better::Higher, true, _) | (Better::Lower, _, true) => "keyway",
            (Better::Higher, _, true) | (Better::Lower, true, _) => "peer",
            _ => "even",
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::plan::{Cell, Door};
    use crate::workloads;
    use std::time::Duration;

    /// Of one cell with these rates, each measured for a second, beside memcached 1.6.18.
    pub(crate) fn outcome_of(keyway: &[u64], peer: &[u64]) -> Outcome {
        let side = |name, rates: &[u64], latency_us| SideResult {
            name,
            bytes_per_item: None,
            way: "over TCP",
            items_held: None,
            runs: rates.iter().map(|rate| ran(*rate, latency_us)).collect(),
        };
        let cell = Cell::new(workloads::find("ycsb-c").unwrap(), 1000, Door::Tcp, 4);
        Outcome {
            cells: vec![CellResult {
                cell,
                sides: vec![side("Keyway", keyway, 10), side("memcached", peer, 40)],
            }],
            about: vec![
                ("Keyway", "0.1.0, --threads 2".to_owned()),
                ("memcached", "1.6.18, -t 2".to_owned()),
            ],
            notes: vec!["a note".to_owned()],
            ..Outcome::default()
        }
    }

    fn ran(operations: u64, latency_us: u64) -> Measurement {
        let mut ran = Measurement {
            operations,
            hits: operations,
            elapsed: Duration::from_secs(1),
            ..Measurement::default()
        };
        ran.reads.record_n(latency_us * 1000, operations);
        ran
    }

    /// The machine gets slower from measurement to measurement; Keyway is twice as fast in each pair.
    fn slowing() -> Outcome {
        outcome_of(&[4000, 2000, 1000], &[2000, 1000, 500])
    }

    pub(crate) fn report(outcome: &Outcome) -> Report<'_> {
        Report::new(outcome, "3 measurements".to_owned(), "keyway bench".to_owned())
    }

    #[test]
    fn a_ratio_is_that_of_neighbours_in_time() {
        let outcome = slowing();
        let rows = report(&outcome).rows;
        let throughput = &rows[0];
        assert_eq!((throughput.sides.keyway, throughput.sides.peer), (Some(2.0), Some(1.0)));
        assert_eq!(
            (throughput.sides.ratio_low, throughput.sides.ratio_high),
            (Some(2.0), Some(2.0))
        );
        let p50 = rows.iter().find(|row| row.figure == "latency, p50").unwrap();
        assert!((p50.sides.ratio.unwrap() - 0.25).abs() < 0.001);
        assert_eq!((throughput.ahead(), p50.ahead()), ("keyway", "keyway"));
    }

    #[test]
    fn what_was_not_measured_is_left_out() {
        let outcome = slowing();
        let rows = report(&outcome).rows;
        let has = |figure: &str| rows.iter().any(|row| row.figure == figure);
        assert!(has("latency, p99") && !has("latency, p99.99"), "500 to 4,000 measurements");
        assert!(!has("server CPU an operation") && !has("gets that missed") && !has("memory an item"));
    }

    #[test]
    fn json_has_the_rows_that_programs_read() {
        let value = report(&slowing()).json();
        let row = &value["rows"][0];
        assert_eq!(row["name"], "ycsb-c, tcp, 4 connections: throughput");
        assert_eq!((row["unit"].as_str(), row["ratio"].as_f64()), (Some("k/s"), Some(2.0)));
        assert_eq!((row["keyway"].as_f64(), row["peer"].as_f64()), (Some(2.0), Some(1.0)));
        assert_eq!(row["better"], "higher");
        assert_eq!(value["cells"][0]["sides"][1]["runs"][0]["operations"], 2000);
    }

    #[test]
    fn text_has_everything_that_people_must_know() {
        let mut outcome = slowing();
        outcome.failures.push("it broke".to_owned());
        let report = report(&outcome);
        let mut text = report.head() + &report.summary().text() + &report.tail();
        text += &Part::texts(&cell_parts(&outcome.cells[0]));
        for part in [
            "memcached",
            "2.0 (1.0–4.0)",
            "NOTE: a note",
            "FAILED: it broke",
            "1000 items",
            "1.6.18",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
    }
}
