//! Which plots a report has: each kind appears where there is something to plot it from.
//!
//! A plot *against* something takes the cells that differ in nothing else; one cell alone is in the tables, and gives no plot.

use crate::html::bars::{Bar, Chart, Row, Scale, number};
use crate::medians::Spread;
use crate::plan::Door;
use crate::report::{CellReport, Report, SideReport};

/// What cells of one plot may differ in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Varied {
    /// connections or threads
    Connections,
    /// requests in flight on each connection
    Pipeline,
    /// keys of one get
    Multiget,
    /// of an open loop
    Rate,
    /// of each cache
    Memory,
}

impl Varied {
    const ALL: [Self; 5] = [Self::Connections, Self::Pipeline, Self::Multiget, Self::Rate, Self::Memory];

    #[allow(clippy::cast_precision_loss, reason = "counts and sizes are below 2^53")]
    fn of(self, cell: &CellReport) -> f64 {
        match self {
            Self::Connections => cell.connections as f64,
            Self::Pipeline => cell.pipeline as f64,
            Self::Multiget => cell.multiget as f64,
            Self::Rate => cell.rate.unwrap_or(0.0) / 1e3,
            Self::Memory => cell.memory_mib as f64,
        }
    }

    /// Whether it goes without saying.
    fn is_usual(self, cell: &CellReport) -> bool {
        match self {
            Self::Connections => false,
            Self::Pipeline => cell.pipeline == 1,
            Self::Multiget => cell.multiget == 1,
            Self::Rate => cell.rate.is_none(),
            Self::Memory => !cell.memory_limited,
        }
    }

    fn words(self, cell: &CellReport) -> String {
        let value = number(self.of(cell));
        match self {
            Self::Connections => {
                let unit = Door::parse(&cell.door).map_or("connections", |door| door.unit(cell.connections));
                format!("{} {unit}", cell.connections)
            }
            Self::Pipeline => format!("{value} pipelined"),
            Self::Multiget => format!("gets of {value} {}", if cell.multiget == 1 { "key" } else { "keys" }),
            Self::Rate => format!("{value} k/s"),
            Self::Memory => format!("{value} MiB"),
        }
    }
}

/// A cell in words, without what varies.
pub fn label(cell: &CellReport, varied: Option<Varied>) -> String {
    let way = match Door::parse(&cell.door) {
        Ok(Door::Library) => "in process",
        Ok(Door::Unix) => "Unix socket",
        Ok(Door::Tcp) => "TCP",
        Ok(Door::KernelTcp) => "TCP, answered in the kernel",
        Ok(Door::Udp) => "UDP",
        Ok(Door::Split) => "UDP and TCP",
        Err(_) => &cell.door,
    };
    let said = Varied::ALL
        .into_iter()
        .filter(|what| varied != Some(*what) && !what.is_usual(cell));
    let mut words = vec![cell.about.clone(), way.to_owned()];
    words.extend(said.map(|what| what.words(cell)));
    words.extend(cell.setting.clone());
    words.join(", ")
}

/// A cell in words, and how its peer is reached where Keyway is reached otherwise.
pub fn row_label(cell: &CellReport) -> String {
    let beside = beside_socket(cell).map(|beside| format!(" ({beside})")).unwrap_or_default();
    label(cell, None) + &beside
}

/// Where Keyway is called and its peer is not.
fn beside_socket(cell: &CellReport) -> Option<String> {
    let peer = cell.sides.get(1).filter(|_| cell.door == Door::Library.name())?;
    let way = if peer.way.is_empty() { "over a socket" } else { &peer.way };
    Some(format!("a call; {} {way}", peer.name))
}

/// A kind of plot: figures against what is varied.
struct Sweep {
    /// as the page's parts are called
    kind: &'static str,
    varied: Varied,
    name: &'static str,
    scale: Scale,
    /// in the report; bars of the second are lighter
    figures: &'static [&'static str],
    has: fn(&CellReport) -> bool,
    note: &'static str,
}

const fn throughput(varied: Varied) -> Sweep {
    Sweep {
        kind: "throughput",
        varied,
        name: "throughput, thousand operations a second",
        scale: Scale::FromZero,
        figures: &["throughput"],
        has: |cell| cell.rate.is_none(),
        note: "",
    }
}

