//! A chart: two axes with their units, lines of points with their spread, and a legend, as SVG in HTML.
//!
//! It is drawn here and not by a library of plots, because its colours follow the reader's light or dark setting and its text is the
//! page's: everything has a class and the style sheet does the rest, where libraries write fixed colours. Text never overlaps: the
//! legend is HTML, which wraps, and a tick whose label has no room goes without.

use maud::{Markup, html};

/// Of the drawing, in its own units; on the page it is as wide as its column, so these are pixels at about 400 pixels' width.
const WIDTH: f64 = 440.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = 22.0;
const TOP: f64 = 32.0;
const BOTTOM: f64 = 46.0;
/// Of the text of ticks: what a character takes at most, on average, and what lies between two labels.
const CHARACTER: f64 = 8.4;
const LABELS_APART: f64 = 8.0;
/// Of the bars at one place: each at most, and all together.
const BAR_WIDTH_MAX: f64 = 34.0;
const BARS_WIDTH: f64 = 140.0;
/// By how much the spreads of several lines at the same place are moved apart.
const DODGE: f64 = 3.0;

/// One chart.
pub struct Chart {
    /// what kind it is, for the style sheet and for tests
    pub kind: &'static str,
    /// what it shows
    pub title: String,
    /// what should be known of it, if anything
    pub note: String,
    /// to the right
    pub x: Axis,
    /// upwards
    pub y: Axis,
    /// in the legend's order
    pub lines: Vec<Line>,
    /// points are drawn as bars: two of them make no line
    pub bars: bool,
}

/// A scale with its name and its ticks.
pub struct Axis {
    name: String,
    scale: Scale,
    ticks: Vec<Tick>,
}

struct Tick {
    at: f64,
    /// empty: a line alone
    label: String,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Scale {
    Linear { low: f64, high: f64 },
    Log { low: f64, high: f64 },
}

/// Points that belong together.
pub struct Line {
    /// in the legend
    pub name: String,
    /// whose it is: its colour
    pub side: usize,
    /// to be told apart from another line of the same side
    pub dashed: bool,
    /// from left to right
    pub points: Vec<Point>,
}

/// A median with its spread.
pub struct Point {
    /// on the axis to the right
    pub x: f64,
    /// on the axis upwards
    pub y: f64,
    /// the lowest and the highest of its measurements
    pub spread: Option<(f64, f64)>,
    /// shown when it is pointed at; empty: the line's bend alone, without a mark
    pub label: String,
    /// whether it is drawn hollow, because it is not to be trusted as the others are
    pub hollow: bool,
}

impl Scale {
    /// Where a value lies, 0 to 1.
    fn at(self, value: f64) -> f64 {
        match self {
            Self::Linear { low, high } => (value - low) / (high - low),
            Self::Log { low, high } => (value / low).ln() / (high / low).ln(),
        }
    }
}

impl Axis {
    /// From 0 to above the largest.
    pub fn from_zero(name: &str, values: impl IntoIterator<Item = f64>) -> Self {
        let most = values.into_iter().fold(0.0, f64::max);
        Self::linear(name, 0.0, if most > 0.0 { most } else { 1.0 })
    }

    /// From below the smallest to above the largest.
    pub fn around(name: &str, values: impl IntoIterator<Item = f64>) -> Self {
        let (low, high) = range(values);
        Self::linear(name, low, if high > low { high } else { low + 1.0 })
    }

    fn linear(name: &str, low: f64, high: f64) -> Self {
        /// Ticks that are aimed at.
        const TICKS: f64 = 5.0;
        let step = nice_above((high - low) / TICKS);
        let (low, high) = ((low / step).floor() * step, (high / step).ceil() * step);
        let ticks = std::iter::successors(Some(low), |at| Some(at + step))
            .take_while(|at| *at <= high + step / 2.0)
            .map(|at| Tick { at, label: number(at) })
            .collect();
        Self {
            name: name.to_owned(),
            scale: Scale::Linear { low, high },
            ticks,
        }
    }

