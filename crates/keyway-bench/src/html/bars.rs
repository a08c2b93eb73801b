//! Bars in rows on one axis, each with its value beside it, as SVG in HTML.
//!
//! They are drawn here and not by a library of plots, because their colours follow the reader's light or dark setting and their text is
//! the page's: everything has a class and the style sheet does the rest, where libraries write fixed colours and text that a phone shrinks.

use maud::{Markup, html};

/// Of a row's bars, in pixels: the drawing is stretched in its width alone.
const BAR_HEIGHT: f64 = 16.0;
const BAR: f64 = 10.0;

/// Rows on one axis.
pub struct Chart {
    /// what kind it is, for tests
    pub kind: &'static str,
    /// what was measured; empty: the text around says it
    pub title: String,
    /// what should be known of it, if anything
    pub note: String,
    /// what the bars are
    pub name: String,
    /// where they begin
    pub scale: Scale,
    /// from top to bottom
    pub rows: Vec<Row>,
}

/// One thing that has values.
pub struct Row {
    /// what it is
    pub name: String,
    /// each with its value, one below the other
    pub bars: Vec<Bar>,
}

/// One value.
pub struct Bar {
    /// classes of its colour
    pub class: String,
    /// the median
    pub value: f64,
    /// the lowest and the highest, where there is a spread
    pub spread: Option<(f64, f64)>,
    /// whose value it is; empty where there is one bar alone
    pub whose: String,
}

/// What a bar's length means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// twice as long is twice as much
    FromZero,
    /// ratios: a bar begins at 1, where both sides are equal, and twice and half are equally far from it
    Ratio,
    /// latencies in µs: ten times as much is always equally far
    Latency,
}

/// From the least to the most that is drawn.
struct Axis {
    low: f64,
    high: f64,
    /// where bars begin
    base: f64,
    is_linear: bool,
    ticks: Vec<f64>,
}

impl Axis {
    fn of(scale: Scale, rows: &[Row]) -> Self {
        /// Of a logarithmic axis: what is further from 1 is drawn to the axis' end, as is 0.
        const LEAST: f64 = 1e-4;
        /// How far beyond all medians a spread is drawn: one that is wider runs to the axis' end, and its numbers say how wide it is.
        const BEYOND: f64 = 3.0;
        let bars = || rows.iter().flat_map(|row| &row.bars);
        let ends = || bars().filter_map(|bar| bar.spread).flat_map(|(low, high)| [low, high]);
        let widened = |(low, high): (f64, f64), value: f64| (low.min(value), high.max(value));
        let values = || bars().map(|bar| bar.value);
        if scale == Scale::FromZero {
            /// Ticks that are aimed at.
            const TICKS: f64 = 4.0;
            let most = values().chain(ends()).fold(0.0, f64::max);
            let step = nice_above(if most > 0.0 { most } else { 1.0 } / TICKS);
            let steps = (most / step).ceil().max(1.0);
            let ticks = std::iter::successors(Some(0.0), |at| Some(at + 1.0)).take_while(|at| *at <= steps);
            return Self {
                low: 0.0,
                high: steps * step,
                base: 0.0,
                is_linear: true,
                ticks: ticks.map(|at| at * step).collect(),
            };
        }
        let drawn = |value: &f64| scale == Scale::Latency && *value > 0.0 || (LEAST..=1.0 / LEAST).contains(value);
        let medians = values().filter(drawn);
        let (low, high) = match scale {
            // What is shown even where all are equal.
            Scale::Ratio => medians.fold((0.5, 2.0), widened),
            // Half of the least, so that its bar can be seen.
            _ => medians
                .map(|us| us / 2.0)
                .chain(values())
                .filter(drawn)
                .fold((f64::INFINITY, 1e-3), widened),
        };
        let low = low.min(high / 2.0);
        let near = |end: f64| end.clamp(low / BEYOND, high * BEYOND);
        let (low, high) = ends().map(near).fold((low, high), widened);
        let (low, high) = (nice_below(low), nice_above(high));
        // A time's label is longer than a ratio's.
        let ends_at = if scale == Scale::Ratio { 1.71 } else { 1.01 };
        let (steps, every): (&[f64], i32) = match (high / low).log10() {
            decades if decades <= ends_at => (&[1.0, 2.0, 5.0], 1),
            decades if decades <= 5.0 => (&[1.0], 1),
            _ => (&[1.0], 2),
        };
        let inside = |tick: &f64| *tick >= low * 0.999 && *tick <= high * 1.001;
        let decade = |power: i32| steps.iter().map(move |step| step * 10_f64.powi(power));
        let powers = (-6..=9).filter(|power| power % every == 0);
        Self {
            low,
            high,
            base: if scale == Scale::Ratio { 1.0 } else { low },
            is_linear: false,
            ticks: powers.flat_map(decade).filter(inside).collect(),
        }
    }

