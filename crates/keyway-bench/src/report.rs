//! What came out, for people and for programs.
//!
//! A [`Report`] is all of it: `--json` writes it down as it is, and reads it again for comparisons. A [`Row`] is one figure of one
//! cell: the median of its measurements on each side, with the lowest and the highest, and the ratio of Keyway to its peer: the
//! median of the ratios of neighbours in time, which a drifting machine moves least. A [`CellReport`] has what plots are made of.

use crate::html::bars::digits;
use crate::measurement::{Latencies, Measurement};
use crate::medians::{Sides, finite};
use crate::mix::{Kind, Workload, size_text};
use crate::plan::{Against, Pace, Plan};
use crate::run::{CellResult, Outcome, SideResult};
use crate::table::{Entry, Part, Table};
use crate::workload::Sizes;
use serde::{Deserialize, Serialize};
use std::fmt::Write;

/// Version of the format; raised when a reader of the present one could misunderstand.
pub const FORMAT: u32 = 1;

/// Everything that one invocation found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`FORMAT`]; its name says what the file is
    pub keyway_bench: u32,
    /// of Keyway
    pub version: String,
    /// when it began
    pub begun_unix_s: u64,
    /// CPUs, kernel, load
    pub machine: String,
    /// the command line
    pub command: String,
    /// how it was measured, a line for each way
    pub conditions: String,
    /// caches that were measured
    pub measured: Vec<Measured>,
    /// every figure
    pub rows: Vec<Row>,
    /// every cell, with its distributions
    pub cells: Vec<CellReport>,
    /// what the reader should know
    pub notes: Vec<String>,
    /// what went wrong; the figures of the measurements concerned are void, and the program's exit code is not 0
    pub failures: Vec<String>,
}

/// A cache that was measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Measured {
    /// `Keyway`, `memcached`, or `peer` for a server that ran already
    pub name: String,
    /// version, options, address
    pub about: String,
}

/// Whether more or less of it is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// as of a throughput
    Higher,
    /// as of a latency
    Lower,
}

/// One figure of one cell. What is not known is `None`, null in JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// cell and figure: the same in every report that measures the same
    pub name: String,
    /// the cell's name
    pub cell: String,
    /// the figure's
    pub figure: String,
    /// of both sides; empty for a plain number
    pub unit: String,
    /// digits after the point that are worth showing
    pub digits: usize,
    /// which way is better
    pub better: Better,
    /// what was measured
    #[serde(flatten)]
    pub sides: Sides,
}

/// One cell: what was asked how, and what each measurement gave.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CellReport {
    /// as in [`Row::cell`]
    pub name: String,
    /// what the workload is
    pub about: String,
    /// its name
    pub workload: String,
    /// what an answer that is timed answers, such as `a get of 128 B`
    #[serde(default)]
    pub operation: String,
    /// what else tells it from another cell
    #[serde(default)]
    pub setting: Option<String>,
    /// `library`, `unix`, `tcp`, `kernel-tcp`, `udp`, `udp-tcp`
    pub door: String,
    /// connections, sockets or threads
    pub connections: usize,
    /// requests in flight on each connection
    pub pipeline: usize,
    /// keys of one get
    pub multiget: usize,
    /// open loop: operations a second that were due
    pub rate: Option<f64>,
    /// items stored before
    pub items: u64,
    /// whether memory was limited, rather than large enough for all items
    pub memory_limited: bool,
    /// of each cache
    pub memory_mib: u64,
    /// Keyway's, then the peer's if there is one
    pub sides: Vec<SideReport>,
}

/// What the measurements of one side gave.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SideReport {
    /// as in [`Measured::name`]
    pub name: String,
    /// how it was reached, such as `over a Unix socket`
    #[serde(default)]
    pub way: String,
    /// memory that storing an item took
    pub bytes_per_item: Option<f64>,
    /// items that the cache held after the last measurement
    pub items_held: Option<u64>,
    /// in their order; those of both sides with the same place were made one after the other
    pub runs: Vec<RunReport>,
    /// of all measurements together: percentiles (0 to 100) and latencies, for a distribution's plot
    pub latency_us: Vec<(f64, f64)>,
}

/// One measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunReport {
    /// operations a second
    pub rate: f64,
    /// how many
    pub operations: u64,
    /// gets that found their item
    pub hits: u64,
    /// gets that did not
    pub misses: u64,
    /// open loop: due and never answered
    pub unanswered: u64,
    /// values that were never written, and replies that make no sense
    pub wrong_values: u64,
    /// requests answered with an error
    pub errors: u64,
    /// connections that ended or fell silent
    pub connections_lost: u64,
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

