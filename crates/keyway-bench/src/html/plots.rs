//! Which plots a report has: each kind appears where there is something to plot it from.
//!
//! A plot *against* something takes the cells that differ in nothing else; one cell alone is in the tables, and gives no line.

use crate::html::chart::{Axis, Chart, Line, Point, number, time};
use crate::medians::Samples;
use crate::plan::Door;
use crate::report::{CellReport, Report, Row, SideReport};

/// What cells of one plot may differ in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Varied {
    /// connections, threads or processes
    Connections,
    /// requests on the way on each connection
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

/// Cells that differ in one thing alone, at least two of it, from its least to its most; with what they have in common.
fn groups(report: &Report, varied: Varied, has: impl Fn(&CellReport) -> bool) -> Vec<(String, Vec<&CellReport>)> {
    let mut groups: Vec<(String, u64, Vec<&CellReport>)> = Vec::new();
    for cell in report.cells.iter().filter(|cell| has(cell)) {
        let name = label(cell, Some(varied));
        match groups.iter_mut().find(|group| group.0 == name && group.1 == cell.items) {
            Some(group) => group.2.push(cell),
            None => groups.push((name, cell.items, vec![cell])),
        }
    }
    for group in &mut groups {
        group.2.sort_by(|a, b| varied.of(a).total_cmp(&varied.of(b)));
        group.2.dedup_by(|a, b| varied.of(a) == varied.of(b));
    }
    groups.retain(|group| group.2.len() > 1);
    groups.into_iter().map(|(name, _, cells)| (name, cells)).collect()
}

/// Names of the sides that these cells have, Keyway's first.
fn sides(cells: &[&CellReport]) -> Vec<String> {
    let most = cells.iter().max_by_key(|cell| cell.sides.len());
    most.map(|cell| cell.sides.iter().map(|side| side.name.clone()).collect())
        .unwrap_or_default()
}

fn row<'a>(report: &'a Report, cell: &CellReport, figure: &str) -> Option<&'a Row> {
    report.rows.iter().find(|row| row.cell == cell.name && row.figure == figure)
}

/// Of one side: the median and its spread.
fn figure(report: &Report, cell: &CellReport, figure: &str, side: usize) -> Option<(f64, (f64, f64))> {
    let row = row(report, cell, figure)?;
    let spread = match side {
        0 => row.sides.of_keyway(),
        _ => row.sides.of_peer(),
    };
    let median = spread.median?;
    Some((median, (spread.low.unwrap_or(median), spread.high.unwrap_or(median))))
}