    /// Latencies, µs. Each tick has its unit; between powers of ten they have labels over up to three of them.
    pub fn latency(name: &str, us: impl IntoIterator<Item = f64>) -> Self {
        const DECADES_LABELLED: f64 = 3.01;
        let (low, high) = range(us.into_iter().filter(|us| *us > 0.0));
        let (low, mut high) = (nice_below(low), nice_above(high));
        if high <= low {
            high = low * 10.0;
        }
        let decades = (high / low).log10();
        let tick = |at: f64, leading: f64| Tick {
            at,
            label: if decades <= DECADES_LABELLED || leading == 1.0 {
                time(at)
            } else {
                String::new()
            },
        };
        let mut ticks = Vec::new();
        let mut decade = 10_f64.powf(low.log10().floor());
        while decade <= high * 1.001 {
            for leading in [1.0, 2.0, 5.0] {
                let at = decade * leading;
                if at >= low * 0.999 && at <= high * 1.001 {
                    ticks.push(tick(at, leading));
                }
            }
            decade *= 10.0;
        }
        Self {
            name: name.to_owned(),
            scale: Scale::Log { low, high },
            ticks,
        }
    }

    /// Exactly these values, each twice the one before as far as all the others.
    pub fn doubling(name: &str, values: impl IntoIterator<Item = f64>) -> Self {
        let (ticks, low, high) = Self::places(values);
        let room = (high / low).powf(0.06);
        Self {
            name: name.to_owned(),
            scale: Scale::Log {
                low: low / room,
                high: high * room,
            },
            ticks,
        }
    }

    /// Two values, each in the middle of its half.
    pub fn halves(name: &str, values: impl IntoIterator<Item = f64>) -> Self {
        let (ticks, low, high) = Self::places(values);
        let room = if high > low { (high - low) / 2.0 } else { 1.0 };
        Self {
            name: name.to_owned(),
            scale: Scale::Linear {
                low: low - room,
                high: high + room,
            },
            ticks,
        }
    }

    fn places(values: impl IntoIterator<Item = f64>) -> (Vec<Tick>, f64, f64) {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        values.dedup();
        let (low, high) = range(values.iter().copied());
        let ticks = values.into_iter().map(|at| Tick { at, label: number(at) }).collect();
        (ticks, low, high)
    }

    fn x(&self, value: f64) -> f64 {
        LEFT + self.scale.at(value) * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, value: f64) -> f64 {
        HEIGHT - BOTTOM - self.scale.at(value) * (HEIGHT - TOP - BOTTOM)
    }

    /// The ticks to the right, without the labels that would run into the one before.
    fn labels_with_room(&self) -> Vec<(f64, &str)> {
        let mut free_from = 0.0;
        let mut labels = Vec::new();
        for tick in self.ticks.iter().filter(|tick| !tick.label.is_empty()) {
            let half = width(&tick.label) / 2.0;
            let at = self.x(tick.at).min(WIDTH - half);
            if at - half >= free_from {
                labels.push((at, tick.label.as_str()));
                free_from = at + half + LABELS_APART;
            }
        }
        labels
    }
}

impl Chart {
    /// The figure: title, legend, drawing.
    pub fn markup(&self) -> Markup {
        html! {
            figure.chart data-plot=(self.kind) {
                figcaption { h3 { (self.title) } @if !self.note.is_empty() { p { (self.note) } } }
                ul.legend { @for line in &self.lines { li { (line.swatch(self.bars)) (line.name) } } }
                svg viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) role="img" aria-label=(self.in_words()) {
                    (self.grid())
                    text.axis x="2" y="14" { (self.y.name) }
                    text.axis x=(px(middle())) y=(px(HEIGHT - 6.0)) text-anchor="middle" { (self.x.name) }
                    @for (at, line) in self.lines.iter().enumerate() { (self.line(at, line)) }
                }
            }
        }
    }

    /// For readers who cannot see it.
    fn in_words(&self) -> String {
        let names: Vec<_> = self.lines.iter().map(|line| line.name.as_str()).collect();
        format!(
            "{}: {} against {}, of {}",
            self.title,
            self.y.name,
            self.x.name,
            names.join(", ")
        )
    }