const SWEEPS: [Sweep; 5] = [
    throughput(Varied::Connections),
    throughput(Varied::Pipeline),
    throughput(Varied::Multiget),
    Sweep {
        kind: "load",
        varied: Varied::Rate,
        name: "latency, ten times as much always equally far",
        scale: Scale::Latency,
        figures: &["latency, p99", "latency, p50"],
        has: |cell| cell.rate.is_some(),
        note: "Open loop: latency counts from the moment at which a request was due. ",
    },
    Sweep {
        kind: "hits",
        varied: Varied::Memory,
        name: "gets that hit, %",
        scale: Scale::FromZero,
        figures: &[HIT],
        has: |cell| cell.memory_limited,
        note: "A miss stores its item where the workload says so. ",
    },
];

/// No figure of the report: where no get missed, it has no row of those that did.
const HIT: &str = "hits";

/// The plots of a kind: `throughput`, `load` or `hits`.
pub fn charts(report: &Report, kind: &str) -> Vec<Chart> {
    let sweeps = SWEEPS.iter().filter(|sweep| sweep.kind == kind);
    sweeps.flat_map(|sweep| sweep.charts(report)).collect()
}

impl Sweep {
    /// One of each group of cells that differ in nothing else, at least two of them, from the least to the most.
    fn charts(&self, report: &Report) -> Vec<Chart> {
        let mut groups: Vec<(String, u64, Vec<&CellReport>)> = Vec::new();
        for cell in report.cells.iter().filter(|cell| (self.has)(cell)) {
            let name = label(cell, Some(self.varied));
            match groups.iter_mut().find(|group| group.0 == name && group.1 == cell.items) {
                Some(group) => group.2.push(cell),
                None => groups.push((name, cell.items, vec![cell])),
            }
        }
        for (_, _, cells) in &mut groups {
            cells.sort_by(|a, b| self.varied.of(a).total_cmp(&self.varied.of(b)));
            cells.dedup_by(|a, b| self.varied.of(a) == self.varied.of(b));
        }
        groups.retain(|group| group.2.len() > 1);
        groups
            .into_iter()
            .map(|(name, _, cells)| self.chart(report, name, &cells))
            .collect()
    }

    fn chart(&self, report: &Report, title: String, cells: &[&CellReport]) -> Chart {
        let row = |cell: &&CellReport| Row {
            name: self.varied.words(cell),
            bars: self.bars(report, cell),
        };
        let beside = cells.iter().find_map(|cell| beside_socket(cell));
        let mut note = self.note.to_owned() + &beside.map_or(String::new(), |beside| format!("Keyway by {beside}. "));
        if cells.iter().flat_map(|cell| &cell.sides).any(fell_behind) {
            note.push_str("Hollow: the cache did not keep up, and its latency is that of a queue that grows.");
        }
        Chart {
            kind: self.kind,
            title,
            note: note.trim_end().to_owned(),
            name: self.name.to_owned(),
            scale: self.scale,
            rows: cells.iter().map(row).collect(),
        }
    }

    fn bars(&self, report: &Report, cell: &CellReport) -> Vec<Bar> {
        let bar = |at: usize, side: &SideReport, number: usize| {
            let figure = self.figures[number];
            let spread = if figure == HIT {
                hit_percents(side)
            } else {
                let row = report.rows.iter().find(|row| row.cell == cell.name && row.figure == figure)?;
                if at == 0 { row.sides.of_keyway() } else { row.sides.of_peer() }
            };
            let shade = if fell_behind(side) {
                " hollow"
            } else {
                ["", " light"][number]
            };
            Some(Bar {
                class: format!("{}{shade}", ["keyway", "peer"][at]),
                value: spread.median?,
                spread: spread.ends(),
                whose: format!("{}{}", side.name, figure.strip_prefix("latency").unwrap_or_default()),
            })
        };
        let sides = cell.sides.iter().take(2).enumerate();
        sides
            .flat_map(|(at, side)| (0..self.figures.len()).filter_map(move |number| bar(at, side, number)))
            .collect()
    }
}

fn fell_behind(side: &SideReport) -> bool {
    side.runs.iter().any(|run| run.unanswered > 0)
}

/// Of each measurement that had gets.
#[allow(clippy::cast_precision_loss, reason = "counts are below 2^53")]
fn hit_percents(side: &SideReport) -> Spread {
    let runs = side.runs.iter().filter(|run| run.hits + run.misses > 0);
    let percents: Vec<f64> = runs
        .map(|run| run.hits as f64 / (run.hits + run.misses) as f64 * 100.0)
        .collect();
    Spread::of(&percents)
}