/// A line of points that were measured.
fn line(name: &str, side: usize, dashed: bool, points: Vec<Point>) -> Line {
    Line {
        name: name.to_owned(),
        side,
        dashed,
        points,
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

/// Two points are bars.
fn are_bars(lines: &[Line]) -> bool {
    lines.iter().all(|line| line.points.len() <= 2)
}

fn across(name: &str, lines: &[Line]) -> Axis {
    if are_bars(lines) {
        Axis::halves(name, widths(lines))
    } else {
        Axis::doubling(name, widths(lines))
    }
}

/// Throughput against connections, pipelined requests, and keys of a get.
pub fn throughput(report: &Report) -> Vec<Chart> {
    let sweeps = [
        (Varied::Connections, "", "against their number"),
        (
            Varied::Pipeline,
            "requests on the way on each connection",
            "against pipelining",
        ),
        (Varied::Multiget, "keys of one get", "against keys of a get"),
    ];
    let mut charts = Vec::new();
    for (varied, axis, against) in sweeps {
        for (name, cells) in groups(report, varied, |cell| cell.rate.is_none()) {
            let units = || Door::parse(&cells[0].door).map_or("connections", |door| door.unit(2));
            let axis = if axis.is_empty() { units() } else { axis };
            let title = match varied {
                Varied::Connections => name,
                _ => format!("{name}, {against}"),
            };
            charts.extend(throughput_chart(report, title, varied, axis, &cells));
        }
    }
    charts
}

fn throughput_chart(report: &Report, title: String, varied: Varied, axis: &str, cells: &[&CellReport]) -> Option<Chart> {
    let point = |cell: &CellReport, side: usize, name: &str| {
        let (y, (low, high)) = figure(report, cell, "throughput", side)?;
        let x = varied.of(cell);
        Some(Point {
            x,
            y,
            spread: Some((low, high)),
            label: format!(
                "{name}, {} {axis}: {} k/s ({}–{})",
                number(x),
                number(y),
                number(low),
                number(high)
            ),
            hollow: false,
        })
    };
    let lines: Vec<Line> = sides(cells)
        .iter()
        .enumerate()
        .map(|(side, name)| {
            line(
                name,
                side,
                false,
                cells.iter().filter_map(|cell| point(cell, side, name)).collect(),
            )
        })
        .filter(|line| !line.points.is_empty())
        .collect();
    (!lines.is_empty()).then(|| Chart {
        kind: "throughput",
        title,
        note: reached(cells),
        x: across(axis, &lines),
        y: Axis::from_zero("throughput, thousand operations a second", heights(&lines)),
        bars: are_bars(&lines),
        lines,
    })
}

/// Latency against the rate of open loops.
pub fn latency_at_rate(report: &Report) -> Vec<Chart> {
    let groups = groups(report, Varied::Rate, |cell| cell.rate.is_some());
    groups
        .into_iter()
        .filter_map(|(name, cells)| load_chart(report, name, &cells))
        .collect()
}

const RATE: &str = "rate, thousand operations a second";

fn load_chart(report: &Report, title: String, cells: &[&CellReport]) -> Option<Chart> {
    let names = sides(cells);
    let kept_up = |cell: &CellReport, side: usize| {
        cell.sides
            .get(side)
            .is_none_or(|side| side.runs.iter().all(|run| run.unanswered == 0))
    };
    let point = |cell: &CellReport, side: usize, percentile: &str| {
        let (y, (low, high)) = figure(report, cell, &format!("latency, {percentile}"), side)?;
        let hollow = !kept_up(cell, side);
        let behind = if hollow { "; it did not keep up" } else { "" };
        Some(Point {
            x: Varied::Rate.of(cell),
            y,
            spread: Some((low, high)),
            label: format!(
                "{}, {} k/s: {percentile} {} ({}–{}){behind}",
                names[side],
                number(Varied::Rate.of(cell)),
                time(y),
                time(low),
                time(high)
            ),
            hollow,
        })
    };
    let mut lines = Vec::new();
    for (side, name) in names.iter().enumerate() {
        for (percentile, dashed) in [("p99", false), ("p50", true)] {
            let points: Vec<_> = cells.iter().filter_map(|cell| point(cell, side, percentile)).collect();
            if !points.is_empty() {
                lines.push(line(&format!("{name}, {percentile}"), side, dashed, points));
            }
        }
    }
    let behind = lines.iter().any(|line| line.points.iter().any(|point| point.hollow));
    (!lines.is_empty()).then(|| Chart {
        kind: "load",
        title,
        note: format!(
            "Open loop: latency counts from the moment at which a request was due. {}{}",
            reached(cells),
            if behind {
                " Hollow: the cache did not keep up, and its latency is that of a queue that grows."
            } else {
                ""
            }
        ),
        x: if are_bars(&lines) {
            Axis::halves(RATE, widths(&lines))
        } else {
            Axis::from_zero(RATE, widths(&lines))
        },
        y: if are_bars(&lines) {
            Axis::from_zero("latency, µs", heights(&lines))
        } else {
            Axis::latency_upwards("latency", heights(&lines))
        },
        bars: are_bars(&lines),
        lines,
    })
}

/// Hit ratio against memory.
pub fn hit_ratio(report: &Report) -> Vec<Chart> {
    let groups = groups(report, Varied::Memory, |cell| cell.memory_limited);
    groups
        .into_iter()
        .filter_map(|(name, cells)| hit_chart(name, &cells))
        .collect()
}

const HIT: &str = "gets that hit, %";

fn hit_chart(title: String, cells: &[&CellReport]) -> Option<Chart> {
    let point = |cell: &CellReport, side: &SideReport| {
        let ratios = hit_percents(side)?;
        let x = Varied::Memory.of(cell);
        Some(Point {
            x,
            y: ratios.median(),
            spread: Some((ratios.low(), ratios.high())),
            label: format!(
                "{}, {} MiB: {} % of gets hit ({})",
                side.name,
                number(x),
                number(ratios.median()),
                ratios.show(2)
            ),
            hollow: false,
        })
    };
    let of_side = |(at, name): (usize, &String)| {
        let points = cells.iter().filter_map(|cell| point(cell, cell.sides.get(at)?));
        line(name, at, false, points.collect())
    };
    let lines: Vec<Line> = sides(cells)
        .iter()
        .enumerate()
        .map(of_side)
        .filter(|line| !line.points.is_empty())
        .collect();
    (!lines.is_empty()).then(|| Chart {
        kind: "hits",
        title,
        note: format!(
            "{} items are asked for; a miss stores its item where the workload says so.",
            number(items(cells))
        ),
        x: across("memory of each cache, MiB", &lines),
        y: if are_bars(&lines) {
            Axis::from_zero(HIT, heights(&lines))
        } else {
            Axis::around(HIT, heights(&lines))
        },
        bars: are_bars(&lines),
        lines,
    })
}

#[allow(clippy::cast_precision_loss, reason = "items are far below 2^53")]
fn items(cells: &[&CellReport]) -> f64 {
    cells.first().map_or(0.0, |cell| cell.items as f64)
}

/// Of each measurement that had gets.
#[allow(clippy::cast_precision_loss, reason = "counts are below 2^53")]
fn hit_percents(side: &SideReport) -> Option<Samples> {
    let runs = side.runs.iter().filter(|run| run.hits + run.misses > 0);
    let percents: Vec<f64> = runs
        .map(|run| run.hits as f64 / (run.hits + run.misses) as f64 * 100.0)
        .collect();
    (!percents.is_empty()).then(|| percents.into_iter().collect())
}

/// Distributions of latency, one for each cell.
pub fn latencies(report: &Report) -> Vec<Chart> {
    report.cells.iter().filter_map(latency_chart).collect()
}

fn latency_chart(cell: &CellReport) -> Option<Chart> {
    let sides = cell.sides.iter().enumerate();
    let lines: Vec<Line> = sides
        .map(|(at, side)| line(&side.name, at, false, distribution(side)))
        .filter(|line| line.points.len() > 1)
        .collect();
    (!lines.is_empty()).then(|| Chart {
        kind: "latency",
        title: label(cell, None),
        note: reached(&[cell]),
        x: Axis::latency("latency", widths(&lines)),
        y: Axis::percentiles("operations that took no longer", heights(&lines)),
        bars: false,
        lines,
    })
}

/// Up to the first percentile that is the longest of all: what lies beyond was decided by the same request.
fn distribution(side: &SideReport) -> Vec<Point> {
    /// Those that are marked.
    const MARKED: [f64; 5] = [50.0, 90.0, 99.0, 99.9, 99.99];
    let longest = side.latency_us.last().map_or(0.0, |(_, us)| *us);
    let mut points: Vec<Point> = Vec::new();
    for (percent, us) in side
        .latency_us
        .iter()
        .copied()
        .filter(|(percent, us)| *percent < 100.0 && *us > 0.0)
    {
        let label = if MARKED.contains(&percent) {
            format!("{}: {percent} % took no longer than {}", side.name, time(us))
        } else {
            String::new()
        };
        points.push(Point {
            x: us,
            y: percent,
            spread: None,
            label,
            hollow: false,
        });
        if us >= longest {
            break;
        }
    }
    points
}