impl Report {
    /// Of what a plan gave; `command` is what was asked for.
    pub fn new(plan: &Plan, outcome: &Outcome, command: String) -> Self {
        Self::of(outcome, conditions(plan), command)
    }

    /// Of what several plans gave, measured as `conditions` says.
    pub fn of(outcome: &Outcome, conditions: String, command: String) -> Self {
        let measured = |(name, about): &(&'static str, String)| Measured {
            name: (*name).to_owned(),
            about: about.clone(),
        };
        Self {
            keyway_bench: FORMAT,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            begun_unix_s: outcome.begun_unix_s,
            machine: outcome.machine.clone(),
            command,
            conditions,
            measured: outcome.about.iter().map(measured).collect(),
            rows: outcome.cells.iter().flat_map(rows).collect(),
            cells: outcome.cells.iter().map(CellReport::new).collect(),
            notes: outcome.notes.clone(),
            failures: outcome.failures.clone(),
        }
    }

    /// What [`Self::to_json`] wrote.
    ///
    /// # Errors
    ///
    /// It is no report, or of another format.
    pub fn from_json(text: &str) -> Result<Self, String> {
        /// What tells the format, whatever else another format has.
        #[derive(Deserialize)]
        struct Head {
            keyway_bench: u32,
        }
        let refused = |e| format!("no report of keyway bench: {e}");
        let head: Head = serde_json::from_str(text).map_err(refused)?;
        if head.keyway_bench != FORMAT {
            return Err(format!(
                "a report of format {}; this program reads format {FORMAT}",
                head.keyway_bench
            ));
        }
        serde_json::from_str(text).map_err(refused)
    }

    /// The whole of it, for programs.
    ///
    /// # Errors
    ///
    /// None that a report can have; a format's library may fail in general.
    pub fn to_json(&self) -> Result<String, String> {
        serde_json::to_string_pretty(self).map_err(|e| e.to_string())
    }

    /// The whole of it, for people.
    pub fn parts(&self) -> Vec<Part> {
        let mut parts = vec![Part::Text(self.head())];
        for cell in &self.cells {
            parts.push(Part::Text("\n".to_owned()));
            parts.extend(table_parts(cell, &self.rows_of(cell)));
        }
        parts.extend([Part::Text("\n".to_owned()), self.summary(), Part::Text(self.tail())]);
        parts
    }

    /// What was measured where.
    pub fn head(&self) -> String {
        let mut text = format!("{}\n", self.machine);
        for measured in &self.measured {
            // Writing to a string does not fail.
            let _ = writeln!(text, "{}: {}", measured.name, measured.about);
        }
        let _ = writeln!(text, "{}", self.conditions);
        text
    }

    /// One line for each cell: throughput, and the latency that 99 of 100 did not exceed.
    pub fn summary(&self) -> Part {
        let mut lines = vec![
            ["", "Keyway, k/s", "peer, k/s", "ratio", "Keyway, p99 µs", "peer, p99 µs"]
                .map(str::to_owned)
                .to_vec(),
        ];
        let number = |value: Option<f64>, digits: usize| value.map_or("–".to_owned(), |value| format!("{value:.digits$}"));
        for cell in &self.cells {
            let (rate, p99) = (self.row(cell, "throughput"), self.row(cell, "latency, p99"));
            lines.push(vec![
                cell.name.clone(),
                number(rate.and_then(|row| row.sides.keyway), 1),
                number(rate.and_then(|row| row.sides.peer), 1),
                number(rate.and_then(|row| row.sides.ratio), 2),
                number(p99.and_then(|row| row.sides.keyway), 2),
                number(p99.and_then(|row| row.sides.peer), 2),
            ]);
        }
        Part::Table(lines)
    }

    /// What the reader must know.
    pub fn tail(&self) -> String {
        let mut text = String::new();
        for (what, lines) in [("NOTE", &self.notes), ("FAILED", &self.failures)] {
            for line in lines {
                let _ = writeln!(text, "\n{what}: {line}");
            }
        }
        text
    }

    /// The rows of a cell.
    pub fn rows_of(&self, cell: &CellReport) -> Vec<&Row> {
        self.rows.iter().filter(|row| row.cell == cell.name).collect()
    }

    /// One row of a cell.
    pub fn row(&self, cell: &CellReport, figure: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.cell == cell.name && row.figure == figure)
    }
}

