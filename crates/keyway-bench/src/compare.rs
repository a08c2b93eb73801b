//! What changed between two reports: every figure that both have, by its row's name, with a verdict that noise does not earn.
//!
//! A figure is *better* or *worse* if its median moved by more than the threshold and by more than both spreads together, each as a
//! factor: a figure that scatters must move further, and one that was measured three times without any change is called changed less
//! than twice in a hundred times whatever its noise. Where both reports measured the same version of a peer, what is judged is the
//! ratio to it: the peer then stands for the machine, and a machine that was busier in one of the runs is no regression.

use crate::medians::{Sides, Spread};
use crate::report::{Better, Report, Row};
use crate::table::{Entry, Part, Table};
use std::collections::HashMap;
use std::fmt::Write;

/// Percent by which a figure must move, by default: what repeated runs on a quiet machine do not reach.
pub const THRESHOLD_PERCENT: f64 = 10.0;

/// Figures that are shown and not judged: the client's own, the whole machine's, and those that few requests decide.
const NOT_JUDGED: [&str; 6] = [
    "client CPU an operation",
    "machine CPU an operation",
    "client's busiest thread",
    "latency, longest",
    "latency, p99.9",
    "latency, p99.99",
];

/// Shares that have a row only where they are above 0 %, and what they must move by to count, in percents of all.
const NONE_IS_ZERO: [&str; 2] = ["gets that missed", "datagrams lost"];
const SHARE_MOVED_MIN: f64 = 0.1;

/// What changed from an old report to a new one.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// when the old one was begun, Unix seconds
    pub old_begun_unix_s: u64,
    /// percent
    pub threshold: f64,
    /// rows of both, in the new report's order
    pub changes: Vec<Change>,
    /// names of rows that only the old one has
    pub gone: Vec<String>,
    /// names of rows that only the new one has
    pub appeared: Vec<String>,
    /// what makes the two less comparable
    pub notes: Vec<String>,
}

/// A figure that both reports have.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// as it was
    pub old: Row,
    /// as it is
    pub new: Row,
    /// new over old: of the ratio to the peer where that is judged, of Keyway's figure elsewhere
    pub factor: Option<f64>,
    /// whether the ratio to the peer is what is judged
    pub beside_peer: bool,
    /// what is to be thought of it
    pub verdict: Verdict,
}

/// What a change is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// beyond threshold and noise
    Better,
    /// beyond threshold and noise
    Worse,
    /// not more than the threshold
    Same,
    /// more than the threshold, and not more than both spreads together
    Noise,
    /// of a figure that is no measure of a cache
    NotJudged,
}

impl Verdict {
    /// One word, or none for what needs no look.
    pub fn word(self) -> &'static str {
        match self {
            Self::Better => "better",
            Self::Worse => "WORSE",
            Self::Noise => "noise",
            Self::Same | Self::NotJudged => "",
        }
    }

    /// Of its colour on the page.
    fn class(self) -> &'static str {
        match self {
            Self::Better => "keyway",
            Self::Worse => "wrong",
            Self::Same | Self::Noise | Self::NotJudged => "even",
        }
    }
}

/// A median with the lowest and the highest measurement.
#[derive(Clone, Copy)]
struct Known {
    median: f64,
    low: f64,
    high: f64,
}

impl Known {
    fn of(spread: Spread) -> Option<Self> {
        let median = spread.median?;
        let (low, high) = spread.ends().unwrap_or((median, median));
        Some(Self { median, low, high })
    }

    /// From the lowest to the highest: a factor where there is one, so that half and twice are equally far.
    fn width(self, factors: bool) -> f64 {
        if factors {
            (self.high / self.low).ln()
        } else {
            self.high - self.low
        }
    }
}

