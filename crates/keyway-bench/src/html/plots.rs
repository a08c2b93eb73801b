//! Which plots a report has: each kind appears where there is something to plot it from.
//!
//! A plot *against* something takes the cells that differ in nothing else; one cell alone is in the tables, and gives no line.

use crate::html::chart::{Axis, Chart, Line, Point, number, time};
use crate::medians::{Sides, Spread};
use crate::plan::Door;
use crate::report::{CellReport, Report, SideReport};

/// What cells of one plot may differ in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Varied {
    /// connections, threads or processes
    Connections,
    /// requests in flight on each connection
    Pipeline,
    /// keys of one get
    Multiget,
    /// of each cache
    Memory,
    /// of an open loop
    Rate,
}

impl Varied {
    #[allow(clippy::cast_precision_loss, reason = "counts and sizes are below 2^53")]
    fn of(self, cell: &CellReport) -> f64 {
        match self {
            Self::Connections => cell.connections as f64,
            Self::Pipeline => cell.pipeline as f64,
            Self::Multiget => cell.multiget as f64,
            Self::Memory => cell.memory_mib as f64,
            Self::Rate => cell.rate.unwrap_or(0.0) / 1e3,
        }
    }
}

/// A cell in words, without what varies.
pub fn label(cell: &CellReport, varied: Option<Varied>) -> String {
    let fixed = |what: Varied| varied != Some(what);
    let door = Door::parse(&cell.door);
    let way = match door {
        Ok(Door::Library | Door::Processes) => "in process",
        Ok(Door::Unix) => "Unix socket",
        Ok(Door::Tcp) => "TCP",
        Ok(Door::Udp) => "UDP",
        Ok(Door::Split) => "UDP and TCP",
        Ok(Door::Libmemcached) | Err(_) => &cell.door,
    };
    let mut words = vec![cell.about.clone(), way.to_owned()];
    if fixed(Varied::Connections) {
        let unit = door.map_or("connections", |door| door.unit(cell.connections));
        words.push(format!("{} {unit}", cell.connections));
    }
    if fixed(Varied::Pipeline) && cell.pipeline > 1 {
        words.push(format!("{} pipelined", cell.pipeline));
    }
    if fixed(Varied::Multiget) && cell.multiget > 1 {
        words.push(format!("gets of {} keys", cell.multiget));
    }
    if let Some(rate) = cell.rate.filter(|_| fixed(Varied::Rate)) {
        words.push(format!("{} k/s", number(rate / 1e3)));
    }
    words.extend(cell.churn.map(|churn| format!("{churn} operations a connection")));
    if fixed(Varied::Memory) && cell.memory_limited {
        words.push(format!("{} MiB", cell.memory_mib));
    }
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
    let peer = cell
        .sides
        .get(1)
        .filter(|_| matches!(cell.door.as_str(), "library" | "processes"))?;
    let way = if peer.way.is_empty() { "over a socket" } else { &peer.way };
    Some(format!("a call; {} {way}", peer.name))
}

fn reached(cells: &[&CellReport]) -> String {
    let beside = cells.iter().find_map(|cell| beside_socket(cell));
    beside.map_or(String::new(), |beside| format!("Keyway by {beside}."))
}

/// A kind of plot: a figure against what is varied.
struct Sweep {
    /// as the page's parts are called
    kind: &'static str,
    varied: Varied,
    /// in the title, where it is not plain what is varied
    against: &'static str,
    /// to the right; empty: connections, threads or processes
    across: &'static str,
    upwards: &'static str,
    /// in the report; the second is dashed
    figures: &'static [&'static str],
    has: fn(&CellReport) -> bool,
}

impl Sweep {
    const fn throughput(varied: Varied, against: &'static str, across: &'static str) -> Self {
        Self {
            kind: "throughput",
            varied,
            against,
            across,
            upwards: "throughput, thousand operations a second",
            figures: &["throughput"],
            has: |cell| cell.rate.is_none(),
        }
    }
}

const THROUGHPUTS: [Sweep; 3] = [
    Sweep::throughput(Varied::Connections, "", ""),
    Sweep::throughput(
        Varied::Pipeline,
        ", against pipelining",
        "requests in flight on each connection",
    ),
    Sweep::throughput(Varied::Multiget, ", against keys of a get", "keys of one get"),
];

const LATENCY_AT_RATE: Sweep = Sweep {
    kind: "load",
    varied: Varied::Rate,
    against: "",
    across: "rate, thousand operations a second",
    upwards: "latency",
    figures: &["latency, p99", "latency, p50"],
    has: |cell| cell.rate.is_some(),
};

const HITS: Sweep = Sweep {
    kind: "hits",
    varied: Varied::Memory,
    against: "",
    across: "memory of each cache, MiB",
    upwards: "gets that hit, %",
    figures: &[HIT],
    has: |cell| cell.memory_limited,
};

/// No figure of the report: where no get missed, it has no row of those that did.
const HIT: &str = "hits";