/// One cell's table, to be shown while others are still being measured.
pub fn cell_parts(cell: &CellResult) -> [Part; 2] {
    let rows = rows(cell);
    table_parts(&CellReport::new(cell), &rows.iter().collect::<Vec<_>>())
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
fn rows(cell: &CellResult) -> Vec<Row> {
    let of_side = |side: Option<&SideResult>, figure: &Figure| side.map_or_else(Vec::new, |side| values(side, figure.name));
    let rows = FIGURES.iter().map(|figure| {
        let (keyway, peer) = (of_side(cell.sides.first(), figure), of_side(cell.sides.get(1), figure));
        let name = cell.cell.name();
        Row {
            name: format!("{name}: {}", figure.name),
            cell: name,
            figure: figure.name.to_owned(),
            unit: figure.unit.to_owned(),
            digits: figure.digits,
            better: figure.better,
            sides: Sides::of(&keyway, &peer),
        }
    });
    rows.filter(|row| row.sides.keyway.or(row.sides.peer).is_some()).collect()
}

impl CellReport {
    fn new(ran: &CellResult) -> Self {
        let cell = &ran.cell;
        Self {
            name: cell.name(),
            about: cell.workload.about.clone(),
            workload: cell.workload.name.clone(),
            operation: operation(&cell.workload),
            setting: cell.setting.clone(),
            door: cell.door.name().to_owned(),
            connections: cell.connections,
            pipeline: cell.depth,
            multiget: cell.keys_per_get,
            rate: match cell.pace {
                Pace::Rate(rate) => Some(rate),
                Pace::Closed => None,
            },
            items: cell.items,
            memory_limited: cell.memory_mib.is_some(),
            memory_mib: cell.memory(),
            sides: ran.sides.iter().map(SideReport::new).collect(),
        }
    }
}

impl SideReport {
    fn new(side: &SideResult) -> Self {
        let mut all = Latencies::new();
        side.runs.iter().for_each(|ran| all.add(&ran.latencies()));
        let at = |percent: f64| finite(all.percentile_us(percent)).map(|us| (percent, us));
        Self {
            name: side.name.to_owned(),
            way: side.way.to_owned(),
            bytes_per_item: side.bytes_per_item,
            items_held: side.items_held,
            runs: side.runs.iter().map(RunReport::new).collect(),
            latency_us: CDF_PERCENTS.into_iter().filter_map(at).collect(),
        }
    }
}

impl RunReport {
    fn new(ran: &Measurement) -> Self {
        Self {
            rate: finite(ran.rate()).unwrap_or(0.0),
            operations: ran.operations,
            hits: ran.hits,
            misses: ran.misses,
            unanswered: ran.unanswered,
            wrong_values: ran.wrong.values,
            errors: ran.wrong.errors,
            connections_lost: ran.wrong.connections,
        }
    }
}

/// What an answer that is timed answers: of gets and others, a get.
fn operation(workload: &Workload) -> String {
    let size = match workload.sizes {
        Sizes::Fixed(bytes) | Sizes::Both(_, bytes) => format!(" of {}", size_text(bytes)),
        _ => String::new(),
    };
    match workload.mix.as_slice() {
        _ if workload.has(Kind::Get) => format!("a get{size}"),
        [(Kind::Set | Kind::Insert | Kind::Add, _)] => format!("a set{size}"),
        [(Kind::Delete | Kind::Remove, _)] => "a delete".to_owned(),
        [(Kind::Incr, _)] => "an increment".to_owned(),
        _ => "an operation".to_owned(),
    }
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
    /// What it is, with its unit.
    pub fn title(&self) -> String {
        let unit = if self.unit.is_empty() { "" } else { ", " };
        format!("{}{unit}{}", self.figure, self.unit)
    }

    /// Keyway's median and spread.
    pub fn own(&self) -> Entry {
        Entry::of(self.sides.of_keyway(), self.digits)
    }

    /// The ratio, in the colour of the side that is ahead.
    pub fn ratio(&self) -> Entry {
        Entry::of(self.sides.of_ratio(), digits(self.sides.ratio.unwrap_or(1.0))).coloured(self.ahead())
    }

    /// Which side is ahead by more than the spread: a class.
    pub fn ahead(&self) -> &'static str {
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

/// The figures of one cell.
pub fn table(cell: &CellReport, rows: &[&Row]) -> Table {
    let sides = cell.sides.iter().take(2);
    let mut head = vec![(String::new(), String::new())];
    head.extend(sides.map(|side| (side.name.clone(), side.way.clone())));
    let has_peer = cell.sides.len() > 1;
    head.extend(has_peer.then(|| ("ratio".to_owned(), String::new())));
    let line = |row: &&Row| {
        let mut line = vec![row.title().into(), row.own()];
        if has_peer {
            line.extend([Entry::of(row.sides.of_peer(), row.digits), row.ratio()]);
        }
        line
    };
    Table {
        head,
        lines: rows.iter().map(line).collect(),
    }
}

fn table_parts(cell: &CellReport, rows: &[&Row]) -> [Part; 2] {
    let (items, mib) = (cell.items, cell.memory_mib);
    let about = format!("{} ({}; {items} items, {mib} MiB)\n", cell.name, cell.about);
    [Part::Text(about), table(cell, rows).part()]
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::plan::{Cell, Door, tests::plan};
    use crate::workloads;
    use std::time::Duration;

    /// Of one cell with these rates, each measured for a second, beside memcached 1.6.18.
    pub(crate) fn report_of(keyway: &[f64], peer: &[f64]) -> Report {
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "rates are small and positive"
        )]
        let side = |name, rates: &[f64]| SideResult {
            name,
            bytes_per_item: None,
            way: "over TCP",
            items_held: None,
            runs: rates
                .iter()
                .map(|rate| ran(*rate as u64, if name == "Keyway" { 10 } else { 40 }))
                .collect(),
        };
        let cell = Cell::new(workloads::find("ycsb-c").unwrap(), 1000, Door::Tcp, 4);
        let sides = vec![side("Keyway", keyway), side("memcached", peer)];
        let about = vec![
            ("Keyway", "0.1.0, --threads 2".to_owned()),
            ("memcached", "1.6.18, -t 2".to_owned()),
        ];
        let plan = plan(cell.clone());
        let outcome = Outcome {
            cells: vec![CellResult { cell, sides }],
            about,
            ..Outcome::default()
        };
        Report::new(&plan, &outcome, "keyway bench".to_owned())
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
    fn slowing() -> Report {
        let mut report = report_of(&[4000.0, 2000.0, 1000.0], &[2000.0, 1000.0, 500.0]);
        report.notes.push("a note".to_owned());
        report
    }

    #[test]
    fn a_ratio_is_that_of_neighbours_in_time() {
        let rows = slowing().rows;
        let throughput = &rows[0];
        assert_eq!((throughput.sides.keyway, throughput.sides.peer), (Some(2.0), Some(1.0)));
        assert_eq!(
            (throughput.sides.ratio_low, throughput.sides.ratio_high),
            (Some(2.0), Some(2.0))
        );
        let p50 = rows.iter().find(|row| row.figure == "latency, p50").unwrap();
        assert!((p50.sides.ratio.unwrap() - 0.25).abs() < 0.001);
    }

    #[test]
    fn what_was_not_measured_is_left_out() {
        let rows = slowing().rows;
        let has = |figure: &str| rows.iter().any(|row| row.figure == figure);
        assert!(has("latency, p99") && !has("latency, p99.99"), "500 to 4,000 measurements");
        assert!(!has("server CPU an operation") && !has("gets that missed") && !has("memory an item"));
    }

    #[test]
    fn json_has_the_rows_that_programs_read_and_is_read_again() {
        let report = slowing();
        let json = report.to_json().unwrap();
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        let row = &value["rows"][0];
        assert_eq!(row["name"], "ycsb-c, tcp, 4 connections: throughput");
        assert_eq!((row["unit"].as_str(), row["ratio"].as_f64()), (Some("k/s"), Some(2.0)));
        assert_eq!((row["keyway"].as_f64(), row["peer"].as_f64()), (Some(2.0), Some(1.0)));
        assert_eq!(row["better"], "higher");
        assert_eq!(value["cells"][0]["sides"][1]["runs"][0]["operations"], 2000);
        assert_eq!(Report::from_json(&json), Ok(report));
        assert!(Report::from_json("{}").unwrap_err().contains("no report"));
        assert!(
            Report::from_json("{\"keyway_bench\": 2}").unwrap_err().contains("format 2"),
            "whatever else it has"
        );
    }

    #[test]
    fn text_has_everything_that_people_must_know() {
        let mut report = slowing();
        report.failures.push("it broke".to_owned());
        let text = Part::texts(&report.parts());
        for part in ["memcached", "2.00", "NOTE: a note", "FAILED: it broke", "1000 items"] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
    }
}