    /// In percent of the width.
    fn at(&self, value: f64) -> f64 {
        let value = value.clamp(self.low, self.high);
        if self.is_linear {
            (value - self.low) / (self.high - self.low) * 100.0
        } else {
            (value / self.low).ln() / (self.high / self.low).ln() * 100.0
        }
    }
}

impl Scale {
    /// A value, with the digits that suit one of the size of `like`.
    fn text(self, value: f64, like: f64) -> String {
        match self {
            Self::FromZero => number(value),
            Self::Ratio => format!("{value:.0$}", digits(like)),
            Self::Latency => time(value),
        }
    }

    fn spread(self, bar: &Bar) -> String {
        let words =
            |(low, high): (f64, f64)| format!(" ({}–{})", self.text(low, bar.value), self.text(high, high.max(bar.value)));
        bar.spread.map_or(String::new(), words)
    }
}

impl Chart {
    /// Title, axis, and the rows with their values.
    pub fn markup(&self) -> Markup {
        let axis = Axis::of(self.scale, &self.rows);
        html! {
            div.bars data-plot=(self.kind) role="group" aria-label=(format!("{} {}", self.title, self.name).trim()) {
                @if !self.title.is_empty() { h3 { (self.title) } }
                @if !self.note.is_empty() { p.note { (self.note) } }
                div.head {
                    div.name { (self.name) }
                    div.plot.axis {
                        @for tick in &axis.ticks { span style=(format!("left:{:.1}%", axis.at(*tick))) { (self.tick(*tick)) } }
                    }
                }
                @for row in &self.rows {
                    div.row.several[row.bars.len() > 1] {
                        div.name { (row.name) }
                        div.plot { (self.drawing(&axis, row)) }
                        div.values {
                            @for bar in &row.bars {
                                div {
                                    @if !bar.whose.is_empty() { span.whose.(bar.class) { (bar.whose) " " } }
                                    strong { (self.scale.text(bar.value, bar.value)) } (self.scale.spread(bar))
                                }
                            }
                        }
                    }
                }
            }
        }
    }

    fn tick(&self, at: f64) -> String {
        if self.scale == Scale::Latency { time(at) } else { number(at) }
    }

    fn drawing(&self, axis: &Axis, row: &Row) -> Markup {
        #[allow(clippy::cast_precision_loss, reason = "a few bars")]
        let top = |at: usize| at as f64 * BAR_HEIGHT;
        let (height, base) = (top(row.bars.len()), axis.at(axis.base));
        let words = |bar: &Bar| {
            format!(
                "{} {}{}",
                bar.whose,
                self.scale.text(bar.value, bar.value),
                self.scale.spread(bar)
            )
        };
        let in_words = row.bars.iter().map(words).collect::<Vec<_>>().join("; ");
        html! {
            svg viewBox=(format!("0 0 100 {height}")) height=(height) preserveAspectRatio="none" role="img"
                aria-label=(format!("{}: {in_words}", row.name)) {
                @for tick in &axis.ticks { line.tick x1=(px(axis.at(*tick))) x2=(px(axis.at(*tick))) y1="0" y2=(height) {} }
                @for (at, bar) in row.bars.iter().enumerate() {
                    @let end = axis.at(bar.value);
                    @let middle = top(at) + BAR_HEIGHT / 2.0;
                    rect.bar.(bar.class) x=(px(base.min(end))) y=(middle - BAR / 2.0) width=(px((base - end).abs())) height=(BAR) {}
                    @if let Some((low, high)) = bar.spread {
                        line.whisker x1=(px(axis.at(low))) x2=(px(axis.at(high))) y1=(middle) y2=(middle) {}
                    }
                }
                line.base x1=(px(base)) x2=(px(base)) y1="0" y2=(height) {}
            }
        }
    }
}

/// A place, to a hundredth of a percent of the width.
fn px(at: f64) -> String {
    format!("{at:.2}")
}