impl Comparison {
    /// Of two reports, with a threshold in percent.
    ///
    /// # Errors
    ///
    /// They have no row in common.
    pub fn new(old: &Report, new: &Report, threshold: f64) -> Result<Self, String> {
        let (old_rows, new_rows) = (rows(old), rows(new));
        let before: HashMap<&str, &Row> = by_name(&old_rows);
        let after: HashMap<&str, &Row> = by_name(&new_rows);
        let same_peer = peers(old) == peers(new);
        let judge = |old: &Row, new: &Row| judge(old.clone(), new.clone(), same_peer, threshold);
        let (mut changes, mut appeared, mut gone) = (Vec::new(), Vec::new(), Vec::new());
        for row in &new_rows {
            match before.get(row.name.as_str()) {
                Some(old) => changes.push(judge(old, row)),
                None if is_zero_in(old, row) => changes.push(judge(&zero(row), row)),
                None => appeared.push(row.name.clone()),
            }
        }
        for row in old_rows.iter().filter(|row| !after.contains_key(row.name.as_str())) {
            if is_zero_in(new, row) {
                changes.push(judge(row, &zero(row)));
            } else {
                gone.push(row.name.clone());
            }
        }
        if changes.is_empty() {
            return Err(
                "the two reports have no figure in common: they measured different workloads, doors or shapes".to_owned(),
            );
        }
        Ok(Self {
            old_begun_unix_s: old.begun_unix_s,
            threshold,
            changes,
            gone,
            appeared,
            notes: notes(old, new, same_peer),
        })
    }

    /// What got worse.
    pub fn worse(&self) -> Vec<&Change> {
        self.with(Verdict::Worse)
    }

    /// What has this verdict.
    pub fn with(&self, verdict: Verdict) -> Vec<&Change> {
        self.changes.iter().filter(|change| change.verdict == verdict).collect()
    }

    /// All of it, for people: a table for each cell, what is in one report only, and the count.
    pub fn parts(&self) -> Vec<Part> {
        let mut parts = Vec::new();
        for cell in self.changes.chunk_by(|a, b| a.new.cell == b.new.cell) {
            let table = table(&cell.iter().collect::<Vec<_>>(), Row::title);
            parts.extend([
                Part::Text(format!("{}\n", cell[0].new.cell)),
                table.part(),
                Part::Text("\n".to_owned()),
            ]);
        }
        let mut text = String::new();
        for (what, names) in [
            ("only in the old report", &self.gone),
            ("only in the new report", &self.appeared),
        ] {
            if !names.is_empty() {
                // Writing to a string does not fail.
                let _ = writeln!(text, "{what}:\n  {}", names.join("\n  "));
            }
        }
        for note in &self.notes {
            let _ = writeln!(text, "NOTE: {note}");
        }
        let _ = writeln!(text, "{}", self.summary());
        parts.push(Part::Text(text));
        parts
    }

    /// How many of what, in one line.
    pub fn summary(&self) -> String {
        let [better, worse, noise] = [Verdict::Better, Verdict::Worse, Verdict::Noise].map(|verdict| self.with(verdict).len());
        format!(
            "Of {} figures {better} are better and {worse} worse by more than {} % and more than both spreads together; {noise} more moved by no \
             more than their noise; {} are gone, {} are new",
            self.changes.len(),
            self.threshold,
            self.gone.len(),
            self.appeared.len()
        )
    }
}

/// All that says something of Keyway.
fn rows(report: &Report) -> Vec<Row> {
    let all = report.rows.iter().cloned();
    all.filter(|row| row.sides.keyway.is_some()).collect()
}

fn by_name(rows: &[Row]) -> HashMap<&str, &Row> {
    rows.iter().map(|row| (row.name.as_str(), row)).collect()
}

/// A figure that a report leaves out because it is 0 in a cell that it has.
fn is_zero_in(report: &Report, row: &Row) -> bool {
    NONE_IS_ZERO.contains(&row.figure.as_str()) && report.cells.iter().any(|cell| cell.name == row.cell)
}

