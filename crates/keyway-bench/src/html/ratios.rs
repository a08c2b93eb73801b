//! Ratios as bars: each begins at 1, where both sides are equal, on an axis where twice and half are equally far from it.

use crate::html::chart::{nice_above, nice_below, number, px};
use maud::{Markup, html};

/// Of a row's bars, in pixels: the drawing is stretched in its width alone.
const BAR_HEIGHT: f64 = 16.0;
const BAR: f64 = 10.0;

/// One thing that has ratios.
pub struct Row {
    /// what it is
    pub name: String,
    /// each with a bar, one below the other
    pub bars: Vec<Bar>,
}

/// One ratio.
pub struct Bar {
    /// its colour's class
    pub class: &'static str,
    /// the median
    pub ratio: f64,
    /// the lowest and the highest, where there is a spread
    pub spread: Option<(f64, f64)>,
    /// whose ratio it is, before its value; empty where there is one bar alone
    pub whose: &'static str,
}

/// From the least to the most that is drawn, both sides of 1.
#[derive(Clone, Copy)]
struct Scale {
    low: f64,
    high: f64,
}

impl Scale {
    fn of(rows: &[Row]) -> Self {
        /// What is shown even where all are equal.
        const AROUND: (f64, f64) = (0.5, 2.0);
        /// What is further from 1 is drawn to the axis' end, as is the ratio of nothing, 0.
        const LEAST: f64 = 1e-4;
        /// How far beyond all medians a spread is drawn: one that is wider runs to the axis' end, and its numbers say how wide it is.
        const BEYOND: f64 = 3.0;
        let drawn = |ratio: &f64| (LEAST..=1.0 / LEAST).contains(ratio);
        let bars = || rows.iter().flat_map(|row| &row.bars);
        let widened = |(low, high): (f64, f64), ratio: f64| (low.min(ratio), high.max(ratio));
        let (low, high) = bars().map(|bar| bar.ratio).filter(drawn).fold(AROUND, widened);
        let ends = bars().filter_map(|bar| bar.spread).flat_map(|(low, high)| [low, high]);
        let near = |end: f64| end.clamp(low / BEYOND, high * BEYOND);
        let (low, high) = ends.map(near).fold((low, high), widened);
        Self {
            low: nice_below(low),
            high: nice_above(high),
        }
    }

    /// In percent of the width.
    fn at(self, ratio: f64) -> f64 {
        (ratio.clamp(self.low, self.high) / self.low).ln() / (self.high / self.low).ln() * 100.0
    }

    fn ticks(self) -> Vec<f64> {
        let decades = (self.high / self.low).log10();
        let (steps, every): (&[f64], i32) = match decades {
            d if d <= 1.71 => (&[1.0, 2.0, 5.0], 1),
            d if d <= 5.0 => (&[1.0], 1),
            _ => (&[1.0], 2),
        };
        let inside = |tick: &f64| *tick >= self.low * 0.999 && *tick <= self.high * 1.001;
        let decade = |power: i32| steps.iter().map(move |step| step * 10_f64.powi(power));
        (-6..=6)
            .filter(|power| power % every == 0)
            .flat_map(decade)
            .filter(inside)
            .collect()
    }
}

/// The rows with their axis; `name` says of what they are ratios.
pub fn markup(kind: &str, name: &str, rows: &[Row]) -> Markup {
    let scale = Scale::of(rows);
    html! {
        div.ratios data-plot=(kind) role="group" aria-label=(name) {
            div.head {
                div.name { (name) }
                div.plot.axis {
                    @for tick in scale.ticks() { span style=(format!("left:{}%", px(scale.at(tick)))) { (number(tick)) } }
                }
            }
            @for row in rows {
                div.row {
                    div.name { (row.name) }
                    div.plot { (drawing(scale, row)) }
                    div.values {
                        @for bar in &row.bars {
                            div { @if !bar.whose.is_empty() { span.whose.(bar.class) { (bar.whose) " " } } strong { (text(bar.ratio, bar.ratio)) } (spread(bar)) }
                        }
                    }
                }
            }
        }
    }
}