    fn grid(&self) -> Markup {
        let (right, bottom) = (px(WIDTH - RIGHT), HEIGHT - BOTTOM);
        html! {
            g.grid {
                @for tick in &self.y.ticks {
                    line.faint[tick.label.is_empty()] x1=(px(LEFT)) x2=(right) y1=(px(self.y.y(tick.at))) y2=(px(self.y.y(tick.at))) {}
                }
                @for tick in &self.x.ticks {
                    line.faint[tick.label.is_empty()] x1=(px(self.x.x(tick.at))) x2=(px(self.x.x(tick.at))) y1=(px(TOP)) y2=(px(bottom)) {}
                }
            }
            g.ticks {
                @for tick in self.y.ticks.iter().filter(|tick| !tick.label.is_empty()) {
                    text x=(px(LEFT - 7.0)) y=(px(self.y.y(tick.at) + 4.0)) text-anchor="end" { (tick.label) }
                }
                @for (at, label) in self.x.labels_with_room() {
                    text x=(px(at)) y=(px(bottom + 17.0)) text-anchor="middle" { (label) }
                }
            }
        }
    }

    fn line(&self, at: usize, line: &Line) -> Markup {
        let width = BAR_WIDTH_MAX.min(BARS_WIDTH / index(self.lines.len()));
        let apart = if self.bars { width + 2.0 } else { DODGE };
        let spread_at = |x: f64| x + (index(at) - (index(self.lines.len()) - 1.0) / 2.0) * apart;
        let place = |point: &Point| (self.x.x(point.x), self.y.y(point.y));
        let path = line.points.iter().enumerate().map(|(at, point)| {
            let (x, y) = place(point);
            format!("{}{} {}", if at == 0 { "M" } else { "L" }, px(x), px(y))
        });
        html! {
            g class=(line.class()) {
                @if !self.bars { path.line d=(path.collect::<String>()) {} }
                @for point in &line.points {
                    @if self.bars {
                        @let (x, y) = place(point);
                        rect.bar.hollow[point.hollow] x=(px(spread_at(x) - width / 2.0)) y=(px(y)) width=(px(width)) height=(px(HEIGHT - BOTTOM - y)) {
                            title { (point.label) }
                        }
                    }
                    @if let Some((low, high)) = point.spread.filter(|(low, high)| high > low) {
                        @let x = px(spread_at(self.x.x(point.x)));
                        line.spread x1=(x) x2=(x) y1=(px(self.y.y(low))) y2=(px(self.y.y(high))) {}
                    }
                    @if !self.bars && !point.label.is_empty() {
                        @let (x, y) = place(point);
                        circle.hollow[point.hollow] cx=(px(x)) cy=(px(y)) r="3.5" { title { (point.label) } }
                    }
                }
            }
        }
    }
}

impl Line {
    fn class(&self) -> String {
        format!("s{}{}", self.side, if self.dashed { " dashed" } else { "" })
    }

    fn swatch(&self, bar: bool) -> Markup {
        html! {
            svg.swatch viewBox="0 0 26 10" aria-hidden="true" {
                g class=(self.class()) {
                    @if bar { rect.bar x="8" y="0" width="10" height="10" {} } @else { path.line d="M1 5L25 5" {} circle cx="13" cy="5" r="3.5" {} }
                }
            }
        }
    }
}

fn middle() -> f64 {
    f64::midpoint(LEFT, WIDTH - RIGHT)
}

#[allow(clippy::cast_precision_loss, reason = "a few characters")]
fn width(label: &str) -> f64 {
    label.chars().count() as f64 * CHARACTER
}

#[allow(clippy::cast_precision_loss, reason = "a few lines")]
fn index(at: usize) -> f64 {
    at as f64
}

/// A coordinate, to a tenth of a pixel.
pub fn px(at: f64) -> String {
    let text = format!("{at:.1}");
    text.strip_suffix(".0").unwrap_or(&text).to_owned()
}

fn range(values: impl IntoIterator<Item = f64>) -> (f64, f64) {
    let (low, high) = values
        .into_iter()
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
            (low.min(value), high.max(value))
        });
    if low <= high { (low, high) } else { (1.0, 10.0) }
}