/// The next of 1, 2, 5, 10, 20, 50 … that is not below.
fn nice_above(value: f64) -> f64 {
    let decade = 10_f64.powf(value.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * decade);
    steps.into_iter().find(|step| *step >= value * 0.9999).unwrap_or(steps[3])
}

/// The next of 1, 2, 5, 10, 20, 50 … that is not above.
fn nice_below(value: f64) -> f64 {
    1.0 / nice_above(1.0 / value)
}

/// With as many digits as a ratio of the size of `like` needs: they lie anywhere between a hundredth and hundreds.
pub fn digits(like: f64) -> usize {
    match like.abs() {
        size if size >= 99.95 => 0,
        size if size >= 9.995 => 1,
        size if size >= 0.0995 => 2,
        size if size >= 0.00995 => 3,
        _ => 4,
    }
}

/// To three digits or more, thousands apart, without zeros that say nothing.
pub fn number(value: f64) -> String {
    let digits = match value.abs() {
        size if size >= 100.0 || size == 0.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 1.0 => 2,
        _ => 3,
    };
    let text = fixed(value, digits);
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// With this many digits after the point, and a comma between thousands.
pub fn fixed(value: f64, digits: usize) -> String {
    let text = format!("{:.digits$}", value.abs());
    let (whole, fraction) = text.split_at(text.find('.').unwrap_or(text.len()));
    let mut out = String::from(if value < 0.0 { "−" } else { "" });
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out + fraction
}

/// A time with the unit that suits it.
fn time(us: f64) -> String {
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

    #[test]
    fn numbers_and_times_read_well() {
        for (value, text) in [
            (0.0, "0"),
            (0.05, "0.05"),
            (1.5, "1.5"),
            (12.34, "12.3"),
            (999.0, "999"),
            (1e6, "1,000,000"),
            (-5.0, "−5"),
        ] {
            assert_eq!(number(value), text);
        }
        for (us, text) in [
            (0.08, "80 ns"),
            (1.0, "1 µs"),
            (250.0, "250 µs"),
            (1500.0, "1.5 ms"),
            (2e6, "2 s"),
        ] {
            assert_eq!(time(us), text);
        }
    }

    fn axis(scale: Scale, values: &[f64], spread: Option<(f64, f64)>) -> Axis {
        let bar = |value: &f64| Bar {
            class: String::new(),
            value: *value,
            spread,
            whose: String::new(),
        };
        let bars = values.iter().map(bar).collect();
        Axis::of(
            scale,
            &[Row {
                name: String::new(),
                bars,
            }],
        )
    }

    #[test]
    fn of_ratios_one_is_always_there_and_twice_is_as_far_from_it_as_half() {
        let ratios = |values: &[f64]| axis(Scale::Ratio, values, None);
        let equal = ratios(&[1.0]);
        assert_eq!((equal.ticks.as_slice(), equal.base), (&[0.5, 1.0, 2.0][..], 1.0));
        assert!((equal.at(2.0) - equal.at(1.0) - (equal.at(1.0) - equal.at(0.5))).abs() < 1e-9);
        assert_eq!(ratios(&[0.03, 4.0]).ticks, [0.1, 1.0]);
        assert_eq!(ratios(&[1.2, 56.0]).ticks, [1.0, 10.0, 100.0]);
        assert_eq!(ratios(&[0.0, 0.2]).at(0.0), 0.0);
        let wide = axis(Scale::Ratio, &[1.5], Some((0.0, 9000.0)));
        assert!(
            wide.low > 0.09 && wide.high < 11.0,
            "one that scatters leaves the others their room"
        );
    }

    #[test]
    fn an_axis_holds_its_values_between_round_numbers() {
        assert_eq!(axis(Scale::FromZero, &[3.0, 87.0], None).ticks, [0.0, 50.0, 100.0]);
        let latency = axis(Scale::Latency, &[7.0, 43210.0], None);
        assert_eq!((latency.low.round(), latency.high), (2.0, 5e4));
        assert_eq!(latency.ticks, [10.0, 100.0, 1e3, 1e4]);
        for (scale, values) in [
            (Scale::FromZero, &[][..]),
            (Scale::FromZero, &[0.0]),
            (Scale::Latency, &[]),
            (Scale::Latency, &[1.0]),
        ] {
            let axis = axis(scale, values, None);
            assert!(axis.low < axis.high && axis.at(1.0).is_finite(), "{scale:?} of {values:?}");
        }
    }
}