/// Throughput against connections, pipelined requests, and keys of a get.
pub fn throughput(report: &Report) -> Vec<Chart> {
    THROUGHPUTS.iter().flat_map(|sweep| sweep.charts(report)).collect()
}

/// Latency against the rate of open loops.
pub fn latency_at_rate(report: &Report) -> Vec<Chart> {
    LATENCY_AT_RATE.charts(report)
}

/// Hit ratio against memory.
pub fn hit_ratio(report: &Report) -> Vec<Chart> {
    HITS.charts(report)
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
        let charts = groups
            .into_iter()
            .filter_map(|(name, _, cells)| self.chart(report, &name, &cells));
        charts.collect()
    }

    fn chart(&self, report: &Report, name: &str, cells: &[&CellReport]) -> Option<Chart> {
        let most = cells.iter().max_by_key(|cell| cell.sides.len())?;
        let mut lines = Vec::new();
        for (at, side) in most.sides.iter().enumerate() {
            for (number, figure) in self.figures.iter().enumerate() {
                let short = figure.strip_prefix("latency").unwrap_or_default();
                let points = cells.iter().filter_map(|cell| self.point(report, cell, at, figure));
                lines.push(Line {
                    name: format!("{}{short}", side.name),
                    side: at,
                    dashed: number > 0,
                    points: points.collect(),
                });
            }
        }
        lines.retain(|line: &Line| !line.points.is_empty());
        // Two points are bars.
        let bars = lines.iter().all(|line| line.points.len() <= 2);
        let units = || Door::parse(&cells[0].door).map_or("connections", |door| door.unit(2));
        let across = if self.across.is_empty() { units() } else { self.across };
        let (widths, heights) = (widths(&lines), heights(&lines));
        let x = match self.varied {
            _ if bars => Axis::halves(across, widths),
            Varied::Rate => Axis::from_zero(across, widths),
            _ => Axis::doubling(across, widths),
        };
        let y = match self.kind {
            "load" if bars => Axis::from_zero("latency, µs", heights),
            "load" => Axis::latency(self.upwards, heights),
            "hits" if !bars => Axis::around(self.upwards, heights),
            _ => Axis::from_zero(self.upwards, heights),
        };
        let hollow = lines.iter().any(|line| line.points.iter().any(|point| point.hollow));
        (!lines.is_empty()).then(|| Chart {
            kind: self.kind,
            title: format!("{name}{}", self.against),
            note: self.note(cells, hollow),
            x,
            y,
            lines,
            bars,
        })
    }

    fn note(&self, cells: &[&CellReport], hollow: bool) -> String {
        let own = match self.kind {
            "load" => "Open loop: latency counts from the moment at which a request was due. ",
            "hits" => "A miss stores its item where the workload says so. ",
            _ => "",
        };
        let behind = " Hollow: the cache did not keep up, and its latency is that of a queue that grows.";
        format!("{own}{}{}", reached(cells), if hollow { behind } else { "" })
    }

    fn point(&self, report: &Report, cell: &CellReport, at: usize, figure: &str) -> Option<Point> {
        let side = cell.sides.get(at)?;
        let spread = if figure == HIT {
            hit_percents(side)
        } else {
            let row = report.rows.iter().find(|row| row.cell == cell.name && row.figure == figure)?;
            if at == 0 { row.sides.of_keyway() } else { row.sides.of_peer() }
        };
        let y = spread.median?;
        let (low, high) = (spread.low.unwrap_or(y), spread.high.unwrap_or(y));
        let hollow = side.runs.iter().any(|run| run.unanswered > 0);
        let x = self.varied.of(cell);
        let shown = |value: f64| if self.kind == "load" { time(value) } else { number(value) };
        Some(Point {
            x,
            y,
            spread: Some((low, high)),
            label: format!(
                "{}, {}: {figure} {} ({}–{}){}",
                side.name,
                number(x),
                shown(y),
                shown(low),
                shown(high),
                if hollow { "; it did not keep up" } else { "" }
            ),
            hollow,
        })
    }
}

/// The ends of all spreads and all medians, upwards.
fn heights(lines: &[Line]) -> Vec<f64> {
    let of_point = |point: &Point| {
        let (low, high) = point.spread.unwrap_or((point.y, point.y));
        [point.y, low, high]
    };
    lines.iter().flat_map(|line| line.points.iter().flat_map(of_point)).collect()
}

fn widths(lines: &[Line]) -> Vec<f64> {
    lines
        .iter()
        .flat_map(|line| line.points.iter().map(|point| point.x))
        .collect()
}

/// Of each measurement that had gets.
#[allow(clippy::cast_precision_loss, reason = "counts are below 2^53")]
fn hit_percents(side: &SideReport) -> Spread {
    let runs = side.runs.iter().filter(|run| run.hits + run.misses > 0);
    let percents: Vec<f64> = runs
        .map(|run| run.hits as f64 / (run.hits + run.misses) as f64 * 100.0)
        .collect();
    Sides::of(&percents, &[]).of_keyway()
}