/// The next of 1, 2, 5, 10, 20, 50 … that is not below.
pub fn nice_above(value: f64) -> f64 {
    let decade = 10_f64.powf(value.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * decade);
    steps.into_iter().find(|step| *step >= value * 0.9999).unwrap_or(steps[3])
}

/// The next of 1, 2, 5, 10, 20, 50 … that is not above.
pub fn nice_below(value: f64) -> f64 {
    let decade = 10_f64.powf(value.log10().floor());
    let steps = [5.0, 2.0, 1.0].map(|step| step * decade);
    steps.into_iter().find(|step| *step <= value * 1.0001).unwrap_or(steps[2])
}

/// To three digits or more, thousands apart, without zeros that say nothing.
pub fn number(value: f64) -> String {
    let digits = match value.abs() {
        size if size >= 100.0 || size == 0.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 1.0 => 2,
        _ => 3,
    };
    let text = format!("{value:.digits$}");
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    let (sign, whole) = whole.strip_prefix('-').map_or(("", whole), |whole| ("−", whole));
    let (whole, fraction) = (apart(whole), fraction.trim_end_matches('0'));
    let point = if fraction.is_empty() { "" } else { "." };
    format!("{sign}{whole}{point}{fraction}")
}

/// Digits with a comma between thousands.
pub fn apart(digits: &str) -> String {
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A time with the unit that suits it.
pub fn time(us: f64) -> String {
    match us {
        us if us < 0.9995 => format!("{} ns", number(us * 1e3)),
        us if us < 999.5 => format!("{} µs", number(us)),
        us if us < 999_500.0 => format!("{} ms", number(us / 1e3)),
        us => format!("{} s", number(us / 1e6)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: &Axis) -> Vec<&str> {
        axis.ticks
            .iter()
            .map(|tick| tick.label.as_str())
            .filter(|label| !label.is_empty())
            .collect()
    }

    #[test]
    fn numbers_and_times_read_well() {
        for (value, text) in [
            (0.0, "0"),
            (0.05, "0.05"),
            (1.5, "1.5"),
            (12.34, "12.3"),
            (999.0, "999"),
            (1234.5, "1,234"),
            (1_234_567.0, "1,234,567"),
            (-5.0, "−5"),
        ] {
            assert_eq!(number(value), text);
        }
        for (us, text) in [
            (0.08, "80 ns"),
            (1.0, "1 µs"),
            (250.0, "250 µs"),
            (1500.0, "1.5 ms"),
            (2_000_000.0, "2 s"),
        ] {
            assert_eq!(time(us), text);
        }
    }

    #[test]
    fn axes_hold_their_values_between_round_numbers() {
        let axis = Axis::from_zero("k/s", [3.0, 87.0]);
        assert_eq!(labels(&axis), ["0", "20", "40", "60", "80", "100"]);
        assert_eq!(axis.scale, Scale::Linear { low: 0.0, high: 100.0 });
        let axis = Axis::latency("latency", [7.0, 43210.0]);
        assert_eq!(axis.scale, Scale::Log { low: 5.0, high: 5e4 });
        assert_eq!(labels(&axis), ["10 µs", "100 µs", "1 ms", "10 ms"]);
        let axis = Axis::latency("latency", [7.0, 43.0]);
        assert_eq!(labels(&axis), ["5 µs", "10 µs", "20 µs", "50 µs"]);
    }

    #[test]
    fn nothing_and_one_value_have_axes_too() {
        for axis in [
            Axis::from_zero("", []),
            Axis::around("", [5.0]),
            Axis::latency("", []),
            Axis::latency("", [1.0]),
        ] {
            assert!(labels(&axis).len() >= 2 && axis.scale.at(1.0).is_finite(), "{:?}", axis.scale);
        }
    }

    #[test]
    fn labels_without_room_are_left_out() {
        let axis = Axis::doubling("connections", [1.0, 512.0, 513.0, 514.0]);
        let labels: Vec<_> = axis.labels_with_room().into_iter().map(|(_, label)| label).collect();
        assert_eq!(labels, ["1", "512"]);
    }
}