fn drawing(scale: Scale, row: &Row) -> Markup {
    #[allow(clippy::cast_precision_loss, reason = "a few bars")]
    let tops = (0..row.bars.len()).map(|at| at as f64 * BAR_HEIGHT + (BAR_HEIGHT - BAR) / 2.0);
    #[allow(clippy::cast_precision_loss, reason = "a few bars")]
    let height = row.bars.len() as f64 * BAR_HEIGHT;
    let one = scale.at(1.0);
    html! {
        svg viewBox=(format!("0 0 100 {height}")) height=(height) preserveAspectRatio="none" role="img" aria-label=(in_words(row)) {
            @for tick in scale.ticks() { line.tick x1=(px(scale.at(tick))) x2=(px(scale.at(tick))) y1="0" y2=(height) {} }
            @for (bar, top) in row.bars.iter().zip(tops) {
                @let end = scale.at(bar.ratio);
                @let middle = px(top + BAR / 2.0);
                rect.bar.(bar.class) x=(hundredth(one.min(end))) y=(px(top)) width=(hundredth((one - end).abs())) height=(BAR) {}
                @if let Some((low, high)) = bar.spread {
                    line.whisker x1=(hundredth(scale.at(low))) x2=(hundredth(scale.at(high))) y1=(middle) y2=(middle) {}
                }
            }
            line.one x1=(hundredth(one)) x2=(hundredth(one)) y1="0" y2=(height) {}
        }
    }
}

fn in_words(row: &Row) -> String {
    let bars: Vec<_> = row
        .bars
        .iter()
        .map(|bar| format!("{} {}{}", bar.whose, text(bar.ratio, bar.ratio), spread(bar)))
        .collect();
    format!("{}: {}", row.name, bars.join("; "))
}

fn spread(bar: &Bar) -> String {
    let words = |(low, high): (f64, f64)| format!(" ({}–{})", text(low, bar.ratio), text(high, high.max(bar.ratio)));
    bar.spread.map_or(String::new(), words)
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

fn text(ratio: f64, like: f64) -> String {
    format!("{ratio:.0$}", digits(like))
}

fn hundredth(at: f64) -> String {
    format!("{at:.2}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scale(ratios: &[f64]) -> Scale {
        let bar = |ratio: &f64| Bar {
            class: "",
            ratio: *ratio,
            spread: None,
            whose: "",
        };
        Scale::of(&[Row {
            name: String::new(),
            bars: ratios.iter().map(bar).collect(),
        }])
    }

    #[test]
    fn one_is_always_there_and_twice_is_as_far_from_it_as_half() {
        let equal = scale(&[1.0]);
        assert_eq!(equal.ticks(), [0.5, 1.0, 2.0]);
        assert!((equal.at(2.0) - equal.at(1.0) - (equal.at(1.0) - equal.at(0.5))).abs() < 1e-9);
        assert_eq!(scale(&[0.03, 4.0]).ticks(), [0.1, 1.0]);
        let with_nothing = scale(&[0.0, 0.2]);
        assert_eq!((with_nothing.low, with_nothing.at(0.0)), (0.2, 0.0));
        let mut wide = Row {
            name: String::new(),
            bars: Vec::new(),
        };
        wide.bars.push(Bar {
            class: "",
            ratio: 1.5,
            spread: Some((0.0, 9000.0)),
            whose: "",
        });
        let wide = Scale::of(&[wide]);
        assert_eq!(
            (wide.low, wide.high),
            (0.1, 10.0),
            "one that scatters leaves the others their room"
        );
        assert_eq!(scale(&[1.2, 56.0]).ticks(), [1.0, 10.0, 100.0]);
    }
}