fn zero(like: &Row) -> Row {
    let peer: &[f64] = if like.sides.peer.is_some() { &[0.0] } else { &[] };
    Row {
        // The ratio of nothing to nothing is none.
        sides: Sides::of(&[0.0], peer),
        ..like.clone()
    }
}

fn judge(old: Row, new: Row, same_peer: bool, threshold: f64) -> Change {
    let ratio = |row: &Row| Known::of(row.sides.of_ratio()).filter(|_| same_peer);
    let own = |row: &Row| Known::of(row.sides.of_keyway());
    let beside = ratio(&old).zip(ratio(&new));
    let judged = beside.or_else(|| own(&old).zip(own(&new)));
    let verdict = match judged {
        None => Verdict::NotJudged,
        Some(_) if NOT_JUDGED.contains(&new.figure.as_str()) => Verdict::NotJudged,
        Some((before, after)) => {
            let floor = if beside.is_none() && new.unit == "%" {
                SHARE_MOVED_MIN
            } else {
                0.0
            };
            verdict(before, after, new.better, threshold, floor)
        }
    };
    Change {
        factor: judged
            .map(|(before, after)| after.median / before.median)
            .filter(|f| f.is_finite()),
        beside_peer: beside.is_some(),
        verdict,
        old,
        new,
    }
}

fn verdict(before: Known, after: Known, better: Better, threshold: f64, floor: f64) -> Verdict {
    let moved = after.median - before.median;
    if moved.abs() <= (before.median.abs() * threshold / 100.0).max(floor) {
        return Verdict::Same;
    }
    let factors = before.low > 0.0 && after.low > 0.0;
    let distance = if factors {
        (after.median / before.median).ln().abs()
    } else {
        moved.abs()
    };
    if distance <= before.width(factors) + after.width(factors) {
        return Verdict::Noise;
    }
    match (moved > 0.0, better) {
        (true, Better::Higher) | (false, Better::Lower) => Verdict::Better,
        (true, Better::Lower) | (false, Better::Higher) => Verdict::Worse,
    }
}

/// Names and versions of what was measured beside Keyway; what follows the version differs from run to run (ports, memory).
fn peers(report: &Report) -> Vec<(&str, &str)> {
    let of_peers = report.measured.iter().filter(|measured| measured.name != "Keyway");
    let mut peers: Vec<_> = of_peers
        .map(|peer| (peer.name.as_str(), peer.about.split(',').next().unwrap_or("")))
        .collect();
    peers.dedup();
    peers
}

fn notes(old: &Report, new: &Report, same_peer: bool) -> Vec<String> {
    let mut notes = Vec::new();
    let machine = |report: &Report| report.machine.split(", load").next().unwrap_or("").to_owned();
    for (what, before, after) in [
        ("the machines differ", machine(old), machine(new)),
        ("the conditions differ", old.conditions.clone(), new.conditions.clone()),
    ] {
        if before != after {
            notes.push(format!("{what}: {before}; now {after}"));
        }
    }
    let named = |report: &Report| {
        let named: Vec<_> = peers(report)
            .into_iter()
            .map(|(name, version)| format!("{name} {version}"))
            .collect();
        if named.is_empty() {
            "no peer".to_owned()
        } else {
            named.join(", ")
        }
    };
    if !same_peer {
        notes.push(format!(
            "the peers differ, so Keyway's own figures are judged, not its ratios: {}; now {}",
            named(old),
            named(new)
        ));
    }
    if [old, new].iter().any(|report| {
        report
            .cells
            .iter()
            .any(|cell| cell.sides.iter().any(|side| side.runs.len() < 2))
    }) {
        notes.push("measured once, a figure has no spread, and its noise is not known: --repeat 3 or more".to_owned());
    }
    for (which, report) in [("old", old), ("new", new)] {
        if !report.failures.is_empty() {
            notes.push(format!("the {which} run failed: {}", report.failures.join("; ")));
        }
    }
    notes
}

/// A line for each change, which `name` names.
pub fn table(changes: &[&Change], name: impl Fn(&Row) -> String) -> Table {
    let head = [
        "",
        "old",
        "new",
        "old, ratio to the peer",
        "new, ratio to the peer",
        "new / old",
        "",
    ];
    let line = |change: &&Change| {
        let Change { old, new, verdict, .. } = change;
        let ratio = |row: &Row| {
            if change.beside_peer {
                row.ratio().coloured("")
            } else {
                "".into()
            }
        };
        let factor = Entry::of(Spread::none(change.factor), 2);
        let word = Entry::from(verdict.word()).coloured(verdict.class());
        vec![name(new).into(), old.own(), new.own(), ratio(old), ratio(new), factor, word]
    };
    Table {
        head: head.map(|what| (what.to_owned(), String::new())).into(),
        lines: changes.iter().map(line).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::report_of;

    /// A throughput of each measurement, beside a peer that does 100 each time.
    fn report(rates: &[f64]) -> Report {
        report_beside(rates, &vec![100.0; rates.len()])
    }

    fn report_beside(rates: &[f64], peer: &[f64]) -> Report {
        let thousands = |rates: &[f64]| rates.iter().map(|rate| rate * 1e3).collect::<Vec<_>>();
        report_of(&thousands(rates), &thousands(peer))
    }

    fn verdict_of(old: &Report, new: &Report) -> Verdict {
        let comparison = Comparison::new(old, new, THRESHOLD_PERCENT).unwrap();
        let mut throughput = comparison.changes.iter().filter(|change| change.new.figure == "throughput");
        throughput.next().unwrap().verdict
    }

    #[test]
    fn a_figure_is_better_worse_the_same_or_noise() {
        let old = report(&[98.0, 100.0, 103.0]);
        assert_eq!(verdict_of(&old, &report(&[120.0, 125.0, 130.0])), Verdict::Better);
        assert_eq!(verdict_of(&old, &report(&[79.0, 80.0, 82.0])), Verdict::Worse);
        assert_eq!(verdict_of(&old, &report(&[94.0, 95.0, 95.5])), Verdict::Same, "5 %");
        assert_eq!(
            verdict_of(&old, &report(&[60.0, 80.0, 95.0])),
            Verdict::Noise,
            "20 %, and a spread of 35"
        );
        assert_eq!(
            verdict_of(&report(&[60.0, 80.0, 95.0]), &old),
            Verdict::Noise,
            "whichever scatters"
        );
    }

    #[test]
    fn more_of_a_latency_is_worse() {
        let row = |value: f64| Row {
            better: Better::Lower,
            figure: "latency, p99".into(),
            ..row(value)
        };
        assert_eq!(judge(row(10.0), row(20.0), false, 10.0).verdict, Verdict::Worse);
        assert_eq!(judge(row(20.0), row(10.0), false, 10.0).verdict, Verdict::Better);
        let longest = |value: f64| Row {
            figure: "latency, longest".into(),
            ..row(value)
        };
        assert_eq!(judge(longest(10.0), longest(20.0), false, 10.0).verdict, Verdict::NotJudged);
    }

    fn row(value: f64) -> Row {
        let mut row = report(&[value]).rows.remove(0);
        (row.sides.ratio, row.sides.peer) = (None, None);
        row
    }

    #[test]
    fn a_slower_machine_is_no_regression_and_a_faster_one_hides_none() {
        let old = report_beside(&[100.0, 101.0, 99.0], &[50.0, 50.5, 49.5]);
        let slower = report_beside(&[50.0, 51.0, 49.0], &[25.0, 25.5, 24.5]);
        assert_eq!(verdict_of(&old, &slower), Verdict::Same);
        let faster = report_beside(&[100.0, 101.0, 99.0], &[100.0, 101.0, 99.0]);
        assert_eq!(verdict_of(&old, &faster), Verdict::Worse);
        // Another peer says nothing about the machine.
        let mut other = faster;
        other.measured[1].about = "1.6.45, -t 2".into();
        assert_eq!(verdict_of(&old, &other), Verdict::Same);
        let text = Part::texts(&Comparison::new(&old, &other, 10.0).unwrap().parts());
        assert!(text.contains("memcached 1.6.18; now memcached 1.6.45"), "{text}");
    }

    #[test]
    fn rows_that_only_one_report_has_are_listed_and_not_judged() {
        let old = report(&[100.0; 3]);
        let mut new = old.clone();
        let mut other = new.rows.remove(1);
        let gone = other.name.clone();
        other.name = "another: throughput".into();
        new.rows.push(other);
        let comparison = Comparison::new(&old, &new, 10.0).unwrap();
        assert_eq!(
            (comparison.gone.as_slice(), comparison.appeared.as_slice()),
            (&[gone.clone()][..], &["another: throughput".to_owned()][..])
        );
        assert!(comparison.worse().is_empty());
        let text = Part::texts(&comparison.parts());
        assert!(
            text.contains(&gone) && text.contains("another: throughput") && text.contains("1 are gone, 1 are new"),
            "{text}"
        );
        new.rows.clear();
        assert!(Comparison::new(&old, &new, 10.0).unwrap_err().contains("no figure in common"));
    }

    #[test]
    fn misses_that_there_were_none_of_count_as_such() {
        let old = report(&[100.0; 3]);
        let mut new = old.clone();
        let missed = |percent: f64| Row {
            name: format!("{}: gets that missed", old.cells[0].name),
            figure: "gets that missed".into(),
            unit: "%".into(),
            better: Better::Lower,
            cell: old.cells[0].name.clone(),
            sides: Sides::of(&[percent], &[]),
            ..row(1.0)
        };
        new.rows.push(missed(30.0));
        assert_eq!(Comparison::new(&old, &new, 10.0).unwrap().worse().len(), 1);
        let back = Comparison::new(&new, &old, 10.0).unwrap();
        assert_eq!(
            (back.worse().len(), back.with(Verdict::Better).len(), back.gone.len()),
            (0, 1, 0)
        );
        new.rows.pop();
        new.rows.push(missed(0.05));
        assert!(Comparison::new(&old, &new, 10.0).unwrap().worse().is_empty());
    }

    /// The promise in this file's head, with normal noise of 1 to 30 %.
    #[test]
    fn unchanged_figures_are_hardly_ever_called_changed() {
        const ROUNDS: usize = 20_000;
        let mut state = 0x9E37_79B9_7F4A_7C15_u64;
        let mut uniform = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            f64::from(u32::try_from(state >> 32).unwrap()) / f64::from(u32::MAX)
        };
        let mut normal = || (0..12).map(|_| uniform()).sum::<f64>() - 6.0;
        let mut broken_worst = 0;
        for noise in [0.01, 0.05, 0.1, 0.3] {
            let (mut called, mut by_broken) = (0, 0);
            for _ in 0..ROUNDS {
                let mut three = || {
                    let samples: crate::medians::Samples = (0..3).map(|_| 1.0 + noise * normal()).collect();
                    Known {
                        median: samples.median(),
                        low: samples.low(),
                        high: samples.high(),
                    }
                };
                let (before, after) = (three(), three());
                let verdict = verdict(before, after, Better::Lower, THRESHOLD_PERCENT, 0.0);
                called += usize::from(matches!(verdict, Verdict::Better | Verdict::Worse));
                let apart = before.high < after.low || after.high < before.low;
                by_broken += usize::from(apart && verdict != Verdict::Same);
            }
            println!(
                "noise of {noise}: {called} of {ROUNDS} called changed; {by_broken} if spreads that do not overlap were enough"
            );
            assert!(called * 100 < ROUNDS * 2, "noise {noise}: {called} of {ROUNDS}");
            broken_worst = broken_worst.max(by_broken);
        }
        assert!(
            broken_worst * 100 > ROUNDS * 4,
            "the weaker rule passes this test: {broken_worst}"
        );
    }
}
